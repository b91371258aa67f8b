/**
 * zero/link/links.h: the links (zero/core/link_table.h).
 */
#ifndef ZERO_LINK_LINKS_H
#define ZERO_LINK_LINKS_H

#include "zero/core/link_table.h"

extern const struct eng_link eng_link_host, eng_link_gpu;

/** Chooses the link, when the executor is chosen. */
void eng_link_choose(zero_ctx *z);

#endif
