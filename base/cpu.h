/**
 * base/cpu.h: what this processor and this process's limits allow.
 */
#ifndef BASE_CPU_H
#define BASE_CPU_H

#include <stdbool.h>

/** Usable features: the processor has them and the operating system saves their registers. */
struct base_cpu {
    bool avx2;   /**< AVX2 with FMA and F16C */
    bool avx512; /**< AVX-512 F, BW, DQ and VL, with avx2 */
    bool bmi2;
    bool amd; /**< its maker is AMD */
};

/** Asks the processor. *Local*, any thread. */
struct base_cpu base_cpu_detect(void);

/**
 * Processors this process can keep busy, at least 1: those of its affinity mask, and no more than
 * the CPU quota of its control groups, rounded up; what cannot be read sets no limit. Reads several
 * files: nothing for a loop. *Local*, any thread.
 */
int base_cpu_allowed(void);

/**
 * The CPU quota (versions 1 and 2) of the control groups that the file `membership` (in the form
 * of /proc/self/cgroup) names, and of those above them, in the hierarchy mounted at `mount`: the
 * smallest one, rounded up to whole CPUs; 0 if there is none. *Local.*
 */
int base_cpu_quota(const char *membership, const char *mount);

/** What a processor likes to be told in a loop that waits for another one. Inline, *local*. */
static inline void base_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
