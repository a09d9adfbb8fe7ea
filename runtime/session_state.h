/* session_state.h - what a session holds; shared by session.c, forward.c, backward.c and tests
 * only. */
#ifndef FATHOM_SESSION_STATE_H
#define FATHOM_SESSION_STATE_H

#include "runtime/session.h"

/* Results that an observer may want and that need memory on the device. */
typedef enum observed {
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

/* A device buffer, made when first wanted. */
typedef struct seen {
    buffer *device;
    size_t elements;
} seen;

/* Sums at the site at hand, in host memory that the backend writes. */
enum { DOUBLES_OWN, DOUBLES_ALTERNATIVE };
typedef struct doubles {
    double *at;
    size_t count;
} doubles;

typedef struct any_view {
    enum { VIEW_SITE, VIEW_SUBLAYER, VIEW_HEAD, VIEW_GRADIENT, VIEW_DONE } kind;
    union {
        site_view site;
        sublayer_view sublayer;
        head_view head;
        gradient_view gradient; /* its l2 is the rms until it is shown */
    };
} any_view;

/* Memory of results under way: `elements` of 4 bytes, of which the first `used` are given out and
 * the first `sent` on their way from the device. */
typedef struct flight_block {
    buffer *device; /* NULL: host memory alone */
    float *host;
    size_t elements, used, sent;
} flight_block;

/* What one batch will show; see observe.c. */
typedef struct flight {
    batch batch;
    observer watch;
    any_view *view;
    flight_block *block;
    buffer **part; /* parts of blocks that kernels write to */
    size_t views, view_capacity, blocks, block_capacity, parts, part_capacity;
    size_t bytes; /* of host memory beside the blocks on the device */
} flight;

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
    buffer *id;           /* [rows] int32 */
    buffer *target;       /* [rows] int32: the next token, -1 at a sequence's end */
    steps *steps;         /* [2 * layers + 1] in running order, the final norm after them */
    int32_t *host_target; /* [rows] */
    bool direct;          /* the host reads the backend's memory: results are shown at once */
    seen seen[SEEN_COUNT];
    doubles doubles[2]; /* direct */
    flight flight[2];   /* not direct: that of the batch at work and that of the one before */
    size_t at;          /* the first of them */

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

/* ---- observe.c ---- */

/* Memory for a kernel to write a result of a batch to, and where the observer will find it. */
int session_place(session *s, observed what, size_t elements, buffer **device, const void **host,
                  status *st) MUST_USE;
/* A device buffer for a result that session_fetch takes along at once; NULL: failed. */
buffer *session_whole(session *s, observed what, size_t elements, status *st) MUST_USE;
/* Where the observer will find the first `elements` of `from` as they are now. */
int session_fetch(session *s, const buffer *from, size_t elements, const float **out,
                  status *st) MUST_USE;
/* Host memory for the backend's sums; NULL: failed. */
double *session_doubles(session *s, size_t which, size_t count, status *st) MUST_USE;
/* Magnitudes of the rows of `from`: what[i] names the result for rms, absmax, its channel and the
 * median, or is SEEN_COUNT: not wanted; out[i] receives where it will be, [rows]. */
int session_measure(session *s, size_t rows, const buffer *from, const observed what[4],
                    const void *out[4], status *st) MUST_USE;
/* Shows a view to the observer, now or when its batch has arrived. */
int session_show(session *s, const batch *b, const observer *watch, const any_view *view,
                 status *st) MUST_USE;
/* A batch begins: the results of the one before have arrived. Its pass is submitted, `rc`: shows
 * the one before. A pass is over: its results leave the device. */
int session_board(session *s, status *st) MUST_USE;
int session_land(session *s, int rc, status *st) MUST_USE;
int session_depart(session *s, status *st) MUST_USE;
void session_observe_free(session *s);

/* Rotary embedding of one layer. */
rotary_args session_rotary(const session *s, const batch *b, size_t layer, const steps *at);

#endif
