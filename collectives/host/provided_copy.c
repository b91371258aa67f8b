#include "collectives/host/provided_copy.h"

#include "base/clock.h"

#include <assert.h>

/** How long TCP has to say why an owner is not to be reached: it sees at once that a rank has died,
 * and a provider may see it even before. Long enough for a rank that was suspended for a moment. */
static const uint64_t patience_ns = UINT64_C(2000000000);

static struct coll_provided *provided_of(const struct coll_comm *comm)
{
    return coll_host_of(comm->comm_world->root)->provided;
}

bool coll_host_is_copied(const struct coll_comm *comm, const struct host_place *place)
{
    return place->arena != HOST_UNREGISTERED && provided_of(comm);
}

void coll_host_copy_start(const struct coll_comm *root, int owner, const struct host_place *place,
                          void *to, struct host_copy *copy)
{
    assert(owner != root->rank && place->arena != HOST_UNREGISTERED);
    const struct coll_remote from = {owner, place->arena, place->at, place->bytes};
    copy->broken_ns = 0;
    provided_of(root)->ops->start(provided_of(root), &from, to, &copy->copy);
}

enum coll_copy_state coll_host_copy_state(const struct coll_comm *root, struct host_copy *copy)
{
    enum coll_copy_state state = atomic_load_explicit(&copy->copy.state, memory_order_acquire);
    if (state == COLL_COPY_UNDER_WAY) {
        provided_of(root)->ops->progress(provided_of(root));
        state = atomic_load_explicit(&copy->copy.state, memory_order_acquire);
    }
    return state;
}

void coll_host_copy_end(const struct coll_comm *root, struct host_copy *copy)
{
    if (atomic_load_explicit(&copy->copy.state, memory_order_acquire) == COLL_COPY_UNDER_WAY)
        provided_of(root)->ops->settle(provided_of(root), &copy->copy);
    atomic_store(&copy->copy.state, COLL_COPY_NONE);
}

zero_result coll_host_copy_fail(struct coll_comm *comm, const struct coll_request *request,
                                int rank, const struct host_place *place, struct host_copy *copy)
{
    const struct coll_comm *root = comm->comm_world->root;
    const uint64_t half_ns = comm->comm_world->timeout_ns / 2, now = base_clock_ns();
    const int owner = coll_root_rank(comm, rank);
    struct coll_provided *provided = provided_of(root);
    struct coll_signature signature;
    char text[COLL_TEXT_BYTES], why[128];
    if (copy->broken_ns == 0)
        copy->broken_ns = now;
    if (now - copy->broken_ns < (half_ns < patience_ns ? half_ns : patience_ns))
        return ZERO_AGAIN;
    coll_signature_make(&signature, comm, request);
    coll_signature_text(&signature, request->sequence, text);
    provided->ops->why(provided, owner, why, sizeof why);
    return coll_fail(comm, ZERO_E_IO, "rank %d, %s: %s can't read %llu bytes of rank %d on %s: %s",
                     root->rank, text, provided->ops->name, (unsigned long long)place->bytes, owner,
                     coll_host(root, owner), why);
}
