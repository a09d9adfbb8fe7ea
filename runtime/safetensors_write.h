/* safetensors_write.h - writing checkpoints: tensors of an open one, copied as they are.
 *
 *     const tensor_copy copy[] = {{"model.layers.0.mlp.up_proj.weight", tensor}, ...};
 *     if (safetensors_write(path, ck, copy, count, metadata, st)) return FAILED;
 */
#ifndef FATHOM_SAFETENSORS_WRITE_H
#define FATHOM_SAFETENSORS_WRITE_H

#include "runtime/base/json.h"
#include "runtime/safetensors.h"

typedef struct tensor_copy {
    const char *name; /* in the new file */
    const tensor_info *from;
} tensor_copy;

/* Writes PATH with `count` tensors of `from`, in the order given, each byte for byte in its own
 * dtype, read and written in pieces, so that memory does not grow with them. `metadata`: an object
 * of strings, or NULL. The data begins at a multiple of 64 bytes. The file appears under its name
 * only when it is whole (output.h); a name given twice, no room and unreadable tensors are errors.
 */
int safetensors_write(const char *path, const checkpoint *from, const tensor_copy *copy,
                      size_t count, const cJSON *metadata, status *st) MUST_USE;

#endif
