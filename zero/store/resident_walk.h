/**
 * zero/store/resident_walk.h: a walk through state that is not in tiles, slice by slice.
 */
#ifndef ZERO_STORE_RESIDENT_WALK_H
#define ZERO_STORE_RESIDENT_WALK_H

#include "zero/core/store_table.h"

/** The entry `visit` of a store, and what it is called with. */
struct eng_visit {
    zero_result (*part)(zero_ctx *z, const struct eng_part *part, enum eng_access access,
                        eng_part_fn visit, void *user, struct base_error *error);
    enum eng_access access;
    eng_part_fn visit;
    void *user;
};

/** Visits what this rank's state covers of each slice that trains, or is frozen. */
zero_result eng_walk_resident(zero_ctx *z, bool frozen, const struct eng_visit *with,
                              struct base_error *error);

#endif
