/* A golden model captured and analysed by the commands gives the table of a float64 program. */
#include "analyze/routing_statistics.h"
#include "analyze/table.h"
#include "analyze/tests/small_recording.h"

#include "runtime/base/json.h"
#include "runtime/base/command.h"
#include "runtime/base/options.h"
#include "runtime/safetensors.h"
#include "runtime/tests/golden.h"
#include "runtime/tests/scratch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct fixture {
    char folder[256]; /* of the model */
    checkpoint *expected;
    cJSON *labels; /* site -> names of its sources */
    table *found;
} fixture;

static void open_fixture(fixture *f, const char *name) {
    status st;
    char path[512];
    size_t sequences, length;
    snprintf(f->folder, sizeof f->folder, "%s/tiny/%s", golden_folder(), name);
    snprintf(path, sizeof path, "%s/expected.safetensors", f->folder);
    if (checkpoint_open(path, &f->expected, &st))
        fail_msg("%s", st.text);
    const char *labels = checkpoint_metadata(f->expected, "labels");
    assert_non_null(labels);
    if (json_parse(labels, strlen(labels), path, &f->labels, &st))
        fail_msg("%s", st.text);
    int32_t *id = golden_tokens(f->expected, &sequences, &length);
    char *tokens = scratch_path("routing.npy"), *record = scratch_path("routing.h5");
    char *text = scratch_path("routing.txt");
    golden_write_tokens(tokens, id, sequences, length);
    assert_int_equal(
        COMMAND("capture", f->folder, "--tokens", tokens, "--record", "pairs", "-o", record),
        EXIT_DONE);
    assert_int_equal(COMMAND("routing", record, "-o", text), EXIT_DONE);
    if (table_read(text, &f->found, &st))
        fail_msg("%s", st.text);
    free(id);
    free(tokens);
    free(record);
    free(text);
}

static void close_fixture(fixture *f) {
    table_free(f->found);
    cJSON_Delete(f->labels);
    checkpoint_close(f->expected);
}

static void near(double found, double expected, const char *where, const char *what) {
    if (!(fabs(found - expected) <= 1e-5 * fmax(1, fabs(expected))))
        fail_msg("%s %s: %.9g, expected %.9g", where, what, found, expected);
}

/* The rows of one site in section `s` from *row on: their values against the golden array, in its
 * order; the head means that follow; the names of the sources. Returns the mean over heads, or the
 * only value. */
static double check_rows(const fixture *f, const routing_statistic *statistic,
                         const table_section_view *s, const cJSON *site, size_t *row) {
    char key[128];
    size_t elements = 0, shape[8] = {0};
    snprintf(key, sizeof key, "stats/%s/%s", site->string, statistic->name);
    double *expected = golden_array(f->expected, key, &elements, shape);
    int value = table_column(s, statistic->per_source ? "rank" : "value");
    int head = table_column(s, "head"), source = table_column(s, "source");
    bool square = statistic->axes == ROW_HEAD_HEAD || statistic->axes == ROW_SOURCE_SOURCE;
    size_t count = 0;
    double mean = NAN;
    for (; *row < s->rows && strcmp(table_cell(s, *row, 0), site->string) == 0; (*row)++) {
        while (square && count < elements && count / shape[1] >= count % shape[1])
            count++; /* each pair once */
        double found = table_number(s, *row, value);
        const char *name = source >= 0 ? table_cell(s, *row, source) : NULL;
        if (name && !square)
            assert_string_equal(
                name, cJSON_GetArrayItem(site, (int)(count % (size_t)cJSON_GetArraySize(site)))
                          ->valuestring);
        bool over_heads = head >= 0 && strcmp(table_cell(s, *row, head), "mean") == 0;
        if (expected) {
            assert_int_equal(over_heads, count >= elements);
            if (!over_heads)
                near(found, expected[count], site->string, statistic->name);
        }
        mean = found;
        count++;
    }
    if (expected && !square)
        assert_true(count >= elements);
    free(expected);
    return mean;
}

static double average(const table *t, const char *name, const char *kind) {
    const table_section_view *s = table_find(t, "AVG");
    assert_non_null(s);
    for (size_t row = 0; row < s->rows; row++)
        if (strcmp(table_cell(s, row, 0), name) == 0 && strcmp(table_cell(s, row, 1), kind) == 0)
            return table_number(s, row, 2);
    fail_msg("AVG has no %s %s", name, kind);
    return NAN;
}

static void check_statistic(const fixture *f, const routing_statistic *statistic) {
    const table_section_view *s = table_find(f->found, statistic->code);
    if (!s) {
        assert_true(statistic->flags & NULL_ONLY || statistic->axes == ROW_HEAD_HEAD);
        return;
    }
    size_t row = 0, sites = 0;
    double sum = 0;
    const cJSON *site;
    cJSON_ArrayForEach(site, f->labels) {
        const cJSON *first = cJSON_GetArrayItem(site, 0);
        if (!first)
            continue;
        double value = check_rows(f, statistic, s, site, &row);
        routing_shape shape = {1, (size_t)cJSON_GetArraySize(site),
                               strcmp(first->valuestring, "null") == 0};
        if (routing_averages(statistic, &shape)) {
            sum += value;
            sites++;
        }
    }
    assert_int_equal(row, s->rows);
    if (statistic->flags & AVERAGED)
        near(average(f->found, statistic->name, "all"), sum / (double)sites, "AVG",
             statistic->name);
}

static double run_number(const table *t, const char *key) {
    const table_section_view *s = table_find(t, "RUN");
    for (size_t row = 0; row < s->rows; row++)
        if (strcmp(table_cell(s, row, 0), key) == 0)
            return table_number(s, row, 1);
    fail_msg("RUN has no %s", key);
    return NAN;
}

static void check_model(const char *name) {
    fixture f;
    open_fixture(&f, name);
    for (size_t i = 0; i < routing_statistic_count; i++)
        check_statistic(&f, &routing_statistics[i]);
    size_t elements, shape[8];
    double *loss = golden_array(f.expected, "loss", &elements, shape);
    near(run_number(f.found, "loss"), loss[0], name, "loss");
    free(loss);
    close_fixture(&f);
}

static void test_full(void **state) {
    (void)state;
    check_model("full-h4");
    check_model("full-h1");
}

static void test_block(void **state) {
    (void)state;
    check_model("block-h3-n5");
    check_model("block-h1-n2");
}

static void test_delta(void **state) {
    (void)state;
    check_model("delta-h4-n2");
    check_model("delta-h1-n5");
    check_model("delta-raw-h1");
}

static const char *site_cell(const table *t, const char *site, const char *column) {
    const table_section_view *s = table_find(t, "SIT");
    for (size_t row = 0; row < s->rows; row++)
        if (strcmp(table_cell(s, row, 0), site) == 0)
            return table_cell(s, row, table_column(s, column));
    fail_msg("SIT has no %s", site);
    return NULL;
}

/* Five layers in two blocks of three and two layers: what is newest at each site is the partial
 * sum, but at L0.attn and L3.attn. */
static void test_blocks_open(void **state) {
    (void)state;
    static const char *const kinds[][3] = {
        {"L0.attn", "emb", "1"},     {"L0.mlp", "partial", "0"},   {"L1.attn", "partial", "0"},
        {"L2.mlp", "partial", "0"},  {"L3.attn", "complete", "1"}, {"L3.mlp", "partial", "0"},
        {"L4.attn", "partial", "0"}, {"final", "partial", "0"},
    };
    fixture f;
    open_fixture(&f, "block-h1-n2");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        assert_string_equal(site_cell(f.found, kinds[i][0], "newest_kind"), kinds[i][1]);
        assert_string_equal(site_cell(f.found, kinds[i][0], "opens_block"), kinds[i][2]);
    }
    assert_string_equal(site_cell(f.found, "L3.attn", "newest"), "B1");
    assert_string_equal(site_cell(f.found, "L3.mlp", "newest"), "B2");
    assert_string_equal(site_cell(f.found, "L3.mlp", "layer"), "3");
    assert_string_equal(site_cell(f.found, "final", "layer"), "nan");
    close_fixture(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_block),
        cmocka_unit_test(test_delta),
        cmocka_unit_test(test_blocks_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
