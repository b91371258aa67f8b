// Ranks of several hosts, when rank 0 has met all of them: it tells each where the others are, each
// calls those of lower numbers, and rank 0 waits until all are connected.

#include "collectives/rendezvous/mesh_internal.h"

#include "base/text.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

_Static_assert(sizeof(struct mesh_entry) == 104, "an entry has no padding");

enum { CALLS = 3, PAUSE_MS = 100 }; // to another client, which listens already

/* ------------------------------------------------------------------ rank 0 */

// Whether a rank has hung up meanwhile, as one does that calls several addresses in turn.
static bool has_hung_up(int fd)
{
    struct pollfd end = {.fd = fd, .events = POLLRDHUP};
    return poll(&end, 1, 0) != 0;
}

bool mesh_enter(struct meeting *meeting, const struct boot_caller *caller)
{
    const struct boot_hello *hello = &caller->said.hello;
    struct mesh_entry *entry = &meeting->table->entries[hello->rank];
    assert(hello->rank > 0 && hello->rank < meeting->place->world);
    int port;
    entry->port = hello->port;
    entry->pid = hello->pid;
    memcpy(entry->host, hello->host, sizeof entry->host);
    memcpy(entry->host_id, hello->host_id, sizeof entry->host_id);
    memcpy(meeting->hosts[hello->rank], hello->host, sizeof hello->host);
    return !has_hung_up(caller->fd) && mesh_address(caller->fd, true, entry->address, &port);
}

// Ranks of this host may have called over loopback, where no other host finds them: then they are
// where the others have found rank 0.
static void mend_loopback(const struct meeting *meeting)
{
    struct mesh_entry *entries = meeting->table->entries;
    unsigned char outside[MESH_ADDRESS_BYTES];
    bool found = false;
    int port;
    for (int rank = 1; rank < meeting->place->world && !found; rank++)
        found = !mesh_is_loopback(entries[rank].address) &&
                mesh_address(meeting->sockets[rank], false, outside, &port);
    for (int rank = 1; rank < meeting->place->world && found; rank++)
        if (mesh_is_loopback(entries[rank].address))
            memcpy(entries[rank].address, outside, sizeof outside);
}

static zero_result send_table(const struct meeting *meeting, struct base_error *error)
{
    struct mesh_table *table = meeting->table;
    struct mesh_entry *own = &table->entries[0];
    own->pid = meeting->hello.pid;
    memcpy(own->host, meeting->hello.host, sizeof own->host);
    memcpy(own->host_id, meeting->hello.host_id, sizeof own->host_id);
    if (getrandom(&table->token, sizeof table->token, 0) != sizeof table->token)
        return zero_fail_errno(error, ZERO_E_IO, errno, "rank 0: a random number");
    mend_loopback(meeting);
    return boot_send_all(meeting, BOOT_TABLE, table, mesh_table_bytes(meeting->place->world),
                         error);
}

// Hears from a rank that it is connected to all others, or why not.
static zero_result hear_ready(const struct meeting *meeting, int rank, struct base_error *error)
{
    struct boot_header header;
    struct base_error heard = {.result = ZERO_OK};
    zero_result result =
        boot_receive(meeting->sockets[rank], &header, 0, meeting->place->deadline_ns, &heard);
    if (!result && header.type != BOOT_READY)
        result = zero_fail(&heard, ZERO_E_INVALID, "a message of type %u", header.type);
    if (result == ZERO_E_PEER && header.type != BOOT_FAIL)
        return boot_fail_gone(meeting, rank, error);
    return result ? zero_fail(error, result, "rank %d (host %s): %s", rank, meeting->hosts[rank],
                              heard.message)
                  : ZERO_OK;
}

// The ranks that have not said that they are connected to all others.
static const char *unready_text(const struct meeting *meeting, struct base_numbers *unready)
{
    *unready = (struct base_numbers){.count = 0};
    for (int rank = 1; rank < meeting->place->world; rank++)
        if (meeting->polls[rank].fd >= 0)
            base_numbers_add(unready, rank);
    return base_numbers_text(unready, "rank");
}

static void remind_of_unready(struct meeting *meeting)
{
    char what[2 * BOOT_RANKS_BYTES] = "";
    struct base_numbers unready;
    base_text_add(&(struct base_text){what, sizeof what, 0},
                  "for %s of %d, not yet connected to all others", unready_text(meeting, &unready),
                  meeting->place->world);
    mesh_remind(meeting, what);
}

static zero_result await_ready(struct meeting *meeting, struct base_error *error)
{
    const int world = meeting->place->world;
    struct base_numbers unready;
    for (int rank = 0; rank < world; rank++)
        meeting->polls[rank] = (struct pollfd){.fd = meeting->sockets[rank], .events = POLLIN};
    for (int waiting = world - 1; waiting > 0;) {
        remind_of_unready(meeting);
        const int left = boot_wait_left(&meeting->wait, meeting->place->deadline_ns, 1000);
        if (left == 0)
            return zero_fail(error, ZERO_E_TIMEOUT,
                             "%s of %d did not get connected to all others in time",
                             unready_text(meeting, &unready), world);
        if (poll(meeting->polls, (nfds_t)world, left) < 0 && errno != EINTR)
            return zero_fail_errno(error, ZERO_E_IO, errno, "rank 0: waiting for the other ranks");
        for (int rank = 1; rank < world; rank++) {
            if (!meeting->polls[rank].revents)
                continue;
            const zero_result result = hear_ready(meeting, rank, error);
            if (result)
                return result;
            meeting->polls[rank] = (struct pollfd){.fd = -1};
            waiting--;
        }
    }
    return ZERO_OK;
}

// All have met, and a rank that hears so talks to the others as they do from now on: nothing can be
// taken back. A rank that does not hear it is shown the end of its connection, as by a death that
// the others then see.
static void let_go(const struct meeting *meeting)
{
    for (int rank = 1; rank < meeting->place->world; rank++) {
        const int socket = meeting->sockets[rank];
        struct base_error sent = {.result = ZERO_OK};
        const zero_result result =
            boot_send(socket, BOOT_GO, NULL, 0, meeting->place->deadline_ns, &sent);
        if (!result)
            continue;
        base_logf(meeting->place->log, ZERO_LOG_WARN, "coll",
                  "rank 0 could not tell rank %d (host %s) that all had met: %s", rank,
                  meeting->hosts[rank], sent.message);
        boot_send_failure(socket, result, sent.message);
        shutdown(socket, SHUT_RDWR);
    }
}

zero_result mesh_finish_server(struct meeting *meeting, struct base_error *error)
{
    zero_result result = send_table(meeting, error);
    if (!result)
        result = await_ready(meeting, error);
    if (!result)
        let_go(meeting);
    return result;
}

/* ------------------------------------------------------------------ the table of all ranks */

// Nothing that rank 0 says of where the ranks are is believed before it is checked here: what
// listens in place of rank 0 may be anything.

// Whether a host's name ends, and is printable.
static bool is_name(const char host[BOOT_HOST_BYTES])
{
    char cleaned[BOOT_HOST_BYTES];
    memcpy(cleaned, host, sizeof cleaned);
    boot_clean(cleaned, sizeof cleaned);
    return memcmp(cleaned, host, sizeof cleaned) == 0;
}

static bool same_place(const struct mesh_entry *a, const struct mesh_entry *b)
{
    return a->port == b->port && memcmp(a->address, b->address, sizeof a->address) == 0;
}

// The first rank from 1 on that is said to listen where this one is, which may be itself.
static int first_at(const struct mesh_entry *entries, int rank)
{
    int first = 1;
    while (!same_place(&entries[first], &entries[rank]))
        first++;
    return first;
}

// Rank 0 listens no more: no rank needs to know where it did.
static zero_result check_place(const struct mesh_entry *entries, int rank, struct base_error *error)
{
    const struct mesh_entry *entry = &entries[rank];
    if (entry->port < 1 || entry->port > BOOT_PORT_MAX)
        return zero_fail(error, ZERO_E_INVALID, "that rank %d (host %s) listens at port %u", rank,
                         entry->host, entry->port);
    if (mesh_is_any(entry->address))
        return zero_fail(error, ZERO_E_INVALID, "no address of rank %d (host %s)", rank,
                         entry->host);
    const int first = first_at(entries, rank);
    if (first < rank)
        return zero_fail(error, ZERO_E_INVALID, "that ranks %d and %d listen at one port, %u",
                         first, rank, entry->port);
    return ZERO_OK;
}

static zero_result check_entry(const struct meeting *meeting, int rank, struct base_error *error)
{
    const struct mesh_entry *entry = &meeting->table->entries[rank];
    if (!is_name(entry->host))
        return zero_fail(error, ZERO_E_INVALID, "no printable name of rank %d's host", rank);
    if (entry->pid < 1)
        return zero_fail(error, ZERO_E_INVALID, "that rank %d (host %s) is process %d", rank,
                         entry->host, entry->pid);
    if (rank == meeting->place->rank && entry->pid != meeting->hello.pid)
        return zero_fail(error, ZERO_E_INVALID, "that this rank is process %d, and it is %d",
                         entry->pid, meeting->hello.pid);
    return rank > 0 ? check_place(meeting->table->entries, rank, error) : ZERO_OK;
}

static zero_result check_table(const struct meeting *meeting, struct base_error *error)
{
    struct base_error wrong = {.result = ZERO_OK};
    for (int rank = 0; rank < meeting->place->world; rank++)
        if (check_entry(meeting, rank, &wrong))
            return zero_fail(error, wrong.result,
                             "what came as rank 0's table of all ranks says %s", wrong.message);
    return ZERO_OK;
}

static zero_result learn(struct meeting *meeting, struct base_error *error)
{
    const int world = meeting->place->world;
    zero_result result =
        boot_hear(meeting, BOOT_TABLE, meeting->table, mesh_table_bytes(world), error);
    if (!result)
        result = check_table(meeting, error);
    for (int rank = 0; rank < world && !result; rank++) {
        const struct mesh_entry *entry = &meeting->table->entries[rank];
        memcpy(meeting->hosts[rank], entry->host, sizeof entry->host);
        meeting->pids[rank] = entry->pid;
    }
    meeting->wait.asked = NULL; // all have come: they learn of a request together
    return result;
}

/* ------------------------------------------------------------------ the other clients */

// Waits for the answer of a rank that is called. It looks at its callers when it has called those
// of lower numbers itself, so no ranks wait in a circle. ZERO_AGAIN: rank 0 speaks, which knows
// which rank fails.
static zero_result await_answer(struct meeting *meeting, int rank, struct base_error *error)
{
    struct pollfd polls[2] = {{.fd = meeting->sockets[rank], .events = POLLIN},
                              {.fd = meeting->sockets[0], .events = POLLIN}};
    char what[BOOT_TEXT_BYTES] = "";
    base_text_add(&(struct base_text){what, sizeof what, 0}, "for the answer of rank %d", rank);
    for (;;) {
        mesh_remind(meeting, what);
        const int left = boot_wait_left(&meeting->wait, boot_patience(meeting), 1000);
        if (left == 0)
            return zero_fail(error, ZERO_E_TIMEOUT, "it does not answer in time");
        if (poll(polls, 2, left) < 0 && errno != EINTR)
            return zero_fail_errno(error, ZERO_E_IO, errno, "waiting for its answer");
        if (polls[1].revents)
            return ZERO_AGAIN;
        if (polls[0].revents)
            return ZERO_OK;
    }
}

// Tells a rank that has been called who calls. With a secret both prove that they know it; else it
// does not answer.
static zero_result greet(struct meeting *meeting, int rank, struct base_error *error)
{
    struct boot_header header = {.type = BOOT_CHALLENGE};
    struct boot_peer peer = {.token = meeting->table->token,
                             .rank = (uint32_t)meeting->place->rank,
                             .called = (uint32_t)rank};
    struct boot_call call = {.fd = meeting->sockets[rank],
                             .secret = meeting->secret,
                             .sides = &boot_sides_of_peers,
                             .claim = &peer.claim,
                             .length = sizeof peer,
                             .deadline_ns = meeting->place->deadline_ns};
    zero_result result = boot_claim_make(&peer.claim, meeting->secret, error);
    if (!result)
        result = boot_send(call.fd, BOOT_PEER, &peer, sizeof peer, call.deadline_ns, error);
    while (!result && *meeting->secret && header.type == BOOT_CHALLENGE) {
        result = await_answer(meeting, rank, error);
        if (!result)
            result = boot_receive(call.fd, &header, BASE_NONCE_BYTES, call.deadline_ns, error);
        if (!result)
            result = header.type == BOOT_CHALLENGE ? boot_call_answer(&call, &header, error)
                                                   : boot_call_known(&call, &header, error);
    }
    return result;
}

static zero_result call_client(struct meeting *meeting, int rank, struct base_error *error)
{
    const struct mesh_entry *entry = &meeting->table->entries[rank];
    const uint64_t deadline = meeting->place->deadline_ns;
    struct base_error why = {.result = ZERO_OK};
    assert(rank > 0 && rank < meeting->place->rank);
    int *socket = &meeting->sockets[rank], left = 1;
    zero_result result = ZERO_E_IO;
    for (int calls = 0; calls < CALLS && left > 0; calls++) {
        if (calls > 0)
            poll(NULL, 0, left);
        base_error_clear(&why);
        boot_fd_close(socket);
        result = mesh_connect(socket, entry->address, (int)entry->port, deadline, &why);
        if (!result)
            result = greet(meeting, rank, &why);
        if (result != ZERO_E_IO && result != ZERO_E_PEER)
            break;
        left = boot_time_left(deadline, PAUSE_MS);
    }
    if (result == ZERO_AGAIN) // nothing but that it gives up can come now
        return boot_hear(meeting, BOOT_FAIL, NULL, 0, error);
    return result ? zero_fail(error, result,
                              "reaching rank %d (host %s) at port %u, where it listens: %s", rank,
                              entry->host, entry->port, why.message)
                  : ZERO_OK;
}

// Whether a caller is a rank that is missing here.
static bool is_missing(const struct meeting *meeting, const struct boot_peer *peer)
{
    return peer->token == meeting->table->token && peer->called == (uint32_t)meeting->place->rank &&
           peer->rank > peer->called && peer->rank < (uint32_t)meeting->place->world &&
           meeting->sockets[peer->rank] < 0;
}

static void hang_up(void *user, struct boot_caller *caller, zero_result result, const char *why)
{
    const struct meeting *meeting = user;
    if (result != ZERO_E_PEER)
        base_logf(meeting->place->log, ZERO_LOG_WARN, "coll", "rank %d hung up on a call: %s",
                  meeting->place->rank, why);
    boot_fd_close(&caller->fd);
}

static struct boot_reception reception_of(const struct meeting *meeting);

static zero_result let_in(void *user, struct boot_caller *caller, struct base_error *error)
{
    (void)error;
    struct meeting *meeting = user;
    const struct boot_reception reception = reception_of(meeting);
    if (!is_missing(meeting, &caller->said.peer)) {
        hang_up(meeting, caller, ZERO_E_INVALID, "it is no missing rank's");
    } else if (*meeting->secret && boot_callers_welcome(caller, &reception)) {
        boot_fd_close(&caller->fd); // it has ended already, and may call again
    } else {
        meeting->sockets[caller->said.peer.rank] = caller->fd;
        caller->fd = -1;
    }
    return ZERO_OK;
}

static struct boot_reception reception_of(const struct meeting *meeting)
{
    return (struct boot_reception){.type = BOOT_PEER,
                                   .length = sizeof(struct boot_peer),
                                   .secret = meeting->secret,
                                   .sides = &boot_sides_of_peers,
                                   .introduce = let_in,
                                   .refuse = hang_up};
}

// The ranks that are still to call this one.
static const char *uncalled_text(const struct meeting *meeting, struct base_numbers *missing)
{
    return boot_missing_text(missing, meeting->sockets, meeting->place->rank + 1,
                             meeting->place->world);
}

static bool all_have_called(const struct meeting *meeting)
{
    for (int rank = meeting->place->rank + 1; rank < meeting->place->world; rank++)
        if (meeting->sockets[rank] < 0)
            return false;
    return true;
}

static void remind_of_uncalled(struct meeting *meeting)
{
    char what[2 * BOOT_RANKS_BYTES] = "";
    struct base_numbers missing;
    base_text_add(&(struct base_text){what, sizeof what, 0}, "for %s to connect to it",
                  uncalled_text(meeting, &missing));
    mesh_remind(meeting, what);
}

// Waits for whatever comes next and deals with it: a call, what a caller says, or rank 0, which
// knows which rank fails.
static zero_result client_turn(struct meeting *meeting, struct base_error *error)
{
    struct pollfd *polls = meeting->polls;
    const struct boot_reception reception = reception_of(meeting);
    const int called = boot_callers_poll(meeting->callers, meeting->listener, polls);
    struct pollfd *rank_0 = &polls[called];
    *rank_0 = (struct pollfd){.fd = meeting->sockets[0], .events = POLLIN};
    remind_of_uncalled(meeting);
    const int left = boot_wait_left(&meeting->wait, boot_patience(meeting),
                                    boot_callers_patience(meeting->callers));
    struct base_numbers missing;
    if (left == 0)
        return zero_fail(error, ZERO_E_TIMEOUT, "%s did not connect to this one in time",
                         uncalled_text(meeting, &missing));
    if (poll(polls, (nfds_t)called + 1, left) < 0 && errno != EINTR)
        return zero_fail_errno(error, ZERO_E_IO, errno, "waiting for the other ranks");
    if (rank_0->revents) // nothing but that it gives up can come now
        return boot_hear(meeting, BOOT_FAIL, NULL, 0, error);
    return boot_callers_receive(meeting->callers, &reception, meeting, meeting->listener, polls,
                                error);
}

static zero_result connect_clients(struct meeting *meeting, struct base_error *error)
{
    zero_result result = ZERO_OK;
    for (int rank = 1; rank < meeting->place->rank && !result; rank++)
        result = call_client(meeting, rank, error);
    while (!result && !all_have_called(meeting))
        result = client_turn(meeting, error);
    boot_callers_close(meeting->callers);
    return result;
}

zero_result mesh_finish_client(struct meeting *meeting, struct base_error *error)
{
    zero_result result = learn(meeting, error);
    if (!result)
        result = connect_clients(meeting, error);
    boot_fd_close(&meeting->listener);
    if (result)
        return result;
    meeting->told = true;
    result = boot_send(meeting->sockets[0], BOOT_READY, NULL, 0, boot_patience(meeting), error);
    return result ? result : boot_hear(meeting, BOOT_GO, NULL, 0, error);
}
