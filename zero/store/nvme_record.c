// Records of finished steps: writing one, which one all ranks have of the job before, and coming
// back at it.

#include "zero/core/api_call.h"
#include "zero/store/master_weights.h"
#include "zero/store/nvme_tier.h"

#include "base/arena.h"
#include "base/text.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

/* ------------------------------------------------------------------ writing */

/** No job comes to this generation: a record that has is damage. */
static const uint64_t most_generations = UINT64_MAX >> 2;

/** A record's number: its generation, and whether it is a job's beginning. */
static uint64_t number_of(uint64_t generation, bool beginning)
{
    assert(generation <= UINT64_MAX >> 1);
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
    assert(!z->update.begun); // every tile that changed is written
    // A step that is skipped changes no tile, and its record takes the place of the point's.
    if (eng_tier_leave_point(z, &error))
        return eng_fail_from(z, &error);
    const size_t bytes = z->saving.record->write(z, tier->payload);
    assert(bytes <= tier->payload_room);
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
    assert(tier->recorded >= 0 && tier->recorded <= 2);
    for (int age = 0; age < tier->recorded; age++)
        found.number[age] = off_tilefile_step(tier->tilefile, age);
    return found;
}

/** Its age among the records of the file. */
static int age_of(const struct eng_tier *tier, uint64_t number)
{
    const int age = off_tilefile_step(tier->tilefile, 0) == number ? 0 : 1;
    assert(age < tier->recorded && off_tilefile_step(tier->tilefile, age) == number);
    return age;
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
static zero_result go_back(zero_ctx *z, struct base_error *error)
{
    struct eng_tier *tier = z->tier;
    struct eng_recovery *recovery = &tier->recovery;
    assert(recovery->age >= 0 && recovery->age < tier->recorded);
    const zero_result r = off_tilefile_recover(tier->tilefile, recovery->age, recovery->payload,
                                               &recovery->payload_bytes, error);
    if (r)
        return r;
    assert(recovery->payload_bytes <= tier->payload_room);
    tier->generation = recovery->generation;
    recovery->step = z->saving.record->step(recovery->payload);
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
static zero_result keep_newest(zero_ctx *z, const struct finding *mine,
                               struct piece_of_point *piece, struct base_error *error)
{
    struct eng_tier *tier = z->tier;
    uint64_t age = 0;
    while (age < mine->count && !eng_record_counts(mine->number[age]))
        age++;
    piece->has = age < mine->count;
    tier->recovery.age = piece->has ? (int)age : 0;
    const zero_result r = mine->count > 0 ? go_back(z, error) : ZERO_OK;
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
    keep_newest(z, &all[z->config.rank], &piece, &error);
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
            &z->config.log, ZERO_LOG_WARN, "io",
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
        base_logf(&z->config.log, ZERO_LOG_WARN, "io",
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
    go_back(z, error);
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
    if (!r && newest_generation(all, (size_t)world) >= most_generations)
        r = eng_fail_agreed(
            z, ZERO_E_CORRUPT,
            "%s: a rank's file has a record of a number that no job reaches: remove "
            "the files of all ranks, and go on from a checkpoint",
            tier->path);
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
        go_back(z, &error);
    } else {
        begin_behind(z, all, &error);
    }
    r = eng_agree_on_file(z, &error, "zero_commit");
out:
    base_free(all);
    return r;
}

/* ------------------------------------------------------------------ coming back */

/** What is in memory anyway becomes what the tile has of it. */
static zero_result restore(zero_ctx *z, void *user, const struct eng_part *part,
                           struct base_error *error)
{
    const size_t s = part->slice->bucket;
    const size_t at = part->slice->granule * BASE_GRANULE + part->first;
    (void)user;
    (void)error;
    eng_tier_take_back(z, s, at, part->count);
    eng_values_refresh(z, s, at, part->count);
    return ZERO_OK;
}

zero_result eng_tier_take_point(zero_ctx *z, struct base_error *error)
{
    struct eng_recovery *recovery = &z->tier->recovery;
    // Whatever comes of it on this rank: the next record is of one number on all of them.
    recovery->found = false;
    z->tier->generation = recovery->generation;
    const zero_result r = go_back(z, error);
    eng_tier_abandon(z); // nothing in memory is of that record
    return r ? r : eng_tier_reread(z, restore, NULL, error);
}

size_t eng_tier_record_room(const zero_ctx *z)
{
    return z->tier ? z->tier->payload_room : SIZE_MAX;
}
