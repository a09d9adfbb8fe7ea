/* check_nulls.c - what `capture --null` recorded. */
#include "probes/check.h"
#include "probes/recording_file.h"

#include <math.h>
#include <stdlib.h>

static size_t count_sources(const recording_about *about, size_t site) {
    size_t count = 0;
    for (size_t s = 0; s < about->sources; s++)
        count += about->available[site * about->sources + s];
    return count;
}

/* A head whose query is zero has no null: all of its numbers are NaN together. */
static void see_head(const check *c, const double *mean, const double *entropy, size_t seq,
                     size_t site, worst *sums, worst *range) {
    size_t sources = count_sources(c->about, site);
    double sum = 0;
    if (sources < 2 || isnan(*entropy))
        return;
    for (size_t s = 0; s < c->about->sources; s++)
        if (c->about->available[site * c->about->sources + s])
            sum += mean[s];
    worst_see(sums, fabs(sum - 1), seq, SIZE_MAX, site);
    worst_see(range, fmax(fmax(-*entropy, *entropy - log((double)sources)), 0), seq, SIZE_MAX,
              site);
}

static int check_kind(check *c, const char *kind, worst *sums, worst *range, status *st) {
    const recording_about *about = c->about;
    double *mean, *entropy = NULL;
    int result = recording_read_null(c->rec, "mean", kind, &mean, st);
    if (result == DONE)
        result = recording_read_null(c->rec, "entropy", kind, &entropy, st);
    size_t per_sequence = about->null_draws * about->sites * about->heads;
    for (size_t i = 0; i < about->null_sequences * per_sequence && result == DONE; i++) {
        size_t seq = about->null_sequence[i / per_sequence];
        if (recording_sum_tokens(c->rec, seq) > 0)
            see_head(c, mean + i * about->sources, entropy + i, seq,
                     i / about->heads % about->sites, sums, range);
    }
    free(mean);
    free(entropy);
    return result;
}

int check_nulls(check *c, status *st) {
    worst sums = {.what = "mean weights under random queries sum to 1", .allowed = 1e-5};
    worst range = {.what = "their entropies are in 0..ln S", .allowed = 1e-5};
    if (c->about->null_draws == 0) {
        check_absent(c, "nulls: not recorded");
        return DONE;
    }
    if (check_kind(c, "norm", &sums, &range, st) || check_kind(c, "var", &sums, &range, st))
        return FAILED;
    check_ok(c, "nulls: 2 x %zu random queries on %zu sequences", c->about->null_draws,
             c->about->null_sequences);
    worst_report(c, &sums);
    worst_report(c, &range);
    return DONE;
}
