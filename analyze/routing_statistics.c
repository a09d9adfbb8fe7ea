#include "analyze/routing_statistics.h"

#include <limits.h>
#include <math.h>
#include <string.h>

/* LAPACK, inside OpenBLAS: eigenvalues (job "N") of a symmetric matrix, ascending. The last two are
 * the lengths of the texts, which Fortran passes unseen. */
extern void dsyev_(const char *job, const char *triangle, const int *n, double *a, const int *lda,
                   double *w, double *work, const int *lwork, int *info, size_t, size_t);

double routing_entropy(const double *p, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum -= p[i] == 0 ? 0 : p[i] * log(p[i]);
    return sum;
}

/* ln S where there is a choice. A site with one source has no normalised entropy. */
static void derive_entropy_norm(const routing_shape *shape, const double *const mean[2],
                                double *scratch, double *out) {
    (void)scratch;
    for (size_t h = 0; h < shape->heads; h++)
        out[h] = shape->sources == 1 ? NAN : mean[0][h] / log((double)shape->sources);
}

/* With one source exactly 0, whatever the rounding of its mean weight. */
static void derive_entropy_of_mean(const routing_shape *shape, const double *const mean[2],
                                   double *scratch, double *out) {
    (void)scratch;
    for (size_t h = 0; h < shape->heads; h++) {
        const double *p = mean[0] + h * shape->sources;
        out[h] = shape->sources == 1 ? 0 * p[0] : routing_entropy(p, shape->sources);
    }
}

static void derive_token_information(const routing_shape *shape, const double *const mean[2],
                                     double *scratch, double *out) {
    derive_entropy_of_mean(shape, mean, scratch, out);
    for (size_t h = 0; h < shape->heads; h++)
        out[h] -= mean[1][h];
}

/* By the mean distance of uniform routing over the sources that are not null. */
static void derive_lookback_norm(const routing_shape *shape, const double *const mean[2],
                                 double *scratch, double *out) {
    (void)scratch;
    double sources = (double)(shape->sources - shape->null_source);
    for (size_t h = 0; h < shape->heads; h++)
        out[h] = sources > 1 ? mean[0][h] / ((sources - 1) / 2) : NAN;
}

static void derive_null_mass(const routing_shape *shape, const double *const mean[2],
                             double *scratch, double *out) {
    (void)scratch;
    for (size_t h = 0; h < shape->heads; h++)
        out[h] = shape->null_source ? mean[0][h * shape->sources] : NAN;
}

/* Generalised Jensen-Shannon divergence of the heads' token-mean distributions. */
static void derive_head_divergence(const routing_shape *shape, const double *const mean[2],
                                   double *scratch, double *out) {
    double heads = (double)shape->heads;
    memset(scratch, 0, shape->sources * sizeof *scratch);
    *out = 0;
    for (size_t h = 0; h < shape->heads; h++) {
        const double *p = mean[0] + h * shape->sources;
        *out -= routing_entropy(p, shape->sources) / heads;
        for (size_t s = 0; s < shape->sources; s++)
            scratch[s] += p[s] / heads;
    }
    *out += routing_entropy(scratch, shape->sources);
}

/* exp of the entropy of the eigenvalues of the token-mean cosine matrix, divided by their sum (Roy
 * and Vetterli 2007): 1 where all sources are collinear, S where they are orthogonal. */
static void derive_effective_rank(const routing_shape *shape, const double *const mean[2],
                                  double *scratch, double *out) {
    size_t n = shape->sources;
    double *matrix = scratch, *eigenvalue = matrix + n * n, *work = eigenvalue + n, total = 0;
    memcpy(matrix, mean[0], n * n * sizeof *matrix);
    for (size_t i = 0; i < n * n; i++)
        total += matrix[i];
    *out = NAN;
    if (!isfinite(total) || n > INT_MAX / 3)
        return;
    int order = (int)n, room = 3 * order, info = 0;
    dsyev_("N", "U", &order, matrix, &order, eigenvalue, work, &room, &info, 1, 1);
    if (info)
        return;
    total = 0;
    for (size_t i = 0; i < n; i++) {
        eigenvalue[i] = eigenvalue[i] > 0 ? eigenvalue[i] : 0; /* below 0 by rounding alone */
        total += eigenvalue[i];
    }
    for (size_t i = 0; i < n; i++)
        eigenvalue[i] /= total;
    *out = exp(routing_entropy(eigenvalue, n));
}

/* clang-format off */
const routing_statistic routing_statistics[] = {
    {"MEA", "mean", "1", ROW_HEAD_SOURCE, {"mean"}, NULL, 0,
     "mean weight of each source", NULL},
    {"SEC", "second_moment", "1", ROW_HEAD_SOURCE, {"second_moment"}, NULL, 0,
     "mean squared weight of each source", NULL},
    {"CON", "contribution", "1", ROW_HEAD_SOURCE, {"contribution"}, NULL, 0,
     "share of each source in the norms of weight times source, in the head's slice", NULL},
    {"SCN", "signed_contribution", "1", ROW_HEAD_SOURCE, {"signed_contribution"}, NULL, 0,
     "projection of weight times source on the mix, in the head's slice, may be negative", NULL},
    {"SCT", "site_contribution", "1", ROW_SOURCE, {"site_contribution"}, NULL, 0,
     "share of each source in the norms of weight times source, over the full width", NULL},
    {"ENT", "entropy", "nats", ROW_HEAD, {"entropy"}, NULL, AVERAGED,
     "mean entropy of a token's weights", NULL},
    {"ENN", "entropy_norm", "1", ROW_HEAD, {"entropy"}, derive_entropy_norm,
     AVERAGED | ANY_SITE, "entropy divided by ln S, nan with one source", NULL},
    {"EFF", "effective_sources", "sources", ROW_HEAD, {"effective_sources"}, NULL, AVERAGED,
     "mean of exp(entropy of a token's weights)", NULL},
    {"EOM", "entropy_of_mean", "nats", ROW_HEAD, {"mean"}, derive_entropy_of_mean, AVERAGED,
     "entropy of the mean weights", NULL},
    {"TIN", "token_information", "nats", ROW_HEAD, {"mean", "entropy"}, derive_token_information,
     AVERAGED, "entropy of the mean weights minus mean entropy: variation between tokens", NULL},
    {"LBK", "lookback", "sources", ROW_HEAD, {"lookback"}, NULL, AVERAGED | PAST_NULL,
     "mean distance of the weight from the newest source", NULL},
    {"LBN", "lookback_norm", "1", ROW_HEAD, {"lookback"}, derive_lookback_norm,
     AVERAGED | PAST_NULL | ANY_SITE, "lookback divided by that of uniform weights", NULL},
    {"OLD", "oldest_mass", "1", ROW_HEAD, {"oldest_mass"}, NULL, AVERAGED | PAST_NULL,
     "mean weight of the first source", NULL},
    {"NEW", "newest_mass", "1", ROW_HEAD, {"newest_mass"}, NULL, AVERAGED | PAST_NULL,
     "mean weight of the last source", NULL},
    {"TOP", "top1", "1", ROW_HEAD, {"top1"}, NULL, AVERAGED,
     "mean of a token's largest weight", NULL},
    {"NUL", "null_mass", "1", ROW_HEAD, {"mean"}, derive_null_mass, AVERAGED | NULL_ONLY,
     "mean weight of the null source", NULL},
    {"HDV", "head_divergence", "nats", ROW_SITE, {"head_divergence"}, NULL, AVERAGED | ANY_SITE,
     "mean generalised Jensen-Shannon divergence of the heads' weights of a token", NULL},
    {"HDM", "head_divergence_of_mean", "nats", ROW_SITE, {"mean"}, derive_head_divergence,
     AVERAGED | ANY_SITE, "generalised Jensen-Shannon divergence of the heads' mean weights", NULL},
    {"HJS", "head_js", "nats", ROW_HEAD_HEAD, {"head_js"}, NULL, 0,
     "mean Jensen-Shannon divergence of two heads' weights of a token", NULL},
    {"SRM", "source_rms", "1", ROW_SOURCE, {"source_rms"}, NULL, 0,
     "mean root mean square of each source", NULL},
    {"COS", "source_cos", "1", ROW_SOURCE_SOURCE, {"source_cos"}, NULL, 0,
     "mean cosine of two sources", NULL},
    {"RNK", "source_effective_rank", "sources", ROW_SITE, {"source_cos"}, derive_effective_rank,
     AVERAGED, "effective rank of the mean cosine matrix of the sources", "utilisation"},
};
/* clang-format on */
const size_t routing_statistic_count = sizeof routing_statistics / sizeof *routing_statistics;

const routing_statistic *routing_statistic_find(const char *name) {
    for (size_t i = 0; i < routing_statistic_count; i++)
        if (strcmp(routing_statistics[i].name, name) == 0)
            return &routing_statistics[i];
    return NULL;
}

static size_t cells_of(row_axes axes, const routing_shape *shape) {
    return routing_row_size(&(routing_row){.axes = axes}, shape->heads, shape->sources);
}

/* Cells of one head where the result has a mean over heads, else 0. */
static size_t cells_of_head(row_axes axes, const routing_shape *shape) {
    return axes == ROW_HEAD ? 1 : axes == ROW_HEAD_SOURCE ? shape->sources : 0;
}

size_t routing_width(const routing_statistic *statistic, const routing_shape *shape) {
    return cells_of(statistic->axes, shape) + cells_of_head(statistic->axes, shape);
}

size_t routing_scratch(const routing_shape *shape) {
    return shape->sources * (shape->sources + 4); /* matrix, eigenvalues, LAPACK's work */
}

void routing_derive(const routing_statistic *statistic, const routing_shape *shape,
                    const double *const mean[2], double *scratch, double *out) {
    if (statistic->derive)
        statistic->derive(shape, mean, scratch, out);
    else
        memcpy(out, mean[0], cells_of(statistic->axes, shape) * sizeof *out);
    size_t cells = cells_of_head(statistic->axes, shape);
    double *over_heads = out + shape->heads * cells;
    for (size_t c = 0; c < cells; c++) {
        over_heads[c] = 0;
        for (size_t h = 0; h < shape->heads; h++)
            over_heads[c] += out[h * cells + c] / (double)shape->heads;
    }
}

bool routing_averages(const routing_statistic *statistic, const routing_shape *shape) {
    bool skips = shape->null_source && (statistic->flags & PAST_NULL);
    return shape->sources - skips > 1;
}
