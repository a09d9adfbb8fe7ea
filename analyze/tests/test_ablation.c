/* Ablations: every expected effect of the golden models, and what must not change a bit. */
#include "analyze/ablation.h"
#include "analyze/ablation_sweep.h"
#include "runtime/base/log.h"
#include "runtime/tests/golden.h"
#include "runtime/tests/scratch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static status st;

/* An ablation of one model over given tokens. */
typedef struct trial {
    experiment *e;
    ablation *a;
    const depth_program *p;
    char *tokens;
    bootstrap *b;
    option_list none;
} trial;

static void trial_open(trial *t, const char *dir, const char *tokens, size_t context,
                       size_t together, ablation_wants wants) {
    *t = (trial){0};
    run_options with = RUN_OPTIONS_DEFAULT;
    with.dir = dir;
    with.tokens.tokens = tokens;
    with.tokens.context = context;
    with.tokens.batch = together;
    with.threads = 1;
    if (experiment_open(&with, &(experiment_options){.kl = true}, &t->e, &st) ||
        ablation_open(t->e, &wants, &t->a, &st))
        fail_msg("%s", st.text);
    t->p = experiment_program(t->e);
}

static void trial_run(trial *t) {
    const sampling s = SAMPLING_DEFAULT;
    if (ablation_run(t->a, &st) || experiment_draws(t->e, &s, &t->b, &st))
        fail_msg("%s", st.text);
}

static void trial_close(trial *t) {
    bootstrap_free(t->b);
    ablation_close(t->a);
    experiment_close(t->e);
}

/* An intervention everywhere with all that it is made of. */
typedef struct everywhere {
    edit_choice edit;
    source_choice sources;
    site_choice sites;
    size_t index;
} everywhere;

static void add(trial *t, const char *edit, const char *sources, everywhere *x) {
    *x = (everywhere){.sources = {.text = "-"}};
    if (edit_choice_parse(edit, &x->edit, &st) || edit_choice_bind(&x->edit, t->p, &st) ||
        (sources && source_choice_parse(sources, t->p, true, true, &x->sources, &st)) ||
        site_choice_kind("all", -1, t->p, &x->sites, &st) ||
        ablation_add(t->a, &x->edit, &x->sources, &x->sites, NULL, &x->index, &st))
        fail_msg("%s", st.text);
}

static void clear(everywhere *x) {
    edit_choice_clear(&x->edit);
    source_choice_clear(&x->sources);
    site_choice_clear(&x->sites);
}

/* ---- golden values ---- */

static const char *const golden[][3] = {
    {"mask/emb", "mask", "emb"},
    {"mask/newest", "mask", "newest"},
    {"mask/history", "mask", "history"},
    {"mask_raw/emb", "mask_raw", "emb"},
    {"mask_raw/newest", "mask_raw", "newest"},
    {"mean_value/emb", "mean_value", "emb"},
    {"mean_value/history", "mean_value", "history"},
    {"query_scale_0", "query_scale=0", NULL},
    {"query_scale_0.5", "query_scale=0.5", NULL},
    {"uniform", "uniform", NULL},
    {"token_mean", "token_mean", NULL},
    {"head_mean", "head_mean", NULL},
};
enum { GOLDEN = sizeof golden / sizeof *golden };

static double expected(checkpoint *ck, const char *name, const char *what) {
    char key[96];
    size_t elements, shape[8];
    snprintf(key, sizeof key, "ablate/%s/%s", name, what);
    double *value = golden_array(ck, key, &elements, shape);
    if (!value)
        fail_msg("%s is missing", key);
    const double first = value[0];
    free(value);
    return first;
}

static void near(const char *dir, const char *name, const char *what, double got, double want) {
    if (!(fabs(got - want) <= 1e-5 + 1e-5 * fabs(want)))
        fail_msg("%s: %s: %s %.9g, expected %.9g", dir, name, what, got, want);
    if (getenv("TEST_VERBOSE"))
        print_message("%s %s %s error %.2g of %.3g\n", dir, name, what, fabs(got - want), want);
}

static size_t expected_names(checkpoint *ck) {
    size_t count = 0;
    for (size_t i = 0; i < checkpoint_tensors(ck); i++)
        count += strncmp(checkpoint_tensor(ck, i)->name, "ablate/", 7) == 0 ? 1 : 0;
    return count;
}

static bool has_family(const depth_program *p, const char *name) {
    for (int f = 0; f < FAMILIES; f++)
        if (strcmp(name, family_name[f]) == 0)
            return program_has_family(p, (source_family)f);
    return false;
}

static void check_golden(const char *dir, const char *folder) {
    char path[256];
    checkpoint *ck;
    size_t sequences, length;
    snprintf(path, sizeof path, "%s/expected.safetensors", folder);
    if (checkpoint_open(path, &ck, &st))
        fail_msg("%s", st.text);
    assert_int_equal(expected_names(ck), 2 * GOLDEN);
    int32_t *id = golden_tokens(ck, &sequences, &length);
    char *tokens = scratch_path("ablate.npy");
    golden_write_tokens(tokens, id, sequences, length);
    trial t;
    everywhere x[GOLDEN];
    trial_open(&t, dir, tokens, length, 1, (ablation_wants){true, true, false});
    for (size_t k = 0; k < GOLDEN; k++)
        if (golden[k][2] && !has_family(t.p, golden[k][2])) {
            assert_true(expected(ck, golden[k][0], "delta_loss") == 0.0);
            x[k] = (everywhere){.index = NO_INTERVENTION};
        } else {
            add(&t, golden[k][1], golden[k][2], &x[k]);
        }
    trial_run(&t);
    for (size_t k = 0; k < GOLDEN; k++) {
        effect e;
        if (x[k].index == NO_INTERVENTION)
            continue;
        if (ablation_effect(t.a, t.b, x[k].index, &e, NULL, &st))
            fail_msg("%s", st.text);
        near(dir, golden[k][0], "delta_loss", e.delta_loss.value,
             expected(ck, golden[k][0], "delta_loss"));
        near(dir, golden[k][0], "kl", e.kl.value, expected(ck, golden[k][0], "kl"));
    }
    trial_close(&t);
    for (size_t k = 0; k < GOLDEN; k++)
        clear(&x[k]);
    free(tokens);
    free(id);
    checkpoint_close(ck);
}

static void golden_effects(void **state) {
    (void)state;
    static const char *const tiny[] = {"block-h1-n1", "block-h1-n2",   "block-h1-n4",
                                       "block-h3-n5", "delta-h1-n5",   "delta-h4-n2",
                                       "delta-h4-n4", "delta-raw-h1",  "full-h1",
                                       "full-h4",     "full-h4-alpha", "full-h4-zero-query"};
    for (size_t i = 0; i < sizeof tiny / sizeof *tiny; i++) {
        char folder[128];
        snprintf(folder, sizeof folder, "%s/tiny/%s", golden_folder(), tiny[i]);
        check_golden(folder, folder);
    }
}

static void golden_effects_of_trained_models(void **state) {
    (void)state;
    static const char *const zoo[] = {"attnres-full", "attnres-block", "mhar-h8", "mhar-block-h4"};
    for (size_t i = 0; i < sizeof zoo / sizeof *zoo; i++) {
        char dir[128], folder[128];
        snprintf(dir, sizeof dir, "datasets/models/%s", zoo[i]);
        snprintf(folder, sizeof folder, "%s/zoo/%s", golden_folder(), zoo[i]);
        check_golden(dir, folder);
    }
}

/* ---- what must not change a bit ---- */

static char *short_text(void) {
    int32_t id[3][24];
    for (size_t i = 0; i < 3; i++)
        for (size_t k = 0; k < 24; k++)
            id[i][k] = (int32_t)(97 + (7 * i + 3 * k + k * k) % 26);
    char *tokens = scratch_path("ablate-short.npy");
    golden_write_tokens(tokens, id[0], 3, 24);
    return tokens;
}

static void same_losses(const trial *t, const char *name, const char *other) {
    const scores *a = experiment_scores(t->e, name), *b = experiment_scores(t->e, other);
    assert_true(a && b);
    assert_memory_equal(a->loss, b->loss, 3 * sizeof(double));
}

static const char *name_of(const trial *t, const everywhere *x) {
    return ablation_at(t->a, x->index)->name;
}

static void edits_of_nothing_leave_every_loss(void **state) {
    (void)state;
    static const char *const models[] = {"datasets/models/mhar-h8",
                                         "datasets/models/attnres-block"};
    char *tokens = short_text();
    for (size_t m = 0; m < 2; m++) {
        trial t;
        everywhere one, zero, uniform, swap;
        trial_open(&t, models[m], tokens, 24, 2, (ablation_wants){0});
        add(&t, "query_scale=1", NULL, &one);
        add(&t, "query_scale=0", NULL, &zero);
        add(&t, "uniform", NULL, &uniform);
        add(&t, "swap=emb,emb", NULL, &swap);
        trial_run(&t);
        assert_int_equal(ablation_at(t.a, one.index)->edited, 0);
        same_losses(&t, name_of(&t, &one), UNEDITED);
        same_losses(&t, name_of(&t, &swap), UNEDITED);
        same_losses(&t, name_of(&t, &zero), name_of(&t, &uniform));
        assert_true(experiment_scores(t.e, name_of(&t, &zero))->loss[0] !=
                    experiment_scores(t.e, UNEDITED)->loss[0]);
        trial_close(&t);
        clear(&one);
        clear(&zero);
        clear(&uniform);
        clear(&swap);
    }
    free(tokens);
}

/* An edit of the last site has no later ones to freeze; one of the first does. */
static void frozen_weights_are_the_unedited_runs(void **state) {
    (void)state;
    static const char *const sites[] = {"final", "L1.attn"};
    static const char *const edits[] = {"mask", "mean_value", "query_scale=0.5"};
    char *tokens = short_text();
    double loss[2][2][3];
    for (size_t frozen = 0; frozen < 2; frozen++) {
        trial t;
        everywhere x[6];
        trial_open(&t, "datasets/models/mhar-h8", tokens, 24, 2,
                   (ablation_wants){.mean_values = true, .frozen = frozen});
        for (size_t k = 0; k < 6; k++) {
            const char *item[] = {sites[k / 3]};
            const option_list one = {.count = 1, .item = item};
            x[k] = (everywhere){.sources = {.text = "-"}};
            if (edit_choice_parse(edits[k % 3], &x[k].edit, &st) ||
                source_choice_parse("newest", t.p, true, true, &x[k].sources, &st) ||
                site_choice_parse(&one, -1, t.p, &x[k].sites, &st) ||
                ablation_add(t.a, &x[k].edit, &x[k].sources, &x[k].sites, NULL, &x[k].index, &st))
                fail_msg("%s", st.text);
        }
        trial_run(&t);
        for (size_t k = 0; k < 6; k++) {
            loss[frozen][k / 3][k % 3] = experiment_scores(t.e, name_of(&t, &x[k]))->loss[0];
            clear(&x[k]);
        }
        trial_close(&t);
    }
    /* Weights scaled on the host are a power of the softmax's: equal but for rounding. */
    assert_true(loss[0][0][0] == loss[1][0][0] && loss[0][0][1] == loss[1][0][1]);
    assert_true(fabs(loss[0][0][2] - loss[1][0][2]) < 1e-4);
    for (size_t k = 0; k < 3; k++)
        assert_true(fabs(loss[0][1][k] - loss[1][1][k]) > 1e-4);
    free(tokens);
}

/* Mass moved by a mask is the mass of what it takes. */
static void mass_moved_by_a_mask_is_the_mass(void **state) {
    (void)state;
    char *tokens = short_text();
    trial t;
    everywhere x;
    effect e;
    trial_open(&t, "datasets/models/attnres-full", tokens, 24, 2, (ablation_wants){0});
    add(&t, "mask", "emb", &x);
    trial_run(&t);
    assert_int_equal(ablation_effect(t.a, t.b, x.index, &e, NULL, &st), 0);
    double mass = 0, share = 0;
    for (size_t site = 1; site < t.p->plan.sites; site++) {
        const size_t sources = (size_t)t.p->plan.site[site].sources;
        for (size_t q = 0; q < 3; q++)
            mass += ablation_site(t.a, site)[q * SITE_SUMS * sources] / 72 / 16;
        share += 1.0 / (double)sources / 16;
    }
    assert_true(fabs(e.mass_moved - mass) < 1e-6);
    assert_true(fabs(e.lift - mass / share) < 1e-6);
    assert_int_equal(ablation_at(t.a, x.index)->skipped, 1); /* L0.attn reads emb alone */
    assert_true(isnan(e.delta_loss.low));                    /* three sequences */
    trial_close(&t);
    clear(&x);
    free(tokens);
}

/* ---- classes ---- */

static void classes_and_false_discoveries(void **state) {
    (void)state;
    const double p[] = {0.01, 0.04, 0.03, NAN, 0.005, 0.9};
    const double q[] = {0.025, 0.05, 0.05, NAN, 0.025, 0.9};
    effect list[6] = {0};
    for (size_t i = 0; i < 6; i++)
        list[i] = (effect){.delta_loss = {0.1, 0.05, 0.15}, .p = p[i]};
    list[3].delta_loss = (interval){0.1, NAN, NAN};
    list[4].delta_loss = (interval){0.001, 0.0005, 0.002};
    effects_classify(list, 6, 0.002, 0.95);
    for (size_t i = 0; i < 6; i++)
        assert_true(isnan(q[i]) ? isnan(list[i].q) : fabs(list[i].q - q[i]) < 1e-12);
    assert_int_equal(list[0].class, EFFECT_SEEN);
    assert_int_equal(list[1].class, EFFECT_SEEN);
    assert_int_equal(list[3].class, EFFECT_UNDECIDED);
    assert_int_equal(list[4].class, EFFECT_NONE); /* however sure that it is not 0 */
    assert_int_equal(list[5].class, EFFECT_UNDECIDED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_effects),
        cmocka_unit_test(golden_effects_of_trained_models),
        cmocka_unit_test(edits_of_nothing_leave_every_loss),
        cmocka_unit_test(frozen_weights_are_the_unedited_runs),
        cmocka_unit_test(mass_moved_by_a_mask_is_the_mass),
        cmocka_unit_test(classes_and_false_discoveries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
