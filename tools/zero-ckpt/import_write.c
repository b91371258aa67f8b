#include "tools/zero-ckpt/import.h"

#include "base/arena.h"
#include "checkpoint/tensor_digest.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

/** What shards are made with. */
struct maker {
    struct import *job;
    const char *path;
    struct ckpt_directory *directory;
    struct ckpt_block_codec *codec;
    struct ckpt_shard_writer *writer; /**< of one shard */
    void *elements;                   /**< of one block */
    struct base_hash128 *sums;        /**< of what was written, one a tensor, */
    struct base_hash128 blobs;        /**< and of the global blobs */
};

/* ------------------------------------------------------------------ shards */

static zero_result write_blob(struct maker *maker, size_t b, uint32_t rank,
                              struct base_error *error)
{
    const struct ckpt_blob *blob = &maker->job->manifest.blobs[b];
    const uint64_t size = blob->bytes[blob->of_rank ? rank : 0];
    unsigned char *bytes = base_calloc((size_t)size, 1);
    if (!bytes)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for the %" PRIu64 " bytes of %s", size,
                         blob->name);
    zero_result result = tool_import_blob(maker->job, b, rank, bytes, error);
    if (!result)
        result = ckpt_shard_blob(maker->writer, (uint32_t)b, size, error);
    for (uint64_t first = 0, end; first < size && !result; first = end) {
        end = ckpt_block_end(first, size);
        result = ckpt_shard_block(maker->writer, maker->codec, (struct ckpt_block_code){1, 0}, 0,
                                  bytes + first, (size_t)(end - first), error);
    }
    if (!result && !blob->of_rank)
        maker->blobs =
            base_hash128_add(maker->blobs, ckpt_digest_blob(blob->name, bytes, (size_t)size));
    base_free(bytes);
    return result;
}

static zero_result write_block(struct maker *maker, const struct ckpt_run *run, int field,
                               uint64_t first, uint64_t count, struct base_error *error)
{
    static const zero_dtype types[] = {
        [CKPT_F32] = ZERO_F32, [CKPT_BF16] = ZERO_BF16, [CKPT_F16] = ZERO_F16};
    struct import *job = maker->job;
    const struct ckpt_table_tensor *tensor = &job->manifest.tensors[run->tensor];
    const struct ckpt_digest_place place = {
        .name = ckpt_digest_name(tensor->name),
        .slice = run->slice,
        .field = field,
        .trains = tensor->trains,
        .element_bytes = tool_dtype_bytes(tensor->field[field]),
    };
    const zero_result result = tool_import_elements(
        job, run->tensor, field, run->slice * tensor->numel + first, count, maker->elements, error);
    if (result)
        return result;
    ckpt_digest_add(&maker->sums[run->tensor], &place, first, (size_t)count, maker->elements);
    job->done += count * place.element_bytes;
    tool_progress_update(&job->progress, job->done);
    return ckpt_shard_block(maker->writer, maker->codec,
                            ckpt_block_code_of(types[tensor->field[field]], false), (uint16_t)field,
                            maker->elements, (size_t)count, error);
}

static zero_result write_run(struct maker *maker, const struct ckpt_run *run,
                             struct base_error *error)
{
    zero_result result = ckpt_shard_run(maker->writer, run, error);
    const uint64_t run_end = run->first + run->count;
    for (uint64_t first = run->first, end; first < run_end && !result; first = end) {
        end = ckpt_block_end(first, run_end);
        for (int f = 0; f < maker->job->manifest.tensors[run->tensor].fields && !result; f++)
            result = write_block(maker, run, f, first, end - first, error);
    }
    return result;
}

static zero_result write_contents(struct maker *maker, uint32_t rank, struct ckpt_file *file,
                                  struct base_error *error)
{
    const struct ckpt_manifest *manifest = &maker->job->manifest;
    struct ckpt_shard_entry *entry = &manifest->shards[rank], made;
    struct ckpt_shard_id id = {
        .step = maker->job->step, .rank = rank, .world = (uint32_t)manifest->world};
    memcpy(id.checkpoint, manifest->id, sizeof id.checkpoint);
    zero_result result = ckpt_shard_begin(maker->writer, &ckpt_store_posix, file, &id, error);
    for (size_t b = 0; b < manifest->blob_count && !result; b++)
        if (manifest->blobs[b].of_rank || rank == 0)
            result = write_blob(maker, b, rank, error);
    for (size_t r = 0; r < entry->run_count && !result; r++)
        result = write_run(maker, &entry->runs[r], error);
    if (!result)
        result = ckpt_shard_finish(maker->writer, &made, error);
    if (result)
        return result;
    entry->bytes = made.bytes;
    entry->index_offset = made.index_offset;
    entry->index_xxh3 = made.index_xxh3;
    return ZERO_OK;
}

static uint64_t count_blocks(const struct ckpt_manifest *manifest, uint32_t rank)
{
    const struct ckpt_shard_entry *entry = &manifest->shards[rank];
    uint64_t blocks = 0;
    for (size_t b = 0; b < manifest->blob_count; b++)
        if (manifest->blobs[b].of_rank || rank == 0)
            blocks += ckpt_block_count(
                0, manifest->blobs[b].bytes[manifest->blobs[b].of_rank ? rank : 0]);
    for (size_t r = 0; r < entry->run_count; r++)
        blocks += ckpt_block_count(entry->runs[r].first, entry->runs[r].count) *
                  (uint64_t)manifest->tensors[entry->runs[r].tensor].fields;
    return blocks;
}

static zero_result write_shard(struct maker *maker, uint32_t rank, struct base_error *error)
{
    const struct ckpt_manifest *manifest = &maker->job->manifest;
    struct ckpt_file *file = NULL;
    zero_result result =
        ckpt_shard_writer_create(&maker->writer, manifest->shards[rank].run_count,
                                 manifest->blob_count, (size_t)count_blocks(manifest, rank), error);
    if (!result)
        result =
            ckpt_create_shard(&ckpt_store_posix, maker->path, maker->job->step, rank, &file, error);
    if (!result)
        result = write_contents(maker, rank, file, error);
    const zero_result closed = ckpt_store_posix.close(&file, result ? NULL : error);
    ckpt_shard_writer_destroy(maker->writer);
    maker->writer = NULL;
    return result ? result : closed;
}

/* ------------------------------------------------------------------ the manifest */

// Whether a whole state is what was exported. What is not is told, or refused.
static zero_result compare_with_export(struct maker *maker, struct base_error *error)
{
    struct import *job = maker->job;
    uint8_t bytes[16];
    for (size_t t = 0; t < job->manifest.tensor_count; t++) {
        struct ckpt_table_tensor *tensor = &job->manifest.tensors[t];
        const struct base_hash128 sum = maker->sums[t];
        if (!job->like && (sum.low != tensor->sum.low || sum.high != tensor->sum.high)) {
            if (!job->options->edited)
                return zero_fail(error, ZERO_E_CORRUPT,
                                 "'%.200s': tensor '%.80s' has other values than were exported "
                                 "(--edited takes them)",
                                 job->options->paths[0], tensor->name);
            job->changed = tool_json_append(job->changed, tool_json_text(tensor->name));
        }
        tensor->sum = sum;
    }
    ckpt_digest_manifest(&job->manifest, maker->blobs, bytes);
    if (!job->like && !job->options->edited &&
        memcmp(bytes, job->manifest.state.fingerprint, sizeof bytes) != 0)
        return zero_fail(error, ZERO_E_CORRUPT,
                         "'%.200s': what is beside its tensors is not what was exported (--edited "
                         "takes it)",
                         job->options->paths[0]);
    return job->changed ? ZERO_OK : zero_fail(error, ZERO_E_NOMEM, "no memory for a list");
}

// With --like it is a run's beginning. Else it is of the run that was exported.
static zero_result name_it(struct ckpt_manifest *manifest, bool begins, struct base_error *error)
{
    struct ckpt_run_id *run = &manifest->run;
    const time_t now = time(NULL);
    struct tm utc;
    char created[32];
    if (getrandom(manifest->id, sizeof manifest->id, 0) != sizeof manifest->id)
        return zero_fail_errno(error, ZERO_E_IO, errno, "no random number for a checkpoint");
    if (begins && getrandom(run->bytes, sizeof run->bytes, 0) != sizeof run->bytes)
        return zero_fail_errno(error, ZERO_E_IO, errno, "no random number for a run");
    manifest->run_told |= begins;
    if (!gmtime_r(&now, &utc) || !strftime(created, sizeof created, "%Y-%m-%dT%H:%M:%SZ", &utc))
        return zero_fail(error, ZERO_E_IO, "the time is %lld", (long long)now);
    base_free(manifest->created);
    base_free(manifest->library);
    manifest->created = base_strdup(created);
    manifest->library = base_strdup(ZERO_VERSION);
    return manifest->created && manifest->library
               ? ZERO_OK
               : zero_fail(error, ZERO_E_NOMEM, "no memory for a manifest");
}

/* ------------------------------------------------------------------ the directory */

// A directory belongs to a run, whose jobs would go on from what is imported there.
static zero_result refuse_others(const struct maker *maker, const struct ckpt_listed *other,
                                 struct base_error *error)
{
    return zero_fail(error, ZERO_E_INVALID,
                     "'%.200s' has checkpoints of another run, the newest is step-%08" PRIu64
                     " of run %s: import to another directory (--force imports beside them)",
                     maker->path, other->step,
                     other->run_known ? tool_hex(other->run.bytes, 6).text : "not known");
}

static zero_result check_new(const struct maker *maker, struct base_error *error)
{
    struct ckpt_order order;
    struct ckpt_listed *listed = NULL;
    const struct ckpt_listed *other = NULL;
    size_t count = 0;
    bool there = false;
    zero_result result =
        ckpt_list_runs(&ckpt_store_posix, maker->path, &listed, &count, &order, error);
    for (size_t i = 0; i < count && !result; i++) {
        there |= listed[i].step == maker->job->step;
        if (!listed[i].run_known || !ckpt_same_run(&listed[i].run, &maker->job->manifest.run))
            other = &listed[i];
    }
    if (!result && there && !maker->job->options->force)
        result = zero_fail(error, ZERO_E_INVALID,
                           "'%.200s/step-%08" PRIu64 "' is there already (--force replaces it)",
                           maker->path, maker->job->step);
    else if (!result && other && !other->run_known && order.doubts.result)
        result = zero_fail(error, order.doubts.result, "%s", order.doubts.message);
    else if (!result && other && !maker->job->options->force)
        result = refuse_others(maker, other, error);
    base_free(listed);
    return result;
}

static zero_result prepare(struct maker *maker, struct base_error *error)
{
    struct ckpt_manifest *manifest = &maker->job->manifest;
    maker->elements = base_aligned_alloc(64, sizeof(float[CKPT_BLOCK_ELEMENTS]));
    maker->sums = base_calloc(manifest->tensor_count, sizeof *maker->sums);
    if (!maker->elements || !maker->sums) {
        zero_fail(error, ZERO_E_NOMEM, "no memory for a block");
        return ZERO_E_NOMEM;
    }
    zero_result result = tool_place_directory(maker->path, error);
    if (!result)
        result = name_it(manifest, maker->job->like != NULL, error);
    if (!result)
        result = ckpt_block_codec_create(&maker->codec, manifest->level, error);
    if (!result)
        result = ckpt_directory_open(&maker->directory, &ckpt_store_posix, maker->path,
                                     (uint32_t)manifest->world, error);
    if (!result)
        result = check_new(maker, error);
    return result ? result : ckpt_begin(maker->directory, maker->job->step, error);
}

static zero_result write_all(struct maker *maker, struct base_error *error)
{
    struct import *job = maker->job;
    zero_result result = prepare(maker, error);
    tool_progress_begin(&job->progress, "import", tool_plain_bytes(&job->manifest));
    for (uint32_t rank = 0; rank < job->manifest.world && !result; rank++)
        result = write_shard(maker, rank, error);
    tool_progress_end(&job->progress);
    if (!result)
        result = compare_with_export(maker, error);
    if (result)
        return result;
    job->manifest.state.step = job->step;
    ckpt_digest_manifest(&job->manifest, maker->blobs, job->manifest.state.fingerprint);
    return ckpt_commit(maker->directory, &job->manifest, error);
}

zero_result tool_import_write(struct import *job, struct base_error *error)
{
    struct maker maker = {.job = job, .path = job->options->paths[1]};
    const zero_result result = write_all(&maker, error);
    if (result && maker.directory)
        ckpt_cancel(maker.directory);
    ckpt_directory_close(maker.directory);
    ckpt_block_codec_destroy(maker.codec);
    base_free(maker.elements);
    base_free(maker.sums);
    return result;
}
