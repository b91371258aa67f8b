/**
 * tests/ranks/syscalls.h: counts the system calls of one thread, while they are made as ever. For
 * processors of the x86-64 kind and Linux from 5.11 on.
 */
#ifndef TESTS_RANKS_SYSCALLS_H
#define TESTS_RANKS_SYSCALLS_H

#include <stdbool.h>

enum { SYSCALLS_KINDS = 512 };

/** Gets ready; false, with *why, if this machine can't. Once a process. */
bool syscalls_prepare(const char **why);

/** From here to syscalls_end() what this thread calls is counted; one thread at a time. */
void syscalls_begin(void);
void syscalls_end(void);

/** How often a call (SYS_futex, ...) was made so far, and all calls together. */
unsigned syscalls_count(long number);
unsigned syscalls_total(void);

#endif
