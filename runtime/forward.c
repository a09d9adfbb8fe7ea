/* forward.c - the instrumented forward pass: reads the depth program, knows no modes. */
#include "runtime/session_state.h"

#include <stdlib.h>

/* ---- observing ---- */

/* The site's routing under the observer's other queries. */
static int observe_alternatives(session *s, const batch *b, const observer *watch, site_view *view,
                                status *st) {
    const depth_plan *plan = &s->program->plan;
    const depth_site *site = &plan->site[view->site];
    const site_alternatives *other = &watch->alternatives[view->site];
    view->sums_layout = routing_layout_of(plan->heads, (size_t)site->sources, site->null_source,
                                          watch->routing_pairs);
    size_t results = other->count * b->layout.sequences;
    size_t sums = watch->alternative_sums ? results * view->sums_layout.total : 0;
    size_t variances = watch->alternative_variance ? results * plan->heads : 0;
    double *found = session_doubles(s, DOUBLES_ALTERNATIVE, sums + variances, st);
    if (!found)
        return FAILED;
    view->alternative_sums = sums ? found : NULL;
    view->alternative_variance = variances ? found + sums : NULL;
    const depth_alternative_args args = {.site = view->site,
                                         .count = other->count,
                                         .folded = other->folded,
                                         .sequence = watch->alternative_sequence,
                                         .pairs = watch->routing_pairs,
                                         .sums = sums ? found : NULL,
                                         .variance = variances ? found + sums : NULL};
    return s->k->depth_alternative(s->axis, &args, st);
}

static int observe_site(session *s, const batch *b, const observer *watch, site_view *view,
                        const buffer *in, const buffer *weights, status *st) {
    const depth_plan *plan = &s->program->plan;
    size_t index = view->site, rows = b->layout.rows, sources = view->sources;
    const depth_site *site = &plan->site[index];
    if (watch->in && watch->in[index] && session_fetch(s, in, rows * plan->width, &view->in, st))
        return FAILED;
    if (watch->base && watch->base[index] && site->base != NO_VALUE &&
        session_fetch(s, s->k->depth_storage(s->axis, (size_t)site->base), rows * plan->width,
                      &view->base, st))
        return FAILED;
    if (weights && session_fetch(s, weights, rows * plan->heads * sources, &view->weights, st))
        return FAILED;
    if (watch->routing_sums && sources > 0) {
        view->sums_layout =
            routing_layout_of(plan->heads, sources, site->null_source, watch->routing_pairs);
        double *sums =
            session_doubles(s, DOUBLES_OWN, s->limits.sequences * view->sums_layout.total, st);
        if (!sums || s->k->depth_sums(s->axis, index, sums, st))
            return FAILED;
        view->sums = sums;
    }
    if (watch->alternatives && watch->alternatives[index].count > 0)
        return observe_alternatives(s, b, watch, view, st);
    return DONE;
}

/* Of the output and of the state, which where nothing runs along is the output itself. */
static int observe_magnitudes(session *s, size_t rows, const buffer *out, const buffer *state,
                              sublayer_view *view, status *st) {
    const bool same = state == out;
    const observed of_out[4] = {SEEN_OUT_RMS, SEEN_OUT_ABSMAX,
                                same ? SEEN_STATE_ABSMAX_CHANNEL : SEEN_COUNT,
                                same ? SEEN_STATE_MEDIAN_ABS : SEEN_COUNT};
    const observed of_state[4] = {SEEN_STATE_RMS, SEEN_STATE_ABSMAX, SEEN_STATE_ABSMAX_CHANNEL,
                                  SEEN_STATE_MEDIAN_ABS};
    const void *found[4] = {NULL};
    if (session_measure(s, rows, out, of_out, found, st))
        return FAILED;
    view->out_rms = found[0];
    view->out_absmax = found[1];
    if (!state)
        return DONE;
    if (!same && session_measure(s, rows, state, of_state, found, st))
        return FAILED;
    view->state_rms = found[0];
    view->state_absmax = found[1];
    view->state_absmax_channel = found[2];
    view->state_median_abs = found[3];
    return DONE;
}

/* `made` has what the sublayer observed on its way. */
static int observe_sublayer(session *s, const batch *b, const observer *watch,
                            const sublayer_view *made, status *st) {
    size_t rows = b->layout.rows, whole = rows * s->program->plan.width;
    any_view any = {.kind = VIEW_SUBLAYER, .sublayer = *made};
    sublayer_view *view = &any.sublayer;
    const depth_sublayer *sublayer = made->sublayer;
    const buffer *out = s->k->depth_storage(s->axis, (size_t)sublayer->out);
    const buffer *state =
        sublayer->state == NO_VALUE ? NULL : s->k->depth_storage(s->axis, (size_t)sublayer->state);
    if (watch->magnitudes && observe_magnitudes(s, rows, out, state, view, st))
        return FAILED;
    if (watch->out && watch->out[sublayer->index] && session_fetch(s, out, whole, &view->out, st))
        return FAILED;
    if (state && watch->state && watch->state[sublayer->index] &&
        session_fetch(s, state, whole, &view->state, st))
        return FAILED;
    return session_show(s, b, watch, &any, st);
}

/* ---- computing ---- */

/* What a sublayer, or the head, starts with: what its site gives, and the norm of it. */
static int read_site(session *s, const batch *b, const observer *watch, size_t index,
                     const steps *at, const buffer *gain, status *st) {
    const model_config *c = model_configuration(s->model);
    const depth_plan *plan = &s->program->plan;
    size_t sources = (size_t)plan->site[index].sources;
    any_view any = {.kind = VIEW_SITE, .site = {.site = index, .sources = sources}};
    buffer *weights = NULL, *rms = NULL;
    if (watch && watch->weights && sources > 0) {
        size_t elements = s->limits.rows * plan->heads * s->most_sources;
        if (!(weights = session_whole(s, SEEN_WEIGHTS, elements, st)))
            return FAILED;
    }
    depth_read_args args = {.site = index, .in = at->in, .weights = weights};
    if (s->k->depth_read(s->axis, &args, st) ||
        (watch && observe_site(s, b, watch, &any.site, at->in, weights, st)) ||
        (watch && watch->magnitudes &&
         session_place(s, SEEN_IN_RMS, b->layout.rows, &rms, (const void **)&any.site.in_rms, st)))
        return FAILED;
    norm_args norm = {.kind = NORM_RMS,
                      .rows = b->layout.rows,
                      .width = c->width,
                      .eps = c->eps,
                      .in = at->in,
                      .gain = gain,
                      .out = at->normed,
                      .rms = rms};
    if (s->k->norm(s->device, &norm, st))
        return FAILED;
    return watch ? session_show(s, b, watch, &any, st) : DONE;
}

rotary_args session_rotary(const session *s, const batch *b, size_t layer, const steps *at) {
    const model_config *c = model_configuration(s->model);
    const model_weights *weights = model_tensors(s->model);
    return (rotary_args){.layout = &b->layout,
                         .query_heads = c->query_heads,
                         .kv_heads = c->kv_heads,
                         .head_dim = c->head_dim,
                         .rotary = c->head_dim,
                         .cosine = weights->rope_cosine,
                         .sine = weights->rope_sine,
                         .query_gain = weights->layer[layer].q_norm,
                         .key_gain = weights->layer[layer].k_norm,
                         .eps = c->eps,
                         .in = at->projected,
                         .out = at->rotated};
}

static int attention(session *s, const batch *b, const observer *watch, sublayer_view *view,
                     const steps *at, buffer *out, status *st) {
    const depth_sublayer *sublayer = view->sublayer;
    const model_config *c = model_configuration(s->model);
    const layer_weights *w = &model_tensors(s->model)->layer[sublayer->layer];
    size_t heads_width = c->query_heads * c->head_dim;
    size_t extras = b->layout.rows * c->query_heads, pattern = 0;
    for (size_t i = 0; i < b->layout.sequences; i++) {
        size_t length = b->layout.start[i + 1] - b->layout.start[i];
        pattern += c->query_heads * length * length;
    }
    linear_args project = {&b->layout,   c->width, heads_width + 2 * c->kv_heads * c->head_dim,
                           at->normed,   w->qkv,   w->qkv_bias,
                           at->projected};
    rotary_args rotate = session_rotary(s, b, sublayer->layer, at);
    attention_args attend = {.layout = &b->layout,
                             .query_heads = c->query_heads,
                             .kv_heads = c->kv_heads,
                             .head_dim = c->head_dim,
                             .qkv = at->rotated,
                             .out = at->inner};
    linear_args back = {&b->layout, heads_width, c->width, at->inner, w->out, w->out_bias, out};
    if (watch && watch->attention &&
        (session_place(s, SEEN_ENTROPY, extras, &attend.entropy,
                       (const void **)&view->attention_entropy, st) ||
         session_place(s, SEEN_FIRST_TOKEN_MASS, extras, &attend.first_token_mass,
                       (const void **)&view->attention_first_token_mass, st)))
        return FAILED;
    if (watch && watch->pattern && watch->pattern[sublayer->layer] &&
        !(attend.pattern = session_whole(s, SEEN_PATTERN, pattern, st)))
        return FAILED;
    if (s->k->linear(s->device, &project, st) || s->k->rotary(s->device, &rotate, st) ||
        s->k->attention(s->device, &attend, st) ||
        (attend.pattern && session_fetch(s, attend.pattern, pattern, &view->attention_pattern, st)))
        return FAILED;
    return s->k->linear(s->device, &back, st);
}

static int mlp(session *s, const batch *b, const depth_sublayer *sublayer, const steps *at,
               buffer *out, status *st) {
    const model_config *c = model_configuration(s->model);
    const layer_weights *w = &model_tensors(s->model)->layer[sublayer->layer];
    linear_args up = {&b->layout, c->width,        2 * c->mlp_width, at->normed,
                      w->gate_up, w->gate_up_bias, at->projected};
    swiglu_args act = {b->layout.rows, c->mlp_width, at->projected, at->inner};
    linear_args down = {&b->layout, c->mlp_width, c->width, at->inner, w->down, w->down_bias, out};
    if (s->k->linear(s->device, &up, st) || s->k->swiglu(s->device, &act, st))
        return FAILED;
    return s->k->linear(s->device, &down, st);
}

static int run_sublayer(session *s, const batch *b, const observer *watch,
                        const depth_sublayer *sublayer, const steps *at, status *st) {
    const layer_weights *w = &model_tensors(s->model)->layer[sublayer->layer];
    int rc = read_site(s, b, watch, sublayer->site, at,
                       sublayer->kind == SUBLAYER_ATTN ? w->attn_norm : w->mlp_norm, st);
    if (rc)
        return rc;
    buffer *out = s->k->depth_storage(s->axis, (size_t)sublayer->out);
    sublayer_view view = {.sublayer = sublayer};
    rc = sublayer->kind == SUBLAYER_ATTN ? attention(s, b, watch, &view, at, out, st)
                                         : mlp(s, b, sublayer, at, out, st);
    if (rc || s->k->depth_made(s->axis, (size_t)sublayer->out, st))
        return FAILED;
    return watch ? observe_sublayer(s, b, watch, &view, st) : DONE;
}

static int run_head(session *s, const batch *b, const observer *watch, const steps *at,
                    status *st) {
    const model_config *c = model_configuration(s->model);
    const model_weights *w = model_tensors(s->model);
    size_t rows = b->layout.rows, all = rows * c->vocabulary;
    any_view any = {.kind = VIEW_HEAD};
    buffer *loss, *logits = NULL;
    if (session_place(s, SEEN_LOSS, rows, &loss, (const void **)&any.head.loss, st) ||
        (watch && watch->logits && !(logits = session_whole(s, SEEN_LOGITS, all, st))))
        return FAILED;
    head_args head = {.layout = &b->layout,
                      .width = c->width,
                      .vocabulary = c->vocabulary,
                      .in = at->normed,
                      .weight = w->head,
                      .target = s->target,
                      .loss = loss,
                      .logits = logits};
    if (s->k->head(s->device, &head, st) ||
        (logits && session_fetch(s, logits, all, &any.head.logits, st)))
        return FAILED;
    return watch ? session_show(s, b, watch, &any, st) : DONE;
}

/* ---- one batch ---- */

static int check_batch(session *s, const batch *b, status *st) {
    const batch_layout *layout = &b->layout;
    size_t vocabulary = model_configuration(s->model)->vocabulary;
    if (layout->sequences == 0 || layout->sequences > s->limits.sequences ||
        layout->rows > s->limits.rows)
        return status_fail(st,
                           "batch of %zu sequences, %zu tokens: the session takes 1 to %zu, %zu",
                           layout->sequences, layout->rows, s->limits.sequences, s->limits.rows);
    for (size_t i = 0; i < layout->sequences; i++) {
        size_t first = layout->start[i], end = layout->start[i + 1];
        if (end <= first || end > layout->rows || end - first > s->limits.longest)
            return status_fail(st,
                               "sequence %zu of the batch: rows %zu to %zu, expected 1 to %zu "
                               "tokens inside the batch",
                               i, first, end, s->limits.longest);
        for (size_t row = first; row < end; row++) {
            if (b->id[row] < 0 || (size_t)b->id[row] >= vocabulary)
                return status_fail(st,
                                   "sequence %zu of the batch, position %zu: token id %d, "
                                   "expected 0 to %zu",
                                   i, row - first, (int)b->id[row], vocabulary - 1);
            s->host_target[row] = row + 1 < end ? b->id[row + 1] : -1;
        }
    }
    return DONE;
}

/* Values that `base` has made: the embedding and the outputs of the first sublayers. */
static int lend_values(session *s, session *base, size_t sublayers, status *st) {
    const depth_program *p = s->program;
    for (size_t i = 0; i <= sublayers; i++) {
        const size_t value = (size_t)(i == 0 ? p->emb : p->sublayer[i - 1].out);
        if (s->k->depth_lend(s->axis, value, s->k->depth_storage(base->axis, value), st) ||
            s->k->depth_made(s->axis, value, st))
            return FAILED;
    }
    return DONE;
}

static int make_embedding(session *s, const batch *b, status *st) {
    const model_config *c = model_configuration(s->model);
    const size_t emb = (size_t)s->program->emb;
    embed_args embed = {.rows = b->layout.rows,
                        .width = c->width,
                        .vocabulary = c->vocabulary,
                        .table = model_tensors(s->model)->embedding,
                        .id = s->id,
                        .out = s->k->depth_storage(s->axis, emb)};
    if (s->k->embed(s->device, &embed, st))
        return FAILED;
    return s->k->depth_made(s->axis, emb, st);
}

/* `base` NULL: from the embedding on. */
static int submit(session *s, session *base, size_t first, const batch *b, const observer *watch,
                  status *st) {
    const depth_program *p = s->program;
    size_t rows = b->layout.rows;
    s->ready_rows = 0;
    if (check_batch(s, b, st))
        return FAILED;
    depth_wants wants = {0};
    if (watch)
        wants = (depth_wants){watch->routing_sums, watch->routing_pairs, watch->skip_first};
    if (s->k->upload(s->device, s->id, 0, b->id, rows, st) ||
        s->k->upload(s->device, s->target, 0, s->host_target, rows, st) ||
        s->k->depth_begin(s->axis, &b->layout, &wants, st) ||
        (base ? lend_values(s, base, first, st) : make_embedding(s, b, st)))
        return FAILED;
    int rc = DONE;
    for (size_t i = first; i < p->sublayers && !rc; i++)
        rc = run_sublayer(s, b, watch, &p->sublayer[i], &s->steps[i], st);
    const steps *last = &s->steps[p->sublayers];
    if (!rc)
        rc = read_site(s, b, watch, p->plan.sites - 1, last, model_tensors(s->model)->norm, st);
    if (!rc)
        rc = run_head(s, b, watch, last, st);
    if (!rc)
        s->ready_rows = rows;
    return rc;
}

static int run_batch(session *s, session *base, size_t first, const batch *b, const observer *watch,
                     status *st) {
    int rc = session_board(s, st);
    if (rc)
        return rc;
    rc = submit(s, base, first, b, watch, st);
    if (!rc && watch && !s->limits.backward)
        rc = session_show(s, b, watch, &(any_view){.kind = VIEW_DONE}, st);
    if (!rc)
        rc = session_depart(s, st);
    return session_land(s, rc, st);
}

int session_forward(session *s, const batch *b, const observer *watch, status *st) {
    return run_batch(s, NULL, 0, b, watch, st);
}

int session_resume(session *s, session *base, size_t sublayers, const batch *b,
                   const observer *watch, status *st) {
    if (s == base || s->limits.backward || !base->limits.keep ||
        base->ready_rows != b->layout.rows ||
        sublayers > depth_program_common(s->program, base->program))
        return status_fail(st,
                           "session: cannot resume after %zu sublayers of a pass that kept %zu "
                           "tokens and has %zu sublayers in common",
                           sublayers, base->limits.keep ? base->ready_rows : 0,
                           depth_program_common(s->program, base->program));
    return run_batch(s, base, sublayers, b, watch, st);
}
