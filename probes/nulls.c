#include "probes/nulls.h"
#include "runtime/base/interrupt.h"
#include "runtime/base/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The first pass: the variance of the logits of each site's own query, then of each direction. */
typedef struct calibration {
    null_queries *nulls;
    site_alternatives *site; /* [sites] 1 + draws queries */
    double *variance;        /* [sites, 1 + draws, heads] summed over tokens */
    size_t heads;
} calibration;

size_t null_sequence_at(const null_queries *nulls, size_t j) {
    return j * nulls->of / nulls->sequences;
}

bool null_sequence_has(const null_queries *nulls, size_t index) {
    size_t j = index * nulls->sequences / nulls->of;
    /* Rounding down twice may fall one short. */
    for (size_t near = j; near < nulls->sequences && near <= j + 1; near++)
        if (null_sequence_at(nulls, near) == index)
            return true;
    return false;
}

static void free_site(const null_queries *nulls, site_alternatives *site) {
    for (size_t i = 0; site && i < nulls->sites; i++)
        nulls->k->buffer_free(nulls->device, site[i].folded);
    free(site);
}

void null_queries_free(null_queries *nulls) {
    if (!nulls)
        return;
    free_site(nulls, nulls->site);
    free(nulls);
}

static int upload_queries(const null_queries *nulls, const float *query, size_t count, size_t width,
                          site_alternatives *site, status *st) {
    size_t elements = count * width;
    if (nulls->k->buffer_create(nulls->device, BUFFER_EXACT, elements, &site->folded, st) ||
        nulls->k->upload(nulls->device, site->folded, 0, query, elements, st))
        return FAILED;
    site->count = count;
    return DONE;
}

static double length_of(const float *x, size_t n) {
    double squares = 0;
    for (size_t i = 0; i < n; i++)
        squares += (double)x[i] * (double)x[i];
    return sqrt(squares);
}

/* x times `scale`; NaN where that is no positive number. */
static void scale_slice(const float *x, double scale, size_t n, float *out) {
    if (!(scale > 0 && isfinite(scale)))
        scale = NAN;
    for (size_t i = 0; i < n; i++)
        out[i] = (float)((double)x[i] * scale);
}

/* The site's folded query and after it the directions, of its length in each head. */
static int draw_site(calibration *c, const model *m, size_t site, uint64_t seed, float *query,
                     status *st) {
    const null_queries *nulls = c->nulls;
    const site_weights *weights = model_site(m, site);
    size_t width = model_configuration(m)->width, slice = width / c->heads;
    float *gain = query + width; /* until the directions take its place */
    if (nulls->k->download(nulls->device, weights->query, 0, query, width, st) ||
        nulls->k->download(nulls->device, weights->gain, 0, gain, width, st))
        return FAILED;
    for (size_t i = 0; i < width; i++)
        query[i] *= gain[i];
    for (size_t r = 0; r < nulls->draws; r++) {
        float *direction = query + (1 + r) * width;
        uint64_t first = (uint64_t)(r * nulls->sites + site) * width;
        for (size_t i = 0; i < width; i++)
            direction[i] = (float)random_normal(seed, first + i);
        for (size_t h = 0; h < width; h += slice)
            scale_slice(direction + h,
                        length_of(query + h, slice) / length_of(direction + h, slice), slice,
                        direction + h);
    }
    return upload_queries(nulls, query, 1 + nulls->draws, width, &c->site[site], st);
}

static int on_site(void *self, const batch *b, const site_view *view, status *st) {
    calibration *c = self;
    size_t queries = 1 + c->nulls->draws, heads = c->heads;
    double *sum = c->variance + view->site * queries * heads;
    for (size_t q = 0; view->alternative_variance && q < queries; q++)
        for (size_t i = 0; i < b->layout.sequences; i++)
            for (size_t h = 0; h < heads; h++)
                sum[q * heads + h] +=
                    view->alternative_variance[(q * b->layout.sequences + i) * heads + h];
    if (!interrupt_pending())
        return DONE;
    status_fail(st, "interrupted");
    return INTERRUPTED;
}

/* Sums the variances over the sequences that have nulls, in their order. */
static int measure(calibration *c, text_run *run, size_t skip_first, status *st) {
    const observer watch = {.self = c,
                            .skip_first = skip_first,
                            .alternatives = c->site,
                            .alternative_variance = true,
                            .on_site = on_site};
    int rc = DONE;
    for (size_t next = 0; next < c->nulls->sequences && !rc;) {
        struct text_batch *m = &run->memory[run->turn ^= 1];
        size_t count = 0, length;
        uint64_t offset;
        for (; count < run->limits.sequences && next < c->nulls->sequences; count++, next++) {
            if (token_source_read(run->source, null_sequence_at(c->nulls, next),
                                  m->id + m->start[count], &length, &offset, st))
                return FAILED;
            m->start[count + 1] = m->start[count] + length;
        }
        const batch b = {.layout = {.sequences = count, .rows = m->start[count], .start = m->start},
                         .id = m->id};
        rc = session_forward(run->session, &b, &watch, st);
    }
    return rc ? rc : session_finish(run->session, st);
}

/* The queries of a site that are recorded. */
static int finish_site(const calibration *c, size_t site, size_t width, float *query, float *out,
                       status *st) {
    null_queries *nulls = c->nulls;
    size_t draws = nulls->draws, slice = width / c->heads;
    const double *own = c->variance + site * (1 + draws) * c->heads;
    if (nulls->k->download(nulls->device, c->site[site].folded, width, query, draws * width, st))
        return FAILED;
    memcpy(out, query, draws * width * sizeof *query);
    for (size_t r = 0; r < draws; r++)
        for (size_t h = 0; h < c->heads; h++) {
            size_t at = r * width + h * slice;
            scale_slice(query + at, sqrt(own[h] / own[(1 + r) * c->heads + h]), slice,
                        out + draws * width + at);
        }
    return upload_queries(nulls, out, 2 * draws, width, &nulls->site[site], st);
}

static int make(null_queries *nulls, text_run *run, const null_options *options, status *st) {
    const depth_plan *plan = &run->program->plan;
    size_t queries = 1 + nulls->draws, width = plan->width;
    int rc = FAILED;
    calibration c = {.nulls = nulls, .heads = plan->heads};
    c.site = mem_array(nulls->sites, sizeof *c.site, "null queries", st);
    c.variance =
        mem_array(nulls->sites, queries * c.heads * sizeof *c.variance, "null queries", st);
    float *query = mem_array(queries, width * sizeof *query, "null queries", st);
    float *out = mem_array(2 * nulls->draws, width * sizeof *out, "null queries", st);
    if (!c.site || !c.variance || !query || !out)
        goto done;
    for (size_t i = 0; i < nulls->sites; i++)
        if (plan->site[i].sources > 1 && draw_site(&c, run->model, i, options->seed, query, st))
            goto done;
    rc = measure(&c, run, options->skip_first, st);
    for (size_t i = 0; i < nulls->sites && !rc; i++)
        if (c.site[i].count)
            rc = finish_site(&c, i, width, query, out, st);
done:
    free_site(nulls, c.site);
    free(c.variance);
    free(query);
    free(out);
    return rc;
}

int null_queries_create(text_run *run, const null_options *options, null_queries **out,
                        status *st) {
    null_queries *nulls = mem_array(1, sizeof *nulls, "null queries", st);
    *out = NULL;
    if (!nulls)
        return FAILED;
    *nulls = (null_queries){.draws = options->draws,
                            .sites = run->program->plan.sites,
                            .sequences = options->sequences < run->sequences ? options->sequences
                                                                             : run->sequences,
                            .of = run->sequences,
                            .device = model_backend(run->model),
                            .k = model_kernels(run->model)};
    nulls->site = mem_array(nulls->sites, sizeof *nulls->site, "null queries", st);
    int rc = nulls->site ? make(nulls, run, options, st) : FAILED;
    if (rc) {
        null_queries_free(nulls);
        return rc;
    }
    *out = nulls;
    return DONE;
}
