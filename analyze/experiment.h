/* experiment.h - variants of one model run over the same tokens as a base program, batch by batch.
 *
 *     experiment *e;
 *     const experiment_options options = {.m = m, .windows = text.all, .kl = true};
 *     if (experiment_open(&options, &e, st)) ...
 *     variant whole = {"unedited", program}, others[] = {{"drop L3", pruned}, …};
 *     if ((rc = experiment_run(e, NULL, &whole, others, count, NULL, st))) ... // DONE or
 * INTERRUPTED experiment_delta(e, draws, "drop L3", "unedited", &delta, &kl, NULL, st);
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
#include "analyze/text_windows.h"
#include "runtime/session.h"

typedef struct experiment experiment;

typedef struct experiment_options {
    const model *m;       /* outlives it, like the windows' memory */
    text_windows windows; /* everything that will be run */
    size_t batch;         /* sequences in a batch; 0: chosen */
    bool kl;              /* KL(base to variant) of every predicted token's distribution, too */
    const char *results;  /* path of the results file; NULL: none */
    bool resume;          /* continue it; without, a file that is there is refused */
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
typedef struct variant_scores {
    char *name;
    double *loss; /* [sequences] */
    double *kl;   /* [sequences] from the base it was run against; NaN without options.kl, and for
                     the base itself */
    bool *have;   /* [sequences] known, from this process or an earlier one */
    bool *asked;  /* [sequences] by a run of this process that came to its end */
} variant_scores;

/* The option table entry of a command that can continue. */
#define OPTION_RESUME(variable)                                                                    \
    {                                                                                              \
        .name = "resume", .kind = OPTION_FLAG, .value = variable,                                  \
        .help = "continue an interrupted run of the same command from FILE.results"                \
    }

/* FILE.results beside a command's -o FILE, freed by the caller; NULL where it writes to stdout, a
 * device or a pipe, in which case `resume` fails. A folder is refused (output_beside). */
int experiment_results_path(const char *target, bool resume, char **path, status *st) MUST_USE;

/* Opens two sessions and the results file. The options' strings must outlive it. */
int experiment_open(const experiment_options *options, experiment **out, status *st) MUST_USE;
/* NULL allowed; a results file that holds results stays. */
void experiment_close(experiment *e);
/* Removes the results file, once its numbers are in a table. */
void experiment_forget(experiment *e);

/* Runs what is not known yet of `variant` [count] over `w`, a part of the experiment's windows
 * (NULL: all). `base` runs every batch first, observed by `watch` (NULL allowed; its on_head and
 * logits are the experiment's), which `count` 0 serves alone. Losses of `base` that the results
 * file knows are held against those computed now: other bits mean another model, and are refused.
 * INTERRUPTED after a signal: what was finished is kept. Afterwards the programs may be freed. */
int experiment_run(experiment *e, const text_windows *w, const variant *base,
                   const variant *variants, size_t count, const observer *watch,
                   status *st) MUST_USE;

/* Of all sequences; NULL where the name has not been asked for on each of `w` (NULL: all). */
const variant_scores *experiment_scores(const experiment *e, const text_windows *w,
                                        const char *name);

size_t experiment_sequences(const experiment *e);
size_t experiment_first(const experiment *e, const text_windows *w); /* number of its first one */
const session_limits *experiment_limits(const experiment *e);        /* of a batch */
session *experiment_session(experiment *e);                          /* the base's, between runs */
const model *experiment_model(const experiment *e);
const depth_program *experiment_program(const experiment *e); /* of the whole model */
/* The command that began the results file: what a table names, also after a resume. */
const char *experiment_command(const experiment *e);
uint64_t experiment_nonfinite(const experiment *e); /* losses that were NaN or Inf */

/* What everything asked for so far takes, in sublayers run for one sequence: with shared passes,
 * and with a pass of its own for each different name and part of the windows. The same for a
 * resumed run. */
typedef struct experiment_cost {
    uint64_t shared, naive;
    size_t passes; /* of naive */
} experiment_cost;
experiment_cost experiment_counted(const experiment *e);
/* The note of a command that a signal stopped: how to continue. NULL allowed. */
void experiment_say_interrupted(const experiment *e);

/* Draws over the experiment's sequences, weighted by predicted tokens; overlapping windows are one
 * unit. */
int experiment_draws(const experiment *e, const sampling *s, bootstrap **b, status *st) MUST_USE;

/* Loss of `name` minus loss of `base`, paired by sequence, nats per token, and the mean KL (NULL:
 * not wanted; NaN without one). `draws` NULL, or [bootstrap_draws] receives the differences. */
int experiment_delta(const experiment *e, const bootstrap *b, const char *name, const char *base,
                     interval *delta, interval *kl, double *draws, status *st) MUST_USE;

/* The loss of `name` itself, nats per token. */
int experiment_loss(const experiment *e, const bootstrap *b, const char *name, interval *loss,
                    status *st) MUST_USE;

#endif
