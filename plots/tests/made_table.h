/* made_table.h - tables of made-up models, with every section that a figure reads. */
#ifndef FATHOM_MADE_TABLE_H
#define FATHOM_MADE_TABLE_H

#include "analyze/table.h"

#include <stdbool.h>
#include <stdio.h>

typedef struct shape {
    const char *model;
    size_t layers, heads, block; /* block 0: every sublayer's output is a source */
    bool intervals;
    double odd;       /* L1.mlp's weight of emb; 0: as the others */
    bool removed;     /* L1.mlp has no weights, as after pruning */
    bool nulls;       /* section NBD */
    bool rough;       /* weights that look trained instead of counting up */
    bool null_source; /* the oldest source is called null instead of emb */
    bool long_names;  /* sources have names of 30 characters */
    bool flat;        /* statistics are the same at every site but for rounding, divergences 0 */
    bool undefined;   /* every value but the mean weights is nan */
} shape;

/* Source `i` of a model, in order of first appearance; `name` holds 48 bytes. */
const char *made_source(const shape *m, size_t i, char *name);
/* How many sources the site of sublayer `t` (2 * layers: final) reads, and whether the last is a
 * running sum. */
size_t made_sources(const shape *m, size_t t, bool *partial);
double made_weight(const shape *m, size_t t, size_t head, size_t i, size_t count);
void made_table_write(FILE *out, const shape *m);

#endif
