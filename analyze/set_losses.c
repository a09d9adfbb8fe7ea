#include "analyze/set_losses.h"

#include "analyze/prune_units.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "drop_source L1+L3.mlp". Freed by the caller; NULL without memory. */
static char *name_of(const set_losses *l, const bool *set, status *st) {
    const model_config *config = model_configuration(experiment_model(l->e));
    char *units = units_text(config, set, st);
    const size_t room = units ? strlen(units) + 32 : 0;
    char *name = units ? mem_array(room, 1, "a name", st) : NULL;
    if (name)
        snprintf(name, room, "%s %s", removal_name(l->removal), units);
    free(units);
    return name;
}

static int make_variant(const set_losses *l, const bool *set, char **name, depth_program **program,
                        status *st) {
    const removed_set removed = {set, l->removal};
    if (!(*name = name_of(l, set, st)))
        return FAILED;
    return depth_program_build(model_configuration(experiment_model(l->e)), set ? &removed : NULL,
                               program, st);
}

int set_losses_find(const set_losses *l, size_t text, const bool *base, const bool *const *set,
                    size_t count, status *st) {
    char **name = mem_array(count + 1, sizeof *name, "sets", st);
    depth_program **program = mem_array(count + 1, sizeof *program, "sets", st);
    variant *variants = mem_array(count + 1, sizeof *variants, "sets", st); /* the base first */
    int rc = name && program && variants ? DONE : FAILED;
    for (size_t i = 0; !rc && i <= count; i++) {
        rc = make_variant(l, i ? set[i - 1] : base, &name[i], &program[i], st);
        variants[i] = (variant){.name = name[i], .program = program[i]};
    }
    if (!rc)
        rc = experiment_run(l->e, &l->text[text], variants, variants + 1, count, NULL, st);
    for (size_t i = 0; name && program && i <= count; i++) {
        free(name[i]);
        depth_program_free(program[i]);
    }
    free(name);
    free(program);
    free(variants);
    return rc;
}

const double *set_losses_of(const set_losses *l, size_t text, const bool *set, status *st) {
    char *name = name_of(l, set, st);
    const variant_scores *s = name ? experiment_scores(l->e, &l->text[text], name) : NULL;
    if (name && !s)
        status_fail(st, "%s: its losses were not computed", name);
    free(name);
    return s ? s->loss + experiment_first(l->e, &l->text[text]) : NULL;
}
