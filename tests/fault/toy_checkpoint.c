#include "tests/fault/toy_checkpoint.h"

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

enum { UNITS = 4, BYTES = UNITS * CKPT_STORE_UNIT };

// A shard: numbers that only this one has, of which no sector is like another.
static size_t fill(uint64_t *numbers, uint32_t rank, uint64_t version)
{
    const size_t bytes = (3 + (rank + version) % 2) * CKPT_STORE_UNIT;
    const uint64_t seed[] = {rank, version};
    uint64_t number = base_hash64(seed, sizeof seed, 0);
    for (size_t i = 0; i < bytes / sizeof *numbers; i++)
        numbers[i] = number += UINT64_C(0x9e3779b97f4a7c15);
    return bytes;
}

zero_result toy_write_shard(struct toy_shard *shard, const struct ckpt_store *store,
                            const char *path, uint64_t step, uint32_t rank, uint64_t version,
                            struct base_error *error)
{
    static _Thread_local _Alignas(CKPT_STORE_UNIT) uint64_t numbers[BYTES / sizeof(uint64_t)];
    const size_t bytes = fill(numbers, rank, version);
    *shard = (struct toy_shard){.store = store,
                                .entry = {.bytes = bytes, .index_offset = CKPT_STORE_UNIT}};
    zero_result result = ckpt_create_shard(store, path, step, rank, &shard->file, error);
    if (!result)
        result = store->write(shard->file, numbers, CKPT_STORE_UNIT, 0, error);
    if (!result)
        result = store->write(shard->file, numbers + CKPT_STORE_UNIT / sizeof *numbers,
                              bytes - CKPT_STORE_UNIT, CKPT_STORE_UNIT, error);
    if (!result)
        result = store->truncate(shard->file, bytes, error);
    return result;
}

zero_result toy_finish_shard(struct toy_shard *shard, struct base_error *error)
{
    if (!shard->file)
        return ZERO_OK;
    const zero_result result = shard->store->sync(shard->file, error);
    const zero_result closed = shard->store->close(&shard->file, error);
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
        runs[rank] = (struct ckpt_run){0, 0, rank * CKPT_GRANULE, CKPT_GRANULE};
        shards[rank] = written[rank].entry;
        shards[rank].runs = &runs[rank];
        shards[rank].run_count = 1;
    }
    struct ckpt_group group = {.name = empty, .optimizer = empty, .decay = decay};
    struct ckpt_table_tensor tensor = {.name = name,
                                       .ndim = 1,
                                       .shape = {world * CKPT_GRANULE},
                                       .slices = 1,
                                       .numel = world * CKPT_GRANULE,
                                       .dtype = CKPT_F32,
                                       .grad_dtype = CKPT_F32,
                                       .trains = true,
                                       .field = {CKPT_F32},
                                       .fields = 1};
    const struct ckpt_manifest manifest = {
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
    return ckpt_commit(directory, &manifest, error);
}

zero_result toy_save(struct ckpt_directory *directory, const struct ckpt_store *store,
                     const char *path, uint64_t step, uint32_t world, uint64_t version,
                     struct base_error *error)
{
    struct toy_shard shards[TOY_WORLD] = {0};
    zero_result result = ckpt_begin(directory, step, error);
    for (uint32_t rank = 0; !result && rank < world; rank++)
        result = toy_write_shard(&shards[rank], store, path, step, rank, version, error);
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

static zero_result load_shard(const struct ckpt_store *store, const char *path, uint64_t step,
                              uint32_t rank, uint64_t version, struct base_error *error)
{
    static _Thread_local uint64_t wanted[BYTES / sizeof(uint64_t)], found[BYTES / sizeof(uint64_t)];
    char name[CKPT_PATH_BYTES];
    const size_t bytes = fill(wanted, rank, version);
    uint64_t size = 0;
    struct ckpt_file *file;
    zero_result result = ckpt_shard_path(name, path, step, rank, error);
    if (!result)
        result = store->open(store->user, &file, name, error);
    if (result)
        return result;
    result = store->bytes(file, &size, error);
    if (!result)
        result = store->read(file, found, bytes, 0, error);
    if (!result && (size != bytes || memcmp(wanted, found, bytes) != 0))
        result = zero_fail(error, ZERO_E_CORRUPT, "'%s' is damaged", name);
    const zero_result closed = store->close(&file, error);
    return result ? result : closed;
}

zero_result toy_load(const struct ckpt_store *store, const char *path, uint64_t step,
                     uint64_t *version, struct base_error *error)
{
    struct ckpt_manifest manifest;
    zero_result result = ckpt_read_manifest(&manifest, store, path, step, error);
    *version = manifest.state.updates;
    for (uint32_t rank = 0; !result && rank < manifest.world; rank++)
        result = load_shard(store, path, step, rank, *version, error);
    ckpt_manifest_free(&manifest);
    return result;
}
