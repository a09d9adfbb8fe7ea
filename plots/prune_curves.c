/* The loss as more and more units are removed: of one table each way to choose them, of several
 * tables each way in a panel of its own. */
#include "plots/cells.h"
#include "plots/curves.h"
#include "plots/figure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { REMOVED_MAX = 1 << 17, STRATEGIES_MAX = 64 };

/* A point; those of several seeds are one: their mean, and the band from the least to the most. */
typedef struct removal {
    const char *strategy;
    size_t removed, seeds;
    double delta, low, high, least, most;
} removal;

static int by_number(const void *a, const void *b) {
    const removal *first = a, *second = b;
    return (first->removed > second->removed) - (first->removed < second->removed);
}

static removal *same(removal *point, size_t count, const char *strategy, size_t removed) {
    for (size_t i = 0; i < count; i++)
        if (point[i].removed == removed && strcmp(point[i].strategy, strategy) == 0)
            return &point[i];
    return NULL;
}

static void join(removal *point, double delta) {
    point->delta += (delta - point->delta) / (double)++point->seeds;
    point->least = fmin(point->least, delta);
    point->most = fmax(point->most, delta);
    point->low = point->high = NAN; /* of one set, not of the mean over seeds */
}

/* *points [*count] in order of the number removed, freed by the caller. */
static int read_points(const table *from, removal **points, size_t *count, status *st) {
    static const char *const names[] = {"strategy", "removed", "delta_loss", "low", "high", NULL};
    const table_section_view *section = table_find(from, "CUR");
    int column[5];
    *points = NULL;
    *count = 0;
    if (cells_find(from, section, names, column, st) ||
        !(*points = mem_array(section->rows + 1, sizeof **points, "points", st)))
        return FAILED;
    for (size_t row = 0; row < section->rows; row++) {
        size_t removed;
        double number[3];
        const char *strategy = table_cell(section, row, column[0]);
        if (cells_size(from, section, row, column[1], REMOVED_MAX, &removed, st) ||
            cells_reals(from, section, row, &column[2], 3, number, st)) {
            free(*points);
            *points = NULL;
            return FAILED;
        }
        removal *known = same(*points, *count, strategy, removed);
        if (known)
            join(known, number[0]);
        else
            (*points)[(*count)++] = (removal){strategy,  removed,   1,         number[0],
                                              number[1], number[2], number[0], number[0]};
    }
    qsort(*points, *count, sizeof **points, by_number);
    return DONE;
}

static bool is_lowest(const char *strategy) {
    return strncmp(strategy, "lowest", 6) == 0;
}

/* Points of one strategy, after the one of the whole model. */
static int add_curve(curve *to, const removal *points, size_t count, const char *strategy,
                     size_t *seeds, status *st) {
    for (size_t i = 0; i < count; i++) {
        const removal *at = &points[i];
        const bool whole = strcmp(at->strategy, "none") == 0;
        curve_point point = {(double)at->removed, at->delta, at->low, at->high, NAN, NAN};
        if (!whole && strcmp(at->strategy, strategy) != 0)
            continue;
        if (at->seeds > 1) {
            point.from = at->least;
            point.to = at->most;
            *seeds = at->seeds > *seeds ? at->seeds : *seeds;
        }
        if (curve_add(to, point, st))
            return FAILED;
    }
    return DONE;
}

/* Strategies in order of appearance in any of the tables, without `none`. */
static size_t list_strategies(removal *const *points, const size_t *counts, size_t tables,
                              const char **strategy) {
    size_t count = 0;
    for (size_t t = 0; t < tables; t++)
        for (size_t i = 0; i < counts[t]; i++) {
            const char *name = points[t][i].strategy;
            size_t k = 0;
            while (k < count && strcmp(strategy[k], name) != 0)
                k++;
            if (k == count && count < STRATEGIES_MAX && strcmp(name, "none") != 0)
                strategy[count++] = name;
        }
    return count;
}

static const char *unit_word(const table *from) {
    const char *unit = cells_run(from, "unit");
    return strcmp(unit, "attn") == 0    ? "attentions"
           : strcmp(unit, "mlp") == 0   ? "MLPs"
           : strcmp(unit, "layer") == 0 ? "layers"
                                        : "units";
}

static void count_removed(curve_sheet *c, const removal *points, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (points[i].removed + 1 > c->layers)
            c->layers = points[i].removed + 1;
}

static void note_points(curve_sheet *c, const table *from, size_t seeds) {
    double level = strtod(cells_run(from, "level"), NULL);
    bool bars = false;
    for (size_t i = 0; i < c->panels; i++)
        for (size_t look = 0; look < c->looks; look++)
            for (size_t k = 0; k < c->panel[i]->curve[look].points; k++)
                bars = bars || (c->panel[i]->curve[look].point[k].x > 0 &&
                                !isnan(c->panel[i]->curve[look].point[k].low));
    if (bars && level > 0 && level < 1)
        curves_note(c, "Bars: %.4g%% intervals over sequences.", 100 * level);
    else if (!bars)
        curves_note(c, "No intervals: the table holds none (fewer than 8 sequences?).");
    if (seeds)
        curves_note(c, "random: the mean of %zu orders, and the band from the best to the worst.",
                    seeds);
}

/* ---- One table ---- */

/* The strategies of one figure: the lowest of each score beside greedy, or all others. */
static int one_table(const table *from, bool lowest, sheet *s, status *st) {
    const char *strategy[STRATEGIES_MAX];
    char x_label[64];
    removal *points;
    size_t count, drawn = 0, left_out = 0, seeds = 0;
    curve_sheet c = {.runs = true, .pairs = true, .no_final = true, .x_label = x_label};
    if (read_points(from, &points, &count, st))
        return FAILED;
    snprintf(x_label, sizeof x_label, "%s removed", unit_word(from));
    run_title(from, c.title, sizeof c.title);
    snprintf(c.subtitle, sizeof c.subtitle,
             lowest ? "removed by the lowest score; evaluation text"
                    : "removed by search, order or chance; evaluation text");
    count_removed(&c, points, count);
    curve_panel *panel = curves_panel(&c, "delta_loss", st);
    int result = panel ? DONE : FAILED;
    const size_t strategies = list_strategies(&points, &count, 1, strategy);
    for (size_t k = 0; !result && k < strategies; k++) {
        bool greedy = strcmp(strategy[k], "greedy") == 0;
        drawn += is_lowest(strategy[k]);
        if (is_lowest(strategy[k]) != lowest && !(lowest && greedy))
            continue;
        if (c.looks == LOOKS_MAX) {
            left_out++;
            continue;
        }
        const char *name =
            is_lowest(strategy[k]) && strategy[k][6] == ':' ? strategy[k] + 7 : strategy[k];
        clean_text(c.look[c.looks].text, RUN_NAME, name, strlen(name));
        result = add_curve(&panel->curve[c.looks++], points, count, strategy[k], &seeds, st);
    }
    if (!result && (lowest ? !drawn : !c.looks)) {
        status_fail(st, lowest  ? "the search by lowest score was not made"
                        : drawn ? "only the search by lowest score was made"
                                : "no set was removed");
        result = NOT_DRAWN;
    }
    if (!result) {
        panel->units = "nats/token";
        panel->zero_line = true;
        curves_note(&c, "Without removal the loss is %.4g nats/token.",
                    strtod(cells_run(from, "evaluation_loss"), NULL));
        note_points(&c, from, seeds);
        if (left_out)
            curves_note(&c, "Left out: %zu more, since one figure tells %d apart.", left_out,
                        LOOKS_MAX);
        result = curves_draw(&c, s, st);
    }
    free(points);
    curves_clear(&c);
    return result;
}

int draw_prune_curves(const table *from, sheet *s, status *st) {
    return one_table(from, false, s, st);
}

int draw_prune_scores_curves(const table *from, sheet *s, status *st) {
    return one_table(from, true, s, st);
}

/* ---- Several ---- */

static int add_runs(curve_sheet *c, removal *const *points, const size_t *counts, status *st) {
    const char *strategy[STRATEGIES_MAX];
    const size_t strategies = list_strategies(points, counts, c->looks, strategy);
    size_t seeds = 0;
    for (size_t k = 0; k < strategies; k++) {
        char title[64];
        clean_text(title, sizeof title, strategy[k], strlen(strategy[k]));
        if (is_lowest(strategy[k]) || c->panels == CURVE_PANELS_MAX)
            continue; /* modes have different scores */
        curve_panel *panel = curves_panel(c, title, st);
        if (!panel)
            return FAILED;
        panel->units = "nats/token";
        panel->zero_line = true;
        for (size_t t = 0; t < c->looks; t++) {
            bool has = false;
            for (size_t i = 0; i < counts[t]; i++)
                has = has || strcmp(points[t][i].strategy, strategy[k]) == 0;
            if (has && add_curve(&panel->curve[t], points[t], counts[t], strategy[k], &seeds, st))
                return FAILED;
        }
        /* Bands of several runs would cover each other. */
        for (size_t t = 0; t < c->looks; t++)
            for (size_t i = 0; i < panel->curve[t].points; i++)
                panel->curve[t].point[i].from = panel->curve[t].point[i].to = NAN;
    }
    if (seeds)
        curves_note(c, "random: the mean of %zu orders.", seeds);
    return DONE;
}

int draw_prune_curves_runs(const table *const *from, size_t tables, sheet *s, status *st) {
    removal *points[RUNS_MAX] = {NULL};
    size_t counts[RUNS_MAX] = {0};
    char x_label[64];
    curve_sheet c = {.title = "Loss as units are removed",
                     .runs = true,
                     .pairs = true,
                     .no_final = true,
                     .x_label = x_label,
                     .looks = tables < RUNS_MAX ? tables : RUNS_MAX};
    snprintf(x_label, sizeof x_label, "%s removed", unit_word(from[0]));
    for (size_t t = 1; t < c.looks; t++)
        if (strcmp(unit_word(from[t]), unit_word(from[0])) != 0)
            snprintf(x_label, sizeof x_label, "units removed");
    snprintf(c.subtitle, sizeof c.subtitle, "delta_loss on the evaluation text, %zu runs", c.looks);
    int result = runs_name_tables(from, c.looks, c.look, st);
    for (size_t t = 0; !result && t < c.looks; t++) {
        result = read_points(from[t], &points[t], &counts[t], st);
        count_removed(&c, points[t], counts[t]);
    }
    if (!result)
        result = add_runs(&c, points, counts, st);
    if (!result && !c.panels) {
        status_fail(st, "no set was removed but by lowest score");
        result = NOT_DRAWN;
    }
    if (!result) {
        note_points(&c, from[0], 0);
        if (tables > c.looks)
            curves_note(&c, "Left out: %zu more tables, since one figure tells %d runs apart.",
                        tables - c.looks, RUNS_MAX);
        result = curves_draw(&c, s, st);
    }
    for (size_t t = 0; t < RUNS_MAX; t++)
        free(points[t]);
    curves_clear(&c);
    return result;
}
