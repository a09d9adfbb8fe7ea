/* cpu.h - what the operations of the CPU backend share.
 *
 * Work is cut into row tiles that start at each sequence's own first row and never cross into the
 * next, so that a row's arithmetic knows nothing of the batch; OpenMP spreads tiles over threads,
 * and one tile is the work of one thread, matrix products by a single-threaded sgemm among it.
 */
#ifndef FATHOM_KERNELS_CPU_CPU_H
#define FATHOM_KERNELS_CPU_CPU_H

#include "kernels/kernels.h"

#include <cblas.h>

struct buffer {
    void *data; /* 64-byte aligned */
    size_t bytes;
    bool borrows; /* data belongs to another buffer */
};

/* Rows first .. first + rows - 1, all of one sequence; `position` is that of the first. */
typedef struct row_tile {
    size_t sequence, first, rows, position;
} row_tile;

struct backend {
    size_t threads;
    row_tile *tile; /* of the operation at work */
    size_t tile_capacity;
    float *scratch; /* of the operation at work */
    size_t scratch_floats;
    char text[192];
};

/* Cuts every sequence of `layout` into tiles of `rows` (the last of a sequence may be shorter).
 * device->tile[0 .. *count-1] holds until the next call. Fails if the layout is inconsistent. */
int cpu_tiles(backend *device, const batch_layout *layout, size_t rows, size_t *count,
              status *st) MUST_USE;

/* `floats` of scratch for each thread: thread t's part starts at *out + t * (*stride). Holds until
 * the next call. */
int cpu_scratch(backend *device, size_t floats, float **out, size_t *stride, status *st) MUST_USE;

/* The same for each of `parts` pieces of work, part p's at *out + p * (*stride). */
int cpu_scratch_parts(backend *device, size_t parts, size_t floats, float **out, size_t *stride,
                      status *st) MUST_USE;

/* Fails unless `memory` holds rows * columns 4-byte elements. `what` names the buffer. */
int cpu_holds(const buffer *memory, size_t rows, size_t columns, const char *what,
              status *st) MUST_USE;

/* Fails unless `value` can be a BLAS dimension. */
int cpu_dimension(size_t value, const char *what, status *st) MUST_USE;

/* The elements of a buffer; NULL for NULL. */
static inline float *floats(const buffer *memory) {
    return memory ? memory->data : NULL;
}

/* c [m,n] = a [m,k] b^T (b [n,k], `b_transposed`) or a b (b [k,n]), with row strides. */
static inline void sgemm(bool b_transposed, size_t m, size_t n, size_t k, float scale,
                         const float *a, size_t a_stride, const float *b, size_t b_stride,
                         float keep, float *c, size_t c_stride) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, b_transposed ? CblasTrans : CblasNoTrans, (blasint)m,
                (blasint)n, (blasint)k, scale, a, (blasint)a_stride, b, (blasint)b_stride, keep, c,
                (blasint)c_stride);
}

/* c [m,n] = a^T b (a [k,m], b [k,n]) + keep c, with row strides. */
static inline void sgemm_across(size_t m, size_t n, size_t k, const float *a, size_t a_stride,
                                const float *b, size_t b_stride, float keep, float *c,
                                size_t c_stride) {
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (blasint)m, (blasint)n, (blasint)k, 1.0f,
                a, (blasint)a_stride, b, (blasint)b_stride, keep, c, (blasint)c_stride);
}

int cpu_embed(backend *device, const embed_args *args, status *st);
int cpu_norm(backend *device, const norm_args *args, status *st);
int cpu_linear(backend *device, const linear_args *args, status *st);
int cpu_rotary(backend *device, const rotary_args *args, status *st);
int cpu_attention(backend *device, const attention_args *args, status *st);
int cpu_swiglu(backend *device, const swiglu_args *args, status *st);
int cpu_head(backend *device, const head_args *args, status *st);
int cpu_magnitude(backend *device, const magnitude_args *args, status *st);

int cpu_embed_back(backend *device, const embed_back_args *args, status *st);
int cpu_norm_back(backend *device, const norm_back_args *args, status *st);
int cpu_linear_back(backend *device, const linear_back_args *args, status *st);
int cpu_rotary_back(backend *device, const rotary_back_args *args, status *st);
int cpu_attention_back(backend *device, const attention_back_args *args, status *st);
int cpu_swiglu_back(backend *device, const swiglu_back_args *args, status *st);
int cpu_head_back(backend *device, const head_back_args *args, status *st);

int cpu_depth_create(backend *device, const depth_options *options, depth **out, status *st);
void cpu_depth_free(depth *axis);
int cpu_depth_begin(depth *axis, const batch_layout *layout, const depth_wants *wants, status *st);
buffer *cpu_depth_storage(depth *axis, size_t value);
int cpu_depth_lend(depth *axis, size_t value, buffer *memory, status *st);
int cpu_depth_made(depth *axis, size_t value, status *st);
int cpu_depth_read(depth *axis, const depth_read_args *args, status *st);
int cpu_depth_sums(depth *axis, size_t site, double *sums, status *st);
int cpu_depth_alternative(depth *axis, const depth_alternative_args *args, status *st);
int cpu_depth_give(depth *axis, size_t site, const buffer *d_in, status *st);
int cpu_depth_pull(depth *axis, size_t value, const buffer **d_value, status *st);
int cpu_depth_site_grads(depth *axis, size_t site, const site_grads *grads, status *st);

#endif
