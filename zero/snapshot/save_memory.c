// What the saves of a context use, from the first one on: memory, the store's snapshot, the saver
// thread.

#include "zero/core/api_call.h"
#include "zero/core/planner.h"
#include "zero/plan/plan.h"
#include "zero/plan/plan_values.h"
#include "zero/snapshot/save_parts.h"
#include "zero/snapshot/save_state.h"

#include "base/arena.h"

#include <assert.h>

static void lay_tables(const zero_ctx *z, size_t sources, struct eng_save *save)
{
    eng_sources_lay(&save->sources, sources, &save->tables);
    eng_digest_lay(z, &save->digest, &save->tables);
    eng_moment_lay(z, &save->moment, &save->tables);
    save->all = base_tables_add(&save->tables, (size_t)z->config.world, sizeof *save->all);
}

size_t eng_save_bytes(const zero_ctx *z, int rank, const struct eng_tier_needs *needs)
{
    const struct ckpt_saver_load load = eng_save_load(z, rank);
    const struct eng_save *save = z->saving.save;
    struct eng_save counted = {.tables.counts = true};
    const size_t room = z->store->records->kept ? 0 : save ? save->room_bytes : ENG_SAVE_ROOM;
    const size_t saver = ckpt_saver_bytes(&load, save ? save->level : CKPT_LEVEL_DEFAULT, room);
    lay_tables(z, load.sources, &counted);
    return sizeof counted + counted.tables.bytes + saver + z->store->snapshot->bytes(z, needs);
}

static void see(void *user, const struct ckpt_source *source, int field, uint64_t first,
                size_t count, const void *elements)
{
    const zero_ctx *z = user;
    struct eng_save *save = z->saving.save;
    const struct eng_slice *slice = save->sources.slice[source - save->sources.list];
    assert(slice->param == (zero_param)source->run.tensor);
    struct base_hash128 sum = {0}, *sums = save->digest.sums;
    eng_digest_add(z, slice, field, first, count, elements, &sum);
    pthread_mutex_lock(&save->summing);
    sums[slice->param] = base_hash128_add(sums[slice->param], sum);
    pthread_mutex_unlock(&save->summing);
}

/** What the saver cannot read itself. */
static zero_result fetch(void *user, const struct ckpt_source *source, int field, uint64_t first,
                         size_t count, const void **elements, struct base_error *error)
{
    zero_ctx *z = user;
    struct eng_save *save = z->saving.save;
    const struct eng_slice *slice = save->sources.slice[source - save->sources.list];
    return z->store->snapshot->read(z, save->snapshot, source, slice, field, first, count, elements,
                                    error);
}

/** What the saver cannot copy itself. */
static zero_result copy(void *user, const struct ckpt_source *source, int field, uint64_t first,
                        size_t count, void *to, struct base_error *error)
{
    const zero_ctx *z = user;
    return z->store->snapshot->copy(z, z->saving.save->snapshot, source, field, first, count, to,
                                    error);
}

static struct ckpt_saver_config saver_config(zero_ctx *z)
{
    return (struct ckpt_saver_config){
        .store = &ckpt_store_posix,
        .level = z->saving.save->level,
        .budget = z->store->records->kept ? 0 : z->saving.save->room_bytes,
        .sources = z->saving.save->sources.list,
        .load = eng_save_load(z, z->config.rank),
        .seen = see,
        .seen_user = z,
        .fetch = z->store->snapshot->read ? fetch : NULL,
        .copy = z->store->snapshot->copy ? copy : NULL,
        .fetch_user = z,
        .progress = &z->saving.status.done_bytes,
    };
}

static void drop_saver(const zero_ctx *z)
{
    struct eng_save *save = z->saving.save;
    z->store->snapshot->leave_room(z, save->snapshot);
    ckpt_saver_destroy(save->saver);
    save->saver = NULL;
}

/** A saver with room for the blobs there are. */
static zero_result prepare_saver(zero_ctx *z, struct base_error *error)
{
    struct eng_save *save = z->saving.save;
    const struct ckpt_saver_config config = saver_config(z);
    if (save->saver && save->blob_bytes >= config.load.blob_bytes)
        return ZERO_OK;
    drop_saver(z);
    save->blob_bytes = config.load.blob_bytes;
    atomic_store_explicit(&z->saving.status.state_bytes, config.load.bytes, memory_order_relaxed);
    const zero_result r = ckpt_saver_create(&save->saver, &config, error);
    if (r)
        return r;
    size_t bytes;
    void *room = ckpt_saver_copy_buffer(save->saver, &bytes);
    return z->store->snapshot->take_room(z, save->snapshot, room, bytes, error);
}

/** What all saves of a context use, but for the saver. */
static zero_result make(zero_ctx *z, struct base_error *error)
{
    assert(!z->saving.save && !z->update.guard);
    struct eng_save *save = base_calloc(1, sizeof *save);
    z->saving.save = save;
    if (save) {
        z->update.guard = &eng_save_guard;
        pthread_mutex_init(&save->summing, NULL);
        lay_tables(z, eng_save_load(z, z->config.rank).sources, save);
    }
    if (!save || save->tables.failed)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for saving %d shards", z->config.world);
    eng_sources_fill(z, &save->sources);
    return z->store->snapshot->make(z, &save->sources, &save->snapshot, error);
}

/** Gives up a save that is under way, and frees what all of them use. */
void eng_save_release(zero_ctx *z)
{
    struct eng_save *save = z->saving.save;
    if (!save)
        return;
    drop_saver(z);
    if (save->directory && eng_save_under_way(z))
        ckpt_cancel(save->directory);
    ckpt_directory_close(save->directory);
    ckpt_manifest_free(&save->manifest);
    z->store->snapshot->free(z, save->snapshot);
    pthread_mutex_destroy(&save->summing);
    base_tables_free(&save->tables);
    base_free(save);
    z->saving.save = NULL;
    z->update.guard = NULL;
}

/** Where memory is short: how much of it is for copies, which the caller decides. */
static void tell_room(const zero_ctx *z, struct base_error *error)
{
    const struct base_error short_of = *error;
    const size_t room = z->saving.save && !z->store->records->kept ? z->saving.save->room_bytes : 0;
    const uint64_t state = eng_save_load(z, z->config.rank).bytes;
    char size[32];
    if (short_of.result != ZERO_E_NOMEM || room == 0)
        return;
    base_error_clear(error);
    zero_fail(error, ZERO_E_NOMEM,
              "%s; %s of it on rank %d are room_bytes of zero_save_options: a smaller number, or "
              "ZERO_OFF, needs less",
              short_of.message, eng_human(state < room ? state : room, size), z->config.rank);
}

/** The first save, or other options: there must be memory for it before any is touched. */
static zero_result prepare_anew(zero_ctx *z, int level, size_t room_bytes)
{
    struct base_error error = {0};
    if (z->saving.save)
        drop_saver(z);
    else
        make(z, &error);
    if (z->saving.save) {
        z->saving.save->level = level;
        z->saving.save->room_bytes = room_bytes;
    }
    z->memory.planner->check(z, &error);
    tell_room(z, &error);
    const zero_result r = eng_agree(z, &error, "zero_save");
    if (r)
        return r;
    if (!z->store->snapshot->open(z, z->saving.save->snapshot, &error))
        prepare_saver(z, &error);
    tell_room(z, &error);
    return z->memory.planner->renew(z, "zero_save", &error);
}

/** All ranks have what they need, or none begins. */
zero_result eng_save_prepare(zero_ctx *z, int level, size_t room_bytes)
{
    struct base_error error = {0};
    assert(!eng_save_under_way(z));
    struct eng_save *save = z->saving.save;
    const bool first = !save;
    zero_result r;
    if (save && save->saver && save->level == level && save->room_bytes == room_bytes) {
        prepare_saver(z, &error);
        tell_room(z, &error);
        r = eng_agree(z, &error, "zero_save");
    } else {
        r = prepare_anew(z, level, room_bytes);
    }
    if (r && first)
        eng_save_release(z);
    else if (r)
        drop_saver(z); // on all ranks
    return r;
}
