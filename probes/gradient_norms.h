/* gradient_norms.h - norms of the gradient of the mean loss, from the sums of a session. */
#ifndef FATHOM_GRADIENT_NORMS_H
#define FATHOM_GRADIENT_NORMS_H

#include "probes/recording_layout.h"
#include "runtime/session.h"

typedef struct gradient_norms {
    float *norm[GRADIENT_NORMS]; /* shaped as gradient_norm_datasets, nats/token */
    size_t nonfinite;            /* parameters whose norm is NaN or Inf */
    const char *first_nonfinite; /* its name, owned by the model */
} gradient_norms;

/* Of everything session_backward has added so far, divided by session_gradient_tokens (NaN where no
 * token was predicted). param_l2: sqrt(sum of squares) of a tensor, tied ones once; layer_l2: of
 * all tensors named model.layers.N., routers included; query_l2: of a head's slice of the site's
 * query. Takes the memory of the largest tensor. `out` is cleared after a failure too. */
int gradient_norms_read(session *s, const model *m, const recording_axes *axes, gradient_norms *out,
                        status *st) MUST_USE;
void gradient_norms_clear(gradient_norms *norms);

#endif
