/* runs.h - the runs that one figure overlays: what they are called.
 *
 * A run is called by its model's folder. Where two have the same, the folders above are added until
 * they differ; where it is one model twice, the end of the file's path is added the same way. */
#ifndef FATHOM_RUNS_H
#define FATHOM_RUNS_H

#include "analyze/table.h"

enum {
    RUNS_MAX = 8, /* more lines than this cannot be told apart */
    RUN_NAME = 256,
};

typedef struct run_name {
    char text[RUN_NAME]; /* clean UTF-8 */
} run_name;

/* Names of `count` runs from the paths of their models ("" where unknown) and of their files. */
void runs_name(const char *const *model, const char *const *file, size_t count, run_name *name);

/* The same of tables with a section RUN of keys. */
int runs_name_tables(const table *const *from, size_t count, run_name *name, status *st) MUST_USE;

/* The first title line of a figure of one table: the model's name and, in brackets, its mode. */
void run_title(const table *from, char *title, size_t size);

/* Cuts clean text to the width of `chars` Latin characters (CJK counts two): its middle becomes
 * "...", since names of runs differ at their ends. */
void cut_middle(char *text, size_t chars);
/* Width in Latin characters. */
size_t text_chars(const char *text);

#endif
