#include "analyze/depth_values.h"

#include <stdlib.h>
#include <string.h>

struct depth_values {
    const depth_program *program;
    size_t width;
    float **row;    /* [values] of [rows, width]; of one row where the value is constant */
    bool *constant; /* [values] the same for every token */
    bool *first;    /* [sites] only the first that is read: it shows the embedding */
    bool *all;      /* [sublayers of the whole model] true */
};

int depth_values_create(const model *m, const depth_program *program, size_t rows,
                        depth_values **out, status *st) {
    const depth_plan *plan = &program->plan;
    depth_values *v = mem_array(1, sizeof *v, "depth values", st);
    if (!v)
        return FAILED;
    v->program = program;
    v->width = plan->width;
    v->row = mem_array(plan->values, sizeof *v->row, "depth values", st);
    v->constant = mem_array(plan->values, sizeof *v->constant, "depth values", st);
    v->first = mem_array(plan->sites, sizeof *v->first, "depth values", st);
    v->all = mem_array(plan->sites, sizeof *v->all, "depth values", st);
    if (!v->row || !v->constant || !v->first || !v->all)
        goto failed;
    if (program->sublayers > 0)
        v->first[program->sublayer[0].site] = true;
    for (size_t i = 0; i < plan->sites; i++)
        v->all[i] = true;
    for (size_t i = 0; i < plan->values; i++) {
        const depth_value *value = &plan->value[i];
        v->constant[i] = value->kind == VALUE_NULL || value->kind == VALUE_ZERO;
        const size_t count = v->constant[i] ? 1 : rows;
        if (!(v->row[i] = mem_array(count, v->width * sizeof(float), "depth values", st)))
            goto failed;
        if (value->kind == VALUE_NULL &&
            model_kernels(m)->download(model_backend(m),
                                       model_site(m, (size_t)value->a)->null_source, 0, v->row[i],
                                       v->width, st))
            goto failed;
    }
    *out = v;
    return DONE;
failed:
    depth_values_free(v);
    return FAILED;
}

void depth_values_free(depth_values *v) {
    if (!v)
        return;
    for (size_t i = 0; v->row && i < v->program->plan.values; i++)
        free(v->row[i]);
    free(v->row);
    free(v->constant);
    free(v->first);
    free(v->all);
    free(v);
}

void depth_values_watch(const depth_values *v, observer *watch) {
    watch->in = v->first;
    watch->base = v->first;
    watch->out = v->all;
}

const float *depth_values_row(const depth_values *v, int value, size_t row) {
    return v->row[value] + (v->constant[value] ? 0 : row * v->width);
}

/* Sums and differences that follow from `value`. */
static void follow(depth_values *v, size_t value, size_t rows) {
    const depth_plan *plan = &v->program->plan;
    for (size_t i = value + 1; i < plan->values && plan->value[i].kind != VALUE_OUT; i++) {
        const depth_value *next = &plan->value[i];
        if (next->kind != VALUE_ADD && next->kind != VALUE_SUB)
            continue;
        const float sign = next->kind == VALUE_ADD ? 1.0f : -1.0f;
#pragma omp parallel for schedule(static)
        for (size_t r = 0; r < rows; r++) {
            const float *a = depth_values_row(v, next->a, r), *b = depth_values_row(v, next->b, r);
            float *to = v->row[i] + r * v->width;
            for (size_t k = 0; k < v->width; k++)
                to[k] = a[k] + sign * b[k];
        }
    }
}

static void take(depth_values *v, int value, const batch *b, const float *from) {
    memcpy(v->row[value], from, b->layout.rows * v->width * sizeof *from);
    follow(v, (size_t)value, b->layout.rows);
}

/* The first sublayer reads the embedding: as its base, or as its one source, of weight 1. */
void depth_values_site(depth_values *v, const batch *b, const site_view *view) {
    if (v->first[view->site])
        take(v, v->program->emb, b, view->base ? view->base : view->in);
}

void depth_values_sublayer(depth_values *v, const batch *b, const sublayer_view *view) {
    take(v, view->sublayer->out, b, view->out);
}

void depth_values_add(const depth_values *v, const batch *b, double *sums) {
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < v->program->plan.values; i++)
        for (size_t r = 0; r < b->layout.rows; r++) {
            const float *row = depth_values_row(v, (int)i, r);
            for (size_t k = 0; k < v->width; k++)
                sums[i * v->width + k] += (double)row[k];
        }
}
