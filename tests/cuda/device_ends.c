// How collectives of GPU memory begin, and what becomes of them where they can't: all ranks are
// told, their host is as before, and nothing is left.

#include "base/fault.h"
#include "base/library.h"
#include "collectives/control/control.h"
#include "tests/cuda/device_ranks.h"
#include "tests/cuda/driver.h"
#include "tests/cuda/leftovers.h"
#include "tests/cuda/nccl_double.h"
#include "tests/cuda/nccl_theirs.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cuda.h>
#include <nccl.h>

#include <cmocka.h>

enum { SKIPPED = 77 };

static int possible; // ranks

/* ------------------------------------------------------------------ pieces of bodies */

static bool works(struct device_rank *rank)
{
    uint64_t ticket;
    char *memory = device_rank_memory(rank, 1000);
    const struct coll_label label = {NULL, 0, NULL};
    NEED(gcomm_exchange(rank->device, memory, 8, memory + 8, label, &ticket) == ZERO_OK);
    NEED(gcomm_wait(rank->device, ticket) == ZERO_OK);
    return true;
}

// It is refused on all ranks with these words; the host goes on, and so does a second try.
static bool opens_only(struct device_rank *rank, zero_result result, const char *words)
{
    struct base_error error = {.result = ZERO_OK};
    const zero_result opened = gcomm_open(&rank->device, &rank->config, &error);
    NEED(!rank->device);
    if (opened != result || !strstr(error.message, words)) {
        fprintf(stderr, "rank %d: %d: '%s' is not in '%s'\n", rank->rank, opened, words,
                error.message);
        return false;
    }
    NEED(coll_barrier(rank->host) == ZERO_OK);
    return true;
}

static bool opens(struct device_rank *rank)
{
    struct base_error error = {.result = ZERO_OK};
    if (gcomm_open(&rank->device, &rank->config, &error) != ZERO_OK) {
        fprintf(stderr, "rank %d: gcomm_open: %s\n", rank->rank, error.message);
        return false;
    }
    return works(rank);
}

static bool everywhere(struct device_ranks ranks, bool (*body)(struct device_rank *))
{
    ranks.bare = true;
    for (ranks.world = 1; ranks.world <= possible; ranks.world++)
        if (!device_ranks_run(&ranks, body))
            return false;
    return true;
}

/* ------------------------------------------------------------------ arguments */

static bool wrong_arguments(struct device_rank *rank)
{
    const struct gcomm_config right = rank->config;
    const int odd = rank->world - 1; // this rank is wrong
    char words[96];
    int gpus;
    if (rank->rank == odd)
        rank->config.transport = "nothing";
    snprintf(words, sizeof words, "rank %d: collectives of devices: this build has no transport",
             odd);
    NEED(opens_only(rank, ZERO_E_UNSUPPORTED, words));
    rank->config = right;
    if (rank->rank == odd)
        rank->config.device = &base_device_cpu;
    NEED(opens_only(rank, ZERO_E_INVALID, "transport nccl is for cuda, not for cpu"));
    rank->config = right;
    if (rank->rank == odd)
        rank->config.number = 99;
    NEED(rank->gpu->count(&gpus, NULL) == ZERO_OK);
    snprintf(words, sizeof words, "cuda 99: there %s %d, from 0 on", gpus == 1 ? "is" : "are",
             gpus);
    NEED(opens_only(rank, ZERO_E_UNSUPPORTED, words));
    rank->config = right;
    if (rank->rank == odd)
        rank->config.transport = "host";
    if (rank->world > 1)
        NEED(opens_only(rank, ZERO_E_INVALID, "differ in their transports"));
    rank->config = right;
    rank->config.host = NULL;
    struct base_error error = {.result = ZERO_OK};
    NEED(gcomm_open(&rank->device, &rank->config, &error) == ZERO_E_INVALID);
    NEED(strstr(error.message, "without a host's"));
    struct coll_comm *group;
    NEED(coll_split(rank->host, 0, rank->rank, &group, &error) == ZERO_OK);
    rank->config.host = group;
    base_error_clear(&error);
    NEED(gcomm_open(&rank->device, &rank->config, &error) == ZERO_E_INVALID);
    NEED(strstr(error.message, "is a group, and devices are joined by all ranks only"));
    coll_close(group);
    rank->config = right;
    return opens(rank);
}

static void arguments_that_cannot_be(void **state)
{
    (void)state;
    assert_true(everywhere((struct device_ranks){.timeout_ns = 0}, wrong_arguments));
}

/* ------------------------------------------------------------------ the library */

static bool is_too_old(struct device_rank *rank)
{
    return opens_only(rank, ZERO_E_UNSUPPORTED,
                      "rank 0: libnccl.so.2 is NCCL 2.27.6, and 2.28 is the oldest that will do");
}

static void a_library_that_is_too_old(void **state)
{
    (void)state;
    assert_true(everywhere((struct device_ranks){.inject = "version=22706"}, is_too_old));
}

static bool lacks(struct device_rank *rank)
{
    return opens_only(rank, ZERO_E_UNSUPPORTED, (const char *)rank->of->user);
}

/* ------------------------------------------------------------------ meeting */

static bool never_meets(struct device_rank *rank)
{
    return opens_only(rank, ZERO_E_TIMEOUT, "nccl: the ranks have not met within ");
}

static void ranks_that_do_not_meet(void **state)
{
    (void)state;
    assert_true(everywhere(
        (struct device_ranks){.inject = "polls=1000000000", .timeout_ns = UINT64_C(300000000)},
        never_meets));
}

// Two ranks that NCCL takes for those of one host.
static bool on_one_gpu(struct device_rank *rank)
{
    setenv("NCCL_HOSTID", "same", 1);
    rank->config.number = 0;
    return opens_only(rank, ZERO_E_DEVICE, "Duplicate GPU detected");
}

static void two_ranks_on_one_gpu(void **state)
{
    (void)state;
    for (int world = 2; world <= DEVICE_RANKS_MOST; world++)
        assert_true(device_ranks_run(
            &(struct device_ranks){.world = world, .bare = true, .complains = true}, on_one_gpu));
}

/* ------------------------------------------------------------------ a communicator of theirs */

// Of these ranks, whose order is turned by so many.
static bool make_their_comm(const struct nccl_theirs *nccl, struct device_rank *rank, int turned,
                            ncclComm_t *comm)
{
    ncclUniqueId id;
    if (rank->rank == 0)
        NEED(nccl->unique_id(&id) == ncclSuccess);
    NEED(coll_broadcast(rank->host, &id, sizeof id, 0) == ZERO_OK);
    const ncclResult_t result =
        nccl_theirs_make(nccl, &id, (rank->rank + turned) % rank->world, rank->world, comm);
    NEED(nccl_theirs_settles(nccl, *comm, result));
    return true;
}

// Ours is beside it, and it is still good for what its owner does with it.
static bool given_comm(struct device_rank *rank)
{
    struct nccl_theirs nccl;
    ncclComm_t comm = NULL;
    char *memory = device_rank_memory(rank, 1000);
    NEED(nccl_theirs_find(&nccl) && make_their_comm(&nccl, rank, 0, &comm));
    rank->config.nccl_comm = comm;
    for (int i = 0; i < 2; i++) {
        NEED(opens(rank));
        NEED(nccl_theirs_settles(
            &nccl, comm, nccl.all_gather(memory, memory + 8, 8, ncclUint8, comm, rank->stream)));
        NEED(works(rank) && device_rank_sync(rank));
        gcomm_close(rank->device);
        rank->device = NULL;
        NEED(coll_barrier(rank->host) == ZERO_OK);
    }
    rank->config.nccl_comm = rank->rank == 0 ? comm : NULL;
    if (rank->world > 1)
        NEED(opens_only(rank, ZERO_E_INVALID,
                        "ranks 0 and 1 differ in whether they give a communicator of"));
    NEED(nccl.abort(comm) == ncclSuccess);
    return true;
}

static bool given_comm_of_others(struct device_rank *rank)
{
    struct nccl_theirs nccl;
    ncclComm_t comm = NULL;
    NEED(nccl_theirs_find(&nccl) && make_their_comm(&nccl, rank, 1, &comm));
    rank->config.nccl_comm = comm;
    if (rank->world > 1)
        NEED(opens_only(rank, ZERO_E_INVALID, "the ncclComm_t that was given is rank 1 of"));
    NEED(nccl.abort(comm) == ncclSuccess);
    return true;
}

static void a_communicator_of_the_program(void **state)
{
    (void)state;
    assert_true(everywhere((struct device_ranks){.timeout_ns = 0}, given_comm));
    assert_true(everywhere((struct device_ranks){.timeout_ns = 0}, given_comm_of_others));
}

/* ------------------------------------------------------------------ registered memory */

enum { REGISTERED = 100000 };

// Registrations that this process has made, and ended.
static bool count_registered(unsigned *made, unsigned *ended)
{
    nccl_double_registered_fn registered;
    const struct base_symbol symbol = {NCCL_DOUBLE_REGISTERED, &registered};
    if (base_library_find(dlopen(NCCL_DOUBLE, RTLD_NOW | RTLD_NOLOAD), &symbol, 1))
        return false;
    registered(made, ended);
    return true;
}

static bool has_registered(struct device_rank *rank, unsigned made, unsigned ended)
{
    unsigned by_now[2];
    NEED(count_registered(&by_now[0], &by_now[1]));
    NEED(by_now[0] == made && by_now[1] == ended);
    return true;
}

static bool give_memory(struct device_rank *rank)
{
    NEED(gcomm_alloc(&rank->config.memory, rank->config.transport, rank->gpu, REGISTERED, NULL) ==
         ZERO_OK);
    rank->config.bytes = REGISTERED;
    return true;
}

static void take_memory(struct device_rank *rank)
{
    gcomm_free(rank->config.memory, rank->config.transport, rank->gpu, NULL);
    rank->config.memory = NULL;
}

static bool works_registered(struct device_rank *rank)
{
    const struct coll_label label = {NULL, 0, NULL};
    uint64_t ticket;
    char *memory = rank->config.memory;
    NEED(gcomm_exchange(rank->device, memory, 5000, memory + 5000, label, &ticket) == ZERO_OK);
    NEED(gcomm_wait(rank->device, ticket) == ZERO_OK);
    return true;
}

static bool opens_registered(struct device_rank *rank)
{
    struct base_error error = {.result = ZERO_OK};
    const zero_result result = gcomm_open(&rank->device, &rank->config, &error);
    if (result)
        fprintf(stderr, "rank %d: %s\n", rank->rank, error.message);
    NEED(result == ZERO_OK);
    return works_registered(rank);
}

static bool closes(struct device_rank *rank)
{
    NEED(gcomm_close(rank->device));
    rank->device = NULL;
    NEED(coll_barrier(rank->host) == ZERO_OK);
    return true;
}

// Once while it is open, and not any more afterwards.
static bool registers(struct device_rank *rank)
{
    NEED(give_memory(rank));
    for (unsigned i = 0; i < 4; i++) {
        rank->config.must_register = i % 2;
        NEED(opens_registered(rank) && has_registered(rank, i + 1, i) && closes(rank));
        NEED(has_registered(rank, i + 1, i + 1));
    }
    // All give memory, or none.
    const struct gcomm_config right = rank->config;
    if (rank->rank == 0)
        rank->config.memory = NULL;
    if (rank->world > 1)
        NEED(opens_only(rank, ZERO_E_INVALID, "ranks 0 and 1 differ in whether memory is"));
    rank->config = right;
    take_memory(rank);
    return true;
}

static _Atomic int warnings;

static void hear(void *user, zero_log_level level, const char *component, const char *message)
{
    (void)component;
    warnings += level <= ZERO_LOG_WARN && strstr(message, user) != NULL;
}

// The last rank can't: all do without, or none goes on.
static bool cannot_register(struct device_rank *rank)
{
    char words[96];
    snprintf(words, sizeof words, "rank %d: ncclCommRegister", rank->world - 1);
    struct base_log log = {.sink = hear, .user = words, .level = ZERO_LOG_WARN};
    const unsigned mine = rank->rank < rank->world - 1; // it can
    rank->config.log = &log;
    NEED(give_memory(rank));
    NEED(opens_registered(rank) && warnings == 1 && has_registered(rank, mine, mine));
    NEED(closes(rank));
    rank->config.must_register = true;
    NEED(opens_only(rank, *(const zero_result *)rank->of->user, words));
    NEED(has_registered(rank, 2 * mine, 2 * mine));
    rank->config.log = NULL;
    take_memory(rank);
    return true;
}

static void memory_is_registered_by_all_or_none(void **state)
{
    static const zero_result results[] = {ZERO_E_DEVICE, ZERO_E_UNSUPPORTED};
    (void)state;
    assert_true(everywhere((struct device_ranks){.timeout_ns = 0}, registers));
    for (int world = 1; world <= DEVICE_RANKS_MOST; world++)
        for (int how = 0; how < 2; how++) {
            char inject[32];
            snprintf(inject, sizeof inject, "register=%d,rank=%d", how + 1, world - 1);
            assert_true(device_ranks_run(&(struct device_ranks){.world = world,
                                                                .inject = inject,
                                                                .bare = true,
                                                                .blameless = true,
                                                                .user = &results[how]},
                                         cannot_register));
        }
}

// An end that goes wrong, once only the log knows it.
static bool ends_badly(struct device_rank *rank)
{
    char words[96];
    snprintf(words, sizeof words, "nccl: rank %d on cuda %d: %s: ", rank->rank, rank->number,
             (const char *)rank->of->user);
    struct base_log log = {.sink = hear, .user = words, .level = ZERO_LOG_WARN};
    rank->config.log = &log;
    NEED(give_memory(rank) && opens_registered(rank) && warnings == 0);
    NEED(closes(rank) && warnings == 1);
    rank->config.log = NULL;
    take_memory(rank);
    return true;
}

static bool frees_what_is_none(struct device_rank *rank)
{
    struct base_error error = {.result = ZERO_OK};
    NEED(give_memory(rank));
    NEED(gcomm_free(rank, "nccl", rank->gpu, &error) == ZERO_E_DEVICE);
    NEED(strstr(error.message, "ncclMemFree: "));
    take_memory(rank);
    return true;
}

static void ends_that_go_wrong(void **state)
{
    (void)state;
    for (int world = 1; world <= 2; world++) {
        assert_true(device_ranks_run(
            &(struct device_ranks){
                .world = world, .inject = "register=3", .bare = true, .user = "ncclCommDeregister"},
            ends_badly));
        assert_true(device_ranks_run(&(struct device_ranks){.world = world,
                                                            .inject = "ending=2",
                                                            .bare = true,
                                                            .user = "ncclGroupEnd of aborts"},
                                     ends_badly));
    }
    assert_true(device_ranks_run(
        &(struct device_ranks){.world = 1, .bare = true, .complains = true}, frees_what_is_none));
}

// The last rank can't register, and then what has been begun does not end in time.
static bool leaves_behind(struct device_rank *rank)
{
    struct base_error error = {.result = ZERO_OK};
    struct base_log log = {.sink = hear, .user = "nccl: ", .level = ZERO_LOG_WARN};
    rank->config.log = &log;
    rank->config.must_register = true;
    rank->config.abort_timeout_ns = UINT64_C(100000000);
    NEED(give_memory(rank));
    NEED(gcomm_open(&rank->device, &rank->config, &error) == ZERO_E_DEVICE);
    NEED(strstr(error.message, "ncclCommRegister") && rank->device && warnings == 1);
    NEED(!gcomm_close(rank->device)); // so its memory is left
    rank->device = NULL;
    usleep(600000); // it is over by then, and has said nothing to a log that may be gone
    NEED(warnings == 1);
    return true;
}

static void a_beginning_that_is_left_behind(void **state)
{
    (void)state;
    for (int world = 1; world <= 2; world++)
        assert_true(
            device_ranks_run(&(struct device_ranks){.world = world,
                                                    .inject = "register=1,ends=500,ending=2",
                                                    .bare = true,
                                                    .leaves = true},
                             leaves_behind));
}

// Beneath a rank that dies: the abort ends what is registered.
static bool dies_registered(struct device_rank *rank)
{
    uint64_t ticket;
    NEED(give_memory(rank) && opens_registered(rank) && device_rank_meet(rank));
    if (rank->rank == rank->of->killed - 1)
        raise(SIGKILL);
    char *memory = rank->config.memory;
    const zero_result result = gcomm_exchange(rank->device, memory, 5000, memory + 5000,
                                              (struct coll_label){NULL, 0, NULL}, &ticket);
    NEED(result == ZERO_OK || result == ZERO_E_PEER);
    NEED(device_rank_learns(rank, ZERO_E_PEER, " died"));
    NEED(gcomm_close(rank->device));
    rank->device = NULL;
    NEED(has_registered(rank, 1, 0));
    take_memory(rank);
    return true;
}

static void what_is_registered_ends_with_a_dead_rank(void **state)
{
    (void)state;
    for (int world = 2; world <= DEVICE_RANKS_MOST; world++)
        assert_true(device_ranks_run(
            &(struct device_ranks){
                .world = world, .killed = world, .bare = true, .fails = true, .blameless = true},
            dies_registered));
}

/* ------------------------------------------------------------------ each step fails */

// The n-th allocation of the last rank. From the third on it may be that ranks cannot tell each
// other, which ends their host; so it does in the end in all cases.
static bool without_memory(struct device_rank *rank)
{
    struct base_error error = {.result = ZERO_OK};
    char fault[32];
    snprintf(fault, sizeof fault, "alloc@%d", *(const int *)rank->of->user);
    NEED(device_rank_meet(rank));
    if (rank->rank == rank->world - 1)
        NEED(base_fault_set(fault, NULL) == ZERO_OK);
    const zero_result result = gcomm_open(&rank->device, &rank->config, &error);
    base_fault_set("", NULL);
    NEED((result == ZERO_OK) == (rank->device != NULL));
    NEED(result == ZERO_OK || (result == ZERO_E_NOMEM && strstr(error.message, "no memory")));
    if (coll_state(rank->host, NULL) == ZERO_OK) {
        NEED(rank->device || opens(rank));
        NEED(works(rank));
        NEED(device_rank_meet(rank));
        coll_abort(rank->host, ZERO_E_ABORTED, "the end");
    }
    return true;
}

static bool without_a_thread(struct device_rank *rank)
{
    if (rank->rank == rank->world - 1)
        NEED(base_fault_set("device.thread@1", NULL) == ZERO_OK);
    NEED(opens_only(rank, ZERO_E_NOMEM, "no thread to watch cuda"));
    if (rank->rank == rank->world - 1)
        NEED(base_fault_set("device.thread@2", NULL) == ZERO_OK);
    NEED(opens_only(rank, ZERO_E_NOMEM, "no thread to watch cuda"));
    base_fault_set("", NULL);
    return opens(rank) && works(rank);
}

static void fail_next(const char *function, int status)
{
    cuda_driver_fail_fn fails;
    if (cuda_driver_find(CUDA_DRIVER_FAIL, &fails))
        fails(function, status);
}

static bool without_the_driver(struct device_rank *rank)
{
    static const char *const functions[] = {"cuStreamCreateWithPriority", "cuEventCreate"};
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        if (rank->rank == rank->world - 1)
            fail_next(functions[i], CUDA_ERROR_ILLEGAL_ADDRESS);
        NEED(opens_only(rank, ZERO_E_DEVICE, functions[i]));
    }
    return opens(rank) && works(rank);
}

static bool gives_none(struct device_rank *rank, int status, zero_result with, const char *words)
{
    struct base_error error = {.result = ZERO_OK};
    void *memory = rank;
    fail_next("cuMemAlloc", status);
    NEED(gcomm_alloc(&memory, rank->config.transport, rank->gpu, REGISTERED, &error) == with);
    NEED(error.result == with && strstr(error.message, words) && !memory);
    return true;
}

static bool without_memory_of_the_gpu(struct device_rank *rank)
{
    NEED(gives_none(rank, CUDA_ERROR_OUT_OF_MEMORY, ZERO_E_NOMEM,
                    "ncclMemAlloc, 100000 bytes: Cuda failure 2 'out of memory'"));
    NEED(gives_none(rank, CUDA_ERROR_ILLEGAL_ADDRESS, ZERO_E_DEVICE,
                    "ncclMemAlloc, 100000 bytes: unhandled cuda error"));
    return opens(rank);
}

static bool without_the_driver_later(struct device_rank *rank)
{
    NEED(opens(rank));
    NEED(device_rank_meet(rank));
    char *memory = device_rank_memory(rank, 1000);
    const char *function = rank->of->user;
    uint64_t ticket = 0;
    if (rank->rank == rank->world - 1)
        fail_next(function, CUDA_ERROR_ILLEGAL_ADDRESS);
    zero_result result = gcomm_after(rank->device, rank->stream);
    if (result == ZERO_OK)
        result = gcomm_exchange(rank->device, memory, 8, memory + 8,
                                (struct coll_label){NULL, 0, NULL}, &ticket);
    if (result == ZERO_OK)
        result = gcomm_wait(rank->device, ticket);
    NEED(result == ZERO_OK || result == ZERO_E_DEVICE);
    return device_rank_learns(rank, ZERO_E_DEVICE, function);
}

static void what_is_not_to_be_had(void **state)
{
    (void)state;
    for (int n = 1; n <= 12; n++)
        assert_true(everywhere((struct device_ranks){.fails = true, .user = &n}, without_memory));
    assert_true(everywhere((struct device_ranks){.timeout_ns = 0}, without_a_thread));
    assert_true(everywhere((struct device_ranks){.timeout_ns = 0}, without_the_driver));
    assert_true(device_ranks_run(&(struct device_ranks){.world = 1, .bare = true},
                                 without_memory_of_the_gpu));
    static const char *const functions[] = {"cuEventRecord", "cuStreamWaitEvent", "cuEventQuery"};
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        assert_true(everywhere((struct device_ranks){.fails = true, .user = functions[i]},
                               without_the_driver_later));
}

/* ------------------------------------------------------------------ the flight recorder */

// One rank, which is this process: no others are forked from it afterwards.
static void calls_are_recorded(void **state)
{
    struct control_segment *segment;
    struct control_record record;
    struct coll_comm *host;
    struct base_error error = {.result = ZERO_OK};
    int fd;
    (void)state;
    assert_int_equal(control_create(&segment, &fd, 1, true, &error), ZERO_OK);
    const struct coll_config config = {.transport = "self",
                                       .world = 1,
                                       .name = "main",
                                       .timeout_ns = UINT64_C(20000000000),
                                       .control = &segment->ranks[0]};
    assert_int_equal(coll_open(&host, &config, &error), ZERO_OK);
    struct device_rank rank = {.host = host, .gpu = base_device_find("cuda"), .world = 1};
    rank.config = (struct gcomm_config){.transport = "nccl", .host = host, .device = rank.gpu};
    assert_int_equal(gcomm_open(&rank.device, &rank.config, &error), ZERO_OK);
    assert_int_equal(rank.gpu->enter(0, &error), ZERO_OK);
    char *memory = device_rank_memory(&rank, 100);
    uint64_t ticket;
    assert_int_equal(gcomm_exchange(rank.device, memory, 24, memory + 50,
                                    (struct coll_label){"unit", 3, "h.2"}, &ticket),
                     ZERO_OK);
    assert_int_equal(gcomm_wait(rank.device, ticket), ZERO_OK);
    assert_true(control_read(&segment->ranks[0], control_newest(&segment->ranks[0]), &record));
    assert_string_equal(record.kind, "exchange");
    assert_string_equal(record.comm, "main/nccl");
    assert_string_equal(record.name, "h.2");
    assert_true(record.unit == 3 && record.bytes == 24 && record.sequence == ticket);
    assert_true(record.end_ns > record.begin_ns && record.what == CONTROL_OPERATION);
    gcomm_close(rank.device);
    rank.gpu->free(memory);
    rank.gpu->leave();
    coll_close(host);
    control_detach(segment);
    close(fd);
    assert_true(cuda_left_nothing());
}

int main(int count, char **arguments)
{
    possible = count > 1 ? DEVICE_RANKS_MOST : device_ranks_possible();
    // With a library in the double's place, or none.
    if (count > 1) {
        struct device_ranks ranks = {.user = arguments[1]};
        return everywhere(ranks, lacks) ? 0 : 1;
    }
    const struct CMUnitTest anywhere[] = {
        cmocka_unit_test(arguments_that_cannot_be),
    };
    const struct CMUnitTest of_the_double[] = {
        cmocka_unit_test(a_library_that_is_too_old),
        cmocka_unit_test(ranks_that_do_not_meet),
        cmocka_unit_test(two_ranks_on_one_gpu),
        cmocka_unit_test(a_communicator_of_the_program),
        cmocka_unit_test(memory_is_registered_by_all_or_none),
        cmocka_unit_test(ends_that_go_wrong),
        cmocka_unit_test(a_beginning_that_is_left_behind),
        cmocka_unit_test(what_is_registered_ends_with_a_dead_rank),
        cmocka_unit_test(what_is_not_to_be_had),
        cmocka_unit_test(calls_are_recorded),
    };
    if (possible == 0)
        return SKIPPED;
    const bool doubled = device_ranks_doubled();
    const int failed = cmocka_run_group_tests(anywhere, NULL, NULL);
    return failed + (doubled ? cmocka_run_group_tests(of_the_double, NULL, NULL) : 0);
}
