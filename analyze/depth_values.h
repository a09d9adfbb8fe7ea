/* depth_values.h - every value of the depth axis in host memory while the unedited program runs:
 * what means of sources and slices of logits are computed from.
 *
 *     depth_values *v;
 *     if (depth_values_create(m, program, limits->rows, &v, st)) return FAILED;
 *     depth_values_watch(v, &observer);          // asks for what it needs
 *     in on_site:     depth_values_site(v, b, view)        // first thing
 *     in on_sublayer: depth_values_sublayer(v, b, view)
 *     ... depth_values_row(v, program->source[...], row) of any source of the site at hand ...
 *     depth_values_free(v);
 */
#ifndef FATHOM_DEPTH_VALUES_H
#define FATHOM_DEPTH_VALUES_H

#include "runtime/session.h"

typedef struct depth_values depth_values;

/* Model and program outlive it. Takes rows * width floats for every value. */
int depth_values_create(const model *m, const depth_program *program, size_t rows,
                        depth_values **out, status *st) MUST_USE;
void depth_values_free(depth_values *v); /* NULL allowed */
void depth_values_watch(const depth_values *v, observer *watch);
void depth_values_site(depth_values *v, const batch *b, const site_view *view);
void depth_values_sublayer(depth_values *v, const batch *b, const sublayer_view *view);

/* Row `row` of the batch [width]. */
const float *depth_values_row(const depth_values *v, int value, size_t row);

/* Adds the batch's rows of every value to sums [values, width]; once all are there, at `final`. */
void depth_values_add(const depth_values *v, const batch *b, double *sums);

#endif
