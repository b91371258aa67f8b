#include "checkpoint/loader.h"

#include "base/arena.h"
#include "checkpoint/safetensors/safetensors_header.h" // ckpt_dtype_size
#include "checkpoint/tensor_digest.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

// So many shards' files are open at once. The one that was used longest ago makes room for another;
// what its index says is kept.
enum { OPEN_FILES = 32 };

struct known_shard {
    struct ckpt_shard *shard;
    uint64_t last_used; // by the loader's clock
    char *path;
};

struct ckpt_loader {
    const struct ckpt_store *store;
    struct ckpt_file *lock;
    char *path;
    struct ckpt_manifest manifest;
    struct ckpt_block_codec *codec;
    struct known_shard **known; // by rank; NULL: not opened yet
    uint64_t clock;
    uint64_t bytes_read; // from shards that are closed

    unsigned char *room;     // for a block as it is stored,
    unsigned char *elements; // and for one of which only a part was wanted:
    uint32_t kept_rank;      // this one,
    size_t kept_block;       // SIZE_MAX: none
};

/* ------------------------------------------------------------------ open and close */

// While a manifest is parsed: the JSON's tree and text, and its table. Measured with names of 25
// bytes and three fields: 2,450 bytes a tensor and 340 a run.
enum { TENSOR_BYTES = 2560, RUN_BYTES = 344 };

// A shard's path, as a rule.
enum { PATH_BYTES = 256 };

enum { ELEMENTS_BYTES = CKPT_BLOCK_ELEMENTS * CKPT_MAX_PLANES };

size_t ckpt_loader_bytes(const struct ckpt_loader_need *need)
{
    return sizeof(struct ckpt_loader) + ckpt_shard_room() + ELEMENTS_BYTES +
           ckpt_block_codec_bytes(CKPT_LEVEL_STORED) +
           need->shards * (sizeof(struct known_shard) + PATH_BYTES + sizeof(struct known_shard *)) +
           need->tensors * TENSOR_BYTES + need->runs * (RUN_BYTES + sizeof(size_t)) +
           need->blocks * sizeof(struct ckpt_block);
}

static zero_result make_buffers(struct ckpt_loader *loader, struct base_error *error)
{
    loader->kept_block = SIZE_MAX;
    loader->known = base_calloc(loader->manifest.world, sizeof(struct known_shard *));
    loader->room = base_aligned_alloc(64, ckpt_shard_room());
    loader->elements = base_aligned_alloc(64, ELEMENTS_BYTES);
    if (loader->known && loader->room && loader->elements)
        return ckpt_block_codec_create(&loader->codec, CKPT_LEVEL_STORED, error);
    return zero_fail(error, ZERO_E_NOMEM, "no memory to read '%s'", loader->path);
}

zero_result ckpt_loader_open(struct ckpt_loader **out, const struct ckpt_store *store,
                             const char *path, uint64_t step, struct base_error *error)
{
    *out = NULL;
    struct ckpt_loader *loader = base_calloc(1, sizeof *loader);
    if (!loader)
        return zero_fail(error, ZERO_E_NOMEM, "no memory to read '%s'", path);
    loader->store = store;
    loader->path = base_strdup(path);
    zero_result result = loader->path
                             ? ckpt_reader_enter(store, path, &loader->lock, error)
                             : zero_fail(error, ZERO_E_NOMEM, "no memory to read '%s'", path);
    if (result == ZERO_OK)
        result = ckpt_read_manifest(&loader->manifest, store, path, step, error);
    if (result == ZERO_OK)
        result = make_buffers(loader, error);
    if (result) {
        ckpt_loader_close(loader);
        return result;
    }
    *out = loader;
    return ZERO_OK;
}

static void forget_shard(struct ckpt_loader *loader, uint32_t rank)
{
    assert(rank < loader->manifest.world);
    struct known_shard *known = loader->known[rank];
    if (!known)
        return;
    if (known->shard)
        loader->bytes_read += ckpt_shard_bytes_read(known->shard);
    ckpt_shard_close(known->shard);
    base_free(known->path);
    base_free(known);
    loader->known[rank] = NULL;
}

static void forget_shards(struct ckpt_loader *loader)
{
    for (uint32_t rank = 0; loader->known && rank < loader->manifest.world; rank++)
        forget_shard(loader, rank);
}

void ckpt_loader_close(struct ckpt_loader *loader)
{
    if (!loader)
        return;
    forget_shards(loader);
    ckpt_reader_leave(loader->store, &loader->lock);
    ckpt_block_codec_destroy(loader->codec);
    ckpt_manifest_free(&loader->manifest);
    base_free(loader->known);
    base_free(loader->room);
    base_free(loader->elements);
    base_free(loader->path);
    base_free(loader);
}

const struct ckpt_manifest *ckpt_loader_manifest(const struct ckpt_loader *loader)
{
    return &loader->manifest;
}

uint64_t ckpt_loader_bytes_read(const struct ckpt_loader *loader)
{
    uint64_t bytes = loader->bytes_read;
    for (size_t rank = 0; rank < loader->manifest.world; rank++)
        if (loader->known[rank])
            bytes += ckpt_shard_bytes_read(loader->known[rank]->shard);
    return bytes;
}

static zero_result open_shard(struct ckpt_loader *loader, uint32_t rank, struct base_error *error)
{
    assert(rank < loader->manifest.world && !loader->known[rank]);
    char path[CKPT_PATH_BYTES];
    zero_result result =
        ckpt_shard_path(path, loader->path, loader->manifest.state.step, rank, error);
    if (result)
        return result;
    struct known_shard *known = loader->known[rank] = base_calloc(1, sizeof *known);
    if (known)
        known->path = base_strdup(path);
    result = known && known->path
                 ? ckpt_shard_open(&known->shard, loader->store, known->path, &loader->manifest,
                                   rank, error)
                 : zero_fail(error, ZERO_E_NOMEM, "no memory to read '%s'", loader->path);
    if (result)
        forget_shard(loader, rank);
    return result;
}

// There is to be room for another open file.
static void make_room(struct ckpt_loader *loader)
{
    struct known_shard *oldest = NULL;
    size_t open = 0;
    for (size_t rank = 0; rank < loader->manifest.world; rank++) {
        struct known_shard *known = loader->known[rank];
        if (!known || ckpt_shard_rests(known->shard))
            continue;
        open++;
        if (!oldest || known->last_used < oldest->last_used)
            oldest = known;
    }
    if (open >= OPEN_FILES)
        ckpt_shard_rest(oldest->shard);
}

// Finds a shard that is known, or opens it. The file of one that rests is opened by the next block
// that is read of it.
static zero_result find_shard(struct ckpt_loader *loader, uint32_t rank, struct ckpt_shard **shard,
                              struct base_error *error)
{
    if (!loader->known[rank] || ckpt_shard_rests(loader->known[rank]->shard))
        make_room(loader);
    const zero_result result = loader->known[rank] ? ZERO_OK : open_shard(loader, rank, error);
    if (result)
        return result;
    loader->known[rank]->last_used = ++loader->clock;
    *shard = loader->known[rank]->shard;
    return ZERO_OK;
}

/* ------------------------------------------------------------------ elements */

// Copies a part of a block, which is read unless it was read last.
static zero_result read_part(struct ckpt_loader *loader, struct ckpt_shard *shard, uint32_t rank,
                             size_t block, size_t from, size_t bytes, unsigned char *out,
                             struct base_error *error)
{
    assert(bytes > 0 && from + bytes <= ELEMENTS_BYTES);
    zero_result result = ZERO_OK;
    if (loader->kept_block != block || loader->kept_rank != rank) {
        loader->kept_block = SIZE_MAX;
        result =
            ckpt_shard_read(shard, block, loader->codec, loader->room, loader->elements, error);
    }
    if (result)
        return result;
    loader->kept_rank = rank;
    loader->kept_block = block;
    memcpy(out, loader->elements + from, bytes);
    return ZERO_OK;
}

// Elements first .. end-1, which a run has.
static zero_result read_run(struct ckpt_loader *loader, const struct ckpt_place *place,
                            const struct ckpt_run *run, int field, uint64_t first, uint64_t end,
                            unsigned char *out, struct base_error *error)
{
    assert(first >= run->first && first < end && end <= run->first + run->count);
    const struct ckpt_table_tensor *tensor = &loader->manifest.tensors[run->tensor];
    const size_t size = ckpt_dtype_size(tensor->field[field]);
    struct ckpt_shard *shard;
    zero_result result = find_shard(loader, place->shard, &shard, error);
    while (result == ZERO_OK && first < end) {
        const uint64_t number = first / CKPT_BLOCK_ELEMENTS - run->first / CKPT_BLOCK_ELEMENTS;
        const size_t block = ckpt_shard_run_blocks(shard, place->run) +
                             (size_t)number * (size_t)tensor->fields + (size_t)field;
        const struct ckpt_block_place at = ckpt_shard_place(shard, block);
        const uint64_t part = ckpt_block_end(first, end) - first;
        result =
            part == at.block->count
                ? ckpt_shard_read(shard, block, loader->codec, loader->room, out, error)
                : read_part(loader, shard, place->shard, block, (size_t)(first - at.first) * size,
                            (size_t)part * size, out, error);
        out += part * size;
        first += part;
    }
    return result;
}

zero_result ckpt_loader_read(struct ckpt_loader *loader, size_t tensor, uint32_t slice, int field,
                             uint64_t first, uint64_t count, void *out, struct base_error *error)
{
    const struct ckpt_manifest *manifest = &loader->manifest;
    const struct ckpt_table_tensor *table =
        tensor < manifest->tensor_count ? &manifest->tensors[tensor] : NULL;
    if (!table || slice >= table->slices || field < 0 || field >= table->fields ||
        first > table->numel || count > table->numel - first)
        return zero_fail(error, ZERO_E_INVALID,
                         "'%s': tensor %zu, slice %" PRIu32 ", field %d has no %" PRIu64
                         " elements from %" PRIu64 " on",
                         loader->path, tensor, slice, field, count, first);
    const size_t size = ckpt_dtype_size(table->field[field]);
    const uint64_t end = first + count;
    size_t p = count > 0 ? ckpt_manifest_locate(manifest, tensor, slice, first) : 0;
    for (uint64_t at = first; at < end; p++) {
        const struct ckpt_place *place = &manifest->index.places[p];
        const struct ckpt_run *run = &manifest->shards[place->shard].runs[place->run];
        const uint64_t run_end = run->first + run->count, part = run_end < end ? run_end : end;
        const zero_result result = read_run(loader, place, run, field, at, part,
                                            (unsigned char *)out + (at - first) * size, error);
        if (result)
            return result;
        at = part;
    }
    return ZERO_OK;
}

zero_result ckpt_loader_blob(struct ckpt_loader *loader, size_t blob, uint32_t rank, void *out,
                             struct base_error *error)
{
    const struct ckpt_manifest *manifest = &loader->manifest;
    if (blob >= manifest->blob_count || (manifest->blobs[blob].of_rank && rank >= manifest->world))
        return zero_fail(error, ZERO_E_INVALID, "'%s' has no blob %zu of rank %" PRIu32,
                         loader->path, blob, rank);
    const uint32_t from = manifest->blobs[blob].of_rank ? rank : 0;
    struct ckpt_shard *shard;
    zero_result result = find_shard(loader, from, &shard, error);
    if (result)
        return result;
    const uint64_t bytes = manifest->blobs[blob].bytes[from];
    size_t block = ckpt_shard_blob_blocks(shard, blob);
    for (uint64_t first = 0; result == ZERO_OK && first < bytes; first += CKPT_BLOCK_ELEMENTS)
        result = ckpt_shard_read(shard, block++, loader->codec, loader->room,
                                 (unsigned char *)out + first, error);
    return result;
}

/* ------------------------------------------------------------------ everything */

struct verification {
    struct ckpt_loader *loader;
    const struct ckpt_verify_watch *watch;
    uint64_t pieces;
    struct base_error first;
    struct base_hash128 *sums; // of what was read, one a tensor,
    bool *incomplete;          // and whether some of it was not
    struct base_hash128 blobs; // of the global ones
    bool blobs_incomplete;
    unsigned char *blob; // the one that is being read
};

// Takes note of a failure; returns whether the others can still be looked for.
static bool note(struct verification *verification, const struct base_error *damage)
{
    if (verification->pieces++ == 0 || damage->result == ZERO_E_NOMEM)
        verification->first = *damage;
    if (damage->result == ZERO_E_NOMEM)
        return false;
    if (verification->watch->damaged)
        verification->watch->damaged(verification->watch->user, damage);
    return true;
}

static void add_elements(struct verification *verification, const struct ckpt_run *run,
                         const struct ckpt_block_place *at)
{
    const struct ckpt_table_tensor *tensor = &verification->loader->manifest.tensors[run->tensor];
    const struct ckpt_digest_place place = {
        .name = ckpt_digest_name(tensor->name),
        .slice = run->slice,
        .field = at->block->field,
        .trains = tensor->trains,
        .element_bytes = at->block->code.element_bytes,
    };
    ckpt_digest_add(&verification->sums[run->tensor], &place, at->first, at->block->count,
                    verification->loader->elements);
}

// A blob is hashed when its last block has come.
static bool add_blob(struct verification *verification, const struct ckpt_block_place *at,
                     struct base_error *error)
{
    const struct ckpt_blob *blob = &verification->loader->manifest.blobs[at->blob];
    if (at->first == 0) {
        base_free(verification->blob);
        verification->blob = base_calloc((size_t)blob->bytes[0], 1);
    }
    if (!verification->blob) {
        zero_fail(error, ZERO_E_NOMEM, "no memory for the %" PRIu64 " bytes of %s", blob->bytes[0],
                  blob->name);
        return false;
    }
    assert(at->first + at->block->count <= blob->bytes[0]);
    memcpy(verification->blob + at->first, verification->loader->elements, at->block->count);
    if (at->first + at->block->count == blob->bytes[0])
        verification->blobs =
            base_hash128_add(verification->blobs, ckpt_digest_blob(blob->name, verification->blob,
                                                                   (size_t)blob->bytes[0]));
    return true;
}

static bool is_global(const struct verification *verification, const struct ckpt_block_place *at)
{
    return at->run == SIZE_MAX && !verification->loader->manifest.blobs[at->blob].of_rank;
}

static bool verify_block(struct verification *verification, uint32_t rank, size_t block)
{
    struct ckpt_loader *loader = verification->loader;
    struct ckpt_shard *shard = loader->known[rank]->shard;
    const struct ckpt_block_place at = ckpt_shard_place(shard, block);
    const struct ckpt_run *run =
        at.run == SIZE_MAX ? NULL : &loader->manifest.shards[rank].runs[at.run];
    struct base_error damage = {.result = ZERO_OK};
    bool good = ckpt_shard_read(shard, block, loader->codec, loader->room, loader->elements,
                                &damage) == ZERO_OK;
    if (good && run)
        add_elements(verification, run, &at);
    else if (good && is_global(verification, &at))
        good = verification->blobs_incomplete || add_blob(verification, &at, &damage);
    else if (run)
        verification->incomplete[run->tensor] = true;
    else
        verification->blobs_incomplete |= is_global(verification, &at);
    if (verification->watch->progress)
        verification->watch->progress(verification->watch->user, ckpt_loader_bytes_read(loader));
    return good || note(verification, &damage);
}

// Nothing of a shard can be read.
static void miss_shard(struct verification *verification, uint32_t rank)
{
    const struct ckpt_shard_entry *shard = &verification->loader->manifest.shards[rank];
    for (size_t r = 0; r < shard->run_count; r++)
        verification->incomplete[shard->runs[r].tensor] = true;
    verification->blobs_incomplete |= rank == 0;
}

static bool verify_shard(struct verification *verification, uint32_t rank)
{
    struct ckpt_loader *loader = verification->loader;
    struct base_error damage = {.result = ZERO_OK};
    if (open_shard(loader, rank, &damage)) {
        miss_shard(verification, rank);
        return note(verification, &damage);
    }
    bool going = true;
    for (size_t b = 0; going && b < ckpt_shard_blocks(loader->known[rank]->shard); b++)
        going = verify_block(verification, rank, b);
    forget_shard(loader, rank);
    return going;
}

// Whether the values are those that were saved, though every block may be as good as another's.
static bool verify_sums(struct verification *verification)
{
    const struct ckpt_loader *loader = verification->loader;
    bool going = true;
    for (size_t t = 0; going && t < loader->manifest.tensor_count; t++) {
        const struct ckpt_table_tensor *tensor = &loader->manifest.tensors[t];
        const struct base_hash128 *sum = &verification->sums[t];
        struct base_error damage = {.result = ZERO_OK};
        if (verification->incomplete[t] ||
            (sum->low == tensor->sum.low && sum->high == tensor->sum.high))
            continue;
        zero_fail(&damage, ZERO_E_CORRUPT,
                  "'%s/step-%08" PRIu64 "': tensor '%.80s' has other values than its sum says, "
                  "though every block is whole",
                  loader->path, loader->manifest.state.step, tensor->name);
        going = note(verification, &damage);
    }
    return going;
}

// By the sums that the manifest has: what is wrong with one was told.
static bool verify_fingerprint(struct verification *verification)
{
    const struct ckpt_manifest *manifest = &verification->loader->manifest;
    uint8_t fingerprint[16];
    struct base_error damage = {.result = ZERO_OK};
    for (size_t b = 0; b < manifest->blob_count; b++)
        if (!manifest->blobs[b].of_rank && manifest->blobs[b].bytes[0] == 0) // it has no block
            verification->blobs = base_hash128_add(
                verification->blobs, ckpt_digest_blob(manifest->blobs[b].name, NULL, 0));
    ckpt_digest_manifest(manifest, verification->blobs, fingerprint);
    if (verification->blobs_incomplete ||
        memcmp(fingerprint, manifest->state.fingerprint, sizeof fingerprint) == 0)
        return true;
    zero_fail(&damage, ZERO_E_CORRUPT,
              "'%s/step-%08" PRIu64 "': its fingerprint is not that of what is in it",
              verification->loader->path, manifest->state.step);
    return note(verification, &damage);
}

static bool verify_all(struct verification *verification)
{
    struct ckpt_loader *loader = verification->loader;
    const size_t tensors = loader->manifest.tensor_count;
    bool going = true;
    verification->sums = base_calloc(tensors, sizeof *verification->sums);
    verification->incomplete = base_calloc(tensors, sizeof *verification->incomplete);
    if (!verification->sums || !verification->incomplete) {
        zero_fail(&verification->first, ZERO_E_NOMEM, "no memory for the sums of %zu tensors",
                  tensors);
        return false;
    }
    // What is open has been checked once; now it is again.
    forget_shards(loader);
    loader->kept_block = SIZE_MAX;
    for (uint32_t rank = 0; going && rank < loader->manifest.world; rank++)
        going = verify_shard(verification, rank);
    return going && verify_sums(verification) && verify_fingerprint(verification);
}

zero_result ckpt_loader_verify(struct ckpt_loader *loader, const struct ckpt_verify_watch *watch,
                               struct base_error *error)
{
    struct verification verification = {.loader = loader, .watch = watch};
    const bool going = verify_all(&verification);
    base_free(verification.sums);
    base_free(verification.incomplete);
    base_free(verification.blob);
    if (!going)
        return zero_fail(error, verification.first.result, "%s", verification.first.message);
    if (verification.pieces == 0)
        return ZERO_OK;
    return zero_fail(error, ZERO_E_CORRUPT, "%" PRIu64 " pieces of damage, the first: %s",
                     verification.pieces, verification.first.message);
}
