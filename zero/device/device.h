/**
 * zero/device/device.h: working copies and gradients on a device, where the program computes; what
 * of the engine is on the host calls these. All but the first five only if z->device.
 */
#ifndef ZERO_DEVICE_DEVICE_H
#define ZERO_DEVICE_DEVICE_H

#include "zero/layout.h"
#include "zero/placement.h"
#include "zero/zero.h"

/* ---- program.c */

/** Finds the device, if the program computes on one. ZERO_E_UNSUPPORTED: it is not there. */
zero_result eng_device_open(zero_ctx *z, struct base_error *error);
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
/** The same of all that persists. */
zero_result eng_device_show_persistent(zero_ctx *z);
/** What was queued on the stream so far is all that reads it. */
zero_result eng_device_released(zero_ctx *z, zero_unit unit);
/** Waits until no working copy of the host is read any more; none in this gather slot. */
zero_result eng_device_settle(zero_ctx *z);
zero_result eng_device_settle_slot(zero_ctx *z, int slot);
const void *eng_device_param(const zero_ctx *z, const struct eng_slice *slice);

/** Gradient slots, laid out as those of the host. */
unsigned char *eng_device_grads(const zero_ctx *z);
/** Zeroes the gradient that is open. */
zero_result eng_device_clear(zero_ctx *z, zero_unit unit);
/** Makes it the sum so far, to which the host may have added. */
zero_result eng_device_put_back(zero_ctx *z, zero_unit unit);
/** Begins to copy it to the host. */
zero_result eng_device_take(zero_ctx *z, zero_unit unit);
/** Makes `next` the unit whose gradient is on its way to the host (-1: none), and returns the one
 * before. */
zero_unit eng_device_waiting(zero_ctx *z, zero_unit next);
/** Waits until a unit's gradient is there. */
zero_result eng_device_await(zero_ctx *z, zero_unit unit);

/** Begins to copy the value of a metric of the micro-batch under way. */
zero_result eng_device_value(zero_ctx *z, int metric, const float *value);
/** Enters the values that were begun, when they are there. */
zero_result eng_device_values(zero_ctx *z);

#endif
