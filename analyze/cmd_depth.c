/* fathom depth: how hidden states and gradients are distributed over the depth of one recorded
 * model, with intervals, as a text table. */
#include "analyze/depth_table.h"
#include "analyze/table.h"
#include "runtime/base/command.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/output.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct settings {
    const char *path, *output;
    size_t blocks; /* to cut a model without blocks into; 0: none */
    sampling sampling;
} settings;

typedef struct analysis {
    const settings *settings;
    recording *rec;
    const recording_about *about;
    recorded_sites sites;
    size_t *unit, units; /* [sequences] */
    bootstrap *b;        /* by tokens from position skip_first on */
    depth_layer *layer;  /* [layers] */
    size_t layers;
    bool blocks;
    size_t width;
    interval loss;
    double loss_tokens;
} analysis;

/* ---- preparation ---- */

/* The first token whose loss is not finite, named in a warning. */
static int find_fault(const analysis *a, status *st) {
    float *loss = mem_array(a->about->positions, sizeof *loss, "losses", st);
    int rc = loss ? DONE : FAILED;
    bool found = false;
    for (size_t i = 0; !rc && !found && i < a->about->sequences; i++) {
        rc = recording_read_tokens(a->rec, i, NULL, loss, st);
        for (size_t t = 1; !rc && !found && t < (size_t)a->about->length[i]; t++) {
            found = !isfinite(loss[t]);
            if (found)
                log_warn("%s: tokens/loss is %g at sequence %zu, position %zu, and maybe at later "
                         "ones",
                         a->about->path, (double)loss[t], i, t);
        }
    }
    free(loss);
    return rc;
}

static int measure_loss(analysis *a, status *st) {
    if (sampling_loss(&a->settings->sampling, a->rec, a->unit, a->units, &a->loss, &a->loss_tokens,
                      st))
        return FAILED;
    return a->loss_tokens == 0 || isfinite(a->loss.value) ? DONE : find_fault(a, st);
}

/* The width of the hidden states, where the model's configuration tells it. */
static void find_width(analysis *a) {
    const char *text = a->about->model_config;
    cJSON *json;
    status ignored;
    if (!text || !*text || json_parse(text, strlen(text), "model_config", &json, &ignored))
        return;
    static const char *const keys[] = {"hidden_size", "n_embd"};
    const cJSON *parent = cJSON_GetObjectItemCaseSensitive(json, "parent_config");
    for (size_t i = 0; i < 2 && !a->width; i++)
        if (json_size(parent ? parent : json, "model_config", keys[i], 1, INT32_MAX, &a->width,
                      &ignored))
            a->width = 0;
    cJSON_Delete(json);
}

/* Layers by their MLPs, with the site of their attention, which says where blocks begin. */
static int find_layers(analysis *a, status *st) {
    size_t cut = a->settings->blocks;
    const recorded_site *attention = NULL;
    a->layer = mem_array(a->sites.sites, sizeof *a->layer, "layers", st);
    if (!a->layer)
        return FAILED;
    for (size_t i = 0; i < a->sites.sites && i < a->about->sublayers; i++) {
        const recorded_site *site = &a->sites.site[i];
        if (site->kind == SITE_ATTN)
            attention = site;
        if (site->kind != SITE_MLP)
            continue;
        bool own = attention && strcmp(attention->layer, site->layer) == 0;
        a->layer[a->layers++] = (depth_layer){.place = i,
                                              .number = strtod(site->layer, NULL),
                                              .opens = own && attention->opens_block};
        a->blocks = a->blocks || (own && attention->opens_block);
    }
    if (cut && a->blocks)
        return status_fail(st, "%s: --blocks %zu: this model has blocks of its own, which are used",
                           a->about->path, cut);
    for (size_t i = 0, per = cut ? (a->layers + cut - 1) / cut : 0; per && i < a->layers; i++)
        a->layer[i].opens = i % per == 0;
    a->blocks = a->blocks || cut;
    return DONE;
}

static int prepare(analysis *a, status *st) {
    const recording_about *about = a->about;
    if (!about->has_hidden && !about->has_gradients)
        return status_fail(st,
                           "%s: holds neither hidden/in_rms nor gradients; expected a recording "
                           "made by `fathom capture`",
                           about->path);
    int rc = FAILED;
    double *weight = mem_array(about->sequences, sizeof *weight, "tokens", st);
    if (!weight || recorded_sites_init(&a->sites, about, st) || find_layers(a, st) ||
        sampling_units(about, &a->unit, &a->units, st) || measure_loss(a, st))
        goto done;
    for (size_t i = 0; i < about->sequences; i++)
        weight[i] = (double)recording_sum_tokens(a->rec, i);
    rc = sampling_draw(&a->settings->sampling, about->sequences, weight, a->unit, a->units, &a->b,
                       st);
    if (rc)
        status_prefix(st, "%s", about->path);
    find_width(a);
done:
    free(weight);
    return rc;
}

/* ---- the table ---- */

static void put_assumptions(FILE *out, const analysis *a) {
    const recording_about *about = a->about;
    table_comment(out,
                  "Means over the tokens of a sequence from position %zu on (skip_first); "
                  "growth leaves out position 0 in any case; the loss is over all predicted "
                  "tokens.",
                  about->skip_first);
    sampling_say(out, &a->settings->sampling, about->sequences, a->b);
    if (!about->complete)
        table_comment(out, "The recording is incomplete: only its finished sequences count.");
    if (!about->has_hidden)
        table_comment(out, "MAG, GRW, GRP, RST, MSV, MSS are left out: the recording has no sizes "
                           "of hidden states (hidden/in_rms).");
    if (a->blocks && a->settings->blocks)
        table_comment(out,
                      "Blocks: %zu asked of a model of %zu layers without blocks of its own, "
                      "cut as block modes do, ceil(layers / blocks) layers each.",
                      a->settings->blocks, a->layers);
    if (strncmp(about->residual_mode, "block", 5) == 0)
        table_comment(out, "Block mode: the state is the running partial sum of its block.");
    if (strncmp(about->residual_mode, "full", 4) == 0)
        table_comment(out, "Full mode: there is no running sum; the state is the sublayer's "
                           "output.");
    table_comment(out, "Natural logarithms.");
}

static void put_run(FILE *out, const analysis *a) {
    const recording_about *about = a->about;
    size_t tokens = 0;
    for (size_t i = 0; i < about->sequences; i++)
        tokens += (size_t)about->length[i];
    const struct {
        const char *key;
        double value;
    } numbers[] = {{"layers", (double)a->layers},
                   {"width", a->width ? (double)a->width : NAN},
                   {"sequences", (double)about->sequences},
                   {"units", (double)bootstrap_units(a->b)},
                   {"tokens", (double)tokens},
                   {"tokens_in_means", bootstrap_weight_total(a->b)},
                   {"skip_first", (double)about->skip_first},
                   {"complete", about->complete},
                   {"loss", a->loss.value},
                   {"loss_low", a->loss.low},
                   {"loss_high", a->loss.high},
                   {"loss_tokens", a->loss_tokens},
                   {"grad_tokens", (double)about->grad_tokens},
                   {"resamples", (double)a->settings->sampling.resamples},
                   {"level", a->settings->sampling.level}};
    table_section(out, "RUN", "the recording and this analysis", "key, value",
                  "loss in nats/token, level 1");
    table_key_text(out, "RUN", "path", about->path);
    table_key_text(out, "RUN", "model_path", about->model_path);
    table_key_text(out, "RUN", "residual_mode", about->residual_mode);
    table_key_text(out, "RUN", "tokenizer", about->tokenizer);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        table_key_real(out, "RUN", numbers[i].key, numbers[i].value);
}

static int put_sections(FILE *out, const analysis *a, status *st) {
    const depth_table t = {.out = out,
                           .rec = a->rec,
                           .about = a->about,
                           .sites = &a->sites,
                           .sampling = &a->settings->sampling,
                           .unit = a->unit,
                           .units = a->units,
                           .b = a->b,
                           .layers = a->layers,
                           .layer = a->layer,
                           .blocks = a->blocks,
                           .width = a->width};
    put_assumptions(out, a);
    put_run(out, a);
    if (depth_put_losses(&t, st))
        return FAILED;
    if (a->about->has_hidden && (depth_put_magnitudes(&t, st) || depth_put_growth(&t, st) ||
                                 depth_put_resets(&t, st) || depth_put_massive(&t, st)))
        return FAILED;
    return depth_put_gradients(&t, st);
}

static int write_table(const analysis *a, status *st) {
    output *file;
    const recording_about *about = a->about;
    if (output_open(a->settings->output, &file, st))
        return FAILED;
    FILE *out = output_stream(file);
    table_head(out, command_line(), about->model_sha256 ? about->model_sha256 : "",
               about->tokens_sha256 ? about->tokens_sha256 : "");
    if (put_sections(out, a, st)) {
        output_abandon(file);
        return FAILED;
    }
    return output_commit(file, st);
}

static int run(const settings *chosen, status *st) {
    analysis a = {.settings = chosen};
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
    free(a.layer);
    recording_close(a.rec);
    return rc;
}

int cmd_depth(int argc, char **argv) {
    settings chosen = {.sampling = SAMPLING_DEFAULT};
    const option_spec options[] = {OPTION_OUTPUT(&chosen.output),
                                   {.name = "blocks",
                                    .kind = OPTION_SIZE,
                                    .value = &chosen.blocks,
                                    .max = 65536,
                                    .metavar = "N",
                                    .help = "cut a model without blocks into N of them for "
                                            "reset_ratio; 0: not"},
                                   SAMPLING_OPTIONS(&chosen.sampling),
                                   OPTION_QUIET,
                                   OPTION_VERBOSE,
                                   {0}};
    const positional_spec arguments[] = {
        {.name = "FILE", .value = &chosen.path, .help = "a recording"}, {0}};
    const command_spec spec = {
        .name = "depth",
        .summary = "sizes and gradients of hidden states over the layers, with intervals",
        .options = options,
        .positionals = arguments,
        .notes = "Sections of the table: RUN the recording, LPO loss by position, MAG sizes of "
                 "in, out and state, GRW fits of their growth, GRP its points, RST reset_ratio of "
                 "blocks, MSV massive "
                 "activations, MSS the same by sublayer; with gradients GRD norms per token, GUN "
                 "their inequality over layers, GLY by layer, GQY by routing query, GPA by "
                 "parameter. `grep ^MAG FILE | cut -f2-` extracts one; the line above each "
                 "section says what it is. With fewer than 8 units (sequences; overlapping "
                 "windows are one) there are no intervals."};
    const int parsed = options_parse(&spec, argc, argv);
    if (parsed != OPTIONS_RUN)
        return parsed;
    status st;
    return run(&chosen, &st) ? command_fail(&st) : EXIT_DONE;
}
