/* model_match.c - which tensors a configuration wants, and whether the checkpoint has them. */
#include "runtime/base/log.h"
#include "runtime/base/name_list.h"
#include "runtime/model_load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WANTED_PER_LAYER = 32, WANTED_BESIDE_LAYERS = 8 };

/* ---- the list, in order of use ---- */

static wanted *want(model *m, const char *kind, tensor_form form, size_t rows, size_t columns) {
    wanted *w = &m->wanted[m->params++];
    *w = (wanted){.kind = kind, .form = form, .rows = rows, .columns = columns};
    w->total = rows * columns;
    return w;
}

#define NAME(w, ...) ((void)snprintf((w)->name, sizeof(w)->name, __VA_ARGS__))

/* A tensor with its own buffer. */
static void want_own(model *m, buffer **memory, const char *kind, tensor_form form, size_t rows,
                     size_t columns, const char *name) {
    wanted *w = want(m, kind, form, rows, columns);
    w->memory = memory;
    NAME(w, "%s", name);
}

typedef struct fused_part {
    const char *name; /* below the layer: "self_attn.q_proj" */
    size_t rows;
} fused_part;

/* Several projections, one after the other in one buffer; `what`: "weight", or "bias" with one
 * column. */
static void want_fused(model *m, size_t layer, buffer **memory, const char *kind,
                       const fused_part *part, size_t parts, size_t columns, const char *what) {
    tensor_form form = strcmp(what, "bias") == 0 ? FORM_VECTOR : FORM_MATRIX;
    size_t total = 0, offset = 0;
    for (size_t i = 0; i < parts; i++)
        total += part[i].rows * columns;
    for (size_t i = 0; i < parts; i++) {
        wanted *w = want(m, kind, form, part[i].rows, columns);
        w->memory = memory;
        w->offset = offset;
        w->total = total;
        offset += part[i].rows * columns;
        NAME(w, "model.layers.%zu.%s.%s", layer, part[i].name, what);
    }
}

static void want_routing(model *m, const buffer **memory, tensor_form form, size_t rows,
                         size_t columns, const char *prefix, const char *name) {
    wanted *w = want(m, "router", form, rows, columns);
    w->routing = memory;
    NAME(w, "%s_%s", prefix, name);
}

/* `prefix`: "model.layers.3.attn" or "model.final". */
static void want_site(model *m, site_weights *site, const char *prefix, bool final) {
    const model_config *c = &m->config;
    char bias[80];
    want_routing(m, &site->query, FORM_MATRIX, 1, c->width, prefix, "res_proj.weight");
    want_routing(m, &site->gain, FORM_VECTOR, c->width, 1, prefix, "res_norm.weight");
    if (final)
        return;
    if (c->null_source)
        want_routing(m, &site->null_source, FORM_VECTOR, c->width, 1, prefix, "null_source");
    switch (c->gate) {
    case GATE_NONE:
        break;
    case GATE_ALPHA:
        want_routing(m, &site->gate, FORM_SCALAR, 1, 1, prefix, "res_alpha");
        break;
    case GATE_SIGMOID_SCALAR:
        want_routing(m, &site->gate, FORM_SCALAR, 1, 1, prefix, "res_gate_logit");
        break;
    case GATE_SIGMOID_VECTOR:
        want_routing(m, &site->gate, FORM_MATRIX, c->width, c->width, prefix,
                     "res_gate_proj.weight");
        snprintf(bias, sizeof bias, "%s_res_gate_proj.bias", prefix);
        if (checkpoint_find(m->weights_file, bias))
            want_routing(m, &site->gate_bias, FORM_VECTOR, c->width, 1, prefix,
                         "res_gate_proj.bias");
        break;
    }
}

static void want_attention(model *m, size_t i) {
    const model_config *c = &m->config;
    layer_weights *l = &m->weights.layer[i];
    size_t q = c->query_heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    const fused_part qkv[] = {
        {"self_attn.q_proj", q}, {"self_attn.k_proj", kv}, {"self_attn.v_proj", kv}};
    const fused_part out[] = {{"self_attn.o_proj", c->width}};
    char name[80];

    if (c->mode != MODE_NONE) {
        snprintf(name, sizeof name, "model.layers.%zu.attn", i);
        want_site(m, &l->attn_site, name, false);
    }
    snprintf(name, sizeof name, "model.layers.%zu.input_layernorm.weight", i);
    want_own(m, &l->attn_norm, "norm", FORM_VECTOR, c->width, 1, name);
    want_fused(m, i, &l->qkv, "attention", qkv, 3, c->width, "weight");
    if (c->qkv_bias)
        want_fused(m, i, &l->qkv_bias, "attention", qkv, 3, 1, "bias");
    if (c->head_norm) {
        snprintf(name, sizeof name, "model.layers.%zu.self_attn.q_norm.weight", i);
        want_own(m, &l->q_norm, "norm", FORM_VECTOR, c->head_dim, 1, name);
        snprintf(name, sizeof name, "model.layers.%zu.self_attn.k_norm.weight", i);
        want_own(m, &l->k_norm, "norm", FORM_VECTOR, c->head_dim, 1, name);
    }
    want_fused(m, i, &l->out, "attention", out, 1, q, "weight");
    if (c->out_bias)
        want_fused(m, i, &l->out_bias, "attention", out, 1, 1, "bias");
}

static void want_mlp(model *m, size_t i) {
    const model_config *c = &m->config;
    layer_weights *l = &m->weights.layer[i];
    const fused_part gate_up[] = {{"mlp.gate_proj", c->mlp_width}, {"mlp.up_proj", c->mlp_width}};
    const fused_part down[] = {{"mlp.down_proj", c->width}};
    char name[80];
    if (c->mode != MODE_NONE) {
        snprintf(name, sizeof name, "model.layers.%zu.mlp", i);
        want_site(m, &l->mlp_site, name, false);
    }
    snprintf(name, sizeof name, "model.layers.%zu.post_attention_layernorm.weight", i);
    want_own(m, &l->mlp_norm, "norm", FORM_VECTOR, c->width, 1, name);
    want_fused(m, i, &l->gate_up, "mlp", gate_up, 2, c->width, "weight");
    if (c->mlp_bias)
        want_fused(m, i, &l->gate_up_bias, "mlp", gate_up, 2, 1, "bias");
    want_fused(m, i, &l->down, "mlp", down, 1, c->mlp_width, "weight");
    if (c->mlp_bias)
        want_fused(m, i, &l->down_bias, "mlp", down, 1, 1, "bias");
}

static void want_all(model *m) {
    const model_config *c = &m->config;
    want_own(m, &m->weights.embedding, "embedding", FORM_MATRIX, c->vocabulary, c->width,
             "model.embed_tokens.weight");
    for (size_t i = 0; i < c->layers; i++) {
        if (!c->removed[2 * i])
            want_attention(m, i);
        if (!c->removed[2 * i + 1])
            want_mlp(m, i);
    }
    if (c->final_site)
        want_site(m, &m->weights.final_site, "model.final", true);
    want_own(m, &m->weights.norm, "norm", FORM_VECTOR, c->width, 1, "model.norm.weight");
    if (!c->tied && checkpoint_find(m->weights_file, "lm_head.weight"))
        want_own(m, &m->weights.head, "head", FORM_MATRIX, c->vocabulary, c->width,
                 "lm_head.weight");
}

long tensor_sublayer(const char *name, long *layer) {
    static const char *const parts[2][3] = {{"input_layernorm", "self_attn.", "attn_"},
                                            {"post_attention_layernorm", "mlp.", "mlp_"}};
    const char before[] = "model.layers.";
    char *rest = NULL;
    long number = -1;
    if (strncmp(name, before, sizeof before - 1) == 0)
        number = strtol(name + sizeof before - 1, &rest, 10);
    if (!rest || *rest != '.' || number < 0 || number >= CONFIG_LAYERS_MAX)
        number = -1;
    if (layer)
        *layer = number;
    for (long kind = 0; number >= 0 && kind < 2; kind++)
        for (size_t i = 0; i < 3; i++)
            if (strncmp(rest + 1, parts[kind][i], strlen(parts[kind][i])) == 0)
                return 2 * number + kind;
    return -1;
}

/* ---- the checkpoint against the list ---- */

static bool has_part(const char *name, const char *const *part, size_t parts) {
    for (size_t i = 0; i < parts; i++)
        if (strstr(name, part[i]))
            return true;
    return false;
}

static bool is_router(const char *name) {
    static const char *const parts[] = {
        "res_proj",     "res_norm",  "res_bias", "res_alpha", "res_gate",        "null_source",
        "pseudo_query", "final_res", "attn_res", "mlp_res",   "key_norm_weight", "attention_res_",
    };
    return has_part(name, parts, sizeof parts / sizeof *parts);
}

/* Dialects that need another reading of the same shapes are refused before anything else. */
static int refuse_dialects(const model *m, status *st) {
    static const struct {
        const char *part, *dialect;
    } rows[] = {
        {"_res_bias", "the wdlctc v1 layout (or a variant of it)"},
        {"pseudo_query", "the Megatron layout"},
        {"key_norm_weight", "the Megatron layout"},
        {"attention_res_", "the Kimi K3 layout"},
        {"output_attn_res_", "the Kimi K3 layout"},
        {"model.res_proj.weight", "the flash-linear-attention layout"},
    };
    const checkpoint *ck = m->weights_file;
    const char *dialect = NULL, *where = m->path;
    bool bias = false;
    name_list seen = {0};
    for (size_t i = 0; i < checkpoint_tensors(ck); i++) {
        const char *name = checkpoint_tensor(ck, i)->name;
        for (size_t d = 0; d < sizeof rows / sizeof *rows; d++) {
            if (!strstr(name, rows[d].part))
                continue;
            dialect = dialect ? dialect : rows[d].dialect;
            bias |= d == 0;
            where = checkpoint_file(ck, checkpoint_tensor(ck, i)->file);
            name_list_add(&seen, name);
            break;
        }
    }
    if (bias && checkpoint_find(ck, "model.final_res_proj.weight"))
        dialect = "the layout with *_res_bias and final_res_*, whose first block contains the "
                  "embedding";
    if (!dialect)
        return DONE;
    return status_fail(st, "%s: tensors of %s, which this version does not read: %s; %s", where,
                       dialect, name_list_text(&seen), config_known_rows());
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Tensors that no one wants: routers are an error, others are named and left aside. */
static int check_unexpected(const model *m, status *st) {
    const checkpoint *ck = m->weights_file;
    name_list routers = {0}, others = {0};
    const char *where = m->path;
    const char **name = mem_array(m->params, sizeof *name, "tensor names", st);
    if (!name)
        return FAILED;
    for (size_t i = 0; i < m->params; i++)
        name[i] = m->wanted[i].name;
    qsort(name, m->params, sizeof *name, compare_names);
    for (size_t i = 0; i < checkpoint_tensors(ck); i++) {
        const tensor_info *t = checkpoint_tensor(ck, i);
        if (bsearch(&t->name, name, m->params, sizeof *name, compare_names) ||
            strcmp(t->name, "lm_head.weight") == 0)
            continue;
        if (is_router(t->name) && routers.count == 0)
            where = checkpoint_file(ck, t->file);
        name_list_add(is_router(t->name) ? &routers : &others, t->name);
    }
    free(name);
    if (routers.count)
        return status_fail(st,
                           "%s: unexpected router tensors for model_type \"%s\", mode %s: %s; "
                           "ignoring them would change what is computed; %s",
                           where, m->config.model_type, mode_name(m->config.mode),
                           name_list_text(&routers), config_known_rows());
    if (others.count)
        log_detail("%s: tensors not used: %s", m->path, name_list_text(&others));
    return DONE;
}

static shape_text expected_shape(const wanted *w) {
    return shape_text_of(w->form == FORM_MATRIX   ? 2
                         : w->form == FORM_VECTOR ? 1
                                                  : 0,
                         (const size_t[]){w->rows, w->columns});
}

static int check_tensor(const model *m, const wanted *w, const tensor_info *t, status *st) {
    const char *where = checkpoint_file(m->weights_file, t->file);
    bool fits = false;
    switch (w->form) {
    case FORM_VECTOR:
        fits = t->rank == 1 && t->shape[0] == w->rows;
        break;
    case FORM_MATRIX:
        fits = t->rank == 2 && t->shape[0] == w->rows && t->shape[1] == w->columns;
        break;
    case FORM_SCALAR:
        fits = t->rank <= 1 && t->elements == 1;
        break;
    }
    if (!fits)
        return status_fail(st, "%s: %s: shape %s, expected %s", where, t->name,
                           shape_text_of(t->rank, t->shape).text, expected_shape(w).text);
    if (t->dtype != DTYPE_F32 && t->dtype != DTYPE_F16 && t->dtype != DTYPE_BF16)
        return status_fail(st, "%s: %s: dtype %s, expected F32, F16 or BF16", where, t->name,
                           t->dtype_text);
    return DONE;
}

static int check_wanted(const model *m, status *st) {
    name_list missing = {0};
    for (size_t i = 0; i < m->params; i++) {
        const tensor_info *t = checkpoint_find(m->weights_file, m->wanted[i].name);
        if (!t)
            name_list_add(&missing, m->wanted[i].name);
        else if (check_tensor(m, &m->wanted[i], t, st))
            return FAILED;
    }
    if (missing.count)
        return status_fail(st, "%s: missing tensors for model_type \"%s\", mode %s: %s", m->path,
                           m->config.model_type, mode_name(m->config.mode),
                           name_list_text(&missing));
    return DONE;
}

static void describe(model *m) {
    for (size_t i = 0; i < m->params; i++) {
        const wanted *w = &m->wanted[i];
        const tensor_info *t = checkpoint_find(m->weights_file, w->name);
        m->param[i] = (model_param){.name = w->name,
                                    .kind = w->kind,
                                    .rows = w->rows,
                                    .columns = w->columns,
                                    .offset = w->offset,
                                    .dtype = t->dtype_text};
        m->parameters += t->elements;
        bool same = i == 0 || strcmp(m->dtype, t->dtype_text) == 0;
        m->dtype = same ? t->dtype_text : "mixed";
    }
}

int model_match(model *m, status *st) {
    model_config *c = &m->config;
    if (refuse_dialects(m, st))
        return FAILED;
    if (mode_is_block(c->mode) &&
        !checkpoint_find(m->weights_file, "model.final_res_proj.weight") &&
        !checkpoint_find(m->weights_file, "model.final_res_norm.weight")) {
        c->final_site = false;
        log_note("%s: no model.final_res_*: the final norm reads the last partial sum", m->path);
    }
    m->weights.layer = mem_array(c->layers, sizeof *m->weights.layer, "the table of layers", st);
    m->wanted = mem_array(c->layers * WANTED_PER_LAYER + WANTED_BESIDE_LAYERS, sizeof *m->wanted,
                          "the table of tensors", st);
    if (!m->weights.layer || !m->wanted)
        return FAILED;
    want_all(m);
    m->param = mem_array(m->params, sizeof *m->param, "the table of parameters", st);
    if (!m->param || check_unexpected(m, st) || check_wanted(m, st))
        return FAILED;
    describe(m);
    return DONE;
}
