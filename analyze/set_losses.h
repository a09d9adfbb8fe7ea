/* set_losses.h - losses of a model without sets of sublayers, each computed once and kept.
 *
 *     set_losses *losses;
 *     if (set_losses_create(&options, &losses, st)) return FAILED;
 *     const size_t found[] = {...};
 *     if (set_losses_find(losses, SELECTION, current, candidates, count, st)) ...   // computes
 *     const double *loss = set_losses_of(losses, SELECTION, candidate);             // looks up
 *     set_losses_free(losses);
 *
 * All sets of one call share a pass: the base set's program runs once a batch and keeps its
 * activations, every other set resumes from the sublayers it has in common with it
 * (session_resume). What is computed has the bits of a pass of its own, whatever the base, the
 * batches or the order.
 *
 * With a results file every result is appended to it as it comes; a killed run that resumes reads
 * it back and goes on, and since the bits are the same, so is everything that follows from them.
 */
#ifndef FATHOM_SET_LOSSES_H
#define FATHOM_SET_LOSSES_H

#include "analyze/text_windows.h"
#include "runtime/session.h"

enum { TEXTS = 2 }; /* a search has one to select by and one to judge by */

typedef struct set_losses set_losses;

typedef struct set_losses_options {
    const model *m; /* outlives the object, like the texts */
    removal removal;
    text_windows text[TEXTS]; /* the second may be empty */
    size_t batch;             /* sequences in a batch; 0: chosen */
    const char *work_path;    /* NULL: results are not kept on disk */
    bool resume;              /* the results file must exist and be of this model and these texts;
                                 without `resume` it must not exist */
} set_losses_options;

int set_losses_create(const set_losses_options *options, set_losses **out, status *st) MUST_USE;
/* Closes the results file, which stays where it holds results. NULL allowed. */
void set_losses_free(set_losses *l);
/* The results file is not needed any more. */
void set_losses_remove_file(set_losses *l);

/* Computes what is not known yet of the losses without each of `count` sets [2 * layers], and
 * without `base` (NULL: nothing) if it is not known, on all sequences of a text. INTERRUPTED when a
 * signal came: what was finished is in the results file. */
int set_losses_find(set_losses *l, size_t text, const bool *base, const bool *const *set,
                    size_t count, status *st) MUST_USE;

/* [sequences] summed losses of the text's sequences, in nats, as set_losses_find left them; NULL
 * where it was not asked. Valid until the object is freed. */
const double *set_losses_of(const set_losses *l, size_t text, const bool *set);

/* What everything asked for so far takes, in sublayers run for one sequence: with shared passes,
 * and with a pass of its own for each different set. The same for a resumed run. */
typedef struct set_losses_count {
    double shared, naive;
    size_t sets; /* different ones, by text */
} set_losses_count;
set_losses_count set_losses_counted(const set_losses *l);

/* Limits of its batches, for other passes over the same texts. */
session_limits set_losses_limits(const set_losses *l);

#endif
