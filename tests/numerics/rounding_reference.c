#include "tests/numerics/rounding_reference.h"

#include "base/hash.h"
#include "zero/random.h"

#include <math.h>
#include <string.h>

uint64_t rounding_key(uint64_t seed, const char *name, int32_t slice, uint64_t updates,
                      uint64_t purpose)
{
    const uint64_t parts[] = {seed, (uint64_t)slice, updates, purpose};
    return base_hash64(parts, sizeof parts, base_hash64(name, strlen(name), 0));
}

// The distance of a type's numbers at `magnitude`, which is at least the least of them.
static long double spacing(zero_dtype dtype, long double magnitude)
{
    const int digits = dtype == ZERO_BF16 ? 8 : 11, least = dtype == ZERO_BF16 ? -133 : -24;
    int exponent;
    frexpl(magnitude, &exponent); // magnitude = [0.5, 1) * 2^exponent
    return ldexpl(1, exponent - digits > least ? exponent - digits : least);
}

// Random bits of an element as a number in [0, 1): kernels.h says which they are.
static long double chance(zero_dtype dtype, uint64_t key, uint64_t e)
{
    if (dtype == ZERO_BF16) {
        const zero_philox_block block = zero_philox(key, 0, e / 128 * 16 + e % 16);
        const unsigned half = (unsigned)(e % 128 / 16);
        return ldexpl(block.word[half / 2] >> (half % 2 * 16) & 0xffff, -16);
    }
    const zero_philox_block block = zero_philox(key, 0, e / 64 * 16 + e % 16);
    return ldexpl(block.word[e % 64 / 16] >> 1, -31);
}

long double rounding_nearest(zero_dtype dtype, long double value)
{
    if (dtype == ZERO_F32)
        return value;
    const long double unit = spacing(dtype, fabsl(value));
    return nearbyintl(value / unit) * unit;
}

// Away from zero if what is left of the number and chance make a whole.
long double rounding_stochastic(zero_dtype dtype, uint64_t key, uint64_t element, long double value)
{
    const long double unit = spacing(dtype, fabsl(value));
    const long double below = floorl(fabsl(value) / unit);
    const long double left = floorl(ldexpl(fabsl(value) / unit - below, 31)) * 0x1p-31L;
    const long double rounded = unit * (below + (left + chance(dtype, key, element) >= 1));
    return copysignl(rounded, value);
}
