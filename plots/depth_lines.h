/* depth_lines.h - panels of lines over depth, one under the other: a point per site with its
 * interval, null bands behind them, dashed lines of reference, and where blocks open. */
#ifndef FATHOM_DEPTH_LINES_H
#define FATHOM_DEPTH_LINES_H

#include "plots/figure.h"
#include "plots/routing_view.h"

/* At a depth in layers, half a layer more for an MLP. NaN low or high: no interval; NaN value: a
 * gap in the line. Of a null: the mean, the lowest and the highest draw. */
typedef struct depth_point {
    double depth, value, low, high;
} depth_point;

typedef struct depth_series {
    const char *name; /* in the legend, once for each line type, and in the data file */
    int line;         /* line type of sheet.c: 1 attention, 2 MLP, 3 final, ...; 0: a reference */
    size_t points, nulls;
    depth_point *point, *null; /* in order of depth; owned */
} depth_series;

enum { SERIES_MAX = 9, LINES_MAX = 9 };

typedef struct depth_panel {
    const char *name, *units;
    bool from_zero;  /* else the axis may start higher */
    bool wants_null; /* "no null shown" where it has none */
    const char *why; /* text instead of a plot; NULL: draw it */
    size_t count;
    depth_series series[SERIES_MAX];
} depth_panel;

typedef struct depth_lines {
    const routing_view *view;
    const char *subtitle;
    const char *axis;  /* of depth */
    const char *note;  /* first sentences under the figure, or "" */
    const char *empty; /* status text where nothing is defined */
    size_t panels;
    depth_panel *panel; /* [panels] */
} depth_lines;

/* The panel's series of that name, made where it is missing (SERIES_MAX at most). */
depth_series *depth_panel_series(depth_panel *panel, const char *name, int line);
/* Adds a point to a series or, `null`, to its null. */
int depth_series_add(depth_series *series, bool null, depth_point point, status *st) MUST_USE;
void depth_panel_clear(depth_panel *panel);

/* NOT_DRAWN where no panel has a defined value. */
int depth_lines_draw(const depth_lines *lines, sheet *s, status *st) MUST_USE;

#endif
