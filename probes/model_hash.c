#include "probes/model_hash.h"
#include "runtime/safetensors.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Whoever comes second to `met` frees: the thread when it is done, or the caller when it leaves. */
struct model_hash {
    pthread_t thread;
    atomic_bool met;
    checkpoint *weights; /* its own: the model may be closed before */
    int result;
    char hex[65];
    status st;
};

static void free_hash(model_hash *hash) {
    checkpoint_close(hash->weights);
    free(hash);
}

static void *run(void *argument) {
    model_hash *hash = argument;
    hash->result = checkpoint_hash(hash->weights, hash->hex, &hash->st);
    if (atomic_exchange(&hash->met, true))
        free_hash(hash);
    return NULL;
}

int model_hash_start(const char *dir, model_hash **out, status *st) {
    *out = NULL;
    model_hash *hash = mem_array(1, sizeof *hash, "hash", st);
    if (!hash)
        return FAILED;
    if (checkpoint_open(dir, &hash->weights, st)) {
        free_hash(hash);
        return FAILED;
    }
    int error = pthread_create(&hash->thread, NULL, run, hash);
    if (error) {
        free_hash(hash);
        return status_fail(st, "cannot start a thread: %s", strerror(error));
    }
    *out = hash;
    return DONE;
}

int model_hash_wait(model_hash *hash, char hex[65], status *st) {
    pthread_join(hash->thread, NULL);
    int result = hash->result;
    memcpy(hex, hash->hex, sizeof hash->hex);
    if (result)
        *st = hash->st;
    free_hash(hash);
    return result;
}

void model_hash_leave(model_hash *hash, char hex[65]) {
    hex[0] = '\0';
    if (!hash)
        return;
    pthread_t thread = hash->thread;
    if (!atomic_exchange(&hash->met, true)) {
        pthread_detach(thread);
        return;
    }
    status ignored;
    if (model_hash_wait(hash, hex, &ignored))
        hex[0] = '\0';
}
