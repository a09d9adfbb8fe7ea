/* depth_case.c - see depth_case.h. */
#include "kernels/tests/depth_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static depth_case *make_case(size_t width, size_t heads, size_t values) {
    depth_case *test = calloc(1, sizeof *test);
    assert_non_null(test);
    test->value = calloc(values, sizeof *test->value);
    test->given = calloc(values, sizeof *test->given);
    assert_true(test->value && test->given);
    test->plan = (depth_plan){.width = width,
                              .heads = heads,
                              .eps = 1e-6f,
                              .values = values,
                              .value = test->value,
                              .slots = values,
                              .sites = CASE_SITES,
                              .site = test->site};
    for (size_t v = 0; v < values; v++)
        test->value[v].slot = (int)v;
    for (size_t i = 0; i < CASE_SITES; i++)
        test->site[i].base = NO_VALUE;
    return test;
}

/* Fills what the plan's values and sites need. Values differ in size as those of models do. */
static void fill_case(depth_case *test) {
    const size_t width = test->plan.width;
    for (size_t v = 0; v < test->plan.values; v++)
        if (test->value[v].kind == VALUE_EMB || test->value[v].kind == VALUE_OUT)
            test->given[v] = fixture_random(FIXTURE_ROWS * width, exp(fixture_normal()));
    for (size_t i = 0; i < CASE_SITES; i++) {
        site_weights *weights = &test->weights[i];
        const gate_kind gate = test->site[i].gate;
        weights->query = fixture_random(width, 2.0 / sqrt((double)width));
        weights->gain = fixture_random(width, 1.0);
        weights->null_source = fixture_random(width, 1.0);
        weights->gate = gate == GATE_NONE ? NULL
                        : gate == GATE_SIGMOID_VECTOR
                            ? fixture_random(width * width, 1.0 / sqrt((double)width))
                            : fixture_random(1, 1.0);
        weights->gate_bias =
            gate == GATE_SIGMOID_VECTOR && fixture_pick(0, 1) ? fixture_random(width, 1.0) : NULL;
    }
}

depth_case *depth_case_prefixes(size_t width, size_t heads, size_t values,
                                const size_t counts[CASE_SITES]) {
    depth_case *test = make_case(width, heads, values);
    for (size_t v = 1; v < values; v++)
        test->value[v].kind = VALUE_OUT;
    for (size_t i = 0; i < CASE_SITES; i++) {
        int *source = malloc(values * sizeof *source);
        assert_non_null(source);
        for (size_t v = 0; v < values; v++)
            source[v] = (int)v;
        test->site[i].source = source;
        test->site[i].sources = (int)counts[i];
    }
    fill_case(test);
    return test;
}

depth_case *depth_case_mixed(size_t width, size_t heads) {
    enum { VALUES = 12 };
    depth_case *test = make_case(width, heads, VALUES);
    test->value[1] = (depth_value){.kind = VALUE_NULL, .a = (int)fixture_pick(0, 3), .slot = -1};
    test->value[2] = (depth_value){.kind = VALUE_ZERO, .slot = -1};
    for (size_t v = 3; v < VALUES; v++) {
        const size_t kind = v == 3 ? 0 : fixture_pick(0, 2);
        test->value[v].kind = kind == 0 ? VALUE_OUT : kind == 1 ? VALUE_ADD : VALUE_SUB;
        test->value[v].a = (int)fixture_pick(0, v - 1);
        test->value[v].b = (int)fixture_pick(0, v - 1);
    }
    const size_t sources[CASE_SITES] = {0, 1, fixture_pick(2, 5), fixture_pick(2, 10)};
    for (size_t i = 0; i < CASE_SITES; i++) {
        depth_site *site = &test->site[i];
        int *source = malloc(VALUES * sizeof *source), count = 0;
        assert_non_null(source);
        site->null_source = i >= 2 && fixture_pick(0, 1);
        if (site->null_source)
            source[count++] = 1;
        for (int v = 0; v < VALUES && count < (int)sources[i]; v++)
            if (v != 1 && ((int)sources[i] - count >= VALUES - v || fixture_pick(0, 1)))
                source[count++] = v;
        site->source = source;
        site->sources = count;
        site->base = i == 0 || fixture_pick(0, 3) ? (int)fixture_pick(0, VALUES - 1) : NO_VALUE;
        site->interpolates = fixture_pick(0, 1);
        site->gate = (gate_kind)fixture_pick(GATE_NONE, GATE_SIGMOID_VECTOR);
    }
    if (fixture_pick(0, 1)) { /* rare otherwise: a gate that sees the same base at every token */
        test->site[3].base = (int)fixture_pick(1, 2);
        test->site[3].gate = GATE_SIGMOID_VECTOR;
    }
    fill_case(test);
    return test;
}

void depth_case_free(depth_case *test) {
    for (size_t v = 0; v < test->plan.values; v++)
        fixture_free(test->given[v]);
    for (size_t i = 0; i < CASE_SITES; i++) {
        fixture_free((buffer *)test->weights[i].query);
        fixture_free((buffer *)test->weights[i].gain);
        fixture_free((buffer *)test->weights[i].null_source);
        fixture_free((buffer *)test->weights[i].gate);
        fixture_free((buffer *)test->weights[i].gate_bias);
        free((int *)test->site[i].source);
    }
    free(test->value);
    free(test->given);
    free(test);
}

routing_layout depth_case_layout(const depth_case *test, size_t site) {
    return routing_layout_of(test->plan.heads, (size_t)test->site[site].sources,
                             test->site[site].null_source, test->wants.pairs);
}

size_t depth_case_sums_size(const depth_case *test) {
    size_t size = 0;
    for (size_t i = 0; i < CASE_SITES; i++)
        size += depth_case_layout(test, i).total;
    return size;
}

void depth_case_elements(const depth_case *test, size_t elements[2 * CASE_SITES]) {
    for (size_t i = 0; i < CASE_SITES; i++) {
        const size_t cells = test->plan.heads * (size_t)test->site[i].sources;
        elements[2 * i] = test->plan.width;
        elements[2 * i + 1] = test->no_weights || cells == 0 ? 1 : cells;
    }
}

static size_t last_value(const depth_site *site) {
    size_t last = site->base == NO_VALUE ? 0 : (size_t)site->base;
    for (int i = 0; i < site->sources; i++)
        last = (size_t)site->source[i] > last ? (size_t)site->source[i] : last;
    return last;
}

static void read_site(const depth_case *test, depth *axis, size_t i, size_t rows, float **out) {
    status st;
    const size_t cells = test->plan.heads * (size_t)test->site[i].sources;
    buffer *in = fixture_buffer(rows * test->plan.width);
    buffer *weights = test->no_weights ? NULL : fixture_buffer(rows * cells);
    if (kernels_cpu.depth_read(axis, &(depth_read_args){i, in, weights}, &st))
        fail_msg("%s", st.text);
    memcpy(out[2 * i], in->data, in->bytes);
    memset(out[2 * i + 1], 0, rows * sizeof(float));
    if (weights && cells)
        memcpy(out[2 * i + 1], weights->data, weights->bytes);
    fixture_free(in);
    fixture_free(weights);
}

/* One batch in the protocol's order. */
static void run_batch(depth_case *test, backend *device, depth *axis, const batch_layout *layout,
                      size_t first, float **out) {
    const size_t width = test->plan.width;
    bool done[CASE_SITES] = {false};
    status st;
    if (kernels_cpu.depth_begin(axis, layout, &test->wants, &st))
        fail_msg("%s", st.text);
    for (size_t v = 0; v < test->plan.values; v++) {
        if (test->given[v]) {
            if (kernels_cpu.upload(device, kernels_cpu.depth_storage(axis, v), 0,
                                   floats(test->given[v]) + first * width, layout->rows * width,
                                   &st) ||
                kernels_cpu.depth_made(axis, v, &st))
                fail_msg("%s", st.text);
        } else if (test->value[v].slot < 0) {
            assert_null(kernels_cpu.depth_storage(axis, v));
        }
        for (size_t i = 0; i < CASE_SITES; i++)
            if (!done[i] && last_value(&test->site[i]) <= v) {
                read_site(test, axis, i, layout->rows, out);
                done[i] = true;
            }
    }
}

void depth_case_run(backend *device, const batch_layout *layout, size_t first, void *context,
                    float **out) {
    depth_case *test = context;
    status st;
    depth *axis;
    const depth_options options = {.plan = &test->plan,
                                   .weights = test->weights,
                                   .max_rows = FIXTURE_ROWS,
                                   .max_sequences = FIXTURE_SEQUENCES};
    if (kernels_cpu.depth_create(device, &options, &axis, &st))
        fail_msg("%s", st.text);
    /* Another batch before, of which nothing may be left. */
    const size_t start[] = {0, 1};
    run_batch(test, device, axis, &(batch_layout){1, 1, start}, fixture_pick(0, FIXTURE_ROWS - 1),
              out);
    run_batch(test, device, axis, layout, first, out);
    double *sums = test->sums;
    for (size_t i = 0; sums && i < CASE_SITES; i++) {
        if (kernels_cpu.depth_sums(axis, i, sums, &st))
            fail_msg("%s", st.text);
        sums += layout->sequences * depth_case_layout(test, i).total;
    }
    kernels_cpu.depth_free(axis);
}

double *depth_case_values(const depth_case *test) {
    const size_t width = test->plan.width, size = FIXTURE_ROWS * width;
    double *values = calloc(test->plan.values * size, sizeof *values);
    assert_non_null(values);
    for (size_t v = 0; v < test->plan.values; v++) {
        const depth_value *value = &test->value[v];
        double *to = values + v * size;
        for (size_t i = 0; i < size; i++) {
            if (test->given[v])
                to[i] = (double)floats(test->given[v])[i];
            else if (value->kind == VALUE_NULL)
                to[i] = (double)floats(test->weights[value->a].null_source)[i % width];
            else if (value->kind != VALUE_ZERO) {
                const double a = values[(size_t)value->a * size + i];
                const double b = values[(size_t)value->b * size + i];
                to[i] = value->kind == VALUE_ADD ? a + b : a - b;
            }
        }
    }
    return values;
}

static double gate_of(const depth_case *test, size_t site, const double *base, size_t i) {
    const size_t width = test->plan.width;
    const site_weights *weights = &test->weights[site];
    if (test->site[site].gate == GATE_NONE)
        return 1.0;
    if (test->site[site].gate == GATE_ALPHA)
        return (double)floats(weights->gate)[0];
    if (test->site[site].gate == GATE_SIGMOID_SCALAR)
        return 1.0 / (1.0 + exp(-(double)floats(weights->gate)[0]));
    double sum = weights->gate_bias ? (double)floats(weights->gate_bias)[i] : 0.0;
    for (size_t c = 0; c < width; c++)
        sum += (double)floats(weights->gate)[i * width + c] * base[c];
    return 1.0 / (1.0 + exp(-sum));
}

/* Softmax over the sources of one head's logits. */
static void softmax_reference(double *x, size_t count) {
    double most = x[0], sum = 0.0;
    for (size_t s = 0; s < count; s++)
        most = fmax(most, x[s]);
    for (size_t s = 0; s < count; s++)
        sum += x[s] = exp(x[s] - most);
    for (size_t s = 0; s < count; s++)
        x[s] /= sum;
}

void depth_case_token(const depth_case *test, const double *values, size_t site, size_t row,
                      double *weight, double *mix, double *in) {
    const size_t width = test->plan.width, heads = test->plan.heads, slice = width / heads;
    const depth_site *planned = &test->site[site];
    const size_t sources = (size_t)planned->sources;
    const float *query = floats(test->weights[site].query);
    const float *gain = floats(test->weights[site].gain);
    memset(mix, 0, width * sizeof *mix);
    for (size_t s = 0; s < sources; s++) {
        const double *v = values + ((size_t)planned->source[s] * FIXTURE_ROWS + row) * width;
        double squares = 0.0;
        for (size_t i = 0; i < width; i++)
            squares += v[i] * v[i] / (double)width;
        for (size_t h = 0; h < heads; h++) {
            double *logit = &weight[h * sources + s];
            *logit = 0.0;
            for (size_t i = h * slice; i < (h + 1) * slice; i++)
                *logit += (double)query[i] * (double)gain[i] * v[i] /
                          sqrt(squares + (double)test->plan.eps);
        }
    }
    for (size_t h = 0; h < heads; h++) {
        if (sources)
            softmax_reference(weight + h * sources, sources);
        for (size_t s = 0; s < sources; s++) {
            const double *v = values + ((size_t)planned->source[s] * FIXTURE_ROWS + row) * width;
            for (size_t i = h * slice; i < (h + 1) * slice; i++)
                mix[i] += weight[h * sources + s] * v[i];
        }
    }
    const double *base = planned->base == NO_VALUE
                             ? NULL
                             : values + ((size_t)planned->base * FIXTURE_ROWS + row) * width;
    for (size_t i = 0; i < width; i++) {
        if (!base)
            in[i] = mix[i];
        else if (sources == 0)
            in[i] = base[i];
        else
            in[i] = base[i] + gate_of(test, site, base, i) *
                                  (planned->interpolates ? mix[i] - base[i] : mix[i]);
    }
}
