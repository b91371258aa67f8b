/**
 * base/memory_limits.h: how much memory this process may have, and who says so.
 */
#ifndef BASE_MEMORY_LIMITS_H
#define BASE_MEMORY_LIMITS_H

#include "base/control_group.h"

/** Bytes; UINT64_MAX: not limited, or not known. */
struct base_memory_limits {
    uint64_t total;     /**< the host has (MemTotal) */
    uint64_t available; /**< can be had without swapping, by the kernel's estimate (MemAvailable) */
    /** Of this process's control group and those above it, the one with the least left. */
    uint64_t group_limit; /**< version 2: memory.max; version 1: memory.limit_in_bytes */
    uint64_t group_used;  /**< of it: charged to the group, without what the kernel gives back when
                               memory is short: pages of files, and caches of its own */
    char group[BASE_GROUP_PATH]; /**< its directory, "" if none is limited */
    uint64_t address_limit;      /**< RLIMIT_AS */
    uint64_t address_used;       /**< of it */
};

/** Looks; what cannot be read is not limited. `root` stands before every path; "" but in tests.
 * *Local.* */
void base_memory_limits(struct base_memory_limits *limits, const char *root);

/** What is left of a limit. */
uint64_t base_memory_left(uint64_t limit, uint64_t used);

#endif
