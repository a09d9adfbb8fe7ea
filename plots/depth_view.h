/* depth_view.h - tables of `fathom depth` as curves: rows by place in depth, and what all figures
 * of such tables begin with. */
#ifndef FATHOM_DEPTH_VIEW_H
#define FATHOM_DEPTH_VIEW_H

#include "plots/curves.h"

/* Numbers of one row, at most. */
enum { DEPTH_NUMBERS = 6 };

typedef struct depth_row {
    depth_place at;
    double number[DEPTH_NUMBERS];
} depth_row;

/* The rows of section `code` whose column `quantity` is `quantity`: their place and the numbers in
 * `columns` (ends with NULL). *rows [*count] in the table's order, freed by the caller; none where
 * the table has no such section. */
int depth_rows(const table *from, const char *code, const char *quantity,
               const char *const *columns, depth_row **rows, size_t *count, status *st) MUST_USE;

/* What a figure of depth tables begins with: title and subtitle, looks (attention, MLP and final of
 * one table, else the runs), and layers. Of more than RUNS_MAX tables the
 * first are drawn, and the notes say so: *tables becomes their number. */
int depth_sheet_init(curve_sheet *c, const table *const *from, size_t *tables, const char *what,
                     status *st) MUST_USE;

/* A line where a block opens: grey where all runs that have blocks open one, else in the run's
 * colour. */
int depth_mark_blocks(curve_sheet *c, const table *const *from, size_t tables, status *st) MUST_USE;

/* Whether a table is of a mode whose sublayers read a mix and leave no running sum. */
bool depth_replaces(const table *from);

/* Notes on the bars: the level, or that there are none. `bars`: some curve has an interval. */
void depth_note_intervals(curve_sheet *c, const table *from);

#endif
