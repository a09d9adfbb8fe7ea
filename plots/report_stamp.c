/* report_stamp.c - whether a step is up to date; see report.h.
 *
 * As make does, a file counts as changed when its size or its time is another. Besides the files
 * that it reads a step depends on its command line, on the version and on the program file. A stamp
 * is written when its step is done and removed before it is begun, so that one that was interrupted
 * has none. */
#include "plots/report.h"

#include "runtime/base/json.h"
#include "runtime/base/output.h"
#include "runtime/base/version.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

char *stamp_path(const report *r, const report_step *s, status *st) {
    return text_make(st, "%s/.report/%s.%s", r->options.out, folder_of(s->model), s->kind->name);
}

/* One line: what, size, time, name; "-" where there is no such file. */
static void put_file(FILE *out, const char *what, const char *path, const char *name) {
    struct stat file;
    fprintf(out, "%s\t", what);
    if (stat(path, &file) == 0)
        fprintf(out, "%lld\t%lld.%09ld", (long long)file.st_size, (long long)file.st_mtim.tv_sec,
                file.st_mtim.tv_nsec);
    else
        fputs("-\t-", out);
    fputc('\t', out);
    for (; *name; name++)
        fputc(*name == '\n' ? ' ' : *name, out);
    fputc('\n', out);
}

char *stamp_head(const report_step *s, status *st) {
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) {
        status_fail(st, "out of memory");
        return NULL;
    }
    fprintf(out, "fathom-report-step 1\nprogram\t%s\t%s\n", FATHOM_VERSION, build_hash());
    put_file(out, "read", "/proc/self/exe", "program");
    fprintf(out, "command\t%s\n", s->command);
    for (size_t i = 0; i < s->reads.count; i++)
        put_file(out, "read", s->reads.item[i], s->reads.item[i]);
    if (fclose(out)) {
        free(text);
        status_fail(st, "out of memory");
        return NULL;
    }
    return text;
}

/* A line "wrote\tSIZE\tTIME\tNAME" agrees with the file. */
static bool still_there(const report *r, const char *line, const char *name) {
    char *now = NULL;
    size_t bytes;
    status st;
    char *path = text_make(&st, "%s/%s", r->options.out, name);
    FILE *out = path ? open_memstream(&now, &bytes) : NULL;
    bool same = false;
    if (out) {
        put_file(out, "wrote", path, name);
        fclose(out);
        same = strncmp(line, now, strcspn(line, "\n")) == 0 && now[strcspn(line, "\n")] == '\n';
    }
    free(now);
    free(path);
    return same;
}

/* After the head: files written and words said, one a line. */
static int read_results(const report *r, report_step *s, char *line, bool *fresh, status *st) {
    for (char *next; *line; line = next) {
        size_t length = strcspn(line, "\n");
        next = line + length + (line[length] == '\n');
        line[length] = 0;
        char *name = strrchr(line, '\t');
        if (strncmp(line, "said\t", 5) == 0) {
            if (text_list_add(&s->said, line + 5, st))
                return FAILED;
        } else if (strncmp(line, "wrote\t", 6) == 0 && name) {
            *fresh = *fresh && still_there(r, line, name + 1);
            if (text_list_add(&s->files, name + 1, st))
                return FAILED;
        }
    }
    return DONE;
}

int stamp_read(const report *r, report_step *s, const char *head, bool *fresh, status *st) {
    *fresh = false;
    char *path = stamp_path(r, s, st);
    if (!path)
        return FAILED;
    char *text;
    size_t bytes;
    status none;
    int missing = text_read(path, REPORT_FILE_MAX, &text, &bytes, &none);
    free(path);
    if (missing)
        return DONE;
    size_t length = strlen(head);
    *fresh = strncmp(text, head, length) == 0;
    /* Of an old stamp, too, what was written is wanted: it may have to be removed. */
    char *results = *fresh ? text + length : strstr(text, "\nwrote\t");
    int result = results ? read_results(r, s, results + (*fresh ? 0 : 1), fresh, st) : DONE;
    free(text);
    return result;
}

int stamp_write(const report *r, const report_step *s, const char *head, status *st) {
    char *path = stamp_path(r, s, st);
    output *out = NULL;
    int result = path ? output_open(path, &out, st) : FAILED;
    if (!result) {
        FILE *stream = output_stream(out);
        fputs(head, stream);
        for (size_t i = 0; i < s->files.count && !result; i++) {
            char *file = text_make(st, "%s/%s", r->options.out, s->files.item[i]);
            if (file)
                put_file(stream, "wrote", file, s->files.item[i]);
            else
                result = FAILED;
            free(file);
        }
        for (size_t i = 0; i < s->said.count; i++)
            fprintf(stream, "said\t%s\n", s->said.item[i]);
        if (result)
            output_abandon(out);
        else
            result = output_commit(out, st);
    }
    free(path);
    return result;
}

void stamp_remove(const report *r, const report_step *s) {
    status st;
    char *path = stamp_path(r, s, &st);
    if (path)
        unlink(path);
    free(path);
}
