/* forced_compromise.h - what sharing one distribution over depth costs: heads that must share, and
 * a single head's slices that would rather not.
 *
 * Several heads: head_mean at each site and at kinds of sites, and how far the mix moves under the
 * head-mean weights, norm(mix - mix')/norm(mix).
 * One head: with l_j the logits of the j-th of k slices of its query, l their sum, in log space,
 *     raw     = mean_j KL(softmax(l_j) to softmax(l))
 *     floor   = KL(softmax(l / k) to softmax(l)): what raw is where all slices agree
 *     matched = mean_j KL(softmax(k l_j) to softmax(l)): 0 where they agree up to a constant
 * for the trained query and for random ones (probes/nulls.h); and the loss when the query is split
 * into k heads, slice logits as they are and times k.
 */
#ifndef FATHOM_FORCED_COMPROMISE_H
#define FATHOM_FORCED_COMPROMISE_H

#include "analyze/ablation.h"

#include <stdio.h>

typedef struct compromise compromise;

typedef struct compromise_options {
    size_t draws; /* random queries of each kind */
    uint64_t seed;
} compromise_options;

/* Runs what is not known yet; INTERRUPTED after a signal. `e` outlives it. */
int compromise_run(experiment *e, const compromise_options *options, compromise **out,
                   status *st) MUST_USE;
void compromise_free(compromise *c); /* NULL allowed */

/* Sections HMN (several heads), or CMP and SPL (one). */
int compromise_write(FILE *out, const compromise *c, const bootstrap *b, double equiv, double level,
                     status *st) MUST_USE;

#endif
