#include "analyze/bootstrap.h"

#include "runtime/base/clones.h"
#include "runtime/base/random.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { DRAWS = 4, CELLS = 8 }; /* a tile of the matrix product that fits the registers */

struct bootstrap {
    size_t units, resamples;
    double level, weight_total;
    size_t members;
    size_t *member; /* [members] sequences that have weight */
    double *share;  /* [1 + resamples, members] part of each sequence in the draw; rows sum to 1,
                       then rows of zeros up to a multiple of DRAWS */
};

/* ---- random numbers and quantiles ---- */

/* A number below `count` < 2^32. The bias of the scaling is below count / 2^32. */
static size_t random_below(uint64_t seed, uint64_t counter, size_t count) {
    return (size_t)((random_at(seed, counter) >> 32) * (uint64_t)count >> 32);
}

/* P(|T| < sqrt(freedom) * tan(angle)). */
static double student_inside(double angle, size_t freedom) {
    double cosine = cos(angle), sum = 0, term = freedom % 2 ? cosine : 1;
    for (size_t power = freedom % 2; power + 2 <= freedom; power += 2) {
        sum += term;
        term *= cosine * cosine * (double)(power + 1) / (double)(power + 2);
    }
    sum *= sin(angle);
    return freedom % 2 ? (angle + sum) * M_2_PI : sum;
}

double student_t(double level, size_t freedom) {
    double low = 0, high = M_PI_2;
    for (int i = 0; i < 64; i++) {
        double middle = low + (high - low) / 2;
        if (student_inside(middle, freedom) < level)
            low = middle;
        else
            high = middle;
    }
    return sqrt((double)freedom) * tan(low + (high - low) / 2);
}

/* ---- units ---- */

typedef struct window {
    uint64_t start; /* a negative start sorts last */
    uint64_t end;
    size_t sequence;
} window;

static int by_start(const void *left, const void *right) {
    const window *a = left, *b = right;
    if (a->start != b->start)
        return a->start < b->start ? -1 : 1;
    return a->sequence < b->sequence ? -1 : 1;
}

int merge_windows(const int64_t *start, const int32_t *length, size_t sequences, size_t *unit,
                  size_t *units, status *st) {
    window *order = mem_array(sequences, sizeof *order, "units", st);
    if (!order)
        return FAILED;
    for (size_t i = 0; i < sequences; i++) {
        uint64_t tokens = length[i] > 0 ? (uint64_t)length[i] : 0;
        order[i] = (window){(uint64_t)start[i], (uint64_t)start[i] + tokens, i};
    }
    qsort(order, sequences, sizeof *order, by_start);
    uint64_t reached = 0;
    *units = 0;
    for (size_t i = 0; i < sequences; i++) {
        bool joins = order[i].start <= INT64_MAX && order[i].start < reached;
        *units += !joins;
        unit[order[i].sequence] = *units - 1;
        reached = joins && reached > order[i].end ? reached : order[i].end;
    }
    free(order);
    return DONE;
}

/* ---- draws ---- */

/* The sequences that have weight, and *renumbered [units]: each unit's number among those that
 * have, of which it sets b->units. */
static int choose_members(bootstrap *b, const bootstrap_options *options, size_t *renumbered,
                          status *st) {
    b->member = mem_array(options->sequences, sizeof *b->member, "sequences", st);
    if (!b->member)
        return FAILED;
    for (size_t i = 0; i < options->sequences; i++) {
        if (!(options->weight[i] > 0))
            continue;
        b->member[b->members++] = i;
        b->weight_total += options->weight[i];
        renumbered[options->unit[i]] = 1;
    }
    for (size_t u = 0; u < options->units; u++)
        renumbered[u] = renumbered[u] ? b->units++ : 0;
    if (!b->members)
        return status_fail(st, "no sequence has a token that counts");
    if (b->units > UINT32_MAX)
        return status_fail(st, "%zu units are more than can be resampled", b->units);
    return DONE;
}

/* Fills b->share. `times` [units] is scratch. */
static void draw_shares(bootstrap *b, const bootstrap_options *options, const size_t *renumbered,
                        size_t *times) {
    for (size_t draw = 0; draw <= b->resamples; draw++) {
        for (size_t u = 0; u < b->units; u++)
            times[u] = draw == 0;
        for (size_t j = 0; draw && j < b->units; j++)
            times[random_below(options->seed, (draw - 1) * b->units + j, b->units)]++;
        double *share = b->share + draw * b->members, total = 0;
        for (size_t m = 0; m < b->members; m++) {
            size_t sequence = b->member[m];
            share[m] =
                options->weight[sequence] * (double)times[renumbered[options->unit[sequence]]];
            total += share[m];
        }
        for (size_t m = 0; m < b->members; m++)
            share[m] /= total;
    }
}

int bootstrap_create(const bootstrap_options *options, bootstrap **out, status *st) {
    *out = NULL;
    int rc = FAILED;
    size_t *times = NULL;
    size_t *renumbered = mem_array(options->units, sizeof *renumbered, "units", st);
    bootstrap *b = mem_array(1, sizeof *b, "a bootstrap", st);
    if (!renumbered || !b)
        goto done;
    b->resamples = options->resamples;
    b->level = options->level;
    if (choose_members(b, options, renumbered, st))
        goto done;
    times = mem_array(b->units, sizeof *times, "units", st);
    b->share =
        mem_array(b->members, (1 + b->resamples + DRAWS) * sizeof *b->share, "resamples", st);
    if (!times || !b->share)
        goto done;
    draw_shares(b, options, renumbered, times);
    *out = b;
    b = NULL;
    rc = DONE;
done:
    bootstrap_free(b);
    free(renumbered);
    free(times);
    return rc;
}

void bootstrap_free(bootstrap *b) {
    if (!b)
        return;
    free(b->member);
    free(b->share);
    free(b);
}

size_t bootstrap_units(const bootstrap *b) {
    return b->units;
}

size_t bootstrap_draws(const bootstrap *b) {
    return 1 + b->resamples;
}

double bootstrap_weight_total(const bootstrap *b) {
    return b->weight_total;
}

/* DRAWS x CELLS numbers of share [draws, members] times packed [members, CELLS], each summed over
 * the members in order: the same bits on every machine. Unrolled, the sums stay in registers: on
 * one AVX2 core 38 GFLOP/s against 13. */
CLONES static void multiply_tile(const double *share, const double *packed, size_t members,
                                 double *out) {
    double sum[DRAWS][CELLS] = {{0}};
    for (size_t m = 0; m < members; m++)
#pragma GCC unroll 4
        for (size_t d = 0; d < DRAWS; d++)
#pragma omp simd
            for (size_t c = 0; c < CELLS; c++)
                sum[d][c] += share[d * members + m] * packed[m * CELLS + c];
    memcpy(out, sum, sizeof sum);
}

int bootstrap_means(const bootstrap *b, const double *row, size_t stride, const size_t *cell,
                    size_t cells, double *draws, status *st) {
    size_t count = bootstrap_draws(b);
    double *packed = mem_array(b->members, CELLS * sizeof *packed, "numbers of sequences", st);
    if (!packed)
        return FAILED;
    for (size_t first = 0; first < cells; first += CELLS) {
        size_t used = cells - first < CELLS ? cells - first : CELLS;
        for (size_t m = 0; m < b->members; m++)
            for (size_t c = 0; c < used; c++)
                packed[m * CELLS + c] =
                    row[b->member[m] * stride + (cell ? cell[first + c] : first + c)];
        for (size_t d = 0; d < count; d += DRAWS) {
            double sum[DRAWS * CELLS];
            multiply_tile(b->share + d * b->members, packed, b->members, sum);
            for (size_t k = 0; k < DRAWS && d + k < count; k++)
                memcpy(draws + (d + k) * cells + first, sum + k * CELLS, used * sizeof *sum);
        }
    }
    free(packed);
    return DONE;
}

void bootstrap_intervals(const bootstrap *b, const double *draws, size_t cells, interval *out) {
    double n = (double)b->units, resamples = (double)b->resamples;
    double reach = b->units < BOOTSTRAP_UNITS_MIN
                       ? NAN
                       : student_t(b->level, b->units - 1) * sqrt(n / (n - 1));
    for (size_t c = 0; c < cells; c++) {
        double mean = 0, square = 0;
        for (size_t r = 1; r <= b->resamples; r++)
            mean += draws[r * cells + c] / resamples;
        for (size_t r = 1; r <= b->resamples; r++) {
            double off = draws[r * cells + c] - mean;
            square += off * off;
        }
        double value = draws[c], centre = value - (mean - value);
        double half = reach * sqrt(square / (resamples - 1));
        out[c] = (interval){value, centre - half, centre + half};
    }
}

double bootstrap_significance(const bootstrap *b, const interval *of) {
    if (isnan(of->low) || isnan(of->high))
        return NAN;
    const size_t freedom = b->units - 1;
    const double middle = of->low / 2 + of->high / 2, half = of->high / 2 - of->low / 2;
    if (half == 0)
        return middle == 0 ? 1 : 0;
    const double t = fabs(middle) / half * student_t(b->level, freedom);
    return 1 - student_inside(atan(t / sqrt((double)freedom)), freedom);
}
