/* Reading what `capture --null` recorded; see recording.h. */
#include "probes/recording_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DRAWS_MAX = 1 << 16 };

/* Opens a dataset that must have these extents; SIZE_MAX: any up to DRAWS_MAX, taken over. */
static int open_null(hid_t file, const char *where, const char *path, size_t rank, size_t *extent,
                     hid_t *dataset, status *st) {
    size_t found_rank, found[5];
    *dataset = H5_NONE;
    if (!h5_has(file, path))
        return status_fail(st, "%s: %s: not recorded; `fathom capture --null 8` records it", where,
                           path);
    *dataset = H5Dopen2(file, path, H5P_DEFAULT);
    if (*dataset < 0)
        return h5_fail(st, where, path);
    if (h5_shape(*dataset, 5, &found_rank, found) || found_rank != rank)
        return status_fail(st, "%s: %s: expected a dataset of %zu axes", where, path, rank);
    for (size_t i = 0; i < rank; i++) {
        if (extent[i] == SIZE_MAX && found[i] <= DRAWS_MAX)
            extent[i] = found[i];
        if (found[i] != extent[i])
            return status_fail(st, "%s: %s: axis %zu has %zu entries, expected %zu", where, path, i,
                               found[i], extent[i]);
    }
    return DONE;
}

int recording_find_nulls(hid_t file, recording_about *about, size_t **list, status *st) {
    hid_t dataset = H5_NONE;
    *list = NULL;
    if (!h5_has(file, "routing_seq/has_null"))
        return DONE;
    size_t one[1] = {about->sequences};
    size_t all[4] = {about->sequences, SIZE_MAX, about->sites, about->heads};
    int result = FAILED;
    uint8_t *mark = mem_array(about->sequences, sizeof *mark, "nulls", st);
    *list = mem_array(about->sequences, sizeof **list, "nulls", st);
    if (!mark || !*list ||
        open_null(file, about->path, "routing_seq/has_null", 1, one, &dataset, st))
        goto done;
    if (H5Dread(dataset, H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, mark) < 0) {
        h5_fail(st, about->path, "routing_seq/has_null");
        goto done;
    }
    h5_close(&dataset);
    if (open_null(file, about->path, "routing_seq/entropy_null_norm", 4, all, &dataset, st))
        goto done;
    about->null_draws = all[1];
    for (size_t i = 0; i < about->sequences; i++)
        if (mark[i])
            (*list)[about->null_sequences++] = i;
    result = DONE;
done:
    h5_close(&dataset);
    free(mark);
    return result;
}

int recording_read_null(recording *rec, const char *name, const char *kind, double **data,
                        status *st) {
    const recording_about *about = recording_about_of(rec);
    const routing_row *row = routing_row_find(name);
    char path[96];
    hid_t dataset;
    *data = NULL;
    if (!row || !row->nulls)
        return status_fail(st, "routing row `%s` has no nulls", name);
    snprintf(path, sizeof path, "routing_seq/%s_null_%s", name, kind);
    bool by_source = row->axes == ROW_HEAD_SOURCE;
    size_t rank = row->axes == ROW_SITE ? 3 : row->axes == ROW_HEAD ? 4 : 5;
    size_t extent[5] = {about->sequences, about->null_draws, about->sites, about->heads,
                        by_source ? about->sources : about->heads};
    size_t size =
        about->null_draws * about->sites * routing_row_size(row, about->heads, about->sources);
    int result = open_null(recording_file(rec), about->path, path, rank, extent, &dataset, st);
    if (result == DONE) {
        *data = mem_array(about->null_sequences, size * sizeof **data, path, st);
        result = *data ? DONE : FAILED;
    }
    for (size_t i = 0; i < about->null_sequences && result == DONE; i++) {
        const hsize_t start[5] = {about->null_sequence[i]};
        const hsize_t count[5] = {1, extent[1], extent[2], extent[3], extent[4]};
        if (h5_read(dataset, H5T_NATIVE_DOUBLE, rank, start, count, *data + i * size) < 0)
            result = h5_fail(st, about->path, path);
    }
    h5_close(&dataset);
    if (result) {
        free(*data);
        *data = NULL;
    }
    return result;
}
