#include "zero/model/layout.h"

#include "base/arena.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/** What the tensors of a bucket share. */
struct kind {
    bool frozen, persistent;
    zero_dtype dtype, grad_dtype;
    int moments;
};

#define MOMENTS (BASE_MAX_MOMENTS + 1)
#define KINDS (4 * ENG_DTYPES * ENG_DTYPES * MOMENTS)

/** Buckets of a unit are ordered by kind: first what trains, of that what is sharded at stage 3,
 * of that f32 before bf16 before f16, so the gradients, and then by moments. */
static struct kind kind_at(int number)
{
    const int types = number / MOMENTS, flags = types / (ENG_DTYPES * ENG_DTYPES);
    return (struct kind){
        .frozen = flags / 2 != 0,
        .persistent = flags % 2 != 0,
        .dtype = (zero_dtype)(ZERO_F32 + types / ENG_DTYPES % ENG_DTYPES),
        .grad_dtype = (zero_dtype)(ZERO_F32 + types % ENG_DTYPES),
        .moments = number % MOMENTS,
    };
}

static bool of_kind(const struct eng_model *model, size_t p, struct kind kind,
                    int64_t persist_numel)
{
    const struct eng_param *param = &model->params[p];
    const bool persistent = persist_numel >= 0 && param->slice_numel <= (uint64_t)persist_numel;
    return param->frozen == kind.frozen && persistent == kind.persistent &&
           param->dtype == kind.dtype && param->grad_dtype == kind.grad_dtype &&
           eng_model_moments(model, p) == kind.moments;
}

/** The kinds of bucket that a model has, in their order. */
struct kinds {
    int64_t persist_numel;
    struct kind all[KINDS];
    size_t count;
};

static void find_kinds(struct kinds *kinds, const struct eng_model *model, int64_t persist_numel)
{
    kinds->persist_numel = persist_numel;
    kinds->count = 0;
    for (int number = 0; number < KINDS; number++) {
        const struct kind kind = kind_at(number);
        size_t p = 0;
        while (p < model->param_count && !of_kind(model, p, kind, persist_numel))
            p++;
        if (p < model->param_count)
            kinds->all[kinds->count++] = kind;
    }
}

static zero_result allocate(struct eng_layout *layout, const struct eng_model *model, size_t kinds,
                            struct base_error *error)
{
    layout->unit_count = model->unit_count;
    layout->param_count = model->param_count;
    for (size_t p = 0; p < model->param_count; p++)
        layout->slice_count += (size_t)model->params[p].slice_count;
    const size_t buckets = layout->bucket_room = layout->unit_count * kinds;
    const size_t owned = buckets * (size_t)layout->world;
    struct base_tables *tables = &layout->tables;
    layout->units = base_tables_add(tables, layout->unit_count, sizeof *layout->units);
    layout->buckets = base_tables_add(tables, buckets, sizeof *layout->buckets);
    layout->slices = base_tables_add(tables, layout->slice_count, sizeof *layout->slices);
    layout->param_first = base_tables_add(tables, model->param_count, sizeof(size_t));
    layout->slice_of = base_tables_add(tables, layout->slice_count, sizeof(size_t));
    layout->spans = base_tables_add(tables, 2 * owned, sizeof *layout->spans);
    layout->before = base_tables_add(tables, owned, sizeof *layout->before);
    if (tables->failed)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for the layout of %zu slices",
                         layout->slice_count);
    size_t first = 0;
    for (size_t p = 0; p < model->param_count; p++) {
        layout->param_first[p] = first;
        first += (size_t)model->params[p].slice_count;
    }
    assert(first == layout->slice_count);
    return ZERO_OK;
}

/** Appends the slice of tensor p that belongs to `unit` to the bucket being filled. */
static void place_slice(struct eng_layout *layout, const struct eng_model *model, size_t p,
                        zero_unit unit, size_t *next_slice)
{
    const struct eng_param *param = &model->params[p];
    struct eng_bucket *bucket = &layout->buckets[layout->bucket_count];
    const size_t at = (*next_slice)++;
    const int32_t index = unit - param->unit;
    assert(index >= 0 && index < param->slice_count && at < layout->slice_count);
    layout->slices[at] = (struct eng_slice){
        .param = (zero_param)p,
        .index = index,
        .numel = param->slice_numel,
        .bucket = layout->bucket_count,
        .granule = bucket->granules,
        .granules = (param->slice_numel + BASE_GRANULE - 1) / BASE_GRANULE,
    };
    layout->slice_of[layout->param_first[p] + (size_t)index] = at;
    bucket->granules += layout->slices[at].granules;
}

/** Tensors by unit, each unit's in order of registration: those of unit u are
 * params[first[u]] .. params[first[u + 1] - 1]. */
struct members {
    size_t *first;
    size_t *params;
};

static zero_result find_members(struct members *members, const struct eng_layout *layout,
                                const struct eng_model *model, struct base_error *error)
{
    members->first = base_calloc(layout->unit_count + 2, sizeof *members->first);
    members->params = base_calloc(layout->slice_count, sizeof *members->params);
    if (!members->first || !members->params)
        return zero_fail(error, ZERO_E_NOMEM, "no memory to sort %zu slices", layout->slice_count);
    // A counting sort; filling moves each unit's start up to where the next one's was.
    size_t *next = members->first + 1;
    for (size_t p = 0; p < model->param_count; p++)
        for (int32_t i = 0; i < model->params[p].slice_count; i++)
            next[(size_t)model->params[p].unit + (size_t)i + 1]++;
    for (size_t u = 0; u < layout->unit_count; u++)
        next[u + 1] += next[u];
    for (size_t p = 0; p < model->param_count; p++)
        for (int32_t i = 0; i < model->params[p].slice_count; i++)
            members->params[next[(size_t)model->params[p].unit + (size_t)i]++] = p;
    assert(members->first[layout->unit_count] == layout->slice_count);
    return ZERO_OK;
}

/** Lays out the tensors of one kind in a unit, if it has any. */
static void place_kind(struct eng_layout *layout, const struct eng_model *model,
                       const struct members *members, size_t unit, struct kind kind,
                       int64_t persist_numel, size_t *next_slice)
{
    assert(layout->bucket_count <= layout->bucket_room);
    struct eng_unit_layout *u = &layout->units[unit];
    struct eng_bucket *bucket = &layout->buckets[layout->bucket_count];
    unsigned never_negative = ~0U;
    for (size_t i = members->first[unit]; i < members->first[unit + 1]; i++) {
        const size_t p = members->params[i];
        if (!of_kind(model, p, kind, persist_numel))
            continue;
        place_slice(layout, model, p, (zero_unit)unit, next_slice);
        never_negative &= model->groups[model->params[p].group].optimizer->never_negative;
    }
    if (bucket->granules == 0)
        return;
    bucket->unit = (zero_unit)unit;
    bucket->dtype = kind.dtype;
    bucket->grad_dtype = kind.grad_dtype;
    bucket->persistent = kind.persistent;
    bucket->frozen = kind.frozen;
    bucket->moments = kind.moments;
    bucket->never_negative = never_negative;
    size_t *granules = kind.frozen ? &u->frozen : &u->granules;
    bucket->first = *granules;
    *granules += bucket->granules;
    layout->bucket_count++;
}

/** Lays one unit out: a pass over its tensors for each kind of bucket. */
static void place_unit(struct eng_layout *layout, const struct eng_model *model,
                       const struct members *members, size_t unit, const struct kinds *kinds,
                       size_t *next_slice)
{
    struct eng_unit_layout *u = &layout->units[unit];
    u->first_slice = *next_slice;
    u->first_bucket = layout->bucket_count;
    for (size_t k = 0; k < kinds->count; k++)
        place_kind(layout, model, members, unit, kinds->all[k], kinds->persist_numel, next_slice);
    u->slice_count = *next_slice - u->first_slice;
    u->bucket_count = layout->bucket_count - u->first_bucket;
    layout->granules += u->granules + u->frozen;
}

/** Granules of a shard of the bucket's unit: of those that train, or of the frozen ones. Rank r's
 * shard begins at r times as many. */
static size_t shard_granules(const struct eng_layout *layout, const struct eng_bucket *bucket)
{
    const struct eng_unit_layout *unit = &layout->units[bucket->unit];
    const size_t world = (size_t)layout->world;
    return ((bucket->frozen ? unit->frozen : unit->granules) + world - 1) / world;
}

/** Cuts a bucket by the shards of its unit. */
static void cut_bucket(struct eng_layout *layout, size_t s)
{
    struct eng_bucket *bucket = &layout->buckets[s];
    assert(bucket->granules > 0);
    const size_t world = (size_t)layout->world, shard = shard_granules(layout, bucket);
    const size_t end = bucket->first + bucket->granules;
    const size_t size = eng_dtype_size(bucket->dtype);
    bucket->elements = layout->spans + 2 * s * world;
    bucket->bytes = bucket->elements + world;
    bucket->before = layout->before + s * world;
    for (size_t r = 0; r < world; r++) {
        size_t from = r * shard, to = from + shard;
        from = from < bucket->first ? bucket->first : from > end ? end : from;
        to = to < bucket->first ? bucket->first : to > end ? end : to;
        const size_t offset = (from - bucket->first) * BASE_GRANULE;
        const size_t count = (to - from) * BASE_GRANULE;
        bucket->elements[r] = (struct coll_span){.offset = offset, .count = count};
        bucket->bytes[r] = (struct coll_span){.offset = offset * size, .count = count * size};
        if (s > 0)
            bucket->before[r] =
                bucket[-1].before[r] + (bucket[-1].frozen ? 0 : bucket[-1].elements[r].count);
    }
}

zero_result eng_layout_make(struct eng_layout *layout, const struct eng_model *model, int world,
                            int64_t persist_numel, struct base_error *error)
{
    memset(layout, 0, sizeof *layout);
    layout->world = world;
    struct members members = {0};
    struct kinds kinds;
    find_kinds(&kinds, model, persist_numel);
    zero_result r = allocate(layout, model, kinds.count, error);
    if (!r)
        r = find_members(&members, layout, model, error);
    if (r)
        goto out;
    size_t next_slice = 0;
    for (size_t u = 0; u < model->unit_count; u++)
        place_unit(layout, model, &members, u, &kinds, &next_slice);
    for (size_t s = 0; s < layout->bucket_count; s++)
        cut_bucket(layout, s);
    assert(next_slice == layout->slice_count && layout->bucket_count <= layout->bucket_room);
    if (layout->granules < (size_t)world)
        r = zero_fail(error, ZERO_E_INVALID,
                      "the model has %zu granules of %d elements, fewer than its %d ranks: run it "
                      "on at most %zu",
                      layout->granules, BASE_GRANULE, world, layout->granules);
out:
    base_free(members.first);
    base_free(members.params);
    if (r)
        eng_layout_free(layout);
    return r;
}

void eng_layout_free(struct eng_layout *layout)
{
    base_tables_free(&layout->tables);
    memset(layout, 0, sizeof *layout);
}

const struct eng_slice *eng_layout_slice(const struct eng_layout *layout,
                                         const struct eng_model *model, zero_param param,
                                         int32_t index)
{
    if (param < 0 || (size_t)param >= model->param_count || index < 0 ||
        index >= model->params[param].slice_count)
        return NULL;
    return &layout->slices[layout->slice_of[layout->param_first[param] + (size_t)index]];
}

/** Bytes of `name`, of its first `length`, that `other` begins with too. */
static size_t common_length(const char *name, size_t length, const char *other)
{
    size_t same = 0;
    while (same < length && name[same] == other[same])
        same++;
    return same;
}

void eng_layout_unit_name(const struct eng_layout *layout, const struct eng_model *model,
                          zero_unit unit, char *name, size_t size)
{
    const struct eng_unit_layout *u = &layout->units[unit];
    const struct eng_slice *slices = layout->slices + u->first_slice, *first = slices;
    for (size_t i = 1; i < u->slice_count; i++)
        if (slices[i].param < first->param)
            first = &slices[i];
    const char *text = model->params[first->param].name;
    size_t length = strlen(text);
    for (size_t i = 0; i < u->slice_count; i++)
        length = common_length(text, length, model->params[slices[i].param].name);
    while (length > 0 && text[length - 1] != '.')
        length--;
    // What is left ends with a '.', which is not shown.
    length = length > 1 ? length - 1 : strlen(text);
    if (model->params[first->param].slice_count > 1)
        snprintf(name, size, "%.*s.%d", (int)length, text, first->index);
    else
        snprintf(name, size, "%.*s", (int)length, text);
}

const struct eng_slice *eng_layout_slice_at(const struct eng_layout *layout, size_t bucket,
                                            size_t element)
{
    assert(bucket < layout->bucket_count);
    const struct eng_unit_layout *unit = &layout->units[layout->buckets[bucket].unit];
    const size_t granule = element / BASE_GRANULE;
    for (size_t i = unit->first_slice; i < unit->first_slice + unit->slice_count; i++) {
        const struct eng_slice *slice = &layout->slices[i];
        if (slice->bucket == bucket && granule >= slice->granule &&
            granule < slice->granule + slice->granules)
            return slice;
    }
    return NULL;
}

void eng_layout_own(const struct eng_layout *layout, size_t bucket, int rank, size_t *first,
                    size_t *granules)
{
    assert(bucket < layout->bucket_count && rank >= 0 && rank < layout->world);
    const struct coll_span *span = &layout->buckets[bucket].elements[rank];
    *first = span->offset / BASE_GRANULE;
    *granules = span->count / BASE_GRANULE;
}

int eng_layout_owner(const struct eng_layout *layout, size_t bucket, size_t element, size_t *count)
{
    assert(bucket < layout->bucket_count);
    assert(element < layout->buckets[bucket].granules * BASE_GRANULE);
    const struct eng_bucket *cut = &layout->buckets[bucket];
    const size_t owner = (cut->first + element / BASE_GRANULE) / shard_granules(layout, cut);
    assert(owner < (size_t)layout->world);
    const struct coll_span *own = &cut->elements[owner];
    assert(element >= own->offset && element < own->offset + own->count);
    const size_t left = own->offset + own->count - element;
    if (*count > left)
        *count = left;
    return (int)owner;
}
