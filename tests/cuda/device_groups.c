// Groups of ranks with collectives of GPU memory of their own, beside those of all: in turns with
// them, made and left while they go on; and what fails in one of them is everybody's. Over NCCL,
// or, if the argument says so, by the host.

#include "tests/cuda/device_ranks.h"
#include "tests/cuda/leftovers.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cuda.h>

#include <cmocka.h>

enum { SKIPPED = 77, TURNS = 30, LARGE = 300000, PATIENCE_MS = 15000 };

// NCCL takes its time for its first operation.
#define SHORT_NS UINT64_C(1000000000)
#define SHORT_OF_NCCL_NS UINT64_C(10000000000)
static uint64_t short_ns;

static const char *transport; // NULL: NCCL
static int possible;          // ranks
static bool doubled;          // or this is NCCL

/* ------------------------------------------------------------------ pieces of bodies */

// A group, or all ranks.
struct part {
    struct coll_comm *host;
    struct gcomm *device;
};

static bool cut(struct device_rank *rank, struct coll_comm *parent, int color, struct part *part)
{
    struct base_error error = {.result = ZERO_OK};
    NEED(coll_split(parent, color, -coll_rank(parent), &part->host, NULL) == ZERO_OK);
    if (gcomm_split(&part->device, rank->device, part->host, &error) != ZERO_OK) {
        fprintf(stderr, "rank %d: gcomm_split: %s\n", rank->rank, error.message);
        return false;
    }
    NEED(!part->device == !part->host);
    return true;
}

static bool leave(struct device_rank *rank, struct part *part)
{
    NEED(gcomm_close(part->device));
    coll_close(part->host);
    return true;
}

static zero_result exchange(struct gcomm *device, const void *from, void *to, uint32_t unit,
                            uint64_t *ticket)
{
    return gcomm_exchange(device, from, 4, to, (struct coll_label){"unit", unit, "g.1"}, ticket);
}

static bool works(struct device_rank *rank, const struct part *part)
{
    uint32_t mine = (uint32_t)rank->rank, words[DEVICE_RANKS_MOST];
    const size_t world = (size_t)coll_world(part->host);
    uint32_t *memory = device_rank_memory(rank, sizeof mine + sizeof words);
    uint64_t ticket;
    NEED(device_rank_put(rank, memory, &mine, sizeof mine));
    NEED(gcomm_after(part->device, rank->stream) == ZERO_OK);
    NEED(exchange(part->device, memory, memory + 1, 1, &ticket) == ZERO_OK);
    NEED(gcomm_before(part->device, ticket, rank->stream) == ZERO_OK);
    NEED(device_rank_get(rank, words, memory + 1, world * sizeof mine) && device_rank_sync(rank));
    for (size_t r = 0; r < world; r++)
        NEED(words[r] == (uint32_t)coll_root_rank(part->host, (int)r));
    return true;
}

static struct part whole_of(const struct device_rank *rank)
{
    return (struct part){rank->host, rank->device};
}

/* ------------------------------------------------------------------ in turns */

static uint32_t word_of(int rank, int turn)
{
    return (uint32_t)(rank * 1000 + turn);
}

static int row_of(int rank)
{
    return rank / 2;
}

// The first of a row in its order, which is backwards.
static int first_of_row(int rank, int world)
{
    return row_of(rank) * 2 + 1 < world ? row_of(rank) * 2 + 1 : row_of(rank) * 2;
}

struct turn {
    uint32_t mine, all[DEVICE_RANKS_MOST], row[2], column[2], alone;
};

// Each reads what the one before has brought, by another communicator.
static bool take_turn(struct device_rank *rank, const struct part *parts, struct turn *at,
                      uint64_t *ticket)
{
    const int next = (rank->rank + 1) % rank->world;
    NEED(exchange(rank->device, &at->mine, at->all, 1, NULL) == ZERO_OK);
    NEED(exchange(parts[0].device, &at->all[next], at->row, 2, NULL) == ZERO_OK);
    NEED(exchange(parts[1].device, &at->row[0], at->column, 3, ticket) == ZERO_OK);
    if (parts[2].device)
        NEED(exchange(parts[2].device, &at->column[0], &at->alone, 4, NULL) == ZERO_OK);
    return true;
}

static bool is_right(struct device_rank *rank, const struct part *parts, const struct turn *turn,
                     int number)
{
    const int world = rank->world;
    for (int r = 0; r < world; r++)
        NEED(turn->all[r] == word_of(r, number));
    for (int r = 0; r < coll_world(parts[0].host); r++)
        NEED(turn->row[r] == word_of((coll_root_rank(parts[0].host, r) + 1) % world, number));
    for (int r = 0; r < coll_world(parts[1].host); r++)
        NEED(turn->column[r] ==
             word_of((first_of_row(coll_root_rank(parts[1].host, r), world) + 1) % world, number));
    if (parts[2].device)
        NEED(turn->alone == turn->column[0]);
    return true;
}

// Rows, columns, and the first of each row alone; nobody waits between.
static bool in_turns(struct device_rank *rank)
{
    static struct turn turns[TURNS];
    struct part parts[3];
    uint64_t ticket = 0;
    struct turn *at = device_rank_memory(rank, sizeof turns);
    memset(turns, 0, sizeof turns);
    for (int i = 0; i < TURNS; i++)
        turns[i].mine = word_of(rank->rank, i);
    NEED(cut(rank, rank->host, row_of(rank->rank), &parts[0]));
    NEED(cut(rank, rank->host, rank->rank % 2, &parts[1]));
    NEED(cut(rank, parts[0].host, coll_rank(parts[0].host) == 0 ? 0 : -1, &parts[2]));
    NEED(gcomm_stream(parts[2].device ? parts[2].device : parts[0].device) ==
         gcomm_stream(rank->device));
    NEED(device_rank_put(rank, at, turns, sizeof turns));
    NEED(gcomm_after(parts[0].device, rank->stream) == ZERO_OK);
    for (int i = 0; i < TURNS; i++)
        NEED(take_turn(rank, parts, &at[i], &ticket));
    NEED(ticket == TURNS && gcomm_wait(parts[1].device, ticket) == ZERO_OK);
    NEED(gcomm_query(rank->device, TURNS) == ZERO_OK); // one order
    if (parts[2].device)
        NEED(gcomm_before(parts[2].device, TURNS, rank->stream) == ZERO_OK);
    NEED(device_rank_get(rank, turns, at, sizeof turns) && device_rank_sync(rank));
    for (int i = 0; i < TURNS; i++)
        NEED(is_right(rank, parts, &turns[i], i));
    for (int i = 0; i < 3; i++)
        NEED(leave(rank, &parts[i]));
    return true;
}

static bool everywhere(struct device_ranks ranks, bool (*body)(struct device_rank *))
{
    ranks.transport = transport;
    for (ranks.world = 1; ranks.world <= possible; ranks.world++)
        if (!device_ranks_run(&ranks, body))
            return false;
    return true;
}

static void groups_and_all_in_turns(void **state)
{
    (void)state;
    assert_true(everywhere((struct device_ranks){.inject = "delay=300"}, in_turns));
    assert_true(everywhere((struct device_ranks){.host = "tcp"}, in_turns));
}

/* ------------------------------------------------------------------ beginning and end */

// Ranks in none, uneven groups; what the whole has under way goes on.
static bool comes_and_goes(struct device_rank *rank)
{
    const struct part whole = whole_of(rank);
    char *memory = device_rank_memory(rank, (size_t)(rank->world + 1) * LARGE);
    const struct coll_label label = {"unit", 9, NULL};
    for (int i = 0; i < 3; i++) {
        struct part part;
        uint64_t ticket;
        NEED(gcomm_exchange(rank->device, memory, LARGE, memory + LARGE, label, &ticket) ==
             ZERO_OK);
        NEED(cut(rank, rank->host, rank->rank == i ? -1 : rank->rank == 3, &part));
        if (part.device)
            NEED(works(rank, &part));
        NEED(gcomm_exchange(rank->device, memory, LARGE, memory + LARGE, label, &ticket) ==
             ZERO_OK);
        NEED(leave(rank, &part));
        NEED(gcomm_wait(rank->device, ticket) == ZERO_OK);
    }
    return works(rank, &whole);
}

static void groups_that_come_and_go(void **state)
{
    (void)state;
    assert_true(everywhere((struct device_ranks){.inject = "delay=20000"}, comes_and_goes));
}

static _Atomic bool let_go; // the rank's stream

static void hold(void *nothing)
{
    (void)nothing;
    for (int i = 0; i < PATIENCE_MS && !let_go; i++)
        usleep(1000);
}

// Nobody who makes a group waits for what all have called before and no GPU has come to.
static bool splits_beside(struct device_rank *rank)
{
    __typeof__(cuLaunchHostFunc) *call;
    char *memory = device_rank_memory(rank, 100);
    struct part part;
    uint64_t ticket;
    let_go = false;
    NEED(cuda_driver_find("cuLaunchHostFunc", &call));
    NEED(call(rank->stream, hold, NULL) == CUDA_SUCCESS);
    NEED(gcomm_after(rank->device, rank->stream) == ZERO_OK);
    NEED(exchange(rank->device, memory, memory + 4, 2, &ticket) == ZERO_OK);
    NEED(cut(rank, rank->host, rank->rank == 0 && rank->world > 2 ? -1 : 0, &part));
    NEED(gcomm_query(rank->device, ticket) == ZERO_AGAIN);
    let_go = true;
    if (part.device)
        NEED(works(rank, &part));
    NEED(gcomm_wait(rank->device, ticket) == ZERO_OK);
    return leave(rank, &part);
}

static void a_whole_that_is_busy(void **state)
{
    (void)state;
    assert_true(everywhere((struct device_ranks){.timeout_ns = 0}, splits_beside));
}

static void *abort_and_let_go(void *host)
{
    usleep(50000);
    coll_abort(host, ZERO_E_ABORTED, "enough");
    usleep(50000);
    let_go = true;
    return NULL;
}

// A group that has done nothing waits for the whole's stream as it is left, and not to its end.
static bool leaves_early(struct device_rank *rank)
{
    __typeof__(cuLaunchHostFunc) *call;
    struct part part;
    pthread_t thread;
    let_go = false;
    NEED(cut(rank, rank->host, 0, &part) && device_rank_meet(rank));
    NEED(cuda_driver_find("cuLaunchHostFunc", &call));
    NEED(call(rank->stream, hold, NULL) == CUDA_SUCCESS);
    NEED(gcomm_after(rank->device, rank->stream) == ZERO_OK && device_rank_meet(rank));
    NEED(pthread_create(&thread, NULL, abort_and_let_go, rank->host) == 0);
    const bool left = leave(rank, &part);
    NEED(pthread_join(thread, NULL) == 0 && left);
    return device_rank_sync(rank) && device_rank_learns(rank, ZERO_E_ABORTED, "enough");
}

static void an_abort_while_a_group_is_left(void **state)
{
    (void)state;
    for (int world = 2; world <= possible; world++)
        assert_true(device_ranks_run(
            &(struct device_ranks){.world = world, .fails = true, .blameless = true},
            leaves_early));
}

// On all ranks with these words; the whole goes on.
static bool splits_only(struct device_rank *rank, struct gcomm *of, struct coll_comm *group,
                        zero_result result, const char *words)
{
    struct gcomm *device = rank->device;
    const struct part whole = whole_of(rank);
    struct base_error error = {.result = ZERO_OK};
    const zero_result split = gcomm_split(&device, of, group, &error);
    NEED(!device);
    if (split != result || !strstr(error.message, words)) {
        fprintf(stderr, "rank %d: %d: '%s' is not in '%s'\n", rank->rank, split, words,
                error.message);
        return false;
    }
    return works(rank, &whole);
}

static bool wrong_arguments(struct device_rank *rank)
{
    const int last = rank->world - 1;
    struct part part;
    struct coll_comm *other;
    char words[64];
    NEED(cut(rank, rank->host, 0, &part));
    NEED(splits_only(rank, part.device, part.host, ZERO_E_INVALID, "groups of a group"));
    NEED(splits_only(rank, NULL, part.host, ZERO_E_INVALID, "groups of nothing"));
    NEED(splits_only(rank, rank->device, rank->rank == last ? rank->host : part.host,
                     ZERO_E_INVALID, "is no group of"));
    if (rank->world > 1) {
        snprintf(words, sizeof words, "rank %d is in group ", last);
        NEED(splits_only(rank, rank->device, rank->rank == last ? NULL : part.host, ZERO_E_INVALID,
                         words));
        NEED(splits_only(rank, rank->device, rank->rank == last ? NULL : part.host, ZERO_E_INVALID,
                         "and gives no one"));
        NEED(coll_split(rank->host, 0, 0, &other, NULL) == ZERO_OK);
        NEED(splits_only(rank, rank->device, rank->rank == last ? other : part.host, ZERO_E_INVALID,
                         "and gives another one"));
        coll_close(other);
    }
    NEED(works(rank, &part));
    return leave(rank, &part);
}

static void arguments_that_cannot_be(void **state)
{
    (void)state;
    assert_true(everywhere((struct device_ranks){.timeout_ns = 0}, wrong_arguments));
}

// One group of two does not come to be: nobody has one, and all goes on.
static bool cannot_meet(struct device_rank *rank)
{
    struct coll_comm *group;
    struct part part;
    const bool in = rank->rank < 2;
    NEED(coll_split(rank->host, in ? 0 : rank->rank == 2 ? -1 : 1, 0, &group, NULL) == ZERO_OK);
    if (in)
        device_ranks_inject("polls=1000000000,rank=1");
    NEED(splits_only(rank, rank->device, group, ZERO_E_TIMEOUT,
                     "rank 1: nccl: the ranks have not met within "));
    device_ranks_inject("");
    NEED(gcomm_split(&part.device, rank->device, group, NULL) == ZERO_OK);
    part.host = group;
    if (group)
        NEED(works(rank, &part));
    return leave(rank, &part);
}

static void a_group_that_does_not_meet(void **state)
{
    (void)state;
    for (int world = 2; world <= possible; world++)
        assert_true(device_ranks_run(&(struct device_ranks){.world = world, .timeout_ns = SHORT_NS},
                                     cannot_meet));
    // The others have waited longer than ranks of the host may.
    assert_true(device_ranks_run(
        &(struct device_ranks){.world = DEVICE_RANKS_MOST, .host_ns = 2 * short_ns}, cannot_meet));
}

enum { REGISTERED = 100000 };

// A group that does not end in time, after its host is gone; its whole is not to be ended then, and
// the memory is left.
static bool leaves_one_behind(struct device_rank *rank)
{
    struct coll_comm *group;
    struct gcomm *device;
    rank->config.must_register = true;
    rank->config.abort_timeout_ns = UINT64_C(100000000);
    rank->config.bytes = REGISTERED;
    NEED(gcomm_alloc(&rank->config.memory, "nccl", rank->gpu, REGISTERED, NULL) == ZERO_OK);
    NEED(gcomm_open(&rank->device, &rank->config, NULL) == ZERO_OK);
    NEED(coll_split(rank->host, 0, 0, &group, NULL) == ZERO_OK);
    device_ranks_inject("register=1,ends=500,ending=2");
    NEED(gcomm_split(&device, rank->device, group, NULL) == ZERO_E_DEVICE && !device);
    coll_close(group);
    NEED(!gcomm_close(rank->device));
    rank->device = NULL;
    usleep(600000); // its threads come back, and touch nothing that is gone
    return true;
}

static void a_group_that_is_left_behind(void **state)
{
    (void)state;
    for (int world = 1; world <= 2; world++)
        assert_true(
            device_ranks_run(&(struct device_ranks){.world = world, .bare = true, .leaves = true},
                             leaves_one_behind));
}

/* ------------------------------------------------------------------ failures */

struct failure {
    const char *inject;
    zero_result result;
    const char *words;
};

// All ranks but the first, where there are others; backwards.
static bool cut_one(struct device_rank *rank, struct part *part)
{
    const struct failure *failure = rank->of->user;
    const struct part whole = whole_of(rank);
    if (failure && failure->inject && (!rank->of->host || rank->rank == 0))
        device_ranks_inject(failure->inject);
    NEED(works(rank, &whole) && device_rank_meet(rank));
    NEED(cut(rank, rank->host, rank->rank == 0 && rank->world > 2 ? -1 : 0, part));
    return device_rank_meet(rank);
}

// A call of a group, and behind it one of all: neither is over before both are aborted.
static bool call_both(struct device_rank *rank, const struct part *part, zero_result with)
{
    char *memory = device_rank_memory(rank, 100);
    uint64_t tickets[2] = {0, 0};
    zero_result result;
    if (part->device) {
        result = exchange(part->device, memory, memory + 4, 2, &tickets[0]);
        NEED(result == ZERO_OK || result == with);
        result = gcomm_before(part->device, tickets[0], rank->stream);
        NEED(result == ZERO_OK || result == with);
    }
    result = exchange(rank->device, memory + 40, memory + 44, 3, &tickets[1]);
    NEED(result == ZERO_OK || result == with);
    result = gcomm_before(rank->device, tickets[1], rank->stream);
    NEED(result == ZERO_OK || result == with);
    return true;
}

// The stream is not held for ever, and all calls say the same.
static bool ends(struct device_rank *rank, struct part *part, zero_result result, const char *words)
{
    uint64_t ticket = 77;
    char *memory = device_rank_memory(rank, 100);
    NEED(device_rank_sync(rank));
    NEED(device_rank_learns(rank, result, words));
    NEED(exchange(rank->device, memory, memory + 4, 9, &ticket) == result && ticket == 0);
    if (part->device) {
        NEED(exchange(part->device, memory, memory + 4, 9, NULL) == result);
        NEED(gcomm_after(part->device, rank->stream) == result);
        NEED(coll_state(part->host, NULL) == result);
    }
    return leave(rank, part);
}

static bool fails(struct device_rank *rank)
{
    const struct failure *failure = rank->of->user;
    struct part part;
    return cut_one(rank, &part) && call_both(rank, &part, failure->result) &&
           ends(rank, &part, failure->result, failure->words);
}

static bool all_fail(const char *host, const struct failure *failure,
                     bool (*body)(struct device_rank *))
{
    const uint64_t timeout_ns = failure->result == ZERO_E_TIMEOUT ? short_ns : 0;
    const bool threads = host && strcmp(host, "threads") == 0; // which NCCL takes for one host
    for (int world = 2; world <= (threads && possible > 3 ? 3 : possible); world++)
        if (!device_ranks_run(&(struct device_ranks){.host = host,
                                                     .transport = transport,
                                                     .world = world,
                                                     .timeout_ns = timeout_ns,
                                                     .fails = true,
                                                     .blameless = true,
                                                     .user = failure},
                              body))
            return false;
    return true;
}

// Number 1 of the group, whose number in the root is in the message; so is its GPU.
static void errors_of_the_transport(void **state)
{
    static const struct failure failure = {"error=1,rank=1,status=3", ZERO_E_DEVICE,
                                           ": exchange #1, unit 2 (g.1) on cuda "};
    static const struct failure first = {"error=1,rank=0,status=1", ZERO_E_DEVICE, ".0: rank 1: "};
    (void)state;
    assert_true(all_fail(NULL, &failure, fails));
    assert_true(device_ranks_run(
        &(struct device_ranks){.world = 2, .fails = true, .blameless = true, .user = &first},
        fails));
}

static void a_gpu_that_does_not_come_to_it(void **state)
{
    const struct failure failure = {"never=1,rank=1", ZERO_E_TIMEOUT,
                                    "not done after 1."}; // although all have called it
    (void)state;
    assert_true(all_fail(NULL, &failure, fails));
}

// The first of the group, which is the last rank.
static bool is_head(const struct device_rank *rank)
{
    return rank->rank == rank->world - 1;
}

static bool stays_away(struct device_rank *rank)
{
    const struct failure *failure = rank->of->user;
    struct part part;
    char words[64];
    snprintf(words, sizeof words, "s for rank %d (last call: nothing) to come", rank->world - 1);
    NEED(cut_one(rank, &part));
    if (part.device && !is_head(rank)) {
        char *memory = device_rank_memory(rank, 100);
        const zero_result result = exchange(part.device, memory, memory + 4, 2, NULL);
        NEED(result == ZERO_OK || result == failure->result);
    }
    return ends(rank, &part, failure->result, words);
}

static void a_rank_that_does_not_call(void **state)
{
    const struct failure failure = {NULL, ZERO_E_TIMEOUT, ""};
    (void)state;
    assert_true(all_fail(NULL, &failure, stays_away));
}

static bool leaves(struct device_rank *rank)
{
    struct part part;
    char words[64];
    snprintf(words, sizeof words, "rank %d has left without it", rank->world - 1);
    NEED(cut_one(rank, &part));
    if (is_head(rank)) {
        NEED(leave(rank, &part));
        return device_rank_learns(rank, ZERO_E_PEER, words);
    }
    if (part.device) {
        char *memory = device_rank_memory(rank, 100);
        const zero_result result = exchange(part.device, memory, memory + 4, 2, NULL);
        NEED(result == ZERO_OK || result == ZERO_E_PEER);
    }
    return ends(rank, &part, ZERO_E_PEER, words);
}

static void a_rank_that_has_left(void **state)
{
    const struct failure failure = {NULL, ZERO_E_PEER, ""};
    (void)state;
    assert_true(all_fail(NULL, &failure, leaves));
    assert_true(all_fail("tcp", &failure, leaves));
}

// In the group or not; the others are in calls of both.
static bool is_killed(struct device_rank *rank)
{
    struct part part;
    char words[32];
    NEED(cut_one(rank, &part));
    if (rank->rank == rank->of->killed - 1)
        raise(SIGKILL);
    snprintf(words, sizeof words, "rank %d died", rank->of->killed - 1);
    return call_both(rank, &part, ZERO_E_PEER) && ends(rank, &part, ZERO_E_PEER, words);
}

static void a_rank_that_dies(void **state)
{
    (void)state;
    for (int world = 2; world <= possible; world++)
        for (int victim = 0; victim < world; victim += world - 1)
            assert_true(device_ranks_run(&(struct device_ranks){.transport = transport,
                                                                .world = world,
                                                                .killed = victim + 1,
                                                                .fails = true,
                                                                .blameless = true},
                                         is_killed));
}

// While groups are made: the dead one does not come, neither to that nor, where the stream is who
// waits, to what all have called before.
static bool is_killed_before(struct device_rank *rank)
{
    const bool dies = rank->rank == rank->of->killed - 1;
    const struct part whole = whole_of(rank);
    char *memory = device_rank_memory(rank, 100);
    struct coll_comm *group;
    struct gcomm *device;
    struct base_error error = {.result = ZERO_OK};
    uint64_t ticket;
    NEED(coll_split(rank->host, rank->rank % 2, 0, &group, NULL) == ZERO_OK);
    NEED(works(rank, &whole) && device_rank_meet(rank));
    if (!transport && !dies) {
        NEED(exchange(rank->device, memory, memory + 4, 2, &ticket) == ZERO_OK);
        NEED(gcomm_before(rank->device, ticket, rank->stream) == ZERO_OK);
    }
    NEED(device_rank_meet(rank));
    if (dies)
        raise(SIGKILL);
    NEED(gcomm_split(&device, rank->device, group, &error) == ZERO_E_PEER && !device);
    NEED(strstr(error.message, " died"));
    coll_close(group);
    return device_rank_sync(rank);
}

static void a_rank_that_dies_before(void **state)
{
    (void)state;
    for (int world = 2; world <= possible; world++)
        assert_true(device_ranks_run(&(struct device_ranks){.transport = transport,
                                                            .world = world,
                                                            .killed = world,
                                                            .fails = true,
                                                            .blameless = true},
                                     is_killed_before));
}

static bool is_aborted(struct device_rank *rank)
{
    const struct failure *failure = rank->of->user;
    struct part part;
    NEED(cut_one(rank, &part));
    if (rank->rank == 1)
        coll_abort(part.host, ZERO_E_ABORTED, "enough");
    else
        NEED(call_both(rank, &part, ZERO_E_ABORTED));
    return ends(rank, &part, ZERO_E_ABORTED, failure->words);
}

static void an_abort(void **state)
{
    const struct failure failure = {NULL, ZERO_E_ABORTED, "rank 1: enough"};
    (void)state;
    assert_true(all_fail(NULL, &failure, is_aborted));
}

/* ------------------------------------------------------------------ ranks that differ */

// In a call of the group's.
static bool differs(struct device_rank *rank)
{
    struct part part;
    char words[96];
    snprintf(words, sizeof words, "rank %d exchange #1, unit %d (g.1)", rank->world - 1, 5);
    NEED(cut_one(rank, &part));
    if (part.device) {
        char *memory = device_rank_memory(rank, 100);
        const zero_result result =
            exchange(part.device, memory, memory + 4, is_head(rank) ? 5 : 6, NULL);
        NEED(result == ZERO_OK || result == ZERO_E_DIVERGED);
    }
    return ends(rank, &part, ZERO_E_DIVERGED, words);
}

// In the order of a call of all and one of the group's: streams would wait for each other.
static bool crosses(struct device_rank *rank)
{
    struct part part;
    char *memory = device_rank_memory(rank, 100);
    NEED(cut_one(rank, &part));
    struct gcomm *const all = rank->device, *const group = part.device ? part.device : all;
    zero_result result = exchange(is_head(rank) ? group : all, memory, memory + 4, 1, NULL);
    NEED(result == ZERO_OK || result == ZERO_E_DIVERGED);
    if (part.device) {
        result = exchange(is_head(rank) ? all : group, memory + 40, memory + 44, 1, NULL);
        NEED(result == ZERO_OK || result == ZERO_E_DIVERGED);
    }
    return ends(rank, &part, ZERO_E_DIVERGED, ", with another number of calls of the whole before");
}

static void ranks_that_differ(void **state)
{
    const struct failure failure = {NULL, ZERO_E_DIVERGED, ""};
    (void)state;
    assert_true(all_fail(NULL, &failure, differs));
    if (!transport) // by the host the first calls wait for each other, and the second never come
        assert_true(all_fail(NULL, &failure, crosses));
}

static bool is_refused(struct device_rank *rank)
{
    struct part part;
    char words[96];
    snprintf(words, sizeof words, "rank %d: broadcast #1, unit 2 on cuda", rank->world - 1);
    NEED(cut_one(rank, &part));
    if (is_head(rank))
        NEED(gcomm_broadcast(part.device, part.host, 4, coll_world(part.host),
                             (struct coll_label){"unit", 2, NULL}, NULL) == ZERO_E_INVALID);
    return ends(rank, &part, ZERO_E_INVALID, words);
}

static void a_call_that_is_refused(void **state)
{
    const struct failure failure = {NULL, ZERO_E_INVALID, ""};
    (void)state;
    assert_true(all_fail(NULL, &failure, is_refused));
}

/* ------------------------------------------------------------------ threads */

static void ranks_that_are_threads(void **state)
{
    const struct failure failures[] = {
        {NULL, ZERO_E_ABORTED, "rank 1: enough"},
        {"error=1,rank=1,status=3", ZERO_E_DEVICE, "internal error"},
    };
    (void)state;
    if (!transport && !doubled)
        skip(); // NCCL wants a GPU each
    assert_true(device_ranks_run(
        &(struct device_ranks){.host = "threads", .transport = transport, .world = 3},
        comes_and_goes));
    assert_true(all_fail("threads", &failures[0], is_aborted));
    if (!transport) // it is NCCL's
        assert_true(all_fail("threads", &failures[1], fails));
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
        cmocka_unit_test(a_whole_that_is_busy),
        cmocka_unit_test(an_abort_while_a_group_is_left),
        cmocka_unit_test(a_group_that_does_not_meet),
        cmocka_unit_test(a_group_that_is_left_behind),
        cmocka_unit_test(errors_of_the_transport),
        cmocka_unit_test(a_gpu_that_does_not_come_to_it),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_and_all_in_turns),  cmocka_unit_test(groups_that_come_and_go),
        cmocka_unit_test(arguments_that_cannot_be), cmocka_unit_test(a_rank_that_does_not_call),
        cmocka_unit_test(a_rank_that_has_left),     cmocka_unit_test(a_rank_that_dies),
        cmocka_unit_test(a_rank_that_dies_before),  cmocka_unit_test(an_abort),
        cmocka_unit_test(ranks_that_differ),        cmocka_unit_test(a_call_that_is_refused),
        cmocka_unit_test(ranks_that_are_threads),
    };
    const int failed =
        transport || !doubled ? 0 : cmocka_run_group_tests(of_the_double, NULL, NULL);
    return failed + cmocka_run_group_tests(tests, NULL, NULL);
}
