/* safetensors.c - headers are parsed and checked at opening, data is read with pread when asked
 * for.
 *
 * File layout (https://github.com/huggingface/safetensors): uint64 N, little endian; N bytes of
 * JSON {"name": {"dtype", "shape", "data_offsets": [begin, end]}, ...}; data, to which the offsets
 * are relative.
 */
#include "runtime/safetensors.h"

#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/name_list.h"
#include "runtime/base/sha256.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors data is little endian; this reader does not swap bytes"
#endif

enum { PREFIX_BYTES = 8, HEADER_BYTES_MAX = 100000000, INDEX_BYTES_MAX = 100000000 };
enum { PIECE_BYTES = 1 << 16 };

typedef struct shard {
    char *path;
    int file;       /* descriptor, -1: not open */
    uint64_t bytes; /* of the whole file */
    uint64_t data;  /* where the tensors' data begins */
    cJSON *header;  /* owns names and dtype texts */
} shard;

struct checkpoint {
    size_t files;
    shard *file; /* [files] */
    size_t tensors;
    tensor_info *tensor; /* [tensors] sorted by name */
};

/* One line of an index: which shard holds a tensor. */
typedef struct index_entry {
    const char *name, *shard_name;
    size_t shard;
    bool found;
} index_entry;

static const struct {
    const char *text;
    tensor_dtype dtype;
    size_t bytes;
} dtypes[] = {
    {"F32", DTYPE_F32, 4},   {"F16", DTYPE_F16, 2},   {"BF16", DTYPE_BF16, 2},
    {"F64", DTYPE_F64, 8},   {"I32", DTYPE_I32, 4},   {"BOOL", DTYPE_OTHER, 1},
    {"U8", DTYPE_OTHER, 1},  {"I8", DTYPE_OTHER, 1},  {"F8_E4M3", DTYPE_OTHER, 1},
    {"U16", DTYPE_OTHER, 2}, {"I16", DTYPE_OTHER, 2}, {"F8_E5M2", DTYPE_OTHER, 1},
    {"U32", DTYPE_OTHER, 4}, {"U64", DTYPE_OTHER, 8}, {"I64", DTYPE_OTHER, 8},
};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

shape_text shape_text_of(size_t rank, const size_t *shape) {
    shape_text out = {"["};
    size_t used = 1;
    for (size_t i = 0; i < rank && used < sizeof out.text; i++)
        used +=
            (size_t)snprintf(out.text + used, sizeof out.text - used, i ? ",%zu" : "%zu", shape[i]);
    if (used < sizeof out.text)
        snprintf(out.text + used, sizeof out.text - used, "]");
    return out;
}

/* ---- reading bytes ---- */

static int read_at(const shard *s, uint64_t offset, void *out, size_t bytes, status *st) {
    char *to = out;
    while (bytes > 0) {
        ssize_t got = pread(s->file, to, bytes, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return status_fail(st, "%s: cannot read: %s", s->path, strerror(errno));
        if (got == 0)
            return status_fail(st, "%s: ends at byte %" PRIu64 "; the file was cut while in use",
                               s->path, offset);
        to += got;
        offset += (uint64_t)got;
        bytes -= (size_t)got;
    }
    return DONE;
}

/* ---- one file's header ---- */

static int shard_read_header(shard *s, status *st) {
    struct stat info;
    s->file = open(s->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (s->file < 0 || fstat(s->file, &info))
        return status_fail(st, "%s: cannot open: %s", s->path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return status_fail(st, "%s: not a regular file", s->path);
    s->bytes = (uint64_t)info.st_size;
    if (s->bytes < PREFIX_BYTES)
        return status_fail(st,
                           "%s: %" PRIu64 " bytes, too short for a safetensors file (8 bytes of "
                           "header length expected)",
                           s->path, s->bytes);
    uint64_t length;
    if (read_at(s, 0, &length, sizeof length, st))
        return FAILED;
    if (memcmp(&length, "version ", sizeof length) == 0)
        return status_fail(st,
                           "%s: not a safetensors file; it looks like a Git LFS pointer: fetch the "
                           "weights with `git lfs pull`",
                           s->path);
    if (length > HEADER_BYTES_MAX)
        return status_fail(st,
                           "%s: header of %" PRIu64 " bytes, at most %d expected; not a "
                           "safetensors file?",
                           s->path, length, HEADER_BYTES_MAX);
    if (length > s->bytes - PREFIX_BYTES)
        return status_fail(st,
                           "%s: header of %" PRIu64 " bytes in a file of %" PRIu64
                           " bytes; truncated, or not a safetensors file",
                           s->path, length, s->bytes);
    s->data = PREFIX_BYTES + length;
    char *text = mem_array((size_t)length, 1, "a safetensors header", st);
    if (!text)
        return FAILED;
    int rc = read_at(s, PREFIX_BYTES, text, (size_t)length, st);
    if (!rc)
        rc = json_parse(text, (size_t)length, s->path, &s->header, st);
    free(text);
    if (!rc && !cJSON_IsObject(s->header))
        rc = status_fail(st, "%s: the header is not a JSON object; not a safetensors file?",
                         s->path);
    return rc;
}

/* A whole number that a double holds exactly. */
static bool whole_number(const cJSON *json, uint64_t *value) {
    double x = cJSON_IsNumber(json) ? json->valuedouble : -1;
    if (!(x >= 0 && x <= 9007199254740992.0))
        return false;
    *value = (uint64_t)x;
    return (double)*value == x;
}

static int read_shape(const shard *s, const cJSON *entry, tensor_info *t, status *st) {
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(entry, "shape");
    if (!cJSON_IsArray(shape))
        return status_fail(st, "%s: %s: shape absent or not a list", s->path, t->name);
    t->elements = 1;
    for (const cJSON *size = shape->child; size; size = size->next) {
        uint64_t n;
        if (t->rank == TENSOR_RANK_MAX)
            return status_fail(st, "%s: %s: more than %d axes", s->path, t->name, TENSOR_RANK_MAX);
        if (!whole_number(size, &n) || n > SIZE_MAX)
            return status_fail(st, "%s: %s: shape, axis %zu: a whole number expected", s->path,
                               t->name, t->rank);
        t->shape[t->rank++] = (size_t)n;
        if (__builtin_mul_overflow(t->elements, (size_t)n, &t->elements))
            return status_fail(st, "%s: %s: shape %s: too large", s->path, t->name,
                               shape_text_of(t->rank, t->shape).text);
    }
    return DONE;
}

static int read_offsets(const shard *s, const cJSON *entry, tensor_info *t, status *st) {
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
    const cJSON *first = cJSON_IsArray(offsets) ? offsets->child : NULL;
    uint64_t begin, end, held = s->bytes - s->data;
    if (!first || !first->next || first->next->next || !whole_number(first, &begin) ||
        !whole_number(first->next, &end))
        return status_fail(st, "%s: %s: data_offsets: two whole numbers expected", s->path,
                           t->name);
    if (begin > end)
        return status_fail(st, "%s: %s: data_offsets [%" PRIu64 ",%" PRIu64 "]: end before begin",
                           s->path, t->name, begin, end);
    if (end > held)
        return status_fail(st,
                           "%s: %s: data ends at byte %" PRIu64 ", but the file holds %" PRIu64
                           " bytes of data; truncated?",
                           s->path, t->name, end, held);
    t->offset = s->data + begin;
    t->bytes = end - begin;
    return DONE;
}

static int read_entry(const shard *s, const cJSON *entry, tensor_info *t, status *st) {
    t->name = entry->string;
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(entry, "dtype");
    if (!cJSON_IsString(dtype))
        return status_fail(st, "%s: %s: dtype absent or not a text", s->path, t->name);
    t->dtype_text = dtype->valuestring;
    t->dtype = DTYPE_OTHER;
    if (read_shape(s, entry, t, st) || read_offsets(s, entry, t, st))
        return FAILED;
    for (size_t i = 0; i < DTYPES; i++) {
        size_t bytes;
        if (strcmp(dtypes[i].text, t->dtype_text) != 0)
            continue;
        t->dtype = dtypes[i].dtype;
        if (__builtin_mul_overflow(t->elements, dtypes[i].bytes, &bytes) || bytes != t->bytes)
            return status_fail(st, "%s: %s: %" PRIu64 " bytes of data for %s %s", s->path, t->name,
                               t->bytes, t->dtype_text, shape_text_of(t->rank, t->shape).text);
    }
    return DONE;
}

static int by_offset(const void *a, const void *b) {
    const tensor_info *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static int check_overlap(const shard *s, tensor_info *tensor, size_t count, status *st) {
    const tensor_info *last = NULL; /* the one that ends last so far */
    qsort(tensor, count, sizeof *tensor, by_offset);
    for (size_t i = 0; i < count; i++) {
        if (tensor[i].bytes == 0)
            continue;
        if (last && last->offset + last->bytes > tensor[i].offset)
            return status_fail(st, "%s: %s and %s: data overlaps", s->path, last->name,
                               tensor[i].name);
        last = &tensor[i];
    }
    return DONE;
}

/* ---- the table over all files ---- */

static int by_name(const void *a, const void *b) {
    return strcmp(((const tensor_info *)a)->name, ((const tensor_info *)b)->name);
}

static int by_entry_name(const void *a, const void *b) {
    return strcmp(((const index_entry *)a)->name, ((const index_entry *)b)->name);
}

/* A tensor that the index places in another shard does not count. */
static bool counts(index_entry *index, size_t entries, size_t file, const char *name) {
    index_entry key = {.name = name};
    index_entry *e = entries ? bsearch(&key, index, entries, sizeof *index, by_entry_name) : NULL;
    if (!e)
        return true;
    if (e->shard == file)
        e->found = true;
    return e->shard == file;
}

static int table_fill(checkpoint *ck, index_entry *index, size_t entries, status *st) {
    size_t total = 0;
    for (size_t f = 0; f < ck->files; f++)
        for (const cJSON *e = ck->file[f].header->child; e; e = e->next)
            total++;
    ck->tensor = mem_array(total, sizeof *ck->tensor, "the table of tensors", st);
    if (!ck->tensor)
        return FAILED;
    for (size_t f = 0; f < ck->files; f++) {
        size_t first = ck->tensors;
        for (const cJSON *e = ck->file[f].header->child; e; e = e->next) {
            if (strcmp(e->string, "__metadata__") == 0 || !counts(index, entries, f, e->string))
                continue;
            tensor_info *t = &ck->tensor[ck->tensors++];
            t->file = f;
            if (read_entry(&ck->file[f], e, t, st))
                return FAILED;
        }
        if (check_overlap(&ck->file[f], ck->tensor + first, ck->tensors - first, st))
            return FAILED;
    }
    qsort(ck->tensor, ck->tensors, sizeof *ck->tensor, by_name);
    for (size_t i = 1; i < ck->tensors; i++) {
        const tensor_info *t = &ck->tensor[i];
        if (strcmp(t[-1].name, t->name) == 0)
            return status_fail(st, "%s: %s: named twice (also in %s)", ck->file[t->file].path,
                               t->name, ck->file[t[-1].file].path);
    }
    return DONE;
}

/* ---- index and shards ---- */

static char *path_join(const char *dir, const char *name, status *st) {
    size_t size = strlen(dir) + strlen(name) + 2;
    char *path = mem_array(size, 1, "a path", st);
    if (path)
        snprintf(path, size, "%s/%s", dir, name);
    return path;
}

static bool is_file(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && !S_ISDIR(info.st_mode);
}

static int by_shard_name(const void *a, const void *b) {
    return strcmp(((const index_entry *)a)->shard_name, ((const index_entry *)b)->shard_name);
}

/* weight_map into entries sorted by shard; refuses what cannot be a file name in this folder. */
static int index_entries(const char *path, const cJSON *json, index_entry **out, size_t *count,
                         status *st) {
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(json, "weight_map");
    size_t total = 0;
    if (!cJSON_IsObject(map) || !map->child)
        return status_fail(st,
                           "%s: weight_map: absent or empty; an object of tensor names and "
                           "shard files expected",
                           path);
    for (const cJSON *e = map->child; e; e = e->next)
        total++;
    index_entry *entry = mem_array(total, sizeof *entry, "the shard index", st);
    if (!entry)
        return FAILED;
    *out = entry;
    for (const cJSON *e = map->child; e; e = e->next) {
        const char *shard_name = cJSON_GetStringValue(e);
        if (!shard_name || !*shard_name)
            return status_fail(st, "%s: weight_map: %s: the name of a shard expected", path,
                               e->string);
        if (strpbrk(shard_name, "/\\") || shard_name[0] == '.')
            return status_fail(st,
                               "%s: weight_map: %s: shard \"%s\": a plain file name without a path "
                               "expected",
                               path, e->string, shard_name);
        entry[(*count)++] = (index_entry){.name = e->string, .shard_name = shard_name};
    }
    qsort(entry, total, sizeof *entry, by_shard_name);
    return DONE;
}

static int index_open_shards(checkpoint *ck, const char *dir, index_entry *entry, size_t count,
                             status *st) {
    size_t files = 0;
    name_list missing = {0};
    for (size_t i = 0; i < count; i++) {
        files += i == 0 || strcmp(entry[i].shard_name, entry[i - 1].shard_name) != 0;
        entry[i].shard = files - 1;
    }
    ck->file = mem_array(files, sizeof *ck->file, "the table of shards", st);
    if (!ck->file)
        return FAILED;
    for (size_t i = 0; i < count; i++) {
        if (entry[i].shard < ck->files)
            continue;
        shard *s = &ck->file[ck->files++];
        s->file = -1;
        s->path = path_join(dir, entry[i].shard_name, st);
        if (!s->path)
            return FAILED;
        if (!is_file(s->path))
            name_list_add(&missing, entry[i].shard_name);
    }
    if (missing.count)
        return status_fail(st,
                           "%s: %zu of %zu shards named by model.safetensors.index.json are "
                           "missing: %s",
                           dir, missing.count, files, name_list_text(&missing));
    for (size_t f = 0; f < ck->files; f++)
        if (shard_read_header(&ck->file[f], st))
            return FAILED;
    return DONE;
}

static int open_index(checkpoint *ck, const char *dir, const char *path, status *st) {
    cJSON *json = NULL;
    index_entry *entry = NULL;
    size_t entries = 0;
    name_list absent = {0};
    int rc = json_read(path, INDEX_BYTES_MAX, &json, st);
    if (!rc)
        rc = index_entries(path, json, &entry, &entries, st);
    if (!rc)
        rc = index_open_shards(ck, dir, entry, entries, st);
    if (!rc) {
        qsort(entry, entries, sizeof *entry, by_entry_name);
        for (size_t i = 1; i < entries && !rc; i++)
            if (strcmp(entry[i - 1].name, entry[i].name) == 0)
                rc = status_fail(st, "%s: weight_map: %s: named twice", path, entry[i].name);
    }
    if (!rc)
        rc = table_fill(ck, entry, entries, st);
    for (size_t i = 0; i < entries && !rc; i++)
        if (!entry[i].found)
            name_list_add(&absent, entry[i].name);
    if (!rc && absent.count)
        rc = status_fail(st, "%s: weight_map names tensors that their shards lack: %s", path,
                         name_list_text(&absent));
    free(entry);
    cJSON_Delete(json);
    return rc;
}

static int open_single(checkpoint *ck, const char *path, status *st) {
    ck->file = mem_array(1, sizeof *ck->file, "a file", st);
    if (!ck->file)
        return FAILED;
    ck->files = 1;
    ck->file->file = -1;
    ck->file->path = mem_text(path, st);
    if (!ck->file->path || shard_read_header(ck->file, st))
        return FAILED;
    return table_fill(ck, NULL, 0, st);
}

static int open_folder(checkpoint *ck, const char *dir, status *st) {
    int rc = FAILED;
    char *single = path_join(dir, "model.safetensors", st);
    char *index = single ? path_join(dir, "model.safetensors.index.json", st) : NULL;
    if (!index)
        goto end;
    if (is_file(single)) {
        if (is_file(index))
            log_detail("%s: model.safetensors is read; model.safetensors.index.json beside it is "
                       "not used",
                       dir);
        rc = open_single(ck, single, st);
    } else if (is_file(index)) {
        rc = open_index(ck, dir, index, st);
    } else {
        rc = status_fail(st,
                         "%s: no model.safetensors and no model.safetensors.index.json; "
                         "weights in other formats are not read",
                         dir);
    }
end:
    free(single);
    free(index);
    return rc;
}

/* ---- the public face ---- */

int checkpoint_open(const char *path, checkpoint **out, status *st) {
    struct stat info;
    *out = NULL;
    if (stat(path, &info))
        return status_fail(st, "%s: cannot open: %s", path, strerror(errno));
    checkpoint *ck = mem_array(1, sizeof *ck, "a checkpoint", st);
    if (!ck)
        return FAILED;
    if (S_ISDIR(info.st_mode) ? open_folder(ck, path, st) : open_single(ck, path, st)) {
        checkpoint_close(ck);
        return FAILED;
    }
    *out = ck;
    return DONE;
}

void checkpoint_close(checkpoint *ck) {
    if (!ck)
        return;
    for (size_t f = 0; f < ck->files; f++) {
        free(ck->file[f].path);
        cJSON_Delete(ck->file[f].header);
        if (ck->file[f].file >= 0)
            close(ck->file[f].file);
    }
    free(ck->file);
    free(ck->tensor);
    free(ck);
}

size_t checkpoint_tensors(const checkpoint *ck) {
    return ck->tensors;
}

const tensor_info *checkpoint_tensor(const checkpoint *ck, size_t index) {
    return &ck->tensor[index];
}

const tensor_info *checkpoint_find(const checkpoint *ck, const char *name) {
    tensor_info key = {.name = name};
    return bsearch(&key, ck->tensor, ck->tensors, sizeof *ck->tensor, by_name);
}

const char *checkpoint_file(const checkpoint *ck, size_t file) {
    return ck->file[file].path;
}

size_t checkpoint_files(const checkpoint *ck) {
    return ck->files;
}

const char *checkpoint_metadata(const checkpoint *ck, const char *key) {
    const cJSON *all = cJSON_GetObjectItemCaseSensitive(ck->file->header, "__metadata__");
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(all, key));
}

/* ---- values ---- */

/* IEEE 754 binary16 to binary32, exact; subnormals, infinities and NaN included. */
static float half_to_float(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = (half >> 10) & 31u;
    uint32_t fraction = half & 0x3ffu, bits;
    float value;
    if (exponent == 0) {
        value = (float)fraction * 0x1p-24f;
        return sign ? -value : value;
    }
    bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* `from` holds `count` elements and is aligned for them. */
static void convert(tensor_dtype dtype, const void *from, size_t count, float *restrict out) {
    const uint16_t *half = from;
    const double *wide = from;
    switch (dtype) {
    case DTYPE_BF16:
#pragma omp simd
        for (size_t i = 0; i < count; i++) {
            uint32_t bits = (uint32_t)half[i] << 16;
            memcpy(&out[i], &bits, sizeof bits);
        }
        return;
    case DTYPE_F16:
        for (size_t i = 0; i < count; i++)
            out[i] = half_to_float(half[i]);
        return;
    default:
        for (size_t i = 0; i < count; i++)
            out[i] = (float)wide[i];
    }
}

int checkpoint_read_part(const checkpoint *ck, const tensor_info *t, size_t first, size_t count,
                         float *out, status *st) {
    const shard *s = &ck->file[t->file];
    if (first > t->elements || count > t->elements - first)
        return status_fail(st, "%s: %s: elements %zu to %zu of %zu", s->path, t->name, first,
                           first + count, t->elements);
    if (t->dtype == DTYPE_F32)
        return read_at(s, t->offset + 4 * (uint64_t)first, out, 4 * count, st);
    if (t->dtype != DTYPE_F16 && t->dtype != DTYPE_BF16 && t->dtype != DTYPE_F64)
        return status_fail(st, "%s: %s: dtype %s, expected F32, F16, BF16 or F64", s->path, t->name,
                           t->dtype_text);
    _Alignas(64) unsigned char piece[PIECE_BYTES];
    size_t size = t->dtype == DTYPE_F64 ? 8 : 2;
    while (count > 0) {
        size_t n = count < PIECE_BYTES / size ? count : PIECE_BYTES / size;
        if (read_at(s, t->offset + size * (uint64_t)first, piece, n * size, st))
            return FAILED;
        convert(t->dtype, piece, n, out);
        first += n;
        out += n;
        count -= n;
    }
    return DONE;
}

int checkpoint_read(const checkpoint *ck, const tensor_info *tensor, float *out, status *st) {
    return checkpoint_read_part(ck, tensor, 0, tensor->elements, out, st);
}

int checkpoint_read_raw(const checkpoint *ck, const tensor_info *tensor, void *out, status *st) {
    return read_at(&ck->file[tensor->file], tensor->offset, out, (size_t)tensor->bytes, st);
}

int checkpoint_read_bytes(const checkpoint *ck, const tensor_info *t, uint64_t first, size_t bytes,
                          void *out, status *st) {
    const shard *s = &ck->file[t->file];
    if (first > t->bytes || bytes > t->bytes - first)
        return status_fail(st, "%s: %s: bytes %" PRIu64 " to %" PRIu64 " of %" PRIu64, s->path,
                           t->name, first, first + bytes, t->bytes);
    return read_at(s, t->offset + first, out, bytes, st);
}

/* ---- identity ---- */

static int hash_file(const shard *s, char hex[65], status *st) {
    unsigned char piece[PIECE_BYTES];
    sha256 hash;
    sha256_init(&hash);
    for (uint64_t at = 0; at < s->bytes;) {
        size_t n = s->bytes - at < PIECE_BYTES ? (size_t)(s->bytes - at) : PIECE_BYTES;
        if (read_at(s, at, piece, n, st))
            return FAILED;
        sha256_add(&hash, piece, n);
        at += n;
    }
    sha256_finish(&hash, hex);
    return DONE;
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int checkpoint_hash(const checkpoint *ck, char hex[65], status *st) {
    int rc = FAILED;
    char **line = mem_array(ck->files, sizeof *line, "hash lines", st);
    if (!line)
        return FAILED;
    for (size_t f = 0; f < ck->files; f++) {
        const char *slash = strrchr(ck->file[f].path, '/');
        const char *base = slash ? slash + 1 : ck->file[f].path;
        size_t size = 64 + 2 + strlen(base) + 2;
        char digest[65];
        line[f] = mem_array(size, 1, "a hash line", st);
        if (!line[f] || hash_file(&ck->file[f], digest, st))
            goto end;
        snprintf(line[f], size, "%s  %s\n", digest, base);
    }
    qsort(line, ck->files, sizeof *line, by_text);
    sha256 hash;
    sha256_init(&hash);
    for (size_t f = 0; f < ck->files; f++)
        sha256_add(&hash, line[f], strlen(line[f]));
    sha256_finish(&hash, hex);
    rc = DONE;
end:
    for (size_t f = 0; f < ck->files; f++)
        free(line[f]);
    free(line);
    return rc;
}
