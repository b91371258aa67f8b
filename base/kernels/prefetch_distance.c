// How far ahead kernels prefetch, which the maker of the processor decides once.

#include "base/cpu.h"
#include "base/kernels/kernel_tables.h"

#include <pthread.h>

enum { DISTANCE = 2048, DISTANCE_AMD = 512 };

size_t base_prefetch_bytes = DISTANCE;

static void choose(void)
{
    if (base_cpu_detect().amd)
        base_prefetch_bytes = DISTANCE_AMD;
}

void base_prefetch_choose(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, choose);
}
