/* depth_alternative.c - the routing of a site under other folded queries: sums, no mixes. */
#include "kernels/cpu/depth_logits.h"

#include <omp.h>
#include <string.h>

/* Room for the tiles' sums; as many queries are at work together as fit, at least one. */
enum { PARTIAL_BYTES = 16 << 20 };

/* Doubles of one query's sums over one tile: the weights' rows, then a variance per head. */
typedef struct alternative {
    const depth *axis;
    const depth_site *planned;
    routing_layout layout;
    size_t rows_length, length;
    bool sums, variance;
} alternative;

/* Population variance over the sources of each head's logits. */
INLINED void add_variances(const float *logit, size_t heads, size_t sources, double *sum) {
    for (size_t h = 0; h < heads; h++, logit += sources) {
        double mean = 0.0, square = 0.0;
        for (size_t s = 0; s < sources; s++)
            mean += (double)logit[s];
        mean /= (double)sources;
        for (size_t s = 0; s < sources; s++)
            square += ((double)logit[s] - mean) * ((double)logit[s] - mean);
        sum[h] += square / (double)sources;
    }
}

/* `folded` [count, width] to partial [count, length]. */
CLONES static void alternative_tile(const alternative *a, const row_tile *tile, const float *folded,
                                    size_t count, float *memory, double *partial) {
    const size_t width = a->axis->plan->width, heads = a->axis->plan->heads;
    const size_t sources = (size_t)a->planned->sources;
    const float **v = (const float **)(void *)memory;
    float *weight = (float *)(void *)(v + sources), *spare = weight + heads * sources;
    memset(partial, 0, count * a->length * sizeof *partial);
    for (size_t r = 0; r < tile->rows; r++) {
        if (tile->position + r < a->axis->wants.skip_first)
            continue;
        depth_rows(a->axis, a->planned, tile->first + r, v);
        for (size_t k = 0; k < count; k++) {
            double *sums = partial + k * a->length;
            depth_logits(a->axis, a->planned, folded + k * width, tile->first + r,
                         k > 0 || r + 1 == tile->rows, v, weight);
            if (a->variance)
                add_variances(weight, heads, sources, sums + a->rows_length);
            if (!a->sums)
                continue;
            depth_softmaxes(weight, heads, sources);
            routing_sums_add_weights(&a->layout, weight, sums, spare);
        }
    }
}

/* Adds the tiles' sums of queries first .. first + count - 1 to their sequences', in order. */
static void add_tiles(const alternative *a, const depth_alternative_args *args, size_t first,
                      size_t count, size_t tiles, const double *partial) {
    const depth *axis = a->axis;
    const size_t sequences = axis->layout.sequences, heads = axis->plan->heads;
    for (size_t t = 0; t < tiles; t++)
        for (size_t k = 0; k < count; k++) {
            const size_t sequence = axis->device->tile[t].sequence;
            const size_t at = (first + k) * sequences + sequence;
            const double *from = partial + (t * count + k) * a->length;
            if (args->sequence && !args->sequence[sequence])
                continue;
            for (size_t i = 0; a->sums && i < a->rows_length; i++)
                args->sums[at * a->layout.total + i] += from[i];
            for (size_t h = 0; a->variance && h < heads; h++)
                args->variance[at * heads + h] += from[a->rows_length + h];
        }
}

static int check_alternative(const depth *axis, const depth_alternative_args *args, status *st) {
    const depth_plan *plan = axis->plan;
    if (args->site >= plan->sites || plan->site[args->site].sources == 0)
        return status_fail(st, "depth axis: site %zu of %zu has no sources to weigh", args->site,
                           plan->sites);
    const depth_site *planned = &plan->site[args->site];
    for (int i = 0; i < planned->sources; i++)
        if (!cpu_depth_holds(axis, (size_t)planned->source[i]))
            return status_fail(st,
                               "depth axis: site %zu: source value %d is not made yet, or its slot "
                               "is used again",
                               args->site, planned->source[i]);
    return cpu_holds(args->folded, args->count, plan->width, "depth: folded queries", st);
}

int cpu_depth_alternative(depth *axis, const depth_alternative_args *args, status *st) {
    if (check_alternative(axis, args, st))
        return FAILED;
    const depth_plan *plan = axis->plan;
    const depth_site *planned = &plan->site[args->site];
    const size_t heads = plan->heads, sources = (size_t)planned->sources;
    const size_t outputs = args->count * axis->layout.sequences;
    alternative a = {
        .axis = axis,
        .planned = planned,
        .layout = routing_layout_of(heads, sources, planned->null_source, args->pairs),
        .sums = args->sums,
        .variance = args->variance,
    };
    a.rows_length = !a.sums ? 0 : args->pairs ? a.layout.source_cos : a.layout.contribution;
    a.length = a.rows_length + (a.variance ? heads : 0);
    if (a.sums)
        memset(args->sums, 0, outputs * a.layout.total * sizeof(double));
    if (a.variance)
        memset(args->variance, 0, outputs * heads * sizeof(double));
    if (a.length == 0)
        return DONE;
    size_t tiles, stride;
    float *scratch;
    const size_t pointer = sizeof(const float *) / sizeof(float);
    if (cpu_tiles(axis->device, &axis->layout, DEPTH_TILE, &tiles, st) ||
        cpu_scratch(axis->device, sources * (pointer + 3 * heads), &scratch, &stride, st))
        return FAILED;
    size_t together = PARTIAL_BYTES / ((tiles + 1) * a.length * sizeof(double));
    together = together < 1 ? 1 : together > args->count ? args->count : together;
    double *partial = cpu_depth_partial(axis, tiles * together * a.length * sizeof *partial, st);
    if (!partial)
        return FAILED;
    for (size_t first = 0; first < args->count; first += together) {
        const size_t count = args->count - first < together ? args->count - first : together;
        const float *folded = floats(args->folded) + first * plan->width;
#pragma omp parallel for num_threads(axis->device->threads) schedule(dynamic)
        for (size_t t = 0; t < tiles; t++) {
            const row_tile *tile = &axis->device->tile[t];
            if (!args->sequence || args->sequence[tile->sequence])
                alternative_tile(&a, tile, folded, count,
                                 scratch + (size_t)omp_get_thread_num() * stride,
                                 partial + t * count * a.length);
        }
        add_tiles(&a, args, first, count, tiles, partial);
    }
    return DONE;
}
