#include "analyze/interventions.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool chosen(const source_choice *choice, const depth_program *p, size_t site,
                   size_t source) {
    if (choice->label[p->label[p->offset[site] + source]])
        return true;
    for (int f = 0; f < FAMILIES; f++)
        if (choice->family[f] && source_in_family(p, site, source, (source_family)f))
            return true;
    return false;
}

static size_t list_sources(const source_choice *choice, const depth_program *p, size_t site,
                           int *position) {
    size_t count = 0;
    for (size_t s = 0; s < (size_t)p->plan.site[site].sources; s++)
        if (chosen(choice, p, site, s))
            position[count++] = (int)s;
    return count;
}

/* The edit of one site; false where the site has nothing that it asks for. */
static bool site_edit(const depth_program *p, const intervention *i, size_t site,
                      const edit_means *means, int *position, float *mean, depth_edit *edit) {
    const size_t width = p->plan.width;
    *edit = (depth_edit){.kind = i->edit->kind,
                         .head = i->head,
                         .source = position,
                         .scale = i->edit->scale,
                         .weights = means->weights ? means->weights[site] : NULL};
    if (edit_takes_sources(edit->kind)) {
        edit->sources = list_sources(i->sources, p, site, position);
        if (edit->sources == 0)
            return false;
    }
    if (edit->kind == EDIT_SWAP) {
        int other[2];
        for (size_t k = 0; k < 2; k++) {
            if (list_sources(&i->edit->swap[k], p, site, position) != 1)
                return false;
            other[k] = position[0];
        }
        memcpy(position, other, sizeof other);
        edit->sources = 2;
    }
    if (edit->kind == EDIT_MEAN_VALUE) {
        for (size_t k = 0; k < edit->sources; k++)
            memcpy(mean + k * width,
                   means->value + (size_t)p->plan.site[site].source[position[k]] * width,
                   width * sizeof *mean);
        edit->mean = mean;
    }
    return true;
}

static int make_name(intervention *i, const frozen_weights *frozen, size_t heads, status *st) {
    char text[512], head[256] = "";
    size_t used = 0;
    for (size_t h = 0; i->head && h < heads; h++)
        if (i->head[h] && used < sizeof head)
            used += (size_t)snprintf(head + used, sizeof head - used, "%s%zu",
                                     used ? "," : ", heads ", h);
    char third[32] = "";
    if (i->sites->third >= 0)
        snprintf(third, sizeof third, ", third %d", i->sites->third);
    snprintf(text, sizeof text, "%s %s at %s%s%s%s", i->edit->text, i->sources->text,
             i->sites->text, third, head, frozen ? ", frozen" : "");
    return (i->name = mem_text(text, st)) ? DONE : FAILED;
}

/* With frozen weights a site runs on given ones, edited on the host, from the first edit on. */
static void freeze(intervention *i, const depth_program *p, const frozen_weights *frozen) {
    for (size_t site = i->first; site < p->plan.sites; site++) {
        if (p->plan.site[site].sources < 1 || (!i->at[site] && p->plan.site[site].sources < 2))
            continue;
        depth_edit *run = &i->run[site];
        if (!i->at[site] || run->kind != EDIT_MEAN_VALUE)
            *run = (depth_edit){.kind = EDIT_GIVEN};
        run->given = frozen->given[site];
        i->at[site] = run;
    }
}

/* Mean vectors of a site's edit, of all heads given; the heads that are not edited keep theirs by
 * their own softmax, which frozen weights cannot see: refused. */
static int check_frozen(const intervention *i, const frozen_weights *frozen, status *st) {
    if (frozen && i->head && i->edit->kind == EDIT_MEAN_VALUE)
        return status_fail(st, "--frozen mean_value: not of some heads only");
    return DONE;
}

int intervention_make(const depth_program *p, const edit_choice *edit, const source_choice *sources,
                      const site_choice *sites, const bool *head, const edit_means *means,
                      const frozen_weights *frozen, intervention *out, status *st) {
    const size_t count = p->plan.sites, heads = p->plan.heads;
    *out = (intervention){
        .edit = edit, .sources = sources, .sites = sites, .head = head, .first = count};
    intervention *i = out;
    i->own = mem_array(count, sizeof *i->own, "edits", st);
    i->run = mem_array(count, sizeof *i->run, "edits", st);
    i->at = mem_array(count, sizeof *i->at, "edits", st);
    i->position = mem_array(p->offset[count] + 2 * count, sizeof *i->position, "edits", st);
    size_t vectors = edit->kind == EDIT_MEAN_VALUE ? p->offset[count] : 0;
    i->mean = mem_array(vectors, p->plan.width * sizeof *i->mean, "mean vectors", st);
    if (!i->own || !i->run || !i->at || !i->position || !i->mean ||
        make_name(i, frozen, heads, st) || check_frozen(i, frozen, st))
        return FAILED;
    double share = 0;
    for (size_t site = 0; site < count; site++) {
        const size_t n = (size_t)p->plan.site[site].sources;
        if (!sites->site[site] || n == 0)
            continue;
        int *position = i->position + p->offset[site] + 2 * site;
        float *mean = vectors ? i->mean + p->offset[site] * p->plan.width : NULL;
        if (!site_edit(p, i, site, means, position, mean, &i->own[site])) {
            i->own[site] = (depth_edit){0};
            continue;
        }
        i->asked++;
        i->skipped += depth_edit_empties(&i->own[site], n);
        if (!depth_edit_changes(&i->own[site], heads, n))
            continue;
        i->run[site] = i->own[site];
        i->at[site] = &i->run[site];
        i->first = i->edited ? i->first : site;
        i->edited++;
        share += (double)i->own[site].sources / (double)n;
    }
    i->share = i->edited && edit_takes_sources(edit->kind) ? share / (double)i->edited : NAN;
    if (frozen && i->edited)
        freeze(i, p, frozen);
    return depth_program_edit(p, i->at, 0, &i->program, st);
}

void intervention_clear(intervention *i) {
    free(i->name);
    free(i->own);
    free(i->run);
    free((void *)i->at);
    free(i->position);
    free(i->mean);
    depth_program_free(i->program);
    *i = (intervention){0};
}

static bool edits_site(const intervention *i, size_t site, size_t heads, size_t sources) {
    return i->sites->site[site] && i->own[site].source &&
           depth_edit_changes(&i->own[site], heads, sources) && i->program;
}

void intervention_apply(const intervention *i, size_t site, size_t heads, size_t sources,
                        float *weight, float *spare) {
    if (!edits_site(i, site, heads, sources))
        return;
    if (i->own[site].kind == EDIT_QUERY_SCALE)
        depth_edit_scaled(&i->own[site], heads, sources, weight);
    else
        depth_edit_weights(&i->own[site], heads, sources, NULL, weight, spare);
}

double intervention_moved(const intervention *i, size_t site, size_t heads, size_t sources,
                          const float *weight, float *scratch) {
    const depth_edit *edit = &i->own[site];
    double moved = 0;
    size_t edited = 0;
    if (!edits_site(i, site, heads, sources))
        return 0;
    memcpy(scratch, weight, heads * sources * sizeof *weight);
    intervention_apply(i, site, heads, sources, scratch, scratch + heads * sources);
    for (size_t h = 0; h < heads; h++) {
        const float *before = weight + h * sources, *after = scratch + h * sources;
        if (!depth_edit_of_head(edit, h))
            continue;
        edited++;
        for (size_t k = 0; edit->kind == EDIT_MEAN_VALUE && k < edit->sources; k++)
            moved += (double)before[edit->source[k]];
        for (size_t s = 0; edit->kind != EDIT_MEAN_VALUE && s < sources; s++)
            if (!(before[s] <= after[s])) /* NaN counts */
                moved += (double)before[s] - (double)after[s];
    }
    return moved / (double)edited;
}
