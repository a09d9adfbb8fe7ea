#include "analyze/tests/small_recording.h"

#include "kernels/routing_sums.h"
#include "runtime/base/command.h"
#include "runtime/tests/scratch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SITES = 8, SOURCES = 8, HEADS = 4, LENGTH = 64 };

static size_t sources_at(const small_model *m, size_t site, size_t *label) {
    size_t count = 0;
    for (size_t s = 0; s < m->sources; s++)
        if (m->available[site * m->sources + s])
            label[count++] = s;
    return count;
}

static size_t length_of(const small_model *m, size_t sequence) {
    return sequence % 2 && m->odd_length ? m->odd_length : m->length;
}

/* Sums of one sequence and site from its weights, the geometry left 0. */
static double *sums_of(const small_model *m, const routing_layout *layout, const size_t *label,
                       size_t sequence, size_t site) {
    double *sums = calloc(layout->total, sizeof *sums);
    float a[HEADS * SOURCES], scratch[2 * HEADS * SOURCES];
    assert_non_null(sums);
    for (size_t t = 0; t < length_of(m, sequence); t++) {
        for (size_t i = 0; i < layout->heads * layout->sources; i++)
            a[i] = (float)m->weight(sequence, t, site, i / layout->sources,
                                    label[i % layout->sources]);
        routing_sums_add_weights(layout, a, sums, scratch);
    }
    return sums;
}

static int put_rows(recording_writer *w, const small_model *m, size_t sequence, status *st) {
    for (size_t r = 0; r < routing_row_count; r++) {
        size_t size = routing_row_size(&routing_rows[r], m->heads, m->sources);
        double row[SITES * HEADS * SOURCES * SOURCES];
        if (!recording_writer_has_row(w, r))
            continue;
        for (size_t site = 0; site < m->sites; site++) {
            size_t label[SOURCES], count = sources_at(m, site, label);
            bool null_source = count && strcmp(m->source_name[label[0]], "null") == 0;
            routing_layout layout = routing_layout_of(m->heads, count, null_source, false);
            double *sums = sums_of(m, &layout, label, sequence, site);
            routing_row_spread(&routing_rows[r], &layout, sums, label, m->sources,
                               row + site * size);
            free(sums);
        }
        if (recording_writer_put_row(w, r, sequence, row, (double)length_of(m, sequence), st))
            return FAILED;
    }
    return DONE;
}

static int put_weights(recording_writer *w, const small_model *m, size_t sequence, status *st) {
    float weight[LENGTH * HEADS * SOURCES];
    size_t cells = m->heads * m->sources, length = length_of(m, sequence);
    for (size_t site = 0; m->sources && site < m->sites; site++) {
        for (size_t i = 0; i < length * cells; i++) {
            size_t source = i % m->sources;
            weight[i] =
                m->available[site * m->sources + source]
                    ? (float)m->weight(sequence, i / cells, site, i % cells / m->sources, source)
                    : NAN;
        }
        if (recording_writer_put(w, RECORDED_WEIGHTS, site, sequence, length, weight, st))
            return FAILED;
    }
    return DONE;
}

static int put_sequence(recording_writer *w, const small_model *m, size_t sequence, status *st) {
    static const recorded_kind rms[] = {RECORDED_IN_RMS, RECORDED_OUT_RMS, RECORDED_STATE_RMS};
    size_t length = length_of(m, sequence);
    int32_t id[LENGTH], stored = (int32_t)length;
    int64_t start = (int64_t)(sequence * (m->gap ? m->gap : 1000));
    float loss[LENGTH], value[LENGTH * SITES];
    for (size_t t = 0; t < length; t++) {
        id[t] = m->first_id + (int32_t)t;
        loss[t] = t == 0 ? NAN : m->loss ? (float)m->loss(sequence, t) : 1;
    }
    if (recording_writer_put(w, RECORDED_ID, 0, sequence, length, id, st) ||
        recording_writer_put(w, RECORDED_LENGTH, 0, sequence, length, &stored, st) ||
        recording_writer_put(w, RECORDED_START, 0, sequence, length, &start, st) ||
        recording_writer_put(w, RECORDED_LOSS, 0, sequence, length, loss, st))
        return FAILED;
    for (size_t k = 0; k < sizeof rms / sizeof *rms; k++) {
        size_t places = m->sites - (k > 0);
        for (size_t i = 0; i < length * places; i++)
            value[i] = m->magnitude ? (float)m->magnitude(sequence, i / places, i % places) : 1;
        if (recording_writer_put(w, rms[k], 0, sequence, length, value, st))
            return FAILED;
    }
    return put_weights(w, m, sequence, st) || put_rows(w, m, sequence, st) ? FAILED : DONE;
}

static int write_all(const char *path, const small_model *m, const recording_plan *plan,
                     status *st) {
    static const int32_t id[26] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12,
                                   13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25};
    static const char *const piece[26] = {"a", "b", "c", "d", "e", "f", "g", "h", "i",
                                          "j", "k", "l", "m", "n", "o", "p", "q", "r",
                                          "s", "t", "u", "v", "w", "x", "y", "z"};
    recording_writer *w;
    if (recording_writer_create(path, plan, &w, st))
        return FAILED;
    int rc = recording_writer_begin(w, m->sequences, st);
    for (size_t i = 0; !rc && i < m->sequences; i++)
        rc = put_sequence(w, m, i, st);
    if (!rc)
        rc = recording_writer_commit(w, st);
    const recording_closing closing = {.pieces = 26, .piece_id = id, .piece = piece};
    if (!rc)
        rc = recording_writer_finish(w, &closing, true, st);
    if (rc)
        (void)recording_writer_abandon(w);
    return rc;
}

char *small_recording(const char *name, const small_model *m) {
    char *path = scratch_path(name);
    int32_t newest[SITES];
    status st;
    assert_true(m->sites <= SITES && m->sources <= SOURCES && m->heads <= HEADS &&
                m->length <= LENGTH);
    for (size_t i = 0; i < m->sites; i++) {
        size_t label[SOURCES], count = sources_at(m, i, label);
        newest[i] = count ? (int32_t)label[count - 1] : -1;
    }
    const recording_plan plan = {.axes = {.positions = m->length,
                                          .sites = m->sites,
                                          .sublayers = m->sites - 1,
                                          .layers = m->sites / 2,
                                          .heads = m->heads,
                                          .sources = m->sources,
                                          .attention_heads = 1,
                                          .width = 4,
                                          .site_name = m->site_name,
                                          .sublayer_name = m->site_name,
                                          .source_name = m->source_name,
                                          .available = m->available,
                                          .newest = newest},
                                 .wants = {.weights = m->sources > 0},
                                 .header = {.title = "made up",
                                            .history = name,
                                            .model_path = name,
                                            .model_config = "{}",
                                            .residual_mode = m->mode,
                                            .tokenizer = "none",
                                            .device = "none",
                                            .compute_dtype = "fp32",
                                            .weights_dtype = "F32",
                                            .bos = m->bos}};
    if (write_all(path, m, &plan, &st))
        fail_msg("%s", st.text);
    return path;
}

int small_command(const char *const *words) {
    char *argv[24], copy[24][512];
    int argc = 0;
    for (; words[argc]; argc++) {
        snprintf(copy[argc], sizeof copy[argc], "%s", words[argc]);
        argv[argc] = copy[argc];
    }
    argv[argc] = NULL;
    return command_run(argc, argv);
}

size_t small_row(const table *t, const char *code, const char *const *keys) {
    const table_section_view *s = table_find(t, code);
    for (size_t row = 0; s && row < s->rows; row++) {
        bool found = true;
        for (int i = 0; keys[i]; i++)
            found = found && strcmp(table_cell(s, row, i), keys[i]) == 0;
        if (found)
            return row;
    }
    return SIZE_MAX;
}

double small_number(const table *t, const char *code, const char *column, const char *const *keys) {
    size_t row = small_row(t, code, keys);
    if (row == SIZE_MAX)
        fail_msg("%s has no row %s %s", code, keys[0], keys[1] ? keys[1] : "");
    const table_section_view *s = table_find(t, code);
    int at = table_column(s, column);
    if (at < 0)
        fail_msg("%s has no column %s", code, column);
    return table_number(s, row, at);
}
