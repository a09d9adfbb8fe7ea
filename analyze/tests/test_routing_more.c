/* Sections of the routing table beyond single statistics, against numbers worked out by hand from
 * weights that the tests choose. */
#include "analyze/tests/small_recording.h"

#include "analyze/sampling.h"
#include "runtime/base/command.h"
#include "runtime/tests/scratch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const sites[] = {"L0.attn", "L0.mlp", "L1.attn", "L1.mlp", "final"};

static void near(double found, double expected) {
    if (!(fabs(found - expected) <= 1e-6))
        fail_msg("%.9g, expected %.9g", found, expected);
}

/* The table of a recording, by `fathom routing`. */
static table *analyse(const small_model *model, const char *contexts) {
    char *record = small_recording("more.h5", model), *text = scratch_path("more.txt");
    table *t;
    status st;
    assert_int_equal(COMMAND("routing", record, "-o", text, "--contexts", contexts), EXIT_DONE);
    if (table_read(text, &t, &st))
        fail_msg("%s", st.text);
    free(record);
    free(text);
    return t;
}

/* ---- full routing of two layers ---- */

static const char *const full_source[] = {"emb", "L0.attn", "L0.mlp", "L1.attn", "L1.mlp"};
static const uint8_t full_available[] = {1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1,
                                         0, 0, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1};

/* L0.mlp varies between even and odd sequences in head 0, and mirrors it in head 1; the final site
 * gives sequence 3, position 2 the most of L1.mlp. */
static double full_weight(size_t sequence, size_t pos, size_t site, size_t head, size_t source) {
    static const double rest[5][5] = {
        {1}, {0}, {1. / 3, 1. / 3, 1. / 3}, {.2, .2, .3, .3}, {.6, .1, .1, .1, .1}};
    if (site == 1) {
        double first = sequence % 2 ? .7 : .5;
        return (source == 0) == (head == 0) ? first : 1 - first;
    }
    if (site == 4 && sequence == 3 && pos == 2)
        return source == 4 ? .3 : source == 0 ? .4 : .1;
    return rest[site][source];
}

static const small_model full = {.mode = "full_mh",
                                 .sequences = 16,
                                 .length = 8,
                                 .heads = 2,
                                 .sites = 5,
                                 .sources = 5,
                                 .site_name = sites,
                                 .source_name = full_source,
                                 .available = full_available,
                                 .bos = -1,
                                 .weight = full_weight};

/* One of the 128 tokens moves .2 of the final site's weight from emb to L1.mlp. */
static const double moved = .2 / 128;

static void test_kinds(void **state) {
    (void)state;
    table *t = analyse(&full, "0");
    near(NUMBER(t, "KND", "kind_mass", "L0.mlp", "0", "emb"), .6);
    near(NUMBER(t, "KND", "kind_mass", "L0.mlp", "1", "emb"), .4);
    near(NUMBER(t, "KND", "lift", "L0.mlp", "0", "emb"), 1.2);
    near(NUMBER(t, "KND", "kind_mass", "L1.mlp", "mean", "attn"), .5);
    near(NUMBER(t, "KND", "sources", "L1.mlp", "mean", "attn"), 2);
    near(NUMBER(t, "KND", "lift", "L1.mlp", "mean", "attn"), 1);
    near(NUMBER(t, "KND", "lift", "L1.mlp", "mean", "mlp"), 1.2);
    near(NUMBER(t, "KND", "lift", "final", "mean", "emb"), 5 * (.6 - moved));
    near(NUMBER(t, "KND", "low_lift", "L1.mlp", "mean", "mlp"), 1.2);
    assert_false(HAS(t, "KND", "L0.mlp", "0", "mlp"));
    assert_false(HAS(t, "KND", "L0.mlp", "0", "null"));
    table_free(t);
}

static double entropy(const double *p, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum -= p[i] * log(p[i]);
    return sum;
}

static double js(double p, double q) {
    const double left[] = {p, 1 - p}, right[] = {q, 1 - q}, both[] = {(p + q) / 2, 1 - (p + q) / 2};
    return entropy(both, 2) - (entropy(left, 2) + entropy(right, 2)) / 2;
}

/* L0.mlp has the labels emb and L0.attn, of which L1.mlp keeps .2 + .2. */
static void test_site_js(void **state) {
    (void)state;
    table *t = analyse(&full, "0");
    near(NUMBER(t, "SJS", "value", "L0.mlp", "L1.mlp", "0"), js(.6, .5));
    near(NUMBER(t, "SJS", "value", "L0.mlp", "L1.mlp", "mean"), js(.6, .5));
    near(NUMBER(t, "SJS", "split_half", "L0.mlp", "L1.mlp", "0"), js(.5, .7));
    near(NUMBER(t, "SJS", "split_half_other", "L0.mlp", "L1.mlp", "0"), 0);
    near(NUMBER(t, "SJS", "retained", "L0.mlp", "L1.mlp", "1"), 1);
    near(NUMBER(t, "SJS", "retained_other", "L0.mlp", "L1.mlp", "1"), .4);
    assert_false(HAS(t, "SJS", "L0.attn", "L1.attn")); /* one common label */
    table_free(t);
}

/* L2.attn does not read emb: the labels it has in common with L1.attn stand at other places. */
static double pruned_weight(size_t sequence, size_t pos, size_t site, size_t head, size_t source) {
    static const double weight[5][5] = {
        {1}, {.6, .4}, {.2, .3, .5}, {0, .2, .6, .2}, {0, .2, .2, .3, .3}};
    (void)sequence, (void)pos, (void)head;
    return weight[site][source];
}

static void test_site_js_of_pruned(void **state) {
    (void)state;
    static const uint8_t cells[] = {1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1,
                                    0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1, 1};
    static const char *const names[] = {"L0.attn", "L0.mlp", "L1.attn", "L2.attn", "final"};
    small_model model = full;
    model.site_name = names;
    model.available = cells;
    model.weight = pruned_weight;
    table *t = analyse(&model, "0");
    near(NUMBER(t, "SJS", "value", "L1.attn", "L2.attn", "0"), js(.3 / .8, .2 / .8));
    near(NUMBER(t, "SJS", "retained", "L1.attn", "L2.attn", "0"), .8);
    near(NUMBER(t, "SJS", "retained_other", "L1.attn", "L2.attn", "0"), .8);
    table_free(t);
}

/* Backwards: final, L1.mlp, L1.attn, L0.mlp, L0.attn. */
static void test_reach(void **state) {
    (void)state;
    table *t = analyse(&full, "0");
    double mlp1 = .1 + moved, attn1 = .1 + mlp1 * .3, mlp0 = .1 + mlp1 * .3 + attn1 / 3;
    double attn0 = .1 + mlp1 * .2 + attn1 / 3 + mlp0 * .5;
    near(NUMBER(t, "RCH", "value", "L1.mlp"), mlp1);
    near(NUMBER(t, "RCH", "value", "L1.attn"), attn1);
    near(NUMBER(t, "RCH", "value", "L0.mlp"), mlp0);
    near(NUMBER(t, "RCH", "value", "L0.attn"), attn0);
    near(NUMBER(t, "RCH", "value", "emb"), 1);
    near(NUMBER(t, "DMX", "value", "final", "L1.mlp"), mlp1);
    near(NUMBER(t, "DMX", "value", "L1.mlp", "emb"), .2);
    assert_false(HAS(t, "DMX", "L0.mlp", "L0.mlp"));
    table_free(t);
}

static void test_claims(void **state) {
    (void)state;
    table *t = analyse(&full, "0");
    const double read[] = {.2, .2, .3, .3};
    double newest[] = {.5 * 2, 1, .3 * 4, 5 * (.1 + moved)};
    near(NUMBER(t, "CLM", "value", "newest_lift", "attn"), newest[1]);
    near(NUMBER(t, "CLM", "value", "newest_lift", "mlp"), (newest[0] + newest[2]) / 2);
    near(NUMBER(t, "CLM", "value", "newest_lift", "all"),
         (newest[0] + newest[1] + newest[2] + newest[3]) / 4);
    near(NUMBER(t, "CLM", "value", "embedding_lift"), (1 + .8 + 5 * (.6 - moved)) / 3);
    near(NUMBER(t, "CLM", "of", "embedding_lift"), 3);
    near(NUMBER(t, "CLM", "value", "entropy_norm_attn_minus_mlp"), 1 - entropy(read, 4) / log(4));
    near(NUMBER(t, "CLM", "of", "entropy_norm_attn_minus_mlp"), 1);
    near(NUMBER(t, "CLM", "value", "skips"), 1);
    near(NUMBER(t, "CLM", "of", "skips"), 1 + 2 + 3);
    near(NUMBER(t, "SKP", "lift", "final", "emb"), 5 * (.6 - moved));
    assert_int_equal(table_find(t, "SKP")->rows, 1);
    /* The heads deviate at L0.mlp alone: not at all in the even half, by +-.2 in the odd one. */
    assert_true(isnan(NUMBER(t, "CLM", "value", "head_deviation_correlation", "0")));
    table_free(t);
}

/* Heads that deviate alike in both halves, one of them twice as far. */
static double tilted(size_t sequence, size_t pos, size_t site, size_t head, size_t source) {
    if (site != 3)
        return full_weight(0, pos, site, head, source);
    double far = sequence % 2 ? .1 : .05;
    return .25 + (head ? far : -far) * (source == 0 ? 1 : source == 1 ? -1 : 0);
}

static void test_head_deviation(void **state) {
    (void)state;
    small_model model = full;
    model.weight = tilted;
    table *t = analyse(&model, "0");
    near(NUMBER(t, "CLM", "value", "head_deviation_correlation", "0"), 1);
    near(NUMBER(t, "CLM", "value", "head_deviation_correlation", "mean"), 1);
    near(NUMBER(t, "CLM", "of", "head_deviation_correlation", "0"), 2 + 3 + 4 + 5);
    table_free(t);
}

/* Token 2 of sequence 3 is the one that reads L1.mlp most; elsewhere the first token wins a tie. */
static void test_contexts(void **state) {
    (void)state;
    table *t = analyse(&full, "2");
    const table_section_view *s = table_find(t, "CTX");
    near(NUMBER(t, "CTX", "weight", "final", "L1.mlp", "1"), .3);
    near(NUMBER(t, "CTX", "sequence", "final", "L1.mlp", "1"), 3);
    near(NUMBER(t, "CTX", "position", "final", "L1.mlp", "1"), 2);
    near(NUMBER(t, "CTX", "weight", "final", "L1.mlp", "2"), .1);
    near(NUMBER(t, "CTX", "sequence", "final", "L1.mlp", "2"), 0);
    near(NUMBER(t, "CTX", "position", "final", "L1.mlp", "2"), 0);
    size_t row = small_row(t, "CTX", (const char *const[]){"final", "L1.mlp", "1", NULL});
    assert_string_equal(table_cell(s, row, table_column(s, "before")), "ab");
    assert_string_equal(table_cell(s, row, table_column(s, "token")), "c");
    assert_string_equal(table_cell(s, row, table_column(s, "after")), "defgh");
    assert_false(HAS(t, "CTX", "L0.attn"));
    assert_int_equal(s->rows, 2 * (2 + 3 + 4 + 5));
    table_free(t);
}

/* ---- blocks of one layer ---- */

static const char *const block_source[] = {"emb", "B1", "B2"};
static const uint8_t block_available[] = {1, 0, 0, 1, 1, 0, 1, 1, 0, 1, 1, 1, 1, 1, 1};

static double block_weight(size_t sequence, size_t pos, size_t site, size_t head, size_t source) {
    static const double weight[5][3] = {{1}, {.75, .25}, {.25, .75}, {.5, .3, .2}, {.2, .3, .5}};
    (void)sequence, (void)pos, (void)head;
    return weight[site][source];
}

/* B1 holds L0.attn at L0.mlp and both sublayers of layer 0 afterwards. */
static void test_blocks(void **state) {
    (void)state;
    static const small_model block = {.mode = "block",
                                      .sequences = 8,
                                      .length = 4,
                                      .heads = 1,
                                      .sites = 5,
                                      .sources = 3,
                                      .site_name = sites,
                                      .source_name = block_source,
                                      .available = block_available,
                                      .bos = -1,
                                      .weight = block_weight};
    table *t = analyse(&block, "0");
    near(NUMBER(t, "DMX", "value", "L0.mlp", "L0.attn"), .25);
    near(NUMBER(t, "DMX", "value", "L1.attn", "emb"), .25);
    near(NUMBER(t, "DMX", "value", "L1.attn", "L0.attn"), .375);
    near(NUMBER(t, "DMX", "value", "L1.attn", "L0.mlp"), .375);
    near(NUMBER(t, "DMX", "value", "L1.mlp", "L1.attn"), .2);
    near(NUMBER(t, "DMX", "value", "final", "L0.mlp"), .15);
    near(NUMBER(t, "DMX", "value", "final", "L1.mlp"), .25);
    near(NUMBER(t, "KND", "kind_mass", "L0.mlp", "0", "partial"), .25);
    near(NUMBER(t, "KND", "kind_mass", "L1.attn", "0", "complete"), .75);
    near(NUMBER(t, "KND", "kind_mass", "L1.mlp", "mean", "complete"), .3);
    near(NUMBER(t, "KND", "lift", "L1.mlp", "mean", "partial"), .6);
    assert_null(table_find(t, "RCH"));
    assert_false(HAS(t, "CLM", "head_deviation_correlation"));
    table_free(t);
}

/* ---- delta routing with a null source ---- */

static const char *const delta_source[] = {"null", "emb", "D1"};
static const uint8_t delta_available[] = {1, 0, 0, 1, 1, 0, 1, 1, 0, 1, 1, 1, 0, 0, 0};

static double delta_weight(size_t sequence, size_t pos, size_t site, size_t head, size_t source) {
    static const double weight[4][3] = {{1}, {.6, .4}, {.5, .5}, {.5, .1, .4}};
    (void)sequence, (void)pos, (void)head;
    return weight[site][source];
}

/* The newest source's lift is among the others, renormalised; the null source is no skip. */
static void test_null_source(void **state) {
    (void)state;
    static const small_model delta = {.mode = "delta_mh",
                                      .sequences = 8,
                                      .length = 4,
                                      .heads = 2,
                                      .sites = 5,
                                      .sources = 3,
                                      .site_name = sites,
                                      .source_name = delta_source,
                                      .available = delta_available,
                                      .bos = -1,
                                      .weight = delta_weight};
    table *t = analyse(&delta, "0");
    near(NUMBER(t, "KND", "kind_mass", "L1.mlp", "0", "null"), .5);
    near(NUMBER(t, "KND", "kind_mass", "L1.mlp", "0", "delta"), .4);
    near(NUMBER(t, "CLM", "value", "newest_lift", "all"), .8 * 2);
    near(NUMBER(t, "CLM", "of", "newest_lift", "all"), 1);
    near(NUMBER(t, "CLM", "of", "skips"), 0);
    assert_null(table_find(t, "DMX"));
    table_free(t);
}

/* ---- units ---- */

/* Windows of 8 tokens side by side, each behind a BOS of its own, share no text. */
static void test_units_with_bos(void **state) {
    (void)state;
    static const int64_t start[] = {0, 8, 16, 23};
    static const int32_t length[] = {9, 9, 9, 9};
    recording_about about = {.sequences = 4, .start = start, .length = length, .bos = 1};
    size_t *unit, units;
    status st;
    assert_int_equal(sampling_units(&about, &unit, &units, &st), DONE);
    assert_int_equal(units, 3); /* the last two overlap by a token */
    assert_int_equal(unit[2], unit[3]);
    free(unit);
    about.bos = -1;
    assert_int_equal(sampling_units(&about, &unit, &units, &st), DONE);
    assert_int_equal(units, 1);
    free(unit);
}

static void test_table_with_bos(void **state) {
    (void)state;
    small_model model = full;
    model.gap = 7;
    model.bos = 0;
    table *t = analyse(&model, "0");
    near(NUMBER(t, "RUN", "value", "units"), 16);
    table_free(t);
    model.bos = -1;
    t = analyse(&model, "0");
    near(NUMBER(t, "RUN", "value", "units"), 1);
    near(NUMBER(t, "KND", "kind_mass", "L0.mlp", "0", "emb"), .6);
    assert_true(isnan(NUMBER(t, "KND", "low", "L0.mlp", "0", "emb")));
    assert_true(isnan(NUMBER(t, "SJS", "split_half", "L0.mlp", "L1.mlp", "0")));
    table_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_site_js),
        cmocka_unit_test(test_site_js_of_pruned),
        cmocka_unit_test(test_reach),
        cmocka_unit_test(test_claims),
        cmocka_unit_test(test_head_deviation),
        cmocka_unit_test(test_contexts),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_null_source),
        cmocka_unit_test(test_units_with_bos),
        cmocka_unit_test(test_table_with_bos),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
