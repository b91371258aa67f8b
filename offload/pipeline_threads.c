// The threads of a pipeline: one that reads and writes, and those that do its chores.
#include "offload/pipeline_parts.h"

#include <assert.h>
#include <string.h>

/* ------------------------------------------------------------------ for all: mutex held */

void off_pipeline_wake(struct off_pipeline *pipeline)
{
    pipeline->asked = true;
    pthread_cond_signal(&pipeline->work);
    off_io_wake(pipeline->queue.io);
}

// The list in which buffers of a state wait; NULL: a thread has them.
static struct off_buffer_list *list_of(struct off_pipeline *pipeline, enum off_buffer_state state)
{
    switch (state) {
    case OFF_FREE:
        return &pipeline->free;
    case OFF_KEPT:
        return &pipeline->kept;
    case OFF_ARRIVED:
    case OFF_CHANGED:
        return &pipeline->posted;
    case OFF_SEALED:
        return &pipeline->sealed;
    default:
        return NULL;
    }
}

static void take_out(struct off_buffer_list *list, struct off_buffer *buffer)
{
    assert(buffer->previous ? list->first != buffer : list->first == buffer);
    assert(buffer->next ? list->last != buffer : list->last == buffer);
    if (buffer->previous)
        buffer->previous->next = buffer->next;
    else
        list->first = buffer->next;
    if (buffer->next)
        buffer->next->previous = buffer->previous;
    else
        list->last = buffer->previous;
}

static void append(struct off_buffer_list *list, struct off_buffer *buffer)
{
    assert(!list->first == !list->last);
    buffer->next = NULL;
    buffer->previous = list->last;
    if (list->last)
        list->last->next = buffer;
    else
        list->first = buffer;
    list->last = buffer;
}

void off_pipeline_set_state(struct off_pipeline *pipeline, struct off_buffer *buffer,
                            enum off_buffer_state state)
{
    assert(buffer >= pipeline->buffers && buffer < pipeline->buffers + pipeline->buffer_count);
    assert(buffer->state != OFF_READING || pipeline->pass.reading > 0);
    struct off_buffer_list *from = list_of(pipeline, buffer->state), *to = list_of(pipeline, state);
    if (from)
        take_out(from, buffer);
    if (to)
        append(to, buffer);
    pipeline->pass.reading -= buffer->state == OFF_READING;
    pipeline->pass.reading += state == OFF_READING;
    buffer->state = state;
}

// A place that is not used any more: a chore may be waiting for one.
static void take_back(struct off_pipeline *pipeline, unsigned char *spare)
{
    if (!spare)
        return;
    pipeline->spares[pipeline->spare_count++] = spare;
    pthread_cond_signal(&pipeline->chores);
}

void off_pipeline_free_buffer(struct off_pipeline *pipeline, struct off_buffer *buffer)
{
    take_back(pipeline, buffer->packed);
    buffer->packed = NULL;
    if (pipeline->buffer_of[buffer->tile] == buffer - pipeline->buffers)
        pipeline->buffer_of[buffer->tile] = OFF_NOWHERE;
    off_pipeline_set_state(pipeline, buffer, OFF_FREE);
}

// Nothing of the pass is done any more, but for what is under way. Not even that is waited for if
// nothing comes back: that is told whatever has failed before.
void off_pipeline_fail(struct off_pipeline *pipeline, const struct base_error *failure)
{
    if (pipeline->pass.failure.result == ZERO_OK || failure->result == ZERO_E_TIMEOUT)
        pipeline->pass.failure = *failure;
    pipeline->asked = true; // for there is to be dropped what was passed by already
    pthread_cond_signal(&pipeline->news);
}

// Drops the tile of a buffer that no thread works on.
static void drop(struct off_pipeline *pipeline, struct off_buffer *buffer)
{
    assert(pipeline->pass.busy > 0);
    off_pipeline_free_buffer(pipeline, buffer);
    pipeline->pass.busy--;
    pthread_cond_signal(&pipeline->news);
}

/** Leaves a buffer to the helpers; mutex held. */
static void give_helpers(struct off_pipeline *pipeline, struct off_buffer *buffer,
                         enum off_buffer_state chore)
{
    off_pipeline_set_state(pipeline, buffer, chore);
    pthread_cond_signal(&pipeline->chores);
}

/* ------------------------------------------------------------------ chores */

static bool is_encoded(const struct off_pipeline *pipeline, const struct off_buffer *buffer)
{
    return buffer->stored < off_tilefile_tile_bytes(pipeline->tilefile, buffer->tile);
}

// Makes a tile of what was read: what is decoded to the spare is the buffer's from then on, and
// what it was decoded from is the spare.
static void open_tile(const struct off_pipeline *pipeline, void *coder, struct off_buffer *buffer,
                      unsigned char **spare, struct base_error *failure)
{
    unsigned char *stored = buffer->memory;
    struct base_error damage = {.result = ZERO_OK};
    if (off_tilefile_check(pipeline->tilefile, buffer->tile, stored, failure) || !*spare)
        return;
    const zero_result result =
        pipeline->codec->decode(coder, buffer->tile, stored, buffer->stored, *spare,
                                off_tilefile_tile_bytes(pipeline->tilefile, buffer->tile), &damage);
    buffer->memory = *spare;
    *spare = stored;
    if (result)
        zero_fail(failure, result, "%s: tile %zu, %zu bytes at offset %ju: %s: %s",
                  off_tilefile_file(pipeline->tilefile)->path, buffer->tile, buffer->stored,
                  (uintmax_t)off_tilefile_current_place(pipeline->tilefile, buffer->tile),
                  pipeline->codec->name, damage.message);
}

// Makes what is to be written of a tile: fewer pages, in the spare, which is the buffer's from then
// on, or the tile as it is.
static void seal_tile(const struct off_pipeline *pipeline, void *coder, struct off_buffer *buffer,
                      unsigned char **spare)
{
    const size_t bytes = off_tilefile_tile_bytes(pipeline->tilefile, buffer->tile);
    const size_t room =
        off_tilefile_room_bytes(pipeline->tilefile, buffer->tile) - off_tilefile_room_for(1);
    size_t stored = 0;
    if (*spare && room > 0)
        stored = pipeline->codec->encode(coder, buffer->tile, buffer->memory, bytes, *spare, room);
    assert(stored <= room);
    if (stored > 0) {
        memset(*spare + stored, 0, off_tilefile_room_for(stored) - stored);
        buffer->packed = *spare;
        *spare = NULL;
    }
    buffer->stored = stored > 0 ? stored : bytes;
    off_tilefile_note_write(pipeline->tilefile, buffer->tile,
                            stored > 0 ? buffer->packed : buffer->memory, buffer->stored);
}

// Whether a chore is to decode or to encode.
static bool wants_spare(const struct off_pipeline *pipeline, const struct off_buffer *buffer)
{
    return buffer->state == OFF_ARRIVED ? is_encoded(pipeline, buffer) : pipeline->encode;
}

// The chore that came up first, of those that there is a place for; NULL: there is none. After a
// failure they are the mover's to drop.
static struct off_buffer *first_chore(const struct off_pipeline *pipeline)
{
    struct off_buffer *buffer = pipeline->pass.failure.result ? NULL : pipeline->posted.first;
    while (buffer && pipeline->spare_count == 0 && wants_spare(pipeline, buffer))
        buffer = buffer->next;
    return buffer;
}

static void do_chore(struct off_pipeline *pipeline, void *coder, struct off_buffer *buffer)
{
    assert(buffer->state == OFF_ARRIVED || buffer->state == OFF_CHANGED);
    struct base_error failure = {.result = ZERO_OK};
    const bool opens = buffer->state == OFF_ARRIVED;
    unsigned char *spare =
        wants_spare(pipeline, buffer) ? pipeline->spares[--pipeline->spare_count] : NULL;
    off_pipeline_set_state(pipeline, buffer, opens ? OFF_OPENING : OFF_SEALING);
    pthread_mutex_unlock(&pipeline->mutex);
    if (opens) {
        open_tile(pipeline, coder, buffer, &spare, &failure);
    } else {
        seal_tile(pipeline, coder, buffer, &spare);
    }
    pthread_mutex_lock(&pipeline->mutex);
    take_back(pipeline, spare);
    if (failure.result) {
        off_pipeline_fail(pipeline, &failure);
        drop(pipeline, buffer);
    } else if (opens) {
        off_pipeline_set_state(pipeline, buffer, OFF_READY);
        pipeline->pass.busy--;
        pthread_cond_signal(&pipeline->news);
    } else {
        off_pipeline_set_state(pipeline, buffer, OFF_SEALED);
    }
}

// Whether a helper that has done a chore wakes the thread that reads and writes. That thread has
// nothing to do with an opened tile. It takes a sealed one when a helper makes room for it, unless
// encoders take their time. At a stop its queue may be gone.
static bool has_news(const struct off_pipeline *pipeline)
{
    if (pipeline->stop || (!pipeline->sealed.first && !pipeline->pass.failure.result))
        return false;
    return pipeline->encode || !first_chore(pipeline);
}

void *off_pipeline_helper(void *argument)
{
    const struct off_helper *helper = argument;
    struct off_pipeline *pipeline = helper->pipeline;
    pthread_mutex_lock(&pipeline->mutex);
    while (!pipeline->stop) {
        struct off_buffer *buffer = first_chore(pipeline);
        if (buffer) {
            do_chore(pipeline, helper->coder, buffer);
            if (has_news(pipeline))
                off_pipeline_wake(pipeline);
        } else {
            pthread_cond_wait(&pipeline->chores, &pipeline->mutex);
        }
    }
    pthread_mutex_unlock(&pipeline->mutex);
    return NULL;
}

/* ------------------------------------------------------------------ reads and writes */

// A buffer for another tile; NULL if there is none. It takes the kept buffer that came last: that
// memory is the most likely to be in caches. Tiles that were kept long before are the most likely
// to come up soon, whether passes alternate or begin anew.
static struct off_buffer *find_room(struct off_pipeline *pipeline)
{
    if (!pipeline->free.first && pipeline->kept.last)
        off_pipeline_free_buffer(pipeline, pipeline->kept.last);
    return pipeline->free.first;
}

static void start_transfer(struct off_pipeline *pipeline, struct off_buffer *buffer,
                           enum off_direction direction)
{
    struct base_error failure = {.result = ZERO_OK};
    off_pipeline_set_state(pipeline, buffer, direction == OFF_READ ? OFF_READING : OFF_WRITING);
    buffer->request = (struct off_tile_request){
        .tile = buffer->tile,
        .stored = buffer->stored,
        .request = {.direction = direction,
                    .memory = buffer->packed ? buffer->packed : buffer->memory,
                    .user = buffer},
    };
    pipeline->counts.contents[direction] +=
        off_tilefile_tile_bytes(pipeline->tilefile, buffer->tile);
    if (off_tile_queue_submit(&pipeline->queue, &buffer->request, pipeline->codec, &failure)) {
        off_pipeline_fail(pipeline, &failure);
        drop(pipeline, buffer);
    }
}

// Sees to it that the next tile of the pass is on its way. False: there is no room for it yet, or
// enough is being read. A buffer is then better left unused than waiting for its turn: it makes up
// for what is slow.
static bool fetch(struct off_pipeline *pipeline)
{
    assert(pipeline->pass.fetched < pipeline->pass.count);
    const size_t tile = pipeline->pass.order[pipeline->pass.fetched];
    const int place = pipeline->buffer_of[tile];
    if (place != OFF_NOWHERE) {
        assert(pipeline->buffers[place].state == OFF_KEPT && pipeline->buffers[place].tile == tile);
        off_pipeline_set_state(pipeline, &pipeline->buffers[place], OFF_READY);
        pipeline->counts.found++;
    } else {
        struct off_buffer *buffer =
            pipeline->pass.reading < pipeline->pass.most_reading ? find_room(pipeline) : NULL;
        if (!buffer)
            return false;
        buffer->tile = tile;
        pipeline->buffer_of[tile] = (int)(buffer - pipeline->buffers);
        off_pipeline_set_state(pipeline, buffer, OFF_READY);
        if (!pipeline->pass.anew && off_tilefile_has_contents(pipeline->tilefile, tile)) {
            pipeline->pass.busy++;
            buffer->stored = off_tilefile_stored_bytes(pipeline->tilefile, tile);
            start_transfer(pipeline, buffer, OFF_READ);
        }
    }
    pipeline->pass.fetched++;
    pthread_cond_signal(&pipeline->news);
    return true;
}

// Writes to places that nothing was written to yet, one behind the other, while there is no pass.
static void start_fills(struct off_pipeline *pipeline)
{
    struct base_error *failure = &pipeline->fills.failure;
    for (size_t i = 0; i < OFF_FILLS; i++) {
        struct off_request *request = &pipeline->fills.requests[i];
        const size_t tile = off_tilefile_unfilled(pipeline->tilefile, pipeline->fills.tile);
        if (tile == pipeline->tiles || failure->result)
            return;
        if (request->user)
            continue;
        if (tile != pipeline->fills.tile)
            pipeline->fills.at = 0;
        const size_t left = off_tilefile_room_bytes(pipeline->tilefile, tile) - pipeline->fills.at;
        pipeline->fills.tile = tile;
        *request = (struct off_request){
            .direction = OFF_WRITE,
            .file = pipeline->queue.file,
            .memory = pipeline->fills.nothing,
            .bytes = left < OFF_FILL_BYTES ? left : OFF_FILL_BYTES,
            .offset = off_tilefile_fill_place(pipeline->tilefile, tile) + pipeline->fills.at,
            .what = "a place for later",
            .user = pipeline,
        };
        if (off_io_submit(pipeline->queue.io, request, failure))
            return;
        pipeline->fills.under_way++;
        pipeline->fills.at += request->bytes;
        if (request->bytes == left)
            off_tilefile_filled(pipeline->tilefile, tile);
    }
}

static void finish_fill(struct off_pipeline *pipeline, struct off_request *request)
{
    assert(pipeline->fills.under_way > 0);
    request->user = NULL;
    pipeline->fills.under_way--;
    pipeline->counts.filled += request->result ? 0 : request->bytes;
    if (request->result && pipeline->pass.passing)
        off_pipeline_fail(pipeline, &request->error);
    else if (request->result)
        pipeline->fills.failure = request->error;
}

// Starts everything there is to start; after a failure gives up what has not begun. The last of the
// tiles that wait to be written goes first. A pass puts back at once all tiles that it finds in
// memory. In the other order each later tile would wait behind as many, and every tile would be
// read to memory that has left the caches.
static void start_work(struct off_pipeline *pipeline)
{
    while (pipeline->sealed.first && pipeline->fills.under_way == 0 &&
           !pipeline->pass.failure.result)
        start_transfer(pipeline, pipeline->sealed.last, OFF_WRITE);
    while (pipeline->pass.failure.result && pipeline->sealed.first)
        drop(pipeline, pipeline->sealed.first);
    while (pipeline->pass.failure.result && pipeline->posted.first)
        drop(pipeline, pipeline->posted.first);
    while (!pipeline->pass.failure.result && pipeline->pass.fetched < pipeline->pass.count &&
           fetch(pipeline))
        ;
    if (pipeline->fill && !pipeline->pass.passing)
        start_fills(pipeline);
}

static void finish_transfer(struct off_pipeline *pipeline, struct off_request *request)
{
    struct off_buffer *buffer = request->user;
    assert(pipeline->pass.busy > 0);
    assert(buffer->state == (request->direction == OFF_READ ? OFF_READING : OFF_WRITING));
    if (request->result) {
        off_pipeline_fail(pipeline, &request->error);
        drop(pipeline, buffer);
    } else if (request->direction == OFF_READ) {
        give_helpers(pipeline, buffer, OFF_ARRIVED);
    } else {
        take_back(pipeline, buffer->packed);
        buffer->packed = NULL;
        off_pipeline_set_state(pipeline, buffer, OFF_KEPT);
        pipeline->pass.busy--;
        pthread_cond_signal(&pipeline->news);
    }
}

// Takes a transfer that is done, or waits for one or for more to do. Gives up if none comes back.
static void take_transfer(struct off_pipeline *pipeline, bool waits)
{
    struct off_request *done;
    struct base_error failure = {.result = ZERO_OK};
    const zero_result result =
        off_tile_queue_take_unlocked(&pipeline->queue, &pipeline->mutex, waits, &done);
    pipeline->counts.io = off_io_counts(pipeline->queue.io);
    if (!result && done->user == pipeline) {
        finish_fill(pipeline, done);
    } else if (!result) {
        finish_transfer(pipeline, done);
    } else if (result == ZERO_E_TIMEOUT && pipeline->pass.failure.result != ZERO_E_TIMEOUT) {
        off_tile_queue_timed_out(&pipeline->queue, &pipeline->pass.failure, &failure);
        off_pipeline_fail(pipeline, &failure);
    }
}

void *off_pipeline_io_thread(void *argument)
{
    struct off_pipeline *pipeline = argument;
    struct off_buffer *chore;
    pthread_mutex_lock(&pipeline->mutex);
    while (!pipeline->stop) {
        pipeline->asked = false;
        start_work(pipeline);
        if (pipeline->helper_count == 0 && (chore = first_chore(pipeline))) {
            do_chore(pipeline, pipeline->helpers[0].coder, chore);
            if (off_io_pending(pipeline->queue.io) > 0)
                take_transfer(pipeline, false);
        } else if (off_io_pending(pipeline->queue.io) > 0) {
            take_transfer(pipeline, true);
        } else {
            while (!pipeline->asked)
                pthread_cond_wait(&pipeline->work, &pipeline->mutex);
        }
    }
    pthread_mutex_unlock(&pipeline->mutex);
    off_tile_queue_end(&pipeline->queue);
    return NULL;
}
