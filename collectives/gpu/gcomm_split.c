// Groups of devices. Each meets by an id of its own, as all ranks do: ../README.md says why NCCL
// does not split them.

#include "base/arena.h"
#include "base/hash.h"
#include "collectives/gpu/gcomm_internal.h"

#include <string.h>

/** Groups are told apart by this; 0: it is none. */
static size_t number_of(const struct coll_comm *group)
{
    if (!group || !group->root_ranks)
        return 0;
    const uint64_t ranks =
        base_hash64(group->root_ranks, (size_t)group->world * sizeof *group->root_ranks, 0);
    return (size_t)base_hash64(group->name, strlen(group->name), ranks) | 1;
}

static zero_result check_group(const struct gcomm *whole, const struct coll_comm *group,
                               struct base_error *error)
{
    if (group && (group->comm_world != whole->host->comm_world || !group->root_ranks))
        return zero_fail(error, ZERO_E_INVALID,
                         "collectives of devices: communicator %s is no group of %s", group->name,
                         whole->host->name);
    return ZERO_OK;
}

/** All ranks of a group give it. */
static zero_result compare(const struct coll_comm *group, const size_t *numbers,
                           struct base_error *error)
{
    for (int rank = 0; group && rank < group->world; rank++) {
        const int theirs = coll_root_rank(group, rank);
        if (numbers[theirs] != number_of(group))
            return zero_fail(error, ZERO_E_INVALID,
                             "collectives of devices: rank %d is in group %s, and gives %s one",
                             theirs, group->name, numbers[theirs] ? "another" : "no");
    }
    return ZERO_OK;
}

/** All ranks or none; each group is given by all its ranks. */
static zero_result agree(const struct gcomm *whole, const struct coll_comm *group,
                         zero_result result, struct base_error *mine, struct base_error *error)
{
    struct coll_comm *root = whole->host;
    size_t *numbers;
    result = gcomm_agree(root, number_of(group), &numbers, result, mine, error);
    if (!result)
        result = coll_agree(root, 0, NULL, compare(group, numbers, mine), mine, error);
    base_free(numbers);
    return result;
}

/** Joins this rank's group, if it is in one. After an error the device is gone. */
static zero_result join(const struct gcomm *whole, struct gcomm *gcomm,
                        const struct gcomm_config *config, struct base_error *error)
{
    struct base_error group = {.result = ZERO_OK}, mine = {.result = ZERO_OK};
    struct coll_arena *arena;
    zero_result joined = ZERO_OK;
    zero_result result =
        coll_arena_create(whole->host, gcomm ? sizeof *gcomm->call_log : 0, &arena, error);
    if (!result && gcomm) {
        joined = gcomm_join(gcomm, arena, config, &group);
        if (joined)
            zero_fail(&mine, joined, "group %s: %s", config->host->name, group.message);
    }
    if (!result) {
        gcomm_wait_for_meeting(whole, whole->host, arena); // all groups'
        result = coll_agree(whole->host, 0, NULL, joined, &mine, error);
    }
    if (result && gcomm && gcomm->call_log && !joined)
        gcomm_close(gcomm); // as its group's others do
    else if (result)
        gcomm_discard(gcomm);
    return result;
}

zero_result gcomm_split(struct gcomm **opened, struct gcomm *whole, struct coll_comm *group,
                        struct base_error *error)
{
    struct gcomm *gcomm = NULL;
    struct base_error mine = {.result = ZERO_OK};
    *opened = NULL;
    if (!whole || whole->whole != whole)
        return zero_fail(error, ZERO_E_INVALID, "collectives of devices: groups of %s",
                         whole ? "a group, not of the whole" : "nothing");
    const struct gcomm_config config = {
        .transport = whole->transport->name,
        .host = group,
        .device = whole->kind,
        .number = whole->number,
        .timeout_ns = whole->timeout_ns,
        .abort_timeout_ns = whole->abort_timeout_ns,
        .memory = whole->memory,
        .bytes = whole->bytes,
        .must_register = whole->must_register,
        .log = whole->log,
    };
    zero_result result = check_group(whole, group, &mine);
    if (!result && group)
        result = gcomm_make(&gcomm, &config, whole, &mine);
    result = agree(whole, group, result, &mine, error);
    if (result)
        gcomm_discard(gcomm);
    else
        result = join(whole, gcomm, &config, error);
    if (!result)
        *opened = gcomm;
    return result;
}
