#include "zero/param/frozen.h"
#include "zero/snapshot/snapshot.h"

#include <assert.h>
#include <math.h>

void eng_moment_lay(const zero_ctx *z, struct eng_moment *moment, struct base_tables *tables)
{
    const size_t groups = z->model.group_count;
    *moment = (struct eng_moment){
        .hyper = base_tables_add(tables, groups, sizeof *moment->hyper),
        .frozen = base_tables_add(tables, groups, sizeof *moment->frozen),
    };
}

void eng_moment_take(const zero_ctx *z, struct base_hash128 blobs, struct eng_moment *moment)
{
    moment->step = z->step;
    moment->updates = z->updates;
    moment->skips = z->stepping.result.skips;
    moment->micro_batches = z->config.micro_batches;
    moment->scale = z->stepping.scale;
    moment->blobs = blobs;
    for (size_t g = 0; g < z->model.group_count; g++) {
        moment->hyper[g] = z->stepping.hyper[g];
        moment->frozen[g] = z->model.groups[g].frozen;
    }
}

void eng_moment_install(zero_ctx *z, const struct eng_moment *moment)
{
    assert(z->micro.index < 0);
    if (z->stepping.scale.dynamic) {
        z->stepping.scale.value = moment->scale.value;
        z->stepping.scale.clean = moment->scale.clean;
    }
    z->step = moment->step;
    z->updates = moment->updates;
    z->stepping.stepped = moment->step > 0;
    z->stepping.result = (zero_step_result){
        .step = moment->step,
        .updates = moment->updates,
        .norm = NAN,
        .clip = NAN,
        .bad_param = -1,
        .bad_rank = -1,
        .loss_scale = moment->scale.value,
        .skips = moment->skips,
    };
    for (size_t g = 0; g < z->model.group_count; g++) {
        z->stepping.hyper[g] = moment->hyper[g];
        z->model.groups[g].frozen = moment->frozen[g];
    }
    eng_frozen_refresh(z);
}
