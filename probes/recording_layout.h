/* recording_layout.h - what a recording is made of: axes and datasets, in one table.
 *
 * The writer creates from it, the forecast adds it up, `show` and the documentation name it. */
#ifndef FATHOM_RECORDING_LAYOUT_H
#define FATHOM_RECORDING_LAYOUT_H

#include "probes/routing_rows.h"
#include "runtime/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Each is a dimension scale at the root of the file. */
typedef enum recording_axis {
    AXIS_SEQ,
    AXIS_POS,
    AXIS_SITE,
    AXIS_SUBLAYER,
    AXIS_LAYER,
    AXIS_HEAD,
    AXIS_HEAD_OTHER,
    AXIS_SOURCE,
    AXIS_SOURCE_OTHER,
    AXIS_ATTN_HEAD,
    AXIS_CHANNEL,
    AXIS_QUERY_POS,
    AXIS_KEY_POS,
    AXIS_PIECE,
    AXIS_PARAM,
    AXIS_DRAW,
    AXIS_COUNT,
} recording_axis;

typedef enum recording_type {
    TYPE_INT32,
    TYPE_INT64,
    TYPE_UINT8,
    TYPE_FLOAT32,
    TYPE_FLOAT64,
    TYPE_TEXT,
} recording_type;

/* What a dataset holds. Kinds from RECORDED_WEIGHTS on have one dataset, or one slab, an index. */
typedef enum recorded_kind {
    RECORDED_ID,      /* tokens/id [seq,pos] int32 */
    RECORDED_LENGTH,  /* tokens/length [seq] int32 */
    RECORDED_START,   /* tokens/start [seq] int64 */
    RECORDED_LOSS,    /* tokens/loss [seq,pos] */
    RECORDED_IN_RMS,  /* hidden/in_rms [seq,pos,site] */
    RECORDED_OUT_RMS, /* hidden/out_rms [seq,pos,sublayer], likewise the next five */
    RECORDED_OUT_ABSMAX,
    RECORDED_STATE_RMS,
    RECORDED_STATE_ABSMAX,
    RECORDED_STATE_CHANNEL, /* hidden/state_absmax_channel, int32 */
    RECORDED_STATE_MEDIAN,
    RECORDED_ATTENTION_ENTROPY, /* attention/entropy [seq,pos,layer,attn_head] */
    RECORDED_FIRST_TOKEN_MASS,  /* attention/first_token_mass, likewise */
    RECORDED_GRAD_IN,           /* grad/in_l2 [seq,pos,site] */
    RECORDED_GRAD_OUT,          /* grad/out_l2 [seq,pos,sublayer] */
    RECORDED_GRAD_EMB,          /* grad/emb_l2 [seq,pos] */
    RECORDED_WEIGHTS,           /* routing/weights [seq,pos,site,head,source]; index: site */
    RECORDED_ROW,      /* routing_seq/ROW [seq,site,…] float64; index: into routing_rows */
    RECORDED_HAS_NULL, /* routing_seq/has_null [seq] uint8 */
    RECORDED_NULL_NORM, /* routing_seq/ROW_null_norm [seq,draw,site,…] float64; index: row * sites +
                           site */
    RECORDED_NULL_VAR, /* routing_seq/ROW_null_var, likewise */
    RECORDED_IN,       /* hidden/in/SITE [seq,pos,channel]; index: site */
    RECORDED_OUT,      /* hidden/out/SUBLAYER; index: sublayer */
    RECORDED_STATE,    /* hidden/state/SUBLAYER; index: sublayer */
    RECORDED_PATTERN,  /* attention/pattern/Ln [seq,attn_head,query_pos,key_pos]; index: layer */
    RECORDED_KINDS,
} recorded_kind;

/* What to record besides tokens, losses and magnitudes. */
typedef struct recording_wants {
    bool weights;   /* routing/weights */
    bool pairs;     /* rows head_js and source_cos */
    bool attention; /* attention/entropy and first_token_mass */
    bool gradients; /* grad/… */
    bool *in;       /* [sites], or NULL: none */
    bool *out;      /* [sublayers], or NULL */
    bool *state;    /* [sublayers], or NULL */
    bool *pattern;  /* [layers], or NULL */
} recording_wants;

/* The axes of one recording. Everything pointed to belongs to the caller. */
typedef struct recording_axes {
    size_t positions; /* tokens in the longest sequence */
    size_t sites, sublayers, layers;
    size_t heads, sources; /* routing; sources 0: the model does not route */
    size_t attention_heads, width;
    size_t draws, null_sequences;     /* of nulls, and how many sequences have them; 0: none */
    size_t params;                    /* tensors of the model; used with gradients only */
    const char *const *site_name;     /* [sites] */
    const char *const *sublayer_name; /* [sublayers] */
    const char *const *source_name;   /* [sources] */
    const char *const *param_name;    /* [params] */
    const uint8_t *available;         /* [sites, sources] */
    const int32_t *newest;            /* [sites]; -1: none */
} recording_axes;

enum { RECORDED_RANK_MAX = 5 };

typedef struct recorded_dataset {
    char name[96]; /* "routing/weights" */
    recorded_kind kind;
    size_t index; /* see recorded_kind; RECORDED_WEIGHTS: 0, of nulls the row */
    size_t rank;
    recording_axis axis[RECORDED_RANK_MAX];
    recording_type type;
    const char *units;
    char long_name[128];
} recorded_dataset;

/* One dataset holds all sites, a chunk and a `put` one. */
bool recorded_by_site(recorded_kind kind);

const char *recording_axis_name(recording_axis axis);
const char *recording_axis_long_name(recording_axis axis);
/* Extent of an axis; 0 for AXIS_SEQ and AXIS_PIECE, which grow. */
size_t recording_axis_extent(const recording_axes *axes, recording_axis axis);
/* The labels of a labelled axis, or NULL: it is numbered from 0. */
const char *const *recording_axis_labels(const recording_axes *axes, recording_axis axis);
size_t recording_type_bytes(recording_type type);

/* Every dataset with a seq axis that these wants ask for, in the order of recorded_kind. *list
 * [*count] is freed by the caller. */
int recorded_datasets(const recording_axes *axes, const recording_wants *wants,
                      recorded_dataset **list, size_t *count, status *st) MUST_USE;

/* Norms of the gradient of the mean loss: datasets without a seq axis, known at the end only. */
typedef enum gradient_norm {
    PARAM_L2, /* grad/param_l2 [param] */
    LAYER_L2, /* grad/layer_l2 [layer] */
    QUERY_L2, /* grad/query_l2 [site,head]; NaN where a site has no query */
    GRADIENT_NORMS,
} gradient_norm;
extern const recorded_dataset gradient_norm_datasets[GRADIENT_NORMS];
/* Numbers in one. */
size_t gradient_norm_size(const recording_axes *axes, gradient_norm which);

enum { RECORDED_CHUNK_BYTES = 4 << 20 }; /* no chunk is larger */

/* Bytes that a file of `sequences` sequences of full length takes, uncompressed. */
int recorded_forecast(const recording_axes *axes, const recording_wants *wants, size_t sequences,
                      uint64_t *bytes, status *st) MUST_USE;

#endif
