/* depth_table.h - the sections of the table of depth, each group in its own file:
 *
 *     LPO        depth_loss.c         loss by position
 *     MAG        depth_magnitudes.c   sizes of in, out and state
 *     GRW, GRP   depth_growth.c       how they grow over the layers
 *     RST        depth_growth.c       what a new block starts with
 *     MSV, MSS   depth_massive.c      massive activations
 *     GRD, GUN, GLY, GQY, GPA   depth_gradients.c
 *
 * A section whose numbers the recording lacks is left out, and a comment says so.
 */
#ifndef FATHOM_DEPTH_TABLE_H
#define FATHOM_DEPTH_TABLE_H

#include "analyze/bootstrap.h"
#include "analyze/routing_sites.h"
#include "analyze/sampling.h"
#include "analyze/token_rows.h"

#include <stdio.h>

/* One sublayer after which the stream of a layer is complete. */
typedef struct depth_layer {
    size_t place;  /* of its MLP, on the site and the sublayer axis */
    double number; /* its layer */
    bool opens;    /* its attention begins a block */
} depth_layer;

typedef struct depth_table {
    FILE *out;
    recording *rec;
    const recording_about *about;
    const recorded_sites *sites;
    const sampling *sampling;
    const size_t *unit; /* [sequences] */
    size_t units;
    const bootstrap *b; /* by tokens from position about->skip_first on */
    size_t layers;
    const depth_layer *layer; /* [layers] */
    bool blocks;              /* some layer opens a block */
    size_t width;             /* of the hidden states; 0: the recording does not say */
} depth_table;

int depth_put_losses(const depth_table *t, status *st) MUST_USE;
int depth_put_magnitudes(const depth_table *t, status *st) MUST_USE;
int depth_put_growth(const depth_table *t, status *st) MUST_USE;
int depth_put_resets(const depth_table *t, status *st) MUST_USE;
int depth_put_massive(const depth_table *t, status *st) MUST_USE;
int depth_put_gradients(const depth_table *t, status *st) MUST_USE;

/* Says in the table which of a row's numbers are missing or not finite, and warns of the latter. */
void depth_say_faults(const depth_table *t, const token_row *row);

/* Draws of the means of a row at `place` [count] (NULL: its first ones), [draws, count], freed by
 * the caller; NULL with `st` filled. `b` weights as the row's means do. */
double *depth_draws(const bootstrap *b, const token_row *row, const size_t *place, size_t count,
                    status *st) MUST_USE;

/* Three cells. */
void depth_put_interval(FILE *out, interval x);

#endif
