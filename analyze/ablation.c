#include "analyze/ablation.h"

#include "analyze/depth_values.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

struct ablation {
    experiment *e;
    const depth_program *p;
    const kernels *k;
    backend *device;
    size_t sequences, heads, most_sources;

    edit_means means;
    frozen_weights frozen;
    bool keeps_weights;

    intervention *list; /* [count]; pointers into it end with the next ablation_add */
    size_t count, room;

    double **site;  /* [sites] see ablation_site */
    double *rows;   /* [sequences] tokens */
    double *moved;  /* [count, sequences] summed over tokens and sites */
    float *scratch; /* [threads, (heads + 1) * most sources] */
};

const char *const effect_class_name[3] = {"none", "effect", "undecided"};

/* ---- the first pass: means ---- */

typedef struct means_pass {
    ablation *a;
    depth_values *values; /* NULL: weights only */
    double *value_sum;    /* [values, width] */
    double **weight_sum;  /* [sites] of [heads, sources] */
    double tokens;
} means_pass;

static int means_site(void *self, const batch *b, const site_view *view, status *st) {
    (void)st;
    means_pass *m = self;
    const size_t cells = m->a->heads * view->sources;
    if (m->values)
        depth_values_site(m->values, b, view);
    for (size_t i = 0; view->sums && i < b->layout.sequences; i++)
        for (size_t c = 0; c < cells; c++)
            m->weight_sum[view->site][c] +=
                view->sums[i * view->sums_layout.total + view->sums_layout.mean + c];
    if (view->site + 1 < m->a->p->plan.sites)
        return DONE;
    m->tokens += (double)b->layout.rows;
    if (m->values)
        depth_values_add(m->values, b, m->value_sum);
    return DONE;
}

static int means_sublayer(void *self, const batch *b, const sublayer_view *view, status *st) {
    (void)st;
    means_pass *m = self;
    depth_values_sublayer(m->values, b, view);
    return DONE;
}

static void divide(const double *sum, double tokens, size_t count, float *mean) {
    for (size_t i = 0; i < count; i++)
        mean[i] = (float)(sum[i] / tokens);
}

static int make_means(ablation *a, means_pass *m, status *st) {
    const depth_plan *plan = &a->p->plan;
    const variant whole = {.name = UNEDITED, .program = a->p};
    observer watch = {.self = m, .routing_sums = true, .on_site = means_site};
    if (m->values) {
        depth_values_watch(m->values, &watch);
        watch.on_sublayer = means_sublayer;
    }
    int rc = experiment_run(a->e, NULL, &whole, NULL, 0, &watch, st);
    if (rc)
        return rc;
    for (size_t i = 0; i < plan->sites; i++)
        divide(m->weight_sum[i], m->tokens, a->heads * (size_t)plan->site[i].sources,
               a->means.weights[i]);
    if (m->values)
        divide(m->value_sum, m->tokens, plan->values * plan->width, a->means.value);
    return DONE;
}

static int first_pass(ablation *a, bool values, status *st) {
    const depth_plan *plan = &a->p->plan;
    int rc = FAILED;
    means_pass m = {.a = a};
    m.weight_sum = mem_array(plan->sites, sizeof *m.weight_sum, "token means", st);
    a->means.weights = mem_array(plan->sites, sizeof *a->means.weights, "token means", st);
    if (!m.weight_sum || !a->means.weights)
        goto done;
    for (size_t i = 0; i < plan->sites; i++) {
        const size_t cells = a->heads * (size_t)plan->site[i].sources;
        m.weight_sum[i] = mem_array(cells, sizeof(double), "token means", st);
        a->means.weights[i] = mem_array(cells, sizeof(float), "token means", st);
        if (!m.weight_sum[i] || !a->means.weights[i])
            goto done;
    }
    if (values) {
        m.value_sum = mem_array(plan->values, plan->width * sizeof(double), "mean values", st);
        a->means.value = mem_array(plan->values, plan->width * sizeof(float), "mean values", st);
        if (!m.value_sum || !a->means.value ||
            depth_values_create(experiment_model(a->e), a->p, experiment_limits(a->e)->rows,
                                &m.values, st))
            goto done;
    }
    rc = make_means(a, &m, st);
done:
    for (size_t i = 0; m.weight_sum && i < plan->sites; i++)
        free(m.weight_sum[i]);
    free(m.weight_sum);
    free(m.value_sum);
    depth_values_free(m.values);
    return rc;
}

/* ---- opening ---- */

static int make_frozen(ablation *a, status *st) {
    const depth_plan *plan = &a->p->plan;
    const size_t rows = experiment_limits(a->e)->rows;
    a->keeps_weights = true;
    a->frozen.given = mem_array(plan->sites, sizeof *a->frozen.given, "frozen weights", st);
    a->frozen.weight = mem_array(plan->sites, sizeof *a->frozen.weight, "frozen weights", st);
    if (!a->frozen.given || !a->frozen.weight)
        return FAILED;
    for (size_t i = 0; i < plan->sites; i++) {
        const size_t cells = a->heads * (size_t)plan->site[i].sources;
        if (cells == 0)
            continue;
        if (!(a->frozen.weight[i] = mem_array(rows, cells * sizeof(float), "frozen weights", st)) ||
            a->k->buffer_create(a->device, BUFFER_EXACT, rows * cells, &a->frozen.given[i], st))
            return FAILED;
    }
    return DONE;
}

static int prepare(ablation *a, const ablation_wants *wants, status *st) {
    const depth_plan *plan = &a->p->plan;
    a->site = mem_array(plan->sites, sizeof *a->site, "routing sums", st);
    a->rows = mem_array(a->sequences, sizeof *a->rows, "routing sums", st);
    if (!a->site || !a->rows)
        return FAILED;
    for (size_t i = 0; i < plan->sites; i++) {
        const size_t sources = (size_t)plan->site[i].sources;
        a->most_sources = sources > a->most_sources ? sources : a->most_sources;
        if (sources > 0 && !(a->site[i] = mem_array(a->sequences * SITE_SUMS,
                                                    sources * sizeof(double), "routing sums", st)))
            return FAILED;
    }
    a->scratch =
        mem_array((size_t)omp_get_max_threads(),
                  (a->heads + 1) * (a->most_sources + 1) * sizeof *a->scratch, "weights", st);
    if (!a->scratch || (wants->frozen && make_frozen(a, st)))
        return FAILED;
    return wants->token_means || wants->mean_values ? first_pass(a, wants->mean_values, st) : DONE;
}

int ablation_open(experiment *e, const ablation_wants *wants, ablation **out, status *st) {
    ablation *a = mem_array(1, sizeof *a, "ablation", st);
    if (!a)
        return FAILED;
    a->e = e;
    a->p = experiment_program(e);
    a->k = model_kernels(experiment_model(e));
    a->device = model_backend(experiment_model(e));
    a->sequences = experiment_sequences(e);
    a->heads = a->p->plan.heads;
    const int rc = prepare(a, wants, st);
    if (rc) {
        ablation_close(a);
        return rc;
    }
    *out = a;
    return DONE;
}

void ablation_close(ablation *a) {
    if (!a)
        return;
    for (size_t i = 0; i < a->count; i++)
        intervention_clear(&a->list[i]);
    for (size_t i = 0; i < a->p->plan.sites; i++) {
        if (a->means.weights)
            free(a->means.weights[i]);
        if (a->frozen.weight)
            free(a->frozen.weight[i]);
        if (a->frozen.given)
            a->k->buffer_free(a->device, a->frozen.given[i]);
        if (a->site)
            free(a->site[i]);
    }
    free(a->means.weights);
    free(a->means.value);
    free(a->frozen.weight);
    free(a->frozen.given);
    free(a->site);
    free(a->rows);
    free(a->moved);
    free(a->scratch);
    free(a->list);
    free(a);
}

int ablation_add(ablation *a, const edit_choice *edit, const source_choice *sources,
                 const site_choice *sites, const bool *head, size_t *index, status *st) {
    if (a->count == a->room) {
        const size_t room = a->room ? 2 * a->room : 64;
        intervention *list = realloc(a->list, room * sizeof *list);
        if (!list)
            return status_fail(st, "interventions: not enough memory");
        a->list = list;
        a->room = room;
    }
    intervention *i = &a->list[a->count];
    if (intervention_make(a->p, edit, sources, sites, head, &a->means,
                          a->keeps_weights ? &a->frozen : NULL, i, st)) {
        intervention_clear(i);
        return FAILED;
    }
    if (i->asked == 0) {
        *index = NO_INTERVENTION;
        intervention_clear(i);
        return DONE;
    }
    for (*index = 0; *index < a->count; (*index)++)
        if (strcmp(a->list[*index].name, i->name) == 0) {
            intervention_clear(i);
            return DONE;
        }
    a->count++;
    return DONE;
}

const intervention *ablation_at(const ablation *a, size_t index) {
    return &a->list[index];
}

/* ---- running ---- */

static void add_site_sums(ablation *a, const batch *b, const site_view *view) {
    const routing_layout *layout = &view->sums_layout;
    const size_t field[SITE_SUMS] = {layout->mean, layout->contribution,
                                     layout->signed_contribution};
    for (size_t i = 0; i < b->layout.sequences; i++)
        for (size_t f = 0; f < SITE_SUMS; f++)
            for (size_t s = 0; s < view->sources; s++) {
                double sum = 0;
                for (size_t h = 0; h < a->heads; h++)
                    sum += view->sums[i * layout->total + field[f] + h * view->sources + s];
                a->site[view->site][((b->first + i) * SITE_SUMS + f) * view->sources + s] =
                    sum / (double)a->heads;
            }
}

static void add_moved(ablation *a, const batch *b, const site_view *view) {
    const size_t cells = a->heads * view->sources;
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < a->count; i++) {
        float *scratch =
            a->scratch + (size_t)omp_get_thread_num() * (a->heads + 1) * (a->most_sources + 1);
        if (!a->list[i].sites->site[view->site])
            continue;
        for (size_t q = 0; q < b->layout.sequences; q++)
            for (size_t row = b->layout.start[q]; row < b->layout.start[q + 1]; row++)
                a->moved[i * a->sequences + b->first + q] +=
                    intervention_moved(&a->list[i], view->site, a->heads, view->sources,
                                       view->weights + row * cells, scratch);
    }
}

static int on_site(void *self, const batch *b, const site_view *view, status *st) {
    (void)st;
    ablation *a = self;
    const size_t cells = a->heads * view->sources;
    for (size_t i = 0; i < b->layout.sequences; i++)
        a->rows[b->first + i] = (double)(b->layout.start[i + 1] - b->layout.start[i]);
    if (view->sources == 0)
        return DONE;
    add_site_sums(a, b, view);
    add_moved(a, b, view);
    if (a->keeps_weights)
        memcpy(a->frozen.weight[view->site], view->weights, b->layout.rows * cells * sizeof(float));
    return DONE;
}

/* An intervention with the ablation it belongs to, for `thaw`. */
typedef struct frozen_run {
    ablation *a;
    const intervention *i;
    float *edited; /* [rows, most cells] */
} frozen_run;

/* Uploads the weights that sites from the first edit on are given. */
static int thaw(void *self, const batch *b, status *st) {
    const frozen_run *run = self;
    ablation *a = run->a;
    for (size_t site = run->i->first; site < a->p->plan.sites; site++) {
        const size_t sources = (size_t)a->p->plan.site[site].sources, cells = a->heads * sources;
        if (!run->i->at[site])
            continue;
        memcpy(run->edited, a->frozen.weight[site], b->layout.rows * cells * sizeof(float));
        for (size_t row = 0; row < b->layout.rows; row++)
            intervention_apply(run->i, site, a->heads, sources, run->edited + row * cells,
                               a->scratch);
        if (a->k->upload(a->device, a->frozen.given[site], 0, run->edited, b->layout.rows * cells,
                         st))
            return FAILED;
    }
    return DONE;
}

int ablation_run(ablation *a, status *st) {
    const variant whole = {.name = UNEDITED, .program = a->p};
    const observer watch = {.self = a, .routing_sums = true, .weights = true, .on_site = on_site};
    int rc = FAILED;
    variant *variants = mem_array(a->count, sizeof *variants, "interventions", st);
    frozen_run *runs = mem_array(a->count, sizeof *runs, "interventions", st);
    float *edited = mem_array(a->keeps_weights ? experiment_limits(a->e)->rows : 0,
                              a->heads * a->most_sources * sizeof *edited, "frozen weights", st);
    free(a->moved);
    a->moved = mem_array(a->count, a->sequences * sizeof *a->moved, "moved mass", st);
    if (!variants || !runs || !edited || !a->moved)
        goto done;
    for (size_t i = 0; i < a->count; i++) {
        runs[i] = (frozen_run){a, &a->list[i], edited};
        variants[i] = (variant){.name = a->list[i].name,
                                .program = a->list[i].program,
                                .prepare = a->keeps_weights ? thaw : NULL,
                                .self = &runs[i]};
    }
    rc = experiment_run(a->e, NULL, &whole, variants, a->count, &watch, st);
done:
    free(variants);
    free(runs);
    free(edited);
    return rc;
}

/* ---- results ---- */

int ablation_effect(const ablation *a, const bootstrap *b, size_t index, effect *out, double *draws,
                    status *st) {
    const intervention *i = &a->list[index];
    double moved = 0, tokens = 0;
    if (experiment_delta(a->e, b, i->name, UNEDITED, &out->delta_loss, &out->kl, draws, st))
        return FAILED;
    for (size_t q = 0; q < a->sequences; q++) {
        moved += a->moved[index * a->sequences + q];
        tokens += a->rows[q];
    }
    out->mass_moved = i->edited ? moved / tokens / (double)i->edited : 0;
    out->lift = out->mass_moved / i->share;
    /* Nothing edited is no test: it would only weaken those that are. */
    out->p = i->edited ? bootstrap_significance(b, &out->delta_loss) : NAN;
    out->q = NAN;
    out->class = EFFECT_UNDECIDED;
    return DONE;
}

void effects_classify(effect *list, size_t count, double equiv, double level) {
    size_t tests = 0;
    for (size_t i = 0; i < count; i++)
        tests += isnan(list[i].p) ? 0 : 1;
    for (size_t i = 0; i < count; i++) {
        effect *e = &list[i];
        e->q = isnan(e->p) ? NAN : 1;
        for (size_t j = 0; j < count; j++) {
            size_t rank = 0;
            if (!(list[j].p >= e->p))
                continue;
            for (size_t k = 0; k < count; k++)
                rank += list[k].p <= list[j].p ? 1 : 0;
            e->q = fmin(e->q, list[j].p * (double)tests / (double)rank);
        }
        if (e->delta_loss.low >= -equiv && e->delta_loss.high <= equiv)
            e->class = EFFECT_NONE;
        else if (e->q <= 1 - level)
            e->class = EFFECT_SEEN;
        else
            e->class = EFFECT_UNDECIDED;
    }
}

const double *ablation_site(const ablation *a, size_t site) {
    return a->site[site];
}

const double *ablation_rows(const ablation *a) {
    return a->rows;
}
