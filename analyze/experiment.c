#include "analyze/experiment.h"

#include "analyze/experiment_results.h"
#include "runtime/base/command.h"
#include "runtime/base/interrupt.h"
#include "runtime/base/log.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct experiment {
    text_run run;   /* its session runs the base, and keeps what it made */
    session *other; /* runs the variants */
    experiment_options options;
    results results;
    double *tokens; /* [sequences] predicted */
    size_t *unit, units;
    char tokens_sha256[65];
    uint64_t nonfinite, evaluated, naive;

    /* Of the batch at hand. */
    float *logits; /* [rows, vocabulary] of the base, for the KL */
    double *kl;    /* [rows] */
};

/* One program's pass over one batch. */
typedef struct pass {
    experiment *e;
    const observer *watch; /* NULL, or what else is observed */
    scores *into;
    bool base;
    status *st;
} pass;

/* ---- opening ---- */

/* Reads every sequence: how many tokens it predicts, its unit, and the hash of all tokens. */
static int read_tokens(experiment *e, status *st) {
    const size_t sequences = e->run.sequences;
    const bool bos = token_source_bos(e->run.source) >= 0;
    int rc = FAILED;
    int64_t *start = mem_array(sequences, sizeof *start, "tokens", st);
    int32_t *length = mem_array(sequences, sizeof *length, "tokens", st);
    int32_t *id = mem_array(token_source_context(e->run.source), sizeof *id, "tokens", st);
    e->tokens = mem_array(sequences, sizeof *e->tokens, "tokens", st);
    e->unit = mem_array(sequences, sizeof *e->unit, "tokens", st);
    if (!start || !length || !id || !e->tokens || !e->unit)
        goto done;
    sha256 hash;
    sha256_init(&hash);
    for (size_t i = 0; i < sequences; i++) {
        size_t count;
        uint64_t offset;
        if (token_source_read(e->run.source, i, id, &count, &offset, st))
            goto done;
        tokens_hash_add(&hash, id, count);
        e->tokens[i] = (double)(count - 1);
        start[i] = (int64_t)offset;
        length[i] = (int32_t)count - bos;
    }
    sha256_finish(&hash, e->tokens_sha256);
    rc = merge_windows(start, length, sequences, e->unit, &e->units, st);
done:
    free(start);
    free(length);
    free(id);
    return rc;
}

static int open_all(experiment *e, const run_options *run, status *st) {
    run_options keeping = *run;
    keeping.keep = true;
    if (text_run_open(&keeping, &e->run, st) || read_tokens(e, st))
        return FAILED;
    session_limits limits = e->run.limits;
    limits.keep = false;
    const size_t vocabulary = model_configuration(e->run.model)->vocabulary;
    if (e->options.kl &&
        (!(e->kl = mem_array(limits.rows, sizeof *e->kl, "divergences", st)) ||
         !(e->logits = mem_array(limits.rows, vocabulary * sizeof *e->logits, "logits", st))))
        return FAILED;
    return session_create(e->run.model, e->run.program, &limits, &e->other, st) ||
                   results_open(&e->results, &e->options, e->run.sequences, e->tokens_sha256,
                                command_line(), st)
               ? FAILED
               : DONE;
}

int experiment_open(const run_options *run, const experiment_options *options, experiment **out,
                    status *st) {
    experiment *e = mem_array(1, sizeof *e, "experiment", st);
    if (!e)
        return FAILED;
    e->options = *options;
    if (open_all(e, run, st)) {
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
    text_run_clear(&e->run);
    free(e->tokens);
    free(e->unit);
    free(e->logits);
    free(e->kl);
    free(e);
}

void experiment_forget(experiment *e) {
    if (e->results.path)
        unlink(e->results.path);
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
    const size_t vocabulary = model_configuration(e->run.model)->vocabulary;
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
    const size_t all = b->layout.rows * model_configuration(e->run.model)->vocabulary;
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

static bool batch_known(const scores *s, const batch *b) {
    for (size_t i = 0; i < b->layout.sequences; i++)
        if (!s->have[b->first + i])
            return false;
    return true;
}

static int keep_scores(experiment *e, scores *s, const batch *b, status *st) {
    const size_t end = b->first + b->layout.sequences;
    if (batch_known(s, b))
        return DONE;
    for (size_t i = b->first; i < end; i++)
        s->have[i] = true;
    return results_append(&e->results, s, b->first, end, st);
}

static int run_base(experiment *e, const variant *base, const observer *watch, const batch *b,
                    status *st) {
    pass p = {
        .e = e, .watch = watch, .base = true, .into = results_of(&e->results, base->name, st)};
    if (!p.into || (base->prepare && base->prepare(base->self, b, st)))
        return FAILED;
    const observer seen = observer_of(&p);
    int rc = session_forward(e->run.session, b, &seen, st);
    if (!rc)
        rc = session_finish(e->run.session, st);
    e->evaluated += base->program->sublayers * b->layout.sequences;
    return rc ? rc : keep_scores(e, p.into, b, st);
}

static int run_variant(experiment *e, const variant *base, const variant *v, const batch *b,
                       status *st) {
    pass p = {.e = e, .into = results_of(&e->results, v->name, st)};
    if (!p.into || (v->prepare && v->prepare(v->self, b, st)) ||
        session_use(e->other, v->program, st))
        return FAILED;
    const size_t common = depth_program_common(base->program, v->program);
    const observer seen = observer_of(&p);
    int rc = session_resume(e->other, e->run.session, common, b, &seen, st);
    if (!rc)
        rc = session_finish(e->other, st);
    e->evaluated += (v->program->sublayers - common) * b->layout.sequences;
    return rc ? rc : keep_scores(e, p.into, b, st);
}

static int interrupted(status *st) {
    if (!interrupt_pending())
        return DONE;
    status_fail(st, "interrupted");
    return INTERRUPTED;
}

static int run_batch(experiment *e, const variant *base, const variant *variants, size_t count,
                     const observer *watch, const batch *b, status *st) {
    bool wanted = watch || !batch_known(results_find(&e->results, base->name), b);
    for (size_t i = 0; !wanted && i < count; i++)
        wanted = !batch_known(results_find(&e->results, variants[i].name), b);
    if (!wanted && b->first > 0) /* the first batch tells whether this is the model of the file */
        return DONE;
    int rc = run_base(e, base, watch, b, st);
    e->naive += base->program->sublayers * b->layout.sequences;
    for (size_t i = 0; !rc && i < count; i++) {
        e->naive += variants[i].program->sublayers * b->layout.sequences;
        if (batch_known(results_find(&e->results, variants[i].name), b))
            continue;
        rc = interrupted(st);
        if (!rc && (rc = run_variant(e, base, &variants[i], b, st)) == FAILED)
            status_prefix(st, "%s", variants[i].name);
    }
    return rc;
}

/* Sessions hold on to their program: after a run both have the whole model's, so that a caller may
 * free those it made. */
static int let_go(experiment *e, int rc, status *st) {
    status other;
    status *why = rc ? &other : st;
    if (session_use(e->run.session, e->run.program, why) ||
        session_use(e->other, e->run.program, why))
        return rc ? rc : FAILED;
    return rc;
}

int experiment_run(experiment *e, const variant *base, const variant *variants, size_t count,
                   const observer *watch, status *st) {
    if (!results_of(&e->results, base->name, st))
        return FAILED;
    for (size_t i = 0; i < count; i++)
        if (!results_of(&e->results, variants[i].name, st))
            return FAILED;
    if (session_use(e->run.session, base->program, st))
        return FAILED;
    e->run.next = 0;
    batch b;
    uint64_t done = 0;
    int rc;
    progress_begin(base->name, token_source_tokens(e->run.source) * (count + 1), "tokens");
    while (!(rc = text_run_next(&e->run, &b, st)) && b.layout.sequences) {
        if ((rc = run_batch(e, base, variants, count, watch, &b, st)))
            break;
        progress_update(done += b.layout.rows * (count + 1), 0);
    }
    progress_end();
    return let_go(e, rc, st);
}

/* ---- what came out ---- */

const scores *experiment_scores(const experiment *e, const char *name) {
    const scores *s = results_find(&e->results, name);
    return s && results_complete(&e->results, s) ? s : NULL;
}

size_t experiment_sequences(const experiment *e) {
    return e->run.sequences;
}

const double *experiment_tokens(const experiment *e) {
    return e->tokens;
}

const session_limits *experiment_limits(const experiment *e) {
    return &e->run.limits;
}

text_run *experiment_text(experiment *e) {
    return &e->run;
}

const model *experiment_model(const experiment *e) {
    return e->run.model;
}

const depth_program *experiment_program(const experiment *e) {
    return e->run.program;
}

const char *experiment_tokens_sha256(const experiment *e) {
    return e->tokens_sha256;
}

const char *experiment_command(const experiment *e) {
    return e->results.command;
}

uint64_t experiment_nonfinite(const experiment *e) {
    return e->nonfinite;
}

void experiment_cost(const experiment *e, uint64_t *evaluated, uint64_t *naive) {
    *evaluated = e->evaluated;
    *naive = e->naive;
}

int experiment_draws(const experiment *e, const sampling *s, bootstrap **b, status *st) {
    return sampling_draw(s, e->run.sequences, e->tokens, e->unit, e->units, b, st);
}

int experiment_delta(const experiment *e, const bootstrap *b, const char *name, const char *base,
                     interval *delta, interval *kl, double *draws, status *st) {
    const scores *s = experiment_scores(e, name), *from = experiment_scores(e, base);
    if (!s || !from)
        return status_fail(st, "results of '%s' are incomplete", s ? base : name);
    const size_t sequences = e->run.sequences, count = bootstrap_draws(b);
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
    const scores *s = experiment_scores(e, name);
    if (!s)
        return status_fail(st, "results of '%s' are incomplete", name);
    double *row = mem_array(e->run.sequences, sizeof *row, "losses", st);
    double *draws = mem_array(bootstrap_draws(b), sizeof *draws, "losses", st);
    int rc = row && draws ? DONE : FAILED;
    for (size_t i = 0; !rc && i < e->run.sequences; i++)
        row[i] = s->loss[i] / e->tokens[i];
    if (!rc)
        rc = bootstrap_means(b, row, 1, NULL, 1, draws, st);
    if (!rc)
        bootstrap_intervals(b, draws, 1, loss);
    free(row);
    free(draws);
    return rc;
}
