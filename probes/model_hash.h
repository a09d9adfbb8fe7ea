/* model_hash.h - the SHA-256 of a checkpoint, computed on a thread of its own beside the work.
 *
 *     model_hash *hash;
 *     if (model_hash_start(dir, &hash, st)) return FAILED;
 *     ... capture ...
 *     if (model_hash_wait(hash, hex, st)) ...        // or, in a hurry, model_hash_leave(hash, hex)
 */
#ifndef FATHOM_MODEL_HASH_H
#define FATHOM_MODEL_HASH_H

#include "runtime/base/status.h"

#include <stdbool.h>

typedef struct model_hash model_hash;

int model_hash_start(const char *dir, model_hash **out, status *st) MUST_USE;
/* Waits for the digest (see checkpoint_hash) and frees `hash`. */
int model_hash_wait(model_hash *hash, char hex[65], status *st) MUST_USE;
/* The digest where it is done, "" where it is not; the thread then ends by itself. Frees `hash`;
 * NULL gives "". */
void model_hash_leave(model_hash *hash, char hex[65]);

#endif
