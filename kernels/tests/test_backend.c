/* The device: opening, buffers, copies, and a matrix product that is right. */
#include "kernels/tests/fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Some builds of BLAS give wrong products for some shapes or leading dimensions; every other test
 * would then fail for a reason that is not its own. */
static void sgemm_multiplies(void **state) {
    (void)state;
    openblas_set_num_threads(1);
    const size_t shapes[][3] = {{1, 1, 1},    {1, 300, 48},  {17, 33, 5},   {64, 64, 64},
                                {128, 48, 3}, {31, 257, 96}, {64, 300, 12}, {128, 1024, 40}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int transposed = 0; transposed < 2; transposed++) {
            const size_t m = shapes[i][0], n = shapes[i][1], k = shapes[i][2];
            const size_t a_stride = k + 3, b_stride = (transposed ? k : n) + 5, c_stride = n + 7;
            buffer *a = fixture_random(m * a_stride, 1.0);
            buffer *b = fixture_random((transposed ? n : k) * b_stride, 1.0);
            buffer *c = fixture_buffer(m * c_stride);
            double *want = malloc(m * c_stride * sizeof *want);
            for (size_t r = 0; r < m; r++)
                for (size_t q = 0; q < c_stride; q++) {
                    double sum = 0.0;
                    for (size_t p = 0; q < n && p < k; p++)
                        sum += (double)floats(a)[r * a_stride + p] *
                               (double)floats(b)[transposed ? q * b_stride + p : p * b_stride + q];
                    want[r * c_stride + q] = q < n ? 0.5 * sum : NAN;
                }
            sgemm(transposed, m, n, k, 0.5f, floats(a), a_stride, floats(b), b_stride, 0.0f,
                  floats(c), c_stride);
            fixture_close("sgemm", floats(c), want, m * c_stride, 2e-6); /* measured 4e-7 */
            free(want);
            fixture_free(a);
            fixture_free(b);
            fixture_free(c);
        }
}

static void backends_are_found_by_name(void **state) {
    (void)state;
    status st;
    assert_ptr_equal(kernels_find("cpu", &st), &kernels_cpu);
    assert_null(kernels_find("abacus", &st));
    assert_non_null(strstr(st.text, "'abacus'"));
    assert_int_equal(kernels_cpu.abi, KERNELS_ABI);
    assert_int_equal(kernels_cpu.size, sizeof(kernels));
}

static void open_refuses_what_it_cannot_do(void **state) {
    (void)state;
    status st;
    backend *device;
    assert_int_not_equal(kernels_cpu.open(&(backend_options){1, "cpu", "bf16"}, &device, &st), 0);
    assert_non_null(strstr(st.text, "bf16"));
    assert_int_not_equal(kernels_cpu.open(&(backend_options){65, "cpu", "fp32"}, &device, &st), 0);
    assert_non_null(strstr(st.text, "65"));
    assert_int_not_equal(kernels_cpu.open(&(backend_options){1, "gpu", "fp32"}, &device, &st), 0);
    assert_null(device);
    device = fixture_device(0);
    assert_non_null(strstr(kernels_cpu.describe(device), "OpenBLAS"));
    kernels_cpu.close(device);
}

static void a_part_is_the_memory_of_the_whole(void **state) {
    (void)state;
    status st;
    backend *device = fixture_device(1);
    buffer *whole, *part;
    const float text[] = {7, 8, 9};
    float back[3] = {0};
    assert_int_equal(kernels_cpu.buffer_create(device, BUFFER_EXACT, 130, &whole, &st), 0);
    assert_int_equal(kernels_cpu.buffer_part(device, whole, 64, 3, &part, &st), 0);
    assert_int_equal(kernels_cpu.upload(device, part, 0, text, 3, &st), 0);
    assert_int_equal(kernels_cpu.upload(device, part, 1, text, 3, &st), FAILED);
    assert_int_equal(kernels_cpu.download(device, whole, 64, back, 3, &st), 0);
    assert_memory_equal(back, text, sizeof text);
    kernels_cpu.buffer_free(device, part);
    assert_int_equal(kernels_cpu.download(device, whole, 64, back, 3, &st), 0);
    assert_int_equal(kernels_cpu.buffer_part(device, whole, 128, 3, &part, &st), FAILED);
    kernels_cpu.buffer_free(device, whole);
    kernels_cpu.close(device);
}

static void copies_stay_inside_their_buffer(void **state) {
    (void)state;
    status st;
    backend *device = fixture_device(1);
    buffer *memory;
    const float text[] = {1, 2, 3, 4, 5, 6};
    enum { COUNT = sizeof text / sizeof *text };
    float back[COUNT] = {0};
    assert_int_equal(kernels_cpu.buffer_create(device, BUFFER_REAL, 10, &memory, &st), 0);
    assert_int_equal((uintptr_t)kernels_cpu.host(device, memory) % 64, 0);
    assert_int_equal(kernels_cpu.upload(device, memory, 4, text, COUNT, &st), 0);
    assert_int_equal(kernels_cpu.download(device, memory, 4, back, COUNT, &st), 0);
    assert_memory_equal(back, text, sizeof text);
    assert_int_not_equal(kernels_cpu.upload(device, memory, 5, text, COUNT, &st), 0);
    assert_int_not_equal(kernels_cpu.download(device, memory, 5, back, COUNT, &st), 0);
    assert_int_not_equal(kernels_cpu.download(device, memory, SIZE_MAX, back, 2, &st), 0);
    kernels_cpu.buffer_free(device, memory);
    kernels_cpu.buffer_free(device, NULL);
    kernels_cpu.close(device);
}

/* The same for the product that gradients of weights are made of, added to what is there. */
static void sgemm_across_adds(void **state) {
    (void)state;
    const size_t shapes[][3] = {{1, 1, 1}, {64, 48, 300}, {5, 33, 17}, {300, 12, 64}, {64, 257, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const size_t m = shapes[i][0], n = shapes[i][1], k = shapes[i][2];
        const size_t a_stride = m + 3, b_stride = n + 5, c_stride = n + 7;
        buffer *a = fixture_random(k * a_stride, 1.0), *b = fixture_random(k * b_stride, 1.0);
        buffer *c = fixture_random(m * c_stride, 1.0);
        double *want = malloc(m * c_stride * sizeof *want);
        for (size_t r = 0; r < m; r++)
            for (size_t q = 0; q < c_stride; q++) {
                want[r * c_stride + q] = (double)floats(c)[r * c_stride + q];
                for (size_t p = 0; q < n && p < k; p++)
                    want[r * c_stride + q] +=
                        (double)floats(a)[p * a_stride + r] * (double)floats(b)[p * b_stride + q];
            }
        sgemm_across(m, n, k, floats(a), a_stride, floats(b), b_stride, 1.0f, floats(c), c_stride);
        fixture_close("sgemm_across", floats(c), want, m * c_stride, 2e-6); /* measured 4e-7 */
        free(want);
        fixture_free(a);
        fixture_free(b);
        fixture_free(c);
    }
}

/* A buffer that is too small, or a layout that is no layout, is refused before anything runs. */
static void wrong_shapes_are_refused(void **state) {
    (void)state;
    status st;
    backend *device = fixture_device(1);
    buffer *small = fixture_random(15, 1.0), *right = fixture_random(16, 1.0);
    const size_t start[] = {0, 4}, short_start[] = {0, 3};
    linear_args args = {.layout = &(batch_layout){1, 4, start},
                        .in_width = 4,
                        .out_width = 4,
                        .in = right,
                        .weight = right,
                        .out = small};
    assert_int_not_equal(kernels_cpu.linear(device, &args, &st), 0);
    assert_non_null(strstr(st.text, "linear: out: buffer of 60 bytes"));
    args.out = right;
    args.layout = &(batch_layout){1, 4, short_start};
    assert_int_not_equal(kernels_cpu.linear(device, &args, &st), 0);
    assert_non_null(strstr(st.text, "batch layout"));
    args.layout = &(batch_layout){1, 4, start};
    linear_back_args back = {args.layout, 4, 4, right, right, right, right, small, NULL};
    assert_int_not_equal(kernels_cpu.linear_back(device, &back, &st), 0);
    assert_non_null(strstr(st.text, "linear_back: grad_weight: buffer of 60 bytes"));
    attention_back_args attend = {args.layout, 1, 1, 2, right, right, right, right};
    assert_int_not_equal(kernels_cpu.attention_back(device, &attend, &st), 0);
    assert_non_null(strstr(st.text, "buffer of 64 bytes, expected [4, 6]"));
    fixture_free(small);
    fixture_free(right);
    kernels_cpu.close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sgemm_multiplies),
        cmocka_unit_test(sgemm_across_adds),
        cmocka_unit_test(backends_are_found_by_name),
        cmocka_unit_test(open_refuses_what_it_cannot_do),
        cmocka_unit_test(a_part_is_the_memory_of_the_whole),
        cmocka_unit_test(copies_stay_inside_their_buffer),
        cmocka_unit_test(wrong_shapes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
