/* config.h - config.json as the program understands it: families, residual modes, dialects.
 *
 * Public names: transformers 4 and 5 for llama, qwen2, qwen3; the MHAR release for qwen3_attnres
 * and llama_attnres. fathom's own: model_type fathom_pruned, a model without some sublayers that no
 * public format can say:
 *     {"model_type": "fathom_pruned", "parent_config": {the whole model's config.json},
 *      "kept": ["L0.attn", "L0.mlp", "L2.mlp", ...], "removal": "drop_source" or "zero_output"}
 * Numbers of layers are the whole model's, in `kept` and in the names of tensors.
 * Only this file and depth_program_build know modes. */
#ifndef FATHOM_CONFIG_H
#define FATHOM_CONFIG_H

#include "kernels/depth_plan.h"
#include "runtime/base/status.h"

#include <stdbool.h>
#include <stddef.h>

typedef enum model_family { FAMILY_LLAMA, FAMILY_QWEN2, FAMILY_QWEN3 } model_family;

typedef enum residual_mode {
    MODE_NONE, /* standard PreNorm: h += f(h) */
    MODE_FULL,
    MODE_FULL_MH,
    MODE_BLOCK,
    MODE_BLOCK_MH,
    MODE_DELTA,
    MODE_DELTA_BLOCK,
    MODE_DELTA_MH,
} residual_mode;

/* How a removed sublayer is treated: it is in no source list, or zeros take its output's place. */
typedef enum removal { DROP_SOURCE, ZERO_OUTPUT } removal;

enum { CONFIG_LAYERS_MAX = 4096 };

typedef enum rope_kind { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3 } rope_kind;

typedef struct rope_config {
    rope_kind kind;
    double theta;
    double factor;                            /* LINEAR, LLAMA3 */
    double low_freq_factor, high_freq_factor; /* LLAMA3 */
    size_t original_positions;                /* LLAMA3 */
} rope_config;

typedef struct model_config {
    char model_type[64]; /* as in the file: "qwen3_attnres" */
    model_family family; /* the decoder's family */
    residual_mode mode;
    size_t vocabulary, width, layers, positions; /* positions = max_position_embeddings */
    size_t query_heads, kv_heads, head_dim;
    size_t mlp_width; /* intermediate_size */
    float eps;        /* rms_norm_eps, also of the routers' key norm */
    rope_config rope;
    bool tied;      /* tie_word_embeddings */
    bool head_norm; /* q and k RMSNorm over head_dim (qwen3) */
    bool qkv_bias, out_bias, mlp_bias;

    size_t routing_heads;    /* H, 1 in single-head modes and MODE_NONE */
    size_t blocks_asked;     /* attnres_num_blocks; block modes and delta_block, delta_mh */
    bool blocks_defaulted;   /* the key was absent: 8 */
    size_t layers_per_block; /* ceil(layers / blocks_asked) */
    size_t blocks_formed;    /* ceil(layers / layers_per_block) */
    gate_kind gate;          /* GATE_NONE for attnres_gate_type "bias" */
    bool null_source;        /* a null source at every site but `final` */
    bool final_site;         /* full and block modes: a router before the final norm */

    bool pruned;     /* model_type fathom_pruned; everything else here is the whole model's */
    removal removal; /* of the sublayers below */
    bool removed[2 * CONFIG_LAYERS_MAX]; /* [2 * layer + (1: its MLP)] true: not in the model */
} model_config;

bool mode_is_full(residual_mode mode);  /* full, full_mh */
bool mode_is_block(residual_mode mode); /* block, block_mh */
bool mode_is_delta(residual_mode mode); /* delta, delta_block, delta_mh */
const char *mode_name(residual_mode mode);
const char *removal_name(removal how); /* "drop_source", "zero_output" */

/* The families and dialects known, read or not, for messages about one that fits none. */
const char *config_known_rows(void);

/* Reads DIR/config.json. `routing_heads` > 0 answers for a missing attnres_num_heads (and must
 * agree with a present one); 0: a missing one is an error in multi-head modes, since weights do not
 * tell. `text` (may be NULL) receives the file's text, freed by the caller. */
int config_read(const char *dir, size_t routing_heads, model_config *config, char **text,
                status *st) MUST_USE;
/* The same from memory; `where` opens error texts. */
int config_parse(const char *text, size_t bytes, const char *where, size_t routing_heads,
                 model_config *config, status *st) MUST_USE;

#endif
