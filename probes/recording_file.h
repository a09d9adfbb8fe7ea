/* recording_file.h - the open HDF5 file under a recording, for `check` and `show`. */
#ifndef FATHOM_RECORDING_FILE_H
#define FATHOM_RECORDING_FILE_H

#include "probes/h5.h"
#include "probes/recording.h"

/* Owned by the recording. */
hid_t recording_file(const recording *rec);

/* Fills about->null_draws and null_sequences, and *list [null_sequences], freed by the caller. */
int recording_find_nulls(hid_t file, recording_about *about, size_t **list, status *st) MUST_USE;

#endif
