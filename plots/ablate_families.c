/* What editing each family of sources costs, by kind of site and depth third. The class of an
 * effect shows without its colour: effects are filled cells, none is a number in brackets, and
 * undecided ones have a question mark. */
#include "plots/cells.h"
#include "plots/figure.h"
#include "plots/runs.h"
#include "plots/scatter.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROWS_PAGE = 24,
    COLUMNS_MAX = 12,
    NAME_CHARS = 10,
    LEFT = 60,
    RIGHT = SHEET_WIDTH - 6,
    ROW = 19,
    HEAD = 26, /* over the cells: two lines */
};

typedef enum effect { EFFECT, NONE, UNDECIDED } effect;

typedef struct cell {
    size_t row, column;
    double delta;
    effect class;
} cell;

typedef struct families {
    size_t rows, columns, cells;
    const char **row;            /* [rows] sources, point into the table */
    const char *at[COLUMNS_MAX]; /* kinds of site */
    const char *third[COLUMNS_MAX];
    cell *cell; /* [cells] */
    const char *edit;
    double low, high;
} families;

static void families_clear(families *f) {
    free(f->row);
    free(f->cell);
}

static size_t row_of(families *f, const char *sources) {
    size_t i = 0;
    while (i < f->rows && strcmp(f->row[i], sources) != 0)
        i++;
    if (i == f->rows)
        f->row[f->rows++] = sources;
    return i;
}

/* COLUMNS_MAX: no more room. */
static size_t column_of(families *f, const char *at, const char *third) {
    size_t i = 0;
    while (i < f->columns && (strcmp(f->at[i], at) != 0 || strcmp(f->third[i], third) != 0))
        i++;
    if (i < f->columns || i == COLUMNS_MAX)
        return i;
    f->at[i] = at;
    f->third[i] = third;
    return f->columns++;
}

/* Attention by thirds, MLP by thirds, final, all, others as they come: a family that no site of a
 * group has would else move that group behind. */
static int rank_of(const families *f, size_t column) {
    static const char *const order[] = {"attn", "mlp", "final", "all"};
    for (int k = 0; k < 4; k++)
        if (strcmp(f->at[column], order[k]) == 0)
            return 16 * k + (f->third[column][0] & 15);
    return 64;
}

static void sort_columns(families *f) {
    size_t place[COLUMNS_MAX];
    families from = *f;
    for (size_t i = 0; i < f->columns; i++) {
        place[i] = 0;
        for (size_t k = 0; k < f->columns; k++)
            place[i] += rank_of(&from, k) < rank_of(&from, i) ||
                        (rank_of(&from, k) == rank_of(&from, i) && k < i);
        f->at[place[i]] = from.at[i];
        f->third[place[i]] = from.third[i];
    }
    for (size_t k = 0; k < f->cells; k++)
        f->cell[k].column = place[f->cell[k].column];
}

static int read_class(const table *from, const table_section_view *section, size_t row, int column,
                      effect *class, status *st) {
    static const char *const names[] = {"effect", "none", "undecided"};
    for (int k = 0; k < 3; k++)
        if (strcmp(table_cell(section, row, column), names[k]) == 0) {
            *class = (effect)k;
            return DONE;
        }
    return cells_fail(from, section, row, column, "effect, none or undecided", st);
}

static int read_cells(const table *from, families *f, status *st) {
    static const char *const names[] = {"sources", "at",   "third", "delta_loss",
                                        "class",   "edit", NULL};
    const table_section_view *section = table_find(from, "ABL");
    int column[6];
    if (cells_find(from, section, names, column, st) ||
        !(f->row = mem_array(section->rows + 1, sizeof *f->row, "rows", st)) ||
        !(f->cell = mem_array(section->rows + 1, sizeof *f->cell, "cells", st)))
        return FAILED;
    for (size_t row = 0; row < section->rows; row++) {
        cell *next = &f->cell[f->cells];
        next->row = row_of(f, table_cell(section, row, column[0]));
        next->column =
            column_of(f, table_cell(section, row, column[1]), table_cell(section, row, column[2]));
        if (next->column == COLUMNS_MAX)
            return cells_fail(from, section, row, column[1], "at most 12 groups of sites", st);
        if (cells_real(from, section, row, column[3], &next->delta, st) ||
            read_class(from, section, row, column[4], &next->class, st))
            return FAILED;
        f->edit = table_cell(section, row, column[5]);
        if (isnan(next->delta))
            continue;
        f->low = fmin(f->low, next->delta);
        f->high = fmax(f->high, next->delta);
        f->cells++;
    }
    sort_columns(f);
    return DONE;
}

static double column_width(const families *f) {
    return fmin(60, (double)(RIGHT - LEFT) / (double)f->columns);
}

/* Over the columns: the kind of site once, and the thirds. */
static void put_heads(const families *f, const sheet *s, double top) {
    double width = column_width(f);
    for (size_t i = 0; i < f->columns; i++) {
        char name[96];
        size_t same = i;
        double x = LEFT + ((double)i + 0.5) * width;
        while (same + 1 < f->columns && strcmp(f->at[same + 1], f->at[i]) == 0)
            same++;
        if (strcmp(f->third[i], "-") != 0)
            sheet_label(s, x, top - 6,
                        f->third[i][0] == '0'   ? "first"
                        : f->third[i][0] == '1' ? "middle"
                        : f->third[i][0] == '2' ? "last"
                                                : f->third[i],
                        FONT_TICK, "center");
        if (i > 0 && strcmp(f->at[i - 1], f->at[i]) == 0)
            continue;
        double span = (double)(same - i + 1) * width;
        const char *at = strcmp(f->at[i], "attn") == 0  ? "attention sites"
                         : strcmp(f->at[i], "mlp") == 0 ? "MLP sites"
                                                        : f->at[i];
        if (f->columns > 1 && (double)strlen(at) * 5.2 > span)
            at = f->at[i];
        clean_text(name, sizeof name, at, strlen(at));
        cut_middle(name, f->columns == 1 ? 36 : (size_t)fmax(5, span / 5.2));
        bool bare = strcmp(f->third[i], "-") == 0;
        if (f->columns == 1)
            sheet_label(s, LEFT, top - (bare ? 6 : 19), name, FONT_TICK, "");
        else
            sheet_label(s, LEFT + (double)i * width + span / 2, top - (bare ? 6 : 19), name,
                        FONT_TICK, "center");
    }
}

/* "12.3", "1.23", "0.012": what fits a cell. */
static void number_text(const cell *at, char *text, size_t size) {
    double v = at->delta, most = fabs(v);
    char digits[32];
    snprintf(digits, sizeof digits, "%.*f",
             most >= 9.995    ? 1
             : most >= 0.0995 ? 2
                              : 3,
             most < 0.0005 ? 0 : v);
    snprintf(text, size,
             at->class == NONE        ? "(%s)"
             : at->class == UNDECIDED ? "%s?"
                                      : "%s",
             digits);
}

static void put_cell(const families *f, const sheet *s, const cell *at, double x, double y,
                     const signed_axis *axis, size_t object) {
    double width = column_width(f);
    char text[40], extra[64];
    number_text(at, text, sizeof text);
    double position = signed_axis_at(axis, at->delta);
    double most = fmax(-axis->low, axis->high);
    bool dark = at->class == EFFECT && fabs(position) > 0.55 * most;
    if (at->class == EFFECT)
        fprintf(s->script,
                "set object %zu rectangle from screen X(%g), Y(%g) to screen X(%g), Y(%g) "
                "fc palette cb %.4f fs solid border lc rgb '#888888' lw 0.4\n",
                object, x + 0.7, y + ROW - 0.7, x + width - 0.7, y + 0.7, position);
    else
        fprintf(s->script,
                "set object %zu rectangle from screen X(%g), Y(%g) to screen X(%g), Y(%g) "
                "fs empty border lc rgb '#bbbbbb' lw 0.4\n",
                object, x + 0.7, y + ROW - 0.7, x + width - 0.7, y + 0.7);
    snprintf(extra, sizeof extra, "center front tc rgb '%s'",
             dark                  ? "#ffffff"
             : at->class == EFFECT ? "#000000"
                                   : "#555555");
    sheet_label(s, x + width / 2, y + ROW / 2.0, text, width < 34 ? FONT_SMALL : FONT_NOTE, extra);
}

static void put_hatch(const families *f, const sheet *s, double x, double y, size_t object) {
    fprintf(s->script,
            "set object %zu rectangle from screen X(%g), Y(%g) to screen X(%g), Y(%g) fc rgb "
            "'#aaaaaa' fs pattern 4 noborder\n",
            object, x + 0.7, y + ROW - 0.7, x + column_width(f) - 0.7, y + 0.7);
}

static void put_page(const families *f, sheet *s, size_t first, size_t end, double top,
                     const signed_axis *axis) {
    size_t object = 1;
    for (size_t row = first; row < end; row++) {
        char name[96];
        double y = top + (double)(row - first) * ROW;
        const char *sources = strcmp(f->row[row], "-") == 0 ? "all sources" : f->row[row];
        clean_text(name, sizeof name, sources, strlen(sources));
        cut_middle(name, NAME_CHARS);
        sheet_label(s, LEFT - 5, y + ROW / 2.0, name, FONT_TICK, "right");
        for (size_t column = 0; column < f->columns; column++) {
            double x = LEFT + (double)column * column_width(f);
            bool found = false;
            for (size_t k = 0; k < f->cells && !found; k++) {
                found = f->cell[k].row == row && f->cell[k].column == column;
                if (found)
                    put_cell(f, s, &f->cell[k], x, y, axis, object++);
            }
            if (!found)
                put_hatch(f, s, x, y, object++);
        }
    }
}

static void put_data(const families *f, sheet *s) {
    static const char *const names[] = {"effect", "none", "undecided"};
    sheet_data(s, "%s; columns: row, column, delta_loss in nats/token; # class", f->edit);
    for (size_t k = 0; k < f->cells; k++) {
        const cell *at = &f->cell[k];
        fprintf(s->data, "%zu %zu ", at->row, at->column);
        put_number(s->data, at->delta, ' ');
        fprintf(s->data, "# %s\n", names[at->class]);
    }
    if (!f->cells)
        fputs("nan nan nan\n", s->data);
}

static void put_notes(const table *from, const families *f, char *notes, size_t size) {
    size_t count[3] = {0};
    bool hatched = f->cells < f->rows * f->columns;
    double equiv = strtod(cells_run(from, "equiv"), NULL);
    for (size_t k = 0; k < f->cells; k++)
        count[f->cell[k].class]++;
    size_t used = (size_t)snprintf(
        notes, size,
        "Filled: an effect (%zu). In brackets: none, the whole interval within %g nats of 0 (%zu). "
        "With ?: undecided (%zu).%s",
        count[EFFECT], equiv > 0 ? equiv : 0.002, count[NONE], count[UNDECIDED],
        hatched ? " Hatched: no such source there, or undefined." : "");
    if (strcmp(cells_run(from, "frozen"), "1") == 0 && used < size)
        snprintf(notes + used, size - used, " Frozen: later sites keep their weights.");
}

int draw_ablate_families(const table *from, sheet *s, status *st) {
    families f = {0};
    char title[RUN_NAME + 64], subtitle[256], notes[1024], edit[64];
    int result = read_cells(from, &f, st);
    if (!result && !f.cells) {
        status_fail(st, "none of its numbers is defined");
        result = NOT_DRAWN;
    }
    if (result) {
        families_clear(&f);
        return result;
    }
    /* Equal lengths to both sides of 0, since the map of colours has its middle there. */
    double most = fmax(fabs(f.low), fabs(f.high));
    const signed_axis axis = signed_axis_of(-most, most);
    const colour_scale scale = {.name = "delta_loss, nats/token"};
    size_t pages = (f.rows + ROWS_PAGE - 1) / ROWS_PAGE, rows = (f.rows + pages - 1) / pages;
    double top = SHEET_TITLES + HEAD, bar = top + (double)rows * ROW + 6;
    s->diverging = true;
    s->pages = pages;
    put_data(&f, s);
    put_notes(from, &f, notes, sizeof notes);
    run_title(from, title, sizeof title);
    clean_text(edit, sizeof edit, f.edit, strlen(f.edit));
    s->height = (int)(bar + COLOUR_BAR + 8 + (double)(sheet_notes(s, 0, notes, false) * NOTE_LINE));
    for (size_t page = 0; page < pages; page++) {
        size_t first = page * rows, end = first + rows < f.rows ? first + rows : f.rows;
        sheet_page(s, page);
        if (pages > 1)
            snprintf(subtitle, sizeof subtitle, "loss with the edit %s, sources %zu-%zu of %zu",
                     edit, first + 1, end, f.rows);
        else
            snprintf(subtitle, sizeof subtitle, "loss with the edit %s, by depth third", edit);
        sheet_titles(s, title, subtitle);
        put_heads(&f, s, top);
        put_page(&f, s, first, end, top, &axis);
        signed_axis_put(s->script, &axis, "cb", true);
        fputs("set cbtics offset 0, 0.5\n", s->script);
        sheet_colour_bar(s, &scale, 6, bar);
        sheet_notes(s, bar + COLOUR_BAR + 8, notes, true);
        sheet_panel(s, LEFT, RIGHT, top, top + (double)rows * ROW);
        fputs("unset border; unset xtics; unset ytics; set xrange [0 : 1]; set yrange [0 : 1]\n"
              "plot '+' using (NaN):(NaN):(0) with points palette\n"
              "unset object\n",
              s->script);
        sheet_clear_labels(s);
        sheet_page_end(s);
    }
    families_clear(&f);
    return DONE;
}
