/* dataset_diff.h - one dataset of two recordings, number by number, in pieces of bounded size.
 *
 *     char **name; size_t names;
 *     if (dataset_names(rec, &name, &names, st)) return FAILED;   // sorted, "hidden/in_rms", ...
 *     dataset_diff d;
 *     if (dataset_diff_run(a, b, name[i], 1e-6, 1e-5, &d, st)) return FAILED;
 *     if (d.over) ...
 */
#ifndef FATHOM_DATASET_DIFF_H
#define FATHOM_DATASET_DIFF_H

#include "probes/recording_file.h"

enum { DATASET_DIFF_BYTES = 4 << 20 }; /* of one piece of one file in memory */

/* Every dataset of a recording, axes included, in the order of their paths. One block, freed by the
 * caller with free(). */
int dataset_names(const recording *rec, char ***names, size_t *count, status *st) MUST_USE;

typedef struct dataset_diff {
    bool text;                 /* compared as texts; a number that differs is counted in `over` */
    bool shapes;               /* ranks, extents or kinds differ: nothing else is known */
    char shape[2][96];         /* "16 x 256 x 17 numbers" */
    uint64_t compared;         /* numbers */
    uint64_t over;             /* of them outside the bounds, NaN mismatches included */
    uint64_t nan;              /* NaN in one file and a number in the other */
    double absolute, relative; /* largest |a - b|, and |a - b| / max(|a|, |b|); of numbers */
    size_t rank;
    size_t at_absolute[H5S_MAX_RANK], at_relative[H5S_MAX_RANK]; /* where those stand */
    size_t at_nan[H5S_MAX_RANK], at_over[H5S_MAX_RANK];          /* the first such */
} dataset_diff;

/* Both files have the dataset. A number is within bounds where
 * |a - b| <= absolute + relative * max(|a|, |b|); NaN agrees with NaN, an infinity with its equal.
 */
int dataset_diff_run(const recording *a, const recording *b, const char *name, double absolute,
                     double relative, dataset_diff *d, status *st) MUST_USE;

/* "seq 3, pos 5, site L1.attn": a place in a dataset of `rec` by its axes' names and labels. */
void dataset_place(const recording *rec, const char *name, size_t rank, const size_t *at, char *out,
                   size_t room);

#endif
