/**
 * tests/unit/coll_checks.h: what each rank does to test operations of a communicator. At most 16
 * ranks.
 */
#ifndef TESTS_UNIT_COLL_CHECKS_H
#define TESTS_UNIT_COLL_CHECKS_H

#include "collectives/comm/comm.h"

/** Each returns whether all was as it should be, and says on standard error what was not. */

/** All-gather, broadcast, all-to-all. `user`: a bool, whether to try all cases of long counts too;
 * NULL: not. */
bool check_copies(struct coll_comm *comm, void *user);
bool check_small_operations(struct coll_comm *comm, void *user);

#endif
