// How the ranks come to one provider: each tells the others what it has, and by what they find it,
// and then reads a word of each. What engines find out about their networks can be wrong, and they
// say so late: a rank that finds an interface which leads nowhere, such as a container's bridge.

#include "collectives/transport/far_memory.h"

#include "base/arena.h"
#include "base/clock.h"
#include "collectives/provider/provider.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { WHY_BYTES = 192 };

/** The number of the arena that has the word. */
enum { PROBED = COLL_ARENAS_MAX, ARENAS };

/** How long that word is waited for: no longer than half of what a rank may wait. */
static const uint64_t probe_ns = UINT64_C(10000000000);

/** What a rank has, for the others. */
struct offer {
    int32_t result;
    uint32_t address_bytes;
    char engine[COLL_ENGINE_BYTES];
    char why[WHY_BYTES];
};

/** What ranks read of each other at the beginning. */
union probed {
    uint64_t word;
    unsigned char page[4096];
};

static struct coll_provided *provided_of(const struct coll_comm *root)
{
    return root->link ? coll_host_of(root)->provided : NULL;
}

static void wake(void *user)
{
    coll_host_wake_own(user);
}

/* ------------------------------------------------------------------ blobs */

/** Room for a blob of each rank; `all` is freed by the caller. Poisons where there is none. */
static unsigned char *make_blobs(struct coll_comm *root, size_t each)
{
    unsigned char *all = base_calloc((size_t)root->world + 1, each);
    if (!all)
        coll_fail(root, ZERO_E_NOMEM, "rank %d: no memory for %zu bytes of every rank", root->rank,
                  each);
    return all;
}

/** Gives every rank's blob to every rank: *all, `each` bytes from one to the next. */
static zero_result exchange(struct coll_comm *root, const struct coll_blob *mine, size_t each,
                            unsigned char **all, struct base_error *error)
{
    assert(mine->count <= each);
    *all = make_blobs(root, each);
    if (!*all)
        return coll_state(root, error);
    unsigned char *own = *all + (size_t)root->world * each;
    if (mine->count > 0)
        memcpy(own, mine->bytes, mine->count);
    return coll_exchange(root, own, each, *all) == ZERO_OK ? ZERO_OK : coll_state(root, error);
}

/** Tells the others of a part of an arena, and learns theirs. After a failure none of them has
 * learned anything. */
static zero_result exchange_keys(struct coll_comm *root, uint32_t arena, void *memory, size_t bytes,
                                 struct base_error *error)
{
    struct coll_provided *provided = provided_of(root);
    struct base_error mine = {.result = ZERO_OK};
    struct coll_blob key = {NULL, 0};
    unsigned char *keys = NULL;
    size_t most = 0, *counts = base_calloc((size_t)root->world, sizeof *counts);
    zero_result result = counts
                             ? provided->ops->publish(provided, arena, memory, bytes, &key, &mine)
                             : zero_fail(&mine, ZERO_E_NOMEM, "no memory for an arena's keys");
    result = coll_agree(root, key.count, counts, result, &mine, error);
    assert(result != ZERO_OK || counts);
    for (int rank = 0; rank < root->world && result == ZERO_OK; rank++)
        most = counts[rank] > most ? counts[rank] : most;
    if (result == ZERO_OK && most > 0)
        result = exchange(root, &key, most, &keys, error);
    for (int rank = 0; rank < root->world && result == ZERO_OK && most > 0; rank++)
        if (coll_host_of(root)->far[rank] && counts[rank] > 0)
            result = provided->ops->learn(
                provided, arena, rank,
                &(struct coll_blob){keys + (size_t)rank * most, counts[rank]}, error);
    base_free(counts);
    base_free(keys);
    return result;
}

/* ------------------------------------------------------------------ probing */

static uint64_t word_of(int rank)
{
    return UINT64_C(0x7a65726f00000000) + (uint64_t)rank;
}

static bool is_coming(const struct coll_copy *copy)
{
    return atomic_load_explicit(&copy->state, memory_order_acquire) == COLL_COPY_UNDER_WAY;
}

/** Waits until all words have come, or it is too late for them. */
static void wait_for_all(const struct coll_comm *root, const struct coll_copy *copies)
{
    struct coll_provided *provided = provided_of(root);
    const uint64_t half_ns = root->comm_world->timeout_ns / 2;
    const uint64_t deadline_ns = base_clock_ns() + (half_ns < probe_ns ? half_ns : probe_ns);
    int rank = 0;
    while (rank < root->world && coll_failed(root) == ZERO_OK && base_clock_ns() < deadline_ns) {
        if (!is_coming(&copies[rank])) {
            rank++;
            continue;
        }
        provided->ops->progress(provided);
        usleep(50);
    }
}

/** What is wrong with a word that was read of a rank. */
static zero_result judge_word(const struct coll_comm *root, int rank, const struct coll_copy *copy,
                              uint64_t word, struct base_error *error)
{
    struct coll_provided *provided = provided_of(root);
    const char *name = provided->ops->name, *host = coll_host(root, rank);
    const uint32_t state = atomic_load(&copy->state);
    char why[WHY_BYTES];
    if (state == COLL_COPY_HERE && word == word_of(rank))
        return ZERO_OK;
    provided->ops->why(provided, rank, why, sizeof why);
    if (state == COLL_COPY_HERE)
        return zero_fail(error, ZERO_E_IO, "%s reads what is not in memory of rank %d on %s", name,
                         rank, host);
    return zero_fail(error, ZERO_E_IO, "%s reads nothing of rank %d on %s: %s", name, rank, host,
                     state == COLL_COPY_BROKEN ? why
                                               : "no answer (UCX_NET_DEVICES says by which "
                                                 "interface)");
}

/** What that takes. */
struct probe {
    union probed *own;
    struct coll_copy *copies; /**< of every rank */
    uint64_t *words;          /**< the same */
};

static zero_result make_probe(struct probe *probe, const struct coll_comm *root,
                              struct base_error *error)
{
    const size_t world = (size_t)root->world;
    probe->own = base_aligned_alloc(sizeof *probe->own, sizeof *probe->own);
    probe->copies = base_calloc(world, sizeof *probe->copies);
    probe->words = base_calloc(world, sizeof *probe->words);
    if (!probe->own || !probe->copies || !probe->words)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for words of %zu ranks", world);
    memset(probe->own, 0, sizeof *probe->own);
    probe->own->word = word_of(root->rank);
    return ZERO_OK;
}

static void free_probe(const struct probe *probe)
{
    base_free(probe->own);
    base_free(probe->copies);
    base_free(probe->words);
}

/** Reads every far rank's word. */
static zero_result read_words(const struct coll_comm *root, const struct probe *probe,
                              struct base_error *error)
{
    struct coll_provided *provided = provided_of(root);
    zero_result result = ZERO_OK;
    for (int rank = 0; rank < root->world; rank++) {
        const struct coll_remote from = {rank, PROBED, 0, sizeof *probe->words};
        if (coll_host_of(root)->far[rank])
            provided->ops->start(provided, &from, &probe->words[rank], &probe->copies[rank]);
    }
    wait_for_all(root, probe->copies);
    for (int rank = 0; rank < root->world && result == ZERO_OK; rank++)
        if (coll_host_of(root)->far[rank])
            result = judge_word(root, rank, &probe->copies[rank], probe->words[rank], error);
    return result;
}

/** Whether every rank reads a word of every far one. All ranks return the same. */
static zero_result check_words(struct coll_comm *root, struct probe *probe,
                               struct base_error *error)
{
    struct base_error mine = {.result = ZERO_OK};
    zero_result result = make_probe(probe, root, &mine);
    result = coll_agree(root, 0, NULL, result, &mine, error);
    if (result != ZERO_OK)
        return result;
    result = exchange_keys(root, PROBED, probe->own, sizeof *probe->own, &mine);
    if (result == ZERO_OK)
        result = read_words(root, probe, &mine);
    if (coll_failed(root) != ZERO_OK)
        return coll_state(root, error);
    result = coll_agree(root, 0, NULL, result, &mine, error);
    if (result == ZERO_OK)
        provided_of(root)->ops->withdraw(provided_of(root), PROBED);
    return result;
}

/* ------------------------------------------------------------------ the choice */

/** Opens a provider here, and says how that went; `any`: another one would do. */
static struct offer open_here(struct coll_comm *root, const struct coll_provider *ops, bool any)
{
    const struct coll_provider_config config = {.rank = root->rank,
                                                .world = root->world,
                                                .arenas = ARENAS,
                                                .ended = wake,
                                                .user = root,
                                                .log = root->comm_world->log};
    struct base_error error = {.result = ZERO_OK};
    struct coll_provided *provided = NULL;
    const char *declined = any ? ops->declines() : NULL;
    struct offer offer = {.result = declined ? zero_fail(&error, ZERO_E_UNSUPPORTED, "%s", declined)
                                             : ops->open(&provided, &config, &error)};
    snprintf(offer.why, sizeof offer.why, "%.*s", WHY_BYTES - 1, error.message);
    if (offer.result != ZERO_OK)
        return offer;
    coll_host_of(root)->provided = provided;
    offer.address_bytes = (uint32_t)ops->address(provided).count;
    ops->engine(provided, offer.engine);
    return offer;
}

/** Whether all ranks can have it, as far as they know. */
static zero_result compare_offers(const struct coll_comm *root, const struct offer *offers,
                                  struct base_error *error)
{
    for (int rank = 0; rank < root->world; rank++) {
        const struct offer *offer = &offers[rank];
        const char *host = coll_host(root, rank);
        if (offer->result != ZERO_OK)
            return zero_fail(error, base_failure_of(offer->result, ZERO_E_IO),
                             "rank %d on %s: %.*s", rank, host, WHY_BYTES - 1, offer->why);
        if (strncmp(offer->engine, offers[0].engine, COLL_ENGINE_BYTES) != 0)
            return zero_fail(error, ZERO_E_UNSUPPORTED,
                             "rank 0 on %s has %.*s, and rank %d on %s %.*s", coll_host(root, 0),
                             COLL_ENGINE_BYTES - 1, offers[0].engine, rank, host,
                             COLL_ENGINE_BYTES - 1, offer->engine);
    }
    return ZERO_OK;
}

/** Learns where the others are. */
static zero_result connect_all(struct coll_comm *root, const struct offer *offers,
                               struct base_error *error)
{
    struct coll_provided *provided = provided_of(root);
    const struct coll_blob own = provided->ops->address(provided);
    struct base_error mine = {.result = ZERO_OK};
    unsigned char *addresses;
    size_t most = 0;
    for (int rank = 0; rank < root->world; rank++)
        most = offers[rank].address_bytes > most ? offers[rank].address_bytes : most;
    zero_result result = exchange(root, &own, most, &addresses, error);
    for (int rank = 0; rank < root->world && result == ZERO_OK; rank++) {
        const struct coll_blob address = {addresses + (size_t)rank * most,
                                          offers[rank].address_bytes};
        struct base_error why = {.result = ZERO_OK};
        if (coll_host_of(root)->far[rank] &&
            provided->ops->connect(provided, rank, &address, &why) != ZERO_OK)
            result = zero_fail(&mine, why.result, "%s finds no way to rank %d on %s: %s",
                               provided->ops->name, rank, coll_host(root, rank), why.message);
    }
    base_free(addresses);
    if (coll_failed(root) != ZERO_OK)
        return coll_state(root, error);
    return coll_agree(root, 0, NULL, result, &mine, error);
}

/** No rank takes the provider. `met`: they have begun to meet by it, so it may not end, nor may
 * what it reads to. */
static void give_up_provider(struct coll_comm *root, const struct probe *probe, bool met)
{
    if (met && provided_of(root))
        provided_of(root)->ops->abandon(provided_of(root));
    else
        free_probe(probe);
    if (met)
        coll_host_of(root)->provided = NULL;
    else
        coll_far_close(root);
}

/** Opens a provider on all ranks, or on none. */
static zero_result open_everywhere(struct coll_comm *root, const struct coll_provider *ops,
                                   bool any, struct base_error *error)
{
    struct offer *offers = base_calloc((size_t)root->world, sizeof *offers);
    const struct offer own = open_here(root, ops, any);
    struct probe probe = {.own = NULL};
    zero_result result = ZERO_OK;
    if (!offers)
        coll_fail(root, ZERO_E_NOMEM, "rank %d: no memory for what ranks have", root->rank);
    if (!offers || coll_exchange(root, &own, sizeof own, offers) != ZERO_OK)
        result = coll_state(root, error);
    assert(result != ZERO_OK || offers);
    if (result == ZERO_OK)
        result = compare_offers(root, offers, error);
    const bool met = result == ZERO_OK;
    if (result == ZERO_OK)
        result = connect_all(root, offers, error);
    if (result == ZERO_OK)
        result = check_words(root, &probe, error);
    if (result != ZERO_OK)
        give_up_provider(root, &probe, met);
    else
        free_probe(&probe);
    base_free(offers);
    return result;
}

/** The comm world's transport is this provider. */
static void take_provider(struct coll_comm *root, const struct coll_provider *ops, bool any)
{
    struct coll_comm_world *comm_world = root->comm_world;
    char engine[COLL_ENGINE_BYTES];
    ops->engine(provided_of(root), engine);
    comm_world->counters.memory_bytes += ops->memory(coll_host_of(root)->far_count);
    snprintf(comm_world->transport, sizeof comm_world->transport, "%s", ops->name);
    if (any)
        snprintf(comm_world->reason, sizeof comm_world->reason, "all hosts have %s", engine);
    base_logf(comm_world->log, ZERO_LOG_DEBUG, "coll", "%s: arenas are read by %s", root->name,
              engine);
}

static zero_result open_named(struct coll_comm *root, const char *name, struct base_error *error)
{
    const struct coll_provider *ops = coll_provider_find(name);
    struct base_error why = {.result = ZERO_OK};
    if (!ops)
        return zero_fail(error, ZERO_E_UNSUPPORTED,
                         "transport=%s: this build of the library has no such provider: take tcp",
                         name);
    const zero_result result = open_everywhere(root, ops, false, &why);
    if (result != ZERO_OK)
        return zero_fail(error, result, "transport=%s: %s; transport=tcp needs nothing else", name,
                         why.message);
    take_provider(root, ops, false);
    return ZERO_OK;
}

/** Which of several reasons is told: that of the provider that would have been the first choice. */
static zero_result open_any(struct coll_comm *root, struct base_error *error)
{
    struct coll_comm_world *comm_world = root->comm_world;
    const struct coll_provider *ops;
    for (size_t i = 0; (ops = coll_provider_at(i)) != NULL; i++) {
        struct base_error why = {.result = ZERO_OK};
        if (open_everywhere(root, ops, true, &why) == ZERO_OK) {
            take_provider(root, ops, true);
            return ZERO_OK;
        }
        if (coll_failed(root) != ZERO_OK)
            return coll_state(root, error);
        if (!*comm_world->reason)
            snprintf(comm_world->reason, sizeof comm_world->reason, "no %s: %.*s", ops->name,
                     COLL_REASON_BYTES - 32, why.message);
    }
    if (!*comm_world->reason)
        snprintf(comm_world->reason, sizeof comm_world->reason, "this build has no provider");
    base_logf(comm_world->log, ZERO_LOG_DEBUG, "coll", "%s: arenas are sent: %s", root->name,
              comm_world->reason);
    return ZERO_OK;
}

zero_result coll_far_open(struct coll_comm *root, const struct coll_config *config,
                          struct base_error *error)
{
    assert(root == root->comm_world->root && !provided_of(root));
    const bool named = strcmp(config->transport, "tcp") != 0;
    if (!named && !config->any_provider)
        return ZERO_OK;
    return named ? open_named(root, config->transport, error) : open_any(root, error);
}

/* ------------------------------------------------------------------ arenas, and the end */

zero_result coll_far_publish(struct coll_comm *root, const struct coll_arena *arena,
                             struct base_error *error)
{
    if (!provided_of(root))
        return ZERO_OK;
    struct base_error why = {.result = ZERO_OK};
    if (exchange_keys(root, arena->id, arena->base, arena->bytes, &why) == ZERO_OK)
        return ZERO_OK;
    return zero_fail(error, why.result, "an arena by %s: %s", provided_of(root)->ops->name,
                     why.message);
}

void coll_far_withdraw(const struct coll_comm *root, const struct coll_arena *arena)
{
    if (provided_of(root))
        provided_of(root)->ops->withdraw(provided_of(root), arena->id);
}

void coll_far_halt(const struct coll_comm *root)
{
    if (provided_of(root))
        provided_of(root)->ops->halt(provided_of(root));
}

void coll_far_close(struct coll_comm *root)
{
    struct coll_provided *provided = provided_of(root);
    if (!provided)
        return;
    provided->ops->close(provided);
    coll_host_of(root)->provided = NULL;
}
