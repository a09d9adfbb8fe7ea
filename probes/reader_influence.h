/* reader_influence.h - how much what later sites read would change without a unit's outputs among
 * their sources, measured while one forward pass runs; full modes, where every sublayer's output is
 * a source.
 *
 *     reader_influence *ri;
 *     if (reader_influence_create(model, program, &limits, &ri, st)) return FAILED;
 *     observer watch = {0};
 *     reader_influence_watch(ri, &watch);
 *     if (session_forward(s, &batch, &watch, st)) return FAILED;
 *     const double *mean = reader_influence_of(ri, 0);        // of the batch's first sequence
 *     reader_influence_free(ri);
 *
 * A unit is a layer, its attention or its MLP. With a_s the weights of a site, per head,
 *     reader_influence(unit) = mean over later sites r of 1 - mean cos(in_r, in_r without the unit)
 * where `without` leaves the unit's sources out of the mix and divides by the other weights' sum.
 * Nothing is computed again: what the unit changes on the way to a reader does not count.
 * Tokens without a cosine (NaN, a zero vector, no other weight) are left out and counted.
 */
#ifndef FATHOM_READER_INFLUENCE_H
#define FATHOM_READER_INFLUENCE_H

#include "runtime/session.h"

typedef struct reader_influence reader_influence;

/* Full modes, except with a gate for each channel, whose values are not observed. */
bool reader_influence_defined(const model_config *config);

/* Holds two tensors [rows, width] for each layer of a batch. Both must outlive the object. */
int reader_influence_create(const model *m, const depth_program *program,
                            const session_limits *limits, reader_influence **out,
                            status *st) MUST_USE;
void reader_influence_free(reader_influence *ri); /* NULL allowed */

/* Sets self, weights, in, base, out, on_site and on_sublayer of an observer that uses none of them.
 */
void reader_influence_watch(reader_influence *ri, observer *watch);

/* Of one sequence of the batch that ran last: [3, layers], layers, then attentions, then MLPs; NaN
 * where the unit does not run or no later site has a cosine. Valid until the next batch. */
const double *reader_influence_of(const reader_influence *ri, size_t sequence);
size_t reader_influence_left_out(const reader_influence *ri); /* (token, site, unit) so far */

#endif
