#include "collectives/internal.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define COLL_POISON_READY UINT32_C(0x80000000)

// A message is written in microseconds; who died over it will not finish.
enum { MESSAGE_YIELDS = 1000 };

zero_result coll_failed(const struct coll_comm *comm)
{
    const uint32_t state = atomic_load_explicit(&comm->family->poison->state, memory_order_acquire);
    return (zero_result) - (int)(state & ~COLL_POISON_READY);
}

zero_result coll_stop(struct coll_comm *comm)
{
    const zero_result result = coll_failed(comm);
    if (result != ZERO_OK) {
        comm->family->stopped = true;
        for (struct coll_comm *each = comm->family->comms; each; each = each->next)
            each->queue = each->receives = (struct coll_queue){NULL, NULL};
    }
    return result;
}

void coll_poison(struct coll_comm *comm, zero_result result, const char *message)
{
    struct coll_poison *poison = comm->family->poison;
    uint32_t none = 0;
    if (atomic_compare_exchange_strong(&poison->state, &none, (uint32_t)-result)) {
        snprintf(poison->message, sizeof poison->message, "%s", message);
        atomic_store_explicit(&poison->state, (uint32_t)-result | COLL_POISON_READY,
                              memory_order_release);
    }
    comm->transport->wake(comm->family->root);
}

zero_result coll_fail(struct coll_comm *comm, zero_result result, const char *format, ...)
{
    char message[COLL_MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    coll_poison(comm, result, message);
    return coll_stop(comm);
}

void coll_abort(struct coll_comm *comm, zero_result result, const char *reason)
{
    char message[COLL_MESSAGE_BYTES];
    snprintf(message, sizeof message, "rank %d: %.200s", coll_root_rank(comm, comm->rank),
             reason ? reason : base_result_text(result));
    coll_poison(comm, result < 0 ? result : ZERO_E_ABORTED, message);
}

zero_result coll_state(const struct coll_comm *comm, struct base_error *error)
{
    const zero_result result = coll_failed(comm);
    if (result == ZERO_OK)
        return ZERO_OK;
    for (int i = 0; i < MESSAGE_YIELDS; i++) {
        if (atomic_load_explicit(&comm->family->poison->state, memory_order_acquire) &
            COLL_POISON_READY)
            return zero_fail(error, result, "%s", comm->family->poison->message);
        sched_yield();
    }
    return zero_fail(error, result, "%s", base_result_text(result));
}
