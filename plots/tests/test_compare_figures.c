/* Figures of `compare` tables, and of one sequence of a `routing` table token by token. */
#include "plots/runs.h"
#include "plots/tests/drawn.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- Comparisons ---- */

typedef struct shape {
    size_t runs, layers; /* runs beside the reference */
    bool unpaired, routes, replaces;
} shape;

static void put_place(FILE *out, size_t t, size_t layers) {
    if (t == 2 * layers)
        table_text(out, "final");
    else
        fprintf(out, "\tL%zu.%s", t / 2, t % 2 ? "mlp" : "attn");
}

/* reference, value, difference, low, high of a run. */
static void put_difference(FILE *out, const shape *m, double difference) {
    double shown = m->unpaired ? NAN : difference;
    const double cell[] = {1, 1 + difference, shown, shown - 0.25, shown + 0.25};
    for (size_t i = 0; i < 5; i++)
        table_real(out, cell[i]);
    table_end(out);
}

static void put_runs(FILE *out, const shape *m) {
    table_section(out, "RUN", "runs",
                  "run, path, model_path, model_sha256, tokens_sha256, residual_mode, "
                  "routing_heads, sites, sources, sequences, complete",
                  "1");
    for (size_t i = 0; i <= m->runs; i++)
        fprintf(out, "RUN\t%zu\trun%zu.h5\tmodels/m%zu\t\t\t%s\t8\t9\t9\t16\t1\n", i, i, i,
                m->replaces ? "full" : "block");
    table_section(out, "LOS", "loss", "run, reference, value, difference, low, high", "nats/token");
    for (size_t i = 1; i <= m->runs; i++) {
        fprintf(out, "LOS\t%zu", i);
        put_difference(out, m, -0.5 * (double)i);
    }
}

static void put_depth(FILE *out, const shape *m) {
    static const char *const rows[] = {"in_rms", "out_rms", "state_rms"};
    table_section(out, "DEP", "sizes", "run, row, point, reference, value, ln_ratio, low, high",
                  "1");
    for (size_t q = 0; q < 3; q++)
        for (size_t i = 1; i <= m->runs; i++)
            for (size_t t = 0; t <= 2 * m->layers - (q > 0); t++) {
                fprintf(out, "DEP\t%zu\t%s", i, rows[q]);
                put_place(out, t, m->layers);
                put_difference(out, m, (double)(q + i));
            }
}

/* entropy_norm differs by a tenth of the place; head_divergence is 0 in both runs at the first. */
static void put_routing(FILE *out, const shape *m) {
    static const char *const groups[] = {"attn", "mlp", "all"};
    table_section(out, "CST", "statistics",
                  "run, statistic, site, head, reference, value, difference, low, high", "1");
    for (size_t i = 1; m->routes && i <= m->runs; i++)
        for (size_t t = 0; t <= 2 * m->layers; t++) {
            fprintf(out, "CST\t%zu\tentropy_norm", i);
            put_place(out, t, m->layers);
            fputs("\tmean", out);
            put_difference(out, m, 0.125 * (double)t);
            fprintf(out, "CST\t%zu\tentropy_norm", i);
            put_place(out, t, m->layers);
            fputs("\t0", out);
            put_difference(out, m, 777);
            fprintf(out, "CST\t%zu\thead_divergence", i);
            put_place(out, t, m->layers);
            fputs(t == 0 ? "\tall\t0\t0\t0\t0\t0\n" : "\tall\t1\t1.5\t0.5\t0.25\t0.75\n", out);
        }
    table_section(out, "CAV", "means",
                  "run, statistic, sites, of, reference, value, difference, low, high", "1");
    for (size_t i = 1; m->routes && i <= m->runs; i++)
        for (size_t k = 0; k < 3; k++) {
            fprintf(out, "CAV\t%zu\tentropy_norm\t%s\t9", i, groups[k]);
            put_difference(out, m, -0.5 - (double)k);
        }
    table_section(out, "RJS", "run_js",
                  "run, site, head, value, low, high, split_half_reference, split_half", "nats");
    for (size_t t = 1; m->routes && t <= 2 * m->layers; t++) {
        fputs("RJS\t1", out);
        put_place(out, t, m->layers);
        fputs("\tmean\t0.5\t0.25\t0.75\t0.125\t0.0625\n", out);
    }
}

static table *make_comparison(const shape *m) {
    FILE *out = table_begin("compare.tsv", "fathom compare a.h5 b.h5");
    put_runs(out, m);
    put_depth(out, m);
    put_routing(out, m);
    return table_finish(out, "compare.tsv");
}

static drawn draw(const char *name, const shape *m) {
    table *from = make_comparison(m);
    drawn d = draw_one(name, from);
    table_free(from);
    return d;
}

static void assert_data(const drawn *d, const char *name, const char *start) {
    const char *at = d->data ? strstr(d->data, name) : NULL;
    if (!at)
        fail_msg("no data set '%s': %s", name, d->data ? d->data : d->st.text);
    at = strchr(at, '\n');
    if (strncmp(at, start, strlen(start)) != 0)
        fail_msg("%s: expected '%s', got '%.200s'", name, start, at);
}

static void differences_are_those_of_the_table(void **state) {
    (void)state;
    const shape m = {.runs = 2, .layers = 2, .routes = true};
    drawn d = draw("compare_summary", &m);
    assert_data(&d, "loss, predicted tokens", "\n0 -0.5 -0.75 -0.25\n1 -1 -1.25 -0.75\n");
    assert_data(&d, "entropy_norm, attn", "\n-0.24 -0.5 -0.75 -0.25\n0.76 -0.5");
    assert_has(d.script, "'against m0'");
    assert_has(d.script, "'m1' at screen");
    drawn_free(&d);
    d = draw("compare_magnitude", &m);
    assert_data(&d, "in_rms: m1", "\n0 1 0.75 1.25 nan nan\n1 1 0.75 1.25 nan nan\n2 1 ");
    assert_data(&d, "state_rms: m2", "\n0 4 3.75 4.25 nan nan\n1 4 ");
    drawn_free(&d);
    d = draw("compare_routing", &m);
    assert_data(&d, "entropy_norm: m1", "\n0 0 -0.25 0.25 nan nan\n1 0.25 0 0.5 nan nan\n2 0.5 ");
    assert_lacks(d.data, "777");
    drawn_free(&d);
}

static void sites_without_a_choice_are_left_out(void **state) {
    (void)state;
    drawn d = draw("compare_routing", &(shape){.runs = 1, .layers = 2, .routes = true});
    assert_data(&d, "head_divergence: m1", "\n1 0.5 0.25 0.75 nan nan\n");
    assert_notes(d.script, "Nothing to compare in lookback_norm, token_information.");
    drawn_free(&d);
}

/* The band goes to the larger of the two. */
static void run_js_stands_beside_its_split_halves(void **state) {
    (void)state;
    drawn d = draw("compare_routing", &(shape){.runs = 2, .layers = 2, .routes = true});
    assert_data(&d, "run_js: m1", "\n1 0.5 0.25 0.75 0 0.125\n");
    assert_lacks(d.data, "run_js: m2");
    assert_int_equal(count_of(d.script, "with filledcurves"), 2);
    drawn_free(&d);
}

static void what_cannot_be_compared_is_not_drawn(void **state) {
    (void)state;
    drawn d = draw("compare_routing", &(shape){.runs = 1, .layers = 2});
    assert_int_equal(d.result, NOT_DRAWN);
    assert_has(d.st.text, "does not route over depth");
    static const char *const names[] = {"compare_summary", "compare_magnitude"};
    for (size_t i = 0; i < 2; i++) {
        d = draw(names[i], &(shape){.runs = 1, .layers = 2, .unpaired = true});
        assert_int_equal(d.result, NOT_DRAWN);
        assert_has(d.st.text, "saw different tokens");
    }
    d = draw("compare_magnitude", &(shape){.runs = 1, .layers = 2, .replaces = true});
    assert_lacks(d.data, "state_rms");
    assert_notes(d.script, "Nothing to compare in state_rms.");
    drawn_free(&d);
}

static void runs_past_the_last_look_are_said(void **state) {
    (void)state;
    const shape m = {.runs = 10, .layers = 2, .routes = true};
    static const char *const names[] = {"compare_summary", "compare_magnitude", "compare_routing"};
    for (size_t i = 0; i < 3; i++) {
        drawn d = draw(names[i], &m);
        assert_notes(d.script, "Left out: the last 3 runs");
        assert_has(d.script, "'m7'");
        assert_lacks(d.script, "'m8'");
        drawn_free(&d);
    }
}

/* ---- Tokens ---- */

typedef struct text {
    size_t tokens, sources;
    const char *piece; /* of all of them */
    const char *model;
    bool undefined;  /* the first weight */
    bool two_heads;  /* the last row is of another head */
    bool two_orders; /* the last row names another source */
} text;

static table *make_tokens(const text *m) {
    FILE *out = table_begin("tokens.tsv", "fathom routing run.h5");
    table_section(out, "RUN", "run", "key, value", "1");
    table_key_text(out, "RUN", "model_path", m->model ? m->model : "m/tiny");
    table_section(out, "TOK", "example", "sequence, site, head, position, token, source, value",
                  "1");
    for (size_t t = 0; t < m->tokens; t++)
        for (size_t s = 0; s < m->sources; s++) {
            bool last = t + 1 == m->tokens && s + 1 == m->sources;
            fprintf(out, "TOK\t3\tL1.mlp\t%s\t%zu\t%s\t%c%zu", last && m->two_heads ? "1" : "mean",
                    20 + t, m->piece ? m->piece : "a", last && m->two_orders ? 'X' : 'B', s);
            table_real(out, m->undefined && t + s == 0 ? NAN : (double)(s + 1) / 8);
            table_end(out);
        }
    return table_finish(out, "tokens.tsv");
}

static drawn draw_tokens(const text *m) {
    table *from = make_tokens(m);
    drawn d = draw_one("token_sources", from);
    table_free(from);
    return d;
}

static void a_token_is_a_row(void **state) {
    (void)state;
    drawn d = draw_tokens(&(text){.tokens = 3, .sources = 2});
    assert_data(&d, "tokens 20 to 22",
                "\n0 0 0.125\n1 0 0.25\n0 1 0.125\n1 1 0.25\n0 2 0.125\n1 2 0.25\n");
    assert_has(d.data, "# Sources: 0=B0 1=B1\n");
    assert_has(d.script, "'L1.mlp, mean over heads; sequence 3, tokens 20-22'");
    assert_has(d.script, "('a' 0, 'a' 1, 'a' 2)");
    assert_has(d.script, "('20' 0, '21' 1, '22' 2)");
    assert_has(d.script, "set cbrange [0 : scale_max]");
    drawn_free(&d);
}

static void texts_of_tokens_can_be_read(void **state) {
    (void)state;
    static const char *const pieces[][2] = {
        {" the", "'\" the\"'"},
        {" ", "'\" \"'"},
        {"", "'\"\"'"},
        {"\\x0a", "'\\n'"},
        {"\\x09a\\x0d", "'\\ta\\r'"},
        {"\\x1b", "'\\x1b'"},
        {"\\\\x0a", "'\\\\x0a'"},
        {"it's", "'it''s'"},
        {"caf\xc3\xa9", "'caf\xc3\xa9'"},
        {"internationalisation", "'internati...'"},
    };
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        drawn d = draw_tokens(&(text){.tokens = 1, .sources = 2, .piece = pieces[i][0]});
        char expected[64];
        snprintf(expected, sizeof expected, "(%s 0)", pieces[i][1]);
        assert_has(d.script, expected);
        drawn_free(&d);
    }
}

static void many_tokens_fill_pages(void **state) {
    (void)state;
    drawn d = draw_tokens(&(text){.tokens = 130, .sources = 2});
    assert_int_equal(d.pages, 3);
    assert_has(d.script, "tokens 20-63'");
    assert_has(d.script, "tokens 108-149'");
    assert_int_equal(count_of(d.script, "set cbrange"), 1);
    drawn_free(&d);
    d = draw_tokens(&(text){.tokens = 64, .sources = 2});
    assert_int_equal(d.pages, 1);
    drawn_free(&d);
}

static void an_undefined_weight_is_a_red_mark(void **state) {
    (void)state;
    drawn d = draw_tokens(&(text){.tokens = 2, .sources = 2, .undefined = true});
    assert_data(&d, "undefined weights", "\n0 0\n");
    assert_notes(d.script, "Red: undefined (nan).");
    drawn_free(&d);
}

static void what_is_no_example_is_refused(void **state) {
    (void)state;
    drawn d = draw_tokens(&(text){.tokens = 2, .sources = 1});
    assert_int_equal(d.result, NOT_DRAWN);
    assert_has(d.st.text, "reads one source");
    d = draw_tokens(&(text){0});
    assert_int_equal(d.result, NOT_DRAWN);
    d = draw_tokens(&(text){.tokens = 2, .sources = 2, .two_heads = true});
    assert_int_equal(d.result, FAILED);
    assert_has(d.st.text, "section TOK, row 4: head is '1', expected one sequence, site and head");
    d = draw_tokens(&(text){.tokens = 2, .sources = 2, .two_orders = true});
    assert_int_equal(d.result, FAILED);
    assert_has(d.st.text, "row 4: source is 'X1', expected the sources of the first token");
}

/* ---- gnuplot ---- */

static void gnuplot_runs_every_script_in_silence(void **state) {
    (void)state;
    static const shape shapes[] = {{.runs = 1, .layers = 1},
                                   {.runs = 1, .layers = 1, .routes = true},
                                   {.runs = 10, .layers = 96, .routes = true},
                                   {.runs = 2, .layers = 5, .routes = true, .replaces = true}};
    static const text texts[] = {{.tokens = 1, .sources = 2},
                                 {.tokens = 65, .sources = 9, .piece = " it's `a` @b_{c} \\x0a"},
                                 {.tokens = 7, .sources = 193, .undefined = true},
                                 {.tokens = 3, .sources = 5, .piece = "caf\xc3\xa9"}};
    size_t count = 0;
    for (size_t i = 0; i < 4; i++) {
        const table *from = make_comparison(&shapes[i]);
        count += assert_silent(&from, 1);
        table_free((table *)from);
        from = make_tokens(&texts[i]);
        count += assert_silent(&from, 1);
        table_free((table *)from);
    }
    if (!count)
        skip();
    assert_int_equal(count, 3 * 4 - 1 + 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(differences_are_those_of_the_table),
        cmocka_unit_test(sites_without_a_choice_are_left_out),
        cmocka_unit_test(run_js_stands_beside_its_split_halves),
        cmocka_unit_test(what_cannot_be_compared_is_not_drawn),
        cmocka_unit_test(runs_past_the_last_look_are_said),
        cmocka_unit_test(a_token_is_a_row),
        cmocka_unit_test(texts_of_tokens_can_be_read),
        cmocka_unit_test(many_tokens_fill_pages),
        cmocka_unit_test(an_undefined_weight_is_a_red_mark),
        cmocka_unit_test(what_is_no_example_is_refused),
        cmocka_unit_test(gnuplot_runs_every_script_in_silence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
