/* head.cu - output head and cross entropy: rows meet the whole vocabulary a chunk at a time.
 *
 * Forward, per chunk of rows: logits (cuda_gemm, fp32) into scratch, then one block a row makes
 * log-sum-exp with a running maximum per thread, the threads' sums added in fp64. Backward makes
 * the logits again, turns each row into softmax - onehot (`real`; in place in fp32), and finishes
 * with two products: d_in = d_logits weight, grad_weight += d_logits^T in. Chunks are cut by shapes
 * alone, so that wanting logits changes nothing: they are copied out of the scratch.
 *
 * Logits held at once, tried on an NVIDIA H200 in bf16, ms forward and backward (rows 8192, width
 * 1280, vocabulary 50304; then width 768, vocabulary 50257): 2^24 2.50 - and 1.99 -, 2^25 2.42 7.54
 * and 1.89 5.45, 2^26 2.11 6.50 and 1.66 4.62, 2^27 2.17 6.13 and 1.53 4.20, 2^28 - 5.87 and
 * - 4.09. More rows a product use the card better than fewer logits use its cache. Without columns
 * padded to a multiple of 8 the vocabulary of 50257 took 7.28 and 14.3 ms.
 */
#include "kernels/cuda/cuda.h"

#include <math.h>

/* Logits held at once, 512 MiB; backward in bf16 holds their gradients beside them, half as much.
 */
#ifndef HEAD_FLOATS
#define HEAD_FLOATS ((size_t)1 << 27)
#endif
enum { THREADS = 512 };
static const size_t CHUNK_ROWS = 128; /* chunks are multiples of it */

typedef struct row_softmax {
    float most; /* largest logit */
    double sum; /* of exp(logit - most) */
} row_softmax;

/* Over the block; every thread gets the result. `row` is 16-byte aligned. */
__device__ static row_softmax softmax_of(const float *row, int vocabulary) {
    __shared__ float mosts[THREADS / 32];
    __shared__ double sums[THREADS / 32];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    float most = -INFINITY, sum = 0.0f;
    const auto add = [&](float x) { sum += __expf(x - most); };
    for (int i = (int)threadIdx.x * 4; i < vocabulary; i += THREADS * 4) {
        float4 x = *(const float4 *)(row + i);
        /* Beyond the end the first is repeated for the maximum and left out of the sum. */
        const int here = min(4, vocabulary - i);
        const float next = fmaxf(fmaxf(x.x, here > 1 ? x.y : x.x),
                                 fmaxf(here > 2 ? x.z : x.x, here > 3 ? x.w : x.x));
        if (next > most) {
            sum *= expf(most - next);
            most = next;
        }
        add(x.x);
        if (here > 1)
            add(x.y);
        if (here > 2)
            add(x.z);
        if (here > 3)
            add(x.w);
    }
    float all = most;
    for (int step = 16; step > 0; step /= 2)
        all = fmaxf(all, __shfl_xor_sync(~0u, all, step));
    if (lane == 0)
        mosts[warp] = all;
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++)
        all = fmaxf(all, mosts[i]);
    double share = sum == 0.0f ? 0.0 : (double)(sum * expf(most - all));
    for (int step = 16; step > 0; step /= 2)
        share += __shfl_xor_sync(~0u, share, step);
    if (lane == 0)
        sums[warp] = share;
    __syncthreads();
    row_softmax result = {all, 0.0};
    for (int i = 0; i < THREADS / 32; i++)
        result.sum += sums[i];
    return result;
}

__global__ void __launch_bounds__(THREADS)
    head_loss(const float *logits, size_t stride, int vocabulary, const int *target, float *loss) {
    const float *row = logits + blockIdx.x * stride;
    const int goal = target[blockIdx.x];
    const row_softmax all = softmax_of(row, vocabulary);
    if (threadIdx.x == 0)
        loss[blockIdx.x] = goal < 0 || goal >= vocabulary
                               ? NAN
                               : (float)(log(all.sum) + ((double)all.most - (double)row[goal]));
}

/* d_logits may be the logits; columns beyond the vocabulary become 0. */
template <typename real>
__global__ void __launch_bounds__(THREADS)
    head_back_logits(const float *logits, size_t stride, int vocabulary, const int *target,
                     real *d_logits) {
    const float *row = logits + blockIdx.x * stride;
    real *to = d_logits + blockIdx.x * stride;
    const int goal = target[blockIdx.x];
    if (goal < 0 || goal >= vocabulary) {
        for (int i = (int)threadIdx.x; i < (int)stride; i += THREADS)
            to[i] = (real)0.0f;
        return;
    }
    const row_softmax all = softmax_of(row, vocabulary);
    const float scale = (float)(1.0 / all.sum);
    const auto gradient = [&](float logit, int i) {
        const float p = __expf(logit - all.most) * scale - (i == goal ? 1.0f : 0.0f);
        return (real)(i < vocabulary ? p : 0.0f);
    };
    for (int i = (int)threadIdx.x * 4; i < (int)stride; i += THREADS * 4) {
        const float4 x = *(const float4 *)(row + i);
        alignas(16) real d[4] = {gradient(x.x, i), gradient(x.y, i + 1), gradient(x.z, i + 2),
                                 gradient(x.w, i + 3)};
        if (sizeof(real) == 4)
            *(float4 *)(to + i) = *(const float4 *)d;
        else
            *(uint2 *)(to + i) = *(const uint2 *)d;
    }
}

/* Rows of a chunk of at most `floats` logits, and their stride there. */
static size_t chunk_rows(size_t rows, size_t stride, size_t floats) {
    const size_t fit = floats / stride / CHUNK_ROWS * CHUNK_ROWS, most = fit ? fit : CHUNK_ROWS;
    return rows < most ? rows : most;
}
/* Columns of the logits in scratch: with fewer, rows of bf16 are not aligned to 16 bytes, and
 * cuBLASLt's products take up to five times as long. */
static size_t padded(size_t vocabulary) {
    return (vocabulary + 7) / 8 * 8;
}

static void *real_at(const backend *device, void *memory, size_t element) {
    return (char *)memory + element * (device->bf16 ? 2 : 4);
}

/* What forward and backward check alike. */
static int check(const batch_layout *layout, size_t width, size_t vocabulary, const buffer *in,
                 const buffer *weight, const buffer *target, status *st) {
    if (width == 0 || vocabulary == 0 || vocabulary > 0x7fffffff - THREADS * 4)
        return status_fail(st, "head: width %zu, vocabulary %zu: out of range", width, vocabulary);
    return cuda_holds(in, true, layout->rows, width, "head: in", st) ||
                   cuda_holds(weight, true, vocabulary, width, "head: weight", st) ||
                   cuda_holds(target, false, layout->rows, 1, "head: target", st)
               ? FAILED
               : DONE;
}

/* Scratch of a call: logits of a chunk of rows, their gradients where those are bf16, and the
 * weight with rows of zeros up to padded(vocabulary) where it has fewer. */
typedef struct head_scratch {
    size_t rows; /* of a chunk */
    float *logits;
    void *d_logits;
    const void *weight;
} head_scratch;

static int take_scratch(backend *device, size_t rows, size_t width, size_t vocabulary,
                        const buffer *weight, size_t floats, bool back, head_scratch *out,
                        status *st) {
    const size_t columns = padded(vocabulary), real = device->bf16 ? 2 : 4;
    const size_t chunk = chunk_rows(rows, columns, floats), cells = chunk * columns;
    const size_t gradients = back && device->bf16 ? cells * real : 0;
    const size_t have = vocabulary * width * real, want = columns * width * real;
    void *memory;
    /* Each part is a multiple of 32 bytes, as cells and columns are multiples of 8. */
    if (cuda_scratch(device, cells * sizeof(float) + gradients + (want > have ? want : 0), &memory,
                     st))
        return FAILED;
    char *after = (char *)memory + cells * sizeof(float);
    out->rows = chunk;
    out->logits = (float *)memory;
    out->d_logits = gradients ? after : memory;
    out->weight = weight->data;
    if (want == have)
        return DONE;
    after += gradients;
    out->weight = after;
    return cuda_ok(
               cudaMemcpyAsync(after, weight->data, have, cudaMemcpyDeviceToDevice, device->stream),
               "head: weight", st) ||
                   cuda_ok(cudaMemsetAsync(after + have, 0, want - have, device->stream),
                           "head: weight", st)
               ? FAILED
               : DONE;
}

/* logits [rows, padded(vocabulary)] of the rows from `first` on. */
static int make_logits(backend *device, const buffer *in, size_t first, size_t rows, size_t width,
                       size_t vocabulary, const head_scratch *scratch, status *st) {
    gemm_args product = {};
    product.m = rows;
    product.n = product.out_stride = padded(vocabulary);
    product.k = product.a_stride = product.b_stride = width;
    product.transpose_b = product.out_exact = true;
    product.a = real_at(device, in->data, first * width);
    product.b = scratch->weight;
    product.out = scratch->logits;
    return cuda_gemm(device, &product, st);
}

int cuda_head(backend *device, const head_args *args, status *st) {
    const size_t rows = args->layout->rows, vocabulary = args->vocabulary;
    const size_t stride = padded(vocabulary);
    head_scratch scratch;
    if (check(args->layout, args->width, vocabulary, args->in, args->weight, args->target, st) ||
        cuda_holds(args->loss, false, rows, 1, "head: loss", st) ||
        (args->logits && cuda_holds(args->logits, false, rows, vocabulary, "head: logits", st)))
        return FAILED;
    if (rows == 0)
        return DONE;
    if (take_scratch(device, rows, args->width, vocabulary, args->weight, HEAD_FLOATS, false,
                     &scratch, st))
        return FAILED;
    for (size_t first = 0; first < rows; first += scratch.rows) {
        const size_t n = rows - first < scratch.rows ? rows - first : scratch.rows;
        if (make_logits(device, args->in, first, n, args->width, vocabulary, &scratch, st))
            return FAILED;
        head_loss<<<(unsigned)n, THREADS, 0, device->stream>>>(
            scratch.logits, stride, (int)vocabulary, (const int *)args->target->data + first,
            (float *)args->loss->data + first);
        if (cuda_launched("head", st))
            return FAILED;
        const size_t row = vocabulary * sizeof(float);
        if (args->logits &&
            cuda_ok(cudaMemcpy2DAsync((float *)args->logits->data + first * vocabulary, row,
                                      scratch.logits, stride * sizeof(float), row, n,
                                      cudaMemcpyDeviceToDevice, device->stream),
                    "head: logits", st))
            return FAILED;
    }
    return DONE;
}

/* grad_weight += d_logits^T in; its vocabulary rows in two pieces, so that the large one is a
 * multiple of 8. */
static int add_grad(backend *device, const head_back_args *args, size_t first, size_t rows,
                    const head_scratch *scratch, status *st) {
    const size_t whole = args->vocabulary / 8 * 8, width = args->width;
    gemm_args product = {};
    product.m = whole;
    product.n = product.b_stride = product.out_stride = width;
    product.k = rows;
    product.transpose_a = product.out_exact = product.add = true;
    product.a = scratch->d_logits;
    product.a_stride = padded(args->vocabulary);
    product.b = real_at(device, args->in->data, first * width);
    product.out = args->grad_weight->data;
    if (cuda_gemm(device, &product, st))
        return FAILED;
    product.m = args->vocabulary - whole;
    product.a = real_at(device, scratch->d_logits, whole);
    product.out = (float *)args->grad_weight->data + whole * width;
    return cuda_gemm(device, &product, st);
}

/* The two products of a chunk of `rows` rows from `first` on. */
static int finish_back(backend *device, const head_back_args *args, size_t first, size_t rows,
                       const head_scratch *scratch, status *st) {
    gemm_args product = {};
    product.m = rows;
    product.n = product.b_stride = product.out_stride = args->width;
    product.k = product.a_stride = padded(args->vocabulary);
    product.a = scratch->d_logits;
    product.b = scratch->weight;
    product.out = real_at(device, args->d_in->data, first * args->width);
    if (cuda_gemm(device, &product, st))
        return FAILED;
    return args->grad_weight ? add_grad(device, args, first, rows, scratch, st) : DONE;
}

int cuda_head_back(backend *device, const head_back_args *args, status *st) {
    const size_t rows = args->layout->rows, width = args->width, vocabulary = args->vocabulary;
    const size_t stride = padded(vocabulary);
    head_scratch scratch;
    if (check(args->layout, width, vocabulary, args->in, args->weight, args->target, st) ||
        cuda_holds(args->d_in, true, rows, width, "head_back: d_in", st) ||
        (args->grad_weight &&
         cuda_holds(args->grad_weight, false, vocabulary, width, "head_back: grad_weight", st)))
        return FAILED;
    if (rows == 0)
        return DONE;
    if (take_scratch(device, rows, width, vocabulary, args->weight, HEAD_FLOATS, true, &scratch,
                     st))
        return FAILED;
    for (size_t first = 0; first < rows; first += scratch.rows) {
        const size_t n = rows - first < scratch.rows ? rows - first : scratch.rows;
        const int *target = (const int *)args->target->data + first;
        if (make_logits(device, args->in, first, n, width, vocabulary, &scratch, st))
            return FAILED;
        if (device->bf16)
            head_back_logits<<<(unsigned)n, THREADS, 0, device->stream>>>(
                scratch.logits, stride, (int)vocabulary, target, (__nv_bfloat16 *)scratch.d_logits);
        else
            head_back_logits<<<(unsigned)n, THREADS, 0, device->stream>>>(
                scratch.logits, stride, (int)vocabulary, target, scratch.logits);
        if (cuda_launched("head_back", st) || finish_back(device, args, first, n, &scratch, st))
            return FAILED;
    }
    return DONE;
}
