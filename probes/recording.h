/* recording.h - reading a recording (schema fathom-1): one HDF5 file, read piece by piece.
 *
 *     recording *rec;
 *     if (recording_open("run.h5", &rec, st)) return FAILED;
 *     const recording_about *about = recording_about_of(rec);
 *     double *entropy;                                   // [sequences, sites, heads]
 *     if (recording_read_row(rec, "entropy", &entropy, st)) ...
 *     recording_close(rec);
 *
 * HDF5 appears nowhere outside probes/. Memory does not grow with the number of sequences except
 * for what a caller asks to read whole. NaN stands where a cell does not exist.
 */
#ifndef FATHOM_RECORDING_H
#define FATHOM_RECORDING_H

#include "probes/routing_rows.h"
#include "runtime/base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct recording recording;

typedef struct recording_about {
    const char *path;
    const char *title, *source, *history, *schema, *model_path, *model_sha256, *model_config;
    const char *residual_mode, *tokens_sha256, *tokenizer, *device, *compute_dtype, *weights_dtype;
    int64_t bos; /* -1: none */
    uint64_t seed;
    size_t skip_first;
    bool complete;
    bool has_gradients;
    uint64_t grad_tokens; /* predicted tokens that the gradients are of; 0: none */
    size_t params;
    const char *const *param_name; /* [params] "model.embed_tokens.weight", … */
    bool has_weights, has_sums, has_pairs, has_hidden, has_loss;
    size_t null_draws;           /* random queries of each kind; 0: no nulls were recorded */
    size_t null_sequences;       /* that have nulls */
    const size_t *null_sequence; /* [null_sequences] rising */
    size_t sequences, positions; /* positions: the longest sequence */
    size_t sites, sublayers, layers, heads, sources;
    const char *const *site_name;   /* [sites] "L0.attn", …, "final" */
    const char *const *source_name; /* [sources] "emb", "L0.attn", … */
    const uint8_t *available;       /* [sites, sources] 1: the cell exists */
    const int32_t *newest;          /* [sites] index of the newest source; -1: none */
    const int32_t *length;          /* [sequences] tokens */
    const int64_t *start;           /* [sequences] offset of the first token in its stream; -1 each
                                       where the file does not say */
} recording_about;

/* Opens a recording, also an incomplete one (about.complete is false; callers say so). Errors: no
 * such file, not HDF5, HDF5 but no recording, newer schema, still being written (file lock), sizes
 * that disagree. An imported file needs only: attributes schema, residual_mode, routing_heads,
 * complete; scales seq, pos, site, head, source; tokens/id; routing/weights. What it lacks is NULL,
 * empty or false above. */
int recording_open(const char *path, recording **out, status *st) MUST_USE;
void recording_close(recording *rec); /* NULL allowed */
const recording_about *recording_about_of(const recording *rec);

/* One accumulated row per sequence as float64, [sequences, ROW AXES], from routing_seq/NAME, or
 * computed from routing/weights where the file has no accumulators (rows that need the hidden
 * states are then all NaN). *data is freed by the caller. */
int recording_read_row(recording *rec, const char *name, double **data, status *st) MUST_USE;
/* A row under random queries (recordings made with --null), `kind` "norm" or "var":
 * [about.null_sequences, about.null_draws, ROW AXES]; NaN where a site has fewer than two sources
 * or a head's query is zero. "mean", "entropy", "head_divergence", and "head_js" where
 * about.has_pairs. *data is freed by the caller. */
int recording_read_null(recording *rec, const char *name, const char *kind, double **data,
                        status *st) MUST_USE;
/* Tokens that entered the sums of each sequence, [sequences] (length minus skip_first, at least
 * 0).*/
size_t recording_sum_tokens(const recording *rec, size_t sequence);

/* Weights of one sequence and site: out [length, heads, sources], NaN in cells that do not exist.
 */
int recording_read_weights(recording *rec, size_t sequence, size_t site, float *out,
                           status *st) MUST_USE;
/* Token ids and losses of one sequence: out arrays [length]; either may be NULL. */
int recording_read_tokens(recording *rec, size_t sequence, int32_t *id, float *loss,
                          status *st) MUST_USE;
/* A hidden/NAME row of one sequence ("in_rms", "out_rms", …): out [length, sites or sublayers]. */
int recording_read_hidden(recording *rec, const char *name, size_t sequence, float *out,
                          status *st) MUST_USE;
/* The text of a token id, or NULL. Owned by the recording. */
const char *recording_piece(const recording *rec, int32_t id);
/* Whether vocab/id lists a token id. */
bool recording_knows(const recording *rec, int32_t id);

/* ---- gradients (recordings made with --gradients; about.has_gradients) ---- */

/* A grad/NAME row of one sequence, of the SUM of its token losses: "in_l2" out [length, sites],
 * "out_l2" [length, sublayers], "emb_l2" [length]. */
int recording_read_gradient(recording *rec, const char *name, size_t sequence, float *out,
                            status *st) MUST_USE;
/* Norms of the MEAN loss over about.grad_tokens predicted tokens: "param_l2" [params], "layer_l2"
 * [layers], "query_l2" [sites, heads] (NaN where a site has no query). *out is freed by the caller.
 */
int recording_read_gradient_norms(recording *rec, const char *name, double **out,
                                  status *st) MUST_USE;

#endif
