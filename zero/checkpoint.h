/**
 * zero/checkpoint.h: checkpoints. Part of <zero/zero.h>, which includes it.
 *
 * A checkpoint is all that decides the future: weights, moments, counters, the loss scale, the last
 * hyper-parameters, and what the program attached. All ranks write it into a directory DIR/step-<n>
 * (checkpoint/FORMAT.md). It loads at any world size, stage, way of gathering and dtype of the
 * working copy. The run goes on with the bits that it would have had: 2N steps are N steps, a save,
 * a load and N steps.
 *
 *     zero_attach ...           what of the program's own state belongs in it
 *     zero_commit
 *     zero_resume(z, DIR, ...)  ZERO_NOT_FOUND: from the start
 *     every step: ..., zero_step
 *         every so often: zero_save(z, DIR, ...)      written behind the next steps
 *         zero_stop_requested: zero_save, zero_save_wait, leave
 *     zero_save_wait            whether the last one is complete
 *     zero_close                completes it in any case
 *
 * The directory
 *
 * What is under DIR belongs to the library, which removes what a job has left unfinished. A
 * `step-<n>` that has lost its manifest.json may be another job's. The library neither removes nor
 * replaces it, and a save of that step fails until the user moves it away. One job at a time saves
 * there. Before the library removes files it waits for a reader (zero-ckpt, another job), for a
 * second.
 *
 * The file system of DIR renames at once or not at all, keeps what fsync(2) has promised, and has
 * flock(2) between all processes that use DIR. Ranks of several hosts share DIR, and zero_save()
 * says so if they do not. Saving a step again needs RENAME_EXCHANGE; where it is missing that save
 * fails, and the old checkpoint stays. Local ext4, by power cuts too, and tmpfs were tested;
 * network file systems were not. docs/guides/checkpoints.md says what they need.
 *
 * Runs
 *
 * A directory belongs to a run, which zero_commit() begins. Each checkpoint says which run it is of
 * (`zero-ckpt list`). A program that begins anew each time it is started needs a new directory each
 * time.
 *  - zero_resume() makes the context part of the run that it goes on with, wherever it saves.
 *  - zero_load() makes it part of that run where it saves to a directory that has checkpoints of
 *    it. In a directory without any, it saves as a run of its own.
 *  - zero_save() fails where checkpoints of other runs are, unless its options say
 *    beside_other_runs. `keep` counts and removes those of the context's run only.
 *  - Checkpoints of earlier libraries don't say their run. Those with equal names of the context,
 *    equal seeds, and equal tensors by name and shape count as one run's.
 *  - A checkpoint whose manifest can't be read may be any run's, and `keep` never removes it.
 *    zero_save() fails where there are only such ones. It replaces one only if zero_resume() of the
 *    context has passed it over as damaged, and without beside_other_runs.
 *
 * Two jobs may go on from one checkpoint, each in a directory of its own. So another directory may
 * have checkpoints of the run with higher steps than the one that was loaded. These are another
 * job's, unless the context has saved in that directory itself. zero_save() fails there.
 *
 * Recovery points
 *
 * With config.offload_optimizer "nvme" moments and master weights are in a file a rank. Each step
 * that has ended on all ranks is a recovery point: the processes may die, and the job that is
 * started again comes back at it by zero_resume(), without a checkpoint. It has the same model,
 * configuration and number of ranks, on the same hosts. zero_close() removes the files, unless a
 * rank has failed, or the job was asked to stop.
 *
 * A job that begins anew writes over what a job before has left, at its first step, or at a
 * zero_load(), zero_import() or zero_param_write() before that. So zero_resume() comes first. What
 * is left of a damaged point is never written over unsaid. docs/guides/recovery.md has the cases,
 * and what a disk that fails or hangs does.
 */
#ifndef ZERO_CHECKPOINT_H
#define ZERO_CHECKPOINT_H

#include <zero/types.h>

#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Whose an attached blob is. */
typedef enum zero_scope {
    ZERO_GLOBAL = 0,  /**< All ranks have the same bytes, which the fingerprint has, too. */
    ZERO_OF_RANK = 1, /**< Each rank has its own bytes. */
} zero_scope;

/**
 * Attaches `bytes` bytes at `memory` that belong in checkpoints: positions in data, random state,
 * anything. *Local*, outside of steps.
 *
 * zero_save() copies them before it returns; zero_load() and zero_resume() write them. No other
 * call touches them. They live until zero_close(), or until the name is attached again, with other
 * memory or with NULL and 0 (no more). A name has 1 .. 63 bytes of [A-Za-z0-9_.-]. There are at
 * most 64.
 *
 * When it comes to saving and loading, all ranks have the same names with the same scopes, and as
 * many bytes of a global one. A global blob's bytes are in zero_fingerprint(): attach what decides
 * the future, and not a clock or a path.
 *
 * A blob of a rank goes back to the rank of the same number if the job that saved had as many ranks
 * as this one. If not, it stays as it is, and zero_load_result.rank_blobs says so. What a rank has
 * to know must then follow from (seed, step, micro-batch), as zero(7) recommends anyway.
 *
 * A refusal before zero_commit() is remembered, which then fails with it.
 * ZERO_E_INVALID: name, scope or memory are not allowed. ZERO_E_STATE: a step is under way.
 * ZERO_E_LIMIT: it is the 65th. Nothing has changed. ZERO_E_NOMEM: the system refused memory.
 */
ZERO_API zero_result zero_attach(zero_ctx *z, const char *name, void *memory, uint64_t bytes,
                                 zero_scope scope);

/** How zero_save() saves. */
typedef struct zero_save_options {
    uint32_t struct_size;
    /** The level of compression: 0 the default, which costs little (see zero(7)); 1 .. 19 as
     * zstd's; ZERO_OFF: none. */
    int32_t level;
    /** How many of the run's newest checkpoints, in the order of saving, remain when this one is
     * complete; 0: all. If a reader holds others for more than a second they stay until the next
     * save, with a warning. */
    int32_t keep;
    /** Checkpoints whose step is a multiple of this remain, too; 0: no others. */
    int32_t keep_every;
    /** On each rank, for copies of what is about to change and not written yet. 0: 256 MiB, but
     * never more than the state; ZERO_OFF: none. State on NVMe is not copied: then more than 0 is
     * ZERO_E_INVALID. */
    int64_t room_bytes;
    /** 1: save although the directory has checkpoints of runs that this context neither began nor
     * loaded; they are neither removed nor replaced. 0: that is an error. */
    int32_t beside_other_runs;
    int32_t reserved;
} zero_save_options;

static inline zero_save_options zero_save_options_default(void)
{
    zero_save_options options;
    memset(&options, 0, sizeof options);
    options.struct_size = (uint32_t)sizeof options;
    return options;
}

/**
 * Begins a checkpoint in `directory`/step-<n>, n being the steps so far, and returns when attached
 * blobs are copied. *Collective, ordered*, between steps.
 *
 * options may be NULL (defaults). A save under way is completed first. No bit of a step depends on
 * a save.
 *
 * One thread of each rank writes its shard while the program goes on. When all shards are durable,
 * which ranks tell each other in zero_step(), rank 0 commits. One zero_step() later every rank
 * knows (zero_save_poll()). What the thread has not written yet may be about to change, in
 * zero_step(), zero_step_in_backward(), zero_load(), zero_import() or zero_param_write():
 *
 *     state in memory  That call copies it as far as room_bytes reach, and waits for the rest.
 *     state on a GPU   The thread has copies made, a piece at a time, in a stream of its own.
 *                      Pieces that are about to change go to pinned memory before the update, and
 *                      the program waits only for what is beyond room_bytes.
 *     state on NVMe    Nothing is copied. The next update writes to other places. The one after it
 *                      follows the thread and waits, tile by tile, until each has been read.
 *
 * State on NVMe is read by a thread of its own, which the first save starts, with a queue as the
 * steps have one. It pins memory (4 MiB, or one tile where that is more), so a limit for that may
 * be in the way (ZERO_E_LIMIT).
 *
 * The path. A relative `directory` is below each rank's working directory at this call, whatever
 * that is later. The library makes `directory` if only its last part is missing. It opens it anew
 * if it is no longer the one of the save before (moved away, or removed), or could not be flushed
 * then.
 *
 * A checkpoint of the same step is replaced when the new one is complete, and is there until then.
 * The new one is the newest in the directory, whatever its step, for zero_resume() and for `keep`.
 * So a run that went back to an earlier step (zero_load()) goes on from what it has saved since. It
 * takes the names of what it has abandoned over as it comes to them.
 *
 * The first save of a context allocates what all of them use; so does one with another level or
 * room_bytes. With the default options that is what the plan says of zero_save.
 *
 * These errors are all ranks', not fatal, and there is no new checkpoint.
 * ZERO_E_INVALID: options are out of range, or the path is too long or names no directory.
 * ZERO_E_STATE: a step is under way, a unit is gathered, or another job saves in this directory. Or
 * it has checkpoints of another run; the message has the newest of them, and what to do. With
 * beside_other_runs: it has one of this step.
 * ZERO_E_NOMEM: the host has not that much; it comes before anything is allocated. Or an allocation
 * failed.
 * ZERO_E_IO: the directory cannot be made, read or written.
 * ZERO_E_LIMIT, ZERO_E_UNSUPPORTED: the system does not let this rank have config.io.
 * ZERO_E_TIMEOUT: a disk has hung in a save before.
 *
 * ZERO_E_DIVERGED: ranks gave other directories, options or names of blobs, or global blobs differ;
 * fatal.
 */
ZERO_API zero_result zero_save(zero_ctx *z, const char *directory,
                               const zero_save_options *options);

/** How far a save is. */
typedef enum zero_save_phase {
    ZERO_SAVE_NONE = 0,     /**< zero_save() has not begun any yet. */
    ZERO_SAVE_WRITING = 1,  /**< Some rank writes, or rank 0 commits. */
    ZERO_SAVE_COMPLETE = 2, /**< It is durable on every rank, and a checkpoint. */
    ZERO_SAVE_FAILED = 3,   /**< There is no checkpoint; zero_save_wait() has the error. */
} zero_save_phase;

/** The newest zero_save(). */
typedef struct zero_save_info {
    uint32_t struct_size;
    int32_t phase;           /**< A zero_save_phase; the same on all ranks. */
    uint64_t step;           /**< The checkpoint's step. */
    uint64_t done_bytes;     /**< Bytes of this rank's state that were read so far. */
    uint64_t state_bytes;    /**< All bytes of this rank's state. */
    uint64_t file_bytes;     /**< Bytes of all shards; 0 until it is complete. */
    double blocked_s;        /**< This rank's time in zero_save(), and in later calls because of it.
                                  It does not count what a GPU's update waits for copies. */
    double seconds;          /**< From zero_save() until it was known to be complete, or now. */
    uint8_t fingerprint[16]; /**< zero_fingerprint() of the step; zeros until complete. */
} zero_save_info;

static inline zero_save_info zero_save_info_default(void)
{
    zero_save_info info;
    memset(&info, 0, sizeof info);
    info.struct_size = (uint32_t)sizeof info;
    return info;
}

/** Says how the newest save gets on. *Local*, any thread. The caller sets info->struct_size. */
ZERO_API zero_result zero_save_poll(const zero_ctx *z, zero_save_info *info);

/**
 * Waits until the newest save is complete, on all ranks. *Collective, ordered*, between steps.
 *
 * Meanwhile the caller encodes part of it where there is a processor for that. Without a save the
 * call returns ZERO_OK.
 *
 * ZERO_E_IO, ZERO_E_CORRUPT, ZERO_E_TIMEOUT, ZERO_E_NOMEM, ZERO_E_DEVICE: the save failed, on all
 * ranks, with the message of the lowest that did. There is no new checkpoint, those before it are
 * untouched, and zero_save() may be called again.
 * ZERO_E_STATE: a step is under way.
 */
ZERO_API zero_result zero_save_wait(zero_ctx *z);

/** What zero_load() and zero_resume() accept. */
typedef struct zero_load_options {
    uint32_t struct_size;
    /** 1: go on with this job's V (config.micro_batches, or that of zero_set_micro_batches()) if
     * the checkpoint has another one; the bits from here on are others. 0: V is the checkpoint's,
     * and it is an error if the configuration gave another one. */
    int32_t allow_new_batch;
    /** 1: what the checkpoint lacks stays as it is. These are tensors that it has not, or with
     * another shape or optimizer; groups that it has not by name, or with another optimizer; and
     * blobs. It may have more than the model. A tensor may have moved to another group. It is
     * loaded, and its group has the hyper-parameters that the group's name has, and is frozen or
     * not as that was. 0: those are errors. */
    int32_t partial;
    int32_t reserved;
} zero_load_options;

static inline zero_load_options zero_load_options_default(void)
{
    zero_load_options options;
    memset(&options, 0, sizeof options);
    options.struct_size = (uint32_t)sizeof options;
    return options;
}

/** What was loaded. */
typedef struct zero_load_result {
    uint32_t struct_size;
    int32_t saved_world; /**< Ranks of the job that saved it. */
    uint64_t step;       /**< Batches so far: the next step's index. */
    uint64_t updates;    /**< Updates so far. */
    int32_t damaged;     /**< zero_resume(): newer ones that were damaged and passed over. */
    int32_t rank_blobs;  /**< 1: blobs of a rank were loaded; see zero_attach(). */
    int32_t missing;     /**< With partial: tensors of the model that were not loaded. */
    int32_t recovered;   /**< zero_resume(): 1: from the recovery point on NVMe, no checkpoint. */
    uint64_t read_bytes; /**< What this rank read from shards. */
    double seconds;      /**< How long the call took. */
} zero_load_result;

static inline zero_load_result zero_load_result_default(void)
{
    zero_load_result result;
    memset(&result, 0, sizeof result);
    result.struct_size = (uint32_t)sizeof result;
    return result;
}

/**
 * Loads exactly this checkpoint: `path` is DIR/step-<n>, n with at least eight digits. *Collective,
 * ordered*, between any two steps.
 *
 * options and result may be NULL; else the caller sets their struct_size. Afterwards these are the
 * step's: weights, moments, counters, loss scale, frozen groups and blobs, and the seed of a
 * context that has not stepped. So is V, whatever zero_set_micro_batches() has made it, unless
 * config.micro_batches fixes it. With reduction=local the bits from here on are those of this
 * number of ranks. zero_step_info() has step, updates, skips and loss scale of the checkpoint; norm
 * and clip are NaN.
 *
 * Nothing is removed from the directory. What was saved after that step stays, and stays the newest
 * until the next zero_save(). Where going back is meant to outlive the job, save at once.
 *
 * Groups are found by their names. Groups that were added without a name are found among the saved
 * groups without one by their order; those are called "group<n>", n being their place. Each tensor
 * that trains has to be in the group that it was in.
 *
 * Every byte is checked before it counts, and all ranks return the same. What can be found without
 * reading all of it is found before anything is changed. Damage of tensors' bytes may be found
 * later: then the error is fatal, and zero_resume() of a new context is the way out.
 *
 * ZERO_NOT_FOUND: there is no such checkpoint.
 * ZERO_E_CORRUPT: it is damaged; the message names file, offset and tensor.
 * ZERO_E_VERSION: this library does not understand its version. ZERO_E_IO: reading failed.
 * ZERO_E_INVALID: it is of another model. The message names missing and unexpected tensors and
 * groups, shapes, optimizers, or a tensor that has moved to another group. Or blobs, sum_group,
 * seed or reduction are others than was asked for. Or V is another one, or one that needs memory
 * that was not planned (zero_set_micro_batches()). Or a finite value would be an infinity in a
 * working copy or moment of another type than it was saved with; tensors of such types are read
 * twice.
 * ZERO_E_STATE: a step is under way, or a unit is gathered.
 * ZERO_E_NOMEM: less memory is left than the plan says that loading takes (config.memory_limit), or
 * an allocation failed.
 * ZERO_E_DIVERGED: ranks gave other arguments or see different checkpoints; fatal. The message says
 * which rank sees none.
 */
ZERO_API zero_result zero_load(zero_ctx *z, const char *path, const zero_load_options *options,
                               zero_load_result *result);

/**
 * Loads the newest good checkpoint in `directory`, in the order of saving. *Collective, ordered*,
 * between steps.
 *
 * Damage is a warning (rank, file, offset, tensor), and the checkpoint before is taken. A manifest
 * that cannot be read when they are put in order is a warning, too: another one may pass for the
 * newest. Blobs are those of the one that is loaded, or stay as they are. With options->partial
 * tensors that it has not stay, too: then all of a checkpoint is checked before a value changes,
 * and read twice.
 *
 * A recovery point comes before the newest checkpoint if its step is as high, or higher;
 * result->recovered is 1. Options mean nothing to it. If its disk fails it is tried again, at once
 * and after a second. If that is in vain, or the point is damaged, a warning says so, and the
 * newest checkpoint takes its place for good. So a job whose disk is gone goes on without help.
 *
 * directory NULL: only a recovery point will do. Its failure is ZERO_E_CORRUPT then, as it is where
 * there is no checkpoint. It is fatal, and the point stays for the next start.
 *
 * Otherwise the call does what zero_load() does, and fails as it does. Its own results:
 * ZERO_NOT_FOUND: there is no checkpoint, and nothing has changed. With directory NULL: there is no
 * point, or this job has stepped already.
 * ZERO_E_CORRUPT: there are checkpoints, and none is good; fatal if a value was changed. Or there
 * is no checkpoint, and some ranks lack their part of a point; nothing has changed.
 * ZERO_E_INVALID: other blobs are attached than the point has.
 */
ZERO_API zero_result zero_resume(zero_ctx *z, const char *directory,
                                 const zero_load_options *options, zero_load_result *result);

#ifdef __cplusplus
}
#endif

#endif
