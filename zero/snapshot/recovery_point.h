/**
 * zero/snapshot/recovery_point.h: what a recovery point has beside tiles, and how a job goes on
 * from one.
 */
#ifndef ZERO_SNAPSHOT_RECOVERY_POINT_H
#define ZERO_SNAPSHOT_RECOVERY_POINT_H

#include "zero/core/context.h"

/** What a record of the store has beside tiles: z->saving.record. */
extern const struct eng_record_content eng_point_content;

/** Whether a blob fits into recovery points. ZERO_E_LIMIT. */
zero_result eng_point_attach(zero_ctx *z, const char *name, uint64_t bytes);

/** Comes back at the recovery point of the job before, which there is. Collective. *changed: values
 * are not what they were. ZERO_E_INVALID: other blobs are attached; ZERO_E_CORRUPT, ZERO_E_IO:
 * another state may be tried. */
zero_result eng_point_recover(zero_ctx *z, const char *call, bool *changed);

/** After that: the context goes on with the run that the point says it is of; false: the point says
 * none, as one that an earlier library has left. *Local.* */
bool eng_point_take_run(zero_ctx *z);

#endif
