/* gpu_case.h - what the checks of a GPU backend share: one call on the CPU's backend and on the
 * GPU's, from the same random inputs, with poisoned outputs and guarded ends.
 *
 * A program of checks: gpu_open(argc, argv), any number of gpu_check and gpu_compare, gpu_close.
 * Its arguments: words, of which a check's name must contain one; "small": only small sizes;
 * "runs=N". Inputs are drawn anew in every run; TEST_SEED=N repeats one. TEST_DEVICE names the
 * device, "cuda" by default; "cpu" checks the checks.
 */
#ifndef FATHOM_KERNELS_TESTS_GPU_CASE_H
#define FATHOM_KERNELS_TESTS_GPU_CASE_H

#include "kernels/kernels.h"

enum { GPU_TENSORS = 10 };

typedef enum gpu_role { GPU_IN, GPU_OUT, GPU_ADD } gpu_role;
typedef enum gpu_fill {
    GPU_NORMAL, /* scale times normal numbers */
    GPU_GAIN,   /* 1 + 0.2 times normal numbers */
    GPU_ODD,    /* of few numbers: ties, zeros, the largest, infinity and, rarely, NaN */
    GPU_IDS,    /* int32 from 0 to limit - 1 */
    GPU_TARGETS /* int32 from -1 to limit - 1 */
} gpu_fill;

typedef struct gpu_tensor {
    const char *name; /* NULL: not there */
    gpu_role role;
    buffer_kind kind;
    size_t elements;
    gpu_fill fill;
    double scale;
    size_t limit;
    bool integer; /* compared bit by bit */
} gpu_tensor;

typedef struct gpu_case {
    const char *name;
    const batch_layout *layout;
    size_t size[6];
    gpu_tensor t[GPU_TENSORS];
    int over_in, over_out; /* tensor over_out may be tensor over_in; 0, 0: none may */
    double fp32, bf16;     /* bounds of the relative L2 error; 0: the usual ones */
    int (*run)(const struct gpu_case *c, const kernels *k, backend *device, buffer **b, status *st);
} gpu_case;

typedef struct gpu_state {
    const kernels *gpu_kernels;
    backend *cpu, *gpu[2];
    const char *dtype[2]; /* "fp32", "bf16" */
    int which;            /* of the two, at work */
    bool small;
    size_t runs; /* that must give the same bits */
} gpu_state;
extern gpu_state gpu;

void gpu_open(int argc, char **argv);
int gpu_close(void); /* prints the table and the counts; the exit status */
bool gpu_wanted(const char *name);

/* Runs the case in both dtypes. */
void gpu_check(const gpu_case *c);

/* ---- for checks of more than one call ---- */
double gpu_normal(void);
size_t gpu_pick(size_t below);
/* `count` normal numbers times scale, which `real` memory of the dtype at work holds exactly. */
float *gpu_numbers(size_t count, double scale, bool real);
void gpu_need(int rc, const char *what, const status *st); /* stops the program */
buffer *gpu_buffer(const kernels *k, backend *device, buffer_kind kind, size_t elements,
                   const float *from); /* NULL: NaN */
float *gpu_download(const kernels *k, backend *device, const buffer *from, size_t elements);
/* Notes the relative L2 error of what was computed under `what`. */
void gpu_compare(const char *what, const float *got, const float *want, size_t count, double fp32,
                 double bf16);
void gpu_note(const char *what, double error, double bound, const char *detail);
void gpu_same(const char *what, const void *got, const void *want, size_t bytes);

#endif
