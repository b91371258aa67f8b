#include "zero/probe.h"

#include "base/arena.h"
#include "base/clock.h"

#include <string.h>

enum { LEAST = 128 << 20, A_THREAD = 32 << 20, MOST = 1 << 30, WARM_UP = 2, ROUNDS = 4 };

size_t eng_probe_bytes(int threads)
{
    const size_t bytes = (size_t)threads * A_THREAD;
    return bytes < LEAST ? LEAST : bytes > MOST ? MOST : bytes;
}

struct copying {
    unsigned char *to;
    const unsigned char *from;
    size_t bytes, parts;
};

static void copy_part(void *user, size_t index, int thread)
{
    const struct copying *copying = user;
    const size_t first = copying->bytes * index / copying->parts;
    const size_t end = copying->bytes * (index + 1) / copying->parts;
    (void)thread;
    memcpy(copying->to + first, copying->from + first, end - first);
}

/** An even number of times: from one half to the other, and back. */
static void copy(struct base_pool *pool, unsigned char *memory, size_t half, int rounds)
{
    for (int round = 0; round < rounds; round++) {
        struct copying copying = {.to = memory + (size_t)(round % 2) * half,
                                  .from = memory + (size_t)(1 - round % 2) * half,
                                  .bytes = half,
                                  .parts = (size_t)base_pool_threads(pool)};
        base_pool_run(pool, copying.parts, copy_part, &copying);
    }
}

zero_result eng_probe_memory(struct base_pool *pool, struct coll_comm *comm, double *rate,
                             struct base_error *error)
{
    const size_t bytes = eng_probe_bytes(base_pool_threads(pool)), half = bytes / 2;
    unsigned char *memory = base_calloc(2, half);
    *rate = 0;
    if (!memory)
        return zero_fail(error, ZERO_E_NOMEM, "no memory to find out how fast it is: %zu bytes",
                         bytes);
    copy(pool, memory, half, WARM_UP); // whoever copies a page has written to it
    const zero_result r = comm ? coll_barrier(comm) : ZERO_OK;
    const uint64_t began = base_clock_ns();
    if (!r)
        copy(pool, memory, half, ROUNDS);
    *rate = 1e9 * ROUNDS * (double)bytes / (double)(base_clock_ns() - began);
    base_free(memory);
    return r;
}
