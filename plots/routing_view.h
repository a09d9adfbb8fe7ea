/* routing_view.h - the `routing` table as arrays, for the figures.
 *
 *     routing_view view;
 *     if (routing_view_init(&view, table, st)) return FAILED;
 *     double w = routing_weight(&view, site, head, source);
 *     routing_view_clear(&view);
 *
 * A cell of the site-by-source grid exists where the table has a row for it: a missing row means
 * that the site cannot read that source, `nan` in a row that is there means an undefined number. */
#ifndef FATHOM_ROUTING_VIEW_H
#define FATHOM_ROUTING_VIEW_H

#include "analyze/table.h"

#include <stdbool.h>

typedef enum site_kind { SITE_ATTN, SITE_MLP, SITE_FINAL, SITE_KINDS } site_kind;

typedef struct routing_site {
    const char *name; /* "L3.attn", points into the table */
    site_kind kind;
    size_t layer;     /* of `final`: the number of layers */
    double depth;     /* layer, + 0.5 for an MLP */
    size_t sources;   /* how many it reads */
    int newest;       /* source whose running sum is read (a partial block), or -1 */
    bool opens_block; /* reads no partial sum: the block before has just been closed */
} routing_site;

typedef struct routing_view {
    const table *from;
    char name[192]; /* of the model, for titles; clean UTF-8 */
    char mode[32];  /* "full_mh", or "" */
    size_t sites, layers, heads, sources;
    routing_site *site;  /* [sites] in the table's order, which is depth order */
    const char **source; /* [sources] names, in order of first appearance */
    double *weight;      /* [heads + 1, sites, sources] the token mean; head `heads` is the mean */
    bool *exists;        /* [sites, sources] */
} routing_view;

/* Reads sections RUN (where present), SIT and MEA. Errors name the section, its row and the cell.
 * `from` must outlive the view. */
int routing_view_init(routing_view *view, const table *from, status *st) MUST_USE;
void routing_view_clear(routing_view *view);

/* What section RUN says of `key`, or ""; points into the table. */
const char *routing_run_text(const routing_view *view, const char *key);

/* "NAME (MODE)", the first title line. */
void routing_title(const routing_view *view, char *text, size_t size);

double routing_weight(const routing_view *view, size_t head, size_t site, size_t source);
bool routing_exists(const routing_view *view, size_t site, size_t source);

/* Fills `out` [sites, sources] from section `code` (CON, SCN): rows of head `mean`, where there is
 * none the plain mean over heads; NaN where there is no row. */
int routing_site_sources(const routing_view *view, const char *code, double *out,
                         status *st) MUST_USE;

/* A row of any section, for figures that need it once. */
typedef struct routing_view_row {
    size_t site;          /* view->sites where the section has no column of that name */
    const char *label[2]; /* point into the table */
    double value, low, high;
} routing_view_row;
typedef struct routing_view_columns {
    const char *label[2]; /* NULL: not wanted */
    const char *value[3]; /* names of value, low and high; all NULL: just these */
} routing_view_columns;
/* Calls `use` with each row of section `code`; FAILED where a cell is wrong or `use` fails, whose
 * text then says what was expected. */
typedef int routing_view_row_use(void *context, const routing_view_row *row, status *st);
int routing_view_rows(const routing_view *view, const char *code,
                      const routing_view_columns *columns, routing_view_row_use *use, void *context,
                      status *st) MUST_USE;
/* Index of a source, trying `hint` and the one after it first; view->sources where there is none.
 */
size_t routing_source(const routing_view *view, const char *name, size_t hint);

/* One statistic per site, with its interval. */
typedef struct site_value {
    double value, low, high; /* NaN: undefined, or no row */
} site_value;

/* Fills `out` [sites] from section `code`: of the rows with a head, those of head `mean`; where
 * there is none, the plain mean over heads, without an interval. `*found` false: no such section.
 */
int routing_site_values(const routing_view *view, const char *code, site_value *out, bool *found,
                        status *st) MUST_USE;

/* The null of a statistic at each site, from section NBD: value is the mean, low and high are the
 * smallest and largest draw, of the rows of head `mean` where rows have heads. `*found` false: NBD
 * has no such rows. */
int routing_null_values(const routing_view *view, const char *statistic, const char *null,
                        site_value *out, bool *found, status *st) MUST_USE;

#endif
