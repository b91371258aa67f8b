#include "tests/fault/coll_harm.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/hash.h"
#include "collectives/rendezvous/mesh.h"
#include "tests/unit/port.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

// A rank that touches gigabytes takes its time before the others meet it.
enum { TURNS = 20000, PATIENCE_S = 30, TOUCHING_S = 120 };

struct verdict {
    zero_result result;
    bool steady; // later calls returned the same
    uint64_t returned_ns;
    char message[HARM_MESSAGE];
};

struct harm_shared {
    _Atomic uint64_t harmed_ns; // 0: not yet
    _Atomic pid_t child;
    struct verdict verdicts[HARM_RANKS];
};

/* ------------------------------------------------------------------ operations */

static const struct coll_label label = {.what = "unit", .number = 17, .name = "h.4"};

static zero_result drain(struct harm_rank *rank, zero_result started)
{
    return started == ZERO_OK ? coll_drain(rank->comm, &rank->requests[0]) : started;
}

static zero_result gather(struct harm_rank *rank, const void *source)
{
    const struct coll_all_gather op = {
        .source = source, .recv = rank->result, .spans = rank->bytes, .label = label};
    return drain(rank, coll_all_gather_start(rank->comm, &op, &rank->requests[0]));
}

static zero_result all_gather(struct harm_rank *rank)
{
    return gather(rank, rank->source);
}

/** The same from memory that is in no arena. */
static zero_result private_all_gather(struct harm_rank *rank)
{
    return gather(rank, rank->sum);
}

static zero_result publication(struct harm_rank *rank)
{
    const struct coll_all_gather op = {.spans = rank->bytes, .label = label};
    return drain(rank, coll_all_gather_start(rank->comm, &op, &rank->requests[0]));
}

static zero_result reduce(struct harm_rank *rank, const void *source)
{
    const struct coll_reduce_scatter op = {.source = source,
                                           .dtype = ZERO_F32,
                                           .spans = rank->elements,
                                           .accumulator = rank->sum,
                                           .contributors = coll_world(rank->comm),
                                           .store = true,
                                           .label = label};
    return drain(rank, coll_reduce_scatter_start(rank->comm, &op, &rank->requests[0]));
}

static zero_result reduce_scatter(struct harm_rank *rank)
{
    return reduce(rank, rank->source);
}

static zero_result private_reduce_scatter(struct harm_rank *rank)
{
    return reduce(rank, rank->result);
}

static zero_result bulk_all_reduce(struct harm_rank *rank)
{
    const struct coll_all_reduce op = {.source = rank->source,
                                       .result = rank->source,
                                       .count = HARM_ELEMENTS,
                                       .dtype = ZERO_F32,
                                       .label = label};
    return drain(rank, coll_all_reduce_start(rank->comm, &op, &rank->requests[0]));
}

static zero_result bulk_broadcast(struct harm_rank *rank)
{
    const struct coll_bulk_broadcast op = {.data = rank->source,
                                           .bytes = rank->bytes[0].count,
                                           .root = rank->turn++ % coll_world(rank->comm),
                                           .label = label};
    return drain(rank, coll_broadcast_start(rank->comm, &op, &rank->requests[0]));
}

static zero_result all_to_all(struct harm_rank *rank)
{
    const struct coll_all_to_all op = {.source = rank->source,
                                       .recv = rank->result,
                                       .send = rank->bytes,
                                       .recv_spans = rank->bytes,
                                       .label = label};
    return drain(rank, coll_all_to_all_start(rank->comm, &op, &rank->requests[0]));
}

static zero_result exchange(struct harm_rank *rank)
{
    return coll_exchange(rank->comm, rank->sum, 1000, rank->result);
}

static zero_result all_reduce_doubles(struct harm_rank *rank)
{
    double values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    return coll_all_reduce(rank->comm, values, 8, BASE_SUM);
}

static zero_result broadcast(struct harm_rank *rank)
{
    return coll_broadcast(rank->comm, rank->sum, 1000, rank->turn++ % coll_world(rank->comm));
}

static zero_result barrier(struct harm_rank *rank)
{
    return coll_barrier(rank->comm);
}

/** Every rank sends to the next one; which call comes last differs. */
static zero_result pass_on(struct harm_rank *rank, bool send_last)
{
    const int world = coll_world(rank->comm), own = coll_rank(rank->comm);
    const struct coll_message send = {.data = rank->source,
                                      .bytes = rank->bytes[0].count,
                                      .peer = (own + 1) % world,
                                      .label = label};
    const struct coll_message receive = {.data = rank->result,
                                         .bytes = rank->bytes[0].count,
                                         .peer = (own + world - 1) % world,
                                         .label = label};
    zero_result result = send_last ? coll_receive_start(rank->comm, &receive, &rank->requests[0])
                                   : coll_send_start(rank->comm, &send, &rank->requests[1]);
    if (result == ZERO_OK)
        result = send_last ? coll_send_start(rank->comm, &send, &rank->requests[1])
                           : coll_receive_start(rank->comm, &receive, &rank->requests[0]);
    if (result == ZERO_OK)
        result = coll_drain(rank->comm, &rank->requests[0]);
    return result == ZERO_OK ? coll_drain(rank->comm, &rank->requests[1]) : result;
}

static zero_result receive_last(struct harm_rank *rank)
{
    return pass_on(rank, false);
}

static zero_result send_last(struct harm_rank *rank)
{
    return pass_on(rank, true);
}

/** A barrier of a group that has all ranks. */
static zero_result group_barrier(struct harm_rank *rank)
{
    struct base_error error = {0};
    if (!rank->group && coll_split(rank->comm, 0, 0, &rank->group, &error) != ZERO_OK)
        return coll_state(rank->comm, NULL);
    return coll_barrier(rank->group);
}

/** Private memory is asked for, and copied by its owner. */
#define NO_PEEKING "shm.peek:eperm@1+"

const struct harm_operation harm_operations[] = {
    {"all-gather", "all-gather", "unit 17 (h.4)", true, true, all_gather, NULL},
    {"publication", "all-gather", "unit 17 (h.4)", true, true, publication, NULL},
    {"reduce-scatter", "reduce-scatter", "unit 17 (h.4)", true, true, reduce_scatter, NULL},
    {"private all-gather", "all-gather", "unit 17 (h.4)", true, true, private_all_gather, NULL},
    {"private reduce-scatter", "reduce-scatter", "unit 17 (h.4)", true, true,
     private_reduce_scatter, NULL},
    {"copied all-gather", "all-gather", "unit 17 (h.4)", true, true, private_all_gather,
     NO_PEEKING},
    {"copied reduce-scatter", "reduce-scatter", "unit 17 (h.4)", true, true, private_reduce_scatter,
     NO_PEEKING},
    {"bulk all-reduce", "all-reduce", "unit 17 (h.4)", true, true, bulk_all_reduce, NULL},
    {"bulk broadcast", "broadcast", "unit 17 (h.4)", true, true, bulk_broadcast, NULL},
    {"all-to-all", "all-to-all", "unit 17 (h.4)", true, true, all_to_all, NULL},
    {"exchange", "exchange", "", true, true, exchange, NULL},
    {"all-reduce of doubles", "all-reduce", "", true, true, all_reduce_doubles, NULL},
    {"small broadcast", "broadcast", "", true, true, broadcast, NULL},
    {"barrier", "barrier", "", true, false, barrier, NULL},
    {"group's barrier", "barrier", " in harm/", true, false, group_barrier, NULL},
    {"receive", "receive", "unit 17 (h.4)", true, true, receive_last, NULL},
    {"send", "send", "unit 17 (h.4)", false, false, send_last, NULL},
};
const int harm_operation_count = sizeof harm_operations / sizeof *harm_operations;

bool harm_differs(const char *transport, const struct harm_operation *operation)
{
    return !transport || !operation->opened_with; // no rank looks into another one's memory
}

/* ------------------------------------------------------------------ one rank */

static void note_harm(void *user)
{
    struct harm_shared *shared = user;
    atomic_store(&shared->harmed_ns, base_clock_ns());
}

static void *kill_later(void *user)
{
    const struct harm *harm = user;
    usleep(harm->killed_us);
    note_harm(harm->shared);
    kill(getpid(), SIGKILL);
    return NULL;
}

static void touch(size_t bytes)
{
    unsigned char *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; memory != MAP_FAILED && i < bytes; i += 4096)
        memory[i] = 1;
}

static void leave_child(struct harm_shared *shared)
{
    const pid_t child = fork();
    if (child == 0)
        for (;;)
            pause();
    atomic_store(&shared->child, child);
}

static bool prepare(struct harm_rank *rank)
{
    const size_t world = (size_t)coll_world(rank->comm), bytes = HARM_ELEMENTS * sizeof(float);
    if (coll_arena_create(rank->comm, world * bytes, &rank->arena, NULL) != ZERO_OK)
        return false;
    rank->source = coll_arena_base(rank->arena);
    rank->result = calloc(world, bytes);
    rank->sum = calloc(1, bytes);
    for (size_t r = 0; r < world; r++) {
        rank->elements[r] = (struct coll_span){r * HARM_ELEMENTS, HARM_ELEMENTS};
        rank->bytes[r] = (struct coll_span){r * bytes, bytes};
    }
    return rank->result && rank->sum;
}

/** Prepares the harm in the victim. All ranks come to a barrier before and after. */
static zero_result meet_fate(const struct harm *harm, struct coll_comm *comm, bool victim)
{
    pthread_t thread;
    if (victim && harm->touched > 0)
        touch(harm->touched);
    if (victim && harm->leaves_child)
        leave_child(harm->shared);
    zero_result result = coll_barrier(comm);
    if (result != ZERO_OK || !victim)
        return result;
    base_fault_witness(note_harm, harm->shared);
    if (harm->fault[0])
        return base_fault_set(harm->fault, NULL);
    return pthread_create(&thread, NULL, kill_later, (void *)(uintptr_t)harm) == 0 ? ZERO_OK
                                                                                   : ZERO_E_NOMEM;
}

/** Whether all calls go on failing as the first one did. */
static bool is_steady(struct harm_rank *rank, const struct harm *harm,
                      const struct verdict *verdict)
{
    struct base_error error = {0};
    double one = 1;
    bool steady = true;
    for (int i = 0; i < 2; i++) {
        steady &= harm->operation->run(rank) == verdict->result;
        steady &= coll_barrier(rank->comm) == verdict->result;
        steady &= coll_all_reduce(rank->comm, &one, 1, BASE_MAX) == verdict->result;
        steady &= coll_progress(rank->comm) == verdict->result;
    }
    steady &= coll_state(rank->comm, &error) == verdict->result;
    return steady && strcmp(error.message, verdict->message) == 0;
}

static void be_rank(const struct harm *harm, const char *job, const struct boot_master *master,
                    int number)
{
    struct verdict *verdict = &harm->shared->verdicts[number];
    struct harm_rank rank = {0};
    struct base_error error = {0};
    const struct coll_config config = {.transport = harm->transport ? harm->transport : "shm",
                                       .master = master,
                                       .rank = number,
                                       .world = harm->world,
                                       .job = job,
                                       .name = "harm",
                                       .timeout_ns = UINT64_C(1000000000) *
                                                     (harm->touched > 0 ? TOUCHING_S : 20),
                                       .stall_ns = harm->stall_ns};
    if (harm->operation->opened_with)
        base_fault_set(harm->operation->opened_with, NULL);
    zero_result result = coll_open(&rank.comm, &config, &error);
    base_fault_set(NULL, NULL);
    if (result == ZERO_OK && !prepare(&rank))
        result = ZERO_E_NOMEM;
    if (result == ZERO_OK)
        result = meet_fate(harm, rank.comm, number == harm->victim);
    // A fault comes within so many turns; a kill comes at its time, however many there are.
    for (int turn = 0; (turn < TURNS || !harm->fault[0]) && result == ZERO_OK; turn++)
        result = harm->operation->run(&rank);
    verdict->returned_ns = base_clock_ns();
    verdict->result = result;
    if (rank.comm)
        coll_state(rank.comm, &error);
    snprintf(verdict->message, sizeof verdict->message, "%s", error.message);
    verdict->steady = rank.comm && result < 0 && is_steady(&rank, harm, verdict);
    coll_close(rank.comm);
}

/* ------------------------------------------------------------------ the job */

void harm_start(struct harm *harm)
{
    static unsigned jobs;
    char job[64];
    struct boot_master master = {.address = "127.0.0.1", .source = "the test"};
    snprintf(job, sizeof job, "harm-%d-%u", (int)getpid(), jobs++);
    harm->reserved = harm->transport ? port_reserve(&master.port) : -1;
    harm->shared =
        mmap(NULL, sizeof *harm->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int rank = 0; rank < harm->world; rank++) {
        harm->pids[rank] = fork();
        if (harm->pids[rank] == 0) {
            // Also of what it becomes.
            alarm(PATIENCE_S + (harm->touched > 0 ? TOUCHING_S : 0));
            be_rank(harm, job, harm->transport ? &master : NULL, rank);
            _exit(0);
        }
    }
}

static bool said(char problem[HARM_PROBLEM], const struct harm *harm, int rank, const char *what)
{
    const struct verdict *verdict = &harm->shared->verdicts[rank];
    snprintf(problem, HARM_PROBLEM, "%s, rank %d of %d, %s: rank %d %s; result %d: %s",
             harm->operation->name, harm->victim, harm->world,
             harm->fault[0] ? harm->fault : "kill", rank, what, verdict->result, verdict->message);
    return false;
}

static bool check(const struct harm *harm, int rank, zero_result result, const char *const *words,
                  uint64_t limit_ns, char problem[HARM_PROBLEM])
{
    const struct verdict *verdict = &harm->shared->verdicts[rank];
    const uint64_t harmed_ns = atomic_load(&harm->shared->harmed_ns);
    const int other = harm->victim == 0 ? 1 : 0;
    if (verdict->result != result)
        return said(problem, harm, rank, "returned something else");
    for (; *words; words++)
        if (!strstr(verdict->message, *words))
            return said(problem, harm, rank, *words);
    if (strcmp(verdict->message, harm->shared->verdicts[other].message) != 0)
        return said(problem, harm, rank, "has a message of its own");
    if (!verdict->steady)
        return said(problem, harm, rank, "returned something else later");
    if (harmed_ns == 0 || verdict->returned_ns > harmed_ns + limit_ns)
        return said(problem, harm, rank, "returned late");
    return true;
}

bool harm_finish(struct harm *harm, zero_result result, const char *const *words, uint64_t limit_ns,
                 uint64_t *latencies_ns, char problem[HARM_PROBLEM])
{
    bool good = true;
    int status = 0;
    for (int rank = 0; rank < harm->world; rank++)
        if (rank != harm->victim &&
            (waitpid(harm->pids[rank], &status, 0) != harm->pids[rank] || status != 0))
            good = said(problem, harm, rank, "did not end, or crashed");
    kill(harm->pids[harm->victim], SIGKILL);
    waitpid(harm->pids[harm->victim], &status, 0);
    if (atomic_load(&harm->shared->child) > 0)
        kill(atomic_load(&harm->shared->child), SIGKILL);
    for (int rank = 0, n = 0; rank < harm->world; rank++) {
        if (rank == harm->victim)
            continue;
        good = good && check(harm, rank, result, words, limit_ns, problem);
        if (latencies_ns)
            latencies_ns[n++] =
                harm->shared->verdicts[rank].returned_ns - atomic_load(&harm->shared->harmed_ns);
    }
    munmap(harm->shared, sizeof *harm->shared);
    if (harm->reserved >= 0)
        close(harm->reserved);
    return good;
}

static int compare(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

uint64_t harm_print_latencies(const char *what, uint64_t *latencies_ns, int count)
{
    qsort(latencies_ns, (size_t)count, sizeof *latencies_ns, compare);
    const size_t half = (size_t)count / 2, most = (size_t)count * 99 / 100;
    printf("%s: %d survivors told after %.3f ms (median), %.3f (99 %%), %.3f (all)\n", what, count,
           (double)latencies_ns[half] * 1e-6, (double)latencies_ns[most] * 1e-6,
           (double)latencies_ns[count - 1] * 1e-6);
    return latencies_ns[half];
}
