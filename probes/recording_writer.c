#include "probes/recording_writer.h"
#include "probes/h5.h"
#include "runtime/base/version.h"

#include <errno.h>
#include <fcntl.h>
#include <hdf5_hl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK_SEQUENCES = 256 };

struct recording_writer {
    char *path, *partial;
    recording_plan plan;
    hid_t file;
    hid_t scale[AXIS_COUNT];
    size_t datasets;
    recorded_dataset *list; /* [datasets] */
    hid_t *dataset;         /* [datasets] */
    size_t first[RECORDED_KINDS + 1];
    int *slot;              /* [first[kind] + index] place in `list`, or -1 */
    size_t committed, open; /* sequences on disk, and in the batch being written */
    double **total;         /* [routing_row_count] sums over all committed sequences, or NULL */
    double *means;          /* scratch for one row of one sequence */
    double tokens;
    bool failed; /* a call failed: what is on disk is what the last commit left ... */
    bool torn;   /* ... unless it failed while the tables of contents were written */
};

static hid_t stored_type(recording_type type) {
    switch (type) {
    case TYPE_INT32:
        return H5T_STD_I32LE;
    case TYPE_INT64:
        return H5T_STD_I64LE;
    case TYPE_UINT8:
        return H5T_STD_U8LE;
    case TYPE_FLOAT32:
        return H5T_IEEE_F32LE;
    default:
        return H5T_IEEE_F64LE;
    }
}

static hid_t memory_type(recording_type type) {
    switch (type) {
    case TYPE_INT32:
        return H5T_NATIVE_INT32;
    case TYPE_INT64:
        return H5T_NATIVE_INT64;
    case TYPE_UINT8:
        return H5T_NATIVE_UINT8;
    case TYPE_FLOAT32:
        return H5T_NATIVE_FLOAT;
    default:
        return H5T_NATIVE_DOUBLE;
    }
}

static int fail(recording_writer *w, const char *what, status *st) {
    w->failed = true;
    return h5_fail(st, w->partial, what);
}

/* One sequence, and one site or attention head, to a chunk; split further where that is large. */
static void chunk_shape(const recorded_dataset *d, const hsize_t *extent, hsize_t *chunk) {
    if (d->rank == 1) {
        chunk[0] = CHUNK_SEQUENCES;
        return;
    }
    chunk[0] = 1;
    hsize_t bytes = recording_type_bytes(d->type);
    for (size_t i = 1; i < d->rank; i++) {
        bool one = (recorded_by_site(d->kind) && d->axis[i] == AXIS_SITE) ||
                   (d->kind == RECORDED_PATTERN && d->axis[i] == AXIS_ATTN_HEAD);
        chunk[i] = one ? 1 : extent[i];
        bytes *= chunk[i];
    }
    for (size_t i = 1; i < d->rank && bytes > RECORDED_CHUNK_BYTES; i++) {
        bytes /= chunk[i];
        hsize_t fits = RECORDED_CHUNK_BYTES / bytes;
        hsize_t pieces = fits ? (chunk[i] + fits - 1) / fits : chunk[i];
        chunk[i] = (chunk[i] + pieces - 1) / pieces;
        bytes *= chunk[i];
    }
}

static hid_t dataset_properties(const recording_writer *w, const recorded_dataset *d,
                                const hsize_t *extent) {
    static const double no_number = NAN;
    static const int32_t no_index = -1;
    hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_obj_track_times(properties, false);
    if (d->type == TYPE_FLOAT32 || d->type == TYPE_FLOAT64)
        H5Pset_fill_value(properties, H5T_NATIVE_DOUBLE, &no_number);
    else if (d->type == TYPE_INT32 || d->type == TYPE_INT64)
        H5Pset_fill_value(properties, H5T_NATIVE_INT32, &no_index);
    if (d->axis[0] == AXIS_SEQ) {
        hsize_t chunk[RECORDED_RANK_MAX];
        chunk_shape(d, extent, chunk);
        H5Pset_chunk(properties, (int)d->rank, chunk);
        if (w->plan.compress && d->rank > 1) {
            H5Pset_shuffle(properties);
            H5Pset_deflate(properties, (unsigned)w->plan.compress);
        }
    }
    return properties;
}

/* Creates a dataset (of no sequences, where it has a seq axis) with its two texts. */
static hid_t create_bare(recording_writer *w, const recorded_dataset *d, const hsize_t *extent,
                         status *st) {
    hsize_t most[RECORDED_RANK_MAX];
    for (size_t i = 0; i < d->rank; i++)
        most[i] = d->axis[i] == AXIS_SEQ ? H5S_UNLIMITED : extent[i];
    hid_t space = H5Screate_simple((int)d->rank, extent, most);
    hid_t type = d->type == TYPE_TEXT ? h5_text_type() : H5Tcopy(stored_type(d->type));
    hid_t properties = dataset_properties(w, d, extent);
    hid_t links = H5Pcreate(H5P_LINK_CREATE);
    H5Pset_create_intermediate_group(links, 1);
    hid_t access = H5Pcreate(H5P_DATASET_ACCESS);
    if (d->rank > 1) /* whole chunks are written: keeping them would only take memory */
        H5Pset_chunk_cache(access, 0, 0, H5D_CHUNK_CACHE_W0_DEFAULT);
    hid_t dataset = H5Dcreate2(w->file, d->name, type, space, links, properties, access);
    if (dataset < 0 || h5_put_text(dataset, "long_name", d->long_name) < 0 ||
        h5_put_text(dataset, "units", d->units) < 0) {
        fail(w, d->name, st);
        h5_close(&dataset);
    }
    h5_close(&space);
    h5_close(&type);
    h5_close(&properties);
    h5_close(&links);
    h5_close(&access);
    return dataset;
}

/* Writes the whole of a dataset, or from its start where it is longer. */
static herr_t write_whole(hid_t dataset, const recorded_dataset *d, const hsize_t *extent,
                          const void *data) {
    const hsize_t start[RECORDED_RANK_MAX] = {0};
    hid_t type = d->type == TYPE_TEXT ? h5_text_type() : H5Tcopy(memory_type(d->type));
    herr_t done = h5_write(dataset, type, d->rank, start, extent, data);
    h5_close(&type);
    return done;
}

/* Makes the scale of an axis at its first use. */
static int need_scale(recording_writer *w, recording_axis axis, size_t extent, status *st) {
    if (w->scale[axis] >= 0)
        return DONE;
    const char *const *labels = recording_axis_labels(&w->plan.axes, axis);
    const char *name = recording_axis_name(axis);
    recorded_dataset d = {
        .rank = 1, .axis = {axis}, .type = labels ? TYPE_TEXT : TYPE_INT32, .units = "1"};
    snprintf(d.name, sizeof d.name, "%s", name);
    snprintf(d.long_name, sizeof d.long_name, "%s", recording_axis_long_name(axis));
    hsize_t length = extent;
    hid_t scale = create_bare(w, &d, &length, st);
    if (scale < 0)
        return FAILED;
    int32_t *number = mem_array(extent, sizeof *number, name, st);
    int result = number ? DONE : FAILED;
    for (size_t i = 0; number && i < extent; i++)
        number[i] = (int32_t)i;
    if (number && (write_whole(scale, &d, &length, labels ? (const void *)labels : number) < 0 ||
                   H5DSset_scale(scale, name) < 0))
        result = fail(w, name, st);
    free(number);
    w->scale[axis] = scale;
    return result;
}

/* A dataset with a scale on each axis; `piece` is the extent of AXIS_PIECE. */
static hid_t create_dataset(recording_writer *w, const recorded_dataset *d, size_t pieces,
                            hsize_t *extent, status *st) {
    for (size_t i = 0; i < d->rank; i++) {
        size_t length =
            d->axis[i] == AXIS_PIECE ? pieces : recording_axis_extent(&w->plan.axes, d->axis[i]);
        extent[i] = length;
        if (need_scale(w, d->axis[i], length, st))
            return H5_NONE;
    }
    hid_t dataset = create_bare(w, d, extent, st);
    for (size_t i = 0; dataset >= 0 && i < d->rank; i++)
        if (H5DSattach_scale(dataset, w->scale[d->axis[i]], (unsigned)i) < 0) {
            fail(w, d->name, st);
            h5_close(&dataset);
        }
    return dataset;
}

/* A dataset without a seq axis, written at once (`data` NULL: left as NaN). */
static int put_fixed(recording_writer *w, const recorded_dataset *d, size_t pieces,
                     const void *data, status *st) {
    hsize_t extent[RECORDED_RANK_MAX];
    hid_t dataset = create_dataset(w, d, pieces, extent, st);
    if (dataset < 0)
        return FAILED;
    int result = DONE;
    if (data && write_whole(dataset, d, extent, data) < 0)
        result = fail(w, d->name, st);
    h5_close(&dataset);
    return result;
}

static int put_header(recording_writer *w, status *st) {
    const recording_header *h = &w->plan.header;
    const struct {
        const char *name, *text;
    } texts[] = {
        {"title", h->title},
        {"source", "fathom " FATHOM_VERSION},
        {"history", h->history},
        {"schema", FATHOM_SCHEMA},
        {"model_path", h->model_path},
        {"model_sha256", ""},
        {"model_config", h->model_config},
        {"residual_mode", h->residual_mode},
        {"tokens_sha256", ""},
        {"tokenizer", h->tokenizer},
        {"device", h->device},
        {"compute_dtype", h->compute_dtype},
        {"weights_dtype", h->weights_dtype},
    };
    char source[160];
    snprintf(source, sizeof source, "fathom %s (%s)", FATHOM_VERSION, build_hash());
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const char *text = i == 1 ? source : texts[i].text;
        if (h5_put_text(w->file, texts[i].name, text ? text : "") < 0)
            return fail(w, texts[i].name, st);
    }
    const int64_t heads = (int64_t)w->plan.axes.heads, skip = (int64_t)h->skip_first, none = 0;
    const uint8_t complete = 0;
    if (h5_put_number(w->file, "routing_heads", H5T_NATIVE_INT64, &heads) < 0 ||
        h5_put_number(w->file, "bos", H5T_NATIVE_INT64, &h->bos) < 0 ||
        h5_put_number(w->file, "seed", H5T_NATIVE_UINT64, &h->seed) < 0 ||
        h5_put_number(w->file, "skip_first", H5T_NATIVE_INT64, &skip) < 0 ||
        h5_put_number(w->file, "grad_tokens", H5T_NATIVE_INT64, &none) < 0 ||
        h5_put_number(w->file, "complete", H5T_NATIVE_UINT8, &complete) < 0)
        return fail(w, "attributes", st);
    return DONE;
}

static int put_available(recording_writer *w, status *st) {
    if (w->plan.axes.sources == 0)
        return DONE;
    const recorded_dataset available = {.name = "routing/available",
                                        .rank = 2,
                                        .axis = {AXIS_SITE, AXIS_SOURCE},
                                        .type = TYPE_UINT8,
                                        .units = "1",
                                        .long_name = "1: the site reads this source"};
    const recorded_dataset newest = {.name = "routing/newest",
                                     .rank = 1,
                                     .axis = {AXIS_SITE},
                                     .type = TYPE_INT32,
                                     .units = "1",
                                     .long_name = "index of the site's newest source; -1: none"};
    if (put_fixed(w, &available, 0, w->plan.axes.available, st))
        return FAILED;
    return put_fixed(w, &newest, 0, w->plan.axes.newest, st);
}

/* Refuses to take the place of what is no plain file, and to disturb another writer. */
static int check_paths(const recording_writer *w, status *st) {
    struct stat found;
    const char *paths[] = {w->path, w->partial};
    for (size_t i = 0; i < 2; i++)
        if (lstat(paths[i], &found) == 0 && !S_ISREG(found.st_mode))
            return status_fail(st, "%s: exists and is no regular file; name another output",
                               paths[i]);
    int fd = open(w->partial, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return status_fail(st, "%s: cannot be created: %s", w->partial, strerror(errno));
    bool busy = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    close(fd);
    if (busy)
        return status_fail(st, "%s: another process is writing it", w->partial);
    return DONE;
}

/* What a flush has put on disk stays consistent until the next one only if nothing of the tables of
 * contents is written between them, so the cache that holds them evicts nothing by itself. */
static H5AC_cache_config_t cache_config(bool evict) {
    enum { CACHE_BYTES = 128 << 10 };
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5AC_cache_config_t cache = {.version = H5AC__CURR_CACHE_CONFIG_VERSION};
    H5Pget_mdc_config(access, &cache);
    h5_close(&access);
    cache.evictions_enabled = evict;
    cache.incr_mode = H5C_incr__off;
    cache.flash_incr_mode = H5C_flash_incr__off;
    cache.decr_mode = H5C_decr__off;
    cache.min_size = CACHE_BYTES;
    cache.set_initial_size = true;
    cache.initial_size = evict ? CACHE_BYTES : 2 * CACHE_BYTES;
    return cache;
}

/* Drops from the cache what a flush has just written, by making it smaller for the length of one
 * access: memory then does not grow with the file. */
static herr_t shrink_cache(hid_t file) {
    H5AC_cache_config_t evict = cache_config(true), keep = cache_config(false);
    H5O_info_t touched;
    herr_t done = H5Fset_mdc_config(file, &evict);
    if (done >= 0)
        done = H5Oget_info_by_name(file, "seq", &touched, H5P_DEFAULT);
    return done < 0 ? done : H5Fset_mdc_config(file, &keep);
}

static hid_t open_file(const char *path) {
    H5AC_cache_config_t cache = cache_config(false);
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_mdc_config(access, &cache);
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    h5_close(&access);
    return file;
}

/* Where each kind's datasets stand, and the datasets themselves. */
static int create_datasets(recording_writer *w, status *st) {
    const recording_axes *axes = &w->plan.axes;
    if (recorded_datasets(axes, &w->plan.wants, &w->list, &w->datasets, st))
        return FAILED;
    for (size_t kind = 0; kind < RECORDED_KINDS; kind++) {
        size_t indices =
            kind == RECORDED_ROW || kind == RECORDED_NULL_NORM || kind == RECORDED_NULL_VAR
                ? routing_row_count
            : kind == RECORDED_IN                            ? axes->sites
            : kind == RECORDED_OUT || kind == RECORDED_STATE ? axes->sublayers
            : kind == RECORDED_PATTERN                       ? axes->layers
                                                             : 1;
        w->first[kind + 1] = w->first[kind] + indices;
    }
    w->slot = mem_array(w->first[RECORDED_KINDS], sizeof *w->slot, "list of datasets", st);
    w->dataset = mem_array(w->datasets, sizeof *w->dataset, "list of datasets", st);
    if (!w->slot || !w->dataset)
        return FAILED;
    for (size_t i = 0; i < w->first[RECORDED_KINDS]; i++)
        w->slot[i] = -1;
    for (size_t i = 0; i < w->datasets; i++)
        w->dataset[i] = H5_NONE;
    for (size_t i = 0; i < w->datasets; i++) {
        hsize_t extent[RECORDED_RANK_MAX];
        w->slot[w->first[w->list[i].kind] + w->list[i].index] = (int)i;
        w->dataset[i] = create_dataset(w, &w->list[i], 0, extent, st);
        if (w->dataset[i] < 0)
            return FAILED;
    }
    return DONE;
}

/* From the start, so that a file cut short has them too, all NaN. */
static int create_norms(recording_writer *w, status *st) {
    for (size_t i = 0; w->plan.wants.gradients && i < GRADIENT_NORMS; i++)
        if (put_fixed(w, &gradient_norm_datasets[i], 0, NULL, st))
            return FAILED;
    return DONE;
}

static int create_totals(recording_writer *w, status *st) {
    size_t longest = 1;
    w->total = mem_array(routing_row_count, sizeof *w->total, "routing sums", st);
    if (!w->total)
        return FAILED;
    for (size_t i = 0; i < routing_row_count; i++) {
        if (!recording_writer_has_row(w, i))
            continue;
        const recording_axes *axes = &w->plan.axes;
        size_t size = axes->sites * routing_row_size(&routing_rows[i], axes->heads, axes->sources);
        w->total[i] = mem_array(size, sizeof **w->total, "routing sums", st);
        if (!w->total[i])
            return FAILED;
        longest = size > longest ? size : longest;
    }
    w->means = mem_array(longest, sizeof *w->means, "routing means", st);
    return w->means ? DONE : FAILED;
}

/* Closes every handle once; false where HDF5 could not write what it held. */
static bool close_file(recording_writer *w) {
    for (size_t i = 0; w->dataset && i < w->datasets; i++)
        h5_close(&w->dataset[i]);
    for (size_t i = 0; i < AXIS_COUNT; i++)
        h5_close(&w->scale[i]);
    bool closed = w->file < 0 || H5Fclose(w->file) >= 0;
    w->file = H5_NONE;
    return closed;
}

static void free_writer(recording_writer *w) {
    for (size_t i = 0; w->total && i < routing_row_count; i++)
        free(w->total[i]);
    free(w->total);
    free(w->means);
    free(w->list);
    free(w->dataset);
    free(w->slot);
    free(w->path);
    free(w->partial);
    free(w);
}

int recording_writer_create(const char *path, const recording_plan *plan, recording_writer **out,
                            status *st) {
    h5_prepare();
    signal(SIGXFSZ, SIG_IGN);
    *out = NULL;
    recording_writer *w = mem_array(1, sizeof *w, "recording", st);
    if (!w)
        return FAILED;
    w->plan = *plan;
    w->file = H5_NONE;
    for (size_t i = 0; i < AXIS_COUNT; i++)
        w->scale[i] = H5_NONE;
    w->path = mem_text(path, st);
    w->partial = mem_array(strlen(path) + sizeof ".partial", 1, "path", st);
    if (!w->path || !w->partial)
        goto fail;
    sprintf(w->partial, "%s.partial", path);
    if (check_paths(w, st))
        goto fail;
    w->file = open_file(w->partial);
    if (w->file < 0) {
        h5_fail(st, w->partial, NULL);
        goto fail;
    }
    if (put_header(w, st) || create_datasets(w, st) || put_available(w, st) ||
        create_norms(w, st) || create_totals(w, st) || recording_writer_commit(w, st)) {
        close_file(w);
        unlink(w->partial);
        goto fail;
    }
    *out = w;
    return DONE;
fail:
    free_writer(w);
    return FAILED;
}

/* Every dataset that grows with the sequences, and their scale. */
static int set_sequences(recording_writer *w, size_t sequences, status *st) {
    for (size_t i = 0; i <= w->datasets; i++) {
        hid_t dataset = i < w->datasets ? w->dataset[i] : w->scale[AXIS_SEQ];
        const recorded_dataset *d = i < w->datasets ? &w->list[i] : NULL;
        hsize_t extent[RECORDED_RANK_MAX] = {sequences};
        for (size_t axis = 1; d && axis < d->rank; axis++)
            extent[axis] = recording_axis_extent(&w->plan.axes, d->axis[axis]);
        if (H5Dset_extent(dataset, extent) < 0)
            return fail(w, d ? d->name : "seq", st);
    }
    return DONE;
}

int recording_writer_begin(recording_writer *w, size_t sequences, status *st) {
    w->open = sequences;
    return set_sequences(w, w->committed + sequences, st);
}

int recording_writer_put(recording_writer *w, recorded_kind kind, size_t index, size_t sequence,
                         size_t length, const void *data, status *st) {
    const bool by_site = recorded_by_site(kind);
    const size_t sites = w->plan.axes.sites;
    int slot = w->slot[w->first[kind] + (by_site ? index / sites : index)];
    if (slot < 0 || !data)
        return DONE;
    const recorded_dataset *d = &w->list[slot];
    hsize_t start[RECORDED_RANK_MAX] = {w->committed + sequence}, count[RECORDED_RANK_MAX] = {1};
    for (size_t i = 1; i < d->rank; i++) {
        recording_axis axis = d->axis[i];
        bool tokens = axis == AXIS_POS || axis == AXIS_QUERY_POS || axis == AXIS_KEY_POS;
        bool site = by_site && axis == AXIS_SITE;
        start[i] = site ? index % sites : 0;
        count[i] = tokens ? length : site ? 1 : recording_axis_extent(&w->plan.axes, axis);
    }
    if (h5_write(w->dataset[slot], memory_type(d->type), d->rank, start, count, data) < 0)
        return fail(w, d->name, st);
    return DONE;
}

bool recording_writer_has_row(const recording_writer *w, size_t row) {
    return w->slot[w->first[RECORDED_ROW] + row] >= 0;
}

int recording_writer_put_row(recording_writer *w, size_t row, size_t sequence, const double *sums,
                             double tokens, status *st) {
    const recording_axes *axes = &w->plan.axes;
    if (!recording_writer_has_row(w, row))
        return DONE;
    size_t size = axes->sites * routing_row_size(&routing_rows[row], axes->heads, axes->sources);
    for (size_t i = 0; i < size; i++)
        w->means[i] = sums[i] / tokens;
    if (tokens > 0)
        for (size_t i = 0; i < size; i++)
            w->total[row][i] += sums[i];
    if (row == 0)
        w->tokens += tokens;
    return recording_writer_put(w, RECORDED_ROW, row, sequence, 0, w->means, st);
}

int recording_writer_commit(recording_writer *w, status *st) {
    hsize_t start = w->committed, count = w->open;
    int32_t number = (int32_t)w->committed;
    for (size_t i = 0; i < w->open; i++, start++, number++) {
        count = 1;
        if (h5_write(w->scale[AXIS_SEQ], H5T_NATIVE_INT32, 1, &start, &count, &number) < 0)
            return fail(w, "seq", st);
    }
    if (H5Fflush(w->file, H5F_SCOPE_LOCAL) < 0 || shrink_cache(w->file) < 0) {
        w->torn = true;
        return fail(w, "cannot be written", st);
    }
    w->committed += w->open;
    w->open = 0;
    return DONE;
}

size_t recording_writer_sequences(const recording_writer *w) {
    return w->committed;
}

uint64_t recording_writer_bytes(const recording_writer *w) {
    hsize_t bytes = 0;
    return H5Fget_filesize(w->file, &bytes) < 0 ? 0 : bytes;
}

const char *recording_writer_partial(const recording_writer *w) {
    return w->partial;
}

/* routing/ROW: the rows of routing_seq, token-weighted over the sequences. */
static int put_means(recording_writer *w, status *st) {
    const recording_axes *axes = &w->plan.axes;
    for (size_t i = 0; i < routing_row_count; i++) {
        if (!w->total[i])
            continue;
        const routing_row *row = &routing_rows[i];
        size_t size = axes->sites * routing_row_size(row, axes->heads, axes->sources);
        for (size_t j = 0; j < size; j++)
            w->means[j] = w->total[i][j] / w->tokens;
        recorded_dataset d = w->list[w->slot[w->first[RECORDED_ROW] + i]];
        d.rank--;
        memmove(d.axis, d.axis + 1, d.rank * sizeof *d.axis);
        snprintf(d.name, sizeof d.name, "routing/%s", row->name);
        snprintf(d.long_name, sizeof d.long_name, "%s, over all tokens", row->long_name);
        if (put_fixed(w, &d, 0, w->means, st))
            return FAILED;
    }
    return DONE;
}

/* Adds up, weighted by tokens, what routing_seq has for the committed sequences with nulls. */
static int sum_nulls(recording_writer *w, int slot, size_t size, double *sum, double *one,
                     status *st) {
    const hid_t has = w->dataset[w->slot[w->first[RECORDED_HAS_NULL]]];
    const hid_t lengths = w->dataset[w->slot[w->first[RECORDED_LENGTH]]];
    const recorded_dataset *d = &w->list[slot];
    const int64_t skip = (int64_t)w->plan.header.skip_first;
    double tokens = 0;
    for (size_t seq = 0; seq < w->committed; seq++) {
        hsize_t start[RECORDED_RANK_MAX] = {seq}, count[RECORDED_RANK_MAX] = {1};
        uint8_t mark;
        int32_t length;
        for (size_t i = 1; i < d->rank; i++)
            count[i] = recording_axis_extent(&w->plan.axes, d->axis[i]);
        if (h5_read(has, H5T_NATIVE_UINT8, 1, start, count, &mark) < 0 ||
            h5_read(lengths, H5T_NATIVE_INT32, 1, start, count, &length) < 0)
            return fail(w, "routing_seq/has_null", st);
        if (!mark || length <= skip)
            continue;
        if (h5_read(w->dataset[slot], H5T_NATIVE_DOUBLE, d->rank, start, count, one) < 0)
            return fail(w, d->name, st);
        for (size_t i = 0; i < size; i++)
            sum[i] += (double)(length - skip) * one[i];
        tokens += (double)(length - skip);
    }
    for (size_t i = 0; i < size; i++)
        sum[i] /= tokens;
    return DONE;
}

/* routing/ROW_null_norm and _var: those of routing_seq over all tokens that have them. */
static int put_null_means(recording_writer *w, recorded_kind kind, status *st) {
    for (size_t row = 0; row < routing_row_count; row++) {
        int slot = w->slot[w->first[kind] + row];
        if (slot < 0)
            continue;
        recorded_dataset d = w->list[slot];
        size_t size = 1, prefix = strlen("routing_seq/");
        for (size_t i = 1; i < d.rank; i++)
            size *= recording_axis_extent(&w->plan.axes, d.axis[i]);
        double *sum = mem_array(size, sizeof *sum, d.name, st);
        double *one = mem_array(size, sizeof *one, d.name, st);
        int result = sum && one ? sum_nulls(w, slot, size, sum, one, st) : FAILED;
        d.rank--;
        memmove(d.axis, d.axis + 1, d.rank * sizeof *d.axis);
        snprintf(d.name, sizeof d.name, "routing/%s", w->list[slot].name + prefix);
        char *end = strstr(d.long_name, ", per sequence");
        snprintf(end, sizeof d.long_name - (size_t)(end - d.long_name), ", over all tokens");
        if (result == DONE)
            result = put_fixed(w, &d, 0, sum, st);
        free(sum);
        free(one);
        if (result)
            return result;
    }
    return DONE;
}

static int put_norms(recording_writer *w, const recording_closing *closing, status *st) {
    const int64_t tokens = (int64_t)closing->grad_tokens;
    if (!w->plan.wants.gradients)
        return DONE;
    for (size_t i = 0; i < GRADIENT_NORMS; i++) {
        const recorded_dataset *d = &gradient_norm_datasets[i];
        if (!closing->gradient_norm[i])
            continue;
        hid_t dataset = H5Dopen2(w->file, d->name, H5P_DEFAULT);
        herr_t done = dataset < 0 ? -1
                                  : H5Dwrite(dataset, memory_type(d->type), H5S_ALL, H5S_ALL,
                                             H5P_DEFAULT, closing->gradient_norm[i]);
        h5_close(&dataset);
        if (done < 0)
            return fail(w, d->name, st);
    }
    return h5_put_number(w->file, "grad_tokens", H5T_NATIVE_INT64, &tokens) < 0
               ? fail(w, "attributes", st)
               : DONE;
}

static int put_closing(recording_writer *w, const recording_closing *closing, status *st) {
    const recorded_dataset id = {.name = "vocab/id",
                                 .rank = 1,
                                 .axis = {AXIS_PIECE},
                                 .type = TYPE_INT32,
                                 .units = "1",
                                 .long_name = "token id that occurs"};
    const recorded_dataset piece = {.name = "vocab/piece",
                                    .rank = 1,
                                    .axis = {AXIS_PIECE},
                                    .type = TYPE_TEXT,
                                    .units = "1",
                                    .long_name = "its text; other bytes as \\xNN"};
    if (h5_put_text(w->file, "model_sha256", closing->model_sha256 ? closing->model_sha256 : "") <
            0 ||
        h5_put_text(w->file, "tokens_sha256",
                    closing->tokens_sha256 ? closing->tokens_sha256 : "") < 0)
        return fail(w, "attributes", st);
    if (closing->pieces == 0)
        return DONE;
    if (put_fixed(w, &id, closing->pieces, closing->piece_id, st))
        return FAILED;
    return put_fixed(w, &piece, closing->pieces, closing->piece, st);
}

int recording_writer_finish(recording_writer *w, const recording_closing *closing, bool complete,
                            status *st) {
    const uint8_t mark = complete;
    if ((w->open && set_sequences(w, w->committed, st)) || put_means(w, st) ||
        put_null_means(w, RECORDED_NULL_NORM, st) || put_null_means(w, RECORDED_NULL_VAR, st) ||
        put_norms(w, closing, st) || put_closing(w, closing, st))
        return FAILED;
    if (h5_put_number(w->file, "complete", H5T_NATIVE_UINT8, &mark) < 0)
        return fail(w, "attributes", st);
    if (H5Fflush(w->file, H5F_SCOPE_LOCAL) < 0 || !close_file(w)) {
        w->torn = true;
        return fail(w, "cannot be written", st);
    }
    if (complete && rename(w->partial, w->path))
        return status_fail(st, "%s: cannot be renamed to %s: %s", w->partial, w->path,
                           strerror(errno));
    free_writer(w);
    return DONE;
}

/* After a failed write, closing would write again and could spoil what the last commit left, so the
 * file stays open. Where that is spoilt already, closing is the one more try there is. */
int recording_writer_abandon(recording_writer *w) {
    status ignored;
    if (!w)
        return FAILED;
    bool readable = true;
    if (!w->failed || w->torn) {
        readable = w->file < 0 || set_sequences(w, w->committed, &ignored) == DONE;
        readable = close_file(w) && readable;
        H5Eclear2(H5E_DEFAULT);
    }
    if (w->committed == 0)
        unlink(w->partial);
    free_writer(w);
    return readable ? DONE : FAILED;
}
