/* The elementary functions hold the accuracy that vector.h states; sums do not depend on where in
 * memory their operands lie. */
#include "kernels/cpu/vector.h"
#include "kernels/tests/fixture.h"

#include <math.h>
#include <stdlib.h>

CLONES static void exp_all(const float *x, float *y, size_t n) {
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        y[i] = exp_fast(x[i]);
}

CLONES static void log_all(const float *x, float *y, size_t n) {
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        y[i] = log_fast(x[i]);
}

CLONES static float dot_all(const float *x, const float *y, size_t n) {
    return dot(x, y, n);
}

CLONES static double squares_all(const float *x, size_t n) {
    return sum_squares(x, n);
}

CLONES static void softmax_all(float *x, size_t n) {
    softmax(x, n);
}

enum { COUNT = 1 << 20 };

static void exp_is_accurate(void **state) {
    (void)state;
    float *x = malloc(COUNT * sizeof *x), *y = malloc(COUNT * sizeof *y);
    for (size_t i = 0; i < COUNT; i++)
        x[i] = (float)(fixture_uniform() * 175.0 - 87.0);
    exp_all(x, y, COUNT);
    double worst = 0.0;
    for (size_t i = 0; i < COUNT; i++)
        worst = fmax(worst, fabs((double)y[i] / exp((double)x[i]) - 1.0));
    if (!(worst < 1e-7)) /* measured 8.3e-8 */
        fail_msg("relative error %g", worst);
    const float special[] = {0.0f, -0.0f, -87.1f, -INFINITY, NAN};
    exp_all(special, y, 5);
    assert_true(y[0] == 1.0f && y[1] == 1.0f && y[2] == 0.0f && y[3] == 0.0f && isnan(y[4]));
    free(x);
    free(y);
}

static void log_is_accurate(void **state) {
    (void)state;
    float *x = malloc(COUNT * sizeof *x), *y = malloc(COUNT * sizeof *y);
    for (size_t i = 0; i < COUNT; i++) /* half of them near 1 */
        x[i] = (float)(i % 2 ? exp(fixture_uniform() * 170.0 - 87.0)
                             : 1.0 + 0.5 * (fixture_uniform() - 0.5));
    log_all(x, y, COUNT);
    double worst = 0.0;
    for (size_t i = 0; i < COUNT; i++)
        if (x[i] != 1.0f)
            worst = fmax(worst, fabs((double)y[i] / log((double)x[i]) - 1.0));
    if (!(worst < 3e-7)) /* measured 2.1e-7 */
        fail_msg("relative error %g", worst);
    const float special[] = {1.0f, 0.0f};
    log_all(special, y, 2);
    assert_true(y[0] == 0.0f && y[1] < -87.0f && y[1] > -88.0f);
    free(x);
    free(y);
}

/* Buffers of other alignment are rows of another width: vectorised loops must not peel. */
static void sums_ignore_alignment(void **state) {
    (void)state;
    const size_t lengths[] = {1, 7, 16, 48, 53, 300, 1280};
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        const size_t n = lengths[k];
        buffer *x = fixture_random(n, 1.0), *y = fixture_random(n, 1.0);
        buffer *weight = fixture_copy(floats(x), n);
        softmax_all(floats(weight), n);
        const float product = dot_all(floats(x), floats(y), n);
        const double squares = squares_all(floats(x), n);
        for (size_t shift = 1; shift < 16; shift++) {
            buffer *moved = fixture_buffer_shifted(n, shift);
            memcpy(moved->data, x->data, x->bytes);
            assert_true(dot_all(floats(moved), floats(y), n) == product);
            assert_true(squares_all(floats(moved), n) == squares);
            softmax_all(floats(moved), n);
            fixture_same("softmax", moved->data, weight->data, n);
            fixture_free(moved);
        }
        fixture_free(x);
        fixture_free(y);
        fixture_free(weight);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_accurate),
        cmocka_unit_test(log_is_accurate),
        cmocka_unit_test(sums_ignore_alignment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
