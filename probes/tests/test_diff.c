/* Two recordings that differ in known places: what `fathom diff` finds, and its verdict. */
#include "probes/dataset_diff.h"
#include "probes/tests/synthetic.h"
#include "runtime/base/command.h"
#include "runtime/tests/scratch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char *path[2];
static recording *rec[2];

static void open_both(void) {
    status st;
    for (int i = 0; i < 2; i++)
        if (recording_open(path[i], &rec[i], &st))
            fail_msg("%s", st.text);
}

static void close_both(void) {
    for (int i = 0; i < 2; i++)
        recording_close(rec[i]);
}

/* Two equal files of ten sequences, closed. */
static int make_both(void **state) {
    (void)state;
    const recording_plan plan = synthetic_plan();
    status st;
    for (int i = 0; i < 2; i++) {
        path[i] = scratch_path(i ? "two.h5" : "one.h5");
        if (synthetic_file(path[i], &plan, 10, 3, &st))
            fail_msg("%s", st.text);
    }
    return 0;
}

static int remove_both(void **state) {
    (void)state;
    free(path[0]);
    free(path[1]);
    return 0;
}

/* Sets one number of one dataset of the second file. */
static void edit(const char *name, size_t rank, const hsize_t *at, double value) {
    const hsize_t one[] = {1, 1, 1, 1, 1};
    h5_prepare();
    hid_t file = H5Fopen(path[1], H5F_ACC_RDWR, H5P_DEFAULT);
    hid_t dataset = H5Dopen2(file, name, H5P_DEFAULT);
    assert_true(dataset >= 0);
    assert_true(h5_write(dataset, H5T_NATIVE_DOUBLE, rank, at, one, &value) >= 0);
    h5_close(&dataset);
    h5_close(&file);
}

/* A dataset [3, 2, 600000] of zeros in both files, which no piece holds a row of. */
static void add_large(void) {
    const hsize_t extent[] = {3, 2, 600000};
    const double zero = 0;
    h5_prepare();
    for (int i = 0; i < 2; i++) {
        hid_t file = H5Fopen(path[i], H5F_ACC_RDWR, H5P_DEFAULT);
        hid_t space = H5Screate_simple(3, extent, NULL), plist = H5Pcreate(H5P_DATASET_CREATE);
        H5Pset_fill_value(plist, H5T_NATIVE_DOUBLE, &zero);
        H5Pset_alloc_time(plist, H5D_ALLOC_TIME_EARLY);
        hid_t dataset =
            H5Dcreate2(file, "large", H5T_NATIVE_FLOAT, space, H5P_DEFAULT, plist, H5P_DEFAULT);
        assert_true(dataset >= 0);
        h5_close(&dataset);
        h5_close(&plist);
        h5_close(&space);
        h5_close(&file);
    }
}

static dataset_diff diff(const char *name, double absolute, double relative) {
    dataset_diff d;
    status st;
    open_both();
    if (dataset_diff_run(rec[0], rec[1], name, absolute, relative, &d, &st))
        fail_msg("%s", st.text);
    close_both();
    return d;
}

static int command(const char *const *words, char **said) {
    char *argv[16], copy[16][512];
    int argc = 0;
    for (; words[argc]; argc++) {
        snprintf(copy[argc], sizeof copy[argc], "%s", words[argc]);
        argv[argc] = copy[argc];
    }
    argv[argc] = NULL;
    scratch_capture_begin();
    int code = command_run(argc, argv);
    char *text = scratch_capture_end();
    if (said)
        *said = text;
    else
        free(text);
    return code;
}
#define DIFF(said, ...)                                                                            \
    command((const char *const[]){"diff", path[0], path[1], ##__VA_ARGS__, NULL}, said)

static void test_equal(void **state) {
    (void)state;
    char *said;
    assert_int_equal(DIFF(&said), EXIT_DONE);
    assert_non_null(strstr(said, "ok    hidden/in_rms: equal"));
    assert_non_null(strstr(said, "ok    source: equal"));
    assert_null(strstr(said, "OVER"));
    assert_null(strstr(said, "note"));
    free(said);
}

/* in_rms of sequence 4, position 3, L1.attn is made larger by .25. */
static void test_one_number(void **state) {
    (void)state;
    const hsize_t at[] = {4, 3, 2};
    double value = (double)synthetic_magnitude(4, 3, 2);
    edit("hidden/in_rms", 3, at, value + .25);
    dataset_diff d = diff("hidden/in_rms", 0, 0);
    assert_int_equal(d.over, 1);
    assert_int_equal(d.compared, 10 * SYNTHETIC_POSITIONS * SYNTHETIC_SITES);
    assert_true(d.absolute == .25);
    assert_true(fabs(d.relative - .25 / (value + .25)) < 1e-12);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(d.at_absolute[i], at[i]);
        assert_int_equal(d.at_relative[i], at[i]);
        assert_int_equal(d.at_over[i], at[i]);
    }
    char *said;
    assert_int_equal(DIFF(&said), EXIT_NO);
    assert_non_null(strstr(said, "OVER  hidden/in_rms: largest absolute difference 0.25 at seq 4, "
                                 "pos 3, site L1.attn; relative "));
    free(said);
    assert_int_equal(diff("hidden/in_rms", .25, 0).over, 0);
    assert_int_equal(diff("hidden/in_rms", .24, 0).over, 1);
    assert_int_equal(DIFF(NULL, "--abs", ".25"), EXIT_DONE);
    assert_int_equal(DIFF(NULL, "--rel", "1e-3"), EXIT_NO);
    assert_int_equal(DIFF(NULL, "--bound", "hidden/*=.1,.2"), EXIT_DONE);
    assert_int_equal(DIFF(NULL, "--bound", "hidden/*=.25,hidden/in_rms=.1,0"), EXIT_NO);
    assert_int_equal(DIFF(NULL, "--bound", "hidden/*=.25"), EXIT_DONE);
}

static void test_bad_bounds(void **state) {
    (void)state;
    static const char *const bad[] = {"hidden/*",       "=1", "hidden/*=x",      "none=1",
                                      "hidden/*=1,2,3", "1",  "hidden/in_rms=-1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *said;
        assert_int_equal(DIFF(&said, "--bound", bad[i]), EXIT_WRONG);
        assert_non_null(strstr(said, "--bound"));
        free(said);
    }
}

/* A NaN against a number is over whatever the bounds; NaN against NaN is not. */
static void test_nan(void **state) {
    (void)state;
    const hsize_t at[] = {9, 2, 6}, loss[] = {0, 0};
    edit("hidden/in_rms", 3, at, NAN);
    edit("tokens/loss", 2, loss, NAN);
    dataset_diff d = diff("hidden/in_rms", 1e9, 1e9);
    assert_int_equal(d.nan, 1);
    assert_int_equal(d.over, 1);
    assert_true(d.absolute == 0);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(d.at_nan[i], at[i]);
    assert_int_equal(diff("tokens/loss", 0, 0).over, 0);
    edit("hidden/in_rms", 3, at, INFINITY);
    d = diff("hidden/in_rms", 1e9, 1e9);
    assert_int_equal(d.over, 1);
    assert_true(isinf(d.absolute) && isinf(d.relative));
    assert_int_equal(DIFF(NULL, "--abs", "1e200"), EXIT_NO);
}

/* Pieces cover every number once, and know where they are. */
static void test_pieces(void **state) {
    (void)state;
    add_large();
    const hsize_t last[] = {2, 1, 599999}, middle[] = {1, 0, 524288};
    edit("large", 3, last, 1);
    dataset_diff d = diff("large", 0, 0);
    assert_int_equal(d.compared, 3 * 2 * 600000);
    assert_int_equal(d.over, 1);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(d.at_absolute[i], last[i]);
    edit("large", 3, middle, 2);
    d = diff("large", 0, 0);
    assert_int_equal(d.over, 2);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(d.at_absolute[i], middle[i]);
}

/* What one file lacks, what has another shape, other labels. */
static void test_structure(void **state) {
    (void)state;
    recording_plan plan = synthetic_plan();
    status st;
    char *said;
    plan.wants.pattern = NULL;
    if (synthetic_file(path[1], &plan, 10, 4, &st))
        fail_msg("%s", st.text);
    assert_int_equal(DIFF(&said), EXIT_NO);
    assert_non_null(strstr(said, "OVER  attention/pattern/L1: only in "));
    free(said);
    assert_int_equal(DIFF(NULL, "--common"), EXIT_DONE);
    if (synthetic_file(path[1], &plan, 9, 3, &st))
        fail_msg("%s", st.text);
    assert_int_equal(DIFF(&said, "--common"), EXIT_NO);
    assert_non_null(strstr(said, "OVER  tokens/id: 10 x 8 numbers | 9 x 8 numbers"));
    free(said);
    const char *names[SYNTHETIC_SOURCES];
    memcpy(names, plan.axes.source_name, sizeof names);
    names[3] = "other";
    plan.axes.source_name = names;
    plan.header.device = "another";
    if (synthetic_file(path[1], &plan, 10, 3, &st))
        fail_msg("%s", st.text);
    assert_int_equal(DIFF(&said, "--common"), EXIT_NO);
    assert_non_null(strstr(said, "OVER  source: texts differ; 1 of 7 over, first at"));
    assert_non_null(strstr(said, "note  attribute device: none | another"));
    free(said);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_equal, make_both, remove_both),
        cmocka_unit_test_setup_teardown(test_one_number, make_both, remove_both),
        cmocka_unit_test_setup_teardown(test_bad_bounds, make_both, remove_both),
        cmocka_unit_test_setup_teardown(test_nan, make_both, remove_both),
        cmocka_unit_test_setup_teardown(test_pieces, make_both, remove_both),
        cmocka_unit_test_setup_teardown(test_structure, make_both, remove_both),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
