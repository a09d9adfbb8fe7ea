#include "datasets/token_source.h"

#include "datasets/token_format.h"
#include "runtime/base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTE_VOCABULARY = 256, CHUNK_BYTES = 1 << 14, OPTION_MOST = 1 << 30 };

/* One row of a 2-D array, or the stream. */
typedef struct token_row {
    uint64_t length;       /* ids before the padding */
    uint64_t first_window; /* number of its first window among all */
} token_row;

struct token_source {
    token_input input;
    token_layout layout;
    token_row *row; /* [layout.rows + 1]; the last one holds the number of windows */
    size_t vocabulary;
    int64_t bos;        /* -1: none */
    uint64_t room;      /* ids of the stream in a full window */
    uint64_t stride;    /* from window to window within a row */
    uint64_t least;     /* ids of the stream in the shortest window that predicts something */
    uint64_t sequences; /* windows read */
    bool spaced;        /* they are evenly spaced, not the first ones */
    uint64_t tokens;    /* in all windows together */
    size_t longest;
    bool is_text;
    bool bos_warned;
};

/* Where a window lies. */
typedef struct token_window {
    uint64_t row, column, length;
} token_window;

/* Windows in a row of `length` ids: up to the first that reaches the end, if it predicts something.
 * All but the last one are full. */
static uint64_t windows_in(const token_source *s, uint64_t length) {
    if (length < s->least)
        return 0;
    if (length <= s->room)
        return 1;
    uint64_t steps = (length - s->room - 1) / s->stride + 1;
    uint64_t last = steps * s->stride;
    return last < length && length - last >= s->least ? steps + 1 : steps;
}

/* floor(i * range / steps) without overflow, for i <= steps < 2^31. */
static uint64_t evenly(uint64_t i, uint64_t steps, uint64_t range) {
    return steps ? i * (range / steps) + i * (range % steps) / steps : 0;
}

static token_window window_at(const token_source *s, uint64_t sequence) {
    uint64_t windows = s->row[s->layout.rows].first_window;
    token_window w = {0};
    if (s->spaced && !s->layout.has_rows) {
        uint64_t length = s->row[0].length;
        w.column = length > s->room ? evenly(sequence, s->sequences - 1, length - s->room) : 0;
    } else {
        if (s->spaced)
            sequence = evenly(sequence, s->sequences - 1, windows - 1);
        uint64_t low = 0, high = s->layout.rows; /* the window is in a row of [low, high) */
        while (high - low > 1) {
            uint64_t middle = low + (high - low) / 2;
            if (s->row[middle].first_window <= sequence)
                low = middle;
            else
                high = middle;
        }
        w.row = low;
        w.column = (sequence - s->row[low].first_window) * s->stride;
    }
    uint64_t rest = s->row[w.row].length - w.column;
    w.length = rest < s->room ? rest : s->room;
    return w;
}

/* One id as stored, sign-extended; ids of 2^63 and above in an unsigned array come out negative. */
static int64_t decode(const token_layout *layout, const unsigned char *bytes) {
    uint64_t number = bytes_to_number(bytes, layout->width);
    unsigned sign = 8 * layout->width - 1;
    if (layout->is_signed && number >> sign)
        number |= ~UINT64_C(0) << sign;
    return (int64_t)number;
}

/* `count` ids from place `position` of the array on, as stored in the file. */
static int read_raw(const token_source *s, uint64_t position, unsigned char *raw, size_t count,
                    status *st) {
    return token_input_read(&s->input, s->layout.offset + position * s->layout.width, raw,
                            count * s->layout.width, st);
}

/* Ids before the negative ones that run to the row's end, found backwards. */
static int row_length(const token_source *s, uint64_t row, uint64_t *length, status *st) {
    unsigned char raw[CHUNK_BYTES];
    unsigned width = s->layout.width;
    *length = s->layout.row_length;
    while (s->layout.is_signed && *length) {
        size_t count = *length < CHUNK_BYTES / width ? (size_t)*length : CHUNK_BYTES / width;
        if (read_raw(s, row * s->layout.row_length + *length - count, raw, count, st))
            return FAILED;
        while (count && decode(&s->layout, raw + (count - 1) * width) < 0)
            count--, --*length;
        if (count)
            break;
    }
    return DONE;
}

/* Finds the rows' lengths and counts their windows. */
static int measure_rows(token_source *s, status *st) {
    uint64_t rows = s->layout.rows, unusable = 0, longest = 0;
    if (rows >= SIZE_MAX / sizeof(token_row))
        return status_fail(st, "%s: too many rows", s->input.name);
    s->row = mem_array((size_t)rows + 1, sizeof(token_row), "lengths of the rows", st);
    if (!s->row)
        return FAILED;
    for (uint64_t r = 0; r < rows; r++) {
        token_row *row = &s->row[r];
        row->length = s->layout.row_length;
        if (s->layout.has_rows && row_length(s, r, &row->length, st))
            return FAILED;
        uint64_t windows = windows_in(s, row->length);
        row[1].first_window = row->first_window + windows;
        unusable += windows == 0;
        longest = row->length > longest ? row->length : longest;
    }
    if (!s->row[rows].first_window && !s->layout.has_rows)
        return status_fail(st, "%s: %s%" PRIu64 " tokens, expected at least %" PRIu64,
                           s->input.name, longest ? "" : "empty: ", longest, s->least);
    if (!s->row[rows].first_window)
        return status_fail(
            st, "%s: no usable row: the longest has %" PRIu64 " tokens, expected at least %" PRIu64,
            s->input.name, longest, s->least);
    if (unusable)
        log_warn("%s: %" PRIu64 " of %" PRIu64 " rows have fewer than %" PRIu64
                 " tokens and are left out",
                 s->input.name, unusable, rows, s->least);
    longest = longest < s->room ? longest : s->room;
    s->longest = (size_t)longest + (s->bos >= 0);
    return DONE;
}

/* Chooses the windows and adds up their tokens. */
static int plan_windows(token_source *s, const token_options *o, status *st) {
    uint64_t length = s->row[0].length; /* of the stream */
    uint64_t most = s->row[s->layout.rows].first_window;
    s->spaced = o->sequences && !o->stride;
    if (s->spaced && !s->layout.has_rows)
        most = length > s->room ? length / s->room : 1;
    if (most > SIZE_MAX)
        return status_fail(st, "%s: too many sequences", s->input.name);
    if (o->sequences > most)
        log_warn("%s: %zu sequences asked for, only %" PRIu64 " fit", s->input.name, o->sequences,
                 most);
    s->sequences = o->sequences && o->sequences < most ? o->sequences : most;

    s->tokens = s->bos >= 0 ? s->sequences : 0;
    if (!s->layout.has_rows) { /* all but the last one are full */
        s->tokens += (s->sequences - 1) * s->room + window_at(s, s->sequences - 1).length;
        return DONE;
    }
    for (uint64_t i = 0; i < s->sequences; i++)
        s->tokens += window_at(s, i).length;
    return DONE;
}

/* A token file says itself where its ids are; a text is one row of bytes. */
static int find_layout(token_source *s, status *st) {
    const char *name = s->input.name;
    bool found = false;
    int result = token_bin_layout(&s->input, &found, &s->layout, st);
    if (!result && !found)
        result = token_npy_layout(&s->input, &found, &s->layout, st);
    if (s->is_text) {
        if (found)
            log_warn("%s: is a token file, read as text; for its ids give it with --tokens", name);
        s->layout = (token_layout){.rows = 1, .row_length = s->input.size, .width = 1};
        return DONE;
    }
    if (result || found)
        return result;
    return status_fail(
        st,
        "%s: %s, expected .bin as llm.c writes it (first int32 20240520 or 20240801) "
        "or .npy; plain text goes with --text",
        name, s->input.size ? "no token file" : "empty");
}

static int check_options(const token_options *o, size_t vocabulary, token_source *s, status *st) {
    size_t bos = 0;
    if (!o->text && !o->tokens)
        return status_fail(st, "no input: give --text FILE or --tokens FILE");
    if (o->text && o->tokens)
        return status_fail(st, "both --text and --tokens: give one of them");
    if (vocabulary < 1 || vocabulary > INT32_MAX)
        return status_fail(st, "vocabulary of %zu ids, expected 1..%d", vocabulary, INT32_MAX);
    if (o->text && vocabulary != BYTE_VOCABULARY)
        return status_fail(
            st,
            "--text needs a byte-level model (vocabulary %d), this one has %zu: give "
            "token ids with --tokens",
            BYTE_VOCABULARY, vocabulary);
    if (o->context < 2 || o->context > OPTION_MOST || o->sequences > OPTION_MOST ||
        o->stride > OPTION_MOST)
        return status_fail(
            st,
            "context %zu, sequences %zu, stride %zu: expected a context of 2 or more "
            "and none above %d",
            o->context, o->sequences, o->stride, OPTION_MOST);
    if (o->bos) {
        status reason;
        if (parse_size(o->bos, &bos, &reason) || bos >= vocabulary)
            return status_fail(st, "--bos %s: expected a token id, 0..%zu", o->bos, vocabulary - 1);
    }
    s->is_text = o->text != NULL;
    s->vocabulary = vocabulary;
    s->bos = o->bos ? (int64_t)bos : -1;
    s->room = o->context - (o->bos != NULL);
    s->stride = o->stride ? o->stride : s->room;
    s->least = o->bos ? 1 : 2;
    return DONE;
}

int token_source_open(const token_options *o, size_t vocabulary, token_source **source,
                      status *st) {
    token_source *s = mem_array(1, sizeof *s, "token source", st);
    if (!s)
        return FAILED;
    s->input.descriptor = -1;
    if (check_options(o, vocabulary, s, st) ||
        token_input_open(&s->input, o->text ? o->text : o->tokens, st) || find_layout(s, st) ||
        measure_rows(s, st) || plan_windows(s, o, st)) {
        token_source_close(s);
        return FAILED;
    }
    *source = s;
    return DONE;
}

void token_source_close(token_source *s) {
    if (!s)
        return;
    token_input_close(&s->input);
    free(s->row);
    free(s);
}

size_t token_source_sequences(const token_source *s) {
    return (size_t)s->sequences;
}

size_t token_source_context(const token_source *s) {
    return s->longest;
}

uint64_t token_source_tokens(const token_source *s) {
    return s->tokens;
}

int64_t token_source_bos(const token_source *s) {
    return s->bos;
}

const char *token_source_tokenizer(const token_source *s) {
    return s->is_text ? "bytes" : "none";
}

static int bad_id(const token_source *s, uint64_t row, uint64_t column, int64_t id, status *st) {
    char place[64], text[24];
    if (s->layout.has_rows)
        snprintf(place, sizeof place, "row %" PRIu64 ", column %" PRIu64, row, column);
    else
        snprintf(place, sizeof place, "token %" PRIu64, column);
    if (s->layout.is_signed)
        snprintf(text, sizeof text, "%" PRId64, id);
    else
        snprintf(text, sizeof text, "%" PRIu64, (uint64_t)id);
    return status_fail(st, "%s: %s: id %s, expected 0..%zu (the model's vocabulary has %zu)%s",
                       s->input.name, place, text, s->vocabulary - 1, s->vocabulary,
                       s->layout.has_rows && s->layout.is_signed && id < 0
                           ? "; negative ids may only end a row"
                           : "");
}

int token_source_read(token_source *s, size_t sequence, int32_t *ids, size_t *length,
                      uint64_t *start, status *st) {
    unsigned char raw[CHUNK_BYTES];
    unsigned width = s->layout.width;
    if (sequence >= s->sequences)
        return status_fail(st, "%s: sequence %zu, expected 0..%" PRIu64, s->input.name, sequence,
                           s->sequences - 1);
    token_window w = window_at(s, sequence);
    uint64_t begin = w.row * s->layout.row_length + w.column;
    size_t n = 0;
    if (s->bos >= 0)
        ids[n++] = (int32_t)s->bos;
    for (uint64_t done = 0; done < w.length;) {
        uint64_t rest = w.length - done;
        size_t count = rest < CHUNK_BYTES / width ? (size_t)rest : CHUNK_BYTES / width;
        if (read_raw(s, begin + done, raw, count, st))
            return FAILED;
        for (size_t k = 0; k < count; k++) {
            int64_t id = decode(&s->layout, raw + k * width);
            if ((uint64_t)id >= s->vocabulary)
                return bad_id(s, w.row, w.column + done + k, id, st);
            ids[n++] = (int32_t)id;
        }
        done += count;
    }
    if (s->bos >= 0 && ids[1] == ids[0] && !s->bos_warned) {
        s->bos_warned = true;
        log_warn("%s: sequence %zu begins with the BOS %" PRId64 " already: it is doubled",
                 s->input.name, sequence, s->bos);
    }
    *length = n;
    *start = begin;
    return DONE;
}

const char *token_source_piece(const token_source *s, int32_t id, char piece[TOKEN_PIECE_SIZE]) {
    if (!s->is_text || id < 0 || id >= BYTE_VOCABULARY)
        return NULL;
    const char *format = id < ' ' || id > '~' ? "\\x%02x" : id == '\\' ? "\\\\" : "%c";
    snprintf(piece, TOKEN_PIECE_SIZE, format, id);
    return piece;
}

void tokens_hash_add(sha256 *hash, const int32_t *ids, size_t length) {
    unsigned char bytes[4];
    number_to_bytes(length, 4, bytes);
    sha256_add(hash, bytes, 4);
    for (size_t i = 0; i < length; i++) {
        number_to_bytes((uint32_t)ids[i], 4, bytes);
        sha256_add(hash, bytes, 4);
    }
}
