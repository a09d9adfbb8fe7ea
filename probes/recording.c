#include "probes/recording.h"
#include "probes/derived_rows.h"
#include "probes/recording_file.h"
#include "runtime/base/version.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct recording {
    recording_about about;
    char *path;
    hid_t file, id, loss, weights;
    char **owned_text; /* [text attributes] */
    char **site_name, **source_name, **param_name;
    uint8_t *available;
    int32_t *newest, *length;
    int64_t *start;
    size_t *null_sequence;
    size_t pieces;
    int32_t *piece_id; /* [pieces] */
    char **piece;      /* [pieces] */
    derived_rows *derived;
};

static const struct {
    const char *name;
    size_t offset;
} text_attributes[] = {
    {"title", offsetof(recording_about, title)},
    {"source", offsetof(recording_about, source)},
    {"history", offsetof(recording_about, history)},
    {"schema", offsetof(recording_about, schema)},
    {"model_path", offsetof(recording_about, model_path)},
    {"model_sha256", offsetof(recording_about, model_sha256)},
    {"model_config", offsetof(recording_about, model_config)},
    {"residual_mode", offsetof(recording_about, residual_mode)},
    {"tokens_sha256", offsetof(recording_about, tokens_sha256)},
    {"tokenizer", offsetof(recording_about, tokenizer)},
    {"device", offsetof(recording_about, device)},
    {"compute_dtype", offsetof(recording_about, compute_dtype)},
    {"weights_dtype", offsetof(recording_about, weights_dtype)},
};
enum { TEXT_ATTRIBUTES = sizeof text_attributes / sizeof *text_attributes };

hid_t recording_file(const recording *rec) {
    return rec->file;
}

const recording_about *recording_about_of(const recording *rec) {
    return &rec->about;
}

static int open_file(recording *rec, status *st) {
    struct stat found;
    if (stat(rec->path, &found))
        return status_fail(st, "%s: %s", rec->path, strerror(errno));
    if (!S_ISREG(found.st_mode))
        return status_fail(st, "%s: is no regular file", rec->path);
    rec->file = H5Fopen(rec->path, H5F_ACC_RDONLY, H5P_DEFAULT);
    if (rec->file >= 0)
        return DONE;
    h5_fail(st, rec->path, NULL);
    FILE *file = fopen(rec->path, "rb");
    unsigned char head[8] = {0};
    bool hdf5 = file && fread(head, 1, sizeof head, file) == sizeof head &&
                memcmp(head, "\x89HDF\r\n\x1a\n", sizeof head) == 0;
    if (file)
        fclose(file);
    if (!hdf5 && found.st_size > 0 && file)
        return status_fail(st, "%s: is no HDF5 file; expected a recording made by `fathom capture`",
                           rec->path);
    return FAILED;
}

/* A schema is "fathom-N"; a larger N than this program's is newer. */
static int check_schema(const recording *rec, status *st) {
    const char *schema = rec->about.schema, *digits = strchr(FATHOM_SCHEMA, '-') + 1;
    size_t prefix = (size_t)(digits - FATHOM_SCHEMA);
    if (*schema == '\0')
        return status_fail(st, "%s: is HDF5 but no recording: it has no attribute `schema` (%s)",
                           rec->path, FATHOM_SCHEMA);
    char *end = NULL;
    long found = 0;
    if (strncmp(schema, FATHOM_SCHEMA, prefix) == 0)
        found = strtol(schema + prefix, &end, 10);
    if (!end || *end || found < 1)
        return status_fail(st, "%s: schema `%s`, expected %s", rec->path, schema, FATHOM_SCHEMA);
    if (found > strtol(digits, NULL, 10))
        return status_fail(st,
                           "%s: schema %s is newer than this program's %s: read it with a newer "
                           "fathom",
                           rec->path, schema, FATHOM_SCHEMA);
    return DONE;
}

/* More is no model; products of these do not overflow. */
enum { SITES_MAX = 1 << 16, SOURCES_MAX = 1 << 16, HEADS_MAX = 1 << 12 };

static int read_attributes(recording *rec, status *st) {
    recording_about *about = &rec->about;
    rec->owned_text = mem_array(TEXT_ATTRIBUTES, sizeof *rec->owned_text, "attributes", st);
    if (!rec->owned_text)
        return FAILED;
    for (size_t i = 0; i < TEXT_ATTRIBUTES; i++) {
        if (h5_get_text(rec->file, rec->path, text_attributes[i].name, &rec->owned_text[i], st))
            return FAILED;
        *(const char **)((char *)about + text_attributes[i].offset) = rec->owned_text[i];
    }
    if (check_schema(rec, st))
        return FAILED;
    int64_t heads = -1, complete = -1, seed = 0, skip = 0;
    about->bos = -1;
    if (h5_get_whole(rec->file, rec->path, "routing_heads", &heads, st) ||
        h5_get_whole(rec->file, rec->path, "complete", &complete, st) ||
        h5_get_whole(rec->file, rec->path, "skip_first", &skip, st) ||
        h5_get_whole(rec->file, rec->path, "seed", &seed, st) ||
        h5_get_whole(rec->file, rec->path, "bos", &about->bos, st))
        return FAILED;
    if (heads < 1 || heads > HEADS_MAX)
        return status_fail(st, "%s: attribute routing_heads is missing or not in 1..%d", rec->path,
                           HEADS_MAX);
    if (complete < 0 || *about->residual_mode == '\0')
        return status_fail(st, "%s: attribute %s is missing", rec->path,
                           complete < 0 ? "complete" : "residual_mode");
    if (skip < 0)
        return status_fail(st, "%s: attribute skip_first is negative", rec->path);
    about->heads = (size_t)heads;
    about->complete = complete != 0;
    about->skip_first = (size_t)skip;
    about->seed = (uint64_t)seed;
    return DONE;
}

/* Opens a dataset that must have these extents (SIZE_MAX: any, taken over). No file can hold more
 * than its size times what deflate reaches: a lie about the extents is found before anything is
 * allocated for them. */
static int open_shaped(const recording *rec, const char *name, size_t rank, size_t *extent,
                       hid_t *dataset, status *st) {
    enum { DEFLATE_RATIO = 1100 };
    size_t found_rank, found[5];
    *dataset = H5Dopen2(rec->file, name, H5P_DEFAULT);
    if (*dataset < 0)
        return h5_fail(st, rec->path, name);
    if (h5_shape(*dataset, 5, &found_rank, found) || found_rank != rank)
        return status_fail(st, "%s: %s: expected a dataset of %zu axes", rec->path, name, rank);
    double claimed = 1;
    for (size_t i = 0; i < rank; i++) {
        claimed *= (double)found[i];
        if (extent[i] == SIZE_MAX)
            extent[i] = found[i];
        if (extent[i] != found[i])
            return status_fail(st, "%s: %s: axis %zu has %zu entries, expected %zu", rec->path,
                               name, i, found[i], extent[i]);
    }
    hsize_t bytes = 0;
    H5Fget_filesize(rec->file, &bytes);
    if (claimed > (double)bytes * DEFLATE_RATIO)
        return status_fail(st, "%s: %s: claims %.0f numbers, more than a file of %llu bytes holds",
                           rec->path, name, claimed, (unsigned long long)bytes);
    return DONE;
}

static int read_axes(recording *rec, status *st) {
    recording_about *about = &rec->about;
    size_t count;
    if (h5_get_texts(rec->file, rec->path, "site", &about->sites, &rec->site_name, st))
        return FAILED;
    if (h5_has(rec->file, "source") &&
        h5_get_texts(rec->file, rec->path, "source", &about->sources, &rec->source_name, st))
        return FAILED;
    about->site_name = (const char *const *)rec->site_name;
    about->source_name = (const char *const *)rec->source_name;
    about->sublayers = about->sites ? about->sites - 1 : 0;
    if (h5_has(rec->file, "sublayer")) {
        char **labels;
        if (h5_get_texts(rec->file, rec->path, "sublayer", &count, &labels, st))
            return FAILED;
        free(labels);
        about->sublayers = count;
    }
    about->layers = (about->sublayers + 1) / 2;
    size_t extent[2] = {SIZE_MAX, SIZE_MAX};
    if (open_shaped(rec, "tokens/id", 2, extent, &rec->id, st))
        return FAILED;
    about->sequences = extent[0];
    about->positions = extent[1];
    if (about->sites > SITES_MAX || about->sources > SOURCES_MAX || about->sequences > INT32_MAX ||
        about->positions > INT32_MAX)
        return status_fail(st, "%s: %zu sites, %zu sources, %zu sequences of %zu tokens: too many",
                           rec->path, about->sites, about->sources, about->sequences,
                           about->positions);
    return DONE;
}

/* tokens/length, or the leading ids that are no padding. */
static int read_lengths(recording *rec, status *st) {
    recording_about *about = &rec->about;
    hid_t dataset = H5_NONE;
    int result = FAILED;
    rec->length = mem_array(about->sequences, sizeof *rec->length, "lengths", st);
    int32_t *ids = mem_array(about->positions, sizeof *ids, "ids", st);
    if (!rec->length || !ids)
        goto end;
    if (h5_has(rec->file, "tokens/length")) {
        size_t extent[1] = {about->sequences};
        if (open_shaped(rec, "tokens/length", 1, extent, &dataset, st))
            goto end;
        if (H5Dread(dataset, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, rec->length) < 0) {
            h5_fail(st, rec->path, "tokens/length");
            goto end;
        }
    }
    for (size_t i = 0; i < about->sequences && dataset < 0; i++) {
        const hsize_t start[2] = {i, 0}, count[2] = {1, about->positions};
        if (h5_read(rec->id, H5T_NATIVE_INT32, 2, start, count, ids) < 0) {
            h5_fail(st, rec->path, "tokens/id");
            goto end;
        }
        while ((size_t)rec->length[i] < about->positions && ids[rec->length[i]] >= 0)
            rec->length[i]++;
    }
    for (size_t i = 0; i < about->sequences; i++)
        if (rec->length[i] < 0 || (size_t)rec->length[i] > about->positions) {
            status_fail(st, "%s: tokens/length: sequence %zu has %d, expected 0..%zu", rec->path, i,
                        rec->length[i], about->positions);
            goto end;
        }
    about->length = rec->length;
    result = DONE;
end:
    free(ids);
    h5_close(&dataset);
    return result;
}

static int read_starts(recording *rec, status *st) {
    size_t sequences = rec->about.sequences, extent[1] = {sequences};
    hid_t dataset = H5_NONE;
    rec->start = mem_array(sequences, sizeof *rec->start, "starts", st);
    if (!rec->start)
        return FAILED;
    rec->about.start = rec->start;
    for (size_t i = 0; i < sequences; i++)
        rec->start[i] = -1;
    if (!h5_has(rec->file, "tokens/start"))
        return DONE;
    int result = open_shaped(rec, "tokens/start", 1, extent, &dataset, st);
    if (result == DONE &&
        H5Dread(dataset, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, rec->start) < 0)
        result = h5_fail(st, rec->path, "tokens/start");
    h5_close(&dataset);
    return result;
}

/* Reads a small dataset of known shape whole. */
static int read_small(const recording *rec, const char *name, size_t rank, size_t *extent,
                      hid_t type, void *out, status *st) {
    hid_t dataset = H5_NONE;
    int result = open_shaped(rec, name, rank, extent, &dataset, st);
    if (result == DONE && H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, out) < 0)
        result = h5_fail(st, rec->path, name);
    h5_close(&dataset);
    return result;
}

/* What an imported file does not say is read off its first token: a cell is NaN where it does not
 * exist. */
static int guess_available(recording *rec, status *st) {
    recording_about *about = &rec->about;
    size_t cells = about->heads * about->sources;
    float *weights = mem_array(cells, sizeof *weights, "weights", st);
    int result = weights ? DONE : FAILED;
    for (size_t site = 0; site < about->sites && result == DONE && about->sequences; site++) {
        const hsize_t start[5] = {0, 0, site, 0, 0};
        const hsize_t count[5] = {1, 1, 1, about->heads, about->sources};
        if (h5_read(rec->weights, H5T_NATIVE_FLOAT, 5, start, count, weights) < 0)
            result = h5_fail(st, rec->path, "routing/weights");
        for (size_t i = 0; i < cells; i++)
            if (!isnan(weights[i]))
                rec->available[site * about->sources + i % about->sources] = 1;
    }
    free(weights);
    return result;
}

static int read_routing(recording *rec, status *st) {
    recording_about *about = &rec->about;
    size_t sites = about->sites, sources = about->sources;
    rec->available = mem_array(sites, sources ? sources : 1, "available cells", st);
    rec->newest = mem_array(sites, sizeof *rec->newest, "newest sources", st);
    if (!rec->available || !rec->newest)
        return FAILED;
    about->available = rec->available;
    about->newest = rec->newest;
    if (h5_has(rec->file, "routing/weights")) {
        size_t extent[5] = {about->sequences, about->positions, sites, about->heads, sources};
        if (open_shaped(rec, "routing/weights", 5, extent, &rec->weights, st))
            return FAILED;
        about->has_weights = true;
    }
    size_t cells[2] = {sites, sources}, one[1] = {sites};
    if (h5_has(rec->file, "routing/available")) {
        if (read_small(rec, "routing/available", 2, cells, H5T_NATIVE_UINT8, rec->available, st))
            return FAILED;
    } else if (about->has_weights && guess_available(rec, st)) {
        return FAILED;
    }
    for (size_t i = 0; i < sites; i++) {
        rec->newest[i] = -1;
        for (size_t s = 0; s < sources; s++)
            if (rec->available[i * sources + s])
                rec->newest[i] = (int32_t)s;
    }
    if (h5_has(rec->file, "routing/newest") &&
        read_small(rec, "routing/newest", 1, one, H5T_NATIVE_INT32, rec->newest, st))
        return FAILED;
    for (size_t i = 0; i < sites; i++)
        if (rec->newest[i] < -1 || rec->newest[i] >= (int64_t)sources)
            return status_fail(st, "%s: routing/newest: %d at site %s, expected -1..%zu", rec->path,
                               rec->newest[i], rec->site_name[i], sources - 1);
    about->has_sums = h5_has(rec->file, "routing_seq/mean");
    about->has_pairs = h5_has(rec->file, "routing_seq/head_js");
    return DONE;
}

static int read_vocabulary(recording *rec, status *st) {
    if (!h5_has(rec->file, "vocab/id") || !h5_has(rec->file, "vocab/piece"))
        return DONE;
    if (h5_get_texts(rec->file, rec->path, "vocab/piece", &rec->pieces, &rec->piece, st))
        return FAILED;
    size_t extent[1] = {rec->pieces};
    rec->piece_id = mem_array(rec->pieces, sizeof *rec->piece_id, "vocabulary", st);
    if (!rec->piece_id)
        return FAILED;
    if (read_small(rec, "vocab/id", 1, extent, H5T_NATIVE_INT32, rec->piece_id, st))
        return FAILED;
    for (size_t i = 1; i < rec->pieces; i++)
        if (rec->piece_id[i] <= rec->piece_id[i - 1])
            return status_fail(st, "%s: vocab/id: entry %zu does not rise", rec->path, i);
    return DONE;
}

static int read_gradients(recording *rec, status *st) {
    recording_about *about = &rec->about;
    int64_t tokens = 0;
    if (h5_get_whole(rec->file, rec->path, "grad_tokens", &tokens, st))
        return FAILED;
    if (tokens < 0)
        return status_fail(st, "%s: attribute grad_tokens is negative", rec->path);
    about->grad_tokens = (uint64_t)tokens;
    about->has_gradients = h5_has(rec->file, "grad/in_l2");
    if (h5_has(rec->file, "param") &&
        h5_get_texts(rec->file, rec->path, "param", &about->params, &rec->param_name, st))
        return FAILED;
    about->param_name = (const char *const *)rec->param_name;
    return DONE;
}

static int read_all(recording *rec, status *st) {
    if (open_file(rec, st) || read_attributes(rec, st) || read_axes(rec, st) ||
        read_lengths(rec, st) || read_starts(rec, st) || read_routing(rec, st) ||
        read_gradients(rec, st) || read_vocabulary(rec, st))
        return FAILED;
    recording_about *about = &rec->about;
    if (recording_find_nulls(rec->file, about, &rec->null_sequence, st))
        return FAILED;
    about->null_sequence = rec->null_sequence;
    about->has_hidden = h5_has(rec->file, "hidden/in_rms");
    about->has_loss = h5_has(rec->file, "tokens/loss");
    size_t extent[2] = {about->sequences, about->positions};
    if (about->has_loss && open_shaped(rec, "tokens/loss", 2, extent, &rec->loss, st))
        return FAILED;
    return DONE;
}

int recording_open(const char *path, recording **out, status *st) {
    h5_prepare();
    *out = NULL;
    recording *rec = mem_array(1, sizeof *rec, "recording", st);
    if (!rec)
        return FAILED;
    rec->file = rec->id = rec->loss = rec->weights = H5_NONE;
    rec->path = mem_text(path, st);
    rec->about.path = rec->path;
    if (!rec->path || read_all(rec, st)) {
        recording_close(rec);
        return FAILED;
    }
    *out = rec;
    return DONE;
}

void recording_close(recording *rec) {
    if (!rec)
        return;
    h5_close(&rec->id);
    h5_close(&rec->loss);
    h5_close(&rec->weights);
    h5_close(&rec->file);
    for (size_t i = 0; rec->owned_text && i < TEXT_ATTRIBUTES; i++)
        free(rec->owned_text[i]);
    free(rec->owned_text);
    free(rec->site_name);
    free(rec->source_name);
    free(rec->param_name);
    free(rec->available);
    free(rec->newest);
    free(rec->length);
    free(rec->null_sequence);
    free(rec->start);
    free(rec->piece_id);
    free(rec->piece);
    derived_rows_free(rec->derived);
    free(rec->path);
    free(rec);
}

size_t recording_sum_tokens(const recording *rec, size_t sequence) {
    size_t length = (size_t)rec->length[sequence], skip = rec->about.skip_first;
    return length > skip ? length - skip : 0;
}

int recording_read_weights(recording *rec, size_t sequence, size_t site, float *out, status *st) {
    const recording_about *about = &rec->about;
    if (!about->has_weights)
        return status_fail(st, "%s: routing/weights: not recorded; capture with `--record weights`",
                           rec->path);
    const hsize_t start[5] = {sequence, 0, site, 0, 0};
    const hsize_t count[5] = {1, (hsize_t)rec->length[sequence], 1, about->heads, about->sources};
    if (h5_read(rec->weights, H5T_NATIVE_FLOAT, 5, start, count, out) < 0)
        return h5_fail(st, rec->path, "routing/weights");
    return DONE;
}

int recording_read_tokens(recording *rec, size_t sequence, int32_t *id, float *loss, status *st) {
    const hsize_t start[2] = {sequence, 0}, count[2] = {1, (hsize_t)rec->length[sequence]};
    if (id && h5_read(rec->id, H5T_NATIVE_INT32, 2, start, count, id) < 0)
        return h5_fail(st, rec->path, "tokens/id");
    if (loss && !rec->about.has_loss)
        return status_fail(st, "%s: tokens/loss: not recorded", rec->path);
    if (loss && h5_read(rec->loss, H5T_NATIVE_FLOAT, 2, start, count, loss) < 0)
        return h5_fail(st, rec->path, "tokens/loss");
    return DONE;
}

int recording_read_hidden(recording *rec, const char *name, size_t sequence, float *out,
                          status *st) {
    const recording_about *about = &rec->about;
    char path[64];
    hid_t dataset = H5_NONE;
    snprintf(path, sizeof path, "hidden/%s", name);
    if (!h5_has(rec->file, path))
        return status_fail(st, "%s: %s: not recorded", rec->path, path);
    size_t extent[3] = {about->sequences, about->positions,
                        strncmp(name, "in_", 3) == 0 ? about->sites : about->sublayers};
    const hsize_t start[3] = {sequence, 0, 0};
    const hsize_t count[3] = {1, (hsize_t)rec->length[sequence], extent[2]};
    int result = open_shaped(rec, path, 3, extent, &dataset, st);
    if (result == DONE && h5_read(dataset, H5T_NATIVE_FLOAT, 3, start, count, out) < 0)
        result = h5_fail(st, rec->path, path);
    h5_close(&dataset);
    return result;
}

static int compare_ids(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static const int32_t *find_piece(const recording *rec, int32_t id) {
    return rec->pieces ? bsearch(&id, rec->piece_id, rec->pieces, sizeof id, compare_ids) : NULL;
}

const char *recording_piece(const recording *rec, int32_t id) {
    const int32_t *at = find_piece(rec, id);
    const char *text = at ? rec->piece[at - rec->piece_id] : "";
    return *text ? text : NULL;
}

bool recording_knows(const recording *rec, int32_t id) {
    return find_piece(rec, id) != NULL;
}

int recording_read_row(recording *rec, const char *name, double **data, status *st) {
    const recording_about *about = &rec->about;
    *data = NULL;
    const routing_row *row = routing_row_find(name);
    if (!row)
        return status_fail(st, "there is no routing row `%s`", name);
    char path[64];
    snprintf(path, sizeof path, "routing_seq/%s", name);
    bool stored = h5_has(rec->file, path);
    if (!stored && !about->has_weights)
        return status_fail(st, "%s: %s: not recorded, and no routing/weights to compute it from",
                           rec->path, path);
    size_t heads = about->heads, sources = about->sources;
    size_t size = routing_row_size(row, heads, sources);
    double *out = mem_array(about->sequences, about->sites * size * sizeof *out, path, st);
    if (!out)
        return FAILED;
    int result = FAILED;
    if (stored) {
        bool pair = row->axes == ROW_HEAD_HEAD || row->axes == ROW_SOURCE_SOURCE;
        bool by_head =
            row->axes == ROW_HEAD || row->axes == ROW_HEAD_HEAD || row->axes == ROW_HEAD_SOURCE;
        size_t rank = row->axes == ROW_SITE ? 2 : pair || row->axes == ROW_HEAD_SOURCE ? 4 : 3;
        size_t extent[4] = {about->sequences, about->sites, by_head ? heads : sources,
                            row->axes == ROW_HEAD_HEAD ? heads : sources};
        result = read_small(rec, path, rank, extent, H5T_NATIVE_DOUBLE, out, st);
    } else {
        result = derived_rows_read(rec, &rec->derived, row, out, st);
    }
    if (result)
        free(out);
    else
        *data = out;
    return result;
}
