/* sampling.h - what every statistics command does with a recording before it computes: units of
 * uncertainty, losses, resamples, and the sentences that say so in its table.
 *
 *     sampling s = SAMPLING_DEFAULT;
 *     const option_spec options[] = {SAMPLING_OPTIONS(&s), ..., {0}};
 *     if (sampling_units(about, &unit, &units, st)) return FAILED;
 *     if (sampling_draw(&s, about->sequences, weight, unit, units, &b, st)) return FAILED;
 *     sampling_say(out, &s, about->sequences, b);
 */
#ifndef FATHOM_SAMPLING_H
#define FATHOM_SAMPLING_H

#include "analyze/bootstrap.h"
#include "probes/recording.h"
#include "runtime/base/options.h"

#include <stdio.h>

typedef struct sampling {
    size_t resamples;
    uint64_t seed;
    double level; /* of the intervals */
} sampling;

#define SAMPLING_DEFAULT                                                                           \
    { .resamples = 1000, .seed = 1, .level = 0.95 }

/* Entries of a command's option table. */
#define SAMPLING_OPTIONS(s)                                                                        \
    {.name = "resamples",                                                                          \
     .kind = OPTION_SIZE,                                                                          \
     .value = &(s)->resamples,                                                                     \
     .min = 100,                                                                                   \
     .max = 100000,                                                                                \
     .metavar = "N",                                                                               \
     .help = "bootstrap resamples of the sequences"},                                              \
        {.name = "level",                                                                          \
         .kind = OPTION_REAL,                                                                      \
         .value = &(s)->level,                                                                     \
         .min = 0.5,                                                                               \
         .max = 0.999,                                                                             \
         .metavar = "P",                                                                           \
         .help = "coverage of the intervals"},                                                     \
        OPTION_SEED(&(s)->seed)

/* The unit of each sequence (merge_windows), *unit [sequences], freed by the caller. A window's
 * text begins after its BOS token, so that two windows side by side do not overlap. Fails only when
 * memory does. */
int sampling_units(const recording_about *about, size_t **unit, size_t *units, status *st) MUST_USE;

/* Draws of the sequences by `weight` [sequences]; see bootstrap_create. */
int sampling_draw(const sampling *s, size_t sequences, const double *weight, const size_t *unit,
                  size_t units, bootstrap **b, status *st) MUST_USE;

/* Each sequence's predicted tokens, all but its first, and their mean loss in nats: weight and mean
 * [sequences]. Fails where the recording has no losses. */
int sampling_losses(recording *rec, double *weight, double *mean, status *st) MUST_USE;

/* The mean loss over all predicted tokens of a recording with its interval, and their number. NaN
 * and 0 where the recording has no losses. */
int sampling_loss(const sampling *s, recording *rec, const size_t *unit, size_t units,
                  interval *loss, double *tokens, status *st) MUST_USE;

/* Section RUN of a recording's table with the keys that every command has; the command adds its own
 * rows. `loss` and its number of tokens as sampling_loss gives them. */
void sampling_put_run(FILE *out, const sampling *s, const recording_about *about,
                      const bootstrap *b, interval loss, double loss_tokens);

/* The comments of a table that say how its intervals came about. */
void sampling_say(FILE *out, const sampling *s, size_t sequences, const bootstrap *b);

#endif
