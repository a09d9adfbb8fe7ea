#include "plots/depth_view.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int depth_rows(const table *from, const char *code, const char *quantity,
               const char *const *columns, depth_row **rows, size_t *count, status *st) {
    static const char *const keys[] = {"quantity", "point", NULL};
    const table_section_view *section = table_find(from, code);
    size_t numbers = 0;
    int key[2], column[DEPTH_NUMBERS];
    *rows = NULL;
    *count = 0;
    while (columns[numbers])
        numbers++;
    if (!section)
        return DONE;
    if (cells_find(from, section, keys, key, st) || cells_find(from, section, columns, column, st))
        return FAILED;
    *rows = mem_array(section->rows, sizeof **rows, "rows", st);
    if (!*rows)
        return FAILED;
    for (size_t row = 0; row < section->rows; row++) {
        depth_row *next = &(*rows)[*count];
        if (strcmp(table_cell(section, row, key[0]), quantity) != 0)
            continue;
        if (cells_place(from, section, row, key[1], &next->at, st) ||
            cells_reals(from, section, row, column, numbers, next->number, st)) {
            free(*rows);
            *rows = NULL;
            return FAILED;
        }
        ++*count;
    }
    return DONE;
}

/* What RUN says, or where it does not the deepest layer of the sections that have places. */
static int count_layers(const table *from, size_t *layers, status *st) {
    static const char *const codes[] = {"MAG", "GRD"};
    double said = strtod(cells_run(from, "layers"), NULL);
    *layers = said >= 1 && said < 65536 ? (size_t)said : 1;
    for (size_t i = 0; i < 2; i++) {
        const table_section_view *section = table_find(from, codes[i]);
        int column = section ? table_column(section, "point") : -1;
        for (size_t row = 0; column >= 0 && row < section->rows; row++) {
            depth_place at;
            if (strcmp(table_cell(section, row, column), "emb") == 0)
                continue;
            if (cells_place(from, section, row, column, &at, st))
                return FAILED;
            if (at.kind != PLACE_FINAL && at.layer >= *layers)
                *layers = at.layer + 1;
        }
    }
    return DONE;
}

/* ---- Blocks ---- */

/* Whether a block of the table opens at a layer, from the rows of RST. */
static int opens(const table *from, size_t layer, bool *found, status *st) {
    const table_section_view *section = table_find(from, "RST");
    int column;
    *found = false;
    if (!section || section->rows == 0)
        return DONE;
    if (cells_find(from, section, (const char *const[]){"first", NULL}, &column, st))
        return FAILED;
    *found = layer == 0; /* where the first one opens no row can say */
    for (size_t row = 0; row < section->rows; row++) {
        depth_place at;
        if (cells_place(from, section, row, column, &at, st))
            return FAILED;
        *found = *found || at.layer == layer;
    }
    return DONE;
}

static bool has_blocks(const table *from) {
    const table_section_view *section = table_find(from, "RST");
    return section && section->rows > 0;
}

static void note_blocks(curve_sheet *c, const table *const *from, size_t tables) {
    size_t blocks = 0;
    char names[512] = "";
    for (size_t i = 0; i < tables; i++) {
        run_name name = c->look[i];
        size_t used = strlen(names);
        if (!c->runs || !has_blocks(from[i]))
            continue;
        cut_middle(name.text, 24);
        snprintf(names + used, sizeof names - used, "%s%.100s", blocks++ ? ", " : "", name.text);
    }
    if (blocks && blocks < tables)
        curves_note(c, "Blocks: %s; a dotted line is of one run alone.", names);
}

int depth_mark_blocks(curve_sheet *c, const table *const *from, size_t tables, status *st) {
    note_blocks(c, from, tables);
    for (size_t layer = 0; layer < c->layers; layer++) {
        size_t blocks = 0, here = 0;
        bool open[RUNS_MAX];
        for (size_t i = 0; i < tables; i++) {
            if (opens(from[i], layer, &open[i], st))
                return FAILED;
            blocks += has_blocks(from[i]);
            here += open[i];
        }
        if (here && here == blocks && curves_mark(c, (double)layer, -1, st))
            return FAILED;
        for (size_t i = 0; here < blocks && i < tables; i++)
            if (open[i] && curves_mark(c, (double)layer, c->runs ? (int)i : -1, st))
                return FAILED;
    }
    return DONE;
}

/* ---- What figures begin with ---- */

int depth_sheet_init(curve_sheet *c, const table *const *from, size_t *tables, const char *what,
                     status *st) {
    static const char *const kinds[] = {"attention", "MLP", "final"};
    size_t given = *tables;
    *tables = given < RUNS_MAX ? given : RUNS_MAX;
    *c = (curve_sheet){.x_label = "layer (its MLP half a layer later)", .runs = given > 1};
    if (runs_name_tables(from, *tables, c->look, st))
        return FAILED;
    for (size_t i = 0; i < *tables; i++) {
        size_t layers;
        if (count_layers(from[i], &layers, st))
            return FAILED;
        c->own_layers[i] = layers;
        c->layers = layers > c->layers ? layers : c->layers;
    }
    c->looks = *tables;
    if (c->runs) {
        snprintf(c->title, sizeof c->title, "%s", what);
        c->title[0] = (char)(c->title[0] - (c->title[0] >= 'a' && c->title[0] <= 'z' ? 32 : 0));
        snprintf(c->subtitle, sizeof c->subtitle, "%zu runs", *tables);
    } else {
        run_title(from[0], c->title, sizeof c->title);
        snprintf(c->subtitle, sizeof c->subtitle, "%s", what);
        c->looks = PLACE_KINDS;
        for (size_t i = 0; i < PLACE_KINDS; i++)
            snprintf(c->look[i].text, sizeof c->look[i].text, "%s", kinds[i]);
    }
    if (given > *tables)
        curves_note(c, "Left out: %zu more tables, since one figure tells %d runs apart.",
                    given - *tables, RUNS_MAX);
    return DONE;
}

bool depth_replaces(const table *from) {
    return strncmp(cells_run(from, "residual_mode"), "full", 4) == 0;
}

void depth_note_intervals(curve_sheet *c, const table *from) {
    double level = strtod(cells_run(from, "level"), NULL);
    for (size_t i = 0; i < c->panels; i++)
        for (size_t look = 0; look < c->looks; look++)
            for (size_t k = 0; k < c->panel[i]->curve[look].points; k++)
                if (!isnan(c->panel[i]->curve[look].point[k].low)) {
                    if (level > 0 && level < 1)
                        curves_note(c, "Bars: %.4g%% intervals over sequences.", 100 * level);
                    else
                        curves_note(c, "Bars: intervals over sequences.");
                    return;
                }
    curves_note(c, "No intervals: the table holds none (fewer than 8 sequences?).");
}
