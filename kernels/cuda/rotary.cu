/* rotary.cu - head RMSNorm of queries and keys, then rotary position embedding, and backward.
 *
 * A warp for each row and head. A lane reads and writes the same pairs of channels, so that input
 * and output may be one buffer. Backward a block takes one head of a tile of rows; its part of a
 * gain's gradient gathers in shared memory, and the parts are added in fp64.
 */
#include "kernels/cuda/device.cuh"

enum { WARPS = 8, TILE_ROWS = 64 };

/* What both directions know of a head. */
struct head_shape {
    int query_heads, kv_heads, dim, pairs;
    float eps;
    const float *cosine, *sine, *query_gain, *key_gain;
    const int *start, *sequence;
};

static __device__ __forceinline__ const float *gain_of(const head_shape &shape, int head) {
    return head < shape.query_heads                    ? shape.query_gain
           : head < shape.query_heads + shape.kv_heads ? shape.key_gain
                                                       : NULL;
}

template <typename real>
static __global__ void forward(head_shape shape, const real *in, int rows, real *out) {
    const int heads = shape.query_heads + 2 * shape.kv_heads, lane = (int)threadIdx.x % 32;
    const long long number = (long long)blockIdx.x * WARPS + threadIdx.x / 32;
    const int row = (int)(number / heads), head = (int)(number - (long long)row * heads);
    if (row >= rows)
        return;
    in += number * shape.dim;
    out += number * shape.dim;
    if (head >= shape.query_heads + shape.kv_heads) {
        for (int i = lane; i < shape.dim && in != out; i += 32)
            out[i] = in[i];
        return;
    }
    const float *const gain = gain_of(shape, head);
    float scale = 1.0f;
    if (gain) {
        float squares = 0.0f;
        for (int i = lane; i < shape.dim; i += 32)
            squares += as_float(in[i]) * as_float(in[i]);
        scale = rsqrtf(warp_sum(squares) / (float)shape.dim + shape.eps);
    }
    const size_t angles = (size_t)(row - shape.start[shape.sequence[row]]) * shape.pairs;
    for (int i = lane; i < shape.pairs; i += 32) {
        const int j = i + shape.pairs;
        float x = as_float(in[i]), y = as_float(in[j]);
        if (gain) {
            x *= scale * gain[i];
            y *= scale * gain[j];
        }
        const float cosine = shape.cosine[angles + i], sine = shape.sine[angles + i];
        out[i] = as_real<real>(x * cosine - y * sine);
        out[j] = as_real<real>(y * cosine + x * sine);
    }
    for (int c = 2 * shape.pairs + lane; c < shape.dim; c += 32)
        out[c] = as_real<real>(as_float(in[c]) * (gain ? scale * gain[c] : 1.0f));
}

/* The gradient of channels i and i + pairs before the rotation. */
template <typename real>
static __device__ __forceinline__ float2 turned_back(const head_shape &shape, const real *d_out,
                                                     size_t angles, int i) {
    const float a = as_float(d_out[i]), b = as_float(d_out[i + shape.pairs]);
    const float cosine = shape.cosine[angles + i], sine = shape.sine[angles + i];
    return make_float2(a * cosine + b * sine, b * cosine - a * sine);
}

/* One row of a head with gain; `grad` [dim]: this warp's sums. */
template <typename real>
static __device__ void normed_row_back(const head_shape &shape, const float *gain, const real *in,
                                       const real *d_out, size_t angles, int lane, real *d_in,
                                       float *grad) {
    const int rest = 2 * shape.pairs + lane;
    float squares = 0.0f, along = 0.0f;
    const auto measure = [&](int c, float d) {
        const float x = as_float(in[c]);
        squares += x * x;
        along += gain[c] * d * x;
    };
    for (int i = lane; i < shape.pairs; i += 32) {
        const float2 d = turned_back(shape, d_out, angles, i);
        measure(i, d.x);
        measure(i + shape.pairs, d.y);
    }
    for (int c = rest; c < shape.dim; c += 32)
        measure(c, as_float(d_out[c]));
    const float square = 1.0f / (warp_sum(squares) / (float)shape.dim + shape.eps);
    const float scale = sqrtf(square), back = warp_sum(along) / (float)shape.dim * square;
    const auto write = [&](int c, float d) {
        const float x = as_float(in[c]);
        grad[c] += d * (x * scale);
        d_in[c] = as_real<real>(scale * (gain[c] * d - x * back));
    };
    for (int i = lane; i < shape.pairs; i += 32) {
        const float2 d = turned_back(shape, d_out, angles, i);
        write(i, d.x);
        write(i + shape.pairs, d.y);
    }
    for (int c = rest; c < shape.dim; c += 32)
        write(c, as_float(d_out[c]));
}

/* `part`: of the queries' gain [tiles, query_heads, dim], then of the keys' [tiles, kv_heads, dim].
 */
template <typename real>
static __global__ void backward(head_shape shape, const real *in, const real *d_out, int rows,
                                real *d_in, float *part) {
    extern __shared__ float grad[]; /* [WARPS, dim] */
    const int heads = shape.query_heads + 2 * shape.kv_heads, head = (int)blockIdx.y;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int start = (int)blockIdx.x * TILE_ROWS, end = min(start + TILE_ROWS, rows);
    const float *const gain = gain_of(shape, head);
    for (int i = (int)threadIdx.x; gain && i < WARPS * shape.dim; i += (int)blockDim.x)
        grad[i] = 0.0f;
    __syncthreads();
    for (int row = start + warp; row < end; row += WARPS) {
        const size_t at = ((size_t)row * heads + head) * shape.dim;
        if (head >= shape.query_heads + shape.kv_heads) {
            for (int i = lane; i < shape.dim && d_in != d_out; i += 32)
                d_in[at + i] = d_out[at + i];
            continue;
        }
        const size_t angles = (size_t)(row - shape.start[shape.sequence[row]]) * shape.pairs;
        if (gain) {
            normed_row_back(shape, gain, in + at, d_out + at, angles, lane, d_in + at,
                            grad + warp * shape.dim);
            continue;
        }
        for (int i = lane; i < shape.pairs; i += 32) {
            const float2 d = turned_back(shape, d_out + at, angles, i);
            d_in[at + i] = as_real<real>(d.x);
            d_in[at + i + shape.pairs] = as_real<real>(d.y);
        }
        for (int c = 2 * shape.pairs + lane; c < shape.dim && d_in != d_out; c += 32)
            d_in[at + c] = d_out[at + c];
    }
    if (!gain)
        return;
    __syncthreads();
    const int keys = head - shape.query_heads;
    float *const out = part + (keys < 0 ? (size_t)blockIdx.x * shape.query_heads + head
                                        : (size_t)gridDim.x * shape.query_heads +
                                              (size_t)blockIdx.x * shape.kv_heads + keys) *
                                  shape.dim;
    for (int i = (int)threadIdx.x; i < shape.dim; i += (int)blockDim.x) {
        float sum = 0.0f;
        for (int w = 0; w < WARPS; w++)
            sum += grad[w * shape.dim + i];
        out[i] = sum;
    }
}

/* Checks what both directions read and says it as the kernels want it. */
static int shape_of(backend *device, const rotary_args *args, head_shape *shape, status *st) {
    const size_t dim = args->head_dim, pairs = args->rotary / 2;
    device_layout layout;
    if (args->rotary % 2 || args->rotary > dim)
        return status_fail(st,
                           "rotary: %zu channels of a head of %zu: expected an even number of "
                           "at most the head's",
                           args->rotary, dim);
    if (cuda_layout(device, args->layout, &layout, st) ||
        (pairs && cuda_holds(args->cosine, false, layout.longest, pairs, "rotary: cosine", st)) ||
        (pairs && cuda_holds(args->sine, false, layout.longest, pairs, "rotary: sine", st)) ||
        (args->query_gain &&
         cuda_holds(args->query_gain, false, 1, dim, "rotary: query_gain", st)) ||
        (args->key_gain && cuda_holds(args->key_gain, false, 1, dim, "rotary: key_gain", st)))
        return FAILED;
    shape->query_heads = (int)args->query_heads;
    shape->kv_heads = (int)args->kv_heads;
    shape->dim = (int)dim;
    shape->pairs = (int)pairs;
    shape->eps = args->eps;
    shape->cosine = cuda_at(pairs ? args->cosine : NULL);
    shape->sine = cuda_at(pairs ? args->sine : NULL);
    shape->query_gain = cuda_at(args->query_gain);
    shape->key_gain = cuda_at(args->key_gain);
    shape->start = layout.start;
    shape->sequence = layout.sequence;
    return DONE;
}

static size_t row_width(const rotary_args *args) {
    return (args->query_heads + 2 * args->kv_heads) * args->head_dim;
}

int cuda_rotary(backend *device, const rotary_args *args, status *st) {
    const size_t rows = args->layout->rows;
    head_shape shape;
    if (shape_of(device, args, &shape, st) ||
        cuda_holds(args->in, true, rows, row_width(args), "rotary: in", st) ||
        cuda_holds(args->out, true, rows, row_width(args), "rotary: out", st))
        return FAILED;
    if (rows == 0)
        return DONE;
    const size_t warps = rows * (args->query_heads + 2 * args->kv_heads);
    CUDA_REAL(device, forward, cuda_tiles(warps, WARPS), WARPS * 32, 0, shape, cuda_at(args->in),
              (int)rows, cuda_at(args->out));
    return cuda_launched("rotary", st);
}

int cuda_rotary_back(backend *device, const rotary_back_args *args, status *st) {
    const rotary_args *forward_args = args->forward;
    const size_t rows = forward_args->layout->rows, dim = forward_args->head_dim;
    const size_t width = row_width(forward_args), tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    const size_t queries = forward_args->query_heads, keys = forward_args->kv_heads;
    buffer *grad_query = forward_args->query_gain ? args->grad_query_gain : NULL;
    buffer *grad_key = forward_args->key_gain ? args->grad_key_gain : NULL;
    const bool normed = forward_args->query_gain || forward_args->key_gain;
    head_shape shape;
    void *part;
    if (shape_of(device, forward_args, &shape, st) ||
        (normed && cuda_holds(forward_args->in, true, rows, width, "rotary_back: in", st)) ||
        cuda_holds(args->d_out, true, rows, width, "rotary_back: d_out", st) ||
        cuda_holds(args->d_in, true, rows, width, "rotary_back: d_in", st) ||
        (grad_query && cuda_holds(grad_query, false, 1, dim, "rotary_back: grad_query_gain", st)) ||
        (grad_key && cuda_holds(grad_key, false, 1, dim, "rotary_back: grad_key_gain", st)) ||
        cuda_scratch(device, tiles * (queries + keys) * dim * sizeof(float), &part, st))
        return FAILED;
    if (rows == 0)
        return DONE;
    const dim3 grid((unsigned)tiles, (unsigned)(queries + 2 * keys));
    CUDA_REAL(device, backward, grid, WARPS * 32, WARPS * dim * sizeof(float), shape,
              cuda_at(normed ? forward_args->in : NULL), cuda_at(args->d_out), (int)rows,
              cuda_at(args->d_in), (float *)part);
    if (cuda_launched("rotary_back", st) ||
        (grad_query &&
         cuda_add_columns(device, part, false, tiles * queries, dim, cuda_at(grad_query), st)) ||
        (grad_key && cuda_add_columns(device, (float *)part + tiles * queries * dim, false,
                                      tiles * keys, dim, cuda_at(grad_key), st)))
        return FAILED;
    return DONE;
}
