/* Figures: what the scripts say and the data hold, for models of many shapes; and that gnuplot runs
 * each of them without a word. */
#include "plots/figure.h"
#include "plots/gnuplot.h"
#include "plots/routing_view.h"
#include "runtime/base/output.h"
#include "runtime/tests/scratch.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- Tables of made-up models ---- */

typedef struct shape {
    const char *model;
    size_t layers, heads, block; /* block 0: every sublayer's output is a source */
    bool intervals;
    double odd;   /* L1.mlp's weight of emb; 0: as the others */
    bool removed; /* L1.mlp has no weights, as after pruning */
    bool nulls;   /* section NBD */
} shape;

/* Source `i` of a model, in order of first appearance. */
static const char *source_name(const shape *m, size_t i, char *name) {
    if (i == 0)
        return strcpy(name, "emb");
    if (m->block)
        sprintf(name, "B%zu", i);
    else
        sprintf(name, "L%zu.%s", (i - 1) / 2, i % 2 ? "attn" : "mlp");
    return name;
}

/* How many sources the site of sublayer `t` (2 * layers: final) reads, and whether the last is a
 * running sum. */
static size_t source_count(const shape *m, size_t t, bool *partial) {
    *partial = false;
    if (!m->block)
        return t + 1;
    bool opens = t % (2 * m->block) == 0 && t < 2 * m->layers;
    *partial = !opens;
    return (t + 2 * m->block - 1) / (2 * m->block) + 1;
}

static double weight_of(const shape *m, size_t t, size_t head, size_t i, size_t count) {
    if (m->odd != 0 && t == 3 && i == 0)
        return m->odd;
    double total = (double)(count * (count + 1)) / 2;
    return (double)((i + head) % count + 1) / total;
}

static void put_sites(FILE *out, const shape *m) {
    char name[24];
    table_section(out, "SIT", "sites",
                  "site, layer, kind, sources, newest, newest_kind, opens_block", "1");
    for (size_t t = 0; t <= 2 * m->layers; t++) {
        bool partial, final = t == 2 * m->layers;
        size_t count = source_count(m, t, &partial);
        if (final)
            fprintf(out, "SIT\tfinal\tnan\tfinal");
        else
            fprintf(out, "SIT\tL%zu.%s\t%zu\t%s", t / 2, t % 2 ? "mlp" : "attn", t / 2,
                    t % 2 ? "mlp" : "attn");
        fprintf(out, "\t%zu\t%s\t%s\t%d\n", count, source_name(m, count - 1, name),
                partial ? "partial" : "other", m->block && !partial);
    }
}

static void put_site_name(FILE *out, const char *code, const shape *m, size_t t) {
    if (t == 2 * m->layers)
        fprintf(out, "%s\tfinal", code);
    else
        fprintf(out, "%s\tL%zu.%s", code, t / 2, t % 2 ? "mlp" : "attn");
}

static void put_weights(FILE *out, const shape *m) {
    char name[24];
    table_section(out, "MEA", "mean", "site, head, source, value, low, high", "1");
    for (size_t t = 0; t <= 2 * m->layers; t++) {
        bool partial;
        size_t count = m->removed && t == 3 ? 0 : source_count(m, t, &partial);
        for (size_t head = 0; head <= m->heads; head++)
            for (size_t i = 0; i < count; i++) {
                double value = weight_of(m, t, head % m->heads, i, count);
                put_site_name(out, "MEA", m, t);
                if (head < m->heads)
                    table_size(out, head);
                else
                    table_text(out, "mean");
                table_text(out, source_name(m, i, name));
                for (int k = 0; k < 3; k++)
                    table_real(out, value);
                table_end(out);
            }
    }
}

static void put_statistic(FILE *out, const shape *m, const char *code, bool heads, double value) {
    table_section(out, code, "a statistic",
                  heads ? "site, head, value, low, high" : "site, value, low, high", "nats");
    for (size_t t = 0; t <= 2 * m->layers; t++) {
        put_site_name(out, code, m, t);
        if (heads)
            table_text(out, "mean");
        table_real(out, value + 0.01 * (double)(t % 5));
        table_real(out, m->intervals ? value - 0.02 : NAN);
        table_real(out, m->intervals ? value + 0.07 : NAN);
        table_end(out);
    }
}

/* A null of 0.2 (0.1 to 0.3) at every site with a choice; of equal norm it is 5, drawn nowhere. */
static void put_nulls(FILE *out, const shape *m) {
    static const char *const names[] = {"entropy", "token_information", "head_divergence"};
    table_section(out, "NBD", "nulls",
                  "statistic, null, site, head, value, null_mean, null_low, null_high, verdict",
                  "nats");
    for (size_t k = 0; k < 6; k++)
        for (size_t t = 1; t <= 2 * m->layers; t++)
            for (size_t head = 0; head < (k % 3 < 2 ? 2 : 1); head++) {
                bool drawn = k < 3 && head == 0;
                table_row(out, "NBD");
                table_text(out, names[k % 3]);
                table_text(out, k < 3 ? "var" : "norm");
                if (t == 2 * m->layers)
                    table_text(out, "final");
                else
                    fprintf(out, "\tL%zu.%s", t / 2, t % 2 ? "mlp" : "attn");
                table_text(out, k % 3 == 2 ? "-" : head == 0 ? "mean" : "0");
                table_real(out, 0.1);
                table_real(out, drawn ? 0.2 : 5);
                table_real(out, drawn ? 0.1 : 5);
                table_real(out, drawn ? 0.3 : 5);
                table_text(out, "below");
                table_end(out);
            }
}

static table *make_table(const shape *m) {
    char *path = scratch_path("routing.tsv");
    status st;
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    table_head(out, "fathom routing run.h5", "", "");
    table_section(out, "RUN", "run", "key, value", "1");
    table_row(out, "RUN");
    table_text(out, "model_path");
    table_text(out, m->model ? m->model : "models/tiny");
    table_end(out);
    fputs("RUN\tsequences\t40\nRUN\tnull_draws\t8\nRUN\tnull_sequences\t16\n", out);
    put_sites(out, m);
    put_weights(out, m);
    put_statistic(out, m, "ENN", true, 0.8);
    put_statistic(out, m, "HDV", false, m->heads > 1 ? 0.03 : 0);
    put_statistic(out, m, "TIN", true, 0.005);
    put_statistic(out, m, "LBN", true, 1.1);
    if (m->nulls)
        put_nulls(out, m);
    assert_int_equal(fclose(out), 0);
    table *made = NULL;
    if (table_read(path, &made, &st))
        fail_msg("%s", st.text);
    free(path);
    return made;
}

static char *read_text(const char *folder, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *in = fopen(path, "rb");
    if (!in)
        fail_msg("%s: %s", path, strerror(errno));
    char *text = calloc(1, 64 << 20);
    assert_non_null(text);
    size_t got = fread(text, 1, (64 << 20) - 1, in);
    fclose(in);
    return realloc(text, got + 1);
}

typedef struct drawn {
    char *script, *data;
    size_t pages;
} drawn;

static drawn draw(const shape *m, const char *name) {
    char file[128];
    char *folder = scratch_path("figures");
    table *from = make_table(m);
    drawn d = {0};
    status st;
    if (folder_make(folder, &st) ||
        figure_write(figure_find(name), from, folder, "svg", &d.pages, &st))
        fail_msg("%s", st.text);
    snprintf(file, sizeof file, "%s.gp", name);
    d.script = read_text(folder, file);
    snprintf(file, sizeof file, "%s.dat", name);
    d.data = read_text(folder, file);
    table_free(from);
    free(folder);
    return d;
}

static void drop(drawn *d) {
    free(d->script);
    free(d->data);
}

static size_t count_of(const char *text, const char *part) {
    size_t count = 0;
    for (; (text = strstr(text, part)); text += strlen(part))
        count++;
    return count;
}

static void assert_has(const char *text, const char *part) {
    if (!strstr(text, part))
        fail_msg("expected '%s' in:\n%.3000s", part, text);
}

static void assert_lacks(const char *text, const char *part) {
    if (strstr(text, part))
        fail_msg("unexpected '%s'", part);
}

/* The lines of data set `index`. */
static const char *data_set(const char *data, size_t index) {
    char mark[32];
    snprintf(mark, sizeof mark, "# index %zu:", index);
    const char *at = strstr(data, mark);
    if (!at)
        fail_msg("no data set %zu", index);
    return at;
}

/* ---- Heatmaps ---- */

static void heatmap_data_are_the_table(void **state) {
    (void)state;
    drawn d = draw(&(shape){.layers = 3, .heads = 2}, "depth_attention_heads");
    const char *mlp = data_set(d.data, 1), *next = data_set(d.data, 2);
    assert_has(mlp, "head 0, MLP sites");
    /* L1.mlp reads four sources of seven: weights 1..4 of 10, and no others. */
    const char *row =
        strstr(mlp, "\n0 1 0.1\n1 1 0.2\n2 1 0.3\n3 1 0.4\n4 1 nan\n5 1 nan\n6 1 nan\n");
    assert_non_null(row);
    assert_true(row < next);
    drop(&d);
}

static void one_scale_from_zero_for_all_panels(void **state) {
    (void)state;
    drawn d = draw(&(shape){.layers = 4, .heads = 4}, "depth_attention_heads");
    assert_int_equal(count_of(d.script, "set cbrange"), 1);
    assert_has(d.script, "set cbrange [0 : scale_max]");
    assert_int_equal(count_of(d.script, "\nset colorbox"), 1);
    /* The largest weight is 2/3 at L0.mlp; L0.attn's 1 is of its only source and does not count. */
    assert_has(d.script, "scale_max = 0.8\n");
    assert_has(d.script, "mean weight");
    drop(&d);
}

static void cells_that_cannot_be_are_hatched_and_sole_sources_grey(void **state) {
    (void)state;
    drawn d = draw(&(shape){.layers = 4, .heads = 1}, "depth_attention");
    assert_has(d.script, "behind fc rgb '#aaaaaa' fs pattern");
    assert_has(d.script, "Hatched: the site has no such source. Grey: its only source");
    const char *only = strstr(d.data, ": only sources");
    assert_non_null(only);
    assert_has(only, "\n0 0\n");
    assert_has(d.script, "with boxxyerror fc rgb grey");
    drop(&d);
}

static void undefined_weights_are_marked_and_spare_the_scale(void **state) {
    (void)state;
    drawn d = draw(&(shape){.layers = 4, .heads = 1, .odd = NAN}, "depth_attention");
    assert_has(strstr(d.data, "undefined numbers"), "\n0 1\n");
    assert_has(d.script, "Red:");
    assert_has(d.script, "scale_max = 0.8\n");
    drop(&d);
    d = draw(&(shape){.layers = 4, .heads = 1, .odd = INFINITY}, "depth_attention");
    assert_has(d.script, "Red:");
    assert_lacks(d.script, "inf");
    drop(&d);
    d = draw(&(shape){.layers = 4, .heads = 1}, "depth_attention");
    assert_lacks(d.script, "undefined");
    drop(&d);
}

static void a_site_that_reads_nothing_is_all_hatched(void **state) {
    (void)state;
    drawn d = draw(&(shape){.layers = 2, .heads = 1, .removed = true}, "depth_attention");
    assert_has(data_set(d.data, 1), "\n0 1 nan\n1 1 nan\n2 1 nan\n3 1 nan\n4 1 nan\n");
    assert_lacks(d.script, "Red:");
    drop(&d);
}

static void running_sums_of_blocks_are_outlined(void **state) {
    (void)state;
    drawn d = draw(&(shape){.layers = 4, .heads = 1, .block = 2}, "depth_attention");
    /* Attention: layer 1 reads B1, layer 3 reads B2; MLP: layers 0-1 and 2-3. */
    const char *attn = strstr(d.data, "partial blocks");
    assert_non_null(attn);
    assert_has(attn, "\n0.5 0.5\n1.5 0.5\n1.5 1.5\n0.5 1.5\n0.5 0.5\n");
    assert_has(attn, "\n1.5 2.5\n2.5 2.5\n2.5 3.5\n1.5 3.5\n1.5 2.5\n");
    assert_has(attn, "\n0.5 -0.5\n1.5 -0.5\n1.5 1.5\n0.5 1.5\n0.5 -0.5\n");
    assert_has(d.script, "('B1' 0, 'B2' 2)");
    drop(&d);
    d = draw(&(shape){.layers = 4, .heads = 1}, "depth_attention");
    assert_lacks(d.data, "partial");
    assert_lacks(d.script, "y2tics out");
    drop(&d);
}

static void many_heads_fill_pages_that_say_so(void **state) {
    (void)state;
    drawn d = draw(&(shape){.layers = 2, .heads = 18}, "depth_attention_heads");
    assert_int_equal(d.pages, 3);
    assert_has(d.script, "'-1.').format");
    assert_has(d.script, "set output name.'-3.'.format");
    assert_has(d.script, "heads 0-7 of 18");
    assert_has(d.script, "heads 16-17 of 18");
    assert_has(d.data, "head 17, MLP sites");
    assert_int_equal(count_of(d.script, "set label 'head 17'"), 2);
    drop(&d);
    d = draw(&(shape){.layers = 2, .heads = 8}, "depth_attention_heads");
    assert_int_equal(d.pages, 1);
    drop(&d);
}

/* The labels of the first `set AXIStics (...)` stand at least `room` pixels apart and, after the
 * first two, at even distances. */
static void assert_room(const char *script, const char *start, double pixels_per_unit,
                        double room) {
    const char *at = strstr(script, start);
    assert_non_null(at);
    double place[256];
    size_t labels = 0;
    for (at += strlen(start); *at == '\'' || *at == ' ' || *at == ','; labels++) {
        at = strchr(strchr(at, '\'') + 1, '\'') + 1;
        place[labels] = strtod(at, (char **)&at);
        if (labels > 0)
            assert_true((place[labels] - place[labels - 1]) * pixels_per_unit >= room);
        if (labels > 2)
            assert_true(place[labels] - place[labels - 1] == place[2] - place[1]);
    }
    assert_true(labels > 2);
}

static void labels_have_room_at_every_depth(void **state) {
    (void)state;
    static const size_t layers[] = {5, 36, 96};
    for (size_t i = 0; i < 3; i++) {
        double sources = 2 * (double)layers[i] + 1;
        drawn d = draw(&(shape){.layers = layers[i], .heads = 1}, "depth_attention");
        assert_room(d.script, "set xtics out nomirror scale 0.4 offset 0, 0.4 (", 294 / sources,
                    16);
        assert_room(d.script, "set ytics (", 120 / (double)layers[i], 12);
        drop(&d);
    }
}

static void large_pages_do_not_become_millions_of_rectangles(void **state) {
    (void)state;
    drawn d = draw(&(shape){.layers = 96, .heads = 8}, "depth_attention_heads");
    assert_has(d.script, "\ncells = 'image'\n");
    drop(&d);
    d = draw(&(shape){.layers = 8, .heads = 8}, "depth_attention_heads");
    assert_has(d.script, "\ncells = row\n");
    drop(&d);
}

/* ---- Statistics by depth ---- */

static void statistics_without_a_null_say_so(void **state) {
    (void)state;
    drawn d = draw(&(shape){.layers = 4, .heads = 4, .intervals = true}, "routing_by_depth");
    /* entropy_norm, head_divergence, token_information */
    assert_int_equal(count_of(d.script, "'no null shown'"), 3);
    assert_has(d.script, "Bars: intervals");
    drop(&d);
}

/* Of equal variance; entropy's divided by ln S; the axes cover it. */
static void nulls_are_bands_behind(void **state) {
    (void)state;
    drawn d = draw(&(shape){.layers = 4, .heads = 4, .intervals = true, .nulls = true},
                   "routing_by_depth");
    assert_lacks(d.script, "no null shown");
    assert_has(d.script, "'null (equal logit variance, 8 draws)'");
    assert_has(d.script, "on 16 of 40 sequences");
    assert_int_equal(count_of(d.script, "with filledcurves fc rgb null"), 6);
    assert_int_equal(count_of(d.script, "with boxxyerror fs solid border rgb null3"), 3);
    const char *attn = strstr(d.data, "head_divergence, null of attention sites");
    assert_non_null(attn);
    assert_int_equal(strncmp(strchr(attn, '\n'), "\n1 0.2 0.1 0.3\n", 15), 0);
    const char *final = strstr(d.data, "entropy_norm, null of final site");
    double depth, mean, low, high;
    assert_non_null(final);
    assert_int_equal(sscanf(strchr(final, '\n'), "%lf %lf %lf %lf", &depth, &mean, &low, &high), 4);
    assert_true(fabs(mean - 0.2 / log(9)) < 1e-6 && fabs(high - 0.3 / log(9)) < 1e-6);
    assert_has(d.script, "set yrange [0 : 0.3]");
    assert_lacks(d.data, "5 5 5");
    drop(&d);
}

static void sites_with_one_source_are_left_out(void **state) {
    (void)state;
    drawn d = draw(&(shape){.layers = 4, .heads = 4, .intervals = true}, "routing_by_depth");
    const char *attn = strstr(d.data, "entropy_norm, attention sites");
    assert_non_null(attn);
    attn = strchr(attn, '\n');
    assert_int_equal(strncmp(attn, "\n1 0.82 0.78 0.87\n", 18), 0);
    assert_has(d.data, "\n0.5 0.81 0.78 0.87\n");
    drop(&d);
}

static void axes_cover_values_and_intervals(void **state) {
    (void)state;
    drawn d = draw(&(shape){.layers = 4, .heads = 4, .intervals = true}, "routing_by_depth");
    /* token_information: values .005 to .045, intervals -.015 to .075 */
    assert_has(d.script, "set yrange [-0.0165 : 0.08]");
    drop(&d);
}

static void a_table_without_intervals_is_drawn_and_says_so(void **state) {
    (void)state;
    drawn d = draw(&(shape){.layers = 4, .heads = 4}, "routing_by_depth");
    assert_lacks(d.script, "with vectors");
    assert_has(d.script, "No intervals");
    drop(&d);
}

static void one_head_has_no_divergence_to_show(void **state) {
    (void)state;
    drawn d = draw(&(shape){.layers = 4, .heads = 1}, "routing_by_depth");
    assert_has(d.script, "one routing head: 0 by definition");
    assert_int_equal(count_of(d.script, "'no null shown'"), 2);
    drop(&d);
}

static void block_openings_are_marked(void **state) {
    (void)state;
    drawn d = draw(&(shape){.layers = 4, .heads = 2, .block = 2}, "routing_by_depth");
    assert_has(d.script, "set arrow from first 0, graph 0");
    assert_has(d.script, "set arrow from first 2, graph 0");
    assert_int_equal(count_of(d.script, "set arrow"), 2);
    drop(&d);
}

/* ---- Text ---- */

static void text_is_clean_and_quoted(void **state) {
    (void)state;
    char out[32];
    clean_text(out, sizeof out, "a\x01\xff\xc3\xa9\xed\xa0\x80z", 9);
    assert_string_equal(out, "a??\xc3\xa9???z");
    clean_text(out, 8, "abcdefghij", 10);
    assert_string_equal(out, "abcd...");
    strcpy(out, "abcdefghij");
    cut_text(out, 10);
    assert_string_equal(out, "abcdefghij");
    cut_text(out, 7);
    assert_string_equal(out, "abcd...");
    char *text = NULL;
    size_t bytes;
    FILE *script = open_memstream(&text, &bytes);
    put_string(script, "it's\n'x");
    fclose(script);
    assert_string_equal(text, "'it''s?''x'");
    free(text);
}

static void the_name_is_text_not_script(void **state) {
    (void)state;
    drawn d =
        draw(&(shape){.model = "a/b/it's_`x`_@y\\/", .layers = 2, .heads = 1}, "depth_attention");
    assert_has(d.script, "set label 'it''s_`x`_@y\\' at");
    assert_lacks(d.script, "encoding");
    drop(&d);
    d = draw(&(shape){.model = "mod\xc3\xa8le", .layers = 2, .heads = 1}, "depth_attention");
    assert_has(d.script, "set encoding utf8");
    drop(&d);
}

static void ranges_are_round_and_cover(void **state) {
    (void)state;
    static const double ends[][2] = {{0, 0.63}, {0.81, 0.97}, {0, 1},
                                     {0, 1e-9}, {-3, 4},      {0, 7e12}};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        nice_range r = nice_range_of(ends[i][0], ends[i][1]);
        assert_true(r.low <= ends[i][0] && r.high >= ends[i][1] * (1 - 1e-9));
        assert_true((r.high - r.low) / r.step < 7.5);
        assert_true((r.high - r.low) < 2.1 * (ends[i][1] - ends[i][0]));
    }
    nice_range flat = nice_range_of(0, 0);
    assert_true(flat.high > flat.low && flat.step > 0);
}

/* ---- gnuplot ---- */

static bool gnuplot_is_here(const char *folder) {
    char said[256], path[4096];
    status st;
    snprintf(path, sizeof path, "%s/probe.gp", folder);
    FILE *probe = fopen(path, "w");
    assert_non_null(probe);
    fclose(probe);
    int result = gnuplot_run(folder, "probe", "svg", said, sizeof said, &st);
    if (result == GNUPLOT_MISSING)
        print_message("%s\n", st.text);
    return result != GNUPLOT_MISSING;
}

static void assert_silent(const char *folder, const shape *m, const char *format) {
    table *from = make_table(m);
    for (size_t i = 0; i < figure_count; i++) {
        char said[1024];
        size_t pages;
        status st;
        int result = figure_write(&figures[i], from, folder, "svg", &pages, &st);
        if (result == NOT_DRAWN)
            continue;
        if (result || gnuplot_run(folder, figures[i].name, format, said, sizeof said, &st))
            fail_msg("%s", st.text);
        if (*said)
            fail_msg("%s, %zu layers, %zu heads, block %zu, %s: gnuplot says: %s", figures[i].name,
                     m->layers, m->heads, m->block, format, said);
    }
    table_free(from);
}

static void gnuplot_runs_every_script_in_silence(void **state) {
    (void)state;
    static const shape shapes[] = {
        {.layers = 1, .heads = 1},
        {.layers = 1, .heads = 2, .block = 1},
        {.layers = 5, .heads = 1},
        {.layers = 1, .heads = 2, .nulls = true},
        {.layers = 2, .heads = 1, .nulls = true},
        {.layers = 8, .heads = 8, .block = 2, .intervals = true, .nulls = true},
        {.layers = 5, .heads = 8, .block = 2, .intervals = true},
        {.layers = 8, .heads = 3, .odd = NAN, .intervals = true},
        {.layers = 36, .heads = 8, .intervals = true},
        {.layers = 96, .heads = 32, .block = 8, .intervals = true},
        {.model = "mod\xc3\xa8le \xe6\xa8\xa1 it's `a` @b <c> & \\", .layers = 3, .heads = 2},
        {.model = "a-very-long-name-of-a-model-that-cannot-fit-the-width-of-one-column-step-12000",
         .layers = 36,
         .heads = 9,
         .block = 4},
    };
    static const char *const formats[] = {"svg", "png", "pdf"};
    char *folder = scratch_path("fig ures'\"$(x)\xc3\xa9");
    status st;
    if (folder_make(folder, &st))
        fail_msg("%s", st.text);
    if (!gnuplot_is_here(folder)) {
        free(folder);
        skip();
    }
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t f = 0; f < 3; f++)
            assert_silent(folder, &shapes[i], formats[f]);
    free(folder);
}

static void scripts_use_nothing_that_is_known_to_break(void **state) {
    (void)state;
    for (size_t i = 0; i < figure_count; i++) {
        drawn d =
            draw(&(shape){.layers = 4, .heads = 2, .block = 2, .intervals = true}, figures[i].name);
        assert_lacks(d.script, "datafile missing"); /* shears heatmaps */
        assert_lacks(d.script, "set palette viridis");
        assert_lacks(d.script, "set macros");   /* gone from gnuplot 6 */
        assert_lacks(d.script, "set encoding"); /* warns in the C locale */
        drop(&d);
    }
}

static void a_missing_gnuplot_is_told_apart(void **state) {
    (void)state;
    char said[64];
    status st;
    char *folder = scratch_path("figures");
    if (folder_make(folder, &st))
        fail_msg("%s", st.text);
    const char *before = getenv("GNUPLOT");
    char *kept = before ? strdup(before) : NULL;
    setenv("GNUPLOT", "/nonexistent/gnuplot", 1);
    assert_int_equal(gnuplot_run(folder, "x", "svg", said, sizeof said, &st), GNUPLOT_MISSING);
    assert_has(st.text, "/nonexistent/gnuplot");
    setenv("GNUPLOT", "/bin/false", 1);
    assert_int_equal(gnuplot_run(folder, "x", "svg", said, sizeof said, &st), FAILED);
    assert_has(st.text, "status 1");
    if (kept)
        setenv("GNUPLOT", kept, 1);
    else
        unsetenv("GNUPLOT");
    free(kept);
    free(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heatmap_data_are_the_table),
        cmocka_unit_test(one_scale_from_zero_for_all_panels),
        cmocka_unit_test(cells_that_cannot_be_are_hatched_and_sole_sources_grey),
        cmocka_unit_test(undefined_weights_are_marked_and_spare_the_scale),
        cmocka_unit_test(a_site_that_reads_nothing_is_all_hatched),
        cmocka_unit_test(running_sums_of_blocks_are_outlined),
        cmocka_unit_test(many_heads_fill_pages_that_say_so),
        cmocka_unit_test(labels_have_room_at_every_depth),
        cmocka_unit_test(large_pages_do_not_become_millions_of_rectangles),
        cmocka_unit_test(statistics_without_a_null_say_so),
        cmocka_unit_test(nulls_are_bands_behind),
        cmocka_unit_test(sites_with_one_source_are_left_out),
        cmocka_unit_test(axes_cover_values_and_intervals),
        cmocka_unit_test(a_table_without_intervals_is_drawn_and_says_so),
        cmocka_unit_test(one_head_has_no_divergence_to_show),
        cmocka_unit_test(block_openings_are_marked),
        cmocka_unit_test(text_is_clean_and_quoted),
        cmocka_unit_test(the_name_is_text_not_script),
        cmocka_unit_test(ranges_are_round_and_cover),
        cmocka_unit_test(gnuplot_runs_every_script_in_silence),
        cmocka_unit_test(scripts_use_nothing_that_is_known_to_break),
        cmocka_unit_test(a_missing_gnuplot_is_told_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
