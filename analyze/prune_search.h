/* prune_search.h - which sets of units to remove: strategies, each a set for every number of units.
 *
 * greedy          at every step the unit whose removal costs the selection text least, judged anew
 * lowest:SCORE    the units of lowest score of the whole model (prune_scores.h)
 * contiguous      layers [l, l + n) of the smallest angular_last(l, n) (arXiv 2403.17887)
 * deepest         from the last one down
 * random          nested sets in random order, several seeds
 */
#ifndef FATHOM_PRUNE_SEARCH_H
#define FATHOM_PRUNE_SEARCH_H

#include "analyze/prune_scores.h"
#include "analyze/set_losses.h"

enum { SELECTION = 0, EVALUATION = 1 }; /* texts of the losses */

typedef struct prune_strategies {
    bool greedy, contiguous, deepest, random;
    bool lowest[SCORES];
} prune_strategies;

/* Words as above, "lowest" alone for every score that is defined, "none" alone for no search. A
 * score or strategy that the mode or the kind of unit does not define is an error that lists those
 * that are. */
int prune_strategies_parse(const option_list *items, const model_config *config, unit_kind kind,
                           prune_strategies *out, status *st) MUST_USE;
bool prune_strategies_any(const prune_strategies *s);
/* Whether a strategy chooses by something measured on the selection text. */
bool prune_strategies_select(const prune_strategies *s);

typedef struct prune_search_options {
    const model_config *config;
    unit_kind kind;
    const bool *kept; /* [2 * layers] sublayers that stay */
    size_t budget;    /* most units to remove; prune_budget has checked it */
    size_t seeds;     /* of random */
    uint64_t seed;
    prune_strategies strategies;
} prune_search_options;

/* `asked` units, or, where it is 0, half of those that can be removed. Fails where there are not so
 * many, where nothing can be removed or nothing would be left. */
int prune_budget(const model_config *config, unit_kind kind, const bool *kept, size_t asked,
                 size_t *budget, status *st) MUST_USE;

typedef struct prune_point {
    char strategy[48];
    size_t seed;    /* of random, from 0; 0 */
    size_t removed; /* units */
    bool *set;      /* [2 * layers] */
} prune_point;

typedef struct prune_points {
    prune_point *point;
    size_t count, room;
} prune_points;

/* Appends a point; `set` is copied. */
int prune_points_add(prune_points *points, const char *strategy, size_t seed, size_t removed,
                     const bool *set, size_t sublayers, status *st) MUST_USE;
void prune_points_clear(prune_points *points);

/* The sets of every strategy, 1 to `budget` units each, strategy by strategy. Greedy computes
 * losses on the selection text. Points found before a failure stay. */
int prune_search(const prune_search_options *options, set_losses *losses,
                 const prune_scores *scores, prune_points *points, status *st) MUST_USE;

#endif
