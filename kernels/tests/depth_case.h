/* depth_case.h - depth plans with random tensors, run by a backend and by a float64 reference. */
#ifndef FATHOM_KERNELS_TESTS_DEPTH_CASE_H
#define FATHOM_KERNELS_TESTS_DEPTH_CASE_H

#include "kernels/tests/fixture.h"

enum { CASE_SITES = 4 };

/* Every value has a slot of its own. Site i is read as soon as its values are made. */
typedef struct depth_case {
    depth_plan plan;
    depth_value *value;
    depth_site site[CASE_SITES];
    site_weights weights[CASE_SITES];
    buffer **given; /* [values] of [FIXTURE_ROWS, width]: EMB and OUT values; NULL elsewhere */
    depth_wants wants;
    bool no_weights; /* read without asking for the weights */
    double *sums;    /* where the run puts the sums of all sites of all sequences, or NULL */
} depth_case;

/* Site i reads the first counts[i] (at most `values`, ascending) of one embedding and values - 1
 * outputs, and nothing else. */
depth_case *depth_case_prefixes(size_t width, size_t heads, size_t values,
                                const size_t counts[CASE_SITES]);
/* Values of every kind, sites with every kind of gate, base and source, drawn anew each time. */
depth_case *depth_case_mixed(size_t width, size_t heads);
void depth_case_free(depth_case *test);

/* A fixture_case's run: outputs 2i and 2i+1 are site i's input and weights (one unused element
 * where it has no sources or none are asked for). */
void depth_case_run(backend *device, const batch_layout *layout, size_t first, void *context,
                    float **out);
void depth_case_elements(const depth_case *test, size_t elements[2 * CASE_SITES]);
/* Doubles of one sequence's sums of one site, and of all sites of one sequence. */
routing_layout depth_case_layout(const depth_case *test, size_t site);
size_t depth_case_sums_size(const depth_case *test);

/* Float64: value v at [v * FIXTURE_ROWS * width], freed by the caller; one token of one site. */
double *depth_case_values(const depth_case *test);
void depth_case_token(const depth_case *test, const double *values, size_t site, size_t row,
                      double *weight, double *mix, double *in);

#endif
