/* output.c - see output.h. */
#include "runtime/base/output.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct output {
    FILE *stream;
    char *path;    /* final name; NULL for standard output */
    char *partial; /* name while it is written; NULL for devices and pipes, written in place */
};

static void output_free(output *out) {
    if (!out)
        return;
    free(out->path);
    free(out->partial);
    free(out);
}

int output_beside(const char *path, const char *suffix, char **name, status *st) {
    *name = NULL;
    if (!path || strcmp(path, "-") == 0)
        return DONE;
    if (!*path)
        return status_fail(st, "output: the file name is empty");
    struct stat file;
    const bool exists = stat(path, &file) == 0;
    if (exists && S_ISDIR(file.st_mode))
        return status_fail(st, "%s: is a folder, expected the name of a file to write", path);
    /* A device or a pipe must not be replaced by a regular file, nor have one beside it. */
    if (exists && !S_ISREG(file.st_mode))
        return DONE;
    const size_t bytes = strlen(path) + strlen(suffix) + 1;
    if (!(*name = mem_array(bytes, 1, "a path", st)))
        return FAILED;
    snprintf(*name, bytes, "%s%s", path, suffix);
    return DONE;
}

int output_open(const char *path, output **out, status *st) {
    *out = NULL;
    output *fresh = mem_array(1, sizeof *fresh, "output", st);
    if (!fresh)
        return FAILED;
    if (!path || strcmp(path, "-") == 0) {
        fresh->stream = stdout;
        *out = fresh;
        return DONE;
    }
    if (output_beside(path, ".partial", &fresh->partial, st) || !(fresh->path = mem_text(path, st)))
        goto fail;
    const char *name = fresh->partial ? fresh->partial : path;
    fresh->stream = fopen(name, "we");
    if (!fresh->stream) {
        status_fail(st, "%s: cannot be written: %s", name, strerror(errno));
        goto fail;
    }
    *out = fresh;
    return DONE;
fail:
    output_free(fresh);
    return FAILED;
}

FILE *output_stream(output *out) {
    return out->stream;
}

int output_commit(output *out, status *st) {
    const char *name = out->path ? out->path : "standard output";
    int result = DONE;
    bool broken = ferror(out->stream) != 0;
    errno = 0;
    if (out->path ? fclose(out->stream) : fflush(out->stream))
        broken = true;
    if (broken) {
        result = status_fail(st, "%s: could not be written: %s", name,
                             errno ? strerror(errno) : "an earlier write failed");
        if (out->partial)
            unlink(out->partial);
        if (!out->path)
            clearerr(stdout); /* reported here, not again at the end of the program */
    } else if (out->partial && rename(out->partial, out->path)) {
        result = status_fail(st, "%s: cannot be given its final name: %s", name, strerror(errno));
        unlink(out->partial);
    }
    output_free(out);
    return result;
}

void output_abandon(output *out) {
    if (!out)
        return;
    if (out->path)
        fclose(out->stream);
    if (out->partial)
        unlink(out->partial);
    output_free(out);
}

int folder_make(const char *path, status *st) {
    char *name = mem_text(path, st);
    if (!name)
        return FAILED;
    int result = DONE;
    for (char *end = name; result == DONE && *end;) {
        end += strspn(end, "/");
        end += strcspn(end, "/");
        char kept = *end;
        *end = 0;
        struct stat file;
        if (mkdir(name, 0777) && errno != EEXIST)
            result = status_fail(st, "%s: folder cannot be made: %s", name, strerror(errno));
        else if (stat(name, &file) == 0 && !S_ISDIR(file.st_mode))
            result = status_fail(st, "%s: exists and is not a folder", name);
        *end = kept;
    }
    free(name);
    return result;
}
