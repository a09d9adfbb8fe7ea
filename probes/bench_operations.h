/* bench_operations.h - `fathom bench --operations`: single operations of a backend, without a
 * model.
 */
#ifndef FATHOM_BENCH_OPERATIONS_H
#define FATHOM_BENCH_OPERATIONS_H

#include "kernels/kernels.h"

#include <stdio.h>

typedef struct operation_row {
    const char *name;
    char shape[64];
    double seconds;      /* of one call: the median over rounds */
    double bytes, flops; /* the fewest that it must move and do; 0: not what bounds it */
} operation_row;

typedef struct operation_times {
    char device[256];
    size_t rounds, rows; /* rows: T of every shape */
    double copy_rate;    /* bytes a second, read and written, of a copy in the same run */
    size_t count;
    operation_row *row; /* [count] */
} operation_times;

/* Opens the device and measures; the caller frees row. A round is a handful of calls and one wait;
 * `rounds` follow three to warm up. `rows` 0: 8192 where memory is the device's own, else 256. */
int bench_operations(const backend_options *options, size_t rows, size_t rounds,
                     operation_times *out, status *st) MUST_USE;

void operation_times_print(const operation_times *times, FILE *out);
int operation_times_json(const operation_times *times, FILE *out, status *st) MUST_USE;

#endif
