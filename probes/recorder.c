#include "probes/recorder.h"
#include "runtime/base/interrupt.h"
#include "runtime/base/log.h"
#include "runtime/base/sha256.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct recorder {
    const recording_plan *plan;
    const depth_program *program;
    recording_writer *writer;
    observer watch;
    size_t max_rows, max_sequences, vocabulary;
    size_t width[RECORDED_KINDS];  /* numbers a row of a waiting dataset; 0: it does not wait */
    void *waiting[RECORDED_KINDS]; /* [rows, width] float or, for the channel, int32 */
    float *weights;                /* [longest, heads, sources] of one sequence and site */
    size_t *label;                 /* as program->label */
    routing_layout *layout;        /* [sites] */
    size_t *sums_at;               /* [sites + 1] place of a site's sums, per sequence */
    double *sums;                  /* [sites][max_sequences, layout.total] */
    double *row;                   /* one routing row of one sequence */
    bool *saw;                     /* [vocabulary] */
    const null_queries *nulls;     /* NULL: none */
    bool *has_null;                /* [max_sequences] of the batch whose pass comes next */
    double *null_row;              /* [draws, one routing row at one site] */
    bool begun;                    /* a batch that is not committed yet */
    sha256 tokens_hash;
    recorder_totals committed, batch;
    struct {
        const char *what, *where;
        size_t start; /* first row of the sequence */
        size_t sequence, position;
    } nonfinite; /* of the batch's first sequence that has any, the first in the pass */
};

/* ---- NaN and Inf ---- */

static void note_nonfinite(recorder *r, const batch *b, size_t row, const char *what,
                           const char *where) {
    if (r->batch.nonfinite++ > 0 && row >= r->nonfinite.start)
        return;
    size_t sequence = 0;
    while (b->layout.start[sequence + 1] <= row)
        sequence++;
    r->nonfinite.what = what;
    r->nonfinite.where = where;
    r->nonfinite.start = b->layout.start[sequence];
    r->nonfinite.sequence = recording_writer_sequences(r->writer) + sequence;
    r->nonfinite.position = row - b->layout.start[sequence];
}

/* Says the first of the whole run, whatever the batches. */
static void report_nonfinite(const recorder *r) {
    if (r->batch.nonfinite && !r->committed.nonfinite)
        log_warn("NaN or Inf in %s of %s, sequence %zu, position %zu; recorded as it is",
                 r->nonfinite.what, r->nonfinite.where, r->nonfinite.sequence,
                 r->nonfinite.position);
}

/* ---- what waits for the end of the batch ---- */

/* Puts `count` numbers a row into columns from `column` on. */
static void keep(recorder *r, const batch *b, recorded_kind kind, size_t column, size_t count,
                 const float *data, const char *where) {
    static const char *const what[RECORDED_KINDS] = {
        [RECORDED_IN_RMS] = "in_rms",
        [RECORDED_OUT_RMS] = "out_rms",
        [RECORDED_OUT_ABSMAX] = "out_absmax",
        [RECORDED_STATE_RMS] = "state_rms",
        [RECORDED_STATE_ABSMAX] = "state_absmax",
        [RECORDED_STATE_MEDIAN] = "state_median_abs",
        [RECORDED_ATTENTION_ENTROPY] = "attention entropy",
        [RECORDED_FIRST_TOKEN_MASS] = "first_token_mass",
        [RECORDED_GRAD_IN] = "gradient in_l2",
        [RECORDED_GRAD_OUT] = "gradient out_l2",
        [RECORDED_GRAD_EMB] = "gradient emb_l2",
    };
    if (!data || r->width[kind] == 0)
        return;
    float *out = r->waiting[kind];
    for (size_t row = 0; row < b->layout.rows; row++)
        for (size_t i = 0; i < count; i++) {
            float x = data[row * count + i];
            out[row * r->width[kind] + column + i] = x;
            if (!isfinite(x))
                note_nonfinite(r, b, row, what[kind], where);
        }
}

static void keep_channel(recorder *r, const batch *b, size_t column, const int32_t *data) {
    int32_t *out = r->waiting[RECORDED_STATE_CHANNEL];
    for (size_t row = 0; data && row < b->layout.rows; row++)
        out[row * r->width[RECORDED_STATE_CHANNEL] + column] = data[row];
}

/* ---- what is written as it comes by ---- */

/* A tensor [rows, width] to its own dataset. */
static int put_point(recorder *r, const batch *b, recorded_kind kind, size_t index,
                     const float *data, status *st) {
    for (size_t i = 0; data && i < b->layout.sequences; i++) {
        size_t first = b->layout.start[i], length = b->layout.start[i + 1] - first;
        if (recording_writer_put(r->writer, kind, index, i, length,
                                 data + first * r->plan->axes.width, st))
            return FAILED;
    }
    return DONE;
}

static int put_pattern(recorder *r, const batch *b, size_t layer, const float *data, status *st) {
    for (size_t i = 0; data && i < b->layout.sequences; i++) {
        size_t length = b->layout.start[i + 1] - b->layout.start[i];
        if (recording_writer_put(r->writer, RECORDED_PATTERN, layer, i, length, data, st))
            return FAILED;
        data += r->plan->axes.attention_heads * length * length;
    }
    return DONE;
}

/* Weights of one site, laid out over the recording's source axis. */
static int put_weights(recorder *r, const batch *b, const site_view *view, status *st) {
    size_t heads = r->plan->axes.heads, sources = r->plan->axes.sources;
    const size_t *label = r->label + r->program->offset[view->site];
    for (size_t i = 0; i < b->layout.sequences; i++) {
        size_t first = b->layout.start[i], length = b->layout.start[i + 1] - first;
        const float *from = view->weights + first * heads * view->sources;
        float *to = r->weights;
        for (size_t cell = 0; cell < length * heads; cell++, to += sources, from += view->sources) {
            bool finite = true;
            for (size_t s = 0; s < sources; s++)
                to[s] = NAN;
            for (size_t s = 0; s < view->sources; s++) {
                to[label[s]] = from[s];
                finite = finite && isfinite(from[s]);
            }
            if (!finite)
                note_nonfinite(r, b, first + cell / heads, "routing weights",
                               r->program->site_name[view->site]);
        }
        if (recording_writer_put(r->writer, RECORDED_WEIGHTS, view->site, i, length, r->weights,
                                 st))
            return FAILED;
    }
    return DONE;
}

static bool has_null(const recorder *r, const batch *b, size_t sequence) {
    return r->nulls && null_sequence_has(r->nulls, b->first + sequence);
}

/* The site's rows under random queries, of one sequence and of one of the two kinds. */
static int put_null_rows(recorder *r, const site_view *view, recorded_kind kind, size_t sequence,
                         size_t sequences, size_t length, status *st) {
    const recording_axes *axes = &r->plan->axes;
    size_t skip = r->plan->header.skip_first, total = view->sums_layout.total;
    double tokens = length > skip ? (double)(length - skip) : 0;
    size_t first = kind == RECORDED_NULL_NORM ? 0 : axes->draws;
    for (size_t row = 0; row < routing_row_count; row++) {
        if (!routing_rows[row].nulls)
            continue;
        size_t size = routing_row_size(&routing_rows[row], axes->heads, axes->sources);
        for (size_t d = 0; d < axes->draws; d++)
            routing_row_spread(
                &routing_rows[row], &view->sums_layout,
                view->alternative_sums + ((first + d) * sequences + sequence) * total,
                r->label + r->program->offset[view->site], axes->sources, r->null_row + d * size);
        for (size_t i = 0; i < axes->draws * size; i++)
            r->null_row[i] /= tokens;
        if (recording_writer_put(r->writer, kind, row * axes->sites + view->site, sequence, length,
                                 r->null_row, st))
            return FAILED;
    }
    return DONE;
}

static int put_nulls(recorder *r, const batch *b, const site_view *view, status *st) {
    size_t sequences = b->layout.sequences;
    for (size_t i = 0; i < sequences; i++) {
        size_t length = b->layout.start[i + 1] - b->layout.start[i];
        if (has_null(r, b, i) &&
            (put_null_rows(r, view, RECORDED_NULL_NORM, i, sequences, length, st) ||
             put_null_rows(r, view, RECORDED_NULL_VAR, i, sequences, length, st)))
            return FAILED;
    }
    return DONE;
}

static int stop_if_interrupted(status *st) {
    if (!interrupt_pending())
        return DONE;
    status_fail(st, "interrupted");
    return INTERRUPTED;
}

static int on_site(void *self, const batch *b, const site_view *view, status *st) {
    recorder *r = self;
    if (!r->begun && recording_writer_begin(r->writer, b->layout.sequences, st))
        return FAILED;
    r->begun = true;
    keep(r, b, RECORDED_IN_RMS, view->site, 1, view->in_rms, r->program->site_name[view->site]);
    if (view->sums)
        memcpy(r->sums + r->sums_at[view->site] * r->max_sequences, view->sums,
               b->layout.sequences * view->sums_layout.total * sizeof *view->sums);
    if (view->weights && put_weights(r, b, view, st))
        return FAILED;
    if (view->alternative_sums && put_nulls(r, b, view, st))
        return FAILED;
    if (put_point(r, b, RECORDED_IN, view->site, view->in, st))
        return FAILED;
    return stop_if_interrupted(st);
}

static int on_sublayer(void *self, const batch *b, const sublayer_view *view, status *st) {
    recorder *r = self;
    size_t index = view->sublayer->index, layer = view->sublayer->layer;
    size_t heads = r->plan->axes.attention_heads;
    const char *name = r->program->site_name[index];
    keep(r, b, RECORDED_OUT_RMS, index, 1, view->out_rms, name);
    keep(r, b, RECORDED_OUT_ABSMAX, index, 1, view->out_absmax, name);
    keep(r, b, RECORDED_STATE_RMS, index, 1, view->state_rms, name);
    keep(r, b, RECORDED_STATE_ABSMAX, index, 1, view->state_absmax, name);
    keep(r, b, RECORDED_STATE_MEDIAN, index, 1, view->state_median_abs, name);
    keep_channel(r, b, index, view->state_absmax_channel);
    keep(r, b, RECORDED_ATTENTION_ENTROPY, layer * heads, heads, view->attention_entropy, name);
    keep(r, b, RECORDED_FIRST_TOKEN_MASS, layer * heads, heads, view->attention_first_token_mass,
         name);
    if (put_point(r, b, RECORDED_OUT, index, view->out, st) ||
        put_point(r, b, RECORDED_STATE, index, view->state, st) ||
        put_pattern(r, b, layer, view->attention_pattern, st))
        return FAILED;
    return stop_if_interrupted(st);
}

/* The pass has the loss of the next token beside each token; a recording has it beside the token
 * predicted. */
static int on_head(void *self, const batch *b, const head_view *view, status *st) {
    (void)st;
    recorder *r = self;
    float *loss = r->waiting[RECORDED_LOSS];
    for (size_t i = 0; i < b->layout.sequences; i++) {
        size_t first = b->layout.start[i];
        loss[first] = NAN;
        for (size_t row = first + 1; row < b->layout.start[i + 1]; row++) {
            loss[row] = view->loss[row - 1];
            r->batch.loss += loss[row];
            r->batch.scored++;
            if (!isfinite(loss[row]))
                note_nonfinite(r, b, row, "the loss", "the model");
        }
    }
    return DONE;
}

/* Nothing stops the pass here: the session's sums would be left with half a batch. */
static int on_gradient(void *self, const batch *b, const gradient_view *view, status *st) {
    (void)st;
    recorder *r = self;
    size_t place = view->point == GRADIENT_OUT ? view->sublayer->index : view->site;
    const char *name = r->program->site_name[place];
    if (view->point == GRADIENT_EMB)
        keep(r, b, RECORDED_GRAD_EMB, 0, 1, view->l2, "the embedding");
    else
        keep(r, b, view->point == GRADIENT_IN ? RECORDED_GRAD_IN : RECORDED_GRAD_OUT, place, 1,
             view->l2, name);
    return DONE;
}

/* ---- the end of a batch ---- */

/* One routing row of one sequence, [site, …], as sums. */
static int put_row(recorder *r, size_t row, size_t sequence, double tokens, status *st) {
    const recording_axes *axes = &r->plan->axes;
    size_t size = routing_row_size(&routing_rows[row], axes->heads, axes->sources);
    for (size_t site = 0; site < axes->sites; site++) {
        const routing_layout *layout = &r->layout[site];
        routing_row_spread(&routing_rows[row], layout,
                           r->sums + r->sums_at[site] * r->max_sequences + sequence * layout->total,
                           r->label + r->program->offset[site], axes->sources,
                           r->row + site * size);
    }
    return recording_writer_put_row(r->writer, row, sequence, r->row, tokens, st);
}

static int put_sequence(recorder *r, const batch *b, size_t sequence, int64_t offset, status *st) {
    size_t first = b->layout.start[sequence], length = b->layout.start[sequence + 1] - first;
    const int32_t stored_length = (int32_t)length;
    const uint8_t null_rows = has_null(r, b, sequence);
    if (recording_writer_put(r->writer, RECORDED_ID, 0, sequence, length, b->id + first, st) ||
        recording_writer_put(r->writer, RECORDED_LENGTH, 0, sequence, length, &stored_length, st) ||
        recording_writer_put(r->writer, RECORDED_START, 0, sequence, length, &offset, st) ||
        recording_writer_put(r->writer, RECORDED_HAS_NULL, 0, sequence, length, &null_rows, st))
        return FAILED;
    for (size_t kind = 0; kind < RECORDED_KINDS; kind++) {
        const char *data = r->waiting[kind];
        if (data && recording_writer_put(r->writer, (recorded_kind)kind, 0, sequence, length,
                                         data + first * r->width[kind] * sizeof(float), st))
            return FAILED;
    }
    size_t skip = r->plan->header.skip_first;
    for (size_t row = 0; row < routing_row_count; row++)
        if (recording_writer_has_row(r->writer, row) &&
            put_row(r, row, sequence, length > skip ? (double)(length - skip) : 0, st))
            return FAILED;
    return DONE;
}

static int on_done(void *self, const batch *b, status *st) {
    recorder *r = self;
    for (size_t i = 0; i < b->layout.sequences; i++)
        if (put_sequence(r, b, i, b->offset[i], st))
            return FAILED;
    if (recording_writer_commit(r->writer, st))
        return FAILED;
    r->begun = false;
    for (size_t row = 0; row < b->layout.rows; row++)
        r->saw[b->id[row]] = true;
    for (size_t i = 0; i < b->layout.sequences; i++)
        tokens_hash_add(&r->tokens_hash, b->id + b->layout.start[i],
                        b->layout.start[i + 1] - b->layout.start[i]);
    report_nonfinite(r);
    r->committed.loss += r->batch.loss;
    r->committed.scored += r->batch.scored;
    r->committed.nonfinite += r->batch.nonfinite;
    r->committed.tokens += b->layout.rows;
    r->batch = (recorder_totals){0};
    return DONE;
}

/* ---- making one ---- */

static int create_waiting(recorder *r, status *st) {
    const recording_axes *axes = &r->plan->axes;
    r->width[RECORDED_LOSS] = 1;
    r->width[RECORDED_IN_RMS] = axes->sites;
    for (size_t kind = RECORDED_OUT_RMS; kind <= RECORDED_STATE_MEDIAN; kind++)
        r->width[kind] = axes->sublayers;
    if (r->plan->wants.attention)
        r->width[RECORDED_ATTENTION_ENTROPY] = r->width[RECORDED_FIRST_TOKEN_MASS] =
            axes->layers * axes->attention_heads;
    if (r->plan->wants.gradients) {
        r->width[RECORDED_GRAD_IN] = axes->sites;
        r->width[RECORDED_GRAD_OUT] = axes->sublayers;
        r->width[RECORDED_GRAD_EMB] = 1;
    }
    for (size_t kind = 0; kind < RECORDED_KINDS; kind++) {
        if (r->width[kind] == 0)
            continue;
        float *data =
            mem_array(r->max_rows, r->width[kind] * sizeof *data, "magnitudes of a batch", st);
        if (!data)
            return FAILED;
        r->waiting[kind] = data;
        /* What a model does not have (a state, say) keeps its fill value. */
        for (size_t i = 0; i < r->max_rows * r->width[kind]; i++)
            if (kind == RECORDED_STATE_CHANNEL)
                ((int32_t *)r->waiting[kind])[i] = -1;
            else
                data[i] = NAN;
    }
    return DONE;
}

static int create_sums(recorder *r, status *st) {
    const recording_axes *axes = &r->plan->axes;
    const depth_program *program = r->program;
    size_t entries = program->offset[axes->sites], longest = 1;
    r->label = mem_array(entries, sizeof *r->label, "labels", st);
    r->layout = mem_array(axes->sites, sizeof *r->layout, "layouts", st);
    r->sums_at = mem_array(axes->sites + 1, sizeof *r->sums_at, "layouts", st);
    if (!r->label || !r->layout || !r->sums_at)
        return FAILED;
    for (size_t i = 0; i < entries; i++)
        r->label[i] = (size_t)program->label[i];
    for (size_t i = 0; i < axes->sites; i++) {
        const depth_site *site = &program->plan.site[i];
        r->layout[i] = routing_layout_of(axes->heads, (size_t)site->sources, site->null_source,
                                         r->plan->wants.pairs);
        r->sums_at[i + 1] = r->sums_at[i] + r->layout[i].total;
    }
    for (size_t i = 0; i < routing_row_count; i++) {
        size_t size = routing_row_size(&routing_rows[i], axes->heads, axes->sources);
        if (recording_writer_has_row(r->writer, i) && size > longest)
            longest = size;
    }
    r->sums = mem_array(r->max_sequences, r->sums_at[axes->sites] * sizeof *r->sums,
                        "routing sums of a batch", st);
    r->row = mem_array(axes->sites, longest * sizeof *r->row, "a routing row", st);
    return r->sums && r->row ? DONE : FAILED;
}

int recorder_create(const recording_plan *plan, const depth_program *program,
                    const session_limits *limits, size_t vocabulary, recording_writer *writer,
                    recorder **out, status *st) {
    *out = NULL;
    recorder *r = mem_array(1, sizeof *r, "recorder", st);
    if (!r)
        return FAILED;
    const recording_wants *wants = &plan->wants;
    r->plan = plan;
    r->program = program;
    r->writer = writer;
    r->max_rows = limits->rows;
    r->max_sequences = limits->sequences;
    r->vocabulary = vocabulary;
    r->watch = (observer){.self = r,
                          .magnitudes = true,
                          .routing_sums = plan->axes.sources > 0,
                          .routing_pairs = wants->pairs,
                          .skip_first = plan->header.skip_first,
                          .weights = wants->weights && plan->axes.sources > 0,
                          .attention = wants->attention,
                          .pattern = wants->pattern,
                          .in = wants->in,
                          .out = wants->out,
                          .state = wants->state,
                          .on_site = on_site,
                          .on_sublayer = on_sublayer,
                          .on_head = on_head,
                          .on_gradient = wants->gradients ? on_gradient : NULL,
                          .on_done = on_done};
    sha256_init(&r->tokens_hash);
    size_t cells = plan->axes.heads * plan->axes.sources;
    r->saw = mem_array(vocabulary, sizeof *r->saw, "vocabulary", st);
    r->weights = mem_array(r->watch.weights ? limits->longest : 0, cells * sizeof *r->weights,
                           "routing weights", st);
    if (!r->saw || !r->weights || create_waiting(r, st) || create_sums(r, st)) {
        recorder_free(r);
        return FAILED;
    }
    *out = r;
    return DONE;
}

int recorder_add_nulls(recorder *r, const null_queries *nulls, status *st) {
    const recording_axes *axes = &r->plan->axes;
    size_t longest = 1;
    for (size_t i = 0; i < routing_row_count; i++) {
        size_t size = routing_row_size(&routing_rows[i], axes->heads, axes->sources);
        if (routing_rows[i].nulls && size > longest)
            longest = size;
    }
    r->has_null = mem_array(r->max_sequences, sizeof *r->has_null, "nulls", st);
    r->null_row = mem_array(axes->draws, longest * sizeof *r->null_row, "nulls", st);
    if (!r->has_null || !r->null_row)
        return FAILED;
    r->nulls = nulls;
    r->watch.alternative_sequence = r->has_null;
    r->watch.alternative_sums = true;
    return DONE;
}

void recorder_free(recorder *r) {
    if (!r)
        return;
    for (size_t i = 0; i < RECORDED_KINDS; i++)
        free(r->waiting[i]);
    free(r->weights);
    free(r->label);
    free(r->layout);
    free(r->sums_at);
    free(r->sums);
    free(r->row);
    free(r->saw);
    free(r->has_null);
    free(r->null_row);
    free(r);
}

const observer *recorder_observer(recorder *r, const batch *b) {
    bool any = false;
    for (size_t i = 0; r->nulls && i < b->layout.sequences; i++) {
        r->has_null[i] = has_null(r, b, i);
        any = any || r->has_null[i];
    }
    r->watch.alternatives = any ? r->nulls->site : NULL;
    return &r->watch;
}

void recorder_tokens_hash(recorder *r, char hex[65]) {
    sha256_finish(&r->tokens_hash, hex);
}

recorder_totals recorder_report(const recorder *r) {
    return r->committed;
}

bool recorder_saw(const recorder *r, size_t id) {
    return id < r->vocabulary && r->saw[id];
}
