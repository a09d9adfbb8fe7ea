#include "probes/dataset_diff.h"

#include <hdf5_hl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ---- */

typedef struct name_block {
    size_t count, bytes, room; /* room 0: only counting */
    char *text;
} name_block;

static herr_t see_object(hid_t file, const char *name, const H5O_info_t *info, void *context) {
    (void)file;
    name_block *block = context;
    if (info->type != H5O_TYPE_DATASET)
        return 0;
    size_t length = strlen(name) + 1;
    if (block->room && block->bytes + length > block->room)
        return -1;
    if (block->room)
        memcpy(block->text + block->bytes, name, length);
    block->bytes += length;
    block->count++;
    return 0;
}

int dataset_names(const recording *rec, char ***names, size_t *count, status *st) {
    const char *path = recording_about_of(rec)->path;
    hid_t file = recording_file(rec);
    name_block sizes = {0};
    *names = NULL;
    if (H5Ovisit(file, H5_INDEX_NAME, H5_ITER_INC, see_object, &sizes) < 0)
        return h5_fail(st, path, "list of datasets");
    *names = mem_array(1, sizes.count * sizeof **names + sizes.bytes + 1, "names", st);
    if (!*names)
        return FAILED;
    name_block block = {.room = sizes.bytes, .text = (char *)(*names + sizes.count)};
    if (sizes.count && H5Ovisit(file, H5_INDEX_NAME, H5_ITER_INC, see_object, &block) < 0) {
        free(*names);
        *names = NULL;
        return h5_fail(st, path, "list of datasets");
    }
    char *text = block.text;
    for (*count = 0; *count < block.count; (*count)++) {
        (*names)[*count] = text;
        text += strlen(text) + 1;
    }
    return DONE;
}

/* ---- one dataset in two files ---- */

typedef enum content { NUMBERS, TEXTS, OTHER } content;

typedef struct side {
    const recording *rec;
    const char *path;
    hid_t dataset;
    content content;
    size_t rank, extent[H5S_MAX_RANK];
    double *number; /* a piece */
} side;

typedef struct work {
    const char *name;
    side side[2];
    double absolute, relative;
    dataset_diff *d;
} work;

enum { DEFLATE_RATIO = 1100 };

static int open_side(work *w, side *s, const recording *rec, status *st) {
    s->rec = rec;
    s->path = recording_about_of(rec)->path;
    s->dataset = H5Dopen2(recording_file(rec), w->name, H5P_DEFAULT);
    if (s->dataset < 0)
        return h5_fail(st, s->path, w->name);
    if (h5_shape(s->dataset, H5S_MAX_RANK, &s->rank, s->extent))
        return status_fail(st, "%s: %s: is no dataset with a shape", s->path, w->name);
    /* No file holds more than its size times what deflate reaches. */
    hsize_t bytes = 0;
    double claimed = 1;
    H5Fget_filesize(recording_file(rec), &bytes);
    for (size_t i = 0; i < s->rank; i++)
        claimed *= (double)s->extent[i];
    if (claimed > (double)bytes * DEFLATE_RATIO)
        return status_fail(st, "%s: %s: claims %.0f numbers, more than a file of %llu bytes holds",
                           s->path, w->name, claimed, (unsigned long long)bytes);
    hid_t type = H5Dget_type(s->dataset);
    H5T_class_t class = H5Tget_class(type);
    s->content = class == H5T_STRING                          ? TEXTS
                 : class == H5T_INTEGER || class == H5T_FLOAT ? NUMBERS
                                                              : OTHER;
    h5_close(&type);
    if (s->content == OTHER)
        return status_fail(st, "%s: %s: expected numbers or texts", s->path, w->name);
    return DONE;
}

static void print_shape(const side *s, char out[96]) {
    int used = 0;
    for (size_t i = 0; i < s->rank && used < 60; i++)
        used += snprintf(out + used, 96 - (size_t)used, "%s%zu", i ? " x " : "", s->extent[i]);
    snprintf(out + used, 96 - (size_t)used, " %s", s->content == TEXTS ? "texts" : "numbers");
}

static bool same_shape(const side *a, const side *b) {
    if (a->content != b->content || a->rank != b->rank)
        return false;
    return memcmp(a->extent, b->extent, a->rank * sizeof *a->extent) == 0;
}

/* The place of the i-th number of a piece. */
static void place_of(const hsize_t *start, const hsize_t *count, size_t rank, size_t i,
                     size_t *at) {
    for (size_t axis = rank; axis-- > 0;) {
        at[axis] = (size_t)start[axis] + i % (size_t)count[axis];
        i /= (size_t)count[axis];
    }
}

static void see_piece(work *w, const hsize_t *start, const hsize_t *count, size_t numbers) {
    dataset_diff *d = w->d;
    const double *a = w->side[0].number, *b = w->side[1].number;
    for (size_t i = 0; i < numbers; i++) {
        if (a[i] == b[i] || (isnan(a[i]) && isnan(b[i])))
            continue;
        bool nan = isnan(a[i]) || isnan(b[i]);
        double off = fabs(a[i] - b[i]), size = fmax(fabs(a[i]), fabs(b[i]));
        double part = isinf(size) ? INFINITY : off / size;
        if (nan && d->nan++ == 0)
            place_of(start, count, d->rank, i, d->at_nan);
        if (!nan && off > d->absolute) {
            d->absolute = off;
            place_of(start, count, d->rank, i, d->at_absolute);
        }
        if (!nan && part > d->relative) {
            d->relative = part;
            place_of(start, count, d->rank, i, d->at_relative);
        }
        bool within = !nan && !isinf(size) && off <= w->absolute + w->relative * size;
        if (!within && d->over++ == 0)
            place_of(start, count, d->rank, i, d->at_over);
    }
    d->compared += numbers;
}

/* A piece takes one index of each axis before `cut`, some of axis `cut`, all of those after it. */
static size_t find_cut(const side *s, size_t *rows) {
    const size_t most = DATASET_DIFF_BYTES / sizeof(double);
    size_t inner = 1, axis = s->rank - 1;
    while (axis > 0 && s->extent[axis] && inner <= most / s->extent[axis])
        inner *= s->extent[axis--];
    *rows = most / inner;
    return axis;
}

static int compare_numbers(work *w, status *st) {
    side *a = &w->side[0];
    size_t rank = a->rank ? a->rank : 1, rows = 1, cut = 0;
    hsize_t start[H5S_MAX_RANK] = {0}, count[H5S_MAX_RANK] = {1};
    for (size_t i = 0; i < a->rank; i++)
        if (a->extent[i] == 0)
            return DONE;
    if (a->rank)
        cut = find_cut(a, &rows);
    for (;;) {
        size_t numbers = 1;
        for (size_t i = 0; i < a->rank; i++) {
            size_t left = a->extent[i] - (size_t)start[i];
            count[i] = i < cut ? 1 : i > cut ? a->extent[i] : left < rows ? left : rows;
            numbers *= (size_t)count[i];
        }
        for (int i = 0; i < 2; i++) {
            side *s = &w->side[i];
            herr_t done =
                a->rank ? h5_read(s->dataset, H5T_NATIVE_DOUBLE, rank, start, count, s->number)
                        : H5Dread(s->dataset, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT,
                                  s->number);
            if (done < 0)
                return h5_fail(st, s->path, w->name);
        }
        see_piece(w, start, count, numbers);
        /* The next piece: on along `cut`, then the axes before it. */
        size_t axis = cut + 1;
        while (axis > 0) {
            axis--;
            start[axis] += count[axis];
            if (axis < a->rank && start[axis] < a->extent[axis])
                break;
            start[axis] = 0;
            if (axis == 0)
                return DONE;
        }
    }
}

static int compare_texts(work *w, status *st) {
    char **text[2] = {NULL, NULL};
    size_t count[2] = {0, 0};
    int rc = DONE;
    for (int i = 0; !rc && i < 2; i++)
        rc = h5_get_texts(recording_file(w->side[i].rec), w->side[i].path, w->name, &count[i],
                          &text[i], st);
    for (size_t i = 0; !rc && i < count[0] && i < count[1]; i++) {
        w->d->compared++;
        if (strcmp(text[0][i], text[1][i]) != 0 && w->d->over++ == 0)
            w->d->at_over[0] = i;
    }
    free(text[0]);
    free(text[1]);
    return rc;
}

int dataset_diff_run(const recording *a, const recording *b, const char *name, double absolute,
                     double relative, dataset_diff *d, status *st) {
    work w = {.name = name, .absolute = absolute, .relative = relative, .d = d};
    int rc = FAILED;
    *d = (dataset_diff){0};
    w.side[0].dataset = w.side[1].dataset = H5_NONE;
    if (open_side(&w, &w.side[0], a, st) || open_side(&w, &w.side[1], b, st))
        goto done;
    print_shape(&w.side[0], d->shape[0]);
    print_shape(&w.side[1], d->shape[1]);
    d->rank = w.side[0].rank;
    d->text = w.side[0].content == TEXTS;
    d->shapes = !same_shape(&w.side[0], &w.side[1]);
    rc = DONE;
    if (d->shapes)
        goto done;
    for (int i = 0; !d->text && i < 2; i++) {
        w.side[i].number = mem_array(DATASET_DIFF_BYTES, 1, name, st);
        if (!w.side[i].number)
            rc = FAILED;
    }
    if (!rc)
        rc = d->text ? compare_texts(&w, st) : compare_numbers(&w, st);
done:
    for (int i = 0; i < 2; i++) {
        free(w.side[i].number);
        h5_close(&w.side[i].dataset);
    }
    return rc;
}

/* ---- places ---- */

static herr_t scale_name(hid_t dataset, unsigned axis, hid_t scale, void *out) {
    (void)dataset;
    (void)axis;
    return H5Iget_name(scale, out, 64) < 0 ? -1 : 1;
}

/* The label at `index` of a scale of texts, or its number. */
static void put_index(const recording *rec, const char *scale, size_t index, char out[64]) {
    char **label = NULL;
    size_t count = 0;
    status ignored;
    snprintf(out, 64, "%zu", index);
    if (!h5_has(recording_file(rec), scale) ||
        h5_get_texts(recording_file(rec), "", scale, &count, &label, &ignored))
        return;
    if (index < count && *label[index])
        snprintf(out, 64, "%s", label[index]);
    free(label);
}

void dataset_place(const recording *rec, const char *name, size_t rank, const size_t *at, char *out,
                   size_t room) {
    hid_t dataset = H5Dopen2(recording_file(rec), name, H5P_DEFAULT);
    size_t used = 0;
    if (room)
        out[0] = '\0';
    for (unsigned i = 0; i < rank && used < room; i++) {
        char scale[64] = "", label[64];
        snprintf(label, sizeof label, "%zu", at[i]);
        if (dataset >= 0)
            H5DSiterate_scales(dataset, i, NULL, scale_name, scale);
        const char *axis = scale[0] == '/' ? scale + 1 : *scale ? scale : "index";
        if (*scale)
            put_index(rec, axis, at[i], label);
        int more = snprintf(out + used, room - used, "%s%s %s", i ? ", " : "", axis, label);
        used += more > 0 ? (size_t)more : 0;
    }
    h5_close(&dataset);
}
