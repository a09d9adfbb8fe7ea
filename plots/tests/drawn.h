/* drawn.h - tests: tables written line by line, and the figures drawn of them. */
#ifndef FATHOM_TESTS_DRAWN_H
#define FATHOM_TESTS_DRAWN_H

#include "plots/figure.h"

/* Starts a table in the file NAME below the tests' folder. */
FILE *table_begin(const char *name, const char *command);
/* Ends it and reads it back; the test fails where that fails. */
table *table_finish(FILE *out, const char *name);

typedef struct drawn {
    int result;          /* DONE, NOT_DRAWN or FAILED */
    status st;           /* of the last two */
    char *script, *data; /* NULL unless DONE */
    size_t pages;
} drawn;

/* Figure NAME of `tables` tables. */
drawn draw_tables(const char *name, const table *const *from, size_t tables);
drawn draw_one(const char *name, const table *from);
void drawn_free(drawn *d);

size_t count_of(const char *text, const char *part);
void assert_has(const char *text, const char *part);
void assert_lacks(const char *text, const char *part);

/* The lines of the notes, joined by blanks, hold `part`. */
void assert_notes(const char *script, const char *part);

/* Draws every figure whose sections all of these tables hold, in svg, png and pdf, and fails the
 * test where gnuplot says a word. Returns how many were drawn; 0 where there is no gnuplot. */
size_t assert_silent(const table *const *from, size_t tables);

#endif
