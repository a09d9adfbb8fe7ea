/* depth_edit.h - what an edit (depth_plan.h) does to one token at one site, on the host: the CPU
 * backend's arithmetic, and how an experiment tells what an edit would do to weights it has seen.
 */
#ifndef FATHOM_DEPTH_EDIT_H
#define FATHOM_DEPTH_EDIT_H

#include "kernels/depth_plan.h"

static inline bool depth_edit_of_head(const depth_edit *edit, size_t head) {
    return !edit->head || edit->head[head];
}

/* What an edit changes before the softmax: logits [heads, sources]. */
void depth_edit_logits(const depth_edit *edit, size_t heads, size_t sources, float *logit);

/* What it changes after: weights [heads, sources]. `given` [heads, sources]: the token's own of
 * edit->given, or NULL. `spare` [sources]. */
void depth_edit_weights(const depth_edit *edit, size_t heads, size_t sources, const float *given,
                        float *weight, float *spare);

/* EDIT_QUERY_SCALE where only the weights are known: softmax(x l) = w^x / sum of w^x. */
void depth_edit_scaled(const depth_edit *edit, size_t heads, size_t sources, float *weight);

/* EDIT_MEAN_VALUE: v [sources] with the mean vectors in their places, to `mean` [sources]. */
void depth_edit_values(const depth_edit *edit, size_t sources, size_t width, const float *const *v,
                       const float **mean);

#endif
