/* depth_plan.c - what every backend asks of a plan: whether it holds together, and who uses what.
 */
#include "kernels/depth_plan.h"

#include <stdlib.h>

static int check_value(const depth_plan *plan, size_t v, status *st) {
    const depth_value *value = &plan->value[v];
    const bool stored = value->kind != VALUE_NULL && value->kind != VALUE_ZERO;
    if (stored && (value->slot < 0 || (size_t)value->slot >= plan->slots))
        return status_fail(st, "depth plan: value %zu: slot %d of %zu", v, value->slot,
                           plan->slots);
    if ((value->kind == VALUE_ADD || value->kind == VALUE_SUB) &&
        (value->a < 0 || value->b < 0 || (size_t)value->a >= v || (size_t)value->b >= v))
        return status_fail(st, "depth plan: value %zu: operands %d and %d are not earlier", v,
                           value->a, value->b);
    if (value->kind == VALUE_NULL && (value->a < 0 || (size_t)value->a >= plan->sites))
        return status_fail(st, "depth plan: value %zu: null source of site %d of %zu", v, value->a,
                           plan->sites);
    return DONE;
}

static int check_site(const depth_plan *plan, size_t s, status *st) {
    const depth_site *site = &plan->site[s];
    if (site->base != NO_VALUE && (site->base < 0 || (size_t)site->base >= plan->values))
        return status_fail(st, "depth plan: site %zu: base %d of %zu values", s, site->base,
                           plan->values);
    if (site->sources < 0)
        return status_fail(st, "depth plan: site %zu: %d sources", s, site->sources);
    for (int i = 0; i < site->sources; i++)
        if (site->source[i] < 0 || (size_t)site->source[i] >= plan->values)
            return status_fail(st, "depth plan: site %zu: source %d of %zu values", s,
                               site->source[i], plan->values);
    return DONE;
}

int depth_plan_check(const depth_plan *plan, status *st) {
    if (plan->width == 0 || plan->heads == 0 || plan->width % plan->heads)
        return status_fail(st, "depth plan: %zu routing heads do not divide the width %zu",
                           plan->heads, plan->width);
    for (size_t v = 0; v < plan->values; v++)
        if (check_value(plan, v, st))
            return FAILED;
    for (size_t s = 0; s < plan->sites; s++)
        if (check_site(plan, s, st))
            return FAILED;
    return DONE;
}

/* Enters a use where `at` says, or without `use` counts it there. */
static void note(value_use *use, size_t *at, int value, value_use entry) {
    if (use)
        use[at[value]] = entry;
    at[value]++;
}

static void list_uses(const depth_plan *plan, value_use *use, size_t *at) {
    for (size_t s = 0; s < plan->sites; s++) {
        const depth_site *site = &plan->site[s];
        if (site->base != NO_VALUE)
            note(use, at, site->base, (value_use){USE_BASE, s, 0});
        for (size_t i = 0; i < (size_t)site->sources; i++)
            note(use, at, site->source[i], (value_use){USE_SOURCE, s, i});
    }
    for (size_t v = 0; v < plan->values; v++) {
        const depth_value *value = &plan->value[v];
        if (value->kind != VALUE_ADD && value->kind != VALUE_SUB)
            continue;
        note(use, at, value->a, (value_use){USE_ADDED, v, 0});
        note(use, at, value->b,
             (value_use){value->kind == VALUE_ADD ? USE_ADDED : USE_SUBTRACTED, v, 0});
    }
}

int value_uses_init(value_uses *uses, const depth_plan *plan, status *st) {
    *uses = (value_uses){0};
    size_t *at = mem_array(plan->values, sizeof *at, "uses of depth values", st);
    uses->first = mem_array(plan->values + 1, sizeof *uses->first, "uses of depth values", st);
    if (at && uses->first) {
        list_uses(plan, NULL, at);
        for (size_t v = 0; v < plan->values; v++) {
            uses->first[v] = uses->total;
            uses->total += at[v];
            at[v] = uses->first[v];
        }
        uses->first[plan->values] = uses->total;
        uses->use = mem_array(uses->total, sizeof *uses->use, "uses of depth values", st);
        if (uses->use)
            list_uses(plan, uses->use, at);
    }
    free(at);
    return uses->use ? DONE : FAILED;
}

void value_uses_clear(value_uses *uses) {
    free(uses->use);
    free(uses->first);
    *uses = (value_uses){0};
}
