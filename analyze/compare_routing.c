/* compare_routing.c - routing statistics of several runs: CST, CSO, CPR, CAV and RJS of the
 * comparison.
 *
 * A site is matched by its name. Where mode, heads and the labels of its sources agree, every
 * statistic is compared cell by cell; elsewhere only what is normalised for the number of sources
 * (ANY_SITE), as the site's one value. */
#include "analyze/compare.h"
#include "analyze/routing_sections.h"
#include "analyze/routing_table.h"
#include "analyze/table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { AVERAGES = SITE_FINAL + 1, ALL_SITES = SITE_FINAL }; /* attn, mlp, all */
static const char *const average_name[AVERAGES] = {"attn", "mlp", "all"};

/* One run against the reference. */
typedef struct work {
    const comparison *c;
    size_t index; /* of the run */
    const compared_run *side[2];
    const recorded_site **match; /* [sites of the reference] the run's site, or NULL */
    bool *same;                  /* [sites of the reference] mode, heads and labels agree */
    const routing_statistic *statistic;
    routing_draws *source[2];
    double *draw[2];          /* [draws, routing_width] */
    double *sum[2][AVERAGES]; /* [draws] over sites */
    size_t counted[AVERAGES];
    double *scratch; /* [draws] */
} work;

/* ---- which sites ---- */

static bool same_labels(const work *w, const recorded_site *a, const recorded_site *b) {
    if (a->shape.heads != b->shape.heads || a->shape.sources != b->shape.sources)
        return false;
    for (size_t i = 0; i < a->shape.sources; i++)
        if (strcmp(w->side[0]->about->source_name[a->source[i]],
                   w->side[1]->about->source_name[b->source[i]]) != 0)
            return false;
    return true;
}

static void match_sites(work *w) {
    const recorded_sites *a = &w->side[0]->sites, *b = &w->side[1]->sites;
    bool mode = strcmp(w->side[0]->about->residual_mode, w->side[1]->about->residual_mode) == 0;
    for (size_t i = 0; i < a->sites; i++) {
        for (size_t j = 0; a->site[i].shape.sources && j < b->sites; j++)
            if (b->site[j].shape.sources && strcmp(a->site[i].name, b->site[j].name) == 0)
                w->match[i] = &b->site[j];
        w->same[i] = mode && w->match[i] && same_labels(w, &a->site[i], w->match[i]);
    }
}

/* Whether the statistic at hand is compared at the reference's i-th site. Of one head there is no
 * divergence to compare with that of several. */
static bool applies(const work *w, size_t i) {
    if (!w->match[i] || w->same[i])
        return w->match[i];
    bool heads = w->side[0]->about->heads > 1 && w->side[1]->about->heads > 1;
    return (w->statistic->flags & ANY_SITE) && (heads || w->statistic->axes != ROW_SITE);
}

static void say_matches(const work *w) {
    const recorded_sites *a = &w->side[0]->sites;
    size_t same = 0, other = 0, missing = 0;
    for (size_t i = 0; i < a->sites; i++) {
        if (a->site[i].shape.sources == 0)
            continue;
        same += w->same[i];
        other += w->match[i] && !w->same[i];
        missing += !w->match[i];
    }
    if (other)
        table_comment(
            w->c->out,
            "Run %zu: %zu sites have the reference's mode, heads and sources; at %zu "
            "others only entropy_norm and lookback_norm are compared, as means over heads, "
            "and, between runs of several heads, head_divergence and "
            "head_divergence_of_mean.",
            w->index, same, other);
    if (missing)
        table_comment(w->c->out, "Run %zu: %zu sites of the reference do not route there.",
                      w->index, missing);
}

/* ---- rows ---- */

static void put_values(const work *w, const size_t cell[2], const size_t width[2]) {
    compare_put(w->c, w->side[0]->routed, (compared_draws){w->draw[0] + cell[0], width[0]},
                (compared_draws){w->draw[1] + cell[1], width[1]}, w->scratch);
    table_end(w->c->out);
}

static void open_row(const work *w, const char *code, const char *site) {
    table_row(w->c->out, code);
    table_size(w->c->out, w->index);
    table_text(w->c->out, w->statistic->name);
    table_text(w->c->out, site);
}

/* The site's one value: the mean over heads, or what has no heads. */
static void put_site_value(const work *w, const recorded_site *site, const size_t width[2]) {
    open_row(w, "CST", site->name);
    table_text(w->c->out, w->statistic->axes == ROW_SITE ? "all" : "mean");
    put_values(w, (const size_t[]){width[0] - 1, width[1] - 1}, width);
}

static void put_every_cell(const work *w, const recorded_site *site, const size_t width[2]) {
    FILE *out = w->c->out;
    const recording_about *about = w->side[0]->about;
    size_t heads = site->shape.heads, sources = site->shape.sources;
    row_axes axes = w->statistic->axes;
    bool pairs = axes == ROW_HEAD_HEAD || axes == ROW_SOURCE_SOURCE;
    size_t inner = axes == ROW_HEAD_HEAD ? heads : sources;
    for (size_t i = 0; i < width[0]; i++) {
        if (pairs && i / inner >= i % inner)
            continue;
        if (axes == ROW_HEAD_HEAD) {
            open_row(w, "CPR", site->name);
            table_size(out, i / inner);
            table_size(out, i % inner);
        } else if (axes == ROW_SOURCE_SOURCE) {
            open_row(w, "CPR", site->name);
            table_text(out, about->source_name[site->source[i / inner]]);
            table_text(out, about->source_name[site->source[i % inner]]);
        } else if (axes == ROW_HEAD) {
            open_row(w, "CST", site->name);
            routing_put_head(out, i, heads);
        } else if (axes == ROW_HEAD_SOURCE || axes == ROW_SOURCE) {
            open_row(w, "CSO", site->name);
            if (axes == ROW_SOURCE)
                table_text(out, "all");
            else
                routing_put_head(out, i / inner, heads);
            table_text(out, about->source_name[site->source[i % inner]]);
        } else {
            open_row(w, "CST", site->name);
            table_text(out, "all");
        }
        put_values(w, (const size_t[]){i, i}, width);
    }
}

/* ---- means over sites ---- */

static void add_to_averages(work *w, const recorded_site *const site[2], const size_t width[2]) {
    if (!(w->statistic->flags & AVERAGED))
        return;
    for (int side = 0; side < 2; side++)
        if (!routing_averages(w->statistic, &site[side]->shape))
            return;
    for (int group = 0; group < AVERAGES; group++) {
        if (group != ALL_SITES && group != (int)site[0]->kind)
            continue;
        w->counted[group]++;
        for (int side = 0; side < 2; side++)
            for (size_t k = 0; k < w->c->draws; k++)
                w->sum[side][group][k] += w->draw[side][(k + 1) * width[side] - 1];
    }
}

static void put_averages(work *w) {
    for (int group = 0; group < AVERAGES; group++) {
        if (!w->counted[group])
            continue;
        for (int side = 0; side < 2; side++)
            for (size_t k = 0; k < w->c->draws; k++)
                w->sum[side][group][k] /= (double)w->counted[group];
        open_row(w, "CAV", average_name[group]);
        table_size(w->c->out, w->counted[group]);
        compare_put(w->c, w->side[0]->routed, (compared_draws){w->sum[0][group], 1},
                    (compared_draws){w->sum[1][group], 1}, w->scratch);
        table_end(w->c->out);
    }
}

/* ---- one statistic ---- */

/* w->source and w->draw of w->statistic. */
static int open_statistic(work *w, status *st) {
    for (int side = 0; side < 2; side++) {
        const compared_run *run = w->side[side];
        if (routing_draws_create(run->rec, &run->sites, w->statistic, w->c->draws, &w->source[side],
                                 st))
            return FAILED;
        w->draw[side] =
            mem_array(w->c->draws, routing_draws_width(w->source[side]) * sizeof(double),
                      "resampled statistics", st);
        if (!w->draw[side])
            return FAILED;
    }
    return DONE;
}

static void close_statistic(work *w) {
    for (int side = 0; side < 2; side++) {
        routing_draws_free(w->source[side]);
        free(w->draw[side]);
        w->source[side] = NULL;
        w->draw[side] = NULL;
    }
}

static int put_statistic(work *w, status *st) {
    int rc = open_statistic(w, st);
    memset(w->counted, 0, sizeof w->counted);
    for (int side = 0; side < 2; side++)
        for (int group = 0; group < AVERAGES; group++)
            memset(w->sum[side][group], 0, w->c->draws * sizeof(double));
    for (size_t i = 0; !rc && i < w->side[0]->sites.sites; i++) {
        const recorded_site *site[2] = {&w->side[0]->sites.site[i], w->match[i]};
        if (!applies(w, i))
            continue;
        size_t width[2];
        for (int side = 0; !rc && side < 2; side++) {
            width[side] = routing_width(w->statistic, &site[side]->shape);
            rc = routing_draws_site(w->source[side], site[side], w->side[side]->routed,
                                    w->draw[side], st);
        }
        if (rc)
            break;
        if (w->same[i])
            put_every_cell(w, site[0], width);
        else
            put_site_value(w, site[0], width);
        add_to_averages(w, site, width);
    }
    if (!rc)
        put_averages(w);
    close_statistic(w);
    return rc;
}

/* ---- run_js ---- */

/* Between the halves of one run: split [heads + 1]. `weight`: two buffers for them. */
static int split_half(const work *w, int side, const recorded_site *site, double *const weight[2],
                      const size_t *at, double *scratch, double *split, status *st) {
    const compared_run *run = w->side[side];
    size_t heads = site->shape.heads, sources = site->shape.sources;
    for (int half = 0; half < 2; half++)
        if (run->half[half] &&
            routing_draws_site(w->source[side], site, run->half[half], weight[half], st))
            return FAILED;
    split[heads] = 0;
    for (size_t h = 0; h < heads; h++) {
        split[h] = run->half[0] && run->half[1]
                       ? routing_js(weight[0] + h * sources, at, weight[1] + h * sources, at,
                                    sources, scratch)
                       : NAN;
        split[heads] += split[h] / (double)heads;
    }
    return DONE;
}

static int put_site_js(work *w, const recorded_site *site, const recorded_site *other,
                       const size_t *at, double *scratch, double *js, interval *result,
                       double *const split[2], status *st) {
    size_t heads = site->shape.heads, sources = site->shape.sources;
    if (routing_draws_site(w->source[0], site, w->side[0]->routed, w->draw[0], st) ||
        routing_draws_site(w->source[1], other, w->side[1]->routed, w->draw[1], st))
        return FAILED;
    for (size_t k = 0; k < w->c->draws; k++) {
        double *row = js + k * (heads + 1);
        row[heads] = 0;
        for (size_t h = 0; h < heads; h++) {
            size_t first = (k * (heads + 1) + h) * sources;
            row[h] = routing_js(w->draw[0] + first, at, w->draw[1] + first, at, sources, scratch);
            row[heads] += row[h] / (double)heads;
        }
    }
    bootstrap_intervals(w->side[0]->routed, js, heads + 1, result);
    if (split_half(w, 0, site, w->draw, at, scratch, split[0], st) ||
        split_half(w, 1, other, w->draw, at, scratch, split[1], st))
        return FAILED;
    for (size_t h = 0; h <= heads; h++) {
        table_row(w->c->out, "RJS");
        table_size(w->c->out, w->index);
        table_text(w->c->out, site->name);
        routing_put_head(w->c->out, h, heads);
        table_interval(w->c->out, result[h]);
        table_real(w->c->out, split[0][h]);
        table_real(w->c->out, split[1][h]);
        table_end(w->c->out);
    }
    return DONE;
}

static int put_run_js(work *w, status *st) {
    size_t heads = w->side[0]->about->heads, sources = w->side[0]->about->sources;
    double *split[2] = {NULL, NULL};
    w->statistic = routing_statistic_find("mean");
    int rc = open_statistic(w, st);
    size_t *at = mem_array(sources, sizeof *at, "labels", st);
    double *scratch = mem_array(sources, 3 * sizeof *scratch, "scratch", st);
    double *js = mem_array(w->c->draws, (heads + 1) * sizeof *js, "resampled divergences", st);
    interval *result = mem_array(heads + 1, sizeof *result, "intervals", st);
    split[0] = mem_array(heads + 1, sizeof(double), "divergences", st);
    split[1] = mem_array(heads + 1, sizeof(double), "divergences", st);
    if (!at || !scratch || !js || !result || !split[0] || !split[1])
        rc = FAILED;
    for (size_t i = 0; !rc && i < sources; i++)
        at[i] = i;
    for (size_t i = 0; !rc && i < w->side[0]->sites.sites; i++) {
        const recorded_site *site = &w->side[0]->sites.site[i];
        if (w->same[i] && site->shape.sources > 1)
            rc = put_site_js(w, site, w->match[i], at, scratch, js, result, split, st);
    }
    close_statistic(w);
    free(at);
    free(scratch);
    free(js);
    free(result);
    free(split[0]);
    free(split[1]);
    return rc;
}

/* ---- one run ---- */

static int put_run(const comparison *c, size_t index, status *st) {
    work w = {.c = c, .index = index, .side = {&c->run[0], &c->run[index]}};
    int rc = FAILED;
    w.match = mem_array(w.side[0]->sites.sites, sizeof *w.match, "sites", st);
    w.same = mem_array(w.side[0]->sites.sites, sizeof *w.same, "sites", st);
    w.scratch = mem_array(c->draws, sizeof *w.scratch, "resampled differences", st);
    if (!w.match || !w.same || !w.scratch)
        goto done;
    for (int i = 0; i < 2 * AVERAGES; i++) {
        double **sum = &w.sum[i / AVERAGES][i % AVERAGES];
        *sum = mem_array(c->draws, sizeof **sum, "resampled means", st);
        if (!*sum)
            goto done;
    }
    match_sites(&w);
    say_matches(&w);
    rc = DONE;
    for (size_t i = 0; !rc && i < routing_statistic_count; i++) {
        w.statistic = &routing_statistics[i];
        if (routing_table_has(w.side[0]->about, &w.side[0]->sites, w.statistic) &&
            routing_table_has(w.side[1]->about, &w.side[1]->sites, w.statistic))
            rc = put_statistic(&w, st);
    }
    if (!rc && c->paired)
        rc = put_run_js(&w, st);
done:
    for (int i = 0; i < 2 * AVERAGES; i++)
        free(w.sum[i / AVERAGES][i % AVERAGES]);
    free(w.match);
    free(w.same);
    free(w.scratch);
    return rc;
}

int compare_routing_write(const comparison *c, status *st) {
    table_section(c->out, "CST", "routing statistics by site and head",
                  "run, statistic, site, head, " COMPARED_COLUMNS, "those of the statistic");
    table_section(c->out, "CSO", "routing statistics by site, head and source",
                  "run, statistic, site, head, source, " COMPARED_COLUMNS,
                  "those of the statistic");
    table_section(c->out, "CPR", "routing statistics of two heads or two sources, each pair once",
                  "run, statistic, site, first, second, " COMPARED_COLUMNS,
                  "those of the statistic");
    table_section(c->out, "CAV",
                  "means over the compared sites that have more than one source; of: how many",
                  "run, statistic, sites, of, " COMPARED_COLUMNS, "those of the statistic");
    table_section(c->out, "RJS",
                  "run_js: Jensen-Shannon divergence of the mean weights of two runs; split_half: "
                  "of each run between the even and the odd units, what text alone explains",
                  "run, site, head, value, low, high, split_half_reference, split_half", "nats");
    int rc = DONE;
    for (size_t i = 1; !rc && i < c->runs; i++)
        if (c->run[0].routes && c->run[i].routes)
            rc = put_run(c, i, st);
    return rc;
}
