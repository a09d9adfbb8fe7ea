/* bench_operations.c - see bench_operations.h.
 *
 * The depth axis at the shapes of models that route over depth, one site alone and a whole axis
 * forward and backward, and matrix products beside them. Nothing but the table of kernels is used:
 * a time is the wall clock's over some calls that end in `wait`. */
#include "probes/bench_operations.h"

#include "runtime/base/interrupt.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WARM_UPS = 3, CALLS = 8, MOST_ROWS = 32, NUMBERS = 1 << 18 };
static const double LONG = 0.02; /* seconds of a call */

/* Sources, width, routing heads. */
static const size_t site_shape[][3] = {{9, 7168, 1},  {33, 2048, 1}, {25, 512, 4},
                                       {49, 1024, 8}, {73, 1280, 8}, {9, 4096, 8}};
static const size_t axis_shape[][3] = {{25, 512, 4}, {49, 1024, 8}, {73, 1280, 8}};
static const size_t product_shape[][2] = {{1280, 5120}, {4096, 4096}}; /* in, out */
#define COUNT(array) (sizeof(array) / sizeof *(array))

typedef struct bench {
    const kernels *k;
    backend *device;
    operation_times *times;
    double *round; /* [rounds] */
    float *number; /* [NUMBERS] */
    size_t filled; /* buffers */
} bench;

/* ---- an axis ---- */

/* `values` values, one of them the embedding; site s reads the first s + 1, or, `last_only`, the
 * one site reads them all. A second site without sources copies value 0. */
typedef struct axis_under_test {
    depth_plan plan;
    depth_value *value;
    depth_site *site;
    site_weights *weights;
    int *source;
    buffer *query, *gain, **in, *routing; /* in [sites] */
    depth *axis;
    size_t start[2];
    batch_layout layout;
} axis_under_test;

/* Normal numbers, other ones for each buffer: the same few, from another place on. */
static int fill_random(bench *b, buffer *to, size_t elements, status *st) {
    size_t first = b->filled++ * 4099 % (NUMBERS / 2);
    for (size_t at = 0; at < elements;) {
        const size_t left = elements - at, room = NUMBERS - first;
        const size_t count = left < room ? left : room;
        if (b->k->upload(b->device, to, at, b->number + first, count, st))
            return FAILED;
        at += count;
        first = 0;
    }
    return DONE;
}

static int random_buffer(bench *b, buffer_kind kind, size_t elements, buffer **out, status *st) {
    return b->k->buffer_create(b->device, kind, elements, out, st)
               ? FAILED
               : fill_random(b, *out, elements, st);
}

/* Logits of about unit variance. */
static int create_query(bench *b, size_t width, size_t heads, buffer **out, status *st) {
    float *query = mem_array(width, sizeof *query, "random numbers", st);
    int rc = query ? b->k->buffer_create(b->device, BUFFER_EXACT, width, out, st) : FAILED;
    for (size_t i = 0; i < width && !rc; i++)
        query[i] = b->number[i] / sqrtf((float)(width / heads));
    if (!rc)
        rc = b->k->upload(b->device, *out, 0, query, width, st);
    free(query);
    return rc;
}

static void close_axis(bench *b, axis_under_test *a) {
    b->k->depth_free(a->axis);
    for (size_t s = 0; a->in && s < a->plan.sites; s++)
        b->k->buffer_free(b->device, a->in[s]);
    b->k->buffer_free(b->device, a->routing);
    b->k->buffer_free(b->device, a->query);
    b->k->buffer_free(b->device, a->gain);
    free(a->in);
    free(a->value);
    free(a->site);
    free(a->weights);
    free(a->source);
}

static int plan_axis(axis_under_test *a, size_t values, bool last_only, status *st) {
    const size_t sites = last_only ? 2 : values;
    a->value = mem_array(values, sizeof *a->value, "depth values", st);
    a->site = mem_array(sites, sizeof *a->site, "depth sites", st);
    a->weights = mem_array(sites, sizeof *a->weights, "depth sites", st);
    a->source = mem_array(values, sizeof *a->source, "depth sites", st);
    a->in = mem_array(sites, sizeof *a->in, "depth sites", st);
    if (!a->value || !a->site || !a->weights || !a->source || !a->in)
        return FAILED;
    for (size_t v = 0; v < values; v++) {
        a->value[v] =
            (depth_value){v ? VALUE_OUT : VALUE_EMB, v ? (int)v - 1 : NO_VALUE, NO_VALUE, (int)v};
        a->source[v] = (int)v;
    }
    for (size_t s = 0; s < sites; s++) {
        const bool copies = last_only && s == 1;
        a->site[s] = (depth_site){.base = copies ? 0 : NO_VALUE,
                                  .sources = copies      ? 0
                                             : last_only ? (int)values
                                                         : (int)s + 1,
                                  .source = a->source};
        a->weights[s] = (site_weights){.query = a->query, .gain = a->gain};
    }
    a->plan.values = a->plan.slots = values;
    a->plan.value = a->value;
    a->plan.sites = sites;
    a->plan.site = a->site;
    return DONE;
}

static int open_axis(bench *b, const size_t shape[3], bool last_only, axis_under_test *a,
                     status *st) {
    const size_t rows = b->times->rows, width = shape[1];
    *a = (axis_under_test){.plan = {.width = width, .heads = shape[2], .eps = 1e-6f},
                           .start = {0, rows}};
    a->layout = (batch_layout){1, rows, a->start};
    if (create_query(b, width, shape[2], &a->query, st) ||
        random_buffer(b, BUFFER_EXACT, width, &a->gain, st) ||
        plan_axis(a, shape[0], last_only, st) ||
        b->k->buffer_create(b->device, BUFFER_EXACT, rows * shape[2] * shape[0], &a->routing, st))
        return FAILED;
    for (size_t s = 0; s < a->plan.sites; s++)
        if (random_buffer(b, BUFFER_REAL, rows * width, &a->in[s], st))
            return FAILED;
    const depth_options options = {.plan = &a->plan,
                                   .weights = a->weights,
                                   .max_rows = rows,
                                   .max_sequences = 1,
                                   .backward = !last_only};
    if (b->k->depth_create(b->device, &options, &a->axis, st))
        return FAILED;
    const depth_wants wants = {0};
    if (b->k->depth_begin(a->axis, &a->layout, &wants, st))
        return FAILED;
    for (size_t v = 0; v < a->plan.values; v++)
        if (fill_random(b, b->k->depth_storage(a->axis, v), rows * width, st) ||
            b->k->depth_made(a->axis, v, st))
            return FAILED;
    return DONE;
}

/* ---- calls ---- */

typedef struct call {
    bench *b;
    axis_under_test *axis;
    linear_args product;
} call;

typedef int run_call(const call *c, status *st);

static int run_copy(const call *c, status *st) {
    const depth_read_args args = {.site = 1, .in = c->axis->in[1]};
    return c->b->k->depth_read(c->axis->axis, &args, st);
}

static int run_read(const call *c, status *st) {
    const depth_read_args args = {.site = 0, .in = c->axis->in[0], .weights = c->axis->routing};
    return c->b->k->depth_read(c->axis->axis, &args, st);
}

static int run_forward(const call *c, status *st) {
    const kernels *k = c->b->k;
    const depth_wants wants = {0};
    if (k->depth_begin(c->axis->axis, &c->axis->layout, &wants, st))
        return FAILED;
    for (size_t v = 0; v < c->axis->plan.values; v++) {
        const depth_read_args args = {.site = v, .in = c->axis->in[v]};
        if (k->depth_made(c->axis->axis, v, st) || k->depth_read(c->axis->axis, &args, st))
            return FAILED;
    }
    return DONE;
}

/* Forward and backward: a backward pass needs a forward pass before it. What a site gave stands for
 * its gradient. */
static int run_both(const call *c, status *st) {
    const kernels *k = c->b->k;
    const buffer *d_value;
    if (run_forward(c, st))
        return FAILED;
    for (size_t v = c->axis->plan.values; v-- > 0;)
        if (k->depth_give(c->axis->axis, v, c->axis->in[v], st) ||
            k->depth_pull(c->axis->axis, v, &d_value, st))
            return FAILED;
    return DONE;
}

static int run_product(const call *c, status *st) {
    return c->b->k->linear(c->b->device, &c->product, st);
}

/* ---- measuring ---- */

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int compare_real(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of one of `calls` calls. */
static int time_calls(const call *c, run_call *run, size_t calls, double *seconds, status *st) {
    const double start = seconds_now();
    for (size_t i = 0; i < calls; i++)
        if (run(c, st))
            return FAILED;
    if (c->b->k->wait(c->b->device, st))
        return FAILED;
    *seconds = (seconds_now() - start) / (double)calls;
    if (!interrupt_pending())
        return DONE;
    status_fail(st, "interrupted");
    return INTERRUPTED;
}

/* Calls that take long are not repeated within a round. */
static int median_seconds(const call *c, run_call *run, double *seconds, status *st) {
    const size_t rounds = c->b->times->rounds;
    double *round = c->b->round;
    int rc = time_calls(c, run, 1, seconds, st);
    const size_t calls = *seconds < LONG ? CALLS : 1;
    for (size_t i = 1; i < WARM_UPS && !rc; i++)
        rc = time_calls(c, run, calls, seconds, st);
    for (size_t i = 0; i < rounds && !rc; i++)
        rc = time_calls(c, run, calls, &round[i], st);
    if (rc)
        return rc;
    qsort(round, rounds, sizeof *round, compare_real);
    *seconds = (round[(rounds - 1) / 2] + round[rounds / 2]) / 2;
    return DONE;
}

static operation_row *add_row(bench *b, const char *name, double seconds, double bytes,
                              double flops) {
    operation_row *row = &b->times->row[b->times->count++];
    row->name = name;
    row->seconds = seconds;
    row->bytes = bytes;
    row->flops = flops;
    return row;
}

/* One site, and a copy of as many rows. */
static int time_site(bench *b, const size_t shape[3], status *st) {
    axis_under_test a;
    const size_t rows = b->times->rows;
    const double row = (double)b->k->real_size(b->device) * (double)(rows * shape[1]);
    double copy = 0, read = 0;
    int rc = open_axis(b, shape, true, &a, st);
    const call c = {.b = b, .axis = &a};
    if (!rc)
        rc = median_seconds(&c, run_copy, &copy, st);
    if (!rc)
        rc = median_seconds(&c, run_read, &read, st);
    close_axis(b, &a);
    if (rc)
        return rc;
    if (2 * row / copy > b->times->copy_rate)
        b->times->copy_rate = 2 * row / copy;
    operation_row *to = add_row(b, "depth_read", read, row * (double)(shape[0] + 1), 0);
    snprintf(to->shape, sizeof to->shape, "S %zu, T %zu, d %zu, H %zu", shape[0], rows, shape[1],
             shape[2]);
    return DONE;
}

static int time_axis(bench *b, const size_t shape[3], status *st) {
    axis_under_test a;
    const size_t rows = b->times->rows, sites = shape[0];
    const double row = (double)b->k->real_size(b->device) * (double)(rows * shape[1]);
    double forward = 0, both = 0;
    int rc = open_axis(b, shape, false, &a, st);
    const call c = {.b = b, .axis = &a};
    if (!rc)
        rc = median_seconds(&c, run_forward, &forward, st);
    if (!rc)
        rc = median_seconds(&c, run_both, &both, st);
    close_axis(b, &a);
    if (rc)
        return rc;
    const double reads = (double)(sites * (sites + 1) / 2);
    const struct {
        const char *name;
        double seconds, rows;
    } made[] = {{"axis forward", forward, reads + (double)sites},
                {"axis both ways", both, 2 * reads + 3 * (double)sites}};
    for (size_t i = 0; i < COUNT(made); i++) {
        operation_row *to = add_row(b, made[i].name, made[i].seconds, row * made[i].rows, 0);
        snprintf(to->shape, sizeof to->shape, "%zu sites, T %zu, d %zu, H %zu", sites, rows,
                 shape[1], shape[2]);
    }
    return DONE;
}

static int time_product(bench *b, const size_t shape[2], status *st) {
    const size_t rows = b->times->rows, start[] = {0, rows};
    const batch_layout layout = {1, rows, start};
    buffer *in = NULL, *weight = NULL, *out = NULL;
    double seconds = 0;
    int rc = random_buffer(b, BUFFER_REAL, rows * shape[0], &in, st) ||
             random_buffer(b, BUFFER_REAL, shape[0] * shape[1], &weight, st) ||
             b->k->buffer_create(b->device, BUFFER_REAL, rows * shape[1], &out, st);
    const call c = {.b = b,
                    .product = {.layout = &layout,
                                .in_width = shape[0],
                                .out_width = shape[1],
                                .in = in,
                                .weight = weight,
                                .out = out}};
    if (!rc)
        rc = median_seconds(&c, run_product, &seconds, st);
    b->k->buffer_free(b->device, in);
    b->k->buffer_free(b->device, weight);
    b->k->buffer_free(b->device, out);
    if (rc)
        return rc;
    operation_row *to =
        add_row(b, "linear", seconds, 0, 2.0 * (double)rows * (double)(shape[0] * shape[1]));
    snprintf(to->shape, sizeof to->shape, "T %zu, %zu to %zu", rows, shape[0], shape[1]);
    return DONE;
}

/* A processor gets fewer than a card, whose memory the host cannot read. */
static int choose_rows(bench *b, size_t rows, status *st) {
    buffer *one;
    if (b->k->buffer_create(b->device, BUFFER_EXACT, 1, &one, st))
        return FAILED;
    b->times->rows = rows ? rows : b->k->host(b->device, one) ? 256 : 8192;
    b->k->buffer_free(b->device, one);
    return DONE;
}

int bench_operations(const backend_options *options, size_t rows, size_t rounds,
                     operation_times *out, status *st) {
    bench b = {.times = out};
    *out = (operation_times){.rounds = rounds};
    if (kernels_open(options, 0, &b.k, &b.device, st))
        return FAILED;
    snprintf(out->device, sizeof out->device, "%s", b.k->describe(b.device));
    out->row = mem_array(MOST_ROWS, sizeof *out->row, "times", st);
    b.round = mem_array(rounds, sizeof *b.round, "times", st);
    b.number = mem_array(NUMBERS, sizeof *b.number, "random numbers", st);
    int rc = out->row && b.round && b.number ? choose_rows(&b, rows, st) : FAILED;
    for (size_t i = 0; i < NUMBERS && !rc; i++)
        b.number[i] = (float)random_normal(1, i);
    const size_t all = COUNT(site_shape) + COUNT(axis_shape) + COUNT(product_shape);
    size_t done = 0;
    progress_begin("bench", all, "shapes");
    for (size_t i = 0; i < COUNT(site_shape) && !rc; i++, progress_update(++done, 0))
        rc = time_site(&b, site_shape[i], st);
    for (size_t i = 0; i < COUNT(axis_shape) && !rc; i++, progress_update(++done, 0))
        rc = time_axis(&b, axis_shape[i], st);
    for (size_t i = 0; i < COUNT(product_shape) && !rc; i++, progress_update(++done, 0))
        rc = time_product(&b, product_shape[i], st);
    progress_end();
    free(b.round);
    free(b.number);
    b.k->close(b.device);
    return rc;
}

/* ---- saying it ---- */

void operation_times_print(const operation_times *times, FILE *out) {
    fprintf(out, "device     %s\n", times->device);
    fprintf(out, "rounds     %zu of at most %d calls, after %d to warm up\n", times->rounds, CALLS,
            WARM_UPS);
    fprintf(out, "copy       %.0f GB/s, read and written\n\n", times->copy_rate * 1e-9);
    fprintf(out, "%-14s %-34s %10s %8s %8s %9s\n", "", "", "ms", "GB/s", "TFLOP/s", "of copy");
    for (size_t i = 0; i < times->count; i++) {
        const operation_row *row = &times->row[i];
        fprintf(out, "%-14s %-34s %10.3f", row->name, row->shape, 1e3 * row->seconds);
        if (row->bytes > 0)
            fprintf(out, " %8.0f %8s %9.3f\n", row->bytes / row->seconds * 1e-9, "",
                    row->bytes / row->seconds / times->copy_rate);
        else
            fprintf(out, " %8s %8.2f\n", "", row->flops / row->seconds * 1e-12);
    }
}

int operation_times_json(const operation_times *times, FILE *out, status *st) {
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "device", times->device);
    cJSON_AddNumberToObject(json, "rounds", (double)times->rounds);
    cJSON_AddNumberToObject(json, "copy_bytes_per_second", times->copy_rate);
    cJSON *list = cJSON_AddArrayToObject(json, "operations");
    for (size_t i = 0; i < times->count; i++) {
        const operation_row *row = &times->row[i];
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "name", row->name);
        cJSON_AddStringToObject(item, "shape", row->shape);
        cJSON_AddNumberToObject(item, "seconds", row->seconds);
        if (row->bytes > 0) {
            cJSON_AddNumberToObject(item, "bytes", row->bytes);
            cJSON_AddNumberToObject(item, "of_copy", row->bytes / row->seconds / times->copy_rate);
        } else {
            cJSON_AddNumberToObject(item, "flops", row->flops);
        }
        cJSON_AddItemToArray(list, item);
    }
    char *text = cJSON_Print(json);
    const int rc = text ? DONE : status_fail(st, "out of memory");
    if (text)
        fprintf(out, "%s\n", text);
    cJSON_free(text);
    cJSON_Delete(json);
    return rc;
}
