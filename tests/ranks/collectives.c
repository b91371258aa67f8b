// <zero/collectives.h> as a program uses it: every operation in both forms, what is refused and
// what that does. Ranks are the processes of zero-run, or threads:
//
//     zero-run -n 4 -- ranks.collectives          ranks.collectives 4
#include "tests/ranks/team.h"

#include <zero/collectives.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 8, COUNT = 1000 };

#define CHECK_OK(comm, call) TEAM_CHECK(succeeds((comm), (call), #call))

static bool succeeds(const zero_comm *comm, zero_result result, const char *call)
{
    if (result != ZERO_OK)
        fprintf(stderr, "%s: %d: %s\n", call, (int)result, zero_comm_error(comm));
    return result == ZERO_OK;
}

/** How a rank of this test meets the others. */
struct place {
    zero_comm_config config;
    int logged; /**< errors */
    bool good;
};

static void count_errors(void *user, zero_log_level level, const char *component,
                         const char *message)
{
    (void)component;
    (void)message;
    if (level == ZERO_LOG_ERROR)
        ((struct place *)user)->logged++;
}

static zero_comm *open_as(struct place *place, const char *name)
{
    zero_comm *comm = NULL;
    place->config.name = name;
    place->config.log = count_errors;
    place->config.log_user = place;
    place->logged = 0;
    if (zero_comm_open(&comm, &place->config) != ZERO_OK)
        fprintf(stderr, "%s: %s\n", name, zero_comm_error(NULL));
    return comm;
}

/* ------------------------------------------------------------------ operations */

/** Spans of `count` each, one behind the other. */
static void deal(zero_span *spans, int world, size_t count)
{
    for (int r = 0; r < world; r++)
        spans[r] = (zero_span){.offset = (size_t)r * count, .count = count};
}

/** Number of a rank, here always in the root, where it is seen from `comm`. */
static float number(const zero_comm *comm, int rank)
{
    return (float)zero_comm_root_rank(comm, rank) + 1;
}

static bool gathers(zero_comm *comm, float *x, float *y)
{
    const int world = zero_comm_world(comm), me = zero_comm_rank(comm);
    zero_span spans[MOST_RANKS];
    deal(spans, world, 3 * sizeof *x);
    x[0] = x[1] = x[2] = number(comm, me);
    for (int form = 0; form < 2; form++) {
        zero_request request = {{0}};
        memset(y, 0, COUNT * sizeof *y);
        if (form == 0) {
            CHECK_OK(comm, zero_comm_all_gather(comm, x, y, spans));
        } else {
            CHECK_OK(comm, zero_comm_all_gather_start(comm, x, y, spans, &request));
            CHECK_OK(comm, zero_comm_wait(comm, &request));
        }
        for (int r = 0; r < world; r++)
            TEAM_CHECK(y[3 * r] == number(comm, r) && y[3 * r + 2] == number(comm, r));
    }
    // All to all: rank r sends q+1 numbers to rank q.
    zero_span send[MOST_RANKS], receive[MOST_RANKS];
    for (int r = 0; r < world; r++) {
        send[r] = (zero_span){(size_t)r * 40, ((size_t)r + 1) * sizeof *x};
        receive[r] = (zero_span){(size_t)(world - r) * 40, ((size_t)me + 1) * sizeof *x};
    }
    for (int i = 0; i < 100; i++)
        x[i] = number(comm, me) * 100 + (float)i;
    for (int form = 0; form < 2; form++) {
        zero_request request = {{0}};
        if (form == 0) {
            CHECK_OK(comm, zero_comm_all_to_all(comm, x, send, y, receive));
        } else {
            CHECK_OK(comm, zero_comm_all_to_all_start(comm, x, send, y, receive, &request));
            CHECK_OK(comm, zero_comm_wait(comm, &request));
        }
        for (int r = 0; r < world; r++)
            TEAM_CHECK(y[10 * (world - r) + me] == number(comm, r) * 100 + (float)(11 * me));
    }
    return true;
}

static bool sums(zero_comm *comm, float *x, float *y)
{
    const int world = zero_comm_world(comm), me = zero_comm_rank(comm);
    float all = 0;
    for (int r = 0; r < world; r++)
        all += number(comm, r);
    zero_span spans[MOST_RANKS];
    deal(spans, world, 5);
    for (int form = 0; form < 2; form++) {
        zero_request request = {{0}}, other = {{0}};
        int64_t least = zero_comm_root_rank(comm, me), most = least;
        for (int i = 0; i < 5 * world; i++)
            x[i] = number(comm, me) * (float)i;
        if (form == 0) {
            CHECK_OK(comm, zero_comm_reduce_scatter(comm, x, y, ZERO_F32, spans));
            CHECK_OK(comm, zero_comm_all_reduce(comm, &least, &least, 1, ZERO_I64, ZERO_MIN));
            CHECK_OK(comm, zero_comm_all_reduce(comm, &most, &most, 1, ZERO_I64, ZERO_MAX));
        } else {
            CHECK_OK(comm, zero_comm_reduce_scatter_start(comm, x, y, ZERO_F32, spans, &request));
            CHECK_OK(comm, zero_comm_all_reduce_start(comm, &least, &least, 1, ZERO_I64, ZERO_MIN,
                                                      &other));
            CHECK_OK(comm, zero_comm_wait(comm, &other));
            CHECK_OK(comm,
                     zero_comm_all_reduce_start(comm, &most, &most, 1, ZERO_I64, ZERO_MAX, &other));
            CHECK_OK(comm, zero_comm_wait(comm, &request));
            CHECK_OK(comm, zero_comm_wait(comm, &other));
        }
        for (int i = 0; i < 5; i++)
            TEAM_CHECK(y[i] == all * (float)(5 * me + i));
        TEAM_CHECK(least == zero_comm_root_rank(comm, 0));
        TEAM_CHECK(most == zero_comm_root_rank(comm, world - 1));
        CHECK_OK(comm, zero_comm_all_reduce(comm, x, y, 5, ZERO_F32, ZERO_SUM));
        TEAM_CHECK(y[4] == all * 4);
    }
    return true;
}

/** A token goes round; then nothing at all does; then every rank tells every other. */
static bool messages(zero_comm *comm, float *x, float *y)
{
    const int world = zero_comm_world(comm), me = zero_comm_rank(comm);
    const int next = (me + 1) % world, before = (me + world - 1) % world;
    zero_request sent = {{0}}, received = {{0}};
    if (me == 0) {
        x[0] = number(comm, 0);
        CHECK_OK(comm, zero_comm_receive_start(comm, y, sizeof *y, before, &received));
        TEAM_CHECK(zero_comm_test(comm, &received) == ZERO_AGAIN);
        CHECK_OK(comm, zero_comm_send_start(comm, x, sizeof *x, next, &sent));
        CHECK_OK(comm, zero_comm_wait(comm, &sent));
        zero_result result = ZERO_AGAIN;
        while (result == ZERO_AGAIN)
            result = zero_comm_test(comm, &received);
        CHECK_OK(comm, result);
    } else {
        CHECK_OK(comm, zero_comm_receive(comm, y, sizeof *y, before));
        CHECK_OK(comm, zero_comm_send(comm, y, sizeof *y, next));
    }
    TEAM_CHECK(y[0] == number(comm, 0));
    CHECK_OK(comm, zero_comm_send_start(comm, NULL, 0, next, &sent));
    CHECK_OK(comm, zero_comm_receive(comm, NULL, 0, before));
    CHECK_OK(comm, zero_comm_wait(comm, &sent));
    for (int root = 0; root < world; root++) {
        x[0] = x[1] = number(comm, me);
        CHECK_OK(comm, zero_comm_broadcast(comm, x, sizeof *x, root));
        CHECK_OK(comm, zero_comm_broadcast_start(comm, x + 1, sizeof *x, root, &sent));
        CHECK_OK(comm, zero_comm_wait(comm, &sent));
        TEAM_CHECK(x[0] == number(comm, root) && x[1] == number(comm, root));
    }
    CHECK_OK(comm, zero_comm_barrier(comm));
    return true;
}

static bool all_operations(struct place *place)
{
    zero_comm *root = open_as(place, "operations"), *row, *column, *pair;
    TEAM_CHECK(root);
    const int me = zero_comm_rank(root);
    CHECK_OK(root, zero_comm_split(root, me / 2, 0, &row));
    CHECK_OK(root, zero_comm_split(root, me % 2, 0, &column));
    CHECK_OK(root, zero_comm_split(column, me / 2 < 2 ? 0 : -1, 0, &pair));
    TEAM_CHECK((pair != NULL) == (me / 2 < 2) &&
               zero_comm_root_rank(row, zero_comm_rank(row)) == me);
    void *memory, *none;
    CHECK_OK(root, zero_comm_alloc(root, 2 * COUNT * sizeof(float), &memory));
    CHECK_OK(root, zero_comm_alloc(root, 0, &none));
    TEAM_CHECK(!none && strlen(zero_comm_private_path(root)) > 0);
    float *ours = calloc(2 * COUNT, sizeof(float));
    TEAM_CHECK(ours);
    zero_comm *const comms[] = {root, row, column, pair};
    for (int i = 0; i < 4; i++)
        for (int private = 0; private < 2; private ++) {
            float *x = private ? ours : memory, *y = x + COUNT;
            if (comms[i])
                TEAM_CHECK(gathers(comms[i], x, y) && sums(comms[i], x, y) &&
                           messages(comms[i], x, y));
        }
    CHECK_OK(root, zero_comm_barrier(root));
    zero_comm_close(column);
    zero_comm_close(root);
    free(ours);
    TEAM_CHECK(place->logged == 0);
    return true;
}

/* ------------------------------------------------------------------ refusals */

/** What leaves everything as it was. */
static bool harmless(struct place *place)
{
    zero_comm *root = open_as(place, "harmless"), *groups[65], *more;
    TEAM_CHECK(root);
    zero_request request = {{0}};
    void *memory = NULL;
    zero_span spans[MOST_RANKS] = {{0, 0}};
    TEAM_CHECK(zero_comm_wait(NULL, &request) == ZERO_E_INVALID);
    TEAM_CHECK(strstr(zero_comm_error(NULL), "zero_comm_wait"));
    TEAM_CHECK(zero_comm_test(NULL, &request) == ZERO_E_INVALID);
    TEAM_CHECK(zero_comm_barrier(NULL) == ZERO_E_INVALID);
    TEAM_CHECK(zero_comm_split(NULL, 0, 0, &more) == ZERO_E_INVALID);
    TEAM_CHECK(zero_comm_alloc(NULL, 0, &memory) == ZERO_E_INVALID);
    TEAM_CHECK(zero_comm_all_gather(NULL, NULL, NULL, spans) == ZERO_E_INVALID);
    TEAM_CHECK(zero_comm_reduce_scatter(NULL, NULL, NULL, ZERO_F32, spans) == ZERO_E_INVALID);
    TEAM_CHECK(zero_comm_all_reduce(NULL, NULL, NULL, 0, ZERO_F32, ZERO_SUM) == ZERO_E_INVALID);
    TEAM_CHECK(zero_comm_broadcast(NULL, NULL, 0, 0) == ZERO_E_INVALID);
    TEAM_CHECK(zero_comm_all_to_all(NULL, NULL, spans, NULL, spans) == ZERO_E_INVALID);
    TEAM_CHECK(zero_comm_send(NULL, NULL, 0, 0) == ZERO_E_INVALID);
    TEAM_CHECK(zero_comm_receive(NULL, NULL, 0, 0) == ZERO_E_INVALID);
    TEAM_CHECK(strstr(zero_comm_error(NULL), "zero_comm_receive: the communicator is NULL"));
    TEAM_CHECK(zero_comm_rank(NULL) == -1 && zero_comm_world(NULL) == -1);
    TEAM_CHECK(zero_comm_root_rank(NULL, 0) == -1 && zero_comm_root_rank(root, -1) == -1);
    TEAM_CHECK(zero_comm_root_rank(root, zero_comm_world(root)) == -1);
    TEAM_CHECK(strcmp(zero_comm_private_path(NULL), "") == 0);
    zero_comm_abort(NULL, "nobody");
    zero_comm_close(NULL);

    TEAM_CHECK(strcmp(zero_comm_error(root), "") == 0);
    TEAM_CHECK(zero_comm_wait(root, NULL) == ZERO_E_INVALID);
    TEAM_CHECK(zero_comm_test(root, NULL) == ZERO_E_INVALID);
    TEAM_CHECK(strstr(zero_comm_error(root), "zero_comm_test: the request is NULL"));
    for (int i = 0; i < 64; i++)
        CHECK_OK(root, zero_comm_split(root, 0, 0, &groups[i]));
    TEAM_CHECK(zero_comm_split(root, 0, 0, &more) == ZERO_E_LIMIT && !more);
    TEAM_CHECK(strstr(zero_comm_error(root), "rank 0: "));
    TEAM_CHECK(zero_comm_alloc(groups[1], 8, &memory) == ZERO_E_INVALID && !memory);
    CHECK_OK(root, zero_comm_wait(root, &request)); // nothing was started
    CHECK_OK(root, zero_comm_test(root, &request));
    CHECK_OK(root, zero_comm_barrier(root));
    TEAM_CHECK(place->logged == 0);
    zero_comm_close(root);
    return true;
}

/** Makes mistake number `n`; ZERO_OK if there is none of that number. `text`: what the message
 * says.
 */
static zero_result make_mistake(zero_comm *comm, int n, const char **text)
{
    static zero_request busy;
    zero_span spans[MOST_RANKS], huge[MOST_RANKS];
    float x[MOST_RANKS * 4] = {0}, y[MOST_RANKS * 4];
    zero_request request = {{0}};
    deal(spans, zero_comm_world(comm), sizeof *x);
    deal(huge, zero_comm_world(comm), SIZE_MAX);
    switch (n) {
    case 0:
        *text = "zero_comm_split: there is no place for the group";
        return zero_comm_split(comm, 0, 0, NULL);
    case 1:
        *text = "zero_comm_alloc: there is no place for the address";
        return zero_comm_alloc(comm, 0, NULL);
    case 2:
        *text = "zero_comm_all_gather: spans is NULL";
        return zero_comm_all_gather(comm, x, y, NULL);
    case 3:
        *text = "zero_comm_all_gather: recv is NULL";
        return zero_comm_all_gather_start(comm, x, NULL, spans, &request);
    case 4:
        *text = "there is no source";
        return zero_comm_all_gather(comm, NULL, y, spans);
    case 5:
        *text = "zero_comm_all_gather: request is NULL";
        return zero_comm_all_gather_start(comm, x, y, spans, NULL);
    case 6:
        *text = "zero_comm_reduce_scatter: 7 is no dtype";
        return zero_comm_reduce_scatter(comm, x, y, (zero_dtype)7, spans);
    case 7:
        *text = "zero_comm_reduce_scatter: source is NULL";
        return zero_comm_reduce_scatter(comm, NULL, y, ZERO_F32, spans);
    case 8:
        *text = "there is no accumulator";
        return zero_comm_reduce_scatter(comm, x, NULL, ZERO_F32, spans);
    case 9:
        *text = "zero_comm_all_reduce: 0 is no dtype";
        return zero_comm_all_reduce(comm, x, y, 1, ZERO_DTYPE_DEFAULT, ZERO_SUM);
    case 10:
        *text = "zero_comm_all_reduce: 3 is no operation";
        return zero_comm_all_reduce(comm, x, y, 1, ZERO_F32, (zero_op)3);
    case 11:
        *text = "zero_comm_all_reduce: source, result or request is NULL";
        return zero_comm_all_reduce(comm, x, NULL, 1, ZERO_F32, ZERO_SUM);
    case 12:
        *text = "zero_comm_broadcast: there is no rank -1";
        return zero_comm_broadcast(comm, x, 4, -1);
    case 13:
        *text = "zero_comm_broadcast: data is NULL";
        return zero_comm_broadcast(comm, NULL, 4, 0);
    case 14:
        *text = "zero_comm_all_to_all: recv is NULL";
        return zero_comm_all_to_all(comm, x, spans, NULL, spans);
    case 15:
        *text = "zero_comm_all_to_all: send, receive or request is NULL";
        return zero_comm_all_to_all(comm, x, spans, y, NULL);
    case 16:
        *text = "zero_comm_send: there is no rank 99";
        return zero_comm_send(comm, x, 4, 99);
    case 17:
        *text = "zero_comm_receive: data is NULL";
        return zero_comm_receive(comm, NULL, 4, 0);
    case 18:
        *text = "the request is not drained";
        memset(&busy, 0, sizeof busy);
        (void)zero_comm_receive_start(comm, y, 4, 0, &busy);
        return zero_comm_receive_start(comm, y, 4, 0, &busy);
    case 19:
        *text = "more than the memory there is";
        return zero_comm_reduce_scatter(comm, x, y, ZERO_F64, huge);
    case 20:
        *text = "aligned";
        return zero_comm_all_reduce(comm, (char *)x + 1, y, 1, ZERO_F32, ZERO_SUM);
    default:
        return ZERO_OK;
    }
}

/** The last rank's mistake is every rank's failure, and logged once. */
static bool mistakes(struct place *place)
{
    for (int n = 0;; n++) {
        char name[32];
        const char *text = "zero_comm";
        snprintf(name, sizeof name, "mistake-%d", n);
        zero_comm *root = open_as(place, name), *group;
        TEAM_CHECK(root);
        CHECK_OK(root, zero_comm_split(root, 0, 0, &group));
        const bool mine = zero_comm_rank(root) == zero_comm_world(root) - 1;
        zero_result result = mine ? make_mistake(group, n, &text) : zero_comm_barrier(root);
        const char *message = zero_comm_error(root);
        if (mine && result == ZERO_OK) { // no more
            zero_comm_abort(group, "no more mistakes");
            zero_comm_close(root);
            return true;
        }
        if (result == ZERO_E_ABORTED) {
            TEAM_CHECK(strstr(message, "no more mistakes"));
            zero_comm_close(root);
            return true;
        }
        if (result != ZERO_E_INVALID || (mine && !strstr(message, text)))
            fprintf(stderr, "mistake %d: %d: %s\n", n, (int)result, message);
        TEAM_CHECK(result == ZERO_E_INVALID && (!mine || strstr(message, text)));
        snprintf(name, sizeof name, "rank %d", zero_comm_world(root) - 1);
        TEAM_CHECK(strstr(message, name) && strcmp(message, zero_comm_error(group)) == 0);
        zero_request request = {{0}};
        TEAM_CHECK(zero_comm_barrier(group) == ZERO_E_INVALID);
        TEAM_CHECK(zero_comm_test(group, &request) == ZERO_E_INVALID);
        TEAM_CHECK(zero_comm_split(group, 0, 0, &group) == ZERO_E_INVALID);
        TEAM_CHECK(place->logged == 1);
        zero_comm_close(root);
    }
}

static bool opening(struct place *place)
{
    place->config.name = "opening";
    const zero_comm_config good = place->config;
    zero_comm *comm = (zero_comm *)place;
    place->config.struct_size = 2;
    TEAM_CHECK(zero_comm_open(&comm, &place->config) == ZERO_E_INVALID && !comm);
    TEAM_CHECK(strstr(zero_comm_error(NULL), "zero_comm_config.struct_size"));
    place->config = good;
    place->config.log_level = -1;
    place->config.transport = "pigeons";
    TEAM_CHECK(zero_comm_open(&comm, &place->config) == ZERO_E_INVALID && !comm);
    TEAM_CHECK(strstr(zero_comm_error(NULL), "zero_config.transport = \"pigeons\""));
    place->config = good;
    place->config.log_level = -1;
    place->config.world = 2;
    place->config.rank = 2;
    TEAM_CHECK(zero_comm_open(&comm, &place->config) == ZERO_E_INVALID && !comm);
    place->config = good;
    TEAM_CHECK(zero_comm_open(NULL, &place->config) == ZERO_E_INVALID);
    return true;
}

/* ------------------------------------------------------------------ ranks */

static void *run_rank(void *argument)
{
    struct place *place = argument;
    place->good = all_operations(place) && harmless(place) && mistakes(place) && opening(place);
    return NULL;
}

static bool run_threads(int world)
{
    struct place places[MOST_RANKS];
    pthread_t threads[MOST_RANKS];
    zero_team *team;
    bool good = true;
    if (zero_team_create(&team, world) != ZERO_OK)
        return false;
    for (int r = 0; r < world; r++) {
        places[r] = (struct place){.config = zero_comm_config_default()};
        places[r].config.world = world;
        places[r].config.rank = r;
        places[r].config.team = team;
        pthread_create(&threads[r], NULL, run_rank, &places[r]);
    }
    for (int r = 0; r < world; r++) {
        pthread_join(threads[r], NULL);
        good &= places[r].good;
    }
    zero_team_free(team);
    return good;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return run_threads(atoi(argv[1])) ? 0 : 1;
    struct place place = {.config = zero_comm_config_default()};
    run_rank(&place);
    // Where a plan is made there is no rank to join.
    zero_comm *comm;
    setenv("ZERO_PLAN", "1", 1);
    return place.good && zero_comm_open(&comm, NULL) == ZERO_PLANNED && !comm ? 0 : 1;
}
