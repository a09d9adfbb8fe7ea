/* query_slices.h - do the slices of a single head's query agree: section CMP; formulas in
 * forced_compromise.h. */
#ifndef FATHOM_QUERY_SLICES_H
#define FATHOM_QUERY_SLICES_H

#include "analyze/depth_values.h"
#include "probes/nulls.h"

#include <stdio.h>

enum { SLICINGS = 3 };
extern const size_t slicings[SLICINGS]; /* k: 2, 4, 8 */

typedef struct query_slices query_slices;

/* The trained queries and random ones, over the sequences that have nulls. INTERRUPTED when a
 * signal came. */
int query_slices_create(text_run *run, const null_options *options, query_slices **out,
                        status *st) MUST_USE;
void query_slices_free(query_slices *q); /* NULL allowed */

/* Adds a batch's tokens at one site, whose sources are in `values`. */
int query_slices_site(query_slices *q, const depth_values *values, const batch *b, size_t site,
                      status *st) MUST_USE;

void query_slices_write(FILE *out, const query_slices *q, const depth_program *p);

/* raw, floor and matched of one token: slice logits l [k, sources]. `scratch` [2 * sources]. */
void query_slices_token(const double *l, size_t k, size_t sources, double *scratch, double out[3]);

#endif
