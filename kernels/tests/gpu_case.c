/* gpu_case.c - see gpu_case.h. */
#include "kernels/tests/gpu_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { GUARD = 256, WORDS = 8, LINES = 256 };
static const float guard_value = -123456.0f; /* the same in bf16: checked where written */

gpu_state gpu = {.dtype = {"fp32", "bf16"}, .runs = 10};

static const char *word[WORDS];
static size_t words;
static uint64_t seed;

/* The worst of each thing checked, in each dtype. */
static struct line {
    char what[64];
    double error[2], bound[2];
    size_t count, failed;
} line[LINES];
static size_t lines;

/* ---- random numbers ---- */

static uint64_t next_random(void) {
    uint64_t x = seed += 0x9e3779b97f4a7c15u; /* splitmix64 */
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

double gpu_normal(void) {
    const double u = (double)(next_random() >> 11) * 0x1p-53;
    const double v = (double)(next_random() >> 11) * 0x1p-53;
    return sqrt(-2.0 * log(1.0 - u)) * cos(6.283185307179586 * v);
}

size_t gpu_pick(size_t below) {
    return (size_t)(next_random() % below);
}

static float to_real(float x) {
    uint32_t bits;
    if (gpu.which == 0)
        return x;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void *memory(size_t count, size_t size) {
    void *made = calloc(count ? count : 1, size);
    if (!made) {
        fprintf(stderr, "out of memory\n");
        exit(2);
    }
    return made;
}

float *gpu_numbers(size_t count, double scale, bool real) {
    float *made = memory(count, sizeof *made);
    for (size_t i = 0; i < count; i++) {
        made[i] = (float)(scale * gpu_normal());
        made[i] = real ? to_real(made[i]) : made[i];
    }
    return made;
}

/* ---- results ---- */

static struct line *line_of(const char *what) {
    for (size_t i = 0; i < lines; i++)
        if (strcmp(line[i].what, what) == 0)
            return &line[i];
    if (lines == LINES)
        return &line[LINES - 1];
    snprintf(line[lines].what, sizeof line[lines].what, "%s", what);
    return &line[lines++];
}

void gpu_note(const char *what, double error, double bound, const char *detail) {
    struct line *l = line_of(what);
    l->count++;
    /* The one nearest to its bound, or farthest beyond. */
    if (l->bound[gpu.which] == 0 || !(error * l->bound[gpu.which] <= l->error[gpu.which] * bound)) {
        l->error[gpu.which] = error;
        l->bound[gpu.which] = bound;
    }
    if (error <= bound)
        return;
    if (l->failed++ < 4)
        printf("FAILED  %s %s: %s: error %.3g, bound %.3g\n", gpu.dtype[gpu.which], what, detail,
               error, bound);
    fflush(stdout);
}

void gpu_compare(const char *what, const float *got, const float *want, size_t count, double fp32,
                 double bf16) {
    double error = 0, size = 0;
    char detail[96] = "";
    for (size_t i = 0; i < count; i++) {
        const double x = (double)got[i], y = (double)want[i];
        size += isfinite(y) ? y * y : 0;
        if (x == y || (isnan(x) && isnan(y)))
            continue;
        if (isnan(x) != isnan(y) && !*detail)
            snprintf(detail, sizeof detail, "element %zu of %zu: %g, expected %g", i, count, x, y);
        error += (x - y) * (x - y);
    }
    gpu_note(what, sqrt(error / (size > 0 ? size : 1)), gpu.which ? bf16 : fp32, detail);
}

void gpu_same(const char *what, const void *got, const void *want, size_t bytes) {
    const char *x = got, *y = want;
    char text[64], detail[64] = "";
    size_t at = 0;
    while (at < bytes && x[at] == y[at])
        at++;
    snprintf(text, sizeof text, "%s", what);
    snprintf(detail, sizeof detail, "byte %zu of %zu differs", at, bytes);
    gpu_note(text, at < bytes ? 1 : 0, 0, detail);
}

void gpu_need(int rc, const char *what, const status *st) {
    if (rc == DONE)
        return;
    fflush(stdout);
    fprintf(stderr, "%s %s: %s\n", gpu.dtype[gpu.which], what, st->text);
    exit(2);
}

/* ---- buffers ---- */

buffer *gpu_buffer(const kernels *k, backend *device, buffer_kind kind, size_t elements,
                   const float *from) {
    status st;
    buffer *made;
    float *content = memory(elements + GUARD, sizeof *content);
    for (size_t i = 0; i < elements + GUARD; i++)
        content[i] = i >= elements ? guard_value : from ? from[i] : NAN;
    gpu_need(k->buffer_create(device, kind, elements + GUARD, &made, &st), "a buffer", &st);
    gpu_need(k->upload(device, made, 0, content, elements + GUARD, &st), "upload", &st);
    free(content);
    return made;
}

float *gpu_download(const kernels *k, backend *device, const buffer *from, size_t elements) {
    status st;
    float *content = memory(elements + GUARD, sizeof *content), guard[GUARD];
    gpu_need(k->download(device, from, 0, content, elements, &st), "download", &st);
    gpu_need(k->download(device, from, elements, guard, GUARD, &st), "download", &st);
    size_t written = 0;
    for (size_t i = 0; i < GUARD; i++)
        written += guard[i] != guard[0] || fabsf(guard[i] - guard_value) > 512.0f;
    gpu_note("guards", written ? 1 : 0, 0, "elements past the end of a buffer were written");
    return content;
}

/* ---- one case ---- */

static float *fill_tensor(const gpu_tensor *t) {
    const bool real = t->kind == BUFFER_REAL;
    if (t->role == GPU_OUT)
        return NULL;
    if (t->fill == GPU_NORMAL)
        return gpu_numbers(t->elements, t->scale > 0 ? t->scale : 1.0, real);
    float *made = memory(t->elements, sizeof *made);
    const int32_t least = t->fill == GPU_TARGETS ? -1 : 0;
    for (size_t i = 0; i < t->elements; i++)
        if (t->fill == GPU_ODD) {
            static const float odd[] = {0.0f, -0.0f, 1.0f, -1.0f, 0.5f, 0x1p100f, 1e-30f, INFINITY};
            made[i] = gpu_pick(700) ? to_real(odd[gpu_pick(8)]) : NAN;
        } else if (t->fill == GPU_GAIN) {
            made[i] = (float)(1.0 + 0.2 * gpu_normal());
        } else {
            const int32_t id = least + (int32_t)gpu_pick(t->limit + (t->fill == GPU_TARGETS));
            memcpy(&made[i], &id, sizeof id);
        }
    return made;
}

/* Runs the case; out[i] receives the content of tensor i afterwards. */
static void run_case(const gpu_case *c, const kernels *k, backend *device, float **in, bool over,
                     float **out) {
    status st;
    buffer *b[GPU_TENSORS] = {NULL};
    for (size_t i = 0; i < GPU_TENSORS; i++)
        if (c->t[i].name && !(over && (int)i == c->over_out))
            b[i] = gpu_buffer(k, device, c->t[i].kind, c->t[i].elements, in[i]);
    if (over)
        b[c->over_out] = b[c->over_in];
    gpu_need(c->run(c, k, device, b, &st), c->name, &st);
    for (size_t i = 0; i < GPU_TENSORS; i++)
        out[i] = b[i] ? gpu_download(k, device, b[i], c->t[i].elements) : NULL;
    if (over)
        b[c->over_out] = NULL;
    for (size_t i = 0; i < GPU_TENSORS; i++)
        k->buffer_free(device, b[i]);
}

static void free_all(float **x) {
    for (size_t i = 0; i < GPU_TENSORS; i++)
        free(x[i]);
}

/* What a run on the GPU left against an earlier one's. */
static void same_again(const gpu_case *c, float **again, float **first, bool over) {
    char what[96];
    snprintf(what, sizeof what, over ? "%s in place" : "%s again", c->name);
    for (size_t i = 0; i < GPU_TENSORS; i++)
        if (first[i] && !(over && (int)i == c->over_in))
            gpu_same(what, again[i], first[i], c->t[i].elements * sizeof(float));
}

static void compare_case(const gpu_case *c, float **in, float **got, float **want) {
    char what[128];
    const double fp32 = c->fp32 > 0 ? c->fp32 : 1e-5, bf16 = c->bf16 > 0 ? c->bf16 : 6e-3;
    for (size_t i = 0; i < GPU_TENSORS; i++) {
        const gpu_tensor *t = &c->t[i];
        if (!t->name)
            continue;
        snprintf(what, sizeof what, "%s: %s", c->name, t->name);
        if (t->role == GPU_IN)
            gpu_compare("inputs as they were", got[i], in[i], t->elements, 0, 0);
        else if (t->integer)
            gpu_same(what, got[i], want[i], t->elements * sizeof(float));
        else
            gpu_compare(what, got[i], want[i], t->elements, fp32, bf16);
    }
}

void gpu_check(const gpu_case *c) {
    if (!gpu_wanted(c->name))
        return;
    for (gpu.which = 0; gpu.which < 2; gpu.which++) {
        float *in[GPU_TENSORS] = {NULL}, *want[GPU_TENSORS], *got[GPU_TENSORS];
        for (size_t i = 0; i < GPU_TENSORS; i++)
            if (c->t[i].name)
                in[i] = fill_tensor(&c->t[i]);
        run_case(c, &kernels_cpu, gpu.cpu, in, false, want);
        run_case(c, gpu.gpu_kernels, gpu.gpu[gpu.which], in, false, got);
        compare_case(c, in, got, want);
        for (size_t run = 0; run < gpu.runs; run++) {
            float *again[GPU_TENSORS];
            const bool over = c->over_in != c->over_out && run == 0;
            run_case(c, gpu.gpu_kernels, gpu.gpu[gpu.which], in, over, again);
            same_again(c, again, got, over);
            free_all(again);
        }
        free_all(in);
        free_all(want);
        free_all(got);
    }
    gpu.which = 0;
}

/* ---- the program ---- */

bool gpu_wanted(const char *name) {
    for (size_t i = 0; i < words; i++)
        if (strstr(name, word[i]))
            return true;
    return words == 0;
}

void gpu_open(int argc, char **argv) {
    const char *given = getenv("TEST_SEED"), *device = getenv("TEST_DEVICE");
    status st;
    seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "small") == 0)
            gpu.small = true;
        else if (strncmp(argv[i], "runs=", 5) == 0)
            gpu.runs = strtoul(argv[i] + 5, NULL, 10);
        else if (words < WORDS)
            word[words++] = argv[i];
    device = device ? device : "cuda";
    const bool self = strcmp(device, "cpu") == 0; /* the checks themselves are checked */
    gpu.gpu_kernels = kernels_find(self ? "cpu" : "cuda", &st);
    if (!gpu.gpu_kernels) {
        fprintf(stderr, "%s\n0 passed, 0 failed, 1 skipped\n", st.text);
        exit(2);
    }
    gpu_need(kernels_cpu.open(&(backend_options){.device = "cpu"}, &gpu.cpu, &st), "cpu", &st);
    for (gpu.which = 0; gpu.which < 2; gpu.which++)
        gpu_need(gpu.gpu_kernels->open(
                     &(backend_options){0, device, self ? "fp32" : gpu.dtype[gpu.which]},
                     &gpu.gpu[gpu.which], &st),
                 "cuda", &st);
    gpu.which = 0;
    printf("TEST_SEED=%llu\n%s\n%s\n", (unsigned long long)seed, kernels_cpu.describe(gpu.cpu),
           gpu.gpu_kernels->describe(gpu.gpu[1]));
}

int gpu_close(void) {
    size_t passed = 0, failed = 0;
    printf("\n%-44s %9s %9s %9s %9s\n", "error nearest to its bound", "fp32", "bound", "bf16",
           "bound");
    for (size_t i = 0; i < lines; i++) {
        printf("%-44s %9.2g %9.2g %9.2g %9.2g%s\n", line[i].what, line[i].error[0],
               line[i].bound[0], line[i].error[1], line[i].bound[1],
               line[i].failed ? "  FAILED" : "");
        failed += line[i].failed;
        passed += line[i].count - line[i].failed;
    }
    for (size_t i = 0; i < 2; i++)
        gpu.gpu_kernels->close(gpu.gpu[i]);
    kernels_cpu.close(gpu.cpu);
    printf("%zu passed, %zu failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
