/* checkpoint_edit.c - see checkpoint_edit.h. */
#include "runtime/tests/checkpoint_edit.h"

#include "runtime/base/json.h"

#include <dirent.h>
#include <fnmatch.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- files ---- */

int file_write(const char *path, const void *data, size_t bytes) {
    FILE *file = fopen(path, "wb");
    if (!file)
        return -1;
    size_t written = bytes ? fwrite(data, 1, bytes, file) : 0;
    return fclose(file) == 0 && written == bytes ? 0 : -1;
}

char *file_text(const char *path, size_t *bytes) {
    struct stat info;
    FILE *file = fopen(path, "rb");
    char *text = NULL;
    *bytes = 0;
    if (file && fstat(fileno(file), &info) == 0 && S_ISREG(info.st_mode))
        text = calloc(1, (size_t)info.st_size + 1);
    if (text)
        *bytes = fread(text, 1, (size_t)info.st_size, file);
    if (file)
        fclose(file);
    return text;
}

typedef struct path {
    char text[1024];
} path;

static path join(const char *dir, const char *name) {
    path p;
    snprintf(p.text, sizeof p.text, "%s/%s", dir, name);
    return p;
}

int checkpoint_copy(const char *from, const char *to) {
    struct dirent *entry;
    int rc = 0;
    mkdir(to, 0777);
    DIR *old = opendir(to);
    while (old && (entry = readdir(old)))
        unlink(join(to, entry->d_name).text);
    if (old)
        closedir(old);
    DIR *folder = opendir(from);
    if (!folder)
        return -1;
    while ((entry = readdir(folder))) {
        size_t bytes;
        char *text = file_text(join(from, entry->d_name).text, &bytes);
        if (text && file_write(join(to, entry->d_name).text, text, bytes))
            rc = -1;
        free(text);
    }
    closedir(folder);
    return rc;
}

/* ---- model.safetensors ---- */

typedef struct weights {
    path file;
    char *bytes; /* the whole file */
    size_t size;
    size_t data; /* where the tensors' data begins */
    cJSON *header;
} weights;

static void weights_close(weights *w) {
    cJSON_Delete(w->header);
    free(w->bytes);
}

static int weights_open(const char *dir, weights *w) {
    uint64_t length;
    *w = (weights){.file = join(dir, "model.safetensors")};
    w->bytes = file_text(w->file.text, &w->size);
    if (!w->bytes || w->size < sizeof length)
        goto fail;
    memcpy(&length, w->bytes, sizeof length);
    if (length > w->size - sizeof length)
        goto fail;
    w->data = sizeof length + (size_t)length;
    w->header = cJSON_ParseWithLength(w->bytes + sizeof length, (size_t)length);
    if (w->header)
        return 0;
fail:
    weights_close(w);
    return -1;
}

/* Writes header and data again, with `more` bytes appended. */
static int weights_write(const weights *w, const void *more, size_t more_bytes) {
    char *text = cJSON_PrintUnformatted(w->header);
    FILE *file = text ? fopen(w->file.text, "wb") : NULL;
    int rc = -1;
    if (file) {
        uint64_t length = strlen(text);
        fwrite(&length, sizeof length, 1, file);
        fwrite(text, 1, (size_t)length, file);
        fwrite(w->bytes + w->data, 1, w->size - w->data, file);
        if (more_bytes)
            fwrite(more, 1, more_bytes, file);
        rc = ferror(file) ? -1 : 0;
        if (fclose(file))
            rc = -1;
    }
    cJSON_free(text);
    return rc;
}

int edit_tensor(const char *dir, const char *glob, tensor_change *change, void *user) {
    weights w;
    int changed = 0;
    if (weights_open(dir, &w))
        return -1;
    for (cJSON *e = w.header->child; e; e = e->next) {
        const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(e, "dtype");
        const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(e, "data_offsets");
        if (fnmatch(glob, e->string, 0) != 0 || !dtype || strcmp(dtype->valuestring, "F32") != 0)
            continue;
        size_t begin = (size_t)cJSON_GetArrayItem(offsets, 0)->valuedouble;
        size_t bytes = (size_t)cJSON_GetArrayItem(offsets, 1)->valuedouble - begin;
        float *values = malloc(bytes + 1);
        if (!values)
            break;
        memcpy(values, w.bytes + w.data + begin, bytes);
        change(e->string, values, bytes / sizeof *values, user);
        memcpy(w.bytes + w.data + begin, values, bytes);
        free(values);
        changed++;
    }
    if (file_write(w.file.text, w.bytes, w.size))
        changed = -1;
    weights_close(&w);
    return changed;
}

void set_zero(const char *name, float *values, size_t count, void *user) {
    (void)name, (void)user;
    memset(values, 0, count * sizeof *values);
}

void set_scaled(const char *name, float *values, size_t count, void *user) {
    (void)name;
    for (size_t i = 0; i < count; i++)
        values[i] *= *(float *)user;
}

int edit_header(const char *dir, const char *tensor, const char *field, const char *json) {
    weights w;
    if (weights_open(dir, &w))
        return -1;
    cJSON *entry = cJSON_GetObjectItemCaseSensitive(w.header, tensor);
    int changed = entry != NULL;
    if (entry) {
        cJSON_DeleteItemFromObjectCaseSensitive(entry, field);
        cJSON_AddItemToObject(entry, field, cJSON_Parse(json));
        changed = weights_write(&w, NULL, 0) ? -1 : 1;
    }
    weights_close(&w);
    return changed;
}

int edit_name(const char *dir, const char *tensor, const char *name) {
    weights w;
    if (weights_open(dir, &w))
        return -1;
    cJSON *entry = cJSON_DetachItemFromObjectCaseSensitive(w.header, tensor);
    int changed = entry != NULL;
    if (entry && name)
        cJSON_AddItemToObject(w.header, name, entry);
    else
        cJSON_Delete(entry);
    if (weights_write(&w, NULL, 0))
        changed = -1;
    weights_close(&w);
    return changed;
}

int edit_add(const char *dir, const char *tensor, const char *shape, const float *values,
             size_t count) {
    weights w;
    if (weights_open(dir, &w))
        return -1;
    double begin = (double)(w.size - w.data), end = begin + (double)(count * sizeof *values);
    cJSON *entry = cJSON_AddObjectToObject(w.header, tensor);
    cJSON_AddStringToObject(entry, "dtype", "F32");
    cJSON_AddItemToObject(entry, "shape", cJSON_Parse(shape));
    cJSON_AddItemToObject(entry, "data_offsets",
                          cJSON_CreateDoubleArray((const double[]){begin, end}, 2));
    int changed = weights_write(&w, values, count * sizeof *values) ? -1 : 1;
    weights_close(&w);
    return changed;
}

int edit_truncate(const char *dir, size_t bytes) {
    return truncate(join(dir, "model.safetensors").text, (off_t)bytes) ? -1 : 1;
}

/* ---- config.json ---- */

int edit_config(const char *dir, const char *key, const char *json) {
    path file = join(dir, "config.json");
    size_t bytes;
    char *text = file_text(file.text, &bytes);
    cJSON *config = text ? cJSON_Parse(text) : NULL;
    char *written = NULL;
    int changed = -1;
    free(text);
    if (config) {
        cJSON_DeleteItemFromObjectCaseSensitive(config, key);
        if (json)
            cJSON_AddItemToObject(config, key, cJSON_Parse(json));
        written = cJSON_Print(config);
    }
    if (written)
        changed = file_write(file.text, written, strlen(written)) ? -1 : 1;
    cJSON_free(written);
    cJSON_Delete(config);
    return changed;
}

int edit_config_number(const char *dir, const char *key, double value) {
    char json[32];
    snprintf(json, sizeof json, "%.17g", value);
    return edit_config(dir, key, json);
}

int edit_config_text(const char *dir, const char *key, const char *value) {
    char json[256];
    snprintf(json, sizeof json, "\"%s\"", value);
    return edit_config(dir, key, json);
}

int edit_config_delete(const char *dir, const char *key) {
    return edit_config(dir, key, NULL);
}
