/* The .bin token files of llm.c: 256 int32, then the ids. */
#include "datasets/token_format.h"

#include <inttypes.h>
#include <string.h>

/* llm.c names its files by these: GPT-2 ids in 16 bits, Llama 3 ids in 32. */
typedef struct bin_kind {
    uint32_t magic, version;
    unsigned width;
} bin_kind;

static const bin_kind bin_kinds[] = {{20240520, 1, 2}, {20240801, 7, 4}};

uint64_t bytes_to_number(const unsigned char *bytes, unsigned width) {
    uint64_t number = 0;
    for (unsigned k = 0; k < width; k++)
        number |= (uint64_t)bytes[k] << (8 * k);
    return number;
}

void number_to_bytes(uint64_t number, unsigned width, unsigned char *bytes) {
    for (unsigned k = 0; k < width; k++)
        bytes[k] = (unsigned char)(number >> (8 * k));
}

int token_bin_layout(const token_input *input, bool *found, token_layout *layout, status *st) {
    unsigned char head[12];
    const char *name = input->name;
    *found = false;
    if (input->size < 4)
        return DONE;
    if (token_input_read(input, 0, head, 4, st))
        return FAILED;
    uint32_t magic = (uint32_t)bytes_to_number(head, 4);
    const bin_kind *kind = NULL;
    for (size_t k = 0; k < sizeof bin_kinds / sizeof *bin_kinds; k++) {
        if (magic == bin_kinds[k].magic)
            kind = &bin_kinds[k];
        if (magic == __builtin_bswap32(bin_kinds[k].magic))
            return status_fail(st, "%s: big-endian token file, expected little-endian", name);
    }
    if (!kind)
        return DONE;

    if (input->size < TOKEN_BIN_HEADER)
        return status_fail(st, "%s: truncated: %" PRIu64 " bytes, its header alone has %d", name,
                           input->size, TOKEN_BIN_HEADER);
    if (token_input_read(input, 0, head, sizeof head, st))
        return FAILED;
    uint32_t version = (uint32_t)bytes_to_number(head + 4, 4);
    if (version != kind->version)
        return status_fail(st, "%s: version %" PRIu32 ", expected %" PRIu32 " with magic %" PRIu32,
                           name, version, kind->version, magic);
    uint64_t tokens = bytes_to_number(head + 8, 4);
    if (tokens > TOKEN_BIN_MOST)
        return status_fail(st, "%s: token count %" PRId64 " in its header, expected 0..%d", name,
                           (int64_t)tokens - ((int64_t)1 << 32), TOKEN_BIN_MOST);
    uint64_t expected = TOKEN_BIN_HEADER + tokens * kind->width;
    if (input->size != expected)
        return status_fail(st,
                           "%s: %s%" PRIu64 " bytes, expected %" PRIu64 " for the %" PRIu64
                           " tokens of %u bytes that its header counts",
                           name, input->size < expected ? "truncated: " : "", input->size, expected,
                           tokens, kind->width);
    *layout = (token_layout){
        .offset = TOKEN_BIN_HEADER, .rows = 1, .row_length = tokens, .width = kind->width};
    *found = true;
    return DONE;
}

void token_bin_header(unsigned width, uint64_t tokens, unsigned char header[TOKEN_BIN_HEADER]) {
    const bin_kind *kind = &bin_kinds[width == 4];
    memset(header, 0, TOKEN_BIN_HEADER);
    number_to_bytes(kind->magic, 4, header);
    number_to_bytes(kind->version, 4, header + 4);
    number_to_bytes(tokens, 4, header + 8);
}
