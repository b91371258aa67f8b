#include "offload/tile_io.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/thread.h"
#include "offload/tile_queue.h"

#include <pthread.h>

// Room for one tile. After a time-out it may be the kernel's, and have no move any more.
struct wagon {
    bool taken;
    void *memory;
    struct off_move *move;
    struct off_tile_request request;
};

struct off_shuttle {
    struct off_slots *slots;
    struct off_tile_queue queue; // the thread's
    pthread_t thread;
    bool has_thread;

    pthread_mutex_t mutex; // for all that follows
    pthread_cond_t work;   // the thread's,
    pthread_cond_t news;   // and the caller's
    size_t wagon_count;
    struct wagon *wagons;
    bool *moving;                  // tiles
    struct off_move *first, *last; // that have not begun
    bool asked, stop;              // the thread: to look what there is to do, to end
    bool exchanging;               // it is with contents of a move
    struct base_error failure;     // the first
    struct off_shuttle_counts counts;
};

/* ------------------------------------------------------------------ the thread: mutex held */

static void ask(struct off_shuttle *shuttle)
{
    shuttle->asked = true;
    pthread_cond_signal(&shuttle->work);
    off_io_wake(shuttle->queue.io);
}

static void end_move(struct off_shuttle *shuttle, struct off_move *move, bool failed)
{
    shuttle->moving[move->tile] = false;
    move->under_way = false;
    move->failed = move->failed || failed;
    pthread_cond_signal(&shuttle->news);
}

// Ends every move that has not begun. What is under way ends as it does, but if nothing comes back,
// which is told whatever has failed before: then its memory is all that is left to the kernel.
static void give_up(struct off_shuttle *shuttle, const struct base_error *failure)
{
    const bool stuck = failure->result == ZERO_E_TIMEOUT;
    if (shuttle->failure.result == ZERO_OK || stuck)
        shuttle->failure = *failure;
    for (struct off_move *move; (move = shuttle->first);) {
        shuttle->first = move->next;
        end_move(shuttle, move, true);
    }
    for (size_t i = 0; i < shuttle->wagon_count && stuck; i++)
        if (shuttle->wagons[i].move) {
            end_move(shuttle, shuttle->wagons[i].move, true);
            shuttle->wagons[i].move = NULL;
        }
}

// A move has come to its end, which its failure is, if there is one.
static void arrive(struct off_shuttle *shuttle, struct wagon *wagon,
                   const struct base_error *failure)
{
    struct off_move *move = wagon->move;
    if (failure->result && move && move->failure) {
        *move->failure = *failure;
    } else if (failure->result) {
        give_up(shuttle, failure);
    } else if (move) {
        shuttle->counts.moves[move->direction]++;
        shuttle->counts.contents[move->direction] +=
            off_slots_tile_bytes(shuttle->slots, move->tile);
    }
    if (move)
        end_move(shuttle, move, failure->result != ZERO_OK);
    wagon->move = NULL;
    wagon->taken = false;
}

// Has the contents given to a move, or by it. Both may take a while.
static void exchange(struct off_shuttle *shuttle, const struct wagon *wagon,
                     struct base_error *failure)
{
    const struct off_move *move = wagon->move;
    const bool reads = move->direction == OFF_READ;
    shuttle->exchanging = true;
    pthread_mutex_unlock(&shuttle->mutex);
    if (!reads || move->recorded ||
        !off_slots_check(shuttle->slots, move->tile, wagon->memory, failure))
        move->exchange(move->user, move->tile, wagon->memory);
    if (!reads)
        off_slots_wrote(shuttle->slots, move->tile, wagon->memory,
                        off_slots_tile_bytes(shuttle->slots, move->tile));
    pthread_mutex_lock(&shuttle->mutex);
    shuttle->exchanging = false;
    if (shuttle->stop)
        pthread_cond_signal(&shuttle->news);
}

static struct wagon *find_wagon(struct off_shuttle *shuttle)
{
    for (size_t i = 0; i < shuttle->wagon_count; i++)
        if (!shuttle->wagons[i].taken)
            return &shuttle->wagons[i];
    return NULL;
}

// Bytes that a move's tile has in the file, or will have.
static size_t stored_bytes(const struct off_shuttle *shuttle, const struct off_move *move)
{
    if (move->direction == OFF_WRITE)
        return off_slots_tile_bytes(shuttle->slots, move->tile);
    return move->recorded ? move->recorded->stored : off_slots_stored(shuttle->slots, move->tile);
}

// Begins the next move; false: there is none, or no room for it.
static bool begin_move(struct off_shuttle *shuttle)
{
    struct base_error failure = {.result = ZERO_OK};
    struct off_move *move = shuttle->first;
    struct wagon *wagon = move ? find_wagon(shuttle) : NULL;
    if (!wagon)
        return false;
    shuttle->first = move->next;
    wagon->move = move;
    wagon->taken = true;
    if (move->direction == OFF_WRITE)
        exchange(shuttle, wagon, &failure);
    wagon->request = (struct off_tile_request){
        .tile = move->tile,
        .stored = stored_bytes(shuttle, move),
        .recorded = move->recorded,
        .request = {.direction = move->direction, .memory = wagon->memory, .user = wagon},
    };
    if (off_tile_queue_submit(&shuttle->queue, &wagon->request, move->recorded != NULL, &failure))
        arrive(shuttle, wagon, &failure);
    return true;
}

static void finish_transfer(struct off_shuttle *shuttle, struct off_request *request)
{
    struct wagon *wagon = request->user;
    if (!request->result && wagon->move && request->direction == OFF_READ && !shuttle->stop)
        exchange(shuttle, wagon, &request->error);
    arrive(shuttle, wagon, &request->error);
}

// Takes a transfer that is done, or waits for one or for more to do. Gives up if none comes back.
static void take_transfer(struct off_shuttle *shuttle, bool waits)
{
    struct off_request *done;
    struct base_error failure = {.result = ZERO_OK};
    const zero_result result =
        off_tile_queue_take_unlocked(&shuttle->queue, &shuttle->mutex, waits, &done);
    shuttle->counts.io = off_io_counts(shuttle->queue.io);
    if (!result) {
        finish_transfer(shuttle, done);
    } else if (result == ZERO_E_TIMEOUT && shuttle->failure.result != ZERO_E_TIMEOUT) {
        off_tile_queue_timed_out(&shuttle->queue, &shuttle->failure, &failure);
        give_up(shuttle, &failure);
    }
}

static void *mover(void *argument)
{
    struct off_shuttle *shuttle = argument;
    pthread_mutex_lock(&shuttle->mutex);
    while (!shuttle->stop) {
        shuttle->asked = false;
        const bool began = begin_move(shuttle);
        if (off_io_pending(shuttle->queue.io) > 0)
            take_transfer(shuttle, !began);
        else
            while (!began && !shuttle->asked)
                pthread_cond_wait(&shuttle->work, &shuttle->mutex);
    }
    pthread_mutex_unlock(&shuttle->mutex);
    off_tile_queue_end(&shuttle->queue);
    return NULL;
}

/* ------------------------------------------------------------------ moves */

// What is wrong with a move from the beginning.
static void check_move(const struct off_shuttle *shuttle, const struct off_move *move,
                       struct base_error *failure)
{
    const char *path = off_slots_file(shuttle->slots)->path;
    if (shuttle->moving[move->tile])
        zero_fail(failure, ZERO_E_STATE, "%s: tile %zu is to be moved, and is under way already",
                  path, move->tile);
    else if (move->direction == OFF_READ && !move->recorded &&
             !off_slots_has(shuttle->slots, move->tile))
        zero_fail(failure, ZERO_E_STATE, "%s: tile %zu is to be read and was never written", path,
                  move->tile);
}

void off_shuttle_start(struct off_shuttle *shuttle, struct off_move *move)
{
    struct base_error failure = {.result = ZERO_OK};
    pthread_mutex_lock(&shuttle->mutex);
    check_move(shuttle, move, &failure);
    if (failure.result)
        give_up(shuttle, &failure);
    move->failed = shuttle->failure.result != ZERO_OK;
    if (!move->failed) {
        move->under_way = true;
        move->next = NULL;
        shuttle->moving[move->tile] = true;
        if (shuttle->first)
            shuttle->last->next = move;
        else
            shuttle->first = move;
        shuttle->last = move;
        ask(shuttle);
    }
    pthread_mutex_unlock(&shuttle->mutex);
}

// The thread that moves tiles does not come back from there: nobody else would tell.
static void give_up_engine(struct off_shuttle *shuttle)
{
    const struct off_request *one = NULL;
    struct base_error failure = {.result = ZERO_OK};
    for (size_t i = 0; i < shuttle->wagon_count && !one; i++)
        if (shuttle->wagons[i].move && shuttle->wagons[i].request.request.what)
            one = &shuttle->wagons[i].request.request;
    off_tile_queue_stuck(&shuttle->queue, one, &shuttle->failure, &failure);
    give_up(shuttle, &failure);
}

zero_result off_shuttle_wait(struct off_shuttle *shuttle, struct off_move *move,
                             struct base_error *error)
{
    zero_result result = ZERO_OK;
    pthread_mutex_lock(&shuttle->mutex);
    if (move->under_way) {
        const uint64_t began = base_clock_ns();
        struct off_watch watch = {.takes = 0};
        while (move->under_way)
            if (off_tile_queue_await(&shuttle->queue, &watch, &shuttle->news, &shuttle->mutex))
                give_up_engine(shuttle);
        shuttle->counts.waited_s += (double)(base_clock_ns() - began) * 1e-9;
    }
    if (move->failed) {
        const bool own = move->failure && move->failure->result;
        const struct base_error *failure = own ? move->failure : &shuttle->failure;
        result = zero_fail(error, failure->result, "%s", failure->message);
    }
    pthread_mutex_unlock(&shuttle->mutex);
    return result;
}

bool off_shuttle_done(struct off_shuttle *shuttle, const struct off_move *move)
{
    pthread_mutex_lock(&shuttle->mutex);
    const bool done = !move->under_way;
    pthread_mutex_unlock(&shuttle->mutex);
    return done;
}

struct off_shuttle_counts off_shuttle_counts(const struct off_shuttle *shuttle)
{
    struct off_shuttle *unlocked = (struct off_shuttle *)(uintptr_t)shuttle;
    pthread_mutex_lock(&unlocked->mutex);
    const struct off_shuttle_counts counts = shuttle->counts;
    pthread_mutex_unlock(&unlocked->mutex);
    return counts;
}

const struct off_pages *off_shuttle_pages(const struct off_shuttle *shuttle)
{
    return &shuttle->queue.pages;
}

const struct off_io_use *off_shuttle_io(const struct off_shuttle *shuttle)
{
    return off_io_use(shuttle->queue.io);
}

/* ------------------------------------------------------------------ life */

void off_shuttle_stop(struct off_shuttle *shuttle)
{
    if (!shuttle || !shuttle->has_thread)
        return;
    pthread_mutex_lock(&shuttle->mutex);
    if (!shuttle->stop)
        ask(shuttle);
    shuttle->stop = true;
    while (shuttle->exchanging)
        pthread_cond_wait(&shuttle->news, &shuttle->mutex);
    pthread_mutex_unlock(&shuttle->mutex);
}

static void stop_thread(struct off_shuttle *shuttle)
{
    off_shuttle_stop(shuttle);
    if (shuttle->has_thread)
        pthread_join(shuttle->thread, NULL); // it has ended the queue, which was its own
    else
        off_tile_queue_end(&shuttle->queue);
}

void off_shuttle_destroy(struct off_shuttle *shuttle)
{
    if (!shuttle)
        return;
    stop_thread(shuttle);
    off_tile_queue_destroy(&shuttle->queue);
    pthread_cond_destroy(&shuttle->work);
    pthread_cond_destroy(&shuttle->news);
    pthread_mutex_destroy(&shuttle->mutex);
    base_free(shuttle->wagons);
    base_free(shuttle->moving);
    base_free(shuttle);
}

static struct off_tile_queue_config queue_config(const struct off_shuttle_config *config)
{
    return (struct off_tile_queue_config){
        .engine = config->engine,
        .slots = config->slots,
        .tiles = config->tiles,
        .places = config->buffers,
        .transfer_bytes = config->transfer_bytes,
        .credits = config->credits,
        .timeout_s = config->timeout_s,
    };
}

struct off_stream_memory off_shuttle_memory(const struct off_shuttle_config *config,
                                            size_t tile_bytes)
{
    const struct off_tile_queue_config queue = queue_config(config);
    const struct off_io_memory io = off_tile_queue_memory(&queue);
    return (struct off_stream_memory){
        .buffers = off_tile_queue_pages(&queue, tile_bytes),
        .tables = sizeof(struct off_shuttle) + config->buffers * sizeof(struct wagon) +
                  config->tiles * sizeof(bool) + io.bytes,
        .threads = 1 + io.threads,
    };
}

static zero_result make_wagons(struct off_shuttle *shuttle, const struct off_shuttle_config *config,
                               struct base_error *error)
{
    const struct off_tile_queue_config wanted = queue_config(config);
    shuttle->wagon_count = config->buffers;
    shuttle->wagons = base_calloc(config->buffers, sizeof *shuttle->wagons);
    shuttle->moving = base_calloc(config->tiles, sizeof *shuttle->moving);
    if (!shuttle->wagons || !shuttle->moving)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for a shuttle of %zu tiles",
                         config->tiles);
    const zero_result result = off_tile_queue_create(&shuttle->queue, &wanted, error);
    for (size_t i = 0; i < config->buffers && !result; i++)
        shuttle->wagons[i].memory = off_tile_queue_place(&shuttle->queue, i);
    return result;
}

zero_result off_shuttle_create(struct off_shuttle **out, const struct off_shuttle_config *config,
                               struct base_error *error)
{
    *out = NULL;
    if (config->buffers < 1)
        return zero_fail(error, ZERO_E_INVALID, "0 tiles in memory; at least 1 is needed");
    struct off_shuttle *shuttle = base_calloc(1, sizeof *shuttle);
    if (!shuttle)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for a shuttle");
    shuttle->slots = config->slots;
    pthread_mutex_init(&shuttle->mutex, NULL);
    pthread_cond_init(&shuttle->work, NULL);
    base_cond_init(&shuttle->news);
    zero_result result = make_wagons(shuttle, config, error);
    if (!result) {
        const int failed = base_thread_start(&shuttle->thread, "thread", 0, mover, shuttle);
        shuttle->has_thread = failed == 0;
        if (failed != 0)
            result = zero_fail_errno(error, ZERO_E_NOMEM, failed,
                                     "cannot start a thread that moves tiles");
    }
    if (result) {
        off_shuttle_destroy(shuttle);
        return result;
    }
    *out = shuttle;
    return ZERO_OK;
}
