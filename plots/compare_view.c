#include "plots/compare_view.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int compare_view_init(compare_view *view, const table *from, status *st) {
    static const char *const names[] = {"run", "path", "model_path", "residual_mode", NULL};
    const table_section_view *section = table_find(from, "RUN");
    const char *model[RUNS_MAX], *file[RUNS_MAX];
    int column[4];
    *view = (compare_view){.from = from};
    if (!section)
        return status_fail(st, "%s: no section RUN; `fathom compare RECORDING RECORDING` makes it",
                           table_path(from));
    if (cells_find(from, section, names, column, st))
        return FAILED;
    view->runs = section->rows < RUNS_MAX ? section->rows : RUNS_MAX;
    view->left_out = section->rows - view->runs;
    for (size_t row = 0; row < view->runs; row++) {
        size_t run;
        if (cells_size(from, section, row, column[0], section->rows, &run, st))
            return FAILED;
        if (run != row)
            return cells_fail(from, section, row, column[0], "the runs in order, from 0", st);
        file[row] = table_cell(section, row, column[1]);
        model[row] = table_cell(section, row, column[2]);
        view->replaces[row] = strncmp(table_cell(section, row, column[3]), "full", 4) == 0;
    }
    runs_name(model, file, view->runs, view->name);
    return DONE;
}

static bool row_wanted(const table_section_view *section, size_t row, int key, const char *value,
                       int head) {
    if (key >= 0 && strcmp(table_cell(section, row, key), value) != 0)
        return false;
    const char *text = head >= 0 ? table_cell(section, row, head) : "mean";
    return strcmp(text, "mean") == 0 || strcmp(text, "all") == 0;
}

int compare_rows(const compare_view *view, const compare_choice *choice, compare_row **rows,
                 size_t *count, status *st) {
    const table *from = view->from;
    const table_section_view *section = table_find(from, choice->code);
    const char *const texts[] = {"run", choice->key, choice->place, choice->group};
    int column[4] = {-1, -1, -1, -1}, number[COMPARE_NUMBERS], rc = DONE;
    size_t numbers = 0;
    *rows = NULL;
    *count = 0;
    if (!section)
        return DONE;
    while (choice->numbers[numbers])
        numbers++;
    for (size_t i = 0; i < 4; i++)
        if (texts[i] &&
            cells_find(from, section, (const char *const[]){texts[i], NULL}, &column[i], st))
            return FAILED;
    if (cells_find(from, section, choice->numbers, number, st))
        return FAILED;
    int head = table_column(section, "head");
    *rows = mem_array(section->rows, sizeof **rows, "rows", st);
    if (!*rows)
        return FAILED;
    for (size_t row = 0; !rc && row < section->rows; row++) {
        compare_row *next = &(*rows)[*count];
        if (!row_wanted(section, row, column[1], choice->value, head))
            continue;
        rc = cells_size(from, section, row, column[0], SIZE_MAX / 2, &next->run, st);
        if (rc || next->run == 0 || next->run >= view->runs)
            continue;
        if (column[2] >= 0)
            rc = cells_place(from, section, row, column[2], &next->at, st);
        next->group = column[3] >= 0 ? table_cell(section, row, column[3]) : "";
        if (!rc)
            rc = cells_reals(from, section, row, number, numbers, next->number, st);
        ++*count;
    }
    if (rc) {
        free(*rows);
        *rows = NULL;
    }
    return rc;
}
