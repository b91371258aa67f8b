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
    /** Inside zero_gather(): waiting and copying. With offload_params=nvme also inside what
     * prefetches. */
    double gather_wait_s;
    /** Inside zero_grad_open(), zero_grad_done() and zero_step(): reducing, and waiting for it. */
    double reduce_wait_s;
    /** Norm and update inside zero_step(), and its waits for a save of state on NVMe. In a fused
     * step reduce_wait_s has the part of the update that came before. */
    double update_s;
    /** Agreeing inside zero_step(). */
    double step_wait_s;
    /** Units copied from their owners, or read from this rank's file. */
    uint64_t gathers;
    /** zero_gather() calls that found the unit resident. */
    uint64_t gather_hits;
    /** How many of `gathers` were issued early. */
    uint64_t prefetch_hits;
    /** Bytes copied from peers. */
    uint64_t gathered_bytes;
    /** Bytes read from peers. */
    uint64_t reduced_bytes;
    /** Bytes allocated by the library on this rank, as planned. */
    uint64_t allocated_bytes;
    /** Allocations made on the step path after the second step: 0. */
    uint64_t step_allocations;
    /** offload_optimizer=nvme: bytes of state that moved from this rank's file. */
    uint64_t state_read_bytes;
    /** Bytes of state that moved to it, and once more to the second places of a new file. */
    uint64_t state_written_bytes;
    /** The size in memory of the tiles read and written: more than moved where they are
     * compressed. */
    uint64_t state_tile_bytes;
    /** Waiting for them, mostly inside zero_step(). */
    double state_wait_s;
    /** 1: tiles are written compressed at present (compress). */
    uint64_t state_compressed;
    /** offload_params=nvme: bytes moved from and to this rank's file of working copies. */
    uint64_t params_read_bytes, params_written_bytes;
    /** offload_grads=nvme: bytes moved from and to this rank's file of sums. */
    uint64_t sums_read_bytes, sums_written_bytes;
    /** Transfers of all files that were cut short, and calls that the kernel put off. The library
     * asked for the rest again. */
    uint64_t io_repeated;
} zero_statistics;

static inline zero_statistics zero_statistics_default(void)
{
    zero_statistics stats;
    memset(&stats, 0, sizeof stats);
    stats.struct_size = (uint32_t)sizeof stats;
    return stats;
}

/** Gives the statistics. *Local.* The caller sets stats->struct_size. */
ZERO_API zero_result zero_stats(const zero_ctx *z, zero_statistics *stats);

#ifdef __cplusplus
}
#endif

#endif
