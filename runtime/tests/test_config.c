/* test_config.c - config.json: what is understood of each family, and what is refused. */
#include "runtime/config.h"

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

/* A key of config.json and its new value; NULL: the key is removed. */
typedef struct edit {
    const char *key, *json;
} edit;
enum { EDITS = 4 };

/* config.json of a golden after some edits; `routing_heads` as --routing-heads. */
static int read_edited(const char *golden, const edit *edits, size_t routing_heads, model_config *c,
                       status *st) {
    char from[256], *dir = scratch_path("config");
    snprintf(from, sizeof from, "datasets/golden/%s", golden);
    assert_int_equal(checkpoint_copy(from, dir), 0);
    for (size_t i = 0; i < EDITS && edits[i].key; i++)
        assert_int_equal(edit_config(dir, edits[i].key, edits[i].json), 1);
    int rc = config_read(dir, routing_heads, c, NULL, st);
    free(dir);
    return rc;
}

static model_config edited(const char *golden, edit a, edit b) {
    const edit edits[EDITS] = {a, b};
    model_config c;
    status st;
    if (read_edited(golden, edits, 0, &c, &st))
        fail_msg("%s", st.text);
    return c;
}

static void families(void **state) {
    (void)state;
    model_config c = edited("tiny/block-h3-n5", (edit){0}, (edit){0});
    assert_string_equal(c.model_type, "qwen3_attnres");
    assert_true(c.family == FAMILY_QWEN3 && c.mode == MODE_BLOCK_MH && c.head_norm);
    assert_true(c.vocabulary == 61 && c.width == 48 && c.layers == 5 && c.positions == 64);
    assert_true(c.query_heads == 4 && c.kv_heads == 2 && c.head_dim == 12 && c.mlp_width == 80);
    assert_true(c.eps == 1e-6f && c.tied && !c.qkv_bias && !c.out_bias && !c.mlp_bias);
    assert_true(c.routing_heads == 3 && c.gate == GATE_NONE && !c.null_source && c.final_site);
    c = edited("hf/qwen2", (edit){0}, (edit){0});
    assert_true(c.family == FAMILY_QWEN2 && c.mode == MODE_NONE && c.qkv_bias && !c.out_bias);
    assert_true(!c.head_norm && c.head_dim == 12 && c.routing_heads == 1 && !c.final_site);
    c = edited("hf/qwen3", (edit){0}, (edit){0});
    assert_true(c.family == FAMILY_QWEN3 && c.head_dim == 16 && !c.tied && c.head_norm);
    c = edited("hf/llama", (edit){"attention_bias", "true"}, (edit){"mlp_bias", "true"});
    assert_true(c.family == FAMILY_LLAMA && c.qkv_bias && c.out_bias && c.mlp_bias);
}

/* A standard model may carry routing keys that say nothing: model_type decides. */
static void standard_model_with_routing_keys(void **state) {
    (void)state;
    status st;
    model_config c;
    if (config_read("datasets/models/standard", 0, &c, NULL, &st))
        fail_msg("%s", st.text);
    assert_true(c.mode == MODE_NONE && c.routing_heads == 1 && c.blocks_asked == 0);
    c = edited("tiny/full-h1", (edit){"attnres_mode", "\"none\""}, (edit){0});
    assert_true(c.mode == MODE_NONE && !c.final_site);
}

static void absent_keys(void **state) {
    (void)state;
    model_config c = edited("hf/llama", (edit){"tie_word_embeddings", NULL}, (edit){0});
    assert_false(c.tied);
    c = edited("hf/llama", (edit){"head_dim", NULL}, (edit){"num_key_value_heads", NULL});
    assert_true(c.head_dim == 12 && c.kv_heads == 4);
    c = edited("tiny/block-h1-n4", (edit){"attnres_num_blocks", NULL}, (edit){0});
    assert_true(c.blocks_asked == 8 && c.blocks_defaulted && c.layers_per_block == 1 &&
                c.blocks_formed == 5);
    c = edited("tiny/full-h1", (edit){"attnres_gate_type", NULL},
               (edit){"attnres_use_null_source", NULL});
    assert_true(c.gate == GATE_NONE && !c.null_source);
}

static void blocks_asked_and_formed(void **state) {
    (void)state;
    static const size_t expected[][3] = {{1, 5, 1}, {2, 3, 2}, {4, 2, 3}, {5, 1, 5}, {7, 1, 5}};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        char asked[8];
        snprintf(asked, sizeof asked, "%zu", expected[i][0]);
        model_config c = edited("tiny/delta-h4-n4", (edit){"attnres_num_blocks", asked}, (edit){0});
        assert_int_equal(c.blocks_asked, expected[i][0]);
        assert_int_equal(c.layers_per_block, expected[i][1]);
        assert_int_equal(c.blocks_formed, expected[i][2]);
    }
}

static void null_sources(void **state) {
    (void)state;
    model_config c =
        edited("tiny/delta-h4-n4", (edit){"attnres_use_null_source", "false"}, (edit){0});
    assert_true(c.null_source && !c.final_site); /* delta_mh always has one */
    c = edited("tiny/delta-raw-h1", (edit){"attnres_use_null_source", "false"}, (edit){0});
    assert_false(c.null_source);
    c = edited("tiny/delta-raw-h1", (edit){"attnres_use_null_source", "true"}, (edit){0});
    assert_true(c.null_source);
    c = edited("tiny/full-h1", (edit){"attnres_use_null_source", "true"}, (edit){0});
    assert_false(c.null_source);
}

static void gates(void **state) {
    (void)state;
    static const char *const names[] = {"\"bias\"", "\"learnable_alpha\"", "\"sigmoid_scalar\"",
                                        "\"sigmoid_vector\""};
    for (size_t i = 0; i < 4; i++) {
        model_config c = edited("tiny/full-h4", (edit){"attnres_gate_type", names[i]}, (edit){0});
        assert_int_equal(c.gate, GATE_NONE + i);
    }
}

static void routing_heads(void **state) {
    (void)state;
    const edit absent[EDITS] = {{"attnres_num_heads", NULL}}, present[EDITS] = {{0}};
    model_config c;
    status st;
    assert_int_equal(read_edited("tiny/full-h4", absent, 6, &c, &st), DONE);
    assert_int_equal(c.routing_heads, 6);
    assert_int_equal(read_edited("tiny/full-h4", present, 4, &c, &st), DONE);
    assert_int_equal(read_edited("tiny/full-h4", present, 6, &c, &st), FAILED);
    assert_non_null(strstr(st.text, "\"attnres_num_heads\": found 4, but --routing-heads says 6"));
    assert_int_equal(read_edited("tiny/full-h4", absent, 5, &c, &st), FAILED);
    assert_non_null(strstr(st.text, "5 routing heads do not divide hidden_size 48"));
    assert_int_equal(read_edited("tiny/full-h1", present, 4, &c, &st), FAILED);
    assert_non_null(strstr(st.text, "mode full has one routing head"));
    assert_int_equal(read_edited("hf/llama", present, 4, &c, &st), FAILED);
    /* A single-head mode has one head whatever the key says. */
    c = edited("tiny/full-h1", (edit){"attnres_num_heads", "4"}, (edit){0});
    assert_int_equal(c.routing_heads, 1);
}

/* transformers 4 and 5 say the same thing differently. */
static void rope_of_both_versions(void **state) {
    (void)state;
    model_config c = edited("hf/llama3-rope", (edit){0}, (edit){0});
    assert_true(c.rope.kind == ROPE_LLAMA3 && c.rope.theta == 10000 && c.rope.factor == 4 &&
                c.rope.low_freq_factor == 1 && c.rope.high_freq_factor == 4 &&
                c.rope.original_positions == 16);
    c = edited("hf/llama", (edit){"rope_parameters", NULL}, (edit){0});
    assert_true(c.rope.kind == ROPE_DEFAULT && c.rope.theta == 10000);
    c = edited("tiny/standard-llama", (edit){"rope_theta", "500000.0"},
               (edit){"rope_scaling", "{\"type\":\"linear\",\"factor\":2.0}"});
    assert_true(c.rope.kind == ROPE_LINEAR && c.rope.theta == 500000 && c.rope.factor == 2);
    c = edited("tiny/standard-llama", (edit){"rope_scaling", "null"}, (edit){0});
    assert_true(c.rope.kind == ROPE_DEFAULT);
    c = edited("hf/llama", (edit){"rope_parameters", "{\"rope_theta\":2e6}"}, (edit){0});
    assert_true(c.rope.kind == ROPE_DEFAULT && c.rope.theta == 2e6);
}

/* Frequencies of Llama 3.1's own settings and of the golden's, computed by transformers' formula.
 */
static void rope_llama3_frequencies(void **state) {
    (void)state;
    const rope_config golden = {ROPE_LLAMA3, 1e4, 4, 1, 4, 16},
                      real = {ROPE_LLAMA3, 5e5, 8, 1, 4, 8192};
    const double small[] = {0.63661977236758138,   0.053860867250797098,   0.01160397208403195,
                            0.0025000000000000001, 0.00053860867250797107, 0.00011603972084031942};
    const size_t at[] = {0, 20, 30, 33, 40, 63};
    const double large[] = {1,
                            0.016560440080994446,
                            0.0013718935677611381,
                            0.00031269375038406517,
                            3.4281021959525912e-05,
                            3.0689259889145111e-07};
    double frequency[64];
    rope_frequencies(&golden, 12, frequency);
    for (size_t i = 0; i < 6; i++)
        assert_true(fabs(frequency[i] / small[i] - 1) < 1e-12);
    rope_frequencies(&real, 128, frequency);
    for (size_t i = 0; i < 6; i++)
        assert_true(fabs(frequency[at[i]] / large[i] - 1) < 1e-12);
}

static void rope_tables_far_out(void **state) {
    (void)state;
    const rope_config plain = {.kind = ROPE_DEFAULT, .theta = 1e4};
    const rope_config halved = {.kind = ROPE_LINEAR, .theta = 1e4, .factor = 2};
    double frequency[2];
    float cosine[4], sine[4];
    rope_frequencies(&plain, 4, frequency);
    rope_table(frequency, 2, 100000, 2, cosine, sine);
    assert_true(fabs((double)cosine[0] + 0.99936080743821218) < 1e-7); /* cos 100000 */
    assert_true(fabs((double)sine[0] - 0.035748797972016508) < 1e-7);
    assert_true(fabs((double)cosine[3] - cos(1000.01)) < 1e-7);
    rope_frequencies(&halved, 4, frequency);
    assert_true(frequency[0] == 0.5 && fabs(frequency[1] - 0.005) < 1e-15);
}

/* Windows that no layer uses are no reason to refuse. */
static void sliding_windows_not_in_use(void **state) {
    (void)state;
    (void)edited("hf/qwen2", (edit){"sliding_window", "16"}, (edit){"layer_types", NULL});
    (void)edited("hf/llama", (edit){"sliding_window", "16"}, (edit){0});
    const edit beyond[EDITS] = {{"layer_types", NULL},
                                {"use_sliding_window", "true"},
                                {"sliding_window", "64"},
                                {"max_window_layers", "0"}};
    const edit later[EDITS] = {{"layer_types", NULL},
                               {"use_sliding_window", "true"},
                               {"sliding_window", "16"}}; /* max_window_layers 28 of 3 */
    model_config c;
    status st;
    assert_int_equal(read_edited("hf/qwen2", beyond, 0, &c, &st), DONE);
    assert_int_equal(read_edited("hf/qwen2", later, 0, &c, &st), DONE);
}

static const struct {
    const char *golden;
    edit edits[EDITS];
    const char *parts[3];
} refused[] = {
    {"hf/gpt2", {{0}}, {"\"model_type\": \"gpt2\" is not read", "known: llama, qwen2, qwen3"}},
    {"hf/llama", {{"model_type", NULL}}, {"\"model_type\": absent", "known:"}},
    {"hf/llama", {{"model_type", "7"}}, {"\"model_type\"", "found 7"}},
    {"hf/llama",
     {{"attnres_block_size", "4"}},
     {"\"attnres_block_size\" belongs to the flash-linear-attention layout", "known:"}},
    {"hf/llama",
     {{"attn_res_block_size", "4"}},
     {"\"attn_res_block_size\" belongs to the Kimi K3 layout", "keys seen: attn_res_block_size"}},
    {"hf/llama",
     {{"attnres_mode", "\"full\""}},
     {"\"attnres_mode\": found \"full\"", "standard family"}},
    {"tiny/full-h1",
     {{"attnres_mode", "\"fulll\""}},
     {"\"attnres_mode\": found \"fulll\"",
      "none, full, full_mh, block, block_mh, delta, delta_block, delta_mh"}},
    {"tiny/full-h1", {{"attnres_mode", NULL}}, {"\"attnres_mode\": absent", "full_mh"}},
    {"tiny/full-h4",
     {{"attnres_num_heads", NULL}},
     {"\"attnres_num_heads\": absent", "mode full_mh", "--routing-heads"}},
    {"tiny/delta-h4-n2", {{"attnres_num_heads", NULL}}, {"\"attnres_num_heads\": absent"}},
    {"tiny/full-h4",
     {{"attnres_num_heads", "5"}},
     {"\"attnres_num_heads\": 5 routing heads do not divide hidden_size 48"}},
    {"tiny/full-h4", {{"attnres_num_heads", "0"}}, {"\"attnres_num_heads\"", "found 0"}},
    {"tiny/full-h4", {{"attnres_num_heads", "4.5"}}, {"\"attnres_num_heads\"", "found 4.5"}},
    {"tiny/full-h4",
     {{"attnres_gate_type", "\"tanh\""}},
     {"\"attnres_gate_type\": found \"tanh\"", "learnable_alpha, sigmoid_scalar, sigmoid_vector"}},
    {"tiny/block-h1-n2", {{"attnres_num_blocks", "0"}}, {"\"attnres_num_blocks\"", "found 0"}},
    {"hf/llama", {{"vocab_size", NULL}}, {"\"vocab_size\": absent"}},
    {"hf/llama", {{"hidden_size", "-48"}}, {"\"hidden_size\"", "found -48", "from 1 to"}},
    {"hf/llama", {{"hidden_size", "\"48\""}}, {"\"hidden_size\"", "whole number"}},
    {"hf/llama", {{"num_hidden_layers", "1e9"}}, {"\"num_hidden_layers\"", "from 1 to 4096"}},
    {"hf/llama", {{"vocab_size", "1e300"}}, {"\"vocab_size\"", "whole number"}},
    {"hf/llama", {{"num_key_value_heads", "3"}}, {"\"num_key_value_heads\": 3 does not divide"}},
    {"hf/llama",
     {{"head_dim", NULL}, {"num_attention_heads", "5"}, {"num_key_value_heads", "5"}},
     {"\"head_dim\": absent", "5", "48"}},
    {"hf/llama", {{"head_dim", "7"}}, {"\"head_dim\": 7", "even"}},
    {"hf/llama", {{"rms_norm_eps", "0"}}, {"\"rms_norm_eps\"", "found 0"}},
    {"hf/llama", {{"tie_word_embeddings", "1"}}, {"\"tie_word_embeddings\"", "true or false"}},
    {"hf/llama", {{"hidden_act", "\"gelu\""}}, {"\"hidden_act\": found \"gelu\"", "silu"}},
    {"hf/llama", {{"quantization_config", "{}"}}, {"\"quantization_config\"", "not read"}},
    {"hf/qwen3",
     {{"layer_types", "[\"full_attention\",\"sliding_attention\"]"}},
     {"\"layer_types\": layer 1 is \"sliding_attention\"", "full_attention"}},
    {"hf/qwen2",
     {{"layer_types", NULL}, {"use_sliding_window", "true"}, {"sliding_window", "null"}},
     {NULL}}, /* no window: accepted */
    {"hf/llama",
     {{"rope_parameters", "{\"rope_type\":\"yarn\",\"factor\":4}"}},
     {"rope_parameters: \"rope_type\": found \"yarn\"", "default, linear, llama3"}},
    {"tiny/standard-llama",
     {{"rope_scaling", "{\"type\":\"dynamic\",\"factor\":4}"}},
     {"rope_scaling: \"rope_type\": found \"dynamic\""}},
    {"tiny/standard-llama",
     {{"rope_scaling", "{\"rope_type\":\"longrope\"}"}},
     {"found \"longrope\""}},
    {"tiny/standard-llama",
     {{"rope_scaling", "{\"rope_type\":\"linear\"}"}},
     {"rope_scaling: \"factor\": absent"}},
    {"tiny/standard-llama",
     {{"rope_scaling", "{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1}"}},
     {"rope_scaling: \"high_freq_factor\": absent"}},
    {"tiny/standard-llama",
     {{"rope_scaling", "{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
                       "\"high_freq_factor\":4,\"original_max_position_embeddings\":16}"}},
     {"\"high_freq_factor\": 4, expected more than"}},
    {"tiny/standard-llama", {{"rope_scaling", "[1]"}}, {"rope_scaling", "JSON object"}},
    {"hf/llama",
     {{"rope_parameters", "{\"full_attention\":{\"rope_type\":\"default\"}}"}},
     {"rope_parameters: one rotary embedding"}},
    {"hf/llama", {{"partial_rotary_factor", "0.5"}}, {"\"partial_rotary_factor\": 0.5"}},
};

static void what_is_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        model_config c;
        status st = {""};
        int rc = read_edited(refused[i].golden, refused[i].edits, 0, &c, &st);
        if (rc != (refused[i].parts[0] ? FAILED : DONE))
            fail_msg("row %zu: returned %d: %s", i, rc, st.text);
        for (size_t p = 0; p < 3 && refused[i].parts[p]; p++)
            if (!strstr(st.text, refused[i].parts[p]) || !strstr(st.text, "config.json"))
                fail_msg("row %zu: \"%s\" lacks \"%s\"", i, st.text, refused[i].parts[p]);
    }
}

static void a_window_in_use_is_refused(void **state) {
    (void)state;
    status st;
    model_config c;
    const char *text = "{\"model_type\":\"qwen2\",\"vocab_size\":61,\"hidden_size\":48,"
                       "\"num_hidden_layers\":3,\"num_attention_heads\":4,\"intermediate_size\":80,"
                       "\"max_position_embeddings\":64,\"use_sliding_window\":true,"
                       "\"sliding_window\":16,\"max_window_layers\":2}";
    assert_int_equal(config_parse(text, strlen(text), "here", 0, &c, &st), FAILED);
    assert_non_null(
        strstr(st.text, "here: \"use_sliding_window\": a window of 16 tokens from layer 2"));
}

static void files(void **state) {
    (void)state;
    status st;
    model_config c;
    char *dir = scratch_path("config"), *text, path[512];
    assert_int_equal(config_read("no/such/folder", 0, &c, &text, &st), FAILED);
    assert_non_null(strstr(st.text, "no/such/folder/config.json"));
    assert_null(text);
    assert_int_equal(checkpoint_copy("datasets/golden/hf/llama", dir), 0);
    assert_int_equal(config_read(dir, 0, &c, &text, &st), DONE);
    assert_non_null(strstr(text, "\"model_type\": \"llama\""));
    free(text);
    snprintf(path, sizeof path, "%s/config.json", dir);
    static const char *const bad[] = {"", "{", "[]", "{} {}", "\"text\"", "{\"model_type\":"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(file_write(path, bad[i], strlen(bad[i])), 0);
        assert_int_equal(config_read(dir, 0, &c, NULL, &st), FAILED);
        assert_non_null(strstr(st.text, "config.json"));
    }
    free(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families),
        cmocka_unit_test(standard_model_with_routing_keys),
        cmocka_unit_test(absent_keys),
        cmocka_unit_test(blocks_asked_and_formed),
        cmocka_unit_test(null_sources),
        cmocka_unit_test(gates),
        cmocka_unit_test(routing_heads),
        cmocka_unit_test(rope_of_both_versions),
        cmocka_unit_test(rope_llama3_frequencies),
        cmocka_unit_test(rope_tables_far_out),
        cmocka_unit_test(sliding_windows_not_in_use),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(a_window_in_use_is_refused),
        cmocka_unit_test(files),
    };
    option_quiet = true;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
