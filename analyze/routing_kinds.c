/* routing_kinds.c - weight by kind of source: KND of the routing table. */
#include "analyze/routing_sections.h"
#include "analyze/table.h"

#include <stdlib.h>
#include <string.h>

static const char *const kinds[] = {"null",     "emb",     "attn",  "mlp",
                                    "complete", "partial", "delta", "other"};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* The site's sources by kind: of[i] into `kinds`, count[kind]. */
static void sort_sources(const routing_sample *s, const recorded_site *site, size_t *of,
                         size_t count[KINDS]) {
    memset(count, 0, KINDS * sizeof *count);
    for (size_t i = 0; i < site->shape.sources; i++) {
        const char *name = recorded_source_kind(site, s->about, i);
        for (of[i] = 0; strcmp(kinds[of[i]], name) != 0;)
            of[i]++;
        count[of[i]]++;
    }
}

/* mass [draws, heads + 1, KINDS] from mean weights [draws, heads + 1, sources]. */
static void add_up(const recorded_site *site, size_t rows, const size_t *of, const double *weight,
                   double *mass) {
    size_t sources = site->shape.sources;
    memset(mass, 0, rows * KINDS * sizeof *mass);
    for (size_t row = 0; row < rows; row++)
        for (size_t i = 0; i < sources; i++)
            mass[row * KINDS + of[i]] += weight[row * sources + i];
}

static void put_site(const routing_sample *s, const recorded_site *site, const size_t *count,
                     const interval *mass) {
    for (size_t head = 0; head <= s->about->heads; head++)
        for (size_t kind = 0; kind < KINDS; kind++) {
            if (!count[kind])
                continue;
            table_row(s->out, "KND");
            table_text(s->out, site->name);
            routing_put_head(s->out, head, s->about->heads);
            table_text(s->out, kinds[kind]);
            table_size(s->out, count[kind]);
            table_interval(s->out, mass[head * KINDS + kind]);
            table_interval(s->out,
                           interval_over(mass[head * KINDS + kind],
                                         (double)count[kind] / (double)site->shape.sources));
            table_end(s->out);
        }
}

int routing_kinds_write(const routing_sample *s, status *st) {
    size_t draws = bootstrap_draws(s->all), heads = s->about->heads, count[KINDS];
    routing_draws *d;
    if (routing_draws_create(s->rec, s->sites, routing_statistic_find("mean"), draws, &d, st))
        return FAILED;
    int rc = FAILED;
    size_t *of = mem_array(s->about->sources, sizeof *of, "kinds", st);
    double *weight =
        mem_array(draws, routing_draws_width(d) * sizeof *weight, "resampled weights", st);
    double *mass = mem_array(draws, (heads + 1) * KINDS * sizeof *mass, "resampled weights", st);
    interval *result = mem_array(heads + 1, KINDS * sizeof *result, "intervals", st);
    if (!of || !weight || !mass || !result)
        goto done;
    table_section(s->out, "KND",
                  "kind_mass: mean weight of all sources of one kind; lift: the same divided by "
                  "their part of the sources, 1 where routing is uniform",
                  "site, head, kind, sources, kind_mass, low, high, lift, low_lift, high_lift",
                  "1");
    for (size_t i = 0; i < s->sites->sites; i++) {
        const recorded_site *site = &s->sites->site[i];
        if (site->shape.sources == 0)
            continue;
        if (routing_draws_site(d, site, s->all, weight, st))
            goto done;
        sort_sources(s, site, of, count);
        add_up(site, draws * (heads + 1), of, weight, mass);
        bootstrap_intervals(s->all, mass, (heads + 1) * KINDS, result);
        put_site(s, site, count, result);
    }
    rc = DONE;
done:
    free(of);
    free(weight);
    free(mass);
    free(result);
    routing_draws_free(d);
    return rc;
}
