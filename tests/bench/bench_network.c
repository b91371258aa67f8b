// Collectives over TCP, of ranks that share no memory as far as they know, against bare connections
// between the same processes that carry the same bytes, and against shared memory. All of it goes
// through the loopback of one host, so that processors are the limit, and no wire.
#include "collectives/rendezvous/mesh.h"
#include "tests/bench/job.h"
#include "tests/unit/port.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

enum { MOST_WORLD = 4, BARRIERS = 500 };

static const size_t vector_bytes = (size_t)64 << 20; // a rank

enum work {
    GATHER,
    REDUCE,
    BARRIER,
    SHM_GATHER,
    SHM_REDUCE,
    RAW,
    RAW_BARRIER,
};

/** Of every rank to every other one, and where the ranks meet. */
struct wires {
    int sockets[MOST_WORLD][MOST_WORLD];
    int port;
};

struct rank {
    struct coll_comm *tcp, *shm;
    const int *sockets;
    int number, world;
    struct coll_arena *arenas[2];       // of tcp and shm: a vector to gather in place
    float *sum;                         // of a reduction: a block
    struct coll_span bytes[MOST_WORLD]; // blocks
    struct coll_span elements[MOST_WORLD];
};

/* ------------------------------------------------------------------ ours */

static zero_result gather(const struct rank *rank, bool shm)
{
    struct coll_comm *comm = shm ? rank->shm : rank->tcp;
    unsigned char *vector = coll_arena_base(rank->arenas[shm]);
    const struct coll_all_gather op = {
        .source = vector + rank->bytes[rank->number].offset, .recv = vector, .spans = rank->bytes};
    struct coll_request request = {0};
    const zero_result r = coll_all_gather_start(comm, &op, &request);
    return r ? r : coll_drain(comm, &request);
}

static zero_result reduce(const struct rank *rank, bool shm)
{
    struct coll_comm *comm = shm ? rank->shm : rank->tcp;
    const struct coll_reduce_scatter op = {.source = coll_arena_base(rank->arenas[shm]),
                                           .dtype = ZERO_F32,
                                           .spans = rank->elements,
                                           .accumulator = rank->sum,
                                           .contributors = rank->world,
                                           .store = true};
    struct coll_request request = {0};
    const zero_result r = coll_reduce_scatter_start(comm, &op, &request);
    return r ? r : coll_drain(comm, &request);
}

static zero_result barriers(const struct rank *rank)
{
    zero_result r = ZERO_OK;
    for (int i = 0; i < BARRIERS && r == ZERO_OK; i++)
        r = coll_barrier(rank->tcp);
    return r;
}

/* ------------------------------------------------------------------ bare connections */

/** Bytes to and from a peer. */
struct flow {
    unsigned char *out, *in;
    size_t to_send, to_receive;
};

static bool moved(ssize_t bytes, unsigned char **at, size_t *left)
{
    if (bytes < 0)
        return errno == EAGAIN || errno == EINTR;
    *at += bytes;
    *left -= (size_t)bytes;
    return bytes > 0;
}

static bool move(int socket, short ready, struct flow *flow)
{
    return (!(ready & POLLIN) ||
            moved(recv(socket, flow->in, flow->to_receive, 0), &flow->in, &flow->to_receive)) &&
           (!(ready & POLLOUT) || moved(send(socket, flow->out, flow->to_send, MSG_NOSIGNAL),
                                        &flow->out, &flow->to_send));
}

/** Until all has come and gone. */
static bool move_all(const struct rank *rank, struct flow *flows)
{
    for (;;) {
        struct pollfd polls[MOST_WORLD];
        bool left = false;
        for (int peer = 0; peer < rank->world; peer++) {
            const struct flow *flow = &flows[peer];
            const int events = (flow->to_receive ? POLLIN : 0) | (flow->to_send ? POLLOUT : 0);
            polls[peer] = (struct pollfd){events ? rank->sockets[peer] : -1, (short)events, 0};
            left |= events != 0;
        }
        if (!left)
            return true;
        if (poll(polls, (nfds_t)rank->world, -1) < 0 && errno != EINTR)
            return false;
        for (int peer = 0; peer < rank->world; peer++)
            if (polls[peer].revents &&
                !move(rank->sockets[peer], polls[peer].revents, &flows[peer]))
                return false;
    }
}

/** Every rank's block to every rank. */
static zero_result raw(const struct rank *rank)
{
    unsigned char *vector = coll_arena_base(rank->arenas[0]);
    const struct coll_span *own = &rank->bytes[rank->number];
    struct flow flows[MOST_WORLD] = {{0}};
    for (int peer = 0; peer < rank->world; peer++)
        if (peer != rank->number)
            flows[peer] = (struct flow){vector + own->offset, vector + rank->bytes[peer].offset,
                                        own->count, rank->bytes[peer].count};
    return move_all(rank, flows) ? ZERO_OK : ZERO_E_IO;
}

static zero_result raw_barriers(const struct rank *rank)
{
    unsigned char in[MOST_WORLD], out[MOST_WORLD] = {0};
    for (int i = 0; i < BARRIERS; i++) {
        struct flow flows[MOST_WORLD] = {{0}};
        for (int peer = 0; peer < rank->world; peer++)
            if (peer != rank->number)
                flows[peer] = (struct flow){&out[peer], &in[peer], 1, 1};
        if (!move_all(rank, flows))
            return ZERO_E_IO;
    }
    return ZERO_OK;
}

/** Two ends of a connection through loopback. */
static bool connect_pair(int pair[2])
{
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof name;
    const int on = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    pair[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    pair[1] = -1;
    if (listener >= 0 && pair[0] >= 0 && bind(listener, (struct sockaddr *)&name, length) == 0 &&
        listen(listener, 1) == 0 && getsockname(listener, (struct sockaddr *)&name, &length) == 0 &&
        connect(pair[0], (struct sockaddr *)&name, length) == 0)
        pair[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    close(listener);
    if (pair[1] < 0)
        return false;
    setsockopt(pair[0], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(pair[1], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return ioctl(pair[0], FIONBIO, &on) == 0;
}

static bool connect_all(struct wires *wires, int world)
{
    for (int i = 0; i < world; i++)
        for (int j = 0; j < i; j++) {
            int pair[2];
            if (!connect_pair(pair))
                return false;
            wires->sockets[i][j] = pair[0];
            wires->sockets[j][i] = pair[1];
        }
    return true;
}

/* ------------------------------------------------------------------ the rows */

static zero_result run(void *user, int work)
{
    const struct rank *rank = user;
    switch ((enum work)work) {
    case GATHER:
        return gather(rank, false);
    case REDUCE:
        return reduce(rank, false);
    case BARRIER:
        return barriers(rank);
    case SHM_GATHER:
        return gather(rank, true);
    case SHM_REDUCE:
        return reduce(rank, true);
    case RAW:
        return raw(rank);
    case RAW_BARRIER:
        return raw_barriers(rank);
    }
    return ZERO_E_INVALID;
}

/** Amounts are bytes that each rank has to get from the others. */
static void rows(struct job *job)
{
    const double p = coll_world(job->comm), n = BARRIERS * 1e-3;
    const double s = (p - 1) / p * (double)vector_bytes * 1e-9;
    const char *bare = "bare TCP";
    const struct job_row rows[] = {
        {"all-gather over TCP", GATHER, s, RAW, s, bare, "GB/s", 0, 0},
        {"reduce-scatter over TCP", REDUCE, s, RAW, s, bare, "GB/s", 0, 0},
        {"barrier over TCP", BARRIER, n, RAW_BARRIER, n, bare, "1/ms", 0, 0},
        {"all-gather over TCP", GATHER, s, SHM_GATHER, s, "shm", "GB/s", 0, 0},
        {"reduce-scatter over TCP", REDUCE, s, SHM_REDUCE, s, "shm", "GB/s", 0, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        job_measure(job, &rows[i]);
}

static zero_result prepare(struct rank *rank, const char *job, int port, struct base_error *error)
{
    const struct boot_master master = {.address = "127.0.0.1", .port = port, .source = "here"};
    const struct coll_config config = {.transport = "tcp",
                                       .rank = rank->number,
                                       .world = rank->world,
                                       .job = job,
                                       .name = "network",
                                       .master = &master,
                                       .timeout_ns = UINT64_C(60000000000)};
    zero_result r = job_open(&rank->shm, rank->number, rank->world, job, error);
    if (!r)
        r = coll_open(&rank->tcp, &config, error);
    if (!r)
        r = coll_arena_create(rank->tcp, vector_bytes, &rank->arenas[0], error);
    if (!r)
        r = coll_arena_create(rank->shm, vector_bytes, &rank->arenas[1], error);
    rank->sum = calloc(1, vector_bytes);
    return r || rank->sum ? r : zero_fail(error, ZERO_E_NOMEM, "no memory");
}

static int run_rank(int number, int world, const char *job, void *user)
{
    const struct wires *wires = user;
    struct base_error error = {0};
    struct rank rank = {.number = number, .world = world, .sockets = wires->sockets[number]};
    const size_t block = vector_bytes / (size_t)world;
    for (size_t r = 0; r < (size_t)world; r++) {
        rank.bytes[r] = (struct coll_span){r * block, block};
        rank.elements[r] = (struct coll_span){r * block / sizeof(float), block / sizeof(float)};
    }
    zero_result r = prepare(&rank, job, wires->port, &error);
    if (!r) {
        struct job together = {rank.shm, run, &rank};
        if (number == 0)
            rows(&together);
        r = number == 0 ? job_finish(&together) : job_follow(&together);
        if (!coll_state(rank.tcp, &error))
            coll_state(rank.shm, &error);
    }
    if (r)
        fprintf(stderr, "rank %d: %s\n", number, error.message);
    coll_close(rank.tcp);
    coll_close(rank.shm);
    free(rank.sum);
    return r ? 1 : 0;
}

static int run_world(int world)
{
    struct wires wires = {.port = 0};
    const int reserved = port_reserve(&wires.port);
    if (reserved < 0 || !connect_all(&wires, world)) {
        fprintf(stderr, "no connections through loopback: %s\n", strerror(errno));
        return 1;
    }
    const int failed = job_processes(world, run_rank, &wires);
    for (int i = 0; i < world; i++)
        for (int j = 0; j < world; j++)
            if (i != j)
                close(wires.sockets[i][j]);
    close(reserved);
    return failed;
}

int main(void)
{
    bench_print_header();
    return run_world(2) | run_world(MOST_WORLD);
}
