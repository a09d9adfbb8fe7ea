#include "probes/recording_layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *long_name;
} axis_texts[AXIS_COUNT] = {
    [AXIS_SEQ] = {"seq", "sequence, in the order of the input"},
    [AXIS_POS] = {"pos", "position in the sequence"},
    [AXIS_SITE] = {"site", "place where depth is read, named by the sublayer that reads it"},
    [AXIS_SUBLAYER] = {"sublayer", "one attention or one MLP"},
    [AXIS_LAYER] = {"layer", "layer"},
    [AXIS_HEAD] = {"head", "routing head"},
    [AXIS_HEAD_OTHER] = {"head_other", "routing head it is compared with"},
    [AXIS_SOURCE] = {"source", "tensor that a site may read, in order of first appearance"},
    [AXIS_SOURCE_OTHER] = {"source_other", "source it is compared with"},
    [AXIS_ATTN_HEAD] = {"attn_head", "attention query head"},
    [AXIS_CHANNEL] = {"channel", "channel of the hidden width"},
    [AXIS_QUERY_POS] = {"query_pos", "position that attends"},
    [AXIS_KEY_POS] = {"key_pos", "position attended to"},
    [AXIS_PIECE] = {"piece", "distinct token id"},
    [AXIS_DRAW] = {"draw", "random direction in the place of a site's query"},
    [AXIS_PARAM] = {"param", "learned tensor, by its name in the checkpoint"},
};

const char *recording_axis_name(recording_axis axis) {
    return axis_texts[axis].name;
}

const char *recording_axis_long_name(recording_axis axis) {
    return axis_texts[axis].long_name;
}

size_t recording_axis_extent(const recording_axes *axes, recording_axis axis) {
    const size_t extent[AXIS_COUNT] = {
        [AXIS_POS] = axes->positions,       [AXIS_SITE] = axes->sites,
        [AXIS_SUBLAYER] = axes->sublayers,  [AXIS_LAYER] = axes->layers,
        [AXIS_HEAD] = axes->heads,          [AXIS_HEAD_OTHER] = axes->heads,
        [AXIS_SOURCE] = axes->sources,      [AXIS_SOURCE_OTHER] = axes->sources,
        [AXIS_CHANNEL] = axes->width,       [AXIS_ATTN_HEAD] = axes->attention_heads,
        [AXIS_QUERY_POS] = axes->positions, [AXIS_KEY_POS] = axes->positions,
        [AXIS_PARAM] = axes->params,        [AXIS_DRAW] = axes->draws,
    };
    return extent[axis];
}

const char *const *recording_axis_labels(const recording_axes *axes, recording_axis axis) {
    switch (axis) {
    case AXIS_SITE:
        return axes->site_name;
    case AXIS_SUBLAYER:
        return axes->sublayer_name;
    case AXIS_SOURCE:
    case AXIS_SOURCE_OTHER:
        return axes->source_name;
    case AXIS_PARAM:
        return axes->param_name;
    default:
        return NULL;
    }
}

size_t recording_type_bytes(recording_type type) {
    static const size_t bytes[] = {[TYPE_INT32] = 4,   [TYPE_INT64] = 8,   [TYPE_UINT8] = 1,
                                   [TYPE_FLOAT32] = 4, [TYPE_FLOAT64] = 8, [TYPE_TEXT] = 16};
    return bytes[type];
}

/* Datasets that stand alone, by kind. */
static const recorded_dataset single[] = {
    {"tokens/id",
     RECORDED_ID,
     0,
     2,
     {AXIS_SEQ, AXIS_POS},
     TYPE_INT32,
     "1",
     "token id; -1 beyond the sequence"},
    {"tokens/length", RECORDED_LENGTH, 0, 1, {AXIS_SEQ}, TYPE_INT32, "1", "tokens in the sequence"},
    {"tokens/start",
     RECORDED_START,
     0,
     1,
     {AXIS_SEQ},
     TYPE_INT64,
     "1",
     "offset of the sequence in the stream of tokens"},
    {"tokens/loss",
     RECORDED_LOSS,
     0,
     2,
     {AXIS_SEQ, AXIS_POS},
     TYPE_FLOAT32,
     "nats",
     "loss of predicting this token from those before it"},
    {"hidden/in_rms",
     RECORDED_IN_RMS,
     0,
     3,
     {AXIS_SEQ, AXIS_POS, AXIS_SITE},
     TYPE_FLOAT32,
     "1",
     "root mean square of what is read at the site"},
    {"hidden/out_rms",
     RECORDED_OUT_RMS,
     0,
     3,
     {AXIS_SEQ, AXIS_POS, AXIS_SUBLAYER},
     TYPE_FLOAT32,
     "1",
     "root mean square of the sublayer's output"},
    {"hidden/out_absmax",
     RECORDED_OUT_ABSMAX,
     0,
     3,
     {AXIS_SEQ, AXIS_POS, AXIS_SUBLAYER},
     TYPE_FLOAT32,
     "1",
     "largest magnitude in the sublayer's output"},
    {"hidden/state_rms",
     RECORDED_STATE_RMS,
     0,
     3,
     {AXIS_SEQ, AXIS_POS, AXIS_SUBLAYER},
     TYPE_FLOAT32,
     "1",
     "root mean square of the running tensor after the sublayer"},
    {"hidden/state_absmax",
     RECORDED_STATE_ABSMAX,
     0,
     3,
     {AXIS_SEQ, AXIS_POS, AXIS_SUBLAYER},
     TYPE_FLOAT32,
     "1",
     "largest magnitude in the running tensor after the sublayer"},
    {"hidden/state_absmax_channel",
     RECORDED_STATE_CHANNEL,
     0,
     3,
     {AXIS_SEQ, AXIS_POS, AXIS_SUBLAYER},
     TYPE_INT32,
     "1",
     "channel of the largest magnitude"},
    {"hidden/state_median_abs",
     RECORDED_STATE_MEDIAN,
     0,
     3,
     {AXIS_SEQ, AXIS_POS, AXIS_SUBLAYER},
     TYPE_FLOAT32,
     "1",
     "lower median magnitude of the running tensor after the sublayer"},
    {"attention/entropy",
     RECORDED_ATTENTION_ENTROPY,
     0,
     4,
     {AXIS_SEQ, AXIS_POS, AXIS_LAYER, AXIS_ATTN_HEAD},
     TYPE_FLOAT32,
     "nats",
     "entropy of the attention over earlier positions"},
    {"attention/first_token_mass",
     RECORDED_FIRST_TOKEN_MASS,
     0,
     4,
     {AXIS_SEQ, AXIS_POS, AXIS_LAYER, AXIS_ATTN_HEAD},
     TYPE_FLOAT32,
     "1",
     "attention weight on position 0"},
    {"grad/in_l2",
     RECORDED_GRAD_IN,
     0,
     3,
     {AXIS_SEQ, AXIS_POS, AXIS_SITE},
     TYPE_FLOAT32,
     "nats",
     "norm of the gradient of the sequence's summed loss in what is read at the site, through its "
     "sublayer alone"},
    {"grad/out_l2",
     RECORDED_GRAD_OUT,
     0,
     3,
     {AXIS_SEQ, AXIS_POS, AXIS_SUBLAYER},
     TYPE_FLOAT32,
     "nats",
     "norm of the gradient of the sequence's summed loss in the sublayer's output, through every "
     "later reader"},
    {"grad/emb_l2",
     RECORDED_GRAD_EMB,
     0,
     2,
     {AXIS_SEQ, AXIS_POS},
     TYPE_FLOAT32,
     "nats",
     "norm of the gradient of the sequence's summed loss in the embedded token"},
    {"routing_seq/has_null",
     RECORDED_HAS_NULL,
     0,
     1,
     {AXIS_SEQ},
     TYPE_UINT8,
     "1",
     "1: the sequence has statistics under random queries"},
    {"routing/weights",
     RECORDED_WEIGHTS,
     0,
     5,
     {AXIS_SEQ, AXIS_POS, AXIS_SITE, AXIS_HEAD, AXIS_SOURCE},
     TYPE_FLOAT32,
     "1",
     "routing weight; NaN where the site has no such source"},
};

const recorded_dataset gradient_norm_datasets[GRADIENT_NORMS] = {
    [PARAM_L2] = {.name = "grad/param_l2",
                  .rank = 1,
                  .axis = {AXIS_PARAM},
                  .type = TYPE_FLOAT32,
                  .units = "nats/token",
                  .long_name = "norm of the gradient of the mean loss in a learned tensor"},
    [LAYER_L2] = {.name = "grad/layer_l2",
                  .rank = 1,
                  .axis = {AXIS_LAYER},
                  .type = TYPE_FLOAT32,
                  .units = "nats/token",
                  .long_name = "norm of the gradient of the mean loss in all tensors of a layer"},
    [QUERY_L2] = {.name = "grad/query_l2",
                  .rank = 2,
                  .axis = {AXIS_SITE, AXIS_HEAD},
                  .type = TYPE_FLOAT32,
                  .units = "nats/token",
                  .long_name = "norm of the gradient of the mean loss in a routing head's query"},
};

size_t gradient_norm_size(const recording_axes *axes, gradient_norm which) {
    const recorded_dataset *d = &gradient_norm_datasets[which];
    size_t size = 1;
    for (size_t i = 0; i < d->rank; i++)
        size *= recording_axis_extent(axes, d->axis[i]);
    return size;
}

static recorded_dataset row_dataset(size_t index) {
    static const struct {
        size_t rank;
        recording_axis axis[2];
    } shape[] = {
        [ROW_SITE] = {2, {0}},
        [ROW_HEAD] = {3, {AXIS_HEAD}},
        [ROW_SOURCE] = {3, {AXIS_SOURCE}},
        [ROW_HEAD_SOURCE] = {4, {AXIS_HEAD, AXIS_SOURCE}},
        [ROW_HEAD_HEAD] = {4, {AXIS_HEAD, AXIS_HEAD_OTHER}},
        [ROW_SOURCE_SOURCE] = {4, {AXIS_SOURCE, AXIS_SOURCE_OTHER}},
    };
    const routing_row *row = &routing_rows[index];
    recorded_dataset d = {
        .kind = RECORDED_ROW,
        .index = index,
        .rank = shape[row->axes].rank,
        .axis = {AXIS_SEQ, AXIS_SITE, shape[row->axes].axis[0], shape[row->axes].axis[1]},
        .type = TYPE_FLOAT64,
        .units = row->units};
    snprintf(d.name, sizeof d.name, "routing_seq/%s", row->name);
    snprintf(d.long_name, sizeof d.long_name, "%s, per sequence", row->long_name);
    return d;
}

static recorded_dataset null_dataset(recorded_kind kind, size_t index) {
    bool norm = kind == RECORDED_NULL_NORM;
    recorded_dataset d = row_dataset(index);
    d.kind = kind;
    for (size_t i = d.rank++; i > 1; i--)
        d.axis[i] = d.axis[i - 1];
    d.axis[1] = AXIS_DRAW;
    snprintf(d.name, sizeof d.name, "routing_seq/%s_null_%s", routing_rows[index].name,
             norm ? "norm" : "var");
    snprintf(d.long_name, sizeof d.long_name, "%s, random queries of equal %s, per sequence",
             routing_rows[index].long_name, norm ? "norm" : "logit variance");
    return d;
}

bool recorded_by_site(recorded_kind kind) {
    return kind == RECORDED_WEIGHTS || kind == RECORDED_NULL_NORM || kind == RECORDED_NULL_VAR;
}

static recorded_dataset point_dataset(recorded_kind kind, size_t index, const char *label) {
    const char *word = kind == RECORDED_IN ? "in" : kind == RECORDED_OUT ? "out" : "state";
    const char *what = kind == RECORDED_IN    ? "what is read at"
                       : kind == RECORDED_OUT ? "output of"
                                              : "running tensor after";
    recorded_dataset d = {.kind = kind,
                          .index = index,
                          .rank = 3,
                          .axis = {AXIS_SEQ, AXIS_POS, AXIS_CHANNEL},
                          .type = TYPE_FLOAT32,
                          .units = "1"};
    snprintf(d.name, sizeof d.name, "hidden/%s/%s", word, label);
    snprintf(d.long_name, sizeof d.long_name, "%s %s", what, label);
    return d;
}

static recorded_dataset pattern_dataset(size_t layer) {
    recorded_dataset d = {.kind = RECORDED_PATTERN,
                          .index = layer,
                          .rank = 4,
                          .axis = {AXIS_SEQ, AXIS_ATTN_HEAD, AXIS_QUERY_POS, AXIS_KEY_POS},
                          .type = TYPE_FLOAT32,
                          .units = "1"};
    snprintf(d.name, sizeof d.name, "attention/pattern/L%zu", layer);
    snprintf(d.long_name, sizeof d.long_name, "attention weights of layer %zu", layer);
    return d;
}

int recorded_datasets(const recording_axes *axes, const recording_wants *wants,
                      recorded_dataset **list, size_t *count, status *st) {
    size_t singles = sizeof single / sizeof *single;
    size_t most =
        singles + 3 * routing_row_count + axes->sites + 2 * axes->sublayers + axes->layers;
    recorded_dataset *d = mem_array(most, sizeof *d, "list of datasets", st);
    if (!d)
        return FAILED;
    size_t n = 0;
    for (size_t i = 0; i < singles; i++) {
        recorded_kind kind = single[i].kind;
        bool wanted = kind == RECORDED_WEIGHTS    ? wants->weights && axes->sources > 0
                      : kind == RECORDED_HAS_NULL ? axes->draws > 0
                      : kind == RECORDED_ATTENTION_ENTROPY || kind == RECORDED_FIRST_TOKEN_MASS
                          ? wants->attention
                      : kind >= RECORDED_GRAD_IN && kind <= RECORDED_GRAD_EMB ? wants->gradients
                                                                              : true;
        if (wanted)
            d[n++] = single[i];
    }
    for (size_t i = 0; i < routing_row_count && axes->sources > 0; i++)
        if (wants->pairs || !routing_rows[i].pairs)
            d[n++] = row_dataset(i);
    for (size_t i = 0; i < routing_row_count && axes->draws > 0; i++)
        if (routing_rows[i].nulls && (wants->pairs || !routing_rows[i].pairs)) {
            d[n++] = null_dataset(RECORDED_NULL_NORM, i);
            d[n++] = null_dataset(RECORDED_NULL_VAR, i);
        }
    for (size_t i = 0; i < axes->sites; i++)
        if (wants->in && wants->in[i])
            d[n++] = point_dataset(RECORDED_IN, i, axes->site_name[i]);
    for (size_t i = 0; i < axes->sublayers; i++)
        if (wants->out && wants->out[i])
            d[n++] = point_dataset(RECORDED_OUT, i, axes->sublayer_name[i]);
    for (size_t i = 0; i < axes->sublayers; i++)
        if (wants->state && wants->state[i])
            d[n++] = point_dataset(RECORDED_STATE, i, axes->sublayer_name[i]);
    for (size_t i = 0; i < axes->layers; i++)
        if (wants->pattern && wants->pattern[i])
            d[n++] = pattern_dataset(i);
    *list = d;
    *count = n;
    return DONE;
}

int recorded_forecast(const recording_axes *axes, const recording_wants *wants, size_t sequences,
                      uint64_t *bytes, status *st) {
    /* Objects at the root and beside each dataset, and an index entry for every chunk. */
    enum { DATASET_OVERHEAD = 6000, CHUNK_OVERHEAD = 100 };
    recorded_dataset *list;
    size_t count;
    if (recorded_datasets(axes, wants, &list, &count, st))
        return FAILED;
    *bytes = 0;
    for (size_t i = 0; i < count; i++) {
        const recorded_dataset *d = &list[i];
        uint64_t own = recording_type_bytes(d->type); /* of one sequence */
        for (size_t axis = 1; axis < d->rank; axis++)
            own *= recording_axis_extent(axes, d->axis[axis]);
        uint64_t chunks = recorded_by_site(d->kind) ? axes->sites : 1;
        chunks = own / RECORDED_CHUNK_BYTES > chunks ? own / RECORDED_CHUNK_BYTES : chunks;
        bool null = d->kind == RECORDED_NULL_NORM || d->kind == RECORDED_NULL_VAR;
        size_t filled = null ? axes->null_sequences : sequences;
        *bytes += filled * (own + (d->rank > 1 ? chunks * CHUNK_OVERHEAD : 0));
        *bytes += DATASET_OVERHEAD + (d->kind == RECORDED_ROW || null ? own : 0);
    }
    for (size_t i = 0; wants->gradients && i < GRADIENT_NORMS; i++)
        *bytes += DATASET_OVERHEAD + gradient_norm_size(axes, (gradient_norm)i) * sizeof(float);
    for (size_t i = 0; wants->gradients && i < axes->params; i++) /* labels */
        *bytes += strlen(axes->param_name[i]) + recording_type_bytes(TYPE_TEXT);
    free(list);
    return DONE;
}
