/* prune_table.c - the sections of `fathom prune`. Assumptions: sequences are the unit of
 * uncertainty; differences of losses are paired by sequence; the bootstrap's draws depend on the
 * number of units and the seed alone, so scores and losses of one text see the same ones. */
#include "analyze/prune.h"
#include "analyze/rank_agreement.h"
#include "analyze/table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One text's draws and what the whole model loses on it. */
typedef struct judged {
    size_t text, sequences;
    double *weight; /* [sequences] predicted tokens */
    double tokens;
    const double *whole; /* [sequences] summed losses */
    bootstrap *b;
} judged;

typedef struct writer {
    FILE *out;
    const prune_result *r;
    const model_config *config;
    size_t sublayers;
    judged selection, evaluation; /* b NULL: not there */
    unit_cost whole;
    double length; /* of the selection's sequences, on average */
    bool *no_set;  /* [sublayers] all false */
} writer;

static void judged_clear(judged *j) {
    bootstrap_free(j->b);
    free(j->weight);
}

static int judge(const writer *w, size_t text, const text_windows *windows, judged *j, status *st) {
    const sampling *s = &w->r->settings->sampling;
    *j = (judged){.text = text, .sequences = windows->sequences};
    if (!windows->sequences)
        return DONE;
    if (!(j->weight = mem_array(j->sequences, sizeof *j->weight, "tokens", st)))
        return FAILED;
    j->tokens = text_windows_weights(windows, j->weight);
    j->whole = set_losses_of(w->r->losses, text, w->no_set);
    if (!j->whole)
        return DONE;
    return text_windows_draw(windows, j->weight, s->resamples, s->seed, s->level, &j->b, st);
}

/* Draws [1 + resamples, count] of the mean loss without each set, less the whole model's where
 * `difference`. */
static int loss_draws(const writer *w, const judged *j, const bool *const *set, size_t count,
                      bool difference, double *draws, status *st) {
    double *row = mem_array(j->sequences * count, sizeof *row, "losses", st);
    if (!row)
        return FAILED;
    for (size_t k = 0; k < count; k++) {
        const double *loss = set_losses_of(w->r->losses, j->text, set[k]);
        for (size_t i = 0; i < j->sequences; i++)
            row[i * count + k] = (loss[i] - (difference ? j->whole[i] : 0)) / j->weight[i];
    }
    int rc = bootstrap_means(j->b, row, count, NULL, count, draws, st);
    free(row);
    return rc;
}

static void put_interval(FILE *out, interval i) {
    table_real(out, i.value);
    table_real(out, i.low);
    table_real(out, i.high);
}

/* ---- RUN ---- */

static void put_run(const writer *w) {
    const prune_result *r = w->r;
    const prune_settings *s = r->settings;
    const set_losses_count count = set_losses_counted(r->losses);
    const judged *j[] = {&w->selection, &w->evaluation};
    static const char *const prefix[] = {"", "evaluation_"};
    FILE *out = w->out;
    table_section(out, "RUN", "the model, the texts and this analysis", "key, value",
                  "loss in nats/token, parameters, FLOPs/token, sublayers run for one sequence");
    table_key_text(out, "RUN", "model_path", model_path(r->m));
    table_key_text(out, "RUN", "residual_mode", mode_name(w->config->mode));
    table_key_size(out, "RUN", "layers", w->config->layers);
    table_key_real(out, "RUN", "parameters", w->whole.parameters);
    table_key_real(out, "RUN", "flops", w->whole.flops);
    table_key_text(out, "RUN", "removal", removal_name(s->removal));
    table_key_text(out, "RUN", "unit", unit_kind_name(s->unit));
    table_key_size(out, "RUN", "budget", s->budget);
    table_key_text(out, "RUN", "tokenizer", r->tokenizer);
    for (size_t t = 0; t < TEXTS; t++) {
        char key[64], hex[65];
        if (!j[t]->b)
            continue;
        double loss = 0;
        for (size_t i = 0; i < j[t]->sequences; i++)
            loss += j[t]->whole[i] / j[t]->tokens;
        text_windows_hash(t ? &r->evaluation : &r->selection, hex);
#define KEY(name) (snprintf(key, sizeof key, "%s" name, prefix[t]), key)
        table_key_size(out, "RUN", KEY("sequences"), j[t]->sequences);
        table_key_size(out, "RUN", KEY("units"), bootstrap_units(j[t]->b));
        table_key_real(out, "RUN", KEY("tokens"), j[t]->tokens);
        table_key_real(out, "RUN", KEY("loss"), loss);
        table_key_text(out, "RUN", KEY("tokens_sha256"), hex);
#undef KEY
    }
    table_key_text(out, "RUN", "evaluation_from", r->evaluation_from);
    table_key_size(out, "RUN", "evaluation_shared", r->shared);
    table_key_size(out, "RUN", "sets", count.sets);
    table_key_real(out, "RUN", "sublayers_run", count.shared);
    table_key_real(out, "RUN", "sublayers_naive", count.naive);
    if (r->scores)
        table_key_size(out, "RUN", "left_out", r->scores->left_out);
    table_key_size(out, "RUN", "resamples", s->sampling.resamples);
    table_key_real(out, "RUN", "level", s->sampling.level);
    table_key_size(out, "RUN", "seed", (size_t)s->sampling.seed);
}

/* ---- ONE, SCO, AGR: units one at a time ---- */

/* The units of one kind with their draws. */
typedef struct kind_units {
    unit_kind kind;
    size_t count;
    size_t *layer;      /* [count] */
    bool *set;          /* [count, sublayers] */
    const bool **asked; /* [count] */
    double *delta;      /* [draws, count] */
    double *score;      /* [draws, count] of the score at hand */
    interval *range;    /* [count] */
} kind_units;

static void kind_units_clear(kind_units *u) {
    free(u->layer);
    free(u->set);
    free(u->asked);
    free(u->delta);
    free(u->score);
    free(u->range);
}

static int kind_units_init(const writer *w, unit_kind kind, kind_units *u, status *st) {
    const size_t layers = w->config->layers, draws = bootstrap_draws(w->selection.b);
    *u = (kind_units){.kind = kind};
    u->layer = mem_array(layers, sizeof *u->layer, "units", st);
    u->set = mem_array(layers, w->sublayers * sizeof *u->set, "units", st);
    u->asked = mem_array(layers, sizeof *u->asked, "units", st);
    u->delta = mem_array(layers * draws, sizeof *u->delta, "draws", st);
    u->score = mem_array(layers * draws, sizeof *u->score, "draws", st);
    u->range = mem_array(layers, sizeof *u->range, "units", st);
    if (!u->layer || !u->set || !u->asked || !u->delta || !u->score || !u->range)
        return FAILED;
    for (size_t l = 0; l < layers; l++) {
        if (!unit_exists(w->config, kind, l))
            continue;
        bool *set = u->set + u->count * w->sublayers;
        unit_mark(kind, l, set);
        if (!set_losses_of(w->r->losses, SELECTION, set))
            continue; /* the only one: nothing would be left */
        u->asked[u->count] = set;
        u->layer[u->count++] = l;
    }
    return u->count ? loss_draws(w, &w->selection, u->asked, u->count, true, u->delta, st) : DONE;
}

static int put_one(const writer *w, const kind_units *u) {
    bootstrap_intervals(w->selection.b, u->delta, u->count, u->range);
    for (size_t i = 0; i < u->count; i++) {
        const unit_cost cost = units_cost(w->r->m, u->asked[i], w->length);
        table_row(w->out, "ONE");
        table_text(w->out, unit_kind_name(u->kind));
        table_size(w->out, u->layer[i]);
        table_text(w->out, unit_name(u->kind, u->layer[i]).text);
        put_interval(w->out, u->range[i]);
        table_real(w->out, cost.parameters);
        table_real(w->out, cost.parameters / w->whole.parameters);
        table_real(w->out, cost.flops);
        table_real(w->out, cost.flops / w->whole.flops);
        table_end(w->out);
    }
    return DONE;
}

/* Fills u->score: draws of one score of every unit. */
static int score_draws(const writer *w, kind_units *u, score_kind score, status *st) {
    const prune_scores *s = w->r->scores;
    const sampling *how = &w->r->settings->sampling;
    const size_t stride = SCORES * UNIT_KINDS * s->layers;
    bootstrap *b = NULL;
    int rc = FAILED;
    double *weight = mem_array(s->sequences, sizeof *weight, "tokens", st);
    size_t *cell = mem_array(u->count, sizeof *cell, "units", st);
    if (weight && cell) {
        score_weights(s, score, weight);
        for (size_t i = 0; i < u->count; i++)
            cell[i] = score_cell(s, score, u->kind, u->layer[i]);
        rc = text_windows_draw(&w->r->selection, weight, how->resamples, how->seed, how->level, &b,
                               st);
    }
    if (!rc)
        rc = bootstrap_means(b, s->value, stride, cell, u->count, u->score, st);
    bootstrap_free(b);
    free(weight);
    free(cell);
    return rc;
}

static int put_scores(const writer *w, kind_units *u, status *st) {
    for (score_kind score = 0; score < SCORES; score++) {
        if (!score_defined(w->config, score, u->kind) || !u->count)
            continue;
        if (score_draws(w, u, score, st))
            return FAILED;
        bootstrap_intervals(w->selection.b, u->score, u->count, u->range);
        for (size_t i = 0; i < u->count; i++) {
            table_row(w->out, "SCO");
            table_text(w->out, unit_kind_name(u->kind));
            table_size(w->out, u->layer[i]);
            table_text(w->out, unit_name(u->kind, u->layer[i]).text);
            table_text(w->out, score_name(score));
            put_interval(w->out, u->range[i]);
            table_end(w->out);
        }
    }
    return DONE;
}

static int put_agreement(const writer *w, kind_units *u, status *st) {
    for (score_kind score = 0; score < SCORES; score++) {
        interval spearman, kendall;
        if (!score_defined(w->config, score, u->kind) || !u->count)
            continue;
        if (score_draws(w, u, score, st) ||
            rank_agreement_intervals(w->selection.b, u->score, u->delta, u->count, &spearman,
                                     &kendall, st))
            return FAILED;
        table_row(w->out, "AGR");
        table_text(w->out, unit_kind_name(u->kind));
        table_text(w->out, score_name(score));
        table_size(w->out, u->count);
        put_interval(w->out, spearman);
        put_interval(w->out, kendall);
        table_real(w->out, rank_agreement_threshold(u->count));
        table_end(w->out);
    }
    return DONE;
}

static void head_one(FILE *out) {
    table_section(out, "ONE", "each unit removed by itself, selection text",
                  "kind, layer, unit, delta_loss, low, high, parameters, parameters_share, flops, "
                  "flops_share",
                  "delta_loss in nats/token, FLOPs/token");
}

static void head_scores(FILE *out) {
    table_section(out, "SCO", "cheap scores of the units, selection text",
                  "kind, layer, unit, score, value, low, high",
                  "1; angular_last, angular_all in pi");
}

static void head_agreement(FILE *out) {
    table_comment(out, "AGR: the intervals cover the choice of text, not that of layers. Below "
                       "not_significant_below a |spearman| of so many units is no evidence of "
                       "agreement (two-sided, 5 %%).");
    table_section(out, "AGR", "rank agreement of each score with delta_loss over units",
                  "kind, score, units, spearman, low, high, kendall, kendall_low, kendall_high, "
                  "not_significant_below",
                  "1");
}

static int put_units(const writer *w, status *st) {
    kind_units unit[UNIT_KINDS] = {0};
    int rc = DONE;
    for (unit_kind k = 0; k < UNIT_KINDS && !rc; k++)
        rc = kind_units_init(w, k, &unit[k], st);
    if (!rc)
        head_one(w->out);
    for (unit_kind k = 0; k < UNIT_KINDS && !rc; k++)
        rc = put_one(w, &unit[k]);
    if (!rc)
        head_scores(w->out);
    for (unit_kind k = 0; k < UNIT_KINDS && !rc; k++)
        rc = put_scores(w, &unit[k], st);
    if (!rc)
        head_agreement(w->out);
    for (unit_kind k = 0; k < UNIT_KINDS && !rc; k++)
        rc = put_agreement(w, &unit[k], st);
    for (unit_kind k = 0; k < UNIT_KINDS; k++)
        kind_units_clear(&unit[k]);
    return rc;
}

/* ---- ANG ---- */

static void put_angles(const writer *w) {
    const prune_scores *s = w->r->scores;
    table_section(w->out, "ANG", "angle between what layer and layer + skipped read, over pi",
                  "skipped, layer, angular_last, angular_all", "pi");
    for (size_t n = 1; n <= s->most_skipped; n++)
        for (size_t l = 0; l + n <= s->layers; l++) {
            table_row(w->out, "ANG");
            table_size(w->out, n);
            table_size(w->out, l);
            table_real(w->out, s->angle_last[(n - 1) * s->layers + l]);
            table_real(w->out, s->angle_all[(n - 1) * s->layers + l]);
            table_end(w->out);
        }
}

/* ---- CUR ---- */

static double selection_delta(const writer *w, const bool *set) {
    const judged *j = &w->selection;
    const double *loss = j->b ? set_losses_of(w->r->losses, SELECTION, set) : NULL;
    double sum = loss ? 0 : (double)NAN;
    for (size_t i = 0; loss && i < j->sequences; i++)
        sum += (loss[i] - j->whole[i]) / j->tokens;
    return sum;
}

static int put_point(const writer *w, const prune_point *p, interval loss, interval delta,
                     status *st) {
    const unit_cost cost = units_cost(w->r->m, p->set, w->length);
    char *units = units_text(w->config, p->set, st);
    if (!units)
        return FAILED;
    table_row(w->out, "CUR");
    table_text(w->out, p->strategy);
    table_size(w->out, p->seed);
    table_size(w->out, p->removed);
    put_interval(w->out, delta);
    put_interval(w->out, loss);
    table_real(w->out, exp(loss.value));
    table_real(w->out, selection_delta(w, p->set));
    table_real(w->out, cost.parameters / w->whole.parameters);
    table_real(w->out, cost.flops / w->whole.flops);
    table_text(w->out, units);
    table_end(w->out);
    free(units);
    return DONE;
}

static int put_curves(const writer *w, status *st) {
    const prune_points *points = &w->r->points;
    const judged *j = &w->evaluation;
    const size_t n = points->count, draws = bootstrap_draws(j->b);
    int rc = FAILED;
    const bool **set = mem_array(n, sizeof *set, "sets", st);
    double *draw = mem_array(draws * n, sizeof *draw, "draws", st);
    interval *delta = mem_array(n, sizeof *delta, "intervals", st);
    interval *loss = mem_array(n, sizeof *loss, "intervals", st);
    if (!set || !draw || !delta || !loss)
        goto done;
    for (size_t i = 0; i < n; i++)
        set[i] = points->point[i].set;
    if (loss_draws(w, j, set, n, true, draw, st))
        goto done;
    bootstrap_intervals(j->b, draw, n, delta);
    if (loss_draws(w, j, set, n, false, draw, st))
        goto done;
    bootstrap_intervals(j->b, draw, n, loss);
    table_section(w->out, "CUR",
                  "sets of units removed together, evaluation text (selection_delta_loss: on the "
                  "text a strategy chose by)",
                  "strategy, seed, removed, delta_loss, low, high, loss, loss_low, loss_high, "
                  "perplexity, selection_delta_loss, parameters_share, flops_share, units",
                  "losses in nats/token, perplexity per token, shares saved");
    rc = DONE;
    for (size_t i = 0; i < n && !rc; i++)
        rc = put_point(w, &points->point[i], loss[i], delta[i], st);
done:
    free(set);
    free(draw);
    free(delta);
    free(loss);
    return rc;
}

/* ---- the whole ---- */

static void put_comments(const writer *w) {
    const prune_result *r = w->r;
    const judged *first = w->selection.b ? &w->selection : &w->evaluation;
    sampling_say(w->out, &r->settings->sampling, first->sequences, first->b);
    if (w->selection.b && w->evaluation.b)
        table_comment(w->out, "Evaluation text: %zu sequences, %zu units.", w->evaluation.sequences,
                      bootstrap_units(w->evaluation.b));
    table_comment(w->out, "delta_loss: loss without the unit minus loss with it, paired by "
                          "sequence, over all predicted tokens.");
    table_comment(w->out,
                  r->settings->removal == DROP_SOURCE
                      ? "Removal drop_source: a removed sublayer does not run and is no source."
                      : "Removal zero_output: a removed sublayer does not run, zeros take the "
                        "place of its output.");
    table_comment(w->out, "FLOPs: matrix products of one token at the texts' mean length; norms "
                          "and depth routing are not counted.");
    table_comment(w->out,
                  "sublayers_run: with passes shared and resumed; sublayers_naive: a pass of its "
                  "own for each of the %zu different sets and texts.",
                  set_losses_counted(r->losses).sets);
    if (r->shared)
        table_comment(w->out,
                      "WARNING: %zu of %zu evaluation sequences share text with the selection "
                      "text: their losses are not those of unseen text.",
                      r->shared, r->evaluation.sequences);
}

int prune_put(FILE *out, const prune_result *r, status *st) {
    const text_windows *any = r->selection.sequences ? &r->selection : &r->evaluation;
    writer w = {.out = out,
                .r = r,
                .config = model_configuration(r->m),
                .sublayers = 2 * model_configuration(r->m)->layers,
                .length =
                    (double)(any->start[any->sequences] - any->start[0]) / (double)any->sequences};
    w.whole = model_cost(r->m, w.length);
    w.no_set = mem_array(w.sublayers, sizeof(bool), "a set", st);
    int rc = w.no_set ? DONE : FAILED;
    if (!rc)
        rc = judge(&w, SELECTION, &r->selection, &w.selection, st);
    if (!rc)
        rc = judge(&w, EVALUATION, &r->evaluation, &w.evaluation, st);
    if (!rc) {
        put_comments(&w);
        put_run(&w);
    }
    if (!rc && r->scores) {
        rc = put_units(&w, st);
        if (!rc)
            put_angles(&w);
    }
    if (!rc && r->points.count)
        rc = put_curves(&w, st);
    judged_clear(&w.selection);
    judged_clear(&w.evaluation);
    free(w.no_set);
    return rc;
}
