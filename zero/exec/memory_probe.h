/**
 * zero/exec/memory_probe.h: how fast memory of the host is, and how fast an update could be without
 * it.
 */
#ifndef ZERO_EXEC_MEMORY_PROBE_H
#define ZERO_EXEC_MEMORY_PROBE_H

#include "base/pool.h"
#include "zero/plan/plan.h"

/** Finds the bytes a second, read and written together, that a pool's threads copy, of more than
 * caches hold; pool NULL: one thread. ZERO_E_NOMEM. */
zero_result eng_probe_memory(struct base_pool *pool, double *rate, struct base_error *error);

/** Finds out how fast an update is without memory, for a pool's threads, in some 20 ms; pool NULL:
 * one. ZERO_E_NOMEM. */
zero_result eng_probe_update(const zero_ctx *z, struct base_pool *pool,
                             struct eng_update_rate *rate, struct base_error *error);

#endif
