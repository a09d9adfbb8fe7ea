/* fuzz_table SECONDS SEED: reads damaged tables until the time is over. A table that is accepted is
 * walked cell by cell; one that is refused says why. Crashes are for the sanitizers to find. */
#include "runtime/base/random.h"
#include "analyze/table.h"
#include "runtime/base/output.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char whole[] =
    "# fathom 0.1.0\n# command fathom routing run.h5\n# model 12\n# tokens 34\n# a comment\n"
    "# RUN  the recording; columns: key, value; units: 1\nRUN\tpath\trun.h5\nRUN\tloss\tnan\n"
    "# ENT  entropy; columns: site, head, value, low, high; units: nats\n"
    "ENT\tL0.mlp\t0\t0.412\t0.4\t0.43\nENT\tL0.mlp\tmean\t-1e-9\tnan\tnan\n";

static const char *const pieces[] = {
    "# ",
    "\n",
    "\t",
    ", ",
    "; columns: ",
    "; units: ",
    "# ENT  e; columns: a; units: 1\n",
    "ENT\t",
    "\r",
    "  ",
    "AAAAAAAAAAA",
    "1e999",
    "0x",
    "",
};

static uint64_t seed, counter;

static size_t below(size_t count) {
    return (size_t)(random_at(seed, counter++) % count);
}

/* Cuts, copies, or puts in a byte or a piece at a random place. */
static size_t damage(char *text, size_t length, size_t room) {
    size_t at = below(length + 1), count = 0;
    const char *add = pieces[below(sizeof pieces / sizeof *pieces)];
    char byte[] = {(char)below(256), 0};
    switch (below(4)) {
    case 0: /* remove */
        count = below(length - at + 1);
        count = count > 40 ? below(40) : count;
        memmove(text + at, text + at + count, length - at - count);
        return length - count;
    case 1: /* overwrite */
        if (at < length)
            text[at] = byte[0];
        return length;
    case 2:
        add = byte;
        break;
    default:
        break;
    }
    count = add == byte ? 1 : strlen(add);
    if (length + count > room)
        return length;
    memmove(text + at + count, text + at, length - at);
    memcpy(text + at, add, count);
    return length + count;
}

/* A sum over everything readable, so that no access can be optimised away. */
static double walk(const table *t) {
    double sum = (double)strlen(table_command(t));
    for (size_t i = 0; i < table_sections(t); i++) {
        const table_section_view *s = table_section_at(t, i);
        if (table_find(t, s->code) != s)
            abort();
        sum += (double)(strlen(s->title) + strlen(s->units));
        for (size_t c = 0; c < s->columns; c++) {
            if (table_column(s, s->column[c]) != (int)c)
                abort();
            for (size_t row = 0; row < s->rows; row++) {
                double value = table_number(s, row, (int)c);
                sum += isnan(value) ? (double)strlen(table_cell(s, row, (int)c)) : value;
            }
        }
    }
    return sum;
}

static int try_one(const char *path) {
    char text[4096];
    size_t length = sizeof whole - 1;
    memcpy(text, whole, length);
    for (size_t times = 1 + below(8); times > 0; times--)
        length = damage(text, length, sizeof text);
    FILE *out = fopen(path, "wb");
    if (!out || fwrite(text, 1, length, out) != length || fclose(out))
        return FAILED;
    table *t;
    status st = {""};
    volatile double sum = 0;
    if (table_read(path, &t, &st) == DONE)
        sum = walk(t);
    else if (strncmp(st.text, path, strlen(path)) != 0)
        return FAILED;
    (void)sum;
    table_free(t);
    return DONE;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "Usage: fuzz_table SECONDS SEED\n");
        return 2;
    }
    long seconds = strtol(argv[1], NULL, 10);
    seed = strtoull(argv[2], NULL, 10);
    status st;
    char path[512];
    const char *folder = getenv("TEST_TMP");
    folder = folder ? folder : "build/tmp";
    snprintf(path, sizeof path, "%s/fuzz_table.txt", folder);
    if (folder_make(folder, &st)) {
        fprintf(stderr, "%s\n", st.text);
        return 2;
    }
    time_t end = time(NULL) + seconds;
    do {
        if (try_one(path)) {
            fprintf(stderr, "fuzz_table: input kept in %s (seed %s)\n", path, argv[2]);
            return 1;
        }
    } while (time(NULL) < end);
    remove(path);
    printf("fuzz_table: %llu random numbers drawn\n", (unsigned long long)counter);
    return 0;
}
