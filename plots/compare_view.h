/* compare_view.h - the table of `fathom compare`: its runs, and rows by run. */
#ifndef FATHOM_COMPARE_VIEW_H
#define FATHOM_COMPARE_VIEW_H

#include "plots/cells.h"
#include "plots/runs.h"

enum { COMPARE_NUMBERS = 5 };

typedef struct compare_view {
    const table *from;
    size_t runs;     /* that are drawn, the reference (0) included; at most RUNS_MAX */
    size_t left_out; /* further runs of the table */
    run_name name[RUNS_MAX];
    bool replaces[RUNS_MAX]; /* of a full mode, which keeps no running sum */
} compare_view;

int compare_view_init(compare_view *view, const table *from, status *st) MUST_USE;

/* Which rows of a section: those whose column `key` is `value`, and, where there is a column
 * `head`, those of no single head. */
typedef struct compare_choice {
    const char *code, *key, *value; /* key NULL: all */
    const char *place;              /* column of the place; NULL: none */
    const char *group;              /* column of a text kept in the row; NULL: none */
    const char *const *numbers;     /* columns, ends with NULL; at most COMPARE_NUMBERS */
} compare_choice;

typedef struct compare_row {
    size_t run; /* 1 … runs - 1 */
    depth_place at;
    const char *group;
    double number[COMPARE_NUMBERS];
} compare_row;

/* *rows [*count] of the runs that are drawn, freed by the caller; none where the section is
 * missing. */
int compare_rows(const compare_view *view, const compare_choice *choice, compare_row **rows,
                 size_t *count, status *st) MUST_USE;

#endif
