/* recording_writer.h - writing a recording, batch by batch.
 *
 *     recording_writer *w;
 *     if (recording_writer_create("run.h5", &plan, &w, st)) return FAILED;
 *     for each batch:
 *         recording_writer_begin(w, sequences_in_it, st)
 *         recording_writer_put(w, RECORDED_ID, 0, sequence, length, ids, st) ... in any order
 *         recording_writer_commit(w, st)                  // on disk: the file reads up to here
 *     recording_writer_finish(w, &closing, true, st)      // run.h5.partial becomes run.h5
 *
 * The file is PATH.partial until it is whole; then it takes PATH's place, over an older file of
 * that name. Memory does not grow with the number of sequences. One thread makes every call.
 */
#ifndef FATHOM_RECORDING_WRITER_H
#define FATHOM_RECORDING_WRITER_H

#include "probes/recording_layout.h"

/* What the root attributes say from the start. */
typedef struct recording_header {
    const char *title, *history, *model_path, *model_config, *residual_mode, *tokenizer;
    const char *device, *compute_dtype, *weights_dtype;
    int64_t bos; /* -1: none */
    uint64_t seed;
    size_t skip_first;
} recording_header;

/* Everything pointed to must outlive the writer. */
typedef struct recording_plan {
    recording_axes axes;
    recording_wants wants;
    recording_header header;
    size_t compress; /* 0: none; 1..9: HDF5's shuffle and deflate filters */
} recording_plan;

/* What is known at the end only. */
typedef struct recording_closing {
    const char *model_sha256, *tokens_sha256; /* NULL: left empty */
    size_t pieces;
    const int32_t *piece_id;  /* [pieces] distinct ids that occur, rising */
    const char *const *piece; /* [pieces] their texts, valid UTF-8; "": none */
    uint64_t grad_tokens;     /* predicted tokens that the next are of; with gradients */
    const float *gradient_norm[GRADIENT_NORMS]; /* as gradient_norm_datasets; NULL: left NaN */
} recording_closing;

typedef struct recording_writer recording_writer;

/* Creates PATH.partial with every dataset, all of no sequences. Fails where PATH exists and is no
 * regular file, or another process is writing PATH.partial. A write that exceeds the file size
 * limit fails like any other from here on: SIGXFSZ is ignored. */
int recording_writer_create(const char *path, const recording_plan *plan, recording_writer **out,
                            status *st) MUST_USE;

/* Makes room for a batch of `sequences` more. */
int recording_writer_begin(recording_writer *w, size_t sequences, status *st) MUST_USE;

/* What sequence `sequence` (from 0 in this batch) of `length` tokens has in one dataset. `data` has
 * the dataset's own axes after seq, without gaps, cut to `length` along pos, query_pos and key_pos;
 * for RECORDED_WEIGHTS it is [length, head, source] of site `index`, for nulls [draw, …] of row
 * index / sites at site index % sites. Does nothing where the plan
 * does not record it. */
int recording_writer_put(recording_writer *w, recorded_kind kind, size_t index, size_t sequence,
                         size_t length, const void *data, status *st) MUST_USE;
/* A routing row from sums over `tokens` tokens, [site, …] as routing_row_spread lays them out.
 * Stores the means (NaN for 0 tokens) and adds to those over all sequences, so sequences come in
 * order, and a batch with rows is committed or the writer abandoned. */
int recording_writer_put_row(recording_writer *w, size_t row, size_t sequence, const double *sums,
                             double tokens, status *st) MUST_USE;
/* True where put_row stores this row. */
bool recording_writer_has_row(const recording_writer *w, size_t row);

/* Ends the batch and brings the file up to date on disk. */
int recording_writer_commit(recording_writer *w, status *st) MUST_USE;

size_t recording_writer_sequences(const recording_writer *w);    /* committed */
uint64_t recording_writer_bytes(const recording_writer *w);      /* of the file so far */
const char *recording_writer_partial(const recording_writer *w); /* PATH.partial */

/* Cuts every dataset to the committed sequences, writes the routing means, the vocabulary and the
 * attributes that were open, closes, and, where `complete`, renames. An incomplete one stays
 * PATH.partial with `complete` = 0. Frees `w` where it succeeds; otherwise no file has appeared
 * under PATH, and `w` is abandoned by the caller. */
int recording_writer_finish(recording_writer *w, const recording_closing *closing, bool complete,
                            status *st) MUST_USE;

/* Ends without finishing, after a failure or not. DONE: PATH.partial is an incomplete recording of
 * the committed sequences, or, where there are none, is gone. FAILED: it may be unreadable. Frees
 * `w`; NULL allowed. */
int recording_writer_abandon(recording_writer *w);

#endif
