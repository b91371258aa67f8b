// Tiles of a pipeline on a device: memory of the device beside that of each buffer, and copies
// between the two, in a stream of the device for each direction. With the CPU there is one memory,
// and nothing to be done.
//
// A buffer has two events. `copied`: its last copy is done, in whichever direction; before, the
// host leaves the buffer's memory alone, and the caller's stream the tile. `worked`: what the
// caller's stream was given to do with the tile is done; before, no copy of it begins.
#include "offload/pipeline_parts.h"

static zero_result failed(const struct off_pipeline *pipeline, const struct off_buffer *buffer,
                          const char *what, const struct base_error *inner,
                          struct base_error *error)
{
    return zero_fail(error, inner->result, "%s: tile %zu: %s: %s",
                     off_tilefile_file(pipeline->tilefile)->path, buffer->tile, what,
                     inner->message);
}

zero_result off_pipeline_copy_in(const struct off_pipeline *pipeline,
                                 const struct off_buffer *buffer, struct base_error *error)
{
    const struct base_device *device = pipeline->device;
    const size_t bytes = off_tilefile_tile_bytes(pipeline->tilefile, buffer->tile);
    struct base_error inner = {.result = ZERO_OK};
    if (!device)
        return ZERO_OK;
    zero_result result = device->event_wait(buffer->worked, pipeline->inward, &inner);
    if (!result)
        result = device->copy(buffer->there, buffer->memory, bytes, pipeline->inward, &inner);
    if (!result)
        result = device->event_record(buffer->copied, pipeline->inward, &inner);
    return result ? failed(pipeline, buffer, "copying it to the device", &inner, error) : ZERO_OK;
}

zero_result off_pipeline_lend(const struct off_pipeline *pipeline, const struct off_buffer *buffer,
                              struct base_error *error)
{
    const struct base_device *device = pipeline->device;
    struct base_error inner = {.result = ZERO_OK};
    if (!device || !device->event_wait(buffer->copied, pipeline->callers, &inner))
        return ZERO_OK;
    return failed(pipeline, buffer, "handing it over on the device", &inner, error);
}

zero_result off_pipeline_copy_out(const struct off_pipeline *pipeline,
                                  const struct off_buffer *buffer, bool changed,
                                  struct base_error *error)
{
    const struct base_device *device = pipeline->device;
    const size_t bytes = off_tilefile_tile_bytes(pipeline->tilefile, buffer->tile);
    struct base_error inner = {.result = ZERO_OK};
    if (!device)
        return ZERO_OK;
    zero_result result = device->event_record(buffer->worked, pipeline->callers, &inner);
    if (!result && changed)
        result = device->event_wait(buffer->worked, pipeline->outward, &inner);
    if (!result && changed)
        result = device->copy(buffer->memory, buffer->there, bytes, pipeline->outward, &inner);
    if (!result && changed)
        result = device->event_record(buffer->copied, pipeline->outward, &inner);
    return result ? failed(pipeline, buffer, "copying it from the device", &inner, error) : ZERO_OK;
}

zero_result off_pipeline_await_copy(const struct off_pipeline *pipeline,
                                    const struct off_buffer *buffer, struct base_error *error)
{
    const struct base_device *device = pipeline->device;
    struct base_error inner = {.result = ZERO_OK};
    if (!device || !device->event_sync(buffer->copied, &inner))
        return ZERO_OK;
    return failed(pipeline, buffer, "waiting for a copy", &inner, error);
}

void off_pipeline_await_device(const struct off_pipeline *pipeline)
{
    if (!pipeline->outward)
        return;
    pipeline->device->stream_sync(pipeline->callers, NULL);
    pipeline->device->stream_sync(pipeline->inward, NULL);
    pipeline->device->stream_sync(pipeline->outward, NULL);
}

void off_pipeline_enter_device(const struct off_pipeline *pipeline)
{
    if (pipeline
            ->device) // what cannot be entered now, though its streams could be made, fails later
        pipeline->device->enter(pipeline->device_number, NULL);
}

/* ------------------------------------------------------------------ life */

static zero_result make_streams(struct off_pipeline *pipeline, struct base_error *error)
{
    const zero_result result = pipeline->device->stream_create(&pipeline->inward, false, error);
    return result ? result : pipeline->device->stream_create(&pipeline->outward, false, error);
}

static zero_result make_memory(struct off_pipeline *pipeline, struct base_error *error)
{
    const struct off_pages *pages = &pipeline->queue.pages;
    const zero_result result = pipeline->device->pin(pages->memory, pages->bytes, error);
    if (result)
        return result;
    pipeline->pinned = pages->memory;
    return pipeline->device->alloc(&pipeline->tiles_there,
                                   pipeline->buffer_count * pipeline->queue.spacing, error);
}

static zero_result make_events(const struct off_pipeline *pipeline, struct off_buffer *buffer,
                               struct base_error *error)
{
    const zero_result result = pipeline->device->event_create(&buffer->copied, error);
    return result ? result : pipeline->device->event_create(&buffer->worked, error);
}

zero_result off_pipeline_make_copies(struct off_pipeline *pipeline, struct base_error *error)
{
    if (!pipeline->device)
        return ZERO_OK;
    zero_result result = make_streams(pipeline, error);
    if (!result)
        result = make_memory(pipeline, error);
    for (size_t i = 0; i < pipeline->buffer_count && !result; i++) {
        struct off_buffer *buffer = &pipeline->buffers[i];
        buffer->there = (unsigned char *)pipeline->tiles_there + i * pipeline->queue.spacing;
        result = make_events(pipeline, buffer, error);
    }
    return result;
}

void off_pipeline_end_copies(struct off_pipeline *pipeline)
{
    const struct base_device *device = pipeline->device;
    if (!device)
        return;
    off_pipeline_await_device(pipeline);
    for (size_t i = 0; i < pipeline->buffer_count && pipeline->buffers; i++) {
        device->event_destroy(pipeline->buffers[i].copied);
        device->event_destroy(pipeline->buffers[i].worked);
    }
    device->stream_destroy(pipeline->inward);
    device->stream_destroy(pipeline->outward);
    device->free(pipeline->tiles_there);
    device->unpin(pipeline->pinned);
}
