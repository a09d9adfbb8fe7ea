/* Figures: what the scripts say and the data hold, for models of many shapes; and that gnuplot runs
 * each of them without a word. */
#include "plots/figure.h"
#include "plots/gnuplot.h"
#include "plots/routing_view.h"
#include "plots/tests/made_table.h"
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

/* ---- Drawing made-up models ---- */

static table *make_table(const shape *m) {
    char *path = scratch_path("routing.tsv");
    status st;
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    made_table_write(out, m);
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

/* ---- What is compared with the weights ---- */

/* Why a figure is not drawn. */
static void assert_not_drawn(const shape *m, const char *name, const char *why) {
    char *folder = scratch_path("figures");
    table *from = make_table(m);
    size_t pages;
    status st;
    if (folder_make(folder, &st))
        fail_msg("%s", st.text);
    assert_int_equal(figure_write(figure_find(name), from, folder, "svg", &pages, &st), NOT_DRAWN);
    assert_has(st.text, why);
    table_free(from);
    free(folder);
}

static void deviations_are_from_the_head_mean_on_a_symmetric_scale(void **state) {
    (void)state;
    drawn d = draw(&(shape){.layers = 3, .heads = 2}, "head_deviation");
    /* L0.mlp: weights 1/3 and 2/3, the other way round in head 1; the table's mean is head 0's. */
    assert_has(data_set(d.data, 0), "head 0, attention sites");
    assert_has(strstr(d.data, "head 1, MLP sites"), "\n0 0 0.333333\n1 0 -0.333333\n2 0 nan\n");
    assert_has(d.script, "set cbrange [-scale_max : scale_max]");
    assert_has(d.script, "0 '#f6f6f6', 1 '#f2cebf'");
    assert_lacks(d.script, "#fde725");
    drop(&d);
    assert_not_drawn(&(shape){.layers = 3, .heads = 1}, "head_deviation", "one routing head");
}

static void lift_is_in_doublings_of_uniform(void **state) {
    (void)state;
    drawn d = draw(&(shape){.layers = 3, .heads = 1}, "depth_attention_lift");
    /* L1.mlp: 4 sources of weights .1 to .4; log2(4 * .1), log2(4 * .4). */
    const char *mlp = data_set(d.data, 1);
    assert_has(mlp, "\n0 1 -1.32193\n");
    assert_has(mlp, "\n3 1 0.678072\n");
    /* L2.mlp: 6 sources, the smallest weight 1/21. */
    assert_has(d.script, "'1/4' -2, '1/2' -1, '1' 0, '2' 1, '4' 2");
    drop(&d);
}

/* A hundredth of the cells does not take the colours of the rest, and is counted. */
static void deep_models_keep_their_colours(void **state) {
    (void)state;
    drawn d = draw(&(shape){.layers = 36, .heads = 1}, "depth_attention");
    size_t beyond = 0, cells = 0;
    const char *note = strstr(d.script, "Beyond the scale");
    assert_non_null(note);
    assert_int_equal(sscanf(note, "Beyond the scale''s end: %zu of %zu", &beyond, &cells), 2);
    /* Sites of 2 to 73 sources. */
    assert_int_equal(cells, 73 * 74 / 2 - 1);
    assert_true(beyond > 0 && beyond <= cells / 100 + 1);
    drop(&d);
    d = draw(&(shape){.layers = 4, .heads = 1}, "depth_attention");
    assert_lacks(d.script, "Beyond");
    drop(&d);
}

static void contributions_stand_beside_the_mass(void **state) {
    (void)state;
    drawn d = draw(&(shape){.layers = 3, .heads = 2}, "contribution");
    /* L1.attn: weights 1, 2, 3 of 6; the made-up table has 1.1 w - .02 and 1.3 w - .05. */
    assert_has(strstr(d.data, "mass, attention sites"), "\n0 1 0.166667\n1 1 0.333333\n");
    assert_has(strstr(d.data, ": contribution, attention sites"), "\n0 1 0.163333\n");
    assert_has(strstr(d.data, "signed_contribution, attention sites"), "\n0 1 0.166667\n");
    assert_has(d.script, "set cbrange [-scale_max : scale_max]");
    drop(&d);
    assert_not_drawn(&(shape){.layers = 3, .heads = 2, .undefined = true}, "contribution",
                     "weights without hidden states");
}

static void blocks_are_spread_over_sublayers(void **state) {
    (void)state;
    drawn d = draw(&(shape){.layers = 4, .heads = 2, .block = 2}, "depth_matrix");
    /* L1.attn reads emb (1/3) and B1 (2/3), the sum of L0.attn and L0.mlp. */
    assert_has(d.data, "0=emb 1=L0.attn 2=L0.mlp 3=L1.attn");
    assert_has(data_set(d.data, 0), "\n0 1 0.333333\n1 1 0.333333\n2 1 0.333333\n3 1 nan\n");
    drop(&d);
    assert_not_drawn(&(shape){.layers = 4, .heads = 2}, "depth_matrix", "depth_attention");
}

/* ---- Pairs ---- */

static void pairs_of_heads_fill_symmetric_matrices(void **state) {
    (void)state;
    drawn d = draw(&(shape){.layers = 4, .heads = 3, .nulls = true}, "head_js");
    const char *map = strstr(d.data, ": L1; columns: head, head, head_js in nats");
    assert_non_null(map);
    assert_has(map, "\n0 0 nan\n1 0 0.01\n2 0 0.02\n0 1 0.01\n1 1 nan\n");
    /* L0.attn has no choice; then L1-L3 and final, L0-L3. Mean of the pairs, and the null's. */
    assert_int_equal(count_of(d.data, "; columns: head, head, head_js"), 8);
    assert_has(d.script, "'0.013 (0.200)'");
    drop(&d);
    d = draw(&(shape){.layers = 4, .heads = 3}, "head_js");
    assert_has(d.script, "No null shown");
    drop(&d);
}

static void many_layers_fill_pages_or_share_a_map(void **state) {
    (void)state;
    drawn d = draw(&(shape){.layers = 36, .heads = 2}, "head_js");
    assert_int_equal(d.pages, 3);
    assert_has(d.script, "page 3 of 3");
    drop(&d);
    d = draw(&(shape){.layers = 96, .heads = 2}, "head_js");
    assert_int_equal(d.pages, 1);
    assert_has(d.script, "set label 'L90-95'");
    assert_has(d.script, "mean over up to 9");
    drop(&d);
}

static void the_last_site_stands_for_all_sources(void **state) {
    (void)state;
    drawn d = draw(&(shape){.layers = 4, .heads = 1}, "source_cos");
    assert_has(d.data, "site final, 9 sources");
    assert_has(data_set(d.data, 0), "\n0 0 nan\n1 0 0.6\n2 0 0.2\n");
    assert_int_equal(d.pages, 1);
    assert_lacks(d.data, "index 1");
    assert_has(d.script, "the last site");
    drop(&d);
    d = draw(&(shape){.layers = 6, .heads = 1, .block = 2}, "source_cos");
    assert_has(d.data, "site final, 4 sources");
    assert_has(d.data, "site L2.attn, 2 sources");
    assert_has(d.data, "site L4.attn, 3 sources");
    drop(&d);
    assert_not_drawn(&(shape){.layers = 4, .heads = 1, .undefined = true}, "source_cos",
                     "every cosine in the table is undefined");
}

/* ---- Weight in sum ---- */

static void kinds_and_reach_are_lines_by_depth(void **state) {
    (void)state;
    drawn d = draw(&(shape){.layers = 3, .heads = 2, .block = 1}, "kind_mass");
    assert_has(d.data, "kind_mass, before attention and at final, whole blocks; columns: depth");
    assert_has(d.data, "lift, before the MLP, running sum");
    assert_has(d.script, "'uniform'");
    drop(&d);
    d = draw(&(shape){.layers = 3, .heads = 2, .intervals = true}, "reach");
    /* L0.attn is the second source: 1 / 2. */
    assert_has(d.data,
               "reach, attention outputs; columns: depth, value, low, high\n0 0.5 0.48 0.57\n");
    assert_lacks(d.data, "emb");
    drop(&d);
    assert_not_drawn(&(shape){.layers = 3, .heads = 2, .undefined = true}, "reach",
                     "no output has a defined reach");
}

static void raw_statistics_stand_beside_uniform_weights(void **state) {
    (void)state;
    drawn d = draw(&(shape){.layers = 3, .heads = 2, .nulls = true}, "routing_by_depth_raw");
    /* L1.attn has three sources: ln 3, 3, 1 and 1/3. */
    assert_has(strstr(d.data, "entropy, uniform"), "\n1 1.09861 nan nan\n");
    assert_has(strstr(d.data, "effective_sources, uniform"), "\n1 3 nan nan\n");
    assert_has(strstr(d.data, "lookback, uniform"), "\n1 1 nan nan\n");
    assert_has(strstr(d.data, "top1, uniform"), "\n1 0.333333 nan nan\n");
    assert_has(d.data, "entropy, null of before attention");
    drop(&d);
    /* A null source has no distance: two others are left. */
    d = draw(&(shape){.layers = 3, .heads = 2, .null_source = true}, "routing_by_depth_raw");
    assert_has(strstr(d.data, "lookback, uniform"), "\n1 0.5 nan nan\n");
    drop(&d);
}

/* gnuplot refuses an empty range, and rounding is no structure. */
static void flat_values_have_a_range(void **state) {
    (void)state;
    drawn d = draw(&(shape){.layers = 3, .heads = 2, .flat = true}, "routing_by_depth");
    assert_has(d.script, "set yrange [0.79 : 0.81]");
    assert_has(d.script, "set yrange [0 : 1e-06]");
    drop(&d);
}

static void undefined_tables_are_not_drawn(void **state) {
    (void)state;
    assert_not_drawn(&(shape){.layers = 3, .heads = 2, .undefined = true}, "routing_by_depth",
                     "no site with two or more sources has a defined value");
}

/* ---- Statistics by depth ---- */

static void statistics_without_a_null_say_so(void **state) {
    (void)state;
    drawn d = draw(&(shape){.layers = 4, .heads = 4, .intervals = true}, "routing_by_depth");
    /* All but lookback_norm. */
    assert_int_equal(count_of(d.script, "'no null shown'"), 5);
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
    assert_has(d.script, "Bands: ");
    assert_int_equal(count_of(d.script, "with filledcurves fc rgb null"), 10);
    assert_int_equal(count_of(d.script, "with boxxyerror fs solid border rgb null3"), 5);
    const char *attn = strstr(d.data, "head_divergence, null of before attention");
    assert_non_null(attn);
    assert_int_equal(strncmp(strchr(attn, '\n'), "\n1 0.2 0.1 0.3\n", 15), 0);
    const char *final = strstr(d.data, "entropy_norm, null of final");
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
    const char *attn = strstr(d.data, "entropy_norm, before attention");
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
    assert_int_equal(count_of(d.script, "set arrow from first"), 2);
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
    /* Greek is in every font; gnuplot draws letters that no font has over the whole figure. */
    script = open_memstream(&text, &bytes);
    put_string(script, "\xce\xb1\xe2\x86\x92 \xe6\xa8\xa1'");
    fclose(script);
    assert_string_equal(text, "(all_letters ? '\xce\xb1\xe2\x86\x92 \xe6\xa8\xa1''' : "
                              "'\xce\xb1\xe2\x86\x92 ?''')");
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
        if (figure_lacks(&figures[i], from))
            continue;
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
    /* The first few in every format. */
    enum { ALL_FORMATS = 3 };
    static const shape shapes[] = {
        {.layers = 1, .heads = 1},
        {.layers = 8, .heads = 8, .block = 2, .intervals = true, .nulls = true, .rough = true},
        {.model = "mod\xc3\xa8le \xe6\xa8\xa1 it's `a` @b <c> & \\",
         .layers = 3,
         .heads = 2,
         .nulls = true,
         .long_names = true},
        {.layers = 8, .heads = 3, .odd = NAN, .intervals = true},
        {.layers = 5, .heads = 1, .undefined = true},
        {.layers = 4, .heads = 2, .flat = true},
        {.layers = 1, .heads = 2, .block = 1, .nulls = true},
        {.layers = 36, .heads = 3, .intervals = true, .rough = true},
        {.layers = 96, .heads = 5, .block = 16, .intervals = true, .rough = true},
        {.layers = 6, .heads = 32, .block = 2, .nulls = true},
        {.layers = 96, .heads = 2, .intervals = true},
        {.model = "a-very-long-name-of-a-model-that-cannot-fit-the-width-of-one-column-step-12000",
         .layers = 36,
         .heads = 9,
         .block = 4,
         .long_names = true},
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
        for (size_t f = 0; f < (i < ALL_FORMATS ? 3 : 1); f++)
            assert_silent(folder, &shapes[i], formats[f]);
    free(folder);
}

static void scripts_use_nothing_that_is_known_to_break(void **state) {
    (void)state;
    const shape m = {.layers = 4, .heads = 2, .block = 2, .intervals = true};
    table *from = make_table(&m);
    for (size_t i = 0; i < figure_count; i++) {
        if (figure_lacks(&figures[i], from))
            continue;
        drawn d = draw(&m, figures[i].name);
        assert_lacks(d.script, "datafile missing"); /* shears heatmaps */
        assert_lacks(d.script, "set palette viridis");
        assert_lacks(d.script, "set macros");   /* gone from gnuplot 6 */
        assert_lacks(d.script, "set encoding"); /* warns in the C locale */
        drop(&d);
    }
    table_free(from);
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
        cmocka_unit_test(deviations_are_from_the_head_mean_on_a_symmetric_scale),
        cmocka_unit_test(lift_is_in_doublings_of_uniform),
        cmocka_unit_test(deep_models_keep_their_colours),
        cmocka_unit_test(contributions_stand_beside_the_mass),
        cmocka_unit_test(blocks_are_spread_over_sublayers),
        cmocka_unit_test(pairs_of_heads_fill_symmetric_matrices),
        cmocka_unit_test(many_layers_fill_pages_or_share_a_map),
        cmocka_unit_test(the_last_site_stands_for_all_sources),
        cmocka_unit_test(kinds_and_reach_are_lines_by_depth),
        cmocka_unit_test(raw_statistics_stand_beside_uniform_weights),
        cmocka_unit_test(flat_values_have_a_range),
        cmocka_unit_test(undefined_tables_are_not_drawn),
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
