/* synthetic.h - tests: a recording of made-up numbers, written through the recording writer.
 *
 * Three layers of full routing, two heads; sequence i has 5 + i % 4 tokens. Every number follows
 * from its indices, so that a reader's result can be predicted. */
#ifndef FATHOM_TESTS_SYNTHETIC_H
#define FATHOM_TESTS_SYNTHETIC_H

#include "probes/recording_writer.h"

enum {
    SYNTHETIC_LAYERS = 3,
    SYNTHETIC_SITES = 7,
    SYNTHETIC_SUBLAYERS = 6,
    SYNTHETIC_HEADS = 2,
    SYNTHETIC_SOURCES = 7,
    SYNTHETIC_POSITIONS = 8,
    SYNTHETIC_WIDTH = 4,
};

/* Weights, pairs, attention and the points in/L1.attn, out/L0.mlp, state/L2.mlp and pattern L1.
 * Valid until the program ends. */
recording_plan synthetic_plan(void);

size_t synthetic_length(size_t sequence);
int32_t synthetic_id(size_t sequence, size_t pos);
float synthetic_loss(size_t sequence, size_t pos); /* NaN at 0 */
/* NaN where the site has no such source; sums to 1 over them. */
float synthetic_weight(size_t sequence, size_t pos, size_t site, size_t head, size_t source);
float synthetic_magnitude(size_t sequence, size_t pos, size_t place);

/* Begins a batch of `count` sequences, puts everything, and does not commit. 0 or FAILED. */
int synthetic_batch(recording_writer *w, size_t count, status *st);
/* A whole file of `count` sequences in batches of `batch`. */
int synthetic_file(const char *path, const recording_plan *plan, size_t count, size_t batch,
                   status *st);

#endif
