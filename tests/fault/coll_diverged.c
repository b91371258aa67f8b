// One rank calls something else, or the same of another unit or size: every rank's call fails, and
// the message names both calls.

#include "tests/unit/coll_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_WORLD = 4, ELEMENTS = 5000 };

/** How a call differs from the others'. */
enum variant { SAME, OTHER_UNIT, OTHER_SIZE, OTHER_CALL, TOGETHER, VARIANTS };

struct memory {
    float *source, *result, *sum;
    struct coll_span spans[MOST_WORLD]; /**< of elements, or bytes */
    bool together;                      /**< a reduce-scatter waits for all ranks */
    struct coll_request request;
};

struct operation {
    const char *name;
    bool labelled;
    zero_result (*start)(struct coll_comm *comm, struct memory *memory, size_t size,
                         struct coll_label label);
};

struct attempt {
    const struct operation *operation;
    enum variant variant;
    int odd;
    /** Of every rank; longer there than they, because a peer may still read after a failure. */
    struct memory memory[MOST_WORLD];
};

/* ------------------------------------------------------------------ operations */

static zero_result all_gather(struct coll_comm *comm, struct memory *memory, size_t size,
                              struct coll_label label)
{
    (void)size;
    const struct coll_all_gather op = {
        .source = memory->source, .recv = memory->result, .spans = memory->spans, .label = label};
    return coll_all_gather_start(comm, &op, &memory->request);
}

static zero_result reduce_scatter(struct coll_comm *comm, struct memory *memory, size_t size,
                                  struct coll_label label)
{
    (void)size;
    const struct coll_reduce_scatter op = {.source = memory->source,
                                           .dtype = ZERO_F32,
                                           .spans = memory->spans,
                                           .accumulator = memory->sum,
                                           .contributors = coll_world(comm),
                                           .together = memory->together,
                                           .store = true,
                                           .label = label};
    return coll_reduce_scatter_start(comm, &op, &memory->request);
}

static zero_result bulk_all_reduce(struct coll_comm *comm, struct memory *memory, size_t size,
                                   struct coll_label label)
{
    const struct coll_all_reduce op = {.source = memory->source,
                                       .result = memory->result,
                                       .count = size,
                                       .dtype = ZERO_F32,
                                       .label = label};
    return coll_all_reduce_start(comm, &op, &memory->request);
}

static zero_result bulk_broadcast(struct coll_comm *comm, struct memory *memory, size_t size,
                                  struct coll_label label)
{
    const struct coll_bulk_broadcast op = {
        .data = memory->source, .bytes = size, .root = 0, .label = label};
    return coll_broadcast_start(comm, &op, &memory->request);
}

static zero_result all_to_all(struct coll_comm *comm, struct memory *memory, size_t size,
                              struct coll_label label)
{
    (void)size;
    const struct coll_all_to_all op = {.source = memory->source,
                                       .recv = memory->result,
                                       .send = memory->spans,
                                       .recv_spans = memory->spans,
                                       .label = label};
    return coll_all_to_all_start(comm, &op, &memory->request);
}

static zero_result exchange(struct coll_comm *comm, struct memory *memory, size_t size,
                            struct coll_label label)
{
    (void)label;
    return coll_exchange(comm, memory->source, size, memory->result);
}

static zero_result all_reduce(struct coll_comm *comm, struct memory *memory, size_t size,
                              struct coll_label label)
{
    (void)label;
    return coll_all_reduce(comm, (double *)(void *)memory->sum, size, BASE_SUM);
}

static zero_result broadcast(struct coll_comm *comm, struct memory *memory, size_t size,
                             struct coll_label label)
{
    (void)label;
    return coll_broadcast(comm, memory->sum, size, 0);
}

static const struct operation operations[] = {
    {"all-gather", true, all_gather},      {"reduce-scatter", true, reduce_scatter},
    {"all-reduce", true, bulk_all_reduce}, {"broadcast", true, bulk_broadcast},
    {"all-to-all", true, all_to_all},      {"exchange", false, exchange},
    {"all-reduce", false, all_reduce},     {"broadcast", false, broadcast},
};

/* ------------------------------------------------------------------ ranks */

static zero_result call(struct coll_comm *comm, struct memory *memory,
                        const struct operation *operation, enum variant variant)
{
    if (variant == OTHER_CALL)
        return coll_barrier(comm);
    const size_t size = variant == OTHER_SIZE ? 496 : 512;
    memory->together = variant == TOGETHER;
    const struct coll_label label = {"unit", variant == OTHER_UNIT ? 18 : 17,
                                     variant == OTHER_UNIT ? "h.5" : "h.4"};
    for (int r = 0; r < coll_world(comm); r++)
        memory->spans[r] = (struct coll_span){512 * (size_t)r, size};
    const zero_result started = operation->start(comm, memory, size, label);
    return started == ZERO_OK ? coll_drain(comm, &memory->request) : started;
}

static bool has(const char *message, const char *part)
{
    if (!strstr(message, part))
        fprintf(stderr, "\"%s\" is not in: %s\n", part, message);
    return strstr(message, part) != NULL;
}

/** Whether the message names the odd rank's call and another one's. */
static bool names_both(const char *message, const struct attempt *attempt)
{
    char odd[64], usual[64];
    // Of an all-to-all only pairs of sizes agree or not.
    if (attempt->operation->start == all_to_all && attempt->variant == OTHER_SIZE)
        return has(message, "all-to-all #3, unit 17 (h.4): rank ") &&
               (strstr(message, "sends 512 bytes") ? has(message, "which expects 496")
                                                   : has(message, "sends 496 bytes to rank"));
    const char *name = attempt->operation->name;
    const char *unit = attempt->operation->labelled ? ", unit 17 (h.4)" : "";
    const char *odd_unit = !attempt->operation->labelled    ? ""
                           : attempt->variant == OTHER_UNIT ? ", unit 18 (h.5)"
                                                            : unit;
    snprintf(usual, sizeof usual, "called %s #3%s", name, unit);
    if (attempt->variant == OTHER_CALL)
        snprintf(odd, sizeof odd, "rank %d called barrier #3", attempt->odd);
    else
        snprintf(odd, sizeof odd, "rank %d called %s #3%s", attempt->odd, name, odd_unit);
    return has(message, usual) && has(message, odd) &&
           (attempt->variant != OTHER_SIZE || has(message, ", with ")) &&
           (attempt->variant != TOGETHER || has(message, "only one of them waits for all ranks"));
}

static bool diverging_rank(struct coll_comm *comm, void *user)
{
    struct attempt *attempt = user;
    struct memory *memory = &attempt->memory[coll_rank(comm)];
    struct base_error error = {0};
    zero_result result = ZERO_OK;
    for (int i = 0; i < 3 && result == ZERO_OK; i++)
        result = call(comm, memory, attempt->operation, SAME);
    CHECK_OK(comm, result);
    result = call(comm, memory, attempt->operation,
                  coll_rank(comm) == attempt->odd ? attempt->variant : SAME);
    // Who needs nothing of the odd one learns it in the next call.
    for (int i = 0; i < 3 && result == ZERO_OK; i++)
        result = coll_barrier(comm);
    CHECK(result == ZERO_E_DIVERGED && coll_state(comm, &error) == ZERO_E_DIVERGED);
    CHECK(coll_barrier(comm) == ZERO_E_DIVERGED);
    CHECK(names_both(error.message, attempt));
    return true;
}

static void try(const char *transport, int world, const struct operation *operation,
                enum variant variant, int odd)
{
    struct attempt attempt = {.operation = operation, .variant = variant, .odd = odd};
    for (int r = 0; r < world; r++) {
        struct memory *memory = &attempt.memory[r];
        memory->source = calloc(ELEMENTS, sizeof(double));
        memory->result = calloc(ELEMENTS, sizeof(double));
        memory->sum = calloc(ELEMENTS, sizeof(double));
        assert_true(memory->source && memory->result && memory->sum);
    }
    if (!run_ranks(transport, world, 0, diverging_rank, &attempt))
        fail_msg("%s, %s, variant %d, rank %d of %d", transport, operation->name, variant, odd,
                 world);
    for (int r = 0; r < world; r++) {
        free(attempt.memory[r].source);
        free(attempt.memory[r].result);
        free(attempt.memory[r].sum);
    }
}

static bool has_variant(const struct operation *operation, enum variant variant)
{
    return variant == OTHER_UNIT ? operation->labelled
           : variant == TOGETHER ? operation->start == reduce_scatter
                                 : true;
}

static void sweep(const char *transport)
{
    for (size_t o = 0; o < sizeof operations / sizeof *operations; o++)
        for (int world = 2; world <= 3; world++)
            for (enum variant v = OTHER_UNIT; v < VARIANTS; v++)
                if (has_variant(&operations[o], v))
                    try(transport, world, &operations[o], v, (int)(o + (size_t)v) % world);
}

static void threads(void **state)
{
    (void)state;
    sweep("threads");
}

static void processes(void **state)
{
    (void)state;
    sweep("shm");
}

static void connected(void **state)
{
    (void)state;
    sweep("tcp:threads");
    sweep("tcp");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads),
        cmocka_unit_test(processes),
        cmocka_unit_test(connected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
