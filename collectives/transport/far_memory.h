/**
 * collectives/transport/far_memory.h: arenas of ranks that share no memory, by a provider
 * (provider/provider.h).
 */
#ifndef COLLECTIVES_TRANSPORT_FAR_MEMORY_H
#define COLLECTIVES_TRANSPORT_FAR_MEMORY_H

#include "collectives/host/host.h"

/**
 * Opens a provider on all ranks of a root, or on none: the one that has the transport's name, or,
 * with any_provider, the first in the list that all ranks have and by which each reads a word of
 * every other one's. Where there is none with any_provider, bytes are sent, and
 * coll_transport_reason() says why. *Collective.* ZERO_E_UNSUPPORTED and what coll_provider.open
 * and .connect return: the named one does not work, on all ranks; the message names rank and host.
 */
zero_result coll_far_open(struct coll_comm *root, const struct coll_config *config,
                          struct base_error *error);

/** Publishes this rank's part of an arena, and learns the others'. *Collective.* After a failure
 * coll_far_withdraw() is still called. */
zero_result coll_far_publish(struct coll_comm *root, const struct coll_arena *arena,
                             struct base_error *error);
void coll_far_withdraw(const struct coll_comm *root, const struct coll_arena *arena);

/** No copy is under way when this returns, nor begins, and no peer reads this rank's memory.
 * *Local.*
 */
void coll_far_halt(const struct coll_comm *root);

/** Halts, and frees everything; in a child of fork() what is its own. *Local.* */
void coll_far_close(struct coll_comm *root);

#endif
