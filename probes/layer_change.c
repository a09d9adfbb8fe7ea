#include "probes/layer_change.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct layer_change {
    const depth_program *program;
    size_t layers, width, rows, sequences, most_skipped;
    bool stream;   /* every site has a base: the modes with an additive stream */
    bool *wanted;  /* [sites] attention sites and `final` */
    float *in, *x; /* [layers + 1, rows, width] */
    bool *there;   /* [layers + 1] seen in this batch */
    double *mean;  /* [sequences, per_sequence] mix_change, block_influence, angles: all, last */
    size_t per_sequence;
    size_t *tokens, *left_out; /* [sequences] */
};

int layer_change_create(const depth_program *program, const session_limits *limits,
                        size_t most_skipped, layer_change **out, status *st) {
    layer_change *lc = mem_array(1, sizeof *lc, "layer change", st);
    if (!lc)
        return FAILED;
    const depth_plan *plan = &program->plan;
    size_t layers = plan->sites / 2;
    *lc = (layer_change){.program = program,
                         .layers = layers,
                         .width = plan->width,
                         .rows = limits->rows,
                         .sequences = limits->sequences,
                         .most_skipped = most_skipped,
                         .stream = plan->site[plan->sites - 1].base != NO_VALUE,
                         .per_sequence = 2 * layers * (1 + most_skipped)};
    for (size_t i = 0; i < plan->sites; i++)
        lc->stream = lc->stream && (!program->site_read[i] || (plan->site[i].base != NO_VALUE &&
                                                               !plan->site[i].interpolates));
    size_t tensors = (layers + 1) * limits->rows;
    lc->wanted = mem_array(plan->sites, sizeof *lc->wanted, "layer change", st);
    lc->there = mem_array(layers + 1, sizeof *lc->there, "layer change", st);
    lc->in = mem_array(tensors, lc->width * sizeof *lc->in, "inputs of layers", st);
    lc->x = mem_array(lc->stream ? tensors : 0, lc->width * sizeof *lc->x, "the stream", st);
    lc->mean =
        mem_array(limits->sequences, lc->per_sequence * sizeof *lc->mean, "layer change", st);
    lc->tokens = mem_array(limits->sequences, sizeof *lc->tokens, "layer change", st);
    lc->left_out = mem_array(limits->sequences, sizeof *lc->left_out, "layer change", st);
    if (!lc->wanted || !lc->there || !lc->in || !lc->x || !lc->mean || !lc->tokens ||
        !lc->left_out) {
        layer_change_free(lc);
        return FAILED;
    }
    for (size_t i = 0; i < plan->sites; i += 2)
        lc->wanted[i] = true;
    *out = lc;
    return DONE;
}

void layer_change_free(layer_change *lc) {
    if (!lc)
        return;
    free(lc->wanted);
    free(lc->there);
    free(lc->in);
    free(lc->x);
    free(lc->mean);
    free(lc->tokens);
    free(lc->left_out);
    free(lc);
}

/* NaN where one of them is zero or not finite. */
static double cosine(const float *a, const float *b, size_t width) {
    double product = 0, a_square = 0, b_square = 0;
    for (size_t i = 0; i < width; i++) {
        product += (double)a[i] * (double)b[i];
        a_square += (double)a[i] * (double)a[i];
        b_square += (double)b[i] * (double)b[i];
    }
    double c = product / sqrt(a_square * b_square);
    return c > 1 ? 1 : c < -1 ? -1 : c;
}

typedef struct pair_means {
    double cosine, angle, last_angle; /* angles as fractions of pi */
} pair_means;

static pair_means compare_layers(layer_change *lc, const float *tensor, size_t l, size_t n,
                                 size_t first, size_t end, size_t *left_out) {
    pair_means mean = {0, 0, (double)NAN};
    const float *a = tensor + l * lc->rows * lc->width, *b = a + n * lc->rows * lc->width;
    size_t counted = 0;
    for (size_t row = first; row < end; row++) {
        double c = lc->there[l] && lc->there[l + n]
                       ? cosine(a + row * lc->width, b + row * lc->width, lc->width)
                       : (double)NAN;
        mean.last_angle = acos(c) / acos(-1);
        if (isnan(c))
            continue;
        mean.cosine += c;
        mean.angle += mean.last_angle;
        counted++;
    }
    *left_out += end - first - counted;
    mean.cosine /= (double)counted; /* NaN without any */
    mean.angle /= (double)counted;
    return mean;
}

static void finish_sequence(layer_change *lc, size_t b, size_t first, size_t end) {
    size_t layers = lc->layers;
    double *mix_change = lc->mean + b * lc->per_sequence, *influence = mix_change + layers;
    double *all = influence + layers, *last = all + lc->most_skipped * layers;
    lc->tokens[b] = end - first;
    lc->left_out[b] = 0;
    for (size_t l = 0; l < layers; l++) {
        size_t ignored = 0; /* counted once, with n = 1 */
        mix_change[l] = 1 - compare_layers(lc, lc->in, l, 1, first, end, &lc->left_out[b]).cosine;
        if (lc->stream)
            influence[l] = 1 - compare_layers(lc, lc->x, l, 1, first, end, &ignored).cosine;
        for (size_t n = 1; n <= lc->most_skipped; n++) {
            pair_means mean = {(double)NAN, (double)NAN, (double)NAN};
            if (l + n <= layers)
                mean = compare_layers(lc, lc->in, l, n, first, end, &ignored);
            all[(n - 1) * layers + l] = mean.angle;
            last[(n - 1) * layers + l] = mean.last_angle;
        }
    }
}

static int take_site(void *self, const batch *b, const site_view *view, status *st) {
    (void)st;
    layer_change *lc = self;
    if (!lc->wanted[view->site])
        return DONE;
    size_t l = view->site / 2, at = l * lc->rows * lc->width;
    size_t bytes = b->layout.rows * lc->width * sizeof(float);
    memcpy(lc->in + at, view->in, bytes);
    if (lc->stream)
        memcpy(lc->x + at, view->base, bytes);
    lc->there[l] = true;
    if (l == lc->layers) {
        for (size_t i = 0; i < b->layout.sequences; i++)
            finish_sequence(lc, i, b->layout.start[i], b->layout.start[i + 1]);
        memset(lc->there, 0, (lc->layers + 1) * sizeof *lc->there);
    }
    return DONE;
}

void layer_change_watch(layer_change *lc, observer *watch) {
    watch->self = lc;
    watch->in = lc->wanted;
    watch->base = lc->stream ? lc->wanted : NULL;
    watch->on_site = take_site;
}

layer_change_means layer_change_of(const layer_change *lc, size_t sequence) {
    const double *mean = lc->mean + sequence * lc->per_sequence;
    size_t layers = lc->layers;
    return (layer_change_means){.tokens = lc->tokens[sequence],
                                .mix_change = mean,
                                .block_influence = lc->stream ? mean + layers : NULL,
                                .angle_all = mean + 2 * layers,
                                .angle_last = mean + (2 + lc->most_skipped) * layers,
                                .left_out = lc->left_out[sequence]};
}
