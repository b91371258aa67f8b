// How a rank waits: it spins, then yields, then sleeps on a futex, and looks for what will never
// come between the sleeps.

#include "base/clock.h"
#include "base/cpu.h"
#include "base/reminder.h"
#include "collectives/comm/call_log.h"

#include <assert.h>
#include <sched.h>
#include <stdio.h>

/** The longest sleep: how late a time-out is noticed, and a death that no other rank has seen. */
#define SLEEP_NS UINT64_C(10000000)

/** The most that counts as waited between two looks at the clock. */
#define RUNNING_NS (10 * SLEEP_NS)

/** How often spin_ns is halved while peers come late: on a machine that others use too. */
enum { MOST_DOUBT = 5 };

/** Rounds of a wait after which sleeping peers are told what was changed before it: a wait that
 * ends sooner tells them at its end, all at once. Fewer than any number of spins. Peers that are
 * polled for are told at once. */
enum { TELL_ROUNDS = 3 };

struct waiter {
    unsigned rounds;           /**< without progress, */
    unsigned yields;           /**< and those of them that yielded */
    bool polls;                /**< the transport's poll() was called, and not yet poll_end() */
    bool announced;            /**< sleep_begin() was called, and nothing was looked at since */
    struct base_reminder said; /**< when this rank says that it waits */
    struct coll_clock clock;   /**< the time without progress, */
    uint64_t checked_ns;       /**< and what that was at the last look at the peers */
};

static bool reached(const struct coll_comm *comm, const struct coll_request *request,
                    enum coll_goal goal)
{
    switch (goal) {
    case COLL_GOAL_COMPLETE:
        return request->state != COLL_STARTED;
    case COLL_GOAL_DRAINED:
        return comm->transport->drained(comm, request);
    case COLL_GOAL_ROOM:
        break;
    }
    for (int rank = 0; rank < comm->world; rank++)
        if (comm->transport->presence(comm, request, goal, rank) != COLL_PRESENT)
            return false;
    return true;
}

/** What is waited for, as text: the request, or, for its completion or room, the one in its way. */
static void describe(const struct coll_comm *comm, const struct coll_request *request,
                     enum coll_goal goal, char text[COLL_TEXT_BYTES])
{
    const bool in_order = goal == COLL_GOAL_COMPLETE && !coll_is_message(request);
    const struct coll_request *shown = in_order ? comm->queue.first : request;
    assert(shown);
    struct coll_signature signature;
    coll_signature_make(&signature, comm, shown);
    coll_signature_text(&signature, shown->sequence, text);
}

/** Adds the ranks that are waited for, with their last calls. */
static void list_absent(const struct coll_comm *comm, const struct coll_request *request,
                        enum coll_goal goal, struct base_text *text)
{
    struct coll_absent absent = {.used = 0};
    char last[COLL_TEXT_BYTES];
    for (int rank = 0; rank < comm->world; rank++) {
        if ((rank == comm->rank && !coll_is_message(request)) ||
            comm->transport->presence(comm, request, goal, rank) == COLL_PRESENT)
            continue;
        comm->transport->last_call(comm, rank, last, sizeof last);
        coll_absent_add(&absent, coll_root_rank(comm, rank), last);
    }
    coll_absent_text(&absent, text);
}

/** What the ranks that are waited for have to do. */
static const char *const wanted[] = {
    [COLL_GOAL_COMPLETE] = "to come",
    [COLL_GOAL_DRAINED] = "to have read its part",
    [COLL_GOAL_ROOM] = "to finish earlier operations",
};

uint64_t coll_first_reminder(uint64_t remind_ns, uint64_t timeout_ns)
{
    const uint64_t first_ns = remind_ns ? remind_ns : BASE_REMINDER_NS;
    return first_ns < timeout_ns / 2 ? first_ns : 1 + timeout_ns / 2;
}

/** Says that this rank waits, for what, and for which ranks, in words that are the same on every
 * rank that does: zero-run shows equal lines once. The others may be in another communicator, and
 * wait for this one there. */
static void remind(const struct coll_comm *comm, const struct coll_request *request,
                   enum coll_goal goal, uint64_t waited_ns)
{
    assert(goal <= COLL_GOAL_ROOM);
    char operation[COLL_TEXT_BYTES], ranks[COLL_MESSAGE_BYTES / 2] = "";
    char of[COLL_NAME_BYTES + sizeof " of \"\""] = "";
    if (!base_log_passes(comm->comm_world->log, ZERO_LOG_WARN, "coll"))
        return;
    describe(comm, request, goal, operation);
    list_absent(comm, request, goal, &(struct base_text){ranks, sizeof ranks, 0});
    if (!coll_is_alone(comm))
        snprintf(of, sizeof of, " of \"%s\"", comm->name);
    base_logf(comm->comm_world->log, ZERO_LOG_WARN, "coll",
              "the ranks in %s%s have waited %.0f s for %s %s", operation, of,
              (double)waited_ns * 1e-9, ranks, wanted[goal]);
}

/** A wait that was spoken of has ended well: the next one is spoken of after twice as long. */
static void learn(struct coll_comm_world *comm_world, const struct waiter *waiter)
{
    if (waiter->said.next_ns == 0)
        return;
    const uint64_t longer_ns = 2 * waiter->clock.waited_ns;
    if (longer_ns > comm_world->remind_ns)
        comm_world->remind_ns = coll_first_reminder(longer_ns, comm_world->timeout_ns);
}

static void declare_timeout(struct coll_comm *comm, const struct coll_request *request,
                            enum coll_goal goal, uint64_t waited_ns)
{
    assert(goal <= COLL_GOAL_ROOM);
    char operation[COLL_TEXT_BYTES], ranks[COLL_MESSAGE_BYTES / 2] = "";
    describe(comm, request, goal, operation);
    list_absent(comm, request, goal, &(struct base_text){ranks, sizeof ranks, 0});
    coll_declare(comm, ZERO_E_TIMEOUT, "rank %d waited %.1f s in %s for %s %s",
                 coll_root_rank(comm, comm->rank), (double)waited_ns * 1e-9, operation, ranks,
                 wanted[goal]);
}

/** Declares a failure if the wait is in vain or too long. What was waited for may have come after
 * the last look at it, and who sent it have ended since: it is not too late for it. */
static void check_peers(struct coll_comm *comm, const struct coll_request *request,
                        enum coll_goal goal, uint64_t waited_ns)
{
    char operation[COLL_TEXT_BYTES];
    const int dead =
        comm->transport->dead_peer ? comm->transport->dead_peer(comm->comm_world->root) : -1;
    assert(dead < comm->comm_world->root->world);
    if (dead >= 0) {
        char message[COLL_MESSAGE_BYTES];
        describe(comm, request, goal, operation);
        coll_death_text(comm->comm_world->root, dead, operation, message);
        coll_declare(comm, ZERO_E_PEER, "%s", message);
        return;
    }
    for (int rank = 0; rank < comm->world; rank++) {
        if (comm->transport->presence(comm, request, goal, rank) != COLL_LEFT)
            continue;
        describe(comm, request, goal, operation);
        coll_declare(comm, ZERO_E_PEER,
                     "rank %d has closed the communicator, and rank %d waits for it in %s",
                     coll_root_rank(comm, rank), coll_root_rank(comm, comm->rank), operation);
        return;
    }
    if (waited_ns >= comm->comm_world->timeout_ns)
        declare_timeout(comm, request, goal, waited_ns);
}

uint64_t coll_waited(struct coll_clock *clock)
{
    const uint64_t now = base_clock_ns();
    assert(now >= clock->last_ns);
    if (clock->last_ns > 0) {
        const uint64_t passed = now - clock->last_ns;
        clock->waited_ns += passed < RUNNING_NS ? passed : RUNNING_NS;
    }
    clock->last_ns = now;
    return clock->waited_ns;
}

/** After progress: what comes next is another wait. */
static void start_over(struct coll_comm_world *comm_world, struct waiter *waiter)
{
    assert(comm_world->doubt <= MOST_DOUBT);
    if (waiter->rounds > 0 && waiter->yields == 0 && comm_world->doubt > 0)
        comm_world->doubt--;
    learn(comm_world, waiter);
    waiter->rounds = waiter->yields = 0;
    waiter->clock = (struct coll_clock){0};
    waiter->checked_ns = 0;
    waiter->said = (struct base_reminder){.first_ns = comm_world->remind_ns};
}

/** The thread that watches a rank needs a processor to say that it has died; who waits has one. */
static bool death_in_sight(const struct coll_comm *comm)
{
    const struct coll_transport *transport = comm->transport;
    return transport->dead_in_sight && transport->dead_in_sight(comm->comm_world->root) >= 0;
}

/** Only for small operations: what a rank does between two looks of a longer one may take long,
 * and its peers would wait for it. */
static void spin(struct coll_comm *comm, const struct coll_request *request, struct waiter *waiter)
{
    waiter->polls = comm->transport->poll && coll_kind_is_small(request->kind);
    if (waiter->polls)
        comm->transport->poll(comm);
    base_cpu_relax();
}

static void stop_polling(struct coll_comm *comm, struct waiter *waiter)
{
    if (waiter->polls)
        comm->transport->poll_end(comm);
    waiter->polls = false;
}

/** One step of waiting: the more steps without progress, the lazier. */
static void pause_once(struct coll_comm *comm, const struct coll_request *request,
                       enum coll_goal goal, struct waiter *waiter)
{
    struct coll_comm_world *comm_world = comm->comm_world;
    const unsigned round = waiter->rounds++;
    if (round == (comm->transport->poll ? 0 : TELL_ROUNDS))
        coll_wake_peers(comm);
    if (round >= comm_world->spins)
        coll_waited(&waiter->clock);
    const uint64_t waited_ns = waiter->clock.waited_ns;
    assert(waiter->checked_ns <= waited_ns);
    if (waiter->yields == 0 && waited_ns <= comm_world->spin_ns >> comm_world->doubt &&
        (round < comm_world->spins || comm_world->spin_ns > 0)) {
        spin(comm, request, waiter);
        return;
    }
    stop_polling(comm, waiter);
    if (waiter->yields == 0) {
        comm_world->doubt += comm_world->doubt < MOST_DOUBT;
        comm_world->counters.waits++;
    }
    if (waited_ns - waiter->checked_ns >= SLEEP_NS || waited_ns >= comm_world->timeout_ns ||
        death_in_sight(comm)) {
        waiter->checked_ns = waited_ns;
        check_peers(comm, request, goal, waited_ns);
        if (coll_failed(comm) != ZERO_OK)
            return;
        if (base_reminder_due(&waiter->said, waited_ns))
            remind(comm, request, goal, waited_ns);
    }
    if (waiter->yields++ < comm_world->yields) {
        sched_yield();
    } else if (!waiter->announced) {
        comm->transport->sleep_begin(comm);
        waiter->announced = true;
    } else {
        comm->transport->sleep(comm, SLEEP_NS);
        waiter->announced = false;
    }
}

/** Moves what can be moved in the whole comm world. ZERO_AGAIN: nothing could. */
static zero_result progress_comm_world(struct coll_comm *comm)
{
    zero_result result = ZERO_AGAIN;
    for (struct coll_comm *each = comm->comm_world->comms; each; each = each->next) {
        const zero_result moved = each->transport->progress(each);
        if (moved < 0)
            return moved;
        if (moved == ZERO_OK)
            result = ZERO_OK;
    }
    return result;
}

zero_result coll_wait_for(struct coll_comm *comm, struct coll_request *request, enum coll_goal goal)
{
    struct waiter waiter = {.said = {.first_ns = comm->comm_world->remind_ns}};
    bool last = false;
    zero_result result = comm->comm_world->stopped ? coll_failed(comm) : ZERO_OK;
    while (result == ZERO_OK) {
        result = progress_comm_world(comm);
        if (result < 0)
            break;
        if (result == ZERO_OK)
            start_over(comm->comm_world, &waiter);
        result = ZERO_OK;
        if (reached(comm, request, goal))
            break;
        // What all ranks have come to is completed even if one failed later: what was posted
        // before the failure is seen after it.
        if (last)
            result = coll_stop(comm);
        else if (coll_failed(comm) != ZERO_OK)
            last = true;
        else
            pause_once(comm, request, goal, &waiter);
    }
    if (result == ZERO_OK)
        learn(comm->comm_world, &waiter);
    stop_polling(comm, &waiter);
    if (waiter.announced)
        comm->transport->sleep_end(comm);
    coll_wake_peers(comm);
    return result;
}
