/* check.h - the invariants of a recording, one line each on stdout. */
#ifndef FATHOM_CHECK_H
#define FATHOM_CHECK_H

#include "probes/recording_file.h"
#include "runtime/config.h"

typedef struct check {
    recording *rec;
    const recording_about *about;
    size_t vocabulary, width;            /* of model_config; 0: not known */
    bool removed[2 * CONFIG_LAYERS_MAX]; /* sublayers that a pruned model lacks: nothing of them is
                                            recorded */
    size_t failed;                       /* lines */
} check;

/* One line each: "ok    …", "FAIL  …", "--    …" (not recorded, so nothing to check). */
void check_ok(check *c, const char *format, ...) PRINTF_LIKE(2, 3);
void check_fail(check *c, const char *format, ...) PRINTF_LIKE(2, 3);
void check_absent(check *c, const char *format, ...) PRINTF_LIKE(2, 3);

/* The worst of many comparisons. */
typedef struct worst {
    const char *what;           /* "weights sum to 1" */
    double allowed, largest;    /* errors */
    uint64_t seen, bad;         /* comparisons */
    size_t sequence, pos, site; /* of the first that is bad; SIZE_MAX: does not apply */
} worst;

/* An error of NaN is bad. */
void worst_see(worst *w, double error, size_t sequence, size_t pos, size_t site);
/* Prints the line; "--" where nothing was seen. */
void worst_report(check *c, const worst *w);

int check_tokens(check *c, status *st) MUST_USE; /* ids, lengths, losses, vocabulary */
int check_hidden(check *c, status *st) MUST_USE; /* magnitudes */
int check_gradients(check *c, status *st) MUST_USE;
int check_routing(check *c, status *st) MUST_USE; /* weights and accumulators */
int check_nulls(check *c, status *st) MUST_USE;   /* statistics under random queries */

#endif
