/* fathom report: checkpoints and text to recordings, tables, figures and one page. */
#include "plots/report.h"

#include "runtime/base/command.h"
#include "runtime/base/interrupt.h"
#include "runtime/base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int check_options(const report_options *o, status *st) {
    if (!o->out || !*o->out)
        return status_fail(st, "where should the report go? Give a folder with -o OUT");
    if (!o->text == !o->tokens)
        return status_fail(st, "what should the models read? Give either --text FILE or --tokens "
                               "FILE");
    if (strcmp(o->text ? o->text : o->tokens, "-") == 0)
        return status_fail(st, "-: every model reads the input again; give a file, not standard "
                               "input");
    const char *input = o->text ? o->text : o->tokens;
    return access(input, R_OK) ? status_fail(st, "%s: cannot be read: %s", input, strerror(errno))
                               : DONE;
}

/* ---- Steps ---- */

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* "[ 3/21] routing mhar-h8" */
static void print_name(const report *r, size_t index) {
    const report_step *s = &r->step[index];
    char total[24];
    int width = snprintf(total, sizeof total, "%zu", r->steps);
    fprintf(stderr, "[%*zu/%s] %s%s%s", width, index + 1, total, s->kind->name, s->model ? " " : "",
            s->model ? s->model->name : "");
}

/* On a terminal the line is begun before the step and the command's own bar stands over it. */
static void print_begin(const report *r, size_t index) {
    if (option_quiet || !isatty(STDERR_FILENO))
        return;
    print_name(r, index);
    fputs(" ...", stderr);
    fflush(stderr);
}

static void end_line(void) {
    if (!option_quiet && isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
}

static void print_end(const report *r, size_t index, double seconds) {
    const report_step *s = &r->step[index];
    if (option_quiet)
        return;
    end_line();
    print_name(r, index);
    switch (s->state) {
    case STEP_DONE:
        fprintf(stderr, ": %.1f s\n", seconds);
        break;
    case STEP_KEPT:
        fputs(": up to date\n", stderr);
        break;
    case STEP_EMPTY:
        fputs(": no figure\n", stderr);
        break;
    case STEP_FAILED:
        fputs(": failed\n", stderr);
        break;
    default:
        fprintf(stderr, ": left out, %s\n", said_why(&s->said));
        break;
    }
}

static void print_said(const report_step *s) {
    bool failed = s->state == STEP_FAILED;
    if (failed)
        log_error("%s%s%s: %s", s->kind->name, s->model ? " " : "", s->model ? s->model->name : "",
                  said_why(&s->said));
    for (size_t i = 0; i < s->said.count; i++) {
        const char *text = s->said.item[i], *what = strchr(text, ' ') + 1;
        if (strncmp(text, "warning", 7) == 0 && !failed)
            log_warn("%s", what);
        else if (strncmp(text, "note", 4) == 0)
            log_detail("%s", what);
    }
}

/* Figures can fail without ending the run: nothing but the page depends on them. */
static int run_steps(report *r, bool *changed, status *st) {
    for (size_t i = 0; i < r->steps; i++) {
        report_step *s = &r->step[i];
        double begun = seconds_now();
        print_begin(r, i);
        int result = report_expand(r, s, st);
        if (!result)
            result = report_run_step(r, s, st);
        if (result == INTERRUPTED || interrupt_pending()) {
            end_line();
            log_note(
                "interrupted at %s %s; what was done is kept, and the same command goes on from "
                "there",
                s->kind->name, s->model ? s->model->name : "");
            return INTERRUPTED;
        }
        if (result)
            return result;
        print_end(r, i, seconds_now() - begun);
        if (s->state == STEP_DONE || s->state == STEP_FAILED)
            print_said(s);
        *changed = *changed || s->state == STEP_DONE || s->state == STEP_FAILED;
        if (s->state == STEP_FAILED && !step_draws(s) && !r->options.keep_going)
            return status_fail(st, "stopped at the first failure; --keep-going does what does not "
                                   "depend on it");
    }
    return DONE;
}

/* ---- The page ---- */

static size_t count_failures(const report *r) {
    size_t failed = 0;
    for (size_t m = 0; m < r->models; m++)
        failed += !r->model[m].info;
    for (size_t i = 0; i < r->steps; i++)
        failed += r->step[i].state == STEP_FAILED;
    return failed;
}

/* The page is a step that reads the stamps of the others. */
static int write_page(const report *r, status *st) {
    static const step_kind kind = {.name = "page"};
    report_step page = {.kind = &kind, .command = mem_text(command_line(), st)};
    bool fresh = false;
    char *head = NULL;
    int result = page.command ? DONE : FAILED;
    for (size_t i = 0; i < r->steps && !result; i++) {
        char *path = stamp_path(r, &r->step[i], st);
        result = path ? text_list_add(&page.reads, path, st) : FAILED;
        free(path);
    }
    head = result ? NULL : stamp_head(&page, st);
    result = head ? stamp_read(r, &page, head, &fresh, st) : FAILED;
    bool failed = count_failures(r) > 0;
    if (!result && (!fresh || failed || r->options.force)) {
        stamp_remove(r, &page);
        text_list_clear(&page.files);
        result = report_page(r, st);
        if (!result && !failed)
            result = text_list_add(&page.files, "index.html", st) || stamp_write(r, &page, head, st)
                         ? FAILED
                         : DONE;
    }
    free(head);
    free(page.command);
    text_list_clear(&page.reads);
    text_list_clear(&page.files);
    text_list_clear(&page.said);
    return result;
}

static int make_report(report *r, status *st) {
    bool changed = false;
    if (check_options(&r->options, st) || report_prepare(r, st))
        return FAILED;
    int result = report_read_models(r, st);
    if (!result)
        result = report_plan(r, st);
    if (!result && !r->steps)
        result = status_fail(st, "none of the checkpoints could be read");
    if (!result)
        result = run_steps(r, &changed, st);
    if (!result)
        result = write_page(r, st);
    if (result)
        return result;
    printf("%s/index.html\n", r->options.out);
    if (!changed)
        log_note("%s: up to date", r->options.out);
    size_t failed = count_failures(r);
    return failed ? status_fail(st, "%zu %s failed; %s/index.html says which", failed,
                                failed > 1 ? "steps" : "step", r->options.out)
                  : DONE;
}

/* "OUT/" and "OUT" are one folder; captions are read more easily without "//". */
static char *trimmed(const char *path) {
    char *copy = path ? strdup(path) : NULL;
    for (size_t end = copy ? strlen(copy) : 0; end > 1 && copy[end - 1] == '/'; end--)
        copy[end - 1] = 0;
    return copy;
}

/* What is read, and what else goes on to the commands. */
#define INPUT_OPTIONS(o)                                                                           \
    {.name = "text",                                                                               \
     .kind = OPTION_TEXT,                                                                          \
     .value = &(o)->text,                                                                          \
     .metavar = "FILE",                                                                            \
     .help = "text to read, one token a byte (models with a vocabulary of 256)"},                  \
        {.name = "tokens",                                                                         \
         .kind = OPTION_TEXT,                                                                      \
         .value = &(o)->tokens,                                                                    \
         .metavar = "FILE",                                                                        \
         .help = "token ids to read, as for `fathom capture`"},                                    \
        {.name = "context",                                                                        \
         .letter = 'c',                                                                            \
         .kind = OPTION_SIZE,                                                                      \
         .value = &(o)->context,                                                                   \
         .min = 2,                                                                                 \
         .max = 1 << 24,                                                                           \
         .metavar = "N",                                                                           \
         .help = "tokens in a sequence"},                                                          \
        {.name = "sequences",                                                                      \
         .letter = 'n',                                                                            \
         .kind = OPTION_SIZE,                                                                      \
         .value = &(o)->sequences,                                                                 \
         .max = 1 << 30,                                                                           \
         .metavar = "N",                                                                           \
         .help = "sequences to read, evenly spaced over the input; 0 = all"},                      \
        {.name = "stride",                                                                         \
         .kind = OPTION_SIZE,                                                                      \
         .value = &(o)->stride,                                                                    \
         .max = 1 << 30,                                                                           \
         .metavar = "N",                                                                           \
         .help = "tokens from one sequence's start to the next's; then the first sequences are "   \
                 "read",                                                                           \
         .given = &(o)->stride_given},                                                             \
    {                                                                                              \
        .name = "bos", .kind = OPTION_TEXT, .value = &(o)->bos, .metavar = "ID",                   \
        .help = "token id put before every sequence"                                               \
    }
#define PASSED_OPTIONS(o)                                                                          \
    {.name = "null",                                                                               \
     .kind = OPTION_SIZE,                                                                          \
     .value = &(o)->nulls,                                                                         \
     .max = 64,                                                                                    \
     .metavar = "R",                                                                               \
     .help = "random queries that routing is held against; 0 = none"},                             \
        {.name = "no-gradients",                                                                   \
         .kind = OPTION_FLAG,                                                                      \
         .value = &(o)->no_gradients,                                                              \
         .help = "leave out the backward pass and what is measured in it"},                        \
        {.name = "no-prune",                                                                       \
         .kind = OPTION_FLAG,                                                                      \
         .value = &(o)->no_prune,                                                                  \
         .help = "leave out the removal of layers, which runs each model many times"},             \
        {.name = "no-ablate",                                                                      \
         .kind = OPTION_FLAG,                                                                      \
         .value = &(o)->no_ablate,                                                                 \
         .help = "leave out the edits of routing, which run each model many times"},               \
        {.name = "routing-heads",                                                                  \
         .kind = OPTION_SIZE,                                                                      \
         .value = &(o)->routing_heads,                                                             \
         .max = 1 << 12,                                                                           \
         .metavar = "N",                                                                           \
         .help = "routing heads, where config.json lacks attnres_num_heads; 0 = as it says"},      \
        {.name = "device",                                                                         \
         .kind = OPTION_TEXT,                                                                      \
         .value = &(o)->device,                                                                    \
         .metavar = "NAME",                                                                        \
         .help = "where to compute, as for `fathom capture`"},                                     \
        {.name = "dtype",                                                                          \
         .kind = OPTION_TEXT,                                                                      \
         .value = &(o)->dtype,                                                                     \
         .metavar = "NAME",                                                                        \
         .help = "numbers to compute in, as for `fathom capture`"},                                \
        OPTION_THREADS(&(o)->threads), {                                                           \
        .name = "seed", .kind = OPTION_SEED, .value = &(o)->seed, .metavar = "N",                  \
        .help = "seed of the random numbers, passed to every command; where not given each takes " \
                "its own default",                                                                 \
        .given = &(o)->seed_given                                                                  \
    }

int cmd_report(int argc, char **argv) {
    report r = {.options = {.context = 256, .sequences = 32, .nulls = 8}};
    report_options *o = &r.options;
    const option_spec options[] = {
        {.name = "output",
         .letter = 'o',
         .kind = OPTION_TEXT,
         .value = &o->out,
         .metavar = "OUT",
         .help = "folder of the page and of all it is made from; made where missing"},
        INPUT_OPTIONS(o),
        PASSED_OPTIONS(o),
        {.name = "keep-going",
         .kind = OPTION_FLAG,
         .value = &o->keep_going,
         .help = "after a failure do what does not depend on it, and name it on the page"},
        {.name = "force",
         .kind = OPTION_FLAG,
         .value = &o->force,
         .help = "do every step again, also what is up to date"},
        OPTION_QUIET,
        OPTION_VERBOSE,
        {0}};
    const positional_spec positionals[] = {
        {.name = "DIR",
         .value = &o->dirs,
         .help = "checkpoint folders; the others are compared with the first",
         .many = true},
        {0}};
    const command_spec spec = {
        .name = "report",
        .summary = "record, measure and draw checkpoints, and put all on one page",
        .options = options,
        .positionals = positionals,
        .notes = "Runs capture, check, depth, routing, prune, ablate, compare and plot, "
                 "and writes OUT/index.html, one file that needs no network and no other file. Run "
                 "again, it "
                 "does only what a change of the program, a checkpoint, the input or an option "
                 "asks for; a file counts as changed when its size or time is another. Exit "
                 "status 2 where a step failed; missing figures alone do not end the run."};
    status st;
    const int parsed = options_parse(&spec, argc, argv);
    if (parsed != OPTIONS_RUN)
        return parsed;
    char *out = trimmed(o->out);
    o->out = out;
    interrupt_install();
    int result = make_report(&r, &st);
    if (result == INTERRUPTED)
        result = EXIT_INTERRUPTED;
    else if (result)
        result = command_fail(&st);
    report_clear(&r);
    free(out);
    return result;
}
