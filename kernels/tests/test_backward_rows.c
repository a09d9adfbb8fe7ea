/* Backward of embed, norm, swiglu and rotary, against finite differences in float64. */
#include "kernels/tests/back_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static status st;

/* Sums over 382 rows are fp32, in parts: measured 1.3e-6. */
#define BOUND 5e-6

static int run_embed(const back_case *test, const back_call *call, status *failure) {
    const embed_back_args args = {.layout = call->layout,
                                  .width = test->size[0],
                                  .vocabulary = test->ids,
                                  .id = call->id,
                                  .d_out = call->d_out,
                                  .grad_table = call->d[0]};
    return kernels_cpu.embed_back(call->device, &args, failure);
}

static double embed_objective(const back_case *test, double *const *x, const int32_t *id,
                              const float *d_out, size_t start, size_t first, size_t end) {
    const size_t width = test->size[0];
    double sum = 0.0;
    (void)start;
    for (size_t r = first; r < end; r++)
        for (size_t i = 0; i < width; i++)
            sum += (double)d_out[r * width + i] * x[0][(size_t)id[r] * width + i];
    return sum;
}

static void embed_back_is_right(void **state) {
    (void)state;
    const size_t widths[] = {1, 50, 70};
    for (size_t k = 0; k < 3; k++)
        back_check(&(back_case){.name = "embed_back",
                                .layout = &fixture_batch,
                                .x = {{"table", 7 * widths[k], true, 1.0}},
                                .out = widths[k],
                                .ids = 7,
                                .samples = 40,
                                .bound = BOUND,
                                .size = {widths[k]},
                                .run = run_embed,
                                .objective = embed_objective});
}

static int run_norm(const back_case *test, const back_call *call, status *failure) {
    const norm_back_args args = {.layout = call->layout,
                                 .width = test->size[0],
                                 .eps = 1e-2f,
                                 .in = call->x[0],
                                 .gain = call->x[1],
                                 .d_out = call->d_out,
                                 .d_in = call->d[0],
                                 .grad_gain = call->d[1]};
    return kernels_cpu.norm_back(call->device, &args, failure);
}

static double rms_scale(const double *x, size_t n, double eps) {
    double squares = 0.0;
    for (size_t i = 0; i < n; i++)
        squares += x[i] * x[i] / (double)n;
    return 1.0 / sqrt(squares + eps);
}

static double norm_objective(const back_case *test, double *const *x, const int32_t *id,
                             const float *d_out, size_t start, size_t first, size_t end) {
    const size_t width = test->size[0];
    double sum = 0.0;
    (void)id;
    (void)start;
    for (size_t r = first; r < end; r++) {
        const double *in = x[0] + r * width, scale = rms_scale(in, width, (double)1e-2f);
        for (size_t i = 0; i < width; i++)
            sum += (double)d_out[r * width + i] * in[i] * scale * x[1][i];
    }
    return sum;
}

/* The eps of this test is large enough to tell whether it is used. */
static void norm_back_is_right(void **state) {
    (void)state;
    const size_t widths[] = {5, 50, 128};
    for (size_t k = 0; k < 3; k++)
        back_check(
            &(back_case){.name = "norm_back",
                         .layout = &fixture_batch,
                         .x = {{"in", widths[k], false, 0.5}, {"gain", widths[k], true, 1.0}},
                         .out = widths[k],
                         .alias = BACK_OVER_D_OUT,
                         .samples = 60,
                         .bound = BOUND,
                         .size = {widths[k]},
                         .run = run_norm,
                         .objective = norm_objective});
}

/* Squares of massive activations overflow fp32; their gradients must not. */
static void norm_back_of_huge_rows_is_right(void **state) {
    (void)state;
    enum { WIDTH = 48 };
    const size_t start[] = {0, 1};
    backend *device = fixture_device(1);
    buffer *in = fixture_random(WIDTH, 1.0), *gain = fixture_random(WIDTH, 1.0);
    buffer *d_out = fixture_random(WIDTH, 1.0), *d_in = fixture_buffer(WIDTH);
    norm_back_args args = {&(batch_layout){1, 1, start}, WIDTH, 0.0f, in, gain, d_out, d_in, NULL};
    double want[WIDTH];
    assert_int_equal(kernels_cpu.norm_back(device, &args, &st), 0);
    for (size_t i = 0; i < WIDTH; i++) {
        want[i] = (double)floats(d_in)[i] * 0x1p-100;
        floats(in)[i] *= 0x1p100f;
    }
    assert_int_equal(kernels_cpu.norm_back(device, &args, &st), 0);
    fixture_close("norm_back of huge rows", floats(d_in), want, WIDTH, 1e-6);
    fixture_free(in);
    fixture_free(gain);
    fixture_free(d_out);
    fixture_free(d_in);
    kernels_cpu.close(device);
}

static int run_swiglu(const back_case *test, const back_call *call, status *failure) {
    const swiglu_back_args args = {call->layout->rows, test->size[0], call->x[0], call->d_out,
                                   call->d[0]};
    return kernels_cpu.swiglu_back(call->device, &args, failure);
}

static double swiglu_objective(const back_case *test, double *const *x, const int32_t *id,
                               const float *d_out, size_t start, size_t first, size_t end) {
    const size_t width = test->size[0];
    double sum = 0.0;
    (void)id;
    (void)start;
    for (size_t r = first; r < end; r++)
        for (size_t i = 0; i < width; i++) {
            const double gate = x[0][r * 2 * width + i], up = x[0][r * 2 * width + width + i];
            sum += (double)d_out[r * width + i] * gate / (1.0 + exp(-gate)) * up;
        }
    return sum;
}

static void swiglu_back_is_right(void **state) {
    (void)state;
    const size_t widths[] = {1, 5, 50, 352};
    for (size_t k = 0; k < 4; k++)
        back_check(&(back_case){.name = "swiglu_back",
                                .layout = &fixture_batch,
                                .x = {{"gate_up", 2 * widths[k], false, 4.0}},
                                .out = widths[k],
                                .alias = BACK_OVER_IN,
                                .samples = 100,
                                .bound = BOUND,
                                .size = {widths[k]},
                                .run = run_swiglu,
                                .objective = swiglu_objective});
}

/* exp(300) is no float; silu' is 1 far right of zero and 0 far left. */
static void swiglu_back_of_large_gates_is_finite(void **state) {
    (void)state;
    backend *device = fixture_device(1);
    const float gate_up[] = {300.0f, -300.0f, 3.0f, 5.0f}, ones[] = {1.0f, 1.0f};
    const double want[] = {3.0, 0.0, 300.0, 0.0};
    buffer *in = fixture_copy(gate_up, 4), *d_out = fixture_copy(ones, 2);
    const swiglu_back_args args = {1, 2, in, d_out, in};
    assert_int_equal(kernels_cpu.swiglu_back(device, &args, &st), 0);
    fixture_close("swiglu_back of large gates", floats(in), want, 4, 1e-30);
    fixture_free(in);
    fixture_free(d_out);
    kernels_cpu.close(device);
}

/* size: query heads, kv heads, head_dim, rotary; fixed: cosine, sine. */
static int run_rotary(const back_case *test, const back_call *call, status *failure) {
    const rotary_args forward = {.layout = call->layout,
                                 .query_heads = test->size[0],
                                 .kv_heads = test->size[1],
                                 .head_dim = test->size[2],
                                 .rotary = test->size[3],
                                 .cosine = test->fixed[0],
                                 .sine = test->fixed[1],
                                 .query_gain = call->x[1],
                                 .key_gain = call->x[2],
                                 .eps = 1e-2f,
                                 .in = call->x[0]};
    const rotary_back_args args = {&forward, call->d_out, call->d[0], call->d[1], call->d[2]};
    return kernels_cpu.rotary_back(call->device, &args, failure);
}

static double rotary_objective(const back_case *test, double *const *x, const int32_t *id,
                               const float *d_out, size_t start, size_t first, size_t end) {
    const size_t queries = test->size[0], kv = test->size[1], dim = test->size[2];
    const size_t half = test->size[3] / 2, width = (queries + 2 * kv) * dim;
    double sum = 0.0;
    (void)id;
    for (size_t r = first; r < end; r++)
        for (size_t h = 0; h < queries + 2 * kv; h++) {
            const double *in = x[0] + r * width + h * dim;
            const float *d = d_out + r * width + h * dim;
            const double *gain = h < queries ? x[1] : h < queries + kv ? x[2] : NULL;
            const double scale = gain ? rms_scale(in, dim, (double)1e-2f) : 1.0;
            double normed[64];
            for (size_t i = 0; i < dim; i++)
                normed[i] = in[i] * scale * (gain ? gain[i] : 1.0);
            for (size_t i = 0; i < dim; i++) {
                double out = normed[i];
                if (h < queries + kv && i < 2 * half) {
                    const size_t angle = (r - start) * half + i % half;
                    const double c = (double)floats(test->fixed[0])[angle];
                    const double s = (double)floats(test->fixed[1])[angle];
                    out = i < half ? normed[i] * c - normed[i + half] * s
                                   : normed[i] * c + normed[i - half] * s;
                }
                sum += (double)d[i] * out;
            }
        }
    return sum;
}

/* Any numbers serve as cosines and sines: the inverse rotation is the transpose. */
static void rotary_back_is_right(void **state) {
    (void)state;
    const size_t shapes[][5] = {
        {4, 4, 12, 12, 1}, {4, 2, 16, 8, 0}, {6, 1, 10, 0, 1}, {1, 1, 64, 64, 1}};
    for (size_t k = 0; k < 4; k++) {
        const size_t *s = shapes[k], width = (s[0] + 2 * s[1]) * s[2];
        buffer *cosine = fixture_random(300 * (s[3] / 2) + 1, 1.0);
        buffer *sine = fixture_random(300 * (s[3] / 2) + 1, 1.0);
        back_check(&(back_case){.name = "rotary_back",
                                .layout = &fixture_batch,
                                .x = {{"in", width, false, 0.5},
                                      {"query_gain", s[4] * s[2], true, 1.0},
                                      {"key_gain", s[4] * s[2], true, 1.0}},
                                .out = width,
                                .alias = BACK_OVER_D_OUT,
                                .samples = 60,
                                .bound = BOUND,
                                .size = {s[0], s[1], s[2], s[3]},
                                .fixed = {cosine, sine},
                                .run = run_rotary,
                                .objective = rotary_objective});
        fixture_free(cosine);
        fixture_free(sine);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed_back_is_right),
        cmocka_unit_test(norm_back_is_right),
        cmocka_unit_test(norm_back_of_huge_rows_is_right),
        cmocka_unit_test(swiglu_back_is_right),
        cmocka_unit_test(swiglu_back_of_large_gates_is_finite),
        cmocka_unit_test(rotary_back_is_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
