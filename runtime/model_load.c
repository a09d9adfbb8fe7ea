/* model_load.c - weights from a checkpoint into the backend's memory, piece by piece. */
#include "runtime/model_load.h"

#include "runtime/base/log.h"
#include "runtime/rope.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 16, WARNINGS_MAX = 8 }; /* elements read at a time */

/* NaN and Inf values of one tensor. */
typedef struct nonfinite {
    size_t nans, infinities, first;
} nonfinite;

static void count_nonfinite(const float *value, size_t count, size_t first, nonfinite *found) {
    size_t bad = 0;
#pragma omp simd reduction(+ : bad)
    for (size_t i = 0; i < count; i++)
        bad += !(fabsf(value[i]) <= FLT_MAX);
    for (size_t i = 0; i < count && bad; i++) {
        if (isfinite(value[i]))
            continue;
        if (found->nans + found->infinities == 0)
            found->first = first + i;
        if (isnan(value[i]))
            found->nans++;
        else
            found->infinities++;
    }
}

static int new_buffer(model *m, buffer_kind kind, size_t elements, buffer **out, status *st) {
    if (m->k->buffer_create(m->device, kind, elements, out, st))
        return status_prefix(st, "%s: %zu weights", m->path, elements);
    m->owned[m->owned_count++] = *out;
    return DONE;
}

static int read_tensor(model *m, const tensor_info *t, buffer *to, size_t offset, float *piece,
                       nonfinite *found, status *st) {
    for (size_t at = 0; at < t->elements; at += PIECE) {
        size_t count = t->elements - at < PIECE ? t->elements - at : PIECE;
        if (checkpoint_read_part(m->weights_file, t, at, count, piece, st))
            return FAILED;
        count_nonfinite(piece, count, at, found);
        if (m->k->upload(m->device, to, offset + at, piece, count, st))
            return FAILED;
    }
    return DONE;
}

static void warn_nonfinite(const model *m, const wanted *w, const tensor_info *t,
                           const nonfinite *found, size_t *tensors) {
    if (found->nans + found->infinities == 0 || ++*tensors > WARNINGS_MAX)
        return;
    log_warn("%s: %s: %zu NaN and %zu Inf of %zu values, the first at [%zu,%zu]; results will be "
             "affected",
             checkpoint_file(m->weights_file, t->file), t->name, found->nans, found->infinities,
             t->elements, found->first / w->columns, found->first % w->columns);
}

static int read_all(model *m, float *piece, status *st) {
    buffer *memory = NULL;
    size_t damaged = 0;
    for (size_t i = 0; i < m->params; i++) {
        const wanted *w = &m->wanted[i];
        const tensor_info *t = checkpoint_find(m->weights_file, w->name);
        nonfinite found = {0};
        const buffer_kind kind =
            w->columns > 1 && w->total > w->columns ? BUFFER_REAL : BUFFER_EXACT;
        if (w->offset == 0 && new_buffer(m, kind, w->total, &memory, st))
            return FAILED;
        if (w->memory)
            *w->memory = memory;
        else
            *w->routing = memory;
        if (read_tensor(m, t, memory, w->offset, piece, &found, st))
            return FAILED;
        warn_nonfinite(m, w, t, &found, &damaged);
        m->param[i].memory = memory;
        m->param[i].nonfinite = found.nans + found.infinities;
    }
    if (damaged > WARNINGS_MAX)
        log_warn("%s: NaN or Inf in %zu tensors in all", m->path, damaged);
    return DONE;
}

/* lm_head.weight beside a tied embedding: does it hold the same values? */
static int head_equals_embedding(const model *m, const tensor_info *head, float *piece, bool *equal,
                                 status *st) {
    const tensor_info *table = checkpoint_find(m->weights_file, m->wanted[0].name);
    *equal = head->elements == table->elements;
    for (size_t at = 0; at < table->elements && *equal; at += PIECE / 2) {
        size_t count = table->elements - at < PIECE / 2 ? table->elements - at : PIECE / 2;
        if (checkpoint_read_part(m->weights_file, table, at, count, piece, st) ||
            checkpoint_read_part(m->weights_file, head, at, count, piece + PIECE / 2, st))
            return FAILED;
        *equal = memcmp(piece, piece + PIECE / 2, count * sizeof *piece) == 0;
    }
    return DONE;
}

int model_settle_head(model *m, status *st) {
    const tensor_info *head = checkpoint_find(m->weights_file, "lm_head.weight");
    m->head_text = "untied";
    if (m->config.tied && head) {
        bool equal;
        float *piece = mem_array(PIECE, sizeof *piece, "a reading buffer", st);
        int rc = piece ? head_equals_embedding(m, head, piece, &equal, st) : FAILED;
        free(piece);
        if (rc)
            return FAILED;
        m->head_text = equal ? "tied (lm_head.weight present, equal, not used)"
                             : "tied (lm_head.weight present, different, not used)";
        if (!equal)
            log_warn("%s: tie_word_embeddings is true, but lm_head.weight differs from "
                     "model.embed_tokens.weight: the embedding is used, as public loaders do",
                     checkpoint_file(m->weights_file, head->file));
    } else if (m->config.tied) {
        m->head_text = "tied";
    } else if (!head) {
        m->head_text = "untied in config.json, lm_head.weight absent: the embedding is used";
        log_warn("%s: tie_word_embeddings is false, but lm_head.weight is absent: the embedding is "
                 "used",
                 m->path);
    }
    log_detail("%s: output head: %s", m->path, m->head_text);
    return DONE;
}

static int load_rope(model *m, float *piece, status *st) {
    size_t half = m->config.head_dim / 2, rows = m->weights.rope_positions;
    size_t step = PIECE / 2 / half;
    double *frequency = mem_array(half, sizeof *frequency, "rotary frequencies", st);
    int rc = frequency ? DONE : FAILED;
    if (!rc)
        rc = new_buffer(m, BUFFER_EXACT, rows * half, &m->weights.rope_cosine, st);
    if (!rc)
        rc = new_buffer(m, BUFFER_EXACT, rows * half, &m->weights.rope_sine, st);
    if (!rc)
        rope_frequencies(&m->config.rope, m->config.head_dim, frequency);
    for (size_t at = 0; at < rows && !rc; at += step) {
        size_t count = rows - at < step ? rows - at : step;
        size_t offset = at * half, elements = count * half;
        rope_table(frequency, half, at, count, piece, piece + PIECE / 2);
        rc = m->k->upload(m->device, m->weights.rope_cosine, offset, piece, elements, st);
        if (!rc)
            rc = m->k->upload(m->device, m->weights.rope_sine, offset, piece + PIECE / 2, elements,
                              st);
    }
    free(frequency);
    return rc;
}

int model_read(model *m, status *st) {
    size_t elements = m->parameters + m->weights.rope_positions * m->config.head_dim;
    log_detail("%s: %zu tensors, %s in memory", m->path, m->params,
               bytes_text((uint64_t)elements * sizeof(float)).text);
    float *piece = mem_array(PIECE, sizeof *piece, "a reading buffer", st);
    m->owned = mem_array(m->params + 2, sizeof(buffer *), "the table of buffers", st);
    int rc = piece && m->owned ? DONE : FAILED;
    if (!rc)
        rc = read_all(m, piece, st) || load_rope(m, piece, st) ? FAILED : DONE;
    if (!m->weights.head)
        m->weights.head = m->weights.embedding;
    free(piece);
    return rc;
}
