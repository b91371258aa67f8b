#include "checkpoint/block_queue.h"

#include "base/cpu.h"

#include <assert.h>
#include <string.h>

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
static size_t source_of(const struct ckpt_block_queue *queue, size_t block)
{
    assert(block < queue->first_block[queue->config->load.sources]);
    size_t low = 0, high = queue->config->load.sources;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (queue->first_block[middle] <= block)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static struct part part_of(const struct ckpt_block_queue *queue, size_t block)
{
    const size_t s = source_of(queue, block);
    const struct ckpt_source *source = &queue->config->sources[s];
    const size_t k = block - queue->first_block[s];
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

/* ------------------------------------------------------------------ encoding */

// All below but ckpt_block_queue_write() is called with the mutex held.

/** Whether blocks are encoded. */
static bool goes_on(const struct ckpt_block_queue *queue)
{
    return queue->open && !queue->cancelled && !queue->error.result && !queue->lost.result;
}

static bool has_jobs(const struct ckpt_block_queue *queue, enum ckpt_job_stage stage)
{
    for (int i = 0; i < CKPT_QUEUE_CODECS; i++)
        if (queue->jobs[i].stage == stage)
            return true;
    return false;
}

size_t ckpt_block_queue_count(const struct ckpt_block_queue *queue)
{
    return queue->first_block[queue->config->load.sources];
}

size_t ckpt_block_queue_passed(const struct ckpt_block_queue *queue)
{
    size_t blocks = queue->next >= queue->copied ? ckpt_block_queue_count(queue) : queue->next;
    for (int i = 0; i < CKPT_QUEUE_CODECS; i++)
        if (queue->jobs[i].in_place && queue->jobs[i].block < blocks)
            blocks = queue->jobs[i].block;
    return blocks;
}

static void keep_first(struct base_error *first, const struct base_error *error)
{
    if (!first->result)
        *first = *error;
}

/** A stage has ended. Who waits for many blocks is not woken for each. */
static void enter_stage(struct ckpt_block_queue *queue, struct ckpt_block_job *job,
                        enum ckpt_job_stage stage)
{
    const bool gives_back = job->in_place && stage == CKPT_JOB_FREE;
    job->stage = stage;
    job->in_place = job->in_place && !gives_back;
    if (queue->idle > 0 || (gives_back && ckpt_block_queue_passed(queue) >= queue->awaited))
        pthread_cond_broadcast(&queue->moved);
}

/** The block that comes next in the shard gets its place, and goes there. */
static void put(struct ckpt_block_queue *queue, struct ckpt_block_job *job)
{
    assert(job->stage == CKPT_JOB_ENCODED && job->block == queue->placed && !queue->placing);
    struct base_error error = {0};
    job->stage = CKPT_JOB_BUSY;
    queue->placing = true;
    pthread_mutex_unlock(&queue->mutex);
    const zero_result r = ckpt_shard_take(queue->writer, &job->part, &error);
    pthread_mutex_lock(&queue->mutex);
    queue->placing = false;
    queue->placed++;
    keep_first(&queue->error, &error);
    if (queue->idle > 0)
        pthread_cond_broadcast(&queue->moved);
    pthread_mutex_unlock(&queue->mutex);
    if (!r)
        ckpt_shard_put(queue->writer, &job->part);
    pthread_mutex_lock(&queue->mutex);
    enter_stage(queue, job, CKPT_JOB_FREE);
}

/** Where the elements of block `job->block` are. */
static const void *find(struct ckpt_block_queue *queue, struct ckpt_block_job *job,
                        const struct part *part)
{
    while (queue->copying && job->block == queue->copied)
        pthread_cond_wait(&queue->moved, &queue->mutex);
    job->in_place = job->block < queue->copied;
    if (!job->in_place)
        return queue->copies.memory + queue->copy_at[job->block];
    return queue->config->fetch ? NULL : part_memory(part);
}

static void encode(struct ckpt_block_queue *queue, struct ckpt_block_job *job,
                   const struct part *part, const void *elements, struct base_error *error)
{
    const struct ckpt_saver_config *config = queue->config;
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
static void encode_next(struct ckpt_block_queue *queue, struct ckpt_block_job *job)
{
    assert(job->stage == CKPT_JOB_FREE && queue->next < ckpt_block_queue_count(queue));
    struct base_error error = {0};
    job->stage = CKPT_JOB_BUSY;
    job->block = queue->next++;
    const struct part part = part_of(queue, job->block);
    const void *elements = find(queue, job, &part);
    pthread_mutex_unlock(&queue->mutex);
    encode(queue, job, &part, elements, &error);
    pthread_mutex_lock(&queue->mutex);
    keep_first(&queue->error, &error);
    enter_stage(queue, job, CKPT_JOB_ENCODED);
}

/** Brings some block further; false: there is none just now. */
static bool advance(struct ckpt_block_queue *queue)
{
    struct ckpt_block_job *unused = NULL;
    if (!goes_on(queue))
        return false;
    for (int i = 0; i < CKPT_QUEUE_CODECS; i++) {
        struct ckpt_block_job *job = &queue->jobs[i];
        if (job->stage == CKPT_JOB_ENCODED && job->block == queue->placed && !queue->placing) {
            put(queue, job);
            return true;
        }
        if (job->stage == CKPT_JOB_FREE)
            unused = job;
    }
    if (!unused || queue->next == ckpt_block_queue_count(queue))
        return false;
    encode_next(queue, unused);
    return true;
}

static void idle(struct ckpt_block_queue *queue)
{
    queue->idle++;
    pthread_cond_wait(&queue->moved, &queue->mutex);
    queue->idle--;
}

zero_result ckpt_block_queue_write(struct ckpt_block_queue *queue)
{
    const size_t blocks = ckpt_block_queue_count(queue);
    pthread_mutex_lock(&queue->mutex);
    assert(!queue->open && queue->placed == 0);
    queue->open = true;
    pthread_cond_broadcast(&queue->moved);
    while (has_jobs(queue, CKPT_JOB_BUSY) || (goes_on(queue) && queue->placed < blocks))
        if (!advance(queue))
            idle(queue);
    queue->open = false;
    for (int i = 0; i < CKPT_QUEUE_CODECS; i++)
        enter_stage(queue, &queue->jobs[i], CKPT_JOB_FREE);
    keep_first(&queue->error, &queue->lost);
    const zero_result r = queue->error.result ? queue->error.result
                          : queue->cancelled  ? ZERO_AGAIN
                                              : ZERO_OK;
    pthread_mutex_unlock(&queue->mutex);
    return r;
}

/* ------------------------------------------------------------------ before a change */

/** Claims the last block that is no copy yet and fits, for copying; false: there is none. */
static bool claim(struct ckpt_block_queue *queue, struct part *part)
{
    assert(queue->room <= queue->copies.size && queue->copied <= ckpt_block_queue_count(queue));
    if (queue->copied <= queue->next)
        return false;
    *part = part_of(queue, queue->copied - 1);
    if (part_bytes(part) > queue->copies.size - queue->room)
        return false;
    queue->copied--;
    queue->copy_at[queue->copied] = queue->room;
    queue->room += part_bytes(part);
    return true;
}

/** Copies a part, or begins to. */
static void copy(const struct ckpt_block_queue *queue, const struct part *part, void *to,
                 struct base_error *error)
{
    const struct ckpt_saver_config *config = queue->config;
    if (config->copy)
        config->copy(config->fetch_user, part->source, part->field, part->first, part->count, to,
                     error);
    else
        memcpy(to, part_memory(part), part_bytes(part));
}

void ckpt_block_queue_help(struct ckpt_block_queue *queue)
{
    if (!queue->spare || queue->config->fetch || !goes_on(queue))
        pthread_cond_wait(&queue->moved, &queue->mutex);
    else if (!advance(queue))
        idle(queue);
}

/** Whether something that is read from the program's memory can be gone on with. */
static bool can_help_free(const struct ckpt_block_queue *queue)
{
    for (int i = 0; i < CKPT_QUEUE_CODECS; i++)
        if (queue->jobs[i].in_place && queue->jobs[i].stage == CKPT_JOB_ENCODED)
            return true;
    return queue->next < queue->copied;
}

void ckpt_block_queue_await(struct ckpt_block_queue *queue, size_t blocks)
{
    assert(blocks <= ckpt_block_queue_count(queue) && queue->awaited == SIZE_MAX);
    queue->awaited = blocks;
    while (ckpt_block_queue_passed(queue) < blocks)
        if (can_help_free(queue))
            ckpt_block_queue_help(queue);
        else
            pthread_cond_wait(&queue->moved, &queue->mutex);
    queue->awaited = SIZE_MAX;
}

void ckpt_block_queue_copy(struct ckpt_block_queue *queue)
{
    struct base_error error = {0};
    struct part part;
    while (claim(queue, &part)) {
        unsigned char *to = queue->copies.memory + queue->copy_at[queue->copied];
        queue->copying = true;
        pthread_mutex_unlock(&queue->mutex);
        copy(queue, &part, to, &error);
        pthread_mutex_lock(&queue->mutex);
        keep_first(&queue->lost, &error);
        queue->copying = false;
        pthread_cond_broadcast(&queue->moved);
    }
}

void ckpt_block_queue_begin(struct ckpt_block_queue *queue)
{
    base_error_clear(&queue->error);
    base_error_clear(&queue->lost);
    queue->cancelled = false;
    queue->next = queue->placed = 0;
    queue->copied = ckpt_block_queue_count(queue);
    queue->room = 0;
}

void ckpt_block_queue_end(struct ckpt_block_queue *queue)
{
    queue->next = queue->copied = ckpt_block_queue_count(queue);
    pthread_cond_broadcast(&queue->moved);
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

size_t ckpt_block_queue_bytes(const struct ckpt_saver_load *load, int level, size_t budget)
{
    return CKPT_QUEUE_CODECS * ckpt_block_codec_bytes(level) +
           ckpt_shard_writer_bytes(load->sources, load->blobs, all_blocks(load)) +
           (load->sources + 1 + load->blocks) * sizeof(size_t) + copy_room(load, budget);
}

zero_result ckpt_block_queue_init(struct ckpt_block_queue *queue,
                                  const struct ckpt_saver_config *config, struct base_error *error)
{
    const struct ckpt_saver_load *load = &config->load;
    queue->config = config;
    queue->spare = base_cpu_allowed() > 1;
    queue->awaited = SIZE_MAX;
    pthread_mutex_init(&queue->mutex, NULL);
    pthread_cond_init(&queue->moved, NULL);
    queue->first_block = base_calloc(load->sources + 1, sizeof *queue->first_block);
    queue->copy_at = base_calloc(load->blocks, sizeof *queue->copy_at);
    if (!queue->first_block || !queue->copy_at)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for saving %zu blocks", load->blocks);
    for (size_t i = 0; i < load->sources; i++)
        queue->first_block[i + 1] = queue->first_block[i] + source_blocks(&config->sources[i]);
    zero_result r =
        base_arena_init(&queue->copies, copy_room(load, config->budget), CKPT_STORE_UNIT, error);
    for (int i = 0; i < CKPT_QUEUE_CODECS && !r; i++)
        r = ckpt_block_codec_create(&queue->jobs[i].codec, config->level, error);
    if (!r)
        r = ckpt_shard_writer_create(&queue->writer, load->sources, load->blobs, all_blocks(load),
                                     error);
    return r;
}

void ckpt_block_queue_free(struct ckpt_block_queue *queue)
{
    pthread_cond_destroy(&queue->moved);
    pthread_mutex_destroy(&queue->mutex);
    ckpt_shard_writer_destroy(queue->writer);
    for (int i = 0; i < CKPT_QUEUE_CODECS; i++)
        ckpt_block_codec_destroy(queue->jobs[i].codec);
    base_arena_free(&queue->copies);
    base_free(queue->first_block);
    base_free(queue->copy_at);
}
