#include "plots/site_maps.h"

#include "plots/source_ticks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LEFT = 38, GAP = 6, OUTLINE_MIN = 4 };
#define NO_INDEX ((size_t)-1)

typedef struct drawing {
    const site_maps *of;
    const routing_view *view;
    sheet *s;
    size_t columns;              /* panels side by side */
    double width, height, strip; /* of a panel; height of the final strip, 0: none */
    double over;                 /* room for a panel's label */
    bool blocks;                 /* names of blocks stand on the right */
    size_t *site;                /* [SITE_KINDS, layers + 1] site of a row, or NO_INDEX */
    size_t *cells;               /* [maps, SITE_KINDS] index of the data set */
    size_t *undefined;           /* [maps, SITE_KINDS] or NO_INDEX */
    size_t only[SITE_KINDS], partial[SITE_KINDS];
    bool present[SITE_KINDS];
    bool any_undefined, any_only, any_partial;
    size_t partial_rows; /* of the tallest partial block */
    bool outlined;       /* its outline is tall enough to be seen */
    colour_scale scale;
    size_t beyond, valued; /* of the scale; cells with a number where there is a choice */
} drawing;

static const char *const kind_names[] = {"attention sites", "MLP sites", "final site"};

static size_t kind_rows(const drawing *d, site_kind kind) {
    return kind == SITE_FINAL ? 1 : d->view->layers;
}

static size_t *site_of(const drawing *d, site_kind kind, size_t row) {
    return &d->site[(size_t)kind * (d->view->layers + 1) + row];
}

static bool exists(const site_maps *of, size_t site, size_t column) {
    return of->exists[site * of->columns + column];
}

static double value_of(const site_maps *of, size_t map, size_t site, size_t column) {
    return of->map[map].value[site * of->columns + column];
}

/* Columns that a site reads. */
static size_t reads(const site_maps *of, size_t site) {
    size_t count = 0;
    for (size_t i = 0; i < of->columns; i++)
        count += exists(of, site, i);
    return count;
}

/* `final` is drawn as a strip under the panels of this kind. */
static bool has_strip(const drawing *d, site_kind kind) {
    return d->strip > 0 && kind == (d->present[SITE_ATTN] ? SITE_ATTN : SITE_MLP);
}

static double strip_height(const drawing *d, site_kind kind) {
    return has_strip(d, kind) ? d->strip + 3 : 0;
}

static size_t at_least(size_t count, size_t least) {
    return count > least ? count : least;
}

/* ---- Data ---- */

static void put_cells(drawing *d, size_t map, site_kind kind) {
    const site_maps *of = d->of;
    const char *label = of->map[map].label;
    size_t at = map * SITE_KINDS + (size_t)kind, undefined = 0, rows = kind_rows(d, kind);
    d->cells[at] = sheet_data(d->s, "%s%s%s; columns: %s, layer, %s", label, *label ? ", " : "",
                              kind_names[kind], of->axis, of->what);
    /* An image needs two rows and two columns: a single one is written twice, the second time
     * outside the plot. */
    for (size_t y = 0; y < at_least(rows, 2); y++) {
        size_t site = *site_of(d, kind, y < rows ? y : 0);
        for (size_t x = 0; x < at_least(of->columns, 2); x++) {
            size_t column = x < of->columns ? x : 0;
            double value = site == NO_INDEX ? NAN : value_of(of, map, site, column);
            fprintf(d->s->data, "%zu %zu ", x, y);
            put_number(d->s->data, value, '\n');
            undefined += site != NO_INDEX && exists(of, site, column) && isnan(value);
        }
    }
    d->undefined[at] = NO_INDEX;
    if (!undefined)
        return;
    d->any_undefined = true;
    d->undefined[at] = sheet_data(d->s, "%s%s%s: undefined numbers; columns: %s, layer", label,
                                  *label ? ", " : "", kind_names[kind], of->axis);
    for (size_t row = 0; row < rows; row++) {
        size_t site = *site_of(d, kind, row);
        for (size_t i = 0; site != NO_INDEX && i < of->columns; i++)
            if (exists(of, site, i) && isnan(value_of(of, map, site, i)))
                fprintf(d->s->data, "%zu %zu\n", i, row);
    }
}

/* Sites with one source: their weight is 1 whatever was learned. */
static void put_only(drawing *d, site_kind kind) {
    d->only[kind] = NO_INDEX;
    for (size_t row = 0; row < kind_rows(d, kind); row++) {
        size_t site = *site_of(d, kind, row), column = 0;
        if (site == NO_INDEX || reads(d->of, site) != 1)
            continue;
        if (d->only[kind] == NO_INDEX)
            d->only[kind] = sheet_data(d->s, "only sources; columns: %s, layer", d->of->axis);
        while (!exists(d->of, site, column))
            column++;
        fprintf(d->s->data, "%zu %zu\n", column, row);
        d->any_only = true;
    }
}

/* Outlines of the cells that are the running sum of an unfinished block, one polygon per run. */
static void put_partial(drawing *d, site_kind kind) {
    const routing_view *view = d->view;
    d->partial[kind] = NO_INDEX;
    size_t rows = kind_rows(d, kind), end;
    for (size_t row = 0; row < rows && d->of->sources; row = end) {
        end = row + 1;
        size_t site = *site_of(d, kind, row);
        int newest = site == NO_INDEX ? -1 : view->site[site].newest;
        if (newest < 0)
            continue;
        while (end < rows && *site_of(d, kind, end) != NO_INDEX &&
               view->site[*site_of(d, kind, end)].newest == newest)
            end++;
        if (d->partial[kind] == NO_INDEX)
            d->partial[kind] = sheet_data(d->s, "partial blocks, outlines; columns: source, layer");
        double left = newest - 0.5, right = newest + 0.5, top = (double)row - 0.5,
               bottom = (double)end - 0.5;
        fprintf(d->s->data, "%g %g\n%g %g\n%g %g\n%g %g\n%g %g\n\n", left, top, right, top, right,
                bottom, left, bottom, left, top);
        d->any_partial = true;
        d->partial_rows = at_least(end - row, d->partial_rows);
    }
}

static void put_names(const drawing *d) {
    char clean[64];
    fprintf(d->s->data,
            "# Rows of each data set: the column, the row (layer), the %s;\n"
            "# nan: the site has no such %s, or an undefined number. A single row or column "
            "stands\n"
            "# twice, the second time out of sight. Columns:",
            d->of->what, d->of->axis);
    for (size_t i = 0; i < d->of->columns; i++) {
        clean_text(clean, sizeof clean, d->of->column[i], strlen(d->of->column[i]));
        fprintf(d->s->data, " %zu=%s", i, clean);
    }
    fputs("\n\n\n", d->s->data);
}

static void put_data(drawing *d) {
    put_names(d);
    for (size_t map = 0; map < d->of->maps; map++)
        for (site_kind kind = 0; kind < SITE_KINDS; kind++)
            if (d->present[kind])
                put_cells(d, map, kind);
    for (site_kind kind = 0; kind < SITE_KINDS; kind++) {
        if (!d->present[kind])
            continue;
        put_only(d, kind);
        put_partial(d, kind);
    }
}

/* ---- Script ---- */

/* Marks on the right where a block opens, with the block's name. */
static void put_block_ticks(const drawing *d) {
    const routing_view *view = d->view;
    FILE *script = d->s->script;
    double end = -INFINITY, cell = d->height / (double)view->layers;
    bool first = true;
    for (size_t i = 0; i < view->sites; i++) {
        const routing_site *site = &view->site[i];
        if (!site->opens_block || site->kind != SITE_ATTN)
            continue;
        size_t next = i + 1;
        while (next < view->sites && view->site[next].newest < 0 && !view->site[next].opens_block)
            next++;
        bool named =
            next < view->sites && view->site[next].newest >= 0 && site->depth * cell >= end;
        char name[64] = "";
        if (named)
            snprintf(name, sizeof name, "%s", view->source[view->site[next].newest]);
        cut_text(name, 4);
        fputs(first ? "set y2tics out scale 0.4 (" : ", ", script);
        put_string(script, name);
        fprintf(script, " %zu", site->layer);
        if (named)
            end = site->depth * cell + 10;
        first = false;
    }
    if (!first)
        fprintf(script, ") offset -0.7, 0\nset y2range [%zu - 0.5 : -0.5]\n", view->layers);
}

static void put_plot(const drawing *d, size_t map, site_kind kind) {
    FILE *script = d->s->script;
    size_t at = map * SITE_KINDS + (size_t)kind;
    bool single = kind_rows(d, kind) == 1 || d->of->columns == 1;
    fprintf(script, "plot D index %zu using 1:2:3 with @%s", d->cells[at],
            single ? "row" : "cells");
    if (d->only[kind] != NO_INDEX)
        fprintf(script, ", \\\n    D index %zu using 1:2:(0.5):(0.5) with boxxyerror fc rgb grey",
                d->only[kind]);
    if (d->outlined && d->partial[kind] != NO_INDEX)
        fprintf(script,
                ", \\\n    D index %zu using 1:2 with lines lw 1.6 lc rgb 'black'"
                ", \\\n    D index %zu using 1:2 with lines lw 0.7 lc rgb 'white'",
                d->partial[kind], d->partial[kind]);
    if (d->undefined[at] != NO_INDEX)
        fprintf(script, ", \\\n    D index %zu using 1:2 with points pt 2 ps 0.4 lc rgb 'red'",
                d->undefined[at]);
    fputc('\n', script);
}

static int put_columns(const drawing *d, status *st) {
    return source_xtics(d->s, d->of->column, d->of->columns, d->width, GAP, st);
}

/* One map's panel of a kind, and under an attention panel the strip of `final`. */
static int put_panel(const drawing *d, size_t map, size_t place, site_kind kind, double top,
                     bool bottom_row, status *st) {
    const sheet *s = d->s;
    double left = LEFT + (double)(place % d->columns) * (d->width + GAP);
    bool left_column = place % d->columns == 0;
    if (d->over > 0)
        sheet_label(s, left, top - 6, d->of->map[map].label,
                    (double)strlen(d->of->map[map].label) * TICK_CHAR > d->width ? FONT_SMALL
                                                                                 : FONT_TICK,
                    "");
    sheet_panel(s, left, left + d->width, top, top + d->height);
    fprintf(s->script, "set yrange [%zu - 0.5 : -0.5]\n", d->view->layers);
    sheet_count_ticks(s, "y", d->view->layers, d->height, 14, left_column);
    if (left_column)
        sheet_label(s, 9, top + d->height / 2, "layer", FONT_TEXT, "center rotate by 90");
    if (d->blocks)
        put_block_ticks(d);
    bool strip = has_strip(d, kind);
    fputs("unset xtics\n", s->script);
    if (bottom_row && !strip && put_columns(d, st))
        return FAILED;
    put_plot(d, map, kind);
    fputs("unset y2tics; unset colorbox; unset label\n", s->script);
    if (!strip)
        return DONE;
    double y = top + d->height + 3;
    sheet_panel(s, left, left + d->width, y, y + d->strip);
    fprintf(s->script, "set yrange [0.5 : -0.5]\nset ytics (%s 0)\n",
            left_column ? "'final'" : "''");
    if (bottom_row && put_columns(d, st))
        return FAILED;
    put_plot(d, map, SITE_FINAL);
    return DONE;
}

static double pitch_of(const drawing *d, site_kind kind) {
    return d->height + strip_height(d, kind) + (d->over > 0 ? d->over + 1 : 0);
}

static double group_height(const drawing *d, site_kind kind, size_t maps) {
    if (!d->present[kind])
        return 0;
    return 15 + (double)((maps + d->columns - 1) / d->columns) * pitch_of(d, kind) + 4;
}

static void notes_of(const drawing *d, char *text, size_t size) {
    char only[96] = "", beyond[96] = "";
    if (d->beyond)
        snprintf(beyond, sizeof beyond, "Beyond the scale's end: %zu of %zu cells. ", d->beyond,
                 d->valued);
    if (d->any_only)
        snprintf(only, sizeof only, " Grey: its only source, %s.", d->of->only);
    snprintf(text, size, "%s%s%sHatched: the site has no such %s.%s%s%s%s%s", d->of->note,
             *d->of->note ? " " : "", beyond, d->of->axis, only,
             !d->any_partial ? ""
             : d->outlined   ? " Outlined: a block's running sum."
                             : " A block's running sum is outlined in depth_attention.",
             d->blocks ? " Right: where a block opens." : "",
             d->any_undefined ? " Red: undefined (nan)." : "",
             d->s->pages > 1 ? " One colour scale for all pages." : "");
}

static int put_page(const drawing *d, size_t first, size_t maps, status *st) {
    static const char *const headers[] = {"before attention", "before the MLP"};
    double y = SHEET_TITLES;
    bool both = d->present[SITE_ATTN] && d->present[SITE_MLP];
    for (site_kind kind = SITE_ATTN; kind <= SITE_MLP; kind++) {
        if (!d->present[kind])
            continue;
        sheet_label(d->s, LEFT, y + 7, headers[kind], FONT_TEXT, "");
        for (size_t place = 0; place < maps; place++) {
            double top = y + 15 + (double)(place / d->columns) * pitch_of(d, kind) + d->over;
            bool bottom = place + d->columns >= maps && (kind == SITE_MLP || !both);
            if (put_panel(d, first + place, place, kind, top, bottom, st))
                return FAILED;
        }
        y += group_height(d, kind, maps);
    }
    return DONE;
}

static int put_script(const drawing *d, status *st) {
    const site_maps *of = d->of;
    sheet *s = d->s;
    char notes[512], title[256], subtitle[256];
    notes_of(d, notes, sizeof notes);
    size_t most = of->maps < of->page ? of->maps : of->page;
    double bottom =
        SHEET_TITLES + group_height(d, SITE_ATTN, most) + group_height(d, SITE_MLP, most);
    double bar = bottom + 32, text = bar + COLOUR_BAR + 5;
    s->height = (int)(text + (double)sheet_notes(s, 0, notes, false) * NOTE_LINE);
    fprintf(s->script, "set xrange [-0.5 : %zu - 0.5]\n", of->columns);
    sheet_scale(s, &d->scale);
    sheet_hatch(s);
    routing_title(d->view, title, sizeof title);
    for (size_t page = 0; page < s->pages; page++) {
        size_t first = page * of->page;
        size_t maps = of->maps - first < of->page ? of->maps - first : of->page;
        snprintf(subtitle, sizeof subtitle, "%s", of->subtitle);
        if (s->pages > 1)
            snprintf(subtitle, sizeof subtitle, "%s, %s %zu-%zu of %zu", of->subtitle, of->noun,
                     first, first + maps - 1, of->maps);
        sheet_page(s, page);
        sheet_titles(s, title, subtitle);
        sheet_label(s, LEFT + ((double)d->columns * (d->width + GAP) - GAP) / 2, bottom + 19,
                    of->axis, FONT_TEXT, "center");
        sheet_colour_bar(s, &d->scale, LEFT, bar);
        sheet_notes(s, text, notes, true);
        if (put_page(d, first, maps, st))
            return FAILED;
        sheet_page_end(s);
    }
    return DONE;
}

/* ---- Layout ---- */

static int find_rows(drawing *d, status *st) {
    const routing_view *view = d->view;
    size_t rows = view->layers + 1, sets = d->of->maps * SITE_KINDS;
    d->site = mem_array(SITE_KINDS * rows, sizeof *d->site, "rows", st);
    d->cells = mem_array(sets, sizeof *d->cells, "data sets", st);
    d->undefined = mem_array(sets, sizeof *d->undefined, "data sets", st);
    if (!d->site || !d->cells || !d->undefined)
        return FAILED;
    for (size_t i = 0; i < SITE_KINDS * rows; i++)
        d->site[i] = NO_INDEX;
    for (size_t i = 0; i < view->sites; i++) {
        site_kind kind = view->site[i].kind;
        if (!reads(d->of, i))
            continue;
        size_t *row = site_of(d, kind, kind == SITE_FINAL ? 0 : view->site[i].layer);
        if (*row != NO_INDEX)
            return status_fail(st,
                               "%s: sites '%s' and '%s' have the same place in depth; expected "
                               "L0.attn, L0.mlp, ..., final",
                               table_path(view->from), view->site[*row].name, view->site[i].name);
        *row = i;
        d->present[kind] = true;
    }
    if (d->present[SITE_ATTN] || d->present[SITE_MLP])
        return DONE;
    status_fail(st, "no site but `final` reads sources");
    return NOT_DRAWN;
}

static void lay_out(drawing *d) {
    const site_maps *of = d->of;
    size_t cells = 0, page = of->maps < of->page ? of->maps : of->page;
    for (size_t i = 0; i < d->view->sites; i++) {
        d->blocks = d->blocks || (of->maps == 1 && d->view->site[i].opens_block);
        cells += reads(of, i);
    }
    d->columns = of->maps < of->row ? of->maps : of->row;
    d->over = *of->map[0].label ? 12 : 0;
    d->width = (SHEET_WIDTH - (d->blocks ? 24 : 8) - LEFT - (double)(d->columns - 1) * GAP) /
               (double)d->columns;
    d->height = fmin(fmax(0.62 * d->width, 48), 120);
    if (d->columns > 1 && d->columns < 4)
        d->height = 0.8 * d->width;
    d->strip = !d->present[SITE_FINAL] ? 0 : of->maps == 1 ? 10 : 6;
    d->s->pages = (of->maps + of->page - 1) / of->page;
    d->s->dense = page * cells > DENSE_CELLS;
}

int site_maps_draw(const site_maps *maps, sheet *s, status *st) {
    drawing d = {.of = maps, .view = maps->view, .s = s};
    int result = find_rows(&d, st);
    d.scale = maps->scale;
    if (!result)
        result = site_maps_scale(maps, s->diverging, &d.scale, &d.beyond, &d.valued, st);
    if (!result) {
        lay_out(&d);
        put_data(&d);
        d.outlined = (double)d.partial_rows * d.height / (double)d.view->layers >= OUTLINE_MIN;
        result = put_script(&d, st);
    }
    free(d.site);
    free(d.cells);
    free(d.undefined);
    return result;
}
