#include "collectives/gpu/gcomm_internal.h"

#include <assert.h>
#include <string.h>

const struct gcomm_call_log *gcomm_call_log_of(const struct gcomm *gcomm, int rank)
{
    return coll_arena_peer(gcomm->arena, rank);
}

void gcomm_log_call(struct gcomm *gcomm, const struct coll_signature *signature, uint64_t sequence)
{
    struct gcomm_call_log *call_log = gcomm->call_log;
    struct gcomm_shown_call *call = &call_log->calls[sequence % GCOMM_UNDER_WAY];
    assert(sequence > atomic_load(&call_log->started));
    coll_shown_write(&call->stamp, call->words, GCOMM_CALL_WORDS, 2 * sequence, signature);
    atomic_store(&call_log->started, sequence);
    coll_arena_show(gcomm->arena);
}

void gcomm_log_state(struct gcomm *gcomm, enum gcomm_state state)
{
    atomic_store(&gcomm->call_log->state, state);
    coll_arena_show(gcomm->arena);
}

void gcomm_log_finish(struct gcomm *gcomm, uint64_t finished)
{
    assert(atomic_load(&gcomm->call_log->finished) <= finished);
    if (atomic_load(&gcomm->call_log->finished) == finished)
        return;
    atomic_store(&gcomm->call_log->finished, finished);
    coll_arena_show(gcomm->arena);
}

/** Whether it is still there. */
static bool read_call(const struct gcomm_call_log *call_log, uint64_t sequence,
                      struct coll_signature *signature)
{
    assert(sequence > 0);
    const struct gcomm_shown_call *call = &call_log->calls[sequence % GCOMM_UNDER_WAY];
    const uint64_t stamp = coll_shown_read(&call->stamp, call->words, GCOMM_CALL_WORDS, signature);
    coll_signature_end(signature);
    return stamp == 2 * sequence;
}

static zero_result fail_diverged(struct gcomm *gcomm, int rank, uint64_t sequence,
                                 const struct coll_signature *mine,
                                 const struct coll_signature *theirs)
{
    char message[COLL_MESSAGE_BYTES];
    coll_signatures_text(gcomm->host->rank, mine, rank, theirs, sequence, message);
    coll_declare(gcomm->host, ZERO_E_DIVERGED, "ranks made different calls on their devices: %s",
                 message);
    return coll_failed(gcomm->host);
}

zero_result gcomm_log_compare(struct gcomm *gcomm)
{
    const uint64_t mine = atomic_load(&gcomm->call_log->started);
    for (int rank = 0; rank < gcomm->host->world; rank++) {
        const struct gcomm_call_log *call_log = gcomm_call_log_of(gcomm, rank);
        const uint64_t theirs = atomic_load(&call_log->started);
        while (gcomm->compared[rank] < mine && gcomm->compared[rank] < theirs) {
            const uint64_t sequence = ++gcomm->compared[rank];
            struct coll_signature here, there;
            if (read_call(gcomm->call_log, sequence, &here) &&
                read_call(call_log, sequence, &there) && memcmp(&here, &there, sizeof here) != 0)
                return fail_diverged(gcomm, rank, sequence, &here, &there);
        }
    }
    return ZERO_OK;
}

void gcomm_log_text(const struct gcomm *gcomm, int rank, uint64_t sequence,
                    char text[COLL_TEXT_BYTES])
{
    struct coll_signature signature;
    if (sequence > 0 && read_call(gcomm_call_log_of(gcomm, rank), sequence, &signature))
        coll_signature_text(&signature, sequence, text);
    else
        strcpy(text, "nothing");
}

void gcomm_log_absent(const struct gcomm *gcomm, uint64_t sequence, char *text, size_t size)
{
    assert(sequence > 0 && size > 0);
    struct coll_absent absent = {.used = 0};
    for (int rank = 0; rank < gcomm->host->world; rank++) {
        const uint64_t theirs = atomic_load(&gcomm_call_log_of(gcomm, rank)->started);
        char last[COLL_TEXT_BYTES];
        if (theirs >= sequence)
            continue;
        gcomm_log_text(gcomm, rank, theirs, last);
        coll_absent_add(&absent, rank, last);
    }
    text[0] = '\0';
    coll_absent_text(&absent, &(struct base_text){text, size, 0});
}

int gcomm_log_left(const struct gcomm *gcomm, uint64_t sequence)
{
    for (int rank = 0; rank < gcomm->host->world; rank++) {
        const struct gcomm_call_log *call_log = gcomm_call_log_of(gcomm, rank);
        // In this order: a rank that has left starts nothing any more.
        if (atomic_load(&call_log->state) == GCOMM_LEFT &&
            atomic_load(&call_log->started) < sequence)
            return rank;
    }
    return -1;
}

bool gcomm_log_finished(const struct gcomm *gcomm, uint64_t sequence)
{
    for (int rank = 0; rank < gcomm->host->world; rank++) {
        const struct gcomm_call_log *call_log = gcomm_call_log_of(gcomm, rank);
        if (atomic_load(&call_log->finished) < sequence &&
            atomic_load(&call_log->state) != GCOMM_LEFT)
            return false;
    }
    return true;
}

bool gcomm_log_closed(const struct gcomm *gcomm)
{
    for (int rank = 0; rank < gcomm->host->world; rank++) {
        const uint64_t state = atomic_load(&gcomm_call_log_of(gcomm, rank)->state);
        if (state != GCOMM_LEFT && state != GCOMM_FAILED)
            return false;
    }
    return true;
}
