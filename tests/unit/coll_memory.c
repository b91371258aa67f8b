// The memory of a communicator: arenas of one's own and shared ones, what a failure leaves behind,
// and publications.

#include "base/fault.h"
#include "collectives/comm/comm.h"
#include "tests/ranks/process_memory.h"
#include "tests/sweep.h"
#include "tests/unit/coll_ranks.h"

#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST = 8 };

static const char *const transports[] = {"threads", "shm"};

static void on_both(int world, rank_fn fn, void *user)
{
    for (size_t i = 0; i < sizeof transports / sizeof *transports; i++)
        if (test_takes_transport(transports[i]))
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
        CHECK_OK(comm, coll_barrier(comm)); // before a rank writes again
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
    CHECK(sum == 0 && (process_sanitized() || after.ru_minflt == before.ru_minflt));
    CHECK_OK(comm, coll_barrier(comm));
    CHECK(write_and_read(comm, arena));
    CHECK(writable(base + bytes - 1) && !writable(view + bytes - 1) && !writable(view));
    CHECK_OK(comm, coll_barrier(comm));
    return true;
}

static size_t sizes[] = {
    0, 1, 4095, 4096, 5 * 4096 + 1, 2u << 20, (2u << 20) + 1, (7u << 20) + 12345};

static void shared(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        on_both(3, shared_rank, &sizes[i]);
        assert_true(run_ranks("self", 1, 0, shared_rank, &sizes[i]));
    }
    for (int world = 1; world <= 5; world++)
        if (world != 3 && test_takes(world + world / 3)) // 3 was above
            on_both(world, shared_rank, &sizes[7]);
}

/** Kernels that fill in no page tables when asked, and that have no huge pages for this. */
static void older_kernels(void **state)
{
    (void)state;
    static const char *const kernels[] = {"shm.populate:einval@1+", "shm.huge:einval@1+",
                                          "shm.huge:enomem@2"};
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        assert_int_equal(base_fault_set(kernels[i], NULL), ZERO_OK);
        on_both(3, shared_rank, &sizes[7]);
    }
    assert_int_equal(base_fault_set(NULL, NULL), ZERO_OK);
}

/* ------------------------------------------------------------------ what goes wrong */

/** Lines of a file of /proc/self with `what` in them. */
static int lines_with(const char *file, const char *what)
{
    char line[512];
    int count = 0;
    FILE *opened = fopen(file, "r");
    while (opened && fgets(line, sizeof line, opened))
        count += strstr(line, what) != NULL;
    if (opened)
        fclose(opened);
    return count;
}

static int mappings(void)
{
    return lines_with("/proc/self/maps", "memfd:zero");
}

static int descriptors(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder))
        count++;
    if (folder)
        closedir(folder);
    return count;
}

/** What this process holds, at a time when no rank of it changes that. */
struct held {
    int mappings, descriptors;
};

static bool hold(struct coll_comm *comm, struct held *held)
{
    const bool mine = coll_rank(comm) == 0 || strcmp(coll_transport_name(comm), "shm") == 0;
    CHECK_OK(comm, coll_barrier(comm));
    *held = mine ? (struct held){mappings(), descriptors()} : (struct held){0, 0};
    CHECK_OK(comm, coll_barrier(comm));
    return true;
}

/** What a rank asks for, and what all of them get. */
struct demand {
    const char *name;
    size_t bytes[2];
    struct coll_span mine[2];
    zero_result result;
    const char *part;
};

static const struct demand demands[] = {
    {"other sizes",
     {8192, 8193},
     {{0, 4096}, {4096, 4097}},
     ZERO_E_INVALID,
     "of 8192 bytes on rank 0, of 8193 on rank 1"},
    {"a range too long", {8192, 8192}, {{0, 4096}, {4096, 4097}}, ZERO_E_INVALID, "rank 1: "},
    {"a range that wraps", {8192, 8192}, {{0, 4096}, {4096, SIZE_MAX}}, ZERO_E_INVALID, "rank 1: "},
    {"a page is nobody's",
     {12288, 12288},
     {{0, 4096}, {8192, 4096}},
     ZERO_E_INVALID,
     "8192 of its 12288 bytes"},
    {"no such memory",
     {SIZE_MAX - 8192, SIZE_MAX - 8192},
     {{0, 1}, {1, 1}},
     ZERO_E_NOMEM,
     "rank 0: "},
};

/** Nothing has come of it, nothing stays behind, and the communicator is as before. */
static bool as_before(struct coll_comm *comm, const struct held *before)
{
    struct held after;
    const struct coll_span all = {0, 10000}, none = {0, 0};
    struct coll_arena *arena;
    struct base_error error = {0};
    CHECK(hold(comm, &after));
    CHECK(after.mappings == before->mappings && after.descriptors == before->descriptors);
    CHECK(coll_arena_create_shared(comm, 10000, coll_rank(comm) == 0 ? &all : &none, 1, &arena,
                                   &error) == ZERO_OK);
    CHECK(coll_arena_size(arena) == 10000);
    CHECK_OK(comm, coll_barrier(comm));
    CHECK(write_and_read(comm, arena));
    return true;
}

static bool demand_rank(struct coll_comm *comm, void *user)
{
    const struct demand *demand = user;
    const int rank = coll_rank(comm);
    struct held before;
    struct coll_arena *arena;
    struct base_error error = {0};
    CHECK(hold(comm, &before));
    CHECK(coll_arena_create_shared(comm, demand->bytes[rank], &demand->mine[rank], 1, &arena,
                                   &error) == demand->result);
    CHECK(arena == NULL && strstr(error.message, demand->part));
    return as_before(comm, &before);
}

static void refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof demands / sizeof *demands; i++)
        on_both(2, demand_rank, (void *)(uintptr_t)&demands[i]);
}

/** A rank can't allocate, or map: user says when. */
static bool fault_rank(struct coll_comm *comm, void *user)
{
    const int rank = coll_rank(comm);
    struct held before;
    const struct coll_span mine = part(9u << 20, rank, coll_world(comm));
    struct coll_arena *arena;
    struct base_error error = {0};
    CHECK(hold(comm, &before));
    if (rank == 1)
        CHECK(base_fault_set(user, &error) == ZERO_OK);
    CHECK_OK(comm, coll_barrier(comm));
    CHECK(coll_arena_create_shared(comm, 9u << 20, &mine, 1, &arena, &error) == ZERO_E_NOMEM);
    CHECK(arena == NULL && strstr(error.message, "rank ") && strstr(error.message, "ENOSPC"));
    return as_before(comm, &before);
}

static void faults(void **state)
{
    (void)state;
    static const char *const points[] = {"shm.allocate:enospc@1", "shm.map:enospc@1",
                                         "shm.map:enospc@2", "shm.populate:enospc@1",
                                         "shm.populate:enospc@2"};
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        on_both(3, fault_rank, (void *)(uintptr_t)points[i]);
        assert_int_equal(base_fault_set(NULL, NULL), ZERO_OK);
    }
}

/** Whichever allocation fails, nothing stays behind. */
static void no_allocation(void **state)
{
    (void)state;
    const struct coll_config config = {.transport = "shm",
                                       .world = 1,
                                       .job = "coll-test-no-allocation",
                                       .name = "test",
                                       .timeout_ns = UINT64_C(5000000000)};
    const int mapped = mappings(), opened = descriptors();
    zero_result result = ZERO_E_NOMEM;
    for (int failing = 1; result != ZERO_OK; failing++) {
        char fault[32];
        struct coll_comm *comm;
        struct coll_arena *arena;
        const struct coll_span all = {0, 100};
        snprintf(fault, sizeof fault, "alloc@%d", failing);
        assert_int_equal(base_fault_set(fault, NULL), ZERO_OK);
        result = coll_open(&comm, &config, NULL);
        if (result == ZERO_OK)
            result = coll_arena_create_shared(comm, 100, &all, 1, &arena, NULL);
        assert_true(result == ZERO_OK || result == ZERO_E_NOMEM);
        assert_true(base_fault_fired() == (result != ZERO_OK));
        coll_close(comm);
        assert_int_equal(mappings(), mapped);
        assert_int_equal(descriptors(), opened);
    }
    assert_int_equal(base_fault_set(NULL, NULL), ZERO_OK);
}

static bool group_rank(struct coll_comm *comm, void *user)
{
    struct coll_comm *group;
    struct coll_arena *arena;
    struct base_error error = {0};
    (void)user;
    CHECK(coll_split(comm, 0, 0, &group, &error) == ZERO_OK);
    CHECK(coll_arena_create(group, 100, &arena, &error) == ZERO_E_INVALID && !arena);
    CHECK(coll_arena_create_shared(group, 100, NULL, 0, &arena, &error) == ZERO_E_INVALID);
    CHECK(!arena && strstr(error.message, "not the root"));
    CHECK_OK(comm, coll_barrier(group));
    return true;
}

static void group(void **state)
{
    (void)state;
    on_both(2, group_rank, NULL);
}

static bool limit_rank(struct coll_comm *comm, void *user)
{
    struct coll_arena *arena;
    struct base_error error = {0};
    (void)user;
    for (int i = 0; i < 1024; i++)
        CHECK(coll_arena_create_shared(comm, 0, NULL, 0, &arena, &error) == ZERO_OK);
    CHECK(coll_arena_create_shared(comm, 0, NULL, 0, &arena, &error) == ZERO_E_LIMIT && !arena);
    CHECK(coll_arena_create(comm, 0, &arena, &error) == ZERO_E_LIMIT && !arena);
    CHECK_OK(comm, coll_barrier(comm));
    return true;
}

static void limit(void **state)
{
    (void)state;
    const int mapped = mappings(), opened = descriptors();
    assert_true(run_ranks("self", 1, 0, limit_rank, NULL));
    assert_int_equal(mappings(), mapped);
    assert_int_equal(descriptors(), opened);
}

/* ------------------------------------------------------------------ arenas of one's own */

/** Sizes of their own; what a rank writes the others see at coll_arena_peer(). */
static bool own_rank(struct coll_comm *comm, void *user)
{
    static const size_t of_rank[] = {0, 1, 4097, (2u << 20) + 1};
    const int rank = coll_rank(comm), world = coll_world(comm);
    struct coll_arena *arena;
    struct base_error error = {0};
    (void)user;
    CHECK(coll_arena_create(comm, of_rank[rank], &arena, &error) == ZERO_OK);
    CHECK(!coll_arena_view(arena));
    for (size_t i = 0; i < of_rank[rank]; i++)
        ((unsigned char *)coll_arena_base(arena))[i] = byte_of(i, (uint32_t)rank);
    CHECK_OK(comm, coll_barrier(comm));
    for (int peer = 0; peer < world; peer++) {
        const unsigned char *theirs = coll_arena_peer(arena, peer);
        CHECK((theirs == NULL) == (of_rank[peer] == 0));
        for (size_t i = 0; i < of_rank[peer]; i++)
            CHECK(theirs[i] == byte_of(i, (uint32_t)peer));
    }
    struct coll_counters counters;
    coll_counters(comm, &counters);
    CHECK(counters.huge_bytes <= of_rank[rank] && counters.huge_bytes % (2u << 20) == 0);
    CHECK_OK(comm, coll_barrier(comm));
    return true;
}

static void own(void **state)
{
    (void)state;
    on_both(4, own_rank, NULL);
}

/** Who has an arena may send from it to one that is still making it, and has asked already. */
static bool early_rank(struct coll_comm *comm, void *user)
{
    const int rank = coll_rank(comm), last = coll_world(comm) - 1;
    for (int i = 0; i < 40; i++) {
        unsigned char received = 0;
        struct coll_request request = {0};
        struct coll_arena *arena;
        const struct coll_message receive = {.data = &received, .bytes = 1, .peer = last};
        if (rank == 0)
            CHECK_OK(comm, coll_receive_start(comm, &receive, &request));
        const struct coll_span mine = part(100, rank, last + 1);
        CHECK_OK(comm, *(const bool *)user
                           ? coll_arena_create_shared(comm, 100, &mine, 1, &arena, NULL)
                           : coll_arena_create(comm, 100, &arena, NULL));
        unsigned char *base = coll_arena_base(arena);
        const struct coll_message send = {.data = base + 99, .bytes = 1, .peer = 0};
        if (rank == last) {
            base[99] = (unsigned char)(i + 1);
            CHECK_OK(comm, coll_send_start(comm, &send, &request));
        }
        CHECK_OK(comm, coll_drain(comm, &request));
        CHECK(rank != 0 || received == i + 1);
    }
    return true;
}

static void early(void **state)
{
    (void)state;
    assert_int_equal(base_fault_set("coll.exchange.*:delay@1+", NULL), ZERO_OK);
    for (int shared = 0; shared < 2; shared++)
        on_both(4, early_rank, &(bool){shared != 0});
    base_fault_set(NULL, NULL);
}

/* ------------------------------------------------------------------ publications */

/** Who calls a publication where the others gather has diverged. */
static bool mixed_rank(struct coll_comm *comm, void *user)
{
    const struct coll_span spans[2] = {{0, 1}, {1, 1}};
    unsigned char recv[2], source = 1;
    struct coll_request request = {0};
    struct base_error error = {0};
    (void)user;
    const struct coll_all_gather op = {
        .source = &source, .recv = coll_rank(comm) == 0 ? recv : NULL, .spans = spans};
    CHECK_OK(comm, coll_all_gather_start(comm, &op, &request));
    while (coll_state(comm, &error) == ZERO_OK)
        coll_progress(comm);
    CHECK(error.result == ZERO_E_DIVERGED && strstr(error.message, "variant"));
    return true;
}

/** Only owners of a block are waited for. */
static bool owners_rank(struct coll_comm *comm, void *user)
{
    const struct coll_span spans[3] = {{0, 1}, {0, 0}, {1, 1}};
    struct coll_request request = {0};
    struct coll_counters before, after;
    (void)user;
    const struct coll_all_gather op = {.spans = spans};
    coll_counters(comm, &before);
    if (coll_rank(comm) != 1) {
        CHECK_OK(comm, coll_all_gather_start(comm, &op, &request));
        CHECK_OK(comm, coll_drain(comm, &request));
        CHECK_OK(comm, coll_barrier(comm));
    } else {
        usleep(20000);
        CHECK_OK(comm, coll_all_gather_start(comm, &op, &request));
        CHECK_OK(comm, coll_barrier(comm));
        CHECK_OK(comm, coll_drain(comm, &request));
    }
    coll_counters(comm, &after);
    CHECK(after.gathered_bytes == before.gathered_bytes);
    return true;
}

static void publications(void **state)
{
    (void)state;
    on_both(2, mixed_rank, NULL);
    on_both(3, owners_rank, NULL);
}

/* ------------------------------------------------------------------ several hosts */

enum { LARGEST = 300000, ROUNDS = 5 };

/** Blocks of all ranks, of uneven lengths; a rank has none. */
static size_t lay_blocks(struct coll_span *spans, int world)
{
    static const size_t counts[] = {LARGEST, 0, 4096, 1, 70001};
    size_t at = 0;
    for (int rank = 0; rank < world; rank++) {
        spans[rank] = (struct coll_span){at, counts[rank % 5]};
        at += counts[rank % 5];
    }
    return at;
}

static bool is_round(const unsigned char *all, const struct coll_span *spans, int world, int round)
{
    for (int rank = 0; rank < world; rank++)
        for (size_t i = 0; i < spans[rank].count; i++)
            CHECK(all[spans[rank].offset + i] == byte_of(i, (uint32_t)(rank + 7 * round)));
    return true;
}

/** Sums what ranks of its host have gathered. */
static bool gathered_once(struct coll_comm *comm, const struct coll_span *spans, int hosts)
{
    const int me = coll_rank(comm), world = coll_world(comm);
    struct coll_counters counters;
    double gathered[2] = {0, 0};
    coll_counters(comm, &counters);
    gathered[me % hosts] = (double)counters.gathered_bytes;
    double far[2] = {0, 0};
    for (int rank = 0; rank < world; rank++)
        for (int host = 0; host < hosts; host++)
            far[host] += rank % hosts == host ? 0 : (double)spans[rank].count * ROUNDS;
    CHECK_OK(comm, coll_all_reduce(comm, gathered, 2, BASE_SUM));
    CHECK(gathered[0] == far[0] && gathered[1] == far[1]);
    return true;
}

/** Each host has one memory: what a rank publishes there is brought to the other host once. */
static bool published_rank(struct coll_comm *comm, void *user)
{
    const int me = coll_rank(comm), world = coll_world(comm);
    struct coll_span spans[8];
    const size_t bytes = lay_blocks(spans, world);
    struct coll_arena *arena;
    struct coll_request request = {0};
    (void)user;
    CHECK_OK(comm, coll_arena_create_shared(comm, bytes, &spans[me], 1, &arena, NULL));
    unsigned char *base = coll_arena_base(arena);
    for (int rank = 0; rank < world; rank++)
        CHECK(coll_arena_peer(arena, rank) == (rank % 2 == me % 2 ? base : NULL));
    for (int round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < spans[me].count; i++)
            base[spans[me].offset + i] = byte_of(i, (uint32_t)(me + 7 * round));
        const struct coll_all_gather op = {.source = base + spans[me].offset, .spans = spans};
        CHECK_OK(comm, coll_drain(comm, &request));
        CHECK_OK(comm, coll_all_gather_start(comm, &op, &request));
        CHECK_OK(comm, coll_wait(comm, &request));
        CHECK(is_round(coll_arena_view(arena), spans, world, round));
        CHECK_OK(comm, coll_barrier(comm)); // every rank has read
    }
    return gathered_once(comm, spans, 2);
}

/** Who leaves at once, from rank 0's host, leaves its part to the others. */
static bool leaving_rank(struct coll_comm *comm, void *user)
{
    const int me = coll_rank(comm), world = coll_world(comm);
    struct coll_span spans[8];
    const size_t bytes = lay_blocks(spans, world);
    struct coll_arena *arena;
    struct coll_request request = {0};
    (void)user;
    CHECK_OK(comm, coll_arena_create_shared(comm, bytes, &spans[me], 1, &arena, NULL));
    unsigned char *base = coll_arena_base(arena);
    for (size_t i = 0; i < spans[me].count; i++)
        base[spans[me].offset + i] = byte_of(i, (uint32_t)me);
    const struct coll_all_gather op = {.source = base + spans[me].offset, .spans = spans};
    if (me == 1)
        usleep(50000);
    CHECK_OK(comm, coll_all_gather_start(comm, &op, &request));
    if (me == 2 || me == 4)
        return true;
    CHECK_OK(comm, coll_wait(comm, &request));
    return is_round(coll_arena_view(arena), spans, world, 0);
}

/** Whether a process that is not waited for has ended. */
static bool has_ended(pid_t process)
{
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)process);
    FILE *stat = fopen(path, "re");
    const bool read = stat && fscanf(stat, "%*d %*s %c", &state) == 1;
    if (stat)
        fclose(stat);
    return !read || state == 'Z';
}

/** Rank 2 leaves when the other host has read its block, and rank 0, of its own, begins then. */
static bool ended_rank(struct coll_comm *comm, void *user)
{
    enum { WORLD = 4, LAST = 2, BLOCK = 100001 };
    _Atomic pid_t *last = user;
    const int me = coll_rank(comm);
    struct coll_span spans[WORLD] = {{0, 0}, {0, 0}, {0, BLOCK}, {0, 0}};
    struct coll_arena *arena;
    struct coll_request request = {0};
    unsigned char *all = calloc(1, BLOCK);
    CHECK(all);
    CHECK_OK(comm, coll_arena_create(comm, BLOCK, &arena, NULL));
    if (me == LAST) {
        memset(coll_arena_base(arena), 77, BLOCK);
        *last = getpid();
    }
    CHECK_OK(comm, coll_barrier(comm));
    for (int i = 0; me == 0 && !has_ended(*last); i++) {
        CHECK(i < 1000);
        usleep(10000);
    }
    const struct coll_all_gather op = {
        .source = coll_arena_base(arena), .recv = all, .spans = spans};
    CHECK_OK(comm, coll_all_gather_start(comm, &op, &request));
    if (me != LAST)
        CHECK_OK(comm, coll_wait(comm, &request));
    CHECK(me == LAST || (all[0] == 77 && all[BLOCK - 1] == 77));
    if (me != LAST)
        free(all);
    return true;
}

/** A rank waits for other hosts when it leaves, and not for its own, which has its arenas. */
static void a_rank_does_not_wait_for_its_host_to_leave(void **state)
{
    (void)state;
    _Atomic pid_t *last =
        mmap(NULL, sizeof *last, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(last != MAP_FAILED);
    if (test_takes_transport("hosts"))
        assert_true(run_ranks("hosts", 4, 0, ended_rank, last));
    munmap(last, sizeof *last);
}

/** Lines of /proc/self/maps that show a view of a shared arena; -1: they can't be read. */
static int views(void)
{
    char line[512];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && fgets(line, sizeof line, maps))
        count += strstr(line, "memfd:zero") && strstr(line, " r--s ");
    if (maps)
        fclose(maps);
    return maps ? count : -1;
}

/** Lets go of the rank that hangs; *user: how many views there were before. */
static void *let_go(void *user)
{
    usleep(200000);
    *(int *)user = views();
    base_fault_set(NULL, NULL);
    return NULL;
}

/** A rank hangs while it allocates what ranks of the other host take care of. */
static bool filling_rank(struct coll_comm *comm, void *user)
{
    const int me = coll_rank(comm), world = coll_world(comm);
    const size_t bytes = (size_t)16 << 20;
    const struct coll_span mine = part(bytes, me, world);
    struct coll_arena *arena;
    pthread_t helper;
    CHECK_OK(comm, coll_barrier(comm));
    if (me == 0) {
        char fault[32];
        snprintf(fault, sizeof fault, "shm.allocate:hang@%d", world + 1);
        CHECK(base_fault_set(fault, NULL) == ZERO_OK);
        CHECK(pthread_create(&helper, NULL, let_go, user) == 0);
    }
    CHECK_OK(comm, coll_barrier(comm));
    CHECK_OK(comm, coll_arena_create_shared(comm, bytes, &mine, 1, &arena, NULL));
    if (me == 0)
        CHECK(pthread_join(helper, NULL) == 0);
    CHECK_OK(comm, coll_barrier(comm));
    return true;
}

static void no_page_is_touched_before_all_are_there(void **state)
{
    (void)state;
    int before = -1;
    if (!test_takes_transport("hosts:threads"))
        return;
    assert_true(run_ranks("hosts:threads", 4, 0, filling_rank, &before));
    assert_int_equal(before, 0);
}

static void several_hosts(void **state)
{
    (void)state;
    static const char *const across[] = {"hosts:threads", "hosts"};
    for (size_t i = 0; i < sizeof across / sizeof *across; i++)
        for (int world = 2; world <= 6 && test_takes_transport(across[i]); world++) {
            assert_true(run_ranks(across[i], world, 0, published_rank, NULL));
            assert_true(run_ranks(across[i], world, 0, leaving_rank, NULL));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared),
        cmocka_unit_test(older_kernels),
        cmocka_unit_test(refused),
        cmocka_unit_test(faults),
        cmocka_unit_test(no_allocation),
        cmocka_unit_test(group),
        cmocka_unit_test(limit),
        cmocka_unit_test(own),
        cmocka_unit_test(early),
        cmocka_unit_test(publications),
        cmocka_unit_test(several_hosts),
        cmocka_unit_test(no_page_is_touched_before_all_are_there),
        cmocka_unit_test(a_rank_does_not_wait_for_its_host_to_leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
