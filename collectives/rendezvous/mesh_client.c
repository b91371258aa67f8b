// Every rank but 0 of a meeting of several hosts: calls rank 0 until it knows this rank, hears
// where the others are, and gets a connection to each.

#include "collectives/rendezvous/mesh_callers.h"

#include "base/clock.h"
#include "base/text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { CALLS = 3, PAUSE_MS = 100 }; // to another client, which listens already

static const char advice[] = "; rank 0 has to run on that host, this one has to know its name, and "
                             "the port has to be open to it";

static uint64_t patience(const struct mesh_meeting *meeting)
{
    return meeting->place->deadline_ns + BOOT_VERDICT_NS;
}

/* ------------------------------------------------------------------ what it says meanwhile */

// Says, when it is time to, for what this rank waits: `what` follows the time in the sentence.
static void remind(struct mesh_meeting *meeting, const char *what)
{
    const struct boot_meeting *place = meeting->place;
    double seconds;
    if (boot_wait_says(&meeting->wait, &seconds))
        base_logf(place->log, ZERO_LOG_WARN, "coll",
                  "rank %d (host %s) has waited %.0f s %s (job %.60s, \"%s\")", place->rank,
                  meeting->mesh->hosts[place->rank], seconds, what, place->job, place->name);
}

// What this rank waits for: until rank 0 has answered, anything may listen in its place.
static void remind_of_missing(struct mesh_meeting *meeting, bool known)
{
    char what[2 * BOOT_TEXT_BYTES] = "", port[BOOT_TEXT_BYTES];
    mesh_place_text(meeting->master, port);
    struct base_text text = {what, sizeof what, 0};
    if (known)
        base_text_add(&text, "at the rendezvous, where rank 0 (%s) waits for %s of %d", port,
                      *meeting->missing ? meeting->missing : "other ranks", meeting->place->world);
    else
        base_text_add(&text,
                      "for rank 0 of %d at %s: something listens there, but has not answered as "
                      "rank 0 of this job",
                      meeting->place->world, port);
    remind(meeting, what);
}

// Waits for a message of rank 0's, which has answered this rank or (not `known`) has yet to, and
// says so meanwhile. The end of the connection ends the wait, too: the caller sees it when it
// receives.
static zero_result await_word(struct mesh_meeting *meeting, bool known, struct base_error *error)
{
    struct pollfd rank_0 = {.fd = meeting->mesh->sockets[0], .events = POLLIN};
    for (int left = 1; left > 0; left = boot_wait_left(&meeting->wait, patience(meeting), 1000)) {
        const int ready = poll(&rank_0, 1, left);
        if (ready < 0 && errno != EINTR)
            return zero_fail_errno(error, ZERO_E_IO, errno, "waiting for rank 0");
        if (ready > 0)
            return ZERO_OK;
        remind_of_missing(meeting, known);
    }
    if (boot_wait_stops(&meeting->wait))
        return boot_fail_stopped(meeting->place->rank,
                                 *meeting->missing ? meeting->missing : "other ranks",
                                 meeting->place->world, error);
    return zero_fail(error, ZERO_E_TIMEOUT, "it does not answer in time%s%s",
                     *meeting->missing ? "; it waited for " : "", meeting->missing);
}

/* ------------------------------------------------------------------ rank 0 */

// Other clients reach this one by the interface that leads to rank 0. By loopback only clients of
// this host reach it, which need not be all.
static zero_result open_listener(const struct mesh_meeting *meeting, int *listener, int *port,
                                 struct base_error *error)
{
    unsigned char address[MESH_ADDRESS_BYTES], named[MESH_ADDRESS_BYTES];
    if (!mesh_address(meeting->mesh->sockets[0], false, address, port))
        return zero_fail(error, ZERO_E_PEER, "it has closed its connection");
    if (mesh_is_loopback(address) && !mesh_names_loopback(meeting->master, named))
        memset(address, 0, sizeof address);
    const zero_result result =
        mesh_listen(listener, address, 0, meeting->mesh->world + BOOT_CALLERS_MAX, error);
    if (result)
        return result < 0 ? result : zero_fail(error, ZERO_E_IO, "no port is free to listen at");
    return mesh_address(*listener, false, address, port)
               ? ZERO_OK
               : zero_fail(error, ZERO_E_IO, "the listening socket has no address");
}

static zero_result introduce(const struct mesh_meeting *meeting, int port, struct base_error *error)
{
    const struct boot_meeting *place = meeting->place;
    struct mesh_hello hello = {.rank = place->rank,
                               .world = place->world,
                               .pid = meeting->mesh->pids[place->rank],
                               .port = (uint32_t)port};
    snprintf(hello.job, sizeof hello.job, "%s", place->job);
    snprintf(hello.name, sizeof hello.name, "%s", place->name);
    memcpy(hello.secret, meeting->master->secret, sizeof hello.secret);
    memcpy(hello.host, meeting->mesh->hosts[place->rank], sizeof hello.host);
    memcpy(hello.host_id, meeting->entries[place->rank].host_id, sizeof hello.host_id);
    return mesh_send(meeting->mesh->sockets[0], MESH_HELLO, &hello, sizeof hello, patience(meeting),
                     error);
}

// Keeps the name of the communicator that rank 0 is meeting for.
static zero_result hear_other(struct mesh_meeting *meeting, size_t length, struct base_error *error)
{
    char name[BOOT_NAME_BYTES + 1] = "";
    const zero_result result =
        mesh_receive_bytes(meeting->mesh->sockets[0], name, length, patience(meeting), error);
    mesh_clean(name, sizeof name);
    memcpy(meeting->other, name, sizeof meeting->other - 1);
    return result;
}

// One call of rank 0. ZERO_AGAIN: it does not answer, or not this meeting yet; error says why.
static zero_result call(struct mesh_meeting *meeting, int *listener, struct base_error *error)
{
    int *socket = &meeting->mesh->sockets[0], port;
    if (mesh_call(socket, meeting->master, patience(meeting), error))
        return ZERO_AGAIN;
    struct mesh_header header;
    zero_result result = open_listener(meeting, listener, &port, error);
    if (!result)
        result = introduce(meeting, port, error);
    if (!result)
        result = await_word(meeting, false, error);
    if (!result)
        result = mesh_receive(*socket, &header, BOOT_NAME_BYTES, patience(meeting), error);
    if (!result && header.type != MESH_LATER)
        result = mesh_check(&header, 0, error);
    if (!result && header.type == MESH_KNOWN)
        return ZERO_OK;
    if (!result && header.type == MESH_LATER)
        result = hear_other(meeting, header.length, error);
    boot_fd_close(socket);
    boot_fd_close(listener);
    if (!result && header.type == MESH_LATER)
        zero_fail(error, ZERO_E_TIMEOUT, "it is meeting for another communicator");
    else if (!result)
        return zero_fail(error, ZERO_E_INVALID, "it answered by a message of type %u", header.type);
    // It may have closed its listener, or ended, before it looked at this call; or this process had
    // no processor, and has kept it waiting.
    return !result || result == ZERO_E_PEER || result == ZERO_E_TIMEOUT ? ZERO_AGAIN : result;
}

// Where this rank looks for rank 0, and what is wrong there.
static void add_master(struct base_text *text, const struct mesh_meeting *meeting, const char *why)
{
    char port[BOOT_TEXT_BYTES];
    mesh_place_text(meeting->master, port);
    base_text_add(text, "rank 0 of %d at %s: %s", meeting->place->world, port, why);
    if (*meeting->other)
        base_text_add(text,
                      " (it was opening \"%s\": open contexts in the same order on all ranks)",
                      meeting->other);
}

static zero_result call_until_known(struct mesh_meeting *meeting, int *listener,
                                    struct base_error *error)
{
    const uint64_t deadline = meeting->place->deadline_ns;
    for (int pause_ms = 1;; pause_ms = pause_ms < 64 ? 2 * pause_ms : 100) {
        struct base_error why = {.result = ZERO_OK};
        const zero_result result = call(meeting, listener, &why);
        if (result == ZERO_OK)
            return ZERO_OK;
        char bytes[2 * BOOT_TEXT_BYTES] = "for ";
        struct base_text text = {bytes, sizeof bytes, strlen(bytes)};
        add_master(&text, meeting, why.message);
        remind(meeting, bytes);
        const int left = boot_wait_left(&meeting->wait, deadline, pause_ms);
        if (result == ZERO_AGAIN && boot_wait_stops(&meeting->wait))
            return boot_fail_stopped(meeting->place->rank, "rank 0", meeting->place->world, error);
        if (result != ZERO_AGAIN || left == 0)
            return zero_fail(error, result == ZERO_AGAIN ? ZERO_E_TIMEOUT : result,
                             "rank %d (host %s): %s%s", meeting->place->rank,
                             meeting->mesh->hosts[meeting->place->rank], bytes + strlen("for "),
                             result == ZERO_AGAIN ? advice : "");
        poll(NULL, 0, left);
    }
}

// Keeps what rank 0 says of the ranks that are missing.
static zero_result hear_missing(struct mesh_meeting *meeting, size_t length,
                                struct base_error *error)
{
    char ranks[BOOT_RANKS_BYTES + 1] = "";
    if (length > BOOT_RANKS_BYTES)
        return zero_fail(error, ZERO_E_INVALID, "rank 0 sent %zu bytes of missing ranks", length);
    const zero_result result =
        mesh_receive_bytes(meeting->mesh->sockets[0], ranks, length, patience(meeting), error);
    mesh_clean(ranks, sizeof ranks);
    memcpy(meeting->missing, ranks, sizeof meeting->missing - 1);
    return result;
}

// Waits for rank 0's message of this type, with so many bytes.
static zero_result hear_rank_0(struct mesh_meeting *meeting, enum mesh_type type, void *payload,
                               size_t length, struct base_error *error)
{
    const int socket = meeting->mesh->sockets[0];
    const size_t most = length > BOOT_RANKS_BYTES ? length : BOOT_RANKS_BYTES;
    struct mesh_header header = {.type = MESH_MISSING};
    zero_result result = ZERO_OK;
    while (!result && header.type == MESH_MISSING) {
        result = await_word(meeting, true, error);
        if (!result)
            result = mesh_receive(socket, &header, most, patience(meeting), error);
        if (!result && header.type == MESH_MISSING)
            result = hear_missing(meeting, header.length, error);
        if (!result && header.type == MESH_MISSING && boot_time_left(patience(meeting), 1) == 0)
            result = zero_fail(error, ZERO_E_TIMEOUT, "it waited for %s", meeting->missing);
    }
    if (!result && (header.type != type || header.length != length))
        result = zero_fail(error, ZERO_E_INVALID, "rank 0 sent %u bytes of type %u", header.length,
                           header.type);
    return result ? result : mesh_receive_bytes(socket, payload, length, patience(meeting), error);
}

static zero_result learn(struct mesh_meeting *meeting, struct base_error *error)
{
    struct boot_mesh *mesh = meeting->mesh;
    meeting->wait.verdict_ns = BOOT_VERDICT_NS;
    zero_result result =
        hear_rank_0(meeting, MESH_TABLE, meeting->table, mesh_table_bytes(mesh->world), error);
    if (result == ZERO_E_ABORTED) // rank 0 is not to take it for a death
        mesh_send_failure(mesh->sockets[0], result, error->message);
    if (result)
        return result;
    meeting->wait.asked = NULL; // all have come: they learn of a request together
    result = mesh_check_table(meeting, error);
    if (result) {
        mesh_send_failure(mesh->sockets[0], result, error->message);
        return result;
    }
    for (int rank = 0; rank < mesh->world; rank++) {
        if (rank == meeting->place->rank)
            continue;
        memcpy(mesh->hosts[rank], meeting->entries[rank].host, sizeof mesh->hosts[rank]);
        mesh->pids[rank] = meeting->entries[rank].pid;
    }
    return ZERO_OK;
}

/* ------------------------------------------------------------------ the other clients */

static uint64_t token_of(const struct mesh_meeting *meeting)
{
    uint64_t token;
    memcpy(&token, meeting->table, sizeof token);
    return token;
}

static zero_result call_client(struct mesh_meeting *meeting, int rank, struct base_error *error)
{
    const struct mesh_entry *entry = &meeting->entries[rank];
    const struct mesh_peer peer = {.token = token_of(meeting),
                                   .rank = (uint32_t)meeting->place->rank};
    const uint64_t deadline = meeting->place->deadline_ns;
    struct base_error why;
    int *socket = &meeting->mesh->sockets[rank], left = 1;
    zero_result result = ZERO_E_IO;
    for (int calls = 0; result && calls < CALLS && left > 0; calls++) {
        if (calls > 0)
            poll(NULL, 0, left);
        base_error_clear(&why);
        result = mesh_connect(socket, entry->address, (int)entry->port, deadline, &why);
        left = boot_time_left(deadline, PAUSE_MS);
    }
    if (!result)
        result = mesh_send(*socket, MESH_PEER, &peer, sizeof peer, deadline, &why);
    return result ? zero_fail(error, result,
                              "reaching rank %d (host %s) at port %u, where it listens: %s", rank,
                              entry->host, entry->port, why.message)
                  : ZERO_OK;
}

// Whether a caller is a rank that is missing here.
static bool is_missing(const struct mesh_meeting *meeting, const struct mesh_peer *peer)
{
    return peer->token == token_of(meeting) && peer->rank > (uint32_t)meeting->place->rank &&
           peer->rank < (uint32_t)meeting->mesh->world && meeting->mesh->sockets[peer->rank] < 0;
}

static void hang_up(void *user, struct mesh_caller *caller, zero_result result, const char *why)
{
    (void)result;
    const struct mesh_meeting *meeting = user;
    base_logf(meeting->place->log, ZERO_LOG_WARN, "coll", "rank %d hung up on a call: %s",
              meeting->place->rank, why);
    boot_fd_close(&caller->fd);
}

static zero_result let_in(void *user, struct mesh_caller *caller, struct base_error *error)
{
    (void)error;
    struct mesh_meeting *meeting = user;
    if (is_missing(meeting, &caller->said.peer)) {
        meeting->mesh->sockets[caller->said.peer.rank] = caller->fd;
        caller->fd = -1;
    } else {
        hang_up(meeting, caller, ZERO_E_INVALID, "it is no missing rank's");
    }
    return ZERO_OK;
}

static const struct mesh_reception reception = {
    .type = MESH_PEER, .length = sizeof(struct mesh_peer), .introduce = let_in, .refuse = hang_up};

// The ranks that are still to call this one.
static const char *uncalled_text(const struct mesh_meeting *meeting, struct base_numbers *missing)
{
    return boot_missing_text(missing, meeting->mesh->sockets, meeting->place->rank + 1,
                             meeting->mesh->world);
}

static bool all_have_called(const struct mesh_meeting *meeting)
{
    for (int rank = meeting->place->rank + 1; rank < meeting->mesh->world; rank++)
        if (meeting->mesh->sockets[rank] < 0)
            return false;
    return true;
}

static void remind_of_uncalled(struct mesh_meeting *meeting)
{
    char what[2 * BOOT_RANKS_BYTES] = "";
    struct base_numbers missing;
    base_text_add(&(struct base_text){what, sizeof what, 0}, "for %s to connect to it",
                  uncalled_text(meeting, &missing));
    remind(meeting, what);
}

// Waits for whatever comes next and deals with it: a call, what a caller says, or rank 0, which
// knows who fails.
static zero_result client_turn(struct mesh_meeting *meeting, int listener, struct base_error *error)
{
    struct pollfd *polls = meeting->polls;
    const int called = mesh_callers_poll(meeting->callers, listener, polls);
    struct pollfd *rank_0 = &polls[called];
    *rank_0 = (struct pollfd){.fd = meeting->mesh->sockets[0], .events = POLLIN};
    remind_of_uncalled(meeting);
    const int left =
        boot_wait_left(&meeting->wait, patience(meeting), mesh_callers_patience(meeting->callers));
    struct base_numbers missing;
    if (left == 0)
        return zero_fail(error, ZERO_E_TIMEOUT, "%s did not connect to this one in time",
                         uncalled_text(meeting, &missing));
    if (poll(polls, (nfds_t)called + 1, left) < 0 && errno != EINTR)
        return zero_fail_errno(error, ZERO_E_IO, errno, "waiting for the other ranks");
    if (rank_0->revents) // nothing but that it gives up can come now
        return hear_rank_0(meeting, MESH_FAIL, NULL, 0, error);
    return mesh_callers_receive(meeting->callers, &reception, meeting, listener, polls, error);
}

// Waits for the calls of clients with higher numbers.
static zero_result take_calls(struct mesh_meeting *meeting, int listener, struct base_error *error)
{
    zero_result result = ZERO_OK;
    while (!result && !all_have_called(meeting))
        result = client_turn(meeting, listener, error);
    mesh_callers_close(meeting->callers);
    return result;
}

static zero_result connect_clients(struct mesh_meeting *meeting, int listener,
                                   struct base_error *error)
{
    zero_result result = ZERO_OK;
    for (int rank = 1; rank < meeting->place->rank && !result; rank++)
        result = call_client(meeting, rank, error);
    if (!result)
        result = take_calls(meeting, listener, error);
    if (result)
        mesh_send_failure(meeting->mesh->sockets[0], result, error->message);
    return result;
}

zero_result mesh_client(struct mesh_meeting *meeting, struct base_error *error)
{
    int listener = -1;
    zero_result result = call_until_known(meeting, &listener, error);
    if (result)
        return result;
    struct base_error failure = {.result = ZERO_OK};
    result = learn(meeting, &failure);
    if (!result)
        result = connect_clients(meeting, listener, &failure);
    boot_fd_close(&listener);
    if (!result)
        result =
            mesh_send(meeting->mesh->sockets[0], MESH_READY, NULL, 0, patience(meeting), &failure);
    if (!result)
        result = hear_rank_0(meeting, MESH_GO, NULL, 0, &failure);
    if (!result)
        return ZERO_OK;
    return zero_fail(error, result, "rank %d (host %s), meeting rank 0 (host %s): %s",
                     meeting->place->rank, meeting->mesh->hosts[meeting->place->rank],
                     *meeting->mesh->hosts[0] ? meeting->mesh->hosts[0] : meeting->master->address,
                     failure.message);
}
