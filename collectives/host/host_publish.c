// What the ranks of a host do together of an all-gather: blocks of far ranks come to the host once,
// each rank of it brings a part.
//
// A publication is an all-gather without a receiving side. The near ranks of an owner see what it
// has written. If that lies in a shared arena the ranks of each other host bring it into their
// host's memory of that arena.
//
// An all-gather into memory of the host fills one place of a shared arena: each rank of the host
// brings its own block, too. The near ranks still read there what was there before. A rank makes
// the call when it reads no more, so none of them writes before all of them have made it.
//
// A rank is done when all ranks of its host have brought their parts, which they count as steps.
// The part of a rank that leaves is brought by those that wait for it.

#include "collectives/host/host_publish.h"

#include <assert.h>
#include <string.h>

/** Parts begin at multiples of a page. */
enum { PAGE = 4096 };

/** host->at: 0 while this rank brings its own part; then this, or a sum of it and 1 and the number
 * of the rank whose part it brings. */
enum { OWN_PART_DONE = 1 };

/** host->fetched of a near rank: its part was brought by this one. More than any block has. */
#define TAKEN_OVER SIZE_MAX

struct host_place coll_host_published(const struct coll_comm *comm,
                                      const struct coll_request *request)
{
    const struct coll_all_gather *op = &request->op.all_gather;
    const size_t bytes = op->spans[comm->rank].count;
    const struct host_place nothing = {.arena = HOST_UNREGISTERED};
    assert(request->kind == COLL_ALL_GATHER && !op->recv);
    if (coll_host_of(comm)->far_count == 0 || bytes == 0 || !op->source)
        return nothing;
    const struct host_place place = coll_host_place(comm, op->source, bytes);
    return place.arena != HOST_UNREGISTERED && comm->comm_world->arenas[place.arena]->shared
               ? place
               : nothing;
}

/* ------------------------------------------------------------------ parts */

/** Where this host has the block that a far rank has published; NULL: nowhere, for what it says
 * can't be. */
static unsigned char *published_here(const struct coll_comm *comm, const struct host_place *place,
                                     size_t bytes)
{
    const struct coll_comm_world *comm_world = comm->comm_world;
    if (place->arena >= comm_world->arena_count || place->bytes != bytes)
        return NULL;
    const struct coll_arena *arena = comm_world->arenas[place->arena];
    if (!arena->shared || place->at > arena->bytes || bytes > arena->bytes - place->at)
        return NULL;
    return (unsigned char *)arena->base + place->at;
}

/** Where a block goes on this host; NULL: nowhere, for what its owner says can't be. */
static unsigned char *block_here(const struct coll_comm *comm, const struct coll_request *request,
                                 int owner)
{
    const struct coll_all_gather *op = &request->op.all_gather;
    if (op->recv)
        return (unsigned char *)op->recv + op->spans[owner].offset;
    return published_here(comm, &coll_host_descriptor(comm, owner, request->sequence)->source,
                          op->spans[owner].count);
}

/** The part of a far rank's block of `bytes` bytes that a rank of this host brings. */
static struct coll_span share_of(const struct coll_comm *comm, int rank, size_t bytes)
{
    const struct host_comm *host = coll_host_of(comm);
    const size_t pages = bytes / PAGE + (bytes % PAGE != 0);
    const size_t near = (size_t)(comm->world - host->far_count);
    const size_t each = pages / near + (pages % near != 0);
    size_t before = 0;
    for (int other = 0; other < rank; other++)
        before += !host->far[other];
    const size_t first = before * each * PAGE, most = each * PAGE;
    if (first >= bytes)
        return (struct coll_span){0, 0};
    return (struct coll_span){first, bytes - first < most ? bytes - first : most};
}

/** The part of a block that `member`, a rank of this host, brings. What a near rank has published
 * is there. */
static struct coll_span part_for(const struct coll_comm *comm, const struct coll_request *request,
                                 int owner, int member)
{
    const struct coll_all_gather *op = &request->op.all_gather;
    const size_t bytes = op->spans[owner].count;
    const struct host_place *posted = &coll_host_descriptor(comm, owner, request->sequence)->source;
    if (coll_host_of(comm)->far[owner])
        return op->recv || posted->arena != HOST_UNREGISTERED ? share_of(comm, member, bytes)
                                                              : (struct coll_span){0, 0};
    return (struct coll_span){0, op->recv && owner == member ? bytes : 0};
}

/** Brings `member`'s part of a block, whose owner has posted it. */
static zero_result bring_part(struct coll_comm *comm, const struct coll_request *request, int owner,
                              int member)
{
    const struct host_place *posted = &coll_host_descriptor(comm, owner, request->sequence)->source;
    size_t *done = &coll_host_of(comm)->fetched[owner];
    const struct coll_span part = part_for(comm, request, owner, member);
    if (part.count == 0 || *done == part.count)
        return ZERO_OK;
    coll_point(comm, request->kind, "read");
    unsigned char *here = block_here(comm, request, owner);
    if (!here)
        return coll_fail(comm, ZERO_E_DIVERGED,
                         "rank %d has published %llu bytes that are in no shared arena of rank %d",
                         coll_root_rank(comm, owner), (unsigned long long)posted->bytes,
                         coll_root_rank(comm, comm->rank));
    const struct host_place place = coll_host_part(posted, part.offset, part.count);
    const zero_result result =
        coll_host_fetch(comm, request, owner, &place, part.count, here + part.offset, done);
    if (result == ZERO_OK && owner != comm->rank)
        comm->comm_world->counters.gathered_bytes += part.count;
    return result;
}

/** What a near rank has published is here: this rank is done with it. */
static zero_result see_block(struct coll_comm *comm, const struct coll_request *request, int owner)
{
    coll_point(comm, request->kind, "read");
    coll_host_of(comm)->met[owner] = HOST_DONE;
    return ZERO_OK;
}

/** Brings `member`'s part of all blocks, in whatever order they come. */
static zero_result bring_parts(struct coll_comm *comm, const struct coll_request *request,
                               int member)
{
    const unsigned char *met = coll_host_of(comm)->met;
    zero_result result = ZERO_OK;
    for (int i = 0; i < comm->world; i++) {
        const int owner = (comm->rank + i) % comm->world;
        if (met[owner] == HOST_DONE || request->op.all_gather.spans[owner].count == 0)
            continue;
        zero_result arrived = coll_host_meet(comm, request, owner);
        if (arrived == ZERO_OK)
            arrived = request->op.all_gather.recv || coll_host_of(comm)->far[owner]
                          ? bring_part(comm, request, owner, member)
                          : see_block(comm, request, owner);
        if (arrived < 0)
            return arrived;
        if (arrived != ZERO_OK)
            result = arrived;
    }
    return result;
}

/* ------------------------------------------------------------------ ranks of the host */

static zero_result fail_targets(struct coll_comm *comm, const struct coll_request *request,
                                int rank)
{
    const struct host_descriptor *mine = coll_host_descriptor(comm, comm->rank, request->sequence),
                                 *other = coll_host_descriptor(comm, rank, request->sequence);
    char text[COLL_TEXT_BYTES];
    coll_signature_text(&mine->signature, request->sequence, text);
    return coll_fail(comm, ZERO_E_DIVERGED,
                     "%s: rank %d wants %llu bytes at byte %llu of arena %u of its host, rank %d "
                     "%llu bytes at byte %llu of arena %u: load and release the same units in the "
                     "same order on all ranks",
                     text, coll_root_rank(comm, comm->rank), (unsigned long long)mine->target.bytes,
                     (unsigned long long)mine->target.at, mine->target.arena,
                     coll_root_rank(comm, rank), (unsigned long long)other->target.bytes,
                     (unsigned long long)other->target.at, other->target.arena);
}

/** ZERO_OK when all ranks of this host have made the call, and so read the target no more. */
static zero_result await_release(struct coll_comm *comm, const struct coll_request *request)
{
    const struct host_place *mine =
        &coll_host_descriptor(comm, comm->rank, request->sequence)->target;
    zero_result result = ZERO_OK;
    for (int rank = 0; rank < comm->world; rank++) {
        if (coll_host_of(comm)->far[rank])
            continue;
        const zero_result met = coll_host_meet(comm, request, rank);
        if (met < 0)
            return met;
        if (met != ZERO_OK)
            result = met;
        else if (!coll_host_same_place(
                     mine, &coll_host_descriptor(comm, rank, request->sequence)->target))
            return fail_targets(comm, request, rank);
    }
    return result;
}

/** Brings the part of a rank that leaves without it. A rank that waits until its own parts are read
 * does not bring others: two hosts of such ranks would wait for each other. */
static zero_result take_over(struct coll_comm *comm, const struct coll_request *request, int rank)
{
    struct host_comm *host = coll_host_of(comm);
    const size_t at = OWN_PART_DONE + 1 + (size_t)rank;
    for (int owner = 0; owner < comm->world && host->at != at; owner++)
        if (host->far[owner] || owner == rank)
            host->fetched[owner] = 0;
    host->at = at;
    const zero_result result = bring_parts(comm, request, rank);
    if (result == ZERO_OK) {
        host->fetched[rank] = TAKEN_OVER;
        host->at = OWN_PART_DONE;
    }
    return result;
}

/** Waits for the parts of the other ranks of this host. */
static zero_result await_parts(struct coll_comm *comm, const struct coll_request *request)
{
    const struct host_comm *host = coll_host_of(comm);
    for (int rank = 0; rank < comm->world; rank++) {
        if (host->far[rank] || host->fetched[rank] == TAKEN_OVER)
            continue;
        // What a rank has counted before it leaves is looked at after that.
        const bool retired = coll_host_retired(comm, rank);
        if (!coll_host_behind(comm, rank))
            continue;
        const zero_result result = retired ? take_over(comm, request, rank) : ZERO_AGAIN;
        if (result != ZERO_OK)
            return result;
    }
    return ZERO_OK;
}

zero_result coll_host_gather_together(struct coll_comm *comm, const struct coll_request *request)
{
    struct host_comm *host = coll_host_of(comm);
    const bool fills = request->op.all_gather.recv != NULL;
    assert(coll_host_parted(request));
    if (host->at == 0) {
        zero_result result = fills ? await_release(comm, request) : ZERO_OK;
        if (result == ZERO_OK)
            result = bring_parts(comm, request, comm->rank);
        if (result != ZERO_OK || (host->far_count == 0 && !fills))
            return result;
        host->at = OWN_PART_DONE;
        coll_host_count_steps(comm, 2);
    }
    return await_parts(comm, request);
}
