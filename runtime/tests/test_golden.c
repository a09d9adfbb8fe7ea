/* Every forward golden holds: logits, losses, weights, magnitudes, statistics, labels, removals.
 *
 * Bounds are the contract's for float32 on a CPU: relative L2 2e-5, loss per token 1e-4, mean loss
 * and statistics 1e-5. Largest errors seen are printed at the end. */
#include "runtime/tests/golden.h"

#include "runtime/base/json.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const double L2_BOUND = 2e-5, TOKEN_LOSS_BOUND = 1e-4, MEAN_BOUND = 1e-5;

static struct worst {
    double logits, route, magnitude, token_loss, loss, statistic, removal;
} worst;

static void note(double *worst_so_far, double error) {
    if (!(error <= *worst_so_far)) /* NaN counts */
        *worst_so_far = error;
}

static void hold(const char *where, const char *what, double error, double bound, double *seen) {
    note(seen, error);
    if (!(error <= bound))
        fail_msg("%s: %s: error %.3g, bound %.3g", where, what, error, bound);
}

typedef struct golden {
    const char *name; /* "tiny/full-h4" */
    run r;
    checkpoint *expected;
    size_t sequences, length;
    int32_t *id;
} golden;

static void golden_open(golden *g, const char *name) {
    status st;
    char path[512], models[512];
    snprintf(path, sizeof path, "%s/%s/expected.safetensors", golden_folder(), name);
    if (checkpoint_open(path, &g->expected, &st))
        fail_msg("%s", st.text);
    g->name = name;
    if (strncmp(name, "zoo/", 4) == 0)
        snprintf(models, sizeof models, "datasets/models/%s", name + 4);
    else
        snprintf(models, sizeof models, "%s/%s", golden_folder(), name);
    run_open(&g->r, models, 2);
    g->id = golden_tokens(g->expected, &g->sequences, &g->length);
    size_t lengths[64];
    for (size_t i = 0; i < g->sequences; i++)
        lengths[i] = g->length;
    run_forward(&g->r, g->id, g->length, lengths, g->sequences);
}

static void golden_close(golden *g) {
    run_close(&g->r);
    checkpoint_close(g->expected);
    free(g->id);
}

/* Compares the leading elements of an array with those the file stores (for some arrays the first
 * sequences only). Absent where `required` is false: nothing to do. */
static void compare(golden *g, const char *name, const float *got, bool required, double *seen) {
    size_t n, shape[8];
    double *want = golden_array(g->expected, name, &n, shape);
    if (!want && !required)
        return;
    if (!want || !got)
        fail_msg("%s: %s: %s", g->name, name, want ? "not observed" : "not in the golden file");
    hold(g->name, name, relative_l2(got, want, n), L2_BOUND, seen);
    free(want);
}

static void check_losses(golden *g) {
    size_t n, shape[8];
    double *want = golden_array(g->expected, "loss_per_token", &n, shape);
    assert_non_null(want);
    for (size_t b = 0; b < g->sequences; b++)
        for (size_t t = 0; t + 1 < g->length; t++)
            hold(g->name, "loss_per_token",
                 fabs((double)g->r.loss[b * g->length + t] - want[b * (g->length - 1) + t]),
                 TOKEN_LOSS_BOUND, &worst.token_loss);
    for (size_t b = 0; b < g->sequences; b++)
        assert_true(isnan(g->r.loss[b * g->length + g->length - 1]));
    free(want);
    want = golden_array(g->expected, "loss", &n, shape);
    hold(g->name, "loss", fabs(run_loss(&g->r) - want[0]), MEAN_BOUND, &worst.loss);
    free(want);
}

static void check_magnitudes(golden *g, bool required) {
    const depth_program *p = g->r.program;
    char name[128];
    for (size_t i = 0; i < p->plan.sites; i++) {
        snprintf(name, sizeof name, "in_rms/%s", p->site_name[i]);
        compare(g, name, g->r.site[i].in_rms, required, &worst.magnitude);
    }
    for (size_t i = 0; i + 1 < p->plan.sites; i++) {
        const seen_sublayer *s = &g->r.sublayer[i];
        const struct {
            const char *name;
            const float *got;
        } row[] = {{"out_rms", s->out_rms},
                   {"out_absmax", s->out_absmax},
                   {"state_rms", s->state_rms},
                   {"state_absmax", s->state_absmax},
                   {"state_median_abs", s->state_median_abs}};
        for (size_t k = 0; k < sizeof row / sizeof *row; k++) {
            snprintf(name, sizeof name, "%s/%s", row[k].name, p->site_name[i]);
            compare(g, name, row[k].got, required, &worst.magnitude);
        }
    }
}

/* Labels of every site, from the metadata. */
static void check_labels(golden *g) {
    status st;
    const depth_program *p = g->r.program;
    const char *text = checkpoint_metadata(g->expected, "labels");
    if (!text)
        return;
    cJSON *labels = NULL;
    if (json_parse(text, strlen(text), g->name, &labels, &st))
        fail_msg("%s", st.text);
    for (size_t i = 0; i < p->plan.sites; i++) {
        const cJSON *list = cJSON_GetObjectItemCaseSensitive(labels, p->site_name[i]);
        assert_int_equal(cJSON_GetArraySize(list), p->plan.site[i].sources);
        for (int s = 0; s < p->plan.site[i].sources; s++)
            assert_string_equal(cJSON_GetArrayItem(list, s)->valuestring,
                                p->source_name[p->label[p->offset[i] + (size_t)s]]);
    }
    cJSON_Delete(labels);
}

/* Accumulated rows: sums over all sequences divided by tokens. */
static void check_statistics(golden *g, size_t site) {
    const routing_layout *l = &g->r.site[site].layout;
    size_t heads = l->heads, sources = l->sources;
    const struct {
        const char *name;
        size_t field, count;
    } row[] = {{"mean", l->mean, heads * sources},
               {"second_moment", l->second_moment, heads * sources},
               {"entropy", l->entropy, heads},
               {"effective_sources", l->effective_sources, heads},
               {"lookback", l->lookback, heads},
               {"oldest_mass", l->oldest_mass, heads},
               {"newest_mass", l->newest_mass, heads},
               {"top1", l->top1, heads},
               {"head_divergence", l->head_divergence, 1},
               {"contribution", l->contribution, heads * sources},
               {"signed_contribution", l->signed_contribution, heads * sources},
               {"site_contribution", l->site_contribution, sources},
               {"source_rms", l->source_rms, sources},
               {"head_js", l->head_js, heads * heads},
               {"source_cos", l->source_cos, sources * sources}};
    for (size_t k = 0; k < sizeof row / sizeof *row; k++) {
        char name[128];
        size_t n, shape[8];
        snprintf(name, sizeof name, "stats/%s/%s", g->r.program->site_name[site], row[k].name);
        double *want = golden_array(g->expected, name, &n, shape);
        if (!want)
            continue;
        assert_int_equal(n, row[k].count);
        for (size_t i = 0; i < n; i++) {
            double sum = 0, tokens = 0;
            for (size_t b = 0; b < g->sequences; b++) {
                sum += g->r.site[site].sums[b * l->total + row[k].field + i];
                tokens += g->r.site[site].sums[b * l->total + l->tokens];
            }
            hold(g->name, name, fabs(sum / tokens - want[i]), MEAN_BOUND, &worst.statistic);
        }
        free(want);
    }
}

static void check_routing(golden *g) {
    const depth_program *p = g->r.program;
    char name[128];
    for (size_t i = 0; i < p->plan.sites; i++) {
        if (p->plan.site[i].sources == 0)
            continue;
        snprintf(name, sizeof name, "route/%s", p->site_name[i]);
        compare(g, name, g->r.site[i].weights, true, &worst.route);
        check_statistics(g, i);
    }
}

static const char *const TINY_AND_ZOO[] = {
    "tiny/block-h1-n1",    "tiny/block-h1-n2",    "tiny/block-h1-n4",   "tiny/block-h3-n5",
    "tiny/delta-h1-n5",    "tiny/delta-h4-n2",    "tiny/delta-h4-n4",   "tiny/delta-raw-h1",
    "tiny/full-h1",        "tiny/full-h4",        "tiny/full-h4-alpha", "tiny/full-h4-zero-query",
    "tiny/standard-llama", "tiny/standard-qwen3", "zoo/standard",       "zoo/attnres-full",
    "zoo/attnres-block",   "zoo/mhar-h8",         "zoo/mhar-block-h4"};
static const char *const HF[] = {"hf/llama", "hf/llama3-rope", "hf/qwen2", "hf/qwen3"};
#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static void every_mode_agrees_with_float64(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(TINY_AND_ZOO); i++) {
        golden g;
        golden_open(&g, TINY_AND_ZOO[i]);
        compare(&g, "logits", g.r.logits, strncmp(g.name, "zoo/", 4) != 0, &worst.logits);
        check_losses(&g);
        check_magnitudes(&g, true);
        check_labels(&g);
        check_routing(&g);
        golden_close(&g);
    }
}

static void standard_families_agree_with_transformers(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(HF); i++) {
        golden g;
        golden_open(&g, HF[i]);
        compare(&g, "logits", g.r.logits, true, &worst.logits);
        check_losses(&g);
        size_t layers = model_configuration(g.r.model)->layers;
        for (size_t layer = 0; layer < layers; layer++) {
            char name[64];
            snprintf(name, sizeof name, "attentions/%zu", layer);
            compare(&g, name, g.r.sublayer[2 * layer].pattern, true, &worst.route);
            /* hidden_states of the last layer stands after the final norm in transformers */
            snprintf(name, sizeof name, "hidden_states/%zu", layer + 1);
            if (layer + 1 < layers)
                compare(&g, name, g.r.sublayer[2 * layer + 1].state, true, &worst.magnitude);
        }
        golden_close(&g);
    }
}

static void a_prefix_in_the_batch_gives_the_prefix_of_the_rows(void **state) {
    (void)state;
    const char *const names[] = {"tiny/full-h4", "tiny/block-h3-n5", "tiny/delta-h4-n2"};
    for (size_t i = 0; i < COUNT(names); i++) {
        golden g;
        golden_open(&g, names[i]);
        size_t lengths[2] = {g.length, 7};
        float *alone = malloc(g.r.rows * sizeof *alone);
        assert_non_null(alone);
        memcpy(alone, g.r.loss, g.r.rows * sizeof *alone);
        run_forward(&g.r, g.id, 0, lengths, 2);
        for (size_t t = 0; t + 1 < 7; t++)
            hold(g.name, "prefix", fabs((double)g.r.loss[g.length + t] - (double)alone[t]),
                 TOKEN_LOSS_BOUND, &worst.token_loss);
        assert_memory_equal(g.r.loss, alone, (g.length - 1) * sizeof *alone);
        free(alone);
        golden_close(&g);
    }
}

/* ---- removals ---- */

static double loss_without(golden *g, const bool *gone, removal how) {
    removed_set removed = {gone, how};
    size_t lengths[64];
    for (size_t i = 0; i < g->sequences; i++)
        lengths[i] = g->length;
    run_program(&g->r, &removed);
    run_forward(&g->r, g->id, g->length, lengths, g->sequences);
    return run_loss(&g->r);
}

static void hold_removal(golden *g, const char *name, const bool *gone, removal how, double whole,
                         double want) {
    double got = loss_without(g, gone, how) - whole;
    hold(g->name, name, fabs(got - want) / (1 + fabs(want)), MEAN_BOUND, &worst.removal);
}

/* "L1+L2", "L3.attn+L4.mlp", "all_but_L2" into flags of sublayers. */
static void parse_set(const char *text, size_t layers, bool *gone) {
    memset(gone, 0, 2 * layers);
    if (strncmp(text, "all_but_L", 9) == 0) {
        size_t kept = strtoul(text + 9, NULL, 10);
        for (size_t i = 0; i < 2 * layers; i++)
            gone[i] = i / 2 != kept;
        return;
    }
    for (const char *at = text; at; at = strchr(at, '+') ? strchr(at, '+') + 1 : NULL) {
        char *end;
        size_t layer = strtoul(at + 1, &end, 10);
        if (strncmp(end, ".mlp", 4) != 0)
            gone[2 * layer] = true;
        if (strncmp(end, ".attn", 5) != 0)
            gone[2 * layer + 1] = true;
    }
}

static void check_removals(golden *g) {
    static const char *const how_name[] = {"drop_source", "zero_output"};
    static const char *const unit[] = {"layer", "attn", "mlp"};
    size_t layers = model_configuration(g->r.model)->layers;
    bool gone[64];
    double whole = run_loss(&g->r);
    for (size_t how = 0; how < 2; how++)
        for (size_t u = 0; u < 3; u++) {
            char name[128];
            size_t n, shape[8];
            snprintf(name, sizeof name, "prune/%s/%s", how_name[how], unit[u]);
            double *want = golden_array(g->expected, name, &n, shape);
            for (size_t layer = 0; want && layer < layers; layer++) {
                memset(gone, 0, sizeof gone);
                gone[2 * layer] = u != 2;
                gone[2 * layer + 1] = u != 1;
                hold_removal(g, name, gone, (removal)how, whole, want[layer]);
            }
            free(want);
        }
    for (size_t i = 0; i < checkpoint_tensors(g->expected); i++) {
        const char *name = checkpoint_tensor(g->expected, i)->name;
        for (size_t how = 0; how < 2; how++) {
            char prefix[64];
            snprintf(prefix, sizeof prefix, "prune_set/%s/", how_name[how]);
            if (strncmp(name, prefix, strlen(prefix)) != 0)
                continue;
            size_t n, shape[8];
            double *want = golden_array(g->expected, name, &n, shape);
            parse_set(name + strlen(prefix), layers, gone);
            hold_removal(g, name, gone, (removal)how, whole, want[0]);
            free(want);
        }
    }
}

static void removals_agree_with_their_definition(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(TINY_AND_ZOO); i++) {
        golden g;
        if (strncmp(TINY_AND_ZOO[i], "zoo/", 4) == 0 && !getenv("GOLDEN"))
            continue; /* the tiny models cover every mode; the trained ones take a minute */
        golden_open(&g, TINY_AND_ZOO[i]);
        check_removals(&g);
        golden_close(&g);
    }
}

static int print_worst(void **state) {
    (void)state;
    printf("largest errors: logits %.2g, route %.2g, magnitudes %.2g (relative L2); loss per token "
           "%.2g, loss %.2g, statistics %.2g, removals %.2g (absolute)\n",
           worst.logits, worst.route, worst.magnitude, worst.token_loss, worst.loss,
           worst.statistic, worst.removal);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mode_agrees_with_float64),
        cmocka_unit_test(standard_families_agree_with_transformers),
        cmocka_unit_test(a_prefix_in_the_batch_gives_the_prefix_of_the_rows),
        cmocka_unit_test(removals_agree_with_their_definition),
    };
    return cmocka_run_group_tests(tests, NULL, print_worst);
}
