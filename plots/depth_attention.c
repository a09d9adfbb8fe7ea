/* Heatmaps of the token-mean weight: rows are sites by layer, columns are sources. The sites before
 * attention and before the MLP have a panel each; `final` is the strip under the attention panel,
 * since all three read the same sources. */
#include "plots/figure.h"
#include "plots/routing_view.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEFT = 38,
    HEADS_PER_PAGE = 8,
    HEADS_PER_ROW = 4,
    GAP = 6,
    OUTLINE_MIN = 4,
    DENSE_CELLS = 40000, /* on a page; a rectangle costs about 60 bytes of svg */
};
#define NO_INDEX ((size_t)-1)

/* What is drawn of one view: the head mean alone, or heads one by one. */
typedef struct heatmaps {
    const routing_view *view;
    sheet *s;
    size_t first, heads;         /* of the view's weight array: [first, first + heads) */
    bool mean;                   /* the only one is the head mean */
    size_t columns;              /* panels side by side */
    double width, height, strip; /* of a panel; height of the final strip, 0: none */
    bool blocks;                 /* names of blocks stand on the right */
    nice_range scale;
    size_t *site;      /* [SITE_KINDS, layers] site of a row, or NO_INDEX */
    size_t *cells;     /* [heads, SITE_KINDS] index of the data set */
    size_t *undefined; /* [heads, SITE_KINDS] or NO_INDEX */
    size_t only[SITE_KINDS], partial[SITE_KINDS];
    bool present[SITE_KINDS];
    bool any_undefined, any_only, any_partial;
    size_t partial_rows; /* of the tallest partial block */
    bool outlined;       /* its outline is tall enough to be seen */
} heatmaps;

static size_t kind_rows(const heatmaps *map, site_kind kind) {
    return kind == SITE_FINAL ? 1 : map->view->layers;
}

static size_t *site_of(const heatmaps *map, site_kind kind, size_t row) {
    return &map->site[(size_t)kind * (map->view->layers + 1) + row];
}

static size_t sources_of(const routing_view *view, size_t site) {
    size_t count = 0;
    for (size_t i = 0; i < view->sources; i++)
        count += routing_exists(view, site, i);
    return count;
}

/* `final` is drawn as a strip under the panels of this kind. */
static bool has_strip(const heatmaps *map, site_kind kind) {
    return map->strip > 0 && kind == (map->present[SITE_ATTN] ? SITE_ATTN : SITE_MLP);
}

/* ---- Data ---- */

static void put_cells(heatmaps *map, size_t head, site_kind kind) {
    const routing_view *view = map->view;
    char label[32] = "mean over heads";
    if (!map->mean)
        snprintf(label, sizeof label, "head %zu", head);
    static const char *const names[] = {"attention sites", "MLP sites", "final site"};
    size_t at = head * SITE_KINDS + (size_t)kind, undefined = 0;
    map->cells[at] =
        sheet_data(map->s, "%s, %s; columns: source, layer, mean weight", label, names[kind]);
    size_t rows = kind_rows(map, kind);
    /* An image needs two rows and two columns: a single one is written twice, the second time
     * outside the plot. */
    for (size_t y = 0; y < (rows > 1 ? rows : 2); y++) {
        size_t row = y < rows ? y : 0, site = *site_of(map, kind, row);
        for (size_t x = 0; x < (view->sources > 1 ? view->sources : 2); x++) {
            size_t source = x < view->sources ? x : 0;
            double weight =
                site == NO_INDEX ? NAN : routing_weight(view, map->first + head, site, source);
            fprintf(map->s->data, "%zu %zu ", x, y);
            put_number(map->s->data, weight, '\n');
            undefined += site != NO_INDEX && routing_exists(view, site, source) && isnan(weight);
        }
    }
    map->undefined[at] = NO_INDEX;
    if (!undefined)
        return;
    map->any_undefined = true;
    map->undefined[at] =
        sheet_data(map->s, "%s, %s: undefined numbers; columns: source, layer", label, names[kind]);
    for (size_t row = 0; row < kind_rows(map, kind); row++) {
        size_t site = *site_of(map, kind, row);
        for (size_t source = 0; site != NO_INDEX && source < view->sources; source++)
            if (routing_exists(view, site, source) &&
                isnan(routing_weight(view, map->first + head, site, source)))
                fprintf(map->s->data, "%zu %zu\n", source, row);
    }
}

/* Sites with one source: their weight is 1 whatever was learned. */
static void put_only(heatmaps *map, site_kind kind) {
    const routing_view *view = map->view;
    map->only[kind] = NO_INDEX;
    for (size_t row = 0; row < kind_rows(map, kind); row++) {
        size_t site = *site_of(map, kind, row);
        if (site == NO_INDEX || sources_of(view, site) != 1)
            continue;
        if (map->only[kind] == NO_INDEX)
            map->only[kind] = sheet_data(map->s, "only sources; columns: source, layer");
        size_t source = 0;
        while (!routing_exists(view, site, source))
            source++;
        fprintf(map->s->data, "%zu %zu\n", source, row);
        map->any_only = true;
    }
}

/* Outlines of the cells that are the running sum of an unfinished block, one polygon per run. */
static void put_partial(heatmaps *map, site_kind kind) {
    const routing_view *view = map->view;
    map->partial[kind] = NO_INDEX;
    size_t rows = kind_rows(map, kind), end;
    for (size_t row = 0; row < rows; row = end) {
        end = row + 1;
        size_t site = *site_of(map, kind, row);
        int newest = site == NO_INDEX ? -1 : view->site[site].newest;
        if (newest < 0)
            continue;
        while (end < rows && *site_of(map, kind, end) != NO_INDEX &&
               view->site[*site_of(map, kind, end)].newest == newest)
            end++;
        if (map->partial[kind] == NO_INDEX)
            map->partial[kind] =
                sheet_data(map->s, "partial blocks, outlines; columns: source, layer");
        double left = newest - 0.5, right = newest + 0.5, top = (double)row - 0.5,
               bottom = (double)end - 0.5;
        fprintf(map->s->data, "%g %g\n%g %g\n%g %g\n%g %g\n%g %g\n\n", left, top, right, top, right,
                bottom, left, bottom, left, top);
        map->any_partial = true;
        map->partial_rows = end - row > map->partial_rows ? end - row : map->partial_rows;
    }
}

static void put_data(heatmaps *map) {
    for (size_t head = 0; head < map->heads; head++)
        for (site_kind kind = 0; kind < SITE_KINDS; kind++)
            if (map->present[kind])
                put_cells(map, head, kind);
    for (site_kind kind = 0; kind < SITE_KINDS; kind++) {
        if (!map->present[kind])
            continue;
        put_only(map, kind);
        put_partial(map, kind);
    }
}

static void put_names(const heatmaps *map) {
    const routing_view *view = map->view;
    char clean[64];
    fputs("# Rows of each data set: the column of the source, the row (layer), the mean weight;\n"
          "# nan: the site has no such source, or an undefined weight. A single row or column "
          "stands\n"
          "# twice, the second time out of sight. Columns and sources:",
          map->s->data);
    for (size_t i = 0; i < view->sources; i++) {
        clean_text(clean, sizeof clean, view->source[i], strlen(view->source[i]));
        fprintf(map->s->data, " %zu=%s", i, clean);
    }
    fputs("\n\n\n", map->s->data);
}

/* ---- Ticks ---- */

typedef struct tick {
    char text[48];
    double at; /* column */
    long step; /* number by which labels of one family are thinned; -1: always wanted */
} tick;

static double tick_width(const tick *t) {
    size_t chars = 0;
    for (const char *at = t->text; *at; at++)
        chars += ((unsigned char)*at & 0xc0) != 0x80;
    return (double)chars * TICK_CHAR + 4;
}

/* Whether the numbered labels that `step` keeps have room beside each other. */
static bool ticks_fit(const tick *ticks, size_t count, size_t step, double cell) {
    double end = -INFINITY;
    for (size_t i = 0; i < count; i++) {
        double half = tick_width(&ticks[i]) / 2, middle = ticks[i].at * cell;
        if (ticks[i].step < 0 || (size_t)ticks[i].step % step)
            continue;
        if (middle - half < end)
            return false;
        end = middle + half;
    }
    return true;
}

/* One tick per source, but one per layer where two sublayers are sources: "L3" between them. */
static size_t list_ticks(const routing_view *view, tick *ticks) {
    size_t count = 0;
    long last_layer = -1;
    for (size_t i = 0; i < view->sources; i++) {
        long number = -1;
        int used = 0;
        char letter;
        const char *name = view->source[i];
        bool numbered = sscanf(name, "%c%ld%n", &letter, &number, &used) == 2 && number >= 0;
        bool sublayer = numbered && letter == 'L' && name[used] == '.';
        if (sublayer && count && number == last_layer) {
            ticks[count - 1].at = (double)i - 0.5;
            continue;
        }
        last_layer = sublayer ? number : -1;
        tick *t = &ticks[count++];
        *t = (tick){.at = (double)i, .step = numbered ? number - (letter != 'L') : -1};
        clean_text(t->text, sizeof t->text, name, sublayer ? (size_t)used : strlen(name));
    }
    return count;
}

static int put_source_ticks(const heatmaps *map, double width, status *st) {
    const routing_view *view = map->view;
    tick *ticks = mem_array(view->sources, sizeof *ticks, "tick labels", st);
    if (!ticks)
        return FAILED;
    size_t count = list_ticks(view, ticks), step = 1;
    double cell = width / (double)view->sources;
    /* null and emb side by side in narrow columns become one label. */
    if (count > 1 && ticks[0].step < 0 && ticks[1].step < 0 &&
        cell < (tick_width(&ticks[0]) + tick_width(&ticks[1])) / 2) {
        tick both = {.at = (ticks[0].at + ticks[1].at) / 2, .step = -1};
        snprintf(both.text, sizeof both.text, "%.20s, %.20s", ticks[0].text, ticks[1].text);
        ticks[0] = tick_width(&both) < width / 3 ? both : ticks[1];
        memmove(&ticks[1], &ticks[2], (count - 2) * sizeof *ticks);
        count--;
    }
    while (step < 2 * view->sources && !ticks_fit(ticks, count, step, cell))
        step *= 2;
    fputs("set xtics out nomirror scale 0.4 offset 0, 0.4 (", map->s->script);
    bool first = true;
    /* Labels stay clear of the next panel's first one. */
    double end = -INFINITY,
           last = width + GAP - fmax(0, tick_width(&ticks[0]) / 2 - (ticks[0].at + 0.5) * cell);
    for (size_t i = 0; i < count; i++) {
        double half = tick_width(&ticks[i]) / 2, middle = (ticks[i].at + 0.5) * cell;
        if ((ticks[i].step > 0 && (size_t)ticks[i].step % step) || middle - half < end ||
            (i && middle + half > last))
            continue;
        end = middle + half;
        fputs(first ? "" : ", ", map->s->script);
        put_string(map->s->script, ticks[i].text);
        fprintf(map->s->script, " %g", ticks[i].at);
        first = false;
    }
    fputs(")\n", map->s->script);
    free(ticks);
    return DONE;
}

/* Marks on the right where a block opens, with the block's name. */
static void put_block_ticks(const heatmaps *map) {
    const routing_view *view = map->view;
    FILE *script = map->s->script;
    double end = -INFINITY, cell = map->height / (double)view->layers;
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
        fputs(first ? "set y2tics out scale 0.4 (" : ", ", script);
        put_string(script, named ? view->source[view->site[next].newest] : "");
        fprintf(script, " %zu", site->layer);
        if (named)
            end = site->depth * cell + 10;
        first = false;
    }
    if (!first)
        fprintf(script, ") offset -0.7, 0\nset y2range [%zu - 0.5 : -0.5]\n", view->layers);
}

/* ---- Script ---- */

static void put_plot(const heatmaps *map, size_t head, site_kind kind) {
    FILE *script = map->s->script;
    size_t at = head * SITE_KINDS + (size_t)kind;
    bool single = kind_rows(map, kind) == 1 || map->view->sources == 1;
    fprintf(script, "plot D index %zu using 1:2:3 with @%s", map->cells[at],
            single ? "row" : "cells");
    if (map->only[kind] != NO_INDEX)
        fprintf(script, ", \\\n    D index %zu using 1:2:(0.5):(0.5) with boxxyerror fc rgb grey",
                map->only[kind]);
    if (map->outlined && map->partial[kind] != NO_INDEX)
        fprintf(script,
                ", \\\n    D index %zu using 1:2 with lines lw 1.6 lc rgb 'black'"
                ", \\\n    D index %zu using 1:2 with lines lw 0.7 lc rgb 'white'",
                map->partial[kind], map->partial[kind]);
    if (map->undefined[at] != NO_INDEX)
        fprintf(script, ", \\\n    D index %zu using 1:2 with points pt 2 ps 0.4 lc rgb 'red'",
                map->undefined[at]);
    fputc('\n', script);
}

/* One head's panel of a kind, and under an attention panel the strip of `final`. */
static int put_panel(const heatmaps *map, size_t head, size_t place, site_kind kind, double top,
                     bool bottom_row, status *st) {
    const sheet *s = map->s;
    double left = LEFT + (double)(place % map->columns) * (map->width + GAP);
    bool left_column = place % map->columns == 0;
    if (!map->mean) {
        char label[32];
        snprintf(label, sizeof label, "head %zu", head);
        sheet_label(s, left, top - 6, label, FONT_TICK, "");
    }
    sheet_panel(s, left, left + map->width, top, top + map->height);
    fprintf(s->script, "set yrange [%zu - 0.5 : -0.5]\n", map->view->layers);
    sheet_count_ticks(s, "y", map->view->layers, map->height, 14, left_column);
    if (left_column)
        sheet_label(s, 9, top + map->height / 2, "layer", FONT_TEXT, "center rotate by 90");
    if (map->blocks)
        put_block_ticks(map);
    bool strip = has_strip(map, kind);
    fputs("unset xtics\n", s->script);
    if (bottom_row && !strip && put_source_ticks(map, map->width, st))
        return FAILED;
    put_plot(map, head, kind);
    fputs("unset y2tics; unset colorbox; unset label\n", s->script);
    if (!strip)
        return DONE;
    double y = top + map->height + 3;
    sheet_panel(s, left, left + map->width, y, y + map->strip);
    fprintf(s->script, "set yrange [0.5 : -0.5]\nset ytics (%s 0)\n",
            left_column ? "'final'" : "''");
    if (bottom_row && put_source_ticks(map, map->width, st))
        return FAILED;
    put_plot(map, head, SITE_FINAL);
    return DONE;
}

static double group_height(const heatmaps *map, site_kind kind, size_t heads) {
    if (!map->present[kind])
        return 0;
    size_t rows = (heads + map->columns - 1) / map->columns;
    double strip = has_strip(map, kind) ? map->strip + 3 : 0;
    return 15 + (double)rows * (map->height + strip + (map->mean ? 0 : 13)) + 4;
}

static const char *notes_of(const heatmaps *map, char *text, size_t size) {
    const char *partial = map->outlined ? " Outlined: a block's running sum."
                                        : " A block's running sum is outlined in depth_attention.";
    snprintf(text, size, "Hatched: the site has no such source.%s%s%s%s%s",
             map->any_only ? " Grey: its only source, weight 1." : "",
             map->any_partial ? partial : "", map->blocks ? " Right: where a block opens." : "",
             map->any_undefined ? " Red: undefined (nan)." : "",
             map->s->pages > 1
                 ? " One colour scale for all pages; depth_attention_heads.dat has every head."
                 : "");
    return text;
}

static int put_page(const heatmaps *map, size_t first, size_t heads, status *st) {
    static const char *const headers[] = {"before attention", "before the MLP"};
    const sheet *s = map->s;
    double y = SHEET_TITLES;
    bool both = map->present[SITE_ATTN] && map->present[SITE_MLP];
    for (site_kind kind = SITE_ATTN; kind <= SITE_MLP; kind++) {
        if (!map->present[kind])
            continue;
        sheet_label(s, LEFT, y + 7, headers[kind], FONT_TEXT, "");
        double strip = has_strip(map, kind) ? map->strip + 3 : 0;
        double pitch = map->height + strip + (map->mean ? 0 : 13);
        for (size_t place = 0; place < heads; place++) {
            double top = y + 15 + (double)(place / map->columns) * pitch + (map->mean ? 0 : 12);
            bool bottom = place + map->columns >= heads && (kind == SITE_MLP || !both);
            if (put_panel(map, first + place, place, kind, top, bottom, st))
                return FAILED;
        }
        y += group_height(map, kind, heads);
    }
    return DONE;
}

static int put_script(const heatmaps *map, const char *subtitle, status *st) {
    const routing_view *view = map->view;
    sheet *s = map->s;
    char notes[256], title[400];
    notes_of(map, notes, sizeof notes);
    size_t most = map->heads < HEADS_PER_PAGE ? map->heads : HEADS_PER_PAGE;
    double bottom =
        SHEET_TITLES + group_height(map, SITE_ATTN, most) + group_height(map, SITE_MLP, most);
    s->height = (int)(bottom + 66 + (double)sheet_notes(s, 0, notes, false) * NOTE_LINE);
    fprintf(s->script, "set xrange [-0.5 : %zu - 0.5]\n", view->sources);
    fprintf(s->script,
            "# a lower scale_max shows small weights; those above it keep the last colour\n"
            "scale_step = exists('scale_max') ? scale_max / 4.0 : %.6g\n"
            "if (!exists('scale_max')) scale_max = %.6g\n"
            "set cbrange [0 : scale_max]; set cbtics scale_step offset 0, 0.5\n",
            map->scale.step, map->scale.high);
    fputs("set object 1 rectangle from graph 0, 0 to graph 1, 1 behind fc rgb '#f4f4f4' fs solid\n"
          "set object 2 rectangle from graph 0, 0 to graph 1, 1 behind fc rgb '#aaaaaa' "
          "fs pattern 4 transparent\n",
          s->script);
    snprintf(title, sizeof title, "%s%s%s%s", view->name, *view->mode ? " (" : "", view->mode,
             *view->mode ? ")" : "");
    for (size_t page = 0; page < s->pages; page++) {
        size_t first = page * HEADS_PER_PAGE;
        size_t heads = map->heads - first < HEADS_PER_PAGE ? map->heads - first : HEADS_PER_PAGE;
        char paged[256];
        snprintf(paged, sizeof paged, "%s", subtitle);
        if (s->pages > 1)
            snprintf(paged, sizeof paged, "%s %zu-%zu of %zu", subtitle, first, first + heads - 1,
                     map->heads); /* one colour scale for all pages */
        sheet_page(s, page);
        sheet_titles(s, title, paged);
        sheet_label(s, LEFT + ((double)map->columns * (map->width + GAP) - GAP) / 2, bottom + 19,
                    "source", FONT_TEXT, "center");
        sheet_label(s, LEFT, bottom + 37, "mean weight", FONT_TEXT, "");
        fprintf(s->script,
                "set colorbox horizontal user origin X(%d), Y(%g) size X(170), 8 / real(H)\n",
                LEFT + 80, bottom + 41);
        sheet_notes(s, bottom + 66, notes, true);
        if (put_page(map, first, heads, st))
            return FAILED;
        sheet_page_end(s);
    }
    return DONE;
}

/* ---- The figures ---- */

static void find_scale(heatmaps *map) {
    const routing_view *view = map->view;
    double max = 0;
    for (size_t site = 0; site < view->sites; site++) {
        if (sources_of(view, site) < 2)
            continue;
        for (size_t head = map->first; head < map->first + map->heads; head++)
            for (size_t source = 0; source < view->sources; source++)
                max = fmax(max, routing_weight(view, head, site, source)); /* fmax drops NaN */
    }
    map->scale = nice_range_of(0, max > 0 ? max : 1);
}

static int find_rows(heatmaps *map, status *st) {
    const routing_view *view = map->view;
    size_t rows = view->layers + 1;
    map->site = mem_array(SITE_KINDS * rows, sizeof *map->site, "rows", st);
    map->cells = mem_array(map->heads * SITE_KINDS, sizeof *map->cells, "data sets", st);
    map->undefined = mem_array(map->heads * SITE_KINDS, sizeof *map->undefined, "data sets", st);
    if (!map->site || !map->cells || !map->undefined)
        return FAILED;
    for (size_t i = 0; i < SITE_KINDS * rows; i++)
        map->site[i] = NO_INDEX;
    for (size_t i = 0; i < view->sites; i++) {
        site_kind kind = view->site[i].kind;
        if (!sources_of(view, i))
            continue;
        size_t *row = site_of(map, kind, kind == SITE_FINAL ? 0 : view->site[i].layer);
        if (*row != NO_INDEX)
            return status_fail(st,
                               "%s: sites '%s' and '%s' have the same place in depth; expected "
                               "L0.attn, L0.mlp, ..., final",
                               table_path(view->from), view->site[*row].name, view->site[i].name);
        *row = i;
        map->present[kind] = true;
    }
    return DONE;
}

/* Why there is nothing to draw, or DONE. */
static int look(const routing_view *view, status *st) {
    bool any = false, defined = false;
    for (size_t site = 0; site < view->sites; site++)
        for (size_t source = 0; source < view->sources; source++) {
            any = any || routing_exists(view, site, source);
            for (size_t head = 0; head <= view->heads; head++)
                defined = defined || !isnan(routing_weight(view, head, site, source));
        }
    if (defined)
        return DONE;
    status_fail(st, any ? "every weight in the table is undefined (nan)"
                        : "no site of this model reads sources");
    return NOT_DRAWN;
}

static int draw(const table *from, sheet *s, bool mean, status *st) {
    routing_view view;
    if (routing_view_init(&view, from, st))
        return FAILED;
    heatmaps map = {.view = &view, .s = s, .mean = mean};
    int result = look(&view, st);
    if (result)
        goto end;
    if (!mean && view.heads < 2) {
        status_fail(st, "the table has one routing head: see depth_attention");
        result = NOT_DRAWN;
        goto end;
    }
    result = FAILED;
    map.first = mean ? view.heads : 0;
    map.heads = mean ? 1 : view.heads;
    if (find_rows(&map, st))
        goto end;
    map.columns = map.heads < HEADS_PER_ROW ? map.heads : HEADS_PER_ROW;
    for (size_t i = 0; i < view.sites; i++)
        map.blocks = map.blocks || (mean && view.site[i].opens_block);
    map.width = (SHEET_WIDTH - (map.blocks ? 24 : 8) - LEFT - (double)(map.columns - 1) * GAP) /
                (double)map.columns;
    map.height = fmin(fmax(0.62 * map.width, 48), 120);
    map.strip = !map.present[SITE_FINAL] ? 0 : mean ? 10 : 6;
    if (!map.present[SITE_ATTN] && !map.present[SITE_MLP]) {
        status_fail(st, "no site but `final` reads sources");
        result = NOT_DRAWN;
        goto end;
    }
    find_scale(&map);
    s->pages = (map.heads + HEADS_PER_PAGE - 1) / HEADS_PER_PAGE;
    size_t page_heads = map.heads < HEADS_PER_PAGE ? map.heads : HEADS_PER_PAGE;
    s->dense = page_heads * view.sites * view.sources > DENSE_CELLS;
    put_names(&map);
    put_data(&map);
    map.outlined = (double)map.partial_rows * map.height / (double)view.layers >= OUTLINE_MIN;
    char subtitle[128];
    if (!mean)
        snprintf(subtitle, sizeof subtitle, "mean depth-attention weight, %s",
                 s->pages > 1 ? "heads" : "head by head");
    else if (view.heads > 1)
        snprintf(subtitle, sizeof subtitle, "mean depth-attention weight, mean of %zu heads",
                 view.heads);
    else
        snprintf(subtitle, sizeof subtitle, "mean depth-attention weight");
    result = put_script(&map, subtitle, st);
end:
    free(map.site);
    free(map.cells);
    free(map.undefined);
    routing_view_clear(&view);
    return result;
}

int draw_depth_attention(const table *from, sheet *s, status *st) {
    return draw(from, s, true, st);
}

int draw_depth_attention_heads(const table *from, sheet *s, status *st) {
    return draw(from, s, false, st);
}
