// A context may be closed in the middle of a step, with working copies on their way from files and
// sums on their way there: whatever is done for them meanwhile finds what it needs.
#include "tests/ranks/team.h"
#include "tests/ranks/toy.h"
#include "tests/unit/temporary.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { NUMEL = 45001, UNITS = 9, TURNS = 12 };

static const struct toy_tensor tensors[] = {
    {.name = "many", .unit = 0, .slices = UNITS, .numel = NUMEL},
};

static struct temporary directory;

static bool close_early(struct team_rank *rank, void *user)
{
    const int *turn = user;
    const struct toy toy = {.tensors = tensors,
                            .tensor_count = 1,
                            .unit_count = UNITS,
                            .micro_batches = 2 * rank->world,
                            .dtype = ZERO_BF16};
    rank->config.stage = 3;
    rank->config.offload_optimizer = "nvme";
    rank->config.offload_params = "nvme";
    rank->config.offload_grads = "nvme";
    rank->config.nvme_dir = directory.directory;
    rank->config.tile_bytes = 65536;
    if (!toy_open(rank, &toy) || !toy_train(rank, &toy, 1))
        return false;
    if (*turn % 2 && !toy_micro(rank, &toy, 0, NULL, NULL))
        return false;
    TEAM_OK(rank, zero_micro_begin(rank->z, *turn % 2, NULL));
    for (zero_unit unit = 0; unit < *turn % 3; unit++) { // of which each asks for others
        TEAM_OK(rank, zero_gather(rank->z, unit, NULL));
        TEAM_OK(rank, zero_release(rank->z, unit, NULL));
    }
    team_close(rank);
    return true;
}

static void what_is_on_its_way_is_left(void **state)
{
    (void)state;
    for (int turn = 0; turn < TURNS; turn++)
        assert_true(team_run(team_threads(1 + turn / 6), 1 + turn / 6, close_early, &turn));
}

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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_on_its_way_is_left)};
    return cmocka_run_group_tests_name("early_close", tests, set_up, tear_down);
}
