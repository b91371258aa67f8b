// Tiles of a stream on a device: memory of the device beside that of each buffer, and copies
// between the two, in a stream of the device for each direction. With the CPU there is one memory,
// and nothing to be done.
//
// A buffer has two events. `copied`: its last copy is done, in whichever direction; before, the
// host leaves the buffer's memory alone, and the caller's stream the tile. `worked`: what the
// caller's stream was given to do with the tile is done; before, no copy of it begins.
#include "offload/pipeline_parts.h"

static zero_result failed(const struct off_stream *stream, const struct off_buffer *buffer,
                          const char *what, const struct base_error *inner,
                          struct base_error *error)
{
    return zero_fail(error, inner->result, "%s: tile %zu: %s: %s",
                     off_tilefile_file(stream->tilefile)->path, buffer->tile, what, inner->message);
}

zero_result off_stream_copy_in(const struct off_stream *stream, const struct off_buffer *buffer,
                               struct base_error *error)
{
    const struct base_device *device = stream->device;
    const size_t bytes = off_tilefile_tile_bytes(stream->tilefile, buffer->tile);
    struct base_error inner = {.result = ZERO_OK};
    if (!device)
        return ZERO_OK;
    zero_result result = device->event_wait(buffer->worked, stream->inward, &inner);
    if (!result)
        result = device->copy(buffer->there, buffer->memory, bytes, stream->inward, &inner);
    if (!result)
        result = device->event_record(buffer->copied, stream->inward, &inner);
    return result ? failed(stream, buffer, "copying it to the device", &inner, error) : ZERO_OK;
}

zero_result off_stream_lend(const struct off_stream *stream, const struct off_buffer *buffer,
                            struct base_error *error)
{
    const struct base_device *device = stream->device;
    struct base_error inner = {.result = ZERO_OK};
    if (!device || !device->event_wait(buffer->copied, stream->callers, &inner))
        return ZERO_OK;
    return failed(stream, buffer, "handing it over on the device", &inner, error);
}

zero_result off_stream_copy_out(const struct off_stream *stream, const struct off_buffer *buffer,
                                bool changed, struct base_error *error)
{
    const struct base_device *device = stream->device;
    const size_t bytes = off_tilefile_tile_bytes(stream->tilefile, buffer->tile);
    struct base_error inner = {.result = ZERO_OK};
    if (!device)
        return ZERO_OK;
    zero_result result = device->event_record(buffer->worked, stream->callers, &inner);
    if (!result && changed)
        result = device->event_wait(buffer->worked, stream->outward, &inner);
    if (!result && changed)
        result = device->copy(buffer->memory, buffer->there, bytes, stream->outward, &inner);
    if (!result && changed)
        result = device->event_record(buffer->copied, stream->outward, &inner);
    return result ? failed(stream, buffer, "copying it from the device", &inner, error) : ZERO_OK;
}

zero_result off_stream_await_copy(const struct off_stream *stream, const struct off_buffer *buffer,
                                  struct base_error *error)
{
    const struct base_device *device = stream->device;
    struct base_error inner = {.result = ZERO_OK};
    if (!device || !device->event_sync(buffer->copied, &inner))
        return ZERO_OK;
    return failed(stream, buffer, "waiting for a copy", &inner, error);
}

void off_stream_await_device(const struct off_stream *stream)
{
    if (!stream->outward)
        return;
    stream->device->stream_sync(stream->callers, NULL);
    stream->device->stream_sync(stream->inward, NULL);
    stream->device->stream_sync(stream->outward, NULL);
}

void off_stream_enter_device(const struct off_stream *stream)
{
    if (stream->device) // what cannot be entered now, though its streams could be made, fails later
        stream->device->enter(stream->device_number, NULL);
}

/* ------------------------------------------------------------------ life */

static zero_result make_streams(struct off_stream *stream, struct base_error *error)
{
    const zero_result result = stream->device->stream_create(&stream->inward, false, error);
    return result ? result : stream->device->stream_create(&stream->outward, false, error);
}

static zero_result make_memory(struct off_stream *stream, struct base_error *error)
{
    const struct off_pages *pages = &stream->queue.pages;
    const zero_result result = stream->device->pin(pages->memory, pages->bytes, error);
    if (result)
        return result;
    stream->pinned = pages->memory;
    return stream->device->alloc(&stream->tiles_there, stream->buffer_count * stream->queue.spacing,
                                 error);
}

static zero_result make_events(const struct off_stream *stream, struct off_buffer *buffer,
                               struct base_error *error)
{
    const zero_result result = stream->device->event_create(&buffer->copied, error);
    return result ? result : stream->device->event_create(&buffer->worked, error);
}

zero_result off_stream_make_copies(struct off_stream *stream, struct base_error *error)
{
    if (!stream->device)
        return ZERO_OK;
    zero_result result = make_streams(stream, error);
    if (!result)
        result = make_memory(stream, error);
    for (size_t i = 0; i < stream->buffer_count && !result; i++) {
        struct off_buffer *buffer = &stream->buffers[i];
        buffer->there = (unsigned char *)stream->tiles_there + i * stream->queue.spacing;
        result = make_events(stream, buffer, error);
    }
    return result;
}

void off_stream_end_copies(struct off_stream *stream)
{
    const struct base_device *device = stream->device;
    if (!device)
        return;
    off_stream_await_device(stream);
    for (size_t i = 0; i < stream->buffer_count && stream->buffers; i++) {
        device->event_destroy(stream->buffers[i].copied);
        device->event_destroy(stream->buffers[i].worked);
    }
    device->stream_destroy(stream->inward);
    device->stream_destroy(stream->outward);
    device->free(stream->tiles_there);
    device->unpin(stream->pinned);
}
