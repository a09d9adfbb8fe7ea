/* test_base.c - status texts, checked memory, hashing, messages, interruption, command lines. */
#include "runtime/base/command.h"
#include "runtime/base/interrupt.h"
#include "runtime/base/log.h"
#include "runtime/base/options.h"
#include "runtime/base/sha256.h"
#include "runtime/base/status.h"
#include "runtime/tests/scratch.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void failure_fills_the_text_and_returns_failed(void **state) {
    (void)state;
    status st;
    assert_int_equal(status_fail(&st, "%s: shape [%d]", "a.bin", 7), FAILED);
    assert_string_equal(st.text, "a.bin: shape [7]");
    assert_int_equal(status_prefix(&st, "layer %d", 3), FAILED);
    assert_string_equal(st.text, "layer 3: a.bin: shape [7]");
    status_fail(&st, "again: %s", st.text);
    assert_string_equal(st.text, "again: layer 3: a.bin: shape [7]");
}

static void a_text_longer_than_the_status_is_cut(void **state) {
    (void)state;
    status st;
    char long_text[4000];
    memset(long_text, 'x', sizeof long_text);
    long_text[sizeof long_text - 1] = 0;
    status_fail(&st, "%s", long_text);
    assert_int_equal(strlen(st.text), sizeof st.text - 1);
    status_prefix(&st, "file");
    assert_int_equal(strncmp(st.text, "file: xxx", 9), 0);
    assert_int_equal(strlen(st.text), sizeof st.text - 1);
}

static void memory_is_zeroed_and_sizes_are_checked(void **state) {
    (void)state;
    status st;
    unsigned char *bytes = mem_array(100, 3, "bytes", &st);
    assert_non_null(bytes);
    for (int i = 0; i < 300; i++)
        assert_int_equal(bytes[i], 0);
    free(bytes);
    void *none = mem_array(0, 8, "none", &st);
    assert_non_null(none);
    free(none);
    assert_null(mem_array(SIZE_MAX / 4 + 1, 4, "scores", &st));
    assert_non_null(strstr(st.text, "scores"));
    assert_null(mem_array(SIZE_MAX, 1, "scores", &st));
}

/* FIPS 180-4 example vectors (CSRC, SHA256.pdf and the NIST long message). */
static void sha256_agrees_with_fips_180(void **state) {
    (void)state;
    static const struct {
        const char *text, *hex;
    } vector[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqr"
         "lmnopqrsmnopqrstnopqrstu",
         "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
    };
    char hex[65];
    sha256 hash;
    for (size_t i = 0; i < sizeof vector / sizeof *vector; i++) {
        sha256_init(&hash);
        sha256_add(&hash, vector[i].text, strlen(vector[i].text));
        sha256_finish(&hash, hex);
        assert_string_equal(hex, vector[i].hex);
    }
    /* A million times 'a', in pieces of all lengths that straddle blocks. */
    char piece[200];
    memset(piece, 'a', sizeof piece);
    sha256_init(&hash);
    for (size_t left = 1000000, bytes = 0; left > 0; left -= bytes) {
        bytes = (bytes + 1) % sizeof piece;
        bytes = bytes < left ? bytes : left;
        sha256_add(&hash, piece, bytes);
    }
    sha256_finish(&hash, hex);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void bytes_read_as_people_write_them(void **state) {
    (void)state;
    assert_string_equal(bytes_text(0).text, "0 bytes");
    assert_string_equal(bytes_text(999).text, "999 bytes");
    assert_string_equal(bytes_text(1000).text, "1.0 kB");
    assert_string_equal(bytes_text(312400).text, "312 kB");
    assert_string_equal(bytes_text(999999).text, "1.0 MB");
    assert_string_equal(bytes_text(1400000000).text, "1.4 GB");
    assert_string_equal(bytes_text(UINT64_MAX).text, "18 EB");
}

static void quiet_leaves_only_errors(void **state) {
    (void)state;
    option_quiet = option_verbose = true;
    scratch_capture_begin();
    log_note("note");
    log_warn("warn");
    log_detail("detail");
    progress_begin("step", 10, "tokens");
    progress_update(10, 0);
    progress_end();
    log_error("error %d", 1);
    char *text = scratch_capture_end();
    option_quiet = option_verbose = false;
    assert_string_equal(text, "fathom: error 1\n");
    free(text);
}

static void off_a_terminal_progress_is_plain_lines(void **state) {
    (void)state;
    scratch_capture_begin();
    progress_begin("capture", 2000, "tokens");
    progress_update(2000, 3000000);
    progress_end();
    log_detail("not asked for");
    log_warn("odd");
    char *text = scratch_capture_end();
    assert_non_null(strstr(text, "fathom: capture: 2000 tokens in "));
    assert_non_null(strstr(text, "3.0 MB\nfathom: warning: odd\n"));
    assert_null(strchr(text, '\r'));
    assert_null(strchr(text, 033));
    assert_null(strstr(text, "not asked for"));
    free(text);
}

/* The exit status of a child that runs `body`. */
static int child_status(void (*body)(void)) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        body();
        _exit(99);
    }
    int result = 0;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFEXITED(result));
    return WEXITSTATUS(result);
}

static void interrupt_once(void) {
    interrupt_install();
    if (interrupt_pending())
        _exit(1);
    raise(SIGTERM);
    _exit(interrupt_pending() ? 0 : 2);
}

/* The same signal twice at once is one wish; later it is another. */
static void interrupt_twice(void) {
    interrupt_install();
    raise(SIGINT);
    raise(SIGINT);
    if (!interrupt_pending())
        _exit(1);
    usleep(300000);
    raise(SIGINT);
    _exit(3);
}

static void interrupt_doubled(void) {
    interrupt_install();
    raise(SIGINT);
    raise(SIGINT);
    _exit(4);
}

static void the_first_signal_is_noted_a_later_one_ends(void **state) {
    (void)state;
    assert_int_equal(child_status(interrupt_once), 0);
    assert_int_equal(child_status(interrupt_doubled), 4);
    assert_int_equal(child_status(interrupt_twice), 130);
}

static void commands_can_be_run_by_name(void **state) {
    (void)state;
    char *version[] = {"version", NULL}, *wrong[] = {"versoin", NULL};
    scratch_capture_begin();
    int done = command_run(1, version), failed = command_run(1, wrong);
    char *text = scratch_capture_end();
    assert_int_equal(done, EXIT_DONE);
    assert_int_equal(failed, EXIT_WRONG);
    assert_non_null(strstr(text, "fathom 0."));
    assert_non_null(strstr(text, "did you mean 'version'?"));
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failure_fills_the_text_and_returns_failed),
        cmocka_unit_test(a_text_longer_than_the_status_is_cut),
        cmocka_unit_test(memory_is_zeroed_and_sizes_are_checked),
        cmocka_unit_test(sha256_agrees_with_fips_180),
        cmocka_unit_test(bytes_read_as_people_write_them),
        cmocka_unit_test(quiet_leaves_only_errors),
        cmocka_unit_test(off_a_terminal_progress_is_plain_lines),
        cmocka_unit_test(the_first_signal_is_noted_a_later_one_ends),
        cmocka_unit_test(commands_can_be_run_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
