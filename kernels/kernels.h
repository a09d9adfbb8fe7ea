/* kernels.h - the whole compute interface: one table of functions per backend.
 *
 *     const kernels *k = kernels_find("cpu", &st);
 *     backend *device;
 *     if (k->open(&(backend_options){.threads = 2}, &device, &st)) ...
 *     buffer *x;
 *     if (k->buffer_create(device, bytes, &x, &st)) ...
 *     k->linear(device, &(linear_args){...}, &st);
 *
 * Nothing above this floor asks which backend runs. Rules every backend keeps:
 *   - activations are rows of tokens, packed: sequence b of a batch holds the rows
 *     start[b] .. start[b+1]-1; there is no padding anywhere;
 *   - floats are fp32 in host memory; a backend may compute in bf16 (`dtype`), sums of squares and
 *     softmax stay in fp32 or better;
 *   - the rows of a sequence do not depend on what else is in the batch, nor on the number of
 *     threads, to the last bit; optional outputs (NULL = not wanted) never change the others;
 *   - inputs are not written; an output may not overlap an input unless the comment says so;
 *   - functions return 0 or FAILED with `status` filled, and may return before the work is done:
 *     `download` and `host` wait for it.
 * Shapes in comments are row-major, [rows, columns].
 */
#ifndef FATHOM_KERNELS_H
#define FATHOM_KERNELS_H

#include "kernels/depth_plan.h"
#include "kernels/routing_sums.h"
#include "runtime/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct backend backend; /* one device with its memory, streams and threads */
typedef struct buffer buffer;   /* memory of one backend */
typedef struct depth depth;     /* the depth axis of one run: values, cached norms, sums */

typedef struct backend_options {
    size_t threads;     /* CPU threads; 0 = one per core */
    const char *device; /* "cpu" */
    const char *dtype;  /* "fp32" */
} backend_options;

/* The sequences of a batch. */
typedef struct batch_layout {
    size_t sequences;
    size_t rows;         /* tokens of all sequences */
    const size_t *start; /* [sequences + 1]; start[0] = 0, start[sequences] = rows */
} batch_layout;

typedef struct embed_args {
    size_t rows, width, vocabulary;
    const buffer *table; /* [vocabulary, width] */
    const buffer *id;    /* [rows] int32, 0 <= id < vocabulary (checked by the caller) */
    buffer *out;         /* [rows, width] */
} embed_args;

typedef enum norm_kind { NORM_RMS, NORM_LAYER } norm_kind;
typedef struct norm_args {
    norm_kind kind;
    size_t rows, width;
    float eps;
    const buffer *in;   /* [rows, width] */
    const buffer *gain; /* [width] */
    const buffer *bias; /* [width] or NULL */
    buffer *out;        /* [rows, width] */
} norm_args;

typedef struct linear_args {
    const batch_layout *layout; /* rows; tiles start at each sequence's first row */
    size_t in_width, out_width;
    const buffer *in;     /* [rows, in_width] */
    const buffer *weight; /* [out_width, in_width] */
    const buffer *bias;   /* [out_width] or NULL */
    buffer *out;          /* [rows, out_width] */
} linear_args;

/* Head RMSNorm of queries and keys (gains may be NULL: none), then rotary position embedding on
 * half-split pairs (i, i + rotary/2); positions count from 0 at each sequence's start. In place. */
typedef struct rotary_args {
    const batch_layout *layout;
    size_t query_heads, kv_heads, head_dim;
    size_t rotary;            /* leading channels of a head that rotate; even; 0: none */
    const buffer *cosine;     /* [positions, rotary/2] */
    const buffer *sine;       /* [positions, rotary/2]; positions >= the longest sequence */
    const buffer *query_gain; /* [head_dim] or NULL */
    const buffer *key_gain;   /* [head_dim] or NULL */
    float eps;
    buffer *qkv; /* [rows, (query_heads + 2 kv_heads) * head_dim]: queries, keys, values */
} rotary_args;

/* Causal attention inside each sequence, scale 1/sqrt(head_dim); query head h reads kv head
 * h / (query_heads / kv_heads). No [T, T] buffer beyond the optional pattern. */
typedef struct attention_args {
    const batch_layout *layout;
    size_t query_heads, kv_heads, head_dim;
    const buffer *qkv;        /* as in rotary_args */
    buffer *out;              /* [rows, query_heads * head_dim] */
    buffer *entropy;          /* [rows, query_heads] nats, or NULL */
    buffer *first_token_mass; /* [rows, query_heads] weight on position 0, or NULL */
    buffer *pattern;          /* NULL, or the weights: sequence b at element offset query_heads *
                                 sum_{c<b} T_c^2, shape [query_heads, T_b, T_b], zero above the
                                 diagonal */
} attention_args;

typedef struct swiglu_args {
    size_t rows, width;
    const buffer *gate_up; /* [rows, 2 width]: gate, up */
    buffer *out;           /* [rows, width] = silu(gate) * up */
} swiglu_args;

/* Output head and cross entropy in one; logits of all rows are never held unless wanted. */
typedef struct head_args {
    const batch_layout *layout;
    size_t width, vocabulary;
    const buffer *in;     /* [rows, width], after the final norm */
    const buffer *weight; /* [vocabulary, width] */
    const buffer *target; /* [rows] int32; -1: no loss for this row */
    buffer *loss;         /* [rows] nats; NaN where target is -1 */
    buffer *logits;       /* [rows, vocabulary] or NULL */
} head_args;

/* Magnitudes of each row of `in` [rows, width]; every output [rows], each may be NULL. */
typedef struct magnitude_args {
    size_t rows, width;
    const buffer *in;
    buffer *rms;            /* sqrt(mean of squares), squares summed in fp64 on the CPU */
    buffer *absmax;         /* largest |x|; NaN if any x is NaN */
    buffer *absmax_channel; /* int32: its first channel */
    buffer *median_abs;     /* the lower median of |x| (element (width-1)/2 in order) */
} magnitude_args;

/* Learned tensors of one site; NULL where the plan's site has none. */
typedef struct site_weights {
    const buffer *query;       /* [width] */
    const buffer *gain;        /* [width], of the keys' RMSNorm */
    const buffer *null_source; /* [width] */
    const buffer *gate;        /* [1] for ALPHA and SIGMOID_SCALAR; [width, width] for _VECTOR */
    const buffer *gate_bias;   /* [width] for _VECTOR, or NULL */
} site_weights;

typedef struct depth_options {
    const depth_plan *plan;      /* must outlive the depth object */
    const site_weights *weights; /* [plan->sites]; copied; the buffers must outlive the object */
    size_t max_rows, max_sequences;
} depth_options;

/* What a batch should sum besides the mixes. */
typedef struct depth_wants {
    bool sums;         /* routing sums per sequence and site */
    bool pairs;        /* with head_js and source_cos */
    size_t skip_first; /* leading positions of each sequence left out of the sums */
} depth_wants;

typedef struct depth_read_args {
    size_t site;
    buffer *in;      /* [rows, width]: what the sublayer reads */
    buffer *weights; /* [rows, heads, sources] or NULL */
} depth_read_args;

enum { KERNELS_ABI = 1 };

typedef struct kernels {
    unsigned abi;     /* KERNELS_ABI of the header it was built with */
    size_t size;      /* sizeof(kernels) likewise */
    const char *name; /* "cpu" */

    int (*open)(const backend_options *options, backend **device, status *st);
    void (*close)(backend *device);
    /* One line for `version` and recordings: "cpu, 2 threads, OpenBLAS 0.3.21 Zen". Owned by the
     * backend. */
    const char *(*describe)(const backend *device);

    /* Memory is 64-byte aligned and its content undefined; elements are 4 bytes (fp32 or int32). */
    int (*buffer_create)(backend *device, size_t bytes, buffer **out, status *st);
    void (*buffer_free)(backend *device, buffer *memory); /* NULL allowed */
    int (*upload)(backend *device, buffer *to, size_t offset, const void *from, size_t bytes,
                  status *st);
    int (*download)(backend *device, const buffer *from, size_t offset, void *to, size_t bytes,
                    status *st);
    /* A pointer to the buffer's bytes in host memory, all earlier work done, or NULL where memory
     * is the device's own (use download). */
    const void *(*host)(backend *device, const buffer *memory);

    int (*embed)(backend *device, const embed_args *args, status *st);
    int (*norm)(backend *device, const norm_args *args, status *st);
    int (*linear)(backend *device, const linear_args *args, status *st);
    int (*rotary)(backend *device, const rotary_args *args, status *st);
    int (*attention)(backend *device, const attention_args *args, status *st);
    int (*swiglu)(backend *device, const swiglu_args *args, status *st);
    int (*head)(backend *device, const head_args *args, status *st);
    int (*magnitude)(backend *device, const magnitude_args *args, status *st);

    /* The depth axis. Protocol for one batch, in the plan's order:
     *     depth_begin(d, layout, wants)
     *     write depth_storage(d, EMB value); depth_made(d, EMB value)
     *     for each sublayer: depth_read(d, its site) -> in; write depth_storage(d, its OUT value);
     *                        depth_made(d, OUT value)   (makes the ADD and SUB that follow)
     *     depth_read(d, final site)
     *     depth_sums(d, site, ...) for each site
     */
    int (*depth_create)(backend *device, const depth_options *options, depth **out, status *st);
    void (*depth_free)(depth *axis); /* NULL allowed */
    int (*depth_begin)(depth *axis, const batch_layout *layout, const depth_wants *wants,
                       status *st);
    /* The memory of a value [rows, width]: to be written (EMB, OUT) or, once made and until its
     * slot is used again, read. NULL for VALUE_NULL and VALUE_ZERO. */
    buffer *(*depth_storage)(depth *axis, size_t value);
    /* EMB or OUT `value` has been written: makes every ADD and SUB value that stands before the
     * next OUT in the plan, and caches the norms of what later sites read. */
    int (*depth_made)(depth *axis, size_t value, status *st);
    int (*depth_read)(depth *axis, const depth_read_args *args, status *st);
    /* The sums of one site, [sequences, layout.total] as routing_layout_of(heads, sources,
     * null_source, pairs) says, into host memory. Only after depth_read of that site. */
    int (*depth_sums)(depth *axis, size_t site, double *sums, status *st);
} kernels;

/* The table of a backend by name, "cpu"; NULL with `st` filled where there is none. */
const kernels *kernels_find(const char *name, status *st);

extern const kernels kernels_cpu;

#ifdef __cplusplus
}
#endif
#endif
