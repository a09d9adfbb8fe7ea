/* kernels.h - the whole compute interface: one table of functions per backend.
 *
 *     const kernels *k = kernels_find("cpu", &st);
 *     backend *device;
 *     if (k->open(&(backend_options){.threads = 2}, &device, &st)) ...
 *     buffer *x;
 *     if (k->buffer_create(device, BUFFER_REAL, elements, &x, &st)) ...
 *     k->linear(device, &(linear_args){...}, &st);
 *
 * Nothing above this floor asks which backend runs. Rules every backend keeps:
 *   - activations are rows of tokens, packed: sequence b of a batch holds the rows
 *     start[b] .. start[b+1]-1; there is no padding anywhere;
 *   - memory is counted in elements. BUFFER_REAL holds activations and matrices in the numbers the
 *     backend computes in (`dtype`: fp32 or bf16), BUFFER_EXACT holds fp32 or int32 as they are:
 *     vectors of weights, ids, norms, losses, routing weights, logits, summed gradients. In the
 *     comments below [rows, width] activations, their gradients and weight matrices are REAL, all
 *     else is EXACT. In host memory all floats are fp32: copies convert;
 *   - sums of squares and softmax stay in fp32 or better;
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
    const char *device; /* "cpu", "cuda", "cuda:1"; kernels_open: also "auto" */
    const char *dtype;  /* "fp32"; CUDA: also "bf16" */
} backend_options;

typedef enum buffer_kind { BUFFER_REAL, BUFFER_EXACT } buffer_kind;

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
    buffer *rms;        /* NORM_RMS: [rows] as magnitude's, or NULL */
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
 * half-split pairs (i, i + rotary/2); positions count from 0 at each sequence's start. Values are
 * copied. */
typedef struct rotary_args {
    const batch_layout *layout;
    size_t query_heads, kv_heads, head_dim;
    size_t rotary;            /* leading channels of a head that rotate; even; 0: none */
    const buffer *cosine;     /* [positions, rotary/2] */
    const buffer *sine;       /* [positions, rotary/2]; positions >= the longest sequence */
    const buffer *query_gain; /* [head_dim] or NULL */
    const buffer *key_gain;   /* [head_dim] or NULL */
    float eps;
    const buffer *in; /* [rows, (query_heads + 2 kv_heads) * head_dim]: queries, keys, values */
    buffer *out;      /* the same shape; may be `in` */
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

/* ---- backward ----
 * Gradients of the SUM of the token losses of each sequence. `d_NAME` is the gradient of an
 * activation and is overwritten; `grad_NAME` is the gradient of a learned tensor and is added to:
 * sequence by sequence in the batch's order, so that the result does not depend on how sequences
 * were batched. NULL grads are not wanted. Inputs are those of the forward call. */
typedef struct embed_back_args {
    const batch_layout *layout;
    size_t width, vocabulary;
    const buffer *id;    /* [rows] */
    const buffer *d_out; /* [rows, width] */
    buffer *grad_table;  /* [vocabulary, width] */
} embed_back_args;

typedef struct norm_back_args { /* NORM_RMS */
    const batch_layout *layout;
    size_t width;
    float eps;
    const buffer *in, *gain; /* [rows, width], [width] */
    const buffer *d_out;     /* [rows, width] */
    buffer *d_in;            /* [rows, width]; may be d_out */
    buffer *grad_gain;       /* [width] */
} norm_back_args;

typedef struct linear_back_args {
    const batch_layout *layout;
    size_t in_width, out_width;
    const buffer *in, *weight; /* [rows, in_width], [out_width, in_width] */
    const buffer *d_out;       /* [rows, out_width] */
    buffer *d_in;              /* [rows, in_width] */
    buffer *grad_weight;       /* [out_width, in_width] */
    buffer *grad_bias;         /* [out_width] */
} linear_back_args;

typedef struct rotary_back_args {
    const rotary_args *forward;              /* its `out` is not read */
    const buffer *d_out;                     /* the shape of forward->in */
    buffer *d_in;                            /* may be d_out */
    buffer *grad_query_gain, *grad_key_gain; /* [head_dim] */
} rotary_back_args;

typedef struct attention_back_args {
    const batch_layout *layout;
    size_t query_heads, kv_heads, head_dim;
    const buffer *qkv;   /* [rows, (query_heads + 2 kv_heads) * head_dim], after rotary */
    const buffer *out;   /* [rows, query_heads * head_dim], the forward's */
    const buffer *d_out; /* [rows, query_heads * head_dim] */
    buffer *d_qkv;       /* the shape of qkv */
} attention_back_args;

typedef struct swiglu_back_args {
    size_t rows, width;
    const buffer *gate_up; /* [rows, 2 width] */
    const buffer *d_out;   /* [rows, width] */
    buffer *d_gate_up;     /* [rows, 2 width]; may be gate_up */
} swiglu_back_args;

/* The gradient of the sum of the losses of all rows with a target. */
typedef struct head_back_args {
    const batch_layout *layout;
    size_t width, vocabulary;
    const buffer *in, *weight, *target; /* as in head_args */
    buffer *d_in;                       /* [rows, width] */
    buffer *grad_weight;                /* [vocabulary, width] */
} head_back_args;

/* Gradients of a site's learned tensors, shaped like them; NULL: the site has none, or not wanted.
 */
typedef struct site_grads {
    buffer *query, *gain, *null_source, *gate, *gate_bias;
} site_grads;

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
    bool backward; /* keeps every value and every site's weights until the next depth_begin */
    bool keep;     /* keeps every value until the next depth_begin: each has memory of its own */
} depth_options;

/* What a batch should sum besides the mixes. */
typedef struct depth_wants {
    bool sums;         /* routing sums per sequence and site */
    bool pairs;        /* with head_js and source_cos */
    size_t skip_first; /* leading positions of each sequence left out of the sums */
} depth_wants;

typedef struct depth_read_args {
    size_t site;
    buffer *in;      /* [rows, width]: what the sublayer reads; with `backward` the caller leaves it
                        as it is until the backward pass is over */
    buffer *weights; /* [rows, heads, sources] or NULL: as they were used, edits included */
} depth_read_args;

/* A site under other folded queries (gain * query); sources and everything else as they are. */
typedef struct depth_alternative_args {
    size_t site, count;
    const buffer *folded; /* [count, width] */
    const bool *sequence; /* [sequences] true: wanted; the others' results are 0. NULL: all */
    bool pairs;           /* the layout below has head_js and source_cos */
    double *sums;         /* [count, sequences, layout.total] in host memory, or NULL; the layout is
                             routing_layout_of(heads, sources, null_source, pairs). Only what
                             routing_sums_add_weights sums is filled, the rest is 0 */
    double *variance;     /* [count, sequences, heads] in host memory, or NULL: sum over tokens of
                             the population variance over the sources of the logits */
} depth_alternative_args;

enum { KERNELS_ABI = 4 };

typedef struct kernels {
    unsigned abi;     /* KERNELS_ABI of the header it was built with */
    size_t size;      /* sizeof(kernels) likewise */
    const char *name; /* "cpu" */
    size_t rows;      /* tokens of a batch that keep the device busy */

    int (*open)(const backend_options *options, backend **device, status *st);
    void (*close)(backend *device);
    /* One line for `version` and recordings: "cpu, 2 threads, OpenBLAS 0.3.21 Zen". Owned by the
     * backend. */
    const char *(*describe)(const backend *device);

    /* Bytes of a BUFFER_REAL element: 4, or 2. */
    size_t (*real_size)(const backend *device);
    /* Bytes that can still be allocated; of the CPU's memory half is left to everything else. */
    size_t (*memory_left)(backend *device);

    /* Memory is 64-byte aligned and its content undefined. */
    int (*buffer_create)(backend *device, buffer_kind kind, size_t elements, buffer **out,
                         status *st);
    /* `elements` of `whole` from `offset` on, a multiple of 64, as a buffer of its own; to be freed
     * before `whole`. */
    int (*buffer_part)(backend *device, buffer *whole, size_t offset, size_t elements, buffer **out,
                       status *st);
    void (*buffer_free)(backend *device, buffer *memory); /* NULL allowed */
    /* `count` elements from `offset` on, to and from 4-byte elements in host memory. */
    int (*upload)(backend *device, buffer *to, size_t offset, const void *from, size_t count,
                  status *st);
    int (*download)(backend *device, const buffer *from, size_t offset, void *to, size_t count,
                    status *st);
    /* A pointer to the buffer's 4-byte elements in host memory, all earlier work done, or NULL
     * where memory is the device's own: then use download, or fetch. */
    const void *(*host)(backend *device, const buffer *memory);
    /* As download, but may return before the copy is done: it reads what the work submitted so far
     * leaves in `from`, and is over after `wait`. Later work that writes `from` waits for it. `to`
     * lies in memory of host_create. Only where `host` gives NULL; NULL itself where it never
     * does. */
    int (*fetch)(backend *device, const buffer *from, size_t offset, void *to, size_t count,
                 status *st);
    int (*wait)(backend *device, status *st); /* for all work submitted so far, copies included */
    int (*host_create)(backend *device, size_t bytes, void **out, status *st);
    void (*host_free)(backend *device, void *memory); /* NULL allowed */

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
    /* Instead of writing depth_storage(value): EMB or OUT `value` is what `memory` [rows, width]
     * holds, for this batch; from then on depth_storage gives `memory`. It is read until the last
     * site that needs it, and not written. depth_made follows as usual. Not with `backward`. */
    int (*depth_lend)(depth *axis, size_t value, buffer *memory, status *st);
    /* EMB or OUT `value` has been written: makes every ADD and SUB value that stands before the
     * next OUT in the plan, and caches the norms of what later sites read. */
    int (*depth_made)(depth *axis, size_t value, status *st);
    int (*depth_read)(depth *axis, const depth_read_args *args, status *st);
    /* The sums of one site, [sequences, layout.total] as routing_layout_of(heads, sources,
     * null_source, pairs) says, into host memory. Only after depth_read of that site. Where `host`
     * gives NULL, as fetch: into memory of host_create, over after `wait`. */
    int (*depth_sums)(depth *axis, size_t site, double *sums, status *st);
    /* Routing sums of a site under other queries, over the tokens from position wants.skip_first
     * on; nothing of the run changes. As long as the site's sources are there: right after its
     * depth_read. The rows filled are those of depth_sums to the last bit where the query is the
     * site's own. */
    int (*depth_alternative)(depth *axis, const depth_alternative_args *args, status *st);

    int (*embed_back)(backend *device, const embed_back_args *args, status *st);
    int (*norm_back)(backend *device, const norm_back_args *args, status *st);
    int (*linear_back)(backend *device, const linear_back_args *args, status *st);
    int (*rotary_back)(backend *device, const rotary_back_args *args, status *st);
    int (*attention_back)(backend *device, const attention_back_args *args, status *st);
    int (*swiglu_back)(backend *device, const swiglu_back_args *args, status *st);
    int (*head_back)(backend *device, const head_back_args *args, status *st);

    /* The depth axis backward, after a whole forward of the batch, with depth_options.backward:
     *     depth_give(d, final site, d_in)
     *     for each sublayer, last first: depth_pull(d, its OUT) -> d_out; its backward -> d_in;
     *                                    depth_give(d, its site, d_in)
     *     depth_pull(d, EMB) -> d_emb
     *     depth_site_grads(d, site, grads) for each site
     * Each value's gradient is written once, from all its later readers (pull order): with a the
     * weights, l the logits, D_s = <dO_s, O_s> per head and r = 1/rms(v),
     *     dl_s = a_s (<v, dO_s> - D_s),
     *     dv = sum over readers s of [a_s dO_s + dl_s r u_s - (sum over heads of dl_s l_s) r^2 v/d]
     * plus what flows through bases, gates, ADD and SUB. */
    /* `d_in` [rows, width]: gradient of what the site gave, from its one reader. It is copied or
     * kept: the caller must not change it before the backward pass is over. */
    int (*depth_give)(depth *axis, size_t site, const buffer *d_in, status *st);
    /* The total gradient of a value [rows, width], through every later reader; all sites that come
     * after it must have been given. Owned by the depth object or the caller's d_in, valid until
     * the next depth_begin. What depth_storage gives may be written over. */
    int (*depth_pull)(depth *axis, size_t value, const buffer **d_value, status *st);
    /* Adds the batch's gradients of one site's learned tensors, sequence by sequence. After the
     * pull of EMB. */
    int (*depth_site_grads)(depth *axis, size_t site, const site_grads *grads, status *st);
} kernels;

/* The table of a backend by name, "cpu" or "cuda"; NULL with `st` filled where there is none.
 * "cuda" is in fathom-cuda.so, which is opened when first asked for: beside the program, in
 * ../lib/fathom from there, or in the folder that the environment's FATHOM_PLUGINS names. */
const kernels *kernels_find(const char *name, status *st);

/* Opens a device: "cpu", "cuda", "cuda:N", or "auto", the default: the GPU, or the CPU where there
 * is none, or none with memory for `elements` REAL ones, of a model's weights; a note then says
 * why.
 */
int kernels_open(const backend_options *options, size_t elements, const kernels **k,
                 backend **device, status *st);

extern const kernels kernels_cpu;

/* What a plug-in exports by the name KERNELS_ENTRY: its table and the build it is of. */
#define KERNELS_ENTRY fathom_kernels
typedef const kernels *kernels_entry(const char **build);

#ifdef __cplusplus
}
#endif
#endif
