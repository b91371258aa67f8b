/**
 * zero/exec/gpu.h: working copies and gradients on a device, where the program computes; what
 * of the engine is on the host calls these. Only if z->device: all but open, close, memory, what
 * counts bytes, and what says so.
 */
#ifndef ZERO_EXEC_GPU_H
#define ZERO_EXEC_GPU_H

#include "base/device.h"
#include "base/hash.h"
#include "offload/pages.h"
#include "zero/model/layout.h"
#include "zero/model/placement.h"
#include "zero/zero.h"

/* ---- device_program.c */

/** Finds the device, if the program computes on one. ZERO_E_UNSUPPORTED: it is not there. */
zero_result eng_device_open(zero_ctx *z, struct base_error *error);
/** What memory it has, also where only a plan is made. ZERO_E_UNSUPPORTED: it is not there;
 * ZERO_E_DEVICE. */
zero_result eng_device_memory(const zero_ctx *z, struct base_device_memory *memory,
                              struct base_error *error);
/** Waits for its work, and frees everything; before memory of the host is freed. */
void eng_device_close(zero_ctx *z);
/** Memory of the device, when that of the host is there. */
zero_result eng_device_make(zero_ctx *z, struct base_error *error);
/** Bytes of its tables in memory of the host; and of working copies on the device. */
size_t eng_device_tables(const zero_ctx *z, const struct eng_placement *placement);
size_t eng_device_params(const struct eng_layout *layout);

/** A call begins and ends; in between its stream is the one given, at first the engine's own. */
zero_result eng_device_enter(zero_ctx *z);
void eng_device_leave(zero_ctx *z);
void eng_device_take_stream(zero_ctx *z, zero_stream stream);

/** A gathered unit's working copy is on the device for what is queued on the stream next. */
zero_result eng_device_show(zero_ctx *z, zero_unit unit);
/** The same of all that persists; what else is current begins to be copied there. */
zero_result eng_device_renew(zero_ctx *z);
/** With state of the host: begins to copy a section's values of the fused step, which
 * are all here, unless they are gathered first. */
zero_result eng_device_renew_early(zero_ctx *z, size_t section);
/** With state on the device: waits for what the stream of the call has been given. */
zero_result eng_device_join(zero_ctx *z);
/** What was queued on the stream so far is all that reads it. */
zero_result eng_device_released(zero_ctx *z, zero_unit unit);
/** Waits until no working copy of the host is read any more; none in this gather slot. */
zero_result eng_device_settle(zero_ctx *z);
zero_result eng_device_settle_slot(zero_ctx *z, int slot);
const void *eng_device_param(const zero_ctx *z, const struct eng_slice *slice);

/** Gradient slots, laid out as those of the host. */
unsigned char *eng_device_grads(const zero_ctx *z);
/** Makes the buffer of the gradient that is open the stream's: zeros, unless it `keeps` what it
 * has, the sum so far. */
zero_result eng_device_claim(zero_ctx *z, zero_unit unit, bool keeps);
/** Begins to copy it to the host; with reduction=local the sum that it was the last one of. */
zero_result eng_device_take(zero_ctx *z, zero_unit unit);
/** reduction=local: leaves it there, in the sum so far. */
zero_result eng_device_keep(zero_ctx *z, zero_unit unit);
/** Makes `next` the unit whose gradient is on its way to the host (-1: none), and returns the one
 * before. */
zero_unit eng_device_waiting(zero_ctx *z, zero_unit next);
/** Whether it is this unit's. Also without a device. */
bool eng_device_waits(const zero_ctx *z, zero_unit unit);
/** Waits until a unit's gradient is there. */
zero_result eng_device_await(zero_ctx *z, zero_unit unit);

/** Begins to copy the value of a metric of the micro-batch under way. */
zero_result eng_device_value(zero_ctx *z, int metric, const float *value);
/** Enters the values that were begun, when they are there. */
zero_result eng_device_values(zero_ctx *z);

/* ---- probe.c */

/** Finds the bytes a second that are copied each way between the device and pinned memory of the
 * host, both ways at once, by all ranks at the same time; before there is anything else of the
 * device's. *Collective.* ZERO_E_DEVICE, ZERO_E_NOMEM; failures of the communicator are not in
 * `error`. */
zero_result eng_device_probe(const zero_ctx *z, double *rate, struct base_error *error);
/** Bytes on the device that takes, and gives back. */
size_t eng_device_probe_bytes(void);

/* ---- device_state.c: state on the device (eng_state_on_device()) */

/** Whether state can be there, before any is: it can run the kernels; and, for several ranks, what
 * device_transport needs is here. ZERO_E_UNSUPPORTED; ZERO_E_NOMEM, ZERO_E_DEVICE. */
zero_result eng_device_can_update(const zero_ctx *z, struct base_error *error);
zero_result eng_device_can_move(const zero_ctx *z, struct base_error *error);

/** Bytes on the device beside the placement's, and of memory of the host, where state is there. */
size_t eng_device_state_tables(const zero_ctx *z, const struct eng_placement *placement);
size_t eng_device_state_host(const zero_ctx *z, const struct eng_placement *placement);
/** Bytes of the host that are in use while memory there is made, and no longer. */
size_t eng_device_once(const zero_ctx *z, const struct eng_placement *placement);
/** Bytes of memory of the host by which the devices of several ranks meet and move bytes. */
size_t eng_device_transport(const zero_ctx *z, const struct eng_placement *placement);
/** Bytes there for what other ranks send of their gradients. */
size_t eng_device_received(const zero_ctx *z, const struct eng_placement *placement);
/** Memory for the metrics of as many micro-batches as there are now, to be taken or dropped.
 * ZERO_E_NOMEM; *memory NULL then, and without state there. */
zero_result eng_device_metrics_make(const zero_ctx *z, unsigned char **memory,
                                    struct base_error *error);
/** It takes the place of what there was. Nothing of a step may be under way. */
void eng_device_metrics_take(zero_ctx *z, unsigned char *memory);
/** Accepts NULL. */
void eng_device_metrics_drop(const zero_ctx *z, unsigned char *memory);
/** What trains has changed. Also without a device. */
void eng_device_stale(zero_ctx *z);

/* ---- device_digest.c: with state on the device */

/** The sum of each tensor, of what this rank owns, behind everything that is queued so far; of
 * state that does not pass through the device. */
zero_result eng_device_digest(const zero_ctx *z, struct base_hash128 *sums,
                              struct base_error *error);

/** config.verify_micro: what eng_device_reduce() has found of the step's gradients that are
 * compared, two words a slice: of all of the first micro-batch, then of the one computed again. */
zero_result eng_device_hashes(zero_ctx *z, uint64_t *hashes);

/* ---- tiles.c: with state that passes through the device (config.streamed) */

/** What that takes: all zero without. */
struct eng_device_tiles_needs {
    size_t device; /**< bytes on the device, */
    size_t tables; /**< and of memory of the host */
};
/** Of the rank with this placement. ZERO_E_NOMEM. */
zero_result eng_device_tiles_need(const zero_ctx *z, const struct eng_placement *placement,
                                  struct eng_device_tiles_needs *needs, struct base_error *error);

/** Memory of the host that tiles of files come from and go to: until the device is closed. */
zero_result eng_device_tiles_pin(const zero_ctx *z, const struct off_pages *pages,
                                 struct base_error *error);
/** Queues the update of a tile, which is in memory until it has left the device again. */
zero_result eng_device_tiles_pass(const zero_ctx *z, size_t tile, struct base_error *error);
/** Whether it has (ZERO_OK), or not yet (ZERO_AGAIN, unless it `waits`). */
zero_result eng_device_tiles_left(const zero_ctx *z, size_t tile, bool waits,
                                  struct base_error *error);
/** All tiles of an update were queued. */
zero_result eng_device_tiles_end(const zero_ctx *z, struct base_error *error);
/** Waits until no tile is read or written. */
void eng_device_tiles_stop(const zero_ctx *z);

/* ---- device_reduce.c: with state on the device */

/** Makes the buffer of the gradient that is open the stream's; zeros, unless what is in the unit's
 * slices stays as it is, or is overwritten. `again`: the buffer had this unit's before, and no
 * doubt is cast on the rest. */
zero_result eng_device_opened(zero_ctx *z, zero_unit unit, bool stays, bool again);
/** Adds the gradient to its sums; reduction=local: to those of the rank's earlier micro-batches,
 * which travel in the last one. One that is computed again is only hashed. */
zero_result eng_device_reduce(zero_ctx *z, zero_unit unit);

/* ---- device_peers.c: with state on the devices of several ranks */

/** Sends a section's new values on their way to whoever keeps it whole. Collective, ordered. */
zero_result eng_device_publish(zero_ctx *z, size_t section);
/** All-gathers a unit's sharded sections into a slot. Collective, ordered. */
zero_result eng_device_gather(zero_ctx *z, zero_unit unit, int slot);

/* ---- step.c: with state on the device */

/** A step begins. */
zero_result eng_device_begin(zero_ctx *z);
/** It is fused: what may be is updated with each gradient from now on. */
zero_result eng_device_fuse(zero_ctx *z);
/** Queues its verdict and the rest of its update; with state in files the verdict only. */
zero_result eng_device_step(zero_ctx *z, const zero_step_args *args);
/** Takes in what is known of the verdicts under way, and waits until at most `open` of them are
 * left. Failures that follow from them are fatal. */
zero_result eng_device_take_in(zero_ctx *z, int open);
/** No verdict is under way: waits for the updates, and fails if what one has stored on some rank is
 * not finite. Collective, ordered. ZERO_E_NONFINITE, fatal. */
zero_result eng_device_prove(zero_ctx *z);
/** How many verdicts are under way. */
int eng_device_open_steps(const zero_ctx *z);
/** Waits for the gradients and metrics of the step under way, and makes what is known of them
 * z->gradients.squares, z->gradients.bad and so on, for a verdict of the host's. */
zero_result eng_device_learn(zero_ctx *z);
/** The step ends without an update: what it has left on the device is gone. */
zero_result eng_device_skip(zero_ctx *z);
/** Enters the value of a metric of the micro-batch under way. */
void eng_device_metric_set(const zero_ctx *z, int metric, double value);

#endif
