/* The depth axis: every site's input and weights against float64, and the identities of routing. */
#include "kernels/tests/depth_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static status st;

static void check_case(depth_case *test, const char *name) {
    const size_t width = test->plan.width, heads = test->plan.heads;
    size_t elements[2 * CASE_SITES];
    float *out[2 * CASE_SITES];
    char what[64];
    depth_case_elements(test, elements);
    fixture_invariant(&(fixture_case){name, 2 * CASE_SITES, elements, depth_case_run, test}, out);
    double *values = depth_case_values(test);
    double *mix = malloc(width * sizeof *mix);
    for (size_t i = 0; i < CASE_SITES; i++) {
        const size_t cells = heads * (size_t)test->site[i].sources;
        double *in = malloc(FIXTURE_ROWS * width * sizeof *in);
        double *weight = malloc((FIXTURE_ROWS * cells + 1) * sizeof *weight);
        for (size_t r = 0; r < FIXTURE_ROWS; r++)
            depth_case_token(test, values, i, r, weight + r * cells, mix, in + r * width);
        snprintf(what, sizeof what, "%s, %d sources, in", name, test->site[i].sources);
        fixture_close(what, out[2 * i], in, FIXTURE_ROWS * width, 3e-6); /* measured 5e-7 */
        snprintf(what, sizeof what, "%s, %d sources, weights", name, test->site[i].sources);
        fixture_close(what, out[2 * i + 1], weight, FIXTURE_ROWS * cells, 3e-6); /* 6e-7 */
        free(in);
        free(weight);
    }
    for (size_t o = 0; o < 2 * CASE_SITES; o++)
        free(out[o]);
    free(mix);
    free(values);
    depth_case_free(test);
}

static void sources_of_any_number_and_heads_of_any_width(void **state) {
    (void)state;
    check_case(depth_case_prefixes(48, 4, 130, (size_t[]){1, 2, 33, 130}), "48 in 4 heads");
    check_case(depth_case_prefixes(48, 24, 73, (size_t[]){1, 2, 33, 73}), "48 in 24 heads");
    check_case(depth_case_prefixes(50, 1, 7, (size_t[]){1, 2, 3, 7}), "50 in 1 head");
    check_case(depth_case_prefixes(768, 12, 5, (size_t[]){1, 2, 4, 5}), "768 in 12 heads");
    check_case(depth_case_prefixes(1280, 8, 5, (size_t[]){1, 2, 4, 5}), "1280 in 8 heads");
}

static void values_gates_and_bases_of_every_kind(void **state) {
    (void)state;
    for (int k = 0; k < 12; k++)
        check_case(depth_case_mixed(48, k % 2 ? 4 : 1), "mixed plan");
}

/* Neither the weights nor the sums, wanted or not, change an input. */
static void extras_change_nothing(void **state) {
    (void)state;
    depth_case *test = depth_case_mixed(48, 4);
    size_t elements[2 * CASE_SITES];
    float *plain[2 * CASE_SITES], *full[2 * CASE_SITES];
    test->no_weights = true;
    depth_case_elements(test, elements);
    fixture_invariant(&(fixture_case){"plain", 2 * CASE_SITES, elements, depth_case_run, test},
                      plain);
    test->no_weights = false;
    test->wants = (depth_wants){.sums = true, .pairs = true, .skip_first = 2};
    depth_case_elements(test, elements);
    fixture_invariant(
        &(fixture_case){"with extras", 2 * CASE_SITES, elements, depth_case_run, test}, full);
    for (size_t i = 0; i < CASE_SITES; i++)
        fixture_same("in with and without extras", full[2 * i], plain[2 * i], FIXTURE_ROWS * 48);
    for (size_t o = 0; o < 2 * CASE_SITES; o++) {
        free(plain[o]);
        free(full[o]);
    }
    depth_case_free(test);
}

/* Rounding of S weights and of their sum: at most (S + 2) half units in the last place of 1. */
static void weights_sum_to_one(void **state) {
    (void)state;
    const size_t counts[CASE_SITES] = {1, 2, 33, 73};
    depth_case *test = depth_case_prefixes(48, 4, 73, counts);
    size_t elements[2 * CASE_SITES];
    float *out[2 * CASE_SITES];
    depth_case_elements(test, elements);
    fixture_invariant(&(fixture_case){"sums", 2 * CASE_SITES, elements, depth_case_run, test}, out);
    for (size_t i = 0; i < CASE_SITES; i++)
        for (size_t k = 0; k < FIXTURE_ROWS * 4; k++) {
            const float *weight = out[2 * i + 1] + k * counts[i];
            double sum = 0.0;
            for (size_t s = 0; s < counts[i]; s++) {
                assert_true(weight[s] >= 0.0f);
                sum += (double)weight[s];
            }
            assert_true(fabs(sum - 1.0) <= (double)(counts[i] + 2) * 0x1p-25);
            if (counts[i] == 1)
                assert_true(weight[0] == 1.0f);
        }
    /* One source: the input is that source, bit for bit. */
    fixture_same("one source", out[0], test->given[0]->data, FIXTURE_ROWS * 48);
    for (size_t o = 0; o < 2 * CASE_SITES; o++)
        free(out[o]);
    depth_case_free(test);
}

static void zero_queries_weigh_evenly(void **state) {
    (void)state;
    const size_t counts[CASE_SITES] = {1, 3, 7, 33};
    depth_case *test = depth_case_prefixes(48, 4, 33, counts);
    size_t elements[2 * CASE_SITES];
    float *out[2 * CASE_SITES];
    for (size_t i = 0; i < CASE_SITES; i++)
        memset(test->weights[i].query->data, 0, test->weights[i].query->bytes);
    depth_case_elements(test, elements);
    fixture_invariant(&(fixture_case){"even", 2 * CASE_SITES, elements, depth_case_run, test}, out);
    for (size_t i = 0; i < CASE_SITES; i++)
        for (size_t k = 0; k < FIXTURE_ROWS * 4 * counts[i]; k++)
            assert_true(out[2 * i + 1][k] == 1.0f / (float)counts[i]);
    for (size_t o = 0; o < 2 * CASE_SITES; o++)
        free(out[o]);
    depth_case_free(test);
}

/* emb; out; a sum written over its own operand; a second batch on the same object. */
static void slots_can_be_shared(void **state) {
    (void)state;
    enum { ROWS = 40, WIDTH = 8 };
    const depth_value value[] = {
        {VALUE_EMB, 0, 0, 0}, {VALUE_OUT, 0, 0, 1}, {VALUE_OUT, 1, 0, 2}, {VALUE_ADD, 1, 2, 1}};
    const int source[] = {3};
    const depth_site site[] = {{.base = NO_VALUE, .sources = 1, .source = source}};
    const depth_plan plan = {WIDTH, 2, 1e-6f, 4, value, 3, 1, site};
    const size_t start[] = {0, ROWS};
    const batch_layout layout = {1, ROWS, start};
    backend *device = fixture_device(2);
    buffer *query = fixture_random(WIDTH, 1.0), *in = fixture_buffer(ROWS * WIDTH);
    const site_weights weights = {.query = query, .gain = query};
    depth *axis;
    assert_int_equal(
        kernels_cpu.depth_create(device, &(depth_options){&plan, &weights, ROWS, 1, false, false},
                                 &axis, &st),
        0);
    for (int batch = 0; batch < 2; batch++) {
        float want[ROWS * WIDTH];
        assert_int_equal(kernels_cpu.depth_begin(axis, &layout, &(depth_wants){0}, &st), 0);
        assert_int_not_equal(kernels_cpu.depth_read(axis, &(depth_read_args){0, in, NULL}, &st), 0);
        assert_non_null(strstr(st.text, "site 0 reads value 3, which is not made yet"));
        assert_int_not_equal(kernels_cpu.depth_made(axis, 2, &st), 0);
        assert_non_null(strstr(st.text, "value 3: operand 1 or 2 is not there"));
        for (size_t v = 0; v < 3; v++) {
            float *to = floats(kernels_cpu.depth_storage(axis, v));
            for (size_t i = 0; i < ROWS * WIDTH; i++) {
                to[i] = (float)fixture_normal();
                want[i] = v == 2 ? want[i] + to[i] : to[i];
            }
            assert_int_equal(kernels_cpu.depth_made(axis, v, &st), 0);
        }
        assert_int_equal(kernels_cpu.depth_read(axis, &(depth_read_args){0, in, NULL}, &st), 0);
        fixture_same("sum over its own operand", in->data, want, ROWS * WIDTH);
    }
    kernels_cpu.depth_free(axis);
    kernels_cpu.depth_free(NULL);
    fixture_free(query);
    fixture_free(in);
    kernels_cpu.close(device);
}

static void wrong_plans_are_refused(void **state) {
    (void)state;
    const size_t counts[CASE_SITES] = {1, 2, 3, 4};
    depth_case *test = depth_case_prefixes(48, 4, 4, counts);
    const depth_options options = {&test->plan, test->weights, 10, 1, false, false};
    backend *device = fixture_device(1);
    depth *axis;
    test->plan.heads = 5;
    assert_int_not_equal(kernels_cpu.depth_create(device, &options, &axis, &st), 0);
    assert_non_null(strstr(st.text, "5 routing heads do not divide the width 48"));
    test->plan.heads = 4;
    test->value[2] = (depth_value){VALUE_ADD, 2, 0, 2};
    assert_int_not_equal(kernels_cpu.depth_create(device, &options, &axis, &st), 0);
    assert_non_null(strstr(st.text, "operands 2 and 0"));
    test->value[2] = (depth_value){VALUE_OUT, 0, 0, 4};
    assert_int_not_equal(kernels_cpu.depth_create(device, &options, &axis, &st), 0);
    assert_non_null(strstr(st.text, "slot 4 of 4"));
    test->value[2].slot = 2;
    assert_int_equal(kernels_cpu.depth_create(device, &options, &axis, &st), 0);
    const size_t start[] = {0, 11};
    assert_int_not_equal(
        kernels_cpu.depth_begin(axis, &(batch_layout){1, 11, start}, &(depth_wants){0}, &st), 0);
    assert_non_null(strstr(st.text, "11 tokens"));
    test->site[1].sources = 0; /* a plan may have such a site, where a sublayer was removed */
    assert_int_not_equal(kernels_cpu.depth_read(axis, &(depth_read_args){.site = 1}, &st), 0);
    assert_non_null(strstr(st.text, "site 1 reads nothing"));
    test->site[1].sources = 2;
    kernels_cpu.depth_free(axis);
    depth_case_free(test);
    kernels_cpu.close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sources_of_any_number_and_heads_of_any_width),
        cmocka_unit_test(values_gates_and_bases_of_every_kind),
        cmocka_unit_test(extras_change_nothing),
        cmocka_unit_test(weights_sum_to_one),
        cmocka_unit_test(zero_queries_weigh_evenly),
        cmocka_unit_test(slots_can_be_shared),
        cmocka_unit_test(wrong_plans_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
