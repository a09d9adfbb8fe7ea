/* attention.c - causal attention, one (head, query tile) at a time, and backward.
 *
 * A tile's scores [rows, keys] are one sgemm straight on the packed rows of queries and keys, its
 * output another; only the tile's scores are held. Entropy, first-token mass and the pattern are
 * read off the finished weights, so asking for them changes nothing. Backward makes the
 * weights again, tile by tile; a kv head of a sequence is the work of one thread, so that the
 * gradients of its keys and values are added in one order.
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

/* Where query head h finds its channels in a row of queries, keys and values. */
typedef struct head_place {
    size_t stride, query, key, value;
} head_place;

static head_place place_of(size_t heads, size_t kv_heads, size_t dim, size_t h) {
    const size_t key = heads + h / (heads / kv_heads);
    return (head_place){(heads + 2 * kv_heads) * dim, h * dim, key * dim, (key + kv_heads) * dim};
}

static float score_scale(size_t dim) {
    return (float)(1.0 / sqrt((double)dim));
}

/* The attention weights [rows, keys] of a tile; `start` is the first row of its sequence. */
static void tile_weights(const float *start, const row_tile *tile, const head_place *at, size_t dim,
                         float *weight) {
    const size_t keys = tile->position + tile->rows;
    sgemm(true, tile->rows, keys, dim, score_scale(dim),
          start + tile->position * at->stride + at->query, at->stride, start + at->key, at->stride,
          0.0f, weight, keys);
    causal_softmax(weight, tile->rows, keys, tile->position);
}

static void attention_tile(const attention_args *args, const row_tile *tile, size_t h,
                           float *weight) {
    const size_t dim = args->head_dim, heads = args->query_heads;
    const size_t keys = tile->position + tile->rows;
    const head_place at = place_of(heads, args->kv_heads, dim, h);
    const float *start = floats(args->qkv) + (tile->first - tile->position) * at.stride;
    tile_weights(start, tile, &at, dim, weight);
    sgemm(false, tile->rows, dim, keys, 1.0f, weight, keys, start + at.value, at.stride, 0.0f,
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

/* Gradients of the weights become those of the unscaled scores, in place:
 * scale weight (d_weight - <d_out, out>), zero where a query does not see. `out` and `d_out` have
 * row stride `stride`. */
CLONES static void causal_softmax_back(const float *weight, const row_tile *tile, const float *out,
                                       const float *d_out, size_t stride, size_t dim,
                                       float *d_weight) {
    const size_t keys = tile->position + tile->rows;
    const float scale = score_scale(dim);
    for (size_t r = 0; r < tile->rows; r++) {
        const float *w = weight + r * keys;
        float *d = d_weight + r * keys;
        const float along = dot(out + r * stride, d_out + r * stride, dim);
        const size_t seen = tile->position + r + 1;
#pragma omp simd
        for (size_t i = 0; i < seen; i++)
            d[i] = scale * w[i] * (d[i] - along);
        memset(d + seen, 0, (keys - seen) * sizeof *d);
    }
}

/* One tile of query head h: writes the gradient of its queries, adds those of keys and values.
 * `scratch` [2, rows, keys]. */
static void attention_back_tile(const attention_back_args *args, const row_tile *tile, size_t h,
                                float *scratch) {
    const size_t dim = args->head_dim, inner = args->query_heads * dim;
    const size_t rows = tile->rows, keys = tile->position + rows;
    const head_place at = place_of(args->query_heads, args->kv_heads, dim, h);
    const size_t start = (tile->first - tile->position) * at.stride;
    const size_t query = tile->first * at.stride + at.query;
    const float *qkv = floats(args->qkv), *d_out = floats(args->d_out) + tile->first * inner;
    float *d_qkv = floats(args->d_qkv), *weight = scratch, *d_score = scratch + rows * keys;
    tile_weights(qkv + start, tile, &at, dim, weight);
    sgemm_across(keys, dim, rows, weight, keys, d_out + h * dim, inner, 1.0f,
                 d_qkv + start + at.value, at.stride);
    sgemm(true, rows, keys, dim, 1.0f, d_out + h * dim, inner, qkv + start + at.value, at.stride,
          0.0f, d_score, keys);
    causal_softmax_back(weight, tile, floats(args->out) + tile->first * inner + h * dim,
                        d_out + h * dim, inner, dim, d_score);
    sgemm(false, rows, dim, keys, 1.0f, d_score, keys, qkv + start + at.key, at.stride, 0.0f,
          d_qkv + query, at.stride);
    sgemm_across(keys, dim, rows, d_score, keys, qkv + query, at.stride, 1.0f,
                 d_qkv + start + at.key, at.stride);
}

/* All queries of kv head g in sequence b. */
static void attention_back_group(const attention_back_args *args, size_t b, size_t g,
                                 float *scratch) {
    const size_t dim = args->head_dim, group = args->query_heads / args->kv_heads;
    const size_t first = args->layout->start[b], end = args->layout->start[b + 1];
    const head_place at = place_of(args->query_heads, args->kv_heads, dim, g * group);
    for (size_t r = first; r < end; r++) {
        memset(floats(args->d_qkv) + r * at.stride + at.key, 0, dim * sizeof(float));
        memset(floats(args->d_qkv) + r * at.stride + at.value, 0, dim * sizeof(float));
    }
    for (size_t h = g * group; h < (g + 1) * group; h++)
        for (size_t r = first; r < end; r += TILE_ROWS) {
            const size_t rows = end - r < TILE_ROWS ? end - r : TILE_ROWS;
            attention_back_tile(args, &(row_tile){b, r, rows, r - first}, h, scratch);
        }
}

int cpu_attention_back(backend *device, const attention_back_args *args, status *st) {
    const batch_layout *layout = args->layout;
    const size_t inner = args->query_heads * args->head_dim;
    const attention_args forward = {.layout = layout,
                                    .query_heads = args->query_heads,
                                    .kv_heads = args->kv_heads,
                                    .head_dim = args->head_dim,
                                    .qkv = args->qkv,
                                    .out = (buffer *)args->out};
    size_t tiles, longest = 0, squares = 0, stride;
    float *scratch;
    if (cpu_tiles(device, layout, TILE_ROWS, &tiles, st) ||
        check(&forward, &longest, &squares, st) ||
        cpu_holds(args->d_out, layout->rows, inner, "attention_back: d_out", st) ||
        cpu_holds(args->d_qkv, layout->rows, inner + 2 * args->kv_heads * args->head_dim,
                  "attention_back: d_qkv", st) ||
        cpu_scratch(device, 2 * TILE_ROWS * longest, &scratch, &stride, st))
        return FAILED;
#pragma omp parallel for num_threads(device->threads) schedule(dynamic) collapse(2)
    for (size_t b = 0; b < layout->sequences; b++)
        for (size_t g = 0; g < args->kv_heads; g++)
            attention_back_group(args, b, g, scratch + (size_t)omp_get_thread_num() * stride);
    return DONE;
}
