/* Where gradients go: norms per token, their inequality over layers, norms of parameters. */
#include "analyze/depth_numbers.h"
#include "analyze/depth_table.h"
#include "analyze/table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- norms per token ---- */

static void put_norms(const depth_table *t, const char *quantity, const token_row *row,
                      const interval *norm, double scale) {
    for (size_t p = 0; p < row->places; p++) {
        table_row(t->out, "GRD");
        table_text(t->out, quantity);
        table_text(t->out, token_row_label(t->about, row->name, p));
        table_real(t->out, norm[p].value * scale);
        table_real(t->out, norm[p].low * scale);
        table_real(t->out, norm[p].high * scale);
        table_end(t->out);
    }
}

static int put_norm(const depth_table *t, const char *quantity, const char *name,
                    const token_term *term, double scale, status *st) {
    token_row row;
    if (token_row_read(t->rec, name, t->about->skip_first, term, &row, st))
        return FAILED;
    double *draws = depth_draws(t->b, &row, NULL, row.places, st);
    interval *norm = mem_array(row.places, sizeof *norm, "intervals", st);
    int rc = draws && norm ? DONE : FAILED;
    if (!rc) {
        bootstrap_intervals(t->b, draws, row.places, norm);
        put_norms(t, quantity, &row, norm, scale);
        if (!term)
            depth_say_faults(t, &row);
    }
    free(draws);
    free(norm);
    token_row_clear(&row);
    return rc;
}

static int put_token_norms(const depth_table *t, status *st) {
    table_section(t->out, "GRD",
                  "gradient norms: token means of the norm of the gradient of the sum of the "
                  "sequence's token losses",
                  "quantity, point, value, low, high",
                  "in_l2, out_l2, emb_l2: nats by the unit of the state, in_rel: nats");
    if (put_norm(t, "in_l2", "in_l2", NULL, 1, st))
        return FAILED;
    if (t->about->has_hidden && t->width) {
        const token_term size = {.factor = "in_rms"};
        if (put_norm(t, "in_rel", "in_l2", &size, sqrt((double)t->width), st))
            return FAILED;
    } else {
        table_comment(t->out, "in_rel is left out: the recording has no %s.",
                      t->width ? "hidden/in_rms" : "hidden_size in its model_config");
    }
    if (put_norm(t, "out_l2", "out_l2", NULL, 1, st) ||
        put_norm(t, "emb_l2", "emb_l2", NULL, 1, st))
        return FAILED;
    table_comment(t->out, "in_l2 is what reaches a site's input through its own sublayer alone and "
                          "goes as 1/||in||; out_l2 is total, through every later reader. Between "
                          "modes compare only out_l2 and in_rel = in_l2 * ||in||.");
    table_comment(t->out, "The last token of a sequence predicts nothing: its gradients are 0 and "
                          "count.");
    return DONE;
}

/* ---- uniformity ---- */

static const struct {
    const char *name;
    double (*of)(const double *g, size_t n);
} measures[] = {{"variation", variation}, {"gini", gini}, {"max_to_min", max_to_min}};
enum { MEASURES = sizeof measures / sizeof *measures };

static void put_measure(FILE *out, const char *quantity, size_t layers, size_t measure,
                        interval x) {
    table_row(out, "GUN");
    table_text(out, quantity);
    table_text(out, measures[measure].name);
    table_size(out, layers);
    table_interval(out, x);
    table_end(out);
}

/* The layers whose MLP's output has a gradient. */
static size_t existing_layers(const depth_table *t, const token_row *row, size_t *place) {
    size_t count = 0;
    for (size_t i = 0; i < t->layers; i++)
        if (row->exists[t->layer[i].place])
            place[count++] = t->layer[i].place;
    return count;
}

static int put_output_uniformity(const depth_table *t, status *st) {
    token_row row;
    if (token_row_read(t->rec, "out_l2", t->about->skip_first, NULL, &row, st))
        return FAILED;
    int rc = FAILED;
    double *draws = NULL, *found = NULL;
    size_t count = bootstrap_draws(t->b), layers = 0;
    size_t *place = mem_array(t->layers, sizeof *place, "layers", st);
    if (!place)
        goto done;
    layers = existing_layers(t, &row, place);
    draws = depth_draws(t->b, &row, place, layers, st);
    found = mem_array(count, sizeof *found, "resampled statistics", st);
    if (!draws || !found)
        goto done;
    for (size_t m = 0; m < MEASURES; m++) {
        interval x;
        for (size_t d = 0; d < count; d++)
            found[d] = measures[m].of(draws + d * layers, layers);
        bootstrap_intervals(t->b, found, 1, &x);
        put_measure(t->out, "out_l2", layers, m, x);
    }
    rc = DONE;
done:
    free(place);
    free(draws);
    free(found);
    token_row_clear(&row);
    return rc;
}

static void put_layer_uniformity(const depth_table *t, const double *layer_l2) {
    for (size_t m = 0; m < MEASURES; m++)
        put_measure(t->out, "layer_l2", t->about->layers, m,
                    (interval){measures[m].of(layer_l2, t->about->layers), NAN, NAN});
}

/* ---- norms of parameters ---- */

static void put_layers(const depth_table *t, const double *norm) {
    table_section(t->out, "GLY",
                  "layer_l2: gradient norm of a layer's parameters, routers included",
                  "layer, value", "nats/token by the unit of the parameter");
    for (size_t i = 0; i < t->about->layers; i++) {
        table_row(t->out, "GLY");
        table_size(t->out, i);
        table_real(t->out, norm[i]);
        table_end(t->out);
    }
}

static void put_queries(const depth_table *t, const double *norm) {
    table_section(t->out, "GQY", "query_l2: gradient norm of a routing head's slice of the query",
                  "site, head, value", "nats/token by the unit of the query");
    for (size_t i = 0; i < t->about->sites; i++)
        for (size_t h = 0; t->sites->site[i].shape.sources && h < t->about->heads; h++) {
            table_row(t->out, "GQY");
            table_text(t->out, t->about->site_name[i]);
            table_size(t->out, h);
            table_real(t->out, norm[i * t->about->heads + h]);
            table_end(t->out);
        }
}

static void put_parameters(const depth_table *t, const double *norm) {
    double square = 0;
    for (size_t i = 0; i < t->about->params; i++)
        square += norm[i] * norm[i];
    table_section(t->out, "GPA",
                  "param_l2: gradient norm of each parameter, and of all together (all)",
                  "param, value", "nats/token by the unit of the parameter");
    for (size_t i = 0; i <= t->about->params; i++) {
        bool all = i == t->about->params;
        table_row(t->out, "GPA");
        table_text(t->out, all ? "all" : t->about->param_name[i]);
        table_real(t->out, all ? sqrt(square) : norm[i]);
        table_end(t->out);
    }
}

static int put_parameter_norms(const depth_table *t, status *st) {
    typedef void put_function(const depth_table *t, const double *norm);
    const struct {
        const char *name;
        put_function *put[2];
        bool wanted;
    } list[] = {{"layer_l2", {put_layer_uniformity, put_layers}, true},
                {"query_l2", {put_queries}, t->about->sources > 0},
                {"param_l2", {put_parameters}, true}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        double *norm;
        if (!list[i].wanted)
            continue;
        if (recording_read_gradient_norms(t->rec, list[i].name, &norm, st))
            return FAILED;
        for (size_t k = 0; k < 2 && list[i].put[k]; k++)
            list[i].put[k](t, norm);
        free(norm);
    }
    table_comment(t->out,
                  "GLY, GQY, GPA are of the mean loss over %llu predicted tokens and have no "
                  "intervals; noise adds to them as tokens grow fewer, so runs of different length "
                  "are not compared.",
                  (unsigned long long)t->about->grad_tokens);
    return DONE;
}

int depth_put_gradients(const depth_table *t, status *st) {
    if (!t->about->has_gradients) {
        table_comment(t->out, "GRD, GUN, GLY, GQY, GPA are left out: the recording has no "
                              "gradients; `fathom capture --gradients` records them.");
        return DONE;
    }
    if (put_token_norms(t, st))
        return FAILED;
    table_section(t->out, "GUN",
                  "inequality over layers of the gradient norms of the MLPs' outputs (out_l2) and "
                  "of the layers' parameters (layer_l2): population standard deviation / mean, "
                  "Gini coefficient, largest / smallest",
                  "quantity, measure, layers, value, low, high", "1");
    if (put_output_uniformity(t, st))
        return FAILED;
    return put_parameter_norms(t, st);
}
