/* prune_scores.h - cheap scores of units, from one pass over a text: what they say of a unit's
 * importance without removing it.
 *
 * | score            | modes       | units  | is                                              |
 * |------------------|-------------|--------|-------------------------------------------------|
 * | block_influence  | none, delta | layers | 1 - mean cos of the stream before and after     |
 * | mix_change       | full, block | layers | 1 - mean cos of what it and the next layer read |
 * | angular_last     | all         | layers | angle of the same / pi, of the last token       |
 * | angular_all      | all         | layers | of all tokens                                   |
 * | reader_influence | full        | all    | reader_influence.h                              |
 * | routing_utility  | full        | all    | mass received - 1/S, mean over later sites      |
 * | mean_mass        | full, delta | all    | mass received, mean over later sites            |
 * | contribution     | full, delta | all    | likewise of the size of what is mixed           |
 *
 * (delta here: the mode `delta` alone for the last two, whose sources are sublayers' outputs.) The
 * last three are of each source's own later sites, means over heads; a layer's is the sum over its
 * two sources. Published: block_influence ShortGPT (arXiv 2403.03853), angular The Unreasonable
 * Ineffectiveness of the Deeper Layers (arXiv 2403.17887).
 */
#ifndef FATHOM_PRUNE_SCORES_H
#define FATHOM_PRUNE_SCORES_H

#include "analyze/prune_units.h"
#include "analyze/text_windows.h"
#include "runtime/session.h"

typedef enum score_kind {
    SCORE_BLOCK_INFLUENCE,
    SCORE_MIX_CHANGE,
    SCORE_ANGULAR_LAST,
    SCORE_ANGULAR_ALL,
    SCORE_READER_INFLUENCE,
    SCORE_ROUTING_UTILITY,
    SCORE_MEAN_MASS,
    SCORE_CONTRIBUTION,
    SCORES,
} score_kind;

const char *score_name(score_kind score);
bool score_defined(const model_config *config, score_kind score, unit_kind kind);

typedef struct prune_scores {
    size_t layers, sequences, most_skipped;
    double *value;  /* [sequences, SCORES, UNIT_KINDS, layers], NaN where not defined */
    double *tokens; /* [sequences] weights of all scores but angular_last, of which each counts 1 */
    double *angle_all, *angle_last; /* [most_skipped, layers] over all sequences: layers
                                       [l, l + n) at (n - 1, l); NaN beyond the last */
    size_t left_out;                /* pairs of tokens without a cosine */
} prune_scores;

/* Runs the model over the text. `most_skipped`: n of the angles, at least 1. INTERRUPTED when a
 * signal came. Cleared by the caller, after a failure too. */
int prune_scores_measure(const model *m, const text_windows *w, const session_limits *limits,
                         size_t most_skipped, prune_scores *scores, status *st) MUST_USE;
void prune_scores_clear(prune_scores *scores);

/* Cell of a score in a row of `value`. */
size_t score_cell(const prune_scores *scores, score_kind score, unit_kind kind, size_t layer);
/* The weight of each sequence in a score's mean [sequences]; ones for angular_last. */
void score_weights(const prune_scores *scores, score_kind score, double *weight);
/* The mean over all sequences. */
double score_mean(const prune_scores *scores, score_kind score, unit_kind kind, size_t layer);

#endif
