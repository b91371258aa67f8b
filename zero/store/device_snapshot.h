/**
 * zero/store/device_snapshot.h: a snapshot of state that lives on a device. What the saver thread
 * has not fetched when the state is about to change is copied to a room of pinned memory first. The
 * change is work behind the copies, so only the saver thread waits for them.
 */
#ifndef ZERO_STORE_DEVICE_SNAPSHOT_H
#define ZERO_STORE_DEVICE_SNAPSHOT_H

#include "zero/core/store_table.h"

extern const struct eng_snapshot_ops eng_device_snapshot;

#endif
