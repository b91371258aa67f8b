// Rank 2 of four meets an impostor that plays the other three, and damages what rank 0 says: the
// table of all ranks, and headers. It ends in its time, well or with an error and a reason, and
// whatever it has learned is printable; sanitizers see to the rest.
//
// Argument: how many sessions; more than those of CI.

#include "base/clock.h"
#include "collectives/rendezvous/mesh_internal.h"
#include "tests/fuzz/sessions.h"
#include "tests/sweep.h"
#include "tests/unit/coll_ranks.h"

#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { WORLD = 4, CALLED = 1, CLIENT = 2, CALLER = 3, CALLS = 4 };

static const unsigned char loopback[MESH_ADDRESS_BYTES] = {
    [10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1};

/** What rank 0 says when all are there. */
struct said {
    struct boot_header header;
    uint64_t token;
    struct mesh_rank ranks[WORLD];
    struct mesh_entry entries[WORLD];
};

_Static_assert(sizeof(struct said) == sizeof(struct boot_header) + sizeof(uint64_t) +
                                          WORLD * sizeof(struct mesh_rank) +
                                          WORLD * sizeof(struct mesh_entry),
               "what is sent has no padding");

struct session {
    uint32_t seed, rolls;
    bool damaged;
    int listener, port;      /**< of rank 0, */
    int called, called_port; /**< and of CALLED */
    zero_result result;
    struct base_error error;
    bool clean; /**< what the client has learned */
};

static uint32_t roll(struct session *session, uint32_t sides)
{
    return mix(session->seed, session->rolls++, TEST_PART) % sides;
}

/* ------------------------------------------------------------------ the client */

static bool is_clean(const char *text, size_t most)
{
    const size_t length = strnlen(text, most);
    for (size_t i = 0; i < length; i++)
        if (text[i] < ' ' || text[i] > '~')
            return false;
    return length < most;
}

static void *be_client(void *user)
{
    struct session *session = user;
    const struct boot_master master = {
        .address = "127.0.0.1", .port = session->port, .source = "here"};
    const struct boot_meeting meeting = {.rank = CLIENT,
                                         .world = WORLD,
                                         .job = "fuzz",
                                         .name = "mesh",
                                         .deadline_ns = base_clock_ns() + UINT64_C(20000000000)};
    struct boot_mesh mesh;
    session->result = boot_mesh_open(&mesh, &meeting, &master, &session->error);
    session->clean = is_clean(session->error.message, sizeof session->error.message);
    for (int rank = 0; rank < mesh.world && session->result == ZERO_OK; rank++)
        if (!is_clean(mesh.hosts[rank], BOOT_HOST_BYTES) || mesh.pids[rank] < 1)
            session->clean = false;
    boot_mesh_close(&mesh);
    return NULL;
}

/* ------------------------------------------------------------------ the impostor */

static struct said right_table(const struct session *session, const struct boot_hello *hello)
{
    struct said said = {.header = {.magic = BOOT_MAGIC,
                                   .protocol = BOOT_PROTOCOL,
                                   .type = BOOT_TABLE,
                                   .length = sizeof said - sizeof said.header},
                        .token = session->seed};
    for (int rank = 0; rank < WORLD; rank++) {
        struct mesh_entry *entry = &said.entries[rank];
        memcpy(entry->address, loopback, sizeof entry->address);
        entry->port = rank == CLIENT   ? hello->port
                      : rank == CALLED ? (uint32_t)session->called_port
                                       : (uint32_t)rank; // no rank is to call that
        entry->rank = rank;
        entry->host_id[0] = (unsigned char)rank;
        said.ranks[rank] = (struct mesh_rank){.pid = hello->pid, .entry = (uint32_t)rank};
        snprintf(entry->host, sizeof entry->host, "node%d", rank);
    }
    return said;
}

static void damage_byte(struct session *session, void *memory, size_t bytes)
{
    unsigned char *byte = (unsigned char *)memory + roll(session, (uint32_t)bytes);
    *byte ^= (unsigned char)(1 + roll(session, 255));
}

/** Some bytes of a table, but for those that lead out of this host. */
static void damage_table(struct session *session, struct said *said)
{
    struct mesh_entry *entry = &said->entries[roll(session, WORLD)];
    static const uint32_t edges[] = {0, 1, 65535, 65536, INT32_MAX, UINT32_MAX};
    struct mesh_rank *rank = &said->ranks[roll(session, WORLD)];
    switch (roll(session, 7)) {
    case 0:
        memset(entry->address, 0, sizeof entry->address);
        return;
    case 1:
        entry->port = edges[roll(session, sizeof edges / sizeof *edges)];
        return;
    case 2:
        rank->pid = (int32_t)edges[roll(session, sizeof edges / sizeof *edges)];
        return;
    case 3:
        memset(entry->host, (int)roll(session, 256), sizeof entry->host);
        return;
    case 4:
        *entry = said->entries[roll(session, WORLD)];
        return;
    case 5:
        damage_byte(session, rank, sizeof *rank);
        return;
    default:
        damage_byte(session, &entry->port, sizeof *entry - offsetof(struct mesh_entry, port));
    }
}

static void damage(struct session *session, struct said *said)
{
    const struct said right = *said;
    if (roll(session, 8) == 0)
        damage_byte(session, &said->header, sizeof said->header);
    for (uint32_t n = roll(session, 3); n > 0; n--)
        damage_table(session, said);
    session->damaged = memcmp(said, &right, sizeof right) != 0;
}

static void say(int fd, enum boot_message_type type)
{
    boot_send(fd, type, NULL, 0, base_clock_ns() + UINT64_C(20000000000), NULL);
}

/** Says which ranks are missing: any bytes, and now and then too many. */
static void say_missing(struct session *session, int fd)
{
    unsigned char bytes[2 * BOOT_RANKS_BYTES];
    const bool too_many = roll(session, 16) == 0;
    const size_t length =
        roll(session, BOOT_RANKS_BYTES + 1) + (too_many ? BOOT_RANKS_BYTES + 1 : 0);
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)roll(session, 256);
    session->damaged = session->damaged || too_many;
    boot_send(fd, BOOT_MISSING, bytes, length < sizeof bytes ? length : sizeof bytes,
              base_clock_ns() + UINT64_C(20000000000), NULL);
}

/** Introduces itself to the client as the rank that calls it. */
static int call_guest(const struct said *said, int port)
{
    const struct boot_peer peer = {.token = said->token, .rank = CALLER, .called = CLIENT};
    const uint64_t deadline = base_clock_ns() + UINT64_C(20000000000);
    int fd;
    if (!mesh_connect(&fd, loopback, port, deadline, NULL))
        boot_send(fd, BOOT_PEER, &peer, sizeof peer, deadline, NULL);
    return fd;
}

/** Takes the client's call; -1: it has not called in time. */
static int take_call(int listener, uint64_t deadline)
{
    struct pollfd pollfd = {.fd = listener, .events = POLLIN};
    int fd = -1;
    while (fd < 0 && base_clock_ns() < deadline) {
        poll(&pollfd, 1, 100);
        if (boot_accept(&fd, listener, NULL))
            break;
    }
    return fd;
}

/** Takes the call of a rank that introduces itself. A client of another session may call, too,
 * which was told a wrong port. */
static int take_guest(int listener, struct boot_hello *hello, uint64_t deadline)
{
    struct boot_header header;
    int fd = take_call(listener, deadline);
    while (fd >= 0 &&
           (boot_receive(fd, &header, sizeof *hello, deadline, NULL) || header.type != BOOT_HELLO ||
            boot_receive_bytes(fd, hello, sizeof *hello, deadline, NULL))) {
        boot_fd_close(&fd);
        fd = take_call(listener, deadline);
    }
    return fd;
}

/** Answers as CALLED, if the client calls it; until it has hung up or says something. */
static void be_called(const struct session *session, int client)
{
    const uint64_t deadline = base_clock_ns() + UINT64_C(20000000000);
    struct pollfd polls[2] = {{.fd = client, .events = POLLIN},
                              {.fd = session->called, .events = POLLIN}};
    int fds[CALLS] = {-1, -1, -1, -1}, count = 0;
    while (count < CALLS && !polls[0].revents && base_clock_ns() < deadline) {
        poll(polls, 2, 100);
        if (polls[1].revents && !boot_accept(&fds[count], session->called, NULL) && fds[count] >= 0)
            say(fds[count++], BOOT_KNOWN);
    }
    poll(polls, 1, 20000);
    for (int i = 0; i < count; i++)
        boot_fd_close(&fds[i]);
}

/** Plays the others until the client is connected to all, or has hung up. */
static void be_others(struct session *session)
{
    struct boot_hello hello;
    struct boot_header header;
    const uint64_t deadline = base_clock_ns() + UINT64_C(20000000000);
    int fd = take_guest(session->listener, &hello, deadline);
    if (fd < 0)
        return;
    struct said said = right_table(session, &hello);
    if (session->seed > 0)
        damage(session, &said);
    say(fd, BOOT_KNOWN);
    for (uint32_t n = roll(session, 3); session->seed > 0 && n > 0; n--)
        say_missing(session, fd);
    send(fd, &said, sizeof said, MSG_NOSIGNAL);
    int caller = call_guest(&said, (int)hello.port);
    be_called(session, fd);
    if (!boot_receive(fd, &header, 0, deadline, NULL))
        say(fd, BOOT_GO);
    boot_fd_close(&caller);
    boot_fd_close(&fd);
}

/* ------------------------------------------------------------------ all of it */

/** Listens at a port of its own. */
static int listen_somewhere(int *port)
{
    unsigned char address[MESH_ADDRESS_BYTES];
    int listener;
    if (mesh_listen(&listener, loopback, 0, 5, NULL) ||
        !mesh_address(listener, false, address, port))
        abort();
    return listener;
}

static enum session_end run_session(unsigned seed)
{
    struct session session = {.seed = seed};
    pthread_t client;
    session.listener = listen_somewhere(&session.port);
    session.called = listen_somewhere(&session.called_port);
    if (pthread_create(&client, NULL, be_client, &session) != 0)
        abort();
    be_others(&session);
    pthread_join(client, NULL);
    boot_fd_close(&session.listener);
    boot_fd_close(&session.called);
    const bool good = session.result == ZERO_OK;
    if (session.result <= 0 && session.clean && (good || session.damaged) &&
        good == !session.error.message[0])
        return good ? SESSION_WELL : SESSION_HARMED;
    fprintf(stderr, "session %u: result %d: \"%s\"\n", seed, session.result, session.error.message);
    return SESSION_WRONG;
}

int main(int argc, char **argv)
{
    const struct sessions sessions = {
        .run = run_session, .count = 300, .together = 4, .most_well = 75};
    return sessions_run(&sessions, argc, argv);
}
