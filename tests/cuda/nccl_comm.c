// A program's own ncclComm_t, which zero_config lends to zero: looked at, and otherwise left alone.
#include "base/library.h"
#include "tests/cuda/job.h"
#include "tests/cuda/leftovers.h"
#include "tests/cuda/nccl_double.h"
#include "tests/cuda/nccl_theirs.h"
#include "tests/ranks/saved.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <nccl.h>

#include <cmocka.h>

enum { RANKS = 2 };

static const struct base_device *const gpu = &base_device_cuda;

static nccl_double_live_fn live_there; // NULL: NCCL is a real one
static struct nccl_theirs nccl;

static bool find_nccl(void)
{
    const struct base_symbol live = {NCCL_DOUBLE_LIVE, &live_there};
    if (!nccl_theirs_find(&nccl))
        return false;
    base_library_find(dlopen(NCCL_DOUBLE, RTLD_NOW | RTLD_LOCAL), &live, 1);
    return true;
}

/* ------------------------------------------------------------------ their communicator */

struct lent {
    ncclUniqueId id;
    bool (*act)(struct team_rank *rank, ncclComm_t comm, void *stream);
    int turned;   // the communicator's ranks, by so many
    bool unready; // it is given while it is being made
};

static bool settles(ncclComm_t comm, ncclResult_t result)
{
    return nccl_theirs_settles(&nccl, comm, result);
}

static bool lend(struct team_rank *rank, void *user)
{
    const struct lent *lent = user;
    ncclComm_t comm = NULL;
    void *stream = NULL;
    char device[24];
    snprintf(device, sizeof device, "cuda:%d", rank->rank);
    rank->config.device = device;
    TEAM_CHECK(gpu->enter(rank->rank, NULL) == ZERO_OK);
    TEAM_CHECK(gpu->stream_create(&stream, false, NULL) == ZERO_OK);
    const ncclResult_t result = nccl_theirs_make(
        &nccl, &lent->id, (rank->rank + lent->turned) % rank->world, rank->world, &comm);
    TEAM_CHECK(lent->unready || settles(comm, result));
    rank->config.nccl_comm = comm;
    const bool good = lent->act(rank, comm, stream);
    team_close(rank);
    TEAM_CHECK(settles(comm, lent->unready ? result : ncclSuccess));
    TEAM_CHECK(nccl.abort(comm) == ncclSuccess);
    gpu->stream_destroy(stream);
    gpu->leave();
    return good;
}

static void run(bool (*act)(struct team_rank *rank, ncclComm_t comm, void *stream), int turned,
                bool unready)
{
    struct lent lent = {.act = act, .turned = turned, .unready = unready};
    if (!job_gpu_each(RANKS))
        skip();
    assert_int_equal(nccl.unique_id(&lent.id), ncclSuccess);
    assert_true(team_run(team_threads(RANKS), RANKS, lend, &lent));
    assert_int_equal(live_there ? live_there() : 0, 0);
    assert_true(cuda_left_nothing());
}

/* ------------------------------------------------------------------ tests */

// It is as good for its owner afterwards as before, and after zero has ended.
static bool use_both(struct team_rank *rank, ncclComm_t comm, void *stream)
{
    void *memory = NULL;
    TEAM_CHECK(gpu->alloc(&memory, 16, NULL) == ZERO_OK);
    char *bytes = memory;
    TEAM_CHECK(team_open(rank) && toy_register(rank, &toy_odd));
    TEAM_OK(rank, zero_commit(rank->z));
    TEAM_CHECK(strstr(zero_plan_text(rank->z), "NCCL's own buffers"));
    for (int i = 0; i < 2; i++) {
        const ncclResult_t result =
            nccl.all_gather(bytes + 8, bytes, 8 / (size_t)rank->world, ncclUint8, comm, stream);
        TEAM_CHECK(settles(comm, result));
        TEAM_CHECK(gpu->stream_sync(stream, NULL) == ZERO_OK);
        team_close(rank);
    }
    gpu->free(memory);
    return true;
}

static void it_stays_the_programs(void **state)
{
    (void)state;
    run(use_both, 0, false);
}

static _Atomic int warnings; // of the order, by all ranks

static void hear(void *user, zero_log_level level, const char *component, const char *message)
{
    (void)user;
    warnings += level == ZERO_LOG_WARN && strcmp(component, "coll") == 0 &&
                strstr(message, "NCCL_LAUNCH_ORDER_IMPLICIT is ") &&
                strstr(message, "an ncclComm_t was given");
}

static bool commit_and_hear(struct team_rank *rank, ncclComm_t comm, void *stream)
{
    (void)stream;
    rank->config.log = hear;
    rank->config.log_level = ZERO_LOG_WARN;
    for (int given = 1; given >= 0; given--) {
        rank->config.nccl_comm = given ? comm : NULL;
        TEAM_CHECK(team_open(rank) && toy_register(rank, &toy_odd));
        TEAM_OK(rank, zero_commit(rank->z));
        team_close(rank);
    }
    return true;
}

static void an_order_that_is_left_open_is_told(void **state)
{
    static const char variable[] = "NCCL_LAUNCH_ORDER_IMPLICIT";
    static const char *const values[] = {NULL, "0", "1"};
    (void)state;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        warnings = 0;
        if (values[i])
            setenv(variable, values[i], 1);
        else
            unsetenv(variable);
        run(commit_and_hear, 0, false);
        assert_int_equal(warnings, i < 2 ? RANKS : 0);
    }
    unsetenv(variable);
}

static bool is_refused(struct team_rank *rank, const char *words)
{
    TEAM_CHECK(team_open(rank) && toy_register(rank, &toy_odd));
    TEAM_FAILS(rank, zero_commit(rank->z), ZERO_E_INVALID, words);
    return true;
}

static bool give_that_of_others(struct team_rank *rank, ncclComm_t comm, void *stream)
{
    (void)comm;
    (void)stream;
    return is_refused(rank, "the ncclComm_t that was given is rank 1 of 2 on GPU 0, and this is "
                            "rank 0 of 2 on GPU 0");
}

static bool give_it_alone(struct team_rank *rank, ncclComm_t comm, void *stream)
{
    (void)stream;
    rank->config.nccl_comm = rank->rank == 0 ? comm : NULL;
    return is_refused(rank, "differ in whether they give a communicator of their own");
}

static bool give_it_early(struct team_rank *rank, ncclComm_t comm, void *stream)
{
    (void)comm;
    (void)stream;
    return is_refused(rank, "the ncclComm_t that was given is not ready");
}

static void wrong_ones_are_refused(void **state)
{
    (void)state;
    run(give_that_of_others, 1, false);
    run(give_it_alone, 0, false);
}

static void so_is_one_that_is_not_ready(void **state)
{
    (void)state;
    if (!live_there)
        skip(); // a real one may be
    run(give_it_early, 0, true);
}

static bool commit_alone(struct team_rank *rank, void *user)
{
    rank->config.device = "cuda:0";
    rank->config.nccl_comm = user;
    TEAM_CHECK(team_open(rank) && toy_register(rank, &toy_odd));
    TEAM_OK(rank, zero_commit(rank->z));
    TEAM_CHECK(!strstr(zero_plan_text(rank->z), "NCCL's own buffers"));
    team_close(rank);
    return true;
}

static void one_rank_does_not_look_at_it(void **state)
{
    static char anything;
    (void)state;
    assert_true(team_run(team_threads(1), 1, commit_alone, &anything));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_stays_the_programs),
        cmocka_unit_test(an_order_that_is_left_open_is_told),
        cmocka_unit_test(wrong_ones_are_refused),
        cmocka_unit_test(so_is_one_that_is_not_ready),
        cmocka_unit_test(one_rank_does_not_look_at_it),
    };
    if (!job_begin())
        return JOB_SKIPPED;
    if (!find_nccl())
        return JOB_SKIPPED;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
