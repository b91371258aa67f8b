/**
 * zero/core/planner.h: whether memory suffices for what a call needs beside what is there.
 *
 * A call that needs more memory after zero_commit() asks before it touches any; zero_commit() asks
 * before it decides who updates. The part of the engine that counts what all ranks need sets
 * z->memory.planner in zero_open().
 */
#ifndef ZERO_CORE_PLANNER_H
#define ZERO_CORE_PLANNER_H

#include "zero/core/context.h"

struct eng_planner {
    /** Makes the plan again, with the tables that are needed now, unless `error` has a failure. On
     * any rank's failure all of them keep the plan they have: see eng_agree(). Collective. */
    zero_result (*renew)(zero_ctx *z, const char *call, struct base_error *error);
    /** Before eng_agree(): ZERO_E_NOMEM if what is needed by now and not allocated yet does not
     * fit, unless `error` has a failure already. The plan stays. *Local.* */
    zero_result (*check)(const zero_ctx *z, struct base_error *error);
    /** ZERO_E_NOMEM if what a checkpoint takes while it is loaded does not fit. *Local.* */
    zero_result (*check_load)(const zero_ctx *z, struct base_error *error);
    /** Whether this rank's GPU has what the ranks that share it need there if the device updates
     * what is offloaded; in a plan that is only made, what one rank needs. Collective.
     * ZERO_E_DEVICE; ZERO_E_NOMEM, of the host's memory. Failures of others are fatal, and not in
     * `error`. */
    zero_result (*device_fit)(zero_ctx *z, struct eng_gpu_fit *fit, struct base_error *error);
};

/** Memory that public calls take while they run, beside what stays. Such calls set z->memory.calls
 * in zero_open(). */
struct eng_call_bytes {
    /** zero_commit(), to compare what ranks have registered. */
    size_t (*commit)(const zero_ctx *z);
    /** zero_export() on a rank, and zero_import() on every rank. */
    size_t (*exporting)(const zero_ctx *z, int rank);
    size_t (*importing)(const zero_ctx *z);
};

#endif
