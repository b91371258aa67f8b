// The plan for people, rendered from its JSON: what is not there is not told.
#include "zero/plan/plan.h"
#include "zero/plan/plan_values.h"

#include "base/arena.h"
#include "base/text.h"

#include <assert.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

enum { ROOM = 32768 };

/* ------------------------------------------------------------------ choices */

static void write_model(struct base_text *text, const json_t *plan)
{
    eng_plan_line(text, plan, "plan of rank {rank} of {world}, stage {stage}");
    if (!eng_plan_is(plan, "name", ENG_CONTEXT_NAME))
        eng_plan_line(text, plan, ", context {name}");
    eng_plan_line(
        text, plan,
        "\n  model        {model.elements} elements, {model.tensors} tensors, {model.units} units, "
        "{model.groups} groups\n"
        "  layout       {model.granules} granules of {model.granule_elements} elements\n"
        "  micro-batches {choices.micro_batches} a step, at most {choices.micro_batches_per_rank} "
        "a rank");
    if (!eng_plan_is_true(plan, "choices.micro_batches_given"))
        eng_plan_line(text, plan, ": as many as ranks at first, as micro_batches is not set");
    eng_plan_line(text, plan, "\n  kernels      {choices.kernels}\n");
}

/** The two choices that decide what travels, and why. */
static void write_choices(struct base_text *text, const json_t *plan)
{
    const bool on_gpu =
        eng_plan_has(plan, "gpu") && !eng_plan_is(plan, "choices.update.by", "host");
    if (eng_plan_is(plan, "choices.gather", "none"))
        eng_plan_line(text, plan,
                      "  gather       nothing: at stage 0 every rank updates a copy of its own\n");
    else if (eng_plan_is(plan, "choices.gather", "shared"))
        eng_plan_line(
            text, plan,
            "  gather       shared: one copy for the host's {host.ranks_here} "
            "rank{+host.ranks_here}, updated in place (gather={config.gather.value}, transport "
            "{choices.transport})\n");
    else if (eng_plan_is(plan, "choices.gather", "slots"))
        eng_plan_line(
            text, plan,
            "  gather       slots: the host's {host.ranks_here} rank{+host.ranks_here} gather a "
            "unit together, into memory that all of them read (gather={config.gather.value}, "
            "transport {choices.transport})\n");
    else {
        eng_plan_line(text, plan,
                      "  gather       copy: every rank copies what others have updated "
                      "(gather={config.gather.value}");
        if (eng_plan_is(plan, "config.offload_params.value", "nvme"))
            eng_plan_line(text, plan, ", offload_params=nvme");
        else if (on_gpu)
            eng_plan_line(text, plan, ", state is on the device");
        eng_plan_line(text, plan, ")\n");
    }
    if (eng_plan_is(plan, "choices.reduction", "local"))
        eng_plan_line(
            text, plan,
            "  reduction    local: each rank adds up its own micro-batches; the same bits at "
            "{world} ranks only\n");
    else if (eng_plan_number(plan, "choices.sum_group") > 1)
        eng_plan_line(
            text, plan,
            "  reduction    canonical, blocks of {choices.sum_group} micro-batches first\n");
    else
        eng_plan_line(text, plan, "  reduction    canonical, in the order of the micro-batches\n");
}

/** What of gradients travels between hosts. */
static void write_between(struct base_text *text, const json_t *plan)
{
    const json_t *between = eng_plan_at(plan, "choices.between_hosts");
    if (!eng_plan_has(plan, "choices.between_hosts"))
        return;
    eng_plan_line(
        text, plan,
        eng_plan_is_true(between, "partial_sums")
            ? "  hosts        send one sum of each block of {choices.sum_group} micro-batches"
            : "  hosts        send the gradients of all their micro-batches");
    if (eng_plan_has(between, "gradient_bytes"))
        eng_plan_line(text, between, ", {~gradient_bytes} a step together");
    if (eng_plan_has(between, "reason"))
        eng_plan_line(text, between, " ({reason})");
    eng_plan_line(text, plan, "\n");
}

/** Who updates what is offloaded, and why. */
static void write_updater(struct base_text *text, const json_t *plan)
{
    if (!eng_plan_has(plan, "choices.update"))
        return;
    eng_plan_line(
        text, plan,
        "  update       by the {choices.update.by}: offload_update={config.offload_update.value}");
    if (eng_plan_has(plan, "choices.update.reason"))
        eng_plan_line(text, plan, ", {choices.update.reason}");
    eng_plan_line(text, plan, "\n");
}

/** What is kept, or travels, in fewer bits than the tensors ask for. */
static void write_precision(struct base_text *text, const json_t *plan)
{
    if (!eng_plan_is(plan, "config.comm_dtype.value", "default"))
        eng_plan_line(text, plan,
                      "  gradients    travel as {config.comm_dtype.value}, rounded to nearest\n");
    if (eng_plan_is(plan, "config.master.value", "none"))
        eng_plan_line(
            text, plan,
            "  weights      of bf16 and f16 tensors have no masters: rounded stochastically at "
            "every update\n");
    if (!eng_plan_is(plan, "config.moments.value", "f32"))
        eng_plan_line(
            text, plan,
            "  moments      {config.moments.value}, rounded stochastically at every update\n");
}

/** What is copied because the caller keeps buffers of its own, which no row has. */
static void write_borrowed(struct base_text *text, const json_t *plan)
{
    if (eng_plan_number(plan, "memory.borrowed.working_copies"))
        eng_plan_line(
            text, plan,
            "  borrow       {memory.borrowed.working_copies} bytes of working copies are copied to "
            "the caller's memory after an update\n");
    if (eng_plan_number(plan, "memory.borrowed.gradients"))
        eng_plan_line(
            text, plan,
            "  grad         {memory.borrowed.gradients} bytes of gradients are copied from the "
            "caller's memory in a micro-batch\n");
}

static void write_transport(struct base_text *text, const json_t *plan)
{
    const char *when =
        eng_plan_is(plan, "config.device_register.value", "on") ? "" : ", where all ranks can";
    if (eng_plan_has(plan, "choices.private_memory"))
        eng_plan_line(
            text, plan,
            "  transport    {choices.transport}, private memory: {choices.private_memory}");
    else if (eng_plan_has(plan, "choices.transport_reason"))
        eng_plan_line(text, plan, "  transport    {choices.transport}");
    if (eng_plan_has(plan, "choices.transport_reason"))
        eng_plan_line(text, plan, " ({choices.transport_reason})");
    if (eng_plan_has(plan, "choices.private_memory") ||
        eng_plan_has(plan, "choices.transport_reason"))
        eng_plan_line(text, plan, "\n");
    if (eng_plan_number(plan, "memory.huge_pages"))
        eng_plan_line(text, plan, "  huge pages   {~memory.huge_pages}\n");
    if (!eng_plan_is_true(plan, "gpu.registered"))
        return;
    base_text_add(text, "  GPU memory   registered by NCCL%s: ", when);
    eng_plan_line(text, plan, "device_register={config.device_register.value}\n");
}

/* ------------------------------------------------------------------ memory */

static void write_row(struct base_text *text, const char *title, const char *tier, uint64_t bytes)
{
    char size[32];
    base_text_add(text, "  %-34s %-6s %16" PRIu64 "  %s\n", title, tier, bytes,
                  eng_human(bytes, size));
}

/** The rows of an object of spreads. */
static void write_rows(struct base_text *text, const json_t *spreads,
                       const struct eng_plan_name *names, int count, const char *tier)
{
    assert(json_object_size(spreads) == (size_t)count); // a row for each
    for (int i = 0; i < count; i++)
        write_row(text, names[i].title, tier,
                  eng_plan_number(eng_plan_at(spreads, names[i].key), "bytes"));
}

static void write_memory(struct base_text *text, const json_t *plan)
{
    const json_t *memory = eng_plan_at(plan, "memory"), *host = eng_plan_at(memory, "tiers.host");
    struct eng_plan_name names[ENG_PURPOSES];
    memcpy(names, eng_purpose_names, sizeof names);
    if (eng_plan_is_true(memory, "working_copies_shared"))
        names[ENG_FOR_PARAMS].title = "working copies, shared by the host";
    if (eng_plan_is_true(memory, "gathered_units_shared"))
        names[ENG_FOR_GATHERED].title = "gathered units, shared by the host";
    base_text_add(text, "memory, bytes of this rank\n");
    write_rows(text, host, names, ENG_PURPOSES, "host");
    write_row(text, "total", "", eng_plan_number(memory, "total.bytes"));
    if (eng_plan_has(plan, "gpu")) {
        write_rows(text, eng_plan_at(memory, "tiers.gpu"), eng_gpu_names, ENG_GPU_PURPOSES, "gpu");
        write_row(text, "total", "gpu", eng_plan_number(plan, "gpu.rank_need.bytes"));
    }
    if (eng_plan_is(plan, "gpu.transport", "nccl"))
        base_text_add(text, "  %-34s %-6s %16s  %s\n", "NCCL's own buffers", "gpu", "unknown",
                      "before they are there, and not counted");
    write_row(text, "zero_save, from its first call on", "",
              eng_plan_number(memory, "zero_save.bytes"));
    write_row(text, "zero_load, while it loads", "", eng_plan_number(memory, "zero_load.bytes"));
    base_text_add(text, "at most, bytes of this rank\n");
    write_rows(text, eng_plan_at(memory, "peaks"), eng_peak_names, ENG_PEAKS, "host");
}

/* ------------------------------------------------------------------ files */

/** What moves it, and why not something better. */
static void write_io(struct base_text *text, const json_t *nvme)
{
    const char *engine = json_string_value(eng_plan_at(nvme, "engine"));
    eng_plan_line(text, nvme, engine ? "  io           {engine}" : "  io           {io}");
    if (eng_plan_has(nvme, "access"))
        eng_plan_line(text, nvme, ", {access}");
    eng_plan_line(text, nvme, "\n");
    if (eng_plan_has(nvme, "engine_passed")) {
        eng_plan_line(text, nvme, "  io=auto      has nothing better");
        if (eng_plan_has(nvme, "engine_passed_rank"))
            eng_plan_line(text, nvme, " on rank {engine_passed_rank}");
        eng_plan_line(text, nvme, ": {engine_passed}\n");
    }
    if (eng_plan_has(nvme, "engine_ranks"))
        eng_plan_line(text, nvme, "  io of ranks  {engine_ranks}\n");
    if (eng_plan_has(nvme, "lock_limit") && engine && strcmp(engine, "uring") == 0 &&
        eng_plan_number(nvme, "registers") > eng_plan_number(nvme, "lock_limit"))
        eng_plan_line(text, nvme,
                      "  locking      {~registers} by this host's ranks, of which a user may lock "
                      "{~lock_limit} (ulimit -l): not all of them will have it\n");
}

/** Whether tiles will be compressed, and why. */
static void write_compression(struct base_text *text, const json_t *nvme)
{
    const bool off = eng_plan_is(nvme, "compress", "off"),
               automatic = eng_plan_is(nvme, "compress", "auto");
    eng_plan_line(text, nvme, "  compress     {compress}");
    if (!off)
        eng_plan_line(text, nvme, ", by {helpers} thread{+helpers}");
    if (!eng_plan_has(nvme, "step_s"))
        eng_plan_line(text, nvme, automatic ? ": the first updates decide" : "");
    else if (off)
        eng_plan_line(text, nvme,
                      ": with it the disk would take about {compressed_disk_s} s, and compressing "
                      "{compress_s} s");
    else
        eng_plan_line(
            text, nvme,
            ": to {rates.compressed_to} of state's bytes, {~rates.compress_bytes_s} a second and "
            "thread: about {compress_s} s");
    if (eng_plan_has(nvme, "step_s") && automatic)
        eng_plan_line(text, nvme,
                      eng_plan_is_true(nvme, "compresses")
                          ? "; the first updates decide, most likely for it"
                          : "; the first updates decide, most likely against it");
    eng_plan_line(text, nvme, "\n");
}

/** What a step will take, beside whatever else it does. */
static void write_expectation(struct base_text *text, const json_t *nvme)
{
    if (!eng_plan_has(nvme, "step_s"))
        return;
    eng_plan_line(
        text, nvme,
        "  a step       {~read} read and {~written} written by all ranks: about {disk_s} s, as the "
        "disk moves {~rates.disk_bytes_s} a second\n");
    if (eng_plan_is_true(nvme, "compresses"))
        eng_plan_line(text, nvme, "  compressed   about {compressed_disk_s} s\n");
    if (eng_plan_number(nvme, "files.working_copies.read.sum"))
        eng_plan_line(
            text, nvme,
            "  of it        {~files.working_copies.read.sum} read of working copies, if each unit "
            "is gathered twice in a micro-batch\n");
    eng_plan_line(
        text, nvme,
        "  in memory    about {memory_s} s, as a rank copies {~rates.memory_bytes_s} a second when "
        "all of the host do\n");
    eng_plan_line(
        text, nvme,
        eng_plan_has(nvme, "rates.update_unknown")
            ? "  computing    not known: {rates.update_unknown}\n"
            : "  computing    about {compute_s} s, as a rank updates {~rates.update_bytes_s} of "
              "state a second in its caches when all do\n");
    eng_plan_line(
        text, nvme,
        "  expected     about {step_s} s a step, beside forward and backward; the limit is ");
    for (int i = 0; i < ENG_LIMITS; i++)
        if (eng_plan_is(nvme, "limit", eng_limit_names[i].key))
            base_text_add(text, "%s\n", eng_limit_names[i].title);
}

/** Whether working copies are there when they are gathered. */
static void write_prefetch(struct base_text *text, const json_t *nvme)
{
    const uint64_t units = eng_plan_number(nvme, "prefetch_units"),
                   needed = eng_plan_number(nvme, "prefetch_needed");
    if (needed == 0)
        return;
    eng_plan_line(text, nvme, "  prefetch     {prefetch_units} unit{+prefetch_units} ahead, ");
    eng_plan_line(text, nvme, units >= needed ? "enough" : "too few");
    eng_plan_line(
        text, nvme,
        ": one is read in about {prefetch_unit_s} s, and begins {rates.latency_s} s late");
    if (units < needed)
        eng_plan_line(text, nvme, "; prefetch_units={prefetch_needed} would be enough");
    eng_plan_line(text, nvme, "\n");
}

/** State in files: how much, where, and by what it moves. */
static void write_files(struct base_text *text, const json_t *plan)
{
    const json_t *nvme = eng_plan_at(plan, "memory.nvme");
    if (!eng_plan_has(plan, "memory.nvme"))
        return;
    base_text_add(text, "on NVMe, bytes of this rank\n");
    for (int i = 0; i < ENG_FILES; i++) {
        const json_t *bytes =
            eng_plan_at(eng_plan_at(eng_plan_at(nvme, "files"), eng_file_names[i].key), "bytes");
        if (eng_plan_number(bytes, "sum") > 0)
            write_row(text, eng_file_names[i].title, "nvme", eng_plan_number(bytes, "bytes"));
    }
    eng_plan_line(text, nvme, "  directory    {directory}");
    if (eng_plan_has(nvme, "found")) {
        eng_plan_line(text, nvme, ": {~bytes_here} for all ranks");
        eng_plan_line(text, nvme,
                      eng_plan_number(plan, "host.ranks_here") < eng_plan_number(plan, "world")
                          ? " of this host"
                          : "");
        eng_plan_line(text, nvme, ", {~found} free");
    }
    eng_plan_line(
        text, nvme,
        "\n  tiles        {tiles} of at most {~tile_bytes}, {buffers} of them in memory at once");
    if (eng_plan_has(nvme, "pages"))
        eng_plan_line(text, nvme, ", in {pages}");
    eng_plan_line(text, nvme, "\n");
    write_io(text, nvme);
    write_compression(text, nvme);
    write_expectation(text, nvme);
    write_prefetch(text, nvme);
    eng_plan_line(text, nvme, "  recovery     a finished step survives the death of all processes");
    eng_plan_line(text, nvme,
                  eng_plan_is(nvme, "recovery", "durable") ? ", and a power cut\n" : "\n");
}

/* ------------------------------------------------------------------ what there is */

/** Says whether a host or a GPU has what is needed. */
static void write_verdict(struct base_text *text, const json_t *place)
{
    const bool known = eng_plan_has(place, "fits"), has_reason = eng_plan_has(place, "reason");
    eng_plan_line(text, place, "  fits         ");
    eng_plan_line(text, place,
                  known        ? eng_plan_is_true(place, "fits") ? "yes" : "no"
                  : has_reason ? "unknown"
                               : "not checked: memory_limit=off");
    eng_plan_line(text, place, has_reason ? ": {reason}\n" : "\n");
}

static void write_host(struct base_text *text, const json_t *plan)
{
    const json_t *host = eng_plan_at(plan, "host");
    const json_t *worst = eng_plan_at(eng_plan_at(plan, "memory.peaks"),
                                      json_string_value(eng_plan_at(host, "need_at")));
    assert(worst && eng_plan_number(host, "ranks_here") <= eng_plan_number(host, "ranks"));
    eng_plan_line(text, host, "the host's {ranks_here} ");
    if (eng_plan_number(host, "ranks_here") < eng_plan_number(host, "ranks"))
        eng_plan_line(text, host, "of {ranks} ");
    eng_plan_line(text, host, "rank{+ranks} together\n  need         {~need_here}");
    if (eng_plan_number(host, "ranks") > 1)
        eng_plan_line(text, worst, ", each from {~min} to {~max} (rank {largest_rank})");
    eng_plan_line(text, host, "\n");
    if (eng_plan_has(host, "uneven"))
        eng_plan_line(text, host,
                      "  hosts        have {uneven.least_ranks} to {uneven.most_ranks} ranks: "
                      "{~uneven.least_need} with {uneven.least_ranks}, {~uneven.most_need} with "
                      "{uneven.most_ranks}\n");
    if (eng_plan_has(host, "limited_by"))
        eng_plan_line(text, host, "  memory       {~left} left of {~limit}: {limited_by}\n");
    write_verdict(text, host);
}

/** Whether this rank's GPU has what is needed there. */
static void write_gpu(struct base_text *text, const json_t *plan)
{
    const json_t *gpu = eng_plan_at(plan, "gpu");
    if (!eng_plan_has(plan, "gpu"))
        return;
    eng_plan_line(text, gpu,
                  "the GPU of this rank\n  need         {~need} by {ranks} rank{+ranks}");
    if (eng_plan_number(plan, "world") > 1)
        eng_plan_line(text, gpu,
                      ", each rank of all from {~rank_need.min} to {~rank_need.max} "
                      "(rank {rank_need.largest_rank})");
    eng_plan_line(text, gpu, "\n");
    if (eng_plan_has(gpu, "memory_total"))
        eng_plan_line(text, gpu, "  memory       {~memory_free} free of {~memory_total}\n");
    write_verdict(text, gpu);
    eng_plan_line(
        text, gpu,
        "  not counted  what NCCL, cuBLAS and other libraries take there, and the program "
        "itself\n");
}

static void write_slots(struct base_text *text, const char *what, const json_t *classes)
{
    for (size_t c = 0; c < json_array_size(classes); c++) {
        const json_t *slots = json_array_get(classes, c);
        base_text_add(text, "  %-18s %3d", what, (int)eng_plan_number(slots, "slots"));
        eng_plan_line(text, slots, " of {~bytes} for {units} units\n");
    }
}

static void write_config(struct base_text *text, const json_t *config)
{
    const char *key;
    json_t *entry;
    assert(json_object_size(config) > 0);
    base_text_add(text, "configuration\n");
    json_object_foreach((json_t *)(uintptr_t)config, key, entry) base_text_add(
        text, "  %-18s %-16s (%s)\n", key, json_string_value(eng_plan_at(entry, "value")),
        json_string_value(eng_plan_at(entry, "source")));
}

char *eng_plan_text(const json_t *plan)
{
    struct base_text text = {base_calloc(ROOM, 1), ROOM, 0};
    assert(json_is_object(plan));
    if (!text.bytes)
        return NULL;
    write_model(&text, plan);
    write_choices(&text, plan);
    write_between(&text, plan);
    write_updater(&text, plan);
    write_precision(&text, plan);
    write_borrowed(&text, plan);
    write_transport(&text, plan);
    write_memory(&text, plan);
    write_files(&text, plan);
    write_host(&text, plan);
    write_gpu(&text, plan);
    base_text_add(&text, "slots\n");
    write_slots(&text, "gathered units", eng_plan_at(plan, "slots.gathered_units"));
    write_slots(&text, "gradients", eng_plan_at(plan, "slots.gradients"));
    write_slots(&text, "gradient sums", eng_plan_at(plan, "slots.gradient_sums"));
    write_config(&text, eng_plan_at(plan, "config"));
    return text.bytes;
}
