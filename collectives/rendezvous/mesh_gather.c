// The ranks of one host gather before they meet those of other hosts: at an abstract unix socket,
// whose listener is the first of them that comes. That one speaks for all, also for those that come
// later: it alone calls rank 0, tells it of them, and passes on what rank 0 says. Rank 0 itself
// does not gather: it is called.

#include "collectives/rendezvous/mesh_internal.h"

#include "base/arena.h"
#include "base/clock.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct mesh_gathering *mesh_gathering_create(const struct boot_meeting *place)
{
    const int room = place->world < BOOT_HOST_RANKS_MAX ? place->world : BOOT_HOST_RANKS_MAX;
    struct mesh_gathering *gathering =
        base_calloc(1, sizeof *gathering + (size_t)room * sizeof *gathering->members);
    if (gathering)
        gathering->listener = -1;
    return gathering;
}

/* ------------------------------------------------------------------ where they gather */

static socklen_t find_address(struct sockaddr_un *address, const struct meeting *meeting)
{
    return boot_host_address(address, meeting->place, meeting->master->port,
                             meeting->hello.host_id);
}

static zero_result become_speaker(struct meeting *meeting, const struct sockaddr_un *address,
                                  socklen_t length, struct base_error *error)
{
    int *listener = &meeting->gathering->listener;
    assert(*listener < 0 && meeting->place->rank > 0 && meeting->gathering->count == 0);
    *listener = boot_socket(AF_UNIX);
    if (*listener < 0)
        return zero_fail_errno(error, ZERO_E_IO, errno, "a socket for the ranks of this host");
    if (bind(*listener, (const struct sockaddr *)address, length) == 0 &&
        listen(*listener, meeting->place->world) == 0)
        return ZERO_OK;
    const int errnum = errno;
    boot_fd_close(listener);
    zero_fail_errno(error, ZERO_E_IO, errnum, "a place for the ranks of this host to gather at");
    return errnum == EADDRINUSE ? ZERO_AGAIN : ZERO_E_IO;
}

static zero_result check_speaker(struct meeting *meeting, struct base_error *error)
{
    struct ucred peer;
    if (!boot_find_peer(meeting->sockets[0], &peer))
        return zero_fail_errno(error, ZERO_E_IO, errno, "finding the process that listens");
    if (peer.uid != geteuid())
        return zero_fail(error, ZERO_E_INVALID,
                         "process %d of user %u listens where the ranks of this host gather",
                         (int)peer.pid, (unsigned)peer.uid);
    meeting->member = true;
    meeting->speaker = peer.pid;
    return ZERO_OK;
}

zero_result mesh_gather(struct meeting *meeting, struct base_error *error)
{
    int *fd = &meeting->sockets[0];
    struct sockaddr_un address;
    meeting->member = false;
    meeting->speaker = 0;
    if (!meeting->gathering || meeting->gathering->listener >= 0)
        return ZERO_OK;
    const socklen_t length = find_address(&address, meeting);
    *fd = boot_socket(AF_UNIX);
    if (*fd < 0)
        return zero_fail_errno(error, ZERO_E_IO, errno,
                               "a socket to gather with this host's ranks");
    if (connect(*fd, (struct sockaddr *)&address, length) == 0)
        return check_speaker(meeting, error);
    const int errnum = errno;
    boot_fd_close(fd);
    if (errnum == ECONNREFUSED)
        return become_speaker(meeting, &address, length, error);
    zero_fail_errno(error, ZERO_E_IO, errnum, "calling the rank of this host that speaks for all");
    return errnum == EAGAIN || errnum == EINTR ? ZERO_AGAIN : ZERO_E_IO;
}

/* ------------------------------------------------------------------ who comes */

static bool speaks(const struct meeting *meeting)
{
    return meeting->gathering && meeting->gathering->listener >= 0;
}

static void refuse_member(void *user, struct boot_caller *caller, zero_result result,
                          const char *why)
{
    const struct meeting *meeting = user;
    char own[BOOT_TEXT_BYTES], bytes[BOOT_TEXT_BYTES] = "";
    if (result != ZERO_E_PEER) {
        base_logf(meeting->place->log, ZERO_LOG_WARN, "coll",
                  "refused process %d among the ranks of this host, of job %s, \"%s\": %s",
                  (int)caller->pid, meeting->place->job, meeting->place->name, why);
        base_text_add(&(struct base_text){bytes, sizeof bytes, 0}, "refused by %s: %s",
                      boot_rank_text(meeting, meeting->place->rank, own), why);
        boot_send_failure(caller->fd, result, bytes);
    }
    boot_fd_close(&caller->fd);
}

static bool is_of_this_host(const struct meeting *meeting, const struct boot_hello *hello)
{
    const struct boot_hello *own = &meeting->hello;
    return strncmp(hello->job, own->job, sizeof own->job) == 0 &&
           strncmp(hello->name, own->name, sizeof own->name) == 0 &&
           memcmp(hello->host_id, own->host_id, sizeof own->host_id) == 0;
}

// Why a rank can't be taken in; false: it can. That it counts other ranks is rank 0's to say.
static bool is_wrong_member(const struct meeting *meeting, const struct boot_hello *hello,
                            struct base_text *why)
{
    const int world = meeting->place->world;
    char text[BOOT_TEXT_BYTES];
    if (!is_of_this_host(meeting, hello))
        base_text_add(why, "it is of another job or host");
    else if (hello->rank < 1 || hello->rank >= world)
        base_text_add(why, "there is no rank %d of %d to wait for", hello->rank, world);
    else if (hello->pid < 1)
        base_text_add(why, "rank %d can't be process %d", hello->rank, hello->pid);
    else if (meeting->pids[hello->rank])
        base_text_add(why, "rank %d is there already: %s", hello->rank,
                      boot_rank_text(meeting, hello->rank, text));
    else if (meeting->gathering->count == BOOT_HOST_RANKS_MAX - 1)
        base_text_add(why, "a host has at most %d ranks", BOOT_HOST_RANKS_MAX);
    else
        return false;
    return true;
}

static struct boot_reception member_reception(const struct meeting *meeting);

static zero_result take_member(struct meeting *meeting, struct boot_caller *caller,
                               struct base_error *error)
{
    const struct boot_reception reception = member_reception(meeting);
    const struct boot_hello *hello = &caller->said.hello;
    const struct boot_member member = {
        .rank = hello->rank, .world = hello->world, .pid = hello->pid};
    struct mesh_gathering *gathering = meeting->gathering;
    assert(gathering->count < meeting->place->world);
    if (mesh_has_hung_up(caller->fd) || boot_callers_welcome(caller, &reception)) {
        boot_fd_close(&caller->fd); // it may call again
        return ZERO_OK;
    }
    gathering->members[gathering->count++] =
        (struct mesh_member){.fd = caller->fd, .rank = hello->rank, .pid = hello->pid};
    caller->fd = -1;
    meeting->pids[hello->rank] = hello->pid;
    memcpy(meeting->hosts[hello->rank], meeting->hello.host, BOOT_HOST_BYTES);
    return boot_send(meeting->sockets[0], BOOT_MEMBER, &member, sizeof member,
                     boot_patience(meeting), error);
}

static zero_result introduce_member(void *user, struct boot_caller *caller,
                                    struct base_error *error)
{
    struct meeting *meeting = user;
    char bytes[BOOT_TEXT_BYTES] = "";
    struct base_text why = {bytes, sizeof bytes, 0};
    if (!is_wrong_member(meeting, &caller->said.hello, &why))
        return take_member(meeting, caller, error);
    refuse_member(meeting, caller, ZERO_E_INVALID, bytes);
    return ZERO_OK;
}

static struct boot_reception member_reception(const struct meeting *meeting)
{
    return (struct boot_reception){.type = BOOT_HELLO,
                                   .length = sizeof(struct boot_hello),
                                   .secret = meeting->secret,
                                   .sides = &boot_sides_of_host,
                                   .admit = boot_admit_user,
                                   .introduce = introduce_member,
                                   .refuse = refuse_member};
}

/* ------------------------------------------------------------------ until all have come */

int mesh_gather_poll(const struct meeting *meeting, struct pollfd *polls)
{
    if (!speaks(meeting))
        return 0;
    const struct mesh_gathering *gathering = meeting->gathering;
    const int called = boot_callers_poll(meeting->callers, gathering->listener, polls);
    for (int i = 0; i < gathering->count; i++)
        polls[called + i] = (struct pollfd){.fd = gathering->members[i].fd, .events = POLLIN};
    return called + gathering->count;
}

// Before the table a member says nothing but that it gives up; then that it is ready.
static zero_result hear_member(const struct meeting *meeting, const struct mesh_member *member,
                               bool ready, uint64_t deadline_ns, struct base_error *error)
{
    char text[BOOT_TEXT_BYTES];
    struct boot_header header;
    struct base_error heard = {.result = ZERO_OK};
    const zero_result result = boot_receive(member->fd, &header, 0, deadline_ns, &heard);
    if (!result && ready && header.type == BOOT_READY)
        return ZERO_OK;
    if (header.type == BOOT_FAIL || result == ZERO_E_TIMEOUT)
        return zero_fail(error, result, "%s: %s", boot_rank_text(meeting, member->rank, text),
                         heard.message);
    return zero_fail(error, ZERO_E_PEER, "%s went away before all ranks had met",
                     boot_rank_text(meeting, member->rank, text));
}

zero_result mesh_gather_attend(struct meeting *meeting, const struct pollfd *polls,
                               struct base_error *error)
{
    const struct mesh_gathering *gathering = meeting->gathering;
    const struct boot_reception reception = member_reception(meeting);
    const struct pollfd *members = polls + 1 + meeting->callers->count;
    assert(speaks(meeting) && !meeting->member);
    for (int i = 0; i < gathering->count; i++)
        if (members[i].revents)
            return hear_member(meeting, &gathering->members[i], false,
                               base_clock_ns() + BOOT_GRACE_NS, error);
    return boot_callers_receive(meeting->callers, &reception, meeting, gathering->listener, polls,
                                error);
}

static void turn_member_away(struct meeting *meeting, int rank, zero_result result, const char *why)
{
    struct mesh_gathering *gathering = meeting->gathering;
    for (int i = 0; i < gathering->count; i++) {
        struct mesh_member *member = &gathering->members[i];
        if (member->rank != rank || member->fd < 0)
            continue;
        boot_send_failure(member->fd, result, why);
        boot_fd_close(&member->fd);
        meeting->pids[rank] = 0;
        *member = gathering->members[--gathering->count];
        return;
    }
}

zero_result mesh_gather_turned(struct meeting *meeting, size_t length, struct base_error *error)
{
    struct {
        struct boot_turned turned;
        char why[BOOT_TEXT_BYTES + 1];
    } said = {.turned = {.rank = 0}};
    if (!speaks(meeting) || length < sizeof said.turned || length >= sizeof said)
        return zero_fail(error, ZERO_E_INVALID, "rank 0 turns away a rank in %zu bytes", length);
    const zero_result result =
        boot_receive_bytes(meeting->sockets[0], &said, length, boot_patience(meeting), error);
    boot_clean(said.why, sizeof said.why);
    if (!result)
        turn_member_away(meeting, said.turned.rank,
                         base_failure_of(said.turned.result, ZERO_E_INVALID), said.why);
    return result;
}

void mesh_gather_missing(const struct meeting *meeting)
{
    for (int i = 0; speaks(meeting) && i < meeting->gathering->count; i++) {
        const int fd = meeting->gathering->members[i].fd;
        if (boot_send(fd, BOOT_MISSING, meeting->missing, strlen(meeting->missing), 0, NULL))
            shutdown(fd, SHUT_RDWR);
    }
}

/* ------------------------------------------------------------------ then */

void mesh_gather_end(struct meeting *meeting)
{
    if (!speaks(meeting))
        return;
    boot_callers_close(meeting->callers);
    boot_fd_close(&meeting->gathering->listener);
}

static zero_result fail_telling(const struct meeting *meeting, int rank, zero_result result,
                                const char *why, struct base_error *error)
{
    char text[BOOT_TEXT_BYTES];
    return zero_fail(error, result, "%s, as all ranks had come: %s",
                     boot_rank_text(meeting, rank, text), why);
}

zero_result mesh_gather_tell(const struct meeting *meeting, enum boot_message_type type,
                             const void *payload, size_t length, struct base_error *error)
{
    zero_result result = ZERO_OK;
    for (int i = 0; meeting->gathering && i < meeting->gathering->count; i++) {
        const struct mesh_member *member = &meeting->gathering->members[i];
        struct base_error sent = {.result = ZERO_OK};
        const zero_result told =
            boot_send(member->fd, type, payload, length, boot_patience(meeting), &sent);
        if (told && !result)
            result = fail_telling(meeting, member->rank, told, sent.message, error);
    }
    return result;
}

zero_result mesh_gather_await_ready(const struct meeting *meeting, struct base_error *error)
{
    zero_result result = ZERO_OK;
    for (int i = 0; meeting->gathering && i < meeting->gathering->count && !result; i++)
        result = hear_member(meeting, &meeting->gathering->members[i], true,
                             meeting->place->deadline_ns, error);
    return result;
}

zero_result mesh_gather_hand_over(const struct meeting *meeting, int rank, const int *fds,
                                  int count, struct base_error *error)
{
    static const struct iovec nothing[2] = {{NULL, 0}, {NULL, 0}};
    const struct mesh_member *member = NULL;
    for (int i = 0; meeting->gathering && i < meeting->gathering->count; i++)
        if (meeting->gathering->members[i].rank == rank)
            member = &meeting->gathering->members[i];
    assert(member && count >= 0);
    for (int i = 0; i < count; i += BOOT_FDS_MAX) {
        const int some = count - i < BOOT_FDS_MAX ? count - i : BOOT_FDS_MAX;
        struct base_error sent = {.result = ZERO_OK};
        const zero_result result = boot_send_with(member->fd, BOOT_SOCKETS, nothing, fds + i, some,
                                                  boot_patience(meeting), &sent);
        if (result)
            return fail_telling(meeting, rank, result, sent.message, error);
    }
    return ZERO_OK;
}

// Those that have called and not been looked at hear why, too: they call again.
static void tell_callers(const struct meeting *meeting, zero_result result, const char *why)
{
    int fd = -1;
    for (int i = 0; meeting->callers && i < meeting->callers->count; i++)
        boot_send_failure(meeting->callers->all[i].fd, result, why);
    while (!boot_accept(&fd, meeting->gathering->listener, NULL) && fd >= 0) {
        boot_send_failure(fd, result, why);
        boot_fd_close(&fd);
    }
}

void mesh_gather_let_go(const struct meeting *meeting)
{
    const int32_t own = meeting->place->rank;
    for (int i = 0; meeting->gathering && i < meeting->gathering->count; i++) {
        const struct mesh_member *member = &meeting->gathering->members[i];
        struct base_error sent = {.result = ZERO_OK};
        const zero_result result =
            boot_send(member->fd, BOOT_GO, &own, sizeof own, boot_patience(meeting), &sent);
        if (!result)
            continue;
        base_logf(meeting->place->log, ZERO_LOG_WARN, "coll",
                  "rank %d could not tell rank %d of its host that all had met: %s",
                  meeting->place->rank, member->rank, sent.message);
        boot_send_failure(member->fd, result, sent.message);
        shutdown(member->fd, SHUT_RDWR);
    }
}

void mesh_gather_keep(struct meeting *meeting)
{
    for (int i = 0; meeting->gathering && i < meeting->gathering->count; i++) {
        struct mesh_member *member = &meeting->gathering->members[i];
        assert(meeting->sockets[member->rank] < 0);
        meeting->sockets[member->rank] = member->fd;
        member->fd = -1;
    }
}

void mesh_gather_close(struct meeting *meeting, zero_result result, const char *why)
{
    struct mesh_gathering *gathering = meeting->gathering;
    if (!gathering)
        return;
    if (result && speaks(meeting))
        tell_callers(meeting, result, why);
    if (meeting->callers && speaks(meeting))
        boot_callers_close(meeting->callers);
    boot_fd_close(&gathering->listener);
    for (int i = 0; i < gathering->count; i++) {
        if (result && gathering->members[i].fd >= 0)
            boot_send_failure(gathering->members[i].fd, result, why);
        boot_fd_close(&gathering->members[i].fd);
    }
    gathering->count = 0;
}
