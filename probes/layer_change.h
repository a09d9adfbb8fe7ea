/* layer_change.h - how much each layer changes what the next one reads: cosines and angles between
 * the inputs of layers, measured while a forward pass runs.
 *
 *     layer_change *lc;
 *     if (layer_change_create(program, &limits, 2, &lc, st)) return FAILED;
 *     observer watch = {0};
 *     layer_change_watch(lc, &watch);
 *     if (session_forward(s, &batch, &watch, st)) return FAILED;
 *     layer_change_means means = layer_change_of(lc, 0);      // of the batch's first sequence
 *     layer_change_free(lc);
 *
 * in_l is what the attention of layer l reads, in_L what the final norm reads; x_l is the stream
 * before layer l, x_L before the final norm, where there is an additive stream.
 *     mix_change(l)      = 1 - mean cos(in_l, in_{l+1})
 *     block_influence(l) = 1 - mean cos(x_l, x_{l+1})      (ShortGPT, arXiv 2403.03853, section 3)
 *     angular(l, n)      = mean arccos(cos(in_l, in_{l+n})) / pi
 *                          (The Unreasonable Ineffectiveness of the Deeper Layers, arXiv
 * 2403.17887) Replacing modes have no stream: block_influence is not defined there. Cosines are
 * clamped to -1..1. A pair with a zero vector or NaN has no cosine: it is left out and counted.
 */
#ifndef FATHOM_LAYER_CHANGE_H
#define FATHOM_LAYER_CHANGE_H

#include "runtime/session.h"

typedef struct layer_change layer_change;

/* Of one sequence; arrays are owned by the object and valid until the next batch. NaN where no
 * token has a cosine or the attention of a layer was removed. Means over sequences: weighted by
 * tokens, except angle_last, which is of one token each. */
typedef struct layer_change_means {
    size_t tokens;
    const double *mix_change;      /* [layers] */
    const double *block_influence; /* [layers]; NULL without a stream */
    const double *angle_all;       /* [most_skipped, layers]: (n - 1, l), over all tokens */
    const double *angle_last;      /* [most_skipped, layers], of the last token */
    size_t left_out;               /* pairs without a cosine */
} layer_change_means;

/* `most_skipped`: the largest n of angular(l, n). Holds one tensor [rows, width] for each layer of
 * a batch. The program must outlive the object. */
int layer_change_create(const depth_program *program, const session_limits *limits,
                        size_t most_skipped, layer_change **out, status *st) MUST_USE;
void layer_change_free(layer_change *lc); /* NULL allowed */

/* Sets self, in, base and on_site of an observer that uses none of them. */
void layer_change_watch(layer_change *lc, observer *watch);

layer_change_means layer_change_of(const layer_change *lc, size_t sequence);

#endif
