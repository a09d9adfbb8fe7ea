#include "analyze/rank_agreement.h"

#include <math.h>
#include <stdlib.h>

enum { EXACT_MAX = 9 }; /* 362880 orders */

/* Mid-ranks by counting: the lists are short. */
static void mid_ranks(const double *x, size_t count, double *rank) {
    for (size_t i = 0; i < count; i++) {
        double below = 0, equal = 0;
        for (size_t j = 0; j < count; j++) {
            below += x[j] < x[i];
            equal += x[j] == x[i];
        }
        rank[i] = below + (equal + 1) / 2;
    }
}

static double correlation(const double *x, const double *y, size_t count) {
    double x_mean = 0, y_mean = 0, xx = 0, yy = 0, xy = 0;
    for (size_t i = 0; i < count; i++) {
        x_mean += x[i] / (double)count;
        y_mean += y[i] / (double)count;
    }
    for (size_t i = 0; i < count; i++) {
        const double a = x[i] - x_mean, b = y[i] - y_mean;
        xx += a * a;
        yy += b * b;
        xy += a * b;
    }
    return xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : NAN;
}

static double tau_b(const double *x, const double *y, size_t count) {
    double sum = 0, x_pairs = 0, y_pairs = 0;
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < i; j++) {
            const int a = (x[i] > x[j]) - (x[i] < x[j]), b = (y[i] > y[j]) - (y[i] < y[j]);
            sum += a * b;
            x_pairs += a != 0;
            y_pairs += b != 0;
        }
    return x_pairs > 0 && y_pairs > 0 ? sum / sqrt(x_pairs * y_pairs) : NAN;
}

rank_agreement rank_agreement_of(const double *x, const double *y, size_t count, double *scratch) {
    for (size_t i = 0; i < count; i++)
        if (isnan(x[i]) || isnan(y[i]))
            return (rank_agreement){NAN, NAN};
    mid_ranks(x, count, scratch);
    mid_ranks(y, count, scratch + count);
    return (rank_agreement){correlation(scratch, scratch + count, count), tau_b(x, y, count)};
}

/* draws [draws, 2] become z; `step` [2] is the distance of 1 from the next smaller value. */
static void to_fisher_z(size_t draws, const double *step, double *both) {
    for (size_t i = 0; i < 2 * draws; i++) {
        const double most = 1 - step[i % 2] / 2;
        if (!isnan(both[i])) /* fmin and fmax would lose it */
            both[i] = atanh(fmax(-most, fmin(most, both[i])));
    }
}

static interval of_fisher_z(double value, interval z) {
    const double low = tanh(z.low), high = tanh(z.high);
    return (interval){value, low > value ? value : low, high < value ? value : high};
}

int rank_agreement_intervals(const bootstrap *b, const double *x, const double *y, size_t count,
                             interval *spearman, interval *kendall, status *st) {
    const size_t draws = bootstrap_draws(b);
    double *both = mem_array(2 * draws, sizeof *both, "rank agreement", st);
    double *scratch = mem_array(2 * count, sizeof *scratch, "rank agreement", st);
    int rc = FAILED;
    if (both && scratch) {
        interval found[2];
        for (size_t r = 0; r < draws; r++) {
            const rank_agreement one =
                rank_agreement_of(x + r * count, y + r * count, count, scratch);
            both[2 * r] = one.spearman;
            both[2 * r + 1] = one.kendall;
        }
        const double n = (double)count, value[2] = {both[0], both[1]};
        to_fisher_z(draws, (double[2]){12 / (n * n * n - n), 4 / (n * n - n)}, both);
        bootstrap_intervals(b, both, 2, found);
        *spearman = of_fisher_z(value[0], found[0]);
        *kendall = of_fisher_z(value[1], found[1]);
        rc = DONE;
    }
    free(both);
    free(scratch);
    return rc;
}

/* Counts the orders of `count` items by |n (n^2 - 1) - 6 sum d^2|, which is |rho| n (n^2 - 1). */
static void count_orders(int count, int placed, unsigned used, int squares, size_t *orders) {
    const int scale = count * (count * count - 1);
    if (placed == count) {
        orders[abs(scale - 6 * squares)]++;
        return;
    }
    for (int rank = 0; rank < count; rank++)
        if (!(used >> rank & 1))
            count_orders(count, placed + 1, used | 1u << rank,
                         squares + (rank - placed) * (rank - placed), orders);
}

static double exact_threshold(int count) {
    size_t orders[EXACT_MAX * (EXACT_MAX * EXACT_MAX - 1) + 1] = {0}, all = 1, as_rare = 0;
    const int scale = count * (count * count - 1);
    int least = scale + 1;
    for (int i = 2; i <= count; i++)
        all *= (size_t)i;
    count_orders(count, 0, 0, 0, orders);
    for (int size = scale; size >= 0; size--) {
        as_rare += orders[size];
        if (20 * as_rare > all)
            break;
        if (orders[size])
            least = size;
    }
    return least > scale ? NAN : (double)least / scale;
}

double rank_agreement_threshold(size_t count) {
    if (count < 3)
        return NAN;
    if (count <= EXACT_MAX)
        return exact_threshold((int)count);
    const double t = student_t(0.95, count - 2);
    return t / sqrt((double)count - 2 + t * t);
}
