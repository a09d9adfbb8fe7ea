#include "analyze/routing_table.h"

#include "analyze/routing_draws.h"
#include "analyze/table.h"
#include "runtime/base/log.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- axes of a section ---- */

typedef enum label_axis { ONE, HEAD, SOURCE } label_axis;

static const label_axis axes_of[][2] = {
    [ROW_SITE] = {ONE, ONE},        [ROW_HEAD] = {ONE, HEAD},
    [ROW_SOURCE] = {ONE, SOURCE},   [ROW_HEAD_SOURCE] = {HEAD, SOURCE},
    [ROW_HEAD_HEAD] = {HEAD, HEAD}, [ROW_SOURCE_SOURCE] = {SOURCE, SOURCE},
};

static const char *const columns_of[] = {
    [ROW_SITE] = "site",
    [ROW_HEAD] = "site, head",
    [ROW_SOURCE] = "site, source",
    [ROW_HEAD_SOURCE] = "site, head, source",
    [ROW_HEAD_HEAD] = "site, head, head_other",
    [ROW_SOURCE_SOURCE] = "site, source, source_other",
};

static size_t axis_length(label_axis axis, const routing_shape *shape) {
    return axis == HEAD ? shape->heads : axis == SOURCE ? shape->sources : 1;
}

/* ---- one statistic ---- */

/* Of the means over sites: all sites, those before an attention, those before an MLP. */
enum { AVERAGE_ATTN = SITE_ATTN, AVERAGE_MLP = SITE_MLP, AVERAGE_ALL, AVERAGES };
static const char *const average_names[AVERAGES] = {"attn", "mlp", "all"};

typedef struct average {
    interval value[AVERAGES], per_source[AVERAGES];
} average;

/* Buffers for the statistic at hand, each as large as the largest site needs. */
typedef struct work {
    FILE *out;
    recording *rec;
    const recording_about *about;
    const recorded_sites *sites;
    const bootstrap *b;
    size_t draws;
    routing_draws *source;
    double *result;     /* [draws, routing_width] */
    interval *interval; /* [routing_width] */
    double *sum[2]; /* [AVERAGES, draws] sums over sites: of the value, of the value per source */
    size_t counted[AVERAGES];
    size_t faults;           /* mean weights that are NaN although their cell exists */
    const char *first_fault; /* its site */
} work;

static void release(work *w) {
    routing_draws_free(w->source);
    free(w->result);
    free(w->interval);
    for (int i = 0; i < 2; i++) {
        free(w->sum[i]);
        w->sum[i] = NULL;
    }
    w->source = NULL;
    w->result = NULL;
    w->interval = NULL;
}

static int prepare(work *w, const routing_statistic *statistic, status *st) {
    if (routing_draws_create(w->rec, w->sites, statistic, w->draws, &w->source, st))
        return FAILED;
    for (int i = 0; i < 2; i++) {
        w->sum[i] = mem_array(w->draws, AVERAGES * sizeof(double), "resampled means", st);
        if (!w->sum[i])
            return FAILED;
    }
    memset(w->counted, 0, sizeof w->counted);
    size_t width = routing_draws_width(w->source);
    w->result = mem_array(w->draws, width * sizeof(double), "resampled statistics", st);
    w->interval = mem_array(width, sizeof *w->interval, "intervals", st);
    return w->result && w->interval ? DONE : FAILED;
}

/* w->result and w->interval of one site. */
static int draw_site(work *w, const routing_statistic *statistic, const recorded_site *site,
                     status *st) {
    if (routing_draws_site(w->source, site, w->b, w->result, st))
        return FAILED;
    bootstrap_intervals(w->b, w->result, routing_width(statistic, &site->shape), w->interval);
    return DONE;
}

/* ---- rows ---- */

static void put_label(const work *w, const recorded_site *site, label_axis axis, size_t i) {
    if (axis == SOURCE)
        table_text(w->out, w->about->source_name[site->source[i]]);
    else if (axis == HEAD && i == site->shape.heads)
        table_text(w->out, "mean");
    else if (axis == HEAD)
        table_size(w->out, i);
}

/* The rows of one site; w->interval holds them. Of a symmetric matrix each pair stands once. */
static void put_site(const work *w, const routing_statistic *statistic, const recorded_site *site) {
    const label_axis *axis = axes_of[statistic->axes];
    size_t inner = axis_length(axis[1], &site->shape);
    size_t width = routing_width(statistic, &site->shape);
    if (statistic->axes == ROW_HEAD)
        inner = width; /* the mean over heads is one head more */
    for (size_t i = 0; i < width; i++) {
        if (axis[0] == axis[1] && axis[0] != ONE && i / inner >= i % inner)
            continue;
        table_row(w->out, statistic->code);
        table_text(w->out, site->name);
        put_label(w, site, axis[0], i / inner);
        put_label(w, site, axis[1], i % inner);
        table_interval(w->out, w->interval[i]);
        if (statistic->per_source)
            table_interval(w->out, interval_over(w->interval[i], (double)site->shape.sources));
        table_end(w->out);
    }
}

static void put_section(FILE *out, const routing_statistic *statistic) {
    char columns[160], title[240];
    snprintf(columns, sizeof columns, "%s, value, low, high", columns_of[statistic->axes]);
    snprintf(title, sizeof title, "%s: %s", statistic->name, statistic->title);
    if (statistic->per_source) {
        snprintf(columns, sizeof columns, "%s, rank, low, high, %s, low_%s, high_%s",
                 columns_of[statistic->axes], statistic->per_source, statistic->per_source,
                 statistic->per_source);
        snprintf(title, sizeof title, "%s: %s; %s: the same divided by the number of sources",
                 statistic->name, statistic->title, statistic->per_source);
    }
    table_section(out, statistic->code, title, columns, statistic->units);
}

/* A NaN among the weights spreads to every statistic of its site: it is counted and said once. */
static void count_faults(work *w, const routing_statistic *statistic, const recorded_site *site) {
    if (strcmp(statistic->name, "mean") != 0)
        return;
    for (size_t i = 0; i < site->shape.heads * site->shape.sources; i++) {
        if (!isnan(w->interval[i].value))
            continue;
        if (w->faults++ == 0)
            w->first_fault = site->name;
    }
}

static void say_faults(const work *w) {
    static const char text[] =
        "%zu mean weights are nan, first at site %s: recorded weights are NaN";
    if (!w->faults)
        return;
    log_warn(text, w->faults, w->first_fault);
    table_comment(w->out, text, w->faults, w->first_fault);
}

/* ---- means over sites ---- */

static void add_to_averages(work *w, const routing_statistic *statistic,
                            const recorded_site *site) {
    if (!(statistic->flags & AVERAGED) || !routing_averages(statistic, &site->shape))
        return;
    /* The last cell is the site's value: the mean over heads, or the only one. */
    size_t width = routing_width(statistic, &site->shape), at = width - 1;
    for (int kind = 0; kind < AVERAGES; kind++) {
        if (kind != AVERAGE_ALL && kind != (int)site->kind)
            continue;
        w->counted[kind]++;
        for (size_t d = 0; d < w->draws; d++) {
            double value = w->result[d * width + at];
            w->sum[0][(size_t)kind * w->draws + d] += value;
            w->sum[1][(size_t)kind * w->draws + d] += value / (double)site->shape.sources;
        }
    }
}

static void close_averages(work *w, average *result) {
    for (size_t kind = 0; kind < AVERAGES; kind++)
        for (int i = 0; i < 2; i++) {
            double *sum = w->sum[i] + kind * w->draws;
            for (size_t d = 0; d < w->draws; d++)
                sum[d] /= (double)w->counted[kind]; /* 0 / 0 where there is no such site */
            bootstrap_intervals(w->b, sum, 1, i ? &result->per_source[kind] : &result->value[kind]);
        }
}

static void put_averages(FILE *out, const char *name, const interval *value) {
    for (int kind = 0; kind < AVERAGES; kind++) {
        table_row(out, "AVG");
        table_text(out, name);
        table_text(out, average_names[kind]);
        table_interval(out, value[kind]);
        table_end(out);
    }
}

/* ---- the table ---- */

static void put_sites(FILE *out, const recorded_sites *sites) {
    static const char *const kinds[] = {
        [SITE_ATTN] = "attn", [SITE_MLP] = "mlp", [SITE_FINAL] = "final"};
    table_section(out, "SIT", "sites in reading order",
                  "site, layer, kind, sources, newest, newest_kind, opens_block", "1");
    for (size_t i = 0; i < sites->sites; i++) {
        const recorded_site *site = &sites->site[i];
        table_row(out, "SIT");
        table_text(out, site->name);
        table_text(out, site->layer);
        table_text(out, kinds[site->kind]);
        table_size(out, site->shape.sources);
        table_text(out, site->newest);
        table_text(out, site->newest_kind);
        table_size(out, site->opens_block);
        table_end(out);
    }
}

bool routing_table_has(const recording_about *about, const recorded_sites *sites,
                       const routing_statistic *statistic) {
    bool recorded = about->has_pairs || about->has_weights; /* or derived from the weights */
    if (routing_row_find(statistic->from[0])->pairs && !recorded)
        return false;
    if (statistic->axes == ROW_HEAD_HEAD && about->heads == 1)
        return false;
    return !(statistic->flags & NULL_ONLY) || sites->null_source;
}

static int put_statistic(work *w, const routing_statistic *statistic, average *averages,
                         status *st) {
    int rc = prepare(w, statistic, st);
    if (!rc)
        put_section(w->out, statistic);
    for (size_t i = 0; !rc && i < w->sites->sites; i++) {
        const recorded_site *site = &w->sites->site[i];
        if (site->shape.sources == 0)
            continue;
        rc = draw_site(w, statistic, site, st);
        if (rc)
            break;
        put_site(w, statistic, site);
        add_to_averages(w, statistic, site);
        count_faults(w, statistic, site);
    }
    if (!rc && (statistic->flags & AVERAGED))
        close_averages(w, averages);
    release(w);
    return rc;
}

int routing_table_write(FILE *out, recording *rec, const recorded_sites *sites, const bootstrap *b,
                        status *st) {
    const recording_about *about = recording_about_of(rec);
    work w = {.out = out,
              .rec = rec,
              .about = about,
              .sites = sites,
              .b = b,
              .draws = bootstrap_draws(b)};
    average *averages =
        mem_array(routing_statistic_count, sizeof *averages, "means over sites", st);
    if (!averages)
        return FAILED;
    put_sites(out, sites);
    int rc = DONE;
    for (size_t i = 0; !rc && i < routing_statistic_count; i++)
        if (routing_table_has(about, sites, &routing_statistics[i]))
            rc = put_statistic(&w, &routing_statistics[i], &averages[i], st);
    if (!rc)
        say_faults(&w);
    if (!rc)
        table_section(out, "AVG", "means over the sites that have more than one source",
                      "statistic, kind, value, low, high", "those of the statistic");
    for (size_t i = 0; !rc && i < routing_statistic_count; i++) {
        const routing_statistic *statistic = &routing_statistics[i];
        if (!(statistic->flags & AVERAGED) || !routing_table_has(about, sites, statistic))
            continue;
        put_averages(out, statistic->name, averages[i].value);
        if (statistic->per_source)
            put_averages(out, statistic->per_source, averages[i].per_source);
    }
    free(averages);
    return rc;
}
