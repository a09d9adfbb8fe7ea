#include "analyze/prune_units.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const kind_names[UNIT_KINDS] = {"layer", "attn", "mlp"};

const char *unit_kind_name(unit_kind kind) {
    return kind_names[kind];
}

unit_text unit_name(unit_kind kind, size_t layer) {
    unit_text name;
    snprintf(name.text, sizeof name.text, kind == UNIT_LAYER ? "L%zu" : "L%zu.%s", layer,
             kind_names[kind]);
    return name;
}

static bool has_attention(unit_kind kind) {
    return kind != UNIT_MLP;
}

static bool has_mlp(unit_kind kind) {
    return kind != UNIT_ATTN;
}

bool unit_any(unit_kind kind, size_t layer, const bool *sublayer) {
    return (has_attention(kind) && sublayer[2 * layer]) ||
           (has_mlp(kind) && sublayer[2 * layer + 1]);
}

bool unit_exists(const model_config *config, unit_kind kind, size_t layer) {
    return (has_attention(kind) && !config->removed[2 * layer]) ||
           (has_mlp(kind) && !config->removed[2 * layer + 1]);
}

void unit_mark(unit_kind kind, size_t layer, bool *sublayer) {
    if (has_attention(kind))
        sublayer[2 * layer] = true;
    if (has_mlp(kind))
        sublayer[2 * layer + 1] = true;
}

/* The error for an item that fits no unit. */
static int no_unit(const char *item, const char *option, const model_config *config, status *st) {
    size_t count = 0, all = UNIT_KINDS * config->layers;
    unit_text *text = mem_array(all, sizeof *text, "units", st);
    const char **name = mem_array(all, sizeof *name, "units", st);
    if (text && name) {
        for (size_t l = 0; l < config->layers; l++)
            for (unit_kind kind = 0; kind < UNIT_KINDS; kind++)
                if (unit_exists(config, kind, l)) {
                    text[count] = unit_name(kind, l);
                    name[count] = text[count].text;
                    count++;
                }
        int near = nearest_name(item, name, count);
        status_fail(st,
                    "%s %s: no such unit in the model%s%s; expected names such as L0, L0.attn, "
                    "L0.mlp up to L%zu, or a glob such as 'L*.attn'",
                    option, item, near >= 0 ? "; the nearest is " : "", near >= 0 ? name[near] : "",
                    config->layers - 1);
    }
    free(text);
    free(name);
    return FAILED;
}

int units_parse(const option_list *items, const char *option, const model_config *config,
                bool *sublayer, status *st) {
    for (size_t i = 0; i < items->count; i++) {
        bool found = false;
        for (size_t l = 0; l < config->layers; l++)
            for (unit_kind kind = 0; kind < UNIT_KINDS; kind++) {
                if (!unit_exists(config, kind, l) ||
                    fnmatch(items->item[i], unit_name(kind, l).text, 0) != 0)
                    continue;
                unit_mark(kind, l, sublayer);
                found = true;
            }
        if (!found)
            return no_unit(items->item[i], option, config, st);
    }
    return DONE;
}

char *units_text(const model_config *config, const bool *sublayer, status *st) {
    char *text = mem_array(2 * config->layers + 1, DEPTH_NAME_ROOM, "a list of units", st);
    size_t used = 0;
    if (!text)
        return NULL;
    for (size_t l = 0; l < config->layers; l++) {
        bool attention = sublayer[2 * l] && !config->removed[2 * l];
        bool mlp = sublayer[2 * l + 1] && !config->removed[2 * l + 1];
        if (!attention && !mlp)
            continue;
        unit_kind kind = attention && mlp ? UNIT_LAYER : attention ? UNIT_ATTN : UNIT_MLP;
        used += (size_t)sprintf(text + used, "%s%s", used ? "+" : "", unit_name(kind, l).text);
    }
    if (!used)
        strcpy(text, "-");
    return text;
}

unit_cost units_cost(const model *m, const bool *sublayer, double length) {
    const model_config *c = model_configuration(m);
    const double width = (double)c->width, inner = (double)(c->query_heads * c->head_dim);
    const double outer = (double)(c->kv_heads * c->head_dim), keys = (length + 1) / 2;
    unit_cost cost = {0, 0};
    for (size_t i = 0; i < model_params(m); i++) {
        const model_param *p = model_param_at(m, i);
        const long own = tensor_sublayer(p->name, NULL);
        if (own >= 0 && sublayer[own])
            cost.parameters += (double)(p->rows * p->columns);
    }
    for (size_t i = 0; i < 2 * c->layers; i++) {
        if (!sublayer[i] || c->removed[i])
            continue;
        cost.flops += i % 2 ? 2 * 3 * width * (double)c->mlp_width
                            : 2 * (2 * inner + 2 * outer) * width + 2 * 2 * inner * keys;
    }
    return cost;
}

unit_cost model_cost(const model *m, double length) {
    const model_config *c = model_configuration(m);
    bool every[2 * CONFIG_LAYERS_MAX];
    memset(every, true, sizeof every);
    unit_cost cost = units_cost(m, every, length);
    cost.parameters = (double)model_parameters(m);
    cost.flops += 2 * (double)c->width * (double)c->vocabulary;
    return cost;
}
