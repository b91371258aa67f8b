#include "base/text.h"
#include "collectives/gpu/gcomm_internal.h"

#include <string.h>

const struct gcomm_call_log *gcomm_call_log_of(const struct gcomm *device, int rank)
{
    return coll_arena_peer(device->arena, coll_root_rank(device->host, rank));
}

void gcomm_log_call(struct gcomm *device, const struct coll_signature *signature, uint64_t sequence)
{
    struct gcomm_call_log *call_log = device->call_log;
    const size_t place = sequence % GCOMM_UNDER_WAY;
    uint64_t words[GCOMM_CALL_WORDS];
    memcpy(words, signature, sizeof words);
    atomic_store(&call_log->calls[place].sequence, 0);
    for (size_t i = 0; i < GCOMM_CALL_WORDS; i++)
        atomic_store(&call_log->calls[place].words[i], words[i]);
    atomic_store(&call_log->calls[place].sequence, sequence);
    atomic_store(&call_log->started, sequence);
    coll_arena_show(device->arena);
}

void gcomm_log_state(struct gcomm *device, enum gcomm_state state)
{
    atomic_store(&device->call_log->state, state);
    coll_arena_show(device->arena);
}

void gcomm_log_finish(struct gcomm *device, uint64_t finished)
{
    if (atomic_load(&device->call_log->finished) == finished)
        return;
    atomic_store(&device->call_log->finished, finished);
    coll_arena_show(device->arena);
}

/** Whether it is still there. */
static bool read_call(const struct gcomm_call_log *call_log, uint64_t sequence,
                      struct coll_signature *signature)
{
    const size_t place = sequence % GCOMM_UNDER_WAY;
    uint64_t words[GCOMM_CALL_WORDS];
    if (atomic_load(&call_log->calls[place].sequence) != sequence)
        return false;
    for (size_t i = 0; i < GCOMM_CALL_WORDS; i++)
        words[i] = atomic_load(&call_log->calls[place].words[i]);
    if (atomic_load(&call_log->calls[place].sequence) != sequence)
        return false;
    memcpy(signature, words, sizeof words);
    coll_signature_end(signature);
    return true;
}

static zero_result fail_diverged(struct gcomm *device, int rank, uint64_t sequence,
                                 const struct coll_signature *mine,
                                 const struct coll_signature *theirs)
{
    char own[COLL_TEXT_BYTES], other[COLL_TEXT_BYTES], difference[COLL_DIFFERENCE_BYTES];
    char message[COLL_MESSAGE_BYTES];
    coll_signature_text(mine, sequence, own);
    coll_signature_text(theirs, sequence, other);
    coll_signature_difference(mine, theirs, difference);
    struct base_text text = {message, sizeof message, (size_t)gcomm_text_begin(device, message)};
    base_text_add(&text, "ranks made different calls on their devices: rank %d %s, rank %d %s%s",
                  coll_root_rank(device->host, device->host->rank), own,
                  coll_root_rank(device->host, rank), other, difference);
    coll_poison(device->host, ZERO_E_DIVERGED, message);
    return coll_failed(device->host);
}

zero_result gcomm_log_compare(struct gcomm *device)
{
    const uint64_t mine = atomic_load(&device->call_log->started);
    for (int rank = 0; rank < device->host->world; rank++) {
        const struct gcomm_call_log *call_log = gcomm_call_log_of(device, rank);
        const uint64_t theirs = atomic_load(&call_log->started);
        while (device->compared[rank] < mine && device->compared[rank] < theirs) {
            const uint64_t sequence = ++device->compared[rank];
            struct coll_signature here, there;
            if (read_call(device->call_log, sequence, &here) &&
                read_call(call_log, sequence, &there) && memcmp(&here, &there, sizeof here) != 0)
                return fail_diverged(device, rank, sequence, &here, &there);
        }
    }
    return ZERO_OK;
}

void gcomm_log_text(const struct gcomm *device, int rank, uint64_t sequence,
                    char text[COLL_TEXT_BYTES])
{
    struct coll_signature signature;
    if (sequence > 0 && read_call(gcomm_call_log_of(device, rank), sequence, &signature))
        coll_signature_text(&signature, sequence, text);
    else
        strcpy(text, "nothing");
}

void gcomm_log_absent(const struct gcomm *device, uint64_t sequence, char *text, size_t size)
{
    struct base_text list = {text, size, 0};
    text[0] = '\0';
    for (int rank = 0; rank < device->host->world; rank++) {
        const uint64_t theirs = atomic_load(&gcomm_call_log_of(device, rank)->started);
        char last[COLL_TEXT_BYTES];
        if (theirs >= sequence)
            continue;
        gcomm_log_text(device, rank, theirs, last);
        base_text_add(&list, "%srank %d (last call: %s)", list.used ? ", " : "",
                      coll_root_rank(device->host, rank), last);
    }
}

int gcomm_log_left(const struct gcomm *device, uint64_t sequence)
{
    for (int rank = 0; rank < device->host->world; rank++) {
        const struct gcomm_call_log *call_log = gcomm_call_log_of(device, rank);
        // In this order: who has left starts nothing any more.
        if (atomic_load(&call_log->state) == GCOMM_LEFT &&
            atomic_load(&call_log->started) < sequence)
            return coll_root_rank(device->host, rank);
    }
    return -1;
}

bool gcomm_log_finished(const struct gcomm *device, uint64_t sequence)
{
    for (int rank = 0; rank < device->host->world; rank++) {
        const struct gcomm_call_log *call_log = gcomm_call_log_of(device, rank);
        if (atomic_load(&call_log->finished) < sequence &&
            atomic_load(&call_log->state) != GCOMM_LEFT)
            return false;
    }
    return true;
}

bool gcomm_log_closed(const struct gcomm *device)
{
    for (int rank = 0; rank < device->host->world; rank++) {
        const uint64_t state = atomic_load(&gcomm_call_log_of(device, rank)->state);
        if (state != GCOMM_LEFT && state != GCOMM_FAILED)
            return false;
    }
    return true;
}
