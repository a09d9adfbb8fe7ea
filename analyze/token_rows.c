#include "analyze/token_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool of_gradient(const char *name) {
    const char *end = strrchr(name, '_');
    return end && strcmp(end, "_l2") == 0;
}

size_t token_row_places(const recording_about *about, const char *name) {
    if (strncmp(name, "in_", 3) == 0)
        return about->sites;
    return strncmp(name, "emb_", 4) == 0 ? 1 : about->sublayers;
}

const char *token_row_label(const recording_about *about, const char *name, size_t place) {
    if (strncmp(name, "emb_", 4) == 0)
        return "emb";
    return place < about->sites ? about->site_name[place] : "?";
}

int token_row_read_sequence(recording *rec, const char *name, size_t sequence, float *out,
                            status *st) {
    return of_gradient(name) ? recording_read_gradient(rec, name, sequence, out, st)
                             : recording_read_hidden(rec, name, sequence, out, st);
}

/* What is known of each place while tokens are added. */
typedef struct tally {
    size_t tokens, faults, sequence, position; /* the first fault's */
    bool number;                               /* any token's is no NaN */
} tally;

static void add_sequence(token_row *row, tally *tallies, const recording_about *about,
                         size_t sequence, size_t first, const float *x, const float *factor,
                         const token_term *term) {
    double *mean = row->mean + sequence * row->places;
    size_t length = (size_t)about->length[sequence], count = length > first ? length - first : 0;
    for (size_t t = first; t < length; t++)
        for (size_t p = 0; p < row->places; p++) {
            double value = (double)x[t * row->places + p];
            if (term && term->of)
                value = term->of(value);
            if (factor)
                value *= (double)factor[t * row->places + p];
            mean[p] += value;
            tallies[p].number = tallies[p].number || !isnan(value);
            if (!isfinite(value) && tallies[p].faults++ == 0) {
                tallies[p].sequence = sequence;
                tallies[p].position = t;
            }
        }
    for (size_t p = 0; count && p < row->places; p++)
        mean[p] /= (double)count;
}

/* A place without any number does not exist; elsewhere what is not finite is a fault. */
static void judge(token_row *row, const tally *tallies) {
    for (size_t p = 0; p < row->places; p++) {
        const tally *found = &tallies[p];
        row->exists[p] = found->number;
        if (!found->number || !found->faults)
            continue;
        if (row->faults == 0 || found->sequence < row->fault_sequence ||
            (found->sequence == row->fault_sequence && found->position < row->fault_position)) {
            row->fault_sequence = found->sequence;
            row->fault_position = found->position;
            row->fault_place = p;
        }
        row->faults += found->faults;
    }
}

int token_row_read(recording *rec, const char *name, size_t first, const token_term *term,
                   token_row *row, status *st) {
    const recording_about *about = recording_about_of(rec);
    const char *factor_name = term ? term->factor : NULL;
    *row = (token_row){.name = name, .places = token_row_places(about, name)};
    int rc = FAILED;
    size_t bytes = row->places * sizeof(float);
    float *x = mem_array(about->positions, bytes, name, st), *factor = NULL;
    tally *tallies = mem_array(row->places, sizeof *tallies, name, st);
    row->mean = mem_array(about->sequences, row->places * sizeof *row->mean, name, st);
    row->exists = mem_array(row->places, sizeof *row->exists, name, st);
    if (factor_name)
        factor = mem_array(about->positions, bytes, factor_name, st);
    if (!x || !tallies || !row->mean || !row->exists || (factor_name && !factor))
        goto done;
    for (size_t i = 0; i < about->sequences; i++) {
        if (token_row_read_sequence(rec, name, i, x, st) ||
            (factor && token_row_read_sequence(rec, factor_name, i, factor, st)))
            goto done;
        add_sequence(row, tallies, about, i, first, x, factor, term);
    }
    judge(row, tallies);
    rc = DONE;
done:
    free(x);
    free(factor);
    free(tallies);
    if (rc)
        token_row_clear(row);
    return rc;
}

void token_row_clear(token_row *row) {
    free(row->mean);
    free(row->exists);
    *row = (token_row){0};
}
