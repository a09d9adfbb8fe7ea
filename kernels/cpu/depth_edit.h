/* depth_edit.h - interventions on one site (depth_edit of kernels/depth_plan.h), token by token. */
#ifndef FATHOM_KERNELS_CPU_DEPTH_EDIT_H
#define FATHOM_KERNELS_CPU_DEPTH_EDIT_H

#include "kernels/cpu/depth.h"

/* Fails where the edit does not fit its site. */
int cpu_depth_edit_check(const depth_plan *plan, size_t site, size_t rows, status *st) MUST_USE;

static inline bool depth_edit_of_head(const depth_edit *edit, size_t head) {
    return !edit->head || edit->head[head];
}

/* What an edit changes before the softmax: logits [heads, sources]. */
void cpu_depth_edit_logits(const depth_edit *edit, size_t heads, size_t sources, float *logit);

/* What it changes after: weights [heads, sources] of token `row`. `spare` [sources]. */
void cpu_depth_edit_weights(const depth_edit *edit, size_t heads, size_t sources, size_t row,
                            float *weight, float *spare);

/* EDIT_MEAN_VALUE: v [sources] with the mean vectors in their places, to `mean` [sources]. */
void cpu_depth_edit_values(const depth_edit *edit, size_t sources, size_t width,
                           const float *const *v, const float **mean);

#endif
