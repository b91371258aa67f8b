/**
 * zero/store/stores.h: the stores (zero/core/store_table.h).
 */
#ifndef ZERO_STORE_STORES_H
#define ZERO_STORE_STORES_H

#include "zero/core/context.h"
#include "zero/core/store_table.h"

extern const struct eng_store eng_store_nvme;

/** Chooses the store that the configuration asks for. */
void eng_store_choose(zero_ctx *z);

/** Whether state is on the device where the program computes. Parameters, sums, moments and so on
 * are addresses there then, which only exec's GPU files and work on its streams may touch. With
 * config.streamed moments and masters are memory of the host: what the device has changed is in
 * them when its copies are waited for (exec/device_tiles.c). */
static inline bool eng_state_on_device(const zero_ctx *z)
{
    return z->config.resident;
}

#endif
