/**
 * zero/checkpoint.h: checkpoints. Part of <zero/zero.h>, which includes it.
 *
 * A checkpoint is all that decides the future: weights, moments, counters, the loss scale, the last
 * hyper-parameters, and what the program attached, written by all ranks into a directory
 * DIR/step-<n> (its format: checkpoint/FORMAT.md). It is loaded at any world size, stage, way of
 * gathering and dtype of the working copy, and the run goes on with the bits that it would have
 * had, whatever the job has died of meanwhile: 2N steps are N steps, a save, a load and N steps.
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
 * What is under `DIR` belongs to the library, which removes what a job has left unfinished. But a
 * `step-<n>` that has lost its manifest.json is neither removed nor replaced: it may be another
 * job's, and a save of that step fails until it is moved away. One job at a time saves there. Who
 * reads (zero-ckpt, another job) is waited for, for a second, before files are removed.
 *
 * Runs. A directory belongs to a run, which zero_commit() begins. Each of its checkpoints says
 * which run it is of (`zero-ckpt list`). A context that zero_resume() has brought back, by a
 * checkpoint or a recovery point, is of the run that it goes on with, wherever it saves. One that
 * has loaded a checkpoint by zero_load() goes on with that run where it saves to a directory that
 * has checkpoints of it; in a directory without any it saves as a run of its own. zero_save() fails
 * where checkpoints of other runs are, unless its options say beside_other_runs. `keep` counts and
 * removes those of the context's run only. So a program that begins anew each time it is started
 * needs a new directory each time. Checkpoints of earlier libraries don't say their run: those with
 * the same name of the context, seed, and tensors by name and shape count as one run's. One
 * whose manifest can't be read may be any run's, and `keep` never removes it. zero_save() fails
 * where there are only such ones. It replaces one only if zero_resume() of the context has passed
 * it over as damaged, and without beside_other_runs.
 *
 * Two jobs may go on from one checkpoint, each in a directory of its own. So checkpoints of the run
 * that are in another directory than the one that was loaded, and have higher steps than that, are
 * another job's, unless the context has saved in that directory itself: zero_save() fails there.
 *
 * The file system of DIR has to rename files and directories at once or not at all, in a power cut
 * too; to have made durable what fsync(2) of a file or a directory has returned for; to show to all
 * ranks what one of them has renamed or closed; and to have flock(2) between all processes that use
 * DIR, which ranks of several hosts share (zero_save() says so if not). Saving a step again
 * needs RENAME_EXCHANGE; where that is missing the save fails, and the old one stays. O_DIRECT is
 * used where it can be. Local ext4 was tested, by power cuts too, and tmpfs; network file systems
 * were not. On NFS all of it but RENAME_EXCHANGE is there if the server exports with `sync`, locks
 * are not local (no `nolock`, no `local_lock`), and names are not cached
 * (`lookupcache=none`); locks of a host that has died go when the server notices.
 *
 * Recovery points. With config.offload_optimizer "nvme" moments and master weights are in a file a
 * rank, config.nvme_dir/zero-<16 hex>-rank-<n>.slots, in tiles that pass through memory in
 * zero_step(), with the same bits. The file is twice as large as they are (the plan says): a step
 * writes to the places that the one before does not use, and has a copy of weights that are in
 * memory anyway. So every step that zero_step() or zero_skip_step() has ended on all ranks, and
 * what zero_load() has loaded, is a recovery point: when the processes die, and be it in the middle
 * of the next step, or of the next zero_load(), the job that is started again on this host, or each
 * rank on its own, with the same model, configuration and number of ranks, comes back at it by
 * zero_resume(), without a checkpoint; but a zero_resume() that finds that what it has loaded is
 * not what was saved gives the point up, and then loads the one before. What is attached comes back
 * as it was when the step ended; what is attached after zero_commit() has room for 64 KiB in all.
 * With config.offload_params and offload_grads working copies and sums of gradients are in further
 * files, without names: they follow from the state, and the job may come back with either of them
 * elsewhere than before.
 *
 * The files are removed by zero_close(), unless some rank has failed or aborted, or the job was
 * asked to stop (zero_stop_requested()) and so is to be started again, or has neither come back at
 * the point that it found nor written over it. A job that begins anew writes over what one before
 * has left: at its first step, or its first zero_load(), zero_import() or zero_param_write() before
 * that; that is a warning. So zero_resume() comes first. Two jobs that are alike need two
 * directories, or other config.names: the second one is refused. So is a job that would write over
 * a point of its own in other tiles (config.tile_bytes), or beside which more or less is attached.
 * With config.recovery "durable" a point survives a power cut, too, for two flushes a step. A disk
 * that fails in a step is fatal (ZERO_E_IO, ZERO_E_CORRUPT, ZERO_E_TIMEOUT): then weights in memory
 * may be in the middle of an update, and the step before is what there is to come back at.
 *
 * What is left of a point is never written over unsaid. A file that is no longer as long as it was
 * written, or whose only records are damaged, is ZERO_E_CORRUPT of zero_commit(), and nothing has
 * changed: somebody has to put it right, or remove it. Where there is an older record, too, the
 * newest one may have been torn as its writer died: a warning names file and offset, and all ranks
 * come back one step earlier. Where ranks have steps that differ, or some have none, a host or a
 * disk is another one: a warning says which rank has what, and each keeps that until zero_resume()
 * has found a checkpoint, which is what a job without the lost host goes on from, or the job steps.
 * Without a checkpoint zero_resume() fails, however often the job is started: it comes back when
 * the missing file does, and begins anew when the others are removed. A job that died just as its
 * first step took the place of a point looks the same.
 *
 * A disk that hangs is ZERO_E_TIMEOUT, with file, bytes, offset and seconds, when nothing has moved
 * for config.timeout_s: of tiles, of records, or of what a save reads of them, which fails that
 * save, and zero_save() at once from then on. Two things have no such limit, because they may take
 * long by right: zero_commit(), where it creates the files, and reads and writes of checkpoints.
 * And a process with a request at a disk that doesn't answer is kept by Linux until it does, even
 * when it is killed: zero_close() returns, but no exit does.
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
    ZERO_GLOBAL = 0,  /**< the same bytes on every rank: part of the fingerprint */
    ZERO_OF_RANK = 1, /**< each rank has its own */
} zero_scope;

/**
 * Attaches `bytes` bytes at `memory` that belong in checkpoints: positions in data, random state,
 * anything. zero_save() copies them before it returns, zero_load() and zero_resume() write them;
 * nothing else touches them, and they live until zero_close(), or until the name is attached again
 * (with other memory, or NULL and 0: no more). *Local*, outside of steps; the same names with the
 * same scopes on every rank when it comes to saving and loading, global ones with as many bytes.
 * Names of [A-Za-z0-9_.-], 1 .. 63 bytes, at most 64 of them.
 *
 * A blob of a rank is given back to the rank of the same number if the job that saved had as many
 * ranks as this one; if not, it is left as it is, and zero_load_result.rank_blobs says so: what a
 * rank has to know must then follow from (seed, step, micro-batch), as zero(7) recommends anyway.
 *
 * A global blob's bytes are in zero_fingerprint(): attach what decides the future, and not a clock
 * or a path. ZERO_E_INVALID: name, scope, memory; ZERO_E_STATE: inside a step; ZERO_E_LIMIT: a 65th
 * (nothing changed); ZERO_E_NOMEM. A refusal before zero_commit() is remembered, which then fails
 * with it.
 */
ZERO_API zero_result zero_attach(zero_ctx *z, const char *name, void *memory, uint64_t bytes,
                                 zero_scope scope);

typedef struct zero_save_options {
    uint32_t struct_size;
    int32_t level; /**< of compression: 0 the default, which costs little (see zero(7)); 1 .. 19
                        as zstd's; ZERO_OFF: none */
    int32_t keep; /**< how many of the run's newest checkpoints, in the order of saving, remain when
                       this one is complete; 0: all. If somebody reads for more than a second
                       others stay until the next save, which is a warning */
    int32_t keep_every; /**< and those whose step is a multiple of this; 0: no others */
    int64_t room_bytes; /**< on each rank, for copies of what is not written yet when it is about to
                             change; 0: 256 MiB, but never more than the state; ZERO_OFF: none.
                             State on NVMe is not copied: then ZERO_E_INVALID if more than 0 */
    int32_t beside_other_runs; /**< 1: save, although there are checkpoints of runs in the directory
                                    that this context neither began nor loaded; they are neither
                                    removed nor replaced. 0: that is an error */
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
 * blobs are copied. *Collective, ordered*, between steps; options may be NULL (defaults).
 *
 * One thread of each rank writes its shard, straight from the memory that weights and moments are
 * in, while the program goes on. Before they change (zero_step(), zero_step_in_backward(),
 * zero_load(), zero_import(), zero_param_write()) what has not been written yet is copied, as far
 * as room_bytes reach, and waited for beyond them. Of weights and moments on a GPU the thread has
 * copies made, a piece at a time, in a stream of its own, and those that are made before they
 * change go to pinned memory, which the GPU does before the update: the program waits for none of
 * them, only for what is beyond room_bytes. Of state on NVMe nothing is copied: the next update
 * leaves what is read where it is, and the one after it follows the thread, tile by tile: each is
 * written over as soon as it has been read, and waited for until then. When all shards are durable,
 * which ranks tell each other in zero_step(), rank 0 commits; one zero_step() later every rank
 * knows (zero_save_poll()). No bit of a step depends on it. A save under way is completed first.
 *
 * A relative `directory` is one below the working directory of each rank at this call, whatever
 * that is when the save is completed.
 *
 * A checkpoint of the same step is replaced when the new one is complete, and is there until then.
 * The new one is the newest in the directory, whatever its step, for zero_resume() and for `keep`.
 * So a run that went back to an earlier step (zero_load()) goes on from what it has saved since,
 * and takes the names of what it has abandoned over as it comes to them. `directory` is made if
 * only its last part is missing, and opened anew if it is no longer the one of the save before
 * (moved away, or removed) or could not be flushed then. The first save of a context, and one with
 * another level or room_bytes, allocates what all of them use: with the default options what the
 * plan says of zero_save. ZERO_E_NOMEM before anything is allocated if the host has not that much.
 *
 * State on NVMe is read by a thread of its own, which the first save starts, with a queue as the
 * steps' one has; it pins memory (4 MiB, or one tile where that is more), so a limit for that may
 * be in the way (ZERO_E_LIMIT).
 *
 * ZERO_E_INVALID: options, the path is too long, or names no directory; ZERO_E_STATE: inside a
 * step, a unit is gathered, another job saves in this directory, or checkpoints of another run
 * are there (the message has the newest of them, and what to do), or, with beside_other_runs, one
 * of this step; ZERO_E_IO; ZERO_E_NOMEM; ZERO_E_LIMIT, ZERO_E_UNSUPPORTED: of config.io;
 * ZERO_E_TIMEOUT: a disk has hung in a save before.
 * They are all ranks', not fatal, and there is no new checkpoint. ZERO_E_DIVERGED: ranks gave other
 * directories, options or names of blobs, or global blobs differ; fatal.
 */
ZERO_API zero_result zero_save(zero_ctx *z, const char *directory,
                               const zero_save_options *options);

typedef enum zero_save_phase {
    ZERO_SAVE_NONE = 0,     /**< zero_save() has not begun any yet */
    ZERO_SAVE_WRITING = 1,  /**< some rank writes, or rank 0 commits */
    ZERO_SAVE_COMPLETE = 2, /**< durable on every rank, and a checkpoint */
    ZERO_SAVE_FAILED = 3,   /**< there is none; zero_save_wait() has the error */
} zero_save_phase;

/** The newest zero_save(). */
typedef struct zero_save_info {
    uint32_t struct_size;
    int32_t phase;                    /**< a zero_save_phase; the same on all ranks */
    uint64_t step;                    /**< the checkpoint's */
    uint64_t done_bytes, state_bytes; /**< of this rank: read so far, and all */
    uint64_t file_bytes;              /**< of all shards; 0 until it is complete */
    double blocked_s;        /**< this rank: in zero_save(), and in later calls because of it; not
                                  what a GPU's update waits for copies */
    double seconds;          /**< from zero_save() until it was known to be complete, or now */
    uint8_t fingerprint[16]; /**< zero_fingerprint() of the step; zeros until complete */
} zero_save_info;

static inline zero_save_info zero_save_info_default(void)
{
    zero_save_info info;
    memset(&info, 0, sizeof info);
    info.struct_size = (uint32_t)sizeof info;
    return info;
}

/** *Local*, any thread: how the newest save is getting on; info->struct_size set by the caller. */
ZERO_API zero_result zero_save_poll(const zero_ctx *z, zero_save_info *info);

/**
 * Waits until the newest save is complete, on all ranks, and encodes part of it meanwhile where
 * there is a processor for that. *Collective, ordered*, between steps.
 * ZERO_OK also where there is none. ZERO_E_IO, ZERO_E_CORRUPT, ZERO_E_TIMEOUT, ZERO_E_NOMEM,
 * ZERO_E_DEVICE: it failed, on all ranks, with the message of the lowest that did; there is no new
 * checkpoint, those before it are untouched, and zero_save() may be called again. ZERO_E_STATE:
 * inside a step.
 */
ZERO_API zero_result zero_save_wait(zero_ctx *z);

typedef struct zero_load_options {
    uint32_t struct_size;
    int32_t allow_new_batch; /**< 1: go on with this job's V (config.micro_batches, or that of
                                  zero_set_micro_batches()) if the checkpoint has another one: other
                                  bits from here on. 0: V is the checkpoint's, and it is an error if
                                  the configuration gave another one */
    int32_t partial;         /**< 1: tensors that the checkpoint has not, or with another shape or
                                  optimizer, stay as they are, as do groups that it has not under
                                  their name, or with another optimizer, and blobs that it has not;
                                  it may have some that are not here; and a tensor may be in another
                                  group than it was: it is loaded, and its group has the
                                  hyper-parameters that the group's name has, and is frozen or not
                                  as that was. 0: those are errors */
    int32_t reserved;
} zero_load_options;

static inline zero_load_options zero_load_options_default(void)
{
    zero_load_options options;
    memset(&options, 0, sizeof options);
    options.struct_size = (uint32_t)sizeof options;
    return options;
}

typedef struct zero_load_result {
    uint32_t struct_size;
    int32_t saved_world; /**< ranks of the job that saved it */
    uint64_t step;       /**< batches so far: the next step's index */
    uint64_t updates;
    int32_t damaged;     /**< zero_resume(): newer ones that were damaged and passed over */
    int32_t rank_blobs;  /**< 1: blobs of a rank were loaded; see zero_attach() */
    int32_t missing;     /**< partial: tensors of the model that were not loaded */
    int32_t recovered;   /**< zero_resume(): 1: from the recovery point on NVMe, no checkpoint */
    uint64_t read_bytes; /**< by this rank, from shards */
    double seconds;
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
 * ordered*, between any two steps; options and result may be NULL, else their struct_size is set.
 * Afterwards weights, moments, counters, loss scale, frozen groups and blobs are those of the step,
 * and the seed of a context that has not stepped; V too, whatever zero_set_micro_batches() has made
 * it, but where config.micro_batches fixes it. With reduction=local the bits from here on are
 * those of this number of ranks. zero_step_info() has step, updates, skips and loss scale of the
 * checkpoint; norm and clip are NaN.
 *
 * Nothing is removed from the directory: what was saved after that step stays, and stays the newest
 * until the next zero_save(). Where going back is meant to outlive the job, save at once.
 *
 * Groups are found by their names. Those that were added without one are found among the saved
 * groups without one (which are called "group<n>", n being their place) by their order. Each tensor
 * that trains has to be in the group that it was in.
 *
 * Every byte is checked before it counts. ZERO_NOT_FOUND: there is no such checkpoint;
 * ZERO_E_CORRUPT (the message names file, offset, tensor), ZERO_E_VERSION, ZERO_E_IO;
 * ZERO_E_INVALID: another model (missing and unexpected tensors and groups, shapes, optimizers, by
 * name; a tensor that has moved to another group), other blobs, another sum_group, seed or
 * reduction than was asked for, a finite value that would be an infinity in a working copy or
 * moment of another type than it was saved with (tensors of such types are read twice), another V,
 * or one that needs memory that was not planned (see zero_set_micro_batches()); ZERO_E_STATE:
 * inside a step, or a unit is gathered; ZERO_E_NOMEM, which it is as well where less is left than
 * the plan says that loading takes (config.memory_limit). All ranks return the same. What can be
 * found without reading all of it is found before anything is changed; damage of tensors' bytes may
 * be found later: then the error is fatal, and zero_resume() of a new context the way out.
 * ZERO_E_DIVERGED: ranks gave other arguments or see different checkpoints (the message says which
 * rank sees none); fatal.
 */
ZERO_API zero_result zero_load(zero_ctx *z, const char *path, const zero_load_options *options,
                               zero_load_result *result);

/**
 * Loads the newest good checkpoint in `directory`, in the order of saving. Damage is reported as a
 * warning (rank, file, offset, tensor) and the one before is taken. A manifest that cannot be read
 * when they are put in order is a warning, too: another one may pass for the newest. *Collective,
 * ordered*, between steps. ZERO_NOT_FOUND: there is none, nothing has changed. ZERO_E_CORRUPT:
 * there are some, and none is good; fatal if a value was changed. Otherwise as zero_load(). Blobs
 * are those of the one that is loaded, or stay as they are. So do, with options->partial, tensors
 * that it has not: all of a checkpoint is checked before a value changes, and read twice.
 *
 * A recovery point that is as new as the newest checkpoint, or newer, by its step, comes before it:
 * result->recovered is 1. Where its disk fails it is tried again, at once and after a second. If
 * that is in vain, or the point is damaged, that is a warning, and the newest checkpoint takes its
 * place for good: a job whose disk is gone goes on with nobody there. directory NULL: nothing else
 * will do; such a failure is ZERO_E_CORRUPT then, as it is where there is no checkpoint, fatal, and
 * the point stays for the next start. ZERO_NOT_FOUND: there is none, or this job has stepped
 * already. ZERO_E_CORRUPT: there is no checkpoint, and of a point not all ranks have their part;
 * nothing has changed. ZERO_E_INVALID: other blobs are attached than it has.
 * Options mean nothing to it.
 */
ZERO_API zero_result zero_resume(zero_ctx *z, const char *directory,
                                 const zero_load_options *options, zero_load_result *result);

#ifdef __cplusplus
}
#endif

#endif
