/* clones.h - CLONES before a function: gcc makes one copy of it for AVX2 and one for any x86-64, and
 * the loader chooses. Nothing elsewhere. */
#ifndef FATHOM_CLONES_H
#define FATHOM_CLONES_H

/* The loader resolves clones before a sanitizer's runtime is ready, so sanitized builds have none;
 * neither do C libraries without ifunc. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) &&                            \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CLONES __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define CLONES
#endif

#endif
