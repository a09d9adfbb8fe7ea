#include "probes/routing_rows.h"

#include <math.h>
#include <string.h>

#define FIELD(name) offsetof(routing_layout, name)

const routing_row routing_rows[] = {
    {"mean", "mean weight", "1", ROW_HEAD_SOURCE, false, FIELD(mean), true},
    {"second_moment", "mean of the squared weight", "1", ROW_HEAD_SOURCE, false,
     FIELD(second_moment), false},
    {"entropy", "mean entropy of a token's weights", "nats", ROW_HEAD, false, FIELD(entropy), true},
    {"effective_sources", "mean of exp(entropy of a token's weights)", "1", ROW_HEAD, false,
     FIELD(effective_sources), false},
    {"lookback", "mean distance in sources from the newest, null left out", "1", ROW_HEAD, false,
     FIELD(lookback), false},
    {"oldest_mass", "mean weight of the first source, null left out", "1", ROW_HEAD, false,
     FIELD(oldest_mass), false},
    {"newest_mass", "mean weight of the last source, null left out", "1", ROW_HEAD, false,
     FIELD(newest_mass), false},
    {"top1", "mean of a token's largest weight", "1", ROW_HEAD, false, FIELD(top1), false},
    {"head_divergence", "mean Jensen-Shannon divergence of a token's heads", "nats", ROW_SITE,
     false, FIELD(head_divergence), true},
    {"contribution", "mean share of the mix by length, per head slice", "1", ROW_HEAD_SOURCE, false,
     FIELD(contribution), false},
    {"signed_contribution", "mean share of the mix by projection, per head slice", "1",
     ROW_HEAD_SOURCE, false, FIELD(signed_contribution), false},
    {"site_contribution", "mean share of the mix by length, all heads", "1", ROW_SOURCE, false,
     FIELD(site_contribution), false},
    {"source_rms", "mean root mean square of the source", "1", ROW_SOURCE, false, FIELD(source_rms),
     false},
    {"head_js", "mean Jensen-Shannon divergence of two heads", "nats", ROW_HEAD_HEAD, true,
     FIELD(head_js), true},
    {"source_cos", "mean cosine of two sources", "1", ROW_SOURCE_SOURCE, true, FIELD(source_cos),
     false},
};

const size_t routing_row_count = sizeof routing_rows / sizeof *routing_rows;

const routing_row *routing_row_find(const char *name) {
    for (size_t i = 0; i < routing_row_count; i++)
        if (strcmp(routing_rows[i].name, name) == 0)
            return &routing_rows[i];
    return NULL;
}

size_t routing_row_size(const routing_row *row, size_t heads, size_t sources) {
    switch (row->axes) {
    case ROW_SITE:
        return 1;
    case ROW_HEAD:
        return heads;
    case ROW_SOURCE:
        return sources;
    case ROW_HEAD_SOURCE:
        return heads * sources;
    case ROW_HEAD_HEAD:
        return heads * heads;
    case ROW_SOURCE_SOURCE:
        return sources * sources;
    }
    return 0;
}

void routing_row_spread(const routing_row *row, const routing_layout *layout, const double *sums,
                        const size_t *label, size_t labels, double *out) {
    size_t size = routing_row_size(row, layout->heads, labels);
    for (size_t i = 0; i < size; i++)
        out[i] = NAN;
    size_t field = *(const size_t *)((const char *)layout + row->field_offset);
    if (field == NO_FIELD || layout->sources == 0)
        return;
    bool by_source =
        row->axes == ROW_SOURCE || row->axes == ROW_HEAD_SOURCE || row->axes == ROW_SOURCE_SOURCE;
    if (!by_source) {
        memcpy(out, sums + field, size * sizeof *out);
        return;
    }
    size_t outer = row->axes == ROW_HEAD_SOURCE     ? layout->heads
                   : row->axes == ROW_SOURCE_SOURCE ? layout->sources
                                                    : 1;
    for (size_t o = 0; o < outer; o++)
        for (size_t s = 0; s < layout->sources; s++) {
            size_t to = row->axes == ROW_SOURCE_SOURCE ? label[o] : o;
            out[to * labels + label[s]] = sums[field + o * layout->sources + s];
        }
}
