// Parts of one tensor, read and written between steps.

#include "zero/core/api_call.h"
#include "zero/core/context.h"
#include "zero/link/publish.h"
#include "zero/param/gather_slots.h"
#include "zero/step/micro_batch.h"
#include "zero/store/master_weights.h"

#include "base/hash.h"

#include <assert.h>
#include <inttypes.h>

/** Elements of a slice that were asked for, and of them a stretch that one rank owns. */
struct part {
    const struct eng_slice *slice;
    size_t first, count;
    int owner; /**< of the stretch */
    size_t at; /**< where it begins, in elements of the part */
    size_t length;
};

static zero_result find_part(zero_ctx *z, const char *call, zero_param param, int32_t index,
                             uint64_t first, uint64_t count, struct part *part)
{
    const struct eng_slice *slice = eng_layout_slice(&z->layout, &z->model, param, index);
    if (!slice) {
        eng_fail(z, ZERO_E_INVALID, "%s: there is no slice %d of tensor %d", call, index, param);
        return ZERO_E_INVALID;
    }
    *part = (struct part){.slice = slice, .first = (size_t)first, .count = (size_t)count};
    if (first > slice->numel || count > slice->numel - first)
        return eng_fail(z, ZERO_E_INVALID,
                        "%s: %" PRIu64 " elements from %" PRIu64 " on of %s, slice %d, which has "
                        "%zu",
                        call, count, first, z->model.params[param].name, index, slice->numel);
    return ZERO_OK;
}

/** What is wrong with a call is wrong on every rank: nothing changes. */
static zero_result check_call(zero_ctx *z, const char *call, zero_param param, int32_t slice,
                              uint64_t first, uint64_t count, const float *values,
                              struct part *part)
{
    zero_result r = eng_between_steps(z, call);
    if (!r)
        r = find_part(z, call, param, slice, first, count, part);
    if (!r && count > 0 && !values)
        r = eng_fail(z, ZERO_E_INVALID, "%s: values is NULL", call);
    return r;
}

/** Ranks that mean different parts, or give different values, are told so. */
static zero_result compare_part(zero_ctx *z, const struct part *part, uint64_t values,
                                const char *what)
{
    const uint64_t fields[] = {(uint64_t)part->slice->param, (uint64_t)part->slice->index,
                               part->first, part->count, values};
    return eng_same(z, base_hash64(fields, sizeof fields, 0), what);
}

/** Goes to the part's next stretch; false if there is none. */
static bool next_stretch(const zero_ctx *z, struct part *part)
{
    part->at += part->length;
    assert(part->at <= part->count);
    if (part->at == part->count)
        return false;
    const size_t element = part->slice->granule * BASE_GRANULE + part->first + part->at;
    part->length = part->count - part->at;
    part->owner = eng_layout_owner(&z->layout, part->slice->bucket, element, &part->length);
    assert(part->length > 0);
    return true;
}

static zero_result read_part(zero_ctx *z, struct part *part, float *values)
{
    struct base_error error = {0};
    zero_result r = compare_part(z, part, 0, "what zero_param_read is to read");
    while (!r && next_stretch(z, part)) {
        float *out = values + part->at;
        const struct eng_part stretch = {part->slice, part->first + part->at, part->length};
        if (part->owner == z->config.rank && eng_values_get(z, &stretch, out, &error))
            return eng_fail_from(z, &error);
        r = coll_broadcast(z->comm, out, part->length * sizeof *out, part->owner);
        if (r)
            r = eng_comm_failed(z, r);
    }
    return r;
}

zero_result zero_param_read(zero_ctx *z, zero_param param, int32_t slice, uint64_t first,
                            uint64_t count, float *values)
{
    if (!z)
        return ZERO_E_INVALID;
    struct part part = {.count = 0};
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_param_read");
    if (!r)
        r = check_call(z, "zero_param_read", param, slice, first, count, values, &part);
    if (!r)
        r = read_part(z, &part, values);
    return eng_leave(z, r);
}

/** What of the part this rank's state covers. */
static struct eng_part covered(const zero_ctx *z, const struct part *part)
{
    const struct eng_part mine = eng_state_part(z, part->slice);
    const size_t first = mine.first > part->first ? mine.first : part->first;
    size_t end = mine.first + mine.count;
    end = end < part->first + part->count ? end : part->first + part->count;
    return (struct eng_part){part->slice, first, first < end ? end - first : 0};
}

/** Values of a slice. */
struct values {
    const float *values;
    size_t first; /**< element of the first one */
};

static zero_result put(zero_ctx *z, void *user, const struct eng_part *part,
                       struct base_error *error)
{
    const struct values *from = user;
    (void)error;
    assert(part->first >= from->first);
    eng_values_put(z, part->slice->bucket, part->slice->granule * BASE_GRANULE + part->first,
                   part->count, from->values + (part->first - from->first));
    return ZERO_OK;
}

static zero_result write_part(zero_ctx *z, const struct part *part, const float *values)
{
    const uint64_t hash = base_hash64(values, part->count * sizeof *values, 0);
    const struct eng_part mine = covered(z, part);
    struct values from = {values, part->first};
    struct base_error error = {0};
    // When all ranks have compared, none of them reads a peer's weights any more.
    zero_result r = eng_slots_settle(z);
    if (!r)
        r = eng_publish_finish(z, true);
    if (!r)
        r = compare_part(z, part, hash, "what zero_param_write is to write");
    if (r)
        return r;
    // All ranks decide alike, for they have equal values.
    if (eng_values_fit(z, z->model.params[part->slice->param].dtype, part->slice, part->first,
                       part->count, values, "zero_param_write", &error))
        return eng_fail_from(z, &error);
    if (z->store->visit(z, &mine, ENG_CHANGE, put, &from, &error))
        return eng_fail_from(z, &error);
    r = z->store->records->record(z);
    z->publication.version++;
    if (!r)
        r = eng_publish_start(z, part->slice->bucket);
    return r ? r : eng_publish_finish(z, true);
}

zero_result zero_param_write(zero_ctx *z, zero_param param, int32_t slice, uint64_t first,
                             uint64_t count, const float *values)
{
    if (!z)
        return ZERO_E_INVALID;
    struct part part = {.count = 0};
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_param_write");
    if (!r)
        r = check_call(z, "zero_param_write", param, slice, first, count, values, &part);
    if (!r)
        r = write_part(z, &part, values);
    return eng_leave(z, r);
}
