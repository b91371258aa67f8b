#include "offload/stream.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/thread.h"

#include <stdio.h>

enum { NOWHERE = -1, TILE_NAME_BYTES = 32 };

enum buffer_state {
    FREE,
    READING,
    READY, // for off_stream_next()
    OUT,   // with the caller
    DIRTY, // to be written
    WRITING,
    KEPT, // with the tile's newest contents
};

struct buffer {
    enum buffer_state state;
    unsigned char *memory;
    size_t tile;
    uint64_t used; // when the caller had it last: counts those
    struct off_request request;
    char name[TILE_NAME_BYTES];
};

struct off_stream {
    struct off_slots *slots;
    struct off_io *io; // the thread's
    int file;
    struct off_pages pages;
    uint64_t timeout_ns;
    size_t tiles, buffer_count;
    pthread_t thread;
    bool has_thread;

    pthread_mutex_t mutex; // for all that follows
    pthread_cond_t work, news;
    struct buffer *buffers;
    int *buffer_of; // each tile's, NOWHERE if none
    const size_t *order;
    size_t count, fetched, taken; // of the pass: tiles, those that have a buffer, those given out
    size_t busy;                  // buffers being read or to be written
    bool anew;                    // nothing is read in this pass
    uint64_t clock;
    bool asked, stop;          // the thread: to look what there is to do, to end
    struct base_error failure; // the first of the pass
    struct off_stream_counts counts;
};

size_t off_stream_bytes(size_t room, size_t buffers)
{
    const size_t page = (size_t)2 << 20;
    return (room + page - 1) / page * page * buffers;
}

/* ------------------------------------------------------------------ the thread: mutex held */

// Nothing of the pass is done any more, but for what is under way.
static void give_up(struct off_stream *stream, const struct base_error *failure)
{
    if (stream->failure.result == ZERO_OK)
        stream->failure = *failure;
    pthread_cond_signal(&stream->news);
}

static void let_go(struct off_stream *stream, struct buffer *buffer)
{
    if (stream->buffer_of[buffer->tile] == buffer - stream->buffers)
        stream->buffer_of[buffer->tile] = NOWHERE;
    buffer->state = FREE;
}

// A buffer for another tile: a free one, or the kept one that was used before the others; NULL if
// there is none.
static struct buffer *find_room(struct off_stream *stream)
{
    struct buffer *oldest = NULL;
    for (size_t i = 0; i < stream->buffer_count; i++) {
        struct buffer *buffer = &stream->buffers[i];
        if (buffer->state == FREE)
            return buffer;
        if (buffer->state == KEPT && (!oldest || buffer->used < oldest->used))
            oldest = buffer;
    }
    if (oldest)
        let_go(stream, oldest);
    return oldest;
}

static void start_transfer(struct off_stream *stream, struct buffer *buffer,
                           enum off_direction direction)
{
    struct base_error failure = {.result = ZERO_OK};
    const bool reads = direction == OFF_READ;
    const size_t tile = buffer->tile;
    snprintf(buffer->name, sizeof buffer->name, "tile %zu", tile);
    buffer->request = (struct off_request){
        .direction = direction,
        .file = stream->file,
        .memory = buffer->memory,
        .bytes = off_slots_room(stream->slots, tile),
        .offset = reads ? off_slots_place(stream->slots, tile)
                        : off_slots_next_place(stream->slots, tile),
        .what = buffer->name,
        .user = buffer,
    };
    buffer->state = reads ? READING : WRITING;
    if (off_io_submit(stream->io, &buffer->request, &failure)) {
        give_up(stream, &failure);
        let_go(stream, buffer);
        stream->busy--;
    }
}

// Sees to it that the next tile of the pass is on its way; false: there is no room for it yet.
static bool fetch(struct off_stream *stream)
{
    const size_t tile = stream->order[stream->fetched];
    const int place = stream->buffer_of[tile];
    if (place != NOWHERE) {
        stream->buffers[place].state = READY;
        stream->counts.found++;
    } else {
        struct buffer *buffer = find_room(stream);
        if (!buffer)
            return false;
        buffer->tile = tile;
        stream->buffer_of[tile] = (int)(buffer - stream->buffers);
        buffer->state = READY;
        if (!stream->anew && off_slots_has(stream->slots, tile)) {
            stream->busy++;
            start_transfer(stream, buffer, OFF_READ);
        }
    }
    stream->fetched++;
    pthread_cond_signal(&stream->news);
    return true;
}

static void write_back(struct off_stream *stream, struct buffer *buffer)
{
    pthread_mutex_unlock(&stream->mutex);
    off_slots_wrote(stream->slots, buffer->tile, buffer->memory);
    pthread_mutex_lock(&stream->mutex);
    start_transfer(stream, buffer, OFF_WRITE);
}

// Starts everything there is to start.
static void start_work(struct off_stream *stream)
{
    for (size_t i = 0; i < stream->buffer_count; i++) {
        struct buffer *buffer = &stream->buffers[i];
        if (buffer->state != DIRTY)
            continue;
        if (stream->failure.result) {
            let_go(stream, buffer);
            stream->busy--;
            pthread_cond_signal(&stream->news);
        } else {
            write_back(stream, buffer);
        }
    }
    while (!stream->failure.result && stream->fetched < stream->count && fetch(stream))
        ;
}

static void finish_transfer(struct off_stream *stream, struct off_request *request)
{
    struct buffer *buffer = request->user;
    struct base_error failure = request->error;
    if (!failure.result && request->direction == OFF_READ) {
        pthread_mutex_unlock(&stream->mutex);
        off_slots_check(stream->slots, buffer->tile, buffer->memory, &failure);
        pthread_mutex_lock(&stream->mutex);
    }
    stream->busy--;
    if (failure.result) {
        give_up(stream, &failure);
        let_go(stream, buffer);
    } else if (request->direction == OFF_READ) {
        buffer->state = READY;
    } else {
        buffer->state = KEPT;
    }
    pthread_cond_signal(&stream->news);
}

// Waits for a transfer, or for more to do.
static void wait_for_transfers(struct off_stream *stream)
{
    struct off_request *done;
    const uint64_t deadline = base_clock_ns() + stream->timeout_ns;
    pthread_mutex_unlock(&stream->mutex);
    const zero_result result = off_io_wait(stream->io, deadline, &done);
    pthread_mutex_lock(&stream->mutex);
    stream->counts.io = off_io_counts(stream->io);
    if (!result) {
        finish_transfer(stream, done);
    } else if (base_clock_ns() >= deadline) {
        struct base_error failure = {.result = ZERO_OK};
        zero_fail(&failure, ZERO_E_TIMEOUT,
                  "%s: nothing was read or written for %.0f s, with %zu under way",
                  off_slots_file(stream->slots)->path, (double)stream->timeout_ns * 1e-9,
                  off_io_pending(stream->io));
        give_up(stream, &failure);
    }
}

static void *thread_main(void *argument)
{
    struct off_stream *stream = argument;
    pthread_mutex_lock(&stream->mutex);
    while (!stream->stop) {
        stream->asked = false;
        start_work(stream);
        if (off_io_pending(stream->io) > 0)
            wait_for_transfers(stream);
        else
            while (!stream->asked)
                pthread_cond_wait(&stream->work, &stream->mutex);
    }
    pthread_mutex_unlock(&stream->mutex);
    off_io_destroy(stream->io);
    return NULL;
}

/* ------------------------------------------------------------------ the caller */

// Has the thread look again; mutex held.
static void ask(struct off_stream *stream)
{
    stream->asked = true;
    pthread_cond_signal(&stream->work);
    off_io_wake(stream->io);
}

static void begin(struct off_stream *stream, const size_t *order, size_t count, bool anew)
{
    pthread_mutex_lock(&stream->mutex);
    stream->order = order;
    stream->count = count;
    stream->anew = anew;
    stream->fetched = stream->taken = 0;
    base_error_clear(&stream->failure);
    ask(stream);
    pthread_mutex_unlock(&stream->mutex);
}

void off_stream_begin(struct off_stream *stream, const size_t *order, size_t count)
{
    begin(stream, order, count, false);
}

void off_stream_begin_anew(struct off_stream *stream, const size_t *order, size_t count)
{
    begin(stream, order, count, true);
}

// Waits for news while `waits` says so, and counts the time; mutex held.
static void wait_while(struct off_stream *stream, bool (*waits)(const struct off_stream *stream))
{
    if (!waits(stream))
        return;
    const uint64_t began = base_clock_ns();
    while (waits(stream))
        pthread_cond_wait(&stream->news, &stream->mutex);
    stream->counts.waited_s += (double)(base_clock_ns() - began) * 1e-9;
}

static bool next_is_missing(const struct off_stream *stream)
{
    if (stream->failure.result)
        return false;
    if (stream->taken == stream->fetched)
        return true;
    return stream->buffers[stream->buffer_of[stream->order[stream->taken]]].state == READING;
}

zero_result off_stream_next(struct off_stream *stream, struct off_tile *tile,
                            struct base_error *error)
{
    zero_result result = ZERO_NOT_FOUND;
    pthread_mutex_lock(&stream->mutex);
    if (stream->taken < stream->count) {
        wait_while(stream, next_is_missing);
        result = stream->failure.result;
        if (result) {
            zero_fail(error, result, "%s", stream->failure.message);
        } else {
            const size_t number = stream->order[stream->taken++];
            struct buffer *buffer = &stream->buffers[stream->buffer_of[number]];
            buffer->state = OUT;
            buffer->used = ++stream->clock;
            *tile = (struct off_tile){.number = number, .memory = buffer->memory};
        }
    }
    pthread_mutex_unlock(&stream->mutex);
    return result;
}

void off_stream_put(struct off_stream *stream, const struct off_tile *tile, bool changed)
{
    pthread_mutex_lock(&stream->mutex);
    struct buffer *buffer = &stream->buffers[stream->buffer_of[tile->number]];
    buffer->state = changed ? DIRTY : KEPT;
    stream->busy += changed;
    ask(stream);
    pthread_mutex_unlock(&stream->mutex);
}

static bool transfers_are_under_way(const struct off_stream *stream)
{
    return stream->busy > 0 && stream->failure.result != ZERO_E_TIMEOUT;
}

// What was read for nobody is kept, if it is worth something.
static void settle(struct off_stream *stream, bool keep)
{
    for (size_t i = 0; i < stream->buffer_count; i++) {
        struct buffer *buffer = &stream->buffers[i];
        if (buffer->state == READING || buffer->state == WRITING)
            continue;
        if (keep && buffer->state == READY && !stream->anew &&
            off_slots_has(stream->slots, buffer->tile))
            buffer->state = KEPT;
        else if (buffer->state != FREE && !(keep && buffer->state == KEPT))
            let_go(stream, buffer);
    }
}

zero_result off_stream_end(struct off_stream *stream, struct base_error *error)
{
    pthread_mutex_lock(&stream->mutex);
    stream->count = stream->fetched;
    wait_while(stream, transfers_are_under_way);
    const zero_result result = stream->failure.result;
    if (result)
        zero_fail(error, result, "%s", stream->failure.message);
    settle(stream, !result);
    stream->count = stream->fetched = stream->taken = 0;
    pthread_mutex_unlock(&stream->mutex);
    return result;
}

void off_stream_forget(struct off_stream *stream)
{
    pthread_mutex_lock(&stream->mutex);
    settle(stream, false);
    pthread_mutex_unlock(&stream->mutex);
}

struct off_stream_counts off_stream_counts(const struct off_stream *stream)
{
    struct off_stream *unlocked = (struct off_stream *)(uintptr_t)stream;
    pthread_mutex_lock(&unlocked->mutex);
    const struct off_stream_counts counts = stream->counts;
    pthread_mutex_unlock(&unlocked->mutex);
    return counts;
}

const struct off_pages *off_stream_pages(const struct off_stream *stream)
{
    return &stream->pages;
}

/* ------------------------------------------------------------------ life */

void off_stream_destroy(struct off_stream *stream)
{
    if (!stream)
        return;
    if (stream->has_thread) {
        pthread_mutex_lock(&stream->mutex);
        stream->stop = true;
        ask(stream);
        pthread_mutex_unlock(&stream->mutex);
        pthread_join(stream->thread, NULL);
    } else {
        off_io_destroy(stream->io);
    }
    off_pages_destroy(&stream->pages);
    pthread_cond_destroy(&stream->work);
    pthread_cond_destroy(&stream->news);
    pthread_mutex_destroy(&stream->mutex);
    base_free(stream->buffers);
    base_free(stream->buffer_of);
    base_free(stream);
}

static zero_result make_buffers(struct off_stream *stream, struct base_error *error)
{
    size_t room = 0;
    for (size_t i = 0; i < stream->tiles; i++)
        if (off_slots_room(stream->slots, i) > room)
            room = off_slots_room(stream->slots, i);
    stream->buffers = base_calloc(stream->buffer_count, sizeof *stream->buffers);
    stream->buffer_of = base_calloc(stream->tiles, sizeof *stream->buffer_of);
    if (!stream->buffers || !stream->buffer_of)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for a stream of %zu tiles", stream->tiles);
    const size_t bytes = off_stream_bytes(room, 1);
    const zero_result result =
        off_pages_create(&stream->pages, bytes * stream->buffer_count, error);
    for (size_t i = 0; i < stream->buffer_count && !result; i++)
        stream->buffers[i].memory = (unsigned char *)stream->pages.memory + i * bytes;
    for (size_t i = 0; i < stream->tiles; i++)
        stream->buffer_of[i] = NOWHERE;
    return result;
}

static zero_result make_queue(struct off_stream *stream, const struct off_stream_config *config,
                              struct base_error *error)
{
    const struct off_range range = {.memory = stream->pages.memory, .bytes = stream->pages.bytes};
    const struct off_io_config wanted = {
        .engine = config->engine,
        .transfer_bytes = config->transfer_bytes,
        .credits = {config->credits[OFF_READ], config->credits[OFF_WRITE]},
        .ranges = &range,
        .range_count = 1,
    };
    const struct off_file *file = off_slots_file(stream->slots);
    const zero_result result = off_io_create(&stream->io, &wanted, error);
    return result ? result
                  : off_io_add_file(stream->io, file->fd, file->unit, file->path, &stream->file,
                                    error);
}

static zero_result start_thread(struct off_stream *stream, struct base_error *error)
{
    const int failed = base_thread_start(&stream->thread, "thread", 0, thread_main, stream);
    stream->has_thread = failed == 0;
    return failed == 0 ? ZERO_OK
                       : zero_fail_errno(error, ZERO_E_NOMEM, failed,
                                         "cannot start the thread that reads and writes tiles");
}

zero_result off_stream_create(struct off_stream **out, const struct off_stream_config *config,
                              struct base_error *error)
{
    *out = NULL;
    if (config->buffers < 2)
        return zero_fail(error, ZERO_E_INVALID, "%zu tiles in memory; at least 2 are needed",
                         config->buffers);
    struct off_stream *stream = base_calloc(1, sizeof *stream);
    if (!stream)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for a stream");
    stream->slots = config->slots;
    stream->tiles = config->tiles;
    stream->buffer_count = config->buffers;
    stream->timeout_ns = (uint64_t)(config->timeout_s * 1e9);
    pthread_mutex_init(&stream->mutex, NULL);
    pthread_cond_init(&stream->work, NULL);
    pthread_cond_init(&stream->news, NULL);
    zero_result result = make_buffers(stream, error);
    if (!result)
        result = make_queue(stream, config, error);
    if (!result)
        result = start_thread(stream, error);
    if (result) {
        off_stream_destroy(stream);
        return result;
    }
    *out = stream;
    return ZERO_OK;
}
