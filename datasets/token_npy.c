/* NumPy's .npy files, versions 1 to 3 (numpy.lib.format): "\x93NUMPY", two version bytes, the
 * length of the header text (2 bytes in version 1, else 4), the text, a Python dict such as
 * {'descr': '<i4', 'fortran_order': False, 'shape': (3, 5), }, then the array. */
#include "datasets/token_format.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char npy_magic[] = "\x93NUMPY";
enum { NPY_PREFIX = 8, NPY_TEXT_MOST = 4096, NPY_DIMENSIONS_MOST = 32 };

typedef struct npy_type {
    const char *descr;
    unsigned width;
    bool is_signed;
} npy_type;

static const npy_type npy_types[] = {
    {"|u1", 1, false}, {"<u2", 2, false}, {"<u4", 4, false}, {"<u8", 8, false},
    {"|i1", 1, true},  {"<i2", 2, true},  {"<i4", 4, true},  {"<i8", 8, true},
};

typedef struct npy_header {
    char descr[16];
    bool fortran_order;
    uint64_t shape[NPY_DIMENSIONS_MOST];
    size_t dimensions;
} npy_header;

/* A parser over the header text, which ends in a zero. */
typedef struct npy_parser {
    const char *next;
    const char *name; /* of the file */
    status *st;
} npy_parser;

static int parser_fail(npy_parser *p, const char *expected) {
    return status_fail(p->st, "%s: .npy header: expected %s at '%.24s'", p->name, expected,
                       p->next);
}

static bool accept(npy_parser *p, const char *text) {
    p->next += strspn(p->next, " \n");
    size_t length = strlen(text);
    if (strncmp(p->next, text, length))
        return false;
    p->next += length;
    return true;
}

/* A quoted text without escapes, of fewer than `room` bytes. */
static int parse_quoted(npy_parser *p, const char *what, char *out, size_t room) {
    p->next += strspn(p->next, " \n");
    char quote = *p->next;
    if (quote != '\'' && quote != '"')
        return parser_fail(p, what);
    const char *begin = p->next + 1;
    const char *end = strchr(begin, quote);
    if (!end || (size_t)(end - begin) >= room || memchr(begin, '\\', (size_t)(end - begin)))
        return parser_fail(p, what);
    memcpy(out, begin, (size_t)(end - begin));
    out[end - begin] = 0;
    p->next = end + 1;
    return DONE;
}

static int parse_number(npy_parser *p, uint64_t *value) {
    p->next += strspn(p->next, " \n");
    const char *begin = p->next;
    *value = 0;
    for (; *p->next >= '0' && *p->next <= '9'; p->next++)
        if (__builtin_mul_overflow(*value, (uint64_t)10, value) ||
            __builtin_add_overflow(*value, (uint64_t)(*p->next - '0'), value))
            return status_fail(p->st, "%s: .npy header: the shape is too large", p->name);
    return p->next > begin ? DONE : parser_fail(p, "a whole number in the shape");
}

/* A tuple: (), (3,), (3, 5), (3, 5,). */
static int parse_shape(npy_parser *p, npy_header *header) {
    bool comma = true;
    if (!accept(p, "("))
        return parser_fail(p, "a shape in parentheses");
    header->dimensions = 0;
    while (!accept(p, ")")) {
        if (!comma || header->dimensions == NPY_DIMENSIONS_MOST)
            return parser_fail(p, "the end of the shape");
        if (parse_number(p, &header->shape[header->dimensions++]))
            return FAILED;
        comma = accept(p, ",");
    }
    return header->dimensions == 1 && !comma ? parser_fail(p, "a comma in a 1-D shape") : DONE;
}

static int parse_header(npy_parser *p, npy_header *header) {
    static const char *const keys[] = {"descr", "fortran_order", "shape"};
    bool seen[3] = {false}, comma = true;
    if (!accept(p, "{"))
        return parser_fail(p, "'{'");
    while (!accept(p, "}")) {
        char key[16];
        size_t k = 0;
        const char *at = p->next;
        if (!comma)
            return parser_fail(p, "',' or '}'");
        if (parse_quoted(p, "a key", key, sizeof key))
            return FAILED;
        while (k < 3 && strcmp(key, keys[k]))
            k++;
        if (k == 3 || seen[k]) {
            p->next = at;
            return parser_fail(p, "each of 'descr', 'fortran_order', 'shape' once");
        }
        seen[k] = true;
        if (!accept(p, ":"))
            return parser_fail(p, "':'");
        if (k == 0 &&
            parse_quoted(p, "a simple type such as '<i4'", header->descr, sizeof header->descr))
            return FAILED;
        if (k == 1) {
            header->fortran_order = accept(p, "True");
            if (!header->fortran_order && !accept(p, "False"))
                return parser_fail(p, "True or False");
        }
        if (k == 2 && parse_shape(p, header))
            return FAILED;
        comma = accept(p, ",");
    }
    if (!seen[0] || !seen[1] || !seen[2])
        return parser_fail(p, "'descr', 'fortran_order' and 'shape' before its end");
    p->next += strspn(p->next, " \n");
    return *p->next ? parser_fail(p, "nothing after '}'") : DONE;
}

/* The header text, read into `text` as a string, and the offset of the array. */
static int read_header(const token_input *input, char text[NPY_TEXT_MOST + 1], uint64_t *offset,
                       status *st) {
    unsigned char prefix[NPY_PREFIX + 4];
    if (input->size < sizeof prefix)
        return status_fail(st, "%s: truncated: %" PRIu64 " bytes, too short for a .npy header",
                           input->name, input->size);
    if (token_input_read(input, 0, prefix, sizeof prefix, st))
        return FAILED;
    unsigned major = prefix[6], minor = prefix[7];
    if (major < 1 || major > 3 || minor != 0)
        return status_fail(st, "%s: .npy version %u.%u, expected 1.0, 2.0 or 3.0", input->name,
                           major, minor);
    unsigned width = major == 1 ? 2 : 4;
    size_t length = (size_t)bytes_to_number(prefix + NPY_PREFIX, width);
    *offset = NPY_PREFIX + width + length;
    if (*offset > input->size)
        return status_fail(st, "%s: truncated: .npy header of %zu bytes in a file of %" PRIu64,
                           input->name, length, input->size);
    if (length > NPY_TEXT_MOST)
        return status_fail(st, "%s: .npy header of %zu bytes, expected at most %d", input->name,
                           length, NPY_TEXT_MOST);
    if (token_input_read(input, NPY_PREFIX + width, text, length, st))
        return FAILED;
    text[length] = 0;
    if (strlen(text) != length)
        return status_fail(st, "%s: .npy header: a zero byte within its text", input->name);
    return DONE;
}

static int find_type(const char *name, const char *descr, const npy_type **type, status *st) {
    for (size_t k = 0; k < sizeof npy_types / sizeof *npy_types; k++)
        if (strcmp(descr, npy_types[k].descr) == 0) {
            *type = &npy_types[k];
            return DONE;
        }
    if (descr[0] == '>' && (descr[1] == 'i' || descr[1] == 'u'))
        return status_fail(st,
                           "%s: big-endian ids (%s), expected little-endian: save it again as "
                           "array.astype('<i4')",
                           name, descr);
    return status_fail(st,
                       "%s: type '%s', expected whole numbers: |u1 <u2 <u4 <u8 |i1 <i2 <i4 or <i8",
                       name, descr);
}

int token_npy_layout(const token_input *input, bool *found, token_layout *layout, status *st) {
    char text[NPY_TEXT_MOST + 1];
    const char *name = input->name;
    npy_header header = {0};
    uint64_t offset = 0;
    *found = false;
    if (input->size < sizeof npy_magic - 1)
        return DONE;
    if (token_input_read(input, 0, text, sizeof npy_magic - 1, st))
        return FAILED;
    if (memcmp(text, npy_magic, sizeof npy_magic - 1))
        return DONE;

    npy_parser parser = {text, name, st};
    const npy_type *type = NULL;
    if (read_header(input, text, &offset, st) || parse_header(&parser, &header) ||
        find_type(name, header.descr, &type, st))
        return FAILED;
    if (header.fortran_order)
        return status_fail(st,
                           "%s: Fortran order, expected C order: save it again as "
                           "numpy.ascontiguousarray(array)",
                           name);
    if (header.dimensions != 1 && header.dimensions != 2)
        return status_fail(st,
                           "%s: %zu dimensions, expected 1 (a stream) or 2 (one sequence a row)",
                           name, header.dimensions);
    bool has_rows = header.dimensions == 2;
    uint64_t rows = has_rows ? header.shape[0] : 1;
    uint64_t row_length = header.shape[header.dimensions - 1];
    uint64_t bytes;
    if (__builtin_mul_overflow(rows, row_length, &bytes) ||
        __builtin_mul_overflow(bytes, (uint64_t)type->width, &bytes) || bytes > (uint64_t)INT64_MAX)
        return status_fail(st, "%s: .npy header: the shape is too large", name);
    if (bytes != input->size - offset)
        return status_fail(
            st,
            "%s: %s%" PRIu64 " bytes after its header, expected %" PRIu64 " for the shape in it",
            name, bytes > input->size - offset ? "truncated: " : "", input->size - offset, bytes);
    *layout = (token_layout){.offset = offset,
                             .rows = row_length ? rows : 0,
                             .row_length = row_length,
                             .width = type->width,
                             .is_signed = type->is_signed,
                             .has_rows = has_rows};
    *found = true;
    return DONE;
}

void token_npy_header(uint64_t tokens, unsigned char header[TOKEN_NPY_HEADER]) {
    char text[TOKEN_NPY_HEADER - NPY_PREFIX - 2 + 1];
    int length =
        snprintf(text, sizeof text,
                 "{'descr': '<i4', 'fortran_order': False, 'shape': (%" PRIu64 ",), }", tokens);
    memset(header, ' ', TOKEN_NPY_HEADER);
    memcpy(header, npy_magic, sizeof npy_magic - 1);
    header[6] = 1;
    header[7] = 0;
    number_to_bytes(TOKEN_NPY_HEADER - NPY_PREFIX - 2, 2, header + NPY_PREFIX);
    memcpy(header + NPY_PREFIX + 2, text, (size_t)length);
    header[TOKEN_NPY_HEADER - 1] = '\n';
}
