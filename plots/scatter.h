/* scatter.h - panels of points with names: a number on x, a change of loss on y.
 *
 * Losses change by thousandths and by nats in one figure and to both sides of 0, so that the y axis
 * is logarithmic away from 0 and linear near it. The same axis serves as scale of colours. */
#ifndef FATHOM_SCATTER_H
#define FATHOM_SCATTER_H

#include "plots/sheet.h"

/* ---- an axis with 0 and both signs ---- */

typedef struct signed_axis {
    double unit;      /* position(v) = asinh(v / (2 unit)) / ln 10: log10(v / unit) far from 0 */
    double decade;    /* largest power of ten that is a mark; two smaller ones follow */
    double low, high; /* positions of the ends */
} signed_axis;

/* Of values between low and high; 0 is always on it. */
signed_axis signed_axis_of(double low, double high);
double signed_axis_at(const signed_axis *axis, double value);
/* Defines S(v), the position. */
void signed_axis_function(FILE *script, const signed_axis *axis);
/* Range and marks of `name`: "y" or "cb". */
void signed_axis_put(FILE *script, const signed_axis *axis, const char *name, bool labels);

/* ---- scatters ---- */

enum { SCATTER_MARKS = 6, SCATTER_PANELS = 8 };

typedef struct scatter_point {
    double x, y, low, high; /* NaN x or y: not drawn; NaN low: no interval */
    char name[24];          /* stands beside the point where there is room; "" for none */
    size_t mark;
    int colour; /* line type of sheet.c */
} scatter_point;

typedef struct scatter_panel {
    char title[48], below[96]; /* two lines over it */
    size_t points, room;
    scatter_point *point; /* owned */
    size_t index;         /* data set of mark 0; then one for each mark that has points */
} scatter_panel;

typedef struct scatter {
    char title[320], subtitle[256], notes[2048];
    const char *x, *y; /* what the axes show, with units */
    size_t columns;    /* panels side by side: 1 or 2 */
    size_t marks;
    struct {
        const char *name; /* in the legend */
        int type;         /* gnuplot's point type */
        int colour;       /* of the sample */
    } mark[SCATTER_MARKS];
    size_t panels;
    scatter_panel panel[SCATTER_PANELS];
} scatter;

int scatter_add(scatter_panel *panel, scatter_point point, status *st) MUST_USE;
/* NOT_DRAWN where no point is defined. Panels without a point are left out. */
int scatter_draw(scatter *c, sheet *s, status *st) MUST_USE;
void scatter_clear(scatter *c);

#endif
