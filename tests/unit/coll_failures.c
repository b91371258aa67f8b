// What goes wrong is an error on every rank, in time, that names who and what.

#include "base/bfloat16.h"
#include "base/clock.h"
#include "base/fault.h"
#include "collectives/host/host.h"
#include "collectives/rendezvous/rendezvous.h"
#include "tests/sweep.h"
#include "tests/unit/coll_ranks.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cmocka.h>

enum { WORLD = 3, COUNT = 3000 };

static const uint64_t millisecond = 1000000;

// Long enough for ranks whose neighbours take their processor to come in time where they should.
static const uint64_t short_ns = UINT64_C(2000000000);
// What has to come at all comes in this time, with which the usual time-out is not needed.
static const uint64_t patience_ns = UINT64_C(10000000000);

/** Ranks whose call has failed; shared with ranks that are processes. */
static atomic_int *told;

static void await_failure(struct coll_comm *comm)
{
    while (coll_state(comm, NULL) == ZERO_OK)
        usleep(1000);
}

/** Until the calls of so many have failed, and word of it is here, which may be on its way. */
static void await_told(struct coll_comm *comm, int count)
{
    while (atomic_load(told) < count)
        usleep(1000);
    await_failure(comm);
}

/** The call has failed with `result`, the message has all the words, and so it stays. */
static bool failed(struct coll_comm *comm, zero_result got, zero_result result, const char *first,
                   const char *second)
{
    struct base_error error = {0};
    const zero_result state = coll_state(comm, &error);
    if (got != result || state != result || !strstr(error.message, first) ||
        !strstr(error.message, second)) {
        fprintf(stderr, "rank %d: returned %d, state %d: %s\n", coll_rank(comm), got, state,
                error.message);
        return false;
    }
    struct coll_request request = {0};
    double one = 1.0;
    CHECK(coll_barrier(comm) == result);
    CHECK(coll_all_reduce(comm, &one, 1, BASE_SUM) == result);
    CHECK(coll_progress(comm) == result);
    CHECK(coll_wait(comm, &request) == result && coll_drain(comm, &request) == result);
    return true;
}

static bool create(struct coll_comm *comm, struct coll_arena **arena)
{
    struct base_error error;
    CHECK_OK(comm, coll_arena_create(comm, COUNT * sizeof(float), arena, &error));
    return true;
}

static zero_result gather(struct coll_comm *comm, struct coll_arena *arena, size_t bytes,
                          const char *name, uint32_t number)
{
    static _Thread_local unsigned char recv[WORLD * COUNT];
    struct coll_span spans[WORLD];
    for (int r = 0; r < WORLD; r++)
        spans[r] = (struct coll_span){.offset = (size_t)r * bytes, .count = bytes};
    const struct coll_all_gather op = {.source = coll_arena_base(arena),
                                       .recv = recv,
                                       .spans = spans,
                                       .label = {.what = "unit", .name = name, .number = number}};
    struct coll_request request = {0};
    const zero_result result = coll_all_gather_start(comm, &op, &request);
    return result == ZERO_OK ? coll_drain(comm, &request) : result;
}

static void on_all(uint64_t timeout_ns, rank_fn fn)
{
    static const char *const transports[] = {"threads", "shm", "tcp:threads", "tcp", "hosts"};
    for (size_t i = 0; i < sizeof transports / sizeof *transports; i++) {
        if (!test_takes_transport(transports[i]))
            continue;
        atomic_store(told, 0);
        assert_true(run_ranks(transports[i], WORLD, timeout_ns, fn, NULL));
    }
}

/* ------------------------------------------------------------------ divergence */

static bool other_operation_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    double one = 1.0;
    CHECK_OK(comm, coll_barrier(comm));
    const zero_result got =
        coll_rank(comm) == 1 ? coll_all_reduce(comm, &one, 1, BASE_SUM) : coll_barrier(comm);
    return failed(comm, got, ZERO_E_DIVERGED, "barrier #1", "called all-reduce #1");
}

static bool other_unit_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    struct coll_arena *arena;
    CHECK(create(comm, &arena));
    const bool odd = coll_rank(comm) == 2;
    const zero_result got = gather(comm, arena, 8, odd ? "h.4" : "h.3", odd ? 5 : 4);
    return failed(comm, got, ZERO_E_DIVERGED, "unit 4 (h.3)", "unit 5 (h.4)");
}

static bool other_spans_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    struct coll_arena *arena;
    CHECK(create(comm, &arena));
    const zero_result got = gather(comm, arena, coll_rank(comm) == 0 ? 8 : 12, "h.3", 4);
    return failed(comm, got, ZERO_E_DIVERGED, "unit 4 (h.3)", "with other spans");
}

/** Ranks that differ in an operation in which neither needs the other one get the error in the next
 * one in which they do. */
static bool unmet_rank(struct coll_comm *comm, void *user)
{
    static const char *const called[] = {"called broadcast #", "called all-gather #",
                                         "called reduce-scatter #"};
    static const struct coll_span spans[2][WORLD] = {{{0, 8}}, {{0, 0}, {0, 8}}};
    const int rank = coll_rank(comm), kind = *(const int *)user;
    struct coll_request request = {0};
    float vector[16] = {0}, sum[8];
    const struct coll_bulk_broadcast broadcast = {.data = vector, .bytes = 8, .root = rank};
    const struct coll_all_gather all_gather = {
        .source = vector, .recv = sum, .spans = spans[rank == 1]};
    const struct coll_reduce_scatter sums = {.source = vector,
                                             .dtype = ZERO_F32,
                                             .spans = spans[rank != 1],
                                             .accumulator = sum,
                                             .contributors = WORLD,
                                             .store = true};
    zero_result got = kind == 0   ? coll_broadcast_start(comm, &broadcast, &request)
                      : kind == 1 ? coll_all_gather_start(comm, &all_gather, &request)
                                  : coll_reduce_scatter_start(comm, &sums, &request);
    for (int i = 0; i < 5 && got == ZERO_OK; i++)
        got = coll_barrier(comm);
    return failed(comm, got, ZERO_E_DIVERGED, called[kind], ", with ");
}

static void divergence(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        assert_true(run_ranks("threads", WORLD, 0, unmet_rank, &kind));
        assert_true(run_ranks("shm", WORLD, 0, unmet_rank, &kind));
        assert_true(run_ranks("tcp", WORLD, 0, unmet_rank, &kind));
    }
    on_all(0, other_operation_rank);
    on_all(0, other_unit_rank);
    on_all(0, other_spans_rank);
}

/* ------------------------------------------------------------------ who does not come */

static bool late_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    struct coll_arena *arena;
    CHECK(create(comm, &arena));
    if (coll_rank(comm) == 2)
        await_told(comm, 2);
    const uint64_t before = base_clock_ns();
    const zero_result got = gather(comm, arena, 8, "h.3", 4);
    atomic_fetch_add(told, 1);
    CHECK(base_clock_ns() - before < patience_ns);
    return failed(comm, got, ZERO_E_TIMEOUT, "unit 4 (h.3)", "for rank 2 (last call: exchange #");
}

static bool undrained_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    struct coll_arena *arena;
    CHECK(create(comm, &arena));
    const struct coll_span spans[WORLD] = {{0, 8}, {0, 0}, {0, 0}};
    unsigned char recv[8];
    const struct coll_all_gather op = {
        .source = coll_arena_base(arena), .recv = recv, .spans = spans};
    struct coll_request request = {0};
    CHECK_OK(comm, coll_all_gather_start(comm, &op, &request));
    if (coll_rank(comm) == 0) {
        const zero_result got = coll_drain(comm, &request);
        atomic_fetch_add(told, 1);
        return failed(comm, got, ZERO_E_TIMEOUT, "in all-gather #", ") to have read its part");
    }
    // Not before: rank 0 looks once more after its failure, and what they read then has been read.
    await_told(comm, 1);
    return failed(comm, coll_progress(comm), ZERO_E_TIMEOUT, "in all-gather #", "rank 0");
}

static void time_out(void **state)
{
    (void)state;
    on_all(short_ns, late_rank);
    on_all(short_ns, undrained_rank);
}

static bool leaving_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    struct coll_arena *arena;
    CHECK(create(comm, &arena));
    if (coll_rank(comm) == 1)
        return true;
    return failed(comm, coll_barrier(comm), ZERO_E_PEER, "rank 1 has closed", "barrier #");
}

/** What a rank has posted can be read after it has left. */
static bool legacy_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    struct coll_arena *arena;
    CHECK(create(comm, &arena));
    const struct coll_span spans[WORLD] = {{0, 0}, {0, COUNT}, {0, 0}};
    unsigned char recv[COUNT] = {0};
    memset(coll_arena_base(arena), coll_rank(comm) + 1, COUNT);
    const struct coll_all_gather op = {
        .source = coll_arena_base(arena), .recv = recv, .spans = spans};
    struct coll_request request = {0};
    CHECK_OK(comm, coll_all_gather_start(comm, &op, &request));
    if (coll_rank(comm) == 1)
        return true;
    usleep(50000);
    CHECK_OK(comm, coll_wait(comm, &request));
    for (size_t i = 0; i < COUNT; i++)
        CHECK(recv[i] == 2);
    CHECK_OK(comm, coll_drain(comm, &request));
    return true;
}

/** Who waits for room in its ring waits for whomever its oldest operation needs. */
static bool no_room_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    enum { MOST = 200 };
    static _Thread_local struct coll_request requests[MOST];
    static const struct coll_span spans[WORLD] = {{0, 1}, {1, 1}, {2, 1}};
    static const unsigned char mine; // peers may read it after this rank has returned
    unsigned char recv[WORLD];
    const struct coll_all_gather op = {.source = &mine, .recv = recv, .spans = spans};
    const uint64_t before = base_clock_ns();
    zero_result got = ZERO_OK;
    for (int i = 0; i < MOST && got == ZERO_OK && coll_rank(comm) != 1; i++)
        got = coll_all_gather_start(comm, &op, &requests[i]);
    CHECK(base_clock_ns() - before < patience_ns);
    return coll_rank(comm) == 1 ||
           failed(comm, got, ZERO_E_PEER, "rank 1 has closed", "all-gather");
}

static void leaving(void **state)
{
    (void)state;
    on_all(0, no_room_rank);
    on_all(0, leaving_rank);
    on_all(0, legacy_rank);
}

static bool dying_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    CHECK_OK(comm, coll_barrier(comm));
    if (coll_rank(comm) == 1) {
        usleep(20000); // the others are in the next one by now
        raise(SIGKILL);
    }
    const uint64_t before = base_clock_ns();
    const zero_result got = coll_barrier(comm);
    CHECK(base_clock_ns() - before < patience_ns);
    return failed(comm, got, ZERO_E_PEER, "rank 1 died", "in barrier #1");
}

static void dying(void **state)
{
    (void)state;
    assert_true(run_ranks_killed(WORLD, 1, dying_rank, NULL));
}

/* ------------------------------------------------------------------ abort */

static void *abort_soon(void *comm)
{
    usleep(50000);
    coll_abort(comm, ZERO_E_ABORTED, "somebody had enough");
    return NULL;
}

static bool aborting_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    pthread_t thread;
    CHECK_OK(comm, coll_barrier(comm));
    if (coll_rank(comm) == 0)
        CHECK(pthread_create(&thread, NULL, abort_soon, comm) == 0);
    // Rank 2 comes when the others have been told: they sleep when the abort arrives.
    if (coll_rank(comm) == 2)
        await_told(comm, 2);
    const uint64_t before = base_clock_ns();
    const zero_result got = coll_barrier(comm);
    atomic_fetch_add(told, 1);
    CHECK(base_clock_ns() - before < patience_ns);
    if (coll_rank(comm) == 0)
        pthread_join(thread, NULL);
    return failed(comm, got, ZERO_E_ABORTED, "rank 0: ", "somebody had enough");
}

static bool first_abort_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    // Rank 0 may be through, and have aborted, before another one has left.
    const zero_result met = coll_barrier(comm);
    CHECK(met == ZERO_OK || (met == ZERO_E_IO && coll_rank(comm) > 0));
    if (coll_rank(comm) == 0)
        coll_abort(comm, ZERO_E_IO, "the disk is full");
    await_failure(comm);
    coll_abort(comm, ZERO_E_ABORTED, "too late");
    return failed(comm, ZERO_E_IO, ZERO_E_IO, "rank 0: ", "the disk is full");
}

/** Rank 1 has still to read rank 0's block when the communicator fails: rank 0 must not take that
 * for having been read. */
static bool still_read_rank(struct coll_comm *comm, void *user)
{
    atomic_int *posted = user;
    struct coll_arena *arena;
    struct coll_request request = {0};
    struct coll_span spans[WORLD] = {{0, 1}, {1, 0}, {1, 0}};
    unsigned char got = 0;
    CHECK(create(comm, &arena));
    *(unsigned char *)coll_arena_base(arena) = 7;
    const struct coll_all_gather op = {
        .source = coll_arena_base(arena), .recv = &got, .spans = spans};
    CHECK_OK(comm, coll_all_gather_start(comm, &op, &request));
    for (atomic_fetch_add(posted, 1); atomic_load(posted) < WORLD;)
        usleep(1000);
    if (coll_rank(comm) == 0) {
        CHECK_OK(comm, coll_wait(comm, &request));
        CHECK(coll_complete(&request) && !coll_drained(comm, &request));
        coll_abort(comm, ZERO_E_ABORTED, "in between");
        return failed(comm, coll_drain(comm, &request), ZERO_E_ABORTED, "rank 0: ", "in between");
    }
    await_failure(comm);
    // What all ranks have come to is completed.
    CHECK_OK(comm, coll_wait(comm, &request));
    CHECK(got == 7);
    return true;
}

static void aborting(void **state)
{
    (void)state;
    on_all(0, aborting_rank);
    on_all(0, first_abort_rank);
    atomic_int posted = 0;
    assert_true(run_ranks("threads", WORLD, 0, still_read_rank, &posted));
}

/** Has begun to write why the family has failed, and gets no processor for a while. */
static void *write_late(void *user)
{
    struct coll_poison *poison = user;
    usleep(400000);
    strcpy(poison->message, "written late");
    atomic_store(&poison->state, (uint32_t)-ZERO_E_ABORTED | COLL_POISON_READY);
    return NULL;
}

/** A rank that asks meanwhile gets the message, and not the failure alone. */
static void a_message_that_is_late(void **state)
{
    (void)state;
    const struct coll_config config = {
        .transport = "self", .world = 1, .job = "-", .name = "test", .timeout_ns = short_ns};
    struct base_error error = {0};
    struct coll_comm *comm;
    pthread_t writer;
    assert_int_equal(coll_open(&comm, &config, NULL), ZERO_OK);
    struct coll_poison *poison = comm->comm_world->poison;
    atomic_store(&poison->state, (uint32_t)-ZERO_E_ABORTED);
    assert_int_equal(pthread_create(&writer, NULL, write_late, poison), 0);
    assert_int_equal(coll_state(comm, &error), ZERO_E_ABORTED);
    assert_string_equal(error.message, "written late");
    assert_int_equal(pthread_join(writer, NULL), 0);
    // Who has given up waiting for it before gets it, too.
    comm->comm_world->unwritten = true;
    base_error_clear(&error);
    assert_int_equal(coll_state(comm, &error), ZERO_E_ABORTED);
    assert_string_equal(error.message, "written late");
    coll_close(comm);
}

/* ------------------------------------------------------------------ arguments and memory */

static bool refused_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    static const struct coll_span spans[WORLD] = {{0, 8}, {8, 8}, {16, 8}};
    unsigned char recv[24];
    const struct coll_all_gather op = {.recv = recv, .spans = spans};
    struct coll_request request = {0};
    const zero_result got =
        coll_rank(comm) == 1 ? coll_all_gather_start(comm, &op, &request) : coll_barrier(comm);
    return failed(comm, got, ZERO_E_INVALID, "rank 1, all-gather #", "no source");
}

static bool refused_sum_rank(struct coll_comm *comm, void *user)
{
    static const char *const reasons[] = {"no such dtype", "contributors", "accumulator",
                                          "no source", "more than the memory there is"};
    const int wrong = *(const int *)user;
    struct coll_arena *arena;
    CHECK(create(comm, &arena));
    // In the last case the last span ends at byte 8000, modulo 2^64.
    const size_t last = wrong == 4 ? SIZE_MAX / 4 + 1 : 1000;
    const struct coll_span spans[WORLD] = {{0, 1000}, {1000, 1000}, {2000, last}};
    static _Thread_local float accumulator[1000];
    const struct coll_reduce_scatter op = {.source = wrong == 3 ? NULL : coll_arena_base(arena),
                                           .dtype = wrong == 0 ? (zero_dtype)77 : ZERO_F32,
                                           .spans = spans,
                                           .accumulator = wrong == 2 ? NULL : accumulator,
                                           .contributors = wrong == 1 ? WORLD + 1 : WORLD,
                                           .label = {.what = "unit", .name = "sum", .number = 1}};
    struct coll_request request = {0};
    return failed(comm, coll_reduce_scatter_start(comm, &op, &request), ZERO_E_INVALID,
                  "unit 1 (sum)", reasons[wrong]);
}

/** A request that is still under way can't be started again. */
static bool busy_request_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    // One that moves nothing: what needs bytes of rank 0 might not come to an end.
    const struct coll_span spans[WORLD] = {{0, 1}, {1, 1}, {2, 1}};
    const struct coll_all_gather op = {.spans = spans};
    struct coll_request request = {0};
    CHECK_OK(comm, coll_all_gather_start(comm, &op, &request));
    CHECK_OK(comm, coll_barrier(comm));
    const zero_result got =
        coll_rank(comm) == 0 ? coll_all_gather_start(comm, &op, &request) : coll_barrier(comm);
    return failed(comm, got, ZERO_E_INVALID, "rank 0, all-gather", "not drained");
}

/** Nor as an operation of another kind. */
static bool busy_message_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    unsigned char memory[WORLD] = {0};
    const struct coll_span spans[WORLD] = {{0, 1}, {1, 1}, {2, 1}};
    const struct coll_all_gather gather_op = {.source = memory, .recv = memory, .spans = spans};
    const struct coll_message message = {.data = memory, .bytes = 1, .peer = 1};
    struct coll_request request = {0};
    if (coll_rank(comm) != 0)
        return failed(comm, coll_barrier(comm), ZERO_E_INVALID, "rank 0, all-gather",
                      "not drained");
    CHECK_OK(comm, coll_receive_start(comm, &message, &request));
    return failed(comm, coll_all_gather_start(comm, &gather_op, &request), ZERO_E_INVALID,
                  "rank 0, all-gather", "not drained");
}

static void arguments(void **state)
{
    (void)state;
    on_all(0, refused_rank);
    on_all(0, busy_request_rank);
    on_all(0, busy_message_rank);
    for (int wrong = 0; wrong < 5; wrong++)
        assert_true(run_ranks("threads", WORLD, 0, refused_sum_rank, &wrong));
}

static bool no_memory_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    struct base_error error = {0};
    struct coll_arena *arena;
    const size_t bytes = coll_rank(comm) == 1 ? SIZE_MAX - 4096 : 100;
    CHECK(coll_arena_create(comm, bytes, &arena, &error) == ZERO_E_NOMEM);
    CHECK(arena == NULL && strstr(error.message, "rank 1: ") != NULL);
    CHECK_OK(comm, coll_barrier(comm));
    // Sizes of their own, none included.
    CHECK_OK(comm, coll_arena_create(comm, (size_t)coll_rank(comm) * 100, &arena, &error));
    CHECK(coll_arena_size(arena) == (size_t)coll_rank(comm) * 100);
    CHECK((coll_arena_base(arena) == NULL) == (coll_rank(comm) == 0));
    CHECK((uintptr_t)coll_arena_base(arena) % 4096 == 0);
    CHECK_OK(comm, coll_barrier(comm));
    return true;
}

static void no_memory(void **state)
{
    (void)state;
    on_all(0, no_memory_rank);
}

/** Mappings of shared memory this process has. */
static int shared_mappings(void)
{
    char line[512];
    int count = 0;
    FILE *file = fopen("/proc/self/maps", "r");
    while (file && fgets(line, sizeof line, file))
        count += strstr(line, "memfd:zero") != NULL;
    if (file)
        fclose(file);
    return count;
}

/** One rank can't allocate or map: no rank has the arena, nothing stays behind, and it is no reason
 * to stop. */
static bool no_mapping_rank(struct coll_comm *comm, void *user)
{
    struct base_error error = {0};
    struct coll_arena *arena;
    const int before = shared_mappings();
    CHECK_OK(comm, coll_barrier(comm));
    if (coll_rank(comm) == 1)
        CHECK(base_fault_set(user, &error) == ZERO_OK);
    CHECK(coll_arena_create(comm, 10000, &arena, &error) == ZERO_E_NOMEM);
    CHECK(strstr(error.message, "rank 1: ") && strstr(error.message, "ENOSPC"));
    CHECK(shared_mappings() == before);
    CHECK_OK(comm, coll_arena_create(comm, 10000, &arena, &error));
    CHECK(shared_mappings() == before + WORLD);
    CHECK(gather(comm, arena, 1000, "h.0", 1) == ZERO_OK);
    return true;
}

static void no_mapping(void **state)
{
    (void)state;
    static const char *const faults[] = {"shm.allocate:enospc@1", "shm.map:enospc@1",
                                         "shm.map:enospc@2", "shm.map:enospc@3"};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        assert_true(run_ranks("shm", WORLD, 0, no_mapping_rank, (void *)(uintptr_t)faults[i]));
}

/** Rank 1 of 2 gives rank 0 an ordinary file, which it could cut while it is read. */
static void give_a_file(const char *job)
{
    struct boot_link *link;
    const struct boot_meeting meeting = {.rank = 1,
                                         .world = 2,
                                         .job = job,
                                         .name = "test",
                                         .deadline_ns = base_clock_ns() + 5000 * millisecond};
    FILE *file = tmpfile();
    int fd = file ? fileno(file) : -1, given[2];
    bool good = fd >= 0 && ftruncate(fd, sizeof(struct host_block)) == 0 &&
                boot_meet(&link, &meeting, NULL) == ZERO_OK;
    if (good)
        good = boot_exchange_fds(link, &fd, 1, given, meeting.deadline_ns, NULL) == ZERO_OK;
    if (good)
        boot_exchange_fds(link, NULL, 0, given, meeting.deadline_ns, NULL); // until rank 0 leaves
    _exit(good ? 0 : 1);
}

static void unsealed_memory(void **state)
{
    (void)state;
    const struct coll_config config = {.transport = "shm",
                                       .world = 2,
                                       .job = "coll-test-unsealed",
                                       .name = "test",
                                       .timeout_ns = 5000 * millisecond};
    struct base_error error = {0};
    struct coll_comm *comm;
    int status;
    const pid_t child = fork();
    if (child == 0)
        give_a_file(config.job);
    assert_int_equal(coll_open(&comm, &config, &error), ZERO_E_PEER);
    assert_non_null(strstr(error.message, "rank 1 gave no sealed memory"));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(shared_mappings(), 0);
}

static void opening(void **state)
{
    (void)state;
    struct coll_comm *comm;
    struct coll_team *team;
    struct base_error error = {0};
    struct coll_config config = {.transport = "carrier pigeon",
                                 .world = 1,
                                 .job = "coll-test-opening",
                                 .name = "test",
                                 .timeout_ns = 50 * millisecond};
    assert_int_equal(coll_open(&comm, &config, &error), ZERO_E_UNSUPPORTED);
    assert_non_null(strstr(error.message, "carrier pigeon"));
    assert_null(comm);
    config.transport = "self";
    config.world = 2;
    assert_int_equal(coll_open(&comm, &config, NULL), ZERO_E_INVALID);
    config.rank = 2;
    assert_int_equal(coll_open(&comm, &config, NULL), ZERO_E_INVALID);
    config.rank = 0;
    config.transport = "threads";
    assert_int_equal(coll_open(&comm, &config, NULL), ZERO_E_INVALID);
    assert_int_equal(coll_team_create(&team, 2, NULL), ZERO_OK);
    config.team = team;
    base_error_clear(&error);
    assert_int_equal(coll_open(&comm, &config, &error), ZERO_E_TIMEOUT);
    assert_non_null(strstr(error.message, "for rank 1 of 2"));
    config.transport = "shm";
    base_error_clear(&error);
    assert_int_equal(coll_open(&comm, &config, &error), ZERO_E_TIMEOUT);
    config.world = 1;
    assert_int_equal(base_fault_set("shm.map@1", NULL), ZERO_OK);
    assert_int_equal(coll_open(&comm, &config, NULL), ZERO_E_NOMEM);
    assert_int_equal(base_fault_set("shm.allocate@1", NULL), ZERO_OK);
    assert_int_equal(coll_open(&comm, &config, NULL), ZERO_E_NOMEM);
    assert_int_equal(base_fault_set(NULL, NULL), ZERO_OK);
    assert_int_equal(coll_open(&comm, &config, NULL), ZERO_OK);
    coll_close(comm);
    assert_int_equal(shared_mappings(), 0);
    coll_close(NULL);
    coll_team_free(team);
    coll_team_free(NULL);
}

/* ------------------------------------------------------------------ numbers */

struct seen {
    int calls;
    size_t first[WORLD];
};

static void see(void *user, int contributor, size_t element)
{
    struct seen *seen = user;
    seen->calls++;
    seen->first[contributor] = element;
}

/** Ranks 0 and 2 send elements that are not finite to rank 1, in several tiles. */
static bool nonfinite_rank(struct coll_comm *comm, void *user)
{
    const zero_dtype dtype = *(const zero_dtype *)user;
    enum { SPAN = 20000, FIRST = 3 };
    static const size_t bad[WORLD][3] = {{4099, 4098, 19999}, {0}, {4097, 1, 8192}};
    const int rank = coll_rank(comm);
    struct coll_arena *arena;
    struct base_error error;
    CHECK_OK(comm, coll_arena_create(comm, (SPAN + FIRST) * sizeof(float), &arena, &error));
    for (int i = 0; i < 3 && rank != 1; i++)
        if (dtype == ZERO_F32)
            ((float *)coll_arena_base(arena))[FIRST + bad[rank][i]] = i ? NAN : -INFINITY;
        else
            ((uint16_t *)coll_arena_base(arena))[FIRST + bad[rank][i]] = i ? 0x7f80 : 0xffff;
    float *accumulator = malloc(SPAN * sizeof *accumulator);
    const struct coll_span spans[WORLD] = {{0, 0}, {FIRST, SPAN}, {0, FIRST}};
    struct seen seen = {.first = {SIZE_MAX, SIZE_MAX, SIZE_MAX}};
    const struct coll_reduce_scatter op = {.source = coll_arena_base(arena),
                                           .dtype = dtype,
                                           .spans = spans,
                                           .accumulator = accumulator,
                                           .contributors = WORLD,
                                           .store = true,
                                           .nonfinite = see,
                                           .user = &seen};
    struct coll_request request = {0};
    bool good = accumulator &&
                rank_ok(comm, coll_reduce_scatter_start(comm, &op, &request), "start") &&
                rank_ok(comm, coll_drain(comm, &request), "drain");
    if (rank == 1)
        good = good && seen.calls == 2 && seen.first[0] == 4098 && seen.first[1] == SIZE_MAX &&
               seen.first[2] == 1 && base_f32_bits(accumulator[8192]) != 0 && accumulator[2] == 0;
    else
        good = good && seen.calls == 0;
    free(accumulator);
    CHECK(good);
    return true;
}

static void nonfinite(void **state)
{
    (void)state;
    for (zero_dtype dtype = ZERO_F32; dtype <= ZERO_BF16; dtype++) {
        assert_true(run_ranks("threads", WORLD, 0, nonfinite_rank, &dtype));
        assert_true(run_ranks("shm", WORLD, 0, nonfinite_rank, &dtype));
        assert_true(run_ranks("tcp", WORLD, 0, nonfinite_rank, &dtype));
    }
}

#if defined(__x86_64__)
/** A program that flushes denormals to zero gets the same sums, and keeps its mode. */
static bool flushing_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    struct coll_arena *arena;
    CHECK(create(comm, &arena));
    const unsigned mode = _mm_getcsr() | 0x8040;
    float sums[COUNT];
    const struct coll_span spans[WORLD] = {{0, COUNT}, {0, 0}, {0, 0}};
    for (int i = 0; i < COUNT; i++)
        ((float *)coll_arena_base(arena))[i] = 0x1p-140f;
    const struct coll_reduce_scatter op = {.source = coll_arena_base(arena),
                                           .dtype = ZERO_F32,
                                           .spans = spans,
                                           .accumulator = sums,
                                           .contributors = WORLD,
                                           .store = true};
    struct coll_request request = {0};
    _mm_setcsr(mode);
    const zero_result started = coll_reduce_scatter_start(comm, &op, &request);
    const zero_result drained = coll_drain(comm, &request);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(0x1f80);
    CHECK(started == ZERO_OK && drained == ZERO_OK && (after & 0xffc0) == (mode & 0xffc0));
    for (int i = 0; i < COUNT && coll_rank(comm) == 0; i++)
        CHECK(sums[i] == 3 * 0x1p-140f);
    return true;
}

static void flushing(void **state)
{
    (void)state;
    assert_true(run_ranks("threads", WORLD, 0, flushing_rank, NULL));
}
#endif

static int prepare(void **state)
{
    (void)state;
    told = mmap(NULL, sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return told == MAP_FAILED ? -1 : 0;
}

static int clean_up(void **state)
{
    (void)state;
    return munmap(told, sizeof *told);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(divergence),
        cmocka_unit_test(time_out),
        cmocka_unit_test(leaving),
        cmocka_unit_test(dying),
        cmocka_unit_test(aborting),
        cmocka_unit_test(a_message_that_is_late),
        cmocka_unit_test(arguments),
        cmocka_unit_test(no_memory),
        cmocka_unit_test(no_mapping),
        cmocka_unit_test(unsealed_memory),
        cmocka_unit_test(opening),
        cmocka_unit_test(nonfinite),
#if defined(__x86_64__)
        cmocka_unit_test(flushing),
#endif
    };
    return cmocka_run_group_tests(tests, prepare, clean_up);
}
