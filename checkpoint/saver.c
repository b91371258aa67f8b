#include "checkpoint/block_queue.h"

#include "base/thread.h"

#include <assert.h>
#include <string.h>

enum order { NOTHING, WRITE, RUN, QUIT };

struct ckpt_saver {
    struct ckpt_saver_config config;
    struct ckpt_block_queue queue;
    unsigned char *blobs;

    pthread_t thread;
    bool started;
    pthread_cond_t ordered;
    enum order order; // what the thread is to do next
    _Atomic int state;

    struct ckpt_target target;
    struct ckpt_blob_source blob[CKPT_MAX_BLOBS];
    size_t blob_count;
    zero_result (*work)(void *user, struct base_error *error);
    void *work_user;
    struct ckpt_shard_entry entry;
};

/* ------------------------------------------------------------------ the thread */

static zero_result write_blob(struct ckpt_saver *saver, const struct ckpt_blob_source *blob)
{
    static const struct ckpt_block_code plain = {.element_bytes = 1};
    zero_result r =
        ckpt_shard_blob(saver->queue.writer, blob->number, blob->size, &saver->queue.error);
    for (size_t at = 0, count; !r && at < blob->size; at += count) {
        count = blob->size - at < CKPT_BLOCK_ELEMENTS ? blob->size - at : CKPT_BLOCK_ELEMENTS;
        r = ckpt_shard_block(saver->queue.writer, saver->queue.jobs[0].codec, plain, 0,
                             (const unsigned char *)blob->bytes + at, count, &saver->queue.error);
    }
    return r;
}

static zero_result write_sources(struct ckpt_saver *saver)
{
    for (size_t s = 0; s < saver->config.load.sources; s++) {
        const zero_result r =
            ckpt_shard_run(saver->queue.writer, &saver->config.sources[s].run, &saver->queue.error);
        if (r)
            return r;
    }
    return ckpt_block_queue_write(&saver->queue);
}

static zero_result write_shard(struct ckpt_saver *saver)
{
    const struct ckpt_store *store = saver->config.store;
    const struct ckpt_target *target = &saver->target;
    struct ckpt_file *file;
    zero_result r = ckpt_create_shard(store, target->path, target->id.step, target->id.rank, &file,
                                      &saver->queue.error);
    if (!r)
        r = ckpt_shard_begin(saver->queue.writer, store, file, &target->id, &saver->queue.error);
    for (size_t i = 0; !r && i < saver->blob_count; i++)
        r = write_blob(saver, &saver->blob[i]);
    if (!r)
        r = write_sources(saver);
    if (!r)
        r = ckpt_shard_finish(saver->queue.writer, &saver->entry, &saver->queue.error);
    else
        ckpt_shard_give_up(saver->queue.writer);
    const zero_result closed = store->close(&file, &saver->queue.error);
    return r ? r : closed;
}

/** Ends an order: its memory is needed no more, and callers that wait go on. */
static void end_order(struct ckpt_saver *saver, enum ckpt_save_state state)
{
    pthread_mutex_lock(&saver->queue.mutex);
    // The state comes last: a caller that sees it may begin the next save without the mutex.
    ckpt_block_queue_end(&saver->queue);
    atomic_store_explicit(&saver->state, state, memory_order_release);
    pthread_mutex_unlock(&saver->queue.mutex);
}

static void give_order(struct ckpt_saver *saver, enum order order)
{
    pthread_mutex_lock(&saver->queue.mutex);
    assert(order != NOTHING && (saver->order == NOTHING || order == QUIT));
    saver->order = order;
    pthread_cond_signal(&saver->ordered);
    pthread_mutex_unlock(&saver->queue.mutex);
}

static enum order await_order(struct ckpt_saver *saver)
{
    pthread_mutex_lock(&saver->queue.mutex);
    while (saver->order == NOTHING)
        pthread_cond_wait(&saver->ordered, &saver->queue.mutex);
    const enum order order = saver->order;
    if (order != QUIT)
        saver->order = NOTHING;
    pthread_mutex_unlock(&saver->queue.mutex);
    return order;
}

static void *saver_main(void *argument)
{
    struct ckpt_saver *saver = argument;
    for (;;) {
        const enum order order = await_order(saver);
        if (order == QUIT)
            return NULL;
        if (order == WRITE) {
            const zero_result r = write_shard(saver);
            end_order(saver, r == ZERO_OK      ? CKPT_SAVE_DURABLE
                             : r == ZERO_AGAIN ? CKPT_SAVE_IDLE
                                               : CKPT_SAVE_FAILED);
        } else {
            const zero_result r = saver->work(saver->work_user, &saver->queue.error);
            end_order(saver, r ? CKPT_SAVE_FAILED : CKPT_SAVE_DONE);
        }
    }
}

/* ------------------------------------------------------------------ life */

size_t ckpt_saver_bytes(const struct ckpt_saver_load *load, int level, size_t budget)
{
    return sizeof(struct ckpt_saver) + ckpt_block_queue_bytes(load, level, budget) +
           load->blob_bytes;
}

static zero_result start_thread(struct ckpt_saver *saver, struct base_error *error)
{
    const int errnum = base_thread_start(&saver->thread, "thread", 0, saver_main, saver);
    saver->started = errnum == 0;
    return errnum ? zero_fail_errno(error, ZERO_E_NOMEM, errnum, "no thread for saving") : ZERO_OK;
}

zero_result ckpt_saver_create(struct ckpt_saver **out, const struct ckpt_saver_config *config,
                              struct base_error *error)
{
    *out = NULL;
    struct ckpt_saver *saver = base_calloc(1, sizeof *saver);
    if (!saver)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for saving");
    saver->config = *config;
    pthread_cond_init(&saver->ordered, NULL);
    zero_result r = ckpt_block_queue_init(&saver->queue, &saver->config, error);
    if (!r)
        saver->blobs = base_calloc(1, config->load.blob_bytes);
    if (!r && !saver->blobs)
        r = zero_fail(error, ZERO_E_NOMEM, "no memory for saving %zu bytes of blobs",
                      config->load.blob_bytes);
    if (!r)
        r = start_thread(saver, error);
    if (r) {
        ckpt_saver_destroy(saver);
        return r;
    }
    end_order(saver, CKPT_SAVE_IDLE);
    *out = saver;
    return ZERO_OK;
}

void ckpt_saver_destroy(struct ckpt_saver *saver)
{
    if (!saver)
        return;
    if (saver->started) {
        ckpt_saver_cancel(saver);
        give_order(saver, QUIT);
        pthread_join(saver->thread, NULL);
    }
    pthread_cond_destroy(&saver->ordered);
    ckpt_block_queue_free(&saver->queue);
    base_free(saver->blobs);
    base_free(saver);
}

void *ckpt_saver_copy_buffer(const struct ckpt_saver *saver, size_t *bytes)
{
    *bytes = saver->queue.copies.size;
    return saver->queue.copies.memory;
}

/* ------------------------------------------------------------------ the program's side */

zero_result ckpt_saver_start(struct ckpt_saver *saver, const struct ckpt_target *target,
                             const struct ckpt_blob_source *blobs, size_t blob_count,
                             struct base_error *error)
{
    assert(ckpt_saver_state(saver) != CKPT_SAVE_WRITING);
    assert(ckpt_saver_state(saver) != CKPT_SAVE_RUNNING);
    size_t room = saver->config.load.blob_bytes;
    unsigned char *copy = saver->blobs;
    if (blob_count > CKPT_MAX_BLOBS || blob_count > saver->config.load.blobs)
        return zero_fail(error, ZERO_E_LIMIT, "%zu blobs", blob_count);
    for (size_t i = 0; i < blob_count; i++) {
        if (blobs[i].size > room)
            return zero_fail(error, ZERO_E_LIMIT, "blobs of more than %zu bytes",
                             saver->config.load.blob_bytes);
        saver->blob[i] = blobs[i];
        saver->blob[i].bytes = copy;
        if (blobs[i].size > 0)
            memcpy(copy, blobs[i].bytes, blobs[i].size);
        copy += blobs[i].size;
        room -= blobs[i].size;
    }
    saver->blob_count = blob_count;
    saver->target = *target;
    atomic_store_explicit(saver->config.progress, 0, memory_order_relaxed);
    ckpt_block_queue_begin(&saver->queue);
    atomic_store_explicit(&saver->state, CKPT_SAVE_WRITING, memory_order_relaxed);
    give_order(saver, WRITE);
    return ZERO_OK;
}

void ckpt_saver_run(struct ckpt_saver *saver,
                    zero_result (*work)(void *user, struct base_error *error), void *user)
{
    saver->work = work;
    saver->work_user = user;
    atomic_store_explicit(&saver->state, CKPT_SAVE_RUNNING, memory_order_relaxed);
    give_order(saver, RUN);
}

void ckpt_saver_before_change(struct ckpt_saver *saver)
{
    struct ckpt_block_queue *queue = &saver->queue;
    if (ckpt_saver_state(saver) != CKPT_SAVE_WRITING)
        return;
    pthread_mutex_lock(&queue->mutex);
    ckpt_block_queue_copy(queue);
    ckpt_block_queue_await(queue, ckpt_block_queue_count(queue));
    pthread_mutex_unlock(&queue->mutex);
}

size_t ckpt_saver_blocks_read(struct ckpt_saver *saver)
{
    pthread_mutex_lock(&saver->queue.mutex);
    const size_t blocks = ckpt_block_queue_passed(&saver->queue);
    pthread_mutex_unlock(&saver->queue.mutex);
    return blocks;
}

void ckpt_saver_wait_for_blocks(struct ckpt_saver *saver, size_t blocks)
{
    pthread_mutex_lock(&saver->queue.mutex);
    ckpt_block_queue_await(&saver->queue, blocks);
    pthread_mutex_unlock(&saver->queue.mutex);
}

enum ckpt_save_state ckpt_saver_state(const struct ckpt_saver *saver)
{
    return (enum ckpt_save_state)atomic_load_explicit(&saver->state, memory_order_acquire);
}

const struct ckpt_shard_entry *ckpt_saver_entry(const struct ckpt_saver *saver)
{
    return &saver->entry;
}

const struct base_error *ckpt_saver_error(const struct ckpt_saver *saver)
{
    return &saver->queue.error;
}

static bool busy(const struct ckpt_saver *saver)
{
    const enum ckpt_save_state state = ckpt_saver_state(saver);
    return state == CKPT_SAVE_WRITING || state == CKPT_SAVE_RUNNING;
}

void ckpt_saver_wait(struct ckpt_saver *saver)
{
    pthread_mutex_lock(&saver->queue.mutex);
    while (busy(saver))
        ckpt_block_queue_help(&saver->queue);
    pthread_mutex_unlock(&saver->queue.mutex);
}

void ckpt_saver_cancel(struct ckpt_saver *saver)
{
    pthread_mutex_lock(&saver->queue.mutex);
    saver->queue.cancelled = true;
    while (busy(saver))
        pthread_cond_wait(&saver->queue.moved, &saver->queue.mutex);
    atomic_store_explicit(&saver->state, CKPT_SAVE_IDLE, memory_order_relaxed);
    pthread_mutex_unlock(&saver->queue.mutex);
}
