/**
 * zero/diagnostics.h: what a job looks like from inside. Part of <zero/zero.h>, which includes it.
 *
 *     zero_plan_text, zero_plan_json  memory, files and settings, before the first step.
 *     zero_fingerprint                128 bits that tell whether two runs are the same run.
 *     zero_stats                      time and bytes so far (zero/statistics.h).
 *     zero_abort                      ends the job on all ranks.
 *
 * Two keys find errors of a program (zero_config): `paranoid` those of access to parameters and
 * gradients, `verify_micro` those of determinism. docs/guides/debugging.md shows both.
 */
#ifndef ZERO_DIAGNOSTICS_H
#define ZERO_DIAGNOSTICS_H

#include <zero/statistics.h>
#include <zero/zero.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * The plan as text, "" before commit. *Local.*
 *
 * It has the bytes of this rank by purpose; memory that the ranks of a host share counts with this
 * rank's part. It says how ranks come by parameters and gradients, and why, and has every effective
 * configuration value with its source. The text is valid until zero_close(),
 * zero_set_micro_batches(), or a zero_eval_begin() that allocates.
 */
ZERO_API const char *zero_plan_text(const zero_ctx *z);

/**
 * The plan as one JSON object, "" before commit. *Local.* zero(7) describes its schema.
 *
 * It has the exact bytes of every rank by place (host, GPU, NVMe) and purpose, and what the host
 * has. It has the most that zero_commit(), a step, zero_export() and zero_import() need at once. It
 * has choices, slots and the configuration. The text is valid as long as that of zero_plan_text().
 */
ZERO_API const char *zero_plan_json(const zero_ctx *z);

/**
 * Computes 128 bits of all that decides the future. *Collective*, between steps.
 *
 * Two runs of one program and configuration are the same run if their fingerprints are equal. These
 * are in it:
 *  - by name, every tensor's master weights (the working copy where there are none) and moments;
 *  - step, updates, V, sum_group, seed, and the last hyper-parameters;
 *  - each group's optimizer and decay, and which groups are frozen;
 *  - the loss scale and its clean steps, if there is one;
 *  - the bytes of every blob that is attached as ZERO_GLOBAL.
 * comm_dtype, reduction and each grad_dtype are not in it.
 *
 * It is the same at every world size, stage, transport, way of gathering and prefetch depth. With
 * reduction=local it is the same at one world size, and where GPUs sum with one device_transport.
 * digest receives 16 bytes, printed in order as hex.
 *
 * ZERO_E_STATE: a step or an evaluation is under way.
 */
ZERO_API zero_result zero_fingerprint(zero_ctx *z, uint8_t digest[16]);

/** Makes every rank's current and next call return ZERO_E_ABORTED with `reason`. *Local*, any
 * thread. A second call changes nothing. */
ZERO_API void zero_abort(zero_ctx *z, const char *reason);

#ifdef __cplusplus
}
#endif

#endif
