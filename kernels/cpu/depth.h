/* depth.h - the CPU's depth object, shared by depth.c (values) and depth_read.c (sites). */
#ifndef FATHOM_KERNELS_CPU_DEPTH_H
#define FATHOM_KERNELS_CPU_DEPTH_H

#include "kernels/cpu/cpu.h"

/* One value. Row r of the batch is at row + r * stride; what is cached of it at
 * rms[r * step], inverse_rms[r * step] and norm[r * step * heads]. A value that is the same for
 * every token (NULL, ZERO) has stride = step = 0 and one cached row. */
typedef struct value_state {
    bool source;  /* some site reads it as a source: its norms are cached */
    size_t index; /* its number among the sources, for the table of pairs */
    const float *row;
    size_t stride, step;
    float *rms;         /* [rows] sqrt(mean of squares) over the full width */
    float *inverse_rms; /* [rows] 1 / sqrt(mean of squares + eps) */
    float *norm;        /* [rows, heads] length of each head's slice */
} value_state;

typedef struct site_state {
    site_weights weights;
    float *folded;      /* [width] gain * query; NULL for a site without sources */
    bool read;          /* in this batch */
    double *sums;       /* [max_sequences, kept of its layout], allocated when first wanted */
    size_t sums_length; /* doubles of one sequence in `sums` */
} site_state;

struct depth {
    backend *device;
    const depth_plan *plan;
    size_t max_rows, max_sequences;
    buffer **slot;      /* [plan->slots] of [max_rows, width] */
    int *holds;         /* [plan->slots] the value made there last in this batch, or NO_VALUE */
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

    double *partial; /* [tiles, doubles] of the site being read */
    size_t partial_capacity;
};

enum { DEPTH_TILE = 32 }; /* rows of a tile: sequences of a few hundred tokens fill many threads */

/* Fills what is cached of rows first .. first + rows - 1 of a source. */
void cpu_depth_cache(const depth *axis, value_state *value, size_t first, size_t rows);

/* Whether a value is made and still in its slot. */
static inline bool cpu_depth_holds(const depth *axis, size_t value) {
    const int slot = axis->plan->value[value].slot;
    return slot < 0 || axis->holds[slot] == (int)value;
}

/* Number of an unordered pair of source indices. */
static inline size_t pair_index(size_t i, size_t j) {
    return i < j ? j * (j + 1) / 2 + i : i * (i + 1) / 2 + j;
}

#endif
