/**
 * tests/unit/coll_shapes.h: ways to deal out a vector among ranks.
 */
#ifndef TESTS_UNIT_COLL_SHAPES_H
#define TESTS_UNIT_COLL_SHAPES_H

#include "collectives/comm/comm.h"

enum shape { EVEN, UNEVEN, SOME_EMPTY, ALL_ON_LAST, SHAPES };

/** Deals out `count` elements that lie behind `shift` others, in the order of ranks, without gaps;
 * who gets none has the offset 0. */
void deal_shape(struct coll_span *spans, int world, size_t count, enum shape shape, size_t shift);

#endif
