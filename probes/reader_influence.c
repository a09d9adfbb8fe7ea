#include "probes/reader_influence.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { KINDS = 3 }; /* layer, attention, MLP */

struct reader_influence {
    const depth_program *program;
    size_t layers, rows, width, heads;
    bool *in, *base, *out; /* observer wants */
    float *gate;           /* [sites] the site's gate; 1 without one */
    float *output;         /* [2 * layers, rows, width] of the batch */
    double *one_minus;     /* [rows] of the site and unit at hand */
    double *sum;           /* [sequences, KINDS, layers] over sites of means over tokens */
    double *mean;          /* likewise, finished */
    size_t *sites;         /* [sequences, KINDS, layers] later sites with a cosine */
    size_t left_out;
};

bool reader_influence_defined(const model_config *config) {
    return mode_is_full(config->mode) && config->gate != GATE_SIGMOID_VECTOR;
}

static const site_weights *weights_of(const model *m, const depth_program *p, size_t site) {
    const model_weights *all = model_tensors(m);
    if (site + 1 == p->plan.sites)
        return &all->final_site;
    return site % 2 ? &all->layer[site / 2].mlp_site : &all->layer[site / 2].attn_site;
}

static int read_gates(reader_influence *ri, const model *m, status *st) {
    const depth_program *p = ri->program;
    for (size_t i = 0; i < p->plan.sites; i++) {
        const gate_kind gate = p->plan.site[i].gate;
        ri->gate[i] = 1;
        if (gate == GATE_NONE)
            continue;
        if (model_kernels(m)->download(model_backend(m), weights_of(m, p, i)->gate, 0, &ri->gate[i],
                                       1, st))
            return FAILED;
        if (gate == GATE_SIGMOID_SCALAR)
            ri->gate[i] = 1 / (1 + expf(-ri->gate[i]));
    }
    return DONE;
}

int reader_influence_create(const model *m, const depth_program *p, const session_limits *limits,
                            reader_influence **out, status *st) {
    const model_config *c = model_configuration(m);
    *out = NULL;
    reader_influence *ri = mem_array(1, sizeof *ri, "reader influence", st);
    if (!ri)
        return FAILED;
    ri->program = p;
    ri->layers = c->layers;
    ri->rows = limits->rows;
    ri->width = c->width;
    ri->heads = p->plan.heads;
    size_t cells = limits->sequences * KINDS * ri->layers, sublayers = 2 * ri->layers;
    ri->in = mem_array(p->plan.sites, sizeof *ri->in, "reader influence", st);
    ri->base = mem_array(p->plan.sites, sizeof *ri->base, "reader influence", st);
    ri->out = mem_array(sublayers, sizeof *ri->out, "reader influence", st);
    ri->gate = mem_array(p->plan.sites, sizeof *ri->gate, "reader influence", st);
    ri->output = mem_array(sublayers * ri->rows, ri->width * sizeof(float), "outputs", st);
    ri->one_minus = mem_array(ri->rows, sizeof *ri->one_minus, "reader influence", st);
    ri->sum = mem_array(cells, sizeof *ri->sum, "reader influence", st);
    ri->mean = mem_array(cells, sizeof *ri->mean, "reader influence", st);
    ri->sites = mem_array(cells, sizeof *ri->sites, "reader influence", st);
    if (!ri->in || !ri->base || !ri->out || !ri->gate || !ri->output || !ri->one_minus ||
        !ri->sum || !ri->mean || !ri->sites || read_gates(ri, m, st)) {
        reader_influence_free(ri);
        return FAILED;
    }
    for (size_t i = 0; i < p->plan.sites; i++) {
        ri->in[i] = p->plan.site[i].sources > 1;
        ri->base[i] = ri->in[i] && p->plan.site[i].gate != GATE_NONE;
    }
    for (size_t i = 0; i < sublayers; i++)
        ri->out[i] = true;
    *out = ri;
    return DONE;
}

void reader_influence_free(reader_influence *ri) {
    if (!ri)
        return;
    free(ri->in);
    free(ri->base);
    free(ri->out);
    free(ri->gate);
    free(ri->output);
    free(ri->one_minus);
    free(ri->sum);
    free(ri->mean);
    free(ri->sites);
    free(ri);
}

/* ---- one site, one unit ---- */

/* What a unit is at a site: positions in its list of sources and the outputs they stand for. */
typedef struct unit_sources {
    size_t count;
    size_t position[2], sublayer[2];
} unit_sources;

/* 1 - cos(in, in without the unit) of one token; NaN where it has no cosine. */
static double change_of(const reader_influence *ri, const site_view *view, const unit_sources *unit,
                        size_t row) {
    const size_t slice = ri->width / ri->heads;
    const float *in = view->in + row * ri->width;
    const float *base = view->base ? view->base + row * ri->width : NULL;
    const double gate = (double)ri->gate[view->site];
    double product = 0, in_square = 0, without_square = 0;
    for (size_t h = 0; h < ri->heads; h++) {
        const float *weight = view->weights + (row * ri->heads + h) * view->sources;
        double rest = 1, taken[2] = {0, 0};
        const float *v[2] = {in, in}; /* one that is not there is taken 0 times */
        for (size_t k = 0; k < unit->count; k++) {
            taken[k] = (double)weight[unit->position[k]];
            rest -= taken[k];
            v[k] = ri->output + (unit->sublayer[k] * ri->rows + row) * ri->width;
        }
        for (size_t d = h * slice; d < (h + 1) * slice; d++) {
            double x = (double)in[d], stays = base ? (1 - gate) * (double)base[d] : 0;
            double mixed = x - stays; /* gate * mix */
            double part = taken[0] * (double)v[0][d] + taken[1] * (double)v[1][d];
            double y = stays + (mixed - gate * part) / rest;
            product += x * y;
            in_square += x * x;
            without_square += y * y;
        }
    }
    double cosine = product / sqrt(in_square * without_square);
    return 1 - (cosine > 1 ? 1 : cosine < -1 ? -1 : cosine);
}

static void add_unit(reader_influence *ri, const batch *b, const site_view *view,
                     const unit_sources *unit, size_t cell) {
    const size_t rows = b->layout.rows;
#pragma omp parallel for schedule(static)
    for (size_t row = 0; row < rows; row++)
        ri->one_minus[row] = change_of(ri, view, unit, row);
    for (size_t i = 0; i < b->layout.sequences; i++) {
        double sum = 0;
        size_t counted = 0, at = i * KINDS * ri->layers + cell;
        for (size_t row = b->layout.start[i]; row < b->layout.start[i + 1]; row++) {
            if (!isfinite(ri->one_minus[row]))
                continue;
            sum += ri->one_minus[row];
            counted++;
        }
        ri->left_out += b->layout.start[i + 1] - b->layout.start[i] - counted;
        if (!counted)
            continue;
        ri->sum[at] += sum / (double)counted;
        ri->sites[at]++;
    }
}

/* Where each sublayer's output stands among the sources of a site; -1: nowhere. */
static void find_positions(const depth_program *p, size_t site, int *position) {
    for (size_t k = 0; k < p->sublayers; k++) {
        position[p->sublayer[k].index] = -1;
        for (size_t s = 0; s < (size_t)p->plan.site[site].sources; s++)
            if (p->plan.site[site].source[s] == p->sublayer[k].out)
                position[p->sublayer[k].index] = (int)s;
    }
}

static int take_site(void *self, const batch *b, const site_view *view, status *st) {
    reader_influence *ri = self;
    if (!ri->in[view->site])
        return DONE;
    int *position = mem_array(2 * ri->layers, sizeof *position, "positions", st);
    if (!position)
        return FAILED;
    for (size_t i = 0; i < 2 * ri->layers; i++)
        position[i] = -1;
    find_positions(ri->program, view->site, position);
    for (size_t l = 0; l < ri->layers; l++) {
        unit_sources all = {0};
        for (size_t kind = 0; kind < 2; kind++) {
            size_t sublayer = 2 * l + kind;
            if (position[sublayer] < 0)
                continue;
            unit_sources one = {1, {(size_t)position[sublayer]}, {sublayer}};
            add_unit(ri, b, view, &one, (1 + kind) * ri->layers + l);
            all.position[all.count] = one.position[0];
            all.sublayer[all.count++] = sublayer;
        }
        if (all.count && view->site > 2 * l + 1) /* the layer's own MLP is not later than it */
            add_unit(ri, b, view, &all, l);
    }
    free(position);
    if (view->site + 1 < ri->program->plan.sites)
        return DONE;
    size_t cells = b->layout.sequences * KINDS * ri->layers;
    for (size_t i = 0; i < cells; i++) {
        ri->mean[i] = ri->sites[i] ? ri->sum[i] / (double)ri->sites[i] : (double)NAN;
        ri->sum[i] = 0;
        ri->sites[i] = 0;
    }
    return DONE;
}

static int take_sublayer(void *self, const batch *b, const sublayer_view *view, status *st) {
    (void)st;
    reader_influence *ri = self;
    memcpy(ri->output + view->sublayer->index * ri->rows * ri->width, view->out,
           b->layout.rows * ri->width * sizeof(float));
    return DONE;
}

void reader_influence_watch(reader_influence *ri, observer *watch) {
    watch->self = ri;
    watch->weights = true;
    watch->in = ri->in;
    watch->base = ri->base;
    watch->out = ri->out;
    watch->on_site = take_site;
    watch->on_sublayer = take_sublayer;
}

const double *reader_influence_of(const reader_influence *ri, size_t sequence) {
    return ri->mean + sequence * KINDS * ri->layers;
}

size_t reader_influence_left_out(const reader_influence *ri) {
    return ri->left_out;
}
