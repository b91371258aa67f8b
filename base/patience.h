/**
 * base/patience.h: how long something is waited for that may never come: a timeout, in parts, of
 * which none counts for more than it was to take. While the process is stopped, what it waits for
 * is, too, and no patience is lost. *Local*, any thread.
 */
#ifndef BASE_PATIENCE_H
#define BASE_PATIENCE_H

#include "base/clock.h"

#include <stdbool.h>

enum { BASE_PATIENCE_PARTS = 16 };

/** Nanoseconds of a part. */
static inline uint64_t base_patience_part(uint64_t timeout_ns)
{
    return timeout_ns / BASE_PATIENCE_PARTS;
}

/** What a part that was begun at `began_ns` adds to what has been waited. */
static inline uint64_t base_patience_spent(uint64_t timeout_ns, uint64_t began_ns)
{
    const uint64_t part = base_patience_part(timeout_ns), passed = base_clock_ns() - began_ns;
    return passed < part ? passed : part;
}

/** Whether so much is the timeout, and so many parts more. */
static inline bool base_patience_over(uint64_t timeout_ns, uint64_t waited_ns, unsigned more)
{
    return waited_ns >= base_patience_part(timeout_ns) * (BASE_PATIENCE_PARTS + more);
}

#endif
