/* linear and head: matrix products in tiles, against float64. */
#include "kernels/tests/fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static status st;

typedef struct linear_case {
    size_t in_width, out_width;
    buffer *in, *weight, *bias;
} linear_case;

static void run_linear(backend *device, const batch_layout *layout, size_t first, void *context,
                       float **out) {
    const linear_case *test = context;
    buffer *in =
        fixture_copy(floats(test->in) + first * test->in_width, layout->rows * test->in_width);
    buffer *result = fixture_buffer(layout->rows * test->out_width);
    const linear_args args = {layout,       test->in_width, test->out_width, in,
                              test->weight, test->bias,     result};
    if (kernels_cpu.linear(device, &args, &st))
        fail_msg("%s", st.text);
    memcpy(out[0], result->data, result->bytes);
    fixture_free(in);
    fixture_free(result);
}

static void linear_is_right_and_invariant(void **state) {
    (void)state;
    const size_t shapes[][2] = {{48, 48}, {48, 5}, {50, 257}, {128, 1030}, {1, 1}};
    for (size_t k = 0; k < 2 * sizeof shapes / sizeof *shapes; k++) {
        const size_t n = shapes[k / 2][0], m = shapes[k / 2][1];
        linear_case test = {n, m, fixture_random(FIXTURE_ROWS * n, 1.0), fixture_random(m * n, 1.0),
                            k % 2 ? fixture_random(m, 1.0) : NULL};
        float *out[1];
        fixture_invariant(&(fixture_case){"linear", 1, &m, run_linear, &test}, out);
        double *want = malloc(FIXTURE_ROWS * m * sizeof *want);
        for (size_t r = 0; r < FIXTURE_ROWS; r++)
            for (size_t c = 0; c < m; c++) {
                double sum = test.bias ? (double)floats(test.bias)[c] : 0.0;
                for (size_t i = 0; i < n; i++)
                    sum +=
                        (double)floats(test.in)[r * n + i] * (double)floats(test.weight)[c * n + i];
                want[r * m + c] = sum;
            }
        fixture_close("linear", out[0], want, FIXTURE_ROWS * m, 2e-6); /* measured 4e-7 */
        free(want);
        free(out[0]);
        fixture_free(test.in);
        fixture_free(test.weight);
        fixture_free(test.bias);
    }
}

typedef struct head_case {
    size_t width, vocabulary;
    bool logits;
    buffer *in, *weight, *target;
} head_case;

static void run_head(backend *device, const batch_layout *layout, size_t first, void *context,
                     float **out) {
    const head_case *test = context;
    buffer *in = fixture_copy(floats(test->in) + first * test->width, layout->rows * test->width);
    buffer *target = fixture_copy(floats(test->target) + first, layout->rows);
    buffer *loss = fixture_buffer(layout->rows);
    buffer *logits = test->logits ? fixture_buffer(layout->rows * test->vocabulary) : NULL;
    const head_args args = {layout, test->width, test->vocabulary, in, test->weight, target,
                            loss,   logits};
    if (kernels_cpu.head(device, &args, &st))
        fail_msg("%s", st.text);
    memcpy(out[0], loss->data, loss->bytes);
    if (logits)
        memcpy(out[1], logits->data, logits->bytes);
    fixture_free(in);
    fixture_free(target);
    fixture_free(loss);
    fixture_free(logits);
}

/* Loss and logits in float64. */
static void head_reference(const head_case *test, double *loss, double *logits) {
    const size_t width = test->width, vocabulary = test->vocabulary;
    for (size_t r = 0; r < FIXTURE_ROWS; r++) {
        double *row = logits + r * vocabulary, most = -INFINITY, sum = 0.0;
        for (size_t v = 0; v < vocabulary; v++) {
            row[v] = 0.0;
            for (size_t i = 0; i < width; i++)
                row[v] += (double)floats(test->in)[r * width + i] *
                          (double)floats(test->weight)[v * width + i];
            most = fmax(most, row[v]);
        }
        for (size_t v = 0; v < vocabulary; v++)
            sum += exp(row[v] - most);
        const int32_t target = ((const int32_t *)test->target->data)[r];
        loss[r] = target < 0 ? NAN : most + log(sum) - row[target];
    }
}

static void head_is_right_and_invariant(void **state) {
    (void)state;
    const size_t shapes[][2] = {{48, 256}, {16, 1}, {20, 2500}};
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        const size_t width = shapes[k][0], vocabulary = shapes[k][1];
        head_case test = {width,
                          vocabulary,
                          true,
                          fixture_random(FIXTURE_ROWS * width, 2.0),
                          fixture_random(vocabulary * width, 1.0),
                          fixture_buffer(FIXTURE_ROWS)};
        for (size_t r = 0; r < FIXTURE_ROWS; r++)
            ((int32_t *)test.target->data)[r] =
                fixture_pick(0, 9) ? (int32_t)fixture_pick(0, vocabulary - 1) : -1;
        /* The first chunk of a large vocabulary far above or below the rest. */
        for (size_t i = 0; vocabulary > 2048 && i < 1024 * width; i++)
            floats(test.weight)[i] *= 60.0f;
        float *out[2], *alone[1];
        const size_t elements[] = {1, vocabulary};
        fixture_invariant(&(fixture_case){"head", 2, elements, run_head, &test}, out);
        test.logits = false;
        fixture_invariant(&(fixture_case){"head", 1, elements, run_head, &test}, alone);
        fixture_same("loss with and without logits", alone[0], out[0], FIXTURE_ROWS);
        double *loss = malloc(FIXTURE_ROWS * sizeof *loss);
        double *logits = malloc(FIXTURE_ROWS * vocabulary * sizeof *logits);
        head_reference(&test, loss, logits);
        fixture_close("loss", out[0], loss, FIXTURE_ROWS, 1e-6); /* measured 2e-7 */
        fixture_close("logits", out[1], logits, FIXTURE_ROWS * vocabulary, 2e-6); /* 3e-7 */
        free(loss);
        free(logits);
        free(out[0]);
        free(out[1]);
        free(alone[0]);
        fixture_free(test.in);
        fixture_free(test.weight);
        fixture_free(test.target);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_is_right_and_invariant),
        cmocka_unit_test(head_is_right_and_invariant),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
