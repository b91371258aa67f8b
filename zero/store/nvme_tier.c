#include "zero/store/nvme_tier.h"
#include "zero/core/api_call.h"
#include "zero/core/exchange.h"
#include "zero/core/state_cut.h"
#include "zero/exec/host_update.h"
#include "zero/plan/plan_values.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/hash.h"
#include "offload/disk_probe.h"
#include "offload/io/io_engine.h"
#include "zero/core/stop.h"
#include "zero/exec/gpu.h"
#include "zero/exec/memory_probe.h"
#include "zero/store/nvme_codec.h"
#include "zero/store/tile_transfers.h"

#include <assert.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

enum { LEAST_BUFFERS = 2 };

/* ------------------------------------------------------------------ how much */

/** Passes with `buffers` tiles in memory, but for the tile file. */
static struct off_pipeline_config stream_of(const struct eng_config *config,
                                            const struct eng_tiles *tiles, size_t buffers)
{
    const unsigned transfers = eng_transfers_under_way((size_t)config->tile_bytes);
    return (struct off_pipeline_config){
        .engine = off_io_engine_find(config->io),
        .tiles = tiles->count,
        .buffers = buffers,
        .transfer_bytes = ENG_TRANSFER_BYTES,
        .credits = {transfers, transfers},
        .timeout_s = config->timeout_s,
        .helpers = eng_config_tile_threads(config),
        .codec = &eng_tile_codec,
        .codec_user = tiles,
        .encode = strcmp(config->compress, "off") != 0,
        .fill = true,
    };
}

static size_t memory_of(const struct eng_config *config, const struct eng_tiles *tiles,
                        size_t buffers)
{
    const struct off_pipeline_config pipeline = stream_of(config, tiles, buffers);
    return off_pipeline_memory(&pipeline, tiles->largest).buffers;
}

/** As many as there is memory for, where `beside` bytes are for parameters and sums. */
static size_t buffers_of(const struct eng_config *config, const struct eng_tiles *tiles,
                         size_t beside)
{
    const size_t given = (size_t)config->host_bytes;
    size_t count = given > 0 ? LEAST_BUFFERS : eng_tiles_in_memory((size_t)config->tile_bytes);
    while (given > 0 && count < tiles->count &&
           beside + memory_of(config, tiles, count + 1) <= given)
        count++;
    count = count < tiles->count ? count : tiles->count;
    return count > LEAST_BUFFERS ? count : LEAST_BUFFERS;
}

/** Whether there is room for as many tiles as passes need. */
static zero_result check_room(const struct eng_config *config, const struct eng_tiles *tiles,
                              size_t beside, struct base_error *error)
{
    const size_t least = tiles->count > 0 ? memory_of(config, tiles, LEAST_BUFFERS) : 0;
    if (config->host_bytes == 0 || (size_t)config->host_bytes >= least + beside)
        return ZERO_OK;
    return zero_fail(error, ZERO_E_INVALID,
                     "host_bytes=%" PRId64 ", but %d tiles, with compress=%s, take %zu bytes, and "
                     "parameters and sums on NVMe %zu: raise it, or lower tile_bytes (%" PRId64 ")",
                     config->host_bytes, LEAST_BUFFERS, config->compress, least, beside,
                     config->tile_bytes);
}

static void lay_tables(const zero_ctx *z, size_t tiles, struct eng_tier *tier)
{
    struct base_tables *tables = &tier->tables;
    tier->memory = base_tables_add(tables, tiles + 1, sizeof *tier->memory);
    tier->order = base_tables_add(tables, tiles + 1, sizeof *tier->order);
    tier->due = base_tables_add(tables, tiles + 1, sizeof *tier->due);
    tier->left = base_tables_add(tables, z->layout.bucket_count, sizeof *tier->left);
    tier->payload = base_tables_add(tables, tier->payload_room, 1);
    tier->recovery.payload = base_tables_add(tables, tier->payload_room, 1);
}

/** What the state needs: its file, and the memory that it moves through, where so much is beside
 * it. */
static void state_needs(const zero_ctx *z, const struct eng_tiles *tiles, size_t beside,
                        struct eng_tier_needs *needs)
{
    struct eng_file_needs *file = &needs->files[ENG_FILE_STATE];
    struct eng_tier counted = {
        .tables.counts = true,
        .payload_room = z->tier ? z->tier->payload_room : z->saving.record->bytes(z),
    };
    const struct off_tilefile_config tilefile = {
        .tiles = tiles->count,
        .tile_bytes = tiles->bytes,
        .payload_bytes = counted.payload_room,
    };
    file->bytes = off_tilefile_file_bytes(&tilefile);
    lay_tables(z, tiles->count, &counted);
    needs->tables += tiles->tables.bytes + sizeof counted + counted.tables.bytes +
                     off_tilefile_memory(&tilefile) + off_blocking_calls_memory();
    if (tiles->count == 0)
        return;
    const size_t buffers = buffers_of(&z->config, tiles, beside);
    const struct off_pipeline_config pipeline = stream_of(&z->config, tiles, buffers);
    const struct off_pipeline_memory memory = off_pipeline_memory(&pipeline, tiles->largest);
    needs->tiles = tiles->count;
    needs->tile_bytes = tiles->largest;
    needs->buffers = buffers;
    needs->tables += memory.tables;
    file->memory = memory.buffers;
    for (size_t i = 0; i < tiles->training; i++)
        file->read += tiles->bytes[i];
    file->written = file->read;
}

zero_result eng_tier_needs(const zero_ctx *z, const struct eng_placement *placement,
                           struct eng_tier_needs *needs, struct base_error *error)
{
    const struct eng_config *config = &z->config;
    struct eng_tiles tiles;
    *needs = (struct eng_tier_needs){.tiles = 0};
    zero_result r = eng_state_cut(z, placement, &tiles, error);
    if (r)
        return r;
    needs->segments = eng_segments_bytes(z, placement, &tiles);
    r = eng_params_needs(z, placement, &tiles, needs, error);
    if (!r)
        r = eng_sums_needs(z, placement, &tiles, needs, error);
    const size_t beside = needs->files[ENG_FILE_PARAMS].memory + needs->files[ENG_FILE_SUMS].memory;
    state_needs(z, &tiles, beside, needs);
    if (!r)
        r = check_room(config, &tiles, beside, error);
    eng_tiles_free(&tiles);
    return r;
}

/* ------------------------------------------------------------------ where */

/** Hash of whatever makes a job another one than that whose state is in a file. */
static uint64_t identify(const zero_ctx *z, uint64_t seed)
{
    const struct eng_config *config = &z->config;
    const uint64_t numbers[] = {
        ENG_STATE_FORMAT,
        (uint64_t)config->world,
        (uint64_t)config->stage,
        (uint64_t)config->micro_batches,
        (uint64_t)config->sum_group,
        (uint64_t)config->local,
        (uint64_t)config->comm_dtype,
        (uint64_t)config->moment_dtype,
        (uint64_t)config->no_masters,
        (uint64_t)config->loss_scale,
        (uint64_t)config->loss_scale_init,
        (uint64_t)config->loss_scale_min,
        (uint64_t)config->loss_scale_window,
        (uint64_t)config->persist_numel,
        config->seed,
        (uint64_t)z->model.group_count,
    };
    uint64_t hash = base_hash64(numbers, sizeof numbers, seed);
    for (size_t p = 0; p < z->model.param_count; p++) {
        const uint64_t param = eng_model_param_hash(&z->model, p);
        hash = base_hash64(&param, sizeof param, hash);
    }
    return base_hash64(config->name, strlen(config->name), hash);
}

/** The path of a rank's file; the job's hash is in its name. */
static void path_of(const zero_ctx *z, int rank, char path[ENG_TIER_PATH])
{
    snprintf(path, ENG_TIER_PATH, "%s/zero-%016" PRIx64 "-rank-%d.slots", z->config.nvme_dir,
             z->tier ? z->tier->job : identify(z, UINT64_MAX), rank);
}

void eng_tier_disk(const zero_ctx *z, struct eng_plan_disk *disk)
{
    struct statvfs status;
    disk->directory = z->config.nvme_dir;
    disk->known = false;
    if (z->tier && z->tier->pipeline)
        disk->pages = off_pages_text(off_pipeline_pages(z->tier->pipeline)->kind);
    if (z->tier)
        eng_tier_disk_io(z->tier, disk);
    if (z->tier && z->tier->tilefile) {
        disk->opened = true;
        disk->direct_unit = off_tilefile_file(z->tier->tilefile)->direct_unit;
    }
    if (statvfs(z->config.nvme_dir, &status) != 0)
        return;
    disk->known = true;
    disk->found = (uint64_t)status.f_bavail * status.f_frsize;
    for (int rank = 0; rank < z->config.world; rank++) {
        char path[ENG_TIER_PATH];
        struct stat file;
        path_of(z, rank, path);
        if (stat(path, &file) == 0)
            disk->found += (uint64_t)file.st_blocks * 512;
    }
    // Those without names are there once the tier is.
    for (int i = ENG_FILE_PARAMS; z->tier && i <= ENG_FILE_SUMS; i++)
        disk->found += eng_plan_of_host(&z->plan, z->plan.files[i].bytes.sum);
}

/** How many threads all ranks of this host have, as far as there are processors for them. */
static int threads_here(const zero_ctx *z)
{
    const int each = z->config.cpu_threads, most = z->config.allowed_cpus;
    const int64_t all = (int64_t)z->plan.fit.host_ranks * each, found = all < most ? all : most;
    return found < each ? each : found < BASE_POOL_THREADS ? (int)found : BASE_POOL_THREADS;
}

/** What the ranks of this host, which step at the same time, do with its memory and processors: a
 * rank's part of it. */
static zero_result probe_ranks(const zero_ctx *z, struct eng_plan_disk *disk,
                               struct base_error *error)
{
    struct base_pool *pool;
    zero_result r = base_pool_create(&pool, threads_here(z), error);
    if (!r)
        r = eng_probe_memory(pool, &disk->memory_rate, error);
    if (!r)
        r = eng_probe_update(z, pool, &disk->update, error);
    disk->memory_rate /= z->plan.fit.host_ranks;
    disk->update.bytes_s /= z->plan.fit.host_ranks;
    base_pool_destroy(pool);
    return r;
}

/** The probe may register more memory than ranks with few tiles: if theirs may be locked, they will
 * have the engine that registers it. */
static zero_result probe_disk(const zero_ctx *z, uint64_t lock_limit, struct off_disk_probe *probe,
                              struct base_error *error)
{
    struct off_disk_probe_config config = {.directory = z->config.nvme_dir,
                                           .engine = off_io_engine_find(z->config.io)};
    const bool fits = eng_plan_registers(&z->plan) <= lock_limit;
    struct base_error refusal = {.result = ZERO_OK};
    zero_result r = off_disk_probe(probe, &config, &refusal);
    char needed[32];
    if (!r) {
        const struct off_io_use *use = &probe->use;
        if (fits && use->engine == &off_io_engine_uring_plain && use->passed.result == ZERO_E_LIMIT)
            probe->use = (struct off_io_use){.engine = &off_io_engine_uring};
        return ZERO_OK;
    }
    if (r != ZERO_E_LIMIT || config.engine != &off_io_engine_uring)
        return zero_fail(error, r, "%s", refusal.message);
    if (!fits)
        return zero_fail(error, r, "%s (the ranks of this host would register %s)", refusal.message,
                         eng_human(eng_plan_registers(&z->plan), needed));
    config.engine = &off_io_engine_uring_plain;
    r = off_disk_probe(probe, &config, error);
    probe->use.engine = &off_io_engine_uring;
    return r;
}

zero_result eng_tier_probe(const zero_ctx *z, struct eng_plan_disk *disk, struct base_error *error)
{
    struct off_disk_probe probe;
    disk->lock_limit = off_lock_limit();
    zero_result r = probe_disk(z, disk->lock_limit, &probe, error);
    if (!r)
        eng_plan_disk_io(disk, &probe.use);
    disk->disk_rate = probe.mixed_rate;
    disk->read_rate = probe.read_rate;
    disk->latency_s = probe.latency_s;
    disk->opened = !r;
    disk->direct_unit = probe.direct_unit;
    disk->pages = r ? NULL : off_pages_text(probe.pages);
    if (!r)
        r = probe_ranks(z, disk, error);
    return r ? r : eng_codec_probe(&disk->codec, error);
}

/* ------------------------------------------------------------------ what it does */

static void fill_time(const zero_ctx *z, unsigned char *mine)
{
    if (z->tier)
        memcpy(mine, &z->tier->compression.newest, sizeof z->tier->compression.newest);
}

static zero_result hear_times(zero_ctx *z, const unsigned char *all, size_t stride)
{
    struct eng_tier *tier = z->tier;
    struct eng_update_time slowest = {0}, time;
    char text[160];
    if (!tier || tier->compression.decided)
        return ZERO_OK;
    assert(stride >= sizeof time);
    for (size_t rank = 0; rank < (size_t)z->config.world; rank++) {
        memcpy(&time, all + rank * stride, sizeof time);
        if (time.seconds > slowest.seconds)
            slowest = time;
    }
    tier->compression.newest = (struct eng_update_time){0};
    eng_compression_hear(&tier->compression, &slowest);
    if (tier->compression.decided && z->config.rank == 0)
        base_logf(&z->config.log, ZERO_LOG_INFO, "io", "compression of state on NVMe is %s",
                  eng_compression_text(&tier->compression, text, sizeof text));
    return ZERO_OK;
}

const struct eng_exchange_part eng_tier_part = {
    .name = "update time",
    .kinds = ENG_EXCHANGE_STEP | ENG_EXCHANGE_EARLY,
    .bytes = sizeof(struct eng_update_time),
    .fill = fill_time,
    .hear = hear_times,
};

static uint64_t repeated(const struct off_io_counts *counts)
{
    return counts->shortened + counts->repeated + counts->put_off;
}

void eng_tier_count(const zero_ctx *z, zero_statistics *stats)
{
    const struct eng_tier *tier = z->tier;
    if (!tier)
        return;
    if (tier->pipeline) {
        const struct off_pipeline_counts counts = off_pipeline_counts(tier->pipeline);
        stats->state_read_bytes = counts.io.bytes[OFF_READ];
        stats->state_written_bytes = counts.io.bytes[OFF_WRITE];
        stats->state_tile_bytes = counts.contents[OFF_READ] + counts.contents[OFF_WRITE];
        stats->state_wait_s = counts.waited_s;
        stats->state_compressed = tier->compression.encodes;
        stats->io_repeated = repeated(&counts.io);
    }
    const struct off_io_counts params = eng_strip_file_counts(&tier->params.file);
    const struct off_io_counts sums = eng_strip_file_counts(&tier->sums.file);
    stats->params_read_bytes = params.bytes[OFF_READ];
    stats->params_written_bytes = params.bytes[OFF_WRITE];
    stats->sums_read_bytes = sums.bytes[OFF_READ];
    stats->sums_written_bytes = sums.bytes[OFF_WRITE];
    stats->io_repeated += repeated(&params) + repeated(&sums);
}

/* ------------------------------------------------------------------ life */

static zero_result allocate(zero_ctx *z, struct eng_tier *tier, struct base_error *error)
{
    const zero_result r = eng_state_cut(z, &z->placement, &tier->tiles, error);
    if (r)
        return r;
    tier->job = identify(z, UINT64_MAX);
    tier->payload_room = z->saving.record->bytes(z);
    tier->compression = eng_compression_begin(&z->config);
    lay_tables(z, tier->tiles.count, tier);
    if (tier->tables.failed)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for the places of %zu tiles",
                         tier->tiles.count);
    return ZERO_OK;
}

static zero_result open_tilefile(const zero_ctx *z, struct eng_tier *tier, struct base_error *error)
{
    const struct off_tilefile_config config = {
        .path = tier->path,
        .identity = {identify(z, (uint64_t)z->config.rank), tier->job},
        .tiles = tier->tiles.count,
        .tile_bytes = tier->tiles.bytes,
        .payload_bytes = tier->payload_room,
        .durable = strcmp(z->config.recovery, "durable") == 0,
        .counts = eng_record_counts,
        .blocking_calls = tier->blocking_calls,
    };
    path_of(z, z->config.rank, tier->path);
    return off_tilefile_open(&tier->tilefile, &config, &tier->recorded, error);
}

static zero_result open_stream(const zero_ctx *z, struct eng_tier *tier, struct base_error *error)
{
    struct eng_tier_needs needs;
    zero_result r = eng_tier_needs(z, &z->placement, &needs, error);
    if (r || needs.tiles == 0)
        return r;
    assert(needs.tiles == tier->tiles.count && needs.tile_bytes == tier->tiles.largest);
    struct off_pipeline_config config = stream_of(&z->config, &tier->tiles, needs.buffers);
    config.tilefile = tier->tilefile;
    tier->buffers = needs.buffers;
    r = off_pipeline_create(&tier->pipeline, &config, error);
    if (!r && z->config.streamed)
        r = eng_device_tiles_pin(z, off_pipeline_pages(tier->pipeline), error);
    if (!r && config.encode)
        off_pipeline_encode(tier->pipeline, tier->compression.encodes);
    return r;
}

zero_result eng_tier_open(zero_ctx *z)
{
    struct base_error error = {0};
    assert(!z->tier);
    struct eng_tier *tier = base_calloc(1, sizeof *tier);
    z->tier = tier;
    if (!tier)
        zero_fail(&error, ZERO_E_NOMEM, "no memory for state on NVMe");
    else if (!allocate(z, tier, &error) &&
             !off_blocking_calls_create(&tier->blocking_calls, z->config.timeout_s, &error) &&
             !open_tilefile(z, tier, &error) && !open_stream(z, tier, &error) &&
             !eng_params_open(z, &error))
        eng_sums_open(z, &error);
    zero_result r = eng_agree_on_file(z, &error, "zero_commit");
    if (!r && z->config.rank == 0)
        eng_tier_tell_others(z);
    if (!r)
        r = eng_tier_share_io(z);
    return r ? r : eng_tier_meet(z);
}

/** Waits for what the kernel has, and frees everything; in the blocking calls' thread, if there is
 * one. */
static void end(void *user)
{
    struct eng_tier *tier = user;
    off_pipeline_destroy(tier->pipeline);
    eng_params_close(&tier->params);
    eng_sums_close(&tier->sums);
    eng_recorded_end(tier);
    off_tilefile_close(tier->tilefile, tier->remove);
    eng_tiles_free(&tier->tiles);
    base_tables_free(&tier->tables);
    base_free(tier);
}

void eng_tier_close(zero_ctx *z)
{
    struct eng_tier *tier = z->tier;
    struct base_error error = {0};
    char path[ENG_TIER_PATH];
    if (!tier)
        return;
    // A rank that was told nothing yet of how another one has ended has not ended well either, and
    // a job that was asked to stop is to be started again.
    const bool well = !z->fatal && !coll_state(z->comm, NULL) && !eng_stop_agreed(z);
    // What has never been a job's state is nothing to come back at; but a point of the job before
    // that this one has neither come back at nor written over is its only copy.
    tier->remove = z->call.committed ? well && !eng_tier_has_point(tier) : tier->recorded == 0;
    // Moves end in memory of the context, which goes whether they have come back or not.
    off_tile_io_stop(tier->params.file.tile_io);
    off_tile_io_stop(tier->sums.file.tile_io);
    z->tier = NULL; // by which moves have found their way until here
    memcpy(path, tier->path, sizeof path);
    if (!tier->blocking_calls)
        end(tier);
    else if (off_blocking_calls_end(tier->blocking_calls, end, tier, &error))
        base_logf(&z->config.log, ZERO_LOG_WARN, "io",
                  "zero_close: %s stays as it is, and memory that may still be read or written: %s",
                  path, error.message);
}
