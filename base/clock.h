/**
 * base/clock.h: monotonic time, from an arbitrary point that is the same for all processes of a
 * host. *Local*, any thread.
 */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

/** Nanoseconds. */
static inline uint64_t base_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/** Seconds. */
static inline double base_clock_s(void)
{
    return (double)base_clock_ns() * 1e-9;
}

#endif
