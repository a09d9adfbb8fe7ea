/* square_maps.h - small square heatmaps in a grid: a matrix over pairs for each site. */
#ifndef FATHOM_SQUARE_MAPS_H
#define FATHOM_SQUARE_MAPS_H

#include "plots/figure.h"
#include "plots/routing_view.h"

/* A symmetric matrix, and where it is drawn. */
typedef struct square_map {
    char label[64], below[64]; /* two lines over it; "" for none */
    const double *value;       /* [size, size]; NaN: undefined */
    size_t size;
    const char *const *name; /* [size] of rows and columns; NULL: their numbers */
    double left, top, side;  /* pixels */
    bool xticks, yticks;
    size_t page;
} square_map;

typedef struct square_maps {
    const routing_view *view;
    const char *subtitle, *what, *axis; /* of a value and of rows and columns, for the data file */
    const char *note;
    size_t maps;
    const square_map *map;
    double bottom; /* of the lowest map */
    colour_scale scale;
} square_maps;

/* Draws `maps` on s->pages pages; headers are labels that each page has besides. The diagonal, a
 * thing with itself, is grey. */
typedef struct square_header {
    const char *text;
    double left, top;
} square_header;
int square_maps_draw(const square_maps *maps, const square_header *header, size_t headers, sheet *s,
                     status *st) MUST_USE;

#endif
