/* Results that arrive late: what an observer sees of a backend whose memory the host cannot read is
 * what it sees of the CPU's, to the last bit and in the same order. */
#include "kernels/cpu/cpu.h"
#include "runtime/model_load.h"
#include "runtime/session_state.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* ---- a backend that is late ---- */

/* Copies on their way; until `wait` their destination holds NaN. */
enum { MOST_COPIES = 4096 };
static struct {
    void *to, *content;
    size_t bytes;
} copy[MOST_COPIES];
static size_t copies;

/* Takes over `content`. */
static int send(void *content, void *to, size_t bytes) {
    assert_true(copies < MOST_COPIES);
    memset(to, 0xff, bytes);
    copy[copies].to = to;
    copy[copies].content = content;
    copy[copies++].bytes = bytes;
    return DONE;
}

static int late_wait(backend *device, status *st) {
    (void)device;
    (void)st;
    for (; copies > 0; copies--) {
        memcpy(copy[copies - 1].to, copy[copies - 1].content, copy[copies - 1].bytes);
        free(copy[copies - 1].content);
    }
    return DONE;
}

static int late_fetch(backend *device, const buffer *from, size_t offset, void *to, size_t count,
                      status *st) {
    void *content = malloc(count * sizeof(float) + 1);
    assert_non_null(content);
    assert_int_equal(kernels_cpu.download(device, from, offset, content, count, st), DONE);
    return send(content, to, count * sizeof(float));
}

static size_t sums_bytes[64]; /* of each site */
static int late_sums(depth *axis, size_t site, double *sums, status *st) {
    double *content = calloc(1, sums_bytes[site] + 1);
    assert_non_null(content);
    assert_int_equal(kernels_cpu.depth_sums(axis, site, content, st), DONE);
    return send(content, sums, sums_bytes[site]);
}

static const void *late_host(backend *device, const buffer *memory) {
    (void)device;
    (void)memory;
    return NULL;
}

/* ---- what an observer sees ---- */

typedef struct trace {
    char *bytes;
    size_t length;
} trace;

static void put(trace *t, const void *data, size_t bytes) {
    const bool there = data != NULL;
    bytes = there ? bytes : 0;
    t->bytes = realloc(t->bytes, t->length + 1 + bytes);
    assert_non_null(t->bytes);
    t->bytes[t->length++] = (char)there;
    if (there)
        memcpy(t->bytes + t->length, data, bytes);
    t->length += bytes;
}

static void put_batch(trace *t, char kind, size_t index, const batch *b) {
    const size_t head[3] = {(size_t)kind, index, b->first};
    put(t, head, sizeof head);
    put(t, b->id, b->layout.rows * sizeof *b->id);
}

static int on_site(void *self, const batch *b, const site_view *v, status *st) {
    (void)st;
    trace *t = self;
    const size_t rows = b->layout.rows;
    put_batch(t, 's', v->site, b);
    put(t, v->in_rms, rows * sizeof(float));
    put(t, v->weights, rows * v->sources * v->sums_layout.heads * sizeof(float));
    put(t, v->sums, b->layout.sequences * v->sums_layout.total * sizeof(double));
    return DONE;
}

static int on_sublayer(void *self, const batch *b, const sublayer_view *v, status *st) {
    (void)st;
    trace *t = self;
    const size_t bytes = b->layout.rows * sizeof(float);
    put_batch(t, 'l', v->sublayer->index, b);
    put(t, v->out_rms, bytes);
    put(t, v->out_absmax, bytes);
    put(t, v->state_rms, bytes);
    put(t, v->state_median_abs, bytes);
    put(t, v->state_absmax_channel, bytes);
    put(t, v->attention_entropy, bytes);
    put(t, v->attention_pattern, bytes);
    put(t, v->out, 8 * bytes);
    return DONE;
}

static int on_head(void *self, const batch *b, const head_view *v, status *st) {
    (void)st;
    put_batch(self, 'h', 0, b);
    put(self, v->loss, b->layout.rows * sizeof(float));
    put(self, v->logits, b->layout.rows * sizeof(float));
    return DONE;
}

static int on_gradient(void *self, const batch *b, const gradient_view *v, status *st) {
    (void)st;
    put_batch(self, 'g', (size_t)v->point, b);
    put(self, v->l2, b->layout.rows * sizeof(float));
    return DONE;
}

static int on_done(void *self, const batch *b, status *st) {
    (void)st;
    put_batch(self, 'd', 0, b);
    return DONE;
}

/* ---- the same batches, direct and late ---- */

enum { BATCHES = 4, SEQUENCES = 2, LONGEST = 17 };

static void run(const char *folder, bool late, bool backward, trace *t) {
    status st;
    model *m;
    depth_program *p;
    session *s;
    kernels table = kernels_cpu;
    if (model_open(folder, &(model_options){.device = "cpu", .threads = 1}, &m, &st) ||
        depth_program_build(model_configuration(m), NULL, &p, &st))
        fail_msg("%s", st.text);
    if (late) {
        table.host = late_host;
        table.fetch = late_fetch;
        table.wait = late_wait;
        table.depth_sums = late_sums;
        m->k = &table;
    }
    const session_limits limits = {SEQUENCES * LONGEST, SEQUENCES, LONGEST, backward, false};
    if (session_create(m, p, &limits, &s, &st))
        fail_msg("%s", st.text);
    bool all[64];
    memset(all, true, sizeof all);
    const observer watch = {.self = t,
                            .magnitudes = true,
                            .routing_sums = true,
                            .routing_pairs = true,
                            .weights = true,
                            .logits = true,
                            .attention = true,
                            .pattern = all,
                            .out = all,
                            .on_site = on_site,
                            .on_sublayer = on_sublayer,
                            .on_head = on_head,
                            .on_gradient = on_gradient,
                            .on_done = on_done};
    /* Two batches' memory in turn, as text_run keeps it. */
    int32_t id[2][SEQUENCES * LONGEST];
    size_t start[2][SEQUENCES + 1] = {{0}};
    for (size_t i = 0; i < BATCHES; i++) {
        const size_t turn = i % 2, first = 1 + i * 3;
        start[turn][1] = first;
        start[turn][2] = first + LONGEST - i;
        for (size_t r = 0; r < start[turn][2]; r++)
            id[turn][r] = (int32_t)((r * 7 + i * 11) % 61);
        const batch b = {.layout = {SEQUENCES, start[turn][2], start[turn]},
                         .id = id[turn],
                         .first = i * SEQUENCES};
        const size_t before = t->length;
        for (size_t k = 0; k < p->plan.sites; k++)
            sums_bytes[k] = SEQUENCES * sizeof(double) *
                            routing_layout_of(p->plan.heads, (size_t)p->plan.site[k].sources,
                                              p->plan.site[k].null_source, true)
                                .total;
        if (session_forward(s, &b, &watch, &st) ||
            (backward && session_backward(s, &b, &watch, &st)))
            fail_msg("%s", st.text);
        assert_true(late && i == 0 ? t->length == before : t->length > before);
    }
    if (session_finish(s, &st))
        fail_msg("%s", st.text);
    session_free(s);
    depth_program_free(p);
    model_close(m);
}

static void what_comes_late_is_the_same(void **state) {
    (void)state;
    const char *const folders[] = {
        "datasets/golden/tiny/full-h4", "datasets/golden/tiny/delta-h4-n2",
        "datasets/golden/tiny/block-h3-n5", "datasets/golden/tiny/standard-llama"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        for (int backward = 0; backward < 2; backward++) {
            trace direct = {0}, late = {0};
            run(folders[i], false, backward, &direct);
            run(folders[i], true, backward, &late);
            assert_int_equal(direct.length, late.length);
            assert_memory_equal(direct.bytes, late.bytes, late.length);
            free(direct.bytes);
            free(late.bytes);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_comes_late_is_the_same)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
