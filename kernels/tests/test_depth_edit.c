/* Edits of a site: every kind against float64, and what must not change a bit. */
#include "kernels/tests/depth_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 48, HEADS = 4, VALUES = 9, SITE = 3, SOURCES = 9, CELLS = HEADS * SOURCES };

static status st;

static depth_case *make(void) {
    return depth_case_prefixes(WIDTH, HEADS, VALUES, (size_t[]){1, 2, 5, SOURCES});
}

/* in and weights of every site, [2 * CASE_SITES]. */
typedef struct outputs {
    float *of[2 * CASE_SITES];
} outputs;

/* Batches and threads checked on the way. Given weights belong to the rows of the whole batch and
 * cannot be. */
static outputs run(depth_case *test, bool invariant) {
    outputs o;
    size_t elements[2 * CASE_SITES];
    depth_case_elements(test, elements);
    if (invariant) {
        fixture_invariant(&(fixture_case){"edits", 2 * CASE_SITES, elements, depth_case_run, test},
                          o.of);
        return o;
    }
    backend *device = fixture_device(2);
    for (size_t i = 0; i < 2 * CASE_SITES; i++)
        o.of[i] = malloc(FIXTURE_ROWS * elements[i] * sizeof(float));
    depth_case_run(device, &fixture_batch, 0, test, o.of);
    kernels_cpu.close(device);
    return o;
}

static void free_outputs(outputs o) {
    for (size_t i = 0; i < 2 * CASE_SITES; i++)
        free(o.of[i]);
}

static bool has(const depth_edit *edit, size_t source) {
    for (size_t i = 0; i < edit->sources; i++)
        if ((size_t)edit->source[i] == source)
            return true;
    return false;
}

/* The definition, on one head's weights [SOURCES]; `all` [HEADS, SOURCES] are the unedited. */
static void expect_weights(const depth_edit *e, size_t h, size_t row, const double *all,
                           double *w) {
    double left = 0.0, powers = 0.0;
    for (size_t s = 0; s < SOURCES; s++) {
        left += has(e, s) ? 0.0 : w[s];
        powers += pow(w[s], (double)e->scale);
    }
    for (size_t s = 0; s < SOURCES; s++) {
        double mean = 0.0;
        for (size_t k = 0; k < HEADS; k++)
            mean += all[k * SOURCES + s] / HEADS;
        const bool gone = has(e, s);
        if (e->kind == EDIT_QUERY_SCALE)
            w[s] = pow(w[s], (double)e->scale) / powers;
        else if (e->kind == EDIT_MASK)
            w[s] = gone ? 0.0 : w[s] / left;
        else if (e->kind == EDIT_MASK_RAW)
            w[s] = gone ? 0.0 : w[s];
        else if (e->kind == EDIT_UNIFORM)
            w[s] = 1.0 / SOURCES;
        else if (e->kind == EDIT_HEAD_MEAN)
            w[s] = mean;
        else if (e->kind == EDIT_TOKEN_MEAN)
            w[s] = (double)e->weights[h * SOURCES + s];
        else if (e->given)
            w[s] = (double)floats(e->given)[(row * HEADS + h) * SOURCES + s];
    }
    if (e->kind == EDIT_SWAP) {
        const double first = w[e->source[0]];
        w[e->source[0]] = w[e->source[1]];
        w[e->source[1]] = first;
    }
}

static void expect(const depth_case *test, const depth_edit *e, const double *values, size_t row,
                   double *weight, double *in) {
    double all[CELLS], mix[WIDTH];
    depth_case_token(test, values, SITE, row, all, mix, in);
    memcpy(weight, all, sizeof all);
    for (size_t h = 0; h < HEADS; h++) {
        const bool edited = !e->head || e->head[h];
        double *w = weight + h * SOURCES;
        if (edited)
            expect_weights(e, h, row, all, w);
        for (size_t i = h * WIDTH / HEADS; i < (h + 1) * WIDTH / HEADS; i++) {
            in[i] = 0.0;
            for (size_t s = 0; s < SOURCES; s++) {
                double v = values[(s * FIXTURE_ROWS + row) * WIDTH + i];
                for (size_t k = 0; edited && e->kind == EDIT_MEAN_VALUE && k < e->sources; k++)
                    if ((size_t)e->source[k] == s)
                        v = (double)e->mean[k * WIDTH + i];
                in[i] += w[s] * v;
            }
        }
    }
}

static void check_edit(const depth_edit *edit, const char *name) {
    depth_case *test = make();
    double *values = depth_case_values(test);
    double *weight = malloc(FIXTURE_ROWS * CELLS * sizeof *weight);
    double *in = malloc(FIXTURE_ROWS * WIDTH * sizeof *in);
    outputs plain = run(test, true);
    test->site[SITE].edit = edit;
    outputs o = run(test, !edit->given);
    for (size_t row = 0; row < FIXTURE_ROWS; row++)
        expect(test, edit, values, row, weight + row * CELLS, in + row * WIDTH);
    fixture_close(name, o.of[2 * SITE], in, FIXTURE_ROWS * WIDTH, 5e-6);         /* measured 3e-7 */
    fixture_close(name, o.of[2 * SITE + 1], weight, FIXTURE_ROWS * CELLS, 3e-6); /* 4e-7 */
    fixture_same("a site without an edit", o.of[4], plain.of[4], FIXTURE_ROWS * WIDTH);
    for (size_t row = 0; row < FIXTURE_ROWS; row++)
        for (size_t h = 0; edit->head && h < HEADS; h++)
            if (!edit->head[h])
                fixture_same("a head without an edit",
                             o.of[2 * SITE + 1] + (row * HEADS + h) * SOURCES,
                             plain.of[2 * SITE + 1] + (row * HEADS + h) * SOURCES, SOURCES);
    free_outputs(plain);
    free_outputs(o);
    free(values);
    free(weight);
    free(in);
    depth_case_free(test);
}

static void every_edit_follows_its_definition(void **state) {
    (void)state;
    const int three[] = {0, 4, 8}, two[] = {7, 2};
    const bool some[HEADS] = {true, false, false, true};
    buffer *mean = fixture_random(3 * WIDTH, 1.0), *token_mean = fixture_random(CELLS, 1.0);
    buffer *given = fixture_random(FIXTURE_ROWS * CELLS, 1.0);
    const depth_edit edits[] = {
        {.kind = EDIT_QUERY_SCALE, .scale = 0.5f},
        {.kind = EDIT_QUERY_SCALE, .scale = 2.0f},
        {.kind = EDIT_MASK, .sources = 3, .source = three},
        {.kind = EDIT_MASK_RAW, .sources = 3, .source = three},
        {.kind = EDIT_UNIFORM},
        {.kind = EDIT_HEAD_MEAN},
        {.kind = EDIT_TOKEN_MEAN, .weights = floats(token_mean)},
        {.kind = EDIT_GIVEN, .given = given},
        {.kind = EDIT_SWAP, .sources = 2, .source = two},
        {.kind = EDIT_MEAN_VALUE, .sources = 3, .source = three, .mean = floats(mean)},
        {.kind = EDIT_MEAN_VALUE,
         .sources = 3,
         .source = three,
         .mean = floats(mean),
         .given = given},
    };
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        char name[64];
        depth_edit edit = edits[i];
        snprintf(name, sizeof name, "edit %zu", i);
        check_edit(&edit, name);
        edit.head = some;
        snprintf(name, sizeof name, "edit %zu, heads 0 and 3", i);
        check_edit(&edit, name);
    }
    fixture_free(mean);
    fixture_free(token_mean);
    fixture_free(given);
}

static void same_as(const depth_edit *edit, const depth_edit *other, const char *what) {
    depth_case *test = make();
    test->site[SITE].edit = other;
    outputs plain = run(test, true);
    test->site[SITE].edit = edit;
    outputs o = run(test, true);
    fixture_same(what, o.of[2 * SITE], plain.of[2 * SITE], FIXTURE_ROWS * WIDTH);
    fixture_same(what, o.of[2 * SITE + 1], plain.of[2 * SITE + 1], FIXTURE_ROWS * CELLS);
    free_outputs(plain);
    free_outputs(o);
    depth_case_free(test);
}

static void edits_of_nothing_change_no_bit(void **state) {
    (void)state;
    const bool none[HEADS] = {false};
    const int all[] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    unsigned long skipped = 0;
    same_as(&(depth_edit){.kind = EDIT_QUERY_SCALE, .scale = 1.0f}, NULL, "query scale 1");
    same_as(&(depth_edit){.kind = EDIT_MASK}, NULL, "a mask of nothing");
    same_as(&(depth_edit){.kind = EDIT_MASK_RAW}, NULL, "a raw mask of nothing");
    same_as(&(depth_edit){.kind = EDIT_UNIFORM, .head = none}, NULL, "no heads");
    same_as(&(depth_edit){.kind = EDIT_UNIFORM},
            &(depth_edit){.kind = EDIT_QUERY_SCALE, .scale = 0.0f}, "uniform and query scale 0");
    same_as(
        &(depth_edit){.kind = EDIT_MASK, .sources = SOURCES, .source = all, .skipped = &skipped},
        NULL, "a mask of everything");
    assert_true(skipped > 0);
}

/* Each token and head once a pass. */
static void what_a_mask_leaves_alone_is_counted(void **state) {
    (void)state;
    unsigned long skipped = 0;
    const int only[] = {0};
    const bool one[HEADS] = {false, true, false, false};
    const depth_edit edit = {
        .kind = EDIT_MASK_RAW, .sources = 1, .source = only, .skipped = &skipped, .head = one};
    depth_case *test = make();
    test->site[0].edit = &edit;
    free_outputs(run(test, false));
    assert_int_equal(skipped, FIXTURE_ROWS + 1); /* a batch of one token comes before */
    depth_case_free(test);
}

static void sums_are_of_the_edited_weights(void **state) {
    (void)state;
    const int three[] = {0, 4, 8};
    const depth_edit edit = {.kind = EDIT_MASK, .sources = 3, .source = three};
    depth_case *test = make();
    test->wants = (depth_wants){.sums = true};
    test->site[SITE].edit = &edit;
    test->sums = malloc(FIXTURE_SEQUENCES * depth_case_sums_size(test) * sizeof(double));
    outputs o = run(test, false);
    const double *sums = test->sums;
    for (size_t i = 0; i < SITE; i++)
        sums += FIXTURE_SEQUENCES * depth_case_layout(test, i).total;
    const routing_layout layout = depth_case_layout(test, SITE);
    for (size_t b = 0; b < FIXTURE_SEQUENCES; b++)
        for (size_t k = 0; k < CELLS; k++) {
            double want = 0.0;
            for (size_t row = fixture_start[b]; row < fixture_start[b + 1]; row++)
                want += (double)o.of[2 * SITE + 1][row * CELLS + k];
            assert_true(fabs(sums[b * layout.total + layout.mean + k] - want) <= 1e-9 * want);
        }
    free_outputs(o);
    free(test->sums);
    depth_case_free(test);
}

static void refused(const depth_edit *edit, const char *words) {
    depth_case *test = make();
    test->site[0].edit = edit;
    backend *device = fixture_device(1);
    buffer *in = fixture_buffer(FIXTURE_ROWS * WIDTH);
    depth_options options = {&test->plan,       test->weights, FIXTURE_ROWS,
                             FIXTURE_SEQUENCES, false,         false};
    depth *axis;
    assert_int_equal(kernels_cpu.depth_create(device, &options, &axis, &st), 0);
    assert_int_equal(kernels_cpu.depth_begin(axis, &fixture_batch, &test->wants, &st), 0);
    memcpy(floats(kernels_cpu.depth_storage(axis, 0)), floats(test->given[0]),
           FIXTURE_ROWS * WIDTH * sizeof(float));
    assert_int_equal(kernels_cpu.depth_made(axis, 0, &st), 0);
    assert_int_not_equal(kernels_cpu.depth_read(axis, &(depth_read_args){0, in, NULL}, &st), 0);
    if (!strstr(st.text, words))
        fail_msg("'%s' without '%s'", st.text, words);
    kernels_cpu.depth_free(axis);
    options.backward = true;
    assert_int_not_equal(kernels_cpu.depth_create(device, &options, &axis, &st), 0);
    assert_non_null(strstr(st.text, "site 0 carries an edit: no backward pass"));
    kernels_cpu.close(device);
    fixture_free(in);
    depth_case_free(test);
}

static void wrong_edits_are_refused(void **state) {
    (void)state;
    const int wrong[] = {0, 1};
    buffer *small = fixture_buffer(HEADS);
    refused(&(depth_edit){.kind = EDIT_MASK, .sources = 2, .source = wrong}, "source 1 of 1");
    refused(&(depth_edit){.kind = EDIT_SWAP, .sources = 1, .source = wrong}, "swap of 1");
    refused(&(depth_edit){.kind = EDIT_TOKEN_MEAN}, "without its means");
    refused(&(depth_edit){.kind = EDIT_GIVEN}, "given weights");
    refused(&(depth_edit){.kind = EDIT_GIVEN, .given = small}, "given weights");
    refused(&(depth_edit){.kind = (edit_kind)40}, "unknown kind 40");
    fixture_free(small);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_edit_follows_its_definition),
        cmocka_unit_test(edits_of_nothing_change_no_bit),
        cmocka_unit_test(what_a_mask_leaves_alone_is_counted),
        cmocka_unit_test(sums_are_of_the_edited_weights),
        cmocka_unit_test(wrong_edits_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
