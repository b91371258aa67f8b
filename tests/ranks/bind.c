#include "tests/ranks/bind.h"

#include <sched.h>
#include <stddef.h>

bool bind_rank(int rank)
{
    cpu_set_t allowed, mine;
    CPU_ZERO(&mine);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return false;
    int before = rank % CPU_COUNT(&allowed);
    for (size_t cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&mine) == 0; cpu++)
        if (CPU_ISSET(cpu, &allowed) && before-- == 0)
            CPU_SET(cpu, &mine);
    return sched_setaffinity(0, sizeof mine, &mine) == 0;
}
