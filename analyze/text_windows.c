#include "analyze/text_windows.h"

#include <stdlib.h>
#include <stdio.h>
#include <string.h>

enum { SHARED_RUN = 64 };

int text_held_read(const token_options *options, size_t vocabulary, text_held *held, status *st) {
    token_source *source;
    *held = (text_held){0};
    if (token_source_open(options, vocabulary, &source, st))
        return FAILED;
    const size_t sequences = token_source_sequences(source);
    const size_t tokens = (size_t)token_source_tokens(source);
    int rc = FAILED;
    held->id = mem_array(tokens, sizeof *held->id, "tokens", st);
    held->start = mem_array(sequences + 1, sizeof *held->start, "sequences", st);
    held->offset = mem_array(sequences, sizeof *held->offset, "sequences", st);
    if (!held->id || !held->start || !held->offset)
        goto done;
    for (size_t i = 0; i < sequences; i++) {
        size_t length;
        uint64_t offset;
        if (token_source_read(source, i, held->id + held->start[i], &length, &offset, st))
            goto done;
        held->start[i + 1] = held->start[i] + length;
        held->offset[i] = (int64_t)offset;
    }
    snprintf(held->tokenizer, sizeof held->tokenizer, "%s", token_source_tokenizer(source));
    held->all = (text_windows){.sequences = sequences,
                               .longest = token_source_context(source),
                               .bos = token_source_bos(source) >= 0,
                               .id = held->id,
                               .start = held->start,
                               .offset = held->offset};
    rc = DONE;
done:
    token_source_close(source);
    return rc;
}

void text_held_clear(text_held *held) {
    free(held->id);
    free(held->start);
    free(held->offset);
    *held = (text_held){0};
}

text_windows text_windows_part(const text_windows *all, size_t first, size_t count) {
    text_windows part = *all;
    part.sequences = count;
    part.start += first;
    part.offset += first;
    part.longest = 0;
    for (size_t i = 0; i < count; i++)
        if (part.start[i + 1] - part.start[i] > part.longest)
            part.longest = part.start[i + 1] - part.start[i];
    return part;
}

double text_windows_weights(const text_windows *w, double *weight) {
    double sum = 0;
    for (size_t i = 0; i < w->sequences; i++) {
        weight[i] = (double)(w->start[i + 1] - w->start[i]) - 1;
        sum += weight[i];
    }
    return sum;
}

int text_windows_draw(const text_windows *w, const double *weight, size_t resamples, uint64_t seed,
                      double level, bootstrap **out, status *st) {
    int rc = FAILED;
    bootstrap_options options = {.sequences = w->sequences,
                                 .weight = weight,
                                 .resamples = resamples,
                                 .seed = seed,
                                 .level = level};
    int32_t *length = mem_array(w->sequences, sizeof *length, "units", st);
    size_t *unit = mem_array(w->sequences, sizeof *unit, "units", st);
    if (length && unit) {
        for (size_t i = 0; i < w->sequences; i++)
            length[i] = (int32_t)(w->start[i + 1] - w->start[i]) - w->bos;
        rc = merge_windows(w->offset, length, w->sequences, unit, &options.units, st);
    }
    options.unit = unit;
    if (!rc)
        rc = bootstrap_create(&options, out, st);
    free(length);
    free(unit);
    return rc;
}

void text_windows_hash(const text_windows *w, char hex[65]) {
    sha256 hash;
    sha256_init(&hash);
    for (size_t i = 0; i < w->sequences; i++)
        tokens_hash_add(&hash, w->id + w->start[i], w->start[i + 1] - w->start[i]);
    sha256_finish(&hash, hex);
}

/* ---- shared runs ---- */

/* Hashes of the runs of `length` tokens of one sequence, BOS left out (Karp and Rabin 1987), into
 * out; returns how many. */
static size_t hash_runs(const text_windows *w, size_t sequence, size_t length, uint64_t *out) {
    const uint64_t base = 0x9e3779b97f4a7c15u;
    const int32_t *id = w->id + w->start[sequence] + w->bos;
    size_t tokens = w->start[sequence + 1] - w->start[sequence] - w->bos, runs = 0;
    uint64_t hash = 0, top = 1;
    for (size_t i = 0; i < length; i++)
        top *= base;
    for (size_t i = 0; i < tokens; i++) {
        hash = hash * base + (uint64_t)id[i] + 1;
        if (i >= length)
            hash -= top * ((uint64_t)id[i - length] + 1);
        if (i + 1 >= length)
            out[runs++] = hash ^ hash >> 29;
    }
    return runs;
}

static int by_hash(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static size_t shortest(const text_windows *w, size_t least) {
    for (size_t i = 0; i < w->sequences; i++) {
        size_t tokens = w->start[i + 1] - w->start[i] - w->bos;
        least = tokens < least ? tokens : least;
    }
    return least;
}

int text_windows_shared(const text_windows *a, const text_windows *b, size_t *count, status *st) {
    const size_t length = shortest(b, shortest(a, SHARED_RUN));
    size_t known = 0;
    *count = 0;
    uint64_t *runs = mem_array(a->start[a->sequences] - a->start[0], sizeof *runs, "runs", st);
    uint64_t *other = mem_array(b->longest, sizeof *other, "runs", st);
    if (runs && other) {
        for (size_t i = 0; i < a->sequences; i++)
            known += hash_runs(a, i, length, runs + known);
        qsort(runs, known, sizeof *runs, by_hash);
        for (size_t i = 0; i < b->sequences; i++) {
            size_t n = hash_runs(b, i, length, other);
            bool found = false;
            for (size_t k = 0; k < n && !found; k++)
                found = bsearch(&other[k], runs, known, sizeof *runs, by_hash) != NULL;
            *count += found;
        }
    }
    const int rc = runs && other ? DONE : FAILED;
    free(runs);
    free(other);
    return rc;
}
