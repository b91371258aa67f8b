/**
 * zero/exec/gpu.h: what plans, stores and links call of a device, beside the table of
 * zero/core/exec_table.h. Only if z->device: all but open, memory, what counts bytes, and what says
 * so.
 */
#ifndef ZERO_EXEC_GPU_H
#define ZERO_EXEC_GPU_H

#include "base/device.h"
#include "offload/pages.h"
#include "zero/model/layout.h"
#include "zero/model/placement.h"
#include "zero/plan/plan.h"
#include "zero/zero.h"

/* ---- device_program.c */

/** Finds the device, if the program computes on one. ZERO_E_UNSUPPORTED: it is not there. */
zero_result eng_device_open(zero_ctx *z, struct base_error *error);
/** What memory it has for eng_exec_needs(), also where only a plan is made. ZERO_E_UNSUPPORTED: it
 * is not there; ZERO_E_DEVICE. */
zero_result eng_exec_memory(const zero_ctx *z, struct base_device_memory *memory,
                            struct base_error *error);

/** Whether this unit's gradient is on its way to the host. Also without a device. */
bool eng_device_waits(const zero_ctx *z, zero_unit unit);

/* ---- device_needs.c */

/** Adds what a rank with this placement takes beside it to compute: on a GPU, to which rows of the
 * host move where state is there, and of memory of the host. ZERO_E_NOMEM. */
zero_result eng_exec_needs(const zero_ctx *z, const struct eng_placement *placement,
                           struct eng_need *need, struct base_error *error);
/* ---- device_tiles.c: with state that passes through the device (config.streamed) */

/** Memory of the host that tiles of files come from and go to: until the device is closed. */
zero_result eng_device_tiles_pin(const zero_ctx *z, const struct off_pages *pages,
                                 struct base_error *error);
/** Queues the update of a tile, which is in memory there until it has left the device again. */
zero_result eng_device_tiles_pass(const zero_ctx *z, size_t tile, unsigned char *memory,
                                  struct base_error *error);
/** Whether it has (ZERO_OK), or not yet (ZERO_AGAIN, unless it `waits`). */
zero_result eng_device_tiles_left(const zero_ctx *z, size_t tile, bool waits,
                                  struct base_error *error);
/** All tiles of an update were queued. */
zero_result eng_device_tiles_end(const zero_ctx *z, struct base_error *error);
/** Waits until no tile is read or written. */
void eng_device_tiles_stop(const zero_ctx *z);

#endif
