/* model.c - opening and closing a model, and its public face. */
#include "runtime/model.h"

#include "runtime/base/log.h"
#include "runtime/model_load.h"

#include <stdlib.h>
#include <string.h>

/* Rows of the rotary tables where the caller does not say: some configurations name millions. */
enum { ROPE_ROWS_DEFAULT = 1 << 17 };

static int open_parts(model *m, const char *dir, const model_options *options, status *st) {
    m->path = mem_text(dir, st);
    if (!m->path || config_read(dir, options->routing_heads, &m->config, &m->config_text, st) ||
        checkpoint_open(dir, &m->weights_file, st) || model_match(m, st) ||
        model_settle_head(m, st))
        return FAILED;
    if (options->describe)
        return DONE;
    m->weights.rope_positions = options->positions ? options->positions : m->config.positions;
    if (!options->positions && m->weights.rope_positions > ROPE_ROWS_DEFAULT)
        m->weights.rope_positions = ROPE_ROWS_DEFAULT;
    const backend_options device = {options->threads, options->device, options->dtype};
    if (kernels_open(&device, m->parameters, &m->k, &m->device, st))
        return FAILED;
    return model_read(m, st);
}

int model_open(const char *dir, const model_options *options, model **out, status *st) {
    *out = NULL;
    model *m = mem_array(1, sizeof *m, "a model", st);
    if (!m)
        return FAILED;
    if (open_parts(m, dir, options, st)) {
        model_close(m);
        return FAILED;
    }
    *out = m;
    return DONE;
}

void model_close(model *m) {
    if (!m)
        return;
    for (size_t i = 0; i < m->owned_count; i++)
        m->k->buffer_free(m->device, m->owned[i]);
    if (m->device)
        m->k->close(m->device);
    checkpoint_close(m->weights_file);
    free(m->owned);
    free(m->wanted);
    free(m->param);
    free(m->weights.layer);
    free(m->config_text);
    free(m->path);
    free(m);
}

const model_config *model_configuration(const model *m) {
    return &m->config;
}

const model_weights *model_tensors(const model *m) {
    return &m->weights;
}

const site_weights *model_site(const model *m, size_t index) {
    if (index == 2 * m->config.layers)
        return &m->weights.final_site;
    const layer_weights *layer = &m->weights.layer[index / 2];
    return index % 2 == 0 ? &layer->attn_site : &layer->mlp_site;
}

const kernels *model_kernels(const model *m) {
    return m->k;
}

backend *model_backend(const model *m) {
    return m->device;
}

const char *model_path(const model *m) {
    return m->path;
}

const char *model_config_text(const model *m) {
    return m->config_text;
}

const checkpoint *model_checkpoint(const model *m) {
    return m->weights_file;
}

const char *model_weights_dtype(const model *m) {
    return m->dtype;
}

const char *model_head_text(const model *m) {
    return m->head_text;
}

size_t model_params(const model *m) {
    return m->params;
}

const model_param *model_param_at(const model *m, size_t index) {
    return &m->param[index];
}

size_t model_parameters(const model *m) {
    return m->parameters;
}
