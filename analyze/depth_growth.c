/* How hidden states grow over the layers, and what is left of them where a block begins. */
#include "analyze/depth_numbers.h"
#include "analyze/depth_table.h"
#include "analyze/table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A law is named where it has this many points and explains this much of their variance. */
enum { LAW_POINTS_MIN = 16 };
static const double law_explained_min = 0.9;

/* ---- which tensors ---- */

typedef struct growth_points {
    const char *row;  /* "state_rms" */
    const char *what; /* one sentence without its point */
    size_t count;
    size_t *place; /* [count] in order of depth */
    double *depth; /* [count] in layers: 3 after or before layer 3, 3.5 before its MLP */
} growth_points;

static void add_point(growth_points *points, size_t place, double depth) {
    points->place[points->count] = place;
    points->depth[points->count++] = depth;
}

/* Replacing modes have no stream: in full modes what is read at every site stands for it. */
static void choose_sites(const depth_table *t, growth_points *points) {
    points->row = "in_rms";
    points->what = "of what is read at every site, depth counts layers, a half before an MLP";
    for (size_t i = 0; i < t->sites->sites; i++) {
        const recorded_site *site = &t->sites->site[i];
        double layer = site->kind == SITE_FINAL ? (double)t->layers : strtod(site->layer, NULL);
        add_point(points, i, layer + (site->kind == SITE_MLP ? 0.5 : 0));
    }
}

static void choose_layers(const depth_table *t, growth_points *points) {
    bool blocks = strncmp(t->about->residual_mode, "block", 5) == 0;
    points->row = "state_rms";
    points->what = blocks ? "of the state after each block's last MLP, its complete sum, depth is "
                            "the number of that layer"
                          : "of the state after each MLP, depth is the number of its layer";
    for (size_t i = 0; i < t->layers; i++)
        if (!blocks || i + 1 == t->layers || t->layer[i + 1].opens)
            add_point(points, t->layer[i].place, t->layer[i].number);
}

/* The points at which the recording has numbers. */
static int choose_points(const depth_table *t, growth_points *points, status *st) {
    size_t most = t->sites->sites;
    *points = (growth_points){.place = mem_array(most, sizeof(size_t), "points", st),
                              .depth = mem_array(most, sizeof(double), "points", st)};
    if (!points->place || !points->depth)
        return FAILED;
    if (strncmp(t->about->residual_mode, "full", 4) == 0)
        choose_sites(t, points);
    else
        choose_layers(t, points);
    return DONE;
}

static void keep_existing(growth_points *points, const token_row *row) {
    size_t kept = 0;
    for (size_t i = 0; i < points->count; i++)
        if (row->exists[points->place[i]]) {
            points->place[kept] = points->place[i];
            points->depth[kept++] = points->depth[i];
        }
    points->count = kept;
}

/* ---- the two fits ---- */

enum { BY_DEPTH, BY_LOG, FITS };

typedef struct growth_fit {
    double *x[FITS];        /* [points] depth, ln(depth + 1) */
    fitted_line line[FITS]; /* of the data */
    interval slope[FITS];
    interval gain; /* residual of the first minus that of the second */
} growth_fit;

/* draws [draws, points] of the mean ln rms. */
static int fit_draws(const bootstrap *b, const double *draws, size_t points, growth_fit *fit,
                     status *st) {
    size_t count = bootstrap_draws(b);
    double *found = mem_array(3 * count, sizeof *found, "resampled slopes", st);
    if (!found)
        return FAILED;
    for (size_t d = 0; d < count; d++) {
        fitted_line line[FITS];
        for (int i = 0; i < FITS; i++)
            line[i] = fit_line(fit->x[i], draws + d * points, points);
        if (d == 0)
            memcpy(fit->line, line, sizeof line);
        found[d] = line[BY_DEPTH].slope;
        found[count + d] = line[BY_LOG].slope;
        found[2 * count + d] = line[BY_DEPTH].residual - line[BY_LOG].residual;
    }
    bootstrap_intervals(b, found, 1, &fit->slope[BY_DEPTH]);
    bootstrap_intervals(b, found + count, 1, &fit->slope[BY_LOG]);
    bootstrap_intervals(b, found + 2 * count, 1, &fit->gain);
    free(found);
    return DONE;
}

static const char *law_of(const growth_fit *fit, size_t points) {
    static const char *const names[FITS] = {"exponential", "power"};
    int better = fit->gain.low > 0 ? BY_LOG : BY_DEPTH;
    if (points < LAW_POINTS_MIN)
        return "unnamed";
    if (!(fit->gain.low > 0 || fit->gain.high < 0))
        return "undecided";
    return fit->line[better].explained >= law_explained_min ? names[better] : "neither";
}

static void put_fits(FILE *out, const growth_points *points, const growth_fit *fit) {
    static const char *const against[FITS] = {"depth", "ln(depth+1)"};
    char title[400];
    snprintf(title, sizeof title, "growth: least squares of the mean ln rms %s", points->what);
    table_section(out, "GRW", title,
                  "against, points, slope, low, high, factor, factor_low, factor_high, "
                  "rms_residual, r2, law",
                  "slope on depth per layer, on ln(depth+1) 1; factor per layer");
    for (int i = 0; i < FITS; i++) {
        interval slope = fit->slope[i], factor = {NAN, NAN, NAN};
        if (i == BY_DEPTH)
            factor = (interval){exp(slope.value), exp(slope.low), exp(slope.high)};
        table_row(out, "GRW");
        table_text(out, against[i]);
        table_size(out, points->count);
        table_interval(out, slope);
        table_interval(out, factor);
        table_real(out, fit->line[i].residual);
        table_real(out, fit->line[i].explained);
        table_text(out, law_of(fit, points->count));
        table_end(out);
    }
    table_comment(out, "Slope on ln(depth+1), for a stream much larger than its embedding: 1/2 "
                       "independent outputs, 1 aligned ones, 0 bounded.");
    if (points->count < LAW_POINTS_MIN)
        table_comment(out, "Fewer than %d points: no law is named.", LAW_POINTS_MIN);
    else
        table_comment(
            out,
            "law: exponential or power (of depth + 1), the fit with the smaller "
            "rms_residual; undecided where the interval of their difference does not exclude 0, "
            "neither where its r2 is below %g.",
            law_explained_min);
}

static void put_points(FILE *out, const recording_about *about, const growth_points *points,
                       const interval *mean, const growth_fit *fit) {
    table_section(out, "GRP", "the points of GRW: mean ln rms and what each fit leaves of it",
                  "point, depth, mean_ln_rms, low, high, residual_depth, residual_log", "1");
    for (size_t i = 0; i < points->count; i++) {
        table_row(out, "GRP");
        table_text(out, token_row_label(about, points->row, points->place[i]));
        table_real(out, points->depth[i]);
        table_interval(out, mean[i]);
        for (int k = 0; k < FITS; k++)
            table_real(out,
                       mean[i].value - fit->line[k].intercept - fit->line[k].slope * fit->x[k][i]);
        table_end(out);
    }
}

/* ---- growth ---- */

static int put_growth(const depth_table *t, const bootstrap *b, const growth_points *points,
                      const token_row *row, status *st) {
    int rc = FAILED;
    growth_fit fit = {.x = {points->depth}};
    double *draws = depth_draws(b, row, points->place, points->count, st);
    interval *mean = mem_array(points->count, sizeof *mean, "intervals", st);
    fit.x[BY_LOG] = mem_array(points->count, sizeof(double), "points", st);
    if (!draws || !mean || !fit.x[BY_LOG])
        goto done;
    for (size_t i = 0; i < points->count; i++)
        fit.x[BY_LOG][i] = log1p(points->depth[i]);
    bootstrap_intervals(b, draws, points->count, mean);
    if (fit_draws(b, draws, points->count, &fit, st))
        goto done;
    put_fits(t->out, points, &fit);
    put_points(t->out, t->about, points, mean, &fit);
    if (row->faults)
        table_comment(t->out,
                      "GRW, GRP: an rms is 0 or not finite, first at sequence %zu, "
                      "position %zu, %s.",
                      row->fault_sequence, row->fault_position,
                      token_row_label(t->about, row->name, row->fault_place));
    rc = DONE;
done:
    free(draws);
    free(mean);
    free(fit.x[BY_LOG]);
    return rc;
}

int depth_put_growth(const depth_table *t, status *st) {
    const recording_about *about = t->about;
    int rc = FAILED;
    growth_points points = {0};
    token_row row = {0};
    bootstrap *b = NULL;
    double *weight = mem_array(about->sequences, sizeof *weight, "tokens", st);
    double tokens = 0;
    size_t first = about->skip_first ? about->skip_first : 1;
    for (size_t i = 0; weight && i < about->sequences; i++) {
        size_t length = (size_t)about->length[i];
        weight[i] = length > first ? (double)(length - first) : 0;
        tokens += weight[i];
    }
    if (!weight || choose_points(t, &points, st))
        goto done;
    if (tokens > 0 && points.count) {
        if (token_row_read(t->rec, points.row, first, &(token_term){.of = log}, &row, st) ||
            sampling_draw(t->sampling, about->sequences, weight, t->unit, t->units, &b, st))
            goto done;
        keep_existing(&points, &row);
    }
    rc = DONE;
    if (tokens > 0 && points.count > 1)
        rc = put_growth(t, b, &points, &row, st);
    else
        table_comment(t->out, "GRW, GRP are left out: they need two points of depth and tokens "
                              "past position 0.");
done:
    free(weight);
    free(points.place);
    free(points.depth);
    token_row_clear(&row);
    bootstrap_free(b);
    return rc;
}

/* ---- blocks ---- */

static void put_reset(const depth_table *t, size_t block, size_t layer, interval ratio) {
    table_row(t->out, "RST");
    table_size(t->out, block);
    table_text(t->out, t->about->site_name[t->layer[layer - 1].place]);
    table_text(t->out, t->about->site_name[t->layer[layer].place]);
    table_interval(t->out, ratio);
    table_end(t->out);
}

int depth_put_resets(const depth_table *t, status *st) {
    if (!t->blocks) {
        table_comment(t->out, "RST is left out: the model has no blocks; --blocks N cuts it.");
        return DONE;
    }
    token_row row;
    if (token_row_read(t->rec, "state_rms", t->about->skip_first, NULL, &row, st))
        return FAILED;
    size_t count = bootstrap_draws(t->b), block = 1;
    double *ratio = mem_array(count, sizeof *ratio, "resampled ratios", st);
    int rc = ratio ? DONE : FAILED;
    table_section(t->out, "RST",
                  "reset_ratio: mean state_rms after the first layer of a block divided by that "
                  "after the last layer of the block before",
                  "block, last, first, value, low, high", "1");
    for (size_t i = 1; !rc && i < t->layers; i++) {
        if (!t->layer[i].opens)
            continue;
        size_t place[2] = {t->layer[i].place, t->layer[i - 1].place};
        double *mean = depth_draws(t->b, &row, place, 2, st);
        if (!mean) {
            rc = FAILED;
            break;
        }
        for (size_t d = 0; d < count; d++)
            ratio[d] = mean[2 * d] / mean[2 * d + 1];
        free(mean);
        interval x;
        bootstrap_intervals(t->b, ratio, 1, &x);
        put_reset(t, ++block, i, x);
    }
    free(ratio);
    token_row_clear(&row);
    return rc;
}
