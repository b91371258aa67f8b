// A rank of whatever launcher started it: finds its place, meets the others, and prints both.
#include "base/clock.h"
#include "collectives/rendezvous/rendezvous.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static zero_result meet(const struct boot_place *place, struct base_error *error)
{
    const uint64_t deadline = base_clock_ns() + UINT64_C(20000000000);
    const struct boot_meeting meeting = {.rank = place->rank,
                                         .world = place->world,
                                         .job = place->job,
                                         .name = "main",
                                         .deadline_ns = deadline};
    struct boot_link *link;
    int *ranks = calloc((size_t)place->world, sizeof *ranks);
    zero_result result = ranks ? boot_meet(&link, &meeting, error) : ZERO_E_NOMEM;
    if (!result)
        result =
            boot_exchange_bytes(link, &place->rank, sizeof place->rank, ranks, deadline, error);
    for (int rank = 0; rank < place->world && !result; rank++)
        if (ranks[rank] != rank)
            result = zero_fail(error, ZERO_E_CORRUPT, "rank %d is called %d", rank, ranks[rank]);
    if (ranks)
        boot_close(link);
    free(ranks);
    return result;
}

int main(void)
{
    struct base_error error = {.result = ZERO_OK};
    struct boot_place place;
    if (boot_discover(&place, environ, &error) || meet(&place, &error)) {
        fprintf(stderr, "run_place: %s\n", error.message);
        return 1;
    }
    printf("rank %d of %d, here %d of %d, %s\n", place.rank, place.world, place.local_rank,
           place.local_world, place.launcher);
    return fflush(stdout) == 0 ? 0 : 1;
}
