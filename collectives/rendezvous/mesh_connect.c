// Ranks of several hosts, when rank 0 has met all of them: it tells each speaker where the others
// are, each calls those of lower numbers, and rank 0 waits until all are connected. Then a speaker
// hands its connections over to the leader of its host, if that is another rank.

#include "collectives/rendezvous/mesh_internal.h"

#include "base/forked.h"
#include "base/text.h"

#include <assert.h>
#include <errno.h>
#include <sys/socket.h>

/* ------------------------------------------------------------------ rank 0 */

// Hears from a speaker that its ranks are connected to all others (*ready), or why not. It may also
// have told, before it had the table, of a rank that comes twice: that one is turned away.
static zero_result hear_ready(struct meeting *meeting, int rank, bool *ready,
                              struct base_error *error)
{
    struct boot_header header;
    struct base_error heard = {.result = ZERO_OK};
    zero_result result = boot_receive(meeting->sockets[rank], &header, sizeof(struct boot_member),
                                      meeting->place->deadline_ns, &heard);
    *ready = !result && header.type == BOOT_READY && header.length == 0;
    if (!result && header.type == BOOT_MEMBER && header.length == sizeof(struct boot_member))
        return mesh_hear_member(meeting, rank, error);
    if (!result && !*ready)
        result = zero_fail(&heard, ZERO_E_INVALID, "a message of type %u", header.type);
    if (result == ZERO_E_PEER && header.type != BOOT_FAIL)
        return boot_fail_gone(meeting, rank, error);
    return result ? zero_fail(error, result, "rank %d (host %s): %s", rank, meeting->hosts[rank],
                              heard.message)
                  : ZERO_OK;
}

// Rank 0's connection to the speaker of an entry.
static int *socket_of(const struct meeting *meeting, int entry)
{
    assert(entry > 0 && entry < meeting->places->count);
    return &meeting->sockets[meeting->places->speakers[entry]];
}

// The ranks that have not said that they are connected to all others.
static const char *unready_text(const struct meeting *meeting, struct base_numbers *unready)
{
    *unready = (struct base_numbers){.count = 0};
    for (int i = 1; i < meeting->places->count; i++)
        if (meeting->polls[i].fd >= 0)
            base_numbers_add(unready, meeting->places->entries[i].rank);
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

// Hears those that have something to say. *waiting: how many have not yet.
static zero_result hear_all_ready(struct meeting *meeting, int *waiting, struct base_error *error)
{
    for (int i = 1; i < meeting->places->count; i++) {
        if (!meeting->polls[i].revents)
            continue;
        bool ready;
        const zero_result result = hear_ready(meeting, meeting->places->speakers[i], &ready, error);
        if (result)
            return result;
        if (!ready)
            continue;
        meeting->polls[i] = (struct pollfd){.fd = -1};
        --*waiting;
    }
    return ZERO_OK;
}

static zero_result await_ready(struct meeting *meeting, struct base_error *error)
{
    const int count = meeting->places->count;
    struct base_numbers unready;
    meeting->polls[0] = (struct pollfd){.fd = -1};
    for (int i = 1; i < count; i++)
        meeting->polls[i] = (struct pollfd){.fd = *socket_of(meeting, i), .events = POLLIN};
    zero_result result = ZERO_OK;
    for (int waiting = count - 1; waiting > 0 && !result;) {
        remind_of_unready(meeting);
        const int left = boot_wait_left(&meeting->wait, meeting->place->deadline_ns, 1000);
        if (left == 0)
            return zero_fail(error, ZERO_E_TIMEOUT,
                             "%s of %d did not get connected to all others in time",
                             unready_text(meeting, &unready), meeting->place->world);
        const int ready = poll(meeting->polls, (nfds_t)count, left);
        if (ready < 0 && errno != EINTR)
            return zero_fail_errno(error, ZERO_E_IO, errno, "rank 0: waiting for the other ranks");
        if (ready > 0)
            result = hear_all_ready(meeting, &waiting, error);
    }
    return result;
}

// All have met, and a rank that hears so talks to the others as they do from now on: nothing can be
// taken back. A rank that does not hear it is shown the end of its connection, as by a death that
// the others then see.
static void let_go(const struct meeting *meeting)
{
    for (int i = 1; i < meeting->places->count; i++) {
        const int socket = *socket_of(meeting, i), rank = meeting->places->speakers[i];
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

// From now on the connection to a host is its leader's. That to the speaker of the others on rank
// 0's own host stays what it is.
static void keep_leaders(const struct meeting *meeting)
{
    const struct mesh_places *places = meeting->places;
    for (int i = 1; i < places->count; i++) {
        int *socket = socket_of(meeting, i);
        int fd = *socket;
        if (!mesh_connects(meeting, i) && mesh_leader_entry(places, i) == 0)
            continue;
        *socket = -1;
        if (mesh_connects(meeting, i))
            meeting->sockets[places->entries[i].rank] = fd;
        else
            boot_fd_close(&fd);
    }
}

zero_result mesh_finish_server(struct meeting *meeting, struct base_error *error)
{
    zero_result result = mesh_send_table(meeting, error);
    if (!result)
        result = await_ready(meeting, error);
    if (result)
        return result;
    let_go(meeting);
    keep_leaders(meeting);
    return ZERO_OK;
}

/* ------------------------------------------------------------------ whose connections they are */

// The other hosts' leaders, in the table's order; returns how many.
static int list_leaders(const struct meeting *meeting, int leaders[MESH_SPEAKERS + 1])
{
    int count = 0;
    for (int i = 0; i < meeting->places->count; i++)
        if (i != mesh_own_entry(meeting) && mesh_connects(meeting, i))
            leaders[count++] = meeting->places->entries[i].rank;
    return count;
}

// Whether the leader of this host, to which the connections belong, is another rank than its
// speaker, and one of those that this one speaks for.
static bool hands_over(const struct meeting *meeting)
{
    return mesh_connects(meeting, mesh_own_entry(meeting)) &&
           mesh_own_name(meeting) != meeting->place->rank;
}

// Rank 0 needs this one until all have met: the leader has a copy of the connection before.
static zero_result hand_sockets_over(const struct meeting *meeting, struct base_error *error)
{
    int leaders[MESH_SPEAKERS + 1], fds[MESH_SPEAKERS + 1];
    const int count = list_leaders(meeting, leaders);
    for (int i = 0; i < count; i++)
        fds[i] = meeting->sockets[leaders[i]];
    return mesh_gather_hand_over(meeting, mesh_own_name(meeting), fds, count, error);
}

static zero_result take_over(struct meeting *meeting, int *fds, int count, struct base_error *error)
{
    assert(meeting->member && count >= 0 && count <= MESH_SPEAKERS);
    for (int i = 0; i < count; i += BOOT_FDS_MAX) {
        const int some = count - i < BOOT_FDS_MAX ? count - i : BOOT_FDS_MAX;
        const zero_result result = boot_hear_fds(meeting, BOOT_SOCKETS, fds + i, some, error);
        if (result)
            return result;
    }
    for (int i = 0; i < count; i++) {
        const int errnum = base_forked_guard(fds[i]);
        if (errnum)
            return zero_fail_errno(error, ZERO_E_NOMEM, errnum, "taking over a connection");
    }
    return ZERO_OK;
}

// A speaker says which rank it is.
static zero_result check_speaker(const struct meeting *meeting, int speaker,
                                 struct base_error *error)
{
    const struct mesh_rank *ranks = meeting->places->table->ranks;
    if (speaker > 0 && speaker < meeting->place->world && speaker != meeting->place->rank &&
        (int)ranks[speaker].entry == mesh_own_entry(meeting))
        return ZERO_OK;
    return zero_fail(error, ZERO_E_INVALID, "what speaks for this host says that it is rank %d",
                     speaker);
}

// A rank for which its host's speaker speaks.
static zero_result finish_member(struct meeting *meeting, struct base_error *error)
{
    int leaders[MESH_SPEAKERS + 1], fds[MESH_SPEAKERS + 1], count = 0;
    int32_t speaker = -1;
    zero_result result = mesh_hear_table(meeting, error);
    if (!result && mesh_own_name(meeting) == meeting->place->rank &&
        mesh_connects(meeting, mesh_own_entry(meeting)))
        count = list_leaders(meeting, leaders);
    for (int i = 0; i < count; i++)
        fds[i] = -1;
    if (!result)
        result = take_over(meeting, fds, count, error);
    if (!result)
        result = boot_send(meeting->sockets[0], BOOT_READY, NULL, 0, boot_patience(meeting), error);
    if (!result)
        result = boot_hear(meeting, BOOT_GO, &speaker, sizeof speaker, error);
    if (!result)
        result = check_speaker(meeting, speaker, error);
    for (int i = 0; result && i < count; i++)
        boot_fd_close(&fds[i]);
    if (result)
        return result;
    const int fd = meeting->sockets[0];
    meeting->sockets[0] = -1;
    meeting->sockets[speaker] = fd;
    for (int i = 0; i < count; i++)
        meeting->sockets[leaders[i]] = fds[i];
    return ZERO_OK;
}

static zero_result say_ready(struct meeting *meeting, struct base_error *error)
{
    assert(!meeting->member && meeting->listener < 0);
    meeting->told = true;
    zero_result result =
        boot_send(meeting->sockets[0], BOOT_READY, NULL, 0, boot_patience(meeting), error);
    if (!result)
        result = boot_hear(meeting, BOOT_GO, NULL, 0, error);
    if (!result)
        mesh_gather_let_go(meeting);
    return result;
}

// What a speaker keeps: the connections to other hosts if it leads its own, that to rank 0 if it is
// on rank 0's host, and those to the ranks that it speaks for.
static void keep_near(struct meeting *meeting)
{
    const int own = mesh_own_entry(meeting);
    const bool leads = mesh_connects(meeting, own) && !hands_over(meeting);
    const bool beside_rank_0 = mesh_leader_entry(meeting->places, own) == 0;
    for (int rank = 0; !leads && rank < meeting->place->world; rank++)
        if (rank > 0 || !beside_rank_0)
            boot_fd_close(&meeting->sockets[rank]);
    mesh_gather_keep(meeting);
}

static zero_result finish_speaker(struct meeting *meeting, struct base_error *error)
{
    const struct mesh_places *places = meeting->places;
    zero_result result = mesh_hear_table(meeting, error);
    mesh_gather_end(meeting);
    if (!result)
        result = mesh_gather_tell(meeting, BOOT_TABLE, places->table,
                                  mesh_table_bytes(meeting->place->world, places->count), error);
    if (!result && mesh_connects(meeting, mesh_own_entry(meeting)))
        result = mesh_connect_peers(meeting, error);
    boot_fd_close(&meeting->listener);
    if (!result && hands_over(meeting))
        result = hand_sockets_over(meeting, error);
    if (!result)
        result = mesh_gather_await_ready(meeting, error);
    if (!result)
        result = say_ready(meeting, error);
    if (!result)
        keep_near(meeting);
    return result;
}

zero_result mesh_finish_client(struct meeting *meeting, struct base_error *error)
{
    struct base_error why = {.result = ZERO_OK};
    const zero_result result =
        meeting->member ? finish_member(meeting, &why) : finish_speaker(meeting, &why);
    mesh_gather_close(meeting, result, why.message);
    return result ? zero_fail(error, result, "%s", why.message) : ZERO_OK;
}
