/* swiglu.c - silu(gate) * up, and backward. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector.h"

CLONES static void swiglu_row(const float *restrict gate, const float *restrict up, size_t width,
                              float *restrict out) {
#pragma omp simd
    for (size_t i = 0; i < width; i++)
        out[i] = gate[i] / (1.0f + exp_fast(0.0f - gate[i])) * up[i];
}

int cpu_swiglu(backend *device, const swiglu_args *args, status *st) {
    const size_t width = args->width;
    if (width > SIZE_MAX / 2)
        return status_fail(st, "swiglu: width %zu is too large", width);
    if (cpu_holds(args->gate_up, args->rows, 2 * width, "swiglu: gate_up", st) ||
        cpu_holds(args->out, args->rows, width, "swiglu: out", st))
        return FAILED;
    const float *in = floats(args->gate_up);
    float *out = floats(args->out);
#pragma omp parallel for num_threads(device->threads) schedule(static)
    for (size_t r = 0; r < args->rows; r++)
        swiglu_row(in + r * 2 * width, in + r * 2 * width + width, width, out + r * width);
    return DONE;
}

/* With s = sigmoid(gate): d_gate = d_out up s (1 + gate (1 - s)), d_up = d_out gate s. */
CLONES static void swiglu_back_row(const float *gate, const float *up, const float *d_out,
                                   size_t width, float *d_gate, float *d_up) {
#pragma omp simd
    for (size_t i = 0; i < width; i++) {
        const float g = gate[i], u = up[i], e = exp_fast(0.0f - g), s = 1.0f / (1.0f + e);
        d_gate[i] = d_out[i] * u * s * (1.0f + g * (e * s));
        d_up[i] = d_out[i] * g * s;
    }
}

int cpu_swiglu_back(backend *device, const swiglu_back_args *args, status *st) {
    const size_t width = args->width;
    if (width > SIZE_MAX / 2)
        return status_fail(st, "swiglu_back: width %zu is too large", width);
    if (cpu_holds(args->gate_up, args->rows, 2 * width, "swiglu_back: gate_up", st) ||
        cpu_holds(args->d_out, args->rows, width, "swiglu_back: d_out", st) ||
        cpu_holds(args->d_gate_up, args->rows, 2 * width, "swiglu_back: d_gate_up", st))
        return FAILED;
    const float *in = floats(args->gate_up), *d_out = floats(args->d_out);
    float *d_in = floats(args->d_gate_up);
#pragma omp parallel for num_threads(device->threads) schedule(static)
    for (size_t r = 0; r < args->rows; r++) {
        const size_t at = r * 2 * width;
        swiglu_back_row(in + at, in + at + width, d_out + r * width, width, d_in + at,
                        d_in + at + width);
    }
    return DONE;
}
