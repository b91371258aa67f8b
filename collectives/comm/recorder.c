// What the flight recorder is told about operations.

#include "base/kernels/sum.h"
#include "collectives/comm/comm_internal.h"
#include "collectives/comm/signature.h"
#include "collectives/control/control.h"

#include <assert.h>
#include <string.h>

_Static_assert(sizeof((struct control_record *)0)->kind == COLL_KIND_BYTES, "a kind has its place");
_Static_assert(sizeof((struct control_record *)0)->comm <= COLL_NAME_BYTES, "so has a name's part");

static void label_record(struct control_record *record, const struct coll_label *label)
{
    if (label->what && !strcmp(label->what, "unit"))
        record->unit = label->number;
    if (label->name)
        control_copy_name(record->name, sizeof record->name, label->name);
}

static void describe_message(const struct coll_comm *comm, const struct coll_message *op,
                             struct control_record *record)
{
    record->bytes = op->bytes;
    record->peer = (uint16_t)coll_root_rank(comm, op->peer);
    label_record(record, &op->label);
}

/** Bytes and label, which each kind has in a place of its own. */
static void describe(const struct coll_comm *comm, const struct coll_request *request,
                     struct control_record *record)
{
    assert(request->kind > COLL_NONE && request->kind < COLL_KINDS);
    switch ((enum coll_kind)request->kind) {
    case COLL_ALL_GATHER:
        record->bytes = request->op.all_gather.spans[comm->rank].count;
        label_record(record, &request->op.all_gather.label);
        break;
    case COLL_REDUCE_SCATTER:
        record->bytes = request->op.reduce_scatter.spans[comm->rank].count *
                        base_dtype_bytes(request->op.reduce_scatter.dtype);
        label_record(record, &request->op.reduce_scatter.label);
        break;
    case COLL_ALL_REDUCE_BULK:
        record->bytes =
            request->op.all_reduce.count * base_dtype_bytes(request->op.all_reduce.dtype);
        label_record(record, &request->op.all_reduce.label);
        break;
    case COLL_BROADCAST_BULK:
        record->bytes = request->op.broadcast.bytes;
        label_record(record, &request->op.broadcast.label);
        break;
    case COLL_ALL_TO_ALL:
        for (int rank = 0; rank < comm->world; rank++)
            record->bytes += request->op.all_to_all.send[rank].count;
        label_record(record, &request->op.all_to_all.label);
        break;
    case COLL_SEND:
    case COLL_RECEIVE:
        describe_message(comm, &request->op.message, record);
        break;
    case COLL_EXCHANGE:
    case COLL_ALL_REDUCE:
    case COLL_BROADCAST:
    case COLL_BARRIER:
        record->bytes = ((const struct coll_small *)request)->bytes;
        break;
    case COLL_NONE:
    case COLL_KINDS:
        break;
    }
}

void coll_record_begin(const struct coll_comm *comm, struct coll_request *request)
{
    assert(request->comm == comm);
    request->record = 0;
    if (!comm->comm_world->control)
        return;
    struct control_record record = {
        .sequence = request->sequence,
        .what = CONTROL_OPERATION,
        .peer = CONTROL_NO_PEER,
        .unit = CONTROL_NO_UNIT,
        .ranks = (uint32_t)comm->world,
        .first = (uint32_t)coll_root_rank(comm, 0),
    };
    // Whole fields at once: what is read in words soon is best written so.
    memcpy(record.kind, coll_kind_name(request->kind), sizeof record.kind);
    memcpy(record.comm, comm->name, sizeof record.comm);
    describe(comm, request, &record);
    request->record = control_begin(comm->comm_world->control, &record);
}

void coll_record_end(const struct coll_comm *comm, const struct coll_request *request)
{
    control_end(comm->comm_world->control, request->record);
}
