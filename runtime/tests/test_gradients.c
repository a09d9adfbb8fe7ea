/* Gradients: every gradient of the goldens, finite differences where no golden has them, bits that
 * do not depend on batches or threads, and a loss that falls.
 *
 * Bounds: a parameter's error <= 2e-4 * max(its norm, 1e-3 * the global norm); 5e-4 where it is one
 * number, a sum over all tokens and channels in which rounding has nothing to average over (alpha
 * gates are at 1.5e-4 to 2.8e-4, by the order in which the forward pass adds). Norms of
 * activations' gradients 6e-5 relative L2 and not 2e-5: tiny/block-h1-n1 is at 3.3e-5, half of
 * which goes with float64 logits and exponentials in the forward pass, and none with a float64
 * backward. Largest errors seen are printed at the end. */
#include "runtime/tests/checkpoint_edit.h"
#include "runtime/tests/golden.h"
#include "runtime/tests/scratch.h"

#include "runtime/session_state.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define TINY "datasets/golden/tiny/"

static const double PARAM_BOUND = 2e-4, NUMBER_BOUND = 5e-4, SMALL_PART = 1e-3, L2_BOUND = 6e-5;
static const char *const MODELS[] = {"tiny/block-h1-n1",
                                     "tiny/block-h1-n2",
                                     "tiny/block-h1-n4",
                                     "tiny/block-h3-n5",
                                     "tiny/delta-h1-n5",
                                     "tiny/delta-h4-n2",
                                     "tiny/delta-h4-n4",
                                     "tiny/delta-raw-h1",
                                     "tiny/full-h1",
                                     "tiny/full-h4",
                                     "tiny/full-h4-alpha",
                                     "tiny/full-h4-zero-query",
                                     "tiny/standard-llama",
                                     "tiny/standard-qwen3",
                                     "zoo/standard",
                                     "zoo/attnres-full",
                                     "zoo/attnres-block",
                                     "zoo/mhar-h8",
                                     "zoo/mhar-block-h4",
                                     "hf/llama",
                                     "hf/llama3-rope",
                                     "hf/qwen2",
                                     "hf/qwen3"};
enum { TINY_MODELS = 14 };

static struct { double param, norm, in, out, emb, slope; } worst;

static void hold(const char *where, const char *what, double error, double bound, double *most) {
    if (!(error <= *most))
        *most = error;
    if (!(error <= bound))
        fail_msg("%s: %s: error %.3g, bound %.3g", where, what, error, bound);
}

static double norm_of(const float *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

static size_t size_of(const model *m, size_t param) {
    const model_param *p = model_param_at(m, param);
    return p->rows * p->columns;
}

static double global_norm(const run *r) {
    double sum = 0;
    for (size_t i = 0; i < model_params(r->model); i++) {
        double norm = norm_of(r->gradient[i], size_of(r->model, i));
        sum += norm * norm;
    }
    return sqrt(sum);
}

/* ---- goldens ---- */

/* Some arrays are stored for the first sequences only. */
static void check_norms(const char *model_name, checkpoint *expected, const char *name,
                        const float *got, double *most) {
    size_t n, shape[8];
    double *want = golden_array(expected, name, &n, shape);
    if (!want && strncmp(model_name, "hf/", 3) == 0)
        return;
    if (!want || !got)
        fail_msg("%s: %s: %s", model_name, name, want ? "not observed" : "not in the golden file");
    hold(model_name, name, relative_l2(got, want, n), L2_BOUND, most);
    free(want);
}

/* Gradients of the mean loss, whole where the file has them, else their norms. */
static void check_parameters(const char *model_name, checkpoint *expected, const run *r) {
    double tokens = (double)r->gradient_tokens, all = global_norm(r) / tokens, squares = 0;
    size_t norms = 0;
    for (size_t i = 0; i < model_params(r->model); i++) {
        size_t n, shape[8], size = size_of(r->model, i);
        const char *param = model_param_at(r->model, i)->name;
        double bound = size == 1 ? NUMBER_BOUND : PARAM_BOUND;
        char name[160];
        snprintf(name, sizeof name, "grad/%s", param);
        double *want = golden_array(expected, name, &n, shape);
        if (want) {
            double error = 0, norm = 0;
            assert_int_equal(n, size);
            for (size_t k = 0; k < n; k++) {
                double e = (double)r->gradient[i][k] / tokens - want[k];
                error += e * e;
                norm += want[k] * want[k];
            }
            hold(model_name, name, sqrt(error) / fmax(sqrt(norm), SMALL_PART * all), bound,
                 &worst.param);
            free(want);
        }
        snprintf(name, sizeof name, "grad_l2/%s", param);
        want = golden_array(expected, name, &n, shape);
        if (!want)
            continue;
        double error = fabs(norm_of(r->gradient[i], size) / tokens - want[0]);
        hold(model_name, name, error / fmax(want[0], SMALL_PART * all), bound, &worst.norm);
        squares += want[0] * want[0];
        norms++;
        free(want);
    }
    if (norms) { /* the squares of all parameters' norms are the global norm's */
        assert_int_equal(norms, model_params(r->model));
        hold(model_name, "global norm", fabs(all / sqrt(squares) - 1), PARAM_BOUND, &worst.norm);
    }
}

static void every_gradient_agrees_with_float64(void **state) {
    (void)state;
    for (size_t m = 0; m < COUNT(MODELS); m++) {
        status st;
        char path[512], name[128];
        run r;
        checkpoint *expected;
        size_t lengths[64], sequences, length;
        snprintf(path, sizeof path, "%s/%s/expected.safetensors", golden_folder(), MODELS[m]);
        if (checkpoint_open(path, &expected, &st))
            fail_msg("%s", st.text);
        if (strncmp(MODELS[m], "zoo/", 4) == 0)
            snprintf(path, sizeof path, "datasets/models/%s", MODELS[m] + 4);
        else
            snprintf(path, sizeof path, "%s/%s", golden_folder(), MODELS[m]);
        run_open(&r, path, 2);
        int32_t *id = golden_tokens(expected, &sequences, &length);
        for (size_t b = 0; b < sequences; b++)
            lengths[b] = length;
        run_backward(&r, id, length, lengths, sequences);
        assert_int_equal(r.gradient_tokens, sequences * (length - 1));
        check_parameters(MODELS[m], expected, &r);
        for (size_t i = 0; i < r.program->plan.sites; i++) {
            snprintf(name, sizeof name, "grad_in_l2/%s", r.program->site_name[i]);
            check_norms(MODELS[m], expected, name, r.site[i].grad_in_l2, &worst.in);
        }
        for (size_t i = 0; i + 1 < r.program->plan.sites; i++) {
            snprintf(name, sizeof name, "grad_out_l2/%s", r.program->site_name[i]);
            check_norms(MODELS[m], expected, name, r.sublayer[i].grad_out_l2, &worst.out);
        }
        check_norms(MODELS[m], expected, "grad_emb_l2", r.grad_emb_l2, &worst.emb);
        free(id);
        run_close(&r);
        checkpoint_close(expected);
    }
}

/* ---- sessions ---- */

/* Unequal sequences, one of a single token. */
static const size_t START[] = {0, 19, 20, 31, 55};
enum { SEQUENCES = 4, ROWS = 55 };

static void text_ids(int32_t id[ROWS]) {
    for (size_t i = 0; i < ROWS; i++)
        id[i] = (int32_t)((i * i * 7 + 3 * i + 5) % 61);
}

static model *open_model(const char *folder, size_t threads) {
    status st;
    model *m;
    model_options options = {.device = "cpu", .threads = threads};
    if (model_open(folder, &options, &m, &st))
        fail_msg("%s", st.text);
    return m;
}

static depth_program *open_program(const model *m, const removed_set *removed) {
    status st;
    depth_program *p;
    if (depth_program_build(model_configuration(m), removed, &p, &st))
        fail_msg("%s", st.text);
    return p;
}

static session *open_session(const model *m, const depth_program *p, bool backward) {
    status st;
    session *s;
    session_limits limits = {ROWS, SEQUENCES, ROWS, backward, false};
    if (session_create(m, p, &limits, &s, &st))
        fail_msg("%s", st.text);
    return s;
}

/* Losses of the predicted tokens of the sequences first .. first + count - 1 of the text, summed
 * by the observer, and with `backward` their gradients. */
static int add_losses(void *self, const batch *b, const head_view *view, status *st) {
    (void)st;
    for (size_t i = 0; i < b->layout.rows; i++)
        if (!isnan(view->loss[i]))
            *(double *)self += (double)view->loss[i];
    return DONE;
}

static double run_text(session *s, size_t first, size_t count, bool backward, observer *watch) {
    status st;
    int32_t id[ROWS];
    double loss = 0;
    size_t start[SEQUENCES + 1];
    text_ids(id);
    for (size_t b = 0; b <= count; b++)
        start[b] = START[first + b] - START[first];
    batch text = {.layout = {count, start[count], start}, .id = id + START[first]};
    observer losses = {.self = &loss, .on_head = add_losses};
    if (session_forward(s, &text, &losses, &st) ||
        (backward && session_backward(s, &text, watch, &st)))
        fail_msg("%s", st.text);
    return loss;
}

static void get_gradient(session *s, const model *m, size_t param, float **out) {
    status st;
    *out = malloc(size_of(m, param) * sizeof **out);
    assert_non_null(*out);
    if (session_gradient(s, param, *out, &st))
        fail_msg("%s", st.text);
}

/* ---- out and state ---- */

/* Where a sublayer's output is read through the running tensor alone, both have one gradient. In
 * `delta` outputs are sources themselves, and the gradients differ. */
static void out_has_the_gradient_of_state(void **state) {
    (void)state;
    for (size_t i = 0; i < TINY_MODELS; i++) {
        char path[256];
        status st;
        snprintf(path, sizeof path, "datasets/golden/%s", MODELS[i]);
        model *m = open_model(path, 1);
        depth_program *p = open_program(m, NULL);
        session *s = open_session(m, p, true);
        run_text(s, 0, SEQUENCES, true, NULL);
        size_t different = 0;
        for (size_t k = 0; k < p->sublayers; k++) {
            const buffer *d_out, *d_state;
            if (s->k->depth_pull(s->axis, (size_t)p->sublayer[k].out, &d_out, &st) ||
                s->k->depth_pull(s->axis, (size_t)p->sublayer[k].state, &d_state, &st))
                fail_msg("%s", st.text);
            different += memcmp(s->k->host(s->device, d_out), s->k->host(s->device, d_state),
                                ROWS * p->plan.width * sizeof(float)) != 0;
        }
        if (model_configuration(m)->mode == MODE_DELTA)
            assert_int_equal(different, p->sublayers - 1); /* none reads the last one's */
        else
            assert_int_equal(different, 0);
        session_free(s);
        depth_program_free(p);
        model_close(m);
    }
}

/* ---- finite differences ---- */

static void set_param(const model *m, size_t param, const float *value) {
    status st;
    const model_param *p = model_param_at(m, param);
    if (model_kernels(m)->upload(model_backend(m), (buffer *)p->memory, p->offset, value,
                                 size_of(m, param), &st))
        fail_msg("%s", st.text);
}

static float *get_param(const model *m, size_t param) {
    status st;
    const model_param *p = model_param_at(m, param);
    float *value = malloc(size_of(m, param) * sizeof *value);
    assert_non_null(value);
    if (model_kernels(m)->download(model_backend(m), p->memory, p->offset, value, size_of(m, param),
                                   &st))
        fail_msg("%s", st.text);
    return value;
}

/* A session folds routers' weights when it is made: a changed model needs a new one. */
static double loss_of(const model *m, const depth_program *p) {
    session *s = open_session(m, p, false);
    double loss = run_text(s, 0, SEQUENCES, false, NULL);
    session_free(s);
    return loss;
}

/* The slope along a direction whose every element has its gradient's sign, so that none cancels
 * another: sum of |g_i| u_i, u in [1, 2). Central differences of two steps, extrapolated. A step
 * changes the loss by 0.01 of some 200, or the tensor by 1/200. */
static void check_slope(const model *m, const depth_program *p, const char *where, size_t param,
                        const float *gradient) {
    const double rounding = 3e-5; /* of the loss */
    size_t n = size_of(m, param);
    const char *name = model_param_at(m, param)->name;
    float *value = get_param(m, param), *moved = malloc(n * sizeof *moved);
    double slope = 0, loss[4], size = norm_of(value, n) / sqrt((double)n);
    assert_non_null(moved);
    for (size_t i = 0; i < n; i++)
        slope += fabs((double)gradient[i]) * (1 + (double)(i * 7 % 16) / 16);
    double step = fmin(0.01 / fmax(slope, 1e-3), 0.005 * (size > 0 ? size : 1));
    for (int k = 0; k < 4; k++) {
        static const double side[4] = {1, -1, 2, -2};
        for (size_t i = 0; i < n; i++)
            moved[i] = value[i] + (float)(side[k] * step * (1 + (double)(i * 7 % 16) / 16) *
                                          (gradient[i] < 0 ? -1 : 1));
        set_param(m, param, moved);
        loss[k] = loss_of(m, p);
    }
    set_param(m, param, value);
    double found = (8 * (loss[0] - loss[1]) - (loss[2] - loss[3])) / (12 * step);
    if (getenv("TEST_SLOPES"))
        printf("%s %s %.6g %.6g step %.3g\n", where, name, slope, found, step);
    hold(where, name, fmax(fabs(found - slope) - rounding / step, 0) / fmax(slope, 1e-3), 0.01,
         &worst.slope);
    free(value);
    free(moved);
}

/* Of every router's tensors, and of each `stride`-th of the others. */
static void check_slopes(const char *folder, size_t stride, const removed_set *removed) {
    model *m = open_model(folder, 1);
    depth_program *p = open_program(m, removed);
    session *s = open_session(m, p, true);
    run_text(s, 0, SEQUENCES, true, NULL);
    for (size_t i = 0; i < model_params(m); i++) {
        float *gradient;
        if (strcmp(model_param_at(m, i)->kind, "router") != 0 && i % stride != 0)
            continue;
        get_gradient(s, m, i, &gradient);
        check_slope(m, p, folder, i, gradient);
        free(gradient);
    }
    session_free(s);
    depth_program_free(p);
    model_close(m);
}

static float pseudo_random(size_t i) {
    return (float)(sin(12.9898 * (double)(i + 1)) * 0.5);
}

/* Adds a tensor of `count` values to every site of a copy; `shape` is JSON. */
static void add_tensors(const char *dir, const char *suffix, const char *shape, size_t count,
                        float scale) {
    float *value = malloc(count * sizeof *value);
    assert_non_null(value);
    for (size_t site = 0; site < 10; site++) {
        char name[128];
        snprintf(name, sizeof name, "model.layers.%zu.%s_%s", site / 2, site % 2 ? "mlp" : "attn",
                 suffix);
        for (size_t i = 0; i < count; i++)
            value[i] = scale * pseudo_random(site * 131 + i);
        assert_int_equal(edit_add(dir, name, shape, value, count), 1);
    }
    free(value);
}

/* A copy of a tiny model with another kind of gate. Freed by the caller. */
static char *gated_copy(const char *name, gate_kind gate, bool bias) {
    char path[256], as[128];
    snprintf(path, sizeof path, TINY "%s", name);
    snprintf(as, sizeof as, "gradients-%s-%d", name, (int)gate);
    char *dir = scratch_path(as);
    assert_int_equal(checkpoint_copy(path, dir), 0);
    const char *type = gate == GATE_ALPHA            ? "learnable_alpha"
                       : gate == GATE_SIGMOID_SCALAR ? "sigmoid_scalar"
                                                     : "sigmoid_vector";
    edit_config_text(dir, "attnres_gate_type", type);
    if (gate == GATE_ALPHA)
        add_tensors(dir, "res_alpha", "[1]", 1, 1.0f);
    if (gate == GATE_SIGMOID_SCALAR)
        add_tensors(dir, "res_gate_logit", "[]", 1, 1.0f);
    if (gate == GATE_SIGMOID_VECTOR)
        add_tensors(dir, "res_gate_proj.weight", "[48,48]", 48 * 48, 0.5f);
    if (bias)
        add_tensors(dir, "res_gate_proj.bias", "[48]", 48, 1.0f);
    return dir;
}

static void gates_agree_with_finite_differences(void **state) {
    (void)state;
    static const struct {
        const char *name;
        gate_kind gate;
        bool bias, null_source;
    } row[] = {{"full-h4", GATE_SIGMOID_SCALAR, false, false},
               {"full-h1", GATE_SIGMOID_VECTOR, true, false},
               {"block-h3-n5", GATE_SIGMOID_VECTOR, false, false},
               {"block-h1-n2", GATE_ALPHA, false, false},
               {"delta-h4-n4", GATE_SIGMOID_SCALAR, false, false},
               {"delta-h1-n5", GATE_SIGMOID_VECTOR, true, true},
               {"delta-raw-h1", GATE_SIGMOID_VECTOR, false, false}};
    for (size_t i = 0; i < COUNT(row); i++) {
        char *dir = gated_copy(row[i].name, row[i].gate, row[i].bias);
        if (row[i].null_source) {
            edit_config(dir, "attnres_use_null_source", "true");
            add_tensors(dir, "null_source", "[48]", 48, 1.0f);
        }
        check_slopes(dir, 16, NULL);
        free(dir);
    }
}

static void removed_sublayers_agree_with_finite_differences(void **state) {
    (void)state;
    static const struct {
        const char *name;
        removal how;
        size_t gone[2];
    } row[] = {{"full-h4-alpha", ZERO_OUTPUT, {3, 4}}, {"full-h4", DROP_SOURCE, {4, 5}},
               {"block-h3-n5", ZERO_OUTPUT, {2, 3}},   {"block-h1-n2", DROP_SOURCE, {6, 9}},
               {"delta-h4-n2", DROP_SOURCE, {4, 7}},   {"delta-raw-h1", ZERO_OUTPUT, {0, 5}}};
    for (size_t i = 0; i < COUNT(row); i++) {
        char path[256];
        bool gone[10] = {false};
        gone[row[i].gone[0]] = gone[row[i].gone[1]] = true;
        snprintf(path, sizeof path, TINY "%s", row[i].name);
        check_slopes(path, 4, &(removed_set){gone, row[i].how});
    }
    /* A gate that reads zeros: the base of the site after a removed sublayer. */
    bool gone[10] = {[1] = true, [6] = true};
    char *dir = gated_copy("full-h4", GATE_SIGMOID_VECTOR, true);
    check_slopes(dir, 4, &(removed_set){gone, ZERO_OUTPUT});
    free(dir);
}

/* ---- bits ---- */

typedef struct norms {
    size_t points; /* seen so far */
    size_t first;  /* row of the text with which the batch begins */
    float l2[32][ROWS];
} norms;

static int keep_norms(void *self, const batch *b, const gradient_view *view, status *st) {
    (void)st;
    norms *n = self;
    assert_true(n->points < 32);
    memcpy(n->l2[n->points++] + n->first, view->l2, b->layout.rows * sizeof(float));
    return DONE;
}

static void check_bits(const char *folder) {
    static const size_t per_batch[] = {4, 1, 2, 4, 3};
    static const size_t threads[] = {1, 1, 1, 2, 2};
    static norms kept[2];
    float **first = NULL;
    for (size_t way = 0; way < COUNT(per_batch); way++) {
        model *m = open_model(folder, threads[way]);
        depth_program *p = open_program(m, NULL);
        session *s = open_session(m, p, true);
        norms *n = &kept[way > 0];
        for (size_t at = 0; at < SEQUENCES; at += per_batch[way]) {
            size_t left = SEQUENCES - at;
            n->points = 0;
            n->first = START[at];
            observer watch = {.self = n, .on_gradient = keep_norms};
            run_text(s, at, left < per_batch[way] ? left : per_batch[way], true, &watch);
        }
        assert_int_equal(n->points, 2 * p->sublayers + 2);
        assert_int_equal(session_gradient_tokens(s), ROWS - SEQUENCES);
        if (way == 0)
            assert_non_null(first = calloc(model_params(m), sizeof *first));
        else
            assert_memory_equal(kept[1].l2, kept[0].l2, n->points * sizeof n->l2[0]);
        for (size_t i = 0; i < model_params(m); i++) {
            float *gradient;
            get_gradient(s, m, i, &gradient);
            if (way == 0) {
                first[i] = gradient;
                continue;
            }
            if (memcmp(gradient, first[i], size_of(m, i) * sizeof *gradient) != 0)
                fail_msg("%s: %s: other bits with batches of %zu on %zu threads", folder,
                         model_param_at(m, i)->name, per_batch[way], threads[way]);
            free(gradient);
        }
        if (way + 1 == COUNT(per_batch)) {
            for (size_t i = 0; i < model_params(m); i++)
                free(first[i]);
            free(first);
        }
        session_free(s);
        depth_program_free(p);
        model_close(m);
    }
}

static void bits_do_not_depend_on_batches_or_threads(void **state) {
    (void)state;
    static const char *const names[] = {"full-h4-alpha", "block-h3-n5", "delta-h4-n2",
                                        "delta-raw-h1", "standard-qwen3"};
    for (size_t i = 0; i < COUNT(names); i++) {
        char path[256];
        snprintf(path, sizeof path, TINY "%s", names[i]);
        check_bits(path);
    }
    check_bits("datasets/golden/hf/qwen2");
    char *dir = gated_copy("block-h3-n5", GATE_SIGMOID_VECTOR, true);
    check_bits(dir);
    free(dir);
}

/* Keeping what backward needs changes no forward bit. */
static void forward_is_the_same_with_backward(void **state) {
    (void)state;
    for (size_t i = 0; i < TINY_MODELS; i++) {
        char path[256];
        snprintf(path, sizeof path, "datasets/golden/%s", MODELS[i]);
        model *m = open_model(path, 2);
        depth_program *p = open_program(m, NULL);
        session *with = open_session(m, p, true), *without = open_session(m, p, false);
        assert_true(run_text(with, 0, SEQUENCES, true, NULL) ==
                    run_text(without, 0, SEQUENCES, false, NULL));
        /* and neither does a backward pass before it */
        assert_true(run_text(with, 0, SEQUENCES, false, NULL) ==
                    run_text(without, 0, SEQUENCES, false, NULL));
        session_free(with);
        session_free(without);
        depth_program_free(p);
        model_close(m);
    }
}

/* ---- training ---- */

/* The squared norm of the gradient of the mean loss. */
static double squared_norm(session *s, const model *m) {
    double squares = 0;
    for (size_t i = 0; i < model_params(m); i++) {
        float *gradient;
        get_gradient(s, m, i, &gradient);
        double norm = norm_of(gradient, size_of(m, i)) / (ROWS - SEQUENCES);
        squares += norm * norm;
        free(gradient);
    }
    return squares;
}

static void descend_once(session *s, const model *m, double rate) {
    for (size_t i = 0; i < model_params(m); i++) {
        float *gradient, *value = get_param(m, i);
        get_gradient(s, m, i, &gradient);
        for (size_t k = 0; k < size_of(m, i); k++)
            value[k] -= (float)(rate * (double)gradient[k] / (ROWS - SEQUENCES));
        set_param(m, i, value);
        free(gradient);
        free(value);
    }
}

/* Twenty steps of plain gradient descent on the mean loss of one text, at a fixed rate: that with
 * which the first step should lower the loss by 0.005 nats. */
static void descend(const char *folder, const char *where) {
    const double first_step = 0.005;
    model *m = open_model(folder, 2);
    depth_program *p = open_program(m, NULL);
    double before = INFINITY, first = 0, rate = 0;
    for (size_t step = 0; step <= 20; step++) {
        session *s = open_session(m, p, true);
        double loss = run_text(s, 0, SEQUENCES, true, NULL) / (ROWS - SEQUENCES);
        if (!(loss < before))
            fail_msg("%s: step %zu: loss %.7g after %.7g", where, step, loss, before);
        if (step == 0) {
            first = loss;
            rate = first_step / squared_norm(s, m);
        }
        before = loss;
        descend_once(s, m, rate);
        session_free(s);
    }
    if (getenv("TEST_VERBOSE"))
        printf("%-24s loss %.4f to %.4f\n", where, first, before);
    assert_true(before < first - 5 * first_step);
    depth_program_free(p);
    model_close(m);
}

static void descent_lowers_the_loss_in_every_mode(void **state) {
    (void)state;
    for (size_t i = 0; i < TINY_MODELS; i++) {
        char path[256];
        snprintf(path, sizeof path, "datasets/golden/%s", MODELS[i]);
        descend(path, MODELS[i]);
    }
    static const gate_kind gates[] = {GATE_SIGMOID_SCALAR, GATE_SIGMOID_VECTOR};
    for (size_t i = 0; i < COUNT(gates); i++) {
        char *dir = gated_copy("full-h4", gates[i], false);
        descend(dir, dir);
        free(dir);
    }
}

/* ---- misuse ---- */

static int stop_at_out(void *self, const batch *b, const gradient_view *view, status *st) {
    (void)self, (void)b, (void)st;
    return view->point == GRADIENT_OUT ? INTERRUPTED : DONE;
}

static void misuse_is_refused(void **state) {
    (void)state;
    status st;
    float one[48 * 61];
    model *m = open_model(TINY "full-h1", 1);
    depth_program *p = open_program(m, NULL);
    session *without = open_session(m, p, false), *s = open_session(m, p, true);
    int32_t id[ROWS];
    text_ids(id);
    batch text = {.layout = {SEQUENCES, ROWS, START}, .id = id};
    assert_int_equal(session_backward(without, &text, NULL, &st), FAILED);
    assert_non_null(strstr(st.text, "without backward"));
    assert_int_equal(session_gradient(without, 0, one, &st), FAILED);
    assert_int_equal(session_gradient_clear(without, &st), FAILED);
    assert_int_equal(session_backward(s, &text, NULL, &st), FAILED);
    assert_non_null(strstr(st.text, "last forward pass left 0"));
    run_text(s, 0, SEQUENCES, true, NULL);
    assert_int_equal(session_backward(s, &text, NULL, &st), FAILED); /* not twice */
    assert_int_equal(session_gradient_tokens(s), ROWS - SEQUENCES);
    assert_int_equal(session_gradient_clear(s, &st), DONE);
    assert_int_equal(session_gradient_tokens(s), 0);
    assert_int_equal(session_gradient(s, 0, one, &st), DONE);
    assert_true(norm_of(one, size_of(m, 0)) == 0);
    observer watch = {.on_gradient = stop_at_out};
    assert_int_equal(session_forward(s, &text, NULL, &st), DONE);
    assert_int_equal(session_backward(s, &text, &watch, &st), INTERRUPTED);
    session_free(s);
    session_free(without);
    depth_program_free(p);
    model_close(m);
}

static int print_worst(void **state) {
    (void)state;
    printf("largest errors: parameters %.2g, their norms %.2g, in %.2g, out %.2g, emb %.2g, slopes "
           "%.2g (all relative)\n",
           worst.param, worst.norm, worst.in, worst.out, worst.emb, worst.slope);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_gradient_agrees_with_float64),
        cmocka_unit_test(out_has_the_gradient_of_state),
        cmocka_unit_test(gates_agree_with_finite_differences),
        cmocka_unit_test(removed_sublayers_agree_with_finite_differences),
        cmocka_unit_test(bits_do_not_depend_on_batches_or_threads),
        cmocka_unit_test(forward_is_the_same_with_backward),
        cmocka_unit_test(descent_lowers_the_loss_in_every_mode),
        cmocka_unit_test(misuse_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, print_worst);
}
