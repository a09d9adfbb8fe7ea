/* Reading what `capture --gradients` recorded; see recording.h. */
#include "probes/recording_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Opens grad/NAME, which must have these extents. */
static int open_gradient(const recording *rec, const char *path, size_t rank, const size_t *extent,
                         hid_t *dataset, status *st) {
    const char *file = recording_about_of(rec)->path;
    size_t found_rank, found[3];
    *dataset = H5_NONE;
    if (!h5_has(recording_file(rec), path))
        return status_fail(st, "%s: %s: not recorded; `fathom capture --gradients` records it",
                           file, path);
    *dataset = H5Dopen2(recording_file(rec), path, H5P_DEFAULT);
    if (*dataset < 0)
        return h5_fail(st, file, path);
    if (h5_shape(*dataset, 3, &found_rank, found) || found_rank != rank)
        return status_fail(st, "%s: %s: expected a dataset of %zu axes", file, path, rank);
    for (size_t i = 0; i < rank; i++)
        if (found[i] != extent[i])
            return status_fail(st, "%s: %s: axis %zu has %zu entries, expected %zu", file, path, i,
                               found[i], extent[i]);
    return DONE;
}

int recording_read_gradient(recording *rec, const char *name, size_t sequence, float *out,
                            status *st) {
    const recording_about *about = recording_about_of(rec);
    char path[64];
    hid_t dataset;
    snprintf(path, sizeof path, "grad/%s", name);
    size_t rank = strcmp(name, "emb_l2") == 0 ? 2 : 3;
    size_t extent[3] = {about->sequences, about->positions,
                        strcmp(name, "in_l2") == 0 ? about->sites : about->sublayers};
    const hsize_t start[3] = {sequence, 0, 0};
    const hsize_t count[3] = {1, (hsize_t)about->length[sequence], extent[2]};
    int result = open_gradient(rec, path, rank, extent, &dataset, st);
    if (result == DONE && h5_read(dataset, H5T_NATIVE_FLOAT, rank, start, count, out) < 0)
        result = h5_fail(st, about->path, path);
    h5_close(&dataset);
    return result;
}

int recording_read_gradient_norms(recording *rec, const char *name, double **out, status *st) {
    const recording_about *about = recording_about_of(rec);
    char path[64];
    hid_t dataset;
    snprintf(path, sizeof path, "grad/%s", name);
    bool query = strcmp(name, "query_l2") == 0;
    size_t extent[2] = {query                           ? about->sites
                        : strcmp(name, "layer_l2") == 0 ? about->layers
                                                        : about->params,
                        about->heads};
    *out = NULL;
    int result = open_gradient(rec, path, query ? 2 : 1, extent, &dataset, st);
    if (result == DONE) {
        *out = mem_array(extent[0], (query ? extent[1] : 1) * sizeof **out, path, st);
        result = *out ? DONE : FAILED;
    }
    if (result == DONE &&
        H5Dread(dataset, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, *out) < 0) {
        result = h5_fail(st, about->path, path);
        free(*out);
        *out = NULL;
    }
    h5_close(&dataset);
    return result;
}
