#include "tests/bench/weights.h"

#include "zero/random.h"

zero_result weights_fill(void *user, const char *name, int32_t slice, uint64_t first,
                         uint64_t count, float *out)
{
    const uint64_t stream = zero_random_stream(name) + (uint64_t)slice;
    (void)user;
    for (uint64_t i = 0; i < count; i++)
        out[i] = 0.02f * (float)zero_random_normal(1, stream, first + i);
    return ZERO_OK;
}
