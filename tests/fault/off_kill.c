// kill -9 of a process in the middle of its steps: the last recorded step is whole, and the next
// process goes on from it. Argument: how many times.
#include "tests/unit/off_tiles.h"
#include "tests/unit/temporary.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { BUFFERS = 6, SHORTEST_MS = 20, LONGEST_MS = 4000 };

static int kills = 50;
static struct temporary temporary;
static _Atomic uint64_t *acknowledged; // the step that was recorded last; shared

static struct tiles_config config_of(int round)
{
    return (struct tiles_config){
        .path = temporary_path(&temporary, "slots"),
        .engine = off_io_engine_at((size_t)round % 3),
        .buffers = BUFFERS,
        .helpers = (unsigned)round / 3 % 3,
        .encode = round % 4 < 2,
        .fill = round % 2 == 0,
    };
}

// Steps until it is killed; its exit code says what went wrong.
static int step_for_ever(int round)
{
    struct tiles tiles;
    struct base_error error = {.result = ZERO_OK};
    const struct tiles_config config = config_of(round);
    zero_result result = tiles_open(&tiles, &config, &error);
    if (!result && tiles.step < *acknowledged)
        result = zero_fail(&error, ZERO_E_INVALID, "step %ju is gone: this is step %ju",
                           (uintmax_t)*acknowledged, (uintmax_t)tiles.step);
    if (!result && tiles.step > 0)
        result = tiles_check(&tiles, &error);
    while (!result) {
        result = tiles_step(&tiles, &error);
        if (!result)
            atomic_store(acknowledged, tiles.step);
    }
    fprintf(stderr, "round %d: %s\n", round, error.message);
    return 1;
}

static void the_last_step_is_whole(void **state)
{
    (void)state;
    srand(7);
    uint64_t before = 0;
    int progressed = 0,
        longest_ms = SHORTEST_MS; // so long that about every other child gets anywhere
    for (int round = 0; round < kills; round++) {
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0)
            _exit(step_for_ever(round));
        const int pause_us = rand() % (longest_ms * 1000);
        const struct timespec pause = {.tv_sec = pause_us / 1000000,
                                       .tv_nsec = pause_us % 1000000 * 1000};
        nanosleep(&pause, NULL);
        kill(child, SIGKILL);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        const bool progress = *acknowledged > before;
        progressed += progress;
        before = *acknowledged;
        longest_ms = progress ? longest_ms * 4 / 5 : longest_ms * 3 / 2;
        longest_ms = longest_ms < SHORTEST_MS ? SHORTEST_MS : longest_ms;
        longest_ms = longest_ms > LONGEST_MS ? LONGEST_MS : longest_ms;
    }
    assert_true(progressed > kills / 10);
    print_message("%d kills, %ju steps\n", kills, (uintmax_t)before);

    struct tiles tiles;
    struct base_error error = {.result = ZERO_OK};
    const struct tiles_config config = config_of(0);
    assert_int_equal(tiles_open(&tiles, &config, &error), ZERO_OK);
    assert_true(tiles.step >= before);
    assert_int_equal(tiles_check(&tiles, &error), ZERO_OK);
    tiles_close(&tiles, true);
    assert_int_equal(temporary_entries(&temporary), 0);
}

static int set_up(void **state)
{
    (void)state;
    acknowledged =
        mmap(NULL, sizeof *acknowledged, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return acknowledged != MAP_FAILED && temporary_make(&temporary) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    temporary_remove(&temporary);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        kills = atoi(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_last_step_is_whole, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("off_kill", tests, NULL, NULL);
}
