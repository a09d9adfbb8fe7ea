#include "analyze/query_slices.h"

#include "analyze/table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MEASURES = 3 }; /* raw, floor, matched */
const size_t slicings[SLICINGS] = {2, 4, 8};

struct query_slices {
    const depth_program *p;
    null_queries *nulls;
    size_t queries; /* 1 + 2 * draws: the trained one, equal norm, equal variance */
    float **folded; /* [sites] of [queries, width], NULL with fewer than two sources */
    double *sum;    /* [sites, SLICINGS, queries, MEASURES] over tokens */
    double *tokens; /* [sites] */
};

/* l [count] less its log-sum-exp after multiplying by `scale`. */
static void log_softmax(const double *l, double scale, size_t count, double *out) {
    double most = -INFINITY, sum = 0;
    for (size_t s = 0; s < count; s++)
        most = fmax(most, scale * l[s]);
    for (size_t s = 0; s < count; s++)
        sum += exp(scale * l[s] - most);
    for (size_t s = 0; s < count; s++)
        out[s] = scale * l[s] - most - log(sum);
}

static double divergence(const double *log_p, const double *log_q, size_t count) {
    double sum = 0;
    for (size_t s = 0; s < count; s++)
        sum += exp(log_p[s]) * (log_p[s] - log_q[s]);
    return sum;
}

void query_slices_token(const double *l, size_t k, size_t sources, double *scratch,
                        double out[MEASURES]) {
    double *whole = scratch, *one = scratch + sources;
    memset(one, 0, sources * sizeof *one);
    for (size_t j = 0; j < k; j++)
        for (size_t s = 0; s < sources; s++)
            one[s] += l[j * sources + s];
    log_softmax(one, 1, sources, whole);
    log_softmax(whole, 1 / (double)k, sources, one); /* a constant in the logits does not matter */
    out[1] = divergence(one, whole, sources);
    out[0] = out[2] = 0;
    for (size_t j = 0; j < k; j++) {
        log_softmax(l + j * sources, 1, sources, one);
        out[0] += divergence(one, whole, sources) / (double)k;
        log_softmax(l + j * sources, (double)k, sources, one);
        out[2] += divergence(one, whole, sources) / (double)k;
    }
}

static int take_queries(query_slices *q, const model *m, size_t site, status *st) {
    const size_t width = q->p->plan.width;
    const kernels *k = model_kernels(m);
    const site_weights *w = model_site(m, site);
    float *folded = mem_array(q->queries, width * sizeof *folded, "queries", st);
    float *gain = mem_array(width, sizeof *gain, "queries", st);
    int rc = folded && gain ? DONE : FAILED;
    q->folded[site] = folded;
    if (!rc && (k->download(model_backend(m), w->query, 0, folded, width, st) ||
                k->download(model_backend(m), w->gain, 0, gain, width, st) ||
                k->download(model_backend(m), q->nulls->site[site].folded, 0, folded + width,
                            (q->queries - 1) * width, st)))
        rc = FAILED;
    for (size_t i = 0; !rc && i < width; i++)
        folded[i] *= gain[i];
    free(gain);
    return rc;
}

int query_slices_create(text_run *run, const null_options *options, query_slices **out,
                        status *st) {
    const size_t sites = run->program->plan.sites;
    query_slices *q = mem_array(1, sizeof *q, "query slices", st);
    if (!q)
        return FAILED;
    q->p = run->program;
    q->queries = 1 + 2 * options->draws;
    q->folded = mem_array(sites, sizeof *q->folded, "queries", st);
    q->sum = mem_array(sites * SLICINGS * q->queries, MEASURES * sizeof *q->sum, "slices", st);
    q->tokens = mem_array(sites, sizeof *q->tokens, "slices", st);
    int rc = q->folded && q->sum && q->tokens ? null_queries_create(run, options, &q->nulls, st)
                                              : FAILED;
    for (size_t i = 0; !rc && i < sites; i++)
        if (q->nulls->site[i].count > 0)
            rc = take_queries(q, run->model, i, st);
    if (rc) {
        query_slices_free(q);
        return rc;
    }
    *out = q;
    return DONE;
}

void query_slices_free(query_slices *q) {
    if (!q)
        return;
    for (size_t i = 0; q->folded && i < q->p->plan.sites; i++)
        free(q->folded[i]);
    null_queries_free(q->nulls);
    free(q->folded);
    free(q->sum);
    free(q->tokens);
    free(q);
}

/* One token under one query: measures of every slicing to out [SLICINGS, MEASURES]. `l` [8,
 * sources], `scratch` [2 * sources]. */
static void measure(const query_slices *q, const depth_values *values, size_t site, size_t row,
                    const float *folded, const double *inverse_rms, double *l, double *scratch,
                    double *out) {
    const depth_site *planned = &q->p->plan.site[site];
    const size_t width = q->p->plan.width, sources = (size_t)planned->sources;
    for (size_t n = 0; n < SLICINGS; n++) {
        const size_t k = slicings[n], slice = width / k;
        if (width % k) {
            for (size_t i = 0; i < MEASURES; i++)
                out[n * MEASURES + i] = NAN;
            continue;
        }
        for (size_t s = 0; s < sources; s++) {
            const float *v = depth_values_row(values, planned->source[s], row);
            for (size_t j = 0; j < k; j++) {
                double dot = 0;
                for (size_t i = j * slice; i < (j + 1) * slice; i++)
                    dot += (double)folded[i] * (double)v[i];
                l[j * sources + s] = dot * inverse_rms[s];
            }
        }
        query_slices_token(l, k, sources, scratch, out + n * MEASURES);
    }
}

/* All queries at one token, to out [queries, SLICINGS, MEASURES]. `room` [11 * sources]. */
static void measure_token(const query_slices *q, const depth_values *values, size_t site,
                          size_t row, double *room, double *out) {
    const depth_site *planned = &q->p->plan.site[site];
    const size_t width = q->p->plan.width, sources = (size_t)planned->sources;
    double *inverse_rms = room, *scratch = room + sources, *l = room + 3 * sources;
    for (size_t s = 0; s < sources; s++) {
        const float *v = depth_values_row(values, planned->source[s], row);
        double squares = 0;
        for (size_t i = 0; i < width; i++)
            squares += (double)v[i] * (double)v[i];
        inverse_rms[s] = 1 / sqrt(squares / (double)width + (double)q->p->plan.eps);
    }
    for (size_t r = 0; r < q->queries; r++)
        measure(q, values, site, row, q->folded[site] + r * width, inverse_rms, l, scratch,
                out + r * SLICINGS * MEASURES);
}

int query_slices_site(query_slices *q, const depth_values *values, const batch *b, size_t site,
                      status *st) {
    const size_t sources = (size_t)q->p->plan.site[site].sources;
    const size_t cells = q->queries * SLICINGS * MEASURES, room = 11 * sources;
    double *memory = mem_array(b->layout.rows, (cells + room) * sizeof *memory, "slices", st);
    if (!memory)
        return FAILED;
    for (size_t i = 0; i < b->layout.sequences; i++) {
        const size_t first = b->layout.start[i], end = b->layout.start[i + 1];
        if (!null_sequence_has(q->nulls, b->first + i))
            continue;
#pragma omp parallel for schedule(static)
        for (size_t row = first; row < end; row++) {
            double *own = memory + row * (cells + room);
            measure_token(q, values, site, row, own + cells, own);
        }
        for (size_t row = first; row < end; row++)
            for (size_t k = 0; k < cells; k++)
                q->sum[site * cells + k] += memory[row * (cells + room) + k];
        q->tokens[site] += (double)(end - first);
    }
    free(memory);
    return DONE;
}

/* Mean, lowest and highest of queries first .. first + count - 1. */
static void put_range(FILE *out, const query_slices *q, size_t site, size_t n, size_t measure_of,
                      size_t first, size_t count, double tokens) {
    double mean = 0, low = NAN, high = NAN;
    for (size_t r = first; r < first + count; r++) {
        const double value =
            q->sum[((site * q->queries + r) * SLICINGS + n) * MEASURES + measure_of] / tokens;
        mean += value / (double)count;
        low = fmin(low, value);
        high = fmax(high, value);
    }
    table_real(out, mean);
    table_real(out, count > 1 || first > 0 ? low : NAN);
    table_real(out, count > 1 || first > 0 ? high : NAN);
}

void query_slices_write(FILE *out, const query_slices *q, const depth_program *p) {
    static const char *const names[] = {"trained", "norm", "var"};
    const size_t draws = (q->queries - 1) / 2, sites = p->plan.sites;
    table_section(
        out, "CMP",
        "forced compromise: disagreement of the k slices of a single head's query, "
        "trained or random of equal norm or logit variance; low and high: range over the "
        "draws; sites with one source left out. Disagreement is claimed only where "
        "trained matched is above all of var",
        "site, k, queries, raw, raw_low, raw_high, floor, floor_low, floor_high, matched, "
        "matched_low, matched_high",
        "nats");
    for (size_t site = 0; site < sites; site++)
        for (size_t n = 0; q->folded[site] && n < SLICINGS; n++)
            for (size_t kind = 0; p->plan.width % slicings[n] == 0 && kind < 3; kind++) {
                table_row(out, "CMP");
                table_text(out, p->site_name[site]);
                table_size(out, slicings[n]);
                table_text(out, names[kind]);
                for (size_t m = 0; m < MEASURES; m++)
                    put_range(out, q, site, n, m, kind == 0 ? 0 : 1 + (kind - 1) * draws,
                              kind == 0 ? 1 : draws, q->tokens[site]);
                table_end(out);
            }
}
