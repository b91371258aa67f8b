/**
 * own_state.h: what a rank keeps of the optimizer's state, element by element, read past the API.
 */
#ifndef TESTS_NUMERICS_OWN_STATE_H
#define TESTS_NUMERICS_OWN_STATE_H

#include <zero/zero.h>

#include <stdbool.h>

/** An element whose state a rank has. */
struct own_element {
    zero_param param;
    int32_t slice;
    uint64_t element;
    float weight;    /**< the master, or the working copy where there is none */
    float moment[2]; /**< 0 where its optimizer has fewer */
};

/** Visits all of them until one is not good; returns whether all were. *Local*, between steps. */
bool own_state_each(const zero_ctx *z, bool (*good)(void *user, const struct own_element *element),
                    void *user);

#endif
