#include "probes/h5.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __SANITIZE_ADDRESS__
/* HDF5 itself loses a little memory when a write fails. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) {
    return "leak:libhdf5";
}
#endif

void h5_prepare(void) {
    static bool prepared;
    if (prepared)
        return;
    H5dont_atexit();
    H5open();
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    prepared = true;
}

/* What an error stack says: its innermost text, and the system error named anywhere in it. */
typedef struct stack_text {
    char text[512];
    int system_error;
    bool locked;
} stack_text;

/* Of the last failure inside this file: the calls that tidy up after it empty the stack. */
static stack_text last_failure;

static herr_t stack_look(unsigned level, const H5E_error2_t *entry, void *context) {
    stack_text *found = context;
    const char *text = entry->desc ? entry->desc : "";
    if (level == 0)
        snprintf(found->text, sizeof found->text, "%s", text);
    const char *number = strstr(text, "errno = ");
    if (number && found->system_error == 0)
        found->system_error = (int)strtol(number + strlen("errno = "), NULL, 10);
    if (strstr(text, "unable to lock file"))
        found->locked = true;
    return 0;
}

/* Passes a result on; keeps the stack of a failure. */
static herr_t noted(herr_t result) {
    if (result < 0) {
        last_failure = (stack_text){0};
        H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, stack_look, &last_failure);
    }
    return result;
}

int h5_fail(status *st, const char *where, const char *what) {
    stack_text found = {0};
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, stack_look, &found);
    if (found.text[0] == '\0')
        found = last_failure;
    last_failure = (stack_text){0};
    H5Eclear2(H5E_DEFAULT);
    if (found.locked && (found.system_error == EAGAIN || found.system_error == EACCES))
        snprintf(found.text, sizeof found.text,
                 "still being written by another process, or on a file system without locks: set "
                 "HDF5_USE_FILE_LOCKING=FALSE in the environment to read it anyway");
    else if (found.system_error)
        snprintf(found.text, sizeof found.text, "%s", strerror(found.system_error));
    else if (found.text[0] == '\0')
        snprintf(found.text, sizeof found.text, "HDF5 gave no reason");
    if (what)
        return status_fail(st, "%s: %s: %s", where, what, found.text);
    return status_fail(st, "%s: %s", where, found.text);
}

void h5_close(hid_t *handle) {
    if (*handle < 0)
        return;
    switch (H5Iget_type(*handle)) {
    case H5I_FILE:
        H5Fclose(*handle);
        break;
    case H5I_GROUP:
        H5Gclose(*handle);
        break;
    case H5I_DATATYPE:
        H5Tclose(*handle);
        break;
    case H5I_DATASPACE:
        H5Sclose(*handle);
        break;
    case H5I_DATASET:
        H5Dclose(*handle);
        break;
    case H5I_ATTR:
        H5Aclose(*handle);
        break;
    case H5I_GENPROP_LST:
        H5Pclose(*handle);
        break;
    default:
        break;
    }
    *handle = H5_NONE;
}

hid_t h5_text_type(void) {
    hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, H5T_VARIABLE);
    H5Tset_cset(type, H5T_CSET_UTF8);
    return type;
}

herr_t h5_put_number(hid_t object, const char *name, hid_t type, const void *value) {
    hid_t attribute = H5_NONE, space = H5_NONE;
    herr_t done = -1;
    if (H5Aexists(object, name) > 0) {
        attribute = H5Aopen(object, name, H5P_DEFAULT);
    } else {
        space = H5Screate(H5S_SCALAR);
        attribute = H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    }
    if (attribute >= 0)
        done = noted(H5Awrite(attribute, type, value));
    h5_close(&attribute);
    h5_close(&space);
    return done;
}

herr_t h5_put_text(hid_t object, const char *name, const char *text) {
    hid_t type = h5_text_type();
    herr_t done = h5_put_number(object, name, type, &text);
    h5_close(&type);
    return done;
}

/* Reads `count` strings of `type` from an attribute or dataset into C strings, one block. */
static char **texts_of(hid_t object, bool is_attribute, hid_t type, size_t count, status *st) {
    char **out = NULL;
    size_t width = H5Tis_variable_str(type) > 0 ? sizeof(char *) : H5Tget_size(type);
    hid_t memory = H5Tcopy(type);
    hid_t space = is_attribute ? H5Aget_space(object) : H5Dget_space(object);
    char *raw = mem_array(count, width, "texts", st);
    if (!raw)
        goto end;
    herr_t done = noted(is_attribute ? H5Aread(object, memory, raw)
                                     : H5Dread(object, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, raw));
    bool variable = H5Tis_variable_str(type) > 0;
    if (done < 0) {
        h5_fail(st, "texts", NULL);
        goto end;
    }
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        const char *text = variable ? ((char **)raw)[i] : raw + i * width;
        bytes += (text ? strnlen(text, variable ? SIZE_MAX : width) : 0) + 1 + sizeof(char *);
    }
    out = mem_array(bytes ? bytes : 1, 1, "texts", st);
    char *to = out ? (char *)(out + count) : NULL;
    for (size_t i = 0; out && i < count; i++) {
        const char *text = variable ? ((char **)raw)[i] : raw + i * width;
        size_t length = text ? strnlen(text, variable ? SIZE_MAX : width) : 0;
        out[i] = to;
        if (length)
            memcpy(to, text, length);
        to += length + 1;
    }
    if (variable)
        H5Dvlen_reclaim(memory, space, H5P_DEFAULT, raw);
end:
    free(raw);
    h5_close(&memory);
    h5_close(&space);
    return out;
}

int h5_get_text(hid_t object, const char *where, const char *name, char **text, status *st) {
    *text = NULL;
    if (H5Aexists(object, name) <= 0)
        return (*text = mem_text("", st)) ? DONE : FAILED;
    int result = FAILED;
    char **texts = NULL;
    hid_t attribute = H5Aopen(object, name, H5P_DEFAULT);
    hid_t type = H5Aget_type(attribute), space = H5Aget_space(attribute);
    if (H5Tget_class(type) != H5T_STRING || H5Sget_simple_extent_npoints(space) != 1) {
        status_fail(st, "%s: attribute %s is not one text", where, name);
        goto end;
    }
    texts = texts_of(attribute, true, type, 1, st);
    if (!texts) {
        status_prefix(st, "%s: attribute %s", where, name);
        goto end;
    }
    *text = mem_text(texts[0], st);
    result = *text ? DONE : FAILED;
end:
    free(texts);
    h5_close(&attribute);
    h5_close(&type);
    h5_close(&space);
    return result;
}

int h5_get_whole(hid_t object, const char *where, const char *name, int64_t *value, status *st) {
    if (H5Aexists(object, name) <= 0)
        return DONE;
    int result = FAILED;
    hid_t attribute = H5Aopen(object, name, H5P_DEFAULT);
    hid_t type = H5Aget_type(attribute), space = H5Aget_space(attribute);
    H5T_class_t class = H5Tget_class(type);
    uint8_t byte;
    if (H5Sget_simple_extent_npoints(space) != 1) {
        status_fail(st, "%s: attribute %s is not one number", where, name);
    } else if (class == H5T_ENUM && H5Tget_size(type) == 1 &&
               H5Aread(attribute, type, &byte) >= 0) {
        *value = byte; /* how h5py stores a truth value */
        result = DONE;
    } else if (class != H5T_INTEGER || H5Aread(attribute, H5T_NATIVE_INT64, value) < 0) {
        status_fail(st, "%s: attribute %s is not a whole number", where, name);
    } else {
        result = DONE;
    }
    h5_close(&attribute);
    h5_close(&type);
    h5_close(&space);
    return result;
}

bool h5_has(hid_t object, const char *path) {
    char part[256];
    size_t length = strlen(path);
    if (length >= sizeof part)
        return false;
    for (size_t i = 0; i <= length; i++) {
        part[i] = '\0';
        if ((path[i] == '/' || path[i] == '\0') && H5Lexists(object, part, H5P_DEFAULT) <= 0)
            return false;
        part[i] = path[i];
    }
    return true;
}

int h5_shape(hid_t dataset, size_t max, size_t *rank, size_t *extent) {
    if (dataset < 0 || H5Iget_type(dataset) != H5I_DATASET)
        return FAILED;
    hsize_t dims[H5S_MAX_RANK];
    hid_t space = H5Dget_space(dataset);
    int found = H5Sget_simple_extent_dims(space, dims, NULL);
    h5_close(&space);
    if (found < 0)
        return FAILED;
    *rank = (size_t)found;
    for (size_t i = 0; i < *rank && i < max; i++)
        extent[i] = (size_t)dims[i];
    return DONE;
}

int h5_get_texts(hid_t file, const char *where, const char *path, size_t *count, char ***texts,
                 status *st) {
    int result = FAILED;
    *texts = NULL;
    int64_t *numbers = NULL;
    size_t rank = 0;
    hid_t type = H5_NONE, dataset = H5Dopen2(file, path, H5P_DEFAULT);
    if (h5_shape(dataset, 1, &rank, count) || rank != 1) {
        status_fail(st, "%s: %s: expected a dataset of one axis", where, path);
        goto end;
    }
    if (*count > (size_t)1 << 24) {
        status_fail(st, "%s: %s: %zu entries, expected at most %d", where, path, *count, 1 << 24);
        goto end;
    }
    type = H5Dget_type(dataset);
    if (H5Tget_class(type) == H5T_STRING) {
        *texts = texts_of(dataset, false, type, *count, st);
        if (!*texts)
            status_prefix(st, "%s: %s", where, path);
        result = *texts ? DONE : FAILED;
        goto end;
    }
    enum { DIGITS = 24 };
    numbers = mem_array(*count, sizeof *numbers, path, st);
    if (!numbers)
        goto end;
    if (H5Tget_class(type) != H5T_INTEGER ||
        H5Dread(dataset, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, numbers) < 0) {
        status_fail(st, "%s: %s: expected texts or whole numbers", where, path);
        goto end;
    }
    *texts = mem_array(*count, sizeof(char *) + DIGITS, path, st);
    for (size_t i = 0; *texts && i < *count; i++) {
        (*texts)[i] = (char *)(*texts + *count) + i * DIGITS;
        snprintf((*texts)[i], DIGITS, "%" PRId64, numbers[i]);
    }
    result = *texts ? DONE : FAILED;
end:
    free(numbers);
    h5_close(&type);
    h5_close(&dataset);
    return result;
}

/* Memory has the slab's own shape: HDF5 is slow where ranks differ. */
static herr_t slab(hid_t dataset, hid_t type, size_t rank, const hsize_t *start,
                   const hsize_t *count, void *in, const void *out) {
    for (size_t i = 0; i < rank; i++)
        if (count[i] == 0)
            return 0;
    herr_t done = -1;
    hid_t file = H5Dget_space(dataset);
    hid_t memory = H5Screate_simple((int)rank, count, NULL);
    if (H5Sselect_hyperslab(file, H5S_SELECT_SET, start, NULL, count, NULL) >= 0)
        done = noted(in ? H5Dread(dataset, type, memory, file, H5P_DEFAULT, in)
                        : H5Dwrite(dataset, type, memory, file, H5P_DEFAULT, out));
    h5_close(&file);
    h5_close(&memory);
    return done;
}

herr_t h5_read(hid_t dataset, hid_t type, size_t rank, const hsize_t *start, const hsize_t *count,
               void *out) {
    return slab(dataset, type, rank, start, count, out, NULL);
}

herr_t h5_write(hid_t dataset, hid_t type, size_t rank, const hsize_t *start, const hsize_t *count,
                const void *data) {
    return slab(dataset, type, rank, start, count, NULL, data);
}
