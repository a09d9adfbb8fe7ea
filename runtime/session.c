#include "runtime/session_state.h"

#include <stdlib.h>

typedef struct width_set {
    size_t width, wide, inner, most_sources;
} width_set;

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

static width_set widths(const model *m, const depth_program *program) {
    const model_config *c = model_configuration(m);
    size_t qkv = (c->query_heads + 2 * c->kv_heads) * c->head_dim, most = 0;
    for (size_t i = 0; i < program->plan.sites; i++)
        most = larger(most, (size_t)program->plan.site[i].sources);
    return (width_set){c->width, larger(qkv, 2 * c->mlp_width),
                       larger(c->query_heads * c->head_dim, c->mlp_width), most};
}

size_t session_bytes(const model *m, const depth_program *program, const session_limits *limits) {
    width_set w = widths(m, program);
    size_t norms = 1 + program->plan.heads;
    size_t columns = 2 + 2 * w.width + w.wide + w.inner + program->plan.slots * w.width +
                     (program->plan.values + 1) * norms + program->plan.heads * w.most_sources;
    return limits->rows * columns * sizeof(float);
}

int session_create(const model *m, const depth_program *program, const session_limits *limits,
                   session **out, status *st) {
    width_set w = widths(m, program);
    const model_weights *weights = model_tensors(m);
    if (limits->longest > weights->rope_positions)
        return status_fail(st, "session: sequences of %zu tokens, the model was opened for %zu",
                           limits->longest, weights->rope_positions);
    session *s = mem_array(1, sizeof *s, "session", st);
    if (!s)
        return FAILED;
    s->model = m;
    s->program = program;
    s->limits = *limits;
    s->k = model_kernels(m);
    s->device = model_backend(m);
    s->most_sources = w.most_sources;
    size_t row = limits->rows * sizeof(float);
    size_t sites = program->plan.sites;
    site_weights *site = mem_array(sites, sizeof *site, "session", st);
    s->host_target = mem_array(limits->rows, sizeof *s->host_target, "session", st);
    if (!site || !s->host_target)
        goto fail;
    for (size_t i = 0; i + 1 < sites; i++)
        site[i] = i % 2 == SUBLAYER_ATTN ? weights->layer[i / 2].attn_site
                                         : weights->layer[i / 2].mlp_site;
    site[sites - 1] = weights->final_site;
    depth_options options = {&program->plan, site, limits->rows, limits->sequences};
    if (s->k->buffer_create(s->device, row, &s->id, st) ||
        s->k->buffer_create(s->device, row, &s->target, st) ||
        s->k->buffer_create(s->device, row * w.width, &s->in, st) ||
        s->k->buffer_create(s->device, row * w.width, &s->normed, st) ||
        s->k->buffer_create(s->device, row * w.wide, &s->wide, st) ||
        s->k->buffer_create(s->device, row * w.inner, &s->inner, st) ||
        s->k->depth_create(s->device, &options, &s->axis, st))
        goto fail;
    free(site);
    *out = s;
    return DONE;
fail:
    free(site);
    session_free(s);
    return FAILED;
}

void session_free(session *s) {
    if (!s)
        return;
    for (size_t i = 0; i < SEEN_COUNT; i++) {
        s->k->buffer_free(s->device, s->seen[i].device);
        free(s->seen[i].host);
    }
    s->k->depth_free(s->axis);
    s->k->buffer_free(s->device, s->id);
    s->k->buffer_free(s->device, s->target);
    s->k->buffer_free(s->device, s->in);
    s->k->buffer_free(s->device, s->normed);
    s->k->buffer_free(s->device, s->wide);
    s->k->buffer_free(s->device, s->inner);
    free(s->host_target);
    free(s->sums);
    free(s);
}
