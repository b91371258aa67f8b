// Working copies in files, of units that don't train for some steps beside others that do: strips
// that both share are made anew whole, or not at all.
#include "base/fault.h"
#include "tests/ranks/team.h"
#include "tests/ranks/toy.h"
#include "tests/unit/temporary.h"
#include "zero/store/nvme_tier.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { NUMEL = 45001, STEPS = 3 }; // about 8 tiles of 64 KiB a slice

// More strips than a pass has buffers; group 0 is frozen, the first and the last.
static const struct toy_tensor tensors[] = {
    {.name = "low", .unit = 0, .slices = 1, .numel = NUMEL, .group = 0},
    {.name = "middle", .unit = 1, .slices = 8, .numel = NUMEL, .group = 1},
    {.name = "high", .unit = 9, .slices = 1, .numel = NUMEL, .group = 0},
};
// What is looked at: the first and the last slice of each group.
static const struct {
    zero_param param;
    int slice;
    zero_unit unit;
    int group;
} looked[] = {{0, 0, 0, 0}, {2, 0, 9, 0}, {1, 0, 1, 1}, {1, 7, 8, 1}};

enum { RANKS = 2, LOOKED = sizeof looked / sizeof *looked };

static uint16_t before[RANKS][LOOKED][NUMEL];

static struct temporary directory;

struct job {
    bool fused;
    int group; // that is frozen
};

static bool open_job(struct team_rank *rank, const struct toy *toy)
{
    rank->config.stage = rank->world > 1 ? 2 : 3;
    rank->config.nonfinite = ZERO_NONFINITE_ERROR;
    rank->config.offload_optimizer = "nvme";
    rank->config.offload_params = "nvme";
    rank->config.nvme_dir = directory.directory;
    rank->config.io = "sync";
    rank->config.tile_bytes = 65536;
    return toy_open(rank, toy);
}

/** Whether the values are as they were before, of what is frozen, and are others, of the rest;
 * then these are what was before. */
static bool look(struct team_rank *rank, int frozen, bool first)
{
    for (size_t i = 0; i < LOOKED; i++) {
        uint16_t *values = before[rank->rank][i];
        TEAM_OK(rank, zero_gather(rank->z, looked[i].unit, NULL));
        const void *now = zero_param_ptr(rank->z, looked[i].param, looked[i].slice);
        const bool same = memcmp(values, now, NUMEL * sizeof *values) == 0;
        memcpy(values, now, NUMEL * sizeof *values);
        TEAM_OK(rank, zero_release(rank->z, looked[i].unit, NULL));
        TEAM_CHECK(first || same == (looked[i].group == frozen));
    }
    return true;
}

static bool work(struct team_rank *rank, void *user)
{
    const struct job *job = user;
    const struct toy toy = {.tensors = tensors,
                            .tensor_count = 3,
                            .unit_count = 10,
                            .micro_batches = 2,
                            .dtype = ZERO_BF16,
                            .unclipped = true,
                            .fused = job->fused};
    if (!open_job(rank, &toy))
        return false;
    TEAM_OK(rank, zero_set_frozen(rank->z, job->group, 1));
    if (!look(rank, job->group, true))
        return false;
    for (int step = 0; step < STEPS; step++)
        if (!toy_train(rank, &toy, 1) || !look(rank, job->group, false))
            return false;
    const struct off_pipeline_counts update =
        off_pipeline_counts(rank->z->tier->params.file.pipeline);
    TEAM_CHECK(update.contents[OFF_READ] == 0); // strips are made anew
    return true;
}

static void what_does_not_train_stays(void **state)
{
    (void)state;
    for (int turn = 0; turn < 8; turn++) {
        struct job job = {.fused = turn % 2, .group = turn / 4};
        const int world = 1 + turn / 2 % RANKS;
        assert_true(team_run(team_threads(world), world, work, &job));
    }
}

// Of a unit of which nothing trains: what its reads come to is what its gather does.
static bool gather_what_cannot_be_read(struct team_rank *rank, void *user)
{
    const struct toy toy = {.tensors = tensors,
                            .tensor_count = 3,
                            .unit_count = 10,
                            .micro_batches = 1,
                            .dtype = ZERO_BF16,
                            .frozen = 1u << 0};
    (void)user;
    if (!open_job(rank, &toy))
        return false;
    TEAM_OK(rank, zero_gather(rank->z, 9, NULL));
    TEAM_CHECK(base_fault_set("offload.read@1+", NULL) == ZERO_OK);
    TEAM_CHECK(zero_gather(rank->z, 0, NULL) == ZERO_E_IO);
    TEAM_CHECK(strstr(zero_last_error(rank->z), "working copies of unit 0 "));
    return true;
}

static void what_is_frozen_is_waited_for(void **state)
{
    (void)state;
    const bool well = team_run("self", 1, gather_what_cannot_be_read, NULL);
    base_fault_set(NULL, NULL);
    assert_true(well);
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_does_not_train_stays),
        cmocka_unit_test(what_is_frozen_is_waited_for),
    };
    return cmocka_run_group_tests_name("frozen_files", tests, set_up, tear_down);
}
