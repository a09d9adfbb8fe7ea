/* config.c - config.json of every known family, checked as it is read. */
#include "runtime/config.h"

#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/name_list.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CONFIG_BYTES_MAX = 1 << 24,
    VOCABULARY_MAX = 1 << 26,
    WIDTH_MAX = 1 << 20,
    POSITIONS_MAX = 1 << 30,
    HEADS_MAX = 1 << 13,
    HEAD_DIM_MAX = 1 << 13,
    MLP_WIDTH_MAX = 1 << 24,
    BLOCKS_MAX = 1 << 20,
    BLOCKS_DEFAULT = 8,
};

static const struct {
    const char *model_type;
    model_family family;
    bool routed;
} families[] = {
    {"llama", FAMILY_LLAMA, false},        {"qwen2", FAMILY_QWEN2, false},
    {"qwen3", FAMILY_QWEN3, false},        {"qwen3_attnres", FAMILY_QWEN3, true},
    {"llama_attnres", FAMILY_LLAMA, true},
};

static const struct {
    const char *name;
    bool multi_head;
} modes[] = {
    [MODE_NONE] = {"none", false},
    [MODE_FULL] = {"full", false},
    [MODE_FULL_MH] = {"full_mh", true},
    [MODE_BLOCK] = {"block", false},
    [MODE_BLOCK_MH] = {"block_mh", true},
    [MODE_DELTA] = {"delta", false},
    [MODE_DELTA_BLOCK] = {"delta_block", false},
    [MODE_DELTA_MH] = {"delta_mh", true},
};

static const struct {
    const char *name;
    gate_kind gate;
} gates[] = {
    {"bias", GATE_NONE},
    {"learnable_alpha", GATE_ALPHA},
    {"sigmoid_scalar", GATE_SIGMOID_SCALAR},
    {"sigmoid_vector", GATE_SIGMOID_VECTOR},
};

static const char *const removals[] = {
    [DROP_SOURCE] = "drop_source", [ZERO_OUTPUT] = "zero_output"};

/* Keys of an attention-residual model that are read, or that only matter for training. */
static const char *const attnres_keys[] = {"attnres_mode", "attnres_num_blocks",
                                           "attnres_num_heads", "attnres_gate_type",
                                           "attnres_use_null_source"};

enum {
    FAMILIES = sizeof families / sizeof *families,
    MODES = sizeof modes / sizeof *modes,
    GATES = sizeof gates / sizeof *gates,
    ATTNRES_KEYS = sizeof attnres_keys / sizeof *attnres_keys,
};

bool mode_is_full(residual_mode mode) {
    return mode == MODE_FULL || mode == MODE_FULL_MH;
}

bool mode_is_block(residual_mode mode) {
    return mode == MODE_BLOCK || mode == MODE_BLOCK_MH;
}

bool mode_is_delta(residual_mode mode) {
    return mode == MODE_DELTA || mode == MODE_DELTA_BLOCK || mode == MODE_DELTA_MH;
}

const char *mode_name(residual_mode mode) {
    return modes[mode].name;
}

const char *removal_name(removal how) {
    return removals[how];
}

const char *config_known_rows(void) {
    return "known: llama, qwen2, qwen3 (standard); qwen3_attnres, llama_attnres (attnres_mode in "
           "config.json, tensors {attn,mlp}_res_{proj,norm}.weight and, in full and block modes, "
           "model.final_res_{proj,norm}.weight); fathom_pruned (one of these without some "
           "sublayers). Not read by this version: flash-linear-attention "
           "(attnres_block_size), Kimi K3 layout (attn_res_block_size, self_attention_res_*), "
           "wdlctc v1 (*_res_bias), Megatron (pseudo_query, key_norm_weight), gpt2, gpt_neox";
}

/* What every reader below needs. */
typedef struct reader {
    const cJSON *json;
    const char *where;
    status *st;
} reader;

static int need_size(const reader *r, const char *key, size_t max, size_t *value) {
    if (!json_has(r->json, key))
        return status_fail(r->st, "%s: \"%s\": absent, expected a whole number", r->where, key);
    return json_size(r->json, r->where, key, 1, max, value, r->st);
}

/* Index of `name` among `count` names that `stride` bytes lie apart, or -1 with an error. */
static int choose(const reader *r, const char *key, const char *name, const void *names,
                  size_t count, size_t stride) {
    name_list known = {0};
    for (size_t i = 0; i < count; i++) {
        const char *candidate;
        memcpy(&candidate, (const char *)names + i * stride, sizeof candidate);
        if (name && strcmp(candidate, name) == 0)
            return (int)i;
        name_list_add(&known, candidate);
    }
    status_fail(r->st, "%s: \"%s\": %s%.64s%s, expected one of %s", r->where, key,
                name ? "found \"" : "", name ? name : "absent", name ? "\"" : "",
                name_list_text(&known));
    return -1;
}

/* ---- the decoder ---- */

static int read_family(const reader *r, model_config *c, bool *routed) {
    static const char *const dialects[][2] = {
        {"attnres_block_size", "the flash-linear-attention layout"},
        {"attn_res_block_size", "the Kimi K3 layout"},
    };
    name_list seen = {0};
    for (const cJSON *e = r->json->child; e; e = e->next)
        if (strstr(e->string, "attnres") || strstr(e->string, "attn_res"))
            name_list_add(&seen, e->string);
    for (size_t i = 0; i < sizeof dialects / sizeof *dialects; i++)
        if (json_has(r->json, dialects[i][0]))
            return status_fail(r->st,
                               "%s: \"%s\" belongs to %s, which this version does not read; "
                               "keys seen: %s; %s",
                               r->where, dialects[i][0], dialects[i][1], name_list_text(&seen),
                               config_known_rows());
    const char *type = NULL;
    if (json_text(r->json, r->where, "model_type", &type, r->st))
        return FAILED;
    for (size_t i = 0; i < FAMILIES; i++) {
        if (!type || strcmp(type, families[i].model_type) != 0)
            continue;
        snprintf(c->model_type, sizeof c->model_type, "%s", type);
        c->family = families[i].family;
        *routed = families[i].routed;
        return DONE;
    }
    return status_fail(r->st, "%s: \"model_type\": %s%.64s%s; attention-residual keys seen: %s; %s",
                       r->where, type ? "\"" : "", type ? type : "absent",
                       type ? "\" is not read" : "", seen.count ? name_list_text(&seen) : "none",
                       config_known_rows());
}

static int read_sizes(const reader *r, model_config *c) {
    if (need_size(r, "vocab_size", VOCABULARY_MAX, &c->vocabulary) ||
        need_size(r, "hidden_size", WIDTH_MAX, &c->width) ||
        need_size(r, "num_hidden_layers", CONFIG_LAYERS_MAX, &c->layers) ||
        need_size(r, "intermediate_size", MLP_WIDTH_MAX, &c->mlp_width) ||
        need_size(r, "max_position_embeddings", POSITIONS_MAX, &c->positions) ||
        need_size(r, "num_attention_heads", HEADS_MAX, &c->query_heads))
        return FAILED;
    c->kv_heads = c->query_heads;
    c->head_dim = c->width / c->query_heads;
    bool divides = json_has(r->json, "head_dim") || c->width % c->query_heads == 0;
    if (json_size(r->json, r->where, "num_key_value_heads", 1, HEADS_MAX, &c->kv_heads, r->st) ||
        json_size(r->json, r->where, "head_dim", 1, HEAD_DIM_MAX, &c->head_dim, r->st))
        return FAILED;
    if (c->query_heads % c->kv_heads != 0)
        return status_fail(r->st,
                           "%s: \"num_key_value_heads\": %zu does not divide "
                           "num_attention_heads %zu",
                           r->where, c->kv_heads, c->query_heads);
    if (!divides)
        return status_fail(r->st,
                           "%s: \"head_dim\": absent, and num_attention_heads %zu does not "
                           "divide hidden_size %zu",
                           r->where, c->query_heads, c->width);
    if (c->head_dim % 2 != 0 || c->head_dim > HEAD_DIM_MAX)
        return status_fail(r->st, "%s: \"head_dim\": %zu, expected an even number up to %d",
                           r->where, c->head_dim, HEAD_DIM_MAX);
    double eps = 1e-6;
    if (json_real(r->json, r->where, "rms_norm_eps", 1e-30, 1, &eps, r->st))
        return FAILED;
    c->eps = (float)eps;
    return DONE;
}

static int read_switches(const reader *r, model_config *c) {
    const char *act = "silu";
    bool attention_bias = false;
    if (json_text(r->json, r->where, "hidden_act", &act, r->st) ||
        json_bool(r->json, r->where, "tie_word_embeddings", &c->tied, r->st) ||
        json_bool(r->json, r->where, "attention_bias", &attention_bias, r->st))
        return FAILED;
    if (strcmp(act, "silu") != 0)
        return status_fail(r->st, "%s: \"hidden_act\": found \"%.64s\", expected \"silu\"",
                           r->where, act);
    if (json_has(r->json, "quantization_config"))
        return status_fail(r->st, "%s: \"quantization_config\": quantized weights are not read",
                           r->where);
    c->head_norm = c->family == FAMILY_QWEN3;
    c->qkv_bias = c->family == FAMILY_QWEN2 || attention_bias;
    c->out_bias = c->family != FAMILY_QWEN2 && attention_bias;
    if (c->family == FAMILY_LLAMA)
        return json_bool(r->json, r->where, "mlp_bias", &c->mlp_bias, r->st);
    return DONE;
}

/* Attention inside a sliding window is refused where some layer would use it. */
static int refuse_sliding_window(const reader *r, const model_config *c) {
    const cJSON *types = cJSON_GetObjectItemCaseSensitive(r->json, "layer_types");
    if (cJSON_IsArray(types)) {
        size_t layer = 0;
        for (const cJSON *e = types->child; e; e = e->next, layer++) {
            const char *type = cJSON_GetStringValue(e);
            if (!type || strcmp(type, "full_attention") != 0)
                return status_fail(r->st,
                                   "%s: \"layer_types\": layer %zu is \"%.64s\"; only "
                                   "full_attention is computed",
                                   r->where, layer, type ? type : "?");
        }
        return DONE;
    }
    bool use = false;
    size_t window = 4096, from_layer = 28; /* as transformers takes them where absent */
    if (c->family == FAMILY_LLAMA)
        return DONE;
    if (json_bool(r->json, r->where, "use_sliding_window", &use, r->st))
        return FAILED;
    if (!use || cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(r->json, "sliding_window")))
        return DONE;
    if (json_size(r->json, r->where, "sliding_window", 0, SIZE_MAX, &window, r->st) ||
        json_size(r->json, r->where, "max_window_layers", 0, SIZE_MAX, &from_layer, r->st))
        return FAILED;
    if (window < c->positions && from_layer < c->layers)
        return status_fail(r->st,
                           "%s: \"use_sliding_window\": a window of %zu tokens from layer "
                           "%zu on; sliding-window attention is not computed",
                           r->where, window, from_layer);
    return DONE;
}

static int read_llama3_rope(const reader *scaling, rope_config *rope) {
    static const char *const needed[] = {"factor", "low_freq_factor", "high_freq_factor",
                                         "original_max_position_embeddings"};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!json_has(scaling->json, needed[i]))
            return status_fail(scaling->st, "%s: \"%s\": absent, but rope_type llama3 needs it",
                               scaling->where, needed[i]);
    if (json_real(scaling->json, scaling->where, "low_freq_factor", 1e-6, 1e6,
                  &rope->low_freq_factor, scaling->st) ||
        json_real(scaling->json, scaling->where, "high_freq_factor", 1e-6, 1e6,
                  &rope->high_freq_factor, scaling->st) ||
        json_size(scaling->json, scaling->where, "original_max_position_embeddings", 1,
                  POSITIONS_MAX, &rope->original_positions, scaling->st))
        return FAILED;
    if (rope->high_freq_factor <= rope->low_freq_factor)
        return status_fail(scaling->st,
                           "%s: \"high_freq_factor\": %g, expected more than "
                           "low_freq_factor %g",
                           scaling->where, rope->high_freq_factor, rope->low_freq_factor);
    return DONE;
}

/* transformers 4: rope_theta beside rope_scaling; 5: both in rope_parameters. */
static int read_rope(const reader *r, rope_config *rope) {
    static const char *const kinds[] = {"default", "linear", "llama3"};
    bool v5 = json_has(r->json, "rope_parameters");
    const char *key = v5 ? "rope_parameters" : "rope_scaling";
    char where[1024];
    snprintf(where, sizeof where, "%s: %s", r->where, key);
    reader scaling = {cJSON_GetObjectItemCaseSensitive(r->json, key), where, r->st};
    double partial = 1;
    rope->theta = 10000;
    if (json_real(r->json, r->where, "rope_theta", 1e-3, 1e15, &rope->theta, r->st) ||
        json_real(r->json, r->where, "partial_rotary_factor", 0, 1, &partial, r->st))
        return FAILED;
    if (json_has(r->json, key)) {
        const char *type = "default";
        for (const cJSON *e = scaling.json->child; e; e = e->next)
            if (cJSON_IsObject(e))
                return status_fail(r->st, "%s: one rotary embedding for all layers expected",
                                   where);
        if (json_text(scaling.json, where, "type", &type, r->st) ||
            json_text(scaling.json, where, "rope_type", &type, r->st) ||
            json_real(scaling.json, where, "rope_theta", 1e-3, 1e15, &rope->theta, r->st) ||
            json_real(scaling.json, where, "partial_rotary_factor", 0, 1, &partial, r->st))
            return FAILED;
        reader at = {scaling.json, where, r->st};
        int kind = choose(&at, "rope_type", type, kinds, 3, sizeof *kinds);
        if (kind < 0)
            return FAILED;
        rope->kind = (rope_kind)kind;
        if (rope->kind != ROPE_DEFAULT && !json_has(scaling.json, "factor"))
            return status_fail(r->st, "%s: \"factor\": absent, but rope_type %s needs it", where,
                               type);
        if (rope->kind != ROPE_DEFAULT &&
            json_real(scaling.json, where, "factor", 1e-3, 1e6, &rope->factor, r->st))
            return FAILED;
        if (rope->kind == ROPE_LLAMA3 && read_llama3_rope(&scaling, rope))
            return FAILED;
    }
    if (partial != 1)
        return status_fail(r->st, "%s: \"partial_rotary_factor\": %g, expected 1 in this family",
                           r->where, partial);
    return DONE;
}

/* ---- depth routing ---- */

static int read_routing_heads(const reader *r, size_t said, model_config *c) {
    size_t heads = 0;
    if (json_size(r->json, r->where, "attnres_num_heads", 1, WIDTH_MAX, &heads, r->st))
        return FAILED;
    if (!modes[c->mode].multi_head) {
        if (said > 1)
            return status_fail(r->st,
                               "%s: mode %s has one routing head, but --routing-heads says "
                               "%zu",
                               r->where, mode_name(c->mode), said);
        if (heads > 1)
            log_warn("%s: \"attnres_num_heads\": %zu has no effect in mode %s, which has one "
                     "routing head",
                     r->where, heads, mode_name(c->mode));
        return DONE;
    }
    if (heads == 0 && said == 0)
        return status_fail(r->st,
                           "%s: \"attnres_num_heads\": absent, but mode %s needs it and "
                           "weights do not tell; say --routing-heads N",
                           r->where, mode_name(c->mode));
    if (heads && said && heads != said)
        return status_fail(r->st,
                           "%s: \"attnres_num_heads\": found %zu, but --routing-heads says "
                           "%zu",
                           r->where, heads, said);
    c->routing_heads = heads ? heads : said;
    if (c->width % c->routing_heads != 0)
        return status_fail(r->st, "%s: \"%s\": %zu routing heads do not divide hidden_size %zu",
                           r->where, heads ? "attnres_num_heads" : "--routing-heads",
                           c->routing_heads, c->width);
    return DONE;
}

static int read_blocks(const reader *r, model_config *c) {
    if (!mode_is_block(c->mode) && c->mode != MODE_DELTA_BLOCK && c->mode != MODE_DELTA_MH)
        return DONE;
    c->blocks_asked = BLOCKS_DEFAULT;
    c->blocks_defaulted = !json_has(r->json, "attnres_num_blocks");
    if (json_size(r->json, r->where, "attnres_num_blocks", 1, BLOCKS_MAX, &c->blocks_asked, r->st))
        return FAILED;
    if (c->blocks_defaulted)
        log_note("%s: \"attnres_num_blocks\": absent, %d taken", r->where, BLOCKS_DEFAULT);
    c->layers_per_block = (c->layers + c->blocks_asked - 1) / c->blocks_asked;
    c->blocks_formed = (c->layers + c->layers_per_block - 1) / c->layers_per_block;
    return DONE;
}

static void warn_unknown_keys(const reader *r) {
    for (const cJSON *e = r->json->child; e; e = e->next) {
        bool known = strncmp(e->string, "attnres_", 8) != 0;
        for (size_t i = 0; i < ATTNRES_KEYS && !known; i++)
            known = strcmp(e->string, attnres_keys[i]) == 0;
        if (!known)
            log_warn("%s: \"%.64s\": not known, ignored", r->where, e->string);
    }
}

static int read_routing(const reader *r, bool routed, size_t said, model_config *c) {
    const char *name = NULL, *gate_name = "bias";
    bool null_source = false;
    c->mode = MODE_NONE;
    c->routing_heads = 1;
    if (json_text(r->json, r->where, "attnres_mode", &name, r->st))
        return FAILED;
    if (!routed && name && strcmp(name, "none") != 0)
        return status_fail(r->st,
                           "%s: \"attnres_mode\": found \"%.64s\", but model_type \"%s\" is "
                           "a standard family; %s",
                           r->where, name, c->model_type, config_known_rows());
    if (routed) {
        int mode = choose(r, "attnres_mode", name, &modes[0].name, MODES, sizeof *modes);
        if (mode < 0)
            return FAILED;
        c->mode = (residual_mode)mode;
        warn_unknown_keys(r);
    }
    if (c->mode == MODE_NONE) {
        if (said > 1)
            return status_fail(r->st,
                               "%s: no routing heads in a standard model, but "
                               "--routing-heads says %zu",
                               r->where, said);
        return DONE;
    }
    if (read_routing_heads(r, said, c) || read_blocks(r, c) ||
        json_text(r->json, r->where, "attnres_gate_type", &gate_name, r->st) ||
        json_bool(r->json, r->where, "attnres_use_null_source", &null_source, r->st))
        return FAILED;
    int gate = choose(r, "attnres_gate_type", gate_name, &gates[0].name, GATES, sizeof *gates);
    if (gate < 0)
        return FAILED;
    c->gate = gates[gate].gate;
    c->null_source = c->mode == MODE_DELTA_MH || (mode_is_delta(c->mode) && null_source);
    if (null_source && !c->null_source)
        log_warn("%s: \"attnres_use_null_source\": no effect in mode %s", r->where,
                 mode_name(c->mode));
    c->final_site = mode_is_full(c->mode) || mode_is_block(c->mode);
    return DONE;
}

/* ---- the whole ---- */

static int read_model(const reader *r, size_t routing_heads, model_config *config) {
    bool routed = false;
    if (!cJSON_IsObject(r->json))
        return status_fail(r->st, "%s: a JSON object expected", r->where);
    if (read_family(r, config, &routed) || read_sizes(r, config) || read_switches(r, config) ||
        refuse_sliding_window(r, config) || read_rope(r, &config->rope) ||
        read_routing(r, routed, routing_heads, config))
        return FAILED;
    return DONE;
}

/* Index of a sublayer by its name, or -1. */
static long sublayer_index(const char *name, size_t layers) {
    for (size_t i = 0; i < 2 * layers; i++) {
        char own[32];
        snprintf(own, sizeof own, "L%zu.%s", i / 2, i % 2 ? "mlp" : "attn");
        if (strcmp(own, name) == 0)
            return (long)i;
    }
    return -1;
}

/* A model of another type, without some of its sublayers. */
static int read_pruned(const reader *r, size_t routing_heads, model_config *config) {
    const cJSON *parent = cJSON_GetObjectItemCaseSensitive(r->json, "parent_config");
    const cJSON *kept = cJSON_GetObjectItemCaseSensitive(r->json, "kept");
    const char *how = NULL;
    char where[1024];
    snprintf(where, sizeof where, "%s: parent_config", r->where);
    const reader whole = {parent, where, r->st};
    if (!cJSON_IsObject(parent))
        return status_fail(r->st, "%s: absent or no object, expected the whole model's config.json",
                           where);
    if (!cJSON_IsArray(kept) || !kept->child)
        return status_fail(r->st, "%s: \"kept\": absent or empty, expected names of sublayers",
                           r->where);
    if (read_model(&whole, routing_heads, config) ||
        json_text(r->json, r->where, "removal", &how, r->st))
        return FAILED;
    const int chosen = choose(r, "removal", how, removals, 2, sizeof *removals);
    if (chosen < 0)
        return FAILED;
    config->pruned = true;
    config->removal = (removal)chosen;
    for (size_t i = 0; i < 2 * config->layers; i++)
        config->removed[i] = true;
    for (const cJSON *e = kept->child; e; e = e->next) {
        const char *name = cJSON_GetStringValue(e);
        const long index = name ? sublayer_index(name, config->layers) : -1;
        if (index < 0 || !config->removed[index])
            return status_fail(r->st,
                               "%s: \"kept\": found \"%.64s\"%s, expected sublayers L0.attn to "
                               "L%zu.mlp, each once",
                               r->where, name ? name : "?", index < 0 ? "" : " twice",
                               config->layers - 1);
        config->removed[index] = false;
    }
    return DONE;
}

/* ---- entry points ---- */

int config_parse(const char *text, size_t bytes, const char *where, size_t routing_heads,
                 model_config *config, status *st) {
    cJSON *json = NULL;
    if (json_parse(text, bytes, where, &json, st))
        return FAILED;
    *config = (model_config){0};
    const reader r = {json, where, st};
    const char *type = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "model_type"));
    const bool pruned = type && strcmp(type, "fathom_pruned") == 0;
    const int rc =
        pruned ? read_pruned(&r, routing_heads, config) : read_model(&r, routing_heads, config);
    cJSON_Delete(json);
    return rc;
}

int config_read(const char *dir, size_t routing_heads, model_config *config, char **text,
                status *st) {
    char *read = NULL, path[4096];
    size_t bytes;
    if (text)
        *text = NULL;
    if ((size_t)snprintf(path, sizeof path, "%s/config.json", dir) >= sizeof path)
        return status_fail(st, "%.100s…: path too long", dir);
    if (text_read(path, CONFIG_BYTES_MAX, &read, &bytes, st))
        return FAILED;
    int rc = config_parse(read, bytes, path, routing_heads, config, st);
    char *whole = rc == DONE && text ? realloc(read, bytes + 1) : NULL;
    if (whole)
        whole[bytes] = '\0';
    else
        free(read);
    if (rc == DONE && text && !whole)
        rc = status_fail(st, "%s: out of memory", path);
    if (text)
        *text = whole;
    return rc;
}
