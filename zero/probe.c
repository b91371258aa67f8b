#include "zero/probe.h"

#include "base/arena.h"
#include "base/clock.h"

#include <string.h>

enum { HALF = ENG_PROBE_BYTES / 2, ROUNDS = 4 };

struct copying {
    unsigned char *to;
    const unsigned char *from;
    size_t parts;
};

static void copy_part(void *user, size_t index, int thread)
{
    const struct copying *copying = user;
    const size_t first = HALF * index / copying->parts, end = HALF * (index + 1) / copying->parts;
    (void)thread;
    memcpy(copying->to + first, copying->from + first, end - first);
}

zero_result eng_probe_memory(struct base_pool *pool, double *rate, struct base_error *error)
{
    unsigned char *memory = base_calloc(2, HALF);
    *rate = 0;
    if (!memory)
        return zero_fail(error, ZERO_E_NOMEM, "no memory to find out how fast it is: %d bytes",
                         ENG_PROBE_BYTES);
    struct copying copying = {.parts = (size_t)base_pool_threads(pool)};
    for (int round = 0; round < ROUNDS; round++) {
        copying.to = memory + (size_t)(round % 2) * HALF;
        copying.from = memory + (size_t)(1 - round % 2) * HALF;
        const uint64_t began = base_clock_ns();
        base_pool_run(pool, copying.parts, copy_part, &copying);
        const double found = 2e9 * HALF / (double)(base_clock_ns() - began);
        *rate = round > 0 && found > *rate ? found : *rate;
    }
    base_free(memory);
    return ZERO_OK;
}
