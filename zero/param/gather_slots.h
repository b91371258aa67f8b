/**
 * zero/param/gather_slots.h: slots of gathered units, the order of gathers, and gathers ahead of
 * their use.
 */
#ifndef ZERO_PARAM_GATHER_SLOTS_H
#define ZERO_PARAM_GATHER_SLOTS_H

#include "zero/core/context.h"

/** The unit's slot has current values or is about to have them. */
bool eng_slot_current(const zero_ctx *z, zero_unit unit);
/** The slot to use for a unit, its old content gone; *chosen is -1 if none but held ones are left,
 * or, for a prefetch, if what would go is needed sooner. */
zero_result eng_slot_choose(zero_ctx *z, zero_unit unit, bool prefetch, int *chosen);
/** Starts the gather of a unit's sharded buckets into a slot: where they are staged, what this
 * rank has of them comes from a file first. */
zero_result eng_slot_fill(zero_ctx *z, zero_unit unit, int slot);
/** Waits for what comes from a file, and starts the all-gather. Collective, ordered. */
zero_result eng_slot_post(zero_ctx *z, struct eng_gather_slot *slot);
/** Completes what is under way into a slot; one whose all-gather was not started is empty then. */
zero_result eng_slot_settle(zero_ctx *z, struct eng_gather_slot *slot);
/** An update begins that writes parameters to a file: takes slots for the units that will be
 * gathered first, in which it leaves this rank's new values, which need not be read then. */
zero_result eng_slots_keep(zero_ctx *z);
/** It has ended: what was left in them is as if it had been read. */
void eng_slots_kept(zero_ctx *z);
/** Completes what is under way into slots: from here on they read no peer's memory, and no file. */
zero_result eng_slots_settle(zero_ctx *z);

/** A micro-batch begins: what the last one of its kind recorded is replayed from now on. */
void eng_trace_begin(zero_ctx *z);
zero_result eng_trace_gathered(zero_ctx *z, zero_unit unit);
/** How many gathers until the unit's next one, SIZE_MAX if unknown or none. */
size_t eng_trace_distance(const zero_ctx *z, zero_unit unit);
void eng_trace_free(zero_ctx *z);

/** Starts gathers of the units that come next. */
zero_result eng_prefetch(zero_ctx *z);
/** eng_prefetch() in a call that is not about gathers: what it waits for is in the statistics. */
zero_result eng_prefetch_aside(zero_ctx *z);

#endif
