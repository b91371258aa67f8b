/**
 * zero/core/link_table.h: how buckets move between ranks.
 *
 * One table of operations a kind of link, chosen with the executor (zero/core/exec_table.h):
 *
 *     name   buckets move                                  executors
 *     host   by the communicator, between hosts' memory    host, cuda_host
 *     gpu    between GPUs, in the order of their streams   cuda
 *
 * Executors, which stand below links, call them by this table.
 */
#ifndef ZERO_CORE_LINK_TABLE_H
#define ZERO_CORE_LINK_TABLE_H

#include "zero/core/context.h"

struct eng_link {
    size_t size; /**< of this struct */
    const char *name;

    /* ---- parameters */

    /** Starts the all-gather of a unit's sharded buckets into a gather slot. The slot stays
     * .in_flight where the host has to wait for it. Collective, ordered. */
    zero_result (*gather)(zero_ctx *z, zero_unit unit, int slot);
    /** Sends a bucket's new values, whose version is set, to all ranks that keep it whole, or says
     * that they are there. Collective, ordered. */
    zero_result (*publish)(zero_ctx *z, size_t bucket);

    /* ---- sums */

    /** Starts to bring what all ranks contribute to a unit's sums to their owners, who add it up,
     * look at it, and update in a fused step. A rank contributes the gradient in the unit's
     * .sum_slot; with reduction=local that is its own sum. Collective, ordered. */
    zero_result (*reduce)(zero_ctx *z, zero_unit unit);
    /** It is the communicator that adds: of a host's contributions it can send one sum. */
    bool adds_by_comm;
    /** Stage 0: brings the other ranks' sums, which are complete, to a rank that can't read them
     * where they are. Collective, ordered. */
    zero_result (*fetch_sums)(zero_ctx *z);

    /* ---- between GPUs: NULL on the host. Each fills *error. */

    /** Meets the other ranks' GPUs. */
    zero_result (*open)(zero_ctx *z, struct base_error *error);
    /** False: what was under way is left behind, and so must be memory that is registered. */
    bool (*close)(zero_ctx *z);
    /** What is sent from now on begins after the newest step's decision. */
    zero_result (*after_decision)(zero_ctx *z, struct base_error *error);
    /** All ranks have what each knows of a step. Collective, ordered. */
    zero_result (*exchange_stats)(zero_ctx *z, struct base_error *error);
    /** Stage 0: all ranks have all sums. Collective, ordered. */
    zero_result (*share_sums)(zero_ctx *z, struct base_error *error);
    /** The stream of the call waits for a unit's values (-1: for all that persists). */
    zero_result (*await_values)(zero_ctx *z, zero_unit unit, struct base_error *error);
    /** What the engine's own stream is given from now on begins after all that is under way. */
    zero_result (*await_all)(const zero_ctx *z, struct base_error *error);
};

#endif
