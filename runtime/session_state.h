/* session_state.h - what a session holds; shared by session.c and forward.c only. */
#ifndef FATHOM_SESSION_STATE_H
#define FATHOM_SESSION_STATE_H

#include "runtime/session.h"

/* Results that an observer may want: a device buffer, made when first wanted, and host memory for
 * backends whose memory the host cannot read. */
typedef enum observed {
    SEEN_IN, /* whole tensors: the device buffer belongs to the pass, only host memory is ours */
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
    SEEN_COUNT,
} observed;

typedef struct seen {
    buffer *device;
    size_t device_bytes;
    void *host;
    size_t host_bytes;
} seen;

struct session {
    const model *model;
    const depth_program *program;
    session_limits limits;
    const kernels *k;
    backend *device;
    depth *axis;
    size_t most_sources;  /* of any site */
    buffer *id;           /* [rows] int32 */
    buffer *target;       /* [rows] int32: the next token, -1 at a sequence's end */
    buffer *in;           /* [rows, width] */
    buffer *normed;       /* [rows, width] */
    buffer *wide;         /* [rows, max(qkv width, 2 mlp_width)] */
    buffer *inner;        /* [rows, max(query_heads * head_dim, mlp_width)] */
    int32_t *host_target; /* [rows] */
    double *sums;         /* [sequences, most routing sums] */
    size_t sums_count;    /* doubles in `sums` */
    seen seen[SEEN_COUNT];
};

#endif
