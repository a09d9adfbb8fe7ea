#include "analyze/mass_importance.h"

#include "analyze/rank_agreement.h"
#include "analyze/table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SCORES = SITE_SUMS + 1, LOSS = SITE_SUMS }; /* mass, contribution, signed, delta_loss */
static const char *const score_name[SITE_SUMS] = {"mass", "contribution", "signed_contribution"};

int routes_add(ablation *a, const depth_program *p, routes *r, status *st) {
    *r = (routes){0};
    if (!(r->list = mem_array(p->labels + FAMILIES, sizeof *r->list, "routes", st)) ||
        edit_choice_parse("mask", &r->mask, st) ||
        site_choice_kind("all", -1, p, &r->everywhere, st))
        return FAILED;
    for (size_t k = 0; k < p->labels + FAMILIES; k++) {
        const bool family = k >= p->labels;
        const source_family f = (source_family)(k - p->labels);
        if (family && !program_has_family(p, f))
            continue;
        route *one = &r->list[r->count++];
        one->is_family = family;
        if (source_choice_parse(family ? family_name[f] : p->source_name[k], p, family, !family,
                                &one->choice, st) ||
            ablation_add(a, &r->mask, &one->choice, &r->everywhere, NULL, &one->index, st))
            return FAILED; /* never NO_INTERVENTION: each is a source somewhere */
    }
    return DONE;
}

void routes_clear(routes *r) {
    for (size_t k = 0; r->list && k < r->count; k++)
        source_choice_clear(&r->list[k].choice);
    free(r->list);
    edit_choice_clear(&r->mask);
    site_choice_clear(&r->everywhere);
    *r = (routes){0};
}

/* Per sequence and token: the mean over the edited sites of what the sites give to the route's
 * sources, row [sequences, SITE_SUMS]. */
static void route_rows(const route *one, const ablation *a, const depth_program *p,
                       size_t sequences, double *row) {
    const intervention *i = ablation_at(a, one->index);
    const double *tokens = ablation_rows(a);
    memset(row, 0, sequences * SITE_SUMS * sizeof *row);
    for (size_t site = 0; site < p->plan.sites; site++) {
        const size_t sources = (size_t)p->plan.site[site].sources;
        const double *sums = ablation_site(a, site);
        if (!i->at[site])
            continue;
        for (size_t q = 0; q < sequences; q++)
            for (size_t f = 0; f < SITE_SUMS; f++)
                for (size_t k = 0; k < i->own[site].sources; k++)
                    row[q * SITE_SUMS + f] +=
                        sums[(q * SITE_SUMS + f) * sources + (size_t)i->own[site].source[k]] /
                        tokens[q] / (double)i->edited;
    }
}

/* draws [bootstrap_draws, SCORES] of one route. */
static int route_draws(route *one, const ablation *a, const experiment *e, const bootstrap *b,
                       double *draws, status *st) {
    const size_t sequences = experiment_sequences(e), count = bootstrap_draws(b);
    int rc = FAILED;
    double *row = mem_array(sequences, SITE_SUMS * sizeof *row, "routes", st);
    double *means = mem_array(count, SITE_SUMS * sizeof *means, "routes", st);
    double *loss = mem_array(count, sizeof *loss, "routes", st);
    if (row && means && loss) {
        route_rows(one, a, experiment_program(e), sequences, row);
        rc = bootstrap_means(b, row, SITE_SUMS, NULL, SITE_SUMS, means, st) ||
                     ablation_effect(a, b, one->index, &one->effect, loss, st)
                 ? FAILED
                 : DONE;
        for (size_t d = 0; !rc && d < count; d++) {
            memcpy(draws + d * SCORES, means + d * SITE_SUMS, SITE_SUMS * sizeof *means);
            draws[d * SCORES + LOSS] = loss[d];
        }
    }
    free(row);
    free(means);
    free(loss);
    return rc;
}

static void put_route(FILE *out, const route *one, const ablation *a, const bootstrap *b,
                      const double *draws) {
    const intervention *i = ablation_at(a, one->index);
    interval scores_of[SCORES];
    bootstrap_intervals(b, draws, SCORES, scores_of);
    table_row(out, "IMP");
    table_text(out, one->is_family ? "family" : "source");
    table_text(out, one->choice.text);
    table_size(out, i->edited);
    table_size(out, i->skipped);
    for (size_t f = 0; f < SITE_SUMS; f++)
        if (i->edited > 0)
            table_interval(out, scores_of[f].value, scores_of[f].low, scores_of[f].high);
        else
            table_interval(out, NAN, NAN, NAN);
    table_real(out, one->effect.lift);
    table_interval(out, one->effect.delta_loss.value, one->effect.delta_loss.low,
                   one->effect.delta_loss.high);
    table_interval(out, one->effect.kl.value, one->effect.kl.low, one->effect.kl.high);
    table_real(out, one->effect.p);
    table_real(out, one->effect.q);
    table_text(out, effect_class_name[one->effect.class]);
    table_end(out);
}

/* Agreement of each score with delta_loss over the sources, or over the families. `draws` [routes,
 * draws, SCORES]. */
static int put_agreement(FILE *out, const routes *r, const ablation *a, bool families,
                         const bootstrap *b, const double *draws, status *st) {
    const size_t resamples = bootstrap_draws(b);
    double *x = mem_array(r->count + 1, resamples * sizeof *x, "rank agreement", st);
    double *y = mem_array(r->count + 1, resamples * sizeof *y, "rank agreement", st);
    int rc = x && y ? DONE : FAILED;
    for (size_t f = 0; !rc && f < SITE_SUMS; f++) {
        size_t items = 0, at = 0;
        for (size_t k = 0; k < r->count; k++)
            items += r->list[k].is_family == families && ablation_at(a, r->list[k].index)->edited;
        for (size_t k = 0; k < r->count; k++) {
            if (r->list[k].is_family != families || !ablation_at(a, r->list[k].index)->edited)
                continue;
            for (size_t d = 0; d < resamples; d++) {
                x[d * items + at] = draws[(k * resamples + d) * SCORES + f];
                y[d * items + at] = draws[(k * resamples + d) * SCORES + LOSS];
            }
            at++;
        }
        interval spearman, kendall;
        if ((rc = rank_agreement_intervals(b, x, y, items, &spearman, &kendall, st)))
            break;
        table_row(out, "AGR");
        table_text(out, families ? "families" : "sources");
        table_text(out, score_name[f]);
        table_size(out, items);
        table_interval(out, spearman.value, spearman.low, spearman.high);
        table_interval(out, kendall.value, kendall.low, kendall.high);
        table_real(out, rank_agreement_threshold(items));
        table_end(out);
    }
    free(x);
    free(y);
    return rc;
}

static int write_with(FILE *out, routes *r, const ablation *a, const experiment *e,
                      const bootstrap *b, double equiv, double level, double *draws,
                      effect *effects, status *st) {
    const size_t block = bootstrap_draws(b) * SCORES;
    for (size_t k = 0; k < r->count; k++) {
        if (route_draws(&r->list[k], a, e, b, draws + k * block, st))
            return FAILED;
        effects[k] = r->list[k].effect;
    }
    effects_classify(effects, r->count, equiv, level);
    table_section(out, "IMP",
                  "mass against importance: each source and family, masked at every site that has "
                  "it; means over those sites, heads and tokens",
                  "what, name, sites, skipped, mass, mass_low, mass_high, contribution, "
                  "contribution_low, contribution_high, signed_contribution, "
                  "signed_contribution_low, signed_contribution_high, lift, delta_loss, low, high, "
                  "kl, kl_low, kl_high, p, q, class",
                  "mass, contributions 1; delta_loss, kl nats/token");
    for (size_t k = 0; k < r->count; k++) {
        r->list[k].effect = effects[k];
        put_route(out, &r->list[k], a, b, draws + k * block);
    }
    table_section(
        out, "AGR",
        "rank agreement of a score with delta_loss over IMP; |spearman| below threshold "
        "is compatible with none (two-sided 5 %)",
        "over, score, items, spearman, spearman_low, spearman_high, kendall, kendall_low, "
        "kendall_high, threshold",
        "1");
    return put_agreement(out, r, a, false, b, draws, st) ||
                   put_agreement(out, r, a, true, b, draws, st)
               ? FAILED
               : DONE;
}

int routes_write(FILE *out, routes *r, const ablation *a, const experiment *e, const bootstrap *b,
                 double equiv, double level, status *st) {
    double *draws = mem_array(r->count, bootstrap_draws(b) * SCORES * sizeof *draws, "routes", st);
    effect *effects = mem_array(r->count, sizeof *effects, "routes", st);
    const int rc =
        draws && effects ? write_with(out, r, a, e, b, equiv, level, draws, effects, st) : FAILED;
    free(draws);
    free(effects);
    return rc;
}
