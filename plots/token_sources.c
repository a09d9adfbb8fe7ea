/* One sequence at one site, token by token: rows are tokens with their texts, columns sources. */
#include "plots/cells.h"
#include "plots/figure.h"
#include "plots/runs.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    RIGHT = SHEET_WIDTH - 34,
    ROW = 9,
    PAGE_TOKENS = 64, /* at most */
    PIECE_CHARS = 12, /* of a token's text */
    SOURCE_CHARS = 8, /* of a source's name */
    COLUMN_LABEL = 9, /* a rotated name's width */
    CHAR = 5,         /* of FONT_PIECE, and of the rotated names */
    TOKENS_MAX = 65536,
};
#define FONT_PIECE "',7'"

typedef struct example {
    const table *from;
    const table_section_view *section;
    const char *sequence, *site, *head;
    const char **source; /* [sources] */
    const char **piece;  /* [tokens] */
    size_t *position;    /* [tokens] */
    double *weight;      /* [tokens, sources]; NaN also where there is no row */
    size_t sources, tokens;
    size_t page_tokens; /* of every page but the last */
    double left;        /* of the map: room for the longest text */
    bool undefined;
    colour_scale scale;
} example;

enum { SEQUENCE, SITE, HEAD, POSITION, TOKEN, SOURCE, VALUE, COLUMNS };

/* ---- Reading ---- */

/* How many tokens and which sources: those of the first token's rows, in their order. */
static int measure(example *e, const int *column, status *st) {
    const table_section_view *section = e->section;
    e->source = mem_array(section->rows, sizeof *e->source, "sources", st);
    e->piece = mem_array(section->rows, sizeof *e->piece, "tokens", st);
    e->position = mem_array(section->rows, sizeof *e->position, "tokens", st);
    if (!e->source || !e->piece || !e->position)
        return FAILED;
    for (size_t row = 0; row < section->rows; row++) {
        size_t position;
        for (int i = SEQUENCE; i <= HEAD; i++)
            if (strcmp(table_cell(section, row, column[i]), table_cell(section, 0, column[i])) != 0)
                return cells_fail(e->from, section, row, column[i],
                                  "one sequence, site and head in all rows", st);
        if (cells_size(e->from, section, row, column[POSITION], SIZE_MAX / 2, &position, st))
            return FAILED;
        if (e->tokens && position < e->position[e->tokens - 1])
            return cells_fail(e->from, section, row, column[POSITION], "rising positions", st);
        if (e->tokens && position == e->position[e->tokens - 1])
            continue;
        e->piece[e->tokens] = table_cell(section, row, column[TOKEN]);
        e->position[e->tokens++] = position;
    }
    while (e->sources < section->rows && strcmp(table_cell(section, e->sources, column[POSITION]),
                                                table_cell(section, 0, column[POSITION])) == 0) {
        e->source[e->sources] = table_cell(section, e->sources, column[SOURCE]);
        e->sources++;
    }
    return DONE;
}

static int read_weights(example *e, const int *column, status *st) {
    const table_section_view *section = e->section;
    double most = 0;
    e->weight = mem_array(e->tokens, e->sources * sizeof *e->weight, "weights", st);
    if (!e->weight)
        return FAILED;
    for (size_t i = 0; i < e->tokens * e->sources; i++)
        e->weight[i] = NAN;
    for (size_t row = 0, token = 0, source = 0; row < section->rows; row++, source++) {
        double value;
        size_t position = strtoul(table_cell(section, row, column[POSITION]), NULL, 10);
        const char *name = table_cell(section, row, column[SOURCE]);
        if (position != e->position[token]) {
            token++;
            source = 0;
        }
        if (source >= e->sources || strcmp(name, e->source[source]) != 0)
            return cells_fail(e->from, section, row, column[SOURCE],
                              "the sources of the first token, in their order", st);
        if (cells_real(e->from, section, row, column[VALUE], &value, st))
            return FAILED;
        e->weight[token * e->sources + source] = value;
        most = fmax(most, value); /* fmax drops NaN */
    }
    for (size_t i = 0; i < e->tokens * e->sources; i++)
        e->undefined = e->undefined || isnan(e->weight[i]);
    nice_range range = nice_range_of(0, most > 0 ? most : 1);
    e->scale = (colour_scale){.name = "weight", .high = range.high, .step = range.step};
    return DONE;
}

static int read_example(example *e, const table *from, status *st) {
    static const char *const names[] = {"sequence", "site",   "head",  "position",
                                        "token",    "source", "value", NULL};
    int column[COLUMNS];
    *e = (example){.from = from, .section = table_find(from, "TOK")};
    if (cells_find(from, e->section, names, column, st))
        return FAILED;
    if (e->section->rows == 0) {
        status_fail(st, "section TOK is empty");
        return NOT_DRAWN;
    }
    e->sequence = table_cell(e->section, 0, column[SEQUENCE]);
    e->site = table_cell(e->section, 0, column[SITE]);
    e->head = table_cell(e->section, 0, column[HEAD]);
    if (measure(e, column, st))
        return FAILED;
    if (e->sources < 2) {
        status_fail(st, "site %.32s reads one source, whose weight is 1 at every token", e->site);
        return NOT_DRAWN;
    }
    if (e->tokens > TOKENS_MAX)
        return status_fail(st, "%s: section TOK has %zu tokens, too many to draw", table_path(from),
                           e->tokens);
    return read_weights(e, column, st);
}

static void clear_example(example *e) {
    free(e->source);
    free(e->piece);
    free(e->position);
    free(e->weight);
}

/* ---- Text of tokens ---- */

/* \x0a, \x0d and \x09 as people write them; quotes where blanks at an end would not be seen. */
static void show_piece(char *out, size_t size, const char *piece) {
    char plain[128] = "";
    size_t used = 0;
    bool quoted = !*piece || piece[0] == ' ' || piece[strlen(piece) - 1] == ' ';
    for (const char *at = piece; *at && used + 4 < sizeof plain;) {
        static const char *const codes[] = {"\\x0a", "\\x0d", "\\x09"};
        static const char letters[] = "nrt";
        size_t i = 0;
        while (i < 3 && strncmp(at, codes[i], 4) != 0)
            i++;
        bool escaped = at[0] == '\\' && at[1] == '\\';
        plain[used++] = *at;
        if (i < 3)
            plain[used++] = letters[i];
        else if (escaped)
            plain[used++] = at[1];
        at += i < 3 ? 4 : escaped ? 2 : 1;
    }
    char clean[160];
    clean_text(clean, sizeof clean, plain, used);
    cut_text(clean, PIECE_CHARS);
    snprintf(out, size, quoted ? "\"%s\"" : "%s", clean);
}

/* ---- Writing ---- */

/* An image needs two rows and two columns: a single one is written twice, the second time outside
 * the plot. */
static size_t put_cells(const example *e, sheet *s, size_t first, size_t tokens) {
    size_t index = sheet_data(s, "tokens %zu to %zu; columns: source, row, weight",
                              e->position[first], e->position[first + tokens - 1]);
    for (size_t y = 0; y < (tokens > 1 ? tokens : 2); y++)
        for (size_t x = 0; x < e->sources; x++) {
            fprintf(s->data, "%zu %zu ", x, y);
            size_t row = y < tokens ? y : 0;
            put_number(s->data, e->weight[(first + row) * e->sources + x], '\n');
        }
    return index;
}

static size_t put_undefined(const example *e, sheet *s, size_t first, size_t tokens) {
    size_t index = SIZE_MAX;
    for (size_t y = 0; y < tokens; y++)
        for (size_t x = 0; x < e->sources; x++) {
            if (!isnan(e->weight[(first + y) * e->sources + x]))
                continue;
            if (index == SIZE_MAX)
                index = sheet_data(s, "undefined weights; columns: source, row");
            fprintf(s->data, "%zu %zu\n", x, y);
        }
    return index;
}

/* Names of the sources as gnuplot's rotated marks, every so many as have room. */
static void put_sources(const example *e, const sheet *s) {
    size_t step = 1;
    while ((double)step * (RIGHT - e->left) < COLUMN_LABEL * (double)e->sources)
        step *= 2;
    fputs("set xtics out nomirror scale 0.4 rotate by 90 right offset 0, 0 font " FONT_PIECE " (",
          s->script);
    for (size_t i = 0; i < e->sources; i += step) {
        char name[64];
        clean_text(name, sizeof name, e->source[i], strlen(e->source[i]));
        cut_middle(name, SOURCE_CHARS);
        fputs(i ? ", " : "", s->script);
        put_string(s->script, name);
        fprintf(s->script, " %zu", i);
    }
    fputs(")\n", s->script);
}

static void put_tokens(const example *e, const sheet *s, size_t first, size_t tokens) {
    fputs("set ytics out nomirror scale 0.2 offset 0.5, 0 font " FONT_PIECE " (", s->script);
    for (size_t y = 0; y < tokens; y++) {
        char text[80];
        show_piece(text, sizeof text, e->piece[first + y]);
        fputs(y ? ", " : "", s->script);
        put_string(s->script, text);
        fprintf(s->script, " %zu", y);
    }
    fputs(")\nset y2tics out scale 0.2 offset -0.5, 0 font " FONT_PIECE " (", s->script);
    size_t step = tokens > 12 ? 4 : 1;
    bool any = false;
    for (size_t y = 0; y < tokens; y++) {
        if (e->position[first + y] % step && tokens > 1)
            continue;
        fprintf(s->script, "%s'%zu' %zu", any ? ", " : "", e->position[first + y], y);
        any = true;
    }
    fputs(")\n", s->script);
}

static void put_page(const example *e, sheet *s, size_t page, double below, const char *notes) {
    size_t first = page * e->page_tokens, left = e->tokens - first;
    size_t tokens = left < e->page_tokens ? left : e->page_tokens;
    size_t cells = put_cells(e, s, first, tokens), red = put_undefined(e, s, first, tokens);
    double top = SHEET_TITLES + 6, bottom = top + (double)tokens * ROW;
    double bar = bottom + below; /* the colour bar's label */
    char title[RUN_NAME + 32], subtitle[128], head[32];
    run_title(e->from, title, sizeof title);
    snprintf(head, sizeof head, strcmp(e->head, "mean") == 0 ? "mean over heads" : "head %.20s",
             e->head);
    snprintf(subtitle, sizeof subtitle, "%.20s, %s; sequence %.8s, tokens %zu-%zu", e->site, head,
             e->sequence, e->position[first], e->position[first + tokens - 1]);
    sheet_page(s, page);
    sheet_titles(s, title, subtitle);
    sheet_panel(s, e->left, RIGHT, top, bottom);
    sheet_label(s, 8, (top + bottom) / 2, "token", FONT_TEXT, "center rotate by 90");
    sheet_label(s, SHEET_WIDTH - 8, (top + bottom) / 2, "position", FONT_TEXT,
                "center rotate by 90");
    sheet_label(s, (e->left + RIGHT) / 2, bar - 12, "source", FONT_TEXT, "center");
    sheet_colour_bar(s, &e->scale, 12, bar - 5);
    sheet_notes(s, bar - 5 + COLOUR_BAR, notes, true);
    fprintf(s->script, "set yrange [%zu - 0.5 : -0.5]; set y2range [%zu - 0.5 : -0.5]\n", tokens,
            tokens);
    put_sources(e, s);
    put_tokens(e, s, first, tokens);
    fprintf(s->script, "plot D index %zu using 1:2:3 with @%s", cells,
            tokens > 1 ? "cells" : "row");
    if (red != SIZE_MAX)
        fprintf(s->script, ", \\\n    D index %zu using 1:2 with points pt 2 ps 0.4 lc rgb 'red'",
                red);
    fputs("\nunset label\n", s->script);
    sheet_page_end(s);
}

static void put_figure(example *e, sheet *s) {
    char notes[256];
    size_t longest = 0;
    for (size_t i = 0; i < e->sources; i++) {
        size_t chars = text_chars(e->source[i]);
        longest = chars > longest ? chars : longest;
    }
    longest = longest < SOURCE_CHARS ? longest : SOURCE_CHARS;
    e->left = 52;
    for (size_t i = 0; i < e->tokens; i++) {
        char text[80];
        show_piece(text, sizeof text, e->piece[i]);
        e->left = fmax(e->left, 20 + (double)text_chars(text) * CHAR);
    }
    s->pages = (e->tokens + PAGE_TOKENS - 1) / PAGE_TOKENS;
    e->page_tokens = (e->tokens + s->pages - 1) / s->pages;
    double below = 6 + (double)longest * CHAR + 22;
    double bar = SHEET_TITLES + 6 + (double)e->page_tokens * ROW + below;
    snprintf(notes, sizeof notes,
             "A weight is of the step that reads the token and predicts the next one.%s%s",
             e->undefined ? " Red: undefined (nan)." : "",
             s->pages > 1 ? " One colour scale for all pages." : "");
    s->height =
        (int)(bar - 5 + COLOUR_BAR + (double)(sheet_notes(s, 0, notes, false) * NOTE_LINE) - 3);
    fprintf(s->script, "set xrange [-0.5 : %zu - 0.5]\n", e->sources);
    sheet_scale(s, &e->scale);
    fputs("# Rows of each data set: the column of the source, the row of the token, the weight.\n"
          "# Sources:",
          s->data);
    for (size_t i = 0; i < e->sources; i++) {
        char name[64];
        clean_text(name, sizeof name, e->source[i], strlen(e->source[i]));
        fprintf(s->data, " %zu=%s", i, name);
    }
    fputs("\n\n\n", s->data);
    for (size_t page = 0; page < s->pages; page++)
        put_page(e, s, page, below, notes);
}

int draw_token_sources(const table *from, sheet *s, status *st) {
    example e;
    bool defined = false;
    int result = read_example(&e, from, st);
    for (size_t i = 0; !result && i < e.tokens * e.sources; i++)
        defined = defined || !isnan(e.weight[i]);
    if (!result && !defined) {
        status_fail(st, "every weight in section TOK is undefined (nan)");
        result = NOT_DRAWN;
    }
    if (!result)
        put_figure(&e, s);
    clear_example(&e);
    return result;
}
