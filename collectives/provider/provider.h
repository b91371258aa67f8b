/**
 * collectives/provider/provider.h: engines that copy memory of ranks on other hosts.
 *
 * Where ranks share no memory, TCP (tcp/) carries what they tell each other: calls, signatures,
 * deaths, failures, and bytes too. A provider carries bytes instead, of arenas only: each rank
 * registers its part of an arena once and publishes a key to it, and a peer that has the key copies
 * from there. Who copies what, and when, is for host/ to say, as with any transport. So the bits
 * are the same, and so is every failure.
 *
 *   provider_list.c  the list. A new provider is one file and one line in it.
 *   ucx.c            UCX (libucp), whose network is whatever it finds: InfiniBand, RoCE, TCP.
 *   ucx_copy.c       its copies, and its thread.
 *   ucx_library.c    that library, loaded at run time.
 *
 * A provider compares nothing and waits for no peer. A copy that fails is an error of the copy, not
 * of the process. Memory is the processor's: GPUs have NCCL.
 */
#ifndef COLLECTIVES_PROVIDER_PROVIDER_H
#define COLLECTIVES_PROVIDER_PROVIDER_H

#include "base/error.h"
#include "base/log.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { COLL_ENGINE_BYTES = 48 /**< an engine's name and version with the final zero */ };

/** How a copy stands. */
enum coll_copy_state {
    COLL_COPY_NONE,      /**< not started */
    COLL_COPY_UNDER_WAY, /**< its target is written at any time */
    COLL_COPY_HERE,      /**< the bytes are there */
    COLL_COPY_BROKEN,    /**< some may be, and no more come: coll_provider.why */
};

struct coll_provided;

/** One copy: the caller's memory, zero at first, left alone while it is under way. */
struct coll_copy {
    _Atomic uint32_t state; /**< enum coll_copy_state; written by any thread */
    int rank;               /**< this and the rest are the provider's own */
    struct coll_provided *provided;
    struct coll_copy *next, **link; /**< a list of those under way */
    void *request;                  /**< the engine's */
    uint64_t own[4];                /**< what the peer is asked */
    unsigned parts;                 /**< that are to end before it does */
};

/** Bytes of a peer: in its part of the arena of that number. */
struct coll_remote {
    int rank;
    uint32_t arena;
    uint64_t at;
    size_t bytes;
};

/** Some bytes that are told to all peers. */
struct coll_blob {
    const void *bytes;
    size_t count;
};

/** What a provider is opened with. */
struct coll_provider_config {
    int rank, world;
    uint32_t arenas;           /**< arenas have numbers below this one */
    void (*ended)(void *user); /**< a copy has ended: called by any thread */
    void *user;
    const struct base_log *log; /**< borrowed, outlives it */
};

/** A provider at work for one rank: the first member of what each has. */
struct coll_provided {
    const struct coll_provider *ops;
};

/**
 * All calls are *local*. Those of one rank come from one thread at a time, but for what says so.
 * Each provider has a thread of its own if its peers need that to be served while the rank
 * computes. A child made by fork() may call `close` only.
 */
struct coll_provider {
    size_t size;      /**< sizeof(struct coll_provider) of the code that filled it */
    const char *name; /**< a value of transport= */

    /** Bytes that it needs for a rank with so many peers, about: engines say little of that. */
    size_t (*memory)(int peers);

    /** Why ranks that may choose gain nothing by it on this host; NULL: they may. */
    const char *(*declines)(void);

    /** Gets ready to be called by peers. ZERO_E_UNSUPPORTED: it is not on this host, with why;
     * ZERO_E_NOMEM, ZERO_E_IO. */
    zero_result (*open)(struct coll_provided **provided, const struct coll_provider_config *config,
                        struct base_error *error);

    /** What engine this is, with its version: ranks have to have the same. */
    void (*engine)(const struct coll_provided *provided, char text[COLL_ENGINE_BYTES]);

    /** By what peers find this rank; lives as long as it is open. */
    struct coll_blob (*address)(const struct coll_provided *provided);

    /** Learns where a peer is. ZERO_E_IO: the engine knows no way there. ZERO_E_NOMEM. */
    zero_result (*connect)(struct coll_provided *provided, int rank,
                           const struct coll_blob *address, struct base_error *error);

    /** Registers this rank's part of an arena for its peers, or nothing of 0 bytes; *key lives
     * until it is withdrawn. ZERO_E_NOMEM: the limit for locked memory, too; ZERO_E_IO. */
    zero_result (*publish)(struct coll_provided *provided, uint32_t arena, void *memory,
                           size_t bytes, struct coll_blob *key, struct base_error *error);

    /** Learns the key to a peer's part. ZERO_E_NOMEM, ZERO_E_IO. */
    zero_result (*learn)(struct coll_provided *provided, uint32_t arena, int rank,
                         const struct coll_blob *key, struct base_error *error);

    /** Forgets an arena, its keys included. No copy of it is under way. */
    void (*withdraw)(struct coll_provided *provided, uint32_t arena);

    /** Starts to copy to `to`, any memory of this rank. A copy that can't be started is broken. */
    void (*start)(struct coll_provided *provided, const struct coll_remote *from, void *to,
                  struct coll_copy *copy);

    /** Moves what can be moved, without waiting. Any thread. */
    void (*progress)(struct coll_provided *provided);

    /** Ends a copy: waits until it is here or broken, for 2 s at most, and else halts. Its target
     * is not written afterwards. */
    void (*settle)(struct coll_provided *provided, struct coll_copy *copy);

    /** Ends all copies, and the engine: no target is written afterwards, no peer is served, and
     * every copy that is started later is broken. Waits for no peer. */
    void (*halt)(struct coll_provided *provided);

    /** Why a copy from a rank is broken, as half a sentence. */
    void (*why)(const struct coll_provided *provided, int rank, char *text, size_t size);

    /** In place of `close` while ranks meet, until each has copied from each: engines take it badly
     * if they are ended then. Moves nothing any more, and leaves all memory as it is, for ever:
     * that of copies under way, too. */
    void (*abandon)(struct coll_provided *provided);

    /** Halts, and frees everything. In a child of fork() it leaves the engine to the parent. */
    void (*close)(struct coll_provided *provided);
};

extern const struct coll_provider coll_provider_ucx;

/** The provider of this name, or, of index 0, 1, ..., the one that comes first, second, ... where
 * any will do; NULL: there is none. */
const struct coll_provider *coll_provider_find(const char *name);
const struct coll_provider *coll_provider_at(size_t index);

#endif
