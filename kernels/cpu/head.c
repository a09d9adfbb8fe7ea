/* head.c - output head and cross entropy: a tile of rows meets the vocabulary in chunks.
 *
 * Per row, log-sum-exp runs over the chunks with a running maximum and an fp64 sum, so that only
 * one chunk of logits is held; where logits are wanted the chunk is copied out. Backward holds the
 * logits of one slab of a sequence's rows, which all threads make and use together.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector.h"

#include <math.h>
#include <omp.h>
#include <string.h>

enum { TILE_ROWS = 64, CHUNK = 1024 };
/* Backward: rows of a slab, so that its logits take 16 MiB where that leaves it TILE_ROWS. */
enum { SLAB_ROWS = 256, SLAB_FLOATS = 1 << 22, GRAD_ROWS = 64, BACK_COLUMNS = 256 };

typedef struct row_state {
    double sum;    /* sum of exp(logit - most) so far */
    float most;    /* largest logit so far */
    float at_goal; /* logit of the target */
} row_state;

CLONES static void add_chunk(const float *logit, size_t n, row_state *state) {
    const float here = largest(logit, n);
    const float most = here > state->most ? here : state->most;
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++)
        sum += (double)exp_fast(logit[i] - most);
    state->sum = state->sum * exp((double)state->most - (double)most) + sum;
    state->most = most;
}

static void head_tile(const head_args *args, const row_tile *tile, float *logits) {
    const int32_t *target = (const int32_t *)args->target->data + tile->first;
    row_state state[TILE_ROWS];
    for (size_t r = 0; r < tile->rows; r++)
        state[r] = (row_state){.most = -INFINITY, .at_goal = NAN};
    for (size_t column = 0; column < args->vocabulary; column += CHUNK) {
        const size_t left = args->vocabulary - column, n = left < CHUNK ? left : CHUNK;
        sgemm(true, tile->rows, n, args->width, 1.0f, floats(args->in) + tile->first * args->width,
              args->width, floats(args->weight) + column * args->width, args->width, 0.0f, logits,
              n);
        for (size_t r = 0; r < tile->rows; r++) {
            const float *row = logits + r * n;
            add_chunk(row, n, &state[r]);
            if (target[r] >= 0 && (size_t)target[r] >= column && (size_t)target[r] - column < n)
                state[r].at_goal = row[(size_t)target[r] - column];
            if (args->logits)
                memcpy(floats(args->logits) + (tile->first + r) * args->vocabulary + column, row,
                       n * sizeof(float));
        }
    }
    for (size_t r = 0; r < tile->rows; r++)
        floats(args->loss)[tile->first + r] =
            target[r] < 0
                ? NAN
                : (float)(log(state[r].sum) + ((double)state[r].most - (double)state[r].at_goal));
}

int cpu_head(backend *device, const head_args *args, status *st) {
    const size_t rows = args->layout->rows;
    size_t tiles, stride;
    float *scratch;
    if (cpu_dimension(args->width, "head: width", st) ||
        cpu_holds(args->in, rows, args->width, "head: in", st) ||
        cpu_holds(args->weight, args->vocabulary, args->width, "head: weight", st) ||
        cpu_holds(args->target, rows, 1, "head: target", st) ||
        cpu_holds(args->loss, rows, 1, "head: loss", st) ||
        (args->logits && cpu_holds(args->logits, rows, args->vocabulary, "head: logits", st)) ||
        cpu_tiles(device, args->layout, TILE_ROWS, &tiles, st) ||
        cpu_scratch(device, TILE_ROWS * CHUNK, &scratch, &stride, st))
        return FAILED;
    const row_tile *tile = device->tile;
#pragma omp parallel for num_threads(device->threads) schedule(dynamic)
    for (size_t i = 0; i < tiles; i++)
        head_tile(args, &tile[i], scratch + (size_t)omp_get_thread_num() * stride);
    return DONE;
}

static size_t lesser(size_t a, size_t b) {
    return a < b ? a : b;
}

/* Logits of one row become the gradient of its loss: softmax - onehot, or 0 without a target. */
CLONES static void logits_back(float *logit, size_t n, int32_t target) {
    if (target < 0) {
        memset(logit, 0, n * sizeof *logit);
        return;
    }
    const float most = largest(logit, n);
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++) {
        logit[i] = exp_fast(logit[i] - most);
        sum += (double)logit[i];
    }
    const float scale = (float)(1.0 / sum);
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        logit[i] *= scale;
    logit[target] -= 1.0f;
}

/* Run by every thread of a team; `logits` [slab->rows, vocabulary] is the team's. */
static void head_back_slab(const head_back_args *args, const row_tile *slab, float *logits) {
    const size_t width = args->width, vocabulary = args->vocabulary, rows = slab->rows;
    const float *in = floats(args->in) + slab->first * width, *weight = floats(args->weight);
    const int32_t *target = (const int32_t *)args->target->data + slab->first;
    float *d_in = floats(args->d_in) + slab->first * width, *grad = floats(args->grad_weight);
#pragma omp for schedule(dynamic) collapse(2)
    for (size_t column = 0; column < vocabulary; column += CHUNK)
        for (size_t r = 0; r < rows; r += TILE_ROWS)
            sgemm(true, lesser(TILE_ROWS, rows - r), lesser(CHUNK, vocabulary - column), width,
                  1.0f, in + r * width, width, weight + column * width, width, 0.0f,
                  logits + r * vocabulary + column, vocabulary);
#pragma omp for schedule(static)
    for (size_t r = 0; r < rows; r++)
        logits_back(logits + r * vocabulary, vocabulary, target[r]);
#pragma omp for schedule(dynamic) collapse(2) nowait
    for (size_t column = 0; column < width; column += BACK_COLUMNS)
        for (size_t r = 0; r < rows; r += TILE_ROWS)
            sgemm(false, lesser(TILE_ROWS, rows - r), lesser(BACK_COLUMNS, width - column),
                  vocabulary, 1.0f, logits + r * vocabulary, vocabulary, weight + column, width,
                  0.0f, d_in + r * width + column, width);
#pragma omp for schedule(dynamic)
    for (size_t row = 0; row < (grad ? vocabulary : 0); row += GRAD_ROWS)
        sgemm_across(lesser(GRAD_ROWS, vocabulary - row), width, rows, logits + row, vocabulary, in,
                     width, 1.0f, grad + row * width, width);
}

int cpu_head_back(backend *device, const head_back_args *args, status *st) {
    const size_t rows = args->layout->rows, width = args->width, vocabulary = args->vocabulary;
    size_t slabs, stride;
    float *logits;
    if (cpu_dimension(width, "head_back: width", st) ||
        cpu_dimension(vocabulary, "head_back: vocabulary", st) ||
        cpu_holds(args->in, rows, width, "head_back: in", st) ||
        cpu_holds(args->weight, vocabulary, width, "head_back: weight", st) ||
        cpu_holds(args->target, rows, 1, "head_back: target", st) ||
        cpu_holds(args->d_in, rows, width, "head_back: d_in", st) ||
        (args->grad_weight &&
         cpu_holds(args->grad_weight, vocabulary, width, "head_back: grad_weight", st)))
        return FAILED;
    const size_t fit = SLAB_FLOATS / (vocabulary ? vocabulary : 1) / TILE_ROWS * TILE_ROWS;
    const size_t slab_rows = lesser(SLAB_ROWS, fit ? fit : TILE_ROWS);
    if (cpu_tiles(device, args->layout, slab_rows, &slabs, st) ||
        cpu_scratch_parts(device, 1, slab_rows * vocabulary, &logits, &stride, st))
        return FAILED;
    const row_tile *slab = device->tile;
#pragma omp parallel num_threads(device->threads)
    for (size_t i = 0; i < slabs; i++)
        head_back_slab(args, &slab[i], logits);
    return DONE;
}
