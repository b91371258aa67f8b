// Where all ranks are: rank 0 keeps what the speakers of the hosts say, and tells it when all have
// come. The others believe nothing of that before they have checked it: what listens in place of
// rank 0 may be anything.

#include "collectives/rendezvous/mesh_internal.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/text.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/random.h>

_Static_assert(sizeof(struct mesh_entry) == 104 && sizeof(struct mesh_rank) == 8,
               "what is sent has no padding");

enum { HOSTS_SHOWN = 4 }; // of those that have come

bool mesh_places_create(struct mesh_places *places, const struct boot_meeting *place)
{
    places->most = place->world <= MESH_SPEAKERS ? place->world : MESH_SPEAKERS + 1;
    places->count = 0;
    assert(place->world > 0 && place->world <= BOOT_WORLD_MAX);
    places->table = base_calloc(1, mesh_table_bytes(place->world, places->most));
    places->speakers = base_calloc((size_t)places->most, sizeof *places->speakers);
    places->leaders = base_calloc((size_t)places->most, sizeof *places->leaders);
    if (!places->table || !places->speakers || !places->leaders)
        return false;
    places->entries = mesh_entries(places->table, place->world);
    return true;
}

void mesh_places_free(struct mesh_places *places)
{
    base_free(places->table);
    base_free(places->speakers);
    base_free(places->leaders);
    *places = (struct mesh_places){.count = 0};
}

static bool same_host(const unsigned char a[BOOT_HOST_ID_BYTES],
                      const unsigned char b[BOOT_HOST_ID_BYTES])
{
    return memcmp(a, b, BOOT_HOST_ID_BYTES) == 0;
}

// The first entry of a host.
static int entry_of_host(const struct mesh_places *places,
                         const unsigned char host_id[BOOT_HOST_ID_BYTES])
{
    int entry = 0;
    while (entry < places->count && !same_host(places->entries[entry].host_id, host_id))
        entry++;
    return entry;
}

static void find_leaders(struct mesh_places *places)
{
    for (int entry = 0; entry < places->count; entry++)
        places->leaders[entry] = entry_of_host(places, places->entries[entry].host_id);
}

int mesh_leader_entry(const struct mesh_places *places, int entry)
{
    assert(entry >= 0 && entry < places->count);
    return places->leaders[entry];
}

bool mesh_connects(const struct meeting *meeting, int entry)
{
    return meeting->place->each_rank || mesh_leader_entry(meeting->places, entry) == entry;
}

/* ------------------------------------------------------------------ rank 0: who has come */

static int count_hosts(const struct mesh_places *places)
{
    int hosts = 0;
    for (int entry = 0; entry < places->count; entry++)
        hosts += mesh_leader_entry(places, entry) == entry;
    return hosts;
}

// The entry of a rank that has called before, and not heard that it is known; or a new one.
static int find_entry(const struct mesh_places *places, int rank)
{
    int entry = 1;
    while (entry < places->count && places->speakers[entry] != rank)
        entry++;
    return entry;
}

bool mesh_has_hung_up(int fd)
{
    struct pollfd end = {.fd = fd, .events = POLLRDHUP};
    return poll(&end, 1, 0) != 0;
}

zero_result mesh_enter(struct meeting *meeting, const struct boot_caller *caller,
                       struct base_error *error)
{
    struct mesh_places *places = meeting->places;
    const struct boot_hello *hello = &caller->said.hello;
    const int at = find_entry(places, hello->rank);
    int port;
    assert(hello->rank > 0 && hello->rank < meeting->place->world && places->count > 0);
    const bool known = entry_of_host(places, hello->host_id) < places->count;
    if (at >= places->most || (!known && count_hosts(places) >= BOOT_MESH_MAX))
        return zero_fail(error, ZERO_E_INVALID,
                         "rank %d (host %s) is on one more host than the %d that can meet",
                         hello->rank, hello->host, BOOT_MESH_MAX);
    struct mesh_entry entry = {.port = hello->port, .rank = hello->rank};
    if (mesh_has_hung_up(caller->fd) || !mesh_address(caller->fd, true, entry.address, &port))
        return ZERO_AGAIN;
    memcpy(entry.host, hello->host, sizeof entry.host);
    memcpy(entry.host_id, hello->host_id, sizeof entry.host_id);
    memcpy(meeting->hosts[hello->rank], hello->host, sizeof hello->host);
    places->entries[at] = entry;
    places->speakers[at] = hello->rank;
    places->table->ranks[hello->rank] =
        (struct mesh_rank){.pid = hello->pid, .entry = (uint32_t)at};
    places->count += at == places->count;
    places->leaders[at] = entry_of_host(places, entry.host_id);
    return ZERO_OK;
}

// Why a speaker's word of a rank is not believed, written to `why`. False: it is.
static bool is_wrong_word(const struct meeting *meeting, const struct boot_member *member,
                          struct base_text *why)
{
    char text[BOOT_TEXT_BYTES];
    if (member->rank < 1 || member->rank >= meeting->place->world)
        base_text_add(why, "there is no rank %d of %d to wait for", member->rank,
                      meeting->place->world);
    else if (member->pid < 1)
        base_text_add(why, "rank %d can't be process %d", member->rank, member->pid);
    else if (meeting->pids[member->rank])
        base_text_add(why, "rank %d is there already: %s", member->rank,
                      boot_rank_text(meeting, member->rank, text));
    else
        return false;
    return true;
}

// The speaker tells the rank. If it does not take these few bytes it is shown the end.
static void send_back(const struct meeting *meeting, int speaker, const struct boot_member *member,
                      const char *why)
{
    char own[BOOT_TEXT_BYTES], bytes[BOOT_TEXT_BYTES] = "";
    struct boot_turned turned = {.rank = member->rank, .result = ZERO_E_INVALID};
    const int socket = meeting->sockets[speaker];
    base_logf(meeting->place->log, ZERO_LOG_WARN, "coll",
              "refused process %d of host %s at the rendezvous of job %s, \"%s\": %s", member->pid,
              meeting->hosts[speaker], meeting->place->job, meeting->place->name, why);
    base_text_add(&(struct base_text){bytes, sizeof bytes, 0}, "refused by %s: %s",
                  boot_rank_text(meeting, 0, own), why);
    const struct iovec parts[2] = {{&turned, sizeof turned}, {bytes, strlen(bytes)}};
    if (boot_send_with(socket, BOOT_TURNED, parts, NULL, 0, base_clock_ns() + BOOT_GRACE_NS, NULL))
        shutdown(socket, SHUT_RDWR);
}

zero_result mesh_hear_member(struct meeting *meeting, int speaker, struct base_error *error)
{
    struct mesh_rank *ranks = meeting->places->table->ranks;
    struct boot_member member;
    char bytes[BOOT_TEXT_BYTES] = "";
    const int world = meeting->place->world;
    assert(speaker > 0 && speaker < world);
    if (boot_receive_bytes(meeting->sockets[speaker], &member, sizeof member,
                           base_clock_ns() + BOOT_GRACE_NS, NULL))
        return boot_fail_gone(meeting, speaker, error);
    if (member.world != world)
        return zero_fail(error, ZERO_E_INVALID,
                         "rank %d (host %s, process %d) says there are %d ranks, rank 0 says %d",
                         member.rank, meeting->hosts[speaker], member.pid, member.world, world);
    if (is_wrong_word(meeting, &member, &(struct base_text){bytes, sizeof bytes, 0})) {
        send_back(meeting, speaker, &member, bytes);
        return ZERO_OK;
    }
    memcpy(meeting->hosts[member.rank], meeting->hosts[speaker], BOOT_HOST_BYTES);
    ranks[member.rank] = (struct mesh_rank){.pid = member.pid, .entry = ranks[speaker].entry};
    boot_come(meeting, member.rank, member.pid);
    return ZERO_OK;
}

// The ranks of a host that have come: "ranks 0-3".
static const char *come_from(const struct meeting *meeting, int leader, struct base_numbers *come)
{
    const struct mesh_places *places = meeting->places;
    *come = (struct base_numbers){.count = 0};
    for (int rank = 0; rank < meeting->place->world; rank++)
        if (meeting->pids[rank] &&
            mesh_leader_entry(places, (int)places->table->ranks[rank].entry) == leader)
            base_numbers_add(come, rank);
    return base_numbers_text(come, "rank");
}

void mesh_come_text(const struct meeting *meeting, struct base_text *text)
{
    const struct mesh_places *places = meeting->places;
    struct base_numbers come;
    int shown = 0;
    for (int entry = 0; entry < places->count && shown < HOSTS_SHOWN; entry++) {
        if (mesh_leader_entry(places, entry) != entry)
            continue;
        base_text_add(text, "%s%s of host %s", shown ? ", " : "; there are ",
                      come_from(meeting, entry, &come), places->entries[entry].host);
        shown++;
    }
    if (count_hosts(places) > shown)
        base_text_add(text, ", and ranks of %d other hosts", count_hosts(places) - shown);
}

/* ------------------------------------------------------------------ rank 0: the table */

// Ranks of this host may have called over loopback, where no other host finds them: then they are
// where the others have found rank 0.
static void mend_loopback(const struct meeting *meeting)
{
    const struct mesh_places *places = meeting->places;
    unsigned char outside[MESH_ADDRESS_BYTES];
    bool found = false;
    int port;
    for (int i = 1; i < places->count && !found; i++)
        found = !mesh_is_loopback(places->entries[i].address) &&
                mesh_address(meeting->sockets[places->speakers[i]], false, outside, &port);
    for (int i = 1; i < places->count && found; i++)
        if (mesh_is_loopback(places->entries[i].address))
            memcpy(places->entries[i].address, outside, sizeof outside);
}

// Puts the entries into the order of their lowest ranks, and leaves out those that no rank has, as
// of a speaker that came again by another one.
static bool sort_entries(struct mesh_places *places, int world)
{
    const size_t count = (size_t)places->count;
    struct mesh_entry *entries = base_calloc(count, sizeof *entries);
    int *speakers = base_calloc(count, sizeof *speakers),
        *order = base_calloc(count, sizeof *order);
    const bool room = entries && speakers && order;
    int seen = 0;
    for (int rank = 0; rank < world && room; rank++) {
        struct mesh_rank *of = &places->table->ranks[rank];
        if (order[of->entry] == 0) { // numbers from 1 on
            entries[seen] = places->entries[of->entry];
            entries[seen].rank = rank;
            speakers[seen] = places->speakers[of->entry];
            order[of->entry] = ++seen;
        }
        of->entry = (uint32_t)order[of->entry] - 1;
    }
    if (room) {
        memcpy(places->entries, entries, (size_t)seen * sizeof *entries);
        memcpy(places->speakers, speakers, (size_t)seen * sizeof *speakers);
        places->count = seen;
        find_leaders(places);
    }
    base_free(entries);
    base_free(speakers);
    base_free(order);
    return room;
}

zero_result mesh_send_table(struct meeting *meeting, struct base_error *error)
{
    struct mesh_places *places = meeting->places;
    const int world = meeting->place->world;
    assert(meeting->place->rank == 0 && meeting->absent == 0);
    if (!sort_entries(places, world))
        return boot_fail_memory(meeting->place, error);
    if (getrandom(&places->table->token, sizeof places->table->token, 0) !=
        sizeof places->table->token)
        return zero_fail_errno(error, ZERO_E_IO, errno, "rank 0: a random number");
    mend_loopback(meeting);
    return boot_send_all(meeting, BOOT_TABLE, places->table, mesh_table_bytes(world, places->count),
                         error);
}

/* ------------------------------------------------------------------ the others: what is checked */

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

// The first entry from 1 on that is said to listen where this one does, which may be itself.
static int first_at(const struct mesh_entry *entries, int entry)
{
    int first = 1;
    assert(entry > 0);
    while (!same_place(&entries[first], &entries[entry]))
        first++;
    return first;
}

// Rank 0 listens no more: no rank needs to know where it did.
static zero_result check_entry(const struct mesh_entry *entries, int at, struct base_error *error)
{
    const struct mesh_entry *entry = &entries[at];
    if (!is_name(entry->host))
        return zero_fail(error, ZERO_E_INVALID, "no printable name of rank %d's host", entry->rank);
    if (at == 0)
        return ZERO_OK;
    if (entry->port < 1 || entry->port > BOOT_PORT_MAX)
        return zero_fail(error, ZERO_E_INVALID, "that rank %d (host %s) listens at port %u",
                         entry->rank, entry->host, entry->port);
    if (mesh_is_any(entry->address))
        return zero_fail(error, ZERO_E_INVALID, "no address of rank %d (host %s)", entry->rank,
                         entry->host);
    const int first = first_at(entries, at);
    if (first < at)
        return zero_fail(error, ZERO_E_INVALID, "that ranks %d and %d listen at one port, %u",
                         entries[first].rank, entry->rank, entry->port);
    return ZERO_OK;
}

// *seen: how many entries ranks below this one have, which are the first ones.
static zero_result check_rank(const struct meeting *meeting, int rank, int *seen,
                              struct base_error *error)
{
    const struct mesh_places *places = meeting->places;
    const struct mesh_rank *of = &places->table->ranks[rank];
    if (of->entry > (uint32_t)*seen || of->entry >= (uint32_t)places->count)
        return zero_fail(error, ZERO_E_INVALID, "that rank %d is of speaker %u of %d", rank,
                         of->entry, places->count);
    const struct mesh_entry *entry = &places->entries[of->entry];
    if (of->entry == (uint32_t)*seen && entry->rank != rank)
        return zero_fail(error, ZERO_E_INVALID, "that rank %d comes before rank %d", entry->rank,
                         rank);
    *seen += of->entry == (uint32_t)*seen;
    if (of->pid < 1)
        return zero_fail(error, ZERO_E_INVALID, "that rank %d (host %.*s) is process %d", rank,
                         BOOT_HOST_BYTES, entry->host, of->pid);
    const uint32_t own = places->table->ranks[meeting->place->rank].entry;
    if (!meeting->member && of->entry == own && !meeting->pids[rank])
        return zero_fail(error, ZERO_E_INVALID, "that this rank speaks for rank %d", rank);
    if (rank == meeting->place->rank && of->pid != meeting->hello.pid)
        return zero_fail(error, ZERO_E_INVALID, "that this rank is process %d, and it is %d",
                         of->pid, meeting->hello.pid);
    return ZERO_OK;
}

static zero_result check_all(const struct meeting *meeting, struct base_error *error)
{
    const struct mesh_places *places = meeting->places;
    zero_result result = ZERO_OK;
    int seen = 0;
    for (int entry = 0; entry < places->count && !result; entry++)
        result = check_entry(places->entries, entry, error);
    for (int rank = 0; rank < meeting->place->world && !result; rank++)
        result = check_rank(meeting, rank, &seen, error);
    const bool each = meeting->place->each_rank;
    if (!result && seen != (each ? meeting->place->world : places->count))
        result = zero_fail(error, ZERO_E_INVALID, "that %d ranks have %d speakers, and has %d",
                           meeting->place->world, seen, places->count);
    return result;
}

static zero_result check_table(const struct meeting *meeting, struct base_error *error)
{
    struct base_error wrong = {.result = ZERO_OK};
    const zero_result result = check_all(meeting, &wrong);
    return result ? zero_fail(error, result, "what came as rank 0's table of all ranks says %s",
                              wrong.message)
                  : ZERO_OK;
}

zero_result mesh_hear_table(struct meeting *meeting, struct base_error *error)
{
    struct mesh_places *places = meeting->places;
    const int world = meeting->place->world;
    const size_t least = mesh_table_bytes(world, 1);
    size_t length;
    zero_result result = boot_hear_some(meeting, BOOT_TABLE, places->table,
                                        mesh_table_bytes(world, places->most), &length, error);
    if (!result && (length < least || (length - least) % sizeof(struct mesh_entry)))
        result = zero_fail(error, ZERO_E_INVALID, "rank 0 sent a table of %zu bytes for %d ranks",
                           length, world);
    if (result)
        return result;
    places->count = 1 + (int)((length - least) / sizeof(struct mesh_entry));
    find_leaders(places);
    result = check_table(meeting, error);
    for (int rank = 0; rank < world && !result; rank++) {
        const struct mesh_rank *of = &places->table->ranks[rank];
        memcpy(meeting->hosts[rank], places->entries[of->entry].host, BOOT_HOST_BYTES);
        meeting->pids[rank] = of->pid;
    }
    meeting->wait.asked = NULL; // all have come: they learn of a request together
    return result;
}
