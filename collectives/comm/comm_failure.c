#include "collectives/comm/comm_internal.h"
#include "collectives/comm/signature.h"
#include "collectives/control/control.h"

#include "base/forked.h"

#include <assert.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// A message is written in microseconds, if its writer gets a processor, for which it may wait; who
// died over it will not finish.
enum { MESSAGE_YIELDS = 1000, MESSAGE_SLEEPS = 2000 };

bool coll_in_child(const struct coll_comm *comm)
{
    return comm->comm_world->generation != base_generation();
}

static zero_result refuse_child(const struct coll_comm *comm, struct base_error *error)
{
    return zero_fail(error, ZERO_E_STATE,
                     "process %d was forked from rank %d's, which alone may use what it has "
                     "opened: let the child call exec, or open a job of its own",
                     (int)getpid(), comm->comm_world->root->rank);
}

zero_result coll_failed(const struct coll_comm *comm)
{
    if (coll_in_child(comm))
        return ZERO_E_STATE;
    // Sequentially consistent, as the sleeper's word is: one that says that it sleeps after this
    // has been set is woken, one that says so before sees it.
    const uint32_t state = atomic_load(&comm->comm_world->poison->state);
    return (zero_result) - (int)(state & ~COLL_POISON_READY);
}

zero_result coll_stop(struct coll_comm *comm)
{
    const zero_result result = coll_failed(comm);
    if (result != ZERO_OK) {
        if (!comm->comm_world->stopped && comm->transport->revoke)
            comm->transport->revoke(comm->comm_world->root);
        comm->comm_world->stopped = true;
        for (struct coll_comm *each = comm->comm_world->comms; each; each = each->next)
            each->queue = each->messages = (struct coll_queue){NULL, NULL};
    }
    return result;
}

bool coll_poison(struct coll_comm *comm, zero_result result, const char *message)
{
    assert(result < 0 && message);
    struct coll_poison *poison = comm->comm_world->poison;
    uint32_t none = 0;
    if (coll_in_child(comm)) // what is wrong with a child is no failure of its parent's
        return false;
    const bool first = atomic_compare_exchange_strong(&poison->state, &none, (uint32_t)-result);
    if (first) {
        snprintf(poison->message, sizeof poison->message, "%s", message);
        atomic_store_explicit(&poison->state, (uint32_t)-result | COLL_POISON_READY,
                              memory_order_release);
    }
    comm->transport->wake(comm->comm_world->root);
    return first;
}

void coll_death_text(const struct coll_comm *root, int rank, const char *where,
                     char message[COLL_MESSAGE_BYTES])
{
    assert(rank >= 0 && rank < root->world);
    char call[COLL_TEXT_BYTES], own[COLL_TEXT_BYTES];
    control_note_lost(root->comm_world->control, rank);
    root->transport->last_call(root, rank, call, sizeof call);
    root->transport->last_call(root, root->rank, own, sizeof own);
    const char *host = coll_host(root, rank);
    snprintf(message, COLL_MESSAGE_BYTES, "rank %d died%s%s; its last call: %s; rank %d%s %s", rank,
             *host ? " on " : "", host, call, root->rank,
             where ? " was in" : "'s last call:", where ? where : own);
}

static void declare(struct coll_comm *comm, zero_result result, const char *format,
                    va_list arguments)
{
    char message[COLL_MESSAGE_BYTES] = "";
    if (comm->root_ranks)
        snprintf(message, sizeof message, "group %s: ", comm->name);
    const size_t used = strlen(message);
    assert(used < sizeof message);
    vsnprintf(message + used, sizeof message - used, format, arguments);
    coll_poison(comm, result, message);
}

void coll_declare(struct coll_comm *comm, zero_result result, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    declare(comm, result, format, arguments);
    va_end(arguments);
}

zero_result coll_fail(struct coll_comm *comm, zero_result result, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    declare(comm, result, format, arguments);
    va_end(arguments);
    return coll_stop(comm);
}

void coll_point_hit(struct coll_comm *comm, uint32_t kind, const char *where)
{
    char point[BASE_FAULT_POINT_BYTES], message[COLL_MESSAGE_BYTES];
    snprintf(point, sizeof point, "coll.%s.%s", coll_kind_name(kind), where);
    const int failed = base_fault(point);
    if (failed == 0)
        return;
    snprintf(message, sizeof message, "rank %d: %s: %s", coll_root_rank(comm, comm->rank), point,
             strerrorname_np(failed));
    coll_poison(comm, ZERO_E_IO, message);
}

void coll_abort(struct coll_comm *comm, zero_result result, const char *reason)
{
    char message[COLL_MESSAGE_BYTES];
    const int rank = coll_root_rank(comm, comm->rank);
    snprintf(message, sizeof message, "rank %d: %.200s", rank,
             reason ? reason : base_result_text(result));
    // Ranks that fail because of this one may end before it does.
    if (coll_poison(comm, result < 0 ? result : ZERO_E_ABORTED, message))
        control_note_reason(comm->comm_world->control, rank,
                            reason ? reason : base_result_text(result));
}

zero_result coll_state(const struct coll_comm *comm, struct base_error *error)
{
    const zero_result result = coll_failed(comm);
    if (result == ZERO_OK || !error)
        return result;
    if (coll_in_child(comm))
        return refuse_child(comm, error);
    // Who has waited in vain once does not do so again: there are many calls that say why they
    // fail.
    for (int i = 0;; i++) {
        if (atomic_load_explicit(&comm->comm_world->poison->state, memory_order_acquire) &
            COLL_POISON_READY)
            return zero_fail(error, result, "%s", comm->comm_world->poison->message);
        if (comm->comm_world->unwritten || i == MESSAGE_YIELDS + MESSAGE_SLEEPS)
            break;
        if (i < MESSAGE_YIELDS)
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    comm->comm_world->unwritten = true;
    return zero_fail(error, result, "%s", base_result_text(result));
}
