// Where a run is: micro-batches, steps, and what trains.

#include "zero/core/progress.h"
#include "zero/core/api_call.h"

#include <assert.h>

int eng_micro_total(const zero_ctx *z)
{
    return z->micro.evaluation.active ? z->micro.evaluation.total : z->config.micro_batches;
}

int eng_micro_count(const zero_ctx *z)
{
    return z->micro.evaluation.active ? z->micro.evaluation.count : z->micro.count + z->micro.again;
}

size_t eng_metric_bytes(const zero_ctx *z, int metrics)
{
    return (size_t)metrics * (size_t)eng_micro_count(z) * sizeof(double);
}

size_t eng_evaluation_part_bytes(int room)
{
    return sizeof(uint64_t) + ENG_MAX_METRICS * (size_t)room * sizeof(double);
}

size_t eng_evaluation_bytes(const zero_ctx *z)
{
    const int room = z->micro.evaluation.room;
    return room > 0 ? ((size_t)z->config.world + 1) * eng_evaluation_part_bytes(room) : 0;
}

double *eng_evaluation_metrics(const zero_ctx *z)
{
    assert(z->micro.evaluation.active && z->micro.evaluation.mine);
    return (double *)(void *)(z->micro.evaluation.mine + sizeof(uint64_t));
}

int eng_contributors(const zero_ctx *z, int round)
{
    const int64_t left = z->config.micro_batches - (int64_t)round * z->config.world;
    assert(round >= 0 && left > 0);
    return left < z->config.world ? (int)left : z->config.world;
}

bool eng_micro_repeats(const zero_ctx *z)
{
    return !z->micro.evaluation.active && z->micro.index >= z->micro.count;
}

bool eng_micro_compared(const zero_ctx *z)
{
    return z->micro.again > 0 && (z->micro.index == 0 || eng_micro_repeats(z));
}

bool eng_frozen(const zero_ctx *z, zero_param param)
{
    const struct eng_param *p = &z->model.params[param];
    return p->frozen || z->model.groups[p->group].frozen;
}

void eng_trains_refresh(zero_ctx *z)
{
    for (size_t s = 0; s < z->layout.bucket_count; s++)
        z->io[s].trains = false;
    for (size_t u = 0; u < z->layout.unit_count; u++)
        z->units[u].trains = false;
    for (size_t i = 0; i < z->layout.slice_count; i++) {
        const struct eng_slice *slice = &z->layout.slices[i];
        if (eng_frozen(z, slice->param))
            continue;
        z->io[slice->bucket].trains = true;
        z->units[z->layout.buckets[slice->bucket].unit].trains = true;
    }
}

static bool bad_before(const struct eng_bad *a, const struct eng_bad *b)
{
    if (a->micro != b->micro)
        return a->micro < b->micro;
    if (a->param != b->param)
        return a->param < b->param;
    return a->slice != b->slice ? a->slice < b->slice : a->element < b->element;
}

void eng_bad_min(struct eng_bad *to, const struct eng_bad *from)
{
    if (bad_before(from, to))
        *to = *from;
}

void eng_add_square_sum(zero_ctx *z, double squares)
{
    assert(!(squares < 0));
    if (squares <= 1e300) // sums of fp32 squares stay far below; NaN and infinity do not
        base_exact_sum_add(&z->gradients.squares, squares);
    else
        z->gradients.squares_overflow = true;
}

void eng_grad_nonfinite(void *user, int contributor, size_t element)
{
    struct eng_bucket_io *io = user;
    zero_ctx *z = io->z;
    const size_t own = z->placement.buckets[io->bucket].own_first * BASE_GRANULE;
    const struct eng_slice *slice = eng_layout_slice_at(&z->layout, io->bucket, own + element);
    const struct eng_bad bad = {
        .micro = (uint64_t)io->round * (uint64_t)z->config.world + (uint64_t)contributor,
        .param = (uint64_t)slice->param,
        .slice = (uint64_t)slice->index,
        .element = own + element - slice->granule * BASE_GRANULE,
    };
    assert(contributor >= 0 && contributor < z->config.world);
    eng_bad_min(&z->gradients.bad, &bad);
}

zero_result eng_not_inside(zero_ctx *z, const char *call)
{
    if (z->micro.evaluation.active)
        return eng_fail(z, ZERO_E_STATE, "%s inside an evaluation", call);
    if (z->micro.index >= 0)
        return eng_fail(z, ZERO_E_STATE, "%s inside a step", call);
    return ZERO_OK;
}

bool eng_publish_ended(const zero_ctx *z, size_t bucket)
{
    const struct eng_bucket_io *io = &z->io[bucket];
    return !io->publish_pending || coll_complete(&io->gather[io->turn]);
}
