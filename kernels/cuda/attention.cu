/* attention.cu - causal attention of packed sequences: checks, the bf16 kernel, the pattern.
 *
 * A block has one head's tile of 128 queries (64 where a head has more than 128 channels); a warp
 * has 32 (16) of them. Keys and values pass by in tiles of 64 or 128 with a running maximum and sum
 * per row, so no score leaves the registers: scores in fp32 from mma.sync, weights rounded to bf16
 * only as the left operand of the product with the values. Values load while scores are made, the
 * next keys while values are weighed. Entropy, first-token mass and log-sum come from a second
 * instance of the kernel that adds sum p x beside the sum p: with x the exponent of each weight,
 * entropy = log(sum p) - sum p x / sum p. The output's arithmetic is the same in both.
 * Tiles start at each sequence's first row: its rows are the same bits in every batch.
 *
 * Tried on an NVIDIA H200, ms at 16 heads, 4 sequences of 2048 and one of 8192 (16-row pieces a
 * warp, keys a tile, warps):
 *     64 channels:   2 64 4   0.168 0.578     2 128 4  0.152 0.520  in use    1 128 4  0.175 0.618
 *                    1 64 8   0.167 0.594     2 64 8   0.181 0.631            1 64 4   0.172 0.624
 *                    2 32 4   0.175 0.623     2 32 8   0.231 0.778
 *     128 channels:  2 64 4   0.262 0.905  in use     2 32 4   0.297 1.041    1 64 4   0.306 1.141
 *                    1 64 8   0.356 1.282     2 64 8   0.278 0.949            1 128 4  0.378 1.337
 *                    2 32 8   0.322 1.119     1 32 4   0.320 1.187
 */
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/mma.cuh"

#include <math.h>

#define LN_2 0.6931471805599453f

template <int MT>
__device__ __forceinline__ void
write_extras(const attention_shape &shape, const attention_block &at, int query, float scale,
             const row_state<MT> &state, const attention_extras &extras) {
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int side = 0; side < 2; side++) {
            const float along = quad_sum(state.along[m][side]), sum = state.sum[m][side];
            const int position = query + m * 16 + side * 8 + lane / 4;
            if (lane % 4 || position >= at.length)
                continue;
            const size_t row = at.first + (size_t)position;
            const size_t cell = row * (size_t)shape.heads + (size_t)at.head;
            if (extras.entropy)
                extras.entropy[cell] = LN_2 * (log2f(sum) - along / sum);
            if (extras.first_token_mass)
                extras.first_token_mass[cell] =
                    power_of_two(__fmaf_rn(state.first[m][side], scale, -state.most[m][side])) /
                    sum;
            if (extras.log_sum)
                extras.log_sum[(size_t)at.head * (size_t)shape.rows + row] =
                    LN_2 * (state.most[m][side] + log2f(sum));
        }
}

template <int D, int MT, int N, int WARPS, bool STATS>
__global__ void __launch_bounds__(WARPS * 32)
    attention_bf16(attention_shape shape, const bf16 *qkv, bf16 *out, attention_extras extras) {
    enum { THREADS = WARPS * 32, QUERIES = WARPS * MT * 16 };
    extern __shared__ __align__(16) bf16 memory[];
    const attention_block at = attention_place(shape, shape.heads, true);
    const int tile_first = at.tile * QUERIES, mine = (int)threadIdx.x / 32 * MT * 16;
    if (tile_first >= at.length)
        return;
    bf16 *query = memory, *key = query + QUERIES * (D + 8), *value = key + N * (D + 8);
    const int kv_head = at.head / (shape.heads / shape.kv_heads);
    const size_t stride = qkv_stride(shape);
    const bf16 *keys = qkv + at.first * stride + key_channel(shape, kv_head);
    const bf16 *values = qkv + at.first * stride + value_channel(shape, kv_head);
    load_rows<D, QUERIES, THREADS>(
        query, qkv + (at.first + (size_t)tile_first) * stride + query_channel(shape, at.head),
        stride, at.length - tile_first, shape.dim);
    load_rows<D, N, THREADS>(key, keys, stride, at.length, shape.dim);
    copy_commit();

    const float scale = shape.scale * LOG2_E;
    float sum[MT][D / 8][4] = {}, fade[MT][2];
    row_state<MT> state = no_rows<MT>();
    const int end = min(tile_first + QUERIES, at.length);
    for (int k = 0; k < end; k += N) {
        float score[MT][N / 8][4] = {};
        const bool seen = k < tile_first + mine + MT * 16; /* by some row of this warp */
        copy_wait();
        __syncthreads();
        load_rows<D, N, THREADS>(value, values + (size_t)k * stride, stride, at.length - k,
                                 shape.dim);
        copy_commit();
        if (seen) {
            score_tile<D, MT, N>(score, query + mine * (D + 8), key);
            if (k + N > tile_first + mine)
                mask<MT, N>(score, tile_first + mine, k);
            if (STATS && k == 0)
#pragma unroll
                for (int m = 0; m < MT; m++)
#pragma unroll
                    for (int side = 0; side < 2; side++)
                        state.first[m][side] = score[m][0][side * 2];
            online_softmax<MT, N, STATS>(score, state, fade, scale);
        }
        copy_wait();
        __syncthreads();
        if (k + N < end)
            load_rows<D, N, THREADS>(key, keys + (size_t)(k + N) * stride, stride,
                                     at.length - k - N, shape.dim);
        copy_commit();
        if (seen) {
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int n = 0; n < D / 8; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        sum[m][n][i] *= fade[m][i / 2];
            weigh_tile<D, D, MT, N>(sum, score, value);
        }
    }
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int side = 0; side < 2; side++) {
            state.sum[m][side] = quad_sum(state.sum[m][side]);
            fade[m][side] = 1.0f / state.sum[m][side];
        }
    const size_t out_stride = (size_t)shape.heads * (size_t)shape.dim;
    store_rows<D, D, MT>(sum, fade, query + mine * (D + 8),
                         out + (at.first + (size_t)(tile_first + mine)) * out_stride +
                             query_channel(shape, at.head),
                         out_stride, at.length - tile_first - mine, shape.dim);
    if (STATS)
        write_extras<MT>(shape, at, tile_first + mine, scale, state, extras);
}

/* How a head of up to D channels is cut: MT * 16 queries a warp, N keys a tile. */
template <int D, int MT, int N, int WARPS>
static int launch(backend *device, attention_shape shape, const bf16 *qkv, bf16 *out,
                  const attention_extras *extras, status *st) {
    enum { QUERIES = WARPS * MT * 16 };
    const bool stats = extras->entropy || extras->first_token_mass || extras->log_sum;
    const auto kernel =
        stats ? attention_bf16<D, MT, N, WARPS, true> : attention_bf16<D, MT, N, WARPS, false>;
    const size_t shared = (QUERIES + 2 * N) * (D + 8) * sizeof(bf16);
    const unsigned blocks = attention_blocks(&shape, QUERIES, shape.heads, st);
    if (!blocks || attention_shared(device, (const void *)kernel, shared, st))
        return FAILED;
    kernel<<<blocks, WARPS * 32, shared, device->stream>>>(shape, qkv, out, *extras);
    return cuda_launched("attention", st);
}

/* The fastest of those measured; lab/attention.sh builds others. */
#ifndef FORWARD64
#define FORWARD64 64, 2, 128, 4
#endif
#ifndef FORWARD128
#define FORWARD128 128, 2, 64, 4
#endif

static int attention_bf16_any(backend *device, const attention_shape *shape, const bf16 *qkv,
                              bf16 *out, const attention_extras *extras, status *st) {
    if (shape->dim <= 32)
        return launch<32, 2, 64, 4>(device, *shape, qkv, out, extras, st);
    if (shape->dim <= 64)
        return launch<FORWARD64>(device, *shape, qkv, out, extras, st);
    if (shape->dim <= 96)
        return launch<96, 2, 64, 4>(device, *shape, qkv, out, extras, st);
    if (shape->dim <= 128)
        return launch<FORWARD128>(device, *shape, qkv, out, extras, st);
    return launch<256, 1, 64, 4>(device, *shape, qkv, out, extras, st);
}

/* ---- the pattern: every weight, from the rows' log-sums ---- */

enum { PATTERN = 64, PIECE = 32 /* channels at a time */ };

/* A block of 16 x 16 threads has PATTERN queries and keys of a head: thread (y, x) the queries
 * y + 16 i, keys x + 16 j. */
template <typename real>
__global__ void __launch_bounds__(256) attention_pattern(attention_shape shape, const real *qkv,
                                                         const float *log_sum, float *pattern) {
    __shared__ float query[PATTERN][PIECE + 1], key[PATTERN][PIECE + 1];
    const attention_block at = attention_place(shape, shape.heads, false);
    const int q = at.tile * PATTERN, k = (int)blockIdx.y * PATTERN;
    const int x = (int)threadIdx.x % 16, y = (int)threadIdx.x / 16;
    if (q >= at.length || k >= at.length)
        return;
    const size_t stride = qkv_stride(shape);
    const real *start = qkv + at.first * stride;
    const size_t channel[2] = {query_channel(shape, at.head),
                               key_channel(shape, at.head / (shape.heads / shape.kv_heads))};
    float score[4][4] = {};
    for (int piece = 0; k < q + PATTERN && piece < shape.dim; piece += PIECE) {
        for (int i = (int)threadIdx.x; i < PATTERN * PIECE; i += 256) {
            const int row = i / PIECE, c = i % PIECE;
            const bool inside = piece + c < shape.dim;
            const real *from = start + (size_t)(piece + c);
            query[row][c] = inside && q + row < at.length
                                ? (float)from[(size_t)(q + row) * stride + channel[0]]
                                : 0.0f;
            key[row][c] = inside && k + row < at.length
                              ? (float)from[(size_t)(k + row) * stride + channel[1]]
                              : 0.0f;
        }
        __syncthreads();
        for (int c = 0; c < PIECE; c++)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    score[i][j] += query[y + 16 * i][c] * key[x + 16 * j][c];
        __syncthreads();
    }
    size_t squares = 0; /* of the sequences before this one */
    for (int b = 0; (size_t)shape.start[b] < at.first; b++) {
        const size_t length = (size_t)(shape.start[b + 1] - shape.start[b]);
        squares += length * length;
    }
    float *to = pattern + (size_t)shape.heads * squares +
                (size_t)at.head * (size_t)at.length * (size_t)at.length;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int query_at = q + y + 16 * i, key_at = k + x + 16 * j;
            if (query_at >= at.length || key_at >= at.length)
                continue;
            const float total =
                log_sum[(size_t)at.head * (size_t)shape.rows + at.first + (size_t)query_at];
            to[(size_t)query_at * (size_t)at.length + (size_t)key_at] =
                key_at > query_at ? 0.0f : expf(score[i][j] * shape.scale - total);
        }
}

static int write_pattern(backend *device, attention_shape shape, const attention_args *args,
                         const float *log_sum, status *st) {
    const unsigned blocks = attention_blocks(&shape, PATTERN, shape.heads, st);
    if (!blocks)
        return FAILED;
    if (shape.tiles > 65535)
        return status_fail(st, "attention: pattern of a sequence of %d tokens: at most %d",
                           shape.longest, 65535 * PATTERN);
    const dim3 grid(blocks, (unsigned)shape.tiles);
    float *pattern = (float *)args->pattern->data;
    if (device->bf16)
        attention_pattern<<<grid, 256, 0, device->stream>>>(shape, (const bf16 *)args->qkv->data,
                                                            log_sum, pattern);
    else
        attention_pattern<<<grid, 256, 0, device->stream>>>(shape, (const float *)args->qkv->data,
                                                            log_sum, pattern);
    return cuda_launched("attention: pattern", st);
}

/* ---- launching ---- */

unsigned attention_blocks(attention_shape *shape, int tile_rows, int heads, status *st) {
    shape->tiles = (shape->longest + tile_rows - 1) / tile_rows;
    const long long count = (long long)shape->tiles * heads * shape->sequences;
    if (count <= 0x7fffffff)
        return (unsigned)count;
    status_fail(st,
                "attention: %d sequences of up to %d tokens with %d heads: too many for one "
                "batch",
                shape->sequences, shape->longest, heads);
    return 0;
}

int attention_shared(backend *device, const void *kernel, size_t bytes, status *st) {
    if (bytes > device->properties.sharedMemPerBlockOptin)
        return status_fail(st,
                           "attention: this head_dim needs %zu bytes of shared memory, %s has "
                           "%zu: use a larger card or --device cpu",
                           bytes, device->properties.name,
                           device->properties.sharedMemPerBlockOptin);
    return cuda_ok(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
        "attention: shared memory", st);
}

int attention_check(backend *device, const attention_args *args, attention_shape *shape,
                    status *st) {
    const batch_layout *layout = args->layout;
    const size_t heads = args->query_heads, kv = args->kv_heads, dim = args->head_dim;
    const size_t most = 65536; /* heads: far beyond any model, keeps products in range */
    device_layout on_device;
    if (heads == 0 || kv == 0 || heads % kv)
        return status_fail(st, "attention: %zu query heads on %zu kv heads: not a multiple", heads,
                           kv);
    if (heads > most || dim == 0 || dim > ATTENTION_WIDEST)
        return status_fail(st, "attention: %zu heads of %zu channels: at most %zu of %d on CUDA",
                           heads, dim, most, ATTENTION_WIDEST);
    if (cuda_holds(args->qkv, true, layout->rows, (heads + 2 * kv) * dim, "attention: qkv", st) ||
        cuda_holds(args->out, true, layout->rows, heads * dim, "attention: out", st) ||
        (args->entropy &&
         cuda_holds(args->entropy, false, layout->rows, heads, "attention: entropy", st)) ||
        (args->first_token_mass && cuda_holds(args->first_token_mass, false, layout->rows, heads,
                                              "attention: first_token_mass", st)) ||
        cuda_layout(device, layout, &on_device, st))
        return FAILED;
    shape->start = on_device.start;
    shape->sequences = (int)layout->sequences;
    shape->rows = (int)layout->rows;
    shape->longest = (int)on_device.longest;
    shape->heads = (int)heads;
    shape->kv_heads = (int)kv;
    shape->dim = (int)dim;
    shape->tiles = 0;
    shape->scale = (float)(1.0 / sqrt((double)dim));
    return DONE;
}

static int check_pattern(const attention_args *args, status *st) {
    size_t squares = 0, square;
    for (size_t b = 0; b < args->layout->sequences; b++) {
        const size_t length = args->layout->start[b + 1] - args->layout->start[b];
        if (__builtin_mul_overflow(length, length, &square) ||
            __builtin_add_overflow(squares, square, &squares))
            return status_fail(st, "attention: a sequence of %zu tokens is too long", length);
    }
    return cuda_holds(args->pattern, false, squares, args->query_heads, "attention: pattern", st);
}

static float *exact(buffer *memory) {
    return memory ? (float *)memory->data : NULL;
}

int cuda_attention(backend *device, const attention_args *args, status *st) {
    attention_shape shape;
    attention_extras extras;
    void *scratch = NULL;
    if (attention_check(device, args, &shape, st) || (args->pattern && check_pattern(args, st)))
        return FAILED;
    if (shape.rows == 0)
        return DONE;
    if (args->pattern &&
        cuda_scratch(device, args->query_heads * args->layout->rows * sizeof(float), &scratch, st))
        return FAILED;
    extras.entropy = exact(args->entropy);
    extras.first_token_mass = exact(args->first_token_mass);
    extras.log_sum = (float *)scratch;
    if (device->bf16 ? attention_bf16_any(device, &shape, (const bf16 *)args->qkv->data,
                                          (bf16 *)args->out->data, &extras, st)
                     : attention_fp32(device, shape, (const float *)args->qkv->data,
                                      (float *)args->out->data, &extras, st))
        return FAILED;
    return args->pattern ? write_pattern(device, shape, args, extras.log_sum, st) : DONE;
}
