#include "zero/plan/plan.h"

#include "base/arena.h"

#include <assert.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

const struct eng_plan_name eng_purpose_names[ENG_PURPOSES] = {
    [ENG_FOR_PARAMS] = {"working copies", "working_copies"},
    [ENG_FOR_GATHERED] = {"gathered units", "gathered_units"},
    [ENG_FOR_GRADIENTS] = {"gradients", "gradients"},
    [ENG_FOR_SUMS] = {"gradient sums", "gradient_sums"},
    [ENG_FOR_BLOCKS] = {"unfinished blocks of sums", "unfinished_blocks"},
    [ENG_FOR_PARTIAL_SUMS] = {"sums for other hosts", "partial_sums"},
    [ENG_FOR_WINDOWS] = {"windows", "windows"},
    [ENG_FOR_MOMENTS] = {"moments", "moments"},
    [ENG_FOR_MASTERS] = {"master weights", "master_weights"},
    [ENG_FOR_TILES] = {"tiles of state on NVMe", "tiles"},
    [ENG_FOR_PARAM_STRIPS] = {"buffers of working copies on NVMe", "working_copy_buffers"},
    [ENG_FOR_SUM_STRIPS] = {"buffers of sums on NVMe", "sum_buffers"},
    [ENG_FOR_BOUNCE] = {"buffers of state on the GPU", "bounce_buffers"},
    [ENG_FOR_TABLES] = {"tables", "tables"},
    [ENG_FOR_TRANSPORT] = {"transport", "transport"},
    [ENG_FOR_SAVING] = {"saving", "saving"},
};

const struct eng_plan_name eng_gpu_names[ENG_GPU_PURPOSES] = {
    [ENG_GPU_PARAMS] = {"working copies", "working_copies"},
    [ENG_GPU_GATHERED] = {"gathered units", "gathered_units"},
    [ENG_GPU_GRADIENTS] = {"gradients", "gradients"},
    [ENG_GPU_RECEIVED] = {"gradients of other ranks", "received"},
    [ENG_GPU_SUMS] = {"gradient sums", "gradient_sums"},
    [ENG_GPU_BLOCKS] = {"unfinished blocks of sums", "unfinished_blocks"},
    [ENG_GPU_MOMENTS] = {"moments", "moments"},
    [ENG_GPU_MASTERS] = {"master weights", "master_weights"},
    [ENG_GPU_TILES] = {"tiles of state on their way", "tiles"},
    [ENG_GPU_TABLES] = {"tables", "tables"},
};

const struct eng_plan_name eng_peak_names[ENG_PEAKS] = {
    [ENG_PEAK_COMMIT] = {"zero_commit", "commit"},
    [ENG_PEAK_STEP] = {"a step", "step"},
    [ENG_PEAK_SAVE] = {"zero_export", "save"},
    [ENG_PEAK_LOAD] = {"zero_import", "load"},
};

const struct eng_plan_name eng_file_names[ENG_FILES] = {
    [ENG_FILE_STATE] = {"moments and master weights, twice", "state"},
    [ENG_FILE_PARAMS] = {"working copies", "working_copies"},
    [ENG_FILE_SUMS] = {"gradient sums", "gradient_sums"},
};

const struct eng_plan_name eng_limit_names[ENG_LIMITS] = {
    [ENG_LIMIT_DISK] = {"the disk", "disk"},
    [ENG_LIMIT_MEMORY] = {"memory", "memory"},
    [ENG_LIMIT_COMPUTE] = {"computing", "compute"},
    [ENG_LIMIT_CODEC] = {"compression", "compression"},
};

struct eng_need eng_need_place(const struct eng_placement *placement)
{
    return (struct eng_need){
        .rows =
            {
                [ENG_FOR_PARAMS] = placement->params_part,
                [ENG_FOR_GATHERED] = placement->gather_part,
                [ENG_FOR_GRADIENTS] = placement->grads.bytes,
                [ENG_FOR_SUMS] = placement->sums_part + placement->sums.bytes,
                [ENG_FOR_BLOCKS] = placement->blocks_bytes,
                [ENG_FOR_WINDOWS] = placement->windows_bytes,
                [ENG_FOR_MOMENTS] = placement->moments_bytes,
                [ENG_FOR_MASTERS] = placement->masters_bytes,
            },
    };
}

size_t eng_need_total(const struct eng_need *need)
{
    size_t total = 0;
    for (int i = 0; i < ENG_PURPOSES; i++)
        total += need->rows[i];
    return total;
}

zero_result eng_plan_begin(struct eng_plan *plan, int world, struct base_error *error)
{
    assert(world >= 1);
    *plan = (struct eng_plan){.world = world};
    plan->ranks = base_calloc((size_t)world, sizeof *plan->ranks);
    plan->gpu_ranks = base_calloc((size_t)world, sizeof *plan->gpu_ranks);
    if (!plan->ranks || !plan->gpu_ranks)
        return zero_fail(error, ZERO_E_NOMEM, "no memory for the plan of %d ranks", world);
    return ZERO_OK;
}

static void add_rank(struct eng_spread *spread, int rank, size_t bytes, bool mine)
{
    if (rank == 0 || bytes < spread->least)
        spread->least = bytes;
    if (rank == 0 || bytes > spread->most) {
        spread->most = bytes;
        spread->largest = rank;
    }
    spread->sum += bytes;
    assert(spread->least <= spread->most && spread->largest <= rank);
    if (mine)
        spread->mine = bytes;
}

static void add_files(struct eng_plan *plan, int rank, const struct eng_need *need, bool mine)
{
    uint64_t bytes = 0;
    for (int i = 0; i < ENG_FILES; i++) {
        const struct eng_file_needs *file = &need->files[i];
        add_rank(&plan->files[i].bytes, rank, file->bytes, mine);
        add_rank(&plan->files[i].read, rank, file->read, mine);
        add_rank(&plan->files[i].written, rank, file->written, mine);
        bytes += file->bytes;
    }
    add_rank(&plan->in_files, rank, bytes, mine);
}

void eng_plan_add(struct eng_plan *plan, int rank, const struct eng_need *need, bool mine)
{
    assert(rank >= 0 && rank < plan->world);
    for (int i = 0; i < ENG_PURPOSES; i++)
        add_rank(&plan->rows[i], rank, need->rows[i], mine);
    for (int i = 0; i < ENG_GPU_PURPOSES; i++) {
        add_rank(&plan->gpu[i], rank, need->gpu[i], mine);
        plan->gpu_ranks[rank] += need->gpu[i];
    }
    add_rank(&plan->gpu_total, rank, plan->gpu_ranks[rank], mine);
    add_rank(&plan->total, rank, need->total, mine);
    add_rank(&plan->saving, rank, need->saving, mine);
    add_rank(&plan->loading, rank, need->loading, mine);
    add_files(plan, rank, need, mine);
    for (int i = 0; i < ENG_PEAKS; i++) {
        add_rank(&plan->peaks[i], rank, need->peaks[i], mine);
        if (need->peaks[i] > plan->ranks[rank])
            plan->ranks[rank] = need->peaks[i];
    }
}

void eng_plan_moves(const struct eng_plan *plan, uint64_t *read, uint64_t *written)
{
    *read = *written = 0;
    for (int i = 0; i < ENG_FILES; i++) {
        *read += plan->files[i].read.sum;
        *written += plan->files[i].written.sum;
    }
}

/** Finds which of the things that go on side by side takes longest. */
static void find_limit(struct eng_expectation *expected)
{
    const double seconds[ENG_LIMITS] = {
        [ENG_LIMIT_DISK] = expected->compresses ? expected->encoded_s : expected->disk_s,
        [ENG_LIMIT_MEMORY] = expected->memory_s,
        [ENG_LIMIT_COMPUTE] = expected->compute_s,
        [ENG_LIMIT_CODEC] = expected->compresses ? expected->codec_s : 0,
    };
    for (int i = 0; i < ENG_LIMITS; i++)
        if (seconds[i] > seconds[expected->limit])
            expected->limit = (enum eng_limit)i;
    expected->step_s = seconds[expected->limit];
}

bool eng_plan_expects(const struct eng_plan *plan, const struct eng_config *config,
                      struct eng_expectation *expected)
{
    const struct eng_plan_disk *disk = &plan->disk;
    const struct eng_plan_file *state = &plan->files[ENG_FILE_STATE];
    uint64_t read, written;
    *expected = (struct eng_expectation){.compresses = strcmp(config->compress, "on") == 0};
    if (disk->disk_rate <= 0 || disk->memory_rate <= 0)
        return false;
    eng_plan_moves(plan, &read, &written);
    // The host's ranks share the disk; each updates its own, and has its own threads and helpers.
    const double moved = (double)eng_plan_of_host(plan, state->read.sum + state->written.sum);
    const double largest = (double)(state->read.most + state->written.most);
    expected->disk_s = (double)eng_plan_of_host(plan, read + written) / disk->disk_rate;
    expected->memory_s = largest / disk->memory_rate;
    expected->compute_s = disk->update.unknown ? 0 : largest / disk->update.bytes_s;
    expected->encoded_s = expected->disk_s - moved * (1 - disk->codec.ratio) / disk->disk_rate;
    expected->codec_s = largest / (disk->codec.bytes_s * eng_config_codec_threads(config));
    if (strcmp(config->compress, "auto") == 0)
        expected->compresses = expected->disk_s > fmax(expected->memory_s, expected->compute_s) &&
                               fmax(expected->encoded_s, expected->codec_s) < expected->disk_s;
    find_limit(expected);
    return true;
}

static const double most_waited = 0.05;

int eng_plan_prefetch(const struct eng_plan *plan, const struct eng_config *config, size_t units,
                      double *unit_s)
{
    const struct eng_plan_disk *disk = &plan->disk;
    const uint64_t bytes = eng_plan_of_host(plan, plan->files[ENG_FILE_PARAMS].bytes.sum);
    *unit_s = 0;
    if (disk->read_rate <= 0 || units == 0 || bytes == 0)
        return 0;
    *unit_s = (double)bytes / (double)units / disk->read_rate;
    // With n of them under way one comes every n-th of the time that it takes.
    const double ahead = (*unit_s + disk->latency_s) / (*unit_s * (1 + most_waited));
    const int under_way = (int)fmin(fmax(ceil(ahead), 1), 1e6);
    assert(under_way >= 1);
    int needed = under_way;
    while (needed - eng_config_posted(config, needed) < under_way)
        needed++;
    return needed;
}

int eng_plan_ranks_here(const struct eng_plan *plan)
{
    return plan->fit.host_ranks ? plan->fit.host_ranks : plan->world;
}

uint64_t eng_plan_of_host(const struct eng_plan *plan, uint64_t all)
{
    const uint64_t world = (uint64_t)plan->world, here = (uint64_t)eng_plan_ranks_here(plan);
    assert(here >= 1 && here <= world);
    return here == world ? all : (all + world - 1) / world * here;
}

enum eng_peak eng_plan_worst(const struct eng_plan *plan)
{
    enum eng_peak worst = ENG_PEAK_STEP;
    for (int i = 0; i < ENG_PEAKS; i++)
        if (plan->peaks[i].sum > plan->peaks[worst].sum)
            worst = (enum eng_peak)i;
    return worst;
}

zero_result eng_plan_write(struct eng_plan *plan, const struct eng_plan_facts *facts,
                           struct base_error *error)
{
    json_t *description = eng_plan_describe(plan, facts);
    char *json = description ? eng_plan_json(description) : NULL;
    char *text = json ? eng_plan_text(description) : NULL;
    json_decref(description);
    if (!text || !json) {
        base_free(text);
        base_free(json);
        return zero_fail(error, ZERO_E_NOMEM, "no memory for the plan's text");
    }
    base_free(plan->text);
    base_free(plan->json);
    plan->text = text;
    plan->json = json;
    return ZERO_OK;
}

void eng_plan_free(struct eng_plan *plan)
{
    base_free(plan->ranks);
    base_free(plan->gpu_ranks);
    base_free(plan->text);
    base_free(plan->json);
    memset(plan, 0, sizeof *plan);
}

uint64_t eng_plan_registers(const struct eng_plan *plan)
{
    return eng_plan_of_host(plan, plan->rows[ENG_FOR_TILES].sum +
                                      plan->rows[ENG_FOR_PARAM_STRIPS].sum +
                                      plan->rows[ENG_FOR_SUM_STRIPS].sum);
}
