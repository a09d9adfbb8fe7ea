/* What depth routing must be, whatever the numbers: Attention Residuals section 3, Multi-Head
 * Attention Residuals section 3. Each identity on a golden checkpoint, or on a copy changed for it.
 */
#include "runtime/tests/checkpoint_edit.h"
#include "runtime/tests/golden.h"
#include "runtime/tests/scratch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define TINY "datasets/golden/tiny/"

static const char *const ROUTED[] = {"block-h1-n1", "block-h1-n2", "block-h1-n4",  "block-h3-n5",
                                     "delta-h1-n5", "delta-h4-n2", "delta-h4-n4",  "delta-raw-h1",
                                     "full-h1",     "full-h4",     "full-h4-alpha"};
#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* Two sequences of unequal length, ids below 61. */
static void run_text(run *r) {
    int32_t id[2 * 24];
    const size_t lengths[2] = {24, 11};
    for (size_t i = 0; i < COUNT(id); i++)
        id[i] = (int32_t)((i * i * 7 + 3 * i + 5) % 61);
    run_forward(r, id, 24, lengths, 2);
}

static void open_tiny(run *r, const char *name) {
    char path[256];
    snprintf(path, sizeof path, TINY "%s", name);
    run_open(r, path, 1);
}

/* A copy of a golden checkpoint in the scratch folder. Freed by the caller. */
static char *copy_of(const char *name, const char *as) {
    char path[256];
    snprintf(path, sizeof path, TINY "%s", name);
    char *dir = scratch_path(as);
    assert_int_equal(checkpoint_copy(path, dir), 0);
    return dir;
}

static float largest_difference(const float *a, const float *b, size_t n) {
    float most = 0;
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(a[i] - b[i]) <= most))
            most = fabsf(a[i] - b[i]);
    return most;
}

static void weights_of_a_site_sum_to_one(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(ROUTED); i++) {
        run r;
        open_tiny(&r, ROUTED[i]);
        run_text(&r);
        size_t heads = r.program->plan.heads;
        for (size_t site = 0; site < r.program->plan.sites; site++) {
            size_t sources = (size_t)r.program->plan.site[site].sources;
            for (size_t row = 0; row < r.rows * heads && sources; row++) {
                double sum = 0;
                for (size_t s = 0; s < sources; s++)
                    sum += (double)r.site[site].weights[row * sources + s];
                assert_true(fabs(sum - 1) < 1e-6); /* measured 2.6e-7 */
                if (sources == 1)
                    assert_true(r.site[site].weights[row] == 1.0f);
            }
        }
        run_close(&r);
    }
}

static void one_head_of_the_multi_head_form_is_the_single_head_form(void **state) {
    (void)state;
    static const struct {
        const char *name, *mode;
    } form[] = {{"full-h1", "full_mh"}, {"block-h1-n2", "block_mh"}};
    for (size_t i = 0; i < COUNT(form); i++) {
        char *dir = copy_of(form[i].name, "one-head");
        edit_config_text(dir, "attnres_mode", form[i].mode);
        edit_config_number(dir, "attnres_num_heads", 1);
        run single, multi;
        open_tiny(&single, form[i].name);
        run_open(&multi, dir, 1);
        run_text(&single);
        run_text(&multi);
        size_t logits = single.rows * model_configuration(single.model)->vocabulary;
        assert_memory_equal(single.logits, multi.logits, logits * sizeof(float));
        run_close(&single);
        run_close(&multi);
        free(dir);
    }
}

static void zero_queries_weigh_all_sources_the_same(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(ROUTED); i++) {
        char *dir = copy_of(ROUTED[i], "zero-query");
        assert_true(edit_tensor(dir, "*_res_proj.weight", set_zero, NULL) > 0);
        run r;
        run_open(&r, dir, 1);
        run_text(&r);
        for (size_t site = 0; site < r.program->plan.sites; site++) {
            size_t sources = (size_t)r.program->plan.site[site].sources;
            for (size_t k = 0; k < r.rows * r.program->plan.heads * sources; k++)
                assert_true(r.site[site].weights[k] == 1.0f / (float)sources);
        }
        run_close(&r);
        free(dir);
    }
}

/* eps so small that a PreNorm removes the scale whatever it is. */
static void shrink_eps(const char *dir) {
    edit_config_number(dir, "rms_norm_eps", 1e-20);
}

static void zero_queries_make_the_standard_model(void **state) {
    (void)state;
    static const char *const names[] = {"full-h1", "full-h4", "block-h1-n1", "block-h3-n5"};
    for (size_t i = 0; i < COUNT(names); i++) {
        char *routed = copy_of(names[i], "routed"), *plain = copy_of(names[i], "plain");
        assert_true(edit_tensor(routed, "*_res_proj.weight", set_zero, NULL) > 0);
        shrink_eps(routed);
        shrink_eps(plain);
        edit_config_text(plain, "attnres_mode", "none");
        run r, standard;
        run_open(&r, routed, 1);
        const char *const suffix[] = {"attn_res_proj", "attn_res_norm", "mlp_res_proj",
                                      "mlp_res_norm"};
        for (size_t layer = 0; layer < model_configuration(r.model)->layers; layer++)
            for (size_t k = 0; k < COUNT(suffix); k++) {
                char name[96];
                snprintf(name, sizeof name, "model.layers.%zu.%s.weight", layer, suffix[k]);
                assert_int_equal(edit_name(plain, name, NULL), 1);
            }
        edit_name(plain, "model.final_res_proj.weight", NULL);
        edit_name(plain, "model.final_res_norm.weight", NULL);
        run_open(&standard, plain, 1);
        run_text(&r);
        run_text(&standard);
        size_t n = r.rows * model_configuration(r.model)->vocabulary;
        float error = largest_difference(r.logits, standard.logits, n);
        if (!(error < 1e-5f)) /* measured 3.6e-6 */
            fail_msg("%s: logits differ by %g", names[i], (double)error);
        run_close(&r);
        run_close(&standard);
        free(routed);
        free(plain);
    }
}

static void a_zero_source_is_a_dropped_one_for_one_head(void **state) {
    (void)state;
    static const char *const names[] = {"full-h1", "block-h1-n2", "block-h1-n4"};
    for (size_t i = 0; i < COUNT(names); i++) {
        char *dir = copy_of(names[i], "small-eps");
        shrink_eps(dir);
        run r;
        run_open(&r, dir, 1);
        bool gone[10] = {false};
        for (size_t index = 0; index < COUNT(gone); index++) {
            double loss[2];
            gone[index] = true;
            for (int how = 0; how < 2; how++) {
                removed_set removed = {gone, (removal)how};
                run_program(&r, &removed);
                run_text(&r);
                loss[how] = run_loss(&r);
            }
            gone[index] = false;
            if (!(fabs(loss[0] - loss[1]) < 1e-5))
                fail_msg("%s without sublayer %zu: %.9g dropped, %.9g zero", names[i], index,
                         loss[0], loss[1]);
        }
        run_close(&r);
        free(dir);
    }
}

static int loss_only(void *self, const batch *b, const head_view *v, status *st) {
    (void)st;
    memcpy(self, v->loss, b->layout.rows * sizeof(float));
    return DONE;
}

static void observing_changes_no_bit(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(ROUTED); i++) {
        run r;
        status st;
        open_tiny(&r, ROUTED[i]);
        run_text(&r);
        session *s;
        session_limits limits = {.rows = r.rows, .sequences = 2, .longest = 24};
        float *bare = malloc(r.rows * sizeof *bare);
        observer watch = {.self = bare, .on_head = loss_only};
        batch b = {.layout = {2, r.rows, r.start}, .id = r.id};
        assert_non_null(bare);
        assert_int_equal(session_create(r.model, r.program, &limits, &s, &st), DONE);
        assert_int_equal(session_forward(s, &b, &watch, &st), DONE);
        assert_memory_equal(bare, r.loss, r.rows * sizeof *bare);
        session_free(s);
        free(bare);
        run_close(&r);
    }
}

static void a_token_outside_the_vocabulary_is_refused(void **state) {
    (void)state;
    run r;
    status st;
    open_tiny(&r, "full-h1");
    session *s;
    session_limits limits = {.rows = 3, .sequences = 1, .longest = 3};
    const size_t start[2] = {0, 3};
    const int32_t id[3] = {1, 61, 2};
    batch b = {.layout = {1, 3, start}, .id = id};
    assert_int_equal(session_create(r.model, r.program, &limits, &s, &st), DONE);
    assert_int_equal(session_forward(s, &b, NULL, &st), FAILED);
    assert_string_equal(st.text, "sequence 0 of the batch, position 1: token id 61, "
                                 "expected 0 to 60");
    session_free(s);
    run_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_of_a_site_sum_to_one),
        cmocka_unit_test(one_head_of_the_multi_head_form_is_the_single_head_form),
        cmocka_unit_test(zero_queries_weigh_all_sources_the_same),
        cmocka_unit_test(zero_queries_make_the_standard_model),
        cmocka_unit_test(a_zero_source_is_a_dropped_one_for_one_head),
        cmocka_unit_test(observing_changes_no_bit),
        cmocka_unit_test(a_token_outside_the_vocabulary_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
