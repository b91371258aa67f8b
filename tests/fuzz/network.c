// Two ranks that make every kind of call while frames between them are damaged: flipped bytes,
// numbers replaced by such as are at some edge, headers that lie. Each ends in its time, with an
// error and a reason or with none; sanitizers see to the rest.
//
// Argument: how many sessions; more than those of CI.

#include "tests/fuzz/sessions.h"
#include "tests/sweep.h"
#include "tests/unit/coll_ranks.h"
#include "tests/unit/coll_relay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 3000, ROUNDS = 4 };

/* ------------------------------------------------------------------ a session */

struct calls {
    float source[2 * COUNT], result[2 * COUNT], given[2 * COUNT];
    struct coll_span elements[2], bytes[2];
    struct coll_request requests[6];
};

/** One of each, started together; what the result of each is says the state. */
static void call_all(struct coll_comm *comm, struct calls *calls)
{
    const int peer = 1 - coll_rank(comm);
    const struct coll_all_gather gather = {
        .source = calls->source, .recv = calls->result, .spans = calls->bytes};
    const struct coll_reduce_scatter reduce = {.source = calls->source,
                                               .dtype = ZERO_F32,
                                               .spans = calls->elements,
                                               .accumulator = calls->result,
                                               .contributors = 2,
                                               .store = true};
    const struct coll_all_to_all all = {.source = calls->source,
                                        .recv = calls->result,
                                        .send = calls->bytes,
                                        .recv_spans = calls->bytes};
    const struct coll_bulk_broadcast broadcast = {
        .data = calls->given, .bytes = sizeof calls->given, .root = 1};
    const struct coll_message send = {calls->source, sizeof calls->source, peer, {0}};
    const struct coll_message receive = {calls->result, sizeof calls->result, peer, {0}};
    memset(calls->requests, 0, sizeof calls->requests);
    coll_all_gather_start(comm, &gather, &calls->requests[0]);
    coll_reduce_scatter_start(comm, &reduce, &calls->requests[1]);
    coll_all_to_all_start(comm, &all, &calls->requests[2]);
    coll_broadcast_start(comm, &broadcast, &calls->requests[3]);
    coll_send_start(comm, &send, &calls->requests[4]);
    coll_receive_start(comm, &receive, &calls->requests[5]);
    for (int i = 0; i < 6; i++)
        coll_drain(comm, &calls->requests[i]);
    coll_exchange(comm, calls->source, 1000, calls->result);
    coll_broadcast(comm, calls->source, 300, 0);
    coll_barrier(comm);
}

static zero_result talk(struct coll_comm *comm, struct base_error *error)
{
    struct calls *calls = calloc(1, sizeof *calls);
    struct coll_comm *group = NULL;
    struct coll_arena *arena;
    coll_arena_create(comm, 1000, &arena, NULL);
    for (size_t rank = 0; calls && rank < 2; rank++) {
        calls->elements[rank] = (struct coll_span){rank * COUNT, COUNT};
        calls->bytes[rank] =
            (struct coll_span){rank * COUNT * sizeof(float), COUNT * sizeof(float)};
    }
    for (int round = 0; calls && round < ROUNDS && coll_state(comm, NULL) == ZERO_OK; round++) {
        if (round == 1 && coll_split(comm, 0, coll_rank(comm), &group, NULL) != ZERO_OK)
            break;
        call_all(group ? group : comm, calls);
    }
    const zero_result result = coll_state(comm, error);
    coll_close(group);
    free(calls);
    return result;
}

/* ------------------------------------------------------------------ damage */

struct damage {
    uint32_t seed, frames;
    uint32_t spared; /**< frames at the beginning */
    uint32_t every;  /**< of so many frames one is damaged, about */
};

static uint32_t roll(struct damage *damage, uint32_t sides)
{
    damage->seed = mix(damage->seed, damage->frames, 7);
    return damage->seed % sides;
}

static void damage_rest(struct damage *damage, unsigned char *rest, size_t bytes)
{
    static const uint64_t edges[] = {0,
                                     1,
                                     2,
                                     63,
                                     64,
                                     65,
                                     4096,
                                     INT32_MAX,
                                     UINT32_MAX,
                                     INT64_MAX,
                                     (uint64_t)1 << 63,
                                     UINT64_MAX - 1,
                                     UINT64_MAX};
    const uint64_t edge = edges[roll(damage, sizeof edges / sizeof *edges)];
    const size_t words = bytes / sizeof edge;
    // What is at the beginning of a fixed part matters most.
    const uint32_t near = bytes < 256 ? (uint32_t)bytes : 256;
    if (words > 0 && roll(damage, 2))
        memcpy(rest + roll(damage, words < 32 ? (uint32_t)words : 32) * sizeof edge, &edge,
               sizeof edge);
    else if (bytes > 0) {
        const uint32_t at = roll(damage, near);
        rest[at] ^= (unsigned char)(1 + roll(damage, 255));
    }
}

static void change(struct net_header *header, unsigned char *rest, void *user)
{
    struct damage *damage = user;
    if (damage->frames++ < damage->spared || roll(damage, damage->every) != 0)
        return;
    switch (roll(damage, 8)) {
    case 0:
        header->bytes ^= 1U << roll(damage, 32);
        return;
    case 1:
        header->type = (uint16_t)roll(damage, NET_TYPES + 2);
        return;
    case 2:
        header->group_slot = (uint16_t)roll(damage, 70);
        return;
    default:
        damage_rest(damage, rest, header->bytes);
    }
}

static enum session_end end_of(const struct relayed *job, unsigned seed)
{
    bool wrong = false;
    for (int rank = 0; rank < 2; rank++)
        if (job->results[rank] > 0 || (seed == 0 && job->results[rank]) ||
            (job->results[rank] && !job->errors[rank].message[0])) {
            fprintf(stderr, "session %u, rank %d: result %d: \"%s\"\n", seed, rank,
                    job->results[rank], job->errors[rank].message);
            wrong = true;
        }
    const bool well = job->results[0] == ZERO_OK && job->results[1] == ZERO_OK;
    return wrong ? SESSION_WRONG : well ? SESSION_WELL : SESSION_HARMED;
}

static enum session_end run_session(unsigned seed)
{
    struct damage damage[2];
    for (uint32_t rank = 0; rank < 2; rank++)
        damage[rank] = (struct damage){.seed = mix(seed, rank, TEST_PART),
                                       .spared = mix(seed, rank, 11) % 150,
                                       .every = 1 + mix(seed, rank, 12) % 30};
    struct relayed job = {.fn = talk,
                          .changes = {change, seed % 3 ? NULL : change},
                          .users = {&damage[0], &damage[1]},
                          .timeout_ns = UINT64_C(500000000)};
    if (seed == 0) { // is left alone, and well
        job.changes[0] = job.changes[1] = NULL;
        job.timeout_ns = UINT64_C(20000000000);
    }
    relay_run(&job);
    return end_of(&job, seed);
}

int main(int argc, char **argv)
{
    const struct sessions sessions = {
        .run = run_session, .count = 400, .together = 8, .most_well = 50};
    return sessions_run(&sessions, argc, argv);
}
