// The memory of a communicator: arenas of one's own and shared ones, what a failure leaves behind,
// and publications.

#include "base/arena.h"
#include "base/fault.h"
#include "collectives/comm.h"
#include "tests/unit/coll_ranks.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST = 8 };

static const char *const transports[] = {"threads", "shm"};

static void on_both(int world, rank_fn fn, void *user)
{
    for (size_t i = 0; i < sizeof transports / sizeof *transports; i++)
        assert_true(run_ranks(transports[i], world, 0, fn, user));
}

/** Rank `rank`'s part of `bytes` bytes, cut at no round places. */
static struct coll_span part(size_t bytes, int rank, int world)
{
    const size_t begin = bytes * (size_t)rank / (size_t)world;
    const size_t end = bytes * ((size_t)rank + 1) / (size_t)world;
    return (struct coll_span){begin, end - begin};
}

static unsigned char byte_of(size_t at, uint32_t turn)
{
    return (unsigned char)(mix((uint32_t)at, turn, 7) >> 8);
}

/* ------------------------------------------------------------------ shared arenas */

/** Whether a byte can be stored there: a child tries. */
static bool writable(const void *address)
{
    int status = 0;
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        *(volatile unsigned char *)(uintptr_t)address = 1;
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return false;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool publish(struct coll_comm *comm, const struct coll_span *spans, uint32_t number)
{
    struct coll_request request = {0};
    const struct coll_all_gather op = {.spans = spans, .label = {"unit", number, "shared"}};
    CHECK_OK(comm, coll_all_gather_start(comm, &op, &request));
    CHECK_OK(comm, coll_drain(comm, &request));
    return true;
}

/** Every rank writes its part through base, publishes it, and reads the whole in both mappings. */
static bool write_and_read(struct coll_comm *comm, struct coll_arena *arena)
{
    const int world = coll_world(comm);
    unsigned char *base = coll_arena_base(arena);
    const unsigned char *view = coll_arena_view(arena);
    struct coll_span spans[MOST];
    for (int rank = 0; rank < world; rank++)
        spans[rank] = part(coll_arena_size(arena), rank, world);
    const struct coll_span mine = spans[coll_rank(comm)];
    for (uint32_t turn = 0; turn < 3; turn++) {
        for (size_t i = mine.offset; i < mine.offset + mine.count; i += 31)
            base[i] = byte_of(i, turn);
        CHECK(publish(comm, spans, turn));
        for (int rank = 0; rank < world; rank++)
            for (size_t i = 0; i < spans[rank].count; i += 31) {
                const size_t at = spans[rank].offset + i;
                CHECK(base[at] == byte_of(at, turn) && view[at] == byte_of(at, turn));
            }
        CHECK_OK(comm, coll_barrier(comm)); // before anybody writes again
    }
    return true;
}

static bool shared_rank(struct coll_comm *comm, void *user)
{
    const size_t bytes = *(const size_t *)user;
    const int rank = coll_rank(comm), world = coll_world(comm);
    // Two ranges each, the second half of one's part first.
    const struct coll_span all = part(bytes, rank, world);
    const struct coll_span mine[2] = {{all.offset + all.count / 2, all.count - all.count / 2},
                                      {all.offset, all.count / 2}};
    struct coll_arena *arena;
    struct base_error error = {0};
    CHECK(coll_arena_create_shared(comm, bytes, mine, 2, &arena, &error) == ZERO_OK);
    CHECK(coll_arena_size(arena) == bytes);
    if (bytes == 0) {
        CHECK(!coll_arena_base(arena) && !coll_arena_view(arena) && !coll_arena_peer(arena, 0));
        return true;
    }
    const unsigned char *base = coll_arena_base(arena), *view = coll_arena_view(arena);
    CHECK((uintptr_t)base % 4096 == 0 && (uintptr_t)view % 4096 == 0 && base != view);
    for (int peer = 0; peer < world; peer++)
        CHECK(coll_arena_peer(arena, peer) == base);
    struct rusage before, after;
    getrusage(RUSAGE_THREAD, &before);
    unsigned sum = 0;
    for (size_t i = 0; i < bytes; i += 512)
        sum += base[i] + view[i];
    getrusage(RUSAGE_THREAD, &after);
    CHECK(sum == 0 && after.ru_minflt == before.ru_minflt);
    CHECK_OK(comm, coll_barrier(comm));
    CHECK(write_and_read(comm, arena));
    CHECK(writable(base + bytes - 1) && !writable(view + bytes - 1) && !writable(view));
    CHECK_OK(comm, coll_barrier(comm));
    return true;
}

static void shared(void **state)
{
    (void)state;
    static size_t sizes[] = {
        0, 1, 4095, 4096, 5 * 4096 + 1, (2u << 20), (2u << 20) + 1, (7u << 20) + 12345};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        on_both(3, shared_rank, &sizes[i]);
        assert_true(run_ranks("self", 1, 0, shared_rank, &sizes[i]));
    }
    for (int world = 1; world <= 5; world++)
        on_both(world, shared_rank, &sizes[7]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
