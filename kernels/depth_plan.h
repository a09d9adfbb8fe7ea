/* depth_plan.h - the depth program as data: what every backend reads, and nothing else about modes.
 *
 * Every distinct [rows, width] tensor on the depth axis is a value, made once (single assignment).
 * A site reads values:  in = base + gate * mix(sources),  and  mix slice h = sum_s a_s^h v_s slice
 * h, a^h = softmax_s(<u^h, v_s^h> / rms(v_s)),  u = gain * query (Attention Residuals, arXiv
 * 2603.15031; one softmax per head: Multi-Head Attention Residuals, arXiv 2607.27230).
 * runtime/depth_program.h builds a plan from a configuration and adds the names.
 *
 * One token in a block model of two layers, one block:
 *     v0 EMB         L0.attn reads [v0]          makes v1 OUT
 *                    L0.mlp  reads [v0, v1]      makes v2 OUT;  v3 = ADD v1 v2
 *                    L1.attn reads [v0, v3]      makes v4 OUT;  v5 = ADD v3 v4
 *                    L1.mlp  reads [v0, v5]      makes v6 OUT;  v7 = ADD v5 v6
 *                    final   reads [v0, v7]
 */
#ifndef FATHOM_DEPTH_PLAN_H
#define FATHOM_DEPTH_PLAN_H

#include "runtime/base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum { NO_VALUE = -1 };

typedef enum value_kind {
    VALUE_EMB,  /* the token embedding */
    VALUE_NULL, /* a learned vector, the same for every token: the null source of site `a` */
    VALUE_ZERO, /* zeros: stands for the output of a sublayer that does not run */
    VALUE_OUT,  /* what sublayer `a` (index in running order) returned */
    VALUE_ADD,  /* value a + value b */
    VALUE_SUB,  /* value a - value b */
} value_kind;

typedef struct depth_value {
    value_kind kind;
    int a, b; /* operands, see value_kind; always smaller indices than the value's own */
    int slot; /* storage: values that are never alive together share one. -1: none (NULL, ZERO) */
} depth_value;

typedef enum gate_kind {
    GATE_NONE,           /* gate = 1 */
    GATE_ALPHA,          /* one learned number */
    GATE_SIGMOID_SCALAR, /* sigmoid of one learned number */
    GATE_SIGMOID_VECTOR, /* sigmoid(W base + b), per token and channel; W [width, width], b [width]
                          */
} gate_kind;

/* An intervention on the routing of one site; keys and values are never edited, but for the
 * values of EDIT_MEAN_VALUE. Weights are edited after the softmax. Formulas: the statistics page,
 * Ablation. Pointers are host memory, read during the call. */
typedef enum edit_kind {
    EDIT_QUERY_SCALE, /* logits times `scale`: 1 changes nothing to the last bit, 0 is uniform */
    EDIT_MASK,        /* sources in `source` get weight 0, the rest is divided by its sum; a token
                         and head left with no weight is not edited, and counted */
    EDIT_MASK_RAW,    /* the same without the division; left alone and counted likewise */
    EDIT_UNIFORM,     /* 1 / sources */
    EDIT_HEAD_MEAN,   /* each head takes the mean over all heads, token by token */
    EDIT_TOKEN_MEAN,  /* each token takes `weights` [heads, sources] */
    EDIT_GIVEN,       /* the weights are those of `given` [rows, heads, sources] */
    EDIT_SWAP,        /* exchanges the weights of source[0] and source[1] */
    EDIT_MEAN_VALUE,  /* sources in `source` are mixed as their `mean` vector, whatever the token;
                         the weights come from the true values, or are those of `given` */
} edit_kind;

typedef struct depth_edit {
    edit_kind kind;
    const bool *head; /* [heads] the heads edited; NULL: all */
    size_t sources;
    const int *source;      /* [sources] positions in the site's list of sources. A mask of none
                               changes nothing to the last bit */
    float scale;            /* EDIT_QUERY_SCALE */
    const float *weights;   /* EDIT_TOKEN_MEAN: [heads, the site's sources] */
    const float *mean;      /* EDIT_MEAN_VALUE: [sources, width] */
    struct buffer *given;   /* EDIT_GIVEN: [rows, heads, the site's sources], of the backend;
                               EDIT_MEAN_VALUE: the same, or NULL. NULL with the other kinds */
    unsigned long *skipped; /* NULL, or added to: (token, head) pairs that a mask left alone */
} depth_edit;

typedef struct depth_site {
    int base;          /* value, or NO_VALUE */
    bool interpolates; /* in = base + gate * (mix - base): a gated site of a replacing mode */
    gate_kind gate;
    int sources;            /* number of sources; 0: in = base */
    const int *source;      /* [sources] values, oldest first (a null source, if any, before all) */
    bool null_source;       /* source[0] is a VALUE_NULL */
    const depth_edit *edit; /* NULL: none. With one there is no backward pass through the site */
} depth_site;

typedef struct depth_plan {
    size_t width; /* d */
    size_t heads; /* routing heads H; divides width */
    float eps;    /* of the keys' RMSNorm */
    size_t values;
    const depth_value *value; /* [values] in the order in which they are made */
    size_t slots;
    size_t sites;
    const depth_site *site; /* [sites] in reading order */
} depth_plan;

#ifdef __cplusplus
extern "C" {
#endif

/* Fails where the plan contradicts itself: heads that do not divide the width, a slot, operand,
 * base or source that is none. */
int depth_plan_check(const depth_plan *plan, status *st) MUST_USE;

/* Who uses a value, for the backward pass. */
typedef enum use_kind { USE_SOURCE, USE_BASE, USE_ADDED, USE_SUBTRACTED } use_kind;

typedef struct value_use {
    use_kind kind;
    size_t by;       /* the site, or for USE_ADDED and USE_SUBTRACTED the value */
    size_t position; /* USE_SOURCE: among the site's sources */
} value_use;

typedef struct value_uses {
    value_use *use; /* [total] those of value v at first[v] .. first[v + 1] - 1 */
    size_t *first;  /* [values + 1] */
    size_t total;
} value_uses;

/* Of a plan that depth_plan_check accepts. Can be cleared after a failure too. */
int value_uses_init(value_uses *uses, const depth_plan *plan, status *st) MUST_USE;
void value_uses_clear(value_uses *uses);

#ifdef __cplusplus
}
#endif

#endif
