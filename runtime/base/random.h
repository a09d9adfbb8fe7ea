/* random.h - random numbers by counter: any number of a sequence is had without those before it, so
 * results do not depend on the order in which numbers are asked for. */
#ifndef FATHOM_RANDOM_H
#define FATHOM_RANDOM_H

#include <stdint.h>

/* Number `counter` of the random sequence `seed`: splitmix64 (Steele, Lea, Flood 2014), whose state
 * is a counter. */
uint64_t random_at(uint64_t seed, uint64_t counter);

/* Normal number `counter` (mean 0, variance 1) of the sequence `seed`: Box and Muller (1958) on
 * numbers 2k and 2k+1 of random_at, k = counter / 2. */
double random_normal(uint64_t seed, uint64_t counter);

#endif
