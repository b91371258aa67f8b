#include "tests/fault/toy_checkpoint.h"

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

// The elements of one rank: one block, not always as long.
enum { ELEMENTS = 2 * CKPT_GRANULE };

static size_t elements_of(uint64_t version)
{
    return (1 + version % 2) * CKPT_GRANULE;
}

// Numbers that only this shard has, of which no sector is like another.
static void fill(uint32_t numbers[ELEMENTS], uint32_t rank, uint64_t version)
{
    const uint64_t seed[] = {rank, version};
    uint32_t number = (uint32_t)base_hash64(seed, sizeof seed, 0);
    for (size_t i = 0; i < elements_of(version); i++)
        numbers[i] = number += UINT32_C(0x9e3779b9);
}

static struct ckpt_run run_of(uint32_t rank, uint64_t version)
{
    return (struct ckpt_run){0, 0, rank * elements_of(version), elements_of(version)};
}

// What all checkpoints share: made once.
static struct {
    struct ckpt_block_codec *codec;
    void *room;
    struct ckpt_shard_writer *writers[TOY_WORLD];
} tools;

static zero_result make_tools(uint32_t rank, struct base_error *error)
{
    if (!tools.writers[rank]) {
        const zero_result result = ckpt_shard_writer_create(&tools.writers[rank], 1, 0, 1, error);
        if (result)
            return result;
    }
    if (!tools.codec) {
        const zero_result result = ckpt_block_codec_create(&tools.codec, CKPT_LEVEL_STORED, error);
        if (result)
            return result;
    }
    if (!tools.room)
        tools.room = malloc(ckpt_shard_room());
    return tools.room ? ZERO_OK : zero_fail(error, ZERO_E_NOMEM, "no memory for a block");
}

struct ckpt_shard_id toy_shard_id(uint64_t step, uint32_t rank, uint32_t world, uint64_t version)
{
    struct ckpt_shard_id id = {.step = step, .rank = rank, .world = world};
    memcpy(id.checkpoint, &version, sizeof version);
    return id;
}

zero_result toy_write_shard(struct toy_shard *shard, const struct ckpt_store *store,
                            const char *path, const struct ckpt_shard_id *id, uint64_t version,
                            struct base_error *error)
{
    const struct ckpt_run run = run_of(id->rank, version);
    uint32_t numbers[ELEMENTS];
    fill(numbers, id->rank, version);
    *shard = (struct toy_shard){.store = store};
    struct ckpt_shard_writer *writer = NULL;
    zero_result result = make_tools(id->rank, error);
    if (!result)
        writer = shard->writer = tools.writers[id->rank];
    if (!result)
        result = ckpt_create_shard(store, path, id->step, id->rank, &shard->file, error);
    if (!result)
        result = ckpt_shard_begin(writer, store, shard->file, id, error);
    if (!result)
        result = ckpt_shard_run(writer, &run, error);
    if (!result)
        result = ckpt_shard_block(writer, tools.codec, (struct ckpt_block_code){4, 0}, 0, numbers,
                                  elements_of(version), error);
    shard->entered = !result;
    return result;
}

zero_result toy_finish_shard(struct toy_shard *shard, struct base_error *error)
{
    zero_result result = ZERO_OK;
    if (shard->entered)
        result = ckpt_shard_finish(shard->writer, &shard->entry, error);
    else if (shard->writer)
        ckpt_shard_give_up(shard->writer);
    const zero_result closed = shard->file ? shard->store->close(&shard->file, error) : ZERO_OK;
    *shard = (struct toy_shard){.entry = shard->entry};
    return result ? result : closed;
}

zero_result toy_commit(struct ckpt_directory *directory, uint64_t step, uint32_t world,
                       uint64_t version, const struct toy_shard *written, struct base_error *error)
{
    static char name[] = "weights", empty[] = "", decay[] = "l2",
                created[] = "2026-01-31T23:59:59Z";
    struct ckpt_run runs[TOY_WORLD];
    struct ckpt_shard_entry shards[TOY_WORLD];
    for (uint32_t rank = 0; rank < world; rank++) {
        runs[rank] = run_of(rank, version);
        shards[rank] = written[rank].entry;
        shards[rank].runs = &runs[rank];
        shards[rank].run_count = 1;
    }
    struct ckpt_group group = {.name = empty, .optimizer = empty, .decay = decay};
    struct ckpt_table_tensor tensor = {.name = name,
                                       .ndim = 1,
                                       .shape = {world * elements_of(version)},
                                       .slices = 1,
                                       .numel = world * elements_of(version),
                                       .dtype = CKPT_F32,
                                       .grad_dtype = CKPT_F32,
                                       .trains = true,
                                       .field = {CKPT_F32},
                                       .fields = 1};
    struct ckpt_manifest manifest = {
        .library = empty,
        .job = empty,
        .created = created,
        .state = {.step = step,
                  .updates = version,
                  .micro_batches = 1,
                  .sum_group = 1,
                  .comm_dtype = CKPT_OTHER},
        .groups = &group,
        .group_count = 1,
        .tensors = &tensor,
        .tensor_count = 1,
        .shards = shards,
        .world = world,
    };
    memcpy(manifest.id, toy_shard_id(step, 0, world, version).checkpoint, sizeof manifest.id);
    return ckpt_commit(directory, &manifest, error);
}

zero_result toy_save(struct ckpt_directory *directory, const struct ckpt_store *store,
                     const char *path, uint64_t step, uint32_t world, uint64_t version,
                     struct base_error *error)
{
    struct toy_shard shards[TOY_WORLD] = {0};
    zero_result result = ckpt_begin(directory, step, error);
    for (uint32_t rank = 0; !result && rank < world; rank++) {
        const struct ckpt_shard_id id = toy_shard_id(step, rank, world, version);
        result = toy_write_shard(&shards[rank], store, path, &id, version, error);
    }
    for (uint32_t rank = 0; rank < world; rank++) {
        const zero_result finished = toy_finish_shard(&shards[rank], error);
        result = result ? result : finished;
    }
    if (!result)
        result = toy_commit(directory, step, world, version, shards, error);
    if (result)
        ckpt_cancel(directory);
    return result;
}

static zero_result load_shard(const struct ckpt_store *store, const char *path,
                              const struct ckpt_manifest *manifest, uint32_t rank,
                              struct base_error *error)
{
    uint32_t wanted[ELEMENTS], found[ELEMENTS];
    const uint64_t version = manifest->state.updates;
    char name[CKPT_PATH_BYTES];
    struct ckpt_shard *shard = NULL;
    fill(wanted, rank, version);
    zero_result result = make_tools(rank, error);
    if (!result)
        result = ckpt_shard_path(name, path, manifest->state.step, rank, error);
    if (!result)
        result = ckpt_shard_open(&shard, store, name, manifest, rank, error);
    if (!result)
        result = ckpt_shard_read(shard, 0, tools.codec, tools.room, found, error);
    ckpt_shard_close(shard);
    if (!result && memcmp(wanted, found, elements_of(version) * sizeof *wanted) != 0)
        result = zero_fail(error, ZERO_E_CORRUPT, "'%s' has another shard's elements", name);
    return result;
}

zero_result toy_load(const struct ckpt_store *store, const char *path, uint64_t step,
                     uint64_t *version, struct base_error *error)
{
    struct ckpt_manifest manifest;
    zero_result result = ckpt_read_manifest(&manifest, store, path, step, error);
    *version = manifest.state.updates;
    for (uint32_t rank = 0; !result && rank < manifest.world; rank++)
        result = load_shard(store, path, &manifest, rank, error);
    ckpt_manifest_free(&manifest);
    return result;
}
