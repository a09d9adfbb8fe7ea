#include "probes/tests/synthetic.h"
#include "kernels/routing_sums.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    POSITIONS = SYNTHETIC_POSITIONS,
    SITES = SYNTHETIC_SITES,
    SUBLAYERS = SYNTHETIC_SUBLAYERS,
    HEADS = SYNTHETIC_HEADS,
    SOURCES = SYNTHETIC_SOURCES,
    WIDTH = SYNTHETIC_WIDTH,
    ATTENTION_HEADS = 2,
};

static const char *const sites[SITES] = {"L0.attn", "L0.mlp", "L1.attn", "L1.mlp",
                                         "L2.attn", "L2.mlp", "final"};
static const char *const sources[SOURCES] = {"emb",    "L0.attn", "L0.mlp", "L1.attn",
                                             "L1.mlp", "L2.attn", "L2.mlp"};

recording_plan synthetic_plan(void) {
    static uint8_t available[SITES * SOURCES];
    static int32_t newest[SITES];
    static bool in[SITES], out[SUBLAYERS], state[SUBLAYERS], pattern[SYNTHETIC_LAYERS];
    for (size_t i = 0; i < SITES; i++) {
        newest[i] = (int32_t)i;
        for (size_t s = 0; s < SOURCES; s++)
            available[i * SOURCES + s] = s <= i;
    }
    in[2] = out[1] = state[5] = pattern[1] = true;
    return (recording_plan){.axes = {.positions = POSITIONS,
                                     .sites = SITES,
                                     .sublayers = SUBLAYERS,
                                     .layers = SYNTHETIC_LAYERS,
                                     .heads = HEADS,
                                     .sources = SOURCES,
                                     .attention_heads = ATTENTION_HEADS,
                                     .width = WIDTH,
                                     .site_name = sites,
                                     .sublayer_name = sites,
                                     .source_name = sources,
                                     .available = available,
                                     .newest = newest},
                            .wants = {.weights = true,
                                      .pairs = true,
                                      .attention = true,
                                      .in = in,
                                      .out = out,
                                      .state = state,
                                      .pattern = pattern},
                            .header = {.title = "made up",
                                       .history = "never",
                                       .model_path = "models/none",
                                       .model_config = "{\"vocab_size\": 16, \"hidden_size\": 4}",
                                       .residual_mode = "full_mh",
                                       .tokenizer = "none",
                                       .device = "none",
                                       .compute_dtype = "fp32",
                                       .weights_dtype = "F32",
                                       .bos = -1,
                                       .seed = 7,
                                       .skip_first = 1}};
}

size_t synthetic_length(size_t sequence) {
    return 5 + sequence % 4;
}

int32_t synthetic_id(size_t sequence, size_t pos) {
    return (int32_t)((3 * sequence + pos) % 16);
}

float synthetic_loss(size_t sequence, size_t pos) {
    return pos == 0 ? NAN : 1.0F + 0.125F * (float)sequence + 0.0625F * (float)pos;
}

float synthetic_weight(size_t sequence, size_t pos, size_t site, size_t head, size_t source) {
    float sum = 0, mine = NAN;
    for (size_t s = 0; s <= site && s < SOURCES; s++) {
        float x = 1.0F + (float)((sequence + 2 * pos + 3 * head + s * s) % 5);
        sum += x;
        mine = s == source ? x : mine;
    }
    return mine / sum;
}

float synthetic_magnitude(size_t sequence, size_t pos, size_t place) {
    return 0.5F + (float)((sequence + 5 * pos + 7 * place) % 11);
}

/* The rows of one sequence, as a backend would sum them; geometry from made-up norms. */
static int put_rows(recording_writer *w, size_t sequence, size_t batch_index, status *st) {
    static const size_t label[SOURCES] = {0, 1, 2, 3, 4, 5, 6};
    size_t length = synthetic_length(sequence), skip = 1;
    for (size_t r = 0; r < routing_row_count; r++) {
        size_t size = routing_row_size(&routing_rows[r], HEADS, SOURCES);
        double *row = mem_array(SITES * size, sizeof *row, "row", st);
        if (!row)
            return FAILED;
        for (size_t site = 0; site < SITES; site++) {
            routing_layout layout = routing_layout_of(HEADS, site + 1, false, true);
            double *sums = mem_array(layout.total, sizeof *sums, "sums", st);
            float a[HEADS * SOURCES], norm[SOURCES * HEADS], dot[SOURCES * HEADS];
            float square[HEADS], rms[SOURCES], scratch[2 * HEADS * SOURCES];
            for (size_t t = skip; sums && t < length; t++) {
                for (size_t h = 0; h < HEADS; h++) {
                    square[h] = 0;
                    for (size_t s = 0; s <= site; s++) {
                        float weight = synthetic_weight(sequence, t, site, h, s);
                        a[h * (site + 1) + s] = weight;
                        norm[s * HEADS + h] = 1 + (float)s;
                        dot[s * HEADS + h] = 2 + (float)s;
                        square[h] += weight * (2 + (float)s);
                        rms[s] = 1 + (float)s;
                    }
                }
                routing_sums_add_weights(&layout, a, sums, scratch);
                routing_sums_add_geometry(&layout, a, norm, dot, square, rms, sums);
            }
            if (sums)
                routing_row_spread(&routing_rows[r], &layout, sums, label, SOURCES,
                                   row + site * size);
            free(sums);
        }
        int result = recording_writer_put_row(w, r, batch_index, row, (double)(length - skip), st);
        free(row);
        if (result)
            return FAILED;
    }
    return DONE;
}

static int put_weights(recording_writer *w, size_t sequence, size_t i, status *st) {
    float weights[POSITIONS][HEADS][SOURCES];
    size_t length = synthetic_length(sequence);
    for (size_t site = 0; site < SITES; site++) {
        for (size_t t = 0; t < length; t++)
            for (size_t h = 0; h < HEADS; h++)
                for (size_t s = 0; s < SOURCES; s++)
                    weights[t][h][s] = synthetic_weight(sequence, t, site, h, s);
        if (recording_writer_put(w, RECORDED_WEIGHTS, site, i, length, weights, st))
            return FAILED;
    }
    return DONE;
}

/* Magnitudes, attention numbers and whole tensors: float32 of `places` a token. */
static int put_floats(recording_writer *w, size_t sequence, size_t i, status *st) {
    static const struct {
        recorded_kind kind;
        size_t index, places;
        float factor;
    } list[] = {
        {RECORDED_IN_RMS, 0, SITES, 1},
        {RECORDED_OUT_RMS, 0, SUBLAYERS, 1},
        {RECORDED_OUT_ABSMAX, 0, SUBLAYERS, 2},
        {RECORDED_STATE_RMS, 0, SUBLAYERS, 1},
        {RECORDED_STATE_ABSMAX, 0, SUBLAYERS, 2},
        {RECORDED_STATE_MEDIAN, 0, SUBLAYERS, 0.5F},
        {RECORDED_ATTENTION_ENTROPY, 0, SYNTHETIC_LAYERS * ATTENTION_HEADS, 1},
        {RECORDED_FIRST_TOKEN_MASS, 0, SYNTHETIC_LAYERS * ATTENTION_HEADS, 0.01F},
        {RECORDED_IN, 2, WIDTH, 1},
        {RECORDED_OUT, 1, WIDTH, 1},
        {RECORDED_STATE, 5, WIDTH, 1},
    };
    float data[POSITIONS * SITES];
    int32_t channel[POSITIONS * SUBLAYERS];
    float pattern[ATTENTION_HEADS * POSITIONS * POSITIONS] = {1};
    size_t length = synthetic_length(sequence);
    for (size_t k = 0; k < sizeof list / sizeof *list; k++) {
        for (size_t t = 0; t < length; t++)
            for (size_t p = 0; p < list[k].places; p++)
                data[t * list[k].places + p] = list[k].factor * synthetic_magnitude(sequence, t, p);
        if (recording_writer_put(w, list[k].kind, list[k].index, i, length, data, st))
            return FAILED;
    }
    for (size_t p = 0; p < POSITIONS * SUBLAYERS; p++)
        channel[p] = (int32_t)(p % WIDTH);
    if (recording_writer_put(w, RECORDED_STATE_CHANNEL, 0, i, length, channel, st))
        return FAILED;
    return recording_writer_put(w, RECORDED_PATTERN, 1, i, length, pattern, st);
}

int synthetic_batch(recording_writer *w, size_t count, status *st) {
    size_t first = recording_writer_sequences(w);
    if (recording_writer_begin(w, count, st))
        return FAILED;
    for (size_t i = 0; i < count; i++) {
        size_t sequence = first + i, length = synthetic_length(sequence);
        int32_t id[POSITIONS], stored = (int32_t)length;
        int64_t start = (int64_t)(100 * sequence);
        float loss[POSITIONS];
        for (size_t t = 0; t < length; t++) {
            id[t] = synthetic_id(sequence, t);
            loss[t] = synthetic_loss(sequence, t);
        }
        if (recording_writer_put(w, RECORDED_ID, 0, i, length, id, st) ||
            recording_writer_put(w, RECORDED_LENGTH, 0, i, length, &stored, st) ||
            recording_writer_put(w, RECORDED_START, 0, i, length, &start, st) ||
            recording_writer_put(w, RECORDED_LOSS, 0, i, length, loss, st) ||
            put_floats(w, sequence, i, st) || put_weights(w, sequence, i, st) ||
            put_rows(w, sequence, i, st))
            return FAILED;
    }
    return DONE;
}

int synthetic_file(const char *path, const recording_plan *plan, size_t count, size_t batch,
                   status *st) {
    static const int32_t ids[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    static const char *const pieces[16] = {"a", "\\x00", "c", "\\\\", "é", "f", "g", "h",
                                           "i", "j",     "",  "l",    "m", "n", "o", "p"};
    const recording_closing closing = {.pieces = 16, .piece_id = ids, .piece = pieces};
    recording_writer *w;
    if (recording_writer_create(path, plan, &w, st))
        return FAILED;
    for (size_t done = 0; done < count; done += batch) {
        size_t n = count - done < batch ? count - done : batch;
        if (synthetic_batch(w, n, st) || recording_writer_commit(w, st)) {
            (void)recording_writer_abandon(w);
            return FAILED;
        }
    }
    if (recording_writer_finish(w, &closing, true, st)) {
        (void)recording_writer_abandon(w);
        return FAILED;
    }
    return DONE;
}
