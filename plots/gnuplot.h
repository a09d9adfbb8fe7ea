/* gnuplot.h - running gnuplot on a script, without a shell. */
#ifndef FATHOM_GNUPLOT_H
#define FATHOM_GNUPLOT_H

#include "runtime/base/status.h"

/* Besides DONE, FAILED and INTERRUPTED: there is no gnuplot, and `st` says where it was looked
 * for. */
enum { GNUPLOT_MISSING = 1 };

/* Runs FOLDER/NAME.gp in FOLDER for one format ("svg", "png", "pdf"). The program is what the
 * environment variable GNUPLOT names, else `gnuplot` on the PATH. Failing, `st` holds what gnuplot
 * said. What it says although it succeeds is a warning, copied to `said` (`size` bytes, "" for
 * nothing). */
int gnuplot_run(const char *folder, const char *name, const char *format, char *said, size_t size,
                status *st) MUST_USE;

#endif
