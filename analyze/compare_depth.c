/* compare_depth.c - how large the tensors of several runs are: DEP of the comparison. */
#include "analyze/compare.h"
#include "analyze/table.h"
#include "analyze/token_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const rows[] = {"in_rms", "out_rms", "state_rms"};

/* Token means of one row, resampled: *draws [draws, its places], freed by the caller. */
static int draw_row(const comparison *c, const compared_run *run, const char *name, double **draws,
                    status *st) {
    token_row row;
    *draws = NULL;
    if (token_row_read(run->rec, name, run->about->skip_first, NULL, &row, st))
        return FAILED;
    *draws = mem_array(c->draws, row.places * sizeof **draws, name, st);
    int rc = *draws
                 ? bootstrap_means(run->routed, row.mean, row.places, NULL, row.places, *draws, st)
                 : FAILED;
    token_row_clear(&row);
    return rc;
}

/* The place of the run that has this label, or `places`. */
static size_t find_place(const recording_about *about, const char *row, size_t places,
                         const char *label) {
    size_t i = 0;
    while (i < places && strcmp(token_row_label(about, row, i), label) != 0)
        i++;
    return i;
}

static int put_row(const comparison *c, size_t index, const char *row, const double *reference,
                   status *st) {
    const compared_run *first = &c->run[0], *run = &c->run[index];
    size_t width = token_row_places(first->about, row), own = token_row_places(run->about, row);
    double *value = NULL, *ratio = mem_array(c->draws, sizeof *ratio, "resampled ratios", st);
    if (!ratio || draw_row(c, run, row, &value, st)) {
        free(ratio);
        free(value);
        return FAILED;
    }
    for (size_t p = 0; p < width; p++) {
        const char *label = token_row_label(first->about, row, p);
        size_t q = find_place(run->about, row, own, label);
        if (q == own || (isnan(reference[p]) && isnan(value[q])))
            continue; /* a tensor that the modes do not have */
        interval x;
        for (size_t k = 0; k < c->draws; k++)
            ratio[k] = c->paired ? log(value[k * own + q] / reference[k * width + p]) : NAN;
        bootstrap_intervals(first->routed, ratio, 1, &x);
        table_row(c->out, "DEP");
        table_size(c->out, index);
        table_text(c->out, row);
        table_text(c->out, label);
        table_real(c->out, reference[p]);
        table_real(c->out, value[q]);
        table_real(c->out, x.value);
        table_real(c->out, x.low);
        table_real(c->out, x.high);
        table_end(c->out);
    }
    free(value);
    free(ratio);
    return DONE;
}

int compare_depth_write(const comparison *c, status *st) {
    table_section(
        c->out, "DEP",
        "token means of the root mean square of what is read (in_rms), returned (out_rms) "
        "and running (state_rms), and ln(value / reference)",
        "run, row, point, reference, value, ln_ratio, low, high", "1");
    if (!c->run[0].about->has_hidden)
        return DONE;
    int rc = DONE;
    for (size_t r = 0; !rc && r < sizeof rows / sizeof *rows; r++) {
        double *reference;
        rc = draw_row(c, &c->run[0], rows[r], &reference, st);
        for (size_t i = 1; !rc && i < c->runs; i++)
            if (c->run[i].about->has_hidden)
                rc = put_row(c, i, rows[r], reference, st);
        free(reference);
    }
    return rc;
}
