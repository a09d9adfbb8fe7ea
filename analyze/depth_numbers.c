#include "analyze/depth_numbers.h"

#include "runtime/base/random.h"

#include <math.h>

/* Puts the value of rank k among x[low .. high-1] at x[k], none larger before it, none smaller
 * after it: Hoare's selection. Seeded pivots keep it linear on ordered data. */
static void select_rank(float *x, size_t low, size_t high, size_t k) {
    for (size_t round = 0; high - low > 1; round++) {
        float pivot = x[low + (size_t)(random_at(high - low, round) % (high - low))];
        size_t i = low, j = high - 1;
        for (;;) {
            while (x[i] < pivot)
                i++;
            while (x[j] > pivot)
                j--;
            if (i >= j)
                break;
            float swapped = x[i];
            x[i++] = x[j];
            x[j--] = swapped;
        }
        /* x[low .. i-1] <= pivot <= x[i .. high-1], and i == j where the two met on a pivot. */
        if (i == j && i == k)
            return;
        if (k < i)
            high = i;
        else
            low = i + (i == j);
    }
}

void quantiles(float *x, size_t n, const double *at, size_t count, double *out) {
    for (size_t q = 0; q < count; q++)
        out[q] = NAN;
    for (size_t i = 0; i < n; i++)
        if (isnan(x[i]))
            return;
    size_t sorted = 0; /* x[0 .. sorted-1] are no larger than the rest */
    for (size_t q = 0; n && q < count; q++) {
        double rank = at[q] * (double)(n - 1);
        size_t k = (size_t)rank, next = k + 1 < n ? k + 1 : k;
        for (size_t i = k; i <= next; i++) {
            select_rank(x, sorted < i ? sorted : i, n, i);
            sorted = i;
        }
        double part = rank - (double)k, below = (double)x[k], above = (double)x[next];
        out[q] = part > 0 && above > below ? below + part * (above - below) : below;
    }
}

double spread(const float *x, size_t n) {
    double mean = 0, square = 0;
    for (size_t i = 0; i < n; i++)
        mean += (double)x[i];
    mean /= (double)n;
    for (size_t i = 0; i < n; i++) {
        double off = (double)x[i] - mean;
        square += off * off;
    }
    return sqrt(square / (double)n);
}

fitted_line fit_line(const double *x, const double *y, size_t n) {
    double mean_x = 0, mean_y = 0, xx = 0, xy = 0, yy = 0, square = 0;
    for (size_t i = 0; i < n; i++) {
        mean_x += x[i] / (double)n;
        mean_y += y[i] / (double)n;
    }
    for (size_t i = 0; i < n; i++) {
        xx += (x[i] - mean_x) * (x[i] - mean_x);
        xy += (x[i] - mean_x) * (y[i] - mean_y);
        yy += (y[i] - mean_y) * (y[i] - mean_y);
    }
    fitted_line line = {.slope = xx > 0 ? xy / xx : NAN};
    line.intercept = mean_y - line.slope * mean_x;
    for (size_t i = 0; i < n; i++) {
        double off = y[i] - line.intercept - line.slope * x[i];
        square += off * off;
    }
    line.residual = sqrt(square / (double)n);
    line.explained = 1 - square / yy;
    return line;
}

static double mean_of(const double *g, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += g[i];
    return sum / (double)n;
}

double variation(const double *g, size_t n) {
    double mean = mean_of(g, n), square = 0;
    for (size_t i = 0; i < n; i++)
        square += (g[i] - mean) * (g[i] - mean);
    return sqrt(square / (double)n) / mean;
}

double gini(const double *g, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            sum += fabs(g[i] - g[j]);
    return sum / (2 * (double)n * (double)n * mean_of(g, n));
}

double max_to_min(const double *g, size_t n) {
    double most = n ? g[0] : NAN, least = most;
    for (size_t i = 1; i < n; i++) {
        if (isnan(g[i]))
            return NAN;
        most = g[i] > most ? g[i] : most;
        least = g[i] < least ? g[i] : least;
    }
    return most / least;
}
