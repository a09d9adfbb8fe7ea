/* curves.h - figures of curves: panels in rows over one x axis, a legend above them, notes below.
 *
 *     curve_sheet c = {.title = "mhar-h8", .subtitle = "...", .x_label = "layer"};
 *     curve_panel *p = curves_panel(&c, "in_rms", st);             // the next in reading order
 *     if (!p || curve_add(&p->curve[look], (curve_point){...}, st)) ...
 *     result = curves_draw(&c, s, st);                             // DONE, NOT_DRAWN or FAILED
 *     curves_clear(&c);
 *
 * A look is a colour, a dash and a mark: those of attention, MLP and final sites where one run is
 * drawn, or one for each run. */
#ifndef FATHOM_CURVES_H
#define FATHOM_CURVES_H

#include "plots/cells.h"
#include "plots/runs.h"
#include "plots/sheet.h"

#include <stdbool.h>

typedef struct curve_point {
    double x, value;
    double low, high; /* its interval: a bar; NaN: none */
    double from, to;  /* a band behind the curve; NaN: none */
} curve_point;

typedef struct curve {
    curve_point *point; /* rising in x */
    size_t points, room;
    size_t index; /* of the data file */
} curve;

enum { LOOKS_MAX = RUNS_MAX, CURVE_PANELS_MAX = 12 };

typedef struct curve_panel {
    char title[64];
    const char *units;
    const char *why_empty; /* said in the panel where it has no number; NULL: "no defined value" */
    bool from_zero;        /* the linear axis begins at 0 */
    bool zero_line;        /* 0 is part of the axis and drawn */
    curve curve[LOOKS_MAX];
} curve_panel;

/* A vertical line: a block opens. */
typedef struct curve_mark {
    double x;
    int look; /* its curve's, or -1: of all */
} curve_mark;

typedef struct curve_sheet {
    char title[RUN_NAME + 64], subtitle[256];
    char notes[2048]; /* sentences; a line break begins a new line */
    const char *x_label;
    size_t layers;                /* of the x axis; 0: positions, on a logarithmic axis */
    size_t own_layers[LOOKS_MAX]; /* of each run, where `final` stands */
    bool runs;                    /* looks are of runs */
    size_t looks;
    run_name look[LOOKS_MAX]; /* what the legend calls them */
    bool pairs;               /* each panel is drawn twice: linear and, beside it, logarithmic */
    bool shared_rows;         /* else two panels a row, which share their axis */
    const char *column[2];    /* with shared_rows: headings of the two columns */
    curve_mark *mark;
    size_t marks;
    size_t panels;
    curve_panel *panel[CURVE_PANELS_MAX];
} curve_sheet;

/* NULL with `st` filled where memory fails. Owned by the sheet. */
curve_panel *curves_panel(curve_sheet *c, const char *title, status *st) MUST_USE;
int curve_add(curve *c, curve_point point, status *st) MUST_USE;
int curves_mark(curve_sheet *c, double x, int look, status *st) MUST_USE;
/* Adds a sentence to the notes. */
void curves_note(curve_sheet *c, const char *format, ...) PRINTF_LIKE(2, 3);

/* Writes data and script. NOT_DRAWN where no panel has a number. */
int curves_draw(curve_sheet *c, sheet *s, status *st) MUST_USE;
void curves_clear(curve_sheet *c);

#endif
