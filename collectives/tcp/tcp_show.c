// Small arenas, of which peers have copies: what their owner shows. Cut into parts, of which those
// that have changed are sent.

#include "base/arena.h"
#include "collectives/tcp/tcp_internal.h"

#include <assert.h>
#include <string.h>

typedef uint64_t __attribute__((may_alias)) word;

static size_t parts_of(size_t bytes)
{
    return (bytes + NET_PART - 1) / NET_PART;
}

/** Copies whole words of memory that other threads may be looking at, or changing. */
static void copy_words(void *to, const void *from, size_t bytes)
{
    assert(((uintptr_t)to | (uintptr_t)from) % sizeof(word) == 0);
    for (size_t i = 0; i < (bytes + sizeof(word) - 1) / sizeof(word); i++)
        __atomic_store_n((word *)to + i, __atomic_load_n((const word *)from + i, __ATOMIC_ACQUIRE),
                         __ATOMIC_RELEASE);
}

static void free_show(struct net_show *show)
{
    if (!show)
        return;
    base_free(show->bytes);
    base_free(show->versions);
    base_free(show->sent);
    base_free(show);
}

zero_result coll_net_show_prepare(struct coll_net *net, const struct coll_arena *arena,
                                  struct base_error *error)
{
    const bool shown = arena->bytes <= COLL_SHOWN_BYTES;
    const size_t parts = shown ? parts_of(arena->bytes) : 0, world = (size_t)net->root->world;
    struct net_show *show = base_calloc(1, sizeof *show);
    if (show)
        *show = (struct net_show){.arena = arena,
                                  .parts = parts,
                                  .bytes = base_calloc(parts + 1, NET_PART),
                                  .versions = base_calloc(parts + 1, sizeof *show->versions),
                                  .sent = base_calloc(world * (parts + 1), sizeof *show->sent)};
    if (!show || !show->bytes || !show->versions || !show->sent) {
        free_show(show);
        return zero_fail(error, ZERO_E_NOMEM, "arena: no memory for what %zu ranks are shown",
                         world);
    }
    pthread_mutex_lock(&net->lock);
    show->next = net->shows;
    net->shows = show;
    pthread_mutex_unlock(&net->lock);
    return ZERO_OK;
}

void coll_net_free_shows(struct coll_net *net)
{
    while (net->shows) {
        struct net_show *show = net->shows;
        net->shows = show->next;
        free_show(show);
    }
}

void coll_net_show_forget(struct coll_net *net, const struct coll_arena *arena)
{
    pthread_mutex_lock(&net->lock);
    struct net_show **link = &net->shows;
    while (*link && (*link)->arena != arena)
        link = &(*link)->next;
    struct net_show *gone = *link;
    if (gone)
        *link = gone->next;
    pthread_mutex_unlock(&net->lock);
    if (gone)
        free_show(gone);
}

void coll_net_show(struct coll_net *net, const struct coll_arena *arena)
{
    pthread_mutex_lock(&net->lock);
    struct net_show *show = net->shows;
    while (show && show->arena != arena)
        show = show->next;
    for (size_t part = 0; show && part < show->parts; part++) {
        unsigned char now[NET_PART] = {0}, *before = show->bytes + part * NET_PART;
        const size_t at = part * NET_PART, left = arena->bytes - at;
        copy_words(now, (const unsigned char *)arena->base + at, left < NET_PART ? left : NET_PART);
        if (memcmp(now, before, NET_PART) == 0)
            continue;
        memcpy(before, now, NET_PART);
        show->versions[part]++;
    }
    pthread_mutex_unlock(&net->lock);
    coll_net_send_changes(net);
}

bool coll_net_tx_shows(const struct coll_net *net, struct net_peer *peer)
{
    assert(peer->rank >= 0 && peer->rank < net->root->world);
    for (struct net_show *show = net->shows; show; show = show->next) {
        uint32_t *sent = show->sent + (size_t)peer->rank * show->parts;
        for (size_t part = 0; part < show->parts; part++) {
            struct net_shown shown = {.arena = show->arena->id, .part = (uint32_t)part};
            if (sent[part] == show->versions[part])
                continue;
            memcpy(shown.bytes, show->bytes + part * NET_PART, NET_PART);
            if (!coll_net_put(peer, NET_SHOWN, &shown))
                return false;
            sent[part] = show->versions[part];
        }
    }
    return true;
}

bool coll_net_rx_shown(const struct coll_net *net, const struct net_peer *peer,
                       const struct net_shown *shown)
{
    const struct net_show *show = net->shows;
    while (show && show->arena->id != shown->arena)
        show = show->next;
    if (!show)
        return false;
    const size_t bytes = show->arena->peer_bytes[peer->rank], at = (size_t)shown->part * NET_PART;
    if (bytes > COLL_SHOWN_BYTES || at >= bytes)
        return false;
    const size_t left = bytes - at;
    copy_words(show->arena->peers[peer->rank] + at, shown->bytes,
               left < NET_PART ? left : NET_PART);
    return true;
}
