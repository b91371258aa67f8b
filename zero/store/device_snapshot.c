#include "zero/store/device_snapshot.h"

#include "base/arena.h"
#include "checkpoint/saver.h"
#include "zero/core/context.h"
#include "zero/exec/device_tiles.h"
#include "zero/store/host_snapshot.h"

#include <assert.h>
#include <string.h>

/** Elements of a field that are fetched at a time: some blocks of a checkpoint. */
enum { PIECE = 8 * CKPT_BLOCK_ELEMENTS, PIECE_BYTES = PIECE * sizeof(float) };
enum { FIELDS = 1 + BASE_MAX_MOMENTS };

/** What of a field was fetched last. */
struct piece {
    unsigned char *memory;
    const struct ckpt_source *source; /**< NULL: nothing */
    uint64_t first;
    size_t count;
};

struct eng_snapshot {
    struct base_arena memory;
    void *pinned, *room;
    void *stream; /**< of what is fetched; copies to the room are work of the engine's */
    void *begun;  /**< event: the state is what it is at the beginning, */
    void *copied; /**< and what is in the room is there */
    struct piece pieces[FIELDS];
};

/* ------------------------------------------------------------------ life */

static size_t snapshot_bytes(const zero_ctx *z, const struct eng_tier_needs *needs)
{
    (void)z, (void)needs;
    return sizeof(struct eng_snapshot) + (size_t)FIELDS * PIECE_BYTES;
}

static zero_result open_snapshot(const struct eng_device *d, struct eng_snapshot *snapshot,
                                 struct base_error *error)
{
    zero_result r =
        base_arena_init(&snapshot->memory, (size_t)FIELDS * PIECE_BYTES, PIECE_BYTES, error);
    if (!r)
        r = d->ops->pin(snapshot->memory.memory, snapshot->memory.size, error);
    if (!r)
        snapshot->pinned = snapshot->memory.memory;
    for (int f = 0; !r && f < FIELDS; f++)
        snapshot->pieces[f].memory = base_arena_alloc(&snapshot->memory, PIECE_BYTES, 0);
    if (!r)
        r = d->ops->stream_create(&snapshot->stream, false, error);
    if (!r)
        r = d->ops->event_create(&snapshot->begun, error);
    return r ? r : d->ops->event_create(&snapshot->copied, error);
}

static zero_result make_fetching(const zero_ctx *z, const struct eng_sources *sources,
                                 struct eng_snapshot **out, struct base_error *error)
{
    (void)sources;
    *out = base_calloc(1, sizeof **out);
    return *out ? open_snapshot(z->device, *out, error)
                : zero_fail(error, ZERO_E_NOMEM, "no memory for fetching state");
}

/** Gives back what it has of the device. */
static void release(const struct base_device *ops, struct eng_snapshot *snapshot)
{
    if (snapshot->stream)
        ops->stream_sync(snapshot->stream, NULL);
    ops->event_destroy(snapshot->begun);
    ops->event_destroy(snapshot->copied);
    ops->stream_destroy(snapshot->stream);
    ops->unpin(snapshot->pinned);
}

static void free_snapshot(const zero_ctx *z, struct eng_snapshot *snapshot)
{
    if (!snapshot)
        return;
    if (snapshot->pinned && !z->device->ops->enter(z->device->number, NULL)) {
        release(z->device->ops, snapshot);
        z->device->ops->leave();
    }
    base_arena_free(&snapshot->memory);
    base_free(snapshot);
}

static zero_result take_room(const zero_ctx *z, struct eng_snapshot *snapshot, void *memory,
                             size_t bytes, struct base_error *error)
{
    const zero_result r = bytes > 0 ? z->device->ops->pin(memory, bytes, error) : ZERO_OK;
    snapshot->room = !r && bytes > 0 ? memory : NULL;
    return r;
}

static void leave_room(const zero_ctx *z, struct eng_snapshot *snapshot)
{
    const struct eng_device *d = z->device;
    if (!snapshot || !snapshot->room || d->ops->enter(d->number, NULL))
        return;
    d->ops->event_sync(snapshot->copied, NULL);
    d->ops->unpin(snapshot->room);
    d->ops->leave();
    snapshot->room = NULL;
}

/* ------------------------------------------------------------------ reading */

static zero_result begin_fetching(zero_ctx *z, struct eng_snapshot *snapshot,
                                  struct base_error *error)
{
    const struct eng_device *d = z->device;
    struct base_error inner = {0};
    for (int f = 0; f < FIELDS; f++)
        snapshot->pieces[f].source = NULL;
    if (!d->ops->event_record(snapshot->begun, d->own, &inner) &&
        !d->ops->event_wait(snapshot->begun, snapshot->stream, &inner) &&
        !device_tiles_before(z, snapshot->stream, &inner))
        d->ops->event_record(snapshot->begun, snapshot->stream, &inner);
    return inner.result ? device_tell(z, &inner, "fetching state", error) : ZERO_OK;
}

static const unsigned char *address(const struct ckpt_source *source, int field, uint64_t first)
{
    const unsigned char *begin = source->field[field];
    assert(first >= source->run.first && first - source->run.first < source->run.count);
    return begin + (first - source->run.first) * source->code[field].element_bytes;
}

/** Copies from memory of the host that the device writes to, which has written all of it. */
static zero_result copy_here(const struct eng_device *d, const struct eng_snapshot *snapshot,
                             void *to, const void *from, size_t bytes, struct base_error *error)
{
    const zero_result r = d->ops->event_sync(snapshot->begun, error);
    if (!r)
        memcpy(to, from, bytes);
    return r;
}

/** Fetches the piece that begins at an element. */
static zero_result fetch_piece(const zero_ctx *z, const struct eng_snapshot *snapshot,
                               struct piece *piece, const struct ckpt_source *source, int field,
                               uint64_t first, struct base_error *error)
{
    const struct eng_device *d = z->device;
    const uint64_t left = source->run.first + source->run.count - first;
    const void *from = address(source, field, first);
    piece->source = NULL;
    piece->first = first;
    piece->count = left < PIECE ? (size_t)left : PIECE;
    const size_t bytes = piece->count * source->code[field].element_bytes;
    zero_result r = device_has(z, from)
                        ? d->ops->copy(piece->memory, from, bytes, snapshot->stream, error)
                        : copy_here(d, snapshot, piece->memory, from, bytes, error);
    if (!r)
        r = d->ops->stream_sync(snapshot->stream, error);
    if (!r)
        piece->source = source;
    return r;
}

static zero_result read_elements(const zero_ctx *z, struct eng_snapshot *snapshot,
                                 const struct ckpt_source *source, int field, uint64_t first,
                                 size_t count, const void **elements, struct base_error *error)
{
    struct piece *piece = &snapshot->pieces[field];
    if (*elements)
        return z->device->ops->event_sync(snapshot->copied, error);
    const bool has = piece->source == source && first >= piece->first &&
                     first + count <= piece->first + piece->count;
    const zero_result r =
        has ? ZERO_OK : fetch_piece(z, snapshot, piece, source, field, first, error);
    assert(r || (first >= piece->first && first + count <= piece->first + piece->count));
    *elements = piece->memory + (first - piece->first) * source->code[field].element_bytes;
    return r;
}

static zero_result read_source(const zero_ctx *z, struct eng_snapshot *snapshot,
                               const struct ckpt_source *source, const struct eng_slice *slice,
                               int field, uint64_t first, size_t count, const void **elements,
                               struct base_error *error)
{
    (void)slice;
    const struct eng_device *d = z->device;
    struct base_error inner = {0};
    if (!d->ops->enter(d->number, &inner)) {
        read_elements(z, snapshot, source, field, first, count, elements, &inner);
        d->ops->leave();
    }
    return inner.result ? device_tell(z, &inner, "fetching state", error) : ZERO_OK;
}

static zero_result copy_source(const zero_ctx *z, struct eng_snapshot *snapshot,
                               const struct ckpt_source *source, int field, uint64_t first,
                               size_t count, void *to, struct base_error *error)
{
    const struct eng_device *d = z->device;
    const void *from = address(source, field, first);
    assert(first + count <= source->run.first + source->run.count);
    const size_t bytes = count * source->code[field].element_bytes;
    struct base_error inner = {0};
    if (!device_has(z, from))
        copy_here(d, snapshot, to, from, bytes, &inner);
    else if (!d->ops->copy(to, from, bytes, d->own, &inner))
        d->ops->event_record(snapshot->copied, d->own, &inner);
    return inner.result ? device_tell(z, &inner, "copying state aside", error) : ZERO_OK;
}

const struct eng_snapshot_ops eng_device_snapshot = {
    .size = sizeof(struct eng_snapshot_ops),
    .bytes = snapshot_bytes,
    .make = make_fetching,
    .open = eng_no_snapshot_open,
    .free = free_snapshot,
    .take_room = take_room,
    .leave_room = leave_room,
    .begin = begin_fetching,
    .read = read_source,
    .copy = copy_source,
    .blocks_before = eng_no_blocks_before,
};
