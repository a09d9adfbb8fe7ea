/* magnitude.cu - rms, largest magnitude with its channel, and lower median of |x|, row by row.
 *
 * Up to 4096 bytes a warp takes a row and holds it in registers, without a barrier; wider rows take
 * a block, 8 elements a thread up to 8192. The block alone took 14.8 us for 8192 rows of 512
 * in bf16 (H200), 2 of which the bytes are.
 *
 * Magnitudes are compared as integers: with the sign bit cleared, IEEE floats are ordered as their
 * bit patterns are, NaN above infinity. The median is found two bits at a time from the top, by
 * counting what is below three pivots; a bf16 has 15 bits to find.
 */
#include "kernels/cuda/device.cuh"

enum { MOST_THREADS = 1024, ROUNDS = 16 };
static const unsigned INFINITE = 0x7f800000u;

/* The element of that rank in ascending order. `count` [ROUNDS, 3] zeros, shared. Elements that
 * are not there are larger than all. */
template <typename real, int E>
static __device__ unsigned select_bits(const unsigned (&bits)[E], unsigned rank, unsigned *count) {
    const int last = sizeof(real) == 2 ? 16 : 0;
    unsigned found = 0;
    for (int shift = 30; shift >= last; shift -= 2, count += 3) {
        unsigned below[3] = {0, 0, 0};
#pragma unroll
        for (int i = 0; i < E; i++)
#pragma unroll
            for (unsigned p = 0; p < 3; p++)
                below[p] += bits[i] < (found | (p + 1) << shift);
#pragma unroll
        for (int p = 0; p < 3; p++) {
            const unsigned all = __reduce_add_sync(0xffffffffu, below[p]);
            if (threadIdx.x % 32 == 0)
                atomicAdd(&count[p], all);
        }
        __syncthreads();
        unsigned pivots = 0;
        for (int p = 0; p < 3; p++)
            pivots += count[p] <= rank;
        found |= pivots << shift;
    }
    return found;
}

/* Largest magnitude and, above it in significance, that every NaN is as large as another; below
 * it, the earliest channel. */
static __device__ unsigned long long rank_of(unsigned bits, int channel) {
    return (unsigned long long)min(bits, INFINITE + 1u) << 32 | (0xffffffffu - (unsigned)channel);
}

static __device__ unsigned long long block_most(unsigned long long x, unsigned long long *shared) {
    const unsigned lane = threadIdx.x % 32;
    for (int round = 0; round < 2; round++) {
        for (int apart = 16; apart > 0; apart /= 2)
            x = max(x, __shfl_xor_sync(0xffffffffu, x, apart));
        if (round == 0) {
            if (lane == 0)
                shared[threadIdx.x / 32] = x;
            __syncthreads();
            x = lane < blockDim.x / 32 ? shared[lane] : 0;
        }
    }
    return x;
}

template <typename real, int N, int E>
static __global__ void __launch_bounds__(MOST_THREADS)
    magnitudes(const real *in, int width, float *rms, float *absmax, int *channel, float *median) {
    __shared__ float sums[32];
    __shared__ unsigned long long mosts[32];
    __shared__ unsigned count[ROUNDS * 3];
    unsigned bits[E];
    float x[N], squares = 0.0f;
    unsigned long long most = 0;
    for (int i = (int)threadIdx.x; i < ROUNDS * 3; i += (int)blockDim.x)
        count[i] = 0;
    in += (size_t)blockIdx.x * width;
#pragma unroll
    for (int k = 0; k < E / N; k++) {
        const int c = ((int)threadIdx.x + k * (int)blockDim.x) * N;
        const bool there = c < width;
        if (there)
            load(in + c, x);
#pragma unroll
        for (int i = 0; i < N; i++) {
            bits[k * N + i] = there ? __float_as_uint(x[i]) & 0x7fffffffu : 0xffffffffu;
            squares += there ? x[i] * x[i] : 0.0f;
            most = there ? max(most, rank_of(bits[k * N + i], c + i)) : most;
        }
    }
    const float sum = block_sum(squares, sums);
    float root = sqrtf(sum / (float)width);
    if (!(sum > 1e-30f && sum < 1e37f)) { /* the squares of some elements may be no floats */
        __shared__ double exact[32];
        double all = 0.0;
#pragma unroll
        for (int i = 0; i < E; i++) {
            const double value = (double)__uint_as_float(bits[i]);
            all += bits[i] == 0xffffffffu ? 0.0 : value * value;
        }
        root = (float)sqrt(block_sum(all, exact) / width);
    }
    if (threadIdx.x == 0 && rms)
        rms[blockIdx.x] = root;
    if (absmax || channel) {
        most = block_most(most, mosts);
        const unsigned largest = (unsigned)(most >> 32);
        if (threadIdx.x == 0 && absmax)
            absmax[blockIdx.x] = __uint_as_float(largest > INFINITE ? 0x7fffffffu : largest);
        if (threadIdx.x == 0 && channel)
            channel[blockIdx.x] = (int)(0xffffffffu - (unsigned)most);
    }
    if (median) {
        const unsigned found = select_bits<real, E>(bits, (unsigned)(width - 1) / 2, count);
        if (threadIdx.x == 0)
            median[blockIdx.x] = __uint_as_float(found);
    }
}

/* ---- a warp for each row ---- */

/* Where squares are no floats. */
template <typename real> static __device__ float exact_rms(const real *row, int width) {
    double sum = 0.0;
    for (int i = 0; i < width; i++)
        sum += (double)as_float(row[i]) * (double)as_float(row[i]);
    return (float)sqrt(sum / width);
}

/* Elements below a pivot; NaN and what is not there never are. `bits` holds two bf16 or one float
 * to a word, signs cleared. */
template <typename real, int W>
static __device__ __forceinline__ unsigned count_below(const unsigned (&bits)[W], unsigned pivot) {
    unsigned below = 0;
    if constexpr (sizeof(real) == 2) {
        /* Two at a time: a comparison gives 1.0 or 0.0, sums up to 256 are exact. */
        const unsigned both = pivot | pivot >> 16;
        const __nv_bfloat162 limit = *reinterpret_cast<const __nv_bfloat162 *>(&both);
        __nv_bfloat162 sum = __float2bfloat162_rn(0.0f);
#pragma unroll
        for (int i = 0; i < W; i++)
            sum = __hadd2(sum, __hlt2(*reinterpret_cast<const __nv_bfloat162 *>(&bits[i]), limit));
        below = (unsigned)(__low2float(sum) + __high2float(sum));
    } else {
#pragma unroll
        for (int i = 0; i < W; i++)
            below += bits[i] < pivot;
    }
    return __reduce_add_sync(0xffffffffu, below);
}

/* Element e of a word as the bits of a float, without its sign. */
template <typename real> static __device__ __forceinline__ unsigned element(unsigned word, int e) {
    if constexpr (sizeof(real) == 2)
        return (e ? word & 0xffff0000u : word << 16) & 0x7fffffffu;
    else
        return word & 0x7fffffffu;
}

/* W words of 4 bytes a lane, in packs of 4. What is not there is NaN, above all that is. */
template <typename real, int W>
static __global__ void __launch_bounds__(256)
    magnitudes_of_warps(const real *in, int rows, int width, float *rms, float *absmax,
                        int *channel, float *median) {
    enum { EACH = 4 / sizeof(real), N = 4 * EACH };
    const int row = (int)(blockIdx.x * 8 + threadIdx.x / 32), lane = (int)threadIdx.x % 32;
    if (row >= rows)
        return;
    const real *const from = in + (size_t)row * width;
    unsigned bits[W], most = 0;
    float squares = 0.0f;
#pragma unroll
    for (int k = 0; k < W / 4; k++) {
        const int c = (lane + k * 32) * N;
        uint4 word = make_uint4(~0u, ~0u, ~0u, ~0u);
        if (c < width)
            word = *reinterpret_cast<const uint4 *>(from + c);
        bits[4 * k] = word.x & (EACH == 2 ? 0x7fff7fffu : 0x7fffffffu);
        bits[4 * k + 1] = word.y & (EACH == 2 ? 0x7fff7fffu : 0x7fffffffu);
        bits[4 * k + 2] = word.z & (EACH == 2 ? 0x7fff7fffu : 0x7fffffffu);
        bits[4 * k + 3] = word.w & (EACH == 2 ? 0x7fff7fffu : 0x7fffffffu);
        if (c >= width)
            continue;
#pragma unroll
        for (int i = 0; i < N; i++) {
            const unsigned one = element<real>(bits[4 * k + i / EACH], i % EACH);
            squares += __uint_as_float(one) * __uint_as_float(one);
            most = max(most, one);
        }
    }
    squares = warp_sum(squares);
    most = __reduce_max_sync(0xffffffffu, most);
    int first = width;
    if (channel) {
        const unsigned least = min(most, INFINITE + 1u);
#pragma unroll
        for (int w = W - 1; w >= 0; w--)
#pragma unroll
            for (int e = EACH - 1; e >= 0; e--) {
                const int c = (lane + w / 4 * 32) * N + w % 4 * EACH + e;
                first = c < width && element<real>(bits[w], e) >= least ? c : first;
            }
        first = (int)__reduce_min_sync(0xffffffffu, (unsigned)first);
    }
    unsigned found = 0;
    if (median) {
        const unsigned rank = (unsigned)(width - 1) / 2;
        for (unsigned bit = 1u << 30; bit >= (EACH == 2 ? 1u << 16 : 1u); bit >>= 1)
            if (count_below<real, W>(bits, found | bit) <= rank)
                found |= bit;
        if (EACH == 2 && found > INFINITE) { /* nothing is below NaN, not even infinity */
            unsigned numbers = 0;
#pragma unroll
            for (int w = 0; w < W; w++)
                numbers += (element<real>(bits[w], 0) <= INFINITE) +
                           (element<real>(bits[w], 1) <= INFINITE);
            if (__reduce_add_sync(0xffffffffu, numbers) > rank)
                found = INFINITE;
        }
    }
    if (lane > 0)
        return;
    if (rms)
        rms[row] = squares > 1e-30f && squares < 1e37f ? sqrtf(squares / (float)width)
                                                       : exact_rms(from, width);
    if (absmax)
        absmax[row] = __uint_as_float(most > INFINITE ? 0x7fffffffu : most);
    if (channel)
        channel[row] = first;
    if (median)
        median[row] = __uint_as_float(found);
}

/* ---- launching ---- */

template <typename real, int W>
static void launch_warps(backend *device, const magnitude_args *args) {
    magnitudes_of_warps<real, W><<<cuda_tiles(args->rows, 8), 256, 0, device->stream>>>(
        cuda_at(args->in), (int)args->rows, (int)args->width, cuda_at(args->rms),
        cuda_at(args->absmax), cuda_at(args->absmax_channel), cuda_at(args->median_abs));
}

template <typename real, int N, int E>
static void launch(backend *device, const magnitude_args *args) {
    const size_t threads = ((args->width + E - 1) / E + 31) / 32 * 32;
    magnitudes<real, N, E><<<(unsigned)args->rows, (unsigned)threads, 0, device->stream>>>(
        cuda_at(args->in), (int)args->width, cuda_at(args->rms), cuda_at(args->absmax),
        cuda_at(args->absmax_channel), cuda_at(args->median_abs));
}

template <typename real, int N>
static void launch_any(backend *device, const magnitude_args *args) {
    const size_t words = args->width * sizeof(real) / 4;
    if (N > 1 && words <= 8 * 32)
        launch_warps<real, 8>(device, args);
    else if (N > 1 && words <= 20 * 32)
        launch_warps<real, 20>(device, args);
    else if (N > 1 && words <= 32 * 32)
        launch_warps<real, 32>(device, args);
    else if (args->width <= 8 * MOST_THREADS)
        launch<real, N, 8>(device, args);
    else
        launch<real, N, 64>(device, args);
}

int cuda_magnitude(backend *device, const magnitude_args *args, status *st) {
    const buffer *const outputs[] = {args->rms, args->absmax, args->absmax_channel,
                                     args->median_abs};
    const char *const names[] = {"magnitude: rms", "magnitude: absmax", "magnitude: absmax_channel",
                                 "magnitude: median_abs"};
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++)
        if (outputs[i] && cuda_holds(outputs[i], false, args->rows, 1, names[i], st))
            return FAILED;
    if (args->width == 0 || args->width > 64 * MOST_THREADS)
        return status_fail(st, "magnitude: rows of width %zu: expected 1 to %d", args->width,
                           64 * MOST_THREADS);
    if (cuda_holds(args->in, true, args->rows, args->width, "magnitude: in", st))
        return FAILED;
    if (args->rows == 0)
        return DONE;
    const bool is_wide = cuda_wide(device, args->width);
    if (device->bf16)
        is_wide ? launch_any<__nv_bfloat16, 8>(device, args)
                : launch_any<__nv_bfloat16, 1>(device, args);
    else
        is_wide ? launch_any<float, 4>(device, args) : launch_any<float, 1>(device, args);
    return cuda_launched("magnitude", st);
}
