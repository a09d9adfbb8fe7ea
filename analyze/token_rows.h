/* token_rows.h - numbers that a recording holds for every token, hidden/NAME and grad/NAME, as the
 * per-sequence means that statistics are resampled from.
 *
 *     token_row row;
 *     if (token_row_read(rec, "in_rms", about->skip_first, NULL, &row, st)) return FAILED;
 *     bootstrap_means(b, row.mean, row.places, NULL, row.places, draws, st)
 *     token_row_clear(&row);
 */
#ifndef FATHOM_TOKEN_ROWS_H
#define FATHOM_TOKEN_ROWS_H

#include "probes/recording.h"

/* A place is a site, a sublayer or the embedding; place i of sublayers has the label of site i. */
typedef struct token_row {
    const char *name; /* "in_rms" */
    size_t places;
    double *mean; /* [sequences, places] over a sequence's tokens; 0 where it has none, NaN at a
                     place that does not exist (a removed sublayer) */
    bool *exists; /* [places] */
    /* Tokens whose number is not finite, at places that exist, and the first of them. */
    size_t faults, fault_sequence, fault_position, fault_place;
} token_row;

/* in_rms, in_l2: sites; out_… and state_…: sublayers; emb_l2: 1. */
size_t token_row_places(const recording_about *about, const char *name);
/* The label of a place: "L3.attn", "emb". */
const char *token_row_label(const recording_about *about, const char *name, size_t place);

/* The numbers of one sequence's tokens, out [length, places]. */
int token_row_read_sequence(recording *rec, const char *name, size_t sequence, float *out,
                            status *st) MUST_USE;

/* Means over the tokens from position `first` on, of `term` of the number (NULL: itself), and of
 * its product with `factor` of the same token and place, another row's name (NULL: none) that has
 * as many places. Added in float64. */
typedef struct token_term {
    double (*of)(double);
    const char *factor;
} token_term;
int token_row_read(recording *rec, const char *name, size_t first, const token_term *term,
                   token_row *row, status *st) MUST_USE;
void token_row_clear(token_row *row); /* also of one that is all zero */

#endif
