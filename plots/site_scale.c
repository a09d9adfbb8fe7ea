#include "plots/site_maps.h"

#include <math.h>
#include <stdlib.h>

enum { BEYOND = 100, DOUBLINGS_MAX = 6 };
/* Times what most values keep below, from which on the largest ones would take the colours; around
 * 0 a scale has half of them. */
static const double too_large = 3, too_large_signed = 1.5;

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static size_t reads(const site_maps *maps, size_t site) {
    size_t count = 0;
    for (size_t i = 0; i < maps->columns; i++)
        count += maps->exists[site * maps->columns + i];
    return count;
}

/* The sizes of all values where there is a choice, in order. */
static int sort_sizes(const site_maps *maps, double **size, size_t *count, status *st) {
    size_t sites = maps->view->sites;
    *count = 0;
    *size = mem_array(maps->maps * sites, maps->columns * sizeof **size, "a scale", st);
    if (!*size)
        return FAILED;
    for (size_t site = 0; site < sites; site++) {
        if (reads(maps, site) < 2)
            continue;
        for (size_t i = 0; i < maps->columns; i++)
            for (size_t map = 0; map < maps->maps; map++) {
                double value = maps->map[map].value[site * maps->columns + i];
                if (!isnan(value))
                    (*size)[(*count)++] = fabs(value);
            }
    }
    qsort(*size, *count, sizeof **size, ascending);
    return DONE;
}

int site_maps_scale(const site_maps *maps, bool diverging, colour_scale *scale, size_t *beyond,
                    size_t *cells, status *st) {
    double *size, high = 0;
    if (sort_sizes(maps, &size, cells, st))
        return FAILED;
    if (*cells) {
        double most = size[*cells - 1 - *cells / BEYOND];
        high = size[*cells - 1];
        if (high > (diverging ? too_large_signed : too_large) * most)
            high = most;
    }
    nice_range range = nice_range_of(0, high > 0 ? high : 1);
    scale->high = range.high;
    scale->step = range.step;
    if (scale->doublings) {
        scale->step = high > 3 ? 2 : 1;
        scale->high = fmin(fmax(ceil(high / scale->step), 1) * scale->step, DOUBLINGS_MAX);
    }
    for (*beyond = 0; *beyond < *cells && size[*cells - 1 - *beyond] > scale->high;)
        ++*beyond;
    free(size);
    return DONE;
}
