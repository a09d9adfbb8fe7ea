/* test_json.c - what is refused in a JSON file and what comes out of it. */
#include "runtime/base/json.h"
#include "runtime/tests/scratch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static cJSON *parse(const char *text) {
    status st;
    cJSON *json;
    if (json_parse(text, strlen(text), "t.json", &json, &st))
        fail_msg("%s", st.text);
    return json;
}

static void expect_refusal(const char *text, size_t bytes, const char *reason) {
    status st;
    cJSON *json;
    assert_int_equal(json_parse(text, bytes, "t.json", &json, &st), FAILED);
    assert_null(json);
    assert_string_equal(st.text, reason);
}

static void text_after_the_value_is_refused(void **state) {
    (void)state;
    cJSON_Delete(parse("{\"a\": 1} \r\n\t "));
    expect_refusal("{\"a\": 1} x", 10,
                   "t.json: line 1, column 10: text after the end of the JSON value");
    expect_refusal("{}\0", 3, "t.json: line 1, column 3: text after the end of the JSON value");
    expect_refusal("", 0, "t.json: is empty, expected JSON");
    expect_refusal("{\n \"a\" 1}", 9, "t.json: line 2, column 6: not valid JSON");
}

static void the_text_need_not_end_in_a_zero(void **state) {
    (void)state;
    static const char *const cut[] = {"{\"1\":1,", "{\"a\": 12", "[1", "\"abc", "tru", "{"};
    status st;
    cJSON *json;
    for (size_t i = 0; i < sizeof cut / sizeof *cut; i++) {
        char *exact = malloc(strlen(cut[i])); /* so that the sanitizer sees a byte too many */
        assert_non_null(exact);
        memcpy(exact, cut[i], strlen(cut[i]));
        assert_int_equal(json_parse(exact, strlen(cut[i]), "t.json", &json, &st), FAILED);
        free(exact);
    }
}

static void deep_nesting_is_refused(void **state) {
    (void)state;
    enum { DEPTH = 100000 };
    char *text = malloc(DEPTH);
    assert_non_null(text);
    memset(text, '[', DEPTH);
    status st;
    cJSON *json;
    assert_int_equal(json_parse(text, DEPTH, "t.json", &json, &st), FAILED);
    free(text);
}

static void whole_numbers_are_exact_beyond_32_bits(void **state) {
    (void)state;
    status st;
    size_t value = 0;
    cJSON *json = parse("{\"offset\": 1099511627777, \"half\": 1.5, \"below\": -1, \"big\": 1e300,"
                        " \"text\": \"7\"}");
    assert_int_equal(json_size(json, "t.json", "offset", 0, SIZE_MAX, &value, &st), DONE);
    assert_int_equal(value, 1099511627777);
    assert_int_equal(json_size(json, "t.json", "offset", 1, 4096, &value, &st), FAILED);
    assert_string_equal(st.text, "t.json: \"offset\": found 1099511627777, expected a whole number "
                                 "from 1 to 4096");
    assert_int_equal(json_size(json, "t.json", "half", 0, SIZE_MAX, &value, &st), FAILED);
    assert_int_equal(json_size(json, "t.json", "below", 0, SIZE_MAX, &value, &st), FAILED);
    assert_int_equal(json_size(json, "t.json", "big", 0, SIZE_MAX, &value, &st), FAILED);
    assert_int_equal(json_size(json, "t.json", "text", 0, SIZE_MAX, &value, &st), FAILED);
    assert_string_equal(st.text,
                        "t.json: \"text\": found \"7\", expected a whole number, at least 0");
    assert_int_equal(value, 1099511627777);
    cJSON_Delete(json);
}

static void keys_have_case_and_the_first_counts(void **state) {
    (void)state;
    status st;
    size_t value = 0;
    cJSON *json = parse("{\"Size\": 1, \"size\": 2, \"size\": 3}");
    assert_int_equal(json_size(json, "t.json", "size", 0, 9, &value, &st), DONE);
    assert_int_equal(value, 2);
    assert_false(json_has(json, "SIZE"));
    cJSON_Delete(json);
}

static void absent_and_null_leave_the_default(void **state) {
    (void)state;
    status st;
    size_t size = 5;
    double real = 0.5;
    bool flag = true;
    const char *text = "default";
    cJSON *json = parse("{\"size\": null, \"text\": null}");
    assert_int_equal(json_size(json, "t", "size", 1, 9, &size, &st), DONE);
    assert_int_equal(json_real(json, "t", "real", 0, 1, &real, &st), DONE);
    assert_int_equal(json_bool(json, "t", "flag", &flag, &st), DONE);
    assert_int_equal(json_text(json, "t", "text", &text, &st), DONE);
    assert_int_equal(size, 5);
    assert_true(real == 0.5 && flag);
    assert_string_equal(text, "default");
    assert_false(json_has(json, "size"));
    cJSON_Delete(json);
}

static void the_other_kinds_are_checked_too(void **state) {
    (void)state;
    status st;
    double real = 0;
    bool flag = true;
    const char *text = NULL;
    cJSON *json = parse("{\"eps\": 1e-06, \"inf\": 1e999, \"no\": false, \"name\": \"llama\"}");
    assert_int_equal(json_real(json, "t", "eps", 0, 1, &real, &st), DONE);
    assert_true(real == 1e-6);
    assert_int_equal(json_real(json, "t", "inf", -INFINITY, INFINITY, &real, &st), FAILED);
    assert_int_equal(json_real(json, "t", "eps", 0.1, 1, &real, &st), FAILED);
    assert_int_equal(json_bool(json, "t", "no", &flag, &st), DONE);
    assert_false(flag);
    assert_int_equal(json_bool(json, "t", "name", &flag, &st), FAILED);
    assert_int_equal(json_text(json, "t", "name", &text, &st), DONE);
    assert_string_equal(text, "llama");
    assert_int_equal(json_text(json, "t", "eps", &text, &st), FAILED);
    cJSON_Delete(json);
    json = parse("[1]");
    assert_int_equal(json_text(json, "t", "name", &text, &st), FAILED);
    assert_string_equal(st.text, "t: expected a JSON object holding \"name\"");
    cJSON_Delete(json);
}

static void files_are_read_up_to_a_limit(void **state) {
    (void)state;
    status st;
    cJSON *json;
    char *path = scratch_path("t.json"), *missing = scratch_path("none.json");
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "{\"a\":%200000d}", 7);
    fclose(file);
    assert_int_equal(json_read(path, 1 << 20, &json, &st), DONE);
    cJSON_Delete(json);
    assert_int_equal(json_read(path, 1000, &json, &st), FAILED);
    assert_non_null(strstr(st.text, "longer than 1000 bytes"));
    assert_int_equal(json_read(missing, 1000, &json, &st), FAILED);
    assert_non_null(strstr(st.text, "none.json: cannot be opened: No such file"));
    assert_int_equal(json_read("/", 1000, &json, &st), FAILED);
    remove(path);
    free(path);
    free(missing);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_after_the_value_is_refused),
        cmocka_unit_test(the_text_need_not_end_in_a_zero),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(whole_numbers_are_exact_beyond_32_bits),
        cmocka_unit_test(keys_have_case_and_the_first_counts),
        cmocka_unit_test(absent_and_null_leave_the_default),
        cmocka_unit_test(the_other_kinds_are_checked_too),
        cmocka_unit_test(files_are_read_up_to_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
