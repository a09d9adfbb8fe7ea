/* fathom tokenize - a text into a token file. */
#include "datasets/token_format.h"
#include "runtime/base/command.h"
#include "runtime/base/interrupt.h"
#include "runtime/base/log.h"
#include "runtime/base/options.h"
#include "runtime/base/output.h"
#include "runtime/base/sha256.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK = 1 << 14 }; /* tokens */

typedef struct token_writer {
    const char *format; /* "bin16", "bin32", "npy" */
    unsigned width;     /* bytes of an id */
    FILE *stream;
    const char *name; /* of the output, for messages */
    uint64_t tokens;
    sha256 hash; /* of all ids as int32, little endian: the same in every format */
} token_writer;

static int choose_format(const char *path, const char **format, status *st) {
    const char *ending = path ? strrchr(path, '.') : NULL;
    if (strcmp(*format, "auto"))
        return DONE;
    if (ending && strcmp(ending, ".npy") == 0)
        *format = "npy";
    else if (ending && strcmp(ending, ".bin") == 0)
        *format = "bin16";
    else
        return status_fail(st, "%s: expected a name ending in .bin or .npy, or --format",
                           path ? path : "standard output");
    return DONE;
}

/* The header counts the tokens and comes first, but is known last. */
static int write_header(const token_writer *w, status *st) {
    unsigned char header[TOKEN_BIN_HEADER];
    size_t bytes = TOKEN_BIN_HEADER;
    if (strcmp(w->format, "npy") == 0) {
        token_npy_header(w->tokens, header);
        bytes = TOKEN_NPY_HEADER;
    } else {
        token_bin_header(w->width, w->tokens, header);
    }
    if (fseeko(w->stream, 0, SEEK_SET))
        return status_fail(st, "%s: cannot go back to its header: %s", w->name, strerror(errno));
    fwrite(header, 1, bytes, w->stream); /* output_commit checks */
    return DONE;
}

/* The byte tokenizer: every byte is an id. */
static int write_bytes(token_writer *w, const unsigned char *text, size_t count, status *st) {
    static unsigned char ids[CHUNK * 4], wide[CHUNK * 4];
    for (size_t i = 0; i < count; i++) {
        number_to_bytes(text[i], w->width, ids + i * w->width);
        number_to_bytes(text[i], 4, wide + i * 4);
    }
    sha256_add(&w->hash, wide, count * 4);
    w->tokens += count;
    if (w->tokens > TOKEN_BIN_MOST && strcmp(w->format, "npy"))
        return status_fail(st,
                           "%s: more than %d tokens, the most a .bin file can count: write .npy",
                           w->name, TOKEN_BIN_MOST);
    if (fwrite(ids, w->width, count, w->stream) != count)
        return status_fail(st, "%s: could not be written: %s", w->name, strerror(errno));
    return DONE;
}

static int copy_tokens(const char *name, FILE *text, token_writer *w, status *st) {
    unsigned char chunk[CHUNK];
    struct stat about;
    bool known = fstat(fileno(text), &about) == 0 && S_ISREG(about.st_mode);
    int result = write_header(w, st);
    if (known)
        progress_begin("tokenize", (uint64_t)about.st_size, "tokens");
    for (size_t count = 1; !result && count;) {
        count = fread(chunk, 1, sizeof chunk, text);
        if (ferror(text))
            result = status_fail(st, "%s: %s", name, strerror(errno));
        else
            result = write_bytes(w, chunk, count, st);
        if (!result && interrupt_pending()) {
            status_fail(st, "interrupted");
            result = INTERRUPTED;
        }
        if (known)
            progress_update(w->tokens, 0);
    }
    if (known)
        progress_end();
    if (!result && !w->tokens)
        result = status_fail(st, "%s: empty: no tokens", name);
    return result ? result : write_header(w, st);
}

/* Standard output must be a file at its start. */
static int check_stdout(status *st) {
    if (isatty(STDOUT_FILENO))
        return status_fail(st, "a token file is not for a terminal: give -o FILE");
    int flags = fcntl(STDOUT_FILENO, F_GETFL);
    if (lseek(STDOUT_FILENO, 0, SEEK_CUR) != 0 || flags < 0 || flags & O_APPEND)
        return status_fail(st, "standard output: cannot go back to write the header: give -o FILE");
    return DONE;
}

static int tokenize(const char *path, const char *out_path, const char *format, status *st) {
    bool to_stdout = !out_path || strcmp(out_path, "-") == 0;
    bool from_stdin = path && strcmp(path, "-") == 0;
    token_writer w = {.format = format, .name = to_stdout ? "standard output" : out_path};
    output *out = NULL;
    FILE *text = NULL;
    char hex[65];
    int result = FAILED;

    if (!path) {
        status_fail(st, "no input: give --text FILE");
        goto cleanup;
    }
    if (choose_format(out_path, &w.format, st) || (to_stdout && check_stdout(st)))
        goto cleanup;
    text = from_stdin ? stdin : fopen(path, "rbe");
    if (!text) {
        status_fail(st, "%s: %s", path, strerror(errno));
        goto cleanup;
    }
    if (output_open(out_path, &out, st))
        goto cleanup;
    w.width = strcmp(w.format, "bin16") == 0 ? 2 : 4;
    w.stream = output_stream(out);
    sha256_init(&w.hash);
    result = copy_tokens(from_stdin ? "standard input" : path, text, &w, st);
    if (result) {
        output_abandon(out);
        goto cleanup;
    }
    result = output_commit(out, st);
    if (result)
        goto cleanup;
    sha256_finish(&w.hash, hex);
    fprintf(to_stdout ? stderr : stdout, "%s: %" PRIu64 " tokens, %s, sha256 of the ids %s\n",
            w.name, w.tokens, w.format, hex);
cleanup:
    if (text && !from_stdin)
        fclose(text);
    return result;
}

int cmd_tokenize(int argc, char **argv) {
    static const char *const formats[] = {"auto", "bin16", "bin32", "npy", NULL};
    const char *text = NULL, *out = NULL, *format = "auto";
    const option_spec options[] = {
        {.name = "text",
         .kind = OPTION_TEXT,
         .value = &text,
         .metavar = "FILE|-",
         .help = "text to read; - is standard input"},
        OPTION_OUTPUT(&out),
        {.name = "format",
         .kind = OPTION_CHOICE,
         .value = &format,
         .choices = formats,
         .metavar = "NAME",
         .help = "auto goes by the output's name: .bin is bin16, .npy is npy"},
        OPTION_QUIET,
        OPTION_VERBOSE,
        {0}};
    const command_spec spec = {
        .name = "tokenize",
        .summary = "Turns a text into a token file, one token a byte (id = byte).",
        .options = options,
        .notes =
            "bin16 and bin32 are the 16- and 32-bit files that llm.c reads and writes; npy is a "
            "1-D array of int32. The sha256 is that of all ids as int32, little endian, the "
            "same for every format. Memory does not grow with the text."};
    status st;
    const int parsed = options_parse(&spec, argc, argv);
    if (parsed != OPTIONS_RUN)
        return parsed;
    interrupt_install();
    int result = tokenize(text, out, format, &st);
    if (result == INTERRUPTED) {
        log_error("%s", st.text);
        return EXIT_INTERRUPTED;
    }
    return result ? command_fail(&st) : EXIT_DONE;
}
