/* compare.h - several recordings of the same tokens, each held against the first.
 *
 * Paired: the resamples are those of the reference's sequences, one index table for all runs, so
 * that a difference is computed within each draw. Not paired (other tokens): each run has its own,
 * and differences are nan. */
#ifndef FATHOM_COMPARE_H
#define FATHOM_COMPARE_H

#include "analyze/routing_sites.h"
#include "analyze/sampling.h"

typedef struct compared_run {
    recording *rec;
    const recording_about *about;
    recorded_sites sites;
    bool routes;                /* it has sources, and their weights or sums */
    bootstrap *scored, *routed; /* by predicted tokens (NULL: no losses); by tokens of the means */
    bootstrap *half[2];         /* routed, the even and the odd units; NULL where without tokens */
    double *loss;               /* [sequences] */
} compared_run;

typedef struct comparison {
    FILE *out;
    sampling sampling;
    size_t draws;
    bool paired;
    size_t runs;
    compared_run *run; /* [runs]; 0 is the reference */
} comparison;

/* Columns that end every section of differences, and their cells: both values, and the interval of
 * value - reference. `reference`, `value` [draws, cells each its own stride]: cell `i` of a draw.
 */
#define COMPARED_COLUMNS "reference, value, difference, low, high"
typedef struct compared_draws {
    const double *draw; /* first draw's number */
    size_t stride;      /* to the next draw's */
} compared_draws;
/* `scratch` [draws]. */
void compare_put(const comparison *c, const bootstrap *b, compared_draws reference,
                 compared_draws value, double *scratch);

/* Sections CST, CSO, CPR, CAV, RJS: routing statistics. */
int compare_routing_write(const comparison *c, status *st) MUST_USE;
/* Section DEP: token means of magnitudes. */
int compare_depth_write(const comparison *c, status *st) MUST_USE;

#endif
