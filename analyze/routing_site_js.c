/* routing_site_js.c - how much neighbouring sites of one kind differ: SJS of the routing table. */
#include "analyze/routing_sections.h"
#include "analyze/table.h"

#include <math.h>
#include <stdlib.h>

typedef struct pair {
    const recorded_site *site[2];
    size_t *at[2]; /* [count] places of the labels that both have, among the sources of each */
    size_t count;
} pair;

typedef struct work {
    const routing_sample *s;
    size_t draws, heads;
    routing_draws *d;
    double *weight[2];  /* [draws, heads + 1, sources] of the two sites, of all units or a half */
    double *js;         /* [draws, heads + 1] */
    double *split[2];   /* [heads + 1] between the halves, of each site */
    double *kept[2];    /* [heads + 1] mass on the common labels, of each site */
    double *scratch;    /* [3 * sources] */
    interval *interval; /* [heads + 1] */
    pair pair;
} work;

static void find_common(pair *p) {
    const recorded_site *a = p->site[0], *b = p->site[1];
    p->count = 0;
    for (size_t i = 0, j = 0; i < a->shape.sources && j < b->shape.sources;) {
        if (a->source[i] == b->source[j]) {
            p->at[0][p->count] = i;
            p->at[1][p->count++] = j;
        }
        bool step_a = a->source[i] <= b->source[j], step_b = b->source[j] <= a->source[i];
        i += step_a;
        j += step_b;
    }
}

/* The plain mean over heads goes to value[heads]. */
static void average_heads(double *value, size_t heads) {
    value[heads] = 0;
    for (size_t h = 0; h < heads; h++)
        value[heads] += value[h] / (double)heads;
}

static int measure(work *w, status *st) {
    const pair *p = &w->pair;
    size_t sources[2] = {p->site[0]->shape.sources, p->site[1]->shape.sources};
    for (int i = 0; i < 2; i++) {
        if (routing_draws_site(w->d, p->site[i], w->s->all, w->weight[i], st))
            return FAILED;
        for (size_t h = 0; h <= w->heads; h++) {
            w->kept[i][h] = 0;
            for (size_t c = 0; c < p->count; c++)
                w->kept[i][h] += w->weight[i][h * sources[i] + p->at[i][c]];
        }
    }
    for (size_t k = 0; k < w->draws; k++) {
        double *js = w->js + k * (w->heads + 1);
        for (size_t h = 0; h < w->heads; h++) {
            size_t row = k * (w->heads + 1) + h;
            js[h] = routing_js(w->weight[0] + row * sources[0], p->at[0],
                               w->weight[1] + row * sources[1], p->at[1], p->count, w->scratch);
        }
        average_heads(js, w->heads);
    }
    bootstrap_intervals(w->s->all, w->js, w->heads + 1, w->interval);
    return DONE;
}

/* Each site against itself, on the even and on the odd units. */
static int measure_halves(work *w, status *st) {
    const pair *p = &w->pair;
    for (int i = 0; i < 2; i++) {
        for (int half = 0; half < 2; half++)
            if (w->s->half[half] &&
                routing_draws_site(w->d, p->site[i], w->s->half[half], w->weight[half], st))
                return FAILED;
        for (size_t h = 0; h < w->heads; h++) {
            size_t first = h * p->site[i]->shape.sources;
            w->split[i][h] = w->s->half[0] && w->s->half[1]
                                 ? routing_js(w->weight[0] + first, p->at[i], w->weight[1] + first,
                                              p->at[i], p->count, w->scratch)
                                 : NAN;
        }
        average_heads(w->split[i], w->heads);
    }
    return DONE;
}

static void put_pair(const work *w) {
    FILE *out = w->s->out;
    for (size_t h = 0; h <= w->heads; h++) {
        table_row(out, "SJS");
        table_text(out, w->pair.site[0]->name);
        table_text(out, w->pair.site[1]->name);
        routing_put_head(out, h, w->heads);
        table_interval(out, w->interval[h]);
        for (int i = 0; i < 2; i++)
            table_real(out, w->split[i][h]);
        for (int i = 0; i < 2; i++)
            table_real(out, w->kept[i][h]);
        table_end(out);
    }
}

/* The next site of the same kind that routes, or NULL. */
static const recorded_site *successor(const recorded_sites *sites, size_t i) {
    for (size_t j = i + 1; j < sites->sites; j++)
        if (sites->site[j].kind == sites->site[i].kind && sites->site[j].shape.sources)
            return &sites->site[j];
    return NULL;
}

static int prepare(work *w, status *st) {
    const routing_sample *s = w->s;
    if (routing_draws_create(s->rec, s->sites, routing_statistic_find("mean"), w->draws, &w->d, st))
        return FAILED;
    size_t rows = w->heads + 1, sources = s->about->sources;
    for (int i = 0; i < 2; i++) {
        w->weight[i] = mem_array(w->draws, routing_draws_width(w->d) * sizeof(double),
                                 "resampled weights", st);
        w->split[i] = mem_array(rows, sizeof(double), "divergences", st);
        w->kept[i] = mem_array(rows, sizeof(double), "divergences", st);
        w->pair.at[i] = mem_array(sources, sizeof(size_t), "labels", st);
        if (!w->weight[i] || !w->split[i] || !w->kept[i] || !w->pair.at[i])
            return FAILED;
    }
    w->js = mem_array(w->draws, rows * sizeof(double), "resampled divergences", st);
    w->scratch = mem_array(sources, 3 * sizeof(double), "scratch", st);
    w->interval = mem_array(rows, sizeof *w->interval, "intervals", st);
    return w->js && w->scratch && w->interval ? DONE : FAILED;
}

int routing_site_js_write(const routing_sample *s, status *st) {
    work w = {.s = s, .draws = bootstrap_draws(s->all), .heads = s->about->heads};
    int rc = prepare(&w, st);
    if (!rc)
        table_section(
            s->out, "SJS",
            "site_js: Jensen-Shannon divergence of the mean weights of neighbouring sites "
            "of one kind over the labels that both have, renormalised; split_half: of "
            "each site between the even and the odd units, what text alone explains; "
            "retained: mass on those labels",
            "site, site_other, head, value, low, high, split_half, split_half_other, "
            "retained, retained_other",
            "nats, retained 1");
    for (size_t i = 0; !rc && i < s->sites->sites; i++) {
        w.pair.site[0] = &s->sites->site[i];
        w.pair.site[1] = successor(s->sites, i);
        if (w.pair.site[0]->shape.sources == 0 || !w.pair.site[1])
            continue;
        find_common(&w.pair);
        if (w.pair.count < 2) /* one label renormalised is 1 */
            continue;
        rc = measure(&w, st) || measure_halves(&w, st) ? FAILED : DONE;
        if (!rc)
            put_pair(&w);
    }
    routing_draws_free(w.d);
    for (int i = 0; i < 2; i++) {
        free(w.weight[i]);
        free(w.split[i]);
        free(w.kept[i]);
        free(w.pair.at[i]);
    }
    free(w.js);
    free(w.scratch);
    free(w.interval);
    return rc;
}
