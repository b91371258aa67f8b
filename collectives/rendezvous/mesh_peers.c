// The speakers of the hosts, when they have heard where they are: each calls those of lower
// numbers, and takes the calls of the others meanwhile, so that none waits for one that waits
// itself.

#include "collectives/rendezvous/mesh_internal.h"

#include "base/text.h"

#include <assert.h>
#include <errno.h>

enum { CALLS = 3, PAUSE_MS = 100 }; // to another speaker, which listens already

int mesh_own_entry(const struct meeting *meeting)
{
    return (int)meeting->places->table->ranks[meeting->place->rank].entry;
}

int mesh_own_name(const struct meeting *meeting)
{
    return meeting->places->entries[mesh_own_entry(meeting)].rank;
}

/* ------------------------------------------------------------------ those that call this one */

// Whether a caller is a speaker that is missing here.
static bool is_missing(const struct meeting *meeting, const struct boot_peer *peer)
{
    const struct mesh_places *places = meeting->places;
    if (peer->token != places->table->token || peer->called != (uint32_t)mesh_own_name(meeting) ||
        peer->rank <= peer->called || peer->rank >= (uint32_t)meeting->place->world)
        return false;
    const uint32_t entry = places->table->ranks[peer->rank].entry;
    return places->entries[entry].rank == (int32_t)peer->rank &&
           mesh_connects(meeting, (int)entry) && meeting->sockets[peer->rank] < 0;
}

static void hang_up(void *user, struct boot_caller *caller, zero_result result, const char *why)
{
    const struct meeting *meeting = user;
    if (result != ZERO_E_PEER)
        base_logf(meeting->place->log, ZERO_LOG_WARN, "coll", "rank %d hung up on a call: %s",
                  meeting->place->rank, why);
    boot_fd_close(&caller->fd);
}

static struct boot_reception peer_reception(const struct meeting *meeting);

static zero_result let_in(void *user, struct boot_caller *caller, struct base_error *error)
{
    (void)error;
    struct meeting *meeting = user;
    const struct boot_reception reception = peer_reception(meeting);
    if (!is_missing(meeting, &caller->said.peer)) {
        hang_up(meeting, caller, ZERO_E_INVALID, "it is no missing rank's");
    } else if (mesh_has_hung_up(caller->fd) || boot_callers_welcome(caller, &reception)) {
        boot_fd_close(&caller->fd); // it has ended already, and may call again
    } else {
        meeting->sockets[caller->said.peer.rank] = caller->fd;
        caller->fd = -1;
    }
    return ZERO_OK;
}

static struct boot_reception peer_reception(const struct meeting *meeting)
{
    return (struct boot_reception){.type = BOOT_PEER,
                                   .length = sizeof(struct boot_peer),
                                   .secret = meeting->secret,
                                   .sides = &boot_sides_of_peers,
                                   .introduce = let_in,
                                   .refuse = hang_up};
}

// Waits for whatever comes next and deals with it: a call, what a caller says, the answer at
// `awaited` (-1: none is awaited), or rank 0, which knows which rank fails. ZERO_AGAIN: rank 0
// speaks. ZERO_E_TIMEOUT: time is up, which the caller of this puts into words.
static zero_result take_turn(struct meeting *meeting, int awaited, bool *answered,
                             struct base_error *error)
{
    const struct boot_reception reception = peer_reception(meeting);
    struct pollfd *polls = meeting->polls, *callers = meeting->polls + 2;
    polls[0] = (struct pollfd){.fd = awaited, .events = POLLIN};
    polls[1] = (struct pollfd){.fd = meeting->sockets[0], .events = POLLIN};
    const int called = boot_callers_poll(meeting->callers, meeting->listener, callers);
    const int left = boot_wait_left(&meeting->wait, boot_patience(meeting),
                                    boot_callers_patience(meeting->callers));
    *answered = false;
    if (left == 0)
        return ZERO_E_TIMEOUT;
    const int ready = poll(polls, 2 + (nfds_t)called, left);
    if (ready < 0 && errno == EINTR)
        return ZERO_OK;
    if (ready < 0)
        return zero_fail_errno(error, ZERO_E_IO, errno, "waiting for the other ranks");
    if (polls[1].revents)
        return ZERO_AGAIN;
    *answered = polls[0].revents != 0;
    return boot_callers_receive(meeting->callers, &reception, meeting, meeting->listener, callers,
                                error);
}

/* ------------------------------------------------------------------ those that this one calls */

// Waits for the answer of a rank that is called. ZERO_AGAIN: rank 0 speaks.
static zero_result await_answer(struct meeting *meeting, int rank, struct base_error *error)
{
    char what[BOOT_TEXT_BYTES] = "";
    bool answered = false;
    zero_result result = ZERO_OK;
    base_text_add(&(struct base_text){what, sizeof what, 0}, "for the answer of rank %d", rank);
    while (!answered && !result) {
        mesh_remind(meeting, what);
        result = take_turn(meeting, meeting->sockets[rank], &answered, error);
    }
    return result == ZERO_E_TIMEOUT ? zero_fail(error, result, "it does not answer in time")
                                    : result;
}

static zero_result hear_peer_answer(struct boot_call *call, const struct boot_header *header,
                                    struct base_error *error)
{
    if (header->type == BOOT_CHALLENGE)
        return boot_call_answer(call, header, error);
    if (header->type == BOOT_KNOWN)
        return boot_call_known(call, header, error);
    return zero_fail(error, ZERO_E_INVALID, "it answered by a message of type %u", header->type);
}

// Tells a rank that has been called who calls, and hears that it is known: a caller that had no
// processor for too long has been hung up on, and calls again. With a secret both prove that they
// know it.
static zero_result greet(struct meeting *meeting, int rank, struct base_error *error)
{
    struct boot_header header = {.type = BOOT_CHALLENGE};
    struct boot_peer peer = {.token = meeting->places->table->token,
                             .rank = (uint32_t)mesh_own_name(meeting),
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
    while (!result && header.type == BOOT_CHALLENGE) {
        result = await_answer(meeting, rank, error);
        if (!result)
            result = boot_receive(call.fd, &header, BASE_NONCE_BYTES, call.deadline_ns, error);
        if (!result)
            result = hear_peer_answer(&call, &header, error);
    }
    return result;
}

static zero_result call_peer(struct meeting *meeting, const struct mesh_entry *entry,
                             struct base_error *error)
{
    const int rank = entry->rank;
    const uint64_t deadline = meeting->place->deadline_ns;
    struct base_error why = {.result = ZERO_OK};
    assert(rank > 0 && rank < mesh_own_name(meeting));
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

/* ------------------------------------------------------------------ all of them */

// The ranks that are still to call this one.
static struct base_numbers find_uncalled(const struct meeting *meeting)
{
    struct base_numbers missing = {.count = 0};
    for (int i = mesh_own_entry(meeting) + 1; i < meeting->places->count; i++) {
        const int rank = meeting->places->entries[i].rank;
        if (mesh_connects(meeting, i) && meeting->sockets[rank] < 0)
            base_numbers_add(&missing, rank);
    }
    return missing;
}

// Takes calls until all have called.
static zero_result await_calls(struct meeting *meeting, struct base_error *error)
{
    zero_result result = ZERO_OK;
    struct base_numbers missing = find_uncalled(meeting);
    while (!result && missing.count > 0) {
        char what[2 * BOOT_RANKS_BYTES] = "";
        bool unused;
        base_text_add(&(struct base_text){what, sizeof what, 0}, "for %s to connect to it",
                      base_numbers_text(&missing, "rank"));
        mesh_remind(meeting, what);
        result = take_turn(meeting, -1, &unused, error);
        missing = find_uncalled(meeting);
    }
    if (result == ZERO_AGAIN) // nothing but that it gives up can come now
        return boot_hear(meeting, BOOT_FAIL, NULL, 0, error);
    return result == ZERO_E_TIMEOUT
               ? zero_fail(error, result, "%s did not connect to this one in time",
                           base_numbers_text(&missing, "rank"))
               : result;
}

zero_result mesh_connect_peers(struct meeting *meeting, struct base_error *error)
{
    const int own = mesh_own_entry(meeting);
    zero_result result = ZERO_OK;
    assert(own > 0 && mesh_connects(meeting, own) && meeting->callers->count == 0);
    for (int i = 1; i < own && !result; i++)
        if (mesh_connects(meeting, i))
            result = call_peer(meeting, &meeting->places->entries[i], error);
    if (!result)
        result = await_calls(meeting, error);
    boot_callers_close(meeting->callers);
    return result;
}
