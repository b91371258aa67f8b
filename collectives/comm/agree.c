// What an operation with several local parts needs: all ranks do it, or none.

#include "base/arena.h"
#include "collectives/comm/comm_internal.h"

#include <assert.h>
#include <stdio.h>

struct verdict {
    size_t value;
    int32_t result;
    char message[COLL_MESSAGE_BYTES];
};

zero_result coll_agree(struct coll_comm *comm, size_t value, size_t *values, zero_result result,
                       const struct base_error *mine, struct base_error *error)
{
    assert(result == ZERO_OK || mine);
    const int root_rank = coll_root_rank(comm, comm->rank);
    struct verdict verdict = {.value = value, .result = result};
    if (result != ZERO_OK)
        snprintf(verdict.message, sizeof verdict.message, "rank %d: %.*s", root_rank,
                 COLL_MESSAGE_BYTES - 32, mine->message);
    struct verdict *all = base_calloc((size_t)comm->world, sizeof *all);
    if (!all) {
        coll_fail(comm, ZERO_E_NOMEM, "rank %d: no memory for %zu bytes", root_rank,
                  (size_t)comm->world * sizeof *all);
        return coll_state(comm, error);
    }
    result = coll_exchange(comm, &verdict, sizeof verdict, all);
    if (result != ZERO_OK)
        coll_state(comm, error);
    for (int rank = 0; rank < comm->world && result == ZERO_OK; rank++) {
        if (values)
            values[rank] = all[rank].value;
        if (all[rank].result != ZERO_OK)
            result = zero_fail(error, base_failure_of(all[rank].result, ZERO_E_PEER), "%.*s",
                               COLL_MESSAGE_BYTES - 1, all[rank].message);
    }
    base_free(all);
    return result;
}
