/* What is planted in a recording is what the table of depth finds, and a golden model's table is
 * that of a float64 program. */
#include "analyze/depth_numbers.h"
#include "analyze/table.h"
#include "analyze/tests/small_recording.h"

#include "probes/recording_writer.h"
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

static void near(double found, double expected, double tolerance, const char *what) {
    if (!(fabs(found - expected) <= tolerance * (1 + fabs(expected))))
        fail_msg("%s: %.12g, expected %.12g", what, found, expected);
}

/* ---- a recording made up ---- */

enum { POSITIONS = 6, LAYERS_MAX = 20 };

typedef struct made {
    const char *mode;
    size_t layers, per; /* layers of a block; 0: no blocks */
    size_t sequences, skip;
    /* Rms of in, out and state at place `place` of a token. */
    double (*size)(const struct made *m, char what, size_t sequence, size_t pos, size_t place);
    /* Largest and median |x| of the state. */
    void (*top)(size_t sequence, size_t pos, size_t place, float *top, float *median);
    double rate;
} made;

/* Sequences of 6, 5, 6, … tokens. */
static size_t length_of(size_t sequence) {
    return POSITIONS - sequence % 2;
}

static void quiet_top(size_t sequence, size_t pos, size_t place, float *top, float *median) {
    (void)sequence, (void)pos, (void)place;
    *top = 2;
    *median = 1;
}

static int put_sequence(recording_writer *w, const made *m, size_t sequence, status *st) {
    size_t length = length_of(sequence), sublayers = 2 * m->layers;
    static float in[POSITIONS * (2 * LAYERS_MAX + 1)], out[POSITIONS * 2 * LAYERS_MAX];
    static float state[POSITIONS * 2 * LAYERS_MAX], top[POSITIONS * 2 * LAYERS_MAX];
    static float median[POSITIONS * 2 * LAYERS_MAX];
    static int32_t channel[POSITIONS * 2 * LAYERS_MAX];
    int32_t id[POSITIONS], stored = (int32_t)length;
    int64_t start = (int64_t)(100 * sequence);
    float loss[POSITIONS];
    for (size_t t = 0; t < length; t++) {
        id[t] = (int32_t)(t + 1);
        loss[t] = t ? 2.0F : NAN;
        for (size_t p = 0; p <= sublayers; p++)
            in[t * (sublayers + 1) + p] = (float)m->size(m, 'i', sequence, t, p);
        for (size_t p = 0; p < sublayers; p++) {
            size_t at = t * sublayers + p;
            out[at] = (float)m->size(m, 'o', sequence, t, p);
            state[at] = (float)m->size(m, 's', sequence, t, p);
            m->top(sequence, t, p, &top[at], &median[at]);
            channel[at] = (int32_t)(10 + p);
        }
    }
    return recording_writer_put(w, RECORDED_ID, 0, 0, length, id, st) ||
           recording_writer_put(w, RECORDED_LENGTH, 0, 0, length, &stored, st) ||
           recording_writer_put(w, RECORDED_START, 0, 0, length, &start, st) ||
           recording_writer_put(w, RECORDED_LOSS, 0, 0, length, loss, st) ||
           recording_writer_put(w, RECORDED_IN_RMS, 0, 0, length, in, st) ||
           recording_writer_put(w, RECORDED_OUT_RMS, 0, 0, length, out, st) ||
           recording_writer_put(w, RECORDED_OUT_ABSMAX, 0, 0, length, out, st) ||
           recording_writer_put(w, RECORDED_STATE_RMS, 0, 0, length, state, st) ||
           recording_writer_put(w, RECORDED_STATE_ABSMAX, 0, 0, length, top, st) ||
           recording_writer_put(w, RECORDED_STATE_CHANNEL, 0, 0, length, channel, st) ||
           recording_writer_put(w, RECORDED_STATE_MEDIAN, 0, 0, length, median, st);
}

/* Labels of sites and sources; a block model's sites read emb and the blocks begun before them. */
static recording_plan plan_of(const made *m) {
    static char site[2 * LAYERS_MAX + 1][32], block[LAYERS_MAX + 1][32];
    static const char *site_name[2 * LAYERS_MAX + 1], *source_name[LAYERS_MAX + 1];
    static uint8_t available[(2 * LAYERS_MAX + 1) * (LAYERS_MAX + 1)];
    static int32_t newest[2 * LAYERS_MAX + 1];
    size_t sublayers = 2 * m->layers;
    size_t sources = m->per ? 1 + (m->layers + m->per - 1) / m->per : 0;
    for (size_t i = 0; i <= sublayers; i++) {
        if (i < sublayers)
            snprintf(site[i], sizeof site[i], "L%zu.%s", i / 2, i % 2 ? "mlp" : "attn");
        else
            snprintf(site[i], sizeof site[i], "final");
        site_name[i] = site[i];
        size_t begun = m->per ? (i + 2 * m->per - 1) / (2 * m->per) : 0;
        newest[i] = sources ? (int32_t)begun : -1;
        for (size_t s = 0; s < sources; s++)
            available[i * sources + s] = s <= begun;
    }
    for (size_t s = 0; s < sources; s++) {
        snprintf(block[s], sizeof block[s], "B%zu", s);
        source_name[s] = s ? block[s] : "emb";
    }
    return (recording_plan){.axes = {.positions = POSITIONS,
                                     .sites = sublayers + 1,
                                     .sublayers = sublayers,
                                     .layers = m->layers,
                                     .heads = 1,
                                     .sources = sources,
                                     .width = 64,
                                     .site_name = site_name,
                                     .sublayer_name = site_name,
                                     .source_name = source_name,
                                     .available = available,
                                     .newest = newest},
                            .header = {.title = "made up",
                                       .history = "never",
                                       .model_path = "models/none",
                                       .model_config = "{\"hidden_size\": 64}",
                                       .residual_mode = m->mode,
                                       .tokenizer = "none",
                                       .device = "none",
                                       .compute_dtype = "fp32",
                                       .weights_dtype = "F32",
                                       .bos = -1,
                                       .seed = 1,
                                       .skip_first = m->skip}};
}

static void write_recording(const made *m, const char *path) {
    static const int32_t ids[POSITIONS] = {1, 2, 3, 4, 5, 6};
    static const char *const pieces[POSITIONS] = {"a", "b", "c", "d", "e", "f"};
    const recording_closing closing = {.pieces = POSITIONS, .piece_id = ids, .piece = pieces};
    recording_plan plan = plan_of(m);
    recording_writer *w;
    status st;
    if (recording_writer_create(path, &plan, &w, &st))
        fail_msg("%s", st.text);
    for (size_t i = 0; i < m->sequences; i++)
        if (recording_writer_begin(w, 1, &st) || put_sequence(w, m, i, &st) ||
            recording_writer_commit(w, &st))
            fail_msg("%s", st.text);
    if (recording_writer_finish(w, &closing, true, &st))
        fail_msg("%s", st.text);
}

/* The table of depth of a recording made so; --blocks where `blocks` is not "0". */
static table *table_of(const made *m, const char *blocks) {
    status st;
    table *found;
    char *record = scratch_path("depth.h5"), *text = scratch_path("depth.txt");
    write_recording(m, record);
    assert_int_equal(COMMAND("depth", record, "-o", text, "--blocks", blocks), EXIT_DONE);
    if (table_read(text, &found, &st))
        fail_msg("%s", st.text);
    free(record);
    free(text);
    return found;
}

/* Row of a section whose first cells are these (`second` NULL: only the first). */
static size_t row_of(const table_section_view *s, const char *first, const char *second) {
    for (size_t row = 0; row < s->rows; row++)
        if (strcmp(table_cell(s, row, 0), first) == 0 &&
            (!second || strcmp(table_cell(s, row, 1), second) == 0))
            return row;
    fail_msg("%s has no %s %s", s->code, first, second ? second : "");
    return 0;
}

static double number(const table *t, const char *code, const char *first, const char *second,
                     const char *column) {
    const table_section_view *s = table_find(t, code);
    assert_non_null(s);
    int at = table_column(s, column);
    assert_true(at >= 0);
    return table_number(s, row_of(s, first, second), at);
}

static const char *cell(const table *t, const char *code, const char *first, const char *column) {
    const table_section_view *s = table_find(t, code);
    assert_non_null(s);
    return table_cell(s, row_of(s, first, NULL), table_column(s, column));
}

/* ---- arithmetic ---- */

static int rising(const void *left, const void *right) {
    float a = *(const float *)left, b = *(const float *)right;
    return (a > b) - (a < b);
}

static void test_quantiles(void **state) {
    (void)state;
    const double at[] = {0, 0.01, 0.5, 0.99, 1};
    double found[5];
    float five[] = {4, 1, 5, 3, 2}, one[] = {7};
    quantiles(five, 5, at, 5, found);
    const double expected[] = {1, 1.04, 3, 4.96, 5};
    for (size_t q = 0; q < 5; q++)
        near(found[q], expected[q], 1e-14, "quantile of 1 to 5");
    quantiles(one, 1, at, 5, found);
    near(found[1], 7, 0, "quantile of one number");
    /* Many sizes, with ties, in falling, rising and mixed order. */
    for (size_t n = 1; n < 400; n = n * 3 / 2 + 1)
        for (int order = 0; order < 3; order++) {
            float x[400], sorted[400];
            for (size_t i = 0; i < n; i++)
                x[i] = (float)(order == 0 ? i : order == 1 ? n - i : (i * 7919) % (n / 3 + 1));
            memcpy(sorted, x, n * sizeof *x);
            qsort(sorted, n, sizeof *x, rising);
            quantiles(x, n, at, 5, found);
            for (size_t q = 0; q < 5; q++) {
                double rank = at[q] * (double)(n - 1), part = rank - floor(rank);
                double low = (double)sorted[(size_t)rank],
                       high = (double)sorted[(size_t)ceil(rank)];
                near(found[q], low + part * (high - low), 1e-14, "quantile");
            }
        }
    float bad[] = {1, NAN, 2};
    quantiles(bad, 3, at, 5, found);
    assert_true(isnan(found[0]) && isnan(found[4]));
}

static void test_numbers(void **state) {
    (void)state;
    const double x[] = {0, 1, 2, 3}, y[] = {1, 4, 5, 8};
    fitted_line line = fit_line(x, y, 4);
    near(line.slope, 2.2, 1e-14, "slope");
    near(line.intercept, 1.2, 1e-14, "intercept");
    near(line.residual, sqrt(0.2), 1e-14, "residual"); /* -.2, .6, -.6, .2 */
    near(line.explained, 1 - 0.8 / 25, 1e-14, "r2");
    assert_true(isnan(fit_line(y, y, 1).slope));
    const double one_of_four[] = {0, 0, 0, 4}, equal[] = {3, 3, 3}, steps[] = {1, 2, 3, 4};
    near(gini(one_of_four, 4), 0.75, 1e-14, "gini");
    near(gini(equal, 3), 0, 1e-14, "gini of equals");
    near(gini(steps, 4), 0.25, 1e-14, "gini of 1 to 4");
    near(variation(one_of_four, 4), sqrt(3), 1e-14, "variation");
    near(variation(steps, 4), sqrt(1.25) / 2.5, 1e-14, "variation of 1 to 4");
    near(max_to_min(steps, 4), 4, 0, "max/min");
    const float three[] = {1, 2, 6};
    near(spread(three, 3), sqrt(14.0 / 3), 1e-14, "sd");
}

/* ---- growth ---- */

/* exp(rate * layer) after a layer, the same for its attention; position 0 is another matter. */
static double exponential(const made *m, char what, size_t sequence, size_t pos, size_t place) {
    (void)what;
    double level = 1 + 0.1 * (double)sequence + 0.05 * (double)pos;
    return pos == 0 ? 1000 - 10 * (double)place : level * exp(m->rate * (double)(place / 2));
}

static double power(const made *m, char what, size_t sequence, size_t pos, size_t place) {
    (void)what;
    return (1 + 0.1 * (double)((sequence + pos) % 3)) *
           pow((double)(place / 2 + 1), pos ? m->rate : 9);
}

static double by_site(const made *m, char what, size_t sequence, size_t pos, size_t place) {
    (void)sequence, (void)pos;
    return what == 'i' ? exp(m->rate * (double)place / 2) : 1 + (double)(place % 3);
}

static void test_growth(void **state) {
    (void)state;
    made m = {.mode = "none", .layers = 16, .sequences = 9, .size = exponential, .top = quiet_top};
    m.rate = 0.25;
    table *t = table_of(&m, "0");
    near(number(t, "GRW", "depth", "16", "slope"), 0.25, 1e-6, "slope");
    near(number(t, "GRW", "depth", "16", "low"), 0.25, 1e-6, "low");
    near(number(t, "GRW", "depth", "16", "factor"), exp(0.25), 1e-6, "factor");
    near(number(t, "GRW", "depth", "16", "r2"), 1, 1e-6, "r2");
    assert_true(number(t, "GRW", "ln(depth+1)", "16", "rms_residual") > 0.1);
    assert_string_equal(cell(t, "GRW", "depth", "law"), "exponential");
    near(number(t, "GRP", "L5.mlp", "5", "residual_depth"), 0, 1e-6, "residual");
    assert_int_equal(table_find(t, "GRP")->rows, 16);
    table_free(t);
    m.size = power;
    m.rate = 0.5;
    t = table_of(&m, "0");
    near(number(t, "GRW", "ln(depth+1)", "16", "slope"), 0.5, 1e-6, "exponent");
    assert_string_equal(cell(t, "GRW", "depth", "law"), "power");
    table_free(t);
    m.layers = 15;
    t = table_of(&m, "0");
    assert_string_equal(cell(t, "GRW", "depth", "law"), "unnamed");
    table_free(t);
    m.layers = 1;
    t = table_of(&m, "0");
    assert_null(table_find(t, "GRW"));
    table_free(t);
    m.mode = "full";
    m.layers = 8;
    m.size = by_site;
    t = table_of(&m, "0");
    near(number(t, "GRW", "depth", "17", "slope"), 0.5, 1e-6, "slope of full");
    near(number(t, "GRP", "final", "8", "mean_ln_rms"), 4, 1e-6, "in before the final norm");
    table_free(t);
}

/* Two layers a block: its sum doubles in the second layer; each block begins at 1/8 of the one
 * before. */
static double in_blocks(const made *m, char what, size_t sequence, size_t pos, size_t place) {
    (void)m, (void)what, (void)pos;
    size_t layer = place / 2;
    return (1 + (double)(sequence % 3)) * pow(0.25, (double)(layer / 2)) * (layer % 2 ? 2 : 1) *
           (place % 2 ? 1 : 7);
}

static void test_blocks(void **state) {
    (void)state;
    made m = {.mode = "block",
              .layers = 5,
              .per = 2,
              .sequences = 9,
              .size = in_blocks,
              .top = quiet_top};
    table *t = table_of(&m, "0");
    const table_section_view *s = table_find(t, "RST");
    assert_int_equal(s->rows, 2); /* blocks of layers 0-1, 2-3 and 4 */
    near(number(t, "RST", "2", "L1.mlp", "value"), 0.125, 1e-7, "reset_ratio");
    near(number(t, "RST", "3", "L3.mlp", "low"), 0.125, 1e-7, "reset_ratio");
    assert_string_equal(cell(t, "RST", "3", "first"), "L4.mlp");
    s = table_find(t, "GRP");
    assert_int_equal(s->rows, 3);
    assert_string_equal(table_cell(s, 0, 0), "L1.mlp");
    assert_string_equal(table_cell(s, 2, 0), "L4.mlp");
    table_free(t);
    m.mode = "none"; /* a standard model is cut the same way: ceil(5 / 3) layers */
    m.per = 0;
    t = table_of(&m, "3");
    s = table_find(t, "RST");
    assert_int_equal(s->rows, 2);
    near(number(t, "RST", "3", "L3.mlp", "value"), 0.125, 1e-7, "reset_ratio");
    assert_int_equal(table_find(t, "GRP")->rows, 5);
    table_free(t);
    t = table_of(&m, "0");
    assert_null(table_find(t, "RST"));
    table_free(t);
}

/* ---- sizes ---- */

/* The number of the token in its sequence, times the place. */
static double counted(const made *m, char what, size_t sequence, size_t pos, size_t place) {
    (void)m, (void)sequence;
    double base = what == 'i' ? 100 : what == 'o' ? 10 : 1;
    return base * (double)(place + 1) * (double)pos;
}

static void test_magnitudes(void **state) {
    (void)state;
    made m = {
        .mode = "none", .layers = 2, .sequences = 10, .skip = 2, .size = counted, .top = quiet_top};
    table *t = table_of(&m, "0");
    /* From position 2 on, five sequences have 2, 3, 4, 5 and five have 2, 3, 4. */
    double mean = (5 * 14 + 5 * 9) / 35.0, square = (5 * 54 + 5 * 29) / 35.0;
    near(number(t, "MAG", "in_rms", "L1.attn", "mean"), 300 * mean, 1e-7, "in_rms");
    near(number(t, "MAG", "in_rms", "L1.attn", "sd"), 300 * sqrt(square - mean * mean), 1e-7, "sd");
    near(number(t, "MAG", "in_rms", "final", "q50"), 500 * 3, 1e-7, "median");
    near(number(t, "MAG", "out_rms", "L0.mlp", "q01"), 20 * 2, 1e-7, "1 %");
    near(number(t, "MAG", "state_rms", "L1.mlp", "q99"), 4 * 5, 1e-7, "99 %");
    double low = number(t, "MAG", "state_rms", "L0.attn", "low");
    double high = number(t, "MAG", "state_rms", "L0.attn", "high");
    assert_true(low < mean && mean < high && high - low < 1);
    near(number(t, "RUN", "loss", NULL, "value"), 2, 1e-7, "loss");
    near(number(t, "RUN", "tokens_in_means", NULL, "value"), 35, 0, "tokens");
    table_free(t);
    m.sequences = 7; /* units */
    t = table_of(&m, "0");
    assert_true(isnan(number(t, "MAG", "state_rms", "L0.attn", "low")));
    assert_true(isnan(number(t, "GRW", "depth", "2", "high")));
    assert_true(isfinite(number(t, "GRW", "depth", "2", "slope")));
    table_free(t);
}

static double one_nan(const made *m, char what, size_t sequence, size_t pos, size_t place) {
    return what == 's' && sequence == 3 && pos == 2 && place == 1
               ? NAN
               : counted(m, what, sequence, pos, place) + 1;
}

/* A NaN makes its point nan, is named, and touches nothing else. */
static void test_nan(void **state) {
    (void)state;
    made m = {.mode = "none", .layers = 2, .sequences = 9, .size = one_nan, .top = quiet_top};
    char *record = scratch_path("depth.h5"), *text = scratch_path("depth.txt");
    write_recording(&m, record);
    scratch_capture_begin();
    int rc = small_command((const char *const[]){"depth", record, "-o", text, NULL});
    char *said = scratch_capture_end();
    assert_int_equal(rc, EXIT_DONE);
    assert_non_null(strstr(said, "state_rms: 1 numbers are not finite, first at sequence 3, "
                                 "position 2, L0.mlp"));
    table *t;
    status st;
    if (table_read(text, &t, &st))
        fail_msg("%s", st.text);
    assert_true(isnan(number(t, "MAG", "state_rms", "L0.mlp", "mean")));
    assert_true(isnan(number(t, "MAG", "state_rms", "L0.mlp", "q50")));
    assert_true(isfinite(number(t, "MAG", "state_rms", "L1.mlp", "mean")));
    assert_true(isnan(number(t, "GRW", "depth", "2", "slope")));
    table_free(t);
    free(said);
    free(record);
    free(text);
}

/* ---- massive activations ---- */

static void planted_top(size_t sequence, size_t pos, size_t place, float *top, float *median) {
    *top = 100; /* not above 100 */
    *median = 0.01F;
    if (sequence == 1 && pos == 3) {
        *top = 2000; /* not above 1000 medians */
        *median = 2;
    }
    if (sequence == 2 && pos == 0 && place == 3) {
        *top = 640;
        *median = 0.5F;
    }
    if (sequence == 4 && pos == 2 && place == 1) {
        *top = 100.5F;
        *median = 0.1F;
    }
}

static void many_top(size_t sequence, size_t pos, size_t place, float *top, float *median) {
    (void)place;
    *top = 200 + (float)(10 * sequence + pos);
    *median = 0.1F;
}

static void test_massive(void **state) {
    (void)state;
    made m = {.mode = "none",
              .layers = 2,
              .sequences = 8,
              .skip = 1, /* position 0 is searched all the same */
              .size = counted,
              .top = planted_top};
    table *t = table_of(&m, "0");
    const table_section_view *s = table_find(t, "MSV");
    assert_int_equal(s->rows, 2);
    const char *const expected[2][6] = {{"2", "0", "1", "a", "L1.mlp", "13"},
                                        {"4", "2", "3", "c", "L0.mlp", "11"}};
    for (size_t row = 0; row < 2; row++)
        for (int column = 0; column < 6; column++)
            assert_string_equal(table_cell(s, row, column), expected[row][column]);
    near(table_number(s, 0, 6), 640, 0, "value");
    near(table_number(s, 0, 7), 1280, 1e-7, "ratio");
    near(number(t, "MSS", "L1.mlp", "1", "tokens_at_0"), 1, 0, "at 0");
    near(number(t, "MSS", "L0.mlp", "1", "tokens_at_0"), 0, 0, "at 0");
    near(number(t, "MSS", "L0.attn", "0", "largest"), 2000, 0, "largest");
    near(number(t, "MSS", "L0.attn", "0", "seq"), 1, 0, "where");
    table_free(t);
    m.top = many_top; /* 8 sequences, 44 tokens, 4 sublayers; the largest are the last ones */
    t = table_of(&m, "0");
    s = table_find(t, "MSV");
    assert_int_equal(s->rows, 64);
    near(table_number(s, 63, 6), 274, 0, "the largest");
    near(number(t, "MSS", "L0.mlp", "44", "tokens_at_0"), 8, 0, "at 0");
    for (size_t row = 0; row < s->rows; row++)
        assert_true(table_number(s, row, 6) >= 250);
    table_free(t);
}

/* ---- a golden model ---- */

static checkpoint *expected_of(const char *folder) {
    char path[512];
    checkpoint *expected;
    status st;
    snprintf(path, sizeof path, "%s/expected.safetensors", folder);
    if (checkpoint_open(path, &expected, &st))
        fail_msg("%s", st.text);
    return expected;
}

static void write_tokens(const char *path, checkpoint *expected) {
    size_t sequences, length;
    int32_t *id = golden_tokens(expected, &sequences, &length);
    golden_write_tokens(path, id, sequences, length);
    free(id);
}

static double golden_mean(checkpoint *expected, const char *group, const char *place) {
    char name[256];
    size_t elements, shape[8];
    snprintf(name, sizeof name, place ? "%s/%s" : "%s", group, place);
    double *x = golden_array(expected, name, &elements, shape), sum = 0;
    for (size_t i = 0; i < elements; i++)
        sum += x[i];
    free(x);
    return sum / (double)elements;
}

static void check_means(const table *t, const char *code, const char *quantity,
                        checkpoint *expected, const char *group, double tolerance) {
    const table_section_view *s = table_find(t, code);
    assert_non_null(s);
    size_t checked = 0;
    for (size_t row = 0; row < s->rows; row++) {
        if (strcmp(table_cell(s, row, 0), quantity) != 0)
            continue;
        const char *place = table_cell(s, row, 1);
        near(table_number(s, row, 2),
             golden_mean(expected, group, strcmp(place, "emb") == 0 ? NULL : place), tolerance,
             place);
        checked++;
    }
    assert_true(checked > 0);
}

/* Every parameter's norm, and the root of all their squares. */
static void check_parameters(const table *t, checkpoint *expected) {
    const table_section_view *s = table_find(t, "GPA");
    double square = 0, layer[5] = {0};
    for (size_t row = 0; row < s->rows; row++) {
        const char *name = table_cell(s, row, 0);
        double norm =
            strcmp(name, "all") == 0 ? sqrt(square) : golden_mean(expected, "grad_l2", name);
        near(table_number(s, row, 1), norm, 2e-4, name);
        square += norm * norm;
        size_t i = strlen("model.layers.");
        if (strncmp(name, "model.layers.", i) == 0)
            layer[name[i] - '0'] += norm * norm;
    }
    assert_string_equal(table_cell(s, s->rows - 1, 0), "all");
    for (size_t i = 0; i < 5; i++) {
        layer[i] = sqrt(layer[i]);
        near(table_number(table_find(t, "GLY"), i, 1), layer[i], 2e-4, "layer_l2");
    }
    near(number(t, "GUN", "layer_l2", "gini", "value"), gini(layer, 5), 2e-4, "gini");
}

static void check_uniformity(const table *t, checkpoint *expected) {
    double norm[5];
    for (size_t i = 0; i < 5; i++) {
        char name[16];
        snprintf(name, sizeof name, "L%zu.mlp", i);
        norm[i] = golden_mean(expected, "grad_out_l2", name);
    }
    near(number(t, "GUN", "out_l2", "variation", "value"), variation(norm, 5), 2e-4, "variation");
    near(number(t, "GUN", "out_l2", "gini", "value"), gini(norm, 5), 2e-4, "gini");
    near(number(t, "GUN", "out_l2", "max_to_min", "value"), max_to_min(norm, 5), 2e-4, "max/min");
}

static void check_golden(const char *name) {
    char folder[256];
    snprintf(folder, sizeof folder, "%s/tiny/%s", golden_folder(), name);
    checkpoint *expected = expected_of(folder);
    char *tokens = scratch_path("depth.npy"), *record = scratch_path("golden.h5");
    char *text = scratch_path("golden.txt");
    write_tokens(tokens, expected);
    scratch_capture_begin();
    bool gradients =
        COMMAND("capture", folder, "--tokens", tokens, "--gradients", "-o", record) == EXIT_DONE;
    free(scratch_capture_end());
    if (!gradients)
        assert_int_equal(COMMAND("capture", folder, "--tokens", tokens, "-o", record), EXIT_DONE);
    assert_int_equal(COMMAND("depth", record, "-o", text), EXIT_DONE);
    table *t;
    status st;
    if (table_read(text, &t, &st))
        fail_msg("%s", st.text);
    check_means(t, "MAG", "in_rms", expected, "in_rms", 2e-5);
    check_means(t, "MAG", "out_rms", expected, "out_rms", 2e-5);
    check_means(t, "MAG", "state_rms", expected, "state_rms", 2e-5);
    assert_int_equal(table_find(t, "GRD") != NULL, gradients);
    if (gradients) {
        check_means(t, "GRD", "in_l2", expected, "grad_in_l2", 2e-4);
        check_means(t, "GRD", "out_l2", expected, "grad_out_l2", 2e-4);
        check_means(t, "GRD", "emb_l2", expected, "grad_emb_l2", 2e-4);
        check_parameters(t, expected);
        check_uniformity(t, expected);
    }
    table_free(t);
    checkpoint_close(expected);
    free(tokens);
    free(record);
    free(text);
    if (!gradients)
        skip();
}

static void test_golden_full(void **state) {
    (void)state;
    check_golden("full-h4");
}

static void test_golden_block(void **state) {
    (void)state;
    check_golden("block-h3-n5");
}

static void test_golden_delta(void **state) {
    (void)state;
    check_golden("delta-h4-n2");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantiles),    cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_growth),       cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_magnitudes),   cmocka_unit_test(test_nan),
        cmocka_unit_test(test_massive),      cmocka_unit_test(test_golden_full),
        cmocka_unit_test(test_golden_block), cmocka_unit_test(test_golden_delta),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
