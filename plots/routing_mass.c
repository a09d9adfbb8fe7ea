/* Where routing weight goes in sum: to each kind of source at each site (kind_mass), and from
 * `final` back through all sites (reach). */
#include "plots/depth_lines.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- kind_mass ---- */

/* Line types by kind, as analyze names them; attention and the MLP keep their colours. */
static const struct kind {
    const char *name, *legend;
    int line;
} kinds[] = {
    {"emb", "embedding", 3},       {"attn", "attention outputs", 1},
    {"mlp", "MLP outputs", 2},     {"complete", "whole blocks", 4},
    {"partial", "running sum", 5}, {"delta", "deltas", 6},
    {"null", "null", 8},           {"other", "other", 7},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static const struct kind *kind_of(const char *name) {
    for (size_t i = 0; i < KINDS; i++)
        if (strcmp(kinds[i].name, name) == 0)
            return &kinds[i];
    return &kinds[KINDS - 1];
}

/* Mass and lift of the sites before attention (with `final`) and of those before the MLP. */
enum { MASS_ATTN, MASS_MLP, LIFT_ATTN, LIFT_MLP, KIND_PANELS };

typedef struct kind_panels {
    const routing_view *view;
    depth_panel *panel; /* [KIND_PANELS] */
} kind_panels;

static int add_row(const kind_panels *p, size_t first, const routing_view_row *row, status *st) {
    const routing_site *site = &p->view->site[row->site];
    if (strcmp(row->label[0], "mean") != 0 || site->sources < 2)
        return DONE;
    const struct kind *kind = kind_of(row->label[1]);
    depth_panel *panel = &p->panel[first + (site->kind == SITE_MLP)];
    depth_point point = {site->depth, row->value, row->low, row->high};
    return depth_series_add(depth_panel_series(panel, kind->legend, kind->line), false, point, st);
}

static int add_mass(void *context, const routing_view_row *row, status *st) {
    return add_row(context, MASS_ATTN, row, st);
}

static int add_lift(void *context, const routing_view_row *row, status *st) {
    return add_row(context, LIFT_ATTN, row, st);
}

int draw_kind_mass(const table *from, sheet *s, status *st) {
    static const routing_view_columns mass = {{"head", "kind"}, {"kind_mass", "low", "high"}};
    static const routing_view_columns lift = {{"head", "kind"}, {"lift", "low_lift", "high_lift"}};
    static const char *const names[] = {"kind_mass, before attention",
                                        "kind_mass, before the MLP",
                                        "lift, before attention",
                                        "lift, before the MLP",
                                        "kind_mass, before attention and at final",
                                        "lift, before attention and at final"};
    routing_view view;
    if (routing_view_init(&view, from, st))
        return FAILED;
    bool final = false;
    for (size_t i = 0; i < view.sites; i++)
        final = final || view.site[i].kind == SITE_FINAL;
    depth_panel panel[KIND_PANELS];
    for (size_t i = 0; i < KIND_PANELS; i++)
        panel[i] = (depth_panel){.name = names[final && i % 2 == 0 ? KIND_PANELS + i / 2 : i],
                                 .units = i < LIFT_ATTN ? "weight" : "1 = uniform",
                                 .from_zero = true};
    kind_panels all = {&view, panel};
    int result = routing_view_rows(&view, "KND", &mass, add_mass, &all, st);
    if (!result)
        result = routing_view_rows(&view, "KND", &lift, add_lift, &all, st);
    for (size_t i = LIFT_ATTN; !result && i < KIND_PANELS; i++)
        for (size_t end = 0; !result && end < 2; end++)
            result =
                depth_series_add(depth_panel_series(&panel[i], "uniform", 0), false,
                                 (depth_point){end ? (double)view.layers : 0, 1, NAN, NAN}, st);
    char subtitle[96];
    snprintf(subtitle, sizeof subtitle, "mean weight by kind of source%s",
             view.heads > 1 ? ", mean over heads" : "");
    depth_lines lines = {.view = &view,
                         .subtitle = subtitle,
                         .axis = "layer of the site that reads",
                         .note = "Lift: the mass divided by the kind's part of the sources.",
                         .empty = "no site with two or more sources has a defined value",
                         .panels = KIND_PANELS,
                         .panel = panel};
    if (!result)
        result = depth_lines_draw(&lines, s, st);
    for (size_t i = 0; i < KIND_PANELS; i++)
        depth_panel_clear(&panel[i]);
    routing_view_clear(&view);
    return result;
}

/* ---- reach ---- */

typedef struct reach_panels {
    const routing_view *view;
    depth_panel *panel;
} reach_panels;

/* The output of a sublayer has the name of its site. */
static int add_reach(void *context, const routing_view_row *row, status *st) {
    const reach_panels *p = context;
    for (size_t i = 0; i < p->view->sites; i++) {
        const routing_site *site = &p->view->site[i];
        if (strcmp(site->name, row->label[0]) != 0 || site->kind == SITE_FINAL)
            continue;
        depth_point point = {site->depth, row->value, row->low, row->high};
        return depth_series_add(
            depth_panel_series(p->panel,
                               site->kind == SITE_ATTN ? "attention outputs" : "MLP outputs",
                               (int)site->kind + 1),
            false, point, st);
    }
    return DONE; /* emb: every walk ends there */
}

int draw_reach(const table *from, sheet *s, status *st) {
    static const routing_view_columns columns = {.label = {"source"}};
    routing_view view;
    if (routing_view_init(&view, from, st))
        return FAILED;
    depth_panel panel = {.name = "reach", .units = "probability", .from_zero = true};
    reach_panels all = {&view, &panel};
    int result = routing_view_rows(&view, "RCH", &columns, add_reach, &all, st);
    depth_lines lines = {.view = &view,
                         .subtitle = "walks back from final that visit an output",
                         .axis = "layer of the output (the MLP's half a layer later)",
                         .note = "Every walk ends at the embedding, whose reach is 1.",
                         .empty = "no output has a defined reach",
                         .panels = 1,
                         .panel = &panel};
    if (!result)
        result = depth_lines_draw(&lines, s, st);
    depth_panel_clear(&panel);
    routing_view_clear(&view);
    return result;
}
