/* routing_contexts.c - the tokens at which a source weighs most: CTX of the routing table. */
#include "analyze/routing_sections.h"
#include "analyze/table.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { AROUND = 24 }; /* tokens shown on either side */

typedef struct hit {
    double weight;
    size_t sequence, position;
} hit;

typedef struct work {
    const routing_sample *s;
    size_t count;
    hit *hit;      /* [sites, sources, count], heaviest first */
    size_t *used;  /* [sites, sources] */
    float *weight; /* [positions, heads, sources] of one sequence and site */
    int32_t *id;   /* [positions] of one sequence */
} work;

/* Of equal weights the earlier token comes first. */
static void keep(work *w, size_t cell, hit found) {
    hit *best = w->hit + cell * w->count;
    size_t used = w->used[cell];
    if (used == w->count && !(found.weight > best[used - 1].weight))
        return;
    size_t at = used < w->count ? w->used[cell]++ : used - 1;
    for (; at > 0 && found.weight > best[at - 1].weight; at--)
        best[at] = best[at - 1];
    best[at] = found;
}

static int scan_site(work *w, const recorded_site *site, size_t sequence, status *st) {
    const recording_about *about = w->s->about;
    if (recording_read_weights(w->s->rec, sequence, site->index, w->weight, st))
        return FAILED;
    for (size_t t = about->skip_first; t < (size_t)about->length[sequence]; t++)
        for (size_t j = 0; j < site->shape.sources; j++) {
            size_t source = site->source[j];
            double mean = 0;
            for (size_t h = 0; h < about->heads; h++)
                mean += (double)w->weight[(t * about->heads + h) * about->sources + source];
            mean /= (double)about->heads;
            if (!isnan(mean))
                keep(w, site->index * about->sources + source, (hit){mean, sequence, t});
        }
    return DONE;
}

/* The pieces of positions [first, end) as one cell; an id without a piece as <id>. */
static void put_pieces(const work *w, size_t first, size_t end, FILE *text) {
    for (size_t t = first; t < end; t++) {
        const char *piece = recording_piece(w->s->rec, w->id[t]);
        if (piece)
            fputs(piece, text);
        else
            fprintf(text, "<%" PRId32 ">", w->id[t]);
    }
}

static int put_text(const work *w, size_t first, size_t end, status *st) {
    char *cell = NULL;
    size_t bytes;
    FILE *text = open_memstream(&cell, &bytes);
    if (!text)
        return status_fail(st, "no memory for the text of a context");
    put_pieces(w, first, end, text);
    int rc = fclose(text) ? status_fail(st, "no memory for the text of a context") : DONE;
    if (!rc)
        table_text(w->s->out, cell);
    free(cell);
    return rc;
}

static int put_hit(const work *w, const recorded_site *site, size_t source, size_t rank,
                   status *st) {
    const recording_about *about = w->s->about;
    const hit *x = w->hit + (site->index * about->sources + source) * w->count + rank;
    size_t at = x->position, length = (size_t)about->length[x->sequence];
    if (recording_read_tokens(w->s->rec, x->sequence, w->id, NULL, st))
        return FAILED;
    FILE *out = w->s->out;
    table_row(out, "CTX");
    table_text(out, site->name);
    table_text(out, about->source_name[source]);
    table_size(out, rank + 1);
    table_real(out, x->weight);
    table_size(out, x->sequence);
    table_size(out, at);
    if (put_text(w, at > AROUND ? at - AROUND : 0, at, st) || put_text(w, at, at + 1, st) ||
        put_text(w, at + 1, length - at - 1 > AROUND ? at + 1 + AROUND : length, st))
        return FAILED;
    table_end(out);
    return DONE;
}

static int prepare(work *w, status *st) {
    const recording_about *about = w->s->about;
    size_t cells = about->sites * about->sources;
    w->hit = mem_array(cells, w->count * sizeof *w->hit, "contexts", st);
    w->used = mem_array(cells, sizeof *w->used, "contexts", st);
    w->weight = mem_array(about->positions, about->heads * about->sources * sizeof *w->weight,
                          "weights", st);
    w->id = mem_array(about->positions, sizeof *w->id, "ids", st);
    return w->hit && w->used && w->weight && w->id ? DONE : FAILED;
}

int routing_contexts_write(const routing_sample *s, size_t count, status *st) {
    work w = {.s = s, .count = count};
    int rc = prepare(&w, st);
    for (size_t sequence = 0; !rc && sequence < s->about->sequences; sequence++)
        for (size_t i = 0; !rc && i < s->sites->sites; i++)
            if (s->sites->site[i].shape.sources > 1)
                rc = scan_site(&w, &s->sites->site[i], sequence, st);
    if (!rc)
        table_section(s->out, "CTX",
                      "contexts: the tokens at which a source has the largest head-mean weight, at "
                      "sites with a choice; the weight is of the step that reads `token` and "
                      "predicts the one after it; before, after: up to 24 tokens around it",
                      "site, source, rank, weight, sequence, position, before, token, after", "1");
    for (size_t i = 0; !rc && i < s->sites->sites; i++) {
        const recorded_site *site = &s->sites->site[i];
        for (size_t j = 0; !rc && j < site->shape.sources; j++) {
            size_t used = w.used[site->index * s->about->sources + site->source[j]];
            for (size_t rank = 0; !rc && rank < used; rank++)
                rc = put_hit(&w, site, site->source[j], rank, st);
        }
    }
    free(w.hit);
    free(w.used);
    free(w.weight);
    free(w.id);
    return rc;
}
