/* text_windows.h - sequences of tokens held in memory, for experiments that run over them many
 * times.
 *
 *     text_held held;
 *     if (text_held_read(&token_options, vocabulary, &held, st)) return FAILED;
 *     text_windows half = text_windows_part(&held.all, 0, held.all.sequences / 2);
 *     text_held_clear(&held);
 */
#ifndef FATHOM_TEXT_WINDOWS_H
#define FATHOM_TEXT_WINDOWS_H

#include "analyze/bootstrap.h"
#include "datasets/token_source.h"

/* Some of the sequences that were read; points into them. */
typedef struct text_windows {
    size_t sequences, longest; /* longest: tokens of the longest one */
    bool bos;                  /* each begins with a BOS that is not of the text */
    const int32_t *id;         /* sequence i: id[start[i]] to id[start[i + 1]] */
    const size_t *start;       /* [sequences + 1] */
    const int64_t *offset;     /* [sequences] see token_source_read */
} text_windows;

typedef struct text_held {
    text_windows all;
    char tokenizer[16];
    int32_t *id;
    size_t *start;
    int64_t *offset;
} text_held;

/* Reads everything that `options` name; cleared by the caller, after a failure too. */
int text_held_read(const token_options *options, size_t vocabulary, text_held *held,
                   status *st) MUST_USE;
void text_held_clear(text_held *held);

text_windows text_windows_part(const text_windows *all, size_t first, size_t count);

/* Predicted tokens of each sequence: all but its first. weight [sequences]. Returns their sum. */
double text_windows_weights(const text_windows *w, double *weight);

/* Draws of the sequences by `weight`; overlapping windows are one unit (merge_windows). */
int text_windows_draw(const text_windows *w, const double *weight, size_t resamples, uint64_t seed,
                      double level, bootstrap **out, status *st) MUST_USE;

/* SHA-256 over the sequences, as a recording's tokens_sha256. */
void text_windows_hash(const text_windows *w, char hex[65]);

/* How many sequences of `b` share a run of 64 tokens (or of the shortest sequence's length) with
 * one of `a`. Fails only when memory does. */
int text_windows_shared(const text_windows *a, const text_windows *b, size_t *count,
                        status *st) MUST_USE;

#endif
