/**
 * zero/budget/updater_choice.h: who updates state that is offloaded from a GPU to memory of the
 * host, where that is left to zero_commit() (offload_update=auto).
 */
#ifndef ZERO_BUDGET_UPDATER_CHOICE_H
#define ZERO_BUDGET_UPDATER_CHOICE_H

#include "base/error.h"
#include "zero/zero.h"

/** Why it is the host wherever there is room; NULL: nothing that is configured or registered says
 * so. */
const char *eng_updater_bound(const zero_ctx *z);
/** Decides, where that is undecided, with a layout that is made. Collective. ZERO_E_NOMEM,
 * ZERO_E_DEVICE; failures of others are fatal, and not in `error`. */
zero_result eng_updater_decide(zero_ctx *z, struct base_error *error);

#endif
