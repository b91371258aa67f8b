#include "checkpoint/save.h"

#include "base/arena.h"
#include "base/cpu.h"
#include "base/thread.h"

#include <string.h>

enum order { NOTHING, WRITE, RUN, QUIT };

// How many blocks who waits is ahead of the thread with checksums: few enough that the elements are
// still near when they are encoded.
enum { AHEAD = 16 };

// Blocks are numbered through all sources, in the order in which they are written. The thread goes
// upwards and reads them in place; ckpt_saver_hold() goes downwards and copies them. Where they
// meet nothing is left that is read from the program's memory.
struct ckpt_saver {
    struct ckpt_saver_config config;
    struct ckpt_codec *codec;
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

    size_t next;   // the block that the thread reads, or will read next
    size_t copied; // the first block that is a copy
    size_t room;   // of `copies` that is used
    bool in_place; // block `next` is being read from the program's memory
    bool copying;  // block `copied` is on its way to its copy

    bool spare;      // there is a processor besides the thread's
    bool awaited;    // the program waits: it has the time to sum up
    size_t unsummed; // the first block whose elements nobody has begun to sum up
    bool summing;    // the program is at one
    size_t first;    // the number in the shard of the first block that is of no blob

    struct ckpt_target target;
    struct ckpt_blob_source blob[CKPT_MAX_BLOBS];
    size_t blob_count;
    zero_result (*work)(void *user, struct base_error *error);
    void *work_user;
    struct ckpt_shard_entry entry;
    struct base_error error;
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
        r = ckpt_shard_block(saver->writer, saver->codec, plain, 0,
                             (const unsigned char *)blob->bytes + at, count, &saver->error);
    }
    return r;
}

/** Where a block's elements are: of one that is not being copied. */
static const void *block_memory(const struct ckpt_saver *saver, size_t block,
                                const struct part *part)
{
    return block < saver->copied ? part_memory(part) : saver->copies.memory + saver->copy_at[block];
}

/** Takes a block for reading: returns where it is. *later: who else sums it up. */
static const void *take(struct ckpt_saver *saver, const struct part *part, unsigned *later)
{
    pthread_mutex_lock(&saver->mutex);
    while (saver->copying && saver->next == saver->copied)
        pthread_cond_wait(&saver->moved, &saver->mutex);
    saver->in_place = saver->next < saver->copied;
    const void *memory = block_memory(saver, saver->next, part);
    if (saver->unsummed > saver->next)
        *later |= CKPT_LATER_ELEMENTS;
    else
        saver->unsummed = saver->next + 1;
    if (saver->awaited && saver->spare)
        *later |= CKPT_LATER_STORED;
    pthread_mutex_unlock(&saver->mutex);
    return memory;
}

/** Whether who waits should go on summing up, `most` blocks ahead. With the mutex held. */
static bool sums_are_wanted(const struct ckpt_saver *saver, size_t most)
{
    return saver->spare && !saver->config.fetch && !saver->cancelled &&
           saver->unsummed < saver->first_block[saver->config.load.sources] &&
           saver->unsummed < saver->next + most;
}

/** It has been read. False: the save has been given up. */
static bool give_back(struct ckpt_saver *saver)
{
    pthread_mutex_lock(&saver->mutex);
    saver->in_place = false;
    saver->next++;
    const bool goes_on = !saver->cancelled;
    // Who waits for the end is not woken for every block.
    if (!saver->awaited || sums_are_wanted(saver, AHEAD / 2))
        pthread_cond_broadcast(&saver->moved);
    pthread_mutex_unlock(&saver->mutex);
    return goes_on;
}

/** Where a block's elements are, and who else sums them up. */
static zero_result find(struct ckpt_saver *saver, const struct part *part, const void **elements,
                        unsigned *later)
{
    const struct ckpt_saver_config *config = &saver->config;
    if (config->fetch)
        return config->fetch(config->fetch_user, part->source, part->field, part->first,
                             part->count, elements, &saver->error);
    *elements = take(saver, part, later);
    return ZERO_OK;
}

static void see(const struct ckpt_saver *saver, const struct part *part, const void *elements)
{
    if (saver->config.seen)
        saver->config.seen(saver->config.seen_user, part->source, part->field, part->first,
                           part->count, elements);
}

static zero_result write_block(struct ckpt_saver *saver, const struct part *part)
{
    const void *elements;
    unsigned later = 0;
    zero_result r = find(saver, part, &elements, &later);
    if (!r)
        r = ckpt_shard_add(saver->writer, saver->codec, part->source->code[part->field],
                           (uint16_t)part->field, elements, part->count, later, &saver->error);
    // Encoding asks for elements ahead; afterwards they are near.
    if (!r && !(later & CKPT_LATER_ELEMENTS))
        see(saver, part, elements);
    return r;
}

/** The program, which waits, sums up a block. With the mutex held, which it gives back meanwhile.
 */
static void sum_up(struct ckpt_saver *saver)
{
    const size_t block = saver->unsummed++;
    const struct part part = part_of(saver, block);
    const void *elements = block_memory(saver, block, &part);
    saver->summing = true;
    pthread_mutex_unlock(&saver->mutex);
    ckpt_shard_sum(saver->writer, saver->first + block,
                   base_hash64(elements, part_bytes(&part), 0));
    see(saver, &part, elements);
    pthread_mutex_lock(&saver->mutex);
    saver->summing = false;
    pthread_cond_broadcast(&saver->moved);
}

/** Waits for the sum that is being made elsewhere. */
static void await_sum(struct ckpt_saver *saver)
{
    pthread_mutex_lock(&saver->mutex);
    while (saver->summing)
        pthread_cond_wait(&saver->moved, &saver->mutex);
    pthread_mutex_unlock(&saver->mutex);
}

static zero_result write_sources(struct ckpt_saver *saver)
{
    const size_t blocks = saver->first_block[saver->config.load.sources];
    size_t entered = SIZE_MAX;
    for (size_t b = 0; b < blocks; b++) {
        const struct part part = part_of(saver, b);
        const size_t s = (size_t)(part.source - saver->config.sources);
        zero_result r = ZERO_OK;
        if (s != entered)
            r = ckpt_shard_run(saver->writer, &part.source->run, &saver->error);
        entered = s;
        if (!r)
            r = write_block(saver, &part);
        atomic_fetch_add_explicit(saver->config.progress, part_bytes(&part), memory_order_relaxed);
        if (!give_back(saver) && !r)
            r = ZERO_AGAIN;
        if (r)
            return r;
    }
    return ZERO_OK;
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
    await_sum(saver);
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
    saver->in_place = false;
    saver->next = saver->copied = saver->first_block[saver->config.load.sources];
    atomic_store_explicit(&saver->state, state, memory_order_release);
    pthread_cond_broadcast(&saver->moved);
    pthread_mutex_unlock(&saver->mutex);
}

static void give_order(struct ckpt_saver *saver, enum order order)
{
    pthread_mutex_lock(&saver->mutex);
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
    return sizeof(struct ckpt_saver) + ckpt_codec_bytes(level) +
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
    if (!r)
        r = ckpt_codec_create(&saver->codec, config->level, error);
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
    saver->spare = base_cpu_detect().allowed_cpus > 1;
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
    ckpt_codec_destroy(saver->codec);
    base_arena_free(&saver->copies);
    base_free(saver->first_block);
    base_free(saver->copy_at);
    base_free(saver->blobs);
    base_free(saver);
}

/* ------------------------------------------------------------------ the program's side */

zero_result ckpt_saver_start(struct ckpt_saver *saver, const struct ckpt_target *target,
                             const struct ckpt_blob_source *blobs, size_t blob_count,
                             struct base_error *error)
{
    size_t room = saver->config.load.blob_bytes;
    unsigned char *copy = saver->blobs;
    saver->first = 0;
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
        saver->first += ckpt_block_count(0, blobs[i].size);
        copy += blobs[i].size;
        room -= blobs[i].size;
    }
    saver->blob_count = blob_count;
    saver->target = *target;
    base_error_clear(&saver->error);
    atomic_store_explicit(saver->config.progress, 0, memory_order_relaxed);
    saver->cancelled = false;
    saver->next = saver->unsummed = 0;
    saver->copied = saver->first_block[saver->config.load.sources];
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
    if (saver->copied <= saver->next + saver->in_place)
        return false;
    *part = part_of(saver, saver->copied - 1);
    if (part_bytes(part) > saver->copies.size - saver->room)
        return false;
    saver->copied--;
    saver->copy_at[saver->copied] = saver->room;
    saver->room += part_bytes(part);
    return true;
}

void ckpt_saver_hold(struct ckpt_saver *saver)
{
    struct part part;
    if (ckpt_saver_state(saver) != CKPT_SAVE_WRITING)
        return;
    pthread_mutex_lock(&saver->mutex);
    while (claim(saver, &part)) {
        unsigned char *copy = saver->copies.memory + saver->copy_at[saver->copied];
        saver->copying = true;
        pthread_mutex_unlock(&saver->mutex);
        memcpy(copy, part_memory(&part), part_bytes(&part));
        pthread_mutex_lock(&saver->mutex);
        saver->copying = false;
        pthread_cond_broadcast(&saver->moved);
    }
    while (saver->next < saver->copied)
        pthread_cond_wait(&saver->moved, &saver->mutex);
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
    saver->awaited = true;
    while (busy(saver)) {
        if (sums_are_wanted(saver, AHEAD))
            sum_up(saver);
        else
            pthread_cond_wait(&saver->moved, &saver->mutex);
    }
    saver->awaited = false;
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
