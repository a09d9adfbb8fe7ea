/* Routing of a site under other queries: the site's own give the site's own sums, any others those
 * of float64, and nothing of the run changes. */
#include "kernels/tests/depth_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 3 };

static status st;

typedef struct results {
    double *own;      /* [sequences, total] of depth_sums */
    double *sums;     /* [COUNT, sequences, total] */
    double *variance; /* [COUNT, sequences, heads] */
    float *in;        /* [rows, width] read after the alternatives */
} results;

/* A folded query that is the site's own, one that is a random one, one of NaN. */
static buffer *other_queries(const depth_case *test, size_t site) {
    const size_t width = test->plan.width;
    buffer *folded = fixture_random(COUNT * width, 2.0 / sqrt((double)width));
    for (size_t i = 0; i < width; i++) {
        floats(folded)[i] =
            floats(test->weights[site].gain)[i] * floats(test->weights[site].query)[i];
        floats(folded)[2 * width + i] = NAN;
    }
    return folded;
}

/* Every value has a slot of its own, so all sites can be read at the end. */
static depth *values_made(depth_case *test, backend *device, const batch_layout *layout,
                          size_t first) {
    const size_t width = test->plan.width;
    const depth_options options = {&test->plan,       test->weights, FIXTURE_ROWS,
                                   FIXTURE_SEQUENCES, false,         false};
    depth *axis;
    if (kernels_cpu.depth_create(device, &options, &axis, &st) ||
        kernels_cpu.depth_begin(axis, layout, &test->wants, &st))
        fail_msg("%s", st.text);
    for (size_t v = 0; v < test->plan.values; v++)
        if (test->given[v] && (kernels_cpu.upload(device, kernels_cpu.depth_storage(axis, v), 0,
                                                  floats(test->given[v]) + first * width,
                                                  layout->rows * width, &st) ||
                               kernels_cpu.depth_made(axis, v, &st)))
            fail_msg("%s", st.text);
    return axis;
}

static results run(depth_case *test, size_t threads, const batch_layout *layout, size_t first,
                   size_t site, const buffer *folded, const bool *sequence) {
    const size_t heads = test->plan.heads, total = depth_case_layout(test, site).total;
    const size_t sequences = layout->sequences, width = test->plan.width;
    backend *device = fixture_device(threads);
    depth *axis = values_made(test, device, layout, first);
    results r = {.own = malloc(sequences * total * sizeof(double)),
                 .sums = malloc(COUNT * sequences * total * sizeof(double)),
                 .variance = malloc(COUNT * sequences * heads * sizeof(double)),
                 .in = malloc(layout->rows * width * sizeof(float))};
    buffer *in = fixture_buffer(layout->rows * width);
    const depth_alternative_args args = {.site = site,
                                         .count = COUNT,
                                         .folded = folded,
                                         .sequence = sequence,
                                         .pairs = test->wants.pairs,
                                         .sums = r.sums,
                                         .variance = r.variance};
    if (kernels_cpu.depth_alternative(axis, &args, &st) ||
        kernels_cpu.depth_read(axis, &(depth_read_args){site, in, NULL}, &st) ||
        kernels_cpu.depth_alternative(axis, &args, &st) ||
        kernels_cpu.depth_sums(axis, site, r.own, &st))
        fail_msg("%s", st.text);
    memcpy(r.in, in->data, in->bytes);
    fixture_free(in);
    kernels_cpu.depth_free(axis);
    kernels_cpu.close(device);
    return r;
}

static void free_results(results r) {
    free(r.own);
    free(r.sums);
    free(r.variance);
    free(r.in);
}

/* The rows that weights alone make: all before the contributions, and the pairs of heads. */
static void same_weight_rows(const routing_layout *layout, const double *got, const double *want) {
    fixture_same("rows of weights", got, want, 2 * layout->contribution);
    if (layout->head_js != NO_FIELD)
        fixture_same("head_js", got + layout->head_js, want + layout->head_js,
                     2 * layout->heads * layout->heads);
}

static double plogp(double p) {
    return p > 0 ? p * log(p) : 0;
}

/* Adds one token in float64; the variance of logits is that of the logarithms of the weights, and
 * `square` their mean square, which says how much of them may cancel. */
static void add_reference(const routing_layout *layout, const double *a, double *sums,
                          double *variance, double *square) {
    const size_t heads = layout->heads, sources = layout->sources;
    double mixed = 0, entropies = 0;
    for (size_t s = 0; s < sources; s++) {
        double mean = 0;
        for (size_t h = 0; h < heads; h++)
            mean += a[h * sources + s] / (double)heads;
        mixed -= plogp(mean);
    }
    for (size_t h = 0; h < heads; h++) {
        const double *w = a + h * sources;
        double entropy = 0, mean = 0;
        for (size_t s = 0; s < sources; s++) {
            sums[layout->mean + h * sources + s] += w[s];
            entropy -= plogp(w[s]);
            mean += log(w[s]) / (double)sources;
        }
        for (size_t s = 0; s < sources; s++) {
            variance[h] += (log(w[s]) - mean) * (log(w[s]) - mean) / (double)sources;
            square[h] += log(w[s]) * log(w[s]) / (double)sources;
        }
        sums[layout->entropy + h] += entropy;
        entropies += entropy / (double)heads;
        for (size_t j = 0; layout->head_js != NO_FIELD && j < heads; j++)
            for (size_t s = 0; s < sources; s++) {
                const double p = w[s], q = a[j * sources + s];
                sums[layout->head_js + h * heads + j] +=
                    (plogp(p) + plogp(q)) / 2 - plogp((p + q) / 2);
            }
    }
    sums[layout->head_divergence] += mixed - entropies;
}

/* Sums of terms of order 1 in fp32. */
static void near(const double *got, const double *want, size_t count, double tokens) {
    for (size_t i = 0; i < count; i++)
        if (!(fabs(got[i] - want[i]) <= 5e-6 * tokens))
            fail_msg("element %zu: %.9g, expected %.9g", i, got[i], want[i]);
}

/* Logits l in fp32 are off by a part of |l|, so their variance by that part of sd * |l|. */
static void near_variance(const double *got, const double *want, const double *square,
                          size_t heads) {
    for (size_t h = 0; h < heads; h++)
        if (!(fabs(got[h] - want[h]) <= 5e-6 * sqrt(want[h] * square[h]))) /* measured 5.7e-7 */
            fail_msg("variance of head %zu: %.9g, expected %.9g", h, got[h], want[h]);
}

static void check_reference(depth_case *test, const double *values, size_t site,
                            const buffer *folded, size_t k, const results *r) {
    const routing_layout layout = depth_case_layout(test, site);
    const size_t width = test->plan.width, heads = layout.heads, cells = heads * layout.sources;
    double *weight = malloc(cells * sizeof *weight), *spare = malloc(2 * width * sizeof *spare);
    site_weights kept = test->weights[site];
    buffer *query = fixture_copy(floats(folded) + k * width, width);
    buffer *ones = fixture_buffer(width);
    for (size_t i = 0; i < width; i++)
        floats(ones)[i] = 1.0f;
    test->weights[site].query = query;
    test->weights[site].gain = ones;
    for (size_t b = 0; b < FIXTURE_SEQUENCES; b++) {
        double *want = calloc(layout.total + 2 * heads, sizeof *want);
        double *variance = want + layout.total, *square = variance + heads;
        const double *got = r->sums + (k * FIXTURE_SEQUENCES + b) * layout.total;
        for (size_t row = fixture_start[b] + test->wants.skip_first; row < fixture_start[b + 1];
             row++) {
            depth_case_token(test, values, site, row, weight, spare, spare + width);
            add_reference(&layout, weight, want, variance, square);
        }
        const double tokens = got[layout.tokens];
        near(got + layout.mean, want + layout.mean, cells, tokens);
        near(got + layout.entropy, want + layout.entropy, heads, tokens);
        near(got + layout.head_divergence, want + layout.head_divergence, 1, tokens);
        if (layout.head_js != NO_FIELD)
            near(got + layout.head_js, want + layout.head_js, heads * heads, tokens);
        near_variance(r->variance + (k * FIXTURE_SEQUENCES + b) * heads, variance, square, heads);
        for (size_t i = layout.contribution; i < layout.contribution + cells; i++)
            assert_true(got[i] == 0.0);
        free(want);
    }
    test->weights[site] = kept;
    fixture_free(query);
    fixture_free(ones);
    free(weight);
    free(spare);
}

static void check_case(depth_case *test, depth_wants wants) {
    test->wants = wants;
    double *values = depth_case_values(test);
    for (size_t site = 0; site < CASE_SITES; site++) {
        const routing_layout layout = depth_case_layout(test, site);
        if (layout.sources == 0)
            continue;
        buffer *folded = other_queries(test, site);
        results all = run(test, 1, &fixture_batch, 0, site, folded, NULL);
        results pair = run(test, 2, &fixture_batch, 0, site, folded, NULL);
        const size_t doubles = COUNT * FIXTURE_SEQUENCES * layout.total;
        fixture_same("sums, 2 threads", pair.sums, all.sums, 2 * doubles);
        fixture_same("variance, 2 threads", pair.variance, all.variance,
                     2 * COUNT * FIXTURE_SEQUENCES * layout.heads);
        fixture_same("input, 2 threads", pair.in, all.in, FIXTURE_ROWS * test->plan.width);
        for (size_t b = 0; b < FIXTURE_SEQUENCES; b++) {
            same_weight_rows(&layout, all.sums + b * layout.total, all.own + b * layout.total);
            const size_t start[] = {0, fixture_start[b + 1] - fixture_start[b]};
            const batch_layout one = {1, start[1], start};
            results alone = run(test, 1, &one, fixture_start[b], site, folded, NULL);
            for (size_t k = 0; k < COUNT; k++)
                fixture_same("sums, alone", alone.sums + k * layout.total,
                             all.sums + (k * FIXTURE_SEQUENCES + b) * layout.total,
                             2 * layout.total);
            free_results(alone);
        }
        check_reference(test, values, site, folded, 0, &all);
        check_reference(test, values, site, folded, 1, &all);
        const double *nan_sums = all.sums + (2 * FIXTURE_SEQUENCES + 1) * layout.total;
        assert_true(isnan(nan_sums[layout.entropy]) && isnan(nan_sums[layout.mean]) &&
                    isnan(nan_sums[layout.head_divergence]));
        free_results(all);
        free_results(pair);
        fixture_free(folded);
    }
    free(values);
    depth_case_free(test);
}

static void alternatives_follow_the_formulas(void **state) {
    (void)state;
    const depth_wants all = {.sums = true, .pairs = true};
    check_case(depth_case_prefixes(48, 4, 17, (size_t[]){1, 2, 5, 17}), all);
    check_case(depth_case_prefixes(50, 1, 9, (size_t[]){1, 2, 3, 9}), all);
    check_case(depth_case_prefixes(48, 4, 5, (size_t[]){1, 2, 3, 5}),
               (depth_wants){.sums = true, .skip_first = 1});
}

/* With null sources, sums and differences among the sources; zeros have logits of 0. */
static void alternatives_of_mixed_plans(void **state) {
    (void)state;
    for (size_t k = 0; k < 4; k++)
        check_case(depth_case_mixed(48, k % 2 ? 4 : 1),
                   (depth_wants){.sums = true, .pairs = k % 4 > 1});
}

static void unwanted_sequences_are_left_out(void **state) {
    (void)state;
    const bool wanted[FIXTURE_SEQUENCES] = {true, false, true, false};
    depth_case *test = depth_case_prefixes(48, 4, 9, (size_t[]){2, 3, 5, 9});
    test->wants.sums = true;
    const size_t total = depth_case_layout(test, 3).total;
    buffer *folded = other_queries(test, 3);
    results all = run(test, 2, &fixture_batch, 0, 3, folded, NULL);
    results some = run(test, 2, &fixture_batch, 0, 3, folded, wanted);
    for (size_t k = 0; k < COUNT * FIXTURE_SEQUENCES; k++)
        for (size_t i = 0; i < total; i++)
            if (wanted[k % FIXTURE_SEQUENCES])
                assert_memory_equal(&some.sums[k * total + i], &all.sums[k * total + i],
                                    sizeof(double));
            else
                assert_true(some.sums[k * total + i] == 0.0);
    free_results(all);
    free_results(some);
    fixture_free(folded);
    depth_case_free(test);
}

/* More queries than are at work together. */
static void many_queries_are_as_good_as_one(void **state) {
    (void)state;
    enum { MANY = 300 };
    depth_case *test = depth_case_prefixes(48, 24, 73, (size_t[]){1, 2, 33, 73});
    const routing_layout layout = depth_case_layout(test, 3);
    const size_t block = FIXTURE_SEQUENCES * layout.total;
    buffer *folded = fixture_random(MANY * 48, 1.0);
    double *many = malloc(MANY * block * sizeof *many), *one = malloc(block * sizeof *one);
    backend *device = fixture_device(2);
    depth *axis = values_made(test, device, &fixture_batch, 0);
    depth_alternative_args args = {.site = 3, .count = MANY, .folded = folded, .sums = many};
    assert_int_equal(kernels_cpu.depth_alternative(axis, &args, &st), 0);
    for (size_t k = 0; k < MANY; k += 13) {
        buffer *query = fixture_copy(floats(folded) + k * 48, 48);
        args = (depth_alternative_args){.site = 3, .count = 1, .folded = query, .sums = one};
        assert_int_equal(kernels_cpu.depth_alternative(axis, &args, &st), 0);
        fixture_same("one of many", many + k * block, one, 2 * block);
        fixture_free(query);
    }
    args.count = MANY;
    args.folded = test->weights[0].query;
    assert_int_not_equal(kernels_cpu.depth_alternative(axis, &args, &st), 0);
    assert_non_null(strstr(st.text, "folded queries"));
    args.site = CASE_SITES;
    assert_int_not_equal(kernels_cpu.depth_alternative(axis, &args, &st), 0);
    kernels_cpu.depth_free(axis);
    kernels_cpu.close(device);
    free(many);
    free(one);
    fixture_free(folded);
    depth_case_free(test);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alternatives_follow_the_formulas),
        cmocka_unit_test(alternatives_of_mixed_plans),
        cmocka_unit_test(unwanted_sequences_are_left_out),
        cmocka_unit_test(many_queries_are_as_good_as_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
