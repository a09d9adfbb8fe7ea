/* gpu_depth.c - the depth axis of the GPU backend against the CPU's, forward, sums and backward. */
#include "kernels/tests/gpu_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
enum { SITES = 3, MOST_VALUES = 130 };

static const size_t one[] = {0, 1}, few[] = {0, 1, 17}, many[] = {0, 1, 301, 318, 382, 1000};
static const batch_layout layouts[] = {{1, 1, one}, {2, 17, few}, {5, 1000, many}};

/* One embedding and outputs, and three sites: of the first value, of half of them, of all. */
typedef struct axis_case {
    size_t width, heads, sources;
    const batch_layout *layout;
    size_t count[SITES];
    depth_value value[MOST_VALUES];
    int source[MOST_VALUES];
    depth_site site[SITES];
    depth_plan plan;
    float *given[MOST_VALUES]; /* [rows, width] */
    float *query[SITES], *gain[SITES], *d_in[SITES];
    float *other; /* [2, width] queries beside the last site's own */
} axis_case;

typedef struct axis_result {
    float *in[SITES], *weights[SITES];
    double *sums[SITES], *other;
    float *d_value[MOST_VALUES], *grad_query[SITES], *grad_gain[SITES];
} axis_result;

static routing_layout layout_of(const axis_case *c, size_t site) {
    return routing_layout_of(c->heads, c->count[site], false, true);
}

static void make_case(axis_case *c) {
    const size_t rows = c->layout->rows;
    c->count[0] = 1;
    c->count[1] = (c->sources + 1) / 2;
    c->count[2] = c->sources;
    for (size_t v = 0; v < c->sources; v++) {
        c->value[v] =
            (depth_value){v ? VALUE_OUT : VALUE_EMB, v ? (int)v - 1 : NO_VALUE, NO_VALUE, (int)v};
        c->source[v] = (int)v;
        c->given[v] = gpu_numbers(rows * c->width, 0.5 + (double)(v % 3), true);
    }
    for (size_t s = 0; s < SITES; s++) {
        c->site[s] =
            (depth_site){.base = NO_VALUE, .sources = (int)c->count[s], .source = c->source};
        c->query[s] = gpu_numbers(c->width, 1 / sqrt((double)(c->width / c->heads)), false);
        c->gain[s] = gpu_numbers(c->width, 1, false);
        c->d_in[s] = gpu_numbers(rows * c->width, 1, true);
    }
    c->other = gpu_numbers(2 * c->width, 1 / sqrt((double)(c->width / c->heads)), false);
    c->plan = (depth_plan){.width = c->width,
                           .heads = c->heads,
                           .eps = 1e-6f,
                           .values = c->sources,
                           .value = c->value,
                           .slots = c->sources,
                           .sites = SITES,
                           .site = c->site};
}

static void free_case(axis_case *c) {
    for (size_t v = 0; v < c->sources; v++)
        free(c->given[v]);
    for (size_t s = 0; s < SITES; s++) {
        free(c->query[s]);
        free(c->gain[s]);
        free(c->d_in[s]);
    }
    free(c->other);
}

static void free_result(const axis_case *c, axis_result *r) {
    for (size_t s = 0; s < SITES; s++) {
        free(r->in[s]);
        free(r->weights[s]);
        free(r->sums[s]);
        free(r->grad_query[s]);
        free(r->grad_gain[s]);
    }
    free(r->other);
    for (size_t v = 0; v < c->sources; v++)
        free(r->d_value[v]);
}

static void read_site(const axis_case *c, const kernels *k, backend *device, depth *axis, size_t s,
                      buffer **in, buffer **weights, axis_result *r) {
    status st;
    const size_t rows = c->layout->rows;
    in[s] = gpu_buffer(k, device, BUFFER_REAL, rows * c->width, NULL);
    weights[s] = gpu_buffer(k, device, BUFFER_EXACT, rows * c->heads * c->count[s], NULL);
    gpu_need(k->depth_read(axis, &(depth_read_args){s, in[s], weights[s]}, &st), "depth_read", &st);
    if (s + 1 < SITES)
        return;
    const size_t total = layout_of(c, s).total;
    buffer *other = gpu_buffer(k, device, BUFFER_EXACT, 2 * c->width, c->other);
    r->other = calloc(2 * c->layout->sequences * total, sizeof *r->other);
    const depth_alternative_args args = {
        .site = s, .count = 2, .folded = other, .pairs = true, .sums = r->other};
    gpu_need(k->depth_alternative(axis, &args, &st), "depth_alternative", &st);
    k->buffer_free(device, other);
}

static void run_backward(const axis_case *c, const kernels *k, backend *device, depth *axis,
                         axis_result *r) {
    status st;
    const size_t rows = c->layout->rows;
    buffer *d_in[SITES], *query[SITES], *gain[SITES];
    float *zero = calloc(c->width, sizeof *zero);
    size_t site = SITES;
    for (size_t s = 0; s < SITES; s++)
        d_in[s] = gpu_buffer(k, device, BUFFER_REAL, rows * c->width, c->d_in[s]);
    for (size_t v = c->sources; v-- > 0;) {
        const buffer *d_value;
        for (; site > 0 && c->count[site - 1] == v + 1; site--)
            gpu_need(k->depth_give(axis, site - 1, d_in[site - 1], &st), "depth_give", &st);
        gpu_need(k->depth_pull(axis, v, &d_value, &st), "depth_pull", &st);
        r->d_value[v] = calloc(rows * c->width + 1, sizeof(float));
        gpu_need(k->download(device, d_value, 0, r->d_value[v], rows * c->width, &st), "download",
                 &st);
    }
    for (size_t s = 0; s < SITES; s++) {
        query[s] = gpu_buffer(k, device, BUFFER_EXACT, c->width, zero);
        gain[s] = gpu_buffer(k, device, BUFFER_EXACT, c->width, zero);
        const site_grads grads = {.query = query[s], .gain = gain[s]};
        gpu_need(k->depth_site_grads(axis, s, &grads, &st), "depth_site_grads", &st);
        r->grad_query[s] = gpu_download(k, device, query[s], c->width);
        r->grad_gain[s] = gpu_download(k, device, gain[s], c->width);
        k->buffer_free(device, query[s]);
        k->buffer_free(device, gain[s]);
        k->buffer_free(device, d_in[s]);
    }
    free(zero);
}

static void run_axis(const axis_case *c, const kernels *k, backend *device, bool backward,
                     axis_result *r) {
    status st;
    depth *axis;
    site_weights weights[SITES] = {0};
    buffer *query[SITES], *gain[SITES], *in[SITES], *weight[SITES];
    const size_t rows = c->layout->rows;
    *r = (axis_result){0};
    for (size_t s = 0; s < SITES; s++) {
        weights[s].query = query[s] = gpu_buffer(k, device, BUFFER_EXACT, c->width, c->query[s]);
        weights[s].gain = gain[s] = gpu_buffer(k, device, BUFFER_EXACT, c->width, c->gain[s]);
    }
    const depth_options options = {.plan = &c->plan,
                                   .weights = weights,
                                   .max_rows = rows,
                                   .max_sequences = c->layout->sequences,
                                   .backward = backward};
    gpu_need(k->depth_create(device, &options, &axis, &st), "depth_create", &st);
    const depth_wants wants = {.sums = true, .pairs = true, .skip_first = 1};
    gpu_need(k->depth_begin(axis, c->layout, &wants, &st), "depth_begin", &st);
    size_t site = 0;
    for (size_t v = 0; v < c->sources; v++) {
        gpu_need(k->upload(device, k->depth_storage(axis, v), 0, c->given[v], rows * c->width, &st),
                 "upload", &st);
        gpu_need(k->depth_made(axis, v, &st), "depth_made", &st);
        for (; site < SITES && c->count[site] == v + 1; site++)
            read_site(c, k, device, axis, site, in, weight, r);
    }
    for (size_t s = 0; s < SITES; s++) {
        const size_t bytes = c->layout->sequences * layout_of(c, s).total * sizeof(double);
        void *sums;
        gpu_need(k->host_create(device, bytes, &sums, &st), "host_create", &st);
        gpu_need(k->depth_sums(axis, s, sums, &st) || k->wait(device, &st), "depth_sums", &st);
        r->sums[s] = calloc(bytes, 1);
        memcpy(r->sums[s], sums, bytes);
        k->host_free(device, sums);
        r->in[s] = gpu_download(k, device, in[s], rows * c->width);
        r->weights[s] = gpu_download(k, device, weight[s], rows * c->heads * c->count[s]);
    }
    if (backward)
        run_backward(c, k, device, axis, r);
    k->depth_free(axis);
    for (size_t s = 0; s < SITES; s++) {
        k->buffer_free(device, query[s]);
        k->buffer_free(device, gain[s]);
        k->buffer_free(device, in[s]);
        k->buffer_free(device, weight[s]);
    }
}

/* Sums are means times tokens: errors count by token. NaN must meet NaN. The worst are signed
 * shares, which divide by <mix, mix>: of slices of two channels that can be near 0 (2.1e-5
 * measured). */
static void compare_sums(const char *what, const double *got, const double *want, size_t count,
                         double tokens, const char *detail) {
    double worst = 0;
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        const double error = isnan(got[i]) && isnan(want[i])
                                 ? 0
                                 : fabs(got[i] - want[i]) / fmax(tokens, fabs(want[i]));
        if (!(error <= worst)) {
            worst = error;
            at = i;
        }
    }
    char text[160];
    snprintf(text, sizeof text, "%s, element %zu of %zu: %g, expected %g", detail, at, count,
             got[at], want[at]);
    gpu_note(what, worst, gpu.which ? 4e-3 : 1e-4, text);
}

/* Of all values together: what is small in one is small beside what its readers' gradients are. */
static void compare_gradients(const axis_case *c, const axis_result *got, const axis_result *want) {
    const size_t each = c->layout->rows * c->width;
    float *all = malloc(2 * c->sources * each * sizeof *all);
    for (size_t v = 0; v < c->sources && all; v++) {
        memcpy(all + v * each, got->d_value[v], each * sizeof *all);
        memcpy(all + (c->sources + v) * each, want->d_value[v], each * sizeof *all);
    }
    if (all)
        gpu_compare("depth: d_value", all, all + c->sources * each, c->sources * each, 2e-5, 1e-2);
    free(all);
}

/* What the gradient of a query (`factor` its gain) or of a gain (its query) is the small rest of:
 * each channel sums dl_s v_s / rms(v_s) with dl_s = a_s (<v_s, dO> - <dO, O>), and O is rounded in
 * memory. The root of the squares of |dO O| (its terms') times sum_s a_s v_s / rms(v_s). */
static double parts_of(const axis_case *c, size_t site, const axis_result *want,
                       const float *factor) {
    const size_t slice = c->width / c->heads, sources = c->count[site];
    double squares = 0;
    for (size_t row = 0; row < c->layout->rows; row++) {
        double scale[MOST_VALUES];
        for (size_t v = 0; v < sources; v++) {
            double sum = 0;
            for (size_t i = 0; i < c->width; i++)
                sum += pow((double)c->given[v][row * c->width + i], 2);
            scale[v] = 1 / sqrt(sum / (double)c->width + 1e-6);
        }
        for (size_t h = 0; h < c->heads; h++) {
            const float *a = want->weights[site] + (row * c->heads + h) * sources;
            const size_t at = row * c->width + h * slice;
            double terms = 0;
            for (size_t i = 0; i < slice; i++)
                terms += pow((double)c->d_in[site][at + i] * (double)want->in[site][at + i], 2);
            for (size_t i = 0; i < slice; i++) {
                double mixed = 0;
                for (size_t v = 0; v < sources; v++)
                    mixed += (double)a[v] * scale[v] * (double)c->given[v][at + i];
                squares += terms * pow(mixed * (double)factor[h * slice + i], 2);
            }
        }
    }
    return sqrt(squares);
}

/* Against its own size, and in bf16 that of what it is made of. */
static void compare_site_gradient(const char *what, const axis_case *c, size_t site,
                                  const axis_result *want, const float *factor, const float *got,
                                  const float *expected, const char *detail) {
    double error = 0, size = 0;
    for (size_t i = 0; i < c->width; i++) {
        error += pow((double)got[i] - (double)expected[i], 2);
        size += pow((double)expected[i], 2);
    }
    if (gpu.which)
        size += pow(parts_of(c, site, want, factor), 2);
    gpu_note(what, sqrt(error / (size > 0 ? size : 1)), gpu.which ? 4e-3 : 2e-4, detail);
}

static void compare(const axis_case *c, const axis_result *got, const axis_result *want,
                    bool backward, const char *detail) {
    const size_t rows = c->layout->rows, sequences = c->layout->sequences;
    for (size_t s = 0; s < SITES; s++) {
        const size_t total = layout_of(c, s).total;
        gpu_compare("depth: in", got->in[s], want->in[s], rows * c->width, 1e-5, 4e-3);
        gpu_compare("depth: weights", got->weights[s], want->weights[s],
                    rows * c->heads * c->count[s], 1e-5, 1e-4);
        compare_sums("depth: sums", got->sums[s], want->sums[s], sequences * total, (double)rows,
                     detail);
        if (!backward)
            continue;
        compare_site_gradient("depth: grad_query", c, s, want, c->gain[s], got->grad_query[s],
                              want->grad_query[s], detail);
        compare_site_gradient("depth: grad_gain", c, s, want, c->query[s], got->grad_gain[s],
                              want->grad_gain[s], detail);
    }
    compare_sums("depth: alternative sums", got->other, want->other,
                 2 * sequences * layout_of(c, SITES - 1).total, (double)rows, detail);
    if (backward)
        compare_gradients(c, got, want);
}

static void same(const axis_case *c, const axis_result *got, const axis_result *want,
                 bool backward) {
    const size_t rows = c->layout->rows;
    for (size_t s = 0; s < SITES; s++) {
        gpu_same("depth: in again", got->in[s], want->in[s], rows * c->width * sizeof(float));
        gpu_same("depth: weights again", got->weights[s], want->weights[s],
                 rows * c->heads * c->count[s] * sizeof(float));
        gpu_same("depth: sums again", got->sums[s], want->sums[s],
                 c->layout->sequences * layout_of(c, s).total * sizeof(double));
        if (backward)
            gpu_same("depth: grad_query again", got->grad_query[s], want->grad_query[s],
                     c->width * sizeof(float));
    }
    for (size_t v = 0; v < c->sources && backward; v++)
        gpu_same("depth: d_value again", got->d_value[v], want->d_value[v],
                 rows * c->width * sizeof(float));
}

static void check_axis(size_t width, size_t heads, size_t sources, const batch_layout *layout,
                       bool backward) {
    char detail[96];
    snprintf(detail, sizeof detail, "S %zu, T %zu, d %zu, H %zu", sources, layout->rows, width,
             heads);
    for (gpu.which = 0; gpu.which < 2; gpu.which++) {
        axis_case c = {.width = width, .heads = heads, .sources = sources, .layout = layout};
        axis_result want, got, again;
        make_case(&c);
        run_axis(&c, &kernels_cpu, gpu.cpu, backward, &want);
        run_axis(&c, gpu.gpu_kernels, gpu.gpu[gpu.which], backward, &got);
        compare(&c, &got, &want, backward, detail);
        const bool large = sources * layout->rows * width > (size_t)4 << 20;
        for (size_t run = 0; run < (large && gpu.runs > 1 ? 1 : gpu.runs); run++) {
            run_axis(&c, gpu.gpu_kernels, gpu.gpu[gpu.which], backward, &again);
            same(&c, &again, &got, backward);
            free_result(&c, &again);
        }
        free_result(&c, &want);
        free_result(&c, &got);
        free_case(&c);
    }
    gpu.which = 0;
}

int main(int argc, char **argv) {
    static const size_t shape[][2] = {{48, 4},    {48, 24},  {768, 12}, {1280, 8},
                                      {1280, 64}, {7168, 1}, {7168, 8}};
    static const size_t sources[] = {1, 2, 33, 73, 130};
    gpu_open(argc, argv);
    for (size_t l = 0; l < COUNT(layouts); l++)
        for (size_t i = 0; i < COUNT(shape); i++)
            for (size_t s = 0; s < COUNT(sources); s++) {
                const size_t size = layouts[l].rows * shape[i][0] * sources[s];
                if (gpu.small && size > 60000)
                    continue;
                if (size < (size_t)48 << 20)
                    check_axis(shape[i][0], shape[i][1], sources[s], &layouts[l],
                               size < (size_t)24 << 20 || s == 2);
            }
    return gpu_close();
}
