#include "tests/unit/mesh_ranks.h"

#include "base/clock.h"
#include "base/fault.h"
#include "collectives/boot/stream.h"

#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static int open_descriptors(void)
{
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    while (directory && readdir(directory))
        count++;
    if (directory)
        closedir(directory);
    return count;
}

static void keep_log(void *user, zero_log_level level, const char *component, const char *message)
{
    struct mesh_verdict *verdict = user;
    if (strcmp(component, "coll"))
        return;
    if (level == ZERO_LOG_DEBUG)
        verdict->arrivals++;
    if (level != ZERO_LOG_WARN)
        return;
    if (verdict->refusals < 8)
        snprintf(verdict->refused[verdict->refusals], sizeof verdict->refused[0], "%s", message);
    verdict->refusals++;
}

// In a rank: a check that failed.
static void check(struct mesh_verdict *verdict, bool condition, const char *what)
{
    if (!condition)
        zero_fail(&verdict->error, ZERO_E_CORRUPT, "%s (errno %d)", what, errno);
}

// Tells every peer who talks to whom, and hears the same.
static void talk(const struct boot_mesh *mesh, int rank, struct mesh_verdict *verdict)
{
    char host[256];
    gethostname(host, sizeof host);
    check(verdict, mesh->sockets[rank] == -1, "a socket to oneself");
    for (int peer = 0; peer < mesh->world; peer++) {
        unsigned char address[MESH_ADDRESS_BYTES];
        int port;
        if (mesh_address(mesh->sockets[peer], true, address, &port) && mesh_is_loopback(address))
            verdict->inside = true;
        const int mine[3] = {rank, peer, getpid()};
        check(verdict, strncmp(mesh->hosts[peer], host, BOOT_HOST_BYTES - 1) == 0, "host's name");
        if (peer != rank)
            check(verdict,
                  send(mesh->sockets[peer], mine, sizeof mine, MSG_NOSIGNAL) == sizeof mine,
                  "send");
    }
    for (int peer = 0; peer < mesh->world; peer++) {
        int theirs[3] = {0};
        if (peer == rank)
            continue;
        mesh_receive_bytes(mesh->sockets[peer], theirs, sizeof theirs,
                           base_clock_ns() + UINT64_C(20000000000), &verdict->error);
        check(verdict, theirs[0] == peer && theirs[1] == rank, "a connection to another rank");
        check(verdict, theirs[2] == mesh->pids[peer], "another process");
    }
}

static void be_rank(const struct mesh_ranks *ranks, const struct mesh_role *role,
                    struct mesh_verdict *verdict)
{
    const struct base_log log = {
        .sink = keep_log, .user = verdict, .level = ZERO_LOG_DEBUG, .rank = role->rank};
    struct boot_master master = ranks->master;
    snprintf(master.secret, sizeof master.secret, "%s", role->secret ? role->secret : "");
    if (role->address)
        snprintf(master.address, sizeof master.address, "%s", role->address);
    const int before = open_descriptors();
    check(verdict, base_fault_set(role->fault, NULL) == ZERO_OK, "fault");
    const char *names = role->names ? role->names : "m";
    for (; *names && !verdict->error.result; names++) {
        const char name[2] = {*names, '\0'};
        const struct boot_meeting meeting = {.rank = role->rank,
                                             .world = role->world,
                                             .job = role->job ? role->job : ranks->job,
                                             .name = role->names ? name : "main",
                                             .deadline_ns = base_clock_ns() + ranks->timeout_ns,
                                             .log = &log};
        struct boot_mesh mesh;
        usleep((useconds_t)role->pause_ms * 1000);
        const zero_result met = boot_mesh_open(&mesh, &meeting, &master, &verdict->error);
        verdict->fired = verdict->fired || base_fault_fired() > 0;
        base_fault_set(NULL, NULL);
        if (met == ZERO_OK)
            talk(&mesh, role->rank, verdict);
        else
            verdict->leaked = open_descriptors() != before;
        boot_mesh_close(&mesh);
    }
    verdict->leaked = verdict->leaked || open_descriptors() != before;
}

// A port that is bound but not listened at: others get another one, and whoever sets SO_REUSEADDR
// can listen there.
static int reserve_port(int *port)
{
    struct sockaddr_in6 any = {.sin6_family = AF_INET6};
    socklen_t length = sizeof any;
    int on = 1;
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        any.sin6_family = AF_INET;
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    }
    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&any, length), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&any, &length), 0);
    *port = ntohs(any.sin6_port);
    return fd;
}

void mesh_ranks_begin(struct mesh_ranks *ranks, const char *address, int timeout_ms)
{
    static int number;
    *ranks = (struct mesh_ranks){.timeout_ns = (uint64_t)timeout_ms * 1000000};
    snprintf(ranks->job, sizeof ranks->job, "test-%d-%d", (int)getpid(), number++);
    snprintf(ranks->master.address, sizeof ranks->master.address, "%s", address);
    snprintf(ranks->master.source, sizeof ranks->master.source, "the test");
    ranks->reserved = reserve_port(&ranks->master.port);
    ranks->verdicts = mmap(NULL, MESH_TEST_RANKS * sizeof *ranks->verdicts, PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(ranks->verdicts, MAP_FAILED);
}

int mesh_ranks_start(struct mesh_ranks *ranks, const struct mesh_role *role)
{
    const int i = ranks->count++;
    assert_true(i < MESH_TEST_RANKS);
    ranks->pids[i] = fork();
    assert_true(ranks->pids[i] >= 0);
    if (ranks->pids[i] == 0) {
        alarm(60); // nothing here takes that long
        be_rank(ranks, role, &ranks->verdicts[i]);
        _exit(0);
    }
    return i;
}

void mesh_ranks_end(struct mesh_ranks *ranks)
{
    for (int i = 0; i < ranks->count; i++) {
        int status = 0;
        assert_int_equal(waitpid(ranks->pids[i], &status, 0), ranks->pids[i]);
        if (status || ranks->verdicts[i].leaked)
            fail_msg("process %d: status %x, leaked %d", i, status, ranks->verdicts[i].leaked);
    }
    close(ranks->reserved);
}

static void await(const volatile int *counter, int count)
{
    const uint64_t deadline = base_clock_ns() + UINT64_C(20000000000);
    while (*counter < count) {
        assert_true(base_clock_ns() < deadline);
        usleep(1000);
    }
}

void mesh_ranks_await_arrivals(const struct mesh_ranks *ranks, int count)
{
    await(&ranks->verdicts[0].arrivals, count);
}

void mesh_ranks_await_refusals(const struct mesh_ranks *ranks, int count)
{
    await(&ranks->verdicts[0].refusals, count);
}

int mesh_ranks_call(const struct mesh_ranks *ranks)
{
    const uint64_t deadline = base_clock_ns() + UINT64_C(20000000000);
    int fd;
    while (mesh_call(&fd, &ranks->master, deadline, NULL)) {
        assert_true(base_clock_ns() < deadline);
        usleep(1000);
    }
    return fd;
}

void mesh_ranks_expect(const struct mesh_ranks *ranks, int i, zero_result result, const char *part1,
                       const char *part2)
{
    const struct base_error *error = &ranks->verdicts[i].error;
    if (error->result != result || (part1 && !strstr(error->message, part1)) ||
        (part2 && !strstr(error->message, part2)))
        fail_msg("process %d: result %d, %s", i, error->result, error->message);
}
