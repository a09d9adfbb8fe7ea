/* log.h - messages and progress on stderr; results never go here.
 *
 * Every line starts with "fathom: ". -q silences all but errors, -v adds log_detail. */
#ifndef FATHOM_LOG_H
#define FATHOM_LOG_H

#include "runtime/base/status.h"

#include <stdint.h>

void log_error(const char *format, ...) PRINTF_LIKE(1, 2);
void log_warn(const char *format, ...) PRINTF_LIKE(1, 2); /* prefixed "warning: " */
void log_note(const char *format, ...) PRINTF_LIKE(1, 2);
void log_detail(const char *format, ...) PRINTF_LIKE(1, 2);

/* From here on every message goes to `watch` instead of stderr, whatever -q and -v say; progress
 * does not change. For a command that runs others and shows what they say in its own way. `text` is
 * valid during the call, which is made under a lock and must not log. NULL: back to stderr. */
typedef enum log_kind { LOG_ERROR, LOG_WARNING, LOG_NOTE, LOG_DETAIL } log_kind;
typedef void log_watcher(void *context, log_kind kind, const char *text);
void log_watch(log_watcher *watch, void *context);

/* "1.4 GB", "312 kB": `bytes` in powers of 1000, into a caller's buffer. Returns `out`. */
typedef struct byte_text {
    char text[32];
} byte_text;
byte_text bytes_text(uint64_t bytes);

/* Progress of one long step. On a terminal a bar redrawn at most ten times a second with rate and
 * ETA; otherwise a line at most every ten seconds. One step at a time. Nothing with -q. */
void progress_begin(const char *step, uint64_t total, const char *unit); /* unit: "tokens" */
void progress_update(uint64_t done, uint64_t bytes_written);             /* bytes 0: not shown */
void progress_end(void); /* clears the bar, prints one closing line with the rate */

#endif
