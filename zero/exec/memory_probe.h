/**
 * zero/exec/memory_probe.h: how fast memory of the host is, and how fast an update could be without
 * it.
 */
#ifndef ZERO_EXEC_MEMORY_PROBE_H
#define ZERO_EXEC_MEMORY_PROBE_H

#include "base/pool.h"
#include "collectives/comm/comm.h"
#include "zero/plan/plan.h"

#include <stddef.h>

/** Bytes of memory that a probe of so many threads has meanwhile: more than their caches hold, as
 * far as that is 1 GiB. */
size_t eng_probe_bytes(int threads);

/** Finds the bytes a second, read and written together, that a pool's threads copy, of more than
 * caches hold; pool NULL: one thread. With a communicator, *collective*: all its ranks at the same
 * time. ZERO_E_NOMEM; failures of the communicator are not in `error`. */
zero_result eng_probe_memory(struct base_pool *pool, struct coll_comm *comm, double *rate,
                             struct base_error *error);

/** Finds out how fast an update is without memory, for a pool's threads, in some 20 ms; pool NULL:
 * one. ZERO_E_NOMEM. */
zero_result eng_probe_update(const zero_ctx *z, struct base_pool *pool,
                             struct eng_update_rate *rate, struct base_error *error);

#endif
