/**
 * zero/store/host_visit.h: state that lives on a device, as the host sees it: part by part, each in
 * a buffer of pinned memory while it is visited. If state lives elsewhere, the first four functions
 * do nothing.
 */
#ifndef ZERO_STORE_HOST_VISIT_H
#define ZERO_STORE_HOST_VISIT_H

#include "zero/core/store_table.h"
#include "zero/model/placement.h"

/** Bytes of the buffers that a rank with this placement has. */
size_t eng_bounce_bytes(const zero_ctx *z, const struct eng_placement *placement);
/** Gets them. ZERO_E_NOMEM, ZERO_E_DEVICE; eng_bounce_free() follows in any case. */
zero_result eng_bounce_make(zero_ctx *z, struct base_error *error);
void eng_bounce_free(zero_ctx *z);

/** Where what lies at an address of the device is in memory: of what is being visited in its
 * buffer, else there. */
void *eng_bounce_find(const zero_ctx *z, void *there);

/** What the entry `visit` of such a store does; behind all that was queued before. When it returns
 * nothing is under way. Errors also as of base/device.h. */
zero_result eng_bounce_visit(zero_ctx *z, const struct eng_part *part, enum eng_access access,
                             eng_part_fn visit, void *user, struct base_error *error);

#endif
