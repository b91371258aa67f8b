/**
 * collectives/provider/ucx_internal.h: what the files of UCX share.
 */
#ifndef COLLECTIVES_PROVIDER_UCX_INTERNAL_H
#define COLLECTIVES_PROVIDER_UCX_INTERNAL_H

#include "collectives/provider/provider.h"
#include "collectives/provider/ucx_library.h"

#include <pthread.h>

/** The number of the active message by which a peer asks. */
enum { UCX_ASK = 1 };

/** How long a copy that is given up is waited for. */
static const uint64_t ucx_patience_ns = UINT64_C(2000000000);

/** What a reader asks of an owner: the header of an active message, which the copy has in `own`. */
struct ucx_ask {
    uint64_t tag; /**< of what is sent for it */
    uint64_t at;
    uint64_t bytes;
    uint32_t arena;
    int32_t rank; /**< the reader's */
};

struct ucx_arena {
    ucp_mem_h memory; /**< this rank's part as UCX has registered it; NULL: it has none */
    unsigned char *begin;
    uint64_t bytes;   /**< of it: what peers are told */
    uint64_t parts[]; /**< of every rank, bytes; 0: it is not known */
};

struct ucx_peer {
    ucp_ep_h endpoint; /**< NULL: there is none, or none any more */
    ucs_status_t failed;
    struct ucx *ucx;
};

struct ucx {
    struct coll_provided provided; /**< first */
    const struct ucx_library *ucp;
    struct coll_provider_config config;
    uint32_t generation;     /**< of the process that has opened it */
    pthread_mutex_t lock;    /**< of all that follows, but for what is atomic */
    _Atomic uint32_t wanted; /**< threads that wait for the lock beside this file's */
    ucp_context_h context;
    ucp_worker_h worker; /**< NULL: it is halted */
    ucp_address_t *address;
    size_t address_bytes;
    int fd, doorbell; /**< events of the worker, and of this rank */
    pthread_t thread;
    bool started;
    _Atomic bool leaving;
    bool paused;               /**< there is no progress any more */
    struct coll_copy *copies;  /**< under way */
    uint64_t tags;             /**< given to copies so far */
    bool ended;                /**< one of them, since config.ended was called */
    struct ucx_arena **arenas; /**< NULL: none of this number */
    uint32_t arenas_end;       /**< arenas have numbers below this one so far */
    struct ucx_peer peers[];   /**< of every rank */
};

static inline struct ucx *ucx_of(const struct coll_provided *provided)
{
    return (struct ucx *)(uintptr_t)provided;
}

/* ------------------------------------------------------------------ ucx_copy.c */

/** Takes the lock before the thread takes it again. */
void ucx_lock(struct ucx *ucx);

/** Gives it back, and tells the rank of what has ended meanwhile. */
void ucx_unlock(struct ucx *ucx);

/** A copy's target is the caller's again. With the lock. */
void ucx_end_copy(struct ucx *ucx, struct coll_copy *copy, bool here);

/** A connection is of no use any more: UCX's call-back, with the lock. Copies from there are ended
 * by UCX, each with an error. */
void ucx_endpoint_failed(void *peer, ucp_ep_h endpoint, ucs_status_t status);

/** A peer asks for bytes: UCX's call-back, with the lock. */
ucs_status_t ucx_asked(void *ucx, const void *header, size_t header_bytes, void *data, size_t bytes,
                       const ucp_am_recv_param_t *param);

/** Starts the thread, which works until `leaving`. Returns 0 or an errno. */
int ucx_start_thread(struct ucx *ucx);

// Operations of struct coll_provider.
void ucx_start(struct coll_provided *provided, const struct coll_remote *from, void *to,
               struct coll_copy *copy);
void ucx_progress(struct coll_provided *provided);
void ucx_settle(struct coll_provided *provided, struct coll_copy *copy);

/* ------------------------------------------------------------------ ucx.c */

void ucx_halt(struct coll_provided *provided);

#endif
