// What rank 0 says of where the ranks are. Nothing of it is believed that is not checked here: what
// listens in place of rank 0 may be anything.

#include "collectives/rendezvous/mesh_stream.h"

#include <string.h>

/** Whether a host's name ends, and is printable. */
static bool is_name(const char host[BOOT_HOST_BYTES])
{
    char cleaned[BOOT_HOST_BYTES];
    memcpy(cleaned, host, sizeof cleaned);
    mesh_clean(cleaned, sizeof cleaned);
    return memcmp(cleaned, host, sizeof cleaned) == 0;
}

static bool same_place(const struct mesh_entry *a, const struct mesh_entry *b)
{
    return a->port == b->port && memcmp(a->address, b->address, sizeof a->address) == 0;
}

/** The first rank from 1 on that is said to listen where this one is, which may be itself. */
static int first_at(const struct mesh_entry *entries, int rank)
{
    int first = 1;
    while (!same_place(&entries[first], &entries[rank]))
        first++;
    return first;
}

/** Rank 0 listens no more, so that nobody needs to know where. */
static zero_result check_place(const struct mesh_entry *entries, int rank, struct base_error *error)
{
    const struct mesh_entry *entry = &entries[rank];
    if (entry->port < 1 || entry->port > BOOT_PORT_MAX)
        return zero_fail(error, ZERO_E_INVALID, "that rank %d (host %s) listens at port %u", rank,
                         entry->host, entry->port);
    if (mesh_is_any(entry->address))
        return zero_fail(error, ZERO_E_INVALID, "no address of rank %d (host %s)", rank,
                         entry->host);
    const int first = first_at(entries, rank);
    if (first < rank)
        return zero_fail(error, ZERO_E_INVALID, "that ranks %d and %d listen at one port, %u",
                         first, rank, entry->port);
    return ZERO_OK;
}

static zero_result check_entry(const struct mesh_meeting *meeting, int rank,
                               struct base_error *error)
{
    const struct mesh_entry *entry = &meeting->entries[rank];
    if (!is_name(entry->host))
        return zero_fail(error, ZERO_E_INVALID, "no printable name of rank %d's host", rank);
    if (entry->pid < 1)
        return zero_fail(error, ZERO_E_INVALID, "that rank %d (host %s) is process %d", rank,
                         entry->host, entry->pid);
    const pid_t own = meeting->mesh->pids[rank];
    if (rank == meeting->place->rank && entry->pid != own)
        return zero_fail(error, ZERO_E_INVALID, "that this rank is process %d, and it is %d",
                         entry->pid, (int)own);
    return rank > 0 ? check_place(meeting->entries, rank, error) : ZERO_OK;
}

zero_result mesh_check_table(const struct mesh_meeting *meeting, struct base_error *error)
{
    struct base_error wrong = {.result = ZERO_OK};
    for (int rank = 0; rank < meeting->mesh->world; rank++)
        if (check_entry(meeting, rank, &wrong))
            return zero_fail(error, wrong.result,
                             "what came as rank 0's table of all ranks says %s", wrong.message);
    return ZERO_OK;
}
