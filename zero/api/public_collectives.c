// <zero/collectives.h>: a thin layer over collectives/comm/comm.h. It checks arguments, keeps
// messages, and finds the place in the job as zero_open() does.

#include "zero/api/open_close.h"
#include "zero/collectives.h"
#include "zero/core/api_call.h"

#include "base/arena.h"
#include "base/fault.h"
#include "collectives/comm/comm.h"
#include "collectives/control/control.h"
#include "zero/core/context.h"
#include "zero/core/stop.h"
#include "zero/model/versioned.h"

#include <stdarg.h>
#include <stdio.h>

_Static_assert(sizeof(struct coll_request) <= sizeof(zero_request), "a request fits");
_Static_assert(sizeof(struct coll_span) == sizeof(zero_span) &&
                   offsetof(struct coll_span, count) == offsetof(zero_span, count),
               "a span is a span");
_Static_assert(COLL_SUM == (int)ZERO_SUM && COLL_MIN == (int)ZERO_MIN && COLL_MAX == (int)ZERO_MAX,
               "an operation is an operation");

/** What all communicators of a family have in common. */
struct family {
    struct eng_config config;
    struct control_segment *segment; /**< where zero-run looks; NULL: nowhere */
    zero_comm *comms;                /**< all of them, the root last */
    struct base_error error;         /**< the failure, or the last refusal */
    bool failed;
};

struct zero_comm {
    struct family *family;
    struct coll_comm *comm;
    zero_comm *next; /**< of the family */
};

/* ------------------------------------------------------------------ errors */

static zero_result refuse_null(const char *call)
{
    return zero_fail(eng_thread_error(), ZERO_E_INVALID, "%s: the communicator is NULL", call);
}

/** Keeps the message of the family's failure, if there is one, and logs it once. */
static void keep_failure(const zero_comm *comm)
{
    struct family *family = comm->family;
    struct base_error error = {0};
    if (family->failed || coll_state(comm->comm, &error) == ZERO_OK)
        return;
    family->failed = true;
    family->error = error;
    eng_log_failure(&family->config.log, "coll", error.message);
}

/** Leaves a call. */
static zero_result finish(const zero_comm *comm, zero_result result)
{
    if (result < ZERO_OK)
        keep_failure(comm);
    return result;
}

/** A call that leaves everything as it was. */
static zero_result decline(zero_comm *comm, zero_result result, const char *message)
{
    struct family *family = comm->family;
    if (!family->failed) {
        base_error_clear(&family->error);
        zero_fail(&family->error, result, "%s", message);
    }
    return result;
}

/** This rank will be missed: every rank's failure. */
static zero_result drop_out(zero_comm *comm, zero_result result, const char *message)
{
    coll_abort(comm->comm, result, message);
    return finish(comm, coll_state(comm->comm, NULL));
}

/** An operation in which this rank can't take part. */
static zero_result refuse(zero_comm *comm, const char *call, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static zero_result refuse(zero_comm *comm, const char *call, const char *format, ...)
{
    char why[128], message[192];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    snprintf(message, sizeof message, "%s: %s", call, why);
    return drop_out(comm, ZERO_E_INVALID, message);
}

const char *zero_comm_error(const zero_comm *comm)
{
    if (!comm)
        return eng_thread_message();
    keep_failure(comm);
    return comm->family->error.message;
}

/* ------------------------------------------------------------------ life */

static zero_result resolve(struct family *family, const zero_comm_config *user,
                           struct base_error *error)
{
    zero_comm_config given = zero_comm_config_default();
    const zero_result result =
        !user ? ZERO_OK : eng_struct_copy(&given, sizeof given, user, "zero_comm_config", error);
    if (result)
        return result;
    const zero_config config = {.struct_size = sizeof config,
                                .name = given.name ? given.name : "collectives",
                                .world = given.world,
                                .rank = given.rank,
                                .transport = given.transport,
                                .team = given.team,
                                .timeout_s = given.timeout_s,
                                .stall_s = given.stall_s,
                                .log_level = given.log_level,
                                .log = given.log,
                                .log_user = given.log_user};
    return eng_config_resolve(&family->config, &config, error);
}

/** A communicator that is in the family's list; NULL without memory. */
static zero_comm *add_comm(struct family *family, struct coll_comm *comm)
{
    zero_comm *added = base_calloc(1, sizeof *added);
    if (!added)
        return NULL;
    *added = (zero_comm){.family = family, .comm = comm, .next = family->comms};
    family->comms = added;
    return added;
}

/** Joins the other ranks, which have met if there is a mesh of them. */
static zero_result join(zero_comm *root, struct boot_mesh *mesh, struct base_error *error)
{
    const struct family *family = root->family;
    struct coll_config comm = eng_coll_config(&family->config);
    if (family->segment)
        comm.control = &family->segment->ranks[family->config.rank];
    comm.mesh = mesh->world ? mesh : NULL;
    return coll_open(&root->comm, &comm, error);
}

static zero_result open_root(zero_comm *root, const zero_comm_config *user,
                             struct base_error *error)
{
    struct family *family = root->family;
    struct boot_mesh mesh = {.world = 0};
    zero_result result = base_fault_check_environment(error);
    if (!result)
        result = resolve(family, user, error);
    if (!result && family->config.plan)
        result = zero_fail(error, ZERO_PLANNED, "a plan is made: there is nobody to join");
    const struct eng_config *config = &family->config;
    if (!result && !config->team)
        result = control_attach(&family->segment, config->rank, config->world, error);
    if (!result)
        result = eng_config_meet(&family->config, eng_stop_requested, &mesh, error);
    if (!result)
        result = join(root, &mesh, error);
    boot_mesh_close(&mesh);
    if (result == ZERO_E_ABORTED)
        eng_stop_unopened(config->rank);
    return result;
}

zero_result zero_comm_open(zero_comm **comm, const zero_comm_config *config)
{
    struct base_error *error = eng_thread_error();
    if (!comm)
        return zero_fail(error, ZERO_E_INVALID,
                         "zero_comm_open needs a place for the communicator");
    *comm = NULL;
    struct family *family = base_calloc(1, sizeof *family);
    zero_comm *root = family ? add_comm(family, NULL) : NULL;
    if (!root) {
        base_free(family);
        return zero_fail(error, ZERO_E_NOMEM, "no memory for a communicator");
    }
    const zero_result result = open_root(root, config, error);
    if (result)
        zero_comm_close(root);
    else
        *comm = root;
    return result;
}

/** The root is the oldest of its family. */
static bool is_root(const zero_comm *comm)
{
    return comm->next == NULL;
}

static void close_family(zero_comm *root)
{
    struct family *family = root->family;
    coll_close(root->comm);
    while (family->comms) {
        zero_comm *comm = family->comms;
        family->comms = comm->next;
        base_free(comm);
    }
    control_detach(family->segment);
    base_free(family);
}

void zero_comm_close(zero_comm *comm)
{
    if (!comm || (comm->comm && coll_in_child(comm->comm)))
        return;
    if (is_root(comm)) {
        close_family(comm);
        return;
    }
    zero_comm **link = &comm->family->comms;
    while (*link != comm)
        link = &(*link)->next;
    *link = comm->next;
    coll_close(comm->comm);
    base_free(comm);
}

zero_result zero_comm_split(zero_comm *comm, int32_t color, int32_t key, zero_comm **group)
{
    if (!comm)
        return refuse_null("zero_comm_split");
    if (!group)
        return refuse(comm, "zero_comm_split", "there is no place for the group");
    *group = NULL;
    struct coll_comm *made = NULL;
    struct base_error error = {0};
    const zero_result result = coll_split(comm->comm, color, key, &made, &error);
    if (result)
        return finish(comm, decline(comm, result, error.message));
    if (!made)
        return ZERO_OK;
    *group = add_comm(comm->family, made);
    if (!*group)
        return drop_out(comm, ZERO_E_NOMEM, "zero_comm_split: no memory for a communicator");
    return ZERO_OK;
}

int32_t zero_comm_rank(const zero_comm *comm)
{
    return comm ? coll_rank(comm->comm) : -1;
}

int32_t zero_comm_world(const zero_comm *comm)
{
    return comm ? coll_world(comm->comm) : -1;
}

int32_t zero_comm_root_rank(const zero_comm *comm, int32_t rank)
{
    return comm && rank >= 0 && rank < coll_world(comm->comm) ? coll_root_rank(comm->comm, rank)
                                                              : -1;
}

void zero_comm_abort(zero_comm *comm, const char *reason)
{
    if (comm)
        coll_abort(comm->comm, ZERO_E_ABORTED, reason ? reason : "zero_comm_abort");
}

zero_result zero_comm_alloc(zero_comm *comm, size_t bytes, void **memory)
{
    if (!comm)
        return refuse_null("zero_comm_alloc");
    if (!memory)
        return refuse(comm, "zero_comm_alloc", "there is no place for the address");
    *memory = NULL;
    if (!is_root(comm))
        return decline(comm, ZERO_E_INVALID,
                       "zero_comm_alloc: memory is the whole family's: ask "
                       "for it through the root");
    struct coll_arena *arena = NULL;
    struct base_error error = {0};
    const zero_result result = coll_arena_create(comm->comm, bytes, &arena, &error);
    if (result)
        return finish(comm, decline(comm, result, error.message));
    *memory = coll_arena_base(arena);
    return ZERO_OK;
}

const char *zero_comm_private_path(const zero_comm *comm)
{
    return comm ? coll_unregistered_path(comm->comm) : "";
}

/* ------------------------------------------------------------------ waiting */

static struct coll_request *inner(zero_request *request)
{
    return (struct coll_request *)(void *)request;
}

zero_result zero_comm_wait(zero_comm *comm, zero_request *request)
{
    if (!comm)
        return refuse_null("zero_comm_wait");
    if (!request)
        return decline(comm, ZERO_E_INVALID, "zero_comm_wait: the request is NULL");
    return finish(comm, coll_drain(comm->comm, inner(request)));
}

zero_result zero_comm_test(zero_comm *comm, zero_request *request)
{
    if (!comm)
        return refuse_null("zero_comm_test");
    if (!request)
        return decline(comm, ZERO_E_INVALID, "zero_comm_test: the request is NULL");
    const zero_result result = coll_progress(comm->comm);
    if (result)
        return finish(comm, result);
    if (!coll_drained(comm->comm, inner(request)))
        return ZERO_AGAIN;
    return finish(comm, coll_drain(comm->comm, inner(request)));
}

/* ------------------------------------------------------------------ operations */

static const struct coll_span *inner_spans(const zero_span *spans)
{
    return (const struct coll_span *)(const void *)spans;
}

/** Elements, or bytes, in all spans: 0 only if there are none. */
static bool has_any(const zero_comm *comm, const zero_span *spans)
{
    for (int rank = 0; rank < coll_world(comm->comm); rank++)
        if (spans[rank].count > 0)
            return true;
    return false;
}

static bool is_dtype(zero_dtype dtype)
{
    return dtype >= ZERO_F32 && dtype <= ZERO_I64;
}

/** Waits for what a _start call has started. */
static zero_result wait_started(zero_comm *comm, zero_result started, zero_request *request)
{
    return started ? started : zero_comm_wait(comm, request);
}

zero_result zero_comm_barrier(zero_comm *comm)
{
    if (!comm)
        return refuse_null("zero_comm_barrier");
    return finish(comm, coll_barrier(comm->comm));
}

zero_result zero_comm_all_gather_start(zero_comm *comm, const void *source, void *recv,
                                       const zero_span *spans, zero_request *request)
{
    static const char call[] = "zero_comm_all_gather";
    if (!comm)
        return refuse_null(call);
    if (!spans || !request)
        return refuse(comm, call, "%s is NULL", spans ? "request" : "spans");
    if (!recv && has_any(comm, spans))
        return refuse(comm, call, "recv is NULL");
    // Where there are no bytes any address is as good; without one it is another operation.
    const struct coll_all_gather op = {
        .source = source, .recv = recv ? recv : comm, .spans = inner_spans(spans)};
    return finish(comm, coll_all_gather_start(comm->comm, &op, inner(request)));
}

zero_result zero_comm_all_gather(zero_comm *comm, const void *source, void *recv,
                                 const zero_span *spans)
{
    zero_request request = {{0}};
    return wait_started(comm, zero_comm_all_gather_start(comm, source, recv, spans, &request),
                        &request);
}

zero_result zero_comm_reduce_scatter_start(zero_comm *comm, const void *source, void *result,
                                           zero_dtype dtype, const zero_span *spans,
                                           zero_request *request)
{
    static const char call[] = "zero_comm_reduce_scatter";
    if (!comm)
        return refuse_null(call);
    if (!spans || !request)
        return refuse(comm, call, "%s is NULL", spans ? "request" : "spans");
    if (!is_dtype(dtype))
        return refuse(comm, call, "%d is no dtype", (int)dtype);
    if (!source && has_any(comm, spans))
        return refuse(comm, call, "source is NULL");
    // Where there are no elements any address is as good.
    const struct coll_reduce_scatter op = {.source = source ? source : comm,
                                           .dtype = dtype,
                                           .spans = inner_spans(spans),
                                           .accumulator = result,
                                           .contributors = coll_world(comm->comm),
                                           .store = true};
    return finish(comm, coll_reduce_scatter_start(comm->comm, &op, inner(request)));
}

zero_result zero_comm_reduce_scatter(zero_comm *comm, const void *source, void *result,
                                     zero_dtype dtype, const zero_span *spans)
{
    zero_request request = {{0}};
    return wait_started(
        comm, zero_comm_reduce_scatter_start(comm, source, result, dtype, spans, &request),
        &request);
}

zero_result zero_comm_all_reduce_start(zero_comm *comm, const void *source, void *result,
                                       size_t count, zero_dtype dtype, zero_op op,
                                       zero_request *request)
{
    static const char call[] = "zero_comm_all_reduce";
    if (!comm)
        return refuse_null(call);
    if (!is_dtype(dtype))
        return refuse(comm, call, "%d is no dtype", (int)dtype);
    if (op < ZERO_SUM || op > ZERO_MAX)
        return refuse(comm, call, "%d is no operation", (int)op);
    if (!request || (count > 0 && (!source || !result)))
        return refuse(comm, call, "source, result or request is NULL");
    const struct coll_all_reduce all_reduce = {
        .source = source, .result = result, .count = count, .dtype = dtype, .op = (enum coll_op)op};
    return finish(comm, coll_all_reduce_start(comm->comm, &all_reduce, inner(request)));
}

zero_result zero_comm_all_reduce(zero_comm *comm, const void *source, void *result, size_t count,
                                 zero_dtype dtype, zero_op op)
{
    zero_request request = {{0}};
    return wait_started(
        comm, zero_comm_all_reduce_start(comm, source, result, count, dtype, op, &request),
        &request);
}

/** Refuses a peer that is none, and bytes that are nowhere. */
static zero_result check_peer(zero_comm *comm, const char *call, const void *data, size_t bytes,
                              int32_t rank, const zero_request *request)
{
    if (rank < 0 || rank >= coll_world(comm->comm))
        return refuse(comm, call, "there is no rank %d, there are %d", (int)rank,
                      coll_world(comm->comm));
    if (!request || (bytes > 0 && !data))
        return refuse(comm, call, "%s is NULL", request ? "data" : "request");
    return ZERO_OK;
}

zero_result zero_comm_broadcast_start(zero_comm *comm, void *data, size_t bytes, int32_t root,
                                      zero_request *request)
{
    static const char call[] = "zero_comm_broadcast";
    if (!comm)
        return refuse_null(call);
    const zero_result refused = check_peer(comm, call, data, bytes, root, request);
    if (refused)
        return refused;
    const struct coll_bulk_broadcast op = {.data = data, .bytes = bytes, .root = root};
    return finish(comm, coll_broadcast_start(comm->comm, &op, inner(request)));
}

zero_result zero_comm_broadcast(zero_comm *comm, void *data, size_t bytes, int32_t root)
{
    zero_request request = {{0}};
    return wait_started(comm, zero_comm_broadcast_start(comm, data, bytes, root, &request),
                        &request);
}

zero_result zero_comm_all_to_all_start(zero_comm *comm, const void *source, const zero_span *send,
                                       void *recv, const zero_span *receive, zero_request *request)
{
    static const char call[] = "zero_comm_all_to_all";
    if (!comm)
        return refuse_null(call);
    if (!send || !receive || !request)
        return refuse(comm, call, "send, receive or request is NULL");
    if ((!source && has_any(comm, send)) || (!recv && has_any(comm, receive)))
        return refuse(comm, call, "%s is NULL", recv ? "source" : "recv");
    const struct coll_all_to_all op = {.source = source,
                                       .recv = recv,
                                       .send = inner_spans(send),
                                       .recv_spans = inner_spans(receive)};
    return finish(comm, coll_all_to_all_start(comm->comm, &op, inner(request)));
}

zero_result zero_comm_all_to_all(zero_comm *comm, const void *source, const zero_span *send,
                                 void *recv, const zero_span *receive)
{
    zero_request request = {{0}};
    return wait_started(
        comm, zero_comm_all_to_all_start(comm, source, send, recv, receive, &request), &request);
}

zero_result zero_comm_send_start(zero_comm *comm, const void *data, size_t bytes, int32_t to,
                                 zero_request *request)
{
    static const char call[] = "zero_comm_send";
    if (!comm)
        return refuse_null(call);
    const zero_result refused = check_peer(comm, call, data, bytes, to, request);
    if (refused)
        return refused;
    const struct coll_message op = {.data = (void *)(uintptr_t)data, .bytes = bytes, .peer = to};
    return finish(comm, coll_send_start(comm->comm, &op, inner(request)));
}

zero_result zero_comm_send(zero_comm *comm, const void *data, size_t bytes, int32_t to)
{
    zero_request request = {{0}};
    return wait_started(comm, zero_comm_send_start(comm, data, bytes, to, &request), &request);
}

zero_result zero_comm_receive_start(zero_comm *comm, void *data, size_t bytes, int32_t from,
                                    zero_request *request)
{
    static const char call[] = "zero_comm_receive";
    if (!comm)
        return refuse_null(call);
    const zero_result refused = check_peer(comm, call, data, bytes, from, request);
    if (refused)
        return refused;
    const struct coll_message op = {.data = data, .bytes = bytes, .peer = from};
    return finish(comm, coll_receive_start(comm->comm, &op, inner(request)));
}

zero_result zero_comm_receive(zero_comm *comm, void *data, size_t bytes, int32_t from)
{
    zero_request request = {{0}};
    return wait_started(comm, zero_comm_receive_start(comm, data, bytes, from, &request), &request);
}
