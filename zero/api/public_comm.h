/**
 * zero/api/public_comm.h: a communicator of <zero/collectives.h>, and how its calls fail.
 */
#ifndef ZERO_API_PUBLIC_COMM_H
#define ZERO_API_PUBLIC_COMM_H

#include "collectives/comm/comm.h"
#include "zero/collectives.h"

struct zero_comm {
    struct eng_comm_world *comm_world;
    struct coll_comm *comm;
    zero_comm *next; /**< of the comm world */
};

/** A call without a communicator. Its message is the thread's. */
zero_result eng_comm_refuse_null(const char *call);

/** Leaves a call: a failure's message is kept, and logged once. */
zero_result eng_comm_finish(const zero_comm *comm, zero_result result);

/** A call that leaves everything as it was. */
zero_result eng_comm_decline(zero_comm *comm, zero_result result, const char *message);

/** An operation in which this rank cannot take part. Every rank fails with ZERO_E_INVALID; without
 * a communicator only the call does. */
zero_result eng_comm_refuse(zero_comm *comm, const char *call, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
