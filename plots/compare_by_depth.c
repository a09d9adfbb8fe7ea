/* Runs against their reference, place by place: sizes of states, and statistics of routing. */
#include "plots/compare_view.h"
#include "plots/curves.h"
#include "plots/figure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One row of panels: attention places and MLP places of one quantity. */
typedef struct compared_row {
    compare_choice choice;
    const char *title, *units;
    bool state; /* not of full modes, which keep none */
    bool band;  /* numbers 3 and 4 are split-half values, the band goes from 0 to the larger */
} compared_row;

static const char *const ratio[] = {"ln_ratio", "low", "high", NULL};
static const char *const difference[] = {"difference", "low", "high", "reference", "value", NULL};
static const char *const split[] = {"value",      "low", "high", "split_half_reference",
                                    "split_half", NULL};
#define SIZES(name)                                                                                \
    { "DEP", "row", name, "point", NULL, ratio }
#define STATISTIC(name)                                                                            \
    { "CST", "statistic", name, "site", NULL, difference }

static const compared_row magnitudes[] = {
    {SIZES("in_rms"), "in_rms", "ln(ratio)", false, false},
    {SIZES("out_rms"), "out_rms", "ln(ratio)", false, false},
    {SIZES("state_rms"), "state_rms", "ln(ratio)", true, false},
};
static const compared_row statistics[] = {
    {STATISTIC("entropy_norm"), "entropy_norm", "difference", false, false},
    {STATISTIC("lookback_norm"), "lookback_norm", "difference", false, false},
    {STATISTIC("head_divergence"), "head_divergence", "diff., nats", false, false},
    {STATISTIC("token_information"), "token_information", "diff., nats", false, false},
    {{"RJS", NULL, NULL, "site", NULL, split}, "run_js", "nats", false, true},
};

static size_t deepest(const compare_row *rows, size_t count, size_t layers) {
    for (size_t i = 0; i < count; i++)
        if (rows[i].at.kind != PLACE_FINAL && rows[i].at.layer >= layers)
            layers = rows[i].at.layer + 1;
    return layers;
}

/* Adds the rows to the two panels. The number of layers must be known. */
static int add_rows(curve_sheet *c, const compared_row *what, const compare_row *rows, size_t count,
                    status *st) {
    curve_panel *panel[PLACE_KINDS];
    if (!(panel[PLACE_ATTN] = curves_panel(c, what->title, st)) ||
        !(panel[PLACE_MLP] = curves_panel(c, what->title, st)))
        return FAILED;
    panel[PLACE_FINAL] = panel[PLACE_ATTN];
    for (size_t i = 0; i < PLACE_FINAL; i++) {
        panel[i]->units = what->units;
        panel[i]->zero_line = true;
    }
    for (size_t i = 0; i < count; i++) {
        const double *n = rows[i].number;
        curve_point point = {place_depth(rows[i].at, c->layers), n[0], n[1], n[2], NAN, NAN};
        if (what->band && !isnan(n[3]) && !isnan(n[4])) {
            point.from = 0;
            point.to = fmax(n[3], n[4]);
        }
        if (curve_add(&panel[rows[i].at.kind]->curve[rows[i].run - 1], point, st))
            return FAILED;
    }
    return DONE;
}

/* What there is to compare: full modes keep no running sum, and statistics that are 0 in both runs
 * are of sites with one source or of one head. */
static size_t keep_comparable(const compare_view *view, const compared_row *what, compare_row *rows,
                              size_t count) {
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        const double *n = rows[i].number;
        bool no_state = what->state && (view->replaces[0] || view->replaces[rows[i].run]);
        bool fixed = what->choice.numbers == difference && n[3] == 0 && n[4] == 0;
        if (!no_state && !fixed)
            rows[kept++] = rows[i];
    }
    return kept;
}

static void begin(curve_sheet *c, const compare_view *view, const char *what) {
    *c = (curve_sheet){.x_label = "layer (its MLP half a layer later)",
                       .runs = true,
                       .looks = view->runs - 1,
                       .shared_rows = true,
                       .column = {"attention, final", "MLP"}};
    run_name reference = view->name[0];
    cut_middle(reference.text, 40);
    snprintf(c->title, sizeof c->title, "against %s", reference.text);
    snprintf(c->subtitle, sizeof c->subtitle, "%s, by depth", what);
    for (size_t i = 1; i < view->runs; i++)
        c->look[i - 1] = view->name[i];
}

static void end_notes(curve_sheet *c, const compare_view *view, const char *left_out) {
    if (*left_out)
        curves_note(c, "Nothing to compare in %s.", left_out);
    curves_note(c, "Bars: paired intervals over sequences; they do not cover training seeds.");
    if (view->left_out)
        curves_note(c, "Left out: the last %zu runs, since one figure tells %d apart.",
                    view->left_out, RUNS_MAX - 1);
}

static int draw_rows(const table *from, const compared_row *what, size_t count, const char *title,
                     const char *nothing, sheet *s, status *st) {
    compare_view view;
    curve_sheet c = {0};
    compare_row *rows[8] = {NULL};
    size_t found[8] = {0}, all = 0;
    char left_out[256] = "";
    int result = compare_view_init(&view, from, st);
    if (result || view.runs < 2) {
        if (!result)
            status_fail(st, "its section RUN has no run beside the reference");
        return result ? result : NOT_DRAWN;
    }
    begin(&c, &view, title);
    for (size_t i = 0; !result && i < count; i++) {
        result = compare_rows(&view, &what[i].choice, &rows[i], &found[i], st);
        if (result)
            break;
        found[i] = keep_comparable(&view, &what[i], rows[i], found[i]);
        c.layers = deepest(rows[i], found[i], c.layers ? c.layers : 1);
        all += found[i];
    }
    for (size_t i = 0; !result && i < count; i++) {
        size_t used = strlen(left_out);
        if (found[i])
            result = add_rows(&c, &what[i], rows[i], found[i], st);
        else
            snprintf(left_out + used, sizeof left_out - used, "%s%s", used ? ", " : "",
                     what[i].title);
    }
    if (!result && all == 0) {
        status_fail(st, "%s", nothing);
        result = NOT_DRAWN;
    }
    if (!result) {
        if (what[count - 1].band && found[count - 1])
            curves_note(&c, "Bands of run_js: 0 to the larger split-half value of the two runs, "
                            "what text alone explains.");
        end_notes(&c, &view, left_out);
        result = curves_draw(&c, s, st);
        if (result == NOT_DRAWN)
            status_fail(st, "no difference is defined: the runs saw different tokens");
    }
    for (size_t i = 0; i < count; i++)
        free(rows[i]);
    curves_clear(&c);
    return result;
}

int draw_compare_magnitude(const table *from, sheet *s, status *st) {
    return draw_rows(from, magnitudes, sizeof magnitudes / sizeof *magnitudes,
                     "size of hidden states, ln(run / reference)",
                     "no two runs have sizes of hidden states at the same places", s, st);
}

int draw_compare_routing(const table *from, sheet *s, status *st) {
    return draw_rows(from, statistics, sizeof statistics / sizeof *statistics,
                     "routing statistics, run - reference",
                     "the reference or every other run does not route over depth", s, st);
}
