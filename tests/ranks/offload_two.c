// Two jobs that keep their state in one directory, at a time.
#include "tests/ranks/toy.h"
#include "tests/unit/temporary.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { STEPS = 3, RANKS = 2 };

static struct temporary directory;

static int set_up(void **state)
{
    (void)state;
    return temporary_make(&directory) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    temporary_remove(&directory);
    return 0;
}

static void configure(zero_config *config, const char *name)
{
    config->name = name;
    config->stage = 2;
    config->offload_optimizer = "nvme";
    config->nvme_dir = directory.directory;
    config->tile_bytes = 65536;
}

static bool keep_digest(struct team_rank *rank, uint8_t digest[16])
{
    uint8_t now[16];
    TEAM_OK(rank, zero_fingerprint(rank->z, now));
    if (rank->rank == 0)
        memcpy(digest, now, sizeof now);
    return true;
}

/** No job beside it: in memory, or as the guest that goes on from STEPS. */
struct alone {
    int steps;
    bool resumes;
    uint8_t digest[16];
};

static bool be_alone(struct team_rank *rank, void *user)
{
    struct alone *alone = user;
    zero_load_result loaded = {.struct_size = sizeof loaded};
    if (alone->resumes)
        configure(&rank->config, "guest");
    rank->config.stage = 2;
    if (!toy_open(rank, &toy_odd))
        return false;
    if (alone->resumes) {
        TEAM_OK(rank, zero_resume(rank->z, NULL, NULL, &loaded));
        TEAM_CHECK(loaded.step == STEPS && loaded.recovered);
    }
    return toy_train(rank, &toy_odd, alone->steps) && keep_digest(rank, alone->digest);
}

/** Where they are: one goes on when the other has come so far. */
struct meeting {
    _Atomic int come;
    bool dies; // the guest
    uint8_t digest[2][16];
};

// In turns, by the number that each place has.
static bool wait_for(struct team_rank *rank, struct meeting *meeting, int place)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    for (int patience = 60000; meeting->come < place; patience--) {
        TEAM_CHECK(patience > 0);
        nanosleep(&pause, NULL);
    }
    TEAM_OK(rank, zero_barrier(rank->z));
    return true;
}

static bool come_to(struct team_rank *rank, struct meeting *meeting, int place)
{
    TEAM_OK(rank, zero_barrier(rank->z));
    if (rank->rank == 0)
        meeting->come = place;
    return true;
}

static bool be_the_host(struct team_rank *rank, void *user)
{
    struct meeting *meeting = user;
    configure(&rank->config, "host");
    return toy_open(rank, &toy_odd) && toy_train(rank, &toy_odd, 1) && come_to(rank, meeting, 1) &&
           wait_for(rank, meeting, 2) && toy_train(rank, &toy_odd, STEPS) &&
           come_to(rank, meeting, 3) && wait_for(rank, meeting, 4) &&
           toy_train(rank, &toy_odd, STEPS - 1) && keep_digest(rank, meeting->digest[0]);
}

static _Atomic int files_told;

static void take_warning(void *user, zero_log_level level, const char *component,
                         const char *message)
{
    (void)user;
    (void)level;
    (void)component;
    files_told += strstr(message, "takes nothing from") != NULL;
}

static bool be_the_guest(struct team_rank *rank, void *user)
{
    struct meeting *meeting = user;
    configure(&rank->config, "guest");
    rank->config.log_level = ZERO_LOG_WARN;
    rank->config.log = take_warning;
    if (!toy_open(rank, &toy_odd))
        return false;
    TEAM_CHECK(files_told == 0); // the host has its files open
    if (!come_to(rank, meeting, 2) || !toy_train(rank, &toy_odd, STEPS) ||
        !wait_for(rank, meeting, 3) || !keep_digest(rank, meeting->digest[1]))
        return false;
    if (meeting->dies && rank->rank == 1)
        raise(SIGKILL);
    while (meeting->dies && zero_barrier(rank->z) == ZERO_OK)
        ;
    return true;
}

static bool run_guest(struct meeting *meeting)
{
    while (meeting->come < 1)
        usleep(1000);
    const bool good = meeting->dies ? team_run_killed(RANKS, 1, be_the_guest, meeting)
                                    : team_run("shm", RANKS, be_the_guest, meeting);
    meeting->come = 4;
    return good;
}

// Jobs of two names in one directory: one ends, well or not, and the other knows nothing of it.
static void two_jobs_share_a_directory(void **state)
{
    (void)state;
    struct alone part = {.steps = STEPS}, whole = {.steps = 2 * STEPS};
    assert_true(team_run("threads", RANKS, be_alone, &part));
    assert_true(team_run("threads", RANKS, be_alone, &whole));
    for (int dies = 0; dies < 2; dies++) {
        struct meeting *meeting = team_shared(sizeof *meeting);
        int status;
        assert_non_null(meeting);
        meeting->dies = dies;
        fflush(NULL);
        const pid_t child = fork();
        if (child == 0)
            _exit(run_guest(meeting) ? 0 : 1);
        const bool good = team_run("shm", RANKS, be_the_host, meeting);
        if (!good)
            meeting->come = 4; // no process waits for it
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(good && status == 0);
        assert_memory_equal(meeting->digest[0], whole.digest, sizeof whole.digest);
        assert_memory_equal(meeting->digest[1], part.digest, sizeof part.digest);
        assert_int_equal(temporary_entries(&directory), dies ? RANKS : 0);
        team_shared_free(meeting, sizeof *meeting);
    }
    struct alone again = {.steps = STEPS, .resumes = true};
    assert_true(team_run("threads", RANKS, be_alone, &again));
    assert_memory_equal(again.digest, whole.digest, sizeof whole.digest);
    assert_int_equal(temporary_entries(&directory), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(two_jobs_share_a_directory, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
