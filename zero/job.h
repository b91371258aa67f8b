/**
 * zero/job.h: a job that is asked to stop before its end, or starts again after a failure. Part of
 * <zero/zero.h>, which includes it.
 *
 * Batch systems and clouds take machines back: they send SIGTERM and wait a while. Some send it to
 * the launcher, some to one rank, some to every process of the job. The library takes it, and all
 * ranks learn of it after the same step:
 *
 *     zero_stop_on_signals(NULL);                     first of all
 *     zero_open, zero_commit, zero_resume ...
 *     for (; step < steps && !zero_stop_requested(z); step++)
 *         run_step(z);
 *     zero_save, if it has stopped before the end; zero_save_wait, zero_close
 *     return step < steps ? ZERO_EXIT_STOPPED : 0;
 *
 * Ranks may still be missing 2 s after such a signal. Then zero_open() fails with ZERO_E_ABORTED on
 * the others, and they exit with ZERO_EXIT_STOPPED, too.
 */
#ifndef ZERO_JOB_H
#define ZERO_JOB_H

#include <zero/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The exit status of a program that was asked to stop and has more to do: start it again. zero-run
 * exits with it, too. */
#define ZERO_EXIT_STOPPED 75

/**
 * Says that this program listens. *Local*, any thread; each rank says it for itself.
 *
 * From now on the first of these signals asks the job to stop, on whichever rank it comes, with
 * zero-run and without:
 *  - SIGTERM and SIGINT;
 *  - those that the environment variable ZERO_STOP_SIGNAL lists;
 *  - those that `signals` lists, such as "USR1,HUP" (of ALRM, HUP, INT, PWR, QUIT, TERM, USR1,
 *    USR2, XCPU; NULL: none more).
 *
 * Call it before zero_open(): then a signal counts that comes while ranks meet, commit or resume,
 * and they stop after their first step. If ranks are missing, zero_open() gives up 2 s after the
 * signal. Without this call a rank listens from its first zero_stop_requested() on.
 *
 * The library takes a signal only where it has its ordinary effect (SIG_DFL). A signal that is
 * ignored stays ignored, as with nohup(1). A signal for which the program has a handler stays the
 * program's, and that handler may call zero_request_stop().
 *
 * A second signal has its ordinary effect, which is to end the process. It is another one of them,
 * or the same one more than half a second after the first (at once, if it comes from a terminal's
 * keyboard). SIGTERM from zero-run after --grace has that effect, and so has any signal to a child
 * that the process has forked.
 *
 * zero_close() of the process's last context gives the signals back, unless the program has taken
 * them since. If the job was asked to stop it keeps them, for a signal that comes while the program
 * ends may belong to that request.
 *
 * Nothing has changed after an error, and zero_last_error(NULL) has the message.
 * ZERO_E_INVALID: `signals` or the variable has something else.
 * ZERO_E_STATE: the program has a handler for one of `signals`.
 */
ZERO_API zero_result zero_stop_on_signals(const char *signals);

/**
 * 1 if the job is to stop, else 0. *Local*, any thread. It stays 1 for ever, and is 0 for NULL.
 *
 * It becomes 1 when all ranks have learned that some rank knows of a request. They learn it at one
 * place, and never in between: at the end of zero_step() or zero_skip_step(). In evaluations of a
 * program that listens they learn it in zero_eval_begin(), zero_eval_end(), and every
 * zero_micro_begin() between them but the first.
 *
 * Requests are signals (zero_stop_on_signals()), and calls of zero_request_stop(). zero-run sends
 * one when it gets such a signal, or --timeout has passed. It asks only programs that listen: until
 * a rank does, the signal goes to the ranks at once. SIGTERM goes to them, too, if they have not
 * ended after --grace. If ranks have been told and all exit with ZERO_EXIT_STOPPED or 0, zero-run
 * says after which step they stopped and exits with 75.
 *
 * Each context agrees by its own steps: a program that has several asks one of them.
 */
ZERO_API int32_t zero_stop_requested(zero_ctx *z);

/**
 * Asks all ranks to stop, as zero-run does. *Local*, any thread, and in a signal handler, too
 * (async-signal-safe), as long as the context is open.
 *
 * It is for programs that learn by themselves that their time is up. One rank may call it, or
 * several. All ranks know after the step under way, or after the next one if this rank's has come
 * to its end already; in an evaluation sooner (zero_stop_requested()). A request cannot be taken
 * back. For NULL the call does nothing.
 */
ZERO_API void zero_request_stop(zero_ctx *z);

/**
 * How often the job has been started again before this start. *Local.* It is 0 in a first start,
 * and for NULL.
 *
 * zero-run counts its own restarts (ZERO_RESTARTS), and adds those of what has started it. Without
 * zero-run the latter are the number. They are torchrun's TORCHELASTIC_RESTART_COUNT, Slurm's
 * SLURM_RESTART_COUNT, JOBSET_RESTART_ATTEMPT, and AWS_BATCH_JOB_ATTEMPT less one. An outer
 * launcher's restart begins the inner one's count again, so there may have been more. torchrun
 * counts on each host by itself: ranks of several hosts may see different numbers.
 *
 * With --max-restarts or -n MIN:MAX zero-run starts all ranks again when one has failed by a
 * signal, or by an exit code that leaves hope. A program whose next start would end in the same way
 * exits with 64 (its command line is wrong) or 78 (its configuration). 2, 126 and 127, by which
 * shells and others say such things, count, too.
 */
ZERO_API int32_t zero_restarts(const zero_ctx *z);

#ifdef __cplusplus
}
#endif

#endif
