/**
 * zero/store/stores.h: the stores (zero/core/store_table.h).
 */
#ifndef ZERO_STORE_STORES_H
#define ZERO_STORE_STORES_H

#include "zero/core/store_table.h"

extern const struct eng_store eng_store_nvme;

/** Chooses the store that the configuration asks for. */
void eng_store_choose(zero_ctx *z);

#endif
