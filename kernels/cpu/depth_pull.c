/* depth_pull.c - the gradient of a value, written once from all its later readers.
 *
 * With a the weights, d_mix the gradient of a reader's mix, u = gain * query and r = 1 / rms(v),
 * per head's slice: dl = a (<v, d_mix> - <d_mix, mix>) y  = sum over readers of dl u dv = sum over
 * readers of a d_mix  +  r y  -  (<y, v> r^3 / width) v The last term is the RMSNorm's, over the
 * full width: dl times the logit, summed over readers and heads, is r <y, v>, so that logits need
 * not be kept. A reader's du = sum over tokens and sources of dl r v; the dl r of a tile and the
 * tile's rows of v are one matrix product per head.
 */
#include "kernels/cpu/depth.h"
#include "kernels/cpu/vector.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { PULL_TILE = 64 };

/* ---- who uses a value ---- */

/* A site with several sources, of which the value is one. */
typedef struct reader {
    size_t site, position, sources;
    const float *d_mix;   /* [rows, width] */
    const float *weight;  /* [rows, heads, sources] */
    const float *product; /* [rows, heads] <d_mix, mix> */
    const float *folded;  /* [width] */
} reader;

/* A gradient that reaches the value as it is, or with the other sign. */
typedef struct term {
    const buffer *from; /* [rows, width] */
    bool minus;
} term;

struct depth_uses {
    value_uses of;
    reader *reader; /* of the value being pulled; room for every use */
    term *term;     /* likewise, three of a use */
};

int cpu_depth_uses_create(depth *axis, status *st) {
    depth_uses *uses = axis->uses = mem_array(1, sizeof *uses, "uses of depth values", st);
    if (!uses || value_uses_init(&uses->of, axis->plan, st))
        return FAILED;
    const size_t total = uses->of.total;
    uses->reader = mem_array(total, sizeof *uses->reader, "uses of depth values", st);
    uses->term = mem_array(total, 3 * sizeof *uses->term, "uses of depth values", st);
    return uses->reader && uses->term ? DONE : FAILED;
}

void cpu_depth_uses_free(depth_uses *uses) {
    if (!uses)
        return;
    value_uses_clear(&uses->of);
    free(uses->reader);
    free(uses->term);
    free(uses);
}

/* ---- one value ---- */

/* A value being pulled. */
typedef struct pulling {
    const depth *axis;
    const value_state *value;
    size_t width, heads, slice;
    size_t readers, terms;
    const reader *reader;
    const term *term;
    size_t
        part_floats; /* of a tile: [readers, width] of du, then [width] of a null's own gradient */
    bool same;       /* for every token (a null source): its gradient is summed */
} pulling;

/* One thread's scratch. */
typedef struct workspace {
    float *gradient; /* [PULL_TILE, width] */
    float *y;        /* [width] */
    float *edge;     /* [heads, readers, PULL_TILE] dl r */
} workspace;

static size_t workspace_size(const pulling *p) {
    return (PULL_TILE + 1) * p->width + p->heads * p->readers * PULL_TILE;
}

static workspace workspace_of(const pulling *p, float *memory) {
    workspace work = {.gradient = memory};
    work.y = work.gradient + PULL_TILE * p->width;
    work.edge = work.y + p->width;
    return work;
}

INLINED void add_terms(const pulling *p, size_t row, float *to) {
    memset(to, 0, p->width * sizeof *to);
    for (size_t t = 0; t < p->terms; t++) {
        const float *from = floats(p->term[t].from) + row * p->width;
        if (p->term[t].minus)
#pragma omp simd
            for (size_t i = 0; i < p->width; i++)
                to[i] -= from[i];
        else
#pragma omp simd
            for (size_t i = 0; i < p->width; i++)
                to[i] += from[i];
    }
}

/* Row `row` of the batch, the tile's r-th. */
INLINED void pull_row(const pulling *p, size_t row, size_t r, const workspace *work) {
    const size_t width = p->width, heads = p->heads, slice = p->slice;
    const value_state *value = p->value;
    float *to = work->gradient + r * width, *y = work->y;
    add_terms(p, row, to);
    if (p->readers == 0)
        return;
    const float *v = value->row + row * value->stride;
    const float scale = value->inverse_rms[row * value->step];
    memset(y, 0, width * sizeof *y);
    for (size_t k = 0; k < p->readers; k++) {
        const reader *by = &p->reader[k];
        for (size_t h = 0; h < heads; h++) {
            const float *d = by->d_mix + row * width + h * slice, *u = by->folded + h * slice;
            const float a = by->weight[(row * heads + h) * by->sources + by->position];
            const float dl = a * (dot(v + h * slice, d, slice) - by->product[row * heads + h]);
            float *to_h = to + h * slice, *y_h = y + h * slice;
            work->edge[(h * p->readers + k) * PULL_TILE + r] = dl * scale;
#pragma omp simd
            for (size_t i = 0; i < slice; i++) {
                to_h[i] += a * d[i];
                y_h[i] += dl * u[i];
            }
        }
    }
    const float back = dot(y, v, width) * scale * scale * scale / (float)width;
#pragma omp simd
    for (size_t i = 0; i < width; i++)
        to[i] += scale * y[i] - back * v[i];
}

/* The tile's part of every reader's du, [readers, width]. */
INLINED void pull_queries(const pulling *p, const row_tile *tile, const workspace *work,
                          float *part) {
    const size_t width = p->width, slice = p->slice;
    const float *v = p->value->row + tile->first * p->value->stride;
    for (size_t h = 0; h < p->heads; h++) {
        const float *edge = work->edge + h * p->readers * PULL_TILE;
        if (!p->same) {
            sgemm(false, p->readers, slice, tile->rows, 1.0f, edge, PULL_TILE, v + h * slice, width,
                  0.0f, part + h * slice, width);
            continue;
        }
        for (size_t k = 0; k < p->readers; k++) {
            float sum = 0.0f;
            for (size_t r = 0; r < tile->rows; r++)
                sum += edge[k * PULL_TILE + r];
            for (size_t i = h * slice; i < (h + 1) * slice; i++)
                part[k * width + i] = sum * v[i];
        }
    }
}

/* `part`: p->part_floats. */
CLONES static void pull_tile(const pulling *p, const row_tile *tile, float *memory, float *part) {
    const workspace work = workspace_of(p, memory);
    for (size_t r = 0; r < tile->rows; r++)
        pull_row(p, tile->first + r, r, &work);
    if (p->readers)
        pull_queries(p, tile, &work, part);
    if (p->same) {
        float *sum = part + p->readers * p->width;
        memset(sum, 0, p->width * sizeof *sum);
        add_rows(sum, work.gradient, tile->rows, p->width, p->width);
    } else { /* last, for it may be the value's own memory */
        memcpy(floats(p->value->gradient) + tile->first * p->width, work.gradient,
               tile->rows * p->width * sizeof(float));
    }
}

/* Adds the tiles' parts to the sums of their sequences, in order. */
static void add_parts(depth *axis, const pulling *p, const float *part, size_t tiles) {
    const size_t width = p->width;
    for (size_t t = 0; t < tiles; t++) {
        const float *from = part + t * p->part_floats;
        const size_t at = axis->device->tile[t].sequence * width;
        for (size_t k = 0; k < p->readers; k++) {
            double *to = axis->site[p->reader[k].site].back->d_folded + at;
            for (size_t i = 0; i < width; i++)
                to[i] += (double)from[k * width + i];
        }
        for (size_t i = 0; p->same && i < width; i++)
            p->value->d_null[at + i] += (double)from[p->readers * width + i];
    }
}

/* What reaches a value: fills the object's readers and terms. */
static int find_readers(depth *axis, size_t v, pulling *p, status *st) {
    depth_uses *uses = axis->uses;
    for (size_t i = uses->of.first[v]; i < uses->of.first[v + 1]; i++) {
        const value_use *use = &uses->of.use[i];
        if (use->kind == USE_ADDED || use->kind == USE_SUBTRACTED) {
            const buffer *from = axis->value[use->by].d_value;
            uses->term[p->terms++] = (term){from, use->kind == USE_SUBTRACTED};
            continue;
        }
        const depth_site *planned = &axis->plan->site[use->by];
        const site_state *site = &axis->site[use->by];
        const site_back *back = site->back;
        const size_t sources = (size_t)planned->sources;
        if (!back->d_in)
            return status_fail(st, "depth axis: value %zu is pulled before site %zu is given", v,
                               use->by);
        const buffer *d_mix = cpu_depth_gated(planned) ? back->mix : back->d_in;
        if (use->kind == USE_BASE) {
            uses->term[p->terms++] = (term){back->d_in, false};
            if (planned->interpolates && sources)
                uses->term[p->terms++] = (term){d_mix, true};
            if (back->d_gated)
                uses->term[p->terms++] = (term){back->d_gated, false};
        } else if (sources == 1) { /* its weight is 1, whatever the query */
            uses->term[p->terms++] = (term){d_mix, false};
        } else {
            uses->reader[p->readers++] = (reader){.site = use->by,
                                                  .position = use->position,
                                                  .sources = sources,
                                                  .d_mix = floats(d_mix),
                                                  .weight = back->weight,
                                                  .product = back->product,
                                                  .folded = site->folded};
        }
    }
    return DONE;
}

static int pull_value(depth *axis, size_t v, status *st) {
    value_state *value = &axis->value[v];
    pulling p = {
        .axis = axis,
        .value = value,
        .width = axis->plan->width,
        .heads = axis->plan->heads,
        .slice = axis->plan->width / axis->plan->heads,
        .reader = axis->uses->reader,
        .term = axis->uses->term,
        .same = axis->plan->value[v].kind == VALUE_NULL,
    };
    if (find_readers(axis, v, &p, st))
        return FAILED;
    if (!p.same && p.readers == 0 && p.terms == 1 && !p.term[0].minus) {
        value->d_value = p.term[0].from;
        value->pulled = true;
        return DONE;
    }
    p.part_floats = (p.readers + p.same) * p.width;
    size_t tiles, stride;
    float *scratch, *part;
    if (cpu_tiles(axis->device, &axis->layout, PULL_TILE, &tiles, st) ||
        cpu_scratch(axis->device, workspace_size(&p), &scratch, &stride, st) ||
        !(part = cpu_depth_partial(axis, tiles * p.part_floats * sizeof *part, st)))
        return FAILED;
#pragma omp parallel for num_threads(axis->device->threads) schedule(dynamic)
    for (size_t t = 0; t < tiles; t++)
        pull_tile(&p, &axis->device->tile[t], scratch + (size_t)omp_get_thread_num() * stride,
                  part + t * p.part_floats);
    add_parts(axis, &p, part, tiles);
    value->d_value = value->gradient;
    value->pulled = true;
    return DONE;
}

int cpu_depth_pull(depth *axis, size_t value, const buffer **d_value, status *st) {
    const depth_plan *plan = axis->plan;
    if (!axis->backward || value >= plan->values || cpu_depth_slot(axis, value) < 0)
        return status_fail(st, "depth axis: value %zu has no gradient: %s", value,
                           axis->backward ? "it is a null or zero source, or none of the plan's"
                                          : "made without backward");
    /* Later values first: sums and differences pass on what reached them. */
    for (size_t v = plan->values; v-- > value;)
        if (!axis->value[v].pulled && cpu_depth_slot(axis, v) >= 0 && pull_value(axis, v, st))
            return FAILED;
    for (size_t v = 0; plan->value[value].kind == VALUE_EMB && v < plan->values; v++)
        if (plan->value[v].kind == VALUE_NULL && !axis->value[v].pulled && pull_value(axis, v, st))
            return FAILED;
    *d_value = axis->value[value].d_value;
    return DONE;
}
