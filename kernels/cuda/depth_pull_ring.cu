/* depth_pull_ring.cu - the pull of depth_pull.cu in bf16 where slices are whole 16-byte pieces:
 * each reader's gradient leaves device memory once.
 *
 * A block takes a tile of rows with all their heads, for the norm's term sums over heads. As in
 * depth_read.cu a task is one (row, head), P neighbouring lanes share it with C pieces of 8
 * channels each (WIDE: W warps of 32 lanes); a lane has R tasks, RB0 rows apart. The value itself
 * and its gradient's sum stay in registers. What all rows share of a reader, its folded query in
 * bf16, lies in shared memory beside the rows' gradients, logits and products: BATCH readers to a
 * stage, the next stages under way while one is at work, also across tiles. All copies are of
 * neighbouring bytes. dl r of a stage is turned in shared memory and written a head's rows at a
 * time.
 */
#include "kernels/cuda/depth_pull.cuh"
#include "kernels/cuda/depth_ring.cuh"

#include <math.h>

namespace {

typedef __nv_bfloat16 real;

/* A reader as the kernel uses it, at the value's position. */
struct reader_row {
    const real *d_mix, *folded;
    const float *logit, *lse, *product;
    real *edge;
};

/* Keeps the compiler from holding the eight floats of a piece in registers from reader to reader.
 */
__device__ __forceinline__ void stay_packed(uint4 &x) {
    asm volatile("" : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w));
}

/* How a block's shared memory is laid out; the same on both sides. */
struct block_shape {
    int warps, W;        /* W warps to a task of a WIDE kernel, else 1 */
    int tasks, rows;     /* of the block, for each of a lane's R */
    int folded, scalars; /* bytes: where these of a reader begin, after the rows' gradients */
    int reader, stage;   /* bytes of one, and of BATCH */
};

template <int P, int C, int R, bool WIDE, int BATCH>
__host__ __device__ block_shape shape_of(int warps, int W, int width, int heads) {
    block_shape s;
    s.warps = warps;
    s.W = W;
    s.tasks = WIDE ? warps / W : warps * (32 / P);
    s.rows = s.tasks / heads;
    s.folded = R * warps * C * 512;
    s.scalars = s.folded + width * 2;
    s.reader = (s.scalars + 3 * R * s.tasks * 4 + 15) / 16 * 16;
    s.stage = BATCH * s.reader;
    return s;
}

template <int P, int C, int R, bool WIDE, int BATCH, int STAGES> struct puller {
    static constexpr int tasks = 32 / P; /* of a warp */
    const pulling &a;
    const block_shape s;
    const reader_row *table;
    unsigned char *stages;
    float *edges; /* [2, BATCH, R, tasks of the block] */
    float *backs; /* [2, R, tasks] */
    float *parts; /* WIDE: [2, warps, BATCH, R] */
    int lane, own, warp, part, task, head, pieces;
    int to[C];
    unsigned turn = 0, exchanges = 0;
    uint4 v[R][C];
    float sum[R][C][8], inverse[R], back[R];

    __device__ __forceinline__ puller(const pulling &args, const block_shape &shape)
        : a(args), s(shape) {}

    __device__ __forceinline__ void place() {
        lane = (int)threadIdx.x % 32;
        warp = (int)threadIdx.x / 32;
        own = lane % P;
        part = WIDE ? warp % s.W : 0;
        task = WIDE ? warp / s.W : warp * tasks + lane / P;
        head = task % a.heads;
        pieces = a.slice / 8;
#pragma unroll
        for (int c = 0; c < C; c++) {
            const int unit = c * 32 + lane, at = unit % pieces;
            to[c] = WIDE                    ? piece(c) < pieces ? c * 512 + lane * 16 : -1
                    : unit < tasks * pieces ? at / P * 512 + (unit / pieces * P + at % P) * 16
                                            : -1;
        }
    }

    __device__ __forceinline__ int piece(int c) const {
        return WIDE ? (c * s.W + part) * 32 + lane : c * P + own;
    }
    /* The first of the block's rows with a lane's task r. */
    __device__ __forceinline__ unsigned top_of(unsigned tile, int r) const {
        return (tile * R + (unsigned)r) * (unsigned)s.rows;
    }
    __device__ __forceinline__ unsigned row_of(unsigned tile, int r) const {
        return top_of(tile, r) + (unsigned)(task / a.heads);
    }

    __device__ __forceinline__ void copy_reader(unsigned tile, int k, unsigned char *slot) const {
        const reader_row by = table[k];
        const size_t all = a.rows * (size_t)a.width;
#pragma unroll
        for (int r = 0; r < R; r++) {
            const size_t first = (size_t)top_of(tile, r) * (size_t)a.width +
                                 (size_t)(WIDE ? task : warp * tasks) * (size_t)a.slice;
            const int left = first >= all               ? 0
                             : all - first < (1u << 30) ? (int)(all - first)
                                                        : 1 << 30;
            const real *from = by.d_mix + first;
            unsigned char *rows = slot + (r * s.warps + warp) * C * 512;
#pragma unroll
            for (int c = 0; c < C; c++) {
                const int element = (WIDE ? piece(c) : c * 32 + lane) * 8;
                if (to[c] >= 0 && element < left)
                    copy_ahead16(rows + to[c], from + element);
            }
        }
        for (int i = (int)threadIdx.x; i < a.width / 8; i += (int)blockDim.x)
            copy_ahead16(slot + s.folded + i * 16, by.folded + i * 8);
        for (int i = (int)threadIdx.x; i < R * s.tasks; i += (int)blockDim.x) {
            const unsigned cell =
                top_of(tile, i / s.tasks) * (unsigned)a.heads + (unsigned)(i % s.tasks);
            if (cell >= (unsigned)a.rows * (unsigned)a.heads)
                continue;
            unsigned char *scalars = slot + s.scalars + i * 4;
            copy_ahead4(scalars, by.logit + cell);
            copy_ahead4(scalars + R * s.tasks * 4, by.lse + cell);
            copy_ahead4(scalars + 2 * R * s.tasks * 4, by.product + cell);
        }
    }

    __device__ __forceinline__ void start_tile(unsigned tile, const value_view &view) {
#pragma unroll
        for (int r = 0; r < R; r++) {
            const unsigned row = row_of(tile, r);
            const bool live = row < a.rows;
            const real *from = static_cast<const real *>(view.row) +
                               (size_t)(live ? row : 0) * view.stride + head * a.slice;
            inverse[r] = view.inverse_rms[(live ? row : 0) * view.step];
            back[r] = 0.0f;
#pragma unroll
            for (int c = 0; c < C; c++) {
                v[r][c] = make_uint4(0, 0, 0, 0);
                if (piece(c) < pieces)
                    v[r][c] = *reinterpret_cast<const uint4 *>(from + piece(c) * 8);
#pragma unroll
                for (int i = 0; i < 8; i++)
                    sum[r][c][i] = 0.0f;
            }
        }
    }

    __device__ __forceinline__ uint4 mix_piece(const unsigned char *slot, int r, int c) const {
        return *reinterpret_cast<const uint4 *>(slot + ((r * s.warps + warp) * C + c) * 512 +
                                                lane * 16);
    }

    /* Sums the parts of a wide head, in order. */
    __device__ __forceinline__ void exchange(float (&dot)[BATCH][R]) {
        float *mine = parts + (exchanges++ & 1u) * (unsigned)(s.warps * BATCH * R);
        if (lane == 0)
#pragma unroll
            for (int i = 0; i < BATCH * R; i++)
                mine[warp * BATCH * R + i] = dot[i / R][i % R];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < BATCH * R; i++) {
            float all = 0.0f;
            for (int w = 0; w < s.W; w++)
                all += mine[(warp - part + w) * BATCH * R + i];
            dot[i / R][i % R] = all;
        }
    }

    /* `count` readers of a stage. */
    __device__ __forceinline__ void take_stage(int count, const unsigned char *stage) {
        float dot[BATCH][R];
#pragma unroll
        for (int j = 0; j < BATCH; j++)
#pragma unroll
            for (int r = 0; r < R; r++) {
                dot[j][r] = 0.0f;
#pragma unroll
                for (int c = 0; c < C; c++) {
                    float x[8], y[8];
                    widen(mix_piece(stage + j * s.reader, r, c), x);
                    stay_packed(v[r][c]);
                    widen(v[r][c], y);
#pragma unroll
                    for (int i = 0; i < 8; i++)
                        dot[j][r] = fmaf(x[i], y[i], dot[j][r]);
                }
            }
#pragma unroll
        for (int o = P / 2; o; o >>= 1)
#pragma unroll
            for (int i = 0; i < BATCH * R; i++)
                dot[i / R][i % R] += __shfl_xor_sync(0xffffffffu, dot[i / R][i % R], o);
        if constexpr (WIDE)
            exchange(dot);
        float *edge_tile = edges + (turn & 1u) * (unsigned)(BATCH * R * s.tasks);
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            if (j >= count)
                break;
            const unsigned char *slot = stage + j * s.reader;
            const float *scalars = reinterpret_cast<const float *>(slot + s.scalars);
            float weight[R], edge[R];
#pragma unroll
            for (int r = 0; r < R; r++) {
                const int at = r * s.tasks + task;
                const float l = scalars[at];
                weight[r] = __expf(l - scalars[R * s.tasks + at]);
                const float dl = weight[r] * (dot[j][r] - scalars[2 * R * s.tasks + at]);
                back[r] = fmaf(dl, l, back[r]);
                edge[r] = dl * inverse[r];
                if (own == 0 && part == 0)
                    edge_tile[(j * R + r) * s.tasks + task] = edge[r];
            }
            const unsigned char *folded = slot + s.folded + head * pieces * 16;
#pragma unroll
            for (int c = 0; c < C; c++) {
                float u[8];
                const int at = piece(c) < pieces ? piece(c) : 0;
                widen(*reinterpret_cast<const uint4 *>(folded + at * 16), u);
#pragma unroll
                for (int r = 0; r < R; r++) {
                    float x[8];
                    widen(mix_piece(slot, r, c), x);
#pragma unroll
                    for (int i = 0; i < 8; i++)
                        sum[r][c][i] = fmaf(weight[r], x[i], fmaf(edge[r], u[i], sum[r][c][i]));
                }
            }
        }
    }

    /* Writes dl r of `count` readers from `first` on, that take_stage left one turn ago. */
    __device__ __forceinline__ void write_edges(unsigned tile, int first, int count,
                                                unsigned of_turn) const {
        const float *edge_tile = edges + (of_turn & 1u) * (unsigned)(BATCH * R * s.tasks);
        const int rows = R * s.rows;
        for (int i = (int)threadIdx.x; i < count * rows * a.heads; i += (int)blockDim.x) {
            const int row = i % rows, h = i / rows % a.heads, j = i / rows / a.heads;
            const int r = row / s.rows, at = row % s.rows * a.heads + h;
            const unsigned out = tile * (unsigned)rows + (unsigned)row;
            if (out < a.rows)
                table[first + j].edge[(size_t)h * a.edge_rows + out] =
                    __float2bfloat16(edge_tile[(j * R + r) * s.tasks + at]);
        }
    }

    /* The norm's term, what reaches the value as it is, and out. */
    __device__ __forceinline__ void end_tile(unsigned tile, const float *whole) {
#pragma unroll
        for (int r = 0; r < R; r++) {
            const unsigned row = row_of(tile, r);
            float all = 0.0f;
            for (int h = 0; h < a.heads; h++)
                all += whole[r * s.tasks + task / a.heads * a.heads + h];
            if (row >= a.rows)
                continue;
            all *= inverse[r] * inverse[r] / (float)a.width;
            const size_t at = (size_t)row * (size_t)a.width + (size_t)(head * a.slice);
#pragma unroll
            for (int c = 0; c < C; c++) {
                if (piece(c) >= pieces)
                    continue;
                const size_t cell = at + (size_t)piece(c) * 8;
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
        const unsigned height = (unsigned)(s.rows * R);
        const unsigned tiles = ((unsigned)a.rows + height - 1) / height;
        unsigned copied = blockIdx.x;
        int copied_reader = 0, stage = 0;
        const auto copy_next = [&](int to_stage) {
            if (copied < tiles) {
#pragma unroll
                for (int j = 0; j < BATCH; j++)
                    if (copied_reader + j < a.readers)
                        copy_reader(copied, copied_reader + j,
                                    stages + to_stage * s.stage + j * s.reader);
                copied_reader += BATCH;
                if (copied_reader >= a.readers) {
                    copied_reader = 0;
                    copied += gridDim.x;
                }
            }
            stage_ends();
        };
        for (int i = 0; i < STAGES - 1; i++)
            copy_next(i);
        for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            start_tile(tile, view);
            for (int k = 0; k < a.readers; k += BATCH) {
                const int count = a.readers - k < BATCH ? a.readers - k : BATCH;
                wait_but<STAGES - 2>();
                __syncthreads(); /* this stage is there, the one before is done with */
                if (k > 0)
                    write_edges(tile, k - BATCH, BATCH, turn - 1);
                copy_next(stage == 0 ? STAGES - 1 : stage - 1);
                take_stage(count, stages + stage * s.stage);
                stage = stage + 1 == STAGES ? 0 : stage + 1;
                turn++;
            }
            float *whole = backs + (tile / gridDim.x & 1u) * (unsigned)(R * s.tasks);
            if (own == 0 && part == 0)
#pragma unroll
                for (int r = 0; r < R; r++)
                    whole[r * s.tasks + task] = back[r];
            __syncthreads();
            const int last = (a.readers - 1) / BATCH * BATCH;
            write_edges(tile, last, a.readers - last, turn - 1);
            end_tile(tile, whole);
        }
    }
};

template <int P, int C, int R, bool WIDE, int BATCH, int STAGES, int THREADS, int BLOCKS>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    pull_ring(const __grid_constant__ pulling args, int W) {
    typedef puller<P, C, R, WIDE, BATCH, STAGES> type;
    extern __shared__ __align__(16) unsigned char shared[];
    let_next_start();
    const block_shape s =
        shape_of<P, C, R, WIDE, BATCH>((int)blockDim.x / 32, W, args.width, args.heads);
    type p(args, s);
    p.place();
    reader_row *table = reinterpret_cast<reader_row *>(shared);
    p.table = table;
    p.stages = shared + ((size_t)args.readers * sizeof *table + 15) / 16 * 16;
    p.edges = reinterpret_cast<float *>(p.stages + STAGES * s.stage);
    p.backs = p.edges + 2 * BATCH * R * s.tasks;
    p.parts = p.backs + 2 * R * s.tasks;
    for (int k = (int)threadIdx.x; k < args.readers; k += (int)blockDim.x) {
        const reader by = args.reader[k];
        const back_view site = args.back[by.site];
        const size_t heads = (size_t)args.heads, position = (size_t)by.position;
        if (k < NOTED)
            table[k].d_mix = static_cast<const real *>(args.d_mix[k]);
        table[k].folded = static_cast<const real *>(site.folded_real);
        table[k].logit = site.logit + position * args.logit_rows * heads;
        table[k].lse = site.lse;
        table[k].product = site.product;
        table[k].edge = static_cast<real *>(site.edge) + position * heads * args.edge_rows;
    }
    /* Lanes without a piece, and rows past the end, read what was never copied: numbers. */
    const bool whole =
        p.pieces == P * C * W && args.rows % (size_t)(s.rows * R) == 0 && args.readers % BATCH == 0;
    for (int i = (int)threadIdx.x * 16; !whole && i < STAGES * s.stage; i += (int)blockDim.x * 16)
        *reinterpret_cast<uint4 *>(p.stages + i) = make_uint4(0, 0, 0, 0);
    wait_for_earlier();
    for (int k = NOTED + (int)threadIdx.x; k < args.readers; k += (int)blockDim.x)
        table[k].d_mix = static_cast<const real *>(args.back[args.reader[k].site].d_mix);
    __syncthreads();
    p.run();
}

/* Fills `out` if the plan's heads fill a block of at most THREADS; warps or, WIDE, tasks of W warps
 * are left out until they do. */
template <int P, int C, int R, bool WIDE, int BATCH, int STAGES, int THREADS, int BLOCKS>
bool choose(const depth *axis, int W, pull_kernel *out, status *st) {
    const int heads = (int)axis->plan->heads, each = WIDE ? 1 : 32 / P;
    int groups = THREADS / 32 / W; /* of W warps with `each` tasks */
    while (groups > 0 && groups * each % heads)
        groups--;
    if (groups == 0)
        return true;
    const block_shape s =
        shape_of<P, C, R, WIDE, BATCH>(groups * W, W, (int)axis->plan->width, heads);
    const size_t room = axis->device->properties.sharedMemPerBlockOptin;
    const size_t shared = (size_t)(STAGES * s.stage) + 16 +
                          sizeof(float) * (size_t)(2 * BATCH * R * s.tasks + 2 * R * s.tasks +
                                                   2 * s.warps * BATCH * R);
    if (shared > room)
        return true;
    out->kernel = (const void *)pull_ring<P, C, R, WIDE, BATCH, STAGES, THREADS, BLOCKS>;
    out->W = W;
    out->block = 32 * (unsigned)s.warps;
    out->height = (size_t)(s.rows * R);
    out->reader_bytes = sizeof(reader_row);
    out->most_readers = (room - shared) / sizeof(reader_row);
    out->shared = shared;
    return !cuda_ok(
        cudaFuncSetAttribute(out->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)room),
        "depth: pull", st);
}

/* FAR: stages of a reader's pieces where a row is several warps' work. */
template <int STAGES, int FAR, int BLOCKS>
bool choose_lanes(const depth *axis, size_t pieces, pull_kernel *out, status *st) {
    if (pieces <= 2)
        return choose<1, 2, 1, false, 2, STAGES, 256, BLOCKS>(axis, 1, out, st);
    if (pieces <= 4)
        return choose<1, 4, 1, false, 2, STAGES, 256, BLOCKS>(axis, 1, out, st);
    if (pieces <= 8)
        return choose<2, 4, 1, false, 2, STAGES, 256, BLOCKS>(axis, 1, out, st);
    if (pieces <= 16)
        return choose<4, 4, 1, false, 2, STAGES, 256, BLOCKS>(axis, 1, out, st);
    if (pieces <= 20)
        return choose<4, 5, 1, false, 2, STAGES, 256, BLOCKS>(axis, 1, out, st);
    if (pieces <= 32)
        return choose<8, 4, 1, false, 2, STAGES, 256, BLOCKS>(axis, 1, out, st);
    if (pieces <= 64)
        return choose<16, 4, 1, false, 1, FAR, 256, BLOCKS>(axis, 1, out, st);
    return choose<32, 4, 1, false, 1, FAR, 256, BLOCKS>(axis, 1, out, st);
}

} // namespace

int depth_pull_choose(const depth *axis, bool few, pull_kernel *out, status *st) {
    const size_t slice = axis->plan->width / axis->plan->heads, pieces = slice / 8;
    constexpr int wide = 64; /* pieces of a warp */
    const pull_kernel none = {};
    *out = none;
    if (!axis->device->bf16 || slice % 8)
        return DONE;
    bool done;
    if (pieces > 128)
        done =
            choose<32, 2, 4, true, 1, 3, 448, 1>(axis, (int)((pieces + wide - 1) / wide), out, st);
    else
        done = few ? choose_lanes<4, 6, 1>(axis, pieces, out, st)
                   : choose_lanes<2, 4, 2>(axis, pieces, out, st);
    return done ? DONE : FAILED;
}
