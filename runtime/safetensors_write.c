/* safetensors_write.c - see safetensors_write.h; the layout is described in safetensors.c. */
#include "runtime/safetensors_write.h"

#include "runtime/base/output.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE_BYTES = 1 << 16, ALIGNMENT = 64, PREFIX_BYTES = 8 };

/* The entry of one tensor whose data begin at `offset`. */
static bool add_entry(cJSON *header, const tensor_copy *copy, uint64_t offset) {
    const tensor_info *t = copy->from;
    cJSON *entry = cJSON_AddObjectToObject(header, copy->name);
    cJSON *shape = NULL, *range = NULL;
    if (!entry || !cJSON_AddStringToObject(entry, "dtype", t->dtype_text) ||
        !(shape = cJSON_AddArrayToObject(entry, "shape")) ||
        !(range = cJSON_AddArrayToObject(entry, "data_offsets")))
        return false;
    bool made = true;
    for (size_t i = 0; i < t->rank; i++)
        made = cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)t->shape[i])) && made;
    made = cJSON_AddItemToArray(range, cJSON_CreateNumber((double)offset)) && made;
    return cJSON_AddItemToArray(range, cJSON_CreateNumber((double)(offset + t->bytes))) && made;
}

/* The header as text, padded with spaces; freed by the caller with cJSON_free. */
static char *make_header(const tensor_copy *copy, size_t count, const cJSON *metadata, status *st) {
    cJSON *header = cJSON_CreateObject();
    bool made = header != NULL;
    if (made && metadata)
        made = cJSON_AddItemToObject(header, "__metadata__", cJSON_Duplicate(metadata, true));
    uint64_t offset = 0;
    for (size_t i = 0; made && i < count; i++) {
        made = add_entry(header, &copy[i], offset);
        offset += copy[i].from->bytes;
    }
    char *text = made ? cJSON_PrintUnformatted(header) : NULL;
    cJSON_Delete(header);
    if (!text)
        status_fail(st, "out of memory for a safetensors header of %zu tensors", count);
    return text;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int check_names(const char *path, const tensor_copy *copy, size_t count, status *st) {
    int rc = DONE;
    const char **name = mem_array(count, sizeof *name, "tensor names", st);
    if (!name)
        return FAILED;
    for (size_t i = 0; i < count; i++)
        name[i] = copy[i].name;
    qsort(name, count, sizeof *name, by_name);
    for (size_t i = 1; i < count && !rc; i++)
        if (strcmp(name[i - 1], name[i]) == 0)
            rc = status_fail(st, "%s: %s: named twice", path, name[i]);
    free(name);
    return rc;
}

static int copy_data(const char *path, FILE *out, const checkpoint *from, const tensor_info *t,
                     status *st) {
    unsigned char piece[PIECE_BYTES];
    for (uint64_t at = 0; at < t->bytes;) {
        size_t n = t->bytes - at < PIECE_BYTES ? (size_t)(t->bytes - at) : PIECE_BYTES;
        if (checkpoint_read_bytes(from, t, at, n, piece, st))
            return FAILED;
        if (fwrite(piece, 1, n, out) != n)
            return status_fail(st, "%s: cannot be written: %s", path, strerror(errno));
        at += n;
    }
    return DONE;
}

int safetensors_write(const char *path, const checkpoint *from, const tensor_copy *copy,
                      size_t count, const cJSON *metadata, status *st) {
    output *file;
    if (check_names(path, copy, count, st))
        return FAILED;
    char *header = make_header(copy, count, metadata, st);
    if (!header)
        return FAILED;
    if (output_open(path, &file, st)) {
        cJSON_free(header);
        return FAILED;
    }
    FILE *out = output_stream(file);
    const size_t text = strlen(header);
    uint64_t length = (PREFIX_BYTES + text + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT - PREFIX_BYTES;
    fwrite(&length, sizeof length, 1, out);
    fputs(header, out);
    fprintf(out, "%*s", (int)(length - text), "");
    cJSON_free(header);
    for (size_t i = 0; i < count; i++)
        if (copy_data(path, out, from, copy[i].from, st)) {
            output_abandon(file);
            return FAILED;
        }
    return output_commit(file, st);
}
