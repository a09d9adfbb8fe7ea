/* back_case.c - see back_case.h. */
#include "kernels/tests/back_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIRECTIONS = 4 };

typedef struct back_data {
    const back_case *test;
    buffer *x[BACK_TENSORS], *id, *d_out;
    buffer *before[BACK_TENSORS]; /* gradients before the call: NaN, or numbers to add to */
    double *exact[BACK_TENSORS];  /* x in float64 */
} back_data;

static size_t total(const back_case *test, size_t t) {
    return test->x[t].elements * (test->x[t].learned ? 1 : test->layout->rows);
}

static back_data make_data(const back_case *test) {
    back_data data = {.test = test};
    const size_t rows = test->layout->rows;
    for (size_t t = 0; t < BACK_TENSORS; t++) {
        const size_t n = total(test, t);
        if (!n)
            continue;
        data.x[t] = fixture_random(n, test->x[t].scale);
        data.before[t] = test->x[t].learned ? fixture_random(n, 1.0) : fixture_buffer(n);
        data.exact[t] = malloc(n * sizeof(double));
        assert_non_null(data.exact[t]);
        for (size_t i = 0; i < n; i++)
            data.exact[t][i] = (double)floats(data.x[t])[i];
    }
    if (test->out)
        data.d_out = fixture_random(rows * test->out, 1.0);
    if (test->ids) {
        data.id = fixture_buffer(rows);
        int32_t *id = data.id->data;
        for (size_t r = 0; r < rows; r++)
            id[r] =
                test->targets && !fixture_pick(0, 5) ? -1 : (int32_t)fixture_pick(0, test->ids - 1);
    }
    return data;
}

static void free_buffers(buffer **set) {
    for (size_t t = 0; t < BACK_TENSORS; t++)
        fixture_free(set[t]);
}

static void free_data(back_data *data) {
    for (size_t t = 0; t < BACK_TENSORS; t++)
        free(data->exact[t]);
    free_buffers(data->x);
    free_buffers(data->before);
    fixture_free(data->id);
    fixture_free(data->d_out);
}

static buffer *rows_of(const buffer *whole, size_t elements, size_t first, size_t rows) {
    return whole ? fixture_copy(floats(whole) + first * elements, rows * elements) : NULL;
}

/* Sequences b .. end - 1 as a batch of their own; `d`: gradients of the whole batch. */
static void run_part(const back_data *data, backend *device, size_t b, size_t end, bool in_place,
                     bool learned, buffer **d) {
    const back_case *test = data->test;
    const size_t first = test->layout->start[b], rows = test->layout->start[end] - first;
    size_t start[FIXTURE_SEQUENCES + 1];
    assert_in_range(end - b, 1, FIXTURE_SEQUENCES);
    for (size_t i = b; i <= end; i++)
        start[i - b] = test->layout->start[i] - first;
    const batch_layout layout = {end - b, rows, start};
    back_call call = {.device = device, .layout = &layout};
    call.id = rows_of(data->id, 1, first, rows);
    call.d_out = rows_of(data->d_out, test->out, first, rows);
    for (size_t t = 0; t < BACK_TENSORS; t++) {
        const size_t elements = test->x[t].elements;
        if (test->x[t].learned) {
            call.x[t] = data->x[t];
            call.d[t] = learned ? d[t] : NULL;
        } else {
            call.x[t] = rows_of(data->x[t], elements, first, rows);
            call.d[t] = rows_of(d[t], elements, first, rows);
        }
    }
    back_call used = call;
    if (in_place && test->alias == BACK_OVER_D_OUT)
        used.d[0] = used.d_out;
    if (in_place && test->alias == BACK_OVER_IN)
        used.d[0] = used.x[0];
    status st;
    if (test->run(test, &used, &st))
        fail_msg("%s: %s", test->name, st.text);
    for (size_t t = 0; t < BACK_TENSORS; t++)
        if (!test->x[t].learned && d[t]) {
            const size_t elements = test->x[t].elements;
            memcpy(floats(d[t]) + first * elements, used.d[t]->data,
                   rows * elements * sizeof(float));
            fixture_free(call.x[t]);
            fixture_free(call.d[t]);
        }
    fixture_free(call.id);
    fixture_free(call.d_out);
}

/* The gradients after the batch was run in parts of `step` sequences. */
static void run(const back_data *data, size_t threads, size_t step, bool in_place, bool learned,
                buffer **d) {
    const size_t sequences = data->test->layout->sequences;
    for (size_t t = 0; t < BACK_TENSORS; t++)
        d[t] = data->before[t] ? fixture_copy(floats(data->before[t]), total(data->test, t)) : NULL;
    backend *device = fixture_device(threads);
    for (size_t b = 0; b < sequences; b += step)
        run_part(data, device, b, b + step < sequences ? b + step : sequences, in_place, learned,
                 d);
    kernels_cpu.close(device);
}

/* Another way to run gives the same bits. */
static void same(const back_data *data, buffer **d, const char *how, size_t threads, size_t step,
                 bool in_place, bool learned) {
    const back_case *test = data->test;
    buffer *other[BACK_TENSORS];
    run(data, threads, step, in_place, learned, other);
    for (size_t t = 0; t < BACK_TENSORS; t++) {
        char what[128];
        snprintf(what, sizeof what, "%s, gradient of %s, %s", test->name, test->x[t].name, how);
        const bool kept = test->x[t].learned && !learned;
        if (d[t])
            fixture_same(what, other[t]->data, (kept ? data->before : d)[t]->data, total(test, t));
    }
    free_buffers(other);
}

/* The derivative of the objective when the n elements at x move along u: central differences of
 * fourth order. Rows first .. end - 1 of sequences b .. last are evaluated. */
static double derivative(const back_data *data, double *x, const double *u, size_t n, size_t b,
                         size_t last, size_t first) {
    const back_case *test = data->test;
    const size_t *start = test->layout->start;
    const double step = 1e-3, at[] = {1.0, -1.0, 2.0, -2.0}, by[] = {8.0, -8.0, -1.0, 1.0};
    double *was = malloc(n * sizeof *was), sum = 0.0;
    assert_non_null(was);
    memcpy(was, x, n * sizeof *was);
    for (size_t k = 0; k < 4; k++) {
        for (size_t i = 0; i < n; i++)
            x[i] = was[i] + at[k] * step * u[i];
        for (size_t s = b; s <= last; s++)
            sum += by[k] * test->objective(test, data->exact, data->id ? data->id->data : NULL,
                                           data->d_out ? floats(data->d_out) : NULL, start[s],
                                           s == b ? first : start[s], start[s + 1]);
    }
    memcpy(x, was, n * sizeof *was);
    free(was);
    return sum / (12.0 * step);
}

/* What the call gave or added. */
static double gradient(const back_data *data, buffer *const *d, size_t t, size_t i) {
    const double before = data->test->x[t].learned ? (double)floats(data->before[t])[i] : 0.0;
    return (double)floats(d[t])[i] - before;
}

/* Element k of those checked: the first and last of each sequence (of a learned tensor, the first
 * and last), the one with the largest gradient, to which the errors are relative, and random ones.
 */
static size_t choose(const back_data *data, buffer *const *d, size_t t, size_t k) {
    const back_case *test = data->test;
    const size_t elements = test->x[t].elements, b = k / 2 % test->layout->sequences;
    const bool learned = test->x[t].learned;
    const size_t from = learned ? 0 : test->layout->start[b] * elements;
    const size_t last = (learned ? elements : test->layout->start[b + 1] * elements) - 1;
    if (k < 2 * test->layout->sequences)
        return k % 2 ? last : from;
    if (k > 2 * test->layout->sequences)
        return fixture_pick(from, last);
    size_t largest = 0;
    for (size_t i = 0; i < total(test, t); i++)
        if (fabs(gradient(data, d, t, i)) > fabs(gradient(data, d, t, largest)))
            largest = i;
    return largest;
}

static void check_elements(const back_data *data, buffer *const *d, size_t t) {
    const back_case *test = data->test;
    const size_t *start = test->layout->start, sequences = test->layout->sequences;
    const size_t count = 2 * sequences + 1 + test->samples;
    double *got = malloc(count * sizeof *got), *want = malloc(count * sizeof *want);
    assert_true(got && want);
    for (size_t k = 0; k < count; k++) {
        const size_t i = choose(data, d, t, k);
        size_t b = 0, last = sequences - 1, row = 0;
        if (!test->x[t].learned) {
            row = i / test->x[t].elements;
            while (start[b + 1] <= row)
                b++;
            last = b;
        }
        got[k] = gradient(data, d, t, i);
        want[k] = derivative(data, data->exact[t] + i, &(double){1.0}, 1, b, last, row);
    }
    char what[128];
    snprintf(what, sizeof what, "%s, elements of %s", test->name, test->x[t].name);
    fixture_close_doubles(what, got, want, count, test->bound);
    free(got);
    free(want);
}

static void check_directions(const back_data *data, buffer *const *d, size_t t) {
    const back_case *test = data->test;
    const size_t n = total(test, t);
    double got[DIRECTIONS + 1], want[DIRECTIONS + 1], *u = malloc(n * sizeof *u), squares = 0.0;
    assert_non_null(u);
    for (size_t i = 0; i < n; i++)
        squares += gradient(data, d, t, i) * gradient(data, d, t, i);
    for (size_t k = 0; k < DIRECTIONS; k++) {
        got[k] = 0.0;
        for (size_t i = 0; i < n; i++) {
            u[i] = fixture_normal();
            got[k] += gradient(data, d, t, i) * u[i];
        }
        want[k] = derivative(data, data->exact[t], u, n, 0, test->layout->sequences - 1, 0);
    }
    /* Errors are relative to the gradient's length: a direction may be nearly at right angles. */
    got[DIRECTIONS] = want[DIRECTIONS] = sqrt(squares);
    char what[128];
    snprintf(what, sizeof what, "%s, directions of %s", test->name, test->x[t].name);
    fixture_close_doubles(what, got, want, DIRECTIONS + 1, test->bound);
    free(u);
}

void back_check(const back_case *test) {
    back_data data = make_data(test);
    buffer *d[BACK_TENSORS];
    const size_t all = test->layout->sequences;
    run(&data, 1, all, false, true, d);
    same(&data, d, "two threads", 2, all, false, true);
    same(&data, d, "sequence by sequence", 2, 1, false, true);
    same(&data, d, "in two batches", 2, (all + 1) / 2, false, true);
    same(&data, d, "learned tensors not wanted", 2, all, false, false);
    if (test->alias != BACK_APART)
        same(&data, d, "in place", 2, all, true, true);
    for (size_t t = 0; t < BACK_TENSORS; t++)
        if (d[t]) {
            for (size_t i = 0; i < total(test, t); i++)
                assert_true(floats(data.x[t])[i] == (float)data.exact[t][i]);
            check_elements(&data, d, t);
            check_directions(&data, d, t);
        }
    free_buffers(d);
    free_data(&data);
}
