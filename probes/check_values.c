/* check_values.c - invariants of the numbers in a recording, one sequence in memory at a time. */
#include "probes/check.h"
#include "probes/derived_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- tokens ---- */

typedef struct token_checks {
    worst id, padding, loss, first_loss, piece;
} token_checks;

static void see_tokens(check *c, token_checks *checks, size_t seq, const int32_t *id,
                       const float *loss) {
    size_t length = (size_t)c->about->length[seq];
    int64_t most = c->vocabulary ? (int64_t)c->vocabulary : INT64_C(1) << 31;
    for (size_t t = 0; t < c->about->positions; t++) {
        if (t >= length) {
            worst_see(&checks->padding, id[t] == -1 && (!loss || isnan(loss[t])) ? 0 : 1, seq, t,
                      SIZE_MAX);
            continue;
        }
        bool inside = id[t] >= 0 && id[t] < most;
        worst_see(&checks->id, inside ? 0 : 1, seq, t, SIZE_MAX);
        if (h5_has(recording_file(c->rec), "vocab/id"))
            worst_see(&checks->piece, inside && recording_knows(c->rec, id[t]) ? 0 : 1, seq, t,
                      SIZE_MAX);
        if (loss && t == 0)
            worst_see(&checks->first_loss, isnan(loss[t]) ? 0 : 1, seq, t, SIZE_MAX);
        else if (loss)
            worst_see(&checks->loss, isfinite(loss[t]) && loss[t] >= 0 ? 0 : 1, seq, t, SIZE_MAX);
    }
}

int check_tokens(check *c, status *st) {
    const recording_about *about = c->about;
    token_checks checks = {
        .id = {.what = c->vocabulary ? "ids are inside the vocabulary" : "ids are not negative"},
        .padding = {.what = "id -1 and loss NaN beyond each sequence"},
        .loss = {.what = "losses are finite and not negative"},
        .first_loss = {.what = "loss is NaN at position 0"},
        .piece = {.what = "vocab/id lists every id that occurs"}};
    int result = FAILED;
    hid_t file = recording_file(c->rec), ids = H5_NONE, losses = H5_NONE;
    int32_t *id = mem_array(about->positions, sizeof *id, "ids", st);
    float *loss = mem_array(about->positions, sizeof *loss, "losses", st);
    if (!id || !loss)
        goto end;
    ids = H5Dopen2(file, "tokens/id", H5P_DEFAULT);
    if (about->has_loss)
        losses = H5Dopen2(file, "tokens/loss", H5P_DEFAULT);
    for (size_t seq = 0; seq < about->sequences; seq++) {
        const hsize_t start[2] = {seq, 0}, count[2] = {1, about->positions};
        if (h5_read(ids, H5T_NATIVE_INT32, 2, start, count, id) < 0 ||
            (losses >= 0 && h5_read(losses, H5T_NATIVE_FLOAT, 2, start, count, loss) < 0)) {
            h5_fail(st, about->path, "tokens");
            goto end;
        }
        see_tokens(c, &checks, seq, id, losses >= 0 ? loss : NULL);
    }
    worst_report(c, &checks.id);
    worst_report(c, &checks.piece);
    worst_report(c, &checks.padding);
    worst_report(c, &checks.loss);
    worst_report(c, &checks.first_loss);
    result = DONE;
end:
    free(id);
    free(loss);
    h5_close(&ids);
    h5_close(&losses);
    return result;
}

/* ---- magnitudes ---- */

enum { IN_RMS, OUT_RMS, OUT_ABSMAX, STATE_RMS, STATE_ABSMAX, STATE_MEDIAN, STATE_CHANNEL, HIDDEN };

static const char *const hidden_name[HIDDEN] = {
    "in_rms",       "out_rms",          "out_absmax",          "state_rms",
    "state_absmax", "state_median_abs", "state_absmax_channel"};

typedef struct hidden_checks {
    worst finite, sign, order, channel;
} hidden_checks;

/* Magnitudes of one token at one place. A float32 square root may be off by an ulp, hence the
 * relative slack. */
static void see_magnitudes(const check *c, hidden_checks *checks, float *const *data, bool state,
                           size_t i, size_t seq, size_t pos, size_t sublayer) {
    float rms = data[state ? STATE_RMS : OUT_RMS][i];
    float largest = data[state ? STATE_ABSMAX : OUT_ABSMAX][i];
    float median = state ? data[STATE_MEDIAN][i] : 0;
    worst_see(&checks->finite, isfinite(rms) && isfinite(largest) && isfinite(median) ? 0 : 1, seq,
              pos, sublayer);
    worst_see(&checks->sign, rms >= 0 && largest >= 0 && median >= 0 ? 0 : 1, seq, pos, sublayer);
    double over = fmax(rms - largest, median - largest);
    worst_see(&checks->order, fmax(over, 0) / fmax(largest, 1e-30), seq, pos, sublayer);
    if (state) {
        float channel = data[STATE_CHANNEL][i];
        worst_see(&checks->channel,
                  channel >= 0 && (!c->width || channel < (float)c->width) ? 0 : 1, seq, pos,
                  sublayer);
    }
}

static void see_hidden(const check *c, hidden_checks *checks, float *const *data, size_t seq) {
    size_t sites = c->about->sites, sublayers = c->about->sublayers;
    size_t length = (size_t)c->about->length[seq];
    for (size_t t = 0; t < length; t++) {
        for (size_t i = 0; i < sites; i++) {
            if (i < sublayers && c->removed[i])
                continue;
            float rms = data[IN_RMS][t * sites + i];
            worst_see(&checks->finite, isfinite(rms) ? 0 : 1, seq, t, i);
            worst_see(&checks->sign, rms >= 0 ? 0 : 1, seq, t, i);
        }
        for (size_t i = 0; i < sublayers; i++) {
            if (c->removed[i])
                continue;
            see_magnitudes(c, checks, data, false, t * sublayers + i, seq, t, i);
            /* Channel -1 from the start: this sublayer has no state. */
            if (data[STATE_CHANNEL][i] >= 0)
                see_magnitudes(c, checks, data, true, t * sublayers + i, seq, t, i);
        }
    }
}

int check_hidden(check *c, status *st) {
    const recording_about *about = c->about;
    if (!about->has_hidden) {
        check_absent(c, "magnitudes: not recorded");
        return DONE;
    }
    hidden_checks checks = {.finite = {.what = "magnitudes are finite"},
                            .sign = {.what = "magnitudes are not negative"},
                            .order = {.what = "rms and median are at most absmax", .allowed = 1e-6},
                            .channel = {.what = "absmax channels are inside the width"}};
    float *data[HIDDEN] = {NULL};
    int result = DONE;
    for (size_t i = 0; i < HIDDEN && result == DONE; i++) {
        size_t places = i == IN_RMS ? about->sites : about->sublayers;
        data[i] = mem_array(about->positions, places * sizeof *data[i], "magnitudes", st);
        result = data[i] ? DONE : FAILED;
    }
    for (size_t seq = 0; seq < about->sequences && result == DONE; seq++) {
        for (size_t i = 0; i < HIDDEN && result == DONE; i++)
            result = recording_read_hidden(c->rec, hidden_name[i], seq, data[i], st);
        if (result == DONE)
            see_hidden(c, &checks, data, seq);
    }
    for (size_t i = 0; i < HIDDEN; i++)
        free(data[i]);
    if (result)
        return FAILED;
    worst_report(c, &checks.finite);
    worst_report(c, &checks.sign);
    worst_report(c, &checks.order);
    worst_report(c, &checks.channel);
    return DONE;
}

/* ---- weights ---- */

typedef struct weight_checks {
    worst sum, range, cells, rows;
    double *row[32]; /* routing_seq rows [sequences, …], or NULL */
} weight_checks;

static void see_weights(const check *c, weight_checks *checks, const float *weights, size_t seq,
                        size_t site) {
    const recording_about *about = c->about;
    const uint8_t *available = about->available + site * about->sources;
    size_t count = 0, length = (size_t)about->length[seq];
    for (size_t s = 0; s < about->sources; s++)
        count += available[s];
    for (size_t t = 0; t < length; t++)
        for (size_t h = 0; h < about->heads; h++) {
            const float *a = weights + (t * about->heads + h) * about->sources;
            double sum = 0;
            bool inside = true, cells = true;
            for (size_t s = 0; s < about->sources; s++) {
                cells = cells && (available[s] == 0) == isnan(a[s]);
                if (!available[s])
                    continue;
                sum += a[s];
                inside = inside && a[s] >= 0 && a[s] <= 1 + 1e-6F;
            }
            worst_see(&checks->cells, cells ? 0 : 1, seq, t, site);
            if (count) {
                worst_see(&checks->range, inside ? 0 : 1, seq, t, site);
                worst_see(&checks->sum, fabs(sum - 1), seq, t, site);
            }
        }
}

/* The accumulators of one sequence and site against those made anew from its weights. Terms are
 * float32 on both sides, so they agree to a few float32 units of their size. */
static int compare_rows(check *c, weight_checks *checks, const derived_site *site,
                        const double *sums, size_t seq, size_t index, status *st) {
    const recording_about *about = c->about;
    double tokens = (double)recording_sum_tokens(c->rec, seq);
    for (size_t r = 0; r < routing_row_count; r++) {
        const routing_row *row = &routing_rows[r];
        if (!checks->row[r] || tokens == 0)
            continue;
        size_t size = routing_row_size(row, about->heads, about->sources);
        double *expected = mem_array(size, sizeof *expected, "a routing row", st);
        if (!expected)
            return FAILED;
        routing_row_spread(row, &site->layout, sums, site->label, about->sources, expected);
        const double *found = checks->row[r] + (seq * about->sites + index) * size;
        for (size_t i = 0; i < size; i++)
            if (!isnan(expected[i]) || !isnan(found[i]))
                worst_see(&checks->rows,
                          fabs(found[i] - expected[i] / tokens) / fmax(1, fabs(found[i])), seq,
                          SIZE_MAX, index);
        free(expected);
    }
    return DONE;
}

static int stream_weights(check *c, weight_checks *checks, status *st) {
    const recording_about *about = c->about;
    size_t cells = about->heads * about->sources;
    int result = FAILED;
    float *weights = mem_array(about->positions, cells * sizeof *weights, "weights", st);
    float *scratch = mem_array(3 * cells, sizeof *scratch, "weights", st);
    size_t *label = mem_array(about->sources, sizeof *label, "labels", st);
    double *sums = NULL;
    if (!weights || !scratch || !label)
        goto end;
    for (size_t seq = 0; seq < about->sequences; seq++)
        for (size_t i = 0; i < about->sites; i++) {
            derived_site site = derived_site_of(about, i, about->has_pairs, label);
            free(sums);
            sums = mem_array(site.layout.total, sizeof *sums, "routing sums", st);
            if (!sums || recording_read_weights(c->rec, seq, i, weights, st))
                goto end;
            see_weights(c, checks, weights, seq, i);
            derived_site_add(&site, about, weights, about->skip_first, (size_t)about->length[seq],
                             scratch, sums);
            if (compare_rows(c, checks, &site, sums, seq, i, st))
                goto end;
        }
    result = DONE;
end:
    free(weights);
    free(scratch);
    free(label);
    free(sums);
    return result;
}

static int check_weights(check *c, status *st) {
    if (!c->about->has_weights) {
        check_absent(c, "routing weights: not recorded");
        return DONE;
    }
    weight_checks checks = {
        .sum = {.what = "weights sum to 1", .allowed = 1e-5},
        .range = {.what = "weights are in 0..1"},
        .cells = {.what = "weights are NaN exactly where a site has no such source"},
        .rows = {.what = "accumulated rows agree with the weights", .allowed = 2e-5}};
    int result = DONE;
    for (size_t r = 0; r < routing_row_count && c->about->has_sums && result == DONE; r++) {
        char path[64];
        snprintf(path, sizeof path, "routing_seq/%s", routing_rows[r].name);
        if (derived_row_possible(&routing_rows[r]) && h5_has(recording_file(c->rec), path))
            result = recording_read_row(c->rec, routing_rows[r].name, &checks.row[r], st);
    }
    if (result == DONE)
        result = stream_weights(c, &checks, st);
    for (size_t r = 0; r < routing_row_count; r++)
        free(checks.row[r]);
    if (result)
        return FAILED;
    worst_report(c, &checks.sum);
    worst_report(c, &checks.range);
    worst_report(c, &checks.cells);
    worst_report(c, &checks.rows);
    return DONE;
}

/* ---- accumulators ---- */

/* routing/ROW against the token-weighted mean of routing_seq/ROW. */
static int compare_mean(check *c, const routing_row *row, const double *data, worst *means,
                        status *st) {
    const recording_about *about = c->about;
    char path[64];
    snprintf(path, sizeof path, "routing/%s", row->name);
    if (!h5_has(recording_file(c->rec), path))
        return DONE;
    size_t size = about->sites * routing_row_size(row, about->heads, about->sources);
    double *stored = mem_array(size, sizeof *stored, path, st);
    hid_t dataset = H5Dopen2(recording_file(c->rec), path, H5P_DEFAULT);
    hid_t space = H5Dget_space(dataset);
    int result = FAILED;
    if (!stored)
        goto end;
    if (H5Sget_simple_extent_npoints(space) != (hssize_t)size ||
        H5Dread(dataset, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, stored) < 0) {
        h5_fail(st, about->path, path);
        goto end;
    }
    for (size_t i = 0; i < size; i++) {
        double sum = 0, tokens = 0;
        for (size_t seq = 0; seq < about->sequences; seq++) {
            double n = (double)recording_sum_tokens(c->rec, seq);
            if (n > 0)
                sum += n * data[seq * size + i];
            tokens += n;
        }
        double mean = sum / tokens;
        if (!isnan(mean) || !isnan(stored[i]))
            worst_see(means, fabs(stored[i] - mean) / fmax(1, fabs(mean)), SIZE_MAX, SIZE_MAX,
                      i / (size / about->sites));
    }
    result = DONE;
end:
    free(stored);
    h5_close(&space);
    h5_close(&dataset);
    return result;
}

/* A row that is a distribution over the sources of each site. */
static void see_distribution(const check *c, const routing_row *row, const double *data,
                             worst *sums) {
    const recording_about *about = c->about;
    size_t size = routing_row_size(row, about->heads, about->sources);
    for (size_t seq = 0; seq < about->sequences; seq++)
        for (size_t site = 0; site < about->sites && recording_sum_tokens(c->rec, seq); site++)
            for (size_t h = 0; about->newest[site] >= 0 && h < size / about->sources; h++) {
                const double *p = data + (seq * about->sites + site) * size + h * about->sources;
                double sum = 0;
                for (size_t s = 0; s < about->sources; s++)
                    if (about->available[site * about->sources + s])
                        sum += p[s];
                worst_see(sums, fabs(sum - 1), seq, SIZE_MAX, site);
            }
}

int check_routing(check *c, status *st) {
    const recording_about *about = c->about;
    if (about->sources == 0) {
        check_absent(c, "routing: this model does not route over depth");
        return DONE;
    }
    if (check_weights(c, st))
        return FAILED;
    if (!about->has_sums) {
        check_absent(c, "routing_seq: not recorded");
        return DONE;
    }
    worst means = {.what = "routing_seq averages to routing", .allowed = 1e-9};
    worst sums = {.what = "mean and contributions sum to 1", .allowed = 1e-4};
    for (size_t r = 0; r < routing_row_count; r++) {
        const routing_row *row = &routing_rows[r];
        double *data;
        char path[64];
        snprintf(path, sizeof path, "routing_seq/%s", row->name);
        if (!h5_has(recording_file(c->rec), path))
            continue;
        if (recording_read_row(c->rec, row->name, &data, st))
            return FAILED;
        int result = compare_mean(c, row, data, &means, st);
        if (strcmp(row->name, "mean") == 0 || strstr(row->name, "contribution"))
            see_distribution(c, row, data, &sums);
        free(data);
        if (result)
            return FAILED;
    }
    worst_report(c, &sums);
    worst_report(c, &means);
    return DONE;
}
