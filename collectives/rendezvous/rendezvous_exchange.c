// Exchanges through rank 0: it collects every rank's share in rank order and sends all of them to
// every rank. A share is one message, with bytes or with descriptors.

#include "collectives/rendezvous/meeting.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

struct exchange {
    struct boot_link *link;
    enum boot_share kind;
    size_t total;       // of one share: bytes, or descriptors
    unsigned char *all; // BOOT_SHARE_BYTES
    int *all_fds;       // BOOT_SHARE_FDS
    uint64_t deadline_ns;
    struct boot_wait wait; // for the peer that is waited for now
};

static zero_result fail_transfer(const struct exchange *exchange, const char *verb, int peer,
                                 zero_result result, const char *why, struct base_error *error)
{
    return zero_fail(error, result, "rank %d: %s rank %d (process %d): %s", exchange->link->rank,
                     verb, peer, (int)exchange->link->pids[peer], why);
}

static zero_result send_share(const struct exchange *exchange, int peer, int source,
                              const void *bytes, const int *fds, struct base_error *error)
{
    const struct boot_link *link = exchange->link;
    const bool is_fds = exchange->kind == BOOT_SHARE_FDS;
    assert(peer < link->socket_count && source < link->world);
    struct boot_part part = {.sequence = link->sequence,
                             .total = exchange->total,
                             .source = (uint32_t)source,
                             .kind = exchange->kind};
    const struct iovec payload[2] = {{&part, sizeof part},
                                     {(void *)bytes, is_fds ? 0 : exchange->total}};
    struct base_error sent = {.result = ZERO_OK};
    const zero_result result =
        boot_send_with(link->sockets[peer], BOOT_PART, payload, fds,
                       is_fds ? (int)exchange->total : 0, exchange->deadline_ns, &sent);
    return result ? fail_transfer(exchange, "sending to", peer, result, sent.message, error)
                  : ZERO_OK;
}

// The rank of those this one is connected to that has gone away, -1 if none. Its socket says so,
// or, if a child that it has left behind holds that open, its process. What the peer has sent comes
// first.
static int gone_rank(const struct boot_link *link, int peer, bool ended)
{
    if (link->polls[peer].revents)
        return -1;
    for (int rank = 0; rank < link->socket_count; rank++)
        if (link->polls[rank].revents)
            return rank;
    if (!ended)
        return -1;
    return link->rank == 0 ? boot_peer_gone(link) : 0;
}

// Says, when it is time to, which rank this one waits for.
static void remind(struct exchange *exchange, int peer)
{
    const struct boot_link *link = exchange->link;
    double seconds;
    if (boot_wait_says(&exchange->wait, &seconds))
        base_logf(
            link->log, ZERO_LOG_WARN, "coll",
            "rank %d has waited %.0f s in exchange %llu of descriptors and addresses for rank "
            "%d (process %d) (job %s, \"%s\")",
            link->rank, seconds, (unsigned long long)link->sequence, peer, (int)link->pids[peer],
            link->job, link->name);
}

// Until when this rank waits for another one.
static uint64_t patience(const struct exchange *exchange)
{
    return exchange->deadline_ns + (exchange->link->rank == 0 ? 0 : BOOT_GRACE_NS);
}

// Waits for a message of `peer`, or until any rank this one is connected to goes away. ZERO_AGAIN:
// nothing has come yet.
static zero_result wait_for(struct exchange *exchange, int peer, struct base_error *error)
{
    struct boot_link *link = exchange->link;
    remind(exchange, peer);
    const int left = boot_wait_left(&exchange->wait, patience(exchange), 1000);
    if (left == 0)
        return zero_fail(error, ZERO_E_TIMEOUT,
                         "rank %d: rank %d (process %d) did not come to exchange %llu in time",
                         link->rank, peer, (int)link->pids[peer],
                         (unsigned long long)link->sequence);
    for (int rank = 0; rank < link->socket_count; rank++)
        link->polls[rank] = (struct pollfd){.fd = link->sockets[rank],
                                            .events = (short)(rank == peer ? POLLIN : 0)};
    // Rank 0 looks after all of them, and tells each about the others.
    struct pollfd *watch = &link->polls[link->socket_count];
    *watch =
        (struct pollfd){.fd = link->rank == 0 ? link->watch : link->watched[0], .events = POLLIN};
    if (poll(link->polls, (nfds_t)link->socket_count + 1, left) < 0) {
        if (errno == EINTR)
            return ZERO_AGAIN;
        return zero_fail_errno(error, ZERO_E_IO, errno, "rank %d: waiting for rank %d", link->rank,
                               peer);
    }
    const int gone = gone_rank(link, peer, watch->revents != 0);
    if (gone >= 0)
        return zero_fail(error, ZERO_E_PEER, "rank %d (process %d) has gone away", gone,
                         (int)link->pids[gone]);
    return link->polls[peer].revents ? ZERO_OK : ZERO_AGAIN;
}

// Receives the header of a peer's message, and its descriptors.
static zero_result receive_message(struct exchange *exchange, int peer, struct boot_header *header,
                                   int *fds, int room, struct base_error *error)
{
    const struct boot_link *link = exchange->link;
    struct base_error received = {.result = ZERO_OK};
    zero_result result;
    exchange->wait = boot_wait_begin(link->remind_ns, exchange->deadline_ns);
    do
        result = wait_for(exchange, peer, error);
    while (result == ZERO_AGAIN);
    if (result)
        return result;
    result =
        boot_receive_with(link->sockets[peer], header, sizeof(struct boot_part) + BOOT_BYTES_MAX,
                          fds, room, patience(exchange), &received);
    if (result && header->type == BOOT_FAIL)
        return zero_fail(error, result, "%s", received.message);
    return result ? fail_transfer(exchange, "receiving from", peer, result, received.message, error)
                  : ZERO_OK;
}

static zero_result check_part(const struct exchange *exchange, int peer, int source,
                              const struct boot_header *header, const struct boot_part *got,
                              struct base_error *error)
{
    const bool is_fds = exchange->kind == BOOT_SHARE_FDS;
    if (header->type != BOOT_PART || header->length < sizeof *got ||
        got->sequence != exchange->link->sequence || got->kind != (uint32_t)exchange->kind ||
        got->total != exchange->total)
        return zero_fail(error, ZERO_E_DIVERGED,
                         "rank %d is in exchange %llu of %zu %s, rank %d in exchange %llu of %llu "
                         "%s",
                         exchange->link->rank, (unsigned long long)exchange->link->sequence,
                         exchange->total, is_fds ? "descriptors" : "bytes", peer,
                         (unsigned long long)got->sequence, (unsigned long long)got->total,
                         got->kind == BOOT_SHARE_FDS ? "descriptors" : "bytes");
    const size_t fds = is_fds ? exchange->total : 0, bytes = exchange->total - fds;
    if (got->source != (uint32_t)source || header->fds != fds ||
        header->length != sizeof *got + bytes)
        return zero_fail(error, ZERO_E_INVALID, "rank %d: rank %d sent a part out of place",
                         exchange->link->rank, peer);
    return ZERO_OK;
}

static zero_result receive_share(struct exchange *exchange, int peer, int source,
                                 struct base_error *error)
{
    const int socket = exchange->link->sockets[peer];
    const int room = exchange->kind == BOOT_SHARE_FDS ? (int)exchange->total : 0;
    struct boot_header header;
    struct boot_part part = {.sequence = 0};
    struct base_error received = {.result = ZERO_OK};
    zero_result result = receive_message(
        exchange, peer, &header, room ? exchange->all_fds + (size_t)source * exchange->total : NULL,
        room, error);
    if (result)
        return result;
    const uint64_t deadline = patience(exchange);
    if (header.length >= sizeof part)
        result = boot_receive_bytes(socket, &part, sizeof part, deadline, &received);
    if (result)
        return fail_transfer(exchange, "receiving from", peer, result, received.message, error);
    result = check_part(exchange, peer, source, &header, &part, error);
    if (result || !exchange->all)
        return result;
    result = boot_receive_bytes(socket, exchange->all + (size_t)source * exchange->total,
                                exchange->total, deadline, &received);
    return result ? fail_transfer(exchange, "receiving from", peer, result, received.message, error)
                  : ZERO_OK;
}

// The share of rank `source` in what was collected.
static zero_result send_collected(const struct exchange *exchange, int peer, int source,
                                  struct base_error *error)
{
    const size_t first = (size_t)source * exchange->total;
    return send_share(exchange, peer, source, exchange->all ? exchange->all + first : NULL,
                      exchange->all_fds ? exchange->all_fds + first : NULL, error);
}

// Rank 0; its own share is in place already.
static zero_result exchange_as_server(struct exchange *exchange, struct base_error *error)
{
    const int world = exchange->link->world;
    zero_result result = ZERO_OK;
    for (int rank = 1; rank < world && !result; rank++)
        result = receive_share(exchange, rank, rank, error);
    for (int rank = 1; rank < world && !result; rank++)
        for (int source = 0; source < world && !result; source++)
            result = send_collected(exchange, rank, source, error);
    return result;
}

// Rank 0 has closed its socket; if it has said before why, that is the failure.
static zero_result explain_loss(struct exchange *exchange, zero_result lost,
                                struct base_error *error)
{
    struct base_error told = {.result = ZERO_OK};
    struct boot_header header;
    unsigned char bytes[4096];
    zero_result result;
    do {
        header = (struct boot_header){.type = 0};
        result = receive_message(exchange, 0, &header, NULL, 0, &told);
        for (size_t left = header.length, some; left > 0 && !result; left -= some) {
            some = left < sizeof bytes ? left : sizeof bytes;
            result = boot_receive_bytes(exchange->link->sockets[0], bytes, some, patience(exchange),
                                        &told);
        }
    } while (!result);
    if (header.type != BOOT_FAIL)
        return lost;
    base_error_clear(error);
    return zero_fail(error, result, "%s", told.message);
}

static zero_result exchange_as_client(struct exchange *exchange, const void *mine,
                                      const int *mine_fds, struct base_error *error)
{
    zero_result result = send_share(exchange, 0, exchange->link->rank, mine, mine_fds, error);
    if (result == ZERO_E_PEER)
        return explain_loss(exchange, result, error);
    for (int source = 0; source < exchange->link->world && !result; source++)
        result = receive_share(exchange, 0, source, error);
    return result;
}

// Runs it; rank 0's failure is every rank's, and has the reason.
static zero_result run(struct exchange *exchange, const void *mine, const int *mine_fds,
                       struct base_error *error)
{
    struct base_error failure = {.result = ZERO_OK};
    exchange->link->sequence++;
    const zero_result result = exchange->link->rank == 0
                                   ? exchange_as_server(exchange, &failure)
                                   : exchange_as_client(exchange, mine, mine_fds, &failure);
    if (!result)
        return ZERO_OK;
    for (int rank = 1; rank < exchange->link->socket_count; rank++)
        boot_send_failure(exchange->link->sockets[rank], result, failure.message);
    return zero_fail(error, result, "%s", failure.message);
}

zero_result boot_exchange_bytes(struct boot_link *link, const void *mine, size_t bytes, void *all,
                                uint64_t deadline_ns, struct base_error *error)
{
    if (bytes > BOOT_BYTES_MAX)
        return zero_fail(error, ZERO_E_INVALID, "an exchange of %zu bytes a rank, at most %d",
                         bytes, BOOT_BYTES_MAX);
    struct exchange exchange = {.link = link,
                                .kind = BOOT_SHARE_BYTES,
                                .total = bytes,
                                .all = all,
                                .deadline_ns = deadline_ns};
    if (link->rank == 0 && bytes)
        memcpy(all, mine, bytes);
    return run(&exchange, mine, NULL, error);
}

zero_result boot_exchange_fds(struct boot_link *link, const int *mine, int count, int *all,
                              uint64_t deadline_ns, struct base_error *error)
{
    if (count < 0 || count > BOOT_FDS_MAX)
        return zero_fail(error, ZERO_E_INVALID, "an exchange of %d descriptors a rank, at most %d",
                         count, BOOT_FDS_MAX);
    struct exchange exchange = {.link = link,
                                .kind = BOOT_SHARE_FDS,
                                .total = (size_t)count,
                                .all_fds = all,
                                .deadline_ns = deadline_ns};
    const size_t slots = (size_t)link->world * (size_t)count;
    for (size_t i = 0; i < slots; i++)
        all[i] = -1;

    zero_result result = ZERO_OK;
    for (int i = 0; link->rank == 0 && i < count && !result; i++) {
        all[i] = fcntl(mine[i], F_DUPFD_CLOEXEC, 0);
        if (all[i] < 0)
            result = zero_fail_errno(error, ZERO_E_IO, errno, "rank 0: duplicating descriptor %d",
                                     mine[i]);
    }
    if (!result)
        result = run(&exchange, NULL, mine, error);
    for (size_t i = 0; result && i < slots; i++)
        boot_fd_close(&all[i]);
    return result;
}
