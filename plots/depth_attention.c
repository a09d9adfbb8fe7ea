/* Heatmaps of the token-mean weight of every source at every site, and of what is compared with it.
 */
#include "plots/figure.h"
#include "plots/routing_view.h"
#include "plots/site_maps.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    HEADS_PER_PAGE = 8,
    HEADS_PER_ROW = 4,
    DEEP = 24, /* layers from which heads get larger panels, two in a row */
    DEEP_PER_PAGE = 4,
    DEEP_PER_ROW = 2,
};

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

/* ---- The figures ---- */

static site_maps maps_of(const routing_view *view, const char *subtitle, site_map *map,
                         size_t count) {
    return (site_maps){.view = view,
                       .subtitle = subtitle,
                       .what = "mean weight",
                       .axis = "source",
                       .only = "weight 1",
                       .note = "",
                       .columns = view->sources,
                       .column = view->source,
                       .exists = view->exists,
                       .sources = true,
                       .maps = count,
                       .map = map,
                       .page = 1,
                       .row = 1,
                       .noun = "heads",
                       .scale = {.name = "mean weight"}};
}

static const double *weights_of(const routing_view *view, size_t head) {
    return view->weight + head * view->sites * view->sources;
}

static void mean_text(const routing_view *view, const char *what, char *text, size_t size) {
    if (view->heads > 1)
        snprintf(text, size, "%s, mean of %zu heads", what, view->heads);
    else
        snprintf(text, size, "%s", what);
}

int draw_depth_attention(const table *from, sheet *s, status *st) {
    routing_view view;
    if (routing_view_init(&view, from, st))
        return FAILED;
    char subtitle[128];
    site_map map = {.value = weights_of(&view, view.heads)};
    site_maps maps = maps_of(&view, subtitle, &map, 1);
    mean_text(&view, "mean depth-attention weight", subtitle, sizeof subtitle);
    int result = look(&view, st);
    if (!result)
        result = site_maps_draw(&maps, s, st);
    routing_view_clear(&view);
    return result;
}

/* log2 of weight times number of sources: what is small at deep sites, where many share, is seen.
 */
int draw_depth_attention_lift(const table *from, sheet *s, status *st) {
    routing_view view;
    if (routing_view_init(&view, from, st))
        return FAILED;
    char subtitle[128];
    size_t grid = view.sites * view.sources;
    double *lift = mem_array(grid, sizeof *lift, "weights", st);
    site_map map = {.value = lift};
    site_maps maps = maps_of(&view, subtitle, &map, 1);
    int result = lift ? look(&view, st) : FAILED;
    if (result)
        goto end;
    for (size_t i = 0; i < grid; i++) {
        size_t site = i / view.sources, sources = 0;
        for (size_t k = 0; k < view.sources; k++)
            sources += routing_exists(&view, site, k);
        /* A weight of 0, of a masked source, is drawn as very small. */
        lift[i] = log2(fmax(weights_of(&view, view.heads)[i], 1e-15) * (double)sources);
        if (isnan(weights_of(&view, view.heads)[i]))
            lift[i] = NAN;
    }
    mean_text(&view, "weight relative to uniform", subtitle, sizeof subtitle);
    maps.what = "log2 of the mean weight times the number of sources";
    maps.only = "always 1";
    maps.scale = (colour_scale){.name = "weight / uniform", .doublings = true};
    s->diverging = true;
    result = site_maps_draw(&maps, s, st);
end:
    free(lift);
    routing_view_clear(&view);
    return result;
}

/* Maps of all heads; `deviation`: of what they differ from the mean over heads. */
static int draw_heads(const table *from, sheet *s, bool deviation, status *st) {
    routing_view view;
    if (routing_view_init(&view, from, st))
        return FAILED;
    size_t grid = view.sites * view.sources;
    double *difference = mem_array(view.heads, grid * sizeof *difference, "deviations", st);
    site_map *map = mem_array(view.heads, sizeof *map, "maps", st);
    site_maps maps = maps_of(&view, "mean depth-attention weight by head", map, view.heads);
    int result = difference && map ? look(&view, st) : FAILED;
    if (!result && view.heads < 2) {
        status_fail(st, "the table has one routing head: see depth_attention");
        result = NOT_DRAWN;
    }
    if (result)
        goto end;
    for (size_t head = 0; head < view.heads; head++) {
        snprintf(map[head].label, sizeof map[head].label, "head %zu", head);
        map[head].value = deviation ? difference + head * grid : weights_of(&view, head);
        for (size_t i = 0; i < grid; i++)
            difference[head * grid + i] =
                weights_of(&view, head)[i] - weights_of(&view, view.heads)[i];
    }
    bool deep = view.layers > DEEP;
    maps.page = deep ? DEEP_PER_PAGE : HEADS_PER_PAGE;
    maps.row = deep ? DEEP_PER_ROW : HEADS_PER_ROW;
    if (deviation) {
        maps.subtitle = "weight minus the mean over heads";
        maps.what = "mean weight minus that of all heads";
        maps.only = "no difference";
        maps.scale.name = "weight - head mean";
        s->diverging = true;
    }
    result = site_maps_draw(&maps, s, st);
end:
    free(difference);
    free(map);
    routing_view_clear(&view);
    return result;
}

int draw_depth_attention_heads(const table *from, sheet *s, status *st) {
    return draw_heads(from, s, false, st);
}

int draw_head_deviation(const table *from, sheet *s, status *st) {
    return draw_heads(from, s, true, st);
}
