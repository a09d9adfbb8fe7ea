/* rotary.c - head RMSNorm of queries and keys, then rotary position embedding, in place. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector.h"

#include <math.h>

enum { TILE_ROWS = 64 };

INLINED void head_norm(float *x, const float *gain, size_t n, float eps) {
    const float scale = (float)(1.0 / sqrt(sum_squares(x, n) / (double)n + (double)eps));
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        x[i] *= scale * gain[i];
}

/* Turns the pairs (x_i, x_{i + half}) by the angles of one position. */
INLINED void rotate(float *x, const float *cosine, const float *sine, size_t half) {
#pragma omp simd
    for (size_t i = 0; i < half; i++) {
        const float a = x[i], b = x[i + half];
        x[i] = a * cosine[i] - b * sine[i];
        x[i + half] = b * cosine[i] + a * sine[i];
    }
}

CLONES static void rotary_tile(const rotary_args *args, const row_tile *tile) {
    const size_t dim = args->head_dim, half = args->rotary / 2;
    const size_t heads = args->query_heads + args->kv_heads;
    const size_t stride = (heads + args->kv_heads) * dim;
    for (size_t r = 0; r < tile->rows; r++) {
        float *row = floats(args->qkv) + (tile->first + r) * stride;
        const size_t angles = (tile->position + r) * half;
        for (size_t h = 0; h < heads; h++) {
            const buffer *gain = h < args->query_heads ? args->query_gain : args->key_gain;
            if (gain)
                head_norm(row + h * dim, floats(gain), dim, args->eps);
            if (half)
                rotate(row + h * dim, floats(args->cosine) + angles, floats(args->sine) + angles,
                       half);
        }
    }
}

int cpu_rotary(backend *device, const rotary_args *args, status *st) {
    const batch_layout *layout = args->layout;
    const size_t dim = args->head_dim, half = args->rotary / 2;
    size_t tiles, longest = 0;
    if (args->rotary % 2 || args->rotary > dim)
        return status_fail(st,
                           "rotary: %zu channels of a head of %zu: expected an even number of "
                           "at most the head's",
                           args->rotary, dim);
    if (cpu_tiles(device, layout, TILE_ROWS, &tiles, st))
        return FAILED;
    for (size_t b = 0; b < layout->sequences; b++)
        if (layout->start[b + 1] - layout->start[b] > longest)
            longest = layout->start[b + 1] - layout->start[b];
    if (cpu_holds(args->qkv, layout->rows, (args->query_heads + 2 * args->kv_heads) * dim,
                  "rotary: qkv", st) ||
        (half && cpu_holds(args->cosine, longest, half, "rotary: cosine", st)) ||
        (half && cpu_holds(args->sine, longest, half, "rotary: sine", st)) ||
        (args->query_gain && cpu_holds(args->query_gain, 1, dim, "rotary: query_gain", st)) ||
        (args->key_gain && cpu_holds(args->key_gain, 1, dim, "rotary: key_gain", st)))
        return FAILED;
#pragma omp parallel for num_threads(device->threads) schedule(static)
    for (size_t i = 0; i < tiles; i++)
        rotary_tile(args, &device->tile[i]);
    return DONE;
}
