/* fuzz_figures SECONDS SEED: draws the figures of damaged tables until the time is over. A figure
 * is drawn, or refused with a reason; crashes are for the sanitizers to find. gnuplot is not run.
 */
#include "plots/figure.h"
#include "runtime/base/output.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const pieces[] = {
    "nan",   "inf",    "-1",    "1e300", "0",    "4095",         "99999999999999999999",
    "65536", "mean",   "final", "mlp",   "attn", "partial",      "emb",
    "B7",    "L3.mlp", "null",  "",      "\xff", "\xe6\xa8\xa1",
};

/* One of each kind of table. */
static const char *const seeds[] = {"plots/tests/block.tsv", "plots/tests/full.tsv",
                                    "plots/tests/depth.tsv", "plots/tests/compare.tsv",
                                    "plots/tests/tokens.tsv"};
enum { SEEDS = sizeof seeds / sizeof *seeds };

/* splitmix64 */
static uint64_t state;
static size_t below(size_t count) {
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (size_t)((z ^ (z >> 31)) % count);
}

/* Writes `text` with some cells replaced and some lines left out or doubled. */
static int write_damaged(const char *text, const char *path) {
    FILE *out = fopen(path, "wb");
    if (!out)
        return FAILED;
    size_t rate = 1 + below(400);
    while (*text) {
        const char *end = strchr(text, '\n');
        size_t length = end ? (size_t)(end - text) + 1 : strlen(text);
        size_t times = *text == '#' || below(rate) ? 1 : below(3);
        for (size_t i = 0; i < times; i++)
            for (size_t at = 0; at < length; at++) {
                fputc(text[at], out);
                if (text[at] != '\t' || *text == '#' || below(rate))
                    continue;
                fputs(pieces[below(sizeof pieces / sizeof *pieces)], out);
                at += strcspn(text + at + 1, "\t\n");
            }
        text += length;
    }
    return fclose(out) ? FAILED : DONE;
}

static int draw_all(const char *path, const char *folder) {
    table *from;
    status st = {""};
    if (table_read(path, &from, &st))
        return DONE; /* refused before any figure */
    int result = DONE;
    for (size_t i = 0; i < figure_count && result == DONE; i++) {
        size_t pages;
        st.text[0] = 0;
        const table *const twice[] = {from, from};
        if (figure_write(&figures[i], from, folder, "svg", &pages, &st) != DONE && !*st.text)
            result = FAILED;
        st.text[0] = 0;
        if (figure_write_all(&figures[i], twice, 2, folder, "svg", &pages, &st) != DONE &&
            !*st.text)
            result = FAILED;
    }
    table_free(from);
    return result;
}

static char *read_whole(const char *path) {
    FILE *in = fopen(path, "rb");
    char *text = calloc(1, 1 << 20);
    if (in && text && fread(text, 1, (1 << 20) - 1, in) == 0) {
        free(text);
        text = NULL;
    }
    if (in)
        fclose(in);
    return in ? text : (free(text), NULL);
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "Usage: fuzz_figures SECONDS SEED\n");
        return 2;
    }
    long seconds = strtol(argv[1], NULL, 10);
    state = strtoull(argv[2], NULL, 10);
    const char *root = getenv("TEST_TMP");
    char folder[512], path[600];
    status st;
    snprintf(folder, sizeof folder, "%s/fuzz_figures", root ? root : "build/tmp");
    snprintf(path, sizeof path, "%s/table.tsv", folder);
    char *whole[SEEDS] = {NULL};
    size_t read = 0;
    while (read < SEEDS && (whole[read] = read_whole(seeds[read])))
        read++;
    int result = read < SEEDS || folder_make(folder, &st) ? 2 : 0;
    if (result)
        fprintf(stderr, "%s\n", read < SEEDS ? seeds[read] : st.text);
    unsigned long tried = 0;
    for (time_t end = time(NULL) + seconds; !result && (tried == 0 || time(NULL) < end); tried++)
        if (write_damaged(whole[tried % SEEDS], path) || draw_all(path, folder)) {
            fprintf(stderr, "fuzz_figures: input kept in %s (seed %s)\n", path, argv[2]);
            result = 1;
        }
    printf("fuzz_figures: %lu tables\n", tried);
    for (size_t i = 0; i < SEEDS; i++)
        free(whole[i]);
    return result;
}
