/* Backward of linear, attention and head, against finite differences in float64. */
#include "kernels/tests/back_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static status st;

/* size: in_width, out_width. */
static int run_linear(const back_case *test, const back_call *call, status *failure) {
    const linear_back_args args = {.layout = call->layout,
                                   .in_width = test->size[0],
                                   .out_width = test->size[1],
                                   .in = call->x[0],
                                   .weight = call->x[1],
                                   .d_out = call->d_out,
                                   .d_in = call->d[0],
                                   .grad_weight = call->d[1],
                                   .grad_bias = call->d[2]};
    return kernels_cpu.linear_back(call->device, &args, failure);
}

static double linear_objective(const back_case *test, double *const *x, const int32_t *id,
                               const float *d_out, size_t start, size_t first, size_t end) {
    const size_t n = test->size[0], m = test->size[1];
    double sum = 0.0;
    (void)id;
    (void)start;
    for (size_t r = first; r < end; r++)
        for (size_t c = 0; c < m; c++) {
            double out = x[2] ? x[2][c] : 0.0;
            for (size_t i = 0; i < n; i++)
                out += x[0][r * n + i] * x[1][c * n + i];
            sum += (double)d_out[r * m + c] * out;
        }
    return sum;
}

static void linear_back_is_right(void **state) {
    (void)state;
    const size_t shapes[][3] = {{48, 48, 1},  {50, 150, 1}, {130, 70, 0},
                                {1030, 9, 1}, {1, 9, 0},    {9, 1, 0}};
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        const size_t n = shapes[k][0], m = shapes[k][1];
        back_check(&(back_case){.name = "linear_back",
                                .layout = &fixture_batch,
                                .x = {{"in", n, false, 1.0},
                                      {"weight", m * n, true, 1.0},
                                      {"bias", shapes[k][2] * m, true, 1.0}},
                                .out = m,
                                .samples = 16,
                                .bound = 5e-6, /* measured 2.6e-6 */
                                .size = {n, m},
                                .run = run_linear,
                                .objective = linear_objective});
    }
}

/* size: query heads, kv heads, head_dim. */
static int run_attention(const back_case *test, const back_call *call, status *failure) {
    const size_t heads = test->size[0], kv_heads = test->size[1], dim = test->size[2];
    buffer *out = fixture_buffer(call->layout->rows * heads * dim);
    const attention_args forward = {.layout = call->layout,
                                    .query_heads = heads,
                                    .kv_heads = kv_heads,
                                    .head_dim = dim,
                                    .qkv = call->x[0],
                                    .out = out};
    const attention_back_args args = {call->layout, heads, kv_heads,    dim,
                                      call->x[0],   out,   call->d_out, call->d[0]};
    const int rc = kernels_cpu.attention(call->device, &forward, failure) ||
                   kernels_cpu.attention_back(call->device, &args, failure);
    fixture_free(out);
    return rc;
}

static double attention_objective(const back_case *test, double *const *x, const int32_t *id,
                                  const float *d_out, size_t start, size_t first, size_t end) {
    const size_t heads = test->size[0], kv_heads = test->size[1], dim = test->size[2];
    const size_t row = (heads + 2 * kv_heads) * dim;
    double sum = 0.0;
    (void)id;
    for (size_t q = first; q < end; q++)
        for (size_t h = 0; h < heads; h++) {
            const size_t kv = heads + h / (heads / kv_heads);
            const double *query = x[0] + q * row + h * dim;
            const float *d = d_out + (q * heads + h) * dim;
            double weights = 0.0, weighted = 0.0;
            for (size_t p = start; p <= q; p++) {
                const double *key = x[0] + p * row + kv * dim, *value = key + kv_heads * dim;
                double score = 0.0, along = 0.0;
                for (size_t i = 0; i < dim; i++) {
                    score += query[i] * key[i];
                    along += (double)d[i] * value[i];
                }
                weights += exp(score / sqrt((double)dim));
                weighted += exp(score / sqrt((double)dim)) * along;
            }
            sum += weighted / weights;
        }
    return sum;
}

static void attention_back_is_right(void **state) {
    (void)state;
    const size_t shapes[][3] = {{3, 3, 12}, {4, 2, 16}, {3, 1, 10}, {1, 1, 64}};
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        const size_t heads = shapes[k][0], kv_heads = shapes[k][1], dim = shapes[k][2];
        back_check(&(back_case){.name = "attention_back",
                                .layout = &fixture_batch,
                                .x = {{"qkv", (heads + 2 * kv_heads) * dim, false, 1.5}},
                                .out = heads * dim,
                                .samples = 60,
                                .bound = 5e-6, /* measured 2.6e-6 */
                                .size = {heads, kv_heads, dim},
                                .run = run_attention,
                                .objective = attention_objective});
    }
}

/* size: width, vocabulary. */
static int run_head(const back_case *test, const back_call *call, status *failure) {
    const head_back_args args = {.layout = call->layout,
                                 .width = test->size[0],
                                 .vocabulary = test->size[1],
                                 .in = call->x[0],
                                 .weight = call->x[1],
                                 .target = call->id,
                                 .d_in = call->d[0],
                                 .grad_weight = call->d[1]};
    return kernels_cpu.head_back(call->device, &args, failure);
}

static double head_objective(const back_case *test, double *const *x, const int32_t *id,
                             const float *d_out, size_t start, size_t first, size_t end) {
    const size_t width = test->size[0], vocabulary = test->size[1];
    double loss = 0.0;
    (void)d_out;
    (void)start;
    for (size_t r = first; r < end; r++) {
        double sum = 0.0, goal = 0.0;
        for (size_t v = 0; id[r] >= 0 && v < vocabulary; v++) {
            double logit = 0.0;
            for (size_t i = 0; i < width; i++)
                logit += x[0][r * width + i] * x[1][v * width + i];
            sum += exp(logit);
            goal = v == (size_t)id[r] ? logit : goal;
        }
        loss += id[r] >= 0 ? log(sum) - goal : 0.0;
    }
    return loss;
}

/* The last shape has more logits than a slab of full height holds. */
static void head_back_is_right(void **state) {
    (void)state;
    const size_t few_start[] = {0, 1, 71, 88};
    const batch_layout few = {3, 88, few_start};
    const size_t shapes[][3] = {
        {48, 100, 24}, {300, 10, 24}, {16, 2, 8}, {3, 1100, 24}, {2, 40000, 4}};
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        const size_t width = shapes[k][0], vocabulary = shapes[k][1];
        back_check(&(back_case){.name = "head_back",
                                .layout = vocabulary == 40000 ? &few : &fixture_batch,
                                .x = {{"in", width, false, 2.0 / sqrt((double)width)},
                                      {"weight", vocabulary * width, true, 1.0}},
                                .ids = vocabulary,
                                .targets = true,
                                .samples = shapes[k][2],
                                .bound = 5e-6, /* measured 2.6e-6 */
                                .size = {width, vocabulary},
                                .run = run_head,
                                .objective = head_objective});
    }
}

/* A row without a target has no gradient: exactly zero, nothing added. */
static void head_back_without_targets_is_zero(void **state) {
    (void)state;
    enum { WIDTH = 48, VOCABULARY = 70, ROWS = 3 };
    const size_t start[] = {0, ROWS};
    backend *device = fixture_device(2);
    buffer *in = fixture_random(ROWS * WIDTH, 1.0), *target = fixture_buffer(ROWS);
    buffer *weight = fixture_random(VOCABULARY * WIDTH, 1.0);
    buffer *d_in = fixture_buffer(ROWS * WIDTH);
    buffer *grad = fixture_copy(floats(weight), VOCABULARY * WIDTH);
    for (size_t r = 0; r < ROWS; r++)
        ((int32_t *)target->data)[r] = -1;
    const head_back_args args = {
        &(batch_layout){1, ROWS, start}, WIDTH, VOCABULARY, in, weight, target, d_in, grad};
    assert_int_equal(kernels_cpu.head_back(device, &args, &st), 0);
    for (size_t i = 0; i < ROWS * WIDTH; i++)
        assert_true(floats(d_in)[i] == 0.0f);
    fixture_same("head_back without targets", grad->data, weight->data, VOCABULARY * WIDTH);
    fixture_free(in);
    fixture_free(target);
    fixture_free(weight);
    fixture_free(d_in);
    fixture_free(grad);
    kernels_cpu.close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_back_is_right),
        cmocka_unit_test(attention_back_is_right),
        cmocka_unit_test(head_back_is_right),
        cmocka_unit_test(head_back_without_targets_is_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
