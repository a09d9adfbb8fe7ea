/* swiglu.c - silu(gate) * up. */
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
