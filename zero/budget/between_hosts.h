/**
 * zero/budget/between_hosts.h: what gradients send between hosts, and the memory for sums of a
 * host's contributions (coll_partial_sums_create()).
 */
#ifndef ZERO_BUDGET_BETWEEN_HOSTS_H
#define ZERO_BUDGET_BETWEEN_HOSTS_H

#include "zero/plan/plan.h"
#include "zero/zero.h"

/** Bytes on every rank; 0: contributions travel. The placement is made, and the link chosen.
 * *Local.* */
size_t eng_between_hosts_bytes(const zero_ctx *z);

/** What the plan says of it. *Local.* */
struct eng_plan_between eng_between_hosts(const zero_ctx *z);

#endif
