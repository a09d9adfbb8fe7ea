/* report_steps.c - the steps of a report, as a table; see report.h.
 *
 * A word of a command line stands for itself, or for others:
 *
 *     $model $input …    what `options` below says; none or several words
 *     :FILE              FILE in the folder of the model, or of all models together
 *     all:FILE           FILE of every model that has it
 *
 * The word after -o is what the step writes; every other file is read, and the step that writes it
 * must have been done. A new step is one entry of `step_kinds`. */
#include "plots/report.h"

#include "plots/figure.h"
#include "plots/runs.h"
#include "runtime/base/command.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

const step_kind step_kinds[] = {
    {.name = "capture",
     .each = EACH_MODEL,
     .words = {"capture", "$model", "$input", "$sequences", "$device", "$gradients", "$routing",
               "$seed", "-o", ":recording.h5"}},
    {.name = "check",
     .each = EACH_MODEL,
     .words = {"check", ":recording.h5"},
     .keeps = "check.txt"},
    {.name = "depth",
     .each = EACH_MODEL,
     .words = {"depth", ":recording.h5", "$seed", "-o", ":depth.txt"}},
    {.name = "routing",
     .each = EACH_ROUTED,
     .words = {"routing", ":recording.h5", "$seed", "-o", ":routing.txt"}},
    /* Weights of every token take most of a recording and one sequence is looked at. */
    {.name = "capture example",
     .each = EACH_ROUTED,
     .section = "TOK",
     .words = {"capture", "$model", "$input", "--sequences", "1", "$device", "--record", "weights",
               "-o", ":example.h5"}},
    {.name = "routing example",
     .each = EACH_ROUTED,
     .section = "TOK",
     .words = {"routing", ":example.h5", "-o", ":example.txt"}},
    {.name = "compare",
     .each = TOGETHER,
     .words = {"compare", "all:recording.h5", "$seed", "-o", ":compare.txt"}},

    /* In the order of the page. */
    {.name = "plot overlaid",
     .each = TOGETHER,
     .part = "All models together",
     .words = {"plot", "all:depth.txt", "-o", ":figures"}},
    {.name = "plot compare",
     .each = TOGETHER,
     .part = "Differences from the first model",
     .words = {"plot", ":compare.txt", "-o", ":figures"}},
    {.name = "plot routing",
     .each = EACH_ROUTED,
     .part = "Routing over depth",
     .words = {"plot", ":routing.txt", "-o", ":figures"}},
    {.name = "plot example",
     .each = EACH_ROUTED,
     .part = "One sequence, token by token",
     .section = "TOK",
     .words = {"plot", ":example.txt", "$figures", "-o", ":figures"}},
    {.name = "plot depth",
     .each = EACH_MODEL,
     .part = "Hidden states, gradients and loss by depth",
     .words = {"plot", ":depth.txt", "-o", ":figures"}},
};
const size_t step_kind_count = sizeof step_kinds / sizeof *step_kinds;

/* ---- Texts ---- */

int text_list_add(text_list *list, const char *text, status *st) {
    char **item = realloc(list->item, (list->count + 2) * sizeof *item);
    if (!item)
        return status_fail(st, "out of memory");
    list->item = item;
    item[list->count] = mem_text(text, st);
    item[list->count + 1] = NULL;
    if (!item[list->count])
        return FAILED;
    list->count++;
    return DONE;
}

void text_list_clear(text_list *list) {
    for (size_t i = 0; i < list->count; i++)
        free(list->item[i]);
    free(list->item);
    *list = (text_list){0};
}

char *text_make(status *st, const char *format, ...) {
    char *text = NULL;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (length >= 0)
        return text;
    status_fail(st, "out of memory");
    return NULL;
}

void report_clear(report *r) {
    for (size_t i = 0; i < r->models; i++) {
        free(r->model[i].name);
        free(r->model[i].info);
        free(r->model[i].why);
    }
    for (size_t i = 0; i < r->steps; i++) {
        report_step *s = &r->step[i];
        text_list_clear(&s->argv);
        text_list_clear(&s->reads);
        text_list_clear(&s->files);
        text_list_clear(&s->said);
        free(s->command);
        free(s->output);
    }
    free(r->model);
    free(r->step);
    option_list_clear(&r->options.dirs);
}

/* ---- Which steps ---- */

static bool figure_needs(const figure *f, const char *section) {
    for (size_t i = 0; f->sections[i]; i++)
        if (strcmp(f->sections[i], section) == 0)
            return true;
    return false;
}

static bool some_figure_needs(const char *section) {
    for (size_t i = 0; i < figure_count; i++)
        if (figure_needs(&figures[i], section))
            return true;
    return false;
}

static bool wanted(const report *r, const step_kind *kind, const report_model *model) {
    size_t readable = 0;
    for (size_t m = 0; m < r->models; m++)
        readable += r->model[m].info != NULL;
    if (kind->section && !some_figure_needs(kind->section))
        return false;
    if (kind->each == TOGETHER)
        return readable > 1 && model == r->model;
    if (!model->info)
        return false;
    return kind->each == EACH_MODEL || model->routed;
}

/* Model by model what needs one model alone, then what needs several. */
int report_plan(report *r, status *st) {
    r->step = mem_array(step_kind_count * r->models, sizeof *r->step, "steps", st);
    if (!r->step)
        return FAILED;
    for (int several = 0; several < 2; several++)
        for (size_t m = 0; m < r->models; m++)
            for (size_t k = 0; k < step_kind_count; k++) {
                const step_kind *kind = &step_kinds[k];
                if ((kind->each == TOGETHER) == several && wanted(r, kind, &r->model[m]))
                    r->step[r->steps++] = (report_step){
                        .kind = kind, .model = kind->each == TOGETHER ? NULL : &r->model[m]};
            }
    return DONE;
}

const char *folder_of(const report_model *model) {
    return model ? model->name : TOGETHER_FOLDER;
}

bool step_draws(const report_step *s) {
    return s->kind->part != NULL;
}

bool step_made(const report_step *s) {
    return s->state == STEP_DONE || s->state == STEP_KEPT;
}

const report_step *report_producer(const report *r, const report_model *model, const char *file) {
    for (size_t i = 0; i < r->steps; i++) {
        const report_step *s = &r->step[i];
        const char *name = s->output ? strrchr(s->output, '/') : NULL;
        if (s->model == model && name && strcmp(name + 1, file) == 0 && !step_draws(s))
            return s;
    }
    return NULL;
}

/* ---- Words ---- */

static int add_option(text_list *argv, const char *name, const char *value, status *st) {
    return value && (text_list_add(argv, name, st) || text_list_add(argv, value, st)) ? FAILED
                                                                                      : DONE;
}

static int add_number(text_list *argv, const char *name, uint64_t value, status *st) {
    char digits[24];
    snprintf(digits, sizeof digits, "%" PRIu64, value);
    return add_option(argv, name, digits, st);
}

/* The files of a checkpoint, in the order of their names: what it reads may be any of them. */
static int read_checkpoint(report_step *s, const char *dir, status *st) {
    struct dirent **entry;
    int count = scandir(dir, &entry, NULL, alphasort), result = DONE;
    for (int i = 0; i < count; i++) {
        const char *end = strrchr(entry[i]->d_name, '.');
        if (!result && end && (strcmp(end, ".json") == 0 || strcmp(end, ".safetensors") == 0)) {
            char *path = text_make(st, "%s/%s", dir, entry[i]->d_name);
            result = path ? text_list_add(&s->reads, path, st) : FAILED;
            free(path);
        }
        free(entry[i]);
    }
    if (count >= 0)
        free(entry);
    return result;
}

static int put_model(const report *r, report_step *s, status *st) {
    if (text_list_add(&s->argv, s->model->dir, st) || read_checkpoint(s, s->model->dir, st))
        return FAILED;
    size_t heads = r->options.routing_heads;
    return heads ? add_number(&s->argv, "--routing-heads", heads, st) : DONE;
}

static int put_input(const report *r, report_step *s, status *st) {
    const report_options *o = &r->options;
    if (add_option(&s->argv, "--text", o->text, st) ||
        add_option(&s->argv, "--tokens", o->tokens, st) ||
        text_list_add(&s->reads, o->text ? o->text : o->tokens, st) ||
        add_number(&s->argv, "--context", o->context, st))
        return FAILED;
    if (o->stride_given && add_number(&s->argv, "--stride", o->stride, st))
        return FAILED;
    return add_option(&s->argv, "--bos", o->bos, st);
}

static int put_sequences(const report *r, report_step *s, status *st) {
    return add_number(&s->argv, "--sequences", r->options.sequences, st);
}

static int put_device(const report *r, report_step *s, status *st) {
    return add_option(&s->argv, "--device", r->options.device, st) ||
                   add_option(&s->argv, "--dtype", r->options.dtype, st)
               ? FAILED
               : DONE;
}

static int put_gradients(const report *r, report_step *s, status *st) {
    return r->options.no_gradients ? DONE : text_list_add(&s->argv, "--gradients", st);
}

static int put_routing(const report *r, report_step *s, status *st) {
    if (!s->model->routed)
        return DONE;
    if (r->options.nulls && add_number(&s->argv, "--null", r->options.nulls, st))
        return FAILED;
    return add_option(&s->argv, "--record", "no-weights,pairs", st);
}

static int put_seed(const report *r, report_step *s, status *st) {
    return r->options.seed_given ? add_number(&s->argv, "--seed", r->options.seed, st) : DONE;
}

/* The figures that need the step's section. */
static int put_figures(const report *r, report_step *s, status *st) {
    (void)r;
    for (size_t i = 0; i < figure_count; i++)
        if (figure_needs(&figures[i], s->kind->section) &&
            add_option(&s->argv, "--figure", figures[i].name, st))
            return FAILED;
    return DONE;
}

static const struct {
    const char *word;
    int (*put)(const report *r, report_step *s, status *st);
} options[] = {{"$model", put_model},         {"$input", put_input},
               {"$sequences", put_sequences}, {"$device", put_device},
               {"$gradients", put_gradients}, {"$routing", put_routing},
               {"$seed", put_seed},           {"$figures", put_figures}};

static char *report_path(const report *r, const report_model *model, const char *file, status *st) {
    return text_make(st, "%s/%s/%s", r->options.out, folder_of(model), file);
}

/* A file that an earlier step writes. */
static int read_file(report *r, report_step *s, const report_model *model, const char *file,
                     status *st) {
    const report_step *from = report_producer(r, model, file);
    char *path = report_path(r, model, file, st);
    int result = path ? DONE : FAILED;
    if (!result && (!from || !step_made(from))) {
        char *why = text_make(st, "note: there is no %s", path);
        s->state = STEP_LEFT_OUT;
        result = why ? text_list_add(&s->said, why, st) : FAILED;
        free(why);
    }
    if (!result)
        result =
            text_list_add(&s->argv, path, st) || text_list_add(&s->reads, path, st) ? FAILED : DONE;
    free(path);
    return result;
}

/* A single one is no comparison, and a figure shows no more than RUNS_MAX tables. */
static int read_all(report *r, report_step *s, const char *file, status *st) {
    size_t found = 0, most = step_draws(s) ? RUNS_MAX : r->models;
    for (size_t m = 0; m < r->models && found < most; m++) {
        const report_step *from = report_producer(r, &r->model[m], file);
        if (!from || !step_made(from))
            continue;
        found++;
        if (read_file(r, s, &r->model[m], file, st))
            return FAILED;
    }
    if (found > 1)
        return DONE;
    s->state = STEP_LEFT_OUT;
    return text_list_add(&s->said, "note: fewer than two models can be compared", st);
}

static int put_word(report *r, report_step *s, const char *word, bool output, status *st) {
    if (output) {
        s->output = report_path(r, s->model, word + 1, st);
        return s->output ? text_list_add(&s->argv, s->output, st) : FAILED;
    }
    if (*word == '$')
        for (size_t i = 0; i < sizeof options / sizeof *options; i++)
            if (strcmp(options[i].word, word) == 0)
                return options[i].put(r, s, st);
    if (*word == ':')
        return read_file(r, s, s->model, word + 1, st);
    if (strncmp(word, "all:", 4) == 0)
        return read_all(r, s, word + 4, st);
    return text_list_add(&s->argv, word, st);
}

int report_expand(report *r, report_step *s, status *st) {
    const char *const *words = s->kind->words;
    bool computes = false;
    for (size_t i = 0; words[i]; i++) {
        if (put_word(r, s, words[i], i && strcmp(words[i - 1], "-o") == 0, st))
            return FAILED;
        computes = computes || strcmp(words[i], "$input") == 0;
    }
    if (s->kind->keeps) {
        s->output = report_path(r, s->model, s->kind->keeps, st);
        if (!s->output)
            return FAILED;
    }
    s->command = command_text((int)s->argv.count, s->argv.item);
    if (!s->command)
        return status_fail(st, "out of memory");
    /* Results do not depend on it, so that the caption and the stamp need not say it. */
    if (computes && r->options.threads)
        return add_number(&s->argv, "--threads", r->options.threads, st);
    return DONE;
}
