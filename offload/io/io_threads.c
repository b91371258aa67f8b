/* Threads that each do one transfer at a time: what works on every kernel. */
#include "base/arena.h"
#include "base/tables.h"
#include "base/thread.h"
#include "offload/io/io_engine.h"

#include <assert.h>
#include <errno.h>

enum { MOST_THREADS = 64 };

// The numbers of transfers, in a ring with room for all.
struct numbers {
    unsigned *number;
    unsigned first, count;
};

struct threads_engine {
    struct base_tables tables;
    unsigned depth;
    struct off_transfer *transfers; // by their numbers
    struct numbers submitted;       // of the queue's thread
    pthread_mutex_t mutex;          // for all that follows
    pthread_cond_t work, news;
    struct numbers given, done;
    int *results;
    bool woken, stop;
    unsigned thread_count;
    pthread_t threads[MOST_THREADS];
};

static unsigned threads_for(unsigned depth)
{
    return depth < MOST_THREADS ? depth : MOST_THREADS;
}

static void lay_tables(struct threads_engine *engine, unsigned depth)
{
    struct base_tables *tables = &engine->tables;
    engine->transfers = base_tables_add(tables, depth, sizeof *engine->transfers);
    engine->results = base_tables_add(tables, depth, sizeof *engine->results);
    engine->submitted.number = base_tables_add(tables, depth, sizeof(unsigned));
    engine->given.number = base_tables_add(tables, depth, sizeof(unsigned));
    engine->done.number = base_tables_add(tables, depth, sizeof(unsigned));
}

static struct off_io_memory threads_memory(unsigned depth)
{
    struct threads_engine counted = {.tables.counts = true};
    lay_tables(&counted, depth);
    return (struct off_io_memory){
        .bytes = sizeof counted + counted.tables.bytes,
        .threads = threads_for(depth),
    };
}

static void put(const struct threads_engine *engine, struct numbers *numbers, unsigned number)
{
    assert(numbers->count < engine->depth && number < engine->depth);
    numbers->number[(numbers->first + numbers->count++) % engine->depth] = number;
}

static unsigned take(const struct threads_engine *engine, struct numbers *numbers)
{
    assert(numbers->count > 0 && numbers->first < engine->depth);
    const unsigned number = numbers->number[numbers->first];
    numbers->first = (numbers->first + 1) % engine->depth;
    numbers->count--;
    return number;
}

static void *thread_main(void *argument)
{
    struct threads_engine *engine = argument;
    pthread_mutex_lock(&engine->mutex);
    for (;;) {
        while (engine->given.count == 0 && !engine->stop)
            pthread_cond_wait(&engine->work, &engine->mutex);
        if (engine->stop)
            break;
        const unsigned number = take(engine, &engine->given);
        pthread_mutex_unlock(&engine->mutex);
        const int result = off_transfer_now(&engine->transfers[number]);
        pthread_mutex_lock(&engine->mutex);
        engine->results[number] = result;
        put(engine, &engine->done, number);
        pthread_cond_signal(&engine->news);
    }
    pthread_mutex_unlock(&engine->mutex);
    return NULL;
}

static void prepare_waiting(struct threads_engine *engine)
{
    pthread_mutex_init(&engine->mutex, NULL);
    pthread_cond_init(&engine->work, NULL);
    base_cond_init(&engine->news);
}

// Ends after the transfers that threads have begun; the others are given up.
static void threads_destroy(void *state)
{
    struct threads_engine *engine = state;
    if (!engine)
        return;
    pthread_mutex_lock(&engine->mutex);
    engine->stop = true;
    pthread_cond_broadcast(&engine->work);
    pthread_mutex_unlock(&engine->mutex);
    for (unsigned i = 0; i < engine->thread_count; i++)
        pthread_join(engine->threads[i], NULL);
    pthread_cond_destroy(&engine->work);
    pthread_cond_destroy(&engine->news);
    pthread_mutex_destroy(&engine->mutex);
    base_tables_free(&engine->tables);
    base_free(engine);
}

static zero_result start_threads(struct threads_engine *engine, struct base_error *error)
{
    const unsigned wanted = threads_for(engine->depth);
    for (; engine->thread_count < wanted; engine->thread_count++) {
        const int failed = base_thread_start(&engine->threads[engine->thread_count], "thread", 0,
                                             thread_main, engine);
        if (failed != 0)
            return zero_fail_errno(error, ZERO_E_NOMEM, failed,
                                   "cannot start thread %u of %u for reads and writes",
                                   engine->thread_count + 1, wanted);
    }
    return ZERO_OK;
}

static zero_result threads_create(void **state, const struct off_io_engine_config *config,
                                  struct base_error *error)
{
    *state = NULL;
    struct threads_engine *engine = base_calloc(1, sizeof *engine);
    if (!engine)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for %u transfers", config->depth);
    prepare_waiting(engine);
    engine->depth = config->depth;
    lay_tables(engine, config->depth);
    const zero_result result =
        engine->tables.failed
            ? zero_fail(error, ZERO_E_NOMEM, "no memory for %u transfers", config->depth)
            : start_threads(engine, error);
    if (result) {
        threads_destroy(engine);
        return result;
    }
    *state = engine;
    return ZERO_OK;
}

static zero_result threads_add_file(void *state, int fd, const char *path, struct base_error *error)
{
    (void)state, (void)fd, (void)path, (void)error;
    return ZERO_OK;
}

static void threads_submit(void *state, unsigned number, const struct off_transfer *transfer)
{
    struct threads_engine *engine = state;
    engine->transfers[number] = *transfer;
    put(engine, &engine->submitted, number);
}

static zero_result threads_commit(void *state, struct base_error *error)
{
    (void)error;
    struct threads_engine *engine = state;
    pthread_mutex_lock(&engine->mutex);
    while (engine->submitted.count > 0)
        put(engine, &engine->given, take(engine, &engine->submitted));
    pthread_cond_broadcast(&engine->work);
    pthread_mutex_unlock(&engine->mutex);
    return ZERO_OK;
}

static zero_result threads_reap(void *state, uint64_t deadline_ns, struct off_completion *done,
                                size_t most, size_t *count, struct base_error *error)
{
    (void)error;
    struct threads_engine *engine = state;
    pthread_mutex_lock(&engine->mutex);
    while (engine->done.count == 0 && !engine->woken && deadline_ns > 0)
        if (base_cond_wait_until(&engine->news, &engine->mutex, deadline_ns) == ETIMEDOUT)
            break;
    for (*count = 0; *count < most && engine->done.count > 0; ++*count) {
        const unsigned number = take(engine, &engine->done);
        assert(number < engine->depth);
        done[*count] = (struct off_completion){.number = number, .result = engine->results[number]};
    }
    engine->woken = false;
    pthread_mutex_unlock(&engine->mutex);
    return ZERO_OK;
}

static void threads_wake(void *state)
{
    struct threads_engine *engine = state;
    pthread_mutex_lock(&engine->mutex);
    engine->woken = true;
    pthread_cond_signal(&engine->news);
    pthread_mutex_unlock(&engine->mutex);
}

const struct off_io_engine off_io_engine_threads = {
    .size = sizeof(struct off_io_engine),
    .name = "threads",
    .memory = threads_memory,
    .create = threads_create,
    .add_file = threads_add_file,
    .submit = threads_submit,
    .commit = threads_commit,
    .reap = threads_reap,
    .wake = threads_wake,
    .destroy = threads_destroy,
};
