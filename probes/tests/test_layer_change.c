/* Changes between layers agree with the goldens' importance/mix_change, block_influence, angular_*.
 */
#include "probes/layer_change.h"
#include "runtime/tests/golden.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { SKIPPED = 2, LAYERS = 8 };
static double worst;

/* Means over all sequences of a batch. */
typedef struct totals {
    double mix_change[LAYERS], block_influence[LAYERS];
    double all[SKIPPED * LAYERS], last[SKIPPED * LAYERS];
    bool stream;
    size_t left_out;
} totals;

static totals measure(run *r, const batch *b, const session_limits *limits) {
    status st;
    layer_change *lc;
    session *s;
    observer watch = {0};
    totals t = {0};
    size_t layers = model_configuration(r->model)->layers, tokens = 0;
    assert_true(layers <= LAYERS);
    assert_int_equal(layer_change_create(r->program, limits, SKIPPED, &lc, &st), DONE);
    layer_change_watch(lc, &watch);
    assert_int_equal(session_create(r->model, r->program, limits, &s, &st), DONE);
    assert_int_equal(session_forward(s, b, &watch, &st), DONE);
    for (size_t i = 0; i < b->layout.sequences; i++) {
        layer_change_means m = layer_change_of(lc, i);
        t.stream = m.block_influence != NULL;
        t.left_out += m.left_out;
        tokens += m.tokens;
        for (size_t l = 0; l < layers; l++) {
            t.mix_change[l] += m.mix_change[l] * (double)m.tokens;
            if (t.stream)
                t.block_influence[l] += m.block_influence[l] * (double)m.tokens;
        }
        for (size_t k = 0; k < SKIPPED * layers; k++) {
            t.all[k] += m.angle_all[k] * (double)m.tokens;
            t.last[k] += m.angle_last[k];
        }
    }
    for (size_t l = 0; l < layers; l++) {
        t.mix_change[l] /= (double)tokens;
        t.block_influence[l] /= (double)tokens;
    }
    for (size_t k = 0; k < SKIPPED * layers; k++) {
        t.all[k] /= (double)tokens;
        t.last[k] /= (double)b->layout.sequences;
    }
    session_free(s);
    layer_change_free(lc);
    return t;
}

static void hold(checkpoint *expected, const char *where, const char *name, const double *got) {
    size_t n, shape[8];
    double *want = golden_array(expected, name, &n, shape);
    assert_non_null(want);
    for (size_t i = 0; i < n; i++) {
        double error = fabs(got[i] - want[i]);
        worst = error > worst ? error : worst;
        if (!(error <= 1e-5)) /* the contract's bound for statistics */
            fail_msg("%s: %s[%zu]: %.9g, expected %.9g", where, name, i, got[i], want[i]);
    }
    free(want);
}

static void every_mode_agrees_with_float64(void **state) {
    (void)state;
    static const char *const names[] = {
        "tiny/block-h1-n2",  "tiny/block-h3-n5", "tiny/delta-h4-n2",   "tiny/delta-raw-h1",
        "tiny/full-h1",      "tiny/full-h4",     "tiny/full-h4-alpha", "tiny/standard-llama",
        "zoo/attnres-block", "zoo/mhar-h8",      "zoo/standard"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[512];
        status st;
        run r;
        checkpoint *expected;
        size_t sequences, length;
        bool zoo = strncmp(names[i], "zoo/", 4) == 0;
        snprintf(path, sizeof path, "%s/%s/expected.safetensors", golden_folder(), names[i]);
        assert_int_equal(checkpoint_open(path, &expected, &st), DONE);
        snprintf(path, sizeof path, "%s/%s", zoo ? "datasets/models" : golden_folder(),
                 zoo ? names[i] + 4 : names[i]);
        run_open(&r, path, 2);
        int32_t *id = golden_tokens(expected, &sequences, &length);
        size_t start[64];
        for (size_t b = 0; b <= sequences; b++)
            start[b] = b * length;
        batch b = {.layout = {sequences, sequences * length, start}, .id = id};
        session_limits limits = {
            .rows = sequences * length, .sequences = sequences, .longest = length};
        totals t = measure(&r, &b, &limits);
        size_t layers = model_configuration(r.model)->layers;
        hold(expected, names[i], "importance/mix_change", t.mix_change);
        assert_int_equal(t.stream, checkpoint_find(expected, "importance/block_influence") != NULL);
        if (t.stream)
            hold(expected, names[i], "importance/block_influence", t.block_influence);
        hold(expected, names[i], "importance/angular_all/1", t.all);
        hold(expected, names[i], "importance/angular_last/1", t.last);
        hold(expected, names[i], "importance/angular_all/2", t.all + layers);
        hold(expected, names[i], "importance/angular_last/2", t.last + layers);
        assert_true(isnan(t.all[2 * layers - 1])); /* nothing lies two layers beyond the last */
        assert_int_equal(t.left_out, 0);
        free(id);
        checkpoint_close(expected);
        run_close(&r);
    }
}

static void a_removed_attention_has_no_angle(void **state) {
    (void)state;
    run r;
    const bool gone[10] = {false, false, true};
    const removed_set removed = {gone, DROP_SOURCE};
    run_open(&r, "datasets/golden/tiny/full-h4", 1);
    run_program(&r, &removed);
    const size_t start[2] = {0, 5};
    const int32_t id[5] = {1, 2, 3, 4, 5};
    batch b = {.layout = {1, 5, start}, .id = id};
    session_limits limits = {.rows = 5, .sequences = 1, .longest = 5};
    totals t = measure(&r, &b, &limits);
    assert_true(isnan(t.mix_change[0]) && isnan(t.mix_change[1]) && !isnan(t.mix_change[2]));
    assert_int_equal(t.left_out, 10);
    run_close(&r);
}

static int print_worst(void **state) {
    (void)state;
    printf("largest error: %.2g\n", worst);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mode_agrees_with_float64),
        cmocka_unit_test(a_removed_attention_has_no_angle),
    };
    return cmocka_run_group_tests(tests, NULL, print_worst);
}
