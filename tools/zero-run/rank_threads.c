// How many threads a rank is to compute with. OpenMP's programs and libraries, and MKL and OpenBLAS
// where they have no variable of their own, go by OMP_NUM_THREADS; without it each rank takes all
// of the host.

#include "tools/zero-run/run.h"

#include "base/cpu.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_CPUS = 8192 };

// The first CPU of the core that a CPU belongs to; the CPU itself where that cannot be read.
static int core_of(int cpu)
{
    char path[96];
    int first = cpu;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    FILE *file = fopen(path, "re");
    if (!file)
        return cpu;
    if (fscanf(file, "%d", &first) != 1 || first < 0 || first >= MOST_CPUS)
        first = cpu;
    fclose(file);
    return first;
}

void run_threads_count(struct run_cores *cores)
{
    const size_t size = CPU_ALLOC_SIZE(MOST_CPUS);
    cpu_set_t *allowed = CPU_ALLOC(MOST_CPUS), *found = CPU_ALLOC(MOST_CPUS);
    *cores = (struct run_cores){.count = 1,
                                .quota = base_cpu_quota("/proc/self/cgroup", "/sys/fs/cgroup")};
    if (allowed && found && sched_getaffinity(0, size, allowed) == 0) {
        CPU_ZERO_S(size, found);
        for (int cpu = 0; cpu < MOST_CPUS; cpu++)
            if (CPU_ISSET_S((size_t)cpu, size, allowed))
                CPU_SET_S((size_t)core_of(cpu), size, found);
        cores->count = CPU_COUNT_S(size, found);
    }
    CPU_FREE(allowed);
    CPU_FREE(found);
}

static int share(int cores, int ranks)
{
    return cores > ranks ? cores / ranks : 1;
}

int run_threads_of(const struct run_cores *cores, const struct run_binding *binding, int ranks,
                   int rank)
{
    if (getenv("OMP_NUM_THREADS"))
        return 0;
    const int own = binding ? run_bind_cores(binding, rank) : share(cores->count, ranks);
    const int most = cores->quota ? share(cores->quota, ranks) : own;
    return own < most ? own : most;
}

void run_threads_text(const struct run_cores *cores, const struct run_binding *binding, int ranks,
                      struct base_text *text)
{
    const char *given = getenv("OMP_NUM_THREADS");
    if (given) {
        base_text_add(text, "OMP_NUM_THREADS=%.60s as it was set", given);
        return;
    }
    int least = run_threads_of(cores, binding, ranks, 0), most = least;
    for (int rank = 1; rank < ranks; rank++) {
        const int threads = run_threads_of(cores, binding, ranks, rank);
        least = threads < least ? threads : least;
        most = threads > most ? threads : most;
    }
    base_text_add(text, "OMP_NUM_THREADS=%d", least);
    if (most > least)
        base_text_add(text, " to %d", most);
    if (binding)
        base_text_add(text, " for each rank (the cores that it is bound to");
    else
        base_text_add(text, " for each rank (%d core%s", cores->count, cores->count > 1 ? "s" : "");
    if (cores->quota)
        base_text_add(text, ", a quota of %d CPU%s", cores->quota, cores->quota > 1 ? "s" : "");
    base_text_add(text, ", %d rank%s)", ranks, ranks > 1 ? "s" : "");
}

void run_threads_say(struct run_job *job)
{
    char bytes[256] = "";
    struct base_text text = {bytes, sizeof bytes, 0};
    if (job->told_threads || getenv("OMP_NUM_THREADS"))
        return;
    job->told_threads = true;
    run_threads_text(&job->cores, job->binding, job->count, &text);
    run_say(job, "%s", bytes);
}
