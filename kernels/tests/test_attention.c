/* rotary and attention, against float64. */
#include "kernels/tests/fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static status st;

typedef struct attention_case {
    size_t query_heads, kv_heads, head_dim, rotary;
    bool extras;
    buffer *qkv, *cosine, *sine, *query_gain, *key_gain;
} attention_case;

static const attention_case shapes[] = {
    {.query_heads = 4, .kv_heads = 4, .head_dim = 12, .rotary = 12},
    {.query_heads = 4, .kv_heads = 2, .head_dim = 16, .rotary = 8},
    {.query_heads = 6, .kv_heads = 1, .head_dim = 10, .rotary = 0},
    {.query_heads = 1, .kv_heads = 1, .head_dim = 64, .rotary = 64},
};
enum { SHAPES = sizeof shapes / sizeof *shapes, LONGEST = 300 };

static size_t row_size(const attention_case *test) {
    return (test->query_heads + 2 * test->kv_heads) * test->head_dim;
}

static attention_case make_case(size_t shape) {
    attention_case test = shapes[shape];
    const size_t half = test.rotary / 2;
    test.qkv = fixture_random(FIXTURE_ROWS * row_size(&test), 2.0);
    test.cosine = half ? fixture_buffer(LONGEST * half) : NULL;
    test.sine = half ? fixture_buffer(LONGEST * half) : NULL;
    for (size_t p = 0; p < LONGEST; p++)
        for (size_t i = 0; i < half; i++) {
            const double angle = (double)p * pow(10000.0, -(double)i / (double)half);
            floats(test.cosine)[p * half + i] = (float)cos(angle);
            floats(test.sine)[p * half + i] = (float)sin(angle);
        }
    test.query_gain = shape % 2 ? fixture_random(test.head_dim, 1.0) : NULL;
    test.key_gain = shape % 2 ? fixture_random(test.head_dim, 1.0) : NULL;
    return test;
}

static void free_case(attention_case *test) {
    fixture_free(test->qkv);
    fixture_free(test->cosine);
    fixture_free(test->sine);
    fixture_free(test->query_gain);
    fixture_free(test->key_gain);
}

static void run_rotary(backend *device, const batch_layout *layout, size_t first, void *context,
                       float **out) {
    const attention_case *test = context;
    const size_t row = row_size(test);
    buffer *qkv = fixture_copy(floats(test->qkv) + first * row, layout->rows * row);
    buffer *apart = fixture_buffer(layout->rows * row);
    rotary_args args = {.layout = layout,
                        .query_heads = test->query_heads,
                        .kv_heads = test->kv_heads,
                        .head_dim = test->head_dim,
                        .rotary = test->rotary,
                        .cosine = test->cosine,
                        .sine = test->sine,
                        .query_gain = test->query_gain,
                        .key_gain = test->key_gain,
                        .eps = 1e-6f,
                        .in = qkv,
                        .out = apart};
    if (kernels_cpu.rotary(device, &args, &st))
        fail_msg("%s", st.text);
    memcpy(out[0], apart->data, apart->bytes);
    /* In place it gives the same. */
    args.out = qkv;
    if (kernels_cpu.rotary(device, &args, &st))
        fail_msg("%s", st.text);
    fixture_same("rotary in place", qkv->data, apart->data, layout->rows * row);
    fixture_free(qkv);
    fixture_free(apart);
}

/* One head of one token at position p. */
static void rotary_reference(const attention_case *test, const float *x, const buffer *gain,
                             size_t p, double *want) {
    const size_t half = test->rotary / 2;
    double y[64], squares = 0.0;
    for (size_t i = 0; i < test->head_dim; i++)
        squares += (double)x[i] * (double)x[i] / (double)test->head_dim;
    for (size_t i = 0; i < test->head_dim; i++)
        want[i] = y[i] =
            gain ? (double)x[i] / sqrt(squares + 1e-6) * (double)floats(gain)[i] : (double)x[i];
    for (size_t i = 0; i < half; i++) {
        const double angle = (double)p * pow(10000.0, -(double)i / (double)half);
        want[i] = y[i] * cos(angle) - y[i + half] * sin(angle);
        want[i + half] = y[i + half] * cos(angle) + y[i] * sin(angle);
    }
}

static void rotary_is_right_and_invariant(void **state) {
    (void)state;
    for (size_t k = 0; k < SHAPES; k++) {
        attention_case test = make_case(k);
        const size_t row = row_size(&test), dim = test.head_dim;
        float *out[1];
        double *want = malloc(FIXTURE_ROWS * row * sizeof *want);
        fixture_invariant(&(fixture_case){"rotary", 1, &row, run_rotary, &test}, out);
        for (size_t i = 0; i < FIXTURE_ROWS * row; i++)
            want[i] = (double)floats(test.qkv)[i]; /* values stay as they are */
        for (size_t b = 0; b < FIXTURE_SEQUENCES; b++)
            for (size_t r = fixture_start[b]; r < fixture_start[b + 1]; r++)
                for (size_t h = 0; h < test.query_heads + test.kv_heads; h++)
                    rotary_reference(&test, floats(test.qkv) + r * row + h * dim,
                                     h < test.query_heads ? test.query_gain : test.key_gain,
                                     r - fixture_start[b], want + r * row + h * dim);
        fixture_close("rotary", out[0], want, FIXTURE_ROWS * row, 5e-7); /* measured 1e-7 */
        free(want);
        free(out[0]);
        free_case(&test);
    }
}

static size_t pattern_size(const batch_layout *layout, size_t heads) {
    size_t size = 0;
    for (size_t b = 0; b < layout->sequences; b++) {
        const size_t length = layout->start[b + 1] - layout->start[b];
        size += heads * length * length;
    }
    return size;
}

/* Outputs: out; with extras also entropy, first_token_mass, and the row sums of the pattern (its
 * own rows have no fixed size; its cells are checked separately). */
static void run_attention(backend *device, const batch_layout *layout, size_t first, void *context,
                          float **out) {
    const attention_case *test = context;
    const size_t row = row_size(test), heads = test->query_heads, rows = layout->rows;
    buffer *qkv = fixture_copy(floats(test->qkv) + first * row, rows * row);
    buffer *result = fixture_buffer(rows * heads * test->head_dim);
    buffer *entropy = test->extras ? fixture_buffer(rows * heads) : NULL;
    buffer *mass = test->extras ? fixture_buffer(rows * heads) : NULL;
    buffer *pattern = test->extras ? fixture_buffer(pattern_size(layout, heads)) : NULL;
    const attention_args args = {layout, heads,   test->kv_heads, test->head_dim, qkv,
                                 result, entropy, mass,           pattern};
    if (kernels_cpu.attention(device, &args, &st))
        fail_msg("%s", st.text);
    memcpy(out[0], result->data, result->bytes);
    if (test->extras) {
        memcpy(out[1], entropy->data, entropy->bytes);
        memcpy(out[2], mass->data, mass->bytes);
        const float *cell = floats(pattern);
        for (size_t b = 0; b < layout->sequences; b++) {
            const size_t length = layout->start[b + 1] - layout->start[b];
            for (size_t h = 0; h < heads; h++)
                for (size_t q = 0; q < length; q++) {
                    float sum = 0.0f;
                    for (size_t p = 0; p < length; p++, cell++) {
                        sum += *cell * (float)(p % 7 + 1);
                        if (p > q)
                            assert_true(*cell == 0.0f);
                    }
                    out[3][(layout->start[b] + q) * heads + h] = sum;
                }
        }
    }
    fixture_free(qkv);
    fixture_free(result);
    fixture_free(entropy);
    fixture_free(mass);
    fixture_free(pattern);
}

/* Token q of the sequence that starts at row `start`, head h: the four outputs. */
static void attention_reference(const attention_case *test, size_t start, size_t q, size_t h,
                                double *out, double *extra) {
    const size_t row = row_size(test), dim = test->head_dim, heads = test->query_heads;
    const float *qkv = floats(test->qkv) + start * row;
    const size_t kv = heads + h / (heads / test->kv_heads), value = kv + test->kv_heads;
    double weight[LONGEST], most = -INFINITY, sum = 0.0;
    for (size_t p = 0; p <= q; p++) {
        weight[p] = 0.0;
        for (size_t i = 0; i < dim; i++)
            weight[p] += (double)qkv[q * row + h * dim + i] * (double)qkv[p * row + kv * dim + i] /
                         sqrt((double)dim);
        most = fmax(most, weight[p]);
    }
    for (size_t p = 0; p <= q; p++)
        sum += weight[p] = exp(weight[p] - most);
    extra[0] = extra[1] = extra[2] = 0.0;
    memset(out, 0, dim * sizeof *out);
    for (size_t p = 0; p <= q; p++) {
        const double a = weight[p] / sum;
        extra[0] -= a > 0.0 ? a * log(a) : 0.0;
        extra[1] = p == 0 ? a : extra[1];
        extra[2] += a * (double)(p % 7 + 1);
        for (size_t i = 0; i < dim; i++)
            out[i] += a * (double)qkv[p * row + value * dim + i];
    }
}

static void attention_is_right_and_invariant(void **state) {
    (void)state;
    for (size_t k = 0; k < SHAPES; k++) {
        attention_case test = make_case(k);
        const size_t heads = test.query_heads, dim = test.head_dim;
        const size_t elements[] = {heads * dim, heads, heads, heads};
        float *out[4], *alone[1];
        double *want[4];
        for (size_t o = 0; o < 4; o++)
            want[o] = malloc(FIXTURE_ROWS * elements[o] * sizeof(double));
        test.extras = true;
        fixture_invariant(&(fixture_case){"attention", 4, elements, run_attention, &test}, out);
        test.extras = false;
        fixture_invariant(&(fixture_case){"attention", 1, elements, run_attention, &test}, alone);
        fixture_same("attention with and without extras", alone[0], out[0],
                     FIXTURE_ROWS * heads * dim);
        for (size_t b = 0; b < FIXTURE_SEQUENCES; b++)
            for (size_t r = fixture_start[b]; r < fixture_start[b + 1]; r++)
                for (size_t h = 0; h < heads; h++) {
                    double extra[3];
                    attention_reference(&test, fixture_start[b], r - fixture_start[b], h,
                                        want[0] + (r * heads + h) * dim, extra);
                    for (size_t o = 0; o < 3; o++)
                        want[o + 1][r * heads + h] = extra[o];
                }
        /* measured 1.3e-6: scores of this test reach 100, whose rounding exp magnifies */
        fixture_close("attention", out[0], want[0], FIXTURE_ROWS * heads * dim, 5e-6);
        fixture_close("entropy", out[1], want[1], FIXTURE_ROWS * heads, 5e-6);
        fixture_close("first_token_mass", out[2], want[2], FIXTURE_ROWS * heads, 5e-6);
        fixture_close("pattern", out[3], want[3], FIXTURE_ROWS * heads, 5e-6);
        for (size_t o = 0; o < 4; o++) {
            free(want[o]);
            free(out[o]);
        }
        free(alone[0]);
        free_case(&test);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rotary_is_right_and_invariant),
        cmocka_unit_test(attention_is_right_and_invariant),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
