// Collectives of GPU memory that fail: in time, on all ranks, with words that say whose fault it
// is, and nothing is left. Over NCCL, or, if the argument says so, by the host.

#include "tests/cuda/device_ranks.h"
#include "tests/cuda/driver.h"
#include "tests/cuda/leftovers.h"
#include "tests/sweep.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cuda.h>

#include <cmocka.h>

enum { SKIPPED = 77, WORD = 8, LARGE = 300000 };

// NCCL takes its time for its first operation.
#define SHORT_NS UINT64_C(1000000000)
#define SHORT_OF_NCCL_NS UINT64_C(10000000000)
static uint64_t short_ns;

static const char *transport; // NULL: NCCL
static const char *beneath;   // that of the ranks themselves; NULL: shm
static int possible;          // ranks
static bool doubled;          // or this is NCCL

/* ------------------------------------------------------------------ pieces of bodies */

static zero_result exchange(struct device_rank *rank, void *memory, uint32_t unit, uint64_t *ticket)
{
    return gcomm_exchange(rank->device, memory, WORD, (char *)memory + WORD,
                          (struct coll_label){"unit", unit, "h.1"}, ticket);
}

static void *memory_of(struct device_rank *rank)
{
    return device_rank_memory(rank, (size_t)(rank->world + 1) * LARGE);
}

// One that works, so that the others have numbers from 2 on.
static bool first_one(struct device_rank *rank, void *memory)
{
    uint64_t ticket;
    NEED(exchange(rank, memory, 1, &ticket) == ZERO_OK);
    NEED(gcomm_wait(rank->device, ticket) == ZERO_OK);
    return device_rank_meet(rank); // no rank fails before all have seen it
}

// The stream that waits for it is not held for ever, and all calls say the same.
static bool ends(struct device_rank *rank, void *memory, zero_result result, const char *words)
{
    uint64_t ticket = 77;
    struct base_error error = {.result = ZERO_OK};
    NEED(device_rank_sync(rank));
    NEED(device_rank_learns(rank, result, words));
    NEED(exchange(rank, memory, 9, &ticket) == result && ticket == 0);
    NEED(gcomm_after(rank->device, rank->stream) == result);
    NEED(coll_state(rank->host, &error) == result && strstr(error.message, words));
    NEED(coll_progress(rank->host) == result && coll_barrier(rank->host) == result);
    return true;
}

// Something that may fail in the call, or later; the stream waits for it.
static bool second_one(struct device_rank *rank, void *memory, zero_result with)
{
    uint64_t ticket;
    const zero_result result = exchange(rank, memory, 2, &ticket);
    NEED(result == ZERO_OK || result == with);
    if (result == ZERO_OK) {
        const zero_result waits = gcomm_before(rank->device, ticket, rank->stream);
        NEED(waits == ZERO_OK || waits == with);
        if (rank->rank % 2 == 0) // the others wait for their streams
            NEED(gcomm_wait(rank->device, ticket) == with);
    }
    return true;
}

struct failure {
    const char *inject;
    zero_result result;
    const char *words;
};

static bool fails(struct device_rank *rank)
{
    const struct failure *failure = rank->of->user;
    void *memory = memory_of(rank);
    return first_one(rank, memory) && second_one(rank, memory, failure->result) &&
           ends(rank, memory, failure->result, failure->words);
}

// Only what is to take too long may take no longer than that: the rest ends by an event.
static bool all_fail(const struct failure *failure, bool (*body)(struct device_rank *))
{
    const uint64_t timeout_ns = failure->result == ZERO_E_TIMEOUT ? short_ns : 0;
    for (int world = 2; world <= possible; world++)
        if (!device_ranks_run(&(struct device_ranks){.host = beneath,
                                                     .transport = transport,
                                                     .world = world,
                                                     .inject = failure->inject,
                                                     .timeout_ns = timeout_ns,
                                                     .fails = true,
                                                     .user = failure},
                              body))
            return false;
    return true;
}

/* ------------------------------------------------------------------ the transport */

static void errors_of_the_transport(void **state)
{
    static const struct failure failures[] = {
        {"error=2,rank=1", ZERO_E_PEER,
         "rank 1: exchange #2, unit 2 (h.1) on cuda 1: NCCL: remote process exited"},
        {"error=2,rank=0,status=1,polls=5", ZERO_E_DEVICE,
         "rank 0: exchange #2, unit 2 (h.1) on cuda 0: NCCL: unhandled cuda error"},
        {"error=2,rank=1,status=3", ZERO_E_DEVICE, "NCCL: internal error"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++)
        assert_true(all_fail(&failures[i], fails));
}

static void a_gpu_that_does_not_come_to_it(void **state)
{
    const struct failure failure = {
        "never=2,rank=1", ZERO_E_TIMEOUT,
        "exchange #2, unit 2 (h.1) on cuda"}; // all ranks' streams are at it
    (void)state;
    assert_true(all_fail(&failure, fails));
}

/* ------------------------------------------------------------------ ranks */

// Rank 1 does something else until the others have had enough.
static bool stays_away(struct device_rank *rank)
{
    const struct failure *failure = rank->of->user;
    void *memory = memory_of(rank);
    NEED(first_one(rank, memory));
    if (rank->rank != 1)
        NEED(second_one(rank, memory, failure->result));
    return ends(rank, memory, failure->result, failure->words);
}

static void a_rank_that_does_not_call(void **state)
{
    const struct failure failure = {NULL, ZERO_E_TIMEOUT,
                                    "s for rank 1 (last call: exchange #1, unit 1 (h.1)) to come"};
    (void)state;
    assert_true(all_fail(&failure, stays_away));
}

static void take_time(void *nothing)
{
    (void)nothing;
    usleep((useconds_t)(short_ns / 500));
}

// Its computation before takes longer than a collective may: that is not the collective's time.
static bool is_late(struct device_rank *rank)
{
    __typeof__(cuLaunchHostFunc) *call;
    void *memory = memory_of(rank);
    uint64_t ticket;
    NEED(cuda_driver_find("cuLaunchHostFunc", &call));
    NEED(first_one(rank, memory));
    NEED(call(rank->stream, take_time, NULL) == CUDA_SUCCESS);
    NEED(gcomm_after(rank->device, rank->stream) == ZERO_OK);
    for (int i = 0; i < 3; i++) {
        NEED(exchange(rank, memory, 2, &ticket) == ZERO_OK);
        NEED(gcomm_wait(rank->device, ticket) == ZERO_OK);
        usleep((useconds_t)(short_ns / 2000));
    }
    return true;
}

static void time_is_that_of_one_operation(void **state)
{
    (void)state;
    assert_true(device_ranks_run(
        &(struct device_ranks){.transport = transport, .world = 2, .timeout_ns = short_ns},
        is_late));
}

/** Over tcp, too, whose ranks see of each other what they show. */
static bool all_fail_anywhere(const struct failure *failure, bool (*body)(struct device_rank *))
{
    beneath = "tcp";
    const bool good = all_fail(failure, body);
    beneath = NULL;
    return good && all_fail(failure, body);
}

static bool leaves(struct device_rank *rank)
{
    const struct failure *failure = rank->of->user;
    void *memory = memory_of(rank);
    NEED(first_one(rank, memory));
    if (rank->rank == 1) {
        gcomm_close(rank->device);
        rank->device = NULL;
        return device_rank_learns(rank, failure->result, failure->words);
    }
    return second_one(rank, memory, failure->result) &&
           ends(rank, memory, failure->result, failure->words);
}

static void a_rank_that_has_left(void **state)
{
    const struct failure failure = {NULL, ZERO_E_PEER, "rank 1 has left without it"};
    (void)state;
    assert_true(all_fail_anywhere(&failure, leaves));
}

static bool is_killed(struct device_rank *rank)
{
    const int victim = rank->of->killed - 1;
    char *memory = memory_of(rank), words[32];
    uint64_t ticket;
    NEED(first_one(rank, memory));
    if (rank->rank == victim && rank->of->user)
        raise(SIGKILL); // the others are inside
    const zero_result result = gcomm_exchange(rank->device, memory, LARGE, memory + LARGE,
                                              (struct coll_label){"unit", 2, NULL}, &ticket);
    if (rank->rank == victim)
        raise(SIGKILL); // all are
    NEED(result == ZERO_OK || result == ZERO_E_PEER);
    const zero_result waits = gcomm_before(rank->device, ticket, rank->stream);
    NEED(waits == ZERO_OK || waits == ZERO_E_PEER);
    snprintf(words, sizeof words, "rank %d died", victim);
    return ends(rank, memory, ZERO_E_PEER, words);
}

static void a_rank_that_dies(void **state)
{
    (void)state;
    for (int world = 2; world <= possible; world++)
        for (int victim = 0; victim < world; victim += world - 1)
            for (int before = 0; before < 2; before++)
                assert_true(device_ranks_run(
                    &(struct device_ranks){.transport = transport,
                                           .world = world,
                                           .inject = before ? NULL : "delay=100000",
                                           .killed = victim + 1,
                                           .fails = true,
                                           .user = before ? "before" : NULL},
                    is_killed));
}

static void *abort_it(void *host)
{
    usleep(20000);
    coll_abort(host, ZERO_E_ABORTED, "enough");
    return NULL;
}

static bool is_aborted(struct device_rank *rank)
{
    void *memory = memory_of(rank);
    pthread_t thread;
    uint64_t ticket;
    NEED(first_one(rank, memory));
    if (rank->rank == 1)
        NEED(pthread_create(&thread, NULL, abort_it, rank->host) == 0);
    else if (rank->rank == 2) // and closes at once
        NEED(exchange(rank, memory, 2, &ticket) == ZERO_OK || ticket == 0);
    else
        NEED(second_one(rank, memory, ZERO_E_ABORTED));
    if (rank->rank != 2)
        NEED(ends(rank, memory, ZERO_E_ABORTED, "rank 1: enough"));
    if (rank->rank == 1)
        pthread_join(thread, NULL);
    return true;
}

static void an_abort(void **state)
{
    const struct failure failure = {NULL, ZERO_E_ABORTED, ""};
    (void)state;
    assert_true(all_fail(&failure, is_aborted));
}

/* ------------------------------------------------------------------ the driver's lock */

enum { WAITS_FOR_STREAM, WAITS_FOR_TICKET, STARTS_ANOTHER, STARTS_INSIDE, STUCK_WAYS };

struct stuck {
    int way; // in which the caller needs the driver meanwhile
    bool dies;
};

struct freed {
    struct device_rank *rank;
    void *memory;
};

static void *free_it(void *argument)
{
    const struct freed *freed = argument;
    const struct base_device *gpu = freed->rank->gpu;
    if (gpu->enter(freed->rank->number, NULL) != ZERO_OK)
        return NULL;
    gpu->free(freed->memory);
    gpu->leave();
    return argument;
}

// All calls of the driver wait from now on, where it is the stand-in; on a GPU perhaps.
static void await_jam(void)
{
    cuda_driver_jammed_fn jammed;
    if (!cuda_driver_find(CUDA_DRIVER_JAMMED, &jammed)) {
        usleep(100000);
        return;
    }
    while (!jammed())
        usleep(1000);
}

// Whether it could be said.
static bool jam(bool jams, bool entering)
{
    cuda_driver_jam_fn function;
    const bool there = cuda_driver_find(CUDA_DRIVER_JAM, &function);
    if (there)
        function(jams, entering);
    return there;
}

// A real driver's calls may wait for the one that frees memory, or not.
static bool needs_the_driver(struct device_rank *rank, void *memory, uint64_t ticket,
                             zero_result with, bool jams)
{
    const struct stuck *stuck = rank->of->user;
    zero_result result;
    if (stuck->way == WAITS_FOR_TICKET)
        NEED(gcomm_wait(rank->device, ticket) == with);
    if (stuck->way == STARTS_ANOTHER || stuck->way == STARTS_INSIDE) {
        result = exchange(rank, memory, 3, &ticket);
        NEED(result == with || (!jams && result == ZERO_OK));
    }
    return device_rank_sync(rank);
}

// A thread of the program frees memory, for which the driver waits until the GPU is at rest; so it
// never is, for the last rank has died or stays away.
static bool is_stuck(struct device_rank *rank)
{
    const struct stuck *stuck = rank->of->user;
    const zero_result with = stuck->dies ? ZERO_E_PEER : ZERO_E_TIMEOUT;
    const char *words = stuck->dies ? " died" : "to come";
    struct freed freed = {.rank = rank};
    void *memory = memory_of(rank), *through = NULL;
    pthread_t thread;
    uint64_t ticket;
    NEED(first_one(rank, memory));
    if (rank->rank == rank->world - 1) {
        NEED(device_rank_meet(rank));
        usleep(50000);
        if (stuck->dies)
            raise(SIGKILL);
        return ends(rank, memory, with, words);
    }
    NEED(rank->gpu->alloc(&freed.memory, LARGE, NULL) == ZERO_OK);
    NEED(exchange(rank, memory, 2, &ticket) == ZERO_OK);
    NEED(gcomm_before(rank->device, ticket, rank->stream) == ZERO_OK);
    const bool jams = jam(true, stuck->way != STARTS_INSIDE);
    NEED(pthread_create(&thread, NULL, free_it, &freed) == 0);
    await_jam();
    NEED(device_rank_meet(rank));
    NEED(needs_the_driver(rank, memory, ticket, with, jams));
    NEED(pthread_join(thread, &through) == 0 && through == &freed);
    jam(false, false);
    return ends(rank, memory, with, words);
}

static bool all_are_stuck(int way, bool dies)
{
    const struct stuck stuck = {way, dies};
    const int world = 2 + way % (possible - 1);
    return device_ranks_run(&(struct device_ranks){.world = world,
                                                   .timeout_ns = dies ? 0 : short_ns,
                                                   .killed = dies ? world : 0,
                                                   .fails = true,
                                                   .user = &stuck},
                            is_stuck);
}

static void a_program_that_waits_in_the_driver(void **state)
{
    (void)state;
    if (transport)
        skip(); // no kernel waits for another rank
    for (int way = 0; way < STUCK_WAYS; way++)
        for (int dies = 0; dies < 2; dies++)
            if (test_takes(way + dies))
                assert_true(all_are_stuck(way, dies));
}

/* ------------------------------------------------------------------ two of a process */

// Beside a rank's own.
struct other {
    struct coll_comm *host;
    struct gcomm *device;
    char *memory;
};

static bool open_other(struct device_rank *rank, struct other *other)
{
    const struct coll_config config = {.transport = "shm",
                                       .rank = rank->rank,
                                       .world = rank->world,
                                       .job = rank->of->user,
                                       .name = "other",
                                       .timeout_ns = 20 * short_ns};
    struct base_error error = {.result = ZERO_OK};
    NEED(coll_open(&other->host, &config, &error) == ZERO_OK);
    struct gcomm_config device = rank->config;
    device.host = other->host;
    NEED(gcomm_open(&other->device, &device, &error) == ZERO_OK);
    other->memory = memory_of(rank);
    return true;
}

static zero_result exchange_by_other(const struct other *other, uint64_t *ticket)
{
    return gcomm_exchange(other->device, other->memory, LARGE, other->memory + LARGE,
                          (struct coll_label){"unit", 7, "other"}, ticket);
}

static bool other_works(struct device_rank *rank, const struct other *other)
{
    uint64_t ticket;
    NEED(exchange_by_other(other, &ticket) == ZERO_OK);
    NEED(gcomm_wait(other->device, ticket) == ZERO_OK);
    return true;
}

static void close_other(struct other *other)
{
    gcomm_close(other->device);
    coll_close(other->host);
}

// With both under way, neither of which ends before both are aborted.
static bool is_killed_with_two(struct device_rank *rank)
{
    struct base_error error = {.result = ZERO_OK};
    struct other other;
    char *memory = memory_of(rank);
    uint64_t tickets[2];
    NEED(open_other(rank, &other) && other_works(rank, &other) && first_one(rank, memory));
    if (rank->rank == rank->of->killed - 1)
        raise(SIGKILL);
    zero_result result = exchange(rank, memory, 2, &tickets[0]);
    NEED(result == ZERO_OK || result == ZERO_E_PEER);
    result = gcomm_before(rank->device, tickets[0], rank->stream);
    NEED(result == ZERO_OK || result == ZERO_E_PEER);
    result = exchange_by_other(&other, &tickets[1]);
    NEED(result == ZERO_OK || result == ZERO_E_PEER);
    result = gcomm_before(other.device, tickets[1], rank->stream);
    NEED(result == ZERO_OK || result == ZERO_E_PEER);
    NEED(gcomm_wait(other.device, tickets[1]) == ZERO_E_PEER || tickets[1] == 0);
    NEED(ends(rank, memory, ZERO_E_PEER, " died"));
    NEED(coll_state(other.host, &error) == ZERO_E_PEER && strstr(error.message, " died"));
    close_other(&other);
    return true;
}

// The other one is well, and stays so.
static bool is_aborted_beside(struct device_rank *rank)
{
    struct other other;
    char *memory = memory_of(rank);
    NEED(open_other(rank, &other) && other_works(rank, &other) && first_one(rank, memory));
    if (rank->rank == 1)
        coll_abort(rank->host, ZERO_E_ABORTED, "enough");
    else
        NEED(second_one(rank, memory, ZERO_E_ABORTED));
    NEED(other_works(rank, &other));
    NEED(ends(rank, memory, ZERO_E_ABORTED, "rank 1: enough"));
    NEED(other_works(rank, &other) && coll_state(other.host, NULL) == ZERO_OK);
    close_other(&other);
    return true;
}

static void two_of_a_process(void **state)
{
    (void)state;
    for (int world = 2; world <= possible; world++)
        for (int dies = 0; dies < 2; dies++) {
            char job[64];
            snprintf(job, sizeof job, "device-two-%d-%d-%d", (int)getpid(), world, dies);
            assert_true(device_ranks_run(&(struct device_ranks){.transport = transport,
                                                                .world = world,
                                                                .killed = dies ? 1 + world / 2 : 0,
                                                                .fails = true,
                                                                .blameless = true,
                                                                .user = job},
                                         dies ? is_killed_with_two : is_aborted_beside));
        }
}

/* ------------------------------------------------------------------ ranks that differ */

enum { OTHER_ORDER, OTHER_SIZE, OTHER_UNIT, OTHER_SPANS, DIFFERENCES };

static zero_result differ(struct device_rank *rank, char *memory, int how, bool other)
{
    const struct coll_label label = {"unit", other && how == OTHER_UNIT ? 6 : 5, "h.4"};
    struct coll_span spans[DEVICE_RANKS_MOST];
    for (int r = 0; r < rank->world; r++)
        spans[r] = (struct coll_span){(size_t)r * 128, other && r == 0 ? 64 : 128};
    const struct gcomm_gathered bucket = {memory + spans[rank->rank].offset, memory, spans};
    const struct gcomm_all_gather gather = {&bucket, 1, label};
    if (how == OTHER_SIZE || (how == OTHER_ORDER && other))
        return gcomm_exchange(rank->device, memory, other && how == OTHER_SIZE ? 64 : 128,
                              memory + 128, label, NULL);
    return gcomm_all_gather(rank->device, &gather, NULL);
}

static bool differs(struct device_rank *rank)
{
    static const char *const words[DIFFERENCES] = {
        [OTHER_ORDER] = "exchange #2, unit 5 (h.4)",
        [OTHER_SIZE] = "with another size: ",
        [OTHER_UNIT] = "all-gather #2, unit 6 (h.4)",
        [OTHER_SPANS] = "with other spans",
    };
    const int how = *(const int *)rank->of->user;
    char *memory = memory_of(rank);
    NEED(first_one(rank, memory));
    const zero_result result = differ(rank, memory, how, rank->rank == rank->world - 1);
    NEED(result == ZERO_OK || result == ZERO_E_DIVERGED);
    return ends(rank, memory, ZERO_E_DIVERGED, words[how]);
}

static void ranks_that_differ(void **state)
{
    (void)state;
    for (int how = 0; how < DIFFERENCES; how++)
        for (int world = 2; world <= possible; world++)
            assert_true(device_ranks_run(
                &(struct device_ranks){
                    .transport = transport, .world = world, .fails = true, .user = &how},
                differs));
}

/* ------------------------------------------------------------------ arguments */

enum { NO_MEMORY, TOO_LONG, STRIDE, CONTRIBUTORS, DTYPE, TICKET, REFUSALS };

static zero_result call_wrongly(struct device_rank *rank, char *memory, int what)
{
    const struct coll_label label = {"unit", 5, NULL};
    struct coll_span spans[DEVICE_RANKS_MOST];
    for (int r = 0; r < rank->world; r++)
        spans[r] = (struct coll_span){(size_t)r * 16, 16};
    if (what == TOO_LONG)
        spans[1].count = SIZE_MAX;
    const struct gcomm_gathered gathered = {memory, what == NO_MEMORY ? NULL : memory, spans};
    const struct gcomm_scattered scattered = {memory, memory, what == STRIDE ? 15 : 16, spans};
    const struct gcomm_reduced reduced = {memory, memory, spans};
    switch (what) {
    case NO_MEMORY:
    case TOO_LONG:
        return gcomm_all_gather(rank->device, &(struct gcomm_all_gather){&gathered, 1, label},
                                NULL);
    case STRIDE:
    case CONTRIBUTORS:
        return gcomm_scatter(
            rank->device,
            &(struct gcomm_scatter){&scattered, 1, what == STRIDE ? 1 : rank->world + 1, label},
            NULL);
    case DTYPE:
        return gcomm_reduce_scatter(
            rank->device, &(struct gcomm_reduce_scatter){&reduced, 1, ZERO_DTYPE_DEFAULT, label},
            NULL);
    default:
        return gcomm_before(rank->device, 1000, rank->stream);
    }
}

static bool is_refused(struct device_rank *rank)
{
    static const char *const words[REFUSALS] = {
        [NO_MEMORY] = "no memory",
        [TOO_LONG] = "a span has more than the memory there is",
        [STRIDE] = "the stride is less than",
        [CONTRIBUTORS] = "so many contributors",
        [DTYPE] = "no such dtype",
        [TICKET] = "ticket 1000",
    };
    const int what = *(const int *)rank->of->user;
    char *memory = memory_of(rank);
    NEED(first_one(rank, memory));
    if (rank->rank == 1)
        NEED(call_wrongly(rank, memory, what) == ZERO_E_INVALID);
    else
        NEED(second_one(rank, memory, ZERO_E_INVALID));
    return ends(rank, memory, ZERO_E_INVALID, words[what]);
}

static void arguments_that_cannot_be(void **state)
{
    (void)state;
    for (int what = 0; what < REFUSALS; what++)
        assert_true(device_ranks_run(&(struct device_ranks){.transport = transport,
                                                            .world = 2 + what % (possible - 1),
                                                            .fails = true,
                                                            .user = &what},
                                     is_refused));
}

/* ------------------------------------------------------------------ threads */

static void ranks_that_are_threads(void **state)
{
    const struct failure failure = {"error=2,rank=1,status=3", ZERO_E_DEVICE, "internal error"};
    (void)state;
    if (!transport && !doubled)
        skip();     // NCCL wants a GPU each
    if (!transport) // it is NCCL's
        assert_true(device_ranks_run(&(struct device_ranks){.host = "threads",
                                                            .world = 3,
                                                            .inject = failure.inject,
                                                            .fails = true,
                                                            .user = &failure},
                                     fails));
    assert_true(device_ranks_run(
        &(struct device_ranks){
            .transport = transport, .host = "threads", .world = 3, .fails = true},
        is_aborted));
    const int how = OTHER_ORDER;
    assert_true(device_ranks_run(
        &(struct device_ranks){
            .transport = transport, .host = "threads", .world = 3, .fails = true, .user = &how},
        differs));
}

int main(int count, char **arguments)
{
    transport = count > 1 ? arguments[1] : NULL;
    possible = device_ranks_possible();
    if (possible == 0)
        return SKIPPED;
    doubled = device_ranks_doubled();
    short_ns = doubled ? SHORT_NS : SHORT_OF_NCCL_NS;
    const struct CMUnitTest of_the_double[] = {
        cmocka_unit_test(errors_of_the_transport),
        cmocka_unit_test(a_gpu_that_does_not_come_to_it),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_does_not_call),
        cmocka_unit_test(time_is_that_of_one_operation),
        cmocka_unit_test(a_rank_that_has_left),
        cmocka_unit_test(a_rank_that_dies),
        cmocka_unit_test(an_abort),
        cmocka_unit_test(a_program_that_waits_in_the_driver),
        cmocka_unit_test(two_of_a_process),
        cmocka_unit_test(ranks_that_differ),
        cmocka_unit_test(arguments_that_cannot_be),
        cmocka_unit_test(ranks_that_are_threads),
    };
    const int failed =
        transport || !doubled ? 0 : cmocka_run_group_tests(of_the_double, NULL, NULL);
    return failed + cmocka_run_group_tests(tests, NULL, NULL);
}
