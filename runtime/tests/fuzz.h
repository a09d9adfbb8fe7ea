/* fuzz.h - what the fuzz drivers of text formats share: seeded random numbers, damage to a text,
 * and the clock. A driver is called with SECONDS SEED and is the same run for the same seed. */
#ifndef FATHOM_FUZZ_H
#define FATHOM_FUZZ_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SAMPLE_MOST = 8192 };

typedef struct sample {
    char text[SAMPLE_MOST];
    size_t size;
} sample;

static uint64_t random_state;

/* splitmix64 */
static inline uint64_t random_next(void) {
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline size_t below(size_t bound) {
    return (size_t)(random_next() % bound);
}

/* Replaces `cut` bytes at `at` with `word`; nothing where that would not fit. */
static inline void splice(sample *s, size_t at, size_t cut, const char *word, size_t bytes) {
    if (s->size - cut + bytes > SAMPLE_MOST)
        return;
    memmove(s->text + at + bytes, s->text + at + cut, s->size - at - cut);
    memcpy(s->text + at, word, bytes);
    s->size = s->size - cut + bytes;
}

/* One damage: a bit, a byte, a cut, a repeated piece, or a word of the dictionary, often in place
 * of a number or a word that stood there. */
static inline void damage(sample *s, const char *const *words, size_t count) {
    size_t at = below(s->size + 1), cut = 0;
    const char *word = words[below(count)];
    switch (s->size ? below(8) : 5) {
    case 0:
        s->text[at < s->size ? at : 0] ^= (char)(1 << below(8));
        break;
    case 1:
        s->text[at < s->size ? at : 0] = (char)random_next();
        break;
    case 2:
        s->size = below(4) ? s->size : at;
        break;
    case 3:
        cut = below(s->size - at + 1);
        splice(s, at, cut < 20 ? cut : cut % 20, "", 0);
        break;
    case 4: {
        char piece[64];
        size_t bytes = s->size - at < sizeof piece ? s->size - at : below(sizeof piece);
        memcpy(piece, s->text + at, bytes);
        splice(s, below(s->size + 1), 0, piece, bytes);
        break;
    }
    case 5:
        splice(s, at, 0, word, strlen(word));
        break;
    default: /* to the next word or number, which is replaced */
        while (at < s->size && strchr(" \n,:[]{}", s->text[at]))
            at++;
        while (at + cut < s->size && !strchr(",:]}\n", s->text[at + cut]))
            cut++;
        splice(s, at, cut, word, strlen(word));
    }
}

static inline double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Tries inputs for argv[1] seconds from seed argv[2]. `try_input` returns 1: accepted, 0: refused,
 * -1: the contract is broken. Returns the exit status. */
static inline int fuzz_main(int argc, char **argv, int (*try_input)(void)) {
    double end = seconds_now() + (argc > 1 ? strtod(argv[1], NULL) : 1);
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    size_t inputs = 0, accepted = 0;
    for (; inputs == 0 || seconds_now() < end; inputs++) {
        random_state = seed * 0x2545f4914f6cdd1du + inputs;
        int result = try_input();
        if (result < 0) {
            fprintf(stderr, "%s: seed %llu, input %zu: wrong answer\n", argv[0],
                    (unsigned long long)seed, inputs);
            return 1;
        }
        accepted += result == 1;
    }
    printf("%zu inputs, %zu accepted\n", inputs, accepted);
    return 0;
}

#endif
