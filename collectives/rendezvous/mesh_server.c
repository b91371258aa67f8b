// Rank 0 of a meeting of several hosts: listens until every rank has come, tells each where all of
// them are, and waits until they are connected to each other.

#include "collectives/rendezvous/mesh_callers.h"

#include "base/clock.h"
#include "base/text.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <sys/random.h>

static const uint64_t busy_ns = UINT64_C(30000000000); // for a port to become free

struct server {
    struct mesh_meeting *meeting;
    int listener;
    int missing;
    const char *doubt;           // mesh_doubt(), once ranks are waited for
    char told[BOOT_RANKS_BYTES]; // the missing ranks, as the others have been told
    char other[BOOT_TEXT_BYTES]; // which rank has called for another communicator; "": none has
};

static zero_result open_listener(struct server *server, uint64_t deadline_ns,
                                 struct base_error *error)
{
    const struct boot_master *master = server->meeting->master;
    unsigned char address[MESH_ADDRESS_BYTES] = {0};
    if (!mesh_names_loopback(master, address))
        memset(address, 0, sizeof address);
    const uint64_t patience = base_clock_ns() + busy_ns;
    for (bool told = false;; told = true) {
        const zero_result result =
            mesh_listen(&server->listener, address, master->port,
                        server->meeting->place->world + BOOT_CALLERS_MAX, error);
        if (result != ZERO_AGAIN)
            return result;
        if (!told)
            base_logf(server->meeting->place->log, ZERO_LOG_WARN, "coll",
                      "rank 0: port %d (%s) is in use; waiting for it", master->port,
                      master->source);
        const int left = boot_time_left(patience < deadline_ns ? patience : deadline_ns, 50);
        if (left == 0)
            return zero_fail(error, ZERO_E_IO,
                             "rank 0: port %d (%s) is in use by another process: give the job "
                             "another one (ZERO_MASTER_PORT)",
                             master->port, master->source);
        poll(NULL, 0, left);
    }
}

/* ------------------------------------------------------------------ who calls */

/** An address as people write it; one of IPv4 without the form in which IPv6 has it. */
static const char *address_text(const unsigned char address[MESH_ADDRESS_BYTES],
                                char text[INET6_ADDRSTRLEN])
{
    static const char form[] = "::ffff:";
    if (!inet_ntop(AF_INET6, address, text, INET6_ADDRSTRLEN))
        return "an unknown address";
    const bool v4 = strncmp(text, form, sizeof form - 1) == 0 && strchr(text, '.');
    return v4 ? text + sizeof form - 1 : text;
}

static void refuse(void *user, struct mesh_caller *caller, zero_result result, const char *why)
{
    const struct server *server = user;
    unsigned char address[MESH_ADDRESS_BYTES] = {0};
    int port = 0;
    char from[INET6_ADDRSTRLEN], bytes[BOOT_TEXT_BYTES] = "";
    mesh_address(caller->fd, true, address, &port);
    base_logf(server->meeting->place->log, ZERO_LOG_WARN, "coll",
              "refused a call from %s at the rendezvous of job %s, \"%s\": %s",
              address_text(address, from), server->meeting->place->job,
              server->meeting->place->name, why);
    struct base_text text = {bytes, sizeof bytes, 0};
    base_text_add(&text, "refused by rank 0 (host %s): %s", server->meeting->mesh->hosts[0], why);
    mesh_send_failure(caller->fd, result, bytes);
    boot_fd_close(&caller->fd);
}

// All of it, whatever it is, so that the time taken says nothing about the secret.
static bool same_secret(const char *a, const char *b)
{
    unsigned char differ = 0;
    for (size_t i = 0; i < BOOT_SECRET_BYTES; i++)
        differ |= (unsigned char)(a[i] ^ b[i]);
    return differ == 0;
}

// A rank of this job that calls for another communicator is to call again.
static void put_off(struct server *server, struct mesh_caller *caller)
{
    struct mesh_hello *hello = &caller->said.hello;
    const char *name = server->meeting->place->name;
    mesh_clean(hello->name, sizeof hello->name);
    server->other[0] = '\0';
    base_text_add(
        &(struct base_text){server->other, sizeof server->other, 0},
        "; rank %d (host %s) is opening \"%s\" meanwhile: open contexts in the same order "
        "on all ranks",
        hello->rank, hello->host, hello->name);
    mesh_send(caller->fd, MESH_LATER, name, strlen(name), 0, NULL);
    boot_fd_close(&caller->fd);
}

// Whether a caller is of this meeting; if not it has been dealt with. Who doesn't know the secret
// hears of nothing else.
static bool belongs(struct server *server, struct mesh_caller *caller)
{
    const struct boot_meeting *place = server->meeting->place;
    const struct mesh_hello *hello = &caller->said.hello;
    if (!same_secret(hello->secret, server->meeting->master->secret)) {
        refuse(server, caller, ZERO_E_INVALID, "it does not know the job's secret (ZERO_SECRET)");
        return false;
    }
    if (strncmp(hello->job, place->job, sizeof hello->job)) {
        char bytes[BOOT_TEXT_BYTES] = "";
        struct base_text why = {bytes, sizeof bytes, 0};
        mesh_clean(caller->said.hello.job, sizeof caller->said.hello.job);
        base_text_add(&why,
                      "it is of job %s, and this is job %s: give the ranks of a job the same "
                      "ZERO_JOB, and every job a port of its own",
                      hello->job, place->job);
        refuse(server, caller, ZERO_E_INVALID, bytes);
        return false;
    }
    if (strncmp(hello->name, place->name, sizeof hello->name)) {
        put_off(server, caller);
        return false;
    }
    return true;
}

static void take_in(struct server *server, struct mesh_caller *caller)
{
    const struct mesh_hello *hello = &caller->said.hello;
    struct boot_mesh *mesh = server->meeting->mesh;
    struct mesh_entry *entry = &server->meeting->entries[hello->rank];
    int port;
    entry->port = hello->port;
    entry->pid = hello->pid;
    memcpy(entry->host, hello->host, sizeof entry->host);
    memcpy(entry->host_id, hello->host_id, sizeof entry->host_id);
    memcpy(mesh->hosts[hello->rank], entry->host, sizeof entry->host);
    if (!mesh_address(caller->fd, true, entry->address, &port) ||
        mesh_send(caller->fd, MESH_KNOWN, NULL, 0, 0, NULL)) {
        boot_fd_close(&caller->fd); // it has ended already, and may call again
        return;
    }
    mesh->sockets[hello->rank] = caller->fd;
    mesh->pids[hello->rank] = hello->pid;
    caller->fd = -1;
    server->missing--;
    base_logf(server->meeting->place->log, ZERO_LOG_DEBUG, "coll",
              "rank %d (host %s, process %d) has come, %d missing", hello->rank, entry->host,
              hello->pid, server->missing);
}

static zero_result introduce(void *user, struct mesh_caller *caller, struct base_error *error)
{
    struct server *server = user;
    const struct mesh_hello *hello = &caller->said.hello;
    const struct boot_mesh *mesh = server->meeting->mesh;
    char bytes[BOOT_TEXT_BYTES] = "";
    struct base_text why = {bytes, sizeof bytes, 0};
    mesh_clean(caller->said.hello.host, sizeof caller->said.hello.host);
    if (!belongs(server, caller))
        return ZERO_OK;
    if (hello->world != mesh->world) {
        base_text_add(&why, "rank %d (host %s, process %d) says there are %d ranks, rank 0 says %d",
                      hello->rank, hello->host, hello->pid, hello->world, mesh->world);
        refuse(server, caller, ZERO_E_INVALID, bytes);
        return zero_fail(error, ZERO_E_INVALID, "%s", bytes); // waiting would be in vain
    }
    if (hello->rank < 1 || hello->rank >= mesh->world) {
        base_text_add(&why, "there is no rank %d of %d to wait for", hello->rank, mesh->world);
        refuse(server, caller, ZERO_E_INVALID, bytes);
    } else if (hello->pid < 1 || hello->port < 1 || hello->port > BOOT_PORT_MAX) {
        base_text_add(&why, "rank %d (host %s) can't be process %d that listens at port %u",
                      hello->rank, hello->host, hello->pid, hello->port);
        refuse(server, caller, ZERO_E_INVALID, bytes);
    } else if (mesh->sockets[hello->rank] >= 0) {
        base_text_add(&why, "rank %d is there already: process %d of host %s", hello->rank,
                      (int)mesh->pids[hello->rank], mesh->hosts[hello->rank]);
        refuse(server, caller, ZERO_E_INVALID, bytes);
    } else {
        take_in(server, caller);
    }
    return ZERO_OK;
}

static const struct mesh_reception reception = {.type = MESH_HELLO,
                                                .length = sizeof(struct mesh_hello),
                                                .introduce = introduce,
                                                .refuse = refuse};

/* ------------------------------------------------------------------ until all are there */

// Writes what is waited for, and where.
static void place_text(const struct server *server, char text[BOOT_TEXT_BYTES])
{
    char port[BOOT_TEXT_BYTES];
    mesh_place_text(server->meeting->master, port);
    text[0] = '\0';
    base_text_add(&(struct base_text){text, BOOT_TEXT_BYTES, 0},
                  "\"%s\"; rank 0 is on host %s and listens at %s%s%s; job %s",
                  server->meeting->place->name, server->meeting->mesh->hosts[0], port,
                  server->doubt ? ", which " : "", server->doubt ? server->doubt : "",
                  server->meeting->place->job);
}

static zero_result fail_missing(const struct server *server, struct base_error *error)
{
    const struct boot_mesh *mesh = server->meeting->mesh;
    struct base_numbers missing;
    char place[BOOT_TEXT_BYTES];
    if (boot_wait_stops(&server->meeting->wait))
        return boot_fail_stopped(0, boot_missing_text(&missing, mesh->sockets, 1, mesh->world),
                                 mesh->world, error);
    place_text(server, place);
    return zero_fail(error, ZERO_E_TIMEOUT,
                     "%s of %d did not come to the rendezvous in time (%s)%s",
                     boot_missing_text(&missing, mesh->sockets, 1, mesh->world), mesh->world, place,
                     server->other);
}

// Tells the ranks that have come which ones have not, unless they know.
static void tell_missing(struct server *server, const char *ranks)
{
    const struct boot_mesh *mesh = server->meeting->mesh;
    if (strcmp(server->told, ranks) == 0)
        return;
    memcpy(server->told, ranks, strlen(ranks) + 1);
    for (int rank = 1; rank < mesh->world; rank++)
        // Who does not even take these few bytes is shown the end of its connection.
        if (mesh->sockets[rank] >= 0 &&
            mesh_send(mesh->sockets[rank], MESH_MISSING, ranks, strlen(ranks), 0, NULL))
            shutdown(mesh->sockets[rank], SHUT_RDWR);
}

// Says, when it is time to, which ranks are missing.
static void remind(struct server *server)
{
    const struct mesh_meeting *meeting = server->meeting;
    struct base_numbers missing;
    char place[BOOT_TEXT_BYTES];
    double seconds;
    const bool says = boot_wait_says(&server->meeting->wait, &seconds);
    if (!boot_wait_tells(&server->meeting->wait) && !says)
        return;
    tell_missing(server,
                 boot_missing_text(&missing, meeting->mesh->sockets, 1, meeting->mesh->world));
    if (!says)
        return;
    server->doubt = server->doubt ? server->doubt : mesh_doubt(meeting->master);
    place_text(server, place);
    base_logf(meeting->place->log, ZERO_LOG_WARN, "coll",
              "rank 0 has waited %.0f s at the rendezvous for %s of %d (%s)%s", seconds,
              missing.text, meeting->mesh->world, place, server->other);
}

static zero_result gone_away(const struct mesh_meeting *meeting, int rank, struct base_error *error)
{
    return zero_fail(error, ZERO_E_PEER,
                     "rank %d (host %s, process %d) went away before all ranks had met", rank,
                     meeting->mesh->hosts[rank], (int)meeting->mesh->pids[rank]);
}

// A rank that has come says nothing before all have, unless it has been asked to stop.
static zero_result hear_rank(const struct mesh_meeting *meeting, int rank, struct base_error *error)
{
    struct mesh_header header = {.type = 0};
    struct base_error heard = {.result = ZERO_OK};
    const zero_result result = mesh_receive(meeting->mesh->sockets[rank], &header, BOOT_TEXT_BYTES,
                                            base_clock_ns() + BOOT_VERDICT_NS, &heard);
    return result == ZERO_E_ABORTED ? zero_fail(error, result, "%s", heard.message)
                                    : gone_away(meeting, rank, error);
}

// Waits for whatever comes next and deals with it.
static zero_result server_turn(struct server *server, struct base_error *error)
{
    const struct boot_mesh *mesh = server->meeting->mesh;
    struct mesh_callers *callers = server->meeting->callers;
    struct pollfd *polls = server->meeting->polls;
    const int called = mesh_callers_poll(callers, server->listener, polls);
    struct pollfd *ranks = polls + called;
    for (int rank = 0; rank < mesh->world; rank++)
        ranks[rank] = (struct pollfd){.fd = mesh->sockets[rank], .events = POLLIN};

    remind(server);
    const int left = boot_wait_left(&server->meeting->wait, server->meeting->place->deadline_ns,
                                    mesh_callers_patience(callers));
    if (left == 0)
        return fail_missing(server, error);
    if (poll(polls, (nfds_t)(called + mesh->world), left) < 0 && errno != EINTR)
        return zero_fail_errno(error, ZERO_E_IO, errno, "rank 0: waiting for the other ranks");
    for (int rank = 1; rank < mesh->world; rank++)
        if (mesh->sockets[rank] >= 0 && ranks[rank].revents)
            return hear_rank(server->meeting, rank, error);
    return mesh_callers_receive(callers, &reception, server, server->listener, polls, error);
}

/* ------------------------------------------------------------------ who is where */

// Ranks of this host may have called over loopback, where no other host finds them: then they are
// where the others have found rank 0.
static void mend_loopback(struct mesh_meeting *meeting)
{
    unsigned char outside[MESH_ADDRESS_BYTES];
    bool found = false;
    int port;
    for (int rank = 1; rank < meeting->mesh->world && !found; rank++)
        found = !mesh_is_loopback(meeting->entries[rank].address) &&
                mesh_address(meeting->mesh->sockets[rank], false, outside, &port);
    for (int rank = 1; rank < meeting->mesh->world && found; rank++)
        if (mesh_is_loopback(meeting->entries[rank].address))
            memcpy(meeting->entries[rank].address, outside, sizeof outside);
}

static zero_result send_table(struct mesh_meeting *meeting, struct base_error *error)
{
    uint64_t token;
    if (getrandom(&token, sizeof token, 0) != sizeof token)
        return zero_fail_errno(error, ZERO_E_IO, errno, "rank 0: a random number");
    memcpy(meeting->table, &token, sizeof token);
    mend_loopback(meeting);
    for (int rank = 1; rank < meeting->mesh->world; rank++) {
        struct base_error sent = {.result = ZERO_OK};
        const zero_result result =
            mesh_send(meeting->mesh->sockets[rank], MESH_TABLE, meeting->table,
                      mesh_table_bytes(meeting->mesh->world), meeting->place->deadline_ns, &sent);
        if (result)
            return zero_fail(error, result, "rank %d (host %s), as all ranks had come: %s", rank,
                             meeting->mesh->hosts[rank], sent.message);
    }
    return ZERO_OK;
}

// Hears from a rank that it is connected to all others, or why not.
static zero_result hear_ready(const struct mesh_meeting *meeting, int rank,
                              struct base_error *error)
{
    struct mesh_header header = {.type = 0};
    struct base_error heard = {.result = ZERO_OK};
    zero_result result =
        mesh_receive(meeting->mesh->sockets[rank], &header, 0, meeting->place->deadline_ns, &heard);
    if (!result && header.type != MESH_READY)
        result = zero_fail(&heard, ZERO_E_INVALID, "a message of type %u", header.type);
    if (result == ZERO_E_PEER && header.type != MESH_FAIL)
        return gone_away(meeting, rank, error);
    return result ? zero_fail(error, result, "rank %d (host %s): %s", rank,
                              meeting->mesh->hosts[rank], heard.message)
                  : ZERO_OK;
}

// The ranks that have not said that they are connected to all others.
static const char *unready_text(const struct mesh_meeting *meeting, struct base_numbers *unready)
{
    *unready = (struct base_numbers){.count = 0};
    for (int rank = 1; rank < meeting->mesh->world; rank++)
        if (meeting->polls[rank].fd >= 0)
            base_numbers_add(unready, rank);
    return base_numbers_text(unready, "rank");
}

static void remind_of_unready(struct mesh_meeting *meeting)
{
    struct base_numbers unready;
    double seconds;
    if (boot_wait_says(&meeting->wait, &seconds))
        base_logf(meeting->place->log, ZERO_LOG_WARN, "coll",
                  "rank 0 (host %s) has waited %.0f s: %s of %d are not yet connected to all "
                  "others (job %s, \"%s\")",
                  meeting->mesh->hosts[0], seconds, unready_text(meeting, &unready),
                  meeting->mesh->world, meeting->place->job, meeting->place->name);
}

static zero_result await_ready(struct mesh_meeting *meeting, struct base_error *error)
{
    const struct boot_mesh *mesh = meeting->mesh;
    struct base_numbers unready;
    for (int rank = 0; rank < mesh->world; rank++)
        meeting->polls[rank] = (struct pollfd){.fd = mesh->sockets[rank], .events = POLLIN};
    for (int waiting = mesh->world - 1; waiting > 0;) {
        remind_of_unready(meeting);
        const int left = boot_wait_left(&meeting->wait, meeting->place->deadline_ns, 1000);
        if (left == 0)
            return zero_fail(error, ZERO_E_TIMEOUT,
                             "%s of %d did not get connected to all others in time",
                             unready_text(meeting, &unready), mesh->world);
        if (poll(meeting->polls, (nfds_t)mesh->world, left) < 0 && errno != EINTR)
            return zero_fail_errno(error, ZERO_E_IO, errno, "rank 0: waiting for the other ranks");
        for (int rank = 1; rank < mesh->world; rank++) {
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

// All have met, and whoever hears so talks to the others as they do from now on: nothing can be
// taken back. A rank that does not hear it is shown the end of its connection, as by a death that
// the others then see.
static void let_go(const struct mesh_meeting *meeting)
{
    for (int rank = 1; rank < meeting->mesh->world; rank++) {
        const int socket = meeting->mesh->sockets[rank];
        struct base_error sent = {.result = ZERO_OK};
        const zero_result result =
            mesh_send(socket, MESH_GO, NULL, 0, meeting->place->deadline_ns, &sent);
        if (!result)
            continue;
        base_logf(meeting->place->log, ZERO_LOG_WARN, "coll",
                  "rank 0 could not tell rank %d (host %s) that all had met: %s", rank,
                  meeting->mesh->hosts[rank], sent.message);
        mesh_send_failure(socket, result, sent.message);
        shutdown(socket, SHUT_RDWR);
    }
}

// Not those who haven't said who they are.
static void tell_failure(const struct boot_mesh *mesh, zero_result result, const char *text)
{
    for (int rank = 1; rank < mesh->world; rank++)
        if (mesh->sockets[rank] >= 0)
            mesh_send_failure(mesh->sockets[rank], result, text);
}

zero_result mesh_server(struct mesh_meeting *meeting, struct base_error *error)
{
    struct server server = {
        .meeting = meeting, .listener = -1, .missing = meeting->mesh->world - 1};
    struct base_error failure = {.result = ZERO_OK};
    zero_result result = open_listener(&server, meeting->place->deadline_ns, &failure);
    while (!result && server.missing)
        result = server_turn(&server, &failure);
    // Closed first: a rank that hears of all may call again for its next communicator.
    boot_fd_close(&server.listener);
    meeting->wait.asked = NULL; // all have come: they learn of a request together
    if (!result)
        result = send_table(meeting, &failure);
    if (!result)
        result = await_ready(meeting, &failure);
    if (result)
        tell_failure(meeting->mesh, result, failure.message);
    else
        let_go(meeting);
    mesh_callers_close(meeting->callers);
    return result ? zero_fail(error, result, "%s", failure.message) : ZERO_OK;
}
