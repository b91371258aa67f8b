#include "base/arena.h"
#include "base/clock.h"
#include "base/thread.h"
#include "offload/pipeline_parts.h"

#include <assert.h>

static void begin(struct off_pipeline *pipeline, const size_t *order, size_t count, bool anew)
{
    pthread_mutex_lock(&pipeline->mutex);
    assert(!pipeline->pass.passing && count <= pipeline->tiles);
    pipeline->pass.order = order;
    pipeline->pass.count = count;
    pipeline->pass.anew = anew;
    pipeline->pass.fetched = pipeline->pass.taken = 0;
    pipeline->pass.passing = true;
    pipeline->pass.failure = pipeline->fills.failure;
    base_error_clear(&pipeline->fills.failure);
    off_pipeline_wake(pipeline);
    pthread_mutex_unlock(&pipeline->mutex);
}

void off_pipeline_begin(struct off_pipeline *pipeline, const size_t *order, size_t count)
{
    begin(pipeline, order, count, false);
}

void off_pipeline_begin_anew(struct off_pipeline *pipeline, const size_t *order, size_t count)
{
    begin(pipeline, order, count, true);
}

// The thread that reads and writes does not come back from there, so its caller tells.
static void give_up_engine(struct off_pipeline *pipeline)
{
    const struct off_request *one = NULL;
    struct base_error failure = {.result = ZERO_OK};
    for (size_t i = 0; i < pipeline->buffer_count && !one; i++)
        if (pipeline->buffers[i].state == OFF_READING || pipeline->buffers[i].state == OFF_WRITING)
            one = &pipeline->buffers[i].request.request;
    off_tile_queue_stuck(&pipeline->queue, one, &pipeline->pass.failure, &failure);
    off_pipeline_fail(pipeline, &failure);
}

// Waits for news while `waits` says so, and counts the time; mutex held.
static void wait_while(struct off_pipeline *pipeline,
                       bool (*waits)(const struct off_pipeline *pipeline))
{
    if (!waits(pipeline))
        return;
    const uint64_t began = base_clock_ns();
    struct off_watch watch = {.takes = 0};
    while (waits(pipeline))
        if (off_tile_queue_await(&pipeline->queue, &watch, &pipeline->news, &pipeline->mutex))
            give_up_engine(pipeline);
    pipeline->counts.waited_s += (double)(base_clock_ns() - began) * 1e-9;
}

static bool next_is_missing(const struct off_pipeline *pipeline)
{
    if (pipeline->pass.failure.result)
        return false;
    if (pipeline->pass.taken == pipeline->pass.fetched)
        return true;
    return pipeline->buffers[pipeline->buffer_of[pipeline->pass.order[pipeline->pass.taken]]]
               .state != OFF_READY;
}

static void hand_out(struct off_pipeline *pipeline, struct off_tile *tile)
{
    const size_t number = pipeline->pass.order[pipeline->pass.taken++];
    struct off_buffer *buffer = &pipeline->buffers[pipeline->buffer_of[number]];
    assert(buffer->state == OFF_READY && buffer->tile == number);
    assert(pipeline->pass.taken <= pipeline->pass.fetched);
    off_pipeline_set_state(pipeline, buffer, OFF_OUT);
    *tile = (struct off_tile){.number = number, .memory = buffer->memory};
}

zero_result off_pipeline_next(struct off_pipeline *pipeline, struct off_tile *tile,
                              struct base_error *error)
{
    zero_result result = ZERO_NOT_FOUND;
    pthread_mutex_lock(&pipeline->mutex);
    if (pipeline->pass.taken < pipeline->pass.count) {
        assert(pipeline->pass.passing);
        wait_while(pipeline, next_is_missing);
        if (!pipeline->pass.failure.result)
            hand_out(pipeline, tile);
        result = pipeline->pass.failure.result;
        if (result)
            zero_fail(error, result, "%s", pipeline->pass.failure.message);
    }
    pthread_mutex_unlock(&pipeline->mutex);
    return result;
}

bool off_pipeline_ready(struct off_pipeline *pipeline)
{
    pthread_mutex_lock(&pipeline->mutex);
    const bool ready = pipeline->pass.taken == pipeline->pass.count || !next_is_missing(pipeline);
    pthread_mutex_unlock(&pipeline->mutex);
    return ready;
}

// Whether a tile that is given back waits for a helper that something else will wake soon, as it is
// being read. To wake one takes the caller's time, and often his processor: that matters if the
// next tile is there for him. Encoding takes more than that.
static bool can_wait(const struct off_pipeline *pipeline)
{
    if (pipeline->encode || pipeline->buffer_count < OFF_ENOUGH_BUFFERS)
        return false;
    return pipeline->pass.reading > 0 && pipeline->pass.taken < pipeline->pass.count &&
           !next_is_missing(pipeline);
}

void off_pipeline_put(struct off_pipeline *pipeline, const struct off_tile *tile, bool changed)
{
    pthread_mutex_lock(&pipeline->mutex);
    struct off_buffer *buffer = &pipeline->buffers[pipeline->buffer_of[tile->number]];
    assert(buffer->state == OFF_OUT && buffer->tile == tile->number);
    if (changed) {
        pipeline->pass.busy++;
        off_pipeline_set_state(pipeline, buffer, OFF_CHANGED);
        if (!can_wait(pipeline))
            pthread_cond_signal(&pipeline->chores);
    } else {
        off_pipeline_set_state(pipeline, buffer, OFF_KEPT);
    }
    if (!changed || pipeline->helper_count == 0 || pipeline->pass.failure.result)
        off_pipeline_wake(pipeline);
    pthread_mutex_unlock(&pipeline->mutex);
}

static bool transfers_are_under_way(const struct off_pipeline *pipeline)
{
    return pipeline->pass.busy > 0 && pipeline->pass.failure.result != ZERO_E_TIMEOUT;
}

// Whether a thread of the pipeline is at a buffer: it is left to it.
static bool is_used(const struct off_buffer *buffer)
{
    return buffer->state == OFF_READING || buffer->state == OFF_OPENING ||
           buffer->state == OFF_SEALING || buffer->state == OFF_WRITING;
}

// Keeps tiles that were read and that the pass did not take, if they are worth something.
static void settle(struct off_pipeline *pipeline, bool keep)
{
    for (size_t i = 0; i < pipeline->buffer_count; i++) {
        struct off_buffer *buffer = &pipeline->buffers[i];
        if (is_used(buffer))
            continue;
        if (keep && buffer->state == OFF_READY && !pipeline->pass.anew &&
            off_tilefile_has_contents(pipeline->tilefile, buffer->tile))
            off_pipeline_set_state(pipeline, buffer, OFF_KEPT);
        else if (buffer->state != OFF_FREE && !(keep && buffer->state == OFF_KEPT))
            off_pipeline_free_buffer(pipeline, buffer);
    }
}

zero_result off_pipeline_end(struct off_pipeline *pipeline, struct base_error *error)
{
    pthread_mutex_lock(&pipeline->mutex);
    pipeline->pass.count = pipeline->pass.fetched;
    wait_while(pipeline, transfers_are_under_way);
    const zero_result result = pipeline->pass.failure.result;
    assert(result == ZERO_E_TIMEOUT || pipeline->pass.busy == 0);
    if (result)
        zero_fail(error, result, "%s", pipeline->pass.failure.message);
    // What is still under way has its buffers: no pass may take them for tiles.
    if (result == ZERO_E_TIMEOUT)
        pipeline->fills.failure = pipeline->pass.failure;
    settle(pipeline, !result);
    pipeline->pass.count = pipeline->pass.fetched = pipeline->pass.taken = 0;
    pipeline->pass.passing = false;
    if (pipeline->fill)
        off_pipeline_wake(pipeline);
    pthread_mutex_unlock(&pipeline->mutex);
    return result;
}

void off_pipeline_encode(struct off_pipeline *pipeline, bool encode)
{
    pthread_mutex_lock(&pipeline->mutex);
    pipeline->encode = encode;
    pthread_mutex_unlock(&pipeline->mutex);
}

void off_pipeline_forget(struct off_pipeline *pipeline)
{
    pthread_mutex_lock(&pipeline->mutex);
    assert(!pipeline->pass.passing);
    settle(pipeline, false);
    pthread_mutex_unlock(&pipeline->mutex);
}

struct off_pipeline_counts off_pipeline_counts(const struct off_pipeline *pipeline)
{
    struct off_pipeline *unlocked = (struct off_pipeline *)(uintptr_t)pipeline;
    pthread_mutex_lock(&unlocked->mutex);
    const struct off_pipeline_counts counts = pipeline->counts;
    pthread_mutex_unlock(&unlocked->mutex);
    return counts;
}

const struct off_pages *off_pipeline_pages(const struct off_pipeline *pipeline)
{
    return &pipeline->queue.pages;
}

const struct off_io_use *off_pipeline_io(const struct off_pipeline *pipeline)
{
    return off_io_use(pipeline->queue.io);
}

/* ------------------------------------------------------------------ life */

static void stop_threads(struct off_pipeline *pipeline)
{
    pthread_mutex_lock(&pipeline->mutex);
    pipeline->stop = true;
    pthread_cond_broadcast(&pipeline->chores);
    if (pipeline->has_thread)
        off_pipeline_wake(pipeline);
    pthread_mutex_unlock(&pipeline->mutex);
    for (unsigned i = 0; i < pipeline->helper_count && pipeline->helpers; i++)
        if (pipeline->helpers[i].started)
            pthread_join(pipeline->helpers[i].thread, NULL);
    if (pipeline->has_thread)
        pthread_join(pipeline->thread, NULL); // it has destroyed the queue, which was its own
    else
        off_tile_queue_end(&pipeline->queue);
}

static unsigned coder_count(unsigned helpers)
{
    return helpers > 0 ? helpers : 1;
}

void off_pipeline_destroy(struct off_pipeline *pipeline)
{
    if (!pipeline)
        return;
    stop_threads(pipeline);
    for (unsigned i = 0; i < coder_count(pipeline->helper_count) && pipeline->helpers; i++)
        if (pipeline->codec)
            pipeline->codec->destroy(pipeline->helpers[i].coder);
    off_tile_queue_destroy(&pipeline->queue);
    pthread_cond_destroy(&pipeline->work);
    pthread_cond_destroy(&pipeline->chores);
    pthread_cond_destroy(&pipeline->news);
    pthread_mutex_destroy(&pipeline->mutex);
    base_free(pipeline->helpers);
    base_free(pipeline->buffers);
    base_free(pipeline->spares);
    base_free(pipeline->buffer_of);
    base_free(pipeline);
}

// Tiles that are written at a time, of which large ones are several transfers.
static size_t most_writing(const struct off_pipeline_config *config, size_t tile_bytes)
{
    const size_t transfer = config->transfer_bytes ? config->transfer_bytes : OFF_USUAL_TRANSFER;
    const size_t of_tile = tile_bytes > transfer ? (tile_bytes + transfer - 1) / transfer : 1;
    return (config->credits[OFF_WRITE] + of_tile - 1) / of_tile;
}

// Places beside the buffers': a helper that encodes or decodes needs one to write to, at most one
// for each buffer.
static size_t spare_count(const struct off_pipeline_config *config, size_t tile_bytes)
{
    const size_t encoded = config->encode ? OFF_SPARES + most_writing(config, tile_bytes) : 0;
    const size_t most = coder_count(config->helpers) + encoded;
    if (!config->codec)
        return 0;
    return most < config->buffers ? most : config->buffers;
}

static struct off_tile_queue_config queue_config(const struct off_pipeline_config *config,
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

struct off_pipeline_memory off_pipeline_memory(const struct off_pipeline_config *config,
                                               size_t tile_bytes)
{
    const size_t spares = spare_count(config, tile_bytes);
    const struct off_tile_queue_config queue = queue_config(config, spares);
    const struct off_io_memory io = off_tile_queue_memory(&queue);
    const unsigned coders = coder_count(config->helpers);
    const size_t codec = config->codec ? config->codec->bytes(config->codec_user) : 0;
    return (struct off_pipeline_memory){
        .buffers = off_tile_queue_pages(&queue, tile_bytes),
        .tables = sizeof(struct off_pipeline) + config->buffers * sizeof(struct off_buffer) +
                  (spares + 1) * sizeof(unsigned char *) + config->tiles * sizeof(int) +
                  coders * (sizeof(struct off_helper) + codec) + io.bytes,
        .threads = 1 + config->helpers + io.threads,
    };
}

static size_t largest_tile(const struct off_pipeline_config *config)
{
    size_t largest = 0;
    for (size_t i = 0; i < config->tiles; i++)
        if (off_tilefile_tile_bytes(config->tilefile, i) > largest)
            largest = off_tilefile_tile_bytes(config->tilefile, i);
    return largest;
}

static zero_result make_buffers(struct off_pipeline *pipeline,
                                const struct off_pipeline_config *config, struct base_error *error)
{
    const size_t spares = spare_count(config, largest_tile(config));
    const struct off_tile_queue_config wanted = queue_config(config, spares);
    size_t place = 0;
    pipeline->buffers = base_calloc(pipeline->buffer_count, sizeof *pipeline->buffers);
    pipeline->buffer_of = base_calloc(pipeline->tiles, sizeof *pipeline->buffer_of);
    pipeline->spares = base_calloc(spares + 1, sizeof *pipeline->spares);
    if (!pipeline->buffers || !pipeline->buffer_of || !pipeline->spares)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for a pipeline of %zu tiles",
                         pipeline->tiles);
    for (size_t i = 0; i < pipeline->tiles; i++)
        pipeline->buffer_of[i] = OFF_NOWHERE;
    const zero_result result = off_tile_queue_create(&pipeline->queue, &wanted, error);
    if (result)
        return result;
    for (size_t i = 0; i < pipeline->buffer_count; i++) {
        pipeline->buffers[i].memory = off_tile_queue_place(&pipeline->queue, place++);
        pipeline->buffers[i].state = OFF_OUT; // in no list yet
        off_pipeline_set_state(pipeline, &pipeline->buffers[i], OFF_FREE);
    }
    while (pipeline->spare_count < spares)
        pipeline->spares[pipeline->spare_count++] = off_tile_queue_place(&pipeline->queue, place++);
    assert(place == pipeline->buffer_count + spares);
    pipeline->fills.nothing = off_tile_queue_place(&pipeline->queue, place);
    return ZERO_OK;
}

static zero_result make_coders(struct off_pipeline *pipeline,
                               const struct off_pipeline_config *config, struct base_error *error)
{
    const unsigned count = coder_count(pipeline->helper_count);
    zero_result result = ZERO_OK;
    pipeline->helpers = base_calloc(count, sizeof *pipeline->helpers);
    if (!pipeline->helpers)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for %u helpers of a pipeline", count);
    for (unsigned i = 0; i < count && !result; i++) {
        pipeline->helpers[i].pipeline = pipeline;
        if (config->codec)
            result = config->codec->create(&pipeline->helpers[i].coder, config->codec_user, error);
    }
    return result;
}

static zero_result start_threads(struct off_pipeline *pipeline, struct base_error *error)
{
    int failed =
        base_thread_start(&pipeline->thread, "thread", 0, off_pipeline_io_thread, pipeline);
    pipeline->has_thread = failed == 0;
    for (unsigned i = 0; i < pipeline->helper_count && failed == 0; i++) {
        struct off_helper *helper = &pipeline->helpers[i];
        failed = base_thread_start(&helper->thread, "thread", 0, off_pipeline_helper, helper);
        helper->started = failed == 0;
    }
    return failed == 0 ? ZERO_OK
                       : zero_fail_errno(error, ZERO_E_NOMEM, failed,
                                         "cannot start a thread that reads and writes tiles");
}

// Buffers that are read to: two wait, so that one is read as soon as there is a credit for it. If
// there are few buffers, a quarter is left for what comes next.
static size_t most_reading(const struct off_pipeline_config *config)
{
    const size_t wanted = config->credits[OFF_READ] + 2;
    const size_t left = config->buffers - config->buffers / 4;
    return wanted < left ? wanted : left;
}

zero_result off_pipeline_create(struct off_pipeline **out, const struct off_pipeline_config *config,
                                struct base_error *error)
{
    *out = NULL;
    if (config->buffers < 2)
        return zero_fail(error, ZERO_E_INVALID, "%zu tiles in memory; at least 2 are needed",
                         config->buffers);
    struct off_pipeline *pipeline = base_calloc(1, sizeof *pipeline);
    if (!pipeline)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for a pipeline");
    pipeline->tilefile = config->tilefile;
    pipeline->codec = config->codec;
    pipeline->encode = config->codec && config->encode;
    pipeline->fill = config->fill;
    pipeline->tiles = config->tiles;
    pipeline->buffer_count = config->buffers;
    pipeline->helper_count = config->helpers;
    pipeline->pass.most_reading = most_reading(config);
    pthread_mutex_init(&pipeline->mutex, NULL);
    pthread_cond_init(&pipeline->work, NULL);
    pthread_cond_init(&pipeline->chores, NULL);
    base_cond_init(&pipeline->news);
    zero_result result = make_buffers(pipeline, config, error);
    if (!result)
        result = make_coders(pipeline, config, error);
    if (!result)
        result = start_threads(pipeline, error);
    if (result) {
        off_pipeline_destroy(pipeline);
        return result;
    }
    *out = pipeline;
    return ZERO_OK;
}
