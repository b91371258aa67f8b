/**
 * collectives/comm/call_log.h: what ranks show each other of their calls, on hosts and on devices.
 *
 * Two logs stay apart. A host's ring (host/) also says where a rank's memory lies, and a peer
 * compares whole histories there before it reads; a device's log (gpu/) outlives the call, which
 * only queues an operation, and the later of two callers compares call by call.
 */
#ifndef COLLECTIVES_COMM_CALL_LOG_H
#define COLLECTIVES_COMM_CALL_LOG_H

#include "base/numbers.h"
#include "base/text.h"
#include "collectives/comm/comm_internal.h"
#include "collectives/comm/signature.h"

/** Writes `count` words behind a stamp, which other ranks read at any time: a seqlock with one
 * writer. The stamp is odd meanwhile, and `next` afterwards: even, and greater than before. */
void coll_shown_write(_Atomic uint64_t *stamp, _Atomic uint64_t *shown, size_t count, uint64_t next,
                      const void *bytes);

/** Reads them. Returns their stamp; 0: nothing is written yet, or this rank saw half of it. */
uint64_t coll_shown_read(const _Atomic uint64_t *stamp, const _Atomic uint64_t *shown, size_t count,
                         void *bytes);

/** Ranks that are waited for. All zero: none. */
struct coll_absent {
    struct base_numbers ranks;
    size_t used;
    char each[COLL_MESSAGE_BYTES / 2];
    char first[COLL_TEXT_BYTES + 16]; /**< the first one, and its last call */
};

/** Adds a rank, by its number in the root. */
void coll_absent_add(struct coll_absent *absent, int rank, const char *last_call);

/** Adds "rank 3 (last call: barrier #7)" for each of them, or, where there are many, "ranks 1-5, 7
 * (last call of rank 1: barrier #7)". */
void coll_absent_text(struct coll_absent *absent, struct base_text *text);

#endif
