// How fast copies between a device and pinned memory of the host are, both ways at once.

#include "zero/exec/device_parts.h"

#include "base/arena.h"
#include "base/clock.h"

#include <string.h>

enum { WAYS = 2, BYTES = 16 << 20, ROUNDS = 4, PAGE = 4096 };

static const uint64_t least_ns = 50000000; // with fewer, beginnings and ends are much of it

/** Of each way. */
struct way {
    void *host, *there, *stream;
    bool pinned;
};

static zero_result make_way(const struct base_device *ops, struct way *way,
                            struct base_error *error)
{
    way->host = base_aligned_alloc(PAGE, BYTES);
    if (!way->host)
        return zero_fail(error, ZERO_E_NOMEM, "no memory of %d bytes", BYTES);
    memset(way->host, 0, BYTES); // all its pages are there
    zero_result r = ops->pin(way->host, BYTES, error);
    way->pinned = !r;
    if (!r)
        r = ops->alloc(&way->there, BYTES, error);
    return r ? r : ops->stream_create(&way->stream, false, error);
}

static void free_way(const struct base_device *ops, struct way *way)
{
    if (way->stream)
        ops->stream_sync(way->stream, NULL);
    ops->stream_destroy(way->stream);
    ops->free(way->there);
    ops->unpin(way->pinned ? way->host : NULL);
    base_free(way->host);
}

/** So many copies each way, and waits for them. */
static zero_result copy_both_ways(const struct base_device *ops, const struct way ways[WAYS],
                                  int rounds, struct base_error *error)
{
    zero_result r = ZERO_OK;
    for (int i = 0; !r && i < rounds * WAYS; i++) {
        const struct way *way = &ways[i % WAYS];
        const bool in = i % WAYS == 0;
        r = ops->copy(in ? way->there : way->host, in ? way->host : way->there, BYTES, way->stream,
                      error);
    }
    for (int i = 0; !r && i < WAYS; i++)
        r = ops->stream_sync(ways[i].stream, error);
    return r;
}

/** As many as take long enough. */
static zero_result time_copies(const struct base_device *ops, const struct way ways[WAYS],
                               double *rate, struct base_error *error)
{
    zero_result r = ZERO_OK;
    uint64_t took = 0;
    double copied = 0;
    for (const uint64_t began = base_clock_ns(); !r && took < least_ns; copied += ROUNDS) {
        r = copy_both_ways(ops, ways, ROUNDS, error);
        took = base_clock_ns() - began;
    }
    *rate = 1e9 * copied * BYTES / (double)took;
    return r;
}

size_t eng_device_probe_bytes(void)
{
    return (size_t)WAYS * BYTES;
}

zero_result eng_device_probe(const zero_ctx *z, double *rate, struct base_error *error)
{
    const struct base_device *ops = z->device->ops;
    struct way ways[WAYS] = {{.host = NULL}};
    struct base_error inner = {0};
    zero_result r = ZERO_OK;
    for (int i = 0; !r && i < WAYS; i++)
        r = make_way(ops, &ways[i], &inner);
    if (!r)
        r = copy_both_ways(ops, ways, 1, &inner); // all there is wakes up
    if (!r)
        r = coll_barrier(z->comm);
    if (!r)
        r = time_copies(ops, ways, rate, &inner);
    for (int i = 0; i < WAYS; i++)
        free_way(ops, &ways[i]);
    return inner.result ? device_tell(z, &inner, "finding out how fast copies are", error) : r;
}
