/* version.h - the one place where the version stands. */
#ifndef FATHOM_VERSION_H
#define FATHOM_VERSION_H

#define FATHOM_VERSION "0.1.0"
#define FATHOM_SCHEMA "fathom-1" /* of recordings; readers refuse a newer number */

/* "gcc 12.2.0; -O2 …": compiler and flags of this build. */
const char *build_text(void);

/* The commit this was built from ("-dirty" added where files differ from it); the version where
 * there is no git. */
const char *build_hash(void);

/* "HDF5 1.10.8, cJSON 1.7.15, OpenBLAS 0.3.21": the versions compiled against. */
const char *build_libraries(void);

#endif
