// Recovery points: what one has beside tiles, and how a job goes on from one. Where records are
// kept, and which one ranks agree on, is the store's affair.

#include "zero/snapshot/recovery_point.h"
#include "zero/core/api_call.h"
#include "zero/link/publish.h"
#include "zero/param/gather_slots.h"
#include "zero/snapshot/snapshot.h"
#include "zero/step/batch_size.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

/** Room for what is attached after the commit. */
enum { LATER_BYTES = 65536 };

/** A record begins with it; then come hyper-parameters and whether it is frozen of each group, and
 * the blobs. */
struct head {
    uint64_t step, updates, skips, clean_steps, blobs, seed;
    double loss_scale;
    int32_t micro_batches, reserved;
};

struct blob_head {
    char name[ENG_BLOB_NAME];
    uint64_t bytes, of_rank;
};

/** A record ends with it; records that earlier libraries have written have none. */
struct tail {
    uint64_t magic;
    struct ckpt_run_id own, loaded; /**< see struct eng_runs; without any loaded own twice */
};

#define TAIL_MAGIC UINT64_C(0x6e75722d6f72657a) /* "zero-run" */

/* ------------------------------------------------------------------ writing */

/** Bytes of all blobs but the one called `without`, if there is one; NULL: of all. */
static size_t blob_bytes(const zero_ctx *z, const char *without)
{
    size_t bytes = 0;
    for (size_t i = 0; i < eng_blob_count(z); i++) {
        const struct eng_blob *blob = &z->saving.blobs->list[i];
        if (!without || strcmp(blob->name, without) != 0)
            bytes += sizeof(struct blob_head) + (size_t)blob->bytes;
    }
    return bytes;
}

static size_t fixed_bytes(const zero_ctx *z)
{
    return sizeof(struct head) + z->model.group_count * (sizeof(zero_hyper) + sizeof(uint64_t));
}

static size_t record_bytes(const zero_ctx *z)
{
    return fixed_bytes(z) + blob_bytes(z, NULL) + LATER_BYTES;
}

zero_result eng_point_attach(zero_ctx *z, const char *name, uint64_t bytes)
{
    const size_t room = z->store->records->room(z);
    const size_t others = fixed_bytes(z) + blob_bytes(z, name) + sizeof(struct tail);
    assert(room >= others);
    const size_t left = room - others, head = sizeof(struct blob_head);
    if (left >= head && bytes <= left - head)
        return ZERO_OK;
    base_error_clear(&z->error);
    return zero_fail(&z->error, ZERO_E_LIMIT,
                     "zero_attach: %s has %" PRIu64 " bytes, and %zu to describe it; recovery "
                     "points have room for %zu more: attach what is larger before zero_commit()",
                     name, bytes, head, left);
}

static unsigned char *append(unsigned char *to, const void *from, size_t bytes)
{
    if (bytes > 0)
        memcpy(to, from, bytes);
    return to + bytes;
}

/** Writes what decides the future beside tensors; returns its size. */
static size_t write_record(const zero_ctx *z, unsigned char *record)
{
    const struct head head = {
        .step = z->step,
        .updates = z->updates,
        .skips = z->stepping.result.skips,
        .clean_steps = z->stepping.scale.clean,
        .blobs = eng_blob_count(z),
        .seed = z->config.seed,
        .loss_scale = z->stepping.scale.value,
        .micro_batches = z->config.micro_batches,
    };
    unsigned char *at = append(record, &head, sizeof head);
    for (size_t g = 0; g < z->model.group_count; g++) {
        const uint64_t frozen = z->model.groups[g].frozen;
        at = append(at, &z->stepping.hyper[g], sizeof z->stepping.hyper[g]);
        at = append(at, &frozen, sizeof frozen);
    }
    for (size_t i = 0; i < eng_blob_count(z); i++) {
        const struct eng_blob *blob = &z->saving.blobs->list[i];
        struct blob_head described = {.bytes = blob->bytes, .of_rank = blob->scope == ZERO_OF_RANK};
        memcpy(described.name, blob->name, sizeof described.name);
        at = append(at, &described, sizeof described);
        at = append(at, blob->memory, (size_t)blob->bytes);
    }
    const struct tail tail = {TAIL_MAGIC, z->saving.runs.own,
                              z->saving.runs.count > 0 ? z->saving.runs.loaded[0].id
                                                       : z->saving.runs.own};
    at = append(at, &tail, sizeof tail);
    assert((size_t)(at - record) == fixed_bytes(z) + blob_bytes(z, NULL) + sizeof tail);
    return (size_t)(at - record);
}

/* ------------------------------------------------------------------ coming back */

static struct head head_of(const unsigned char *record)
{
    struct head head;
    memcpy(&head, record, sizeof head);
    return head;
}

static uint64_t record_step(const unsigned char *record)
{
    return head_of(record).step;
}

/** Reads the blobs, or, unless `install`, only looks whether they are the ones attached here. */
static zero_result read_blobs(const zero_ctx *z, const unsigned char *record, bool install,
                              struct base_error *error)
{
    const char *path = z->store->records->point(z).path;
    const uint64_t count = head_of(record).blobs;
    const unsigned char *at = record + fixed_bytes(z);
    if (count != eng_blob_count(z))
        return zero_fail(error, ZERO_E_INVALID,
                         "%s has %" PRIu64 " attached blobs, and here there are %zu", path, count,
                         eng_blob_count(z));
    for (uint64_t i = 0; i < count; i++) {
        struct blob_head head;
        memcpy(&head, at, sizeof head);
        at += sizeof head;
        const struct eng_blob *blob = eng_blob_find(z, head.name, head.of_rank != 0);
        if (!blob || blob->bytes != head.bytes)
            return zero_fail(error, ZERO_E_INVALID,
                             "%s has a blob %s of %" PRIu64 " bytes; here %" PRIu64 " are attached",
                             path, head.name, head.bytes, blob ? blob->bytes : 0);
        if (install)
            memcpy(blob->memory, at, (size_t)head.bytes);
        at += head.bytes;
    }
    return ZERO_OK;
}

/** Makes the record's moment, and what is attached, this context's. */
static zero_result install_record(zero_ctx *z, const unsigned char *record,
                                  struct base_error *error)
{
    const struct head head = head_of(record);
    const unsigned char *at = record + sizeof head;
    struct base_tables tables = {0};
    struct eng_moment moment;
    eng_moment_lay(z, &moment, &tables);
    if (tables.failed) {
        base_tables_free(&tables);
        return zero_fail(error, ZERO_E_NOMEM, "no memory for the state of %zu groups",
                         z->model.group_count);
    }
    eng_moment_take(z, (struct base_hash128){0, 0}, &moment);
    moment.step = head.step;
    moment.updates = head.updates;
    moment.skips = head.skips;
    moment.scale.value = head.loss_scale;
    moment.scale.clean = head.clean_steps;
    for (size_t g = 0; g < z->model.group_count; g++) {
        uint64_t frozen;
        memcpy(&moment.hyper[g], at, sizeof moment.hyper[g]);
        at += sizeof moment.hyper[g];
        memcpy(&frozen, at, sizeof frozen);
        at += sizeof frozen;
        moment.frozen[g] = frozen != 0;
    }
    assert(at == record + fixed_bytes(z));
    eng_moment_install(z, &moment);
    base_tables_free(&tables);
    z->config.seed = head.seed; // which a checkpoint may have brought
    return read_blobs(z, record, true, error);
}

zero_result eng_point_recover(zero_ctx *z, const char *call, bool *changed)
{
    const unsigned char *record = z->store->records->point(z).record;
    const int32_t micro_batches = head_of(record).micro_batches;
    struct base_error error = {0};
    read_blobs(z, record, false, &error);
    zero_result r = eng_slots_settle(z);
    if (!r)
        r = eng_publish_finish(z, true);
    // When all have agreed, no rank reads a peer's weights any more.
    if (!r)
        r = eng_agree_on_file(z, &error, call);
    if (!r && micro_batches != z->config.micro_batches)
        r = eng_batch_change(z, micro_batches, call);
    if (r)
        return r;
    *changed = true;
    if (!z->store->records->take_point(z, &error))
        install_record(z, z->store->records->point(z).record, &error);
    r = eng_agree_on_file(z, &error, call);
    return r ? r : eng_publish_all(z);
}

bool eng_point_take_run(zero_ctx *z)
{
    const struct eng_point point = z->store->records->point(z);
    const size_t before = fixed_bytes(z) + blob_bytes(z, NULL);
    struct tail tail;
    if (point.bytes < before + sizeof tail)
        return false;
    memcpy(&tail, point.record + before, sizeof tail);
    if (tail.magic != TAIL_MAGIC)
        return false;
    eng_runs_loaded(z, &tail.loaded, false, NULL, 0);
    eng_runs_continue(z, &tail.own);
    return true;
}

const struct eng_record_content eng_point_content = {
    .bytes = record_bytes,
    .write = write_record,
    .step = record_step,
};
