/* Sizes of the hidden states, and what the files of depth_table.h share.
 *
 * Quantiles are exact: the float32 numbers of as many sites as fit in VALUES_BYTES are held at
 * once, at least one site's, and the row is read once for every such group. */
#include "analyze/depth_numbers.h"
#include "analyze/depth_table.h"
#include "analyze/table.h"
#include "runtime/base/log.h"

#include <math.h>
#include <stdlib.h>

enum { VALUES_BYTES = 256 << 20, QUANTILES = 3 };

/* ---- shared ---- */

static void say_faults(const depth_table *t, const token_row *row) {
    static const char text[] = "%s: %zu numbers are not finite, first at sequence %zu, position "
                               "%zu, %s: what they enter is nan or inf";
    const char *place = token_row_label(t->about, row->name, row->fault_place);
    log_warn(text, row->name, row->faults, row->fault_sequence, row->fault_position, place);
    table_comment(t->out, text, row->name, row->faults, row->fault_sequence, row->fault_position,
                  place);
}

void depth_say_faults(const depth_table *t, const token_row *row) {
    size_t missing = 0, first = 0;
    for (size_t p = row->places; p-- > 0;)
        if (!row->exists[p]) {
            missing++;
            first = p;
        }
    if (missing)
        table_comment(t->out,
                      "%s: no number at %zu of %zu points, first %s: a sublayer that was removed "
                      "or has none, or all of its numbers are NaN.",
                      row->name, missing, row->places, token_row_label(t->about, row->name, first));
    if (row->faults)
        say_faults(t, row);
}

double *depth_draws(const bootstrap *b, const token_row *row, const size_t *place, size_t count,
                    status *st) {
    double *draws = mem_array(bootstrap_draws(b), count * sizeof *draws, "resampled means", st);
    if (draws && bootstrap_means(b, row->mean, row->places, place, count, draws, st)) {
        free(draws);
        return NULL;
    }
    return draws;
}

/* ---- sizes ---- */

typedef struct magnitude {
    interval mean;
    double sd, quantile[QUANTILES];
} magnitude;

/* Standard deviation and quantiles at the places from `first` on, `count` of them. `value` [count,
 * tokens] and `x` [positions, places] are scratch. */
static int measure_places(const depth_table *t, const token_row *row, size_t first, size_t count,
                          float *value, float *x, magnitude *found, status *st) {
    static const double at[QUANTILES] = {0.01, 0.5, 0.99};
    const recording_about *about = t->about;
    size_t tokens = (size_t)bootstrap_weight_total(t->b), used = 0;
    for (size_t i = 0; i < about->sequences; i++) {
        if (token_row_read_sequence(t->rec, row->name, i, x, st))
            return FAILED;
        for (size_t pos = about->skip_first; pos < (size_t)about->length[i]; pos++, used++)
            for (size_t p = 0; p < count; p++)
                value[p * tokens + used] = x[pos * row->places + first + p];
    }
    for (size_t p = 0; p < count; p++) {
        found[first + p].sd = spread(value + p * tokens, tokens);
        quantiles(value + p * tokens, tokens, at, QUANTILES, found[first + p].quantile);
    }
    return DONE;
}

static int measure_spreads(const depth_table *t, const token_row *row, magnitude *found,
                           status *st) {
    size_t bytes = (size_t)bootstrap_weight_total(t->b) * sizeof(float);
    size_t group = VALUES_BYTES / bytes;
    group = group < 1 ? 1 : group < row->places ? group : row->places;
    float *value = mem_array(group, bytes, row->name, st);
    float *x = mem_array(t->about->positions, row->places * sizeof *x, row->name, st);
    int rc = value && x ? DONE : FAILED;
    for (size_t first = 0; !rc && first < row->places; first += group) {
        size_t left = row->places - first;
        rc = measure_places(t, row, first, left < group ? left : group, value, x, found, st);
    }
    free(value);
    free(x);
    return rc;
}

static int measure_means(const depth_table *t, const token_row *row, magnitude *found, status *st) {
    double *draws = depth_draws(t->b, row, NULL, row->places, st);
    interval *mean = mem_array(row->places, sizeof *mean, "intervals", st);
    if (draws && mean) {
        bootstrap_intervals(t->b, draws, row->places, mean);
        for (size_t p = 0; p < row->places; p++)
            found[p].mean = mean[p];
    }
    int rc = draws && mean ? DONE : FAILED;
    free(draws);
    free(mean);
    return rc;
}

static int put_row(const depth_table *t, const char *name, status *st) {
    token_row row;
    if (token_row_read(t->rec, name, t->about->skip_first, NULL, &row, st))
        return FAILED;
    magnitude *found = mem_array(row.places, sizeof *found, name, st);
    int rc = !found || measure_means(t, &row, found, st) || measure_spreads(t, &row, found, st)
                 ? FAILED
                 : DONE;
    for (size_t p = 0; !rc && p < row.places; p++) {
        table_row(t->out, "MAG");
        table_text(t->out, name);
        table_text(t->out, token_row_label(t->about, name, p));
        table_interval(t->out, found[p].mean);
        table_real(t->out, found[p].sd);
        for (size_t q = 0; q < QUANTILES; q++)
            table_real(t->out, found[p].quantile[q]);
        table_end(t->out);
    }
    if (!rc)
        depth_say_faults(t, &row);
    free(found);
    token_row_clear(&row);
    return rc;
}

int depth_put_magnitudes(const depth_table *t, status *st) {
    static const char *const names[] = {"in_rms", "out_rms", "state_rms"};
    table_section(t->out, "MAG",
                  "sizes of hidden states over tokens: mean with its interval, standard deviation "
                  "(divisor n), quantiles (exact, linear in rank)",
                  "quantity, point, mean, low, high, sd, q01, q50, q99", "1");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (put_row(t, names[i], st))
            return FAILED;
    return DONE;
}
