#include "runtime/base/random.h"

#include <math.h>

uint64_t random_at(uint64_t seed, uint64_t counter) {
    uint64_t z = seed + (counter + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* In (0, 1]: its logarithm is finite. */
static double uniform_at(uint64_t seed, uint64_t counter) {
    return (double)((random_at(seed, counter) >> 11) + 1) * 0x1p-53;
}

double random_normal(uint64_t seed, uint64_t counter) {
    const uint64_t pair = counter & ~UINT64_C(1);
    const double length = sqrt(-2 * log(uniform_at(seed, pair)));
    const double angle = 2 * M_PI * uniform_at(seed, pair + 1);
    return length * (counter & 1 ? sin(angle) : cos(angle));
}
