/* fathom compare: recordings of several models on the same tokens, each against the first, with
 * paired intervals, as a text table. */
#include "analyze/compare.h"
#include "analyze/table.h"
#include "runtime/base/command.h"
#include "runtime/base/log.h"
#include "runtime/base/options.h"
#include "runtime/base/output.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct settings {
    option_list files;
    const char *output;
    bool other_tokens;
    sampling sampling;
} settings;

void compare_put(const comparison *c, const bootstrap *b, compared_draws reference,
                 compared_draws value, double *scratch) {
    interval x;
    for (size_t k = 0; k < c->draws; k++)
        scratch[k] =
            c->paired ? value.draw[k * value.stride] - reference.draw[k * reference.stride] : NAN;
    bootstrap_intervals(b, scratch, 1, &x);
    table_real(c->out, reference.draw[0]);
    table_real(c->out, value.draw[0]);
    table_real(c->out, x.value);
    table_real(c->out, x.low);
    table_real(c->out, x.high);
}

/* ---- the same tokens ---- */

/* Whether a sequence has the same tokens; `why` says what differs. */
static int see_sequence(const compared_run *a, const compared_run *b, size_t i, int32_t *id,
                        int32_t *other, bool *same, status *why, status *st) {
    const recording_about *x = a->about, *y = b->about;
    *same = x->length[i] == y->length[i];
    if (!*same)
        status_fail(why, "%s: sequence %zu has %d tokens, expected %d as in %s", y->path, i,
                    y->length[i], x->length[i], x->path);
    else if (recording_read_tokens(a->rec, i, id, NULL, st) ||
             recording_read_tokens(b->rec, i, other, NULL, st))
        return FAILED;
    for (int32_t t = 0; *same && t < x->length[i]; t++)
        if (id[t] != other[t]) {
            *same = false;
            status_fail(why, "%s: sequence %zu position %d has token %d, expected %d as in %s",
                        y->path, i, t, other[t], id[t], x->path);
        }
    return DONE;
}

/* Whether two runs can be paired: all tokens are the same, and which of them enter the means. */
static int see_tokens(const compared_run *a, const compared_run *b, bool *same, status *why,
                      status *st) {
    const recording_about *x = a->about, *y = b->about;
    *same = x->sequences == y->sequences && x->skip_first == y->skip_first;
    if (x->sequences != y->sequences)
        status_fail(why, "%s: %zu sequences, expected %zu as in %s", y->path, y->sequences,
                    x->sequences, x->path);
    else if (x->skip_first != y->skip_first)
        status_fail(why,
                    "%s: its means leave out %zu positions (skip_first), expected %zu as in %s",
                    y->path, y->skip_first, x->skip_first, x->path);
    int32_t *id = mem_array(x->positions, sizeof *id, "ids", st);
    int32_t *other = mem_array(y->positions, sizeof *other, "ids", st);
    int rc = id && other ? DONE : FAILED;
    for (size_t i = 0; !rc && *same && i < x->sequences; i++)
        rc = see_sequence(a, b, i, id, other, same, why, st);
    free(id);
    free(other);
    return rc;
}

/* ---- runs ---- */

static int open_run(compared_run *run, const char *path, status *st) {
    if (recording_open(path, &run->rec, st))
        return FAILED;
    const recording_about *about = run->about = recording_about_of(run->rec);
    run->routes = strcmp(about->residual_mode, "none") != 0 && about->sources > 0 &&
                  (about->has_sums || about->has_weights);
    if (!about->complete)
        log_warn("%s: incomplete: only its finished sequences count", path);
    return recorded_sites_init(&run->sites, about, st);
}

/* Resamples of a run's own sequences. */
static int resample(const comparison *c, compared_run *run, status *st) {
    const recording_about *about = run->about;
    size_t *unit = NULL, units, n = about->sequences;
    double *weight = mem_array(n, sizeof *weight, "tokens", st);
    double *half = mem_array(n, sizeof *half, "tokens", st);
    int rc = FAILED;
    if (!weight || !half || sampling_units(about, &unit, &units, st))
        goto done;
    for (size_t i = 0; i < n; i++)
        weight[i] = (double)recording_sum_tokens(run->rec, i);
    if (sampling_draw(&c->sampling, n, weight, unit, units, &run->routed, st)) {
        status_prefix(st, "%s", about->path);
        goto done;
    }
    for (size_t h = 0; h < 2; h++) {
        double total = 0;
        for (size_t i = 0; i < n; i++)
            total += half[i] = unit[i] % 2 == h ? weight[i] : 0;
        if (total > 0 && sampling_draw(&c->sampling, n, half, unit, units, &run->half[h], st))
            goto done;
    }
    double total = 0;
    for (size_t i = 0; i < n; i++)
        total += weight[i] = about->length[i] > 1 ? (double)(about->length[i] - 1) : 0;
    rc = total > 0 ? sampling_draw(&c->sampling, n, weight, unit, units, &run->scored, st) : DONE;
done:
    free(unit);
    free(weight);
    free(half);
    return rc;
}

static int read_losses(compared_run *run, status *st) {
    size_t n = run->about->sequences;
    double *weight = mem_array(n, sizeof *weight, "losses", st);
    run->loss = mem_array(n, sizeof *run->loss, "losses", st);
    int rc = weight && run->loss ? DONE : FAILED;
    if (!rc && run->about->has_loss)
        rc = sampling_losses(run->rec, weight, run->loss, st);
    free(weight);
    return rc;
}

static int open_all(comparison *c, const settings *chosen, status *st) {
    c->run = mem_array(c->runs, sizeof *c->run, "recordings", st);
    if (!c->run)
        return FAILED;
    c->paired = true;
    for (size_t i = 0; i < c->runs; i++) {
        compared_run *run = &c->run[i];
        bool same;
        status why;
        if (open_run(run, chosen->files.item[i], st) || read_losses(run, st) ||
            see_tokens(&c->run[0], run, &same, &why, st))
            return FAILED;
        if (!same && !chosen->other_tokens)
            return status_fail(st,
                               "%.1500s; compare recordings of the same tokens, or give "
                               "--allow-different-tokens for values without differences",
                               why.text);
        if (!same)
            log_warn("%s: not paired, no differences", why.text);
        c->paired = c->paired && same;
    }
    for (size_t i = 0; i < c->runs; i++) {
        compared_run *run = &c->run[i], *first = &c->run[0];
        if (i == 0 || !c->paired) {
            if (resample(c, run, st))
                return FAILED;
            continue;
        }
        run->routed = first->routed;
        run->scored = first->scored;
        run->half[0] = first->half[0];
        run->half[1] = first->half[1];
    }
    return DONE;
}

static void close_all(comparison *c) {
    for (size_t i = 0; c->run && i < c->runs; i++) {
        compared_run *run = &c->run[i];
        if (i == 0 || !c->paired) {
            bootstrap_free(run->routed);
            bootstrap_free(run->scored);
            bootstrap_free(run->half[0]);
            bootstrap_free(run->half[1]);
        }
        recorded_sites_clear(&run->sites);
        free(run->loss);
        recording_close(run->rec);
    }
    free(c->run);
}

/* ---- the table ---- */

static void put_assumptions(const comparison *c) {
    FILE *out = c->out;
    const recording_about *first = c->run[0].about;
    table_comment(out, "Every run is held against run 0 of the list RUN, its reference.");
    if (c->paired)
        table_comment(out, "Paired: all runs saw the same tokens and share the resamples; low and "
                           "high are of the difference.");
    else
        table_comment(out, "Not paired: the runs saw different tokens, so there are values only, "
                           "and every difference is nan.");
    table_comment(out, "Intervals cover the choice of text, not training seeds: no claim that one "
                       "model beats another from one seed each.");
    if (first->skip_first)
        table_comment(out,
                      "Means over the tokens of a sequence from position %zu on (skip_first); "
                      "the loss over all predicted tokens.",
                      first->skip_first);
    sampling_say(out, &c->sampling, first->sequences, c->run[0].routed);
    for (size_t i = 0; i < c->runs; i++) {
        const compared_run *run = &c->run[i];
        if (!run->about->complete)
            table_comment(out, "Run %zu is incomplete: only its finished sequences count.", i);
        if (!run->routes)
            table_comment(out,
                          "Run %zu does not route over depth (residual mode %s): no routing "
                          "rows with it.",
                          i, run->about->residual_mode);
        if (!run->about->has_loss || !run->scored)
            table_comment(out, "Run %zu has no losses: no loss row with it.", i);
        if (!run->about->has_hidden)
            table_comment(out, "Run %zu has no magnitudes: no DEP rows with it.", i);
    }
}

static void put_runs(const comparison *c) {
    table_section(
        c->out, "RUN", "the recordings",
        "run, path, model_path, model_sha256, tokens_sha256, residual_mode, routing_heads, "
        "sites, sources, sequences, complete",
        "1");
    for (size_t i = 0; i < c->runs; i++) {
        const recording_about *about = c->run[i].about;
        table_row(c->out, "RUN");
        table_size(c->out, i);
        table_text(c->out, about->path);
        table_text(c->out, about->model_path);
        table_text(c->out, about->model_sha256);
        table_text(c->out, about->tokens_sha256);
        table_text(c->out, about->residual_mode);
        table_size(c->out, about->heads);
        table_size(c->out, about->sites);
        table_size(c->out, about->sources);
        table_size(c->out, about->sequences);
        table_size(c->out, about->complete);
        table_end(c->out);
    }
}

static bool has_loss(const compared_run *run) {
    return run->about->has_loss && run->scored;
}

static int put_losses(const comparison *c, status *st) {
    double *draws[2], *scratch = mem_array(c->draws, sizeof *scratch, "losses", st);
    draws[0] = mem_array(c->draws, sizeof(double), "losses", st);
    draws[1] = mem_array(c->draws, sizeof(double), "losses", st);
    int rc = scratch && draws[0] && draws[1] ? DONE : FAILED;
    const compared_run *first = &c->run[0];
    table_section(c->out, "LOS", "mean loss of the predicted tokens", "run, " COMPARED_COLUMNS,
                  "nats/token");
    if (!rc && has_loss(first))
        rc = bootstrap_means(first->scored, first->loss, 1, NULL, 1, draws[0], st);
    for (size_t i = 1; !rc && has_loss(first) && i < c->runs; i++) {
        const compared_run *run = &c->run[i];
        if (!has_loss(run))
            continue;
        rc = bootstrap_means(run->scored, run->loss, 1, NULL, 1, draws[1], st);
        if (rc)
            break;
        table_row(c->out, "LOS");
        table_size(c->out, i);
        compare_put(c, first->scored, (compared_draws){draws[0], 1}, (compared_draws){draws[1], 1},
                    scratch);
        table_end(c->out);
    }
    free(draws[0]);
    free(draws[1]);
    free(scratch);
    return rc;
}

static int write_table(comparison *c, const char *path, status *st) {
    output *file;
    if (output_open(path, &file, st))
        return FAILED;
    c->out = output_stream(file);
    const recording_about *first = c->run[0].about;
    table_head(c->out, command_line(), first->model_sha256, first->tokens_sha256);
    put_assumptions(c);
    put_runs(c);
    if (put_losses(c, st) || compare_depth_write(c, st) || compare_routing_write(c, st)) {
        output_abandon(file);
        return FAILED;
    }
    return output_commit(file, st);
}

static int run(const settings *chosen, status *st) {
    comparison c = {.sampling = chosen->sampling,
                    .draws = 1 + chosen->sampling.resamples,
                    .runs = chosen->files.count};
    if (c.runs < 2)
        return status_fail(st, "%s: nothing to compare it with: name at least two recordings",
                           chosen->files.item[0]);
    int rc = open_all(&c, chosen, st);
    if (!rc)
        rc = write_table(&c, chosen->output, st);
    close_all(&c);
    return rc;
}

int cmd_compare(int argc, char **argv) {
    settings chosen = {.sampling = SAMPLING_DEFAULT};
    const option_spec options[] = {
        OPTION_OUTPUT(&chosen.output),
        {.name = "allow-different-tokens",
         .kind = OPTION_FLAG,
         .value = &chosen.other_tokens,
         .help = "go on where the recordings are of different tokens: values side by side, "
                 "nothing paired, no differences"},
        SAMPLING_OPTIONS(&chosen.sampling),
        OPTION_QUIET,
        OPTION_VERBOSE,
        {0}};
    const positional_spec arguments[] = {{.name = "FILE",
                                          .value = &chosen.files,
                                          .help = "recordings of the same tokens; the first is the "
                                                  "reference",
                                          .many = true},
                                         {0}};
    const command_spec spec = {
        .name = "compare",
        .summary = "several recordings of the same tokens, each against the first",
        .options = options,
        .positionals = arguments,
        .notes = "Sections of the table: RUN the recordings, LOS loss, DEP magnitudes, CST CSO CPR "
                 "routing statistics by site, source and pair, CAV their means over sites, RJS "
                 "divergence of two runs of one mode beside that of the halves of each. Intervals "
                 "cover the choice of text, not training seeds."};
    const int parsed = options_parse(&spec, argc, argv);
    if (parsed != OPTIONS_RUN)
        return parsed;
    status st;
    int code = run(&chosen, &st) ? command_fail(&st) : EXIT_DONE;
    option_list_clear(&chosen.files);
    return code;
}
