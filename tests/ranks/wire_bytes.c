// What travels between hosts in a step: with one copy of the parameters a host it is no more with
// four ranks on each of two hosts than with one. Hosts are network namespaces, whose interfaces
// count bytes with all headers.
#include "tests/ranks/net_hosts.h"
#include "tests/ranks/toy.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { HOSTS = 2, MOST_RANKS = 8, UNITS = 6, ELEMENTS = 200000, MICROS = 8, MORE_STEPS = 3 };

static const struct toy_tensor tensors[] = {{.name = "w", .slices = UNITS, .numel = ELEMENTS}};
static const struct toy toy = {.tensors = tensors,
                               .tensor_count = 1,
                               .unit_count = UNITS,
                               .micro_batches = MICROS,
                               .dtype = ZERO_F32};

struct job {
    int each; /**< ranks of a host */
    int stage, steps;
    const char *gather;
};

/** What the ranks have come to, in memory shared with them. */
struct seen {
    bool good[MOST_RANKS];
    uint8_t fingerprints[MOST_RANKS][16];
};

static struct seen *seen;

static void set_number(const char *name, int number)
{
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    setenv(name, text, 1);
}

static bool train(struct team_rank *rank, const struct job *job)
{
    rank->config = zero_config_default();
    rank->config.stage = job->stage;
    rank->config.gather = job->gather;
    rank->config.timeout_s = 60;
    if (!toy_open(rank, &toy) || !toy_train(rank, &toy, job->steps))
        return false;
    TEAM_OK(rank, zero_fingerprint(rank->z, seen->fingerprints[rank->rank]));
    return true;
}

static void be_rank(const struct job *job, int number)
{
    struct team_rank rank = {.rank = number, .world = HOSTS * job->each};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(120);
    if (!net_hosts_enter(number / job->each))
        _exit(1);
    setenv("MASTER_ADDR", "10.31.0.1", 1);
    set_number("MASTER_PORT", 6105);
    set_number("RANK", number);
    set_number("WORLD_SIZE", rank.world);
    set_number("LOCAL_RANK", number % job->each);
    set_number("LOCAL_WORLD_SIZE", job->each);
    seen->good[number] = train(&rank, job);
    zero_close(rank.z);
    _exit(0);
}

/** Bytes that the hosts have sent meanwhile. */
static uint64_t run(const struct job *job)
{
    pid_t pids[MOST_RANKS];
    const int world = HOSTS * job->each;
    const uint64_t before = net_hosts_sent(0) + net_hosts_sent(1);
    memset(seen, 0, sizeof *seen);
    for (int rank = 0; rank < world; rank++) {
        pids[rank] = fork();
        assert_true(pids[rank] >= 0);
        if (pids[rank] == 0)
            be_rank(job, rank);
    }
    for (int rank = 0; rank < world; rank++) {
        int status;
        assert_int_equal(waitpid(pids[rank], &status, 0), pids[rank]);
        assert_int_equal(status, 0);
    }
    for (int rank = 0; rank < world; rank++) {
        assert_true(seen->good[rank]);
        assert_memory_equal(seen->fingerprints[rank], seen->fingerprints[0], 16);
    }
    return net_hosts_sent(0) + net_hosts_sent(1) - before;
}

/** Of one step, without what it takes to meet and to begin. */
static double step_bytes(int each, int stage, const char *gather)
{
    struct job job = {.each = each, .stage = stage, .steps = 1, .gather = gather};
    const uint64_t one = run(&job);
    job.steps += MORE_STEPS;
    const double bytes = (double)(run(&job) - one) / MORE_STEPS;
    print_message("stage %d, gather=%s, %d hosts x %d: %.0f bytes a step, %.3f of the model\n",
                  stage, gather, HOSTS, each, bytes, bytes / (UNITS * ELEMENTS * sizeof(float)));
    return bytes;
}

static void a_host_is_sent_what_it_needs_once(void **state)
{
    (void)state;
    uint8_t fingerprint[16];
    for (int stage = 0; stage <= 3; stage++) {
        const double alone = step_bytes(1, stage, stage ? "shared" : "auto");
        memcpy(fingerprint, seen->fingerprints[0], sizeof fingerprint);
        const double together = step_bytes(4, stage, stage ? "shared" : "auto");
        assert_memory_equal(seen->fingerprints[0], fingerprint, sizeof fingerprint);
        print_message("stage %d: ratio %.3f\n", stage, together / alone);
        assert_true(together <= 1.05 * alone);
    }
}

static int set_up(void **state)
{
    (void)state;
    seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return seen == MAP_FAILED ? -1 : 0;
}

static int tear_down(void **state)
{
    (void)state;
    net_hosts_end();
    return 0;
}

int main(void)
{
    const char *lacks = net_hosts_make(HOSTS);
    if (lacks) {
        printf("skipped: this machine has no %s\n", lacks);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_host_is_sent_what_it_needs_once),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
