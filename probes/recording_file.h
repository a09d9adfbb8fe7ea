/* recording_file.h - the open HDF5 file under a recording, for `check` and `show`. */
#ifndef FATHOM_RECORDING_FILE_H
#define FATHOM_RECORDING_FILE_H

#include "probes/h5.h"
#include "probes/recording.h"

/* Owned by the recording. */
hid_t recording_file(const recording *rec);

#endif
