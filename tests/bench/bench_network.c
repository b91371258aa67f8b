// Collectives over TCP, of ranks that share no memory as far as they know, against bare connections
// between the same processes that carry the same bytes, and against shared memory. All of it goes
// through the loopback of one host, so that processors are the limit, and no wire. By UCX, where it
// is to be had, over TCP as well, unless UCX_TLS says otherwise: MPI's libraries are the ones to
// compare.
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

/** How bytes travel. */
enum way { TCP, SHM, UCX, WAYS };

static const size_t vector_bytes = (size_t)64 << 20; // a rank

enum work {
    GATHER,
    REDUCE,
    BARRIER,
    SHM_GATHER,
    SHM_REDUCE,
    UCX_GATHER,
    UCX_REDUCE,
    RAW,
    RAW_BARRIER,
};

/** Of every rank to every other one, and where the ranks meet. */
struct wires {
    int sockets[MOST_WORLD][MOST_WORLD];
    int port;
};

struct rank {
    struct coll_comm *comms[WAYS];
    bool has_ucx;
    const int *sockets;
    int number, world;
    struct coll_arena *arenas[WAYS];    // a vector to gather in place
    float *sum;                         // of a reduction: a block
    struct coll_span bytes[MOST_WORLD]; // blocks
    struct coll_span elements[MOST_WORLD];
};

/* ------------------------------------------------------------------ ours */

static zero_result gather(const struct rank *rank, enum way way)
{
    struct coll_comm *comm = rank->comms[way];
    unsigned char *vector = coll_arena_base(rank->arenas[way]);
    const struct coll_all_gather op = {
        .source = vector + rank->bytes[rank->number].offset, .recv = vector, .spans = rank->bytes};
    struct coll_request request = {0};
    const zero_result r = coll_all_gather_start(comm, &op, &request);
    return r ? r : coll_drain(comm, &request);
}

static zero_result reduce(const struct rank *rank, enum way way)
{
    struct coll_comm *comm = rank->comms[way];
    const struct coll_reduce_scatter op = {.source = coll_arena_base(rank->arenas[way]),
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
        r = coll_barrier(rank->comms[TCP]);
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
        return gather(rank, TCP);
    case REDUCE:
        return reduce(rank, TCP);
    case BARRIER:
        return barriers(rank);
    case SHM_GATHER:
        return gather(rank, SHM);
    case SHM_REDUCE:
        return reduce(rank, SHM);
    case UCX_GATHER:
        return gather(rank, UCX);
    case UCX_REDUCE:
        return reduce(rank, UCX);
    case RAW:
        return raw(rank);
    case RAW_BARRIER:
        return raw_barriers(rank);
    }
    return ZERO_E_INVALID;
}

/** Amounts are bytes that each rank has to get from the others. */
static void rows(struct job *job, bool ucx)
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
    const struct job_row by_ucx[] = {
        {"all-gather by UCX", UCX_GATHER, s, GATHER, s, "TCP", "GB/s", 0, 0},
        {"reduce-scatter by UCX", UCX_REDUCE, s, REDUCE, s, "TCP", "GB/s", 0, 0},
        {"all-gather by UCX", UCX_GATHER, s, RAW, s, bare, "GB/s", 0, 0},
        {"reduce-scatter by UCX", UCX_REDUCE, s, RAW, s, bare, "GB/s", 0, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        job_measure(job, &rows[i]);
    for (size_t i = 0; i < sizeof by_ucx / sizeof *by_ucx && ucx; i++)
        job_measure(job, &by_ucx[i]);
}

static zero_result prepare(struct rank *rank, const char *job, int port, struct base_error *error)
{
    const struct boot_master master = {.address = "127.0.0.1", .port = port, .source = "here"};
    struct coll_config config = {.transport = "tcp",
                                 .rank = rank->number,
                                 .world = rank->world,
                                 .job = job,
                                 .name = "network",
                                 .master = &master,
                                 .timeout_ns = UINT64_C(60000000000)};
    zero_result r = job_open(&rank->comms[SHM], rank->number, rank->world, job, error);
    if (!r)
        r = coll_open(&rank->comms[TCP], &config, error);
    config.any_provider = true;
    config.name = "by a provider";
    if (!r)
        r = coll_open(&rank->comms[UCX], &config, error);
    rank->has_ucx = !r && strcmp(coll_transport_name(rank->comms[UCX]), "ucx") == 0;
    if (!r && !rank->has_ucx && rank->number == 0)
        printf("not measured by UCX: %s\n", coll_transport_reason(rank->comms[UCX]));
    for (int way = 0; way < WAYS && !r; way++)
        r = coll_arena_create(rank->comms[way], vector_bytes, &rank->arenas[way], error);
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
        struct job together = {rank.comms[SHM], run, &rank};
        if (number == 0)
            rows(&together, rank.has_ucx);
        r = number == 0 ? job_finish(&together) : job_follow(&together);
        for (int way = 0; way < WAYS && !error.result; way++)
            coll_state(rank.comms[way], &error);
    }
    if (r)
        fprintf(stderr, "rank %d: %s\n", number, error.message);
    for (int way = 0; way < WAYS; way++)
        coll_close(rank.comms[way]);
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
    setenv("UCX_TLS", "tcp,self", 0);
    bench_print_header();
    return run_world(2) | run_world(MOST_WORLD);
}
