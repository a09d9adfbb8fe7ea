/* status.c - failure texts and checked memory; see status.h. */
#include "runtime/base/status.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int status_fail(status *st, const char *format, ...) {
    /* By way of a second buffer: an argument may be the text already in `st`. */
    status fresh;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(fresh.text, sizeof fresh.text, format, arguments);
    va_end(arguments);
    memcpy(st->text, fresh.text, strlen(fresh.text) + 1);
    return FAILED;
}

int status_prefix(status *st, const char *format, ...) {
    status fresh;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(fresh.text, sizeof fresh.text, format, arguments);
    va_end(arguments);
    return status_fail(st, "%s: %s", fresh.text, st->text);
}

void *mem_array(size_t count, size_t size, const char *what, status *st) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > PTRDIFF_MAX) {
        status_fail(st, "%s: %zu elements of %zu bytes are more than memory can hold", what, count,
                    size);
        return NULL;
    }
    void *memory = calloc(1, bytes ? bytes : 1);
    if (!memory)
        status_fail(st, "%s: out of memory for %zu bytes", what, bytes);
    return memory;
}

char *mem_text(const char *text, status *st) {
    size_t bytes = strlen(text) + 1;
    char *copy = malloc(bytes);
    if (!copy) {
        status_fail(st, "out of memory for a text of %zu bytes", bytes);
        return NULL;
    }
    return memcpy(copy, text, bytes);
}
