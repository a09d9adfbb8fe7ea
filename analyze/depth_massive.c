/* Massive activations: a channel of the state that is far larger than the rest of its token's
 * (Sun et al. 2024, arXiv 2402.17762): |x| > 100 and > 1000 times the token's median |x|.
 *
 * The recording holds the largest |x| of each token and sublayer, so one channel of each is seen.
 * Memory: the list below, whatever the length of the recording. */
#include "analyze/depth_table.h"
#include "analyze/table.h"

#include <math.h>
#include <stdlib.h>

enum { LISTED_MAX = 64 };
static const double least_size = 100, least_ratio = 1000;

typedef struct massive {
    size_t sequence, position, place, channel;
    double value, median;
} massive;

/* Of one sublayer. */
typedef struct massive_count {
    size_t tokens, at_start; /* that have one; at position 0 */
    massive largest;         /* of all tokens, massive or not */
} massive_count;

typedef struct massive_list {
    size_t found, listed;
    massive item[LISTED_MAX]; /* the largest ones */
    massive_count *count;     /* [sublayers] */
} massive_list;

static void note(massive_list *list, const massive *x) {
    massive_count *count = &list->count[x->place];
    if (x->value > count->largest.value)
        count->largest = *x;
    if (!(x->value > least_size && x->value > least_ratio * x->median))
        return;
    count->tokens++;
    count->at_start += x->position == 0;
    list->found++;
    if (list->listed < LISTED_MAX) {
        list->item[list->listed++] = *x;
        return;
    }
    size_t least = 0;
    for (size_t i = 1; i < LISTED_MAX; i++)
        if (list->item[i].value < list->item[least].value)
            least = i;
    if (x->value > list->item[least].value)
        list->item[least] = *x;
}

static int search(const depth_table *t, massive_list *list, status *st) {
    static const char *const names[] = {"state_absmax", "state_median_abs", "state_absmax_channel"};
    size_t places = t->about->sublayers;
    int rc = FAILED;
    float *x[3] = {0};
    for (size_t i = 0; i < 3; i++) {
        x[i] = mem_array(t->about->positions, places * sizeof(float), names[i], st);
        if (!x[i])
            goto done;
    }
    for (size_t s = 0; s < t->about->sequences; s++) {
        for (size_t i = 0; i < 3; i++)
            if (token_row_read_sequence(t->rec, names[i], s, x[i], st))
                goto done;
        for (size_t c = 0; c < (size_t)t->about->length[s] * places; c++) {
            size_t channel = x[2][c] > 0 ? (size_t)x[2][c] : 0;
            note(list,
                 &(massive){s, c / places, c % places, channel, (double)x[0][c], (double)x[1][c]});
        }
    }
    rc = DONE;
done:
    for (size_t i = 0; i < 3; i++)
        free(x[i]);
    return rc;
}

static int by_place(const void *left, const void *right) {
    const massive *a = left, *b = right;
    if (a->sequence != b->sequence)
        return a->sequence < b->sequence ? -1 : 1;
    if (a->position != b->position)
        return a->position < b->position ? -1 : 1;
    return a->place < b->place ? -1 : a->place > b->place;
}

static int put_item(const depth_table *t, const massive *x, int32_t *id, status *st) {
    if (recording_read_tokens(t->rec, x->sequence, id, NULL, st))
        return FAILED;
    const char *piece = recording_piece(t->rec, id[x->position]);
    table_row(t->out, "MSV");
    table_size(t->out, x->sequence);
    table_size(t->out, x->position);
    table_size(t->out, (size_t)id[x->position]);
    table_text(t->out, piece ? piece : "");
    table_text(t->out, token_row_label(t->about, "state_absmax", x->place));
    table_size(t->out, x->channel);
    table_real(t->out, x->value);
    table_real(t->out, x->value / x->median);
    table_end(t->out);
    return DONE;
}

static void put_counts(const depth_table *t, const massive_list *list) {
    table_section(t->out, "MSS",
                  "the largest |x| of each sublayer's state, and the tokens that have a massive "
                  "activation there, in all and at position 0",
                  "sublayer, tokens, tokens_at_0, largest, ratio, channel, seq, pos", "1");
    for (size_t p = 0; p < t->about->sublayers; p++) {
        const massive_count *count = &list->count[p];
        const massive *x = &count->largest;
        bool any = x->value > 0;
        table_row(t->out, "MSS");
        table_text(t->out, token_row_label(t->about, "state_absmax", p));
        table_size(t->out, count->tokens);
        table_size(t->out, count->at_start);
        table_real(t->out, any ? x->value : NAN);
        table_real(t->out, any ? x->value / x->median : NAN);
        table_real(t->out, any ? (double)x->channel : NAN);
        table_real(t->out, any ? (double)x->sequence : NAN);
        table_real(t->out, any ? (double)x->position : NAN);
        table_end(t->out);
    }
}

static int put_list(const depth_table *t, massive_list *list, status *st) {
    int32_t *id = mem_array(t->about->positions, sizeof *id, "ids", st);
    int rc = id ? DONE : FAILED;
    qsort(list->item, list->listed, sizeof *list->item, by_place);
    table_section(t->out, "MSV",
                  "massive activations of the state: |x| > 100 and > 1000 times the token's median "
                  "|x|, of each token and sublayer the largest channel",
                  "seq, pos, id, piece, sublayer, channel, value, ratio", "value 1, ratio 1");
    for (size_t i = 0; !rc && i < list->listed; i++)
        rc = put_item(t, &list->item[i], id, st);
    if (list->found > list->listed)
        table_comment(t->out, "MSV lists the %zu largest of %zu; %zu are left out.", list->listed,
                      list->found, list->found - list->listed);
    table_comment(t->out, "MSV, MSS search every token, also those before skip_first; `value` is "
                          "|x|, its sign is not recorded.");
    free(id);
    return rc;
}

int depth_put_massive(const depth_table *t, status *st) {
    massive_list list = {.count = mem_array(t->about->sublayers, sizeof *list.count, "counts", st)};
    int rc = list.count ? search(t, &list, st) : FAILED;
    if (!rc)
        rc = put_list(t, &list, st);
    if (!rc)
        put_counts(t, &list);
    free(list.count);
    return rc;
}
