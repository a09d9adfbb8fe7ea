/* routing_table.h - the sections of the routing table: SIT, each statistic by site, AVG. */
#ifndef FATHOM_ROUTING_TABLE_H
#define FATHOM_ROUTING_TABLE_H

#include "analyze/bootstrap.h"
#include "analyze/routing_sites.h"

#include <stdio.h>

/* `b` resamples the recording's sequences weighted by recording_sum_tokens. Reads one row of the
 * recording at a time. Statistics of pairs are left out where the recording has none, head_js where
 * there is one head, null_mass where there is no null source. */
int routing_table_write(FILE *out, recording *rec, const recorded_sites *sites, const bootstrap *b,
                        status *st) MUST_USE;

/* Whether the table has a section for this statistic. */
bool routing_table_has(const recording_about *about, const recorded_sites *sites,
                       const routing_statistic *statistic);

#endif
