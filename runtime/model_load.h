/* model_load.h - what model.c and model_load.c share: the model itself and the tensors it wants. */
#ifndef FATHOM_MODEL_LOAD_H
#define FATHOM_MODEL_LOAD_H

#include "runtime/model.h"

/* How a public file shapes a tensor of `rows` and `columns`. */
typedef enum tensor_form {
    FORM_VECTOR, /* [rows] */
    FORM_MATRIX, /* [rows, columns] */
    FORM_SCALAR, /* [] or [1] */
} tensor_form;

/* One tensor of the checkpoint and the place it goes to. */
typedef struct wanted {
    char name[80];
    const char *kind;
    tensor_form form;
    size_t rows, columns;
    size_t offset, total;   /* its first element within its buffer; the buffer's elements */
    buffer **memory;        /* where the buffer is entered: this one, */
    const buffer **routing; /* or this one of a site */
} wanted;

struct model {
    char *path, *config_text;
    model_config config;
    checkpoint *weights_file;
    const kernels *k;
    backend *device;
    model_weights weights;
    buffer **owned; /* [owned_count] every buffer, freed at closing */
    size_t owned_count, params;
    wanted *wanted;     /* [params] */
    model_param *param; /* [params] */
    size_t parameters;
    const char *dtype;
    const char *head_text;
};

/* Checks the checkpoint's tensors against the configuration: unknown dialects, unexpected router
 * tensors, missing ones, shapes and dtypes. Fills m->wanted and m->param (but for the memory), and
 * decides what the checkpoint alone tells: whether block modes have a final router. */
int model_match(model *m, status *st) MUST_USE;

/* Says where the output head comes from: reads lm_head.weight only where it stands beside a tied
 * embedding, to compare the two. */
int model_settle_head(model *m, status *st) MUST_USE;

/* Reads what model_match found into buffers of the backend, in pieces. */
int model_read(model *m, status *st) MUST_USE;

#endif
