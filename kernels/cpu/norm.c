/* norm.c - RMSNorm and LayerNorm of rows, and RMSNorm backward; the statistics of a row are taken
 * in fp64. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector.h"

#include <math.h>
#include <string.h>

enum { BACK_ROWS = 64 };

CLONES static void rms_row(const norm_args *args, size_t row) {
    const size_t width = args->width;
    const float *in = floats(args->in) + row * width;
    const float *gain = floats(args->gain), *bias = floats(args->bias);
    float *out = floats(args->out) + row * width;
    const double mean = sum_squares(in, width) / (double)width;
    const float scale = (float)(1.0 / sqrt(mean + (double)args->eps));
    if (args->rms)
        floats(args->rms)[row] = (float)sqrt(mean);
#pragma omp simd
    for (size_t i = 0; i < width; i++)
        out[i] = in[i] * scale * gain[i];
    if (bias)
#pragma omp simd
        for (size_t i = 0; i < width; i++)
            out[i] += bias[i];
}

CLONES static void layer_row(const norm_args *args, size_t row) {
    const size_t width = args->width;
    const float *in = floats(args->in) + row * width;
    float *out = floats(args->out) + row * width;
    const float *gain = floats(args->gain), *bias = floats(args->bias);
    double sum = 0.0, squares = 0.0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < width; i++)
        sum += (double)in[i];
    const double mean = sum / (double)width;
#pragma omp simd reduction(+ : squares)
    for (size_t i = 0; i < width; i++)
        squares += ((double)in[i] - mean) * ((double)in[i] - mean);
    const double scale = 1.0 / sqrt(squares / (double)width + (double)args->eps);
#pragma omp simd
    for (size_t i = 0; i < width; i++)
        out[i] = (float)(((double)in[i] - mean) * scale) * gain[i];
    if (bias)
#pragma omp simd
        for (size_t i = 0; i < width; i++)
            out[i] += bias[i];
}

int cpu_norm(backend *device, const norm_args *args, status *st) {
    const size_t width = args->width;
    if (cpu_holds(args->in, args->rows, width, "norm: in", st) ||
        cpu_holds(args->gain, 1, width, "norm: gain", st) ||
        (args->bias && cpu_holds(args->bias, 1, width, "norm: bias", st)) ||
        cpu_holds(args->out, args->rows, width, "norm: out", st) ||
        (args->rms && cpu_holds(args->rms, args->rows, 1, "norm: rms", st)))
        return FAILED;
    void (*const row)(const norm_args *, size_t) = args->kind == NORM_RMS ? rms_row : layer_row;
#pragma omp parallel for num_threads(device->threads) schedule(static)
    for (size_t r = 0; r < args->rows; r++)
        row(args, r);
    return DONE;
}

/* `grad` [width]: this tile's part of the gain's gradient. */
CLONES static void rms_back_tile(const norm_back_args *args, const row_tile *tile, float *grad) {
    const size_t width = args->width;
    memset(grad, 0, width * sizeof *grad);
    for (size_t r = tile->first; r < tile->first + tile->rows; r++)
        rms_back(floats(args->in) + r * width, floats(args->gain), floats(args->d_out) + r * width,
                 width, args->eps, floats(args->d_in) + r * width, grad);
}

int cpu_norm_back(backend *device, const norm_back_args *args, status *st) {
    const size_t rows = args->layout->rows, width = args->width;
    size_t tiles, stride;
    float *part;
    if (cpu_holds(args->in, rows, width, "norm_back: in", st) ||
        cpu_holds(args->gain, 1, width, "norm_back: gain", st) ||
        cpu_holds(args->d_out, rows, width, "norm_back: d_out", st) ||
        cpu_holds(args->d_in, rows, width, "norm_back: d_in", st) ||
        (args->grad_gain && cpu_holds(args->grad_gain, 1, width, "norm_back: grad_gain", st)) ||
        cpu_tiles(device, args->layout, BACK_ROWS, &tiles, st) ||
        cpu_scratch_parts(device, tiles, width, &part, &stride, st))
        return FAILED;
#pragma omp parallel for num_threads(device->threads) schedule(static)
    for (size_t i = 0; i < tiles; i++)
        rms_back_tile(args, &device->tile[i], part + i * stride);
    if (args->grad_gain)
        add_rows(floats(args->grad_gain), part, tiles, stride, width);
    return DONE;
}
