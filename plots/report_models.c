/* report_models.c - the checkpoints of a report: their names, their folders, what they are; see
 * report.h. */
#include "plots/report.h"

#include "runtime/base/command.h"
#include "runtime/base/interrupt.h"
#include "runtime/base/log.h"
#include "runtime/base/output.h"

#include <stdlib.h>
#include <string.h>

/* ---- Names and folders ---- */

static bool name_taken(const report *r, const char *name) {
    static const char *const reserved[] = {TOGETHER_FOLDER, "index.html", ".report"};
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
        if (strcmp(reserved[i], name) == 0)
            return true;
    for (size_t m = 0; m < r->models && r->model[m].name; m++)
        if (strcmp(r->model[m].name, name) == 0)
            return true;
    return false;
}

/* The last part of the path, with a number where another model has it already. */
static int name_model(const report *r, report_model *model, status *st) {
    char *full = realpath(model->dir, NULL);
    const char *given = model->dir + strlen(model->dir), *end;
    while (given > model->dir && given[-1] == '/')
        given--;
    end = given;
    while (given > model->dir && given[-1] != '/')
        given--;
    size_t length = (size_t)(end - given);
    bool dots = length == 0 || (*given == '.' && (length == 1 || (length == 2 && given[1] == '.')));
    if (dots && full && full[1]) {
        given = strrchr(full, '/') + 1;
        length = strlen(given);
    } else if (dots) {
        given = "model";
        length = 5;
    }
    char *base = text_make(st, "%.*s", (int)length, given);
    for (char *at = base; at && *at; at++)
        if ((unsigned char)*at < 32 || *at == 127)
            *at = '_';
    char *name = base ? mem_text(base, st) : NULL;
    for (size_t number = 2; name && name_taken(r, name); number++) {
        free(name);
        name = text_make(st, "%s-%zu", base, number);
    }
    free(base);
    free(full);
    model->name = name;
    return name ? DONE : FAILED;
}

/* A folder in OUT; a model's must not be the checkpoint itself. */
static int make_folder(const report *r, const report_model *model, status *st) {
    char *path = text_make(st, "%s/%s", r->options.out, folder_of(model));
    int result = path ? folder_make(path, st) : FAILED;
    char *made = result ? NULL : realpath(path, NULL);
    char *from = model ? realpath(model->dir, NULL) : NULL;
    if (!result && made && from && strcmp(made, from) == 0)
        result = status_fail(st,
                             "%s: is the checkpoint, and would also be the folder of what is made "
                             "from it; give another folder with -o",
                             path);
    free(made);
    free(from);
    free(path);
    return result;
}

/* A page that something else wrote is not replaced. */
static int check_page(const report *r, status *st) {
    char head[1024] = "";
    char *path = text_make(st, "%s/index.html", r->options.out);
    FILE *in = path ? fopen(path, "re") : NULL;
    int result = path ? DONE : FAILED;
    if (in) {
        head[fread(head, 1, sizeof head - 1, in)] = 0;
        fclose(in);
        if (!strstr(head, "content=\"fathom report"))
            result = status_fail(st,
                                 "%s: was not written by `fathom report` and is not replaced; give "
                                 "another folder with -o",
                                 path);
    }
    free(path);
    return result;
}

int report_prepare(report *r, status *st) {
    report_options *o = &r->options;
    char *hidden = text_make(st, "%s/.report", o->out);
    int result =
        hidden && !folder_make(o->out, st) && !check_page(r, st) ? folder_make(hidden, st) : FAILED;
    free(hidden);
    r->model = result ? NULL : mem_array(o->dirs.count, sizeof *r->model, "models", st);
    if (!r->model)
        return FAILED;
    r->models = o->dirs.count;
    for (size_t m = 0; m < r->models; m++)
        r->model[m].dir = o->dirs.item[m];
    for (size_t m = 0; m < r->models; m++)
        if (name_model(r, &r->model[m], st) || make_folder(r, &r->model[m], st))
            return FAILED;
    return r->models > 1 ? make_folder(r, NULL, st) : DONE;
}

/* ---- Models ---- */

static bool routes(const char *info) {
    const char *mode = strstr(info, "\nmode ");
    return mode && strncmp(mode + 6 + strspn(mode + 6, " "), "none\n", 5) != 0;
}

static int read_model(report *r, report_model *model, status *st) {
    text_list argv = {0}, said = {0};
    char heads[24];
    int code = EXIT_WRONG;
    snprintf(heads, sizeof heads, "%zu", r->options.routing_heads);
    int result =
        text_list_add(&argv, "info", st) || text_list_add(&argv, model->dir, st) ||
                (r->options.routing_heads &&
                 (text_list_add(&argv, "--routing-heads", st) || text_list_add(&argv, heads, st)))
            ? FAILED
            : report_command(r, &argv, &code, &model->info, &said, st);
    if (!result && code) {
        free(model->info);
        model->info = NULL;
        model->why = mem_text(said_why(&said), st);
        log_error("%s", said_why(&said));
        if (!r->options.keep_going || !model->why)
            result = status_fail(st, "%s: cannot be read; --keep-going leaves it out", model->dir);
    } else if (!result) {
        model->routed = routes(model->info);
    }
    text_list_clear(&argv);
    text_list_clear(&said);
    return result;
}

int report_read_models(report *r, status *st) {
    for (size_t m = 0; m < r->models; m++) {
        int result = read_model(r, &r->model[m], st);
        if (result || interrupt_pending())
            return result ? result : INTERRUPTED;
    }
    return DONE;
}
