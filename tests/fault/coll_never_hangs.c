// Each operation x each of its points x each way to go: every other rank returns an error in time
// that names the rank, its operation and unit, the same on all.
//
// Argument: the transport, "tcp"; shared memory without.

#include "tests/fault/coll_harm.h"
#include "tests/sweep.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TOGETHER = 6, STOPPED_TOGETHER = 32 }; // jobs at a time: most of them sleep

// A rank whose neighbours take its processor is not silent for so long. Who finds out about a rank
// that has gone need not wait for that.
static const uint64_t stall_ns = UINT64_C(3000000000);
static const uint64_t endless_ns = UINT64_C(12000000000);

static const char *const points[] = {"post", "meet", "read", "done"};
static const char *const actions[] = {"kill", "stop", "exit", "exec"};

static const char *transport;
static char problem[HARM_PROBLEM];

/** A survivor can be starved on a machine with other things to do: no bound is tight. */
static bool finish(struct harm *harm)
{
    char rank[64];
    const bool stops = strstr(harm->fault, ":stop") != NULL;
    snprintf(rank, sizeof rank, stops ? "rank %d has given no sign of life" : "rank %d died",
             harm->victim);
    // Before a call the last one is that before it; and of a rank whose network's thread is gone,
    // or stopped, with it, others may not have heard of the last one.
    const bool unheard = transport != NULL;
    const char *const called =
        unheard || strstr(harm->fault, ".post:") ? "" : harm->operation->point;
    const char *const words[] = {rank, "its last call: ", called,
                                 unheard ? "" : harm->operation->label, NULL};
    return harm_finish(harm, stops ? ZERO_E_TIMEOUT : ZERO_E_PEER, words, endless_ns - stall_ns,
                       NULL, problem);
}

static void run_all(struct harm *jobs, int count, int together)
{
    int finished = 0;
    for (int started = 0; started < count; started++) {
        harm_start(&jobs[started]);
        if (started - finished == together - 1 && !finish(&jobs[finished++]))
            fail_msg("%s", problem);
    }
    for (; finished < count; finished++)
        if (!finish(&jobs[finished]))
            fail_msg("%s", problem);
}

static void each_point(const char *action)
{
    static struct harm jobs[1000];
    const bool stops = strcmp(action, "stop") == 0;
    int count = 0, cases = 0;
    for (int o = 0; o < harm_operation_count; o++)
        for (int p = 0; p < 4; p++) {
            const bool missing[] = {false, !harm_operations[o].meets, !harm_operations[o].reads,
                                    false};
            if (missing[p] || !harm_differs(transport, &harm_operations[o]) ||
                (transport && !test_takes(cases++)))
                continue;
            struct harm *job = &jobs[count];
            *job = (struct harm){.transport = transport,
                                 .world = (int[]){3, 2, 4}[count % 3],
                                 .operation = &harm_operations[o],
                                 .stall_ns = stops ? stall_ns : endless_ns};
            // Every rank in turn, the ends of the ring among them.
            job->victim = (count / 3 + p) % job->world;
            snprintf(job->fault, sizeof job->fault, "coll.%s.%s:%s@3", job->operation->point,
                     points[p], action);
            count++;
        }
    run_all(jobs, count, stops ? STOPPED_TOGETHER : TOGETHER);
}

static void killed(void **state)
{
    (void)state;
    each_point(actions[0]);
}

static void stopped(void **state)
{
    (void)state;
    each_point(actions[1]);
}

static void gone(void **state)
{
    (void)state;
    each_point(actions[2]);
}

static void another_program(void **state)
{
    (void)state;
    each_point(actions[3]);
}

int main(int argc, char **argv)
{
    transport = argc > 1 ? argv[1] : NULL;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed),
        cmocka_unit_test(stopped),
        cmocka_unit_test(gone),
        cmocka_unit_test(another_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
