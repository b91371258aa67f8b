// A snapshot of state in memory of the host: the saver reads it where it is, and copies what is
// about to change. So its entries do nothing.

#include "zero/store/host_snapshot.h"

static size_t no_snapshot_bytes(const zero_ctx *z, const struct eng_tier_needs *needs)
{
    (void)z, (void)needs;
    return 0;
}

static zero_result no_snapshot(const zero_ctx *z, const struct eng_sources *sources,
                               struct eng_snapshot **snapshot, struct base_error *error)
{
    (void)z, (void)sources, (void)error;
    *snapshot = NULL;
    return ZERO_OK;
}

void eng_no_snapshot_leave(const zero_ctx *z, struct eng_snapshot *snapshot)
{
    (void)z, (void)snapshot;
}

zero_result eng_no_snapshot_room(const zero_ctx *z, struct eng_snapshot *snapshot, void *room,
                                 size_t bytes, struct base_error *error)
{
    (void)z, (void)snapshot, (void)room, (void)bytes, (void)error;
    return ZERO_OK;
}

static zero_result no_begin(zero_ctx *z, struct eng_snapshot *snapshot, struct base_error *error)
{
    (void)z, (void)snapshot, (void)error;
    return ZERO_OK;
}

zero_result eng_no_snapshot_open(const zero_ctx *z, struct eng_snapshot *snapshot,
                                 struct base_error *error)
{
    (void)z, (void)snapshot, (void)error;
    return ZERO_OK;
}

size_t eng_no_blocks_before(const zero_ctx *z, const struct eng_snapshot *snapshot, size_t tile)
{
    (void)z, (void)snapshot, (void)tile;
    return 0;
}

const struct eng_snapshot_ops eng_host_snapshot = {
    .size = sizeof(struct eng_snapshot_ops),
    .bytes = no_snapshot_bytes,
    .make = no_snapshot,
    .open = eng_no_snapshot_open,
    .free = eng_no_snapshot_leave,
    .take_room = eng_no_snapshot_room,
    .leave_room = eng_no_snapshot_leave,
    .begin = no_begin,
    .blocks_before = eng_no_blocks_before,
};
