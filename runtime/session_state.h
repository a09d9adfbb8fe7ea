/* session_state.h - what a session holds; shared by session.c, forward.c, backward.c and tests
 * only. */
#ifndef FATHOM_SESSION_STATE_H
#define FATHOM_SESSION_STATE_H

#include "runtime/session.h"

/* Results that an observer may want: a device buffer, made when first wanted, and host memory for
 * backends whose memory the host cannot read. */
typedef enum observed {
    SEEN_IN, /* whole tensors: the device buffer belongs to the pass, only host memory is ours */
    SEEN_BASE,
    SEEN_OUT,
    SEEN_STATE,
    SEEN_IN_RMS,
    SEEN_OUT_RMS,
    SEEN_OUT_ABSMAX,
    SEEN_STATE_RMS,
    SEEN_STATE_ABSMAX,
    SEEN_STATE_ABSMAX_CHANNEL,
    SEEN_STATE_MEDIAN_ABS,
    SEEN_WEIGHTS,
    SEEN_ENTROPY,
    SEEN_FIRST_TOKEN_MASS,
    SEEN_PATTERN,
    SEEN_LOGITS,
    SEEN_LOSS,
    SEEN_GRADIENT_RMS,
    SEEN_COUNT,
} observed;

typedef struct seen {
    buffer *device;
    size_t device_elements;
    void *host;
    size_t host_bytes;
} seen;

/* What a sublayer computes on its way, or the final norm (the first two). With backward each has
 * its own, kept until its gradient is known; without, all share one. */
typedef struct steps {
    buffer *in;        /* [rows, width]: what the site gave */
    buffer *normed;    /* [rows, width]; backward: the gradient of `in` takes its place */
    buffer *projected; /* attention: [rows, qkv width] before rotary; MLP: [rows, 2 mlp_width] */
    buffer *rotated;   /* attention: after rotary; without backward the same as `projected` */
    buffer *inner;     /* [rows, query_heads * head_dim] or [rows, mlp_width] */
} steps;

/* The summed gradient of one buffer of weights (fused ones hold several parameters). */
typedef struct weight_gradient {
    const buffer *weight;
    buffer *sum;
    size_t elements;
} weight_gradient;

struct session {
    const model *model;
    const depth_program *program;
    session_limits limits;
    const kernels *k;
    backend *device;
    depth *axis;
    site_weights *site;  /* [sites] */
    size_t most_sources; /* of any site */
    buffer **owned;      /* [owned_count] every buffer below, freed with the session */
    size_t owned_count;
    buffer *id;               /* [rows] int32 */
    buffer *target;           /* [rows] int32: the next token, -1 at a sequence's end */
    steps *steps;             /* [2 * layers + 1] in running order, the final norm after them */
    int32_t *host_target;     /* [rows] */
    double *sums;             /* [sequences, most routing sums] */
    size_t sums_count;        /* doubles in `sums` */
    double *alternative;      /* what alternative queries give at the site at hand */
    size_t alternative_count; /* doubles in `alternative` */
    seen seen[SEEN_COUNT];

    /* Backward only. */
    buffer *d_normed;          /* [rows, width] */
    buffer *d_projected;       /* [rows, max(qkv width, 2 mlp_width)] */
    buffer *d_inner;           /* [rows, max(query_heads * head_dim, mlp_width)] */
    float *l2;                 /* [rows] host */
    weight_gradient *gradient; /* [gradients] */
    size_t gradients;
    buffer *head_gradient;  /* of the output head; where tied, apart from the embedding's */
    size_t gradient_tokens; /* predicted tokens whose losses are in the sums */
    size_t ready_rows;      /* tokens of the batch that was run forward and not yet backward */
};

/* Magnitudes of the rows of `from`: what[i] names the result for rms, absmax, its channel and the
 * median, or is SEEN_COUNT: not wanted; out[i] receives it [rows] in host memory. */
int session_measure(session *s, size_t rows, const buffer *from, const observed what[4],
                    const void *out[4], status *st) MUST_USE;

/* Rotary embedding of one layer. */
rotary_args session_rotary(const session *s, const batch *b, size_t layer, const steps *at);

#endif
