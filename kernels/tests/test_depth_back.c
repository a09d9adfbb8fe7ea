/* The depth axis backward: every gradient against central differences of a naive float64 forward.
 */
#include "kernels/tests/depth_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static status st;

#define OR_FAIL(call)                                                                              \
    do {                                                                                           \
        if (call)                                                                                  \
            fail_msg("%s", st.text);                                                               \
    } while (0)

/* ---- float64: the loss is sum over sites and tokens of <d_in, in> ---- */

enum { TENSORS = 5 }; /* of a site: query, gain, null source, gate, gate bias */

typedef struct reference {
    const depth_case *test;
    double **given;                       /* [values] of [FIXTURE_ROWS, width], or NULL */
    double *learned[CASE_SITES][TENSORS]; /* NULL: the case has none */
    double *d_in[CASE_SITES];             /* [FIXTURE_ROWS, width] */
    double *value;                        /* [values, width] of one token */
} reference;

static buffer *learned_tensor(const depth_case *test, size_t site, size_t tensor) {
    const site_weights *w = &test->weights[site];
    const buffer *all[TENSORS] = {w->query, w->gain, w->null_source, w->gate, w->gate_bias};
    return (buffer *)all[tensor];
}

static double *widen(const buffer *from) {
    if (!from)
        return NULL;
    const size_t n = from->bytes / sizeof(float);
    double *wide = malloc(n * sizeof *wide);
    assert_non_null(wide);
    for (size_t i = 0; i < n; i++)
        wide[i] = (double)floats(from)[i];
    return wide;
}

static reference reference_of(const depth_case *test, buffer *const d_in[CASE_SITES]) {
    reference ref = {.test = test};
    ref.given = calloc(test->plan.values, sizeof *ref.given);
    ref.value = malloc(test->plan.values * test->plan.width * sizeof *ref.value);
    assert_true(ref.given && ref.value);
    for (size_t v = 0; v < test->plan.values; v++)
        ref.given[v] = widen(test->given[v]);
    for (size_t i = 0; i < CASE_SITES; i++) {
        ref.d_in[i] = widen(d_in[i]);
        for (size_t t = 0; t < TENSORS; t++)
            ref.learned[i][t] = widen(learned_tensor(test, i, t));
    }
    return ref;
}

static void reference_free(reference *ref) {
    for (size_t v = 0; v < ref->test->plan.values; v++)
        free(ref->given[v]);
    for (size_t i = 0; i < CASE_SITES; i++) {
        free(ref->d_in[i]);
        for (size_t t = 0; t < TENSORS; t++)
            free(ref->learned[i][t]);
    }
    free(ref->given);
    free(ref->value);
}

static void make_values(const reference *ref, size_t row) {
    const depth_plan *plan = &ref->test->plan;
    for (size_t v = 0; v < plan->values; v++)
        for (size_t i = 0; i < plan->width; i++) {
            const depth_value *value = &plan->value[v];
            double *to = &ref->value[v * plan->width + i];
            const double a = value->a < 0 ? 0 : ref->value[(size_t)value->a * plan->width + i];
            const double b = value->b < 0 ? 0 : ref->value[(size_t)value->b * plan->width + i];
            *to = ref->given[v]               ? ref->given[v][row * plan->width + i]
                  : value->kind == VALUE_NULL ? ref->learned[value->a][2][i]
                  : value->kind == VALUE_ADD  ? a + b
                  : value->kind == VALUE_SUB  ? a - b
                                              : 0.0;
        }
}

static double gate_of(const reference *ref, size_t site, const double *base, size_t i) {
    const gate_kind kind = ref->test->site[site].gate;
    const double *gate = ref->learned[site][3], *bias = ref->learned[site][4];
    if (kind == GATE_NONE || kind == GATE_ALPHA)
        return kind == GATE_NONE ? 1.0 : gate[0];
    double x = kind == GATE_SIGMOID_SCALAR ? gate[0] : bias ? bias[i] : 0.0;
    for (size_t c = 0; kind == GATE_SIGMOID_VECTOR && c < ref->test->plan.width; c++)
        x += gate[i * ref->test->plan.width + c] * base[c];
    return 1.0 / (1.0 + exp(-x));
}

/* Slice h of the mix. */
static void mix_slice(const reference *ref, size_t site, size_t h, double *mix) {
    const depth_plan *plan = &ref->test->plan;
    const depth_site *planned = &plan->site[site];
    const size_t width = plan->width, slice = width / plan->heads;
    double logit[256], most = -INFINITY, sum = 0.0;
    for (int s = 0; s < planned->sources; s++) {
        const double *v = ref->value + (size_t)planned->source[s] * width;
        double squares = 0.0;
        for (size_t i = 0; i < width; i++)
            squares += v[i] * v[i] / (double)width;
        logit[s] = 0.0;
        for (size_t i = h * slice; i < (h + 1) * slice; i++)
            logit[s] += ref->learned[site][0][i] * ref->learned[site][1][i] * v[i] /
                        sqrt(squares + (double)plan->eps);
        most = fmax(most, logit[s]);
    }
    for (int s = 0; s < planned->sources; s++)
        sum += logit[s] = exp(logit[s] - most);
    for (size_t i = h * slice; i < (h + 1) * slice; i++) {
        mix[i] = 0.0;
        for (int s = 0; s < planned->sources; s++)
            mix[i] += logit[s] / sum * ref->value[(size_t)planned->source[s] * width + i];
    }
}

static double row_loss(const reference *ref, size_t row) {
    const depth_plan *plan = &ref->test->plan;
    const size_t width = plan->width;
    double mix[2048], loss = 0.0;
    make_values(ref, row);
    for (size_t site = 0; site < CASE_SITES; site++) {
        const depth_site *planned = &plan->site[site];
        const double *base =
            planned->base == NO_VALUE ? NULL : ref->value + (size_t)planned->base * width;
        for (size_t h = 0; planned->sources && h < plan->heads; h++)
            mix_slice(ref, site, h, mix);
        for (size_t i = 0; i < width; i++) {
            double in = planned->sources ? mix[i] : base[i];
            if (planned->sources && base)
                in = base[i] + gate_of(ref, site, base, i) *
                                   (planned->interpolates ? mix[i] - base[i] : mix[i]);
            loss += ref->d_in[site][row * width + i] * in;
        }
    }
    return loss;
}

static double loss_of(const reference *ref, size_t first, size_t rows) {
    double loss = 0.0;
    for (size_t row = first; row < first + rows; row++)
        loss += row_loss(ref, row);
    return loss;
}

/* The slope of the loss of some rows along `direction` from the tensor x [n]. */
static double slope(const reference *ref, double *x, const double *direction, size_t n,
                    size_t first, size_t rows) {
    const double step = 3e-6;
    double loss[2];
    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; i < n; i++)
            x[i] += (side ? -2.0 : 1.0) * step * direction[i];
        loss[side] = loss_of(ref, first, rows);
    }
    for (size_t i = 0; i < n; i++)
        x[i] += step * direction[i];
    return (loss[0] - loss[1]) / (2.0 * step);
}

/* |slope - <gradient, direction>| over the length that product has for a random direction, or over
 * `floor` where that is larger: terms that cancel leave their rounding. */
static void check_slope(const char *what, const reference *ref, double *x, const float *gradient,
                        size_t n, size_t first, size_t rows, double floor, double bound) {
    double *direction = malloc(n * sizeof *direction), along = 0.0, size = 0.0;
    assert_non_null(direction);
    for (size_t i = 0; i < n; i++) {
        direction[i] = fixture_normal();
        along += direction[i] * (double)gradient[i];
        size += (double)gradient[i] * (double)gradient[i];
    }
    const double want = slope(ref, x, direction, n, first, rows);
    const double error = fabs(along - want) / fmax(sqrt(size), floor);
    if (getenv("TEST_VERBOSE"))
        printf("%-44s error %.2e of %.2e, bound %.0e\n", what, error, sqrt(size), bound);
    if (!(error <= bound))
        fail_msg("%s: slope %.9g, by differences %.9g, error %.3g, bound %.0e", what, along, want,
                 error, bound);
    free(direction);
}

/* ---- the backend ---- */

typedef struct gradients {
    buffer **value;                       /* [values] of [FIXTURE_ROWS, width], or NULL */
    buffer *learned[CASE_SITES][TENSORS]; /* added to */
} gradients;

static gradients gradients_of(const depth_case *test) {
    gradients g = {calloc(test->plan.values, sizeof *g.value), {{NULL}}};
    assert_non_null(g.value);
    for (size_t v = 0; v < test->plan.values; v++)
        if (test->value[v].slot >= 0)
            g.value[v] = fixture_buffer(FIXTURE_ROWS * test->plan.width);
    for (size_t i = 0; i < CASE_SITES; i++)
        for (size_t t = 0; t < TENSORS; t++) {
            const buffer *tensor = learned_tensor(test, i, t);
            if (!tensor)
                continue;
            g.learned[i][t] = fixture_buffer(tensor->bytes / sizeof(float));
            memset(g.learned[i][t]->data, 0, tensor->bytes);
        }
    return g;
}

static void gradients_free(const depth_case *test, gradients *g) {
    for (size_t v = 0; v < test->plan.values; v++)
        fixture_free(g->value[v]);
    free(g->value);
    for (size_t i = 0; i < CASE_SITES; i++)
        for (size_t t = 0; t < TENSORS; t++)
            fixture_free(g->learned[i][t]);
}

/* Forward and backward of the sequences in `layout`, whose first row is row `first` of the case. */
static void run(backend *device, depth *axis, const depth_case *test, const batch_layout *layout,
                size_t first, buffer *const d_in[CASE_SITES], gradients *g) {
    const kernels *k = &kernels_cpu;
    const size_t width = test->plan.width, n = layout->rows * width;
    buffer *in[CASE_SITES], *given[CASE_SITES];
    OR_FAIL(k->depth_begin(axis, layout, &(depth_wants){0}, &st));
    for (size_t v = 0; v < test->plan.values; v++)
        if (test->given[v]) {
            OR_FAIL(k->upload(device, k->depth_storage(axis, v), 0,
                              floats(test->given[v]) + first * width, n, &st));
            OR_FAIL(k->depth_made(axis, v, &st));
        }
    for (size_t i = 0; i < CASE_SITES; i++) {
        in[i] = fixture_buffer(n);
        given[i] = fixture_copy(floats(d_in[i]) + first * width, n);
        OR_FAIL(k->depth_read(axis, &(depth_read_args){i, in[i], NULL}, &st));
    }
    for (size_t i = CASE_SITES; i-- > 0;)
        OR_FAIL(k->depth_give(axis, i, given[i], &st));
    for (size_t v = test->plan.values; v-- > 0;) {
        const buffer *d_value;
        if (!g->value[v])
            continue;
        OR_FAIL(k->depth_pull(axis, v, &d_value, &st));
        memcpy(floats(g->value[v]) + first * width, d_value->data, n * sizeof(float));
    }
    for (size_t i = 0; i < CASE_SITES; i++) {
        buffer **b = g->learned[i];
        const site_grads grads = {b[0], b[1], b[2], b[3], b[4]};
        OR_FAIL(k->depth_site_grads(axis, i, &grads, &st));
    }
    for (size_t i = 0; i < CASE_SITES; i++) {
        fixture_free(in[i]);
        fixture_free(given[i]);
    }
}

static depth *open_axis(backend *device, const depth_case *test) {
    depth *axis;
    const depth_options options = {&test->plan,       test->weights, FIXTURE_ROWS,
                                   FIXTURE_SEQUENCES, true,          false};
    OR_FAIL(kernels_cpu.depth_create(device, &options, &axis, &st));
    return axis;
}

static void same_gradients(const depth_case *test, const char *name, const gradients *a,
                           const gradients *b) {
    char what[96];
    for (size_t v = 0; v < test->plan.values; v++) {
        snprintf(what, sizeof what, "%s, value %zu", name, v);
        if (a->value[v])
            fixture_same(what, a->value[v]->data, b->value[v]->data,
                         FIXTURE_ROWS * test->plan.width);
    }
    for (size_t i = 0; i < CASE_SITES; i++)
        for (size_t t = 0; t < TENSORS; t++) {
            snprintf(what, sizeof what, "%s, site %zu, tensor %zu", name, i, t);
            if (a->learned[i][t])
                fixture_same(what, a->learned[i][t]->data, b->learned[i][t]->data,
                             a->learned[i][t]->bytes / sizeof(float));
        }
}

/* One batch on one and on two threads, and each sequence as a batch of its own, into the same sums:
 * the same bits. */
static void run_every_way(const depth_case *test, buffer *const d_in[CASE_SITES], gradients *g) {
    for (size_t way = 0; way < 3; way++) {
        backend *device = fixture_device(way == 0 ? 1 : 2);
        depth *axis = open_axis(device, test);
        gradients other = gradients_of(test);
        if (way < 2) {
            run(device, axis, test, &fixture_batch, 0, d_in, way ? &other : g);
        } else {
            for (size_t b = 0; b < FIXTURE_SEQUENCES; b++) {
                const size_t first = fixture_start[b], rows = fixture_start[b + 1] - first;
                const size_t start[] = {0, rows};
                run(device, axis, test, &(batch_layout){1, rows, start}, first, d_in, &other);
            }
        }
        if (way)
            same_gradients(test, way == 1 ? "1 and 2 threads" : "sequences apart", g, &other);
        gradients_free(test, &other);
        kernels_cpu.depth_free(axis);
        kernels_cpu.close(device);
    }
}

/* ---- tests ---- */

/* Gradients of activations are held token by token, those of learned tensors as a whole. */
static void check_case(depth_case *test, const char *name, double bound) {
    const size_t width = test->plan.width;
    static const char *const tensor[TENSORS] = {"query", "gain", "null source", "gate",
                                                "gate bias"};
    buffer *d_in[CASE_SITES];
    char what[96];
    for (size_t i = 0; i < CASE_SITES; i++)
        d_in[i] = fixture_random(FIXTURE_ROWS * width, 1.0);
    gradients g = gradients_of(test);
    run_every_way(test, d_in, &g);
    reference ref = reference_of(test, d_in);
    for (size_t v = 0; v < test->plan.values; v++)
        for (size_t row = fixture_pick(0, 63); ref.given[v] && row < FIXTURE_ROWS; row += 64) {
            snprintf(what, sizeof what, "%s, value %zu, row %zu", name, v, row);
            check_slope(what, &ref, ref.given[v] + row * width, floats(g.value[v]) + row * width,
                        width, row, 1, 0.1, bound);
        }
    for (size_t i = 0; i < CASE_SITES; i++)
        for (size_t t = 0; t < TENSORS; t++) {
            if (!ref.learned[i][t])
                continue;
            snprintf(what, sizeof what, "%s, site %zu, %s", name, i, tensor[t]);
            check_slope(what, &ref, ref.learned[i][t], floats(g.learned[i][t]),
                        g.learned[i][t]->bytes / sizeof(float), 0, FIXTURE_ROWS, 10, bound);
        }
    reference_free(&ref);
    gradients_free(test, &g);
    for (size_t i = 0; i < CASE_SITES; i++)
        fixture_free(d_in[i]);
    depth_case_free(test);
}

static void sources_of_any_number_and_heads_of_any_width(void **state) {
    (void)state; /* measured 2e-6 */
    check_case(depth_case_prefixes(48, 4, 73, (size_t[]){1, 2, 33, 73}), "48 in 4 heads", 2e-5);
    check_case(depth_case_prefixes(48, 24, 33, (size_t[]){1, 2, 3, 33}), "48 in 24 heads", 2e-5);
    check_case(depth_case_prefixes(50, 1, 7, (size_t[]){1, 2, 3, 7}), "50 in 1 head", 2e-5);
    check_case(depth_case_prefixes(768, 12, 3, (size_t[]){1, 2, 3, 3}), "768 in 12 heads", 2e-5);
}

/* Plans drawn at random have small differences beside large values: <v, d_mix> - <mix, d_mix> is
 * then a difference of large numbers, divided by a small rms. Mostly 1e-5; 7e-4 seen. */
static void values_gates_and_bases_of_every_kind(void **state) {
    (void)state;
    for (int k = 0; k < 16; k++)
        check_case(depth_case_mixed(48, k % 2 ? 4 : 1), "mixed plan", 5e-3);
}

/* Where eps is no trifle beside the mean square, r is not 1 / rms. */
static void eps_takes_part(void **state) {
    (void)state;
    depth_case *test = depth_case_prefixes(48, 4, 5, (size_t[]){1, 2, 4, 5});
    test->plan.eps = 0.5f;
    check_case(test, "eps 0.5", 2e-5);
}

/* One source: its weight does not depend on the query. */
static void a_single_source_gives_its_query_no_gradient(void **state) {
    (void)state;
    depth_case *test = depth_case_prefixes(48, 4, 3, (size_t[]){1, 1, 2, 3});
    backend *device = fixture_device(2);
    depth *axis = open_axis(device, test);
    gradients g = gradients_of(test);
    buffer *d_in[CASE_SITES];
    for (size_t i = 0; i < CASE_SITES; i++)
        d_in[i] = fixture_random(FIXTURE_ROWS * 48, 1.0);
    run(device, axis, test, &fixture_batch, 0, d_in, &g);
    for (size_t i = 0; i < 48; i++) {
        assert_true(floats(g.learned[1][0])[i] == 0.0f && floats(g.learned[1][1])[i] == 0.0f);
        assert_true(floats(g.learned[2][0])[i] != 0.0f);
    }
    for (size_t i = 0; i < CASE_SITES; i++)
        fixture_free(d_in[i]);
    gradients_free(test, &g);
    kernels_cpu.depth_free(axis);
    kernels_cpu.close(device);
    depth_case_free(test);
}

static void expect(int rc, const char *text) {
    assert_int_equal(rc, FAILED);
    if (!strstr(st.text, text))
        fail_msg("\"%s\", expected \"%s\"", st.text, text);
}

static void misuse_is_refused(void **state) {
    (void)state;
    const kernels *k = &kernels_cpu;
    depth_case *test = depth_case_prefixes(48, 4, 3, (size_t[]){1, 2, 3, 3});
    backend *device = fixture_device(1);
    buffer *in = fixture_random(FIXTURE_ROWS * 48, 1.0);
    const buffer *d_value;
    depth *axis;
    const depth_options without = {&test->plan,       test->weights, FIXTURE_ROWS,
                                   FIXTURE_SEQUENCES, false,         false};
    OR_FAIL(k->depth_create(device, &without, &axis, &st));
    expect(k->depth_give(axis, 0, in, &st), "without backward");
    expect(k->depth_pull(axis, 0, &d_value, &st), "without backward");
    expect(k->depth_site_grads(axis, 0, &(site_grads){NULL}, &st), "without backward");
    k->depth_free(axis);
    axis = open_axis(device, test);
    OR_FAIL(k->depth_begin(axis, &fixture_batch, &(depth_wants){0}, &st));
    expect(k->depth_give(axis, 0, in, &st), "not read");
    for (size_t v = 0; v < 3; v++) {
        memset(k->depth_storage(axis, v)->data, 0, FIXTURE_ROWS * 48 * sizeof(float));
        OR_FAIL(k->depth_made(axis, v, &st));
    }
    for (size_t i = 0; i < CASE_SITES; i++)
        OR_FAIL(k->depth_read(axis, &(depth_read_args){i, in, NULL}, &st));
    expect(k->depth_give(axis, 9, in, &st), "site 9 of 4");
    OR_FAIL(k->depth_give(axis, 3, in, &st));
    expect(k->depth_give(axis, 3, in, &st), "given already");
    expect(k->depth_pull(axis, 2, &d_value, &st), "before site 2 is given");
    expect(k->depth_pull(axis, 7, &d_value, &st), "no gradient");
    expect(k->depth_site_grads(axis, 3, &(site_grads){NULL}, &st), "before value 0 is pulled");
    k->depth_free(axis);
    fixture_free(in);
    k->close(device);
    depth_case_free(test);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sources_of_any_number_and_heads_of_any_width),
        cmocka_unit_test(values_gates_and_bases_of_every_kind),
        cmocka_unit_test(eps_takes_part),
        cmocka_unit_test(a_single_source_gives_its_query_no_gradient),
        cmocka_unit_test(misuse_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
