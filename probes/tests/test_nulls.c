/* test_nulls.c - random queries have the length and the variance of the learned ones, and a
 * recording holds their routing. */
#include "kernels/kernels.h"
#include "probes/h5.h"
#include "probes/nulls.h"
#include "probes/text_run.h"
#include "probes/recorder.h"
#include "probes/recording_file.h"
#include "runtime/tests/golden.h"
#include "runtime/tests/scratch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TEXT "datasets/text/opticks.txt"

static status st;

static void open_run(text_run *reading, const char *dir, size_t together, size_t sequences) {
    run_options options = RUN_OPTIONS_DEFAULT;
    options.dir = dir;
    options.tokens.text = TEXT;
    options.tokens.context = 24;
    options.tokens.sequences = sequences;
    options.tokens.batch = together;
    options.threads = 1;
    if (text_run_open(&options, reading, &st))
        fail_msg("%s", st.text);
}

static null_queries *make_nulls(text_run *reading, const null_options *options) {
    null_queries *nulls;
    const null_run with = {reading->model, reading->program, reading->session, &reading->limits,
                           reading->source};
    if (null_queries_create(&with, options, &nulls, &st))
        fail_msg("%s", st.text);
    return nulls;
}

static const float *queries_of(const null_queries *nulls, size_t site) {
    return nulls->k->host(nulls->device, nulls->site[site].folded);
}

static void sequences_with_nulls_are_evenly_spaced(void **state) {
    (void)state;
    for (size_t of = 1; of < 60; of++)
        for (size_t sequences = 1; sequences <= of; sequences++) {
            const null_queries nulls = {.sequences = sequences, .of = of};
            size_t found = 0, last = 0;
            for (size_t i = 0; i < of; i++) {
                if (!null_sequence_has(&nulls, i))
                    continue;
                assert_int_equal(null_sequence_at(&nulls, found), i);
                assert_true(found == 0 || i - last <= of / sequences + 1);
                last = i;
                found++;
            }
            assert_int_equal(found, sequences);
        }
}

/* ---- length and variance ---- */

typedef struct variances {
    size_t heads, queries;
    double sum[64][64 * 8]; /* [sites][queries, heads] */
} variances;

static int add_variance(void *self, const batch *b, const site_view *view, status *unused) {
    (void)unused;
    variances *v = self;
    for (size_t q = 0; view->alternative_variance && q < v->queries; q++)
        for (size_t i = 0; i < b->layout.sequences; i++)
            for (size_t h = 0; h < v->heads; h++)
                v->sum[view->site][q * v->heads + h] +=
                    view->alternative_variance[(q * b->layout.sequences + i) * v->heads + h];
    return DONE;
}

/* Variances over the whole run, whose sequences all have nulls. */
static void measure(text_run *reading, const site_alternatives *site, size_t queries,
                    variances *v) {
    batch b;
    *v = (variances){.heads = reading->program->plan.heads, .queries = queries};
    const observer watch = {
        .self = v, .alternatives = site, .alternative_variance = true, .on_site = add_variance};
    reading->next = 0;
    while (!text_run_next(reading, &b, &st) && b.layout.sequences)
        if (session_forward(reading->session, &b, &watch, &st))
            fail_msg("%s", st.text);
}

/* The model's own folded queries as alternatives. */
static site_alternatives *own_queries(const text_run *reading) {
    const model_weights *w = model_tensors(reading->model);
    const kernels *k = model_kernels(reading->model);
    backend *device = model_backend(reading->model);
    const depth_plan *plan = &reading->program->plan;
    site_alternatives *own = calloc(plan->sites, sizeof *own);
    float *folded = calloc(plan->width, sizeof *folded);
    for (size_t i = 0; i < plan->sites; i++) {
        const site_weights *site = i + 1 == plan->sites ? &w->final_site
                                   : i % 2              ? &w->layer[i / 2].mlp_site
                                                        : &w->layer[i / 2].attn_site;
        if (plan->site[i].sources < 2)
            continue;
        const float *query = k->host(device, site->query), *gain = k->host(device, site->gain);
        for (size_t c = 0; c < plan->width; c++)
            folded[c] = gain[c] * query[c];
        own[i].count = 1;
        assert_int_equal(k->buffer_create(device, BUFFER_EXACT, plan->width, &own[i].folded, &st),
                         0);
        assert_int_equal(k->upload(device, own[i].folded, 0, folded, plan->width, &st), 0);
    }
    free(folded);
    return own;
}

static double length_of(const float *x, size_t n) {
    double squares = 0;
    for (size_t i = 0; i < n; i++)
        squares += (double)x[i] * (double)x[i];
    return sqrt(squares);
}

static void nulls_have_the_length_or_the_variance(void **state) {
    (void)state;
    enum { DRAWS = 3 };
    static const char *const models[] = {"datasets/models/mhar-h8", "datasets/models/mhar-block-h4",
                                         "datasets/models/attnres-full"};
    static variances learned, random;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        text_run reading;
        open_run(&reading, models[m], 2, 5);
        const null_options options = {.draws = DRAWS, .sequences = 5, .seed = 11};
        null_queries *nulls = make_nulls(&reading, &options);
        site_alternatives *own = own_queries(&reading);
        measure(&reading, own, 1, &learned);
        measure(&reading, nulls->site, 2 * DRAWS, &random);
        size_t heads = learned.heads, width = reading.program->plan.width, slice = width / heads;
        for (size_t i = 0; i < nulls->sites; i++) {
            assert_int_equal(nulls->site[i].count, own[i].count ? 2 * DRAWS : 0);
            if (own[i].count == 0)
                continue;
            const float *query = nulls->k->host(nulls->device, own[i].folded);
            const float *null = queries_of(nulls, i);
            for (size_t r = 0; r < DRAWS; r++)
                for (size_t h = 0; h < heads; h++) {
                    const float *norm = null + r * width + h * slice;
                    const float *var = norm + DRAWS * width;
                    double same = 0;
                    for (size_t c = 0; c < slice; c++)
                        same += (double)norm[c] * (double)var[c];
                    same /= length_of(norm, slice) * length_of(var, slice);
                    assert_true(fabs(same - 1) < 1e-6);
                    assert_true(fabs(length_of(norm, slice) / length_of(query + h * slice, slice) -
                                     1) < 1e-5);
                    double got = random.sum[i][(DRAWS + r) * heads + h];
                    assert_true(fabs(got / learned.sum[i][h] - 1) < 1e-4);
                }
            nulls->k->buffer_free(nulls->device, own[i].folded);
        }
        free(own);
        null_queries_free(nulls);
        text_run_clear(&reading);
    }
}

static void fewer_draws_are_the_first_of_more(void **state) {
    (void)state;
    text_run few_run, many_run;
    open_run(&few_run, "datasets/models/mhar-h8", 1, 6);
    open_run(&many_run, "datasets/models/mhar-h8", 4, 6);
    const null_options few_options = {.draws = 2, .sequences = 3, .seed = 5};
    const null_options many_options = {.draws = 5, .sequences = 3, .seed = 5};
    const null_options other_options = {.draws = 2, .sequences = 3, .seed = 6};
    null_queries *few = make_nulls(&few_run, &few_options);
    null_queries *many = make_nulls(&many_run, &many_options);
    null_queries *other = make_nulls(&few_run, &other_options);
    size_t width = few_run.program->plan.width, bytes = 2 * width * sizeof(float);
    for (size_t i = 1; i < few->sites; i++) {
        assert_memory_equal(queries_of(few, i), queries_of(many, i), bytes);
        assert_memory_equal(queries_of(few, i) + 2 * width, queries_of(many, i) + 5 * width, bytes);
        assert_true(memcmp(queries_of(few, i), queries_of(other, i), bytes) != 0);
    }
    null_queries_free(few);
    null_queries_free(many);
    null_queries_free(other);
    text_run_clear(&few_run);
    text_run_clear(&many_run);
}

/* ---- the recording ---- */

static void capture(const char *dir, const char *tokens, const char *words, const char *path) {
    const char *program = getenv("FATHOM");
    char command[1024];
    snprintf(command, sizeof command, "%s capture %s %s %s -q -o %s",
             program ? program : "build/fathom", dir, tokens, words, path);
    if (system(command))
        fail_msg("%s", command);
}

/* routing/NAME_null_KIND is the token-weighted mean of the sequences that have it; entropies are
 * possible ones; sequences without nulls are NaN. */
static void a_recording_holds_nulls(void **state) {
    (void)state;
    char *path = scratch_path("nulls.h5");
    recording *rec;
    capture("datasets/models/mhar-h8", "--text " TEXT " -c 24 -n 10",
            "--null 3 --null-sequences 4 --seed 9 --skip-first 2 --batch 3", path);
    assert_int_equal(recording_open(path, &rec, &st), DONE);
    const recording_about *about = recording_about_of(rec);
    assert_int_equal(about->null_draws, 3);
    assert_int_equal(about->null_sequences, 4);
    for (size_t j = 0; j < 4; j++)
        assert_int_equal(about->null_sequence[j], j * 10 / 4);
    size_t size = 3 * about->sites * about->heads;
    for (int kind = 0; kind < 2; kind++) {
        double *data, *stored = calloc(size, sizeof *stored);
        const char *name = kind ? "routing/entropy_null_var" : "routing/entropy_null_norm";
        assert_int_equal(recording_read_null(rec, "entropy", kind ? "var" : "norm", &data, &st), 0);
        hid_t dataset = H5Dopen2(recording_file(rec), name, H5P_DEFAULT);
        assert_true(H5Dread(dataset, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, stored) >=
                    0);
        h5_close(&dataset);
        for (size_t i = 0; i < size; i++) {
            size_t site = i / about->heads % about->sites;
            double mean = 0;
            for (size_t j = 0; j < 4; j++)
                mean += data[j * size + i] / 4; /* of equal length */
            if (site == 0)
                assert_true(isnan(stored[i]));
            else
                assert_true(fabs(stored[i] - mean) < 1e-12 && mean > 0 &&
                            mean <= log((double)(site + 1)) + 1e-6);
        }
        free(data);
        free(stored);
    }
    double *none;
    assert_int_equal(recording_read_null(rec, "top1", "var", &none, &st), FAILED);
    assert_non_null(strstr(st.text, "`top1` has no nulls"));
    recording_close(rec);

    capture("datasets/models/mhar-h8", "--text " TEXT " -c 24 -n 2", "", path);
    assert_int_equal(recording_open(path, &rec, &st), DONE);
    assert_int_equal(recording_about_of(rec)->null_draws, 0);
    assert_int_equal(recording_read_null(rec, "entropy", "var", &none, &st), FAILED);
    assert_non_null(strstr(st.text, "--null 8"));
    recording_close(rec);
    free(path);
}

typedef struct entropies {
    const double *recorded[2]; /* norm, var: [draws, sites, heads] of one sequence */
    size_t draws, sites, compared;
} entropies;

static int compare_entropies(void *self, const batch *b, const site_view *view, status *unused) {
    (void)unused;
    entropies *e = self;
    const routing_layout *layout = &view->sums_layout;
    for (size_t q = 0; view->alternative_sums && q < 2 * e->draws; q++)
        for (size_t h = 0; h < layout->heads; h++) {
            const double *sums = view->alternative_sums + q * b->layout.sequences * layout->total;
            const double *kind = e->recorded[q / e->draws];
            size_t at = (q % e->draws * e->sites + view->site) * layout->heads + h;
            assert_true(kind[at] == sums[layout->entropy + h] / sums[layout->tokens]);
            e->compared++;
        }
    return DONE;
}

/* What is recorded as of equal norm and of equal variance is the routing under those queries. */
static void each_kind_is_recorded_as_such(void **state) {
    (void)state;
    char *path = scratch_path("kinds.h5");
    recording *rec;
    batch b;
    double *norm, *var;
    capture("datasets/models/mhar-block-h4", "--text " TEXT " -c 24 -n 3", "--null 2 --seed 4",
            path);
    assert_int_equal(recording_open(path, &rec, &st), DONE);
    assert_int_equal(recording_read_null(rec, "entropy", "norm", &norm, &st), DONE);
    assert_int_equal(recording_read_null(rec, "entropy", "var", &var, &st), DONE);
    text_run reading;
    open_run(&reading, "datasets/models/mhar-block-h4", 3, 3);
    const null_options options = {.draws = 2, .sequences = 3, .seed = 4};
    null_queries *nulls = make_nulls(&reading, &options);
    entropies e = {.recorded = {norm, var}, .draws = 2, .sites = nulls->sites};
    const observer watch = {.self = &e,
                            .alternatives = nulls->site,
                            .alternative_sums = true,
                            .on_site = compare_entropies};
    assert_int_equal(text_run_next(&reading, &b, &st), DONE);
    assert_int_equal(session_forward(reading.session, &b, &watch, &st), DONE);
    assert_int_equal(e.compared, 16 * 4 * 4); /* sites, queries, heads */
    null_queries_free(nulls);
    text_run_clear(&reading);
    recording_close(rec);
    free(norm);
    free(var);
    free(path);
}

/* A query of zeros routes evenly whatever its direction: it has no null. */
static void zero_queries_have_no_null(void **state) {
    (void)state;
    char *path = scratch_path("zero.h5");
    recording *rec;
    double *data;
    char *tokens = scratch_path("zero.npy"), words[300];
    const int32_t id[12] = {1, 2, 3, 4, 5, 6, 6, 5, 4, 3, 2, 1};
    golden_write_tokens(tokens, id, 2, 6);
    snprintf(words, sizeof words, "--tokens %s", tokens);
    capture("datasets/golden/tiny/full-h4-zero-query", words, "--null 2", path);
    assert_int_equal(recording_open(path, &rec, &st), DONE);
    const recording_about *about = recording_about_of(rec);
    assert_int_equal(about->null_sequences, 2);
    static const char *const names[] = {"entropy", "head_divergence", "mean", "head_js"};
    for (size_t k = 0; k < 4; k++) {
        size_t size = routing_row_size(routing_row_find(names[k]), about->heads, about->sources);
        assert_int_equal(recording_read_null(rec, names[k], "norm", &data, &st), DONE);
        for (size_t i = 0; i < 2 * 2 * about->sites * size; i++)
            if (k < 3 || i / about->heads % about->heads != i % about->heads)
                assert_true(isnan(data[i]));
        free(data);
    }
    recording_close(rec);
    free(path);
    free(tokens);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_with_nulls_are_evenly_spaced),
        cmocka_unit_test(nulls_have_the_length_or_the_variance),
        cmocka_unit_test(fewer_draws_are_the_first_of_more),
        cmocka_unit_test(a_recording_holds_nulls),
        cmocka_unit_test(each_kind_is_recorded_as_such),
        cmocka_unit_test(zero_queries_have_no_null),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
