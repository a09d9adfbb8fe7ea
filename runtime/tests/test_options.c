/* test_options.c - what a user may type, and what --help says. */
#include "runtime/base/options.h"
#include "runtime/tests/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* One option of every kind, and what parsing left in them. */
typedef struct parsed {
    int result;
    char *printed;
    bool flag, context_given;
    const char *text, *choice, *dir;
    size_t context;
    uint64_t seed;
    double rate;
    option_list points, files;
} parsed;

enum { WORDS_MAX = 32 };

/* Parses the words of `line`, which blanks separate. */
static parsed parse(const char *line) {
    static char words[512];
    static parsed got;
    char *argv[WORDS_MAX] = {"try"};
    int argc = 1;
    snprintf(words, sizeof words, "%s", line);
    for (char *word = strtok(words, " "); word && argc < WORDS_MAX; word = strtok(NULL, " "))
        argv[argc++] = word;

    static const char *const dtypes[] = {"fp32", "bf16", NULL};
    got = (parsed){.context = 256, .rate = 0.5, .choice = "fp32"};
    const option_spec options[] = {
        {"flag", 'f', OPTION_FLAG, &got.flag, .help = "a flag"},
        {"text", 't', OPTION_TEXT, &got.text, .metavar = "FILE", .help = "a text"},
        {"context", 'c', OPTION_SIZE, &got.context, .min = 1, .max = 1 << 20, .metavar = "N",
         .help = "tokens in a sequence", .given = &got.context_given},
        {"rate", 0, OPTION_REAL, &got.rate, .min = -1, .max = 1, .help = "a rate"},
        {"dtype", 0, OPTION_CHOICE, &got.choice, .choices = dtypes, .help = "a type"},
        {"points", 'p', OPTION_LIST, &got.points, .help = "points to record"},
        OPTION_SEED(&got.seed),
        OPTION_QUIET,
        {0}};
    const positional_spec arguments[] = {
        {"DIR", &got.dir, "a folder", .optional = false},
        {"FILE", &got.files, "more files", .optional = true, .many = true},
        {0}};
    const command_spec spec = {"try", "tries options", options, arguments, "First.\n\nSecond."};
    scratch_capture_begin();
    got.result = options_parse(&spec, argc, argv);
    got.printed = scratch_capture_end();
    return got;
}

static void parsed_clear(parsed *got) {
    option_list_clear(&got->points);
    option_list_clear(&got->files);
    free(got->printed);
    option_quiet = false;
}

static void expect_refusal(const char *line, const char *text) {
    parsed got = parse(line);
    assert_int_equal(got.result, OPTIONS_WRONG);
    if (!strstr(got.printed, text))
        fail_msg("'%s' printed '%s', expected '%s'", line, got.printed, text);
    assert_non_null(strstr(got.printed, "Try: fathom help try\n"));
    parsed_clear(&got);
}

static void every_kind_of_option_is_stored(void **state) {
    (void)state;
    parsed got = parse("--flag --text a.txt dir --context 64k --rate=-0.25 --dtype bf16 -p a,b "
                       "--points c one --seed 18446744073709551615 -- -two");
    assert_int_equal(got.result, OPTIONS_RUN);
    assert_string_equal(got.printed, "");
    assert_true(got.flag);
    assert_string_equal(got.text, "a.txt");
    assert_string_equal(got.dir, "dir");
    assert_int_equal(got.context, 64000);
    assert_true(got.context_given);
    assert_true(got.rate == -0.25);
    assert_string_equal(got.choice, "bf16");
    assert_true(got.seed == UINT64_MAX);
    assert_int_equal(got.points.count, 3);
    assert_string_equal(got.points.item[1], "b");
    assert_string_equal(got.points.item[2], "c");
    assert_int_equal(got.files.count, 2);
    assert_string_equal(got.files.item[1], "-two");
    parsed_clear(&got);
}

static void defaults_stay_and_given_tells(void **state) {
    (void)state;
    parsed got = parse("-");
    assert_int_equal(got.result, OPTIONS_RUN);
    assert_string_equal(got.dir, "-");
    assert_int_equal(got.context, 256);
    assert_false(got.context_given);
    assert_int_equal(got.files.count, 0);
    parsed_clear(&got);
}

static void short_options_take_values_and_bundle(void **state) {
    (void)state;
    parsed got = parse("-fqc32 -t - dir");
    assert_int_equal(got.result, OPTIONS_RUN);
    assert_true(got.flag && option_quiet);
    assert_int_equal(got.context, 32);
    assert_string_equal(got.text, "-");
    parsed_clear(&got);
}

static void mistakes_are_named(void **state) {
    (void)state;
    expect_refusal("dir --contxt 3", "try: unknown option --contxt; did you mean --context?");
    expect_refusal("dir --con 3", "did you mean --context?");
    expect_refusal("dir --zzzzzz", "unknown option --zzzzzz\n");
    expect_refusal("dir -fz", "unknown option -z in '-fz'");
    expect_refusal("dir --context", "--context needs a value");
    expect_refusal("dir -c", "-c needs a value");
    expect_refusal("dir --flag=1", "--flag takes no value");
    expect_refusal("dir --dtype fp8", "--dtype: found 'fp8', expected one of: fp32, bf16");
    expect_refusal("dir -p a,,b", "--points: an item of the list is empty");
    expect_refusal("--flag", "missing argument DIR (a folder)");
}

static void numbers_out_of_range_are_refused(void **state) {
    (void)state;
    expect_refusal("dir -c 0", "--context: found '0', expected a number from 1 to 1048576");
    expect_refusal("dir -c 2m", "found '2m', expected a number from 1 to 1048576");
    expect_refusal("dir -c -1", "found '-1', expected a whole number");
    expect_refusal("dir -c 12abc", "found '12abc'");
    expect_refusal("dir -c 1.5k", "found '1.5k'");
    expect_refusal("dir --context=", "found '', expected a whole number");
    expect_refusal("dir --seed 18446744073709551616", "expected a number below 2^64");
    expect_refusal("dir --seed 18446744073709551615k", "expected a number below 2^64");
    expect_refusal("dir --rate 1.01", "found '1.01', expected a number from -1 to 1");
    expect_refusal("dir --rate nan", "found 'nan', expected a finite number");
    expect_refusal("dir --rate 0.5x", "found '0.5x'");
    expect_refusal("dir --rate=", "found '', expected a finite number");
}

static void sizes_have_suffixes(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t value;
    } good[] = {{"0", 0},           {"7", 7},      {"2k", 2000},     {"3M", 3000000},
                {"1g", 1000000000}, {"2ki", 2048}, {"1Mi", 1 << 20}, {"5gi", 5368709120}};
    status st;
    size_t value;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(parse_size(good[i].text, &value, &st), DONE);
        assert_int_equal(value, good[i].value);
    }
    assert_int_equal(parse_size(" 7", &value, &st), FAILED);
    assert_int_equal(parse_size("+7", &value, &st), FAILED);
    assert_int_equal(parse_size("7kk", &value, &st), FAILED);
}

static void too_many_arguments_are_refused(void **state) {
    (void)state;
    const char *dir = NULL;
    const option_spec options[] = {{0}};
    const positional_spec arguments[] = {{"DIR", &dir, "a folder", .optional = true}, {0}};
    const command_spec spec = {"one", "takes one", options, arguments, NULL};
    scratch_capture_begin();
    int none = options_parse(&spec, 1, (char *[]){"one"});
    int two = options_parse(&spec, 3, (char *[]){"one", "a", "b"});
    char *text = scratch_capture_end();
    assert_int_equal(none, OPTIONS_RUN);
    assert_int_equal(two, OPTIONS_WRONG);
    assert_non_null(strstr(text, "one: unexpected argument 'b'"));
    free(text);
}

static void help_shows_live_defaults_and_ranges(void **state) {
    (void)state;
    parsed got = parse("--context 7 --help");
    assert_int_equal(got.result, OPTIONS_HELP);
    assert_non_null(strstr(got.printed, "Usage: fathom try [OPTION]... DIR [FILE]...\n"));
    assert_non_null(strstr(got.printed, "  -c, --context N "));
    assert_non_null(strstr(got.printed, "(1 to 1048576; default"));
    assert_non_null(strstr(got.printed, "256)"));
    assert_non_null(strstr(got.printed, "(one of fp32, bf16; default fp32)"));
    assert_non_null(strstr(got.printed, "(-1 to 1; default 0.5)"));
    assert_non_null(strstr(got.printed, "\nFirst.\n\nSecond.\n"));
    for (char *line = strtok(got.printed, "\n"); line; line = strtok(NULL, "\n"))
        assert_true(strlen(line) <= 80);
    parsed_clear(&got);
}

static void the_nearest_name_is_near(void **state) {
    (void)state;
    static const char *const names[] = {"capture", "check", "eval", "routing"};
    assert_int_equal(nearest_name("captrue", names, 4), 0);
    assert_int_equal(nearest_name("chek", names, 4), 1);
    assert_int_equal(nearest_name("rout", names, 4), 3);
    assert_int_equal(nearest_name("xylophone", names, 4), -1);
    assert_int_equal(nearest_name("", names, 4), -1);
    char long_name[200];
    memset(long_name, 'a', sizeof long_name);
    long_name[sizeof long_name - 1] = 0;
    assert_int_equal(nearest_name(long_name, names, 4), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_option_is_stored),
        cmocka_unit_test(defaults_stay_and_given_tells),
        cmocka_unit_test(short_options_take_values_and_bundle),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(numbers_out_of_range_are_refused),
        cmocka_unit_test(sizes_have_suffixes),
        cmocka_unit_test(too_many_arguments_are_refused),
        cmocka_unit_test(help_shows_live_defaults_and_ranges),
        cmocka_unit_test(the_nearest_name_is_near),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
