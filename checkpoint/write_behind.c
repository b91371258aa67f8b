#include "checkpoint/write_behind.h"

#include "base/arena.h"
#include "base/thread.h"

#include <string.h>

// One is filled, one is written, and one is there for whoever is ahead.
enum { BUFFERS = 3, BUFFER = CKPT_BEHIND_BYTES + CKPT_BEHIND_ROOM };

struct ckpt_behind {
    struct base_arena buffers;
    const struct ckpt_store *store;
    struct ckpt_file *file;
    ckpt_behind_fn look;
    void *user;

    pthread_t thread;
    bool started;
    pthread_mutex_t mutex;
    pthread_cond_t more, less;
    bool quit;
    uint64_t handed_over, written; // buffers of the file, whole ones
    struct base_error error;       // the first one: what is handed over is passed by
};

static unsigned char *buffer_of(const struct ckpt_behind *behind, uint64_t number)
{
    return behind->buffers.memory + number % BUFFERS * BUFFER;
}

/* ------------------------------------------------------------------ the thread */

/** Waits for a buffer to write; false: there will be none. With the mutex held. */
static bool await_buffer(struct ckpt_behind *behind)
{
    while (behind->written == behind->handed_over && !behind->quit)
        pthread_cond_wait(&behind->more, &behind->mutex);
    return !behind->quit;
}

/** Without the mutex: nobody fills this buffer, and the file's end waits for it. */
static zero_result write_buffer(const struct ckpt_behind *behind, uint64_t number,
                                struct base_error *error)
{
    const unsigned char *buffer = buffer_of(behind, number);
    const uint64_t offset = number * CKPT_BEHIND_BYTES;
    if (behind->look)
        behind->look(behind->user, buffer, offset);
    return behind->store->write(behind->file, buffer, CKPT_BEHIND_BYTES, offset, error);
}

static void *behind_main(void *argument)
{
    struct ckpt_behind *behind = argument;
    struct base_error error = {0};
    pthread_mutex_lock(&behind->mutex);
    while (await_buffer(behind)) {
        const uint64_t number = behind->written;
        if (!behind->error.result) {
            pthread_mutex_unlock(&behind->mutex);
            base_error_clear(&error);
            write_buffer(behind, number, &error);
            pthread_mutex_lock(&behind->mutex);
            behind->error = error;
        }
        behind->written++;
        pthread_cond_signal(&behind->less);
    }
    pthread_mutex_unlock(&behind->mutex);
    return NULL;
}

/* ------------------------------------------------------------------ life */

size_t ckpt_behind_bytes(void)
{
    return sizeof(struct ckpt_behind) + (size_t)BUFFERS * BUFFER;
}

static zero_result start_thread(struct ckpt_behind *behind, struct base_error *error)
{
    const int errnum = base_thread_start(&behind->thread, "thread", 0, behind_main, behind);
    behind->started = errnum == 0;
    return errnum ? zero_fail_errno(error, ZERO_E_NOMEM, errnum, "no thread for writing") : ZERO_OK;
}

zero_result ckpt_behind_create(struct ckpt_behind **out, struct base_error *error)
{
    *out = NULL;
    struct ckpt_behind *behind = base_calloc(1, sizeof *behind);
    if (!behind)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for writing");
    pthread_mutex_init(&behind->mutex, NULL);
    pthread_cond_init(&behind->more, NULL);
    pthread_cond_init(&behind->less, NULL);
    zero_result result =
        base_arena_init(&behind->buffers, (size_t)BUFFERS * BUFFER, CKPT_STORE_UNIT, error);
    if (!result)
        result = start_thread(behind, error);
    if (result) {
        ckpt_behind_destroy(behind);
        return result;
    }
    *out = behind;
    return ZERO_OK;
}

void ckpt_behind_destroy(struct ckpt_behind *behind)
{
    if (!behind)
        return;
    if (behind->started) {
        pthread_mutex_lock(&behind->mutex);
        behind->quit = true;
        pthread_cond_signal(&behind->more);
        pthread_mutex_unlock(&behind->mutex);
        pthread_join(behind->thread, NULL);
    }
    pthread_cond_destroy(&behind->less);
    pthread_cond_destroy(&behind->more);
    pthread_mutex_destroy(&behind->mutex);
    base_arena_free(&behind->buffers);
    base_free(behind);
}

/* ------------------------------------------------------------------ the caller's side */

void ckpt_behind_begin(struct ckpt_behind *behind, const struct ckpt_store *store,
                       struct ckpt_file *file, ckpt_behind_fn look, void *user)
{
    // The thread may look, if only because it has just started, or was woken for nothing.
    pthread_mutex_lock(&behind->mutex);
    behind->store = store;
    behind->file = file;
    behind->look = look;
    behind->user = user;
    behind->handed_over = behind->written = 0;
    base_error_clear(&behind->error);
    pthread_mutex_unlock(&behind->mutex);
}

unsigned char *ckpt_behind_buffer(const struct ckpt_behind *behind)
{
    return buffer_of(behind, behind->handed_over);
}

/** What has gone wrong so far. With the mutex held. */
static zero_result trouble(const struct ckpt_behind *behind, struct base_error *error)
{
    const struct base_error *first = &behind->error;
    return first->result ? zero_fail(error, first->result, "%s", first->message) : ZERO_OK;
}

zero_result ckpt_behind_write(struct ckpt_behind *behind, size_t used, struct base_error *error)
{
    const unsigned char *full = ckpt_behind_buffer(behind);
    pthread_mutex_lock(&behind->mutex);
    behind->handed_over++;
    pthread_cond_signal(&behind->more);
    while (behind->handed_over - behind->written == BUFFERS)
        pthread_cond_wait(&behind->less, &behind->mutex);
    const zero_result result = trouble(behind, error);
    pthread_mutex_unlock(&behind->mutex);
    memcpy(ckpt_behind_buffer(behind), full + CKPT_BEHIND_BYTES, used - CKPT_BEHIND_BYTES);
    return result;
}

zero_result ckpt_behind_wait(struct ckpt_behind *behind, struct base_error *error)
{
    pthread_mutex_lock(&behind->mutex);
    while (behind->written < behind->handed_over)
        pthread_cond_wait(&behind->less, &behind->mutex);
    const zero_result result = trouble(behind, error);
    pthread_mutex_unlock(&behind->mutex);
    return result;
}

zero_result ckpt_behind_end(struct ckpt_behind *behind, size_t used, struct base_error *error)
{
    const zero_result result = ckpt_behind_wait(behind, error);
    if (result || used == 0)
        return result;
    // There is nothing left to be made beside it.
    return behind->store->write(behind->file, ckpt_behind_buffer(behind), used,
                                behind->handed_over * CKPT_BEHIND_BYTES, error);
}
