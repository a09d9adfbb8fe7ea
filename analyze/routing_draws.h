/* routing_draws.h - one statistic of one recording, site by site, for every draw of a bootstrap.
 *
 *     routing_draws *d;
 *     if (routing_draws_create(rec, sites, statistic, bootstrap_draws(b), &d, st)) ...
 *     routing_draws_site(d, &sites->site[3], b, out, st);     // out [draws, routing_width]
 *     bootstrap_intervals(b, out, routing_width(statistic, &site->shape), intervals);
 *     routing_draws_free(d);
 */
#ifndef FATHOM_ROUTING_DRAWS_H
#define FATHOM_ROUTING_DRAWS_H

#include "analyze/bootstrap.h"
#include "analyze/routing_sites.h"

typedef struct routing_draws routing_draws;

/* Reads the statistic's rows whole, [sequences, the row's axes]; rows that are not recorded and
 * cannot be computed are an error. What is passed must outlive the result. */
int routing_draws_create(recording *rec, const recorded_sites *sites,
                         const routing_statistic *statistic, size_t draws, routing_draws **out,
                         status *st) MUST_USE;
void routing_draws_free(routing_draws *d); /* NULL allowed */

/* Doubles of one draw at the largest site: what `out` below needs times the draws. */
size_t routing_draws_width(const routing_draws *d);

/* A site that has sources: out [draws, routing_width of the site]. `b` resamples the recording's
 * sequences and has the number of draws given above. */
int routing_draws_site(routing_draws *d, const recorded_site *site, const bootstrap *b, double *out,
                       status *st) MUST_USE;

#endif
