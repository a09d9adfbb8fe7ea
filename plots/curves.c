#include "plots/curves.h"

#include "plots/figure.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEFT = 50,
    RIGHT = SHEET_WIDTH - 10,
    PAIR_GAP = 40,   /* between panels with axes of their own: room for labels */
    SHARED_GAP = 10, /* between panels that share one */
    TITLE_LINE = 17, /* above each row of panels */
    ROW_GAP = 5,
    LEGEND_LINE = 12,
    LEGEND_SAMPLE = 24,
    LEGEND_CHAR = 5,
    LEGEND_CHARS = 54,
    HEADING_LINE = 13, /* of the two columns */
    X_AXIS = 36,       /* from the lowest panel to the notes */
    POINT_PIXELS = 7,  /* marks closer than this are thinned */
    FIRST_RUN_TYPE = 11,
};

/* Of a logarithmic axis; powers of ten below it are no normal numbers. */
#define SMALLEST 1e-290

#define BOX_COLOUR "#c8c8c8"

/* ---- Building ---- */

curve_panel *curves_panel(curve_sheet *c, const char *title, status *st) {
    if (c->panels == CURVE_PANELS_MAX) {
        status_fail(st, "more than %d panels", CURVE_PANELS_MAX);
        return NULL;
    }
    curve_panel *panel = mem_array(1, sizeof *panel, "a panel", st);
    if (!panel)
        return NULL;
    snprintf(panel->title, sizeof panel->title, "%s", title);
    c->panel[c->panels++] = panel;
    return panel;
}

int curve_add(curve *c, curve_point point, status *st) {
    if (c->points == c->room) {
        c->room = 2 * c->room + 64;
        curve_point *grown = realloc(c->point, c->room * sizeof *grown);
        if (!grown)
            return status_fail(st, "no memory for %zu points of a curve", c->room);
        c->point = grown;
    }
    c->point[c->points++] = point;
    return DONE;
}

int curves_mark(curve_sheet *c, double x, int look, status *st) {
    curve_mark *grown = realloc(c->mark, (c->marks + 1) * sizeof *grown);
    if (!grown)
        return status_fail(st, "no memory for %zu marks", c->marks + 1);
    c->mark = grown;
    c->mark[c->marks++] = (curve_mark){x, look};
    return DONE;
}

void curves_note(curve_sheet *c, const char *format, ...) {
    size_t used = strlen(c->notes);
    if (used && c->notes[used - 1] != '\n' && used + 2 < sizeof c->notes)
        c->notes[used++] = ' ';
    va_list args;
    va_start(args, format);
    vsnprintf(c->notes + used, sizeof c->notes - used, format, args);
    va_end(args);
}

void curves_clear(curve_sheet *c) {
    for (size_t i = 0; i < c->panels; i++) {
        for (size_t look = 0; look < LOOKS_MAX; look++)
            free(c->panel[i]->curve[look].point);
        free(c->panel[i]);
    }
    free(c->mark);
    *c = (curve_sheet){0};
}

/* ---- Looks ---- */

/* Line types 11, 12, ... are the runs': steps of viridis short of its yellow, which is too light
 * for a line on white; dashes and marks tell the runs apart in grey. */
static void put_run_linetypes(FILE *script, size_t runs) {
    static const char *const colours[] = {"#440154", "#482878", "#3e4989", "#31688e", "#26828e",
                                          "#1f9e89", "#35b779", "#6ece58", "#8ed645"};
    static const char *const dashes[] = {"solid",       "(8,3)", "(2,2)",         "(8,3,2,3)",
                                         "(12,3,12,3)", "(4,2)", "(8,2,2,2,2,2)", "(1,3)"};
    static const int marks[] = {7, 9, 5, 13, 11, 6, 8, 4};
    size_t last = sizeof colours / sizeof *colours - 1;
    for (size_t i = 0; i < runs; i++) {
        size_t step = runs > 1 ? (i * last + (runs - 1) / 2) / (runs - 1) : 0;
        fprintf(script, "set linetype %zu lc rgb '%s' dt %s pt %d ps 0.4 lw 1.2\n",
                FIRST_RUN_TYPE + i, colours[step], dashes[i % RUNS_MAX], marks[i % RUNS_MAX]);
    }
}

static size_t line_type(const curve_sheet *c, size_t look) {
    return c->runs ? FIRST_RUN_TYPE + look : c->boxes ? look : look + 1;
}

static bool look_used(const curve_sheet *c, size_t look) {
    for (size_t i = 0; i < c->panels; i++)
        if (c->panel[i]->curve[look].points)
            return true;
    return false;
}

/* In a figure of boxes: of a box, and of a mark without a line. */
static void put_box_sample(const sheet *s, size_t look, double x, double at) {
    if (look == 0)
        fprintf(s->script,
                "set object 90 rectangle from screen X(%g), Y(%g) to screen X(%g), Y(%g) fc rgb "
                "'" BOX_COLOUR "' fs solid noborder\n",
                x + 4, at + 4, x + 18, at - 4);
    else
        sheet_label(s, x + 11, at, "", FONT_TICK,
                    look == 1 ? "point lt 1 ps 0.55" : "point lt 2 ps 0.55");
}

/* The legend, from the top `y` down; returns its height. `draw` false: only measures. */
static double put_legend(const curve_sheet *c, const sheet *s, double y, bool draw) {
    double x = 8, line = 0;
    int arrow = 0;
    for (size_t look = 0; look <= c->looks; look++) {
        bool block = look == c->looks;
        char text[RUN_NAME];
        if (block ? c->marks == 0 : !look_used(c, look))
            continue;
        snprintf(text, sizeof text, "%s", block ? "a block opens" : c->look[look].text);
        cut_middle(text, LEGEND_CHARS);
        double width = LEGEND_SAMPLE + (double)text_chars(text) * LEGEND_CHAR + 10;
        if (x > 8 && x + width > SHEET_WIDTH - 4) {
            x = 8;
            line++;
        }
        double at = y + 6 + line * LEGEND_LINE;
        arrow++;
        if (draw && block)
            fprintf(s->script,
                    "set arrow %d from screen X(%g), Y(%g) to screen X(%g), Y(%g) nohead lw 0.8 "
                    "lc rgb '#aaaaaa'\n",
                    arrow, x + 10, at - 5, x + 10, at + 5);
        else if (draw && c->boxes)
            put_box_sample(s, look, x, at);
        else if (draw)
            fprintf(s->script,
                    "set arrow %d from screen X(%g), Y(%g) to screen X(%g), Y(%g) nohead lt %zu\n"
                    "set label %d '' at screen X(%g), Y(%g) point lt %zu ps 0.55\n",
                    arrow, x, at, x + 20, at, line_type(c, look), 100 + arrow, x + 10, at,
                    line_type(c, look));
        if (draw)
            sheet_label(s, x + LEGEND_SAMPLE, at, text, FONT_TICK, "");
        x += width;
    }
    return (line + 1) * LEGEND_LINE;
}

static void drop_legend(const curve_sheet *c, const sheet *s) {
    int arrows = c->marks > 0;
    for (size_t look = 0; look < c->looks; look++)
        arrows += look_used(c, look);
    for (int i = 1; i <= arrows; i++)
        fprintf(s->script, "unset arrow %d\n", i);
}

/* After the legend, whose arrows have the first numbers. */
static void put_marks(const curve_sheet *c, const sheet *s) {
    for (size_t i = 0; i < c->marks; i++) {
        const curve_mark *mark = &c->mark[i];
        fprintf(s->script,
                "set arrow from first %g, graph 0 to first %g, graph 1 nohead back lw 0.5 ",
                mark->x, mark->x);
        if (mark->look < 0)
            fputs("lc rgb '#bbbbbb'\n", s->script);
        else
            fprintf(s->script, "lt %zu dt (1,3)\n", line_type(c, (size_t)mark->look));
    }
}

/* ---- Data ---- */

static void put_data(curve_sheet *c, sheet *s) {
    static const char *const columns =
        "value, interval from, to, band from, to (nan: none or undefined)";
    fprintf(s->data, "# Columns: %s, %s.\n\n\n",
            c->no_final ? c->x_label
            : c->layers ? "depth in layers"
                        : "position",
            columns);
    for (size_t i = 0; i < c->panels; i++)
        for (size_t look = 0; look < c->looks; look++) {
            curve *line = &c->panel[i]->curve[look];
            if (line->points == 0)
                continue;
            line->index = sheet_data(s, "%s: %s", c->panel[i]->title, c->look[look].text);
            for (size_t k = 0; k < line->points; k++) {
                const curve_point *at = &line->point[k];
                const double number[] = {at->x, at->value, at->low, at->high, at->from, at->to};
                for (size_t n = 0; n < 6; n++)
                    put_number(s->data, number[n], n < 5 ? ' ' : '\n');
            }
        }
}

/* Widens low and high to what a panel shows, of those a logarithmic axis has where `positive`. */
static void widen(const curve_sheet *c, const curve_panel *panel, bool positive, double *low,
                  double *high) {
    for (size_t look = 0; look < c->looks; look++)
        for (size_t k = 0; k < panel->curve[look].points; k++) {
            const curve_point *at = &panel->curve[look].point[k];
            const double number[] = {at->value, at->low, at->high, at->from, at->to};
            for (size_t n = 0; n < 5; n++)
                if (!isnan(at->value) && !isnan(number[n]) && !(positive && number[n] < SMALLEST)) {
                    *low = fmin(*low, number[n]);
                    *high = fmax(*high, number[n]);
                }
        }
}

static bool panel_has_number(const curve_sheet *c, const curve_panel *panel) {
    double low = INFINITY, high = -INFINITY;
    widen(c, panel, false, &low, &high);
    return low <= high;
}

/* ---- Axes ---- */

/* 1, 2 or 5 times a power of ten, the last one not above `value` or the first one not below it. */
static double snap(double value, bool up) {
    static const double grid[] = {1, 2, 5, 10};
    double power = pow(10, floor(log10(value) + 1e-9));
    double found = up ? 10 * power : power;
    for (int i = 0; i < 4; i++) {
        if (!up && grid[i] * power <= value * (1 + 1e-9))
            found = grid[i] * power;
        if (up && grid[3 - i] * power >= value * (1 - 1e-9))
            found = grid[3 - i] * power;
    }
    return found;
}

static void put_tick(FILE *script, double at, bool *first) {
    fprintf(script, "%s'%g' %.6g", *first ? "" : ", ", at, at);
    *first = false;
}

/* Marks of a logarithmic axis of `decades` in `room` pixels: how many of 1, 2, 5 (or 1, 3) of every
 * `step`-th power of ten have `size` pixels each. */
typedef struct log_marks {
    double of[3], step;
    int count;
} log_marks;

static log_marks choose_marks(double decades, double room, double size) {
    double widest = room / decades / size; /* labels in a decade */
    if (widest >= 1 / log10(2))
        return (log_marks){{1, 2, 5}, 1, 3};
    if (widest >= 1 / log10(3))
        return (log_marks){{1, 3, 0}, 1, 2};
    return (log_marks){{1, 0, 0}, fmax(1, ceil(1 / widest)), 1};
}

/* The distance of evenly spaced numbers of which the two largest, the closest on a logarithmic axis
 * for `labels` labels, do not touch: `step` or it doubled. */
static double even_marks(double step, double bottom, double top, double labels) {
    for (;; step *= 2) {
        double last = floor(top / step + 1e-9) * step;
        if (last - step < bottom || labels * log(last / (last - step)) >= log(top / bottom))
            return step;
    }
}

/* A logarithmic axis in `room` pixels: marks are evenly spaced numbers where the range is narrow,
 * else those of choose_marks. */
static void put_log_axis(FILE *script, const char *axis, double low, double high, double room,
                         double size) {
    bool first = true;
    if (high < 2 * low) { /* less would make much of little */
        double middle = sqrt(low * high);
        low = middle / sqrt(2);
        high = middle * sqrt(2);
    }
    double bottom = snap(low, false), top = snap(high, true);
    bool narrow = high < 4 * low;
    nice_range even = nice_range_of(low, high);
    if (narrow) {
        bottom = even.low > 0 ? even.low : low / 1.05;
        top = even.high;
    }
    fprintf(script, "set logscale %s; set %srange [%.6g : %.6g]; set %stics (", axis, axis, bottom,
            top, axis);
    double step = narrow ? even_marks(even.step, bottom, top, room / size) : 1;
    for (double at = ceil(bottom / step - 1e-9) * step; narrow && at <= top * (1 + 1e-9);
         at += step)
        put_tick(script, at, &first);
    log_marks marks = choose_marks(log10(top / bottom), room, size);
    for (double power = floor(log10(bottom) + 1e-9); !narrow && power <= log10(top) + 1e-9;
         power += marks.step)
        for (int i = 0; i < marks.count; i++) {
            double at = marks.of[i] * pow(10, power);
            if (at >= bottom * (1 - 1e-9) && at <= top * (1 + 1e-9))
                put_tick(script, at, &first);
        }
    fputs(")\n", script);
}

static void put_linear_axis(FILE *script, const curve_panel *panel, double low, double high,
                            bool labels) {
    if (panel->zero_line) {
        low = fmin(low, 0);
        high = fmax(high, 0);
    }
    if (panel->from_zero)
        low = fmin(0, low);
    /* What differs by rounding alone is drawn flat: marks keep few digits. */
    double least = 0.02 * fmax(fabs(low), fabs(high));
    if (high - low < least) {
        low -= least / 2;
        high += least / 2;
    }
    nice_range range = nice_range_of(low, high);
    if (panel->from_zero && low < 0)
        range.low = 1.1 * low; /* an interval below 0 moves the axis only as far as it must */
    fprintf(script,
            "unset logscale y; set yrange [%.6g : %.6g]; set ytics out nomirror offset 0.5, 0 "
            "%.6g; set format y '%s'\n",
            range.low, range.high, range.step, labels ? "%g" : "");
}

/* ---- Panels ---- */

typedef struct panel_place {
    double left, right, top, bottom;
    bool logarithmic, first, last_row;
    double low, high; /* of its axis */
} panel_place;

/* Marks on boxes are no wider than a box. */
static double box_mark_size(const curve_sheet *c, const panel_place *place) {
    double pixels = (place->right - place->left) / (double)c->layers;
    return fmax(0.12, fmin(0.4, pixels / 14));
}

static void put_curves(const curve_sheet *c, const curve_panel *panel, const panel_place *place,
                       FILE *script) {
    const char *before = "plot ", *next = ", \\\n    ";
    if (panel->zero_line && !place->logarithmic) {
        fprintf(script, "%s0 with lines lw 0.6 lc rgb grey", before);
        before = next;
    }
    for (size_t look = 0; look < c->looks; look++) {
        const curve *line = &panel->curve[look];
        bool band = false;
        for (size_t k = 0; k < line->points; k++)
            band = band || (!isnan(line->point[k].from) && !isnan(line->point[k].to));
        if (!band)
            continue;
        fprintf(script, "%sD index %zu using %s lt %zu fs transparent solid 0.18 noborder", before,
                line->index,
                line->points == 1 ? "1:2:($1-0.15):($1+0.15):5:6 with boxxyerror"
                                  : "1:5:6 with filledcurves",
                line_type(c, look));
        before = next;
    }
    for (size_t look = 0; look < c->looks; look++) {
        const curve *line = &panel->curve[look];
        char x[32] = "1";
        /* On an axis of positions intervals are long: runs stand side by side. */
        if (c->runs && !c->layers)
            snprintf(x, sizeof x, "($1*%.4g)",
                     pow(1.022, (double)look - (double)(c->looks - 1) / 2));
        bool bars = false;
        if (line->points == 0)
            continue;
        for (size_t k = 0; k < line->points; k++)
            bars = bars || (!isnan(line->point[k].low) && !isnan(line->point[k].high));
        if (c->boxes && look == 0) {
            fprintf(script, "%sD index %zu using 1:2:(0.84) with boxes lc rgb '" BOX_COLOUR "'",
                    before, line->index);
            before = next;
        }
        if (bars && c->boxes) {
            fprintf(script,
                    "%sD index %zu using 1:3:(0):($4-$3) with vectors nohead lw %.2g lc rgb %s",
                    before, line->index, 2 * box_mark_size(c, place),
                    look == 0   ? "'#666666'"
                    : look == 1 ? "attn"
                                : "mlp");
            before = next;
        } else if (bars) {
            fprintf(
                script,
                "%sD index %zu using %s:3:(0):($4-$3) with vectors nohead lt %zu dt solid lw 0.8",
                before, line->index, x, line_type(c, look));
            before = next;
        }
        if (c->boxes && look > 0) {
            fprintf(script, "%sD index %zu using 1:2 with points lt %zu ps %.2g", before,
                    line->index, line_type(c, look), box_mark_size(c, place));
            before = next;
        }
        if (c->boxes)
            continue;
        double every = ceil((double)line->points * POINT_PIXELS / (place->right - place->left));
        fprintf(script, "%sD index %zu using %s:2 with linespoints lt %zu lw %s pi %g", before,
                line->index, x, line_type(c, look), c->runs ? "1.1" : "0.8", fmax(1, every));
        before = next;
    }
    fputc('\n', script);
}

/* What keeps a panel empty, or NULL. */
static const char *why_empty(const curve_sheet *c, const curve_panel *panel,
                             const panel_place *place) {
    if (place->low <= place->high && panel_has_number(c, panel))
        return NULL;
    if (panel_has_number(c, panel))
        return "no value above 0";
    return panel->why_empty ? panel->why_empty : "no defined value";
}

static void put_panel(const curve_sheet *c, const sheet *s, const curve_panel *panel,
                      const panel_place *place) {
    FILE *script = s->script;
    const char *why = why_empty(c, panel, place);
    double width = place->right - place->left, height = place->bottom - place->top;
    sheet_panel(s, place->left, place->right, place->top, place->bottom);
    if (why) {
        sheet_label(s, (place->left + place->right) / 2, (place->top + place->bottom) / 2, why,
                    FONT_TICK, "center tc rgb '#888888'");
        fputs("unset logscale y; set yrange [0 : 1]; unset ytics\n", script);
    } else if (place->logarithmic) {
        fputs("set format y '%g'\n", script);
        put_log_axis(script, "y", place->low, place->high, height, 10);
    } else {
        put_linear_axis(script, panel, place->low, place->high, place->first || !c->shared_rows);
    }
    if (c->layers)
        sheet_count_ticks(s, "x", c->layers, width, 22, place->last_row);
    else
        fprintf(script, "set format x '%s'\n", place->last_row ? "%g" : "");
    if (why)
        fputs("plot NaN\n", script);
    else
        put_curves(c, panel, place, script);
    sheet_clear_labels(s);
}

/* Title of a row of panels, and its unit. */
static void put_row_labels(const curve_sheet *c, const sheet *s, const curve_panel *panel,
                           double top, double bottom) {
    sheet_label(s, LEFT, top - 7, panel->title, FONT_TEXT, "");
    if (c->pairs)
        sheet_label(s, RIGHT, top - 7, "log scale", FONT_TICK, "right tc rgb '#666666'");
    sheet_label(s, 8, (top + bottom) / 2, panel->units, FONT_TICK, "center rotate by 90");
}

static size_t rows_of(const curve_sheet *c) {
    return c->shared_rows || c->grid ? (c->panels + 1) / 2 : c->panels;
}

/* The panel at a row and column; NULL: an empty place at the end of a grid. */
static const curve_panel *panel_at(const curve_sheet *c, size_t row, size_t column) {
    size_t index = c->shared_rows || c->grid ? 2 * row + column : row;
    return index < c->panels ? c->panel[index] : NULL;
}

static void put_rows(const curve_sheet *c, const sheet *s, double first_top, double height) {
    size_t columns = c->pairs || c->shared_rows || c->grid ? 2 : 1, rows = rows_of(c);
    double gap = c->shared_rows ? SHARED_GAP : PAIR_GAP;
    double width = columns == 1 ? RIGHT - LEFT : (RIGHT - LEFT - gap) / 2;
    for (size_t row = 0; row < rows; row++) {
        double top = first_top + (double)row * (height + TITLE_LINE + ROW_GAP) + TITLE_LINE;
        if (!c->grid)
            put_row_labels(c, s, panel_at(c, row, 0), top, top + height);
        for (size_t column = 0; column < columns; column++) {
            const curve_panel *panel = panel_at(c, row, column);
            if (!panel)
                break;
            panel_place place = {.left = LEFT + (double)column * (width + gap),
                                 .top = top,
                                 .bottom = top + height,
                                 .logarithmic = c->grid ? panel->logarithmic : c->pairs && column,
                                 .first = column == 0 || c->grid,
                                 .last_row = !panel_at(c, row + 1, column),
                                 .low = INFINITY,
                                 .high = -INFINITY};
            place.right = place.left + width;
            if (c->grid)
                sheet_label(s, place.left, top - 7, panel->title, FONT_TEXT, "");
            for (size_t k = 0; k < 2; k++)
                if (c->shared_rows || k == column)
                    widen(c, panel_at(c, row, k), place.logarithmic, &place.low, &place.high);
            put_panel(c, s, panel, &place);
            if (row == 0 && column == 0) {
                drop_legend(c, s);
                fputs("unset object\n", s->script);
            }
        }
    }
}

/* ---- The figure ---- */

static size_t put_notes(const curve_sheet *c, const sheet *s, double y, bool draw) {
    size_t lines = 0;
    for (const char *at = c->notes; *at;) {
        char text[sizeof c->notes];
        size_t length = strcspn(at, "\n");
        memcpy(text, at, length);
        text[length] = 0;
        lines += sheet_notes(s, y + (double)lines * NOTE_LINE, text, draw);
        at += length;
        at += *at == '\n';
    }
    return lines;
}

static void put_x_axis(const curve_sheet *c, FILE *script) {
    if (c->layers) {
        fprintf(script, "set xrange [-0.5 : %zu %c 0.5]\n", c->layers, c->no_final ? '-' : '+');
        return;
    }
    double low = INFINITY, high = 1;
    for (size_t i = 0; i < c->panels; i++)
        for (size_t look = 0; look < c->looks; look++)
            for (size_t k = 0; k < c->panel[i]->curve[look].points; k++) {
                low = fmin(low, c->panel[i]->curve[look].point[k].x);
                high = fmax(high, c->panel[i]->curve[look].point[k].x);
            }
    put_log_axis(script, "x", low, high, RIGHT - LEFT, 30);
    fprintf(script, "set xrange [%.6g : %.6g]\n", low / 1.3, high * 1.3);
}

int curves_draw(curve_sheet *c, sheet *s, status *st) {
    bool any = false;
    for (size_t i = 0; i < c->panels; i++)
        any = any || panel_has_number(c, c->panel[i]);
    if (!any) {
        status_fail(st, "none of its numbers is defined");
        return NOT_DRAWN;
    }
    size_t rows = rows_of(c);
    double height = rows == 1 ? 170 : rows > 4 ? 58 : 70;
    double top = SHEET_TITLES + put_legend(c, s, 0, false) + 2;
    top += c->shared_rows ? HEADING_LINE : *c->panel[0]->title ? 0 : -TITLE_LINE / 2;
    double bottom = top + (double)rows * (height + TITLE_LINE + ROW_GAP) - ROW_GAP;
    put_data(c, s);
    s->height = (int)(bottom + X_AXIS + (double)put_notes(c, s, 0, false) * NOTE_LINE - 3);
    if (c->runs)
        put_run_linetypes(s->script, c->looks);
    sheet_page(s, 0);
    put_x_axis(c, s->script);
    sheet_titles(s, c->title, c->subtitle);
    put_legend(c, s, SHEET_TITLES, true);
    put_marks(c, s);
    sheet_label(s, (LEFT + RIGHT) / 2.0, bottom + 21, c->x_label, FONT_TEXT, "center");
    put_notes(c, s, bottom + X_AXIS, true);
    for (int i = 0; c->shared_rows && i < 2; i++) /* centred over the columns */
        sheet_label(s, LEFT + (1 + 2 * i) * (RIGHT - LEFT) / 4.0 + (i ? 3 : -3),
                    top - HEADING_LINE / 2.0, c->column[i], FONT_TEXT, "center");
    put_rows(c, s, top, height);
    sheet_page_end(s);
    return DONE;
}
