/* mma.cuh - bf16 tiles on tensor cores: mma.sync m16n8k16 with fp32 sums (sm_80 and later).
 *
 * Tiles lie in shared memory as rows of D channels with a stride of D + 8 elements, D a multiple of
 * 16: the eight rows that one ldmatrix reads then start in different banks. A warp owns MT * 16
 * rows of a product. Its sums are acc[MT][columns / 8][4]: lane l holds, of each 16 x 8 piece,
 * columns 2 (l % 4) and + 1 of row l / 4 (elements 0, 1) and of row l / 4 + 8 (elements 2, 3).
 */
#ifndef FATHOM_KERNELS_CUDA_MMA_CUH
#define FATHOM_KERNELS_CUDA_MMA_CUH

#include "kernels/cuda/cuda.h"

typedef __nv_bfloat16 bf16;

__device__ __forceinline__ unsigned shared_address(const void *memory) {
    return (unsigned)__cvta_generic_to_shared(memory);
}

/* Four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8. */
__device__ __forceinline__ void ldmatrix(unsigned (&to)[4], const bf16 *from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(from))
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_transposed(unsigned (&to)[4], const bf16 *from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(from))
                 : "memory");
}

__device__ __forceinline__ void mma(float (&acc)[4], const unsigned (&a)[4], unsigned b0,
                                    unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* 16 bytes to shared memory without waiting; zeros, and `from` not read, where not `there`. */
__device__ __forceinline__ void copy_async(void *to, const void *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void copy_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
__device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* 2^x, within 2^-22 of it; 0 far below. */
__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ unsigned bf16_pair(float low, float high) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *(const unsigned *)&both;
}

/* Where lane l points ldmatrix: a left operand by rows (and a right one that is transposed on the
 * way), and a right operand whose rows are the product's columns. */
template <int D> __device__ __forceinline__ int left_lane() {
    const int lane = (int)threadIdx.x % 32;
    return lane % 16 * (D + 8) + lane / 16 * 8;
}
template <int D> __device__ __forceinline__ int right_lane() {
    const int lane = (int)threadIdx.x % 32;
    return (lane / 16 * 8 + lane % 8) * (D + 8) + lane / 8 % 2 * 8;
}

/* acc += a b^T over D channels: `a` the warp's MT * 16 rows, `b` N rows. */
template <int D, int MT, int N>
__device__ __forceinline__ void score_tile(float (&acc)[MT][N / 8][4], const bf16 *a,
                                           const bf16 *b) {
    a += left_lane<D>();
    b += right_lane<D>();
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        unsigned left[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++)
            ldmatrix(left[m], a + m * 16 * (D + 8) + k);
#pragma unroll
        for (int n = 0; n < N; n += 16) {
            unsigned right[4];
            ldmatrix(right, b + n * (D + 8) + k);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma(acc[m][n / 8], left[m], right[0], right[1]);
                mma(acc[m][n / 8 + 1], left[m], right[2], right[3]);
            }
        }
    }
}

/* acc += w b: `w` [MT * 16, N] is a tile of sums, rounded to bf16 here; `b` N rows, of which C
 * channels from its first on are used. */
template <int D, int C, int MT, int N>
__device__ __forceinline__ void weigh_tile(float (&acc)[MT][C / 8][4],
                                           const float (&w)[MT][N / 8][4], const bf16 *b) {
    b += left_lane<D>();
#pragma unroll
    for (int k = 0; k < N; k += 16) {
        unsigned left[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                left[m][i] =
                    bf16_pair(w[m][k / 8 + i / 2][i % 2 * 2], w[m][k / 8 + i / 2][i % 2 * 2 + 1]);
#pragma unroll
        for (int n = 0; n < C; n += 16) {
            unsigned right[4];
            ldmatrix_transposed(right, b + k * (D + 8) + n);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma(acc[m][n / 8], left[m], right[0], right[1]);
                mma(acc[m][n / 8 + 1], left[m], right[2], right[3]);
            }
        }
    }
}

/* ROWS rows of `dim` channels, `left` of which exist, from global rows of `stride` elements; zeros
 * beyond. Aligned rows arrive with the copies committed next. */
template <int D, int ROWS, int THREADS>
__device__ __forceinline__ void load_rows(bf16 *to, const bf16 *from, size_t stride, int left,
                                          int dim) {
    enum { PIECES = D / 8, TURNS = ROWS * PIECES / THREADS };
    static_assert(ROWS * PIECES % THREADS == 0, "every thread has as many pieces");
    if (dim % 8 == 0 && THREADS % PIECES == 0) {
        enum { STEP = THREADS / PIECES }; /* rows a turn; a thread's channel stays */
        const int row = (int)threadIdx.x / PIECES, channel = (int)threadIdx.x % PIECES * 8;
        const bf16 *source = from + (size_t)row * stride + channel;
        const int seen = channel < dim ? left - row : 0;
        to += row * (D + 8) + channel;
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            const bool there = turn * STEP < seen;
            copy_async(to + turn * STEP * (D + 8), source, there);
            source += STEP * stride;
        }
        return;
    }
    if (dim % 8 == 0) {
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            const int i = (int)threadIdx.x + turn * THREADS;
            const int row = i / PIECES, channel = i % PIECES * 8;
            const bool there = row < left && channel < dim;
            copy_async(to + row * (D + 8) + channel, from + (size_t)row * stride + channel, there);
        }
        return;
    }
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < ROWS * D; i += THREADS) {
        const int row = i / D, channel = i % D;
        to[row * (D + 8) + channel] = row < left && channel < dim
                                          ? from[(size_t)row * stride + channel]
                                          : __float2bfloat16(0.0f);
    }
}

/* The warp's rows of sums, each times scale[m][side], to `left` global rows of `stride` elements,
 * C channels of which `dim` exist. They pass through `staging`, MT * 16 rows of shared memory that
 * no other warp uses, so that global memory is written in pieces of 16 bytes. */
template <int D, int C, int MT>
__device__ __forceinline__ void store_rows(const float (&acc)[MT][C / 8][4],
                                           const float (&scale)[MT][2], bf16 *staging, bf16 *to,
                                           size_t stride, int left, int dim) {
    enum { PIECES = C / 8 };
    const int lane = (int)threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < C / 8; n++)
#pragma unroll
            for (int side = 0; side < 2; side++)
                *(unsigned *)(staging + (m * 16 + side * 8 + lane / 4) * (D + 8) + n * 8 +
                              lane % 4 * 2) = bf16_pair(acc[m][n][side * 2] * scale[m][side],
                                                        acc[m][n][side * 2 + 1] * scale[m][side]);
    __syncwarp();
    for (int i = lane; i < MT * 16 * PIECES; i += 32) {
        const int row = i / PIECES, channel = i % PIECES * 8;
        const bf16 *cell = staging + row * (D + 8) + channel;
        bf16 *target = to + (size_t)row * stride + channel;
        if (row >= left)
            break;
        if (dim % 8 == 0 && channel < dim)
            *(uint4 *)target = *(const uint4 *)cell;
        else
            for (int e = 0; e < 8 && channel + e < dim; e++)
                target[e] = cell[e];
    }
}

/* ---- softmax over the columns of passing tiles ---- */

#define MASKED (-1e38f) /* a score that is not seen; finite, so that 0 * it is 0 */
#define LOG2_E 1.4426950408889634f

/* Per row of a warp, lane l holding rows l / 4 and l / 4 + 8 of each 16; sums are over the lane's
 * own columns until the end. */
template <int MT> struct row_state {
    float most[MT][2];  /* largest score so far, times scale log2(e) */
    float sum[MT][2];   /* of 2^x, x = score - most */
    float along[MT][2]; /* of x 2^x */
    float first[MT][2]; /* the score of position 0, in lanes 4 i */
};

template <int MT> __device__ __forceinline__ row_state<MT> no_rows() {
    row_state<MT> state;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int side = 0; side < 2; side++) {
            state.most[m][side] = MASKED;
            state.sum[m][side] = state.along[m][side] = state.first[m][side] = 0.0f;
        }
    return state;
}

/* Over the four lanes that share a row. */
__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

/* Scores become 2^x; what was summed so far is to be multiplied by `fade`. Each row must see a key
 * of the first tile: `most` starts at MASKED. Rounded step by step, so that STATS cannot change
 * how the rest is contracted. */
template <int MT, int N, bool STATS>
__device__ __forceinline__ void online_softmax(float (&score)[MT][N / 8][4], row_state<MT> &state,
                                               float (&fade)[MT][2], float scale) {
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int side = 0; side < 2; side++) {
            float most = score[m][0][side * 2];
#pragma unroll
            for (int n = 0; n < N / 8; n++)
                most = fmaxf(most, fmaxf(score[m][n][side * 2], score[m][n][side * 2 + 1]));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
            most = fmaxf(state.most[m][side], __fmul_rn(most, scale));
            const float step = __fsub_rn(state.most[m][side], most);
            fade[m][side] = power_of_two(step);
            if (STATS)
                state.along[m][side] =
                    fade[m][side] * (state.along[m][side] + step * state.sum[m][side]);
            state.most[m][side] = most;
            float sum = __fmul_rn(state.sum[m][side], fade[m][side]);
#pragma unroll
            for (int n = 0; n < N / 8; n++)
#pragma unroll
                for (int i = side * 2; i < side * 2 + 2; i++) {
                    const float x = __fmaf_rn(score[m][n][i], scale, -most);
                    score[m][n][i] = power_of_two(x);
                    sum = __fadd_rn(sum, score[m][n][i]);
                    if (STATS)
                        state.along[m][side] += x * score[m][n][i];
                }
            state.sum[m][side] = sum;
        }
}

/* Scores of keys after their query; the warp's rows start at `query`, the tile's columns at `key`.
 */
template <int MT, int N>
__device__ __forceinline__ void mask(float (&score)[MT][N / 8][4], int query, int key) {
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (key + n * 8 + lane % 4 * 2 + i % 2 > query + m * 16 + lane / 4 + i / 2 * 8)
                    score[m][n][i] = MASKED;
}

#endif
