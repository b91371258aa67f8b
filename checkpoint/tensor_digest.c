#include "checkpoint/tensor_digest.h"

#include <assert.h>
#include <string.h>

// What stands for the weights of a tensor that never trains, in the place of their field.
enum { OF_FROZEN = 1 << 20 };

uint64_t ckpt_digest_name(const char *name)
{
    return base_hash64(name, strlen(name), 0);
}

uint64_t ckpt_digest_array(const struct ckpt_digest_place *place)
{
    return place->trains ? (uint64_t)place->field : OF_FROZEN;
}

static uint64_t granule_seed(const struct ckpt_digest_place *place, uint64_t granule)
{
    const uint64_t parts[] = {place->slice, granule, ckpt_digest_array(place)};
    return base_hash64(parts, sizeof parts, place->name);
}

void ckpt_digest_add(struct base_hash128 *sum, const struct ckpt_digest_place *place,
                     uint64_t first, size_t count, const void *elements)
{
    assert(first % CKPT_GRANULE == 0 && place->element_bytes > 0);
    const unsigned char *bytes = elements;
    for (size_t at = 0, n; at < count; at += n, bytes += n * place->element_bytes) {
        n = count - at < CKPT_GRANULE ? count - at : CKPT_GRANULE;
        const uint64_t granule = (first + at) / CKPT_GRANULE;
        *sum = base_hash128_add(
            *sum, base_hash128(bytes, n * place->element_bytes, granule_seed(place, granule)));
    }
}

struct base_hash128 ckpt_digest_blob(const char *name, const void *bytes, size_t size)
{
    return base_hash128(bytes, size, base_hash64(name, strlen(name), 0));
}

/* ------------------------------------------------------------------ the fingerprint */

static struct base_hash128 chain(struct base_hash128 root, const void *data, size_t size)
{
    return base_hash128(data, size, root.low ^ root.high);
}

struct base_hash128 ckpt_digest_state(const struct ckpt_state *state)
{
    const uint64_t counters[] = {state->step, state->updates, state->micro_batches, state->seed,
                                 state->sum_group};
    // A sum_group of 1 is the plain order, and is not hashed.
    const size_t count = state->sum_group > 1 ? 5 : 4;
    struct base_hash128 root = base_hash128(counters, count * sizeof *counters, 0);
    if (!state->has_loss_scale)
        return root;
    uint64_t scale[] = {0, state->loss_scale_clean};
    memcpy(scale, &state->loss_scale, sizeof state->loss_scale);
    return chain(root, scale, sizeof scale);
}

static uint64_t decay_number(const char *decay)
{
    return strcmp(decay, "decoupled") == 0 ? 1 : strcmp(decay, "l2") == 0 ? 2 : 0;
}

// AdamW as the paper has it is its hyper-parameters alone.
struct base_hash128 ckpt_digest_group(struct base_hash128 root,
                                      const struct ckpt_digest_group *group)
{
    const uint64_t choice[] = {decay_number(group->decay), group->nesterov};
    root = chain(root, group->hyper, (size_t)group->hypers * sizeof *group->hyper);
    if (strcmp(group->optimizer, "adamw") == 0 && choice[0] == 1)
        return root;
    root = chain(root, choice, sizeof choice);
    return chain(root, group->optimizer, strlen(group->optimizer));
}

struct base_hash128 ckpt_digest_frozen(struct base_hash128 root, uint64_t group)
{
    return chain(root, &group, sizeof group);
}

// Where nothing was attached there is no link.
struct base_hash128 ckpt_digest_blobs(struct base_hash128 root, struct base_hash128 blobs)
{
    return blobs.low | blobs.high ? chain(root, &blobs, sizeof blobs) : root;
}

struct base_hash128 ckpt_digest_tensor(struct base_hash128 root, uint64_t name,
                                       struct base_hash128 sum)
{
    struct {
        uint8_t before[16];
        uint8_t sum[16];
        uint64_t name;
    } link = {.name = name};
    base_hash128_bytes(root, link.before);
    base_hash128_bytes(sum, link.sum);
    return base_hash128(&link, sizeof link, 0);
}

static struct base_hash128 chain_groups(struct base_hash128 root,
                                        const struct ckpt_manifest *manifest)
{
    for (size_t g = 0; g < manifest->group_count; g++) {
        const struct ckpt_group *group = &manifest->groups[g];
        double hyper[CKPT_MAX_HYPER];
        for (int h = 0; h < group->hypers; h++)
            hyper[h] = group->hyper[h].value;
        root = ckpt_digest_group(root, &(struct ckpt_digest_group){
                                           .optimizer = group->optimizer,
                                           .decay = group->decay,
                                           .nesterov = group->nesterov,
                                           .hyper = hyper,
                                           .hypers = group->hypers,
                                       });
    }
    for (size_t g = 0; g < manifest->group_count; g++)
        if (manifest->groups[g].frozen)
            root = ckpt_digest_frozen(root, g);
    return root;
}

void ckpt_digest_manifest(const struct ckpt_manifest *manifest, struct base_hash128 blobs,
                          uint8_t fingerprint[16])
{
    struct base_hash128 root = chain_groups(ckpt_digest_state(&manifest->state), manifest);
    root = ckpt_digest_blobs(root, blobs);
    for (size_t i = 0; i < manifest->tensor_count; i++) {
        const struct ckpt_named *named = &manifest->index.by_name[i];
        root = ckpt_digest_tensor(root, ckpt_digest_name(named->name),
                                  manifest->tensors[named->number].sum);
    }
    base_hash128_bytes(root, fingerprint);
}
