/* Cheap scores against what removal costs: a panel for each score, a point for each unit. */
#include "plots/figure.h"
#include "plots/prune_view.h"
#include "plots/runs.h"
#include "plots/scatter.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* "layer .95*  attn .66": Spearman's rho of each kind that has the score. */
static int put_agreement(const table *from, const char *score, scatter_panel *panel, double *chance,
                         size_t *units, status *st) {
    static const char *const words[PRUNE_KINDS] = {"layer", "attn", "MLP"};
    for (int kind = 0; kind < PRUNE_KINDS; kind++) {
        prune_agreement a;
        size_t used = strlen(panel->below);
        if (prune_agreement_read(from, score, (prune_kind)kind, &a, st))
            return FAILED;
        if (!a.found || isnan(a.spearman))
            continue;
        snprintf(panel->below + used, sizeof panel->below - used, "%s%s %.2f%s", used ? "   " : "",
                 words[kind], a.spearman, fabs(a.spearman) >= a.chance ? "*" : "");
        if (a.units > *units) {
            *chance = a.chance;
            *units = a.units;
        }
    }
    return DONE;
}

static int add_points(scatter_panel *panel, const char *score, const prune_unit *losses,
                      size_t count, const prune_unit *scores, size_t score_count, status *st) {
    for (size_t i = 0; i < score_count; i++) {
        const prune_unit *unit = &scores[i];
        if (strcmp(unit->score, score) != 0)
            continue;
        for (size_t k = 0; k < count; k++) {
            if (losses[k].kind != unit->kind || losses[k].layer != unit->layer)
                continue;
            scatter_point point = {.x = unit->value,
                                   .y = losses[k].value,
                                   .low = losses[k].low,
                                   .high = losses[k].high,
                                   .mark = unit->kind,
                                   .colour = unit->kind == PRUNE_LAYER  ? 3
                                             : unit->kind == PRUNE_ATTN ? 1
                                                                        : 2};
            snprintf(point.name, sizeof point.name, "%zu", unit->layer);
            if (scatter_add(panel, point, st))
                return FAILED;
            break;
        }
    }
    return DONE;
}

int draw_prune_scores(const table *from, sheet *s, status *st) {
    const char *score[SCATTER_PANELS];
    prune_unit *losses, *scores = NULL;
    size_t count, score_count, units = 0;
    double chance = NAN;
    scatter c = {.x = "score",
                 .y = "delta_loss, nats/token",
                 .columns = 2,
                 .marks = PRUNE_KINDS,
                 .mark = {{"whole layer", 5, 3}, {"attention", 7, 1}, {"MLP", 9, 2}}};
    int result = prune_units_read(from, "ONE", &losses, &count, st);
    if (!result)
        result = prune_units_read(from, "SCO", &scores, &score_count, st);
    if (!result)
        c.panels = prune_scores_of(scores, score_count, score, SCATTER_PANELS);
    for (size_t i = 0; !result && i < c.panels; i++) {
        scatter_panel *panel = &c.panel[i];
        clean_text(panel->title, sizeof panel->title, score[i], strlen(score[i]));
        result = add_points(panel, score[i], losses, count, scores, score_count, st);
        if (!result)
            result = put_agreement(from, score[i], panel, &chance, &units, st);
    }
    if (!result) {
        size_t used = (size_t)snprintf(c.notes, sizeof c.notes,
                                       "Numbers at points: the layer, where there is room. Over "
                                       "panels: Spearman's rank agreement with delta_loss%s",
                                       isnan(chance) ? "." : "; ");
        if (!isnan(chance))
            snprintf(c.notes + used, sizeof c.notes - used,
                     "*: at or above %.2f, which %zu units without agreement reach in 1 of 20 "
                     "cases.",
                     chance, units);
        run_title(from, c.title, sizeof c.title);
        snprintf(c.subtitle, sizeof c.subtitle, "cheap scores against loss without the unit");
        result = scatter_draw(&c, s, st);
    }
    scatter_clear(&c);
    free(losses);
    free(scores);
    return result;
}
