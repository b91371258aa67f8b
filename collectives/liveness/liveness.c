#include "collectives/liveness/liveness.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/futex.h"
#include "base/thread.h"
#include "collectives/host/host.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>

enum { STACK_BYTES = 256 * 1024 };

static const uint64_t longest_tick_ns = UINT64_C(1000000000);
static const uint64_t shortest_tick_ns = UINT64_C(1000000);

enum phase { STARTING, READY, WATCHING, STOPPING };

struct coll_live {
    struct coll_comm *root;
    struct live_cell **cells; // of every rank
    struct live_cell *own;
    uint64_t stall_ns, tick_ns; // 0: no ticks
    uint64_t next_tick_ns;
    int watched;        // the rank whose beat was seen last, -1 none
    uint32_t seen_beat; // what it was,
    uint64_t silent;    // and the ticks since it changed
    pthread_t thread;
    int failed;                            // errno of set_robust_list()
    struct robust_list_head head;          // what the kernel looks at when the thread ends:
    struct robust_list entry;              // one word
    _Atomic uint32_t phase;                // enum phase
    _Atomic uint32_t ended;                // 1: the thread touches nothing any more
    _Atomic(_Atomic uint32_t *) sleeps_on; // a word of another rank's
};

/* ------------------------------------------------------------------ the thread's own word */

// The list's entry need not lie beside its word: the kernel adds head.futex_offset.
static bool take_word(struct coll_live *live)
{
    live->entry.next = &live->head.list;
    live->head = (struct robust_list_head){
        .list.next = &live->entry,
        .futex_offset = (long)((intptr_t)&live->own->word - (intptr_t)&live->entry),
    };
    if (syscall(SYS_set_robust_list, &live->head, sizeof live->head) != 0) {
        live->failed = errno;
        return false;
    }
    atomic_store(&live->own->word, (uint32_t)gettid());
    return true;
}

// In this order: a thread that is killed in between has left.
static void give_word_back(struct coll_live *live)
{
    atomic_store(&live->own->word, 0);
    live->head.list.next = &live->head.list;
    base_futex_wake(&live->own->word, INT_MAX, true);
}

/* ------------------------------------------------------------------ watching */

/** The rank after this one that has neither left nor given up, -1 if there is none. */
static int next_rank(const struct coll_live *live)
{
    const struct coll_comm *root = live->root;
    for (int i = 1; i < root->world; i++) {
        const int rank = (root->rank + i) % root->world;
        if (atomic_load(&live->cells[rank]->word) != 0 && !coll_host_left(root, rank))
            return rank;
    }
    return -1;
}

static void report_silence(const struct coll_live *live, int rank)
{
    assert(rank >= 0 && rank < live->root->world && rank != live->root->rank);
    char call[COLL_TEXT_BYTES], message[COLL_MESSAGE_BYTES];
    coll_host_last_call(live->root, rank, call, sizeof call);
    snprintf(message, sizeof message,
             "rank %d has given no sign of life for %.1f s (its process is stopped or starved); "
             "its last call: %s",
             rank, (double)(live->silent * live->tick_ns) * 1e-9, call);
    coll_poison(live->root, ZERO_E_TIMEOUT, message);
}

static void report_death(const struct coll_live *live, int rank)
{
    assert(rank >= 0 && rank < live->root->world && rank != live->root->rank);
    char message[COLL_MESSAGE_BYTES], call[COLL_TEXT_BYTES];
    const struct host_block *own = coll_host_own(live->root);
    const bool inside = atomic_load(&own->posted) > atomic_load(&own->consumed);
    coll_host_last_call(live->root, live->root->rank, call, sizeof call);
    coll_death_text(live->root, rank, inside ? call : NULL, message);
    coll_poison(live->root, ZERO_E_PEER, message);
}

/** Beats, and looks whether the other one does. */
static void tick(struct coll_live *live, int rank)
{
    assert(live->stall_ns > 0 && live->tick_ns > 0);
    atomic_fetch_add(&live->own->beat, 1);
    const uint32_t beat = atomic_load(&live->cells[rank]->beat);
    live->silent = rank == live->watched && beat == live->seen_beat ? live->silent + 1 : 0;
    live->watched = rank;
    live->seen_beat = beat;
    if (live->silent * live->tick_ns >= live->stall_ns)
        report_silence(live, rank);
}

/** How long to sleep; ticks if it is time to. */
static uint64_t until_tick(struct coll_live *live, int rank)
{
    if (live->stall_ns == 0)
        return BASE_FUTEX_FOREVER;
    const uint64_t now = base_clock_ns();
    if (now < live->next_tick_ns)
        return live->next_tick_ns - now;
    tick(live, rank);
    live->next_tick_ns = now + live->tick_ns;
    return live->tick_ns;
}

/**
 * Brings the rank's thread to the processor that this one has. The last thread of a
 * process that dies takes its memory down, for as long as 70 ms a GiB, in a kernel that may not be
 * preempted there, and not always where that process ran: a rank that was preempted for it is
 * ready and gets no processor, though others are free, until the scheduler looks, at a tick.
 * Seen: 4 ms, in place of 0.1.
 */
static void fetch_thread(const struct coll_live *live)
{
    cpu_set_t allowed, here;
    const int cpu = sched_getcpu();
    const pid_t thread = live->root->comm_world->thread;
    if (tgkill(getpid(), thread, 0) != 0 || cpu < 0 || cpu >= CPU_SETSIZE ||
        sched_getaffinity(thread, sizeof allowed, &allowed) != 0 ||
        !CPU_ISSET((size_t)cpu, &allowed))
        return;
    CPU_ZERO(&here);
    CPU_SET((size_t)cpu, &here);
    if (sched_setaffinity(thread, sizeof here, &here) == 0)
        sched_setaffinity(thread, sizeof allowed, &allowed);
}

/** The comm world has failed: the threads of the other ranks learn it too, and end their waits. */
static void pass_on(const struct coll_live *live)
{
    for (int rank = 0; rank < live->root->world; rank++)
        base_futex_wake(&live->cells[rank]->word, INT_MAX, true);
    fetch_thread(live);
}

/** Sleeps until something happens to the next rank, or for a tick. */
static void watch_next(struct coll_live *live)
{
    const int rank = next_rank(live);
    const bool failed = coll_failed(live->root) != ZERO_OK;
    if (failed)
        pass_on(live);
    if (rank < 0 || failed) {
        base_futex_wait(&live->phase, WATCHING, BASE_FUTEX_FOREVER, false);
        return;
    }
    const uint64_t timeout_ns = until_tick(live, rank);
    _Atomic uint32_t *word = &live->cells[rank]->word;
    uint32_t value = atomic_load(word);
    if (value & FUTEX_OWNER_DIED && !coll_host_left(live->root, rank)) {
        report_death(live, rank);
        return;
    }
    // The kernel, and a rank that leaves, wake no waiter without this flag.
    if (value == 0 || value & FUTEX_OWNER_DIED ||
        (!(value & FUTEX_WAITERS) &&
         !atomic_compare_exchange_strong(word, &value, value | FUTEX_WAITERS)))
        return;
    atomic_store(&live->sleeps_on, word);
    if (atomic_load(&live->phase) == WATCHING)
        base_futex_wait(word, value | FUTEX_WAITERS, timeout_ns, true);
}

static void *run(void *argument)
{
    struct coll_live *live = argument;
    prctl(PR_SET_NAME, "zero-live");
    take_word(live);
    atomic_store(&live->phase, READY);
    base_futex_wake(&live->phase, INT_MAX, false);
    while (atomic_load(&live->phase) == READY)
        base_futex_wait(&live->phase, READY, BASE_FUTEX_FOREVER, false);
    while (atomic_load(&live->phase) == WATCHING)
        watch_next(live);
    if (live->failed == 0)
        give_word_back(live);
    atomic_store(&live->ended, 1);
    base_futex_wake(&live->ended, INT_MAX, false);
    return NULL;
}

/* ------------------------------------------------------------------ life */

static uint64_t tick_of(uint64_t stall_ns)
{
    const uint64_t tick_ns = stall_ns / 8;
    if (tick_ns < shortest_tick_ns)
        return shortest_tick_ns;
    return tick_ns < longest_tick_ns ? tick_ns : longest_tick_ns;
}

static struct coll_live *create(struct coll_comm *root, struct live_cell *const *cells,
                                uint64_t stall_ns)
{
    assert(root == root->comm_world->root && cells[root->rank]);
    struct coll_live *live = base_calloc(1, sizeof *live);
    struct live_cell **copy = base_calloc((size_t)root->world, sizeof(struct live_cell *));
    if (!live || !copy) {
        base_free(live);
        base_free(copy);
        return NULL;
    }
    for (int rank = 0; rank < root->world; rank++)
        copy[rank] = cells[rank];
    live->root = root;
    live->cells = copy;
    live->own = copy[root->rank];
    live->stall_ns = stall_ns;
    live->tick_ns = tick_of(stall_ns);
    live->watched = -1;
    return live;
}

zero_result coll_live_start(struct coll_live **live, struct coll_comm *root,
                            struct live_cell *const *cells, uint64_t stall_ns,
                            struct base_error *error)
{
    *live = NULL;
    struct coll_live *made = create(root, cells, stall_ns);
    if (!made)
        return zero_fail(error, ZERO_E_NOMEM, "rank %d: no memory to watch over the ranks",
                         root->rank);
    const int failed = base_thread_start(&made->thread, "live.thread", STACK_BYTES, run, made);
    if (failed != 0) {
        base_free(made->cells);
        base_free(made);
        return zero_fail_errno(error, ZERO_E_NOMEM, failed,
                               "rank %d: a thread that watches over the ranks", root->rank);
    }
    while (atomic_load(&made->phase) == STARTING)
        base_futex_wait(&made->phase, STARTING, BASE_FUTEX_FOREVER, false);
    if (made->failed != 0) {
        const int errnum = made->failed;
        coll_live_stop(made);
        return zero_fail_errno(error, ZERO_E_UNSUPPORTED, errnum, "rank %d: set_robust_list",
                               root->rank);
    }
    *live = made;
    return ZERO_OK;
}

void coll_live_watch(struct coll_live *live)
{
    assert(atomic_load(&live->phase) == READY);
    live->next_tick_ns = base_clock_ns();
    atomic_store(&live->phase, WATCHING);
    base_futex_wake(&live->phase, INT_MAX, false);
}

void coll_live_stop(struct coll_live *live)
{
    if (!live)
        return;
    atomic_store(&live->phase, STOPPING);
    base_futex_wake(&live->phase, INT_MAX, false);
    // It may be about to sleep on another rank's word, which stays as it is: it is woken until it
    // has seen the phase. That rank's other watchers look again, and no harm is done.
    while (atomic_load(&live->ended) == 0) {
        _Atomic uint32_t *word = atomic_load(&live->sleeps_on);
        if (word)
            base_futex_wake(word, INT_MAX, true);
        base_futex_wait(&live->ended, 0, UINT64_C(1000000), false);
    }
    pthread_join(live->thread, NULL);
    base_free(live->cells);
    base_free(live);
}
