/* depth_pull.cu - the gradient of a value, written once from all its later readers.
 *
 * With a = exp(l - lse) the weights, d_mix the gradient of a reader's mix, u = gain * query and
 * r = 1 / rms(v), per head's slice:
 *     dl = a (<v, d_mix> - <d_mix, mix>)
 *     dv = sum over readers of (a d_mix + dl r u)  -  (sum over readers and heads of dl l) r^2 v /
 * d and a reader's du = sum over tokens of dl r v, for which dl r of all rows is written out.
 */
#include "kernels/cuda/depth_pull.cuh"

#include <math.h>
#include <stdlib.h>

/* ---- who uses a value ---- */

struct depth_uses {
    value_uses of;
    reader *reader;        /* device: likewise, the readers of a value first */
    int *readers;          /* [values] */
    term *term;            /* of the value being pulled, three of a use */
    pull_kernel many, few; /* by the rows of the batch */
};

/* The readers of every value, on the device. */
static int create_readers(depth *axis, size_t total, status *st) {
    const depth_plan *plan = axis->plan;
    depth_uses *uses = axis->uses;
    reader *readers = (reader *)mem_array(total, sizeof *readers, "uses of depth values", st);
    if (!readers)
        return FAILED;
    for (size_t v = 0; v < plan->values; v++)
        for (size_t i = uses->of.first[v]; i < uses->of.first[v + 1]; i++) {
            const value_use *use = &uses->of.use[i];
            if (use->kind == USE_SOURCE && plan->site[use->by].sources > 1)
                readers[uses->of.first[v] + (size_t)uses->readers[v]++] =
                    (reader){(int)use->by, (int)use->position};
        }
    const int rc = depth_memory(axis, total, sizeof *readers, (void **)&uses->reader, st) ||
                   cuda_copy_in(axis->device, uses->reader, readers, total * sizeof *readers, st);
    free(readers);
    return rc ? FAILED : DONE;
}

int depth_uses_create(depth *axis, status *st) {
    const depth_plan *plan = axis->plan;
    depth_uses *uses = (depth_uses *)mem_array(1, sizeof *uses, "uses of depth values", st);
    axis->uses = uses;
    if (!uses || value_uses_init(&uses->of, plan, st))
        return FAILED;
    const size_t total = uses->of.total;
    uses->readers = (int *)mem_array(plan->values, sizeof *uses->readers, "uses", st);
    uses->term = (term *)mem_array(total, 3 * sizeof *uses->term, "uses of depth values", st);
    if (!uses->readers || !uses->term || create_readers(axis, total, st) ||
        depth_pull_choose(axis, false, &uses->many, st) ||
        depth_pull_choose(axis, true, &uses->few, st))
        return FAILED;
    return DONE;
}

void depth_uses_free(depth_uses *uses) {
    if (!uses)
        return;
    value_uses_clear(&uses->of);
    free(uses->readers);
    free(uses->term);
    free(uses);
}

/* ---- one value ---- */

enum { PULL_WARPS = 8 };

/* A block to a row: a head is one warp's work, over all readers. */
template <typename real, int N>
static __global__ void __launch_bounds__(32 * PULL_WARPS)
    pull_row(const __grid_constant__ pulling p) {
    extern __shared__ float sum[]; /* [width] */
    __shared__ float parts[PULL_WARPS];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const size_t row = blockIdx.x, at = row * (size_t)p.width;
    const value_view view = *p.view;
    const real *v = static_cast<const real *>(view.row) + row * view.stride;
    const float r = p.readers ? view.inverse_rms[row * view.step] : 0.0f;
    float back = 0.0f;
    for (int h = warp; h < p.heads; h += PULL_WARPS) {
        const int first = h * p.slice;
        const size_t cell = row * (size_t)p.heads + (size_t)h;
        for (int i = first + lane * N; i < first + p.slice; i += 32 * N)
#pragma unroll
            for (int j = 0; j < N; j++)
                sum[i + j] = 0.0f;
        for (int k = 0; k < p.readers; k++) {
            const reader by = p.reader[k];
            const back_view site = p.back[by.site];
            const real *d = static_cast<const real *>(site.d_mix) + at;
            float dot = 0.0f;
            for (int i = first + lane * N; i < first + p.slice; i += 32 * N) {
                float x[N], y[N];
                load<N>(v + i, x);
                load<N>(d + i, y);
#pragma unroll
                for (int j = 0; j < N; j++)
                    dot = fmaf(x[j], y[j], dot);
            }
            dot = sum_lanes(dot);
            const float l =
                site.logit[((size_t)by.position * p.logit_rows + row) * (size_t)p.heads +
                           (size_t)h];
            const float a = __expf(l - site.lse[cell]), dl = a * (dot - site.product[cell]);
            if (lane == 0)
                store<1>(static_cast<real *>(site.edge) +
                             ((size_t)by.position * (size_t)p.heads + (size_t)h) * p.edge_rows +
                             row,
                         {dl * r});
            back = fmaf(dl, l, back);
            for (int i = first + lane * N; i < first + p.slice; i += 32 * N) {
                float y[N], u[N];
                load<N>(d + i, y);
                load<N>(site.folded + i, u);
#pragma unroll
                for (int j = 0; j < N; j++)
                    sum[i + j] += a * y[j] + dl * r * u[j];
            }
        }
    }
    if (lane == 0)
        parts[warp] = back;
    __syncthreads();
    back = 0.0f;
    for (int w = 0; w < PULL_WARPS; w++)
        back += parts[w];
    back *= r * r / (float)p.width;
    for (int i = (int)threadIdx.x * N; i < p.width; i += 32 * PULL_WARPS * N) {
        float x[N], total[N];
        load<N>(v + i, x);
#pragma unroll
        for (int j = 0; j < N; j++)
            total[j] = sum[i + j] - back * x[j];
        if (p.more) {
            load<N>(static_cast<const real *>(p.out) + at + i, x);
#pragma unroll
            for (int j = 0; j < N; j++)
                total[j] += x[j];
        }
        for (int t = 0; t < p.terms.count; t++) {
            load<N>(static_cast<const real *>(p.terms.term[t].from) + at + i, x);
#pragma unroll
            for (int j = 0; j < N; j++)
                total[j] += p.terms.term[t].sign * x[j];
        }
        store<N>(static_cast<real *>(p.out) + at + i, total);
    }
}

/* ---- the readers' queries ---- */

enum { QUERY_SPLITS = 32, QUERY_READERS = 8 };

/* partial [splits, readers, width]: dl r v over a part of the rows; a thread to a channel and
 * QUERY_READERS readers. */
template <typename real>
static __global__ void __launch_bounds__(128)
    pull_queries(const __grid_constant__ pulling p, float *partial) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    const int first_reader = (int)blockIdx.y * QUERY_READERS;
    if (i >= p.width)
        return;
    const value_view view = *p.view;
    const size_t each = (p.rows + QUERY_SPLITS - 1) / QUERY_SPLITS, first = blockIdx.z * each;
    const size_t last = first + each < p.rows ? first + each : p.rows;
    const size_t head = (size_t)(i / p.slice);
    const real *edge[QUERY_READERS];
    float sum[QUERY_READERS] = {};
#pragma unroll
    for (int k = 0; k < QUERY_READERS; k++) {
        const reader by = p.reader[first_reader + k < p.readers ? first_reader + k : first_reader];
        edge[k] = static_cast<const real *>(p.back[by.site].edge) +
                  ((size_t)by.position * (size_t)p.heads + head) * p.edge_rows;
    }
    for (size_t row = first; row < last; row++) {
        float v[1];
        load<1>(static_cast<const real *>(view.row) + row * view.stride + i, v);
#pragma unroll
        for (int k = 0; k < QUERY_READERS; k++) {
            float e[1];
            load<1>(edge[k] + row, e);
            sum[k] = fmaf(e[0], v[0], sum[k]);
        }
    }
#pragma unroll
    for (int k = 0; k < QUERY_READERS; k++)
        if (first_reader + k < p.readers)
            partial[((size_t)blockIdx.z * (size_t)p.readers + (size_t)(first_reader + k)) *
                        (size_t)p.width +
                    (size_t)i] = sum[k];
}

/* Adds the parts, in order, to the readers' sums. */
static __global__ void add_queries(const __grid_constant__ pulling p, const float *partial) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x), k = (int)blockIdx.y;
    if (i >= p.width)
        return;
    float sum = 0.0f;
    for (int s = 0; s < QUERY_SPLITS; s++)
        sum += partial[((size_t)s * (size_t)p.readers + (size_t)k) * (size_t)p.width + (size_t)i];
    p.back[p.reader[k].site].d_folded[i] += sum;
}

/* ---- launching ---- */

/* The kernel for a value with these readers in this batch; NULL: the general one. */
static const pull_kernel *choose_kernel(const depth *axis, const pulling *p) {
    const size_t processors = (size_t)axis->device->properties.multiProcessorCount;
    const size_t readers = (size_t)p->readers;
    const pull_kernel *few = &axis->uses->few, *many = &axis->uses->many;
    if (p->rows * (size_t)p->heads > INT32_MAX)
        return NULL;
    const bool small = p->rows < 2 * processors * many->height;
    if (few->kernel && readers <= few->most_readers && (small || !many->kernel))
        return few;
    return many->kernel && readers <= many->most_readers ? many : NULL;
}

static int pull_by_ring(const depth *axis, const pulling *p, const pull_kernel *chosen,
                        status *st) {
    const size_t shared = chosen->shared + (size_t)p->readers * chosen->reader_bytes;
    const size_t tiles = (p->rows + chosen->height - 1) / chosen->height;
    int blocks = 0, W = chosen->W;
    if (cuda_ok(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, chosen->kernel,
                                                              (int)chosen->block, shared),
                "depth: pull", st))
        return FAILED;
    const size_t most =
        (size_t)axis->device->properties.multiProcessorCount * (size_t)(blocks > 0 ? blocks : 1);
    void *parameters[] = {(void *)p, &W};
    return depth_launch(axis, chosen->kernel, dim3((unsigned)(tiles < most ? tiles : most)),
                        chosen->block, shared, parameters, "depth: pull", st);
}

static void pull_by_row(const depth *axis, const pulling *p) {
    const unsigned grid = (unsigned)p->rows, block = 32 * PULL_WARPS;
    const size_t shared = (size_t)p->width * sizeof(float);
    cudaStream_t stream = axis->device->stream;
    if (p->slice % 8 == 0) {
        if (axis->device->bf16)
            pull_row<__nv_bfloat16, 8><<<grid, block, shared, stream>>>(*p);
        else
            pull_row<float, 8><<<grid, block, shared, stream>>>(*p);
    } else if (axis->device->bf16) {
        pull_row<__nv_bfloat16, 1><<<grid, block, shared, stream>>>(*p);
    } else {
        pull_row<float, 1><<<grid, block, shared, stream>>>(*p);
    }
}

/* What reaches a value as it is: fills uses->term. */
static int find_terms(depth *axis, size_t v, size_t *count, status *st) {
    depth_uses *uses = axis->uses;
    *count = 0;
    for (size_t i = uses->of.first[v]; i < uses->of.first[v + 1]; i++) {
        const value_use *use = &uses->of.use[i];
        term *to = uses->term + *count;
        if (use->kind == USE_ADDED || use->kind == USE_SUBTRACTED) {
            *to = (term){axis->value[use->by].d_value->data,
                         use->kind == USE_SUBTRACTED ? -1.0f : 1.0f};
            *count += 1;
            continue;
        }
        const depth_site *planned = &axis->plan->site[use->by];
        const site_back *back = axis->site[use->by].back;
        if (!back->d_in)
            return status_fail(st, "depth axis: value %zu is pulled before site %zu is given", v,
                               use->by);
        const void *d_mix = depth_gated(planned) ? back->mix->data : back->d_in->data;
        if (use->kind == USE_BASE) {
            uses->term[(*count)++] = (term){back->d_in->data, 1.0f};
            if (planned->interpolates && planned->sources > 0)
                uses->term[(*count)++] = (term){d_mix, -1.0f};
            if (back->d_gated)
                uses->term[(*count)++] = (term){back->d_gated->data, 1.0f};
        } else if (planned->sources == 1) { /* its weight is 1, whatever the query */
            uses->term[(*count)++] = (term){d_mix, 1.0f};
        }
    }
    return DONE;
}

/* The buffer that a single term is, or NULL. */
static const buffer *single_term(const depth *axis, size_t v) {
    const depth_uses *uses = axis->uses;
    const value_use *use = &uses->of.use[uses->of.first[v]];
    const size_t count = uses->of.first[v + 1] - uses->of.first[v];
    if (count != 1 || use->kind == USE_SUBTRACTED)
        return NULL;
    if (use->kind == USE_ADDED)
        return axis->value[use->by].d_value;
    const depth_site *planned = &axis->plan->site[use->by];
    const site_back *back = axis->site[use->by].back;
    if (use->kind == USE_SOURCE)
        return planned->sources > 1 ? NULL : depth_gated(planned) ? back->mix : back->d_in;
    return (planned->interpolates && planned->sources > 0) || back->d_gated ? NULL : back->d_in;
}

/* Adds to every reader's du, where depth_queries.cu does not do it in the end. */
static int sum_queries(depth *axis, const pulling *p, status *st) {
    const size_t readers = (size_t)p->readers;
    const unsigned across = (unsigned)((axis->plan->width + 127) / 128);
    const dim3 grid(across, (unsigned)((readers + QUERY_READERS - 1) / QUERY_READERS),
                    QUERY_SPLITS);
    cudaStream_t stream = axis->device->stream;
    float *partial;
    if (cuda_scratch(axis->device, QUERY_SPLITS * readers * axis->plan->width * sizeof *partial,
                     (void **)&partial, st))
        return FAILED;
    if (axis->device->bf16)
        pull_queries<__nv_bfloat16><<<grid, 128, 0, stream>>>(*p, partial);
    else
        pull_queries<float><<<grid, 128, 0, stream>>>(*p, partial);
    add_queries<<<dim3(across, (unsigned)readers), 128, 0, stream>>>(*p, partial);
    return cuda_launched("depth: queries", st);
}

static int run_pull(depth *axis, pulling *p, size_t terms, status *st) {
    for (size_t done = 0;;) {
        p->terms.count = terms - done < TERMS ? (int)(terms - done) : (int)TERMS;
        for (int t = 0; t < p->terms.count; t++)
            p->terms.term[t] = axis->uses->term[done + (size_t)t];
        const pull_kernel *chosen = p->readers ? choose_kernel(axis, p) : NULL;
        if (chosen) {
            if (pull_by_ring(axis, p, chosen, st))
                return FAILED;
        } else {
            pull_by_row(axis, p);
        }
        if (p->readers && !axis->queries.fit && sum_queries(axis, p, st))
            return FAILED;
        done += (size_t)p->terms.count;
        if (done >= terms)
            break;
        p->more = true;
        p->readers = 0;
    }
    return cuda_launched("depth: pull", st);
}

/* The gradients of the mixes of a value's first readers. */
static void note_mixes(const depth *axis, size_t v, const void **d_mix) {
    const depth_uses *uses = axis->uses;
    size_t count = 0;
    for (size_t i = uses->of.first[v]; i < uses->of.first[v + 1] && count < NOTED; i++) {
        const depth_site *planned = &axis->plan->site[uses->of.use[i].by];
        const site_back *back = axis->site[uses->of.use[i].by].back;
        if (uses->of.use[i].kind == USE_SOURCE && planned->sources > 1)
            d_mix[count++] = depth_gated(planned) ? back->mix->data : back->d_in->data;
    }
}

static int pull_value(depth *axis, size_t v, status *st) {
    const depth_plan *plan = axis->plan;
    value_state *value = &axis->value[v];
    const bool same = plan->value[v].kind == VALUE_NULL;
    size_t terms;
    if (find_terms(axis, v, &terms, st))
        return FAILED;
    value->pulled = true;
    value->d_value = value->gradient;
    if (axis->layout.rows == 0)
        return DONE;
    const buffer *alias = same ? NULL : single_term(axis, v);
    if (alias) {
        value->d_value = alias;
        return DONE;
    }
    pulling p = {};
    p.view = axis->view + v;
    p.back = axis->back;
    p.reader = axis->uses->reader + axis->uses->of.first[v];
    p.readers = axis->uses->readers[v];
    note_mixes(axis, v, p.d_mix);
    p.rows = axis->layout.rows;
    p.logit_rows = axis->max_rows;
    p.edge_rows = axis->edge_rows;
    p.width = (int)plan->width;
    p.heads = (int)plan->heads;
    p.slice = (int)(plan->width / plan->heads);
    if (!same) {
        p.out = value->gradient->data;
        return run_pull(axis, &p, terms, st);
    }
    void *rows, *partial = NULL;
    const size_t bytes = p.rows * plan->width * sizeof(float);
    if (cuda_take(axis->device, bytes, &rows, st))
        return FAILED;
    p.out = rows;
    const int rc = cuda_take(axis->device, depth_column_bytes(axis), &partial, st) ||
                   run_pull(axis, &p, terms, st) ||
                   depth_add_columns(axis, rows, value->d_null, (float *)partial, st);
    cuda_give_back(axis->device, rows);
    cuda_give_back(axis->device, partial);
    return rc ? FAILED : DONE;
}

int cuda_depth_pull(depth *axis, size_t value, const buffer **d_value, status *st) {
    const depth_plan *plan = axis->plan;
    if (!axis->backward || value >= plan->values || depth_slot(axis, value) < 0)
        return status_fail(st, "depth axis: value %zu has no gradient: %s", value,
                           axis->backward ? "it is a null or zero source, or none of the plan's"
                                          : "made without backward");
    /* Later values first: sums and differences pass on what reached them. */
    for (size_t v = plan->values; v-- > value;)
        if (!axis->value[v].pulled && depth_slot(axis, v) >= 0 && pull_value(axis, v, st))
            return FAILED;
    for (size_t v = 0; plan->value[value].kind == VALUE_EMB && v < plan->values; v++)
        if (plan->value[v].kind == VALUE_NULL && !axis->value[v].pulled && pull_value(axis, v, st))
            return FAILED;
    *d_value = axis->value[value].d_value;
    return DONE;
}
