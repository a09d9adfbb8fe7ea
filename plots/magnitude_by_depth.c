/* How large hidden states are, by depth: what a sublayer reads, what it returns, what runs on. One
 * table: with the spread over tokens; several: their token means. */
#include "plots/depth_view.h"
#include "plots/figure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *quantity, *what;
} rows[] = {{"in_rms", "read by sublayers"}, {"out_rms", "returned"}, {"state_rms", "running sum"}};
enum { ROWS = sizeof rows / sizeof *rows, IN = 0, STATE = 2 };

enum { MEAN, LOW, HIGH, Q01, Q99 };
static const char *const columns[] = {"mean", "low", "high", "q01", "q99", NULL};

/* One table's points of a quantity: to `panel` of each kind of place (NULL: not drawn). */
static int add_table(curve_sheet *c, const table *from, size_t run, const char *quantity,
                     curve_panel *const panel[PLACE_KINDS], status *st) {
    depth_row *row;
    size_t count;
    if (depth_rows(from, "MAG", quantity, columns, &row, &count, st))
        return FAILED;
    int rc = DONE;
    for (size_t i = 0; !rc && i < count; i++) {
        const double *n = row[i].number;
        curve_point point = {
            place_depth(row[i].at, c->own_layers[run]), n[MEAN], n[LOW], n[HIGH], NAN, NAN};
        if (!c->runs) {
            point.from = n[Q01];
            point.to = n[Q99];
        }
        curve_panel *to = panel[row[i].at.kind];
        if (to)
            rc = curve_add(&to->curve[c->runs ? run : (size_t)row[i].at.kind], point, st);
    }
    free(row);
    return rc;
}

/* A panel for a quantity of one table, two of several: attention and MLP. Of states only what
 * follows the MLP. */
static int add_quantity(curve_sheet *c, const table *const *from, size_t tables, size_t which,
                        status *st) {
    curve_panel *panel[PLACE_KINDS] = {NULL};
    char title[64];
    bool state = which == STATE, any = !state;
    for (size_t i = 0; i < tables; i++)
        any = any || !depth_replaces(from[i]);
    if (!any) {
        curves_note(c, "No panel of states: full modes keep no running sum.");
        return DONE;
    }
    for (int kind = c->runs && state ? PLACE_MLP : PLACE_ATTN; kind <= PLACE_MLP; kind++) {
        static const char *const kinds[] = {"attention", "MLP"};
        if (c->runs)
            snprintf(title, sizeof title, "%s, %s%s%s", rows[which].quantity,
                     state ? "after the " : "", kinds[kind],
                     which == IN && kind == PLACE_ATTN ? ", final" : "");
        else
            snprintf(title, sizeof title, "%s: %s", rows[which].quantity, rows[which].what);
        if (!(panel[kind] = curves_panel(c, title, st)))
            return FAILED;
        panel[kind]->units = "rms";
        panel[kind]->from_zero = true;
        if (!c->runs) {
            panel[PLACE_MLP] = panel[PLACE_ATTN];
            break;
        }
    }
    panel[PLACE_FINAL] = panel[PLACE_ATTN];
    size_t without = 0;
    for (size_t i = 0; i < tables; i++) {
        if (state && depth_replaces(from[i]))
            without++;
        else if (add_table(c, from[i], i, rows[which].quantity, panel, st))
            return FAILED;
    }
    if (without)
        curves_note(c, "state_rms is without %zu full-mode run%s no running sum.", without,
                    without > 1 ? "s, which keep" : ", which keeps");
    return DONE;
}

static int note_growth(curve_sheet *c, const table *from, status *st) {
    static const char *const names[] = {"slope", "factor", "factor_low", "factor_high", "r2", NULL};
    const table_section_view *section = table_find(from, "GRW");
    int column[5], against;
    double number[2][5];
    bool found[2] = {false, false};
    if (!section)
        return DONE;
    if (cells_find(from, section, names, column, st) ||
        cells_find(from, section, (const char *const[]){"against", NULL}, &against, st))
        return FAILED;
    for (size_t row = 0; row < section->rows; row++) {
        int fit = strcmp(table_cell(section, row, against), "depth") != 0;
        found[fit] = true;
        if (cells_reals(from, section, row, column, 5, number[fit], st))
            return FAILED;
    }
    if (found[0] && found[1])
        curves_note(c,
                    "Growth: a factor of %.3f a layer (r2 %.2f), or (depth + 1) to the power of "
                    "%.2f (r2 %.2f).",
                    number[0][1], number[0][4], number[1][0], number[1][4]);
    return DONE;
}

static int note_massive(curve_sheet *c, const table *from, status *st) {
    static const char *const names[] = {"tokens", "largest", NULL};
    const table_section_view *section = table_find(from, "MSS");
    int column[2], name;
    double tokens = 0, most = 0;
    size_t where = 0, places = 0;
    if (!section || section->rows == 0)
        return DONE;
    if (cells_find(from, section, names, column, st) ||
        cells_find(from, section, (const char *const[]){"sublayer", NULL}, &name, st))
        return FAILED;
    for (size_t row = 0; row < section->rows; row++) {
        double number[2];
        if (cells_reals(from, section, row, column, 2, number, st))
            return FAILED;
        if (number[0] > 0) {
            tokens += number[0];
            places++;
        }
        if (number[0] > most) {
            most = number[0];
            where = row;
        }
    }
    char clean[32];
    const char *text = table_cell(section, where, name);
    clean_text(clean, sizeof clean, text, strlen(text));
    if (places)
        curves_note(c,
                    "Massive activations after %zu of %zu sublayers, most often after %s (%.0f "
                    "tokens).",
                    places, section->rows, clean, most);
    else
        curves_note(c, "No massive activations (|x| > 100 and > 1000 times the token's median).");
    return DONE;
}

int draw_magnitude_by_depth(const table *const *from, size_t tables, sheet *s, status *st) {
    curve_sheet c;
    int result = depth_sheet_init(&c, from, &tables, "magnitude of hidden states", st);
    c.pairs = true;
    if (!result)
        result = depth_mark_blocks(&c, from, tables, st);
    for (size_t i = 0; !result && i < ROWS; i++)
        result = add_quantity(&c, from, tables, i, st);
    if (!result) {
        curves_note(&c, "Token means of the root mean square.%s",
                    c.runs ? "" : " Bands: 1% to 99% of tokens.");
        depth_note_intervals(&c, from[0]);
        result = c.runs ? DONE : note_growth(&c, from[0], st);
    }
    if (!result && !c.runs)
        result = note_massive(&c, from[0], st);
    if (!result)
        result = curves_draw(&c, s, st);
    curves_clear(&c);
    return result;
}
