/* zero_import() of a model with frozen tensors, which are read twice: a read that fails, and a file
 * that is cut off in between. All ranks are told, in time; nothing has changed if it was the
 * first time, and the error is fatal if it was the second. */
#include "tests/ranks/team.h"
#include "tests/ranks/toy.h"
#include "tests/unit/temporary.h"

#include "base/clock.h"
#include "base/fault.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORLD = 2, TIMEOUT_S = 20, MOST_READS = 200 };

struct attempt {
    int stage;
    const char *path;
    char fault[32];
    zero_result result[WORLD];
    char message[WORLD][512];
    bool fatal[WORLD], same[WORLD]; /**< the fingerprint is what it was */
    double seconds[WORLD];
    uint64_t fired;
};

static struct temporary directory;

static struct toy toy_of(uint64_t salt)
{
    struct toy toy = toy_odd;
    toy.dtype = ZERO_BF16;
    toy.salt = salt;
    toy.frozen = 1u << 4 | 1u << 6 | 1u << 8;
    return toy;
}

static bool make_file(struct team_rank *rank, void *user)
{
    const struct toy toy = toy_of(1);
    if (!toy_open(rank, &toy))
        return false;
    TEAM_OK(rank, zero_export(rank->z, user));
    return true;
}

/** Threads share the faults: rank 0 sets them while the other one waits. */
static bool set_fault(struct team_rank *rank, const char *fault)
{
    TEAM_OK(rank, zero_barrier(rank->z));
    if (rank->rank == 0)
        TEAM_CHECK(base_fault_set(fault, NULL) == ZERO_OK);
    TEAM_OK(rank, zero_barrier(rank->z));
    return true;
}

static bool import(struct team_rank *rank, void *user)
{
    struct attempt *attempt = user;
    const struct toy toy = toy_of(0);
    const int r = rank->rank;
    uint8_t before[16], after[16] = {0};
    rank->config.stage = attempt->stage;
    rank->config.timeout_s = TIMEOUT_S;
    if (!toy_open(rank, &toy))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, before));
    if (!set_fault(rank, attempt->fault))
        return false;
    const double begin = base_clock_s();
    attempt->result[r] = zero_import(rank->z, attempt->path, NULL);
    attempt->seconds[r] = base_clock_s() - begin;
    snprintf(attempt->message[r], sizeof attempt->message[r], "%s", zero_last_error(rank->z));
    // No rank closes before all have been told.
    attempt->fatal[r] = zero_barrier(rank->z) != ZERO_OK;
    if (r == 0)
        attempt->fired = base_fault_fired();
    if (!attempt->fatal[r])
        TEAM_OK(rank, zero_fingerprint(rank->z, after));
    attempt->same[r] = memcmp(before, after, sizeof before) == 0;
    return true;
}

static void explain(const struct attempt *attempt, const char *what)
{
    for (int r = 0; r < WORLD; r++)
        print_message("rank %d, %.2f s: %d: %s\n", r, attempt->seconds[r], attempt->result[r],
                      attempt->message[r]);
    fail_msg("stage %d, %s: %s", attempt->stage, attempt->fault, what);
}

/** What must be true of every failure, of which every rank hears in this call; returns whether it
 * was a fatal one. */
static bool judge(const struct attempt *attempt)
{
    for (int r = 0; r < WORLD; r++) {
        if (attempt->result[r] != attempt->result[0] || attempt->result[r] == ZERO_OK ||
            !*attempt->message[r])
            explain(attempt, "a rank has not heard of it");
        if (attempt->fatal[r] != attempt->fatal[0])
            explain(attempt, "fatal on one rank only");
        if (!attempt->fatal[r] && !attempt->same[r])
            explain(attempt, "something has changed");
        if (attempt->seconds[r] > TIMEOUT_S - 1)
            explain(attempt, "too late");
    }
    return attempt->fatal[0];
}

static void a_read_that_fails(void **state)
{
    struct attempt *attempt = *state;
    for (attempt->stage = 0; attempt->stage <= 3; attempt->stage += 3) {
        int fatal = 0, n = 1;
        for (;; n++) {
            snprintf(attempt->fault, sizeof attempt->fault, "io.read@%d", n);
            assert_true(team_run("threads", WORLD, import, attempt));
            if (attempt->fired == 0)
                break;
            fatal += judge(attempt);
        }
        base_fault_set(NULL, NULL);
        assert_int_equal(attempt->result[0], ZERO_OK);
        assert_true(fatal >= 3 && fatal < n - 3); // each frozen tensor's, at least
    }
}

/** Runs the import in a process that stops at a read, where the file is cut off; whether it did. */
static bool cut_off(struct attempt *attempt)
{
    int status = 0;
    fflush(NULL);
    const pid_t process = fork();
    assert_true(process >= 0);
    if (process == 0) {
        alarm(2 * TIMEOUT_S);
        _exit(team_run("threads", WORLD, import, attempt) ? 0 : 1);
    }
    while (waitpid(process, &status, WUNTRACED) == process && WIFSTOPPED(status)) {
        assert_int_equal(truncate(attempt->path, 600), 0);
        kill(process, SIGCONT);
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        explain(attempt, "crashed or hung");
    return attempt->fired > 0;
}

static void a_file_that_is_cut_off(void **state)
{
    struct attempt *attempt = *state;
    attempt->stage = 2;
    bool failed_first = false, failed_second = false;
    for (int n = 1; n < MOST_READS; n += 2) {
        assert_true(team_run("self", 1, make_file, (void *)(uintptr_t)attempt->path));
        snprintf(attempt->fault, sizeof attempt->fault, "io.read:stop@%d", n);
        if (!cut_off(attempt))
            break;
        if (attempt->result[0] == ZERO_OK && attempt->result[1] == ZERO_OK)
            continue; // stopped behind the last byte
        failed_first |= !judge(attempt);
        failed_second |= attempt->fatal[0];
    }
    assert_true(failed_first && failed_second);
}

static int prepare(void **state)
{
    static char path[512];
    struct attempt *attempt = team_shared(sizeof *attempt);
    if (!attempt || !temporary_make(&directory))
        return -1;
    snprintf(path, sizeof path, "%s", temporary_path(&directory, "model"));
    attempt->path = path;
    *state = attempt;
    return team_run("self", 1, make_file, path) ? 0 : -1;
}

static int clean_up(void **state)
{
    team_shared_free(*state, sizeof(struct attempt));
    temporary_remove(&directory);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_read_that_fails),
        cmocka_unit_test(a_file_that_is_cut_off),
    };
    return cmocka_run_group_tests(tests, prepare, clean_up);
}
