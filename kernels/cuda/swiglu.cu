/* swiglu.cu - silu(gate) * up, and backward; a thread takes 16 bytes of gate and of up. */
#include "kernels/cuda/device.cuh"

enum { THREADS = 256 };

template <typename real, int N>
static __global__ void forward(const real *gate_up, int width, real *out) {
    const int column = (int)(blockIdx.y * blockDim.x + threadIdx.x) * N;
    if (column >= width)
        return;
    const real *const gate = gate_up + (size_t)blockIdx.x * 2 * width + column;
    float g[N], u[N];
    load(gate, g);
    load(gate + width, u);
#pragma unroll
    for (int i = 0; i < N; i++)
        u[i] *= g[i] / (1.0f + expf(-g[i]));
    store(u, out + (size_t)blockIdx.x * width + column);
}

static int check(size_t width, const char *what, status *st) {
    return width > INT32_MAX / 2 ? status_fail(st, "%s: width %zu is too large", what, width)
                                 : DONE;
}

int cuda_swiglu(backend *device, const swiglu_args *args, status *st) {
    const size_t width = args->width;
    if (check(width, "swiglu", st) ||
        cuda_holds(args->gate_up, true, args->rows, 2 * width, "swiglu: gate_up", st) ||
        cuda_holds(args->out, true, args->rows, width, "swiglu: out", st))
        return FAILED;
    if (args->rows == 0 || width == 0)
        return DONE;
    const bool is_wide = cuda_wide(device, width);
    const dim3 grid((unsigned)args->rows, cuda_tiles(width, THREADS * cuda_pack(device, is_wide)));
    CUDA_PACKED(device, is_wide, forward, grid, THREADS, 0, cuda_at(args->gate_up), (int)width,
                cuda_at(args->out));
    return cuda_launched("swiglu", st);
}

/* With s = sigmoid(gate): d_gate = d_out up s (1 + gate (1 - s)), d_up = d_out gate s. */
template <typename real, int N>
static __global__ void backward(const real *gate_up, const real *d_out, int width, real *d_in) {
    const int column = (int)(blockIdx.y * blockDim.x + threadIdx.x) * N;
    if (column >= width)
        return;
    const size_t at = (size_t)blockIdx.x * 2 * width + column;
    float g[N], u[N], d[N];
    load(gate_up + at, g);
    load(gate_up + at + width, u);
    load(d_out + (size_t)blockIdx.x * width + column, d);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float e = expf(fminf(-g[i], 88.0f)), s = 1.0f / (1.0f + e);
        const float d_gate = d[i] * u[i] * s * (1.0f + g[i] * (e * s));
        u[i] = d[i] * g[i] * s;
        g[i] = d_gate;
    }
    store(g, d_in + at);
    store(u, d_in + at + width);
}

int cuda_swiglu_back(backend *device, const swiglu_back_args *args, status *st) {
    const size_t width = args->width;
    if (check(width, "swiglu_back", st) ||
        cuda_holds(args->gate_up, true, args->rows, 2 * width, "swiglu_back: gate_up", st) ||
        cuda_holds(args->d_out, true, args->rows, width, "swiglu_back: d_out", st) ||
        cuda_holds(args->d_gate_up, true, args->rows, 2 * width, "swiglu_back: d_gate_up", st))
        return FAILED;
    if (args->rows == 0 || width == 0)
        return DONE;
    const bool is_wide = cuda_wide(device, width);
    const dim3 grid((unsigned)args->rows, cuda_tiles(width, THREADS * cuda_pack(device, is_wide)));
    CUDA_PACKED(device, is_wide, backward, grid, THREADS, 0, cuda_at(args->gate_up),
                cuda_at(args->d_out), (int)width, cuda_at(args->d_gate_up));
    return cuda_launched("swiglu_back", st);
}
