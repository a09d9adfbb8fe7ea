/* fathom ablate: what the model loses when routes over depth are edited. */
#include "analyze/ablation_sweep.h"
#include "analyze/forced_compromise.h"
#include "analyze/table.h"
#include "probes/model_hash.h"
#include "runtime/base/command.h"
#include "runtime/base/interrupt.h"
#include "runtime/base/log.h"
#include "runtime/base/output.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ANY_THIRD = 3 };
static const char *const parts[] = {"sweep", "importance", "compromise"};
enum { SWEEP, IMPORTANCE, COMPROMISE, PARTS };

typedef struct settings {
    run_options run;
    const char *output, *edit;
    option_list sites, heads, families, labels, parts;
    size_t third, nulls;
    bool frozen, resume, edit_given;
    double equiv;
    sampling sampling;
} settings;

typedef struct analysis {
    const settings *settings;
    bool part[PARTS];
    edit_choice edit;
    bool *head; /* [routing heads], or NULL: all */
    char *results;
    experiment *e;
    ablation *a;
    sweep sweep;
    routes routes;
    compromise *compromise;
    bootstrap *b;
    char model_sha256[65];
} analysis;

/* ---- what to do ---- */

static int choose_parts(analysis *a, status *st) {
    const settings *s = a->settings;
    const bool narrowed = s->edit_given || s->sites.count || s->heads.count || s->families.count ||
                          s->labels.count || s->third != ANY_THIRD || s->frozen;
    for (size_t k = 0; k < PARTS; k++)
        a->part[k] = s->parts.count == 0 && (k == SWEEP || !narrowed);
    for (size_t i = 0; i < s->parts.count; i++) {
        size_t k = 0;
        while (k < PARTS && strcmp(s->parts.item[i], parts[k]) != 0)
            k++;
        const int near = nearest_name(s->parts.item[i], parts, PARTS);
        if (k == PARTS)
            return status_fail(st,
                               "--parts '%s': not known%s%s; there is: sweep, importance, "
                               "compromise",
                               s->parts.item[i], near >= 0 ? "; nearest: " : "",
                               near >= 0 ? parts[near] : "");
        a->part[k] = true;
    }
    return DONE;
}

static int choose_heads(analysis *a, size_t heads, status *st) {
    const option_list *list = &a->settings->heads;
    if (list->count == 0)
        return DONE;
    if (!(a->head = mem_array(heads, sizeof *a->head, "heads", st)))
        return FAILED;
    for (size_t i = 0; i < list->count; i++) {
        size_t head;
        if (parse_size(list->item[i], &head, st) || head >= heads)
            return status_fail(st, "--heads '%s': expected a routing head, 0 to %zu", list->item[i],
                               heads - 1);
        a->head[head] = true;
    }
    return DONE;
}

static int open_experiment(analysis *a, status *st) {
    const settings *s = a->settings;
    if (s->output && strcmp(s->output, "-") != 0) {
        const size_t room = strlen(s->output) + sizeof ".results";
        if (!(a->results = mem_array(room, 1, "a path", st)))
            return FAILED;
        snprintf(a->results, room, "%s.results", s->output);
    }
    const experiment_options options = {.kl = true, .results = a->results, .resume = s->resume};
    model_config config;
    if (config_read(s->run.dir, s->run.routing_heads, &config, NULL, st))
        return FAILED;
    if (config.mode == MODE_NONE)
        return status_fail(st, "%s: a standard model does not route over depth: nothing to ablate",
                           s->run.dir);
    return experiment_open(&s->run, &options, &a->e, st);
}

static int add_all(analysis *a, status *st) {
    const settings *s = a->settings;
    const depth_program *p = experiment_program(a->e);
    const ablation_wants wants = {.token_means = a->part[SWEEP] && a->edit.kind == EDIT_TOKEN_MEAN,
                                  .mean_values = a->part[SWEEP] && a->edit.kind == EDIT_MEAN_VALUE,
                                  .frozen = s->frozen};
    const sweep_options options = {.sites = &s->sites,
                                   .families = &s->families,
                                   .labels = &s->labels,
                                   .third = s->third == ANY_THIRD ? -1 : (int)s->third,
                                   .head = a->head};
    if (edit_choice_bind(&a->edit, p, st) || choose_heads(a, p->plan.heads, st))
        return FAILED;
    int rc = ablation_open(a->e, &wants, &a->a, st);
    if (rc)
        return rc;
    return (a->part[SWEEP] && sweep_add(a->a, p, &a->edit, &options, &a->sweep, st)) ||
                   (a->part[IMPORTANCE] && routes_add(a->a, p, &a->routes, st))
               ? FAILED
               : DONE;
}

/* ---- the table ---- */

static void put_assumptions(FILE *out, const analysis *a) {
    const settings *s = a->settings;
    sampling_say(out, &s->sampling, experiment_sequences(a->e), a->b);
    table_comment(out,
                  "delta_loss: loss with the edit minus the loss of the unedited model, paired "
                  "by sequence, nats per predicted token; kl: from the unedited model's "
                  "distribution of the next token to the edited one's.");
    table_comment(out, "%s",
                  s->frozen ? "Frozen: later sites keep the unedited run's weights, so "
                              "the effect goes through values alone."
                            : "Total effect: later sites route anew.");
    table_comment(out,
                  "mass_moved: mean over tokens, edited sites and heads of the weight that the "
                  "edit takes from sources in the unedited run (mean_value: weight on replaced "
                  "sources). lift: that over the part of the sources that is edited.");
    table_comment(out,
                  "class: none where the whole interval lies within +-%g nats; effect where q "
                  "(Benjamini-Hochberg over the section) is at most %g; else undecided.",
                  s->equiv, 1 - s->sampling.level);
    table_comment(out, "Depth third: 3 * layer / layers, rounded down; `final` has none.");
}

static int put_run(FILE *out, const analysis *a, status *st) {
    const depth_program *p = experiment_program(a->e);
    const model_config *c = model_configuration(experiment_model(a->e));
    const settings *s = a->settings;
    interval loss;
    if (experiment_loss(a->e, a->b, UNEDITED, &loss, st))
        return FAILED;
    table_section(out, "RUN", "the model, the text and this experiment", "key, value",
                  "loss in nats/token, level 1");
    table_key_text(out, "RUN", "model_path", s->run.dir);
    table_key_text(out, "RUN", "residual_mode", mode_name(c->mode));
    table_key_size(out, "RUN", "routing_heads", p->plan.heads);
    table_key_size(out, "RUN", "layers", c->layers);
    table_key_size(out, "RUN", "sequences", experiment_sequences(a->e));
    table_key_size(out, "RUN", "units", bootstrap_units(a->b));
    table_key_real(out, "RUN", "tokens", bootstrap_weight_total(a->b));
    table_key_real(out, "RUN", "loss", loss.value);
    table_key_real(out, "RUN", "loss_low", loss.low);
    table_key_real(out, "RUN", "loss_high", loss.high);
    table_key_size(out, "RUN", "frozen", s->frozen);
    table_key_real(out, "RUN", "equiv", s->equiv);
    table_key_size(out, "RUN", "resamples", s->sampling.resamples);
    table_key_real(out, "RUN", "level", s->sampling.level);
    return DONE;
}

static int put_sections(FILE *out, analysis *a, status *st) {
    const double equiv = a->settings->equiv, level = a->settings->sampling.level;
    if (put_run(out, a, st) ||
        (a->part[SWEEP] && sweep_write(out, &a->sweep, a->a, a->b, equiv, level, st)) ||
        (a->part[IMPORTANCE] && routes_write(out, &a->routes, a->a, a->e, a->b, equiv, level, st)))
        return FAILED;
    if (a->part[SWEEP] || a->part[IMPORTANCE])
        sweep_write_routes(out, a->part[SWEEP] ? &a->sweep : NULL,
                           a->part[IMPORTANCE] ? &a->routes : NULL);
    return a->compromise ? compromise_write(out, a->compromise, a->b, equiv, level, st) : DONE;
}

static int write_table(analysis *a, status *st) {
    output *file;
    if (experiment_draws(a->e, &a->settings->sampling, &a->b, st) ||
        output_open(a->settings->output, &file, st))
        return FAILED;
    FILE *out = output_stream(file);
    table_head(out, experiment_command(a->e), a->model_sha256, experiment_tokens_sha256(a->e));
    put_assumptions(out, a);
    if (put_sections(out, a, st)) {
        output_abandon(file);
        return FAILED;
    }
    if (output_commit(file, st))
        return FAILED;
    experiment_forget(a->e);
    return DONE;
}

/* ---- running ---- */

static int compute(analysis *a, status *st) {
    const settings *s = a->settings;
    model_hash *hash = NULL;
    if (choose_parts(a, st) || edit_choice_parse(s->edit, &a->edit, st) || open_experiment(a, st) ||
        model_hash_start(s->run.dir, &hash, st))
        return FAILED;
    int rc = add_all(a, st);
    if (!rc)
        rc = ablation_run(a->a, st);
    if (!rc && a->part[COMPROMISE])
        rc =
            compromise_run(a->e, &(compromise_options){.draws = s->nulls, .seed = s->sampling.seed},
                           &a->compromise, st);
    if (rc)
        model_hash_leave(hash, a->model_sha256);
    else
        rc = model_hash_wait(hash, a->model_sha256, st);
    return rc;
}

static void say_cost(const analysis *a) {
    uint64_t evaluated, naive;
    experiment_cost(a->e, &evaluated, &naive);
    log_note("%" PRIu64 " sublayer evaluations; %" PRIu64 " without reusing what programs share",
             evaluated, naive);
    if (experiment_nonfinite(a->e))
        log_warn("%" PRIu64 " losses are NaN or Inf", experiment_nonfinite(a->e));
}

static int run(const settings *chosen, status *st) {
    analysis a = {.settings = chosen};
    int rc = compute(&a, st);
    if (rc == DONE) {
        say_cost(&a);
        rc = write_table(&a, st);
    }
    if (rc == INTERRUPTED && a.results)
        log_error("interrupted; what is finished is in %s: continue with --resume", a.results);
    else if (rc == INTERRUPTED)
        log_error("interrupted; with -o FILE a run can be continued");
    bootstrap_free(a.b);
    compromise_free(a.compromise);
    ablation_close(a.a);
    sweep_clear(&a.sweep);
    routes_clear(&a.routes);
    experiment_close(a.e);
    edit_choice_clear(&a.edit);
    free(a.head);
    free(a.results);
    return rc;
}

static const char notes[] =
    "Edits of a site's weights, after the softmax: mask and mask_raw (weight 0, the rest divided "
    "by "
    "its sum or not), uniform, token_mean (of the unedited run, by head), head_mean, "
    "query_scale=X (logits times X), swap=A,B (two families or labels). mean_value puts the mean "
    "of "
    "a source over all tokens in its place. Families of sources: emb, null, newest, history, "
    "partial, attn, mlp; each item of --families or --labels is an intervention, names joined by + "
    "are one. Without --sites and --third every family is edited at attention and MLP sites of "
    "each "
    "depth third, at final, and everywhere.\n\n"
    "Sections of the table: RUN, ABL interventions, IMP mass against importance, AGR rank "
    "agreement, RTE routes of lift above 1 without effect and undecided ones, and of forced "
    "compromise: HMN head means by site, CMP disagreement of a single head's slices, SPL the loss "
    "when its query is split. With -o FILE results are kept in FILE.results until the table is "
    "written; --resume continues an interrupted run.";

static void clear_lists(settings *s) {
    option_list *list[] = {&s->sites, &s->heads, &s->families, &s->labels, &s->parts};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        option_list_clear(list[i]);
}

int cmd_ablate(int argc, char **argv) {
    settings s = {.run = RUN_OPTIONS_DEFAULT,
                  .edit = "mask",
                  .third = ANY_THIRD,
                  .nulls = 4,
                  .equiv = 0.002,
                  .sampling = SAMPLING_DEFAULT};
    const option_spec options[] = {
        OPTION_OUTPUT(&s.output),
        {.name = "edit",
         .kind = OPTION_TEXT,
         .value = &s.edit,
         .metavar = "EDIT",
         .given = &s.edit_given,
         .help = "mask, mask_raw, mean_value, uniform, token_mean, head_mean, query_scale=X or "
                 "swap=A,B"},
        {.name = "sites",
         .kind = OPTION_LIST,
         .value = &s.sites,
         .metavar = "GLOB",
         .help = "edit at these sites together: L3.*, '*.attn', final"},
        {.name = "third",
         .kind = OPTION_SIZE,
         .value = &s.third,
         .max = ANY_THIRD,
         .metavar = "N",
         .help = "edit in the layers of one depth third, 0, 1 or 2; 3 = any"},
        {.name = "heads",
         .kind = OPTION_LIST,
         .value = &s.heads,
         .metavar = "N",
         .help = "edit these routing heads alone"},
        {.name = "families",
         .kind = OPTION_LIST,
         .value = &s.families,
         .metavar = "NAME",
         .help = "edit these families of sources, each by itself"},
        {.name = "labels",
         .kind = OPTION_LIST,
         .value = &s.labels,
         .metavar = "NAME",
         .help = "edit these sources, each by itself: emb, L3.mlp, B1"},
        {.name = "frozen",
         .kind = OPTION_FLAG,
         .value = &s.frozen,
         .help = "later sites keep the unedited run's weights: the effect through values alone"},
        {.name = "parts",
         .kind = OPTION_LIST,
         .value = &s.parts,
         .metavar = "NAME",
         .help = "what to compute: sweep, importance, compromise. All where no other choice is "
                 "made, else sweep"},
        {.name = "equiv",
         .kind = OPTION_REAL,
         .value = &s.equiv,
         .max = 10,
         .metavar = "NATS",
         .help = "an effect counts as none where its whole interval is within this of 0"},
        {.name = "nulls",
         .kind = OPTION_SIZE,
         .value = &s.nulls,
         .min = 1,
         .max = 64,
         .metavar = "R",
         .help = "random queries beside a single head's disagreement"},
        {.name = "resume",
         .kind = OPTION_FLAG,
         .value = &s.resume,
         .help = "continue an interrupted run from its results file"},
        RUN_OPTIONS(&s.run),
        SAMPLING_OPTIONS(&s.sampling),
        OPTION_QUIET,
        OPTION_VERBOSE,
        {0}};
    const positional_spec arguments[] = {{.name = "DIR",
                                          .value = &s.run.dir,
                                          .help = "checkpoint folder: config.json and safetensors"},
                                         {0}};
    const command_spec spec = {.name = "ablate",
                               .summary = "what the model loses when routes over depth are edited",
                               .options = options,
                               .positionals = arguments,
                               .notes = notes};
    const int parsed = options_parse(&spec, argc, argv);
    if (parsed != OPTIONS_RUN)
        return parsed;
    interrupt_install();
    status st;
    const int rc = run(&s, &st);
    clear_lists(&s);
    return rc == DONE ? EXIT_DONE : rc == INTERRUPTED ? EXIT_INTERRUPTED : command_fail(&st);
}
