/* Every row of the routing sums against the formulas in float64, on whole depth plans. */
#include "kernels/tests/depth_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double entropy_of(const double *p, size_t count) {
    double sum = 0.0;
    for (size_t s = 0; s < count; s++)
        sum -= p[s] > 0.0 ? p[s] * log(p[s]) : 0.0;
    return sum;
}

/* Entropy of the mean of heads i..j, every `step`th, minus the mean of their entropies. */
static double divergence(const double *a, size_t sources, size_t i, size_t j, size_t step) {
    if (i == j)
        return 0.0;
    double *mean = calloc(sources, sizeof *mean), entropies = 0.0, count = 0.0;
    for (size_t h = i; h <= j; h += step)
        count += 1.0;
    for (size_t h = i; h <= j; h += step) {
        entropies += entropy_of(a + h * sources, sources) / count;
        for (size_t s = 0; s < sources; s++)
            mean[s] += a[h * sources + s];
    }
    for (size_t s = 0; s < sources; s++)
        mean[s] /= count;
    const double result = entropy_of(mean, sources) - entropies;
    free(mean);
    return result;
}

static void add_weight_rows(const routing_layout *layout, const double *a, double *sums) {
    const size_t heads = layout->heads, sources = layout->sources;
    const size_t first = layout->null_source;
    sums[layout->tokens] += 1.0;
    for (size_t h = 0; h < heads; h++) {
        const double *w = a + h * sources;
        double most = w[0], rest = 0.0, back = 0.0;
        for (size_t s = 0; s < sources; s++) {
            sums[layout->mean + h * sources + s] += w[s];
            sums[layout->second_moment + h * sources + s] += w[s] * w[s];
            most = fmax(most, w[s]);
            rest += s >= first ? w[s] : 0.0;
            back += s >= first ? w[s] * (double)(sources - 1 - s) : 0.0;
        }
        sums[layout->entropy + h] += entropy_of(w, sources);
        sums[layout->effective_sources + h] += exp(entropy_of(w, sources));
        sums[layout->top1 + h] += most;
        sums[layout->lookback + h] += first == sources ? NAN : back / rest;
        sums[layout->oldest_mass + h] += first == sources ? NAN : w[first] / rest;
        sums[layout->newest_mass + h] += first == sources ? NAN : w[sources - 1] / rest;
        for (size_t j = 0; layout->head_js != NO_FIELD && j < heads; j++)
            if (j != h)
                sums[layout->head_js + h * heads + j] += h < j
                                                             ? divergence(a, sources, h, j, j - h)
                                                             : divergence(a, sources, j, h, h - j);
    }
    sums[layout->head_divergence] += divergence(a, sources, 0, heads - 1, 1);
}

static double inner(const double *x, const double *y, size_t count) {
    double sum = 0.0;
    for (size_t i = 0; i < count; i++)
        sum += x[i] * y[i];
    return sum;
}

/* v[s]: row of source s. Behind the layout, for each head, the sum of (lengths of the weighted
 * slices / length of the mix)^2: how much of the mix has cancelled, and so what a signed share is
 * worth. */
static void add_geometry_rows(const routing_layout *layout, const double *a, const double *const *v,
                              const double *mix, size_t width, double *sums) {
    const size_t heads = layout->heads, sources = layout->sources, slice = width / heads;
    double *length = malloc(sources * sizeof *length), lengths = 0.0;
    for (size_t h = 0; h < heads; h++) {
        double parts = 0.0;
        for (size_t s = 0; s < sources; s++)
            parts += a[h * sources + s] * sqrt(inner(v[s] + h * slice, v[s] + h * slice, slice));
        sums[layout->total + h] += parts * parts / inner(mix + h * slice, mix + h * slice, slice);
    }
    for (size_t s = 0; s < sources; s++) {
        double squares = 0.0;
        for (size_t h = 0; h < heads; h++) {
            const double w = a[h * sources + s];
            const double *own = v[s] + h * slice, *target = mix + h * slice;
            double total = 0.0;
            for (size_t j = 0; j < sources; j++)
                total +=
                    a[h * sources + j] * sqrt(inner(v[j] + h * slice, v[j] + h * slice, slice));
            sums[layout->contribution + h * sources + s] +=
                w * sqrt(inner(own, own, slice)) / total;
            sums[layout->signed_contribution + h * sources + s] +=
                w * inner(own, target, slice) / inner(target, target, slice);
            squares += w * w * inner(own, own, slice);
        }
        lengths += length[s] = sqrt(squares);
        sums[layout->source_rms + s] += sqrt(inner(v[s], v[s], width) / (double)width);
        for (size_t j = 0; layout->source_cos != NO_FIELD && j < sources; j++)
            sums[layout->source_cos + s * sources + j] +=
                inner(v[s], v[j], width) /
                sqrt(inner(v[s], v[s], width) * inner(v[j], v[j], width));
    }
    for (size_t s = 0; s < sources; s++)
        sums[layout->site_contribution + s] += length[s] / lengths;
    free(length);
}

/* The sums of one site of sequence b, [total + heads]. */
static void reference_sums(const depth_case *test, const double *values, size_t site, size_t b,
                           double *sums) {
    const routing_layout layout = depth_case_layout(test, site);
    const size_t width = test->plan.width, sources = layout.sources;
    double *a = malloc((layout.heads * sources + 1) * sizeof *a);
    double *mix = malloc(2 * width * sizeof *mix);
    const double **v = malloc((sources + 1) * sizeof *v);
    for (size_t i = 0; i < layout.total; i++)
        sums[i] = sources ? 0.0 : NAN;
    for (size_t h = 0; h < layout.heads; h++)
        sums[layout.total + h] = 0.0;
    for (size_t r = fixture_start[b] + test->wants.skip_first; r < fixture_start[b + 1]; r++) {
        if (sources == 0) {
            sums[layout.tokens] = isnan(sums[layout.tokens]) ? 1.0 : sums[layout.tokens] + 1.0;
            continue;
        }
        depth_case_token(test, values, site, r, a, mix, mix + width);
        for (size_t s = 0; s < sources; s++)
            v[s] = values + ((size_t)test->site[site].source[s] * FIXTURE_ROWS + r) * width;
        add_weight_rows(&layout, a, sums);
        add_geometry_rows(&layout, a, v, mix, width, sums);
    }
    if (sources == 0 && isnan(sums[layout.tokens]))
        sums[layout.tokens] = 0.0;
    free(a);
    free(mix);
    free(v);
}

/* A signed share in fp32 is off by a part of the cancellation, whatever its own size. */
static void compare_signed(const routing_layout *layout, const double *got, const double *want) {
    for (size_t i = 0; i < layout->heads * layout->sources; i++) {
        const double x = got[layout->signed_contribution + i];
        const double y = want[layout->signed_contribution + i];
        const double cancelled = want[layout->total + i / layout->sources];
        if (!(isnan(x) && isnan(y)) && !(fabs(x - y) <= 1e-6 * cancelled)) /* measured 1.2e-7 */
            fail_msg("signed_contribution, element %zu: %.9g, expected %.9g", i, x, y);
    }
}

/* Every row of one site of one sequence. Entropies and their differences are held to an error per
 * token, the rest to one relative to the row's largest. */
static void compare_rows(const routing_layout *layout, const double *got, const double *want) {
    const struct {
        const char *name;
        size_t offset;
        bool entropy;
    } row[] = {
        {"tokens", layout->tokens, false},
        {"mean", layout->mean, false},
        {"second_moment", layout->second_moment, false},
        {"entropy", layout->entropy, true},
        {"effective_sources", layout->effective_sources, false},
        {"lookback", layout->lookback, false},
        {"oldest_mass", layout->oldest_mass, false},
        {"newest_mass", layout->newest_mass, false},
        {"top1", layout->top1, false},
        {"head_divergence", layout->head_divergence, true},
        {"contribution", layout->contribution, false},
        {NULL, layout->signed_contribution, false}, /* compare_signed */
        {"site_contribution", layout->site_contribution, false},
        {"source_rms", layout->source_rms, false},
        {"head_js", layout->head_js, true},
        {"source_cos", layout->source_cos, false},
    };
    enum { ROWS = sizeof row / sizeof *row };
    for (size_t i = 0; i < ROWS; i++) {
        if (row[i].offset == NO_FIELD || !row[i].name)
            continue;
        const size_t end =
            i + 1 < ROWS && row[i + 1].offset != NO_FIELD ? row[i + 1].offset : layout->total;
        const double *x = got + row[i].offset, *y = want + row[i].offset;
        const size_t count = end - row[i].offset;
        if (!row[i].entropy)
            fixture_close_doubles(row[i].name, x, y, count, 5e-6); /* measured 1.1e-6 */
        for (size_t k = 0; row[i].entropy && k < count; k++)
            if (!(isnan(x[k]) && isnan(y[k])) &&
                !(fabs(x[k] - y[k]) <= 1e-6 * fmax(1.0, want[layout->tokens]))) /* 2e-7 */
                fail_msg("%s, element %zu: %.9g, expected %.9g", row[i].name, k, x[k], y[k]);
    }
    compare_signed(layout, got, want);
}

/* All sums of the batch on one and two threads and of each sequence alone: same bits; and right. */
static void check_case(depth_case *test, depth_wants wants) {
    test->wants = wants;
    const size_t one = depth_case_sums_size(test), rows = FIXTURE_ROWS * test->plan.width;
    double *sums = malloc(FIXTURE_SEQUENCES * one * sizeof *sums);
    double *other = malloc(FIXTURE_SEQUENCES * one * sizeof *other);
    size_t elements[2 * CASE_SITES];
    float *out[2 * CASE_SITES];
    depth_case_elements(test, elements);
    for (size_t o = 0; o < 2 * CASE_SITES; o++)
        out[o] = malloc((rows + FIXTURE_ROWS * elements[o]) * sizeof(float));
    backend *single = fixture_device(1), *pair = fixture_device(2);
    test->sums = sums;
    depth_case_run(single, &fixture_batch, 0, test, out);
    test->sums = other;
    depth_case_run(pair, &fixture_batch, 0, test, out);
    fixture_same("sums on 1 and 2 threads", other, sums, 2 * FIXTURE_SEQUENCES * one);
    double *values = depth_case_values(test);
    for (size_t b = 0; b < FIXTURE_SEQUENCES; b++) {
        const size_t start[] = {0, fixture_start[b + 1] - fixture_start[b]};
        depth_case_run(pair, &(batch_layout){1, start[1], start}, fixture_start[b], test, out);
        const double *alone = other, *site_sums = sums;
        for (size_t i = 0; i < CASE_SITES; i++) {
            const routing_layout layout = depth_case_layout(test, i);
            const double *batch = site_sums + b * layout.total;
            fixture_same("sums alone and in the batch", alone, batch, 2 * layout.total);
            double *want = malloc((layout.total + layout.heads) * sizeof *want);
            reference_sums(test, values, i, b, want);
            compare_rows(&layout, batch, want);
            free(want);
            alone += layout.total;
            site_sums += FIXTURE_SEQUENCES * layout.total;
        }
    }
    for (size_t o = 0; o < 2 * CASE_SITES; o++)
        free(out[o]);
    free(values);
    free(sums);
    free(other);
    kernels_cpu.close(single);
    kernels_cpu.close(pair);
    depth_case_free(test);
}

static void sums_follow_the_formulas(void **state) {
    (void)state;
    const depth_wants all = {.sums = true, .pairs = true};
    check_case(depth_case_prefixes(48, 4, 17, (size_t[]){1, 2, 5, 17}), all);
    /* Not in slices of 2 channels: a mix that nearly cancels has no accurate signed share. */
    check_case(depth_case_prefixes(240, 24, 9, (size_t[]){1, 2, 3, 9}), all);
    check_case(depth_case_prefixes(50, 1, 33, (size_t[]){1, 2, 7, 33}), all);
    check_case(depth_case_prefixes(48, 4, 5, (size_t[]){1, 2, 3, 5}),
               (depth_wants){.sums = true, .skip_first = 20});
}

static void sums_of_mixed_plans_follow_the_formulas(void **state) {
    (void)state;
    for (size_t k = 0; k < 8; k++)
        check_case(depth_case_mixed(48, k % 2 ? 4 : 1),
                   (depth_wants){.sums = true, .pairs = k % 4 > 1, .skip_first = k % 3});
}

/* Weights that underflow, a null source that takes everything, a site of nothing but null. */
static void extreme_weights(void **state) {
    (void)state;
    const routing_layout layout = routing_layout_of(2, 3, true, true);
    const float a[] = {1.0f, 0.0f, 0.0f, 0.5f, 1e-40f, 0.5f};
    float scratch[12];
    double *sums = calloc(layout.total, sizeof *sums);
    routing_sums_add_weights(&layout, a, sums, scratch);
    assert_true(sums[layout.entropy] == 0.0);
    assert_true(fabs(sums[layout.entropy + 1] - log(2.0)) < 1e-6);
    assert_true(sums[layout.effective_sources] == 1.0);
    assert_true(isnan(sums[layout.lookback])); /* the others' weights are 0: undefined */
    assert_true(fabs(sums[layout.newest_mass + 1] - 1.0) < 1e-6);
    assert_true(sums[layout.head_js] == 0.0 && sums[layout.head_js + 1] > 0.2);
    assert_true(sums[layout.head_js + 1] == sums[layout.head_js + 2]);
    free(sums);

    const routing_layout lone = routing_layout_of(1, 1, true, false);
    assert_true(lone.head_js == NO_FIELD && lone.source_cos == NO_FIELD);
    sums = calloc(lone.total, sizeof *sums);
    routing_sums_add_weights(&lone, (float[]){1.0f}, sums, scratch);
    assert_true(isnan(sums[lone.lookback]) && isnan(sums[lone.oldest_mass]));
    assert_true(isnan(sums[lone.newest_mass]) && sums[lone.top1] == 1.0);
    free(sums);
}

/* Heads that agree have no divergence at all, not 1e-9 of it. */
static void equal_heads_do_not_diverge(void **state) {
    (void)state;
    const routing_layout layout = routing_layout_of(2, 5, false, true);
    float a[10], scratch[20];
    double *sums = calloc(layout.total, sizeof *sums);
    for (int k = 0; k < 1000; k++) {
        double total = 0.0;
        for (size_t s = 0; s < 5; s++)
            total += a[s] = (float)fixture_uniform();
        for (size_t s = 0; s < 5; s++)
            a[5 + s] = a[s] = (float)((double)a[s] / total);
        routing_sums_add_weights(&layout, a, sums, scratch);
    }
    for (size_t i = 0; i < 4; i++)
        assert_true(sums[layout.head_js + i] == 0.0);
    assert_true(sums[layout.head_divergence] == 0.0);
    free(sums);
}

static void sums_need_to_be_wanted(void **state) {
    (void)state;
    status st;
    depth_case *test = depth_case_prefixes(48, 4, 2, (size_t[]){1, 1, 2, 2});
    backend *device = fixture_device(1);
    depth *axis;
    double sums[256];
    const depth_options options = {.plan = &test->plan,
                                   .weights = test->weights,
                                   .max_rows = FIXTURE_ROWS,
                                   .max_sequences = FIXTURE_SEQUENCES};
    assert_int_equal(kernels_cpu.depth_create(device, &options, &axis, &st), 0);
    assert_int_equal(
        kernels_cpu.depth_begin(axis, &fixture_batch, &(depth_wants){.sums = true}, &st), 0);
    assert_int_not_equal(kernels_cpu.depth_sums(axis, 0, sums, &st), 0);
    assert_non_null(strstr(st.text, "not read"));
    assert_int_equal(kernels_cpu.depth_begin(axis, &fixture_batch, &(depth_wants){0}, &st), 0);
    assert_int_not_equal(kernels_cpu.depth_sums(axis, 0, sums, &st), 0);
    kernels_cpu.depth_free(axis);
    depth_case_free(test);
    kernels_cpu.close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_follow_the_formulas),
        cmocka_unit_test(sums_of_mixed_plans_follow_the_formulas),
        cmocka_unit_test(extreme_weights),
        cmocka_unit_test(equal_heads_do_not_diverge),
        cmocka_unit_test(sums_need_to_be_wanted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
