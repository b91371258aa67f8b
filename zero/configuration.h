/**
 * zero/configuration.h: what zero_open() takes. Part of <zero/zero.h>, which includes it.
 *
 * A field has a line here. docs/guides/configuration.md has a bucket for each: allowed values,
 * what it costs, and its errors.
 */
#ifndef ZERO_CONFIGURATION_H
#define ZERO_CONFIGURATION_H

#include <zero/types.h>

#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/** In a field where zero means "the default", ZERO_OFF means "none". */
#define ZERO_OFF (-1)

/**
 * What happens when a step's gradient has a NaN or an infinity.
 *
 * An update can overflow fp32 although every gradient is finite. What it stores is checked where it
 * is made, and a value that is not finite is ZERO_E_NONFINITE from zero_step() on every rank, which
 * names tensor, slice and element. That is fatal with either policy, for an update is in place.
 * Nothing of it is published, saved or recorded: the program starts again from a checkpoint.
 */
typedef enum zero_nonfinite {
    ZERO_NONFINITE_DEFAULT = 0, /**< SKIP with a loss scale or f16, else ERROR. */
    ZERO_NONFINITE_ERROR = 1,   /**< zero_step() returns ZERO_E_NONFINITE; nothing is updated. */
    ZERO_NONFINITE_SKIP = 2,    /**< The step counts without its update, also if its gradient is
                                     finite and too large for the update. See skip_limit. */
} zero_nonfinite;

/**
 * Everything about a job that is not its model. Every field's zero is its default.
 *
 * Each key can also be given by the environment as ZERO_<KEY> (upper case) and by ZERO_OPTIONS,
 * which `zero-run -o key=value` sets. The environment wins over the struct, and ZERO_OPTIONS over
 * all. The exceptions are name, world, rank, team, nccl_comm and the log callback, which only the
 * struct has. ZERO_JOB, ZERO_MASTER_ADDR and ZERO_MASTER_PORT win over job, master_addr and
 * master_port, and no option gives these. One key has no field: `log` (ZERO_LOG) sets levels by
 * component, "info,coll=debug". The plan names every value's source.
 *
 * "Same bits" marks a key that has no effect on results; "numerics" marks one that has.
 */
typedef struct zero_config {
    uint32_t struct_size;
    /** What is sharded, 0 .. 3; default 0. Same bits. */
    int32_t stage;
    /** Tells several contexts of one job apart; default "main". */
    const char *name;
    /** 0: the launcher's environment gives rank and world. */
    int32_t world;
    /** Used if world > 0: 0 .. world-1. */
    int32_t rank;
    /** How ranks move bytes: "auto" (default), "self", "threads", "shm", "tcp", "ucx". Same bits.
     * "ucx" is "tcp" with bytes by UCX. Every host needs libucp.so.0, 1.13 or newer. */
    const char *transport;
    /** Transport "threads" only: borrowed, outlives the context. */
    zero_team *team;
    /** V, of all ranks a step; default: the world size, with zero-run that of the job's first
     * start. Numerics. */
    int32_t micro_batches;
    /** Gathers that are kept under way, where gathers copy; default 2, 4 with
     * offload_params=nvme; ZERO_OFF: none. */
    int32_t prefetch_units;
    /** Units that a rank may hold gathered at once; default 4. */
    int32_t open_units;
    /** Stages 2, 3: gradients that a rank may hold open or under way at once; default 4. */
    int32_t grad_units;
    /** Threads of the update, and of copies from and to the caller's buffers, this one included;
     * default 1. */
    int32_t cpu_threads;
    /** Stage 3 and offload_params=nvme: slices of at most so many elements stay resident;
     * default 1024, ZERO_OFF: none. */
    int64_t persist_numel;
    /** Where prefetch_units counts: bytes of gathered units that may stay between uses; default
     * 0. */
    int64_t live_bytes;
    /** Seeds stochastic rounding and the program's generators; part of the fingerprint.
     * Numerics. */
    uint64_t seed;
    /** The policy for gradients that are not finite. */
    zero_nonfinite nonfinite;
    /** Longest wait for other ranks or for a disk; default 600. */
    int32_t timeout_s;
    /** Instruction set of the update: "auto" (default), "ref", "avx2", "avx512". Same bits. */
    const char *kernels;
    /** A zero_log_level; default ZERO_LOG_WARN; ZERO_OFF: silent. */
    int32_t log_level;
    /** Zero. */
    uint32_t reserved;
    /** Default: standard error, without errors. */
    zero_log_fn log;
    /** The first argument of log. */
    void *log_user;
    /** Stages 1 .. 3: "shared" is one copy of the parameters a host, "copy" one a rank. "slots", at
     * stage 3, is one memory a host for gathered units. What is on other hosts is sent to a host
     * once, unless ranks copy. Default "auto": shared, but slots at stage 3 on several hosts. Same
     * bits. */
    const char *gather;
    /** "canonical" (default): the same bits on any number of ranks. "local": a rank adds up its
     * micro-batches first; stages 0, 1. Numerics. */
    const char *reduction;
    /** G, a power of two: canonical sums add blocks of G micro-batches first; default 1.
     * If it divides the ranks of every host, hosts send one sum of a block. Numerics. */
    int32_t sum_group;
    /** Longest silence of a rank's process before it counts as dead; default 30, ZERO_OFF: no
     * limit. */
    int32_t stall_s;
    /** Bytes that the ranks of a host may have together; default: what the host leaves.
     * ZERO_OFF: zero_commit() does not check. */
    int64_t memory_limit;
    /** The factor of the loss (zero_loss_scale()): "dynamic", "off", a whole number up to 2^40;
     * default "auto": dynamic for f16, else off. */
    const char *loss_scale;
    /** The first dynamic scale; default 65536. */
    int64_t loss_scale_init;
    /** The least dynamic scale; default 1. */
    int64_t loss_scale_min;
    /** Clean steps in a row that double it; default 2000. */
    int32_t loss_scale_window;
    /** Policy skip: so many steps in a row may be skipped; default 100, ZERO_OFF: any number. */
    int32_t skip_limit;
    /** 1: access outside its window faults at every stage, for finding errors that only stage 3
     * would show; default 0. Same bits. */
    int32_t paranoid;
    /** 1: a rank computes a micro-batch of another rank again, and gradients are compared;
     * default 0. Same bits. */
    int32_t verify_micro;
    /** Master weights of bf16 and f16 tensors: "f32" (default), "none". Numerics. */
    const char *master;
    /** What moments are kept in: "f32" (default), "bf16". Numerics. */
    const char *moments;
    /** What gradients are rounded to before they are summed: f32, bf16, f16; default: each
     * gradient's own type. Numerics. */
    zero_dtype comm_dtype;
    /** Where moments and master weights are: "none" (default), "host" (of a GPU), "nvme". Same
     * bits. */
    const char *offload_optimizer;
    /** nvme: the directory of a file a rank. It exists; a relative one is below the working
     * directory of zero_open(). */
    const char *nvme_dir;
    /** nvme: "auto" (default), "uring", "uring-plain", "threads", "sync". Same bits. */
    const char *io;
    /** What is read, updated and written together; default 2 MiB. */
    int64_t tile_bytes;
    /** nvme: memory of a rank for what is on its way; default: that of 48 tiles, and more for
     * other files. */
    int64_t host_bytes;
    /** nvme: what a finished step survives: "on" (default) the death of all processes, "durable"
     * a power cut, too. */
    const char *recovery;
    /** Where working copies are: "host" (default), "nvme". Same bits. */
    const char *offload_params;
    /** Where sums of gradients are between micro-batches: "host" (default), "nvme". Same bits. */
    const char *offload_grads;
    /** nvme: tiles of state are written compressed: "on", "off", "auto" (default): if that is
     * faster. Same bits. */
    const char *compress;
    /** What the program computes on: "cpu" (default), "cuda" (the GPU with this rank's number on
     * its host), "cuda:N". Same bits, but see reduction. */
    const char *device;
    /** How GPUs of several ranks move bytes: "nccl" (default), "host" for ranks that share a
     * GPU. Same bits, but see reduction. */
    const char *device_transport;
    /** device_transport=nccl: the program's ncclComm_t of this job's ranks, or NULL.
     * zero_commit() checks it; it stays the program's. */
    void *nccl_comm;
    /** device=cuda: who updates state that is offloaded: "host", "device", "auto" (default): the
     * GPU where it can and has room. Same bits. */
    const char *offload_update;
    /** device_transport=nccl: NCCL registers the memory that ranks move: "on", "off", "auto"
     * (default): on several hosts. Same bits. */
    const char *device_register;
    /** Used if world > 0: the job's name, one word. All ranks have the same, other jobs have
     * others. "": the launcher's. */
    char job[64];
    /** Used with job: name or address of rank 0's host. Every rank can reach it. There ranks find
     * out which of them share a host. "": the launcher's. */
    char master_addr[256];
    /** Used with master_addr: rank 0's port there, 1 .. 65535. Rank 0 listens while ranks meet. */
    int32_t master_port;
    /** Zero. */
    uint32_t reserved_end;
} zero_config;

/** A config with every field at its default. */
static inline zero_config zero_config_default(void)
{
    zero_config config;
    memset(&config, 0, sizeof config);
    config.struct_size = (uint32_t)sizeof config;
    return config;
}

#ifdef __cplusplus
}
#endif

#endif
