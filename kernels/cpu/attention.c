/* attention.c - causal attention, one (head, query tile) at a time.
 *
 * A tile's scores [rows, keys] are one sgemm straight on the packed rows of queries and keys, its
 * output another; only the tile's scores are held. Entropy, first-token mass and the pattern are
 * read off the finished weights, so asking for them changes nothing.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { TILE_ROWS = 64 };

/* Scores of query position p against `keys` positions become weights, zero beyond p. */
CLONES static void causal_softmax(float *score, size_t rows, size_t keys, size_t position) {
    for (size_t r = 0; r < rows; r++) {
        float *row = score + r * keys;
        const size_t seen = position + r + 1;
        softmax(row, seen);
        memset(row + seen, 0, (keys - seen) * sizeof(float));
    }
}

CLONES static float row_entropy(const float *weight, size_t n) {
    return entropy(weight, n);
}

/* The optional outputs of one tile of head h; `square` is sum_{c<b} T_c^2, `length` T_b. */
static void write_extras(const attention_args *args, const row_tile *tile, size_t h,
                         const float *weight, size_t keys, size_t square, size_t length) {
    const size_t heads = args->query_heads;
    for (size_t r = 0; r < tile->rows; r++) {
        const float *row = weight + r * keys;
        const size_t cell = (tile->first + r) * heads + h;
        if (args->entropy)
            floats(args->entropy)[cell] = row_entropy(row, tile->position + r + 1);
        if (args->first_token_mass)
            floats(args->first_token_mass)[cell] = row[0];
        if (args->pattern) {
            float *to =
                floats(args->pattern) + heads * square + (h * length + tile->position + r) * length;
            memcpy(to, row, keys * sizeof(float));
            memset(to + keys, 0, (length - keys) * sizeof(float));
        }
    }
}

static void attention_tile(const attention_args *args, const row_tile *tile, size_t h,
                           float *score) {
    const size_t dim = args->head_dim, heads = args->query_heads, kv_heads = args->kv_heads;
    const size_t stride = (heads + 2 * kv_heads) * dim;
    const size_t keys = tile->position + tile->rows;
    const float *start = floats(args->qkv) + (tile->first - tile->position) * stride;
    const float *query = start + tile->position * stride + h * dim;
    const float *key = start + (heads + h / (heads / kv_heads)) * dim;
    const float *value = key + kv_heads * dim;
    sgemm(true, tile->rows, keys, dim, (float)(1.0 / sqrt((double)dim)), query, stride, key, stride,
          0.0f, score, keys);
    causal_softmax(score, tile->rows, keys, tile->position);
    sgemm(false, tile->rows, dim, keys, 1.0f, score, keys, value, stride, 0.0f,
          floats(args->out) + tile->first * heads * dim + h * dim, heads * dim);
}

/* Checks shapes; *longest: the longest sequence, *squares: sum of T^2. */
static int check(const attention_args *args, size_t *longest, size_t *squares, status *st) {
    const batch_layout *layout = args->layout;
    const size_t heads = args->query_heads, kv = args->kv_heads;
    if (heads == 0 || kv == 0 || heads % kv)
        return status_fail(st, "attention: %zu query heads on %zu kv heads: not a multiple", heads,
                           kv);
    for (size_t b = 0; b < layout->sequences; b++) {
        const size_t length = layout->start[b + 1] - layout->start[b];
        size_t square;
        *longest = length > *longest ? length : *longest;
        if (__builtin_mul_overflow(length, length, &square) ||
            __builtin_add_overflow(*squares, square, squares))
            return status_fail(st, "attention: a sequence of %zu tokens is too long", length);
    }
    if (cpu_dimension(*longest, "attention: sequence length", st) ||
        cpu_dimension((heads + 2 * kv) * args->head_dim, "attention: qkv width", st) ||
        cpu_holds(args->qkv, layout->rows, (heads + 2 * kv) * args->head_dim, "attention: qkv",
                  st) ||
        cpu_holds(args->out, layout->rows, heads * args->head_dim, "attention: out", st) ||
        (args->entropy &&
         cpu_holds(args->entropy, layout->rows, heads, "attention: entropy", st)) ||
        (args->first_token_mass && cpu_holds(args->first_token_mass, layout->rows, heads,
                                             "attention: first_token_mass", st)) ||
        (args->pattern && cpu_holds(args->pattern, *squares, heads, "attention: pattern", st)))
        return FAILED;
    return DONE;
}

int cpu_attention(backend *device, const attention_args *args, status *st) {
    const batch_layout *layout = args->layout;
    const bool extras = args->entropy || args->first_token_mass || args->pattern;
    size_t tiles, longest = 0, squares = 0, stride;
    float *scratch;
    if (cpu_tiles(device, layout, TILE_ROWS, &tiles, st) || check(args, &longest, &squares, st) ||
        cpu_scratch(device, TILE_ROWS * longest, &scratch, &stride, st))
        return FAILED;
    size_t *square = mem_array(layout->sequences + 1, sizeof *square, "pattern offsets", st);
    if (!square)
        return FAILED;
    for (size_t b = 0; b < layout->sequences; b++) {
        const size_t length = layout->start[b + 1] - layout->start[b];
        square[b + 1] = square[b] + length * length;
    }
    const row_tile *tile = device->tile;
#pragma omp parallel for num_threads(device->threads) schedule(dynamic) collapse(2)
    for (size_t i = 0; i < tiles; i++)
        for (size_t h = 0; h < args->query_heads; h++) {
            float *score = scratch + (size_t)omp_get_thread_num() * stride;
            attention_tile(args, &tile[i], h, score);
            const size_t b = tile[i].sequence;
            if (extras)
                write_extras(args, &tile[i], h, score, tile[i].position + tile[i].rows, square[b],
                             layout->start[b + 1] - layout->start[b]);
        }
    free(square);
    return DONE;
}
