/* fixture.c - see fixture.h. */
#include "kernels/tests/fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { GUARD = 64 }; /* floats on each side */
static const uint32_t guard_bits = 0x5ca1ab1eu;

static uint64_t next_random(void) {
    static uint64_t state;
    static bool seeded;
    if (!seeded) {
        const char *given = getenv("TEST_SEED");
        state = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
        printf("TEST_SEED=%llu\n", (unsigned long long)state);
        seeded = true;
    }
    uint64_t x = state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

double fixture_uniform(void) {
    return (double)(next_random() >> 11) * 0x1p-53;
}

double fixture_normal(void) {
    const double radius = sqrt(-2.0 * log(1.0 - fixture_uniform()));
    return radius * cos(6.283185307179586 * fixture_uniform());
}

size_t fixture_pick(size_t least, size_t most) {
    return least + (size_t)(next_random() % (most - least + 1));
}

backend *fixture_device(size_t threads) {
    backend *device;
    status st;
    if (kernels_cpu.open(&(backend_options){threads, "cpu", "fp32"}, &device, &st))
        fail_msg("%s", st.text);
    return device;
}

/* The allocation starts GUARD + shift floats before the data. */
buffer *fixture_buffer_shifted(size_t elements, size_t shift) {
    buffer *made = malloc(sizeof *made + sizeof(size_t));
    const size_t total = elements + 2 * GUARD + shift;
    void *memory = NULL;
    assert_non_null(made);
    assert_int_equal(posix_memalign(&memory, 64, total * sizeof(float)), 0);
    uint32_t *word = memory;
    for (size_t i = 0; i < total; i++)
        word[i] = guard_bits;
    float *data = (float *)memory + GUARD + shift;
    for (size_t i = 0; i < elements; i++)
        data[i] = NAN;
    made->data = data;
    made->bytes = elements * sizeof(float);
    memcpy(made + 1, &shift, sizeof shift);
    return made;
}

buffer *fixture_buffer(size_t elements) {
    return fixture_buffer_shifted(elements, 0);
}

buffer *fixture_random(size_t elements, double scale) {
    buffer *made = fixture_buffer(elements);
    for (size_t i = 0; i < elements; i++)
        floats(made)[i] = (float)(scale * fixture_normal());
    return made;
}

buffer *fixture_copy(const float *from, size_t elements) {
    buffer *made = fixture_buffer(elements);
    if (elements)
        memcpy(made->data, from, elements * sizeof(float));
    return made;
}

void fixture_free(buffer *memory) {
    if (!memory)
        return;
    size_t shift;
    memcpy(&shift, memory + 1, sizeof shift);
    const size_t elements = memory->bytes / sizeof(float), lead = GUARD + shift;
    uint32_t *word = (uint32_t *)memory->data - lead;
    for (size_t i = 0; i < lead; i++)
        if (word[i] != guard_bits)
            fail_msg("element %zu before a buffer was written", lead - i);
    for (size_t i = 0; i < GUARD; i++)
        if (word[lead + elements + i] != guard_bits)
            fail_msg("element %zu past the end of a buffer was written", i);
    free(word);
    free(memory);
}

/* The error of element i, and its place in a message. */
static void judge(const char *what, double error, size_t at, double bound) {
    if (getenv("TEST_VERBOSE"))
        printf("%-40s error %.2e, bound %.0e\n", what, error, bound);
    if (!(error <= bound))
        fail_msg("%s: error %.3e at element %zu, bound %.0e", what, error, at, bound);
}

#define COMPARE(got, want)                                                                         \
    double scale = 0.0, error = 0.0;                                                               \
    size_t at = 0;                                                                                 \
    for (size_t i = 0; i < count; i++)                                                             \
        scale = fabs(want[i]) > scale ? fabs(want[i]) : scale;                                     \
    for (size_t i = 0; i < count; i++) {                                                           \
        const double x = (double)got[i], y = want[i];                                              \
        const double here = isnan(x) && isnan(y)   ? 0.0                                           \
                            : isnan(x) || isnan(y) ? INFINITY                                      \
                                                   : fabs(x - y) / (scale > 0.0 ? scale : 1.0);    \
        if (here > error) {                                                                        \
            error = here;                                                                          \
            at = i;                                                                                \
        }                                                                                          \
    }                                                                                              \
    judge(what, error, at, bound)

void fixture_close(const char *what, const float *got, const double *want, size_t count,
                   double bound) {
    COMPARE(got, want);
}

void fixture_close_doubles(const char *what, const double *got, const double *want, size_t count,
                           double bound) {
    COMPARE(got, want);
}

void fixture_same(const char *what, const void *got, const void *want, size_t elements) {
    const uint32_t *x = got, *y = want;
    for (size_t i = 0; i < elements; i++)
        if (x[i] != y[i])
            fail_msg("%s: element %zu of %zu: bits %08x and %08x", what, i, elements, x[i], y[i]);
}

const size_t fixture_start[FIXTURE_SEQUENCES + 1] = {0, 1, 301, 318, FIXTURE_ROWS};
const batch_layout fixture_batch = {FIXTURE_SEQUENCES, FIXTURE_ROWS, fixture_start};

static void allocate(const fixture_case *test, size_t rows, float **out) {
    for (size_t o = 0; o < test->outputs; o++) {
        out[o] = malloc(rows * test->elements[o] * sizeof(float) + 1);
        assert_non_null(out[o]);
    }
}

void fixture_invariant(const fixture_case *test, float **out) {
    float *other[8];
    char what[128];
    assert_in_range(test->outputs, 1, 8);
    backend *one = fixture_device(1), *two = fixture_device(2);
    allocate(test, FIXTURE_ROWS, out);
    allocate(test, FIXTURE_ROWS, other);
    test->run(one, &fixture_batch, 0, test->context, out);
    test->run(two, &fixture_batch, 0, test->context, other);
    for (size_t o = 0; o < test->outputs; o++) {
        snprintf(what, sizeof what, "%s, output %zu, 1 and 2 threads", test->name, o);
        fixture_same(what, other[o], out[o], FIXTURE_ROWS * test->elements[o]);
    }
    for (size_t b = 0; b < FIXTURE_SEQUENCES; b++) {
        const size_t first = fixture_start[b], rows = fixture_start[b + 1] - first;
        const size_t start[] = {0, rows};
        test->run(two, &(batch_layout){1, rows, start}, first, test->context, other);
        for (size_t o = 0; o < test->outputs; o++) {
            snprintf(what, sizeof what, "%s, output %zu, sequence %zu alone and in the batch",
                     test->name, o, b);
            fixture_same(what, other[o], out[o] + first * test->elements[o],
                         rows * test->elements[o]);
        }
    }
    for (size_t o = 0; o < test->outputs; o++)
        free(other[o]);
    kernels_cpu.close(one);
    kernels_cpu.close(two);
}
