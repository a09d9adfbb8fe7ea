/* token_input.h - bytes by position, from a regular file on disk or from memory. */
#ifndef FATHOM_TOKEN_INPUT_H
#define FATHOM_TOKEN_INPUT_H

#include "runtime/base/status.h"

#include <stdint.h>

typedef struct token_input {
    const char *name;      /* for messages: the path, or "standard input" */
    int descriptor;        /* of a regular file; -1: all bytes are in `memory` */
    unsigned char *memory; /* [size], owned; NULL where read from the file */
    uint64_t size;         /* in bytes, fixed when opened */
} token_input;

/* `path` "-" is standard input. What is no regular file is read to its end into memory, at most
 * 1 GiB. `path` must outlive the input. On failure nothing is left open. */
int token_input_open(token_input *input, const char *path, status *st) MUST_USE;
void token_input_close(token_input *input);

/* Bytes [position, position + bytes), which must lie within `size`. Fails where the file has become
 * shorter or cannot be read. */
int token_input_read(const token_input *input, uint64_t position, void *out, size_t bytes,
                     status *st) MUST_USE;

#endif
