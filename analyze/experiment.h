/* experiment.h - variants of one model run over the same tokens as a base program, batch by batch.
 *
 *     experiment *e;
 *     if (experiment_open(&run, &(experiment_options){.kl = true, .results = path}, &e, st)) ...
 *     variant whole = {"unedited", program}, others[] = {{"drop L3", pruned}, …};
 *     if ((rc = experiment_run(e, &whole, others, count, NULL, st))) ...   // DONE or INTERRUPTED
 *     experiment_delta(e, draws, "drop L3", "unedited", &delta, &kl, NULL, st);
 *     experiment_close(e);
 *
 * What a batch's programs have in common with the base's, which ran it just before, is not computed
 * again (session_resume). Scores are kept by name: a name that has been run is not run again, in a
 * later call or, with a results file, in a later process. The file is plain text, one line a
 * sequence of a variant, appended and flushed as each batch ends; what a killed run left of a line
 * is cut off. Numbers are written so that they read back bit for bit, and they do not depend on
 * batches: a continued run has the same scores as one that was never stopped.
 */
#ifndef FATHOM_EXPERIMENT_H
#define FATHOM_EXPERIMENT_H

#include "analyze/sampling.h"
#include "probes/text_run.h"

typedef struct experiment experiment;

typedef struct experiment_options {
    bool kl;             /* KL(base to variant) of every predicted token's distribution, too */
    const char *results; /* path of the results file; NULL: none */
    bool resume;         /* continue it; without, a file that is there is refused */
} experiment_options;

/* A program under a name, which is the key of its scores: unique, without tab or newline, saying
 * everything that makes the variant what it is. */
typedef struct variant {
    const char *name;
    const depth_program *program;
    /* NULL, or called before the variant runs a batch: the base's pass over it is over. */
    int (*prepare)(void *self, const batch *b, status *st);
    void *self;
} variant;

/* Sums over the predicted tokens of each sequence, nats. */
typedef struct scores {
    char *name;
    double *loss; /* [sequences] */
    double *kl;   /* [sequences] from the base it was run against; NaN without options.kl, and for
                     the base itself */
    bool *have;   /* [sequences] */
} scores;

/* Opens model, tokens, two sessions and the results file; reads all tokens once. The options'
 * strings must outlive it. */
int experiment_open(const run_options *run, const experiment_options *options, experiment **out,
                    status *st) MUST_USE;
void experiment_close(experiment *e); /* NULL allowed; the results file stays */
/* Removes the results file, once its numbers are in a table. */
void experiment_forget(experiment *e);

/* Runs what is not known yet of `variant` [count] over all tokens. `base` runs every batch first,
 * observed by `watch` (NULL allowed; its on_head and logits are the experiment's), which `count` 0
 * serves alone. Losses of `base` that the results file knows are
 * held against those computed now: other bits mean another model or other tokens, and are refused.
 * INTERRUPTED after a signal: what was finished is kept. Afterwards the programs may be freed. */
int experiment_run(experiment *e, const variant *base, const variant *variants, size_t count,
                   const observer *watch, status *st) MUST_USE;

/* NULL where the name has not been run over every sequence. */
const scores *experiment_scores(const experiment *e, const char *name);

size_t experiment_sequences(const experiment *e);
const double *experiment_tokens(const experiment *e);         /* [sequences] predicted */
const session_limits *experiment_limits(const experiment *e); /* of a batch */
text_run *experiment_text(experiment *e); /* between passes: see null_queries_create */
const model *experiment_model(const experiment *e);
const depth_program *experiment_program(const experiment *e); /* of the whole model */
const char *experiment_tokens_sha256(const experiment *e);
/* The command that began the results file: what a table names, also after a resume. */
const char *experiment_command(const experiment *e);
uint64_t experiment_nonfinite(const experiment *e); /* losses that were NaN or Inf */
/* Sublayers run by experiment_run so far, per sequence, and how many running every variant and base
 * from the start would have been. */
void experiment_cost(const experiment *e, uint64_t *evaluated, uint64_t *naive);

/* Draws over the run's sequences, weighted by predicted tokens; overlapping windows are one unit.
 */
int experiment_draws(const experiment *e, const sampling *s, bootstrap **b, status *st) MUST_USE;

/* Loss of `name` minus loss of `base`, paired by sequence, nats per token, and the mean KL (NULL:
 * not wanted; NaN without one). `draws` NULL, or [bootstrap_draws] receives the differences. */
int experiment_delta(const experiment *e, const bootstrap *b, const char *name, const char *base,
                     interval *delta, interval *kl, double *draws, status *st) MUST_USE;

/* The loss of `name` itself, nats per token. */
int experiment_loss(const experiment *e, const bootstrap *b, const char *name, interval *loss,
                    status *st) MUST_USE;

#endif
