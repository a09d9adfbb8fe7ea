/* intervention_choices.c - what the command line says of an intervention: edit, sources, sites. */
#include "analyze/interventions.h"
#include "runtime/base/name_list.h"

#include <errno.h>
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const family_name[FAMILIES] = {"emb",     "null", "newest", "history",
                                           "partial", "attn", "mlp"};

bool source_in_family(const depth_program *p, size_t site, size_t source, source_family family) {
    const source_kind kind = p->kind[p->offset[site] + source];
    const bool last = source + 1 == (size_t)p->plan.site[site].sources;
    const bool plain = kind != SOURCE_EMB && kind != SOURCE_NULL;
    switch (family) {
    case FAMILY_EMB:
        return kind == SOURCE_EMB;
    case FAMILY_NULL:
        return kind == SOURCE_NULL;
    case FAMILY_NEWEST:
        return plain && last;
    case FAMILY_HISTORY:
        return plain && !last;
    case FAMILY_PARTIAL:
        return kind == SOURCE_PARTIAL;
    case FAMILY_ATTN:
        return kind == SOURCE_ATTN;
    case FAMILY_MLP:
        return kind == SOURCE_MLP;
    case FAMILIES:
        break;
    }
    return false;
}

bool program_has_family(const depth_program *p, source_family family) {
    for (size_t i = 0; i < p->plan.sites; i++)
        for (size_t s = 0; s < (size_t)p->plan.site[i].sources; s++)
            if (source_in_family(p, i, s, family))
                return true;
    return false;
}

/* "what 'text': why; did you mean 'near'? There is: a, b, …" */
static int unknown(const char *what, const char *text, const char *why, const char *const *name,
                   size_t count, status *st) {
    name_list all = {0};
    for (size_t i = 0; i < count; i++)
        name_list_add(&all, name[i]);
    const int near = nearest_name(text, name, count);
    return status_fail(st, "%s '%s': %s%s%s%s There is: %s", what, text, why,
                       near >= 0 ? "; did you mean '" : "", near >= 0 ? name[near] : "",
                       near >= 0 ? "'?" : ".", name_list_text(&all));
}

/* ---- edits ---- */

static const struct edit_word {
    const char *word;
    edit_kind kind;
} edit_words[] = {{"mask", EDIT_MASK},
                  {"mask_raw", EDIT_MASK_RAW},
                  {"mean_value", EDIT_MEAN_VALUE},
                  {"uniform", EDIT_UNIFORM},
                  {"token_mean", EDIT_TOKEN_MEAN},
                  {"head_mean", EDIT_HEAD_MEAN},
                  {"query_scale", EDIT_QUERY_SCALE},
                  {"swap", EDIT_SWAP}};
enum { EDIT_WORDS = sizeof edit_words / sizeof *edit_words };

bool edit_takes_sources(edit_kind kind) {
    return kind == EDIT_MASK || kind == EDIT_MASK_RAW || kind == EDIT_MEAN_VALUE;
}

static const double SCALE_MAX = 1e30; /* times any sensible logit this is finite in float32 */

static int parse_scale(const char *value, edit_choice *edit, status *st) {
    char *end;
    errno = 0;
    const double scale = strtod(value, &end);
    if (end == value || *end || errno || !(fabs(scale) <= SCALE_MAX))
        return status_fail(st, "--edit %s: expected a number from -%g to %g, as in query_scale=0.5",
                           edit->text, SCALE_MAX, SCALE_MAX);
    edit->scale = (float)scale;
    return DONE;
}

static int parse_swap(const char *value, edit_choice *edit, status *st) {
    const char *comma = strchr(value, ',');
    if (!comma || comma == value || !comma[1])
        return status_fail(st, "--edit %s: expected two names, as in swap=emb,newest", edit->text);
    if (!(edit->swapped[0] = mem_text(value, st)) || !(edit->swapped[1] = mem_text(comma + 1, st)))
        return FAILED;
    edit->swapped[0][comma - value] = 0;
    return DONE;
}

int edit_choice_parse(const char *text, edit_choice *edit, status *st) {
    const char *equals = strchr(text, '='), *value = equals ? equals + 1 : NULL;
    char word[64];
    snprintf(word, sizeof word, "%.*s", equals ? (int)(equals - text) : 63, text);
    const char *name[EDIT_WORDS];
    *edit = (edit_choice){.text = text};
    for (size_t i = 0; i < EDIT_WORDS; i++) {
        name[i] = edit_words[i].word;
        if (strcmp(word, name[i]) != 0)
            continue;
        edit->kind = edit_words[i].kind;
        const bool wants = edit->kind == EDIT_QUERY_SCALE || edit->kind == EDIT_SWAP;
        if (wants != (value != NULL))
            return status_fail(st, "--edit %s: %s", text,
                               !wants                    ? "takes no value"
                               : edit->kind == EDIT_SWAP ? "expected swap=A,B"
                                                         : "expected query_scale=X");
        return !wants                    ? DONE
               : edit->kind == EDIT_SWAP ? parse_swap(value, edit, st)
                                         : parse_scale(value, edit, st);
    }
    return unknown("--edit", word, "not known", name, EDIT_WORDS, st);
}

int edit_choice_bind(edit_choice *edit, const depth_program *p, status *st) {
    for (size_t i = 0; edit->kind == EDIT_SWAP && i < 2; i++)
        if (source_choice_parse(edit->swapped[i], p, true, true, &edit->swap[i], st))
            return status_prefix(st, "--edit %s", edit->text);
    return DONE;
}

void edit_choice_clear(edit_choice *edit) {
    for (size_t i = 0; i < 2; i++) {
        free(edit->swapped[i]);
        source_choice_clear(&edit->swap[i]);
    }
    *edit = (edit_choice){0};
}

/* ---- sources ---- */

static int add_source(const char *name, const depth_program *p, bool families, bool labels,
                      source_choice *choice, status *st) {
    const char *known[FAMILIES + 4096];
    size_t count = 0;
    bool found = false;
    for (int f = 0; families && f < FAMILIES; f++) {
        if (!program_has_family(p, (source_family)f))
            continue;
        known[count++] = family_name[f];
        if (strcmp(name, family_name[f]) == 0)
            found = choice->family[f] = true;
    }
    for (size_t l = 0; labels && l < p->labels && count < FAMILIES + 4096; l++) {
        known[count++] = p->source_name[l];
        if (strcmp(name, p->source_name[l]) == 0)
            found = choice->label[l] = true;
    }
    return found ? DONE
                 : unknown(!labels     ? "family"
                           : !families ? "label"
                                       : "source",
                           name, "this model has none", known, count, st);
}

int source_choice_parse(const char *text, const depth_program *p, bool families, bool labels,
                        source_choice *choice, status *st) {
    *choice = (source_choice){.text = text};
    char *copy = mem_text(text, st), *rest = copy, *name;
    choice->label = mem_array(p->labels, sizeof *choice->label, "labels", st);
    int rc = copy && choice->label ? DONE : FAILED;
    while (!rc && (name = strsep(&rest, "+")))
        rc = add_source(name, p, families, labels, choice, st);
    free(copy);
    return rc;
}

void source_choice_clear(source_choice *choice) {
    free(choice->label);
    *choice = (source_choice){0};
}

/* ---- sites ---- */

/* Layer i of L is in third 3 i / L; `final` (index 2 L) in none. */
static bool in_third(size_t site, size_t sites, int third) {
    const size_t layers = (sites - 1) / 2;
    return third < 0 || (site + 1 < sites && 3 * (site / 2) / layers == (size_t)third);
}

int site_choice_kind(const char *kind, int third, const depth_program *p, site_choice *choice,
                     status *st) {
    const size_t sites = p->plan.sites;
    *choice = (site_choice){.third = third};
    snprintf(choice->text, sizeof choice->text, "%s", kind);
    if (!(choice->site = mem_array(sites, sizeof *choice->site, "sites", st)))
        return FAILED;
    for (size_t i = 0; i < sites; i++) {
        const char *own = i + 1 == sites ? "final" : i % 2 == SUBLAYER_ATTN ? "attn" : "mlp";
        choice->site[i] =
            (strcmp(kind, "all") == 0 || strcmp(kind, own) == 0) && in_third(i, sites, third);
    }
    return DONE;
}

int site_choice_parse(const option_list *globs, int third, const depth_program *p,
                      site_choice *choice, status *st) {
    const size_t sites = p->plan.sites;
    if (globs->count == 0)
        return site_choice_kind("all", third, p, choice, st);
    *choice = (site_choice){.third = third};
    const char **name = mem_array(sites, sizeof *name, "sites", st);
    choice->site = mem_array(sites, sizeof *choice->site, "sites", st);
    int rc = name && choice->site ? DONE : FAILED;
    for (size_t i = 0; !rc && i < sites; i++)
        name[i] = p->site_name[i];
    size_t used = 0, chosen = 0;
    for (size_t g = 0; !rc && g < globs->count; g++) {
        bool matched = false;
        for (size_t i = 0; i < sites; i++)
            if (fnmatch(globs->item[g], name[i], 0) == 0) {
                matched = true;
                chosen += in_third(i, sites, third) && !choice->site[i];
                choice->site[i] = choice->site[i] || in_third(i, sites, third);
            }
        if (used < sizeof choice->text)
            used += (size_t)snprintf(choice->text + used, sizeof choice->text - used, "%s%s",
                                     g ? "," : "", globs->item[g]);
        if (!matched)
            rc = unknown("--sites", globs->item[g], "no such site", name, sites, st);
    }
    if (!rc && chosen == 0)
        rc = status_fail(st, "--sites %s --third %d: no site is in both", choice->text, third);
    free(name);
    return rc;
}

void site_choice_clear(site_choice *choice) {
    free(choice->site);
    *choice = (site_choice){0};
}
