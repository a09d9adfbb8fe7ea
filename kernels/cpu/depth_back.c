/* depth_back.c - the depth axis backward: what sites keep, what they are given, and the gradients
 * of their learned tensors. depth_pull.c makes the gradients of values.
 *
 * Giving a site its gradient does what concerns the site alone: through the gate to the mix, and
 * <d_mix, mix> of each head's slice, which the softmax's backward needs for every source.
 */
#include "kernels/cpu/depth.h"
#include "kernels/cpu/vector.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

static bool is_vector(const depth_site *planned) {
    return cpu_depth_gated(planned) && planned->gate == GATE_SIGMOID_VECTOR;
}

static int keep_site(depth *axis, size_t s, status *st) {
    const depth_site *planned = &axis->plan->site[s];
    const size_t width = axis->plan->width, heads = axis->plan->heads, rows = axis->max_rows;
    const size_t elements = rows * width;
    site_back *back = axis->site[s].back = mem_array(1, sizeof *back, "depth sites", st);
    if (!back)
        return FAILED;
    if (planned->sources == 0)
        return DONE;
    back->weight = mem_array(rows, heads * (size_t)planned->sources * sizeof(float), "weights", st);
    back->product = mem_array(rows, heads * sizeof(float), "depth gradients", st);
    back->d_folded = mem_array(axis->max_sequences, width * sizeof(double), "gradients", st);
    back->d_gate = mem_array(axis->max_sequences, sizeof(double), "gradients", st);
    if (!back->weight || !back->product || !back->d_folded || !back->d_gate)
        return FAILED;
    const kernels *k = &kernels_cpu;
    if ((planned->base != NO_VALUE &&
         k->buffer_create(axis->device, BUFFER_REAL, elements, &back->mix, st)) ||
        (is_vector(planned) &&
         (k->buffer_create(axis->device, BUFFER_REAL, elements, &back->gate, st) ||
          k->buffer_create(axis->device, BUFFER_REAL, elements, &back->d_gated, st))))
        return FAILED;
    return DONE;
}

int cpu_depth_back_create(depth *axis, status *st) {
    for (size_t s = 0; s < axis->plan->sites; s++)
        if (keep_site(axis, s, st))
            return FAILED;
    for (size_t v = 0; v < axis->plan->values; v++) {
        value_state *value = &axis->value[v];
        value->gradient = cpu_depth_storage(axis, v);
        if (axis->plan->value[v].kind == VALUE_NULL &&
            !(value->d_null = mem_array(axis->max_sequences, axis->plan->width * sizeof(double),
                                        "gradients", st)))
            return FAILED;
    }
    /* The gradient of a vector gate's matrix reads the base, which must not be written over. */
    for (size_t s = 0; s < axis->plan->sites; s++) {
        const depth_site *planned = &axis->plan->site[s];
        value_state *base = is_vector(planned) ? &axis->value[planned->base] : NULL;
        if (base && base->gradient &&
            base->gradient == cpu_depth_storage(axis, (size_t)planned->base) &&
            kernels_cpu.buffer_create(axis->device, BUFFER_REAL, axis->max_rows * axis->plan->width,
                                      &base->gradient, st))
            return FAILED;
    }
    return cpu_depth_uses_create(axis, st);
}

void cpu_depth_back_free(depth *axis) {
    if (!axis->backward)
        return;
    const kernels *k = &kernels_cpu;
    for (size_t v = 0; axis->value && axis->slot && v < axis->plan->values; v++) {
        if (axis->value[v].gradient != cpu_depth_storage(axis, v))
            k->buffer_free(axis->device, axis->value[v].gradient);
        free(axis->value[v].d_null);
    }
    for (size_t s = 0; axis->site && s < axis->plan->sites; s++) {
        site_back *back = axis->site[s].back;
        if (!back)
            continue;
        k->buffer_free(axis->device, back->mix);
        k->buffer_free(axis->device, back->gate);
        k->buffer_free(axis->device, back->d_gated);
        free(back->weight);
        free(back->product);
        free(back->d_folded);
        free(back->d_gate);
        free(back);
    }
    cpu_depth_uses_free(axis->uses);
}

void cpu_depth_back_begin(depth *axis) {
    const size_t width = axis->plan->width, sequences = axis->layout.sequences;
    for (size_t v = 0; v < axis->plan->values; v++) {
        axis->value[v].pulled = false;
        if (axis->value[v].d_null)
            memset(axis->value[v].d_null, 0, sequences * width * sizeof(double));
    }
    for (size_t s = 0; s < axis->plan->sites; s++) {
        site_back *back = axis->site[s].back;
        back->d_in = NULL;
        if (axis->plan->site[s].sources == 0)
            continue;
        memset(back->d_folded, 0, sequences * width * sizeof *back->d_folded);
        memset(back->d_gate, 0, sequences * sizeof *back->d_gate);
    }
}

/* ---- giving ---- */

/* A site being given the gradient of what it gave. */
typedef struct giving {
    const depth *axis;
    const depth_site *planned;
    const site_state *site;
    const value_state *base; /* NULL: none */
    const float *d_in, *mix; /* [rows, width] */
    float gate;              /* of a scalar gate */
} giving;

/* The gradient of the gate's channel i is x_i (m_i - b_i) or x_i m_i; these are their sum, and the
 * gradient before the sigmoid of a vector gate, which takes the gate's place. */
INLINED float gate_product(const float *x, const float *m, const float *b, size_t n) {
    float sum = 0.0f;
    if (b)
#pragma omp simd reduction(+ : sum)
        for (size_t i = 0; i < n; i++)
            sum += x[i] * (m[i] - b[i]);
    else
        sum = dot(x, m, n);
    return sum;
}

INLINED void gate_gradient(const float *x, const float *m, const float *b, float *gate, size_t n) {
    if (b)
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            gate[i] = x[i] * (m[i] - b[i]) * (gate[i] * (1.0f - gate[i]));
    else
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            gate[i] = x[i] * m[i] * (gate[i] * (1.0f - gate[i]));
}

/* The gradient of the mix of one row, into d_mix [width]. */
INLINED void through_gate(const giving *g, size_t row, float *d_mix, double *gate_sum) {
    const size_t width = g->axis->plan->width;
    const float *x = g->d_in + row * width, *m = g->mix + row * width;
    const float *b = g->planned->interpolates ? g->base->row + row * g->base->stride : NULL;
    if (is_vector(g->planned)) {
        float *gate = floats(g->site->back->gate) + row * width;
#pragma omp simd
        for (size_t i = 0; i < width; i++)
            d_mix[i] = gate[i] * x[i];
        gate_gradient(x, m, b, gate, width);
    } else {
#pragma omp simd
        for (size_t i = 0; i < width; i++)
            d_mix[i] = g->gate * x[i];
        *gate_sum += (double)gate_product(x, m, b, width);
    }
}

CLONES static void give_tile(const giving *g, const row_tile *tile, float *d_mix,
                             double *gate_sum) {
    const size_t width = g->axis->plan->width, heads = g->axis->plan->heads, slice = width / heads;
    const site_back *back = g->site->back;
    const bool gated = cpu_depth_gated(g->planned);
    *gate_sum = 0.0;
    for (size_t row = tile->first; row < tile->first + tile->rows; row++) {
        const float *m = g->mix + row * width;
        const float *d = gated ? d_mix : g->d_in + row * width;
        if (gated)
            through_gate(g, row, d_mix, gate_sum);
        for (size_t h = 0; h < heads; h++)
            back->product[row * heads + h] = dot(d + h * slice, m + h * slice, slice);
        if (gated)
            memcpy(floats(back->mix) + row * width, d_mix, width * sizeof *d_mix);
    }
    if (back->gate)
        sgemm(false, tile->rows, width, width, 1.0f, floats(back->gate) + tile->first * width,
              width, floats(g->site->weights.gate), width, 0.0f,
              floats(back->d_gated) + tile->first * width, width);
}

static int check_give(const depth *axis, size_t site, const buffer *d_in, status *st) {
    if (!axis->backward)
        return status_fail(st, "depth axis: made without backward");
    if (site >= axis->plan->sites)
        return status_fail(st, "depth axis: site %zu of %zu", site, axis->plan->sites);
    if (!axis->site[site].read || axis->site[site].back->d_in)
        return status_fail(st, "depth axis: gradient of site %zu, which was %s", site,
                           axis->site[site].read ? "given already" : "not read in this batch");
    return cpu_holds(d_in, axis->layout.rows, axis->plan->width, "depth: d_in", st);
}

int cpu_depth_give(depth *axis, size_t site, const buffer *d_in, status *st) {
    if (check_give(axis, site, d_in, st))
        return FAILED;
    const depth_site *planned = &axis->plan->site[site];
    const site_state *state = &axis->site[site];
    site_back *back = state->back;
    size_t tiles, stride;
    float *scratch;
    if (planned->sources > 1 || cpu_depth_gated(planned)) {
        double *partial;
        if (cpu_tiles(axis->device, &axis->layout, DEPTH_TILE, &tiles, st) ||
            cpu_scratch(axis->device, axis->plan->width, &scratch, &stride, st) ||
            !(partial = cpu_depth_partial(axis, tiles * sizeof *partial, st)))
            return FAILED;
        const giving g = {
            .axis = axis,
            .planned = planned,
            .site = state,
            .base = planned->base == NO_VALUE ? NULL : &axis->value[planned->base],
            .d_in = floats(d_in),
            .mix = floats(back->mix ? back->mix : back->in),
            .gate = cpu_depth_gated(planned) ? cpu_depth_gate(planned, &state->weights) : 1.0f,
        };
#pragma omp parallel for num_threads(axis->device->threads) schedule(dynamic)
        for (size_t t = 0; t < tiles; t++)
            give_tile(&g, &axis->device->tile[t], scratch + (size_t)omp_get_thread_num() * stride,
                      &partial[t]);
        for (size_t t = 0; t < tiles; t++)
            back->d_gate[axis->device->tile[t].sequence] += partial[t];
    }
    back->d_in = d_in;
    return DONE;
}

/* ---- gradients of learned tensors ---- */

/* to [count] += scale * from; `scale` [count] or NULL: 1. */
static void add_vector(buffer *to, const double *from, const buffer *scale, size_t count) {
    float *sum = floats(to);
    for (size_t i = 0; to && i < count; i++)
        sum[i] += (float)(scale ? (double)floats(scale)[i] * from[i] : from[i]);
}

/* One sequence's part of the gradient of a scalar gate's number. */
static void add_scalar_gate(const depth_site *planned, const site_weights *weights, double d_gate,
                            buffer *to) {
    const double gate = (double)cpu_depth_gate(planned, weights);
    const double slope = planned->gate == GATE_SIGMOID_SCALAR ? gate * (1.0 - gate) : 1.0;
    *floats(to) += (float)(d_gate * slope);
}

/* One sequence's column sums [width] of `d` [rows, width]. */
CLONES static void sum_rows(const float *d, size_t rows, size_t width, double *sum) {
    memset(sum, 0, width * sizeof *sum);
    for (size_t r = 0; r < rows; r++)
#pragma omp simd
        for (size_t i = 0; i < width; i++)
            sum[i] += (double)d[r * width + i];
}

/* Gradients of a vector gate's matrix, d^T base, and bias, d summed; `d` before the sigmoid. */
static int add_vector_gate(depth *axis, const value_state *base, const buffer *d_gate,
                           const site_grads *grads, status *st) {
    enum { BLOCK = 64 }; /* rows of the matrix that are one thread's work */
    const size_t width = axis->plan->width, all = grads->gate ? width : 0;
    double *sum = mem_array(width, sizeof *sum, "gate gradients", st);
    float *one = mem_array(width, sizeof *one, "gate gradients", st);
    int rc = sum && one ? DONE : FAILED;
    for (size_t b = 0; !rc && b < axis->layout.sequences; b++) {
        const size_t first = axis->start[b], rows = axis->start[b + 1] - first;
        const float *d = floats(d_gate) + first * width, *from = base->row + first * base->stride;
        sum_rows(d, rows, width, sum);
        add_vector(grads->gate_bias, sum, NULL, width);
        for (size_t i = 0; i < width; i++)
            one[i] = (float)sum[i];
        /* A base that is the same for every token meets the summed gradient. */
        const bool same = base->stride == 0;
#pragma omp parallel for num_threads(axis->device->threads) schedule(static)
        for (size_t at = 0; at < all; at += BLOCK)
            sgemm_across(all - at < BLOCK ? all - at : BLOCK, width, same ? 1 : rows,
                         (same ? one : d) + at, width, from, width, 1.0f,
                         floats(grads->gate) + at * width, width);
    }
    free(sum);
    free(one);
    return rc;
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
    const size_t width = axis->plan->width, side = is_vector(planned) ? width : 1;
    if ((grads->query && cpu_holds(grads->query, 1, width, "depth: grad query", st)) ||
        (grads->gain && cpu_holds(grads->gain, 1, width, "depth: grad gain", st)) ||
        (grads->null_source && cpu_holds(grads->null_source, 1, width, "depth: grad null", st)) ||
        (grads->gate && cpu_holds(grads->gate, side, side, "depth: grad gate", st)) ||
        (grads->gate_bias && cpu_holds(grads->gate_bias, 1, width, "depth: grad gate bias", st)))
        return FAILED;
    return DONE;
}

int cpu_depth_site_grads(depth *axis, size_t site, const site_grads *grads, status *st) {
    if (check_grads(axis, site, grads, st))
        return FAILED;
    const depth_plan *plan = axis->plan;
    const depth_site *planned = &plan->site[site];
    const site_state *state = &axis->site[site];
    const size_t width = plan->width, sequences = axis->layout.sequences;
    for (size_t v = 0; v < plan->values; v++)
        if (plan->value[v].kind == VALUE_NULL && (size_t)plan->value[v].a == site)
            for (size_t b = 0; b < sequences; b++)
                add_vector(grads->null_source, axis->value[v].d_null + b * width, NULL, width);
    if (planned->sources == 0)
        return DONE;
    for (size_t b = 0; b < sequences; b++) {
        const double *d_folded = state->back->d_folded + b * width;
        add_vector(grads->query, d_folded, state->weights.gain, width);
        add_vector(grads->gain, d_folded, state->weights.query, width);
        if (grads->gate && cpu_depth_gated(planned) && !is_vector(planned))
            add_scalar_gate(planned, &state->weights, state->back->d_gate[b], grads->gate);
    }
    if (is_vector(planned))
        return add_vector_gate(axis, &axis->value[planned->base], state->back->gate, grads, st);
    return DONE;
}
