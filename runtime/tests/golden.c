#include "runtime/tests/golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void stop(const char *what, const status *st) {
    fprintf(stderr, "%s: %s\n", what, st ? st->text : "");
    abort();
}

static void *keep(const void *from, size_t bytes) {
    if (!from)
        return NULL;
    void *copy = malloc(bytes ? bytes : 1);
    if (!copy)
        stop("no memory", NULL);
    return memcpy(copy, from, bytes);
}

static int keep_site(void *self, const batch *b, const site_view *v, status *st) {
    (void)st;
    run *r = self;
    seen_site *s = &r->site[v->site];
    size_t rows = b->layout.rows, cells = r->program->plan.heads * v->sources;
    s->in_rms = keep(v->in_rms, rows * sizeof(float));
    s->weights = keep(v->weights, rows * cells * sizeof(float));
    s->layout = v->sums_layout;
    s->sums = keep(v->sums, b->layout.sequences * v->sums_layout.total * sizeof(double));
    return DONE;
}

static int keep_sublayer(void *self, const batch *b, const sublayer_view *v, status *st) {
    (void)st;
    run *r = self;
    seen_sublayer *s = &r->sublayer[v->sublayer->index];
    size_t rows = b->layout.rows, bytes = rows * sizeof(float), squares = 0;
    for (size_t i = 0; i < b->layout.sequences; i++)
        squares += (b->layout.start[i + 1] - b->layout.start[i]) *
                   (b->layout.start[i + 1] - b->layout.start[i]);
    s->out_rms = keep(v->out_rms, bytes);
    s->out_absmax = keep(v->out_absmax, bytes);
    s->state_rms = keep(v->state_rms, bytes);
    s->state_absmax = keep(v->state_absmax, bytes);
    s->state_median_abs = keep(v->state_median_abs, bytes);
    s->state = keep(v->state, bytes * r->program->plan.width);
    s->pattern = keep(v->attention_pattern,
                      squares * model_configuration(r->model)->query_heads * sizeof(float));
    return DONE;
}

static int keep_head(void *self, const batch *b, const head_view *v, status *st) {
    (void)st;
    run *r = self;
    size_t bytes = b->layout.rows * sizeof(float);
    r->loss = keep(v->loss, bytes);
    r->logits = keep(v->logits, bytes * model_configuration(r->model)->vocabulary);
    return DONE;
}

static int keep_gradient(void *self, const batch *b, const gradient_view *v, status *st) {
    (void)st;
    run *r = self;
    float *copy = keep(v->l2, b->layout.rows * sizeof(float));
    switch (v->point) {
    case GRADIENT_IN:
        r->site[v->site].grad_in_l2 = copy;
        break;
    case GRADIENT_OUT:
        r->sublayer[v->sublayer->index].grad_out_l2 = copy;
        break;
    case GRADIENT_EMB:
        r->grad_emb_l2 = copy;
        break;
    }
    return DONE;
}

static void keep_parameters(run *r, session *s) {
    status st;
    size_t params = model_params(r->model);
    r->gradient = calloc(params, sizeof *r->gradient);
    r->gradient_tokens = session_gradient_tokens(s);
    for (size_t i = 0; r->gradient && i < params; i++) {
        const model_param *p = model_param_at(r->model, i);
        r->gradient[i] = malloc(p->rows * p->columns * sizeof(float));
        if (!r->gradient[i] || session_gradient(s, i, r->gradient[i], &st))
            stop(p->name, &st);
    }
}

static void drop_results(run *r) {
    for (size_t i = 0; r->program && i < r->program->plan.sites; i++) {
        free(r->site[i].in_rms);
        free(r->site[i].weights);
        free(r->site[i].sums);
        free(r->site[i].grad_in_l2);
        r->site[i] = (seen_site){0};
    }
    for (size_t i = 0; r->program && i + 1 < r->program->plan.sites; i++) {
        seen_sublayer *s = &r->sublayer[i];
        free(s->out_rms);
        free(s->out_absmax);
        free(s->state_rms);
        free(s->state_absmax);
        free(s->state_median_abs);
        free(s->state);
        free(s->pattern);
        free(s->grad_out_l2);
        *s = (seen_sublayer){0};
    }
    free(r->id);
    free(r->loss);
    free(r->logits);
    free(r->grad_emb_l2);
    for (size_t i = 0; r->gradient && i < model_params(r->model); i++)
        free(r->gradient[i]);
    free(r->gradient);
    r->id = NULL;
    r->loss = r->logits = r->grad_emb_l2 = NULL;
    r->gradient = NULL;
}

void run_open(run *r, const char *model_folder, size_t threads) {
    run_open_on(r, model_folder, &(model_options){.device = "cpu", .threads = threads});
}

void run_open_on(run *r, const char *model_folder, const model_options *options) {
    status st;
    *r = (run){0};
    if (model_open(model_folder, options, &r->model, &st))
        stop(model_folder, &st);
    size_t layers = model_configuration(r->model)->layers;
    r->site = calloc(2 * layers + 1, sizeof *r->site);
    r->sublayer = calloc(2 * layers, sizeof *r->sublayer);
    if (!r->site || !r->sublayer)
        stop("no memory", NULL);
    run_program(r, NULL);
}

void run_program(run *r, const removed_set *removed) {
    status st;
    drop_results(r);
    depth_program_free(r->program);
    r->program = NULL;
    if (depth_program_build(model_configuration(r->model), removed, &r->program, &st))
        stop("depth program", &st);
}

static void run_pass(run *r, const int32_t *id, size_t stride, const size_t *lengths,
                     size_t sequences, bool backward) {
    status st;
    drop_results(r);
    r->sequences = sequences;
    r->rows = 0;
    size_t longest = 0, layers = model_configuration(r->model)->layers;
    for (size_t i = 0; i < sequences; i++) {
        r->start[i] = r->rows;
        r->rows += lengths[i];
        longest = lengths[i] > longest ? lengths[i] : longest;
    }
    r->start[sequences] = r->rows;
    r->id = malloc(r->rows * sizeof *r->id);
    bool *all = malloc(2 * layers + 1);
    if (!r->id || !all)
        stop("no memory", NULL);
    memset(all, true, 2 * layers + 1);
    for (size_t i = 0; i < sequences; i++)
        memcpy(r->id + r->start[i], id + i * stride, lengths[i] * sizeof *id);
    session *s;
    session_limits limits = {r->rows, sequences, longest, backward, false};
    if (session_create(r->model, r->program, &limits, &s, &st))
        stop("session", &st);
    observer watch = {.self = r,
                      .magnitudes = true,
                      .routing_sums = true,
                      .routing_pairs = true,
                      .weights = true,
                      .logits = true,
                      .attention = true,
                      .pattern = all,
                      .state = all,
                      .on_site = keep_site,
                      .on_sublayer = keep_sublayer,
                      .on_head = keep_head,
                      .on_gradient = keep_gradient};
    batch b = {.layout = {sequences, r->rows, r->start}, .id = r->id};
    if (session_forward(s, &b, &watch, &st))
        stop("forward", &st);
    if (backward && session_backward(s, &b, &watch, &st))
        stop("backward", &st);
    if (session_finish(s, &st))
        stop("finish", &st);
    if (backward)
        keep_parameters(r, s);
    session_free(s);
    free(all);
}

void run_forward(run *r, const int32_t *id, size_t stride, const size_t *lengths,
                 size_t sequences) {
    run_pass(r, id, stride, lengths, sequences, false);
}

void run_backward(run *r, const int32_t *id, size_t stride, const size_t *lengths,
                  size_t sequences) {
    run_pass(r, id, stride, lengths, sequences, true);
}

void run_close(run *r) {
    drop_results(r);
    depth_program_free(r->program);
    model_close(r->model);
    free(r->site);
    free(r->sublayer);
}

double run_loss(const run *r) {
    double sum = 0;
    size_t n = 0;
    for (size_t i = 0; i < r->sequences; i++)
        for (size_t row = r->start[i]; row + 1 < r->start[i + 1]; row++, n++)
            sum += r->loss[row];
    return sum / (double)n;
}

const char *golden_folder(void) {
    const char *folder = getenv("GOLDEN");
    return folder ? folder : "datasets/golden";
}

double *golden_array(checkpoint *expected, const char *name, size_t *elements, size_t shape[8]) {
    status st;
    const tensor_info *t = checkpoint_find(expected, name);
    if (!t)
        return NULL;
    double *wide = malloc((t->elements + 1) * sizeof *wide);
    if (!wide)
        stop("no memory", NULL);
    *elements = t->elements;
    for (size_t i = 0; i < t->rank; i++)
        shape[i] = t->shape[i];
    if (t->dtype == DTYPE_F64) {
        if (checkpoint_read_raw(expected, t, wide, &st))
            stop(name, &st);
        return wide;
    }
    float *narrow = malloc((t->elements + 1) * sizeof *narrow);
    if (!narrow || checkpoint_read(expected, t, narrow, &st))
        stop(name, &st);
    for (size_t i = 0; i < t->elements; i++)
        wide[i] = (double)narrow[i];
    free(narrow);
    return wide;
}

int32_t *golden_tokens(checkpoint *expected, size_t *sequences, size_t *length) {
    status st;
    const tensor_info *t = checkpoint_find(expected, "tokens");
    int32_t *id = t ? malloc(t->bytes) : NULL;
    if (!id || checkpoint_read_raw(expected, t, id, &st))
        stop("tokens", t ? &st : NULL);
    *sequences = t->shape[0];
    *length = t->shape[1];
    return id;
}

void golden_write_tokens(const char *path, const int32_t *id, size_t sequences, size_t length) {
    char header[129];
    memcpy(header, "\x93NUMPY\x01\0\x76\0", 10);
    int used = snprintf(header + 10, sizeof header - 10,
                        "{'descr': '<i4', 'fortran_order': False, 'shape': (%zu, %zu), }",
                        sequences, length);
    memset(header + 10 + used, ' ', (size_t)(117 - used));
    header[127] = '\n';
    FILE *out = fopen(path, "wb");
    size_t n = sequences * length;
    if (!out || fwrite(header, 1, 128, out) != 128 || fwrite(id, sizeof *id, n, out) != n ||
        fclose(out) != 0)
        stop(path, NULL);
}

double relative_l2(const float *got, const double *want, size_t n) {
    double error = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        double e = (double)got[i] - want[i];
        error += e * e;
        size += want[i] * want[i];
    }
    return sqrt(error / (size > 0 ? size : 1));
}
