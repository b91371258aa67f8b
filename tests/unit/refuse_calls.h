/**
 * tests/unit/refuse_calls.h: a system that refuses a call, as a container's seccomp profile does.
 */
#ifndef TESTS_UNIT_REFUSE_CALLS_H
#define TESTS_UNIT_REFUSE_CALLS_H

#include <stdbool.h>

/** From here on the system call fails with `errnum`, in this process and all it starts; if
 * `second` >= 0, only where that is its second argument. false: no filter can be set here. */
bool refuse_call(long call, long second, int errnum);

#endif
