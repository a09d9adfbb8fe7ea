/* checkpoint_edit.h - tests: copies of checkpoint folders, changed on purpose.
 *
 *     char *dir = scratch_path("nan");
 *     if (checkpoint_copy("datasets/golden/tiny/full-h4", dir)) ...
 *     edit_tensor(dir, "model.layers.*.attn_res_proj.weight", set_zero, NULL);
 *     edit_config(dir, "attnres_num_heads", "3");
 *
 * Everything works on DIR/config.json and DIR/model.safetensors. Counts of what was changed are
 * returned, so that a test notices an edit that met nothing; -1: a file could not be handled.
 */
#ifndef FATHOM_CHECKPOINT_EDIT_H
#define FATHOM_CHECKPOINT_EDIT_H

#include <stddef.h>

/* The files of folder `from` into folder `to`, which is made, or emptied where it exists. 0: done.
 */
int checkpoint_copy(const char *from, const char *to);

/* `change` gets the values [count] of each F32 tensor whose name fits the glob. */
typedef void tensor_change(const char *name, float *values, size_t count, void *user);
int edit_tensor(const char *dir, const char *glob, tensor_change *change, void *user);
/* One: all values 0. user: not used. */
tensor_change set_zero;
/* Another: every value * (float *)user. */
tensor_change set_scaled;

/* A field of a tensor's entry in the header from JSON text: ("shape", "[47]"), ("dtype",
 * "\"I64\""). */
int edit_header(const char *dir, const char *tensor, const char *field, const char *json);
/* Another name for a tensor; NULL: its entry is removed. */
int edit_name(const char *dir, const char *tensor, const char *name);
/* Appends an F32 tensor; `shape` is JSON, "[2,3]". */
int edit_add(const char *dir, const char *tensor, const char *shape, const float *values,
             size_t count);
/* Keeps the first `bytes` of model.safetensors. */
int edit_truncate(const char *dir, size_t bytes);

/* Sets a key of config.json from JSON text; NULL removes it. */
int edit_config(const char *dir, const char *key, const char *json);
int edit_config_number(const char *dir, const char *key, double value);
int edit_config_text(const char *dir, const char *key, const char *value);
int edit_config_delete(const char *dir, const char *key);

/* Whole files. file_write: 0 = done; file_text: ended by a zero, freed by the caller, or NULL. */
int file_write(const char *path, const void *data, size_t bytes);
char *file_text(const char *path, size_t *bytes);

#endif
