// Rank 0: listens until every rank of the job has come. A caller that is no missing rank is refused
// and logged, and costs the job nothing but a line; a rank of the job that can never fit ends the
// meeting.

#include "collectives/rendezvous/meeting.h"

#include "base/clock.h"
#include "base/text.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

/* ------------------------------------------------------------------ callers */

static void refuse(void *user, struct boot_caller *caller, zero_result result, const char *why)
{
    const struct meeting *meeting = user;
    char from[BOOT_TEXT_BYTES], own[BOOT_TEXT_BYTES], bytes[BOOT_TEXT_BYTES] = "";
    if (result == ZERO_E_PEER && meeting->way->apart) { // as programs that look for open ports
        boot_fd_close(&caller->fd);
        return;
    }
    meeting->way->caller_text(caller, from);
    base_logf(meeting->place->log, ZERO_LOG_WARN, "coll",
              "refused %s at the rendezvous of job %s, \"%s\": %s", from, meeting->place->job,
              meeting->place->name, why);
    base_text_add(&(struct base_text){bytes, sizeof bytes, 0}, "refused by %s: %s",
                  boot_rank_text(meeting, 0, own), why);
    boot_send_failure(caller->fd, result, bytes);
    boot_fd_close(&caller->fd);
}

// A rank of this job that calls for another communicator is to call again.
static void put_off(struct meeting *meeting, struct boot_caller *caller)
{
    const struct boot_hello *hello = &caller->said.hello;
    const char *name = meeting->place->name;
    meeting->other[0] = '\0';
    base_text_add(
        &(struct base_text){meeting->other, sizeof meeting->other, 0},
        "; rank %d (host %s) is opening \"%s\" meanwhile: open contexts in the same order "
        "on all ranks",
        hello->rank, hello->host, hello->name);
    boot_send(caller->fd, BOOT_LATER, name, strlen(name), 0, NULL);
    boot_fd_close(&caller->fd);
}

// Whether a caller is of this meeting; if not it has been dealt with.
static bool belongs(struct meeting *meeting, struct boot_caller *caller)
{
    struct boot_hello *hello = &caller->said.hello;
    char bytes[BOOT_TEXT_BYTES] = "";
    const bool same_job = strncmp(hello->job, meeting->place->job, sizeof hello->job) == 0;
    const bool same_name = strncmp(hello->name, meeting->place->name, sizeof hello->name) == 0;
    boot_clean(hello->job, sizeof hello->job);
    boot_clean(hello->name, sizeof hello->name);
    boot_clean(hello->host, sizeof hello->host);
    if (same_job && same_name)
        return true;
    if (same_job && meeting->way->apart) {
        put_off(meeting, caller);
        return false;
    }
    base_text_add(&(struct base_text){bytes, sizeof bytes, 0},
                  "it is of job %s, \"%s\", and this is job %s: give the ranks of a job the same "
                  "ZERO_JOB%s",
                  hello->job, hello->name, meeting->place->job,
                  meeting->way->apart ? ", and every job a port of its own" : "");
    refuse(meeting, caller, ZERO_E_INVALID, bytes);
    return false;
}

static struct boot_reception reception_of(const struct meeting *meeting);

static zero_result take_in(struct meeting *meeting, struct boot_caller *caller,
                           struct base_error *error)
{
    const struct boot_reception reception = reception_of(meeting);
    const struct boot_hello *hello = &caller->said.hello;
    const int rank = hello->rank;
    assert(meeting->absent > 0 && meeting->sockets[rank] < 0);
    const zero_result result = meeting->way->enter(meeting, caller, error);
    if (result < 0)
        refuse(meeting, caller, result, error->message);
    if (result < 0)
        return result;
    if (result || boot_callers_welcome(caller, &reception)) {
        boot_fd_close(&caller->fd); // it has ended already, and may call again
        return ZERO_OK;
    }
    meeting->sockets[rank] = caller->fd;
    meeting->known[meeting->known_count++] = rank;
    caller->fd = -1;
    boot_come(meeting, rank, hello->pid);
    return ZERO_OK;
}

void boot_come(struct meeting *meeting, int rank, pid_t pid)
{
    char text[BOOT_TEXT_BYTES];
    assert(meeting->absent > 0 && !meeting->pids[rank]);
    meeting->pids[rank] = pid;
    meeting->absent--;
    base_logf(meeting->place->log, ZERO_LOG_DEBUG, "coll", "%s has come, %d missing",
              boot_rank_text(meeting, rank, text), meeting->absent);
}

// Why a rank can't be taken in, written to `why`. False: it can.
static bool is_wrong(const struct meeting *meeting, const struct boot_hello *hello,
                     struct base_text *why)
{
    const int world = meeting->place->world;
    char text[BOOT_TEXT_BYTES];
    if (hello->rank < 1 || hello->rank >= world)
        base_text_add(why, "there is no rank %d of %d to wait for", hello->rank, world);
    else if (hello->pid < 1 && !meeting->way->apart)
        base_text_add(why, "rank %d (host %s) can't be process %d", hello->rank, hello->host,
                      hello->pid);
    else if (meeting->way->apart &&
             (hello->pid < 1 || hello->port < 1 || hello->port > BOOT_PORT_MAX))
        base_text_add(why, "rank %d (host %s) can't be process %d that listens at port %u",
                      hello->rank, hello->host, hello->pid, hello->port);
    else if (meeting->pids[hello->rank])
        base_text_add(why, "rank %d is there already: %s", hello->rank,
                      boot_rank_text(meeting, hello->rank, text));
    else
        return false;
    return true;
}

static zero_result introduce(void *user, struct boot_caller *caller, struct base_error *error)
{
    struct meeting *meeting = user;
    const struct boot_hello *hello = &caller->said.hello;
    char bytes[BOOT_TEXT_BYTES] = "";
    struct base_text why = {bytes, sizeof bytes, 0};
    if (!belongs(meeting, caller))
        return ZERO_OK;
    if (hello->world != meeting->place->world) {
        base_text_add(&why, "rank %d (host %s, process %d) says there are %d ranks, rank 0 says %d",
                      hello->rank, hello->host, hello->pid, hello->world, meeting->place->world);
        refuse(meeting, caller, ZERO_E_INVALID, bytes);
        return zero_fail(error, ZERO_E_INVALID, "%s", bytes); // waiting would be in vain
    }
    if (is_wrong(meeting, hello, &why))
        refuse(meeting, caller, ZERO_E_INVALID, bytes);
    else
        return take_in(meeting, caller, error);
    return ZERO_OK;
}

static struct boot_reception reception_of(const struct meeting *meeting)
{
    return (struct boot_reception){.type = BOOT_HELLO,
                                   .length = sizeof(struct boot_hello),
                                   .secret = meeting->secret,
                                   .sides = &boot_sides_of_rank_0,
                                   .admit = meeting->way->admit,
                                   .introduce = introduce,
                                   .refuse = refuse};
}

/* ------------------------------------------------------------------ until all are there */

static zero_result fail_missing(struct meeting *meeting, struct base_error *error)
{
    const int world = meeting->place->world;
    struct base_numbers missing;
    char place[BOOT_TEXT_BYTES], come[BOOT_TEXT_BYTES] = "";
    const char *ranks = boot_missing_text(&missing, meeting->pids, world);
    if (boot_wait_stops(&meeting->wait))
        return boot_fail_stopped(0, ranks, world, error);
    meeting->way->place_text(meeting, place);
    if (meeting->way->come_text)
        meeting->way->come_text(meeting, &(struct base_text){come, sizeof come, 0});
    return zero_fail(error, ZERO_E_TIMEOUT,
                     "%s of %d did not come to the rendezvous in time (%s)%s%s", ranks, world,
                     place, meeting->other, come);
}

// Tells the ranks that have come which ones have not, unless they know.
static void tell_missing(struct meeting *meeting, const char *ranks)
{
    if (strcmp(meeting->missing, ranks) == 0)
        return;
    memcpy(meeting->missing, ranks, strlen(ranks) + 1);
    for (int i = 0; i < meeting->known_count; i++) {
        const int socket = meeting->sockets[meeting->known[i]];
        // A rank that does not even take these few bytes is shown the end of its connection.
        if (boot_send(socket, BOOT_MISSING, ranks, strlen(ranks), 0, NULL))
            shutdown(socket, SHUT_RDWR);
    }
}

// Says, when it is time to, which ranks are missing: to the ranks that have come, and to the log.
static void remind(struct meeting *meeting)
{
    struct base_numbers missing;
    double seconds;
    const bool says = boot_wait_says(&meeting->wait, &seconds);
    if (!boot_wait_tells(&meeting->wait) && !says)
        return;
    const char *ranks = boot_missing_text(&missing, meeting->pids, meeting->place->world);
    tell_missing(meeting, ranks);
    if (says)
        meeting->way->say_waiting(meeting, seconds, ranks, NULL);
}

zero_result boot_fail_gone(const struct meeting *meeting, int rank, struct base_error *error)
{
    char text[BOOT_TEXT_BYTES];
    return zero_fail(error, ZERO_E_PEER, "%s went away before all ranks had met",
                     boot_rank_text(meeting, rank, text));
}

// A rank that has come says nothing before all have, unless it speaks for others, or for it or one
// of them there is no sense in waiting any more.
static zero_result hear_rank(struct meeting *meeting, int rank, struct base_error *error)
{
    struct boot_header header;
    struct base_error heard = {.result = ZERO_OK};
    const zero_result result = boot_receive(meeting->sockets[rank], &header, BOOT_TEXT_BYTES,
                                            base_clock_ns() + BOOT_GRACE_NS, &heard);
    if (!result && header.type == BOOT_MEMBER && header.length == sizeof(struct boot_member) &&
        meeting->way->hear_member)
        return meeting->way->hear_member(meeting, rank, error);
    if (result == ZERO_E_ABORTED)
        return zero_fail(error, result, "%s", heard.message);
    if (header.type == BOOT_FAIL && meeting->way->apart)
        return zero_fail(error, result, "rank %d (host %s): %s", rank, meeting->hosts[rank],
                         heard.message);
    return boot_fail_gone(meeting, rank, error);
}

// Hears those that have something to say.
static zero_result hear_ranks(struct meeting *meeting, const struct pollfd *polls, int count,
                              struct base_error *error)
{
    zero_result result = ZERO_OK;
    for (int i = 0; i < count && !result; i++)
        if (polls[i].revents)
            result = hear_rank(meeting, meeting->known[i], error);
    return result;
}

// Waits for whatever comes next and deals with it.
static zero_result server_turn(struct meeting *meeting, struct base_error *error)
{
    const struct boot_reception reception = reception_of(meeting);
    const int called = boot_callers_poll(meeting->callers, meeting->listener, meeting->polls);
    const int known = meeting->known_count;
    struct pollfd *ranks = meeting->polls + called;
    for (int i = 0; i < known; i++)
        ranks[i] = (struct pollfd){.fd = meeting->sockets[meeting->known[i]], .events = POLLIN};

    remind(meeting);
    const int left = boot_wait_left(&meeting->wait, meeting->place->deadline_ns,
                                    boot_callers_patience(meeting->callers));
    if (left == 0)
        return fail_missing(meeting, error);
    const int ready = poll(meeting->polls, (nfds_t)(called + known), left);
    if (ready < 0 && errno == EINTR)
        return ZERO_OK;
    if (ready < 0)
        return zero_fail_errno(error, ZERO_E_IO, errno, "rank 0: waiting for the other ranks");
    const zero_result result = hear_ranks(meeting, ranks, known, error);
    return result ? result
                  : boot_callers_receive(meeting->callers, &reception, meeting, meeting->listener,
                                         meeting->polls, error);
}

/* ------------------------------------------------------------------ then */

zero_result boot_send_all(const struct meeting *meeting, enum boot_message_type type,
                          const void *payload, size_t length, struct base_error *error)
{
    char text[BOOT_TEXT_BYTES];
    assert(meeting->place->rank == 0 && meeting->absent == 0);
    for (int i = 0; i < meeting->known_count; i++) {
        const int rank = meeting->known[i];
        struct base_error sent = {.result = ZERO_OK};
        const zero_result result = boot_send(meeting->sockets[rank], type, payload, length,
                                             meeting->place->deadline_ns, &sent);
        if (result)
            return zero_fail(error, result, "%s, as all ranks had come: %s",
                             boot_rank_text(meeting, rank, text), sent.message);
    }
    return ZERO_OK;
}

zero_result boot_server(struct meeting *meeting, struct base_error *error)
{
    struct base_error failure = {.result = ZERO_OK};
    meeting->absent = meeting->place->world - 1;
    zero_result result = meeting->way->listen(meeting, &failure);
    while (!result && meeting->absent)
        result = server_turn(meeting, &failure);
    // Closed first: a rank that hears of all may call again for its next communicator.
    boot_fd_close(&meeting->listener);
    meeting->wait.asked = NULL; // all have come: they learn of a request together
    if (!result)
        result = meeting->way->finish_server(meeting, &failure);
    for (int i = 0; result && i < meeting->known_count; i++)
        boot_send_failure(meeting->sockets[meeting->known[i]], result, failure.message);
    // On several hosts, callers that have not said who they are may be strangers: they hear
    // nothing.
    for (int i = 0; result && !meeting->way->apart && i < meeting->callers->count; i++)
        boot_send_failure(meeting->callers->all[i].fd, result, failure.message);
    boot_callers_close(meeting->callers);
    return result ? zero_fail(error, result, "%s", failure.message) : ZERO_OK;
}
