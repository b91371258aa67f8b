// What a finished step leaves beside its tiles, and how a job comes back at it.

#include "zero/core/api_call.h"
#include "zero/link/publish.h"
#include "zero/param/gather_slots.h"
#include "zero/step/batch_size.h"
#include "zero/store/master_weights.h"
#include "zero/store/nvme_tier.h"

#include "base/arena.h"
#include "base/text.h"
#include "zero/snapshot/snapshot.h"

#include <inttypes.h>
#include <string.h>

/** Room for what is attached after the commit. */
enum { LATER_BYTES = 65536 };

/** A payload begins with it; then come hyper-parameters and whether it is frozen of each group, and
 * the blobs. */
struct head {
    uint64_t step, updates, skips, clean_steps, blobs, seed;
    double loss_scale;
    int32_t micro_batches, reserved;
};

struct blob_head {
    char name[ENG_BLOB_NAME];
    uint64_t bytes, of_rank;
};

/** A payload ends with it; those that earlier libraries have written have none. */
struct tail {
    uint64_t magic;
    struct ckpt_run_id own, loaded; /**< see struct eng_runs; without any loaded own twice */
};

#define TAIL_MAGIC UINT64_C(0x6e75722d6f72657a) /* "zero-run" */

/* ------------------------------------------------------------------ writing */

/** Of all blobs but the one called `without`, if there is one; NULL: of all. */
static size_t blob_bytes(const zero_ctx *z, const char *without)
{
    size_t bytes = 0;
    for (size_t i = 0; i < eng_blob_count(z); i++) {
        const struct eng_blob *blob = &z->blobs->list[i];
        if (!without || strcmp(blob->name, without) != 0)
            bytes += sizeof(struct blob_head) + (size_t)blob->bytes;
    }
    return bytes;
}

static size_t fixed_bytes(const zero_ctx *z)
{
    return sizeof(struct head) + z->model.group_count * (sizeof(zero_hyper) + sizeof(uint64_t));
}

size_t eng_payload_bytes(const zero_ctx *z)
{
    return fixed_bytes(z) + blob_bytes(z, NULL) + LATER_BYTES;
}

zero_result eng_tier_attach(zero_ctx *z, const char *name, uint64_t bytes)
{
    const struct eng_tier *tier = z->tier;
    if (!tier)
        return ZERO_OK;
    const size_t others = fixed_bytes(z) + blob_bytes(z, name) + sizeof(struct tail);
    const size_t left = tier->payload_room - others, head = sizeof(struct blob_head);
    if (left >= head && bytes <= left - head)
        return ZERO_OK;
    base_error_clear(&z->error);
    return zero_fail(&z->error, ZERO_E_LIMIT,
                     "zero_attach: %s has %" PRIu64 " bytes, and %zu to describe it; recovery "
                     "points have room for %zu more: attach what is larger before zero_commit()",
                     name, bytes, head, left);
}

static unsigned char *append(unsigned char *to, const void *from, size_t bytes)
{
    if (bytes > 0)
        memcpy(to, from, bytes);
    return to + bytes;
}

/** What decides the future beside tensors; its size. */
static size_t write_payload(const zero_ctx *z, unsigned char *payload)
{
    const struct head head = {
        .step = z->step,
        .updates = z->updates,
        .skips = z->stepping.result.skips,
        .clean_steps = z->stepping.scale.clean,
        .blobs = eng_blob_count(z),
        .seed = z->config.seed,
        .loss_scale = z->stepping.scale.value,
        .micro_batches = z->config.micro_batches,
    };
    unsigned char *at = append(payload, &head, sizeof head);
    for (size_t g = 0; g < z->model.group_count; g++) {
        const uint64_t frozen = z->model.groups[g].frozen;
        at = append(at, &z->stepping.hyper[g], sizeof z->stepping.hyper[g]);
        at = append(at, &frozen, sizeof frozen);
    }
    for (size_t i = 0; i < eng_blob_count(z); i++) {
        const struct eng_blob *blob = &z->blobs->list[i];
        struct blob_head described = {.bytes = blob->bytes, .of_rank = blob->scope == ZERO_OF_RANK};
        memcpy(described.name, blob->name, sizeof described.name);
        at = append(at, &described, sizeof described);
        at = append(at, blob->memory, (size_t)blob->bytes);
    }
    const struct tail tail = {TAIL_MAGIC, z->runs.own,
                              z->runs.count > 0 ? z->runs.loaded[0].id : z->runs.own};
    at = append(at, &tail, sizeof tail);
    return (size_t)(at - payload);
}

/** A record's number: its generation, and whether it is a job's beginning. */
static uint64_t number_of(uint64_t generation, bool beginning)
{
    return generation << 1 | beginning;
}

bool eng_record_counts(uint64_t number)
{
    return number == number_of(number >> 1, false);
}

static zero_result record(zero_ctx *z, bool beginning)
{
    struct eng_tier *tier = z->tier;
    struct base_error error = {0};
    if (!tier)
        return ZERO_OK;
    // A step that is skipped changes no tile, and its record takes the place of the point's.
    if (eng_tier_leave_point(z, &error))
        return eng_fail_from(z, &error);
    const size_t bytes = write_payload(z, tier->payload);
    const uint64_t number = number_of(tier->generation + 1, beginning);
    if (off_tilefile_record(tier->tilefile, number, tier->payload, bytes, &error))
        return eng_fail_from(z, &error);
    tier->generation++;
    return ZERO_OK;
}

zero_result eng_tier_record(zero_ctx *z)
{
    return record(z, false);
}

zero_result eng_tier_record_beginning(zero_ctx *z)
{
    return record(z, true);
}

/* ------------------------------------------------------------------ meeting */

/** A rank's records, the newest first, by their numbers. */
struct finding {
    uint64_t count, number[2];
};

static struct finding look(const struct eng_tier *tier)
{
    struct finding found = {.count = (uint64_t)tier->recorded};
    for (int age = 0; age < tier->recorded; age++)
        found.number[age] = off_tilefile_step(tier->tilefile, age);
    return found;
}

/** Its age among the records of the file. */
static int age_of(const struct eng_tier *tier, uint64_t number)
{
    return off_tilefile_step(tier->tilefile, 0) == number ? 0 : 1;
}

static bool has(const struct finding *found, uint64_t number)
{
    return (found->count > 0 && found->number[0] == number) ||
           (found->count > 1 && found->number[1] == number);
}

/** The newest record that all ranks have, of those that count or of all; false: there is none. A
 * beginning is nothing to come back at, and never in the way of what it was written beside: its job
 * may have died before it came back. */
static bool common_record(const struct finding *all, int world, bool beginnings, uint64_t *number)
{
    for (uint64_t i = 0; i < all[0].count; i++) {
        int r = 1;
        *number = all[0].number[i];
        if (!beginnings && !eng_record_counts(*number))
            continue;
        while (r < world && has(&all[r], *number))
            r++;
        if (r == world)
            return true;
    }
    return false;
}

/** Whether a rank has a step that others had finished, too, when it was recorded, or may have: one
 * before the newest record that all have, or any if there is no such record. */
static bool is_broken(const struct finding *all, int world)
{
    uint64_t common;
    if (!common_record(all, world, true, &common))
        common = UINT64_MAX;
    for (int r = 0; r < world; r++)
        for (uint64_t i = 0; i < all[r].count; i++)
            if (eng_record_counts(all[r].number[i]) && all[r].number[i] < common)
                return true;
    return false;
}

static uint64_t newest_generation(const struct finding *all, size_t world)
{
    uint64_t newest = 0;
    for (size_t r = 0; r < world; r++)
        for (uint64_t i = 0; i < all[r].count; i++)
            if (all[r].number[i] >> 1 > newest)
                newest = all[r].number[i] >> 1;
    return newest;
}

/** Makes a record of the job before the current one, and keeps its payload. */
static zero_result go_back(struct eng_tier *tier, struct base_error *error)
{
    struct eng_recovery *recovery = &tier->recovery;
    struct head head;
    if (!recovery->payload)
        recovery->payload = base_calloc(tier->payload_room, 1);
    if (!recovery->payload)
        return zero_fail(error, ZERO_E_NOMEM, "%s: no memory for a record", tier->path);
    const zero_result r = off_tilefile_recover(tier->tilefile, recovery->age, recovery->payload,
                                               &recovery->payload_bytes, error);
    if (r)
        return r;
    tier->generation = recovery->generation;
    memcpy(&head, recovery->payload, sizeof head);
    recovery->step = head.step;
    return ZERO_OK;
}

/** What a rank has of a broken point. */
struct piece_of_point {
    uint64_t has, step;
};

static bool alike(const struct piece_of_point *a, const struct piece_of_point *b)
{
    return a->has == b->has && a->step == b->step;
}

static void list_ranks(const struct piece_of_point *all, int world, struct base_text *text)
{
    for (int r = 0, end; r < world; r = end) {
        for (end = r + 1; end < world && alike(&all[end], &all[r]);)
            end++;
        base_text_add(text, "%s%s %d", r ? ", " : "", end - r > 1 ? "ranks" : "rank", r);
        if (end - r > 1)
            base_text_add(text, " to %d", end - 1);
        if (all[r].has)
            base_text_add(text, ": step %" PRIu64, all[r].step);
        else
            base_text_add(text, ": none");
    }
}

/** Goes back to the newest record that counts, or, without one, to the newest: what is written next
 * is newer than that. */
static zero_result keep_newest(struct eng_tier *tier, const struct finding *mine,
                               struct piece_of_point *piece, struct base_error *error)
{
    uint64_t age = 0;
    while (age < mine->count && !eng_record_counts(mine->number[age]))
        age++;
    piece->has = age < mine->count;
    tier->recovery.age = piece->has ? (int)age : 0;
    const zero_result r = mine->count > 0 ? go_back(tier, error) : ZERO_OK;
    piece->step = piece->has ? tier->recovery.step : 0;
    return r;
}

/** Keeps what each rank has of a broken point, and finds out what that is. */
static zero_result keep_pieces(zero_ctx *z, const struct finding *all)
{
    struct eng_tier *tier = z->tier;
    struct eng_recovery *recovery = &tier->recovery;
    const size_t world = (size_t)z->config.world;
    struct piece_of_point piece, *pieces = base_calloc(world, sizeof *pieces);
    struct base_error error = {0};
    struct base_text text = {recovery->ranks, sizeof recovery->ranks, 0};
    if (!pieces)
        return eng_fail(z, ZERO_E_NOMEM, "no memory to compare the records of %zu ranks", world);
    recovery->broken = true;
    recovery->generation = newest_generation(all, world);
    keep_newest(tier, &all[z->config.rank], &piece, &error);
    tier->generation = recovery->generation;
    const zero_result r = eng_exchange(z, &piece, sizeof piece, pieces);
    if (!r)
        list_ranks(pieces, z->config.world, &text);
    base_free(pieces);
    return r ? r : eng_agree_on_file(z, &error, "zero_commit");
}

/** That of any rank, of which `path` is one. */
static void tell_broken(const zero_ctx *z)
{
    if (z->config.rank == 0)
        base_logf(
            &z->log, ZERO_LOG_WARN, "io",
            "not all ranks have the recovery point of the job before (%s): %s, and those of "
            "the other ranks, stay as they are until zero_resume() has found a checkpoint, or "
            "something is written over them",
            z->tier->recovery.ranks, z->tier->path);
}

/** A rank whose writer died while it wrote, or whose record was damaged, comes back one step
 * earlier, and all others with it. */
static void tell_torn(const zero_ctx *z)
{
    uint64_t offsets[2];
    const int count = off_tilefile_torn(z->tier->tilefile, offsets);
    for (int i = 0; i < count; i++)
        base_logf(&z->log, ZERO_LOG_WARN, "io",
                  "%s: what is at offset %" PRIu64
                  " is no whole record: its writer died meanwhile, "
                  "or it was damaged since; the other one is taken, if there is one that all "
                  "ranks have",
                  z->tier->path, offsets[i]);
}

/** What is left is nothing to come back at: the next record is newer than any of it. */
static void begin_behind(zero_ctx *z, const struct finding *all, struct base_error *error)
{
    struct eng_tier *tier = z->tier;
    uint64_t number;
    // A job that died in its first step. Its beginning stays: if this one dies when some ranks have
    // forgotten that step, and some not yet, the next one finds the same again.
    if (!common_record(all, z->config.world, true, &number)) {
        off_tilefile_clear(tier->tilefile, error);
        return;
    }
    tier->recovery.age = age_of(tier, number);
    tier->recovery.generation = number >> 1;
    go_back(tier, error);
}

zero_result eng_tier_meet(zero_ctx *z)
{
    struct eng_tier *tier = z->tier;
    const int world = z->config.world;
    const struct finding mine = look(tier);
    struct eng_recovery *recovery = &tier->recovery;
    struct base_error error = {0};
    uint64_t number;
    struct finding *all = base_calloc((size_t)world, sizeof *all);
    if (!all)
        return eng_fail(z, ZERO_E_NOMEM, "no memory to compare the records of %d ranks", world);
    tell_torn(z);
    zero_result r = eng_exchange(z, &mine, sizeof mine, all);
    if (r)
        goto out;
    recovery->found = common_record(all, world, false, &number);
    if (!recovery->found && is_broken(all, world)) {
        r = keep_pieces(z, all);
        if (!r)
            tell_broken(z);
        goto out;
    }
    if (recovery->found) {
        recovery->age = age_of(tier, number);
        recovery->generation = number >> 1;
        go_back(tier, &error);
    } else {
        begin_behind(z, all, &error);
    }
    r = eng_agree_on_file(z, &error, "zero_commit");
out:
    base_free(all);
    return r;
}

/* ------------------------------------------------------------------ coming back */

bool eng_tier_has_point(const struct eng_tier *tier)
{
    const struct eng_recovery *recovery = &tier->recovery;
    return (recovery->found || recovery->broken) && tier->generation == recovery->generation + 1;
}

bool eng_tier_recoverable(const zero_ctx *z, uint64_t *step)
{
    if (!z->tier || !z->tier->recovery.found || !eng_tier_has_point(z->tier))
        return false;
    *step = z->tier->recovery.step;
    return true;
}

const char *eng_tier_broken(const zero_ctx *z)
{
    return z->tier && z->tier->recovery.broken ? z->tier->recovery.ranks : NULL;
}

void eng_tier_pass_over(zero_ctx *z)
{
    if (z->tier)
        z->tier->recovery.passed = true;
}

zero_result eng_tier_leave_point(zero_ctx *z, struct base_error *error)
{
    struct eng_tier *tier = z->tier;
    struct eng_recovery *recovery = &tier->recovery;
    if (!eng_tier_has_point(tier))
        return ZERO_OK;
    if (recovery->found && !recovery->passed && z->config.rank == 0)
        base_logf(&z->log, ZERO_LOG_WARN, "io",
                  "step %" PRIu64 " of the job before, which zero_resume() would have come back "
                  "at, is given up: %s, and those of the other ranks, are written over",
                  recovery->step, tier->path);
    recovery->found = recovery->broken = false;
    return off_tilefile_void_older(tier->tilefile, error);
}

/** Reads the blobs, or, unless `install`, only looks whether they are the ones attached here. */
static zero_result read_blobs(const zero_ctx *z, const unsigned char *at, uint64_t count,
                              bool install, struct base_error *error)
{
    const char *path = z->tier->path;
    if (count != eng_blob_count(z))
        return zero_fail(error, ZERO_E_INVALID,
                         "%s has %" PRIu64 " attached blobs, and here there are %zu", path, count,
                         eng_blob_count(z));
    for (uint64_t i = 0; i < count; i++) {
        struct blob_head head;
        memcpy(&head, at, sizeof head);
        at += sizeof head;
        const struct eng_blob *blob = eng_blob_find(z, head.name, head.of_rank != 0);
        if (!blob || blob->bytes != head.bytes)
            return zero_fail(error, ZERO_E_INVALID,
                             "%s has a blob %s of %" PRIu64 " bytes; here %" PRIu64 " are attached",
                             path, head.name, head.bytes, blob ? blob->bytes : 0);
        if (install)
            memcpy(blob->memory, at, (size_t)head.bytes);
        at += head.bytes;
    }
    return ZERO_OK;
}

/** Makes the payload's moment, and what is attached, this context's. */
static zero_result install_payload(zero_ctx *z, const struct head *head, struct base_error *error)
{
    const unsigned char *at = z->tier->recovery.payload + sizeof *head;
    struct eng_moment moment;
    if (eng_moment_make(z, &moment, error))
        return error->result;
    eng_moment_take(z, (struct base_hash128){0, 0}, &moment);
    moment.step = head->step;
    moment.updates = head->updates;
    moment.skips = head->skips;
    moment.scale.value = head->loss_scale;
    moment.scale.clean = head->clean_steps;
    for (size_t g = 0; g < z->model.group_count; g++) {
        uint64_t frozen;
        memcpy(&moment.hyper[g], at, sizeof moment.hyper[g]);
        at += sizeof moment.hyper[g];
        memcpy(&frozen, at, sizeof frozen);
        at += sizeof frozen;
        moment.frozen[g] = frozen != 0;
    }
    eng_moment_install(z, &moment);
    eng_moment_free(&moment);
    z->config.seed = head->seed; // which a checkpoint may have brought
    return read_blobs(z, at, head->blobs, true, error);
}

/** What is in memory anyway becomes what the tile has of it. */
static zero_result restore(zero_ctx *z, void *user, const struct eng_part *part,
                           struct base_error *error)
{
    const size_t s = part->slice->section;
    const size_t at = part->slice->granule * ENG_GRANULE + part->first;
    (void)user;
    (void)error;
    eng_tier_take_back(z, s, at, part->count);
    eng_values_refresh(z, s, at, part->count);
    return ZERO_OK;
}

static zero_result restore_all(zero_ctx *z, const struct head *head, struct base_error *error)
{
    zero_result r = go_back(z->tier, error);
    eng_tier_abandon(z); // nothing in memory is of that record
    if (!r)
        r = eng_tier_reread(z, restore, NULL, error);
    return r ? r : install_payload(z, head, error);
}

bool eng_tier_take_run(zero_ctx *z)
{
    const struct eng_recovery *recovery = &z->tier->recovery;
    const size_t before = fixed_bytes(z) + blob_bytes(z, NULL);
    struct tail tail;
    if (recovery->payload_bytes < before + sizeof tail)
        return false;
    memcpy(&tail, recovery->payload + before, sizeof tail);
    if (tail.magic != TAIL_MAGIC)
        return false;
    eng_runs_loaded(z, &tail.loaded, false, NULL, 0);
    eng_runs_continue(z, &tail.own);
    return true;
}

zero_result eng_tier_recover(zero_ctx *z, const char *call, bool *changed)
{
    const unsigned char *payload = z->tier->recovery.payload;
    struct base_error error = {0};
    struct head head;
    memcpy(&head, payload, sizeof head);
    read_blobs(z, payload + fixed_bytes(z), head.blobs, false, &error);
    zero_result r = eng_slots_settle(z);
    if (!r)
        r = eng_publish_finish(z, true);
    // When all have agreed, nobody reads a peer's weights any more.
    if (!r)
        r = eng_agree_on_file(z, &error, call);
    if (!r && head.micro_batches != z->config.micro_batches)
        r = eng_batch_change(z, head.micro_batches, call);
    if (r)
        return r;
    *changed = true;
    // Whatever comes of it on this rank: the next record is of the same number on all of them.
    z->tier->recovery.found = false;
    z->tier->generation = z->tier->recovery.generation;
    restore_all(z, &head, &error);
    r = eng_agree_on_file(z, &error, call);
    return r ? r : eng_publish_all(z);
}
