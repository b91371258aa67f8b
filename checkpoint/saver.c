#include "checkpoint/saver.h"

#include "base/arena.h"
#include "base/cpu.h"
#include "base/thread.h"

#include <assert.h>
#include <string.h>

enum order { NOTHING, WRITE, RUN, QUIT };

// Who encodes never waits for whose block comes before: there is another codec to go on with.
enum { CODECS = 3 };

enum stage { FREE, BUSY, ENCODED };

// A block on its way into the shard.
struct job {
    struct ckpt_block_codec *codec;
    enum stage stage;
    size_t block;
    bool in_place; // it is read from the program's memory
    struct ckpt_shard_part part;
};

// Blocks are numbered through all sources, in the order in which they are written. The thread goes
// upwards and reads them in place, and so does the program when it has nothing else to do;
// ckpt_saver_before_change() goes downwards and copies them. Where they meet, the saver has nothing
// left to read from the program's memory.
struct ckpt_saver {
    struct ckpt_saver_config config;
    struct job jobs[CODECS];
    struct ckpt_shard_writer *writer;
    size_t *first_block; // of each source, and the end
    size_t *copy_at;     // of each block from `copied` on: where its copy is in `copies`
    struct base_arena copies;
    unsigned char *blobs;

    pthread_t thread;
    bool started;
    pthread_mutex_t mutex;
    pthread_cond_t ordered, moved;
    enum order order; // what the thread is to do next
    bool cancelled;
    _Atomic int state;

    size_t next;    // the first block that nobody reads or has read
    size_t placed;  // the first block that has no place in the shard
    bool placing;   // and is about to get one
    unsigned idle;  // who encodes and finds nothing to do
    size_t copied;  // the first block that is a copy
    size_t room;    // of `copies` that is used
    bool copying;   // block `copied` is on its way to its copy
    size_t awaited; // so many blocks that the program's memory is needed for; SIZE_MAX: by nobody
    bool open;      // blocks can be encoded
    bool spare;     // there is a processor besides the thread's

    struct ckpt_target target;
    struct ckpt_blob_source blob[CKPT_MAX_BLOBS];
    size_t blob_count;
    zero_result (*work)(void *user, struct base_error *error);
    void *work_user;
    struct ckpt_shard_entry entry;
    struct base_error error; // the first one, the thread's own
    struct base_error lost;  // the first one of a copy: ckpt_saver_before_change() finds it
};

/** Some elements of a source's field. */
struct part {
    const struct ckpt_source *source;
    int field;
    uint64_t first; // of the slice
    size_t count;
};

static size_t element_bytes(const struct part *part)
{
    return part->source->code[part->field].element_bytes;
}

static size_t part_bytes(const struct part *part)
{
    return part->count * element_bytes(part);
}

static const void *part_memory(const struct part *part)
{
    assert(part->first >= part->source->run.first && part->count > 0);
    const unsigned char *field = part->source->field[part->field];
    return field + (part->first - part->source->run.first) * element_bytes(part);
}

static size_t source_blocks(const struct ckpt_source *source)
{
    return (size_t)ckpt_block_count(source->run.first, source->run.count) * (size_t)source->fields;
}

/** The source of block `block`. */
static size_t source_of(const struct ckpt_saver *saver, size_t block)
{
    assert(block < saver->first_block[saver->config.load.sources]);
    size_t low = 0, high = saver->config.load.sources;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (saver->first_block[middle] <= block)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static struct part part_of(const struct ckpt_saver *saver, size_t block)
{
    const size_t s = source_of(saver, block);
    const struct ckpt_source *source = &saver->config.sources[s];
    const size_t k = block - saver->first_block[s];
    const struct ckpt_run *run = &source->run;
    const uint64_t number = run->first / CKPT_BLOCK_ELEMENTS + k / (size_t)source->fields;
    const uint64_t border = number * CKPT_BLOCK_ELEMENTS;
    const uint64_t first = border > run->first ? border : run->first;
    return (struct part){
        .source = source,
        .field = (int)(k % (size_t)source->fields),
        .first = first,
        .count = (size_t)(ckpt_block_end(first, run->first + run->count) - first),
    };
}

/* ------------------------------------------------------------------ the thread */

static zero_result write_blob(struct ckpt_saver *saver, const struct ckpt_blob_source *blob)
{
    static const struct ckpt_block_code plain = {.element_bytes = 1};
    zero_result r = ckpt_shard_blob(saver->writer, blob->number, blob->size, &saver->error);
    for (size_t at = 0, count; !r && at < blob->size; at += count) {
        count = blob->size - at < CKPT_BLOCK_ELEMENTS ? blob->size - at : CKPT_BLOCK_ELEMENTS;
        r = ckpt_shard_block(saver->writer, saver->jobs[0].codec, plain, 0,
                             (const unsigned char *)blob->bytes + at, count, &saver->error);
    }
    return r;
}

/** Whether blocks are encoded. With the mutex held, as all of this. */
static bool goes_on(const struct ckpt_saver *saver)
{
    return saver->open && !saver->cancelled && !saver->error.result && !saver->lost.result;
}

static bool has_jobs(const struct ckpt_saver *saver, enum stage stage)
{
    for (int i = 0; i < CODECS; i++)
        if (saver->jobs[i].stage == stage)
            return true;
    return false;
}

static size_t block_count(const struct ckpt_saver *saver)
{
    return saver->first_block[saver->config.load.sources];
}

/** How many blocks, from the first on, are not read from the program's memory any more. */
static size_t passed(const struct ckpt_saver *saver)
{
    size_t blocks = saver->next >= saver->copied ? block_count(saver) : saver->next;
    for (int i = 0; i < CODECS; i++)
        if (saver->jobs[i].in_place && saver->jobs[i].block < blocks)
            blocks = saver->jobs[i].block;
    return blocks;
}

static void keep_first(struct base_error *first, const struct base_error *error)
{
    if (!first->result)
        *first = *error;
}

/** A stage has ended. Who waits for many blocks is not woken for each. */
static void enter_stage(struct ckpt_saver *saver, struct job *job, enum stage stage)
{
    const bool gives_back = job->in_place && stage == FREE;
    job->stage = stage;
    job->in_place = job->in_place && !gives_back;
    if (saver->idle > 0 || (gives_back && passed(saver) >= saver->awaited))
        pthread_cond_broadcast(&saver->moved);
}

/** The block that comes next in the shard gets its place, and goes there. */
static void put(struct ckpt_saver *saver, struct job *job)
{
    assert(job->stage == ENCODED && job->block == saver->placed && !saver->placing);
    struct base_error error = {0};
    job->stage = BUSY;
    saver->placing = true;
    pthread_mutex_unlock(&saver->mutex);
    const zero_result r = ckpt_shard_take(saver->writer, &job->part, &error);
    pthread_mutex_lock(&saver->mutex);
    saver->placing = false;
    saver->placed++;
    keep_first(&saver->error, &error);
    if (saver->idle > 0)
        pthread_cond_broadcast(&saver->moved);
    pthread_mutex_unlock(&saver->mutex);
    if (!r)
        ckpt_shard_put(saver->writer, &job->part);
    pthread_mutex_lock(&saver->mutex);
    enter_stage(saver, job, FREE);
}

/** Where the elements of block `job->block` are. */
static const void *find(struct ckpt_saver *saver, struct job *job, const struct part *part)
{
    while (saver->copying && job->block == saver->copied)
        pthread_cond_wait(&saver->moved, &saver->mutex);
    job->in_place = job->block < saver->copied;
    if (!job->in_place)
        return saver->copies.memory + saver->copy_at[job->block];
    return saver->config.fetch ? NULL : part_memory(part);
}

static void encode(struct ckpt_saver *saver, struct job *job, const struct part *part,
                   const void *elements, struct base_error *error)
{
    const struct ckpt_saver_config *config = &saver->config;
    zero_result r = ZERO_OK;
    if (config->fetch)
        r = config->fetch(config->fetch_user, part->source, part->field, part->first, part->count,
                          &elements, error);
    if (!r)
        r = ckpt_shard_encode(&job->part, job->codec, part->source->code[part->field],
                              (uint16_t)part->field, elements, part->count, error);
    if (!r && config->seen)
        config->seen(config->seen_user, part->source, part->field, part->first, part->count,
                     elements);
    atomic_fetch_add_explicit(config->progress, part_bytes(part), memory_order_relaxed);
}

/** The next block is encoded. */
static void encode_next(struct ckpt_saver *saver, struct job *job)
{
    assert(job->stage == FREE && saver->next < block_count(saver));
    struct base_error error = {0};
    job->stage = BUSY;
    job->block = saver->next++;
    const struct part part = part_of(saver, job->block);
    const void *elements = find(saver, job, &part);
    pthread_mutex_unlock(&saver->mutex);
    encode(saver, job, &part, elements, &error);
    pthread_mutex_lock(&saver->mutex);
    keep_first(&saver->error, &error);
    enter_stage(saver, job, ENCODED);
}

/** Brings some block further; false: there is none just now. */
static bool advance(struct ckpt_saver *saver)
{
    struct job *unused = NULL;
    if (!goes_on(saver))
        return false;
    for (int i = 0; i < CODECS; i++) {
        struct job *job = &saver->jobs[i];
        if (job->stage == ENCODED && job->block == saver->placed && !saver->placing) {
            put(saver, job);
            return true;
        }
        if (job->stage == FREE)
            unused = job;
    }
    if (!unused || saver->next == block_count(saver))
        return false;
    encode_next(saver, unused);
    return true;
}

static void idle(struct ckpt_saver *saver)
{
    saver->idle++;
    pthread_cond_wait(&saver->moved, &saver->mutex);
    saver->idle--;
}

/** Until all blocks are in the shard, or there is nothing to be done for them any more. */
static zero_result work_to_the_end(struct ckpt_saver *saver)
{
    assert(!saver->open && saver->placed == 0);
    const size_t blocks = block_count(saver);
    saver->open = true;
    pthread_cond_broadcast(&saver->moved);
    while (has_jobs(saver, BUSY) || (goes_on(saver) && saver->placed < blocks))
        if (!advance(saver))
            idle(saver);
    saver->open = false;
    for (int i = 0; i < CODECS; i++)
        enter_stage(saver, &saver->jobs[i], FREE);
    keep_first(&saver->error, &saver->lost);
    return saver->error.result ? saver->error.result : saver->cancelled ? ZERO_AGAIN : ZERO_OK;
}

static zero_result write_sources(struct ckpt_saver *saver)
{
    for (size_t s = 0; s < saver->config.load.sources; s++) {
        const zero_result r =
            ckpt_shard_run(saver->writer, &saver->config.sources[s].run, &saver->error);
        if (r)
            return r;
    }
    pthread_mutex_lock(&saver->mutex);
    const zero_result r = work_to_the_end(saver);
    pthread_mutex_unlock(&saver->mutex);
    return r;
}

static zero_result write_shard(struct ckpt_saver *saver)
{
    const struct ckpt_store *store = saver->config.store;
    const struct ckpt_target *target = &saver->target;
    struct ckpt_file *file;
    zero_result r = ckpt_create_shard(store, target->path, target->id.step, target->id.rank, &file,
                                      &saver->error);
    if (!r)
        r = ckpt_shard_begin(saver->writer, store, file, &target->id, &saver->error);
    for (size_t i = 0; !r && i < saver->blob_count; i++)
        r = write_blob(saver, &saver->blob[i]);
    if (!r)
        r = write_sources(saver);
    if (!r)
        r = ckpt_shard_finish(saver->writer, &saver->entry, &saver->error);
    else
        ckpt_shard_give_up(saver->writer);
    const zero_result closed = store->close(&file, &saver->error);
    return r ? r : closed;
}

/** Ends an order: its memory is needed no more, and whoever waits goes on. */
static void end_order(struct ckpt_saver *saver, enum ckpt_save_state state)
{
    pthread_mutex_lock(&saver->mutex);
    saver->next = saver->copied = block_count(saver);
    atomic_store_explicit(&saver->state, state, memory_order_release);
    pthread_cond_broadcast(&saver->moved);
    pthread_mutex_unlock(&saver->mutex);
}

static void give_order(struct ckpt_saver *saver, enum order order)
{
    pthread_mutex_lock(&saver->mutex);
    assert(order != NOTHING && (saver->order == NOTHING || order == QUIT));
    saver->order = order;
    pthread_cond_signal(&saver->ordered);
    pthread_mutex_unlock(&saver->mutex);
}

static enum order await_order(struct ckpt_saver *saver)
{
    pthread_mutex_lock(&saver->mutex);
    while (saver->order == NOTHING)
        pthread_cond_wait(&saver->ordered, &saver->mutex);
    const enum order order = saver->order;
    if (order != QUIT)
        saver->order = NOTHING;
    pthread_mutex_unlock(&saver->mutex);
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
            const zero_result r = saver->work(saver->work_user, &saver->error);
            end_order(saver, r ? CKPT_SAVE_FAILED : CKPT_SAVE_DONE);
        }
    }
}

/* ------------------------------------------------------------------ life */

/** Bytes for copies: no more than there is to copy. */
static size_t copy_room(const struct ckpt_saver_load *load, size_t budget)
{
    return load->bytes < budget ? (size_t)load->bytes : budget;
}

/** Blocks of everything, blobs included, at most. */
static size_t all_blocks(const struct ckpt_saver_load *load)
{
    return load->blocks + load->blobs + load->blob_bytes / CKPT_BLOCK_ELEMENTS;
}

size_t ckpt_saver_bytes(const struct ckpt_saver_load *load, int level, size_t budget)
{
    return sizeof(struct ckpt_saver) + CODECS * ckpt_block_codec_bytes(level) +
           ckpt_shard_writer_bytes(load->sources, load->blobs, all_blocks(load)) +
           (load->sources + 1 + load->blocks) * sizeof(size_t) + load->blob_bytes +
           copy_room(load, budget);
}

static zero_result allocate(struct ckpt_saver *saver, struct base_error *error)
{
    const struct ckpt_saver_config *config = &saver->config;
    const struct ckpt_saver_load *load = &config->load;
    saver->first_block = base_calloc(load->sources + 1, sizeof *saver->first_block);
    saver->copy_at = base_calloc(load->blocks, sizeof *saver->copy_at);
    saver->blobs = base_calloc(1, load->blob_bytes);
    if (!saver->first_block || !saver->copy_at || !saver->blobs)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for saving %zu blocks", load->blocks);
    for (size_t i = 0; i < load->sources; i++)
        saver->first_block[i + 1] = saver->first_block[i] + source_blocks(&config->sources[i]);
    zero_result r =
        base_arena_init(&saver->copies, copy_room(load, config->budget), CKPT_STORE_UNIT, error);
    for (int i = 0; i < CODECS && !r; i++)
        r = ckpt_block_codec_create(&saver->jobs[i].codec, config->level, error);
    if (!r)
        r = ckpt_shard_writer_create(&saver->writer, load->sources, load->blobs, all_blocks(load),
                                     error);
    return r;
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
    saver->spare = base_cpu_allowed() > 1;
    saver->awaited = SIZE_MAX;
    pthread_mutex_init(&saver->mutex, NULL);
    pthread_cond_init(&saver->ordered, NULL);
    pthread_cond_init(&saver->moved, NULL);
    zero_result r = allocate(saver, error);
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
    pthread_cond_destroy(&saver->moved);
    pthread_cond_destroy(&saver->ordered);
    pthread_mutex_destroy(&saver->mutex);
    ckpt_shard_writer_destroy(saver->writer);
    for (int i = 0; i < CODECS; i++)
        ckpt_block_codec_destroy(saver->jobs[i].codec);
    base_arena_free(&saver->copies);
    base_free(saver->first_block);
    base_free(saver->copy_at);
    base_free(saver->blobs);
    base_free(saver);
}

void *ckpt_saver_copy_buffer(const struct ckpt_saver *saver, size_t *bytes)
{
    *bytes = saver->copies.size;
    return saver->copies.memory;
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
    base_error_clear(&saver->error);
    base_error_clear(&saver->lost);
    atomic_store_explicit(saver->config.progress, 0, memory_order_relaxed);
    saver->cancelled = false;
    saver->next = saver->placed = 0;
    saver->copied = block_count(saver);
    saver->room = 0;
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

/** Claims the last block that is no copy yet and fits, for copying; false: there is none. With the
 * mutex held. */
static bool claim(struct ckpt_saver *saver, struct part *part)
{
    assert(saver->room <= saver->copies.size && saver->copied <= block_count(saver));
    if (saver->copied <= saver->next)
        return false;
    *part = part_of(saver, saver->copied - 1);
    if (part_bytes(part) > saver->copies.size - saver->room)
        return false;
    saver->copied--;
    saver->copy_at[saver->copied] = saver->room;
    saver->room += part_bytes(part);
    return true;
}

/** Copies a part, or begins to. */
static void copy(const struct ckpt_saver *saver, const struct part *part, void *to,
                 struct base_error *error)
{
    const struct ckpt_saver_config *config = &saver->config;
    if (config->copy)
        config->copy(config->fetch_user, part->source, part->field, part->first, part->count, to,
                     error);
    else
        memcpy(to, part_memory(part), part_bytes(part));
}

/** The program, which has to wait, works where a processor is to spare. With the mutex held. */
static void help_or_wait(struct ckpt_saver *saver)
{
    if (!saver->spare || saver->config.fetch || !goes_on(saver))
        pthread_cond_wait(&saver->moved, &saver->mutex);
    else if (!advance(saver))
        idle(saver);
}

/** Whether something that is read from the program's memory can be gone on with. */
static bool can_help_free(const struct ckpt_saver *saver)
{
    for (int i = 0; i < CODECS; i++)
        if (saver->jobs[i].in_place && saver->jobs[i].stage == ENCODED)
            return true;
    return saver->next < saver->copied;
}

/** Until so many blocks are not read from the program's memory any more. With the mutex held. */
static void await(struct ckpt_saver *saver, size_t blocks)
{
    assert(blocks <= block_count(saver) && saver->awaited == SIZE_MAX);
    saver->awaited = blocks;
    while (passed(saver) < blocks)
        if (can_help_free(saver))
            help_or_wait(saver);
        else
            pthread_cond_wait(&saver->moved, &saver->mutex);
    saver->awaited = SIZE_MAX;
}

void ckpt_saver_before_change(struct ckpt_saver *saver)
{
    struct base_error error = {0};
    struct part part;
    if (ckpt_saver_state(saver) != CKPT_SAVE_WRITING)
        return;
    pthread_mutex_lock(&saver->mutex);
    while (claim(saver, &part)) {
        unsigned char *to = saver->copies.memory + saver->copy_at[saver->copied];
        saver->copying = true;
        pthread_mutex_unlock(&saver->mutex);
        copy(saver, &part, to, &error);
        pthread_mutex_lock(&saver->mutex);
        keep_first(&saver->lost, &error);
        saver->copying = false;
        pthread_cond_broadcast(&saver->moved);
    }
    await(saver, block_count(saver));
    pthread_mutex_unlock(&saver->mutex);
}

size_t ckpt_saver_blocks_read(struct ckpt_saver *saver)
{
    pthread_mutex_lock(&saver->mutex);
    const size_t blocks = passed(saver);
    pthread_mutex_unlock(&saver->mutex);
    return blocks;
}

void ckpt_saver_wait_for_blocks(struct ckpt_saver *saver, size_t blocks)
{
    pthread_mutex_lock(&saver->mutex);
    await(saver, blocks);
    pthread_mutex_unlock(&saver->mutex);
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
    return &saver->error;
}

static bool busy(const struct ckpt_saver *saver)
{
    const enum ckpt_save_state state = ckpt_saver_state(saver);
    return state == CKPT_SAVE_WRITING || state == CKPT_SAVE_RUNNING;
}

void ckpt_saver_wait(struct ckpt_saver *saver)
{
    pthread_mutex_lock(&saver->mutex);
    while (busy(saver))
        help_or_wait(saver);
    pthread_mutex_unlock(&saver->mutex);
}

void ckpt_saver_cancel(struct ckpt_saver *saver)
{
    pthread_mutex_lock(&saver->mutex);
    saver->cancelled = true;
    while (busy(saver))
        pthread_cond_wait(&saver->moved, &saver->mutex);
    atomic_store_explicit(&saver->state, CKPT_SAVE_IDLE, memory_order_relaxed);
    pthread_mutex_unlock(&saver->mutex);
}
