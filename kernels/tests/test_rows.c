/* Operations that work row by row: embed, norm, swiglu, magnitude, against float64. */
#include "kernels/tests/fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static status st;

/* Widths that fill vectors and widths that do not. */
static const size_t widths[] = {1, 5, 48, 50, 768, 1280};
enum { WIDTHS = sizeof widths / sizeof *widths, ROWS = 33 };

static void embed_copies_rows(void **state) {
    (void)state;
    backend *device = fixture_device(2);
    buffer *table = fixture_random(7 * 50, 1.0), *id = fixture_buffer(ROWS);
    buffer *out = fixture_buffer(ROWS * 50);
    int32_t *token = id->data;
    for (size_t r = 0; r < ROWS; r++)
        token[r] = (int32_t)fixture_pick(0, 6);
    assert_int_equal(kernels_cpu.embed(device, &(embed_args){ROWS, 50, 7, table, id, out}, &st), 0);
    for (size_t r = 0; r < ROWS; r++)
        fixture_same("embed", floats(out) + r * 50, floats(table) + (size_t)token[r] * 50, 50);
    fixture_free(table);
    fixture_free(id);
    fixture_free(out);
    kernels_cpu.close(device);
}

/* The mean subtracted is 0 for NORM_RMS. */
static void norm_reference(const norm_args *args, double *want) {
    for (size_t r = 0; r < args->rows; r++) {
        const float *x = floats(args->in) + r * args->width;
        double mean = 0.0, squares = 0.0;
        for (size_t i = 0; args->kind == NORM_LAYER && i < args->width; i++)
            mean += (double)x[i] / (double)args->width;
        for (size_t i = 0; i < args->width; i++)
            squares += ((double)x[i] - mean) * ((double)x[i] - mean) / (double)args->width;
        for (size_t i = 0; i < args->width; i++)
            want[r * args->width + i] = ((double)x[i] - mean) / sqrt(squares + (double)args->eps) *
                                            (double)floats(args->gain)[i] +
                                        (args->bias ? (double)floats(args->bias)[i] : 0.0);
    }
}

static void norm_is_right(void **state) {
    (void)state;
    backend *device = fixture_device(2);
    for (size_t k = 0; k < WIDTHS * 4; k++) {
        const size_t width = widths[k / 4];
        norm_args args = {.kind = k & 1 ? NORM_LAYER : NORM_RMS,
                          .rows = ROWS,
                          .width = width,
                          .eps = 1e-6f,
                          .in = fixture_random(ROWS * width, k & 2 ? 1e-4 : 1e4),
                          .gain = fixture_random(width, 1.0),
                          .bias = k & 2 ? fixture_random(width, 1.0) : NULL,
                          .out = fixture_buffer(ROWS * width)};
        double *want = malloc(ROWS * width * sizeof *want);
        norm_reference(&args, want);
        assert_int_equal(kernels_cpu.norm(device, &args, &st), 0);
        fixture_close("norm", floats(args.out), want, ROWS * width, 5e-7); /* measured 1.2e-7 */
        free(want);
        fixture_free((buffer *)args.in);
        fixture_free((buffer *)args.gain);
        fixture_free((buffer *)args.bias);
        fixture_free(args.out);
    }
    kernels_cpu.close(device);
}

/* Squares of massive activations overflow fp32; the norm must not. */
static void norm_of_huge_rows_is_finite(void **state) {
    (void)state;
    backend *device = fixture_device(1);
    buffer *in = fixture_random(48, 1e30), *gain = fixture_random(48, 1.0),
           *out = fixture_buffer(48);
    double want[48];
    const norm_args args = {NORM_RMS, 1, 48, 1e-6f, in, gain, NULL, out, NULL};
    norm_reference(&args, want);
    assert_int_equal(kernels_cpu.norm(device, &args, &st), 0);
    fixture_close("norm of huge rows", floats(out), want, 48, 5e-7); /* measured 1.2e-7 */
    fixture_free(in);
    fixture_free(gain);
    fixture_free(out);
    kernels_cpu.close(device);
}

static void swiglu_is_right(void **state) {
    (void)state;
    backend *device = fixture_device(2);
    for (size_t k = 0; k < WIDTHS; k++) {
        const size_t width = widths[k];
        buffer *in = fixture_random(ROWS * 2 * width, 4.0), *out = fixture_buffer(ROWS * width);
        double *want = malloc(ROWS * width * sizeof *want);
        floats(in)[0] = -300.0f; /* exp(300) is no float */
        for (size_t r = 0; r < ROWS; r++)
            for (size_t i = 0; i < width; i++) {
                const double gate = (double)floats(in)[r * 2 * width + i];
                want[r * width + i] =
                    gate / (1.0 + exp(-gate)) * (double)floats(in)[r * 2 * width + width + i];
            }
        assert_int_equal(kernels_cpu.swiglu(device, &(swiglu_args){ROWS, width, in, out}, &st), 0);
        fixture_close("swiglu", floats(out), want, ROWS * width, 5e-7); /* measured 1.1e-7 */
        free(want);
        fixture_free(in);
        fixture_free(out);
    }
    kernels_cpu.close(device);
}

static int ascending(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void magnitudes_are_right(void **state) {
    (void)state;
    backend *device = fixture_device(2);
    for (size_t k = 0; k < WIDTHS; k++) {
        const size_t width = widths[k];
        buffer *in = fixture_random(ROWS * width, 1.0), *rms = fixture_buffer(ROWS);
        buffer *most = fixture_buffer(ROWS), *channel = fixture_buffer(ROWS);
        buffer *median = fixture_buffer(ROWS), *again = fixture_buffer(ROWS);
        float *sorted = malloc(width * sizeof *sorted);
        memset(floats(in) + width, 0, width * sizeof(float)); /* a row of zeros */
        magnitude_args args = {ROWS, width, in, rms, most, channel, median};
        assert_int_equal(kernels_cpu.magnitude(device, &args, &st), 0);
        double want[ROWS];
        for (size_t r = 0; r < ROWS; r++) {
            const float *x = floats(in) + r * width;
            size_t first = 0;
            want[r] = 0.0;
            for (size_t i = 0; i < width; i++) {
                sorted[i] = fabsf(x[i]);
                want[r] += (double)x[i] * (double)x[i];
                if (fabsf(x[i]) > fabsf(x[first]))
                    first = i;
            }
            want[r] = sqrt(want[r] / (double)width);
            qsort(sorted, width, sizeof *sorted, ascending);
            assert_true(floats(most)[r] == sorted[width - 1]);
            assert_int_equal(((int32_t *)channel->data)[r], first);
            assert_true(floats(median)[r] == sorted[(width - 1) / 2]);
        }
        fixture_close("rms", floats(rms), want, ROWS, 1e-7); /* measured 6e-8 */
        /* Each output alone gives the same. */
        args = (magnitude_args){ROWS, width, in, again, NULL, NULL, NULL};
        assert_int_equal(kernels_cpu.magnitude(device, &args, &st), 0);
        fixture_same("rms alone", again->data, rms->data, ROWS);
        args = (magnitude_args){ROWS, width, in, NULL, NULL, NULL, again};
        assert_int_equal(kernels_cpu.magnitude(device, &args, &st), 0);
        fixture_same("median alone", again->data, median->data, ROWS);
        free(sorted);
        fixture_free(in);
        fixture_free(rms);
        fixture_free(most);
        fixture_free(channel);
        fixture_free(median);
        fixture_free(again);
    }
    kernels_cpu.close(device);
}

static void magnitudes_show_nan(void **state) {
    (void)state;
    backend *device = fixture_device(1);
    buffer *in = fixture_random(2 * 48, 1.0), *rms = fixture_buffer(2), *most = fixture_buffer(2);
    buffer *channel = fixture_buffer(2);
    floats(in)[20] = NAN;
    floats(in)[30] = -NAN;
    floats(in)[40] = INFINITY;
    floats(in)[48 + 7] = -INFINITY;
    const magnitude_args args = {2, 48, in, rms, most, channel, NULL};
    assert_int_equal(kernels_cpu.magnitude(device, &args, &st), 0);
    assert_true(isnan(floats(rms)[0]) && isnan(floats(most)[0]));
    assert_int_equal(((int32_t *)channel->data)[0], 20);
    assert_true(isinf(floats(rms)[1]) && floats(most)[1] == INFINITY);
    assert_int_equal(((int32_t *)channel->data)[1], 7);
    fixture_free(in);
    fixture_free(rms);
    fixture_free(most);
    fixture_free(channel);
    kernels_cpu.close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed_copies_rows),           cmocka_unit_test(norm_is_right),
        cmocka_unit_test(norm_of_huge_rows_is_finite), cmocka_unit_test(swiglu_is_right),
        cmocka_unit_test(magnitudes_are_right),        cmocka_unit_test(magnitudes_show_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
