#include "plots/depth_lines.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEFT = 46,
    RIGHT = SHEET_WIDTH - 10,
    BETWEEN = 22, /* panels: the name of the next one */
    LEGEND_LINE = 12,
    LEGEND_CHAR = 5, /* and a half, of FONT_TEXT */
    LEGEND_RIGHT = SHEET_WIDTH - 6,
    REFERENCE = 1000, /* tag of the legend's dashed line */
};

typedef struct drawing {
    const depth_lines *of;
    const routing_view *view;
    sheet *s;
    double panel; /* height */
    const char *legend[LINES_MAX];
    bool banded_line[LINES_MAX];
    bool bars, banded, blocks;
} drawing;

/* ---- Series ---- */

depth_series *depth_panel_series(depth_panel *panel, const char *name, int line) {
    for (size_t i = 0; i < panel->count; i++)
        if (panel->series[i].line == line && strcmp(panel->series[i].name, name) == 0)
            return &panel->series[i];
    if (panel->count == SERIES_MAX)
        return &panel->series[SERIES_MAX - 1];
    depth_series *series = &panel->series[panel->count++];
    *series = (depth_series){.name = name, .line = line};
    return series;
}

int depth_series_add(depth_series *series, bool null, depth_point point, status *st) {
    size_t *count = null ? &series->nulls : &series->points;
    depth_point **list = null ? &series->null : &series->point;
    if ((*count & (*count - 1)) == 0) { /* full at 0 and at each power of two */
        size_t room = *count ? 2 * *count : 1;
        depth_point *grown = realloc(*list, room * sizeof *grown);
        if (!grown)
            return status_fail(st, "no memory for %zu points", room);
        *list = grown;
    }
    (*list)[(*count)++] = point;
    return DONE;
}

void depth_panel_clear(depth_panel *panel) {
    for (size_t i = 0; i < panel->count; i++) {
        free(panel->series[i].point);
        free(panel->series[i].null);
    }
    panel->count = 0;
}

static bool is_defined(const depth_series *series) {
    for (size_t i = 0; i < series->points; i++)
        if (!isnan(series->point[i].value))
            return true;
    return false;
}

static bool has_bars(const depth_series *series) {
    for (size_t i = 0; i < series->points; i++)
        if (!isnan(series->point[i].low) && !isnan(series->point[i].high))
            return true;
    return false;
}

/* Whether there is anything beside lines of reference. */
static bool has_values(const depth_panel *panel) {
    for (size_t i = 0; i < panel->count; i++)
        if (panel->series[i].line && is_defined(&panel->series[i]))
            return true;
    return false;
}

static bool has_nulls(const depth_panel *panel) {
    for (size_t i = 0; i < panel->count; i++)
        if (panel->series[i].nulls)
            return true;
    return false;
}

/* ---- Data ---- */

static size_t put_points(sheet *s, const depth_point *point, size_t count) {
    for (size_t i = 0; i < count; i++) {
        put_number(s->data, point[i].depth, ' ');
        put_number(s->data, point[i].value, ' ');
        put_number(s->data, point[i].low, ' ');
        put_number(s->data, point[i].high, '\n');
    }
    return s->indexes - 1;
}

static nice_range range_of(const depth_panel *panel) {
    double low = INFINITY, high = -INFINITY;
    for (size_t i = 0; i < panel->count; i++) {
        const depth_series *series = &panel->series[i];
        for (size_t k = 0; k < series->points; k++) {
            const depth_point *p = &series->point[k];
            low = fmin(low, fmin(p->value, p->low)); /* fmin and fmax drop NaN */
            high = fmax(high, fmax(p->value, p->high));
        }
        for (size_t k = 0; k < series->nulls; k++) {
            low = fmin(low, series->null[k].low);
            high = fmax(high, series->null[k].high);
        }
    }
    if (low > high)
        low = high = 0;
    bool zero = panel->from_zero || low < 0.5 * high;
    /* What differs by rounding alone is drawn flat, and marks keep few digits. */
    double least = fmax(0.02 * fmax(fabs(low), fabs(high)), 1e-6);
    if (high - (zero ? 0 : low) < least) {
        low -= zero ? 0 : least / 2;
        high = low + least;
    }
    nice_range range = nice_range_of(zero && low > 0 ? 0 : low, high);
    if (zero && low < 0)
        range = nice_range_of(0, high > 0 ? high : -low);
    if (zero && low < 0)
        range.low = 1.1 * low; /* an interval below 0 moves the axis only as far as it must */
    return range;
}

/* ---- Script ---- */

/* Vertical lines where a block opens. */
static void put_blocks(const drawing *d) {
    for (size_t i = 0; i < d->view->sites; i++)
        if (d->view->site[i].opens_block)
            fprintf(d->s->script,
                    "set arrow from first %g, graph 0 to first %g, graph 1 nohead back "
                    "lw 0.5 lc rgb '#bbbbbb'\n",
                    d->view->site[i].depth, d->view->site[i].depth);
}

/* A ribbon in a light tint of the line's colour, never thinner than a line; a box for a lone
 * point. Returns what the next element of the plot is preceded by. */
static const char *put_bands(const drawing *d, const depth_panel *panel, const size_t *band) {
    FILE *script = d->s->script;
    const char *before = "plot ";
    for (size_t i = 0; i < panel->count; i++) {
        int line = panel->series[i].line;
        if (!panel->series[i].nulls)
            continue;
        if (panel->series[i].nulls == 1)
            fprintf(script,
                    "%sD index %zu using 1:2:($1-0.15):($1+0.15):3:4 with boxxyerror "
                    "fs solid border rgb null%d fc rgb null%d",
                    before, band[i], line, line);
        else
            fprintf(script,
                    "%sD index %zu using 1:3:4 with filledcurves fc rgb null%d "
                    "fs transparent solid 0.7, \\\n"
                    "    D index %zu using 1:2 with lines lw 2 lc rgb null%d",
                    before, band[i], line, band[i], line);
        before = ", \\\n    ";
    }
    return before;
}

static void put_curves(const drawing *d, const depth_panel *panel) {
    size_t index[SERIES_MAX], band[SERIES_MAX];
    FILE *script = d->s->script;
    for (size_t i = 0; i < panel->count; i++) {
        const depth_series *series = &panel->series[i];
        index[i] =
            sheet_data(d->s, "%s, %s; columns: depth, value, low, high", panel->name, series->name);
        put_points(d->s, series->point, series->points);
        if (!series->nulls)
            continue;
        band[i] = sheet_data(d->s, "%s, null of %s; columns: depth, mean, lowest, highest draw",
                             panel->name, series->name);
        put_points(d->s, series->null, series->nulls);
    }
    const char *before = put_bands(d, panel, band);
    for (size_t i = 0; i < panel->count; i++) {
        const depth_series *series = &panel->series[i];
        if (!is_defined(series))
            continue;
        if (!series->line) {
            fprintf(script, "%sD index %zu using 1:2 with lines dt 2 lw 0.8 lc rgb grey", before,
                    index[i]);
            before = ", \\\n    ";
            continue;
        }
        if (has_bars(series)) {
            fprintf(script, "%sD index %zu using 1:3:(0):($4-$3) with vectors nohead lt %d lw 0.8",
                    before, index[i], series->line);
            before = ", \\\n    ";
        }
        fprintf(script, "%sD index %zu using 1:2 with linespoints lt %d lw 0.8%s", before, index[i],
                series->line, d->view->layers > 48 ? " ps 0.2" : "");
        before = ", \\\n    ";
    }
    fputc('\n', script);
}

static void put_panel(const drawing *d, size_t which, double top) {
    const depth_panel *panel = &d->of->panel[which];
    const sheet *s = d->s;
    const char *why = panel->why ? panel->why : has_values(panel) ? NULL : d->of->empty;
    sheet_label(s, LEFT, top - 7, panel->name, FONT_TEXT, "");
    if (why)
        sheet_label(s, (LEFT + RIGHT) / 2.0, top + d->panel / 2, why, FONT_TEXT,
                    "center tc rgb '#888888'");
    else if (panel->wants_null && !has_nulls(panel))
        sheet_label(s, RIGHT, top - 7, "no null shown", FONT_TICK, "right tc rgb '#888888'");
    sheet_panel(s, LEFT, RIGHT, top, top + d->panel);
    sheet_label(s, 8, top + d->panel / 2, panel->units, FONT_TEXT, "center rotate by 90");
    nice_range range = range_of(panel);
    if (why)
        fputs("set yrange [0 : 1]; unset ytics\n", s->script);
    else
        fprintf(s->script, "set yrange [%.6g : %.6g]; set ytics out nomirror offset 0.5, 0 %.6g\n",
                range.low, range.high, range.step);
    sheet_count_ticks(s, "x", d->view->layers, RIGHT - LEFT, 22, which + 1 == d->of->panels);
    if (why)
        fputs("plot NaN\n", s->script);
    else
        put_curves(d, panel);
    sheet_clear_labels(s);
    if (which == 0)
        fprintf(s->script, "unset object; unset arrow %d\n", REFERENCE);
}

/* ---- Legend ---- */

/* Entries in lines of their own widths; `draw` false: only counts. Returns the lines. */
static size_t put_legend(const drawing *d, double top, bool draw) {
    const sheet *s = d->s;
    double x = 9, y = top;
    size_t lines = 1;
    for (int turn = 1; turn <= LINES_MAX + 1; turn++) {
        int line = turn % LINES_MAX; /* lines of reference last */
        const char *text =
            turn > LINES_MAX ? (d->blocks ? "| a block opens" : NULL) : d->legend[line];
        if (!text)
            continue;
        double width = 18 + ((double)strlen(text)) * (LEGEND_CHAR + 0.5);
        if (x + width > LEGEND_RIGHT && x > 9) {
            x = 9;
            y += LEGEND_LINE;
            lines++;
        }
        if (draw && turn > LINES_MAX)
            sheet_label(s, x, y, text, FONT_TEXT, "tc rgb '#888888'");
        else if (draw && line == 0) {
            fprintf(s->script,
                    "set arrow %d from screen X(%g), screen Y(%g) to screen X(%g), screen Y(%g) "
                    "nohead dt 2 lw 0.8 lc rgb grey\n",
                    REFERENCE, x, y, x + 12, y);
            sheet_label(s, x + 15, y, text, FONT_TEXT, "");
        } else if (draw) {
            char point[64];
            snprintf(point, sizeof point, "point lt %d ps 0.6 offset 0.6, -0.2", line);
            sheet_label(s, x + 3, y, text, FONT_TEXT, point);
        }
        x += width + 6;
    }
    if (!d->banded)
        return lines;
    y = top + (double)lines * LEGEND_LINE;
    x = 9;
    for (int line = 1; line < LINES_MAX && draw; line++) {
        if (!d->banded_line[line])
            continue;
        fprintf(s->script,
                "set object %d rectangle from screen X(%g), screen Y(%g) to screen X(%g), "
                "screen Y(%g) front fc rgb null%d fs solid noborder\n",
                line, x, y - 3.5, x + 8, y + 3.5, line);
        x += 8;
    }
    char text[96];
    const char *draws = routing_run_text(d->view, "null_draws");
    snprintf(text, sizeof text, "null (equal logit variance%s%.12s%s)", *draws ? ", " : "", draws,
             *draws ? " draws" : "");
    if (draw)
        sheet_label(s, x + 4, y, text, FONT_TEXT, "");
    return lines + 1;
}

static void look(drawing *d) {
    for (size_t i = 0; i < d->of->panels; i++)
        for (size_t k = 0; k < d->of->panel[i].count; k++) {
            const depth_series *series = &d->of->panel[i].series[k];
            if (is_defined(series))
                d->legend[series->line] = series->name;
            d->bars = d->bars || (series->line && has_bars(series));
            d->banded = d->banded || series->nulls;
            d->banded_line[series->line] = d->banded_line[series->line] || series->nulls;
        }
    for (size_t i = 0; i < d->view->sites; i++)
        d->blocks = d->blocks || d->view->site[i].opens_block;
}

static void notes_of(const drawing *d, char *notes, size_t size) {
    snprintf(notes, size, "%s%s%s", d->of->note, *d->of->note ? " " : "",
             d->bars ? "Bars: intervals over sequences; see the table."
                     : "No intervals: the table holds none (fewer than 8 sequences?).");
    size_t used = strlen(notes);
    const char *nulls = routing_run_text(d->view, "null_sequences");
    const char *all = routing_run_text(d->view, "sequences");
    if (d->banded && used < size && *nulls && *all)
        snprintf(notes + used, size - used,
                 " Bands: lowest to highest of random queries, on %.12s of %.12s sequences.", nulls,
                 all);
    else if (d->banded && used < size)
        snprintf(notes + used, size - used, " Bands: lowest to highest of random queries.");
}

int depth_lines_draw(const depth_lines *lines, sheet *s, status *st) {
    drawing d = {.of = lines,
                 .view = lines->view,
                 .s = s,
                 .panel = lines->panels > 4   ? 66
                          : lines->panels > 1 ? 80
                                              : 150};
    bool defined = false;
    for (size_t i = 0; i < lines->panels; i++)
        defined = defined || (!lines->panel[i].why && has_values(&lines->panel[i]));
    if (!defined) {
        status_fail(st, "%s", lines->empty);
        return NOT_DRAWN;
    }
    fputs("# Depth: the layer's number, half a layer more for an MLP. nan: undefined.\n\n\n",
          s->data);
    look(&d);
    char notes[512], title[256];
    notes_of(&d, notes, sizeof notes);
    double legend = SHEET_TITLES + 6;
    double top = legend + (double)put_legend(&d, legend, false) * LEGEND_LINE + 14;
    double bottom = top + (double)lines->panels * (d.panel + BETWEEN) - BETWEEN;
    s->height = (int)bottom + 36 + (int)(sheet_notes(s, 0, notes, false) * NOTE_LINE) - 3;
    sheet_page(s, 0);
    fprintf(s->script, "set xrange [-0.5 : %zu + 0.5]\n", d.view->layers);
    put_blocks(&d);
    routing_title(d.view, title, sizeof title);
    sheet_titles(s, title, lines->subtitle);
    if (d.banded)
        fputs("null1 = '#b9d6ea'; null2 = '#f6cfb4'; null3 = '#cccccc'\n", s->script);
    put_legend(&d, legend, true);
    sheet_label(s, (LEFT + RIGHT) / 2.0, bottom + 21, lines->axis, FONT_TEXT, "center");
    sheet_notes(s, bottom + 36, notes, true);
    for (size_t i = 0; i < lines->panels; i++)
        put_panel(&d, i, top + (double)i * (d.panel + BETWEEN));
    sheet_page_end(s);
    return DONE;
}
