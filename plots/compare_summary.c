/* Runs against their reference in a few numbers: loss, and means over sites of routing statistics,
 * each difference with its interval. */
#include "plots/compare_view.h"
#include "plots/figure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEFT = 118,
    RIGHT = SHEET_WIDTH - 22, /* room for half a label */
    NAME_CHARS = 18,
    TITLE_LINE = 17,
    ROW = 17,   /* of one run */
    TICKS = 15, /* under each panel */
    LEGEND = 14,
};

static const char *const numbers[] = {"difference", "low", "high", "reference", NULL};

typedef struct summary_panel {
    compare_choice choice;
    const char *title, *units;
} summary_panel;

#define MEAN_OF(name)                                                                              \
    { "CAV", "statistic", name, NULL, "sites", numbers }
static const summary_panel panels[] = {
    {{"LOS", NULL, NULL, NULL, NULL, numbers}, "loss", "nats/token"},
    {MEAN_OF("entropy_norm"), "entropy_norm", "1 = uniform"},
    {MEAN_OF("lookback_norm"), "lookback_norm", "1 = uniform"},
    {MEAN_OF("head_divergence"), "head_divergence", "nats"},
    {MEAN_OF("token_information"), "token_information", "nats"},
};
enum { PANELS = sizeof panels / sizeof *panels };

/* Groups of sites in the order of the line types. */
static const char *const groups[] = {"attn", "mlp", "all"};
enum { GROUPS = 3, ALL = 2 };

typedef struct panel_rows {
    compare_row *row;
    size_t count, defined;
    size_t index[GROUPS];
    bool used[GROUPS], bars[GROUPS];
    double low, high; /* with 0 */
} panel_rows;

static size_t group_of(const compare_row *row) {
    for (size_t i = 0; i < GROUPS; i++)
        if (strcmp(row->group, groups[i]) == 0)
            return i;
    return ALL;
}

static void put_data(sheet *s, const summary_panel *panel, panel_rows *data) {
    for (size_t group = 0; group < GROUPS; group++)
        for (size_t i = 0; i < data->count; i++) {
            const compare_row *row = &data->row[i];
            const double *n = row->number;
            if (group_of(row) != group || isnan(n[0]))
                continue;
            if (!data->used[group])
                data->index[group] =
                    sheet_data(s, "%s, %s; columns: row, difference, low, high", panel->title,
                               panel->choice.group ? groups[group] : "predicted tokens");
            data->used[group] = true;
            data->defined++;
            double shift = panel->choice.group ? 0.24 * ((double)group - 1) : 0;
            put_number(s->data, (double)row->run - 1 + shift, ' ');
            for (size_t k = 0; k < 3; k++) {
                put_number(s->data, n[k], k < 2 ? ' ' : '\n');
                data->low = fmin(data->low, n[k]); /* fmin and fmax drop NaN */
                data->high = fmax(data->high, n[k]);
            }
            data->bars[group] = data->bars[group] || (!isnan(n[1]) && !isnan(n[2]));
        }
}

/* The x axis: as many marks as their labels have room for. */
static void put_axis(const sheet *s, const panel_rows *data) {
    nice_range range = nice_range_of(data->low, data->high);
    double step = range.step;
    for (;;) {
        size_t widest = 1, count = 0;
        for (double at = range.low; at <= range.high + step / 2; at += step, count++) {
            char text[32];
            size_t chars = (size_t)snprintf(text, sizeof text, "%.4g", at);
            widest = chars > widest ? chars : widest;
        }
        if ((double)(count * (widest + 1)) * TICK_CHAR <= RIGHT - LEFT + 30 || count < 3)
            break;
        step *= 2;
    }
    /* Where all differences have one sign, 0 stands clear of the edge. */
    double span = range.high - range.low, low = range.low < 0 ? range.low : -0.05 * span,
           high = range.high > 0 ? range.high : 0.05 * span;
    fprintf(s->script, "set xrange [%.6g : %.6g]; set xtics out nomirror offset 0, 0.4 %.6g\n", low,
            high, step);
}

static void put_panel(const sheet *s, const compare_view *view, const summary_panel *panel,
                      const panel_rows *data, double top) {
    double height = (double)(view->runs - 1) * ROW;
    char title[96];
    snprintf(title, sizeof title, "%s, %s", panel->title, panel->units);
    sheet_label(s, LEFT, top - 7, title, FONT_TEXT, "");
    sheet_panel(s, LEFT, RIGHT, top, top + height);
    for (size_t run = 1; run < view->runs; run++) {
        run_name name = view->name[run];
        cut_middle(name.text, NAME_CHARS);
        sheet_label(s, LEFT - 5, top + ((double)run - 0.5) * ROW, name.text, FONT_TICK, "right");
    }
    for (size_t run = 1; run < view->runs; run++) {
        bool any = false;
        for (size_t i = 0; i < data->count; i++)
            any = any || (data->row[i].run == run && !isnan(data->row[i].number[0]));
        if (!any)
            sheet_label(s, RIGHT - 4, top + ((double)run - 0.5) * ROW, "not compared", FONT_TICK,
                        "right tc rgb '#888888'");
    }
    put_axis(s, data);
    const char *before = "plot ";
    for (size_t group = 0; group < GROUPS; group++) {
        if (!data->used[group])
            continue;
        if (data->bars[group])
            fprintf(s->script,
                    "%sD index %zu using 3:1:($4-$3):(0) with vectors nohead lt %zu lw 1.2", before,
                    data->index[group], group + 1);
        before = data->bars[group] ? ", \\\n    " : before;
        fprintf(s->script, "%sD index %zu using 2:1 with points lt %zu ps 0.6", before,
                data->index[group], group + 1);
        before = ", \\\n    ";
    }
    fputc('\n', s->script);
    sheet_clear_labels(s);
}

static void put_legend(const sheet *s) {
    static const char *const names[] = {"attention sites", "MLP sites", "all sites"};
    for (int i = 0; i < GROUPS; i++) {
        char extra[64];
        snprintf(extra, sizeof extra, "point lt %d ps 0.6 offset 0.6, -0.2", i + 1);
        sheet_label(s, 12 + 100 * i, SHEET_TITLES + 6, names[i], FONT_TEXT, extra);
    }
}

static void put_figure(const compare_view *view, sheet *s, panel_rows *data) {
    char notes[512], title[RUN_NAME + 32];
    size_t drawn = 0, used;
    bool means = false;
    for (size_t i = 0; i < PANELS; i++) {
        put_data(s, &panels[i], &data[i]);
        drawn += data[i].defined > 0;
        means = means || (i > 0 && data[i].defined > 0);
    }
    used = (size_t)snprintf(notes, sizeof notes,
                            "Run minus reference. Bars: paired intervals over sequences; they do "
                            "not cover training seeds.%s",
                            means ? " Statistics: means over the sites that both runs have." : "");
    if (view->left_out)
        snprintf(notes + used, sizeof notes - used,
                 " Left out: the last %zu runs, since one figure tells %d apart.", view->left_out,
                 RUNS_MAX - 1);
    double pitch = TITLE_LINE + (double)(view->runs - 1) * ROW + TICKS;
    double top = SHEET_TITLES + (means ? LEGEND : 0), bottom = top + (double)drawn * pitch;
    s->height = (int)(bottom + 12 + (double)(sheet_notes(s, 0, notes, false) * NOTE_LINE) - 3);
    sheet_page(s, 0);
    run_name reference = view->name[0];
    cut_middle(reference.text, 40);
    snprintf(title, sizeof title, "against %s", reference.text);
    sheet_titles(s, title, "difference from the reference run");
    if (means)
        put_legend(s);
    sheet_notes(s, bottom + 12, notes, true);
    fprintf(s->script,
            "set yrange [%zu - 0.5 : -0.5]; unset ytics\n"
            "set arrow from 0, graph 0 to 0, graph 1 nohead back lw 0.6 lc rgb grey\n",
            view->runs - 1);
    for (size_t i = 0, place = 0; i < PANELS; i++)
        if (data[i].defined)
            put_panel(s, view, &panels[i], &data[i], top + (double)place++ * pitch + TITLE_LINE);
    sheet_page_end(s);
}

int draw_compare_summary(const table *from, sheet *s, status *st) {
    compare_view view;
    panel_rows data[PANELS] = {{0}};
    size_t rows = 0, defined = 0;
    int result = compare_view_init(&view, from, st);
    for (size_t i = 0; !result && i < PANELS; i++) {
        result = compare_rows(&view, &panels[i].choice, &data[i].row, &data[i].count, st);
        rows += data[i].count;
        for (size_t k = 0; !result && k < data[i].count; k++)
            defined += isnan(data[i].row[k].number[0]) ? 0 : 1;
    }
    if (!result && !defined) {
        status_fail(st, rows ? "no difference is defined: the runs saw different tokens"
                             : "no run has a loss or routing beside the reference's");
        result = NOT_DRAWN;
    }
    if (!result)
        put_figure(&view, s, data);
    for (size_t i = 0; i < PANELS; i++)
        free(data[i].row);
    return result;
}
