/* Loss by position in the sequence.
 *
 * Assumptions: a token's loss is that of predicting it from those before it, so position 0 has
 * none. Positions are grouped so that the groups look even on a logarithmic axis and none of them
 * is empty: each of the first eight alone, then two groups to every doubling. A group's value is
 * the mean over its tokens, its interval from the units that have any there. */
#include "analyze/depth_table.h"
#include "analyze/table.h"

#include <stdlib.h>
#include <string.h>

enum { ALONE = 8, GROUPS_PER_DOUBLING = 2 };

typedef struct position_group {
    size_t first, last; /* both within */
    double *weight;     /* [sequences] predicted tokens */
    double *mean;       /* [sequences] nats/token; 0 where there are none */
} position_group;

/* The last position of the group that begins at `first`. */
static size_t group_end(size_t first) {
    size_t octave = ALONE;
    if (first <= ALONE)
        return first;
    while (octave < (first + 1) / 2)
        octave *= 2;
    return first + octave / GROUPS_PER_DOUBLING - 1;
}

/* How many groups the positions 1 to `positions` - 1 make; fills `group` where it is not NULL. */
static size_t list_groups(size_t positions, position_group *group) {
    size_t count = 0;
    for (size_t first = 1, last; first < positions; first = last + 1, count++) {
        last = group_end(first);
        last = last < positions ? last : positions - 1;
        if (group)
            group[count] = (position_group){.first = first, .last = last};
    }
    return count;
}

static int read_losses(const depth_table *t, position_group *group, size_t groups, status *st) {
    float *loss = mem_array(t->about->positions, sizeof *loss, "losses", st);
    int rc = loss ? DONE : FAILED;
    for (size_t i = 0; !rc && i < t->about->sequences; i++) {
        size_t length = (size_t)t->about->length[i];
        rc = recording_read_tokens(t->rec, i, NULL, loss, st);
        for (size_t g = 0; !rc && g < groups; g++) {
            size_t end = group[g].last < length ? group[g].last + 1 : length;
            for (size_t at = group[g].first; at < end; at++) {
                group[g].mean[i] += (double)loss[at];
                group[g].weight[i]++;
            }
            if (group[g].weight[i] > 0)
                group[g].mean[i] /= group[g].weight[i];
        }
    }
    free(loss);
    return rc;
}

/* Whether two groups weigh the sequences alike: then they share their draws. */
static bool same_weights(const position_group *a, const position_group *b, size_t sequences) {
    for (size_t i = 0; i < sequences; i++)
        if (a->weight[i] * b->weight[0] != b->weight[i] * a->weight[0])
            return false;
    return a->weight[0] > 0 && b->weight[0] > 0;
}

static void put_group(FILE *out, const position_group *group, double tokens, interval loss) {
    table_row(out, "LPO");
    table_size(out, group->first);
    table_size(out, group->last);
    table_real(out, tokens);
    depth_put_interval(out, loss);
    table_end(out);
}

static int put_groups(const depth_table *t, const position_group *group, size_t groups,
                      status *st) {
    size_t sequences = t->about->sequences;
    bootstrap *b = NULL;
    const position_group *drawn = NULL; /* whose weights b has */
    double *draws = mem_array(1 + t->sampling->resamples, sizeof *draws, "resampled losses", st);
    int rc = draws ? DONE : FAILED;
    for (size_t g = 0; !rc && g < groups; g++) {
        double tokens = 0;
        for (size_t i = 0; i < sequences; i++)
            tokens += group[g].weight[i];
        if (tokens == 0)
            continue; /* an incomplete recording's sequences may be shorter */
        if (!b || !same_weights(drawn, &group[g], sequences)) {
            bootstrap_free(b);
            b = NULL;
            drawn = &group[g];
            rc = sampling_draw(t->sampling, sequences, group[g].weight, t->unit, t->units, &b, st);
        }
        if (!rc)
            rc = bootstrap_means(b, group[g].mean, 1, NULL, 1, draws, st);
        if (!rc) {
            interval loss;
            bootstrap_intervals(b, draws, 1, &loss);
            put_group(t->out, &group[g], tokens, loss);
        }
    }
    bootstrap_free(b);
    free(draws);
    return rc;
}

int depth_put_losses(const depth_table *t, status *st) {
    size_t groups = list_groups(t->about->positions, NULL), sequences = t->about->sequences;
    if (!t->about->has_loss || groups == 0) {
        table_comment(t->out, "LPO is left out: the recording has no losses.");
        return DONE;
    }
    position_group *group = mem_array(groups, sizeof *group, "positions", st);
    double *number = mem_array(groups, 2 * sequences * sizeof *number, "losses", st);
    int rc = group && number ? DONE : FAILED;
    if (!rc) {
        list_groups(t->about->positions, group);
        for (size_t g = 0; g < groups; g++) {
            group[g].weight = number + 2 * g * sequences;
            group[g].mean = group[g].weight + sequences;
        }
        rc = read_losses(t, group, groups, st);
    }
    if (!rc) {
        table_section(t->out, "LPO",
                      "loss by position: mean over the predicted tokens at the positions first to "
                      "last of their sequence, where 0 is its first token",
                      "first, last, tokens, value, low, high", "nats/token");
        rc = put_groups(t, group, groups, st);
    }
    free(group);
    free(number);
    return rc;
}
