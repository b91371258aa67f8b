/**
 * zero/api/open_close.h: how a context finds its ranks.
 */
#ifndef ZERO_API_OPEN_CLOSE_H
#define ZERO_API_OPEN_CLOSE_H

#include "zero/core/context.h"

/** How to meet the other ranks; borrows config. */
struct coll_config eng_coll_config(const struct eng_config *config);

#endif
