#include "base/arena.h"
#include "base/clock.h"
#include "base/thread.h"
#include "offload/pipeline_parts.h"

static void begin(struct off_stream *stream, const size_t *order, size_t count, bool anew)
{
    pthread_mutex_lock(&stream->mutex);
    stream->order = order;
    stream->count = count;
    stream->anew = anew;
    stream->fetched = stream->taken = 0;
    stream->passing = true;
    stream->failure = stream->next_failure;
    base_error_clear(&stream->next_failure);
    off_stream_ask(stream);
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

// The thread that reads and writes does not come back from there: nobody else would tell.
static void give_up_engine(struct off_stream *stream)
{
    const struct off_request *one = NULL;
    struct base_error failure = {.result = ZERO_OK};
    for (size_t i = 0; i < stream->buffer_count && !one; i++)
        if (stream->buffers[i].state == OFF_READING || stream->buffers[i].state == OFF_WRITING)
            one = &stream->buffers[i].request.request;
    off_tile_queue_stuck(&stream->queue, one, &stream->failure, &failure);
    off_stream_give_up(stream, &failure);
}

// Waits for news while `waits` says so, and counts the time; mutex held.
static void wait_while(struct off_stream *stream, bool (*waits)(const struct off_stream *stream))
{
    if (!waits(stream))
        return;
    const uint64_t began = base_clock_ns();
    struct off_watch watch = {.takes = 0};
    while (waits(stream))
        if (off_tile_queue_await(&stream->queue, &watch, &stream->news, &stream->mutex))
            give_up_engine(stream);
    stream->counts.waited_s += (double)(base_clock_ns() - began) * 1e-9;
}

static bool next_is_missing(const struct off_stream *stream)
{
    if (stream->failure.result)
        return false;
    if (stream->taken == stream->fetched)
        return true;
    return stream->buffers[stream->buffer_of[stream->order[stream->taken]]].state != OFF_READY;
}

static void hand_out(struct off_stream *stream, struct off_tile *tile)
{
    struct base_error failure = {.result = ZERO_OK};
    const size_t number = stream->order[stream->taken++];
    struct off_buffer *buffer = &stream->buffers[stream->buffer_of[number]];
    off_stream_move(stream, buffer, OFF_OUT);
    *tile = (struct off_tile){.number = number,
                              .memory = buffer->there ? buffer->there : buffer->memory};
    if (off_stream_lend(stream, buffer, &failure)) {
        off_stream_give_up(stream, &failure);
        off_stream_ask(stream);
    }
}

zero_result off_stream_next(struct off_stream *stream, struct off_tile *tile,
                            struct base_error *error)
{
    zero_result result = ZERO_NOT_FOUND;
    pthread_mutex_lock(&stream->mutex);
    if (stream->taken < stream->count) {
        wait_while(stream, next_is_missing);
        if (!stream->failure.result)
            hand_out(stream, tile);
        result = stream->failure.result;
        if (result)
            zero_fail(error, result, "%s", stream->failure.message);
    }
    pthread_mutex_unlock(&stream->mutex);
    return result;
}

bool off_stream_ready(struct off_stream *stream)
{
    pthread_mutex_lock(&stream->mutex);
    const bool ready = stream->taken == stream->count || !next_is_missing(stream);
    pthread_mutex_unlock(&stream->mutex);
    return ready;
}

// Whether a tile that is given back waits for a helper that something else will wake soon, as it is
// being read. To wake one takes the caller's time, and often his processor: that matters if the
// next tile is there for him. Encoding takes more than that.
static bool can_wait(const struct off_stream *stream)
{
    if (stream->encode || stream->buffer_count < OFF_ENOUGH_BUFFERS)
        return false;
    return stream->reading > 0 && stream->taken < stream->count && !next_is_missing(stream);
}

void off_stream_put(struct off_stream *stream, const struct off_tile *tile, bool changed)
{
    pthread_mutex_lock(&stream->mutex);
    struct off_buffer *buffer = &stream->buffers[stream->buffer_of[tile->number]];
    struct base_error failure = {.result = ZERO_OK};
    if (off_stream_copy_out(stream, buffer, changed, &failure))
        off_stream_give_up(stream, &failure);
    if (changed) {
        stream->busy++;
        off_stream_move(stream, buffer, OFF_CHANGED);
        if (!can_wait(stream))
            pthread_cond_signal(&stream->chores);
    } else {
        off_stream_move(stream, buffer, OFF_KEPT);
    }
    if (!changed || stream->helper_count == 0 || stream->failure.result)
        off_stream_ask(stream);
    pthread_mutex_unlock(&stream->mutex);
}

static bool transfers_are_under_way(const struct off_stream *stream)
{
    return stream->busy > 0 && stream->failure.result != ZERO_E_TIMEOUT;
}

// Whether a thread of the stream is at a buffer: it is left to it.
static bool is_used(const struct off_buffer *buffer)
{
    return buffer->state == OFF_READING || buffer->state == OFF_OPENING ||
           buffer->state == OFF_SEALING || buffer->state == OFF_WRITING;
}

// What was read for nobody is kept, if it is worth something.
static void settle(struct off_stream *stream, bool keep)
{
    for (size_t i = 0; i < stream->buffer_count; i++) {
        struct off_buffer *buffer = &stream->buffers[i];
        if (is_used(buffer))
            continue;
        if (keep && buffer->state == OFF_READY && !stream->anew &&
            off_tilefile_has(stream->tilefile, buffer->tile))
            off_stream_move(stream, buffer, OFF_KEPT);
        else if (buffer->state != OFF_FREE && !(keep && buffer->state == OFF_KEPT))
            off_stream_let_go(stream, buffer);
    }
}

zero_result off_stream_end(struct off_stream *stream, struct base_error *error)
{
    pthread_mutex_lock(&stream->mutex);
    stream->count = stream->fetched;
    wait_while(stream, transfers_are_under_way);
    const zero_result result = stream->failure.result;
    if (result) {
        zero_fail(error, result, "%s", stream->failure.message);
        off_stream_await_device(stream); // tiles that are out, too, have their buffers
    }
    // What is still under way has its buffers: no pass may take them for tiles.
    if (result == ZERO_E_TIMEOUT)
        stream->next_failure = stream->failure;
    settle(stream, !result);
    stream->count = stream->fetched = stream->taken = 0;
    stream->passing = false;
    if (stream->fill)
        off_stream_ask(stream);
    pthread_mutex_unlock(&stream->mutex);
    return result;
}

void off_stream_encode(struct off_stream *stream, bool encode)
{
    pthread_mutex_lock(&stream->mutex);
    stream->encode = encode;
    pthread_mutex_unlock(&stream->mutex);
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
    return &stream->queue.pages;
}

const struct off_io_use *off_stream_io(const struct off_stream *stream)
{
    return off_io_use(stream->queue.io);
}

/* ------------------------------------------------------------------ life */

static void stop_threads(struct off_stream *stream)
{
    pthread_mutex_lock(&stream->mutex);
    stream->stop = true;
    pthread_cond_broadcast(&stream->chores);
    if (stream->has_thread)
        off_stream_ask(stream);
    pthread_mutex_unlock(&stream->mutex);
    for (unsigned i = 0; i < stream->helper_count && stream->helpers; i++)
        if (stream->helpers[i].started)
            pthread_join(stream->helpers[i].thread, NULL);
    if (stream->has_thread)
        pthread_join(stream->thread, NULL); // it has destroyed the queue, which was its own
    else
        off_tile_queue_end(&stream->queue);
}

static unsigned coder_count(unsigned helpers)
{
    return helpers > 0 ? helpers : 1;
}

void off_stream_destroy(struct off_stream *stream)
{
    if (!stream)
        return;
    stop_threads(stream);
    for (unsigned i = 0; i < coder_count(stream->helper_count) && stream->helpers; i++)
        if (stream->codec)
            stream->codec->destroy(stream->helpers[i].coder);
    off_stream_end_copies(stream);
    off_tile_queue_destroy(&stream->queue);
    pthread_cond_destroy(&stream->work);
    pthread_cond_destroy(&stream->chores);
    pthread_cond_destroy(&stream->news);
    pthread_mutex_destroy(&stream->mutex);
    base_free(stream->helpers);
    base_free(stream->buffers);
    base_free(stream->spares);
    base_free(stream->buffer_of);
    base_free(stream);
}

// Tiles that are written at a time, of which large ones are several transfers.
static size_t most_writing(const struct off_stream_config *config, size_t tile_bytes)
{
    const size_t transfer = config->transfer_bytes ? config->transfer_bytes : OFF_USUAL_TRANSFER;
    const size_t of_tile = tile_bytes > transfer ? (tile_bytes + transfer - 1) / transfer : 1;
    return (config->credits[OFF_WRITE] + of_tile - 1) / of_tile;
}

// Places beside the buffers': whoever encodes or decodes needs one to do it to, of each buffer one
// at most.
static size_t spare_count(const struct off_stream_config *config, size_t tile_bytes)
{
    const size_t encoded = config->encode ? OFF_SPARES + most_writing(config, tile_bytes) : 0;
    const size_t most = coder_count(config->helpers) + encoded;
    if (!config->codec)
        return 0;
    return most < config->buffers ? most : config->buffers;
}

static struct off_tile_queue_config queue_config(const struct off_stream_config *config,
                                                 size_t spares)
{
    return (struct off_tile_queue_config){
        .engine = config->engine,
        .tilefile = config->tilefile,
        .tiles = config->tiles,
        .places = config->buffers + spares,
        .more_bytes = config->fill ? OFF_FILL_BYTES : 0,
        .transfer_bytes = config->transfer_bytes,
        .credits = config->credits,
        .timeout_s = config->timeout_s,
    };
}

// NULL: the caller works on tiles where they are read to.
static const struct base_device *device_of(const struct off_stream_config *config)
{
    return config->device == &base_device_cpu ? NULL : config->device;
}

struct off_stream_memory off_stream_memory(const struct off_stream_config *config,
                                           size_t tile_bytes)
{
    const size_t spares = spare_count(config, tile_bytes);
    const struct off_tile_queue_config queue = queue_config(config, spares);
    const struct off_io_memory io = off_tile_queue_memory(&queue);
    const struct off_tile_queue_config there = {.places = config->buffers};
    const unsigned coders = coder_count(config->helpers);
    const size_t codec = config->codec ? config->codec->bytes(config->codec_user) : 0;
    return (struct off_stream_memory){
        .buffers = off_tile_queue_pages(&queue, tile_bytes),
        .device = device_of(config) ? off_tile_queue_pages(&there, tile_bytes) : 0,
        .tables = sizeof(struct off_stream) + config->buffers * sizeof(struct off_buffer) +
                  (spares + 1) * sizeof(unsigned char *) + config->tiles * sizeof(int) +
                  coders * (sizeof(struct off_helper) + codec) + io.bytes,
        .threads = 1 + config->helpers + io.threads,
    };
}

static size_t largest_tile(const struct off_stream_config *config)
{
    size_t largest = 0;
    for (size_t i = 0; i < config->tiles; i++)
        if (off_tilefile_tile_bytes(config->tilefile, i) > largest)
            largest = off_tilefile_tile_bytes(config->tilefile, i);
    return largest;
}

static zero_result make_buffers(struct off_stream *stream, const struct off_stream_config *config,
                                struct base_error *error)
{
    const size_t spares = spare_count(config, largest_tile(config));
    const struct off_tile_queue_config wanted = queue_config(config, spares);
    size_t place = 0;
    stream->buffers = base_calloc(stream->buffer_count, sizeof *stream->buffers);
    stream->buffer_of = base_calloc(stream->tiles, sizeof *stream->buffer_of);
    stream->spares = base_calloc(spares + 1, sizeof *stream->spares);
    if (!stream->buffers || !stream->buffer_of || !stream->spares)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for a stream of %zu tiles", stream->tiles);
    for (size_t i = 0; i < stream->tiles; i++)
        stream->buffer_of[i] = OFF_NOWHERE;
    const zero_result result = off_tile_queue_create(&stream->queue, &wanted, error);
    if (result)
        return result;
    for (size_t i = 0; i < stream->buffer_count; i++) {
        stream->buffers[i].memory = off_tile_queue_place(&stream->queue, place++);
        stream->buffers[i].state = OFF_OUT; // in no list yet
        off_stream_move(stream, &stream->buffers[i], OFF_FREE);
    }
    while (stream->spare_count < spares)
        stream->spares[stream->spare_count++] = off_tile_queue_place(&stream->queue, place++);
    stream->nothing = off_tile_queue_place(&stream->queue, place);
    return off_stream_make_copies(stream, error);
}

static zero_result make_coders(struct off_stream *stream, const struct off_stream_config *config,
                               struct base_error *error)
{
    const unsigned count = coder_count(stream->helper_count);
    zero_result result = ZERO_OK;
    stream->helpers = base_calloc(count, sizeof *stream->helpers);
    if (!stream->helpers)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for %u helpers of a stream", count);
    for (unsigned i = 0; i < count && !result; i++) {
        stream->helpers[i].stream = stream;
        if (config->codec)
            result = config->codec->create(&stream->helpers[i].coder, config->codec_user, error);
    }
    return result;
}

static zero_result start_threads(struct off_stream *stream, struct base_error *error)
{
    int failed = base_thread_start(&stream->thread, "thread", 0, off_stream_mover, stream);
    stream->has_thread = failed == 0;
    for (unsigned i = 0; i < stream->helper_count && failed == 0; i++) {
        struct off_helper *helper = &stream->helpers[i];
        failed = base_thread_start(&helper->thread, "thread", 0, off_stream_helper, helper);
        helper->started = failed == 0;
    }
    return failed == 0 ? ZERO_OK
                       : zero_fail_errno(error, ZERO_E_NOMEM, failed,
                                         "cannot start a thread that reads and writes tiles");
}

// Buffers that are read to: two wait, so that one is read as soon as there is a credit for it. Of
// few buffers some are left for what comes next.
static size_t most_reading(const struct off_stream_config *config)
{
    const size_t wanted = config->credits[OFF_READ] + 2;
    const size_t left = config->buffers - config->buffers / 4;
    return wanted < left ? wanted : left;
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
    stream->tilefile = config->tilefile;
    stream->codec = config->codec;
    stream->encode = config->codec && config->encode;
    stream->fill = config->fill;
    stream->device = device_of(config);
    stream->device_number = config->device_number;
    stream->callers = config->device_stream;
    stream->tiles = config->tiles;
    stream->buffer_count = config->buffers;
    stream->helper_count = config->helpers;
    stream->most_reading = most_reading(config);
    pthread_mutex_init(&stream->mutex, NULL);
    pthread_cond_init(&stream->work, NULL);
    pthread_cond_init(&stream->chores, NULL);
    base_cond_init(&stream->news);
    zero_result result = make_buffers(stream, config, error);
    if (!result)
        result = make_coders(stream, config, error);
    if (!result)
        result = start_threads(stream, error);
    if (result) {
        off_stream_destroy(stream);
        return result;
    }
    *out = stream;
    return ZERO_OK;
}
