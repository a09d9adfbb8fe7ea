/* Where gradients go, by depth: norms per token of sublayers' outputs, which may be compared across
 * modes, and norms of the layers' parameters. */
#include "plots/depth_view.h"
#include "plots/figure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int add_outputs(curve_sheet *c, const table *from, size_t run,
                       curve_panel *const panel[PLACE_KINDS], status *st) {
    static const char *const columns[] = {"value", "low", "high", NULL};
    depth_row *row;
    size_t count;
    if (depth_rows(from, "GRD", "out_l2", columns, &row, &count, st))
        return FAILED;
    int rc = DONE;
    for (size_t i = 0; !rc && i < count; i++) {
        const double *n = row[i].number;
        const curve_point point = {
            place_depth(row[i].at, c->own_layers[run]), n[0], n[1], n[2], NAN, NAN};
        curve_panel *to = panel[row[i].at.kind];
        if (to)
            rc = curve_add(&to->curve[c->runs ? run : (size_t)row[i].at.kind], point, st);
    }
    free(row);
    return rc;
}

static int put_outputs(curve_sheet *c, const table *const *from, size_t tables, status *st) {
    curve_panel *panel[PLACE_KINDS] = {NULL};
    static const char *const titles[] = {"out_l2, attention", "out_l2, MLP"};
    for (int kind = PLACE_ATTN; kind <= PLACE_MLP; kind++) {
        panel[kind] = kind && !c->runs
                          ? panel[PLACE_ATTN]
                          : curves_panel(c, c->runs ? titles[kind] : "out_l2: outputs", st);
        if (!panel[kind])
            return FAILED;
        panel[kind]->units = "nats / unit";
        panel[kind]->from_zero = true;
    }
    for (size_t i = 0; i < tables; i++)
        if (add_outputs(c, from[i], i, panel, st))
            return FAILED;
    return DONE;
}

/* ---- Parameters ---- */

static int add_layers(curve_sheet *c, const table *from, size_t run, curve_panel *panel,
                      status *st) {
    static const char *const names[] = {"layer", "value", NULL};
    const table_section_view *section = table_find(from, "GLY");
    int column[2];
    if (!section)
        return DONE;
    if (cells_find(from, section, names, column, st))
        return FAILED;
    for (size_t row = 0; row < section->rows; row++) {
        double number[2];
        if (cells_reals(from, section, row, column, 2, number, st))
            return FAILED;
        /* A layer's parameters are those of both sublayers. */
        const curve_point point = {number[0], number[1], NAN, NAN, NAN, NAN};
        if (!isnan(number[0]) && curve_add(&panel->curve[c->runs ? run : PLACE_FINAL], point, st))
            return FAILED;
    }
    return DONE;
}

/* Noise adds to the norms of parameters as tokens grow fewer: runs of different length are not
 * drawn beside each other. */
static bool same_tokens(const table *const *from, size_t tables) {
    for (size_t i = 1; i < tables; i++)
        if (strcmp(cells_run(from[i], "grad_tokens"), cells_run(from[0], "grad_tokens")) != 0)
            return false;
    return true;
}

static int put_layers(curve_sheet *c, const table *const *from, size_t tables, status *st) {
    if (!same_tokens(from, tables)) {
        curves_note(c, "No panel of layer_l2: runs of different numbers of tokens are not "
                       "compared by it.");
        return DONE;
    }
    curve_panel *panel = curves_panel(c, "layer_l2: parameters", st);
    if (!panel)
        return FAILED;
    panel->units = "nats / unit";
    panel->from_zero = true;
    panel->why_empty = "no section GLY";
    for (size_t i = 0; i < tables; i++)
        if (add_layers(c, from[i], i, panel, st))
            return FAILED;
    return DONE;
}

/* ---- Uniformity ---- */

/* The three measures of out_l2 over the MLPs: variation, Gini, largest / smallest. */
static int read_uniformity(const table *from, double number[3][3], bool *found, status *st) {
    static const char *const keys[] = {"quantity", "measure", NULL};
    static const char *const values[] = {"value", "low", "high", NULL};
    static const char *const measures[] = {"variation", "gini", "max_to_min"};
    const table_section_view *section = table_find(from, "GUN");
    int key[2], column[3];
    size_t seen = 0;
    *found = false;
    if (!section)
        return DONE;
    if (cells_find(from, section, keys, key, st) || cells_find(from, section, values, column, st))
        return FAILED;
    for (size_t row = 0; row < section->rows; row++)
        for (size_t m = 0; m < 3; m++) {
            if (strcmp(table_cell(section, row, key[0]), "out_l2") != 0 ||
                strcmp(table_cell(section, row, key[1]), measures[m]) != 0)
                continue;
            if (cells_reals(from, section, row, column, 3, number[m], st))
                return FAILED;
            seen |= (size_t)1 << m;
        }
    *found = seen == 7;
    return DONE;
}

static int note_uniformity(curve_sheet *c, const table *const *from, size_t tables, status *st) {
    bool any = false;
    for (size_t i = 0; i < tables; i++) {
        double n[3][3];
        bool found;
        if (read_uniformity(from[i], n, &found, st))
            return FAILED;
        if (!found)
            continue;
        if (!any)
            curves_note(c, "Inequality of out_l2 over the layers' MLPs:%s",
                        c->runs ? " variation, Gini, largest / smallest:" : "");
        any = true;
        if (c->runs) {
            run_name name = c->look[i];
            cut_middle(name.text, 40);
            curves_note(c, "\n%s  %.2f, %.2f, %.1f", name.text, n[0][0], n[1][0], n[2][0]);
        } else {
            curves_note(c, "variation %.2f, Gini %.2f, largest / smallest %.1f.", n[0][0], n[1][0],
                        n[2][0]);
        }
    }
    return DONE;
}

int draw_gradient_by_depth(const table *const *from, size_t tables, sheet *s, status *st) {
    curve_sheet c;
    int result = depth_sheet_init(&c, from, &tables, "magnitude of gradients", st);
    c.pairs = true;
    if (!result)
        result = depth_mark_blocks(&c, from, tables, st);
    if (!result)
        result = put_outputs(&c, from, tables, st);
    if (!result)
        result = put_layers(&c, from, tables, st);
    if (!result) {
        if (!c.runs)
            snprintf(c.look[PLACE_FINAL].text, sizeof c.look[PLACE_FINAL].text, "whole layer");
        curves_note(&c, "Token means of the norm of the gradient of the sequence's summed loss; "
                        "layer_l2 is of the mean loss.");
        depth_note_intervals(&c, from[0]);
        result = note_uniformity(&c, from, tables, st);
    }
    if (!result)
        result = curves_draw(&c, s, st);
    curves_clear(&c);
    return result;
}
