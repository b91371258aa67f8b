// What travels between hosts in a step: with one copy of the parameters a host, or of the units
// that are gathered on demand, it is no more with four ranks on each of two hosts than with one.
// Where the blocks of sum_group lie whole on hosts, one sum of each travels instead of its
// gradients. Hosts are network namespaces, whose interfaces count bytes with all headers. And what
// the ranks of hosts need of memory, by the kernel's word and by the plan's.
#include "tests/ranks/net_hosts.h"
#include "tests/ranks/process_memory.h"
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

/** More units than there are slots. */
enum { MANY_UNITS = 16, MANY_ELEMENTS = 400000 };

static const struct toy_tensor tensors[] = {{.name = "w", .slices = UNITS, .numel = ELEMENTS}};
static const struct toy toy = {.tensors = tensors,
                               .tensor_count = 1,
                               .unit_count = UNITS,
                               .micro_batches = MICROS,
                               .dtype = ZERO_F32};

static const struct toy_tensor many_tensors[] = {
    {.name = "w", .slices = MANY_UNITS, .numel = MANY_ELEMENTS}};
static const struct toy many = {.tensors = many_tensors,
                                .tensor_count = 1,
                                .unit_count = MANY_UNITS,
                                .micro_batches = 4,
                                .dtype = ZERO_F32};

struct job {
    const struct toy *toy;
    int ranks[HOSTS]; /**< of each host, in order */
    int stage, steps;
    const char *gather;
    int sum_group;
};

/** What the ranks have come to, in memory shared with them. */
struct seen {
    bool good[MOST_RANKS];
    uint8_t fingerprints[MOST_RANKS][16];
    char plan[2048];  /**< rank 0's, as far as it fits */
    double to_travel; /**< bytes of gradients that travel between hosts in a step; -1: not known */
    size_t needed[MOST_RANKS];  /**< bytes more than before zero_open() */
    size_t planned[MOST_RANKS]; /**< zero_statistics.allocated_bytes */
};

static struct seen *seen;

static void set_number(const char *name, int number)
{
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    setenv(name, text, 1);
}

static void note_plan(const zero_ctx *z)
{
    const char *planned = strstr(zero_plan_json(z), "\"gradient_bytes\": ");
    snprintf(seen->plan, sizeof seen->plan, "%s", zero_plan_text(z));
    seen->to_travel = planned ? strtod(strchr(planned, ':') + 1, NULL) : -1;
}

static bool train(struct team_rank *rank, const struct job *job)
{
    const size_t before = process_pss();
    zero_statistics stats = {.struct_size = sizeof stats};
    rank->config = zero_config_default();
    rank->config.stage = job->stage;
    rank->config.gather = job->gather;
    rank->config.timeout_s = 60;
    rank->config.sum_group = job->sum_group;
    if (!toy_open(rank, job->toy) || !toy_train(rank, job->toy, job->steps))
        return false;
    if (rank->rank == 0)
        note_plan(rank->z);
    TEAM_OK(rank, zero_fingerprint(rank->z, seen->fingerprints[rank->rank]));
    TEAM_OK(rank, zero_stats(rank->z, &stats));
    TEAM_OK(rank, zero_barrier(rank->z));
    seen->needed[rank->rank] = process_pss() - before;
    seen->planned[rank->rank] = stats.allocated_bytes;
    TEAM_OK(rank, zero_barrier(rank->z));
    return true;
}

static void be_rank(const struct job *job, int number)
{
    struct team_rank rank = {.rank = number, .world = job->ranks[0] + job->ranks[1]};
    const int host = number >= job->ranks[0];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(120);
    if (!net_hosts_enter(host))
        _exit(1);
    setenv("MASTER_ADDR", "10.31.0.1", 1);
    set_number("MASTER_PORT", 6105);
    set_number("RANK", number);
    set_number("WORLD_SIZE", rank.world);
    set_number("LOCAL_RANK", number - host * job->ranks[0]);
    set_number("LOCAL_WORLD_SIZE", job->ranks[host]);
    seen->good[number] = train(&rank, job);
    zero_close(rank.z);
    _exit(0);
}

/** Bytes that the hosts have sent meanwhile. */
static uint64_t run(const struct job *job)
{
    pid_t pids[MOST_RANKS];
    const int world = job->ranks[0] + job->ranks[1];
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
static double step_bytes(int each, int stage, const char *gather, int sum_group)
{
    struct job job = {&toy, {each, each}, stage, 1, gather, sum_group};
    const uint64_t one = run(&job);
    job.steps += MORE_STEPS;
    const double bytes = (double)(run(&job) - one) / MORE_STEPS;
    print_message("stage %d, gather=%s, sum_group=%d, %d hosts x %d: %.0f bytes a step, %.3f of "
                  "the model\n",
                  stage, gather, sum_group, HOSTS, each, bytes,
                  bytes / (UNITS * ELEMENTS * sizeof(float)));
    return bytes;
}

static void a_host_is_sent_what_it_needs_once(void **state)
{
    (void)state;
    static const struct {
        int stage;
        const char *gather;
    } ways[] = {{0, "auto"}, {1, "auto"}, {2, "auto"}, {3, "auto"}, {3, "shared"}};
    uint8_t fingerprint[16];
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        const double alone = step_bytes(1, ways[i].stage, ways[i].gather, 1);
        memcpy(fingerprint, seen->fingerprints[0], sizeof fingerprint);
        const double together = step_bytes(4, ways[i].stage, ways[i].gather, 1);
        assert_memory_equal(seen->fingerprints[0], fingerprint, sizeof fingerprint);
        print_message("stage %d: ratio %.3f\n", ways[i].stage, together / alone);
        assert_true(together <= 1.05 * alone);
        // Half of each contribution, and of what was updated, or summed at stage 0, once each way.
        assert_true(alone <= 1.05 * (MICROS / 2.0 + 1) * UNITS * ELEMENTS * sizeof(float));
    }
}

/** Of the gradients in a step at stage 1: the rest of it is the parameters, of which each host is
 * sent what it does not own, once. */
static double gradient_bytes(int each, int sum_group, bool sums)
{
    const double model = UNITS * ELEMENTS * sizeof(float);
    const double bytes = step_bytes(each, 1, "shared", sum_group) - model;
    const char *says = sums ? "hosts        send one sum of each block of"
                            : "hosts        send the gradients of all their micro-batches, ";
    assert_non_null(strstr(seen->plan, says));
    print_message("%.0f planned\n", seen->to_travel);
    assert_true(bytes >= 0.97 * seen->to_travel && bytes <= 1.10 * seen->to_travel);
    return bytes;
}

static void hosts_send_sums_of_their_blocks(void **state)
{
    (void)state;
    uint8_t fingerprint[16], plain[16];
    for (int each = 2; each <= 4; each *= 2) {
        const double all = gradient_bytes(each, 1, false);
        memcpy(plain, seen->fingerprints[0], sizeof plain);
        // Each contribution travels once: half of it, to the owners on the other host.
        assert_true(all <= 1.05 * MICROS * UNITS * ELEMENTS * sizeof(float) / 2);
        const double sums = gradient_bytes(each, each, true);
        memcpy(fingerprint, seen->fingerprints[0], sizeof fingerprint);
        print_message("%d ranks a host: sums over contributions %.3f\n", each, sums / all);
        assert_true(sums * each <= 1.10 * all);
        const struct job together = {&toy, {4, 0}, 1, 1 + MORE_STEPS, "shared", each};
        run(&together);
        assert_memory_equal(seen->fingerprints[0], fingerprint, sizeof fingerprint);
        assert_memory_not_equal(plain, fingerprint, sizeof fingerprint);
        assert_null(strstr(seen->plan, "hosts        send"));
    }
}

/** Slots of a host are there once, for however many ranks it has. */
static void memory_of_hosts_is_planned(void **state)
{
    (void)state;
    static const int ranks[][HOSTS] = {{2, 2}, {3, 1}};
    if (process_sanitized()) {
        print_message("built with a sanitizer, whose own memory would be in every number\n");
        skip();
    }
    for (size_t i = 0; i < 2 * sizeof ranks / sizeof *ranks; i++) {
        const int *hosts = ranks[i / 2];
        const struct job job = {&many,
                                {hosts[0], hosts[1]},
                                .stage = 3,
                                .steps = 2,
                                .gather = i % 2 ? "copy" : "auto",
                                .sum_group = 1};
        double needed = 0, planned = 0;
        run(&job);
        for (int rank = 0; rank < hosts[0] + hosts[1]; rank++) {
            needed += (double)seen->needed[rank];
            planned += (double)seen->planned[rank];
        }
        print_message("gather=%s, %d and %d ranks: planned %.1f MiB, needed %.1f\n", job.gather,
                      hosts[0], hosts[1], planned / 1048576, needed / 1048576);
        assert_true(needed < 1.02 * planned && needed > 0.98 * planned);
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
        cmocka_unit_test(hosts_send_sums_of_their_blocks),
        cmocka_unit_test(memory_of_hosts_is_planned),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
