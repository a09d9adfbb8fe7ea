/* export_model.h - a pruned model as a checkpoint folder of its own.
 *
 *     const export_options options = {.folder = "out", .removed = removed, .removal = DROP_SOURCE,
 *                                     .command = command_line(), .parent_sha256 = hex};
 *     if (export_model(model, &options, st)) return FAILED;
 *
 * What is written loads with the same loss to the last bit, or is not written. A public format is
 * kept only where it means the same: whole layers of standard models, and of full modes where
 * removed sublayers are dropped; layers are then numbered anew, arrays of config.json that have one
 * entry a layer are cut, and the map new -> old stands in the safetensors metadata and under
 * "fathom_pruned" in config.json. Everything else becomes model_type fathom_pruned (config.h),
 * which keeps the parent's configuration, numbers and block boundaries.
 */
#ifndef FATHOM_EXPORT_MODEL_H
#define FATHOM_EXPORT_MODEL_H

#include "runtime/depth_program.h"
#include "runtime/model.h"

typedef struct export_options {
    const char *folder;  /* made; must not exist, or be empty */
    const bool *removed; /* [2 * layers] beside what the model lacks already */
    removal removal;
    const char *command;       /* that asks for it, for the metadata */
    const char *parent_sha256; /* of the model's weight files (checkpoint_hash) */
} export_options;

/* Whether the public format of `config` can say the removal. */
bool export_is_plain(const model_config *config, const bool *removed, removal how);

/* Fails where `folder` exists and is not an empty folder: to be asked before long work. */
int export_folder_check(const char *folder, status *st) MUST_USE;

/* Copies tensors in pieces and byte for byte, then the tokenizer's files where there are any, then
 * writes config.json, opens the result and compares its depth program and decoder with what was
 * asked for. Fails, with nothing left behind, on: a folder that holds something, a removal of every
 * sublayer, another `removal` than the one the model was pruned with before, no room. */
int export_model(const model *m, const export_options *options, status *st) MUST_USE;

#endif
