// Groups: communicators made of the ranks of another one.

#include "base/arena.h"
#include "collectives/comm/comm_internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

/** What a rank of the parent asks for. */
struct wish {
    int32_t color, key;
};

/** A rank of the parent that joins this one's group. */
struct member {
    int32_t key, rank;
};

/** The tables of one split. */
struct split {
    struct wish *wishes;    /**< of every rank of the parent */
    size_t *parts;          /**< the same: by which its part of its group is found */
    struct member *members; /**< of this rank's group, in its order */
    int count;
};

static void free_tables(struct split *split)
{
    base_free(split->wishes);
    base_free(split->parts);
    base_free(split->members);
}

static zero_result make_tables(struct coll_comm *parent, struct split *split)
{
    const size_t world = (size_t)parent->world;
    *split = (struct split){
        .wishes = base_calloc(world, sizeof *split->wishes),
        .parts = base_calloc(world, sizeof *split->parts),
        .members = base_calloc(world, sizeof *split->members),
    };
    if (split->wishes && split->parts && split->members)
        return ZERO_OK;
    return coll_fail(parent, ZERO_E_NOMEM, "rank %d: no memory for the tables of a split",
                     coll_root_rank(parent, parent->rank));
}

static int compare_members(const void *left, const void *right)
{
    const struct member *a = left, *b = right;
    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    return a->rank < b->rank ? -1 : a->rank > b->rank;
}

static void find_members(const struct coll_comm *parent, struct split *split)
{
    assert(split->count == 0);
    const struct wish *mine = &split->wishes[parent->rank];
    for (int rank = 0; rank < parent->world && mine->color >= 0; rank++)
        if (split->wishes[rank].color == mine->color)
            split->members[split->count++] = (struct member){split->wishes[rank].key, rank};
    assert(split->count <= parent->world);
    qsort(split->members, (size_t)split->count, sizeof *split->members, compare_members);
}

/** A group that is in no list yet. */
static zero_result create_group(struct coll_comm *parent, const struct split *split,
                                struct coll_comm **group, struct base_error *error)
{
    assert(split->count >= 1 && split->count <= parent->world);
    struct coll_comm *created =
        coll_comm_create(parent->transport, parent->comm_world, 0, split->count);
    int *root_ranks = base_calloc((size_t)split->count, sizeof *root_ranks);
    if (!created || !root_ranks) {
        coll_comm_free(created);
        base_free(root_ranks);
        return zero_fail(error, ZERO_E_NOMEM, "communicator %s: no memory for a group of %d ranks",
                         parent->name, split->count);
    }
    created->root_ranks = root_ranks;
    for (int i = 0; i < split->count; i++) {
        root_ranks[i] = coll_root_rank(parent, split->members[i].rank);
        if (split->members[i].rank == parent->rank)
            created->rank = i;
    }
    snprintf(created->name, sizeof created->name, "%.60s/%u.%d", parent->name, parent->splits,
             split->wishes[parent->rank].color);
    *group = created;
    return ZERO_OK;
}

static void free_group(struct coll_comm *group)
{
    if (!group)
        return;
    group->transport->group_close(group);
    coll_comm_free(group);
}

static void add_to_comm_world(struct coll_comm *group)
{
    assert(!group->next && group->root_ranks);
    struct coll_comm **link = &group->comm_world->comms;
    while (*link)
        link = &(*link)->next;
    *link = group;
}

/** The others' word for where their parts are. */
static zero_result check_parts(struct coll_comm *parent, const struct split *split,
                               struct base_error *error)
{
    const size_t most = parent->transport->group_parts;
    for (int i = 0; i < split->count && most > 0; i++) {
        const int rank = split->members[i].rank;
        if (split->parts[rank] < most)
            continue;
        coll_fail(parent, ZERO_E_IO, "rank %d: rank %d says that its part of a group is number %zu",
                  coll_root_rank(parent, parent->rank), coll_root_rank(parent, rank),
                  split->parts[rank]);
        return coll_state(parent, error);
    }
    return ZERO_OK;
}

/** Makes this rank's part of its group and finds the others'; *group is NULL where it joins none.
 */
static zero_result join_group(struct coll_comm *parent, struct split *split,
                              struct coll_comm **group, struct base_error *error)
{
    assert(!*group);
    struct base_error mine = {0};
    size_t part = 0;
    zero_result result = ZERO_OK;
    if (split->count > 0)
        result = create_group(parent, split, group, &mine);
    if (*group)
        result = parent->transport->group_prepare(*group, &part, &mine);
    result = coll_agree(parent, part, split->parts, result, &mine, error);
    if (result == ZERO_OK)
        result = check_parts(parent, split, error);
    if (result != ZERO_OK || !*group)
        return result;
    for (int i = 0; i < split->count; i++)
        parent->transport->group_meet(*group, i, split->parts[split->members[i].rank]);
    add_to_comm_world(*group);
    return ZERO_OK;
}

zero_result coll_split(struct coll_comm *comm, int color, int key, struct coll_comm **group,
                       struct base_error *error)
{
    *group = NULL;
    struct split split = {0};
    struct coll_comm *created = NULL;
    const struct wish mine = {color, key};
    zero_result result = coll_stop(comm);
    if (result == ZERO_OK)
        result = make_tables(comm, &split);
    // When all ranks are here, all have left the groups that they have closed: their slots are free
    // again.
    if (result == ZERO_OK)
        result = coll_exchange(comm, &mine, sizeof mine, split.wishes);
    if (result != ZERO_OK) {
        free_tables(&split);
        return coll_state(comm, error);
    }
    comm->splits++;
    find_members(comm, &split);
    result = join_group(comm, &split, &created, error);
    free_tables(&split);
    if (result != ZERO_OK)
        free_group(created);
    else
        *group = created;
    return result;
}

void coll_group_close(struct coll_comm *group)
{
    assert(group->root_ranks); // it is not the root
    struct coll_comm **link = &group->comm_world->comms;
    while (*link != group)
        link = &(*link)->next;
    *link = group->next;
    free_group(group);
}
