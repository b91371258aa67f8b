// Communicators of <zero/collectives.h>: they open and close, find the place in the job as
// zero_open() does, and keep messages. comm_operations.c has what they do.

#include "zero/api/public_comm.h"

#include "zero/api/open_close.h"
#include "zero/core/api_call.h"

#include "base/arena.h"
#include "base/fault.h"
#include "collectives/control/control.h"
#include "zero/core/stop.h"
#include "zero/model/versioned.h"

#include <stdarg.h>
#include <stdio.h>

/** What all communicators of a comm world have in common. */
struct eng_comm_world {
    struct eng_config config;
    struct control_segment *segment; /**< where zero-run looks; NULL: nowhere */
    zero_comm *comms;                /**< all of them, the root last */
    struct base_error error;         /**< the failure, or the last refusal */
    bool failed;
};

/* ------------------------------------------------------------------ errors */

zero_result eng_comm_refuse_null(const char *call)
{
    return zero_fail(eng_thread_error(), ZERO_E_INVALID, "%s: the communicator is NULL", call);
}

/** Keeps the message of the comm world's failure, if there is one, and logs it once. */
static void keep_failure(const zero_comm *comm)
{
    struct eng_comm_world *comm_world = comm->comm_world;
    struct base_error error = {0};
    if (comm_world->failed || coll_state(comm->comm, &error) == ZERO_OK)
        return;
    comm_world->failed = true;
    comm_world->error = error;
    eng_log_failure(&comm_world->config.log, "coll", error.message);
}

zero_result eng_comm_finish(const zero_comm *comm, zero_result result)
{
    if (result < ZERO_OK)
        keep_failure(comm);
    return result;
}

zero_result eng_comm_decline(zero_comm *comm, zero_result result, const char *message)
{
    struct eng_comm_world *comm_world = comm->comm_world;
    if (!comm_world->failed) {
        base_error_clear(&comm_world->error);
        zero_fail(&comm_world->error, result, "%s", message);
    }
    return result;
}

/** This rank will be missed: every rank's failure. */
static zero_result drop_out(zero_comm *comm, zero_result result, const char *message)
{
    coll_abort(comm->comm, result, message);
    return eng_comm_finish(comm, coll_state(comm->comm, NULL));
}

zero_result eng_comm_refuse(zero_comm *comm, const char *call, const char *format, ...)
{
    if (!comm)
        return eng_comm_refuse_null(call);
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
    return comm->comm_world->error.message;
}

/* ------------------------------------------------------------------ life */

static zero_result resolve(struct eng_comm_world *comm_world, const zero_comm_config *user,
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
    return eng_config_resolve(&comm_world->config, &config, error);
}

/** A communicator that is in the comm world's list; NULL without memory. */
static zero_comm *add_comm(struct eng_comm_world *comm_world, struct coll_comm *comm)
{
    zero_comm *added = base_calloc(1, sizeof *added);
    if (!added)
        return NULL;
    *added = (zero_comm){.comm_world = comm_world, .comm = comm, .next = comm_world->comms};
    comm_world->comms = added;
    return added;
}

/** Joins the other ranks, which have met if there is a mesh of them. */
static zero_result join(zero_comm *root, struct boot_mesh *mesh, struct base_error *error)
{
    const struct eng_comm_world *comm_world = root->comm_world;
    struct coll_config comm = eng_coll_config(&comm_world->config);
    if (comm_world->segment)
        comm.control = &comm_world->segment->ranks[comm_world->config.rank];
    comm.mesh = mesh->world ? mesh : NULL;
    return coll_open(&root->comm, &comm, error);
}

static zero_result open_root(zero_comm *root, const zero_comm_config *user,
                             struct base_error *error)
{
    struct eng_comm_world *comm_world = root->comm_world;
    struct boot_mesh mesh = {.world = 0};
    zero_result result = base_fault_check_environment(error);
    if (!result)
        result = resolve(comm_world, user, error);
    if (!result && comm_world->config.plan)
        result = zero_fail(error, ZERO_PLANNED, "a plan is made: there is no rank to join");
    const struct eng_config *config = &comm_world->config;
    if (!result && !config->team)
        result = control_attach(&comm_world->segment, config->rank, config->world, error);
    if (!result)
        result = eng_config_meet(&comm_world->config, eng_stop_requested, &mesh, error);
    if (!result)
        result = join(root, &mesh, error);
    boot_manager_leave(); // where this rank has failed before it met the others
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
    struct eng_comm_world *comm_world = base_calloc(1, sizeof *comm_world);
    zero_comm *root = comm_world ? add_comm(comm_world, NULL) : NULL;
    if (!root) {
        base_free(comm_world);
        return zero_fail(error, ZERO_E_NOMEM, "no memory for a communicator");
    }
    const zero_result result = open_root(root, config, error);
    if (result)
        zero_comm_close(root);
    else
        *comm = root;
    return result;
}

/** The root is the oldest of its comm_world. */
static bool is_root(const zero_comm *comm)
{
    return comm->next == NULL;
}

static void close_comm_world(zero_comm *root)
{
    struct eng_comm_world *comm_world = root->comm_world;
    coll_close(root->comm);
    while (comm_world->comms) {
        zero_comm *comm = comm_world->comms;
        comm_world->comms = comm->next;
        base_free(comm);
    }
    control_detach(comm_world->segment);
    base_free(comm_world);
}

void zero_comm_close(zero_comm *comm)
{
    if (!comm || (comm->comm && coll_in_child(comm->comm)))
        return;
    if (is_root(comm)) {
        close_comm_world(comm);
        return;
    }
    zero_comm **link = &comm->comm_world->comms;
    while (*link != comm)
        link = &(*link)->next;
    *link = comm->next;
    coll_close(comm->comm);
    base_free(comm);
}

zero_result zero_comm_split(zero_comm *comm, int32_t color, int32_t key, zero_comm **group)
{
    if (!comm)
        return eng_comm_refuse_null("zero_comm_split");
    if (!group)
        return eng_comm_refuse(comm, "zero_comm_split", "there is no place for the group");
    *group = NULL;
    struct coll_comm *made = NULL;
    struct base_error error = {0};
    const zero_result result = coll_split(comm->comm, color, key, &made, &error);
    if (result)
        return eng_comm_finish(comm, eng_comm_decline(comm, result, error.message));
    if (!made)
        return ZERO_OK;
    *group = add_comm(comm->comm_world, made);
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
        return eng_comm_refuse_null("zero_comm_alloc");
    if (!memory)
        return eng_comm_refuse(comm, "zero_comm_alloc", "there is no place for the address");
    *memory = NULL;
    if (!is_root(comm))
        return eng_comm_decline(comm, ZERO_E_INVALID,
                                "zero_comm_alloc: memory is the whole comm world's: ask "
                                "for it through the root");
    struct coll_arena *arena = NULL;
    struct base_error error = {0};
    const zero_result result = coll_arena_create(comm->comm, bytes, &arena, &error);
    if (result)
        return eng_comm_finish(comm, eng_comm_decline(comm, result, error.message));
    *memory = coll_arena_base(arena);
    return ZERO_OK;
}

const char *zero_comm_private_path(const zero_comm *comm)
{
    return comm ? coll_unregistered_path(comm->comm) : "";
}
