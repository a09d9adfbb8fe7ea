#include "analyze/forced_compromise.h"

#include "analyze/depth_values.h"
#include "analyze/query_slices.h"
#include "analyze/table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { KINDS = 3, SPLITS = 2 * SLICINGS };
static const char *const kinds[KINDS] = {"attn", "mlp", "all"};

struct compromise {
    experiment *e;
    const depth_program *p;
    size_t sequences, sites;
    depth_values *values;
    variant *variants; /* [count] */
    size_t count;

    /* Several heads. */
    edit_choice head_mean;
    source_choice none;
    site_choice *choice;  /* [sites + KINDS], those that are empty left out */
    intervention *edited; /* [count] likewise */
    double *mix_change;   /* [sites, sequences] means over tokens */

    /* One head. */
    query_slices *slices;
    depth_edit scale[SLICINGS];          /* of the logits, by k */
    const depth_edit **scaled[SLICINGS]; /* [sites] */
    depth_program *split[SPLITS];        /* NULL where k does not divide the width */
    char name[SPLITS][48];
};

/* ---- several heads ---- */

/* norm(mix - mix')/norm(mix) of one token under head-mean weights. */
static double token_change(const compromise *c, size_t site, size_t row, const float *weight) {
    const depth_plan *plan = &c->p->plan;
    const size_t sources = (size_t)plan->site[site].sources, slice = plan->width / plan->heads;
    double moved = 0, whole = 0;
    for (size_t h = 0; h < plan->heads; h++)
        for (size_t k = h * slice; k < (h + 1) * slice; k++) {
            double mix = 0, shared = 0;
            for (size_t s = 0; s < sources; s++) {
                const double v =
                    (double)depth_values_row(c->values, plan->site[site].source[s], row)[k];
                double mean = 0;
                for (size_t g = 0; g < plan->heads; g++)
                    mean += (double)weight[g * sources + s];
                mix += (double)weight[h * sources + s] * v;
                shared += mean / (double)plan->heads * v;
            }
            moved += (mix - shared) * (mix - shared);
            whole += mix * mix;
        }
    return sqrt(moved / whole);
}

static int add_mix_changes(compromise *c, const batch *b, const site_view *view, status *st) {
    const size_t cells = c->p->plan.heads * view->sources;
    double *row_change = mem_array(b->layout.rows, sizeof *row_change, "changes of mixes", st);
    if (!row_change)
        return FAILED;
#pragma omp parallel for schedule(static)
    for (size_t row = 0; row < b->layout.rows; row++)
        row_change[row] = token_change(c, view->site, row, view->weights + row * cells);
    for (size_t i = 0; i < b->layout.sequences; i++) {
        const size_t first = b->layout.start[i], end = b->layout.start[i + 1];
        for (size_t row = first; row < end; row++)
            c->mix_change[view->site * c->sequences + b->first + i] +=
                row_change[row] / (double)(end - first);
    }
    free(row_change);
    return DONE;
}

/* head_mean at each site by itself, then at kinds of sites. */
static int make_heads(compromise *c, status *st) {
    const edit_means means = {0};
    if (edit_choice_parse("head_mean", &c->head_mean, st))
        return FAILED;
    c->none = (source_choice){.text = "-"};
    c->choice = mem_array(c->sites + KINDS, sizeof *c->choice, "sites", st);
    c->edited = mem_array(c->sites + KINDS, sizeof *c->edited, "interventions", st);
    c->variants = mem_array(c->sites + KINDS, sizeof *c->variants, "interventions", st);
    c->mix_change = mem_array(c->sites * c->sequences, sizeof(double), "changes of mixes", st);
    if (!c->choice || !c->edited || !c->variants || !c->mix_change)
        return FAILED;
    for (size_t i = 0; i < c->sites + KINDS; i++) {
        const char *item[1] = {i < c->sites ? c->p->site_name[i] : ""};
        const option_list one = {.count = 1, .item = item};
        site_choice *sites = &c->choice[c->count];
        intervention *edited = &c->edited[c->count];
        if ((i < c->sites ? site_choice_parse(&one, -1, c->p, sites, st)
                          : site_choice_kind(kinds[i - c->sites], -1, c->p, sites, st)) ||
            intervention_make(c->p, &c->head_mean, &c->none, sites, NULL, &means, NULL, edited,
                              st)) {
            c->count++; /* to be cleared */
            return FAILED;
        }
        if (edited->edited == 0) {
            intervention_clear(edited);
            site_choice_clear(sites);
            continue;
        }
        c->variants[c->count++] = (variant){.name = edited->name, .program = edited->program};
    }
    return DONE;
}

/* ---- one head ---- */

static int make_splits(compromise *c, status *st) {
    if (!(c->variants = mem_array(SPLITS, sizeof *c->variants, "interventions", st)))
        return FAILED;
    for (size_t k = 0; k < SLICINGS; k++) {
        const size_t heads = slicings[k];
        if (c->p->plan.width % heads)
            continue;
        c->scale[k] = (depth_edit){.kind = EDIT_QUERY_SCALE, .scale = (float)heads};
        if (!(c->scaled[k] = mem_array(c->sites, sizeof *c->scaled[k], "edits", st)))
            return FAILED;
        for (size_t i = 0; i < c->sites; i++)
            c->scaled[k][i] = &c->scale[k];
        for (size_t times = 0; times < 2; times++) {
            const size_t at = 2 * k + times;
            snprintf(c->name[at], sizeof c->name[at], "split %zu %s", heads,
                     times ? "times_k" : "as_is");
            if (depth_program_edit(c->p, times ? c->scaled[k] : NULL, heads, &c->split[at], st))
                return FAILED;
            c->variants[c->count++] = (variant){.name = c->name[at], .program = c->split[at]};
        }
    }
    return DONE;
}

/* ---- the pass ---- */

static int on_site(void *self, const batch *b, const site_view *view, status *st) {
    compromise *c = self;
    depth_values_site(c->values, b, view);
    if (view->sources < 2)
        return DONE;
    return c->slices ? query_slices_site(c->slices, c->values, b, view->site, st)
                     : add_mix_changes(c, b, view, st);
}

static int on_sublayer(void *self, const batch *b, const sublayer_view *view, status *st) {
    (void)st;
    compromise *c = self;
    depth_values_sublayer(c->values, b, view);
    return DONE;
}

static int prepare(compromise *c, const compromise_options *options, status *st) {
    const bool several = c->p->plan.heads > 1;
    if (depth_values_create(experiment_model(c->e), c->p, experiment_limits(c->e)->rows, &c->values,
                            st))
        return FAILED;
    if (several)
        return make_heads(c, st);
    const null_options nulls = {.draws = options->draws, .sequences = 16, .seed = options->seed};
    const int rc = query_slices_create(experiment_text(c->e), &nulls, &c->slices, st);
    return rc ? rc : make_splits(c, st);
}

int compromise_run(experiment *e, const compromise_options *options, compromise **out, status *st) {
    compromise *c = mem_array(1, sizeof *c, "forced compromise", st);
    if (!c)
        return FAILED;
    c->e = e;
    c->p = experiment_program(e);
    c->sequences = experiment_sequences(e);
    c->sites = c->p->plan.sites;
    int rc = prepare(c, options, st);
    if (!rc) {
        const variant whole = {.name = UNEDITED, .program = c->p};
        observer watch = {.self = c,
                          .weights = c->p->plan.heads > 1,
                          .on_site = on_site,
                          .on_sublayer = on_sublayer};
        depth_values_watch(c->values, &watch);
        rc = experiment_run(e, &whole, c->variants, c->count, &watch, st);
    }
    if (rc) {
        compromise_free(c);
        return rc;
    }
    *out = c;
    return DONE;
}

void compromise_free(compromise *c) {
    if (!c)
        return;
    for (size_t i = 0; c->choice && c->edited && i < c->count; i++) {
        intervention_clear(&c->edited[i]);
        site_choice_clear(&c->choice[i]);
    }
    for (size_t k = 0; k < SLICINGS; k++)
        free((void *)c->scaled[k]);
    for (size_t k = 0; k < SPLITS; k++)
        depth_program_free(c->split[k]);
    query_slices_free(c->slices);
    depth_values_free(c->values);
    edit_choice_clear(&c->head_mean);
    free(c->choice);
    free(c->edited);
    free(c->variants);
    free(c->mix_change);
    free(c);
}

/* ---- the table ---- */

static int write_heads(FILE *out, const compromise *c, const bootstrap *b, effect *effects,
                       double *draws, double equiv, double level, status *st) {
    for (size_t i = 0; i < c->count; i++) {
        effect *e = &effects[i];
        if (experiment_delta(c->e, b, c->variants[i].name, UNEDITED, &e->delta_loss, &e->kl, NULL,
                             st))
            return FAILED;
        e->p = bootstrap_significance(b, &e->delta_loss);
    }
    effects_classify(effects, c->count, equiv, level);
    table_section(out, "HMN",
                  "forced compromise: every head takes the head-mean weights, token by token, at "
                  "one site or at all of a kind; mix_change: norm(mix - mix under head-mean "
                  "weights)/norm(mix) in the unedited run",
                  "at, sites, delta_loss, low, high, kl, kl_low, kl_high, mix_change, "
                  "mix_change_low, mix_change_high, p, q, class",
                  "delta_loss, kl nats/token; mix_change 1");
    for (size_t i = 0; i < c->count; i++) {
        interval change = {NAN, NAN, NAN};
        if (c->edited[i].edited == 1) {
            if (bootstrap_means(b, c->mix_change + c->edited[i].first * c->sequences, 1, NULL, 1,
                                draws, st))
                return FAILED;
            bootstrap_intervals(b, draws, 1, &change);
        }
        table_row(out, "HMN");
        table_text(out, c->choice[i].text);
        table_size(out, c->edited[i].edited);
        table_interval(out, effects[i].delta_loss.value, effects[i].delta_loss.low,
                       effects[i].delta_loss.high);
        table_interval(out, effects[i].kl.value, effects[i].kl.low, effects[i].kl.high);
        table_interval(out, change.value, change.low, change.high);
        table_real(out, effects[i].p);
        table_real(out, effects[i].q);
        table_text(out, effect_class_name[effects[i].class]);
        table_end(out);
    }
    return DONE;
}

static int write_splits(FILE *out, const compromise *c, const bootstrap *b, status *st) {
    table_section(out, "SPL",
                  "the query split into k heads at every site, each choosing by its slice's logits "
                  "as they are, or times k",
                  "k, logits, delta_loss, low, high, kl, kl_low, kl_high",
                  "delta_loss, kl nats/token");
    for (size_t at = 0; at < SPLITS; at++) {
        interval delta, kl;
        if (!c->split[at])
            continue;
        if (experiment_delta(c->e, b, c->name[at], UNEDITED, &delta, &kl, NULL, st))
            return FAILED;
        table_row(out, "SPL");
        table_size(out, slicings[at / 2]);
        table_text(out, at % 2 ? "times_k" : "as_is");
        table_interval(out, delta.value, delta.low, delta.high);
        table_interval(out, kl.value, kl.low, kl.high);
        table_end(out);
    }
    return DONE;
}

int compromise_write(FILE *out, const compromise *c, const bootstrap *b, double equiv, double level,
                     status *st) {
    if (c->slices) {
        query_slices_write(out, c->slices, c->p);
        return write_splits(out, c, b, st);
    }
    effect *effects = mem_array(c->count, sizeof *effects, "effects", st);
    double *draws = mem_array(bootstrap_draws(b), sizeof *draws, "effects", st);
    const int rc =
        effects && draws ? write_heads(out, c, b, effects, draws, equiv, level, st) : FAILED;
    free(effects);
    free(draws);
    return rc;
}
