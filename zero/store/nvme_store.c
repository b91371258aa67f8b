// The store whose weights and moments are in a file.

#include "zero/store/host_memory.h"
#include "zero/store/host_visit.h"
#include "zero/store/nvme_tier.h"

static bool stages(const zero_ctx *z)
{
    return z->config.params_nvme;
}

static void *home(const zero_ctx *z, size_t bucket, size_t granule)
{
    return eng_bounce_find(z, eng_memory_home(z, bucket, granule));
}

/** Weights that are in memory anyway are used there: an f32 working copy, which is its own master,
 * and a 16-bit one without masters, unless they are staged. */
static void *field_of(const zero_ctx *z, int field, size_t bucket, size_t element)
{
    const struct eng_bucket_place *place = &z->placement.buckets[bucket];
    if (field > 0 || place->staged || eng_apart(&z->layout.buckets[bucket], place))
        return eng_tier_field(z, field, bucket, element);
    return eng_bounce_find(z, eng_memory_field(z, field, bucket, element));
}

static struct eng_tiles *tiles(const zero_ctx *z)
{
    return &z->tier->tiles;
}

static float *own_sums(const zero_ctx *z, size_t bucket, size_t element)
{
    return z->config.grads_nvme ? eng_tier_sums(z, bucket, element)
                                : eng_memory_own_sums(z, bucket, element);
}

static float *own_blocks(const zero_ctx *z, size_t bucket)
{
    return z->config.grads_nvme ? eng_tier_blocks(z, bucket) : eng_memory_own_blocks(z, bucket);
}

static const struct eng_file_ops files = {
    .size = sizeof(struct eng_file_ops),
    .disk = eng_tier_disk,
    .probe = eng_tier_probe,
    .open = eng_tier_open,
    .close = eng_tier_close,
    .count = eng_tier_count,
    .exchange = &eng_tier_part,
};

static const struct eng_staging_ops staging = {
    .size = sizeof(struct eng_staging_ops),
    .stages = stages,
    .start = eng_tier_stage,
    .wait = eng_tier_stage_wait,
};

static const struct eng_sum_ops sums = {
    .size = sizeof(struct eng_sum_ops),
    .expect = eng_tier_sums_expect,
    .begin = eng_tier_sums_begin,
    .progress = eng_tier_sums_progress,
    .finish = eng_tier_sums_finish,
    .own = own_sums,
    .own_blocks = own_blocks,
};

static const struct eng_record_ops records = {
    .size = sizeof(struct eng_record_ops),
    .kept = true,
    .record = eng_tier_record,
    .record_beginning = eng_tier_record_beginning,
    .abandon = eng_tier_abandon,
    .room = eng_tier_record_room,
    .recoverable = eng_tier_recoverable,
    .pass_over = eng_tier_pass_over,
    .broken = eng_tier_broken,
    .point = eng_tier_point,
    .take_point = eng_tier_take_point,
};

const struct eng_store eng_store_nvme = {
    .size = sizeof(struct eng_store),
    .name = "nvme",
    .walks_fail = true,
    .needs = eng_tier_needs,
    .leave_device = eng_bounce_free,
    .home = home,
    .field = field_of,
    .walk = eng_tier_walk,
    .visit = eng_tier_visit,
    .fuse = eng_tier_fuse,
    .update_fused = eng_tier_update_fused,
    .tiles = tiles,
    .keep = eng_tier_keep,
    .update_begin = eng_tier_update_begin,
    .update_bucket = eng_tier_update_bucket,
    .update_end = eng_tier_update_end,
    .files = &files,
    .staging = &staging,
    .sums = &sums,
    .records = &records,
    .snapshot = &eng_nvme_snapshot,
};
