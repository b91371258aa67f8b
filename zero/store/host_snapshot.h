/**
 * zero/store/host_snapshot.h: the snapshot of state in memory of the host, and entries that do
 * nothing, for the tables of other stores.
 */
#ifndef ZERO_STORE_HOST_SNAPSHOT_H
#define ZERO_STORE_HOST_SNAPSHOT_H

#include "zero/core/store_table.h"

extern const struct eng_snapshot_ops eng_host_snapshot;

zero_result eng_no_snapshot_open(const zero_ctx *z, struct eng_snapshot *snapshot,
                                 struct base_error *error);
zero_result eng_no_snapshot_room(const zero_ctx *z, struct eng_snapshot *snapshot, void *room,
                                 size_t bytes, struct base_error *error);
void eng_no_snapshot_leave(const zero_ctx *z, struct eng_snapshot *snapshot);
size_t eng_no_blocks_before(const zero_ctx *z, const struct eng_snapshot *snapshot, size_t tile);

#endif
