/**
 * zero/exec/executors.h: the executors (zero/core/exec_table.h), and what they share.
 */
#ifndef ZERO_EXEC_EXECUTORS_H
#define ZERO_EXEC_EXECUTORS_H

#include "zero/core/exec_table.h"

#include <assert.h>

extern const struct eng_exec eng_exec_host, eng_exec_cuda_host, eng_exec_cuda;

/** Finds the device that the configuration names, and chooses the executor. ZERO_E_UNSUPPORTED: it
 * is not there; ZERO_E_NOMEM. */
zero_result eng_exec_open(zero_ctx *z, struct base_error *error);
/** Chooses it again, when offload_update=auto is decided. */
void eng_exec_choose(zero_ctx *z);
/** Decides that, where it is left to zero_commit(), with a layout that is made. Collective.
 * ZERO_E_NOMEM, ZERO_E_DEVICE; failures of others are fatal, and not in `error`. */
zero_result eng_updater_decide(zero_ctx *z, struct base_error *error);
/** Whether the executor can do what the model asks for. ZERO_E_INVALID, ZERO_E_UNSUPPORTED. */
zero_result eng_exec_check(const struct eng_config *config, const struct eng_model *model,
                           struct base_error *error);
/** The largest norm of a gradient, as the optimizers have it, that none of them overflows with by
 * itself, with z->stepping.hyper. */
double eng_norm_most(const zero_ctx *z);
/** Makes a unit's gradient what travels, on a stream: zeros of frozen tensors that are in a bucket
 * with others, and each bucket, padding included, in its comm_dtype. */
zero_result eng_grad_prepare(const zero_ctx *z, zero_unit unit, unsigned char *gradient,
                             void *stream, struct base_error *error);
/** Makes z->update.scalars of z->stepping.hyper, for update number `number`. */
void eng_exec_prepare(zero_ctx *z, uint64_t number, double gradient_scale);

/* ---- entries that do nothing, for executors that need none */

zero_result eng_no_work(zero_ctx *z);
void eng_no_notice(zero_ctx *z);
zero_result eng_no_make(zero_ctx *z, struct base_error *error);
zero_result eng_no_unit_work(zero_ctx *z, zero_unit unit);
zero_result eng_no_slot_work(zero_ctx *z, int slot);
zero_result eng_no_hashes(zero_ctx *z, uint64_t *hashes);
void eng_no_metric(const zero_ctx *z, int metric, double value);
zero_result eng_no_metrics(const zero_ctx *z, unsigned char **memory, struct base_error *error);
void eng_no_metrics_take(zero_ctx *z, unsigned char *memory);
void eng_no_metrics_drop(const zero_ctx *z, unsigned char *memory);
zero_result eng_no_take_in(zero_ctx *z, int open);
void eng_no_look(const zero_ctx *z, bool waits);
bool eng_no_digest(const zero_ctx *z, struct base_hash128 *sums, struct base_error *error);

/* ---- entries that host and cuda share, for gradients are reduced where the program writes them */

static inline unsigned char *eng_grads_here(const zero_ctx *z)
{
    return z->memory.grads;
}
zero_result eng_grad_close_here(zero_ctx *z, zero_unit unit, zero_unit *ready);
zero_result eng_grad_flush_none(zero_ctx *z, zero_unit *ready);

/* ---- entries that host and cuda_host share, for state is the host's */

zero_result eng_host_grad_hash(zero_ctx *z, zero_unit unit, uint64_t *hashes);
zero_result eng_host_clear(const zero_ctx *z, void *at, size_t bytes, void *stream,
                           struct base_error *error);
zero_result eng_host_convert(const zero_ctx *z, const struct base_device_conversion *work,
                             void *stream, struct base_error *error);

/** Makes the scalars of the update that begins in backward. */
zero_result eng_host_fuse(zero_ctx *z);
/** Decides a step at once, by what ranks have exchanged. */
zero_result eng_host_decide(zero_ctx *z, const zero_step_args *args, struct eng_decision *decision);
zero_result eng_host_update(zero_ctx *z, enum eng_update_kind *kind);
zero_result eng_host_step_end(zero_ctx *z);

/** The unit's gradient has left its slot, which may be used again. */
static inline void eng_grad_slot_free(zero_ctx *z, zero_unit unit)
{
    struct eng_grad_slot *slot = &z->gradients.slots[z->units[unit].grad_slot];
    assert(slot->open);
    slot->open = false;
    slot->handed = z->units[unit].handed = ++z->gradients.handed;
}

#endif
