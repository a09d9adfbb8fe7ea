/* depth.h - the CUDA backend's depth object, as cpu/depth.h is the CPU's: depth.cu makes values,
 * depth_read.cu reads sites in one pass, depth_weigh.cu in three (any width, edited weights),
 * depth_sums.cu has the statistics, depth_back.cu and depth_pull.cu run it backward.
 *
 * Nothing waits for the device but depth_sums and depth_alternative, whose results go to the host.
 * Kernels find a value through `view`, a table in device memory; where a value's memory changes
 * (depth_lend) a kernel of one thread changes its entry, in the order of the stream.
 */
#ifndef FATHOM_KERNELS_CUDA_DEPTH_H
#define FATHOM_KERNELS_CUDA_DEPTH_H

#include "kernels/cuda/cuda.h"

/* What kernels know of a value. Row r is at row + r * stride elements; what is cached of it at
 * r * step, of its heads from r * step * heads on. Values that are the same for every token (NULL,
 * ZERO) have stride = step = 0. */
typedef struct value_view {
    void *row;
    float *inverse_rms; /* 1 / sqrt(mean of squares + eps); NULL where no site reads the value */
    float *rms;         /* sqrt(mean of squares) */
    float *norm;        /* [heads] length of each head's slice */
    unsigned stride, step;
    int index; /* its number among the sources */
} value_view;

/* One value to be made of a row: norms, and before them a + b or a - b. */
typedef struct make_step {
    int value, a, b; /* a = NO_VALUE: its rows are there */
    int subtract;
} make_step;

typedef struct value_state {
    buffer *lent;     /* memory of the caller's that holds it in this batch, or NULL */
    bool source;      /* some site reads it as a source: its norms are cached */
    size_t index;     /* its number among the sources, for the table of pairs */
    value_view view;  /* the host's copy */
    make_step *steps; /* device memory: what depth_made makes, this value first (EMB, OUT) */
    size_t step_count;

    /* For the backward pass. */
    bool pulled;           /* in this batch */
    const buffer *d_value; /* where its gradient then is */
    buffer *gradient;      /* where one is written: mostly over the value itself */
    float *d_null;         /* [width] of a null source: summed over the tokens of the batch */
} value_state;

/* What a site keeps for the backward pass. */
typedef struct site_back {
    const buffer *in;   /* what depth_read gave: the mix where there is no base */
    const buffer *d_in; /* its gradient, once given in this batch; else NULL */
    buffer *mix;        /* with a base. Once given, of a gated site: the mix's gradient */
    buffer *gate;       /* of a vector gate. Once given: the gradient before its sigmoid */
    buffer *d_gated;    /* of a vector gate: what reaches the base through it */
    float *logit;       /* [sources, max_rows, heads] */
    float *lse;         /* [rows, heads] logarithm of the sum of exp(logit) */
    float *product;     /* [rows, heads] <d_mix, mix> of a slice */
    void *edge;         /* real: dl / rms of each source, [sources, heads, edge_rows] */
    float *d_folded;    /* [width] the query's gradient before the gain, summed over the batch */
    float *d_gate;      /* [1] that of a scalar gate */
} site_back;

typedef struct site_state {
    site_weights weights;
    float *folded; /* [width] gain * query; NULL for a site without sources */
    int *source;   /* the plan's list, in device memory */
    bool read;     /* in this batch */
    double *sums;  /* device: [max_sequences, layout.total], made when first wanted */
    size_t sums_length;
    const void *kernel; /* of depth_read.cu, chosen by the shape; NULL: depth_weigh.cu */
    unsigned grid, block;
    size_t shared;
    float *edit_scale; /* [heads] of EDIT_QUERY_SCALE */
    site_back *back;   /* NULL without backward */
} site_state;

/* What the kernels of the backward pass know of a site. */
typedef struct back_view {
    const void *d_mix; /* [rows, width] real, once given */
    const float *logit, *lse, *product, *folded;
    const void *folded_real; /* folded in the backend's numbers */
    void *edge;
    float *d_folded;
} back_view;

/* The sites that have queries to train and what they read, for depth_queries.cu. Device memory. */
typedef struct depth_queries {
    bool fit; /* the backend's numbers and the plan's shape; else depth_pull.cu sums as it goes */
    size_t sites, values;
    int *value;        /* [values] */
    const void **edge; /* [values, sites] where a site keeps a value's, NULL: does not read it */
    float **d_folded;  /* [sites] */
} depth_queries;

typedef struct depth_uses depth_uses; /* who uses which value; depth_pull.cu */

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
    value_view *view;   /* device: [plan->values] */
    void *zero;         /* device: a VALUE_ZERO's row and norms */
    size_t sources;     /* values that some site reads as a source */
    void **memory;      /* every piece of device memory, freed with the object */
    size_t memory_count, memory_room;

    bool lent;           /* some value is, in this batch */
    batch_layout layout; /* of this batch; `start` is the object's own copy */
    size_t *start;       /* [max_sequences + 1] */
    depth_wants wants;

    /* Cosines of sources do not depend on the site: each pair is summed once a batch. */
    bool *pair_known; /* [sources (sources + 1) / 2] */
    double *pair_sum; /* device: [pairs, max_sequences] */
    int *new_pair;    /* host: [pairs, 3] values of a pair and its number */

    depth_uses *uses; /* NULL without backward */
    back_view *back;  /* device: [plan->sites] */
    size_t edge_rows; /* max_rows in whole groups of 8 */
    depth_queries queries;
    bool queries_summed; /* in this batch */
};

/* Zeroed device memory that lives as long as the object. */
int depth_memory(depth *axis, size_t count, size_t size, void **out, status *st);

/* The slot of a value; -1: none (NULL, ZERO). */
static inline int depth_slot(const depth *axis, size_t value) {
    const int slot = axis->plan->value[value].slot;
    return slot >= 0 && axis->own_slots ? (int)value : slot;
}

/* Whether a value is made and still in its slot. */
static inline bool depth_holds(const depth *axis, size_t value) {
    const int slot = depth_slot(axis, value);
    return slot < 0 || axis->holds[slot] == (int)value;
}

/* Whether the mix goes through a gate, so that its gradient is not the site's. */
static inline bool depth_gated(const depth_site *planned) {
    return planned->base != NO_VALUE && planned->sources > 0 && planned->gate != GATE_NONE;
}
static inline bool depth_gated_by_vector(const depth_site *planned) {
    return depth_gated(planned) && planned->gate == GATE_SIGMOID_VECTOR;
}

/* Number of an unordered pair of source indices. */
static inline size_t depth_pair(size_t i, size_t j) {
    return i < j ? j * (j + 1) / 2 + i : i * (i + 1) / 2 + j;
}

/* How a site's input is made of its mix: what the last lines of both ways of reading do. */
typedef struct site_end {
    void *in;            /* [rows, width] real */
    void *mix;           /* [rows, width] real, or NULL */
    float *mix_exact;    /* [rows, width], or NULL */
    const void *base;    /* NULL: in = mix */
    const void *gate;    /* of a vector gate: [rows, width] real, or [width] with gate_stride 0 */
    const float *scalar; /* the number of a scalar gate */
    unsigned base_stride, gate_stride;
    int sigmoid, interpolates;
} site_end;

/* The arguments of the kernels that read a site. */
typedef struct site_read {
    const value_view *view;
    const int *source; /* [sources] */
    const float *folded;
    const float *scale; /* [heads] factors of the logits, or NULL */
    size_t rows;
    int width, heads, slice, sources;
    float *weights; /* [rows, heads, sources] or NULL */
    float *logit;   /* [sources, logit_rows, heads] or NULL */
    float *lse;     /* [rows, heads] with logit */
    size_t logit_rows;
    site_end end;
} site_read;

/* depth_read.cu: chooses the site's kernel. */
int depth_read_choose(depth *axis, size_t site, status *st);
/* The site's kernel, where it has one; end.in NULL: only weights and logits are wanted. */
int depth_read_launch(const depth *axis, size_t site, const site_read *args, status *st);
/* depth_weigh.cu: the weights [rows, heads, sources] (and logit, lse) of args, before edits;
 * `variance` [rows, heads] of the logits over the sources, or NULL. */
int depth_weigh(depth *axis, const site_read *args, double *variance, status *st);
/* Edits args->weights as `edit` says. */
int depth_edit_weights(depth *axis, const site_read *args, const depth_edit *edit, status *st);
/* The mix under args->weights, and what args->end wants of it. `means`: of EDIT_MEAN_VALUE. */
int depth_mix(depth *axis, const site_read *args, const depth_edit *means, status *st);
/* depth_sums.cu: what a batch with sums needs before it, of scratch at each site, and after a read:
 * the sums of the site, from its weights and `mix` [rows, width] fp32. */
int depth_sums_begin(depth *axis, status *st);
size_t depth_sums_bytes(const depth *axis, size_t site);
int depth_sums_add(depth *axis, size_t site, const float *weights, const float *mix, void *scratch,
                   status *st);

/* depth_back.cu, depth_pull.cu */
int depth_back_create(depth *axis, status *st);
void depth_back_free(depth *axis);
int depth_back_begin(depth *axis, status *st);
int depth_uses_create(depth *axis, status *st);
void depth_uses_free(depth_uses *uses);
/* depth_queries.cu: once everything is pulled, every site's d_folded. */
int depth_queries_create(depth *axis, status *st);
int depth_queries_run(depth *axis, status *st);
/* sigmoid(W base + b) of every row, or of one where the base is the same for all. */
int depth_vector_gate(depth *axis, size_t site, void *gate, status *st);
/* to [width] += the columns of `from` [rows, width] real, summed. `partial`: scratch of
 * depth_column_bytes. */
size_t depth_column_bytes(const depth *axis);
int depth_add_columns(depth *axis, const void *from, float *to, float *partial, status *st);

/* Launches a kernel that begins with wait_for_earlier: on cards that can, its blocks start, and
 * read the object's tables, while the kernel before it in the stream ends. Not where a value is
 * lent, for then the tables change. */
int depth_launch(const depth *axis, const void *kernel, dim3 grid, unsigned block, size_t shared,
                 void **parameters, const char *what, status *st);

/* ---- device code ---- */

/* Before anything is read that an earlier kernel has written, and before anything is written. */
static __device__ __forceinline__ void wait_for_earlier() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
static __device__ __forceinline__ void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* N elements from p as floats; N is 8 (p 16-byte aligned) or 1. */
template <int N> static __device__ __forceinline__ void load(const float *p, float (&x)[N]) {
    if constexpr (N == 8) {
        const float4 a = reinterpret_cast<const float4 *>(p)[0];
        const float4 b = reinterpret_cast<const float4 *>(p)[1];
        x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
        x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
    } else {
        x[0] = *p;
    }
}
static __device__ __forceinline__ void widen(uint4 w, float (&x)[8]) {
    x[0] = __uint_as_float(w.x << 16), x[1] = __uint_as_float(w.x & 0xffff0000u);
    x[2] = __uint_as_float(w.y << 16), x[3] = __uint_as_float(w.y & 0xffff0000u);
    x[4] = __uint_as_float(w.z << 16), x[5] = __uint_as_float(w.z & 0xffff0000u);
    x[6] = __uint_as_float(w.w << 16), x[7] = __uint_as_float(w.w & 0xffff0000u);
}
template <int N>
static __device__ __forceinline__ void load(const __nv_bfloat16 *p, float (&x)[N]) {
    if constexpr (N == 8)
        widen(*reinterpret_cast<const uint4 *>(p), x);
    else
        x[0] = __bfloat162float(*p);
}
template <int N> static __device__ __forceinline__ void store(float *p, const float (&x)[N]) {
    if constexpr (N == 8) {
        reinterpret_cast<float4 *>(p)[0] = make_float4(x[0], x[1], x[2], x[3]);
        reinterpret_cast<float4 *>(p)[1] = make_float4(x[4], x[5], x[6], x[7]);
    } else {
        *p = x[0];
    }
}
static __device__ __forceinline__ unsigned narrow(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const unsigned *>(&pair);
}
template <int N>
static __device__ __forceinline__ void store(__nv_bfloat16 *p, const float (&x)[N]) {
    if constexpr (N == 8)
        *reinterpret_cast<uint4 *>(p) = make_uint4(narrow(x[0], x[1]), narrow(x[2], x[3]),
                                                   narrow(x[4], x[5]), narrow(x[6], x[7]));
    else
        *p = __float2bfloat16(x[0]);
}

/* Sum, or largest, over groups of `lanes` (a power of 2) neighbouring lanes; the same in each. */
template <typename number>
static __device__ __forceinline__ number sum_lanes(number x, int lanes = 32) {
    for (int o = lanes / 2; o; o >>= 1)
        x += __shfl_xor_sync(0xffffffffu, x, o);
    return x;
}
static __device__ __forceinline__ float most_lanes(float x, int lanes = 32) {
    for (int o = lanes / 2; o; o >>= 1)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, o));
    return x;
}

/* What becomes of N channels of a row's mix, the first of them channel `at`. */
template <typename real, int N>
static __device__ __forceinline__ void end_site(const site_end &end, size_t row, size_t width,
                                                size_t at, const float (&mix)[N]) {
    const size_t cell = row * width + at;
    if (end.mix)
        store<N>(static_cast<real *>(end.mix) + cell, mix);
    if (end.mix_exact)
        store<N>(end.mix_exact + cell, mix);
    if (!end.base) {
        store<N>(static_cast<real *>(end.in) + cell, mix);
        return;
    }
    float base[N], gate[N], out[N];
    load<N>(static_cast<const real *>(end.base) + row * end.base_stride + at, base);
    if (end.gate) {
        load<N>(static_cast<const real *>(end.gate) + row * end.gate_stride + at, gate);
    } else {
        float number = end.scalar ? *end.scalar : 1.0f;
        if (end.sigmoid)
            number = 1.0f / (1.0f + expf(-number));
#pragma unroll
        for (int i = 0; i < N; i++)
            gate[i] = number;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        out[i] = base[i] + gate[i] * (end.interpolates ? mix[i] - base[i] : mix[i]);
    store<N>(static_cast<real *>(end.in) + cell, out);
}

#endif
