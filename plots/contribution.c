/* Heatmaps of what else a site's sources are to it than a mean weight: their share of the mix
 * (contribution), and the weight by sublayer instead of by block (depth_matrix). */
#include "plots/figure.h"
#include "plots/routing_view.h"
#include "plots/site_maps.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- mass, contribution, signed_contribution ---- */

int draw_contribution(const table *from, sheet *s, status *st) {
    routing_view view;
    if (routing_view_init(&view, from, st))
        return FAILED;
    size_t grid = view.sites * view.sources;
    double *share = mem_array(2 * grid, sizeof *share, "contributions", st);
    int result = share ? DONE : FAILED;
    if (!result)
        result = routing_site_sources(&view, "CON", share, st);
    if (!result)
        result = routing_site_sources(&view, "SCN", share + grid, st);
    if (result)
        goto end;
    site_map map[] = {{"mass", view.weight + view.heads * grid},
                      {"contribution", share},
                      {"signed_contribution", share + grid}};
    site_maps maps = {.view = &view,
                      .subtitle = view.heads > 1 ? "weight and share in the mix, mean over heads"
                                                 : "weight and share in the mix",
                      .what = "mean weight, or share of the mix",
                      .axis = "source",
                      .only = "always 1",
                      .note = "Each row sums to 1.",
                      .columns = view.sources,
                      .column = view.source,
                      .exists = view.exists,
                      .sources = true,
                      .maps = 3,
                      .map = map,
                      .page = 3,
                      .row = 3,
                      .scale = {.name = "share"}};
    bool defined = false;
    for (size_t i = 0; i < 2 * grid; i++)
        defined = defined || !isnan(share[i]);
    s->diverging = true; /* signed contributions may be negative */
    result = site_maps_draw(&maps, s, st);
    if (!result && !defined) {
        status_fail(st, "every contribution in the table is undefined: the recording holds weights "
                        "without hidden states");
        result = NOT_DRAWN;
    }
end:
    free(share);
    routing_view_clear(&view);
    return result;
}

/* ---- depth_matrix ---- */

typedef struct matrix {
    routing_view view;
    bool *named;         /* [sources] the section names it beside the sublayers */
    const char **column; /* [columns] such sources (emb), then the sublayers */
    size_t columns;
    double *value; /* [sites, columns] */
    bool *exists;  /* [sites, columns] */
    size_t hint;
} matrix;

static int mark_source(void *context, const routing_view_row *row, status *st) {
    matrix *m = context;
    (void)st;
    size_t source = routing_source(&m->view, row->label[0], 0);
    if (source < m->view.sources)
        m->named[source] = true;
    return DONE;
}

static int use_cell(void *context, const routing_view_row *row, status *st) {
    matrix *m = context;
    size_t i = 0; /* rows come in order */
    while (i < m->columns && strcmp(m->column[(m->hint + i) % m->columns], row->label[0]) != 0)
        i++;
    if (i == m->columns)
        return status_fail(st, "sublayer is '%s', expected a site or a source", row->label[0]);
    m->hint = (m->hint + i) % m->columns;
    m->value[row->site * m->columns + m->hint] = row->value;
    m->exists[row->site * m->columns + m->hint] = true;
    return DONE;
}

static int read_matrix(matrix *m, status *st) {
    static const routing_view_columns columns = {.label = {"sublayer"}};
    const routing_view *view = &m->view;
    m->named = mem_array(view->sources, sizeof *m->named, "sublayers", st);
    m->column = mem_array(view->sources + view->sites, sizeof *m->column, "sublayers", st);
    if (!m->named || !m->column || routing_view_rows(view, "DMX", &columns, mark_source, m, st))
        return FAILED;
    for (size_t i = 0; i < view->sources; i++)
        if (m->named[i])
            m->column[m->columns++] = view->source[i];
    for (size_t i = 0; i < view->sites; i++)
        if (view->site[i].kind != SITE_FINAL)
            m->column[m->columns++] = view->site[i].name;
    size_t grid = view->sites * m->columns;
    m->value = mem_array(grid, sizeof *m->value, "depth matrix", st);
    m->exists = mem_array(grid, sizeof *m->exists, "depth matrix", st);
    if (!m->value || !m->exists)
        return FAILED;
    for (size_t i = 0; i < grid; i++)
        m->value[i] = NAN;
    return routing_view_rows(view, "DMX", &columns, use_cell, m, st);
}

int draw_depth_matrix(const table *from, sheet *s, status *st) {
    matrix m = {0};
    if (routing_view_init(&m.view, from, st))
        return FAILED;
    int result = FAILED;
    bool blocks = false;
    for (size_t i = 0; i < m.view.sites; i++)
        blocks = blocks || m.view.site[i].opens_block;
    if (!blocks) {
        status_fail(st, "each source is one sublayer's output: depth_attention shows the same");
        result = NOT_DRAWN;
        goto end;
    }
    if (read_matrix(&m, st))
        goto end;
    site_map map = {.value = m.value};
    site_maps maps = {.view = &m.view,
                      .subtitle = "mean weight by sublayer, blocks spread over their members",
                      .what = "mean weight",
                      .axis = "sublayer",
                      .only = "weight 1",
                      .note = "",
                      .columns = m.columns,
                      .column = m.column,
                      .exists = m.exists,
                      .maps = 1,
                      .map = &map,
                      .page = 1,
                      .row = 1,
                      .scale = {.name = "mean weight"}};
    result = site_maps_draw(&maps, s, st);
end:
    free(m.named);
    free(m.column);
    free(m.value);
    free(m.exists);
    routing_view_clear(&m.view);
    return result;
}
