#include "checkpoint/shard/write_behind.h"

#include "base/arena.h"
#include "base/thread.h"

#include <assert.h>
#include <string.h>

enum { RING = CKPT_WRITE_BEHIND_RING, MEMORY = RING + CKPT_WRITE_BEHIND_MOST };
_Static_assert(RING % CKPT_WRITE_BEHIND_PIECE == 0, "a piece ends where the ring does");

// The disk is to have the next write when one is done: while its thread wakes up another one's is
// under way.
enum { WRITERS = 2 };

#define NOWHERE UINT64_MAX

struct writer {
    struct ckpt_write_behind *behind;
    pthread_t thread;
    bool started;
    uint64_t at; // where what it writes begins; or NOWHERE
};

struct ckpt_write_behind {
    struct base_arena ring; // and behind it room for a part that begins before its end
    const struct ckpt_store *store;
    struct ckpt_file *file;

    struct writer writers[WRITERS];
    pthread_mutex_t mutex;
    pthread_cond_t more, less;
    bool quit;
    uint64_t taken, begun; // bytes of the file: by callers, and by threads that write
    uint64_t open[CKPT_WRITE_BEHIND_PARTS]; // where parts begin that are being made; or NOWHERE
    struct base_error error;                // the first one: what is given back is passed by
};

/* ------------------------------------------------------------------ the threads */

/** Bytes of the file up to which all are made. */
static uint64_t made(const struct ckpt_write_behind *behind)
{
    uint64_t end = behind->taken;
    for (size_t i = 0; i < CKPT_WRITE_BEHIND_PARTS; i++)
        end = behind->open[i] < end ? behind->open[i] : end;
    return end;
}

/** Bytes of the file up to which all are written. */
static uint64_t written(const struct ckpt_write_behind *behind)
{
    uint64_t end = behind->begun;
    for (size_t i = 0; i < WRITERS; i++)
        end = behind->writers[i].at < end ? behind->writers[i].at : end;
    return end;
}

/** Whether a whole piece can be written. */
static bool is_ready(const struct ckpt_write_behind *behind)
{
    assert(made(behind) >= behind->begun);
    return made(behind) - behind->begun >= CKPT_WRITE_BEHIND_PIECE;
}

/** Waits for a piece to write; false: there will be none. With the mutex held. */
static bool await_piece(struct ckpt_write_behind *behind)
{
    while (!is_ready(behind) && !behind->quit)
        pthread_cond_wait(&behind->more, &behind->mutex);
    return is_ready(behind);
}

static void keep_error(struct ckpt_write_behind *behind, const struct base_error *error)
{
    if (!behind->error.result)
        behind->error = *error;
}

/** With the mutex held, which it gives back meanwhile. */
static void write_piece(struct ckpt_write_behind *behind, struct writer *writer)
{
    assert(writer->at == NOWHERE && is_ready(behind));
    const uint64_t offset = behind->begun;
    struct base_error error = {0};
    behind->begun += CKPT_WRITE_BEHIND_PIECE;
    if (behind->error.result)
        return;
    writer->at = offset;
    pthread_mutex_unlock(&behind->mutex);
    behind->store->write(behind->file, behind->ring.memory + offset % RING, CKPT_WRITE_BEHIND_PIECE,
                         offset, &error);
    pthread_mutex_lock(&behind->mutex);
    writer->at = NOWHERE;
    keep_error(behind, &error);
}

static void *writer_main(void *argument)
{
    struct writer *writer = argument;
    struct ckpt_write_behind *behind = writer->behind;
    pthread_mutex_lock(&behind->mutex);
    while (await_piece(behind)) {
        write_piece(behind, writer);
        pthread_cond_broadcast(&behind->less);
    }
    pthread_mutex_unlock(&behind->mutex);
    return NULL;
}

/* ------------------------------------------------------------------ life */

size_t ckpt_write_behind_bytes(void)
{
    return sizeof(struct ckpt_write_behind) + MEMORY;
}

/** Nothing is taken, and nothing written. */
static void rewind_file(struct ckpt_write_behind *behind)
{
    behind->taken = behind->begun = 0;
    for (size_t i = 0; i < CKPT_WRITE_BEHIND_PARTS; i++)
        behind->open[i] = NOWHERE;
}

static zero_result start_threads(struct ckpt_write_behind *behind, struct base_error *error)
{
    for (size_t i = 0; i < WRITERS; i++) {
        struct writer *writer = &behind->writers[i];
        *writer = (struct writer){.behind = behind, .at = NOWHERE};
        const int errnum = base_thread_start(&writer->thread, "thread", 0, writer_main, writer);
        writer->started = errnum == 0;
        if (errnum)
            return zero_fail_errno(error, ZERO_E_NOMEM, errnum, "no thread for writing");
    }
    return ZERO_OK;
}

zero_result ckpt_write_behind_create(struct ckpt_write_behind **out, struct base_error *error)
{
    *out = NULL;
    struct ckpt_write_behind *behind = base_calloc(1, sizeof *behind);
    if (!behind)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for writing");
    pthread_mutex_init(&behind->mutex, NULL);
    pthread_cond_init(&behind->more, NULL);
    pthread_cond_init(&behind->less, NULL);
    rewind_file(behind);
    zero_result result = base_arena_init(&behind->ring, MEMORY, CKPT_STORE_UNIT, error);
    if (!result)
        result = start_threads(behind, error);
    if (result) {
        ckpt_write_behind_destroy(behind);
        return result;
    }
    *out = behind;
    return ZERO_OK;
}

void ckpt_write_behind_destroy(struct ckpt_write_behind *behind)
{
    if (!behind)
        return;
    pthread_mutex_lock(&behind->mutex);
    behind->quit = true;
    pthread_cond_broadcast(&behind->more);
    pthread_mutex_unlock(&behind->mutex);
    for (size_t i = 0; i < WRITERS; i++)
        if (behind->writers[i].started)
            pthread_join(behind->writers[i].thread, NULL);
    pthread_cond_destroy(&behind->less);
    pthread_cond_destroy(&behind->more);
    pthread_mutex_destroy(&behind->mutex);
    base_arena_free(&behind->ring);
    base_free(behind);
}

/* ------------------------------------------------------------------ the callers' side */

void ckpt_write_behind_begin(struct ckpt_write_behind *behind, const struct ckpt_store *store,
                             struct ckpt_file *file)
{
    // A thread may look, if only because it has just started, or was woken for nothing.
    pthread_mutex_lock(&behind->mutex);
    behind->store = store;
    behind->file = file;
    rewind_file(behind);
    base_error_clear(&behind->error);
    pthread_mutex_unlock(&behind->mutex);
}

/** What has gone wrong so far. With the mutex held. */
static zero_result trouble(const struct ckpt_write_behind *behind, struct base_error *error)
{
    const struct base_error *first = &behind->error;
    return first->result ? zero_fail(error, first->result, "%s", first->message) : ZERO_OK;
}

static uint64_t *find_open(struct ckpt_write_behind *behind, uint64_t offset)
{
    uint64_t *open = behind->open;
    while (*open != offset)
        open++;
    assert(open < behind->open + CKPT_WRITE_BEHIND_PARTS);
    return open;
}

zero_result ckpt_write_behind_reserve(struct ckpt_write_behind *behind, size_t bytes,
                                      struct ckpt_write_behind_part *part, struct base_error *error)
{
    assert(bytes <= CKPT_WRITE_BEHIND_MOST);
    pthread_mutex_lock(&behind->mutex);
    while (behind->taken + bytes > written(behind) + RING)
        pthread_cond_wait(&behind->less, &behind->mutex);
    const zero_result result = trouble(behind, error);
    if (!result) {
        const uint64_t offset = behind->taken;
        *part = (struct ckpt_write_behind_part){behind->ring.memory + offset % RING, offset, bytes};
        *find_open(behind, NOWHERE) = offset;
        behind->taken += bytes;
    }
    pthread_mutex_unlock(&behind->mutex);
    return result;
}

void ckpt_write_behind_submit(struct ckpt_write_behind *behind,
                              const struct ckpt_write_behind_part *part)
{
    const size_t end = (size_t)(part->offset % RING) + part->bytes;
    if (end > RING)
        memcpy(behind->ring.memory, behind->ring.memory + RING, end - RING);
    pthread_mutex_lock(&behind->mutex);
    *find_open(behind, part->offset) = NOWHERE;
    if (is_ready(behind))
        pthread_cond_signal(&behind->more);
    pthread_mutex_unlock(&behind->mutex);
}

zero_result ckpt_write_behind_end(struct ckpt_write_behind *behind, struct base_error *error)
{
    struct base_error last = {0};
    pthread_mutex_lock(&behind->mutex);
    const size_t rest = (size_t)(behind->taken % CKPT_WRITE_BEHIND_PIECE);
    const uint64_t pieces = behind->taken - rest;
    if (rest > 0 && !behind->error.result) {
        // Nothing is left to be made beside it.
        assert(made(behind) == behind->taken);
        pthread_mutex_unlock(&behind->mutex);
        behind->store->write(behind->file, behind->ring.memory + pieces % RING, rest, pieces,
                             &last);
        pthread_mutex_lock(&behind->mutex);
        keep_error(behind, &last);
    }
    while (written(behind) < pieces)
        pthread_cond_wait(&behind->less, &behind->mutex);
    const zero_result result = trouble(behind, error);
    pthread_mutex_unlock(&behind->mutex);
    return result;
}

void ckpt_write_behind_cancel(struct ckpt_write_behind *behind)
{
    pthread_mutex_lock(&behind->mutex);
    behind->taken = behind->begun; // what is being written is the last
    while (written(behind) < behind->begun)
        pthread_cond_wait(&behind->less, &behind->mutex);
    rewind_file(behind);
    pthread_mutex_unlock(&behind->mutex);
}
