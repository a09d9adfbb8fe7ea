/* routing_claims.c - what has been published about routing over depth, as numbers of this
 * recording: CLM and SKP of the routing table. */
#include "analyze/routing_sections.h"
#include "analyze/table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A claim's number for every draw. */
typedef struct claim {
    const char *name, *where;
    double against; /* what it is without the claimed effect */
    size_t of;      /* sites, layers or cells that it is a mean or a count over */
    double *draw;   /* [draws] */
} claim;

typedef struct work {
    const routing_sample *s;
    size_t draws;
    size_t cells, *first; /* see routing_head_means */
    double *weight;       /* [draws, cells] */
    double *site_value;   /* [sites, draws] of the statistic at hand, head mean */
} work;

static int claim_begin(const work *w, claim *c, status *st) {
    c->of = 0;
    c->draw = mem_array(w->draws, sizeof *c->draw, c->name, st);
    return c->draw ? DONE : FAILED;
}

static void put_claim(const work *w, const claim *c, interval result) {
    table_row(w->s->out, "CLM");
    table_text(w->s->out, c->name);
    table_text(w->s->out, c->where);
    table_interval(w->s->out, result);
    table_real(w->s->out, c->against);
    table_size(w->s->out, c->of);
    table_end(w->s->out);
}

static void put_drawn_claim(const work *w, const claim *c) {
    interval result;
    bootstrap_intervals(w->s->all, c->draw, 1, &result);
    put_claim(w, c, result);
}

/* Of a sum over c->of things: their mean. Without any it is NaN. */
static void put_mean_claim(const work *w, claim *c) {
    for (size_t k = 0; k < w->draws; k++)
        c->draw[k] /= (double)c->of;
    put_drawn_claim(w, c);
}

/* w->site_value from a statistic whose result ends with its mean over heads. */
static int draw_site_values(work *w, const char *name, status *st) {
    const routing_sample *s = w->s;
    const routing_statistic *statistic = routing_statistic_find(name);
    routing_draws *d;
    if (routing_draws_create(s->rec, s->sites, statistic, w->draws, &d, st))
        return FAILED;
    double *own = mem_array(w->draws, routing_draws_width(d) * sizeof *own, name, st);
    int rc = own ? DONE : FAILED;
    for (size_t i = 0; !rc && i < s->sites->sites; i++) {
        const recorded_site *site = &s->sites->site[i];
        if (site->shape.sources == 0)
            continue;
        rc = routing_draws_site(d, site, s->all, own, st);
        size_t width = routing_width(statistic, &site->shape);
        for (size_t k = 0; !rc && k < w->draws; k++)
            w->site_value[i * w->draws + k] = own[k * width + width - 1];
    }
    free(own);
    routing_draws_free(d);
    return rc;
}

/* The newest source gets more than under uniform weights. */
static int claim_newest(work *w, status *st) {
    static const struct {
        const char *where;
        site_kind first, last;
    } groups[] = {{"attn", SITE_ATTN, SITE_ATTN},
                  {"mlp", SITE_MLP, SITE_MLP},
                  {"all", SITE_ATTN, SITE_FINAL}};
    const routing_statistic *newest = routing_statistic_find("newest_mass");
    if (draw_site_values(w, newest->name, st))
        return FAILED;
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
        claim c = {.name = "newest_lift", .where = groups[g].where, .against = 1};
        if (claim_begin(w, &c, st))
            return FAILED;
        for (size_t i = 0; i < w->s->sites->sites; i++) {
            const recorded_site *site = &w->s->sites->site[i];
            const routing_shape *shape = &site->shape;
            if (site->kind < groups[g].first || site->kind > groups[g].last ||
                shape->sources == 0 || !routing_averages(newest, shape))
                continue;
            c.of++;
            for (size_t k = 0; k < w->draws; k++)
                c.draw[k] +=
                    w->site_value[i * w->draws + k] * (double)(shape->sources - shape->null_source);
        }
        put_mean_claim(w, &c);
        free(c.draw);
    }
    return DONE;
}

/* The embedding keeps its weight in the deeper half: layers from L/2 on, and the final site. */
static int claim_embedding(const work *w, status *st) {
    claim c = {.name = "embedding_lift", .where = "deeper half", .against = 1};
    if (claim_begin(w, &c, st))
        return FAILED;
    for (size_t i = 0; i < w->s->sites->sites; i++) {
        const recorded_site *site = &w->s->sites->site[i];
        size_t sources = site->shape.sources;
        if (2 * i + 1 < w->s->sites->sites || sources < 2)
            continue;
        for (size_t j = 0; j < sources; j++) {
            if (strcmp(w->s->about->source_name[site->source[j]], "emb") != 0)
                continue;
            c.of++;
            for (size_t k = 0; k < w->draws; k++)
                c.draw[k] += w->weight[k * w->cells + w->first[i] + j] * (double)sources;
        }
    }
    put_mean_claim(w, &c);
    free(c.draw);
    return DONE;
}

/* Attention reads more widely than the MLP of the same layer. */
static int claim_entropy(work *w, status *st) {
    claim c = {.name = "entropy_norm_attn_minus_mlp", .where = "layers", .against = 0};
    const routing_statistic *statistic = routing_statistic_find("entropy_norm");
    if (draw_site_values(w, statistic->name, st) || claim_begin(w, &c, st))
        return FAILED;
    for (size_t i = 0; i + 1 < w->s->sites->sites; i++) {
        const recorded_site *attn = &w->s->sites->site[i], *mlp = attn + 1;
        if (attn->kind != SITE_ATTN || mlp->kind != SITE_MLP ||
            strcmp(attn->layer, mlp->layer) != 0 || attn->shape.sources < 2 ||
            mlp->shape.sources < 2)
            continue;
        c.of++;
        for (size_t k = 0; k < w->draws; k++)
            c.draw[k] += w->site_value[i * w->draws + k] - w->site_value[(i + 1) * w->draws + k];
    }
    put_mean_claim(w, &c);
    free(c.draw);
    return DONE;
}

/* Whether the site's j-th source can be a skip: not the null source, not one of the two newest. */
static bool may_skip(const recorded_site *site, size_t j) {
    return j >= site->shape.null_source && j + 2 < site->shape.sources;
}

/* A site reaches far back: cells above twice the uniform weight. */
static int claim_skips(const work *w, status *st) {
    claim c = {.name = "skips", .where = "cells", .against = 0};
    if (claim_begin(w, &c, st))
        return FAILED;
    for (size_t i = 0; i < w->s->sites->sites; i++) {
        const recorded_site *site = &w->s->sites->site[i];
        for (size_t j = 0; j < site->shape.sources; j++) {
            if (!may_skip(site, j))
                continue;
            c.of++;
            for (size_t k = 0; k < w->draws; k++) {
                double lift =
                    w->weight[k * w->cells + w->first[i] + j] * (double)site->shape.sources;
                c.draw[k] += isnan(lift) ? NAN : lift > 2;
            }
        }
    }
    put_drawn_claim(w, &c);
    free(c.draw);
    return DONE;
}

/* ---- heads ---- */

typedef struct moments {
    double n, x, y, xx, yy, xy;
} moments;

static double correlation(const moments *m) {
    double covariance = m->xy - m->x * m->y / m->n;
    return covariance / sqrt((m->xx - m->x * m->x / m->n) * (m->yy - m->y * m->y / m->n));
}

/* Adds one site's deviations from the head mean: moment [draws, heads], weight[half] [draws, heads
 * + 1, sources]. */
static void add_deviations(const work *w, size_t sources, double *const weight[2],
                           moments *moment) {
    size_t heads = w->s->about->heads;
    for (size_t k = 0; k < w->draws; k++)
        for (size_t h = 0; h < heads; h++) {
            moments *m = &moment[k * heads + h];
            for (size_t j = 0; j < sources; j++) {
                size_t own = (k * (heads + 1) + h) * sources + j;
                size_t mean = (k * (heads + 1) + heads) * sources + j;
                double x = weight[0][own] - weight[0][mean], y = weight[1][own] - weight[1][mean];
                m->n++;
                m->x += x;
                m->y += y;
                m->xx += x * x;
                m->yy += y * y;
                m->xy += x * y;
            }
        }
}

/* The interval is had in Fisher's z, so that it stays within -1 .. 1. */
static void put_correlation(const work *w, claim *c) {
    static const double most = 1 - 0x1p-50;
    const bootstrap *b = w->s->half[1]; /* of an odd number of units the smaller half */
    interval x;
    double value = c->draw[0];
    for (size_t k = 0; k < w->draws; k++)
        c->draw[k] = isnan(c->draw[k]) ? NAN : atanh(fmax(-most, fmin(most, c->draw[k])));
    bootstrap_intervals(b, c->draw, 1, &x);
    put_claim(w, c, (interval){value, tanh(x.low), tanh(x.high)});
}

static int put_heads(const work *w, const moments *moment, status *st) {
    size_t heads = w->s->about->heads;
    char where[32];
    claim c = {.name = "head_deviation_correlation", .where = where, .against = 0};
    claim mean = {.name = c.name, .where = "mean", .against = 0};
    if (claim_begin(w, &c, st) || claim_begin(w, &mean, st)) {
        free(c.draw);
        return FAILED;
    }
    for (size_t h = 0; h < heads; h++) {
        snprintf(where, sizeof where, "%zu", h);
        c.of = (size_t)moment[h].n;
        for (size_t k = 0; k < w->draws; k++) {
            c.draw[k] = correlation(&moment[k * heads + h]);
            mean.draw[k] += c.draw[k] / (double)heads;
        }
        put_correlation(w, &c);
    }
    mean.of = heads;
    put_correlation(w, &mean);
    free(c.draw);
    free(mean.draw);
    return DONE;
}

/* Heads differ reproducibly: over all cells of the sites with a choice, the deviation of a head's
 * mean weights from the head mean in the even units against that in the odd ones. Draw k pairs
 * resample k of the even units with resample k of the odd ones, drawn from another seed. */
static int claim_heads(const work *w, status *st) {
    const routing_sample *s = w->s;
    if (s->about->heads < 2 || !s->half[0] || !s->half[1])
        return DONE;
    routing_draws *d;
    double *weight[2] = {NULL, NULL};
    moments *moment = NULL;
    int rc = FAILED;
    if (routing_draws_create(s->rec, s->sites, routing_statistic_find("mean"), w->draws, &d, st))
        return FAILED;
    size_t bytes = routing_draws_width(d) * sizeof(double);
    weight[0] = mem_array(w->draws, bytes, "resampled weights", st);
    weight[1] = mem_array(w->draws, bytes, "resampled weights", st);
    moment = mem_array(w->draws, s->about->heads * sizeof *moment, "correlations", st);
    if (!weight[0] || !weight[1] || !moment)
        goto done;
    for (size_t i = 0; i < s->sites->sites; i++) {
        const recorded_site *site = &s->sites->site[i];
        if (site->shape.sources < 2)
            continue;
        if (routing_draws_site(d, site, s->half[0], weight[0], st) ||
            routing_draws_site(d, site, s->half[1], weight[1], st))
            goto done;
        add_deviations(w, site->shape.sources, weight, moment);
    }
    rc = put_heads(w, moment, st);
done:
    free(weight[0]);
    free(weight[1]);
    free(moment);
    routing_draws_free(d);
    return rc;
}

/* ---- sections ---- */

static int put_skips(const work *w, status *st) {
    const routing_sample *s = w->s;
    interval *cell = mem_array(w->cells, sizeof *cell, "intervals", st);
    if (!cell)
        return FAILED;
    bootstrap_intervals(s->all, w->weight, w->cells, cell);
    table_section(s->out, "SKP",
                  "cells off the two newest sources with a head-mean weight above 2 / S; lift: "
                  "weight times S",
                  "site, source, lift, low, high", "1");
    for (size_t i = 0; i < s->sites->sites; i++) {
        const recorded_site *site = &s->sites->site[i];
        double sources = (double)site->shape.sources;
        for (size_t j = 0; j < site->shape.sources; j++) {
            const interval *x = &cell[w->first[i] + j];
            if (!may_skip(site, j) || !(x->value * sources > 2))
                continue;
            table_row(s->out, "SKP");
            table_text(s->out, site->name);
            table_text(s->out, s->about->source_name[site->source[j]]);
            table_interval(s->out, interval_over(*x, 1 / sources));
            table_end(s->out);
        }
    }
    free(cell);
    return DONE;
}

int routing_claims_write(const routing_sample *s, status *st) {
    work w = {.s = s, .draws = bootstrap_draws(s->all)};
    int rc = FAILED;
    w.first = mem_array(s->sites->sites, sizeof *w.first, "sites", st);
    w.site_value =
        mem_array(s->sites->sites, w.draws * sizeof *w.site_value, "resampled statistics", st);
    if (!w.first || !w.site_value ||
        routing_head_means(s, s->all, w.first, &w.cells, &w.weight, st))
        goto done;
    if (s->half[1] && bootstrap_units(s->half[1]) < BOOTSTRAP_UNITS_MIN)
        table_comment(s->out,
                      "Half of the units are fewer than %d: head_deviation_correlation has "
                      "no interval.",
                      BOOTSTRAP_UNITS_MIN);
    table_section(s->out, "CLM",
                  "published claims as numbers: newest_lift and embedding_lift, means over sites "
                  "of weight times S; entropy_norm_attn_minus_mlp, mean over layers; skips, cells "
                  "off the two newest sources above 2 / S; head_deviation_correlation, of each "
                  "head's mean weights minus the head mean between the even and the odd units; "
                  "against: the value without such an effect; of: sites, layers, cells or heads "
                  "counted",
                  "claim, where, value, low, high, against, of", "1");
    if (claim_newest(&w, st) || claim_embedding(&w, st) || claim_entropy(&w, st) ||
        claim_skips(&w, st) || claim_heads(&w, st))
        goto done;
    rc = put_skips(&w, st);
done:
    free(w.first);
    free(w.site_value);
    free(w.weight);
    return rc;
}
