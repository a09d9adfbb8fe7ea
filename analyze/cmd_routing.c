/* fathom routing: the statistics of one recording's depth routing, with intervals, as a text table.
 */
#include "analyze/routing_sections.h"
#include "analyze/routing_table.h"
#include "analyze/sampling.h"
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
    sampling sampling;
    routing_example example;
    size_t contexts;
} settings;

typedef struct analysis {
    settings settings;
    recording *rec;
    const recording_about *about;
    recorded_sites sites;
    size_t *unit, units; /* [sequences] */
    bootstrap *b;        /* over routed tokens */
    bootstrap *half[2];  /* of the even and the odd units; NULL where they have no tokens */
    size_t tokens;       /* recorded */
    interval loss;
    double loss_tokens;
} analysis;

/* Draws of the sequences by `weight` [sequences]. */
static int resample(const analysis *a, const double *weight, bootstrap **b, status *st) {
    return sampling_draw(&a->settings.sampling, a->about->sequences, weight, a->unit, a->units, b,
                         st);
}

/* Resamples of all units, and of the even and the odd ones, each half from a seed of its own. */
static int resample_routing(analysis *a, double *weight, status *st) {
    size_t sequences = a->about->sequences;
    for (size_t i = 0; i < sequences; i++)
        weight[i] = (double)recording_sum_tokens(a->rec, i);
    if (resample(a, weight, &a->b, st))
        return status_prefix(st, "%s", a->about->path);
    for (size_t half = 0; half < 2; half++) {
        double total = 0;
        sampling own = a->settings.sampling;
        own.seed += half + 1;
        for (size_t i = 0; i < sequences; i++) {
            weight[i] = a->unit[i] % 2 == half ? (double)recording_sum_tokens(a->rec, i) : 0;
            total += weight[i];
        }
        if (total > 0 &&
            sampling_draw(&own, sequences, weight, a->unit, a->units, &a->half[half], st))
            return FAILED;
    }
    return DONE;
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
    for (size_t i = 0; i < about->sequences; i++)
        a->tokens += (size_t)about->length[i];
    int rc = recorded_sites_init(&a->sites, about, st);
    if (!rc)
        rc = sampling_units(about, &a->unit, &a->units, st);
    if (!rc)
        rc = sampling_loss(&a->settings.sampling, a->rec, a->unit, a->units, &a->loss,
                           &a->loss_tokens, st);
    if (!rc)
        rc = resample_routing(a, weight, st);
    free(weight);
    return rc;
}

static void put_null_comment(FILE *out, const recording_about *about) {
    if (about->null_sequences == 0) {
        table_comment(out, "head_divergence, head_divergence_of_mean, token_information, entropy, "
                           "head_js: no null shown; untrained routing is divergent too. `fathom "
                           "capture --null 8` makes one.");
        return;
    }
    table_comment(out,
                  "head_divergence, head_divergence_of_mean, token_information, entropy, head_js: "
                  "read them beside NBD, the same under %zu random queries (seed %llu) on %zu of "
                  "the %zu sequences. By chance alone a value is above all draws once in %zu.",
                  about->null_draws, (unsigned long long)about->seed, about->null_sequences,
                  about->sequences, about->null_draws + 1);
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
    sampling_say(out, &a->settings.sampling, about->sequences, a->b);
    if (!about->complete)
        table_comment(out, "The recording is incomplete: only its finished sequences count.");
    put_null_comment(out, about);
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

static void put_run(FILE *out, const analysis *a) {
    const recording_about *about = a->about;
    table_section(out, "RUN", "the recording and this analysis", "key, value",
                  "loss in nats/token, level 1");
    table_key_text(out, "RUN", "path", about->path);
    table_key_text(out, "RUN", "model_path", about->model_path);
    table_key_text(out, "RUN", "residual_mode", about->residual_mode);
    table_key_size(out, "RUN", "routing_heads", about->heads);
    table_key_size(out, "RUN", "layers", about->layers);
    table_key_size(out, "RUN", "sites", about->sites);
    table_key_size(out, "RUN", "sources", about->sources);
    table_key_size(out, "RUN", "sequences", about->sequences);
    table_key_size(out, "RUN", "units", bootstrap_units(a->b));
    table_key_size(out, "RUN", "tokens", a->tokens);
    table_key_real(out, "RUN", "tokens_in_means", bootstrap_weight_total(a->b));
    table_key_size(out, "RUN", "skip_first", about->skip_first);
    table_key_size(out, "RUN", "complete", about->complete);
    table_key_text(out, "RUN", "tokenizer", about->tokenizer);
    table_key_real(out, "RUN", "loss", a->loss.value);
    table_key_real(out, "RUN", "loss_low", a->loss.low);
    table_key_real(out, "RUN", "loss_high", a->loss.high);
    table_key_real(out, "RUN", "loss_tokens", a->loss_tokens);
    table_key_size(out, "RUN", "null_draws", about->null_draws);
    table_key_size(out, "RUN", "null_sequences", about->null_sequences);
    table_key_size(out, "RUN", "resamples", a->settings.sampling.resamples);
    table_key_real(out, "RUN", "level", a->settings.sampling.level);
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
    const routing_sample sample = {.out = out,
                                   .rec = a->rec,
                                   .about = about,
                                   .sites = &a->sites,
                                   .all = a->b,
                                   .half = {a->half[0], a->half[1]}};
    if (routing_table_write(out, a->rec, &a->sites, a->b, st) ||
        routing_sections_write(&sample, &a->settings.example, a->settings.contexts, st)) {
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
    bootstrap_free(a.half[0]);
    bootstrap_free(a.half[1]);
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
    fputs("AVG means over sites, NBD nulls, KND mass and lift by kind of source, SJS "
          "neighbouring sites of one "
          "kind, RCH reach, DMX weights by sublayer, CLM published claims, SKP skips, TOK an "
          "example, CTX contexts. "
          "`grep ^ENT FILE | cut -f2-` extracts one; the line above each "
          "section says what it is. With fewer than 8 units (sequences; overlapping windows are "
          "one) there are no intervals.",
          out);
    fclose(out);
    return notes;
}

int cmd_routing(int argc, char **argv) {
    settings chosen = {.sampling = SAMPLING_DEFAULT, .example = ROUTING_EXAMPLE_DEFAULT};
    routing_example *example = &chosen.example;
    const option_spec options[] = {OPTION_OUTPUT(&chosen.output),
                                   {.name = "contexts",
                                    .kind = OPTION_SIZE,
                                    .value = &chosen.contexts,
                                    .max = 1000,
                                    .metavar = "K",
                                    .help = "list, for each site and source, the K tokens that "
                                            "give the source the most weight, with the text "
                                            "around them; needs recorded weights"},
                                   {.name = "site",
                                    .kind = OPTION_TEXT,
                                    .value = &example->site,
                                    .metavar = "NAME",
                                    .help = "site of the example, section TOK; where not given the "
                                            "one with the largest token_information",
                                    .given = &example->asked},
                                   {.name = "head",
                                    .kind = OPTION_TEXT,
                                    .value = &example->head,
                                    .metavar = "H",
                                    .help = "routing head of the example, or mean",
                                    .given = &example->asked},
                                   {.name = "sequence",
                                    .kind = OPTION_SIZE,
                                    .value = &example->sequence,
                                    .metavar = "N",
                                    .help = "sequence of the example",
                                    .given = &example->asked},
                                   {.name = "position",
                                    .kind = OPTION_SIZE,
                                    .value = &example->position,
                                    .metavar = "N",
                                    .help = "its first token",
                                    .given = &example->asked},
                                   {.name = "tokens",
                                    .kind = OPTION_SIZE,
                                    .value = &example->tokens,
                                    .min = 1,
                                    .max = 4096,
                                    .metavar = "N",
                                    .help = "tokens of the example at most",
                                    .given = &example->asked},
                                   SAMPLING_OPTIONS(&chosen.sampling),
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
    const int parsed = options_parse(&spec, argc, argv);
    if (parsed != OPTIONS_RUN)
        return parsed;
    status st;
    return run(&chosen, &st) ? command_fail(&st) : EXIT_DONE;
}
