/* The loss of predicting a token, by its position in the sequence. */
#include "plots/depth_view.h"
#include "plots/figure.h"

#include <math.h>
#include <string.h>

static int add_table(curve *line, const table *from, status *st) {
    static const char *const names[] = {"first", "last", "value", "low", "high", NULL};
    const table_section_view *section = table_find(from, "LPO");
    int column[5];
    if (cells_find(from, section, names, column, st))
        return FAILED;
    for (size_t row = 0; row < section->rows; row++) {
        double n[5];
        if (cells_reals(from, section, row, column, 5, n, st))
            return FAILED;
        if (!(n[0] >= 1 && n[1] >= n[0] && n[1] < 1e15))
            return cells_fail(from, section, row, column[n[0] >= 1],
                              "positions from 1 on, last not before first", st);
        const curve_point point = {sqrt(n[0] * n[1]), n[2], n[3], n[4], NAN, NAN};
        if (curve_add(line, point, st))
            return FAILED;
    }
    return DONE;
}

int draw_loss_by_position(const table *const *from, size_t tables, sheet *s, status *st) {
    curve_sheet c;
    int result = depth_sheet_init(&c, from, &tables, "loss by position in the sequence", st);
    c.layers = 0;
    c.x_label = "position of the predicted token (log scale)";
    if (!c.runs)
        snprintf(c.look[0].text, sizeof c.look[0].text, "all predicted tokens");
    curve_panel *panel = result ? NULL : curves_panel(&c, "", st);
    if (!result && !panel)
        result = FAILED;
    for (size_t i = 0; !result && i < tables; i++)
        result = add_table(&panel->curve[i], from[i], st);
    if (!result) {
        panel->units = "nats / token";
        curves_note(&c,
                    "Means over groups of positions, each drawn at its middle%s; the first token "
                    "of a sequence is predicted by nothing and left out.",
                    c.runs ? ", runs side by side" : "");
        depth_note_intervals(&c, from[0]);
        result = curves_draw(&c, s, st);
    }
    curves_clear(&c);
    return result;
}
