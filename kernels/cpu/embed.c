/* embed.c - rows of the embedding table, by token. */
#include "kernels/cpu/cpu.h"

#include <string.h>

int cpu_embed(backend *device, const embed_args *args, status *st) {
    if (cpu_holds(args->table, args->vocabulary, args->width, "embed: table", st) ||
        cpu_holds(args->id, args->rows, 1, "embed: id", st) ||
        cpu_holds(args->out, args->rows, args->width, "embed: out", st))
        return FAILED;
    const float *table = floats(args->table);
    float *out = floats(args->out);
    const int32_t *id = args->id->data;
    const size_t width = args->width;
#pragma omp parallel for num_threads(device->threads) schedule(static)
    for (size_t r = 0; r < args->rows; r++)
        memcpy(out + r * width, table + (size_t)id[r] * width, width * sizeof(float));
    return DONE;
}
