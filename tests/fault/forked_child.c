// A child that a rank has forked, as data loaders do: it may not use what its parent has opened,
// and a parent that dies is gone for the others, though its child lives on.
#include "base/clock.h"
#include "tests/ranks/saved.h"
#include "tests/ranks/team.h"
#include "tests/ranks/toy.h"
#include "tests/unit/temporary.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zero/collectives.h>

#include <cmocka.h>

static struct temporary directory;
static const uint64_t second = UINT64_C(1000000000);

/* ------------------------------------------------------------------ a child is refused */

static bool is_refused(const zero_ctx *z, zero_result result, const char *call)
{
    if (result == ZERO_E_STATE && strstr(zero_last_error(z), "forked from rank"))
        return true;
    fprintf(stderr, "%s: %d: %s\n", call, result, zero_last_error(z));
    return false;
}

#define REFUSED(z, call) is_refused((z), (call), #call)

// Everything that the parent or another rank could notice.
static bool child_is_refused(struct team_rank *rank)
{
    zero_ctx *z = rank->z;
    zero_micro micro = {.struct_size = sizeof micro};
    zero_save_options options = zero_save_options_default();
    double value = 1;
    uint8_t digest[16];
    const zero_step_args args = zero_step_args_default();
    const bool refused =
        REFUSED(z, zero_barrier(z)) && REFUSED(z, zero_allreduce(z, &value, 1, ZERO_SUM)) &&
        REFUSED(z, zero_micro_begin(z, 0, &micro)) && REFUSED(z, zero_gather(z, 0, NULL)) &&
        REFUSED(z, zero_grad_open(z, 0, NULL)) && REFUSED(z, zero_step(z, &args, NULL)) &&
        REFUSED(z, zero_step_wait(z)) && REFUSED(z, zero_skip_step(z)) &&
        REFUSED(z, zero_fingerprint(z, digest)) && REFUSED(z, zero_eval_begin(z, 1)) &&
        REFUSED(z, zero_save(z, directory.directory, &options)) && REFUSED(z, zero_save_wait(z)) &&
        REFUSED(z, zero_resume(z, directory.directory, NULL, NULL)) &&
        REFUSED(z, zero_export(z, "/tmp/none")) && zero_stop_requested(z) == 0;
    zero_abort(z, "a child's");
    zero_request_stop(z);
    zero_close(z);
    return refused && strstr(zero_last_error(z), "forked from rank"); // it is still there
}

static bool child_of_communicator_is_refused(zero_comm *comm)
{
    const bool refused = zero_comm_barrier(comm) == ZERO_E_STATE &&
                         strstr(zero_comm_error(comm), "was forked from rank");
    zero_comm_abort(comm, "a child's");
    zero_comm_close(comm);
    return refused;
}

static bool child_ends_well(pid_t child)
{
    int status = -1;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

static bool forking_rank(struct team_rank *rank, void *user)
{
    const zero_comm_config config = {.struct_size = sizeof config,
                                     .world = rank->world,
                                     .rank = rank->rank,
                                     .transport = rank->config.transport};
    zero_comm *comm;
    (void)user;
    TEAM_CHECK(toy_open(rank, &toy_odd));
    TEAM_CHECK(zero_comm_open(&comm, &config) == ZERO_OK);
    TEAM_CHECK(toy_train(rank, &toy_odd, 1));
    pid_t child = fork();
    if (child == 0)
        _exit(!child_is_refused(rank));
    TEAM_CHECK(child_ends_well(child));
    child = fork();
    if (child == 0)
        _exit(!child_of_communicator_is_refused(comm));
    TEAM_CHECK(child_ends_well(child));
    TEAM_OK(rank, zero_barrier(rank->z));
    TEAM_CHECK(zero_comm_barrier(comm) == ZERO_OK);
    TEAM_CHECK(toy_train(rank, &toy_odd, 1));
    zero_comm_close(comm);
    return true;
}

static void a_child_has_no_part_in_its_parents_job(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++)
        assert_true(team_run("shm", world, forking_rank, NULL));
}

/* ------------------------------------------------------------------ locks of the dead */

struct board {
    _Atomic pid_t child;
};

static void configure_files(struct team_rank *rank, const char *io)
{
    rank->config.name = "forked";
    rank->config.offload_optimizer = "nvme";
    rank->config.nvme_dir = directory.directory;
    rank->config.tile_bytes = 65536;
    rank->config.io = io;
}

struct life {
    struct board *board;
    const char *io; /**< of state in files; NULL: in memory */
    bool saves;
};

// Has a child that lives on, and is killed.
static bool rank_that_is_survived(struct team_rank *rank, void *user)
{
    const struct life *life = user;
    if (life->io)
        configure_files(rank, life->io);
    TEAM_CHECK(toy_open(rank, &toy_odd));
    TEAM_CHECK(toy_train(rank, &toy_odd, 1));
    if (life->saves)
        TEAM_CHECK(saved_now(rank, directory.directory, NULL));
    const pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    atomic_store(&life->board->child, child);
    kill(getpid(), SIGKILL);
    return false;
}

// Comes back at once, where the dead one was.
static bool rank_that_follows(struct team_rank *rank, void *user)
{
    const struct life *life = user;
    const uint64_t begin = base_clock_ns();
    zero_load_result loaded = {.struct_size = sizeof loaded};
    if (life->io)
        configure_files(rank, life->io);
    TEAM_CHECK(toy_open(rank, &toy_odd));
    TEAM_OK(rank, zero_resume(rank->z, life->io ? NULL : directory.directory, NULL, &loaded));
    TEAM_CHECK(loaded.step == 1);
    TEAM_CHECK(kill(atomic_load(&life->board->child), 0) == 0); // which would have kept the lock
    TEAM_CHECK(toy_train(rank, &toy_odd, 1));
    if (life->saves)
        TEAM_CHECK(saved_now(rank, directory.directory, NULL));
    TEAM_CHECK(base_clock_ns() - begin < 2 * second);
    return true;
}

static void follow(const char *io, bool saves)
{
    struct board *board = team_shared(sizeof *board);
    struct life life = {.board = board, .io = io, .saves = saves};
    assert_non_null(board);
    assert_true(temporary_make(&directory));
    assert_true(team_run_killed(1, 0, rank_that_is_survived, &life));
    const bool good = team_run("shm", 1, rank_that_follows, &life);
    kill(atomic_load(&board->child), SIGKILL);
    assert_true(good);
    temporary_remove(&directory);
    team_shared_free(board, sizeof *board);
}

static void checkpoints_are_saved_where_a_child_lives_on(void **state)
{
    (void)state;
    follow(NULL, true);
}

static void state_in_files_comes_back_where_a_child_lives_on(void **state)
{
    static const char *const engines[] = {"uring", "threads", "sync"};
    (void)state;
    for (size_t i = 0; i < sizeof engines / sizeof *engines; i++)
        follow(engines[i], false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_child_has_no_part_in_its_parents_job),
        cmocka_unit_test(checkpoints_are_saved_where_a_child_lives_on),
        cmocka_unit_test(state_in_files_comes_back_where_a_child_lives_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
