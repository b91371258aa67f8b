#include "checkpoint/entropy/streams.h"

#include "base/cpu.h"

const struct ckpt_streams *ckpt_streams_at(int i)
{
#if defined(__x86_64__)
    const struct base_cpu cpu = base_cpu_detect();
    if (i == 1 && cpu.avx2 && cpu.bmi2)
        return &ckpt_streams_avx2;
#endif
    return i == 0 ? &ckpt_streams_ref : NULL;
}

const struct ckpt_streams *ckpt_streams_best(void)
{
    const struct ckpt_streams *const fast = ckpt_streams_at(1);
    return fast ? fast : ckpt_streams_at(0);
}
