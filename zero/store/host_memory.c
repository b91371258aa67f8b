#include "zero/store/host_memory.h"
#include "zero/core/addresses.h"
#include "zero/core/api_call.h"
#include "zero/core/exchange.h"
#include "zero/core/exec_table.h"
#include "zero/core/observers.h"
#include "zero/core/progress.h"
#include "zero/store/host_visit.h"
#include "zero/store/stores.h"

#include "collectives/comm/partial_sums.h"

#include <assert.h>
#include <limits.h>

static size_t place_index(size_t element, size_t first_granule)
{
    assert(element >= first_granule * BASE_GRANULE);
    return element - first_granule * BASE_GRANULE;
}

void *eng_memory_home(const zero_ctx *z, size_t bucket, size_t granule)
{
    const struct eng_bucket_place *place = &z->placement.buckets[bucket];
    const size_t bytes = BASE_GRANULE * eng_dtype_size(z->layout.buckets[bucket].dtype);
    assert(!place->staged && granule >= place->home_first);
    return z->memory.params + place->home + (granule - place->home_first) * bytes;
}

void *eng_memory_field(const zero_ctx *z, int field, size_t bucket, size_t element)
{
    const struct eng_bucket *of = &z->layout.buckets[bucket];
    const struct eng_bucket_place *place = &z->placement.buckets[bucket];
    const size_t at = place_index(element, place->state_first);
    const size_t all = place->state_granules * BASE_GRANULE;
    assert(field >= 0 && field <= of->moments && at <= all);
    if (field > 0)
        return z->memory.moments + (place->moments + (size_t)(field - 1) * all + at) *
                                       eng_dtype_size(z->config.moment_dtype);
    if (eng_apart(of, place))
        return z->memory.masters + place->masters + at;
    return z->memory.params + place->home +
           place_index(element, place->home_first) * eng_dtype_size(of->dtype);
}

float *eng_memory_own_sums(const zero_ctx *z, size_t bucket, size_t element)
{
    return z->memory.sums + eng_sum_index(z, z->config.rank, bucket, element);
}

float *eng_memory_own_blocks(const zero_ctx *z, size_t bucket)
{
    const size_t first = z->layout.buckets[bucket].before[z->config.rank];
    return z->placement.blocks_bytes ? z->memory.blocks + first : NULL;
}

/** At least one byte: a rank that owns nothing has an address to count from, too. */
static zero_result create_arena(zero_ctx *z, size_t bytes, struct coll_arena **arena, void **base,
                                struct base_error *error)
{
    const zero_result r = coll_arena_create(z->comm, bytes ? bytes : 1, arena, error);
    if (!r)
        *base = coll_arena_base(*arena);
    return r;
}

/** One copy for all ranks; each one touches first what it owns. */
static zero_result create_shared_params(zero_ctx *z, struct base_error *error)
{
    struct coll_span *mine = base_calloc(z->layout.bucket_count, sizeof *mine);
    if (!mine)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for the runs of %zu buckets",
                         z->layout.bucket_count);
    size_t runs = 0;
    for (size_t s = 0; s < z->layout.bucket_count; s++) {
        struct coll_span run = z->layout.buckets[s].bytes[z->config.rank];
        run.offset += z->placement.buckets[s].home;
        assert(run.offset + run.count <= z->placement.params_bytes);
        if (run.count > 0)
            mine[runs++] = run;
    }
    const zero_result r = coll_arena_create_shared(z->comm, z->placement.params_bytes, mine, runs,
                                                   &z->memory.params_arena, error);
    base_free(mine);
    if (r)
        return r;
    z->memory.params = coll_arena_base(z->memory.params_arena);
    z->memory.params_view = coll_arena_view(z->memory.params_arena);
    return ZERO_OK;
}

static zero_result create_params(zero_ctx *z, struct base_error *error)
{
    if (z->config.shared)
        return create_shared_params(z, error);
    void *params;
    const zero_result r =
        create_arena(z, z->placement.params_bytes, &z->memory.params_arena, &params, error);
    if (r)
        return r;
    z->memory.params = params;
    z->memory.params_view = params;
    return ZERO_OK;
}

/** Whether slots for sums that are in a file are this rank's own: at stage 0 peers read them. */
static bool keeps_sum_slots(const zero_ctx *z)
{
    return z->config.grads_nvme && z->config.stage > 0;
}

/** Whether others read, or fill, gather slots. */
static bool keeps_slots_in_arena(const zero_ctx *z)
{
    return z->config.params_nvme || z->config.host_slots;
}

bool eng_memory_is_mapped(const zero_ctx *z, enum eng_purpose purpose)
{
    return purpose == ENG_FOR_PARAMS || purpose == ENG_FOR_GRADIENTS ||
           purpose == ENG_FOR_PARTIAL_SUMS || (purpose == ENG_FOR_SUMS && !keeps_sum_slots(z)) ||
           (purpose == ENG_FOR_GATHERED && keeps_slots_in_arena(z));
}

/** Where a rank's sums are among those of all, behind those of the rank before it. */
static struct coll_span sums_behind(const zero_ctx *z, const struct coll_span *before, int rank)
{
    struct coll_span span = {before->offset + before->count, 0};
    for (size_t s = 0; s < z->layout.bucket_count; s++)
        if (!z->layout.buckets[s].frozen)
            span.count += z->layout.buckets[s].elements[rank].count * sizeof(float);
    return span;
}

/** Where the sums of a rank are among all of them. */
static struct coll_span sums_of(const zero_ctx *z, int rank)
{
    struct coll_span span = {0, 0};
    for (int each = 0; each <= rank; each++)
        span = sums_behind(z, &span, each);
    return span;
}

/** One copy of all ranks' sums for the host; at least one byte, as create_arena(). */
static zero_result create_shared_sums(zero_ctx *z, void **sums, struct base_error *error)
{
    struct coll_span mine = sums_of(z, z->config.rank);
    size_t bytes = z->placement.sums_bytes;
    assert(mine.offset + mine.count <= bytes);
    if (bytes == 0)
        mine = (struct coll_span){0, bytes = 1};
    const zero_result r =
        coll_arena_create_shared(z->comm, bytes, &mine, 1, &z->memory.sums_arena, error);
    if (!r)
        *sums = coll_arena_base(z->memory.sums_arena);
    return r;
}

/** Memory in which this rank adds up what its host contributes for owners on other ones. */
static zero_result create_partial_sums(zero_ctx *z, struct base_error *error)
{
    const size_t bytes = z->placement.partial_sums_bytes;
    return bytes ? coll_partial_sums_create(z->comm, bytes, error) : ZERO_OK;
}

/** The slots of the host, which its ranks fill together: each takes care of an equal part. */
static zero_result create_shared_slots(zero_ctx *z, struct base_error *error)
{
    const size_t bytes = z->placement.gather.bytes, world = (size_t)z->config.world;
    const size_t granules = bytes / BASE_GRANULE, rank = (size_t)z->config.rank;
    const size_t begin = granules * rank / world, end = granules * (rank + 1) / world;
    const struct coll_span mine = {begin * BASE_GRANULE, (end - begin) * BASE_GRANULE};
    assert(bytes % BASE_GRANULE == 0);
    const zero_result r =
        coll_arena_create_shared(z->comm, bytes, &mine, 1, &z->memory.slots_arena, error);
    if (r)
        return r;
    z->memory.slots = coll_arena_base(z->memory.slots_arena);
    z->memory.slots_view = coll_arena_view(z->memory.slots_arena);
    return ZERO_OK;
}

static zero_result create_slots(zero_ctx *z, struct base_error *error)
{
    void *slots;
    if (z->config.host_slots)
        return create_shared_slots(z, error);
    const zero_result r =
        create_arena(z, z->placement.gather.bytes, &z->memory.slots_arena, &slots, error);
    if (r)
        return r;
    z->memory.slots = slots;
    z->memory.slots_view = slots;
    return ZERO_OK;
}

static zero_result allocate_arenas(zero_ctx *z, struct base_error *error)
{
    const struct eng_placement *p = &z->placement;
    void *grads, *sums;
    zero_result r = create_params(z, error);
    if (!r && keeps_slots_in_arena(z))
        r = create_slots(z, error);
    if (!r)
        r = create_arena(z, p->grads.bytes, &z->memory.grads_arena, &grads, error);
    if (r)
        return r;
    z->memory.grads = grads;
    if (keeps_sum_slots(z))
        return create_partial_sums(z, error);
    r = eng_config_shares_sums(&z->config, z->config.stage)
            ? create_shared_sums(z, &sums, error)
            : create_arena(z, z->config.grads_nvme ? p->sums.bytes : p->sums_bytes,
                           &z->memory.sums_arena, &sums, error);
    z->memory.sums = r ? NULL : sums;
    return r ? r : create_partial_sums(z, error);
}

/** The pieces of private memory, in the order in which they are cut. */
static zero_result allocate_private(zero_ctx *z, struct base_error *error)
{
    const struct eng_placement *p = &z->placement;
    const size_t slots = keeps_slots_in_arena(z) ? 0 : p->gather.bytes;
    const size_t sums = keeps_sum_slots(z) ? p->sums.bytes : 0;
    const size_t bytes = slots + sums + p->blocks_bytes + p->moments_bytes + p->masters_bytes;
    zero_result r = base_arena_init(&z->memory.private_memory, bytes, 4096, error);
    if (r)
        return r;
    assert((slots | sums | p->blocks_bytes | p->moments_bytes | p->masters_bytes) % 2048 == 0);
    // Every size is a multiple of 2 KiB, which is alignment enough.
    if (!keeps_slots_in_arena(z)) {
        z->memory.slots = base_arena_alloc(&z->memory.private_memory, slots, 64);
        z->memory.slots_view = z->memory.slots;
    }
    z->memory.moments = base_arena_alloc(&z->memory.private_memory, p->moments_bytes, 64);
    z->memory.masters = base_arena_alloc(&z->memory.private_memory, p->masters_bytes, 64);
    z->memory.blocks = base_arena_alloc(&z->memory.private_memory, p->blocks_bytes, 64);
    if (keeps_sum_slots(z))
        z->memory.sums = base_arena_alloc(&z->memory.private_memory, sums, 64);
    return ZERO_OK;
}

/** What passes through a device that has the rest. */
static zero_result allocate_passing(zero_ctx *z, struct base_error *error)
{
    const struct eng_placement *p = &z->placement;
    const zero_result r = base_arena_init(&z->memory.private_memory,
                                          p->moments_bytes + p->masters_bytes, 4096, error);
    if (r)
        return r;
    z->memory.moments = base_arena_alloc(&z->memory.private_memory, p->moments_bytes, 64);
    z->memory.masters = base_arena_alloc(&z->memory.private_memory, p->masters_bytes, 64);
    return ZERO_OK;
}

static void lay_slots(zero_ctx *z)
{
    const struct eng_slot_plan *gather = &z->placement.gather, *grads = &z->placement.grads;
    size_t offset = 0;
    for (int c = 0; c < gather->class_count; c++)
        for (int i = 0; i < gather->classes[c].slots; i++) {
            struct eng_gather_slot *slot = &z->gathers.slots[gather->classes[c].first_slot + i];
            *slot = (struct eng_gather_slot){.offset = offset, .unit = -1};
            offset += gather->classes[c].bytes;
        }
    assert(offset == gather->bytes);
    offset = 0;
    for (int c = 0; c < grads->class_count; c++)
        for (int i = 0; i < grads->classes[c].slots; i++) {
            struct eng_grad_slot *slot = &z->gradients.slots[grads->classes[c].first_slot + i];
            *slot = (struct eng_grad_slot){.offset = offset, .home = offset, .unit = -1};
            offset += grads->classes[c].bytes;
        }
    assert(offset == grads->bytes);
}

/** Stages 0, 1: each unit has a gradient slot of its own, the same on every rank. */
static void own_slots(zero_ctx *z)
{
    int taken[ENG_MAX_CLASSES] = {0};
    for (size_t u = 0; u < z->layout.unit_count; u++) {
        const int class = z->placement.grads.class_of_unit[u];
        if (class < 0)
            continue;
        assert(taken[class] < z->placement.grads.classes[class].slots);
        z->units[u].sum_slot = z->placement.grads.classes[class].first_slot + taken[class]++;
        z->gradients.slots[z->units[u].sum_slot].unit = (zero_unit)u;
    }
}

/** Small tables whose size the model decides. */
struct small_tables {
    struct eng_unit *units;
    struct eng_bucket_io *io;
    struct eng_gather_slot *gathers;
    struct eng_grad_slot *gradients;
    zero_hyper *hyper;
    union eng_scalars *scalars;
    struct coll_span *everyone, *all_sums;
};

static struct small_tables lay_tables(const zero_ctx *z, const struct eng_placement *p,
                                      struct base_tables *tables)
{
    const size_t groups = z->model.group_count, world = (size_t)z->config.world;
    const size_t gathers = (size_t)p->gather.slot_count, gradients = (size_t)p->grads.slot_count;
    struct small_tables made = {.units = NULL};
    made.units = base_tables_add(tables, z->layout.unit_count, sizeof *made.units);
    made.io = base_tables_add(tables, z->layout.bucket_count, sizeof *made.io);
    made.gathers = base_tables_add(tables, gathers, sizeof *made.gathers);
    made.gradients = base_tables_add(tables, gradients, sizeof *made.gradients);
    made.hyper = base_tables_add(tables, groups, sizeof *made.hyper);
    made.scalars = base_tables_add(tables, groups, sizeof *made.scalars);
    made.everyone = base_tables_add(tables, world, sizeof *made.everyone);
    if (eng_config_whole_sums(&z->config, z->config.stage))
        made.all_sums = base_tables_add(tables, world, sizeof *made.all_sums);
    return made;
}

size_t eng_memory_tables(const zero_ctx *z, const struct eng_placement *placement,
                         const struct eng_tier_needs *needs)
{
    struct base_tables counted = {.counts = true};
    lay_tables(z, placement, &counted);
    return counted.bytes + z->layout.tables.bytes + placement->tables.bytes + needs->segments +
           needs->tables + eng_observers_tables(z) + eng_exchange_bytes(z) +
           eng_metric_bytes(z, ENG_MAX_METRICS) + eng_evaluation_bytes(z);
}

static void place_all_sums(zero_ctx *z)
{
    struct coll_span span = {0, 0};
    for (int rank = 0; rank < z->config.world; rank++)
        z->publication.all_sums[rank] = span = sums_behind(z, &span, rank);
}

static zero_result allocate_tables(zero_ctx *z, struct base_error *error)
{
    const struct small_tables made = lay_tables(z, &z->placement, &z->memory.tables);
    z->units = made.units;
    z->io = made.io;
    z->gathers.slots = made.gathers;
    z->gradients.slots = made.gradients;
    z->stepping.hyper = made.hyper;
    z->update.scalars = made.scalars;
    z->publication.everyone = made.everyone;
    z->publication.all_sums = made.all_sums;
    z->micro.values = base_calloc(1, eng_metric_bytes(z, ENG_MAX_METRICS));
    if (z->memory.tables.failed || !z->micro.values)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for the tables of %zu units",
                         z->layout.unit_count);
    for (size_t r = 0; r < (size_t)z->config.world; r++)
        z->publication.everyone[r] = (struct coll_span){.offset = r, .count = 1};
    z->gradients.handed = z->layout.unit_count;
    for (size_t u = 0; u < z->layout.unit_count; u++) {
        struct eng_unit *unit = &z->units[u];
        *unit = (struct eng_unit){.slot = -1, .next = SIZE_MAX, .sum_slot = -1};
        unit->handed = z->layout.unit_count - u;
        eng_layout_unit_name(&z->layout, &z->model, (zero_unit)u, unit->name, sizeof unit->name);
    }
    for (size_t s = 0; s < z->layout.bucket_count; s++)
        z->io[s] = (struct eng_bucket_io){.z = z, .bucket = s};
    eng_trains_refresh(z);
    lay_slots(z);
    z->gradients.shared = z->config.stage >= 2;
    z->gradients.most_open =
        z->gradients.shared || z->config.paranoid ? z->config.grad_units : INT_MAX;
    if (!z->gradients.shared)
        own_slots(z);
    if (z->publication.all_sums)
        place_all_sums(z);
    return ZERO_OK;
}

zero_result eng_memory_allocate(zero_ctx *z)
{
    struct base_error error = {0};
    zero_result r = ZERO_OK;
    if (!eng_state_on_device(z))
        r = allocate_arenas(z, &error);
    if (!r && !eng_state_on_device(z))
        r = allocate_private(z, &error);
    if (!r && z->config.streamed)
        r = allocate_passing(z, &error);
    if (!r)
        r = allocate_tables(z, &error);
    if (!r)
        r = eng_exchange_make(z, &z->stepping.exchange.room, &error);
    if (!r)
        r = eng_observers_make(z, &error);
    if (!r)
        r = z->exec->make(z, &error);
    if (!r)
        r = eng_bounce_make(z, &error);
    return r ? eng_fail_from(z, &error) : ZERO_OK;
}

void eng_memory_free(zero_ctx *z)
{
    eng_nowhere_free(z);
    base_arena_free(&z->memory.private_memory);
    eng_observers_free(z);
    base_tables_free(&z->memory.tables);
    eng_exchange_drop(&z->stepping.exchange.room);
    base_free(z->micro.values);
}
