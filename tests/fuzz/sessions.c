#include "tests/fuzz/sessions.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_TOGETHER = 16 };

struct run {
    const struct sessions *sessions;
    unsigned count;
    atomic_uint next, ended[SESSION_WELL + 1];
};

static void *run_some(void *user)
{
    struct run *run = user;
    for (unsigned seed; (seed = atomic_fetch_add(&run->next, 1)) < run->count;)
        atomic_fetch_add(&run->ended[run->sessions->run(seed)], 1);
    return NULL;
}

int sessions_run(const struct sessions *sessions, int argc, char **argv)
{
    pthread_t threads[MOST_TOGETHER];
    struct run run = {.sessions = sessions,
                      .count = argc > 1 ? (unsigned)atoi(argv[1]) : sessions->count};
    if (sessions->together > MOST_TOGETHER)
        return 2;
    for (unsigned i = 0; i < sessions->together; i++)
        if (pthread_create(&threads[i], NULL, run_some, &run) != 0)
            abort(); // those that have begun use `run`, which a return would take from them
    for (unsigned i = 0; i < sessions->together; i++)
        pthread_join(threads[i], NULL);
    const unsigned well = atomic_load(&run.ended[SESSION_WELL]);
    printf("%u sessions, of which %u took no harm\n", run.count, well);
    // If none is well nothing was let through.
    return atomic_load(&run.ended[SESSION_WRONG]) > 0 || well == 0 ||
           well > run.count / 100.0 * sessions->most_well;
}
