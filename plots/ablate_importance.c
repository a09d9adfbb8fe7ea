/* Mass against importance: what sites give a source beside what masking it costs. */
#include "plots/cells.h"
#include "plots/figure.h"
#include "plots/runs.h"
#include "plots/scatter.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const scores[] = {"mass", "contribution", "signed_contribution"};
enum { SCORES = 3, DELTA = 3, LOW, HIGH, LIFT, NUMBERS };
static const char *const names[] = {
    "mass", "contribution", "signed_contribution", "delta_loss", "low", "high", "lift", NULL};
static const char *const texts[] = {"what", "name", "class", NULL};
static const char *const classes[] = {"effect", "none", "undecided"};

/* Panels: each score for sources and, beside it, for families. */
enum { FAMILIES = 1, PANELS = 2 * SCORES };

/* Attention, MLP and others, and families. */
static int colour_of(const char *name, bool family) {
    const char *end = strrchr(name, '.');
    if (family)
        return 4;
    return end && strcmp(end, ".attn") == 0 ? 1 : end && strcmp(end, ".mlp") == 0 ? 2 : 3;
}

/* Names of sources of more than uniform weight and no effect, for the notes. */
typedef struct silent {
    size_t count;
    char names[160];
} silent;

static void add_silent(silent *found, const char *name) {
    size_t used = strlen(found->names);
    char clean[32];
    clean_text(clean, sizeof clean, name, strlen(name));
    if (found->count++ < 6)
        snprintf(found->names + used, sizeof found->names - used, "%s%s", used ? ", " : "", clean);
}

static int add_rows(const table *from, scatter *c, silent *found, status *st) {
    const table_section_view *section = table_find(from, "IMP");
    int column[NUMBERS], text[3];
    if (cells_find(from, section, names, column, st) || cells_find(from, section, texts, text, st))
        return FAILED;
    for (size_t row = 0; row < section->rows; row++) {
        double number[NUMBERS];
        const char *what = table_cell(section, row, text[0]);
        const char *name = table_cell(section, row, text[1]);
        bool family = strcmp(what, "family") == 0;
        size_t class = 0;
        if (!family && strcmp(what, "source") != 0)
            return cells_fail(from, section, row, text[0], "source or family", st);
        while (class < 3 && strcmp(table_cell(section, row, text[2]), classes[class]) != 0)
            class ++;
        if (class == 3)
            return cells_fail(from, section, row, text[2], "effect, none or undecided", st);
        if (cells_reals(from, section, row, column, NUMBERS, number, st))
            return FAILED;
        if (class == 1 && number[LIFT] > 1 && !family)
            add_silent(found, name);
        for (size_t k = 0; k < SCORES; k++) {
            scatter_point point = {.x = number[k],
                                   .y = number[DELTA],
                                   .low = number[LOW],
                                   .high = number[HIGH],
                                   .mark = class + (family ? 3 : 0),
                                   .colour = colour_of(name, family)};
            clean_text(point.name, sizeof point.name, name, strlen(name));
            cut_middle(point.name, 12);
            if (scatter_add(&c->panel[2 * k + family], point, st))
                return FAILED;
        }
    }
    return DONE;
}

/* "rank agreement 0.54* [0.43, 0.64]" over a panel. */
static void put_agreement(char *text, size_t size, const double number[4]) {
    int used = snprintf(text, size, "rank agreement %.2f%s", number[0],
                        fabs(number[0]) >= number[3] ? "*" : "");
    if (!isnan(number[1]) && !isnan(number[2]))
        snprintf(text + used, size - (size_t)used, " [%.2f, %.2f]", fmax(-1, number[1]),
                 fmin(1, number[2]));
}

static int add_agreement(const table *from, scatter *c, status *st) {
    static const char *const columns[] = {"over", "score", NULL};
    static const char *const values[] = {"spearman", "spearman_low", "spearman_high", "threshold",
                                         NULL};
    const table_section_view *section = table_find(from, "AGR");
    int text[2], value[4];
    if (!section)
        return DONE;
    if (cells_find(from, section, columns, text, st) ||
        cells_find(from, section, values, value, st))
        return FAILED;
    for (size_t row = 0; row < section->rows; row++) {
        bool families = strcmp(table_cell(section, row, text[0]), "families") == 0;
        double number[4];
        if (cells_reals(from, section, row, value, 4, number, st))
            return FAILED;
        for (size_t k = 0; k < SCORES; k++) {
            scatter_panel *panel = &c->panel[2 * k + families];
            if (!isnan(number[0]) && strcmp(table_cell(section, row, text[1]), scores[k]) == 0)
                put_agreement(panel->below, sizeof panel->below, number);
        }
    }
    return DONE;
}

int draw_ablate_importance(const table *from, sheet *s, status *st) {
    scatter c = {.x = "mean over the sites that have it, heads and tokens",
                 .y = "delta_loss of the mask, nats/token",
                 .columns = 2,
                 .marks = 6,
                 .mark = {{"effect", 7, 3},
                          {"none", 6, 3},
                          {"undecided", 2, 3},
                          {"family: effect", 13, 4},
                          {"family: none", 12, 4},
                          {"family: undecided", 1, 4}},
                 .panels = PANELS};
    silent found = {0};
    for (size_t k = 0; k < PANELS; k++)
        snprintf(c.panel[k].title, sizeof c.panel[k].title, "%s%s", scores[k / 2],
                 k % 2 ? ", families" : "");
    int result = add_rows(from, &c, &found, st);
    if (!result)
        result = add_agreement(from, &c, st);
    if (!result) {
        run_title(from, c.title, sizeof c.title);
        snprintf(c.subtitle, sizeof c.subtitle, "mass against importance");
        size_t used = (size_t)snprintf(
            c.notes, sizeof c.notes,
            "A point is a source (left; attention blue, MLP orange, others black) or a family of "
            "them (right), masked at every site that has it; names where there is room. Lines: "
            "intervals over sequences. Rank agreement: Spearman's; * at or above what so many "
            "points without agreement reach in 1 of 20 cases.");
        if (found.count)
            snprintf(c.notes + used, sizeof c.notes - used,
                     " More than uniform weight and no effect: %s%s.", found.names,
                     found.count > 6 ? " and others" : "");
        result = scatter_draw(&c, s, st);
    }
    scatter_clear(&c);
    return result;
}
