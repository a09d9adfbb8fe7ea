/* head.c - output head and cross entropy: a tile of rows meets the vocabulary in chunks.
 *
 * Per row, log-sum-exp runs over the chunks with a running maximum and an fp64 sum, so that only
 * one chunk of logits is held; where logits are wanted the chunk is copied out.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector.h"

#include <math.h>
#include <omp.h>
#include <string.h>

enum { TILE_ROWS = 64, CHUNK = 1024 };

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
