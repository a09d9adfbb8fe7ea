/* sheet.h - one figure being written: a gnuplot script, its data, and the look all figures share.
 *
 * A sheet is measured in pixels of a hundredth of an inch from its top left corner: 340 wide is one
 * column of a paper, and the same numbers lay out svg, png and pdf. Scripts use nothing that
 * gnuplot 5.4 lacks or 6 dropped. */
#ifndef FATHOM_SHEET_H
#define FATHOM_SHEET_H

#include "runtime/base/status.h"

#include <stdbool.h>
#include <stdio.h>

enum {
    SHEET_WIDTH = 340,
    /* Widths of a character in the widest common sans-serif, for fitting text. */
    TICK_CHAR = 6, /* of FONT_TICK */
    TITLE_CHARS = 50,
    NOTE_CHARS = 76,
};
#define FONT_TITLE "',10'"
#define FONT_TEXT "',9'"
#define FONT_TICK "',8.5'"
#define FONT_NOTE "',8'"
#define FONT_SMALL "',7'"

typedef struct sheet {
    FILE *script, *data;
    int height;   /* set before the head is written */
    size_t pages; /* images per format: NAME.svg, or NAME-1.svg, NAME-2.svg, … ; pdf: one file */
    size_t indexes; /* data sets in the data file so far */
    bool dense;     /* more cells than are worth one vector rectangle each */
    bool diverging; /* the colours show a sign: the map with a light middle */
} sheet;
enum { DENSE_CELLS = 12000 }; /* on a page; a rectangle costs about 110 bytes of svg */

/* ---- Text ---- */

/* Copies `length` bytes of `text` as valid UTF-8 without control characters ('?' in their place),
 * cut with "..." where `size` is too small. */
void clean_text(char *out, size_t size, const char *text, size_t length);
/* Cuts clean text to the width of `chars` Latin characters (CJK counts two), "..." at the end where
 * something is cut. */
void cut_text(char *text, size_t chars);
/* A gnuplot string: single-quoted, cleaned. One with letters of scripts that common fonts lack is
 * an expression of two, since gnuplot's png and pdf draw a missing letter far too large. */
void put_string(FILE *script, const char *text);

/* ---- Script ---- */

/* Opening comments and the style: everything before the figure's own lines. `utf8`: the figure has
 * text beyond ASCII. `format`: the one drawn where none is said. */
void sheet_head(FILE *script, const sheet *s, const char *name, const char *title,
                const char *source, const char *format, bool utf8);
/* Starts page `page` (from 0) of `s->pages`, and ends it. */
void sheet_page(const sheet *s, size_t page);
void sheet_page_end(const sheet *s);
/* The edges of the next plot. */
void sheet_panel(const sheet *s, double left, double right, double top, double bottom);
/* A label at a place; `extra` holds further gnuplot words: "right", "rotate". Gone at the next
 * sheet_clear_labels. */
void sheet_label(const sheet *s, double x, double y, const char *text, const char *font,
                 const char *extra);
void sheet_clear_labels(const sheet *s);
/* Two title lines at the top left, in the same place in every figure; bottom edge SHEET_TITLES. */
enum { SHEET_TITLES = 32 };
void sheet_titles(const sheet *s, const char *title, const char *subtitle);
/* Notes at the bottom left in lines of NOTE_CHARS; returns how many lines. `draw` false: only
 * counts. `y`: of the first line. */
enum { NOTE_LINE = 11 };
size_t sheet_notes(const sheet *s, double y, const char *text, bool draw);

/* Starts the next data set with a comment naming it, and returns its index. */
size_t sheet_data(sheet *s, const char *format, ...) PRINTF_LIKE(2, 3);
/* A number as the data file holds it: %.6g, nan. */
void put_number(FILE *data, double value, char after);

/* ---- Colours ---- */

/* What the colours of a figure mean, in all its panels and pages: 0 to `high`, or -high to high in
 * a diverging sheet. */
typedef struct colour_scale {
    const char *name; /* printed beside the bar, with the unit */
    double high, step;
    bool doublings; /* values are log2 of a ratio, and marks say the ratio */
} colour_scale;

/* Range and marks; a script's user may set scale_max. */
void sheet_scale(const sheet *s, const colour_scale *scale);
/* The printed scale under a figure: COLOUR_BAR high from `y`; the next plot draws it. */
enum { COLOUR_BAR = 29 };
void sheet_colour_bar(const sheet *s, const colour_scale *scale, double left, double y);
/* A hatched ground for cells that cannot exist, under all that is plotted from here on. */
void sheet_hatch(const sheet *s);

/* ---- Ticks ---- */

/* `set AXIStics` for whole numbers 0..count-1, thinned so that labels `size` pixels long fit into
 * `length` pixels. `labels` false: marks only. */
void sheet_count_ticks(const sheet *s, const char *axis, size_t count, double length, double size,
                       bool labels);
/* Range and step that cover low..high in at most five steps: 1, 2, 2.5 or 5 times a power of 10. */
typedef struct nice_range {
    double low, high, step;
} nice_range;
nice_range nice_range_of(double low, double high);

#endif
