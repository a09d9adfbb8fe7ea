#include "plots/cells.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A deeper model than this is no model. */
enum { LAYERS_MAX = 65536 };

int cells_find(const table *from, const table_section_view *section, const char *const *names,
               int *columns, status *st) {
    for (size_t i = 0; names[i]; i++) {
        columns[i] = table_column(section, names[i]);
        if (columns[i] < 0)
            return status_fail(st, "%s: section %s has no column '%s'", table_path(from),
                               section->code, names[i]);
    }
    return DONE;
}

int cells_fail(const table *from, const table_section_view *section, size_t row, int column,
               const char *expected, status *st) {
    return status_fail(st, "%s: section %s, row %zu: %s is '%s', expected %s", table_path(from),
                       section->code, row + 1, section->column[column],
                       table_cell(section, row, column), expected);
}

int cells_real(const table *from, const table_section_view *section, size_t row, int column,
               double *value, status *st) {
    *value = table_number(section, row, column);
    const char *text = table_cell(section, row, column);
    if (isnan(*value) && strcmp(text, "nan") != 0 && strcmp(text, "-nan") != 0)
        return cells_fail(from, section, row, column, "a number or nan", st);
    if (isinf(*value))
        *value = NAN;
    return DONE;
}

int cells_reals(const table *from, const table_section_view *section, size_t row,
                const int *columns, size_t count, double *value, status *st) {
    for (size_t i = 0; i < count; i++)
        if (cells_real(from, section, row, columns[i], &value[i], st))
            return FAILED;
    return DONE;
}

int cells_size(const table *from, const table_section_view *section, size_t row, int column,
               size_t max, size_t *value, status *st) {
    const char *text = table_cell(section, row, column);
    char *end, expected[64];
    snprintf(expected, sizeof expected, "a whole number from 0 to %zu", max);
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || number > max)
        return cells_fail(from, section, row, column, expected, st);
    *value = (size_t)number;
    return DONE;
}

const char *cells_run(const table *from, const char *key) {
    const table_section_view *run = table_find(from, "RUN");
    int keys = run ? table_column(run, "key") : -1, values = run ? table_column(run, "value") : -1;
    for (size_t row = 0; keys >= 0 && values >= 0 && row < run->rows; row++)
        if (strcmp(table_cell(run, row, keys), key) == 0)
            return table_cell(run, row, values);
    return "";
}

int cells_place(const table *from, const table_section_view *section, size_t row, int column,
                depth_place *found, status *st) {
    static const char *const ends[] = {".attn", ".mlp"};
    const char *text = table_cell(section, row, column);
    char *end;
    *found = (depth_place){.kind = PLACE_FINAL};
    if (strcmp(text, "final") == 0)
        return DONE;
    if (text[0] == 'L' && text[1] >= '0' && text[1] <= '9') {
        errno = 0;
        unsigned long layer = strtoul(text + 1, &end, 10);
        for (int kind = PLACE_ATTN; !errno && layer < LAYERS_MAX && kind <= PLACE_MLP; kind++)
            if (strcmp(end, ends[kind]) == 0) {
                *found = (depth_place){.kind = (place_kind)kind, .layer = (size_t)layer};
                return DONE;
            }
    }
    return cells_fail(from, section, row, column, "L0.attn, L0.mlp, ..., final", st);
}

double place_depth(depth_place at, size_t layers) {
    if (at.kind == PLACE_FINAL)
        return (double)layers;
    return (double)at.layer + (at.kind == PLACE_MLP ? 0.5 : 0);
}
