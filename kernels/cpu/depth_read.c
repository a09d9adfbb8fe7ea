/* depth_read.c - reading one site: in = base + gate * mix(sources), and the sums beside it.
 *
 * One pass per token while its S source rows are in the cache: logits (a dot product per slice,
 * times the cached 1/rms), one softmax per head, the mix, then what the statistics need.
 */
#include "kernels/cpu/depth_logits.h"
#include "kernels/depth_edit.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

/* A site being read. */
typedef struct reading {
    const depth *axis;
    const depth_site *planned;
    const site_state *site;
    size_t width, heads, slice, sources;
    float scalar_gate;
    float *in;      /* [rows, width] */
    float *weights; /* [rows, heads, sources] or NULL */
    routing_layout layout;
    size_t sums_length; /* doubles of the layout that are summed here */
    size_t new_pairs;
} reading;

/* One thread's scratch. */
typedef struct workspace {
    const float **v;    /* [sources] rows of one token */
    const float **mean; /* [sources] the same with mean vectors in place of some */
    float *weight;      /* [heads, sources] of one token */
    float *spare;       /* [2, heads, sources] */
    float *norm;        /* [sources, heads] */
    float *product;     /* [sources, heads] <v_s, mix> of a slice */
    float *mix_square;  /* [heads] */
    float *rms;         /* [sources] */
    float *gate;        /* [DEPTH_TILE, width] for a vector gate */
} workspace;

/* In floats. */
static size_t workspace_size(const reading *site) {
    const bool vector = site->planned->gate == GATE_SIGMOID_VECTOR;
    const size_t pointer = sizeof(const float *) / sizeof(uint32_t);
    return site->sources * (2 * pointer + 5 * site->heads + 1) + site->heads +
           (vector ? DEPTH_TILE * site->width : 0);
}

static workspace workspace_of(const reading *site, float *memory) {
    const size_t cells = site->heads * site->sources;
    workspace work = {.v = (const float **)(void *)memory};
    work.mean = work.v + site->sources;
    work.weight = (float *)(void *)(work.mean + site->sources);
    work.spare = work.weight + cells;
    work.norm = work.spare + 2 * cells;
    work.product = work.norm + cells;
    work.mix_square = work.product + cells;
    work.rms = work.mix_square + site->heads;
    work.gate = work.rms + site->sources;
    return work;
}

/* mix slice h = sum_s a[h,s] v_s slice h of heads first .. last - 1, the sources in order; channels
 * in pairs of lanes. */
INLINED void token_mix(const reading *site, const float *const *v, const float *weight,
                       size_t first, size_t last, float *mix) {
    const size_t slice = site->slice, sources = site->sources;
    for (size_t h = first; h < last; h++) {
        const float *a = weight + h * sources;
        const size_t end = (h + 1) * slice;
        size_t i = h * slice;
        for (; i + 2 * LANES <= end; i += 2 * LANES) {
            lanes low, high, x;
            lanes_load(&x, v[0] + i);
            low = a[0] * x;
            lanes_load(&x, v[0] + i + LANES);
            high = a[0] * x;
            for (size_t s = 1; s < sources; s++) {
                lanes_load(&x, v[s] + i);
                low += a[s] * x;
                lanes_load(&x, v[s] + i + LANES);
                high += a[s] * x;
            }
            memcpy(mix + i, &low, sizeof low);
            memcpy(mix + i + LANES, &high, sizeof high);
        }
        for (; i < end; i++) {
            mix[i] = a[0] * v[0][i];
            for (size_t s = 1; s < sources; s++)
                mix[i] += a[s] * v[s][i];
        }
    }
}

INLINED void token_sums(const reading *site, size_t row, const float *mix, const workspace *work,
                        double *sums) {
    const size_t heads = site->heads, slice = site->slice;
    routing_sums_add_weights(&site->layout, work->weight, sums, work->spare);
    for (size_t h = 0; h < heads; h++)
        work->mix_square[h] = dot(mix + h * slice, mix + h * slice, slice);
    for (size_t s = 0; s < site->sources; s++) {
        const value_state *source = depth_source(site->axis, site->planned, s);
        work->rms[s] = source->rms[row * source->step];
        for (size_t h = 0; h < heads; h++) {
            work->norm[s * heads + h] = source->norm[row * source->step * heads + h];
            work->product[s * heads + h] = dot(work->v[s] + h * slice, mix + h * slice, slice);
        }
    }
    routing_sums_add_geometry(&site->layout, work->weight, work->norm, work->product,
                              work->mix_square, work->rms, sums);
}

/* Cosines over the full width of the pairs that no earlier site of this batch has summed. */
INLINED void token_pairs(const reading *site, size_t row, const float *const *v, double *sums) {
    for (size_t p = 0; p < site->new_pairs; p++) {
        const size_t *pair = site->axis->new_pair + 2 * p;
        const value_state *a = depth_source(site->axis, site->planned, pair[0]),
                          *b = depth_source(site->axis, site->planned, pair[1]);
        const double lengths = (double)a->rms[row * a->step] * (double)b->rms[row * b->step];
        if (a == b)
            sums[p] += lengths / lengths;
        else
            sums[p] +=
                (double)dot(v[pair[0]], v[pair[1]], site->width) / (lengths * (double)site->width);
    }
}

/* mix in `in` becomes base + gate * (mix or mix - base); `gate` [width]. */
INLINED void apply_base(float *in, const float *base, const float *gate, bool interpolates,
                        size_t width) {
    if (interpolates)
#pragma omp simd
        for (size_t i = 0; i < width; i++)
            in[i] = base[i] + gate[i] * (in[i] - base[i]);
    else
#pragma omp simd
        for (size_t i = 0; i < width; i++)
            in[i] = base[i] + gate[i] * in[i];
}

INLINED void apply_base_scalar(float *in, const float *base, float gate, bool interpolates,
                               size_t width) {
    if (interpolates)
#pragma omp simd
        for (size_t i = 0; i < width; i++)
            in[i] = base[i] + gate * (in[i] - base[i]);
    else
#pragma omp simd
        for (size_t i = 0; i < width; i++)
            in[i] = base[i] + gate * in[i];
}

/* sigmoid(W base + b) of a tile; of one row where the base is the same for every token. */
INLINED void vector_gate(const reading *site, const row_tile *tile, float *gate) {
    const size_t width = site->width;
    const value_state *base = &site->axis->value[site->planned->base];
    const float *bias = floats(site->site->weights.gate_bias);
    const size_t rows = base->stride ? tile->rows : 1;
    sgemm(true, rows, width, width, 1.0f, base->row + tile->first * base->stride, width,
          floats(site->site->weights.gate), width, 0.0f, gate, width);
    for (size_t r = 0; r < rows; r++) {
        float *row = gate + r * width;
        if (bias)
#pragma omp simd
            for (size_t i = 0; i < width; i++)
                row[i] += bias[i];
#pragma omp simd
        for (size_t i = 0; i < width; i++)
            row[i] = 1.0f / (1.0f + exp_fast(0.0f - row[i]));
    }
}

/* The weights and the mix of one token whose site carries an edit; logits are in work->weight. */
INLINED void edited_token(const reading *site, size_t row, const workspace *work, float *mix) {
    const depth_edit *edit = site->planned->edit;
    const size_t heads = site->heads, sources = site->sources;
    depth_edit_logits(edit, heads, sources, work->weight);
    depth_softmaxes(work->weight, heads, sources);
    const float *given = edit->given ? floats(edit->given) + row * heads * sources : NULL;
    depth_edit_weights(edit, heads, sources, given, work->weight, work->spare);
    if (edit->kind != EDIT_MEAN_VALUE) {
        token_mix(site, work->v, work->weight, 0, heads, mix);
        return;
    }
    depth_edit_values(edit, sources, site->width, work->v, work->mean);
    for (size_t h = 0; h < heads; h++)
        token_mix(site, depth_edit_of_head(edit, h) ? work->mean : work->v, work->weight, h, h + 1,
                  mix);
}

/* Weights and mix of one token, for the backward pass. */
static void keep_token(const reading *site, size_t row, const float *weight, const float *mix) {
    const site_back *back = site->site->back;
    const size_t cells = site->heads * site->sources;
    memcpy(back->weight + row * cells, weight, cells * sizeof *weight);
    if (back->mix)
        memcpy(floats(back->mix) + row * site->width, mix, site->width * sizeof *mix);
}

CLONES static void read_tile(const reading *site, const row_tile *tile, float *memory,
                             double *partial) {
    const workspace work = workspace_of(site, memory);
    const size_t width = site->width, cells = site->heads * site->sources;
    const value_state *base =
        site->planned->base == NO_VALUE ? NULL : &site->axis->value[site->planned->base];
    const bool vector = base && site->planned->gate == GATE_SIGMOID_VECTOR;
    /* An interpolation without a gate is the mix itself. */
    const bool mix_only =
        !base || (site->planned->interpolates && site->planned->gate == GATE_NONE);
    const site_back *back = site->site->back;
    float *gate = back && back->gate ? floats(back->gate) + tile->first * width : work.gate;
    if (vector)
        vector_gate(site, tile, gate);
    for (size_t r = 1; vector && back && base->stride == 0 && r < tile->rows; r++)
        memcpy(gate + r * width, gate, width * sizeof *gate);
    if (partial)
        memset(partial, 0, (site->sums_length + site->new_pairs) * sizeof *partial);
    for (size_t r = 0; r < tile->rows; r++) {
        const size_t row = tile->first + r;
        float *in = site->in + row * width;
        depth_rows(site->axis, site->planned, row, work.v);
        depth_logits(site->axis, site->planned, site->site->folded, row, r + 1 == tile->rows,
                     work.v, work.weight);
        if (site->planned->edit) {
            edited_token(site, row, &work, in);
        } else {
            depth_softmaxes(work.weight, site->heads, site->sources);
            token_mix(site, work.v, work.weight, 0, site->heads, in);
        }
        if (site->weights)
            memcpy(site->weights + row * cells, work.weight, cells * sizeof(float));
        if (back)
            keep_token(site, row, work.weight, in);
        if (partial && tile->position + r >= site->axis->wants.skip_first) {
            token_sums(site, row, in, &work, partial);
            token_pairs(site, row, work.v, partial + site->sums_length);
        }
        if (mix_only)
            continue;
        const float *from = base->row + row * base->stride;
        if (vector)
            apply_base(in, from, gate + r * base->stride, site->planned->interpolates, width);
        else
            apply_base_scalar(in, from, site->scalar_gate, site->planned->interpolates, width);
    }
}

/* Lists the pairs of this site's sources that are still unknown, and marks them known. */
static size_t find_new_pairs(depth *axis, const depth_site *planned) {
    size_t count = 0;
    for (size_t i = 0; i < (size_t)planned->sources; i++)
        for (size_t j = 0; j <= i; j++) {
            const size_t pair = pair_index(axis->value[planned->source[i]].index,
                                           axis->value[planned->source[j]].index);
            if (axis->pair_known[pair])
                continue;
            axis->pair_known[pair] = true;
            axis->new_pair[2 * count] = i;
            axis->new_pair[2 * count + 1] = j;
            count++;
        }
    return count;
}

/* Adds the tiles' sums to their sequences', in order. */
static void add_partials(depth *axis, const reading *site, const double *partial, double *sums,
                         size_t tiles) {
    const size_t length = site->sums_length, stride = length + site->new_pairs;
    const depth_site *planned = site->planned;
    memset(sums, 0, axis->layout.sequences * length * sizeof *sums);
    for (size_t p = 0; p < site->new_pairs; p++) {
        const size_t *pair = axis->new_pair + 2 * p;
        const size_t index = pair_index(axis->value[planned->source[pair[0]]].index,
                                        axis->value[planned->source[pair[1]]].index);
        double *sum = axis->pair_sum + index * axis->max_sequences;
        memset(sum, 0, axis->layout.sequences * sizeof *sum);
        for (size_t t = 0; t < tiles; t++)
            sum[axis->device->tile[t].sequence] += partial[t * stride + length + p];
    }
    for (size_t t = 0; t < tiles; t++) {
        double *to = sums + axis->device->tile[t].sequence * length;
        for (size_t i = 0; i < length; i++)
            to[i] += partial[t * stride + i];
    }
}

/* A site without sources passes its base on; of its sums only the tokens are defined. */
static void read_base(depth *axis, const depth_site *planned, site_state *site, float *in) {
    const value_state *base = &axis->value[planned->base];
    const size_t width = axis->plan->width;
#pragma omp parallel for num_threads(axis->device->threads) schedule(static)
    for (size_t r = 0; r < axis->layout.rows; r++)
        memcpy(in + r * width, base->row + r * base->stride, width * sizeof *in);
    if (!axis->wants.sums)
        return;
    for (size_t b = 0; b < axis->layout.sequences; b++) {
        const size_t tokens = axis->start[b + 1] - axis->start[b], skip = axis->wants.skip_first;
        double *sums = site->sums + b * site->sums_length;
        for (size_t i = 0; i < site->sums_length; i++)
            sums[i] = NAN;
        sums[routing_layout_of(axis->plan->heads, 0, false, false).tokens] =
            tokens > skip ? (double)(tokens - skip) : 0.0;
    }
}

float cpu_depth_gate(const depth_site *planned, const site_weights *weights) {
    if (planned->gate == GATE_ALPHA)
        return *floats(weights->gate);
    if (planned->gate == GATE_SIGMOID_SCALAR)
        return (float)(1.0 / (1.0 + exp(-(double)*floats(weights->gate))));
    return 1.0f;
}

static int check_edit(const depth_plan *plan, size_t site, size_t rows, status *st) {
    const depth_site *planned = &plan->site[site];
    const depth_edit *edit = planned->edit;
    const size_t sources = (size_t)planned->sources;
    if ((int)edit->kind < 0 || edit->kind > EDIT_MEAN_VALUE)
        return status_fail(st, "depth plan: site %zu: edit of unknown kind %d", site,
                           (int)edit->kind);
    for (size_t i = 0; i < edit->sources; i++)
        if (edit->source[i] < 0 || (size_t)edit->source[i] >= sources)
            return status_fail(st, "depth plan: site %zu: edit of source %d of %zu", site,
                               edit->source[i], sources);
    if (edit->kind == EDIT_SWAP && edit->sources != 2)
        return status_fail(st, "depth plan: site %zu: a swap of %zu sources, expected 2", site,
                           edit->sources);
    if ((edit->kind == EDIT_TOKEN_MEAN && !edit->weights) ||
        (edit->kind == EDIT_MEAN_VALUE && !edit->mean))
        return status_fail(st, "depth plan: site %zu: an edit without its means", site);
    if (edit->kind == EDIT_GIVEN || edit->given)
        return cpu_holds(edit->given, rows, plan->heads * sources, "depth: given weights", st);
    return DONE;
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
        if (value != NO_VALUE && !cpu_depth_holds(axis, (size_t)value))
            return status_fail(
                st,
                "depth axis: site %zu reads value %d, which is not made yet or whose "
                "slot is used again",
                args->site, value);
    }
    if (cpu_dimension(plan->width, "depth: width", st) ||
        cpu_holds(args->in, axis->layout.rows, plan->width, "depth: in", st) ||
        (args->weights && cpu_holds(args->weights, axis->layout.rows,
                                    plan->heads * (size_t)planned->sources, "depth: weights", st)))
        return FAILED;
    return planned->edit ? check_edit(plan, args->site, axis->layout.rows, st) : DONE;
}

int cpu_depth_read(depth *axis, const depth_read_args *args, status *st) {
    if (check_read(axis, args, st))
        return FAILED;
    const depth_plan *plan = axis->plan;
    const depth_site *planned = &plan->site[args->site];
    site_state *state = &axis->site[args->site];
    state->read = true;
    if (state->back)
        state->back->in = args->in;
    if (planned->sources == 0) {
        read_base(axis, planned, state, floats(args->in));
        return DONE;
    }
    reading site = {
        .axis = axis,
        .planned = planned,
        .site = state,
        .width = plan->width,
        .heads = plan->heads,
        .slice = plan->width / plan->heads,
        .sources = (size_t)planned->sources,
        .scalar_gate = planned->base == NO_VALUE ? 1.0f : cpu_depth_gate(planned, &state->weights),
        .in = floats(args->in),
        .weights = floats(args->weights),
        .layout = routing_layout_of(plan->heads, (size_t)planned->sources, planned->null_source,
                                    axis->wants.pairs),
        .sums_length = state->sums_length,
    };
    size_t tiles, stride, partial_stride = 0;
    double *partial = NULL;
    float *scratch;
    if (cpu_tiles(axis->device, &axis->layout, DEPTH_TILE, &tiles, st) ||
        cpu_scratch(axis->device, workspace_size(&site), &scratch, &stride, st))
        return FAILED;
    if (axis->wants.sums) {
        site.new_pairs = axis->wants.pairs ? find_new_pairs(axis, planned) : 0;
        partial_stride = site.sums_length + site.new_pairs;
        partial = cpu_depth_partial(axis, tiles * partial_stride * sizeof *partial, st);
        if (!partial)
            return FAILED;
    }
#pragma omp parallel for num_threads(axis->device->threads) schedule(dynamic)
    for (size_t t = 0; t < tiles; t++)
        read_tile(&site, &axis->device->tile[t], scratch + (size_t)omp_get_thread_num() * stride,
                  partial ? partial + t * partial_stride : NULL);
    if (partial)
        add_partials(axis, &site, partial, state->sums, tiles);
    return DONE;
}
