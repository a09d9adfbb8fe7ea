/* json.h - reading JSON objects with errors that name the file and the key.
 *
 * cJSON underneath (`#include <cjson/cJSON.h>` comes with this header). Parsing refuses trailing
 * garbage; keys are case-sensitive; where a key is repeated the first counts. Getters leave *value
 * alone when the key is absent or null, so a default is set before the call. */
#ifndef FATHOM_JSON_H
#define FATHOM_JSON_H

#include "runtime/base/status.h"

#include <cjson/cJSON.h>
#include <stdbool.h>

/* The text need not end in a zero. `where` (a file name) opens the error text. The result is freed
 * by the caller with cJSON_Delete. Nesting is limited by cJSON (1000). */
int json_parse(const char *text, size_t bytes, const char *where, cJSON **json,
               status *st) MUST_USE;
/* A whole file of at most `max_bytes` as text, not ended by a zero; freed by the caller. */
int text_read(const char *path, size_t max_bytes, char **text, size_t *bytes, status *st) MUST_USE;
/* The same, parsed. */
int json_read(const char *path, size_t max_bytes, cJSON **json, status *st) MUST_USE;

bool json_has(const cJSON *object, const char *key); /* present and not null */
int json_size(const cJSON *object, const char *where, const char *key, size_t min, size_t max,
              size_t *value, status *st) MUST_USE; /* whole number */
int json_real(const cJSON *object, const char *where, const char *key, double min, double max,
              double *value, status *st) MUST_USE;
int json_bool(const cJSON *object, const char *where, const char *key, bool *value,
              status *st) MUST_USE;
/* *value points into `object`. */
int json_text(const cJSON *object, const char *where, const char *key, const char **value,
              status *st) MUST_USE;

#endif
