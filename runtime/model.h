/* model.h - an immutable model: its configuration and its weights in one backend's memory.
 *
 *     model *m;
 *     if (model_open(dir, &(model_options){.device = "cpu"}, &m, st)) return FAILED;
 *     ... any number of sessions (session.h) read it ...
 *     model_close(m);
 */
#ifndef FATHOM_MODEL_H
#define FATHOM_MODEL_H

#include "kernels/kernels.h"
#include "runtime/base/status.h"
#include "runtime/config.h"
#include "runtime/safetensors.h"

typedef struct model model;

typedef struct model_options {
    const char *device;   /* "auto", "cpu", "cuda", "cuda:N"; NULL: auto */
    const char *dtype;    /* "fp32"; CUDA: also "bf16"; NULL: fp32 */
    size_t threads;       /* 0: one per core */
    size_t routing_heads; /* see config_read */
    size_t positions;     /* rows of the rotary tables: the longest sequence that any session will
                             run; 0: max_position_embeddings, at most 131072 */
    bool describe;        /* check everything, but read no weights and open no device: only the
                             configuration, the checkpoint and the table of parameters exist */
} model_options;

/* Weights of one layer. Fused tensors are rows one after the other, as public files hold them
 * apart: qkv = q_proj, k_proj, v_proj; gate_up = gate_proj, up_proj. NULL: the model has none. */
typedef struct layer_weights {
    buffer *attn_norm;    /* [d]  input_layernorm */
    buffer *qkv;          /* [(query_heads + 2 kv_heads) * head_dim, d] */
    buffer *qkv_bias;     /* [(query_heads + 2 kv_heads) * head_dim] */
    buffer *q_norm;       /* [head_dim] */
    buffer *k_norm;       /* [head_dim] */
    buffer *out;          /* [d, query_heads * head_dim]  o_proj */
    buffer *out_bias;     /* [d] */
    buffer *mlp_norm;     /* [d]  post_attention_layernorm */
    buffer *gate_up;      /* [2 * mlp_width, d] */
    buffer *gate_up_bias; /* [2 * mlp_width] */
    buffer *down;         /* [d, mlp_width] */
    buffer *down_bias;    /* [d] */
    site_weights attn_site, mlp_site;
} layer_weights;

typedef struct model_weights {
    buffer *embedding;    /* [vocabulary, d] */
    layer_weights *layer; /* [layers] */
    site_weights final_site;
    buffer *norm;        /* [d], the final norm */
    buffer *head;        /* [vocabulary, d]; the embedding where tied */
    buffer *rope_cosine; /* [positions, head_dim/2] */
    buffer *rope_sine;   /* [positions, head_dim/2] */
    size_t rope_positions;
} model_weights;

/* One tensor of the checkpoint as the model uses it. */
typedef struct model_param {
    const char *name; /* public name: "model.layers.3.attn_res_proj.weight" */
    const char *kind; /* for counts: "embedding", "attention", "mlp", "norm", "router", "head" */
    size_t rows, columns; /* columns 1 for vectors and scalars */
    const buffer *memory;
    size_t offset;     /* first element within `memory` (fused tensors hold several params) */
    const char *dtype; /* in the file: "BF16" */
    size_t nonfinite;  /* NaN and Inf values seen while loading */
} model_param;

/* Loads DIR (config.json and weights). Every tensor is checked: missing, unexpected router tensor,
 * shape, dtype; a family or dialect that fits no known row is refused with the rows known and the
 * keys seen. NaN and Inf in weights are warned about by name and loading goes on. Notes (head tied
 * or not, default blocks) are logged with log_detail. */
int model_open(const char *dir, const model_options *options, model **out, status *st) MUST_USE;
void model_close(model *m); /* NULL allowed */

const model_config *model_configuration(const model *m);
const model_weights *model_tensors(const model *m);
/* The learned tensors of site `index`: 2 * layer + kind, then `final`. */
const site_weights *model_site(const model *m, size_t index);
const kernels *model_kernels(const model *m);
backend *model_backend(const model *m);
const char *model_path(const model *m);
const char *model_config_text(const model *m); /* config.json as read */
const checkpoint *model_checkpoint(const model *m);
const char *model_weights_dtype(const model *m); /* "BF16", "F32", or "mixed" */
/* What was found of the output head: "tied", "tied (lm_head.weight present, equal, not used)" … */
const char *model_head_text(const model *m);

/* The sublayer that alone uses a tensor, by its public name: 2 * layer + (1: the MLP). -1: it is
 * not of a layer, or of one kind of sublayer that is not known. *layer (may be NULL) receives the
 * layer, or -1. */
long tensor_sublayer(const char *name, long *layer);

size_t model_params(const model *m);
const model_param *model_param_at(const model *m, size_t index); /* in order of use */
size_t model_parameters(const model *m);                         /* scalars; tied counted once */

#endif
