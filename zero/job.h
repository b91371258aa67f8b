/**
 * zero/job.h: a job that is asked to stop before its end, or starts again after a failure. Part of
 * <zero/zero.h>, which includes it.
 *
 * Batch systems and clouds take machines back: they send SIGTERM and wait a while. zero-run tells
 * the ranks of it through the library, and all of them learn it after the same step:
 *
 *     for (; step < steps && !zero_stop_requested(z); step++)
 *         run_step(z);
 *     save what is to go on later, and exit with 0
 */
#ifndef ZERO_JOB_H
#define ZERO_JOB_H

#include <zero/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Whether the job is to stop: 1 from the end of the step on in which some rank knew of a request,
 * after the same zero_step() or zero_skip_step() on every rank and never before; then for ever. 0
 * before, and for NULL. *Local*, any thread.
 *
 * Requests come from zero-run, when it gets SIGTERM or its first SIGINT, or --timeout has passed,
 * and from zero_request_stop(). zero-run asks only programs that have called this at least once:
 * until a rank has, the signal goes to the ranks at once. It goes to them, too, if they have not
 * ended after --grace. Where ranks have been told and all exit with 0, zero-run says after which
 * step they stopped and exits with 75.
 *
 * Each context agrees by its own steps: a program that has several asks one of them.
 */
ZERO_API int32_t zero_stop_requested(zero_ctx *z);

/**
 * Asks all ranks to stop, as zero-run does: for programs that learn by themselves that their time
 * is up. On any rank, or on several; known to all after the step under way, or the next one if this
 * rank's has come to its end already. Cannot be taken back. Does nothing for NULL. *Local*, any
 * thread, and in a signal handler too (async-signal-safe), as long as the context is open.
 */
ZERO_API void zero_request_stop(zero_ctx *z);

/**
 * How often zero-run has started the job again before this start (ZERO_RESTARTS), with
 * --max-restarts or -n MIN:MAX; 0 in a first start, without zero-run, and for NULL. *Local.*
 *
 * zero-run starts all ranks again when one has failed, by a signal or an exit code that leaves
 * hope: a program whose next start would end in the same way exits with 64 (its command line is
 * wrong) or 78 (its configuration); 2, 126 and 127, by which shells and others say such things,
 * count too.
 */
ZERO_API int32_t zero_restarts(const zero_ctx *z);

#ifdef __cplusplus
}
#endif

#endif
