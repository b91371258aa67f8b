// Where the state is, for the thread that writes it.

#include "zero/core/addresses.h"
#include "zero/model/ranges.h"
#include "zero/snapshot/snapshot.h"

#include <assert.h>

bool eng_own_run(const struct eng_layout *layout, const struct eng_slice *slice, int rank,
                 struct ckpt_run *run)
{
    const struct eng_range own = eng_range_of_owner(layout, slice, rank);
    if (own.count == 0)
        return false;
    *run = (struct ckpt_run){
        .tensor = (uint32_t)slice->param,
        .slice = (uint32_t)slice->index,
        .first = eng_range_first(&own),
        .count = own.count,
    };
    return true;
}

struct ckpt_saver_load eng_save_load(const zero_ctx *z, int rank)
{
    struct ckpt_saver_load load = {.blobs = ENG_MAX_BLOBS};
    for (size_t i = 0; i < z->layout.slice_count; i++) {
        const struct eng_slice *slice = &z->layout.slices[i];
        struct ckpt_run run;
        if (!eng_own_run(&z->layout, slice, rank, &run))
            continue;
        const int fields = eng_state_fields(z, slice->param);
        load.sources++;
        load.blocks += (size_t)ckpt_block_count(run.first, run.count) * (size_t)fields;
        for (int f = 0; f < fields; f++)
            load.bytes += run.count * eng_dtype_size(eng_state_dtype(z, slice->param, f));
    }
    for (size_t i = 0; i < eng_blob_count(z); i++)
        load.blob_bytes += (size_t)z->saving.blobs->list[i].bytes;
    return load;
}

/** Fields of a run in this rank's memory, or at addresses of its device. */
static struct ckpt_source source_of(const zero_ctx *z, const struct eng_slice *slice,
                                    const struct ckpt_run *run)
{
    const struct eng_param *param = &z->model.params[slice->param];
    const struct eng_optimizer *optimizer = z->model.groups[param->group].optimizer;
    struct ckpt_source source = {.run = *run, .fields = eng_state_fields(z, slice->param)};
    for (int f = 0; f < source.fields; f++) {
        const bool never_negative = f > 0 && (optimizer->never_negative >> (f - 1) & 1);
        if (!z->store->records->kept)
            source.field[f] = eng_state_memory(z, slice, f, run->first);
        source.code[f] = ckpt_block_code_of(eng_state_dtype(z, slice->param, f), never_negative);
    }
    return source;
}

void eng_sources_lay(struct eng_sources *sources, size_t count, struct base_tables *tables)
{
    *sources = (struct eng_sources){
        .list = base_tables_add(tables, count, sizeof *sources->list),
        .slice = base_tables_add(tables, count, sizeof *sources->slice),
    };
}

void eng_sources_fill(const zero_ctx *z, struct eng_sources *sources)
{
    for (size_t i = 0; i < z->layout.slice_count; i++) {
        const struct eng_slice *slice = &z->layout.slices[i];
        struct ckpt_run run;
        if (!eng_own_run(&z->layout, slice, z->config.rank, &run))
            continue;
        sources->slice[sources->count] = slice;
        sources->list[sources->count++] = source_of(z, slice, &run);
    }
    assert(sources->count == eng_save_load(z, z->config.rank).sources);
}
