#include "analyze/prune_search.h"

#include "runtime/base/name_list.h"
#include "runtime/base/random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- words ---- */

static int wrong_word(const char *word, const model_config *c, unit_kind kind, status *st) {
    name_list known = {0};
    name_list_add(&known, "greedy");
    for (score_kind s = 0; s < SCORES; s++) {
        char text[48];
        snprintf(text, sizeof text, "lowest:%s", score_name(s));
        if (score_defined(c, s, kind))
            name_list_add(&known, text);
    }
    if (kind == UNIT_LAYER)
        name_list_add(&known, "contiguous");
    name_list_add(&known, "deepest");
    name_list_add(&known, "random");
    return status_fail(st,
                       "--strategies %s: not offered for mode %s and units of kind %s; expected "
                       "none, lowest, or some of %s",
                       word, mode_name(c->mode), unit_kind_name(kind), name_list_text(&known));
}

static bool take_word(const char *word, const model_config *c, unit_kind kind,
                      prune_strategies *out) {
    bool found = false;
    if (strncmp(word, "lowest", 6) == 0)
        for (score_kind s = 0; s < SCORES; s++)
            if (score_defined(c, s, kind) &&
                (!word[6] || (word[6] == ':' && strcmp(word + 7, score_name(s)) == 0)))
                found = out->lowest[s] = true;
    if (strcmp(word, "greedy") == 0)
        found = out->greedy = true;
    if (strcmp(word, "contiguous") == 0 && kind == UNIT_LAYER)
        found = out->contiguous = true;
    if (strcmp(word, "deepest") == 0)
        found = out->deepest = true;
    if (strcmp(word, "random") == 0)
        found = out->random = true;
    return found;
}

int prune_strategies_parse(const option_list *items, const model_config *c, unit_kind kind,
                           prune_strategies *out, status *st) {
    *out = (prune_strategies){0};
    if (items->count == 1 && strcmp(items->item[0], "none") == 0)
        return DONE;
    if (items->count == 0) {
        *out = (prune_strategies){
            .greedy = true, .contiguous = kind == UNIT_LAYER, .deepest = true, .random = true};
        take_word("lowest", c, kind, out);
    }
    for (size_t i = 0; i < items->count; i++)
        if (!take_word(items->item[i], c, kind, out))
            return wrong_word(items->item[i], c, kind, st);
    return DONE;
}

static bool any_lowest(const prune_strategies *s) {
    for (score_kind k = 0; k < SCORES; k++)
        if (s->lowest[k])
            return true;
    return false;
}

bool prune_strategies_select(const prune_strategies *s) {
    return s->greedy || s->contiguous || any_lowest(s);
}

bool prune_strategies_any(const prune_strategies *s) {
    return prune_strategies_select(s) || s->deepest || s->random;
}

/* ---- units that can go ---- */

static bool can_go(const model_config *c, unit_kind kind, const bool *kept, size_t layer) {
    return unit_exists(c, kind, layer) && !unit_any(kind, layer, kept);
}

int prune_budget(const model_config *c, unit_kind kind, const bool *kept, size_t asked,
                 size_t *budget, status *st) {
    size_t most = 0, left = 0;
    for (size_t l = 0; l < c->layers; l++) {
        most += can_go(c, kind, kept, l);
        left += unit_exists(c, UNIT_LAYER, l) && (kind == UNIT_ATTN  ? !c->removed[2 * l + 1]
                                                  : kind == UNIT_MLP ? !c->removed[2 * l]
                                                                     : !can_go(c, kind, kept, l));
    }
    if (most && !left) /* not everything */
        most--;
    if (!most)
        return status_fail(st,
                           "no unit of kind %s can be removed: the model has one, or --keep names "
                           "them all",
                           unit_kind_name(kind));
    if (asked > most)
        return status_fail(st,
                           "--budget %zu: at most %zu units of kind %s can be removed (--keep "
                           "stays, and so does something of the model)",
                           asked, most, unit_kind_name(kind));
    *budget = asked ? asked : (most + 1) / 2;
    return DONE;
}

/* ---- points ---- */

int prune_points_add(prune_points *points, const char *strategy, size_t seed, size_t removed,
                     const bool *set, size_t sublayers, status *st) {
    if (points->count == points->room) {
        size_t room = points->room ? 2 * points->room : 64;
        prune_point *wider = mem_array(room, sizeof *wider, "sets", st);
        if (!wider)
            return FAILED;
        if (points->count)
            memcpy(wider, points->point, points->count * sizeof *wider);
        free(points->point);
        points->point = wider;
        points->room = room;
    }
    prune_point *p = &points->point[points->count];
    *p = (prune_point){.seed = seed, .removed = removed};
    snprintf(p->strategy, sizeof p->strategy, "%s", strategy);
    if (!(p->set = mem_array(sublayers, sizeof *p->set, "sets", st)))
        return FAILED;
    memcpy(p->set, set, sublayers * sizeof *set);
    points->count++;
    return DONE;
}

void prune_points_clear(prune_points *points) {
    for (size_t i = 0; i < points->count; i++)
        free(points->point[i].set);
    free(points->point);
    *points = (prune_points){0};
}

/* ---- strategies ---- */

typedef struct searching {
    const prune_search_options *o;
    set_losses *losses;
    const prune_scores *scores;
    prune_points *points;
    size_t sublayers;
    size_t *unit; /* [units] layers of the units that can go */
    size_t units;
    bool *set;          /* [sublayers] */
    bool *candidate;    /* [units, sublayers] */
    const bool **asked; /* [units] */
    double *key;        /* [units] */
    size_t sequences;   /* of the selection text */
} searching;

/* Nested sets in the order of s->unit. */
static int add_in_order(searching *s, const char *strategy, size_t seed, status *st) {
    memset(s->set, 0, s->sublayers * sizeof *s->set);
    for (size_t k = 0; k < s->o->budget; k++) {
        unit_mark(s->o->kind, s->unit[k], s->set);
        if (prune_points_add(s->points, strategy, seed, k + 1, s->set, s->sublayers, st))
            return FAILED;
    }
    return DONE;
}

/* Sorts units by key, smallest first, NaN last, equal ones from the first layer on. */
static void sort_units(searching *s) {
    for (size_t i = 1; i < s->units; i++) {
        const size_t unit = s->unit[i];
        const double key = s->key[i];
        size_t at = i;
        for (; at > 0 && (key < s->key[at - 1] || (isnan(s->key[at - 1]) && !isnan(key))); at--) {
            s->unit[at] = s->unit[at - 1];
            s->key[at] = s->key[at - 1];
        }
        s->unit[at] = unit;
        s->key[at] = key;
    }
}

static void list_units(searching *s) {
    s->units = 0;
    for (size_t l = 0; l < s->o->config->layers; l++)
        if (can_go(s->o->config, s->o->kind, s->o->kept, l))
            s->unit[s->units++] = l;
}

static double total(const double *loss, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += loss[i];
    return sum;
}

/* The unit whose removal beside s->set costs least, as its place in s->unit. */
static int cheapest(searching *s, size_t *best, status *st) {
    size_t count = 0;
    double least = INFINITY;
    for (size_t i = 0; i < s->units; i++) {
        if (unit_any(s->o->kind, s->unit[i], s->set))
            continue;
        bool *set = s->candidate + count * s->sublayers;
        memcpy(set, s->set, s->sublayers * sizeof *set);
        unit_mark(s->o->kind, s->unit[i], set);
        s->asked[count++] = set;
    }
    int rc = set_losses_find(s->losses, SELECTION, s->set, s->asked, count, st);
    *best = s->units;
    for (size_t i = 0, k = 0; i < s->units && !rc; i++) {
        if (unit_any(s->o->kind, s->unit[i], s->set))
            continue;
        double loss = total(set_losses_of(s->losses, SELECTION, s->asked[k++]), s->sequences);
        if (*best == s->units || loss < least) {
            *best = i;
            least = isnan(loss) ? INFINITY : loss;
        }
    }
    return rc;
}

static int greedy(searching *s, status *st) {
    list_units(s);
    memset(s->set, 0, s->sublayers * sizeof *s->set);
    for (size_t k = 0; k < s->o->budget; k++) {
        size_t best;
        int rc = cheapest(s, &best, st);
        if (rc)
            return rc;
        unit_mark(s->o->kind, s->unit[best], s->set);
        if (prune_points_add(s->points, "greedy", 0, k + 1, s->set, s->sublayers, st))
            return FAILED;
    }
    return DONE;
}

static int lowest(searching *s, score_kind score, status *st) {
    char name[48];
    snprintf(name, sizeof name, "lowest:%s", score_name(score));
    list_units(s);
    for (size_t i = 0; i < s->units; i++)
        s->key[i] = score_mean(s->scores, score, s->o->kind, s->unit[i]);
    sort_units(s);
    return add_in_order(s, name, 0, st);
}

/* Numbers of layers for which there is no such run are left out. */
static int contiguous(searching *s, status *st) {
    const size_t layers = s->o->config->layers;
    for (size_t n = 1; n <= s->o->budget; n++) {
        size_t best = layers;
        for (size_t l = 0; l + n <= layers; l++) {
            const double *angle = s->scores->angle_last + (n - 1) * layers;
            bool all = !isnan(angle[l]);
            for (size_t i = l; i < l + n; i++)
                all = all && can_go(s->o->config, s->o->kind, s->o->kept, i);
            if (all && (best == layers || angle[l] < angle[best]))
                best = l;
        }
        if (best == layers)
            continue;
        memset(s->set, 0, s->sublayers * sizeof *s->set);
        for (size_t i = best; i < best + n; i++)
            unit_mark(s->o->kind, i, s->set);
        if (prune_points_add(s->points, "contiguous", 0, n, s->set, s->sublayers, st))
            return FAILED;
    }
    return DONE;
}

static int deepest(searching *s, status *st) {
    list_units(s);
    for (size_t i = 0; i < s->units; i++)
        s->key[i] = -(double)s->unit[i];
    sort_units(s);
    return add_in_order(s, "deepest", 0, st);
}

static int at_random(searching *s, status *st) {
    for (size_t seed = 0; seed < s->o->seeds; seed++) {
        list_units(s);
        for (size_t i = 0; i < s->units; i++)
            s->key[i] = (double)(random_at(s->o->seed + seed, s->unit[i]) >> 11);
        sort_units(s);
        if (add_in_order(s, "random", seed, st))
            return FAILED;
    }
    return DONE;
}

static int search(searching *s, status *st) {
    const prune_strategies *chosen = &s->o->strategies;
    int rc = chosen->greedy ? greedy(s, st) : DONE;
    for (score_kind k = 0; k < SCORES && !rc; k++)
        if (chosen->lowest[k])
            rc = lowest(s, k, st);
    if (!rc && chosen->contiguous)
        rc = contiguous(s, st);
    if (!rc && chosen->deepest)
        rc = deepest(s, st);
    return !rc && chosen->random ? at_random(s, st) : rc;
}

int prune_search(const prune_search_options *o, set_losses *losses, const prune_scores *scores,
                 prune_points *points, status *st) {
    const size_t layers = o->config->layers;
    searching s = {.o = o,
                   .losses = losses,
                   .scores = scores,
                   .points = points,
                   .sublayers = 2 * layers,
                   .sequences = scores->sequences};
    s.unit = mem_array(layers, sizeof *s.unit, "units", st);
    s.set = mem_array(s.sublayers, sizeof *s.set, "a set", st);
    s.candidate = mem_array(layers, s.sublayers * sizeof *s.candidate, "sets", st);
    s.asked = mem_array(layers, sizeof *s.asked, "sets", st);
    s.key = mem_array(layers, sizeof *s.key, "units", st);
    int rc = s.unit && s.set && s.candidate && s.asked && s.key ? search(&s, st) : FAILED;
    free(s.unit);
    free(s.set);
    free(s.candidate);
    free(s.asked);
    free(s.key);
    return rc;
}
