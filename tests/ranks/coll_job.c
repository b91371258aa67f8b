// One rank of a job that a launcher started: finds its place, meets the others, and tests every
// operation with them.

#include "collectives/comm/comm.h"
#include "collectives/rendezvous/rendezvous.h"
#include "tests/unit/coll_checks.h"

#include <stdio.h>
#include <unistd.h>

static int fail(const char *what, const struct base_error *error)
{
    fprintf(stderr, "%s: %s\n", what, error->message);
    return 1;
}

int main(void)
{
    struct boot_place place;
    struct base_error error = {0};
    struct coll_comm *comm;
    if (boot_discover(&place, environ, &error) != ZERO_OK)
        return fail("boot_discover", &error);
    const struct coll_config config = {
        .transport = "shm",
        .rank = place.rank,
        .world = place.world,
        .job = place.job,
        .name = "test",
        .timeout_ns = UINT64_C(20000000000),
    };
    if (coll_open(&comm, &config, &error) != ZERO_OK)
        return fail("coll_open", &error);
    const bool good = check_copies(comm, NULL) && check_small_operations(comm, NULL);
    coll_close(comm);
    return good ? 0 : 1;
}
