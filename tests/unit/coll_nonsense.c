// What a rank hears of who is none: nonsense, noise, and more than it can listen to.
#include "base/clock.h"
#include "base/fault.h"
#include "collectives/rendezvous/mesh.h"
#include "collectives/tcp/tcp_wire.h"
#include "tests/unit/coll_ranks.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static const uint64_t second = UINT64_C(1000000000);

/* ------------------------------------------------------------------ nonsense */

/** What a rank sends that is none. */
struct nonsense {
    struct net_header header;
    union net_fixed fixed;
};

static uint64_t patience_ns = UINT64_C(20000000000);
static int connection; // of rank 0 to who is no rank

static void *open_alone(void *user)
{
    struct base_error *error = user;
    int sockets[2] = {-1, connection};
    char hosts[2][BOOT_HOST_BYTES] = {"here", "there"};
    struct boot_mesh mesh = {.world = 2, .sockets = sockets, .hosts = hosts};
    const struct coll_config config = {.transport = "tcp",
                                       .world = 2,
                                       .job = "coll-test-nonsense",
                                       .name = "test",
                                       .mesh = &mesh,
                                       .timeout_ns = patience_ns};
    struct coll_comm *comm;
    if (coll_open(&comm, &config, error) != ZERO_OK) {
        close(sockets[1]);
        return NULL;
    }
    const zero_result result = coll_barrier(comm);
    coll_state(comm, error);
    coll_close(comm);
    return result == ZERO_OK ? NULL : error;
}

/** Sends bytes to a rank that waits for another one; its message. */
static void harass(const void *bytes, size_t count, struct base_error *error)
{
    int pair[2];
    pthread_t thread;
    void *failed;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    connection = pair[0];
    assert_int_equal(send(pair[1], bytes, count, MSG_NOSIGNAL), (ssize_t)count);
    base_error_clear(error);
    assert_int_equal(pthread_create(&thread, NULL, open_alone, error), 0);
    shutdown(pair[1], SHUT_WR);
    assert_int_equal(pthread_join(thread, &failed), 0);
    close(pair[1]);
    assert_ptr_equal(failed, error);
}

static struct net_operation small_operation(uint64_t sequence, uint32_t kind, uint64_t bytes)
{
    struct net_operation operation = {.sequence = sequence};
    operation.signature.kind = kind;
    operation.signature.bytes = bytes;
    memset(operation.signature.name, 'x', sizeof operation.signature.name);
    return operation;
}

static void nonsense(void **state)
{
    (void)state;
    const uint32_t operation = sizeof(struct net_operation);
    const struct nonsense all[] = {
        {.header = {0, 0, 0}},
        {.header = {0, NET_TYPES, 0}},
        {.header = {UINT32_MAX, NET_BEAT, 0}},
        {.header = {8, NET_BEAT, 0}},
        {.header = {operation - 1, NET_OPERATION, 0}},
        {{operation, NET_OPERATION, 64}, {.operation = small_operation(0, COLL_BARRIER, 0)}},
        {{operation, NET_OPERATION, 9999}, {.operation = small_operation(0, COLL_BARRIER, 0)}},
        {{operation, NET_OPERATION, 0}, {.operation = small_operation(1, COLL_BARRIER, 0)}},
        {{operation + COLL_SMALL_BYTES + 1, NET_OPERATION, 0},
         {.operation = small_operation(0, COLL_EXCHANGE, COLL_SMALL_BYTES + 1)}},
        {{operation + 100, NET_OPERATION, 0},
         {.operation = small_operation(0, COLL_ALL_GATHER, 100)}},
        {{sizeof(struct net_counters), NET_COUNTERS, 0}, {.counters = {1, 0}}},
        {{sizeof(struct net_p2p_slot), NET_P2P_SLOT, 0}, {.p2p_slot = {.number = 1}}},
        {{sizeof(struct net_received), NET_RECEIVED, 0}, {.received = {1}}},
        {{sizeof(struct net_last_call), NET_LAST_CALL, 0}, {.last_call = {.stamp = 1}}},
        {{sizeof(struct net_poison), NET_POISON, 0}, {.poison = {.result = 0}}},
        {{sizeof(struct net_poison), NET_POISON, 0}, {.poison = {.result = INT32_MIN}}},
        {{sizeof(struct net_poison), NET_POISON, 0}, {.poison = {.result = ZERO_E_ABORTED - 1}}},
        {{sizeof(struct net_ask), NET_ASK, 0}, {.ask = {.place.bytes = 8}}},
        {{sizeof(struct net_ask), NET_ASK, 0}, {.ask = {.place.bytes = UINT64_MAX}}},
        {{sizeof(struct net_ask), NET_ASK, 3}, {.ask = {.place.bytes = 8}}},
        {{sizeof(struct net_ask), NET_ASK, 0}, {.ask = {.place.bytes = 8, .message = 1}}},
        {{sizeof(struct net_ask), NET_ASK, 0}, {.ask = {.place = {.bytes = 8, .arena = 5}}}},
        {.header = {0, NET_PIECE, 0}},
        {.header = {100, NET_PIECE, 0}},
        {.header = {0, NET_MEET, 0}},
        {.header = {0, NET_MEET, 1}},
        {.header = {0, NET_GONE, 1}},
        {{sizeof(struct net_shown), NET_SHOWN, 0}, {.shown = {.arena = 7}}},
    };
    struct base_error error = {0};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        unsigned char bytes[sizeof(struct net_header) + sizeof(union net_fixed)] = {0};
        memcpy(bytes, &all[i].header, sizeof all[i].header);
        memcpy(bytes + sizeof all[i].header, &all[i].fixed, sizeof all[i].fixed);
        const size_t room = sizeof all[i].fixed, said = all[i].header.bytes;
        harass(bytes, sizeof all[i].header + (said < room ? said : room), &error);
        if (!strstr(error.message, "rank 1 on there has sent what is no message of this job"))
            fail_msg("nonsense %zu: %s", i, error.message);
    }
}

/* ------------------------------------------------------------------ noise */

/** Anything at all: an error, and no harm. */
static void noise(void **state)
{
    (void)state;
    struct base_error error = {0};
    for (uint32_t seed = 0; seed < 300; seed++) {
        unsigned char bytes[4000];
        size_t used = 0;
        // Frames of the right lengths with random contents, mostly small numbers.
        while (used + sizeof(struct net_header) + sizeof(union net_fixed) < sizeof bytes) {
            static const size_t fixed[] = {[NET_OPERATION] = sizeof(struct net_operation),
                                           [NET_COUNTERS] = sizeof(struct net_counters),
                                           [NET_P2P_SLOT] = sizeof(struct net_p2p_slot),
                                           [NET_RECEIVED] = sizeof(struct net_received),
                                           [NET_LAST_CALL] = sizeof(struct net_last_call),
                                           [NET_ASK] = sizeof(struct net_ask),
                                           [NET_SHOWN] = sizeof(struct net_shown),
                                           [NET_BEAT] = 0};
            const uint32_t type = mix(seed, (uint32_t)used, 1) % NET_TYPES;
            const size_t size = type < sizeof fixed / sizeof *fixed ? fixed[type] : 0;
            const struct net_header header = {(uint32_t)size, (uint16_t)type, 0};
            memcpy(bytes + used, &header, sizeof header);
            used += sizeof header;
            for (size_t i = 0; i < size; i++)
                bytes[used + i] = mix(seed, (uint32_t)(used + i), 2) % 4 == 0
                                      ? (unsigned char)mix(seed, (uint32_t)(used + i), 3)
                                      : 0;
            used += size;
        }
        harass(bytes, used, &error);
        assert_true(strlen(error.message) > 0);
    }
}

/* ------------------------------------------------------------------ a flood */

/** Says that it lives until no peer listens any more, or for a minute; whether none did. */
static bool flood(int socket)
{
    static struct net_header beats[8192];
    const uint64_t deadline = base_clock_ns() + 40 * second;
    for (size_t i = 0; i < sizeof beats / sizeof *beats; i++)
        beats[i] = (struct net_header){.type = NET_BEAT};
    size_t at = 0;
    while (base_clock_ns() < deadline) {
        const ssize_t sent =
            send(socket, (const char *)beats + at, sizeof beats - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno != EAGAIN)
            return true;
        at = sent > 0 ? (at + (size_t)sent) % sizeof beats : at;
        if (sent < 0)
            sched_yield();
    }
    return false;
}

/** A rank that moves a byte at a time never comes to the end of what is said to it. Its own calls
 * end all the same, and it can leave. */
static void a_flood(void **state)
{
    (void)state;
    struct base_error error = {0};
    pthread_t thread;
    void *failed;
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    connection = pair[0];
    patience_ns = second / 5;
    assert_int_equal(base_fault_set("net.short@1+", NULL), ZERO_OK);
    assert_int_equal(pthread_create(&thread, NULL, open_alone, &error), 0);
    const bool ended = flood(pair[1]);
    assert_int_equal(pthread_join(thread, &failed), 0);
    assert_int_equal(base_fault_set(NULL, NULL), ZERO_OK);
    patience_ns = 20 * second;
    close(pair[1]);
    assert_true(ended);
    assert_ptr_equal(failed, &error);
    assert_int_equal(error.result, ZERO_E_TIMEOUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nonsense),
        cmocka_unit_test(noise),
        cmocka_unit_test(a_flood),
    };
    return cmocka_run_group_tests_name("coll_nonsense", tests, NULL, NULL);
}
