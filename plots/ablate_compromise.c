/* What sharing one choice costs, by depth. Several heads: the loss when all take the head mean. One
 * head: how far the slices of its query disagree, beside random queries. */
#include "plots/curves.h"
#include "plots/figure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int count_layers(const table *from, const table_section_view *section, int column,
                        curve_sheet *c, status *st) {
    double said = strtod(cells_run(from, "layers"), NULL);
    c->layers = said >= 1 && said < 65536 ? (size_t)said : 1;
    for (size_t row = 0; row < section->rows; row++) {
        depth_place at;
        const char *text = table_cell(section, row, column);
        if (*text != 'L')
            continue;
        if (cells_place(from, section, row, column, &at, st))
            return FAILED;
        if (at.layer >= c->layers)
            c->layers = at.layer + 1;
    }
    return DONE;
}

/* ---- Several heads ---- */

static const struct {
    const char *title, *units, *column[3];
} panels[] = {{"delta_loss", "nats/token", {"delta_loss", "low", "high"}},
              {"kl: unedited to edited", "nats/token", {"kl", "kl_low", "kl_high"}},
              {"mix_change", "1", {"mix_change", "mix_change_low", "mix_change_high"}}};
enum { PANELS = 3 };

/* "All attention sites at once: 0.046 [0.003, 0.087]." */
static void note_together(curve_sheet *c, const char *at, const double number[3]) {
    const char *name = strcmp(at, "attn") == 0  ? "attention sites"
                       : strcmp(at, "mlp") == 0 ? "MLP sites"
                                                : "sites";
    if (isnan(number[1]))
        curves_note(c, "All %s at once: %.3f.", name, number[0]);
    else
        curves_note(c, "All %s at once: %.3f [%.3f, %.3f].", name, number[0], number[1], number[2]);
}

static int add_head_means(curve_sheet *c, const table *from, status *st) {
    static const char *const kinds[] = {"attention", "MLP", "final"};
    const table_section_view *section = table_find(from, "HMN");
    int at, column[PANELS][3];
    if (cells_find(from, section, (const char *const[]){"at", NULL}, &at, st) ||
        count_layers(from, section, at, c, st))
        return FAILED;
    snprintf(c->subtitle, sizeof c->subtitle, "every head with the head-mean weights, by site");
    c->looks = PLACE_KINDS;
    for (size_t k = 0; k < PLACE_KINDS; k++)
        snprintf(c->look[k].text, RUN_NAME, "%s", kinds[k]);
    for (size_t i = 0; i < PANELS; i++) {
        const char *const *n = panels[i].column;
        curve_panel *panel = curves_panel(c, panels[i].title, st);
        if (!panel ||
            cells_find(from, section, (const char *const[]){n[0], n[1], n[2], NULL}, column[i], st))
            return FAILED;
        panel->units = panels[i].units;
        panel->zero_line = true;
    }
    curves_note(c, "Later sites route anew. mix_change: norm of what the mix changes by, over its "
                   "norm.");
    for (size_t row = 0; row < section->rows; row++) {
        const char *text = table_cell(section, row, at);
        const bool together =
            strcmp(text, "attn") == 0 || strcmp(text, "mlp") == 0 || strcmp(text, "all") == 0;
        depth_place place;
        if (!together && cells_place(from, section, row, at, &place, st))
            return FAILED;
        for (size_t i = 0; i < PANELS; i++) {
            double n[3];
            if (cells_reals(from, section, row, column[i], 3, n, st))
                return FAILED;
            if (together && i == 0)
                note_together(c, text, n);
            if (!together &&
                curve_add(&c->panel[i]->curve[place.kind],
                          (curve_point){place_depth(place, c->layers), n[0], n[1], n[2], NAN, NAN},
                          st))
                return FAILED;
        }
    }
    return DONE;
}

/* ---- One head ---- */

enum { TRAINED, NORM, VAR, FLOOR, LOOKS, SPLITS_MAX = 6 };
static const char *const queries[] = {"trained", "norm", "var"};
enum { RAW = 0, FLOORS = 3, MATCHED = 6, NUMBERS = 9 };
static const char *const numbers[] = {"raw",          "raw_low",    "raw_high", "floor",
                                      "floor_low",    "floor_high", "matched",  "matched_low",
                                      "matched_high", NULL};

/* Index of k among the splits, made where it is new; SPLITS_MAX: no more room. */
static size_t split_of(size_t *splits, size_t *count, size_t k) {
    size_t i = 0;
    while (i < *count && splits[i] != k)
        i++;
    if (i == *count && i < SPLITS_MAX)
        splits[(*count)++] = k;
    return i;
}

static int add_row(curve_sheet *c, size_t split, double depth, size_t look, const double *n,
                   status *st) {
    curve_panel *raw = c->panel[2 * split], *matched = c->panel[2 * split + 1];
    const bool null = look != TRAINED;
    const curve_point a = {
        depth, n[RAW], NAN, NAN, null ? n[RAW + 1] : NAN, null ? n[RAW + 2] : NAN};
    const curve_point b = {
        depth, n[MATCHED], NAN, NAN, null ? n[MATCHED + 1] : NAN, null ? n[MATCHED + 2] : NAN};
    if (curve_add(&raw->curve[look], a, st) || curve_add(&matched->curve[look], b, st))
        return FAILED;
    return null ? DONE
                : curve_add(&raw->curve[FLOOR], (curve_point){depth, n[FLOORS], NAN, NAN, NAN, NAN},
                            st);
}

static int panels_of(curve_sheet *c, size_t split, size_t k, status *st) {
    while (c->panels < 2 * split + 2) {
        char title[64];
        snprintf(title, sizeof title, "k = %zu slices", k);
        curve_panel *panel = curves_panel(c, title, st);
        if (!panel)
            return FAILED;
        panel->units = "nats";
        panel->from_zero = true;
    }
    return DONE;
}

/* At how many sites the trained slices disagree more than every random query of equal variance. */
static void note_claims(curve_sheet *c, const size_t *splits, size_t count) {
    char text[256] = "";
    for (size_t i = 0; i < count; i++) {
        const curve *trained = &c->panel[2 * i + 1]->curve[TRAINED];
        const curve *var = &c->panel[2 * i + 1]->curve[VAR];
        size_t above = 0, compared = 0, used = strlen(text);
        for (size_t a = 0; a < trained->points; a++)
            for (size_t b = 0; b < var->points; b++) {
                if (fabs(trained->point[a].x - var->point[b].x) > 0.01 || isnan(var->point[b].to))
                    continue;
                compared++;
                above += trained->point[a].value > var->point[b].to;
            }
        snprintf(text + used, sizeof text - used, "%s%zu of %zu sites for k = %zu", i ? ", " : "",
                 above, compared, splits[i]);
    }
    curves_note(c,
                "Disagreement is claimed only where trained `matched` lies above the band of "
                "equal variance: %s.",
                text);
}

static int note_split_loss(curve_sheet *c, const table *from, status *st) {
    static const char *const names[] = {"delta_loss", "low", "high", NULL};
    const table_section_view *section = table_find(from, "SPL");
    int column[3], text[2];
    if (!section || !section->rows)
        return DONE;
    if (cells_find(from, section, names, column, st) ||
        cells_find(from, section, (const char *const[]){"k", "logits", NULL}, text, st))
        return FAILED;
    char said[512] = "";
    for (size_t row = 0; row < section->rows; row++) {
        double n[3];
        size_t used = strlen(said), k;
        const char *how = table_cell(section, row, text[1]);
        if (cells_reals(from, section, row, column, 3, n, st) ||
            cells_size(from, section, row, text[0], 65536, &k, st))
            return FAILED;
        snprintf(said + used, sizeof said - used, "%sk = %zu %s %+.2f", used ? ", " : "", k,
                 strcmp(how, "as_is") == 0     ? "as they are"
                 : strcmp(how, "times_k") == 0 ? "times k"
                                               : "",
                 n[0]);
    }
    curves_note(c, "Loss when each slice's logits choose for their own channels: %s nats/token.",
                said);
    return DONE;
}

static int add_slices(curve_sheet *c, const table *from, status *st) {
    static const char *const looks[] = {"trained", "random, equal norm", "random, equal variance",
                                        "floor: slices agree"};
    const table_section_view *section = table_find(from, "CMP");
    int text[3], column[NUMBERS];
    size_t splits[SPLITS_MAX], count = 0;
    if (cells_find(from, section, (const char *const[]){"site", "k", "queries", NULL}, text, st) ||
        cells_find(from, section, numbers, column, st) ||
        count_layers(from, section, text[0], c, st))
        return FAILED;
    snprintf(c->subtitle, sizeof c->subtitle, "disagreement of the slices of one head's query");
    c->looks = LOOKS;
    c->shared_rows = true;
    c->column[0] = "raw, and floor";
    c->column[1] = "matched";
    for (size_t k = 0; k < LOOKS; k++)
        snprintf(c->look[k].text, RUN_NAME, "%s", looks[k]);
    for (size_t row = 0; row < section->rows; row++) {
        depth_place place;
        double n[NUMBERS];
        size_t k, look = 0;
        if (cells_place(from, section, row, text[0], &place, st) ||
            cells_size(from, section, row, text[1], 65536, &k, st) ||
            cells_reals(from, section, row, column, NUMBERS, n, st))
            return FAILED;
        while (look < 3 && strcmp(table_cell(section, row, text[2]), queries[look]) != 0)
            look++;
        if (look == 3)
            return cells_fail(from, section, row, text[2], "trained, norm or var", st);
        const size_t split = split_of(splits, &count, k);
        if (split == SPLITS_MAX)
            return cells_fail(from, section, row, text[1], "at most 6 numbers of slices", st);
        if (panels_of(c, split, k, st) ||
            add_row(c, split, place_depth(place, c->layers), look, n, st))
            return FAILED;
    }
    if (count)
        note_claims(c, splits, count);
    return note_split_loss(c, from, st);
}

static int draw(const table *from, int (*add)(curve_sheet *, const table *, status *), sheet *s,
                status *st) {
    curve_sheet c = {.x_label = "layer (its MLP half a layer later)"};
    run_title(from, c.title, sizeof c.title);
    int result = add(&c, from, st);
    if (!result && !c.panels) {
        status_fail(st, "it has no site with a choice");
        result = NOT_DRAWN;
    }
    if (!result)
        result = curves_draw(&c, s, st);
    curves_clear(&c);
    return result;
}

int draw_ablate_heads(const table *from, sheet *s, status *st) {
    return draw(from, add_head_means, s, st);
}

int draw_ablate_slices(const table *from, sheet *s, status *st) {
    return draw(from, add_slices, s, st);
}
