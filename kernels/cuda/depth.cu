/* depth.cu - the values of the depth axis: their memory, their cached norms, sums and differences.
 *
 * One launch makes everything that one written value brings about: all of it is local to a row, and
 * a row is one warp's work, so what a step writes the next step's lanes have written themselves.
 */
#include "kernels/cuda/depth.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

int depth_memory(depth *axis, size_t count, size_t size, void **out, status *st) {
    size_t bytes;
    *out = NULL;
    if (__builtin_mul_overflow(count, size, &bytes))
        return status_fail(st, "depth axis: %zu elements of %zu bytes are too many", count, size);
    if (axis->memory_count == axis->memory_room) {
        const size_t room = axis->memory_room ? 2 * axis->memory_room : 64;
        void **grown = (void **)realloc(axis->memory, room * sizeof *grown);
        if (!grown)
            return status_fail(st, "depth axis: out of memory");
        axis->memory = grown;
        axis->memory_room = room;
    }
    if (cuda_take(axis->device, bytes, out, st))
        return FAILED;
    axis->memory[axis->memory_count++] = *out;
    return cuda_ok(cudaMemsetAsync(*out, 0, bytes ? bytes : 1, axis->device->stream), "depth axis",
                   st);
}

void cuda_depth_free(depth *axis) {
    if (!axis)
        return;
    if (axis->backward)
        depth_back_free(axis);
    for (size_t i = 0; axis->slot && i < axis->slots; i++)
        cuda_buffer_free(axis->device, axis->slot[i]);
    for (size_t i = 0; i < axis->memory_count; i++)
        cuda_give_back(axis->device, axis->memory[i]);
    free(axis->memory);
    free(axis->slot);
    free(axis->holds);
    free(axis->value);
    free(axis->site);
    free(axis->start);
    free(axis->pair_known);
    free(axis->new_pair);
    free(axis);
}

int depth_launch(const depth *axis, const void *kernel, dim3 grid, unsigned block, size_t shared,
                 void **parameters, const char *what, status *st) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t how = {};
    how.gridDim = grid;
    how.blockDim = dim3(block);
    how.dynamicSmemBytes = shared;
    how.stream = axis->device->stream;
    how.attrs = &early;
    how.numAttrs = axis->device->properties.major >= 9 && !axis->lent ? 1 : 0;
    return cuda_ok(cudaLaunchKernelExC(&how, kernel, parameters), what, st);
}

/* ---- making values ---- */

static __device__ __forceinline__ float rounded(float x, const float *) {
    return x;
}
static __device__ __forceinline__ float rounded(float x, const __nv_bfloat16 *) {
    return __bfloat162float(__float2bfloat16(x));
}

enum { MAKE_WARPS = 4 };

/* A warp to a row; a head's slice to `lanes` neighbouring lanes, as many heads at once as fit. */
template <typename real, int N>
static __global__ void __launch_bounds__(32 * MAKE_WARPS)
    make_values(const value_view *view, const make_step *steps, int count, size_t rows, int width,
                int heads, int lanes, float eps) {
    const size_t row = (size_t)blockIdx.x * MAKE_WARPS + threadIdx.x / 32;
    const int lane = (int)threadIdx.x % 32, own = lane % lanes, at_once = 32 / lanes;
    const int slice = width / heads;
    let_next_start();
    wait_for_earlier();
    if (row >= rows)
        return;
    for (int k = 0; k < count; k++) {
        const make_step step = steps[k];
        const value_view to = view[step.value];
        real *const out = static_cast<real *>(to.row) + row * to.stride;
        const real *a = NULL, *b = NULL;
        if (step.a != NO_VALUE) {
            a = static_cast<const real *>(view[step.a].row) + row * view[step.a].stride;
            b = static_cast<const real *>(view[step.b].row) + row * view[step.b].stride;
        }
        const float sign = step.subtract ? -1.0f : 1.0f;
        float total = 0.0f;
        for (int first = 0; first < heads; first += at_once) {
            const int head = first + lane / lanes;
            float squares = 0.0f;
            if (head < heads) {
#pragma unroll 4
                for (int i = own * N; i < slice; i += lanes * N) {
                    const int at = head * slice + i;
                    float x[N];
                    if (a) {
                        float y[N];
                        load<N>(a + at, x);
                        load<N>(b + at, y);
#pragma unroll
                        for (int j = 0; j < N; j++)
                            x[j] = rounded(x[j] + sign * y[j], out);
                        store<N>(out + at, x);
                    } else {
                        load<N>(out + at, x);
                    }
#pragma unroll
                    for (int j = 0; j < N; j++)
                        squares += x[j] * x[j];
                }
            }
            if (!to.norm)
                continue;
            squares = sum_lanes(squares, lanes);
            if (own == 0 && head < heads) {
                to.norm[row * to.step * (size_t)heads + (size_t)head] = sqrtf(squares);
                total += squares;
            }
        }
        if (!to.norm)
            continue;
        const float mean = sum_lanes(total) / (float)width;
        if (lane == 0) {
            to.rms[row * to.step] = sqrtf(mean);
            to.inverse_rms[row * to.step] = 1.0f / sqrtf(mean + eps);
        }
    }
}

/* Lanes that share a head's slice: enough that none has more than four pieces, or all. */
static int make_lanes(size_t pieces) {
    int lanes = 1;
    while (lanes < 32 && (size_t)lanes * 4 < pieces)
        lanes *= 2;
    return lanes;
}

static int run_steps(depth *axis, const make_step *steps, size_t count, size_t rows, status *st) {
    const depth_plan *plan = axis->plan;
    const size_t slice = plan->width / plan->heads;
    if (rows == 0 || count == 0)
        return DONE;
    const bool bf16 = axis->device->bf16, pieces = slice % 8 == 0;
    const void *kernel = bf16     ? pieces ? (const void *)make_values<__nv_bfloat16, 8>
                                           : (const void *)make_values<__nv_bfloat16, 1>
                             : pieces ? (const void *)make_values<float, 8>
                                  : (const void *)make_values<float, 1>;
    int steps_count = (int)count, width = (int)plan->width, heads = (int)plan->heads;
    int lanes = make_lanes(pieces ? slice / 8 : slice);
    float eps = plan->eps;
    void *parameters[] = {
        (void *)&axis->view, (void *)&steps, &steps_count, &rows, &width, &heads, &lanes, &eps};
    return depth_launch(axis, kernel, dim3((unsigned)((rows + MAKE_WARPS - 1) / MAKE_WARPS)),
                        32 * MAKE_WARPS, 0, parameters, "depth: made", st);
}

/* ---- creating ---- */

static int check_width(const depth_plan *plan, status *st) {
    if (plan->width > (1u << 24))
        return status_fail(st, "depth plan: width %zu, expected at most %d", plan->width, 1 << 24);
    return DONE;
}

static int check_site(const depth_plan *plan, size_t s, const site_weights *weights, status *st) {
    const depth_site *site = &plan->site[s];
    const size_t width = plan->width;
    if (site->sources && (cuda_holds(weights->query, false, 1, width, "depth: query", st) ||
                          cuda_holds(weights->gain, false, 1, width, "depth: gain", st)))
        return status_prefix(st, "site %zu", s);
    const bool vector = site->gate == GATE_SIGMOID_VECTOR;
    if (depth_gated(site) && (cuda_holds(weights->gate, vector, vector ? width : 1,
                                         vector ? width : 1, "depth: gate", st) ||
                              (weights->gate_bias && cuda_holds(weights->gate_bias, false, 1, width,
                                                                "depth: gate bias", st))))
        return status_prefix(st, "site %zu", s);
    return DONE;
}

static __global__ void fold(const float *gain, const float *query, float *folded, int width) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < width)
        folded[i] = gain[i] * query[i];
}

template <typename real> static __global__ void copy_exact(const float *from, real *to, int width) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < width)
        store<1>(to + i, *reinterpret_cast<const float(*)[1]>(from + i));
}

static unsigned width_blocks(const depth_plan *plan) {
    return (unsigned)((plan->width + 255) / 256);
}

static int create_site(depth *axis, size_t s, const site_weights *weights, status *st) {
    const depth_plan *plan = axis->plan;
    const depth_site *planned = &plan->site[s];
    site_state *site = &axis->site[s];
    if (check_site(plan, s, weights, st))
        return FAILED;
    site->weights = *weights;
    if (planned->sources == 0)
        return DONE;
    const size_t sources = (size_t)planned->sources;
    if (depth_memory(axis, plan->width, sizeof(float), (void **)&site->folded, st) ||
        depth_memory(axis, sources, sizeof(int), (void **)&site->source, st) ||
        depth_memory(axis, plan->heads, sizeof(float), (void **)&site->edit_scale, st) ||
        cuda_copy_in(axis->device, site->source, planned->source, sources * sizeof(int), st))
        return FAILED;
    fold<<<width_blocks(plan), 256, 0, axis->device->stream>>>((const float *)weights->gain->data,
                                                               (const float *)weights->query->data,
                                                               site->folded, (int)plan->width);
    if (cuda_launched("depth: folded query", st))
        return FAILED;
    for (int i = 0; i < planned->sources; i++) {
        value_state *source = &axis->value[planned->source[i]];
        if (!source->source)
            source->index = axis->sources++;
        source->source = true;
    }
    return DONE;
}

/* A null source's row in the backend's numbers. */
static int create_null(depth *axis, size_t v, status *st) {
    const depth_plan *plan = axis->plan;
    const int site = plan->value[v].a;
    const buffer *vector = axis->site[site].weights.null_source;
    if (cuda_holds(vector, false, 1, plan->width, "depth: null source", st))
        return status_prefix(st, "site %d", site);
    if (depth_memory(axis, plan->width, sizeof(float), &axis->value[v].view.row, st))
        return FAILED;
    void *row = axis->value[v].view.row;
    const float *from = (const float *)vector->data;
    if (axis->device->bf16)
        copy_exact<<<width_blocks(plan), 256, 0, axis->device->stream>>>(from, (__nv_bfloat16 *)row,
                                                                         (int)plan->width);
    else
        copy_exact<<<width_blocks(plan), 256, 0, axis->device->stream>>>(from, (float *)row,
                                                                         (int)plan->width);
    return cuda_launched("depth: null source", st);
}

/* Row pointer and cached norms of one value. */
static int create_value(depth *axis, size_t v, status *st) {
    const depth_plan *plan = axis->plan;
    const value_kind kind = plan->value[v].kind;
    value_state *value = &axis->value[v];
    const bool same = kind == VALUE_NULL || kind == VALUE_ZERO;
    const size_t rows = same ? 1 : axis->max_rows;
    value->view.stride = same ? 0 : (unsigned)plan->width;
    value->view.step = same ? 0 : 1;
    if (kind == VALUE_ZERO)
        value->view.row = axis->zero;
    else if (kind == VALUE_NULL ? create_null(axis, v, st) : 0)
        return FAILED;
    else if (kind != VALUE_NULL)
        value->view.row = cuda_depth_storage(axis, v)->data;
    if (!value->source)
        return DONE;
    float *cached; /* of a zero value all are 0, its inverse rms too: its logit is 0 */
    if (depth_memory(axis, rows * (2 + plan->heads), sizeof(float), (void **)&cached, st))
        return FAILED;
    value->view.inverse_rms = cached;
    value->view.rms = cached + rows;
    value->view.norm = cached + 2 * rows;
    value->view.index = (int)value->index;
    return DONE;
}

/* What depth_made(v) makes, in order. Called when the sources are known. */
static int create_steps(depth *axis, size_t v, status *st) {
    const depth_plan *plan = axis->plan;
    value_state *value = &axis->value[v];
    const value_kind kind = plan->value[v].kind;
    if (kind != VALUE_EMB && kind != VALUE_OUT && kind != VALUE_NULL)
        return DONE;
    make_step *steps = (make_step *)mem_array(plan->values, sizeof *steps, "depth values", st);
    if (!steps)
        return FAILED;
    size_t count = 0;
    if (value->source)
        steps[count++] = (make_step){(int)v, NO_VALUE, NO_VALUE, 0};
    for (size_t w = v + 1;
         kind != VALUE_NULL && w < plan->values && plan->value[w].kind != VALUE_OUT; w++) {
        const depth_value *next = &plan->value[w];
        if (next->kind == VALUE_ADD || next->kind == VALUE_SUB)
            steps[count++] = (make_step){(int)w, next->a, next->b, next->kind == VALUE_SUB};
    }
    value->step_count = count;
    int rc = DONE;
    if (count)
        rc = depth_memory(axis, count, sizeof *steps, (void **)&value->steps, st) ||
                     cuda_copy_in(axis->device, value->steps, steps, count * sizeof *steps, st)
                 ? FAILED
                 : DONE;
    free(steps);
    return rc;
}

static int create_table(depth *axis, status *st) {
    const depth_plan *plan = axis->plan;
    value_view *views = (value_view *)mem_array(plan->values, sizeof *views, "depth values", st);
    if (!views)
        return FAILED;
    for (size_t v = 0; v < plan->values; v++)
        views[v] = axis->value[v].view;
    const int rc = cuda_copy_in(axis->device, axis->view, views, plan->values * sizeof *views, st);
    free(views);
    for (size_t v = 0; !rc && v < plan->values; v++)
        if (create_steps(axis, v, st) ||
            (plan->value[v].kind == VALUE_NULL &&
             run_steps(axis, axis->value[v].steps, axis->value[v].step_count, 1, st)))
            return FAILED;
    return rc;
}

static int create_parts(depth *axis, const depth_options *options, status *st) {
    const depth_plan *plan = axis->plan;
    size_t elements;
    if (depth_plan_check(plan, st) || check_width(plan, st))
        return FAILED;
    if (__builtin_mul_overflow(options->max_rows, plan->width, &elements))
        return status_fail(st, "depth axis: %zu rows of width %zu are too many", options->max_rows,
                           plan->width);
    axis->slot = (buffer **)mem_array(axis->slots, sizeof *axis->slot, "depth slots", st);
    axis->value = (value_state *)mem_array(plan->values, sizeof *axis->value, "depth values", st);
    axis->site = (site_state *)mem_array(plan->sites, sizeof *axis->site, "depth sites", st);
    axis->start =
        (size_t *)mem_array(options->max_sequences + 1, sizeof *axis->start, "batch layout", st);
    axis->holds = (int *)mem_array(axis->slots, sizeof *axis->holds, "depth slots", st);
    if (!axis->slot || !axis->holds || !axis->value || !axis->site || !axis->start)
        return FAILED;
    if (depth_memory(axis, plan->width, sizeof(float), &axis->zero, st) ||
        depth_memory(axis, plan->values, sizeof *axis->view, (void **)&axis->view, st))
        return FAILED;
    for (size_t i = 0; i < axis->slots; i++)
        if ((!axis->own_slots || depth_slot(axis, i) >= 0) &&
            cuda_buffer_create(axis->device, BUFFER_REAL, elements, &axis->slot[i], st))
            return FAILED;
    for (size_t s = 0; s < plan->sites; s++)
        if (create_site(axis, s, &options->weights[s], st))
            return FAILED;
    for (size_t v = 0; v < plan->values; v++)
        if (create_value(axis, v, st))
            return FAILED;
    if (create_table(axis, st))
        return FAILED;
    for (size_t s = 0; s < plan->sites; s++)
        if (depth_read_choose(axis, s, st))
            return FAILED;
    return axis->backward ? depth_back_create(axis, st) : DONE;
}

int cuda_depth_create(backend *device, const depth_options *options, depth **out, status *st) {
    *out = NULL;
    depth *axis = (depth *)mem_array(1, sizeof *axis, "depth axis", st);
    if (!axis)
        return FAILED;
    axis->device = device;
    axis->plan = options->plan;
    axis->max_rows = options->max_rows;
    axis->max_sequences = options->max_sequences;
    axis->backward = options->backward;
    axis->own_slots = options->backward || options->keep;
    axis->slots = axis->own_slots ? options->plan->values : options->plan->slots;
    if (create_parts(axis, options, st)) {
        cuda_depth_free(axis);
        return FAILED;
    }
    *out = axis;
    return DONE;
}

/* ---- a batch ---- */

static __global__ void set_row(value_view *view, void *row) {
    view->row = row;
}

static int move_value(depth *axis, size_t v, void *row, status *st) {
    axis->value[v].view.row = row;
    set_row<<<1, 1, 0, axis->device->stream>>>(axis->view + v, row);
    return cuda_launched("depth: value", st);
}

int cuda_depth_begin(depth *axis, const batch_layout *layout, const depth_wants *wants,
                     status *st) {
    if (layout->rows > axis->max_rows || layout->sequences > axis->max_sequences)
        return status_fail(st,
                           "batch of %zu sequences, %zu tokens: the depth axis was made for at "
                           "most %zu and %zu",
                           layout->sequences, layout->rows, axis->max_sequences, axis->max_rows);
    memcpy(axis->start, layout->start, (layout->sequences + 1) * sizeof *axis->start);
    axis->layout = (batch_layout){layout->sequences, layout->rows, axis->start};
    axis->wants = *wants;
    axis->wants.pairs = wants->pairs && wants->sums;
    axis->lent = false;
    for (size_t i = 0; i < axis->slots; i++)
        axis->holds[i] = NO_VALUE;
    for (size_t s = 0; s < axis->plan->sites; s++)
        axis->site[s].read = false;
    for (size_t v = 0; v < axis->plan->values; v++)
        if (axis->value[v].lent) {
            axis->value[v].lent = NULL;
            axis->lent = true; /* until the next batch: the table changes in this one */
            if (move_value(axis, v, cuda_depth_storage(axis, v)->data, st))
                return FAILED;
        }
    if (axis->backward && depth_back_begin(axis, st))
        return FAILED;
    return axis->wants.sums ? depth_sums_begin(axis, st) : DONE;
}

buffer *cuda_depth_storage(depth *axis, size_t value) {
    const int slot = depth_slot(axis, value);
    return axis->value[value].lent ? axis->value[value].lent : slot < 0 ? NULL : axis->slot[slot];
}

int cuda_depth_lend(depth *axis, size_t value, buffer *memory, status *st) {
    const depth_plan *plan = axis->plan;
    if (value >= plan->values || axis->backward ||
        (plan->value[value].kind != VALUE_EMB && plan->value[value].kind != VALUE_OUT))
        return status_fail(st, "depth axis: value %zu cannot be lent", value);
    if (cuda_holds(memory, true, axis->layout.rows, plan->width, "depth: lent value", st))
        return FAILED;
    axis->value[value].lent = memory;
    axis->lent = true;
    return move_value(axis, value, memory->data, st);
}

int cuda_depth_made(depth *axis, size_t value, status *st) {
    const depth_plan *plan = axis->plan;
    if (value >= plan->values ||
        (plan->value[value].kind != VALUE_EMB && plan->value[value].kind != VALUE_OUT))
        return status_fail(st, "depth axis: value %zu is not one that is written", value);
    axis->holds[depth_slot(axis, value)] = (int)value;
    for (size_t v = value + 1; v < plan->values && plan->value[v].kind != VALUE_OUT; v++) {
        const depth_value *next = &plan->value[v];
        if (next->kind != VALUE_ADD && next->kind != VALUE_SUB)
            continue;
        if (!depth_holds(axis, (size_t)next->a) || !depth_holds(axis, (size_t)next->b))
            return status_fail(st, "depth axis: value %zu: operand %d or %d is not there", v,
                               next->a, next->b);
        axis->holds[depth_slot(axis, v)] = (int)v;
    }
    return run_steps(axis, axis->value[value].steps, axis->value[value].step_count,
                     axis->layout.rows, st);
}
