/**
 * zero/configuration.h: what zero_open() takes. Part of <zero/zero.h>, which includes it.
 */
#ifndef ZERO_CONFIGURATION_H
#define ZERO_CONFIGURATION_H

#include <zero/types.h>

#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Where zero means "the default": none. */
#define ZERO_OFF (-1)

/**
 * What happens when a step's gradient has a NaN or an infinity.
 *
 * An update computes in fp32, up to 3.4e38, and a finite gradient can be too much for it: of
 * 1e20, for instance, adagrad cannot square it, nor adam and adamw with a beta2 below 0.96. Their
 * moment would be infinite, and the element would never change again. A momentum, a weight, or an
 * f16 working copy (65504) can overflow, too. What an update stores is looked at where it is made,
 * at no cost, and a value that is not finite is ZERO_E_NONFINITE from zero_step() on every rank,
 * which names tensor, slice and element. It is fatal with either policy (`nonfinite`), for an
 * update is in place, and there is no way back: nothing of it is published, saved or recorded, and
 * the program starts again from a checkpoint. With the policy "skip" a step is skipped before its
 * update if its gradient's norm, scaled and clipped, is too large by itself: above
 * sqrt(3.4e38 / (1 - beta2)) for adam and adamw, sqrt(3.4e38) for adagrad, 3.4e38 else; an
 * optimizer of the program's own sets no limit.
 */
typedef enum zero_nonfinite {
    ZERO_NONFINITE_DEFAULT = 0, /**< SKIP with a loss scale or f16, else ERROR */
    ZERO_NONFINITE_ERROR = 1,   /**< zero_step() returns ZERO_E_NONFINITE; nothing was updated */
    ZERO_NONFINITE_SKIP = 2, /**< the step counts, the update is left out, also of a gradient that
                                  is too large for it; see skip_limit */
} zero_nonfinite;

/**
 * Everything about a job that is not its model. Every field's zero is its default. Each key but
 * name, world, rank, team, nccl_comm and the log callback can also be given by the environment
 * as ZERO_<KEY> (upper case) and by ZERO_OPTIONS, which `zero-run -o key=value` sets; these win
 * over the struct, ZERO_OPTIONS over all. The key `log` (ZERO_LOG) sets levels by component:
 * "info,coll=debug". The plan names every value's source.
 */
typedef struct zero_config {
    uint32_t struct_size;
    int32_t stage;            /**< 0 .. 3 */
    const char *name;         /**< tells several contexts of one job apart; default "main" */
    int32_t world;            /**< 0: rank and world come from the launcher's environment */
    int32_t rank;             /**< used if world > 0: 0 .. world-1 */
    const char *transport;    /**< "self", "threads", "shm", "tcp"; default "auto": self for one
                                   rank, threads with a team, tcp for ranks of several hosts, else
                                   shm. Where the launcher does not say how many ranks are on a
                                   host, but where rank 0 is, they meet there first, and find out */
    zero_team *team;          /**< transport "threads" only: borrowed, outlives the context */
    int32_t micro_batches;    /**< V; default: the world size, with zero-run that of the job's
                                   first start: the same where fewer ranks go on */
    int32_t prefetch_units;   /**< gathers kept ahead at stage 3 where they copy (see gather), with
                                   offload_params=nvme at every stage: there the default is 4,
                                   else 2; ZERO_OFF none */
    int32_t open_units;       /**< units a rank may hold open at once; default 4 */
    int32_t grad_units;       /**< gradients a rank may hold open or in flight at once at stages
                                   2, 3; default 4; 1 is enough for a program that opens one at a
                                   time, 2 where one stays open beside them (tied weights: the unit
                                   of an embedding that is the classifier, too). reduction=local:
                                   those of one size that may be open raw at once after a first
                                   micro-batch */
    int32_t cpu_threads;      /**< threads of the update and of copies to and from borrow and
                                   grad, this one included, which does all else; default 1 */
    int64_t persist_numel;    /**< stage 3 and offload_params=nvme: slices of at most so many
                                   elements stay resident; default 1024, ZERO_OFF none */
    int64_t live_bytes;       /**< where prefetch_units counts: further bytes of gathered units that
                                   may stay resident between uses; default 0 */
    uint64_t seed;            /**< part of the fingerprint; the program's generators use it too */
    zero_nonfinite nonfinite; /**< policy for non-finite gradients */
    int32_t timeout_s;        /**< longest wait for the ranks to meet, in a collective, or for a
                                   disk; default 600. A rank that waits for others longer than 10 s
                                   (or half of this) says so in the log, at growing intervals */
    const char *kernels;      /**< "auto", "ref", "avx2", "avx512"; default auto; same bits */
    int32_t log_level;        /**< a zero_log_level; default ZERO_LOG_WARN; ZERO_OFF silent */
    uint32_t reserved;        /**< zero */
    zero_log_fn log;          /**< default: standard error, without errors */
    void *log_user;           /**< first argument of log */
    const char *gather;       /**< stages 1 .. 3, how a rank comes by what others have updated:
                                   "shared" (one copy of the parameters a host, updated in place:
                                   nothing is copied), "copy"; default "auto": shared where the
                                   transport can. No effect on bits, calls or their errors */
    const char *reduction;    /**< "canonical" (default), or "local" (stages 0, 1; V a multiple of
                                   the world size): micro-batches of a rank are added up in its
                                   gradient buffer, in the gradient's dtype, and travel once a
                                   step; the same bits at the same world size only, and with 16
                                   bits if a gradient is opened the same way: what overwrites
                                   (raw), or comes from `grad`, is rounded before it is added.
                                   Where GPUs sum what travels is added on its way, by
                                   device_transport, and comes out in comm_dtype, too: what
                                   overflows by that is not finite, and no rank is to blame.
                                   "host" adds in the order of ranks, so with f32 the bits are
                                   those without a GPU; NCCL in an order of its own, which may be
                                   another one on other machines and in other versions */
    int32_t sum_group;        /**< G, a power of two: canonical sums add blocks of G consecutive
                                   micro-batches first, then the blocks; part of the numerics;
                                   default 1. Unfinished blocks need memory if G does not divide
                                   the world size, and V, given, is larger than that, or not given:
                                   a checkpoint's may be */
    int32_t stall_s;          /**< longest silence of a rank's process before it counts as dead;
                                   default 30, ZERO_OFF none */
    int64_t memory_limit;     /**< bytes that the ranks of a host may have together: zero_commit()
                                   fails if the plan needs more; default: what the host, the control
                                   group and RLIMIT_AS leave (zero(7), MEMORY). What is free of a
                                   GPU's memory limits its ranks, whatever is given here. ZERO_OFF:
                                   neither is checked */
    const char *loss_scale;   /**< what the program multiplies its loss by, see zero_loss_scale():
                                   "dynamic" (halved by a step that is not finite, doubled by
                                   loss_scale_window clean ones in a row), a whole number from 1
                                   to 2^40, "off" (1); default "auto": dynamic for f16, else off */
    int64_t loss_scale_init;  /**< dynamic: the first one; default 65536 */
    int64_t loss_scale_min;   /**< dynamic: the least one, a non-finite step with which is
                                   ZERO_E_NONFINITE; default 1 */
    int32_t loss_scale_window; /**< default 2000 */
    int32_t skip_limit;        /**< policy skip: so many non-finite steps in a row are skipped, the
                                    next one is ZERO_E_NONFINITE; default 100, ZERO_OFF: any number */
    int32_t paranoid;          /**< 1: for finding errors of a program that only stage 3 would show,
                                    at any stage. What is gathered, and an open gradient, are copies
                                    at addresses that fault before and afterwards, and are others
                                    the next time; zero_param_ptr() is NULL as at stage 3, a raw
                                    gradient is NaN until it is written; open_units and grad_units
                                    are limits at every stage. Around each slice as many addresses
                                    fault as its whole tensor has, so that one slice too far is
                                    found too; in the slice's own pages weights beside it are NaN,
                                    and a gradient that was written beside it is ZERO_E_CORRUPT in
                                    zero_grad_done(), fatal. A line on standard error, unless
                                    log_level is ZERO_OFF, names the tensor of a fault; then SIGSEGV
                                    does what it did without. Buffers of the caller's are as ever.
                                    zero_commit() compares all first values of all ranks, each of
                                    which gives those of the whole model. Same bits; default 0 */
    int32_t verify_micro;      /**< 1: each step has one more local micro-batch, in which a rank
                                    computes again the first one of the next rank (one rank: its
                                    own), to the program a micro-batch like any other. Its gradients
                                    are compared, tensor by tensor, and it has no other effect; its
                                    metrics are ignored. reduction=local: at most grad_units of
                                    them may be open at once. A difference is
                                    ZERO_E_DIVERGED from zero_step(), which names micro-batch,
                                    tensor and ranks: the program is not deterministic. Steps
                                    can't be fused; with device=cuda each waits for its
                                    gradients. Same bits; default 0 */
    const char *master;    /**< master weights of bf16 and f16 tensors: "f32" (default), or "none":
                                the working copy is all there is, updated in fp32 and stored by
                                stochastic rounding. Saves 4 bytes a parameter. ZERO_E_INVALID
                                from zero_commit() if no tensor that trains is bf16 or f16 */
    const char *moments;   /**< of the optimizers: "f32" (default), or "bf16", stored by stochastic
                                rounding: "Rounding" in zero/zero.h. ZERO_E_INVALID from
                                zero_commit() if no optimizer of a tensor that trains keeps
                                moments */
    zero_dtype comm_dtype; /**< in what gradients travel: f32, bf16, f16; every contribution, this
                                rank's own and those of one rank alone included, is rounded to it
                                (to nearest even) before it is summed; what overflows by it is not
                                finite. Part of the numerics; default: each gradient's own */
    const char *offload_optimizer; /**< "none" (default): master weights, moments, sums and
                                      gradients are where the program computes; "host": with
                                      device=cuda in memory of the host; who sums and updates
                                      then says offload_update; "nvme": see zero/checkpoint.h */
    const char *nvme_dir;          /**< nvme: the directory, which exists, of a file a rank; a
                                       relative one is below the working directory of zero_open() */
    const char *io;                /**< nvme: "auto" (default): the first of "uring",
                                      "uring-plain", "threads" that the system lets each rank
                                      have; the plan says which, and why. One that is named, or
                                      "sync", is binding: ZERO_E_UNSUPPORTED, ZERO_E_LIMIT */
    int64_t tile_bytes; /**< nvme, and offload_update "device" or "auto": what is read, updated and
                           written together; default 2 MiB */
    int64_t host_bytes; /**< nvme: memory of a rank for tiles, and for parameters and sums on their
                             way; default: that of 48 tiles, of smaller ones of 32,
                             of larger ones of as many as have 96 MiB or of 16, of
                             those that are being compressed, and what the others
                             take */
    const char *recovery;       /**< nvme: "on" (default), "durable" */
    const char *offload_params; /**< working copies: "host" (default), or "nvme": with
                                     offload_optimizer "nvme" and no shared gather. What does not
                                     persist is then read for each gather, and at every stage
                                     readable between gather and release only; there is no borrow */
    const char *offload_grads;  /**< sums of gradients between micro-batches: "host" (default), or
                                     "nvme": with offload_optimizer "nvme" */
    const char *compress;       /**< nvme: tiles of the optimizer's state are written compressed:
                                     "on", "off", or "auto" (default): if the first updates wait for
                                     the disk and are faster with it. Same bits; either reads what
                                     the other has written */
    const char *device;         /**< what the program computes on: "cpu" (default), "cuda" (the GPU
                                     with this rank's number on its host), "cuda:N". On a GPU
                                     zero_param_ptr() and zero_grad_ptr() are addresses there, to be
                                     used by work queued on the streams that calls are given, in
                                     their order. All state is there, too, unless offload_optimizer says
                                     otherwise: then nothing is brought to the host and no call of a
                                     step waits for the GPU, see zero_step(); no optimizers of the
                                     program's own so far. No paranoid, no buffers of the
                                     caller's. Same bits, but for what `reduction` says of local */
    const char *device_transport; /**< how GPUs of several ranks move bytes, where state is on them:
                                     "nccl" (default), or "host": through memory of the host, for
                                     ranks that share a GPU. One rank alone moves nothing, unless
                                     "nccl" is given: then over it, as several do. Same bits, but
                                     for what `reduction` says of local */
    void *nccl_comm; /**< device_transport=nccl: the program's own ncclComm_t, of all ranks of
                            this job in their order, each on this job's GPU; NULL (default): none;
                            the same on all ranks. zero_commit() asks it for ranks, rank, GPU and
                            state: ZERO_E_INVALID if it is of others or not ready, ZERO_E_DEVICE if
                            it has failed. No other thread uses it meanwhile. It stays the
                            program's and is otherwise left alone: zero's own communicator is made
                            beside it and shares nothing with it, so that the end of neither is the
                            other's; it may be destroyed once zero_commit() has returned. One rank
                            alone that moves nothing does not look at it. Programs that use it while
                            zero works set NCCL_LAUNCH_ORDER_IMPLICIT=1, before they make it;
                            without, zero_commit() warns in the log */
    const char
        *offload_update;         /**< with device=cuda, who updates state that is offloaded:
                                    "host": the host, which also has the sums and copies of the
                                    parameters; "device": the GPU, where sums and parameters
                                    are as without offload. Master weights and moments, which only
                                    an update needs, pass through its memory then, 8 tiles of
                                    tile_bytes at a time, in both directions at once; from files
                                    zero_step() waits for them. No offload_params "nvme", no
                                    offload_grads "nvme". "auto" (default): the plan decides, for
                                    all ranks, and says why. It is "host" with state in files,
                                    reduction "local" of several ranks, gather "shared", an
                                    optimizer of the program's own, on a GPU that has not the memory
                                    free for what passes through it or cannot run zero's kernels,
                                    and, of several ranks, where device_transport "nccl" was not
                                    asked for and there is none, or ranks share a GPU; "device" where
                                    only that has room on the GPU. Else zero_commit() finds out how
                                    fast all ranks together copy to and from their GPUs, and in
                                    memory of the host, and all take the way of which the slowest
                                    rank has the fewer seconds: of the host the longer of gradients
                                    (or parameters) over copies, and of state (read and written),
                                    gradients, their sums and parameters over memory; of the GPU
                                    state over copies, with device_transport "host" gradients, too.
                                    A device_transport that is given has to be there, as NCCL of
                                    several ranks with nccl_comm or device_register "on", and with
                                    what always is "host" each is an error, as tile_bytes is. zero_step()
                                    tells of a step when it does with the one taken. Same bits */
    const char *device_register; /**< device_transport "nccl": whether the memory of a rank's GPU is
                                    NCCL's own (ncclMemAlloc) and registered with it, so that what
                                    others need is read where it is, or written where it belongs,
                                    without NCCL's buffers on the way: "on", "off", "auto"
                                    (default): where ranks are on several hosts (transport tcp),
                                    whose networks gain most by it, and not on one, where it has not
                                    been measured. All ranks register or none does: where NCCL gives
                                    the memory and one can't register it, "on" is an error,
                                    ZERO_E_UNSUPPORTED or _DEVICE, and "auto" says so in the log and
                                    goes on. Where it does not give it both are one, ZERO_E_NOMEM or
                                    _DEVICE. One rank alone has nothing to
                                    register unless it gives device_transport. Same bits */
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
