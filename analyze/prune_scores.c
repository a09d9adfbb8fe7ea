#include "analyze/prune_scores.h"

#include "probes/layer_change.h"
#include "probes/reader_influence.h"
#include "runtime/base/interrupt.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[SCORES] = {
    [SCORE_BLOCK_INFLUENCE] = "block_influence",
    [SCORE_MIX_CHANGE] = "mix_change",
    [SCORE_ANGULAR_LAST] = "angular_last",
    [SCORE_ANGULAR_ALL] = "angular_all",
    [SCORE_READER_INFLUENCE] = "reader_influence",
    [SCORE_ROUTING_UTILITY] = "routing_utility",
    [SCORE_MEAN_MASS] = "mean_mass",
    [SCORE_CONTRIBUTION] = "contribution",
};

const char *score_name(score_kind score) {
    return names[score];
}

bool score_defined(const model_config *c, score_kind score, unit_kind kind) {
    const bool replaces = mode_is_full(c->mode) || mode_is_block(c->mode);
    switch (score) {
    case SCORE_BLOCK_INFLUENCE:
        return !replaces && kind == UNIT_LAYER;
    case SCORE_MIX_CHANGE:
        return replaces && kind == UNIT_LAYER;
    case SCORE_ANGULAR_LAST:
    case SCORE_ANGULAR_ALL:
        return kind == UNIT_LAYER;
    case SCORE_READER_INFLUENCE:
        return reader_influence_defined(c);
    case SCORE_ROUTING_UTILITY:
        return mode_is_full(c->mode);
    case SCORE_MEAN_MASS:
    case SCORE_CONTRIBUTION:
        return mode_is_full(c->mode) || c->mode == MODE_DELTA;
    case SCORES:
        break;
    }
    return false;
}

/* The pass: three observers behind one. */
typedef struct measuring {
    const model_config *config;
    depth_program *program;
    session *session;
    prune_scores *scores;
    layer_change *change;
    reader_influence *readers; /* NULL where not defined */
    observer of_change, of_readers;
    bool *in; /* [sites] what either wants */
    size_t *start;
    double *routed;   /* [sequences of a batch, 3, sublayers] sums over later sites of mass, of 1/S,
                         of   contribution */
    size_t *readings; /* [sublayers] later sites so far */
} measuring;

/* ---- sources ---- */

/* Adds what one site gives each sublayer's output, per sequence. */
static void add_routing(measuring *p, const batch *b, const site_view *view) {
    const depth_program *program = p->program;
    const depth_site *site = &program->plan.site[view->site];
    const routing_layout *layout = &view->sums_layout;
    const size_t sublayers = 2 * p->config->layers;
    for (size_t k = 0; k < program->sublayers; k++) {
        size_t s = 0, index = program->sublayer[k].index;
        while (s < view->sources && site->source[s] != program->sublayer[k].out)
            s++;
        if (s == view->sources)
            continue;
        p->readings[index]++;
        for (size_t i = 0; i < b->layout.sequences; i++) {
            const double *sums = view->sums + i * layout->total;
            const double count = sums[layout->tokens] * (double)layout->heads;
            double *to = p->routed + i * 3 * sublayers + index, mass = 0, contribution = 0;
            for (size_t h = 0; h < layout->heads; h++) {
                mass += sums[layout->mean + h * layout->sources + s];
                contribution += sums[layout->contribution + h * layout->sources + s];
            }
            to[0] += mass / count;
            to[sublayers] += 1 / (double)view->sources;
            to[2 * sublayers] += contribution / count;
        }
    }
}

static int on_site(void *self, const batch *b, const site_view *view, status *st) {
    measuring *p = self;
    if (view->sums && view->sources > 1 && score_defined(p->config, SCORE_MEAN_MASS, UNIT_ATTN))
        add_routing(p, b, view);
    if (p->of_change.on_site(p->change, b, view, st))
        return FAILED;
    return p->readers ? p->of_readers.on_site(p->readers, b, view, st) : DONE;
}

static int on_sublayer(void *self, const batch *b, const sublayer_view *view, status *st) {
    measuring *p = self;
    return p->readers ? p->of_readers.on_sublayer(p->readers, b, view, st) : DONE;
}

/* ---- one sequence's values ---- */

size_t score_cell(const prune_scores *scores, score_kind score, unit_kind kind, size_t layer) {
    return ((size_t)score * UNIT_KINDS + (size_t)kind) * scores->layers + layer;
}

static void put(measuring *p, size_t sequence, score_kind score, unit_kind kind, size_t layer,
                double value) {
    prune_scores *s = p->scores;
    if (score_defined(p->config, score, kind) && unit_exists(p->config, kind, layer))
        s->value[sequence * SCORES * UNIT_KINDS * s->layers + score_cell(s, score, kind, layer)] =
            value;
}

/* Of one source, or of a layer's two; NaN where a source has no later site. */
static double routed(const measuring *p, size_t i, unit_kind kind, size_t layer, size_t what) {
    const size_t sublayers = 2 * p->config->layers;
    double sum = 0;
    for (size_t k = 0; k < 2; k++) {
        size_t index = 2 * layer + k;
        if ((kind == UNIT_ATTN && k == 1) || (kind == UNIT_MLP && k == 0) ||
            p->config->removed[index])
            continue;
        const double *from = p->routed + i * 3 * sublayers + index;
        const double readings = (double)p->readings[index];
        sum += what == 2 ? from[2 * sublayers] / readings
                         : (from[0] - (what ? from[sublayers] : 0)) / readings;
    }
    return sum;
}

static void take_sequence(measuring *p, const batch *b, size_t i) {
    prune_scores *s = p->scores;
    const size_t sequence = b->first + i, layers = s->layers;
    const layer_change_means m = layer_change_of(p->change, i);
    const double *influence = p->readers ? reader_influence_of(p->readers, i) : NULL;
    s->tokens[sequence] = (double)m.tokens;
    s->left_out += m.left_out;
    for (size_t l = 0; l < layers; l++) {
        put(p, sequence, SCORE_MIX_CHANGE, UNIT_LAYER, l, m.mix_change[l]);
        if (m.block_influence)
            put(p, sequence, SCORE_BLOCK_INFLUENCE, UNIT_LAYER, l, m.block_influence[l]);
        put(p, sequence, SCORE_ANGULAR_LAST, UNIT_LAYER, l, m.angle_last[l]);
        put(p, sequence, SCORE_ANGULAR_ALL, UNIT_LAYER, l, m.angle_all[l]);
        for (unit_kind kind = 0; kind < UNIT_KINDS; kind++) {
            if (influence)
                put(p, sequence, SCORE_READER_INFLUENCE, kind, l,
                    influence[(size_t)kind * layers + l]);
            put(p, sequence, SCORE_MEAN_MASS, kind, l, routed(p, i, kind, l, 0));
            put(p, sequence, SCORE_ROUTING_UTILITY, kind, l, routed(p, i, kind, l, 1));
            put(p, sequence, SCORE_CONTRIBUTION, kind, l, routed(p, i, kind, l, 2));
        }
    }
    for (size_t k = 0; k < s->most_skipped * layers; k++) {
        s->angle_all[k] += m.angle_all[k] * (double)m.tokens;
        s->angle_last[k] += m.angle_last[k];
    }
}

/* ---- the pass ---- */

static int prepare(measuring *p, const model *m, const text_windows *w,
                   const session_limits *limits, status *st) {
    prune_scores *s = p->scores;
    const size_t cells = SCORES * UNIT_KINDS * s->layers;
    s->value = mem_array(w->sequences * cells, sizeof *s->value, "scores", st);
    s->tokens = mem_array(w->sequences, sizeof *s->tokens, "scores", st);
    s->angle_all = mem_array(s->most_skipped * s->layers, sizeof *s->angle_all, "angles", st);
    s->angle_last = mem_array(s->most_skipped * s->layers, sizeof *s->angle_last, "angles", st);
    if (!s->value || !s->tokens || !s->angle_all || !s->angle_last)
        return FAILED;
    for (size_t i = 0; i < w->sequences * cells; i++)
        s->value[i] = (double)NAN;
    if (depth_program_build(p->config, NULL, &p->program, st) ||
        session_create(m, p->program, limits, &p->session, st) ||
        layer_change_create(p->program, limits, s->most_skipped, &p->change, st) ||
        (reader_influence_defined(p->config) &&
         reader_influence_create(m, p->program, limits, &p->readers, st)))
        return FAILED;
    const size_t sites = p->program->plan.sites;
    p->in = mem_array(sites, sizeof *p->in, "scores", st);
    p->start = mem_array(limits->sequences + 1, sizeof *p->start, "sequences", st);
    p->routed = mem_array(limits->sequences, 6 * s->layers * sizeof *p->routed, "scores", st);
    p->readings = mem_array(2 * s->layers, sizeof *p->readings, "scores", st);
    if (!p->in || !p->start || !p->routed || !p->readings)
        return FAILED;
    layer_change_watch(p->change, &p->of_change);
    if (p->readers)
        reader_influence_watch(p->readers, &p->of_readers);
    for (size_t i = 0; i < sites; i++)
        p->in[i] = p->of_change.in[i] || (p->readers && p->of_readers.in[i]);
    return DONE;
}

static int run_batch(measuring *p, const text_windows *w, size_t first, size_t count, status *st) {
    const size_t sublayers = 2 * p->config->layers;
    observer watch = {.self = p,
                      .routing_sums = p->config->mode != MODE_NONE,
                      .weights = p->of_readers.weights,
                      .in = p->in,
                      .base = p->of_change.base ? p->of_change.base : p->of_readers.base,
                      .out = p->of_readers.out,
                      .on_site = on_site,
                      .on_sublayer = on_sublayer};
    for (size_t i = 0; i <= count; i++)
        p->start[i] = w->start[first + i] - w->start[first];
    const batch b = {.layout = {.sequences = count, .rows = p->start[count], .start = p->start},
                     .id = w->id + w->start[first],
                     .first = first,
                     .offset = w->offset + first};
    memset(p->routed, 0, count * 3 * sublayers * sizeof *p->routed);
    memset(p->readings, 0, sublayers * sizeof *p->readings);
    int rc = session_forward(p->session, &b, &watch, st);
    if (!rc)
        rc = session_finish(p->session, st);
    for (size_t i = 0; i < count && !rc; i++)
        take_sequence(p, &b, i);
    return rc;
}

static int run(measuring *p, const text_windows *w, size_t most, status *st) {
    prune_scores *s = p->scores;
    double tokens = 0;
    int rc = DONE;
    for (size_t first = 0; first < w->sequences && !rc; first += most) {
        if (interrupt_pending()) {
            status_fail(st, "interrupted");
            return INTERRUPTED;
        }
        rc = run_batch(p, w, first, w->sequences - first < most ? w->sequences - first : most, st);
    }
    for (size_t i = 0; i < s->sequences; i++)
        tokens += s->tokens[i];
    for (size_t k = 0; k < s->most_skipped * s->layers; k++) {
        s->angle_all[k] /= tokens;
        s->angle_last[k] /= (double)s->sequences;
    }
    if (p->readers)
        s->left_out += reader_influence_left_out(p->readers);
    return rc;
}

int prune_scores_measure(const model *m, const text_windows *w, const session_limits *limits,
                         size_t most_skipped, prune_scores *scores, status *st) {
    *scores = (prune_scores){.layers = model_configuration(m)->layers,
                             .sequences = w->sequences,
                             .most_skipped = most_skipped};
    measuring p = {.config = model_configuration(m), .scores = scores};
    int rc = prepare(&p, m, w, limits, st);
    if (!rc)
        rc = run(&p, w, limits->sequences, st);
    session_free(p.session);
    layer_change_free(p.change);
    reader_influence_free(p.readers);
    depth_program_free(p.program);
    free(p.in);
    free(p.start);
    free(p.routed);
    free(p.readings);
    return rc;
}

void prune_scores_clear(prune_scores *s) {
    free(s->value);
    free(s->tokens);
    free(s->angle_all);
    free(s->angle_last);
    *s = (prune_scores){0};
}

void score_weights(const prune_scores *s, score_kind score, double *weight) {
    for (size_t i = 0; i < s->sequences; i++)
        weight[i] = score == SCORE_ANGULAR_LAST ? 1 : s->tokens[i];
}

double score_mean(const prune_scores *s, score_kind score, unit_kind kind, size_t layer) {
    double sum = 0, total = 0;
    for (size_t i = 0; i < s->sequences; i++) {
        double weight = score == SCORE_ANGULAR_LAST ? 1 : s->tokens[i];
        sum += weight *
               s->value[i * SCORES * UNIT_KINDS * s->layers + score_cell(s, score, kind, layer)];
        total += weight;
    }
    return sum / total;
}
