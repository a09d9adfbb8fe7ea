/* check_gradients.c - invariants of recorded gradient norms, one sequence in memory at a time. */
#include "probes/check.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct norm_checks {
    worst finite, sign;
} norm_checks;

static void see_norm(norm_checks *checks, double x, size_t sequence, size_t pos, size_t site) {
    worst_see(&checks->finite, isfinite(x) ? 0 : 1, sequence, pos, site);
    worst_see(&checks->sign, x >= 0 || isnan(x) ? 0 : 1, sequence, pos, site);
}

static int see_tokens(check *c, norm_checks *checks, status *st) {
    const recording_about *about = c->about;
    const struct {
        const char *name;
        size_t places;
    } row[] = {{"in_l2", about->sites}, {"out_l2", about->sublayers}, {"emb_l2", 1}};
    float *norm = mem_array(about->positions, about->sites * sizeof *norm, "gradient norms", st);
    int rc = norm ? DONE : FAILED;
    for (size_t seq = 0; seq < about->sequences && !rc; seq++)
        for (size_t r = 0; r < sizeof row / sizeof *row && !rc; r++) {
            size_t places = row[r].places;
            rc = recording_read_gradient(c->rec, row[r].name, seq, norm, st);
            for (size_t i = 0; !rc && i < (size_t)about->length[seq] * places; i++) {
                const size_t place = places > 1 ? i % places : SIZE_MAX;
                if (place >= about->sublayers || !c->removed[place])
                    see_norm(checks, (double)norm[i], seq, i / places, place);
            }
        }
    free(norm);
    return rc;
}

/* layer_l2 against the root of the sum of squares of param_l2, by the parameters' names. */
static int see_layers(check *c, norm_checks *checks, worst *sums, status *st) {
    const recording_about *about = c->about;
    double *param = NULL, *layer = NULL, *square = NULL;
    int rc = FAILED;
    if (recording_read_gradient_norms(c->rec, "param_l2", &param, st) ||
        recording_read_gradient_norms(c->rec, "layer_l2", &layer, st) ||
        !(square = mem_array(about->layers, sizeof *square, "gradient norms", st)))
        goto end;
    for (size_t i = 0; i < about->params; i++) {
        static const char prefix[] = "model.layers.";
        const char *name = about->param_name[i];
        see_norm(checks, param[i], SIZE_MAX, SIZE_MAX, SIZE_MAX);
        if (strncmp(name, prefix, strlen(prefix)) != 0)
            continue;
        size_t in = (size_t)strtoull(name + strlen(prefix), NULL, 10);
        if (in < about->layers)
            square[in] += param[i] * param[i];
    }
    for (size_t i = 0; i < about->layers; i++)
        if (!isnan(layer[i]) || !isnan(square[i]))
            worst_see(sums, fabs(layer[i] - sqrt(square[i])) / fmax(layer[i], 1e-30), SIZE_MAX,
                      SIZE_MAX, SIZE_MAX);
    rc = DONE;
end:
    free(param);
    free(layer);
    free(square);
    return rc;
}

static void check_tokens_counted(check *c) {
    uint64_t predicted = 0;
    for (size_t seq = 0; seq < c->about->sequences; seq++)
        predicted += c->about->length[seq] > 0 ? (uint64_t)c->about->length[seq] - 1 : 0;
    if (predicted == c->about->grad_tokens)
        check_ok(c, "grad_tokens are the %" PRIu64 " predicted tokens", predicted);
    else
        check_fail(c,
                   "grad_tokens: %" PRIu64 ", but the sequences have %" PRIu64 " predicted tokens",
                   c->about->grad_tokens, predicted);
}

int check_gradients(check *c, status *st) {
    if (!c->about->has_gradients) {
        check_absent(c, "gradients: not recorded");
        return DONE;
    }
    norm_checks checks = {.finite = {.what = "gradient norms are finite"},
                          .sign = {.what = "gradient norms are not negative"}};
    worst sums = {.what = "layer_l2 is the root of its parameters' squares", .allowed = 1e-6};
    /* A process that was killed leaves the parameters' norms, which come at the end, unwritten. */
    bool written = c->about->grad_tokens > 0;
    if (see_tokens(c, &checks, st) || (written && see_layers(c, &checks, &sums, st)))
        return FAILED;
    worst_report(c, &checks.finite);
    worst_report(c, &checks.sign);
    worst_report(c, &sums);
    if (written || c->about->complete)
        check_tokens_counted(c);
    else
        check_absent(c, "grad_tokens: not written");
    return DONE;
}
