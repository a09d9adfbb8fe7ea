/* What `fathom prune` is made of: passes resumed without a set of sublayers have the bits of whole
 * ones; scores of sources are those of their definitions; words and names are understood. */
#include "analyze/prune_search.h"
#include "probes/reader_influence.h"
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

enum { TOKENS = 12, SEQUENCES = 3, SUBLAYERS = 10 };

static const char *const MODES[] = {"block-h1-n1", "block-h1-n2",   "block-h3-n5",
                                    "delta-h1-n5", "delta-h4-n2",   "delta-raw-h1",
                                    "full-h1",     "full-h4-alpha", "standard-qwen3"};

static void open_tiny(run *r, const char *name) {
    char path[256];
    snprintf(path, sizeof path, "datasets/golden/tiny/%s", name);
    run_open(r, path, 1);
}

/* Three sequences of unequal lengths. */
typedef struct some_text {
    int32_t id[SEQUENCES * TOKENS];
    size_t start[SEQUENCES + 1];
    int64_t offset[SEQUENCES];
    text_windows windows;
} some_text;

static void make_text(some_text *t) {
    for (size_t i = 0; i < SEQUENCES; i++) {
        t->start[i + 1] = t->start[i] + TOKENS - i;
        t->offset[i] = (int64_t)(100 * i);
    }
    for (size_t k = 0; k < SEQUENCES * TOKENS; k++)
        t->id[k] = (int32_t)(k * k * 7 + 3 * k) % 61;
    t->windows = (text_windows){.sequences = SEQUENCES,
                                .longest = TOKENS,
                                .id = t->id,
                                .start = t->start,
                                .offset = t->offset};
}

/* Summed losses of every sequence by a pass of its own. */
static void whole_pass(run *r, const some_text *t, const bool *set, removal how, double *loss) {
    const removed_set removed = {set, how};
    size_t lengths[SEQUENCES];
    int32_t id[SEQUENCES * TOKENS];
    for (size_t i = 0; i < SEQUENCES; i++) {
        lengths[i] = t->start[i + 1] - t->start[i];
        memcpy(id + i * TOKENS, t->id + t->start[i], lengths[i] * sizeof *id);
    }
    run_program(r, &removed);
    run_forward(r, id, TOKENS, lengths, SEQUENCES);
    for (size_t i = 0; i < SEQUENCES; i++) {
        loss[i] = 0;
        for (size_t row = r->start[i]; row + 1 < r->start[i + 1]; row++)
            loss[i] += (double)r->loss[row];
    }
}

/* Number k of a few sets: nothing, each sublayer, each layer, two layers, all but one layer. */
static bool make_set(size_t k, bool *set) {
    memset(set, 0, SUBLAYERS);
    if (k > 0 && k <= SUBLAYERS)
        set[k - 1] = true;
    else if (k > SUBLAYERS && k <= SUBLAYERS + 5)
        set[2 * (k - SUBLAYERS - 1)] = set[2 * (k - SUBLAYERS - 1) + 1] = true;
    else if (k == SUBLAYERS + 6)
        set[2] = set[3] = set[4] = set[5] = true;
    else if (k == SUBLAYERS + 7)
        for (size_t i = 0; i < SUBLAYERS; i++)
            set[i] = i / 2 != 3;
    return k <= SUBLAYERS + 7;
}

static set_losses *open_losses(const run *r, const some_text *t, removal how, size_t together) {
    status st;
    set_losses *l;
    const set_losses_options options = {
        .m = r->model, .removal = how, .text = {t->windows}, .batch = together};
    assert_int_equal(set_losses_create(&options, &l, &st), DONE);
    return l;
}

static void resumed_passes_have_the_bits_of_whole_ones(void **state) {
    (void)state;
    for (size_t m = 0; m < sizeof MODES / sizeof *MODES; m++)
        for (removal how = DROP_SOURCE; how <= ZERO_OUTPUT; how++) {
            run r;
            some_text t = {0};
            status st;
            bool set[32][SUBLAYERS], base[SUBLAYERS] = {false};
            const bool *asked[32];
            size_t count = 0;
            open_tiny(&r, MODES[m]);
            make_text(&t);
            while (make_set(count, set[count])) {
                asked[count] = set[count];
                count++;
            }
            base[4] = base[7] = true; /* a base that has lost something itself */
            set_losses *from_whole = open_losses(&r, &t, how, 2);
            set_losses *from_less = open_losses(&r, &t, how, 3);
            assert_int_equal(set_losses_find(from_whole, 0, NULL, asked, count, &st), DONE);
            assert_int_equal(set_losses_find(from_less, 0, base, asked, count, &st), DONE);
            for (size_t k = 0; k < count; k++) {
                double want[SEQUENCES];
                whole_pass(&r, &t, set[k], how, want);
                assert_memory_equal(set_losses_of(from_whole, 0, set[k]), want, sizeof want);
                assert_memory_equal(set_losses_of(from_less, 0, set[k]), want, sizeof want);
            }
            set_losses_free(from_whole);
            set_losses_free(from_less);
            run_close(&r);
        }
}

static void sharing_is_counted(void **state) {
    (void)state;
    run r;
    some_text t = {0};
    status st;
    bool last[SUBLAYERS] = {false}, first[SUBLAYERS] = {false};
    const bool *asked[] = {last, first, last};
    open_tiny(&r, "standard-qwen3");
    make_text(&t);
    last[9] = first[0] = true;
    set_losses *l = open_losses(&r, &t, DROP_SOURCE, 0);
    assert_null(set_losses_of(l, 0, last));
    assert_int_equal(set_losses_find(l, 0, NULL, asked, 3, &st), DONE);
    /* the whole model 10 sublayers; without the last one none again; without the first one 9 */
    set_losses_count count = set_losses_counted(l);
    assert_true(count.shared == SEQUENCES * (10 + 0 + 9));
    assert_true(count.naive == SEQUENCES * (10 + 9 + 9));
    assert_int_equal(count.sets, 3);
    assert_int_equal(set_losses_find(l, 0, NULL, asked, 3, &st), DONE);
    assert_true(set_losses_counted(l).shared == count.shared);
    set_losses_free(l);
    run_close(&r);
}

/* ---- scores of sources ---- */

enum { ROWS = 5, WIDTH = 48, SITES = SUBLAYERS + 1 };

/* Everything that one pass read and made. */
typedef struct seen_pass {
    bool every[SITES];
    float in[SITES][ROWS][WIDTH], out[SUBLAYERS][ROWS][WIDTH];
    float weights[SITES][ROWS * 4 * SITES];
} seen_pass;

static int see_site(void *self, const batch *b, const site_view *view, status *st) {
    (void)st;
    seen_pass *seen = self;
    memcpy(seen->in[view->site], view->in, sizeof seen->in[0]);
    if (view->weights)
        memcpy(seen->weights[view->site], view->weights,
               b->layout.rows * view->sums_layout.heads * view->sources * sizeof(float));
    return DONE;
}

static int see_sublayer(void *self, const batch *b, const sublayer_view *view, status *st) {
    (void)b, (void)st;
    memcpy(((seen_pass *)self)->out[view->sublayer->index], view->out, sizeof(float[ROWS][WIDTH]));
    return DONE;
}

/* What a row of a site would read from its sources without the unit's: the mix of the others, built
 * up from them. */
static void read_without(const run *r, const seen_pass *seen, size_t site, size_t row,
                         const bool *unit, double gate, double *in) {
    const depth_program *p = r->program;
    const size_t heads = p->plan.heads, slice = WIDTH / heads;
    const size_t sources = (size_t)p->plan.site[site].sources;
    for (size_t d = 0; d < WIDTH; d++) {
        const float *weight = seen->weights[site] + (row * heads + d / slice) * sources;
        double sum = 0, total = 0, base = 0;
        for (size_t s = 0; s < sources; s++) {
            double v = (double)seen->in[0][row][d]; /* the embedding: all that L0.attn reads */
            bool taken = false;
            for (size_t k = 0; k < p->sublayers; k++)
                if (p->sublayer[k].out == p->plan.site[site].source[s]) {
                    v = (double)seen->out[p->sublayer[k].index][row][d];
                    taken = unit[p->sublayer[k].index];
                }
            base = v; /* the newest source is the running tensor */
            sum += taken ? 0 : (double)weight[s] * v;
            total += taken ? 0 : (double)weight[s];
        }
        in[d] = (1 - gate) * base + gate * sum / total;
    }
}

static double gate_of(const run *r, size_t site) {
    char name[96];
    float alpha = 1;
    status st;
    snprintf(name, sizeof name, "model.layers.%zu.%s_res_alpha", site / 2,
             site % 2 ? "mlp" : "attn");
    const checkpoint *ck = model_checkpoint(r->model);
    const tensor_info *t = checkpoint_find(ck, name);
    if (t)
        assert_int_equal(checkpoint_read(ck, t, &alpha, &st), DONE);
    return (double)alpha;
}

/* The definition, from the sources of every site. */
static double influence(const run *r, const seen_pass *seen, const bool *unit, size_t after) {
    double mean = 0, sites = 0;
    for (size_t site = after; site < SITES; site++) {
        double sum = 0;
        bool reads = false;
        for (int s = 0; s < r->program->plan.site[site].sources; s++)
            for (size_t k = 0; k < r->program->sublayers; k++)
                reads =
                    reads || (unit[r->program->sublayer[k].index] &&
                              r->program->plan.site[site].source[s] == r->program->sublayer[k].out);
        for (size_t row = 0; row < ROWS; row++) {
            double without[WIDTH], ab = 0, aa = 0, bb = 0;
            read_without(r, seen, site, row, unit, gate_of(r, site), without);
            for (size_t d = 0; d < WIDTH; d++) {
                ab += (double)seen->in[site][row][d] * without[d];
                aa += (double)seen->in[site][row][d] * (double)seen->in[site][row][d];
                bb += without[d] * without[d];
            }
            sum += 1 - ab / sqrt(aa * bb);
        }
        mean += reads ? sum / ROWS : 0;
        sites += reads;
    }
    return mean / sites;
}

static void see_everything(const run *r, const batch *b, const session_limits *limits,
                           seen_pass *seen) {
    status st;
    session *s;
    memset(seen->every, true, sizeof seen->every);
    const observer watch = {.self = seen,
                            .routing_sums = true,
                            .weights = true,
                            .in = seen->every,
                            .out = seen->every,
                            .on_site = see_site,
                            .on_sublayer = see_sublayer};
    assert_int_equal(session_create(r->model, r->program, limits, &s, &st), DONE);
    assert_int_equal(session_forward(s, b, &watch, &st), DONE);
    session_free(s);
}

static void reader_influence_is_that_of_its_definition(void **state) {
    (void)state;
    static const char *const names[] = {"full-h1", "full-h4", "full-h4-alpha"};
    static seen_pass seen;
    for (size_t m = 0; m < 3; m++) {
        run r;
        status st;
        reader_influence *ri;
        session *s;
        observer watch = {0};
        const size_t start[2] = {0, ROWS};
        const int32_t id[ROWS] = {3, 1, 4, 1, 5};
        const batch b = {.layout = {1, ROWS, start}, .id = id};
        const session_limits limits = {.rows = ROWS, .sequences = 1, .longest = ROWS};
        open_tiny(&r, names[m]);
        see_everything(&r, &b, &limits, &seen);
        assert_int_equal(reader_influence_create(r.model, r.program, &limits, &ri, &st), DONE);
        reader_influence_watch(ri, &watch);
        assert_int_equal(session_create(r.model, r.program, &limits, &s, &st), DONE);
        assert_int_equal(session_forward(s, &b, &watch, &st), DONE);
        const double *mean = reader_influence_of(ri, 0);
        for (unit_kind kind = 0; kind < UNIT_KINDS; kind++)
            for (size_t l = 0; l < SUBLAYERS / 2; l++) {
                bool unit[SUBLAYERS] = {false};
                unit_mark(kind, l, unit);
                double want = influence(&r, &seen, unit, kind == UNIT_ATTN ? 2 * l + 1 : 2 * l + 2);
                double got = mean[(size_t)kind * 5 + l];
                if (!(fabs(got - want) <= 1e-5))
                    fail_msg("%s: %s: %.9g, expected %.9g", names[m], unit_name(kind, l).text, got,
                             want);
            }
        assert_int_equal(reader_influence_left_out(ri), 0);
        session_free(s);
        reader_influence_free(ri);
        run_close(&r);
    }
}

/* mean_mass, routing_utility and contribution from the goldens' means of every site. */
static void routed_scores_are_those_of_the_goldens(void **state) {
    (void)state;
    static const char *const names[] = {"full-h4", "delta-raw-h1"};
    for (size_t m = 0; m < 2; m++) {
        char path[256];
        run r;
        checkpoint *expected;
        status st;
        size_t sequences, length, start[64];
        int64_t offset[64] = {0};
        prune_scores scores;
        open_tiny(&r, names[m]);
        snprintf(path, sizeof path, "%s/tiny/%s/expected.safetensors", golden_folder(), names[m]);
        assert_int_equal(checkpoint_open(path, &expected, &st), DONE);
        int32_t *id = golden_tokens(expected, &sequences, &length);
        for (size_t i = 0; i <= sequences; i++)
            start[i] = i * length;
        const text_windows w = {
            .sequences = sequences, .longest = length, .id = id, .start = start, .offset = offset};
        const session_limits limits = {.rows = length, .sequences = 1, .longest = length};
        assert_int_equal(prune_scores_measure(r.model, &w, &limits, 1, &scores, &st), DONE);
        for (size_t index = 0; index < SUBLAYERS; index++) {
            double mass = 0, utility = 0, contribution = 0, sites = 0;
            for (size_t t = index + 1; t <= SUBLAYERS; t++) {
                const depth_program *p = r.program;
                const size_t sources = (size_t)p->plan.site[t].sources;
                for (size_t s = 0; s < sources; s++) {
                    char name[96];
                    size_t n, shape[8];
                    if (strcmp(p->source_name[p->label[p->offset[t] + s]], p->site_name[index]))
                        continue;
                    snprintf(name, sizeof name, "stats/%s/mean", p->site_name[t]);
                    double *mean = golden_array(expected, name, &n, shape);
                    snprintf(name, sizeof name, "stats/%s/contribution", p->site_name[t]);
                    double *part = golden_array(expected, name, &n, shape);
                    assert_non_null(mean);
                    assert_non_null(part);
                    for (size_t h = 0; h < p->plan.heads; h++) {
                        mass += mean[h * sources + s] / (double)p->plan.heads;
                        contribution += part[h * sources + s] / (double)p->plan.heads;
                    }
                    utility -= 1 / (double)sources;
                    sites++;
                    free(mean);
                    free(part);
                }
            }
            const unit_kind kind = index % 2 ? UNIT_MLP : UNIT_ATTN;
            utility += mass;
            if (sites == 0) {
                assert_true(isnan(score_mean(&scores, SCORE_MEAN_MASS, kind, index / 2)));
                continue;
            }
            assert_true(
                fabs(score_mean(&scores, SCORE_MEAN_MASS, kind, index / 2) - mass / sites) <= 1e-5);
            assert_true(fabs(score_mean(&scores, SCORE_CONTRIBUTION, kind, index / 2) -
                             contribution / sites) <= 1e-5);
            if (m == 0)
                assert_true(fabs(score_mean(&scores, SCORE_ROUTING_UTILITY, kind, index / 2) -
                                 utility / sites) <= 1e-5);
        }
        assert_int_equal(
            score_defined(model_configuration(r.model), SCORE_ROUTING_UTILITY, UNIT_LAYER), m == 0);
        prune_scores_clear(&scores);
        free(id);
        checkpoint_close(expected);
        run_close(&r);
    }
}

/* ---- texts ---- */

static void shared_text_is_found(void **state) {
    (void)state;
    static int32_t id[600];
    static const size_t start[] = {0, 200, 400, 600};
    static const int64_t offset[] = {0, 200, 400};
    status st;
    size_t shared;
    for (size_t i = 0; i < 600; i++)
        id[i] = (int32_t)((i * 2654435761u >> 7) % 251);
    text_windows all = {.sequences = 3, .longest = 200, .id = id, .start = start, .offset = offset};
    text_windows a = text_windows_part(&all, 0, 1), b = text_windows_part(&all, 1, 2);
    assert_int_equal(text_windows_shared(&a, &b, &shared, &st), DONE);
    assert_int_equal(shared, 0);
    memcpy(id + 470, id + 30, 64 * sizeof *id); /* as long as a run must be */
    assert_int_equal(text_windows_shared(&a, &b, &shared, &st), DONE);
    assert_int_equal(shared, 1);
    id[500]++;
    assert_int_equal(text_windows_shared(&a, &b, &shared, &st), DONE);
    assert_int_equal(shared, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resumed_passes_have_the_bits_of_whole_ones),
        cmocka_unit_test(sharing_is_counted),
        cmocka_unit_test(reader_influence_is_that_of_its_definition),
        cmocka_unit_test(routed_scores_are_those_of_the_goldens),
        cmocka_unit_test(shared_text_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
