#include "plots/source_ticks.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 12 }; /* height of a label */

typedef struct tick {
    char text[64];
    double at;   /* column */
    double size; /* pixels along the axis */
    long step;   /* number by which labels of one family are thinned; -1: always wanted */
} tick;

static double text_width(const char *text) {
    size_t chars = 0;
    for (const char *at = text; *at; at++)
        if (((unsigned char)*at & 0xc0) != 0x80)
            chars += (unsigned char)*at >= 0xe3 ? 2 : 1;
    return (double)chars * TICK_CHAR + 4;
}

/* Whether the numbered labels that `step` keeps have room beside each other. */
static bool ticks_fit(const tick *ticks, size_t count, size_t step, double cell) {
    double end = -INFINITY;
    for (size_t i = 0; i < count; i++) {
        double half = ticks[i].size / 2, middle = ticks[i].at * cell;
        if (ticks[i].step < 0 || (size_t)ticks[i].step % step)
            continue;
        if (middle - half < end)
            return false;
        end = middle + half;
    }
    return true;
}

/* One tick per source, but one per layer where two sublayers are sources: "L3" between them.
 * `line`: size of a label on a vertical axis; 0: as wide as it is. */
static size_t list_ticks(const char *const *names, size_t sources, size_t chars, double line,
                         tick *ticks) {
    size_t count = 0;
    long last_layer = -1;
    for (size_t i = 0; i < sources; i++) {
        long number = -1;
        int used = 0;
        char letter;
        const char *name = names[i];
        bool numbered = sscanf(name, "%c%6ld%n", &letter, &number, &used) == 2 && number >= 0;
        bool sublayer = numbered && letter == 'L' && name[used] == '.';
        if (sublayer && count && number == last_layer) {
            ticks[count - 1].at = (double)i - 0.5;
            continue;
        }
        last_layer = sublayer ? number : -1;
        tick *t = &ticks[count++];
        *t = (tick){.at = (double)i, .step = numbered ? number - (letter != 'L') : -1};
        clean_text(t->text, sizeof t->text, name, sublayer ? (size_t)used : strlen(name));
        cut_text(t->text, chars);
        t->size = line > 0 ? line : text_width(t->text);
    }
    return count;
}

/* null and emb side by side in narrow columns become one label. */
static size_t join_first(tick *ticks, size_t count, double width, double cell) {
    if (count < 2 || ticks[0].step >= 0 || ticks[1].step >= 0 ||
        cell >= (ticks[0].size + ticks[1].size) / 2)
        return count;
    tick both = {.at = (ticks[0].at + ticks[1].at) / 2, .step = -1};
    snprintf(both.text, sizeof both.text, "%.20s, %.20s", ticks[0].text, ticks[1].text);
    both.size = text_width(both.text);
    ticks[0] = both.size < width / 3 ? both : ticks[1];
    memmove(&ticks[1], &ticks[2], (count - 2) * sizeof *ticks);
    return count - 1;
}

/* Labels stay within [first, last] pixels from the first column's edge. */
static void put_ticks(const sheet *s, const tick *ticks, size_t count, double cell, double first,
                      double last) {
    size_t step = 1;
    while (step < 2 * count && !ticks_fit(ticks, count, step, cell))
        step *= 2;
    double end = first;
    bool any = false;
    for (size_t i = 0; i < count; i++) {
        double half = ticks[i].size / 2, middle = (ticks[i].at + 0.5) * cell;
        if ((ticks[i].step > 0 && (size_t)ticks[i].step % step) || middle - half < end ||
            (i && middle + half > last))
            continue;
        end = middle + half;
        fputs(any ? ", " : "", s->script);
        put_string(s->script, ticks[i].text);
        fprintf(s->script, " %g", ticks[i].at);
        any = true;
    }
    fputs(")\n", s->script);
}

int source_xtics(const sheet *s, const char *const *names, size_t sources, double width,
                 double spill, status *st) {
    tick *ticks = mem_array(sources, sizeof *ticks, "tick labels", st);
    if (!ticks)
        return FAILED;
    double cell = width / (double)sources;
    size_t count = list_ticks(names, sources, SOURCE_CHARS, 0, ticks);
    count = join_first(ticks, count, width, cell);
    fputs("set xtics out nomirror scale 0.4 offset 0, 0.4 (", s->script);
    /* They stay clear of the next panel's first one. */
    double last = width + spill - fmax(0, ticks[0].size / 2 - (ticks[0].at + 0.5) * cell);
    put_ticks(s, ticks, count, cell, -INFINITY, last);
    free(ticks);
    return DONE;
}

int source_ytics(const sheet *s, const char *const *names, size_t sources, double height,
                 double room, status *st) {
    tick *ticks = mem_array(sources, sizeof *ticks, "tick labels", st);
    if (!ticks)
        return FAILED;
    size_t chars = room > 4 * TICK_CHAR ? (size_t)(room / TICK_CHAR) : 4;
    size_t count = list_ticks(names, sources, chars, LINE, ticks);
    fputs("set ytics out nomirror scale 0.4 offset 0.5, 0 (", s->script);
    put_ticks(s, ticks, count, height / (double)sources, -INFINITY, INFINITY);
    free(ticks);
    return DONE;
}
