/**
 * collectives/transport/threads_transport.h: ranks that share one address space; `self` is a team
 * of one.
 */
#ifndef COLLECTIVES_TRANSPORT_THREADS_TRANSPORT_H
#define COLLECTIVES_TRANSPORT_THREADS_TRANSPORT_H

#include "collectives/comm/comm_internal.h"

/** Meets the other ranks of the team. With `owned` closing frees the team, also after an error. */
zero_result coll_threads_open(struct coll_comm *comm, struct coll_team *team, bool owned,
                              struct base_error *error);

/** As in struct coll_transport. */
size_t coll_threads_memory(int world);
void coll_threads_close(struct coll_comm *comm);
zero_result coll_threads_group_prepare(struct coll_comm *comm, size_t *part,
                                       struct base_error *error);
void coll_threads_group_meet(struct coll_comm *comm, int rank, size_t part);
void coll_threads_group_close(struct coll_comm *comm);
zero_result coll_threads_arena_alloc(struct coll_comm *comm, struct coll_arena *arena,
                                     struct base_error *error);
zero_result coll_threads_arena_share(struct coll_comm *comm, struct coll_arena *arena,
                                     struct base_error *error);
void coll_threads_arena_free(struct coll_comm *comm, struct coll_arena *arena);

#endif
