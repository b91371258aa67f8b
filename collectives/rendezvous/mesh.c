#include "base/arena.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/text.h"
#include "collectives/rendezvous/mesh_internal.h"

#include <arpa/inet.h>
#include <assert.h>
#include <string.h>
#include <unistd.h>

static const uint64_t busy_ns = UINT64_C(30000000000); // for a port to become free

// How long one of several addresses may take to answer as rank 0.
static const uint64_t answer_least_ns = UINT64_C(100000000), answer_most_ns = UINT64_C(5000000000);

/* ------------------------------------------------------------------ where ranks meet */

static zero_result listen_at_master(struct meeting *meeting, struct base_error *error)
{
    const struct boot_master *master = meeting->master;
    const struct boot_meeting *place = meeting->place;
    unsigned char address[MESH_ADDRESS_BYTES] = {0};
    if (!mesh_names_loopback(master, address))
        memset(address, 0, sizeof address);
    const uint64_t free_ns = base_clock_ns() + busy_ns;
    for (bool told = false;; told = true) {
        const zero_result result = mesh_listen(&meeting->listener, address, master->port,
                                               place->world + BOOT_CALLERS_MAX, error);
        if (result != ZERO_AGAIN)
            return result;
        if (!told)
            base_logf(place->log, ZERO_LOG_WARN, "coll",
                      "rank 0: port %d (%s) is in use; waiting for it", master->port,
                      master->source);
        const int left =
            boot_time_left(free_ns < place->deadline_ns ? free_ns : place->deadline_ns, 50);
        if (left == 0)
            return zero_fail(error, ZERO_E_IO,
                             "rank 0: port %d (%s) is in use by another process: give the job "
                             "another one (ZERO_MASTER_PORT)",
                             master->port, master->source);
        poll(NULL, 0, left);
    }
}

// Other clients reach this one by the interface that leads to rank 0. By loopback only clients of
// this host reach it, which need not be all.
static zero_result listen_for_clients(struct meeting *meeting, struct base_error *error)
{
    unsigned char address[MESH_ADDRESS_BYTES], named[MESH_ADDRESS_BYTES];
    int port;
    if (!mesh_address(meeting->sockets[0], false, address, &port))
        return zero_fail(error, ZERO_E_PEER, "it has closed its connection");
    if (mesh_is_loopback(address) && !mesh_names_loopback(meeting->master, named))
        memset(address, 0, sizeof address);
    const zero_result result = mesh_listen(&meeting->listener, address, 0,
                                           meeting->place->world + BOOT_CALLERS_MAX, error);
    if (result)
        return result < 0 ? result : zero_fail(error, ZERO_E_IO, "no port is free to listen at");
    if (!mesh_address(meeting->listener, false, address, &port))
        return zero_fail(error, ZERO_E_IO, "the listening socket has no address");
    meeting->hello.port = (uint32_t)port;
    return ZERO_OK;
}

static zero_result call_master(struct meeting *meeting, struct base_error *error)
{
    const zero_result result = mesh_gather(meeting, error);
    if (result || meeting->member)
        return result;
    return mesh_call(&meeting->sockets[0], meeting->master, meeting->turn, boot_patience(meeting),
                     error)
               ? ZERO_AGAIN
               : listen_for_clients(meeting, error);
}

// Of rank 0's names each is called first once: another process may listen at one, on another host.
// One that does not answer at all is rank 0 perhaps, which is busy: its turn comes again.
static bool is_elsewhere(struct meeting *meeting, bool silent)
{
    const int names = mesh_count_names(meeting->master);
    meeting->turn++;
    meeting->strangers += !silent;
    return meeting->strangers < names;
}

// Where rank 0 may be elsewhere a call takes a part of the time that is left.
static uint64_t answer_deadline(const struct meeting *meeting)
{
    const uint64_t names = (uint64_t)mesh_count_names(meeting->master);
    const uint64_t now = base_clock_ns(), deadline = boot_patience(meeting);
    if (names == 1 || meeting->member || now >= deadline)
        return deadline;
    const uint64_t part = (deadline - now) / (names + 1);
    const uint64_t limit = part < answer_least_ns  ? answer_least_ns
                           : part > answer_most_ns ? answer_most_ns
                                                   : part;
    return now + limit < deadline ? now + limit : deadline;
}

// The address as people write it; one of IPv4 without the form in which IPv6 has it.
static void caller_text(const struct boot_caller *caller, char text[BOOT_TEXT_BYTES])
{
    static const char form[] = "::ffff:";
    unsigned char address[MESH_ADDRESS_BYTES] = {0};
    char bytes[INET6_ADDRSTRLEN] = "an unknown address";
    int port;
    mesh_address(caller->fd, true, address, &port);
    inet_ntop(AF_INET6, address, bytes, sizeof bytes);
    const bool v4 = strncmp(bytes, form, sizeof form - 1) == 0 && strchr(bytes, '.');
    text[0] = '\0';
    base_text_add(&(struct base_text){text, BOOT_TEXT_BYTES, 0}, "a call from %s",
                  v4 ? bytes + sizeof form - 1 : bytes);
}

// Where rank 0 is: "port 6106 of 10.0.0.4 (MASTER_ADDR, MASTER_PORT + 1)".
static const char *port_text(const struct meeting *meeting, char text[BOOT_TEXT_BYTES])
{
    const struct boot_master *master = meeting->master;
    text[0] = '\0';
    base_text_add(&(struct base_text){text, BOOT_TEXT_BYTES, 0}, "port %d of %s (%s)", master->port,
                  master->address, master->source);
    return text;
}

static void place_text(const struct meeting *meeting, char text[BOOT_TEXT_BYTES])
{
    char port[BOOT_TEXT_BYTES];
    text[0] = '\0';
    base_text_add(&(struct base_text){text, BOOT_TEXT_BYTES, 0},
                  "\"%s\"; rank 0 is on host %s and listens at %s%s%s; job %s",
                  meeting->place->name, meeting->hosts[0], port_text(meeting, port),
                  meeting->doubt ? ", which " : "", meeting->doubt ? meeting->doubt : "",
                  meeting->place->job);
}

static void unreached_text(const struct meeting *meeting, zero_result result, const char *why,
                           struct base_text *text)
{
    char port[BOOT_TEXT_BYTES];
    base_text_add(text, "rank 0 of %d at %s: %s%s", meeting->place->world, port_text(meeting, port),
                  why, meeting->other);
    if (result == ZERO_AGAIN)
        base_text_add(text, "; rank 0 has to run on that host, this one has to know its name, and "
                            "the port has to be open to it");
}

/* ------------------------------------------------------------------ what it says meanwhile */

static void say(const struct meeting *meeting, double seconds, const char *what)
{
    const struct boot_meeting *place = meeting->place;
    base_logf(place->log, ZERO_LOG_WARN, "coll",
              "rank %d (host %s) has waited %.0f s %s (job %.60s, \"%s\")", place->rank,
              meeting->hello.host, seconds, what, place->job, place->name);
}

void mesh_remind(struct meeting *meeting, const char *what)
{
    double seconds;
    if (boot_wait_says(&meeting->wait, &seconds))
        say(meeting, seconds, what);
}

static void say_waiting(struct meeting *meeting, double seconds, const char *ranks, const char *why)
{
    char what[2 * BOOT_TEXT_BYTES] = "", place[BOOT_TEXT_BYTES];
    struct base_text text = {what, sizeof what, 0};
    if (why) {
        base_text_add(&text, "for ");
        unreached_text(meeting, ZERO_OK, why, &text);
        say(meeting, seconds, what);
    } else if (meeting->place->rank > 0) {
        base_text_add(&text, "at the rendezvous, where rank 0 (%s) waits for %s of %d",
                      port_text(meeting, place), ranks, meeting->place->world);
        say(meeting, seconds, what);
    } else {
        meeting->doubt = meeting->doubt ? meeting->doubt : mesh_doubt(meeting->master);
        place_text(meeting, place);
        base_logf(meeting->place->log, ZERO_LOG_WARN, "coll",
                  "rank 0 has waited %.0f s at the rendezvous for %s of %d (%s)%s", seconds, ranks,
                  meeting->place->world, place, meeting->other);
    }
}

static const struct boot_way several_hosts = {
    .size = sizeof(struct boot_way),
    .name = "several hosts",
    .apart = true,
    .listen = listen_at_master,
    .call = call_master,
    .is_elsewhere = is_elsewhere,
    .answer_deadline = answer_deadline,
    .enter = mesh_enter,
    .hear_member = mesh_hear_member,
    .come_text = mesh_come_text,
    .attend_poll = mesh_gather_poll,
    .attend = mesh_gather_attend,
    .hear_turned = mesh_gather_turned,
    .pass_missing = mesh_gather_missing,
    .caller_text = caller_text,
    .place_text = place_text,
    .unreached_text = unreached_text,
    .say_waiting = say_waiting,
    .finish_server = mesh_finish_server,
    .finish_client = mesh_finish_client,
};

/* ------------------------------------------------------------------ the mesh */

static void find_host_id(const struct boot_meeting *place,
                         unsigned char host_id[BOOT_HOST_ID_BYTES])
{
    if (!place->host_id) {
        boot_host_id(host_id);
        return;
    }
    base_hash128_bytes(base_hash128(place->host_id, strlen(place->host_id), 0), host_id);
}

// Finds each rank's leader, and counts the ranks on the host of this one.
static void find_hosts(const struct meeting *meeting, struct boot_mesh *mesh)
{
    const struct mesh_places *places = meeting->places;
    const int own = meeting->place->rank;
    assert(places->count > 0 && places->entries[0].rank == 0);
    for (int rank = 0; rank < mesh->world; rank++) {
        const int entry = (int)places->table->ranks[rank].entry;
        mesh->leaders[rank] = places->entries[mesh_leader_entry(places, entry)].rank;
        mesh->host_count += mesh->leaders[rank] == rank;
    }
    for (int rank = 0; rank < mesh->world; rank++) {
        const bool here = mesh->leaders[rank] == mesh->leaders[own];
        mesh->local_world += here;
        mesh->local_rank += here && rank < own;
    }
    mesh->token = places->table->token;
}

static bool allocate(struct boot_mesh *mesh, struct meeting *meeting)
{
    const struct boot_meeting *place = meeting->place;
    const size_t world = (size_t)place->world;
    mesh->world = place->world;
    mesh->sockets = meeting->sockets = base_calloc(world, sizeof *mesh->sockets);
    mesh->hosts = meeting->hosts = base_calloc(world, sizeof *mesh->hosts);
    mesh->pids = meeting->pids = base_calloc(world, sizeof *mesh->pids);
    mesh->leaders = base_calloc(world, sizeof *mesh->leaders);
    if (place->rank > 0 && !place->each_rank)
        meeting->gathering = mesh_gathering_create(place);
    for (size_t rank = 0; mesh->sockets && rank < world; rank++)
        mesh->sockets[rank] = -1;
    return mesh_places_create(meeting->places, place) && mesh->sockets && mesh->hosts &&
           mesh->pids && mesh->leaders &&
           (meeting->gathering || place->rank == 0 || place->each_rank);
}

// Rank 0 calls no other one: it is the first entry, at no address.
static void enter_rank_0(const struct meeting *meeting)
{
    struct mesh_places *places = meeting->places;
    struct mesh_entry *own = &places->entries[0];
    assert(meeting->place->rank == 0 && places->count == 0);
    memcpy(own->host_id, meeting->hello.host_id, sizeof own->host_id);
    boot_host_name(own->host);
    places->table->ranks[0].pid = getpid();
    places->count = 1;
}

// A rank that cannot prove that it knows the secret says so before any other waits for it.
static zero_result check_secret(const struct meeting *meeting, struct base_error *error)
{
    struct base_error why = {.result = ZERO_OK};
    if (!*meeting->secret || !base_hmac_load(&why))
        return ZERO_OK;
    return zero_fail(error, why.result, "rank %d: ZERO_SECRET is set, but %s", meeting->place->rank,
                     why.message);
}

static zero_result meet(struct meeting *meeting, struct boot_mesh *mesh, struct base_error *error)
{
    if (!allocate(mesh, meeting))
        return boot_fail_memory(meeting->place, error);
    find_host_id(meeting->place, meeting->hello.host_id);
    if (meeting->place->rank == 0)
        enter_rank_0(meeting);
    struct base_error why = {.result = ZERO_OK};
    zero_result result = check_secret(meeting, &why);
    if (!result)
        result = boot_meeting_run(meeting, &why);
    // Those that wait for this rank to speak for them find out by themselves what is wrong.
    mesh_gather_close(meeting, result ? ZERO_E_PEER : ZERO_OK, why.message);
    if (result)
        return zero_fail(error, result, "%s", why.message);
    find_hosts(meeting, mesh);
    return ZERO_OK;
}

zero_result boot_mesh_open(struct boot_mesh *mesh, const struct boot_meeting *place,
                           const struct boot_master *master, struct base_error *error)
{
    *mesh = (struct boot_mesh){.world = 0};
    zero_result result =
        boot_meeting_check(place, place->each_rank ? BOOT_MESH_MAX : BOOT_WORLD_MAX, error);
    if (result)
        return result;
    if (place->world > 1 && (!*master->address || master->port < 1 || master->port > BOOT_PORT_MAX))
        return zero_fail(error, ZERO_E_INVALID,
                         "rank %d: rank 0 at \"%s\", port %d: no rank can listen there",
                         place->rank, master->address, master->port);
    struct mesh_places places = {.count = 0};
    struct meeting meeting = {.way = &several_hosts,
                              .place = place,
                              .master = master,
                              .secret = master->secret,
                              .places = &places};
    result = meet(&meeting, mesh, error);
    mesh_places_free(&places);
    base_free(meeting.gathering);
    if (result)
        boot_mesh_close(mesh);
    return result;
}

void boot_mesh_close(struct boot_mesh *mesh)
{
    for (int rank = 0; mesh->sockets && rank < mesh->world; rank++)
        boot_fd_close(&mesh->sockets[rank]);
    base_free(mesh->sockets);
    base_free(mesh->hosts);
    base_free(mesh->pids);
    base_free(mesh->leaders);
    *mesh = (struct boot_mesh){.world = 0};
}
