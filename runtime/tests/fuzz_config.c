/* fuzz_config SECONDS SEED - damaged config.json texts must never crash the reader or hold it up,
 * and what is accepted must be a configuration that the rest of the program can compute with. */
#include "runtime/base/options.h"
#include "runtime/depth_program.h"
#include "runtime/rope.h"
#include "runtime/tests/fuzz.h"

#include <math.h>

static const char *const texts[] = {
    "{\"model_type\": \"qwen3_attnres\", \"vocab_size\": 61, \"hidden_size\": 48, "
    "\"num_hidden_layers\": 5, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
    "\"head_dim\": 12, \"intermediate_size\": 80, \"rms_norm_eps\": 1e-06, \"rope_theta\": "
    "10000.0, "
    "\"max_position_embeddings\": 64, \"tie_word_embeddings\": true, \"hidden_act\": \"silu\", "
    "\"attention_bias\": false, \"attnres_mode\": \"block_mh\", \"attnres_num_blocks\": 2, "
    "\"attnres_num_heads\": 4, \"attnres_gate_type\": \"bias\", "
    "\"attnres_use_null_source\": false, \"torch_dtype\": \"float32\"}",
    "{\"attention_bias\": false, \"dtype\": \"float32\", \"head_dim\": 12, \"hidden_act\": "
    "\"silu\", "
    "\"hidden_size\": 48, \"intermediate_size\": 80, \"max_position_embeddings\": 64, "
    "\"mlp_bias\": false, \"model_type\": \"llama\", \"num_attention_heads\": 4, "
    "\"num_hidden_layers\": 3, \"num_key_value_heads\": 2, \"rms_norm_eps\": 1e-06, "
    "\"rope_parameters\": {\"factor\": 4.0, \"high_freq_factor\": 4.0, \"low_freq_factor\": 1.0, "
    "\"original_max_position_embeddings\": 16, \"rope_theta\": 10000.0, \"rope_type\": "
    "\"llama3\"}, "
    "\"tie_word_embeddings\": false, \"vocab_size\": 61}",
    "{\"model_type\": \"qwen2\", \"vocab_size\": 61, \"hidden_size\": 48, \"num_hidden_layers\": "
    "3, "
    "\"num_attention_heads\": 4, \"intermediate_size\": 80, \"max_position_embeddings\": 64, "
    "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0}, \"use_sliding_window\": true, "
    "\"sliding_window\": 16, \"max_window_layers\": 3, "
    "\"layer_types\": [\"full_attention\", \"full_attention\", \"full_attention\"]}",
    "{\"model_type\": \"fathom_pruned\", \"removal\": \"zero_output\", \"kept\": [\"L0.mlp\", "
    "\"L1.attn\", \"L2.attn\", \"L2.mlp\"], \"parent_config\": {\"model_type\": \"llama_attnres\", "
    "\"vocab_size\": 61, \"hidden_size\": 48, \"num_hidden_layers\": 3, "
    "\"num_attention_heads\": 4, \"intermediate_size\": 80, \"max_position_embeddings\": 64, "
    "\"attnres_mode\": \"block\", \"attnres_num_blocks\": 2}}",
};

static const char *const words[] = {
    "0",
    "1",
    "-1",
    "2",
    "3",
    "48",
    "1e308",
    "1e999",
    "4294967296",
    "9e15",
    "0.5",
    "null",
    "true",
    "false",
    "\"\"",
    "[]",
    "{}",
    "\"full\"",
    "\"block\"",
    "\"delta\"",
    "\"delta_mh\"",
    "\"none\"",
    "\"full_mh\"",
    "\"llama\"",
    "\"linear\"",
    "\"type\"",
    "\"yarn\"",
    "\"qwen3\"",
    "\"delta_block\"",
    "\"L1.attn\"",
    "\"drop_source\"",
    "\"fathom_pruned\"",
    "\"llama_attnres\"",
    "\"learnable_alpha\"",
    "\"sigmoid_vector\"",
    "\\u0000",
    "\"sliding_attention\"",
    "\"attnres_mode\": \"delta\", ",
    "\"model_type\": \"qwen3_attnres\", ",
};
enum { TEXTS = sizeof texts / sizeof *texts, WORDS = sizeof words / sizeof *words };

static bool rope_is_usable(const model_config *c) {
    double frequency[64];
    if (c->head_dim > 128)
        return true;
    rope_frequencies(&c->rope, c->head_dim, frequency);
    for (size_t i = 0; i < c->head_dim / 2; i++)
        if (!isfinite(frequency[i]) || frequency[i] < 0)
            return false;
    return true;
}

static bool program_is_usable(const model_config *c) {
    depth_program *p;
    status st;
    if (c->layers > 16)
        return true;
    if (depth_program_build(c, NULL, &p, &st))
        return false;
    bool good = p->plan.sites == 2 * c->layers + 1;
    depth_program_free(p);
    return good;
}

static bool config_is_usable(const model_config *c) {
    bool blocks = mode_is_block(c->mode) || c->mode == MODE_DELTA_BLOCK || c->mode == MODE_DELTA_MH;
    return memchr(c->model_type, 0, sizeof c->model_type) && c->vocabulary && c->width &&
           c->layers && c->positions && c->mlp_width && c->kv_heads && c->head_dim &&
           c->query_heads % c->kv_heads == 0 && c->head_dim % 2 == 0 && c->eps > 0 &&
           c->routing_heads && c->width % c->routing_heads == 0 &&
           (c->blocks_asked > 0) == blocks &&
           (!blocks || (c->blocks_formed && c->blocks_formed <= c->layers &&
                        c->blocks_formed <= c->blocks_asked)) &&
           (c->mode != MODE_NONE || (c->gate == GATE_NONE && !c->null_source)) &&
           rope_is_usable(c) && program_is_usable(c);
}

static int try_config(void) {
    static sample s;
    const char *text = texts[below(TEXTS)];
    s.size = strlen(text);
    memcpy(s.text, text, s.size);
    for (size_t n = below(4); n; n--)
        damage(&s, words, WORDS);
    model_config c;
    status st = {""};
    if (config_parse(s.text, s.size, "config.json", below(2) * below(9), &c, &st))
        return *st.text && memchr(st.text, 0, sizeof st.text) ? 0 : -1;
    return config_is_usable(&c) ? 1 : -1;
}

int main(int argc, char **argv) {
    option_quiet = true;
    return fuzz_main(argc, argv, try_config);
}
