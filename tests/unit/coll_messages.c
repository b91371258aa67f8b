// Sends and receives: orders, sizes, room, oneself; what a peer's mistake, leaving or death does.

#include "base/arena.h"
#include "base/fault.h"
#include "tests/sweep.h"
#include "tests/unit/coll_ranks.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST_WORLD = 5, MANY = 100, MOST_BYTES = 70000 };

static const char *const transports[] = {"threads", "shm", "tcp:threads", "tcp", "hosts"};

enum { TRANSPORTS = sizeof transports / sizeof *transports };

/** What rank 0 sends to whom as its n-th message. */
static void write_bytes(unsigned char *at, size_t bytes, int from, int to, uint32_t n)
{
    for (size_t i = 0; i < bytes; i++)
        at[i] = (unsigned char)mix((uint32_t)(from * MOST_WORLD + to), n, (uint32_t)i);
}

static bool read_bytes(const unsigned char *at, size_t bytes, int from, int to, uint32_t n)
{
    for (size_t i = 0; i < bytes; i++)
        CHECK(at[i] == (unsigned char)mix((uint32_t)(from * MOST_WORLD + to), n, (uint32_t)i));
    return true;
}

static size_t size_of(int from, int to, uint32_t n)
{
    static const size_t sizes[] = {0, 1, 7, 64, 4097, 65536};
    return sizes[mix((uint32_t)from, (uint32_t)to, n) % 6];
}

/** Every rank sends to every rank, itself included, more than there is room for, before it receives
 * anything; received and waited for in orders of its own. */
static bool flood(struct coll_comm *comm, void *user)
{
    const bool arena = user != NULL;
    const int me = coll_rank(comm), world = coll_world(comm);
    const size_t count = (size_t)world * MANY;
    struct coll_arena *shared;
    struct base_error error = {0};
    CHECK_OK(comm, coll_arena_create(comm, arena ? count * 4096 : 0, &shared, &error));
    struct coll_request *sends = calloc(count, sizeof *sends);
    struct coll_request *receives = calloc(count, sizeof *receives);
    unsigned char *from = arena ? coll_arena_base(shared) : malloc(count * 4096);
    unsigned char *to = malloc(count * 4096);
    CHECK(sends && receives && from && to);
    const uint64_t allocations = base_allocation_count();
    for (uint32_t n = 0; n < MANY; n++)
        for (int i = 0; i < world; i++) {
            const int peer = (me + i) % world;
            const size_t k = (size_t)peer * MANY + n, bytes = size_of(me, peer, n) % 4096;
            write_bytes(from + k * 4096, bytes, me, peer, n);
            const struct coll_message op = {from + k * 4096, bytes, peer, {"letter", n, NULL}};
            CHECK_OK(comm, coll_send_start(comm, &op, &sends[k]));
        }
    for (int i = world - 1; i >= 0; i--)
        for (uint32_t n = 0; n < MANY; n++) {
            const int peer = (me + i) % world;
            const size_t k = (size_t)peer * MANY + n, bytes = size_of(peer, me, n) % 4096;
            const struct coll_message op = {to + k * 4096, bytes, peer, {"letter", n, NULL}};
            CHECK_OK(comm, coll_receive_start(comm, &op, &receives[k]));
        }
    uint32_t random = (uint32_t)me;
    for (size_t i = 0; i < 2 * count; i++) {
        random = mix(random, 1, 1);
        CHECK_OK(comm, coll_drain(comm, random % 2 ? &sends[random / 2 % count]
                                                   : &receives[random / 2 % count]));
    }
    for (size_t k = count; k-- > 0;) {
        const int peer = (int)(k / MANY);
        const uint32_t n = (uint32_t)(k % MANY);
        CHECK_OK(comm, coll_wait(comm, &receives[k]));
        CHECK_OK(comm, coll_drain(comm, &receives[k]));
        CHECK_OK(comm, coll_drain(comm, &sends[k]));
        CHECK(coll_drained(comm, &sends[k]) && coll_drained(comm, &receives[k]));
        CHECK(read_bytes(to + k * 4096, size_of(peer, me, n) % 4096, peer, me, n));
    }
    CHECK(base_allocation_count() == allocations || strcmp(coll_transport_name(comm), "shm") != 0);
    CHECK_OK(comm, coll_barrier(comm));
    free(sends);
    free(receives);
    free(arena ? NULL : from);
    free(to);
    return true;
}

static void test_flood(void **state)
{
    (void)state;
    for (int world = 1; world <= MOST_WORLD; world++)
        for (int i = 0; i < TRANSPORTS; i++) {
            if (!test_takes_transport(transports[i]))
                continue;
            assert_true(run_ranks(transports[i], world, 0, flood, "arena"));
            assert_true(run_ranks(transports[i], world, 0, flood, NULL));
        }
    assert_true(run_ranks("self", 1, 0, flood, NULL));
}

// As where the kernel lets no process read another's memory.
static void test_copied(void **state)
{
    (void)state;
    if (!test_takes_transport("shm"))
        skip();
    assert_int_equal(base_fault_set("shm.peek@1", NULL), ZERO_OK);
    assert_true(run_ranks("shm", 3, 0, flood, NULL));
    assert_int_equal(base_fault_set(NULL, NULL), ZERO_OK);
}

/** A pipeline: each rank takes from the one before and gives to the next, while collectives are
 * under way; over groups of neighbours, so that each has its own order. */
static bool pipeline(struct coll_comm *root, void *user)
{
    (void)user;
    const int me = coll_rank(root), world = coll_world(root);
    struct coll_comm *line;
    struct base_error error = {0};
    CHECK_OK(root, coll_split(root, 0, -me, &line, &error)); // backwards
    const int here = coll_rank(line);
    unsigned char *bytes = malloc(MOST_BYTES);
    CHECK(bytes);
    for (uint32_t n = 0; n < 50; n++) {
        const size_t size = mix(n, 5, 5) % MOST_BYTES;
        struct coll_request request = {0}, publication = {0};
        struct coll_span spans[MOST_WORLD] = {{0, 0}};
        spans[n % (uint32_t)world].count = 1;
        const struct coll_all_gather published = {.source = bytes, .spans = spans};
        CHECK_OK(root, coll_all_gather_start(root, &published, &publication));
        if (here > 0) {
            const struct coll_message op = {bytes, size, here - 1, {0}};
            CHECK_OK(line, coll_receive_start(line, &op, &request));
            CHECK_OK(line, coll_drain(line, &request));
            CHECK(read_bytes(bytes, size, here - 1, here, n));
        }
        if (here < world - 1) {
            write_bytes(bytes, size, here, here + 1, n);
            const struct coll_message op = {bytes, size, here + 1, {0}};
            CHECK_OK(line, coll_send_start(line, &op, &request));
            CHECK_OK(line, coll_drain(line, &request));
        }
        CHECK_OK(root, coll_drain(root, &publication));
    }
    free(bytes);
    return true;
}

static void test_pipeline(void **state)
{
    (void)state;
    for (int i = 0; i < TRANSPORTS; i++)
        if (test_takes_transport(transports[i]))
            assert_true(run_ranks(transports[i], 4, 0, pipeline, NULL));
}

/* ------------------------------------------------------------------ failures */

static zero_result send_one(struct coll_comm *comm, int peer, size_t bytes)
{
    static unsigned char data[64];
    struct coll_request request = {0};
    const struct coll_message op = {data, bytes, peer, {"token", 7, "x"}};
    const zero_result result = coll_send_start(comm, &op, &request);
    return result ? result : coll_drain(comm, &request);
}

static zero_result receive_one(struct coll_comm *comm, int peer, size_t bytes)
{
    unsigned char data[64];
    struct coll_request request = {0};
    const struct coll_message op = {data, bytes, peer, {0}};
    const zero_result result = coll_receive_start(comm, &op, &request);
    return result ? result : coll_drain(comm, &request);
}

static bool shows(struct coll_comm *comm, const char *text)
{
    struct base_error error = {0};
    coll_state(comm, &error);
    if (strstr(error.message, text))
        return true;
    fprintf(stderr, "rank %d: \"%s\" is not in: %s\n", coll_rank(comm), text, error.message);
    return false;
}

/** The second message of two: another size here than there. */
static bool sizes_differ(struct coll_comm *comm, void *user)
{
    (void)user;
    struct coll_comm *pair;
    struct base_error error = {0};
    CHECK_OK(comm,
             coll_split(comm, coll_rank(comm) == 0 ? -1 : 5, -coll_rank(comm), &pair, &error));
    zero_result result;
    if (coll_rank(comm) == 2)
        result = send_one(pair, 1, 16) ? ZERO_E_STATE : send_one(pair, 1, 16);
    else if (coll_rank(comm) == 1)
        result = receive_one(pair, 0, 16) ? ZERO_E_STATE : receive_one(pair, 0, 17);
    else
        result = coll_barrier(comm);
    CHECK(result == ZERO_E_DIVERGED);
    return shows(comm, "group test/1.5: rank 1 called receive #1 of 17 bytes from 2, rank 2 called "
                       "send #1 of 16 bytes to 1, token 7 (x)");
}

/** A peer that has left: what it sent before is still received, more is waited for in vain. */
static bool sender_left(struct coll_comm *comm, void *user)
{
    (void)user;
    if (coll_rank(comm) == 1) {
        struct coll_arena *arena;
        struct base_error error = {0};
        CHECK_OK(comm, coll_arena_create(comm, 64, &arena, &error));
        struct coll_request *request = calloc(1, sizeof *request);
        const struct coll_message op = {coll_arena_base(arena), 64, 0, {0}};
        CHECK_OK(comm, coll_send_start(comm, &op, request));
        coll_close(comm);
        free(request);
        _exit(0);
    }
    struct coll_arena *arena;
    struct base_error error = {0};
    CHECK_OK(comm, coll_arena_create(comm, 64, &arena, &error));
    usleep(20000);
    CHECK_OK(comm, receive_one(comm, 1, 64));
    CHECK(receive_one(comm, 1, 64) == ZERO_E_PEER);
    return shows(comm, "rank 1 has closed the communicator, and rank 0 waits for it in receive #1");
}

static bool receiver_left(struct coll_comm *comm, void *user)
{
    (void)user;
    if (coll_rank(comm) == 1)
        return true;
    CHECK(send_one(comm, 1, 64) == ZERO_E_PEER);
    return shows(comm, "rank 0 waits for it in send #0 of 64 bytes to 1, token 7 (x)");
}

static bool receiver_dies(struct coll_comm *comm, void *user)
{
    (void)user;
    if (coll_rank(comm) == 1)
        raise(SIGKILL);
    // More than there is room for.
    struct coll_request requests[20] = {0};
    unsigned char data[64] = {0};
    const struct coll_message op = {data, sizeof data, 1, {0}};
    for (int i = 0; i < 20; i++)
        if (coll_send_start(comm, &op, &requests[i]) != ZERO_OK)
            break;
    CHECK(coll_drain(comm, &requests[19]) == ZERO_E_PEER);
    return shows(comm, "rank 1");
}

static bool never_comes(struct coll_comm *comm, void *user)
{
    (void)user;
    const int me = coll_rank(comm);
    CHECK((me == 0 ? receive_one(comm, 1, 8) : coll_barrier(comm)) == ZERO_E_TIMEOUT);
    return shows(comm, "waited");
}

static bool oneself_never(struct coll_comm *comm, void *user)
{
    (void)user;
    CHECK(send_one(comm, 0, 8) == ZERO_E_TIMEOUT);
    return shows(comm, "in send #0 of 8 bytes to 0, token 7 (x) for rank 0");
}

/** Calls that are refused. */
static bool refused(struct coll_comm *comm, void *user)
{
    const struct coll_message *op = user;
    struct coll_request request = {0};
    const zero_result result =
        coll_rank(comm) == 1 ? coll_send_start(comm, op, &request) : receive_one(comm, 1, 8);
    CHECK(result == ZERO_E_INVALID);
    return shows(comm, "rank 1");
}

static bool twice(struct coll_comm *comm, void *user)
{
    (void)user;
    unsigned char data[8] = {0};
    struct coll_request request = {0};
    const struct coll_message op = {data, 8, 1 - coll_rank(comm), {0}};
    zero_result result = coll_receive_start(comm, &op, &request);
    if (result == ZERO_OK)
        result = coll_send_start(comm, &op, &request);
    CHECK(result == ZERO_E_INVALID);
    return shows(comm, "the request is not drained");
}

static void test_failures(void **state)
{
    (void)state;
    static struct coll_message wrong[] = {
        {&wrong, 8, 2, {0}}, {&wrong, 8, -1, {0}}, {NULL, 8, 0, {0}}};
    for (int i = 0; i < TRANSPORTS; i++) {
        if (!test_takes_transport(transports[i]))
            continue;
        assert_true(run_ranks(transports[i], 3, 0, sizes_differ, NULL));
        assert_true(run_ranks(transports[i], 2, 0, receiver_left, NULL));
        assert_true(run_ranks(transports[i], 2, UINT64_C(1000000000), never_comes, NULL));
        assert_true(run_ranks(transports[i], 2, 0, twice, NULL));
        for (int k = 0; k < 3; k++)
            assert_true(run_ranks(transports[i], 2, 0, refused, &wrong[k]));
    }
    assert_true(run_ranks("self", 1, UINT64_C(200000000), oneself_never, NULL));
    assert_true(run_ranks("shm", 2, 0, sender_left, NULL));
    assert_true(run_ranks_killed(2, 1, receiver_dies, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flood),
        cmocka_unit_test(test_copied),
        cmocka_unit_test(test_pipeline),
        cmocka_unit_test(test_failures),
    };
    return cmocka_run_group_tests_name("coll_messages", tests, NULL, NULL);
}
