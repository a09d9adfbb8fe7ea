#include "analyze/routing_draws.h"

#include <stdlib.h>

struct routing_draws {
    const recording_about *about;
    const routing_statistic *statistic;
    size_t draws, width;
    double *row[2];  /* [sequences, the row's axes over all sites] */
    double *mean[2]; /* [draws, the row's cells at one site] */
    double *scratch; /* [routing_scratch] */
    size_t *cell;    /* of one row at one site */
};

static const routing_shape *largest_shape(const recorded_sites *sites) {
    const routing_shape *largest = &sites->site[0].shape;
    for (size_t i = 1; i < sites->sites; i++)
        if (sites->site[i].shape.sources > largest->sources)
            largest = &sites->site[i].shape;
    return largest;
}

static int fill(routing_draws *d, recording *rec, const routing_shape *shape, status *st) {
    size_t cells = 0;
    for (int i = 0; i < 2 && d->statistic->from[i]; i++) {
        const routing_row *row = routing_row_find(d->statistic->from[i]);
        size_t own = routing_row_size(row, shape->heads, shape->sources);
        cells = own > cells ? own : cells;
        d->mean[i] = mem_array(d->draws, own * sizeof(double), "resampled means", st);
        if (!d->mean[i] || recording_read_row(rec, row->name, &d->row[i], st))
            return FAILED;
    }
    d->width = routing_width(d->statistic, shape);
    d->cell = mem_array(cells, sizeof *d->cell, "cells", st);
    d->scratch = mem_array(routing_scratch(shape), sizeof *d->scratch, "scratch", st);
    return d->cell && d->scratch ? DONE : FAILED;
}

int routing_draws_create(recording *rec, const recorded_sites *sites,
                         const routing_statistic *statistic, size_t draws, routing_draws **out,
                         status *st) {
    *out = NULL;
    routing_draws *d = mem_array(1, sizeof *d, "resampled statistics", st);
    if (!d)
        return FAILED;
    d->about = recording_about_of(rec);
    d->statistic = statistic;
    d->draws = draws;
    if (fill(d, rec, largest_shape(sites), st)) {
        routing_draws_free(d);
        return FAILED;
    }
    *out = d;
    return DONE;
}

void routing_draws_free(routing_draws *d) {
    if (!d)
        return;
    for (int i = 0; i < 2; i++) {
        free(d->row[i]);
        free(d->mean[i]);
    }
    free(d->scratch);
    free(d->cell);
    free(d);
}

size_t routing_draws_width(const routing_draws *d) {
    return d->width;
}

int routing_draws_site(routing_draws *d, const recorded_site *site, const bootstrap *b, double *out,
                       status *st) {
    const routing_shape *shape = &site->shape;
    size_t cells[2] = {0, 0}, width = routing_width(d->statistic, shape);
    for (int i = 0; i < 2 && d->statistic->from[i]; i++) {
        row_axes axes = routing_row_find(d->statistic->from[i])->axes;
        cells[i] = routing_row_size(&(routing_row){.axes = axes}, shape->heads, shape->sources);
        recorded_site_cells(site, d->about, axes, d->cell);
        if (bootstrap_means(b, d->row[i], recorded_row_stride(d->about, axes), d->cell, cells[i],
                            d->mean[i], st))
            return FAILED;
    }
    for (size_t k = 0; k < d->draws; k++) {
        const double *mean[2] = {d->mean[0] + k * cells[0],
                                 d->mean[1] ? d->mean[1] + k * cells[1] : NULL};
        routing_derive(d->statistic, shape, mean, d->scratch, out + k * width);
    }
    return DONE;
}
