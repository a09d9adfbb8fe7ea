/* The derived statistics equal those that a float64 program computed from the same weights: the
 * golden files of datasets/golden/tiny hold `route/SITE` [B, T, H, S] and `stats/SITE/NAME`. */
#include "analyze/routing_statistics.h"

#include "runtime/base/json.h"
#include "runtime/safetensors.h"

#include <glob.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static size_t compared;

/* Doubles of stats/SITE/NAME, or NULL where the file has none. */
static double *golden(const checkpoint *ck, const char *site, const char *name, size_t expected) {
    char key[128];
    status st;
    snprintf(key, sizeof key, "stats/%s/%s", site, name);
    const tensor_info *tensor = checkpoint_find(ck, key);
    if (!tensor)
        return NULL;
    assert_int_equal(tensor->dtype, DTYPE_F64);
    assert_int_equal(tensor->elements, expected);
    double *value = malloc(tensor->bytes);
    assert_non_null(value);
    if (checkpoint_read_raw(ck, tensor, value, &st))
        fail_msg("%s", st.text);
    return value;
}

/* Token means of one site's rows, from its weights and, for the source geometry, from the file. */
static double *mean_of(const checkpoint *ck, const char *site, const char *name,
                       const routing_layout *layout, const double *sums) {
    const routing_row *row = routing_row_find(name);
    assert_non_null(row);
    size_t count = routing_row_size(row, layout->heads, layout->sources);
    if (strcmp(name, "source_cos") == 0)
        return golden(ck, site, name, count);
    size_t field = *(const size_t *)((const char *)layout + row->field_offset);
    double *mean = malloc(count * sizeof *mean);
    assert_non_null(mean);
    for (size_t i = 0; i < count; i++)
        mean[i] = sums[field + i] / sums[layout->tokens];
    return mean;
}

static void compare(const checkpoint *ck, const char *site, const routing_statistic *statistic,
                    const routing_layout *layout, const double *sums) {
    const routing_shape shape = {layout->heads, layout->sources, layout->null_source};
    size_t width = routing_width(statistic, &shape);
    size_t cells =
        routing_row_size(&(routing_row){.axes = statistic->axes}, shape.heads, shape.sources);
    double *expected = golden(ck, site, statistic->name, cells);
    if (!expected)
        return;
    double *mean[2] = {mean_of(ck, site, statistic->from[0], layout, sums), NULL};
    if (statistic->from[1])
        mean[1] = mean_of(ck, site, statistic->from[1], layout, sums);
    double *scratch = malloc(routing_scratch(&shape) * sizeof *scratch);
    double *found = malloc(width * sizeof *found);
    routing_derive(statistic, &shape, (const double *const *)mean, scratch, found);
    for (size_t i = 0; i < cells; i++)
        if (!(fabs(found[i] - expected[i]) <= 1e-5))
            fail_msg("%s %s [%zu]: %.9g, expected %.9g", site, statistic->name, i, found[i],
                     expected[i]);
    if (width > cells && statistic->axes == ROW_HEAD) {
        double over_heads = 0;
        for (size_t h = 0; h < shape.heads; h++)
            over_heads += found[h] / (double)shape.heads;
        assert_true(fabs(found[cells] - over_heads) < 1e-12);
    }
    compared++;
    free(found);
    free(scratch);
    free(mean[0]);
    free(mean[1]);
    free(expected);
}

/* What needs weights alone, and the rank. */
static bool is_testable(const routing_statistic *statistic) {
    static const char *const hidden[] = {"contribution", "signed_contribution", "site_contribution",
                                         "source_rms"};
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
        if (strcmp(statistic->from[0], hidden[i]) == 0)
            return false;
    return true;
}

static void check_site(const checkpoint *ck, const char *site, bool null_source) {
    char key[128];
    status st;
    snprintf(key, sizeof key, "route/%s", site);
    const tensor_info *route = checkpoint_find(ck, key);
    assert_non_null(route);
    assert_int_equal(route->rank, 4);
    routing_layout layout = routing_layout_of(route->shape[2], route->shape[3], null_source, true);
    size_t cells = layout.heads * layout.sources;
    float *a = malloc(route->elements * sizeof *a);
    float *scratch = malloc(2 * cells * sizeof *scratch);
    double *sums = calloc(layout.total, sizeof *sums);
    assert_true(a && scratch && sums);
    if (checkpoint_read(ck, route, a, &st))
        fail_msg("%s", st.text);
    for (size_t token = 0; token < route->shape[0] * route->shape[1]; token++)
        routing_sums_add_weights(&layout, a + token * cells, sums, scratch);
    for (size_t i = 0; i < routing_statistic_count; i++)
        if (is_testable(&routing_statistics[i]))
            compare(ck, site, &routing_statistics[i], &layout, sums);
    free(a);
    free(scratch);
    free(sums);
}

static void check_model(const char *path) {
    checkpoint *ck;
    cJSON *labels = NULL;
    status st;
    if (checkpoint_open(path, &ck, &st))
        fail_msg("%s", st.text);
    const char *text = checkpoint_metadata(ck, "labels");
    assert_non_null(text);
    if (json_parse(text, strlen(text), path, &labels, &st))
        fail_msg("%s", st.text);
    const cJSON *site;
    cJSON_ArrayForEach(site, labels) {
        const cJSON *first = cJSON_GetArrayItem(site, 0);
        if (first)
            check_site(ck, site->string, strcmp(first->valuestring, "null") == 0);
    }
    cJSON_Delete(labels);
    checkpoint_close(ck);
}

static void test_golden(void **state) {
    (void)state;
    glob_t models;
    assert_int_equal(glob("datasets/golden/tiny/*/expected.safetensors", 0, NULL, &models), 0);
    for (size_t i = 0; i < models.gl_pathc; i++)
        check_model(models.gl_pathv[i]);
    globfree(&models);
    assert_true(compared > 1500);
}

static const routing_statistic *find(const char *name) {
    const routing_statistic *found = routing_statistic_find(name);
    assert_non_null(found);
    return found;
}

static double derive_one(const char *name, const routing_shape *shape, const double *mean,
                         size_t cell) {
    double scratch[64], out[64];
    const double *const means[2] = {mean, mean};
    assert_true(routing_scratch(shape) <= 64);
    routing_derive(find(name), shape, means, scratch, out);
    return out[cell];
}

/* Rows without a golden, by hand. */
static void test_norms(void **state) {
    (void)state;
    const routing_shape four = {2, 4, false}, nulled = {2, 4, true}, single = {2, 1, false};
    const double entropy[2] = {log(4), log(2)}, lookback[2] = {1.5, 0.75};
    const double weights[8] = {.1, .2, .3, .4, .5, .25, .125, .125};
    assert_true(fabs(derive_one("entropy_norm", &four, entropy, 0) - 1) < 1e-12);
    assert_true(fabs(derive_one("entropy_norm", &four, entropy, 2) - .75) < 1e-12);
    assert_true(isnan(derive_one("entropy_norm", &single, entropy, 0)));
    assert_true(fabs(derive_one("lookback_norm", &four, lookback, 0) - 1) < 1e-12);
    assert_true(fabs(derive_one("lookback_norm", &nulled, lookback, 1) - .75) < 1e-12);
    assert_true(isnan(derive_one("lookback_norm", &single, lookback, 0)));
    assert_true(fabs(derive_one("null_mass", &nulled, weights, 1) - .5) < 1e-12);
    assert_true(fabs(derive_one("null_mass", &nulled, weights, 2) - .3) < 1e-12);
    assert_true(isnan(derive_one("null_mass", &four, weights, 0)));
    assert_false(routing_averages(find("entropy"), &single));
    assert_true(routing_averages(find("lookback"), &nulled));
    assert_false(routing_averages(find("lookback"), &(routing_shape){2, 2, true}));
    assert_true(routing_averages(find("entropy"), &(routing_shape){2, 2, true}));
}

/* One source has no choice: 0 to the last bit, however its mean weight was rounded. */
static void test_single_source(void **state) {
    (void)state;
    const routing_shape single = {2, 1, false};
    const double weight[2] = {1 - 0x1p-53, 1 + 0x1p-52}, nan_weight[2] = {NAN, 1};
    assert_true(derive_one("entropy_of_mean", &single, weight, 0) == 0);
    assert_true(derive_one("entropy_of_mean", &single, weight, 1) == 0);
    assert_true(isnan(derive_one("entropy_of_mean", &single, nan_weight, 0)));
}

static void test_rank(void **state) {
    (void)state;
    const routing_shape three = {1, 3, false};
    const double apart[9] = {1, 0, 0, 0, 1, 0, 0, 0, 1}, same[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    const double pair[9] = {1, 1, 0, 1, 1, 0, 0, 0, 1}; /* eigenvalues 0, 1, 2 */
    double broken[9] = {1, NAN, 0, NAN, 1, 0, 0, 0, 1};
    assert_true(fabs(derive_one("source_effective_rank", &three, apart, 0) - 3) < 1e-12);
    assert_true(fabs(derive_one("source_effective_rank", &three, same, 0) - 1) < 1e-12);
    double expected = exp(-log(1. / 3) / 3 - log(2. / 3) * 2 / 3);
    assert_true(fabs(derive_one("source_effective_rank", &three, pair, 0) - expected) < 1e-12);
    assert_true(isnan(derive_one("source_effective_rank", &three, broken, 0)));
}

/* Codes are keys of the table's sections, names of its means over sites. */
static void test_list(void **state) {
    (void)state;
    for (size_t i = 0; i < routing_statistic_count; i++) {
        const routing_statistic *one = &routing_statistics[i];
        assert_int_equal(strlen(one->code), 3);
        assert_non_null(routing_row_find(one->from[0]));
        assert_true(!one->from[1] || routing_row_find(one->from[1]));
        for (size_t j = 0; j < i; j++) {
            assert_string_not_equal(one->code, routing_statistics[j].code);
            assert_string_not_equal(one->name, routing_statistics[j].name);
        }
    }
    for (size_t r = 0; r < routing_row_count; r++) {
        bool used = false;
        for (size_t i = 0; i < routing_statistic_count; i++)
            used = used || strcmp(routing_statistics[i].name, routing_rows[r].name) == 0;
        if (!used)
            fail_msg("recorded row %s is in no section", routing_rows[r].name);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),        cmocka_unit_test(test_norms),
        cmocka_unit_test(test_single_source), cmocka_unit_test(test_rank),
        cmocka_unit_test(test_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
