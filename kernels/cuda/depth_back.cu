/* depth_back.cu - the depth axis backward: what sites keep, what they are given, and the gradients
 * of their learned tensors. depth_pull.cu makes the gradients of values.
 */
#include "kernels/cuda/depth.h"

#include <math.h>
#include <stdlib.h>

/* ---- memory ---- */

static unsigned blocks_of(size_t count) {
    return (unsigned)((count + 255) / 256);
}

template <typename real>
static __global__ void copy_numbers(const float *from, real *to, int width) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < width)
        store<1>(to + i, *reinterpret_cast<const float(*)[1]>(from + i));
}

static int keep_site(depth *axis, size_t s, back_view *view, status *st) {
    const depth_site *planned = &axis->plan->site[s];
    const size_t width = axis->plan->width, cells = axis->max_rows * axis->plan->heads;
    const size_t elements = axis->max_rows * width;
    site_back *back = (site_back *)mem_array(1, sizeof *back, "depth sites", st);
    axis->site[s].back = back;
    if (!back)
        return FAILED;
    if (planned->sources == 0)
        return DONE;
    backend *device = axis->device;
    if (depth_memory(axis, cells * (size_t)planned->sources, sizeof(float), (void **)&back->logit,
                     st) ||
        depth_memory(axis, cells, sizeof(float), (void **)&back->lse, st) ||
        depth_memory(axis, cells, sizeof(float), (void **)&back->product, st) ||
        (planned->sources > 1 &&
         depth_memory(axis, (size_t)planned->sources * axis->plan->heads * axis->edge_rows,
                      device->bf16 ? sizeof(__nv_bfloat16) : sizeof(float), &back->edge, st)) ||
        depth_memory(axis, width, sizeof(float), (void **)&back->d_folded, st) ||
        depth_memory(axis, 1, sizeof(float), (void **)&back->d_gate, st) ||
        (planned->base != NO_VALUE &&
         cuda_buffer_create(device, BUFFER_REAL, elements, &back->mix, st)) ||
        (depth_gated_by_vector(planned) &&
         (cuda_buffer_create(device, BUFFER_REAL, elements, &back->gate, st) ||
          cuda_buffer_create(device, BUFFER_REAL, elements, &back->d_gated, st))))
        return FAILED;
    void *folded_real;
    if (depth_memory(axis, width, sizeof(float), &folded_real, st))
        return FAILED;
    if (device->bf16)
        copy_numbers<<<blocks_of(width), 256, 0, device->stream>>>(
            axis->site[s].folded, (__nv_bfloat16 *)folded_real, (int)width);
    else
        copy_numbers<<<blocks_of(width), 256, 0, device->stream>>>(
            axis->site[s].folded, (float *)folded_real, (int)width);
    if (cuda_launched("depth: folded query", st))
        return FAILED;
    view->logit = back->logit;
    view->lse = back->lse;
    view->product = back->product;
    view->folded = axis->site[s].folded;
    view->folded_real = folded_real;
    view->edge = back->edge;
    view->d_folded = back->d_folded;
    return DONE;
}

int depth_back_create(depth *axis, status *st) {
    const depth_plan *plan = axis->plan;
    back_view *views = (back_view *)mem_array(plan->sites, sizeof *views, "depth sites", st);
    if (!views)
        return FAILED;
    axis->edge_rows = (axis->max_rows + 7) / 8 * 8;
    int rc = depth_memory(axis, plan->sites, sizeof *views, (void **)&axis->back, st);
    for (size_t s = 0; s < plan->sites && !rc; s++)
        rc = keep_site(axis, s, &views[s], st);
    if (!rc)
        rc = cuda_copy_in(axis->device, axis->back, views, plan->sites * sizeof *views, st);
    free(views);
    for (size_t v = 0; v < plan->values && !rc; v++) {
        value_state *value = &axis->value[v];
        if (plan->value[v].kind == VALUE_NULL)
            rc = depth_memory(axis, plan->width, sizeof(float), (void **)&value->d_null, st);
        else if (depth_slot(axis, v) >= 0)
            rc = cuda_buffer_create(axis->device, BUFFER_REAL, axis->max_rows * plan->width,
                                    &value->gradient, st);
    }
    if (!rc)
        rc = depth_queries_create(axis, st);
    return rc ? FAILED : depth_uses_create(axis, st);
}

void depth_back_free(depth *axis) {
    for (size_t v = 0; axis->value && v < axis->plan->values; v++)
        cuda_buffer_free(axis->device, axis->value[v].gradient);
    for (size_t s = 0; axis->site && s < axis->plan->sites; s++) {
        site_back *back = axis->site[s].back;
        if (!back)
            continue;
        cuda_buffer_free(axis->device, back->mix);
        cuda_buffer_free(axis->device, back->gate);
        cuda_buffer_free(axis->device, back->d_gated);
        free(back);
    }
    depth_uses_free(axis->uses);
}

/* What is summed over a batch, zeroed: one block to a site or value. */
static __global__ void forget(const back_view *back, int width) {
    float *to = back[blockIdx.x].d_folded;
    for (int i = (int)threadIdx.x; to && i < width; i += (int)blockDim.x)
        to[i] = 0.0f;
}

int depth_back_begin(depth *axis, status *st) {
    const depth_plan *plan = axis->plan;
    cudaStream_t stream = axis->device->stream;
    axis->queries_summed = false;
    for (size_t v = 0; v < plan->values; v++) {
        axis->value[v].pulled = false;
        if (axis->value[v].d_null &&
            cuda_ok(cudaMemsetAsync(axis->value[v].d_null, 0, plan->width * sizeof(float), stream),
                    "depth: begin", st))
            return FAILED;
    }
    for (size_t s = 0; s < plan->sites; s++)
        axis->site[s].back->d_in = NULL;
    forget<<<(unsigned)plan->sites, 256, 0, stream>>>(axis->back, (int)plan->width);
    return cuda_launched("depth: begin", st);
}

/* ---- vector gates ---- */

template <typename real> static __global__ void sigmoid(real *gate, size_t width, size_t rows) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= width * rows)
        return;
    float x[1];
    load<1>(gate + i, x);
    x[0] = 1.0f / (1.0f + expf(-x[0]));
    store<1>(gate + i, x);
}

/* Row 0 to the others. */
template <typename real> static __global__ void repeat_row(real *gate, size_t width, size_t rows) {
    const size_t i = width + (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < width * rows)
        gate[i] = gate[i % width];
}

int depth_vector_gate(depth *axis, size_t site, void *gate, status *st) {
    const size_t width = axis->plan->width;
    const value_view *base = &axis->value[axis->plan->site[site].base].view;
    const site_weights *weights = &axis->site[site].weights;
    const size_t rows = base->stride ? axis->layout.rows : 1;
    gemm_args product = {};
    product.m = rows;
    product.n = product.k = width;
    product.transpose_b = true;
    product.a = base->row;
    product.b = weights->gate->data;
    product.out = gate;
    product.a_stride = product.b_stride = product.out_stride = width;
    product.bias = weights->gate_bias ? (const float *)weights->gate_bias->data : NULL;
    if (cuda_gemm(axis->device, &product, st))
        return FAILED;
    const bool repeated = axis->site[site].back && rows < axis->layout.rows;
    cudaStream_t stream = axis->device->stream;
    if (axis->device->bf16) {
        __nv_bfloat16 *g = (__nv_bfloat16 *)gate;
        sigmoid<<<blocks_of(rows * width), 256, 0, stream>>>(g, width, rows);
        if (repeated)
            repeat_row<<<blocks_of((axis->layout.rows - 1) * width), 256, 0, stream>>>(
                g, width, axis->layout.rows);
    } else {
        float *g = (float *)gate;
        sigmoid<<<blocks_of(rows * width), 256, 0, stream>>>(g, width, rows);
        if (repeated)
            repeat_row<<<blocks_of((axis->layout.rows - 1) * width), 256, 0, stream>>>(
                g, width, axis->layout.rows);
    }
    return cuda_launched("depth: gate", st);
}

/* ---- giving ---- */

enum { WARPS = 8 };

struct giving {
    const void *d_in, *mix, *base; /* base: NULL unless the gate interpolates */
    void *d_mix;                   /* over the mix, of a gated site; or NULL */
    void *gate;                    /* of a vector gate: its gradient takes its place; or NULL */
    const float *scalar;
    float *product, *gate_part; /* [rows, heads] */
    back_view *back;            /* where d_mix is noted */
    size_t rows;
    unsigned base_stride;
    int width, heads, slice, sigmoid;
};

/* A warp to a (row, head). */
template <typename real, int N>
static __global__ void __launch_bounds__(32 * WARPS) give_site(const __grid_constant__ giving g) {
    const size_t task = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
    const int lane = (int)threadIdx.x % 32;
    let_next_start();
    wait_for_earlier();
    if (task == 0 && lane == 0)
        g.back->d_mix = g.d_mix ? g.d_mix : g.d_in;
    if (task >= g.rows * (size_t)g.heads)
        return;
    const size_t row = task / (size_t)g.heads;
    const size_t first = task % (size_t)g.heads * (size_t)g.slice;
    const size_t at = row * (size_t)g.width + first;
    float product = 0.0f, part = 0.0f, number = 1.0f;
    if (g.scalar)
        number = g.sigmoid ? 1.0f / (1.0f + expf(-*g.scalar)) : *g.scalar;
    for (int i = lane * N; i < g.slice; i += 32 * N) {
        float x[N], m[N], d[N], b[N], gate[N];
        load<N>(static_cast<const real *>(g.d_in) + at + i, x);
        load<N>(static_cast<const real *>(g.mix) + at + i, m);
        if (g.base)
            load<N>(static_cast<const real *>(g.base) + row * g.base_stride + first + i, b);
        if (g.gate)
            load<N>(static_cast<real *>(g.gate) + at + i, gate);
#pragma unroll
        for (int j = 0; j < N; j++) {
            const float through = g.gate ? gate[j] : number;
            const float to_gate = x[j] * (g.base ? m[j] - b[j] : m[j]);
            d[j] = through * x[j];
            product = fmaf(d[j], m[j], product);
            part += to_gate;
            gate[j] = to_gate * (through * (1.0f - through));
        }
        if (g.gate)
            store<N>(static_cast<real *>(g.gate) + at + i, gate);
        if (g.d_mix)
            store<N>(static_cast<real *>(g.d_mix) + at + i, d);
    }
    product = sum_lanes(product);
    if (lane == 0)
        g.product[task] = product;
    if (!g.gate_part)
        return;
    part = sum_lanes(part);
    if (lane == 0)
        g.gate_part[task] = part;
}

/* to[0] = the sum of `count` numbers, by one block, always in the same order. */
static __global__ void __launch_bounds__(1024) sum_all(const float *from, size_t count, float *to) {
    __shared__ double parts[32];
    double sum = 0.0;
    for (size_t i = threadIdx.x; i < count; i += 1024)
        sum += (double)from[i];
    sum = sum_lanes(sum);
    if (threadIdx.x % 32 == 0)
        parts[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = sum_lanes(parts[threadIdx.x]);
        if (threadIdx.x == 0)
            *to = (float)sum;
    }
}

static __global__ void note_mix(back_view *back, const void *d_mix) {
    back->d_mix = d_mix;
}

static int check_give(const depth *axis, size_t site, const buffer *d_in, status *st) {
    if (!axis->backward)
        return status_fail(st, "depth axis: made without backward");
    if (site >= axis->plan->sites)
        return status_fail(st, "depth axis: site %zu of %zu", site, axis->plan->sites);
    if (!axis->site[site].read || axis->site[site].back->d_in)
        return status_fail(st, "depth axis: gradient of site %zu, which was %s", site,
                           axis->site[site].read ? "given already" : "not read in this batch");
    return cuda_holds(d_in, true, axis->layout.rows, axis->plan->width, "depth: d_in", st);
}

static int launch_give(depth *axis, size_t site, const buffer *d_in, status *st) {
    const depth_plan *plan = axis->plan;
    const depth_site *planned = &plan->site[site];
    site_back *back = axis->site[site].back;
    backend *device = axis->device;
    giving g = {};
    g.d_in = d_in->data;
    g.mix = back->mix ? back->mix->data : back->in->data;
    g.product = back->product;
    g.back = axis->back + site;
    g.rows = axis->layout.rows;
    g.width = (int)plan->width;
    g.heads = (int)plan->heads;
    g.slice = (int)(plan->width / plan->heads);
    const size_t tasks = g.rows * plan->heads;
    const bool scalar = depth_gated(planned) && !depth_gated_by_vector(planned);
    if (depth_gated(planned)) {
        const value_view *base = &axis->value[planned->base].view;
        g.d_mix = back->mix->data;
        g.base = planned->interpolates ? base->row : NULL;
        g.base_stride = base->stride;
        g.gate = back->gate ? back->gate->data : NULL;
        g.scalar = scalar ? (const float *)axis->site[site].weights.gate->data : NULL;
        g.sigmoid = planned->gate == GATE_SIGMOID_SCALAR;
        if (scalar && cuda_scratch(device, tasks * sizeof(float), (void **)&g.gate_part, st))
            return FAILED;
    }
    const void *kernel = device->bf16  ? g.slice % 8 ? (const void *)give_site<__nv_bfloat16, 1>
                                                     : (const void *)give_site<__nv_bfloat16, 8>
                          : g.slice % 8 ? (const void *)give_site<float, 1>
                                       : (const void *)give_site<float, 8>;
    void *parameters[] = {&g};
    if (depth_launch(axis, kernel, dim3((unsigned)((tasks + WARPS - 1) / WARPS)), 32 * WARPS, 0,
                     parameters, "depth: give", st))
        return FAILED;
    if (scalar)
        sum_all<<<1, 1024, 0, device->stream>>>(g.gate_part, tasks, back->d_gate);
    if (cuda_launched("depth: give", st))
        return FAILED;
    if (!back->gate)
        return DONE;
    gemm_args product = {};
    product.m = g.rows;
    product.n = product.k = plan->width;
    product.a = back->gate->data;
    product.b = axis->site[site].weights.gate->data;
    product.out = back->d_gated->data;
    product.a_stride = product.b_stride = product.out_stride = plan->width;
    return cuda_gemm(device, &product, st);
}

int cuda_depth_give(depth *axis, size_t site, const buffer *d_in, status *st) {
    if (check_give(axis, site, d_in, st))
        return FAILED;
    const depth_site *planned = &axis->plan->site[site];
    axis->site[site].back->d_in = d_in;
    if (axis->layout.rows == 0 || planned->sources == 0)
        return DONE;
    if (planned->sources > 1 || depth_gated(planned))
        return launch_give(axis, site, d_in, st);
    note_mix<<<1, 1, 0, axis->device->stream>>>(axis->back + site, d_in->data);
    return cuda_launched("depth: give", st);
}

/* ---- gradients of learned tensors ---- */

enum { COLUMN_PARTS = 32 };

size_t depth_column_bytes(const depth *axis) {
    return COLUMN_PARTS * axis->plan->width * sizeof(float);
}

/* Columns of the part's rows; a thread to a column. */
template <typename real>
static __global__ void sum_columns(const real *from, size_t rows, int width, float *partial) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= width)
        return;
    const size_t each = (rows + COLUMN_PARTS - 1) / COLUMN_PARTS;
    const size_t first = blockIdx.y * each, last = first + each < rows ? first + each : rows;
    float sum = 0.0f;
    for (size_t r = first; r < last; r++) {
        float x[1];
        load<1>(from + r * (size_t)width + i, x);
        sum += x[0];
    }
    partial[(size_t)blockIdx.y * (size_t)width + (size_t)i] = sum;
}

static __global__ void add_parts(const float *partial, int width, float *to) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= width)
        return;
    double sum = 0.0;
    for (int p = 0; p < COLUMN_PARTS; p++)
        sum += (double)partial[(size_t)p * (size_t)width + (size_t)i];
    to[i] += (float)sum;
}

int depth_add_columns(depth *axis, const void *from, float *to, float *partial, status *st) {
    const int width = (int)axis->plan->width;
    const dim3 grid(blocks_of(axis->plan->width), COLUMN_PARTS);
    cudaStream_t stream = axis->device->stream;
    if (axis->device->bf16)
        sum_columns<<<grid, 256, 0, stream>>>((const __nv_bfloat16 *)from, axis->layout.rows, width,
                                              partial);
    else
        sum_columns<<<grid, 256, 0, stream>>>((const float *)from, axis->layout.rows, width,
                                              partial);
    add_parts<<<blocks_of(axis->plan->width), 256, 0, stream>>>(partial, width, to);
    return cuda_launched("depth: columns", st);
}

struct learned {
    float *query, *gain, *null_source, *gate; /* gate: of a scalar one */
    const float *d_folded, *d_null, *d_gate, *weight_query, *weight_gain, *weight_gate;
    int width, sigmoid;
};

static __global__ void add_learned(const __grid_constant__ learned l) {
    let_next_start();
    wait_for_earlier();
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= l.width)
        return;
    if (l.query)
        l.query[i] += l.weight_gain[i] * l.d_folded[i];
    if (l.gain)
        l.gain[i] += l.weight_query[i] * l.d_folded[i];
    if (l.null_source)
        l.null_source[i] += l.d_null[i];
    if (l.gate && i == 0) {
        const float gate = 1.0f / (1.0f + expf(-*l.weight_gate));
        *l.gate += *l.d_gate * (l.sigmoid ? gate * (1.0f - gate) : 1.0f);
    }
}

/* grad [width, width] += sum [width] x base [width]. */
template <typename real>
static __global__ void add_outer(const float *sum, const real *base, size_t width, float *grad) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= width * width)
        return;
    float x[1];
    load<1>(base + i % width, x);
    grad[i] += sum[i / width] * x[0];
}

/* Gradients of a vector gate's matrix, d^T base, and bias, d summed; `d` before the sigmoid. */
static int add_vector_gate(depth *axis, const value_view *base, const buffer *d_gate,
                           const site_grads *grads, status *st) {
    const size_t width = axis->plan->width;
    backend *device = axis->device;
    char *memory;
    const bool outer = grads->gate && base->stride == 0;
    if (cuda_scratch(device, depth_column_bytes(axis) + width * sizeof(float), (void **)&memory,
                     st))
        return FAILED;
    float *partial = (float *)(void *)memory;
    float *sum = (float *)(void *)(memory + depth_column_bytes(axis));
    if (grads->gate_bias &&
        depth_add_columns(axis, d_gate->data, (float *)grads->gate_bias->data, partial, st))
        return FAILED;
    if (outer) { /* a base that is the same for every token meets the summed gradient */
        if (cuda_ok(cudaMemsetAsync(sum, 0, width * sizeof *sum, device->stream), "depth: gate",
                    st) ||
            depth_add_columns(axis, d_gate->data, sum, partial, st))
            return FAILED;
        if (device->bf16)
            add_outer<<<blocks_of(width * width), 256, 0, device->stream>>>(
                sum, (const __nv_bfloat16 *)base->row, width, (float *)grads->gate->data);
        else
            add_outer<<<blocks_of(width * width), 256, 0, device->stream>>>(
                sum, (const float *)base->row, width, (float *)grads->gate->data);
        return cuda_launched("depth: gate", st);
    }
    if (!grads->gate)
        return DONE;
    gemm_args product = {};
    product.m = product.n = width;
    product.k = axis->layout.rows;
    product.transpose_a = true;
    product.a = d_gate->data;
    product.b = base->row;
    product.out = grads->gate->data;
    product.out_exact = product.add = true;
    product.a_stride = product.b_stride = product.out_stride = width;
    return cuda_gemm(device, &product, st);
}

static int check_grads(const depth *axis, size_t site, const site_grads *grads, status *st) {
    if (!axis->backward || site >= axis->plan->sites)
        return status_fail(st, "depth axis: site %zu has no gradients: %s", site,
                           axis->backward ? "the plan has fewer" : "made without backward");
    const depth_site *planned = &axis->plan->site[site];
    for (int i = 0; i < planned->sources; i++)
        if (!axis->value[planned->source[i]].pulled &&
            axis->plan->value[planned->source[i]].kind != VALUE_ZERO)
            return status_fail(st, "depth axis: gradients of site %zu before value %d is pulled",
                               site, planned->source[i]);
    const size_t width = axis->plan->width;
    const size_t side = depth_gated_by_vector(planned) ? width : 1;
    if ((grads->query && cuda_holds(grads->query, false, 1, width, "depth: grad query", st)) ||
        (grads->gain && cuda_holds(grads->gain, false, 1, width, "depth: grad gain", st)) ||
        (grads->null_source &&
         cuda_holds(grads->null_source, false, 1, width, "depth: grad null", st)) ||
        (grads->gate && cuda_holds(grads->gate, false, side, side, "depth: grad gate", st)) ||
        (grads->gate_bias &&
         cuda_holds(grads->gate_bias, false, 1, width, "depth: grad gate bias", st)))
        return FAILED;
    return DONE;
}

static float *exact(const buffer *memory) {
    return memory ? (float *)memory->data : NULL;
}

int cuda_depth_site_grads(depth *axis, size_t site, const site_grads *grads, status *st) {
    if (check_grads(axis, site, grads, st))
        return FAILED;
    const depth_plan *plan = axis->plan;
    const depth_site *planned = &plan->site[site];
    const site_state *state = &axis->site[site];
    const bool scalar = depth_gated(planned) && !depth_gated_by_vector(planned);
    learned l = {};
    l.width = (int)plan->width;
    if (planned->sources > 0) {
        l.query = exact(grads->query);
        l.gain = exact(grads->gain);
        l.gate = scalar ? exact(grads->gate) : NULL;
        l.d_folded = state->back->d_folded;
        l.d_gate = state->back->d_gate;
        l.weight_query = exact(state->weights.query);
        l.weight_gain = exact(state->weights.gain);
        l.weight_gate = exact(state->weights.gate);
        l.sigmoid = planned->gate == GATE_SIGMOID_SCALAR;
    }
    for (size_t v = 0; v < plan->values; v++)
        if (plan->value[v].kind == VALUE_NULL && (size_t)plan->value[v].a == site) {
            l.null_source = exact(grads->null_source);
            l.d_null = axis->value[v].d_null;
        }
    if (axis->layout.rows == 0)
        return DONE;
    if (!axis->queries_summed && depth_queries_run(axis, st))
        return FAILED;
    axis->queries_summed = true;
    void *parameters[] = {&l};
    if (depth_launch(axis, (const void *)add_learned, dim3(blocks_of(plan->width)), 256, 0,
                     parameters, "depth: gradients", st))
        return FAILED;
    return depth_gated_by_vector(planned) ? add_vector_gate(axis, &axis->value[planned->base].view,
                                                            state->back->gate, grads, st)
                                          : DONE;
}
