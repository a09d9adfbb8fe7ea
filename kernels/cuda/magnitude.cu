/* magnitude.cu - rms, largest magnitude with its channel, and lower median of |x|, row by row.
 *
 * A block for each row, which it holds in registers, 8 elements a thread up to a width of 8192.
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

template <typename real, int N, int E>
static void launch(backend *device, const magnitude_args *args) {
    const size_t threads = ((args->width + E - 1) / E + 31) / 32 * 32;
    magnitudes<real, N, E><<<(unsigned)args->rows, (unsigned)threads, 0, device->stream>>>(
        cuda_at(args->in), (int)args->width, cuda_at(args->rms), cuda_at(args->absmax),
        cuda_at(args->absmax_channel), cuda_at(args->median_abs));
}

template <typename real, int N>
static void launch_any(backend *device, const magnitude_args *args) {
    if (args->width <= 8 * MOST_THREADS)
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
