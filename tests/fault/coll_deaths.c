// How soon the others know that a rank was killed, whenever it was and whatever it had. A bound
// that holds on a busy machine is checked, and what was measured is printed.
//
// Arguments: how many kills of each sort, more than 50 are the long variant, with 8 GiB; and the
// transport, "tcp": shared memory without. There a rank's memory is freed before its connections
// end.

#include "tests/fault/coll_harm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_KILLS = 2000, HEAVY_KILLS = 4, MANY_HEAVY_KILLS = 12 };

static const uint64_t millisecond = 1000000;
static const size_t gigabyte = (size_t)1 << 30;

static int kills = 50;
static const char *transport;

static uint64_t latencies[MOST_KILLS * (HARM_RANKS - 1)];

/** The same dice on every run. */
static unsigned roll(unsigned *state, unsigned sides)
{
    *state = *state * 1664525U + 1013904223U;
    return (*state >> 8) % sides;
}

/** A point of the operation, and how often it is passed before. */
static void choose_point(struct harm *harm, unsigned *dice)
{
    const char *points[4] = {"post", "done"};
    unsigned count = 2;
    if (harm->operation->meets)
        points[count++] = "meet";
    if (harm->operation->reads)
        points[count++] = "read";
    snprintf(harm->fault, sizeof harm->fault, "coll.%s.%s:kill@%u", harm->operation->point,
             points[roll(dice, count)], 1 + roll(dice, 100));
}

static void run_kill(const struct harm *like, unsigned *dice, int *told)
{
    char rank[32], problem[HARM_PROBLEM];
    struct harm harm = *like;
    harm.transport = transport;
    harm.world = 2 + (int)roll(dice, 3);
    harm.victim = (int)roll(dice, (unsigned)harm.world);
    do
        harm.operation = &harm_operations[roll(dice, (unsigned)harm_operation_count)];
    while (!harm_differs(transport, harm.operation));
    if (harm.fault[0])
        choose_point(&harm, dice);
    else
        harm.killed_us = roll(dice, 5000);
    snprintf(rank, sizeof rank, "rank %d died", harm.victim);
    const char *const words[] = {rank, "its last call: ", NULL};
    harm_start(&harm);
    if (!harm_finish(&harm, ZERO_E_PEER, words, 8000 * millisecond, latencies + *told, problem))
        fail_msg("%s", problem);
    *told += harm.world - 1;
}

/** Of few kills on a busy machine the median says less. */
static void many(const char *what, const struct harm *like, int count)
{
    unsigned dice = 12345;
    int told = 0;
    for (int i = 0; i < count; i++)
        run_kill(like, &dice, &told);
    const uint64_t bound_ns = (count < 50 ? 100 : 20) * millisecond;
    const uint64_t median_ns = harm_print_latencies(what, latencies, told);
    assert_true(median_ns < bound_ns);
}

static void at_any_time(void **state)
{
    (void)state;
    many("killed at any time", &(struct harm){.stall_ns = 10000 * millisecond}, kills);
}

static void at_any_point(void **state)
{
    (void)state;
    many("killed at any point", &(struct harm){.stall_ns = 10000 * millisecond, .fault = "any"},
         kills);
}

static void with_a_child(void **state)
{
    (void)state;
    many("killed, with a child that lives on",
         &(struct harm){.stall_ns = 10000 * millisecond, .leaves_child = true}, kills / 5);
}

static size_t available_memory(void)
{
    char line[128];
    unsigned long long kib = 0;
    FILE *file = fopen("/proc/meminfo", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            break;
    if (file)
        fclose(file);
    return (size_t)kib * 1024;
}

static void with_memory(void **state)
{
    (void)state;
    if (transport)
        return;
    const size_t bytes = kills > 50 ? 8 * gigabyte : gigabyte;
    if (available_memory() < bytes + gigabyte) {
        print_message("needs %zu GiB of memory, %.1f are available\n", bytes / gigabyte + 1,
                      (double)available_memory() / (double)gigabyte);
        skip();
    }
    many(kills > 50 ? "killed with 8 GiB" : "killed with 1 GiB",
         &(struct harm){.stall_ns = 60000 * millisecond, .touched = bytes},
         kills > 50 ? MANY_HEAVY_KILLS : HEAVY_KILLS);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        kills = atoi(argv[1]);
    if (kills < 1 || kills > MOST_KILLS)
        return 2;
    transport = argc > 2 ? argv[2] : NULL;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(at_any_time),
        cmocka_unit_test(at_any_point),
        cmocka_unit_test(with_a_child),
        cmocka_unit_test(with_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
