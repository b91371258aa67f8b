/**
 * tests/unit/coll_relay.h: two ranks over tcp, threads of this process, with a relay between them
 * that may change what they send.
 */
#ifndef TESTS_UNIT_COLL_RELAY_H
#define TESTS_UNIT_COLL_RELAY_H

#include "collectives/comm/comm.h"
#include "collectives/tcp/tcp_wire.h"

/** What a rank does. */
typedef zero_result (*party_fn)(struct coll_comm *comm, struct base_error *error);

/** Changes a frame, of whose length as many bytes are passed on as there were. */
typedef void (*change_fn)(struct net_header *header, unsigned char *rest, void *user);

struct relayed {
    party_fn fn;
    change_fn changes[2]; /**< of what a rank sends; NULL: none */
    void *users[2];
    uint64_t timeout_ns;
    int room; /**< bytes that come to the one between before that reads, about; 0: many */

    zero_result results[2];
    struct base_error errors[2];
};

/** Runs both to their end, and fills in how they ended. */
void relay_run(struct relayed *job);

#endif
