/* fixture.h - what the tests of the operations share: fresh random inputs, buffers with guards,
 * batches of unequal sequences, and comparison with float64 references.
 *
 * Every run draws new inputs; the seed is printed and TEST_SEED=N repeats a run.
 */
#ifndef FATHOM_KERNELS_TESTS_FIXTURE_H
#define FATHOM_KERNELS_TESTS_FIXTURE_H

#include "kernels/cpu/cpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

/* Random numbers, seeded from TEST_SEED or the time on the first call. */
double fixture_uniform(void);                   /* in [0, 1) */
double fixture_normal(void);                    /* mean 0, variance 1 */
size_t fixture_pick(size_t least, size_t most); /* both included */

/* A CPU device of `threads`, or the test fails. */
backend *fixture_device(size_t threads);

/* Memory for `elements` floats with guard regions on both sides, filled with NaN, `shift` elements
 * off the alignment that a backend's own buffers have. */
buffer *fixture_buffer(size_t elements);
buffer *fixture_buffer_shifted(size_t elements, size_t shift);
/* The same, filled with normal numbers times `scale`, or with a copy of `from`. */
buffer *fixture_random(size_t elements, double scale);
buffer *fixture_copy(const float *from, size_t elements);
/* Fails the test if a guard was written. NULL allowed. */
void fixture_free(buffer *memory);

/* Largest |got - want| over the largest |want| of the array; NaN must meet NaN. The test fails
 * where it exceeds `bound`; with TEST_VERBOSE set every measured error is printed. */
void fixture_close(const char *what, const float *got, const double *want, size_t count,
                   double bound);
void fixture_close_doubles(const char *what, const double *got, const double *want, size_t count,
                           double bound);
/* Bit for bit; `what` and the first difference are printed. */
void fixture_same(const char *what, const void *got, const void *want, size_t elements);

/* The lengths used throughout: 1, 300, 17 and 64 tokens, the last a whole number of row tiles. */
enum { FIXTURE_SEQUENCES = 4, FIXTURE_ROWS = 1 + 300 + 17 + 64 };
extern const size_t fixture_start[FIXTURE_SEQUENCES + 1];
extern const batch_layout fixture_batch;

/* One operation on the rows first .. first + layout->rows - 1 of the inputs that `context` holds;
 * writes `outputs` arrays, array o of layout->rows rows at out[o]. */
typedef struct fixture_case {
    const char *name;
    size_t outputs;
    const size_t *elements; /* [outputs] 4-byte elements of a row */
    void (*run)(backend *device, const batch_layout *layout, size_t first, void *context,
                float **out);
    void *context;
} fixture_case;

/* The batch of fixture_batch on one and on two threads, and each sequence alone, all give the same
 * bits. Leaves the batch's outputs in out[o], to be freed by the caller. */
void fixture_invariant(const fixture_case *test, float **out);

#endif
