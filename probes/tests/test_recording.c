/* test_recording.c - what a recording's writer and reader promise. */
#include "probes/h5.h"
#include "probes/recording.h"
#include "probes/tests/synthetic.h"
#include "runtime/base/command.h"
#include "runtime/tests/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static status st;

#define assert_done(call)                                                                          \
    do {                                                                                           \
        st.text[0] = '\0';                                                                         \
        if ((call) != DONE)                                                                        \
            fail_msg("%s: %s", #call, st.text);                                                    \
    } while (0)

static void assert_says(const char *part) {
    if (!strstr(st.text, part))
        fail_msg("'%s' does not say '%s'", st.text, part);
}

static bool same(float a, float b) {
    return a == b || (isnan(a) && isnan(b));
}

static recording *open_synthetic(const char *name, size_t count, size_t batch, size_t compress,
                                 char **path) {
    recording *rec;
    recording_plan plan = synthetic_plan();
    plan.compress = compress;
    *path = scratch_path(name);
    assert_done(synthetic_file(*path, &plan, count, batch, &st));
    assert_done(recording_open(*path, &rec, &st));
    return rec;
}

static void assert_contents(recording *rec, size_t sequences) {
    const recording_about *about = recording_about_of(rec);
    assert_int_equal(about->sequences, sequences);
    for (size_t seq = 0; seq < sequences; seq++) {
        int32_t id[SYNTHETIC_POSITIONS];
        float loss[SYNTHETIC_POSITIONS], rms[SYNTHETIC_POSITIONS][SYNTHETIC_SITES];
        float weights[SYNTHETIC_POSITIONS][SYNTHETIC_HEADS][SYNTHETIC_SOURCES];
        size_t length = synthetic_length(seq);
        assert_int_equal(about->length[seq], length);
        assert_int_equal(about->start[seq], 100 * seq);
        assert_done(recording_read_tokens(rec, seq, id, loss, &st));
        assert_done(recording_read_hidden(rec, "in_rms", seq, *rms, &st));
        for (size_t t = 0; t < length; t++) {
            assert_int_equal(id[t], synthetic_id(seq, t));
            assert_true(same(loss[t], synthetic_loss(seq, t)));
            for (size_t i = 0; i < SYNTHETIC_SITES; i++)
                assert_true(same(rms[t][i], synthetic_magnitude(seq, t, i)));
        }
        for (size_t site = 0; site < SYNTHETIC_SITES; site++) {
            assert_done(recording_read_weights(rec, seq, site, **weights, &st));
            for (size_t t = 0; t < length; t++)
                for (size_t h = 0; h < SYNTHETIC_HEADS; h++)
                    for (size_t s = 0; s < SYNTHETIC_SOURCES; s++)
                        assert_true(same(weights[t][h][s], synthetic_weight(seq, t, site, h, s)));
        }
    }
}

static void test_round_trip(void **state) {
    (void)state;
    char *path;
    recording *rec = open_synthetic("round.h5", 9, 4, 0, &path);
    const recording_about *about = recording_about_of(rec);
    assert_true(about->complete && about->has_weights && about->has_sums && about->has_pairs &&
                about->has_hidden && about->has_loss);
    assert_string_equal(about->residual_mode, "full_mh");
    assert_string_equal(about->model_sha256, "");
    assert_string_equal(about->site_name[6], "final");
    assert_string_equal(about->source_name[0], "emb");
    assert_int_equal(about->layers, SYNTHETIC_LAYERS);
    assert_int_equal(about->seed, 7);
    assert_int_equal(about->bos, -1);
    assert_int_equal(about->newest[3], 3);
    assert_int_equal(recording_sum_tokens(rec, 0), 4);
    assert_string_equal(recording_piece(rec, 4), "é");
    assert_null(recording_piece(rec, 10)); /* no text */
    assert_null(recording_piece(rec, 99));
    assert_contents(rec, 9);
    recording_close(rec);
    assert_int_equal(access(path, F_OK), 0);
    free(path);
}

static void test_compressed_holds_the_same(void **state) {
    (void)state;
    char *path;
    recording *rec = open_synthetic("compressed.h5", 9, 4, 6, &path);
    assert_contents(rec, 9);
    recording_close(rec);
    free(path);
}

static void test_long_sequences_are_chunked(void **state) {
    (void)state;
    recording_plan plan = synthetic_plan();
    plan.axes.positions = 1 << 17; /* in/L1.attn alone takes 2 MB a sequence */
    plan.axes.width = 64;
    char *path = scratch_path("long.h5");
    recording_writer *w;
    assert_done(recording_writer_create(path, &plan, &w, &st));
    assert_done(recording_writer_begin(w, 1, &st));
    size_t cells = (size_t)plan.axes.positions * SYNTHETIC_HEADS * SYNTHETIC_SOURCES;
    float *weights = mem_array(cells, sizeof *weights, "weights", &st);
    for (size_t i = 0; i < cells; i++)
        weights[i] = (float)(i % 1000);
    assert_done(recording_writer_put(w, RECORDED_WEIGHTS, 3, 0, plan.axes.positions, weights, &st));
    assert_done(recording_writer_commit(w, &st));
    assert_done(recording_writer_finish(w, &(recording_closing){0}, true, &st));
    h5_prepare();
    hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    hid_t dataset = H5Dopen2(file, "routing/weights", H5P_DEFAULT);
    hid_t properties = H5Dget_create_plist(dataset);
    hsize_t chunk[5];
    assert_int_equal(H5Pget_chunk(properties, 5, chunk), 5);
    assert_true(chunk[0] == 1 && chunk[2] == 1 && chunk[3] == 2 && chunk[4] == 7);
    assert_true(chunk[1] * 2 * 7 * 4 <= 4 << 20);
    float *back = mem_array(cells, sizeof *back, "weights", &st);
    const hsize_t start[5] = {0, 0, 3, 0, 0}, count[5] = {1, plan.axes.positions, 1, 2, 7};
    assert_true(h5_read(dataset, H5T_NATIVE_FLOAT, 5, start, count, back) >= 0);
    assert_memory_equal(weights, back, cells * sizeof *back);
    h5_close(&properties);
    h5_close(&dataset);
    h5_close(&file);
    free(weights);
    free(back);
    free(path);
}

static void test_same_bytes_whatever_the_time(void **state) {
    (void)state;
    char *path[2];
    for (int i = 0; i < 2; i++) {
        recording_close(open_synthetic(i ? "twin1.h5" : "twin0.h5", 5, 2, 0, &path[i]));
        sleep(i == 0); /* times of objects would differ */
    }
    char command[4096];
    snprintf(command, sizeof command, "cmp %s %s", path[0], path[1]);
    assert_int_equal(system(command), 0);
    free(path[0]);
    free(path[1]);
}

/* routing/ROW is the token-weighted mean of routing_seq/ROW, whatever the batches. */
static void test_means_over_sequences(void **state) {
    (void)state;
    for (size_t batch = 1; batch < 5; batch += 3) {
        char *path;
        double *entropy, sum = 0, tokens = 0, stored[SYNTHETIC_SITES][SYNTHETIC_HEADS];
        recording *rec = open_synthetic("means.h5", 6, batch, 0, &path);
        assert_done(recording_read_row(rec, "entropy", &entropy, &st));
        for (size_t seq = 0; seq < 6; seq++) {
            double n = (double)recording_sum_tokens(rec, seq);
            sum += n * entropy[(seq * SYNTHETIC_SITES + 5) * SYNTHETIC_HEADS + 1];
            tokens += n;
        }
        recording_close(rec);
        hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
        hid_t dataset = H5Dopen2(file, "routing/entropy", H5P_DEFAULT);
        H5Dread(dataset, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, stored);
        assert_true(fabs(stored[5][1] - sum / tokens) < 1e-12);
        assert_true(sum / tokens > 0.5);
        h5_close(&dataset);
        h5_close(&file);
        free(entropy);
        free(path);
    }
}

/* A row with source axes has NaN exactly where the site has no such source. */
static void test_rows_are_laid_out_by_label(void **state) {
    (void)state;
    char *path;
    double *mean, *cos, *divergence, *none;
    recording *rec = open_synthetic("rows.h5", 2, 2, 0, &path);
    assert_done(recording_read_row(rec, "mean", &mean, &st));
    assert_done(recording_read_row(rec, "source_cos", &cos, &st));
    assert_done(recording_read_row(rec, "head_divergence", &divergence, &st));
    for (size_t site = 0; site < SYNTHETIC_SITES; site++) {
        double sum = 0;
        for (size_t s = 0; s < SYNTHETIC_SOURCES; s++) {
            double value = mean[(site * SYNTHETIC_HEADS + 1) * SYNTHETIC_SOURCES + s];
            assert_int_equal(isnan(value) != 0, s > site);
            sum += s > site ? 0 : value;
            assert_int_equal(isnan(cos[(site * 7 + s) * 7]) != 0, s > site);
        }
        assert_true(fabs(sum - 1) < 1e-6);
        assert_true(site == 0 ? divergence[site] < 1e-6 : divergence[site] > 0);
    }
    assert_int_equal(recording_read_row(rec, "no_such_row", &none, &st), FAILED);
    assert_says("no_such_row");
    recording_close(rec);
    free(mean);
    free(cos);
    free(divergence);
    free(path);
}

static void test_interrupted_keeps_whole_sequences(void **state) {
    (void)state;
    recording_plan plan = synthetic_plan();
    char *path = scratch_path("stopped.h5"), *partial = scratch_path("stopped.h5.partial");
    unlink(path);
    recording_writer *w;
    recording *rec;
    assert_done(recording_writer_create(path, &plan, &w, &st));
    assert_done(synthetic_batch(w, 3, &st));
    assert_done(recording_writer_commit(w, &st));
    const float weights[SYNTHETIC_POSITIONS * SYNTHETIC_HEADS * SYNTHETIC_SOURCES] = {0};
    assert_done(recording_writer_begin(w, 2, &st)); /* never committed */
    assert_done(recording_writer_put(w, RECORDED_WEIGHTS, 3, 1, 8, weights, &st));
    assert_done(recording_writer_finish(w, &(recording_closing){0}, false, &st));
    assert_int_not_equal(access(path, F_OK), 0);
    assert_done(recording_open(partial, &rec, &st));
    assert_false(recording_about_of(rec)->complete);
    assert_contents(rec, 3);
    recording_close(rec);
    char name[] = "check";
    scratch_capture_begin();
    int code = command_run(2, (char *[]){name, partial, NULL});
    char *text = scratch_capture_end();
    assert_int_equal(code, EXIT_NO);
    assert_non_null(strstr(text, "FAIL  incomplete"));
    assert_null(strstr(strstr(text, "FAIL") + 4, "FAIL"));
    free(text);
    free(path);
    free(partial);
}

/* kill -9 in the middle of a batch: everything up to the last commit is there. */
static void test_killed_keeps_what_was_flushed(void **state) {
    (void)state;
    recording_plan plan = synthetic_plan();
    char *path = scratch_path("killed.h5"), *partial = scratch_path("killed.h5.partial");
    pid_t child = fork();
    if (child == 0) {
        recording_writer *w;
        if (recording_writer_create(path, &plan, &w, &st))
            _exit(1);
        for (int i = 0; i < 40; i++)
            if (synthetic_batch(w, 5, &st) || (i < 39 && recording_writer_commit(w, &st)))
                _exit(2);
        raise(SIGKILL);
    }
    int code;
    waitpid(child, &code, 0);
    assert_true(WIFSIGNALED(code));
    recording *rec;
    assert_done(recording_open(partial, &rec, &st));
    assert_false(recording_about_of(rec)->complete);
    assert_contents(rec, 195);
    recording_close(rec);
    free(path);
    free(partial);
}

/* The size limit stands in for a full disk. Returns what the writer's process said: 3 the rest is
 * readable, 4 it may not be. */
static int fill_disk(const char *path, rlim_t limit) {
    recording_plan plan = synthetic_plan();
    int pipes[2], code;
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){limit, limit});
        recording_writer *w;
        if (recording_writer_create(path, &plan, &w, &st))
            exit(9);
        int failed = 0;
        for (int i = 0; i < 100 && !failed; i++)
            failed = synthetic_batch(w, 5, &st) || recording_writer_commit(w, &st);
        bool kept = recording_writer_abandon(w) == DONE;
        if (write(pipes[1], st.text, strlen(st.text)) < 0)
            exit(8);
        exit(failed ? kept ? 3 : 4 : 7); /* exit, not _exit: nothing may crash there */
    }
    close(pipes[1]);
    memset(st.text, 0, sizeof st.text);
    assert_true(read(pipes[0], st.text, sizeof st.text - 1) > 0);
    close(pipes[0]);
    waitpid(child, &code, 0);
    assert_true(WIFEXITED(code));
    return WEXITSTATUS(code);
}

static void test_full_disk(void **state) {
    (void)state;
    char *path = scratch_path("full.h5"), *partial = scratch_path("full.h5.partial");
    unlink(path);
    size_t kept = 0;
    for (rlim_t limit = 500000; limit < 520000; limit += 1234) {
        int said = fill_disk(path, limit);
        assert_in_range(said, 3, 4);
        assert_says("full.h5.partial");
        assert_says("File too large");
        assert_int_not_equal(access(path, F_OK), 0);
        if (said == 4)
            continue;
        recording *rec;
        assert_done(recording_open(partial, &rec, &st));
        size_t sequences = recording_about_of(rec)->sequences;
        assert_true(sequences >= 5 && sequences % 5 == 0);
        assert_contents(rec, sequences);
        recording_close(rec);
        kept++;
    }
    assert_true(kept > 5);
    /* Nothing was committed: nothing is left. */
    fill_disk(path, 80000);
    assert_int_not_equal(access(partial, F_OK), 0);
    free(path);
    free(partial);
}

static void test_lock_of_a_writer(void **state) {
    (void)state;
    recording_plan plan = synthetic_plan();
    char *path = scratch_path("busy.h5"), *partial = scratch_path("busy.h5.partial");
    int ready[2], done[2];
    assert_true(pipe(ready) == 0 && pipe(done) == 0);
    pid_t child = fork();
    if (child == 0) {
        recording_writer *w;
        char byte = (char)recording_writer_create(path, &plan, &w, &st);
        _exit(write(ready[1], &byte, 1) != 1 || read(done[0], &byte, 1) != 1);
    }
    char byte;
    assert_int_equal(read(ready[0], &byte, 1), 1);
    recording *rec;
    recording_writer *w;
    assert_int_equal(recording_open(partial, &rec, &st), FAILED);
    assert_says("busy.h5.partial: still being written");
    assert_says("HDF5_USE_FILE_LOCKING=FALSE");
    assert_int_equal(recording_writer_create(path, &plan, &w, &st), FAILED);
    assert_says("another process is writing it");
    assert_int_equal(write(done[1], &byte, 1), 1);
    waitpid(child, NULL, 0);
    free(path);
    free(partial);
}

static void test_output_that_cannot_be(void **state) {
    (void)state;
    recording_plan plan = synthetic_plan();
    recording_writer *w;
    char *folder = scratch_path("folder.h5"), *below = scratch_path("nowhere/x.h5");
    mkdir(folder, 0777);
    assert_int_equal(recording_writer_create(folder, &plan, &w, &st), FAILED);
    assert_says("folder.h5: exists and is no regular file");
    assert_int_equal(recording_writer_create(below, &plan, &w, &st), FAILED);
    assert_says("nowhere/x.h5.partial: cannot be created: No such file or directory");
    free(folder);
    free(below);
}

/* Runs the script beside this test; skips where Python lacks a module. */
static void run_python(const char *path, const char *mode) {
    char command[4096];
    snprintf(command, sizeof command,
             "$([ -x /usr/bin/python3 ] && echo /usr/bin/python3 || echo python3) "
             "probes/tests/open_recording.py %s %s",
             path, mode);
    int code = system(command);
    if (WEXITSTATUS(code) == 77 || WEXITSTATUS(code) == 127)
        skip();
    assert_int_equal(code, 0);
}

static void test_opens_in_python(void **state) {
    (void)state;
    char *path;
    recording_close(open_synthetic("python.h5", 6, 4, 0, &path));
    run_python(path, "");
    free(path);
}

static void test_h5dump(void **state) {
    (void)state;
    char *path, command[4096];
    recording_close(open_synthetic("dump.h5", 3, 3, 0, &path));
    if (system("command -v h5dump > /dev/null"))
        skip();
    snprintf(command, sizeof command, "h5dump -H %s | grep -q 'DATASET \"weights\"'", path);
    assert_int_equal(system(command), 0);
    free(path);
}

static void test_minimal_import(void **state) {
    (void)state;
    char *path = scratch_path("import.h5"), *means = scratch_path("import.h5.mean");
    run_python(path, "import");
    recording *rec;
    assert_done(recording_open(path, &rec, &st));
    const recording_about *about = recording_about_of(rec);
    assert_true(about->complete && about->has_weights);
    assert_false(about->has_sums || about->has_loss || about->has_hidden);
    assert_string_equal(about->residual_mode, "full_mh");
    assert_int_equal(about->sequences, 2);
    assert_int_equal(about->length[1], 3);
    assert_int_equal(about->start[0], -1);
    assert_int_equal(about->layers, 1);
    assert_int_equal(about->available[1 * 3 + 2], 0);
    assert_int_equal(about->newest[2], 2);
    double *mean, *contribution, *js, expected;
    assert_done(recording_read_row(rec, "mean", &mean, &st));
    FILE *file = fopen(means, "r");
    assert_non_null(file);
    for (size_t i = 0; i < 2 * 3 * 2 * 3; i++) {
        assert_int_equal(fscanf(file, "%lf", &expected), 1);
        assert_true((isnan(expected) && isnan(mean[i])) || fabs(mean[i] - expected) < 1e-6);
    }
    fclose(file);
    assert_done(recording_read_row(rec, "head_js", &js, &st));
    assert_true(js[(2 * 2 + 0) * 2 + 1] > 0 && fabs(js[(2 * 2 + 0) * 2]) < 1e-6);
    assert_done(recording_read_row(rec, "contribution", &contribution, &st));
    for (size_t i = 0; i < 2 * 3 * 2 * 3; i++)
        assert_true(isnan(contribution[i]));
    recording_close(rec);
    free(mean);
    free(js);
    free(contribution);
    free(path);
    free(means);
}

static void test_lie_about_extents(void **state) {
    (void)state;
    char *path = scratch_path("huge.h5");
    run_python(path, "huge");
    recording *rec;
    assert_int_equal(recording_open(path, &rec, &st), FAILED);
    assert_says("tokens/id: claims");
    free(path);
}

/* Overwrites one attribute of a good recording; opening must fail and say `expected`. */
static void refuse_schema(const char *schema, const char *expected) {
    char *path;
    recording *rec = open_synthetic("schema.h5", 1, 1, 0, &path);
    recording_close(rec);
    hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    if (schema)
        assert_true(h5_put_text(file, "schema", schema) >= 0);
    else
        assert_true(H5Adelete(file, "schema") >= 0);
    h5_close(&file);
    assert_int_equal(recording_open(path, &rec, &st), FAILED);
    assert_null(rec);
    assert_says("schema.h5");
    assert_says(expected);
    free(path);
}

static void test_schemas(void **state) {
    (void)state;
    refuse_schema("fathom-2", "newer");
    refuse_schema("fathom-10", "newer");
    refuse_schema("other-1", "expected fathom-1");
    refuse_schema("fathom-1x", "expected fathom-1");
    refuse_schema(NULL, "no recording");
}

static void test_no_recording(void **state) {
    (void)state;
    recording *rec;
    char *missing = scratch_path("missing.h5"), *text = scratch_path("text.h5");
    char *folder = scratch_path("."), *path, *cut = scratch_path("cut.h5");
    FILE *file = fopen(text, "w");
    fputs("this is a text\n", file);
    fclose(file);
    assert_int_equal(recording_open(missing, &rec, &st), FAILED);
    assert_says("missing.h5: No such file");
    assert_int_equal(recording_open(text, &rec, &st), FAILED);
    assert_says("text.h5: is no HDF5 file");
    assert_int_equal(recording_open(folder, &rec, &st), FAILED);
    assert_says("no regular file");
    recording_close(open_synthetic("whole.h5", 4, 4, 0, &path));
    char command[4096];
    snprintf(command, sizeof command, "head -c 9000 %s > %s", path, cut);
    assert_int_equal(system(command), 0);
    assert_int_equal(recording_open(cut, &rec, &st), FAILED);
    assert_says("cut.h5");
    free(missing);
    free(text);
    free(folder);
    free(path);
    free(cut);
}

/* `check` finds what is wrong: one number of a good file is changed. */
static void expect_failure(const char *dataset, const hsize_t *start, size_t rank, double value,
                           const char *expected) {
    char *path, name[] = "check";
    recording_close(open_synthetic("broken.h5", 3, 3, 0, &path));
    hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    hid_t data = H5Dopen2(file, dataset, H5P_DEFAULT);
    const hsize_t count[5] = {1, 1, 1, 1, 1};
    assert_true(h5_write(data, H5T_NATIVE_DOUBLE, rank, start, count, &value) >= 0);
    h5_close(&data);
    h5_close(&file);
    scratch_capture_begin();
    int code = command_run(2, (char *[]){name, path, NULL});
    char *text = scratch_capture_end();
    assert_int_equal(code, EXIT_NO);
    if (!strstr(text, expected))
        fail_msg("'%s' does not say '%s'", text, expected);
    free(text);
    free(path);
}

static void test_check_finds_faults(void **state) {
    (void)state;
    char *path, name[] = "check";
    recording_close(open_synthetic("good.h5", 3, 3, 0, &path));
    scratch_capture_begin();
    int code = command_run(2, (char *[]){name, path, NULL});
    char *text = scratch_capture_end();
    if (code != EXIT_DONE)
        fail_msg("%s", text);
    free(text);
    free(path);
    const hsize_t cell[5] = {1, 2, 3, 1, 2}, absent[5] = {1, 2, 3, 1, 5};
    expect_failure("routing/weights", cell, 5, 0.9, "FAIL  weights sum to 1");
    expect_failure("routing/weights", cell, 5, -0.1, "FAIL  weights are in 0..1");
    expect_failure("routing/weights", cell, 5, NAN, "FAIL  weights are NaN exactly where");
    expect_failure("routing/weights", absent, 5, 0, "FAIL  weights are NaN exactly where");
    expect_failure("routing_seq/entropy", (const hsize_t[]){1, 3, 1}, 3, 0.1,
                   "FAIL  accumulated rows agree with the weights");
    expect_failure("routing/top1", (const hsize_t[]){3, 1}, 2, 0.1,
                   "FAIL  routing_seq averages to routing");
    expect_failure("routing/newest", (const hsize_t[]){3}, 1, 1,
                   "FAIL  routing/newest: 1 at L1.mlp");
    expect_failure("tokens/id", (const hsize_t[]){1, 2}, 2, 16,
                   "FAIL  ids are inside the vocabulary");
    expect_failure("tokens/id", (const hsize_t[]){1, 7}, 2, 3, "FAIL  id -1 and loss NaN beyond");
    expect_failure("tokens/loss", (const hsize_t[]){1, 2}, 2, INFINITY, "FAIL  losses are finite");
    expect_failure("hidden/out_rms", (const hsize_t[]){1, 2, 3}, 3, NAN,
                   "FAIL  magnitudes are finite: 1 of ");
    expect_failure("hidden/out_rms", (const hsize_t[]){1, 2, 3}, 3, 1e6,
                   "FAIL  rms and median are at most absmax");
    expect_failure("hidden/state_absmax_channel", (const hsize_t[]){1, 2, 3}, 3, 4,
                   "FAIL  absmax channels");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_compressed_holds_the_same),
        cmocka_unit_test(test_long_sequences_are_chunked),
        cmocka_unit_test(test_same_bytes_whatever_the_time),
        cmocka_unit_test(test_means_over_sequences),
        cmocka_unit_test(test_rows_are_laid_out_by_label),
        cmocka_unit_test(test_interrupted_keeps_whole_sequences),
        cmocka_unit_test(test_killed_keeps_what_was_flushed),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_lock_of_a_writer),
        cmocka_unit_test(test_output_that_cannot_be),
        cmocka_unit_test(test_opens_in_python),
        cmocka_unit_test(test_h5dump),
        cmocka_unit_test(test_minimal_import),
        cmocka_unit_test(test_lie_about_extents),
        cmocka_unit_test(test_schemas),
        cmocka_unit_test(test_no_recording),
        cmocka_unit_test(test_check_finds_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
