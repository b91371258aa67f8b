// Which store a context has, and the stores whose state is in memory: the host's, or the GPU's, or
// the host's from where it passes through the GPU.

#include "zero/store/stores.h"

#include "zero/core/context.h"
#include "zero/exec/device_parts.h"
#include "zero/exec/executors.h"
#include "zero/exec/host_update.h"
#include "zero/plan/plan.h"
#include "zero/store/device_snapshot.h"
#include "zero/store/host_memory.h"
#include "zero/store/host_snapshot.h"
#include "zero/store/host_visit.h"
#include "zero/store/resident_walk.h"

#include <assert.h>

/* ------------------------------------------------------------------ what memory has to do */

static zero_result memory_needs(const zero_ctx *z, const struct eng_placement *placement,
                                struct eng_tier_needs *needs, struct base_error *error)
{
    (void)error;
    *needs = (struct eng_tier_needs){.segments = eng_segments_bytes(z, placement, NULL)};
    return ZERO_OK;
}

static void no_disk(const zero_ctx *z, struct eng_plan_disk *disk)
{
    (void)z;
    disk->directory = NULL;
    disk->known = false;
}

static void *home_device(const zero_ctx *z, size_t bucket, size_t granule)
{
    return eng_bounce_find(z, eng_memory_home(z, bucket, granule));
}

static void *field_device(const zero_ctx *z, int field, size_t bucket, size_t element)
{
    return eng_bounce_find(z, eng_memory_field(z, field, bucket, element));
}

/** Visits state that is in memory of the host. */
static zero_result visit_host(zero_ctx *z, const struct eng_part *part, enum eng_access access,
                              eng_part_fn visit, void *user, struct base_error *error)
{
    (void)access;
    return part->count > 0 ? visit(z, user, part, error) : ZERO_OK;
}

/** Visits state that is on the GPU, or of which the working copies are. */
static zero_result visit_device(zero_ctx *z, const struct eng_part *part, enum eng_access access,
                                eng_part_fn visit, void *user, struct base_error *error)
{
    return part->count > 0 ? eng_bounce_visit(z, part, access, visit, user, error) : ZERO_OK;
}

static zero_result walk_host(zero_ctx *z, bool frozen, enum eng_access access, eng_part_fn visit,
                             void *user, struct base_error *error)
{
    const struct eng_visit with = {visit_host, access, visit, user};
    return eng_walk_resident(z, frozen, &with, error);
}

static zero_result walk_device(zero_ctx *z, bool frozen, enum eng_access access, eng_part_fn visit,
                               void *user, struct base_error *error)
{
    const struct eng_visit with = {visit_device, access, visit, user};
    return eng_walk_resident(z, frozen, &with, error);
}

static zero_result begin_update(zero_ctx *z, struct eng_update_pass *pass)
{
    (void)z;
    *pass = (struct eng_update_pass){.persistent_first = true, .completes = true};
    return ZERO_OK;
}

static zero_result end_update(zero_ctx *z, zero_result r)
{
    (void)z;
    return r;
}

/* ------------------------------------------------------------------ entries that do nothing */

static struct eng_tiles *no_tiles(const zero_ctx *z)
{
    (void)z;
    return NULL;
}

static void keep_nothing(const zero_ctx *z, size_t bucket, size_t element, size_t count)
{
    (void)z, (void)bucket, (void)element, (void)count;
}

static zero_result no_probe(const zero_ctx *z, struct eng_plan_disk *disk, struct base_error *error)
{
    (void)z, (void)disk, (void)error;
    return ZERO_OK;
}

static void no_count(const zero_ctx *z, zero_statistics *stats)
{
    (void)z, (void)stats;
}

static bool stages_nothing(const zero_ctx *z)
{
    (void)z;
    return false;
}

static void no_stage(zero_ctx *z, zero_unit unit, unsigned char *slot)
{
    (void)z, (void)unit, (void)slot;
}

static size_t no_record_room(const zero_ctx *z)
{
    (void)z;
    return SIZE_MAX;
}

static bool not_recoverable(const zero_ctx *z, uint64_t *step)
{
    (void)z, (void)step;
    return false;
}

static const char *not_broken(const zero_ctx *z)
{
    (void)z;
    return NULL;
}

static struct eng_point no_point(const zero_ctx *z)
{
    (void)z;
    return (struct eng_point){.record = NULL};
}

static zero_result take_no_point(zero_ctx *z, struct base_error *error)
{
    (void)z, (void)error;
    return ZERO_OK;
}

/* ------------------------------------------------------------------ the tables */

static const struct eng_file_ops no_files = {
    .size = sizeof(struct eng_file_ops),
    .disk = no_disk,
    .probe = no_probe,
    .open = eng_no_work,
    .close = eng_no_notice,
    .count = no_count,
};

static const struct eng_staging_ops no_staging = {
    .size = sizeof(struct eng_staging_ops),
    .stages = stages_nothing,
    .start = no_stage,
    .wait = eng_no_unit_work,
};

static const struct eng_sum_ops sums_in_memory = {
    .size = sizeof(struct eng_sum_ops),
    .expect = eng_no_unit_work,
    .begin = eng_no_unit_work,
    .progress = eng_no_notice,
    .finish = eng_no_work,
    .own = eng_memory_own_sums,
    .own_blocks = eng_memory_own_blocks,
};

static const struct eng_record_ops no_records = {
    .size = sizeof(struct eng_record_ops),
    .record = eng_no_work,
    .record_beginning = eng_no_work,
    .abandon = eng_no_notice,
    .room = no_record_room,
    .recoverable = not_recoverable,
    .pass_over = eng_no_notice,
    .broken = not_broken,
    .point = no_point,
    .take_point = take_no_point,
};

static const struct eng_store host = {
    .size = sizeof(struct eng_store),
    .name = "host",
    .fuses_reductions = true,
    .needs = memory_needs,
    .leave_device = eng_no_notice,
    .home = eng_memory_home,
    .field = eng_memory_field,
    .walk = walk_host,
    .visit = visit_host,
    .fuse = eng_no_notice,
    .update_fused = eng_no_work,
    .tiles = no_tiles,
    .keep = keep_nothing,
    .update_begin = begin_update,
    .update_bucket = eng_host_update_bucket,
    .update_end = end_update,
    .files = &no_files,
    .staging = &no_staging,
    .sums = &sums_in_memory,
    .records = &no_records,
    .snapshot = &eng_host_snapshot,
};

static const struct eng_store device = {
    .size = sizeof(struct eng_store),
    .name = "device",
    .walks_fail = true,
    .fuses_reductions = true,
    .needs = memory_needs,
    .leave_device = eng_bounce_free,
    .home = home_device,
    .field = field_device,
    .walk = walk_device,
    .visit = visit_device,
    .fuse = eng_no_notice,
    .update_fused = eng_no_work,
    .tiles = no_tiles,
    .keep = keep_nothing,
    .update_begin = device_update_begin,
    .update_bucket = device_update_bucket,
    .update_end = device_update_end,
    .files = &no_files,
    .staging = &no_staging,
    .sums = &sums_in_memory,
    .records = &no_records,
    .snapshot = &eng_device_snapshot,
};

/* ------------------------------------------------------------------ the choice */

void eng_store_choose(zero_ctx *z)
{
    const bool on_device = z->config.resident || z->config.streamed;
    z->store = z->config.nvme ? &eng_store_nvme : on_device ? &device : &host;
    assert(z->store->size == sizeof *z->store);
}
