// verify_micro=1: each step has one more local micro-batch, in which a rank computes again the
// first one of its successor. Its gradients are hashed instead of summed, tensor by tensor, and so
// are those of the first round; at the end of the step all ranks compare all pairs. Where a device
// adds gradients up it hashes them, too.

#include "zero/debug/verify_micro.h"
#include "zero/core/api_call.h"
#include "zero/core/context.h"
#include "zero/core/exec_table.h"
#include "zero/core/progress.h"

#include "base/arena.h"

#include <assert.h>
#include <string.h>

/** Hashes of a rank: of its own micro-batch of the first round, and of what it computed again. */
enum { FIRST, AGAIN, HASHES };

/** Words of a hash: a device's is a sum modulo 2^128. */
static size_t words(const zero_ctx *z)
{
    return eng_config_hash_words(&z->config);
}

static size_t hash_bytes(const zero_ctx *z)
{
    return HASHES * z->layout.slice_count * words(z) * sizeof(uint64_t);
}

static size_t tables(const zero_ctx *z)
{
    return ((size_t)z->config.world + 1) * hash_bytes(z);
}

static zero_result make_hashes(zero_ctx *z, struct base_error *error)
{
    z->debug.hashes_mine = base_calloc(1, tables(z));
    if (!z->debug.hashes_mine)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for the hashes of %zu gradients",
                         z->layout.slice_count);
    z->debug.hashes_all = z->debug.hashes_mine + hash_bytes(z) / sizeof(uint64_t);
    return ZERO_OK;
}

static void free_hashes(zero_ctx *z)
{
    base_free(z->debug.hashes_mine);
}

/** Keeps the hashes of a unit's gradient, if those of the micro-batch under way are compared. */
static zero_result hash_gradient(zero_ctx *z, zero_unit unit)
{
    if (!eng_micro_compared(z))
        return ZERO_OK;
    return z->exec->grad_hash(z, unit,
                              z->debug.hashes_mine +
                                  (z->micro.index > 0 ? AGAIN : FIRST) * z->layout.slice_count);
}

static zero_result refuse_fused(zero_ctx *z)
{
    return eng_fail(
        z, ZERO_E_STATE,
        "zero_step_in_backward with verify_micro: a micro-batch is computed again after "
        "the last one, with the same parameters");
}

/** Compares the micro-batch with this index; ZERO_OK, or the first tensor that differs. */
static zero_result compare(zero_ctx *z, int index)
{
    const int world = z->config.world, again = (index + world - 1) % world;
    assert(index < world);
    const size_t slices = z->layout.slice_count, width = words(z);
    const uint64_t *first = z->debug.hashes_all + ((size_t)index * HASHES + FIRST) * slices * width;
    const uint64_t *second =
        z->debug.hashes_all + ((size_t)again * HASHES + AGAIN) * slices * width;
    for (size_t i = 0; i < slices; i++, first += width, second += width) {
        const struct eng_slice *slice = &z->layout.slices[i];
        // What is frozen may hold anything.
        if (!eng_frozen(z, slice->param) && memcmp(first, second, width * sizeof *first) != 0)
            return eng_fail_agreed(z, ZERO_E_DIVERGED,
                                   "step %llu: the program's gradient of micro-batch %d is not a "
                                   "function of parameters, step and micro-batch: %s, slice %d, "
                                   "differs between rank %d, which computed it, and rank %d, which "
                                   "computed it again",
                                   (unsigned long long)z->step + 1, index,
                                   z->model.params[slice->param].name, slice->index, index, again);
    }
    return ZERO_OK;
}

/** ZERO_E_DIVERGED, fatal and agreed, if a gradient was another one the second time. */
static zero_result compare_all(zero_ctx *z)
{
    zero_result r = z->exec->hashes(z, z->debug.hashes_mine);
    if (!r)
        r = eng_exchange(z, z->debug.hashes_mine, hash_bytes(z), z->debug.hashes_all);
    if (r)
        return r;
    const int counting =
        z->config.micro_batches < z->config.world ? z->config.micro_batches : z->config.world;
    for (int index = 0; !r && index < counting; index++)
        r = compare(z, index);
    return r;
}

const struct eng_observer eng_verify_observer = {
    .key = "verify_micro",
    .again = 1,
    .tables = tables,
    .make = make_hashes,
    .free = free_hashes,
    .unit[ENG_UNIT_GRAD_ARRIVED] = hash_gradient,
    .step[ENG_STEP_FUSED] = refuse_fused,
    .step[ENG_STEP_HANDED_OVER] = compare_all,
};
