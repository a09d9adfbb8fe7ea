/* rotary.c - head RMSNorm of queries and keys, then rotary position embedding, and backward. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector.h"

#include <math.h>
#include <string.h>

enum { TILE_ROWS = 64 };

INLINED void head_norm(float *x, const float *gain, size_t n, float eps) {
    const float scale = (float)(1.0 / sqrt(sum_squares(x, n) / (double)n + (double)eps));
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        x[i] *= scale * gain[i];
}

/* Turns the pairs (x_i, x_{i + half}) by the angles of one position, or back (`sign` -1). */
INLINED void rotate(float *x, const float *cosine, const float *sine, size_t half, float sign) {
#pragma omp simd
    for (size_t i = 0; i < half; i++) {
        const float a = x[i], b = x[i + half], s = sign * sine[i];
        x[i] = a * cosine[i] - b * s;
        x[i + half] = b * cosine[i] + a * s;
    }
}

static size_t row_width(const rotary_args *args) {
    return (args->query_heads + 2 * args->kv_heads) * args->head_dim;
}

/* Row `row` of `from`, copied to `to` unless it is the same buffer. */
static float *row_of(const buffer *from, buffer *to, size_t row, size_t width) {
    float *out = floats(to) + row * width;
    if (to != from)
        memcpy(out, floats(from) + row * width, width * sizeof *out);
    return out;
}

CLONES static void rotary_tile(const rotary_args *args, const row_tile *tile) {
    const size_t dim = args->head_dim, half = args->rotary / 2;
    for (size_t r = 0; r < tile->rows; r++) {
        float *row = row_of(args->in, args->out, tile->first + r, row_width(args));
        const size_t angles = (tile->position + r) * half;
        for (size_t h = 0; h < args->query_heads + args->kv_heads; h++) {
            const buffer *gain = h < args->query_heads ? args->query_gain : args->key_gain;
            if (gain)
                head_norm(row + h * dim, floats(gain), dim, args->eps);
            if (half)
                rotate(row + h * dim, floats(args->cosine) + angles, floats(args->sine) + angles,
                       half, 1.0f);
        }
    }
}

/* `grad` [2, head_dim]: this tile's part of the gradients of the queries' and the keys' gain. */
CLONES static void rotary_back_tile(const rotary_back_args *args, const row_tile *tile,
                                    float *grad) {
    const rotary_args *forward = args->forward;
    const size_t dim = forward->head_dim, half = forward->rotary / 2, width = row_width(forward);
    memset(grad, 0, 2 * dim * sizeof *grad);
    for (size_t r = 0; r < tile->rows; r++) {
        float *row = row_of(args->d_out, args->d_in, tile->first + r, width);
        const size_t angles = (tile->position + r) * half, at = (tile->first + r) * width;
        for (size_t h = 0; h < forward->query_heads + forward->kv_heads; h++) {
            const bool query = h < forward->query_heads;
            const buffer *gain = query ? forward->query_gain : forward->key_gain;
            if (half)
                rotate(row + h * dim, floats(forward->cosine) + angles,
                       floats(forward->sine) + angles, half, -1.0f);
            if (gain)
                rms_back(floats(forward->in) + at + h * dim, floats(gain), row + h * dim, dim,
                         forward->eps, row + h * dim, query ? grad : grad + dim);
        }
    }
}

/* Shapes of what both directions read. */
static int check(const rotary_args *args, status *st) {
    const batch_layout *layout = args->layout;
    const size_t dim = args->head_dim, half = args->rotary / 2;
    size_t longest = 0;
    if (args->rotary % 2 || args->rotary > dim)
        return status_fail(st,
                           "rotary: %zu channels of a head of %zu: expected an even number of "
                           "at most the head's",
                           args->rotary, dim);
    for (size_t b = 0; b < layout->sequences; b++)
        if (layout->start[b + 1] - layout->start[b] > longest)
            longest = layout->start[b + 1] - layout->start[b];
    if ((half && cpu_holds(args->cosine, longest, half, "rotary: cosine", st)) ||
        (half && cpu_holds(args->sine, longest, half, "rotary: sine", st)) ||
        (args->query_gain && cpu_holds(args->query_gain, 1, dim, "rotary: query_gain", st)) ||
        (args->key_gain && cpu_holds(args->key_gain, 1, dim, "rotary: key_gain", st)))
        return FAILED;
    return DONE;
}

int cpu_rotary(backend *device, const rotary_args *args, status *st) {
    const size_t rows = args->layout->rows;
    size_t tiles;
    if (cpu_tiles(device, args->layout, TILE_ROWS, &tiles, st) || check(args, st) ||
        cpu_holds(args->in, rows, row_width(args), "rotary: in", st) ||
        cpu_holds(args->out, rows, row_width(args), "rotary: out", st))
        return FAILED;
#pragma omp parallel for num_threads(device->threads) schedule(static)
    for (size_t i = 0; i < tiles; i++)
        rotary_tile(args, &device->tile[i]);
    return DONE;
}

int cpu_rotary_back(backend *device, const rotary_back_args *args, status *st) {
    const rotary_args *forward = args->forward;
    const size_t rows = forward->layout->rows, dim = forward->head_dim, width = row_width(forward);
    buffer *grad_query = forward->query_gain ? args->grad_query_gain : NULL;
    buffer *grad_key = forward->key_gain ? args->grad_key_gain : NULL;
    size_t tiles, stride;
    float *part;
    if (cpu_tiles(device, forward->layout, TILE_ROWS, &tiles, st) || check(forward, st) ||
        ((forward->query_gain || forward->key_gain) &&
         cpu_holds(forward->in, rows, width, "rotary_back: in", st)) ||
        cpu_holds(args->d_out, rows, width, "rotary_back: d_out", st) ||
        cpu_holds(args->d_in, rows, width, "rotary_back: d_in", st) ||
        (grad_query && cpu_holds(grad_query, 1, dim, "rotary_back: grad_query_gain", st)) ||
        (grad_key && cpu_holds(grad_key, 1, dim, "rotary_back: grad_key_gain", st)) ||
        cpu_scratch_parts(device, tiles, 2 * dim, &part, &stride, st))
        return FAILED;
#pragma omp parallel for num_threads(device->threads) schedule(static)
    for (size_t i = 0; i < tiles; i++)
        rotary_back_tile(args, &device->tile[i], part + i * stride);
    if (grad_query)
        add_rows(floats(grad_query), part, tiles, stride, dim);
    if (grad_key)
        add_rows(floats(grad_key), part + dim, tiles, stride, dim);
    return DONE;
}
