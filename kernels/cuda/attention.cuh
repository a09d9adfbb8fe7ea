/* attention.cuh - what the attention kernels share: shapes, a block's place, launchers by file. */
#ifndef FATHOM_KERNELS_CUDA_ATTENTION_CUH
#define FATHOM_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/cuda.h"

enum { ATTENTION_WIDEST = 256 /* channels of a head */ };

typedef struct attention_shape {
    const int *start; /* [sequences + 1] on the device */
    int sequences, rows, longest;
    int heads, kv_heads, dim;
    int tiles; /* of the longest sequence, set by each launch */
    float scale;
} attention_shape;

/* Beside the output; each may be NULL. */
typedef struct attention_extras {
    float *entropy, *first_token_mass; /* [rows, heads] */
    float *log_sum;                    /* [heads, rows] nats: log of the sum of exp of the scores */
} attention_extras;

/* One block's work: a tile of rows of a sequence, and a head. */
typedef struct attention_block {
    int head, tile, length; /* `length`: rows of the sequence */
    size_t first;           /* its first row */
} attention_block;

/* Heads that share keys run side by side, then sequences; of their tiles the costly ones start
 * first: the last queries see most keys (`last_first`), the first keys are seen by most queries. */
__device__ __forceinline__ attention_block attention_place(const attention_shape &shape, int heads,
                                                           bool last_first) {
    const int id = (int)blockIdx.x / heads, tile = id / shape.sequences;
    const int sequence = id % shape.sequences, first = shape.start[sequence];
    attention_block at;
    at.head = (int)blockIdx.x % heads;
    at.tile = last_first ? shape.tiles - 1 - tile : tile;
    at.length = shape.start[sequence + 1] - first;
    at.first = (size_t)first;
    return at;
}

__device__ __forceinline__ size_t qkv_stride(const attention_shape &shape) {
    return (size_t)(shape.heads + 2 * shape.kv_heads) * (size_t)shape.dim;
}
/* First channel of a query head, or of the key or value head that it reads. */
__device__ __forceinline__ size_t query_channel(const attention_shape &shape, int head) {
    return (size_t)head * (size_t)shape.dim;
}
__device__ __forceinline__ size_t key_channel(const attention_shape &shape, int kv_head) {
    return (size_t)(shape.heads + kv_head) * (size_t)shape.dim;
}
__device__ __forceinline__ size_t value_channel(const attention_shape &shape, int kv_head) {
    return (size_t)(shape.heads + shape.kv_heads + kv_head) * (size_t)shape.dim;
}

/* Sets shape->tiles and gives the number of blocks; 0 with `st` filled where that is too many. */
unsigned attention_blocks(attention_shape *shape, int tile_rows, int heads, status *st);
/* Raises a kernel's limit of shared memory. */
int attention_shared(backend *device, const void *kernel, size_t bytes, status *st);

/* Checks the forward's arguments but `pattern`; fills *shape. attention.cu */
int attention_check(backend *device, const attention_args *args, attention_shape *shape,
                    status *st);

/* What the backward reads and writes, in numbers of type `real`. */
template <typename real> struct attention_back_buffers {
    const real *qkv, *out, *d_out;
    float *log_sum, *along; /* scratch [heads, rows]: logs of the sums, <d_out, out> */
    real *d_qkv;
};

/* attention_fp32.cu */
int attention_fp32(backend *device, attention_shape shape, const float *qkv, float *out,
                   const attention_extras *extras, status *st);
int attention_back_fp32(backend *device, attention_shape shape,
                        const attention_back_buffers<float> &at, status *st);

#endif
