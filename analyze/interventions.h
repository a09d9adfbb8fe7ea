/* interventions.h - what `fathom ablate` edits: an edit, sources, sites, heads; compiled to a depth
 * program.
 *
 * Families of sources at a site: emb; null; newest, the last source unless that is emb or null;
 * history, all that are none of these; partial, a block's running sum; attn and mlp, outputs of
 * sublayers where each is a source of its own. A source can be in several: L3.mlp is in mlp and, at
 * L4.attn, in newest. Depth third of a site: 3 * layer / layers, rounded down; `final` has none.
 */
#ifndef FATHOM_INTERVENTIONS_H
#define FATHOM_INTERVENTIONS_H

#include "kernels/kernels.h"
#include "runtime/base/options.h"
#include "runtime/depth_edits.h"

typedef enum source_family {
    FAMILY_EMB,
    FAMILY_NULL,
    FAMILY_NEWEST,
    FAMILY_HISTORY,
    FAMILY_PARTIAL,
    FAMILY_ATTN,
    FAMILY_MLP,
    FAMILIES,
} source_family;
extern const char *const family_name[FAMILIES];

bool source_in_family(const depth_program *p, size_t site, size_t source, source_family family);
/* Whether any site of the program has a source of the family. */
bool program_has_family(const depth_program *p, source_family family);

/* Some sources: of any of these families or labels. */
typedef struct source_choice {
    const char *text; /* "emb", "attn+mlp", "L3.mlp"; "-": the edit has no sources */
    bool family[FAMILIES];
    bool *label; /* [program labels], owned */
} source_choice;

/* Some sites. */
typedef struct site_choice {
    char text[64]; /* "attn", "mlp", "final", "all", or the globs */
    int third;     /* 0, 1, 2; -1: any */
    bool *site;    /* [sites], owned */
} site_choice;

/* An edit as `--edit` names it. */
typedef struct edit_choice {
    const char *text; /* "mask", "query_scale=0.5", "swap=emb,newest" */
    edit_kind kind;
    float scale;           /* EDIT_QUERY_SCALE */
    char *swapped[2];      /* EDIT_SWAP: names of families or labels, owned */
    source_choice swap[2]; /* likewise, once edit_choice_bind knows the program */
} edit_choice;

/* mask, mask_raw, mean_value, uniform, token_mean, head_mean, query_scale=X, swap=A,B. An unknown
 * one names the nearest. Cleared with edit_choice_clear, after a failure too. */
int edit_choice_parse(const char *text, edit_choice *edit, status *st) MUST_USE;
/* Finds what a swap names in the program. */
int edit_choice_bind(edit_choice *edit, const depth_program *p, status *st) MUST_USE;
void edit_choice_clear(edit_choice *edit);
/* Whether it takes the sources of a source_choice. */
bool edit_takes_sources(edit_kind kind);

/* Names of families or labels joined with '+'. `families`, `labels`: which are allowed. Unknown
 * ones name the nearest and list what there is. Cleared with source_choice_clear. */
int source_choice_parse(const char *text, const depth_program *p, bool families, bool labels,
                        source_choice *choice, status *st) MUST_USE;
void source_choice_clear(source_choice *choice);

/* Sites that match any of the globs (none: all) and lie in `third` (-1: any). A glob that matches
 * no site names the nearest. Cleared with site_choice_clear. */
int site_choice_parse(const option_list *globs, int third, const depth_program *p,
                      site_choice *choice, status *st) MUST_USE;
/* `kind` "attn", "mlp", "final" or "all". */
int site_choice_kind(const char *kind, int third, const depth_program *p, site_choice *choice,
                     status *st) MUST_USE;
void site_choice_clear(site_choice *choice);

/* Means over all tokens of the unedited run that edits put in the place of what they replace. */
typedef struct edit_means {
    float **weights; /* [sites] of [heads, sources], or NULL */
    float *value;    /* [values, width], or NULL */
} edit_means;

/* Host and device copies of the unedited run's weights, for --frozen. */
typedef struct frozen_weights {
    buffer **given; /* [sites] */
    float **weight; /* [sites] of [rows, heads, sources] in host memory */
} frozen_weights;

typedef struct intervention {
    char *name; /* the key of its scores */
    const edit_choice *edit;
    const source_choice *sources;
    const site_choice *sites;
    const bool *head;      /* [heads] edited, or NULL: all */
    depth_edit *own;       /* [sites] as asked for, also where frozen weights stand in for it */
    depth_edit *run;       /* [sites] as they run */
    const depth_edit **at; /* [sites] into `run`, or NULL */
    int *position;         /* of sources, what `own` points to */
    float *mean;           /* mean vectors, what `own` points to */
    depth_program *program;
    size_t asked;   /* chosen sites that have what it asks for */
    size_t edited;  /* of these, sites that the edit changes */
    size_t skipped; /* sites that a mask would leave empty: not edited */
    size_t first;   /* site that is edited first */
    double share;   /* mean over edited sites of the part of the sources that is edited; NaN where
                       the edit takes no sources */
} intervention;

/* `name` is made from the choices, which must outlive it, as must `means` and `frozen` (NULL: later
 * sites route anew). Cleared with intervention_clear, after a failure too. */
int intervention_make(const depth_program *p, const edit_choice *edit, const source_choice *sources,
                      const site_choice *sites, const bool *head, const edit_means *means,
                      const frozen_weights *frozen, intervention *out, status *st) MUST_USE;
void intervention_clear(intervention *i);

/* What it would make of one token's weights at a site it edits, weight [heads, sources] in place;
 * `spare` [sources]. */
void intervention_apply(const intervention *i, size_t site, size_t heads, size_t sources,
                        float *weight, float *spare);
/* Weight moved at that token: mean over the edited heads of what the edit takes from sources (the
 * sum of max(0, w - w')), or of the weight on sources whose values it replaces. `scratch`
 * [heads + 1, sources]. */
double intervention_moved(const intervention *i, size_t site, size_t heads, size_t sources,
                          const float *weight, float *scratch);

#endif
