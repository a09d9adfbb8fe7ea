/* forward.c - the instrumented forward pass: reads the depth program, knows no modes. */
#include "runtime/session_state.h"

#include <stdlib.h>

/* ---- observing ---- */

/* The device buffer of a result, at least `elements` long; NULL with `st` filled without memory. */
static buffer *seen_device(session *s, observed what, size_t elements, status *st) {
    seen *slot = &s->seen[what];
    if (slot->device_elements < elements) {
        s->k->buffer_free(s->device, slot->device);
        slot->device = NULL;
        slot->device_elements = 0;
        if (s->k->buffer_create(s->device, BUFFER_EXACT, elements, &slot->device, st))
            return NULL;
        slot->device_elements = elements;
    }
    return slot->device;
}

/* The first `elements` of `from` in host memory: the backend's own where the host can read it. */
static const void *seen_host(session *s, observed what, const buffer *from, size_t elements,
                             status *st) {
    const void *direct = s->k->host(s->device, from);
    if (direct)
        return direct;
    const size_t bytes = elements * sizeof(float);
    seen *slot = &s->seen[what];
    if (slot->host_bytes < bytes) {
        free(slot->host);
        slot->host_bytes = 0;
        if (!(slot->host = mem_array(bytes, 1, "observed tensor", st)))
            return NULL;
        slot->host_bytes = bytes;
    }
    return s->k->download(s->device, from, 0, slot->host, elements, st) ? NULL : slot->host;
}

static int fetch(session *s, observed what, const buffer *from, size_t elements, const float **out,
                 status *st) {
    *out = seen_host(s, what, from, elements, st);
    return *out ? DONE : FAILED;
}

int session_measure(session *s, size_t rows, const buffer *from, const observed what[4],
                    const void *out[4], status *st) {
    buffer *device[4] = {NULL};
    for (size_t i = 0; i < 4; i++)
        if (what[i] != SEEN_COUNT && !(device[i] = seen_device(s, what[i], rows, st)))
            return FAILED;
    magnitude_args args = {.rows = rows,
                           .width = s->program->plan.width,
                           .in = from,
                           .rms = device[0],
                           .absmax = device[1],
                           .absmax_channel = device[2],
                           .median_abs = device[3]};
    if (s->k->magnitude(s->device, &args, st))
        return FAILED;
    for (size_t i = 0; i < 4; i++)
        if (device[i] && !(out[i] = seen_host(s, what[i], device[i], rows, st)))
            return FAILED;
    return DONE;
}

/* Host memory for `need` doubles. */
static int need_doubles(double **memory, size_t *count, size_t need, status *st) {
    if (*count >= need)
        return DONE;
    free(*memory);
    *count = 0;
    *memory = mem_array(need, sizeof **memory, "routing sums", st);
    if (!*memory)
        return FAILED;
    *count = need;
    return DONE;
}

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
    if (need_doubles(&s->alternative, &s->alternative_count, sums + variances, st))
        return FAILED;
    view->alternative_sums = sums ? s->alternative : NULL;
    view->alternative_variance = variances ? s->alternative + sums : NULL;
    const depth_alternative_args args = {.site = view->site,
                                         .count = other->count,
                                         .folded = other->folded,
                                         .sequence = watch->alternative_sequence,
                                         .pairs = watch->routing_pairs,
                                         .sums = sums ? s->alternative : NULL,
                                         .variance = variances ? s->alternative + sums : NULL};
    return s->k->depth_alternative(s->axis, &args, st);
}

static int observe_site(session *s, const batch *b, const observer *watch, size_t index,
                        const buffer *in, const buffer *weights, status *st) {
    const depth_plan *plan = &s->program->plan;
    const depth_site *site = &plan->site[index];
    size_t rows = b->layout.rows, sources = (size_t)site->sources;
    site_view view = {.site = index, .sources = sources};
    if (watch->magnitudes) {
        const observed what[4] = {SEEN_IN_RMS, SEEN_COUNT, SEEN_COUNT, SEEN_COUNT};
        const void *found[4] = {NULL};
        if (session_measure(s, rows, in, what, found, st))
            return FAILED;
        view.in_rms = found[0];
    }
    if (watch->in && watch->in[index] && fetch(s, SEEN_IN, in, rows * plan->width, &view.in, st))
        return FAILED;
    if (watch->base && watch->base[index] && site->base != NO_VALUE &&
        fetch(s, SEEN_BASE, s->k->depth_storage(s->axis, (size_t)site->base), rows * plan->width,
              &view.base, st))
        return FAILED;
    if (weights && fetch(s, SEEN_WEIGHTS, weights, rows * plan->heads * sources, &view.weights, st))
        return FAILED;
    if (watch->routing_sums && sources > 0) {
        view.sums_layout =
            routing_layout_of(plan->heads, sources, site->null_source, watch->routing_pairs);
        if (need_doubles(&s->sums, &s->sums_count, s->limits.sequences * view.sums_layout.total,
                         st) ||
            s->k->depth_sums(s->axis, index, s->sums, st))
            return FAILED;
        view.sums = s->sums;
    }
    if (watch->alternatives && watch->alternatives[index].count > 0 &&
        observe_alternatives(s, b, watch, &view, st))
        return FAILED;
    return watch->on_site ? watch->on_site(watch->self, b, &view, st) : DONE;
}

/* Attention results beside its output, made by attention() below. */
static int fetch_attention(session *s, const batch *b, const observer *watch, size_t layer,
                           sublayer_view *view, status *st) {
    size_t heads = model_configuration(s->model)->query_heads;
    if (watch->attention) {
        size_t n = b->layout.rows * heads;
        if (fetch(s, SEEN_ENTROPY, s->seen[SEEN_ENTROPY].device, n, &view->attention_entropy, st) ||
            fetch(s, SEEN_FIRST_TOKEN_MASS, s->seen[SEEN_FIRST_TOKEN_MASS].device, n,
                  &view->attention_first_token_mass, st))
            return FAILED;
    }
    if (watch->pattern && watch->pattern[layer]) {
        const seen *pattern = &s->seen[SEEN_PATTERN];
        return fetch(s, SEEN_PATTERN, pattern->device, pattern->device_elements,
                     &view->attention_pattern, st);
    }
    return DONE;
}

static int observe_sublayer(session *s, const batch *b, const observer *watch,
                            const depth_sublayer *sublayer, status *st) {
    size_t rows = b->layout.rows, whole = rows * s->program->plan.width;
    sublayer_view view = {.sublayer = sublayer};
    const buffer *out = s->k->depth_storage(s->axis, (size_t)sublayer->out);
    const buffer *state =
        sublayer->state == NO_VALUE ? NULL : s->k->depth_storage(s->axis, (size_t)sublayer->state);
    if (watch->magnitudes) {
        const observed of_out[4] = {SEEN_OUT_RMS, SEEN_OUT_ABSMAX, SEEN_COUNT, SEEN_COUNT};
        const observed of_state[4] = {SEEN_STATE_RMS, SEEN_STATE_ABSMAX, SEEN_STATE_ABSMAX_CHANNEL,
                                      SEEN_STATE_MEDIAN_ABS};
        const void *found[8] = {NULL};
        if (session_measure(s, rows, out, of_out, found, st) ||
            (state && session_measure(s, rows, state, of_state, found + 4, st)))
            return FAILED;
        view.out_rms = found[0];
        view.out_absmax = found[1];
        view.state_rms = found[4];
        view.state_absmax = found[5];
        view.state_absmax_channel = found[6];
        view.state_median_abs = found[7];
    }
    if (watch->out && watch->out[sublayer->index] && fetch(s, SEEN_OUT, out, whole, &view.out, st))
        return FAILED;
    if (state && watch->state && watch->state[sublayer->index] &&
        fetch(s, SEEN_STATE, state, whole, &view.state, st))
        return FAILED;
    if (sublayer->kind == SUBLAYER_ATTN && fetch_attention(s, b, watch, sublayer->layer, &view, st))
        return FAILED;
    return watch->on_sublayer ? watch->on_sublayer(watch->self, b, &view, st) : DONE;
}

/* ---- computing ---- */

static int read_site(session *s, const batch *b, const observer *watch, size_t index, buffer *in,
                     status *st) {
    const depth_plan *plan = &s->program->plan;
    size_t sources = (size_t)plan->site[index].sources;
    buffer *weights = NULL;
    if (watch && watch->weights && sources > 0) {
        size_t elements = s->limits.rows * plan->heads * s->most_sources;
        if (!(weights = seen_device(s, SEEN_WEIGHTS, elements, st)))
            return FAILED;
    }
    depth_read_args args = {.site = index, .in = in, .weights = weights};
    if (s->k->depth_read(s->axis, &args, st))
        return FAILED;
    return watch ? observe_site(s, b, watch, index, in, weights, st) : DONE;
}

static int pre_norm(session *s, const batch *b, const steps *at, const buffer *gain, status *st) {
    const model_config *c = model_configuration(s->model);
    norm_args args = {.kind = NORM_RMS,
                      .rows = b->layout.rows,
                      .width = c->width,
                      .eps = c->eps,
                      .in = at->in,
                      .gain = gain,
                      .out = at->normed};
    return s->k->norm(s->device, &args, st);
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

static int attention(session *s, const batch *b, const observer *watch,
                     const depth_sublayer *sublayer, const steps *at, buffer *out, status *st) {
    const model_config *c = model_configuration(s->model);
    const layer_weights *w = &model_tensors(s->model)->layer[sublayer->layer];
    size_t heads_width = c->query_heads * c->head_dim;
    size_t extras = s->limits.rows * c->query_heads, pattern = 0;
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
        (!(attend.entropy = seen_device(s, SEEN_ENTROPY, extras, st)) ||
         !(attend.first_token_mass = seen_device(s, SEEN_FIRST_TOKEN_MASS, extras, st))))
        return FAILED;
    if (watch && watch->pattern && watch->pattern[sublayer->layer] &&
        !(attend.pattern = seen_device(s, SEEN_PATTERN, pattern, st)))
        return FAILED;
    if (pre_norm(s, b, at, w->attn_norm, st) || s->k->linear(s->device, &project, st) ||
        s->k->rotary(s->device, &rotate, st) || s->k->attention(s->device, &attend, st))
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
    if (pre_norm(s, b, at, w->mlp_norm, st) || s->k->linear(s->device, &up, st) ||
        s->k->swiglu(s->device, &act, st))
        return FAILED;
    return s->k->linear(s->device, &down, st);
}

static int run_sublayer(session *s, const batch *b, const observer *watch,
                        const depth_sublayer *sublayer, const steps *at, status *st) {
    int rc = read_site(s, b, watch, sublayer->site, at->in, st);
    if (rc)
        return rc;
    buffer *out = s->k->depth_storage(s->axis, (size_t)sublayer->out);
    rc = sublayer->kind == SUBLAYER_ATTN ? attention(s, b, watch, sublayer, at, out, st)
                                         : mlp(s, b, sublayer, at, out, st);
    if (rc || s->k->depth_made(s->axis, (size_t)sublayer->out, st))
        return FAILED;
    return watch ? observe_sublayer(s, b, watch, sublayer, st) : DONE;
}

static int run_head(session *s, const batch *b, const observer *watch, const steps *at,
                    status *st) {
    const model_config *c = model_configuration(s->model);
    const model_weights *w = model_tensors(s->model);
    size_t rows = b->layout.rows, all = rows * c->vocabulary;
    buffer *loss = seen_device(s, SEEN_LOSS, s->limits.rows, st), *logits = NULL;
    if (!loss || (watch && watch->logits && !(logits = seen_device(s, SEEN_LOGITS, all, st))))
        return FAILED;
    head_args head = {.layout = &b->layout,
                      .width = c->width,
                      .vocabulary = c->vocabulary,
                      .in = at->normed,
                      .weight = w->head,
                      .target = s->target,
                      .loss = loss,
                      .logits = logits};
    if (pre_norm(s, b, at, w->norm, st) || s->k->head(s->device, &head, st))
        return FAILED;
    if (!watch || !watch->on_head)
        return DONE;
    head_view view = {0};
    if (fetch(s, SEEN_LOSS, loss, rows, &view.loss, st) ||
        (logits && fetch(s, SEEN_LOGITS, logits, all, &view.logits, st)))
        return FAILED;
    return watch->on_head(watch->self, b, &view, st);
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
static int run_batch(session *s, session *base, size_t first, const batch *b, const observer *watch,
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
        rc = read_site(s, b, watch, p->plan.sites - 1, last->in, st);
    if (!rc)
        rc = run_head(s, b, watch, last, st);
    if (!rc)
        s->ready_rows = rows;
    return rc;
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

int session_finish(session *s, status *st) {
    return s->k->wait(s->device, st);
}
