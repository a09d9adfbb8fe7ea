/* depth_pull.cuh - what the kernels of the pull share: depth_pull.cu, depth_pull_ring.cu and
 * depth_queries.cu. */
#ifndef FATHOM_KERNELS_CUDA_DEPTH_PULL_CUH
#define FATHOM_KERNELS_CUDA_DEPTH_PULL_CUH

#include "kernels/cuda/depth.h"

/* A site with several sources, of which the value is one. */
typedef struct reader {
    int site, position;
} reader;

/* A gradient that reaches the value as it is, or with the other sign. */
typedef struct term {
    const void *from; /* [rows, width] */
    float sign;
} term;

enum { TERMS = 8, NOTED = 128 };
typedef struct term_list {
    int count;
    term term[TERMS];
} term_list;

/* A value being pulled. */
typedef struct pulling {
    const value_view *view; /* of the value */
    const back_view *back;
    const reader *reader;
    void *out; /* [rows, width] real */
    size_t rows, logit_rows, edge_rows;
    int readers, width, heads, slice;
    bool more; /* `out` holds what earlier terms have left */
    term_list terms;
    const void *d_mix[NOTED]; /* of the first readers: a launch can read them before it waits */
} pulling;

/* The kernel that fits the plan's shape, NULL: the general one. `few`: for batches whose rows are
 * not many tiles to a multiprocessor: smaller tiles, more readers ahead. */
typedef struct pull_kernel {
    const void *kernel;
    int W;
    unsigned block;
    size_t height;               /* rows of a tile */
    size_t shared, reader_bytes; /* bytes, and of each reader */
    size_t most_readers;
} pull_kernel;
int depth_pull_choose(const depth *axis, bool few, pull_kernel *out, status *st);

#endif
