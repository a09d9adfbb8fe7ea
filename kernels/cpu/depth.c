/* depth.c - the values of the depth axis: their memory, their cached norms, sums and differences.
 */
#include "kernels/cpu/depth.h"
#include "kernels/cpu/vector.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void cpu_depth_free(depth *axis) {
    if (!axis)
        return;
    cpu_depth_back_free(axis);
    for (size_t i = 0; axis->slot && i < axis->slots; i++)
        kernels_cpu.buffer_free(axis->device, axis->slot[i]);
    for (size_t v = 0; axis->value && v < axis->plan->values; v++) {
        free(axis->value[v].rms);
        free(axis->value[v].inverse_rms);
        free(axis->value[v].norm);
    }
    for (size_t s = 0; axis->site && s < axis->plan->sites; s++) {
        free(axis->site[s].folded);
        free(axis->site[s].sums);
    }
    free(axis->slot);
    free(axis->holds);
    free(axis->value);
    free(axis->site);
    free(axis->zero);
    free(axis->start);
    free(axis->pair_known);
    free(axis->pair_sum);
    free(axis->new_pair);
    free(axis->partial);
    free(axis);
}

static int check_site(const depth_plan *plan, size_t s, const site_weights *weights, status *st) {
    const depth_site *site = &plan->site[s];
    const size_t width = plan->width;
    if (site->sources && (cpu_holds(weights->query, 1, width, "depth: query", st) ||
                          cpu_holds(weights->gain, 1, width, "depth: gain", st)))
        return status_prefix(st, "site %zu", s);
    const bool vector = site->gate == GATE_SIGMOID_VECTOR;
    if (site->gate != GATE_NONE && site->base != NO_VALUE && site->sources &&
        (cpu_holds(weights->gate, vector ? width : 1, vector ? width : 1, "depth: gate", st) ||
         (weights->gate_bias && cpu_holds(weights->gate_bias, 1, width, "depth: gate bias", st))))
        return status_prefix(st, "site %zu", s);
    return DONE;
}

/* Per-sequence sums, cached norms and row pointers of one value. */
static int create_value(depth *axis, size_t v, status *st) {
    const depth_plan *plan = axis->plan;
    const depth_value *planned = &plan->value[v];
    value_state *value = &axis->value[v];
    const bool same = planned->kind == VALUE_NULL || planned->kind == VALUE_ZERO;
    const size_t rows = same ? 1 : axis->max_rows;
    value->stride = same ? 0 : plan->width;
    value->step = same ? 0 : 1;
    if (planned->kind == VALUE_NULL) {
        const buffer *vector = axis->site[planned->a].weights.null_source;
        if (cpu_holds(vector, 1, plan->width, "depth: null source", st))
            return status_prefix(st, "site %d", planned->a);
        value->row = floats(vector);
    } else if (planned->kind == VALUE_ZERO) {
        value->row = axis->zero;
    } else {
        value->row = floats(cpu_depth_storage(axis, v));
    }
    if (!value->source)
        return DONE;
    value->rms = mem_array(rows, sizeof(float), "norms of a depth value", st);
    value->inverse_rms = mem_array(rows, sizeof(float), "norms of a depth value", st);
    value->norm = mem_array(rows, plan->heads * sizeof(float), "norms of a depth value", st);
    if (!value->rms || !value->inverse_rms || !value->norm)
        return FAILED;
    if (planned->kind == VALUE_NULL)
        cpu_depth_cache(axis, value, 0, 1);
    return DONE; /* a zero value's norms are all 0, its inverse rms too: its logit is 0 */
}

static int create_site(depth *axis, size_t s, const site_weights *weights, status *st) {
    const depth_site *planned = &axis->plan->site[s];
    site_state *site = &axis->site[s];
    if (check_site(axis->plan, s, weights, st))
        return FAILED;
    site->weights = *weights;
    if (planned->sources == 0)
        return DONE;
    if (planned->edit && axis->backward)
        return status_fail(st,
                           "depth plan: site %zu carries an edit: no backward pass goes "
                           "through it",
                           s);
    site->folded = mem_array(axis->plan->width, sizeof(float), "folded query", st);
    if (!site->folded)
        return FAILED;
    for (size_t i = 0; i < axis->plan->width; i++)
        site->folded[i] = floats(weights->gain)[i] * floats(weights->query)[i];
    for (int i = 0; i < planned->sources; i++) {
        value_state *source = &axis->value[planned->source[i]];
        if (!source->source)
            source->index = axis->sources++;
        source->source = true;
    }
    return DONE;
}

int cpu_depth_create(backend *device, const depth_options *options, depth **out, status *st) {
    const depth_plan *plan = options->plan;
    *out = NULL;
    depth *axis = mem_array(1, sizeof *axis, "depth axis", st);
    if (!axis)
        return FAILED;
    axis->device = device;
    axis->plan = plan;
    axis->max_rows = options->max_rows;
    axis->max_sequences = options->max_sequences;
    axis->backward = options->backward;
    axis->own_slots = options->backward || options->keep;
    axis->slots = axis->own_slots ? plan->values : plan->slots;
    size_t elements;
    if (depth_plan_check(plan, st))
        goto failed;
    if (__builtin_mul_overflow(options->max_rows, plan->width, &elements)) {
        status_fail(st, "depth axis: %zu rows of width %zu are too many", options->max_rows,
                    plan->width);
        goto failed;
    }
    axis->slot = mem_array(axis->slots, sizeof *axis->slot, "depth slots", st);
    axis->value = mem_array(plan->values, sizeof *axis->value, "depth values", st);
    axis->site = mem_array(plan->sites, sizeof *axis->site, "depth sites", st);
    axis->zero = mem_array(plan->width, sizeof *axis->zero, "depth values", st);
    axis->start = mem_array(options->max_sequences + 1, sizeof *axis->start, "batch layout", st);
    axis->holds = mem_array(axis->slots, sizeof *axis->holds, "depth slots", st);
    if (!axis->slot || !axis->holds || !axis->value || !axis->site || !axis->zero || !axis->start)
        goto failed;
    for (size_t i = 0; i < axis->slots; i++)
        if ((!axis->own_slots || cpu_depth_slot(axis, i) >= 0) &&
            kernels_cpu.buffer_create(device, BUFFER_REAL, elements, &axis->slot[i], st))
            goto failed;
    for (size_t s = 0; s < plan->sites; s++)
        if (create_site(axis, s, &options->weights[s], st))
            goto failed;
    for (size_t v = 0; v < plan->values; v++)
        if (create_value(axis, v, st))
            goto failed;
    if (axis->backward && cpu_depth_back_create(axis, st))
        goto failed;
    *out = axis;
    return DONE;
failed:
    cpu_depth_free(axis);
    return FAILED;
}

void *cpu_depth_partial(depth *axis, size_t bytes, status *st) {
    if (axis->partial && bytes <= axis->partial_bytes)
        return axis->partial;
    free(axis->partial);
    axis->partial_bytes = 0;
    axis->partial = mem_array(bytes, 1, "sums of tiles", st);
    if (axis->partial)
        axis->partial_bytes = bytes;
    return axis->partial;
}

/* Memory that only batches with sums or pairs need. */
static int begin_sums(depth *axis, status *st) {
    const depth_plan *plan = axis->plan;
    const size_t pairs = axis->sources * (axis->sources + 1) / 2;
    for (size_t s = 0; s < plan->sites; s++) {
        site_state *site = &axis->site[s];
        const routing_layout layout =
            routing_layout_of(plan->heads, (size_t)plan->site[s].sources, plan->site[s].null_source,
                              axis->wants.pairs);
        /* The cosines, last in the layout, are kept per pair instead. */
        const size_t length = axis->wants.pairs ? layout.source_cos : layout.total;
        if (site->sums && site->sums_length == length)
            continue;
        free(site->sums);
        site->sums = mem_array(axis->max_sequences, length * sizeof(double), "routing sums", st);
        if (!site->sums)
            return FAILED;
        site->sums_length = length;
    }
    if (axis->wants.pairs && !axis->pair_known) {
        axis->pair_known = mem_array(pairs, sizeof(bool), "source pairs", st);
        axis->new_pair = mem_array(pairs, 2 * sizeof(size_t), "source pairs", st);
        axis->pair_sum = mem_array(pairs, axis->max_sequences * sizeof(double), "source pairs", st);
        if (!axis->pair_known || !axis->new_pair || !axis->pair_sum)
            return FAILED;
    }
    if (axis->wants.pairs)
        memset(axis->pair_known, 0, pairs * sizeof(bool));
    return DONE;
}

int cpu_depth_begin(depth *axis, const batch_layout *layout, const depth_wants *wants, status *st) {
    if (layout->rows > axis->max_rows || layout->sequences > axis->max_sequences)
        return status_fail(st,
                           "batch of %zu sequences, %zu tokens: the depth axis was made for at "
                           "most %zu and %zu",
                           layout->sequences, layout->rows, axis->max_sequences, axis->max_rows);
    memcpy(axis->start, layout->start, (layout->sequences + 1) * sizeof *axis->start);
    axis->layout = (batch_layout){layout->sequences, layout->rows, axis->start};
    axis->wants = *wants;
    axis->wants.pairs = wants->pairs && wants->sums;
    for (size_t i = 0; i < axis->slots; i++)
        axis->holds[i] = NO_VALUE;
    for (size_t s = 0; s < axis->plan->sites; s++)
        axis->site[s].read = false;
    for (size_t v = 0; v < axis->plan->values; v++)
        if (axis->value[v].lent) {
            axis->value[v].lent = NULL;
            axis->value[v].row = floats(cpu_depth_storage(axis, v));
        }
    if (axis->backward)
        cpu_depth_back_begin(axis);
    return axis->wants.sums ? begin_sums(axis, st) : DONE;
}

buffer *cpu_depth_storage(depth *axis, size_t value) {
    const int slot = cpu_depth_slot(axis, value);
    return axis->value[value].lent ? axis->value[value].lent : slot < 0 ? NULL : axis->slot[slot];
}

int cpu_depth_lend(depth *axis, size_t value, buffer *memory, status *st) {
    const depth_plan *plan = axis->plan;
    if (value >= plan->values || axis->backward ||
        (plan->value[value].kind != VALUE_EMB && plan->value[value].kind != VALUE_OUT))
        return status_fail(st, "depth axis: value %zu cannot be lent", value);
    if (cpu_holds(memory, axis->layout.rows, plan->width, "depth: lent value", st))
        return FAILED;
    axis->value[value].lent = memory;
    axis->value[value].row = floats(memory);
    return DONE;
}

CLONES void cpu_depth_cache(const depth *axis, value_state *value, size_t first, size_t rows) {
    const size_t width = axis->plan->width, heads = axis->plan->heads, slice = width / heads;
    for (size_t r = first; r < first + rows; r++) {
        const float *row = value->row + r * value->stride;
        double total = 0.0;
        for (size_t h = 0; h < heads; h++) {
            const double squares = sum_squares(row + h * slice, slice);
            value->norm[r * heads + h] = (float)sqrt(squares);
            total += squares;
        }
        const double mean = total / (double)width;
        value->rms[r] = (float)sqrt(mean);
        value->inverse_rms[r] = (float)(1.0 / sqrt(mean + (double)axis->plan->eps));
    }
}

/* rows of out = a + b or a - b; out may be a or b. */
CLONES static void combine(bool subtract, const value_state *a, const value_state *b, float *out,
                           size_t width, size_t first, size_t rows) {
    for (size_t r = first; r < first + rows; r++) {
        const float *x = a->row + r * a->stride, *y = b->row + r * b->stride;
        float *to = out + r * width;
        if (subtract)
#pragma omp simd
            for (size_t i = 0; i < width; i++)
                to[i] = x[i] - y[i];
        else
#pragma omp simd
            for (size_t i = 0; i < width; i++)
                to[i] = x[i] + y[i];
    }
}

/* Finishes one value whose rows (EMB, OUT) or operands (ADD, SUB) are there. */
static void finish_value(depth *axis, size_t v) {
    const depth_value *planned = &axis->plan->value[v];
    value_state *value = &axis->value[v];
    const bool computed = planned->kind == VALUE_ADD || planned->kind == VALUE_SUB;
    const size_t rows = axis->layout.rows;
#pragma omp parallel for num_threads(axis->device->threads) schedule(static)
    for (size_t first = 0; first < rows; first += DEPTH_TILE) {
        const size_t count = rows - first < DEPTH_TILE ? rows - first : DEPTH_TILE;
        if (computed)
            combine(planned->kind == VALUE_SUB, &axis->value[planned->a], &axis->value[planned->b],
                    floats(cpu_depth_storage(axis, v)), axis->plan->width, first, count);
        if (value->source)
            cpu_depth_cache(axis, value, first, count);
    }
    axis->holds[cpu_depth_slot(axis, v)] = (int)v;
}

int cpu_depth_made(depth *axis, size_t value, status *st) {
    const depth_plan *plan = axis->plan;
    if (value >= plan->values ||
        (plan->value[value].kind != VALUE_EMB && plan->value[value].kind != VALUE_OUT))
        return status_fail(st, "depth axis: value %zu is not one that is written", value);
    finish_value(axis, value);
    for (size_t v = value + 1; v < plan->values && plan->value[v].kind != VALUE_OUT; v++) {
        const depth_value *next = &plan->value[v];
        if (next->kind != VALUE_ADD && next->kind != VALUE_SUB)
            continue;
        if (!cpu_depth_holds(axis, (size_t)next->a) || !cpu_depth_holds(axis, (size_t)next->b))
            return status_fail(st, "depth axis: value %zu: operand %d or %d is not there", v,
                               next->a, next->b);
        finish_value(axis, v);
    }
    return DONE;
}

int cpu_depth_sums(depth *axis, size_t site, double *sums, status *st) {
    const depth_plan *plan = axis->plan;
    if (site >= plan->sites || !axis->site[site].read || !axis->wants.sums)
        return status_fail(st, "depth axis: site %zu has no sums: %s", site,
                           axis->wants.sums ? "not read in this batch" : "none were wanted");
    const depth_site *planned = &plan->site[site];
    const site_state *state = &axis->site[site];
    const size_t sources = (size_t)planned->sources;
    const routing_layout layout =
        routing_layout_of(plan->heads, sources, planned->null_source, axis->wants.pairs);
    for (size_t b = 0; b < axis->layout.sequences; b++) {
        double *to = sums + b * layout.total;
        memcpy(to, state->sums + b * state->sums_length, state->sums_length * sizeof(double));
        if (!axis->wants.pairs)
            continue;
        for (size_t i = 0; i < sources; i++)
            for (size_t j = 0; j < sources; j++) {
                const size_t pair = pair_index(axis->value[planned->source[i]].index,
                                               axis->value[planned->source[j]].index);
                to[layout.source_cos + i * sources + j] =
                    axis->pair_sum[pair * axis->max_sequences + b];
            }
    }
    return DONE;
}
