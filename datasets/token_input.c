#include "datasets/token_input.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MEMORY_MOST ((size_t)1 << 30)

/* Reads a pipe to its end; the buffer doubles as it fills. */
static int read_whole(token_input *input, int descriptor, status *st) {
    size_t capacity = 0, size = 0;
    for (;;) {
        if (size == capacity) {
            capacity = capacity ? 2 * capacity : (size_t)1 << 16;
            unsigned char *larger = realloc(input->memory, capacity);
            if (!larger)
                return status_fail(st, "%s: no memory for %zu bytes", input->name, capacity);
            input->memory = larger;
        }
        ssize_t got = read(descriptor, input->memory + size, capacity - size);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return status_fail(st, "%s: %s", input->name, strerror(errno));
        if (got == 0)
            break;
        size += (size_t)got;
        if (size > MEMORY_MOST)
            return status_fail(st, "%s: more than 1 GiB through a pipe; write it to a file first",
                               input->name);
    }
    input->size = size;
    return DONE;
}

int token_input_open(token_input *input, const char *path, status *st) {
    bool from_stdin = strcmp(path, "-") == 0;
    *input = (token_input){.name = from_stdin ? "standard input" : path, .descriptor = -1};
    int descriptor = from_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return status_fail(st, "%s: %s", path, strerror(errno));

    struct stat about;
    int result = DONE;
    if (fstat(descriptor, &about))
        result = status_fail(st, "%s: %s", input->name, strerror(errno));
    else if (!from_stdin && S_ISREG(about.st_mode)) {
        input->descriptor = descriptor;
        input->size = (uint64_t)about.st_size;
        return DONE;
    } else
        result = read_whole(input, descriptor, st);
    if (!from_stdin)
        close(descriptor);
    if (result)
        token_input_close(input);
    return result;
}

void token_input_close(token_input *input) {
    if (input->descriptor >= 0)
        close(input->descriptor);
    free(input->memory);
    *input = (token_input){.descriptor = -1};
}

int token_input_read(const token_input *input, uint64_t position, void *out, size_t bytes,
                     status *st) {
    if (position > input->size || bytes > input->size - position)
        return status_fail(st, "%s: bytes %" PRIu64 "..%" PRIu64 " asked for, it has %" PRIu64,
                           input->name, position, position + bytes, input->size);
    if (input->descriptor < 0) {
        if (bytes)
            memcpy(out, input->memory + position, bytes);
        return DONE;
    }
    unsigned char *next = out;
    while (bytes) {
        ssize_t got = pread(input->descriptor, next, bytes, (off_t)position);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return status_fail(st, "%s: at byte %" PRIu64 ": %s", input->name, position,
                               strerror(errno));
        if (got == 0)
            return status_fail(st,
                               "%s: ends at byte %" PRIu64 ", but had %" PRIu64
                               " bytes when it was opened: it became shorter while it was read",
                               input->name, position, input->size);
        next += got;
        position += (uint64_t)got;
        bytes -= (size_t)got;
    }
    return DONE;
}
