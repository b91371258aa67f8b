/**
 * zero/probe.h: how fast memory of the host is.
 */
#ifndef ZERO_PROBE_H
#define ZERO_PROBE_H

#include "base/pool.h"

#include <stddef.h>

/** Bytes of memory that a probe has meanwhile. */
enum { ENG_PROBE_BYTES = 128 << 20 };

/** Finds the bytes a second, read and written together, that a pool's threads copy, of more than
 * caches hold; pool NULL: one thread. ZERO_E_NOMEM. */
zero_result eng_probe_memory(struct base_pool *pool, double *rate, struct base_error *error);

#endif
