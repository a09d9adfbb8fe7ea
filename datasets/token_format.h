/* token_format.h - where the ids lie in a file. Every format is found by its content and comes down
 * to one array of whole numbers; token_source.c reads them all the same way. */
#ifndef FATHOM_TOKEN_FORMAT_H
#define FATHOM_TOKEN_FORMAT_H

#include "datasets/token_input.h"

#include <stdbool.h>

typedef struct token_layout {
    uint64_t offset;     /* of the first id, in bytes */
    uint64_t rows;       /* 1 for a stream */
    uint64_t row_length; /* ids in a row */
    unsigned width;      /* bytes of an id: 1, 2, 4 or 8; little endian */
    bool is_signed;
    bool has_rows; /* each row is a sequence; in a signed array negative ids end it early */
} token_layout;

/* Fills the layout where the input is of the format (*found), fails where it is but is damaged. */
int token_bin_layout(const token_input *input, bool *found, token_layout *layout,
                     status *st) MUST_USE;
int token_npy_layout(const token_input *input, bool *found, token_layout *layout,
                     status *st) MUST_USE;

enum { TOKEN_BIN_HEADER = 1024, TOKEN_NPY_HEADER = 128 };
#define TOKEN_BIN_MOST 2147483647 /* ids in a .bin file: its header counts them in an int32 */

/* The header of a file of `tokens` ids. .bin: ids of `width` 2 or 4, `tokens` <= TOKEN_BIN_MOST.
 * .npy: one stream of int32. */
void token_bin_header(unsigned width, uint64_t tokens, unsigned char header[TOKEN_BIN_HEADER]);
void token_npy_header(uint64_t tokens, unsigned char header[TOKEN_NPY_HEADER]);

/* Little-endian whole numbers of `width` 1..8 bytes. */
uint64_t bytes_to_number(const unsigned char *bytes, unsigned width);
void number_to_bytes(uint64_t number, unsigned width, unsigned char *bytes);

#endif
