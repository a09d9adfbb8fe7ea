/* linear.cu - matrix products by cuBLASLt: out = in weight^T + bias, and backward.
 *
 * A product is prepared once for its shape, strides and alignment: descriptors and the algorithm
 * that cuBLASLt's heuristic puts first. Row-major C = A B is column-major C^T = B^T A^T, so
 * cuBLASLt sees the operands exchanged. fp32 is CUBLAS_COMPUTE_32F without TF32; bf16 operands
 * accumulate in fp32. Sums over split k are added by a kernel of their own in a fixed order.
 */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"

#include <stdlib.h>
#include <string.h>

static const size_t WORKSPACE = (size_t)32 << 20;

/* What decides about the algorithm; compared byte by byte, so made of zeroed memory. */
typedef struct gemm_key {
    size_t m, n, k, a_stride, b_stride, out_stride, batches, batch_a, batch_b, batch_out;
    uint32_t a_alignment, b_alignment, out_alignment, flags;
} gemm_key;

typedef struct prepared {
    gemm_key key;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, out;
    cublasLtMatmulAlgo_t algorithm;
} prepared;

struct gemm_cache {
    prepared *entry;
    size_t count, capacity;
    void *workspace;
    void *bias; /* of the product at work, in bf16 */
    size_t bias_bytes;
};

static int blas_ok(cublasStatus_t error, const char *what, status *st) {
    return error == CUBLAS_STATUS_SUCCESS
               ? DONE
               : status_fail(st, "cuBLASLt, %s: %s", what, cublasLtGetStatusString(error));
}

int cuda_gemm_open(backend *device, status *st) {
    device->gemm = (struct gemm_cache *)mem_array(1, sizeof *device->gemm, "matrix products", st);
    if (!device->gemm || blas_ok(cublasLtCreate(&device->blas), "opening", st))
        return FAILED;
    return cuda_take(device, WORKSPACE, &device->gemm->workspace, st);
}

static void prepared_free(prepared *p) {
    if (p->a)
        (void)cublasLtMatrixLayoutDestroy(p->a);
    if (p->b)
        (void)cublasLtMatrixLayoutDestroy(p->b);
    if (p->out)
        (void)cublasLtMatrixLayoutDestroy(p->out);
    if (p->product)
        (void)cublasLtMatmulDescDestroy(p->product);
}

void cuda_gemm_close(backend *device) {
    struct gemm_cache *cache = device->gemm;
    if (!cache)
        return;
    for (size_t i = 0; i < cache->count; i++)
        prepared_free(&cache->entry[i]);
    cuda_give_back(device, cache->workspace);
    cuda_give_back(device, cache->bias);
    if (device->blas)
        (void)cublasLtDestroy(device->blas);
    free(cache->entry);
    free(cache);
    device->gemm = NULL;
}

static uint32_t alignment_of(const void *memory) {
    const uint32_t low = (uint32_t)(uintptr_t)memory;
    const uint32_t bit = low & (0u - low);
    return bit == 0 || bit > 256 ? 256 : bit;
}

static gemm_key key_of(const gemm_args *args) {
    gemm_key key;
    memset(&key, 0, sizeof key);
    key.m = args->m;
    key.n = args->n;
    key.k = args->k;
    key.a_stride = args->a_stride;
    key.b_stride = args->b_stride;
    key.out_stride = args->out_stride;
    key.batches = args->batches ? args->batches : 1;
    key.batch_a = args->batch_a;
    key.batch_b = args->batch_b;
    key.batch_out = args->batch_out;
    key.a_alignment = alignment_of(args->a);
    key.b_alignment = alignment_of(args->b);
    key.out_alignment = alignment_of(args->out);
    key.flags = (args->transpose_a ? 1u : 0u) | (args->transpose_b ? 2u : 0u) |
                (args->out_exact ? 4u : 0u) | (args->add ? 8u : 0u) | (args->bias ? 16u : 0u);
    return key;
}

/* A row-major matrix [rows, columns] as cuBLASLt has it: [columns, rows] by columns. */
static int layout_of(cublasLtMatrixLayout_t *out, cudaDataType type, size_t rows, size_t columns,
                     size_t stride, size_t batches, size_t apart, status *st) {
    const int32_t count = (int32_t)batches;
    const int64_t offset = (int64_t)apart;
    if (blas_ok(cublasLtMatrixLayoutCreate(out, type, columns, rows, (int64_t)stride), "a matrix",
                st))
        return FAILED;
    if (batches <= 1)
        return DONE;
    return blas_ok(cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                    &count, sizeof count),
                   "a matrix", st) ||
                   blas_ok(cublasLtMatrixLayoutSetAttribute(
                               *out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &offset,
                               sizeof offset),
                           "a matrix", st)
               ? FAILED
               : DONE;
}

static int describe_product(const backend *device, const gemm_args *args, prepared *p, status *st) {
    const cudaDataType real = device->bf16 ? CUDA_R_16BF : CUDA_R_32F;
    const cudaDataType result = args->out_exact ? CUDA_R_32F : real;
    const cublasOperation_t yes = CUBLAS_OP_T;
    const cublasLtEpilogue_t bias = CUBLASLT_EPILOGUE_BIAS;
    if (blas_ok(cublasLtMatmulDescCreate(&p->product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "a product",
                st))
        return FAILED;
    /* cuBLASLt's first operand is our b. */
    if ((args->transpose_b &&
         blas_ok(cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_TRANSA, &yes,
                                                sizeof yes),
                 "a product", st)) ||
        (args->transpose_a &&
         blas_ok(cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_TRANSB, &yes,
                                                sizeof yes),
                 "a product", st)) ||
        (args->bias &&
         (blas_ok(cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_EPILOGUE, &bias,
                                                 sizeof bias),
                  "a product", st) ||
          blas_ok(cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                 &args->bias, sizeof args->bias),
                  "a product", st))))
        return FAILED;
    const gemm_key *key = &p->key;
    const size_t a_rows = args->transpose_a ? args->k : args->m;
    const size_t a_columns = args->transpose_a ? args->m : args->k;
    const size_t b_rows = args->transpose_b ? args->n : args->k;
    const size_t b_columns = args->transpose_b ? args->k : args->n;
    return layout_of(&p->a, real, a_rows, a_columns, key->a_stride, key->batches, key->batch_a,
                     st) ||
                   layout_of(&p->b, real, b_rows, b_columns, key->b_stride, key->batches,
                             key->batch_b, st) ||
                   layout_of(&p->out, result, args->m, args->n, key->out_stride, key->batches,
                             key->batch_out, st)
               ? FAILED
               : DONE;
}

static int prefer(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t which,
                  const void *value, size_t bytes, status *st) {
    return blas_ok(cublasLtMatmulPreferenceSetAttribute(preference, which, value, bytes),
                   "a preference", st);
}

static int choose_algorithm(const backend *device, prepared *p, status *st) {
    const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const gemm_key *key = &p->key;
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    if (blas_ok(cublasLtMatmulPreferenceCreate(&preference), "a preference", st))
        return FAILED;
    int rc = prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE,
                    sizeof WORKSPACE, st) ||
             prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction,
                    sizeof reduction, st) ||
             prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &key->b_alignment,
                    sizeof key->b_alignment, st) ||
             prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &key->a_alignment,
                    sizeof key->a_alignment, st) ||
             prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &key->out_alignment,
                    sizeof key->out_alignment, st) ||
             prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &key->out_alignment,
                    sizeof key->out_alignment, st) ||
             blas_ok(cublasLtMatmulAlgoGetHeuristic(device->blas, p->product, p->b, p->a, p->out,
                                                    p->out, preference, 1, &found, &count),
                     "choosing an algorithm", st);
    (void)cublasLtMatmulPreferenceDestroy(preference);
    if (!rc && (count < 1 || found.state != CUBLAS_STATUS_SUCCESS))
        rc = status_fail(st, "cuBLASLt: no algorithm for [%zu, %zu] = [., %zu] [%zu, .]", key->m,
                         key->n, key->k, key->k);
    if (rc)
        return FAILED;
    p->algorithm = found.algo;
    return DONE;
}

static prepared *prepare(backend *device, const gemm_args *args, status *st) {
    struct gemm_cache *cache = device->gemm;
    prepared made;
    memset(&made, 0, sizeof made);
    made.key = key_of(args);
    for (size_t i = 0; i < cache->count; i++)
        if (memcmp(&cache->entry[i].key, &made.key, sizeof made.key) == 0)
            return &cache->entry[i];
    if (cache->count == cache->capacity) {
        const size_t capacity = cache->capacity ? 2 * cache->capacity : 32;
        void *larger = realloc(cache->entry, capacity * sizeof *cache->entry);
        if (!larger) {
            status_fail(st, "matrix products: out of memory");
            return NULL;
        }
        cache->entry = (prepared *)larger;
        cache->capacity = capacity;
    }
    if (describe_product(device, args, &made, st) || choose_algorithm(device, &made, st)) {
        prepared_free(&made);
        return NULL;
    }
    cache->entry[cache->count] = made;
    return &cache->entry[cache->count++];
}

static __global__ void round_bias(const float *from, int count, __nv_bfloat16 *to) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count)
        to[i] = __float2bfloat16(from[i]);
}

/* cuBLASLt takes a bias in the result's type only. */
static int give_bias(backend *device, const gemm_args *args, prepared *p, status *st) {
    struct gemm_cache *cache = device->gemm;
    const void *bias = args->bias;
    if (device->bf16 && !args->out_exact) {
        const size_t bytes = args->n * sizeof(__nv_bfloat16);
        if (bytes > cache->bias_bytes) {
            cuda_give_back(device, cache->bias);
            cache->bias_bytes = 0;
            if (cuda_take(device, bytes, &cache->bias, st))
                return FAILED;
            cache->bias_bytes = bytes;
        }
        round_bias<<<(unsigned)((args->n + 255) / 256), 256, 0, device->stream>>>(
            args->bias, (int)args->n, (__nv_bfloat16 *)cache->bias);
        if (cuda_launched("bias", st))
            return FAILED;
        bias = cache->bias;
    }
    return blas_ok(cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                  &bias, sizeof bias),
                   "a bias", st);
}

int cuda_gemm(backend *device, const gemm_args *args, status *st) {
    if (args->m == 0 || args->n == 0)
        return DONE;
    if (args->m > INT32_MAX || args->n > INT32_MAX || args->k > INT32_MAX || args->k == 0)
        return status_fail(st,
                           "matrix product of [%zu, %zu] and [%zu, %zu]: dimensions from 1 "
                           "to %d are possible",
                           args->m, args->k, args->k, args->n, INT32_MAX);
    prepared *p = prepare(device, args, st);
    if (!p || (args->bias && give_bias(device, args, p, st)))
        return FAILED;
    const float one = 1.0f, keep = args->add ? 1.0f : 0.0f;
    return blas_ok(cublasLtMatmul(device->blas, p->product, &one, args->b, p->b, args->a, p->a,
                                  &keep, args->out, p->out, args->out, p->out, &p->algorithm,
                                  device->gemm->workspace, WORKSPACE, device->stream),
                   "a matrix product", st);
}

/* ---- the operations ---- */

int cuda_linear(backend *device, const linear_args *args, status *st) {
    const size_t rows = args->layout->rows;
    if (cuda_holds(args->in, true, rows, args->in_width, "linear: in", st) ||
        cuda_holds(args->weight, true, args->out_width, args->in_width, "linear: weight", st) ||
        (args->bias && cuda_holds(args->bias, false, 1, args->out_width, "linear: bias", st)) ||
        cuda_holds(args->out, true, rows, args->out_width, "linear: out", st))
        return FAILED;
    gemm_args product = {};
    product.m = rows;
    product.n = args->out_width;
    product.k = args->in_width;
    product.transpose_b = true;
    product.a = args->in->data;
    product.b = args->weight->data;
    product.out = args->out->data;
    product.a_stride = product.b_stride = args->in_width;
    product.out_stride = args->out_width;
    product.bias = args->bias ? (const float *)args->bias->data : NULL;
    return cuda_gemm(device, &product, st);
}

static int check_back(const linear_back_args *args, status *st) {
    const size_t rows = args->layout->rows, in_width = args->in_width, out_width = args->out_width;
    return cuda_holds(args->in, true, rows, in_width, "linear_back: in", st) ||
                   cuda_holds(args->weight, true, out_width, in_width, "linear_back: weight", st) ||
                   cuda_holds(args->d_out, true, rows, out_width, "linear_back: d_out", st) ||
                   cuda_holds(args->d_in, true, rows, in_width, "linear_back: d_in", st) ||
                   (args->grad_weight && cuda_holds(args->grad_weight, false, out_width, in_width,
                                                    "linear_back: grad_weight", st)) ||
                   (args->grad_bias &&
                    cuda_holds(args->grad_bias, false, 1, out_width, "linear_back: grad_bias", st))
               ? FAILED
               : DONE;
}

int cuda_linear_back(backend *device, const linear_back_args *args, status *st) {
    const size_t rows = args->layout->rows, in_width = args->in_width, out_width = args->out_width;
    if (check_back(args, st))
        return FAILED;
    gemm_args d_in = {}; /* d_out weight */
    d_in.m = rows;
    d_in.n = in_width;
    d_in.k = out_width;
    d_in.a = args->d_out->data;
    d_in.b = args->weight->data;
    d_in.out = args->d_in->data;
    d_in.a_stride = out_width;
    d_in.b_stride = d_in.out_stride = in_width;
    if (cuda_gemm(device, &d_in, st))
        return FAILED;
    if (args->grad_weight) {
        gemm_args grad = {}; /* += d_out^T in */
        grad.m = out_width;
        grad.n = in_width;
        grad.k = rows;
        grad.transpose_a = grad.out_exact = grad.add = true;
        grad.a = args->d_out->data;
        grad.b = args->in->data;
        grad.out = args->grad_weight->data;
        grad.a_stride = out_width;
        grad.b_stride = grad.out_stride = in_width;
        if (rows && cuda_gemm(device, &grad, st))
            return FAILED;
    }
    if (!args->grad_bias)
        return DONE;
    return cuda_add_columns(device, args->d_out->data, true, rows, out_width,
                            (float *)args->grad_bias->data, st);
}
