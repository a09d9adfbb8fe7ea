/* small_recording.h - tests: a recording whose weights, losses and magnitudes a test chooses. */
#ifndef FATHOM_TESTS_SMALL_RECORDING_H
#define FATHOM_TESTS_SMALL_RECORDING_H

#include "analyze/table.h"
#include "probes/recording_writer.h"

typedef struct small_model {
    const char *mode;
    size_t sequences, length, heads, sites, sources; /* sources 0: it does not route */
    const char *const *site_name;                    /* [sites]; the last is "final" */
    const char *const *source_name;                  /* [sources] */
    const uint8_t *available;                        /* [sites, sources] */
    size_t gap;        /* sequence i starts at i * gap; 0: far apart */
    size_t odd_length; /* of sequences 1, 3, …; 0: like the others */
    int64_t bos;       /* -1: none */
    int32_t first_id;  /* token t of a sequence is first_id + t; ids below 26 are letters */
    /* Chosen numbers; the last two may be NULL: 1 everywhere. */
    double (*weight)(size_t sequence, size_t pos, size_t site, size_t head, size_t source);
    double (*loss)(size_t sequence, size_t pos);
    double (*magnitude)(size_t sequence, size_t pos, size_t place);
} small_model;

/* Writes the recording "NAME" below the tests' folder and returns its path, freed by the caller.
 * Fails the test where that fails. */
char *small_recording(const char *name, const small_model *model);

/* Runs a command, words ending in NULL, quietly; its exit status. */
int small_command(const char *const *words);
#define COMMAND(...) small_command((const char *const[]){__VA_ARGS__, "--quiet", NULL})

/* The row of a section whose first cells are `keys`, ending in NULL; SIZE_MAX where there is none.
 */
size_t small_row(const table *t, const char *code, const char *const *keys);
/* A number of that row, by the name of its column; fails the test where the row is missing. */
double small_number(const table *t, const char *code, const char *column, const char *const *keys);
#define HAS(t, code, ...) (small_row(t, code, (const char *const[]){__VA_ARGS__, NULL}) != SIZE_MAX)
#define NUMBER(t, code, column, ...)                                                               \
    small_number(t, code, column, (const char *const[]){__VA_ARGS__, NULL})

#endif
