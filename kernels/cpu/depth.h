/* depth.h - the CPU's depth object: depth.c makes values, depth_read.c reads sites, depth_back.c
 * and depth_pull.c run both backward. */
#ifndef FATHOM_KERNELS_CPU_DEPTH_H
#define FATHOM_KERNELS_CPU_DEPTH_H

#include "kernels/cpu/cpu.h"

/* One value. Row r of the batch is at row + r * stride; what is cached of it at
 * rms[r * step], inverse_rms[r * step] and norm[r * step * heads]. A value that is the same for
 * every token (NULL, ZERO) has stride = step = 0 and one cached row. */
typedef struct value_state {
    buffer *lent; /* memory of the caller's that holds it in this batch, or NULL */
    bool source;  /* some site reads it as a source: its norms are cached */
    size_t index; /* its number among the sources, for the table of pairs */
    const float *row;
    size_t stride, step;
    float *rms;         /* [rows] sqrt(mean of squares) over the full width */
    float *inverse_rms; /* [rows] 1 / sqrt(mean of squares + eps) */
    float *norm;        /* [rows, heads] length of each head's slice */

    /* For the backward pass. */
    bool pulled;           /* in this batch */
    const buffer *d_value; /* where its gradient then is */
    buffer *gradient;      /* where one is written: mostly over the value itself */
    double *d_null;        /* [max_sequences, width] of a null source: summed over the tokens */
} value_state;

/* What a site keeps for the backward pass. */
typedef struct site_back {
    const buffer *in;   /* what depth_read gave: the mix where there is no base */
    const buffer *d_in; /* its gradient, once given in this batch; else NULL */
    buffer *mix;        /* with a base. Once given, of a gated site: the mix's gradient */
    buffer *gate;       /* of a vector gate. Once given: the gradient before its sigmoid */
    buffer *d_gated;    /* of a vector gate: what reaches the base through it */
    float *weight;      /* [rows, heads, sources] */
    float *product;     /* [rows, heads] <d_mix, mix> of a slice */
    double *d_folded;   /* [max_sequences, width] gradients summed over the tokens, */
    double *d_gate;     /* [max_sequences] that of a scalar gate */
} site_back;

typedef struct site_state {
    site_weights weights;
    float *folded;      /* [width] gain * query; NULL for a site without sources */
    bool read;          /* in this batch */
    double *sums;       /* [max_sequences, kept of its layout], allocated when first wanted */
    size_t sums_length; /* doubles of one sequence in `sums` */
    site_back *back;    /* NULL without backward */
} site_state;

typedef struct depth_uses depth_uses; /* who uses which value; depth_pull.c */

struct depth {
    backend *device;
    const depth_plan *plan;
    size_t max_rows, max_sequences;
    bool backward;
    bool own_slots;     /* a slot for each value: backward, or asked for */
    size_t slots;       /* the plan's, or one for each value */
    buffer **slot;      /* [slots] of [max_rows, width]; NULL where none is needed */
    int *holds;         /* [slots] the value made there last in this batch, or NO_VALUE */
    value_state *value; /* [plan->values] */
    site_state *site;   /* [plan->sites] */
    float *zero;        /* [width] of zeros: a VALUE_ZERO's row */
    size_t sources;     /* values that some site reads as a source */

    batch_layout layout; /* of this batch; `start` is the object's own copy */
    size_t *start;       /* [max_sequences + 1] */
    depth_wants wants;

    /* Cosines of sources do not depend on the site: each pair is summed once a batch. */
    bool *pair_known; /* [sources (sources + 1) / 2] */
    double *pair_sum; /* [pairs, max_sequences] */
    size_t *new_pair; /* [pairs, 2] source positions in the site being read, not yet known */

    void *partial; /* sums of each tile of the site being read or the value being pulled */
    size_t partial_bytes;

    depth_uses *uses; /* NULL without backward */
};

enum { DEPTH_TILE = 32 }; /* rows of a tile: sequences of a few hundred tokens fill many threads */

/* Fills what is cached of rows first .. first + rows - 1 of a source. */
void cpu_depth_cache(const depth *axis, value_state *value, size_t first, size_t rows);

/* The slot of a value; -1: none (NULL, ZERO). */
static inline int cpu_depth_slot(const depth *axis, size_t value) {
    const int slot = axis->plan->value[value].slot;
    return slot >= 0 && axis->own_slots ? (int)value : slot;
}

/* Whether a value is made and still in its slot. */
static inline bool cpu_depth_holds(const depth *axis, size_t value) {
    const int slot = cpu_depth_slot(axis, value);
    return slot < 0 || axis->holds[slot] == (int)value;
}

/* axis->partial with room for `bytes`; NULL with `st` filled without memory. */
void *cpu_depth_partial(depth *axis, size_t bytes, status *st);

/* The number that a scalar gate is; 1 without one. */
float cpu_depth_gate(const depth_site *planned, const site_weights *weights);

/* Whether the mix goes through a gate, so that its gradient is not the site's. */
static inline bool cpu_depth_gated(const depth_site *planned) {
    return planned->base != NO_VALUE && planned->sources > 0 && planned->gate != GATE_NONE;
}

/* What values and sites keep for the backward pass: made once their slots are there, freed (all
 * may be NULL), and forgotten at the start of a batch. */
int cpu_depth_back_create(depth *axis, status *st) MUST_USE;
void cpu_depth_back_free(depth *axis);
void cpu_depth_back_begin(depth *axis);
int cpu_depth_uses_create(depth *axis, status *st) MUST_USE;
void cpu_depth_uses_free(depth_uses *uses);

/* Number of an unordered pair of source indices. */
static inline size_t pair_index(size_t i, size_t j) {
    return i < j ? j * (j + 1) / 2 + i : i * (i + 1) / 2 + j;
}

#endif
