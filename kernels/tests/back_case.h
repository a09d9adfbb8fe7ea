/* back_case.h - what the tests of the backward operations share: an operation is described by its
 * shapes, its call, and a naive float64 forward, and everything that holds for all is checked. */
#ifndef FATHOM_KERNELS_TESTS_BACK_CASE_H
#define FATHOM_KERNELS_TESTS_BACK_CASE_H

#include "kernels/tests/fixture.h"

enum { BACK_TENSORS = 3 };

typedef struct back_tensor {
    const char *name;
    size_t elements; /* of a row, or of the whole if learned; 0: the operation goes without it */
    bool learned;
    double scale;
} back_tensor;

/* The buffers of one call; rows are those of `layout`. */
typedef struct back_call {
    backend *device;
    const batch_layout *layout;
    buffer *x[BACK_TENSORS]; /* inputs of the forward operation */
    buffer *id;              /* [rows] int32, NULL without */
    buffer *d_out;           /* NULL without */
    buffer *d[BACK_TENSORS]; /* their gradients; NULL: not wanted */
} back_call;

typedef enum back_alias { BACK_APART, BACK_OVER_D_OUT, BACK_OVER_IN } back_alias;

typedef struct back_case back_case;
struct back_case {
    const char *name;
    const batch_layout *layout;
    back_tensor x[BACK_TENSORS];
    size_t out;       /* elements of a row of d_out; 0: the objective is the operation's own */
    size_t ids;       /* each row has an id below this; 0: none */
    bool targets;     /* ids may be -1 */
    back_alias alias; /* what the gradient of x[0] may overwrite */
    size_t samples;   /* elements of each tensor that are checked one by one */
    double bound;     /* largest error, relative to a tensor's largest gradient: with a handful of
                         elements that is no measure, since all may be sums that cancel */
    size_t size[4];   /* for the functions below */
    const buffer *fixed[2];
    int (*run)(const back_case *test, const back_call *call, status *st);
    /* Sum of d_out * out over the rows first .. end - 1 of the sequence that starts at row
     * `start`, naively in float64. A row may depend on its own and earlier inputs. */
    double (*objective)(const back_case *test, double *const *x, const int32_t *id,
                        const float *d_out, size_t start, size_t first, size_t end);
};

/* - every gradient of an activation is written, every gradient of a learned tensor added to what
 *   was there, inputs and guards are untouched;
 * - one thread and two, the batch whole, halved and one sequence after the other, with and without
 *   gradients of learned tensors, apart and in place: the same bits;
 * - elements (first and last of each sequence or tensor, the largest, and random ones) and
 * derivatives along random directions, which see every element, agree with finite differences of
 * the objective. */
void back_check(const back_case *test);

#endif
