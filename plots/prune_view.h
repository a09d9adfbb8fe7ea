/* prune_view.h - the table of `fathom prune` as rows. */
#ifndef FATHOM_PRUNE_VIEW_H
#define FATHOM_PRUNE_VIEW_H

#include "plots/cells.h"

/* What is removed as one: a layer, its attention, its MLP. */
typedef enum prune_kind { PRUNE_LAYER, PRUNE_ATTN, PRUNE_MLP, PRUNE_KINDS } prune_kind;
extern const char *const prune_kind_name[PRUNE_KINDS]; /* as the legend says it */

/* A row of ONE (score NULL, value delta_loss) or SCO. */
typedef struct prune_unit {
    prune_kind kind;
    size_t layer;
    const char *score; /* points into the table */
    double value, low, high;
} prune_unit;
/* *units [*count] of section `code`, "ONE" or "SCO", freed by the caller. */
int prune_units_read(const table *from, const char *code, prune_unit **units, size_t *count,
                     status *st) MUST_USE;
/* Layers of the table: what RUN says, or the deepest of the units. */
size_t prune_layers(const table *from, const prune_unit *units, size_t count);

/* The rank agreement of a score with delta_loss, and what it must exceed; *found false: no row. */
typedef struct prune_agreement {
    double spearman, low, high, chance;
    size_t units;
    bool found;
} prune_agreement;
int prune_agreement_read(const table *from, const char *score, prune_kind kind,
                         prune_agreement *found, status *st) MUST_USE;

/* Different scores of `units` in order of appearance; returns how many, `most` at most. */
size_t prune_scores_of(const prune_unit *units, size_t count, const char **score, size_t most);

#endif
