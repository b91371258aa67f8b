#include "tests/unit/mesh_ranks.h"

#include "base/clock.h"
#include "base/fault.h"
#include "collectives/rendezvous/mesh_internal.h"
#include "tests/unit/port.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

// In a rank: a check that failed.
static void check(struct boot_verdict *verdict, bool condition, const char *what)
{
    if (!condition)
        zero_fail(&verdict->error, ZERO_E_CORRUPT, "%s", what);
}

// Tells every peer who talks to whom, and hears the same, or that it has gone: rank 0 may have told
// this rank that all have met, and then not reach the next one.
static void talk(const struct boot_mesh *mesh, int rank, bool each, struct boot_verdict *verdict)
{
    const uint64_t deadline_ns = base_clock_ns() + UINT64_C(20000000000);
    char host[256];
    int near_count = 0;
    gethostname(host, sizeof host);
    for (int peer = 0; peer < mesh->world; peer++) {
        const bool leaders = mesh->leaders[peer] == peer && mesh->leaders[rank] == rank;
        const bool near = mesh->leaders[peer] == mesh->leaders[rank] && peer != rank;
        near_count += near && mesh->sockets[peer] >= 0;
        check(verdict,
              (near && !each) || (mesh->sockets[peer] >= 0) == (peer != rank && (each || leaders)),
              "a connection to other ranks than leaders");
        unsigned char address[MESH_ADDRESS_BYTES];
        int port;
        if (mesh_address(mesh->sockets[peer], true, address, &port) && mesh_is_loopback(address))
            verdict->inside = true;
        const int mine[3] = {rank, peer, getpid()};
        check(verdict, strncmp(mesh->hosts[peer], host, BOOT_HOST_BYTES - 1) == 0, "host's name");
        if (mesh->sockets[peer] >= 0)
            boot_send(mesh->sockets[peer], BOOT_PEER, mine, sizeof mine, deadline_ns,
                      &verdict->error);
    }
    // One of the host has a connection to each of the others.
    check(verdict,
          near_count == mesh->local_world - 1 || (near_count == 1 && !each) ||
              (rank == 0 && near_count == 0),
          "connections within the host");
    for (int peer = 0; peer < mesh->world; peer++) {
        struct boot_header header;
        int theirs[3];
        if (mesh->sockets[peer] < 0 ||
            boot_receive(mesh->sockets[peer], &header, sizeof theirs, deadline_ns,
                         &verdict->error) ||
            boot_receive_bytes(mesh->sockets[peer], theirs, sizeof theirs, deadline_ns,
                               &verdict->error))
            continue;
        check(verdict, theirs[0] == peer && theirs[1] == rank, "a connection to another rank");
        check(verdict, theirs[2] == mesh->pids[peer], "another process");
    }
}

// A new descriptor is the lowest one that is free.
static void limit_descriptors(struct boot_verdict *verdict, int spare)
{
    struct rlimit limit;
    const int lowest = dup(0);
    close(lowest);
    check(verdict, lowest >= 0 && getrlimit(RLIMIT_NOFILE, &limit) == 0, "limit");
    limit.rlim_cur = (rlim_t)(lowest + spare);
    check(verdict, setrlimit(RLIMIT_NOFILE, &limit) == 0, "limit");
}

/** Who is to be what. */
struct player {
    const struct mesh_ranks *ranks;
    const struct mesh_role *role;
};

static void be_rank(const void *user, struct boot_verdict *verdict)
{
    const struct mesh_ranks *ranks = ((const struct player *)user)->ranks;
    const struct mesh_role *role = ((const struct player *)user)->role;
    const struct base_log log = boot_ranks_log(verdict, role->rank);
    struct boot_master master = ranks->master;
    snprintf(master.secret, sizeof master.secret, "%s", role->secret ? role->secret : "");
    if (role->address)
        snprintf(master.address, sizeof master.address, "%s", role->address);
    const int before = boot_ranks_descriptors();
    if (role->spare > 0)
        limit_descriptors(verdict, role->spare);
    check(verdict, base_fault_set(role->fault, NULL) == ZERO_OK, "fault");
    const char *names = role->names ? role->names : "m";
    char host[16];
    snprintf(host, sizeof host, "host %d", role->rank);
    for (; *names && !verdict->error.result; names++) {
        const char name[2] = {*names, '\0'};
        const struct boot_meeting meeting = {.rank = role->rank,
                                             .world = role->world,
                                             .job = role->job ? role->job : ranks->set.job,
                                             .name = role->names ? name : "main",
                                             .deadline_ns = base_clock_ns() + ranks->set.timeout_ns,
                                             .log = &log,
                                             .remind_ns = ranks->set.remind_ns,
                                             .asked = ranks->set.asked,
                                             .host_id = role->host_id ? role->host_id : host,
                                             .each_rank = role->each_rank};
        struct boot_mesh mesh;
        usleep((useconds_t)role->pause_ms * 1000);
        const zero_result met = boot_mesh_open(&mesh, &meeting, &master, &verdict->error);
        verdict->fired = verdict->fired || base_fault_fired() > 0;
        base_fault_set(NULL, NULL);
        verdict->local_rank = mesh.local_rank;
        verdict->local_world = mesh.local_world;
        verdict->value = met == ZERO_OK;
        if (met == ZERO_OK)
            talk(&mesh, role->rank, role->each_rank, verdict);
        else
            verdict->leaked = boot_ranks_descriptors() != before;
        boot_mesh_close(&mesh);
    }
    verdict->leaked = verdict->leaked || boot_ranks_descriptors() != before;
}

void mesh_ranks_begin(struct mesh_ranks *ranks, const char *address, int timeout_ms)
{
    *ranks = (struct mesh_ranks){.reserved = -1};
    boot_ranks_begin(&ranks->set, timeout_ms);
    ranks->set.patience_ns = UINT64_C(20000000000);
    snprintf(ranks->master.address, sizeof ranks->master.address, "%s", address);
    snprintf(ranks->master.source, sizeof ranks->master.source, "the test");
    ranks->reserved = port_reserve(&ranks->master.port);
    assert_true(ranks->reserved >= 0);
}

int mesh_ranks_start(struct mesh_ranks *ranks, const struct mesh_role *role)
{
    const struct player player = {ranks, role};
    return boot_ranks_fork(&ranks->set, 60, be_rank, &player);
}

void mesh_ranks_end(struct mesh_ranks *ranks)
{
    boot_ranks_end(&ranks->set, -1);
    close(ranks->reserved);
}

int mesh_ranks_call(const struct mesh_ranks *ranks)
{
    const uint64_t deadline = base_clock_ns() + ranks->set.patience_ns;
    int fd;
    while (mesh_call(&fd, &ranks->master, 0, deadline, NULL)) {
        assert_true(base_clock_ns() < deadline);
        usleep(1000);
    }
    return fd;
}

int mesh_ranks_usurp(const struct mesh_ranks *ranks)
{
    static const unsigned char loopback[MESH_ADDRESS_BYTES] = {
        [10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1};
    int listener;
    assert_int_equal(mesh_listen(&listener, loopback, ranks->master.port, 5, NULL), ZERO_OK);
    return listener;
}

int mesh_ranks_take_call(const struct mesh_ranks *ranks, int listener)
{
    struct pollfd pollfd = {.fd = listener, .events = POLLIN};
    const uint64_t deadline = base_clock_ns() + ranks->set.patience_ns;
    int fd = -1;
    while (fd < 0) {
        assert_true(base_clock_ns() < deadline);
        poll(&pollfd, 1, 100);
        assert_int_equal(boot_accept(&fd, listener, NULL), ZERO_OK);
    }
    return fd;
}
