/* depth_pull_ring.cu - the pull of depth_pull.cu in bf16 where slices are whole 16-byte pieces:
 * each reader's gradient leaves device memory once.
 *
 * A block takes a tile of rows with all their heads, for the norm's term sums over heads. A warp
 * has one head (or, W > 1, one of W parts of a wide one): P neighbouring lanes share a row's slice,
 * C pieces of 8 channels each, and a lane has R such rows, so that a warp's 32 / P * R rows share
 * what they all need of a reader, its folded query u. That and the rows of d_mix come through a
 * ring in shared memory, filled STAGES - 1 readers ahead, across tiles. The value itself and its
 * gradient's sum stay in registers.
 */
#include "kernels/cuda/depth_pull.cuh"
#include "kernels/cuda/depth_ring.cuh"

#include <math.h>

#ifndef PULL_STAGES
#define PULL_STAGES 3
#define PULL_FEW_STAGES 6
#define PULL_BLOCKS 1
#define PULL_ROWS 2
#define PULL_PIECES 4
#define PULL_WIDE_ROWS 3
#define PULL_WIDE_PIECES 2
#endif

namespace {

typedef __nv_bfloat16 real;

/* A reader as the kernel uses it, at the value's position. */
struct reader_row {
    const real *d_mix;
    const float *logit, *lse, *product, *folded;
    real *edge;
};

/* Keeps the compiler from holding the eight floats of a piece in registers from reader to reader.
 */
__device__ __forceinline__ void stay_packed(uint4 &x) {
    asm volatile("" : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w));
}

template <int P, int C, int R> struct slot_of {
    static constexpr int groups = 32 / P;
    static constexpr int folded = R * C * 512;              /* d_mix comes first */
    static constexpr int scalars = folded + 2 * P * C * 16; /* logit, lse, product */
    static constexpr int bytes = (scalars + 3 * R * groups * 4 + 15) / 16 * 16;
};

template <int P, int C, int R, bool WIDE, int STAGES> struct puller {
    typedef slot_of<P, C, R> slot_type;
    static constexpr int groups = 32 / P;
    const pulling &a;
    const reader_row *table;
    unsigned char *ring;
    float *parts, *backs;
    int lane, own, group, head, part, set, sets, W, pieces;
    unsigned parity;
    uint4 v[R][C];
    float sum[R][C][8], inverse[R], back[R];

    __device__ __forceinline__ puller(const pulling &args) : a(args) {}

    __device__ __forceinline__ int piece(int at, int c) const {
        return WIDE ? (c * W + part) * 32 + at : c * P + at;
    }
    __device__ __forceinline__ size_t row_of(size_t tile, int r) const {
        return (tile * (size_t)sets + (size_t)set) * (groups * R) + (size_t)(r * groups + group);
    }
    __device__ __forceinline__ size_t held(size_t row) const {
        return row < a.rows ? row : a.rows - 1;
    }

    __device__ __forceinline__ void copy_reader(size_t tile, int k, int stage) const {
        const reader_row by = table[k];
        unsigned char *slot = ring + stage * slot_type::bytes;
        const int first = head * a.slice;
#pragma unroll
        for (int r = 0; r < R; r++) {
            const real *row = by.d_mix + held(row_of(tile, r)) * (size_t)a.width + first;
#pragma unroll
            for (int c = 0; c < C; c++)
                if (piece(own, c) < pieces)
                    copy_ahead16(slot + (r * C + c) * 512 + lane * 16, row + piece(own, c) * 8);
        }
#pragma unroll
        for (int i = 0; i < (2 * P * C + 31) / 32; i++) {
            const int unit = i * 32 + lane, half = unit / (P * C), at = unit % (P * C);
            const int from = piece(at % P, at / P);
            if (unit < 2 * P * C && from < pieces)
                copy_ahead16(slot + slot_type::folded + unit * 16,
                             by.folded + first + from * 8 + half * 4);
        }
        if (own == 0) {
            unsigned char *scalars = slot + slot_type::scalars;
#pragma unroll
            for (int r = 0; r < R; r++) {
                const size_t cell = held(row_of(tile, r)) * (size_t)a.heads + (size_t)head;
                const int at = (r * groups + group) * 4;
                copy_ahead4(scalars + at, by.logit + cell);
                copy_ahead4(scalars + R * groups * 4 + at, by.lse + cell);
                copy_ahead4(scalars + 2 * R * groups * 4 + at, by.product + cell);
            }
        }
    }

    __device__ __forceinline__ void start_tile(size_t tile, const value_view &view) {
#pragma unroll
        for (int r = 0; r < R; r++) {
            const size_t row = held(row_of(tile, r));
            const real *from =
                static_cast<const real *>(view.row) + row * view.stride + head * a.slice;
            inverse[r] = view.inverse_rms[row * view.step];
            back[r] = 0.0f;
#pragma unroll
            for (int c = 0; c < C; c++) {
                v[r][c] = make_uint4(0, 0, 0, 0);
                if (piece(own, c) < pieces)
                    v[r][c] = *reinterpret_cast<const uint4 *>(from + piece(own, c) * 8);
#pragma unroll
                for (int i = 0; i < 8; i++)
                    sum[r][c][i] = 0.0f;
            }
        }
    }

    /* Sums the parts of a wide head, in order. */
    __device__ __forceinline__ void exchange(float (&dot)[R]) {
        const int warps = (int)blockDim.x / 32, warp = (int)threadIdx.x / 32;
        float *mine = parts + (parity & 1u) * (unsigned)(warps * R);
        parity++;
        if (lane == 0)
#pragma unroll
            for (int r = 0; r < R; r++)
                mine[warp * R + r] = dot[r];
        __syncthreads();
#pragma unroll
        for (int r = 0; r < R; r++)
            dot[r] = 0.0f;
        for (int w = 0; w < W; w++)
#pragma unroll
            for (int r = 0; r < R; r++)
                dot[r] += mine[(warp - part + w) * R + r];
    }

    __device__ __forceinline__ void take_reader(size_t tile, int k, int stage) {
        const unsigned char *slot = ring + stage * slot_type::bytes;
        const float *scalars = reinterpret_cast<const float *>(slot + slot_type::scalars);
        float dot[R], weight[R], edge[R];
#pragma unroll
        for (int r = 0; r < R; r++) {
            dot[r] = 0.0f;
#pragma unroll
            for (int c = 0; c < C; c++) {
                float x[8], y[8];
                widen(*reinterpret_cast<const uint4 *>(slot + (r * C + c) * 512 + lane * 16), x);
                stay_packed(v[r][c]);
                widen(v[r][c], y);
#pragma unroll
                for (int i = 0; i < 8; i++)
                    dot[r] = fmaf(x[i], y[i], dot[r]);
            }
        }
#pragma unroll
        for (int o = P / 2; o; o >>= 1)
#pragma unroll
            for (int r = 0; r < R; r++)
                dot[r] += __shfl_xor_sync(0xffffffffu, dot[r], o);
        if constexpr (WIDE)
            exchange(dot);
#pragma unroll
        for (int r = 0; r < R; r++) {
            const int at = r * groups + group;
            const float l = scalars[at];
            weight[r] = __expf(l - scalars[R * groups + at]);
            const float dl = weight[r] * (dot[r] - scalars[2 * R * groups + at]);
            back[r] = fmaf(dl, l, back[r]);
            edge[r] = dl * inverse[r];
            const size_t row = row_of(tile, r);
            if (own == 0 && part == 0 && row < a.rows)
                table[k].edge[(size_t)head * a.edge_rows + row] = __float2bfloat16(edge[r]);
        }
#pragma unroll
        for (int c = 0; c < C; c++) {
            const unsigned char *at = slot + slot_type::folded + (c * P + own) * 16;
            const float4 low = *reinterpret_cast<const float4 *>(at);
            const float4 high = *reinterpret_cast<const float4 *>(at + P * C * 16);
            const float u[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
            for (int r = 0; r < R; r++) {
                float x[8];
                widen(*reinterpret_cast<const uint4 *>(slot + (r * C + c) * 512 + lane * 16), x);
#pragma unroll
                for (int i = 0; i < 8; i++)
                    sum[r][c][i] = fmaf(weight[r], x[i], fmaf(edge[r], u[i], sum[r][c][i]));
            }
        }
    }

    /* The norm's term, what reaches the value as it is, and out. */
    __device__ __forceinline__ void end_tile(size_t tile) {
        const int warps = (int)blockDim.x / 32, warp = (int)threadIdx.x / 32;
        float *mine = backs + (parity >> 31) * (unsigned)(warps * groups * R);
        parity ^= 0x80000000u;
        if (own == 0)
#pragma unroll
            for (int r = 0; r < R; r++)
                mine[warp * groups * R + r * groups + group] = back[r];
        __syncthreads();
#pragma unroll
        for (int r = 0; r < R; r++) {
            const size_t row = row_of(tile, r);
            float all = 0.0f;
            for (int h = 0; h < a.heads; h++)
                all += mine[(set * a.heads + h) * W * groups * R + r * groups + group];
            if (row >= a.rows)
                continue;
            all *= inverse[r] * inverse[r] / (float)a.width;
            const size_t at = row * (size_t)a.width + (size_t)(head * a.slice);
#pragma unroll
            for (int c = 0; c < C; c++) {
                if (piece(own, c) >= pieces)
                    continue;
                const size_t cell = at + (size_t)piece(own, c) * 8;
                float x[8], total[8];
                widen(v[r][c], x);
#pragma unroll
                for (int i = 0; i < 8; i++)
                    total[i] = sum[r][c][i] - all * x[i];
                for (int t = 0; t < a.terms.count; t++) {
                    load<8>(static_cast<const real *>(a.terms.term[t].from) + cell, x);
#pragma unroll
                    for (int i = 0; i < 8; i++)
                        total[i] += a.terms.term[t].sign * x[i];
                }
                store<8>(static_cast<real *>(a.out) + cell, total);
            }
        }
    }

    __device__ __forceinline__ void run() {
        const value_view view = *a.view;
        const size_t height = (size_t)sets * groups * R;
        const size_t tiles = (a.rows + height - 1) / height;
        size_t copied = blockIdx.x;
        int copied_reader = 0, stage = 0;
        const auto copy_next = [&](int to) {
            if (copied < tiles) {
                copy_reader(copied, copied_reader, to);
                if (++copied_reader == a.readers) {
                    copied_reader = 0;
                    copied += gridDim.x;
                }
            }
            stage_ends();
        };
        for (int i = 0; i < STAGES - 1; i++)
            copy_next(i);
        for (size_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            start_tile(tile, view);
            for (int k = 0; k < a.readers; k++) {
                __syncwarp(); /* all lanes have read the stage that is filled now */
                copy_next(stage == 0 ? STAGES - 1 : stage - 1);
                wait_but<STAGES - 1>();
                __syncwarp(); /* what the other lanes have copied is there */
                take_reader(tile, k, stage);
                stage = stage + 1 == STAGES ? 0 : stage + 1;
            }
            end_tile(tile);
        }
    }
};

template <int P, int C, int R, bool WIDE, int STAGES, int THREADS>
__global__ void __launch_bounds__(THREADS, THREADS > 256 ? 1 : PULL_BLOCKS)
    pull_ring(const __grid_constant__ pulling args, int W) {
    typedef puller<P, C, R, WIDE, STAGES> type;
    extern __shared__ __align__(16) unsigned char shared[];
    type p(args);
    let_next_start();
    const int warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32;
    p.lane = (int)threadIdx.x % 32;
    p.own = p.lane % P;
    p.group = p.lane / P;
    p.W = W;
    p.part = warp % W;
    p.head = warp / W % args.heads;
    p.set = warp / W / args.heads;
    p.sets = warps / W / args.heads;
    p.pieces = args.slice / 8;
    p.parity = 0;
    reader_row *table = reinterpret_cast<reader_row *>(shared);
    p.table = table;
    unsigned char *rings = shared + ((size_t)args.readers * sizeof *table + 15) / 16 * 16;
    const size_t ring_bytes = (size_t)STAGES * type::slot_type::bytes;
    p.ring = rings + (size_t)warp * ring_bytes;
    p.backs = reinterpret_cast<float *>(rings + (size_t)warps * ring_bytes);
    p.parts = p.backs + 2 * warps * type::groups * R;
    for (int k = (int)threadIdx.x; k < args.readers; k += (int)blockDim.x) {
        const reader by = args.reader[k];
        const back_view site = args.back[by.site];
        const size_t heads = (size_t)args.heads, position = (size_t)by.position;
        if (k < NOTED)
            table[k].d_mix = static_cast<const real *>(args.d_mix[k]);
        table[k].logit = site.logit + position * args.logit_rows * heads;
        table[k].lse = site.lse;
        table[k].product = site.product;
        table[k].folded = site.folded;
        table[k].edge = static_cast<real *>(site.edge) + position * heads * args.edge_rows;
    }
    /* Lanes without a piece read what was never copied: it must be a number. */
    if (p.pieces < P * C * W)
        for (size_t i = (size_t)p.lane * 16; i < ring_bytes; i += 512)
            *reinterpret_cast<uint4 *>(p.ring + i) = make_uint4(0, 0, 0, 0);
    wait_for_earlier();
    for (int k = NOTED + (int)threadIdx.x; k < args.readers; k += (int)blockDim.x)
        table[k].d_mix = static_cast<const real *>(args.back[args.reader[k].site].d_mix);
    __syncthreads();
    p.run();
}

template <int P, int C, int R, bool WIDE, int STAGES, int THREADS>
bool choose(const depth *axis, int heads, int W, pull_kernel *out, status *st) {
    typedef puller<P, C, R, WIDE, STAGES> type;
    const int most = THREADS / 32, sets = most / (heads * W) > 1 ? most / (heads * W) : 1;
    const int warps = heads * W * sets;
    if (warps > most)
        return true;
    const size_t room = axis->device->properties.sharedMemPerBlockOptin;
    const size_t shared = (size_t)warps * (STAGES * type::slot_type::bytes +
                                           (2 * type::groups * R + 2 * R) * sizeof(float)) +
                          16;
    if (shared > room)
        return true;
    out->kernel = (const void *)pull_ring<P, C, R, WIDE, STAGES, THREADS>;
    out->W = W;
    out->block = 32 * (unsigned)warps;
    out->height = (size_t)(sets * type::groups * R);
    out->reader_bytes = sizeof(reader_row);
    out->most_readers = (room - shared) / sizeof(reader_row);
    out->shared = shared;
    return !cuda_ok(
        cudaFuncSetAttribute(out->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)room),
        "depth: pull", st);
}

template <int R, int S, int THREADS>
bool choose_lanes(const depth *axis, size_t pieces, pull_kernel *out, status *st) {
    constexpr int C = PULL_PIECES;
    const int heads = (int)axis->plan->heads;
    if (pieces > 16 && pieces <= 20)
        return choose<4, 5, R, false, S, THREADS>(axis, heads, 1, out, st);
    if (pieces <= C)
        return choose<1, C, R, false, S, THREADS>(axis, heads, 1, out, st);
    if (pieces <= 2 * C)
        return choose<2, C, R, false, S, THREADS>(axis, heads, 1, out, st);
    if (pieces <= 4 * C)
        return choose<4, C, R, false, S, THREADS>(axis, heads, 1, out, st);
    if (pieces <= 8 * C)
        return choose<8, C, R, false, S, THREADS>(axis, heads, 1, out, st);
    if (pieces <= 16 * C)
        return choose<16, C, R, false, S, THREADS>(axis, heads, 1, out, st);
    return choose < 32, C, R, false, S < 4 ? S : 4, THREADS > (axis, heads, 1, out, st);
}

} // namespace

int depth_pull_choose(const depth *axis, bool few, pull_kernel *out, status *st) {
    const size_t slice = axis->plan->width / axis->plan->heads, pieces = slice / 8;
    const int heads = (int)axis->plan->heads;
    constexpr int wide = 32 * PULL_WIDE_PIECES;
    const pull_kernel none = {};
    *out = none;
    if (!axis->device->bf16 || slice % 8)
        return DONE;
    bool done;
    if (heads == 1 || pieces > 32 * PULL_PIECES)
        done = choose<32, PULL_WIDE_PIECES, PULL_WIDE_ROWS, true, 2, 448>(
            axis, heads, (int)((pieces + wide - 1) / wide), out, st);
    else if (heads > 8)
        done = choose_lanes<1, PULL_STAGES, 512>(axis, pieces, out, st);
    else
        done = few ? choose_lanes<1, PULL_FEW_STAGES, 256>(axis, pieces, out, st)
                   : choose_lanes<PULL_ROWS, PULL_STAGES, 256>(axis, pieces, out, st);
    return done ? DONE : FAILED;
}
