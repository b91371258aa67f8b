// Exchanges through rank 0: it collects every rank's share in rank order and sends all of them to
// everybody. A share is one message with descriptors, or as many as its bytes need.

#include "collectives/rendezvous/rendezvous_link.h"

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

static size_t part_length(const struct exchange *exchange, size_t offset)
{
    if (exchange->kind == BOOT_SHARE_FDS)
        return 0;
    const size_t left = exchange->total - offset;
    return left < BOOT_PART_BYTES ? left : BOOT_PART_BYTES;
}

static zero_result send_share(const struct exchange *exchange, int peer, int source,
                              const unsigned char *bytes, const int *fds, struct base_error *error)
{
    const int socket = exchange->link->sockets[peer];
    const int count = exchange->kind == BOOT_SHARE_FDS ? (int)exchange->total : 0;
    size_t offset = 0, length;
    do {
        length = part_length(exchange, offset);
        struct boot_header header = {.type = BOOT_PART,
                                     .sequence = exchange->link->sequence,
                                     .source = (uint32_t)source,
                                     .total = exchange->total,
                                     .offset = offset,
                                     .length = (uint32_t)length,
                                     .kind = exchange->kind};
        struct base_error sent = {.result = ZERO_OK};
        const zero_result result = boot_send(socket, &header, length ? bytes + offset : NULL, fds,
                                             count, exchange->deadline_ns, &sent);
        if (result)
            return zero_fail(error, result, "rank %d: sending to rank %d (process %d): %s",
                             exchange->link->rank, peer, (int)exchange->link->pids[peer],
                             sent.message);
        offset += length;
    } while (length && offset < exchange->total);
    return ZERO_OK;
}

// The rank of those this one is connected to that has gone away, -1 if none. Its socket says so,
// or, if a child that it has left behind holds that open, its process.
static int gone_rank(const struct boot_link *link, int peer, bool ended)
{
    for (int rank = 0; rank < link->socket_count; rank++)
        if (rank != peer && link->polls[rank].revents)
            return rank;
    // What the peer sent before it ended comes first.
    if (!ended || link->polls[peer].revents)
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

// Waits for a message of `peer`, or until any rank this one is connected to goes away.
static zero_result wait_for(struct exchange *exchange, int peer, struct base_error *error)
{
    struct boot_link *link = exchange->link;
    remind(exchange, peer);
    const uint64_t patience = link->rank == 0 ? 0 : BOOT_VERDICT_NS;
    const int left = boot_wait_left(&exchange->wait, exchange->deadline_ns + patience, 1000);
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
            return ZERO_OK;
        return zero_fail_errno(error, ZERO_E_IO, errno, "rank %d: waiting for rank %d", link->rank,
                               peer);
    }
    const int gone = gone_rank(link, peer, watch->revents != 0);
    if (gone >= 0)
        return zero_fail(error, ZERO_E_PEER, "rank %d (process %d) has gone away", gone,
                         (int)link->pids[gone]);
    return ZERO_OK;
}

static zero_result receive_message(struct exchange *exchange, int peer, int *fds, int room,
                                   struct base_error *error)
{
    struct boot_link *link = exchange->link;
    exchange->wait = boot_wait_begin(link->remind_ns, exchange->deadline_ns);
    for (;;) {
        bool arrived = false;
        struct base_error received = {.result = ZERO_OK};
        zero_result result =
            boot_receive(link->sockets[peer], link->message, fds, room, &arrived, &received);
        if (result)
            return zero_fail(error, result, "rank %d: receiving from rank %d (process %d): %s",
                             link->rank, peer, (int)link->pids[peer], received.message);
        if (arrived)
            return link->message->header.type == BOOT_FAIL ? boot_peer_failure(link->message, error)
                                                           : ZERO_OK;
        result = wait_for(exchange, peer, error);
        if (result)
            return result;
    }
}

static zero_result check_part(const struct exchange *exchange, int peer, int source, size_t offset,
                              struct base_error *error)
{
    const struct boot_header *got = &exchange->link->message->header;
    if (got->type != BOOT_PART || got->sequence != exchange->link->sequence ||
        got->kind != (uint32_t)exchange->kind || got->total != exchange->total)
        return zero_fail(error, ZERO_E_DIVERGED,
                         "rank %d is in exchange %llu of %zu %s, rank %d in exchange %llu of %llu "
                         "%s",
                         exchange->link->rank, (unsigned long long)exchange->link->sequence,
                         exchange->total,
                         exchange->kind == BOOT_SHARE_FDS ? "descriptors" : "bytes", peer,
                         (unsigned long long)got->sequence, (unsigned long long)got->total,
                         got->kind == BOOT_SHARE_FDS ? "descriptors" : "bytes");
    const size_t fds = exchange->kind == BOOT_SHARE_FDS ? exchange->total : 0;
    if (got->source != (uint32_t)source || got->offset != offset || got->fds != fds ||
        got->length != part_length(exchange, offset))
        return zero_fail(error, ZERO_E_INVALID, "rank %d: rank %d sent a part out of place",
                         exchange->link->rank, peer);
    return ZERO_OK;
}

static zero_result receive_share(struct exchange *exchange, int peer, int source,
                                 struct base_error *error)
{
    int *fds = exchange->all_fds ? exchange->all_fds + (size_t)source * exchange->total : NULL;
    const int room = exchange->kind == BOOT_SHARE_FDS ? (int)exchange->total : 0;
    size_t offset = 0, length;
    do {
        zero_result result = receive_message(exchange, peer, fds, room, error);
        if (!result)
            result = check_part(exchange, peer, source, offset, error);
        if (result)
            return result;
        length = exchange->link->message->header.length;
        if (exchange->all)
            memcpy(exchange->all + (size_t)source * exchange->total + offset,
                   exchange->link->message->payload, length);
        offset += length;
    } while (length && offset < exchange->total);
    return ZERO_OK;
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
    struct boot_header *header = &exchange->link->message->header;
    zero_result result;
    do {
        header->type = 0;
        result = receive_message(exchange, 0, NULL, 0, &told);
    } while (!result);
    if (header->type != BOOT_FAIL)
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

// Runs it; rank 0's failure is everybody's, and has the reason.
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
    if (exchange->link->rank == 0)
        boot_tell_ranks(exchange->link, result, failure.message);
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
