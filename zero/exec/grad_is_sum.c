#include "zero/exec/grad_is_sum.h"
#include "zero/core/progress.h"

#include "base/kernels/sum.h"

#include <assert.h>
#include <math.h>

enum {
    TASK_GRANULES = 64,
    TASKS = 64, // of one call of a pool: together 16 MiB of fp32
    AT_ONCE = TASKS * TASK_GRANULES * BASE_GRANULE,
    // Threads are woken for more tasks than these. What is smaller a cache still has, and the
    // caller is done with it about when another thread would be awake.
    ALONE = 32,
};

bool eng_grad_is_sum(const zero_ctx *z, size_t bucket)
{
    const struct eng_config *config = &z->config;
    const bool once = z->micro.count == 1 || config->local;
    const bool read_by_update =
        z->io[bucket].sums || z->placement.buckets[bucket].comm_dtype == ZERO_F32;
    return config->world == 1 && config->stage < 2 && once && !config->verify_micro &&
           !config->grads_nvme && read_by_update;
}

/** Some elements of a gradient, and where the squares of their granules go. */
struct measure {
    const struct base_kernels *kernels;
    struct base_contributions from;
    size_t count, tasks;
    double *squares;
};

/** The first task has the last elements: they were written last, and so are in the caller's own
 * cache, where the caller has them. */
static void measure_task(void *user, size_t number, int thread)
{
    (void)thread;
    const struct measure *all = user;
    const size_t index = all->tasks - 1 - number, most = (size_t)TASK_GRANULES * BASE_GRANULE;
    const size_t first = index * most, left = all->count - first;
    struct base_contributions from = all->from;
    struct base_fp_state saved;
    from.first += first;
    base_fp_enter(&saved);
    all->kernels->sum_squares(left < most ? left : most, &from,
                              all->squares + index * TASK_GRANULES);
    base_fp_leave(&saved);
}

/** Squares of the elements first .. first+count-1, at most AT_ONCE. */
static void measure(zero_ctx *z, const struct base_contributions *from, size_t count,
                    double *squares)
{
    const size_t most = (size_t)TASK_GRANULES * BASE_GRANULE, tasks = (count + most - 1) / most;
    assert(tasks <= TASKS && count % BASE_GRANULE == 0);
    struct measure all = {z->cpu.kernels, *from, count, tasks, squares};
    base_pool_run(tasks > ALONE ? z->cpu.pool : NULL, tasks, measure_task, &all);
}

void eng_grad_measure(struct eng_bucket_io *io, const void *gradient)
{
    zero_ctx *z = io->z;
    const struct coll_span *own = &z->layout.buckets[io->bucket].elements[z->config.rank];
    struct base_contributions from = {
        .dtype = z->placement.buckets[io->bucket].comm_dtype, .sources = &gradient, .count = 1};
    double squares[TASKS * TASK_GRANULES];
    bool found = false;
    for (size_t count; from.first < own->count; from.first += count) {
        count = own->count - from.first < AT_ONCE ? own->count - from.first : AT_ONCE;
        measure(z, &from, count, squares);
        for (size_t i = 0; i < count / BASE_GRANULE; i++) {
            eng_add_square_sum(z, squares[i]);
            if (found || isfinite(squares[i]))
                continue;
            found = true;
            eng_grad_nonfinite(io, 0,
                               base_sum_nonfinite(from.dtype, gradient,
                                                  from.first + i * BASE_GRANULE, BASE_GRANULE));
        }
    }
}
