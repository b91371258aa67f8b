// Which engine moves what is in files, and why not a better one.

#include "base/arena.h"
#include "offload/io/io_engine.h"
#include "zero/core/api_call.h"
#include "zero/plan/plan.h"
#include "zero/store/nvme_tier.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/** Its number among the engines, the better ones first. */
static int number_of(const struct off_io_engine *engine)
{
    int number = 0;
    while (off_io_engine_at((size_t)number) != engine)
        number++;
    assert(number < OFF_IO_ENGINES);
    return number;
}

/** Of two queues, that with the lesser engine; either may be NULL. */
static const struct off_io_use *lesser(const struct off_io_use *one, const struct off_io_use *other)
{
    if (!one || !other)
        return one ? one : other;
    return number_of(other->engine) > number_of(one->engine) ? other : one;
}

static const struct off_io_use *of_strips(const struct eng_strip_file *file)
{
    return lesser(file->pipeline ? off_pipeline_io(file->pipeline) : NULL,
                  file->tile_io ? off_tile_io_io(file->tile_io) : NULL);
}

/** The least engine of this rank's queues; NULL: it has none. */
static const struct off_io_use *of_rank(const struct eng_tier *tier)
{
    const struct off_io_use *use = tier->pipeline ? off_pipeline_io(tier->pipeline) : NULL;
    return lesser(lesser(use, of_strips(&tier->params.file)), of_strips(&tier->sums.file));
}

/** Counts the ranks with each engine, and finds the first with the least. */
static void count_ranks(struct eng_tier *tier, const int64_t *all, int world)
{
    tier->passed_rank = 0;
    for (int rank = 0; rank < world; rank++) {
        if (all[rank] >= 0 && all[rank] < OFF_IO_ENGINES)
            tier->engine_ranks[all[rank]]++;
        if (all[rank] > all[tier->passed_rank])
            tier->passed_rank = rank;
    }
}

zero_result eng_tier_share_io(zero_ctx *z)
{
    struct eng_tier *tier = z->tier;
    const struct off_io_use *use = of_rank(tier);
    const int64_t mine = use ? number_of(use->engine) : -1;
    int64_t *all = base_calloc((size_t)z->config.world, sizeof *all);
    if (!all)
        return eng_fail(z, ZERO_E_NOMEM, "no memory to compare the engines of %d ranks",
                        z->config.world);
    zero_result r = eng_exchange(z, &mine, sizeof mine, all);
    if (!r)
        count_ranks(tier, all, z->config.world);
    if (!r && all[tier->passed_rank] > 0) {
        if (use && z->config.rank == tier->passed_rank)
            tier->passed = use->passed;
        r = coll_broadcast(z->comm, &tier->passed, sizeof tier->passed, tier->passed_rank);
        r = r ? eng_comm_failed(z, r) : ZERO_OK;
    }
    base_free(all);
    return r;
}

void eng_tier_disk_io(const struct eng_tier *tier, struct eng_plan_disk *disk)
{
    const struct off_io_use *use = of_rank(tier);
    if (!use)
        return;
    eng_plan_disk_io(disk, use);
    if (!*use->passed.message) {
        snprintf(disk->engine_passed, sizeof disk->engine_passed, "%s", tier->passed.message);
        disk->passed_rank = tier->passed_rank;
    }
    disk->engine_ranks[0] = '\0';
    int kinds = 0, used = 0;
    for (int i = 0; i < OFF_IO_ENGINES; i++)
        kinds += tier->engine_ranks[i] > 0;
    for (int i = 0; kinds > 1 && i < OFF_IO_ENGINES; i++)
        if (tier->engine_ranks[i] > 0)
            used += snprintf(disk->engine_ranks + used, sizeof disk->engine_ranks - (size_t)used,
                             "%s%d %s", used > 0 ? ", " : "", tier->engine_ranks[i],
                             off_io_engine_at((size_t)i)->name);
    assert(used >= 0 && (size_t)used < sizeof disk->engine_ranks);
}

void eng_plan_disk_io(struct eng_plan_disk *disk, const struct off_io_use *use)
{
    disk->engine = use->engine->name;
    disk->passed_rank = -1;
    snprintf(disk->engine_passed, sizeof disk->engine_passed, "%s", use->passed.message);
}
