/* routing_rows.h - the accumulated routing statistics by name: the one list that recordings,
 * tables, help texts and figures share.
 *
 * A row is stored per sequence in routing_seq/NAME and over all tokens in routing/NAME. */
#ifndef FATHOM_ROUTING_ROWS_H
#define FATHOM_ROUTING_ROWS_H

#include "kernels/routing_sums.h"

#include <stdbool.h>
#include <stddef.h>

typedef enum row_axes {
    ROW_SITE,          /* [site] */
    ROW_HEAD,          /* [site, head] */
    ROW_SOURCE,        /* [site, source] */
    ROW_HEAD_SOURCE,   /* [site, head, source] */
    ROW_HEAD_HEAD,     /* [site, head, head_other] */
    ROW_SOURCE_SOURCE, /* [site, source, source_other] */
} row_axes;

typedef struct routing_row {
    const char *name; /* "head_divergence" */
    const char *long_name;
    const char *units; /* "1", "nats" */
    row_axes axes;
    bool pairs;          /* only with pairs (head_js, source_cos) */
    size_t field_offset; /* offsetof(routing_layout, FIELD) */
    bool nulls;          /* recorded for random queries too, as NAME_null_norm, NAME_null_var */
} routing_row;

extern const routing_row routing_rows[];
extern const size_t routing_row_count;

/* NULL where there is none of that name. */
const routing_row *routing_row_find(const char *name);

/* Numbers a row has at one site: the product of its axes after [site]. */
size_t routing_row_size(const routing_row *row, size_t heads, size_t sources);

/* Lays one site's sums of one row out over all `labels` of a recording's source axis: out
 * [routing_row_size(row, heads, labels)], NaN where the site has no such source. `label`
 * [layout->sources]: the place of each of the site's sources on that axis. */
void routing_row_spread(const routing_row *row, const routing_layout *layout, const double *sums,
                        const size_t *label, size_t labels, double *out);

#endif
