/* test_capture.c - `fathom capture` as a user runs it: same bits whatever the batch and the
 * threads, flat memory, interruption, faults in the model.
 *
 * The program itself is run (the environment variable FATHOM, or build/fathom), so that each run
 * has its own threads and its own peak of memory. */
#include "probes/h5.h"
#include "probes/recording.h"
#include "runtime/tests/checkpoint_edit.h"
#include "runtime/tests/golden.h"
#include "runtime/tests/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <fcntl.h>
#include <hdf5_hl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MODEL "datasets/models/mhar-h8"
#define TEXT "datasets/text/opticks.txt"

static status st;

/* Starts the program with words up to a NULL; standard error goes to the file `log`. */
static pid_t start(const char *log, const char *const *words) {
    const char *program = getenv("FATHOM");
    char *argv[40] = {"fathom"};
    size_t n = 1;
    for (; words[n - 1] && n < 39; n++)
        argv[n] = (char *)(uintptr_t)words[n - 1];
    pid_t child = fork();
    if (child == 0) {
        int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        dup2(fd, STDERR_FILENO);
        dup2(fd, STDOUT_FILENO);
        /* Threads that wait do not spin: tests may share their cores. */
        setenv("OMP_WAIT_POLICY", "passive", 1);
        execv(program ? program : "build/fathom", argv);
        _exit(127);
    }
    return child;
}

/* Exit status; *peak: largest resident set in kB. */
static int finish(pid_t child, long *peak) {
    int code;
    struct rusage usage;
    assert_int_equal(wait4(child, &code, 0, &usage), child);
    if (peak)
        *peak = usage.ru_maxrss;
    assert_true(WIFEXITED(code));
    return WEXITSTATUS(code);
}

static char *log_path(void) {
    return scratch_path("capture.log");
}

/* What the last program printed. */
static char *last_log(void) {
    char *path = log_path();
    size_t bytes;
    char *text = file_text(path, &bytes);
    free(path);
    assert_non_null(text);
    return text;
}

static void assert_logged(const char *part) {
    char *text = last_log();
    if (!strstr(text, part))
        fail_msg("'%s' does not say '%s'", text, part);
    free(text);
}

static void expect_exit(int expected, const char *const *words) {
    char *log = log_path();
    int code = finish(start(log, words), NULL);
    if (code != expected) {
        char *text = last_log();
        fail_msg("exit %d, expected %d: %s", code, expected, text);
    }
    free(log);
}

/* Runs to the end with an expected status. */
#define fathom(expected, ...) expect_exit(expected, (const char *const[]){__VA_ARGS__, NULL})

/* Rows of ids as a 2-D .npy file of int32; negative ids end a row. */
static char *write_npy(const char *name, const int32_t *id, size_t rows, size_t columns) {
    char *path = scratch_path(name);
    golden_write_tokens(path, id, rows, columns);
    return path;
}

/* Nine sequences of unequal length, ids 32 to 121. */
static char *write_unequal(void) {
    enum { ROWS = 9, COLUMNS = 48 };
    static const int length[ROWS] = {48, 7, 33, 2, 48, 19, 41, 3, 26};
    int32_t id[ROWS][COLUMNS];
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLUMNS; c++)
            id[r][c] = c < length[r] ? 32 + (7 * r + 5 * c + c * c % 11) % 90 : -1;
    return write_npy("unequal.npy", *id, ROWS, COLUMNS);
}

/* ---- the same bits ---- */

typedef struct comparison {
    hid_t other;
    size_t datasets, different;
    char first[128];
} comparison;

/* Raw bytes of a dataset of numbers, or texts one after the other. */
static void *whole(hid_t file, const char *name, size_t *bytes) {
    hid_t dataset = H5Dopen2(file, name, H5P_DEFAULT);
    hid_t type = H5Dget_type(dataset), space = H5Dget_space(dataset);
    char *data = NULL;
    if (H5Tget_class(type) == H5T_STRING) {
        size_t count, used = 0;
        char **texts;
        assert_int_equal(h5_get_texts(file, "file", name, &count, &texts, &st), DONE);
        data = calloc(count, 64);
        for (size_t i = 0; i < count; i++)
            used += (size_t)sprintf(data + used, "%s\n", texts[i]);
        *bytes = used;
        free(texts);
    } else {
        *bytes = (size_t)H5Sget_simple_extent_npoints(space) * H5Tget_size(type);
        data = malloc(*bytes + 1);
        assert_true(H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0);
    }
    h5_close(&dataset);
    h5_close(&type);
    h5_close(&space);
    return data;
}

static herr_t compare_dataset(hid_t file, const char *name, const H5O_info_t *info, void *context) {
    comparison *c = context;
    if (info->type != H5O_TYPE_DATASET)
        return 0;
    size_t a_bytes, b_bytes;
    c->datasets++;
    void *a = whole(file, name, &a_bytes);
    void *b = h5_has(c->other, name) ? whole(c->other, name, &b_bytes) : NULL;
    if ((!b || a_bytes != b_bytes || memcmp(a, b, a_bytes)) && c->different++ == 0)
        snprintf(c->first, sizeof c->first, "%s", name);
    free(a);
    free(b);
    return 0;
}

static void assert_same_recording(const char *a, const char *b) {
    h5_prepare();
    hid_t file = H5Fopen(a, H5F_ACC_RDONLY, H5P_DEFAULT);
    comparison c = {.other = H5Fopen(b, H5F_ACC_RDONLY, H5P_DEFAULT)};
    H5Ovisit(file, H5_INDEX_NAME, H5_ITER_INC, compare_dataset, &c);
    h5_close(&file);
    h5_close(&c.other);
    if (c.different)
        fail_msg("%zu of %zu datasets differ, first %s", c.different, c.datasets, c.first);
    assert_true(c.datasets > 50);
}

static void test_batch_and_threads_do_not_matter(void **state) {
    (void)state;
    char *tokens = write_unequal(), *first = scratch_path("b1t1.h5"),
         *other = scratch_path("bt.h5");
    const char *record = "in/*,out/L3.*,state/*,attention,attention/pattern/L3";
    fathom(0, "capture", MODEL, "--tokens", tokens, "--batch", "1", "--threads", "1", "--gradients",
           "--null", "3", "--null-sequences", "5", "--record", record, "-o", first);
    static const char *const setting[][2] = {
        {"1", "2"}, {"3", "1"}, {"3", "2"}, {"8", "1"}, {"8", "2"}};
    for (size_t i = 0; i < sizeof setting / sizeof *setting; i++) {
        fathom(0, "capture", MODEL, "--tokens", tokens, "--batch", setting[i][0], "--threads",
               setting[i][1], "--gradients", "--null", "3", "--null-sequences", "5", "--record",
               record, "-o", other);
        assert_same_recording(first, other);
    }
    fathom(0, "check", first);
    recording *rec;
    assert_int_equal(recording_open(first, &rec, &st), DONE);
    assert_int_equal(recording_about_of(rec)->sequences, 9);
    assert_int_equal(recording_about_of(rec)->length[3], 2);
    assert_int_equal(recording_about_of(rec)->start[3], 3 * 48);
    recording_close(rec);
    free(tokens);
    free(first);
    free(other);
}

/* What is recorded beside them does not change tokens, losses, magnitudes and statistics. */
static void test_extras_do_not_matter(void **state) {
    (void)state;
    char *plain = scratch_path("plain.h5"), *rich = scratch_path("rich.h5");
    fathom(0, "capture", MODEL, "--text", TEXT, "--context", "32", "--sequences", "4", "-o", plain);
    fathom(0, "capture", MODEL, "--text", TEXT, "--context", "32", "--sequences", "4",
           "--gradients", "--null", "2", "--record", "in/*,state/*,attention,attention/pattern/*",
           "--compress", "3", "-o", rich);
    assert_same_recording(plain, rich);
    free(plain);
    free(rich);
}

/* ---- the right numbers ---- */

/* A recorded row, token-weighted over the sequences, against float64 statistics of one site; the
 * site's sources stand in the same order on the recording's source axis. Returns how many numbers
 * were compared. */
static size_t assert_golden_row(recording *rec, checkpoint *expected, const char *name,
                                size_t site) {
    const recording_about *about = recording_about_of(rec);
    const routing_row *row = routing_row_find(name);
    size_t size = routing_row_size(row, about->heads, about->sources), elements, shape[8], n = 0;
    char path[64];
    snprintf(path, sizeof path, "stats/%s/%s", about->site_name[site], name);
    double *want = golden_array(expected, path, &elements, shape), *data;
    if (!want)
        return 0;
    assert_int_equal(recording_read_row(rec, name, &data, &st), DONE);
    for (size_t i = 0; i < size; i++) {
        double sum = 0, tokens = 0;
        for (size_t seq = 0; seq < about->sequences; seq++) {
            double count = (double)recording_sum_tokens(rec, seq);
            sum += count * data[(seq * about->sites + site) * size + i];
            tokens += count;
        }
        if (isnan(sum))
            continue; /* a source that the site does not have */
        assert_true(n < elements);
        if (fabs(sum / tokens - want[n]) > 1e-5)
            fail_msg("%s %s[%zu]: %.9g, expected %.9g", about->path, path, n, sum / tokens,
                     want[n]);
        n++;
    }
    assert_int_equal(n, elements);
    free(data);
    free(want);
    return n;
}

static void test_recorded_statistics_are_golden(void **state) {
    (void)state;
    static const char *const models[] = {"full-h4", "full-h1", "block-h3-n5", "delta-h4-n2",
                                         "delta-raw-h1"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        char dir[256], file[300];
        size_t sequences, length, compared = 0;
        checkpoint *expected;
        recording *rec;
        snprintf(dir, sizeof dir, "%s/tiny/%s", golden_folder(), models[m]);
        snprintf(file, sizeof file, "%s/expected.safetensors", dir);
        assert_int_equal(checkpoint_open(file, &expected, &st), DONE);
        int32_t *id = golden_tokens(expected, &sequences, &length);
        char *tokens = write_npy("golden.npy", id, sequences, length);
        char *path = scratch_path("golden.h5");
        fathom(0, "capture", dir, "--tokens", tokens, "-o", path);
        assert_int_equal(recording_open(path, &rec, &st), DONE);
        for (size_t site = 0; site < recording_about_of(rec)->sites; site++)
            for (size_t r = 0; r < routing_row_count; r++)
                compared += assert_golden_row(rec, expected, routing_rows[r].name, site);
        assert_true(compared > 300);
        recording_close(rec);
        checkpoint_close(expected);
        free(id);
        free(tokens);
        free(path);
    }
}

/* ---- the right gradients ---- */

/* Bounds of runtime/tests/test_gradients.c, whose passes these are. */
static const double NORM_BOUND = 6e-5, PARAM_BOUND = 5e-4, SMALL_PART = 1e-3;

/* A grad/NAME row at one place against the golden array `golden` [sequences, length]. */
static void assert_golden_norms(recording *rec, checkpoint *expected, const char *name,
                                size_t place, size_t places, const char *golden) {
    const recording_about *about = recording_about_of(rec);
    size_t elements, shape[8], length = about->positions;
    double *want = golden_array(expected, golden, &elements, shape);
    float *row = malloc(length * places * sizeof *row);
    float *got = malloc(about->sequences * length * sizeof *got);
    assert_non_null(want);
    assert_int_equal(elements, about->sequences * length);
    for (size_t seq = 0; seq < about->sequences; seq++) {
        assert_int_equal(recording_read_gradient(rec, name, seq, row, &st), DONE);
        for (size_t t = 0; t < length; t++)
            got[seq * length + t] = row[t * places + place];
    }
    double error = relative_l2(got, want, elements);
    if (!(error <= NORM_BOUND))
        fail_msg("%s %s: relative error %.3g", about->path, golden, error);
    free(want);
    free(row);
    free(got);
}

/* Every parameter, each layer, and each site's queries, whose slices add up to the whole. */
static void assert_golden_parameters(recording *rec, checkpoint *expected) {
    const recording_about *about = recording_about_of(rec);
    double *param, *layer, *query, all = 0, queries = 0, slices = 0;
    double *square = calloc(about->layers, sizeof *square);
    double *want = calloc(about->params, sizeof *want);
    assert_int_equal(recording_read_gradient_norms(rec, "param_l2", &param, &st), DONE);
    assert_int_equal(recording_read_gradient_norms(rec, "layer_l2", &layer, &st), DONE);
    assert_int_equal(recording_read_gradient_norms(rec, "query_l2", &query, &st), DONE);
    for (size_t i = 0; i < about->params; i++) {
        char name[160];
        size_t elements, shape[8], in;
        snprintf(name, sizeof name, "grad_l2/%s", about->param_name[i]);
        double *value = golden_array(expected, name, &elements, shape);
        assert_non_null(value);
        want[i] = *value;
        free(value);
        all += want[i] * want[i];
        if (sscanf(about->param_name[i], "model.layers.%zu.", &in) == 1)
            square[in] += want[i] * want[i];
        if (strstr(about->param_name[i], "res_proj.weight"))
            queries += want[i] * want[i];
    }
    for (size_t i = 0; i < about->params; i++) {
        double error = fabs(param[i] - want[i]) / fmax(want[i], SMALL_PART * sqrt(all));
        if (!(error <= PARAM_BOUND))
            fail_msg("%s: %s: relative error %.3g", about->path, about->param_name[i], error);
    }
    for (size_t i = 0; i < about->layers; i++)
        assert_true(fabs(layer[i] / sqrt(square[i]) - 1) <= PARAM_BOUND);
    for (size_t i = 0; i < about->sites * about->heads; i++)
        slices += isnan(query[i]) ? 0 : query[i] * query[i];
    assert_true(fabs(sqrt(slices) - sqrt(queries)) <= PARAM_BOUND * sqrt(queries));
    assert_int_equal(about->sources == 0, isnan(query[about->heads]));
    free(param);
    free(layer);
    free(query);
    free(square);
    free(want);
}

static void test_recorded_gradients_are_golden(void **state) {
    (void)state;
    static const char *const models[] = {"full-h4", "block-h3-n5", "delta-h4-n2", "delta-raw-h1",
                                         "standard-llama"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        char dir[256], file[300], golden[64];
        size_t sequences, length;
        checkpoint *expected;
        recording *rec;
        snprintf(dir, sizeof dir, "%s/tiny/%s", golden_folder(), models[m]);
        snprintf(file, sizeof file, "%s/expected.safetensors", dir);
        assert_int_equal(checkpoint_open(file, &expected, &st), DONE);
        int32_t *id = golden_tokens(expected, &sequences, &length);
        char *tokens = write_npy("golden.npy", id, sequences, length);
        char *path = scratch_path("golden.h5");
        fathom(0, "capture", dir, "--tokens", tokens, "--gradients", "-o", path);
        fathom(0, "check", path);
        assert_int_equal(recording_open(path, &rec, &st), DONE);
        const recording_about *about = recording_about_of(rec);
        assert_true(about->has_gradients);
        assert_int_equal(about->grad_tokens, sequences * (length - 1));
        for (size_t i = 0; i < about->sites; i++) {
            snprintf(golden, sizeof golden, "grad_in_l2/%s", about->site_name[i]);
            assert_golden_norms(rec, expected, "in_l2", i, about->sites, golden);
            if (i == about->sublayers)
                continue;
            snprintf(golden, sizeof golden, "grad_out_l2/%s", about->site_name[i]);
            assert_golden_norms(rec, expected, "out_l2", i, about->sublayers, golden);
        }
        assert_golden_norms(rec, expected, "emb_l2", 0, 1, "grad_emb_l2");
        assert_golden_parameters(rec, expected);
        recording_close(rec);
        checkpoint_close(expected);
        free(id);
        free(tokens);
        free(path);
    }
}

/* Adds to one number of a dataset. */
static void spoil(hid_t file, const char *name, hsize_t at, float add) {
    hid_t dataset = H5Dopen2(file, name, H5P_DEFAULT);
    const hsize_t start[3] = {at}, count[3] = {1, 1, 1};
    size_t rank, extent[3];
    float x;
    assert_int_equal(h5_shape(dataset, 3, &rank, extent), DONE);
    assert_true(h5_read(dataset, H5T_NATIVE_FLOAT, rank, start, count, &x) >= 0);
    x += add;
    assert_true(h5_write(dataset, H5T_NATIVE_FLOAT, rank, start, count, &x) >= 0);
    h5_close(&dataset);
}

static void test_check_finds_faults_in_gradients(void **state) {
    (void)state;
    char *path = scratch_path("spoilt.h5");
    const int64_t tokens = 17;
    fathom(0, "capture", MODEL, "--text", TEXT, "--context", "16", "--sequences", "2",
           "--gradients", "-o", path);
    hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    spoil(file, "grad/out_l2", 1, -1e9F);
    spoil(file, "grad/emb_l2", 1, NAN);
    spoil(file, "grad/layer_l2", 3, 1);
    assert_true(h5_put_number(file, "grad_tokens", H5T_NATIVE_INT64, &tokens) >= 0);
    h5_close(&file);
    fathom(1, "check", path);
    assert_logged("FAIL  gradient norms are finite: 1 of ");
    assert_logged("FAIL  gradient norms are not negative: 1 of ");
    assert_logged("first at sequence 1 position 0 L0.attn;");
    assert_logged("FAIL  layer_l2 is the root of its parameters' squares: 1 of 8");
    assert_logged("FAIL  grad_tokens: 17, but the sequences have 30 predicted tokens");
    free(path);
}

/* ---- memory ---- */

static long peak_of(const char *sequences, const char *path) {
    long peak;
    char *log = log_path();
    const char *const words[] = {"capture", MODEL,         "--text",  TEXT,      "--context",
                                 "32",      "--sequences", sequences, "--batch", "8",
                                 "-q",      "--gradients", "-o",      path,      NULL};
    assert_int_equal(finish(start(log, words), &peak), 0);
    free(log);
    return peak;
}

static void test_memory_is_flat(void **state) {
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    skip(); /* freed memory is kept for a while on purpose */
#endif
    char *path = scratch_path("flat.h5");
    long few = peak_of("64", path), many = peak_of("512", path);
    if ((double)many > 1.05 * (double)few)
        fail_msg("64 sequences take %ld kB, 512 take %ld kB", few, many);
    unlink(path);
    free(path);
}

/* ---- interruption ---- */

/* Waits until the file has grown to some size, then `delay` ms. */
static void wait_for_size(const char *path, long bytes, long delay) {
    struct stat found = {0};
    for (int i = 0; i < 6000 && found.st_size < bytes; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        stat(path, &found);
    }
    nanosleep(&(struct timespec){.tv_nsec = delay * 1000000}, NULL);
}

static void test_interrupt_keeps_a_partial(void **state) {
    (void)state;
    char *path = scratch_path("int.h5"), *partial = scratch_path("int.h5.partial");
    char *log = log_path();
    unlink(path);
    unlink(partial);
    const char *const words[] = {"capture", MODEL,      "--text", TEXT,      "--context",
                                 "32",      "--stride", "4",      "--batch", "4",
                                 "-o",      path,       NULL};
    pid_t child = start(log, words);
    wait_for_size(partial, 2000000, 0); /* some batches are through */
    kill(child, SIGINT);
    assert_int_equal(finish(child, NULL), 130);
    assert_logged("interrupted: ");
    assert_int_not_equal(access(path, F_OK), 0);
    recording *rec;
    assert_int_equal(recording_open(partial, &rec, &st), DONE);
    const recording_about *about = recording_about_of(rec);
    assert_false(about->complete);
    assert_true(about->sequences >= 4 && about->sequences % 4 == 0);
    recording_close(rec);
    fathom(1, "check", partial);
    assert_logged("FAIL  incomplete");
    char *text = last_log();
    assert_null(strstr(strstr(text, "FAIL") + 4, "FAIL")); /* nothing else is wrong with it */
    free(text);
    fathom(0, "routing", partial);
    free(path);
    free(partial);
    free(log);
}

/* A whole run over the first sequences of the text alone. */
static void capture_prefix(size_t sequences, const char *path) {
    size_t bytes = 32 + 4 * (sequences - 1), all_bytes;
    char *all = file_text(TEXT, &all_bytes), *prefix = scratch_path("prefix.txt");
    assert_int_equal(file_write(prefix, all, bytes), 0);
    fathom(0, "capture", MODEL, "--text", prefix, "--context", "32", "--stride", "4", "--gradients",
           "-o", path);
    free(all);
    free(prefix);
}

/* The parameters' gradients of an interrupted run are those of the sequences it kept, wherever in a
 * batch the signal came: a whole run over just these has the same bits. */
static void test_interrupted_gradients_are_of_what_was_kept(void **state) {
    (void)state;
    char *path = scratch_path("gint.h5"), *partial = scratch_path("gint.h5.partial");
    char *whole_path = scratch_path("gwhole.h5"), *log = log_path();
    const char *const words[] = {"capture",     MODEL,      "--text", TEXT,      "--context",
                                 "32",          "--stride", "4",      "--batch", "32",
                                 "--gradients", "-o",       path,     NULL};
    for (long delay = 100; delay <= 300; delay += 100) {
        unlink(partial);
        pid_t child = start(log, words);
        wait_for_size(partial, 12000000, delay); /* the second batch */
        kill(child, SIGINT);
        assert_int_equal(finish(child, NULL), 130);
        fathom(1, "check", partial);
        assert_logged("ok    grad_tokens are the ");
        assert_logged("ok    gradient norms are finite");
        recording *kept, *again;
        assert_int_equal(recording_open(partial, &kept, &st), DONE);
        const recording_about *about = recording_about_of(kept);
        capture_prefix(about->sequences, whole_path);
        assert_int_equal(recording_open(whole_path, &again, &st), DONE);
        assert_int_equal(recording_about_of(again)->sequences, about->sequences);
        assert_int_equal(recording_about_of(again)->grad_tokens, about->grad_tokens);
        double *a, *b;
        assert_int_equal(recording_read_gradient_norms(kept, "param_l2", &a, &st), DONE);
        assert_int_equal(recording_read_gradient_norms(again, "param_l2", &b, &st), DONE);
        assert_memory_equal(a, b, about->params * sizeof *a);
        free(a);
        free(b);
        recording_close(kept);
        recording_close(again);
    }
    free(path);
    free(partial);
    free(whole_path);
    free(log);
}

/* What a killed run leaves says that the parameters' gradients are not there. */
static void test_killed_gradients_read(void **state) {
    (void)state;
    char *path = scratch_path("gkill.h5"), *partial = scratch_path("gkill.h5.partial");
    char *log = log_path();
    const char *const words[] = {"capture", MODEL, "--text",      TEXT, "--context", "32",
                                 "--batch", "4",   "--gradients", "-o", path,        NULL};
    unlink(partial);
    pid_t child = start(log, words);
    wait_for_size(partial, 3000000, 0);
    int code;
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &code, 0), child);
    fathom(1, "check", partial);
    assert_logged("ok    gradient norms are finite");
    assert_logged("--    grad_tokens: not written");
    fathom(0, "depth", partial);
    free(path);
    free(partial);
    free(log);
}

/* ---- faults ---- */

static void set_nan(const char *name, float *values, size_t count, void *user) {
    (void)name;
    (void)count;
    (void)user;
    values[0] = NAN;
}

static void test_nan_in_a_model_is_said(void **state) {
    (void)state;
    char *dir = scratch_path("nan-model"), *tokens = scratch_path("nan.bin");
    char *path = scratch_path("nan.h5");
    assert_int_equal(checkpoint_copy("datasets/golden/tiny/full-h4", dir), 0);
    assert_int_equal(edit_tensor(dir, "model.layers.2.mlp.down_proj.weight", set_nan, NULL), 1);
    int32_t header[256] = {20240520, 1, 40};
    uint16_t id[40];
    for (int i = 0; i < 40; i++)
        id[i] = (uint16_t)i;
    FILE *file = fopen(tokens, "wb");
    fwrite(header, 1, sizeof header, file);
    fwrite(id, 1, sizeof id, file);
    fclose(file);
    fathom(0, "capture", dir, "--tokens", tokens, "--context", "20", "-o", path);
    assert_logged("warning: NaN or Inf in out_rms of L2.mlp, sequence 0, position 0");
    assert_logged(" values are NaN or Inf");
    fathom(1, "check", path);
    assert_logged("FAIL  magnitudes are finite");
    free(dir);
    free(tokens);
    free(path);
}

/* Row 5 of a table of 61 tokens: that token's embedding. */
static void set_row_nan(const char *name, float *values, size_t count, void *user) {
    (void)name;
    (void)user;
    values[5 * (count / 61)] = NAN;
}

/* Sequence 1 has the token whose embedding is NaN, sequence 0 meets NaN only in layer 2: the first
 * sequence is named, whether or not both are in one batch. (The output head is not tied.) */
static void test_first_nan_is_of_the_first_sequence(void **state) {
    (void)state;
    char *dir = scratch_path("nan-model"), *path = scratch_path("nan.h5");
    const int32_t id[2][4] = {{1, 2, 3, 4}, {2, 5, 1, 3}};
    char *tokens = write_npy("nan.npy", *id, 2, 4);
    static const char *const down = "model.layers.2.mlp.down_proj.weight";
    for (int twice = 0; twice < 2; twice++) {
        assert_int_equal(checkpoint_copy("datasets/golden/tiny/standard-qwen3", dir), 0);
        assert_int_equal(edit_tensor(dir, "model.embed_tokens.weight", set_row_nan, NULL), 1);
        if (twice)
            assert_int_equal(edit_tensor(dir, down, set_nan, NULL), 1);
        for (int size = 1; size <= 2; size++) {
            fathom(0, "capture", dir, "--tokens", tokens, "--gradients", "--batch",
                   size == 1 ? "1" : "2", "-o", path);
            assert_logged(twice ? "NaN or Inf in out_rms of L2.mlp, sequence 0, position 0"
                                : "NaN or Inf in in_rms of L0.attn, sequence 1, position 1");
            assert_logged("parameters are NaN or Inf, first model.embed_tokens.weight");
        }
        fathom(1, "check", path);
        assert_logged("FAIL  gradient norms are finite");
    }
    free(dir);
    free(path);
    free(tokens);
}

static void test_token_outside_the_vocabulary(void **state) {
    (void)state;
    char *tokens = write_unequal(), *path = scratch_path("outside.h5"); /* ids up to 121 */
    char *partial = scratch_path("outside.h5.partial");
    fathom(2, "capture", "datasets/golden/tiny/full-h4", "--tokens", tokens, "-o", path);
    assert_logged("unequal.npy");
    assert_int_not_equal(access(path, F_OK), 0);
    assert_int_not_equal(access(partial, F_OK), 0); /* no sequence was finished */
    free(tokens);
    free(path);
    free(partial);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch_and_threads_do_not_matter),
        cmocka_unit_test(test_extras_do_not_matter),
        cmocka_unit_test(test_recorded_statistics_are_golden),
        cmocka_unit_test(test_recorded_gradients_are_golden),
        cmocka_unit_test(test_check_finds_faults_in_gradients),
        cmocka_unit_test(test_memory_is_flat),
        cmocka_unit_test(test_interrupt_keeps_a_partial),
        cmocka_unit_test(test_interrupted_gradients_are_of_what_was_kept),
        cmocka_unit_test(test_killed_gradients_read),
        cmocka_unit_test(test_nan_in_a_model_is_said),
        cmocka_unit_test(test_first_nan_is_of_the_first_sequence),
        cmocka_unit_test(test_token_outside_the_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
