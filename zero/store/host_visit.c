// The next part is on its way while one is visited. All copies are work of the engine's own stream,
// in which state changes, so they are in order with that and with each other.

#include "zero/store/host_visit.h"
#include "zero/core/addresses.h"
#include "zero/store/stores.h"

#include "base/arena.h"
#include "checkpoint/codec/block_codec.h"
#include "zero/core/context.h"
#include "zero/core/link_table.h"
#include "zero/exec/device_tiles.h"

#include <assert.h>
#include <string.h>

/** Parts are cut at multiples of it, in elements of a slice: so each is a block of checkpoints. */
enum { CUT = CKPT_BLOCK_ELEMENTS, CUT_GRANULES = CUT / BASE_GRANULE };

enum { BUFFERS = 2, FIELDS = 2 + BASE_MAX_MOMENTS };

/** A run of granules of an array. */
struct field {
    unsigned char *there, *here;
    size_t bytes;
};

struct buffer {
    unsigned char *memory;
    void *moved; /**< event: what is in it is there, or back */
    struct field fields[FIELDS];
    int count;
};

struct eng_bounce {
    struct base_arena memory;
    void *pinned;
    struct buffer buffers[BUFFERS];
    const struct buffer *open; /**< what is visited; NULL: nothing */
};

/* ------------------------------------------------------------------ life */

static size_t page_up(size_t bytes)
{
    return (bytes + 4095) / 4096 * 4096;
}

/** Bytes of what a granule has on the device: weights, working copy and moments. */
static size_t granule_bytes(const struct eng_config *config, const struct eng_bucket *bucket,
                            const struct eng_bucket_place *place)
{
    const size_t moments = bucket->frozen ? 0 : (size_t)bucket->moments;
    const bool apart = eng_apart(bucket, place);
    if (config->streamed)
        return BASE_GRANULE * eng_dtype_size(bucket->dtype);
    return BASE_GRANULE * (eng_dtype_size(bucket->dtype) + (apart ? sizeof(float) : 0) +
                           moments * eng_dtype_size(config->moment_dtype));
}

/** Bytes of a buffer: the most that a part takes. */
static size_t buffer_bytes(const zero_ctx *z, const struct eng_placement *placement)
{
    size_t most = 0;
    for (size_t s = 0; s < z->layout.bucket_count; s++) {
        const struct eng_bucket_place *place = &placement->buckets[s];
        const size_t granules =
            place->state_granules < CUT_GRANULES ? place->state_granules : CUT_GRANULES;
        const size_t bytes = granules * granule_bytes(&z->config, &z->layout.buckets[s], place);
        most = bytes > most ? bytes : most;
    }
    return page_up(most);
}

size_t eng_bounce_bytes(const zero_ctx *z, const struct eng_placement *placement)
{
    return eng_state_on_device(z) ? BUFFERS * buffer_bytes(z, placement) : 0;
}

zero_result eng_bounce_make(zero_ctx *z, struct base_error *error)
{
    const struct eng_device *d = z->device;
    const size_t bytes = buffer_bytes(z, &z->placement);
    if (!eng_state_on_device(z))
        return ZERO_OK;
    struct eng_bounce *bounce = base_calloc(1, sizeof *bounce);
    if (!bounce)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for buffers of state");
    assert(!z->memory.bounce);
    z->memory.bounce = bounce;
    zero_result r = base_arena_init(&bounce->memory, BUFFERS * bytes, 4096, error);
    if (!r && bytes > 0)
        r = d->ops->pin(bounce->memory.memory, BUFFERS * bytes, error);
    if (!r && bytes > 0)
        bounce->pinned = bounce->memory.memory;
    for (int i = 0; !r && i < BUFFERS; i++) {
        bounce->buffers[i].memory = base_arena_alloc(&bounce->memory, bytes, 4096);
        r = d->ops->event_create(&bounce->buffers[i].moved, error);
    }
    return r;
}

void eng_bounce_free(zero_ctx *z)
{
    struct eng_bounce *bounce = z->memory.bounce;
    if (!bounce)
        return;
    assert(!bounce->open);
    const struct eng_device *d = z->device;
    if (!d->ops->enter(d->number, NULL)) {
        for (int i = 0; i < BUFFERS; i++)
            d->ops->event_destroy(bounce->buffers[i].moved);
        d->ops->unpin(bounce->pinned);
        d->ops->leave();
    }
    base_arena_free(&bounce->memory);
    base_free(bounce);
    z->memory.bounce = NULL;
}

/* ------------------------------------------------------------------ where state is */

void *eng_bounce_find(const zero_ctx *z, void *there)
{
    const struct buffer *open = z->memory.bounce ? z->memory.bounce->open : NULL;
    unsigned char *address = there;
    for (int i = 0; open && i < open->count; i++) {
        const struct field *field = &open->fields[i];
        if (address >= field->there && address < field->there + field->bytes)
            return field->here + (address - field->there);
    }
    return there;
}

static bool writes(enum eng_access access)
{
    return access == ENG_CHANGE || access == ENG_REPLACE;
}

static void add_field(struct buffer *buffer, void *there, size_t bytes)
{
    unsigned char *here = buffer->memory;
    assert(buffer->count < FIELDS);
    if (buffer->count > 0) {
        const struct field *before = &buffer->fields[buffer->count - 1];
        here = before->here + before->bytes;
    }
    buffer->fields[buffer->count++] = (struct field){there, here, bytes};
}

/** What a visit to a part may use on the device: fields of whole granules. The working copy, which
 * follows from weights that it is not itself, is only written. */
static void lay(const zero_ctx *z, struct buffer *buffer, const struct eng_part *part,
                enum eng_access access)
{
    const size_t s = part->slice->bucket;
    const struct eng_bucket *bucket = &z->layout.buckets[s];
    const bool apart = eng_apart(bucket, &z->placement.buckets[s]);
    const size_t first = part->slice->granule + part->first / BASE_GRANULE;
    const size_t end = part->slice->granule + (part->first + part->count - 1) / BASE_GRANULE + 1;
    assert(part->count > 0 && end - first <= CUT_GRANULES); // a buffer's size
    const size_t element = first * BASE_GRANULE, elements = (end - first) * BASE_GRANULE;
    buffer->count = 0;
    if (!apart || writes(access))
        add_field(buffer, eng_home(z, s, first), elements * eng_dtype_size(bucket->dtype));
    if (z->config.streamed)
        return;
    if (apart)
        add_field(buffer, eng_weights(z, s, element), elements * sizeof(float));
    for (int k = 0; k < bucket->moments && !bucket->frozen && access != ENG_LOOK_AT_WEIGHTS; k++)
        add_field(buffer, eng_moments(z, k, s, element),
                  elements * eng_dtype_size(z->config.moment_dtype));
}

/* ------------------------------------------------------------------ visits */

/** Who visits, and what for. */
struct visitor {
    eng_part_fn visit;
    void *user;
    enum eng_access access;
    struct base_error *error; /**< of the visits themselves */
};

/** Sends what a visit wants to see of a part on its way, behind what the buffer had before. */
static zero_result fill(const zero_ctx *z, struct buffer *buffer, const struct eng_part *part,
                        enum eng_access access, struct base_error *error)
{
    const struct eng_device *d = z->device;
    zero_result r = ZERO_OK;
    lay(z, buffer, part, access);
    if (access == ENG_REPLACE)
        return ZERO_OK;
    for (int i = 0; !r && i < buffer->count; i++)
        r = d->ops->copy(buffer->fields[i].here, buffer->fields[i].there, buffer->fields[i].bytes,
                         d->own, error);
    return r ? r : d->ops->event_record(buffer->moved, d->own, error);
}

/** Sends it back. */
static zero_result give_back(const zero_ctx *z, struct buffer *buffer, struct base_error *error)
{
    const struct eng_device *d = z->device;
    zero_result r = ZERO_OK;
    for (int i = 0; !r && i < buffer->count; i++)
        r = d->ops->copy(buffer->fields[i].there, buffer->fields[i].here, buffer->fields[i].bytes,
                         d->own, error);
    return r ? r : d->ops->event_record(buffer->moved, d->own, error);
}

/** One part that has a buffer. */
static zero_result visit_one(zero_ctx *z, struct buffer *buffer, const struct eng_part *part,
                             const struct visitor *visitor, struct base_error *error)
{
    zero_result r = z->device->ops->event_sync(buffer->moved, error);
    if (r)
        return r;
    for (int i = 0; i < buffer->count && visitor->access == ENG_REPLACE; i++)
        memset(buffer->fields[i].here, 0, buffer->fields[i].bytes);
    assert(!z->memory.bounce->open);
    z->memory.bounce->open = buffer;
    r = visitor->visit(z, visitor->user, part, visitor->error);
    z->memory.bounce->open = NULL;
    return r || !writes(visitor->access) ? r : give_back(z, buffer, error);
}

/** What comes next of elements first .. end-1 of a slice. */
static struct eng_part cut(const struct eng_slice *slice, size_t first, size_t end)
{
    const size_t border = first / CUT * CUT + CUT;
    assert(first <= end);
    const size_t last = border < end ? border : end;
    return (struct eng_part){.slice = slice, .first = first, .count = last - first};
}

/** All parts of a part. */
static zero_result visit_all(zero_ctx *z, const struct eng_part *whole,
                             const struct visitor *visitor, struct base_error *error)
{
    struct buffer *buffers = z->memory.bounce->buffers;
    const size_t end = whole->first + whole->count;
    assert(whole->count > 0 && end <= whole->slice->numel);
    struct eng_part part = cut(whole->slice, whole->first, end);
    zero_result r = fill(z, &buffers[0], &part, visitor->access, error);
    for (int turn = 0; !r && part.count > 0; turn = 1 - turn) {
        const struct eng_part next = cut(whole->slice, part.first + part.count, end);
        if (next.count > 0)
            r = fill(z, &buffers[1 - turn], &next, visitor->access, error);
        if (!r)
            r = visit_one(z, &buffers[turn], &part, visitor, error);
        part = next;
    }
    return r;
}

zero_result eng_bounce_visit(zero_ctx *z, const struct eng_part *part, enum eng_access access,
                             eng_part_fn visit, void *user, struct base_error *error)
{
    const struct visitor visitor = {visit, user, access, error};
    struct base_error inner = {0};
    zero_result r = device_tiles_settle(z, &inner);
    // The working copy may still be read, and sent.
    if (!r && writes(access))
        r = device_quiet(z, &inner);
    if (!r && writes(access))
        r = z->link->await_all(z, &inner);
    if (!r)
        r = visit_all(z, part, &visitor, &inner);
    z->device->ops->stream_sync(z->device->own, &inner);
    return inner.result ? device_tell(z, &inner, "copying state", error) : r;
}
