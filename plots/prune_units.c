/* What the model loses without each layer, attention or MLP, and the cheap scores of the same; of
 * several tables the losses alone, overlaid. */
#include "plots/curves.h"
#include "plots/figure.h"
#include "plots/prune_view.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int add_units(curve_panel *panel, const prune_unit *units, size_t count, const char *score,
                     status *st) {
    for (size_t i = 0; i < count; i++) {
        const prune_unit *unit = &units[i];
        static const double shift[PRUNE_KINDS] = {0, -0.2, 0.2}; /* side by side on the box */
        if (score && strcmp(unit->score, score) != 0)
            continue;
        if (curve_add(&panel->curve[unit->kind],
                      (curve_point){(double)unit->layer + shift[unit->kind], unit->value, unit->low,
                                    unit->high, NAN, NAN},
                      st))
            return FAILED;
    }
    return DONE;
}

static void note_losses(curve_sheet *c, const table *from) {
    double level = strtod(cells_run(from, "level"), NULL);
    bool bars = false, gain = false;
    for (size_t i = 0; i < c->panels; i++)
        for (size_t look = 0; look < c->looks; look++)
            for (size_t k = 0; k < c->panel[i]->curve[look].points; k++) {
                const curve_point *at = &c->panel[i]->curve[look].point[k];
                bars = bars || !isnan(at->low);
                gain = gain || (at->value <= 0 && (c->pairs || c->panel[i]->logarithmic));
            }
    if (bars && level > 0 && level < 1)
        curves_note(c, "Bars: %.4g%% intervals over sequences.", 100 * level);
    else if (!bars)
        curves_note(c, "No intervals: the table holds none (fewer than 8 sequences?).");
    if (gain)
        curves_note(c, "What is 0 or less has no place on a logarithmic axis.");
}

static void note_removal(curve_sheet *c, const table *from) {
    if (strcmp(cells_run(from, "removal"), "zero_output") == 0)
        curves_note(c, "Removed sublayers return zeros.");
    else
        curves_note(c, "Removed sublayers are no source.");
}

/* ---- One table ---- */

static int add_scores(curve_sheet *c, const table *from, status *st) {
    const char *score[CURVE_PANELS_MAX];
    prune_unit *units;
    size_t count;
    if (prune_units_read(from, "SCO", &units, &count, st))
        return FAILED;
    const size_t most = CURVE_PANELS_MAX - 2;
    const size_t scores = prune_scores_of(units, count, score, most);
    int rc = DONE;
    for (size_t k = 0; !rc && k < scores; k++) {
        char title[64];
        clean_text(title, sizeof title - 4, score[k], strlen(score[k]));
        if (strncmp(score[k], "angular", 7) == 0)
            strcat(title, ", pi");
        curve_panel *panel = curves_panel(c, title, st);
        rc = panel ? add_units(panel, units, count, score[k], st) : FAILED;
        if (panel)
            panel->zero_line = true;
    }
    free(units);
    return rc;
}

static int one_table(curve_sheet *c, const table *from, status *st) {
    prune_unit *units;
    size_t count;
    if (prune_units_read(from, "ONE", &units, &count, st))
        return FAILED;
    run_title(from, c->title, sizeof c->title);
    snprintf(c->subtitle, sizeof c->subtitle, "loss without each unit, and cheap scores");
    c->layers = prune_layers(from, units, count);
    c->boxes = true;
    c->looks = PRUNE_KINDS;
    for (size_t k = 0; k < PRUNE_KINDS; k++)
        snprintf(c->look[k].text, sizeof c->look[k].text, "%s", prune_kind_name[k]);
    int rc = DONE;
    for (int logarithmic = 0; !rc && logarithmic < 2; logarithmic++) {
        curve_panel *panel =
            curves_panel(c, logarithmic ? "the same, log scale" : "delta_loss, nats/token", st);
        rc = panel ? add_units(panel, units, count, NULL, st) : FAILED;
        if (panel) {
            panel->zero_line = true;
            panel->logarithmic = logarithmic;
        }
    }
    free(units);
    return rc ? rc : add_scores(c, from, st);
}

int draw_prune_units(const table *from, sheet *s, status *st) {
    curve_sheet c = {.x_label = "layer", .grid = true, .no_final = true};
    int result = one_table(&c, from, st);
    if (!result) {
        curves_note(&c, "Each unit is removed by itself.");
        note_removal(&c, from);
        note_losses(&c, from);
        result = curves_draw(&c, s, st);
    }
    curves_clear(&c);
    return result;
}

/* ---- Several ---- */

static int add_run(curve_sheet *c, const table *from, size_t run, status *st) {
    prune_unit *units;
    size_t count;
    if (prune_units_read(from, "ONE", &units, &count, st))
        return FAILED;
    size_t layers = prune_layers(from, units, count);
    c->layers = layers > c->layers ? layers : c->layers;
    int rc = DONE;
    for (size_t i = 0; !rc && i < count; i++)
        rc = curve_add(&c->panel[units[i].kind]->curve[run],
                       (curve_point){(double)units[i].layer, units[i].value, units[i].low,
                                     units[i].high, NAN, NAN},
                       st);
    free(units);
    return rc;
}

int draw_prune_units_runs(const table *const *from, size_t tables, sheet *s, status *st) {
    curve_sheet c = {.x_label = "layer",
                     .title = "Loss without each unit",
                     .runs = true,
                     .pairs = true,
                     .no_final = true,
                     .looks = tables < RUNS_MAX ? tables : RUNS_MAX};
    snprintf(c.subtitle, sizeof c.subtitle, "%zu runs", c.looks);
    int result = runs_name_tables(from, c.looks, c.look, st);
    for (size_t k = 0; !result && k < PRUNE_KINDS; k++) {
        char title[64];
        snprintf(title, sizeof title, "delta_loss, %s", prune_kind_name[k]);
        curve_panel *panel = curves_panel(&c, title, st);
        result = panel ? DONE : FAILED;
        if (panel) {
            panel->units = "nats/token";
            panel->zero_line = true;
        }
    }
    for (size_t i = 0; !result && i < c.looks; i++)
        result = add_run(&c, from[i], i, st);
    if (!result) {
        curves_note(&c, "Each unit is removed by itself, within each model.");
        note_losses(&c, from[0]);
        if (tables > c.looks)
            curves_note(&c, "Left out: %zu more tables, since one figure tells %d runs apart.",
                        tables - c.looks, RUNS_MAX);
        result = curves_draw(&c, s, st);
    }
    curves_clear(&c);
    return result;
}
