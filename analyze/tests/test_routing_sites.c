/* Sites of a recording whose source lists have gaps, as those of a pruned model have. */
#include "analyze/routing_sites.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const char *const site_name[] = {"L0.attn", "L0.mlp", "L1.attn", "L1.mlp", "final"};
static const char *const source_name[] = {"emb", "B1", "B2"};

/* Block mode, one layer a block; L0.mlp was removed, and L1.mlp does not read B1. */
static const uint8_t available[] = {1, 0, 0, 0, 0, 0, 1, 1, 0, 1, 0, 1, 1, 1, 1};

static const recording_about about = {.residual_mode = "block_mh",
                                      .sites = 5,
                                      .heads = 2,
                                      .sources = 3,
                                      .site_name = site_name,
                                      .source_name = source_name,
                                      .available = available};

static void test_kinds(void **state) {
    (void)state;
    static const struct {
        const char *layer, *newest, *newest_kind;
        size_t sources;
        bool opens_block;
        site_kind kind;
    } expected[] = {{"0", "emb", "emb", 1, true, SITE_ATTN},
                    {"0", "none", "none", 0, false, SITE_MLP},
                    {"1", "B1", "complete", 2, true, SITE_ATTN},
                    {"1", "B2", "partial", 2, false, SITE_MLP},
                    {"nan", "B2", "partial", 3, false, SITE_FINAL}};
    recorded_sites list;
    status st;
    assert_int_equal(recorded_sites_init(&list, &about, &st), DONE);
    assert_int_equal(list.sites, 5);
    assert_false(list.null_source);
    for (size_t i = 0; i < list.sites; i++) {
        const recorded_site *site = &list.site[i];
        assert_string_equal(site->name, site_name[i]);
        assert_string_equal(site->layer, expected[i].layer);
        assert_string_equal(site->newest, expected[i].newest);
        assert_string_equal(site->newest_kind, expected[i].newest_kind);
        assert_int_equal(site->shape.sources, expected[i].sources);
        assert_int_equal(site->opens_block, expected[i].opens_block);
        assert_int_equal(site->kind, expected[i].kind);
    }
    recorded_sites_clear(&list);
}

/* Cells of L1.mlp, site 3, which reads the sources 0 and 2 of three. */
static void test_cells(void **state) {
    (void)state;
    static const struct {
        row_axes axes;
        size_t stride, count, cell[4];
    } expected[] = {
        {ROW_SITE, 5, 1, {3}},
        {ROW_HEAD, 10, 2, {6, 7}},
        {ROW_SOURCE, 15, 2, {9, 11}},
        {ROW_HEAD_SOURCE, 30, 4, {18, 20, 21, 23}},
        {ROW_HEAD_HEAD, 20, 4, {12, 13, 14, 15}},
        {ROW_SOURCE_SOURCE, 45, 4, {27, 29, 33, 35}},
    };
    recorded_sites list;
    status st;
    assert_int_equal(recorded_sites_init(&list, &about, &st), DONE);
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        size_t cell[4] = {0};
        recorded_site_cells(&list.site[3], &about, expected[i].axes, cell);
        assert_int_equal(recorded_row_stride(&about, expected[i].axes), expected[i].stride);
        for (size_t c = 0; c < expected[i].count; c++)
            assert_int_equal(cell[c], expected[i].cell[c]);
    }
    recorded_sites_clear(&list);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kinds), cmocka_unit_test(test_cells)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
