// How far ahead kernels prefetch, which the maker of the processor decides once.

#include "base/cpu.h"
#include "base/kernels/kernel_tables.h"

#include <pthread.h>

size_t eng_prefetch_bytes = ENG_PREFETCH_BYTES;

static void choose(void)
{
    eng_prefetch_bytes = base_cpu_detect().amd ? 0 : ENG_PREFETCH_BYTES;
}

void eng_prefetch_choose(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, choose);
}
