/* routing_example.c - one sequence read token by token: TOK of the routing table. */
#include "analyze/routing_sections.h"
#include "analyze/table.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is shown, found from what was asked for. */
typedef struct shown {
    const recorded_site *site;
    size_t head; /* the number of heads: their mean */
    size_t sequence, first, end;
} shown;

/* The site whose token_information is the largest, as the mean over heads: where routing varies
 * most from token to token. The first site with a choice where no number is defined, NULL where
 * there is none. */
static int most_varying_site(const routing_sample *s, const recorded_site **best, status *st) {
    const routing_statistic *statistic = routing_statistic_find("token_information");
    size_t draws = bootstrap_draws(s->all);
    routing_draws *d = NULL;
    double *own = NULL, most = -INFINITY;
    int rc = routing_draws_create(s->rec, s->sites, statistic, draws, &d, st);
    if (!rc) {
        own = mem_array(draws, routing_draws_width(d) * sizeof *own, "resampled statistics", st);
        rc = own ? DONE : FAILED;
    }
    *best = NULL;
    for (size_t i = 0; !rc && i < s->sites->sites; i++) {
        const recorded_site *site = &s->sites->site[i];
        if (site->shape.sources < 2)
            continue;
        rc = routing_draws_site(d, site, s->all, own, st);
        double value = rc ? NAN : own[routing_width(statistic, &site->shape) - 1];
        if (!*best || value > most)
            *best = site;
        most = value > most ? value : most;
    }
    routing_draws_free(d);
    free(own);
    return rc;
}

static int find_site(const routing_sample *s, const routing_example *wanted,
                     const recorded_site **site, status *st) {
    *site = NULL;
    if (!wanted->site)
        return most_varying_site(s, site, st);
    for (size_t i = 0; i < s->sites->sites; i++)
        if (strcmp(s->sites->site[i].name, wanted->site) == 0)
            *site = &s->sites->site[i];
    if (!*site)
        return status_fail(st, "%s: no site '%s'; section SIT of the table lists them",
                           s->about->path, wanted->site);
    if ((*site)->shape.sources == 0)
        return status_fail(st, "%s: site %s reads no sources", s->about->path, wanted->site);
    return DONE;
}

static int find_head(const recording_about *about, const char *text, size_t *head, status *st) {
    char *end;
    *head = about->heads;
    if (strcmp(text, "mean") == 0)
        return DONE;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || number >= about->heads)
        return status_fail(st, "--head %s: %s has routing heads 0 to %zu, and `mean`", text,
                           about->path, about->heads - 1);
    *head = (size_t)number;
    return DONE;
}

static int find_tokens(const recording_about *about, const routing_example *wanted, shown *show,
                       status *st) {
    if (wanted->sequence >= about->sequences)
        return status_fail(st, "--sequence %zu: %s has sequences 0 to %zu", wanted->sequence,
                           about->path, about->sequences - 1);
    size_t length = (size_t)about->length[wanted->sequence];
    if (wanted->position >= length)
        return status_fail(st, "--position %zu: sequence %zu of %s has %zu tokens",
                           wanted->position, wanted->sequence, about->path, length);
    size_t left = length - wanted->position;
    show->sequence = wanted->sequence;
    show->first = wanted->position;
    show->end = show->first + (wanted->tokens < left ? wanted->tokens : left);
    return DONE;
}

/* The text of a token without control characters, in the escapes of vocab/piece; an id without a
 * text as <id>. */
static void put_piece(FILE *out, const char *piece, int32_t id) {
    fputc('\t', out);
    if (!piece)
        fprintf(out, "<%" PRId32 ">", id);
    for (; piece && *piece; piece++)
        if ((unsigned char)*piece < ' ' || *piece == 0x7f)
            fprintf(out, "\\x%02x", (unsigned)(unsigned char)*piece);
        else
            fputc(*piece, out);
}

static void put_token(const routing_sample *s, const shown *show, size_t position,
                      const float *weight, int32_t id) {
    const recording_about *about = s->about;
    for (size_t j = 0; j < show->site->shape.sources; j++) {
        size_t source = show->site->source[j];
        double value = 0;
        for (size_t h = 0; h < about->heads; h++) {
            double of_head = (double)weight[h * about->sources + source];
            value = show->head == h              ? of_head
                    : show->head == about->heads ? value + of_head / (double)about->heads
                                                 : value;
        }
        table_row(s->out, "TOK");
        table_size(s->out, show->sequence);
        table_text(s->out, show->site->name);
        routing_put_head(s->out, show->head, about->heads);
        table_size(s->out, position);
        put_piece(s->out, recording_piece(s->rec, id), id);
        table_text(s->out, about->source_name[source]);
        table_real(s->out, value);
        table_end(s->out);
    }
}

static int put_section(const routing_sample *s, const shown *show, status *st) {
    const recording_about *about = s->about;
    size_t cells = about->heads * about->sources;
    float *weight = mem_array(about->positions, cells * sizeof *weight, "weights", st);
    int32_t *id = mem_array(about->positions, sizeof *id, "ids", st);
    int rc = FAILED;
    if (!weight || !id ||
        recording_read_weights(s->rec, show->sequence, show->site->index, weight, st) ||
        recording_read_tokens(s->rec, show->sequence, id, NULL, st))
        goto done;
    table_section(s->out, "TOK",
                  "an example: the weights of each token of one sequence at one site; the weight "
                  "is of the step that reads `token` and predicts the one after it",
                  "sequence, site, head, position, token, source, value", "1");
    for (size_t t = show->first; t < show->end; t++)
        put_token(s, show, t, weight + t * cells, id[t]);
    rc = DONE;
done:
    free(weight);
    free(id);
    return rc;
}

int routing_example_write(const routing_sample *s, const routing_example *wanted, status *st) {
    const recording_about *about = s->about;
    shown show = {0};
    if (!about->has_weights && wanted->asked)
        return status_fail(st,
                           "%s: routing/weights: not recorded, and an example needs them; capture "
                           "with `--record weights`",
                           about->path);
    if (!about->has_weights) {
        table_comment(s->out, "TOK is left out: no weights were recorded; `fathom capture --record "
                              "weights` records them.");
        return DONE;
    }
    if (find_tokens(about, wanted, &show, st) || find_head(about, wanted->head, &show.head, st) ||
        find_site(s, wanted, &show.site, st))
        return FAILED;
    if (show.site)
        return put_section(s, &show, st);
    table_comment(s->out, "TOK is left out: no site has two sources.");
    return DONE;
}
