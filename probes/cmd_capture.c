/* cmd_capture.c - `fathom capture`: runs a checkpoint over tokens and writes a recording. */
#include "probes/gradient_norms.h"
#include "probes/model_hash.h"
#include "probes/record_wants.h"
#include "probes/recorder.h"
#include "probes/recording_writer.h"
#include "probes/text_run.h"
#include "runtime/base/command.h"
#include "runtime/base/interrupt.h"
#include "runtime/base/log.h"
#include "runtime/base/version.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>

enum { WEIGHTS_SMALL = 1 << 30 };

typedef struct capture {
    run_options run_options;
    const char *output;
    option_list record;
    size_t skip_first, compress, null_draws, null_sequences;
    uint64_t seed;
    bool no_hash;

    text_run run;
    recording_plan plan;
    /* What plan.axes points to. */
    const char **site_name, **source_name, **param_name;
    uint8_t *available;
    int32_t *newest;
    char history[4096], title[256];
    recording_writer *writer;
    recorder *recorder;
    null_queries *nulls;
    model_hash *hash;
} capture;

/* ---- the plan ---- */

static int plan_axes(capture *c, status *st) {
    const depth_program *p = c->run.program;
    const model_config *config = model_configuration(c->run.model);
    size_t sites = p->plan.sites, sources = p->labels, params = model_params(c->run.model);
    c->site_name = mem_array(sites, sizeof *c->site_name, "sites", st);
    c->source_name = mem_array(sources, sizeof *c->source_name, "sources", st);
    c->param_name = mem_array(params, sizeof *c->param_name, "parameters", st);
    c->available = mem_array(sites, sources ? sources : 1, "available cells", st);
    c->newest = mem_array(sites, sizeof *c->newest, "newest sources", st);
    if (!c->site_name || !c->source_name || !c->param_name || !c->available || !c->newest)
        return FAILED;
    for (size_t i = 0; i < params; i++)
        c->param_name[i] = model_param_at(c->run.model, i)->name;
    for (size_t i = 0; i < sources; i++)
        c->source_name[i] = p->source_name[i];
    for (size_t i = 0; i < sites; i++) {
        c->site_name[i] = p->site_name[i];
        c->newest[i] = -1;
        for (size_t e = p->offset[i]; e < p->offset[i + 1]; e++) {
            c->available[i * sources + (size_t)p->label[e]] = 1;
            c->newest[i] = p->label[e];
        }
    }
    c->plan.axes = (recording_axes){.positions = c->run.limits.longest,
                                    .sites = sites,
                                    .sublayers = 2 * config->layers,
                                    .layers = config->layers,
                                    .heads = config->routing_heads,
                                    .sources = sources,
                                    .attention_heads = config->query_heads,
                                    .width = config->width,
                                    .params = params,
                                    .site_name = c->site_name,
                                    .sublayer_name = c->site_name,
                                    .source_name = c->source_name,
                                    .param_name = c->param_name,
                                    .available = c->available,
                                    .newest = c->newest};
    return DONE;
}

static void plan_header(capture *c) {
    const model *m = c->run.model;
    time_t now = time(NULL);
    struct tm utc;
    char stamp[32];
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    snprintf(c->history, sizeof c->history, "%s %s", stamp, command_line());
    snprintf(c->title, sizeof c->title, "How %s reads its own layers", model_path(m));
    c->plan.header = (recording_header){.title = c->title,
                                        .history = c->history,
                                        .model_path = model_path(m),
                                        .model_config = model_config_text(m),
                                        .residual_mode = mode_name(model_configuration(m)->mode),
                                        .tokenizer = token_source_tokenizer(c->run.source),
                                        .device = model_kernels(m)->describe(model_backend(m)),
                                        .compute_dtype = c->run_options.dtype,
                                        .weights_dtype = model_weights_dtype(m),
                                        .bos = token_source_bos(c->run.source),
                                        .seed = c->seed,
                                        .skip_first = c->skip_first};
}

/* Weights are recorded by default where they are small, and head pairs beside them. */
static int plan_wants(capture *c, status *st) {
    recording_wants *wants = &c->plan.wants;
    weights_choice choice;
    if (record_wants_parse(&c->record, c->run.program, c->plan.axes.layers, wants, &choice, st))
        return FAILED;
    const recording_axes *axes = &c->plan.axes;
    double bytes = (double)sizeof(float) * (double)axes->sites * (double)axes->heads *
                   (double)axes->sources * (double)axes->positions * (double)c->run.sequences;
    wants->weights = axes->sources > 0 && (choice == WEIGHTS_YES ||
                                           (choice == WEIGHTS_IF_SMALL && bytes <= WEIGHTS_SMALL));
    if (axes->sources > 0 && choice == WEIGHTS_IF_SMALL && !wants->weights)
        log_note("routing weights would take %s and are left out; --record weights keeps them",
                 bytes_text((uint64_t)bytes).text);
    wants->pairs = wants->pairs || wants->weights;
    wants->gradients = c->run_options.backward;
    if (c->null_draws && axes->sources == 0)
        return status_fail(st, "--null: this model does not route over depth");
    if (c->null_draws && c->null_sequences == 0)
        return status_fail(st, "--null-sequences 0: nulls need at least one sequence");
    c->plan.axes.draws = c->null_draws;
    if (c->null_draws)
        c->plan.axes.null_sequences =
            c->null_sequences < c->run.sequences ? c->null_sequences : c->run.sequences;
    return DONE;
}

/* ---- what it will take ---- */

/* Says what will be written and refuses what the disk cannot hold. */
static int forecast(const capture *c, status *st) {
    uint64_t bytes = 0;
    recorded_dataset *list = NULL;
    size_t count, points = 0;
    if (recorded_forecast(&c->plan.axes, &c->plan.wants, c->run.sequences, &bytes, st) ||
        recorded_datasets(&c->plan.axes, &c->plan.wants, &list, &count, st))
        return FAILED;
    for (size_t i = 0; i < count; i++)
        points += list[i].kind >= RECORDED_IN;
    free(list);
    const recording_wants *wants = &c->plan.wants;
    bool routed = c->plan.axes.sources > 0;
    log_note("%s: %zu sequences of at most %zu tokens; tokens, losses, magnitudes%s%s%s%s%s",
             c->output, c->run.sequences, c->plan.axes.positions,
             routed ? ", routing statistics" : "", wants->pairs ? ", head and source pairs" : "",
             wants->weights ? ", routing weights" : "",
             wants->attention ? ", attention statistics" : "",
             wants->gradients ? ", gradient norms" : "");
    if (points)
        log_note("and %zu tensors at chosen points", points);
    if (c->plan.axes.draws)
        log_note("and routing under 2 x %zu random queries, of %zu sequences", c->plan.axes.draws,
                 c->plan.axes.null_sequences);
    log_note("about %s%s", bytes_text(bytes).text, c->plan.compress ? " before compression" : "");
    char *folder = mem_text(c->output, st);
    if (!folder)
        return FAILED;
    char *slash = strrchr(folder, '/');
    if (slash)
        slash[slash == folder] = '\0';
    struct statvfs disk;
    bool known = statvfs(slash ? folder : ".", &disk) == 0;
    free(folder);
    uint64_t room = known ? (uint64_t)disk.f_bavail * disk.f_frsize : UINT64_MAX;
    if (bytes > room && c->plan.compress == 0)
        return status_fail(st,
                           "%s: needs about %s, the disk has %s: record less (--record no-weights, "
                           "--sequences), or try --compress 1",
                           c->output, bytes_text(bytes).text, bytes_text(room).text);
    return DONE;
}

/* ---- running ---- */

/* A batch is done when all of it has been recorded, which may be after the next one's pass. */
static int run_batches(capture *c, status *st) {
    batch b;
    int rc;
    while (!(rc = text_run_next(&c->run, &b, st)) && b.layout.sequences) {
        const observer *watch = recorder_observer(c->recorder, &b);
        rc = session_forward(c->run.session, &b, watch, st);
        if (!rc && c->run.limits.backward)
            rc = session_backward(c->run.session, &b, watch, st);
        if (rc)
            break;
        progress_update(recorder_report(c->recorder).tokens, recording_writer_bytes(c->writer));
    }
    if (rc == FAILED)
        return FAILED;
    int last = session_finish(c->run.session, st);
    progress_update(recorder_report(c->recorder).tokens, recording_writer_bytes(c->writer));
    return last ? last : rc;
}

/* The distinct ids that occurred and their texts. */
static int list_vocabulary(const capture *c, recording_closing *closing, int32_t **ids,
                           char (**texts)[TOKEN_PIECE_SIZE], const char ***pieces, status *st) {
    size_t vocabulary = model_configuration(c->run.model)->vocabulary, count = 0;
    for (size_t i = 0; i < vocabulary; i++)
        count += recorder_saw(c->recorder, i);
    *ids = mem_array(count, sizeof **ids, "vocabulary", st);
    *texts = mem_array(count, sizeof **texts, "vocabulary", st);
    *pieces = mem_array(count, sizeof **pieces, "vocabulary", st);
    if (!*ids || !*texts || !*pieces)
        return FAILED;
    size_t n = 0;
    for (size_t i = 0; i < vocabulary; i++) {
        if (!recorder_saw(c->recorder, i))
            continue;
        (*ids)[n] = (int32_t)i;
        const char *text = token_source_piece(c->run.source, (int32_t)i, (*texts)[n]);
        (*pieces)[n++] = text ? text : "";
    }
    closing->pieces = count;
    closing->piece_id = *ids;
    closing->piece = *pieces;
    return DONE;
}

/* The pass is not stopped between a batch's backward and its commit, so the session's sums are of
 * the sequences recorded. */
static int measure_gradients(const capture *c, gradient_norms *norms, recording_closing *closing,
                             status *st) {
    if (!c->run.limits.backward)
        return DONE;
    if (gradient_norms_read(c->run.session, c->run.model, &c->plan.axes, norms, st))
        return FAILED;
    for (size_t i = 0; i < GRADIENT_NORMS; i++)
        closing->gradient_norm[i] = norms->norm[i];
    closing->grad_tokens = session_gradient_tokens(c->run.session);
    if (norms->nonfinite)
        log_warn("gradients of %zu of %zu parameters are NaN or Inf, first %s", norms->nonfinite,
                 c->plan.axes.params, norms->first_nonfinite);
    return DONE;
}

/* Writes what is known at the end. `complete` false: a signal came. */
static int finish(capture *c, bool complete, status *st) {
    char model_hex[65] = "", tokens_hex[65];
    recording_closing closing = {.model_sha256 = model_hex, .tokens_sha256 = tokens_hex};
    int32_t *ids = NULL;
    char(*texts)[TOKEN_PIECE_SIZE] = NULL;
    const char **pieces = NULL;
    gradient_norms norms = {0};
    recorder_tokens_hash(c->recorder, tokens_hex);
    int rc = DONE;
    if (complete && c->hash)
        rc = model_hash_wait(c->hash, model_hex, st);
    else
        model_hash_leave(c->hash, model_hex);
    c->hash = NULL;
    if (!rc)
        rc = list_vocabulary(c, &closing, &ids, &texts, &pieces, st);
    if (!rc)
        rc = measure_gradients(c, &norms, &closing, st);
    if (!rc) {
        rc = recording_writer_finish(c->writer, &closing, complete, st);
        if (!rc)
            c->writer = NULL;
    }
    free(ids);
    free(texts);
    free(pieces);
    gradient_norms_clear(&norms);
    return rc;
}

static void report(const capture *c, const char *path, uint64_t bytes, double seconds) {
    recorder_totals totals = recorder_report(c->recorder);
    if (totals.nonfinite)
        log_warn("%" PRIu64 " values are NaN or Inf", totals.nonfinite);
    log_note("%s: %s, %" PRIu64 " tokens, %.0f tokens/s, mean loss %.4f nats/token", path,
             bytes_text(bytes).text, totals.tokens, (double)totals.tokens / seconds,
             totals.loss / (double)totals.scored);
}

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* After a failure: says what is left. */
static void explain_partial(capture *c) {
    if (!c->writer)
        return;
    status st;
    char *partial = mem_text(recording_writer_partial(c->writer), &st);
    size_t sequences = recording_writer_sequences(c->writer);
    bool readable = recording_writer_abandon(c->writer) == DONE;
    if (partial && sequences && readable)
        log_error("%s keeps the %zu sequences finished before", partial, sequences);
    else if (partial && !readable)
        log_error("%s may be unreadable", partial);
    free(partial);
    c->writer = NULL;
}

/* Queries for the nulls, where wanted. */
static int make_nulls(capture *c, status *st) {
    const null_options options = {.draws = c->null_draws,
                                  .sequences = c->null_sequences,
                                  .seed = c->seed,
                                  .skip_first = c->skip_first};
    if (c->null_draws == 0)
        return DONE;
    const null_run run = {c->run.model, c->run.program, c->run.session, &c->run.limits,
                          c->run.source};
    int rc = null_queries_create(&run, &options, &c->nulls, st);
    return rc ? rc : recorder_add_nulls(c->recorder, c->nulls, st);
}

static int run_capture(capture *c, status *st) {
    if (text_run_open(&c->run_options, &c->run, st) || plan_axes(c, st) || plan_wants(c, st))
        return FAILED;
    plan_header(c);
    c->plan.compress = c->compress;
    if (forecast(c, st) || recording_writer_create(c->output, &c->plan, &c->writer, st) ||
        recorder_create(&c->plan, c->run.program, &c->run.limits,
                        model_configuration(c->run.model)->vocabulary, c->writer, &c->recorder,
                        st) ||
        (!c->no_hash && model_hash_start(c->run_options.dir, &c->hash, st)))
        return FAILED;
    int rc = make_nulls(c, st);
    if (rc)
        return rc;
    double start = seconds_now();
    progress_begin("capture", token_source_tokens(c->run.source), "tokens");
    rc = run_batches(c, st);
    progress_end();
    double seconds = seconds_now() - start;
    if (rc == FAILED)
        return FAILED;
    char *partial = mem_text(recording_writer_partial(c->writer), st);
    if (!partial)
        return FAILED;
    size_t sequences = recording_writer_sequences(c->writer);
    uint64_t bytes = recording_writer_bytes(c->writer);
    if (finish(c, rc == DONE, st))
        rc = FAILED;
    else if (rc == DONE)
        report(c, c->output, bytes, seconds);
    else
        log_error("interrupted: %s keeps the %zu of %zu sequences that were finished", partial,
                  sequences, c->run.sequences);
    free(partial);
    return rc;
}

static void clear_capture(capture *c) {
    char unused[65];
    explain_partial(c);
    model_hash_leave(c->hash, unused);
    recorder_free(c->recorder);
    null_queries_free(c->nulls);
    record_wants_clear(&c->plan.wants);
    free(c->site_name);
    free(c->source_name);
    free(c->param_name);
    free(c->available);
    free(c->newest);
    text_run_clear(&c->run);
    option_list_clear(&c->record);
}

int cmd_capture(int argc, char **argv) {
    capture c = {.run_options = RUN_OPTIONS_DEFAULT, .null_sequences = 16};
    const option_spec options[] = {
        {.name = "output",
         .letter = 'o',
         .kind = OPTION_TEXT,
         .value = &c.output,
         .metavar = "FILE",
         .help = "the recording to write; must be given"},
        {.name = "record",
         .kind = OPTION_LIST,
         .value = &c.record,
         .metavar = "LIST",
         .help = RECORD_HELP},
        {.name = "gradients",
         .kind = OPTION_FLAG,
         .value = &c.run_options.backward,
         .help = "also run backward and record gradient norms, of every token and parameter"},
        {.name = "null",
         .kind = OPTION_SIZE,
         .value = &c.null_draws,
         .max = 64,
         .metavar = "R",
         .help = "also record the routing statistics that R random queries of equal norm and R of "
                 "equal logit variance would have; 8 is a good number. --seed draws them"},
        {.name = "null-sequences",
         .kind = OPTION_SIZE,
         .value = &c.null_sequences,
         .max = 1 << 30,
         .metavar = "N",
         .help = "sequences that have nulls at most, evenly spaced over those of the run"},
        {.name = "skip-first",
         .kind = OPTION_SIZE,
         .value = &c.skip_first,
         .max = 1 << 24,
         .metavar = "N",
         .help = "leading positions of each sequence left out of the routing statistics"},
        {.name = "compress",
         .kind = OPTION_SIZE,
         .value = &c.compress,
         .max = 9,
         .metavar = "N",
         .help = "deflate level of what is written; 0 = none, which is fastest"},
        {.name = "no-hash",
         .kind = OPTION_FLAG,
         .value = &c.no_hash,
         .help = "leave out the SHA-256 of the weight files"},
        RUN_OPTIONS(&c.run_options),
        OPTION_SEED(&c.seed),
        OPTION_QUIET,
        OPTION_VERBOSE,
        {0}};
    const positional_spec arguments[] = {RUN_FOLDER(&c.run_options), {0}};
    const command_spec spec = {
        .name = "capture",
        .summary = "run a checkpoint over text or tokens and record how it reads its layers",
        .options = options,
        .positionals = arguments,
        .notes =
            "The recording is one HDF5 file. It is written as FILE.partial, batch by batch, and "
            "takes the name FILE when it is whole, over an older file of that name. After "
            "Ctrl-C FILE.partial keeps the sequences that were finished, and every command "
            "reads it."};
    status st;
    const int parsed = options_parse(&spec, argc, argv);
    if (parsed != OPTIONS_RUN)
        return parsed;
    interrupt_install();
    int rc = FAILED;
    if (!c.output)
        status_fail(&st, "no output: give -o FILE.h5");
    else
        rc = run_capture(&c, &st);
    if (rc == FAILED)
        command_fail(&st);
    clear_capture(&c);
    return rc == DONE ? EXIT_DONE : rc == INTERRUPTED ? EXIT_INTERRUPTED : EXIT_WRONG;
}
