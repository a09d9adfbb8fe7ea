/* plugin.c - what fathom-cuda.so exports. */
#include "kernels/kernels.h"
#include "runtime/base/version.h"

extern const kernels kernels_cuda;

__attribute__((visibility("default"))) kernels_entry KERNELS_ENTRY;

const kernels *KERNELS_ENTRY(const char **build) {
    *build = build_hash();
    return &kernels_cuda;
}
