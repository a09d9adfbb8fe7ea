/* safetensors.h - reading checkpoints: model.safetensors, or an index with shards.
 *
 *     checkpoint *ck;
 *     if (checkpoint_open(dir, &ck, st)) return FAILED;
 *     const tensor_info *t = checkpoint_find(ck, "model.norm.weight");
 *     if (t && checkpoint_read(ck, t, floats, st)) ...
 *     checkpoint_close(ck);
 *
 * Nothing is mapped: data is read with pread in pieces and converted to fp32. Opening checks every
 * header: size under 100 MB and inside the file, offsets in range, not overlapping, in agreement
 * with shape and dtype, no duplicate names. */
#ifndef FATHOM_SAFETENSORS_H
#define FATHOM_SAFETENSORS_H

#include "runtime/base/status.h"

#include <stdint.h>

typedef struct checkpoint checkpoint;

typedef enum tensor_dtype {
    DTYPE_F32,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_F64,   /* expected values of tests */
    DTYPE_I32,   /* likewise */
    DTYPE_OTHER, /* listed, never read */
} tensor_dtype;

enum { TENSOR_RANK_MAX = 8 };

typedef struct tensor_info {
    const char *name;
    tensor_dtype dtype;
    const char *dtype_text; /* as the file says: "BF16" */
    size_t rank;
    size_t shape[TENSOR_RANK_MAX];
    size_t elements;
    size_t file;     /* index of its file */
    uint64_t offset; /* of its first byte in the file */
    uint64_t bytes;
} tensor_info;

/* `path` is a folder (model.safetensors, or model.safetensors.index.json, which alone decides which
 * shards count) or a .safetensors file. Freed by checkpoint_close. */
int checkpoint_open(const char *path, checkpoint **out, status *st) MUST_USE;
void checkpoint_close(checkpoint *ck); /* NULL allowed */

size_t checkpoint_tensors(const checkpoint *ck);
const tensor_info *checkpoint_tensor(const checkpoint *ck, size_t index);   /* sorted by name */
const tensor_info *checkpoint_find(const checkpoint *ck, const char *name); /* NULL: absent */
const char *checkpoint_file(const checkpoint *ck, size_t file);             /* path, for messages */
size_t checkpoint_files(const checkpoint *ck);
/* A string of the first file's __metadata__, or NULL. */
const char *checkpoint_metadata(const checkpoint *ck, const char *key);

/* All elements as fp32 (F32, F16, BF16, F64; others are an error) into out [elements]. */
int checkpoint_read(const checkpoint *ck, const tensor_info *tensor, float *out,
                    status *st) MUST_USE;
/* The raw bytes, for tests: F64 and I32 keep their precision. out [tensor->bytes]. */
int checkpoint_read_raw(const checkpoint *ck, const tensor_info *tensor, void *out,
                        status *st) MUST_USE;
/* `bytes` of them from `first` on, within the tensor; for copying piece by piece. */
int checkpoint_read_bytes(const checkpoint *ck, const tensor_info *tensor, uint64_t first,
                          size_t bytes, void *out, status *st) MUST_USE;

/* Elements first .. first + count - 1 of the flattened tensor, likewise into out [count]. */
int checkpoint_read_part(const checkpoint *ck, const tensor_info *tensor, size_t first,
                         size_t count, float *out, status *st) MUST_USE;

/* "[61,48]", for messages. */
typedef struct shape_text {
    char text[192];
} shape_text;
shape_text shape_text_of(size_t rank, const size_t *shape);

/* SHA-256 over the sorted lines "sha256  basename" of the weight files (64 hex digits and a zero).
 * Reads every file whole; a caller that must not wait runs it on a thread of its own. */
int checkpoint_hash(const checkpoint *ck, char hex[65], status *st) MUST_USE;

#endif
