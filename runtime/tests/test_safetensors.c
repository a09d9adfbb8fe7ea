/* test_safetensors.c - reading weights: values of every dtype, shards, and what is refused. */
#include "runtime/safetensors.h"

#include "runtime/base/options.h"
#include "runtime/tests/checkpoint_edit.h"
#include "runtime/tests/scratch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* A file with this header and `bytes` of data (zeros where `data` is NULL). The path is freed by
 * the caller. */
static char *write_file(const char *name, const char *header, const void *data, size_t bytes) {
    char *path = scratch_path(name);
    uint64_t length = strlen(header);
    char *text = calloc(1, 8 + (size_t)length + bytes + 1);
    assert_non_null(text);
    memcpy(text, &length, 8);
    memcpy(text + 8, header, (size_t)length);
    if (data)
        memcpy(text + 8 + length, data, bytes);
    assert_int_equal(file_write(path, text, 8 + (size_t)length + bytes), 0);
    free(text);
    return path;
}

/* Opening must fail with every given part (NULL ends them) in the message. */
static void refused(const char *path, ...) {
    checkpoint *ck;
    status st = {""};
    va_list parts;
    assert_int_equal(checkpoint_open(path, &ck, &st), FAILED);
    assert_null(ck);
    va_start(parts, path);
    for (const char *part; (part = va_arg(parts, const char *));)
        if (!strstr(st.text, part))
            fail_msg("\"%s\" lacks \"%s\"", st.text, part);
    va_end(parts);
}

static void refused_header(const char *header, size_t data_bytes, const char *a, const char *b) {
    char *path = write_file("bad.safetensors", header, NULL, data_bytes);
    refused(path, "bad.safetensors", a, b, NULL);
    free(path);
}

static checkpoint *opened(const char *path) {
    checkpoint *ck;
    status st;
    if (checkpoint_open(path, &ck, &st))
        fail_msg("%s", st.text);
    return ck;
}

/* The one tensor of a file as floats. */
static float *read_one(const char *dtype, const void *data, size_t count, size_t bytes) {
    char header[256];
    status st;
    snprintf(header, sizeof header,
             "{\"x\":{\"dtype\":\"%s\",\"shape\":[%zu],\"data_offsets\":[0,%zu]}}", dtype, count,
             bytes);
    char *path = write_file("one.safetensors", header, data, bytes);
    checkpoint *ck = opened(path);
    float *out = malloc((count + 1) * sizeof *out);
    assert_non_null(out);
    assert_int_equal(checkpoint_read(ck, checkpoint_find(ck, "x"), out, &st), DONE);
    checkpoint_close(ck);
    free(path);
    return out;
}

/* All 65536 values of a 16-bit format with this many bits of fraction: subnormals, infinities, NaN
 * and the sign of zero included. */
static void check_halves(const char *dtype, int fraction_bits) {
    static uint16_t half[65536];
    int top = (1 << (15 - fraction_bits)) - 1, one = 1 << fraction_bits;
    int bias = top / 2 + fraction_bits;
    for (size_t i = 0; i < 65536; i++)
        half[i] = (uint16_t)i;
    float *out = read_one(dtype, half, 65536, sizeof half);
    for (int i = 0; i < 65536; i++) {
        int exponent = i >> fraction_bits & top, fraction = i & (one - 1);
        double size = exponent == 0     ? ldexp(fraction, 1 - bias)
                      : exponent == top ? (fraction ? (double)NAN : (double)INFINITY)
                                        : ldexp(one + fraction, exponent - bias);
        bool same = isnan(size) ? isnan(out[i])
                                : (double)out[i] == (i >> 15 ? -size : size) &&
                                      (signbit(out[i]) != 0) == (i >> 15 != 0);
        if (!same)
            fail_msg("%s 0x%04x: %g, expected %g", dtype, (unsigned)i, (double)out[i], size);
    }
    free(out);
}

static void f16_all_values(void **state) {
    (void)state;
    check_halves("F16", 10);
}

static void bf16_all_values(void **state) {
    (void)state;
    check_halves("BF16", 7);
}

static void f32_and_f64(void **state) {
    (void)state;
    const float narrow[] = {1.5f, -0.0f, 1e-45f, INFINITY, NAN};
    const double wide[] = {0.1, -1e300, 1e-60, 3};
    float *out = read_one("F32", narrow, 5, sizeof narrow);
    assert_memory_equal(out, narrow, sizeof narrow);
    free(out);
    out = read_one("F64", wide, 4, sizeof wide);
    assert_true(out[0] == 0.1f && out[1] == -INFINITY && out[2] == 0 && out[3] == 3);
    free(out);
}

static void other_dtypes_are_listed_but_not_read(void **state) {
    (void)state;
    status st;
    float out[2];
    char *path = write_file("other.safetensors",
                            "{\"a\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[0,16]},"
                            "\"b\":{\"dtype\":\"NEW\",\"shape\":[2],\"data_offsets\":[16,17]}}",
                            NULL, 17);
    checkpoint *ck = opened(path);
    const tensor_info *a = checkpoint_find(ck, "a"), *b = checkpoint_find(ck, "b");
    assert_int_equal(a->dtype, DTYPE_OTHER);
    assert_string_equal(b->dtype_text, "NEW");
    assert_int_equal(checkpoint_read(ck, a, out, &st), FAILED);
    assert_non_null(strstr(st.text, "other.safetensors: a: dtype I64, expected F32"));
    checkpoint_close(ck);
    free(path);
}

static void parts_equal_the_whole(void **state) {
    (void)state;
    enum { N = 200000 };
    status st;
    char header[128];
    uint16_t *half = malloc(N * sizeof *half);
    float *whole = malloc(N * sizeof *whole), *part = malloc(N * sizeof *part);
    assert_true(half && whole && part);
    for (size_t i = 0; i < N; i++)
        half[i] = (uint16_t)(i * 31 % 30000);
    snprintf(header, sizeof header,
             "{\"x\":{\"dtype\":\"BF16\",\"shape\":[%d],\"data_offsets\":[0,%d]}}", N, 2 * N);
    char *path = write_file("parts.safetensors", header, half, 2 * N);
    checkpoint *ck = opened(path);
    const tensor_info *x = checkpoint_find(ck, "x");
    assert_int_equal(checkpoint_read(ck, x, whole, &st), DONE);
    for (size_t at = 0; at < N; at += 70001) {
        size_t count = N - at < 70001 ? N - at : 70001;
        assert_int_equal(checkpoint_read_part(ck, x, at, count, part + at, &st), DONE);
    }
    assert_memory_equal(whole, part, N * sizeof *whole);
    assert_int_equal(checkpoint_read_part(ck, x, N - 1, 2, part, &st), FAILED);
    checkpoint_close(ck);
    free(path);
    free(half);
    free(whole);
    free(part);
}

static void table_metadata_and_empty_tensors(void **state) {
    (void)state;
    status st;
    float out[4];
    const float data[] = {1, 2, 3, 4, 5};
    char *path = write_file("table.safetensors",
                            "{\"__metadata__\":{\"format\":\"pt\"},"
                            "\"z\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]},"
                            "\"none\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[16,16]},"
                            "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[16,20]}}   \n",
                            data, sizeof data);
    checkpoint *ck = opened(path);
    assert_int_equal(checkpoint_tensors(ck), 3);
    assert_string_equal(checkpoint_tensor(ck, 0)->name, "a");
    assert_string_equal(checkpoint_tensor(ck, 2)->name, "z");
    assert_string_equal(checkpoint_metadata(ck, "format"), "pt");
    assert_null(checkpoint_metadata(ck, "absent"));
    assert_null(checkpoint_find(ck, "absent"));
    assert_int_equal(checkpoint_find(ck, "none")->elements, 0);
    assert_int_equal(checkpoint_find(ck, "a")->rank, 0);
    assert_int_equal(checkpoint_read(ck, checkpoint_find(ck, "a"), out, &st), DONE);
    assert_true(out[0] == 5);
    assert_int_equal(checkpoint_read(ck, checkpoint_find(ck, "none"), out, &st), DONE);
    checkpoint_close(ck);
    free(path);
}

static void files_that_are_no_safetensors(void **state) {
    (void)state;
    char *path = scratch_path("bad.safetensors");
    unlink(path);
    refused(path, "bad.safetensors", "cannot open", "No such file", NULL);
    file_write(path, "", 0);
    refused(path, "bad.safetensors", "0 bytes, too short", NULL);
    file_write(path, "1234567", 7);
    refused(path, "7 bytes, too short", NULL);
    file_write(path, "version https://git-lfs.github.com/spec/v1\n", 43);
    refused(path, "Git LFS pointer", "git lfs pull", NULL);
    file_write(path, "PK\3\4\0\0\0\0 a zip file", 19);
    refused(path, "header of 67324752 bytes in a file of 19 bytes", NULL);
    uint64_t length = 100000001;
    file_write(path, &length, sizeof length);
    refused(path, "header of 100000001 bytes, at most 100000000", NULL);
    free(path);
    path = scratch_path("no-weights");
    mkdir(path, 0777);
    refused(path, "no-weights", "no model.safetensors and no model.safetensors.index.json", NULL);
    free(path);
}

static void headers_that_are_wrong(void **state) {
    (void)state;
    refused_header("not json", 0, "not valid JSON", "line 1");
    refused_header("[1,2]", 0, "not a JSON object", "bad");
    refused_header("{} x", 0, "after the end", "bad");
    refused_header("", 0, "empty", "bad");
    refused_header("{\"x\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "x: dtype", "absent");
    refused_header("{\"x\":3}", 4, "x: dtype", "absent");
    refused_header("{\"x\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "x: shape", "absent");
    refused_header("{\"x\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "x: data_offsets",
                   "two whole numbers");
    refused_header("{\"x\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4,
                   "x: shape, axis 0", "whole number");
    refused_header("{\"x\":{\"dtype\":\"F32\",\"shape\":[1,1.5],\"data_offsets\":[0,4]}}", 4,
                   "x: shape, axis 1", "whole number");
    refused_header(
        "{\"x\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4,
        "x: more than 8 axes", "bad");
    refused_header("{\"x\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],"
                   "\"data_offsets\":[0,0]}}",
                   4, "x: shape [4294967296,4294967296]: too large", "bad");
    refused_header("{\"x\":{\"dtype\":\"F64\",\"shape\":[4294967296,536870912],"
                   "\"data_offsets\":[0,0]}}",
                   4, "x: 0 bytes of data for F64 [4294967296,536870912]", "bad");
    refused_header("{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 8,
                   "x: 4 bytes of data for F32 [2]", "bad");
    refused_header("{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 8,
                   "x: data_offsets [4,0]", "end before begin");
    refused_header("{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 8,
                   "x: data_offsets", "two whole numbers");
    refused_header("{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7,
                   "x: data ends at byte 8, but the file holds 7", "truncated");
    refused_header("{\"x\":{\"dtype\":\"F32\",\"shape\":[1],"
                   "\"data_offsets\":[5000000000,5000000004]}}",
                   8, "x: data ends at byte 5000000004", "holds 8");
    refused_header("{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                   "\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
                   8, "x: named twice", "bad");
}

static void overlapping_data(void **state) {
    (void)state;
    refused_header("{\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]},"
                   "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
                   12, "a and b: data overlaps", "bad");
    refused_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},"
                   "\"empty\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[4,4]},"
                   "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}",
                   16, "a and b: data overlaps", "bad");
}

/* The golden's file cut anywhere is noticed at opening. */
static void truncated_files(void **state) {
    (void)state;
    char *dir = scratch_path("cut");
    struct stat info;
    assert_int_equal(stat("datasets/golden/tiny/full-h4/model.safetensors", &info), 0);
    const size_t whole = (size_t)info.st_size;
    const size_t kept[] = {0, 5, 8, 100, whole / 2, whole - 1};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        assert_int_equal(checkpoint_copy("datasets/golden/tiny/full-h4", dir), 0);
        assert_int_equal(edit_truncate(dir, kept[i]), 1);
        refused(dir, "cut/model.safetensors", NULL);
    }
    free(dir);
}

/* ---- index and shards ---- */

static char *shard_folder(const char *index) {
    char *dir = scratch_path("shards"), path[512];
    const float one = 3, two = 2;
    assert_int_equal(checkpoint_copy("datasets/golden/tiny", dir), 0); /* holds no files */
    const char *header = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    free(write_file("shards/s1.safetensors", header, &one, 4));
    header = "{\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    free(write_file("shards/s2.safetensors", header, &two, 4));
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    assert_int_equal(file_write(path, index, strlen(index)), 0);
    return dir;
}

static void shards_by_index(void **state) {
    (void)state;
    status st;
    float a, b;
    char *dir = shard_folder("{\"metadata\":{},\"weight_map\":{\"a\":\"s1.safetensors\","
                             "\"b\":\"s2.safetensors\"}}");
    free(write_file("shards/stray.safetensors", "not a header", NULL, 0));
    checkpoint *ck = opened(dir);
    assert_int_equal(checkpoint_files(ck), 2);
    assert_int_equal(checkpoint_tensors(ck), 2);
    assert_int_equal(checkpoint_read(ck, checkpoint_find(ck, "a"), &a, &st), DONE);
    assert_int_equal(checkpoint_read(ck, checkpoint_find(ck, "b"), &b, &st), DONE);
    assert_true(a == 3 && b == 2);
    assert_non_null(strstr(checkpoint_file(ck, checkpoint_find(ck, "b")->file), "s2"));
    checkpoint_close(ck);
    free(dir);
}

/* An older copy of a tensor in another shard does not count. */
static void index_decides_between_copies(void **state) {
    (void)state;
    status st;
    float a;
    const float old[] = {7, 2};
    char *dir =
        shard_folder("{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\"}}");
    free(write_file("shards/s2.safetensors",
                    "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                    "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
                    old, sizeof old));
    checkpoint *ck = opened(dir);
    assert_int_equal(checkpoint_read(ck, checkpoint_find(ck, "a"), &a, &st), DONE);
    assert_true(a == 3);
    checkpoint_close(ck);
    free(dir);
}

static void one_file_is_preferred_to_an_index(void **state) {
    (void)state;
    char *dir = shard_folder("{\"weight_map\":{\"a\":\"gone.safetensors\"}}");
    free(write_file("shards/model.safetensors",
                    "{\"c\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", NULL, 4));
    checkpoint *ck = opened(dir);
    assert_non_null(checkpoint_find(ck, "c"));
    checkpoint_close(ck);
    free(dir);
}

static void indexes_that_are_wrong(void **state) {
    (void)state;
    static const char *const cases[][3] = {
        {"{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s3.safetensors\",\"c\":\"s4."
         "safetensors\"}}",
         "2 of 3 shards", "missing: s3.safetensors, s4.safetensors"},
        {"{\"weight_map\":{\"a\":\"../s1.safetensors\"}}", "a: shard \"../s1.safetensors\"",
         "without a path"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "a: shard \"/etc/passwd\"", "without a path"},
        {"{\"weight_map\":{\"a\":\"..\"}}", "a: shard \"..\"", "without a path"},
        {"{\"weight_map\":{\"a\":7}}", "weight_map: a", "name of a shard"},
        {"{\"weight_map\":{}}", "weight_map", "absent or empty"},
        {"{}", "weight_map", "absent or empty"},
        {"[", "index.json", "not valid JSON"},
        {"{\"weight_map\":{\"a\":\"s1.safetensors\",\"x\":\"s2.safetensors\"}}",
         "names tensors that their shards lack", ": x"},
        {"{\"weight_map\":{\"a\":\"s1.safetensors\",\"a\":\"s2.safetensors\"}}", "weight_map: a",
         "named twice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *dir = shard_folder(cases[i][0]);
        refused(dir, "shards", cases[i][1], cases[i][2], NULL);
        free(dir);
    }
}

/* ---- size and identity ---- */

static void many_tensors_open_fast(void **state) {
    (void)state;
    enum { N = 32000 };
    char *header = malloc(N * 80 + 16), *at = header;
    assert_non_null(header);
    for (int i = 0; i < N; i++)
        at += sprintf(at, "%c\"t%05d\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                      i ? ',' : '{', i * 7919 % N, 4 * i, 4 * i + 4);
    strcpy(at, "}");
    char *path = write_file("many.safetensors", header, NULL, 4 * N), name[16];
    clock_t begin = clock();
    checkpoint *ck = opened(path);
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "t%05d", i);
        assert_non_null(checkpoint_find(ck, name));
    }
    assert_true((double)(clock() - begin) / CLOCKS_PER_SEC < 2); /* a linear search takes > 10 s */
    checkpoint_close(ck);
    free(path);
    free(header);
}

/* As `sha256sum *.safetensors | sort | sha256sum` prints it; the shards hash in the other order
 * than their names. */
static void hash_is_that_of_sha256sum(void **state) {
    (void)state;
    char hex[65];
    status st;
    checkpoint *ck = opened("datasets/golden/tiny/full-h4");
    assert_int_equal(checkpoint_hash(ck, hex, &st), DONE);
    assert_string_equal(hex, "36c4f761b9232e01dd9881c2539a35cb9d056c50cec73842f16b6f8fcbd9bf6a");
    checkpoint_close(ck);
    char *dir =
        shard_folder("{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\"}}");
    ck = opened(dir);
    assert_int_equal(checkpoint_hash(ck, hex, &st), DONE);
    assert_string_equal(hex, "80c0e1a482212dda2ae02457203398723b16dc20a7d01bad9c1a767175b9b5e2");
    checkpoint_close(ck);
    free(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_all_values),
        cmocka_unit_test(bf16_all_values),
        cmocka_unit_test(f32_and_f64),
        cmocka_unit_test(other_dtypes_are_listed_but_not_read),
        cmocka_unit_test(parts_equal_the_whole),
        cmocka_unit_test(table_metadata_and_empty_tensors),
        cmocka_unit_test(files_that_are_no_safetensors),
        cmocka_unit_test(headers_that_are_wrong),
        cmocka_unit_test(overlapping_data),
        cmocka_unit_test(truncated_files),
        cmocka_unit_test(shards_by_index),
        cmocka_unit_test(index_decides_between_copies),
        cmocka_unit_test(one_file_is_preferred_to_an_index),
        cmocka_unit_test(indexes_that_are_wrong),
        cmocka_unit_test(many_tensors_open_fast),
        cmocka_unit_test(hash_is_that_of_sha256sum),
    };
    option_quiet = true;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
