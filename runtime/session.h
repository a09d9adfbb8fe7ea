/* session.h - one run of one model: buffers for a batch, and the instrumented forward pass.
 *
 *     session *s;
 *     session_limits limits = {.rows = 2048, .sequences = 8, .longest = 256};
 *     if (session_create(model, program, &limits, &s, st)) return FAILED;
 *     if (session_forward(s, &batch, &observer, st)) return FAILED;
 *     session_free(s);
 *
 * The pass is blind to modes: it follows the depth program. What is observed never changes what is
 * computed: with and without an observer every output has the same bits.
 */
#ifndef FATHOM_SESSION_H
#define FATHOM_SESSION_H

#include "runtime/depth_program.h"
#include "runtime/model.h"

#include <stdint.h>

typedef struct session session;

typedef struct session_limits {
    size_t rows;      /* tokens in a batch, at most */
    size_t sequences; /* in a batch, at most */
    size_t longest;   /* tokens in a sequence, at most */
    bool backward;    /* session_backward will be called: activations are kept, gradients summed */
    bool keep;        /* every sublayer's output is kept, for session_resume of another session */
} session_limits;

typedef struct batch {
    batch_layout layout;
    const int32_t *id; /* [rows] */
    /* For observers; the session does not read them. */
    size_t first;          /* number of the batch's first sequence in the whole run */
    const int64_t *offset; /* [sequences] where each begins in the stream of tokens, or NULL */
} batch;

/* Everything below is host memory, valid during the call, rows as in the batch's layout. A pointer
 * is NULL where the observer did not want it or where it does not exist. */
typedef struct site_view {
    size_t site;
    size_t sources;
    const float *in_rms;  /* [rows] */
    const float *in;      /* [rows, width] */
    const float *base;    /* [rows, width] the running tensor it starts from; NULL without one */
    const float *weights; /* [rows, heads, sources] */
    const double *sums;   /* [sequences, sums_layout.total] */
    routing_layout sums_layout;
    const double *alternative_sums;     /* [count, sequences, sums_layout.total] */
    const double *alternative_variance; /* [count, sequences, heads], as depth_alternative_args */
} site_view;

typedef struct sublayer_view {
    const depth_sublayer *sublayer;
    const float *out_rms, *out_absmax;                        /* [rows] */
    const float *state_rms, *state_absmax, *state_median_abs; /* [rows] */
    const int32_t *state_absmax_channel;                      /* [rows] */
    const float *out, *state;                                 /* [rows, width] */
    const float *attention_entropy;          /* [rows, query_heads]; attention sublayers */
    const float *attention_first_token_mass; /* [rows, query_heads] */
    const float *attention_pattern;          /* as attention_args.pattern */
} sublayer_view;

typedef struct head_view {
    const float *loss;   /* [rows]: of predicting the NEXT token; NaN at each sequence's last row */
    const float *logits; /* [rows, vocabulary] */
} head_view;

/* Gradient norms of one point, of the SUM of each sequence's token losses. */
typedef enum gradient_point { GRADIENT_IN, GRADIENT_OUT, GRADIENT_EMB } gradient_point;
typedef struct gradient_view {
    gradient_point point;
    size_t site;                    /* GRADIENT_IN */
    const depth_sublayer *sublayer; /* GRADIENT_OUT */
    const float *l2; /* [rows] norm over the width. `in`: what reaches it through its own sublayer
                        alone; `out`: total, through every later reader */
} gradient_view;

/* Folded queries whose routing is observed beside a site's own; see depth_alternative_args. */
typedef struct site_alternatives {
    size_t count;   /* 0: none */
    buffer *folded; /* [count, width] */
} site_alternatives;

typedef struct observer {
    void *self;
    bool magnitudes;                       /* rms, absmax, median of in, out, state */
    bool routing_sums;                     /* site_view.sums */
    bool routing_pairs;                    /* with head_js and source_cos */
    size_t skip_first;                     /* leading positions left out of the sums */
    bool weights;                          /* site_view.weights */
    const site_alternatives *alternatives; /* [sites], or NULL: none */
    const bool *alternative_sequence;      /* [sequences of the batch] wanted, or NULL: all */
    bool alternative_sums, alternative_variance;
    bool logits;
    bool attention;      /* entropy and first-token mass */
    const bool *pattern; /* [layers] attention patterns, or NULL: none */
    const bool *in;      /* [sites] whole tensors, or NULL: none */
    const bool *base;    /* [sites], likewise */
    const bool *out;     /* [2 * layers], likewise */
    const bool *state;   /* [2 * layers], likewise */
    /* Each may be NULL. A non-zero return (FAILED, INTERRUPTED) stops the pass and is returned. */
    int (*on_site)(void *self, const batch *b, const site_view *view, status *st);
    int (*on_sublayer)(void *self, const batch *b, const sublayer_view *view, status *st);
    int (*on_head)(void *self, const batch *b, const head_view *view, status *st);
    int (*on_gradient)(void *self, const batch *b, const gradient_view *view, status *st);
    /* After all others of a batch; with limits.backward, of its backward pass. */
    int (*on_done)(void *self, const batch *b, status *st);
} observer;

/* The model and the program must outlive the session. */
int session_create(const model *m, const depth_program *program, const session_limits *limits,
                   session **out, status *st) MUST_USE;
void session_free(session *s); /* NULL allowed */

/* Bytes that session_create will take with these limits, for a forecast. */
size_t session_bytes(const model *m, const depth_program *program, const session_limits *limits);

/* Runs one batch. Token ids are checked against the vocabulary (the error names the position).
 * `watch` may be NULL. */
int session_forward(session *s, const batch *b, const observer *watch, status *st) MUST_USE;

/* Results may reach the observer later than the pass they belong to, in order, while the device
 * runs the next batch: all have when this returns. The batch's memory must stay until then or until
 * the next session_forward returns; what `watch` points to, likewise. */
int session_finish(session *s, status *st) MUST_USE;

/* ---- other programs of the same model ---- */

/* The session runs `program` from now on, which must outlive it or the next call. Not with
 * backward. */
int session_use(session *s, const depth_program *program, status *st) MUST_USE;

/* Runs the batch that `base` (limits.keep, same model, another session) ran last, without computing
 * again what the two programs have in common: the first `sublayers` that run, at most
 * depth_program_common. Their outputs are read from `base`, which must not run meanwhile. The
 * observer sees only sites and sublayers after them. What is computed has the bits of
 * session_forward. */
int session_resume(session *s, session *base, size_t sublayers, const batch *b,
                   const observer *watch, status *st) MUST_USE;

/* ---- backward ---- */

/* The backward pass of the batch that session_forward ran last (limits.backward). Adds the
 * gradients of the sum of its token losses to the session's, sequence by sequence, so that their
 * bits do not depend on batches. Reads the depth program alone. Where it fails, or the observer
 * stops it, the session's sums are incomplete: stop between batches. */
int session_backward(session *s, const batch *b, const observer *watch, status *st) MUST_USE;

/* The summed gradient of one parameter (model_param_at) as [rows * columns] floats; a tied head's
 * gradient is part of the embedding's. Divide by session_gradient_tokens for the mean loss's. */
int session_gradient(session *s, size_t param, float *out, status *st) MUST_USE;
/* Predicted tokens of all batches that session_backward added since the session was created. */
size_t session_gradient_tokens(const session *s);
/* Sets the sums to zero. */
int session_gradient_clear(session *s, status *st) MUST_USE;

#endif
