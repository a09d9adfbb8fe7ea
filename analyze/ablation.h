/* ablation.h - interventions run against the unedited model, and what its routing shows beside.
 *
 *     ablation *a;
 *     if (ablation_open(e, &wants, &a, st)) ...
 *     if (ablation_add(a, &edit, &sources, &sites, NULL, &index, st)) ...      // any number
 *     if ((rc = ablation_run(a, st))) ...                                      // or INTERRUPTED
 *     if (ablation_effect(a, b, index, &effect, st)) ...
 *     ablation_close(a);
 */
#ifndef FATHOM_ABLATION_H
#define FATHOM_ABLATION_H

#include "analyze/experiment.h"
#include "analyze/interventions.h"

#include <limits.h>

#define UNEDITED "unedited" /* the name of the whole model's scores */

typedef struct ablation ablation;

/* What the interventions to come need. */
typedef struct ablation_wants {
    bool token_means, mean_values; /* a first pass over all tokens */
    bool frozen;                   /* sites after an edit keep the unedited run's weights */
} ablation_wants;

/* INTERRUPTED where a signal came during the first pass. `e` outlives it. */
int ablation_open(experiment *e, const ablation_wants *wants, ablation **out, status *st) MUST_USE;
void ablation_close(ablation *a); /* NULL allowed */

/* Adds an intervention, or finds it where one of the same name is there; the choices outlive `a`.
 * NO_INTERVENTION where no chosen site has what it asks for: nothing is added. */
enum { NO_INTERVENTION = INT_MAX };
int ablation_add(ablation *a, const edit_choice *edit, const source_choice *sources,
                 const site_choice *sites, const bool *head, size_t *index, status *st) MUST_USE;
const intervention *ablation_at(const ablation *a, size_t index);

int ablation_run(ablation *a, status *st) MUST_USE;

/* How an effect on the loss is read. */
typedef enum effect_class { EFFECT_NONE, EFFECT_SEEN, EFFECT_UNDECIDED } effect_class;
extern const char *const effect_class_name[3]; /* "none", "effect", "undecided" */

typedef struct effect {
    interval delta_loss, kl; /* nats per token */
    double mass_moved;       /* mean over tokens, edited sites and edited heads */
    double lift; /* mass moved over the part of the sources that is edited; NaN where the
                    edit takes no sources */
    double p, q; /* two-sided; after Benjamini-Hochberg; NaN where nothing was edited */
    effect_class class;
} effect;

/* Everything but q and class. `draws` NULL, or [bootstrap_draws] receives the loss differences. */
int ablation_effect(const ablation *a, const bootstrap *b, size_t index, effect *out, double *draws,
                    status *st) MUST_USE;

/* q and class of one family of tests: q_i = min over p_j >= p_i of p_j * count / rank(p_j), at most
 * 1 (Benjamini and Hochberg); those without a p do not count. none: the whole interval lies within
 * +-equiv; effect: q at most 1 - level, and not none; else undecided. */
void effects_classify(effect *list, size_t count, double equiv, double level);

/* Sums over the tokens of each sequence of a site's routing, head means, over all tokens and not
 * the predicted ones alone: row [sequences, SITE_SUMS, sources]. NULL where it has no sources. */
enum { SUM_MASS, SUM_CONTRIBUTION, SUM_SIGNED, SITE_SUMS };
const double *ablation_site(const ablation *a, size_t site);
/* [sequences] tokens of each. */
const double *ablation_rows(const ablation *a);

#endif
