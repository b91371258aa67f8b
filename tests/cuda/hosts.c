// GPUs of several hosts, as far as ranks tell: they meet over TCP and share no memory of a host.
// What GPUs compute there has the bits of ranks on one host.
#include "tests/cuda/job.h"
#include "tests/unit/port.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void over_tcp(zero_config *config)
{
    config->team = NULL;
    config->transport = "tcp";
}

static void expect_bits(int world, struct job *job)
{
    struct job here = *job, there = *job;
    there.configure = over_tcp;
    job_run_on_host(world, &here);
    job_run_on_gpus(world, &there);
    if (memcmp(here.digest, there.digest, sizeof here.digest) != 0)
        fail_msg("world %d, stage %d, %s: other values", world, job->stage,
                 !job->resident ? "host" : job->moves);
    assert_memory_equal(here.means, there.means, sizeof here.means);
}

static void several_ranks(bool resident, const char *moves, int most)
{
    for (int stage = 0; stage <= 3; stage++) {
        const int world = 2 + stage % (most - 1);
        struct job job = job_of(world, stage);
        job.resident = resident;
        job.moves = moves;
        expect_bits(world, &job);
    }
}

static void gpus_move_tensors_by_nccl(void **state)
{
    (void)state;
    const int most = job_most_gpus();
    if (most < 2)
        skip();
    several_ranks(true, "nccl", most);
}

static void or_hosts_do(void **state)
{
    (void)state;
    several_ranks(true, "host", JOB_RANKS);
}

static void and_state_may_be_on_hosts(void **state)
{
    (void)state;
    several_ranks(false, NULL, JOB_RANKS);
}

// Where rank 0 listens, for all ranks there will be.
static bool set_master(int port)
{
    char text[16];
    snprintf(text, sizeof text, "%d", port);
    return setenv("ZERO_MASTER_ADDR", "127.0.0.1", 1) == 0 &&
           setenv("ZERO_MASTER_PORT", text, 1) == 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpus_move_tensors_by_nccl),
        cmocka_unit_test(or_hosts_do),
        cmocka_unit_test(and_state_may_be_on_hosts),
    };
    if (!job_begin())
        return JOB_SKIPPED;
    int port;
    const int reserved = port_reserve(&port);
    if (reserved < 0 || !set_master(port))
        return 1;
    const int failed = cmocka_run_group_tests(tests, job_set_up, job_tear_down);
    close(reserved);
    return failed;
}
