// The caller's own memory: working copies go to it when they have changed, gradients come from it.

#include "zero/exec/caller_memory.h"
#include "zero/core/context.h"
#include "zero/exec/local_accumulation.h"

#include <assert.h>
#include <string.h>

/** Where a slice begins in an array of the whole tensor. */
static void *slice_of(const struct eng_param *param, const struct eng_slice *slice, void *array,
                      zero_dtype dtype)
{
    const size_t first = (size_t)slice->index * param->slice_numel;
    return (unsigned char *)array + first * eng_dtype_size(dtype);
}

void *eng_borrowed(const zero_ctx *z, const struct eng_slice *slice)
{
    const struct eng_param *param = &z->model.params[slice->param];
    return param->borrow ? slice_of(param, slice, param->borrow, param->dtype) : NULL;
}

void *eng_own_gradient(const zero_ctx *z, const struct eng_slice *slice)
{
    const struct eng_param *param = &z->model.params[slice->param];
    return param->grad ? slice_of(param, slice, param->grad, param->grad_dtype) : NULL;
}

/** Elements that move between the caller's memory and the engine's. */
struct move {
    const zero_ctx *z;
    zero_dtype dtype;
    size_t count;
    void *to;
    const void *from;
    void *clear; /**< zeroed afterwards: what was read, or NULL */
    bool add;    /**< instead of copying */
};

/** Large ones are dealt out over the pool's threads. */
enum { TASK_ELEMENTS = 64 * BASE_GRANULE };

static void move_part(void *user, size_t index, int thread)
{
    (void)thread;
    const struct move *move = user;
    assert(index * TASK_ELEMENTS < move->count);
    const size_t first = index * TASK_ELEMENTS, left = move->count - first;
    const size_t count = left < TASK_ELEMENTS ? left : TASK_ELEMENTS;
    const size_t size = eng_dtype_size(move->dtype);
    void *to = (unsigned char *)move->to + first * size;
    const void *from = (const unsigned char *)move->from + first * size;
    struct base_fp_state saved;
    base_fp_enter(&saved);
    if (move->add)
        eng_local_sum(move->z->cpu.kernels, move->dtype, to, from, count);
    else
        memcpy(to, from, count * size);
    if (move->clear)
        memset((unsigned char *)move->clear + first * size, 0, count * size);
    base_fp_leave(&saved);
}

static void move_all(struct move *move)
{
    assert(move->to && move->from && eng_dtype_size(move->dtype) > 0);
    const size_t tasks = (move->count + TASK_ELEMENTS - 1) / TASK_ELEMENTS;
    base_pool_run(tasks > 1 ? move->z->cpu.pool : NULL, tasks, move_part, move);
}

void eng_borrow_bucket(zero_ctx *z, size_t bucket)
{
    struct eng_bucket_io *io = &z->io[bucket];
    if (io->lent == io->version)
        return;
    io->lent = io->version;
    const struct eng_bucket *b = &z->layout.buckets[bucket];
    const struct eng_unit_layout *u = &z->layout.units[b->unit];
    const size_t size = eng_dtype_size(b->dtype);
    for (size_t i = u->first_slice; i < u->first_slice + u->slice_count; i++) {
        const struct eng_slice *slice = &z->layout.slices[i];
        const size_t at = z->placement.buckets[bucket].home + slice->granule * BASE_GRANULE * size;
        struct move move = {
            .z = z, .dtype = b->dtype, .count = slice->numel, .from = z->memory.params_view + at};
        move.to = slice->bucket == bucket ? eng_borrowed(z, slice) : NULL;
        if (move.to)
            move_all(&move);
    }
}

void eng_borrow_unit(zero_ctx *z, zero_unit unit)
{
    const struct eng_unit_layout *u = &z->layout.units[unit];
    for (size_t s = u->first_bucket; s < u->first_bucket + u->bucket_count; s++)
        eng_borrow_bucket(z, s);
}

void eng_take_gradients(zero_ctx *z, zero_unit unit)
{
    const struct eng_unit *u = &z->units[unit];
    assert(u->grad_slot >= 0);
    const struct eng_unit_layout *layout = &z->layout.units[unit];
    unsigned char *slot = z->memory.grads + z->gradients.slots[u->grad_slot].offset;
    const bool add = z->config.local && z->micro.index > 0 && u->grad_slot == u->sum_slot;
    for (size_t i = layout->first_slice; i < layout->first_slice + layout->slice_count; i++) {
        const struct eng_slice *slice = &z->layout.slices[i];
        void *from = eng_own_gradient(z, slice);
        if (!from)
            continue;
        const zero_dtype dtype = z->layout.buckets[slice->bucket].grad_dtype;
        struct move move = {
            .z = z, .dtype = dtype, .count = slice->numel, .from = from, .clear = from, .add = add};
        move.to = slot + z->placement.buckets[slice->bucket].grad_offset +
                  slice->granule * BASE_GRANULE * eng_dtype_size(dtype);
        move_all(&move);
    }
}
