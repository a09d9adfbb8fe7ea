/* ablation_sweep.h - one edit over choices of sources and of sites: section ABL. */
#ifndef FATHOM_ABLATION_SWEEP_H
#define FATHOM_ABLATION_SWEEP_H

#include "analyze/mass_importance.h"

typedef struct sweep_options {
    const option_list *sites, *families, *labels; /* empty: all kinds of site, all families */
    int third;                                    /* -1: any */
    const bool *head;                             /* [heads], or NULL: all */
} sweep_options;

typedef struct sweep_cell {
    const source_choice *sources;
    const site_choice *sites;
    size_t index; /* of its intervention */
    effect effect;
} sweep_cell;

typedef struct sweep {
    source_choice *sources; /* [source_choices] */
    site_choice *sites;     /* [site_choices] */
    size_t source_choices, site_choices;
    sweep_cell *cell; /* [cells] those that have something to edit */
    size_t cells;
    bool chosen; /* sites were given, not swept */
} sweep;

/* Adds every family (or the given families and labels, each by itself) at every kind of site and
 * depth third, at `final` and everywhere (or at the given sites) to `a`; before ablation_run. Fails
 * where nothing is there to be edited. Cleared with sweep_clear, after a failure too; outlives `a`.
 */
int sweep_add(ablation *a, const depth_program *p, const edit_choice *edit,
              const sweep_options *options, sweep *s, status *st) MUST_USE;
void sweep_clear(sweep *s);

/* Section ABL; fills the cells' effects. */
int sweep_write(FILE *out, sweep *s, const ablation *a, const bootstrap *b, double equiv,
                double level, status *st) MUST_USE;

/* Section RTE: routes of lift above 1 without an effect, and those undecided. NULL: none. */
void sweep_write_routes(FILE *out, const sweep *s, const routes *r);

#endif
