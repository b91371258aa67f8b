#include "checkpoint/codec/planes.h"

#include "base/cpu.h"

#include <assert.h>

const struct ckpt_planes *ckpt_planes_at(int i)
{
    const struct ckpt_planes *usable[4] = {&ckpt_planes_ref};
#if defined(__x86_64__)
    const struct base_cpu cpu = base_cpu_detect();
    int count = 1;
    if (cpu.avx2)
        usable[count++] = &ckpt_planes_avx2;
    if (cpu.avx512)
        usable[count++] = &ckpt_planes_avx512;
#endif
    return i >= 0 && i < 4 ? usable[i] : NULL;
}

const struct ckpt_planes *ckpt_planes_best(void)
{
    const struct ckpt_planes *best = ckpt_planes_at(0), *next;
    for (int i = 1; (next = ckpt_planes_at(i)) != NULL; i++)
        best = next;
    assert(best);
    return best;
}
