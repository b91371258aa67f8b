// The bits of a training do not depend on hosts, ranks, stage and transport, nor on a network that
// is slow or loses frames:
//
//     hosts_matrix <synthetic_rank>          each value of each of these once or more
//     hosts_matrix <synthetic_rank> whole    each with each
//
// synthetic_rank, of any build, ends well if its fingerprint is the one written down.
#include "base/clock.h"
#include "tests/ranks/net_hosts.h"
#include "tests/ranks/net_job.h"
#include "tests/ranks/net_relay.h"
#include "tests/ranks/ucx_here.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { HOSTS = 3, STAGES = 4, PATIENCE_S = 120 };

static const char *program;
static struct net_link *way;

static const char *const shapes[] = {"ab", "aabb", "aabbcc", "aabccc"};
enum { SHAPES = sizeof shapes / sizeof *shapes };

enum { TCP, UCX, TRANSPORTS };

/** Frames take a millisecond to each host, at 1 Gbit/s. */
static const struct {
    const char *name;
    int lost_permille;
} links[] = {{"1 ms, 1 Gbit/s", 0}, {"1 ms, 1 Gbit/s, 1 % lost", 10}};
enum { LINKS = sizeof links / sizeof *links };

static void run(int stage, int shape, int transport, int link)
{
    char number[8];
    snprintf(number, sizeof number, "%d", stage);
    const char *const arguments[] = {program, number, "adamw", "f32", "clipped", NULL};
    struct net_job job = {.hosts = shapes[shape],
                          .program = arguments,
                          .settings = transport == UCX ? ucx_settings : NULL};
    if (transport == UCX && !ucx_is_here())
        return;
    atomic_store(&way->lost_permille, links[link].lost_permille);
    const uint64_t frames = atomic_load(&way->frames), lost = atomic_load(&way->lost);
    net_job_start(&job);
    const double took = net_job_finish(&job, PATIENCE_S);
    print_message("stage %d, ranks on %s, %s, %s: %.1f s, %" PRIu64 " of %" PRIu64 " frames lost\n",
                  stage, shapes[shape], transport == UCX ? "ucx" : "tcp", links[link].name, took,
                  atomic_load(&way->lost) - lost, atomic_load(&way->frames) - frames);
}

static void each_value_once(void **state)
{
    (void)state;
    for (int i = 0; i < STAGES; i++) {
        run(i, i, i % TRANSPORTS, i / 2);
        if (i % 2 == 0)
            run(i, (i + 2) % SHAPES, UCX, i / 2);
    }
}

static void each_with_each(void **state)
{
    (void)state;
    for (int i = 0; i < STAGES * SHAPES * TRANSPORTS * LINKS; i++)
        run(i % STAGES, i / STAGES % SHAPES, i / STAGES / SHAPES % TRANSPORTS,
            i / STAGES / SHAPES / TRANSPORTS);
}

// How long a refusal takes to come, in seconds.
static double ask_host(void)
{
    struct sockaddr_in other = {.sin_family = AF_INET, .sin_port = htons(9)};
    inet_pton(AF_INET, "10.31.0.2", &other.sin_addr);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const double begin = base_clock_s();
    const bool refused =
        connect(fd, (struct sockaddr *)&other, sizeof other) && errno == ECONNREFUSED;
    close(fd);
    return refused ? base_clock_s() - begin : 0;
}

static void a_way_takes_a_millisecond(void **state)
{
    (void)state;
    int status;
    const pid_t pid = fork();
    if (pid == 0)
        _exit(!net_hosts_enter(0) || ask_host() < 0.002);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

// Else the link would show nothing.
static void frames_are_lost(void **state)
{
    (void)state;
    const double share = (double)atomic_load(&way->lost) / (double)atomic_load(&way->frames);
    print_message("%.2f %% of all frames were lost\n", 100 * share);
    assert_true(share > 0.002 && share < 0.02);
}

static int tear_down(void **state)
{
    (void)state;
    net_hosts_end();
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    program = argv[1];
    const char *lacks = net_hosts_make_linked(HOSTS, &way);
    if (lacks) {
        printf("skipped: this machine has no %s\n", lacks);
        return 77;
    }
    atomic_store(&way->delay_us, 1000);
    atomic_store(&way->megabits, 1000);
    const struct CMUnitTest diagonal[] = {cmocka_unit_test(a_way_takes_a_millisecond),
                                          cmocka_unit_test(each_value_once),
                                          cmocka_unit_test(frames_are_lost)};
    const struct CMUnitTest whole[] = {cmocka_unit_test(a_way_takes_a_millisecond),
                                       cmocka_unit_test(each_with_each),
                                       cmocka_unit_test(frames_are_lost)};
    return argc > 2 ? cmocka_run_group_tests(whole, NULL, tear_down)
                    : cmocka_run_group_tests(diagonal, NULL, tear_down);
}
