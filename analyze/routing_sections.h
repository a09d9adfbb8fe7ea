/* routing_sections.h - the sections of the routing table that are no single statistic of a site:
 * nulls, kinds of sources, pairs of sites, walks over depth, published claims, an example,
 * contexts. */
#ifndef FATHOM_ROUTING_SECTIONS_H
#define FATHOM_ROUTING_SECTIONS_H

#include "analyze/bootstrap.h"
#include "analyze/routing_draws.h"

#include <stdio.h>

/* What they are computed from. */
typedef struct routing_sample {
    FILE *out;
    recording *rec;
    const recording_about *about;
    const recorded_sites *sites;
    const bootstrap *all;     /* weighted by recording_sum_tokens */
    const bootstrap *half[2]; /* of the even and the odd units; NULL where those have no tokens */
} routing_sample;

/* Which tokens TOK shows. */
typedef struct routing_example {
    const char *site;          /* NULL: the one whose token_information is the largest */
    const char *head;          /* its number, or "mean" */
    size_t sequence, position; /* position: of the first token */
    size_t tokens;             /* at most */
    bool asked;                /* the user chose it: not to have it is an error */
} routing_example;

#define ROUTING_EXAMPLE_DEFAULT                                                                    \
    { .head = "mean", .tokens = 48 }

/* All of the sections below; `contexts` 0: no CTX. Contexts asked of a recording without weights
 * are an error, and so is running out of memory. */
int routing_sections_write(const routing_sample *s, const routing_example *example, size_t contexts,
                           status *st) MUST_USE;

/* NBD: statistics beside those of random queries; nothing where none were recorded. */
int routing_nulls_write(const routing_sample *s, status *st) MUST_USE;
/* KND kind_mass: weight of all sources of one kind; lift: divided by that of uniform weights. */
int routing_kinds_write(const routing_sample *s, status *st) MUST_USE;
/* SJS site_js: neighbouring sites of one kind, head by head. */
int routing_site_js_write(const routing_sample *s, status *st) MUST_USE;
/* RCH reach (full modes) and DMX depth_matrix (modes whose sources are outputs or their sums). */
int routing_walks_write(const routing_sample *s, status *st) MUST_USE;
/* CLM published claims as numbers; SKP the cells that one of them counts. */
int routing_claims_write(const routing_sample *s, status *st) MUST_USE;
/* TOK: the weights of one sequence at one site, token by token. A site, head, sequence or position
 * that is not there is an error. */
int routing_example_write(const routing_sample *s, const routing_example *wanted,
                          status *st) MUST_USE;
/* CTX: for each site and source the `count` tokens with the largest head-mean weight. */
int routing_contexts_write(const routing_sample *s, size_t count, status *st) MUST_USE;

/* ---- what they share ---- */

void routing_put_interval(FILE *out, const interval *x, double divisor); /* value, low, high */
void routing_put_head(FILE *out, size_t head, size_t heads); /* "mean" where head == heads */

/* Head-mean weights of every site, for every draw of `b`: *out [draws, *cells], where the weights
 * of site i [its sources] begin at first[i] (`first` [sites]). *out is freed by the caller. */
int routing_head_means(const routing_sample *s, const bootstrap *b, size_t *first, size_t *cells,
                       double **out, status *st) MUST_USE;

/* Jensen-Shannon divergence in nats of p and q over `count` labels, each divided by its sum; p's
 * label i is at p[at[i]], q's at q[other[i]]. `scratch` [3 * count]. Equal p and q give exactly 0.
 */
double routing_js(const double *p, const size_t *at, const double *q, const size_t *other,
                  size_t count, double *scratch);

#endif
