/**
 * zero/statistics.h: where time and memory went. Part of <zero/zero.h>, which includes it.
 */
#ifndef ZERO_STATISTICS_H
#define ZERO_STATISTICS_H

#include <zero/zero.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Where time and memory went, since commit, on this rank. */
typedef struct zero_statistics {
    uint32_t struct_size;
    uint32_t reserved;
    double gather_wait_s;      /**< inside zero_gather(): waiting and copying; offload_params=nvme:
                                    and inside what fetches ahead */
    double reduce_wait_s;      /**< inside zero_grad_open(), zero_grad_done() and zero_step():
                                    reducing, and waiting for it */
    double update_s;           /**< norm and update inside zero_step(), and what that waits for a
                                    save of state on NVMe; in a fused step what is left
                                    for it there, the rest is in reduce_wait_s */
    double step_wait_s;        /**< agreeing inside zero_step() */
    uint64_t gathers;          /**< units copied from their owners, or read from this
                                    rank's file */
    uint64_t gather_hits;      /**< zero_gather() calls that found the unit resident */
    uint64_t prefetch_hits;    /**< of the gathers: issued ahead */
    uint64_t gathered_bytes;   /**< copied from peers */
    uint64_t reduced_bytes;    /**< read from peers */
    uint64_t allocated_bytes;  /**< by the library on this rank, as planned */
    uint64_t step_allocations; /**< allocations made on the step path after the second step: 0 */
    /* offload_optimizer=nvme, of the state alone: */
    uint64_t state_read_bytes;    /**< moved from this rank's file, */
    uint64_t state_written_bytes; /**< and to it, once more to the second places of a new file */
    uint64_t state_tile_bytes;    /**< tiles read and written have so many in memory: more than was
                                       moved where they are compressed */
    double state_wait_s;          /**< waiting for them, mostly inside zero_step() */
    uint64_t state_compressed;    /**< 1: tiles are written compressed at present (compress) */
    /* offload_params=nvme, offload_grads=nvme: moved from and to these files of this rank. */
    uint64_t params_read_bytes, params_written_bytes;
    uint64_t sums_read_bytes, sums_written_bytes;
    uint64_t io_repeated; /**< transfers of all files that were cut short, and calls that the kernel
                               put off: the rest was asked for again */
} zero_statistics;

static inline zero_statistics zero_statistics_default(void)
{
    zero_statistics stats;
    memset(&stats, 0, sizeof stats);
    stats.struct_size = (uint32_t)sizeof stats;
    return stats;
}

/** *Local*; stats->struct_size set by the caller. */
ZERO_API zero_result zero_stats(const zero_ctx *z, zero_statistics *stats);

#ifdef __cplusplus
}
#endif

#endif
