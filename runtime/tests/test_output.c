/* test_output.c - a file has its final name only when it is whole. */
#include "runtime/base/output.h"
#include "runtime/tests/scratch.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static bool exists(const char *path) {
    struct stat file;
    return stat(path, &file) == 0;
}

/* Names of one file and of its unfinished form, neither of which exists. */
static char *path, *partial;

static int begin(void **state) {
    (void)state;
    path = scratch_path("out.txt");
    partial = scratch_path("out.txt.partial");
    unlink(path);
    unlink(partial);
    return 0;
}

static int end(void **state) {
    (void)state;
    unlink(path);
    free(path);
    free(partial);
    return 0;
}

static void commit_gives_the_final_name(void **state) {
    (void)state;
    status st;
    output *out;
    assert_int_equal(output_open(path, &out, &st), DONE);
    fputs("whole\n", output_stream(out));
    assert_true(exists(partial) && !exists(path));
    assert_int_equal(output_commit(out, &st), DONE);
    assert_true(exists(path) && !exists(partial));
    char text[16] = "";
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof text, file));
    fclose(file);
    assert_string_equal(text, "whole\n");
}

static void abandon_leaves_nothing_and_keeps_the_old_file(void **state) {
    (void)state;
    status st;
    output *out;
    FILE *old = fopen(path, "w");
    assert_non_null(old);
    fputs("old", old);
    fclose(old);
    assert_int_equal(output_open(path, &out, &st), DONE);
    fputs("new and half written", output_stream(out));
    output_abandon(out);
    output_abandon(NULL);
    assert_false(exists(partial));
    struct stat file;
    assert_int_equal(stat(path, &file), 0);
    assert_int_equal(file.st_size, 3);
}

static void a_full_disk_is_an_error_and_leaves_no_file(void **state) {
    (void)state;
    status st;
    output *out;
    struct rlimit before, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 1 << 14;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_int_equal(output_open(path, &out, &st), DONE);
    for (int i = 0; i < 1 << 15; i++)
        fputc('x', output_stream(out));
    int result = output_commit(out, &st);
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, handler);
    assert_int_equal(result, FAILED);
    assert_non_null(strstr(st.text, "out.txt: could not be written"));
    assert_true(!exists(path) && !exists(partial));
}

/* A pipe stands for every special file: were it a device, broken code would replace it for good. */
static void special_files_are_written_in_place(void **state) {
    (void)state;
    status st;
    output *out;
    assert_int_equal(mkfifo(path, 0600), 0);
    int reader = open(path, O_RDWR | O_NONBLOCK);
    assert_true(reader >= 0);
    assert_int_equal(output_open(path, &out, &st), DONE);
    assert_false(exists(partial));
    fputs("text", output_stream(out));
    assert_int_equal(output_commit(out, &st), DONE);
    char text[8] = "";
    assert_int_equal(read(reader, text, sizeof text - 1), 4);
    assert_string_equal(text, "text");
    close(reader);
    struct stat file;
    assert_int_equal(stat(path, &file), 0);
    assert_true(S_ISFIFO(file.st_mode));
}

static void names_that_cannot_be_written_are_errors(void **state) {
    (void)state;
    status st;
    output *out;
    char *missing = scratch_path("no such folder/out.txt"), *folder = scratch_path("");
    assert_int_equal(output_open(missing, &out, &st), FAILED);
    assert_non_null(strstr(st.text, "No such file or directory"));
    assert_int_equal(output_open(folder, &out, &st), FAILED);
    assert_non_null(strstr(st.text, "is a folder"));
    assert_int_equal(output_open("", &out, &st), FAILED);
    free(missing);
    free(folder);
}

static void standard_output_is_used_without_a_path(void **state) {
    (void)state;
    status st;
    output *out;
    scratch_capture_begin();
    assert_int_equal(output_open(NULL, &out, &st), DONE);
    fputs("here", output_stream(out));
    int result = output_commit(out, &st);
    char *text = scratch_capture_end();
    assert_int_equal(result, DONE);
    assert_string_equal(text, "here");
    free(text);
}

static void a_full_standard_output_is_reported_once(void **state) {
    (void)state;
    status st;
    output *out;
    fflush(stdout);
    int kept = dup(STDOUT_FILENO), full = open("/dev/full", O_WRONLY);
    dup2(full, STDOUT_FILENO);
    assert_int_equal(output_open("-", &out, &st), DONE);
    fputs("here", output_stream(out));
    int result = output_commit(out, &st), again = fflush(stdout), flagged = ferror(stdout);
    dup2(kept, STDOUT_FILENO);
    close(kept);
    close(full);
    assert_int_equal(result, FAILED);
    assert_string_equal(st.text, "standard output: could not be written: No space left on device");
    assert_int_equal(again, 0);
    assert_int_equal(flagged, 0);
}

static void folders_are_made_with_their_parents(void **state) {
    (void)state;
    status st;
    char *deep = scratch_path("deep/er//est"), *parent = scratch_path("deep/er");
    char *top = scratch_path("deep"), *below_file = scratch_path("out.txt/below");
    assert_int_equal(folder_make(deep, &st), DONE);
    assert_int_equal(folder_make(deep, &st), DONE);
    assert_true(exists(deep));
    rmdir(deep);
    rmdir(parent);
    rmdir(top);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
    assert_int_equal(folder_make(below_file, &st), FAILED);
    assert_non_null(strstr(st.text, "is not a folder"));
    free(deep);
    free(parent);
    free(top);
    free(below_file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(commit_gives_the_final_name, begin, end),
        cmocka_unit_test_setup_teardown(abandon_leaves_nothing_and_keeps_the_old_file, begin, end),
        cmocka_unit_test_setup_teardown(a_full_disk_is_an_error_and_leaves_no_file, begin, end),
        cmocka_unit_test_setup_teardown(special_files_are_written_in_place, begin, end),
        cmocka_unit_test(names_that_cannot_be_written_are_errors),
        cmocka_unit_test(standard_output_is_used_without_a_path),
        cmocka_unit_test(a_full_standard_output_is_reported_once),
        cmocka_unit_test_setup_teardown(folders_are_made_with_their_parents, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
