/**
 * tests/unit/off_late.h: an engine that does everything at once, but for the first write of all:
 * that one is done when it has been under way for a while and is alone.
 */
#ifndef TESTS_UNIT_OFF_LATE_H
#define TESTS_UNIT_OFF_LATE_H

#include "offload/io/io_engine.h"

#include <stdatomic.h>

enum { LATE_NS = 400000000, LATE_MOST = 64 };

/** The one there is. */
extern struct late {
    struct off_transfer transfer[LATE_MOST];
    unsigned number[LATE_MOST], count;
    uint64_t since;          /**< the first write */
    _Atomic uint64_t ns;     /**< how long it takes; LATE_NS, or set after create */
    atomic_bool begun;       /**< it has */
    atomic_bool never;       /**< it is not done at all; set after create */
    atomic_bool woken;       /**< for the next reap */
    atomic_bool gone, asked; /**< destroyed, and woken afterwards */
} late;

extern const struct off_io_engine off_io_engine_late;

#endif
