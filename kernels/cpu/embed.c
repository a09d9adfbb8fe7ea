/* embed.c - rows of the embedding table, by token, and their gradients. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector.h"

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

enum { BACK_COLUMNS = 32 };

/* Columns `column` and following of the table, rows in order. */
CLONES static void add_columns(const embed_back_args *args, size_t column) {
    const size_t width = args->width, left = width - column;
    const size_t columns = left < BACK_COLUMNS ? left : BACK_COLUMNS;
    const int32_t *id = args->id->data;
    for (size_t r = 0; r < args->layout->rows; r++)
        add_rows(floats(args->grad_table) + (size_t)id[r] * width + column,
                 floats(args->d_out) + r * width + column, 1, 0, columns);
}

int cpu_embed_back(backend *device, const embed_back_args *args, status *st) {
    const size_t rows = args->layout->rows;
    if (!args->grad_table)
        return DONE;
    if (cpu_holds(args->id, rows, 1, "embed_back: id", st) ||
        cpu_holds(args->d_out, rows, args->width, "embed_back: d_out", st) ||
        cpu_holds(args->grad_table, args->vocabulary, args->width, "embed_back: grad_table", st))
        return FAILED;
#pragma omp parallel for num_threads(device->threads) schedule(static)
    for (size_t column = 0; column < args->width; column += BACK_COLUMNS)
        add_columns(args, column);
    return DONE;
}
