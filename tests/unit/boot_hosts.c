// Many ranks of many hosts meet, a process for each host and a thread for each rank: each host's
// leader gets a connection to each other host's, and no other rank has one beyond its host.
//
// Arguments: how many hosts, and ranks of each.

#include "base/clock.h"
#include "collectives/rendezvous/mesh_internal.h"
#include "tests/unit/port.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { STACK = 256 << 10, MOST_RANKS = 64 };

static int hosts = 24, ranks_of_each = 12;

/** A rank, and what it has seen; all are shared by the processes. */
struct rank {
    int rank;
    pid_t pid;
    struct boot_master master;
    zero_result result;
    struct base_error error;
    uint64_t token;
    int local_rank, local_world, host_count;
    int connections; /**< to leaders of other hosts, */
    int near;        /**< to ranks of its host, */
    int others;      /**< and to anything else */
    bool right;      /**< all leaders and processes are as they should be */
};

static struct rank *all;

// Hosts are dealt out like cards: rank r is on host r % hosts.
static void look(const struct boot_mesh *mesh, struct rank *rank)
{
    const bool leads = rank->rank < hosts;
    rank->token = mesh->token;
    rank->local_rank = mesh->local_rank;
    rank->local_world = mesh->local_world;
    rank->host_count = mesh->host_count;
    rank->right = mesh->world == hosts * ranks_of_each;
    for (int peer = 0; peer < mesh->world; peer++) {
        rank->right = rank->right && mesh->leaders[peer] == peer % hosts &&
                      mesh->pids[peer] == all[peer].pid && *mesh->hosts[peer];
        if (mesh->sockets[peer] < 0)
            continue;
        rank->connections += leads && peer < hosts && peer != rank->rank;
        rank->near += peer != rank->rank && peer % hosts == rank->rank % hosts;
        rank->others += peer % hosts != rank->rank % hosts && (!leads || peer >= hosts);
    }
}

// Each rank tells each other one that it is connected to who it is.
static void greet(const struct boot_mesh *mesh, struct rank *rank)
{
    const uint64_t deadline = base_clock_ns() + UINT64_C(60000000000);
    for (int peer = 0; peer < mesh->world; peer++)
        if (mesh->sockets[peer] >= 0)
            boot_send(mesh->sockets[peer], BOOT_PEER, &rank->rank, sizeof rank->rank, deadline,
                      &rank->error);
    for (int peer = 0; peer < mesh->world; peer++) {
        struct boot_header header;
        int theirs = -1;
        if (mesh->sockets[peer] < 0)
            continue;
        if (!boot_receive(mesh->sockets[peer], &header, sizeof theirs, deadline, &rank->error))
            boot_receive_bytes(mesh->sockets[peer], &theirs, sizeof theirs, deadline, &rank->error);
        rank->right = rank->right && theirs == peer;
    }
}

static void *be_rank(void *user)
{
    struct rank *rank = user;
    char host_id[32];
    snprintf(host_id, sizeof host_id, "host %d", rank->rank % hosts);
    const struct boot_meeting meeting = {.rank = rank->rank,
                                         .world = hosts * ranks_of_each,
                                         .job = "many",
                                         .name = "main",
                                         .deadline_ns = base_clock_ns() + UINT64_C(240000000000),
                                         .host_id = host_id};
    struct boot_mesh mesh;
    rank->result = boot_mesh_open(&mesh, &meeting, &rank->master, &rank->error);
    if (rank->result == ZERO_OK) {
        look(&mesh, rank);
        greet(&mesh, rank);
    }
    boot_mesh_close(&mesh);
    return NULL;
}

static void expect(const struct rank *rank, const struct rank *rank_0)
{
    const bool leads = rank->rank < hosts;
    if (rank->result || rank->error.result)
        fail_msg("rank %d: %d, %s", rank->rank, rank->result, rank->error.message);
    if (!rank->right || rank->others || rank->near < 1 ||
        rank->connections != (leads ? hosts - 1 : 0) || rank->token != rank_0->token ||
        rank->host_count != hosts || rank->local_world != ranks_of_each ||
        rank->local_rank != rank->rank / hosts)
        fail_msg("rank %d: %d connections, %d others, %d of %d here, %d hosts, right %d",
                 rank->rank, rank->connections, rank->others, rank->local_rank, rank->local_world,
                 rank->host_count, rank->right);
}

// The ranks of one host.
static void be_host(int host)
{
    pthread_t threads[MOST_RANKS];
    pthread_attr_t attributes;
    int started = 0;
    alarm(280);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK);
    for (int i = ranks_of_each - 1; i >= 0; i--) {
        struct rank *rank = &all[i * hosts + host];
        rank->pid = getpid();
        started += pthread_create(&threads[started], &attributes, be_rank, rank) == 0;
    }
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    _exit(started == ranks_of_each ? 0 : 1);
}

static void leaders_of_many_hosts_are_connected(void **state)
{
    (void)state;
    const int world = hosts * ranks_of_each;
    struct boot_master master = {.address = "127.0.0.1", .source = "the test"};
    const int reserved = port_reserve(&master.port);
    assert_true(reserved >= 0 && ranks_of_each <= MOST_RANKS);
    all = mmap(NULL, (size_t)world * sizeof *all, PROT_READ | PROT_WRITE,
               MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(all, MAP_FAILED);
    for (int rank = 0; rank < world; rank++)
        all[rank] = (struct rank){.rank = rank, .master = master};
    for (int host = hosts - 1; host >= 0; host--) {
        const pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0)
            be_host(host);
    }
    for (int host = 0; host < hosts; host++) {
        int status;
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
    for (int rank = 0; rank < world; rank++)
        expect(&all[rank], &all[0]);
    munmap(all, (size_t)world * sizeof *all);
    close(reserved);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leaders_of_many_hosts_are_connected),
    };
    if (argc == 3) {
        hosts = (int)strtol(argv[1], NULL, 10);
        ranks_of_each = (int)strtol(argv[2], NULL, 10);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
