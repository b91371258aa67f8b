// The threads of a stream: one that reads and writes, and those that do its chores.
#include "offload/pipeline_parts.h"

#include <string.h>

/* ------------------------------------------------------------------ for all: mutex held */

void off_stream_ask(struct off_stream *stream)
{
    stream->asked = true;
    pthread_cond_signal(&stream->work);
    off_io_wake(stream->queue.io);
}

// What buffers of a state wait in; NULL: those are somebody's.
static struct off_buffer_list *list_of(struct off_stream *stream, enum off_buffer_state state)
{
    switch (state) {
    case OFF_FREE:
        return &stream->free;
    case OFF_KEPT:
        return &stream->kept;
    case OFF_ARRIVED:
    case OFF_CHANGED:
        return &stream->posted;
    case OFF_SEALED:
        return &stream->sealed;
    default:
        return NULL;
    }
}

static void take_out(struct off_buffer_list *list, struct off_buffer *buffer)
{
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
    buffer->next = NULL;
    buffer->previous = list->last;
    if (list->last)
        list->last->next = buffer;
    else
        list->first = buffer;
    list->last = buffer;
}

void off_stream_move(struct off_stream *stream, struct off_buffer *buffer,
                     enum off_buffer_state state)
{
    struct off_buffer_list *from = list_of(stream, buffer->state), *to = list_of(stream, state);
    if (from)
        take_out(from, buffer);
    if (to)
        append(to, buffer);
    stream->reading -= buffer->state == OFF_READING;
    stream->reading += state == OFF_READING;
    buffer->state = state;
}

// A place that is not used any more: a chore may be waiting for one.
static void take_back(struct off_stream *stream, unsigned char *spare)
{
    if (!spare)
        return;
    stream->spares[stream->spare_count++] = spare;
    pthread_cond_signal(&stream->chores);
}

void off_stream_let_go(struct off_stream *stream, struct off_buffer *buffer)
{
    take_back(stream, buffer->packed);
    buffer->packed = NULL;
    if (stream->buffer_of[buffer->tile] == buffer - stream->buffers)
        stream->buffer_of[buffer->tile] = OFF_NOWHERE;
    off_stream_move(stream, buffer, OFF_FREE);
}

// Nothing of the pass is done any more, but for what is under way. Not even that is waited for if
// nothing comes back: that is told whatever has failed before.
void off_stream_give_up(struct off_stream *stream, const struct base_error *failure)
{
    if (stream->failure.result == ZERO_OK || failure->result == ZERO_E_TIMEOUT)
        stream->failure = *failure;
    stream->asked = true; // for there is to be dropped what was passed by already
    pthread_cond_signal(&stream->news);
}

// A buffer that nobody is at has come to its end without its tile.
static void drop(struct off_stream *stream, struct off_buffer *buffer)
{
    off_stream_let_go(stream, buffer);
    stream->busy--;
    pthread_cond_signal(&stream->news);
}

void off_stream_post(struct off_stream *stream, struct off_buffer *buffer,
                     enum off_buffer_state chore)
{
    off_stream_move(stream, buffer, chore);
    pthread_cond_signal(&stream->chores);
}

/* ------------------------------------------------------------------ chores */

static bool is_encoded(const struct off_stream *stream, const struct off_buffer *buffer)
{
    return buffer->stored < off_tilefile_tile_bytes(stream->tilefile, buffer->tile);
}

// Makes a tile of what was read: what is decoded to the spare is the buffer's from then on, and
// what it was decoded from is the spare.
static void open_tile(const struct off_stream *stream, void *coder, struct off_buffer *buffer,
                      unsigned char **spare, struct base_error *failure)
{
    unsigned char *stored = buffer->memory;
    struct base_error damage = {.result = ZERO_OK};
    if (off_tilefile_check(stream->tilefile, buffer->tile, stored, failure) || !*spare)
        return;
    const zero_result result =
        stream->codec->decode(coder, buffer->tile, stored, buffer->stored, *spare,
                              off_tilefile_tile_bytes(stream->tilefile, buffer->tile), &damage);
    buffer->memory = *spare;
    *spare = stored;
    if (result)
        zero_fail(failure, result, "%s: tile %zu, %zu bytes at offset %ju: %s: %s",
                  off_tilefile_file(stream->tilefile)->path, buffer->tile, buffer->stored,
                  (uintmax_t)off_tilefile_place(stream->tilefile, buffer->tile),
                  stream->codec->name, damage.message);
}

// Makes what is to be written of a tile: fewer pages, in the spare, which is the buffer's from then
// on, or the tile as it is.
static void seal_tile(const struct off_stream *stream, void *coder, struct off_buffer *buffer,
                      unsigned char **spare)
{
    const size_t bytes = off_tilefile_tile_bytes(stream->tilefile, buffer->tile);
    const size_t room =
        off_tilefile_room(stream->tilefile, buffer->tile) - off_tilefile_room_for(1);
    size_t stored = 0;
    if (*spare && room > 0)
        stored = stream->codec->encode(coder, buffer->tile, buffer->memory, bytes, *spare, room);
    if (stored > 0) {
        memset(*spare + stored, 0, off_tilefile_room_for(stored) - stored);
        buffer->packed = *spare;
        *spare = NULL;
    }
    buffer->stored = stored > 0 ? stored : bytes;
    off_tilefile_wrote(stream->tilefile, buffer->tile, stored > 0 ? buffer->packed : buffer->memory,
                       buffer->stored);
}

// Whether a chore is to decode or to encode.
static bool wants_spare(const struct off_stream *stream, const struct off_buffer *buffer)
{
    return buffer->state == OFF_ARRIVED ? is_encoded(stream, buffer) : stream->encode;
}

// The chore that came up first, of those that there is a place for; NULL: there is none. After a
// failure they are the mover's to drop.
static struct off_buffer *first_chore(const struct off_stream *stream)
{
    struct off_buffer *buffer = stream->failure.result ? NULL : stream->posted.first;
    while (buffer && stream->spare_count == 0 && wants_spare(stream, buffer))
        buffer = buffer->next;
    return buffer;
}

static void do_chore(struct off_stream *stream, void *coder, struct off_buffer *buffer)
{
    struct base_error failure = {.result = ZERO_OK};
    const bool opens = buffer->state == OFF_ARRIVED;
    unsigned char *spare =
        wants_spare(stream, buffer) ? stream->spares[--stream->spare_count] : NULL;
    off_stream_move(stream, buffer, opens ? OFF_OPENING : OFF_SEALING);
    pthread_mutex_unlock(&stream->mutex);
    if (opens) {
        open_tile(stream, coder, buffer, &spare, &failure);
        if (!failure.result)
            off_stream_copy_in(stream, buffer, &failure);
    } else if (!off_stream_await_copy(stream, buffer, &failure)) {
        seal_tile(stream, coder, buffer, &spare);
    }
    pthread_mutex_lock(&stream->mutex);
    take_back(stream, spare);
    if (failure.result) {
        off_stream_give_up(stream, &failure);
        drop(stream, buffer);
    } else if (opens) {
        off_stream_move(stream, buffer, OFF_READY);
        stream->busy--;
        pthread_cond_signal(&stream->news);
    } else {
        off_stream_move(stream, buffer, OFF_SEALED);
    }
}

// Whether a helper that has done a chore wakes the thread that reads and writes: that has nothing
// to do of a tile that was opened, and of one that was sealed not until its helper makes room for
// it, unless encoders take their time. At a stop its queue may be gone.
static bool has_news(const struct off_stream *stream)
{
    if (stream->stop || (!stream->sealed.first && !stream->failure.result))
        return false;
    return stream->encode || !first_chore(stream);
}

void *off_stream_helper(void *argument)
{
    const struct off_helper *helper = argument;
    struct off_stream *stream = helper->stream;
    off_stream_enter_device(stream);
    pthread_mutex_lock(&stream->mutex);
    while (!stream->stop) {
        struct off_buffer *buffer = first_chore(stream);
        if (buffer) {
            do_chore(stream, helper->coder, buffer);
            if (has_news(stream))
                off_stream_ask(stream);
        } else {
            pthread_cond_wait(&stream->chores, &stream->mutex);
        }
    }
    pthread_mutex_unlock(&stream->mutex);
    return NULL;
}

/* ------------------------------------------------------------------ reads and writes */

// A buffer for another tile; NULL if there is none. Of those that are kept it is the last: its
// memory is the most likely one to be in caches, and what was kept long before is the most likely
// one to come up soon, in passes to and fro as in passes that begin anew.
static struct off_buffer *find_room(struct off_stream *stream)
{
    if (!stream->free.first && stream->kept.last)
        off_stream_let_go(stream, stream->kept.last);
    return stream->free.first;
}

static void start_transfer(struct off_stream *stream, struct off_buffer *buffer,
                           enum off_direction direction)
{
    struct base_error failure = {.result = ZERO_OK};
    off_stream_move(stream, buffer, direction == OFF_READ ? OFF_READING : OFF_WRITING);
    buffer->request = (struct off_tile_request){
        .tile = buffer->tile,
        .stored = buffer->stored,
        .request = {.direction = direction,
                    .memory = buffer->packed ? buffer->packed : buffer->memory,
                    .user = buffer},
    };
    stream->counts.contents[direction] += off_tilefile_tile_bytes(stream->tilefile, buffer->tile);
    // What is read to was copied from when another tile was handed out: long ago, unless that one
    // was put back unchanged.
    if (off_stream_await_copy(stream, buffer, &failure) ||
        off_tile_queue_submit(&stream->queue, &buffer->request, stream->codec, &failure)) {
        off_stream_give_up(stream, &failure);
        drop(stream, buffer);
    }
}

// Sees to it that the next tile of the pass is on its way; false: there is no room for it yet, or
// enough is being read: buffers that would wait for their turn there are better ones that wait,
// unused, to make up for what is slow.
static bool fetch(struct off_stream *stream)
{
    const size_t tile = stream->order[stream->fetched];
    const int place = stream->buffer_of[tile];
    if (place != OFF_NOWHERE) {
        off_stream_move(stream, &stream->buffers[place], OFF_READY);
        stream->counts.found++;
    } else {
        struct off_buffer *buffer =
            stream->reading < stream->most_reading ? find_room(stream) : NULL;
        if (!buffer)
            return false;
        buffer->tile = tile;
        stream->buffer_of[tile] = (int)(buffer - stream->buffers);
        off_stream_move(stream, buffer, OFF_READY);
        if (!stream->anew && off_tilefile_has(stream->tilefile, tile)) {
            stream->busy++;
            buffer->stored = off_tilefile_stored(stream->tilefile, tile);
            start_transfer(stream, buffer, OFF_READ);
        }
    }
    stream->fetched++;
    pthread_cond_signal(&stream->news);
    return true;
}

// Writes to places that nothing was written to yet, one behind the other, while there is no pass.
static void start_fills(struct off_stream *stream)
{
    struct base_error *failure = &stream->next_failure;
    for (size_t i = 0; i < OFF_FILLS; i++) {
        struct off_request *request = &stream->fills[i];
        const size_t tile = off_tilefile_unfilled(stream->tilefile, stream->fill_tile);
        if (tile == stream->tiles || failure->result)
            return;
        if (request->user)
            continue;
        if (tile != stream->fill_tile)
            stream->fill_at = 0;
        const size_t left = off_tilefile_room(stream->tilefile, tile) - stream->fill_at;
        stream->fill_tile = tile;
        *request = (struct off_request){
            .direction = OFF_WRITE,
            .file = stream->queue.file,
            .memory = stream->nothing,
            .bytes = left < OFF_FILL_BYTES ? left : OFF_FILL_BYTES,
            .offset = off_tilefile_fill_place(stream->tilefile, tile) + stream->fill_at,
            .what = "a place for later",
            .user = stream,
        };
        if (off_io_submit(stream->queue.io, request, failure))
            return;
        stream->fills_under_way++;
        stream->fill_at += request->bytes;
        if (request->bytes == left)
            off_tilefile_filled(stream->tilefile, tile);
    }
}

static void finish_fill(struct off_stream *stream, struct off_request *request)
{
    request->user = NULL;
    stream->fills_under_way--;
    stream->counts.filled += request->result ? 0 : request->bytes;
    if (request->result && stream->passing)
        off_stream_give_up(stream, &request->error);
    else if (request->result)
        stream->next_failure = request->error;
}

// Starts everything there is to start; after a failure gives up what has not begun. Of tiles that
// wait to be written the last one goes first: those that a pass finds in memory are put back all at
// once, and the others would wait behind as many all through it, so that every tile is read to
// memory that has left the caches.
static void start_work(struct off_stream *stream)
{
    while (stream->sealed.first && stream->fills_under_way == 0 && !stream->failure.result)
        start_transfer(stream, stream->sealed.last, OFF_WRITE);
    while (stream->failure.result && stream->sealed.first)
        drop(stream, stream->sealed.first);
    while (stream->failure.result && stream->posted.first)
        drop(stream, stream->posted.first);
    while (!stream->failure.result && stream->fetched < stream->count && fetch(stream))
        ;
    if (stream->fill && !stream->passing)
        start_fills(stream);
}

static void finish_transfer(struct off_stream *stream, struct off_request *request)
{
    struct off_buffer *buffer = request->user;
    if (request->result) {
        off_stream_give_up(stream, &request->error);
        drop(stream, buffer);
    } else if (request->direction == OFF_READ) {
        off_stream_post(stream, buffer, OFF_ARRIVED);
    } else {
        take_back(stream, buffer->packed);
        buffer->packed = NULL;
        off_stream_move(stream, buffer, OFF_KEPT);
        stream->busy--;
        pthread_cond_signal(&stream->news);
    }
}

// Takes a transfer that is done, or waits for one or for more to do. Gives up if none comes back.
static void take_transfer(struct off_stream *stream, bool waits)
{
    struct off_request *done;
    struct base_error failure = {.result = ZERO_OK};
    const zero_result result =
        off_tile_queue_take_unlocked(&stream->queue, &stream->mutex, waits, &done);
    stream->counts.io = off_io_counts(stream->queue.io);
    if (!result && done->user == stream) {
        finish_fill(stream, done);
    } else if (!result) {
        finish_transfer(stream, done);
    } else if (result == ZERO_E_TIMEOUT && stream->failure.result != ZERO_E_TIMEOUT) {
        off_tile_queue_timed_out(&stream->queue, &stream->failure, &failure);
        off_stream_give_up(stream, &failure);
    }
}

void *off_stream_mover(void *argument)
{
    struct off_stream *stream = argument;
    struct off_buffer *chore;
    off_stream_enter_device(stream);
    pthread_mutex_lock(&stream->mutex);
    while (!stream->stop) {
        stream->asked = false;
        start_work(stream);
        if (stream->helper_count == 0 && (chore = first_chore(stream))) {
            do_chore(stream, stream->helpers[0].coder, chore);
            if (off_io_pending(stream->queue.io) > 0)
                take_transfer(stream, false);
        } else if (off_io_pending(stream->queue.io) > 0) {
            take_transfer(stream, true);
        } else {
            while (!stream->asked)
                pthread_cond_wait(&stream->work, &stream->mutex);
        }
    }
    pthread_mutex_unlock(&stream->mutex);
    off_tile_queue_end(&stream->queue);
    return NULL;
}
