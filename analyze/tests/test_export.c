/* An exported model loads with the losses of the model it was cut from, to the last bit, in every
 * mode; a public format is kept only where it says the same. */
#include "analyze/export_model.h"
#include "analyze/prune_units.h"
#include "runtime/base/json.h"
#include "runtime/safetensors_write.h"
#include "runtime/tests/checkpoint_edit.h"
#include "runtime/tests/golden.h"
#include "runtime/tests/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

enum { LAYERS = 5, SUBLAYERS = 2 * LAYERS, TOKENS = 14 };

static const char *const MODES[] = {"block-h1-n1",   "block-h1-n2",    "block-h1-n4",
                                    "block-h3-n5",   "delta-h1-n5",    "delta-h4-n2",
                                    "delta-raw-h1",  "full-h1",        "full-h4",
                                    "full-h4-alpha", "standard-llama", "standard-qwen3"};
static const char *const SETS[] = {"L1,L2", "L0", "L4", "L3.attn,L4.mlp", "L0.attn", "L0,L1,L3,L4"};

static void forget(const char *folder) {
    static const char *const files[] = {"config.json", "model.safetensors", "tokenizer.json"};
    char path[600];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        unlink(path);
    }
    rmdir(folder);
}

static void pass(run *r) {
    int32_t id[TOKENS];
    const size_t lengths[] = {TOKENS};
    for (size_t i = 0; i < TOKENS; i++)
        id[i] = (int32_t)(i * i + 5) % 61;
    run_forward(r, id, TOKENS, lengths, 1);
}

static void mark(const run *r, const char *names, bool *set) {
    char text[64], *state = NULL;
    status st;
    memset(set, 0, SUBLAYERS * sizeof *set);
    snprintf(text, sizeof text, "%s", names);
    for (char *name = strtok_r(text, ",", &state); name; name = strtok_r(NULL, ",", &state)) {
        const char *one = name;
        const option_list item = {1, &one};
        assert_int_equal(units_parse(&item, "", model_configuration(r->model), set, &st), DONE);
    }
}

static int export_to(const run *r, const char *folder, const bool *set, removal how, status *st) {
    const export_options options = {.folder = folder,
                                    .removed = set,
                                    .removal = how,
                                    .command = "fathom prune \"x\"",
                                    .parent_sha256 = "abc"};
    return export_model(r->model, &options, st);
}

/* The folder's losses are those of `r` as it ran last. */
static void hold_losses(const char *folder, const run *r) {
    run again;
    run_open(&again, folder, 1);
    pass(&again);
    assert_int_equal(again.rows, r->rows);
    assert_memory_equal(again.loss, r->loss, (r->rows - 1) * sizeof *r->loss);
    assert_memory_equal(again.logits, r->logits,
                        r->rows * model_configuration(r->model)->vocabulary * sizeof(float));
    run_close(&again);
}

static void every_mode_comes_back_with_the_same_bits(void **state) {
    (void)state;
    char *folder = scratch_path("exported");
    for (size_t m = 0; m < sizeof MODES / sizeof *MODES; m++)
        for (size_t k = 0; k < sizeof SETS / sizeof *SETS; k++)
            for (removal how = DROP_SOURCE; how <= ZERO_OUTPUT; how++) {
                char path[256];
                bool set[SUBLAYERS];
                status st;
                run r;
                forget(folder);
                snprintf(path, sizeof path, "datasets/golden/tiny/%s", MODES[m]);
                run_open(&r, path, 1);
                mark(&r, SETS[k], set);
                if (export_to(&r, folder, set, how, &st))
                    fail_msg("%s %s: %s", MODES[m], SETS[k], st.text);
                const removed_set removed = {set, how};
                run_program(&r, &removed);
                pass(&r);
                hold_losses(folder, &r);

                model_config c;
                assert_int_equal(config_read(folder, 0, &c, NULL, &st), DONE);
                const bool whole = !strchr(SETS[k], '.');
                const bool plain =
                    whole && (strncmp(MODES[m], "standard", 8) == 0 ||
                              (strncmp(MODES[m], "full", 4) == 0 && how == DROP_SOURCE));
                assert_int_equal(c.pruned, !plain);
                run_close(&r);
            }
    forget(folder);
    free(folder);
}

static void tensors_are_copied_byte_for_byte_and_renumbered(void **state) {
    (void)state;
    char *folder = scratch_path("exported");
    run r;
    status st;
    bool set[SUBLAYERS];
    checkpoint *ck;
    forget(folder);
    run_open(&r, "datasets/golden/tiny/full-h4", 1);
    mark(&r, "L1,L3", set);
    assert_int_equal(export_to(&r, folder, set, DROP_SOURCE, &st), DONE);
    assert_int_equal(checkpoint_open(folder, &ck, &st), DONE);
    static const size_t old[] = {0, 2, 4};
    for (size_t i = 0; i < checkpoint_tensors(ck); i++) {
        const tensor_info *new = checkpoint_tensor(ck, i);
        char name[128];
        long layer;
        tensor_sublayer(new->name, &layer);
        snprintf(name, sizeof name, "%s", new->name);
        if (layer >= 0)
            snprintf(name, sizeof name, "model.layers.%zu%s", old[layer],
                     strchr(new->name + strlen("model.layers."), '.'));
        const tensor_info *from = checkpoint_find(model_checkpoint(r.model), name);
        assert_non_null(from);
        assert_string_equal(new->dtype_text, from->dtype_text);
        assert_true(new->bytes == from->bytes);
        char *a = malloc(new->bytes), *b = malloc(new->bytes);
        assert_int_equal(checkpoint_read_raw(ck, new, a, &st), DONE);
        assert_int_equal(checkpoint_read_raw(model_checkpoint(r.model), from, b, &st), DONE);
        assert_memory_equal(a, b, new->bytes);
        free(a);
        free(b);
    }
    assert_string_equal(checkpoint_metadata(ck, "format"), "pt");
    const char *origin = checkpoint_metadata(ck, "fathom_pruned");
    assert_non_null(strstr(origin, "\"parent_layers\":[0,2,4]"));
    assert_non_null(strstr(origin, "\"parent_sha256\":\"abc\""));
    assert_non_null(strstr(origin, "fathom prune \\\"x\\\""));
    checkpoint_close(ck);
    run_close(&r);
    forget(folder);
    free(folder);
}

static void arrays_of_layers_are_cut_and_numbers_kept(void **state) {
    (void)state;
    char *folder = scratch_path("exported"), *parent = scratch_path("parent"), path[600];
    run r;
    status st;
    bool set[SUBLAYERS];
    forget(folder);
    assert_int_equal(checkpoint_copy("datasets/golden/tiny/standard-qwen3", parent), 0);
    assert_int_equal(edit_config(parent, "layer_types",
                                 "[\"full_attention\",\"full_attention\",\"full_attention\","
                                 "\"full_attention\",\"full_attention\"]"),
                     1);
    assert_int_equal(edit_config(parent, "other_per_layer", "[10,11,12,13,14]"), 1);
    assert_int_equal(edit_config(parent, "rope_theta", "12345.678901234567"), 1);
    snprintf(path, sizeof path, "%s/tokenizer.json", parent);
    assert_int_equal(file_write(path, "{}", 2), 0);
    run_open(&r, parent, 1);
    mark(&r, "L0,L3", set);
    if (export_to(&r, folder, set, DROP_SOURCE, &st))
        fail_msg("%s", st.text);
    cJSON *json;
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_int_equal(json_read(path, 1 << 20, &json, &st), DONE);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(json, "layer_types")), 3);
    const cJSON *other = cJSON_GetObjectItem(json, "other_per_layer");
    assert_int_equal(cJSON_GetArraySize(other), 3);
    assert_true(cJSON_GetArrayItem(other, 0)->valuedouble == 11);
    assert_true(cJSON_GetArrayItem(other, 2)->valuedouble == 14);
    assert_true(cJSON_GetObjectItem(json, "rope_theta")->valuedouble == 12345.678901234567);
    assert_true(cJSON_GetObjectItem(json, "num_hidden_layers")->valuedouble == 3);
    cJSON_Delete(json);
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    assert_int_equal(access(path, F_OK), 0);
    run_close(&r);
    forget(folder);
    forget(parent);
    free(folder);
    free(parent);
}

/* An exported model can be cut again; numbers stay those of the first. */
static void a_pruned_model_is_pruned_again(void **state) {
    (void)state;
    char *folder = scratch_path("exported"), *second = scratch_path("exported2");
    static const char *const names[] = {"block-h1-n2", "full-h1", "delta-h4-n2"};
    for (size_t m = 0; m < 3; m++) {
        char path[256];
        run whole, cut;
        status st;
        bool first[SUBLAYERS], then[SUBLAYERS], both[SUBLAYERS];
        forget(folder);
        forget(second);
        snprintf(path, sizeof path, "datasets/golden/tiny/%s", names[m]);
        run_open(&whole, path, 1);
        mark(&whole, "L0.attn", first);
        assert_int_equal(export_to(&whole, folder, first, ZERO_OUTPUT, &st), DONE);
        run_open(&cut, folder, 1);
        mark(&cut, "L3", then);
        assert_int_equal(export_to(&cut, second, then, DROP_SOURCE, &st), FAILED);
        assert_non_null(strstr(st.text, "--removal zero_output"));
        assert_int_not_equal(access(second, F_OK), 0);
        if (export_to(&cut, second, then, ZERO_OUTPUT, &st))
            fail_msg("%s: %s", names[m], st.text);
        for (size_t i = 0; i < SUBLAYERS; i++)
            both[i] = first[i] || then[i];
        const removed_set removed = {both, ZERO_OUTPUT};
        run_program(&whole, &removed);
        pass(&whole);
        hold_losses(second, &whole);
        run_close(&cut);
        run_close(&whole);
    }
    forget(folder);
    forget(second);
    free(folder);
    free(second);
}

static void what_cannot_be_exported_leaves_nothing(void **state) {
    (void)state;
    char *folder = scratch_path("exported"), path[600];
    run r;
    status st;
    bool set[SUBLAYERS];
    forget(folder);
    run_open(&r, "datasets/golden/tiny/full-h4", 1);
    memset(set, true, sizeof set);
    assert_int_equal(export_to(&r, folder, set, DROP_SOURCE, &st), FAILED);
    assert_non_null(strstr(st.text, "every sublayer is removed"));
    assert_int_not_equal(access(folder, F_OK), 0);

    mark(&r, "L1", set);
    assert_int_equal(mkdir(folder, 0777), 0);
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    assert_int_equal(file_write(path, "{}", 2), 0);
    assert_int_equal(export_to(&r, folder, set, DROP_SOURCE, &st), FAILED);
    assert_non_null(strstr(st.text, "holds tokenizer.json, expected a new or an empty folder"));
    assert_int_equal(access(path, F_OK), 0);
    unlink(path);
    assert_int_equal(export_to(&r, folder, set, DROP_SOURCE, &st), DONE); /* empty will do */
    run_close(&r);
    forget(folder);
    free(folder);
}

static void a_name_given_twice_is_refused(void **state) {
    (void)state;
    char *path = scratch_path("twice.safetensors");
    checkpoint *ck;
    status st;
    assert_int_equal(checkpoint_open("datasets/golden/tiny/full-h1", &ck, &st), DONE);
    const tensor_info *t = checkpoint_tensor(ck, 0);
    const tensor_copy copy[] = {{"a", t}, {"b", t}, {"a", t}};
    assert_int_equal(safetensors_write(path, ck, copy, 3, NULL, &st), FAILED);
    assert_non_null(strstr(st.text, "a: named twice"));
    assert_int_not_equal(access(path, F_OK), 0);
    assert_int_equal(safetensors_write(path, ck, copy, 2, NULL, &st), DONE);
    checkpoint_close(ck);
    assert_int_equal(checkpoint_open(path, &ck, &st), DONE);
    assert_int_equal(checkpoint_tensors(ck), 2);
    checkpoint_close(ck);
    unlink(path);
    free(path);
}

static void a_wrong_pruned_configuration_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *key, *json, *text;
    } cases[] = {
        {"kept", NULL, "\"kept\": absent or empty"},
        {"kept", "[]", "\"kept\": absent or empty"},
        {"kept", "[\"L0.attn\",\"L5.mlp\"]", "found \"L5.mlp\", expected sublayers L0.attn to L4"},
        {"kept", "[\"L0.attn\",\"L0.attn\"]", "found \"L0.attn\" twice"},
        {"kept", "[3]", "found \"?\""},
        {"kept", "[\"L0.attn\"]", "unexpected router tensors"},
        {"removal", "\"none\"", "expected one of drop_source, zero_output"},
        {"removal", NULL, "\"removal\": absent"},
        {"parent_config", NULL, "parent_config: absent or no object"},
        {"parent_config", "{\"model_type\":\"fathom_pruned\"}", "\"fathom_pruned\" is not read"},
    };
    char *folder = scratch_path("exported"), *copy = scratch_path("wrong");
    run r;
    status st;
    bool set[SUBLAYERS];
    forget(folder);
    run_open(&r, "datasets/golden/tiny/block-h1-n2", 1);
    mark(&r, "L1.mlp", set);
    assert_int_equal(export_to(&r, folder, set, DROP_SOURCE, &st), DONE);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const model_options options = {.describe = true};
        model *m;
        assert_int_equal(checkpoint_copy(folder, copy), 0);
        assert_int_equal(edit_config(copy, cases[i].key, cases[i].json), 1);
        assert_int_equal(model_open(copy, &options, &m, &st), FAILED);
        if (!strstr(st.text, cases[i].text))
            fail_msg("%s = %s: \"%s\" lacks \"%s\"", cases[i].key, cases[i].json, st.text,
                     cases[i].text);
    }
    run_close(&r);
    forget(folder);
    forget(copy);
    free(folder);
    free(copy);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mode_comes_back_with_the_same_bits),
        cmocka_unit_test(tensors_are_copied_byte_for_byte_and_renumbered),
        cmocka_unit_test(arrays_of_layers_are_cut_and_numbers_kept),
        cmocka_unit_test(a_pruned_model_is_pruned_again),
        cmocka_unit_test(what_cannot_be_exported_leaves_nothing),
        cmocka_unit_test(a_name_given_twice_is_refused),
        cmocka_unit_test(a_wrong_pruned_configuration_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
