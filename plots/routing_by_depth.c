/* Four statistics by depth, a panel each, with the interval of every site. Sites with one source
 * are left out: their routing is fixed. */
#include "plots/figure.h"
#include "plots/routing_view.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEFT = 46,
    RIGHT = SHEET_WIDTH - 10,
    PANEL = 80,
    PITCH = PANEL + 22,
    TOP = SHEET_TITLES + 34,
    LEGEND_LINE = 12, /* one more, where there are nulls */
};

typedef struct depth_panel {
    const char *code, *name, *units;
    bool from_zero; /* of bounded statistics the axis may start higher */
    bool needs_heads;
    const char *null;   /* statistic whose null band of equal variance belongs here; NULL: none */
    bool null_per_ln_s; /* the band is divided by ln S */
} depth_panel;

static const depth_panel panels[] = {
    {"ENN", "entropy_norm", "1 = uniform", false, false, "entropy", true},
    {"HDV", "head_divergence", "nats", true, true, "head_divergence", false},
    {"TIN", "token_information", "nats", true, false, "token_information", false},
    {"LBN", "lookback_norm", "1 = uniform", false, false, NULL, false},
};
enum { PANELS = sizeof panels / sizeof *panels };

typedef struct panel_data {
    site_value *value;         /* [sites] */
    site_value *null;          /* [sites] */
    size_t banded[SITE_KINDS]; /* sites of the kind that have a null */
    size_t band[SITE_KINDS];   /* its index of the data file */
    size_t index[SITE_KINDS];  /* of the data file */
    bool drawn[SITE_KINDS];    /* the kind has a defined number */
    bool bars[SITE_KINDS];     /* and an interval */
    nice_range range;
} panel_data;

static const char *const kind_names[] = {"attention sites", "MLP sites", "final site"};

/* The nulls of a panel; widens low and high to hold them. */
static void put_band_data(const routing_view *view, sheet *s, const depth_panel *panel,
                          panel_data *data, double *low, double *high) {
    for (site_kind kind = 0; kind < SITE_KINDS; kind++)
        for (size_t i = 0; i < view->sites; i++) {
            const site_value *null = &data->null[i];
            if (view->site[i].kind != kind || view->site[i].sources < 2 || isnan(null->low) ||
                isnan(null->high))
                continue;
            double scale = panel->null_per_ln_s ? 1 / log((double)view->site[i].sources) : 1;
            if (data->banded[kind]++ == 0)
                data->band[kind] =
                    sheet_data(s, "%s, null of %s; columns: depth, mean, lowest, highest draw",
                               panel->name, kind_names[kind]);
            put_number(s->data, view->site[i].depth, ' ');
            put_number(s->data, null->value * scale, ' ');
            put_number(s->data, null->low * scale, ' ');
            put_number(s->data, null->high * scale, '\n');
            *low = fmin(*low, null->low * scale);
            *high = fmax(*high, null->high * scale);
        }
}

static bool has_band(const panel_data *data) {
    return data->banded[SITE_ATTN] + data->banded[SITE_MLP] + data->banded[SITE_FINAL] > 0;
}

/* A ribbon in a light tint of the sites' colour, never thinner than a line; a box for a lone
 * site. Returns what the next element of the plot is preceded by. */
static const char *put_bands(FILE *script, const panel_data *data) {
    const char *before = "plot ", *next = ", \\\n    ";
    for (site_kind kind = 0; kind < SITE_KINDS; kind++) {
        if (!data->banded[kind])
            continue;
        if (data->banded[kind] == 1)
            fprintf(script,
                    "%sD index %zu using 1:2:($1-0.15):($1+0.15):3:4 with boxxyerror "
                    "fs solid border rgb null%d fc rgb null%d",
                    before, data->band[kind], kind + 1, kind + 1);
        else
            fprintf(script,
                    "%sD index %zu using 1:3:4 with filledcurves fc rgb null%d, \\\n"
                    "    D index %zu using 1:2 with lines lw 2 lc rgb null%d",
                    before, data->band[kind], kind + 1, data->band[kind], kind + 1);
        before = next;
    }
    return before;
}

static void put_panel_data(const routing_view *view, sheet *s, const depth_panel *panel,
                           panel_data *data) {
    double low = INFINITY, high = -INFINITY;
    for (site_kind kind = 0; kind < SITE_KINDS; kind++) {
        for (size_t i = 0; i < view->sites; i++) {
            const site_value *v = &data->value[i];
            if (view->site[i].kind != kind || view->site[i].sources < 2 || isnan(v->value))
                continue;
            if (!data->drawn[kind]) {
                data->index[kind] = sheet_data(s, "%s, %s; columns: depth, value, low, high",
                                               panel->name, kind_names[kind]);
                data->drawn[kind] = true;
            }
            put_number(s->data, view->site[i].depth, ' ');
            put_number(s->data, v->value, ' ');
            put_number(s->data, v->low, ' ');
            put_number(s->data, v->high, '\n');
            data->bars[kind] = data->bars[kind] || (!isnan(v->low) && !isnan(v->high));
            low = fmin(low, fmin(v->value, v->low)); /* fmin and fmax drop NaN */
            high = fmax(high, fmax(v->value, v->high));
        }
    }
    put_band_data(view, s, panel, data, &low, &high);
    if (low > high)
        low = high = 0;
    bool zero = panel->from_zero || low < 0.5 * high;
    data->range = nice_range_of(zero ? 0 : low, high);
    if (zero && low < 0)
        data->range.low = 1.1 * low; /* an interval below 0 moves the axis only as far as it must */
}

/* Vertical lines where a block opens; returns whether there are any. */
static bool put_blocks(const routing_view *view, FILE *script) {
    bool any = false;
    for (size_t i = 0; i < view->sites; i++) {
        if (!view->site[i].opens_block)
            continue;
        fprintf(script,
                "set arrow from first %g, graph 0 to first %g, graph 1 nohead back "
                "lw 0.5 lc rgb '#bbbbbb'\n",
                view->site[i].depth, view->site[i].depth);
        any = true;
    }
    return any;
}

static void put_legend(const routing_view *view, const sheet *s, bool blocks, bool final,
                       bool banded) {
    double y = SHEET_TITLES + 6;
    sheet_label(s, 12, y, "before attention", FONT_TEXT, "point lt 1 ps 0.6 offset 0.6, -0.2");
    sheet_label(s, 112, y, "before the MLP", FONT_TEXT, "point lt 2 ps 0.7 offset 0.6, -0.2");
    if (final)
        sheet_label(s, 206, y, "final", FONT_TEXT, "point lt 3 ps 0.6 offset 0.6, -0.2");
    if (blocks)
        sheet_label(s, 250, y, "| a block opens", FONT_TEXT, "tc rgb '#888888'");
    if (!banded)
        return;
    char text[96];
    snprintf(text, sizeof text, "null (equal logit variance, %.12s draws)",
             routing_run_text(view, "null_draws"));
    for (int kind = SITE_ATTN; kind < (final ? SITE_KINDS : SITE_FINAL); kind++)
        fprintf(s->script,
                "set object %d rectangle from screen X(%d), screen Y(%g) to screen X(%d), "
                "screen Y(%g) front fc rgb null%d fs solid noborder\n",
                kind + 1, 9 + 8 * kind, y + LEGEND_LINE - 3.5, 17 + 8 * kind, y + LEGEND_LINE + 3.5,
                kind + 1);
    sheet_label(s, final ? 37 : 29, y + LEGEND_LINE, text, FONT_TEXT, "");
}

static void put_panel(const routing_view *view, const sheet *s, size_t which, double first_top,
                      panel_data *data) {
    const depth_panel *panel = &panels[which];
    FILE *script = s->script;
    double top = first_top + (double)which * PITCH;
    const char *why = NULL;
    if (!data->drawn[SITE_ATTN] && !data->drawn[SITE_MLP] && !data->drawn[SITE_FINAL])
        why = "no site has a defined value";
    if (panel->needs_heads && view->heads < 2)
        why = "one routing head: 0 by definition";
    sheet_label(s, LEFT, top - 7, panel->name, FONT_TEXT, "");
    if (why)
        sheet_label(s, (LEFT + RIGHT) / 2.0, top + PANEL / 2.0, why, FONT_TEXT,
                    "center tc rgb '#888888'");
    else if (panel->null && !has_band(data))
        sheet_label(s, RIGHT, top - 7, "no null shown", FONT_TICK, "right tc rgb '#888888'");
    sheet_panel(s, LEFT, RIGHT, top, top + PANEL);
    sheet_label(s, 8, top + PANEL / 2.0, panel->units, FONT_TEXT, "center rotate by 90");
    if (why)
        fputs("set yrange [0 : 1]; unset ytics\n", script);
    else
        fprintf(script, "set yrange [%.6g : %.6g]; set ytics out nomirror offset 0.5, 0 %.6g\n",
                data->range.low, data->range.high, data->range.step);
    sheet_count_ticks(s, "x", view->layers, RIGHT - LEFT, 22, which == PANELS - 1);
    const char *before = why ? "plot " : put_bands(script, data);
    for (site_kind kind = 0; kind < SITE_KINDS && !why; kind++) {
        if (!data->drawn[kind])
            continue;
        if (data->bars[kind])
            fprintf(script, "%sD index %zu using 1:3:(0):($4-$3) with vectors nohead lt %d lw 0.8",
                    before, data->index[kind], kind + 1);
        before = data->bars[kind] ? ", \\\n    " : before;
        fprintf(script, "%sD index %zu using 1:2 with linespoints lt %d lw 0.8", before,
                data->index[kind], kind + 1);
        before = ", \\\n    ";
    }
    fputs(why ? "plot NaN\n" : "\n", script);
    sheet_clear_labels(s);
    if (which == 0)
        fputs("unset object\n", script);
}

static int put_figure(const routing_view *view, sheet *s, panel_data *data, status *st) {
    bool defined = false, bars = false, final = false, banded = false;
    fputs("# Depth: the layer's number, half a layer more for an MLP site. Sites with one source\n"
          "# are left out.\n\n\n",
          s->data);
    for (size_t i = 0; i < PANELS; i++) {
        put_panel_data(view, s, &panels[i], &data[i]);
        for (site_kind kind = 0; kind < SITE_KINDS; kind++) {
            defined = defined || data[i].drawn[kind];
            bars = bars || data[i].bars[kind];
        }
        final = final || data[i].drawn[SITE_FINAL];
        banded = banded || has_band(&data[i]);
    }
    if (!defined) {
        status_fail(st, "no site with two or more sources has a defined value");
        return NOT_DRAWN;
    }
    char notes[256];
    size_t used =
        (size_t)snprintf(notes, sizeof notes, "%s",
                         bars ? "Bars: intervals over sequences; see the table."
                              : "No intervals: the table holds none (fewer than 8 sequences?).");
    if (banded)
        snprintf(notes + used, sizeof notes - used,
                 " Bands: lowest to highest of random queries, on %.12s of %.12s sequences.",
                 routing_run_text(view, "null_sequences"), routing_run_text(view, "sequences"));
    double top = TOP + (banded ? LEGEND_LINE : 0), bottom = top + (PANELS - 1) * PITCH + PANEL;
    s->height = (int)bottom + 36 + (int)(sheet_notes(s, 0, notes, false) * NOTE_LINE) - 3;
    sheet_page(s, 0);
    fprintf(s->script, "set xrange [-0.5 : %zu + 0.5]\n", view->layers);
    bool blocks = put_blocks(view, s->script);
    char title[400], subtitle[64];
    snprintf(title, sizeof title, "%s%s%s%s", view->name, *view->mode ? " (" : "", view->mode,
             *view->mode ? ")" : "");
    snprintf(subtitle, sizeof subtitle, "routing by depth, %zu head%s", view->heads,
             view->heads > 1 ? "s, their mean" : "");
    sheet_titles(s, title, subtitle);
    if (banded)
        fputs("null1 = '#b9d6ea'; null2 = '#f6cfb4'; null3 = '#cccccc'\n", s->script);
    put_legend(view, s, blocks, final, banded);
    sheet_label(s, (LEFT + RIGHT) / 2.0, bottom + 21, "layer (its MLP site half a layer later)",
                FONT_TEXT, "center");
    sheet_notes(s, bottom + 36, notes, true);
    for (size_t i = 0; i < PANELS; i++)
        put_panel(view, s, i, top, &data[i]);
    sheet_page_end(s);
    return DONE;
}

int draw_routing_by_depth(const table *from, sheet *s, status *st) {
    routing_view view;
    panel_data data[PANELS] = {0};
    if (routing_view_init(&view, from, st))
        return FAILED;
    int result = FAILED;
    for (size_t i = 0; i < PANELS; i++) {
        bool found;
        data[i].value = mem_array(view.sites, sizeof *data[i].value, "site values", st);
        data[i].null = mem_array(view.sites, sizeof *data[i].null, "site values", st);
        if (!data[i].value || !data[i].null ||
            routing_site_values(&view, panels[i].code, data[i].value, &found, st) ||
            routing_null_values(&view, panels[i].null ? panels[i].null : "", "var", data[i].null,
                                &found, st))
            goto end;
    }
    result = put_figure(&view, s, data, st);
end:
    for (size_t i = 0; i < PANELS; i++) {
        free(data[i].value);
        free(data[i].null);
    }
    routing_view_clear(&view);
    return result;
}
