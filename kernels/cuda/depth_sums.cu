/* depth_sums.cu - routing sums of a site that has been read, and of a site under other queries.
 *
 * From the weights [rows, heads, sources], the cached norms and rms, and the signed shares, which
 * take a second look at the sources. Rows are cut into tiles of one sequence; a block sums its tile
 * row by row in float64, a second kernel adds a sequence's tiles in order.
 */
#include "kernels/cuda/depth.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

namespace {

enum { WARPS = 8, MOST_TILE = 8, TOGETHER = 4, TILE_SHARED = 40 << 10, HEAD_FIELDS = 7 };

size_t aligned(size_t bytes) {
    return (bytes + 255) & ~(size_t)255;
}

/* The layout with int offsets, -1: no such field. */
struct fields {
    int heads, sources, null_source, tokens, mean, second_moment, entropy, effective_sources,
        lookback, oldest_mass, newest_mass, top1, head_divergence, contribution,
        signed_contribution, site_contribution, source_rms, head_js, total;
};

fields fields_of(const routing_layout *l) {
    fields f;
    f.heads = (int)l->heads, f.sources = (int)l->sources, f.null_source = l->null_source;
    f.tokens = (int)l->tokens, f.mean = (int)l->mean, f.second_moment = (int)l->second_moment;
    f.entropy = (int)l->entropy, f.effective_sources = (int)l->effective_sources;
    f.lookback = (int)l->lookback, f.oldest_mass = (int)l->oldest_mass;
    f.newest_mass = (int)l->newest_mass, f.top1 = (int)l->top1;
    f.head_divergence = (int)l->head_divergence, f.contribution = (int)l->contribution;
    f.signed_contribution = (int)l->signed_contribution;
    f.site_contribution = (int)l->site_contribution, f.source_rms = (int)l->source_rms;
    f.head_js = l->head_js == NO_FIELD ? -1 : (int)l->head_js;
    /* The cosines, last in the layout, come from elsewhere. */
    f.total = (int)(l->head_js == NO_FIELD ? l->total : l->source_cos);
    return f;
}

int tile_rows(size_t heads) {
    const size_t row = (HEAD_FIELDS * heads + 2) * sizeof(float);
    const size_t most = TILE_SHARED / row;
    return most < 1 ? 1 : most > MOST_TILE ? (int)MOST_TILE : (int)most;
}

size_t longest_of(const batch_layout *layout) {
    size_t most = 0;
    for (size_t b = 0; b < layout->sequences; b++)
        if (layout->start[b + 1] - layout->start[b] > most)
            most = layout->start[b + 1] - layout->start[b];
    return most;
}

/* Tiles of the longest sequence; all have room for as many. */
size_t tiles_of(const depth *axis) {
    const size_t rows = (size_t)tile_rows(axis->plan->heads);
    const size_t longest = longest_of(&axis->layout);
    return longest ? (longest + rows - 1) / rows : 1;
}

/* a <v, mix> / <mix, mix> per slice, [rows, heads, sources]; a warp to a (row, head). */
template <typename real, int N>
__global__ void __launch_bounds__(32 * WARPS)
    signed_shares(const __grid_constant__ site_read a, const float *mix, float *share) {
    const size_t task = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
    const int lane = (int)threadIdx.x % 32;
    if (task >= a.rows * (size_t)a.heads)
        return;
    const size_t row = task / (size_t)a.heads;
    const size_t from = task % (size_t)a.heads * (size_t)a.slice;
    const float *m = mix + row * (size_t)a.width + from;
    float square = 0.0f;
    for (int i = lane * N; i < a.slice; i += 32 * N) {
        float x[N];
        load<N>(m + i, x);
#pragma unroll
        for (int j = 0; j < N; j++)
            square = fmaf(x[j], x[j], square);
    }
    square = sum_lanes(square);
    for (int first = 0; first < a.sources; first += TOGETHER) {
        const real *v[TOGETHER];
        float sum[TOGETHER] = {};
#pragma unroll
        for (int k = 0; k < TOGETHER; k++) {
            const int s = first + k < a.sources ? first + k : first;
            const value_view view = a.view[a.source[s]];
            v[k] = static_cast<const real *>(view.row) + row * view.stride + from;
        }
        for (int i = lane * N; i < a.slice; i += 32 * N) {
            float x[TOGETHER][N], y[N];
#pragma unroll
            for (int k = 0; k < TOGETHER; k++)
                load<N>(v[k] + i, x[k]);
            load<N>(m + i, y);
#pragma unroll
            for (int k = 0; k < TOGETHER; k++)
#pragma unroll
                for (int j = 0; j < N; j++)
                    sum[k] = fmaf(x[k][j], y[j], sum[k]);
        }
#pragma unroll
        for (int o = 16; o; o >>= 1)
#pragma unroll
            for (int k = 0; k < TOGETHER; k++)
                sum[k] += __shfl_xor_sync(0xffffffffu, sum[k], o);
#pragma unroll
        for (int k = 0; k < TOGETHER; k++)
            if (lane == k && first + k < a.sources) {
                const size_t cell = task * (size_t)a.sources + (size_t)(first + k);
                share[cell] = a.weights[cell] * sum[k] / square;
            }
    }
}

struct summing {
    const value_view *view;
    const int *source;
    const int *start;             /* [sequences + 1] */
    const float *weights, *share; /* share NULL: no geometry */
    double *partial;              /* [sequences, tiles, fields.total] */
    int tile, skip;
    fields f;
};

__device__ __forceinline__ float plogp(float a) {
    return a == 0.0f ? 0.0f : a * logf(a);
}

/* One head of one row; `out` [HEAD_FIELDS]. */
__device__ void head_terms(const summing &s, size_t row, int head, float *out) {
    const int lane = (int)threadIdx.x % 32, sources = s.f.sources, first = s.f.null_source;
    const float *a = s.weights + (row * (size_t)s.f.heads + (size_t)head) * (size_t)sources;
    float h = 0.0f, rest = 0.0f, back = 0.0f, most = 0.0f, lengths = 0.0f;
    for (int i = lane; i < sources; i += 32) {
        const float x = a[i];
        h -= plogp(x);
        most = x > most || isnan(x) ? x : most;
        if (i >= first) {
            rest += x;
            back += x * (float)(sources - 1 - i);
        }
        if (s.share) {
            const value_view v = s.view[s.source[i]];
            lengths += x * v.norm[row * v.step * (size_t)s.f.heads + (size_t)head];
        }
    }
    h = sum_lanes(h), rest = sum_lanes(rest), back = sum_lanes(back);
    lengths = sum_lanes(lengths), most = most_lanes(most);
    if (lane)
        return;
    const float scale = first == sources ? NAN : first ? 1.0f / rest : 1.0f;
    out[0] = h;
    out[1] = expf(h);
    out[2] = back * scale;
    out[3] = first == sources ? NAN : a[first] * scale;
    out[4] = first == sources ? NAN : a[sources - 1] * scale;
    out[5] = most;
    out[6] = lengths;
}

/* sqrt(sum over heads of (a |v slice|)^2) of one source. */
__device__ __forceinline__ float source_length(const summing &s, size_t row, int source) {
    const value_view v = s.view[s.source[source]];
    float square = 0.0f;
    for (int h = 0; h < s.f.heads; h++) {
        const float x = s.weights[(row * (size_t)s.f.heads + (size_t)h) * (size_t)s.f.sources +
                                  (size_t)source] *
                        v.norm[row * v.step * (size_t)s.f.heads + (size_t)h];
        square = fmaf(x, x, square);
    }
    return sqrtf(square);
}

/* Of a row: head divergence, and the lengths of all sources' shares together. */
__device__ void row_terms(const summing &s, size_t row, const float *heads, float *out) {
    const int lane = (int)threadIdx.x % 32;
    float h = 0.0f, lengths = 0.0f, mean_h = 0.0f;
    for (int i = lane; i < s.f.sources; i += 32) {
        float mean = 0.0f;
        for (int k = 0; k < s.f.heads; k++)
            mean +=
                s.weights[(row * (size_t)s.f.heads + (size_t)k) * (size_t)s.f.sources + (size_t)i];
        h -= plogp(mean / (float)s.f.heads);
        if (s.share)
            lengths += source_length(s, row, i);
    }
    for (int k = lane; k < s.f.heads; k += 32)
        mean_h += heads[k * HEAD_FIELDS];
    h = sum_lanes(h), lengths = sum_lanes(lengths), mean_h = sum_lanes(mean_h);
    if (lane)
        return;
    const float divergence = h - mean_h / (float)s.f.heads;
    out[0] = divergence < 0.0f ? 0.0f : divergence;
    out[1] = lengths;
}

/* Jensen-Shannon divergences of all pairs of heads; a warp to a pair. */
__device__ void pair_terms(const summing &s, size_t first, int rows, const float *heads,
                           double *out) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, n = s.f.heads;
    for (int pair = warp; pair < n * n; pair += WARPS) {
        const int i = pair / n, j = pair % n;
        double sum = 0.0;
        for (int r = 0; i < j && r < rows; r++) {
            const float *a = s.weights + ((first + (size_t)r) * (size_t)n) * (size_t)s.f.sources;
            float middle = 0.0f;
            for (int k = lane; k < s.f.sources; k += 32)
                middle += plogp(0.5f * (a[i * s.f.sources + k] + a[j * s.f.sources + k]));
            const float js =
                -0.5f * (heads[(r * n + i) * HEAD_FIELDS] + heads[(r * n + j) * HEAD_FIELDS]) -
                sum_lanes(middle);
            sum += (double)(js < 0.0f ? 0.0f : js);
        }
        if (lane == 0 && i < j) {
            out[s.f.head_js + i * n + j] = sum;
            out[s.f.head_js + j * n + i] = sum;
        } else if (lane == 0 && i == j) {
            out[s.f.head_js + pair] = 0.0;
        }
    }
}

/* The terms of single cells, sources and heads over the tile's rows. */
__device__ void cell_sums(const summing &s, size_t first, int rows, const float *heads,
                          const float *whole, double *out) {
    const fields &f = s.f;
    const int cells = f.heads * f.sources;
    for (int k = (int)threadIdx.x; k < cells; k += (int)blockDim.x) {
        const int h = k / f.sources, i = k % f.sources;
        const value_view v = s.view[s.source[i]];
        double mean = 0.0, second = 0.0, share = 0.0, part = 0.0;
        for (int r = 0; r < rows; r++) {
            const size_t row = first + (size_t)r, cell = row * (size_t)cells + (size_t)k;
            const float a = s.weights[cell];
            mean += (double)a;
            second += (double)a * (double)a;
            if (s.share) {
                const float length = a * v.norm[row * v.step * (size_t)f.heads + (size_t)h];
                share += (double)(length / heads[(r * f.heads + h) * HEAD_FIELDS + 6]);
                part += (double)s.share[cell];
            }
        }
        out[f.mean + k] = mean;
        out[f.second_moment + k] = second;
        out[f.contribution + k] = share;
        out[f.signed_contribution + k] = part;
    }
    for (int i = (int)threadIdx.x; i < f.sources; i += (int)blockDim.x) {
        const value_view v = s.view[s.source[i]];
        double share = 0.0, rms = 0.0;
        for (int r = 0; s.share && r < rows; r++) {
            const size_t row = first + (size_t)r;
            share += (double)(source_length(s, row, i) / whole[2 * r + 1]);
            rms += (double)v.rms[row * v.step];
        }
        out[f.site_contribution + i] = share;
        out[f.source_rms + i] = rms;
    }
    for (int k = (int)threadIdx.x; k < f.heads * 6; k += (int)blockDim.x) {
        const int h = k / 6, field = k % 6;
        const int to[6] = {f.entropy,     f.effective_sources, f.lookback,
                           f.oldest_mass, f.newest_mass,       f.top1};
        double sum = 0.0;
        for (int r = 0; r < rows; r++)
            sum += (double)heads[(r * f.heads + h) * HEAD_FIELDS + field];
        out[to[field] + h] = sum;
    }
    if (threadIdx.x == 0) {
        double divergence = 0.0;
        for (int r = 0; r < rows; r++)
            divergence += (double)whole[2 * r];
        out[f.tokens] = (double)rows;
        out[f.head_divergence] = divergence;
    }
}

__global__ void __launch_bounds__(32 * WARPS) sum_tile(const __grid_constant__ summing s) {
    extern __shared__ float shared[]; /* [tile, heads, HEAD_FIELDS], [tile, 2] */
    const int warp = (int)threadIdx.x / 32;
    const size_t start = (size_t)s.start[blockIdx.y], end = (size_t)s.start[blockIdx.y + 1];
    const size_t top = start + (size_t)blockIdx.x * (size_t)s.tile;
    if (top >= end && blockIdx.x > 0)
        return;
    const size_t skipped = start + (size_t)s.skip, stop = top + (size_t)s.tile;
    const size_t last = stop < end ? stop : end;
    const size_t first = top < skipped ? (skipped < last ? skipped : last) : top;
    const int rows = (int)(last - first);
    float *heads = shared, *whole = shared + s.tile * s.f.heads * HEAD_FIELDS;
    double *out = s.partial + ((size_t)blockIdx.y * gridDim.x + blockIdx.x) * (size_t)s.f.total;
    for (int k = warp; k < rows * s.f.heads; k += WARPS)
        head_terms(s, first + (size_t)(k / s.f.heads), k % s.f.heads, heads + k * HEAD_FIELDS);
    __syncthreads();
    for (int r = warp; r < rows; r += WARPS)
        row_terms(s, first + (size_t)r, heads + r * s.f.heads * HEAD_FIELDS, whole + 2 * r);
    __syncthreads();
    cell_sums(s, first, rows, heads, whole, out);
    if (s.f.head_js >= 0)
        pair_terms(s, first, rows, heads, out);
}

/* A sequence's tiles, in order: to[sequence * to_stride + i * to_step]. */
__global__ void add_tiles(const double *partial, const int *start, int tile, int tiles, int length,
                          double *to, size_t to_stride, size_t to_step) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x), b = (int)blockIdx.y;
    if (i >= length)
        return;
    const int rows = start[b + 1] - start[b];
    const int count = rows > 0 ? (rows + tile - 1) / tile : 1;
    double sum = 0.0;
#pragma unroll 8
    for (int t = 0; t < count; t++)
        sum += partial[((size_t)b * (size_t)tiles + (size_t)t) * (size_t)length + (size_t)i];
    to[(size_t)b * to_stride + (size_t)i * to_step] = sum;
}

/* A site without sources: only the tokens are defined. */
__global__ void no_sources(const int *start, int skip, int tokens, int length, double *sums) {
    const int rows = start[blockIdx.x + 1] - start[blockIdx.x];
    for (int i = (int)threadIdx.x; i < length; i += (int)blockDim.x)
        sums[(size_t)blockIdx.x * (size_t)length + (size_t)i] =
            i == tokens ? (double)(rows > skip ? rows - skip : 0) : NAN;
}

/* ---- cosines of sources ---- */

struct pair_list {
    const value_view *view;
    const int *pair; /* [count, 3] values, and the number of the pair */
    const int *start;
    double *partial; /* [sequences, tiles, count] */
    int count, width, tile, skip;
};

/* A warp to a pair of values over a tile. */
template <typename real, int N>
__global__ void __launch_bounds__(32 * WARPS) pair_cosines(const __grid_constant__ pair_list p) {
    const int lane = (int)threadIdx.x % 32;
    const int pair = (int)blockIdx.z * WARPS + (int)threadIdx.x / 32;
    const size_t start = (size_t)p.start[blockIdx.y], end = (size_t)p.start[blockIdx.y + 1];
    size_t first = start + (size_t)blockIdx.x * (size_t)p.tile;
    if (pair >= p.count || (first >= end && blockIdx.x > 0))
        return;
    const size_t last = first + (size_t)p.tile < end ? first + (size_t)p.tile : end;
    first = first < start + (size_t)p.skip ? start + (size_t)p.skip : first;
    const value_view a = p.view[p.pair[3 * pair]], b = p.view[p.pair[3 * pair + 1]];
    double sum = 0.0;
    for (size_t row = first; row < last; row++) {
        const real *x = static_cast<const real *>(a.row) + row * a.stride;
        const real *y = static_cast<const real *>(b.row) + row * b.stride;
        float dot = 0.0f;
        for (int i = lane * N; i < p.width; i += 32 * N) {
            float u[N], v[N];
            load<N>(x + i, u);
            load<N>(y + i, v);
#pragma unroll
            for (int j = 0; j < N; j++)
                dot = fmaf(u[j], v[j], dot);
        }
        dot = sum_lanes(dot);
        const double lengths = (double)a.rms[row * a.step] * (double)b.rms[row * b.step];
        sum += x == y ? lengths / lengths : (double)dot / (lengths * (double)p.width);
    }
    if (lane == 0)
        p.partial[((size_t)blockIdx.y * gridDim.x + blockIdx.x) * (size_t)p.count + (size_t)pair] =
            sum;
}

/* Sums over tiles to pair_sum[number of the pair, sequence]. */
__global__ void add_pairs(const pair_list p, int tiles, double *pair_sum, size_t max_sequences) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x), b = (int)blockIdx.y;
    if (i >= p.count)
        return;
    const int rows = p.start[b + 1] - p.start[b];
    double sum = 0.0;
    for (int t = 0; t * p.tile < rows; t++)
        sum += p.partial[((size_t)b * (size_t)tiles + (size_t)t) * (size_t)p.count + (size_t)i];
    pair_sum[(size_t)p.pair[3 * i + 2] * max_sequences + (size_t)b] = sum;
}

__global__ void gather_cosines(const value_view *view, const int *source, int sources,
                               const double *pair_sum, size_t max_sequences, double *to,
                               size_t stride) {
    const int k = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (k >= sources * sources)
        return;
    const size_t a = (size_t)view[source[k / sources]].index;
    const size_t b = (size_t)view[source[k % sources]].index;
    const size_t pair = a < b ? b * (b + 1) / 2 + a : a * (a + 1) / 2 + b;
    to[(size_t)blockIdx.y * stride + (size_t)k] = pair_sum[pair * max_sequences + blockIdx.y];
}

routing_layout layout_of(const depth *axis, size_t site, bool pairs) {
    const depth_site *planned = &axis->plan->site[site];
    return routing_layout_of(axis->plan->heads, (size_t)planned->sources, planned->null_source,
                             pairs);
}

/* Lists the pairs of this site's sources that are still unknown, and marks them known. */
size_t find_new_pairs(depth *axis, const depth_site *planned) {
    size_t count = 0;
    for (int i = 0; i < planned->sources; i++)
        for (int j = 0; j <= i; j++) {
            const int a = planned->source[i], b = planned->source[j];
            const size_t pair = depth_pair(axis->value[a].index, axis->value[b].index);
            if (axis->pair_known[pair])
                continue;
            axis->pair_known[pair] = true;
            int *to = axis->new_pair + 3 * count++;
            to[0] = a, to[1] = b, to[2] = (int)pair;
        }
    return count;
}

int sum_pairs(depth *axis, size_t site, const device_layout *layout, status *st) {
    backend *device = axis->device;
    const size_t tiles = tiles_of(axis), count = find_new_pairs(axis, &axis->plan->site[site]);
    const int width = (int)axis->plan->width;
    if (count == 0)
        return DONE;
    void *pair = NULL, *partial = NULL;
    int rc = FAILED;
    if (!cuda_take(device, 3 * count * sizeof(int), &pair, st) &&
        !cuda_take(device, layout->sequences * tiles * count * sizeof(double), &partial, st) &&
        !cuda_copy_in(device, pair, axis->new_pair, 3 * count * sizeof(int), st)) {
        const pair_list p = {axis->view,
                             (const int *)pair,
                             layout->start,
                             (double *)partial,
                             (int)count,
                             width,
                             tile_rows(axis->plan->heads),
                             (int)axis->wants.skip_first};
        const dim3 grid((unsigned)tiles, (unsigned)layout->sequences,
                        (unsigned)((count + WARPS - 1) / WARPS));
        if (width % 8 == 0) {
            if (device->bf16)
                pair_cosines<__nv_bfloat16, 8><<<grid, 32 * WARPS, 0, device->stream>>>(p);
            else
                pair_cosines<float, 8><<<grid, 32 * WARPS, 0, device->stream>>>(p);
        } else if (device->bf16) {
            pair_cosines<__nv_bfloat16, 1><<<grid, 32 * WARPS, 0, device->stream>>>(p);
        } else {
            pair_cosines<float, 1><<<grid, 32 * WARPS, 0, device->stream>>>(p);
        }
        add_pairs<<<dim3((unsigned)((count + 255) / 256), (unsigned)layout->sequences), 256, 0,
                    device->stream>>>(p, (int)tiles, axis->pair_sum, axis->max_sequences);
        rc = cuda_launched("depth: cosines", st);
    }
    cuda_give_back(device, pair);
    cuda_give_back(device, partial);
    return rc;
}

/* The site's weights to sums [sequences, stride] on the device. */
int sum_weights(depth *axis, size_t site, const routing_layout *fields_wanted, const float *weights,
                const float *share, double *partial, const device_layout *layout, double *sums,
                status *st) {
    const site_state *state = &axis->site[site];
    const size_t tiles = tiles_of(axis);
    const int tile = tile_rows(axis->plan->heads);
    const summing s = {axis->view,
                       state->source,
                       layout->start,
                       weights,
                       share,
                       partial,
                       tile,
                       (int)axis->wants.skip_first,
                       fields_of(fields_wanted)};
    const size_t shared = (size_t)tile * (HEAD_FIELDS * axis->plan->heads + 2) * sizeof(float);
    cudaStream_t stream = axis->device->stream;
    if (shared > (48u << 10) &&
        cuda_ok(cudaFuncSetAttribute(sum_tile, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     (int)shared),
                "depth: sums", st))
        return FAILED;
    sum_tile<<<dim3((unsigned)tiles, (unsigned)layout->sequences), 32 * WARPS, shared, stream>>>(s);
    add_tiles<<<dim3((unsigned)((s.f.total + 255) / 256), (unsigned)layout->sequences), 256, 0,
                stream>>>(partial, layout->start, tile, (int)tiles, s.f.total, sums,
                          fields_wanted->total, 1);
    return cuda_launched("depth: sums", st);
}

} // namespace

/* ---- the object's part ---- */

int depth_sums_begin(depth *axis, status *st) {
    const depth_plan *plan = axis->plan;
    const size_t pairs = axis->sources * (axis->sources + 1) / 2;
    if (cuda_after_copies(axis->device, st)) /* of the last batch's sums */
        return FAILED;
    for (size_t s = 0; s < plan->sites; s++) {
        site_state *site = &axis->site[s];
        const size_t length = layout_of(axis, s, axis->wants.pairs).total;
        if (site->sums && site->sums_length >= length)
            continue;
        if (depth_memory(axis, axis->max_sequences * length, sizeof(double), (void **)&site->sums,
                         st))
            return FAILED;
        site->sums_length = length;
    }
    if (axis->wants.pairs && !axis->pair_known) {
        axis->pair_known = (bool *)mem_array(pairs, sizeof(bool), "source pairs", st);
        axis->new_pair = (int *)mem_array(pairs, 3 * sizeof(int), "source pairs", st);
        if (!axis->pair_known || !axis->new_pair ||
            depth_memory(axis, pairs * axis->max_sequences, sizeof(double),
                         (void **)&axis->pair_sum, st))
            return FAILED;
    }
    if (axis->wants.pairs)
        memset(axis->pair_known, 0, pairs * sizeof(bool));
    return DONE;
}

size_t depth_sums_bytes(const depth *axis, size_t site) {
    const routing_layout layout = layout_of(axis, site, axis->wants.pairs);
    return aligned(axis->layout.rows * layout.heads * layout.sources * sizeof(float)) +
           axis->layout.sequences * tiles_of(axis) * layout.total * sizeof(double);
}

int depth_sums_add(depth *axis, size_t site, const float *weights, const float *mix, void *scratch,
                   status *st) {
    const depth_plan *plan = axis->plan;
    const site_state *state = &axis->site[site];
    const routing_layout layout = layout_of(axis, site, axis->wants.pairs);
    cudaStream_t stream = axis->device->stream;
    device_layout rows;
    if (cuda_layout(axis->device, &axis->layout, &rows, st))
        return FAILED;
    if (layout.sources == 0) {
        no_sources<<<(unsigned)rows.sequences, 256, 0, stream>>>(
            rows.start, (int)axis->wants.skip_first, (int)layout.tokens, (int)layout.total,
            state->sums);
        return cuda_launched("depth: sums", st);
    }
    site_read read = {};
    read.view = axis->view;
    read.source = state->source;
    read.rows = axis->layout.rows;
    read.width = (int)plan->width;
    read.heads = (int)plan->heads;
    read.slice = (int)(plan->width / plan->heads);
    read.sources = (int)layout.sources;
    read.weights = (float *)weights;
    float *share = (float *)scratch;
    const size_t tasks = read.rows * plan->heads;
    double *partial =
        (double *)(void *)((char *)scratch + aligned(tasks * layout.sources * sizeof(float)));
    const unsigned grid = (unsigned)((tasks + WARPS - 1) / WARPS);
    if (tasks == 0) {
        /* no row, no share */
    } else if (read.slice % 8 == 0) {
        if (axis->device->bf16)
            signed_shares<__nv_bfloat16, 8><<<grid, 32 * WARPS, 0, stream>>>(read, mix, share);
        else
            signed_shares<float, 8><<<grid, 32 * WARPS, 0, stream>>>(read, mix, share);
    } else if (axis->device->bf16) {
        signed_shares<__nv_bfloat16, 1><<<grid, 32 * WARPS, 0, stream>>>(read, mix, share);
    } else {
        signed_shares<float, 1><<<grid, 32 * WARPS, 0, stream>>>(read, mix, share);
    }
    if (cuda_launched("depth: signed shares", st) ||
        sum_weights(axis, site, &layout, weights, share, partial, &rows, state->sums, st))
        return FAILED;
    return axis->wants.pairs ? sum_pairs(axis, site, &rows, st) : DONE;
}

int cuda_depth_sums(depth *axis, size_t site, double *sums, status *st) {
    const depth_plan *plan = axis->plan;
    if (site >= plan->sites || !axis->site[site].read || !axis->wants.sums)
        return status_fail(st, "depth axis: site %zu has no sums: %s", site,
                           axis->wants.sums ? "not read in this batch" : "none were wanted");
    const site_state *state = &axis->site[site];
    const routing_layout layout = layout_of(axis, site, axis->wants.pairs);
    const size_t sequences = axis->layout.sequences;
    cudaStream_t stream = axis->device->stream;
    if (axis->wants.pairs && layout.sources > 0) {
        const size_t cells = layout.sources * layout.sources;
        gather_cosines<<<dim3((unsigned)((cells + 255) / 256), (unsigned)sequences), 256, 0,
                         stream>>>(axis->view, state->source, (int)layout.sources, axis->pair_sum,
                                   axis->max_sequences, state->sums + layout.source_cos,
                                   layout.total);
        if (cuda_launched("depth: cosines", st))
            return FAILED;
    }
    return cuda_copy_out(axis->device, sums, state->sums, sequences * layout.total * sizeof *sums,
                         st);
}

/* ---- other queries ---- */

namespace {

/* Population variances over the sources of logits [sources, rows, heads], to [rows, heads]. */
__global__ void logit_variances(const float *logit, int sources, size_t tasks, double *variance) {
    const size_t task = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (task >= tasks)
        return;
    double mean = 0.0, square = 0.0;
    for (int s = 0; s < sources; s++)
        mean += (double)logit[(size_t)s * tasks + task];
    mean /= (double)sources;
    for (int s = 0; s < sources; s++) {
        const double away = (double)logit[(size_t)s * tasks + task] - mean;
        square += away * away;
    }
    variance[task] = square / (double)sources;
}

/* A sequence's variances of the logits [rows, heads], in order of the rows. */
__global__ void sum_variances(const double *variance, const int *start, int skip, int heads,
                              double *to) {
    const int head = (int)blockIdx.x, b = (int)blockIdx.y, lane = (int)threadIdx.x;
    double sum = 0.0;
    for (int row = start[b] + skip + lane; row < start[b + 1]; row += 32)
        sum += variance[(size_t)row * (size_t)heads + (size_t)head];
    sum = sum_lanes(sum);
    if (lane == 0)
        to[(size_t)b * (size_t)heads + (size_t)head] = sum;
}

int check_alternative(const depth *axis, const depth_alternative_args *args, status *st) {
    const depth_plan *plan = axis->plan;
    if (args->site >= plan->sites || plan->site[args->site].sources == 0)
        return status_fail(st, "depth axis: site %zu of %zu has no sources to weigh", args->site,
                           plan->sites);
    const depth_site *planned = &plan->site[args->site];
    for (int i = 0; i < planned->sources; i++)
        if (!depth_holds(axis, (size_t)planned->source[i]))
            return status_fail(st,
                               "depth axis: site %zu: source value %d is not made yet, or its slot "
                               "is used again",
                               args->site, planned->source[i]);
    return cuda_holds(args->folded, false, args->count, plan->width, "depth: folded queries", st);
}

/* Where the results of all queries are on the device, and what one query needs. */
struct alternative {
    routing_layout layout;
    double *sums, *variances; /* [count, sequences, ...] */
    float *weights, *logit;
    double *variance, *partial;
};

/* The weights by the kernel that reads the site, so that its own query gives its own weights to the
 * bit. */
int weigh_as_read(depth *axis, const depth_alternative_args *args, const alternative *a,
                  site_read *read, status *st) {
    const size_t tasks = read->rows * (size_t)read->heads;
    if (!axis->site[args->site].kernel)
        return depth_weigh(axis, read, args->variance ? a->variance : NULL, st);
    read->logit = args->variance ? a->logit : NULL;
    read->logit_rows = read->rows;
    if (depth_read_launch(axis, args->site, read, st))
        return FAILED;
    if (args->variance && tasks)
        logit_variances<<<(unsigned)((tasks + 255) / 256), 256, 0, axis->device->stream>>>(
            a->logit, read->sources, tasks, a->variance);
    return cuda_launched("depth: other queries", st);
}

int weigh_query(depth *axis, const depth_alternative_args *args, const alternative *a, size_t k,
                const device_layout *rows, status *st) {
    const size_t heads = axis->plan->heads, sequences = axis->layout.sequences;
    site_read read = {};
    read.view = axis->view;
    read.source = axis->site[args->site].source;
    read.folded = (const float *)args->folded->data + k * axis->plan->width;
    read.rows = axis->layout.rows;
    read.width = (int)axis->plan->width;
    read.heads = (int)heads;
    read.slice = (int)(axis->plan->width / heads);
    read.sources = (int)a->layout.sources;
    read.weights = a->weights;
    if (weigh_as_read(axis, args, a, &read, st))
        return FAILED;
    if (args->variance) {
        sum_variances<<<dim3((unsigned)heads, (unsigned)sequences), 32, 0, axis->device->stream>>>(
            a->variance, rows->start, (int)axis->wants.skip_first, (int)heads,
            a->variances + k * sequences * heads);
        if (cuda_launched("depth: variances", st))
            return FAILED;
    }
    return args->sums ? sum_weights(axis, args->site, &a->layout, a->weights, NULL, a->partial,
                                    rows, a->sums + k * sequences * a->layout.total, st)
                      : DONE;
}

/* Results to the host; those of sequences that are not wanted are 0. */
int bring(depth *axis, const depth_alternative_args *args, const double *from, double *to,
          size_t length, status *st) {
    const size_t sequences = axis->layout.sequences, each = sequences * length;
    cudaStream_t stream = axis->device->stream;
    if (!to)
        return DONE;
    if (cuda_ok(cudaMemcpyAsync(to, from, args->count * each * sizeof *to, cudaMemcpyDeviceToHost,
                                stream),
                "depth: other queries", st) ||
        cuda_ok(cudaStreamSynchronize(stream), "depth: other queries", st))
        return FAILED;
    for (size_t i = 0; args->sequence && i < args->count * sequences; i++)
        if (!args->sequence[i % sequences])
            memset(to + i * length, 0, length * sizeof *to);
    return DONE;
}

} // namespace

int cuda_depth_alternative(depth *axis, const depth_alternative_args *args, status *st) {
    if (check_alternative(axis, args, st))
        return FAILED;
    backend *device = axis->device;
    alternative a = {};
    a.layout = layout_of(axis, args->site, args->pairs);
    const size_t heads = axis->plan->heads, sequences = axis->layout.sequences;
    const size_t tasks = axis->layout.rows * heads, outputs = args->count * sequences;
    device_layout rows;
    void *memory = NULL;
    const size_t sums = aligned(args->sums ? outputs * a.layout.total * sizeof(double) : 0);
    const size_t variances = aligned(args->variance ? outputs * heads * sizeof(double) : 0);
    const size_t weights = aligned(tasks * a.layout.sources * sizeof(float));
    const size_t variance = aligned(tasks * sizeof(double));
    const size_t partial = sequences * tiles_of(axis) * a.layout.total * sizeof(double);
    if (outputs == 0 || (!args->sums && !args->variance))
        return DONE;
    if (cuda_layout(device, &axis->layout, &rows, st) ||
        cuda_take(device, sums + variances + 2 * weights + variance + partial, &memory, st))
        return FAILED;
    char *at = (char *)memory;
    a.sums = (double *)(void *)at;
    a.variances = (double *)(void *)(at += sums);
    a.weights = (float *)(void *)(at += variances);
    a.logit = (float *)(void *)(at += weights);
    a.variance = (double *)(void *)(at += weights);
    a.partial = (double *)(void *)(at + variance);
    int rc = cuda_ok(cudaMemsetAsync(memory, 0, sums + variances, device->stream),
                     "depth: other queries", st);
    for (size_t k = 0; k < args->count && !rc; k++)
        rc = weigh_query(axis, args, &a, k, &rows, st);
    if (!rc)
        rc = bring(axis, args, a.sums, args->sums, a.layout.total, st) ||
             bring(axis, args, a.variances, args->variance, heads, st);
    cuda_give_back(device, memory);
    return rc ? FAILED : DONE;
}
