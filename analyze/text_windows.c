#include "analyze/text_windows.h"

#include <stdlib.h>
#include <string.h>

enum { SHARED_RUN = 64 };

/* `more` of `size` bytes behind `count` of them. NULL without memory. */
static void *wider(void *array, size_t count, size_t more, size_t size, status *st) {
    void *wide = realloc(array, (count + more) * size);
    if (!wide)
        status_fail(st, "tokens: not enough memory for %zu of them", count + more);
    return wide;
}

static int make_room(text_held *held, size_t sequences, size_t tokens, status *st) {
    const size_t n = held->all.sequences, used = n ? held->start[n] : 0;
    int32_t *id = wider(held->id, used, tokens, sizeof *id, st);
    held->id = id ? id : held->id;
    size_t *start = id ? wider(held->start, n + 1, sequences, sizeof *start, st) : NULL;
    held->start = start ? start : held->start;
    int64_t *offset = start ? wider(held->offset, n, sequences, sizeof *offset, st) : NULL;
    held->offset = offset ? offset : held->offset;
    if (!offset)
        return FAILED;
    held->start[n] = used;
    return DONE;
}

static int read_all(text_held *held, token_source *source, status *st) {
    const size_t first = held->all.sequences, count = token_source_sequences(source);
    if (make_room(held, count, (size_t)token_source_tokens(source), st))
        return FAILED;
    for (size_t i = first; i < first + count; i++) {
        size_t length;
        uint64_t offset;
        if (token_source_read(source, i - first, held->id + held->start[i], &length, &offset, st))
            return FAILED;
        held->start[i + 1] = held->start[i] + length;
        held->offset[i] = (int64_t)offset;
    }
    const size_t longest = token_source_context(source);
    held->all = (text_windows){.sequences = first + count,
                               .longest = longest > held->all.longest ? longest : held->all.longest,
                               .bos = token_source_bos(source) >= 0,
                               .id = held->id,
                               .start = held->start,
                               .offset = held->offset};
    return DONE;
}

int text_held_add(text_held *held, const token_options *options, size_t vocabulary, status *st) {
    token_source *source;
    if (token_source_open(options, vocabulary, &source, st))
        return FAILED;
    const int rc = read_all(held, source, st);
    if (held->source)
        token_source_close(source);
    else
        held->source = source;
    return rc;
}

void text_held_clear(text_held *held) {
    token_source_close(held->source);
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

batch text_windows_batch(const text_windows *w, size_t first, size_t most, size_t *start) {
    const size_t left = w->sequences - first, count = left < most ? left : most;
    for (size_t i = 0; i <= count; i++)
        start[i] = w->start[first + i] - w->start[first];
    return (batch){.layout = {.sequences = count, .rows = start[count], .start = start},
                   .id = w->id + w->start[first],
                   .first = first,
                   .offset = w->offset + first};
}

double text_windows_weights(const text_windows *w, double *weight) {
    double sum = 0;
    for (size_t i = 0; i < w->sequences; i++) {
        weight[i] = (double)(w->start[i + 1] - w->start[i]) - 1;
        sum += weight[i];
    }
    return sum;
}

int text_windows_units(const text_windows *w, size_t *unit, size_t *units, status *st) {
    int rc = FAILED;
    int32_t *length = mem_array(w->sequences, sizeof *length, "units", st);
    size_t *own = unit ? NULL : mem_array(w->sequences, sizeof *own, "units", st);
    if (length && (unit || own)) {
        for (size_t i = 0; i < w->sequences; i++)
            length[i] = (int32_t)(w->start[i + 1] - w->start[i]) - w->bos;
        rc = merge_windows(w->offset, length, w->sequences, unit ? unit : own, units, st);
    }
    free(length);
    free(own);
    return rc;
}

int text_windows_draw(const text_windows *w, const double *weight, const sampling *s,
                      bootstrap **out, status *st) {
    size_t units;
    size_t *unit = mem_array(w->sequences, sizeof *unit, "units", st);
    int rc = unit ? text_windows_units(w, unit, &units, st) : FAILED;
    if (!rc)
        rc = sampling_draw(s, w->sequences, weight, unit, units, out, st);
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
