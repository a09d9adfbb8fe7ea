/* fathom routing: the statistics of one recording's depth routing, with intervals, as a text table.
 */
#include "analyze/routing_table.h"
#include "analyze/table.h"
#include "runtime/base/command.h"
#include "runtime/base/log.h"
#include "runtime/base/options.h"
#include "runtime/base/output.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct settings {
    const char *path, *output;
    size_t resamples;
    uint64_t seed;
    double level;
} settings;

typedef struct analysis {
    settings settings;
    recording *rec;
    const recording_about *about;
    recorded_sites sites;
    size_t *unit, units; /* [sequences] */
    bootstrap *b;        /* over routed tokens */
    size_t tokens;       /* recorded */
    interval loss;
    double loss_tokens;
} analysis;

/* Draws of the sequences by `weight` [sequences]. */
static int resample(const analysis *a, const double *weight, bootstrap **b, status *st) {
    const bootstrap_options options = {.sequences = a->about->sequences,
                                       .weight = weight,
                                       .unit = a->unit,
                                       .units = a->units,
                                       .resamples = a->settings.resamples,
                                       .seed = a->settings.seed,
                                       .level = a->settings.level};
    return bootstrap_create(&options, b, st);
}

/* Mean loss of the predicted tokens of each sequence: all but its first. */
static int measure_loss(analysis *a, double *weight, status *st) {
    const recording_about *about = a->about;
    a->loss = (interval){NAN, NAN, NAN};
    if (!about->has_loss)
        return DONE;
    int rc = FAILED;
    bootstrap *b = NULL;
    double *mean = mem_array(about->sequences, sizeof *mean, "losses", st);
    double *draws = mem_array(1 + a->settings.resamples, sizeof *draws, "losses", st);
    float *loss = mem_array(about->positions, sizeof *loss, "losses", st);
    if (!mean || !draws || !loss)
        goto done;
    for (size_t i = 0; i < about->sequences; i++) {
        size_t length = (size_t)about->length[i];
        if (recording_read_tokens(a->rec, i, NULL, loss, st))
            goto done;
        weight[i] = length > 1 ? (double)(length - 1) : 0;
        for (size_t t = 1; t < length; t++)
            mean[i] += (double)loss[t] / weight[i];
        a->loss_tokens += weight[i];
    }
    rc = DONE;
    if (a->loss_tokens == 0)
        goto done;
    rc = FAILED;
    if (resample(a, weight, &b, st) || bootstrap_means(b, mean, 1, NULL, 1, draws, st))
        goto done;
    bootstrap_intervals(b, draws, 1, &a->loss);
    rc = DONE;
done:
    bootstrap_free(b);
    free(mean);
    free(draws);
    free(loss);
    return rc;
}

/* A window's text begins after its BOS token, so that two windows side by side do not overlap. */
static int find_units(analysis *a, status *st) {
    const recording_about *about = a->about;
    int32_t *length = mem_array(about->sequences, sizeof *length, "units", st);
    a->unit = mem_array(about->sequences, sizeof *a->unit, "units", st);
    if (!length || !a->unit) {
        free(length);
        return FAILED;
    }
    for (size_t i = 0; i < about->sequences; i++) {
        length[i] = about->length[i] - (about->bos >= 0);
        a->tokens += (size_t)about->length[i];
    }
    int rc = merge_windows(about->start, length, about->sequences, a->unit, &a->units, st);
    free(length);
    return rc;
}

static int prepare(analysis *a, status *st) {
    const recording_about *about = a->about;
    if (strcmp(about->residual_mode, "none") == 0 || about->sources == 0)
        return status_fail(st,
                           "%s: residual mode %s: a standard model does not route over depth; "
                           "`fathom show` and `fathom check` apply to its recording",
                           about->path, about->residual_mode);
    double *weight = mem_array(about->sequences, sizeof *weight, "tokens", st);
    if (!weight)
        return FAILED;
    int rc = recorded_sites_init(&a->sites, about, st);
    if (!rc)
        rc = find_units(a, st);
    if (!rc)
        rc = measure_loss(a, weight, st);
    for (size_t i = 0; i < about->sequences; i++)
        weight[i] = (double)recording_sum_tokens(a->rec, i);
    if (!rc && resample(a, weight, &a->b, st))
        rc = status_prefix(st, "%s", about->path);
    free(weight);
    return rc;
}

static void put_assumptions(FILE *out, const analysis *a) {
    const recording_about *about = a->about;
    if (about->skip_first)
        table_comment(out,
                      "Means over the tokens of a sequence from position %zu on (skip_first); "
                      "the loss over all predicted tokens.",
                      about->skip_first);
    else
        table_comment(out, "Means over all tokens; the loss over all predicted ones.");
    table_comment(out,
                  "Unit of uncertainty: the sequence; overlapping windows are one unit. %zu "
                  "sequences, %zu units.",
                  about->sequences, bootstrap_units(a->b));
    table_comment(out,
                  "low, high: %g %% interval, estimate - bias +- t(n-1) * sd * sqrt(n/(n-1)), "
                  "from %zu bootstrap resamples of the units, seed %llu. It covers the choice "
                  "of text, not of training seeds.",
                  100 * a->settings.level, a->settings.resamples,
                  (unsigned long long)a->settings.seed);
    if (bootstrap_units(a->b) < BOOTSTRAP_UNITS_MIN)
        table_comment(out, "Fewer than %d units: low and high are nan.", BOOTSTRAP_UNITS_MIN);
    if (!about->complete)
        table_comment(out, "The recording is incomplete: only its finished sequences count.");
    table_comment(out, "head_divergence, head_divergence_of_mean, token_information, entropy, "
                       "head_js: no null shown; untrained routing is divergent too.");
    table_comment(out, "token_information is a plug-in estimate, biased low with few tokens.");
    table_comment(out, "Values of head `mean` are plain means over heads. Natural logarithms.");
    table_comment(out, "Sites with one source are left out of AVG; in lookback, oldest_mass and "
                       "newest_mass a null source does not count and the rest is renormalised.");
    if (strncmp(about->residual_mode, "block", 5) == 0)
        table_comment(out, "Block mode: the newest source is the running partial sum, except at a "
                           "block's first sublayer (opens_block 1).");
    if (strcmp(about->residual_mode, "delta_block") == 0 ||
        strcmp(about->residual_mode, "delta_mh") == 0)
        table_comment(out, "Delta mode: D2, D3, ... are alternating sums of earlier states, as the "
                           "models were trained, not differences of neighbouring blocks.");
    if (about->heads == 1)
        table_comment(out, "One routing head: head_divergence is 0 and HJS is left out.");
    if (!about->has_pairs && !about->has_weights)
        table_comment(out, "No pair statistics were recorded: HJS, COS and RNK are left out.");
    if (!about->has_sums)
        table_comment(out, "Computed from the recorded weights; what needs hidden states is nan.");
}

static void put_run_text(FILE *out, const char *key, const char *value) {
    table_row(out, "RUN");
    table_text(out, key);
    table_text(out, value ? value : "");
    table_end(out);
}

static void put_run_size(FILE *out, const char *key, size_t value) {
    table_row(out, "RUN");
    table_text(out, key);
    table_size(out, value);
    table_end(out);
}

static void put_run_real(FILE *out, const char *key, double value) {
    table_row(out, "RUN");
    table_text(out, key);
    table_real(out, value);
    table_end(out);
}

static void put_run(FILE *out, const analysis *a) {
    const recording_about *about = a->about;
    table_section(out, "RUN", "the recording and this analysis", "key, value",
                  "loss in nats/token, level 1");
    put_run_text(out, "path", about->path);
    put_run_text(out, "model_path", about->model_path);
    put_run_text(out, "residual_mode", about->residual_mode);
    put_run_size(out, "routing_heads", about->heads);
    put_run_size(out, "layers", about->layers);
    put_run_size(out, "sites", about->sites);
    put_run_size(out, "sources", about->sources);
    put_run_size(out, "sequences", about->sequences);
    put_run_size(out, "units", bootstrap_units(a->b));
    put_run_size(out, "tokens", a->tokens);
    put_run_real(out, "tokens_in_means", bootstrap_weight_total(a->b));
    put_run_size(out, "skip_first", about->skip_first);
    put_run_size(out, "complete", about->complete);
    put_run_text(out, "tokenizer", about->tokenizer);
    put_run_real(out, "loss", a->loss.value);
    put_run_real(out, "loss_low", a->loss.low);
    put_run_real(out, "loss_high", a->loss.high);
    put_run_real(out, "loss_tokens", a->loss_tokens);
    put_run_size(out, "resamples", a->settings.resamples);
    put_run_real(out, "level", a->settings.level);
}

static int write_table(const analysis *a, status *st) {
    output *file;
    if (output_open(a->settings.output, &file, st))
        return FAILED;
    FILE *out = output_stream(file);
    const recording_about *about = a->about;
    table_head(out, command_line(), about->model_sha256 ? about->model_sha256 : "",
               about->tokens_sha256 ? about->tokens_sha256 : "");
    put_assumptions(out, a);
    put_run(out, a);
    if (routing_table_write(out, a->rec, &a->sites, a->b, st)) {
        output_abandon(file);
        return FAILED;
    }
    return output_commit(file, st);
}

static int run(const settings *chosen, status *st) {
    analysis a = {.settings = *chosen};
    if (recording_open(chosen->path, &a.rec, st))
        return FAILED;
    a.about = recording_about_of(a.rec);
    if (!a.about->complete)
        log_warn("%s: incomplete: only its finished sequences count", chosen->path);
    int rc = prepare(&a, st);
    if (!rc)
        rc = write_table(&a, st);
    bootstrap_free(a.b);
    recorded_sites_clear(&a.sites);
    free(a.unit);
    recording_close(a.rec);
    return rc;
}

/* The sections, from the list that writes them. */
static const char *help_notes(void) {
    static char notes[2048];
    FILE *out = fmemopen(notes, sizeof notes, "w");
    if (!out)
        return NULL;
    fputs("Sections of the table: RUN the recording, SIT its sites, ", out);
    for (size_t i = 0; i < routing_statistic_count; i++)
        fprintf(out, "%s %s, ", routing_statistics[i].code, routing_statistics[i].name);
    fputs("AVG means over sites. `grep ^ENT FILE | cut -f2-` extracts one; the line above each "
          "section says what it is. With fewer than 8 units (sequences; overlapping windows are "
          "one) there are no intervals.",
          out);
    fclose(out);
    return notes;
}

int cmd_routing(int argc, char **argv) {
    settings chosen = {.resamples = 1000, .seed = 1, .level = 0.95};
    const option_spec options[] = {OPTION_OUTPUT(&chosen.output),
                                   {.name = "resamples",
                                    .kind = OPTION_SIZE,
                                    .value = &chosen.resamples,
                                    .min = 100,
                                    .max = 100000,
                                    .metavar = "N",
                                    .help = "bootstrap resamples of the sequences"},
                                   {.name = "level",
                                    .kind = OPTION_REAL,
                                    .value = &chosen.level,
                                    .min = 0.5,
                                    .max = 0.999,
                                    .metavar = "P",
                                    .help = "coverage of the intervals"},
                                   OPTION_SEED(&chosen.seed),
                                   OPTION_QUIET,
                                   OPTION_VERBOSE,
                                   {0}};
    const positional_spec arguments[] = {
        {.name = "FILE", .value = &chosen.path, .help = "a recording of a routed model"}, {0}};
    const command_spec spec = {.name = "routing",
                               .summary = "statistics of depth routing, with intervals",
                               .options = options,
                               .positionals = arguments,
                               .notes = help_notes()};
    switch (options_parse(&spec, argc, argv)) {
    case OPTIONS_HELP:
        return EXIT_DONE;
    case OPTIONS_WRONG:
        return EXIT_WRONG;
    }
    status st;
    return run(&chosen, &st) ? command_fail(&st) : EXIT_DONE;
}
