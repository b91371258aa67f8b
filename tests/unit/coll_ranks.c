#include "tests/unit/coll_ranks.h"

#include "collectives/comm/comm_internal.h"
#include "collectives/provider/provider.h"
#include "collectives/rendezvous/mesh.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_RANKS = 16, HOSTS = 2 };

#define DEFAULT_TIMEOUT_NS UINT64_C(60000000000)

struct rank {
    struct coll_config config;
    rank_fn fn;
    void *user;
    bool good;
};

bool rank_ok(const struct coll_comm *comm, zero_result result, const char *call)
{
    struct base_error error = {0};
    if (result == ZERO_OK)
        return true;
    coll_state(comm, &error);
    fprintf(stderr, "rank %d: %s: %d: %s\n", coll_rank(comm), call, result, error.message);
    return false;
}

uint32_t mix(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t x = a * 0x9e3779b1u ^ b * 0x85ebca77u ^ c * 0xc2b2ae3du;
    x = (x ^ x >> 15) * 0x2c1b3c6du;
    x = (x ^ x >> 12) * 0x297a2d39u;
    return x ^ x >> 15;
}

void nap(uint32_t *state, unsigned most)
{
    *state = mix(*state, 1, 2);
    if (most > 0 && *state % 3 != 0)
        usleep(*state / 3 % most);
}

/* ------------------------------------------------------------------ connections */

/** Of every rank to every other one, all in this process. */
struct net {
    struct boot_mesh meshes[MOST_RANKS];
    int sockets[MOST_RANKS][MOST_RANKS];
    char hosts[MOST_RANKS][BOOT_HOST_BYTES];
    int leaders[MOST_RANKS];
};

/** The host of a rank, by the name of a transport. */
static int host_of(const char *transport, int rank)
{
    const char *each = strchr(transport, '/');
    if (strncmp(transport, "hosts", 5) != 0)
        return rank;
    return each ? rank / atoi(each + 1) : rank % HOSTS;
}

static void connect_ranks(struct net *net, int world, const char *transport)
{
    static uint64_t meetings;
    const bool hosts = strncmp(transport, "hosts", 5) == 0;
    meetings++;
    for (int i = 0; i < world; i++) {
        const int host = host_of(transport, i);
        snprintf(net->hosts[i], sizeof net->hosts[i], "host%d", host);
        net->leaders[i] = i;
        for (int first = i - 1; first >= 0; first--)
            if (host_of(transport, first) == host)
                net->leaders[i] = first;
        net->meshes[i] = (struct boot_mesh){.world = world,
                                            .sockets = net->sockets[i],
                                            .hosts = net->hosts,
                                            .leaders = hosts ? net->leaders : NULL,
                                            .token = meetings << 32 | (uint64_t)getpid()};
        net->sockets[i][i] = -1;
        for (int j = 0; j < i; j++) {
            int pair[2];
            if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0)
                abort();
            net->sockets[i][j] = pair[0];
            net->sockets[j][i] = pair[1];
        }
    }
}

/** Those that are not `rank`'s, or, of -1, of none that has opened its communicator. */
static void disconnect_others(struct net *net, int world, int rank)
{
    for (int i = 0; i < world; i++)
        for (int j = 0; j < world && i != rank; j++)
            if (net->sockets[i][j] >= 0)
                close(net->sockets[i][j]);
}

static void *run_rank(void *argument)
{
    struct rank *rank = argument;
    struct coll_config config = rank->config;
    struct coll_comm *comm;
    struct base_error error = {0};
    // Who is to wait for a short time only is not to meet the others in that.
    if (config.timeout_ns < DEFAULT_TIMEOUT_NS)
        config.timeout_ns = DEFAULT_TIMEOUT_NS;
    rank->good = coll_open(&comm, &config, &error) == ZERO_OK;
    if (!rank->good) {
        fprintf(stderr, "rank %d: coll_open: %s\n", rank->config.rank, error.message);
    } else {
        comm->comm_world->timeout_ns = rank->config.timeout_ns;
        rank->good = rank->fn(comm, rank->user);
    }
    coll_close(comm);
    return NULL;
}

static bool run_threads(struct rank *ranks, int world)
{
    pthread_t threads[MOST_RANKS];
    bool good = true;
    for (int i = 0; i < world; i++)
        pthread_create(&threads[i], NULL, run_rank, &ranks[i]);
    for (int i = 0; i < world; i++) {
        pthread_join(threads[i], NULL);
        good &= ranks[i].good;
    }
    return good;
}

/** A `victim` of -1: all end by themselves. `net`: NULL if they need none. */
static bool run_processes(struct rank *ranks, int world, int victim, struct net *net)
{
    pid_t children[MOST_RANKS];
    bool good = true;
    for (int i = 0; i < world; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            if (net)
                disconnect_others(net, world, i);
            run_rank(&ranks[i]);
            _exit(ranks[i].good ? 0 : 1);
        }
    }
    if (net)
        disconnect_others(net, world, -1);
    for (int i = 0; i < world; i++) {
        int status = 0;
        good &= children[i] > 0 && waitpid(children[i], &status, 0) == children[i];
        good &= i == victim ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : status == 0;
    }
    return good;
}

/** Whether the ranks of a run are processes: "tcp:threads" are none. */
static bool as_processes(const char *transport)
{
    return strcmp(transport, "shm") == 0 || strcmp(transport, "tcp") == 0 ||
           (strncmp(transport, "hosts", 5) == 0 && !strstr(transport, "threads"));
}

/** "tcp", or what the environment wants in its place. Ends the program where that is not to be had,
 * which skips the test. */
static const char *by_network(void)
{
    const struct coll_provider_config config = {.world = 1, .arenas = 1};
    const char *name = getenv("ZERO_TEST_PROVIDER");
    const struct coll_provider *provider = name ? coll_provider_find(name) : NULL;
    struct coll_provided *provided;
    struct base_error error = {.result = ZERO_OK};
    static bool found;
    if (!name || found)
        return name ? name : "tcp";
    if (!provider || provider->open(&provided, &config, &error) != ZERO_OK) {
        printf("skipped: no provider %s: %s\n", name, provider ? error.message : "not built");
        exit(77);
    }
    provided->ops->close(provided);
    found = true;
    return name;
}

static bool run(const char *transport, int world, int victim, uint64_t timeout_ns,
                uint64_t stall_ns, rank_fn fn, void *user)
{
    static unsigned runs;
    struct base_error error = {0};
    struct rank ranks[MOST_RANKS];
    struct coll_team *team = NULL;
    const bool hosts = strncmp(transport, "hosts", 5) == 0;
    const bool connected = hosts || strncmp(transport, "tcp", 3) == 0;
    struct net net;
    char job[64];
    if (!connected && getenv("ZERO_TEST_PROVIDER"))
        return true; // it is about ranks that are connected
    snprintf(job, sizeof job, "coll-test-%d-%u", (int)getpid(), runs++);
    if (world > MOST_RANKS ||
        (strcmp(transport, "threads") == 0 && coll_team_create(&team, world, &error) != ZERO_OK))
        return false;
    if (connected)
        connect_ranks(&net, world, transport);
    for (int i = 0; i < world; i++)
        ranks[i] = (struct rank){.config = {.transport = connected ? by_network() : transport,
                                            .rank = i,
                                            .world = world,
                                            .job = job,
                                            .name = "test",
                                            .team = team,
                                            .mesh = connected ? &net.meshes[i] : NULL,
                                            .timeout_ns = timeout_ns,
                                            .stall_ns = stall_ns},
                                 .fn = fn,
                                 .user = user};
    const bool good = as_processes(transport)
                          ? run_processes(ranks, world, victim, connected ? &net : NULL)
                          : run_threads(ranks, world);
    coll_team_free(team);
    return good;
}

bool run_ranks(const char *transport, int world, uint64_t timeout_ns, rank_fn fn, void *user)
{
    return run(transport, world, -1, timeout_ns ? timeout_ns : DEFAULT_TIMEOUT_NS, 0, fn, user);
}

bool run_ranks_killed(int world, int victim, rank_fn fn, void *user)
{
    return run("shm", world, victim, DEFAULT_TIMEOUT_NS, 0, fn, user);
}

bool run_ranks_watched(int world, int victim, uint64_t timeout_ns, uint64_t stall_ns, rank_fn fn,
                       void *user)
{
    return run("shm", world, victim, timeout_ns, stall_ns, fn, user);
}

bool run_hosts_watched(int world, int victim, uint64_t timeout_ns, uint64_t stall_ns, rank_fn fn,
                       void *user)
{
    return run("hosts", world, victim, timeout_ns, stall_ns, fn, user);
}

bool run_killed_by(const char *transport, int world, int victim, rank_fn fn, void *user)
{
    return run(transport, world, victim, DEFAULT_TIMEOUT_NS, 0, fn, user);
}

bool run_tcp_watched(int world, int victim, uint64_t timeout_ns, uint64_t stall_ns, rank_fn fn,
                     void *user)
{
    return run("tcp", world, victim, timeout_ns, stall_ns, fn, user);
}
