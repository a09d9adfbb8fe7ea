/* depth_read.cu - reading one site in one pass over its sources: each source row leaves device
 * memory once.
 *
 * The work is cut into tasks, one (row, head) each: a slice of every source, one softmax. Heads do
 * not meet, for 1 / rms of the sources is cached. P neighbouring lanes share a task, each with C
 * pieces of 8 channels of the slice, so that a warp has 32 / P tasks and a logit takes log2 P
 * shuffles. Slices wider than a warp (P = 32, `wide`) are shared by the warps of a block, which
 * exchange their parts of the logits through shared memory.
 *
 * A lane copies its own pieces of the next sources to shared memory ahead of time (cp.async) and
 * reads only what it copied: a ring without barriers, BATCH sources to a stage. The next task's
 * first sources are under way before the present task ends. Softmax is online, BATCH sources at a
 * time.
 */
#include "kernels/cuda/depth.h"
#include "kernels/cuda/depth_ring.cuh"

#include <math.h>

namespace {

/* A source as the kernel uses it. */
struct source_row {
    const void *row;
    const float *inverse_rms;
    unsigned stride, step;
};

/* Bytes of a slot, one source of one warp: planes of 16 bytes a lane, then its 1 / rms. */
template <typename real> __host__ __device__ constexpr int planes(int pieces) {
    return pieces * (int)sizeof(real) / 2;
}
template <typename real> __host__ __device__ constexpr int slot_bytes(int pieces) {
    return planes<real>(pieces) * 512 + 128;
}

__device__ __forceinline__ void piece_of(const unsigned char *slot, int c, int lane, float (&x)[8],
                                         const __nv_bfloat16 *) {
    widen(*reinterpret_cast<const uint4 *>(slot + c * 512 + lane * 16), x);
}
__device__ __forceinline__ void piece_of(const unsigned char *slot, int c, int lane, float (&x)[8],
                                         const float *) {
    const float4 a = *reinterpret_cast<const float4 *>(slot + 2 * c * 512 + lane * 16);
    const float4 b = *reinterpret_cast<const float4 *>(slot + (2 * c + 1) * 512 + lane * 16);
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
    x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}

/* Where a warp (or, wide, a block) is in its list of tasks. */
struct place {
    size_t unit, row;
    int head;
    bool live; /* the last unit may have fewer tasks than lanes for them */
};

template <typename real, int P, int C, bool WIDE, int BATCH, int STAGES> struct site_reader {
    static constexpr int tasks = 32 / P; /* of a warp */
    const site_read &a;
    const source_row *table;
    unsigned char *ring;
    float *parts;  /* WIDE: [2, warps, BATCH] parts of logits */
    float *logits; /* [tasks, sources] of a warp, or NULL */
    int lane, own, group, warp, warps, pieces;
    unsigned parity = 0;
    int held = -1; /* the head whose folded query is in u */
    float u[C][8], mix[C][8], most, total;

    __device__ __forceinline__ site_reader(const site_read &args) : a(args) {}

    __device__ __forceinline__ int piece(int c) const {
        return WIDE ? (c * warps + warp) * 32 + lane : c * P + own;
    }

    __device__ __forceinline__ void locate(place &at) const {
        const size_t all = a.rows * (size_t)a.heads;
        size_t task = WIDE ? at.unit : at.unit * tasks + (size_t)group;
        at.live = task < all;
        task = at.live ? task : all - 1;
        at.row = task / (size_t)a.heads;
        at.head = (int)(task - at.row * (size_t)a.heads);
    }

    /* Sources first .. first + BATCH - 1 of a task, as far as there are, to a stage. */
    __device__ __forceinline__ void copy_stage(const place &at, int first, int stage) const {
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            if (first + j >= a.sources)
                break;
            const source_row from = table[first + j];
            unsigned char *slot = ring + (stage * BATCH + j) * slot_bytes<real>(C);
            const real *row = static_cast<const real *>(from.row) + at.row * from.stride +
                              (size_t)at.head * (size_t)a.slice;
#pragma unroll
            for (int c = 0; c < C; c++)
                if (piece(c) < pieces) {
                    if constexpr (sizeof(real) == 2) {
                        copy_ahead16(slot + c * 512 + lane * 16, row + piece(c) * 8);
                    } else {
                        copy_ahead16(slot + 2 * c * 512 + lane * 16, row + piece(c) * 8);
                        copy_ahead16(slot + (2 * c + 1) * 512 + lane * 16, row + piece(c) * 8 + 4);
                    }
                }
            copy_ahead4(slot + planes<real>(C) * 512 + lane * 4,
                        from.inverse_rms + at.row * from.step);
        }
    }

    __device__ __forceinline__ void start_task(const place &at) {
        const float *folded = a.folded + (size_t)at.head * (size_t)a.slice;
        if (at.head != held) {
            held = at.head;
#pragma unroll
            for (int c = 0; c < C; c++) {
                if (piece(c) < pieces)
                    load<8>(folded + piece(c) * 8, u[c]);
#pragma unroll
                for (int i = 0; i < 8; i++)
                    u[c][i] = piece(c) < pieces ? u[c][i] : 0.0f;
            }
        }
#pragma unroll
        for (int c = 0; c < C; c++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                mix[c][i] = 0.0f;
        most = -INFINITY;
        total = 0.0f;
    }

    /* The parts of all warps, summed in order. */
    __device__ __forceinline__ void exchange(float (&logit)[BATCH]) {
        float *mine = parts + (parity & 1) * (unsigned)(warps * BATCH);
        parity++;
        if (lane == 0)
#pragma unroll
            for (int j = 0; j < BATCH; j++)
                mine[warp * BATCH + j] = logit[j];
        __syncthreads();
#pragma unroll
        for (int j = 0; j < BATCH; j++)
            logit[j] = 0.0f;
        for (int w = 0; w < warps; w++)
#pragma unroll
            for (int j = 0; j < BATCH; j++)
                logit[j] += mine[w * BATCH + j];
    }

    /* `count` (all of BATCH with FULL) sources of a stage, from source `first` on. */
    template <bool FULL>
    __device__ __forceinline__ void take_stage(const place &at, int first, int count, int stage) {
        const unsigned char *slots = ring + stage * BATCH * slot_bytes<real>(C);
        float logit[BATCH];
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            logit[j] = 0.0f;
            if (!FULL && j >= count)
                continue;
#pragma unroll
            for (int c = 0; c < C; c++) {
                float x[8];
                piece_of(slots + j * slot_bytes<real>(C), c, lane, x, (const real *)NULL);
#pragma unroll
                for (int i = 0; i < 8; i++)
                    logit[j] = fmaf(x[i], u[c][i], logit[j]);
            }
        }
#pragma unroll
        for (int o = P / 2; o; o >>= 1)
#pragma unroll
            for (int j = 0; j < BATCH; j++)
                logit[j] += __shfl_xor_sync(0xffffffffu, logit[j], o);
        if constexpr (WIDE)
            exchange(logit);
        const float factor = a.scale ? a.scale[at.head] : 1.0f;
        float highest = most;
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            const float r = *reinterpret_cast<const float *>(slots + j * slot_bytes<real>(C) +
                                                             planes<real>(C) * 512 + lane * 4);
            logit[j] = FULL || j < count ? logit[j] * r * factor : -INFINITY;
            highest = fmaxf(highest, logit[j]);
        }
        keep_logits<FULL>(at, first, count, logit);
        if (__any_sync(0xffffffffu, highest > most)) {
            const float scale = __expf(most - highest);
            total *= scale;
#pragma unroll
            for (int c = 0; c < C; c++)
#pragma unroll
                for (int i = 0; i < 8; i++)
                    mix[c][i] *= scale;
            most = highest;
        }
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            logit[j] = __expf(logit[j] - most);
            total += logit[j];
        }
        if (!a.end.in) /* weights only */
            return;
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            if (!FULL && j >= count)
                continue;
#pragma unroll
            for (int c = 0; c < C; c++) {
                float x[8];
                piece_of(slots + j * slot_bytes<real>(C), c, lane, x, (const real *)NULL);
#pragma unroll
                for (int i = 0; i < 8; i++)
                    mix[c][i] = fmaf(logit[j], x[i], mix[c][i]);
            }
        }
    }

    template <bool FULL>
    __device__ __forceinline__ void keep_logits(const place &at, int first, int count,
                                                const float (&logit)[BATCH]) {
        if (!logits && !a.logit)
            return;
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            if ((!FULL && j >= count) || own != 0 || (WIDE && warp != 0))
                continue;
            if (logits)
                logits[group * (a.sources | 1) + first + j] = logit[j];
            if (a.logit && at.live)
                a.logit[((size_t)(first + j) * a.logit_rows + at.row) * (size_t)a.heads +
                        (size_t)at.head] = logit[j];
        }
    }

    __device__ __forceinline__ void end_task(const place &at) {
        const float scale = 1.0f / total;
        if (logits) {
            __syncwarp();
            const float *mine = logits + group * (a.sources | 1);
            float *out =
                a.weights + (at.row * (size_t)a.heads + (size_t)at.head) * (size_t)a.sources;
            if (at.live && (!WIDE || warp == 0))
                for (int s = own; s < a.sources; s += P)
                    out[s] = __expf(mine[s] - most) * scale;
            __syncwarp();
        }
        if (!at.live)
            return;
        if (a.lse && own == 0 && (!WIDE || warp == 0))
            a.lse[at.row * (size_t)a.heads + (size_t)at.head] = most + logf(total);
        if (!a.end.in)
            return;
#pragma unroll
        for (int c = 0; c < C; c++) {
            if (piece(c) >= pieces)
                continue;
            float x[8];
#pragma unroll
            for (int i = 0; i < 8; i++)
                x[i] = mix[c][i] * scale;
            end_site<real, 8>(a.end, at.row, (size_t)a.width,
                              (size_t)at.head * (size_t)a.slice + (size_t)piece(c) * 8, x);
        }
    }

    /* Units first, first + stride, ... below `units`. */
    __device__ __forceinline__ void run(size_t first, size_t units, size_t stride) {
        place copied, at;
        int copied_source = 0, stage = 0;
        copied.unit = first;
        if (first >= units)
            return;
        locate(copied);
        const auto copy_next = [&](int to) {
            if (copied.unit < units) {
                copy_stage(copied, copied_source, to);
                copied_source += BATCH;
                if (copied_source >= a.sources) {
                    copied_source = 0;
                    copied.unit += stride;
                    locate(copied);
                }
            }
            stage_ends();
        };
        for (int i = 0; i < STAGES - 1; i++)
            copy_next(i);
        for (at.unit = first; at.unit < units; at.unit += stride) {
            locate(at);
            start_task(at);
            for (int s = 0; s < a.sources; s += BATCH) {
                copy_next(stage == 0 ? STAGES - 1 : stage - 1);
                wait_but<STAGES - 1>();
                if (a.sources - s >= BATCH)
                    take_stage<true>(at, s, BATCH, stage);
                else
                    take_stage<false>(at, s, a.sources - s, stage);
                stage = stage + 1 == STAGES ? 0 : stage + 1;
            }
            end_task(at);
        }
    }
};

enum { MOST_THREADS = 512, WARPS = 4 }; /* a block's, wide and not */

template <typename real, int P, int C, bool WIDE, int BATCH, int STAGES>
__global__ void __launch_bounds__(WIDE ? MOST_THREADS : 32 * WARPS)
    read_site(const __grid_constant__ site_read args) {
    typedef site_reader<real, P, C, WIDE, BATCH, STAGES> reader;
    extern __shared__ __align__(16) unsigned char shared[];
    reader r(args);
    let_next_start();
    r.lane = (int)threadIdx.x % 32;
    r.warp = (int)threadIdx.x / 32;
    r.warps = (int)blockDim.x / 32;
    r.own = r.lane % P;
    r.group = r.lane / P;
    r.pieces = args.slice / 8;
    source_row *table = reinterpret_cast<source_row *>(shared);
    const size_t ring_bytes = (size_t)STAGES * BATCH * slot_bytes<real>(C);
    unsigned char *rings = shared + (((size_t)args.sources * sizeof *table + 15) & ~(size_t)15);
    float *rest = reinterpret_cast<float *>(rings + (size_t)r.warps * ring_bytes);
    r.table = table;
    r.ring = rings + (size_t)r.warp * ring_bytes;
    r.parts = rest;
    rest += WIDE ? 2 * r.warps * BATCH : 0;
    r.logits =
        args.weights ? rest + (WIDE ? 0 : r.warp * reader::tasks * (args.sources | 1)) : NULL;
    for (int s = (int)threadIdx.x; s < args.sources; s += (int)blockDim.x) {
        const value_view view = args.view[args.source[s]];
        table[s].row = view.row;
        table[s].inverse_rms = view.inverse_rms;
        table[s].stride = view.stride;
        table[s].step = view.step;
    }
    /* Lanes without a piece read what was never copied: it must be a number. */
    if (r.pieces < P * C * (WIDE ? r.warps : 1))
        for (size_t i = (size_t)r.lane * 16; i < ring_bytes; i += 512)
            *reinterpret_cast<uint4 *>(r.ring + i) = make_uint4(0, 0, 0, 0);
    __syncthreads();
    wait_for_earlier();
    const size_t all = args.rows * (size_t)args.heads;
    const size_t units = WIDE ? all : (all + reader::tasks - 1) / reader::tasks;
    if (!WIDE && P > 4) { /* rows in turn to all blocks */
        r.run((size_t)r.warp * gridDim.x + blockIdx.x, units, (size_t)gridDim.x * (size_t)r.warps);
        return;
    }
    /* Neighbouring rows to a block. */
    const size_t first = units * blockIdx.x / gridDim.x, end = units * (blockIdx.x + 1) / gridDim.x;
    if (WIDE)
        r.run(first, end, 1);
    else
        r.run(first + (size_t)r.warp, end, (size_t)r.warps);
}

struct choice {
    const void *kernel;
    int tasks, batch, slot, stages, warps;
    bool wide;
};

template <typename real, int P, int C, bool WIDE, int BATCH, int STAGES>
choice choice_of(int warps) {
    return choice{(const void *)read_site<real, P, C, WIDE, BATCH, STAGES>,
                  32 / P,
                  BATCH,
                  slot_bytes<real>(C),
                  STAGES,
                  warps,
                  WIDE};
}

/* P and C from the pieces of a slice: up to four pieces a lane (five where that is all of them).
 * The depth of the ring is what was fastest on an H200; see the README. */
template <typename real> bool choose(size_t pieces, choice *out) {
    const int warps = (int)((pieces + 127) / 128);
    if (pieces == 1)
        *out = choice_of<real, 1, 1, false, 2, 4>(WARPS);
    else if (pieces == 2)
        *out = choice_of<real, 1, 2, false, 2, 4>(WARPS);
    else if (pieces <= 4)
        *out = choice_of<real, 1, 4, false, 2, 4>(WARPS);
    else if (pieces <= 8)
        *out = choice_of<real, 2, 4, false, 2, 4>(WARPS);
    else if (pieces <= 16)
        *out = choice_of<real, 4, 4, false, 2, 4>(WARPS);
    else if (pieces <= 20)
        *out = choice_of<real, 4, 5, false, 2, 4>(WARPS);
    else if (pieces <= 32)
        *out = choice_of<real, 8, 4, false, 4, 2>(WARPS);
    else if (pieces <= 64)
        *out = choice_of<real, 16, 4, false, 4, 2>(WARPS);
    else if (pieces <= 128)
        *out = choice_of<real, 32, 4, false, 4, 2>(WARPS);
    else if (warps <= MOST_THREADS / 32)
        *out = choice_of<real, 32, 4, true, 3, 2>(warps);
    else
        return false;
    return true;
}

} // namespace

int depth_read_choose(depth *axis, size_t site, status *st) {
    const depth_plan *plan = axis->plan;
    const size_t slice = plan->width / plan->heads, sources = (size_t)plan->site[site].sources;
    site_state *state = &axis->site[site];
    choice c;
    if (sources == 0 || slice % 8 ||
        !(axis->device->bf16 ? choose<__nv_bfloat16>(slice / 8, &c) : choose<float>(slice / 8, &c)))
        return DONE;
    const size_t logits = (size_t)(c.wide ? 1 : c.warps * c.tasks) * (sources | 1) * sizeof(float);
    state->shared = ((sources * sizeof(source_row) + 15) & ~(size_t)15) +
                    (size_t)(c.warps * c.batch * c.stages * c.slot) +
                    (c.wide ? 2 * (size_t)(c.warps * c.batch) * sizeof(float) : 0) + logits;
    if (state->shared > axis->device->properties.sharedMemPerBlockOptin)
        return DONE; /* very many sources: the general way */
    int blocks = 0;
    if (cuda_ok(cudaFuncSetAttribute(c.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     (int)axis->device->properties.sharedMemPerBlockOptin),
                "depth: read", st) ||
        cuda_ok(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, c.kernel, 32 * c.warps,
                                                              state->shared),
                "depth: read", st))
        return FAILED;
    state->kernel = c.kernel;
    state->block = 32 * (unsigned)c.warps;
    state->grid =
        (unsigned)(axis->device->properties.multiProcessorCount * (blocks > 0 ? blocks : 1));
    return DONE;
}

int depth_read_launch(const depth *axis, size_t site, const site_read *args, status *st) {
    const site_state *state = &axis->site[site];
    void *parameters[] = {(void *)args};
    return depth_launch(axis, state->kernel, dim3(state->grid), state->block, state->shared,
                        parameters, "depth: read", st);
}

/* A site without sources passes its base on; N channels to a thread. */
template <typename real, int N>
static __global__ void copy_base(const value_view *view, int base, size_t width, size_t pieces,
                                 real *in) {
    const value_view from = view[base];
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < pieces;
         i += (size_t)gridDim.x * blockDim.x) {
        const size_t row = i * N / width;
        float x[N];
        load<N>(static_cast<const real *>(from.row) + row * from.stride + (i * N - row * width), x);
        store<N>(in + i * N, x);
    }
}

static int read_base(depth *axis, int base, const buffer *in, status *st) {
    const size_t width = axis->plan->width, cells = axis->layout.rows * width;
    const unsigned grid = (unsigned)axis->device->properties.multiProcessorCount * 8;
    cudaStream_t stream = axis->device->stream;
    if (width % 8 == 0) {
        if (axis->device->bf16)
            copy_base<__nv_bfloat16, 8><<<grid, 256, 0, stream>>>(
                axis->view, base, width, cells / 8, (__nv_bfloat16 *)in->data);
        else
            copy_base<float, 8>
                <<<grid, 256, 0, stream>>>(axis->view, base, width, cells / 8, (float *)in->data);
    } else if (axis->device->bf16) {
        copy_base<__nv_bfloat16, 1>
            <<<grid, 256, 0, stream>>>(axis->view, base, width, cells, (__nv_bfloat16 *)in->data);
    } else {
        copy_base<float, 1>
            <<<grid, 256, 0, stream>>>(axis->view, base, width, cells, (float *)in->data);
    }
    return cuda_launched("depth: read", st);
}

static int check_read(const depth *axis, const depth_read_args *args, status *st) {
    const depth_plan *plan = axis->plan;
    if (args->site >= plan->sites)
        return status_fail(st, "depth axis: site %zu of %zu", args->site, plan->sites);
    const depth_site *planned = &plan->site[args->site];
    if (planned->sources == 0 && planned->base == NO_VALUE)
        return status_fail(st, "depth axis: site %zu reads nothing", args->site);
    for (int i = -1; i < planned->sources; i++) {
        const int value = i < 0 ? planned->base : planned->source[i];
        if (value != NO_VALUE && !depth_holds(axis, (size_t)value))
            return status_fail(
                st,
                "depth axis: site %zu reads value %d, which is not made yet or whose "
                "slot is used again",
                args->site, value);
    }
    if (planned->edit && axis->backward)
        return status_fail(st, "depth axis: site %zu carries an edit: no backward pass",
                           args->site);
    if (cuda_holds(args->in, true, axis->layout.rows, plan->width, "depth: in", st) ||
        (args->weights && cuda_holds(args->weights, false, axis->layout.rows,
                                     plan->heads * (size_t)planned->sources, "depth: weights", st)))
        return FAILED;
    return DONE;
}

/* The base and the gate of a site; computes a vector gate. */
static int prepare_end(depth *axis, size_t index, void *gate, site_end *end, status *st) {
    const depth_site *planned = &axis->plan->site[index];
    const site_state *site = &axis->site[index];
    /* An interpolation without a gate is the mix itself. */
    if (planned->base == NO_VALUE || (planned->interpolates && planned->gate == GATE_NONE))
        return DONE;
    const value_view *base = &axis->value[planned->base].view;
    end->base = base->row;
    end->base_stride = base->stride;
    end->interpolates = planned->interpolates;
    end->sigmoid = planned->gate == GATE_SIGMOID_SCALAR;
    if (planned->gate == GATE_ALPHA || planned->gate == GATE_SIGMOID_SCALAR)
        end->scalar = (const float *)site->weights.gate->data;
    if (planned->gate != GATE_SIGMOID_VECTOR)
        return DONE;
    end->gate = gate;
    end->gate_stride = site->back ? (unsigned)axis->plan->width : base->stride;
    return depth_vector_gate(axis, index, gate, st);
}

static size_t aligned(size_t bytes) {
    return (bytes + 255) & ~(size_t)255;
}

int cuda_depth_read(depth *axis, const depth_read_args *args, status *st) {
    if (check_read(axis, args, st))
        return FAILED;
    const depth_plan *plan = axis->plan;
    const depth_site *planned = &plan->site[args->site];
    site_state *site = &axis->site[args->site];
    const size_t rows = axis->layout.rows, width = plan->width;
    site->read = true;
    if (site->back)
        site->back->in = args->in;
    if (rows == 0 && !axis->wants.sums)
        return DONE;
    if (planned->sources == 0) {
        if (read_base(axis, planned->base, args->in, st))
            return FAILED;
        return axis->wants.sums ? depth_sums_add(axis, args->site, NULL, NULL, NULL, st) : DONE;
    }
    const depth_edit *edit = planned->edit;
    const bool scaled = edit && edit->kind == EDIT_QUERY_SCALE;
    const bool general = !site->kernel || (edit && !scaled);
    const bool vector = depth_gated_by_vector(planned);
    const size_t cells = rows * plan->heads * (size_t)planned->sources;
    const size_t weight_bytes =
        !args->weights && (general || axis->wants.sums) ? aligned(cells * sizeof(float)) : 0;
    const size_t mix_bytes = axis->wants.sums ? aligned(rows * width * sizeof(float)) : 0;
    const size_t gate_bytes = vector && !site->back ? aligned(rows * width * sizeof(float)) : 0;
    const size_t sums_bytes = axis->wants.sums ? depth_sums_bytes(axis, args->site) : 0;
    const size_t bytes = weight_bytes + mix_bytes + gate_bytes + sums_bytes;
    char *memory = NULL;
    if (bytes && cuda_scratch(axis->device, bytes, (void **)&memory, st))
        return FAILED;
    site_read read = {};
    read.view = axis->view;
    read.source = site->source;
    read.folded = site->folded;
    read.rows = rows;
    read.width = (int)width;
    read.heads = (int)plan->heads;
    read.slice = (int)(width / plan->heads);
    read.sources = planned->sources;
    read.weights = args->weights ? (float *)args->weights->data
                                 : (weight_bytes ? (float *)(void *)memory : NULL);
    read.end.in = args->in->data;
    read.end.mix_exact = mix_bytes ? (float *)(void *)(memory + weight_bytes) : NULL;
    if (site->back) {
        read.logit = site->back->logit;
        read.lse = site->back->lse;
        read.logit_rows = axis->max_rows;
        read.end.mix = site->back->mix ? site->back->mix->data : NULL;
    }
    void *gate =
        site->back && site->back->gate ? site->back->gate->data : memory + weight_bytes + mix_bytes;
    if (prepare_end(axis, args->site, gate, &read.end, st))
        return FAILED;
    if (scaled && depth_edit_weights(axis, &read, edit, st))
        return FAILED;
    if (scaled)
        read.scale = site->edit_scale;
    if (general) {
        if (depth_weigh(axis, &read, NULL, st) ||
            (edit && !scaled && depth_edit_weights(axis, &read, edit, st)) ||
            depth_mix(axis, &read, edit, st))
            return FAILED;
    } else if (depth_read_launch(axis, args->site, &read, st)) {
        return FAILED;
    }
    if (!axis->wants.sums)
        return DONE;
    return depth_sums_add(axis, args->site, read.weights, read.end.mix_exact,
                          memory + weight_bytes + mix_bytes + gate_bytes, st);
}
