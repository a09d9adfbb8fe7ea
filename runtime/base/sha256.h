/* sha256.h - SHA-256 (FIPS 180-4), streaming. */
#ifndef FATHOM_SHA256_H
#define FATHOM_SHA256_H

#include <stddef.h>
#include <stdint.h>

typedef struct sha256 {
    uint32_t state[8];
    uint64_t length; /* bytes so far */
    uint8_t block[64];
} sha256;

void sha256_init(sha256 *hash);
void sha256_add(sha256 *hash, const void *data, size_t bytes);
/* 64 lower-case hex digits and a final zero into `hex`; `hash` must be initialised again. */
void sha256_finish(sha256 *hash, char hex[65]);

#endif
