/* depth_queries.cu - the gradients of all sites' folded queries at once, in bf16:
 *     du of a site, head h  =  sum over its sources n and all rows of (dl r) v_n
 * where dl r was left by the pulls. To tensor cores that is one product per head: sites by
 * channels, summed over sources and rows, where a site that does not read a source has zeros. A
 * block keeps MT * 16 sites by 4 * NT * 8 channels in registers through all sources and its part of
 * the rows; a second kernel adds the parts in order.
 */
#include "kernels/cuda/depth_pull.cuh"
#include "kernels/cuda/depth_ring.cuh"

#include <stdlib.h>

namespace {

typedef __nv_bfloat16 real;

enum { MT = 5, NT = 5, WARPS = 4, SITES = 16 * MT, CHANNELS = 8 * NT * WARPS, ROWS = 64 };
enum { E_STRIDE = ROWS + 8, V_STRIDE = CHANNELS + 8 }; /* odd in 16 bytes: no bank conflicts */
enum { STAGE = SITES * E_STRIDE + ROWS * V_STRIDE, STAGES = 4 };

struct querying {
    const value_view *view;
    const int *value;        /* [values] read by some of the sites */
    const real *const *edge; /* [values, sites] dl r at [head, edge_rows], or NULL */
    float *partial;          /* [splits, sites, width] */
    size_t rows, edge_rows;
    int values, sites, width, heads, slice, splits, blocks; /* blocks of channels in a slice */
};

__device__ __forceinline__ void copy_ahead16_or_0(void *to, const void *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     (unsigned)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}

__device__ __forceinline__ void load_matrices(unsigned (&x)[4], const real *from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"((unsigned)__cvta_generic_to_shared(from)));
}
__device__ __forceinline__ void load_transposed(unsigned (&x)[2], const real *from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(x[0]), "=r"(x[1])
                 : "r"((unsigned)__cvta_generic_to_shared(from)));
}
__device__ __forceinline__ void multiply(float (&c)[4], const unsigned (&a)[4],
                                         const unsigned (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* ROWS rows of one source: its readers' dl r, [SITES, ROWS], and its channels, [ROWS, CHANNELS]. */
__device__ __forceinline__ void copy_stage(const querying &q, real *stage, int n, size_t first,
                                           int head, int channel, int top) {
    const value_view view = q.view[q.value[n]];
    real *e = stage, *v = stage + SITES * E_STRIDE;
    for (int i = (int)threadIdx.x; i < SITES * (ROWS / 8); i += 32 * WARPS) {
        const int m = i / (ROWS / 8), r = i % (ROWS / 8) * 8;
        const size_t row = first + (size_t)r;
        const real *from =
            top + m < q.sites ? q.edge[(size_t)n * (size_t)q.sites + (size_t)(top + m)] : NULL;
        const bool there = from && row < q.rows;
        real *to = e + m * E_STRIDE + r;
        if (there)
            from += (size_t)head * q.edge_rows + row;
        if (there && row + 8 > q.rows) /* what lies behind is of another batch */
            for (int k = 0; k < 8; k++)
                to[k] = row + (size_t)k < q.rows ? from[k] : __float2bfloat16(0.0f);
        else
            copy_ahead16_or_0(to, there ? (const void *)from : (const void *)view.row, there);
    }
    for (int i = (int)threadIdx.x; i < ROWS * (CHANNELS / 8); i += 32 * WARPS) {
        const int r = i / (CHANNELS / 8), c = i % (CHANNELS / 8) * 8;
        const size_t row = first + (size_t)r;
        const bool there = row < q.rows && channel + c < q.slice;
        const real *from = static_cast<const real *>(view.row);
        if (there)
            from += row * view.stride + (size_t)(head * q.slice + channel + c);
        copy_ahead16_or_0(v + r * V_STRIDE + c, from, there);
    }
}

__global__ void __launch_bounds__(32 * WARPS) sum_queries(const __grid_constant__ querying q) {
    let_next_start();
    wait_for_earlier();
    extern __shared__ __align__(16) unsigned char shared[];
    real *stages = reinterpret_cast<real *>(shared);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int head = (int)blockIdx.x / q.blocks, channel = (int)blockIdx.x % q.blocks * CHANNELS;
    const int top = (int)blockIdx.y * SITES, split = (int)blockIdx.z;
    const size_t all = (q.rows + ROWS - 1) / ROWS,
                 chunks = (all + (size_t)q.splits - 1) / (size_t)q.splits;
    const size_t begin = (size_t)split * chunks;
    const size_t count = begin >= all ? 0 : begin + chunks < all ? chunks : all - begin;
    const size_t total = count * (size_t)q.values;
    float sum[MT][NT][4] = {};
    const auto copy = [&](size_t at) {
        if (at < total)
            copy_stage(q, stages + at % STAGES * STAGE, (int)(at / count),
                       (begin + at % count) * ROWS, head, channel, top);
        stage_ends();
    };
    for (size_t at = 0; at < STAGES - 1; at++)
        copy(at);
    for (size_t at = 0; at < total; at++) {
        copy(at + STAGES - 1);
        wait_but<STAGES - 1>();
        __syncthreads();
        const real *e = stages + at % STAGES * STAGE, *v = e + SITES * E_STRIDE;
#pragma unroll
        for (int k = 0; k < ROWS; k += 16) {
            unsigned b[NT][2];
#pragma unroll
            for (int n = 0; n < NT; n++)
                load_transposed(b[n], v + (k + lane % 16) * V_STRIDE + (warp * NT + n) * 8);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                unsigned a[4];
                load_matrices(a, e + (m * 16 + lane % 16) * E_STRIDE + k + lane / 16 * 8);
#pragma unroll
                for (int n = 0; n < NT; n++)
                    multiply(sum[m][n], a, b[n]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int site = top + m * 16 + lane / 4 + i / 2 * 8;
                const int c = channel + (warp * NT + n) * 8 + lane % 4 * 2 + i % 2;
                if (site < q.sites && c < q.slice)
                    q.partial[((size_t)split * (size_t)q.sites + (size_t)site) * (size_t)q.width +
                              (size_t)(head * q.slice + c)] = sum[m][n][i];
            }
}

__global__ void add_splits(const float *partial, int splits, int sites, int width,
                           float *const *d_folded) {
    let_next_start();
    wait_for_earlier();
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x), site = (int)blockIdx.y;
    if (i >= width)
        return;
    float sum = 0.0f;
    for (int s = 0; s < splits; s++)
        sum += partial[((size_t)s * (size_t)sites + (size_t)site) * (size_t)width + (size_t)i];
    d_folded[site][i] = sum;
}

} // namespace

/* Whether no site reads a value twice, which the table of `edge` has no room for. */
static bool reads_once(const depth_plan *plan) {
    for (size_t s = 0; s < plan->sites; s++)
        for (int i = 1; i < plan->site[s].sources; i++)
            for (int j = 0; j < i; j++)
                if (plan->site[s].source[i] == plan->site[s].source[j])
                    return false;
    return true;
}

int depth_queries_create(depth *axis, status *st) {
    const depth_plan *plan = axis->plan;
    depth_queries *q = &axis->queries;
    int rc = FAILED;
    q->fit = axis->device->bf16 && plan->width / plan->heads % 8 == 0 && reads_once(plan);
    if (!q->fit)
        return DONE;
    size_t *column = (size_t *)mem_array(plan->sites, sizeof *column, "depth sites", st);
    int *value = (int *)mem_array(plan->values, sizeof *value, "depth values", st);
    float **d_folded = (float **)mem_array(plan->sites, sizeof *d_folded, "depth sites", st);
    const void **edge = (const void **)mem_array(plan->values * plan->sites, sizeof *edge,
                                                 "uses of depth values", st);
    if (!column || !value || !d_folded || !edge)
        goto done;
    for (size_t s = 0; s < plan->sites; s++)
        if (plan->site[s].sources > 1) {
            d_folded[q->sites] = axis->site[s].back->d_folded;
            column[s] = q->sites++;
        }
    for (size_t v = 0; v < plan->values; v++)
        if (axis->value[v].source && plan->value[v].kind != VALUE_ZERO)
            value[q->values++] = (int)v;
    for (size_t n = 0; n < q->values; n++)
        for (size_t s = 0; s < plan->sites; s++)
            for (int i = 0; plan->site[s].sources > 1 && i < plan->site[s].sources; i++)
                if (plan->site[s].source[i] == value[n])
                    edge[n * q->sites + column[s]] = (const real *)axis->site[s].back->edge +
                                                     (size_t)i * plan->heads * axis->edge_rows;
    if (q->sites == 0 || q->values == 0) {
        rc = DONE;
        goto done;
    }
    rc = depth_memory(axis, q->values, sizeof *value, (void **)&q->value, st) ||
                 depth_memory(axis, q->values * q->sites, sizeof *edge, (void **)&q->edge, st) ||
                 depth_memory(axis, q->sites, sizeof *d_folded, (void **)&q->d_folded, st) ||
                 cuda_copy_in(axis->device, q->value, value, q->values * sizeof *value, st) ||
                 cuda_copy_in(axis->device, q->edge, edge, q->values * q->sites * sizeof *edge,
                              st) ||
                 cuda_copy_in(axis->device, q->d_folded, d_folded, q->sites * sizeof *d_folded,
                              st) ||
                 cuda_ok(cudaFuncSetAttribute(sum_queries,
                                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              STAGES * STAGE * (int)sizeof(real)),
                         "depth: queries", st)
             ? FAILED
             : DONE;
done:
    free(column);
    free(value);
    free(d_folded);
    free(edge);
    return rc;
}

int depth_queries_run(depth *axis, status *st) {
    const depth_plan *plan = axis->plan;
    const depth_queries *found = &axis->queries;
    if (!found->fit || found->sites == 0 || axis->layout.rows == 0)
        return DONE;
    querying q = {};
    q.view = axis->view;
    q.value = found->value;
    q.edge = (const real *const *)found->edge;
    q.rows = axis->layout.rows;
    q.edge_rows = axis->edge_rows;
    q.values = (int)found->values;
    q.sites = (int)found->sites;
    q.width = (int)plan->width;
    q.heads = (int)plan->heads;
    q.slice = (int)(plan->width / plan->heads);
    q.blocks = (q.slice + CHANNELS - 1) / CHANNELS;
    const int tops = (q.sites + SITES - 1) / SITES, chunks = (int)((q.rows + ROWS - 1) / ROWS);
    const int wanted =
        2 * axis->device->properties.multiProcessorCount / (q.heads * q.blocks * tops);
    q.splits = wanted < 1 ? 1 : wanted > chunks ? chunks : wanted;
    const size_t bytes = (size_t)q.splits * found->sites * plan->width * sizeof(float);
    if (cuda_scratch(axis->device, bytes, (void **)&q.partial, st))
        return FAILED;
    void *sum_parameters[] = {&q};
    void *add_parameters[] = {&q.partial, &q.splits, &q.sites, &q.width, (void *)&found->d_folded};
    if (depth_launch(axis, (const void *)sum_queries,
                     dim3((unsigned)(q.heads * q.blocks), (unsigned)tops, (unsigned)q.splits),
                     32 * WARPS, STAGES * STAGE * sizeof(real), sum_parameters, "depth: queries",
                     st))
        return FAILED;
    return depth_launch(axis, (const void *)add_splits,
                        dim3((unsigned)((q.width + 255) / 256), (unsigned)q.sites), 256, 0,
                        add_parameters, "depth: queries", st);
}
