/* prune_units.h - what can be removed: layers, attentions, MLPs; their names and what they cost. */
#ifndef FATHOM_PRUNE_UNITS_H
#define FATHOM_PRUNE_UNITS_H

#include "runtime/base/options.h"
#include "runtime/depth_program.h"
#include "runtime/model.h"

typedef enum unit_kind { UNIT_LAYER, UNIT_ATTN, UNIT_MLP, UNIT_KINDS } unit_kind;

const char *unit_kind_name(unit_kind kind); /* "layer", "attn", "mlp" */

typedef struct unit_text {
    char text[DEPTH_NAME_ROOM]; /* "L3", "L3.attn", "L3.mlp" */
} unit_text;
unit_text unit_name(unit_kind kind, size_t layer);

/* Whether a sublayer of the unit is marked in `sublayer` [2 * layers], or sublayers of it are in
 * the model at all. */
bool unit_any(unit_kind kind, size_t layer, const bool *sublayer);
bool unit_exists(const model_config *config, unit_kind kind, size_t layer);
/* Marks the unit's sublayers. */
void unit_mark(unit_kind kind, size_t layer, bool *sublayer);

/* Marks the sublayers of every unit that an item names: a name or a glob such as 'L*.attn'.
 * `option` opens error texts. An item that names no unit of the model is an error with the nearest
 * name. */
int units_parse(const option_list *items, const char *option, const model_config *config,
                bool *sublayer, status *st) MUST_USE;

/* The set as names joined by "+", whole layers as one; "-" where it is empty. Sublayers that the
 * configuration lacks are not named. Freed by the caller; NULL with `st` filled without memory. */
char *units_text(const model_config *config, const bool *sublayer, status *st) MUST_USE;

/* What runs cost: scalars of the tensors that only these sublayers use, routers included, and
 * floating-point operations a token of their matrix products (a multiplication and an addition are
 * two), attention over a causal context of `length` tokens on average over its positions. The
 * arithmetic of norms and of depth routing is not counted. */
typedef struct unit_cost {
    double parameters, flops;
} unit_cost;
unit_cost units_cost(const model *m, const bool *sublayer, double length);
/* The whole model's, embedding and output head included. */
unit_cost model_cost(const model *m, double length);

#endif
