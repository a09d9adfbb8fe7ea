/* rotary.cu - head RMSNorm of queries and keys, then rotary position embedding, and backward.
 *
 * Where a whole head rotates and its half is 16 bytes times a power of two, as in nearly every
 * model, a few neighbouring lanes take a head, each 16 bytes of either half; other heads take a
 * warp. A thread reads and writes the same channels, so that input and output may be one buffer.
 * Backward a block takes one head of a tile of rows; its part of a gain's gradient gathers in
 * shared memory, and the parts are added in fp64.
 *
 * A warp for every head of 64, a pair a lane: 92 us for 8192 rows of 24 heads in bf16 (H200), of
 * which the bytes are 12.
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

/* This block's part of the gradient of a head's gain: of the queries' [tiles, query_heads, dim],
 * then of the keys' [tiles, kv_heads, dim]. */
static __device__ float *part_of(const head_shape &shape, float *part, int head) {
    const int key = head - shape.query_heads;
    const size_t tile = blockIdx.x, tiles = gridDim.x;
    return part + (key < 0 ? tile * shape.query_heads + head
                           : tiles * shape.query_heads + tile * shape.kv_heads + key) *
                      shape.dim;
}

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
    float *const out = part_of(shape, part, head);
    for (int i = (int)threadIdx.x; i < shape.dim; i += (int)blockDim.x) {
        float sum = 0.0f;
        for (int w = 0; w < WARPS; w++)
            sum += grad[w * shape.dim + i];
        out[i] = sum;
    }
}

/* ---- whole heads in packs of 16 bytes ---- */

/* The sum over a group of lanes, a power of two. */
static __device__ __forceinline__ float group_sum(float x, int group) {
    for (int apart = group / 2; apart > 0; apart /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, apart);
    return x;
}

/* A group of pairs / N threads for each of the first `heads` heads of a row. */
template <typename real, int N>
static __global__ void forward_packed(head_shape shape, const real *in, int rows, int heads,
                                      real *out) {
    const int group = shape.pairs / N, all = shape.query_heads + 2 * shape.kv_heads;
    const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned number = thread / (unsigned)group;
    const int row = (int)(number / (unsigned)heads);
    const int head = (int)(number - (unsigned)row * (unsigned)heads);
    const int i = (int)(thread - number * (unsigned)group) * N;
    const bool there = row < rows; /* every lane takes part in the sums */
    const size_t at = there ? ((size_t)row * all + head) * shape.dim + i : 0;
    float x[N] = {}, y[N] = {}, g[N], h[N];
    if (there) {
        load(in + at, x);
        load(in + at + shape.pairs, y);
    }
    const float *const gain = gain_of(shape, head);
    float squares = 0.0f;
#pragma unroll
    for (int k = 0; k < N; k++)
        squares += x[k] * x[k] + y[k] * y[k];
    const float scale = rsqrtf(group_sum(squares, group) / (float)shape.dim + shape.eps);
    if (!there)
        return;
    if (gain) {
        load(gain + i, g);
        load(gain + i + shape.pairs, h);
#pragma unroll
        for (int k = 0; k < N; k++) {
            x[k] *= scale * g[k];
            y[k] *= scale * h[k];
        }
    }
    if (head < shape.query_heads + shape.kv_heads) {
        const size_t angles = (size_t)(row - shape.start[shape.sequence[row]]) * shape.pairs + i;
        load(shape.cosine + angles, g);
        load(shape.sine + angles, h);
#pragma unroll
        for (int k = 0; k < N; k++) {
            const float a = x[k], b = y[k];
            x[k] = a * g[k] - b * h[k];
            y[k] = b * g[k] + a * h[k];
        }
    }
    store(x, out + at);
    store(y, out + at + shape.pairs);
}

/* One head of TILE_ROWS rows to a block: group threads to a row. `part` as in backward. */
template <typename real, int N>
static __global__ void __launch_bounds__(WARPS * 32)
    backward_packed(head_shape shape, const real *in, const real *d_out, int rows, real *d_in,
                    float *part) {
    __shared__ float grad[WARPS * 32 * 2 * N]; /* [row lanes, dim] */
    const int group = shape.pairs / N, all = shape.query_heads + 2 * shape.kv_heads;
    const int head = (int)blockIdx.y, lanes = WARPS * 32 / group;
    const int lane = (int)threadIdx.x / group, i = ((int)threadIdx.x - lane * group) * N;
    const int start = (int)blockIdx.x * TILE_ROWS, end = min(start + TILE_ROWS, rows);
    const float *const gain = gain_of(shape, head);
    float grad_x[N] = {}, grad_y[N] = {}, g[N], h[N];
    for (int first = start; first < end; first += lanes) {
        const int row = first + lane;
        const bool there = row < end; /* every lane takes part in the sums */
        const size_t at = ((size_t)row * all + head) * shape.dim + i;
        float x[N] = {}, y[N] = {}, d[N] = {}, e[N] = {};
        if (there) {
            load(d_out + at, d);
            load(d_out + at + shape.pairs, e);
        }
        if (there && head < shape.query_heads + shape.kv_heads) {
            const size_t position = (size_t)(row - shape.start[shape.sequence[row]]);
            load(shape.cosine + position * shape.pairs + i, g);
            load(shape.sine + position * shape.pairs + i, h);
#pragma unroll
            for (int k = 0; k < N; k++) {
                const float a = d[k], b = e[k];
                d[k] = a * g[k] + b * h[k];
                e[k] = b * g[k] - a * h[k];
            }
        }
        if (gain) {
            float squares = 0.0f, along = 0.0f;
            if (there) {
                load(in + at, x);
                load(in + at + shape.pairs, y);
            }
            load(gain + i, g);
            load(gain + i + shape.pairs, h);
#pragma unroll
            for (int k = 0; k < N; k++) {
                squares += x[k] * x[k] + y[k] * y[k];
                along += g[k] * d[k] * x[k] + h[k] * e[k] * y[k];
            }
            const float square = 1.0f / (group_sum(squares, group) / (float)shape.dim + shape.eps);
            const float back = group_sum(along, group) / (float)shape.dim * square;
            const float scale = sqrtf(square);
#pragma unroll
            for (int k = 0; k < N; k++) {
                grad_x[k] += d[k] * (x[k] * scale);
                grad_y[k] += e[k] * (y[k] * scale);
                d[k] = scale * (g[k] * d[k] - x[k] * back);
                e[k] = scale * (h[k] * e[k] - y[k] * back);
            }
        }
        if (there) {
            store(d, d_in + at);
            store(e, d_in + at + shape.pairs);
        }
    }
    if (!gain)
        return;
#pragma unroll
    for (int k = 0; k < N; k++) {
        grad[lane * shape.dim + i + k] = grad_x[k];
        grad[lane * shape.dim + i + shape.pairs + k] = grad_y[k];
    }
    __syncthreads();
    float *const out = part_of(shape, part, head);
    for (int c = (int)threadIdx.x; c < shape.dim; c += (int)blockDim.x) {
        float sum = 0.0f;
        for (int l = 0; l < lanes; l++)
            sum += grad[l * shape.dim + c];
        out[c] = sum;
    }
}

/* Whether the packed kernels can take these heads. */
static bool packed(const backend *device, const rotary_args *args) {
    const size_t n = device->bf16 ? 8 : 4, pairs = args->rotary / 2, group = pairs / n;
    const size_t heads = args->query_heads + 2 * args->kv_heads;
    return args->rotary == args->head_dim && pairs % n == 0 && group > 0 && group <= 32 &&
           (group & (group - 1)) == 0 && args->layout->rows * heads * group < UINT32_MAX - 256;
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
    const size_t heads = args->query_heads + (args->in == args->out ? 1 : 2) * args->kv_heads;
    const size_t threads = rows * heads * (args->rotary / 2) / (device->bf16 ? 8 : 4);
    if (packed(device, args) && device->bf16)
        forward_packed<__nv_bfloat16, 8><<<cuda_tiles(threads, 256), 256, 0, device->stream>>>(
            shape, cuda_at(args->in), (int)rows, (int)heads, cuda_at(args->out));
    else if (packed(device, args))
        forward_packed<float, 4><<<cuda_tiles(threads, 256), 256, 0, device->stream>>>(
            shape, cuda_at(args->in), (int)rows, (int)heads, cuda_at(args->out));
    if (packed(device, args))
        return cuda_launched("rotary", st);
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
    if (packed(device, forward_args) && device->bf16)
        backward_packed<__nv_bfloat16, 8><<<grid, WARPS * 32, 0, device->stream>>>(
            shape, cuda_at(normed ? forward_args->in : NULL), cuda_at(args->d_out), (int)rows,
            cuda_at(args->d_in), (float *)part);
    else if (packed(device, forward_args))
        backward_packed<float, 4><<<grid, WARPS * 32, 0, device->stream>>>(
            shape, cuda_at(normed ? forward_args->in : NULL), cuda_at(args->d_out), (int)rows,
            cuda_at(args->d_in), (float *)part);
    else
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
