/* linear.c - out = in weight^T + bias, one sgemm per tile of rows and columns, and backward.
 *
 * The column tiles give a single short sequence work for every thread; their size is a constant,
 * so a row's bits do not depend on it being needed. Row tiles of 64, 128, 256 run at 71, 82, 81
 * GFLOP/s (width 576, one Zen 3 core, OpenBLAS 0.3.21). A block of a weight's gradient is the work
 * of one thread, which adds one sequence after the other.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector.h"

#include <string.h>

enum { TILE_ROWS = 128, TILE_COLUMNS = 1024, GRAD_ROWS = 64 };

static void linear_tile(const linear_args *args, const row_tile *tile, size_t column) {
    const size_t left = args->out_width - column;
    const size_t columns = left < TILE_COLUMNS ? left : TILE_COLUMNS;
    float *out = floats(args->out) + tile->first * args->out_width + column;
    if (args->bias)
        for (size_t r = 0; r < tile->rows; r++)
            memcpy(out + r * args->out_width, floats(args->bias) + column, columns * sizeof(float));
    sgemm(true, tile->rows, columns, args->in_width, 1.0f,
          floats(args->in) + tile->first * args->in_width, args->in_width,
          floats(args->weight) + column * args->in_width, args->in_width, args->bias ? 1.0f : 0.0f,
          out, args->out_width);
}

int cpu_linear(backend *device, const linear_args *args, status *st) {
    const size_t rows = args->layout->rows;
    size_t tiles;
    if (cpu_dimension(args->in_width, "linear: in_width", st) ||
        cpu_dimension(args->out_width, "linear: out_width", st) ||
        cpu_holds(args->in, rows, args->in_width, "linear: in", st) ||
        cpu_holds(args->weight, args->out_width, args->in_width, "linear: weight", st) ||
        (args->bias && cpu_holds(args->bias, 1, args->out_width, "linear: bias", st)) ||
        cpu_holds(args->out, rows, args->out_width, "linear: out", st) ||
        cpu_tiles(device, args->layout, TILE_ROWS, &tiles, st))
        return FAILED;
    const row_tile *tile = device->tile;
    /* Row tiles run inside a column tile, so that its weights stay in the cache. */
#pragma omp parallel for num_threads(device->threads) schedule(dynamic) collapse(2)
    for (size_t column = 0; column < args->out_width; column += TILE_COLUMNS)
        for (size_t i = 0; i < tiles; i++)
            linear_tile(args, &tile[i], column);
    return DONE;
}

/* d_in = d_out weight. */
static void back_tile(const linear_back_args *args, const row_tile *tile, size_t column) {
    const size_t left = args->in_width - column;
    const size_t columns = left < TILE_COLUMNS ? left : TILE_COLUMNS;
    sgemm(false, tile->rows, columns, args->out_width, 1.0f,
          floats(args->d_out) + tile->first * args->out_width, args->out_width,
          floats(args->weight) + column, args->in_width, 0.0f,
          floats(args->d_in) + tile->first * args->in_width + column, args->in_width);
}

CLONES static void add_bias(const float *d_out, size_t rows, size_t stride, size_t n, float *grad) {
    double sum[GRAD_ROWS] = {0.0};
    for (size_t r = 0; r < rows; r++)
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            sum[i] += (double)d_out[r * stride + i];
    for (size_t i = 0; i < n; i++)
        grad[i] += (float)sum[i];
}

/* Rows `row` and following of the gradients: grad_weight += d_out^T in, grad_bias += sum of d_out,
 * for each sequence in turn. */
static void grad_block(const linear_back_args *args, size_t row) {
    const size_t left = args->out_width - row, n = left < GRAD_ROWS ? left : GRAD_ROWS;
    const size_t in_width = args->in_width, out_width = args->out_width;
    for (size_t b = 0; b < args->layout->sequences; b++) {
        const size_t first = args->layout->start[b], rows = args->layout->start[b + 1] - first;
        const float *d_out = floats(args->d_out) + first * out_width + row;
        if (args->grad_weight)
            sgemm_across(n, in_width, rows, d_out, out_width, floats(args->in) + first * in_width,
                         in_width, 1.0f, floats(args->grad_weight) + row * in_width, in_width);
        if (args->grad_bias)
            add_bias(d_out, rows, out_width, n, floats(args->grad_bias) + row);
    }
}

int cpu_linear_back(backend *device, const linear_back_args *args, status *st) {
    const size_t rows = args->layout->rows, in_width = args->in_width, out_width = args->out_width;
    size_t tiles;
    if (cpu_dimension(in_width, "linear_back: in_width", st) ||
        cpu_dimension(out_width, "linear_back: out_width", st) ||
        cpu_dimension(rows, "linear_back: rows", st) ||
        cpu_holds(args->in, rows, in_width, "linear_back: in", st) ||
        cpu_holds(args->weight, out_width, in_width, "linear_back: weight", st) ||
        cpu_holds(args->d_out, rows, out_width, "linear_back: d_out", st) ||
        cpu_holds(args->d_in, rows, in_width, "linear_back: d_in", st) ||
        (args->grad_weight &&
         cpu_holds(args->grad_weight, out_width, in_width, "linear_back: grad_weight", st)) ||
        (args->grad_bias &&
         cpu_holds(args->grad_bias, 1, out_width, "linear_back: grad_bias", st)) ||
        cpu_tiles(device, args->layout, TILE_ROWS, &tiles, st))
        return FAILED;
    const row_tile *tile = device->tile;
#pragma omp parallel num_threads(device->threads)
    {
#pragma omp for schedule(dynamic) collapse(2) nowait
        for (size_t column = 0; column < in_width; column += TILE_COLUMNS)
            for (size_t i = 0; i < tiles; i++)
                back_tile(args, &tile[i], column);
#pragma omp for schedule(dynamic)
        for (size_t row = 0; row < out_width; row += GRAD_ROWS)
            grad_block(args, row);
    }
    return DONE;
}
