#include "collectives/rendezvous/meeting.h"

#include "base/arena.h"
#include "base/hash.h"
#include "base/text.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

zero_result boot_meeting_check(const struct boot_meeting *place, int most, struct base_error *error)
{
    if (place->world < 1 || place->world > most || place->rank < 0 || place->rank >= place->world)
        return zero_fail(error, ZERO_E_INVALID, "rank %d of %d: there can be 1 to %d ranks%s",
                         place->rank, place->world, most,
                         most == BOOT_MESH_MAX
                             ? " where each is connected to every other one over a network"
                             : "");
    if (strlen(place->job) >= BOOT_JOB_BYTES || strlen(place->name) >= BOOT_NAME_BYTES)
        return zero_fail(error, ZERO_E_INVALID,
                         "rank %d: the job's id or the name \"%.100s\" is too long (%d and %d "
                         "bytes fit)",
                         place->rank, place->name, BOOT_JOB_BYTES - 1, BOOT_NAME_BYTES - 1);
    return ZERO_OK;
}

zero_result boot_fail_memory(const struct boot_meeting *place, struct base_error *error)
{
    return zero_fail(error, ZERO_E_NOMEM, "rank %d: no memory to meet %d ranks", place->rank,
                     place->world);
}

const char *boot_rank_text(const struct meeting *meeting, int rank, char text[BOOT_TEXT_BYTES])
{
    struct base_text out = {text, BOOT_TEXT_BYTES, 0};
    const int pid = (int)meeting->pids[rank];
    text[0] = '\0';
    base_text_add(&out, "rank %d (", rank);
    if (meeting->way->apart) // rank 0's host has no name yet before it has answered
        base_text_add(&out, "host %s%s",
                      *meeting->hosts[rank] ? meeting->hosts[rank] : meeting->master->address,
                      pid ? ", " : "");
    if (pid || !meeting->way->apart)
        base_text_add(&out, "process %d", pid);
    base_text_add(&out, ")");
    return text;
}

void boot_host_name(char name[BOOT_HOST_BYTES])
{
    char host[256] = "";
    if (gethostname(host, sizeof host - 1))
        snprintf(host, sizeof host, "unknown");
    snprintf(name, BOOT_HOST_BYTES, "%.*s", BOOT_HOST_BYTES - 1, host);
    boot_clean(name, BOOT_HOST_BYTES);
}

// What this rank says of itself; a way adds to it what only it knows.
static void fill_hello(struct meeting *meeting)
{
    struct boot_hello *hello = &meeting->hello;
    hello->rank = meeting->place->rank;
    hello->world = meeting->place->world;
    hello->pid = getpid();
    snprintf(hello->job, sizeof hello->job, "%s", meeting->place->job);
    snprintf(hello->name, sizeof hello->name, "%s", meeting->place->name);
    boot_host_name(hello->host);
    meeting->pids[hello->rank] = hello->pid;
    if (meeting->hosts)
        memcpy(meeting->hosts[hello->rank], hello->host, sizeof hello->host);
}

zero_result boot_meeting_run(struct meeting *meeting, struct base_error *error)
{
    const struct boot_meeting *place = meeting->place;
    zero_result result = ZERO_OK;
    fill_hello(meeting);
    meeting->listener = -1;
    meeting->wait = boot_wait_begin(place->remind_ns, place->deadline_ns);
    meeting->wait.asked = place->asked;
    meeting->wait.in_vain = place->in_vain;
    meeting->wait.user = place->user;
    meeting->polls =
        base_calloc(2 + BOOT_CALLERS_MAX + (size_t)place->world, sizeof *meeting->polls);
    meeting->callers = base_calloc(1, sizeof *meeting->callers);
    meeting->known = base_calloc((size_t)place->world, sizeof *meeting->known);
    if (!meeting->polls || !meeting->callers || !meeting->known)
        result = boot_fail_memory(place, error);
    else if (place->world > 1)
        result = place->rank == 0 ? boot_server(meeting, error) : boot_client(meeting, error);
    base_free(meeting->polls);
    base_free(meeting->callers);
    base_free(meeting->known);
    meeting->callers = NULL;
    return result;
}

socklen_t boot_address(struct sockaddr_un *address, const char *job, const char *name)
{
    char key[BOOT_JOB_BYTES + BOOT_NAME_BYTES + 1];
    const int length = snprintf(key, sizeof key, "%s\n%s", job, name);
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    // A name that starts with a zero byte is abstract: no file, gone with its socket.
    const int used =
        snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "zero-%u-%016llx",
                 (unsigned)geteuid(), (unsigned long long)base_hash64(key, (size_t)length, 0));
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)used);
}

/** What makes one place for the ranks of a host to gather at, so that those of other jobs and hosts
 * have others. All ranks know one port; rank 0's address each may know by another name. */
struct gathering_key {
    char job[BOOT_JOB_BYTES];
    char name[BOOT_NAME_BYTES];
    int32_t port;
    unsigned char host_id[BOOT_HOST_ID_BYTES];
};

_Static_assert(sizeof(struct gathering_key) ==
                   BOOT_JOB_BYTES + BOOT_NAME_BYTES + 4 + BOOT_HOST_ID_BYTES,
               "what is hashed has no padding");

socklen_t boot_host_address(struct sockaddr_un *address, const struct boot_meeting *place, int port,
                            const unsigned char host_id[BOOT_HOST_ID_BYTES])
{
    struct gathering_key key = {.port = port};
    snprintf(key.job, sizeof key.job, "%s", place->job);
    snprintf(key.name, sizeof key.name, "%s", place->name);
    memcpy(key.host_id, host_id, sizeof key.host_id);
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    const int used =
        snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "zero-host-%u-%016llx",
                 (unsigned)geteuid(), (unsigned long long)base_hash64(&key, sizeof key, 0));
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)used);
}
