/* Statistics of the routing by depth, a panel each, with the interval of every site. Sites with one
 * source are left out: their routing is fixed. */
#include "plots/depth_lines.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What uniform weights over S sources would give, or NaN. `null`: the site has a null source. */
typedef double uniform_value(double sources, bool null);

static double uniform_entropy(double sources, bool null) {
    (void)null;
    return log(sources);
}

static double uniform_sources(double sources, bool null) {
    (void)null;
    return sources;
}

static double uniform_top(double sources, bool null) {
    (void)null;
    return 1 / sources;
}

/* A null source is no distance away: the others are renormalised. */
static double uniform_lookback(double sources, bool null) {
    return (sources - null - 1) / 2;
}

static double uniform_one(double sources, bool null) {
    (void)sources;
    (void)null;
    return 1;
}

typedef struct statistic {
    const char *code, *name, *units;
    bool from_zero; /* of bounded statistics the axis may start higher */
    bool optional;  /* no panel where the table lacks the section */
    bool compares_heads;
    const char *null;   /* statistic whose null band of equal variance belongs here; NULL: none */
    bool null_per_ln_s; /* the band is divided by ln S */
    uniform_value *uniform;
} statistic;

static const statistic norm_panels[] = {
    {"ENN", "entropy_norm", "1 = uniform", false, false, false, "entropy", true, NULL},
    {"HDV", "head_divergence", "nats", true, false, true, "head_divergence", false, NULL},
    {"HDM", "head_divergence_of_mean", "nats", true, true, true, "head_divergence_of_mean", false,
     NULL},
    {"HJS", "head_js, mean over pairs of heads", "nats", true, true, true, "head_js", false, NULL},
    {"TIN", "token_information", "nats", true, false, false, "token_information", false, NULL},
    {"LBN", "lookback_norm", "1 = uniform", false, false, false, NULL, false, uniform_one},
};
static const statistic raw_panels[] = {
    {"ENT", "entropy", "nats", true, false, false, "entropy", false, uniform_entropy},
    {"EFF", "effective_sources", "sources", true, true, false, NULL, false, uniform_sources},
    {"LBK", "lookback", "sources", true, false, false, NULL, false, uniform_lookback},
    {"TOP", "top1", "weight", true, true, false, NULL, false, uniform_top},
    {"RNK", "source_effective_rank", "sources", true, true, false, NULL, false, uniform_sources},
};
enum {
    PANELS = sizeof norm_panels / sizeof *norm_panels,
    RAW_PANELS = sizeof raw_panels / sizeof *raw_panels,
};

/* ---- One value a site of what the table has for pairs of heads ---- */

typedef struct pair_means {
    double *sum;   /* [sites] */
    size_t *pairs; /* [sites] */
} pair_means;

static int add_pair(void *context, const routing_view_row *row, status *st) {
    pair_means *means = context;
    (void)st;
    means->sum[row->site] += row->value;
    means->pairs[row->site]++;
    return DONE;
}

static int read_pairs(const routing_view *view, const char *code, site_value *out, status *st) {
    static const routing_view_columns columns = {.label = {"head", "head_other"}};
    pair_means means = {mem_array(view->sites, sizeof *means.sum, "pairs", st),
                        mem_array(view->sites, sizeof *means.pairs, "pairs", st)};
    int result = means.sum && means.pairs ? DONE : FAILED;
    if (!result)
        result = routing_view_rows(view, code, &columns, add_pair, &means, st);
    for (size_t i = 0; !result && i < view->sites; i++)
        out[i] = (site_value){means.sum[i] / (double)means.pairs[i], NAN, NAN};
    free(means.sum);
    free(means.pairs);
    return result;
}

/* ---- Panels ---- */

static bool reads_null(const routing_view *view, size_t site) {
    for (size_t i = 0; i < view->sources; i++)
        if (routing_exists(view, site, i) && strcmp(view->source[i], "null") == 0)
            return true;
    return false;
}

static int fill_panel(const routing_view *view, const statistic *what, const site_value *value,
                      const site_value *null, depth_panel *panel, status *st) {
    static const char *const names[] = {"before attention", "before the MLP", "final"};
    for (site_kind kind = 0; kind < SITE_KINDS; kind++)
        for (size_t i = 0; i < view->sites; i++) {
            const routing_site *site = &view->site[i];
            if (site->kind != kind || site->sources < 2)
                continue;
            depth_series *series = depth_panel_series(panel, names[kind], (int)kind + 1);
            depth_point point = {site->depth, value[i].value, value[i].low, value[i].high};
            if (depth_series_add(series, false, point, st))
                return FAILED;
            double scale = what->null_per_ln_s ? 1 / log((double)site->sources) : 1;
            point = (depth_point){site->depth, null[i].value * scale, null[i].low * scale,
                                  null[i].high * scale};
            if (!isnan(point.low) && !isnan(point.high) &&
                depth_series_add(series, true, point, st))
                return FAILED;
        }
    for (size_t i = 0; what->uniform && i < view->sites; i++) {
        const routing_site *site = &view->site[i];
        if (site->sources < 2)
            continue;
        depth_point point = {site->depth, what->uniform((double)site->sources, reads_null(view, i)),
                             NAN, NAN};
        if (depth_series_add(depth_panel_series(panel, "uniform", 0), false, point, st))
            return FAILED;
    }
    return DONE;
}

static int read_panel(const routing_view *view, const statistic *what, site_value *value,
                      site_value *null, depth_panel *panel, status *st) {
    bool found;
    int result = what->compares_heads && strcmp(what->code, "HJS") == 0
                     ? read_pairs(view, what->code, value, st)
                     : routing_site_values(view, what->code, value, &found, st);
    if (result || routing_null_values(view, what->null ? what->null : "", "var", null, &found, st))
        return FAILED;
    *panel = (depth_panel){.name = what->name,
                           .units = what->units,
                           .from_zero = what->from_zero,
                           .wants_null = what->null};
    if (what->compares_heads && view->heads < 2)
        panel->why = "one routing head: 0 by definition";
    return fill_panel(view, what, value, null, panel, st);
}

static int draw(const table *from, const statistic *list, size_t count, const char *what, sheet *s,
                status *st) {
    routing_view view;
    depth_panel panel[PANELS] = {0};
    if (routing_view_init(&view, from, st))
        return FAILED;
    char subtitle[96], note[160] = "";
    size_t panels = 0;
    int result = FAILED;
    site_value *value = mem_array(view.sites, sizeof *value, "site values", st);
    site_value *null = mem_array(view.sites, sizeof *null, "site values", st);
    if (!value || !null)
        goto end;
    for (size_t i = 0; i < count; i++) {
        if (list[i].optional &&
            (!table_find(from, list[i].code) || (list[i].compares_heads && view.heads < 2)))
            continue;
        if (strcmp(list[i].code, "HJS") == 0)
            snprintf(note, sizeof note, "%s", "The table has no interval of the mean of head_js.");
        if (strcmp(list[i].code, "RNK") == 0)
            snprintf(note, sizeof note, "%s",
                     "Dashed, of source_effective_rank: if all sources were orthogonal.");
        if (read_panel(&view, &list[i], value, null, &panel[panels++], st))
            goto end;
    }
    snprintf(subtitle, sizeof subtitle, "%s, %zu head%s", what, view.heads,
             view.heads > 1 ? "s, their mean" : "");
    depth_lines lines = {.view = &view,
                         .subtitle = subtitle,
                         .axis = "layer (its MLP site half a layer later)",
                         .note = note,
                         .empty = "no site with two or more sources has a defined value",
                         .panels = panels,
                         .panel = panel};
    result = depth_lines_draw(&lines, s, st);
end:
    for (size_t i = 0; i < panels; i++)
        depth_panel_clear(&panel[i]);
    free(value);
    free(null);
    routing_view_clear(&view);
    return result;
}

int draw_routing_by_depth(const table *from, sheet *s, status *st) {
    return draw(from, norm_panels, PANELS, "routing by depth", s, st);
}

int draw_routing_by_depth_raw(const table *from, sheet *s, status *st) {
    return draw(from, raw_panels, RAW_PANELS, "routing by depth, not normalised", s, st);
}
