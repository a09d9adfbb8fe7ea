/* prune.h - what `fathom prune` has measured, for its table. */
#ifndef FATHOM_PRUNE_H
#define FATHOM_PRUNE_H

#include "analyze/prune_search.h"
#include "analyze/sampling.h"

#include <stdio.h>

typedef struct prune_settings {
    unit_kind unit; /* of the search */
    removal removal;
    size_t budget, seeds;
    prune_strategies strategies;
    sampling sampling;
} prune_settings;

typedef struct prune_result {
    const model *m;
    const prune_settings *settings;
    const set_losses *losses;
    const prune_scores *scores; /* NULL: only a given set was judged */
    text_windows selection, evaluation;
    const char *evaluation_from; /* in words */
    size_t shared; /* evaluation sequences that share a run of tokens with the selection text */
    const char *tokenizer;
    prune_points points; /* the first is the whole model's */
} prune_result;

/* Sections RUN, ONE, SCO, ANG, AGR, CUR (analyze/README.md); ONE to AGR only with scores, CUR only
 * with points. Writes the comments too. */
int prune_put(FILE *out, const prune_result *r, status *st) MUST_USE;

#endif
