#include "zero/store/device_snapshot.h"

#include "base/arena.h"
#include "zero/core/context.h"
#include "zero/exec/device_parts.h"

#include <string.h>

/** Elements of a field that are fetched at a time: some blocks of a checkpoint. */
enum { PIECE = 8 * CKPT_BLOCK_ELEMENTS, PIECE_BYTES = PIECE * sizeof(float) };
enum { FIELDS = 1 + ENG_MAX_MOMENTS };

/** What of a field was fetched last. */
struct piece {
    unsigned char *memory;
    const struct ckpt_source *source; /**< NULL: nothing */
    uint64_t first;
    size_t count;
};

struct eng_fetch {
    struct base_arena memory;
    void *pinned, *room;
    void *stream; /**< of what is fetched; copies to the room are work of the engine's */
    void *begun;  /**< event: the state is what it is at the beginning, */
    void *copied; /**< and what is in the room is there */
    struct piece pieces[FIELDS];
};

/* ------------------------------------------------------------------ life */

/** Whether there is something to fetch: what is in files was recorded there. */
static bool fetches(const zero_ctx *z)
{
    return eng_state_on_device(z) && !z->config.nvme;
}

size_t eng_fetch_bytes(const zero_ctx *z)
{
    return fetches(z) ? sizeof(struct eng_fetch) + (size_t)FIELDS * PIECE_BYTES : 0;
}

static zero_result make(const struct eng_device *d, struct eng_fetch *fetch,
                        struct base_error *error)
{
    zero_result r =
        base_arena_init(&fetch->memory, (size_t)FIELDS * PIECE_BYTES, PIECE_BYTES, error);
    if (!r)
        r = d->ops->pin(fetch->memory.memory, fetch->memory.size, error);
    if (!r)
        fetch->pinned = fetch->memory.memory;
    for (int f = 0; !r && f < FIELDS; f++)
        fetch->pieces[f].memory = base_arena_alloc(&fetch->memory, PIECE_BYTES, 0);
    if (!r)
        r = d->ops->stream_create(&fetch->stream, false, error);
    if (!r)
        r = d->ops->event_create(&fetch->begun, error);
    return r ? r : d->ops->event_create(&fetch->copied, error);
}

zero_result eng_fetch_make(const zero_ctx *z, struct eng_fetch **out, struct base_error *error)
{
    *out = NULL;
    if (!fetches(z))
        return ZERO_OK;
    *out = base_calloc(1, sizeof **out);
    return *out ? make(z->device, *out, error)
                : zero_fail(error, ZERO_E_NOMEM, "no memory for fetching state");
}

/** Gives back what it has of the device. */
static void release(const struct base_device *ops, struct eng_fetch *fetch)
{
    if (fetch->stream)
        ops->stream_sync(fetch->stream, NULL);
    ops->event_destroy(fetch->begun);
    ops->event_destroy(fetch->copied);
    ops->stream_destroy(fetch->stream);
    ops->unpin(fetch->pinned);
}

void eng_fetch_free(const zero_ctx *z, struct eng_fetch *fetch)
{
    if (!fetch)
        return;
    if (fetch->pinned && !z->device->ops->enter(z->device->number, NULL)) {
        release(z->device->ops, fetch);
        z->device->ops->leave();
    }
    base_arena_free(&fetch->memory);
    base_free(fetch);
}

zero_result eng_fetch_room(const zero_ctx *z, struct eng_fetch *fetch, void *memory, size_t bytes,
                           struct base_error *error)
{
    const zero_result r = bytes > 0 ? z->device->ops->pin(memory, bytes, error) : ZERO_OK;
    fetch->room = !r && bytes > 0 ? memory : NULL;
    return r;
}

void eng_fetch_leave_room(const zero_ctx *z, struct eng_fetch *fetch)
{
    const struct eng_device *d = z->device;
    if (!fetch || !fetch->room || d->ops->enter(d->number, NULL))
        return;
    d->ops->event_sync(fetch->copied, NULL);
    d->ops->unpin(fetch->room);
    d->ops->leave();
    fetch->room = NULL;
}

/* ------------------------------------------------------------------ reading */

zero_result eng_fetch_begin(const zero_ctx *z, struct eng_fetch *fetch, struct base_error *error)
{
    const struct eng_device *d = z->device;
    struct base_error inner = {0};
    for (int f = 0; f < FIELDS; f++)
        fetch->pieces[f].source = NULL;
    if (!d->ops->event_record(fetch->begun, d->own, &inner) &&
        !d->ops->event_wait(fetch->begun, fetch->stream, &inner) &&
        !device_tiles_before(z, fetch->stream, &inner))
        d->ops->event_record(fetch->begun, fetch->stream, &inner);
    return inner.result ? device_tell(z, &inner, "fetching state", error) : ZERO_OK;
}

static const unsigned char *address(const struct ckpt_source *source, int field, uint64_t first)
{
    const unsigned char *begin = source->field[field];
    return begin + (first - source->run.first) * source->code[field].element_bytes;
}

/** Copies from memory of the host that the device writes to, which has written all of it. */
static zero_result copy_here(const struct eng_device *d, const struct eng_fetch *fetch, void *to,
                             const void *from, size_t bytes, struct base_error *error)
{
    const zero_result r = d->ops->event_sync(fetch->begun, error);
    if (!r)
        memcpy(to, from, bytes);
    return r;
}

/** Fetches the piece that begins at an element. */
static zero_result fetch_piece(const zero_ctx *z, const struct eng_fetch *fetch,
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
                        ? d->ops->copy(piece->memory, from, bytes, fetch->stream, error)
                        : copy_here(d, fetch, piece->memory, from, bytes, error);
    if (!r)
        r = d->ops->stream_sync(fetch->stream, error);
    if (!r)
        piece->source = source;
    return r;
}

static zero_result read_elements(const zero_ctx *z, struct eng_fetch *fetch,
                                 const struct ckpt_source *source, int field, uint64_t first,
                                 size_t count, const void **elements, struct base_error *error)
{
    struct piece *piece = &fetch->pieces[field];
    if (*elements)
        return z->device->ops->event_sync(fetch->copied, error);
    const bool has = piece->source == source && first >= piece->first &&
                     first + count <= piece->first + piece->count;
    const zero_result r = has ? ZERO_OK : fetch_piece(z, fetch, piece, source, field, first, error);
    *elements = piece->memory + (first - piece->first) * source->code[field].element_bytes;
    return r;
}

zero_result eng_fetch_read(const zero_ctx *z, struct eng_fetch *fetch,
                           const struct ckpt_source *source, int field, uint64_t first,
                           size_t count, const void **elements, struct base_error *error)
{
    const struct eng_device *d = z->device;
    struct base_error inner = {0};
    if (!d->ops->enter(d->number, &inner)) {
        read_elements(z, fetch, source, field, first, count, elements, &inner);
        d->ops->leave();
    }
    return inner.result ? device_tell(z, &inner, "fetching state", error) : ZERO_OK;
}

zero_result eng_fetch_copy(const zero_ctx *z, struct eng_fetch *fetch,
                           const struct ckpt_source *source, int field, uint64_t first,
                           size_t count, void *to, struct base_error *error)
{
    const struct eng_device *d = z->device;
    const void *from = address(source, field, first);
    const size_t bytes = count * source->code[field].element_bytes;
    struct base_error inner = {0};
    if (!device_has(z, from))
        copy_here(d, fetch, to, from, bytes, &inner);
    else if (!d->ops->copy(to, from, bytes, d->own, &inner))
        d->ops->event_record(fetch->copied, d->own, &inner);
    return inner.result ? device_tell(z, &inner, "copying state aside", error) : ZERO_OK;
}
