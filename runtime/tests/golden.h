/* golden.h - tests: runs a model on given tokens and keeps everything the pass shows.
 *
 * Expected values: datasets/golden (float64, stored as float32 where large). The environment
 * variable GOLDEN names another folder of the same layout. */
#ifndef FATHOM_TESTS_GOLDEN_H
#define FATHOM_TESTS_GOLDEN_H

#include "runtime/session.h"

/* What one site and one sublayer showed; arrays are [rows] unless said. */
typedef struct seen_site {
    float *in_rms, *weights; /* weights [rows, heads, sources] */
    double *sums;            /* [sequences, layout.total] */
    routing_layout layout;
    float *grad_in_l2;
} seen_site;
typedef struct seen_sublayer {
    float *out_rms, *out_absmax, *state_rms, *state_absmax, *state_median_abs;
    float *state;   /* [rows, width] */
    float *pattern; /* attention_args.pattern */
    float *grad_out_l2;
} seen_sublayer;

/* One model, its program, and the last run. */
typedef struct run {
    model *model;
    depth_program *program;
    size_t sequences, rows;
    size_t start[65];
    int32_t *id;             /* [rows] */
    float *loss, *logits;    /* [rows], [rows, vocabulary] */
    seen_site *site;         /* [sites] */
    seen_sublayer *sublayer; /* [2 * layers] */
    float *grad_emb_l2;      /* [rows] */
    float **gradient;        /* [model_params] of the summed losses */
    size_t gradient_tokens;
} run;

/* Each stops the test with the message where something fails. */
void run_open(run *r, const char *model_folder, size_t threads);
void run_open_on(run *r, const char *model_folder, const model_options *options);
void run_program(run *r, const removed_set *removed); /* NULL: the whole model */
/* `lengths` [sequences]; ids of sequence b start at id + b * stride. Everything is observed. */
void run_forward(run *r, const int32_t *id, size_t stride, const size_t *lengths, size_t sequences);
/* The same with the backward pass. */
void run_backward(run *r, const int32_t *id, size_t stride, const size_t *lengths,
                  size_t sequences);
void run_close(run *r);
double run_loss(const run *r); /* mean over predicted tokens */

/* The folder of expected values, and a whole array of one expected file as doubles [elements]
 * (freed by the caller) with its shape; NULL where it is absent. */
const char *golden_folder(void);
double *golden_array(checkpoint *expected, const char *name, size_t *elements, size_t shape[8]);
int32_t *golden_tokens(checkpoint *expected, size_t *sequences, size_t *length);
/* Token ids [sequences, length] as a .npy file. */
void golden_write_tokens(const char *path, const int32_t *id, size_t sequences, size_t length);

/* sqrt(sum (got-want)^2 / sum want^2) over `n`. */
double relative_l2(const float *got, const double *want, size_t n);

#endif
