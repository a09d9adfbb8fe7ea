#include "probes/gradient_norms.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double sum_of_squares(const float *x, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += (double)x[i] * (double)x[i];
    return sum;
}

/* SIZE_MAX: a parameter of no layer. */
static size_t layer_of(const char *name) {
    static const char prefix[] = "model.layers.";
    if (strncmp(name, prefix, strlen(prefix)) != 0)
        return SIZE_MAX;
    return (size_t)strtoull(name + strlen(prefix), NULL, 10);
}

/* The site whose query a parameter is; SIZE_MAX: none. */
static size_t site_of(const model *m, const recording_axes *axes, const model_param *p) {
    const model_weights *w = model_tensors(m);
    for (size_t i = 0; i < axes->layers; i++) {
        if (p->memory == w->layer[i].attn_site.query)
            return 2 * i;
        if (p->memory == w->layer[i].mlp_site.query)
            return 2 * i + 1;
    }
    return p->memory == w->final_site.query ? axes->sites - 1 : SIZE_MAX;
}

static int create(const recording_axes *axes, gradient_norms *out, status *st) {
    for (size_t i = 0; i < GRADIENT_NORMS; i++)
        if (!(out->norm[i] = mem_array(gradient_norm_size(axes, (gradient_norm)i),
                                       sizeof *out->norm[i], "gradient norms", st)))
            return FAILED;
    for (size_t i = 0; i < axes->sites * axes->heads; i++)
        out->norm[QUERY_L2][i] = NAN;
    return DONE;
}

int gradient_norms_read(session *s, const model *m, const recording_axes *axes, gradient_norms *out,
                        status *st) {
    *out = (gradient_norms){0};
    double tokens = (double)session_gradient_tokens(s);
    float *gradient = NULL;
    double *layer = mem_array(axes->layers, sizeof *layer, "gradient norms", st);
    int rc = layer ? create(axes, out, st) : FAILED;
    for (size_t i = 0; i < axes->params && !rc; i++) {
        const model_param *p = model_param_at(m, i);
        size_t size = p->rows * p->columns, in = layer_of(p->name), site = site_of(m, axes, p);
        free(gradient);
        gradient = mem_array(size, sizeof *gradient, p->name, st);
        rc = gradient ? session_gradient(s, i, gradient, st) : FAILED;
        if (rc)
            break;
        double squares = sum_of_squares(gradient, size);
        out->norm[PARAM_L2][i] = (float)(sqrt(squares) / tokens);
        if (!isfinite(squares) && out->nonfinite++ == 0)
            out->first_nonfinite = p->name;
        if (in < axes->layers)
            layer[in] += squares;
        for (size_t h = 0, slice = size / axes->heads; site != SIZE_MAX && h < axes->heads; h++)
            out->norm[QUERY_L2][site * axes->heads + h] =
                (float)(sqrt(sum_of_squares(gradient + h * slice, slice)) / tokens);
    }
    for (size_t i = 0; i < axes->layers && !rc; i++)
        out->norm[LAYER_L2][i] = (float)(sqrt(layer[i]) / tokens);
    free(gradient);
    free(layer);
    return rc;
}

void gradient_norms_clear(gradient_norms *norms) {
    for (size_t i = 0; i < GRADIENT_NORMS; i++)
        free(norms->norm[i]);
    *norms = (gradient_norms){0};
}
