/* Matrices over pairs: of routing heads at each site (head_js), of a site's sources (source_cos).
 */
#include "plots/square_maps.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NO_MAP ((size_t)-1)

static double largest(const double *value, size_t count) {
    double max = -1;
    for (size_t i = 0; i < count; i++)
        max = fmax(max, fabs(value[i])); /* fmax drops NaN */
    return max;
}

/* ---- head_js ---- */

enum {
    HEADS_LEFT = 24,
    HEADS_GAP = 8,
    HEADS_ROW = 4,
    HEADS_LABEL = 22,   /* over each map */
    MAPS_PER_PAGE = 12, /* before attention, and before the MLP */
    HEADS_MOST = 256,   /* more have no room in a map, and a page of them is gigabytes */
    LAYERS_SINGLE = 36, /* deeper models have several layers in a map */
    LAYER_GROUPS = 11,
};

typedef struct head_maps {
    routing_view view;
    size_t step, groups;      /* layers in a map; maps of a kind: group g is map 2 g (+ 1: MLP) */
    double *sum;              /* [maps, heads, heads] */
    size_t *sites;            /* [maps] */
    double *mean, *null_mean; /* [maps] over pairs, sums over sites */
    size_t maps, pages;       /* the last one is `final` */
    site_value *null;         /* [sites] */
    square_map *map;
    bool nulls;
} head_maps;

static size_t map_of(const head_maps *h, size_t site) {
    const routing_site *s = &h->view.site[site];
    if (s->sources < 2)
        return NO_MAP;
    return s->kind == SITE_FINAL ? h->maps - 1 : 2 * (s->layer / h->step) + (s->kind == SITE_MLP);
}

static int read_head_label(const char *text, size_t heads, size_t *head, status *st) {
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || value >= heads)
        return status_fail(st, "head is '%s', expected one of the %zu heads of section MEA", text,
                           heads);
    *head = value;
    return DONE;
}

static int add_heads(void *context, const routing_view_row *row, status *st) {
    head_maps *h = context;
    size_t heads = h->view.heads, a, b, map = map_of(h, row->site);
    if (read_head_label(row->label[0], heads, &a, st) ||
        read_head_label(row->label[1], heads, &b, st))
        return FAILED;
    if (map == NO_MAP || a == b)
        return DONE;
    double *matrix = h->sum + map * heads * heads;
    matrix[a * heads + b] += row->value;
    matrix[b * heads + a] += row->value;
    h->mean[map] += row->value / (double)(heads * (heads - 1) / 2);
    return DONE;
}

static int read_heads(head_maps *h, status *st) {
    static const routing_view_columns columns = {.label = {"head", "head_other"}};
    const routing_view *view = &h->view;
    size_t heads = view->heads;
    bool found;
    h->step = view->layers > LAYERS_SINGLE ? (view->layers + LAYER_GROUPS - 1) / LAYER_GROUPS : 1;
    h->groups = (view->layers + h->step - 1) / h->step;
    h->maps = 2 * h->groups + 1;
    h->sum = mem_array(h->maps, heads * heads * sizeof *h->sum, "pairs of heads", st);
    h->sites = mem_array(h->maps, sizeof *h->sites, "maps", st);
    h->mean = mem_array(h->maps, sizeof *h->mean, "maps", st);
    h->null_mean = mem_array(h->maps, sizeof *h->null_mean, "maps", st);
    h->null = mem_array(view->sites, sizeof *h->null, "nulls", st);
    h->map = mem_array(h->maps, sizeof *h->map, "maps", st);
    if (!h->sum || !h->sites || !h->mean || !h->null_mean || !h->null || !h->map ||
        routing_null_values(view, "head_js", "var", h->null, &found, st) ||
        routing_view_rows(view, "HJS", &columns, add_heads, h, st))
        return FAILED;
    h->nulls = false;
    for (size_t i = 0; i < view->sites; i++) {
        size_t map = map_of(h, i);
        if (map == NO_MAP)
            continue;
        h->nulls = h->nulls || !isnan(h->null[i].value);
        h->sites[map]++;
        h->null_mean[map] += h->null[i].value;
    }
    for (size_t map = 0; map < h->maps; map++)
        for (size_t i = 0; i < heads * heads; i++)
            h->sum[map * heads * heads + i] /= (double)h->sites[map];
    return DONE;
}

static void label_heads(const head_maps *h, size_t map, square_map *m) {
    size_t first = map / 2 * h->step, last = first + h->step - 1;
    if (last >= h->view.layers)
        last = h->view.layers - 1;
    if (map == h->maps - 1)
        snprintf(m->label, sizeof m->label, "final");
    else if (first == last)
        snprintf(m->label, sizeof m->label, "L%zu", first);
    else
        snprintf(m->label, sizeof m->label, "L%zu-%zu", first, last);
    double sites = (double)h->sites[map];
    int used = snprintf(m->below, sizeof m->below, "%.3f", h->mean[map] / sites);
    if (!isnan(h->null_mean[map]))
        snprintf(m->below + used, sizeof m->below - (size_t)used, " (%.3f)",
                 h->null_mean[map] / sites);
}

/* Places the maps of a kind in rows from `top` on, page by page; `final` follows those before
 * attention. Returns the bottom. */
static double place_heads(head_maps *h, size_t kind, double top, double side, size_t *used) {
    size_t place = 0;
    double bottom = top;
    for (size_t group = 0; group <= h->groups; group++) {
        size_t from = group < h->groups ? 2 * group + kind : h->maps - 1;
        if (group == h->groups && kind)
            break;
        if (!h->sites[from])
            continue;
        square_map *m = &h->map[(*used)++];
        double row = (double)(place % MAPS_PER_PAGE / HEADS_ROW);
        double column = (double)(place % HEADS_ROW);
        *m = (square_map){.value = h->sum + from * h->view.heads * h->view.heads,
                          .size = h->view.heads,
                          .left = HEADS_LEFT + column * (side + HEADS_GAP),
                          .top = top + row * (side + HEADS_LABEL + 4) + HEADS_LABEL,
                          .side = side,
                          .yticks = place % HEADS_ROW == 0,
                          .page = place / MAPS_PER_PAGE};
        label_heads(h, from, m);
        bottom = fmax(bottom, m->top + side);
        h->pages = m->page + 1 > h->pages ? m->page + 1 : h->pages;
        place++;
    }
    return bottom;
}

/* Whether no map stands under this one. */
static bool is_lowest(const head_maps *h, size_t at, size_t used) {
    for (size_t i = 0; i < used; i++)
        if (h->map[i].page == h->map[at].page && h->map[i].left == h->map[at].left &&
            h->map[i].top > h->map[at].top)
            return false;
    return true;
}

static int put_heads(head_maps *h, sheet *s, status *st) {
    static const char *const headers[] = {"before attention", "before the MLP"};
    const routing_view *view = &h->view;
    square_header header[2];
    double side = (SHEET_WIDTH - 8 - HEADS_LEFT - (HEADS_ROW - 1) * HEADS_GAP) / (double)HEADS_ROW;
    double y = SHEET_TITLES;
    size_t used = 0, count = 0;
    for (size_t kind = 0; kind < 2; kind++) {
        size_t before = used;
        double bottom = place_heads(h, kind, y + 14, side, &used);
        if (used == before)
            continue;
        header[count++] = (square_header){headers[kind], HEADS_LEFT, y + 7};
        y = bottom + 6;
    }
    double bottom = y - 6, high = -1;
    for (size_t i = 0; i < used; i++) {
        h->map[i].xticks = is_lowest(h, i, used);
        high = fmax(high, largest(h->map[i].value, view->heads * view->heads));
    }
    if (high < 0) {
        status_fail(st, "no site with two or more sources has a defined head_js");
        return NOT_DRAWN;
    }
    s->pages = h->pages;
    nice_range range = nice_range_of(0, high > 0 ? high : 1);
    char note[400], grouped[96] = "";
    if (h->step > 1)
        snprintf(grouped, sizeof grouped,
                 " A map is the mean over up to %zu layers; the table has every site.", h->step);
    snprintf(note, sizeof note, "Rows and columns: heads. Over a map: mean of the pairs%s.%s%s%s",
             h->nulls ? " (in brackets: of random queries of equal logit variance)" : "",
             h->nulls ? "" : " No null shown.", grouped,
             s->pages > 1 ? " One colour scale for all pages." : "");
    square_maps maps = {
        .view = view,
        .subtitle = "head_js: divergence of each two routing heads",
        .what = "head_js in nats",
        .axis = "head",
        .note = note,
        .maps = used,
        .map = h->map,
        .bottom = bottom,
        .scale = {.name = "head_js (nats)", .high = range.high, .step = range.step}};
    return square_maps_draw(&maps, header, count, s, st);
}

int draw_head_js(const table *from, sheet *s, status *st) {
    head_maps h = {0};
    if (routing_view_init(&h.view, from, st))
        return FAILED;
    int result = FAILED;
    if (h.view.heads < 2) {
        status_fail(st, "the table has one routing head: there are no pairs");
        result = NOT_DRAWN;
    } else if (h.view.heads > HEADS_MOST) {
        status_fail(st, "%zu routing heads are too many for maps of their pairs (%d)", h.view.heads,
                    HEADS_MOST);
        result = NOT_DRAWN;
    } else if (h.view.layers == 0) {
        status_fail(st, "no site but `final` reads sources");
        result = NOT_DRAWN;
    } else if (!read_heads(&h, st)) {
        result = put_heads(&h, s, st);
    }
    free(h.sum);
    free(h.sites);
    free(h.mean);
    free(h.null_mean);
    free(h.null);
    free(h.map);
    routing_view_clear(&h.view);
    return result;
}

/* ---- source_cos ---- */

enum { COS_MAPS = 3, COS_LEFT = 48, COS_GAP = 42, COS_LABEL = 12 };

typedef struct cos_map {
    size_t site;
    size_t sources;
    const char **name; /* [sources] */
    size_t *local;     /* [view->sources] place among the site's sources, or NO_MAP */
    double *value;     /* [sources, sources] */
} cos_map;

typedef struct cos_maps {
    routing_view view;
    size_t maps, hint[2];
    cos_map map[COS_MAPS];
} cos_maps;

static int add_cosine(void *context, const routing_view_row *row, status *st) {
    cos_maps *c = context;
    size_t map = 0, at[2];
    while (map < c->maps && c->map[map].site != row->site)
        map++;
    if (map == c->maps)
        return DONE;
    cos_map *m = &c->map[map];
    for (size_t i = 0; i < 2; i++) {
        c->hint[i] = routing_source(&c->view, row->label[i], c->hint[i]);
        if (c->hint[i] == c->view.sources || m->local[c->hint[i]] == NO_MAP)
            return status_fail(st, "source is '%s', expected one that section MEA has at this site",
                               row->label[i]);
        at[i] = m->local[c->hint[i]];
    }
    m->value[at[0] * m->sources + at[1]] = m->value[at[1] * m->sources + at[0]] = row->value;
    return DONE;
}

static int open_cos_map(cos_maps *c, size_t site, status *st) {
    const routing_view *view = &c->view;
    cos_map *m = &c->map[c->maps++];
    m->site = site;
    m->name = mem_array(view->sources, sizeof *m->name, "sources", st);
    m->local = mem_array(view->sources, sizeof *m->local, "sources", st);
    if (!m->name || !m->local)
        return FAILED;
    for (size_t i = 0; i < view->sources; i++) {
        m->local[i] = NO_MAP;
        if (!routing_exists(view, site, i))
            continue;
        m->local[i] = m->sources;
        m->name[m->sources++] = view->source[i];
    }
    m->value = mem_array(m->sources, m->sources * sizeof *m->value, "cosines", st);
    for (size_t i = 0; m->value && i < m->sources * m->sources; i++)
        m->value[i] = NAN;
    return m->value ? DONE : FAILED;
}

/* The last site that reads several sources and, where a running sum makes sites differ, those a
 * third and two thirds of the way to it. */
static int choose_sites(cos_maps *c, status *st) {
    const routing_view *view = &c->view;
    size_t last = NO_MAP, near = NO_MAP;
    bool running = false;
    for (size_t i = 0; i < view->sites; i++) {
        if (view->site[i].sources > 1)
            last = i;
        running = running || view->site[i].newest >= 0;
    }
    if (last == NO_MAP) {
        status_fail(st, "no site reads two sources");
        return NOT_DRAWN;
    }
    if (open_cos_map(c, last, st))
        return FAILED;
    for (size_t third = 1; running && third <= 2; third++) {
        size_t site = last * third / 3;
        if (view->site[site].sources < 2 || site == near || site == last)
            continue;
        near = site;
        if (open_cos_map(c, site, st))
            return FAILED;
    }
    return DONE;
}

static int put_cosines(cos_maps *c, sheet *s, status *st) {
    square_map map[COS_MAPS];
    double high = -1, side = SHEET_WIDTH - COS_LEFT - 8, top = SHEET_TITLES + COS_LABEL + 2;
    double small = (side - COS_GAP) / 2, bottom = top + side;
    bool part = c->maps > 1;
    for (size_t i = 0; i < c->maps; i++) {
        const cos_map *m = &c->map[i];
        map[i] = (square_map){.value = m->value,
                              .size = m->sources,
                              .name = m->name,
                              .left = i ? COS_LEFT + (double)(i - 1) * (small + COS_GAP) : COS_LEFT,
                              .top = i ? top + side + 22 + COS_LABEL : top,
                              .side = i ? small : side,
                              .xticks = true,
                              .yticks = true};
        bottom = map[i].top + map[i].side;
        snprintf(map[i].label, sizeof map[i].label, "site %.40s, %zu sources",
                 c->view.site[m->site].name, m->sources);
        high = fmax(high, largest(m->value, m->sources * m->sources));
    }
    if (high < 0) {
        status_fail(st, "every cosine in the table is undefined (nan)");
        return NOT_DRAWN;
    }
    char note[320];
    snprintf(note, sizeof note, "Grey: a source with itself. %s",
             part ? "Sites differ in the running sum alone: shown are the last and those a third "
                    "and two thirds of the way to it; the table has every site."
                  : "Two sources have the same cosine at every site that reads both: the last site "
                    "stands for all.");
    square_maps maps = {.view = &c->view,
                        .subtitle = "source_cos: mean cosine of each two sources",
                        .what = "mean cosine",
                        .axis = "source",
                        .note = note,
                        .maps = c->maps,
                        .map = map,
                        .bottom = bottom,
                        .scale = {.name = "cosine", .high = fmin(1, nice_range_of(0, high).high)}};
    s->diverging = true;
    return square_maps_draw(&maps, NULL, 0, s, st);
}

int draw_source_cos(const table *from, sheet *s, status *st) {
    static const routing_view_columns columns = {.label = {"source", "source_other"}};
    cos_maps c = {0};
    if (routing_view_init(&c.view, from, st))
        return FAILED;
    int result = choose_sites(&c, st);
    if (!result)
        result = routing_view_rows(&c.view, "COS", &columns, add_cosine, &c, st);
    if (!result)
        result = put_cosines(&c, s, st);
    for (size_t i = 0; i < COS_MAPS; i++) {
        free(c.map[i].name);
        free(c.map[i].local);
        free(c.map[i].value);
    }
    routing_view_clear(&c.view);
    return result;
}
