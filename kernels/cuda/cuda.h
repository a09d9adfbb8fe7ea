/* cuda.h - what the operations of the CUDA backend share; one file per operation, as in cpu/.
 *
 * Files are CUDA C++ with C linkage at the table. A launcher checks its arguments, launches on
 * device->stream, checks the launch with cuda_launched, and never synchronises. Kernels are
 * templates over `real`, the type of BUFFER_REAL elements (float or __nv_bfloat16); arithmetic is
 * fp32 or better. Nothing depends on timing or on atomics whose order matters: results are the same
 * bits in every run.
 */
#ifndef FATHOM_KERNELS_CUDA_CUDA_H
#define FATHOM_KERNELS_CUDA_CUDA_H

/* CUDA's own first: its headers have variables named `status`, which would shadow ours. */
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/kernels.h"

struct buffer {
    void *data; /* device memory, 256-byte aligned */
    size_t elements;
    bool real;    /* BUFFER_REAL: elements are `real`; else 4 bytes */
    bool borrows; /* data belongs to another buffer */
};

/* The layout of the batch at work, on the device. */
typedef struct device_layout {
    size_t sequences, rows, longest;
    const int *start;    /* [sequences + 1] */
    const int *sequence; /* [rows] the sequence of each row */
} device_layout;

struct backend {
    int ordinal;
    bool bf16; /* `real` is __nv_bfloat16 */
    cudaDeviceProp properties;
    cudaStream_t stream;      /* all computing */
    cudaStream_t copy_stream; /* fetches */
    cublasLtHandle_t blas;
    struct gemm_cache *gemm; /* of linear.cu: products prepared before */
    void *scratch;           /* of the operation at work, see cuda_scratch */
    size_t scratch_bytes;
    struct cuda_state *state; /* of backend.cu: the arena, staging memory, the layout at work */
};

/* DONE, or FAILED with `what` and CUDA's text. */
int cuda_ok(cudaError_t error, const char *what, status *st);
/* After a launch: the same for cudaGetLastError(). */
int cuda_launched(const char *what, status *st);

/* `bytes` of the backend's arena, 256-byte aligned, content undefined; freed memory is used again
 * after the work that was submitted before. NULL may be freed. */
int cuda_take(backend *device, size_t bytes, void **out, status *st);
void cuda_give_back(backend *device, void *memory);

/* `bytes` of host memory to device memory, after the work submitted so far and before all later;
 * `from` may be changed at once. */
int cuda_copy_in(backend *device, void *to, const void *from, size_t bytes, status *st);

/* `bytes` of what the work submitted so far leaves at `from` to pinned memory, beside later work,
 * over after `wait`. `from` may be changed by work after cuda_after_copies only. */
int cuda_copy_out(backend *device, void *to, const void *from, size_t bytes, status *st);
int cuda_after_copies(backend *device, status *st);

/* At least `bytes` of device memory, 256-byte aligned, for the operation at work: its content holds
 * until the next call on the stream's later work, which may reuse it. */
int cuda_scratch(backend *device, size_t bytes, void **out, status *st);

/* `layout` on the device; copied once for many calls with the same layout. */
int cuda_layout(backend *device, const batch_layout *layout, device_layout *out, status *st);

/* Fails unless `memory` holds rows * columns elements of the kind; `what` names the buffer. */
int cuda_holds(const buffer *memory, bool real, size_t rows, size_t columns, const char *what,
               status *st);

/* out [m, n] (+)= a b with fp32 accumulation, row-major with row strides, by cuBLASLt; operands of
 * `real`, `out` of `real` or of fp32 (out_exact). transpose_a: a is [k, m]; transpose_b: b is
 * [n, k]. fp32 without TF32. `bias` [n] fp32 or NULL is added. `batches` > 1: strided by
 * stride_*. Deterministic. linear.cu. */
typedef struct gemm_args {
    size_t m, n, k;
    bool transpose_a, transpose_b, out_exact, add;
    const void *a, *b;
    void *out;
    size_t a_stride, b_stride, out_stride; /* elements between rows */
    const float *bias;
    size_t batches, batch_a, batch_b, batch_out; /* 0 or 1 batches: one */
} gemm_args;
int cuda_gemm(backend *device, const gemm_args *args, status *st);

/* At open and close of a backend. linear.cu. */
int cuda_gemm_open(backend *device, status *st);
void cuda_gemm_close(backend *device);

/* Launches KERNEL<float> or KERNEL<__nv_bfloat16>, whichever `real` is. */
#define CUDA_REAL(device, KERNEL, grid, block, shared, ...)                                        \
    do {                                                                                           \
        if ((device)->bf16)                                                                        \
            KERNEL<__nv_bfloat16><<<(grid), (block), (shared), (device)->stream>>>(__VA_ARGS__);   \
        else                                                                                       \
            KERNEL<float><<<(grid), (block), (shared), (device)->stream>>>(__VA_ARGS__);           \
    } while (0)

extern "C" {
extern const kernels kernels_cuda;

int cuda_buffer_create(backend *device, buffer_kind kind, size_t elements, buffer **out,
                       status *st);
void cuda_buffer_free(backend *device, buffer *memory);
int cuda_embed(backend *device, const embed_args *args, status *st);
int cuda_norm(backend *device, const norm_args *args, status *st);
int cuda_linear(backend *device, const linear_args *args, status *st);
int cuda_rotary(backend *device, const rotary_args *args, status *st);
int cuda_attention(backend *device, const attention_args *args, status *st);
int cuda_swiglu(backend *device, const swiglu_args *args, status *st);
int cuda_head(backend *device, const head_args *args, status *st);
int cuda_magnitude(backend *device, const magnitude_args *args, status *st);
int cuda_embed_back(backend *device, const embed_back_args *args, status *st);
int cuda_norm_back(backend *device, const norm_back_args *args, status *st);
int cuda_linear_back(backend *device, const linear_back_args *args, status *st);
int cuda_rotary_back(backend *device, const rotary_back_args *args, status *st);
int cuda_attention_back(backend *device, const attention_back_args *args, status *st);
int cuda_swiglu_back(backend *device, const swiglu_back_args *args, status *st);
int cuda_head_back(backend *device, const head_back_args *args, status *st);

int cuda_depth_create(backend *device, const depth_options *options, depth **out, status *st);
void cuda_depth_free(depth *axis);
int cuda_depth_begin(depth *axis, const batch_layout *layout, const depth_wants *wants, status *st);
buffer *cuda_depth_storage(depth *axis, size_t value);
int cuda_depth_lend(depth *axis, size_t value, buffer *memory, status *st);
int cuda_depth_made(depth *axis, size_t value, status *st);
int cuda_depth_read(depth *axis, const depth_read_args *args, status *st);
int cuda_depth_sums(depth *axis, size_t site, double *sums, status *st);
int cuda_depth_alternative(depth *axis, const depth_alternative_args *args, status *st);
int cuda_depth_give(depth *axis, size_t site, const buffer *d_in, status *st);
int cuda_depth_pull(depth *axis, size_t value, const buffer **d_value, status *st);
int cuda_depth_site_grads(depth *axis, size_t site, const site_grads *grads, status *st);
}

#endif
