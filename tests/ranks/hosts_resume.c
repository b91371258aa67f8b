// A job that is killed goes on on another number of hosts, from a directory that all of them see,
// and ends with the bits of a run that nothing has disturbed:
//
//     hosts_resume <far_rank> [whole]
//
// far_rank is of any build. With "whole" each stage takes each place, and UCX moves the data, too.
#include "tests/ranks/net_hosts.h"
#include "tests/ranks/net_job.h"
#include "tests/ranks/ucx_here.h"
#include "tests/unit/temporary.h"

#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

enum { HOSTS = 3, PATIENCE_S = 60, ANY_FAILURE = 9 };

static const char *program;
static struct temporary directory;

/** One after another; the last one ends by itself. Steps are between saves, and behind one. */
static const struct part {
    const char *hosts;
    int victim, last;
} parts[] = {{"aabbcc", 3, 4}, {"bbcc", 0, 9}, {"ccc", 2, 14}, {"cab", -1, 0}};
enum { PARTS = sizeof parts / sizeof *parts };

/** The step from which it has gone on. */
static uint64_t run_part(const struct part *part, int stage, const char *const *settings)
{
    char numbers[3][8];
    snprintf(numbers[0], sizeof numbers[0], "%d", stage);
    snprintf(numbers[1], sizeof numbers[1], "%d", part->victim);
    snprintf(numbers[2], sizeof numbers[2], "%d", part->last);
    const char *const arguments[] = {program,    directory.directory, numbers[0], "0",
                                     numbers[1], numbers[2],          NULL};
    struct net_job job = {.hosts = part->hosts, .program = arguments, .settings = settings};
    uint64_t step = UINT64_MAX;
    net_job_start(&job);
    for (int rank = 0; rank < (int)strlen(part->hosts); rank++) {
        const int status = net_job_wait(&job, rank, PATIENCE_S);
        const bool right = part->victim < 0       ? status == 0
                           : rank == part->victim ? WIFSIGNALED(status)
                                                  : WEXITSTATUS(status) == ANY_FAILURE;
        if (!right)
            fail_msg("stage %d on %s, rank %d: status %x: %s", stage, part->hosts, rank, status,
                     net_job_text(&job));
    }
    const char *text = net_job_text(&job), *line = strstr(text, "resumed ");
    if (!line || sscanf(line, "resumed %" SCNu64, &step) != 1 ||
        (part->victim < 0 && !strstr(text, "as undisturbed\n")))
        fail_msg("stage %d on %s: %s", stage, part->hosts, text);
    net_job_end(&job);
    return step;
}

/** Stages change, too; the first part has this one. */
static void travel(int stage, const char *const *settings)
{
    uint64_t before = 0;
    assert_true(temporary_empty(directory.directory));
    for (int i = 0; i < PARTS; i++) {
        const uint64_t step = run_part(&parts[i], (stage + i) % 4, settings);
        print_message("stage %d on %s: from step %" PRIu64 "\n", (stage + i) % 4, parts[i].hosts,
                      step);
        // The last save of the part before may have been cut off, and not the one before that.
        if (i == 0 ? step != 0 : step <= before || step + 4 < (uint64_t)parts[i - 1].last)
            fail_msg("part %d begins with step %" PRIu64 ", the one before with %" PRIu64, i, step,
                     before);
        before = step;
    }
}

static void a_job_goes_on_on_other_hosts(void **state)
{
    (void)state;
    travel(0, NULL);
}

static void in_each_stage(void **state)
{
    (void)state;
    for (int stage = 1; stage < 4; stage++)
        travel(stage, NULL);
}

static void by_ucx(void **state)
{
    (void)state;
    for (int stage = 0; stage < 4 && ucx_is_here(); stage++)
        travel(stage, ucx_settings);
}

static int tear_down(void **state)
{
    (void)state;
    net_hosts_end();
    temporary_remove(&directory);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    program = argv[1];
    const char *lacks = net_hosts_make(HOSTS);
    if (lacks) {
        printf("skipped: this machine has no %s\n", lacks);
        return 77;
    }
    if (!temporary_make(&directory))
        return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_job_goes_on_on_other_hosts)};
    const struct CMUnitTest whole[] = {
        cmocka_unit_test(a_job_goes_on_on_other_hosts),
        cmocka_unit_test(in_each_stage),
        cmocka_unit_test(by_ucx),
    };
    return argc > 2 ? cmocka_run_group_tests(whole, NULL, tear_down)
                    : cmocka_run_group_tests(tests, NULL, tear_down);
}
