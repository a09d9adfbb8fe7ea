/* json.c - see json.h. */
#include "runtime/base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fail_at(status *st, const char *where, const char *text, const char *place,
                   const char *what) {
    size_t line = 1, column = 1;
    for (const char *c = text; c < place; c++) {
        column = *c == '\n' ? 1 : column + 1;
        line += *c == '\n';
    }
    return status_fail(st, "%s: line %zu, column %zu: %s", where, line, column, what);
}

int json_parse(const char *text, size_t bytes, const char *where, cJSON **json, status *st) {
    *json = NULL;
    if (bytes == 0)
        return status_fail(st, "%s: is empty, expected JSON", where);
    if (bytes == SIZE_MAX)
        return status_fail(st, "%s: too long", where);
    /* cJSON 1.7.15 reads past a text that does not end in a zero. */
    char *copy = mem_array(bytes + 1, 1, where, st);
    if (!copy)
        return FAILED;
    memcpy(copy, text, bytes);

    int result = DONE;
    const char *end = copy;
    cJSON *parsed = cJSON_ParseWithLengthOpts(copy, bytes + 1, &end, false);
    if (!parsed) {
        result = fail_at(st, where, copy, end, "not valid JSON");
    } else {
        end += strspn(end, " \t\r\n");
        if (end != copy + bytes)
            result = fail_at(st, where, copy, end, "text after the end of the JSON value");
    }
    if (result == DONE)
        *json = parsed;
    else
        cJSON_Delete(parsed);
    free(copy);
    return result;
}

/* The whole of `file` into *text, doubling from 64 kB: sizes of pipes are not known before. */
static int read_all(int file, const char *path, size_t max_bytes, char **text, size_t *bytes,
                    status *st) {
    size_t room = 0;
    *bytes = 0;
    for (;;) {
        if (*bytes == room) {
            room = room ? 2 * room : 1 << 16;
            char *larger = realloc(*text, room);
            if (!larger)
                return status_fail(st, "%s: out of memory for %zu bytes", path, room);
            *text = larger;
        }
        ssize_t got = read(file, *text + *bytes, room - *bytes);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return status_fail(st, "%s: cannot be read: %s", path, strerror(errno));
        if (got == 0)
            return DONE;
        *bytes += (size_t)got;
        if (*bytes > max_bytes)
            return status_fail(st, "%s: longer than %zu bytes, the most that is read here", path,
                               max_bytes);
    }
}

int text_read(const char *path, size_t max_bytes, char **text, size_t *bytes, status *st) {
    *text = NULL;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return status_fail(st, "%s: cannot be opened: %s", path, strerror(errno));
    int result = read_all(file, path, max_bytes, text, bytes, st);
    close(file);
    if (result) {
        free(*text);
        *text = NULL;
    }
    return result;
}

int json_read(const char *path, size_t max_bytes, cJSON **json, status *st) {
    char *text;
    size_t bytes;
    *json = NULL;
    if (text_read(path, max_bytes, &text, &bytes, st))
        return FAILED;
    int result = json_parse(text, bytes, path, json, st);
    free(text);
    return result;
}

bool json_has(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return item && !cJSON_IsNull(item);
}

/* The item under `key`, or NULL in *item where it is absent or null. */
static int find(const cJSON *object, const char *where, const char *key, const cJSON **item,
                status *st) {
    if (!cJSON_IsObject(object))
        return status_fail(st, "%s: expected a JSON object holding \"%s\"", where, key);
    *item = json_has(object, key) ? cJSON_GetObjectItemCaseSensitive(object, key) : NULL;
    return DONE;
}

/* "FILE: KEY: found VALUE, expected WHAT", the value cut to a readable length. */
static int fail_value(status *st, const char *where, const char *key, const cJSON *item,
                      const char *expected) {
    char *found = cJSON_PrintUnformatted(item);
    status_fail(st, "%s: \"%s\": found %.80s%s, expected %s", where, key, found ? found : "?",
                found && strlen(found) > 80 ? "..." : "", expected);
    cJSON_free(found);
    return FAILED;
}

int json_size(const cJSON *object, const char *where, const char *key, size_t min, size_t max,
              size_t *value, status *st) {
    const cJSON *item;
    if (find(object, where, key, &item, st))
        return FAILED;
    if (!item)
        return DONE;
    /* Whole numbers above 2^53 are not exact in a double; valueint saturates at 2^31 - 1. */
    const double exact = 9007199254740992.0;
    double x = item->valuedouble;
    if (cJSON_IsNumber(item) && x >= 0 && x <= exact && x == floor(x) && (size_t)x >= min &&
        (size_t)x <= max) {
        *value = (size_t)x;
        return DONE;
    }
    char expected[96];
    if ((double)max >= exact)
        snprintf(expected, sizeof expected, "a whole number, at least %zu", min);
    else
        snprintf(expected, sizeof expected, "a whole number from %zu to %zu", min, max);
    return fail_value(st, where, key, item, expected);
}

int json_real(const cJSON *object, const char *where, const char *key, double min, double max,
              double *value, status *st) {
    const cJSON *item;
    if (find(object, where, key, &item, st))
        return FAILED;
    if (!item)
        return DONE;
    double x = item->valuedouble;
    if (cJSON_IsNumber(item) && isfinite(x) && x >= min && x <= max) {
        *value = x;
        return DONE;
    }
    char expected[96];
    snprintf(expected, sizeof expected, "a number from %.6g to %.6g", min, max);
    return fail_value(st, where, key, item, expected);
}

int json_bool(const cJSON *object, const char *where, const char *key, bool *value, status *st) {
    const cJSON *item;
    if (find(object, where, key, &item, st))
        return FAILED;
    if (item && !cJSON_IsBool(item))
        return fail_value(st, where, key, item, "true or false");
    if (item)
        *value = cJSON_IsTrue(item);
    return DONE;
}

int json_text(const cJSON *object, const char *where, const char *key, const char **value,
              status *st) {
    const cJSON *item;
    if (find(object, where, key, &item, st))
        return FAILED;
    if (item && !cJSON_IsString(item))
        return fail_value(st, where, key, item, "a text");
    if (item)
        *value = item->valuestring;
    return DONE;
}
