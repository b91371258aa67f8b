#include "collectives/run/run.h"

void run_bind_share(const cpu_set_t *allowed, int rank, int ranks, cpu_set_t *share)
{
    const int cpus = CPU_COUNT(allowed);
    const int first = (int)((int64_t)rank * cpus / ranks);
    const int after = (int)((int64_t)(rank + 1) * cpus / ranks);
    const int count = after > first ? after - first : 1;

    CPU_ZERO(share);
    int seen = 0;
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, allowed))
            continue;
        if (seen >= first && seen < first + count)
            CPU_SET(cpu, share);
        seen++;
    }
}
