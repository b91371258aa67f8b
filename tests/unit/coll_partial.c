// Sums of a host's blocks that travel instead of contributions: the bits of the scalar reference,
// whoever makes them and whatever they are of; what is read of other ranks; who is named for what
// is not finite; ranks that leave, die or fail while others wait for their sums.

#include "base/fault.h"
#include "collectives/comm/comm_internal.h"
#include "collectives/comm/partial_sums.h"
#include "tests/unit/coll_ranks.h"
#include "tests/unit/coll_reference.h"
#include "tests/unit/coll_shapes.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/** Of all shapes one is long: its sums are looked at in several pieces. */
enum { MOST_WORLD = 8, COUNT = 30011, MOST_COUNT = 140001 };

/** What contributions are: of an ordinary size, with one element of some not finite, so large that
 * many a sum is not finite, with many elements that are not. */
enum badness { NOTHING, ONE, LARGE, MANY, BADNESSES };

/** A sequence of contributions, numbered as they are added, in as many calls as it takes. */
struct sequence {
    zero_dtype dtype;
    int contributions;
    uint32_t group; /**< sum_group */
    enum shape shape;
    enum badness badness;
    bool unshared; /**< they are not in an arena */
    int base;      /**< other contributions than those of another one */
    size_t room;   /**< bytes of memory for sums; 0: as much as they need */
};

/** Where ranks are. */
struct where {
    const char *transport;
    int world, each;
};

struct bench {
    struct coll_comm *comm;
    int rank, world, each;
    float *memory;               /**< of what follows, but for source */
    unsigned char *source, *own; /**< in an arena, and private */
    unsigned char *contents;
    float *sum, *block, *expected, *expected_block;
    bool prepared; /**< there is memory for sums */
    bool slow;     /**< look_slowly() is */
    const struct sequence *sequence;
    int first;                    /**< contribution of the call under way */
    size_t nonfinite[MOST_WORLD]; /**< element that was named of each; SIZE_MAX: none */
};

static bool set_up(struct bench *bench, struct coll_comm *comm, int each)
{
    struct coll_arena *source;
    *bench = (struct bench){
        .comm = comm, .rank = coll_rank(comm), .world = coll_world(comm), .each = each};
    CHECK(coll_ranks_a_host(comm) == each);
    CHECK_OK(comm, coll_arena_create(comm, MOST_COUNT * sizeof(float), &source, NULL));
    bench->source = coll_arena_base(source);
    CHECK((bench->memory = malloc(6 * (size_t)MOST_COUNT * sizeof(float))) != NULL);
    bench->own = (unsigned char *)bench->memory;
    bench->contents = (unsigned char *)(bench->memory + MOST_COUNT);
    bench->sum = bench->memory + 2 * (size_t)MOST_COUNT;
    bench->block = bench->sum + MOST_COUNT;
    bench->expected = bench->block + MOST_COUNT;
    bench->expected_block = bench->expected + MOST_COUNT;
    return true;
}

static size_t length_of(const struct sequence *sequence)
{
    return sequence->shape == ALL_ON_LAST ? MOST_COUNT : COUNT;
}

/** Memory for the sums of all sequences of a run. */
static bool prepare(struct bench *bench, const struct sequence *sequence)
{
    struct coll_span spans[MOST_WORLD];
    deal_shape(spans, bench->world, length_of(sequence), sequence->shape, 0);
    const size_t bytes =
        sequence->room ? sequence->room
                       : coll_partial_sums_bytes(bench->world, bench->each, 2, ZERO_F32, spans);
    if (bytes > 0)
        CHECK_OK(bench->comm, coll_partial_sums_create(bench->comm, bytes, NULL));
    bench->prepared = !sequence->room;
    return true;
}

/** An element of any mantissa, whose sums with others depend on their order. */
static void write_ordinary(zero_dtype dtype, void *to, uint32_t random)
{
    const uint32_t f32 = (random & 0x807fffff) | (114 + (random >> 23 & 15)) << 23;
    const uint16_t bf16 = (uint16_t)(f32 >> 16);
    const uint16_t f16 = (uint16_t)((random & 0x83ff) | (8 + (random >> 20 & 7)) << 10);
    if (dtype == ZERO_F32)
        memcpy(to, &f32, sizeof f32);
    else
        memcpy(to, dtype == ZERO_BF16 ? &bf16 : &f16, sizeof f16);
}

static void contribute(const struct sequence *sequence, int number, void *to, size_t first,
                       size_t n)
{
    const size_t size = dtype_bytes(sequence->dtype), bad = length_of(sequence) / 3;
    if (sequence->badness >= LARGE)
        fill_elements(sequence->dtype, to, first, n,
                      mix(77, (uint32_t)number, (uint32_t)sequence->base),
                      sequence->badness == LARGE);
    for (size_t i = 0; i < n && sequence->badness < LARGE; i++)
        write_ordinary(sequence->dtype, (unsigned char *)to + i * size,
                       mix(91 + (uint32_t)sequence->base, (uint32_t)number, (uint32_t)(first + i)));
    if (sequence->badness == ONE && number % 5 == 1 && bad >= first && bad < first + n)
        memset((unsigned char *)to + (bad - first) * size, 0xff, size);
}

static void note_nonfinite(void *user, int contributor, size_t element)
{
    struct bench *bench = user;
    if (bench->nonfinite[contributor] == SIZE_MAX)
        bench->nonfinite[contributor] = element;
}

/** Adds up a sequence as the definition says. */
static void expect(struct bench *bench, const struct sequence *sequence,
                   const struct coll_span *span)
{
    for (int number = 0; number < sequence->contributions; number++) {
        const uint32_t place = (uint32_t)number % sequence->group;
        contribute(sequence, number, bench->contents, span->offset, span->count);
        combine(BASE_SUM, sequence->dtype, bench->expected_block, bench->contents, span->count,
                place == 0);
        finish(sequence->dtype, bench->expected_block, span->count);
        if (place + 1 != sequence->group && number + 1 != sequence->contributions)
            continue;
        combine(BASE_SUM, ZERO_F32, bench->expected, bench->expected_block, span->count,
                (uint32_t)number < sequence->group);
        finish(ZERO_F32, bench->expected, span->count);
    }
}

/** Whether the right elements of a call's contributions were named. */
static bool named(struct bench *bench, const struct sequence *sequence, int contributors,
                  const struct coll_span *span)
{
    for (int k = 0; k < contributors; k++) {
        size_t bad = SIZE_MAX;
        contribute(sequence, bench->first + k, bench->contents, span->offset, span->count);
        for (size_t i = span->count; i-- > 0;)
            bad = is_finite(sequence->dtype, bench->contents, i) ? bad : i;
        CHECK(bench->nonfinite[k] == bad);
    }
    return true;
}

static struct coll_reduce_scatter op_of(struct bench *bench, const struct sequence *sequence,
                                        const struct coll_span *spans)
{
    const int left = sequence->contributions - bench->first;
    return (struct coll_reduce_scatter){
        .source = sequence->unshared ? bench->own : bench->source,
        .dtype = sequence->dtype,
        .spans = spans,
        .accumulator = bench->sum,
        .contributors = left < bench->world ? left : bench->world,
        .store = bench->first == 0,
        .sum_group = sequence->group,
        .first = (uint64_t)bench->first,
        .last = left <= bench->world,
        .block = bench->block,
        .nonfinite = note_nonfinite,
        .user = bench,
        .label = {.what = "call", .number = (uint32_t)bench->first},
    };
}

/** Bytes that a rank has read of others for its own span when all of a sequence is summed. */
static uint64_t bytes_read(const struct bench *bench, const struct sequence *sequence, size_t count)
{
    const int here = bench->rank / bench->each, group = (int)sequence->group;
    uint64_t bytes = 0;
    for (int number = 0; number < sequence->contributions; number++) {
        const int rank = number % bench->world;
        if (rank != bench->rank && rank / bench->each == here)
            bytes += count * dtype_bytes(sequence->dtype);
        else if (rank != bench->rank && number % group == 0)
            bytes += count * sizeof(float);
    }
    return bytes;
}

static bool run_sequence(struct bench *bench, const struct sequence *sequence)
{
    struct coll_counters before, after;
    struct coll_span spans[MOST_WORLD];
    deal_shape(spans, bench->world, length_of(sequence), sequence->shape, 0);
    const struct coll_span *span = &spans[bench->rank];
    unsigned char *source = sequence->unshared ? bench->own : bench->source;
    coll_counters(bench->comm, &before);
    for (bench->first = 0; bench->first < sequence->contributions; bench->first += bench->world) {
        struct coll_request request = {0};
        const struct coll_reduce_scatter op = op_of(bench, sequence, spans);
        memset(bench->nonfinite, 0xff, sizeof bench->nonfinite);
        contribute(sequence, bench->first + bench->rank, source, 0, length_of(sequence));
        CHECK_OK(bench->comm, coll_reduce_scatter_start(bench->comm, &op, &request));
        CHECK_OK(bench->comm, coll_drain(bench->comm, &request));
        CHECK(span->count == 0 || named(bench, sequence, op.contributors, span));
    }
    coll_counters(bench->comm, &after);
    expect(bench, sequence, span);
    CHECK(memcmp(bench->sum, bench->expected, span->count * sizeof(float)) == 0);
    if (bench->prepared && sequence->badness == NOTHING &&
        coll_partial_sums_travel(bench->world, bench->each, sequence->group, sequence->dtype))
        CHECK(after.reduced_bytes - before.reduced_bytes ==
              bytes_read(bench, sequence, span->count));
    return true;
}

/* ------------------------------------------------------------------ the same bits */

struct run {
    const struct where *where;
    struct sequence sequence;
};

static bool sums_rank(struct coll_comm *comm, void *user)
{
    static const uint32_t groups[] = {1, 2, 4, 8};
    static const int contributions[] = {1, 3, 4, 6, 8, 13, 16};
    const struct run *run = user;
    struct sequence sequence = run->sequence;
    struct bench bench;
    bool good = set_up(&bench, comm, run->where->each) && prepare(&bench, &sequence);
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
        for (size_t v = 0; v < sizeof contributions / sizeof *contributions && good; v++) {
            const zero_dtype dtypes[] = {ZERO_F32, ZERO_BF16, ZERO_F16};
            const uint32_t seed = mix((uint32_t)g, (uint32_t)v, (uint32_t)sequence.shape);
            sequence.dtype = dtypes[seed % 3];
            sequence.group = groups[g];
            sequence.contributions = contributions[v];
            sequence.badness = (enum badness)(seed / 3 % BADNESSES);
            sequence.unshared = seed / 12 % 4 == 0;
            if (sequence.group > 4 && seed / 48 % 4 != 0)
                continue; // blocks of several hosts
            good = run_sequence(&bench, &sequence);
            if (!good)
                fprintf(stderr, "rank %d of %d, %d a host: %d contributions, sum_group %u\n",
                        bench.rank, bench.world, bench.each, contributions[v], groups[g]);
        }
    free(bench.memory);
    return good;
}

static const struct where places[] = {
    {"hosts/2", 4, 2}, {"hosts/4", 8, 4}, {"hosts/2", 6, 2}, {"hosts/2:threads", 4, 2}};

static void sums_have_the_bits_of_any_other_way(void **state)
{
    (void)state;
    for (size_t w = 0; w < sizeof places / sizeof *places; w++)
        for (enum shape shape = EVEN; shape < SHAPES; shape++) {
            struct run run = {&places[w], {.shape = shape}};
            if (shape == EVEN || w == shape % 2)
                assert_true(run_ranks(places[w].transport, places[w].world, 0, sums_rank, &run));
        }
}

// Ranks of a host that may not read each other copy for each other.
static void contributions_may_have_to_be_copied(void **state)
{
    (void)state;
    struct run run = {&places[0], {.shape = UNEVEN}};
    assert_int_equal(base_fault_set("shm.peek@1", NULL), ZERO_OK);
    assert_true(run_ranks(places[0].transport, places[0].world, 0, sums_rank, &run));
    assert_int_equal(base_fault_set(NULL, NULL), ZERO_OK);
}

static void too_little_memory_is_no_other_result(void **state)
{
    (void)state;
    struct run run = {&places[0], {.shape = UNEVEN, .room = 4096}};
    assert_true(run_ranks(places[0].transport, places[0].world, 0, sums_rank, &run));
}

/** Contributions travel: the hosts are not alike. */
static bool uneven_rank(struct coll_comm *comm, void *user)
{
    const struct where nowhere = {.each = 0};
    struct run run = {&nowhere, *(struct sequence *)user};
    CHECK(coll_partial_sums_bytes(coll_world(comm), 0, 2, ZERO_F32, NULL) == 0);
    return sums_rank(comm, &run);
}

static void uneven_hosts_send_contributions(void **state)
{
    (void)state;
    struct sequence sequence = {.shape = UNEVEN, .room = 1 << 20};
    assert_true(run_ranks("hosts/3", 5, 0, uneven_rank, &sequence));
    assert_true(run_ranks("hosts", 4, 0, uneven_rank, &sequence)); // in turn
}

static void only_what_gets_smaller_travels(void **state)
{
    (void)state;
    assert_true(coll_partial_sums_travel(4, 2, 2, ZERO_F32));
    assert_true(coll_partial_sums_travel(8, 4, 4, ZERO_BF16));
    assert_false(coll_partial_sums_travel(4, 2, 2, ZERO_F16)); // as many bytes
    assert_false(coll_partial_sums_travel(8, 4, 8, ZERO_F32)); // blocks of several hosts
    assert_false(coll_partial_sums_travel(6, 3, 2, ZERO_F32));
    assert_false(coll_partial_sums_travel(4, 4, 4, ZERO_F32)); // one host
    assert_false(coll_partial_sums_travel(4, 2, 2, ZERO_F64));
}

/* ------------------------------------------------------------------ several under way */

enum { CALLS = 4 };

/** Holds the owner up when it has read the first of several pieces. */
static void look_slowly(void *user, size_t first, size_t count, const void *sum)
{
    const struct bench *bench = user;
    (void)count, (void)sum;
    if (first == 0 && bench->slow)
        usleep(50000);
}

/** What is wanted of several calls under way. */
struct ahead {
    struct where where;
    enum shape shape;
    bool slow; /**< the last rank takes its time with the first call */
};

/** Starts a call of new contributions, from memory of its own. */
static bool start_call(struct bench *bench, const struct sequence *sequence,
                       const struct coll_span *spans, struct coll_request *request, float **memory)
{
    const size_t length = length_of(sequence);
    struct coll_reduce_scatter op = op_of(bench, sequence, spans);
    memory[0] = malloc(length * sizeof(float));
    op.accumulator = memory[1] = malloc(length * sizeof(float));
    op.source = memory[0];
    op.tile = look_slowly;
    CHECK(memory[0] && memory[1]);
    contribute(sequence, bench->rank, memory[0], 0, length);
    CHECK_OK(bench->comm, coll_reduce_scatter_start(bench->comm, &op, request));
    return true;
}

/** Starts all calls before it waits for any. */
static bool ahead_rank(struct coll_comm *comm, void *user)
{
    const struct ahead *ahead = user;
    struct sequence sequence = {
        .dtype = ZERO_F32, .contributions = ahead->where.world, .group = 2, .shape = ahead->shape};
    struct coll_request requests[CALLS] = {0};
    float *memory[CALLS][2];
    struct coll_span spans[MOST_WORLD];
    struct bench bench;
    CHECK(set_up(&bench, comm, ahead->where.each) && prepare(&bench, &sequence));
    bench.slow = ahead->slow && bench.rank == bench.world - 1;
    deal_shape(spans, bench.world, length_of(&sequence), sequence.shape, 0);
    for (sequence.base = 0; sequence.base < CALLS; sequence.base++)
        CHECK(
            start_call(&bench, &sequence, spans, &requests[sequence.base], memory[sequence.base]));
    const struct coll_span *span = &spans[bench.rank];
    for (sequence.base = 0; sequence.base < CALLS; sequence.base++) {
        float **of_call = memory[sequence.base];
        CHECK_OK(comm, coll_drain(comm, &requests[sequence.base]));
        bench.slow = false;
        expect(&bench, &sequence, span);
        CHECK(memcmp(of_call[1], bench.expected, span->count * sizeof(float)) == 0);
        free(of_call[0]);
        free(of_call[1]);
    }
    free(bench.memory);
    return true;
}

static void several_are_under_way(void **state)
{
    (void)state;
    for (size_t w = 0; w < sizeof places / sizeof *places; w++) {
        struct ahead ahead = {.where = places[w]};
        assert_true(run_ranks(places[w].transport, places[w].world, 0, ahead_rank, &ahead));
    }
}

// The last rank, which owns all, has the others wait until it has read a sum.
static void a_sum_stays_until_it_is_read(void **state)
{
    (void)state;
    struct ahead ahead = {{"hosts/4", 8, 4}, ALL_ON_LAST, true};
    assert_true(run_ranks("hosts/4", 8, 0, ahead_rank, &ahead));
}

/* ------------------------------------------------------------------ ranks that leave */

static bool leaving_rank(struct coll_comm *comm, void *user)
{
    const unsigned *leavers = user; // ranks that start calls and do not wait: a bit each
    const struct sequence sequence = {
        .dtype = ZERO_F32, .contributions = 8, .group = 4, .badness = MANY};
    static const struct sequence before = {.dtype = ZERO_BF16, .contributions = 8, .group = 4};
    struct coll_request requests[CALLS] = {0};
    struct coll_span spans[MOST_WORLD];
    struct bench bench;
    CHECK(set_up(&bench, comm, 4) && prepare(&bench, &before) && run_sequence(&bench, &before));
    bench.first = 0;
    deal_shape(spans, bench.world, COUNT, EVEN, 0);
    memset(bench.nonfinite, 0xff, sizeof bench.nonfinite);
    contribute(&sequence, bench.rank, bench.source, 0, COUNT);
    const struct coll_reduce_scatter op = op_of(&bench, &sequence, spans);
    for (int i = 0; i < CALLS; i++)
        CHECK_OK(comm, coll_reduce_scatter_start(comm, &op, &requests[i]));
    if (*leavers >> bench.rank & 1)
        return true; // whose memory stays until the others have read it
    for (int i = 0; i < CALLS; i++)
        CHECK_OK(comm, coll_drain(comm, &requests[i]));
    const struct coll_span *span = &spans[bench.rank];
    expect(&bench, &sequence, span);
    CHECK(memcmp(bench.sum, bench.expected, span->count * sizeof(float)) == 0);
    CHECK(named(&bench, &sequence, op.contributors, span));
    free(bench.memory);
    return true;
}

static void makers_may_leave(void **state)
{
    (void)state;
    static unsigned leavers[] = {0x01, 0x20, 0x0f, 0xf0, 0x7f, 0x5a};
    for (size_t i = 0; i < sizeof leavers / sizeof *leavers; i++)
        assert_true(run_ranks("hosts/4", 8, 0, leaving_rank, &leavers[i]));
}

/* ------------------------------------------------------------------ failures */

enum { VICTIM = 2 };

struct failing {
    bool dies;
    zero_result expected;
};

/** One rank ends, or fails, while it makes sums for the other host. */
static bool failing_rank(struct coll_comm *comm, void *user)
{
    const struct failing *failing = user;
    const struct sequence sequence = {.dtype = ZERO_F32, .contributions = 4, .group = 2};
    struct coll_request request = {0};
    struct coll_span spans[MOST_WORLD];
    struct bench bench;
    CHECK(set_up(&bench, comm, 2) && prepare(&bench, &sequence) && run_sequence(&bench, &sequence));
    bench.first = 0;
    deal_shape(spans, bench.world, COUNT, EVEN, 0);
    contribute(&sequence, bench.rank, bench.source, 0, COUNT);
    const char *fault =
        failing->dies ? "coll.reduce-scatter.read:kill@2" : "coll.reduce-scatter.read@2";
    CHECK(bench.rank != VICTIM || base_fault_set(fault, NULL) == ZERO_OK);
    const struct coll_reduce_scatter op = op_of(&bench, &sequence, spans);
    zero_result result = coll_reduce_scatter_start(comm, &op, &request);
    result = result ? result : coll_drain(comm, &request);
    CHECK(result == failing->expected);
    free(bench.memory);
    return true;
}

static void a_maker_that_fails_ends_all(void **state)
{
    (void)state;
    struct failing dead = {true, ZERO_E_PEER}, failed = {false, ZERO_E_IO};
    assert_true(run_killed_by("hosts/2", 4, VICTIM, failing_rank, &dead));
    assert_true(run_ranks("hosts/2", 4, 0, failing_rank, &failed));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_what_gets_smaller_travels),
        cmocka_unit_test(sums_have_the_bits_of_any_other_way),
        cmocka_unit_test(contributions_may_have_to_be_copied),
        cmocka_unit_test(too_little_memory_is_no_other_result),
        cmocka_unit_test(uneven_hosts_send_contributions),
        cmocka_unit_test(several_are_under_way),
        cmocka_unit_test(a_sum_stays_until_it_is_read),
        cmocka_unit_test(makers_may_leave),
        cmocka_unit_test(a_maker_that_fails_ends_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
