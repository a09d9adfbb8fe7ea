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

typedef struct depth_site {
    int base;          /* value, or NO_VALUE */
    bool interpolates; /* in = base + gate * (mix - base): a gated site of a replacing mode */
    gate_kind gate;
    int sources;       /* number of sources; 0: in = base */
    const int *source; /* [sources] values, oldest first (a null source, if any, before all) */
    bool null_source;  /* source[0] is a VALUE_NULL */
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

#endif
