#include "analyze/experiment_results.h"

#include "runtime/base/log.h"
#include "runtime/base/output.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char magic[] = "# fathom results 1";

/* ---- in memory ---- */

variant_scores *results_find(const results *r, const char *name) {
    for (size_t i = 0; i < r->count; i++)
        if (strcmp(r->list[i].name, name) == 0)
            return &r->list[i];
    return NULL;
}

static void scores_clear(variant_scores *s) {
    free(s->name);
    free(s->loss);
    free(s->kl);
    free(s->have);
    free(s->asked);
}

variant_scores *results_of(results *r, const char *name, status *st) {
    variant_scores *s = results_find(r, name);
    if (s)
        return s;
    if (r->count == r->room) {
        const size_t room = r->room ? 2 * r->room : 64;
        variant_scores *list = realloc(r->list, room * sizeof *list);
        if (!list) {
            status_fail(st, "results: not enough memory");
            return NULL;
        }
        r->list = list;
        r->room = room;
    }
    s = &r->list[r->count];
    *s = (variant_scores){.name = mem_text(name, st),
                          .loss = mem_array(r->sequences, sizeof *s->loss, "results", st),
                          .kl = mem_array(r->sequences, sizeof *s->kl, "results", st),
                          .have = mem_array(r->sequences, sizeof *s->have, "results", st),
                          .asked = mem_array(r->sequences, sizeof *s->asked, "results", st)};
    if (!s->name || !s->loss || !s->kl || !s->have || !s->asked) {
        scores_clear(s);
        return NULL;
    }
    for (size_t i = 0; i < r->sequences; i++)
        s->kl[i] = NAN;
    r->count++;
    return s;
}

/* ---- reading ---- */

/* Cuts `line` at tabs into `cell` [count]; false unless there are exactly that many. */
static bool split(char *line, char **cell, size_t count) {
    for (size_t i = 0; i < count; i++) {
        cell[i] = line;
        char *tab = strchr(line, '\t');
        if ((tab != NULL) != (i + 1 < count))
            return false;
        if (tab) {
            *tab = 0;
            line = tab + 1;
        }
    }
    return true;
}

static bool number(const char *text, double *value) {
    char *end;
    *value = strtod(text, &end);
    return end != text && *end == 0;
}

static int take_head(results *r, char *line, const char *tokens_sha256, status *st) {
    char *cell[4], sequences[32];
    snprintf(sequences, sizeof sequences, "%zu", r->sequences);
    if (!split(line, cell, 4) || strcmp(cell[0], magic) != 0)
        return status_fail(st, "%s: line 1: no results of this program", r->path);
    if (strcmp(cell[1], sequences) != 0 || strcmp(cell[2], tokens_sha256) != 0)
        return status_fail(st,
                           "%s: made from %s sequences, tokens SHA256 %.12s; this run has %s, "
                           "%.12s: resume with the same tokens, or remove the file",
                           r->path, cell[1], cell[2], sequences, tokens_sha256);
    r->command = mem_text(cell[3], st);
    return r->command ? DONE : FAILED;
}

static int take_line(results *r, char *line, size_t at, status *st) {
    char *cell[4];
    double sequence, loss, kl;
    if (!split(line, cell, 4) || !number(cell[1], &sequence) || !number(cell[2], &loss) ||
        !number(cell[3], &kl) || !(sequence >= 0 && sequence < (double)r->sequences))
        return status_fail(st, "%s: line %zu: expected NAME, SEQUENCE below %zu, LOSS, KL", r->path,
                           at, r->sequences);
    variant_scores *s = results_of(r, cell[0], st);
    if (!s)
        return FAILED;
    s->loss[(size_t)sequence] = loss;
    s->kl[(size_t)sequence] = kl;
    s->have[(size_t)sequence] = true;
    r->lines++;
    return DONE;
}

/* Reads whole lines; *whole: bytes of them. A last line without its newline was being written when
 * the process ended. */
static int read_lines(results *r, FILE *in, const char *tokens_sha256, long *whole, status *st) {
    char *line = NULL;
    size_t room = 0, at = 0;
    ssize_t length;
    int rc = DONE;
    *whole = 0;
    while (!rc && (length = getline(&line, &room, in)) > 0 && line[length - 1] == '\n') {
        line[length - 1] = 0;
        at++;
        rc = at == 1 ? take_head(r, line, tokens_sha256, st) : take_line(r, line, at, st);
        *whole += length;
    }
    if (!rc && ferror(in))
        rc = status_fail(st, "%s: %s", r->path, strerror(errno));
    free(line);
    return rc;
}

/* ---- writing ---- */

static int flushed(results *r, status *st) {
    if (fflush(r->file) == 0 && !ferror(r->file))
        return DONE;
    return status_fail(st, "%s: %s; what was finished before is kept: continue with --resume",
                       r->path, strerror(errno));
}

int experiment_results_path(const char *target, bool resume, char **path, status *st) {
    if (output_beside(target, ".results", path, st))
        return FAILED;
    if (resume && !*path)
        return status_fail(st, "--resume: needs -o FILE: results are kept in FILE.results");
    return DONE;
}

static int resume_file(results *r, const char *tokens_sha256, status *st) {
    FILE *in = fopen(r->path, "re");
    if (!in)
        return status_fail(st, "--resume: %s: %s", r->path, strerror(errno));
    long whole;
    int rc = read_lines(r, in, tokens_sha256, &whole, st);
    if (!rc && !r->command)
        rc = status_fail(st, "%s: empty: remove it and begin anew", r->path);
    if (!rc && truncate(r->path, whole))
        rc = status_fail(st, "%s: %s", r->path, strerror(errno));
    fclose(in);
    if (!rc && !(r->file = fopen(r->path, "ae")))
        rc = status_fail(st, "%s: %s", r->path, strerror(errno));
    if (!rc)
        log_note("%s: %zu results are there already", r->path, r->lines);
    return rc;
}

int results_open(results *r, const experiment_options *options, const char *tokens_sha256,
                 const char *command, status *st) {
    *r = (results){.path = options->results, .sequences = options->windows.sequences};
    if (options->resume)
        return resume_file(r, tokens_sha256, st);
    if (!(r->command = mem_text(command, st)))
        return FAILED;
    if (!r->path)
        return DONE;
    r->file = fopen(r->path, "wxe");
    if (!r->file && errno == EEXIST)
        return status_fail(st,
                           "%s: results of a run that was not finished: continue it with "
                           "--resume, or remove the file",
                           r->path);
    if (!r->file)
        return status_fail(st, "%s: %s", r->path, strerror(errno));
    fprintf(r->file, "%s\t%zu\t%s\t%s\n", magic, r->sequences, tokens_sha256, command);
    return flushed(r, st);
}

int results_append(results *r, const variant_scores *s, size_t first, size_t end, status *st) {
    if (!r->file)
        return DONE;
    for (size_t i = first; i < end; i++)
        fprintf(r->file, "%s\t%zu\t%.17g\t%.17g\n", s->name, i, s->loss[i], s->kl[i]);
    r->lines += end - first;
    return flushed(r, st);
}

bool results_any(const results *r) {
    return r->file && r->lines;
}

void results_forget(results *r) {
    if (r->file)
        unlink(r->path);
}

void results_close(results *r) {
    if (r->file && !r->lines)
        unlink(r->path);
    if (r->file)
        fclose(r->file);
    for (size_t i = 0; i < r->count; i++)
        scores_clear(&r->list[i]);
    free(r->list);
    free(r->command);
    *r = (results){0};
}
