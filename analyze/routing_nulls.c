/* routing_nulls.c - statistics beside those of random queries: NBD of the routing table. */
#include "analyze/routing_sections.h"
#include "analyze/table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const statistics[] = {"entropy", "token_information", "head_divergence",
                                         "head_divergence_of_mean", "head_js"};
static const char *const null_kinds[] = {"norm", "var"};

/* One statistic of the sequences that have nulls, and the same under random queries. */
typedef struct null_band {
    const routing_sample *s;
    const routing_statistic *statistic;
    size_t tokens;
    double *own[2];  /* rows of all sequences, as recording_read_row */
    double *null[2]; /* rows of one kind, as recording_read_null */
    double *mean[2]; /* one draw's means at one site */
    double *result;  /* [1 + draws, routing_width of the largest site]: learned, then random */
    double *scratch;
    size_t *cell;
} null_band;

static void clear_band(null_band *n) {
    for (int i = 0; i < 2; i++) {
        free(n->own[i]);
        free(n->null[i]);
        free(n->mean[i]);
    }
    free(n->result);
    free(n->scratch);
    free(n->cell);
}

static int init_band(null_band *n, const routing_sample *s, const routing_statistic *statistic,
                     status *st) {
    const recording_about *about = s->about;
    routing_shape largest = {.heads = about->heads, .sources = about->sources};
    *n = (null_band){.s = s, .statistic = statistic};
    for (size_t i = 0; i < about->null_sequences; i++)
        n->tokens += recording_sum_tokens(s->rec, about->null_sequence[i]);
    size_t cells = 1;
    for (int i = 0; i < 2 && statistic->from[i]; i++) {
        const routing_row *row = routing_row_find(statistic->from[i]);
        size_t own = routing_row_size(row, about->heads, about->sources);
        cells = own > cells ? own : cells;
        n->mean[i] = mem_array(own, sizeof(double), "means", st);
        if (!n->mean[i] || recording_read_row(s->rec, row->name, &n->own[i], st))
            return FAILED;
    }
    n->result = mem_array(1 + about->null_draws,
                          routing_width(statistic, &largest) * sizeof *n->result, "nulls", st);
    n->scratch = mem_array(routing_scratch(&largest), sizeof *n->scratch, "nulls", st);
    n->cell = mem_array(cells, sizeof *n->cell, "cells", st);
    return n->result && n->scratch && n->cell ? DONE : FAILED;
}

static int read_kind(null_band *n, const char *kind, status *st) {
    for (int i = 0; i < 2 && n->statistic->from[i]; i++) {
        free(n->null[i]);
        n->null[i] = NULL;
        if (recording_read_null(n->s->rec, n->statistic->from[i], kind, &n->null[i], st))
            return FAILED;
    }
    return DONE;
}

/* The statistic at one site under the learned query (draw 0) or random query draw - 1. */
static void derive_draw(null_band *n, const recorded_site *site, size_t draw, double *out) {
    const recording_about *about = n->s->about;
    for (int i = 0; i < 2 && n->statistic->from[i]; i++) {
        const routing_row *row = routing_row_find(n->statistic->from[i]);
        size_t cells = routing_row_size(row, site->shape.heads, site->shape.sources);
        size_t stride = recorded_row_stride(about, row->axes);
        recorded_site_cells(site, about, row->axes, n->cell);
        memset(n->mean[i], 0, cells * sizeof *n->mean[i]);
        for (size_t k = 0; k < about->null_sequences; k++) {
            size_t sequence = about->null_sequence[k];
            double tokens = (double)recording_sum_tokens(n->s->rec, sequence);
            const double *from = draw ? n->null[i] + (k * about->null_draws + draw - 1) * stride
                                      : n->own[i] + sequence * stride;
            for (size_t c = 0; tokens > 0 && c < cells; c++)
                n->mean[i][c] += tokens / (double)n->tokens * from[n->cell[c]];
        }
    }
    const double *const mean[2] = {n->mean[0], n->mean[1]};
    routing_derive(n->statistic, &site->shape, mean, n->scratch, out);
}

/* One number of a draw's statistic: head `head`, the mean over heads, or, of pairs of heads, the
 * mean over pairs. */
static double pick_number(const routing_statistic *statistic, const double *result, size_t head,
                          size_t heads) {
    double sum = 0;
    if (statistic->axes != ROW_HEAD_HEAD)
        return result[head];
    for (size_t i = 0; i < heads; i++)
        for (size_t j = i + 1; j < heads; j++)
            sum += result[i * heads + j];
    return sum / (double)(heads * (heads - 1) / 2);
}

static void put_band(const null_band *n, const recorded_site *site, const char *kind, size_t head,
                     size_t width) {
    FILE *out = n->s->out;
    size_t draws = n->s->about->null_draws, heads = site->shape.heads;
    double value = pick_number(n->statistic, n->result, head, heads);
    double mean = 0, low = INFINITY, high = -INFINITY;
    for (size_t d = 1; d <= draws; d++) {
        double x = pick_number(n->statistic, n->result + d * width, head, heads);
        mean += x / (double)draws;
        low = fmin(low, x);
        high = fmax(high, x);
    }
    if (isnan(mean))
        low = high = NAN;
    table_row(out, "NBD");
    table_text(out, n->statistic->name);
    table_text(out, kind);
    table_text(out, site->name);
    if (n->statistic->axes == ROW_HEAD)
        routing_put_head(out, head, heads);
    else
        table_text(out, "-");
    table_real(out, value);
    table_real(out, mean);
    table_real(out, low);
    table_real(out, high);
    table_text(out, isnan(value) || isnan(mean) ? "nan"
                    : value > high              ? "above"
                    : value < low               ? "below"
                                                : "inside");
    table_end(out);
}

static int put_statistic(const routing_sample *s, const routing_statistic *statistic, status *st) {
    null_band n;
    int rc = init_band(&n, s, statistic, st);
    for (size_t k = 0; k < sizeof null_kinds / sizeof *null_kinds && !rc; k++) {
        rc = read_kind(&n, null_kinds[k], st);
        for (size_t i = 0; i < s->sites->sites && !rc; i++) {
            const recorded_site *site = &s->sites->site[i];
            size_t width = routing_width(statistic, &site->shape);
            if (site->shape.sources < 2)
                continue;
            for (size_t d = 0; d <= s->about->null_draws; d++)
                derive_draw(&n, site, d, n.result + d * width);
            size_t rows = statistic->axes == ROW_HEAD ? site->shape.heads + 1 : 1;
            for (size_t head = 0; head < rows; head++)
                put_band(&n, site, null_kinds[k], head, width);
        }
    }
    clear_band(&n);
    return rc;
}

int routing_nulls_write(const routing_sample *s, status *st) {
    const recording_about *about = s->about;
    if (about->null_sequences == 0)
        return DONE;
    table_section(s->out, "NBD",
                  "statistics beside those of random queries of equal norm or equal variance of "
                  "logits: smallest and largest draw; above or below: outside all draws",
                  "statistic, null, site, head, value, null_mean, null_low, null_high, verdict",
                  "nats");
    for (size_t i = 0; i < sizeof statistics / sizeof *statistics; i++) {
        const routing_statistic *statistic = routing_statistic_find(statistics[i]);
        bool compares_heads = statistic->axes != ROW_HEAD;
        if ((compares_heads && about->heads == 1) ||
            (statistic->axes == ROW_HEAD_HEAD && !about->has_pairs))
            continue;
        if (put_statistic(s, statistic, st))
            return FAILED;
    }
    return DONE;
}
