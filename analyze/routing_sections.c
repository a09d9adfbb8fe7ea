#include "analyze/routing_sections.h"

#include "analyze/table.h"

#include <stdlib.h>
#include <string.h>

void routing_put_interval(FILE *out, const interval *x, double divisor) {
    table_real(out, x->value / divisor);
    table_real(out, x->low / divisor);
    table_real(out, x->high / divisor);
}

void routing_put_head(FILE *out, size_t head, size_t heads) {
    if (head == heads)
        table_text(out, "mean");
    else
        table_size(out, head);
}

int routing_head_means(const routing_sample *s, const bootstrap *b, size_t *first, size_t *cells,
                       double **out, status *st) {
    const recorded_sites *sites = s->sites;
    size_t draws = bootstrap_draws(b), heads = s->about->heads;
    *cells = 0;
    for (size_t i = 0; i < sites->sites; i++) {
        first[i] = *cells;
        *cells += sites->site[i].shape.sources;
    }
    routing_draws *d = NULL;
    double *own = NULL;
    *out = mem_array(draws, *cells * sizeof **out, "resampled weights", st);
    int rc = FAILED;
    if (!*out || routing_draws_create(s->rec, sites, routing_statistic_find("mean"), draws, &d, st))
        goto done;
    own = mem_array(draws, routing_draws_width(d) * sizeof *own, "resampled weights", st);
    if (!own)
        goto done;
    for (size_t i = 0; i < sites->sites; i++) {
        const recorded_site *site = &sites->site[i];
        size_t count = site->shape.sources, width = (heads + 1) * count;
        if (count == 0)
            continue;
        if (routing_draws_site(d, site, b, own, st))
            goto done;
        for (size_t k = 0; k < draws; k++)
            memcpy(*out + k * *cells + first[i], own + k * width + heads * count,
                   count * sizeof *own);
    }
    rc = DONE;
done:
    free(own);
    routing_draws_free(d);
    if (rc) {
        free(*out);
        *out = NULL;
    }
    return rc;
}

double routing_js(const double *p, const size_t *at, const double *q, const size_t *other,
                  size_t count, double *scratch) {
    double *left = scratch, *right = left + count, *mixed = right + count;
    double left_sum = 0, right_sum = 0;
    for (size_t i = 0; i < count; i++) {
        left_sum += left[i] = p[at[i]];
        right_sum += right[i] = q[other[i]];
    }
    for (size_t i = 0; i < count; i++) {
        left[i] /= left_sum;
        right[i] /= right_sum;
        mixed[i] = (left[i] + right[i]) / 2;
    }
    double between = routing_entropy(mixed, count);
    return between - (routing_entropy(left, count) + routing_entropy(right, count)) / 2;
}

int routing_sections_write(const routing_sample *s, const routing_example *example, size_t contexts,
                           status *st) {
    if (routing_nulls_write(s, st) || routing_kinds_write(s, st) || routing_site_js_write(s, st) ||
        routing_walks_write(s, st) || routing_claims_write(s, st) ||
        routing_example_write(s, example, st))
        return FAILED;
    return contexts ? routing_contexts_write(s, contexts, st) : DONE;
}
