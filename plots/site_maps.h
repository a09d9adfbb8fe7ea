/* site_maps.h - heatmaps by depth: rows are sites by layer, columns are what they read. The sites
 * before attention and before the MLP have a panel each; `final` is the strip under the attention
 * panel, since all three read the same columns. One colour scale for all panels and pages. */
#ifndef FATHOM_SITE_MAPS_H
#define FATHOM_SITE_MAPS_H

#include "plots/figure.h"
#include "plots/routing_view.h"

typedef struct site_map {
    char label[32];      /* above its panels; "" for none */
    const double *value; /* [sites, columns]; NaN where the cell cannot be, or is undefined */
} site_map;

typedef struct site_maps {
    const routing_view *view;
    const char *subtitle; /* under the model's name */
    const char *what;     /* of a value, for the data file: "mean weight" */
    const char *axis;     /* of the columns: "source" */
    const char *only;     /* what the grey of a site's only source means */
    const char *note;     /* sentences before what the marks mean, or "" */
    size_t columns;
    const char *const *column; /* [columns] names */
    const bool *exists;        /* [sites, columns] */
    bool sources; /* columns are the view's sources, so that running sums can be outlined */
    size_t maps;
    const site_map *map; /* [maps] */
    size_t page, row;    /* maps on a page, and side by side */
    const char *noun;    /* of several pages: "heads" 0-7 of 18 */
    colour_scale scale;  /* its name and kind; the rest is found */
} site_maps;

/* Range and marks of `maps->scale` from the values at sites with more than one cell: 0 or, in a
 * diverging sheet, -high to high. Where a few cells, one in a hundred, would leave the rest without
 * colour they lie beyond the end; returns how many of how many, and FAILED where memory does. */
int site_maps_scale(const site_maps *maps, bool diverging, colour_scale *scale, size_t *beyond,
                    size_t *cells, status *st) MUST_USE;

/* Fails where two sites stand at one place; NOT_DRAWN where no site before a sublayer reads. */
int site_maps_draw(const site_maps *maps, sheet *s, status *st) MUST_USE;

#endif
