/* fathom prune: which layers, attentions and MLPs a model needs. Each is removed by itself, sets of
 * them are searched on one text and judged on another, and one set can be exported. */
#include "analyze/export_model.h"
#include "analyze/prune.h"
#include "analyze/table.h"
#include "probes/model_hash.h"
#include "probes/text_run.h"
#include "runtime/base/command.h"
#include "runtime/base/interrupt.h"
#include "runtime/base/log.h"
#include "runtime/base/output.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct settings {
    run_options run;
    token_options evaluation; /* text, tokens and sequences; the rest is as for `run` */
    const char *output, *export_to, *unit, *removal;
    option_list strategies, keep, remove;
    bool budget_given, strategies_given, resume;
    prune_settings prune;
} settings;

/* All that one command holds. */
typedef struct pruning {
    settings *s;
    text_held text;
    text_windows own, other; /* of it: --text and --eval-text */
    model *m;
    const model_config *config;
    bool *kept, *given; /* [2 * layers] of --keep, --remove */
    bool search;
    set_losses losses;
    prune_scores scores;
    prune_result result;
    char *results;
    model_hash *hash;
    char hex[65];
} pruning;

/* ---- options ---- */

static bool has_text(const token_options *o) {
    return o->text || o->tokens;
}

static int check_options(const settings *s, status *st) {
    if (s->remove.count && (s->strategies_given || s->budget_given))
        return status_fail(st, "--remove: one set is judged, without a search: leave out "
                               "--strategies and --budget");
    if (s->evaluation.text && s->evaluation.tokens)
        return status_fail(st, "both --eval-text and --eval-tokens: give one of them");
    if (s->evaluation.sequences && !has_text(&s->evaluation))
        return status_fail(st,
                           "--eval-sequences: of which text? Give --eval-text or --eval-tokens");
    return s->export_to ? export_folder_check(s->export_to, st) : DONE;
}

/* What names of units and scores mean for this model. */
static int read_names(pruning *p, status *st) {
    settings *s = p->s;
    prune_settings *chosen = &s->prune;
    const size_t sublayers = 2 * p->config->layers;
    chosen->unit = strcmp(s->unit, "attn") == 0  ? UNIT_ATTN
                   : strcmp(s->unit, "mlp") == 0 ? UNIT_MLP
                                                 : UNIT_LAYER;
    chosen->removal = strcmp(s->removal, "zero_output") == 0 ? ZERO_OUTPUT : DROP_SOURCE;
    p->kept = mem_array(sublayers, sizeof *p->kept, "units", st);
    p->given = mem_array(sublayers, sizeof *p->given, "units", st);
    if (!p->kept || !p->given || units_parse(&s->keep, "--keep", p->config, p->kept, st) ||
        units_parse(&s->remove, "--remove", p->config, p->given, st))
        return FAILED;
    if (s->remove.count) {
        bool left = false;
        for (size_t i = 0; i < sublayers; i++) {
            if (p->given[i] && p->kept[i])
                return status_fail(st, "--remove and --keep both name %s",
                                   unit_name(i % 2 ? UNIT_MLP : UNIT_ATTN, i / 2).text);
            left = left || (!p->given[i] && !p->config->removed[i]);
        }
        return left ? DONE : status_fail(st, "--remove: names every sublayer: nothing is left");
    }
    if (prune_strategies_parse(&s->strategies, p->config, chosen->unit, &chosen->strategies, st))
        return FAILED;
    p->search = prune_strategies_any(&chosen->strategies);
    if (s->export_to && !p->search)
        return status_fail(st, "--export: of which set? Name it with --remove, or let a strategy "
                               "find it");
    return p->search
               ? prune_budget(p->config, chosen->unit, p->kept, chosen->budget, &chosen->budget, st)
               : DONE;
}

/* ---- texts ---- */

static int read_texts(pruning *p, status *st) {
    settings *s = p->s;
    const size_t vocabulary = p->config->vocabulary;
    token_options other = s->run.tokens;
    other.text = s->evaluation.text;
    other.tokens = s->evaluation.tokens;
    other.sequences = s->evaluation.sequences;
    if (text_held_add(&p->text, &s->run.tokens, vocabulary, st))
        return FAILED;
    const size_t first = p->text.all.sequences;
    if (has_text(&s->evaluation) && text_held_add(&p->text, &other, vocabulary, st))
        return FAILED;
    p->own = text_windows_part(&p->text.all, 0, first);
    p->other = text_windows_part(&p->text.all, first, p->text.all.sequences - first);
    return DONE;
}

/* Which sequences select and which judge. */
static int divide_texts(pruning *p, status *st) {
    const text_windows *all = &p->own, *other = &p->other;
    text_windows *selection = &p->losses.text[SELECTION];
    text_windows *evaluation = &p->losses.text[EVALUATION];
    prune_result *r = &p->result;
    const size_t n = all->sequences, first = (n + 1) / 2;
    r->tokenizer = token_source_tokenizer(p->text.source);
    *selection = *evaluation = text_windows_part(all, 0, 0);
    if (p->s->remove.count) { /* nothing is chosen by any of it */
        *evaluation = other->sequences ? *other : *all;
        r->evaluation_from = other->sequences ? "the evaluation text" : "the text";
        return DONE;
    }
    *selection = *all;
    r->evaluation_from = "none: no search";
    if (!p->search)
        return DONE;
    if (other->sequences) {
        *evaluation = *other;
        r->evaluation_from = "the evaluation text";
    } else if (n < 2) {
        return status_fail(st, "one sequence cannot be both selection and evaluation text: give "
                               "more text, --eval-text or --eval-tokens, or --strategies none");
    } else {
        *selection = text_windows_part(all, 0, first);
        *evaluation = text_windows_part(all, first, n - first);
        r->evaluation_from = "the last half of the sequences";
    }
    if (text_windows_shared(selection, evaluation, &r->shared, st))
        return FAILED;
    if (r->shared)
        log_warn("%zu of %zu evaluation sequences share text with the selection text: their losses "
                 "are not those of unseen text",
                 r->shared, evaluation->sequences);
    return DONE;
}

static int warn_few(const pruning *p, status *st) {
    static const char *const name[] = {"selection", "evaluation"};
    int rc = DONE;
    for (size_t t = 0; t < TEXTS && !rc; t++) {
        size_t units;
        const text_windows *w = &p->losses.text[t];
        rc = text_windows_units(w, NULL, &units, st);
        if (!rc && w->sequences && units < BOOTSTRAP_UNITS_MIN)
            log_warn("%zu units of %s text (sequences; overlapping ones are one): fewer than %d "
                     "give no intervals",
                     units, name[t], BOOTSTRAP_UNITS_MIN);
    }
    return rc;
}

/* ---- opening ---- */

static int open_model(pruning *p, status *st) {
    if (run_model_open(&p->s->run, p->text.all.longest, &p->m, st))
        return FAILED;
    p->config = model_configuration(p->m);
    return model_hash_start(p->s->run.dir, &p->hash, st);
}

static int open_losses(pruning *p, status *st) {
    const settings *s = p->s;
    const experiment_options options = {.m = p->m,
                                        .windows = p->text.all,
                                        .batch = s->run.tokens.batch,
                                        .results = p->results,
                                        .resume = s->resume};
    p->losses.removal = s->prune.removal;
    return experiment_open(&options, &p->losses.e, st);
}

/* ---- measuring ---- */

/* Losses without every unit by itself, but one without which nothing would be left. */
static int remove_each(pruning *p, status *st) {
    const size_t layers = p->config->layers, sublayers = 2 * layers;
    size_t count = 0;
    bool *set = mem_array(UNIT_KINDS * layers, sublayers * sizeof *set, "sets", st);
    const bool **asked = mem_array(UNIT_KINDS * layers, sizeof *asked, "sets", st);
    int rc = set && asked ? DONE : FAILED;
    for (unit_kind kind = 0; kind < UNIT_KINDS && !rc; kind++)
        for (size_t l = 0; l < layers; l++) {
            bool *one = set + count * sublayers, left = false;
            if (!unit_exists(p->config, kind, l))
                continue;
            memset(one, 0, sublayers * sizeof *one);
            unit_mark(kind, l, one);
            for (size_t i = 0; i < sublayers; i++)
                left = left || (!one[i] && !p->config->removed[i]);
            if (left)
                asked[count++] = one;
        }
    if (!rc)
        rc = set_losses_find(&p->losses, SELECTION, NULL, asked, count, st);
    free(set);
    free(asked);
    return rc;
}

static int search(pruning *p, status *st) {
    const prune_settings *s = &p->s->prune;
    const prune_search_options options = {.config = p->config,
                                          .kind = s->unit,
                                          .kept = p->kept,
                                          .budget = s->budget,
                                          .seeds = s->seeds,
                                          .seed = s->sampling.seed,
                                          .strategies = s->strategies};
    return prune_search(&options, &p->losses, &p->scores, &p->result.points, st);
}

/* Losses of every point on the text that judges. */
static int judge(pruning *p, status *st) {
    const prune_points *points = &p->result.points;
    const bool **set = mem_array(points->count, sizeof *set, "sets", st);
    if (!set)
        return FAILED;
    for (size_t i = 0; i < points->count; i++)
        set[i] = points->point[i].set;
    int rc = set_losses_find(&p->losses, EVALUATION, NULL, set, points->count, st);
    free(set);
    return rc;
}

static int measure(pruning *p, status *st) {
    const prune_settings *s = &p->s->prune;
    const size_t sublayers = 2 * p->config->layers;
    bool *none = mem_array(sublayers, sizeof *none, "a set", st);
    int rc = none ? DONE : FAILED;
    if (!rc && (p->search || p->s->remove.count))
        rc = prune_points_add(&p->result.points, "none", 0, 0, none, sublayers, st);
    free(none);
    if (rc)
        return rc;
    if (p->s->remove.count) {
        rc = prune_points_add(&p->result.points, "given", 0, p->s->remove.count, p->given,
                              sublayers, st);
        return rc ? rc : judge(p, st);
    }
    rc = prune_scores_measure(p->m, &p->losses.text[SELECTION], experiment_limits(p->losses.e),
                              s->strategies.contiguous ? s->budget : 1, &p->scores, st);
    p->result.scores = &p->scores;
    if (!rc)
        rc = remove_each(p, st);
    if (!rc && p->search)
        rc = search(p, st);
    return !rc && p->search ? judge(p, st) : rc;
}

/* ---- results ---- */

static int write_table(pruning *p, status *st) {
    output *file;
    char tokens[65];
    if (output_open(p->s->output, &file, st))
        return FAILED;
    FILE *out = output_stream(file);
    text_windows_hash(&p->own, tokens);
    table_head(out, experiment_command(p->losses.e), p->hex, tokens);
    if (prune_put(out, &p->result, st)) {
        output_abandon(file);
        return FAILED;
    }
    return output_commit(file, st);
}

/* --remove's set, or the largest of the first strategy. */
static const bool *set_to_export(const pruning *p) {
    const prune_points *points = &p->result.points;
    const prune_point *best = points->count > 1 ? &points->point[1] : NULL;
    if (p->s->remove.count)
        return p->given;
    for (size_t i = 1; i < points->count; i++)
        if (strcmp(points->point[i].strategy, points->point[1].strategy) == 0)
            best = &points->point[i];
    return best ? best->set : NULL;
}

static int export_set(pruning *p, status *st) {
    const bool *set = set_to_export(p);
    const export_options options = {.folder = p->s->export_to,
                                    .removed = set,
                                    .removal = p->s->prune.removal,
                                    .command = p->losses.e ? experiment_command(p->losses.e)
                                                           : command_line(),
                                    .parent_sha256 = p->hex};
    return set ? export_model(p->m, &options, st)
               : status_fail(st, "--export: no strategy found a set");
}

static int run(pruning *p, status *st) {
    settings *s = p->s;
    model_config config;
    if (config_read(s->run.dir, s->run.routing_heads, &config, NULL, st))
        return FAILED;
    p->config = &config;
    const bool only_export = s->export_to && s->remove.count && !has_text(&s->run.tokens);
    if (only_export && s->output)
        return status_fail(st, "-o %s: without --text or --tokens there is no table", s->output);
    if (check_options(s, st) || experiment_results_path(s->output, s->resume, &p->results, st) ||
        read_names(p, st) ||
        (!only_export && (read_texts(p, st) || divide_texts(p, st) || warn_few(p, st))))
        return FAILED;
    int rc = open_model(p, st);
    if (!rc && !only_export)
        rc = open_losses(p, st);
    if (!rc && !only_export)
        rc = measure(p, st);
    if (rc)
        return rc;
    model_hash *hash = p->hash;
    p->hash = NULL;
    if (model_hash_wait(hash, p->hex, st))
        return FAILED;
    p->result.m = p->m;
    p->result.settings = &s->prune;
    p->result.losses = &p->losses;
    if (!only_export && write_table(p, st))
        return FAILED;
    if (p->losses.e)
        experiment_forget(p->losses.e);
    return s->export_to ? export_set(p, st) : DONE;
}

static void clear(pruning *p) {
    char ignored[65];
    model_hash_leave(p->hash, ignored);
    experiment_close(p->losses.e);
    prune_scores_clear(&p->scores);
    prune_points_clear(&p->result.points);
    model_close(p->m);
    text_held_clear(&p->text);
    option_list_clear(&p->s->strategies);
    option_list_clear(&p->s->keep);
    option_list_clear(&p->s->remove);
    free(p->results);
    free(p->kept);
    free(p->given);
}

int cmd_prune(int argc, char **argv) {
    static const char *const units[] = {"layer", "attn", "mlp", NULL};
    static const char *const removals[] = {"drop_source", "zero_output", NULL};
    settings s = {.run = RUN_OPTIONS_DEFAULT,
                  .unit = "layer",
                  .removal = "drop_source",
                  .prune = {.seeds = 4, .sampling = SAMPLING_DEFAULT}};
    const option_spec options[] = {
        OPTION_OUTPUT(&s.output),
        OPTION_RESUME(&s.resume),
        {.name = "unit",
         .kind = OPTION_CHOICE,
         .value = &s.unit,
         .choices = units,
         .help = "what the search removes; one at a time all three are"},
        {.name = "removal",
         .kind = OPTION_CHOICE,
         .value = &s.removal,
         .choices = removals,
         .help = "drop_source: a removed sublayer is no source; zero_output: it is one of zeros"},
        {.name = "keep",
         .kind = OPTION_LIST,
         .value = &s.keep,
         .metavar = "UNITS",
         .help = "never removed by the search: names or globs such as L0, L7.mlp, 'L*.attn'"},
        {.name = "budget",
         .kind = OPTION_SIZE,
         .value = &s.prune.budget,
         .max = CONFIG_LAYERS_MAX,
         .metavar = "N",
         .help = "most units that the search removes; 0 = half",
         .given = &s.budget_given},
        {.name = "strategies",
         .kind = OPTION_LIST,
         .value = &s.strategies,
         .metavar = "LIST",
         .help = "greedy, lowest (by every score) or lowest:SCORE, contiguous, deepest, random, or "
                 "none; all of them where it is not given",
         .given = &s.strategies_given},
        {.name = "random-seeds",
         .kind = OPTION_SIZE,
         .value = &s.prune.seeds,
         .min = 1,
         .max = 1000,
         .metavar = "N",
         .help = "orders that the strategy random tries"},
        {.name = "remove",
         .kind = OPTION_LIST,
         .value = &s.remove,
         .metavar = "UNITS",
         .help = "judge this one set, names or globs, without a search"},
        {.name = "export",
         .kind = OPTION_TEXT,
         .value = &s.export_to,
         .metavar = "FOLDER",
         .help = "write the model without the set of --remove, or without the largest set of the "
                 "first strategy in the table, as a checkpoint"},
        {.name = "eval-text",
         .kind = OPTION_TEXT,
         .value = &s.evaluation.text,
         .metavar = "FILE",
         .help = "text that judges sets; else the last half of the sequences does"},
        {.name = "eval-tokens",
         .kind = OPTION_TEXT,
         .value = &s.evaluation.tokens,
         .metavar = "FILE",
         .help = "the same as token ids"},
        {.name = "eval-sequences",
         .kind = OPTION_SIZE,
         .value = &s.evaluation.sequences,
         .max = 1 << 30,
         .metavar = "N",
         .help = "sequences of it to read, evenly spaced; 0 = all"},
        RUN_OPTIONS(&s.run),
        SAMPLING_OPTIONS(&s.prune.sampling),
        OPTION_QUIET,
        OPTION_VERBOSE,
        {0}};
    const positional_spec arguments[] = {RUN_FOLDER(&s.run), {0}};
    const command_spec spec = {
        .name = "prune",
        .summary = "which layers, attentions and MLPs a model needs, with intervals",
        .options = options,
        .positionals = arguments,
        .notes =
            "Sections of the table: RUN the model and the texts, ONE the loss without each "
            "unit by itself and what it saves, SCO cheap scores of units, AGR how well each "
            "score ranks them, ANG angles between layers, CUR sets removed together. The "
            "units of DIR keep their numbers; a score that the mode does not define is not "
            "there. With fewer than 8 units of text there are no intervals.\n\n"
            "With -o FILE results are kept in FILE.results until the table is written: after an "
            "interruption --resume goes on from them to the same table. --remove with "
            "--export needs no text."};
    const int parsed = options_parse(&spec, argc, argv);
    if (parsed != OPTIONS_RUN)
        return parsed;
    interrupt_install();
    status st;
    pruning p = {.s = &s};
    int rc = run(&p, &st);
    if (rc == INTERRUPTED)
        experiment_say_interrupted(p.losses.e);
    clear(&p);
    return rc == DONE ? EXIT_DONE : rc == INTERRUPTED ? EXIT_INTERRUPTED : command_fail(&st);
}
