#include "runtime/session_state.h"

#include <stdlib.h>
#include <string.h>

/* Columns of what a sublayer computes on its way. */
typedef struct step_widths {
    size_t projected, rotated, inner;
} step_widths;

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

static step_widths widths_of(const model_config *c, sublayer_kind kind) {
    size_t heads = c->query_heads * c->head_dim, qkv = heads + 2 * c->kv_heads * c->head_dim;
    return kind == SUBLAYER_ATTN ? (step_widths){qkv, qkv, heads}
                                 : (step_widths){2 * c->mlp_width, 0, c->mlp_width};
}

static step_widths widest(const model_config *c) {
    step_widths attn = widths_of(c, SUBLAYER_ATTN), mlp = widths_of(c, SUBLAYER_MLP);
    return (step_widths){larger(attn.projected, mlp.projected), 0, larger(attn.inner, mlp.inner)};
}

/* ---- forecast ---- */

/* What is counted: activations in the numbers of the backend, and 4-byte elements. */
typedef struct amount {
    size_t real, exact;
} amount;

/* Of a row, for the depth axis. */
static amount depth_columns(const depth_program *program, bool own_slots, bool backward) {
    const depth_plan *plan = &program->plan;
    size_t most = 0;
    amount columns = {.real = (own_slots ? plan->values : plan->slots) * plan->width,
                      .exact = (plan->values + 1) * (1 + plan->heads)};
    for (size_t i = 0; i < plan->sites; i++) {
        const depth_site *site = &plan->site[i];
        size_t sources = (size_t)site->sources;
        most = larger(most, sources);
        if (!backward || sources == 0)
            continue;
        columns.exact += plan->heads * (sources + 2);
        columns.real += plan->heads * sources; /* their gradients, on a GPU */
        columns.real += site->base == NO_VALUE ? 0 : plan->width;
        columns.real += site->gate == GATE_SIGMOID_VECTOR ? 3 * plan->width : 0;
    }
    columns.exact += plan->heads * most;
    columns.real += backward ? plan->values * plan->width : 0; /* gradients of values, likewise */
    return columns;
}

size_t session_bytes(const model *m, const depth_program *program, const session_limits *limits) {
    const model_config *c = model_configuration(m);
    step_widths most = widest(c);
    size_t rows = limits->rows, exact = 0;
    amount row = depth_columns(program, limits->backward || limits->keep, limits->backward);
    row.real += 2 * c->width + most.projected + most.inner;
    row.exact += 2;
    for (size_t k = 0; limits->backward && k < program->sublayers; k++) {
        step_widths w = widths_of(c, program->sublayer[k].kind);
        row.real += 2 * c->width + w.projected + w.rotated + w.inner;
    }
    if (limits->backward) {
        row.real += c->width;
        row.exact += 2;
        exact = model_parameters(m) + (c->tied ? c->vocabulary * c->width : 0);
        /* queries' gradients: of each sequence in double, and of the tiles at work */
        exact += program->plan.sites * c->width * (3 * limits->sequences + rows / 64);
    }
    return rows * row.real * model_kernels(m)->real_size(model_backend(m)) +
           (rows * row.exact + exact) * sizeof(float);
}

/* ---- making ---- */

static int own(session *s, buffer_kind kind, size_t columns, buffer **out, status *st) {
    size_t elements;
    if (__builtin_mul_overflow(s->limits.rows, columns, &elements))
        return status_fail(st, "session: %zu rows of %zu values are too many", s->limits.rows,
                           columns);
    if (s->k->buffer_create(s->device, kind, elements, out, st))
        return FAILED;
    s->owned[s->owned_count++] = *out;
    return DONE;
}

static int own_steps(session *s, step_widths w, steps *at, status *st) {
    size_t width = model_configuration(s->model)->width;
    if (own(s, BUFFER_REAL, width, &at->in, st) || own(s, BUFFER_REAL, width, &at->normed, st) ||
        (w.projected && own(s, BUFFER_REAL, w.projected, &at->projected, st)) ||
        (w.inner && own(s, BUFFER_REAL, w.inner, &at->inner, st)))
        return FAILED;
    at->rotated = at->projected;
    return w.rotated ? own(s, BUFFER_REAL, w.rotated, &at->rotated, st) : DONE;
}

/* One gradient for each buffer of weights: parameters that are fused follow one another. */
static int own_gradients(session *s, status *st) {
    size_t params = model_params(s->model);
    if (!(s->gradient = mem_array(params + 1, sizeof *s->gradient, "gradients", st)))
        return FAILED;
    for (size_t i = 0; i < params; i++) {
        const model_param *p = model_param_at(s->model, i);
        if (p->offset == 0)
            s->gradient[s->gradients++] = (weight_gradient){.weight = p->memory};
        s->gradient[s->gradients - 1].elements += p->rows * p->columns;
    }
    const model_weights *w = model_tensors(s->model);
    bool tied = w->head == w->embedding;
    if (tied) /* found by no weight: see head_gradient */
        s->gradient[s->gradients++] = (weight_gradient){.elements = s->gradient[0].elements};
    for (size_t i = 0; i < s->gradients; i++) {
        weight_gradient *g = &s->gradient[i];
        if (s->k->buffer_create(s->device, BUFFER_EXACT, g->elements, &g->sum, st))
            return FAILED;
        s->owned[s->owned_count++] = g->sum;
        if (g->weight == (tied ? NULL : w->head))
            s->head_gradient = g->sum;
    }
    return session_gradient_clear(s, st);
}

static int own_backward(session *s, status *st) {
    const model_config *c = model_configuration(s->model);
    const depth_program *p = s->program;
    step_widths most = widest(c);
    for (size_t k = 0; k < p->sublayers; k++)
        if (own_steps(s, widths_of(c, p->sublayer[k].kind), &s->steps[k], st))
            return FAILED;
    if (own_steps(s, (step_widths){0}, &s->steps[p->sublayers], st) ||
        own(s, BUFFER_REAL, c->width, &s->d_normed, st) ||
        own(s, BUFFER_REAL, most.projected, &s->d_projected, st) ||
        own(s, BUFFER_REAL, most.inner, &s->d_inner, st) ||
        !(s->l2 = mem_array(s->limits.rows, sizeof *s->l2, "session", st)))
        return FAILED;
    return own_gradients(s, st);
}

static int own_shared(session *s, status *st) {
    steps all = {0};
    if (own_steps(s, widest(model_configuration(s->model)), &all, st))
        return FAILED;
    for (size_t k = 0; k <= 2 * model_configuration(s->model)->layers; k++)
        s->steps[k] = all;
    return DONE;
}

/* The depth axis of the session's program. */
static int make_axis(session *s, status *st) {
    const depth_plan *plan = &s->program->plan;
    s->most_sources = 0;
    for (size_t i = 0; i < plan->sites; i++)
        s->most_sources = larger(s->most_sources, (size_t)plan->site[i].sources);
    depth_options options = {.plan = plan,
                             .weights = s->site,
                             .max_rows = s->limits.rows,
                             .max_sequences = s->limits.sequences,
                             .backward = s->limits.backward,
                             .keep = s->limits.keep};
    return s->k->depth_create(s->device, &options, &s->axis, st);
}

static int make(session *s, status *st) {
    const depth_plan *plan = &s->program->plan;
    const size_t sublayers = 2 * model_configuration(s->model)->layers; /* of any program */
    size_t buffers = 2 + 5 * (sublayers + 1) + 3 + model_params(s->model) + 1;
    s->owned = mem_array(buffers, sizeof *s->owned, "session", st);
    s->steps = mem_array(sublayers + 1, sizeof *s->steps, "session", st);
    s->site = mem_array(plan->sites, sizeof *s->site, "session", st);
    s->host_target = mem_array(s->limits.rows, sizeof *s->host_target, "session", st);
    if (!s->owned || !s->steps || !s->site || !s->host_target)
        return FAILED;
    for (size_t i = 0; i < plan->sites; i++)
        s->site[i] = *model_site(s->model, i);
    if (own(s, BUFFER_EXACT, 1, &s->id, st) || own(s, BUFFER_EXACT, 1, &s->target, st) ||
        (s->limits.backward ? own_backward(s, st) : own_shared(s, st)))
        return FAILED;
    return make_axis(s, st);
}

int session_use(session *s, const depth_program *program, status *st) {
    if (s->limits.backward)
        return status_fail(st, "session: made for backward, it keeps its program");
    int rc = session_finish(s, st);
    if (rc)
        return rc;
    s->k->depth_free(s->axis);
    s->axis = NULL;
    s->program = program;
    s->ready_rows = 0;
    return make_axis(s, st);
}

int session_create(const model *m, const depth_program *program, const session_limits *limits,
                   session **out, status *st) {
    size_t positions = model_tensors(m)->rope_positions;
    if (limits->longest > positions)
        return status_fail(st, "session: sequences of %zu tokens, the model was opened for %zu",
                           limits->longest, positions);
    session *s = mem_array(1, sizeof *s, "session", st);
    if (!s)
        return FAILED;
    s->model = m;
    s->program = program;
    s->limits = *limits;
    s->k = model_kernels(m);
    s->device = model_backend(m);
    s->direct = !s->k->fetch;
    if (make(s, st)) {
        session_free(s);
        return FAILED;
    }
    *out = s;
    return DONE;
}

void session_free(session *s) {
    if (!s)
        return;
    session_observe_free(s);
    s->k->depth_free(s->axis);
    for (size_t i = 0; i < s->owned_count; i++)
        s->k->buffer_free(s->device, s->owned[i]);
    free(s->owned);
    free(s->steps);
    free(s->site);
    free(s->host_target);
    free(s->l2);
    free(s->gradient);
    free(s);
}
