/* Figures of `depth` tables, one and several: what scripts and data say, for models of many shapes,
 * and that gnuplot runs each of them without a word. */
#include "plots/curves.h"
#include "plots/tests/drawn.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- Tables of made-up models ---- */

typedef struct shape {
    const char *model, *mode;
    size_t layers, block; /* block 0: none */
    bool intervals;
    double value;       /* of everything but for its last digits; 0: 1 + place */
    size_t undefined;   /* this place's numbers are nan; 0: none */
    size_t grad_tokens; /* 0: no gradients */
} shape;

static void put_place(FILE *out, const char *code, const char *quantity, const shape *m, size_t t) {
    fprintf(out, "%s\t%s\t", code, quantity);
    if (t == 2 * m->layers)
        fputs("final", out);
    else
        fprintf(out, "L%zu.%s", t / 2, t % 2 ? "mlp" : "attn");
}

static double value_of(const shape *m, size_t t) {
    if (m->undefined && t == m->undefined)
        return NAN;
    return m->value != 0 ? m->value * (1 + 1e-13 * (double)t) : 1 + (double)t;
}

static void put_sizes(FILE *out, const shape *m) {
    static const char *const quantities[] = {"in_rms", "out_rms", "state_rms"};
    table_section(out, "MAG", "sizes", "quantity, point, mean, low, high, sd, q01, q50, q99", "1");
    for (size_t q = 0; q < 3; q++)
        for (size_t t = 0; t <= 2 * m->layers - (q > 0); t++) {
            double v = value_of(m, t);
            put_place(out, "MAG", quantities[q], m, t);
            table_real(out, v);
            table_real(out, m->intervals ? v * 0.9 : NAN);
            table_real(out, m->intervals ? v * 1.1 : NAN);
            table_real(out, 0.1);
            table_real(out, v / 2);
            table_real(out, v);
            table_real(out, v * 2);
            table_end(out);
        }
}

static void put_blocks(FILE *out, const shape *m) {
    table_section(out, "RST", "reset", "block, last, first, value, low, high", "1");
    for (size_t layer = m->block; layer < m->layers; layer += m->block)
        fprintf(out, "RST\t%zu\tL%zu.mlp\tL%zu.mlp\t0.5\tnan\tnan\n", layer / m->block + 1,
                layer - 1, layer);
}

static void put_gradients(FILE *out, const shape *m) {
    static const char *const measures[] = {"variation", "gini", "max_to_min"};
    table_section(out, "GRD", "gradients", "quantity, point, value, low, high", "nats");
    for (size_t t = 0; t < 2 * m->layers; t++) {
        put_place(out, "GRD", "out_l2", m, t);
        table_real(out, value_of(m, t));
        table_real(out, NAN);
        table_real(out, NAN);
        table_end(out);
        put_place(out, "GRD", "in_l2", m, t);
        fputs("\t777\tnan\tnan\n", out);
    }
    fputs("GRD\temb_l2\temb\t777\tnan\tnan\n", out);
    table_section(out, "GUN", "inequality", "quantity, measure, layers, value, low, high", "1");
    for (size_t i = 0; i < 3; i++)
        fprintf(out, "GUN\tout_l2\t%s\t%zu\t%g\tnan\tnan\n", measures[i], m->layers,
                0.25 + (double)i);
    table_section(out, "GLY", "layers", "layer, value", "nats");
    for (size_t i = 0; i < m->layers; i++)
        fprintf(out, "GLY\t%zu\t%g\n", i, 0.5 + (double)i);
}

static table *make_table(const shape *m) {
    FILE *out = table_begin("depth.tsv", "fathom depth run.h5");
    table_section(out, "RUN", "run", "key, value", "1");
    table_key_text(out, "RUN", "model_path", m->model ? m->model : "models/tiny");
    table_key_text(out, "RUN", "residual_mode", m->mode ? m->mode : "none");
    table_key_size(out, "RUN", "layers", m->layers);
    table_key_real(out, "RUN", "level", 0.95);
    table_key_size(out, "RUN", "grad_tokens", m->grad_tokens);
    table_section(out, "LPO", "loss", "first, last, tokens, value, low, high", "nats/token");
    fprintf(out, "LPO\t1\t1\t16\t5\t4\t6\nLPO\t2\t8\t112\t%g\tnan\tnan\n", value_of(m, 3));
    put_sizes(out, m);
    if (m->block)
        put_blocks(out, m);
    if (m->grad_tokens)
        put_gradients(out, m);
    return table_finish(out, "depth.tsv");
}

static drawn draw(const char *name, const shape *m) {
    table *from = make_table(m);
    drawn d = draw_one(name, from);
    table_free(from);
    return d;
}

/* Several runs, whose shapes end with one without layers. */
static drawn draw_runs(const char *name, const shape *m) {
    const table *from[16] = {NULL};
    size_t count = 0;
    for (; m[count].layers; count++)
        from[count] = make_table(&m[count]);
    drawn d = draw_tables(name, from, count);
    for (size_t i = 0; i < count; i++)
        table_free((table *)from[i]);
    return d;
}

/* The numbers of a data set by what its comment holds. */
static const char *data_of(const char *data, const char *name) {
    const char *at = strstr(data, name);
    if (!at)
        fail_msg("no data set '%s' in:\n%.2000s", name, data);
    return strchr(at, '\n');
}

static void assert_starts(const char *text, const char *start) {
    if (strncmp(text, start, strlen(start)) != 0)
        fail_msg("expected '%s', got '%.200s'", start, text);
}

/* ---- Magnitudes ---- */

static void magnitudes_are_those_of_the_table(void **state) {
    (void)state;
    drawn d = draw("magnitude_by_depth", &(shape){.layers = 2, .intervals = true});
    assert_int_equal(d.result, DONE);
    /* x, mean, low, high, 1 % and 99 % quantiles. */
    assert_starts(data_of(d.data, "in_rms: read by sublayers: attention"),
                  "\n0 1 0.9 1.1 0.5 2\n1 3 2.7 3.3 1.5 6\n\n");
    assert_starts(data_of(d.data, "in_rms: read by sublayers: final"), "\n2 5 4.5 5.5 2.5 10\n");
    assert_starts(data_of(d.data, "state_rms: running sum: MLP"),
                  "\n0.5 2 1.8 2.2 1 4\n1.5 4 3.6 4.4 2 8\n");
    assert_notes(d.script, "Bars: 95% intervals over sequences.");
    assert_notes(d.script, "Bands: 1% to 99% of tokens");
    assert_int_equal(count_of(d.script, "'log scale'"), 3);
    drawn_free(&d);
}

static void without_intervals_there_are_no_bars(void **state) {
    (void)state;
    drawn d = draw("magnitude_by_depth", &(shape){.layers = 4});
    assert_lacks(d.script, "with vectors");
    assert_notes(d.script, "No intervals");
    drawn_free(&d);
}

static void an_undefined_number_is_a_gap(void **state) {
    (void)state;
    drawn d = draw("magnitude_by_depth", &(shape){.layers = 3, .undefined = 2});
    assert_starts(data_of(d.data, "in_rms: read by sublayers: attention"),
                  "\n0 1 nan nan 0.5 2\n1 nan nan nan nan nan\n2 5 nan nan 2.5 10\n");
    drawn_free(&d);
}

static void full_modes_have_no_running_sum(void **state) {
    (void)state;
    drawn d = draw("magnitude_by_depth", &(shape){.layers = 3, .mode = "full_mh"});
    assert_lacks(d.data, "state_rms");
    assert_notes(d.script, "No panel of states");
    drawn_free(&d);
    d = draw_runs("magnitude_by_depth", (shape[]){{.layers = 3, .mode = "full", .model = "a/x"},
                                                  {.layers = 3, .model = "a/y"},
                                                  {0}});
    assert_has(d.data, "state_rms, after the MLP: y");
    assert_lacks(d.data, "state_rms, after the MLP: x");
    assert_notes(d.script, "state_rms is without 1 full-mode run");
    drawn_free(&d);
}

static void nothing_but_undefined_numbers_is_not_drawn(void **state) {
    (void)state;
    drawn d = draw("magnitude_by_depth", &(shape){.layers = 3, .value = NAN});
    assert_int_equal(d.result, NOT_DRAWN);
    assert_has(d.st.text, "none of its numbers is defined");
}

static void zeros_have_no_place_on_a_log_axis(void **state) {
    (void)state;
    drawn d = draw("gradient_by_depth", &(shape){.layers = 3, .value = 1e-320, .grad_tokens = 9});
    assert_int_equal(d.result, DONE);
    drawn_free(&d);
    d = draw("magnitude_by_depth", &(shape){.layers = 3, .value = -2});
    assert_has(d.script, "'no value above 0'");
    drawn_free(&d);
}

/* Even marks crowd towards the top of a logarithmic axis; between 2 and 6 each second one stays. */
static void marks_of_a_narrow_log_axis_have_room(void **state) {
    (void)state;
    drawn d =
        draw_runs("magnitude_by_depth",
                  (shape[]){{.layers = 3, .model = "m/a"}, {.layers = 3, .model = "m/b"}, {0}});
    assert_has(d.script, "set logscale y; set yrange [2 : 6]; set ytics ('2' 2, '4' 4, '6' 6)");
    drawn_free(&d);
}

/* ---- Runs ---- */

static void every_run_has_its_look_and_its_own_depth(void **state) {
    (void)state;
    drawn d =
        draw_runs("magnitude_by_depth",
                  (shape[]){{.layers = 4, .model = "m/a"}, {.layers = 2, .model = "m/b"}, {0}});
    assert_int_equal(d.result, DONE);
    assert_has(d.script, "set linetype 11 ");
    assert_has(d.script, "set linetype 12 ");
    assert_lacks(d.script, "set linetype 13 ");
    assert_has(d.script, "'2 runs'");
    assert_has(d.script, "set xrange [-0.5 : 4 + 0.5]");
    /* `final` of two layers stands at 2, also beside a deeper run. */
    assert_starts(data_of(d.data, "in_rms, attention, final: b"),
                  "\n0 1 nan nan nan nan\n1 3 nan nan nan nan\n2 5 nan nan nan nan\n");
    drawn_free(&d);
}

static void the_script_names_every_table(void **state) {
    (void)state;
    drawn d =
        draw_runs("loss_by_position",
                  (shape[]){{.layers = 1, .model = "m/a"}, {.layers = 1, .model = "m/b"}, {0}});
    assert_has(d.script, "from the table of: fathom depth run.h5; fathom depth run.h5\n");
    drawn_free(&d);
}

static void more_runs_than_can_be_told_apart_are_left_out(void **state) {
    (void)state;
    shape m[12] = {{0}};
    char name[11][8];
    for (size_t i = 0; i < 11; i++) {
        snprintf(name[i], sizeof name[i], "m/r%zu", i);
        m[i] = (shape){.layers = 2, .model = name[i]};
    }
    drawn d = draw_runs("magnitude_by_depth", m);
    assert_has(d.script, "'8 runs'");
    assert_notes(d.script, "Left out: 3 more tables");
    assert_lacks(d.data, "r8");
    drawn_free(&d);
}

static void blocks_are_marked_by_all_or_by_one(void **state) {
    (void)state;
    shape m[] = {{.layers = 4, .block = 2, .model = "m/a", .mode = "block"},
                 {.layers = 4, .block = 2, .model = "m/b", .mode = "block"},
                 {.layers = 4, .model = "m/c"},
                 {0}};
    drawn d = draw_runs("magnitude_by_depth", m);
    assert_int_equal(count_of(d.script, "nohead back lw 0.5 lc rgb '#bbbbbb'"), 2);
    assert_notes(d.script, "Blocks: a, b;");
    assert_lacks(d.script, "dt (1,3)\n");
    drawn_free(&d);
    m[1].block = 1;
    d = draw_runs("magnitude_by_depth", m);
    /* Both at layers 0 and 2, b alone at 1 and 3. */
    assert_int_equal(count_of(d.script, "nohead back lw 0.5 lc rgb '#bbbbbb'"), 2);
    assert_int_equal(count_of(d.script, "nohead back lw 0.5 lt 12 dt (1,3)"), 2);
    drawn_free(&d);
}

static void a_figure_of_one_table_refuses_several(void **state) {
    (void)state;
    FILE *out = table_begin("tokens.tsv", "fathom routing run.h5");
    table_section(out, "TOK", "example", "sequence, site, head, position, token, source, value",
                  "1");
    table *from = table_finish(out, "tokens.tsv");
    drawn d = draw_tables("token_sources", (const table *const[]){from, from}, 2);
    assert_int_equal(d.result, NOT_DRAWN);
    assert_has(d.st.text, "shows one table, and 2 hold its sections");
    table_free(from);
}

/* ---- Gradients ---- */

static void only_gradients_of_outputs_are_drawn(void **state) {
    (void)state;
    drawn d = draw("gradient_by_depth", &(shape){.layers = 2, .grad_tokens = 9});
    assert_starts(data_of(d.data, "out_l2: outputs: MLP"),
                  "\n0.5 2 nan nan nan nan\n1.5 4 nan nan nan nan\n");
    assert_starts(data_of(d.data, "layer_l2: parameters: whole layer"),
                  "\n0 0.5 nan nan nan nan\n1 1.5 nan nan nan nan\n");
    assert_lacks(d.data, "777");
    assert_notes(d.script, "variation 0.25, Gini 1.25, largest / smallest 2.2");
    drawn_free(&d);
}

static void parameters_of_runs_of_other_length_are_not_compared(void **state) {
    (void)state;
    shape m[] = {{.layers = 2, .model = "m/a", .grad_tokens = 9},
                 {.layers = 2, .model = "m/b", .grad_tokens = 9},
                 {0}};
    drawn d = draw_runs("gradient_by_depth", m);
    assert_has(d.data, "layer_l2: parameters: b");
    drawn_free(&d);
    m[1].grad_tokens = 10;
    d = draw_runs("gradient_by_depth", m);
    assert_lacks(d.data, "layer_l2");
    assert_notes(d.script, "No panel of layer_l2");
    drawn_free(&d);
}

/* ---- Loss ---- */

static void groups_of_positions_stand_at_their_middle(void **state) {
    (void)state;
    drawn d = draw("loss_by_position", &(shape){.layers = 2});
    assert_starts(data_of(d.data, ": all predicted tokens"),
                  "\n1 5 4 6 nan nan\n4 4 nan nan nan nan\n");
    assert_has(d.script, "set logscale x");
    drawn_free(&d);
}

/* ---- Names ---- */

static void assert_names(const char *const *model, const char *const *file, size_t count,
                         const char *const *expected) {
    run_name name[RUNS_MAX];
    runs_name(model, file, count, name);
    for (size_t i = 0; i < count; i++)
        assert_string_equal(name[i].text, expected[i]);
}

static void runs_are_called_by_what_tells_them_apart(void **state) {
    (void)state;
    static const char *const none[] = {"x", "y", "z"};
    assert_names((const char *const[]){"m/a", "m/b/", "c"}, none, 3,
                 (const char *const[]){"a", "b", "c"});
    assert_names((const char *const[]){"p/one/last", "q/one/last", "m/b"}, none, 3,
                 (const char *const[]){"p/one/last", "q/one/last", "b"});
    /* One model twice: the files; without a model the files, too. */
    assert_names((const char *const[]){"m/a", "m/a", "m/b"},
                 (const char *const[]){"t/x.txt", "u/x.txt", "v"}, 3,
                 (const char *const[]){"m/a, t/x.txt", "m/a, u/x.txt", "b"});
    assert_names((const char *const[]){"", "."}, (const char *const[]){"t/x.txt", "t/y.txt"}, 2,
                 (const char *const[]){"x.txt", "y.txt"});
    /* One file twice ends, too. */
    assert_names((const char *const[]){"a", "a"}, (const char *const[]){"t", "t"}, 2,
                 (const char *const[]){"a, t", "a, t"});
}

static void long_names_keep_both_ends(void **state) {
    (void)state;
    char text[64] = "a-model-of-many-layers-step-12000";
    cut_middle(text, 16);
    assert_string_equal(text, "a-model...-12000");
    assert_int_equal(text_chars(text), 16);
    strcpy(text, "short");
    cut_middle(text, 5);
    assert_string_equal(text, "short");
    strcpy(text, "\xe6\xa8\xa1\xe5\x9e\x8b\xe6\xa8\xa1\xe5\x9e\x8b\xe6\xa8\xa1\xe5\x9e\x8b-z");
    cut_middle(text, 9);
    assert_string_equal(text, "\xe6\xa8\xa1...-z");
    strcpy(text, "mod\xc3\xa8le-\xc3\xa9t\xc3\xa9-\xc3\xa9t\xc3\xa9");
    cut_middle(text, 9);
    assert_string_equal(text, "mod...\xc3\xa9t\xc3\xa9");
}

/* ---- gnuplot ---- */

static void gnuplot_runs_every_script_in_silence(void **state) {
    (void)state;
    static const shape shapes[] = {
        {.layers = 1, .grad_tokens = 1},
        {.layers = 1, .value = 0.3, .grad_tokens = 1},
        {.layers = 2, .value = -1, .grad_tokens = 1},
        {.layers = 2, .value = -1, .undefined = 1, .intervals = true, .grad_tokens = 1},
        {.layers = 2, .value = 1e-30, .grad_tokens = 1, .intervals = true},
        {.layers = 5, .undefined = 1, .grad_tokens = 5, .intervals = true},
        {.layers = 5, .undefined = 4, .mode = "full_mh", .grad_tokens = 5},
        {.layers = 96,
         .block = 8,
         .mode = "block_mh",
         .grad_tokens = 5,
         .intervals = true,
         .model = "mod\xc3\xa8le it's `a` @b <c> & \\"},
        {.layers = 36,
         .intervals = true,
         .grad_tokens = 5,
         .model = "a-very-long-name-of-a-model-that-cannot-fit-the-width-of-one-column-step-12000"},
    };
    enum { SHAPES = sizeof shapes / sizeof *shapes };
    const table *from[SHAPES];
    for (size_t i = 0; i < SHAPES; i++) {
        from[i] = make_table(&shapes[i]);
        if (!assert_silent(&from[i], 1)) {
            while (i + 1 > 0)
                table_free((table *)from[i--]);
            skip();
        }
    }
    assert_int_equal(assert_silent(from, SHAPES), 3);
    assert_int_equal(assert_silent(from + SHAPES - 2, 2), 3);
    for (size_t i = 0; i < SHAPES; i++)
        table_free((table *)from[i]);
}

static void scripts_use_nothing_that_is_known_to_break(void **state) {
    (void)state;
    static const char *const names[] = {"magnitude_by_depth", "gradient_by_depth",
                                        "loss_by_position"};
    for (size_t i = 0; i < 3; i++) {
        drawn d = draw(names[i], &(shape){.layers = 4, .block = 2, .grad_tokens = 4});
        assert_lacks(d.script, "datafile missing");
        assert_lacks(d.script, "set macros");
        assert_lacks(d.script, "set encoding");
        assert_lacks(d.script, "inf");
        drawn_free(&d);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(magnitudes_are_those_of_the_table),
        cmocka_unit_test(without_intervals_there_are_no_bars),
        cmocka_unit_test(an_undefined_number_is_a_gap),
        cmocka_unit_test(full_modes_have_no_running_sum),
        cmocka_unit_test(nothing_but_undefined_numbers_is_not_drawn),
        cmocka_unit_test(zeros_have_no_place_on_a_log_axis),
        cmocka_unit_test(marks_of_a_narrow_log_axis_have_room),
        cmocka_unit_test(every_run_has_its_look_and_its_own_depth),
        cmocka_unit_test(the_script_names_every_table),
        cmocka_unit_test(more_runs_than_can_be_told_apart_are_left_out),
        cmocka_unit_test(blocks_are_marked_by_all_or_by_one),
        cmocka_unit_test(a_figure_of_one_table_refuses_several),
        cmocka_unit_test(only_gradients_of_outputs_are_drawn),
        cmocka_unit_test(parameters_of_runs_of_other_length_are_not_compared),
        cmocka_unit_test(groups_of_positions_stand_at_their_middle),
        cmocka_unit_test(runs_are_called_by_what_tells_them_apart),
        cmocka_unit_test(long_names_keep_both_ends),
        cmocka_unit_test(gnuplot_runs_every_script_in_silence),
        cmocka_unit_test(scripts_use_nothing_that_is_known_to_break),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
