/* nulls.h - random queries that stand in for the learned ones, so that a routing statistic can be
 * read beside what routing has that learned nothing.
 *
 * Draw r of a site: in each head's slice a direction of independent normal numbers takes the place
 * of the folded query u_h = gain * query, scaled to
 *     norm: the length of u_h;
 *     var:  the same mean over tokens of the population variance over sources of the logits.
 * Both use the same directions. A head whose query is zero has no null: its queries are NaN.
 *
 *     null_queries *nulls;
 *     const null_options options = {.draws = 8, .sequences = 16, .seed = seed};
 *     const null_run run = {model, program, session, &limits, source};
 *     if (null_queries_create(&run, &options, &nulls, st)) ...
 *     ... observer.alternatives = nulls->site ...
 *     null_queries_free(nulls);
 */
#ifndef FATHOM_NULLS_H
#define FATHOM_NULLS_H

#include "datasets/token_source.h"
#include "runtime/session.h"

typedef struct null_options {
    size_t draws;     /* at least 1 */
    size_t sequences; /* nulls are computed on at most so many, evenly spaced over the run */
    uint64_t seed;
    size_t skip_first; /* leading positions that do not count */
} null_options;

/* What they are computed with. */
typedef struct null_run {
    const model *model;
    const depth_program *program;
    session *session; /* of `limits`, between batches */
    const session_limits *limits;
    token_source *source;
} null_run;

typedef struct null_queries {
    size_t draws, sites;
    size_t sequences, of;    /* that have nulls, of all sequences of the run */
    backend *device;         /* of the buffers */
    const kernels *k;        /* likewise */
    site_alternatives *site; /* [sites] `draws` queries of equal norm, then as many of equal
                                variance; none where a site has fewer than two sources */
} null_queries;

/* Runs the model over the sequences that will have nulls to measure the variances; the session of
 * `run` is left ready for any batch. INTERRUPTED when a signal came. Depends on the model, the
 * tokens, the draws, the seed, not on batches or threads; the first r draws are those of a run with
 * r draws. */
int null_queries_create(const null_run *run, const null_options *options, null_queries **out,
                        status *st) MUST_USE;
void null_queries_free(null_queries *nulls); /* NULL allowed */

/* Sequence number j, j < sequences, that has nulls; and whether sequence `index` of the run does.
 */
size_t null_sequence_at(const null_queries *nulls, size_t j);
bool null_sequence_has(const null_queries *nulls, size_t index);

#endif
