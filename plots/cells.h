/* cells.h - reading the cells of a table, with errors that name section, row and cell. */
#ifndef FATHOM_CELLS_H
#define FATHOM_CELLS_H

#include "analyze/table.h"

#include <stdbool.h>

/* Columns by name, `names` ending with NULL; all of them must be there. */
int cells_find(const table *from, const table_section_view *section, const char *const *names,
               int *columns, status *st) MUST_USE;

/* "section MAG, row 3: mean is 'x', expected ..."; returns FAILED. */
int cells_fail(const table *from, const table_section_view *section, size_t row, int column,
               const char *expected, status *st);

/* A number or `nan`; unlike table_number, any other text is an error. An infinite number cannot be
 * drawn and is NaN here. */
int cells_real(const table *from, const table_section_view *section, size_t row, int column,
               double *value, status *st) MUST_USE;
/* `count` numbers in the columns given, to value [count]. */
int cells_reals(const table *from, const table_section_view *section, size_t row,
                const int *columns, size_t count, double *value, status *st) MUST_USE;
int cells_size(const table *from, const table_section_view *section, size_t row, int column,
               size_t max, size_t *value, status *st) MUST_USE;

/* What section RUN (key, value) says of `key`, or ""; points into the table. */
const char *cells_run(const table *from, const char *key);

/* A place in depth: "L3.attn", "L3.mlp", "final". */
typedef enum place_kind { PLACE_ATTN, PLACE_MLP, PLACE_FINAL, PLACE_KINDS } place_kind;
typedef struct depth_place {
    place_kind kind;
    size_t layer; /* 0 for `final` */
} depth_place;
int cells_place(const table *from, const table_section_view *section, size_t row, int column,
                depth_place *found, status *st) MUST_USE;
/* Layers, an MLP half a layer after its attention, `final` behind the last layer. */
double place_depth(depth_place at, size_t layers);

#endif
