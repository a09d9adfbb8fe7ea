/* test_model.c - loading whole models: every golden, the output head, and what is refused. */
#include "runtime/model.h"

#include "runtime/base/options.h"
#include "runtime/rope.h"
#include "runtime/tests/checkpoint_edit.h"
#include "runtime/tests/scratch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const folders[] = {
    "golden/tiny/block-h1-n1",
    "golden/tiny/block-h1-n2",
    "golden/tiny/block-h1-n4",
    "golden/tiny/block-h3-n5",
    "golden/tiny/delta-h1-n5",
    "golden/tiny/delta-h4-n2",
    "golden/tiny/delta-h4-n4",
    "golden/tiny/delta-raw-h1",
    "golden/tiny/full-h1",
    "golden/tiny/full-h4",
    "golden/tiny/full-h4-alpha",
    "golden/tiny/full-h4-zero-query",
    "golden/tiny/standard-llama",
    "golden/tiny/standard-qwen3",
    "golden/hf/llama",
    "golden/hf/llama3-rope",
    "golden/hf/qwen2",
    "golden/hf/qwen3",
    "models/standard",
    "models/attnres-full",
    "models/attnres-block",
    "models/mhar-h8",
    "models/mhar-block-h4",
};
enum { FOLDERS = sizeof folders / sizeof *folders };

static model *opened(const char *dir) {
    model *m;
    status st;
    if (model_open(dir, &(model_options){.device = "cpu"}, &m, &st))
        fail_msg("%s", st.text);
    return m;
}

/* A golden's copy to be edited; freed by the caller. */
static char *copied(const char *golden) {
    char from[256], *dir = scratch_path("model");
    snprintf(from, sizeof from, "datasets/golden/%s", golden);
    assert_int_equal(checkpoint_copy(from, dir), 0);
    return dir;
}

static void refused(char *dir, ...) {
    model *m;
    status st = {""};
    va_list parts;
    assert_int_equal(model_open(dir, &(model_options){.device = "cpu"}, &m, &st), FAILED);
    assert_null(m);
    va_start(parts, dir);
    for (const char *part; (part = va_arg(parts, const char *));)
        if (!strstr(st.text, part))
            fail_msg("\"%s\" lacks \"%s\"", st.text, part);
    va_end(parts);
    free(dir);
}

static const float *memory_of(const model *m, const buffer *b) {
    return model_kernels(m)->host(model_backend(m), b);
}

static const model_param *param_named(const model *m, const char *name) {
    for (size_t i = 0; i < model_params(m); i++)
        if (strcmp(model_param_at(m, i)->name, name) == 0)
            return model_param_at(m, i);
    fail_msg("no parameter %s", name);
    return NULL;
}

/* Every tensor of every file is a parameter, and the backend holds its values where the table says.
 */
static void every_golden_is_loaded_whole(void **state) {
    (void)state;
    for (size_t f = 0; f < FOLDERS; f++) {
        char dir[256];
        status st;
        size_t elements = 0;
        snprintf(dir, sizeof dir, "datasets/%s", folders[f]);
        model *m = opened(dir);
        const checkpoint *ck = model_checkpoint(m);
        assert_int_equal(model_params(m), checkpoint_tensors(ck));
        for (size_t i = 0; i < model_params(m); i++) {
            const model_param *p = model_param_at(m, i);
            const tensor_info *t = checkpoint_find(ck, p->name);
            float *want = malloc((t->elements + 1) * sizeof *want);
            assert_non_null(want);
            assert_int_equal(p->rows * p->columns, t->elements);
            assert_int_equal(checkpoint_read(ck, t, want, &st), DONE);
            assert_memory_equal(want, memory_of(m, p->memory) + p->offset,
                                t->elements * sizeof *want);
            assert_int_equal(p->nonfinite, 0);
            elements += t->elements;
            free(want);
        }
        assert_int_equal(model_parameters(m), elements);
        model_close(m);
    }
}

/* Rows of fused buffers: queries, keys, values; gate, up. */
static void fused_weights(void **state) {
    (void)state;
    model *m = opened("datasets/golden/hf/qwen2");
    const layer_weights *l = &model_tensors(m)->layer[1];
    const struct {
        const char *name;
        const buffer *memory;
        size_t offset;
    } parts[] = {
        {"self_attn.q_proj.weight", l->qkv, 0},
        {"self_attn.k_proj.weight", l->qkv, 48 * 48},
        {"self_attn.v_proj.weight", l->qkv, 72 * 48},
        {"self_attn.q_proj.bias", l->qkv_bias, 0},
        {"self_attn.k_proj.bias", l->qkv_bias, 48},
        {"self_attn.v_proj.bias", l->qkv_bias, 72},
        {"self_attn.o_proj.weight", l->out, 0},
        {"mlp.gate_proj.weight", l->gate_up, 0},
        {"mlp.up_proj.weight", l->gate_up, 80 * 48},
        {"mlp.down_proj.weight", l->down, 0},
        {"input_layernorm.weight", l->attn_norm, 0},
        {"post_attention_layernorm.weight", l->mlp_norm, 0},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char name[96];
        snprintf(name, sizeof name, "model.layers.1.%s", parts[i].name);
        assert_ptr_equal(param_named(m, name)->memory, parts[i].memory);
        assert_int_equal(param_named(m, name)->offset, parts[i].offset);
    }
    assert_null(l->out_bias);
    assert_null(l->q_norm);
    assert_null(l->attn_site.query);
    model_close(m);
}

static void routers_of_a_gated_model(void **state) {
    (void)state;
    model *m = opened("datasets/golden/tiny/delta-h4-n2");
    const layer_weights *l = &model_tensors(m)->layer[2];
    assert_ptr_equal(param_named(m, "model.layers.2.attn_res_proj.weight")->memory,
                     l->attn_site.query);
    assert_ptr_equal(param_named(m, "model.layers.2.attn_res_norm.weight")->memory,
                     l->attn_site.gain);
    assert_ptr_equal(param_named(m, "model.layers.2.mlp_null_source")->memory,
                     l->mlp_site.null_source);
    assert_ptr_equal(param_named(m, "model.layers.2.mlp_res_alpha")->memory, l->mlp_site.gate);
    assert_true(fabsf(memory_of(m, l->mlp_site.gate)[0] - 0.3f) < 1e-6f);
    assert_string_equal(param_named(m, "model.layers.2.mlp_null_source")->kind, "router");
    assert_null(model_tensors(m)->final_site.query);
    model_close(m);
}

static void gates_and_their_forms(void **state) {
    (void)state;
    const float one[48 * 48] = {0.25f};
    char *dir = copied("tiny/full-h4-alpha");
    assert_int_equal(edit_header(dir, "model.layers.0.attn_res_alpha", "shape", "[1]"), 1);
    model_close(opened(dir));
    assert_int_equal(edit_header(dir, "model.layers.0.attn_res_alpha", "shape", "[1,1]"), 1);
    refused(dir, "model.safetensors: model.layers.0.attn_res_alpha: shape [1,1], expected []",
            NULL);

    dir = copied("tiny/full-h1");
    assert_int_equal(edit_config_text(dir, "attnres_gate_type", "sigmoid_vector"), 1);
    for (int i = 0; i < 10; i++) {
        char name[96];
        snprintf(name, sizeof name, "model.layers.%d.%s_res_gate_proj.weight", i / 2,
                 i % 2 ? "mlp" : "attn");
        assert_int_equal(edit_add(dir, name, "[48,48]", one, 48 * 48), 1);
    }
    assert_int_equal(edit_add(dir, "model.layers.3.mlp_res_gate_proj.bias", "[48]", one, 48), 1);
    model *m = opened(dir);
    const model_weights *w = model_tensors(m);
    assert_true(memory_of(m, w->layer[4].attn_site.gate)[0] == 0.25f);
    assert_non_null(w->layer[3].mlp_site.gate_bias);
    assert_null(w->layer[3].attn_site.gate_bias);
    assert_null(w->final_site.gate);
    model_close(m);
    free(dir);
}

/* Absent when tied, present although tied, absent although untied: all accepted, and said. */
static void output_heads(void **state) {
    (void)state;
    size_t bytes = 61 * 48 * sizeof(float);
    float *table = malloc(bytes), two = 2;
    assert_non_null(table);
    char *dir = copied("hf/llama");
    model *m = opened(dir);
    memcpy(table, memory_of(m, model_tensors(m)->embedding), bytes);
    assert_string_equal(model_head_text(m), "tied");
    assert_ptr_equal(model_tensors(m)->head, model_tensors(m)->embedding);
    size_t parameters = model_parameters(m);
    model_close(m);

    assert_int_equal(edit_add(dir, "lm_head.weight", "[61,48]", table, 61 * 48), 1);
    m = opened(dir);
    assert_string_equal(model_head_text(m), "tied (lm_head.weight present, equal, not used)");
    assert_int_equal(model_parameters(m), parameters);
    model_close(m);

    assert_int_equal(edit_tensor(dir, "lm_head.weight", set_scaled, &two), 1);
    m = opened(dir);
    assert_string_equal(model_head_text(m), "tied (lm_head.weight present, different, not used)");
    assert_ptr_equal(model_tensors(m)->head, model_tensors(m)->embedding);
    model_close(m);

    assert_int_equal(edit_config(dir, "tie_word_embeddings", "false"), 1);
    m = opened(dir);
    assert_string_equal(model_head_text(m), "untied");
    assert_true(memory_of(m, model_tensors(m)->head)[5] == 2 * table[5]);
    assert_int_equal(model_parameters(m), parameters + 61 * 48);
    model_close(m);

    assert_int_equal(edit_name(dir, "lm_head.weight", NULL), 1);
    m = opened(dir);
    assert_non_null(strstr(model_head_text(m), "untied in config.json, lm_head.weight absent"));
    assert_ptr_equal(model_tensors(m)->head, model_tensors(m)->embedding);
    model_close(m);
    free(dir);
    free(table);
}

static void block_model_without_final_router(void **state) {
    (void)state;
    char *dir = copied("tiny/block-h3-n5");
    assert_int_equal(edit_name(dir, "model.final_res_proj.weight", NULL), 1);
    assert_int_equal(edit_name(dir, "model.final_res_norm.weight", NULL), 1);
    scratch_capture_begin();
    option_quiet = false;
    model *m = opened(dir);
    option_quiet = true;
    char *said = scratch_capture_end();
    assert_non_null(strstr(said, "no model.final_res_*"));
    assert_false(model_configuration(m)->final_site);
    model_close(m);
    free(said);
    free(dir);
    dir = copied("tiny/block-h3-n5");
    assert_int_equal(edit_name(dir, "model.final_res_norm.weight", NULL), 1);
    refused(dir, "missing tensors", "model.final_res_norm.weight", NULL);
    dir = copied("tiny/full-h4");
    assert_int_equal(edit_name(dir, "model.final_res_proj.weight", NULL), 1);
    assert_int_equal(edit_name(dir, "model.final_res_norm.weight", NULL), 1);
    refused(dir, "missing tensors", "model.final_res_proj.weight", "mode full_mh", NULL);
}

static void missing_and_unexpected_tensors(void **state) {
    (void)state;
    const float zeros[48] = {0};
    char *dir = copied("tiny/full-h4");
    assert_int_equal(edit_name(dir, "model.layers.3.mlp.up_proj.weight", NULL), 1);
    assert_int_equal(edit_name(dir, "model.norm.weight", "model.norm.gain"), 1);
    refused(dir, "missing tensors", "\"qwen3_attnres\"",
            "model.layers.3.mlp.up_proj.weight, model.norm.weight", NULL);

    dir = copied("tiny/full-h4");
    assert_int_equal(edit_config_number(dir, "num_hidden_layers", 7), 1);
    refused(dir, "missing tensors", "model.layers.5.attn_res_proj.weight", "… (30 in all)", NULL);

    /* Routers are never left aside: a gate that config.json does not mention, too many layers, a
     * routed checkpoint under a standard family's name, a tensor of no known kind. */
    dir = copied("tiny/full-h4-alpha");
    assert_int_equal(edit_config_text(dir, "attnres_gate_type", "bias"), 1);
    refused(dir, "model.safetensors: unexpected router tensors", "model.layers.0.attn_res_alpha",
            "(10 in all)", "known:", NULL);
    dir = copied("tiny/full-h4");
    assert_int_equal(edit_config_number(dir, "num_hidden_layers", 4), 1);
    refused(dir, "unexpected router tensors", "model.layers.4.attn_res_norm.weight", NULL);
    dir = copied("tiny/full-h4");
    assert_int_equal(edit_config_text(dir, "model_type", "qwen3"), 1);
    assert_int_equal(edit_config_text(dir, "attnres_mode", "none"), 1);
    refused(dir, "unexpected router tensors for model_type \"qwen3\", mode none", NULL);
    dir = copied("tiny/delta-raw-h1");
    assert_int_equal(edit_config(dir, "attnres_use_null_source", "false"), 1);
    refused(dir, "unexpected router tensors", "model.layers.0.attn_null_source", NULL);
    dir = copied("tiny/full-h4");
    assert_int_equal(edit_add(dir, "model.layers.0.attn_res_temperature", "[48]", zeros, 48), 1);
    refused(dir, "unexpected router tensors", "model.layers.0.attn_res_temperature", NULL);

    /* Others are, by name. */
    dir = copied("tiny/full-h4");
    assert_int_equal(edit_add(dir, "model.rotary_emb.inv_freq", "[6]", zeros, 6), 1);
    scratch_capture_begin();
    option_quiet = false;
    option_verbose = true;
    model_close(opened(dir));
    option_verbose = false;
    option_quiet = true;
    char *said = scratch_capture_end();
    assert_non_null(strstr(said, "tensors not used: model.rotary_emb.inv_freq"));
    free(said);
    free(dir);
}

static void dialects_are_refused_by_name(void **state) {
    (void)state;
    const float zero = 0;
    static const char *const rows[][2] = {
        {"model.layers.0.attn_res_bias", "the layout with *_res_bias and final_res_*"},
        {"model.layers.0.pseudo_query", "the Megatron layout"},
        {"model.layers.0.key_norm_weight", "the Megatron layout"},
        {"model.layers.0.self_attention_res_proj.weight", "the Kimi K3 layout"},
        {"model.res_proj.weight", "the flash-linear-attention layout"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *dir = copied("tiny/full-h4");
        assert_int_equal(edit_add(dir, rows[i][0], "[1]", &zero, 1), 1);
        refused(dir, "model.safetensors: tensors of", rows[i][1], rows[i][0], "known:", NULL);
    }
    char *dir = copied("tiny/block-h1-n2");
    assert_int_equal(edit_add(dir, "model.layers.0.mlp_res_bias", "[1]", &zero, 1), 1);
    assert_int_equal(edit_name(dir, "model.final_res_proj.weight", NULL), 1);
    assert_int_equal(edit_name(dir, "model.final_res_norm.weight", NULL), 1);
    refused(dir, "the wdlctc v1 layout", "model.layers.0.mlp_res_bias", NULL);
}

static void wrong_shapes_and_dtypes(void **state) {
    (void)state;
    static const char *const rows[][3] = {
        {"model.embed_tokens.weight", "[48,61]", "shape [48,61], expected [61,48]"},
        {"model.layers.3.attn_res_norm.weight", "[1,48]", "shape [1,48], expected [48]"},
        {"model.layers.3.attn_res_proj.weight", "[48]", "shape [48], expected [1,48]"},
        {"model.layers.1.self_attn.k_proj.weight", "[12,96]", "shape [12,96], expected [24,48]"},
        {"model.norm.weight", "[]", "bytes of data for F32 []"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *dir = copied("tiny/full-h4");
        assert_int_equal(edit_header(dir, rows[i][0], "shape", rows[i][1]), 1);
        refused(dir, "model.safetensors", rows[i][0], rows[i][2], NULL);
    }
    char *dir = copied("tiny/full-h4");
    assert_int_equal(edit_header(dir, "model.norm.weight", "dtype", "\"I32\""), 1);
    refused(dir, "model.safetensors: model.norm.weight: dtype I32, expected F32, F16 or BF16",
            NULL);
    dir = copied("tiny/full-h4");
    assert_int_equal(edit_header(dir, "model.norm.weight", "dtype", "\"F4\""), 1);
    refused(dir, "model.norm.weight: dtype F4, expected F32, F16 or BF16", NULL);
}

static void put_nonfinite(const char *name, float *values, size_t count, void *user) {
    (void)name, (void)user;
    values[49] = NAN;
    values[50] = INFINITY;
    values[count - 1] = -NAN;
}

/* NaN and Inf are named and counted, and loading goes on with them. */
static void nan_in_weights(void **state) {
    (void)state;
    char *dir = copied("tiny/full-h4");
    assert_int_equal(edit_tensor(dir, "model.layers.2.mlp.up_proj.weight", put_nonfinite, NULL), 1);
    scratch_capture_begin();
    option_quiet = false;
    model *m = opened(dir);
    option_quiet = true;
    char *said = scratch_capture_end();
    assert_non_null(strstr(said, "warning: "));
    assert_non_null(strstr(said,
                           "model.safetensors: model.layers.2.mlp.up_proj.weight: 2 NaN and 1 "
                           "Inf of 3840 values, the first at [1,1]"));
    const model_param *p = param_named(m, "model.layers.2.mlp.up_proj.weight");
    assert_int_equal(p->nonfinite, 3);
    assert_true(isnan(memory_of(m, p->memory)[p->offset + 49]));
    model_close(m);
    free(said);
    free(dir);
}

static void rotary_tables(void **state) {
    (void)state;
    status st;
    model *m;
    double frequency[6];
    float cosine[200 * 6], sine[200 * 6];
    model_options longer = {.device = "cpu", .positions = 200};
    assert_int_equal(model_open("datasets/golden/hf/llama3-rope", &longer, &m, &st), DONE);
    assert_int_equal(model_tensors(m)->rope_positions, 200);
    rope_frequencies(&model_configuration(m)->rope, 12, frequency);
    rope_table(frequency, 6, 0, 200, cosine, sine);
    assert_memory_equal(memory_of(m, model_tensors(m)->rope_cosine), cosine, sizeof cosine);
    assert_memory_equal(memory_of(m, model_tensors(m)->rope_sine), sine, sizeof sine);
    model_close(m);
    m = opened("datasets/golden/hf/llama3-rope");
    assert_int_equal(model_tensors(m)->rope_positions, 64);
    model_close(m);
}

static void described_only(void **state) {
    (void)state;
    status st;
    model *m, *whole = opened("datasets/golden/tiny/full-h4");
    model_options describe = {.describe = true};
    assert_int_equal(model_open("datasets/golden/tiny/full-h4", &describe, &m, &st), DONE);
    assert_int_equal(model_params(m), model_params(whole));
    assert_int_equal(model_parameters(m), model_parameters(whole));
    assert_null(model_param_at(m, 0)->memory);
    assert_string_equal(model_weights_dtype(m), "F32");
    model_close(m);
    model_close(whole);
}

static void devices_and_dtypes(void **state) {
    (void)state;
    const struct {
        model_options options;
        const char *part;
    } rows[] = {
        {{.device = "cuda:99"}, "device 'cuda:99': "},
        {{.device = "tpu"}, "device 'tpu': not known"},
        {{.device = "cpu", .dtype = "bf16"}, "computes in fp32 only"},
        {{.dtype = "fp8"}, "dtype 'fp8': not known"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        model *m;
        status st;
        assert_int_equal(model_open("datasets/golden/tiny/full-h4", &rows[i].options, &m, &st),
                         FAILED);
        assert_non_null(strstr(st.text, rows[i].part));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_golden_is_loaded_whole),
        cmocka_unit_test(fused_weights),
        cmocka_unit_test(routers_of_a_gated_model),
        cmocka_unit_test(gates_and_their_forms),
        cmocka_unit_test(output_heads),
        cmocka_unit_test(block_model_without_final_router),
        cmocka_unit_test(missing_and_unexpected_tensors),
        cmocka_unit_test(dialects_are_refused_by_name),
        cmocka_unit_test(wrong_shapes_and_dtypes),
        cmocka_unit_test(nan_in_weights),
        cmocka_unit_test(rotary_tables),
        cmocka_unit_test(described_only),
        cmocka_unit_test(devices_and_dtypes),
    };
    option_quiet = true;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
