/* fuzz_tokens SECONDS SEED - damaged token files must never crash the reader, hold it up, or give
 * an id outside the vocabulary. Files are valid ones with bytes overwritten, cut, added or
 * exchanged; every window of those accepted is read. */
#include "datasets/token_format.h"
#include "datasets/token_source.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { FILE_MOST = 2048, CONTEXT_MOST = 64, VOCABULARY = 300 };

typedef struct sample {
    unsigned char bytes[FILE_MOST];
    size_t size;
} sample;

static uint64_t random_state;

/* splitmix64 */
static uint64_t random_next(void) {
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static size_t below(size_t bound) {
    return (size_t)(random_next() % bound);
}

static size_t put_ids(unsigned char *out, size_t count, unsigned width, size_t row) {
    for (size_t i = 0; i < count; i++) {
        bool padding = row && i % row >= row - below(3);
        number_to_bytes(padding ? UINT64_MAX : below(width == 1 ? 128 : VOCABULARY), width,
                        out + i * width);
    }
    return count * width;
}

static void make_bin(sample *s) {
    unsigned width = below(2) ? 2 : 4;
    size_t count = below(200);
    token_bin_header(width, count, s->bytes);
    s->size = TOKEN_BIN_HEADER + put_ids(s->bytes + TOKEN_BIN_HEADER, count, width, 0);
}

static void make_npy(sample *s) {
    static const char *const types[] = {"|u1", "<u2", "<u4", "<u8", "|i1", "<i2", "<i4", "<i8"};
    size_t type = below(8), rows = below(12), columns = below(12), version = 1 + below(3);
    unsigned width = 1u << type % 4;
    bool flat = below(2);
    size_t at = version == 1 ? 10 : 12;
    char shape[64];
    if (flat)
        snprintf(shape, sizeof shape, "(%zu,)", rows * columns);
    else
        snprintf(shape, sizeof shape, "(%zu, %zu)", rows, columns);
    memcpy(s->bytes, "\x93NUMPY", 6);
    s->bytes[6] = (unsigned char)version;
    s->bytes[7] = 0;
    int text = snprintf((char *)s->bytes + at, FILE_MOST - at,
                        "{'descr': '%s', 'fortran_order': False, 'shape': %s, }%*s\n", types[type],
                        shape, (int)below(40), "");
    number_to_bytes((uint64_t)text, version == 1 ? 2 : 4, s->bytes + 8);
    at += (size_t)text;
    s->size = at + put_ids(s->bytes + at, rows * columns, width, !flat && type >= 4 ? columns : 0);
}

/* One damage; mostly near the front, where the header's text or counts are. */
static void damage(sample *s) {
    static const char charset[] = "0123456789(){}',: <>|iuf[]\\\n\t";
    size_t front = s->size < 128 || !below(4) ? s->size : below(2) ? 16 : 128;
    size_t at = s->size ? below(front < s->size ? front : s->size) : 0;
    switch (s->size ? below(8) : 5) {
    case 0:
        s->bytes[at] ^= (unsigned char)(1 << below(8));
        break;
    case 1:
        s->bytes[at] = (unsigned char)random_next();
        break;
    case 2:
        s->bytes[at] = (unsigned char)charset[below(sizeof charset - 1)];
        break;
    case 3: /* cut the end */
        s->size = below(2) ? at : below(s->size + 1);
        break;
    case 4: /* take bytes out */
        memmove(s->bytes + at, s->bytes + at + 1, s->size - at - 1);
        s->size--;
        break;
    case 5: /* add at the end */
        for (size_t n = below(9); n && s->size < FILE_MOST; n--)
            s->bytes[s->size++] = (unsigned char)random_next();
        break;
    case 6: /* put a byte in */
        if (s->size < FILE_MOST) {
            memmove(s->bytes + at + 1, s->bytes + at, s->size - at);
            s->bytes[at] = (unsigned char)charset[below(sizeof charset - 1)];
            s->size++;
        }
        break;
    default: { /* an extreme count */
        static const uint64_t counts[] = {0, 1, 0x7fffffff, 0x80000000, 0xffffffff, UINT64_MAX};
        unsigned width = 1u << below(4);
        if (at + width <= s->size)
            number_to_bytes(counts[below(6)], width, s->bytes + at);
    }
    }
}

/* Reads all windows; false where an answer breaks the contract. */
static bool read_all(token_source *source) {
    int32_t *ids = calloc(token_source_context(source), sizeof *ids);
    size_t sequences = token_source_sequences(source), length;
    uint64_t tokens = 0, start;
    bool good = ids && sequences >= 1 && token_source_context(source) <= CONTEXT_MOST, whole = true;
    status st;
    for (size_t i = 0; good && i < sequences; i++) {
        if (token_source_read(source, i, ids, &length, &start, &st)) {
            whole = false;
            good = memchr(st.text, 0, sizeof st.text) && *st.text;
            continue;
        }
        good = length >= 2 && length <= token_source_context(source);
        for (size_t k = 0; good && k < length; k++)
            good = ids[k] >= 0 && ids[k] < VOCABULARY;
        tokens += length;
    }
    free(ids);
    return good && (!whole || tokens == token_source_tokens(source));
}

/* 1: accepted, 0: refused, -1: the contract is broken. */
static int try_sample(const sample *s, int file, const char *path) {
    char bos[8];
    snprintf(bos, sizeof bos, "%zu", below(VOCABULARY));
    token_options options = {.tokens = path,
                             .context = 2 + below(CONTEXT_MOST - 1),
                             .sequences = below(2) ? below(20) : 0,
                             .stride = below(2) ? below(80) : 0,
                             .bos = below(2) ? bos : NULL};
    token_source *source;
    status st;
    if (ftruncate(file, 0) || pwrite(file, s->bytes, s->size, 0) != (ssize_t)s->size) {
        perror("fuzz_tokens");
        exit(2);
    }
    if (token_source_open(&options, VOCABULARY, &source, &st))
        return *st.text ? 0 : -1;
    bool good = read_all(source);
    token_source_close(source);
    return good ? 1 : -1;
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? strtod(argv[1], NULL) : 1;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1, inputs = 0, accepted = 0;
    char path[64];
    struct timespec begun, now;
    int file = memfd_create("fuzz_tokens", 0);
    if (file < 0) {
        perror("fuzz_tokens");
        return 2;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    option_quiet = true;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    do {
        static sample s;
        random_state = seed * 0x2545f4914f6cdd1du + inputs;
        if (below(2))
            make_bin(&s);
        else
            make_npy(&s);
        for (size_t n = below(5); n; n--)
            damage(&s);
        int result = try_sample(&s, file, path);
        if (result < 0) {
            fprintf(stderr, "fuzz_tokens: seed %" PRIu64 ", input %" PRIu64 ": wrong answer\n",
                    seed, inputs);
            return 1;
        }
        inputs++;
        accepted += result == 1;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((double)(now.tv_sec - begun.tv_sec) + 1e-9 * (double)(now.tv_nsec - begun.tv_nsec) <
             seconds);
    close(file);
    printf("%" PRIu64 " inputs, %" PRIu64 " accepted\n", inputs, accepted);
    return 0;
}
