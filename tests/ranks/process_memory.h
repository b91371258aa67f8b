/**
 * tests/ranks/process_memory.h: what this process has of memory and threads, and how often it asked
 * for more. A program linked with process_memory.c has its allocations counted.
 */
#ifndef TESTS_RANKS_PROCESS_MEMORY_H
#define TESTS_RANKS_PROCESS_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/** Proportional set size in bytes: a page that k processes map counts 1/k in each. Without pages of
 * files: programs and libraries, which come in as they are run. 0: not known. */
size_t process_pss(void);
/** The same of another process of this user. */
size_t process_pss_of(pid_t process);

/** Whether a sanitizer's own memory is in the numbers, and malloc is the sanitizer's. */
bool process_sanitized(void);

struct process_state {
    uint64_t allocations; /**< calls of malloc and its kin in this process; 0: unknown */
    size_t mapped;        /**< bytes of address space */
    int threads;
};

/** Allocates nothing itself. */
struct process_state process_state(void);

#endif
