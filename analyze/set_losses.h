/* set_losses.h - losses of a model without sets of sublayers: an experiment whose variants are
 * programs without them, named by removal and set.
 *
 *     const set_losses losses = {.e = e, .removal = DROP_SOURCE, .text = {selection, evaluation}};
 *     if (set_losses_find(&losses, SELECTION, current, candidates, count, st)) ...   // computes
 *     const double *loss = set_losses_of(&losses, SELECTION, candidate);             // looks up
 */
#ifndef FATHOM_SET_LOSSES_H
#define FATHOM_SET_LOSSES_H

#include "analyze/experiment.h"

enum { SELECTION, EVALUATION, TEXTS }; /* one text to select by and one to judge by */

typedef struct set_losses {
    experiment *e;
    removal removal;
    text_windows text[TEXTS]; /* parts of the experiment's windows; either may be empty */
} set_losses;

/* Computes what is not known yet of the losses without each of `count` sets [2 * layers], and
 * without `base` (NULL: of nothing) if it is not known, on all sequences of a text. INTERRUPTED
 * when a signal came: what was finished is in the results file. */
int set_losses_find(const set_losses *l, size_t text, const bool *base, const bool *const *set,
                    size_t count, status *st) MUST_USE;

/* [sequences] summed losses of the text's sequences without a set (NULL: nothing), in nats; NULL
 * with `st` filled where they were not asked for. Valid until set_losses_find has a new set. */
const double *set_losses_of(const set_losses *l, size_t text, const bool *set, status *st);

#endif
