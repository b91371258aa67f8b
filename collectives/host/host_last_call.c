// The last call of each rank, for messages about ranks that don't come any more: in any
// communicator, and also a receive, which no other rank has to see. Ordered operations of the root
// are in its ring; the others are recorded beside it, with how many of those there were.

#include "collectives/host/host.h"

#include <stdio.h>
#include <string.h>

/** What a last call holds. */
struct call {
    struct coll_signature signature;
    uint64_t sequence;
    uint64_t posted; /**< by then, in the root */
    char group[24];  /**< its name, cut; "": the root */
};

_Static_assert(sizeof(struct call) == sizeof((struct host_last_call *)0)->words, "whole words");

void coll_host_record_call(const struct coll_comm *comm, const struct coll_signature *signature,
                           uint64_t sequence)
{
    struct host_block *root_block = coll_host_of(comm)->root_blocks[comm->rank];
    struct host_last_call *last_call = &root_block->last_call;
    const uint64_t stamp = atomic_load_explicit(&last_call->stamp, memory_order_relaxed);
    struct call call = {.signature = *signature,
                        .sequence = sequence,
                        .posted = atomic_load_explicit(&root_block->posted, memory_order_relaxed)};
    if (comm->root_ranks)
        memcpy(call.group, comm->name, sizeof call.group - 1);
    coll_shown_write(&last_call->stamp, last_call->words, HOST_LAST_CALL_WORDS, stamp + 2, &call);
}

/** Reads a last call; false if there is none, or if its owner is about to write. */
static bool read_last_call(const struct host_last_call *last_call, struct call *call)
{
    const bool read =
        coll_shown_read(&last_call->stamp, last_call->words, HOST_LAST_CALL_WORDS, call) > 0;
    call->group[sizeof call->group - 1] = '\0'; // what came from elsewhere may have none
    coll_signature_end(&call->signature);
    return read;
}

void coll_host_last_call(const struct coll_comm *comm, int rank, char *text, size_t size)
{
    const struct host_block *root_block = coll_host_of(comm)->root_blocks[rank];
    const uint64_t posted = atomic_load(&root_block->posted);
    struct call call = {.posted = 0};
    bool recorded = false;
    char called[COLL_TEXT_BYTES] = "none";
    // A writer is done within nanoseconds, unless it has died over it.
    for (int i = 0; i < 1000 && !recorded && atomic_load(&root_block->last_call.stamp) > 0; i++)
        recorded = read_last_call(&root_block->last_call, &call);
    if (recorded && call.posted >= posted)
        coll_signature_text(&call.signature, call.sequence, called);
    else if (posted > 0)
        coll_signature_text(&root_block->ring[(posted - 1) % HOST_RING].signature, posted - 1,
                            called);
    const bool in_group = recorded && call.posted >= posted && call.group[0];
    snprintf(text, size, "%s%s%s", called, in_group ? " in " : "", in_group ? call.group : "");
}
