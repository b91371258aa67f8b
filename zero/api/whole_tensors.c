#include "zero/api/whole_tensors.h"
#include "checkpoint/safetensors/safetensors.h"
#include "zero/core/api_call.h"
#include "zero/core/context.h"
#include "zero/link/publish.h"
#include "zero/param/gather_slots.h"
#include "zero/step/micro_batch.h"
#include "zero/store/master_weights.h"

#include "base/arena.h"
#include "base/text.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define CHUNK_ELEMENTS ((size_t)64 * BASE_GRANULE)

/** What a tensor's entry takes while a header is formatted or parsed: the JSON's tree and text.
 * Measured with names of 20 bytes: 1,100 bytes with one dimension, 1,350 with eight. */
enum { ENTRY_BYTES = 1536 };

size_t eng_export_bytes(const zero_ctx *z, int rank)
{
    const size_t table = z->model.param_count * (2 * sizeof(struct ckpt_tensor) + ENTRY_BYTES);
    return CHUNK_ELEMENTS * sizeof(float) + (rank == 0 ? table + CKPT_WRITER_BYTES : 0);
}

size_t eng_import_bytes(const zero_ctx *z)
{
    return z->model.param_count *
           (sizeof(struct ckpt_tensor) + ENTRY_BYTES + 3 * sizeof(struct ckpt_tensor *));
}

static zero_result check_call(zero_ctx *z, const char *path, const char *call)
{
    if (!path || !*path)
        return eng_fail(z, ZERO_E_INVALID, "%s needs a path", call);
    return eng_between_steps(z, call);
}

/* ------------------------------------------------------------------ export */

struct export
{
    struct ckpt_safetensors_writer *writer; /**< rank 0 only */
    struct base_error error;                /**< rank 0's; the others go on sending */
    float *chunk;
};

/** Sends one chunk of a slice to rank 0, which writes it. */
static zero_result export_chunk(zero_ctx *z, struct export *job, const struct eng_slice *slice,
                                size_t first, size_t *count)
{
    const size_t at = slice->granule * BASE_GRANULE + first;
    const int owner = eng_layout_owner(&z->layout, slice->bucket, at, count);
    assert(*count > 0 && *count <= CHUNK_ELEMENTS && (!job->writer || z->config.rank == 0));
    const struct eng_part part = {.slice = slice, .first = first, .count = *count};
    struct base_error error = {0};
    if (owner == z->config.rank && eng_values_get(z, &part, job->chunk, &error))
        return eng_fail_from(z, &error);
    const zero_result r = coll_broadcast(z->comm, job->chunk, *count * sizeof(float), owner);
    if (r)
        return eng_comm_failed(z, r);
    const size_t place = (size_t)slice->index * slice->numel + first;
    if (job->writer && !job->error.result)
        ckpt_safetensors_write(job->writer, (size_t)slice->param, place, *count, job->chunk,
                               &job->error);
    return ZERO_OK;
}

static zero_result export_tensors(zero_ctx *z, struct export *job)
{
    for (size_t p = 0; p < z->model.param_count; p++)
        for (int32_t i = 0; i < z->model.params[p].slice_count; i++) {
            const struct eng_slice *slice =
                eng_layout_slice(&z->layout, &z->model, (zero_param)p, i);
            size_t count;
            for (size_t at = 0; at < slice->numel; at += count) {
                const size_t left = slice->numel - at;
                count = left < CHUNK_ELEMENTS ? left : CHUNK_ELEMENTS;
                const zero_result r = export_chunk(z, job, slice, at, &count);
                if (r)
                    return r;
            }
        }
    return ZERO_OK;
}

static void open_writer(zero_ctx *z, struct export *job, const char *path)
{
    struct ckpt_tensor *table = base_calloc(z->model.param_count, sizeof *table);
    if (!table) {
        zero_fail(&job->error, ZERO_E_NOMEM, "no memory for a table of %zu tensors",
                  z->model.param_count);
        return;
    }
    for (size_t p = 0; p < z->model.param_count; p++) {
        const struct eng_param *param = &z->model.params[p];
        table[p] =
            (struct ckpt_tensor){.name = param->name, .dtype = CKPT_F32, .ndim = param->ndim};
        memcpy(table[p].shape, param->shape, sizeof param->shape);
    }
    ckpt_safetensors_create(&job->writer, path, table, z->model.param_count, NULL, &job->error);
    base_free(table);
}

static zero_result export_model(zero_ctx *z, const char *path)
{
    zero_result r = check_call(z, path, "zero_export");
    if (r)
        return r;
    struct export job = {.chunk = base_calloc(CHUNK_ELEMENTS, sizeof(float))};
    if (!job.chunk)
        zero_fail(&job.error, ZERO_E_NOMEM, "no memory for %zu elements", CHUNK_ELEMENTS);
    else if (z->config.rank == 0)
        open_writer(z, &job, path);
    r = eng_agree_on_file(z, &job.error, "zero_export");
    if (r)
        goto out;
    r = export_tensors(z, &job);
    if (r)
        goto out;
    if (job.writer && !job.error.result) {
        ckpt_safetensors_finish(job.writer, &job.error);
        job.writer = NULL;
    }
    r = eng_agree_on_file(z, &job.error, "zero_export");
out:
    ckpt_safetensors_abort(job.writer);
    base_free(job.chunk);
    return r;
}

zero_result zero_export(zero_ctx *z, const char *path)
{
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_export");
    if (!r)
        r = export_model(z, path);
    return eng_leave(z, r);
}

/* ------------------------------------------------------------------ import */

struct import {
    const char *path;
    struct ckpt_safetensors *file;
    const struct ckpt_tensor **tensors; /**< one a tensor of the model */
};

static const struct ckpt_tensor *find_tensor(const struct ckpt_safetensors *file, const char *name,
                                             const char *prefix)
{
    char full[512];
    const struct ckpt_tensor *found = ckpt_safetensors_find(file, name);
    if (found || !prefix)
        return found;
    const int length = snprintf(full, sizeof full, "%s%s", prefix, name);
    return length > 0 && (size_t)length < sizeof full ? ckpt_safetensors_find(file, full) : NULL;
}

/** Finds every tensor of the model in the file, with the shape it must have. */
static zero_result match_tensors(const zero_ctx *z, struct import *job, const char *path,
                                 const char *prefix, struct base_error *error)
{
    job->tensors = base_calloc(z->model.param_count, sizeof *job->tensors);
    if (!job->tensors)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for a table of %zu tensors",
                         z->model.param_count);
    for (size_t p = 0; p < z->model.param_count; p++) {
        const struct eng_param *param = &z->model.params[p];
        const struct ckpt_tensor *found = find_tensor(job->file, param->name, prefix);
        if (!found)
            return zero_fail(error, ZERO_E_INVALID, "%s has no tensor %s", path, param->name);
        if (found->dtype == CKPT_OTHER)
            return zero_fail(error, ZERO_E_INVALID, "%s: %s is neither F32 nor BF16 nor F16", path,
                             param->name);
        bool same = found->ndim == param->ndim;
        for (int i = 0; same && i < param->ndim; i++)
            same = found->shape[i] == param->shape[i];
        char there[BASE_SHAPE_BYTES], here[BASE_SHAPE_BYTES];
        if (!same)
            return zero_fail(error, ZERO_E_INVALID,
                             "%s: %s has another shape: %s there, %s in this model", path,
                             param->name, base_shape_text(found->shape, found->ndim, there),
                             base_shape_text(param->shape, param->ndim, here));
        job->tensors[p] = found;
    }
    return ZERO_OK;
}

static zero_result read_tensor(const zero_ctx *z, void *user, const struct eng_slice *slice,
                               uint64_t first, uint64_t count, float *out, struct base_error *error)
{
    const struct import *job = user;
    assert(first + count <= slice->numel);
    const zero_result r =
        ckpt_safetensors_read_f32(job->file, job->tensors[slice->param],
                                  (uint64_t)slice->index * slice->numel + first, count, out, error);
    return r ? r
             : eng_values_fit(z, z->model.params[slice->param].dtype, slice, first, count, out,
                              job->path, error);
}

/** Reads what no sums keep. From here on there is no way back: a failure is fatal, on all ranks at
 * once. */
static zero_result write_values(zero_ctx *z, struct import *job)
{
    struct base_error error = {0};
    eng_values_write(z, ENG_CHANGE, read_tensor, job, &error);
    const zero_result r = eng_agree_on_file(z, &error, "zero_import");
    return r ? eng_fail_agreed(z, r, "%s", z->error.message) : ZERO_OK;
}

static zero_result import_model(zero_ctx *z, const char *path, const char *prefix)
{
    zero_result r = check_call(z, path, "zero_import");
    if (r)
        return r;
    // Reading may go to the sums, scratch between steps, which peers may still read.
    r = eng_sums_reclaim(z);
    if (r)
        return r;
    struct import job = {.path = path};
    struct base_error error = {0};
    r = ckpt_safetensors_open(&job.file, path, &error);
    if (!r)
        r = match_tensors(z, &job, path, prefix, &error);
    if (!r && !eng_values_read(z, read_tensor, &job, &error))
        eng_values_try_frozen(z, read_tensor, &job, &error);
    r = eng_slots_settle(z);
    if (!r)
        r = eng_publish_finish(z, true);
    if (!r)
        r = eng_agree_on_file(z, &error, "zero_import");
    if (!r)
        r = write_values(z, &job);
    if (!r)
        r = eng_values_install(z, ENG_CHANGE);
    base_free(job.tensors);
    ckpt_safetensors_close(job.file);
    return r;
}

zero_result zero_import(zero_ctx *z, const char *path, const char *prefix)
{
    zero_result r = eng_enter(z, ENG_AFTER_COMMIT, "zero_import");
    if (!r)
        r = import_model(z, path, prefix);
    return eng_leave(z, r);
}
