#include "tests/unit/coll_relay.h"

#include "collectives/rendezvous/mesh.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/** Passes on what a rank sends to another one. */
struct relay {
    int from, to;
    change_fn change;
    void *user;
};

static bool move_all(int socket, unsigned char *bytes, size_t count, bool send_them)
{
    for (size_t done = 0; done < count;) {
        const ssize_t moved = send_them ? send(socket, bytes + done, count - done, MSG_NOSIGNAL)
                                        : recv(socket, bytes + done, count - done, 0);
        if (moved <= 0)
            return false;
        done += (size_t)moved;
    }
    return true;
}

static void *relay(void *user)
{
    enum { MOST = sizeof(union net_fixed) + 1024 * 1024 };
    const struct relay *relay = user;
    const size_t at = sizeof(struct net_header);
    unsigned char *frame = malloc(at + MOST);
    struct net_header header;
    while (frame && move_all(relay->from, frame, at, false)) {
        memcpy(&header, frame, at);
        const size_t rest = header.bytes;
        if (rest > MOST || !move_all(relay->from, frame + at, rest, false))
            break;
        if (relay->change)
            relay->change(&header, frame + at, relay->user);
        memcpy(frame, &header, at);
        if (!move_all(relay->to, frame, at + rest, true))
            break;
    }
    free(frame);
    shutdown(relay->to, SHUT_WR);
    // A rank that sends shall not wait for one that reads no more.
    shutdown(relay->from, SHUT_RD);
    return NULL;
}

struct party {
    struct relayed *job;
    int rank, socket;
};

static void *run_party(void *user)
{
    const struct party *self = user;
    struct relayed *job = self->job;
    int sockets[2];
    char hosts[2][BOOT_HOST_BYTES] = {"here", "there"};
    struct boot_mesh mesh = {.world = 2, .sockets = sockets, .hosts = hosts};
    const struct coll_config config = {.transport = "tcp",
                                       .rank = self->rank,
                                       .world = 2,
                                       .job = "coll-test-relay",
                                       .name = "test",
                                       .mesh = &mesh,
                                       .timeout_ns = job->timeout_ns};
    struct coll_comm *comm;
    sockets[self->rank] = -1;
    sockets[1 - self->rank] = self->socket;
    zero_result *result = &job->results[self->rank];
    *result = coll_open(&comm, &config, &job->errors[self->rank]);
    if (*result == ZERO_OK)
        *result = job->fn(comm, &job->errors[self->rank]);
    coll_close(comm);
    if (sockets[1 - self->rank] >= 0) // coll_open() has failed
        close(sockets[1 - self->rank]);
    return NULL;
}

/** The second one of the pair has room for so many bytes, about. */
static bool connect_pair(int pair[2], int room)
{
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr *address = (struct sockaddr *)&name;
    socklen_t length = sizeof name;
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    pair[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (room > 0)
        setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    const bool calls = bind(listener, address, length) == 0 && listen(listener, 1) == 0 &&
                       getsockname(listener, address, &length) == 0 &&
                       connect(pair[0], address, length) == 0;
    pair[1] = calls ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1;
    close(listener);
    for (int i = 0; i < 2; i++)
        setsockopt(pair[i], IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    return pair[1] >= 0;
}

void relay_run(struct relayed *job)
{
    int pairs[2][2];
    struct party ranks[2];
    struct relay relays[2];
    pthread_t threads[4];
    for (int rank = 0; rank < 2; rank++)
        if (!connect_pair(pairs[rank], job->room))
            abort();
    for (int rank = 0; rank < 2; rank++) {
        ranks[rank] = (struct party){job, rank, pairs[rank][0]};
        relays[rank] = (struct relay){pairs[rank][1], pairs[1 - rank][1], job->changes[rank],
                                      job->users[rank]};
        if (pthread_create(&threads[rank], NULL, run_party, &ranks[rank]) != 0 ||
            pthread_create(&threads[2 + rank], NULL, relay, &relays[rank]) != 0)
            abort();
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    for (int rank = 0; rank < 2; rank++)
        close(pairs[rank][1]);
}
