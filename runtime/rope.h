/* rope.h - tables of rotary position embedding, with the scalings that public configurations name.
 * Frequencies: RoFormer (arXiv 2104.09864); linear: arXiv 2306.15595; llama3: the Llama 3.1
 * release, as transformers computes it. Their attention factor is 1. */
#ifndef FATHOM_ROPE_H
#define FATHOM_ROPE_H

#include "runtime/config.h"

/* Radians per position of the pairs (i, i + head_dim/2): frequency [head_dim/2]. */
void rope_frequencies(const rope_config *rope, size_t head_dim, double *frequency);

/* cosine and sine [rows, half] of position * frequency for the positions first .. first + rows - 1;
 * frequency [half]. Angles are reduced in float64. */
void rope_table(const double *frequency, size_t half, size_t first, size_t rows, float *cosine,
                float *sine);

#endif
