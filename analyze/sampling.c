#include "analyze/sampling.h"

#include "analyze/table.h"

#include <math.h>
#include <stdlib.h>

int sampling_units(const recording_about *about, size_t **unit, size_t *units, status *st) {
    int rc = FAILED;
    int32_t *length = mem_array(about->sequences, sizeof *length, "units", st);
    *unit = mem_array(about->sequences, sizeof **unit, "units", st);
    if (length && *unit) {
        for (size_t i = 0; i < about->sequences; i++)
            length[i] = about->length[i] - (about->bos >= 0);
        rc = merge_windows(about->start, length, about->sequences, *unit, units, st);
    }
    free(length);
    if (rc) {
        free(*unit);
        *unit = NULL;
    }
    return rc;
}

int sampling_draw(const sampling *s, size_t sequences, const double *weight, const size_t *unit,
                  size_t units, bootstrap **b, status *st) {
    const bootstrap_options options = {.sequences = sequences,
                                       .weight = weight,
                                       .unit = unit,
                                       .units = units,
                                       .resamples = s->resamples,
                                       .seed = s->seed,
                                       .level = s->level};
    return bootstrap_create(&options, b, st);
}

int sampling_losses(recording *rec, double *weight, double *mean, status *st) {
    const recording_about *about = recording_about_of(rec);
    float *loss = mem_array(about->positions, sizeof *loss, "losses", st);
    int rc = loss ? DONE : FAILED;
    for (size_t i = 0; !rc && i < about->sequences; i++) {
        size_t length = (size_t)about->length[i];
        weight[i] = length > 1 ? (double)(length - 1) : 0;
        mean[i] = 0;
        rc = recording_read_tokens(rec, i, NULL, loss, st);
        for (size_t t = 1; !rc && t < length; t++)
            mean[i] += (double)loss[t] / weight[i];
    }
    free(loss);
    return rc;
}

int sampling_loss(const sampling *s, recording *rec, const size_t *unit, size_t units,
                  interval *loss, double *tokens, status *st) {
    const recording_about *about = recording_about_of(rec);
    *loss = (interval){NAN, NAN, NAN};
    *tokens = 0;
    if (!about->has_loss)
        return DONE;
    int rc = FAILED;
    bootstrap *b = NULL;
    double *weight = mem_array(about->sequences, sizeof *weight, "losses", st);
    double *mean = mem_array(about->sequences, sizeof *mean, "losses", st);
    double *draws = mem_array(1 + s->resamples, sizeof *draws, "losses", st);
    if (!weight || !mean || !draws || sampling_losses(rec, weight, mean, st))
        goto done;
    for (size_t i = 0; i < about->sequences; i++)
        *tokens += weight[i];
    if (*tokens > 0) {
        if (sampling_draw(s, about->sequences, weight, unit, units, &b, st) ||
            bootstrap_means(b, mean, 1, NULL, 1, draws, st))
            goto done;
        bootstrap_intervals(b, draws, 1, loss);
    }
    rc = DONE;
done:
    bootstrap_free(b);
    free(weight);
    free(mean);
    free(draws);
    return rc;
}

void sampling_put_run(FILE *out, const sampling *s, const recording_about *about,
                      const bootstrap *b, interval loss, double loss_tokens) {
    size_t tokens = 0;
    for (size_t i = 0; i < about->sequences; i++)
        tokens += (size_t)about->length[i];
    table_section(out, "RUN", "the recording and this analysis", "key, value",
                  "loss in nats/token, level 1");
    table_key_text(out, "RUN", "path", about->path);
    table_key_text(out, "RUN", "model_path", about->model_path);
    table_key_text(out, "RUN", "residual_mode", about->residual_mode);
    table_key_text(out, "RUN", "tokenizer", about->tokenizer);
    table_key_size(out, "RUN", "sequences", about->sequences);
    table_key_size(out, "RUN", "units", bootstrap_units(b));
    table_key_size(out, "RUN", "tokens", tokens);
    table_key_real(out, "RUN", "tokens_in_means", bootstrap_weight_total(b));
    table_key_size(out, "RUN", "skip_first", about->skip_first);
    table_key_size(out, "RUN", "complete", about->complete);
    table_key_real(out, "RUN", "loss", loss.value);
    table_key_real(out, "RUN", "loss_low", loss.low);
    table_key_real(out, "RUN", "loss_high", loss.high);
    table_key_real(out, "RUN", "loss_tokens", loss_tokens);
    table_key_size(out, "RUN", "resamples", s->resamples);
    table_key_real(out, "RUN", "level", s->level);
}

void sampling_say(FILE *out, const sampling *s, size_t sequences, const bootstrap *b) {
    table_comment(out,
                  "Unit of uncertainty: the sequence; overlapping windows are one unit. %zu "
                  "sequences, %zu units.",
                  sequences, bootstrap_units(b));
    table_comment(out,
                  "low, high: %g %% interval, estimate - bias +- t(n-1) * sd * sqrt(n/(n-1)), "
                  "from %zu bootstrap resamples of the units, seed %llu. It covers the choice "
                  "of text, not of training seeds.",
                  100 * s->level, s->resamples, (unsigned long long)s->seed);
    if (bootstrap_units(b) < BOOTSTRAP_UNITS_MIN)
        table_comment(out, "Fewer than %d units: low and high are nan.", BOOTSTRAP_UNITS_MIN);
}
