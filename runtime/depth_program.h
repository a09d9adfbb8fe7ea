/* depth_program.h - a residual mode compiled to values, sites and sublayers.
 *
 * Only depth_program_build knows modes; forward, statistics and labels read the program.
 *
 *     depth_program *program;
 *     if (depth_program_build(config, NULL, &program, st)) return FAILED;
 *     for (size_t i = 0; i < program->sublayers; i++) run(program->sublayer[i]);
 *     depth_program_free(program);
 *
 * Sites: L0.attn, L0.mlp, L1.attn, …, final: always 2 * layers + 1, whatever was removed.
 */
#ifndef FATHOM_DEPTH_PROGRAM_H
#define FATHOM_DEPTH_PROGRAM_H

#include "kernels/depth_plan.h"
#include "runtime/config.h"

enum { DEPTH_NAME_ROOM = 32 }; /* bytes of a site's or source's name with its final zero */

typedef enum sublayer_kind { SUBLAYER_ATTN, SUBLAYER_MLP } sublayer_kind;

typedef struct depth_sublayer {
    size_t index; /* 2 * layer + kind: its place among all sublayers, and its site */
    size_t layer;
    sublayer_kind kind;
    size_t site;
    int out;   /* its VALUE_OUT */
    int state; /* the running tensor after it, or NO_VALUE */
} depth_sublayer;

/* What a source is, for families of sources and for labels. */
typedef enum source_kind {
    SOURCE_NULL,
    SOURCE_EMB,
    SOURCE_ATTN,     /* full, delta: an attention's output */
    SOURCE_MLP,      /* full, delta: an MLP's output */
    SOURCE_COMPLETE, /* block: the sum of a finished block */
    SOURCE_PARTIAL,  /* block: the running sum */
    SOURCE_DELTA,    /* delta_block, delta_mh: D1, D2, … */
} source_kind;

typedef struct depth_program {
    depth_plan plan;
    size_t sublayers;                   /* that run */
    depth_sublayer *sublayer;           /* [sublayers] in running order */
    int emb;                            /* its value */
    char (*site_name)[DEPTH_NAME_ROOM]; /* [plan.sites] "L3.attn", "final" */
    bool *site_read;                    /* [plan.sites] false: its sublayer was removed */
    /* Per site and source, flattened: entry of source s of site t is offset[t] + s. */
    size_t *offset;    /* [plan.sites + 1] */
    int *source;       /* [offset[sites]] values; plan.site[].source points into it */
    int *label;        /* [offset[sites]] index into `source_name` */
    source_kind *kind; /* [offset[sites]] */
    size_t labels;
    char (*source_name)[DEPTH_NAME_ROOM]; /* [labels] "null", "emb", "L0.attn", … | "B1" … | "D1" …,
                                in order of first appearance */
} depth_program;

/* Sublayers that do not run, beside those that a pruned configuration lacks already. */
typedef struct removed_set {
    const bool *sublayer; /* [2 * layers] true: does not run */
    removal removal;
} removed_set;

/* `removed` may be NULL: nothing. Removed attentions that open a block still close the one before;
 * names keep the unpruned numbering. Fails only when memory does. */
int depth_program_build(const model_config *config, const removed_set *removed, depth_program **out,
                        status *st) MUST_USE;
void depth_program_free(depth_program *program); /* NULL allowed */

/* How many of the sublayers that run first are the same in both: they read the same values in the
 * same way and make the same. */
size_t depth_program_common(const depth_program *a, const depth_program *b);

#endif
