#include "tests/bench/fio_mix.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Fields of its terse output, of reads; those of writes lie WRITES behind.
enum { TOTAL_KIB = 5, RUNTIME_MS = 8, WRITES = 41, FIELDS = RUNTIME_MS + WRITES + 1 };

bool fio_is_there(void)
{
    return system("fio --version >/dev/null 2>&1") == 0;
}

// Reads its numbers; seconds, or 0.
static double seconds_of(char *line, size_t moved)
{
    double values[FIELDS] = {0};
    char *rest = line;
    for (int i = 0; i < FIELDS && rest; i++) {
        const char *field = strsep(&rest, ";");
        values[i] = atof(field);
    }
    const double read = values[RUNTIME_MS], written = values[RUNTIME_MS + WRITES];
    const double bytes = 1024 * (values[TOTAL_KIB] + values[TOTAL_KIB + WRITES]);
    return bytes > 0 ? 1e-3 * (read > written ? read : written) * (double)moved / bytes : 0;
}

double fio_mix(const struct fio_mix *mix)
{
    char command[512], line[4096] = "";
    snprintf(command, sizeof command,
             "fio --name=mix --filename=/proc/%d/fd/%d --size=%zu --io_size=%zu --direct=1 --rw=rw "
             "--rwmixread=%u --ioengine=io_uring --bs=%zu --iodepth=%u --output-format=terse "
             "--terse-version=3",
             getpid(), mix->fd, mix->bytes, mix->moved, mix->reads, mix->block, mix->depth);
    FILE *pipe = popen(command, "r");
    const bool read = pipe && fgets(line, sizeof line, pipe);
    const bool ended = pipe && pclose(pipe) == 0;
    const double seconds = read && ended ? seconds_of(line, mix->moved) : 0;
    if (seconds == 0)
        fprintf(stderr, "failed: %s\n", command);
    return seconds;
}
