/* routing_sites.h - the sites of a recording as statistics see them: which sources each has, of
 * what kind its newest one is, and where a number of a site stands in a recorded row. */
#ifndef FATHOM_ROUTING_SITES_H
#define FATHOM_ROUTING_SITES_H

#include "analyze/routing_statistics.h"
#include "probes/recording.h"

typedef enum site_kind { SITE_ATTN, SITE_MLP, SITE_FINAL } site_kind;

typedef struct recorded_site {
    const char *name;        /* "L3.attn"; owned by the recording */
    size_t index;            /* on the site axis */
    site_kind kind;          /* by the end of its name: ".attn", ".mlp", anything else is final */
    char layer[16];          /* digits of its layer, "3"; "nan" where the name has none */
    routing_shape shape;     /* sources 0: it routes nothing */
    const size_t *source;    /* [shape.sources] on the source axis, oldest first */
    const char *newest;      /* its name, or "none" */
    const char *newest_kind; /* emb, attn, mlp, complete, partial, delta, null, other, none */
    bool opens_block;        /* block modes: the newest source is not the running partial sum */
} recorded_site;

typedef struct recorded_sites {
    size_t sites;
    recorded_site *site; /* [sites] */
    size_t *source;      /* what the sites' lists point into */
    bool null_source;    /* at any site */
} recorded_sites;

/* `about` must outlive the list. Fails only when memory does. */
int recorded_sites_init(recorded_sites *list, const recording_about *about, status *st) MUST_USE;
void recorded_sites_clear(recorded_sites *list);

/* The kind of the site's i-th source: one of newest_kind's. A block is partial where it is still
 * being summed. */
const char *recorded_source_kind(const recorded_site *site, const recording_about *about, size_t i);

/* Where one site's numbers stand within a sequence of a row that recording_read_row gives:
 * cell [routing_row_size(row, heads, the site's sources)]. */
void recorded_site_cells(const recorded_site *site, const recording_about *about, row_axes axes,
                         size_t *cell);
/* Doubles of one sequence in such a row: all sites, all sources. */
size_t recorded_row_stride(const recording_about *about, row_axes axes);

#endif
