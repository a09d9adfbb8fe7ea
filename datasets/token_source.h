/* token_source.h - windows of token ids from a text or a token file.
 *
 *     token_options tokens = TOKEN_OPTIONS_DEFAULT;
 *     const option_spec options[] = {TOKEN_OPTIONS(&tokens), OPTION_QUIET, {0}};
 *     ...
 *     token_source *source;
 *     if (token_source_open(&tokens, vocabulary, &source, st)) return FAILED;
 *     for (size_t i = 0; i < token_source_sequences(source); i++)
 *         if (token_source_read(source, i, ids, &length, &start, st)) ...
 *     token_source_close(source);
 *
 * Inputs, told apart by their content:
 *   text     every byte is a token, id = byte; any bytes, valid UTF-8 or not
 *   .bin     256 int32 (magic 20240520 version 1: uint16 ids; magic 20240801 version 7: uint32 ids;
 *            third number: how many ids), then the ids, as llm.c writes them
 *   .npy     integers in C order, little endian; 1-D: one stream; 2-D: one sequence a row, ended
 *            early by negative ids that run to the row's end
 * A regular file is read window by window, so memory does not grow with it (a 2-D array costs 16
 * bytes a row); `-` and pipes are held in memory, at most 1 GiB.
 *
 * Windows. A window takes `room` tokens of the stream: the context, less one with a BOS. Windows
 * start at 0, stride, 2*stride, ... up to the first that reaches the end; that one may be short,
 * and is left out where nothing in it could be predicted. With `sequences` = N and no stride there
 * are N windows, window i at floor(i * (tokens - room) / (N - 1)): evenly spaced, the first at the
 * start and the last at the end; N shrinks, with a warning, to what fits without overlap. With
 * `sequences` and a stride: the first N. Rows of a 2-D array are cut each by itself; N then takes
 * evenly spaced ones of all windows.
 */
#ifndef FATHOM_TOKEN_SOURCE_H
#define FATHOM_TOKEN_SOURCE_H

#include "runtime/base/options.h"
#include "runtime/base/sha256.h"
#include "runtime/base/status.h"

#include <stdint.h>

typedef struct token_source token_source;

typedef struct token_options {
    const char *text;   /* --text: path, "-" for standard input; NULL: not given */
    const char *tokens; /* --tokens: path of a .bin or .npy file; NULL: not given */
    size_t context;     /* longest window, in tokens, a BOS included; >= 2 */
    size_t sequences;   /* windows wanted; 0: all */
    size_t stride;   /* from one window's start to the next's, in tokens; 0: no overlap, no gap */
    const char *bos; /* id put before every window, in decimal; NULL: none */
    size_t batch;    /* sequences computed together, 0: chosen by the command; not used here */
} token_options;

#define TOKEN_OPTIONS_DEFAULT                                                                      \
    { .context = 256 }

/* The option table entries of every command that reads tokens; `o` is a token_options *. */
#define TOKEN_OPTIONS(o)                                                                           \
    {.name = "text",                                                                               \
     .kind = OPTION_TEXT,                                                                          \
     .value = &(o)->text,                                                                          \
     .metavar = "FILE|-",                                                                          \
     .help = "text to read, one token a byte (models with a vocabulary of 256)"},                  \
        {.name = "tokens",                                                                         \
         .kind = OPTION_TEXT,                                                                      \
         .value = &(o)->tokens,                                                                    \
         .metavar = "FILE",                                                                        \
         .help = "token ids to read: .bin as llm.c writes it, or .npy (1-D: a stream, 2-D: one "   \
                 "sequence a row)"},                                                               \
        {.name = "context",                                                                        \
         .letter = 'c',                                                                            \
         .kind = OPTION_SIZE,                                                                      \
         .value = &(o)->context,                                                                   \
         .min = 2,                                                                                 \
         .max = 1 << 24,                                                                           \
         .metavar = "N",                                                                           \
         .help = "tokens in a sequence"},                                                          \
        {.name = "sequences",                                                                      \
         .letter = 'n',                                                                            \
         .kind = OPTION_SIZE,                                                                      \
         .value = &(o)->sequences,                                                                 \
         .max = 1 << 30,                                                                           \
         .metavar = "N",                                                                           \
         .help = "sequences to read, evenly spaced over the input, or the first N where --stride " \
                 "is given; 0 = all"},                                                             \
        {.name = "stride",                                                                         \
         .kind = OPTION_SIZE,                                                                      \
         .value = &(o)->stride,                                                                    \
         .max = 1 << 30,                                                                           \
         .metavar = "N",                                                                           \
         .help = "tokens from one sequence's start to the next's; 0 = no overlap and no gap"},     \
        {.name = "bos",                                                                            \
         .kind = OPTION_TEXT,                                                                      \
         .value = &(o)->bos,                                                                       \
         .metavar = "ID",                                                                          \
         .help = "token id put before every sequence; it counts towards --context"},               \
    {                                                                                              \
        .name = "batch", .kind = OPTION_SIZE, .value = &(o)->batch, .max = 1 << 16,                \
        .metavar = "N",                                                                            \
        .help =                                                                                    \
            "sequences computed together; 0 = as many as keep the device busy (2048 tokens on "    \
            "a CPU, whose results do not depend on it)"                                            \
    }

/* Opens what `options` name, whose strings must outlive the source. `vocabulary`: ids the model
 * knows, 1..2^31-1. Fails on: neither or both inputs, a text where vocabulary is not 256, a file
 * that is no token file or disagrees with its own header, fewer than 2 tokens, a BOS that is no id.
 * Ids themselves are checked when they are read. */
int token_source_open(const token_options *options, size_t vocabulary, token_source **source,
                      status *st) MUST_USE;
void token_source_close(token_source *source); /* NULL allowed */

size_t token_source_sequences(const token_source *source);      /* windows, >= 1 */
size_t token_source_context(const token_source *source);        /* length of the longest window */
uint64_t token_source_tokens(const token_source *source);       /* sum of the windows' lengths */
int64_t token_source_bos(const token_source *source);           /* -1: none */
const char *token_source_tokenizer(const token_source *source); /* "bytes"; "none": a token file */

/* Window number `sequence` (from 0) into ids [token_source_context]; *length of them, 2 or more,
 * all in 0..vocabulary-1. *start: offset in the stream of the first token after the BOS, if any,
 * counted in tokens; in a 2-D array row * row_length + column. So the window covers the stream's
 * [start, start + length), one less with a BOS. Fails on an id outside the vocabulary, with its
 * place, and on a file that can no longer be read. */
int token_source_read(token_source *source, size_t sequence, int32_t *ids, size_t *length,
                      uint64_t *start, status *st) MUST_USE;

enum { TOKEN_PIECE_SIZE = 5 };
/* The text of one id, written to `piece` and returned: printable ASCII as it is, a backslash
 * doubled, any other byte as \xNN; always valid UTF-8. NULL where the input has no text (a token
 * file) or the id is no byte. */
const char *token_source_piece(const token_source *source, int32_t id,
                               char piece[TOKEN_PIECE_SIZE]);

/* Adds one sequence to a hash of tokens: its length as int32, then its ids, little endian. Over all
 * sequences in order this is the `tokens_sha256` of a recording. */
void tokens_hash_add(sha256 *hash, const int32_t *ids, size_t length);

#endif
