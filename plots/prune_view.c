#include "plots/prune_view.h"

#include <stdlib.h>
#include <string.h>

enum { LAYERS_MAX = 65536 };

const char *const prune_kind_name[PRUNE_KINDS] = {"whole layer", "attention", "MLP"};
static const char *const words[PRUNE_KINDS] = {"layer", "attn", "mlp"};

static int read_kind(const table *from, const table_section_view *section, size_t row, int column,
                     prune_kind *kind, status *st) {
    for (int k = 0; k < PRUNE_KINDS; k++)
        if (strcmp(table_cell(section, row, column), words[k]) == 0) {
            *kind = (prune_kind)k;
            return DONE;
        }
    return cells_fail(from, section, row, column, "layer, attn or mlp", st);
}

int prune_units_read(const table *from, const char *code, prune_unit **units, size_t *count,
                     status *st) {
    const bool scores = strcmp(code, "SCO") == 0;
    const char *const names[] = {"kind", "layer", scores ? "value" : "delta_loss",
                                 "low",  "high",  scores ? "score" : NULL,
                                 NULL};
    const table_section_view *section = table_find(from, code);
    int column[6];
    *units = NULL;
    *count = 0;
    if (!section)
        return DONE;
    if (cells_find(from, section, names, column, st))
        return FAILED;
    *units = mem_array(section->rows + 1, sizeof **units, "units", st);
    if (!*units)
        return FAILED;
    for (size_t row = 0; row < section->rows; row++) {
        prune_unit *unit = &(*units)[row];
        double number[3];
        if (read_kind(from, section, row, column[0], &unit->kind, st) ||
            cells_size(from, section, row, column[1], LAYERS_MAX, &unit->layer, st) ||
            cells_reals(from, section, row, &column[2], 3, number, st)) {
            free(*units);
            *units = NULL;
            return FAILED;
        }
        unit->value = number[0];
        unit->low = number[1];
        unit->high = number[2];
        unit->score = scores ? table_cell(section, row, column[5]) : NULL;
    }
    *count = section->rows;
    return DONE;
}

size_t prune_layers(const table *from, const prune_unit *units, size_t count) {
    double said = strtod(cells_run(from, "layers"), NULL);
    size_t layers = said >= 1 && said <= LAYERS_MAX ? (size_t)said : 1;
    for (size_t i = 0; i < count; i++)
        layers = units[i].layer >= layers ? units[i].layer + 1 : layers;
    return layers;
}

int prune_agreement_read(const table *from, const char *score, prune_kind kind,
                         prune_agreement *found, status *st) {
    static const char *const names[] = {
        "kind", "score", "units", "spearman", "low", "high", "not_significant_below", NULL};
    const table_section_view *section = table_find(from, "AGR");
    int column[7];
    *found = (prune_agreement){0};
    if (!section)
        return DONE;
    if (cells_find(from, section, names, column, st))
        return FAILED;
    for (size_t row = 0; row < section->rows && !found->found; row++) {
        double number[4];
        if (strcmp(table_cell(section, row, column[0]), words[kind]) != 0 ||
            strcmp(table_cell(section, row, column[1]), score) != 0)
            continue;
        if (cells_size(from, section, row, column[2], 2 * LAYERS_MAX, &found->units, st) ||
            cells_reals(from, section, row, &column[3], 4, number, st))
            return FAILED;
        found->spearman = number[0];
        found->low = number[1];
        found->high = number[2];
        found->chance = number[3];
        found->found = true;
    }
    return DONE;
}

size_t prune_scores_of(const prune_unit *units, size_t count, const char **score, size_t most) {
    size_t scores = 0;
    for (size_t i = 0; i < count; i++) {
        size_t k = 0;
        while (k < scores && strcmp(score[k], units[i].score) != 0)
            k++;
        if (k == scores && scores < most)
            score[scores++] = units[i].score;
    }
    return scores;
}
