/* routing_statistics.h - the statistics of routing as the tables hold them: names, codes, units and
 * how each is had from token means of the accumulated rows (probes/routing_rows.h).
 *
 * A mean over tokens is an accumulated row itself; a derived statistic is a function of such means,
 * so a bootstrap computes it from each draw's means by the same code that serves the data.
 */
#ifndef FATHOM_ROUTING_STATISTICS_H
#define FATHOM_ROUTING_STATISTICS_H

#include "probes/routing_rows.h"

/* One site with at least one source. */
typedef struct routing_shape {
    size_t heads, sources;
    bool null_source; /* source 0 is the null source */
} routing_shape;

enum {
    AVERAGED = 1,  /* listed as a mean over sites */
    PAST_NULL = 2, /* defined on the sources that are not null, renormalised */
    NULL_ONLY = 4, /* only in models with a null source */
    ANY_SITE = 8,  /* sites with different sources can be compared by it */
};

typedef struct routing_statistic {
    const char *code; /* of its section: "ENT" */
    const char *name; /* "entropy" */
    const char *units;
    row_axes axes;       /* of the result */
    const char *from[2]; /* names of the accumulated rows; the second may be NULL */
    /* One draw: token means of the rows, each with the axes of its row, to out. NULL: out is the
     * first row. `scratch` [routing_scratch]. */
    void (*derive)(const routing_shape *shape, const double *const mean[2], double *scratch,
                   double *out);
    unsigned flags;
    const char *title;      /* one line without ';' */
    const char *per_source; /* name of the value divided by the number of sources, shown with it */
} routing_statistic;

extern const routing_statistic routing_statistics[];
extern const size_t routing_statistic_count;

/* NULL where there is none of that name. */
const routing_statistic *routing_statistic_find(const char *name);

/* Cells that routing_derive writes: axes with heads are followed by the plain mean over heads. */
size_t routing_width(const routing_statistic *statistic, const routing_shape *shape);

/* Doubles of scratch that any statistic needs. */
size_t routing_scratch(const routing_shape *shape);

/* One draw: out [routing_width]. NaN goes through. */
void routing_derive(const routing_statistic *statistic, const routing_shape *shape,
                    const double *const mean[2], double *scratch, double *out);

/* -sum p ln p in nats of p [count], 0 ln 0 = 0. */
double routing_entropy(const double *p, size_t count);

/* Whether a mean over sites includes a site: not where there is one source to choose from. */
bool routing_averages(const routing_statistic *statistic, const routing_shape *shape);

#endif
