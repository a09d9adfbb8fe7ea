/* backward.c - the backward pass: the depth program from its last value to its first. */
#include "runtime/session_state.h"

#include <stdlib.h>
#include <string.h>

/* ---- gradients of parameters ---- */

/* Where the gradient of a buffer of weights is summed; NULL for NULL. */
static buffer *gradient_of(const session *s, const buffer *weight) {
    for (size_t i = 0; weight && i < s->gradients; i++)
        if (s->gradient[i].weight == weight)
            return s->gradient[i].sum;
    return NULL;
}

static int check_backward(const session *s, status *st) {
    return s->limits.backward ? DONE : status_fail(st, "session: made without backward");
}

int session_gradient(session *s, size_t param, float *out, status *st) {
    const model_param *p = model_param_at(s->model, param);
    const model_weights *w = model_tensors(s->model);
    size_t count = p->rows * p->columns;
    if (check_backward(s, st) ||
        s->k->download(s->device, gradient_of(s, p->memory), p->offset, out, count, st))
        return FAILED;
    if (p->memory != w->embedding || w->head != w->embedding)
        return DONE;
    float *head = mem_array(count, sizeof *head, "gradient of the output head", st);
    int rc = head ? s->k->download(s->device, s->head_gradient, 0, head, count, st) : FAILED;
    for (size_t i = 0; !rc && i < count; i++)
        out[i] += head[i];
    free(head);
    return rc;
}

size_t session_gradient_tokens(const session *s) {
    return s->gradient_tokens;
}

int session_gradient_clear(session *s, status *st) {
    if (check_backward(s, st))
        return FAILED;
    enum { PIECE = 1 << 16 };
    float *zero = mem_array(PIECE, sizeof *zero, "zeros", st);
    int rc = zero ? DONE : FAILED;
    for (size_t i = 0; i < s->gradients; i++)
        for (size_t at = 0; at < s->gradient[i].elements && !rc; at += PIECE) {
            size_t left = s->gradient[i].elements - at;
            rc = s->k->upload(s->device, s->gradient[i].sum, at, zero, left < PIECE ? left : PIECE,
                              st);
        }
    free(zero);
    s->gradient_tokens = 0;
    return rc;
}

/* ---- observing ---- */

static int observe(session *s, const batch *b, const observer *watch, gradient_view view,
                   const buffer *from, status *st) {
    if (!watch || !watch->on_gradient)
        return DONE;
    const observed what[4] = {SEEN_GRADIENT_RMS, SEEN_COUNT, SEEN_COUNT, SEEN_COUNT};
    const void *found[4] = {NULL};
    if (session_measure(s, b->layout.rows, from, what, found, st))
        return FAILED;
    view.l2 = found[0];
    return session_show(s, b, watch, &(any_view){.kind = VIEW_GRADIENT, .gradient = view}, st);
}

/* ---- computing ---- */

/* From the gradient of `normed` in s->d_normed to that of `in`, which takes the place of `normed`:
 * nothing reads that any more. */
static int pre_norm_back(session *s, const batch *b, const steps *at, const buffer *gain,
                         status *st) {
    const model_config *c = model_configuration(s->model);
    norm_back_args args = {.layout = &b->layout,
                           .width = c->width,
                           .eps = c->eps,
                           .in = at->in,
                           .gain = gain,
                           .d_out = s->d_normed,
                           .d_in = at->normed,
                           .grad_gain = gradient_of(s, gain)};
    return s->k->norm_back(s->device, &args, st);
}

static int linear_back(session *s, const batch *b, const buffer *in, size_t in_width,
                       const buffer *weight, const buffer *bias, const buffer *d_out,
                       size_t out_width, buffer *d_in, status *st) {
    linear_back_args args = {.layout = &b->layout,
                             .in_width = in_width,
                             .out_width = out_width,
                             .in = in,
                             .weight = weight,
                             .d_out = d_out,
                             .d_in = d_in,
                             .grad_weight = gradient_of(s, weight),
                             .grad_bias = gradient_of(s, bias)};
    return s->k->linear_back(s->device, &args, st);
}

static int attention_back(session *s, const batch *b, size_t layer, const steps *at,
                          const buffer *d_out, status *st) {
    const model_config *c = model_configuration(s->model);
    const layer_weights *w = &model_tensors(s->model)->layer[layer];
    size_t heads_width = c->query_heads * c->head_dim;
    size_t qkv_width = heads_width + 2 * c->kv_heads * c->head_dim;
    rotary_args rotary = session_rotary(s, b, layer, at);
    attention_back_args attend = {.layout = &b->layout,
                                  .query_heads = c->query_heads,
                                  .kv_heads = c->kv_heads,
                                  .head_dim = c->head_dim,
                                  .qkv = at->rotated,
                                  .out = at->inner,
                                  .d_out = s->d_inner,
                                  .d_qkv = s->d_projected};
    rotary_back_args rotate = {.forward = &rotary,
                               .d_out = s->d_projected,
                               .d_in = s->d_projected,
                               .grad_query_gain = gradient_of(s, w->q_norm),
                               .grad_key_gain = gradient_of(s, w->k_norm)};
    if (linear_back(s, b, at->inner, heads_width, w->out, w->out_bias, d_out, c->width, s->d_inner,
                    st) ||
        s->k->attention_back(s->device, &attend, st) || s->k->rotary_back(s->device, &rotate, st) ||
        linear_back(s, b, at->normed, c->width, w->qkv, w->qkv_bias, s->d_projected, qkv_width,
                    s->d_normed, st))
        return FAILED;
    return pre_norm_back(s, b, at, w->attn_norm, st);
}

static int mlp_back(session *s, const batch *b, size_t layer, const steps *at, const buffer *d_out,
                    status *st) {
    const model_config *c = model_configuration(s->model);
    const layer_weights *w = &model_tensors(s->model)->layer[layer];
    swiglu_back_args act = {b->layout.rows, c->mlp_width, at->projected, s->d_inner,
                            s->d_projected};
    if (linear_back(s, b, at->inner, c->mlp_width, w->down, w->down_bias, d_out, c->width,
                    s->d_inner, st) ||
        s->k->swiglu_back(s->device, &act, st) ||
        linear_back(s, b, at->normed, c->width, w->gate_up, w->gate_up_bias, s->d_projected,
                    2 * c->mlp_width, s->d_normed, st))
        return FAILED;
    return pre_norm_back(s, b, at, w->mlp_norm, st);
}

static int head_back(session *s, const batch *b, const steps *at, status *st) {
    const model_config *c = model_configuration(s->model);
    const model_weights *w = model_tensors(s->model);
    head_back_args args = {.layout = &b->layout,
                           .width = c->width,
                           .vocabulary = c->vocabulary,
                           .in = at->normed,
                           .weight = w->head,
                           .target = s->target,
                           .d_in = s->d_normed,
                           .grad_weight = s->head_gradient};
    if (s->k->head_back(s->device, &args, st))
        return FAILED;
    return pre_norm_back(s, b, at, w->norm, st);
}

/* The gradient of what a site gave is in at->normed. */
static int give(session *s, const batch *b, const observer *watch, size_t site, const steps *at,
                status *st) {
    int rc =
        observe(s, b, watch, (gradient_view){.point = GRADIENT_IN, .site = site}, at->normed, st);
    return rc ? rc : s->k->depth_give(s->axis, site, at->normed, st);
}

static int run_sublayer_back(session *s, const batch *b, const observer *watch,
                             const depth_sublayer *sublayer, const steps *at, status *st) {
    const buffer *d_out;
    if (s->k->depth_pull(s->axis, (size_t)sublayer->out, &d_out, st))
        return FAILED;
    gradient_view view = {.point = GRADIENT_OUT, .sublayer = sublayer};
    int rc = observe(s, b, watch, view, d_out, st);
    if (rc)
        return rc;
    if (sublayer->kind == SUBLAYER_ATTN ? attention_back(s, b, sublayer->layer, at, d_out, st)
                                        : mlp_back(s, b, sublayer->layer, at, d_out, st))
        return FAILED;
    return give(s, b, watch, sublayer->site, at, st);
}

/* The embedding's gradient and the routers'. */
static int finish(session *s, const batch *b, const observer *watch, status *st) {
    const model_config *c = model_configuration(s->model);
    embed_back_args embed = {.layout = &b->layout,
                             .width = c->width,
                             .vocabulary = c->vocabulary,
                             .id = s->id,
                             .grad_table = gradient_of(s, model_tensors(s->model)->embedding)};
    if (s->k->depth_pull(s->axis, (size_t)s->program->emb, &embed.d_out, st))
        return FAILED;
    int rc = observe(s, b, watch, (gradient_view){.point = GRADIENT_EMB}, embed.d_out, st);
    if (!rc)
        rc = s->k->embed_back(s->device, &embed, st);
    for (size_t i = 0; i < s->program->plan.sites && !rc; i++) {
        const site_weights *w = &s->site[i];
        site_grads grads = {.query = gradient_of(s, w->query),
                            .gain = gradient_of(s, w->gain),
                            .null_source = gradient_of(s, w->null_source),
                            .gate = gradient_of(s, w->gate),
                            .gate_bias = gradient_of(s, w->gate_bias)};
        rc = s->k->depth_site_grads(s->axis, i, &grads, st);
    }
    return rc;
}

int session_backward(session *s, const batch *b, const observer *watch, status *st) {
    const depth_program *p = s->program;
    if (check_backward(s, st))
        return FAILED;
    if (s->ready_rows == 0 || s->ready_rows != b->layout.rows)
        return status_fail(st,
                           "session: backward of a batch of %zu tokens, but the last forward "
                           "pass left %zu",
                           b->layout.rows, s->ready_rows);
    s->ready_rows = 0;
    const steps *last = &s->steps[p->sublayers];
    if (head_back(s, b, last, st))
        return FAILED;
    int rc = give(s, b, watch, p->plan.sites - 1, last, st);
    for (size_t k = p->sublayers; k-- > 0 && !rc;)
        rc = run_sublayer_back(s, b, watch, &p->sublayer[k], &s->steps[k], st);
    if (!rc)
        rc = finish(s, b, watch, st);
    if (!rc && watch)
        rc = session_show(s, b, watch, &(any_view){.kind = VIEW_DONE}, st);
    if (!rc)
        rc = session_depart(s, st);
    for (size_t r = 0; r < b->layout.rows && !rc; r++)
        s->gradient_tokens += s->host_target[r] >= 0;
    return rc;
}
