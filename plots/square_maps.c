#include "plots/square_maps.h"

#include "plots/source_ticks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LEFT = 6, NAME_ROOM = 42 };

typedef struct data_index {
    size_t cells, undefined; /* undefined: index + 1, or 0 */
} data_index;

static void put_data(const square_maps *maps, sheet *s, data_index *index) {
    for (size_t i = 0; i < maps->maps; i++) {
        const square_map *map = &maps->map[i];
        size_t undefined = 0, n = map->size;
        index[i].cells = sheet_data(s, "%s; columns: %s, %s, %s", map->label, maps->axis,
                                    maps->axis, maps->what);
        /* An image needs two rows and two columns. */
        for (size_t y = 0; y < (n > 1 ? n : 2); y++)
            for (size_t x = 0; x < (n > 1 ? n : 2); x++) {
                double value = x < n && y < n && x != y ? map->value[y * n + x] : NAN;
                fprintf(s->data, "%zu %zu ", x, y);
                put_number(s->data, value, '\n');
                undefined += x < n && y < n && x != y && isnan(value);
            }
        if (!undefined)
            continue;
        index[i].undefined = 1 + sheet_data(s, "%s: undefined numbers; columns: %s, %s", map->label,
                                            maps->axis, maps->axis);
        for (size_t y = 0; y < n; y++)
            for (size_t x = 0; x < n; x++)
                if (x != y && isnan(map->value[y * n + x]))
                    fprintf(s->data, "%zu %zu\n", x, y);
    }
}

static int put_ticks(const square_map *map, const sheet *s, status *st) {
    fputs("unset xtics; unset ytics\n", s->script);
    if (map->name) {
        if ((map->xticks && source_xtics(s, map->name, map->size, map->side, 6, st)) ||
            (map->yticks && source_ytics(s, map->name, map->size, map->side, NAME_ROOM, st)))
            return FAILED;
        return DONE;
    }
    if (map->xticks) {
        fputs("set xtics out nomirror scale 0.4 offset 0, 0.4\n", s->script);
        sheet_count_ticks(s, "x", map->size, map->side, 16, true);
    }
    if (map->yticks) {
        fputs("set ytics out nomirror scale 0.4 offset 0.5, 0\n", s->script);
        sheet_count_ticks(s, "y", map->size, map->side, 14, true);
    }
    return DONE;
}

static int put_map(const square_map *map, const data_index *index, const sheet *s, status *st) {
    double y = map->top - 6;
    if (*map->below) {
        sheet_label(s, map->left, y, map->below, FONT_SMALL, "");
        y -= 10;
    }
    if (*map->label)
        sheet_label(s, map->left, y, map->label, FONT_TICK, "");
    sheet_panel(s, map->left, map->left + map->side, map->top, map->top + map->side);
    fprintf(s->script, "set xrange [-0.5 : %zu - 0.5]; set yrange [%zu - 0.5 : -0.5]\n", map->size,
            map->size);
    if (put_ticks(map, s, st))
        return FAILED;
    fprintf(s->script, "plot D index %zu using 1:2:3 with @%s", index->cells,
            map->size > 1 ? "cells" : "row");
    if (index->undefined)
        fprintf(s->script, ", \\\n    D index %zu using 1:2 with points pt 2 ps 0.4 lc rgb 'red'",
                index->undefined - 1);
    fputs("\nunset label; unset colorbox\n", s->script);
    return DONE;
}

int square_maps_draw(const square_maps *maps, const square_header *header, size_t headers, sheet *s,
                     status *st) {
    data_index *index = mem_array(maps->maps, sizeof *index, "data sets", st);
    if (!index)
        return FAILED;
    size_t cells = 0;
    bool undefined = false;
    char notes[512], title[256], subtitle[256];
    put_data(maps, s, index);
    for (size_t i = 0; i < maps->maps; i++) {
        cells += maps->map[i].size * maps->map[i].size;
        undefined = undefined || index[i].undefined;
    }
    s->dense = cells / s->pages > DENSE_CELLS;
    snprintf(notes, sizeof notes, "%s%s", maps->note, undefined ? " Red: undefined (nan)." : "");
    double bar = maps->bottom + 20, text = bar + COLOUR_BAR + 5;
    s->height = (int)(text + (double)sheet_notes(s, 0, notes, false) * NOTE_LINE);
    sheet_scale(s, &maps->scale);
    /* The diagonal shows through: it holds no number. */
    fputs("set object 1 rectangle from graph 0, 0 to graph 1, 1 behind fc rgb grey fs solid\n",
          s->script);
    routing_title(maps->view, title, sizeof title);
    int result = DONE;
    for (size_t page = 0; page < s->pages && !result; page++) {
        snprintf(subtitle, sizeof subtitle, "%s", maps->subtitle);
        if (s->pages > 1)
            snprintf(subtitle, sizeof subtitle, "%s, page %zu of %zu", maps->subtitle, page + 1,
                     s->pages);
        sheet_page(s, page);
        sheet_titles(s, title, subtitle);
        for (size_t i = 0; i < headers; i++)
            sheet_label(s, header[i].left, header[i].top, header[i].text, FONT_TEXT, "");
        sheet_colour_bar(s, &maps->scale, LEFT, bar);
        sheet_notes(s, text, notes, true);
        for (size_t i = 0; i < maps->maps && !result; i++)
            if (maps->map[i].page == page)
                result = put_map(&maps->map[i], &index[i], s, st);
        sheet_page_end(s);
    }
    free(index);
    return result;
}
