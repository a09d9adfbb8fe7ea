/* experiment_results.h - scores by name, in memory and in the file they are appended to.
 *
 * The file: a first line "# fathom results 1<tab>SEQUENCES<tab>TOKENS_SHA256<tab>COMMAND", then
 * NAME<tab>SEQUENCE<tab>LOSS<tab>KL, losses as %.17g. */
#ifndef FATHOM_EXPERIMENT_RESULTS_H
#define FATHOM_EXPERIMENT_RESULTS_H

#include "analyze/experiment.h"

#include <stdio.h>

typedef struct results {
    const char *path; /* NULL: in memory only */
    FILE *file;
    char *command; /* that began the file */
    size_t sequences;
    scores *list; /* [count] */
    size_t count, room;
} results;

/* As experiment_options say; `command` and `tokens_sha256` stand in a new file and the latter is
 * held against an old one's. Cleared with results_close, after a failure too. */
int results_open(results *r, const experiment_options *options, size_t sequences,
                 const char *tokens_sha256, const char *command, status *st) MUST_USE;
void results_close(results *r);

/* The scores of a name, added where it is new. NULL without memory. */
scores *results_of(results *r, const char *name, status *st) MUST_USE;
scores *results_find(const results *r, const char *name); /* NULL: unknown */
bool results_complete(const results *r, const scores *s);

/* Appends and flushes sequences [first, end). */
int results_append(results *r, const scores *s, size_t first, size_t end, status *st) MUST_USE;

#endif
