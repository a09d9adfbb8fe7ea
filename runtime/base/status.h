/* status.h - how every function in fathom reports failure.
 *
 * Convention, everywhere: a function that can fail returns int, 0 = done, and takes a `status *`
 * as its last parameter; on failure it has filled the text and released what it held. Only
 * commands print and exit.
 *
 *     status st;
 *     if (model_open(dir, &options, &model, &st))
 *         return command_fail(&st);
 *
 * A text names the file, the object, what was found, what was expected and, where it helps, what
 * to do: `model.safetensors: model.norm.weight: shape [512], expected [768]`.
 */
#ifndef FATHOM_STATUS_H
#define FATHOM_STATUS_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MUST_USE __attribute__((warn_unused_result))
#define PRINTF_LIKE(text, first) __attribute__((format(printf, text, first)))

enum {
    DONE = 0,
    FAILED = -1,      /* the status text says why */
    INTERRUPTED = -2, /* SIGINT or SIGTERM arrived; what was finished is kept */
};

typedef struct status {
    char text[2048]; /* one sentence without a final newline; valid UTF-8 not guaranteed */
} status;

/* Fills `st` and returns FAILED, so that `return status_fail(st, ...)` reads well. */
int status_fail(status *st, const char *format, ...) PRINTF_LIKE(2, 3);

/* Puts `format` and ": " before the text already in `st`; returns FAILED. */
int status_prefix(status *st, const char *format, ...) PRINTF_LIKE(2, 3);

/* Zeroed memory for `count` elements of `size` bytes, or NULL with `st` filled (overflow, or no
 * memory; `what` names the object). A count of 0 gives a pointer that can be freed. Freed by the
 * caller with free(). */
void *mem_array(size_t count, size_t size, const char *what, status *st) MUST_USE;

/* A copy of `text` to be freed by the caller, or NULL with `st` filled. */
char *mem_text(const char *text, status *st) MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
