// The plan for people, rendered from its JSON: what is not there is not told.
#include "zero/plan/plan.h"

#include "base/arena.h"
#include "base/text.h"

#include <assert.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

enum { ROOM = 32768, PATH_BYTES = 64 };

const char *eng_human(uint64_t bytes, char out[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 10240 && unit < 4) {
        value /= 1024;
        unit++;
    }
    snprintf(out, 32, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return out;
}

/* ------------------------------------------------------------------ values */

/** What is at "a.b.c", which may be null; NULL: there is no such thing. */
static const json_t *at(const json_t *object, const char *path)
{
    char key[PATH_BYTES];
    while (object && *path) {
        const size_t length = strcspn(path, ".");
        assert(length > 0 && length < sizeof key);
        snprintf(key, sizeof key, "%.*s", (int)length, path);
        object = json_object_get(object, key);
        path += length + (path[length] == '.');
    }
    return object;
}

static bool has(const json_t *object, const char *path)
{
    const json_t *value = at(object, path);
    return value && !json_is_null(value);
}

static bool is_true(const json_t *object, const char *path)
{
    return json_is_true(at(object, path));
}

/** 0: it is null. */
static uint64_t number(const json_t *object, const char *path)
{
    const json_t *value = at(object, path);
    assert(value && (json_is_integer(value) || json_is_null(value)));
    return (uint64_t)json_integer_value(value);
}

static bool is(const json_t *object, const char *path, const char *text)
{
    const char *value = json_string_value(at(object, path));
    return value && strcmp(value, text) == 0;
}

static void add_value(struct base_text *text, const json_t *object, const char *path)
{
    const json_t *value = at(object, path + (*path == '~' || *path == '+'));
    char bytes[32];
    assert(value && !json_is_null(value)); // a line is of what is there
    assert(json_is_number(value) || (*path != '~' && *path != '+'));
    if (*path == '~')
        base_text_add(text, "%s", eng_human((uint64_t)json_number_value(value), bytes));
    else if (*path == '+')
        base_text_add(text, "%s", json_integer_value(value) == 1 ? "" : "s");
    else if (json_is_string(value))
        base_text_add(text, "%s", json_string_value(value));
    else if (json_is_real(value))
        base_text_add(text, "%.3g", json_real_value(value));
    else
        base_text_add(text, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
}

/** Appends what `line` says: "{a.b}" stands for the value there, "{~a.b}" for so many bytes, and
 * "{+a.b}" for an s unless the value is 1. */
static void add(struct base_text *text, const json_t *object, const char *line)
{
    char path[PATH_BYTES];
    for (const char *open; (open = strchr(line, '{')) != NULL;) {
        const size_t length = strcspn(open + 1, "}");
        assert(length < sizeof path && open[1 + length] == '}');
        snprintf(path, sizeof path, "%.*s", (int)length, open + 1);
        base_text_add(text, "%.*s", (int)(open - line), line);
        add_value(text, object, path);
        line = open + 1 + length + 1;
    }
    base_text_add(text, "%s", line);
}

/* ------------------------------------------------------------------ choices */

static void write_model(struct base_text *text, const json_t *plan)
{
    add(text, plan, "plan of rank {rank} of {world}, stage {stage}");
    if (!is(plan, "name", ENG_CONTEXT_NAME))
        add(text, plan, ", context {name}");
    add(text, plan,
        "\n  model        {model.elements} elements, {model.tensors} tensors, {model.units} units, "
        "{model.groups} groups\n"
        "  layout       {model.granules} granules of {model.granule_elements} elements\n"
        "  micro-batches {choices.micro_batches} a step, at most {choices.micro_batches_per_rank} "
        "a rank");
    if (!is_true(plan, "choices.micro_batches_given"))
        add(text, plan, ": as many as ranks at first, as micro_batches is not set");
    add(text, plan, "\n  kernels      {choices.kernels}\n");
}

/** The two choices that decide what travels, and why. */
static void write_choices(struct base_text *text, const json_t *plan)
{
    const bool on_gpu = has(plan, "gpu") && !is(plan, "choices.update.by", "host");
    if (is(plan, "choices.gather", "none"))
        add(text, plan,
            "  gather       nothing: at stage 0 every rank updates a copy of its own\n");
    else if (is(plan, "choices.gather", "shared"))
        add(text, plan,
            "  gather       shared: one copy for the host's {host.ranks_here} "
            "rank{+host.ranks_here}, updated in place (gather={config.gather.value}, transport "
            "{choices.transport})\n");
    else if (is(plan, "choices.gather", "slots"))
        add(text, plan,
            "  gather       slots: the host's {host.ranks_here} rank{+host.ranks_here} gather a "
            "unit together, into memory that all of them read (gather={config.gather.value}, "
            "transport {choices.transport})\n");
    else {
        add(text, plan,
            "  gather       copy: every rank copies what others have updated "
            "(gather={config.gather.value}");
        if (is(plan, "config.offload_params.value", "nvme"))
            add(text, plan, ", offload_params=nvme");
        else if (on_gpu)
            add(text, plan, ", state is on the device");
        add(text, plan, ")\n");
    }
    if (is(plan, "choices.reduction", "local"))
        add(text, plan,
            "  reduction    local: each rank adds up its own micro-batches; the same bits at "
            "{world} ranks only\n");
    else if (number(plan, "choices.sum_group") > 1)
        add(text, plan,
            "  reduction    canonical, blocks of {choices.sum_group} micro-batches first\n");
    else
        add(text, plan, "  reduction    canonical, in the order of the micro-batches\n");
}

/** What of gradients travels between hosts. */
static void write_between(struct base_text *text, const json_t *plan)
{
    const json_t *between = at(plan, "choices.between_hosts");
    if (!has(plan, "choices.between_hosts"))
        return;
    add(text, plan,
        is_true(between, "partial_sums")
            ? "  hosts        send one sum of each block of {choices.sum_group} micro-batches"
            : "  hosts        send the gradients of all their micro-batches");
    if (has(between, "gradient_bytes"))
        add(text, between, ", {~gradient_bytes} a step together");
    if (has(between, "reason"))
        add(text, between, " ({reason})");
    add(text, plan, "\n");
}

/** Who updates what is offloaded, and why. */
static void write_updater(struct base_text *text, const json_t *plan)
{
    if (!has(plan, "choices.update"))
        return;
    add(text, plan,
        "  update       by the {choices.update.by}: offload_update={config.offload_update.value}");
    if (has(plan, "choices.update.reason"))
        add(text, plan, ", {choices.update.reason}");
    add(text, plan, "\n");
}

/** What is kept, or travels, in fewer bits than the tensors ask for. */
static void write_precision(struct base_text *text, const json_t *plan)
{
    if (!is(plan, "config.comm_dtype.value", "default"))
        add(text, plan, "  gradients    travel as {config.comm_dtype.value}, rounded to nearest\n");
    if (is(plan, "config.master.value", "none"))
        add(text, plan,
            "  weights      of bf16 and f16 tensors have no masters: rounded stochastically at "
            "every update\n");
    if (!is(plan, "config.moments.value", "f32"))
        add(text, plan,
            "  moments      {config.moments.value}, rounded stochastically at every update\n");
}

/** What is copied because the caller keeps buffers of its own, which no row has. */
static void write_borrowed(struct base_text *text, const json_t *plan)
{
    if (number(plan, "memory.borrowed.working_copies"))
        add(text, plan,
            "  borrow       {memory.borrowed.working_copies} bytes of working copies are copied to "
            "the caller's memory after an update\n");
    if (number(plan, "memory.borrowed.gradients"))
        add(text, plan,
            "  grad         {memory.borrowed.gradients} bytes of gradients are copied from the "
            "caller's memory in a micro-batch\n");
}

static void write_transport(struct base_text *text, const json_t *plan)
{
    const char *when =
        is(plan, "config.device_register.value", "on") ? "" : ", where all ranks can";
    if (has(plan, "choices.private_memory"))
        add(text, plan,
            "  transport    {choices.transport}, private memory: {choices.private_memory}");
    else if (has(plan, "choices.transport_reason"))
        add(text, plan, "  transport    {choices.transport}");
    if (has(plan, "choices.transport_reason"))
        add(text, plan, " ({choices.transport_reason})");
    if (has(plan, "choices.private_memory") || has(plan, "choices.transport_reason"))
        add(text, plan, "\n");
    if (number(plan, "memory.huge_pages"))
        add(text, plan, "  huge pages   {~memory.huge_pages}\n");
    if (!is_true(plan, "gpu.registered"))
        return;
    base_text_add(text, "  GPU memory   registered by NCCL%s: ", when);
    add(text, plan, "device_register={config.device_register.value}\n");
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
        write_row(text, names[i].title, tier, number(at(spreads, names[i].key), "bytes"));
}

static void write_memory(struct base_text *text, const json_t *plan)
{
    const json_t *memory = at(plan, "memory"), *host = at(memory, "tiers.host");
    struct eng_plan_name names[ENG_PURPOSES];
    memcpy(names, eng_purpose_names, sizeof names);
    if (is_true(memory, "working_copies_shared"))
        names[ENG_FOR_PARAMS].title = "working copies, shared by the host";
    if (is_true(memory, "gathered_units_shared"))
        names[ENG_FOR_GATHERED].title = "gathered units, shared by the host";
    base_text_add(text, "memory, bytes of this rank\n");
    write_rows(text, host, names, ENG_PURPOSES, "host");
    write_row(text, "total", "", number(memory, "total.bytes"));
    if (has(plan, "gpu")) {
        write_rows(text, at(memory, "tiers.gpu"), eng_gpu_names, ENG_GPU_PURPOSES, "gpu");
        write_row(text, "total", "gpu", number(plan, "gpu.rank_need.bytes"));
    }
    if (is(plan, "gpu.transport", "nccl"))
        base_text_add(text, "  %-34s %-6s %16s  %s\n", "NCCL's own buffers", "gpu", "unknown",
                      "before they are there, and not counted");
    write_row(text, "zero_save, from its first call on", "", number(memory, "zero_save.bytes"));
    write_row(text, "zero_load, while it loads", "", number(memory, "zero_load.bytes"));
    base_text_add(text, "at most, bytes of this rank\n");
    write_rows(text, at(memory, "peaks"), eng_peak_names, ENG_PEAKS, "host");
}

/* ------------------------------------------------------------------ files */

/** What moves it, and why not something better. */
static void write_io(struct base_text *text, const json_t *nvme)
{
    const char *engine = json_string_value(at(nvme, "engine"));
    add(text, nvme, engine ? "  io           {engine}" : "  io           {io}");
    if (has(nvme, "access"))
        add(text, nvme, ", {access}");
    add(text, nvme, "\n");
    if (has(nvme, "engine_passed")) {
        add(text, nvme, "  io=auto      has nothing better");
        if (has(nvme, "engine_passed_rank"))
            add(text, nvme, " on rank {engine_passed_rank}");
        add(text, nvme, ": {engine_passed}\n");
    }
    if (has(nvme, "engine_ranks"))
        add(text, nvme, "  io of ranks  {engine_ranks}\n");
    if (has(nvme, "lock_limit") && engine && strcmp(engine, "uring") == 0 &&
        number(nvme, "registers") > number(nvme, "lock_limit"))
        add(text, nvme,
            "  locking      {~registers} by this host's ranks, of which a user may lock "
            "{~lock_limit} (ulimit -l): not all of them will have it\n");
}

/** Whether tiles will be compressed, and why. */
static void write_compression(struct base_text *text, const json_t *nvme)
{
    const bool off = is(nvme, "compress", "off"), automatic = is(nvme, "compress", "auto");
    add(text, nvme, "  compress     {compress}");
    if (!off)
        add(text, nvme, ", by {helpers} thread{+helpers}");
    if (!has(nvme, "step_s"))
        add(text, nvme, automatic ? ": the first updates decide" : "");
    else if (off)
        add(text, nvme,
            ": with it the disk would take about {compressed_disk_s} s, and compressing "
            "{compress_s} s");
    else
        add(text, nvme,
            ": to {rates.compressed_to} of state's bytes, {~rates.compress_bytes_s} a second and "
            "thread: about {compress_s} s");
    if (has(nvme, "step_s") && automatic)
        add(text, nvme,
            is_true(nvme, "compresses") ? "; the first updates decide, most likely for it"
                                        : "; the first updates decide, most likely against it");
    add(text, nvme, "\n");
}

/** What a step will take, beside whatever else it does. */
static void write_expectation(struct base_text *text, const json_t *nvme)
{
    if (!has(nvme, "step_s"))
        return;
    add(text, nvme,
        "  a step       {~read} read and {~written} written by all ranks: about {disk_s} s, as the "
        "disk moves {~rates.disk_bytes_s} a second\n");
    if (is_true(nvme, "compresses"))
        add(text, nvme, "  compressed   about {compressed_disk_s} s\n");
    if (number(nvme, "files.working_copies.read.sum"))
        add(text, nvme,
            "  of it        {~files.working_copies.read.sum} read of working copies, if each unit "
            "is gathered twice in a micro-batch\n");
    add(text, nvme,
        "  in memory    about {memory_s} s, as a rank copies {~rates.memory_bytes_s} a second when "
        "all of the host do\n");
    add(text, nvme,
        has(nvme, "rates.update_unknown")
            ? "  computing    not known: {rates.update_unknown}\n"
            : "  computing    about {compute_s} s, as a rank updates {~rates.update_bytes_s} of "
              "state a second in its caches when all do\n");
    add(text, nvme,
        "  expected     about {step_s} s a step, beside forward and backward; the limit is ");
    for (int i = 0; i < ENG_LIMITS; i++)
        if (is(nvme, "limit", eng_limit_names[i].key))
            base_text_add(text, "%s\n", eng_limit_names[i].title);
}

/** Whether working copies are there when they are gathered. */
static void write_prefetch(struct base_text *text, const json_t *nvme)
{
    const uint64_t units = number(nvme, "prefetch_units"), needed = number(nvme, "prefetch_needed");
    if (needed == 0)
        return;
    add(text, nvme, "  prefetch     {prefetch_units} unit{+prefetch_units} ahead, ");
    add(text, nvme, units >= needed ? "enough" : "too few");
    add(text, nvme,
        ": one is read in about {prefetch_unit_s} s, and begins {rates.latency_s} s late");
    if (units < needed)
        add(text, nvme, "; prefetch_units={prefetch_needed} would be enough");
    add(text, nvme, "\n");
}

/** State in files: how much, where, and by what it moves. */
static void write_files(struct base_text *text, const json_t *plan)
{
    const json_t *nvme = at(plan, "memory.nvme");
    if (!has(plan, "memory.nvme"))
        return;
    base_text_add(text, "on NVMe, bytes of this rank\n");
    for (int i = 0; i < ENG_FILES; i++) {
        const json_t *bytes = at(at(at(nvme, "files"), eng_file_names[i].key), "bytes");
        if (number(bytes, "sum") > 0)
            write_row(text, eng_file_names[i].title, "nvme", number(bytes, "bytes"));
    }
    add(text, nvme, "  directory    {directory}");
    if (has(nvme, "found")) {
        add(text, nvme, ": {~bytes_here} for all ranks");
        add(text, nvme,
            number(plan, "host.ranks_here") < number(plan, "world") ? " of this host" : "");
        add(text, nvme, ", {~found} free");
    }
    add(text, nvme,
        "\n  tiles        {tiles} of at most {~tile_bytes}, {buffers} of them in memory at once");
    if (has(nvme, "pages"))
        add(text, nvme, ", in {pages}");
    add(text, nvme, "\n");
    write_io(text, nvme);
    write_compression(text, nvme);
    write_expectation(text, nvme);
    write_prefetch(text, nvme);
    add(text, nvme, "  recovery     a finished step survives the death of all processes");
    add(text, nvme, is(nvme, "recovery", "durable") ? ", and a power cut\n" : "\n");
}

/* ------------------------------------------------------------------ what there is */

/** Says whether a host or a GPU has what is needed. */
static void write_verdict(struct base_text *text, const json_t *place)
{
    const bool known = has(place, "fits"), has_reason = has(place, "reason");
    add(text, place, "  fits         ");
    add(text, place,
        known        ? is_true(place, "fits") ? "yes" : "no"
        : has_reason ? "unknown"
                     : "not checked: memory_limit=off");
    add(text, place, has_reason ? ": {reason}\n" : "\n");
}

static void write_host(struct base_text *text, const json_t *plan)
{
    const json_t *host = at(plan, "host");
    const json_t *worst = at(at(plan, "memory.peaks"), json_string_value(at(host, "need_at")));
    assert(worst && number(host, "ranks_here") <= number(host, "ranks"));
    add(text, host, "the host's {ranks_here} ");
    if (number(host, "ranks_here") < number(host, "ranks"))
        add(text, host, "of {ranks} ");
    add(text, host, "rank{+ranks} together\n  need         {~need_here}");
    if (number(host, "ranks") > 1)
        add(text, worst, ", each from {~min} to {~max} (rank {largest_rank})");
    add(text, host, "\n");
    if (has(host, "uneven"))
        add(text, host,
            "  hosts        have {uneven.least_ranks} to {uneven.most_ranks} ranks: "
            "{~uneven.least_need} with {uneven.least_ranks}, {~uneven.most_need} with "
            "{uneven.most_ranks}\n");
    if (has(host, "limited_by"))
        add(text, host, "  memory       {~left} left of {~limit}: {limited_by}\n");
    write_verdict(text, host);
}

/** Whether this rank's GPU has what is needed there. */
static void write_gpu(struct base_text *text, const json_t *plan)
{
    const json_t *gpu = at(plan, "gpu");
    if (!has(plan, "gpu"))
        return;
    add(text, gpu, "the GPU of this rank\n  need         {~need} by {ranks} rank{+ranks}");
    if (number(plan, "world") > 1)
        add(text, gpu,
            ", each rank of all from {~rank_need.min} to {~rank_need.max} "
            "(rank {rank_need.largest_rank})");
    add(text, gpu, "\n");
    if (has(gpu, "memory_total"))
        add(text, gpu, "  memory       {~memory_free} free of {~memory_total}\n");
    write_verdict(text, gpu);
    add(text, gpu,
        "  not counted  what NCCL, cuBLAS and other libraries take there, and the program "
        "itself\n");
}

static void write_slots(struct base_text *text, const char *what, const json_t *classes)
{
    for (size_t c = 0; c < json_array_size(classes); c++) {
        const json_t *slots = json_array_get(classes, c);
        base_text_add(text, "  %-18s %3d", what, (int)number(slots, "slots"));
        add(text, slots, " of {~bytes} for {units} units\n");
    }
}

static void write_config(struct base_text *text, const json_t *config)
{
    const char *key;
    json_t *entry;
    assert(json_object_size(config) > 0);
    base_text_add(text, "configuration\n");
    json_object_foreach((json_t *)(uintptr_t)config, key, entry)
        base_text_add(text, "  %-18s %-16s (%s)\n", key, json_string_value(at(entry, "value")),
                      json_string_value(at(entry, "source")));
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
    write_slots(&text, "gathered units", at(plan, "slots.gathered_units"));
    write_slots(&text, "gradients", at(plan, "slots.gradients"));
    write_slots(&text, "gradient sums", at(plan, "slots.gradient_sums"));
    write_config(&text, at(plan, "config"));
    return text.bytes;
}
