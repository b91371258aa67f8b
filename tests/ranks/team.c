#include "tests/ranks/team.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_RANKS = 16 };

struct member {
    struct team_rank rank;
    team_fn fn;
    bool good;
};

bool team_ok(const struct team_rank *rank, zero_result result, const char *call)
{
    if (result != ZERO_OK)
        fprintf(stderr, "rank %d of %d: %s: %s: %s\n", rank->rank, rank->world, call,
                zero_result_text(result), zero_last_error(rank->z));
    return result == ZERO_OK;
}

bool team_open(struct team_rank *rank)
{
    return team_ok(rank, zero_open(&rank->z, &rank->config), "zero_open");
}

void team_close(struct team_rank *rank)
{
    zero_close(rank->z);
    rank->z = NULL;
}

bool team_break_off(struct team_rank *rank)
{
    TEAM_OK(rank, zero_barrier(rank->z));
    zero_abort(rank->z, "for a test");
    while (zero_barrier(rank->z) == ZERO_OK)
        ;
    return true;
}

void *team_shared(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

void team_shared_free(void *memory, size_t bytes)
{
    if (memory)
        munmap(memory, bytes);
}

const char *team_threads(int world)
{
    return world == 1 ? "self" : "threads";
}

static void *run_member(void *argument)
{
    struct member *member = argument;
    member->good = member->fn(&member->rank, member->rank.user);
    team_close(&member->rank);
    return NULL;
}

static bool run_threads(struct member *members, int world)
{
    pthread_t threads[MOST_RANKS];
    bool good = true;
    for (int i = 0; i < world; i++)
        if (pthread_create(&threads[i], NULL, run_member, &members[i]) != 0)
            abort(); // the others would wait for it
    for (int i = 0; i < world; i++) {
        pthread_join(threads[i], NULL);
        good &= members[i].good;
    }
    return good;
}

/** A `victim` of -1: all end by themselves. killed NULL: the victim has to be; else *killed says
 * whether it was. */
static bool run_processes(struct member *members, int world, int victim, bool *killed)
{
    pid_t children[MOST_RANKS];
    bool good = true;
    fflush(NULL);
    for (int i = 0; i < world; i++) {
        children[i] = fork();
        if (children[i] != 0)
            continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL); // a test that is stopped takes its ranks along
        run_member(&members[i]);
        exit(members[i].good ? 0 : 1);
    }
    for (int i = 0; i < world; i++) {
        int status = -1;
        if (children[i] > 0)
            waitpid(children[i], &status, 0);
        int expected = i == victim ? SIGKILL : 0; // as wait() has it
        if (i == victim && killed) {
            *killed = status == SIGKILL;
            expected = *killed ? SIGKILL : 0;
        }
        if (status != expected)
            fprintf(stderr, "rank %d of %d: wait status 0x%x\n", i, world, (unsigned)status);
        good &= status == expected;
    }
    return good;
}

static bool run(const char *transport, int world, int victim, bool *killed, team_fn fn, void *user)
{
    static unsigned runs;
    static char name[64];
    zero_team *team = NULL;
    if (world > MOST_RANKS ||
        (strcmp(transport, "threads") == 0 && zero_team_create(&team, world) != ZERO_OK))
        return false;
    // Forked ranks find each other by parent and name.
    snprintf(name, sizeof name, "team-%d-%u", (int)getpid(), runs++);
    struct member members[MOST_RANKS];
    for (int i = 0; i < world; i++) {
        zero_config config = zero_config_default();
        config.name = name;
        config.world = world;
        config.rank = i;
        config.transport = transport;
        config.team = team;
        config.timeout_s = 20;
        config.log_level = ZERO_OFF;
        members[i] = (struct member){
            .rank = {.rank = i, .world = world, .config = config, .user = user}, .fn = fn};
    }
    const bool good = strcmp(transport, "shm") == 0 ? run_processes(members, world, victim, killed)
                                                    : run_threads(members, world);
    zero_team_free(team);
    return good;
}

bool team_run(const char *transport, int world, team_fn fn, void *user)
{
    return run(transport, world, -1, NULL, fn, user);
}

bool team_run_killed(int world, int victim, team_fn fn, void *user)
{
    return run("shm", world, victim, NULL, fn, user);
}

bool team_run_endangered(int world, int victim, bool *killed, team_fn fn, void *user)
{
    return run("shm", world, victim, killed, fn, user);
}
