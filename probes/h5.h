/* h5.h - the few HDF5 operations that recordings need, with failures as status texts.
 *
 * HDF5 prints nothing by itself after h5_prepare. Every HDF5 call of a process is made by one
 * thread. Texts are variable-length UTF-8 (the netCDF4 reader crashes on fixed-length string
 * datasets); reading accepts both. */
#ifndef FATHOM_H5_H
#define FATHOM_H5_H

#include "runtime/base/status.h"

#include <hdf5.h>
#include <stdbool.h>
#include <stdint.h>

enum { H5_NONE = -1 }; /* a handle that is not open */

/* Before any other HDF5 call of the process, as often as wanted: HDF5 runs no exit handler (it
 * crashes after a close that failed) and prints no error stack. */
void h5_prepare(void);

/* Fills `st` with "WHERE: WHAT: innermost HDF5 message" and returns FAILED. System errors are put
 * in the system's words ("No space left on device"); a lock held by a writer in a sentence of its
 * own. `what` may be NULL. */
int h5_fail(status *st, const char *where, const char *what);

/* Closes any handle that is open (>= 0) and marks it closed. */
void h5_close(hid_t *handle);

/* The type of variable-length UTF-8 texts, to be closed. */
hid_t h5_text_type(void);

/* Attributes of `object`, created or replaced. Negative on failure. */
herr_t h5_put_text(hid_t object, const char *name, const char *text);
herr_t h5_put_number(hid_t object, const char *name, hid_t type, const void *value);

/* Attributes read: a missing one leaves *text a copy of "" and *value alone. `text` is freed by the
 * caller. Types that are no text or no whole number are an error. */
int h5_get_text(hid_t object, const char *where, const char *name, char **text,
                status *st) MUST_USE;
int h5_get_whole(hid_t object, const char *where, const char *name, int64_t *value,
                 status *st) MUST_USE;

/* Whether every link of `path` ("routing/mean") exists below `object`. */
bool h5_has(hid_t object, const char *path);

/* A dataset's rank and its first `max` extents; FAILED for something that is no dataset. */
int h5_shape(hid_t dataset, size_t max, size_t *rank, size_t *extent);

/* A one-dimensional dataset as texts: strings as they are, whole numbers in decimal. *texts
 * [*count] is one block freed by the caller with free(). */
int h5_get_texts(hid_t file, const char *where, const char *path, size_t *count, char ***texts,
                 status *st) MUST_USE;

/* A slab of a dataset between memory, row-major and without gaps, and file; negative on failure. */
herr_t h5_read(hid_t dataset, hid_t type, size_t rank, const hsize_t *start, const hsize_t *count,
               void *out);
herr_t h5_write(hid_t dataset, hid_t type, size_t rank, const hsize_t *start, const hsize_t *count,
                const void *data);

#endif
