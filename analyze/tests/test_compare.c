/* `fathom compare` against numbers worked out by hand: recordings that differ by chosen amounts. */
#include "analyze/tests/small_recording.h"

#include "runtime/base/command.h"
#include "runtime/tests/scratch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const sites[] = {"L0.attn", "L0.mlp", "final"};
static const char *const sources[] = {"emb", "L0.attn", "L0.mlp"};
static const uint8_t available[] = {1, 0, 0, 1, 1, 0, 1, 1, 1};
static const char *const blocks[] = {"emb", "B1"};
static const uint8_t block_available[] = {1, 0, 1, 1, 1, 1};

/* Sequences differ much, models little. */
static double loss(size_t sequence, size_t pos) {
    return 1 + (double)(sequence * sequence % 7) + .25 * (double)pos;
}
static double higher_loss(size_t sequence, size_t pos) {
    return loss(sequence, pos) + .5;
}
static double magnitude(size_t sequence, size_t pos, size_t place) {
    return 1 + (double)(sequence % 3) + (double)pos + (double)place;
}
static double twice(size_t sequence, size_t pos, size_t place) {
    return 2 * magnitude(sequence, pos, place);
}

static double weight(size_t sequence, size_t pos, size_t site, size_t head, size_t source) {
    double first = sequence % 2 ? .6 : .4;
    (void)pos, (void)head;
    return site == 0 ? 1 : site == 1 ? (source ? 1 - first : first) : source ? .25 : .5;
}
static double other_weight(size_t sequence, size_t pos, size_t site, size_t head, size_t source) {
    (void)sequence, (void)pos, (void)head;
    return site == 0 ? 1 : site == 1 ? (source ? .2 : .8) : source ? .25 : .5;
}
static double block_weight(size_t sequence, size_t pos, size_t site, size_t head, size_t source) {
    (void)sequence, (void)pos, (void)head, (void)source;
    return site == 0 ? 1 : .5;
}

static const small_model first = {.mode = "full_mh",
                                  .sequences = 16,
                                  .length = 6,
                                  .heads = 2,
                                  .sites = 3,
                                  .sources = 3,
                                  .site_name = sites,
                                  .source_name = sources,
                                  .available = available,
                                  .bos = -1,
                                  .weight = weight,
                                  .loss = loss,
                                  .magnitude = magnitude};

static small_model second(void) {
    small_model model = first;
    model.weight = other_weight;
    model.loss = higher_loss;
    model.magnitude = twice;
    return model;
}

static void near(double found, double expected) {
    if (!(fabs(found - expected) <= 1e-6))
        fail_msg("%.9g, expected %.9g", found, expected);
}

/* The table of two recordings; `option` may be "--quiet". NULL where the command fails. */
static table *compare(const small_model *a, const small_model *b, const char *option) {
    char *one = small_recording("one.h5", a), *two = small_recording("two.h5", b);
    char *text = scratch_path("compare.txt");
    table *t = NULL;
    status st;
    int code = COMMAND("compare", one, two, option, "-o", text);
    assert_true(code == EXIT_DONE || code == EXIT_WRONG);
    if (code == EXIT_DONE && table_read(text, &t, &st))
        fail_msg("%s", st.text);
    free(one);
    free(two);
    free(text);
    return t;
}

/* Losses run from 1 to 7 over the sequences; the difference is the same in each. */
static void test_paired(void **state) {
    (void)state;
    small_model other = second();
    table *t = compare(&first, &other, "-q");
    near(NUMBER(t, "LOS", "difference", "1"), .5);
    near(NUMBER(t, "LOS", "low", "1"), .5);
    near(NUMBER(t, "LOS", "high", "1"), .5);
    near(NUMBER(t, "DEP", "ln_ratio", "1", "in_rms", "final"), log(2));
    near(NUMBER(t, "DEP", "low", "1", "state_rms", "L0.mlp"), log(2));
    assert_false(HAS(t, "DEP", "1", "out_rms", "final"));
    near(NUMBER(t, "CSO", "reference", "1", "mean", "L0.mlp", "mean", "emb"), .5);
    near(NUMBER(t, "CSO", "value", "1", "mean", "L0.mlp", "1", "emb"), .8);
    near(NUMBER(t, "CSO", "difference", "1", "mean", "L0.mlp", "1", "emb"), .3);
    double h = -.8 * log(.8) - .2 * log(.2), low = -.4 * log(.4) - .6 * log(.6);
    near(NUMBER(t, "CST", "difference", "1", "entropy", "L0.mlp", "mean"), h - low);
    near(NUMBER(t, "CST", "low", "1", "entropy", "L0.mlp", "0"), h - low);
    near(NUMBER(t, "CAV", "difference", "1", "entropy", "all"), (h - low) / 2);
    near(NUMBER(t, "CAV", "of", "1", "entropy", "all"), 2);
    near(NUMBER(t, "CST", "value", "1", "head_divergence", "final", "all"), 0);
    table_free(t);
}

static double loss_of_even(size_t sequence, size_t pos) {
    return loss(sequence, pos) + (sequence % 2 ? 0 : .6);
}

/* Losses are weighted by predicted tokens, 5 and 1, weights and magnitudes by all, 6 and 2. */
static void test_unequal_lengths(void **state) {
    (void)state;
    small_model uneven = first, other = first;
    uneven.odd_length = other.odd_length = 2;
    other.loss = loss_of_even;
    other.weight = other_weight;
    table *t = compare(&uneven, &other, "-q");
    near(NUMBER(t, "LOS", "difference", "1"), .6 * 5 / 6);
    near(NUMBER(t, "CSO", "reference", "1", "mean", "L0.mlp", "mean", "emb"),
         (.4 * 6 + .6 * 2) / 8);
    /* sequence % 3 adds up to 8 over the even ones, 7 over the odd ones. */
    double even = 3.5 + 8. / 8, odd = 1.5 + 7. / 8;
    near(NUMBER(t, "DEP", "value", "1", "in_rms", "L0.attn"), (even * 6 + odd * 2) / 8);
    table_free(t);
}

/* .5 against .8, and within the first run .4 against .6. */
static void test_run_js(void **state) {
    (void)state;
    small_model other = second();
    table *t = compare(&first, &other, "-q");
    double mixed = -.65 * log(.65) - .35 * log(.35), h = -.8 * log(.8) - .2 * log(.2);
    double split = log(2) + .4 * log(.4) + .6 * log(.6);
    near(NUMBER(t, "RJS", "value", "1", "L0.mlp", "0"), mixed - (h + log(2)) / 2);
    near(NUMBER(t, "RJS", "split_half_reference", "1", "L0.mlp", "0"), split);
    near(NUMBER(t, "RJS", "split_half", "1", "L0.mlp", "mean"), 0);
    near(NUMBER(t, "RJS", "value", "1", "final", "mean"), 0);
    assert_false(HAS(t, "RJS", "1", "L0.attn"));
    table_free(t);
}

/* A model against itself: nothing differs, to the last bit. */
static void test_itself(void **state) {
    (void)state;
    static const char *const sections[] = {"LOS", "CST", "CSO", "CPR", "CAV"};
    table *t = compare(&first, &first, "-q");
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
        const table_section_view *s = table_find(t, sections[i]);
        for (size_t row = 0; row < s->rows; row++) {
            if (isnan(table_number(s, row, table_column(s, "reference"))))
                continue;
            assert_true(table_number(s, row, table_column(s, "difference")) == 0);
            assert_true(table_number(s, row, table_column(s, "low")) == 0);
            assert_true(table_number(s, row, table_column(s, "high")) == 0);
        }
    }
    const table_section_view *js = table_find(t, "RJS"), *depth = table_find(t, "DEP");
    assert_int_equal(js->rows, 2 * 3);
    for (size_t row = 0; row < js->rows; row++)
        assert_true(table_number(js, row, table_column(js, "high")) == 0);
    assert_int_equal(depth->rows, 3 + 2 + 2);
    for (size_t row = 0; row < depth->rows; row++)
        assert_true(table_number(depth, row, table_column(depth, "ln_ratio")) == 0);
    table_free(t);
}

/* Other sources: only what is normalised for their number, as one value a site. */
static void test_other_mode(void **state) {
    (void)state;
    small_model block = first;
    block.mode = "block_mh";
    block.sources = 2;
    block.source_name = blocks;
    block.available = block_available;
    block.weight = block_weight;
    table *t = compare(&first, &block, "-q");
    double final = -(.5 * log(.5) + .5 * log(.25)) / log(3);
    near(NUMBER(t, "CST", "reference", "1", "entropy_norm", "final", "mean"), final);
    near(NUMBER(t, "CST", "difference", "1", "entropy_norm", "final", "mean"), 1 - final);
    near(NUMBER(t, "CST", "value", "1", "head_divergence", "final", "all"), 0);
    assert_false(HAS(t, "CST", "1", "entropy_norm", "final", "0"));
    assert_false(HAS(t, "CST", "1", "entropy"));
    assert_false(HAS(t, "CSO", "1"));
    assert_false(HAS(t, "RJS", "1"));
    assert_true(HAS(t, "CAV", "1", "lookback_norm", "all"));
    assert_false(HAS(t, "CAV", "1", "lookback", "all"));
    block.heads = 1;
    table_free(t);
    t = compare(&first, &block, "-q");
    assert_true(HAS(t, "CST", "1", "entropy_norm"));
    assert_false(HAS(t, "CST", "1", "head_divergence"));
    table_free(t);
}

/* A standard model has losses and magnitudes to compare, and no routing. */
static void test_standard(void **state) {
    (void)state;
    small_model standard = second();
    standard.mode = "none";
    standard.heads = 1;
    standard.sources = 0;
    for (int turn = 0; turn < 2; turn++) {
        table *t = turn ? compare(&standard, &first, "-q") : compare(&first, &standard, "-q");
        near(NUMBER(t, "LOS", "difference", "1"), turn ? -.5 : .5);
        near(NUMBER(t, "DEP", "ln_ratio", "1", "out_rms", "L0.mlp"), turn ? -log(2) : log(2));
        assert_false(HAS(t, "CST", "1"));
        assert_false(HAS(t, "RJS", "1"));
        table_free(t);
    }
}

static void test_other_tokens(void **state) {
    (void)state;
    small_model other = second();
    other.first_id = 1;
    assert_null(compare(&first, &other, "-q"));
    table *t = compare(&first, &other, "--allow-different-tokens");
    near(NUMBER(t, "LOS", "value", "1") - NUMBER(t, "LOS", "reference", "1"), .5);
    assert_true(isnan(NUMBER(t, "LOS", "difference", "1")));
    assert_true(isnan(NUMBER(t, "DEP", "ln_ratio", "1", "in_rms", "final")));
    near(NUMBER(t, "CSO", "value", "1", "mean", "L0.mlp", "1", "emb"), .8);
    assert_true(isnan(NUMBER(t, "CSO", "low", "1", "mean", "L0.mlp", "1", "emb")));
    assert_false(HAS(t, "RJS", "1"));
    table_free(t);
    other = second();
    other.sequences = 12;
    assert_null(compare(&first, &other, "-q"));
    t = compare(&first, &other, "--allow-different-tokens");
    near(NUMBER(t, "DEP", "value", "1", "in_rms", "final"), 2 * (1 + 1 + 2.5 + 2));
    table_free(t);
}

static void test_few_sequences(void **state) {
    (void)state;
    small_model few = first, other = second();
    few.sequences = other.sequences = 7;
    table *t = compare(&few, &other, "-q");
    near(NUMBER(t, "LOS", "difference", "1"), .5);
    assert_true(isnan(NUMBER(t, "LOS", "low", "1")));
    assert_true(isnan(NUMBER(t, "RJS", "high", "1", "L0.mlp", "0")));
    table_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paired),       cmocka_unit_test(test_unequal_lengths),
        cmocka_unit_test(test_run_js),       cmocka_unit_test(test_itself),
        cmocka_unit_test(test_other_mode),   cmocka_unit_test(test_standard),
        cmocka_unit_test(test_other_tokens), cmocka_unit_test(test_few_sequences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
