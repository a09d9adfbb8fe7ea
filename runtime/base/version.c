/* version.c - what this build is; the Makefile writes build_info.h. */
#include "runtime/base/version.h"

#if __has_include(<build_info.h>)
#include <build_info.h>
#endif
#ifndef BUILD_FLAGS
#define BUILD_FLAGS "flags unknown"
#endif
#ifndef BUILD_HASH
#define BUILD_HASH FATHOM_VERSION
#endif
#ifndef BUILD_LIBRARIES
#define BUILD_LIBRARIES "libraries unknown"
#endif

#ifdef __clang__
#define COMPILER __VERSION__
#else
#define COMPILER "gcc " __VERSION__
#endif

const char *build_text(void) {
    return COMPILER "; " BUILD_FLAGS;
}

const char *build_hash(void) {
    return BUILD_HASH;
}

const char *build_libraries(void) {
    return BUILD_LIBRARIES;
}
