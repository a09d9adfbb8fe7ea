/* recorder.h - carries what a forward pass shows into a recording, batch by batch.
 *
 *     recorder_create(&plan, program, &limits, vocabulary, writer, &r, st)
 *     for each batch:
 *         const observer *watch = recorder_observer(r, &b);
 *         session_forward(session, &b, watch, st)
 *         session_backward(session, &b, watch, st)     // plan->wants.gradients
 *     session_finish(session, st)
 *
 * Large tensors are written as they come by; small ones and the routing sums wait for the end of
 * the batch, which is committed when its last result has come. Memory depends on the batch, not on
 * the number of batches.
 */
#ifndef FATHOM_RECORDER_H
#define FATHOM_RECORDER_H

#include "probes/nulls.h"
#include "probes/recording_writer.h"
#include "runtime/session.h"

typedef struct recorder recorder;

/* Everything passed must outlive the recorder. */
int recorder_create(const recording_plan *plan, const depth_program *program,
                    const session_limits *limits, size_t vocabulary, recording_writer *writer,
                    recorder **out, status *st) MUST_USE;
void recorder_free(recorder *r); /* NULL allowed */

/* Also records the routing under these queries, which must outlive the recorder; before the first
 * batch. plan->axes.draws and null_sequences are theirs. */
int recorder_add_nulls(recorder *r, const null_queries *nulls, status *st) MUST_USE;

/* For the passes over this batch; b->offset is each sequence's place in its stream. */
const observer *recorder_observer(recorder *r, const batch *b);

/* Over all committed batches. */
typedef struct recorder_totals {
    double loss; /* sum, nats */
    uint64_t scored, tokens;
    uint64_t nonfinite; /* NaN and Inf among losses, magnitudes, weights and gradients */
} recorder_totals;
recorder_totals recorder_report(const recorder *r);

/* SHA-256 of the tokens of all committed batches, to be read once. */
void recorder_tokens_hash(recorder *r, char hex[65]);

/* Whether a token id has occurred. */
bool recorder_saw(const recorder *r, size_t id);

#endif
