/* What users of token files rely on: the windows that are read, and an error instead of a wrong
 * token. */
#include "datasets/token_format.h"
#include "datasets/token_source.h"
#include "runtime/tests/scratch.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { IDS_MOST = 4096 };

static int32_t ids[IDS_MOST];
static size_t length;
static uint64_t start;
static status st;

/* The path of a file of this test, overwritten by the next call. */
static const char *scratch(const char *name) {
    static char path[4096];
    char *made = scratch_path(name);
    snprintf(path, sizeof path, "%s", made);
    free(made);
    return path;
}

static const char *write_file(const char *name, const void *data, size_t bytes) {
    const char *path = scratch(name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
    return path;
}

/* A .npy with the header text `dict` and the bytes after it. */
static const char *write_npy(int version, const char *dict, const void *data, size_t bytes) {
    unsigned char file[8192] = "\x93NUMPY";
    size_t text = strlen(dict), at = version == 1 ? 10 : 12;
    assert_true(at + text + bytes <= sizeof file);
    file[6] = (unsigned char)version;
    number_to_bytes(text, version == 1 ? 2 : 4, file + 8);
    memcpy(file + at, dict, text);
    memcpy(file + at + text, data, bytes);
    return write_file("case.npy", file, at + text + bytes);
}

/* A .bin whose header counts `counted` ids and which holds `bytes` of data. */
static const char *write_bin(uint32_t magic, uint32_t version, uint32_t counted, const void *data,
                             size_t bytes) {
    unsigned char file[8192] = {0};
    assert_true(TOKEN_BIN_HEADER + bytes <= sizeof file);
    number_to_bytes(magic, 4, file);
    number_to_bytes(version, 4, file + 4);
    number_to_bytes(counted, 4, file + 8);
    memcpy(file + TOKEN_BIN_HEADER, data, bytes);
    return write_file("case.bin", file, TOKEN_BIN_HEADER + bytes);
}

static token_source *open_source(token_options options, size_t vocabulary) {
    token_source *source = NULL;
    if (token_source_open(&options, vocabulary, &source, &st))
        fail_msg("%s", st.text);
    return source;
}

static void assert_refused(token_options options, size_t vocabulary, const char *reason) {
    token_source *source = NULL;
    int result = token_source_open(&options, vocabulary, &source, &st);
    if (result == DONE)
        token_source_close(source);
    assert_int_equal(result, FAILED);
    if (!strstr(st.text, reason))
        fail_msg("'%s' does not say '%s'", st.text, reason);
}

static void read_window(token_source *source, size_t sequence) {
    if (token_source_read(source, sequence, ids, &length, &start, &st))
        fail_msg("%s", st.text);
    assert_true(length >= 2 && length <= token_source_context(source));
}

/* Every window's start and length are as listed, and the totals agree with them. */
static void assert_windows(token_options options, const uint64_t (*expected)[2], size_t count) {
    token_source *source = open_source(options, 256);
    uint64_t tokens = 0;
    size_t longest = 0;
    assert_int_equal(token_source_sequences(source), count);
    for (size_t i = 0; i < count; i++) {
        read_window(source, i);
        assert_int_equal(start, expected[i][0]);
        assert_int_equal(length, expected[i][1]);
        tokens += length;
        longest = length > longest ? length : longest;
    }
    assert_int_equal(token_source_tokens(source), tokens);
    assert_int_equal(token_source_context(source), longest);
    assert_int_equal(token_source_read(source, count, ids, &length, &start, &st), FAILED);
    token_source_close(source);
}

#define ASSERT_WINDOWS(options, ...)                                                               \
    do {                                                                                           \
        const uint64_t expected[][2] = {__VA_ARGS__};                                              \
        assert_windows(options, expected, sizeof expected / sizeof *expected);                     \
    } while (0)
#define OPTIONS(...) ((token_options){__VA_ARGS__})

static const char *digits(size_t bytes) {
    static const char text[] = "0123456789abcdefghij";
    return write_file("digits.txt", text, bytes);
}

static void windows_follow_one_another(void **state) {
    (void)state;
    ASSERT_WINDOWS(OPTIONS(.text = digits(10), .context = 4), {0, 4}, {4, 4}, {8, 2});
    ASSERT_WINDOWS(OPTIONS(.text = digits(12), .context = 4), {0, 4}, {4, 4}, {8, 4});
    /* One token alone predicts nothing. */
    ASSERT_WINDOWS(OPTIONS(.text = digits(9), .context = 4), {0, 4}, {4, 4});
    ASSERT_WINDOWS(OPTIONS(.text = digits(10), .context = 4000), {0, 10});
    ASSERT_WINDOWS(OPTIONS(.text = digits(2), .context = 2), {0, 2});
}

static void stride_overlaps_or_skips(void **state) {
    (void)state;
    /* Overlapping windows stop at the first that reaches the end. */
    ASSERT_WINDOWS(OPTIONS(.text = digits(10), .context = 4, .stride = 2), {0, 4}, {2, 4}, {4, 4},
                   {6, 4});
    ASSERT_WINDOWS(OPTIONS(.text = digits(9), .context = 4, .stride = 3), {0, 4}, {3, 4}, {6, 3});
    ASSERT_WINDOWS(OPTIONS(.text = digits(10), .context = 4, .stride = 8), {0, 4}, {8, 2});
    ASSERT_WINDOWS(OPTIONS(.text = digits(6), .context = 4, .stride = 8), {0, 4});
    ASSERT_WINDOWS(OPTIONS(.text = digits(20), .context = 4, .stride = 2, .sequences = 3), {0, 4},
                   {2, 4}, {4, 4});
}

static void sequences_are_evenly_spaced(void **state) {
    (void)state;
    ASSERT_WINDOWS(OPTIONS(.text = digits(20), .context = 4, .sequences = 1), {0, 4});
    ASSERT_WINDOWS(OPTIONS(.text = digits(20), .context = 4, .sequences = 2), {0, 4}, {16, 4});
    /* floor(i * 16 / 3) */
    ASSERT_WINDOWS(OPTIONS(.text = digits(20), .context = 4, .sequences = 4), {0, 4}, {5, 4},
                   {10, 4}, {16, 4});
    /* More than fit without overlap: as many as do. */
    ASSERT_WINDOWS(OPTIONS(.text = digits(11), .context = 4, .sequences = 9), {0, 4}, {7, 4});
    ASSERT_WINDOWS(OPTIONS(.text = digits(3), .context = 4, .sequences = 9), {0, 3});
}

static void spaced_windows_never_overlap(void **state) {
    (void)state;
    const char *path = "datasets/text/opticks.txt";
    for (size_t sequences = 1; sequences < 700; sequences += 13) {
        token_source *source =
            open_source(OPTIONS(.text = path, .context = 209, .sequences = sequences), 256);
        assert_int_equal(token_source_sequences(source), sequences);
        uint64_t end = 0;
        for (size_t i = 0; i < sequences; i++) {
            read_window(source, i);
            assert_int_equal(length, 209);
            assert_true(start >= end);
            end = start + length;
        }
        struct stat about;
        assert_int_equal(stat(path, &about), 0);
        assert_int_equal(end, sequences == 1 ? 209 : about.st_size);
        token_source_close(source);
    }
}

static void bos_takes_one_place_of_the_window(void **state) {
    (void)state;
    /* The length counts the BOS, the start does not; one real token is enough to predict. */
    ASSERT_WINDOWS(OPTIONS(.text = digits(10), .context = 4, .bos = "7"), {0, 4}, {3, 4}, {6, 4},
                   {9, 2});
    ASSERT_WINDOWS(OPTIONS(.text = digits(1), .context = 4, .bos = "7"), {0, 2});
    token_source *source = open_source(OPTIONS(.text = digits(10), .context = 4, .bos = "7"), 256);
    assert_int_equal(token_source_bos(source), 7);
    read_window(source, 1);
    const int32_t expected[] = {7, '3', '4', '5'};
    assert_memory_equal(ids, expected, sizeof expected);
    token_source_close(source);

    assert_refused(OPTIONS(.text = digits(9), .context = 4, .bos = "256"), 256, "--bos 256");
    assert_refused(OPTIONS(.text = digits(9), .context = 4, .bos = "-1"), 256, "--bos -1");
    assert_refused(OPTIONS(.text = digits(9), .context = 4, .bos = "x"), 256, "0..255");
}

/* What is printed while `source` reads all its windows; freed by the caller. */
static char *messages_of_reading(token_source *source) {
    option_quiet = false;
    scratch_capture_begin();
    for (size_t i = 0; i < token_source_sequences(source); i++)
        read_window(source, i);
    option_quiet = true;
    return scratch_capture_end();
}

static void doubled_bos_warns_once(void **state) {
    (void)state;
    token_options options =
        OPTIONS(.text = write_file("bos.txt", "\1\1a\1bc", 6), .context = 4, .bos = "1");
    token_source *source = open_source(options, 256);
    char *text = messages_of_reading(source);
    assert_non_null(strstr(text, "doubled"));
    assert_null(strstr(strstr(text, "doubled") + 1, "doubled"));
    free(text);
    token_source_close(source);

    source = open_source(OPTIONS(.text = write_file("bos.txt", "abc", 3), .context = 4, .bos = "1"),
                         256);
    text = messages_of_reading(source);
    assert_string_equal(text, "");
    free(text);
    token_source_close(source);
}

static void every_byte_is_a_token_with_a_piece(void **state) {
    (void)state;
    unsigned char bytes[256];
    for (size_t i = 0; i < 256; i++)
        bytes[i] = (unsigned char)i;
    token_source *source =
        open_source(OPTIONS(.text = write_file("bytes.txt", bytes, 256), .context = 256), 256);
    assert_string_equal(token_source_tokenizer(source), "bytes");
    assert_int_equal(token_source_bos(source), -1);
    read_window(source, 0);
    char piece[TOKEN_PIECE_SIZE];
    for (int32_t i = 0; i < 256; i++) {
        assert_int_equal(ids[i], i);
        assert_ptr_equal(token_source_piece(source, i, piece), piece);
        for (const char *c = piece; *c; c++)
            assert_true(*c >= ' ' && *c <= '~');
    }
    assert_string_equal(token_source_piece(source, 'a', piece), "a");
    assert_string_equal(token_source_piece(source, ' ', piece), " ");
    assert_string_equal(token_source_piece(source, '\\', piece), "\\\\");
    assert_string_equal(token_source_piece(source, '\n', piece), "\\x0a");
    assert_string_equal(token_source_piece(source, 0x7f, piece), "\\x7f");
    assert_string_equal(token_source_piece(source, 0xff, piece), "\\xff");
    assert_null(token_source_piece(source, 256, piece));
    assert_null(token_source_piece(source, -1, piece));
    token_source_close(source);
}

static void pipe_reads_like_a_file(void **state) {
    (void)state;
    int ends[2];
    char path[64], text[5000];
    assert_int_equal(pipe(ends), 0);
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + i % 26);
    assert_int_equal(write(ends[1], text, sizeof text), sizeof text);
    close(ends[1]);
    snprintf(path, sizeof path, "/proc/self/fd/%d", ends[0]);
    token_source *source = open_source(OPTIONS(.text = path, .context = 3000), 256);
    read_window(source, 1);
    assert_int_equal(length, 2000);
    for (size_t i = 0; i < length; i++)
        assert_int_equal(ids[i], 'a' + (i + 3000) % 26);
    token_source_close(source);
    close(ends[0]);
}

static void text_errors_say_what_to_do(void **state) {
    (void)state;
    assert_refused(OPTIONS(.context = 4), 256, "give --text FILE or --tokens FILE");
    assert_refused(OPTIONS(.text = "a", .tokens = "b", .context = 4), 256, "both");
    assert_refused(OPTIONS(.text = digits(9), .context = 4), 61,
                   "--text needs a byte-level model (vocabulary 256), this one has 61: give token "
                   "ids with --tokens");
    assert_refused(OPTIONS(.text = digits(0), .context = 4), 256, "digits.txt: empty");
    assert_refused(OPTIONS(.text = digits(1), .context = 4), 256, "1 tokens, expected at least 2");
    assert_refused(OPTIONS(.text = digits(9), .context = 1), 256, "context");
    assert_refused(OPTIONS(.text = "/nonexistent", .context = 4), 256,
                   "/nonexistent: No such file");
    assert_refused(OPTIONS(.text = "datasets", .context = 4), 256, "datasets: Is a directory");
    assert_refused(OPTIONS(.tokens = digits(9), .context = 4), 256, "plain text goes with --text");
    assert_refused(OPTIONS(.tokens = digits(0), .context = 4), 256, "empty");
}

static void bin_holds_16_or_32_bit_ids(void **state) {
    (void)state;
    const uint16_t narrow[] = {5, 50256, 0};
    const uint32_t wide[] = {5, 128000, 0};
    token_source *source = open_source(
        OPTIONS(.tokens = write_bin(20240520, 1, 3, narrow, sizeof narrow), .context = 9), 50257);
    assert_string_equal(token_source_tokenizer(source), "none");
    read_window(source, 0);
    assert_int_equal(length, 3);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(ids[i], narrow[i]);
    char piece[TOKEN_PIECE_SIZE];
    assert_null(token_source_piece(source, 5, piece));
    token_source_close(source);

    source = open_source(
        OPTIONS(.tokens = write_bin(20240801, 7, 3, wide, sizeof wide), .context = 9), 128001);
    read_window(source, 0);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(ids[i], wide[i]);
    token_source_close(source);
}

static void bin_that_contradicts_its_header_is_refused(void **state) {
    (void)state;
    const uint16_t data[] = {1, 2, 3};
    struct {
        uint32_t magic, version, counted;
        size_t bytes;
        const char *reason;
    } cases[] = {
        {20240520, 1, 4, 6, "truncated: 1030 bytes, expected 1032 for the 4 tokens"},
        {20240520, 1, 2, 6, "1030 bytes, expected 1028"},
        {20240520, 1, 3, 5, "truncated"},
        {20240520, 7, 3, 6, "version 7, expected 1"},
        {20240801, 7, 3, 6, "expected 1036"},
        {20240801, 1, 3, 6, "version 1, expected 7"},
        {20240520, 1, 0x7fffffff, 6, "expected 4294968318"},
        {20240520, 1, 0xffffffff, 6, "token count -1"},
        {20240520, 1, 0, 0, "empty: 0 tokens"},
        {0x88d83401, 1, 3, 6, "big-endian"},
        {20240521, 1, 3, 6, "no token file"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_refused(OPTIONS(.tokens = write_bin(cases[i].magic, cases[i].version,
                                                   cases[i].counted, data, cases[i].bytes),
                               .context = 4),
                       256, cases[i].reason);
    assert_refused(
        OPTIONS(.tokens = write_file("case.bin", "\x88\xd8\x34\x01 and", 8), .context = 4), 256,
        "truncated: 8 bytes, its header alone has 1024");
}

static void id_outside_the_vocabulary_is_named_with_its_place(void **state) {
    (void)state;
    const uint16_t data[] = {1, 2, 3, 4, 5, 61, 7};
    token_source *source = open_source(
        OPTIONS(.tokens = write_bin(20240520, 1, 7, data, sizeof data), .context = 4), 61);
    read_window(source, 0);
    assert_int_equal(token_source_read(source, 1, ids, &length, &start, &st), FAILED);
    assert_non_null(strstr(st.text, "case.bin: token 5: id 61, expected 0..60"));
    token_source_close(source);
}

static void npy_types_and_versions_agree(void **state) {
    (void)state;
    static const struct {
        const char *descr;
        unsigned width;
    } types[] = {{"|u1", 1}, {"<u2", 2}, {"<u4", 4}, {"<u8", 8},
                 {"|i1", 1}, {"<i2", 2}, {"<i4", 4}, {"<i8", 8}};
    for (int version = 1; version <= 3; version++)
        for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
            char dict[200];
            unsigned char data[5 * 8];
            for (unsigned i = 0; i < 5; i++)
                number_to_bytes(100 + i, types[k].width, data + i * types[k].width);
            snprintf(dict, sizeof dict,
                     "{'descr': '%s', 'fortran_order': False, 'shape': (5,), }   \n",
                     types[k].descr);
            token_source *source = open_source(
                OPTIONS(.tokens = write_npy(version, dict, data, 5 * types[k].width), .context = 9),
                256);
            read_window(source, 0);
            assert_int_equal(length, 5);
            for (int i = 0; i < 5; i++)
                assert_int_equal(ids[i], 100 + i);
            token_source_close(source);
        }
}

static void npy_rows_are_sequences(void **state) {
    (void)state;
    const int32_t data[4][6] = {{1, 2, 3, 4, 5, 6},
                                {7, 8, 9, -1, -1, -1},
                                {10, -1, -1, -1, -1, -1},
                                {11, 12, 13, 14, 15, -9}};
    const char *dict = "{'shape': (4, 6), 'fortran_order': False, 'descr': '<i4'}";
    const char *path = write_npy(1, dict, data, sizeof data);
    /* The third row has one token and is left out; starts count padding, so rows never meet. */
    ASSERT_WINDOWS(OPTIONS(.tokens = path, .context = 8), {0, 6}, {6, 3}, {18, 5});
    ASSERT_WINDOWS(OPTIONS(.tokens = path, .context = 4), {0, 4}, {4, 2}, {6, 3}, {18, 4});
    ASSERT_WINDOWS(OPTIONS(.tokens = path, .context = 8, .sequences = 2), {0, 6}, {18, 5});
    ASSERT_WINDOWS(OPTIONS(.tokens = path, .context = 8, .sequences = 9), {0, 6}, {6, 3}, {18, 5});
    ASSERT_WINDOWS(OPTIONS(.tokens = path, .context = 4, .stride = 2, .sequences = 3), {0, 4},
                   {2, 4}, {6, 3});
    ASSERT_WINDOWS(OPTIONS(.tokens = path, .context = 8, .bos = "0"), {0, 7}, {6, 4}, {12, 2},
                   {18, 6});
    token_source *source = open_source(OPTIONS(.tokens = path, .context = 8), 256);
    read_window(source, 1);
    const int32_t expected[] = {7, 8, 9};
    assert_memory_equal(ids, expected, sizeof expected);
    token_source_close(source);
}

static void negative_id_within_a_row_is_an_error(void **state) {
    (void)state;
    const int64_t data[2][3] = {{1, 2, 3}, {4, -100, 5}};
    const char *dict = "{'descr': '<i8', 'fortran_order': False, 'shape': (2, 3), }\n";
    token_source *source =
        open_source(OPTIONS(.tokens = write_npy(1, dict, data, sizeof data), .context = 3), 256);
    read_window(source, 0);
    assert_int_equal(token_source_read(source, 1, ids, &length, &start, &st), FAILED);
    assert_non_null(strstr(st.text, "row 1, column 1: id -100"));
    token_source_close(source);

    /* In a stream there is no padding. */
    source = open_source(
        OPTIONS(.tokens = write_npy(
                    1, "{'descr': '<i8', 'fortran_order': False, 'shape': (6,), }\n", data, 48),
                .context = 6),
        256);
    assert_int_equal(token_source_read(source, 0, ids, &length, &start, &st), FAILED);
    assert_non_null(strstr(st.text, "token 4: id -100"));
    token_source_close(source);
}

static void ids_beyond_63_bits_are_printed_as_they_are(void **state) {
    (void)state;
    const uint64_t data[] = {1, UINT64_MAX, 2};
    token_source *source = open_source(
        OPTIONS(.tokens = write_npy(
                    1, "{'descr': '<u8', 'fortran_order': False, 'shape': (3,), }\n", data, 24),
                .context = 3),
        256);
    assert_int_equal(token_source_read(source, 0, ids, &length, &start, &st), FAILED);
    assert_non_null(strstr(st.text, "token 1: id 18446744073709551615"));
    token_source_close(source);
}

static void npy_that_is_not_plain_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *dict, *reason;
    } cases[] = {
        {"{'descr': '>i4', 'fortran_order': False, 'shape': (3,), }", "big-endian ids (>i4)"},
        {"{'descr': '<i4', 'fortran_order': True, 'shape': (1, 3), }", "Fortran order"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", "type '<f4', expected whole"},
        {"{'descr': '|b1', 'fortran_order': False, 'shape': (12,), }", "type '|b1'"},
        {"{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (3,), }", "a simple type"},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (), }", "0 dimensions"},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (1, 1, 3), }", "3 dimensions"},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (4,), }", "truncated"},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }", "expected 8"},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (3), }", "a comma in a 1-D shape"},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (-3,), }", "a whole number"},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (1 3), }", "the end of the shape"},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (9223372036854775807, 9), }",
         "too large"},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (99999999999999999999,), }",
         "too large"},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (4611686018427387907,), }",
         "too large"},
        {"{'descr': '<i4', 'fortran_order': False}", "'shape' before its end"},
        {"{'descr': '<i4', 'descr': '<i4', 'fortran_order': False, 'shape': (3,), }", "once"},
        {"{'descr': '<i4', 'order': False, 'shape': (3,), }", "once"},
        {"{'descr': '<i4', 'fortran_order': 0, 'shape': (3,), }", "True or False"},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (3,), } x", "nothing after"},
        {"{'descr': '<i4' 'fortran_order': False, 'shape': (3,), }", "',' or '}'"},
        {"{'descr': '<i4", "a simple type"},
        {"", "'{'"},
    };
    const int32_t data[] = {1, 2, 3};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_refused(
            OPTIONS(.tokens = write_npy(1, cases[i].dict, data, sizeof data), .context = 4), 256,
            cases[i].reason);
    const char *none = "{'descr': '<i4', 'fortran_order': False, 'shape': (0,), }";
    assert_refused(OPTIONS(.tokens = write_npy(1, none, data, 0), .context = 4), 256, "empty");
    const char *hollow = "{'descr': '<i4', 'fortran_order': False, 'shape': (999999999999, 0), }";
    assert_refused(OPTIONS(.tokens = write_npy(1, hollow, data, 0), .context = 4), 256,
                   "no usable");
    const char *thin = "{'descr': '<i4', 'fortran_order': False, 'shape': (3, 1), }";
    assert_refused(OPTIONS(.tokens = write_npy(1, thin, data, 12), .context = 4), 256,
                   "no usable row: the longest has 1 tokens");
    const char *good = "{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }";
    assert_refused(OPTIONS(.tokens = write_npy(4, good, data, 12), .context = 4), 256,
                   "version 4.0");
    assert_refused(OPTIONS(.tokens = write_file("case.npy", "\x93NUMPY\1", 7), .context = 4), 256,
                   "truncated");
    assert_refused(
        OPTIONS(.tokens = write_file("case.npy", "\x93NUMPY\1\0\xff\xff{  ", 13), .context = 4),
        256, "truncated: .npy header of 65535 bytes");
}

static void file_that_shrinks_is_noticed(void **state) {
    (void)state;
    const char *path = digits(20);
    token_source *source = open_source(OPTIONS(.text = path, .context = 10), 256);
    assert_int_equal(truncate(path, 12), 0);
    read_window(source, 0);
    assert_int_equal(token_source_read(source, 1, ids, &length, &start, &st), FAILED);
    assert_non_null(strstr(st.text, "became shorter"));
    token_source_close(source);
}

/* A sparse file of 1 GiB, read while the address space has room for 64 MiB more. */
static void memory_does_not_grow_with_the_file(void **state) {
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    skip(); /* reserves terabytes of address space itself */
#endif
    const char *path = write_file("large.txt", "x", 1);
    assert_int_equal(truncate(path, (off_t)1 << 30), 0);
    FILE *statm = fopen("/proc/self/statm", "r");
    unsigned long pages = 0;
    assert_non_null(statm);
    assert_int_equal(fscanf(statm, "%lu", &pages), 1);
    fclose(statm);
    struct rlimit old, tight;
    assert_int_equal(getrlimit(RLIMIT_AS, &old), 0);
    tight = old;
    tight.rlim_cur = pages * (rlim_t)sysconf(_SC_PAGESIZE) + ((rlim_t)64 << 20);
    assert_int_equal(setrlimit(RLIMIT_AS, &tight), 0);
    token_source *source = open_source(OPTIONS(.text = path, .context = 4096), 256);
    assert_int_equal(token_source_sequences(source), 1 << 18);
    assert_int_equal(token_source_tokens(source), 1 << 30);
    for (size_t i = 0; i < 1 << 18; i += 1000)
        read_window(source, i);
    token_source_close(source);
    assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
    assert_int_equal(unlink(path), 0);
}

static void headers_written_are_read_back(void **state) {
    (void)state;
    unsigned char file[TOKEN_BIN_HEADER + 16] = {0};
    unsigned char *header = file;
    for (unsigned width = 2; width <= 4; width += 2) {
        token_bin_header(width, 3, header);
        ASSERT_WINDOWS(OPTIONS(.tokens = write_file("case.bin", file, TOKEN_BIN_HEADER + 3 * width),
                               .context = 9),
                       {0, 3});
    }
    memset(file, 0, sizeof file);
    token_npy_header(3, header);
    memset(file + TOKEN_NPY_HEADER, 0, 12);
    ASSERT_WINDOWS(
        OPTIONS(.tokens = write_file("case.npy", file, TOKEN_NPY_HEADER + 12), .context = 9),
        {0, 3});
}

/* The value is sha256 of 02000000 01000000 ff000000 01000000 00010000, little endian. */
static void tokens_hash_is_of_lengths_and_ids(void **state) {
    (void)state;
    const unsigned char bytes[] = {2, 0, 0, 0, 1, 0, 0, 0, 255, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0};
    const int32_t first[] = {1, 255}, second[] = {256};
    sha256 expected, hash;
    char expected_hex[65], hex[65];
    sha256_init(&expected);
    sha256_add(&expected, bytes, sizeof bytes);
    sha256_finish(&expected, expected_hex);
    sha256_init(&hash);
    tokens_hash_add(&hash, first, 2);
    tokens_hash_add(&hash, second, 1);
    sha256_finish(&hash, hex);
    assert_string_equal(hex, expected_hex);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_follow_one_another),
        cmocka_unit_test(stride_overlaps_or_skips),
        cmocka_unit_test(sequences_are_evenly_spaced),
        cmocka_unit_test(spaced_windows_never_overlap),
        cmocka_unit_test(bos_takes_one_place_of_the_window),
        cmocka_unit_test(doubled_bos_warns_once),
        cmocka_unit_test(every_byte_is_a_token_with_a_piece),
        cmocka_unit_test(pipe_reads_like_a_file),
        cmocka_unit_test(text_errors_say_what_to_do),
        cmocka_unit_test(bin_holds_16_or_32_bit_ids),
        cmocka_unit_test(bin_that_contradicts_its_header_is_refused),
        cmocka_unit_test(id_outside_the_vocabulary_is_named_with_its_place),
        cmocka_unit_test(npy_types_and_versions_agree),
        cmocka_unit_test(npy_rows_are_sequences),
        cmocka_unit_test(negative_id_within_a_row_is_an_error),
        cmocka_unit_test(ids_beyond_63_bits_are_printed_as_they_are),
        cmocka_unit_test(npy_that_is_not_plain_is_refused),
        cmocka_unit_test(file_that_shrinks_is_noticed),
        cmocka_unit_test(memory_does_not_grow_with_the_file),
        cmocka_unit_test(headers_written_are_read_back),
        cmocka_unit_test(tokens_hash_is_of_lengths_and_ids),
    };
    option_quiet = true;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
