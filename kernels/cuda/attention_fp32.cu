/* attention_fp32.cu - causal attention and its backward in fp32, plain multiply-adds (no TF32).
 *
 * The algorithms of attention.cu and attention_back.cu, on tiles of B rows (64; 32 where a head has
 * more than 128 channels) and B keys, one block of 16 x 16 threads each. Thread (y, x) has rows
 * R y .. R y + R - 1 of a tile (R = B / 16); of scores the columns x + 16 j, of outputs the
 * channels 2 x + 32 c and + 1. Tiles lie in shared memory with 4 floats after each row: 16-byte
 * reads of 16 rows then meet no bank twice. Scores become operands by way of shared memory.
 */
#include "kernels/cuda/attention.cuh"

#include <math.h>

enum { THREADS = 256 };

/* to [B rows, D + 4] from global rows of `stride` elements; zeros beyond `left` and `dim`. */
template <int D, int B>
__device__ __forceinline__ void load_rows(float *to, const float *from, size_t stride, int left,
                                          int dim) {
    if (dim % 4 == 0) {
#pragma unroll 4
        for (int i = (int)threadIdx.x; i < B * (D / 4); i += THREADS) {
            const int row = i / (D / 4), channel = i % (D / 4) * 4;
            *(float4 *)(to + row * (D + 4) + channel) =
                row < left && channel < dim
                    ? *(const float4 *)(from + (size_t)row * stride + channel)
                    : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
        return;
    }
    for (int i = (int)threadIdx.x; i < B * D; i += THREADS) {
        const int row = i / D, channel = i % D;
        to[row * (D + 4) + channel] =
            row < left && channel < dim ? from[(size_t)row * stride + channel] : 0.0f;
    }
}

/* score[i][j] = <row R y + i of a, row x + 16 j of b>. */
template <int D, int R>
__device__ __forceinline__ void score_tile(float (&score)[R][R], const float *a, const float *b) {
    a += (int)threadIdx.x / 16 * R * (D + 4);
    b += (int)threadIdx.x % 16 * (D + 4);
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < R; j++)
            score[i][j] = 0.0f;
#pragma unroll 4
    for (int c = 0; c < D; c += 4) {
        float4 left[R];
#pragma unroll
        for (int i = 0; i < R; i++)
            left[i] = *(const float4 *)(a + i * (D + 4) + c);
#pragma unroll
        for (int j = 0; j < R; j++) {
            const float4 right = *(const float4 *)(b + j * 16 * (D + 4) + c);
#pragma unroll
            for (int i = 0; i < R; i++)
                score[i][j] =
                    fmaf(left[i].x, right.x,
                         fmaf(left[i].y, right.y,
                              fmaf(left[i].z, right.z, fmaf(left[i].w, right.w, score[i][j]))));
        }
    }
}

/* sum[i] += the tile's weights of row R y + i times the rows of b. `weight` is [B, B + 4]. */
template <int D, int R>
__device__ __forceinline__ void weigh_tile(float2 (&sum)[R][D / 32], const float *weight,
                                           const float *b) {
    enum { B = R * 16 };
    weight += (int)threadIdx.x / 16 * R * (B + 4);
    b += (int)threadIdx.x % 16 * 2;
#pragma unroll 2
    for (int k = 0; k < B; k += 4) {
        float left[R][4];
#pragma unroll
        for (int i = 0; i < R; i++)
            *(float4 *)left[i] = *(const float4 *)(weight + i * (B + 4) + k);
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int c = 0; c < D / 32; c++) {
                const float2 right = *(const float2 *)(b + (k + e) * (D + 4) + c * 32);
#pragma unroll
                for (int i = 0; i < R; i++) {
                    sum[i][c].x = fmaf(left[i][e], right.x, sum[i][c].x);
                    sum[i][c].y = fmaf(left[i][e], right.y, sum[i][c].y);
                }
            }
    }
}

template <int R> __device__ __forceinline__ void put_tile(float *to, const float (&value)[R][R]) {
    to += (int)threadIdx.x / 16 * R * (R * 16 + 4) + (int)threadIdx.x % 16;
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < R; j++)
            to[i * (R * 16 + 4) + j * 16] = value[i][j];
}

/* The block's sums, row i times scale[i], to `left` global rows. */
template <int D, int R>
__device__ __forceinline__ void store_rows(const float2 (&sum)[R][D / 32], const float (&scale)[R],
                                           float *to, size_t stride, int left, int dim) {
    const int y = (int)threadIdx.x / 16 * R, x = (int)threadIdx.x % 16 * 2;
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int c = 0; c < D / 32; c++) {
            const int channel = c * 32 + x;
            float *at = to + (size_t)(y + i) * stride + channel;
            if (y + i < left && channel < dim)
                at[0] = sum[i][c].x * scale[i];
            if (y + i < left && channel + 1 < dim)
                at[1] = sum[i][c].y * scale[i];
        }
}

/* Over the 16 threads that share rows. */
__device__ __forceinline__ float row_sum(float x) {
#pragma unroll
    for (int step = 8; step > 0; step /= 2)
        x += __shfl_xor_sync(~0u, x, step);
    return x;
}
__device__ __forceinline__ float row_most(float x) {
#pragma unroll
    for (int step = 8; step > 0; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
    return x;
}

/* Scores from here on are scaled; those of keys after the query are far below all others. */
template <int R>
__device__ __forceinline__ void scale_and_mask(float (&score)[R][R], float scale, int query,
                                               int key) {
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < R; j++)
            score[i][j] =
                key + (int)threadIdx.x % 16 + 16 * j > query + (int)threadIdx.x / 16 * R + i
                    ? -1e38f
                    : score[i][j] * scale;
}

/* A row's softmax as tiles pass; sums are the thread's own until the end. */
struct running {
    float most, sum, along; /* along: sum of x exp(x), x = score - most */
};

/* Scores become exp(x); gives the factor of what was summed so far. */
template <int R> __device__ __forceinline__ float online(float (&score)[R], running &state) {
    float most = score[0];
#pragma unroll
    for (int j = 1; j < R; j++)
        most = fmaxf(most, score[j]);
    most = fmaxf(state.most, row_most(most));
    const float step = state.most - most, fade = expf(step);
    state.along = fade * (state.along + step * state.sum);
    state.sum *= fade;
    state.most = most;
#pragma unroll
    for (int j = 0; j < R; j++) {
        const float x = score[j] - most;
        score[j] = expf(x);
        state.sum += score[j];
        state.along += x * score[j];
    }
    return fade;
}

template <int D, int B>
__global__ void __launch_bounds__(THREADS)
    attention_f32(attention_shape shape, const float *qkv, float *out, attention_extras extras) {
    enum { R = B / 16 };
    const bool apart = D <= 64; /* else keys and values take turns, for two blocks at a time */
    extern __shared__ __align__(16) float memory[];
    const attention_block at = attention_place(shape, shape.heads, true);
    const int q = at.tile * B, left = at.length - q, y = (int)threadIdx.x / 16 * R;
    if (left <= 0)
        return;
    float *query = memory, *key = query + B * (D + 4), *value = apart ? key + B * (D + 4) : key;
    float *weight = value + B * (D + 4);
    const int kv_head = at.head / (shape.heads / shape.kv_heads);
    const size_t stride = qkv_stride(shape), first = at.first + (size_t)q;
    const float *keys = qkv + at.first * stride + key_channel(shape, kv_head);
    const float *values = qkv + at.first * stride + value_channel(shape, kv_head);
    const size_t channel = query_channel(shape, at.head);
    load_rows<D, B>(query, qkv + first * stride + channel, stride, left, shape.dim);

    float2 sum[R][D / 32] = {};
    running state[R];
    float first_score[R] = {};
#pragma unroll
    for (int i = 0; i < R; i++)
        state[i] = {-1e38f, 0.0f, 0.0f};
    for (int k = 0; k < q + B && k < at.length; k += B) {
        float score[R][R];
        __syncthreads();
        load_rows<D, B>(key, keys + (size_t)k * stride, stride, at.length - k, shape.dim);
        if (apart)
            load_rows<D, B>(value, values + (size_t)k * stride, stride, at.length - k, shape.dim);
        __syncthreads();
        score_tile<D, R>(score, query, key);
        scale_and_mask<R>(score, shape.scale, q, k);
#pragma unroll
        for (int i = 0; i < R; i++) {
            if (k == 0)
                first_score[i] = score[i][0];
            const float fade = online<R>(score[i], state[i]);
#pragma unroll
            for (int c = 0; c < D / 32; c++) {
                sum[i][c].x *= fade;
                sum[i][c].y *= fade;
            }
        }
        put_tile<R>(weight, score);
        __syncthreads();
        if (!apart) {
            load_rows<D, B>(value, values + (size_t)k * stride, stride, at.length - k, shape.dim);
            __syncthreads();
        }
        weigh_tile<D, R>(sum, weight, value);
    }
    float scale[R];
#pragma unroll
    for (int i = 0; i < R; i++) {
        const float total = row_sum(state[i].sum), along = row_sum(state[i].along);
        const size_t row = first + (size_t)(y + i);
        const size_t cell = row * (size_t)shape.heads + (size_t)at.head;
        scale[i] = 1.0f / total;
        if (y + i >= left || threadIdx.x % 16)
            continue;
        if (extras.entropy)
            extras.entropy[cell] = logf(total) - along / total;
        if (extras.first_token_mass)
            extras.first_token_mass[cell] = expf(first_score[i] - state[i].most) / total;
        if (extras.log_sum)
            extras.log_sum[(size_t)at.head * (size_t)shape.rows + row] =
                state[i].most + logf(total);
    }
    const size_t out_stride = (size_t)shape.heads * (size_t)shape.dim;
    store_rows<D, R>(sum, scale, out + first * out_stride + channel, out_stride, left, shape.dim);
}

/* d_query of a tile; log_sum and along = <d_out, out> of its rows to scratch. */
template <int D, int B>
__global__ void __launch_bounds__(THREADS)
    attention_back_query_f32(attention_shape shape, const float *qkv, const float *out,
                             const float *d_out, float *log_sum, float *along_out, float *d_qkv) {
    enum { R = B / 16 };
    extern __shared__ __align__(16) float memory[];
    const attention_block at = attention_place(shape, shape.heads, true);
    const int q = at.tile * B, left = at.length - q, y = (int)threadIdx.x / 16 * R;
    if (left <= 0)
        return;
    float *query = memory, *d_row = query + B * (D + 4), *key = d_row + B * (D + 4);
    float *value = key + B * (D + 4), *weight = value + B * (D + 4);
    const int kv_head = at.head / (shape.heads / shape.kv_heads);
    const size_t stride = qkv_stride(shape), first = at.first + (size_t)q;
    const size_t out_stride = (size_t)shape.heads * (size_t)shape.dim;
    const float *keys = qkv + at.first * stride + key_channel(shape, kv_head);
    const float *values = qkv + at.first * stride + value_channel(shape, kv_head);
    const size_t channel = query_channel(shape, at.head);
    load_rows<D, B>(query, qkv + first * stride + channel, stride, left, shape.dim);
    load_rows<D, B>(d_row, d_out + first * out_stride + channel, out_stride, left, shape.dim);

    running state[R];
#pragma unroll
    for (int i = 0; i < R; i++)
        state[i] = {-1e38f, 0.0f, 0.0f};
    for (int k = 0; k < q + B && k < at.length; k += B) {
        float score[R][R];
        __syncthreads();
        load_rows<D, B>(key, keys + (size_t)k * stride, stride, at.length - k, shape.dim);
        __syncthreads();
        score_tile<D, R>(score, query, key);
        scale_and_mask<R>(score, shape.scale, q, k);
#pragma unroll
        for (int i = 0; i < R; i++)
            online<R>(score[i], state[i]);
    }
    float total[R], along[R], scale[R];
#pragma unroll
    for (int i = 0; i < R; i++) {
        float dot = 0.0f;
        if (y + i < left)
            for (int c = (int)threadIdx.x % 16; c < shape.dim; c += 16)
                dot = fmaf(out[(first + (size_t)(y + i)) * out_stride + channel + (size_t)c],
                           d_row[(y + i) * (D + 4) + c], dot);
        along[i] = row_sum(dot);
        total[i] = state[i].most + logf(row_sum(state[i].sum));
        scale[i] = shape.scale;
        const size_t cell = (size_t)at.head * (size_t)shape.rows + first + (size_t)(y + i);
        if (y + i < left && threadIdx.x % 16 == 0) {
            log_sum[cell] = total[i];
            along_out[cell] = along[i];
        }
    }

    float2 sum[R][D / 32] = {};
    for (int k = 0; k < q + B && k < at.length; k += B) {
        float score[R][R], d_score[R][R];
        __syncthreads();
        load_rows<D, B>(key, keys + (size_t)k * stride, stride, at.length - k, shape.dim);
        load_rows<D, B>(value, values + (size_t)k * stride, stride, at.length - k, shape.dim);
        __syncthreads();
        score_tile<D, R>(score, query, key);
        score_tile<D, R>(d_score, d_row, value);
        scale_and_mask<R>(score, shape.scale, q, k);
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < R; j++)
                d_score[i][j] = expf(score[i][j] - total[i]) * (d_score[i][j] - along[i]);
        put_tile<R>(weight, d_score);
        __syncthreads();
        weigh_tile<D, R>(sum, weight, key);
    }
    store_rows<D, R>(sum, scale, d_qkv + first * stride + channel, stride, left, shape.dim);
}

/* d_key and d_value of a tile of keys of a kv head. Queries beyond the end are zeros, with zero
 * log_sum and along, so that they add nothing. */
template <int D, int B>
__global__ void __launch_bounds__(THREADS)
    attention_back_key_f32(attention_shape shape, const float *qkv, const float *d_out,
                           const float *log_sum, const float *along, float *d_qkv) {
    enum { R = B / 16 };
    extern __shared__ __align__(16) float memory[];
    const attention_block at = attention_place(shape, shape.kv_heads, false);
    const int k = at.tile * B, left = at.length - k, group = shape.heads / shape.kv_heads;
    const int y = (int)threadIdx.x / 16 * R, x = (int)threadIdx.x % 16;
    if (left <= 0)
        return;
    float *key = memory, *value = key + B * (D + 4), *query = value + B * (D + 4);
    float *d_row = query + B * (D + 4), *weight = d_row + B * (D + 4);
    const size_t stride = qkv_stride(shape), first = at.first + (size_t)k;
    const size_t out_stride = (size_t)shape.heads * (size_t)shape.dim;
    const size_t key_at = key_channel(shape, at.head), value_at = value_channel(shape, at.head);
    load_rows<D, B>(key, qkv + first * stride + key_at, stride, left, shape.dim);
    load_rows<D, B>(value, qkv + first * stride + value_at, stride, left, shape.dim);

    float2 d_key[R][D / 32] = {}, d_value[R][D / 32] = {};
    for (int head = at.head * group; head < (at.head + 1) * group; head++)
        for (int q = k; q < at.length; q += B) {
            const size_t row = at.first + (size_t)q, channel = query_channel(shape, head);
            float p[R][R], d_score[R][R];
            __syncthreads();
            load_rows<D, B>(query, qkv + row * stride + channel, stride, at.length - q, shape.dim);
            load_rows<D, B>(d_row, d_out + row * out_stride + channel, out_stride, at.length - q,
                            shape.dim);
            __syncthreads();
            score_tile<D, R>(p, key, query);
            score_tile<D, R>(d_score, value, d_row);
#pragma unroll
            for (int j = 0; j < R; j++) {
                const int column = q + x + 16 * j;
                const size_t cell = (size_t)head * (size_t)shape.rows + at.first + (size_t)column;
                const float total = column < at.length ? log_sum[cell] : 0.0f;
                const float dot = column < at.length ? along[cell] : 0.0f;
#pragma unroll
                for (int i = 0; i < R; i++) {
                    const bool sees = column >= k + y + i;
                    p[i][j] = sees ? expf(p[i][j] * shape.scale - total) : 0.0f;
                    d_score[i][j] = p[i][j] * (d_score[i][j] - dot);
                }
            }
            put_tile<R>(weight, p);
            __syncthreads();
            weigh_tile<D, R>(d_value, weight, d_row);
            __syncthreads();
            put_tile<R>(weight, d_score);
            __syncthreads();
            weigh_tile<D, R>(d_key, weight, query);
        }
    float by[R], one[R];
#pragma unroll
    for (int i = 0; i < R; i++) {
        by[i] = shape.scale;
        one[i] = 1.0f;
    }
    store_rows<D, R>(d_key, by, d_qkv + first * stride + key_at, stride, left, shape.dim);
    store_rows<D, R>(d_value, one, d_qkv + first * stride + value_at, stride, left, shape.dim);
}

/* Shared memory of `tiles` tiles of rows and one of weights. */
template <int D, int B> static size_t shared_bytes(size_t tiles) {
    return (tiles * B * (D + 4) + B * (B + 4)) * sizeof(float);
}

template <int D, int B>
static int launch(backend *device, attention_shape shape, const float *qkv, float *out,
                  const attention_extras *extras, status *st) {
    const unsigned blocks = attention_blocks(&shape, B, shape.heads, st);
    const auto kernel = attention_f32<D, B>;
    const size_t shared = shared_bytes<D, B>(D <= 64 ? 3 : 2);
    if (!blocks || attention_shared(device, (const void *)kernel, shared, st))
        return FAILED;
    kernel<<<blocks, THREADS, shared, device->stream>>>(shape, qkv, out, *extras);
    return cuda_launched("attention", st);
}

int attention_fp32(backend *device, attention_shape shape, const float *qkv, float *out,
                   const attention_extras *extras, status *st) {
    if (shape.dim <= 32)
        return launch<32, 64>(device, shape, qkv, out, extras, st);
    if (shape.dim <= 64)
        return launch<64, 64>(device, shape, qkv, out, extras, st);
    if (shape.dim <= 128)
        return launch<128, 64>(device, shape, qkv, out, extras, st);
    return launch<256, 32>(device, shape, qkv, out, extras, st);
}

template <int D, int B>
static int launch_back(backend *device, attention_shape shape,
                       const attention_back_buffers<float> &at, status *st) {
    const auto query = attention_back_query_f32<D, B>;
    const auto key = attention_back_key_f32<D, B>;
    const size_t shared = shared_bytes<D, B>(4);
    unsigned blocks = attention_blocks(&shape, B, shape.heads, st);
    if (!blocks || attention_shared(device, (const void *)query, shared, st) ||
        attention_shared(device, (const void *)key, shared, st))
        return FAILED;
    query<<<blocks, THREADS, shared, device->stream>>>(shape, at.qkv, at.out, at.d_out, at.log_sum,
                                                       at.along, at.d_qkv);
    if (cuda_launched("attention_back: queries", st))
        return FAILED;
    blocks = attention_blocks(&shape, B, shape.kv_heads, st);
    key<<<blocks, THREADS, shared, device->stream>>>(shape, at.qkv, at.d_out, at.log_sum, at.along,
                                                     at.d_qkv);
    return cuda_launched("attention_back: keys", st);
}

int attention_back_fp32(backend *device, attention_shape shape,
                        const attention_back_buffers<float> &at, status *st) {
    if (shape.dim <= 32)
        return launch_back<32, 64>(device, shape, at, st);
    if (shape.dim <= 64)
        return launch_back<64, 64>(device, shape, at, st);
    if (shape.dim <= 128)
        return launch_back<128, 64>(device, shape, at, st);
    return launch_back<256, 32>(device, shape, at, st);
}
