// What a tile file is cut by: the model of a job, its identity, and its tiles.
#include "tile_file.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

const struct job jobs[JOBS] = {
    {.name = "adamw",
     .world = 2,
     .stage = 2,
     .micro_batches = 5,
     .sum_group = 1,
     .units = 4,
     .loss_scale = -2,
     .loss_scale_init = 1024,
     .loss_scale_window = 2,
     .seed = 0x0123456789abcdef,
     .tile_bytes = 65536,
     .tensor_count = 5,
     .group_count = 2,
     .tensors = {{"embedding", {37, 40}, 2, BF16, 0, 1, 0, false},
                 {"block.weight", {2, 1100}, 2, BF16, 1, 2, 0, false},
                 {"block.bias", {2, 9}, 2, F32, 1, 2, 1, false},
                 {"long", {9000}, 1, BF16, 3, 1, 1, false},
                 {"norm", {1025}, 1, BF16, 3, 1, 1, false}},
     .groups = {{"adamw", 2, 2, 1, false}, {"adamw", 2, 2, 1, false}},
     .blob_bytes = {24, 16}},
    {.name = "others",
     .world = 3,
     .stage = 1,
     .micro_batches = 6,
     .sum_group = 2,
     .comm_dtype = BF16,
     .units = 4,
     .loss_scale = 512,
     .loss_scale_init = 65536,
     .loss_scale_window = 2000,
     .seed = 7,
     .tile_bytes = 65536,
     .tensor_count = 6,
     .group_count = 3,
     .tensors = {{"embedding", {37, 40}, 2, BF16, 0, 1, 0, false},
                 {"table", {301}, 1, BF16, 0, 1, 0, true},
                 {"block.weight", {2, 1100}, 2, F32, 1, 2, 1, false},
                 {"block.bias", {2, 9}, 2, F32, 1, 2, 2, false},
                 {"long", {33000}, 1, F32, 3, 1, 0, false},
                 {"norm", {1025}, 1, BF16, 3, 1, 2, false}},
     .groups = {{"sgd", 1, 0, 2, true}, {"lion", 1, 0, 1, false}, {"adagrad", 1, 1, 2, false}},
     .blob_bytes = {24, 16}},
};

uint64_t numel_of(const struct tensor *tensor) // of a slice
{
    uint64_t count = 1;
    for (uint32_t d = tensor->slices > 1; d < tensor->dimensions; d++)
        count *= tensor->shape[d];
    return count;
}

uint32_t moments_of(const struct job *job, const struct tensor *tensor)
{
    return tensor->frozen ? 0 : job->groups[tensor->group].moments;
}

uint64_t weight_bytes(const struct tensor *tensor) // there are masters in both jobs
{
    return tensor->dtype == F32 || !tensor->frozen ? 4 : 2;
}

uint64_t parts(uint64_t count, uint64_t each)
{
    return (count + each - 1) / each;
}

/* ------------------------------------------------------------------ 5.2: identity */

static uint64_t tensor_identity(const struct job *job, const struct tensor *tensor)
{
    const struct group *group = &job->groups[tensor->group];
    const uint32_t fields[9] = {tensor->dimensions, tensor->dtype,   tensor->dtype,
                                tensor->unit,       tensor->slices,  tensor->group,
                                group->decay,       group->nesterov, tensor->frozen};
    uint64_t hash = XXH3_64bits_withSeed(tensor->name, strlen(tensor->name), 0);
    hash = XXH3_64bits_withSeed(tensor->shape, sizeof tensor->shape, hash);
    hash = XXH3_64bits_withSeed(fields, sizeof fields, hash);
    return XXH3_64bits_withSeed(group->optimizer, strlen(group->optimizer), hash);
}

uint64_t identity(const struct job *job, uint64_t seed)
{
    const uint64_t numbers[] = {2,
                                job->world,
                                job->stage,
                                job->micro_batches,
                                job->sum_group,
                                0,
                                job->comm_dtype,
                                F32,
                                0,
                                (uint64_t)job->loss_scale,
                                (uint64_t)job->loss_scale_init,
                                1,
                                (uint64_t)job->loss_scale_window,
                                PERSIST,
                                job->seed,
                                job->group_count};
    uint64_t hash = XXH3_64bits_withSeed(numbers, sizeof numbers, seed);
    for (uint32_t t = 0; t < job->tensor_count; t++) {
        const uint64_t tensor = tensor_identity(job, &job->tensors[t]);
        hash = XXH3_64bits_withSeed(&tensor, sizeof tensor, hash);
    }
    return XXH3_64bits_withSeed(job->name, strlen(job->name), hash);
}

/* ------------------------------------------------------------------ 5.4: tiles */

// What sorts a unit's slices into buckets, in their order.
uint64_t kind_of(const struct job *job, const struct tensor *tensor)
{
    const bool persistent = numel_of(tensor) <= PERSIST;
    return (uint64_t)tensor->frozen << 40 | (uint64_t)persistent << 32 |
           (uint64_t)tensor->dtype << 24 | (uint64_t)tensor->dtype << 16 | moments_of(job, tensor);
}

bool is_in(const struct tensor *tensor, uint32_t unit)
{
    return unit >= tensor->unit && unit < tensor->unit + tensor->slices;
}

// The next kind after `kind` (UINT64_MAX: the first one) in a unit, of those that train or are
// frozen; UINT64_MAX: there is none. *granules is how many the bucket has.
static uint64_t next_bucket(const struct job *job, uint32_t unit, bool frozen, uint64_t kind,
                            uint64_t *granules)
{
    uint64_t next = UINT64_MAX;
    *granules = 0;
    for (uint32_t t = 0; t < job->tensor_count; t++) {
        const struct tensor *tensor = &job->tensors[t];
        const uint64_t its = kind_of(job, tensor);
        if (!is_in(tensor, unit) || tensor->frozen != frozen ||
            (kind != UINT64_MAX && its <= kind) || its > next)
            continue;
        *granules = (its == next ? *granules : 0) + parts(numel_of(tensor), GRANULE);
        next = its;
    }
    return next;
}

static uint64_t granules_of(const struct job *job, uint32_t unit, bool frozen)
{
    uint64_t count = 0, granules, kind = UINT64_MAX;
    while ((kind = next_bucket(job, unit, frozen, kind, &granules)) != UINT64_MAX)
        count += granules;
    return count;
}

// Bytes of an element with its moments, in a bucket.
uint64_t element_bytes(uint64_t kind)
{
    const bool narrow = kind >> 40 && (kind >> 24 & 255) != F32;
    return (narrow ? 2 : 4) + 4 * (kind & 255);
}

static void put_granules(const struct job *job, struct cut *cut, uint64_t *used, uint32_t unit,
                         uint64_t kind, uint64_t first, uint64_t end)
{
    const uint64_t bytes = GRANULE * element_bytes(kind);
    struct piece *piece = NULL;
    for (uint64_t granule = first; granule < end; granule++) {
        if (*used > 0 && *used + bytes > job->tile_bytes) {
            cut->tile_count++;
            *used = 0;
            piece = NULL;
        }
        if (!piece) {
            if (cut->piece_count == PIECES_MAX || cut->tile_count == TILES_MAX)
                fail("more pieces or tiles than there is room for");
            piece = &cut->pieces[cut->piece_count++];
            *piece = (struct piece){unit, kind, granule, 0, cut->tile_count, *used};
        }
        piece->granules++;
        *used += bytes;
        cut->tile_bytes[cut->tile_count] = *used;
    }
}

static void cut_half(const struct job *job, uint32_t rank, bool frozen, struct cut *cut)
{
    uint64_t used = 0;
    for (uint32_t unit = 0; unit < job->units; unit++) {
        const uint64_t share = parts(granules_of(job, unit, frozen), job->world);
        const uint64_t from = rank * share, to = from + share;
        uint64_t begin = 0, granules, kind = UINT64_MAX; // begin: of the bucket in the unit
        while ((kind = next_bucket(job, unit, frozen, kind, &granules)) != UINT64_MAX) {
            const uint64_t first = from > begin ? from - begin : 0;
            const uint64_t end = to < begin ? 0 : to - begin < granules ? to - begin : granules;
            put_granules(job, cut, &used, unit, kind, first, end);
            begin += granules;
        }
    }
    cut->tile_count += used > 0;
}

void cut_tiles(const struct job *job, uint32_t rank, struct cut *cut)
{
    *cut = (struct cut){.tile_count = 0};
    cut_half(job, rank, false, cut);
    cut_half(job, rank, true, cut);
}
