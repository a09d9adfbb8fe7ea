/* routing_walks.c - head-mean weights of all sites together: RCH and DMX of the routing table. */
#include "analyze/routing_sections.h"
#include "analyze/table.h"

#include <stdlib.h>
#include <string.h>

enum { NOWHERE = -1 };

typedef struct work {
    const routing_sample *s;
    size_t draws, cells, *first; /* see routing_head_means */
    double *weight;              /* [draws, cells] */
    long *reader;                /* [sources] site of the sublayer whose output it is, or NOWHERE */
    bool in_blocks;              /* sources are sums of outputs ... */
    long *block; /* [sites] ... and this one holds the site's sublayer, or NOWHERE */
} work;

/* ---- reach ---- */

/* One draw: reach [sources] from that draw's weights. Sites are read backwards, so whatever reads a
 * source has been reached before the source's own site hands its probability on. */
static void walk(const work *w, const double *weight, double *visited, double *reach) {
    const recorded_sites *sites = w->s->sites;
    memset(reach, 0, w->s->about->sources * sizeof *reach);
    memset(visited, 0, sites->sites * sizeof *visited);
    visited[sites->sites - 1] = 1;
    for (size_t i = sites->sites; i-- > 0;) {
        const recorded_site *site = &sites->site[i];
        for (size_t k = 0; k < site->shape.sources; k++) {
            size_t source = site->source[k];
            double step = visited[i] * weight[w->first[i] + k];
            reach[source] += step;
            if (w->reader[source] != NOWHERE && w->reader[source] < (long)i)
                visited[w->reader[source]] += step;
        }
    }
}

static int put_reach(const work *w, status *st) {
    const recording_about *about = w->s->about;
    FILE *out = w->s->out;
    double *visited = mem_array(about->sites, sizeof *visited, "reach", st);
    double *reach = mem_array(w->draws, about->sources * sizeof *reach, "reach", st);
    interval *result = mem_array(about->sources, sizeof *result, "intervals", st);
    int rc = visited && reach && result ? DONE : FAILED;
    for (size_t k = 0; !rc && k < w->draws; k++)
        walk(w, w->weight + k * w->cells, visited, reach + k * about->sources);
    if (!rc) {
        bootstrap_intervals(w->s->all, reach, about->sources, result);
        table_section(
            out, "RCH",
            "reach: probability that a walk back from `final`, which chooses at each site "
            "by its head-mean weights, visits the source: about weights, not influence",
            "source, value, low, high", "1");
    }
    for (size_t i = 0; !rc && i < about->sources; i++) {
        table_row(out, "RCH");
        table_text(out, about->source_name[i]);
        table_interval(out, result[i]);
        table_end(out);
    }
    free(visited);
    free(reach);
    free(result);
    return rc;
}

/* ---- depth matrix ---- */

/* Weights of one site as [sites + sources] over sublayers, named by their site, and over sources
 * that are no sublayer's; *exists marks the cells that a source of the site falls on. */
static void spread(const work *w, size_t at, const double *weight, double *row, bool *exists) {
    const recorded_sites *sites = w->s->sites;
    const recorded_site *site = &sites->site[at];
    for (size_t k = 0; k < site->shape.sources; k++) {
        size_t source = site->source[k], members = 0;
        for (size_t i = 0; w->in_blocks && i < at; i++)
            members += w->block[i] == (long)source;
        if (members == 0) {
            long reader = w->reader[source];
            size_t cell = reader != NOWHERE ? (size_t)reader : sites->sites + source;
            row[cell] += weight[k];
            exists[cell] = true;
        }
        for (size_t i = 0; members && i < at; i++)
            if (w->block[i] == (long)source) {
                row[i] += weight[k] / (double)members;
                exists[i] = true;
            }
    }
}

static void put_cells(const work *w, const recorded_site *site, const bool *exists,
                      const interval *cell) {
    const recording_about *about = w->s->about;
    for (size_t turn = 0; turn < about->sites + about->sources; turn++) {
        /* What is no sublayer's, the embedding first of all, comes before the sublayers. */
        size_t i = turn < about->sources ? about->sites + turn : turn - about->sources;
        if (!exists[i])
            continue;
        table_row(w->s->out, "DMX");
        table_text(w->s->out, site->name);
        table_text(w->s->out,
                   i < about->sites ? about->site_name[i] : about->source_name[i - about->sites]);
        table_interval(w->s->out, cell[i]);
        table_end(w->s->out);
    }
}

static int put_depth_matrix(const work *w, status *st) {
    const recorded_sites *sites = w->s->sites;
    size_t width = sites->sites + w->s->about->sources;
    double *row = mem_array(w->draws, width * sizeof *row, "depth matrix", st);
    bool *exists = mem_array(width, sizeof *exists, "depth matrix", st);
    interval *cell = mem_array(width, sizeof *cell, "intervals", st);
    int rc = row && exists && cell ? DONE : FAILED;
    if (!rc)
        table_section(
            w->s->out, "DMX",
            "depth_matrix: head-mean weights by sublayer, those of a block spread equally "
            "over the sublayers it is the sum of",
            "site, sublayer, value, low, high", "1");
    for (size_t i = 0; !rc && i < sites->sites; i++) {
        memset(row, 0, w->draws * width * sizeof *row);
        memset(exists, 0, width * sizeof *exists);
        for (size_t k = 0; k < w->draws; k++)
            spread(w, i, w->weight + k * w->cells + w->first[i], row + k * width, exists);
        bootstrap_intervals(w->s->all, row, width, cell);
        put_cells(w, &sites->site[i], exists, cell);
    }
    free(row);
    free(exists);
    free(cell);
    return rc;
}

/* ---- which source is made where ---- */

/* The output of a sublayer is named as its site. In block modes the newest source at the next site
 * is the sum that holds it. */
static void find_makers(work *w) {
    const recording_about *about = w->s->about;
    const recorded_sites *sites = w->s->sites;
    long newest = NOWHERE;
    for (size_t s = 0; s < about->sources; s++) {
        w->reader[s] = NOWHERE;
        for (size_t i = 0; i < about->sites; i++)
            if (strcmp(about->source_name[s], about->site_name[i]) == 0)
                w->reader[s] = (long)i;
    }
    for (size_t i = sites->sites; i-- > 0;) {
        const recorded_site *site = &sites->site[i];
        w->block[i] = w->in_blocks && site->shape.sources ? newest : NOWHERE;
        if (site->shape.sources)
            newest = (long)site->source[site->shape.sources - 1];
    }
}

static bool begins(const char *text, const char *start) {
    return strncmp(text, start, strlen(start)) == 0;
}

int routing_walks_write(const routing_sample *s, status *st) {
    const recording_about *about = s->about;
    const char *mode = about->residual_mode;
    const recorded_site *last = &s->sites->site[s->sites->sites - 1];
    bool reaches = begins(mode, "full") && last->kind == SITE_FINAL && last->shape.sources;
    if (!reaches)
        table_comment(s->out,
                      "RCH is left out: reach is of walks from `final` in full modes, where "
                      "each source is a sublayer's output.");
    work w = {.s = s, .draws = bootstrap_draws(s->all), .in_blocks = begins(mode, "block")};
    if (!begins(mode, "full") && !w.in_blocks && strcmp(mode, "delta") != 0) {
        table_comment(s->out, "DMX is left out: the sources of mode %s are no sums of outputs.",
                      mode);
        return DONE;
    }
    w.first = mem_array(about->sites, sizeof *w.first, "sites", st);
    w.reader = mem_array(about->sources, sizeof *w.reader, "sources", st);
    w.block = mem_array(about->sites, sizeof *w.block, "sites", st);
    int rc = w.first && w.reader && w.block
                 ? routing_head_means(s, s->all, w.first, &w.cells, &w.weight, st)
                 : FAILED;
    if (!rc) {
        find_makers(&w);
        if (reaches)
            rc = put_reach(&w, st);
        if (!rc)
            rc = put_depth_matrix(&w, st);
    }
    free(w.first);
    free(w.reader);
    free(w.block);
    free(w.weight);
    return rc;
}
