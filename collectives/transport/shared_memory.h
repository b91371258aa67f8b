/**
 * collectives/transport/shared_memory.h: memory that several processes, or one of them several
 * times, can map. It is in memfds without names, so nothing stays behind when a process dies.
 *
 * Points of base/fault.h: shm.allocate (each coll_memory_allocate()), shm.map (each mapping),
 * shm.populate (each filling in of page tables; EINVAL: as on a kernel that can't, which is no
 * error), shm.huge (each attempt at huge pages, never an error).
 */
#ifndef COLLECTIVES_TRANSPORT_SHARED_MEMORY_H
#define COLLECTIVES_TRANSPORT_SHARED_MEMORY_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

/** A memory of `bytes` > 0 bytes without any pages yet, sealed: it keeps its size. `name` is the
 * communicator's, for messages, here and below. ZERO_E_NOMEM. *Local.* */
zero_result coll_memory_create(const char *name, size_t bytes, int *memory,
                               struct base_error *error);

/** Whether a peer's memory is sealed and has this size, so that reading it can't fault. ZERO_E_PEER
 * names the rank. *Local.* */
zero_result coll_memory_check(const char *name, int rank, int memory, size_t bytes,
                              struct base_error *error);

/** Maps it, where huge pages are possible from 2 MiB on. ZERO_E_NOMEM: *address is as before.
 * *Local.* */
zero_result coll_memory_map(const char *name, int memory, size_t bytes, bool writable,
                            void **address, struct base_error *error);

/** Undoes it; accepts NULL. *Local.* */
void coll_memory_unmap(const void *address, size_t bytes);

/**
 * Allocates the pages of bytes offset .. offset + bytes - 1, near the calling thread, huge where
 * the kernel grants them, zero, and fills in the page tables of the mapping `base`, which is
 * writable. Adds the bytes that lie in huge pages to *huge_bytes. ZERO_E_NOMEM. *Local.*
 */
zero_result coll_memory_allocate(const char *name, int memory, void *base, size_t offset,
                                 size_t bytes, size_t *huge_bytes, struct base_error *error);

/** Fills in the page tables of a mapping whose pages are there: no later access faults.
 * ZERO_E_NOMEM. *Local.* */
zero_result coll_memory_populate(const char *name, void *address, size_t bytes, bool writable,
                                 struct base_error *error);

/** How many of the memory's bytes have pages: a multiple of the page size. *Local.* */
size_t coll_memory_allocated(int memory);

/** What a memory is cut into for those who share the work of allocating it: a huge page, or, of one
 * that has none, a page. */
size_t coll_memory_granule(size_t bytes);

#endif
