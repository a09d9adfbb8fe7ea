/* derived_rows.h - routing rows computed from routing/weights, for files without accumulators and
 * to check those that have them. Rows that need the hidden states cannot be derived. */
#ifndef FATHOM_DERIVED_ROWS_H
#define FATHOM_DERIVED_ROWS_H

#include "probes/recording.h"

/* One site of a recording seen as routing_sums.h sees it. */
typedef struct derived_site {
    routing_layout layout;
    size_t *label; /* [layout.sources] place of each of the site's sources on the source axis */
} derived_site;

/* `label` [about->sources] becomes the site's. */
derived_site derived_site_of(const recording_about *about, size_t site, bool pairs, size_t *label);

/* Adds positions first..length-1 of one sequence's weights [length, heads, sources] to `sums`
 * [layout.total]. `scratch`: [3 * heads * sources]. */
void derived_site_add(const derived_site *site, const recording_about *about, const float *weights,
                      size_t first, size_t length, float *scratch, double *sums);

/* Whether the weights alone tell this row. */
bool derived_row_possible(const routing_row *row);

/* A row of every sequence into out [sequences, ROW AXES], NaN where it cannot be derived. *rows
 * keeps the sums for the next row; it starts as NULL and is freed with derived_rows_free. */
typedef struct derived_rows derived_rows;
int derived_rows_read(recording *rec, derived_rows **rows, const routing_row *row, double *out,
                      status *st) MUST_USE;
void derived_rows_free(derived_rows *rows); /* NULL allowed */

#endif
