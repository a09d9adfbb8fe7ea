#include "probes/derived_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct derived_rows {
    bool pairs;
    derived_site *site; /* [sites] */
    size_t *label;      /* [sites, sources] what site[].label points into */
    size_t *offset;     /* [sites + 1] of a site's sums in a sequence's block */
    double *sums;       /* [sequences, offset[sites]] */
};

derived_site derived_site_of(const recording_about *about, size_t site, bool pairs, size_t *label) {
    size_t count = 0;
    for (size_t s = 0; s < about->sources; s++)
        if (about->available[site * about->sources + s])
            label[count++] = s;
    bool null_source = count > 0 && strcmp(about->source_name[label[0]], "null") == 0;
    return (derived_site){routing_layout_of(about->heads, count, null_source, pairs), label};
}

void derived_site_add(const derived_site *site, const recording_about *about, const float *weights,
                      size_t first, size_t length, float *scratch, double *sums) {
    size_t heads = about->heads, sources = site->layout.sources;
    float *token = scratch + 2 * about->heads * about->sources;
    for (size_t t = first; t < length && sources > 0; t++) {
        const float *from = weights + t * heads * about->sources;
        for (size_t h = 0; h < heads; h++)
            for (size_t s = 0; s < sources; s++)
                token[h * sources + s] = from[h * about->sources + site->label[s]];
        routing_sums_add_weights(&site->layout, token, sums, scratch);
    }
}

bool derived_row_possible(const routing_row *row) {
    static const char *const hidden[] = {"contribution", "signed_contribution", "site_contribution",
                                         "source_rms", "source_cos"};
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
        if (strcmp(row->name, hidden[i]) == 0)
            return false;
    return true;
}

void derived_rows_free(derived_rows *rows) {
    if (!rows)
        return;
    free(rows->site);
    free(rows->label);
    free(rows->offset);
    free(rows->sums);
    free(rows);
}

static derived_rows *create_rows(const recording_about *about, bool pairs, status *st) {
    derived_rows *rows = mem_array(1, sizeof *rows, "routing sums", st);
    if (!rows)
        return NULL;
    rows->pairs = pairs;
    rows->site = mem_array(about->sites, sizeof *rows->site, "routing sums", st);
    rows->label = mem_array(about->sites, about->sources * sizeof *rows->label, "labels", st);
    rows->offset = mem_array(about->sites + 1, sizeof *rows->offset, "routing sums", st);
    if (!rows->site || !rows->label || !rows->offset)
        goto fail;
    for (size_t i = 0; i < about->sites; i++) {
        rows->site[i] = derived_site_of(about, i, pairs, rows->label + i * about->sources);
        rows->offset[i + 1] = rows->offset[i] + rows->site[i].layout.total;
    }
    rows->sums = mem_array(about->sequences, rows->offset[about->sites] * sizeof *rows->sums,
                           "routing sums", st);
    if (rows->sums)
        return rows;
fail:
    derived_rows_free(rows);
    return NULL;
}

static int fill_rows(recording *rec, derived_rows *rows, status *st) {
    const recording_about *about = recording_about_of(rec);
    size_t cells = about->heads * about->sources;
    int result = FAILED;
    float *weights = mem_array(about->positions, cells * sizeof *weights, "weights", st);
    float *scratch = mem_array(3 * cells, sizeof *scratch, "weights", st);
    if (!weights || !scratch)
        goto end;
    for (size_t seq = 0; seq < about->sequences; seq++)
        for (size_t site = 0; site < about->sites; site++) {
            if (recording_read_weights(rec, seq, site, weights, st))
                goto end;
            derived_site_add(&rows->site[site], about, weights, about->skip_first,
                             (size_t)about->length[seq], scratch,
                             rows->sums + seq * rows->offset[about->sites] + rows->offset[site]);
        }
    result = DONE;
end:
    free(weights);
    free(scratch);
    return result;
}

int derived_rows_read(recording *rec, derived_rows **kept, const routing_row *row, double *out,
                      status *st) {
    const recording_about *about = recording_about_of(rec);
    if (!*kept || (row->pairs && !(*kept)->pairs)) {
        derived_rows_free(*kept);
        *kept = create_rows(about, row->pairs, st);
        if (!*kept)
            return FAILED;
        if (fill_rows(rec, *kept, st)) {
            derived_rows_free(*kept);
            *kept = NULL;
            return FAILED;
        }
    }
    const derived_rows *rows = *kept;
    size_t size = routing_row_size(row, about->heads, about->sources);
    bool possible = derived_row_possible(row);
    for (size_t seq = 0; seq < about->sequences; seq++)
        for (size_t site = 0; site < about->sites; site++, out += size) {
            const derived_site *at = &rows->site[site];
            routing_row_spread(row, &at->layout,
                               rows->sums + seq * rows->offset[about->sites] + rows->offset[site],
                               at->label, about->sources, out);
            for (size_t i = 0; i < size; i++)
                out[i] = possible ? out[i] / (double)recording_sum_tokens(rec, seq) : NAN;
        }
    return DONE;
}
