#include "offload/tile_io.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/thread.h"
#include "offload/tile_queue.h"

#include <assert.h>
#include <pthread.h>

// Room for one tile. After a time-out it may be the kernel's, and have no move any more.
struct tile_buffer {
    bool taken;
    void *memory;
    struct off_tile_op *op;
    struct off_tile_request request;
};

struct off_tile_io {
    struct off_tilefile *tilefile;
    struct off_tile_queue queue; // the thread's
    pthread_t thread;
    bool has_thread;

    pthread_mutex_t mutex; // for all that follows
    pthread_cond_t work;   // the thread's,
    pthread_cond_t news;   // and the caller's
    size_t tile_buffer_count;
    struct tile_buffer *tile_buffers;
    bool *moving;                     // tiles
    struct off_tile_op *first, *last; // that have not begun
    bool asked, stop;                 // the thread: to look what there is to do, to end
    bool exchanging;                  // it is with contents of a move
    struct base_error failure;        // the first
    struct off_tile_io_counts counts;
};

/* ------------------------------------------------------------------ the thread: mutex held */

static void ask(struct off_tile_io *tile_io)
{
    tile_io->asked = true;
    pthread_cond_signal(&tile_io->work);
    off_io_wake(tile_io->queue.io);
}

static void end_op(struct off_tile_io *tile_io, struct off_tile_op *op, bool failed)
{
    assert(op->under_way && tile_io->moving[op->tile]);
    tile_io->moving[op->tile] = false;
    op->under_way = false;
    op->failed = op->failed || failed;
    pthread_cond_signal(&tile_io->news);
}

// Ends every move that has not begun. What is under way ends as it does, but if nothing comes back,
// which is told whatever has failed before: then its memory is all that is left to the kernel.
static void give_up(struct off_tile_io *tile_io, const struct base_error *failure)
{
    const bool stuck = failure->result == ZERO_E_TIMEOUT;
    if (tile_io->failure.result == ZERO_OK || stuck)
        tile_io->failure = *failure;
    for (struct off_tile_op *op; (op = tile_io->first);) {
        tile_io->first = op->next;
        end_op(tile_io, op, true);
    }
    for (size_t i = 0; i < tile_io->tile_buffer_count && stuck; i++)
        if (tile_io->tile_buffers[i].op) {
            end_op(tile_io, tile_io->tile_buffers[i].op, true);
            tile_io->tile_buffers[i].op = NULL;
        }
}

// A move has come to its end, which its failure is, if there is one.
static void arrive(struct off_tile_io *tile_io, struct tile_buffer *tile_buffer,
                   const struct base_error *failure)
{
    assert(tile_buffer->taken);
    struct off_tile_op *op = tile_buffer->op;
    if (failure->result && op && op->failure) {
        *op->failure = *failure;
    } else if (failure->result) {
        give_up(tile_io, failure);
    } else if (op) {
        tile_io->counts.moves[op->direction]++;
        tile_io->counts.contents[op->direction] +=
            off_tilefile_tile_bytes(tile_io->tilefile, op->tile);
    }
    if (op)
        end_op(tile_io, op, failure->result != ZERO_OK);
    tile_buffer->op = NULL;
    tile_buffer->taken = false;
}

// Has the contents given to a move, or by it. Both may take a while.
static void exchange(struct off_tile_io *tile_io, const struct tile_buffer *tile_buffer,
                     struct base_error *failure)
{
    assert(!tile_io->exchanging && tile_buffer->taken);
    const struct off_tile_op *op = tile_buffer->op;
    const bool reads = op->direction == OFF_READ;
    tile_io->exchanging = true;
    pthread_mutex_unlock(&tile_io->mutex);
    if (!reads || op->recorded ||
        !off_tilefile_check(tile_io->tilefile, op->tile, tile_buffer->memory, failure))
        op->exchange(op->user, op->tile, tile_buffer->memory);
    if (!reads)
        off_tilefile_note_write(tile_io->tilefile, op->tile, tile_buffer->memory,
                                off_tilefile_tile_bytes(tile_io->tilefile, op->tile));
    pthread_mutex_lock(&tile_io->mutex);
    tile_io->exchanging = false;
    if (tile_io->stop)
        pthread_cond_signal(&tile_io->news);
}

static struct tile_buffer *find_buffer(struct off_tile_io *tile_io)
{
    for (size_t i = 0; i < tile_io->tile_buffer_count; i++)
        if (!tile_io->tile_buffers[i].taken)
            return &tile_io->tile_buffers[i];
    return NULL;
}

// Bytes that a move's tile has in the file, or will have.
static size_t stored_bytes(const struct off_tile_io *tile_io, const struct off_tile_op *op)
{
    if (op->direction == OFF_WRITE)
        return off_tilefile_tile_bytes(tile_io->tilefile, op->tile);
    return op->recorded ? op->recorded->stored
                        : off_tilefile_stored_bytes(tile_io->tilefile, op->tile);
}

// Begins the next move; false: there is none, or no room for it.
static bool begin_move(struct off_tile_io *tile_io)
{
    struct base_error failure = {.result = ZERO_OK};
    struct off_tile_op *op = tile_io->first;
    struct tile_buffer *tile_buffer = op ? find_buffer(tile_io) : NULL;
    if (!tile_buffer)
        return false;
    tile_io->first = op->next;
    tile_buffer->op = op;
    tile_buffer->taken = true;
    if (op->direction == OFF_WRITE)
        exchange(tile_io, tile_buffer, &failure);
    tile_buffer->request = (struct off_tile_request){
        .tile = op->tile,
        .stored = stored_bytes(tile_io, op),
        .recorded = op->recorded,
        .request = {.direction = op->direction, .memory = tile_buffer->memory, .user = tile_buffer},
    };
    if (off_tile_queue_submit(&tile_io->queue, &tile_buffer->request, op->recorded != NULL,
                              &failure))
        arrive(tile_io, tile_buffer, &failure);
    return true;
}

static void finish_transfer(struct off_tile_io *tile_io, struct off_request *request)
{
    struct tile_buffer *tile_buffer = request->user;
    if (!request->result && tile_buffer->op && request->direction == OFF_READ && !tile_io->stop)
        exchange(tile_io, tile_buffer, &request->error);
    arrive(tile_io, tile_buffer, &request->error);
}

// Takes a transfer that is done, or waits for one or for more to do. Gives up if none comes back.
static void take_transfer(struct off_tile_io *tile_io, bool waits)
{
    struct off_request *done;
    struct base_error failure = {.result = ZERO_OK};
    const zero_result result =
        off_tile_queue_take_unlocked(&tile_io->queue, &tile_io->mutex, waits, &done);
    tile_io->counts.io = off_io_counts(tile_io->queue.io);
    if (!result) {
        finish_transfer(tile_io, done);
    } else if (result == ZERO_E_TIMEOUT && tile_io->failure.result != ZERO_E_TIMEOUT) {
        off_tile_queue_timed_out(&tile_io->queue, &tile_io->failure, &failure);
        give_up(tile_io, &failure);
    }
}

static void *mover(void *argument)
{
    struct off_tile_io *tile_io = argument;
    pthread_mutex_lock(&tile_io->mutex);
    while (!tile_io->stop) {
        tile_io->asked = false;
        const bool began = begin_move(tile_io);
        if (off_io_pending(tile_io->queue.io) > 0)
            take_transfer(tile_io, !began);
        else
            while (!began && !tile_io->asked)
                pthread_cond_wait(&tile_io->work, &tile_io->mutex);
    }
    pthread_mutex_unlock(&tile_io->mutex);
    off_tile_queue_end(&tile_io->queue);
    return NULL;
}

/* ------------------------------------------------------------------ moves */

// What is wrong with a move from the beginning.
static void check_op(const struct off_tile_io *tile_io, const struct off_tile_op *op,
                     struct base_error *failure)
{
    const char *path = off_tilefile_file(tile_io->tilefile)->path;
    if (tile_io->moving[op->tile])
        zero_fail(failure, ZERO_E_STATE, "%s: tile %zu is to be moved, and is under way already",
                  path, op->tile);
    else if (op->direction == OFF_READ &&
             (op->recorded ? op->recorded->stored == 0
                           : !off_tilefile_has_contents(tile_io->tilefile, op->tile)))
        zero_fail(failure, ZERO_E_STATE, "%s: tile %zu is to be read and was never written", path,
                  op->tile);
}

void off_tile_io_start(struct off_tile_io *tile_io, struct off_tile_op *op)
{
    struct base_error failure = {.result = ZERO_OK};
    pthread_mutex_lock(&tile_io->mutex);
    check_op(tile_io, op, &failure);
    if (failure.result)
        give_up(tile_io, &failure);
    op->failed = tile_io->failure.result != ZERO_OK;
    if (!op->failed) {
        op->under_way = true;
        op->next = NULL;
        tile_io->moving[op->tile] = true;
        if (tile_io->first)
            tile_io->last->next = op;
        else
            tile_io->first = op;
        tile_io->last = op;
        ask(tile_io);
    }
    pthread_mutex_unlock(&tile_io->mutex);
}

// The thread that moves tiles does not come back from there, so its caller tells.
static void give_up_engine(struct off_tile_io *tile_io)
{
    const struct off_request *one = NULL;
    struct base_error failure = {.result = ZERO_OK};
    for (size_t i = 0; i < tile_io->tile_buffer_count && !one; i++)
        if (tile_io->tile_buffers[i].op && tile_io->tile_buffers[i].request.request.what)
            one = &tile_io->tile_buffers[i].request.request;
    off_tile_queue_stuck(&tile_io->queue, one, &tile_io->failure, &failure);
    give_up(tile_io, &failure);
}

zero_result off_tile_io_wait(struct off_tile_io *tile_io, struct off_tile_op *op,
                             struct base_error *error)
{
    zero_result result = ZERO_OK;
    pthread_mutex_lock(&tile_io->mutex);
    if (op->under_way) {
        const uint64_t began = base_clock_ns();
        struct off_watch watch = {.takes = 0};
        while (op->under_way)
            if (off_tile_queue_await(&tile_io->queue, &watch, &tile_io->news, &tile_io->mutex))
                give_up_engine(tile_io);
        tile_io->counts.waited_s += (double)(base_clock_ns() - began) * 1e-9;
    }
    if (op->failed) {
        const bool own = op->failure && op->failure->result;
        const struct base_error *failure = own ? op->failure : &tile_io->failure;
        result = zero_fail(error, failure->result, "%s", failure->message);
    }
    pthread_mutex_unlock(&tile_io->mutex);
    return result;
}

bool off_tile_io_done(struct off_tile_io *tile_io, const struct off_tile_op *op)
{
    pthread_mutex_lock(&tile_io->mutex);
    const bool done = !op->under_way;
    pthread_mutex_unlock(&tile_io->mutex);
    return done;
}

struct off_tile_io_counts off_tile_io_counts(const struct off_tile_io *tile_io)
{
    struct off_tile_io *unlocked = (struct off_tile_io *)(uintptr_t)tile_io;
    pthread_mutex_lock(&unlocked->mutex);
    const struct off_tile_io_counts counts = tile_io->counts;
    pthread_mutex_unlock(&unlocked->mutex);
    return counts;
}

const struct off_pages *off_tile_io_pages(const struct off_tile_io *tile_io)
{
    return &tile_io->queue.pages;
}

const struct off_io_use *off_tile_io_io(const struct off_tile_io *tile_io)
{
    return off_io_use(tile_io->queue.io);
}

/* ------------------------------------------------------------------ life */

void off_tile_io_stop(struct off_tile_io *tile_io)
{
    if (!tile_io || !tile_io->has_thread)
        return;
    pthread_mutex_lock(&tile_io->mutex);
    if (!tile_io->stop)
        ask(tile_io);
    tile_io->stop = true;
    while (tile_io->exchanging)
        pthread_cond_wait(&tile_io->news, &tile_io->mutex);
    pthread_mutex_unlock(&tile_io->mutex);
}

static void stop_thread(struct off_tile_io *tile_io)
{
    off_tile_io_stop(tile_io);
    if (tile_io->has_thread)
        pthread_join(tile_io->thread, NULL); // it has ended the queue, which was its own
    else
        off_tile_queue_end(&tile_io->queue);
}

void off_tile_io_destroy(struct off_tile_io *tile_io)
{
    if (!tile_io)
        return;
    stop_thread(tile_io);
    off_tile_queue_destroy(&tile_io->queue);
    pthread_cond_destroy(&tile_io->work);
    pthread_cond_destroy(&tile_io->news);
    pthread_mutex_destroy(&tile_io->mutex);
    base_free(tile_io->tile_buffers);
    base_free(tile_io->moving);
    base_free(tile_io);
}

static struct off_tile_queue_config queue_config(const struct off_tile_io_config *config)
{
    return (struct off_tile_queue_config){
        .engine = config->engine,
        .tilefile = config->tilefile,
        .tiles = config->tiles,
        .places = config->buffers,
        .transfer_bytes = config->transfer_bytes,
        .credits = config->credits,
        .timeout_s = config->timeout_s,
    };
}

struct off_pipeline_memory off_tile_io_memory(const struct off_tile_io_config *config,
                                              size_t tile_bytes)
{
    const struct off_tile_queue_config queue = queue_config(config);
    const struct off_io_memory io = off_tile_queue_memory(&queue);
    return (struct off_pipeline_memory){
        .buffers = off_tile_queue_pages(&queue, tile_bytes),
        .tables = sizeof(struct off_tile_io) + config->buffers * sizeof(struct tile_buffer) +
                  config->tiles * sizeof(bool) + io.bytes,
        .threads = 1 + io.threads,
    };
}

static zero_result make_tile_buffers(struct off_tile_io *tile_io,
                                     const struct off_tile_io_config *config,
                                     struct base_error *error)
{
    const struct off_tile_queue_config wanted = queue_config(config);
    tile_io->tile_buffer_count = config->buffers;
    tile_io->tile_buffers = base_calloc(config->buffers, sizeof *tile_io->tile_buffers);
    tile_io->moving = base_calloc(config->tiles, sizeof *tile_io->moving);
    if (!tile_io->tile_buffers || !tile_io->moving)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for tile I/O of %zu tiles", config->tiles);
    const zero_result result = off_tile_queue_create(&tile_io->queue, &wanted, error);
    for (size_t i = 0; i < config->buffers && !result; i++)
        tile_io->tile_buffers[i].memory = off_tile_queue_place(&tile_io->queue, i);
    return result;
}

zero_result off_tile_io_create(struct off_tile_io **out, const struct off_tile_io_config *config,
                               struct base_error *error)
{
    *out = NULL;
    if (config->buffers < 1)
        return zero_fail(error, ZERO_E_INVALID, "0 tiles in memory; at least 1 is needed");
    struct off_tile_io *tile_io = base_calloc(1, sizeof *tile_io);
    if (!tile_io)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for tile I/O");
    tile_io->tilefile = config->tilefile;
    pthread_mutex_init(&tile_io->mutex, NULL);
    pthread_cond_init(&tile_io->work, NULL);
    base_cond_init(&tile_io->news);
    zero_result result = make_tile_buffers(tile_io, config, error);
    if (!result) {
        const int failed = base_thread_start(&tile_io->thread, "thread", 0, mover, tile_io);
        tile_io->has_thread = failed == 0;
        if (failed != 0)
            result = zero_fail_errno(error, ZERO_E_NOMEM, failed,
                                     "cannot start a thread that moves tiles");
    }
    if (result) {
        off_tile_io_destroy(tile_io);
        return result;
    }
    *out = tile_io;
    return ZERO_OK;
}
