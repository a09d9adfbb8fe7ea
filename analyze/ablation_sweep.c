#include "analyze/ablation_sweep.h"

#include "analyze/table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int list_sources(const depth_program *p, const edit_choice *edit,
                        const sweep_options *options, sweep *s, status *st) {
    const size_t given = options->families->count + options->labels->count;
    const bool takes = edit_takes_sources(edit->kind);
    if (given > 0 && !takes)
        return status_fail(st, "--edit %s: takes no --families or --labels", edit->text);
    if (!(s->sources = mem_array(given + FAMILIES, sizeof *s->sources, "sources", st)))
        return FAILED;
    for (size_t k = 0; k < options->families->count; k++)
        if (source_choice_parse(options->families->item[k], p, true, false,
                                &s->sources[s->source_choices++], st))
            return status_prefix(st, "--families");
    for (size_t k = 0; k < options->labels->count; k++)
        if (source_choice_parse(options->labels->item[k], p, false, true,
                                &s->sources[s->source_choices++], st))
            return status_prefix(st, "--labels");
    for (int f = 0; takes && given == 0 && f < FAMILIES; f++)
        if (program_has_family(p, (source_family)f) &&
            source_choice_parse(family_name[f], p, true, false, &s->sources[s->source_choices++],
                                st))
            return FAILED;
    if (!takes)
        s->sources[s->source_choices++] = (source_choice){.text = "-"};
    return DONE;
}

static int list_sites(const depth_program *p, const sweep_options *options, sweep *s, status *st) {
    static const char *const kinds[] = {"attn", "mlp"};
    s->chosen = options->sites->count > 0 || options->third >= 0;
    if (!(s->sites = mem_array(8, sizeof *s->sites, "sites", st)))
        return FAILED;
    if (s->chosen)
        return site_choice_parse(options->sites, options->third, p, &s->sites[s->site_choices++],
                                 st);
    for (size_t k = 0; k < 6; k++)
        if (site_choice_kind(kinds[k / 3], (int)(k % 3), p, &s->sites[s->site_choices++], st))
            return FAILED;
    return site_choice_kind("final", -1, p, &s->sites[s->site_choices++], st) ||
                   site_choice_kind("all", -1, p, &s->sites[s->site_choices++], st)
               ? FAILED
               : DONE;
}

int sweep_add(ablation *a, const depth_program *p, const edit_choice *edit,
              const sweep_options *options, sweep *s, status *st) {
    *s = (sweep){0};
    if (list_sources(p, edit, options, s, st) || list_sites(p, options, s, st) ||
        !(s->cell =
              mem_array(s->source_choices * s->site_choices, sizeof *s->cell, "interventions", st)))
        return FAILED;
    for (size_t k = 0; k < s->source_choices; k++)
        for (size_t g = 0; g < s->site_choices; g++) {
            sweep_cell *cell = &s->cell[s->cells];
            *cell = (sweep_cell){.sources = &s->sources[k], .sites = &s->sites[g]};
            if (ablation_add(a, edit, cell->sources, cell->sites, options->head, &cell->index, st))
                return FAILED;
            s->cells += cell->index != NO_INTERVENTION;
        }
    if (s->cells == 0)
        return status_fail(st, "--edit %s: no chosen site has what it asks for", edit->text);
    return DONE;
}

void sweep_clear(sweep *s) {
    for (size_t k = 0; k < s->source_choices; k++)
        source_choice_clear(&s->sources[k]);
    for (size_t g = 0; g < s->site_choices; g++)
        site_choice_clear(&s->sites[g]);
    free(s->sources);
    free(s->sites);
    free(s->cell);
    *s = (sweep){0};
}

static void put_third(FILE *out, const site_choice *sites) {
    if (sites->third < 0)
        table_text(out, "-");
    else
        table_size(out, (size_t)sites->third);
}

static void put_cell(FILE *out, const sweep_cell *cell, const intervention *i) {
    table_row(out, "ABL");
    table_text(out, i->edit->text);
    table_text(out, cell->sources->text);
    table_text(out, cell->sites->text);
    put_third(out, cell->sites);
    table_size(out, i->edited);
    table_size(out, i->skipped);
    table_interval(out, cell->effect.delta_loss.value, cell->effect.delta_loss.low,
                   cell->effect.delta_loss.high);
    table_interval(out, cell->effect.kl.value, cell->effect.kl.low, cell->effect.kl.high);
    table_real(out, cell->effect.mass_moved);
    table_real(out, cell->effect.lift);
    table_real(out, cell->effect.p);
    table_real(out, cell->effect.q);
    table_text(out, effect_class_name[cell->effect.class]);
    table_end(out);
}

int sweep_write(FILE *out, sweep *s, const ablation *a, const bootstrap *b, double equiv,
                double level, status *st) {
    effect *effects = mem_array(s->cells, sizeof *effects, "effects", st);
    int rc = effects ? DONE : FAILED;
    for (size_t k = 0; k < s->cells && !rc; k++)
        rc = ablation_effect(a, b, s->cell[k].index, &effects[k], NULL, st);
    if (!rc) {
        effects_classify(effects, s->cells, equiv, level);
        table_section(
            out, "ABL",
            "interventions: sources edited at sites of a kind and depth third; sites "
            "edited, and skipped because a mask would leave nothing to read",
            "edit, sources, at, third, sites, skipped, delta_loss, low, high, kl, kl_low, "
            "kl_high, mass_moved, lift, p, q, class",
            "delta_loss, kl nats/token; mass_moved, lift 1");
    }
    for (size_t k = 0; k < s->cells && !rc; k++) {
        s->cell[k].effect = effects[k];
        put_cell(out, &s->cell[k], ablation_at(a, s->cell[k].index));
    }
    free(effects);
    return rc;
}

static void put_listed(FILE *out, const char *from, const char *sources, const site_choice *sites,
                       const effect *e) {
    const bool silent = e->class == EFFECT_NONE && e->lift > 1;
    if (!silent && e->class != EFFECT_UNDECIDED)
        return;
    table_row(out, "RTE");
    table_text(out, silent ? "no_effect" : "undecided");
    table_text(out, from);
    table_text(out, sources);
    table_text(out, sites->text);
    put_third(out, sites);
    table_real(out, e->lift);
    table_interval(out, e->delta_loss.value, e->delta_loss.low, e->delta_loss.high);
    table_end(out);
}

void sweep_write_routes(FILE *out, const sweep *s, const routes *r) {
    table_section(out, "RTE",
                  "routes of lift above 1 without an effect, and undecided ones, of IMP and ABL",
                  "what, section, sources, at, third, lift, delta_loss, low, high",
                  "delta_loss nats/token; lift 1");
    for (size_t k = 0; r && k < r->count; k++)
        put_listed(out, "IMP", r->list[k].choice.text, &r->everywhere, &r->list[k].effect);
    for (size_t k = 0; s && k < s->cells; k++)
        put_listed(out, "ABL", s->cell[k].sources->text, s->cell[k].sites, &s->cell[k].effect);
}
