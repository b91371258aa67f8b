// What is peculiar to ranks that share no memory: what they show each other, when they may leave,
// connections that move little at a time, and peers whose words are changed on their way.
#include "base/clock.h"
#include "base/fault.h"
#include "collectives/comm/comm_internal.h"
#include "collectives/rendezvous/mesh.h"
#include "collectives/tcp/tcp_wire.h"
#include "tests/sweep.h"
#include "tests/unit/coll_ranks.h"
#include "tests/unit/coll_relay.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORLD = 3, BLOCK = 700001 };

static const uint64_t second = UINT64_C(1000000000);

static const char *const transports[] = {"tcp:threads", "tcp"};

static void on_all(int world, rank_fn fn, void *user)
{
    for (size_t i = 0; i < sizeof transports / sizeof *transports; i++)
        if (test_takes_transport(transports[i]))
            assert_true(run_ranks(transports[i], world, 0, fn, user));
}

/* ------------------------------------------------------------------ arenas */

static bool shown_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    const int me = coll_rank(comm), world = coll_world(comm);
    const size_t bytes = me == 0 ? COLL_SHOWN_BYTES + 1 : 4096 * (size_t)me - 8;
    struct coll_arena *arena;
    CHECK_OK(comm, coll_arena_create(comm, bytes, &arena, NULL));
    _Atomic uint64_t *own = coll_arena_base(arena);
    for (uint64_t round = 1; round <= 20; round++) {
        atomic_store(&own[0], round);
        atomic_store(&own[100 + round], round * 7);
        coll_arena_show(arena);
        for (int rank = 1; rank < world; rank++) {
            const _Atomic uint64_t *theirs = (const void *)coll_arena_peer(arena, rank);
            const uint64_t began = base_clock_ns();
            while (atomic_load(&theirs[0]) < round || atomic_load(&theirs[100 + round]) == 0)
                CHECK(base_clock_ns() - began < 20 * second);
            CHECK(atomic_load(&theirs[100 + round]) == round * 7);
        }
    }
    CHECK(me == 0 || coll_arena_peer(arena, 0) == NULL);
    CHECK_OK(comm, coll_barrier(comm));
    return true;
}

static void shown(void **state)
{
    (void)state;
    on_all(WORLD, shown_rank, NULL);
}

/* ------------------------------------------------------------------ leaving */

/** What is gathered, and where. */
struct gathering {
    size_t first; /**< bytes of rank 0, */
    size_t rest;  /**< and of the others */
    bool group;
};

/** Every rank gathers, and leaves as soon as its own result is there. */
static bool early_rank(struct coll_comm *comm, void *user)
{
    const struct gathering *gathering = user;
    const int world = coll_world(comm);
    struct coll_span spans[WORLD];
    struct coll_comm *group = comm;
    struct coll_arena *arena;
    if (gathering->group)
        CHECK_OK(comm, coll_split(comm, 0, -coll_rank(comm), &group, NULL));
    CHECK_OK(comm, coll_arena_create(comm, BLOCK, &arena, NULL));
    spans[0] = (struct coll_span){0, gathering->first};
    for (int rank = 1; rank < world; rank++) {
        const struct coll_span *last = &spans[rank - 1];
        spans[rank] = (struct coll_span){last->offset + last->count, gathering->rest};
    }
    unsigned char *all = calloc(WORLD, BLOCK), *own = coll_arena_base(arena);
    memset(own, 10 + coll_rank(group), BLOCK);
    usleep(coll_rank(comm) == 1 ? 50000 : 0);
    struct coll_request request = {0};
    const struct coll_all_gather op = {.source = own, .recv = all, .spans = spans};
    CHECK_OK(comm, coll_all_gather_start(group, &op, &request));
    CHECK_OK(comm, coll_wait(group, &request));
    for (int rank = 0; rank < world; rank++)
        for (size_t i = 0; i < spans[rank].count; i++)
            CHECK(all[spans[rank].offset + i] == 10 + rank);
    free(all);
    return true;
}

static void leaving(void **state)
{
    (void)state;
    on_all(WORLD, early_rank, &(struct gathering){BLOCK, BLOCK, false});
    on_all(WORLD, early_rank, &(struct gathering){BLOCK, BLOCK, true});
}

/** Rank 0 sends to rank 1 in a group, and leaves that, or the root, too. */
static bool sender_rank(struct coll_comm *comm, void *user)
{
    enum { BYTES = 100001 };
    const bool stays = *(const bool *)user;
    struct coll_comm *group;
    struct coll_arena *arena;
    CHECK_OK(comm, coll_split(comm, 0, 0, &group, NULL));
    CHECK_OK(comm, coll_arena_create(comm, BYTES, &arena, NULL));
    unsigned char *bytes = coll_arena_base(arena);
    const int me = coll_rank(comm);
    static _Thread_local struct coll_request request;
    request = (struct coll_request){0};
    const struct coll_message message = {bytes, BYTES, 1 - me, {0}};
    memset(bytes, 7 - me, BYTES);
    if (me == 0) {
        CHECK_OK(comm, coll_send_start(group, &message, &request));
    } else {
        CHECK_OK(comm, coll_receive_start(group, &message, &request));
        CHECK_OK(comm, coll_wait(group, &request));
        CHECK(bytes[0] == 7 && memcmp(bytes, bytes + 1, BYTES - 1) == 0);
    }
    coll_close(group);
    if (stays)
        CHECK_OK(comm, coll_barrier(comm));
    return true;
}

/** A rank that reads for longer than a look at who has left takes gets all of it. */
static void leaving_slow_readers(void **state)
{
    (void)state;
    assert_int_equal(base_fault_set("net.short@1+", NULL), ZERO_OK);
    for (int group = 0; group < 2; group++)
        assert_true(
            run_ranks("tcp:threads", WORLD, 0, early_rank, &(struct gathering){100001, 0, group}));
    for (int stays = 0; stays < 2; stays++)
        assert_true(run_ranks("tcp:threads", 2, 0, sender_rank, &(bool){stays}));
    assert_true(base_fault_fired() > 0);
    assert_int_equal(base_fault_set(NULL, NULL), ZERO_OK);
}

/** A run that waits out no time-out. */
static void on_all_soon(int world, rank_fn fn)
{
    for (size_t i = 0; i < sizeof transports / sizeof *transports; i++) {
        const uint64_t began = base_clock_ns();
        if (test_takes_transport(transports[i]))
            assert_true(run_ranks(transports[i], world, 60 * second, fn, NULL));
        assert_true(base_clock_ns() - began < 30 * second);
    }
}

/** Every rank leaves with a gather under way, whose result no rank waits for. */
static bool hasty_rank(struct coll_comm *comm, void *user)
{
    static _Thread_local struct coll_span spans[WORLD];
    static _Thread_local struct coll_request request;
    static _Thread_local unsigned char all[WORLD * BLOCK];
    (void)user;
    struct coll_arena *arena;
    CHECK_OK(comm, coll_arena_create(comm, BLOCK, &arena, NULL));
    for (int rank = 0; rank < coll_world(comm); rank++)
        spans[rank] = (struct coll_span){(size_t)rank * BLOCK, BLOCK};
    request = (struct coll_request){0};
    const struct coll_all_gather op = {
        .source = coll_arena_base(arena), .recv = all, .spans = spans};
    CHECK_OK(comm, coll_all_gather_start(comm, &op, &request));
    return true;
}

/** A rank that leaves reads no more: no other waits for it. */
static void leaving_at_once(void **state)
{
    (void)state;
    on_all_soon(2, hasty_rank);
    on_all_soon(WORLD, hasty_rank);
}

/** Room for a group that was given up is another one's, of fewer ranks. */
static bool given_up_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    const int me = coll_rank(comm);
    struct coll_comm *group;
    if (me == 3)
        CHECK(base_fault_set("alloc@4", NULL) == ZERO_OK);
    CHECK(coll_split(comm, 0, me, &group, NULL) == ZERO_E_NOMEM);
    CHECK(base_fault_set(NULL, NULL) == ZERO_OK);
    CHECK_OK(comm, coll_split(comm, me / 2, me, &group, NULL));
    CHECK_OK(comm, coll_barrier(group));
    return true;
}

static void leaving_after_a_failed_split(void **state)
{
    (void)state;
    const uint64_t began = base_clock_ns();
    if (test_takes_transport("tcp"))
        assert_true(run_ranks("tcp", 4, 60 * second, given_up_rank, NULL));
    assert_true(base_clock_ns() - began < 30 * second);
}

/* ------------------------------------------------------------------ connections */

/** A byte now and then. */
static void short_transfers(void **state)
{
    (void)state;
    static const char *const faults[] = {"net.short@1+", "net.short@5,net.short@9,net.short@10",
                                         "net.receive:eintr@3,net.send:eintr@4"};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        assert_int_equal(base_fault_set(faults[i], NULL), ZERO_OK);
        assert_true(run_ranks("tcp:threads", 2, 0, shown_rank, NULL));
        assert_true(base_fault_fired() > 0);
        assert_int_equal(base_fault_set(NULL, NULL), ZERO_OK);
    }
}

static int descriptors(void)
{
    int count = 0;
    for (int fd = 0; fd < 1000; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/** Whatever can't be had, nothing stays behind. */
static void short_of_everything(void **state)
{
    (void)state;
    char hosts[1][BOOT_HOST_BYTES] = {"here"};
    int sockets[] = {-1};
    struct boot_mesh mesh = {.world = 1, .sockets = sockets, .hosts = hosts};
    struct coll_config config = {
        .transport = "tcp", .world = 1, .job = "-", .name = "test", .timeout_ns = second};
    struct coll_comm *comm;
    const int opened = descriptors();
    assert_int_equal(coll_open(&comm, &config, NULL), ZERO_E_INVALID);
    config.mesh = &mesh;
    assert_int_equal(base_fault_set("net.thread@1", NULL), ZERO_OK);
    assert_int_equal(coll_open(&comm, &config, NULL), ZERO_E_NOMEM);
    assert_int_equal(descriptors(), opened);
    zero_result result = ZERO_E_NOMEM;
    for (int failing = 1; result != ZERO_OK; failing++) {
        char fault[32];
        struct coll_arena *arena;
        snprintf(fault, sizeof fault, "alloc@%d", failing);
        assert_int_equal(base_fault_set(fault, NULL), ZERO_OK);
        result = coll_open(&comm, &config, NULL);
        if (result == ZERO_OK)
            result = coll_arena_create(comm, 100, &arena, NULL);
        assert_true(result == ZERO_OK || result == ZERO_E_NOMEM);
        assert_true(base_fault_fired() == (result != ZERO_OK));
        coll_close(comm);
        assert_int_equal(descriptors(), opened);
    }
    assert_int_equal(base_fault_set(NULL, NULL), ZERO_OK);
}

/** What a communicator could not take over is still the mesh's. */
static void without_a_thread(void **state)
{
    (void)state;
    int pair[2], sockets[2] = {-1, -1};
    char hosts[2][BOOT_HOST_BYTES] = {"here", "there"};
    struct boot_mesh mesh = {.world = 2, .sockets = sockets, .hosts = hosts};
    const struct coll_config config = {.transport = "tcp",
                                       .world = 2,
                                       .job = "-",
                                       .name = "test",
                                       .mesh = &mesh,
                                       .timeout_ns = second};
    struct coll_comm *comm;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    sockets[1] = pair[0];
    assert_int_equal(base_fault_set("net.thread@1", NULL), ZERO_OK);
    assert_int_equal(coll_open(&comm, &config, NULL), ZERO_E_NOMEM);
    assert_int_equal(base_fault_set(NULL, NULL), ZERO_OK);
    assert_int_equal(sockets[1], pair[0]);
    assert_true(fcntl(pair[0], F_GETFD) >= 0);
    close(pair[0]);
    close(pair[1]);
}

/** A child that closes what its parent has opened: the parent goes on. */
static bool forking_rank(struct coll_comm *comm, void *user)
{
    (void)user;
    int status = -1;
    struct coll_comm *group;
    struct coll_arena *arena;
    CHECK_OK(comm, coll_split(comm, 0, 0, &group, NULL));
    CHECK_OK(comm, coll_arena_create(comm, 100, &arena, NULL));
    const pid_t child = fork();
    if (child == 0) {
        coll_close(comm);
        _exit(0);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    CHECK_OK(comm, coll_barrier(group));
    coll_close(group);
    CHECK_OK(comm, coll_barrier(comm));
    return true;
}

static void forks(void **state)
{
    (void)state;
    if (test_takes_transport("tcp"))
        assert_true(run_ranks("tcp", 2, 0, forking_rank, NULL));
}

/* ------------------------------------------------------------------ a peer that is changed */

/** Two ranks, and what happens to what each sends; the first one's result, which is good only if
 * the other's is. */
static zero_result run_relayed(party_fn fn, change_fn from_0, change_fn from_1,
                               struct base_error *error)
{
    struct relayed job = {.fn = fn, .changes = {from_0, from_1}, .timeout_ns = 20 * second};
    relay_run(&job);
    if (job.results[0] == ZERO_OK && job.results[1] != ZERO_OK)
        fail_msg("rank 1 alone: %d: %s", job.results[1], job.errors[1].message);
    *error = job.errors[0];
    return job.results[0];
}

static zero_result split_once(struct coll_comm *comm, struct base_error *error)
{
    struct coll_comm *group;
    return coll_split(comm, 0, 0, &group, error);
}

/** A rank's part of a split: of its operations the only one too large for a descriptor. */
static unsigned char *verdict_in(const struct net_header *header, unsigned char *rest)
{
    const size_t operation = sizeof(struct net_operation);
    return header->type == NET_OPERATION && header->bytes > operation ? rest + operation : NULL;
}

static void no_such_room(struct net_header *header, unsigned char *rest, void *user)
{
    (void)user;
    const size_t room = COLL_GROUPS_MAX;
    if (verdict_in(header, rest))
        memcpy(verdict_in(header, rest), &room, sizeof room);
}

/** A failure whose message doesn't end. */
static void endless_message(struct net_header *header, unsigned char *rest, void *user)
{
    (void)user;
    const int32_t result = ZERO_E_LIMIT;
    unsigned char *verdict = verdict_in(header, rest);
    if (!verdict)
        return;
    memset(verdict, 'x', header->bytes - sizeof(struct net_operation));
    memcpy(verdict + sizeof(size_t), &result, sizeof result);
}

/** A failure that is none: "not finished yet". */
static void no_such_result(struct net_header *header, unsigned char *rest, void *user)
{
    (void)user;
    const int32_t result = ZERO_AGAIN;
    if (verdict_in(header, rest))
        memcpy(verdict_in(header, rest) + sizeof(size_t), &result, sizeof result);
}

static void split_nonsense(void **state)
{
    (void)state;
    struct base_error error;
    assert_int_equal(run_relayed(split_once, NULL, NULL, &error), ZERO_OK);
    assert_int_equal(run_relayed(split_once, NULL, no_such_room, &error), ZERO_E_IO);
    assert_string_equal(error.message, "rank 0: rank 1 says that its part of a group is number 64");
    assert_int_equal(run_relayed(split_once, NULL, endless_message, &error), ZERO_E_LIMIT);
    assert_int_equal(strspn(error.message, "x"), COLL_MESSAGE_BYTES - 1);
    assert_int_equal(run_relayed(split_once, NULL, no_such_result, &error), ZERO_E_PEER);
}

/** Rank 1 leaves a group, at once or when both have met there; rank 0 goes on. */
static zero_result go_on(struct coll_comm *comm, bool met, struct base_error *error)
{
    static unsigned char byte;
    struct coll_comm *group;
    zero_result result = coll_split(comm, 0, coll_rank(comm), &group, error);
    if (result == ZERO_OK && met)
        result = coll_barrier(group);
    const int count = result == ZERO_OK && coll_rank(comm) == 0 ? 3 * HOST_RING : 0;
    for (int i = 0; i < count && result == ZERO_OK; i++) {
        struct coll_request request = {0};
        const struct coll_bulk_broadcast op = {.data = &byte, .bytes = 1, .root = 0};
        result = coll_broadcast_start(group, &op, &request);
        if (result == ZERO_OK)
            result = coll_drain(group, &request);
        usleep(i == 20 ? 100000 : 0);
    }
    coll_state(comm, error);
    coll_close(group);
    return result == ZERO_OK && met ? coll_barrier(comm) : result;
}

static zero_result go_on_unmet(struct coll_comm *comm, struct base_error *error)
{
    return go_on(comm, false, error);
}

static zero_result go_on_met(struct coll_comm *comm, struct base_error *error)
{
    return go_on(comm, true, error);
}

/** Rank 0 sends in a group and leaves at once, before it has heard that rank 1 is there, perhaps.
 */
static zero_result send_and_leave(struct coll_comm *comm, struct base_error *error)
{
    static _Thread_local struct coll_request request;
    static _Thread_local int number;
    struct coll_comm *group;
    request = (struct coll_request){0};
    number = coll_rank(comm) == 0 ? 42 : 0;
    const struct coll_message message = {&number, sizeof number, 1 - coll_rank(comm), {0}};
    zero_result result = coll_split(comm, 0, coll_rank(comm), &group, error);
    if (result == ZERO_OK)
        result = coll_rank(comm) == 0 ? coll_send_start(group, &message, &request)
                                      : coll_receive_start(group, &message, &request);
    if (result == ZERO_OK && coll_rank(comm) == 1)
        result = coll_wait(group, &request);
    coll_state(comm, error);
    return result == ZERO_OK && number != 42
               ? zero_fail(error, ZERO_E_CORRUPT, "rank 1 has got %d", number)
               : result;
}

static void first_room(struct net_header *header, unsigned char *rest, void *user)
{
    (void)user;
    const size_t room = 0;
    if (verdict_in(header, rest))
        memcpy(verdict_in(header, rest), &room, sizeof room);
}

static zero_result split_twice(struct coll_comm *comm, struct base_error *error)
{
    struct coll_comm *groups[2] = {NULL, NULL};
    zero_result result = coll_split(comm, 0, coll_rank(comm), &groups[0], error);
    if (result == ZERO_OK)
        result = coll_split(comm, 0, coll_rank(comm), &groups[1], error);
    if (result == ZERO_OK)
        result = coll_barrier(groups[1]);
    coll_state(comm, error);
    coll_close(groups[1]);
    coll_close(groups[0]);
    return result;
}

static void one_place_for_two_groups(void **state)
{
    (void)state;
    struct base_error error;
    assert_int_equal(run_relayed(split_twice, NULL, NULL, &error), ZERO_OK);
    assert_int_equal(run_relayed(split_twice, NULL, first_room, &error), ZERO_E_IO);
    assert_string_equal(error.message, "rank 1 says that its part of a group is number 0, which is "
                                       "another group's");
}

static void late_gone(struct net_header *header, unsigned char *rest, void *user)
{
    (void)user;
    (void)rest;
    usleep(header->type == NET_GONE ? 50000 : 0);
}

static void late_meet(struct net_header *header, unsigned char *rest, void *user)
{
    (void)user;
    (void)rest;
    usleep(header->type == NET_MEET ? 50000 : 0);
}

/** What is said of a group arrives late, or is never said. */
static void left_alone(void **state)
{
    (void)state;
    static const change_fn changes[][2] = {
        {NULL, NULL}, {NULL, late_gone}, {late_meet, NULL}, {NULL, late_meet}};
    static const party_fn parties[] = {go_on_unmet, go_on_met, send_and_leave};
    struct base_error error;
    for (size_t i = 0; i < 3 * sizeof changes / sizeof *changes; i++) {
        const change_fn *change = changes[i / 3];
        if (run_relayed(parties[i % 3], change[0], change[1], &error) != ZERO_OK)
            fail_msg("%zu: %s", i, error.message);
    }
}

/** Rank 0 has its results at once, and leaves. */
static zero_result tell_and_leave(struct coll_comm *comm, struct base_error *error)
{
    static _Thread_local unsigned char bytes[64 * 1024];
    memset(bytes, 1 + coll_rank(comm), sizeof bytes);
    zero_result result = coll_barrier(comm);
    if (result == ZERO_OK)
        result = coll_broadcast(comm, bytes, sizeof bytes, 0);
    coll_state(comm, error);
    return result == ZERO_OK && (bytes[0] != 1 || memcmp(bytes, bytes + 1, sizeof bytes - 1) != 0)
               ? zero_fail(error, ZERO_E_CORRUPT, "other bytes")
               : result;
}

/** What comes behind the first counters is kept waiting for a time, in microseconds. */
static void hold_up(struct net_header *header, unsigned char *rest, void *user)
{
    unsigned *time = user;
    (void)rest;
    if (header->type != NET_COUNTERS)
        return;
    usleep(*time);
    *time = 0;
}

/** What a rank has said when it leaves comes to a peer, however late that listens, and though that
 * says something itself meanwhile. */
static void leaving_deaf_peers(void **state)
{
    (void)state;
    unsigned times[] = {1500000, 1200000}; // longer than peers that have it all get to hear it
    struct relayed job = {.fn = tell_and_leave,
                          .changes = {hold_up, hold_up},
                          .users = {&times[0], &times[1]},
                          .timeout_ns = 20 * second,
                          .room = 4096};
    relay_run(&job);
    for (int rank = 0; rank < 2; rank++)
        if (job.results[rank] != ZERO_OK)
            fail_msg("rank %d: %s", rank, job.errors[rank].message);
}

/* ------------------------------------------------------------------ pieces ahead */

/** What a rank asks of the other one, and whether it had asked for a second piece while it summed
 * the first. */
struct asking {
    atomic_int asks;
    bool ahead;
};

static struct asking askings[2];

static void count_asks(struct net_header *header, unsigned char *rest, void *user)
{
    struct asking *asking = user;
    (void)rest;
    if (header->type == NET_ASK)
        atomic_fetch_add(&asking->asks, 1);
}

static void await_second_ask(void *user, size_t first, size_t count, const void *sum)
{
    struct asking *asking = user;
    (void)count;
    (void)sum;
    const uint64_t deadline = base_clock_ns() + 10 * second;
    while (first == 0 && atomic_load(&asking->asks) < 2 && base_clock_ns() < deadline)
        usleep(100);
    if (first == 0)
        asking->ahead = atomic_load(&asking->asks) >= 2;
}

static zero_result sum_pieces(struct coll_comm *comm, struct base_error *error)
{
    enum { COUNT = 300000 }; // of several pieces
    const struct coll_span spans[2] = {{0, COUNT}, {COUNT, COUNT}};
    float *source = calloc(2 * COUNT, sizeof *source), *sum = calloc(COUNT, sizeof *sum);
    for (size_t i = 0; source && i < (size_t)2 * COUNT; i++)
        source[i] = (float)(i + 1);
    const struct coll_reduce_scatter op = {.source = source,
                                           .dtype = ZERO_F32,
                                           .spans = spans,
                                           .accumulator = sum,
                                           .contributors = 2,
                                           .store = true,
                                           .tile = await_second_ask,
                                           .user = &askings[coll_rank(comm)]};
    struct coll_request request = {0};
    coll_reduce_scatter_start(comm, &op, &request);
    zero_result result = coll_drain(comm, &request);
    coll_state(comm, error);
    for (size_t i = 0; i < COUNT && result == ZERO_OK; i++)
        if (sum[i] != (float)(2 * (spans[coll_rank(comm)].offset + i + 1)))
            result = zero_fail(error, ZERO_E_CORRUPT, "element %zu of the sum is wrong", i);
    free(source);
    free(sum);
    return result;
}

/** The next piece of a sum is on its way while one is summed, and none is asked for twice. */
static void next_pieces_travel_meanwhile(void **state)
{
    (void)state;
    struct relayed job = {.fn = sum_pieces,
                          .changes = {count_asks, count_asks},
                          .users = {&askings[0], &askings[1]},
                          .timeout_ns = 20 * second};
    relay_run(&job);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(job.results[rank], ZERO_OK);
        assert_true(askings[rank].ahead);
        assert_int_equal(atomic_load(&askings[rank].asks), 3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shown),
        cmocka_unit_test(leaving),
        cmocka_unit_test(leaving_slow_readers),
        cmocka_unit_test(leaving_at_once),
        cmocka_unit_test(leaving_after_a_failed_split),
        cmocka_unit_test(short_transfers),
        cmocka_unit_test(forks),
        cmocka_unit_test(short_of_everything),
        cmocka_unit_test(without_a_thread),
        cmocka_unit_test(split_nonsense),
        cmocka_unit_test(one_place_for_two_groups),
        cmocka_unit_test(left_alone),
        cmocka_unit_test(leaving_deaf_peers),
        cmocka_unit_test(next_pieces_travel_meanwhile),
    };
    return cmocka_run_group_tests_name("coll_tcp", tests, NULL, NULL);
}
