// Random sequences of everything: operations on overlapping groups that come and go, started in an
// order of each rank's own, waited for in another; each result against a scalar model.
//
//     unit.coll_sequences [sequences for each world] [first seed]

#include "base/fault.h"
#include "tests/sweep.h"
#include "tests/unit/coll_ranks.h"
#include "tests/unit/coll_reference.h"

#include <setjmp.h>
#include <stdalign.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    MOST_WORLD = 5,
    COMMS = 6,   /**< the root, and groups that are cut anew now and then */
    WINDOWS = 5, /**< between two of them all ranks do something together */
    WINDOW = 9,  /**< operations started between two of those */
    MOST_COUNT = 400,
    ARENA_BYTES = 4 << 20,
};

enum kind {
    GATHER,
    PUBLISH,
    REDUCE,
    ALL_REDUCE,
    BROADCAST,
    ALL_TO_ALL,
    MESSAGE,
    KINDS,
};

/** A communicator as all ranks know it. */
struct known {
    struct coll_comm *comm; /**< NULL: this rank is not in it */
    int ranks[MOST_WORLD];  /**< of the root, in its order */
    int world;              /**< 0: there is none */
};

/** An operation under way on this rank. */
struct running {
    bool active;
    uint32_t key; /**< everything about it is a function of this and the communicator */
    const struct known *on;
    struct known then; /**< a copy of that: it may be closed before the result is looked at */
    struct coll_request request, receive;
    struct coll_span spans[MOST_WORLD], other_spans[MOST_WORLD];
    unsigned char *source, *result;
    void *private_source, *private_result;
};

struct bench {
    struct coll_comm *root;
    int me;
    uint32_t random;
    unsigned char *arena;
    size_t used;
    struct known comms[COMMS];
    struct running running[WINDOWS * WINDOW];
    int count;
};

/** A number below `most` that all ranks know. */
static uint32_t draw(uint32_t key, uint32_t what, uint32_t most)
{
    return mix(key, what, 77) % most;
}

/** A number below `most` of this rank's own. */
static uint32_t own(struct bench *bench, uint32_t most)
{
    bench->random = mix(bench->random, 5, 9);
    return bench->random % most;
}

static enum kind kind_of(uint32_t key)
{
    return (enum kind)draw(key, 1, KINDS);
}

static zero_dtype dtype_of(uint32_t key)
{
    return (zero_dtype)(FIRST_DTYPE + (int)draw(key, 2, LAST_DTYPE - FIRST_DTYPE + 1));
}

/** How many elements or bytes go from one to the other; often none. */
static size_t count_of(uint32_t key, int from, int to)
{
    const uint32_t bits = mix(key, (uint32_t)(from * MOST_WORLD + to), 8);
    return bits % 4 == 0 ? 0 : bits % MOST_COUNT;
}

static unsigned char byte_of(uint32_t key, int from, int to, size_t i)
{
    return (unsigned char)mix(key, (uint32_t)(from * MOST_WORLD + to), (uint32_t)i);
}

static int rank_in(const struct known *known, int root_rank)
{
    int rank = -1;
    for (int r = 0; r < known->world; r++)
        if (known->ranks[r] == root_rank)
            rank = r;
    return rank;
}

/* ------------------------------------------------------------------ memory */

/** Some memory, in the arena or not, filled with what no rank expects. */
static unsigned char *take(struct bench *bench, size_t bytes, void **private_memory)
{
    *private_memory = NULL;
    bytes = (bytes + 64) & ~(size_t)63;
    unsigned char *memory = bench->arena + bench->used;
    if (own(bench, 2) == 0 || bench->used + bytes > ARENA_BYTES)
        memory = *private_memory = malloc(bytes);
    else
        bench->used += bytes;
    if (memory)
        memset(memory, 0x5a, bytes);
    return memory;
}

/** Deals out blocks, each `from` to all or all to `to`, one behind the other with gaps. */
static size_t deal(struct coll_span *spans, const struct known *on, uint32_t key, int from, int to,
                   size_t gap)
{
    size_t at = 0;
    for (int r = 0; r < on->world; r++) {
        const size_t count = count_of(key, from < 0 ? r : from, to < 0 ? r : to);
        spans[r] = (struct coll_span){.offset = at, .count = count};
        at += count + gap;
    }
    return at;
}

/* ------------------------------------------------------------------ starting */

static zero_result start_gather(struct bench *bench, struct running *run, int me, bool publish)
{
    const size_t end = deal(run->spans, run->on, run->key, -1, 0, 3);
    run->result = take(bench, end, &run->private_result);
    run->source = own(bench, 3) == 0 ? run->result + run->spans[me].offset
                                     : take(bench, run->spans[me].count, &run->private_source);
    for (size_t i = 0; i < run->spans[me].count; i++)
        run->source[i] = byte_of(run->key, me, 0, i);
    const struct coll_all_gather op = {.source = run->source,
                                       .recv = publish ? NULL : run->result,
                                       .spans = run->spans,
                                       .label = {"sequence", run->key, NULL}};
    return coll_all_gather_start(run->on->comm, &op, &run->request);
}

static int contributors_of(const struct running *run)
{
    return 1 + (int)draw(run->key, 4, (uint32_t)run->then.world);
}

static zero_result start_reduce(struct bench *bench, struct running *run, int me)
{
    const zero_dtype dtype = dtype_of(run->key), sum = base_accumulator_dtype(dtype);
    const size_t end = deal(run->spans, run->on, run->key, -1, 0, 1);
    run->source = take(bench, end * dtype_bytes(dtype), &run->private_source);
    run->result = take(bench, run->spans[me].count * sum_bytes(dtype), &run->private_result);
    fill_elements(dtype, run->source, 0, end, mix(run->key, (uint32_t)me, 1), false);
    fill_elements(sum, run->result, 0, run->spans[me].count, mix(run->key, (uint32_t)me, 2), false);
    const struct coll_reduce_scatter op = {.source = run->source,
                                           .dtype = dtype,
                                           .spans = run->spans,
                                           .accumulator = run->result,
                                           .contributors = contributors_of(run),
                                           .store = draw(run->key, 5, 2) == 0,
                                           .label = {"sequence", run->key, "x"}};
    return coll_reduce_scatter_start(run->on->comm, &op, &run->request);
}

static size_t all_reduce_count(uint32_t key)
{
    return draw(key, 6, 4) == 0 ? draw(key, 7, 3) : draw(key, 7, 3000);
}

static zero_result start_all_reduce(struct bench *bench, struct running *run, int me)
{
    const zero_dtype dtype = dtype_of(run->key);
    const size_t count = all_reduce_count(run->key);
    run->source = take(bench, count * dtype_bytes(dtype), &run->private_source);
    run->result =
        own(bench, 2) ? run->source : take(bench, count * dtype_bytes(dtype), &run->private_result);
    fill_elements(dtype, run->source, 0, count, mix(run->key, (uint32_t)me, 1), false);
    const struct coll_all_reduce op = {.source = run->source,
                                       .result = run->result,
                                       .count = count,
                                       .dtype = dtype,
                                       .op = (enum base_op)draw(run->key, 8, 3),
                                       .label = {"sequence", run->key, NULL}};
    return coll_all_reduce_start(run->on->comm, &op, &run->request);
}

static zero_result start_broadcast(struct bench *bench, struct running *run, int me)
{
    const int root = (int)draw(run->key, 3, (uint32_t)run->on->world);
    const size_t bytes = 10 * count_of(run->key, root, 0);
    run->result = take(bench, bytes, &run->private_result);
    for (size_t i = 0; i < bytes && me == root; i++)
        run->result[i] = byte_of(run->key, root, 0, i);
    const struct coll_bulk_broadcast op = {run->result, bytes, root, {"sequence", run->key, NULL}};
    return coll_broadcast_start(run->on->comm, &op, &run->request);
}

static zero_result start_all_to_all(struct bench *bench, struct running *run, int me)
{
    const size_t sent = deal(run->spans, run->on, run->key, me, -1, 2);
    const size_t received = deal(run->other_spans, run->on, run->key, -1, me, 5);
    run->source = take(bench, sent, &run->private_source);
    run->result = take(bench, received, &run->private_result);
    for (int q = 0; q < run->on->world; q++)
        for (size_t i = 0; i < run->spans[q].count; i++)
            run->source[run->spans[q].offset + i] = byte_of(run->key, me, q, i);
    const struct coll_all_to_all op = {.source = run->source,
                                       .recv = run->result,
                                       .send = run->spans,
                                       .recv_spans = run->other_spans,
                                       .label = {"sequence", run->key, NULL}};
    return coll_all_to_all_start(run->on->comm, &op, &run->request);
}

/** From which rank to which; all others have nothing to do. */
static void ends_of(const struct running *run, int *from, int *to)
{
    *from = (int)draw(run->key, 3, (uint32_t)run->then.world);
    *to = (int)draw(run->key, 4, (uint32_t)run->then.world);
}

static zero_result start_message(struct bench *bench, struct running *run, int me)
{
    int from, to;
    ends_of(run, &from, &to);
    const size_t bytes = 20 * count_of(run->key, from, to);
    const struct coll_label label = {"sequence", run->key, NULL};
    zero_result result = ZERO_OK;
    if (me == from) {
        run->source = take(bench, bytes, &run->private_source);
        for (size_t i = 0; i < bytes; i++)
            run->source[i] = byte_of(run->key, from, to, i);
        const struct coll_message op = {run->source, bytes, to, label};
        result = coll_send_start(run->on->comm, &op, &run->request);
    }
    if (me == to && result == ZERO_OK) {
        run->result = take(bench, bytes, &run->private_result);
        const struct coll_message op = {run->result, bytes, from, label};
        result = coll_receive_start(run->on->comm, &op, &run->receive);
    }
    return result;
}

static bool start(struct bench *bench, const struct known *on, uint32_t key)
{
    struct running *run = &bench->running[bench->count++];
    *run = (struct running){.active = true, .key = key, .on = on, .then = *on};
    const int me = rank_in(on, bench->me);
    zero_result result = ZERO_E_STATE;
    switch (kind_of(key)) {
    case GATHER:
    case PUBLISH:
        result = start_gather(bench, run, me, kind_of(key) == PUBLISH);
        break;
    case REDUCE:
        result = start_reduce(bench, run, me);
        break;
    case ALL_REDUCE:
        result = start_all_reduce(bench, run, me);
        break;
    case BROADCAST:
        result = start_broadcast(bench, run, me);
        break;
    case ALL_TO_ALL:
        result = start_all_to_all(bench, run, me);
        break;
    case MESSAGE:
        result = start_message(bench, run, me);
        break;
    case KINDS:
        break;
    }
    CHECK_OK(bench->root, result);
    return true;
}

/* ------------------------------------------------------------------ results */

static bool check_bytes(const struct running *run, const unsigned char *at, size_t bytes, int from,
                        int to)
{
    for (size_t i = 0; i < bytes; i++)
        CHECK(at[i] == byte_of(run->key, from, to, i));
    return true;
}

/** The combination of elements first .. first+count-1 of the ranks below `ranks`, in the
 * accumulator's type, into `sum`. */
static void model(const struct running *run, int ranks, size_t first, size_t count, enum base_op op,
                  bool store, void *sum)
{
    alignas(8) unsigned char elements[3000 * 8];
    const zero_dtype dtype = dtype_of(run->key);
    for (int r = 0; r < ranks; r++) {
        fill_elements(dtype, elements, first, count, mix(run->key, (uint32_t)r, 1), false);
        combine(op, dtype, sum, elements, count, store && r == 0);
    }
    finish(dtype, sum, count);
}

static bool check_reduce(const struct running *run, int me)
{
    const zero_dtype dtype = dtype_of(run->key);
    const struct coll_span *span = &run->spans[me];
    alignas(8) unsigned char sum[MOST_COUNT * 8];
    fill_elements(base_accumulator_dtype(dtype), sum, 0, span->count,
                  mix(run->key, (uint32_t)me, 2), false);
    if (span->count > 0)
        model(run, contributors_of(run), span->offset, span->count, BASE_SUM,
              draw(run->key, 5, 2) == 0, sum);
    CHECK(memcmp(sum, run->result, span->count * sum_bytes(dtype)) == 0);
    return true;
}

static bool check_all_reduce(const struct running *run)
{
    const zero_dtype dtype = dtype_of(run->key);
    const size_t count = all_reduce_count(run->key);
    alignas(8) unsigned char sum[3000 * 8], narrowed[3000 * 8];
    model(run, run->then.world, 0, count, (enum base_op)draw(run->key, 8, 3), true, sum);
    narrow(dtype, narrowed, sum, count);
    CHECK(memcmp(narrowed, run->result, count * dtype_bytes(dtype)) == 0);
    return true;
}

static bool check_result(const struct bench *bench, const struct running *run)
{
    const int me = rank_in(&run->then, bench->me);
    int from, to;
    switch (kind_of(run->key)) {
    case GATHER:
        for (int r = 0; r < run->then.world; r++)
            CHECK(check_bytes(run, run->result + run->spans[r].offset, run->spans[r].count, r, 0));
        return true;
    case REDUCE:
        return check_reduce(run, me);
    case ALL_REDUCE:
        return check_all_reduce(run);
    case BROADCAST:
        from = (int)draw(run->key, 3, (uint32_t)run->then.world);
        return check_bytes(run, run->result, 10 * count_of(run->key, from, 0), from, 0);
    case ALL_TO_ALL:
        for (int r = 0; r < run->then.world; r++)
            CHECK(check_bytes(run, run->result + run->other_spans[r].offset,
                              run->other_spans[r].count, r, me));
        return true;
    case MESSAGE:
        ends_of(run, &from, &to);
        return me != to ||
               check_bytes(run, run->result, 20 * count_of(run->key, from, to), from, to);
    case PUBLISH:
    case KINDS:
        break;
    }
    return true;
}

static bool finish_run(struct bench *bench, struct running *run)
{
    CHECK_OK(bench->root, coll_wait(bench->root, &run->receive));
    if (own(bench, 2))
        CHECK_OK(bench->root, coll_wait(bench->root, &run->request));
    else
        CHECK_OK(bench->root, coll_drain(bench->root, &run->request));
    CHECK(check_result(bench, run));
    CHECK_OK(bench->root, coll_drain(bench->root, &run->request));
    CHECK_OK(bench->root, coll_drain(bench->root, &run->receive));
    free(run->private_source);
    free(run->private_result);
    run->active = false;
    return true;
}

/** Finishes about one in `one_in` of what is under way, in any order. */
static bool finish_some(struct bench *bench, uint32_t one_in)
{
    struct running *order[WINDOWS * WINDOW];
    for (int i = 0; i < bench->count; i++) {
        const uint32_t at = own(bench, (uint32_t)i + 1);
        order[i] = order[at];
        order[at] = &bench->running[i];
    }
    for (int i = 0; i < bench->count; i++)
        if (order[i]->active && own(bench, one_in) == 0)
            CHECK(finish_run(bench, order[i]));
    return true;
}

/* ------------------------------------------------------------------ sequences */

/** Starts a window's operations: those of one communicator in the common order, the communicators
 * in one of this rank's own. */
static bool start_window(struct bench *bench, uint32_t key)
{
    uint32_t todo[WINDOW];
    int left = 0;
    for (uint32_t i = 0; i < WINDOW; i++) {
        const uint32_t k = mix(key, i, 21);
        if (bench->comms[draw(k, 9, COMMS)].comm)
            todo[left++] = k;
    }
    while (left > 0) {
        const uint32_t comm = draw(todo[own(bench, (uint32_t)left)], 9, COMMS);
        int first = 0;
        while (draw(todo[first], 9, COMMS) != comm)
            first++;
        CHECK(start(bench, &bench->comms[comm], todo[first]));
        left--;
        memmove(todo + first, todo + first + 1, (size_t)(left - first) * sizeof *todo);
        if (own(bench, 4) == 0)
            CHECK_OK(bench->root, coll_progress(bench->root));
        nap(&bench->random, own(bench, 6) == 0 ? 50 : 0);
    }
    return true;
}

/** Cuts a communicator into two and keeps one of them, as all ranks see it, in a slot. */
static bool cut(struct bench *bench, uint32_t key)
{
    struct known *slot = &bench->comms[1 + draw(key, 1, COMMS - 1)];
    const struct known *parent = &bench->comms[draw(key, 2, COMMS)];
    if (slot == parent)
        parent = &bench->comms[0];
    for (int i = 0; i < bench->count; i++) // of what is closed nothing may be under way
        if (bench->running[i].active && bench->running[i].on == slot)
            CHECK(finish_run(bench, &bench->running[i]));
    coll_close(slot->comm);
    *slot = (struct known){.world = 0};
    struct base_error error = {0};
    struct coll_comm *group = NULL;
    const bool backwards = draw(key, 3, 2);
    const int me = rank_in(parent, bench->me);
    for (int i = 0; i < parent->world; i++) {
        const int r = backwards ? parent->world - 1 - i : i;
        if (draw(key, 10 + (uint32_t)r, 4) > 0)
            slot->ranks[slot->world++] = parent->ranks[r];
    }
    if (me < 0)
        return true;
    const bool in = draw(key, 10 + (uint32_t)me, 4) > 0;
    CHECK_OK(bench->root,
             coll_split(parent->comm, in ? 4 : -1, backwards ? -me : me, &group, &error));
    CHECK((group != NULL) == in);
    slot->comm = group;
    for (int r = 0; group && r < slot->world; r++)
        CHECK(coll_root_rank(group, r) == slot->ranks[r]);
    return true;
}

/** Something that all ranks of a communicator do at once. */
static bool together(struct bench *bench, uint32_t key)
{
    const struct known *on = &bench->comms[draw(key, 1, COMMS)];
    const int me = rank_in(on, bench->me);
    if (!on->comm)
        return true;
    const size_t bytes = count_of(key, 0, 0);
    unsigned char mine[MOST_COUNT], all[MOST_COUNT * MOST_WORLD];
    const int root = (int)draw(key, 4, (uint32_t)on->world);
    for (size_t i = 0; i < bytes; i++)
        mine[i] = byte_of(key, me, 0, i);
    double sum = me + 1;
    switch (draw(key, 3, 4)) {
    case 0:
        CHECK_OK(on->comm, coll_barrier(on->comm));
        break;
    case 1:
        CHECK_OK(on->comm, coll_exchange(on->comm, mine, bytes, all));
        for (int r = 0; r < on->world; r++)
            for (size_t i = 0; i < bytes; i++)
                CHECK(all[(size_t)r * bytes + i] == byte_of(key, r, 0, i));
        break;
    case 2:
        CHECK_OK(on->comm, coll_all_reduce(on->comm, &sum, 1, BASE_SUM));
        CHECK(2 * sum == on->world * (on->world + 1));
        break;
    default:
        CHECK_OK(on->comm, coll_broadcast(on->comm, mine, bytes, root));
        for (size_t i = 0; i < bytes; i++)
            CHECK(mine[i] == byte_of(key, root, 0, i));
    }
    return true;
}

static bool run_sequence(struct bench *bench, uint32_t seed)
{
    bench->random = mix(seed, (uint32_t)bench->me, 31);
    bench->count = 0;
    bench->used = 0;
    for (uint32_t i = 1; i < COMMS; i++)
        CHECK(cut(bench, mix(seed, i, 41)));
    for (uint32_t w = 0; w < WINDOWS; w++) {
        CHECK(start_window(bench, mix(seed, w, 42)));
        CHECK(finish_some(bench, 2));
        CHECK(together(bench, mix(seed, w, 43)));
        if (draw(seed, w, 3) == 0)
            CHECK(cut(bench, mix(seed, w, 44)));
    }
    CHECK(finish_some(bench, 1));
    for (int i = 1; i < COMMS; i++) {
        coll_close(bench->comms[i].comm);
        bench->comms[i] = (struct known){.world = 0};
    }
    CHECK_OK(bench->root, coll_barrier(bench->root));
    return true;
}

/** Which sequences, for all ranks. */
struct range {
    uint32_t first, count;
};

static bool run_sequences(struct coll_comm *root, void *user)
{
    const struct range *range = user;
    struct base_error error = {0};
    struct coll_arena *arena;
    CHECK_OK(root, coll_arena_create(root, ARENA_BYTES, &arena, &error));
    struct bench *bench = calloc(1, sizeof *bench);
    CHECK(bench);
    bench->root = root;
    bench->me = coll_rank(root);
    bench->arena = coll_arena_base(arena);
    bench->comms[0] = (struct known){.comm = root, .world = coll_world(root)};
    for (int r = 0; r < coll_world(root); r++)
        bench->comms[0].ranks[r] = r;
    bool good = true;
    for (uint32_t i = 0; i < range->count && good; i++) {
        good = run_sequence(bench, range->first + i);
        if (!good)
            fprintf(stderr, "rank %d of %d: in the sequence of seed %u\n", bench->me,
                    coll_world(root), range->first + i);
    }
    free(bench);
    return good;
}

static struct range given = {1, 12};

static void run_all(const char *transport)
{
    for (int world = 2; world <= MOST_WORLD; world++) {
        assert_true(run_ranks(transport, world, 0, run_sequences, &given));
        given.first += given.count;
    }
}

static void test_threads(void **state)
{
    (void)state;
    run_all("threads");
}

static void test_shm(void **state)
{
    (void)state;
    if (!test_takes_transport("shm"))
        skip();
    run_all("shm");
}

static void test_tcp(void **state)
{
    (void)state;
    run_all("tcp:threads");
    if (test_takes_transport("tcp"))
        run_all("tcp");
    if (test_takes_transport("hosts"))
        run_all("hosts");
}

/** As where the kernel lets no process read another's memory. */
static void test_copied(void **state)
{
    (void)state;
    if (!test_takes_transport("shm"))
        skip();
    assert_int_equal(base_fault_set("shm.peek@1", NULL), ZERO_OK);
    run_all("shm");
    assert_int_equal(base_fault_set(NULL, NULL), ZERO_OK);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        given.count = (uint32_t)strtoul(argv[1], NULL, 10);
    if (argc > 2)
        given.first = (uint32_t)strtoul(argv[2], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_shm),
        cmocka_unit_test(test_copied),
        cmocka_unit_test(test_tcp),
    };
    return cmocka_run_group_tests_name("coll_sequences", tests, NULL, NULL);
}
