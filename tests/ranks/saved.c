#include "tests/ranks/saved.h"

#include "base/fault.h"

#include <string.h>

void saved_path(char path[SAVED_PATH], const char *directory, uint64_t step)
{
    snprintf(path, SAVED_PATH, "%s/step-%08llu", directory, (unsigned long long)step);
}

bool saved_now(struct team_rank *rank, const char *directory, const zero_save_options *options)
{
    TEAM_OK(rank, zero_save(rank->z, directory, options));
    TEAM_OK(rank, zero_save_wait(rank->z));
    return true;
}

zero_save_options saved_options(int level, int64_t room_bytes, int keep, int keep_every)
{
    zero_save_options options = zero_save_options_default();
    options.level = level;
    options.room_bytes = room_bytes;
    options.keep = keep;
    options.keep_every = keep_every;
    return options;
}

bool saved_fails(const struct team_rank *rank, zero_result result, zero_result expected,
                 const char *words, const char *call)
{
    const char *message = zero_last_error(rank->z);
    if (result == expected && strstr(message, words))
        return true;
    fprintf(stderr, "rank %d of %d: %s: %d instead of %d with '%s': %s\n", rank->rank, rank->world,
            call, result, expected, words, message);
    return false;
}

bool saved_state(const struct team_rank *rank, const uint8_t digest[16])
{
    uint8_t now[16];
    TEAM_OK(rank, zero_fingerprint(rank->z, now));
    TEAM_CHECK(memcmp(now, digest, sizeof now) == 0);
    return true;
}

bool saved_steps(struct team_rank *rank, void *user)
{
    const char *directory = user;
    if (!toy_open(rank, &toy_odd))
        return false;
    for (int step = 1; step <= SAVED_AT; step++)
        if (!toy_train(rank, &toy_odd, 1) || !saved_now(rank, directory, NULL))
            return false;
    return true;
}

bool saved_fault(struct team_rank *rank, const char *fault)
{
    TEAM_OK(rank, zero_barrier(rank->z));
    if (rank->rank == 0)
        TEAM_CHECK(base_fault_set(fault, NULL) == ZERO_OK);
    TEAM_OK(rank, zero_barrier(rank->z));
    return true;
}
