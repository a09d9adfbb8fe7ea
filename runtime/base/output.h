/* output.h - files appear under their final name only when they are whole.
 *
 *     output *out;
 *     if (output_open(path, &out, st)) return FAILED;       // NULL or "-": standard output
 *     fprintf(output_stream(out), ...);
 *     if (bad) { output_abandon(out); return FAILED; }
 *     return output_commit(out, st);                        // checks every write up to here
 *
 * Written as PATH.partial beside PATH, renamed at commit. A device or pipe is written in place. */
#ifndef FATHOM_OUTPUT_H
#define FATHOM_OUTPUT_H

#include "runtime/base/status.h"

#include <stdio.h>

typedef struct output output;

int output_open(const char *path, output **out, status *st) MUST_USE;
FILE *output_stream(output *out);
/* Flushes, closes and renames; a failed write (disk full) is reported with the path and the partial
 * file is removed. Frees `out` in every case. */
int output_commit(output *out, status *st) MUST_USE;
void output_abandon(output *out); /* removes the partial file and frees `out`; NULL allowed */

/* PATH with `suffix`: the name of a file kept beside the output while that is made. NULL where the
 * output is standard output, a device or a pipe. Fails as output_open does for an empty name and a
 * folder, so that a long run can ask first. Freed by the caller. */
int output_beside(const char *path, const char *suffix, char **name, status *st) MUST_USE;

/* mkdir -p. */
int folder_make(const char *path, status *st) MUST_USE;

#endif
