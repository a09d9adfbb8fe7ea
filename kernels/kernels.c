/* kernels.c - finding a backend by name. */
#include "kernels/kernels.h"

#include <string.h>

const kernels *kernels_find(const char *name, status *st) {
    if (strcmp(name, kernels_cpu.name) == 0)
        return &kernels_cpu;
    status_fail(st, "device '%s': no such backend in this build (there is: %s)", name,
                kernels_cpu.name);
    return NULL;
}
