/* mass_importance.h - does a source that carries weight also matter: mass, contribution and what a
 * mask of it costs, side by side. */
#ifndef FATHOM_MASS_IMPORTANCE_H
#define FATHOM_MASS_IMPORTANCE_H

#include "analyze/ablation.h"

#include <stdio.h>

/* One source or family, masked at every site that has it. */
typedef struct route {
    source_choice choice;
    bool is_family;
    size_t index; /* of its intervention */
    effect effect;
} route;

typedef struct routes {
    route *list;
    size_t count;
    edit_choice mask;
    site_choice everywhere;
} routes;

/* Adds the masks of every label and every family to `a`; before ablation_run. Cleared with
 * routes_clear, after a failure too; outlives `a`. */
int routes_add(ablation *a, const depth_program *p, routes *r, status *st) MUST_USE;
void routes_clear(routes *r);

/* Sections IMP and AGR; fills the routes' effects. */
int routes_write(FILE *out, routes *r, const ablation *a, const experiment *e, const bootstrap *b,
                 double equiv, double level, status *st) MUST_USE;

#endif
