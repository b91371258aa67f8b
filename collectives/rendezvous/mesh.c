#include "base/arena.h"
#include "base/hash.h"
#include "collectives/rendezvous/mesh_callers.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static zero_result check(const struct boot_meeting *place, const struct boot_master *master,
                         struct base_error *error)
{
    if (place->world < 1 || place->world > BOOT_MESH_MAX || place->rank < 0 ||
        place->rank >= place->world)
        return zero_fail(error, ZERO_E_INVALID,
                         "rank %d of %d: 1 to %d ranks can meet over a network, for each is "
                         "connected to every other one",
                         place->rank, place->world, BOOT_MESH_MAX);
    if (strlen(place->job) >= BOOT_JOB_BYTES || strlen(place->name) >= BOOT_NAME_BYTES)
        return zero_fail(error, ZERO_E_INVALID,
                         "rank %d: the job's id or the name \"%.100s\" is too long (%d and %d "
                         "bytes fit)",
                         place->rank, place->name, BOOT_JOB_BYTES - 1, BOOT_NAME_BYTES - 1);
    if (place->world > 1 && (!*master->address || master->port < 1 || master->port > BOOT_PORT_MAX))
        return zero_fail(error, ZERO_E_INVALID, "rank %d: rank 0 at \"%s\", port %d: nobody is",
                         place->rank, master->address, master->port);
    return ZERO_OK;
}

static void name_host(char host[BOOT_HOST_BYTES])
{
    char name[256] = "";
    if (gethostname(name, sizeof name - 1))
        snprintf(name, sizeof name, "unknown");
    snprintf(host, BOOT_HOST_BYTES, "%.*s", BOOT_HOST_BYTES - 1, name);
    mesh_clean(host, BOOT_HOST_BYTES);
}

static void find_host_id(const struct boot_meeting *place,
                         unsigned char host_id[BOOT_HOST_ID_BYTES])
{
    if (!place->host_id) {
        boot_host_id(host_id);
        return;
    }
    base_hash128_bytes(base_hash128(place->host_id, strlen(place->host_id), 0), host_id);
}

// Which ranks are on the host of this one.
static void count_neighbours(const struct mesh_meeting *meeting)
{
    struct boot_mesh *mesh = meeting->mesh;
    const struct mesh_entry *own = &meeting->entries[meeting->place->rank];
    for (int rank = 0; rank < mesh->world; rank++) {
        const bool here =
            memcmp(meeting->entries[rank].host_id, own->host_id, sizeof own->host_id) == 0;
        mesh->local_world += here;
        mesh->local_rank += here && rank < meeting->place->rank;
    }
}

static bool allocate(struct mesh_meeting *meeting)
{
    struct boot_mesh *mesh = meeting->mesh;
    const size_t world = (size_t)meeting->place->world;
    mesh->world = meeting->place->world;
    mesh->sockets = base_calloc(world, sizeof *mesh->sockets);
    mesh->hosts = base_calloc(world, sizeof *mesh->hosts);
    mesh->pids = base_calloc(world, sizeof *mesh->pids);
    meeting->table = base_calloc(1, mesh_table_bytes(mesh->world));
    meeting->polls = base_calloc(1 + BOOT_CALLERS_MAX + world, sizeof *meeting->polls);
    meeting->callers = base_calloc(1, sizeof *meeting->callers);
    for (size_t rank = 0; mesh->sockets && rank < world; rank++)
        mesh->sockets[rank] = -1;
    return mesh->sockets && mesh->hosts && mesh->pids && meeting->table && meeting->polls &&
           meeting->callers;
}

static zero_result meet(struct mesh_meeting *meeting, struct base_error *error)
{
    const int rank = meeting->place->rank;
    if (!allocate(meeting))
        return zero_fail(error, ZERO_E_NOMEM, "rank %d: no memory to meet %d ranks", rank,
                         meeting->place->world);
    meeting->entries = (struct mesh_entry *)(meeting->table + sizeof(uint64_t));
    name_host(meeting->mesh->hosts[rank]);
    meeting->mesh->pids[rank] = getpid();
    memcpy(meeting->entries[rank].host, meeting->mesh->hosts[rank], BOOT_HOST_BYTES);
    meeting->entries[rank].pid = getpid();
    find_host_id(meeting->place, meeting->entries[rank].host_id);
    meeting->wait = boot_wait_begin(meeting->place->remind_ns, meeting->place->deadline_ns);
    meeting->wait.asked = meeting->place->asked;
    zero_result result = ZERO_OK;
    if (meeting->mesh->world > 1)
        result = rank == 0 ? mesh_server(meeting, error) : mesh_client(meeting, error);
    if (!result)
        count_neighbours(meeting);
    return result;
}

zero_result boot_mesh_open(struct boot_mesh *mesh, const struct boot_meeting *place,
                           const struct boot_master *master, struct base_error *error)
{
    *mesh = (struct boot_mesh){.world = 0};
    zero_result result = check(place, master, error);
    if (result)
        return result;
    struct mesh_meeting meeting = {.mesh = mesh, .place = place, .master = master};
    result = meet(&meeting, error);
    base_free(meeting.table);
    base_free(meeting.polls);
    base_free(meeting.callers);
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
    *mesh = (struct boot_mesh){.world = 0};
}
