#include "zero/engine.h"

#include "base/arena.h"

#include <stdlib.h>
#include <string.h>

/** Which array a granule's hash is of. */
enum { OF_WEIGHT = 0, OF_MOMENT = 1, OF_FROZEN = 1 << 20 };

static uint64_t granule_seed(const struct eng_param *param, const struct eng_slice *slice,
                             uint64_t granule, uint64_t array)
{
    const uint64_t place[] = {(uint64_t)slice->index, granule, array};
    return base_hash64(place, sizeof place, param->name_hash);
}

/** Hash of one granule's weights and moments. */
static struct base_hash128 hash_granule(const zero_ctx *z, const struct eng_slice *slice,
                                        size_t granule)
{
    const struct eng_param *param = &z->model.params[slice->param];
    const size_t left = slice->numel - granule * ENG_GRANULE;
    const size_t count = left < ENG_GRANULE ? left : ENG_GRANULE;
    const struct eng_section *section = &z->layout.sections[slice->section];
    if (section->frozen)
        return base_hash128(eng_home(z, slice->section, slice->granule + granule),
                            count * eng_dtype_size(section->dtype),
                            granule_seed(param, slice, granule, OF_FROZEN));
    const size_t at = (slice->granule + granule) * ENG_GRANULE;
    size_t size;
    const void *weights = eng_best_weights(z, slice->section, at, &size);
    struct base_hash128 sum =
        base_hash128(weights, count * size, granule_seed(param, slice, granule, OF_WEIGHT));
    const int moments = z->model.groups[param->group].optimizer->moments;
    size = eng_dtype_size(z->config.moment_dtype);
    for (int k = 0; k < moments; k++) {
        const uint64_t seed = granule_seed(param, slice, granule, OF_MOMENT + (uint64_t)k);
        const void *moment = eng_moments(z, k, slice->section, at);
        sum = base_hash128_add(sum, base_hash128(moment, count * size, seed));
    }
    return sum;
}

/** Adds the hashes of the granules this rank owns to their tensors' sums. */
static void hash_own(const zero_ctx *z, struct base_hash128 *sums)
{
    for (size_t i = 0; i < z->layout.slice_count; i++) {
        const struct eng_slice *slice = &z->layout.slices[i];
        const struct eng_section_place *place = &z->placement.sections[slice->section];
        for (size_t g = 0; g < slice->granules; g++) {
            const size_t at = slice->granule + g;
            if (at >= place->own_first && at < place->own_first + place->own_granules)
                sums[slice->param] =
                    base_hash128_add(sums[slice->param], hash_granule(z, slice, g));
        }
    }
}

/** Adds the sums of all ranks up, in place. */
static zero_result add_ranks(zero_ctx *z, struct base_hash128 *sums)
{
    const size_t params = z->model.param_count;
    const size_t world = (size_t)z->config.world;
    struct base_hash128 *all = base_calloc(params * world, sizeof *all);
    if (!all)
        return eng_fail(z, ZERO_E_NOMEM, "no memory for the fingerprints of %zu tensors", params);
    zero_result r = coll_exchange(z->comm, sums, params * sizeof *sums, all);
    memset(sums, 0, params * sizeof *sums);
    for (size_t i = 0; !r && i < params * world; i++)
        sums[i % params] = base_hash128_add(sums[i % params], all[i]);
    base_free(all);
    return r ? eng_comm_failed(z, r) : ZERO_OK;
}

struct named_sum {
    const struct eng_param *param;
    struct base_hash128 sum;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct named_sum *)a)->param->name,
                  ((const struct named_sum *)b)->param->name);
}

/** One link of the chain that ends in the digest. */
struct chain_link {
    uint8_t before[16];
    uint8_t sum[16];
    uint64_t name;
};

/** Hashes a group's last hyper-parameters, and what it does with them where that is not AdamW as
 * the paper has it. */
static struct base_hash128 hash_group(const zero_ctx *z, size_t g, struct base_hash128 root)
{
    const struct eng_group *group = &z->model.groups[g];
    root = base_hash128(&z->hyper[g], sizeof z->hyper[g], root.low ^ root.high);
    if (group->optimizer == &eng_optimizer_adamw && group->choice.decay == ZERO_DECAY_DECOUPLED)
        return root;
    const uint64_t choice[] = {(uint64_t)group->choice.decay, group->choice.nesterov};
    root = base_hash128(choice, sizeof choice, root.low ^ root.high);
    return base_hash128(group->optimizer->name, strlen(group->optimizer->name),
                        root.low ^ root.high);
}

/** Hashes what decides the future beside the tensors, then the tensors in name order. */
static void hash_root(const zero_ctx *z, struct named_sum *named, uint8_t digest[16])
{
    const uint64_t counters[] = {z->step, z->updates, (uint64_t)z->config.micro_batches,
                                 z->config.seed, (uint64_t)z->config.sum_group};
    // A sum_group of 1 is the plain order, and is not hashed.
    const size_t count = z->config.sum_group > 1 ? 5 : 4;
    struct base_hash128 root = base_hash128(counters, count * sizeof *counters, 0);
    if (z->config.loss_scale != ENG_LOSS_SCALE_OFF) {
        uint64_t state[] = {0, z->scale.clean};
        memcpy(state, &z->scale.value, sizeof z->scale.value);
        root = base_hash128(state, sizeof state, root.low ^ root.high);
    }
    for (size_t g = 0; g < z->model.group_count; g++)
        root = hash_group(z, g, root);
    for (uint64_t g = 0; g < z->model.group_count; g++)
        if (z->model.groups[g].frozen)
            root = base_hash128(&g, sizeof g, root.low ^ root.high);
    qsort(named, z->model.param_count, sizeof *named, by_name);
    for (size_t p = 0; p < z->model.param_count; p++) {
        struct chain_link link = {.name = named[p].param->name_hash};
        base_hash128_bytes(root, link.before);
        base_hash128_bytes(named[p].sum, link.sum);
        root = base_hash128(&link, sizeof link, 0);
    }
    base_hash128_bytes(root, digest);
}

static zero_result fingerprint(zero_ctx *z, uint8_t digest[16])
{
    const size_t params = z->model.param_count;
    if (!digest)
        return eng_fail(z, ZERO_E_INVALID, "zero_fingerprint needs a place for the digest");
    zero_result r = eng_outside(z, "zero_fingerprint");
    if (r)
        return r;
    struct base_hash128 *sums = base_calloc(params, sizeof *sums);
    struct named_sum *named = base_calloc(params, sizeof *named);
    if (!sums || !named) {
        r = eng_fail(z, ZERO_E_NOMEM, "no memory for the fingerprints of %zu tensors", params);
        goto out;
    }
    hash_own(z, sums);
    r = add_ranks(z, sums);
    if (r)
        goto out;
    for (size_t p = 0; p < params; p++)
        named[p] = (struct named_sum){.param = &z->model.params[p], .sum = sums[p]};
    hash_root(z, named, digest);
out:
    base_free(sums);
    base_free(named);
    return r;
}

zero_result zero_fingerprint(zero_ctx *z, uint8_t digest[16])
{
    if (!z)
        return ZERO_E_INVALID;
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_fingerprint");
    if (!r)
        r = fingerprint(z, digest);
    return eng_leave(z, r);
}
