#include "analyze/experiment.h"

#include "analyze/experiment_results.h"
#include "probes/text_run.h"
#include "runtime/base/command.h"
#include "runtime/base/interrupt.h"
#include "runtime/base/log.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct experiment {
    experiment_options options;
    depth_program *whole;
    session_limits limits;
    session *base, *other; /* the first keeps what it made, for the second's variants */
    results results;
    double *tokens; /* [sequences] predicted */
    size_t *start;  /* [limits.sequences + 1] of the batch at hand */
    uint64_t nonfinite;
    experiment_cost cost;

    /* Of the batch at hand. */
    float *logits; /* [rows, vocabulary] of the base, for the KL */
    double *kl;    /* [rows] */
};

/* A variant with its scores while a run lasts; the first of a list is the base. */
typedef struct member {
    const variant *v;
    variant_scores *s;
    size_t common; /* sublayers as the base's */
} member;

/* One program's pass over one batch. */
typedef struct pass {
    experiment *e;
    const observer *watch; /* NULL, or what else is observed */
    variant_scores *into;
    bool base;
} pass;

/* ---- opening ---- */

/* Takes smaller batches where two sessions ask for too much memory. */
static void fit_memory(experiment *e, session_limits *keep) {
    const experiment_options *o = &e->options;
    size_t bytes;
    e->limits = run_limits(o->m, o->batch, o->windows.longest, o->windows.sequences);
    do {
        *keep = e->limits;
        keep->keep = true;
        bytes = session_bytes(o->m, e->whole, keep) + session_bytes(o->m, e->whole, &e->limits);
    } while (run_limits_shrink(o->m, &e->limits, o->batch, bytes));
    log_note("computing on %s; memory of a batch of %zu sequences: about %s",
             model_kernels(o->m)->describe(model_backend(o->m)), e->limits.sequences,
             bytes_text(bytes).text);
}

static int open_all(experiment *e, status *st) {
    const experiment_options *o = &e->options;
    const text_windows *w = &o->windows;
    const model_config *config = model_configuration(o->m);
    session_limits keep;
    char hex[65];
    if (depth_program_build(config, NULL, &e->whole, st))
        return FAILED;
    fit_memory(e, &keep);
    e->tokens = mem_array(w->sequences, sizeof *e->tokens, "tokens", st);
    e->start = mem_array(e->limits.sequences + 1, sizeof *e->start, "sequences", st);
    if (!e->tokens || !e->start)
        return FAILED;
    if (o->kl && (!(e->kl = mem_array(e->limits.rows, sizeof *e->kl, "divergences", st)) ||
                  !(e->logits = mem_array(e->limits.rows, config->vocabulary * sizeof *e->logits,
                                          "logits", st))))
        return FAILED;
    text_windows_weights(w, e->tokens);
    text_windows_hash(w, hex);
    return session_create(o->m, e->whole, &keep, &e->base, st) ||
                   session_create(o->m, e->whole, &e->limits, &e->other, st) ||
                   results_open(&e->results, o, hex, command_line(), st)
               ? FAILED
               : DONE;
}

int experiment_open(const experiment_options *options, experiment **out, status *st) {
    experiment *e = mem_array(1, sizeof *e, "experiment", st);
    *out = NULL;
    if (!e)
        return FAILED;
    e->options = *options;
    if (open_all(e, st)) {
        experiment_close(e);
        return FAILED;
    }
    *out = e;
    return DONE;
}

void experiment_close(experiment *e) {
    if (!e)
        return;
    results_close(&e->results);
    session_free(e->other);
    session_free(e->base);
    depth_program_free(e->whole);
    free(e->tokens);
    free(e->start);
    free(e->logits);
    free(e->kl);
    free(e);
}

void experiment_forget(experiment *e) {
    results_forget(&e->results);
}

/* ---- one batch ---- */

static double log_sum_exp(const float *x, size_t count) {
    float most = x[0];
    for (size_t i = 1; i < count; i++)
        most = x[i] > most ? x[i] : most;
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += exp((double)x[i] - (double)most);
    return (double)most + log(sum);
}

/* sum p (ln p - ln q) of the softmaxes of two rows of logits. */
static double divergence(const float *p, const float *q, size_t count) {
    const double of_p = log_sum_exp(p, count), of_q = log_sum_exp(q, count);
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        const double log_p = (double)p[i] - of_p;
        sum += exp(log_p) * (log_p - ((double)q[i] - of_q));
    }
    return sum;
}

static void score_kl(const pass *p, const batch *b, const float *logits) {
    experiment *e = p->e;
    const size_t vocabulary = model_configuration(e->options.m)->vocabulary;
#pragma omp parallel for schedule(static)
    for (size_t row = 0; row < b->layout.rows; row++)
        e->kl[row] =
            divergence(e->logits + row * vocabulary, logits + row * vocabulary, vocabulary);
    for (size_t i = 0; i < b->layout.sequences; i++) {
        double sum = 0;
        for (size_t row = b->layout.start[i]; row + 1 < b->layout.start[i + 1]; row++)
            sum += e->kl[row];
        p->into->kl[b->first + i] = sum;
    }
}

static int check_known(const pass *p, size_t sequence, double loss, status *st) {
    const double known = p->into->loss[sequence];
    if (!p->into->have[sequence] || memcmp(&known, &loss, sizeof loss) == 0 ||
        (isnan(known) && isnan(loss)))
        return DONE;
    return status_fail(st,
                       "%s: sequence %zu: '%s' had a loss of %.17g, now it has %.17g: the "
                       "results are of another model, device or build; remove the file",
                       p->e->results.path ? p->e->results.path : "results", sequence, p->into->name,
                       known, loss);
}

static int on_head(void *self, const batch *b, const head_view *view, status *st) {
    const pass *p = self;
    experiment *e = p->e;
    for (size_t i = 0; i < b->layout.sequences; i++) {
        double loss = 0;
        for (size_t row = b->layout.start[i]; row + 1 < b->layout.start[i + 1]; row++) {
            loss += (double)view->loss[row];
            e->nonfinite += isfinite(view->loss[row]) ? 0 : 1;
        }
        if (p->base && check_known(p, b->first + i, loss, st))
            return FAILED;
        p->into->loss[b->first + i] = loss;
    }
    if (!e->options.kl)
        return DONE;
    const size_t all = b->layout.rows * model_configuration(e->options.m)->vocabulary;
    if (p->base)
        memcpy(e->logits, view->logits, all * sizeof *e->logits);
    else
        score_kl(p, b, view->logits);
    return DONE;
}

static int on_site(void *self, const batch *b, const site_view *view, status *st) {
    const pass *p = self;
    return p->watch->on_site(p->watch->self, b, view, st);
}

static int on_sublayer(void *self, const batch *b, const sublayer_view *view, status *st) {
    const pass *p = self;
    return p->watch->on_sublayer(p->watch->self, b, view, st);
}

static observer observer_of(pass *p) {
    observer o = p->watch ? *p->watch : (observer){0};
    o.self = p;
    o.logits = p->e->options.kl;
    o.on_site = o.on_site ? on_site : NULL;
    o.on_sublayer = o.on_sublayer ? on_sublayer : NULL;
    o.on_head = on_head;
    return o;
}

size_t experiment_sequences(const experiment *e) {
    return e->options.windows.sequences;
}

size_t experiment_first(const experiment *e, const text_windows *w) {
    return (size_t)(w->start - e->options.windows.start);
}

static bool batch_known(const variant_scores *s, const batch *b) {
    for (size_t i = 0; i < b->layout.sequences; i++)
        if (!s->have[b->first + i])
            return false;
    return true;
}

static int interrupted(status *st) {
    if (!interrupt_pending())
        return DONE;
    status_fail(st, "interrupted");
    return INTERRUPTED;
}

/* One batch of `m`: the base itself, or resumed from it. */
static int run_member(experiment *e, const member *m, bool base, const observer *watch,
                      const batch *b, status *st) {
    pass p = {.e = e, .watch = watch, .base = base, .into = m->s};
    const observer seen = observer_of(&p);
    int rc = interrupted(st);
    if (!rc && m->v->prepare)
        rc = m->v->prepare(m->v->self, b, st);
    if (!rc && !base)
        rc = session_use(e->other, m->v->program, st);
    if (!rc)
        rc = base ? session_forward(e->base, b, &seen, st)
                  : session_resume(e->other, e->base, m->common, b, &seen, st);
    if (!rc)
        rc = session_finish(base ? e->base : e->other, st);
    if (rc || batch_known(m->s, b))
        return rc;
    for (size_t i = 0; i < b->layout.sequences; i++)
        m->s->have[b->first + i] = true;
    return results_append(&e->results, m->s, b->first, b->first + b->layout.sequences, st);
}

/* The base first; what it has in common with the variants is kept until the next batch. */
static int run_batch(experiment *e, const member *list, size_t count, const observer *watch,
                     bool wanted, const batch *b, status *st) {
    for (size_t i = 0; !wanted && i < count; i++)
        wanted = !batch_known(list[i].s, b);
    if (!wanted)
        return DONE;
    int rc = run_member(e, &list[0], true, watch, b, st);
    for (size_t i = 1; !rc && i < count; i++)
        if (!batch_known(list[i].s, b) &&
            (rc = run_member(e, &list[i], false, NULL, b, st)) == FAILED)
            status_prefix(st, "%s", list[i].v->name);
    return rc;
}

static int run_all(experiment *e, const text_windows *w, const member *list, size_t count,
                   const observer *watch, status *st) {
    int rc = DONE;
    progress_begin("losses", (uint64_t)w->sequences * count, "sequences");
    for (size_t first = 0; !rc && first < w->sequences; first += e->limits.sequences) {
        batch b = text_windows_batch(w, first, e->limits.sequences, e->start);
        b.first += experiment_first(e, w);
        /* The first batch tells whether the file's results are this model's. */
        const bool unseen = first == 0 && !list[0].s->asked[b.first];
        rc = run_batch(e, list, count, watch, watch || unseen, &b, st);
        progress_update((uint64_t)(first + b.layout.sequences) * count, 0);
    }
    progress_end();
    return rc;
}

/* Counts what was not asked for before. */
static void count_asked(experiment *e, const text_windows *w, const member *list, size_t count,
                        bool watched) {
    const size_t first = experiment_first(e, w), end = first + w->sequences;
    bool any = watched;
    for (size_t k = 0; k < count; k++) {
        const size_t sublayers = list[k].v->program->sublayers;
        bool *asked = list[k].s->asked;
        e->cost.passes += first < end && !asked[first];
        for (size_t i = first; i < end; i++) {
            if (asked[i])
                continue;
            any = asked[i] = true;
            e->cost.naive += sublayers;
            e->cost.shared += k ? sublayers - list[k].common : 0;
        }
    }
    if (any)
        e->cost.shared += (uint64_t)w->sequences * list[0].v->program->sublayers;
}

static bool all_asked(const variant_scores *s, size_t first, size_t count) {
    for (size_t i = first; i < first + count; i++)
        if (!s->asked[i])
            return false;
    return true;
}

/* Sessions hold on to their program: after a run both have the whole model's, so that a caller may
 * free those it made. */
static int let_go(experiment *e, int rc, status *st) {
    status other;
    status *why = rc ? &other : st;
    if (session_use(e->base, e->whole, why) || session_use(e->other, e->whole, why))
        return rc ? rc : FAILED;
    return rc;
}

int experiment_run(experiment *e, const text_windows *w, const variant *base,
                   const variant *variants, size_t count, const observer *watch, status *st) {
    int rc = FAILED;
    w = w ? w : &e->options.windows;
    member *list = mem_array(count + 1, sizeof *list, "variants", st);
    if (!list)
        return FAILED;
    for (size_t i = 0; i <= count; i++) {
        list[i].v = i ? &variants[i - 1] : base;
        list[i].common = depth_program_common(base->program, list[i].v->program);
        if (!results_of(&e->results, list[i].v->name, st))
            goto done;
    }
    for (size_t i = 0; i <= count; i++) /* where they stay */
        list[i].s = results_find(&e->results, list[i].v->name);
    rc = session_use(e->base, base->program, st);
    if (!rc)
        rc = run_all(e, w, list, count + 1, watch, st);
    rc = let_go(e, rc, st);
    if (!rc)
        count_asked(e, w, list, count + 1, watch != NULL);
done:
    free(list);
    return rc;
}

/* ---- what came out ---- */

const variant_scores *experiment_scores(const experiment *e, const text_windows *w,
                                        const char *name) {
    const variant_scores *s = results_find(&e->results, name);
    w = w ? w : &e->options.windows;
    return s && all_asked(s, experiment_first(e, w), w->sequences) ? s : NULL;
}

const session_limits *experiment_limits(const experiment *e) {
    return &e->limits;
}

session *experiment_session(experiment *e) {
    return e->base;
}

const model *experiment_model(const experiment *e) {
    return e->options.m;
}

const depth_program *experiment_program(const experiment *e) {
    return e->whole;
}

const char *experiment_command(const experiment *e) {
    return e->results.command;
}

uint64_t experiment_nonfinite(const experiment *e) {
    return e->nonfinite;
}

experiment_cost experiment_counted(const experiment *e) {
    return e->cost;
}

void experiment_say_interrupted(const experiment *e) {
    if (e && results_any(&e->results))
        log_error("interrupted; what is finished is in %s: continue with --resume",
                  e->results.path);
    else
        log_error("interrupted%s",
                  e && !e->options.results ? "; with -o FILE a run can be continued" : "");
}

int experiment_draws(const experiment *e, const sampling *s, bootstrap **b, status *st) {
    return text_windows_draw(&e->options.windows, e->tokens, s, b, st);
}

int experiment_delta(const experiment *e, const bootstrap *b, const char *name, const char *base,
                     interval *delta, interval *kl, double *draws, status *st) {
    const variant_scores *s = experiment_scores(e, NULL, name),
                         *from = experiment_scores(e, NULL, base);
    if (!s || !from)
        return status_fail(st, "results of '%s' are incomplete", s ? base : name);
    const size_t sequences = experiment_sequences(e), count = bootstrap_draws(b);
    int rc = FAILED;
    double *row = mem_array(2 * sequences, sizeof *row, "losses", st);
    double *both = mem_array(2 * count, sizeof *both, "losses", st);
    interval found[2];
    if (!row || !both)
        goto done;
    for (size_t i = 0; i < sequences; i++) {
        row[2 * i] = (s->loss[i] - from->loss[i]) / e->tokens[i];
        row[2 * i + 1] = s->kl[i] / e->tokens[i];
    }
    if (bootstrap_means(b, row, 2, NULL, 2, both, st))
        goto done;
    bootstrap_intervals(b, both, 2, found);
    *delta = found[0];
    if (kl)
        *kl = found[1];
    for (size_t i = 0; draws && i < count; i++)
        draws[i] = both[2 * i];
    rc = DONE;
done:
    free(row);
    free(both);
    return rc;
}

int experiment_loss(const experiment *e, const bootstrap *b, const char *name, interval *loss,
                    status *st) {
    const variant_scores *s = experiment_scores(e, NULL, name);
    if (!s)
        return status_fail(st, "results of '%s' are incomplete", name);
    double *row = mem_array(experiment_sequences(e), sizeof *row, "losses", st);
    double *draws = mem_array(bootstrap_draws(b), sizeof *draws, "losses", st);
    int rc = row && draws ? DONE : FAILED;
    for (size_t i = 0; !rc && i < experiment_sequences(e); i++)
        row[i] = s->loss[i] / e->tokens[i];
    if (!rc)
        rc = bootstrap_means(b, row, 1, NULL, 1, draws, st);
    if (!rc)
        bootstrap_intervals(b, draws, 1, loss);
    free(row);
    free(draws);
    return rc;
}
