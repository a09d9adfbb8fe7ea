/* test_random.c - random numbers by counter. */
#include "runtime/base/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* The published splitmix64 from state 1234567. */
static void numbers_are_those_of_splitmix64(void **state) {
    (void)state;
    assert_true(random_at(1234567, 0) == UINT64_C(6457827717110365317));
    assert_true(random_at(1234567, 2) == UINT64_C(9817491932198370423));
}

/* Moments of a normal distribution, each within five standard errors; neighbours, which share a
 * pair of uniform numbers, and seeds are not correlated. */
static void normal_numbers_are_normal(void **state) {
    (void)state;
    enum { N = 100000 };
    double sum[4] = {0}, pair = 0, seeds = 0;
    for (uint64_t i = 0; i < N; i++) {
        double x = random_normal(7, i), power = 1;
        assert_true(isfinite(x));
        for (int k = 0; k < 4; k++)
            sum[k] += power *= x;
        pair += x * random_normal(7, i ^ 1);
        seeds += x * random_normal(8, i);
    }
    const double error = 5 / sqrt((double)N);
    assert_true(fabs(sum[0] / N) < error);
    assert_true(fabs(sum[1] / N - 1) < sqrt(2) * error);
    assert_true(fabs(sum[2] / N) < sqrt(15) * error);
    assert_true(fabs(sum[3] / N - 3) < sqrt(96) * error);
    assert_true(fabs(pair / N) < sqrt(2) * error);
    assert_true(fabs(seeds / N) < error);
}

static void numbers_do_not_depend_on_the_order(void **state) {
    (void)state;
    double later = random_normal(3, 1000001), earlier = random_normal(3, 4);
    assert_true(random_normal(3, 4) == earlier && random_normal(3, 1000001) == later);
    assert_true(earlier != later);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_those_of_splitmix64),
        cmocka_unit_test(normal_numbers_are_normal),
        cmocka_unit_test(numbers_do_not_depend_on_the_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
