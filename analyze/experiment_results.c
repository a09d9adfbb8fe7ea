#include "analyze/experiment_results.h"

#include "runtime/base/log.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char magic[] = "# fathom results 1";

/* ---- in memory ---- */

scores *results_find(const results *r, const char *name) {
    for (size_t i = 0; i < r->count; i++)
        if (strcmp(r->list[i].name, name) == 0)
            return &r->list[i];
    return NULL;
}

static void scores_clear(scores *s) {
    free(s->name);
    free(s->loss);
    free(s->kl);
    free(s->have);
}

scores *results_of(results *r, const char *name, status *st) {
    scores *s = results_find(r, name);
    if (s)
        return s;
    if (r->count == r->room) {
        const size_t room = r->room ? 2 * r->room : 64;
        scores *list = realloc(r->list, room * sizeof *list);
        if (!list) {
            status_fail(st, "results: not enough memory");
            return NULL;
        }
        r->list = list;
        r->room = room;
    }
    s = &r->list[r->count];
    *s = (scores){.name = mem_text(name, st),
                  .loss = mem_array(r->sequences, sizeof *s->loss, "results", st),
                  .kl = mem_array(r->sequences, sizeof *s->kl, "results", st),
                  .have = mem_array(r->sequences, sizeof *s->have, "results", st)};
    if (!s->name || !s->loss || !s->kl || !s->have) {
        scores_clear(s);
        return NULL;
    }
    for (size_t i = 0; i < r->sequences; i++)
        s->kl[i] = NAN;
    r->count++;
    return s;
}

bool results_complete(const results *r, const scores *s) {
    for (size_t i = 0; i < r->sequences; i++)
        if (!s->have[i])
            return false;
    return true;
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
    scores *s = results_of(r, cell[0], st);
    if (!s)
        return FAILED;
    s->loss[(size_t)sequence] = loss;
    s->kl[(size_t)sequence] = kl;
    s->have[(size_t)sequence] = true;
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

static int continue_file(results *r, FILE *in, const char *tokens_sha256, status *st) {
    long whole;
    if (read_lines(r, in, tokens_sha256, &whole, st))
        return FAILED;
    if (truncate(r->path, whole))
        return status_fail(st, "%s: %s", r->path, strerror(errno));
    return DONE;
}

/* ---- writing ---- */

static int flushed(results *r, status *st) {
    if (fflush(r->file) == 0 && !ferror(r->file))
        return DONE;
    return status_fail(st, "%s: %s; what was finished before is kept: continue with --resume",
                       r->path, strerror(errno));
}

int results_open(results *r, const experiment_options *options, size_t sequences,
                 const char *tokens_sha256, const char *command, status *st) {
    *r = (results){.path = options->results, .sequences = sequences};
    if (!r->path) {
        if (options->resume)
            return status_fail(st, "--resume: there is no file of results without -o FILE");
        r->command = mem_text(command, st);
        return r->command ? DONE : FAILED;
    }
    FILE *in = fopen(r->path, "r");
    if (in && !options->resume) {
        fclose(in);
        return status_fail(st,
                           "%s: results of a run that was not finished: continue it with "
                           "--resume, or remove the file",
                           r->path);
    }
    int rc = !in && errno != ENOENT ? status_fail(st, "%s: %s", r->path, strerror(errno)) : DONE;
    if (in) {
        rc = continue_file(r, in, tokens_sha256, st);
        fclose(in);
    } else if (!rc && options->resume) {
        log_warn("%s: nothing to resume, starting anew", r->path);
    }
    if (rc)
        return rc;
    if (!(r->file = fopen(r->path, "a")))
        return status_fail(st, "%s: %s", r->path, strerror(errno));
    if (r->command)
        return DONE;
    if (!(r->command = mem_text(command, st)))
        return FAILED;
    fprintf(r->file, "%s\t%zu\t%s\t%s\n", magic, sequences, tokens_sha256, command);
    return flushed(r, st);
}

int results_append(results *r, const scores *s, size_t first, size_t end, status *st) {
    if (!r->file)
        return DONE;
    for (size_t i = first; i < end; i++)
        fprintf(r->file, "%s\t%zu\t%.17g\t%.17g\n", s->name, i, s->loss[i], s->kl[i]);
    return flushed(r, st);
}

void results_close(results *r) {
    if (r->file)
        fclose(r->file);
    for (size_t i = 0; i < r->count; i++)
        scores_clear(&r->list[i]);
    free(r->list);
    free(r->command);
    *r = (results){0};
}
