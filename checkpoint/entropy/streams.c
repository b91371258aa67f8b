#include "checkpoint/entropy/streams.h"

#include "base/cpu.h"

const struct ckpt_streams *ckpt_streams_at(int i)
{
    const struct ckpt_streams *usable[4] = {&ckpt_streams_ref};
#if defined(__x86_64__)
    const struct base_cpu cpu = base_cpu_detect();
    int count = 1;
    if (cpu.avx2 && cpu.bmi2)
        usable[count++] = &ckpt_streams_avx2;
    if (cpu.avx512_vbmi)
        usable[count++] = &ckpt_streams_vbmi;
#endif
    return i >= 0 && i < 4 ? usable[i] : NULL;
}

const struct ckpt_streams *ckpt_streams_best(void)
{
    const struct ckpt_streams *best = ckpt_streams_at(0), *next;
    for (int i = 1; (next = ckpt_streams_at(i)) != NULL; i++)
        best = next;
    return best;
}
