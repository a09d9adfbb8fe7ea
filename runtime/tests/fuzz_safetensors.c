/* fuzz_safetensors SECONDS SEED - damaged headers and shard indexes must never crash the reader or
 * hold it up, and the table of an accepted file must be consistent and readable. */
#include "runtime/base/options.h"
#include "runtime/base/output.h"
#include "runtime/safetensors.h"
#include "runtime/tests/fuzz.h"

#include <sys/mman.h>
#include <unistd.h>

static const char *const words[] = {
    "0",
    "1",
    "-1",
    "4",
    "8",
    "1e308",
    "9007199254740993",
    "4294967296",
    "0.5",
    "null",
    "true",
    "\"\"",
    "[]",
    "{}",
    "\"F16\"",
    "\"F64\"",
    "\"BF16\"",
    "\"I32\"",
    "\"F8_E4M3\"",
    "\"shape\"",
    "[2,3]",
    "\"dtype\"",
    "\\u0000",
    "{\"a\":",
    "[[[[[[",
    "\"t0\"",
    "\"t1\"",
    "s0.safetensors",
    "../x",
    "\"s1.safetensors\"",
    "\"weight_map\"",
    "\"__metadata__\"",
    "\"data_offsets\"",
};
enum { WORDS = sizeof words / sizeof *words };

static int file;              /* a file in memory, */
static char file_path[64];    /* and its name */
static char folder[512];      /* a folder with two shards */
static char index_path[1024]; /* and their index */

/* A valid header of a few tensors, the last bytes of data in *end. */
static void make_header(sample *s, size_t *end) {
    static const char *const dtypes[] = {"F32", "F16", "BF16", "F64", "I32", "U8", "NEW"};
    static const size_t bytes[] = {4, 2, 2, 8, 4, 1, 1};
    size_t at = 0, data = 0;
    for (size_t i = 0, count = 1 + below(5); i < count; i++) {
        size_t kind = below(7), rows = below(5), columns = below(5);
        size_t begin = data + below(3) * 4;
        data = begin + rows * columns * bytes[kind];
        at += (size_t)snprintf(s->text + at, SAMPLE_MOST - at,
                               "%c\"t%zu\":{\"dtype\":\"%s\",\"shape\":[%zu,%zu],"
                               "\"data_offsets\":[%zu,%zu]}",
                               i ? ',' : '{', i, dtypes[kind], rows, columns, begin, data);
    }
    at +=
        (size_t)snprintf(s->text + at, SAMPLE_MOST - at, ",\"__metadata__\":{\"format\":\"pt\"}}");
    s->size = at;
    *end = data;
}

static bool tensor_is_usable(const checkpoint *ck, const tensor_info *t, uint64_t file_bytes) {
    status st;
    size_t elements = 1;
    for (size_t i = 0; i < t->rank; i++)
        elements *= t->shape[i];
    if (elements != t->elements || t->file >= checkpoint_files(ck) || t->bytes > file_bytes ||
        t->offset > file_bytes - t->bytes ||
        strcmp(checkpoint_find(ck, t->name)->name, t->name) != 0)
        return false;
    if (t->dtype == DTYPE_OTHER || t->dtype == DTYPE_I32)
        return true;
    float *values = malloc((t->elements + 1) * sizeof *values);
    void *raw = malloc((size_t)t->bytes + 1);
    bool good = values && raw && checkpoint_read(ck, t, values, &st) == DONE &&
                checkpoint_read_raw(ck, t, raw, &st) == DONE;
    free(values);
    free(raw);
    return good;
}

static int check_open(const char *path, uint64_t file_bytes) {
    checkpoint *ck;
    status st = {""};
    if (checkpoint_open(path, &ck, &st))
        return ck == NULL && *st.text && memchr(st.text, 0, sizeof st.text) ? 0 : -1;
    bool good = true;
    for (size_t i = 0; i < checkpoint_tensors(ck) && good; i++) {
        const tensor_info *t = checkpoint_tensor(ck, i);
        good = tensor_is_usable(ck, t, file_bytes) &&
               (i == 0 || strcmp(checkpoint_tensor(ck, i - 1)->name, t->name) < 0);
        for (size_t k = 0; k < i && good; k++) {
            const tensor_info *o = checkpoint_tensor(ck, k);
            good = o->file != t->file || o->bytes == 0 || t->bytes == 0 ||
                   o->offset + o->bytes <= t->offset || t->offset + t->bytes <= o->offset;
        }
    }
    checkpoint_close(ck);
    return good ? 1 : -1;
}

static void write_or_exit(int to, const void *data, size_t bytes, size_t at) {
    if (pwrite(to, data, bytes, (off_t)at) != (ssize_t)bytes) {
        perror("fuzz_safetensors");
        exit(2);
    }
}

static int try_header(void) {
    static sample s;
    static const char zeros[SAMPLE_MOST];
    size_t data;
    make_header(&s, &data);
    for (size_t n = below(4); n; n--)
        damage(&s, words, WORDS);
    uint64_t length = s.size, whole = 8 + s.size + data;
    if (!below(16))
        length = below(2) ? random_next() : length + below(9) - 4;
    if (!below(8))
        whole = below((size_t)whole + 1);
    if (ftruncate(file, 0))
        exit(2);
    write_or_exit(file, &length, 8, 0);
    write_or_exit(file, s.text, s.size, 8);
    write_or_exit(file, zeros, data < sizeof zeros ? data : sizeof zeros, 8 + s.size);
    if (ftruncate(file, (off_t)whole))
        exit(2);
    return check_open(file_path, whole);
}

static int try_index(void) {
    static sample s;
    s.size = (size_t)snprintf(s.text, SAMPLE_MOST,
                              "{\"metadata\":{\"total_size\":8},\"weight_map\":{"
                              "\"t0\":\"s0.safetensors\",\"t1\":\"s1.safetensors\"}}");
    for (size_t n = below(4); n; n--)
        damage(&s, words, WORDS);
    FILE *out = fopen(index_path, "wb");
    if (!out || fwrite(s.text, 1, s.size, out) != s.size || fclose(out)) {
        perror(index_path);
        exit(2);
    }
    return check_open(folder, 4096);
}

static int try_input(void) {
    return below(8) ? try_header() : try_index();
}

static int make_places(void) {
    const char *base = getenv("TEST_TMP");
    status st;
    snprintf(folder, sizeof folder, "%.400s/fuzz_safetensors", base && *base ? base : "build/tmp");
    snprintf(index_path, sizeof index_path, "%s/model.safetensors.index.json", folder);
    snprintf(file_path, sizeof file_path, "/proc/self/fd/%d", file);
    if (folder_make(folder, &st)) {
        fprintf(stderr, "%s\n", st.text);
        return -1;
    }
    for (int i = 0; i < 2; i++) {
        char path[1024], header[128];
        snprintf(path, sizeof path, "%s/s%d.safetensors", folder, i);
        FILE *out = fopen(path, "wb");
        uint64_t length = (uint64_t)snprintf(
            header, sizeof header,
            "{\"t%d\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", i);
        if (!out || fwrite(&length, 8, 1, out) != 1 || fputs(header, out) < 0 ||
            fwrite("\0\0\0\0", 4, 1, out) != 1 || fclose(out)) {
            perror(path);
            return -1;
        }
    }
    return 0;
}

int main(int argc, char **argv) {
    option_quiet = true;
    file = memfd_create("fuzz_safetensors", 0);
    if (file < 0 || make_places())
        return 2;
    return fuzz_main(argc, argv, try_input);
}
