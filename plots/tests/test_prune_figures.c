/* Figures of `prune` and `ablate` tables. */
#include "plots/tests/drawn.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- Tables ---- */

typedef struct shape {
    const char *model, *unit;
    size_t layers;
    bool undefined;            /* every number of ONE, SCO and CUR */
    bool no_search, no_lowest; /* CUR has the whole model alone; strategies without `lowest` */
    bool gain;                 /* without L1 the loss falls */
    bool no_intervals;
    bool wrong_kind;
    double chance; /* of AGR; 0: 0.7 */
} shape;

static const char *const kinds[] = {"layer", "attn", "mlp"};

static double delta_of(const shape *m, size_t kind, size_t layer) {
    if (m->undefined)
        return NAN;
    if (m->gain && layer == 1)
        return -0.25;
    return (double)(layer + 1) / (double)(kind + 1);
}

static void put_units(FILE *out, const shape *m) {
    table_section(out, "ONE", "each unit removed by itself",
                  "kind, layer, unit, delta_loss, low, high, parameters, parameters_share, flops, "
                  "flops_share",
                  "nats");
    for (size_t kind = 0; kind < 3; kind++)
        for (size_t l = 0; l < m->layers; l++) {
            const double v = delta_of(m, kind, l), width = m->no_intervals ? NAN : 0.125;
            fprintf(out, "ONE\t%s\t%zu\tL%zu", m->wrong_kind ? "head" : kinds[kind], l, l);
            table_real(out, v);
            table_real(out, v - width);
            table_real(out, v + width);
            fputs("\t10\t0.1\t20\t0.2\n", out);
        }
    table_section(out, "SCO", "scores", "kind, layer, unit, score, value, low, high", "1");
    for (size_t kind = 0; kind < 3; kind++)
        for (size_t l = 0; l < m->layers; l++) {
            static const char *const scores[] = {"mix_change", "mean_mass"};
            for (size_t s = kind ? 1 : 0; s < 2; s++) {
                fprintf(out, "SCO\t%s\t%zu\tL%zu\t%s", kinds[kind], l, l, scores[s]);
                table_real(out, m->undefined ? NAN : (double)(10 * s + l) / 16);
                fputs("\tnan\tnan\n", out);
            }
        }
    table_section(out, "AGR", "agreement",
                  "kind, score, units, spearman, low, high, kendall, kendall_low, kendall_high, "
                  "not_significant_below",
                  "1");
    const double chance = m->chance > 0 ? m->chance : 0.7;
    fprintf(out, "AGR\tlayer\tmix_change\t%zu\t0.75\t0.5\t1\t0.5\t0.25\t0.75\t%g\n", m->layers,
            chance);
    fprintf(out, "AGR\tattn\tmean_mass\t%zu\t-0.5\t-1\t0\t0.5\t0.25\t0.75\t%g\n", m->layers,
            chance);
}

static void put_point(FILE *out, const shape *m, const char *strategy, size_t seed, size_t removed,
                      double delta) {
    fprintf(out, "CUR\t%s\t%zu\t%zu", strategy, seed, removed);
    const double v = m->undefined ? NAN : delta;
    const double cell[] = {v, v - 0.125, v + 0.125, 1 + v, 1, 2, 3, v, 0.1, 0.1};
    for (size_t i = 0; i < sizeof cell / sizeof *cell; i++)
        table_real(out, cell[i]);
    fputs("\tL0\n", out);
}

static void put_search(FILE *out, const shape *m) {
    table_section(out, "CUR", "sets",
                  "strategy, seed, removed, delta_loss, low, high, loss, loss_low, loss_high, "
                  "perplexity, selection_delta_loss, parameters_share, flops_share, units",
                  "nats");
    fprintf(out, "CUR\tnone\t0\t0\t%s\t0\t0\t1\t1\t1\t1\t0\t0\t0\t-\n", m->undefined ? "nan" : "0");
    for (size_t n = 1; !m->no_search && n <= m->layers / 2; n++) {
        put_point(out, m, "greedy", 0, n, (double)n);
        if (!m->no_lowest) {
            put_point(out, m, "lowest:mix_change", 0, n, 2 * (double)n);
            put_point(out, m, "lowest:mean_mass", 0, n, 3 * (double)n);
        }
        put_point(out, m, "random", 0, n, 4 * (double)n);
        put_point(out, m, "random", 1, n, 6 * (double)n);
    }
}

static table *make_pruning(const shape *m, const char *name) {
    FILE *out = table_begin(name, "fathom prune m");
    table_section(out, "RUN", "run", "key, value", "1");
    table_key_text(out, "RUN", "model_path", m->model ? m->model : "models/tiny");
    table_key_text(out, "RUN", "residual_mode", "full");
    table_key_size(out, "RUN", "layers", m->layers);
    table_key_text(out, "RUN", "unit", m->unit ? m->unit : "layer");
    table_key_text(out, "RUN", "removal", "drop_source");
    table_key_real(out, "RUN", "evaluation_loss", 1.25);
    table_key_real(out, "RUN", "level", 0.95);
    put_units(out, m);
    put_search(out, m);
    return table_finish(out, name);
}

typedef struct ablated {
    const char *model;
    size_t layers, sources; /* sources 0: families */
    bool undefined, wrong_class;
} ablated;

static void put_edit(FILE *out, const ablated *m, const char *sources, const char *at,
                     const char *third, double delta, const char *class) {
    fprintf(out, "ABL\tmask\t%s\t%s\t%s\t3\t0", sources, at, third);
    table_real(out, m->undefined ? NAN : delta);
    fprintf(out, "\t0\t0\t0\t0\t0\t0.5\t1\t0.1\t0.1\t%s\n", class);
}

static void put_edits(FILE *out, const ablated *m) {
    table_section(out, "ABL", "interventions",
                  "edit, sources, at, third, sites, skipped, delta_loss, low, high, kl, kl_low, "
                  "kl_high, mass_moved, lift, p, q, class",
                  "nats");
    put_edit(out, m, "emb", "attn", "0", 0.5, m->wrong_class ? "some" : "effect");
    put_edit(out, m, "emb", "mlp", "2", -0.001, "none");
    put_edit(out, m, "newest", "attn", "1", 0.01, "undecided");
    put_edit(out, m, "newest", "final", "-", 2, "effect");
    for (size_t i = 0; i < m->sources; i++) {
        char name[24];
        snprintf(name, sizeof name, "B%zu", i);
        put_edit(out, m, name, "attn", "0", 0.25, "effect");
    }
}

static void put_route(FILE *out, const ablated *m, const char *what, const char *name, double mass,
                      double lift, double delta, const char *class) {
    fprintf(out, "IMP\t%s\t%s\t3\t0", what, name);
    const double v = m->undefined ? NAN : delta;
    const double cell[] = {mass,       mass,  mass,  mass / 2, mass / 2, mass / 2,
                           -mass,      -mass, -mass, lift,     v,        v - 0.0625,
                           v + 0.0625, 0,     0,     0,        0.1,      0.1};
    for (size_t i = 0; i < sizeof cell / sizeof *cell; i++)
        table_real(out, cell[i]);
    fprintf(out, "\t%s\n", class);
}

static void put_importance(FILE *out, const ablated *m) {
    table_section(out, "IMP", "mass against importance",
                  "what, name, sites, skipped, mass, mass_low, mass_high, contribution, "
                  "contribution_low, contribution_high, signed_contribution, "
                  "signed_contribution_low, signed_contribution_high, lift, delta_loss, low, high, "
                  "kl, kl_low, kl_high, p, q, class",
                  "1");
    put_route(out, m, "source", "emb", 0.5, 1.5, 1, "effect");
    put_route(out, m, "source", "L0.attn", 0.25, 1.25, 0.001, "none");
    put_route(out, m, "source", "L0.mlp", 0.125, 0.5, 0.001, "none");
    put_route(out, m, "family", "attn", 0.75, 1.25, 0.01, "undecided");
    table_section(out, "AGR", "agreement",
                  "over, score, items, spearman, spearman_low, spearman_high, kendall, "
                  "kendall_low, kendall_high, threshold",
                  "1");
    fputs("AGR\tsources\tmass\t3\t0.75\t0.5\t1.25\t0.5\t0.25\t0.75\t0.7\n"
          "AGR\tfamilies\tmass\t1\t0.25\tnan\tnan\t0.5\tnan\tnan\t0.7\n",
          out);
}

static void put_compromise(FILE *out, const ablated *m) {
    table_section(out, "HMN", "head means",
                  "at, sites, delta_loss, low, high, kl, kl_low, kl_high, mix_change, "
                  "mix_change_low, mix_change_high, p, q, class",
                  "nats");
    for (size_t t = 1; t <= 2 * m->layers; t++) {
        if (t == 2 * m->layers)
            fputs("HMN\tfinal", out);
        else
            fprintf(out, "HMN\tL%zu.%s", t / 2, t % 2 ? "mlp" : "attn");
        fprintf(out, "\t1\t%zu\t0.5\t%zu\t0.25\t0\t0.5\t0.125\tnan\tnan\t0.1\t0.1\teffect\n", t,
                t + 1);
    }
    fputs("HMN\tall\t9\t2\t1\t3\t0.5\t0.25\t0.75\tnan\tnan\tnan\t0.1\t0.1\teffect\n", out);
    table_section(out, "CMP", "slices",
                  "site, k, queries, raw, raw_low, raw_high, floor, floor_low, floor_high, "
                  "matched, matched_low, matched_high",
                  "nats");
    for (size_t l = 0; l < m->layers; l++)
        for (size_t k = 2; k <= 4; k += 2)
            /* Trained is above the band of equal variance in the first layer alone. */
            fprintf(out,
                    "CMP\tL%zu.mlp\t%zu\ttrained\t0.5\tnan\tnan\t0.25\tnan\tnan\t%g\tnan\tnan\n"
                    "CMP\tL%zu.mlp\t%zu\tnorm\t0.5\t0.25\t0.75\t0.25\t0\t1\t0.5\t0.25\t0.75\n"
                    "CMP\tL%zu.mlp\t%zu\tvar\t0.5\t0.25\t0.75\t0.25\t0\t1\t1\t0.75\t1.25\n",
                    l, k, l ? 1.125 : 1.5, l, k, l, k);
    table_section(out, "SPL", "split", "k, logits, delta_loss, low, high, kl, kl_low, kl_high",
                  "nats");
    fputs("SPL\t2\tas_is\t0.5\t0.25\t0.75\t1\t1\t1\nSPL\t2\ttimes_k\t0.25\t0\t0.5\t1\t1\t1\n", out);
}

static table *make_ablation(const ablated *m) {
    FILE *out = table_begin("ablate.tsv", "fathom ablate m");
    table_section(out, "RUN", "run", "key, value", "1");
    table_key_text(out, "RUN", "model_path", m->model ? m->model : "models/tiny");
    table_key_size(out, "RUN", "layers", m->layers);
    table_key_real(out, "RUN", "equiv", 0.002);
    put_edits(out, m);
    put_importance(out, m);
    put_compromise(out, m);
    return table_finish(out, "ablate.tsv");
}

static drawn draw_pruning(const char *name, const shape *m) {
    table *from = make_pruning(m, "prune.tsv");
    drawn d = draw_one(name, from);
    table_free(from);
    return d;
}

static drawn draw_ablation(const char *name, const ablated *m) {
    table *from = make_ablation(m);
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

/* ---- Units ---- */

static void a_unit_is_a_box_or_a_mark(void **state) {
    (void)state;
    drawn d = draw_pruning("prune_units", &(shape){.layers = 3});
    assert_data(&d, "delta_loss, nats/token: whole layer",
                "\n0 1 0.875 1.125 nan nan\n1 2 1.875 2.125 nan nan\n2 3 ");
    assert_data(&d, "delta_loss, nats/token: attention", "\n-0.2 0.5 0.375 0.625 nan nan\n0.8 1 ");
    assert_data(&d, "the same, log scale: MLP", "\n0.2 0.333333 ");
    assert_data(&d, "mix_change: whole layer", "\n0 0 nan nan nan nan\n1 0.0625 ");
    assert_lacks(d.data, "mix_change: MLP");
    assert_has(d.script, "using 1:2:(0.84) with boxes");
    assert_has(d.script, "set logscale y");
    assert_notes(d.script, "Bars: 95% intervals over sequences.");
    assert_lacks(d.script, "has no place");
    drawn_free(&d);
}

static void what_the_log_axis_lacks_is_said(void **state) {
    (void)state;
    drawn d = draw_pruning("prune_units", &(shape){.layers = 3, .gain = true});
    assert_notes(d.script, "What is 0 or less has no place on a logarithmic axis.");
    drawn_free(&d);
    d = draw_pruning("prune_units", &(shape){.layers = 3, .no_intervals = true});
    assert_notes(d.script, "No intervals: the table holds none");
    drawn_free(&d);
}

static void runs_are_overlaid(void **state) {
    (void)state;
    const table *from[] = {
        make_pruning(&(shape){.layers = 3, .model = "m/a"}, "a.tsv"),
        make_pruning(&(shape){.layers = 5, .model = "m/b", .unit = "mlp"}, "b.tsv")};
    drawn d = draw_tables("prune_units", from, 2);
    assert_data(&d, "delta_loss, MLP: b", "\n0 0.333333 ");
    assert_has(d.script, "set xrange [-0.5 : 5 - 0.5]");
    drawn_free(&d);
    d = draw_tables("prune_curves", from, 2);
    assert_data(&d, "greedy: a", "\n0 0 0 0 nan nan\n1 1 0.875 1.125 nan nan\n");
    assert_data(&d, "random: b", "\n0 0 0 0 nan nan\n1 5 nan nan nan nan\n2 10 ");
    assert_lacks(d.data, "lowest");
    assert_has(d.script, "'units removed'"); /* layers of one, MLPs of the other */
    drawn_free(&d);
    for (size_t i = 0; i < 2; i++)
        table_free((table *)from[i]);
}

/* ---- Sets ---- */

static void curves_begin_at_the_whole_model(void **state) {
    (void)state;
    drawn d = draw_pruning("prune_curves", &(shape){.layers = 5});
    assert_data(&d, "delta_loss: greedy", "\n0 0 0 0 nan nan\n1 1 0.875 1.125 nan nan\n2 2 ");
    assert_data(&d, "delta_loss: random",
                "\n0 0 0 0 nan nan\n1 5 nan nan 4 6\n2 10 nan nan 8 12\n");
    assert_lacks(d.data, "mix_change");
    assert_has(d.script, "'layers removed'");
    assert_notes(d.script, "the loss is 1.25 nats/token");
    assert_notes(d.script, "random: the mean of 2 orders, and the band from the best to the worst");
    drawn_free(&d);
    d = draw_pruning("prune_curves_scores", &(shape){.layers = 5});
    assert_data(&d, "delta_loss: mix_change", "\n0 0 0 0 nan nan\n1 2 ");
    assert_data(&d, "delta_loss: greedy", "\n0 0 0 0 nan nan\n1 1 ");
    assert_lacks(d.data, "random");
    drawn_free(&d);
}

static void what_was_not_searched_is_not_drawn(void **state) {
    (void)state;
    drawn d = draw_pruning("prune_curves", &(shape){.layers = 5, .no_search = true});
    assert_int_equal(d.result, NOT_DRAWN);
    assert_has(d.st.text, "no set was removed");
    d = draw_pruning("prune_curves_scores", &(shape){.layers = 5, .no_lowest = true});
    assert_int_equal(d.result, NOT_DRAWN);
    assert_has(d.st.text, "lowest score was not made");
    static const char *const names[] = {"prune_units", "prune_scores", "prune_curves"};
    for (size_t i = 0; i < 3; i++) {
        d = draw_pruning(names[i], &(shape){.layers = 5, .undefined = true});
        assert_int_equal(d.result, NOT_DRAWN);
        assert_has(d.st.text, "none of its numbers is defined");
    }
    d = draw_pruning("prune_units", &(shape){.layers = 1, .wrong_kind = true});
    assert_int_equal(d.result, FAILED);
    assert_has(d.st.text, "section ONE, row 1: kind is 'head', expected layer, attn or mlp");
}

/* ---- Scores ---- */

static void scores_stand_against_the_loss(void **state) {
    (void)state;
    drawn d = draw_pruning("prune_scores", &(shape){.layers = 3});
    assert_data(&d, "mix_change, whole layer", "\n0 1 0.875 1.125 3\n0.0625 2 1.875 2.125 3\n");
    assert_data(&d, "mean_mass, MLP", "\n0.625 0.333333 0.208333 0.458333 2\n");
    assert_has(d.script, "'layer 0.75*'");
    assert_has(d.script, "'attn -0.50'");
    /* log10(v / unit) far from 0: the last mark is 1 of a unit of 1 / 500. */
    assert_has(d.script, "S(v) = asinh(v / 0.004) / log(10)");
    assert_has(d.script, "'1' 2.6990");
    assert_notes(d.script, "*: at or above 0.70, which 3 units without agreement reach");
    drawn_free(&d);
    d = draw_pruning("prune_scores", &(shape){.layers = 3, .chance = 0.8});
    assert_has(d.script, "'layer 0.75'");
    drawn_free(&d);
}

/* ---- Ablation ---- */

static void classes_differ_without_colour(void **state) {
    (void)state;
    drawn d = draw_ablation("ablate_families", &(ablated){.layers = 3});
    assert_data(&d, "index 0: mask",
                "\n0 0 0.5 # effect\n0 2 -0.001 # none\n1 1 0.01 # undecided\n");
    assert_has(d.script, "set label '0.50' at");
    assert_has(d.script, "set label '(-0.001)' at");
    assert_has(d.script, "set label '0.010?' at");
    assert_int_equal(count_of(d.script, "fc palette cb"), 2);
    assert_int_equal(count_of(d.script, "fs pattern 4"), 4); /* not in the table */
    assert_notes(d.script, "Filled: an effect (2).");
    assert_notes(d.script, "undecided (1). Hatched: no such source there");
    assert_has(d.script, "'attention sites'");
    drawn_free(&d);
    d = draw_ablation("ablate_families", &(ablated){.layers = 3, .sources = 60});
    assert_int_equal(d.pages, 3);
    assert_has(d.script, "sources 22-42 of 62");
    drawn_free(&d);
}

static void mass_stands_against_importance(void **state) {
    (void)state;
    drawn d = draw_ablation("ablate_importance", &(ablated){.layers = 3});
    assert_data(&d, "mass, effect", "\n0.5 1 0.9375 1.0625 3\n");
    assert_data(&d, "contribution, none", "\n0.125 0.001 ");
    assert_data(&d, "signed_contribution, families, family: undecided", "\n-0.75 0.01 ");
    assert_has(d.script, "'rank agreement 0.75* [0.50, 1.00]'"); /* no correlation is above 1 */
    assert_has(d.script, "'rank agreement 0.25'");
    assert_notes(d.script, "More than uniform weight and no effect: L0.attn.");
    drawn_free(&d);
}

static void sharing_the_heads_by_depth(void **state) {
    (void)state;
    drawn d = draw_ablation("ablate_heads", &(ablated){.layers = 2});
    assert_data(&d, "delta_loss: MLP", "\n0.5 1 0.5 2 nan nan\n1.5 3 0.5 4 nan nan\n");
    assert_data(&d, "mix_change: final", "\n2 0.125 nan nan nan nan\n");
    assert_notes(d.script, "All sites at once: 2.000 [1.000, 3.000].");
    drawn_free(&d);
    d = draw_ablation("ablate_slices", &(ablated){.layers = 2});
    assert_data(&d, "k = 2 slices: trained", "\n0.5 0.5 nan nan nan nan\n1.5 0.5 ");
    assert_data(&d, "k = 4 slices: random, equal variance", "\n0.5 0.5 nan nan 0.25 0.75\n");
    assert_notes(d.script, "1 of 2 sites for k = 2, 1 of 2 sites for k = 4");
    assert_notes(d.script, "k = 2 as they are +0.50, k = 2 times k +0.25 nats/token");
    drawn_free(&d);
}

static void what_is_no_ablation_is_refused(void **state) {
    (void)state;
    static const char *const names[] = {"ablate_families", "ablate_importance"};
    for (size_t i = 0; i < 2; i++) {
        drawn d = draw_ablation(names[i], &(ablated){.layers = 2, .undefined = true});
        assert_int_equal(d.result, NOT_DRAWN);
        assert_has(d.st.text, "none of its numbers is defined");
    }
    drawn d = draw_ablation("ablate_families", &(ablated){.layers = 2, .wrong_class = true});
    assert_int_equal(d.result, FAILED);
    assert_has(d.st.text,
               "section ABL, row 1: class is 'some', expected effect, none or undecided");
}

/* ---- gnuplot ---- */

static void gnuplot_runs_every_script_in_silence(void **state) {
    (void)state;
    static const shape shapes[] = {{.layers = 2},
                                   {.layers = 1, .no_search = true},
                                   {.layers = 36, .gain = true, .no_intervals = true},
                                   {.layers = 96, .model = "m/it's `a` caf\xc3\xa9 \xe6\xa8\xa1"}};
    static const ablated edits[] = {{.layers = 1},
                                    {.layers = 5, .sources = 40},
                                    {.layers = 36},
                                    {.layers = 96, .model = "m/\xe6\xa8\xa1 @b_{c}"}};
    const table *both[2];
    size_t count = 0;
    for (size_t i = 0; i < 4; i++) {
        both[i % 2] = make_pruning(&shapes[i], i % 2 ? "a.tsv" : "b.tsv");
        const table *from = both[i % 2];
        count += assert_silent(&from, 1);
        if (i % 2) {
            count += assert_silent(both, 2);
            table_free((table *)both[0]);
            table_free((table *)both[1]);
        }
        from = make_ablation(&edits[i]);
        count += assert_silent(&from, 1);
        table_free((table *)from);
    }
    if (!count)
        skip();
    /* Each table has four figures, one without a search two; each pair two. */
    assert_int_equal(count, 4 + 2 + 4 + 4 + 2 * 2 + 4 * 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_unit_is_a_box_or_a_mark),
        cmocka_unit_test(what_the_log_axis_lacks_is_said),
        cmocka_unit_test(runs_are_overlaid),
        cmocka_unit_test(curves_begin_at_the_whole_model),
        cmocka_unit_test(what_was_not_searched_is_not_drawn),
        cmocka_unit_test(scores_stand_against_the_loss),
        cmocka_unit_test(classes_differ_without_colour),
        cmocka_unit_test(mass_stands_against_importance),
        cmocka_unit_test(sharing_the_heads_by_depth),
        cmocka_unit_test(what_is_no_ablation_is_refused),
        cmocka_unit_test(gnuplot_runs_every_script_in_silence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
