/* report_run.c - doing one step of a report; see report.h. */
#include "plots/report.h"

#include "plots/figure.h"
#include "runtime/base/command.h"
#include "runtime/base/interrupt.h"
#include "runtime/base/log.h"
#include "runtime/base/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Running a command ---- */

typedef struct listener {
    text_list *said;
    status *st;
    int result;
} listener;

/* Notes are of interest where they say which figure was left out; the rest repeats what the page
 * shows. */
static void hear(void *context, log_kind kind, const char *text) {
    static const char *const kind_name[] = {"error", "warning", "note", "detail"};
    listener *l = context;
    if (kind == LOG_DETAIL || l->result)
        return;
    char *line = text_make(l->st, "%s: %s", kind_name[kind], text);
    for (char *at = line; at && *at; at++)
        if (*at == '\n')
            *at = ' ';
    l->result = line ? text_list_add(l->said, line, l->st) : FAILED;
    free(line);
}

const char *said_why(const text_list *said) {
    for (size_t i = 0; i < said->count; i++)
        if (strncmp(said->item[i], "error: ", 7) == 0)
            return said->item[i] + 7;
    for (size_t i = 0; i < said->count; i++)
        if (strncmp(said->item[i], "warning: ", 9) == 0)
            return said->item[i] + 9;
    return said->count ? strchr(said->item[0], ' ') + 1 : "";
}

/* Everything in `file`, as text to be freed. */
static char *read_back(int file, status *st) {
    off_t end = lseek(file, 0, SEEK_END);
    char *text = mem_array(end < 0 ? 1 : (size_t)end + 1, 1, "what a command printed", st);
    ssize_t got = 0;
    for (off_t at = 0; text && at < end; at += got) {
        got = pread(file, text + at, (size_t)(end - at), at);
        if (got <= 0)
            break;
    }
    return text;
}

/* Standard output goes to `file` while the command runs. */
static int run_into(int file, text_list *argv, int *code, text_list *said, status *st) {
    fflush(stdout);
    int before = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    if (before < 0 || dup2(file, STDOUT_FILENO) < 0) {
        if (before >= 0)
            close(before);
        return status_fail(st, "standard output: cannot be redirected: %s", strerror(errno));
    }
    listener l = {.said = said, .st = st};
    log_watch(hear, &l);
    *code = command_run((int)argv->count, argv->item);
    log_watch(NULL, NULL);
    int result = l.result;
    if (fflush(stdout) || ferror(stdout)) {
        clearerr(stdout);
        result = status_fail(st, "what `fathom %s` prints could not be kept: %s", argv->item[0],
                             strerror(errno));
    }
    if (dup2(before, STDOUT_FILENO) < 0 && !result)
        result = status_fail(st, "standard output: %s", strerror(errno));
    close(before);
    return result;
}

int report_command(const report *r, text_list *argv, int *code, char **printed, text_list *said,
                   status *st) {
    *printed = NULL;
    char *path = text_make(st, "%s/.report/printed", r->options.out);
    if (!path)
        return FAILED;
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    int result = DONE;
    if (file < 0)
        result = status_fail(st, "%s: cannot be written: %s", path, strerror(errno));
    else
        unlink(path);
    if (!result)
        result = run_into(file, argv, code, said, st);
    if (!result) {
        *printed = read_back(file, st);
        result = *printed ? DONE : FAILED;
    }
    if (file >= 0)
        close(file);
    free(path);
    return result;
}

/* ---- What a step made ---- */

static bool has(const text_list *list, const char *text) {
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->item[i], text) == 0)
            return true;
    return false;
}

static bool ends_in(const char *text, const char *end) {
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

/* `path` as it stands below OUT. */
static int add_made(const report *r, report_step *s, const char *path, status *st) {
    size_t length = strlen(r->options.out);
    bool below = strncmp(path, r->options.out, length) == 0 && path[length] == '/';
    return text_list_add(&s->files, below ? path + length + 1 : path, st);
}

/* NAME.gp draws NAME.dat, which `fathom plot` does not list. */
static int add_data(const report *r, report_step *s, const char *script, status *st) {
    char *path = text_make(st, "%.*s.dat", (int)(strlen(script) - 3), script);
    int result = path ? add_made(r, s, path, st) : FAILED;
    free(path);
    return result;
}

/* The files that `fathom plot` lists. Without gnuplot there are scripts alone, which is not what
 * was asked. */
static int take_figures(const report *r, report_step *s, char *printed, status *st) {
    size_t images = 0, scripts = 0;
    for (char *line = strtok(printed, "\n"); line; line = strtok(NULL, "\n")) {
        images += ends_in(line, ".svg");
        scripts += ends_in(line, ".gp");
        if (add_made(r, s, line, st) || (ends_in(line, ".gp") && add_data(r, s, line, st)))
            return FAILED;
    }
    if (images < scripts)
        s->state = STEP_FAILED;
    return DONE;
}

static int keep_printed(const report *r, report_step *s, const char *printed, status *st) {
    output *out;
    if (output_open(s->output, &out, st))
        return FAILED;
    fputs(printed, output_stream(out));
    return output_commit(out, st) ? FAILED : add_made(r, s, s->output, st);
}

/* What a check found wrong. */
static int add_findings(report_step *s, const char *printed, status *st) {
    for (const char *line = printed; *line;) {
        size_t length = strcspn(line, "\n");
        if (strncmp(line, "FAIL", 4) == 0) {
            char *text = text_make(st, "error: %.*s", (int)length, line);
            int result = text ? text_list_add(&s->said, text, st) : FAILED;
            free(text);
            if (result)
                return FAILED;
        }
        line += length + (line[length] == '\n');
    }
    return DONE;
}

static int take_results(const report *r, report_step *s, int code, char *printed, status *st) {
    s->state = code == EXIT_DONE ? STEP_DONE : STEP_FAILED;
    if (code == EXIT_NO && add_findings(s, printed, st))
        return FAILED;
    if (step_draws(s))
        return take_figures(r, s, printed, st);
    if (s->kind->keeps)
        return keep_printed(r, s, printed, st);
    return s->state == STEP_DONE ? add_made(r, s, s->output, st) : DONE;
}

/* Figures of an earlier run that this one did not draw. Nothing outside OUT, whatever a stamp says.
 */
static void remove_old(const report *r, const text_list *old, const text_list *new) {
    status st;
    for (size_t i = 0; i < old->count; i++) {
        if (strstr(old->item[i], "../"))
            continue;
        char *path =
            has(new, old->item[i]) ? NULL : text_make(&st, "%s/%s", r->options.out, old->item[i]);
        if (path)
            unlink(path);
        free(path);
    }
}

/* ---- One step ---- */

/* Whether some figure could be drawn of the tables; one that cannot be read is left to the command,
 * which says so. */
static bool can_draw(const report_step *s) {
    bool some = s->reads.count == 0;
    for (size_t i = 0; i < s->reads.count && !some; i++) {
        status st;
        table *from;
        if (table_read(s->reads.item[i], &from, &st))
            return true;
        for (size_t k = 0; k < figure_count && !some; k++)
            some = figure_lacks(&figures[k], from) == NULL;
        table_free(from);
    }
    return some;
}

static int do_step(const report *r, report_step *s, const char *head, status *st) {
    text_list old = s->files;
    char *printed = NULL;
    int code = 0;
    s->files = (text_list){0};
    text_list_clear(&s->said);
    stamp_remove(r, s);
    int result = report_command(r, &s->argv, &code, &printed, &s->said, st);
    if (!result && (code == EXIT_INTERRUPTED || interrupt_pending()))
        result = INTERRUPTED;
    if (!result)
        result = take_results(r, s, code, printed, st);
    if (!result && s->state == STEP_DONE) {
        remove_old(r, &old, &s->files);
        result = stamp_write(r, s, head, st);
    }
    text_list_clear(&old);
    free(printed);
    return result;
}

int report_run_step(const report *r, report_step *s, status *st) {
    if (s->state == STEP_LEFT_OUT)
        return DONE;
    if (step_draws(s) && !can_draw(s)) {
        s->state = STEP_EMPTY;
        return DONE;
    }
    bool fresh;
    char *head = stamp_head(s, st);
    int result = head ? stamp_read(r, s, head, &fresh, st) : FAILED;
    if (!result && fresh && !r->options.force)
        s->state = STEP_KEPT;
    else if (!result)
        result = do_step(r, s, head, st);
    free(head);
    return result;
}
