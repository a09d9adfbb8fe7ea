/* scratch.h - files that tests write. */
#ifndef FATHOM_SCRATCH_H
#define FATHOM_SCRATCH_H

/* "FOLDER/NAME" in the folder that TEST_TMP names (build/tmp where it is not set), which is made.
 * Freed by the caller. Ends the program where that fails. */
char *scratch_path(const char *name);

/* Standard output and standard error go to a file from here on ... */
void scratch_capture_begin(void);
/* ... and come back as text, to be freed by the caller. */
char *scratch_capture_end(void);

#endif
