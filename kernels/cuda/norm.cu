/* norm.cu - RMSNorm and LayerNorm of rows, and RMSNorm backward.
 *
 * Forward: RMSNorm of up to 4096 bytes takes a warp for each row, which it holds in registers;
 * other rows take a block, which reads them twice, the second time from the cache (8.5 us for 8192
 * rows of 512 in bf16 on an H200, 4 of which the bytes are). Backward: a block for a tile of rows
 * adds their part of the gain's gradient in shared memory, each thread its own columns; the tiles'
 * parts are added in fp64.
 */
#include "kernels/cuda/device.cuh"

enum { MOST_THREADS = 256, MOST_TILES = 512 };

/* Threads for a row: one for each pack, whole warps. */
static unsigned row_threads(size_t width, size_t n) {
    const size_t packs = (width + n - 1) / n, threads = (packs + 31) / 32 * 32;
    return (unsigned)(threads > MOST_THREADS ? (size_t)MOST_THREADS : threads);
}

template <typename real, int N>
static __global__ void normalize(bool centre, const real *in, const float *gain, const float *bias,
                                 int width, float eps, real *out, float *rms) {
    __shared__ float shared[64];
    const int first = (int)threadIdx.x * N, step = (int)blockDim.x * N;
    in += (size_t)blockIdx.x * width;
    out += (size_t)blockIdx.x * width;
    float x[N], mean = 0.0f, squares = 0.0f;
    if (centre) {
        float sum = 0.0f;
        for (int c = first; c < width; c += step) {
            load(in + c, x);
#pragma unroll
            for (int i = 0; i < N; i++)
                sum += x[i];
        }
        mean = block_sum(sum, shared) / (float)width;
    }
    for (int c = first; c < width; c += step) {
        load(in + c, x);
#pragma unroll
        for (int i = 0; i < N; i++)
            squares += (x[i] - mean) * (x[i] - mean);
    }
    float square = block_sum(squares, shared + 32) / (float)width;
    float scale = rsqrtf(square + eps), root = sqrtf(square);
    if (!(square < 1e37f)) { /* the squares of a row of 1e20 are no floats */
        __shared__ double exact[32];
        double sum = 0.0;
        for (int c = first; c < width; c += step) {
            load(in + c, x);
#pragma unroll
            for (int i = 0; i < N; i++)
                sum += ((double)x[i] - (double)mean) * ((double)x[i] - (double)mean);
        }
        sum = block_sum(sum, exact) / width;
        scale = (float)(1.0 / sqrt(sum + (double)eps));
        root = (float)sqrt(sum);
    }
    if (rms && threadIdx.x == 0)
        rms[blockIdx.x] = root;
    for (int c = first; c < width; c += step) {
        load(in + c, x);
        float g[N];
        load(gain + c, g);
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = (x[i] - mean) * scale * g[i];
        if (bias) {
            load(bias + c, g);
#pragma unroll
            for (int i = 0; i < N; i++)
                x[i] += g[i];
        }
        store(x, out + c);
    }
}

/* RMSNorm, a warp for each row: P packs of 16 bytes a lane. */
template <typename real, int P>
static __global__ void __launch_bounds__(256)
    normalize_rows(const real *in, const float *gain, int rows, int width, float eps, real *out,
                   float *rms) {
    enum { N = 16 / sizeof(real) };
    const int row = (int)(blockIdx.x * 8 + threadIdx.x / 32), lane = (int)threadIdx.x % 32;
    if (row >= rows)
        return;
    in += (size_t)row * width;
    out += (size_t)row * width;
    pack<real, N> x[P]; /* as they lie in memory: half the registers in bf16 */
    float squares = 0.0f;
#pragma unroll
    for (int p = 0; p < P; p++) {
        const int c = (lane + p * 32) * N;
        if (c < width)
            x[p] = *reinterpret_cast<const pack<real, N> *>(in + c);
#pragma unroll
        for (int i = 0; i < N; i++)
            squares += c < width ? as_float(x[p].at[i]) * as_float(x[p].at[i]) : 0.0f;
    }
    float square = warp_sum(squares) / (float)width;
    float scale = rsqrtf(square + eps), root = sqrtf(square);
    if (!(square < 1e37f)) { /* the squares of a row of 1e20 are no floats */
        double sum = 0.0;
#pragma unroll
        for (int p = 0; p < P; p++)
#pragma unroll
            for (int i = 0; i < N; i++) {
                const double value = (double)as_float(x[p].at[i]);
                sum += (lane + p * 32) * N < width ? value * value : 0.0;
            }
        sum = warp_sum(sum) / width;
        scale = (float)(1.0 / sqrt(sum + (double)eps));
        root = (float)sqrt(sum);
    }
    if (rms && lane == 0)
        rms[row] = root;
#pragma unroll
    for (int p = 0; p < P; p++) {
        const int c = (lane + p * 32) * N;
        if (c >= width)
            break;
        float g[N], y[N];
        load(gain + c, g);
#pragma unroll
        for (int i = 0; i < N; i++)
            y[i] = as_float(x[p].at[i]) * scale * g[i];
        store(y, out + c);
    }
}

template <typename real, int P>
static int launch_rows(backend *device, const norm_args *args, status *st) {
    normalize_rows<real, P><<<cuda_tiles(args->rows, 8), 256, 0, device->stream>>>(
        cuda_at(args->in), cuda_at(args->gain), (int)args->rows, (int)args->width, args->eps,
        cuda_at(args->out), cuda_at(args->rms));
    return cuda_launched("norm", st);
}

template <typename real> static int norm_rows(backend *device, const norm_args *args, status *st) {
    const size_t bytes = args->width * sizeof(real);
    return bytes <= 1024   ? launch_rows<real, 2>(device, args, st)
           : bytes <= 2560 ? launch_rows<real, 5>(device, args, st)
                           : launch_rows<real, 8>(device, args, st);
}

int cuda_norm(backend *device, const norm_args *args, status *st) {
    const size_t width = args->width;
    if (cuda_holds(args->in, true, args->rows, width, "norm: in", st) ||
        cuda_holds(args->gain, false, 1, width, "norm: gain", st) ||
        (args->bias && cuda_holds(args->bias, false, 1, width, "norm: bias", st)) ||
        cuda_holds(args->out, true, args->rows, width, "norm: out", st) ||
        (args->rms && cuda_holds(args->rms, false, args->rows, 1, "norm: rms", st)))
        return FAILED;
    if (args->rows == 0 || width == 0)
        return DONE;
    const bool is_wide = cuda_wide(device, width);
    if (is_wide && args->kind == NORM_RMS && !args->bias &&
        width * (device->bf16 ? sizeof(__nv_bfloat16) : sizeof(float)) <= 4096)
        return device->bf16 ? norm_rows<__nv_bfloat16>(device, args, st)
                            : norm_rows<float>(device, args, st);
    CUDA_PACKED(device, is_wide, normalize, (unsigned)args->rows,
                row_threads(width, cuda_pack(device, is_wide)), 0, args->kind == NORM_LAYER,
                cuda_at(args->in), cuda_at(args->gain), cuda_at(args->bias), (int)width, args->eps,
                cuda_at(args->out), cuda_at(args->rms));
    return cuda_launched("norm", st);
}

/* d_in = r (gain d_out - in r^2 mean(gain d_out in)), r = 1 / sqrt(mean of in^2 + eps). A thread
 * reads and writes the same columns of d_out and d_in, which may be one buffer. `part`
 * [tiles, width]: sums over the tile's rows of d_out in r. */
template <typename real, int N>
static __global__ void rms_back(const real *in, const float *gain, const real *d_out, int rows,
                                int tile, int width, float eps, real *d_in, float *part) {
    extern __shared__ float grad[]; /* [width] */
    __shared__ float2 shared[2][32];
    const int first = (int)threadIdx.x * N, step = (int)blockDim.x * N;
    const int start = (int)blockIdx.x * tile, end = min(start + tile, rows);
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float x[N], d[N], g[N];
    for (int c = first; c < width; c += step)
#pragma unroll
        for (int i = 0; i < N; i++)
            grad[c + i] = 0.0f;
    for (int row = start; row < end; row++) {
        const size_t at = (size_t)row * width;
        float squares = 0.0f, along = 0.0f;
        for (int c = first; c < width; c += step) {
            load(in + at + c, x);
            load(d_out + at + c, d);
            load(gain + c, g);
#pragma unroll
            for (int i = 0; i < N; i++) {
                squares += x[i] * x[i];
                along += g[i] * d[i] * x[i];
            }
        }
        squares = warp_sum(squares);
        along = warp_sum(along);
        if (lane == 0)
            shared[row % 2][warp] = make_float2(squares, along);
        __syncthreads();
        const float2 other =
            lane < blockDim.x / 32 ? shared[row % 2][lane] : make_float2(0.0f, 0.0f);
        const float square = 1.0f / (warp_sum(other.x) / (float)width + eps);
        const float scale = sqrtf(square), back = warp_sum(other.y) / (float)width * square;
        for (int c = first; c < width; c += step) {
            load(in + at + c, x);
            load(d_out + at + c, d);
            load(gain + c, g);
#pragma unroll
            for (int i = 0; i < N; i++) {
                grad[c + i] += d[i] * (x[i] * scale);
                d[i] = scale * (g[i] * d[i] - x[i] * back);
            }
            store(d, d_in + at + c);
        }
    }
    for (int c = first; c < width; c += step)
#pragma unroll
        for (int i = 0; i < N; i++)
            part[(size_t)blockIdx.x * width + c + i] = grad[c + i];
}

template <typename real, int N>
static int launch_back(backend *device, const norm_back_args *args, size_t tiles, size_t tile,
                       float *part, status *st) {
    const size_t shared = args->width * sizeof(float);
    if (cuda_ok(cudaFuncSetAttribute(rms_back<real, N>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     (int)shared),
                "norm_back", st))
        return FAILED;
    rms_back<real, N><<<(unsigned)tiles, row_threads(args->width, N), shared, device->stream>>>(
        cuda_at(args->in), cuda_at(args->gain), cuda_at(args->d_out), (int)args->layout->rows,
        (int)tile, (int)args->width, args->eps, cuda_at(args->d_in), part);
    return cuda_launched("norm_back", st);
}

int cuda_norm_back(backend *device, const norm_back_args *args, status *st) {
    const size_t rows = args->layout->rows, width = args->width;
    const size_t tile = rows / MOST_TILES + 1, tiles = (rows + tile - 1) / tile;
    void *part;
    if (cuda_holds(args->in, true, rows, width, "norm_back: in", st) ||
        cuda_holds(args->gain, false, 1, width, "norm_back: gain", st) ||
        cuda_holds(args->d_out, true, rows, width, "norm_back: d_out", st) ||
        cuda_holds(args->d_in, true, rows, width, "norm_back: d_in", st) ||
        (args->grad_gain &&
         cuda_holds(args->grad_gain, false, 1, width, "norm_back: grad_gain", st)) ||
        cuda_scratch(device, tiles * width * sizeof(float), &part, st))
        return FAILED;
    if (rows == 0 || width == 0)
        return DONE;
    const bool is_wide = cuda_wide(device, width);
    const int rc =
        device->bf16
            ? (is_wide
                   ? launch_back<__nv_bfloat16, 8>(device, args, tiles, tile, (float *)part, st)
                   : launch_back<__nv_bfloat16, 1>(device, args, tiles, tile, (float *)part, st))
            : (is_wide ? launch_back<float, 4>(device, args, tiles, tile, (float *)part, st)
                       : launch_back<float, 1>(device, args, tiles, tile, (float *)part, st));
    if (rc || !args->grad_gain)
        return rc;
    return cuda_add_columns(device, part, false, tiles, width, cuda_at(args->grad_gain), st);
}

/* ---- sums of columns ---- */

enum { SIDE = 32 };

/* Thread (x, y) adds rows y, y + SIDE, ... of column x; the SIDE sums are added in order. */
template <typename real>
static __global__ void add_columns(const real *from, int rows, int width, float *sum) {
    __shared__ double part[SIDE][SIDE + 1];
    const int column = (int)(blockIdx.x * SIDE + threadIdx.x);
    double mine = 0.0;
    if (column < width)
#pragma unroll 4
        for (int r = (int)threadIdx.y; r < rows; r += SIDE)
            mine += (double)as_float(from[(size_t)r * width + column]);
    part[threadIdx.y][threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.y > 0 || column >= width)
        return;
    for (int y = 1; y < SIDE; y++)
        mine += part[y][threadIdx.x];
    sum[column] += (float)mine;
}

int cuda_add_columns(backend *device, const void *from, bool real, size_t rows, size_t width,
                     float *sum, status *st) {
    if (rows == 0 || width == 0)
        return DONE;
    const dim3 block(SIDE, SIDE);
    if (real && device->bf16)
        add_columns<<<cuda_tiles(width, SIDE), block, 0, device->stream>>>(
            (const __nv_bfloat16 *)from, (int)rows, (int)width, sum);
    else
        add_columns<<<cuda_tiles(width, SIDE), block, 0, device->stream>>>(
            (const float *)from, (int)rows, (int)width, sum);
    return cuda_launched("sums of columns", st);
}
