#include "checkpoint/tensor_digest.h"
#include "zero/core/api_call.h"
#include "zero/core/exec_table.h"
#include "zero/snapshot/snapshot.h"
#include "zero/step/micro_batch.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void eng_digest_add(const zero_ctx *z, const struct eng_slice *slice, int field, uint64_t first,
                    size_t count, const void *elements, struct base_hash128 *sum)
{
    assert(first % BASE_GRANULE == 0 && first + count <= slice->numel);
    const struct ckpt_digest_place place = eng_digest_place(z, slice, field);
    ckpt_digest_add(sum, &place, first, count, elements);
}

/** Adds the hashes of the granules this rank owns of a part to their tensor's sum. */
static zero_result hash_part(zero_ctx *z, void *user, const struct eng_part *part,
                             struct base_error *error)
{
    struct base_hash128 *sums = user;
    const struct eng_slice *slice = part->slice;
    struct ckpt_run run;
    (void)error;
    if (!eng_own_run(&z->layout, slice, z->config.rank, &run))
        return ZERO_OK;
    const size_t own_end = (size_t)(run.first + run.count), part_end = part->first + part->count;
    const size_t first = part->first > run.first ? part->first : (size_t)run.first;
    const size_t end = part_end < own_end ? part_end : own_end;
    for (int f = 0; first < end && f < eng_state_fields(z, slice->param); f++)
        eng_digest_add(z, slice, f, first, end - first, eng_state_memory(z, slice, f, first),
                       &sums[slice->param]);
    return ZERO_OK;
}

/** What this rank owns, where it is. */
static zero_result hash_own(zero_ctx *z, struct base_hash128 *sums)
{
    struct base_error error = {0};
    if (!z->exec->digest(z, sums, &error) &&
        !z->store->walk(z, false, ENG_LOOK, hash_part, sums, &error))
        z->store->walk(z, true, ENG_LOOK, hash_part, sums, &error);
    return z->store->walks_fail ? eng_agree_on_file(z, &error, "the fingerprint") : ZERO_OK;
}

void eng_digest_lay(const zero_ctx *z, struct eng_digest *digest, struct base_tables *tables)
{
    const size_t params = z->model.param_count, world = (size_t)z->config.world;
    *digest = (struct eng_digest){
        .sums = base_tables_add(tables, params, sizeof *digest->sums),
        .all = base_tables_add(tables, params * world, sizeof *digest->all),
        .named = base_tables_add(tables, params, sizeof *digest->named),
    };
}

/** Adds the sums of all ranks up. */
static zero_result add_ranks(zero_ctx *z, struct eng_digest *digest)
{
    const size_t params = z->model.param_count, world = (size_t)z->config.world;
    const zero_result r =
        coll_exchange(z->comm, digest->sums, params * sizeof *digest->sums, digest->all);
    if (r)
        return eng_comm_failed(z, r);
    memset(digest->sums, 0, params * sizeof *digest->sums);
    for (size_t i = 0; i < params * world; i++)
        digest->sums[i % params] = base_hash128_add(digest->sums[i % params], digest->all[i]);
    return ZERO_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct eng_named_sum *)a)->param->name,
                  ((const struct eng_named_sum *)b)->param->name);
}

/** Begins the chain that ends in the fingerprint with what decides the future beside tensors. */
static struct base_hash128 hash_moment(const zero_ctx *z, const struct eng_moment *moment)
{
    const struct ckpt_state state = eng_describe_state(z, moment);
    struct base_hash128 root = ckpt_digest_state(&state);
    for (size_t g = 0; g < z->model.group_count; g++) {
        const struct eng_group *group = &z->model.groups[g];
        double hyper[ENG_HYPERS];
        memcpy(hyper, &moment->hyper[g], sizeof hyper);
        root = ckpt_digest_group(root, &(struct ckpt_digest_group){
                                           .optimizer = group->optimizer->name,
                                           .decay = eng_decay_name(group),
                                           .nesterov = group->choice.nesterov,
                                           .hyper = hyper,
                                           .hypers = ENG_HYPERS,
                                       });
    }
    for (size_t g = 0; g < z->model.group_count; g++)
        if (moment->frozen[g])
            root = ckpt_digest_frozen(root, g);
    return ckpt_digest_blobs(root, moment->blobs);
}

zero_result eng_digest_conclude(zero_ctx *z, const struct eng_moment *moment,
                                struct eng_digest *digest, uint8_t bytes[16])
{
    const size_t params = z->model.param_count;
    const zero_result r = add_ranks(z, digest);
    if (r)
        return r;
    struct eng_named_sum *named = digest->named;
    for (size_t p = 0; p < params; p++)
        named[p] = (struct eng_named_sum){.param = &z->model.params[p], .sum = digest->sums[p]};
    qsort(named, params, sizeof *named, by_name);
    struct base_hash128 root = hash_moment(z, moment);
    for (size_t p = 0; p < params; p++)
        root = ckpt_digest_tensor(root, named[p].param->name_hash, named[p].sum);
    base_hash128_bytes(root, bytes);
    return ZERO_OK;
}

zero_result eng_digest_now(zero_ctx *z, struct eng_digest *digest, struct base_tables *tables,
                           uint8_t bytes[16])
{
    struct eng_moment moment;
    eng_moment_lay(z, &moment, tables);
    if (tables->failed)
        return eng_fail(z, ZERO_E_NOMEM, "no memory for the fingerprints of %zu tensors",
                        z->model.param_count);
    eng_moment_take(z, eng_blob_hash(z), &moment);
    const zero_result r = hash_own(z, digest->sums);
    return r ? r : eng_digest_conclude(z, &moment, digest, bytes);
}

static zero_result fingerprint(zero_ctx *z, uint8_t bytes[16])
{
    if (!bytes)
        return eng_fail(z, ZERO_E_INVALID, "zero_fingerprint needs a place for the digest");
    zero_result r = eng_outside(z, "zero_fingerprint");
    if (r)
        return r;
    struct base_tables tables = {0};
    struct eng_digest digest;
    eng_digest_lay(z, &digest, &tables);
    r = eng_digest_now(z, &digest, &tables, bytes);
    base_tables_free(&tables);
    return r;
}

zero_result zero_fingerprint(zero_ctx *z, uint8_t digest[16])
{
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_fingerprint");
    if (!r)
        r = fingerprint(z, digest);
    return eng_leave(z, r);
}
