/* magnitude.c - rms, largest magnitude with its channel, and lower median of |x|, row by row.
 *
 * Magnitudes are compared as integers: with the sign bit cleared, IEEE floats are ordered as their
 * bit patterns are, NaN above infinity.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector.h"

#include <math.h>
#include <omp.h>

enum { INFINITE = 0x7f800000 };

CLONES static double row_squares(const float *row, size_t width) {
    return sum_squares(row, width);
}

/* Magnitudes as bit patterns. */
CLONES static void magnitudes(const float *row, size_t width, int32_t *bits) {
#pragma omp simd
    for (size_t i = 0; i < width; i++)
        bits[i] = (int32_t)(float_bits(row[i]) & 0x7fffffffu);
}

CLONES static int32_t largest_bits(const int32_t *bits, size_t width) {
    int32_t most = 0;
#pragma omp simd reduction(max : most)
    for (size_t i = 0; i < width; i++)
        most = bits[i] > most ? bits[i] : most;
    return most;
}

/* Element `rank` in ascending order, by bisection over the 31 bits of the answer: each step counts
 * the elements below a pivot, a loop without branches, and nothing is moved. */
CLONES static int32_t select_bits(const int32_t *bits, size_t width, size_t rank) {
    int32_t found = 0;
    for (int32_t bit = 1 << 30; bit; bit >>= 1) {
        const int32_t pivot = found | bit;
        int32_t below = 0;
#pragma omp simd reduction(+ : below)
        for (size_t i = 0; i < width; i++)
            below += bits[i] < pivot;
        if ((size_t)below <= rank)
            found = pivot;
    }
    return found;
}

static size_t first_at_least(const int32_t *bits, size_t width, int32_t least) {
    for (size_t i = 0; i < width; i++)
        if (bits[i] >= least)
            return i;
    return 0;
}

static void magnitude_row(const magnitude_args *args, size_t r, int32_t *bits) {
    const size_t width = args->width;
    const float *row = floats(args->in) + r * width;
    if (args->rms)
        floats(args->rms)[r] = (float)sqrt(row_squares(row, width) / (double)width);
    if (!args->absmax && !args->absmax_channel && !args->median_abs)
        return;
    magnitudes(row, width, bits);
    const int32_t most = largest_bits(bits, width);
    if (args->absmax)
        floats(args->absmax)[r] = bits_float((uint32_t)most);
    if (args->absmax_channel)
        ((int32_t *)args->absmax_channel->data)[r] = (int32_t)first_at_least(
            bits, width, most > INFINITE ? INFINITE + 1 : most); /* the first NaN, if any */
    if (args->median_abs)
        floats(args->median_abs)[r] =
            bits_float((uint32_t)select_bits(bits, width, (width - 1) / 2));
}

int cpu_magnitude(backend *device, const magnitude_args *args, status *st) {
    const size_t rows = args->rows;
    const buffer *const outputs[] = {args->rms, args->absmax, args->absmax_channel,
                                     args->median_abs};
    const char *const names[] = {"magnitude: rms", "magnitude: absmax", "magnitude: absmax_channel",
                                 "magnitude: median_abs"};
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++)
        if (outputs[i] && cpu_holds(outputs[i], rows, 1, names[i], st))
            return FAILED;
    if (args->width == 0)
        return status_fail(st, "magnitude: rows of width 0");
    float *scratch;
    size_t stride;
    if (cpu_dimension(args->width, "magnitude: width", st) ||
        cpu_holds(args->in, rows, args->width, "magnitude: in", st) ||
        cpu_scratch(device, args->width, &scratch, &stride, st))
        return FAILED;
#pragma omp parallel for num_threads(device->threads) schedule(static)
    for (size_t r = 0; r < rows; r++)
        magnitude_row(args, r,
                      (int32_t *)(void *)(scratch + (size_t)omp_get_thread_num() * stride));
    return DONE;
}
