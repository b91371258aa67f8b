// PMI-1, the protocol by which MPICH's hydra, Intel MPI, Flux and others talk to the processes that
// they start: a request is a line, and so is its answer. The descriptor is one for the whole
// process, so a program that is one of MPI cannot lend it. What answers is believed in nothing: it
// may be another protocol's server, or a descriptor that has become another file since.

#include "collectives/rendezvous/process_manager.h"

#include "base/clock.h"
#include "collectives/rendezvous/launcher_variables.h"
#include "collectives/rendezvous/mesh_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum {
    LINE_BYTES = 2048, // of a request or an answer; servers allow values of 1024
    KVS_BYTES = 512,   // of the name of the store
    DESCRIPTORS = 1 << 20,
};

// A server that is called says at once which rank it has called, and answers one that leaves.
#define PLACE_NS UINT64_C(30000000000)
#define LEAVE_NS UINT64_C(2000000000)

/** The conversation with the server. */
struct pmi {
    struct boot_board *board;
    int fd;                                      /**< -1: none */
    bool called;                                 /**< fd is this file's own, by PMI_PORT, */
    int rank, world;                             /**< and the server knows this process as that */
    enum { CLOSED, CALLED, BEGUN, ENDED } state; /**< of the protocol, as the server sees it */
    char source[96];                             /**< "PMI_FD=8" */
    char asked[64];        /**< the request whose answer is awaited, as texts show it */
    char line[LINE_BYTES]; /**< the answer */
    char come[LINE_BYTES]; /**< what has come after it */
    size_t used;           /**< bytes of `come` */
    char kvs[KVS_BYTES];   /**< name of the job's store */
    int value_max;         /**< bytes of a value with its final zero */
};

/* ------------------------------------------------------------------ lines */

static zero_result fail_answer(const struct pmi *pmi, struct base_error *error)
{
    char shown[LINE_BYTES];
    memcpy(shown, pmi->line, sizeof shown);
    boot_clean(shown, sizeof shown);
    return zero_fail(error, ZERO_E_INVALID, "%s answers \"%.100s\" to \"%s\"", pmi->source, shown,
                     pmi->asked);
}

// Waits until the server can be read or written.
static zero_result await(struct pmi *pmi, short events, struct base_error *error)
{
    struct pollfd polled = {.fd = pmi->fd, .events = events};
    int left;
    const zero_result result = boot_board_left(pmi->board, "PMI-1", 1000, &left, error);
    if (result)
        return result;
    if (poll(&polled, 1, left) < 0 && errno != EINTR)
        return zero_fail_errno(error, ZERO_E_IO, errno, "waiting for %s", pmi->source);
    return ZERO_OK;
}

static zero_result fail_transfer(const struct pmi *pmi, struct base_error *error)
{
    if (errno == EPIPE || errno == ECONNRESET || errno == 0)
        return zero_fail(error, ZERO_E_PEER, "%s has closed its connection after \"%s\"",
                         pmi->source, pmi->asked);
    return zero_fail_errno(error, ZERO_E_IO, errno, "%s", pmi->source);
}

static zero_result send_line(struct pmi *pmi, const char *line, struct base_error *error)
{
    const size_t length = strlen(line);
    assert(length > 0 && line[length - 1] == '\n' && pmi->fd >= 0);
    snprintf(pmi->asked, sizeof pmi->asked, "%.*s", (int)strcspn(line, "\n"), line);
    for (size_t done = 0; done < length;) {
        const ssize_t moved =
            send(pmi->fd, line + done, length - done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (moved > 0) {
            done += (size_t)moved;
            continue;
        }
        if (moved < 0 && errno != EAGAIN && errno != EINTR)
            return fail_transfer(pmi, error);
        const zero_result result = await(pmi, POLLOUT, error);
        if (result)
            return result;
    }
    return ZERO_OK;
}

// Takes the first line of what has come, if it is all there.
static bool take_line(struct pmi *pmi)
{
    const char *end = memchr(pmi->come, '\n', pmi->used);
    if (!end)
        return false;
    const size_t length = (size_t)(end - pmi->come);
    memcpy(pmi->line, pmi->come, length);
    pmi->line[length] = '\0';
    pmi->used -= length + 1;
    memmove(pmi->come, end + 1, pmi->used);
    return true;
}

static zero_result receive_line(struct pmi *pmi, struct base_error *error)
{
    assert(pmi->fd >= 0 && pmi->board);
    while (!take_line(pmi)) {
        if (pmi->used == sizeof pmi->come)
            return zero_fail(error, ZERO_E_INVALID,
                             "%s answers more than %zu bytes without an end to \"%s\"", pmi->source,
                             pmi->used, pmi->asked);
        const ssize_t moved =
            recv(pmi->fd, pmi->come + pmi->used, sizeof pmi->come - pmi->used, MSG_DONTWAIT);
        if (moved > 0) {
            pmi->used += (size_t)moved;
            continue;
        }
        errno = moved == 0 ? 0 : errno;
        if (moved == 0 || (errno != EAGAIN && errno != EINTR))
            return fail_transfer(pmi, error);
        const zero_result result = await(pmi, POLLIN, error);
        if (result)
            return result;
    }
    return ZERO_OK;
}

// The value of a field of the answer, "cmd=maxes kvsname_max=256"; false: there is none, or it does
// not fit.
static bool field(const struct pmi *pmi, const char *name, char *value, size_t size)
{
    const size_t length = strlen(name);
    for (const char *at = pmi->line; *at; at += strspn(at, " ")) {
        const size_t whole = strcspn(at, " ");
        if (whole > length && !strncmp(at, name, length) && at[length] == '=') {
            const size_t bytes = whole - length - 1;
            if (bytes >= size)
                return false;
            memcpy(value, at + length + 1, bytes);
            value[bytes] = '\0';
            return true;
        }
        at += whole;
    }
    return false;
}

static bool number_field(const struct pmi *pmi, const char *name, int min, int max, int *number)
{
    char digits[16];
    return field(pmi, name, digits, sizeof digits) &&
           boot_number(number, "", digits, min, max, NULL) == ZERO_OK;
}

static zero_result receive_answer(struct pmi *pmi, const char *command, struct base_error *error)
{
    char found[32], status[16];
    const zero_result result = receive_line(pmi, error);
    if (result)
        return result;
    if (!field(pmi, "cmd", found, sizeof found) || strcmp(found, command) != 0 ||
        (field(pmi, "rc", status, sizeof status) && strcmp(status, "0") != 0))
        return fail_answer(pmi, error);
    return ZERO_OK;
}

static zero_result request(struct pmi *pmi, const char *line, const char *answer,
                           struct base_error *error)
{
    const zero_result result = send_line(pmi, line, error);
    return result ? result : receive_answer(pmi, answer, error);
}

/* ------------------------------------------------------------------ the server */

// The descriptor that the launcher has left open for this process.
static zero_result find_descriptor(struct pmi *pmi, const char *value, struct base_error *error)
{
    struct stat found;
    zero_result result = boot_number(&pmi->fd, "PMI_FD", value, 0, DESCRIPTORS, error);
    if (result)
        return result;
    snprintf(pmi->source, sizeof pmi->source, "PMI_FD=%d", pmi->fd);
    if (fstat(pmi->fd, &found) || !S_ISSOCK(found.st_mode))
        return zero_fail(error, ZERO_E_UNSUPPORTED,
                         "%s is no open socket of this process: it has been closed since, or this "
                         "is not the process that the launcher has started",
                         pmi->source);
    return ZERO_OK;
}

// A line of what the server says of a process that calls it.
static zero_result hear_set(struct pmi *pmi, const char *name, int *number,
                            struct base_error *error)
{
    const zero_result result = receive_answer(pmi, "set", error);
    if (result)
        return result;
    return number_field(pmi, name, 0, BOOT_NUMBER_MAX, number) ? ZERO_OK : fail_answer(pmi, error);
}

// Tells the server which of its processes this one is, and hears the same of it: three lines.
static zero_result introduce(struct pmi *pmi, int id, struct base_error *error)
{
    char line[64];
    int unused;
    snprintf(line, sizeof line, "cmd=initack pmiid=%d\n", id);
    zero_result result = request(pmi, line, "initack", error);
    if (!result)
        result = hear_set(pmi, "size", &pmi->world, error);
    if (!result)
        result = hear_set(pmi, "rank", &pmi->rank, error);
    if (!result && pmi->rank >= pmi->world)
        return fail_answer(pmi, error);
    return result ? result : hear_set(pmi, "debug", &unused, error);
}

// "host:port", and by which number the server knows this process.
static zero_result call_server(struct pmi *pmi, const char *place, struct base_error *error)
{
    struct boot_master server = {.port = 0};
    const char *colon = strrchr(place, ':');
    const char *number = boot_variable(pmi->board->environment, "PMI_ID");
    const size_t length = colon ? (size_t)(colon - place) : 0;
    int id = 0;
    snprintf(pmi->source, sizeof pmi->source, "PMI_PORT=%.60s", place);
    boot_clean(pmi->source, sizeof pmi->source);
    if (!length || length >= sizeof server.address)
        return zero_fail(error, ZERO_E_INVALID, "%s is no host:port", pmi->source);
    memcpy(server.address, place, length);
    zero_result result =
        boot_number(&server.port, "the port of PMI_PORT", colon + 1, 1, BOOT_PORT_MAX, error);
    if (!result)
        result = number
                     ? boot_number(&id, "PMI_ID", number, 0, BOOT_NUMBER_MAX, error)
                     : zero_fail(error, ZERO_E_INVALID, "%s, but PMI_ID is not set", pmi->source);
    struct base_error why = {.result = ZERO_OK};
    if (!result && mesh_call(&pmi->fd, &server, 0, pmi->board->deadline_ns, &why))
        result = zero_fail(error, ZERO_E_IO, "%s: %s", pmi->source, why.message);
    if (result)
        return result;
    pmi->called = true;
    pmi->state = CALLED;
    return introduce(pmi, id, error);
}

// Unless that is done.
static zero_result open_server(struct pmi *pmi, struct base_error *error)
{
    const char *descriptor = boot_variable(pmi->board->environment, "PMI_FD");
    const char *port = boot_variable(pmi->board->environment, "PMI_PORT");
    if (pmi->fd >= 0)
        return ZERO_OK;
    const zero_result result = boot_manager_check_program(error);
    pmi->rank = pmi->world = -1;
    if (result)
        return result;
    return descriptor ? find_descriptor(pmi, descriptor, error) : call_server(pmi, port, error);
}

static const char init[] = "cmd=init pmi_version=1 pmi_subversion=1\n";

static zero_result begin_session(struct pmi *pmi, struct base_error *error)
{
    int version, keys;
    assert(pmi->state != BEGUN);
    zero_result result = request(pmi, init, "response_to_init", error);
    if (!result && !number_field(pmi, "pmi_version", 1, 1, &version))
        result = fail_answer(pmi, error);
    if (result)
        return result;
    pmi->state = BEGUN;
    result = request(pmi, "cmd=get_maxes\n", "maxes", error);
    if (!result &&
        (!number_field(pmi, "keylen_max", (int)sizeof BOOT_BOARD_KEY, BOOT_NUMBER_MAX, &keys) ||
         !number_field(pmi, "vallen_max", 32, BOOT_NUMBER_MAX, &pmi->value_max)))
        result = fail_answer(pmi, error);
    if (!result)
        result = request(pmi, "cmd=get_my_kvsname\n", "my_kvsname", error);
    if (!result && (!field(pmi, "kvsname", pmi->kvs, sizeof pmi->kvs) || !*pmi->kvs))
        result = fail_answer(pmi, error);
    return result;
}

/* ------------------------------------------------------------------ the store */

// Leaves out addresses of "port@address,address" for which the server's values have no room.
static void shorten(char *text, int value_max)
{
    while (strlen(text) >= (size_t)value_max) {
        char *comma = strrchr(text, ',');
        if (!comma)
            return;
        *comma = '\0';
    }
}

static zero_result put_text(struct pmi *pmi, char text[BOOT_BOARD_BYTES], struct base_error *error)
{
    char line[LINE_BYTES];
    assert(pmi->board->rank == 0 && pmi->state == BEGUN);
    shorten(text, pmi->value_max);
    snprintf(line, sizeof line, "cmd=put kvsname=%s key=" BOOT_BOARD_KEY " value=%s\n", pmi->kvs,
             text);
    return request(pmi, line, "put_result", error);
}

static zero_result get_text(struct pmi *pmi, char text[BOOT_BOARD_BYTES], struct base_error *error)
{
    char line[LINE_BYTES];
    snprintf(line, sizeof line, "cmd=get kvsname=%s key=" BOOT_BOARD_KEY "\n", pmi->kvs);
    const zero_result result = request(pmi, line, "get_result", error);
    if (result)
        return result;
    return field(pmi, "value", text, BOOT_BOARD_BYTES) ? ZERO_OK : fail_answer(pmi, error);
}

/** The process's own: the descriptor is one. */
static struct pmi session = {.fd = -1};

// The server takes a connection that ends before it has answered for a failure of the job.
static void leave(void)
{
    const uint64_t deadline = base_clock_ns() + LEAVE_NS;
    struct boot_board last = {.deadline_ns = deadline, .wait = boot_wait_begin(0, deadline)};
    session.board = &last;
    if (session.state == CALLED && !request(&session, init, "response_to_init", NULL))
        session.state = BEGUN;
    if (session.state == BEGUN)
        request(&session, "cmd=finalize\n", "finalize_ack", NULL);
    if (session.called)
        boot_fd_close(&session.fd);
    session = (struct pmi){.fd = -1};
}

static zero_result exchange_lines(struct pmi *pmi, char text[BOOT_BOARD_BYTES],
                                  struct base_error *error)
{
    const struct boot_board *board = pmi->board;
    zero_result result = open_server(pmi, error);
    if (!result && pmi->called && (pmi->rank != board->rank || pmi->world != board->world))
        return zero_fail(error, ZERO_E_INVALID, "it counts other ranks: this one is %d of %d",
                         pmi->rank, pmi->world);
    if (!result)
        result = begin_session(pmi, error);
    if (!result && board->rank == 0)
        result = put_text(pmi, text, error);
    if (!result)
        result = request(pmi, "cmd=barrier_in\n", "barrier_out", error);
    if (!result)
        result = get_text(pmi, text, error);
    if (!result)
        result = request(pmi, "cmd=finalize\n", "finalize_ack", error);
    return result;
}

static zero_result publish_by_lines(struct boot_board *board, char text[BOOT_BOARD_BYTES],
                                    struct base_error *error)
{
    session.board = board;
    const zero_result result = exchange_lines(&session, text, error);
    session.state = ENDED; // a server that has failed is not told so
    leave();
    return result;
}

// A server that is called says at once which rank calls.
static zero_result find_place(struct boot_manager_place *place, char *const *environment,
                              struct base_error *error)
{
    const uint64_t deadline = base_clock_ns() + PLACE_NS;
    struct boot_board board = {
        .environment = environment, .deadline_ns = deadline, .wait = boot_wait_begin(0, deadline)};
    session.board = &board;
    const zero_result result = open_server(&session, error);
    if (result)
        leave();
    else
        *place = (struct boot_manager_place){
            .rank = session.rank, .world = session.world, .local_rank = -1};
    session.board = NULL;
    return result;
}

static bool is_there(char *const *environment)
{
    return boot_variable(environment, "PMI_FD") || boot_variable(environment, "PMI_PORT");
}

// One that has left a descriptor has set the variables, too.
static bool is_placing(char *const *environment)
{
    return is_there(environment) && !boot_variable(environment, "PMI_FD");
}

// Its numbers of ranks are those of the job, where the variables say them.
static bool is_counting(char *const *environment, int rank, int world)
{
    const char *rank_text = boot_variable(environment, "PMI_RANK");
    const char *world_text = boot_variable(environment, "PMI_SIZE");
    int number = 0;
    if (!is_there(environment))
        return false;
    if (!rank_text)
        rank_text = boot_variable(environment, "PMI_ID");
    if (rank_text &&
        (boot_number(&number, "", rank_text, 0, BOOT_NUMBER_MAX, NULL) || number != rank))
        return false;
    return !world_text ||
           (!boot_number(&number, "", world_text, 0, BOOT_NUMBER_MAX, NULL) && number == world);
}

const struct boot_manager boot_pmi1 = {.size = sizeof(struct boot_manager),
                                       .name = "PMI-1",
                                       .names = {"PMI_RANK", "PMI_SIZE"},
                                       .is_there = is_there,
                                       .is_placing = is_placing,
                                       .is_counting = is_counting,
                                       .find_place = find_place,
                                       .publish = publish_by_lines,
                                       .leave = leave};
