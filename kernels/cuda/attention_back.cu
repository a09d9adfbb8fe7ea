/* attention_back.cu - backward of causal attention: the bf16 kernels and the launcher.
 *
 * Two kernels make the weights again, tile by tile, and nothing is added across blocks: the result
 * is the same bits in every run. The first has a tile of queries a block: it passes over the keys
 * once for the rows' log-sums, takes along = <d_out, out>, and passes again for d_query; log-sum
 * and `along` stay in scratch for the second. That one has a tile of keys of a kv head a block and
 * passes over the queries that see them, head after head of the group: scores are made transposed,
 * keys by queries, so that weights and their gradients go from sums to operands inside the
 * registers there too. With p the weights: d_value = p^T d_out,
 * d_score = p (d_out value^T - along), d_query = scale d_score key, d_key = scale d_score^T query.
 * Weights and d_score are rounded to bf16 as operands, all sums are fp32.
 *
 * Eight products of a tile where a kernel that adds d_query across blocks makes five. Tried on an
 * NVIDIA H200, ms at 16 heads, 4 sequences of 2048 and one of 8192 (first kernel: 16-row pieces a
 * warp, rows of the passing tiles, warps; second kernel alike):
 *     64 channels:   1 64 4; 1 64 4   0.706 2.40     2 64 4; 1 64 4   0.710 2.26  in use
 *                    2 32 4; 1 64 4   0.764 2.46     2 32 8; 1 64 4   0.821 2.64
 *                    1 64 4; 2 32 4   0.725 2.41     1 64 4; 1 64 8   0.728 2.42
 *                    1 64 4; 1 32 4   0.753 2.57
 *     128 channels:  1 64 4; 1 64 4   1.368 4.90     2 32 4; 1 64 4   1.216 4.19
 *                    1 64 8; 1 64 4   1.335 4.65     1 32 4; 1 64 4   1.278 4.69
 *                    1 64 4; 1 32 4   1.434 5.18     1 64 4; 1 64 8   1.322 4.63
 *                    1 64 4; 1 32 8   1.421 4.97     2 32 4; 1 64 8   in use
 * Two pieces a warp read a right operand once for both; the second kernel has no registers for
 * that. d_out value^T made before the exponentials, so that they might overlap: 0.790 2.69 and
 * 1.365 4.83. A division a tile less and loads without branches: no difference, so instructions are
 * not what it waits for. Blocks in the order of sequences instead of tiles: 1.60 ms against 1.35
 * with 4 kv heads.
 */
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/mma.cuh"

/* Blocks of a multiprocessor at least: registers are given out accordingly. */
constexpr int blocks_of(int channels, int pieces, int warps) {
    const int most = channels <= 64 && pieces == 1 ? 12 : 8;
    return most / warps;
}

template <int MT> __device__ __forceinline__ void fill(float (&to)[MT][2], float x) {
#pragma unroll
    for (int m = 0; m < MT; m++)
        to[m][0] = to[m][1] = x;
}

/* <d_out, out> of the warp's MT * 16 rows, `left` of which exist, as row_state has rows. */
template <int D, int MT>
__device__ __forceinline__ void dot_rows(float (&along)[MT][2], const bf16 *out, const bf16 *d_out,
                                         size_t stride, int left, int dim) {
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int side = 0; side < 2; side++)
#pragma unroll 4
            for (int r = 0; r < 8; r++) {
                const int row = m * 16 + side * 8 + r;
                float sum = 0.0f;
                if (row < left)
                    for (int c = lane; c < dim; c += 32)
                        sum += __bfloat162float(out[(size_t)row * stride + (size_t)c]) *
                               __bfloat162float(d_out[row * (D + 8) + c]);
                for (int step = 16; step > 0; step /= 2)
                    sum += __shfl_xor_sync(~0u, sum, step);
                if (r == 0 || r == lane / 4)
                    along[m][side] = sum;
            }
}

template <int D, int MT, int N, int WARPS>
__global__ void __launch_bounds__(WARPS * 32, blocks_of(D, MT, WARPS))
    attention_back_query(attention_shape shape, const bf16 *qkv, const bf16 *out, const bf16 *d_out,
                         float *log_sum, float *along_out, bf16 *d_qkv) {
    enum { THREADS = WARPS * 32, TILE = WARPS * MT * 16 };
    extern __shared__ __align__(16) bf16 memory[];
    const attention_block at = attention_place(shape, shape.heads, true);
    const int tile_first = at.tile * TILE, mine = (int)threadIdx.x / 32 * (MT * 16);
    if (tile_first >= at.length)
        return;
    bf16 *query = memory, *d_row = query + TILE * (D + 8), *value = d_row + TILE * (D + 8);
    bf16 *const key[2] = {value + N * (D + 8), value + 2 * N * (D + 8)};
    const int kv_head = at.head / (shape.heads / shape.kv_heads), lane = (int)threadIdx.x % 32;
    const size_t stride = qkv_stride(shape), first = at.first + (size_t)tile_first;
    const size_t out_stride = (size_t)shape.heads * (size_t)shape.dim;
    const bf16 *keys = qkv + at.first * stride + key_channel(shape, kv_head);
    const bf16 *values = qkv + at.first * stride + value_channel(shape, kv_head);
    const size_t channel = query_channel(shape, at.head);
    const int end = min(tile_first + TILE, at.length), left = at.length - tile_first;
    const float scale = shape.scale * LOG2_E;
    load_rows<D, TILE, THREADS>(query, qkv + first * stride + channel, stride, left, shape.dim);
    load_rows<D, TILE, THREADS>(d_row, d_out + first * out_stride + channel, out_stride, left,
                                shape.dim);
    load_rows<D, N, THREADS>(key[0], keys, stride, at.length, shape.dim);
    copy_commit();

    row_state<MT> state = no_rows<MT>();
    float fade[MT][2];
    for (int k = 0, turn = 0; k < end; k += N, turn ^= 1) {
        copy_wait();
        __syncthreads();
        /* After the last tile, the first one again. */
        const int next = k + N < end ? k + N : 0;
        load_rows<D, N, THREADS>(turn ? key[0] : key[1], keys + (size_t)next * stride, stride,
                                 at.length - next, shape.dim);
        if (next == 0)
            load_rows<D, N, THREADS>(value, values, stride, at.length, shape.dim);
        copy_commit();
        if (k >= tile_first + mine + MT * 16)
            continue;
        float score[MT][N / 8][4] = {};
        score_tile<D, MT, N>(score, query + mine * (D + 8), turn ? key[1] : key[0]);
        if (k + N > tile_first + mine)
            mask<MT, N>(score, tile_first + mine, k);
        online_softmax<MT, N, false>(score, state, fade, scale);
    }
    float along[MT][2], total[MT][2];
    dot_rows<D, MT>(along, out + (first + (size_t)mine) * out_stride + channel,
                    d_row + mine * (D + 8), out_stride, left - mine, shape.dim);
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int side = 0; side < 2; side++) {
            const int row = mine + m * 16 + side * 8 + lane / 4;
            const size_t cell = (size_t)at.head * (size_t)shape.rows + first + (size_t)row;
            total[m][side] = state.most[m][side] + log2f(quad_sum(state.sum[m][side]));
            if (lane % 4 == 0 && row < left) {
                log_sum[cell] = total[m][side];
                along_out[cell] = along[m][side];
            }
        }

    float sum[MT][D / 8][4] = {};
    int turn = (end + N - 1) / N & 1; /* where the first keys are */
    for (int k = 0; k < end; k += N, turn ^= 1) {
        float score[MT][N / 8][4] = {}, d_score[MT][N / 8][4] = {};
        const bool seen = k < tile_first + mine + MT * 16;
        copy_wait();
        __syncthreads();
        if (k + N < end)
            load_rows<D, N, THREADS>(turn ? key[0] : key[1], keys + (size_t)(k + N) * stride,
                                     stride, at.length - k - N, shape.dim);
        copy_commit();
        if (seen) {
            score_tile<D, MT, N>(score, query + mine * (D + 8), turn ? key[1] : key[0]);
            score_tile<D, MT, N>(d_score, d_row + mine * (D + 8), value);
            if (k + N > tile_first + mine)
                mask<MT, N>(score, tile_first + mine, k);
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int n = 0; n < N / 8; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const float x = fmaf(score[m][n][i], scale, -total[m][i / 2]);
                        d_score[m][n][i] = power_of_two(x) * (d_score[m][n][i] - along[m][i / 2]);
                    }
        }
        __syncthreads();
        if (k + N < end)
            load_rows<D, N, THREADS>(value, values + (size_t)(k + N) * stride, stride,
                                     at.length - k - N, shape.dim);
        copy_commit();
        if (seen)
            weigh_tile<D, D, MT, N>(sum, d_score, turn ? key[1] : key[0]);
    }
    float by[MT][2];
    fill<MT>(by, shape.scale);
    store_rows<D, D, MT>(sum, by, query + mine * (D + 8),
                         d_qkv + (first + (size_t)mine) * stride + channel, stride, left - mine,
                         shape.dim);
}

/* One number a row, beside load_rows; 0 beyond `left`. */
template <int N, int THREADS>
__device__ __forceinline__ void load_numbers(float *to, const float *from, int left) {
    for (int i = (int)threadIdx.x; i < N; i += THREADS)
        to[i] = i < left ? from[i] : 0.0f;
}

/* Of a tile whose rows are keys from `key` on, the warp's, and whose columns are queries. */
template <int MT, int N>
__device__ __forceinline__ void mask_queries(float (&score)[MT][N / 8][4], int query, int key) {
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (key + m * 16 + lane / 4 + i / 2 * 8 > query + n * 8 + lane % 4 * 2 + i % 2)
                    score[m][n][i] = MASKED;
}

/* Channels C * blockIdx.y .. + C - 1 of d_key and d_value of TILE keys. Rows beyond a sequence's
 * end are zeros everywhere, so that they add nothing. */
template <int D, int C, int MT, int N, int WARPS>
__global__ void __launch_bounds__(WARPS * 32, blocks_of(D, MT, WARPS))
    attention_back_key(attention_shape shape, const bf16 *qkv, const bf16 *d_out,
                       const float *log_sum, const float *along, bf16 *d_qkv) {
    enum { THREADS = WARPS * 32, TILE = WARPS * MT * 16 };
    enum { PAIR = 2 * N * (D + 8) /* a tile of queries and one of d_out */ };
    extern __shared__ __align__(16) bf16 memory[];
    __shared__ float total[2][N], dots[2][N];
    const attention_block at = attention_place(shape, shape.kv_heads, false);
    const int tile_first = at.tile * TILE, mine = (int)threadIdx.x / 32 * (MT * 16);
    const int part = (int)blockIdx.y * C, lane = (int)threadIdx.x % 32;
    if (tile_first >= at.length || part >= shape.dim)
        return;
    bf16 *key = memory, *value = key + TILE * (D + 8), *pair = value + TILE * (D + 8);
    const int group = shape.heads / shape.kv_heads, left = at.length - tile_first;
    const size_t stride = qkv_stride(shape), first = at.first + (size_t)tile_first;
    const size_t out_stride = (size_t)shape.heads * (size_t)shape.dim;
    const size_t key_at = key_channel(shape, at.head), value_at = value_channel(shape, at.head);
    const int from = tile_first / N * N; /* the first queries that see a key of the tile */
    const float scale = shape.scale * LOG2_E;
    const auto load_pair = [&](int head, int q, int turn) {
        const size_t row = at.first + (size_t)q, channel = query_channel(shape, head);
        const size_t cell = (size_t)head * (size_t)shape.rows + row;
        bf16 *to = pair + turn * PAIR;
        load_rows<D, N, THREADS>(to, qkv + row * stride + channel, stride, at.length - q,
                                 shape.dim);
        load_rows<D, N, THREADS>(to + N * (D + 8), d_out + row * out_stride + channel, out_stride,
                                 at.length - q, shape.dim);
        load_numbers<N, THREADS>(total[turn], log_sum + cell, at.length - q);
        load_numbers<N, THREADS>(dots[turn], along + cell, at.length - q);
        copy_commit();
    };
    load_rows<D, TILE, THREADS>(key, qkv + first * stride + key_at, stride, left, shape.dim);
    load_rows<D, TILE, THREADS>(value, qkv + first * stride + value_at, stride, left, shape.dim);
    int head = at.head * group, q = from, turn = 0;
    const int end = head + group;
    load_pair(head, q, turn);

    float d_key[MT][C / 8][4] = {}, d_value[MT][C / 8][4] = {};
    while (head < end) {
        const int here = q, now = turn;
        const bf16 *query = pair + now * PAIR, *d_row = query + N * (D + 8);
        float weight[MT][N / 8][4] = {}, d_score[MT][N / 8][4] = {};
        copy_wait();
        __syncthreads();
        q += N;
        if (q >= at.length) {
            q = from;
            head++;
        }
        turn ^= 1;
        if (head < end)
            load_pair(head, q, turn);
        if (here + N <= tile_first + mine)
            continue; /* no query of the tile sees a key of this warp */
        score_tile<D, MT, N>(weight, key + mine * (D + 8), query);
        if (here < tile_first + mine + MT * 16 - 1)
            mask_queries<MT, N>(weight, here, tile_first + mine);
#pragma unroll
        for (int n = 0; n < N / 8; n++) {
            const float2 sums = *(const float2 *)&total[now][n * 8 + lane % 4 * 2];
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    weight[m][n][i] =
                        power_of_two(fmaf(weight[m][n][i], scale, i % 2 ? -sums.y : -sums.x));
        }
        weigh_tile<D, C, MT, N>(d_value, weight, d_row + part);
        score_tile<D, MT, N>(d_score, value + mine * (D + 8), d_row);
#pragma unroll
        for (int n = 0; n < N / 8; n++) {
            const float2 dot = *(const float2 *)&dots[now][n * 8 + lane % 4 * 2];
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    d_score[m][n][i] =
                        weight[m][n][i] * (d_score[m][n][i] - (i % 2 ? dot.y : dot.x));
        }
        weigh_tile<D, C, MT, N>(d_key, d_score, query + part);
    }
    __syncthreads(); /* rows of other parts of `key` are not read any more */
    float by[MT][2], one[MT][2];
    fill<MT>(by, shape.scale);
    fill<MT>(one, 1.0f);
    bf16 *to = d_qkv + (first + (size_t)mine) * stride + part;
    store_rows<D, C, MT>(d_key, by, key + mine * (D + 8), to + key_at, stride, left - mine,
                         shape.dim - part);
    store_rows<D, C, MT>(d_value, one, value + mine * (D + 8), to + value_at, stride, left - mine,
                         shape.dim - part);
}

/* How a head of up to D channels is cut: MT * 16 rows a warp, N rows in the tiles that pass; in the
 * second kernel C channels of d_key and d_value a block. */
template <int D, int MT, int N, int WARPS>
static int launch_query(backend *device, attention_shape shape,
                        const attention_back_buffers<bf16> &at, status *st) {
    enum { TILE = WARPS * MT * 16 };
    const size_t shared = (2 * TILE + 3 * N) * (D + 8) * sizeof(bf16);
    const unsigned blocks = attention_blocks(&shape, TILE, shape.heads, st);
    const auto kernel = attention_back_query<D, MT, N, WARPS>;
    if (!blocks || attention_shared(device, (const void *)kernel, shared, st))
        return FAILED;
    kernel<<<blocks, WARPS * 32, shared, device->stream>>>(shape, at.qkv, at.out, at.d_out,
                                                           at.log_sum, at.along, at.d_qkv);
    return cuda_launched("attention_back: queries", st);
}

template <int D, int C, int MT, int N, int WARPS>
static int launch_key(backend *device, attention_shape shape,
                      const attention_back_buffers<bf16> &at, status *st) {
    enum { TILE = WARPS * MT * 16 };
    const size_t shared = (2 * TILE + 4 * N) * (D + 8) * sizeof(bf16);
    const unsigned blocks = attention_blocks(&shape, TILE, shape.kv_heads, st);
    const auto kernel = attention_back_key<D, C, MT, N, WARPS>;
    if (!blocks || attention_shared(device, (const void *)kernel, shared, st))
        return FAILED;
    kernel<<<dim3(blocks, D / C), WARPS * 32, shared, device->stream>>>(
        shape, at.qkv, at.d_out, at.log_sum, at.along, at.d_qkv);
    return cuda_launched("attention_back: keys", st);
}

/* The fastest of those measured; lab/attention.sh builds others. */
#ifndef QUERY64
#define QUERY64 64, 2, 64, 4
#endif
#ifndef KEY64
#define KEY64 64, 64, 1, 64, 4
#endif
#ifndef QUERY128
#define QUERY128 128, 2, 32, 4
#endif
#ifndef KEY128
#define KEY128 128, 128, 1, 64, 8
#endif
#define KEY128_FEW 128, 128, 1, 64, 4

/* Whether tiles of 128 keys give every multiprocessor a block. The results are the same either way:
 * a warp's work does not depend on how many a block has. */
static bool many_keys(const backend *device, attention_shape shape) {
    status ignored;
    return attention_blocks(&shape, 128, shape.kv_heads, &ignored) >=
           (unsigned)device->properties.multiProcessorCount;
}

static int attention_back_bf16(backend *device, attention_shape shape,
                               const attention_back_buffers<bf16> &at, status *st) {
    if (shape.dim <= 32)
        return launch_query<32, 1, 64, 4>(device, shape, at, st) ||
               launch_key<32, 32, 1, 64, 4>(device, shape, at, st);
    if (shape.dim <= 64)
        return launch_query<QUERY64>(device, shape, at, st) ||
               launch_key<KEY64>(device, shape, at, st);
    if (shape.dim <= 96)
        return launch_query<96, 2, 32, 4>(device, shape, at, st) ||
               launch_key<96, 96, 1, 64, 8>(device, shape, at, st);
    if (shape.dim <= 128)
        return launch_query<QUERY128>(device, shape, at, st) ||
               (many_keys(device, shape) ? launch_key<KEY128>(device, shape, at, st)
                                         : launch_key<KEY128_FEW>(device, shape, at, st));
    return launch_query<256, 1, 32, 4>(device, shape, at, st) ||
           launch_key<256, 128, 1, 32, 4>(device, shape, at, st);
}

template <typename real>
static attention_back_buffers<real> buffers_of(const attention_back_args *args, float *scratch) {
    attention_back_buffers<real> at;
    at.qkv = (const real *)args->qkv->data;
    at.out = (const real *)args->out->data;
    at.d_out = (const real *)args->d_out->data;
    at.log_sum = scratch;
    at.along = scratch + args->query_heads * args->layout->rows;
    at.d_qkv = (real *)args->d_qkv->data;
    return at;
}

int cuda_attention_back(backend *device, const attention_back_args *args, status *st) {
    const size_t rows = args->layout->rows, heads = args->query_heads;
    const size_t inner = heads * args->head_dim, outer = 2 * args->kv_heads * args->head_dim;
    attention_args forward = {};
    forward.layout = args->layout;
    forward.query_heads = heads;
    forward.kv_heads = args->kv_heads;
    forward.head_dim = args->head_dim;
    forward.qkv = args->qkv;
    forward.out = (buffer *)args->out;
    attention_shape shape;
    void *scratch;
    if (attention_check(device, &forward, &shape, st) ||
        cuda_holds(args->d_out, true, rows, inner, "attention_back: d_out", st) ||
        cuda_holds(args->d_qkv, true, rows, inner + outer, "attention_back: d_qkv", st))
        return FAILED;
    if (rows == 0)
        return DONE;
    if (cuda_scratch(device, 2 * heads * rows * sizeof(float), &scratch, st))
        return FAILED;
    float *log_sum = (float *)scratch;
    return device->bf16 ? attention_back_bf16(device, shape, buffers_of<bf16>(args, log_sum), st)
                        : attention_back_fp32(device, shape, buffers_of<float>(args, log_sum), st);
}
